/* flat.c: passes over the vectors of windows (flat.h): reading, moments, sums.
 *
 * In: bound gradients and weights, vectors of d elements. Out: vectors; counts and sums in double. Chunks are added in
 * order, so results do not depend on the number of threads. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernel/entries.h"
#include "kernel/row_loops.h"
#include "simd.h"

ng_flat_chunk ng_find_chunk(const ng_flat_range *range, int64_t ranges, int64_t i) {
  int64_t low = 0, high = ranges; /* find the last range whose first chunk is <= i */
  while (high - low > 1) {
    const int64_t k = low + (high - low) / 2;
    if (range[k].first_chunk <= i) {
      low = k;
    } else {
      high = k;
    }
  }
  const ng_flat_range *r = &range[low];
  const int64_t from = (i - r->first_chunk) * NG_FLAT_CHUNK;
  return (ng_flat_chunk){r, from, ng_min64(NG_FLAT_CHUNK, r->n - from), r->at + from};
}

int32_t ng_count_list_chunks(const ng_flat_range *range, int64_t ranges) {
  if (ranges == 0) return 0;
  return (int32_t)(range[ranges - 1].first_chunk + ng_count_range_chunks(range[ranges - 1].n));
}

/* ---- one line --------------------------------------------------------------------------------*/

/* A line: n <= NG_FLAT_LINE elements of a range. The pointers of p point to the first element of the line, which is
 * element `from` of the parameter. */
typedef struct flat_line {
  ng_flat_pass p;
  const ng_flat_range *range;
  int64_t from, n;
} flat_line;

/* out <- the elements of the line, read from the parameter's gradient or weight v. */
static void read_flat(const flat_line *l, const ng_place *v, float *out) {
  const int64_t cols = l->range->cols;
  for (int64_t at = 0, n; at < l->n; at += n) {
    const int64_t row = (l->from + at) / cols, col = (l->from + at) % cols;
    n = ng_min64(l->n - at, cols - col);
    ng_place_read(v, row, col, n, out + at);
  }
}

static bool is_masked(const ng_flat_pass *p, int64_t k) {
  return p->mask != NULL && p->mask[k] == 0;
}

static double finite_or_old(double x, float old, int64_t *kept) {
  if (fabs(x) <= (double)FLT_MAX) return x;
  *kept += 1;
  return (double)old;
}

static int64_t read_line(const flat_line *l) {
  const ng_flat_pass *p = &l->p;
  if (l->range->is_excluded) {
    memset(p->to, 0, (size_t)l->n * sizeof *p->to);
    return 0;
  }
  read_flat(l, l->range->grad, p->to);
  const uint32_t largest = ng_find_largest_bits(p->to, NG_F32, l->n);
  for (int64_t k = 0; k < l->n && p->mask != NULL; k++) {
    if (p->mask[k] == 0) p->to[k] = 0.0F;
  }
  return (double)ng_float_of_bits(largest) <= p->limit ? 0 : 1;
}

static int64_t decay_line(const flat_line *l) {
  const ng_flat_pass *p = &l->p;
  float w[NG_FLAT_LINE];
  if (l->range->is_excluded) return 0;
  read_flat(l, l->range->weight, w);
  for (int64_t k = 0; k < l->n; k++) {
    if (!is_masked(p, k)) p->to[k] = (float)((double)p->to[k] + p->take * (double)w[k]);
  }
  return ng_are_finite(p->to, NG_F32, l->n) ? 0 : 1;
}

static int64_t mask_line(const flat_line *l) {
  float w[NG_FLAT_LINE];
  read_flat(l, l->range->weight, w);
  for (int64_t k = 0; k < l->n; k++) {
    l->p.mask[k] = w[k] != 0.0F;
  }
  return 0;
}

static int64_t clear_line(const flat_line *l) {
  const ng_flat_pass *p = &l->p;
  for (int64_t k = 0; k < l->n && l->range->is_excluded; k++) {
    p->to[k] = p->v == NULL ? 0.0F : p->v[k];
  }
  return 0;
}

static int64_t scale_line(const flat_line *l) {
  const ng_flat_pass *p = &l->p;
  const float by = (float)p->take;
  for (int64_t k = 0; k < l->n; k++) {
    p->to[k] = l->range->is_excluded ? -p->v[k] : by * p->to[k];
  }
  return 0;
}

static int64_t fill_line(const flat_line *l) {
  const ng_flat_pass *p = &l->p;
  float g[NG_FLAT_LINE], *from = p->x == NULL ? g : p->x;
  if (l->range->is_excluded) return 0;
  if (p->x == NULL) read_flat(l, l->range->grad, g);
  for (int64_t k = 0; k < l->n; k++) {
    if (p->to[k] != 0.0F || is_masked(p, k)) continue;
    p->to[k] = from[k];
    from[k] = 0.0F;
  }
  return 0;
}

/* out <- old v + take x, in double, rounded. */
NG_CLONES static void mix(const float *v, double old, const float *x, double take, int64_t n,
                          float *restrict out) {
  for (int64_t k = 0; k < n; k++)
    out[k] = (float)(old * (double)v[k] + take * (double)x[k]);
}

static int64_t mix_line(const flat_line *l) {
  const ng_flat_pass *p = &l->p;
  float out[NG_FLAT_LINE]; /* `to` may be x, and a loop that writes x is not vectorised */
  int64_t kept = 0;
  if (l->range->is_excluded) {
    memmove(p->to, p->v, (size_t)l->n * sizeof *p->to);
    return 0;
  }
  mix(p->v, p->old, p->x, p->take, l->n, out);
  if (ng_float_of_bits(ng_find_largest_bits(out, NG_F32, l->n)) < FLT_MAX) {
    memcpy(p->to, out, (size_t)l->n * sizeof *out);
    return 0;
  }
  for (int64_t k = 0; k < l->n; k++) {
    const double sum = p->old * (double)p->v[k] + p->take * (double)p->x[k];
    p->to[k] = (float)finite_or_old(sum, p->v[k], &kept);
  }
  return kept;
}

static int64_t adam_direction(const flat_line *l) {
  const ng_flat_pass *p = &l->p;
  int64_t kept = 0;
  if (l->range->is_excluded) {
    /* in an excluded parameter x is 0, because NG_FLAT_READ has set it */
    memcpy(p->to, p->v, (size_t)l->n * sizeof *p->to);
    if (p->s != NULL) memcpy(p->next_s, p->s, (size_t)l->n * sizeof *p->next_s);
    return 0;
  }
  for (int64_t k = 0; k < l->n; k++) {
    const double g = (double)p->x[k];
    const double m = finite_or_old(p->old * (double)p->v[k] + p->take * g, p->v[k], &kept);
    p->to[k] = p->x[k] = (float)m;
    if (p->s == NULL) continue;
    const double s = finite_or_old(p->forget * (double)p->s[k] + p->add * g * g, p->s[k], &kept);
    p->next_s[k] = (float)s;
    p->x[k] = (float)(m * p->m / (sqrt(s * p->m2) + p->eps));
  }
  return kept;
}

static int64_t divide_line(const flat_line *l) {
  const ng_flat_pass *p = &l->p;
  int64_t kept = 0;
  for (int64_t k = 0; k < l->n; k++) {
    const double x = (double)p->to[k], s = finite_or_old((double)p->s[k] + x * x, p->s[k], &kept);
    p->next_s[k] = (float)s;
    p->to[k] = (float)(x / (sqrt(s) + p->eps));
  }
  return kept;
}

static int64_t limit_line(const flat_line *l) {
  const ng_flat_pass *p = &l->p;
  int64_t kept = 0;
  for (int64_t k = 0; k < l->n; k++) {
    if (fabs((double)p->to[k]) * p->take <= p->limit) continue;
    p->to[k] = 0.0F;
    kept++;
  }
  return kept;
}

static int64_t count_selectable(const flat_line *l) {
  int64_t some = 0;
  for (int64_t k = 0; k < l->n && !l->range->is_excluded; k++) {
    some += !is_masked(&l->p, k);
  }
  return some;
}

static void measure_line(const flat_line *l, double sum[3]) {
  const float *u = l->p.to;
  float g[NG_FLAT_LINE];
  if (l->range->is_excluded) return;
  read_flat(l, l->range->grad, g);
  sum[0] += ng_row_dot(g, u, l->n);
  sum[1] += ng_row_dot(g, g, l->n);
  sum[2] += ng_row_dot(u, u, l->n);
}

/* ---- chunks ----------------------------------------------------------------------------------*/

static int64_t (*const line_pass[NG_FLAT_OPS])(const flat_line *l) = {
    [NG_FLAT_READ] = read_line,         [NG_FLAT_DECAY] = decay_line,
    [NG_FLAT_MASK] = mask_line,         [NG_FLAT_CLEAR] = clear_line,
    [NG_FLAT_SCALE] = scale_line,       [NG_FLAT_FILL] = fill_line,
    [NG_FLAT_MIX] = mix_line,           [NG_FLAT_ADAM] = adam_direction,
    [NG_FLAT_DIVIDE] = divide_line,     [NG_FLAT_LIMIT] = limit_line,
    [NG_FLAT_COUNT] = count_selectable, [NG_FLAT_MEASURE] = NULL};

static void move_pointers(ng_flat_pass *p, int64_t at) {
  p->to = p->to == NULL ? NULL : p->to + at;
  p->x = p->x == NULL ? NULL : p->x + at;
  p->next_s = p->next_s == NULL ? NULL : p->next_s + at;
  p->v = p->v == NULL ? NULL : p->v + at;
  p->s = p->s == NULL ? NULL : p->s + at;
  p->mask = p->mask == NULL ? NULL : p->mask + at;
}

static void pass_chunk(void *arg, int32_t i) {
  const ng_flat_pass *p = arg;
  const ng_flat_chunk c = ng_find_chunk(p->range, p->ranges, i);
  double *sum = p->partial_sums + 3 * (int64_t)i;
  memset(sum, 0, 3 * sizeof *sum);
  for (int64_t at = 0; at < c.n; at += NG_FLAT_LINE) {
    flat_line l = {*p, c.range, c.range->from + c.from + at, ng_min64(NG_FLAT_LINE, c.n - at)};
    move_pointers(&l.p, c.at + at);
    if (p->op == NG_FLAT_MEASURE) {
      measure_line(&l, sum);
    } else {
      sum[0] += (double)line_pass[p->op](&l);
    }
  }
}

void ng_cpu_run_flat_passes(ng_queue *q, const ng_flat_pass *p, int64_t n) {
  for (const ng_flat_pass *end = p + n; p < end; p++) {
    const int32_t chunks = ng_count_list_chunks(p->range, p->ranges);
    ng_queue_run(q, chunks, pass_chunk, (void *)(uintptr_t)p);
    memset(p->out, 0, 3 * sizeof *p->out);
    for (int64_t i = 0; i < 3 * (int64_t)chunks; i++) {
      p->out[i % 3] += p->partial_sums[i];
    }
  }
}
