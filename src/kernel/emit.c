/* emit.c: write directions over their gradients; store directions; compute their norms.
 *
 * In: descriptors of directions d (kernel.h). Out: gradients in place, in the caller's dtype; d in dense f32; |d|^2.
 *
 * Tiles are disjoint, so any thread may write any tile. With a rank-one family, emit moves 12 bytes per f32 parameter:
 * two reads, one write. */
#include "kernel/entries.h"
#include "kernel/direction.h"
#include "simd.h"

/* ---- gradients in place ------------------------------------------------------------------------*/

/* x <- scale d + k u, where d is `values` if has_values, otherwise x; without `pair`, u is not read. If |scale d + k u| >=
 * limit, the element keeps its x; return the number of such elements. The flags are constants after inlining, so the
 * loops have no branches. */
static inline __attribute__((always_inline)) int32_t
rescale_loop(float *restrict x, const float *restrict values, const float *restrict u, int64_t n,
             float scale, float k, float limit, bool has_values, bool pair) {
  int32_t stayed = 0;
  for (int64_t i = 0; i < n; i++) {
    const float d = has_values ? values[i] : x[i];
    const float y = pair ? scale * d + k * u[i] : scale * d;
    const bool fits = fabsf(y) < limit;
    x[i] = fits ? y : x[i];
    stayed += !fits;
  }
  return stayed;
}

NG_CLONES static int32_t rescale(float *x, const float *values, const float *u, int64_t n,
                                 float scale, float k, float limit) {
  if (values != NULL) return rescale_loop(x, values, NULL, n, scale, k, limit, true, false);
  return u != NULL ? rescale_loop(x, NULL, u, n, scale, k, limit, false, true)
                   : rescale_loop(x, NULL, NULL, n, scale, k, limit, false, false);
}

/* x <- scale x + k u without a test against a limit, for results that are known to be finite. */
NG_CLONES static void rescale_untested(float *restrict x, const float *restrict u, int64_t n,
                                       float scale, float k) {
  for (int64_t i = 0; i < n && u == NULL; i++) {
    x[i] = scale * x[i];
  }
  for (int64_t i = 0; i < n && u != NULL; i++) {
    x[i] = scale * x[i] + k * u[i];
  }
}

/* Return whether every element of the line is known to fit f32: the bound |scale| largest_D + |k| largest_u is below half of
 * FLT_MAX, which leaves room for rounding. */
static bool is_known_finite(const ng_direction *e, const ng_direction_line *x) {
  const double most = fabs((double)x->scale) * e->largest_D + fabs((double)x->k) * e->largest_u;
  return most > 0.0 && most < 0.5 * (double)FLT_MAX && x->values == NULL;
}

/* Write a row of adjacent f32 in place. Return the number of elements that kept their gradient. */
static int32_t write_adjacent(const ng_direction *e, float *x, const ng_direction_line *line,
                              int64_t n) {
  if (!is_known_finite(e, line)) {
    return rescale(x, line->values, line->u, n, line->scale, line->k, INFINITY);
  }
  rescale_untested(x, line->u, n, line->scale, line->k);
  return 0;
}

/* Write n <= NG_LINE elements of row r in any layout. Return the number of elements that kept their gradient. */
static int32_t write_line(const ng_direction *e, int64_t r, int64_t c, int64_t n) {
  const ng_place *v = e->D.place;
  const int64_t row = e->D.row + r, col = e->D.col + c;
  float buffer[NG_LINE], tile[NG_LINE], *x = ng_row_as_f32(v, row, col, n, tile);
  const ng_direction_line l = ng_describe_line(e, r, c, n, buffer);
  const int32_t stayed = rescale(x, l.values, l.u, n, l.scale, l.k, ng_overflow_limit(v->dtype));
  if (x == tile) ng_place_write(v, row, col, n, tile);
  return stayed;
}

/* Write n <= NG_LINE elements of row r of an f64 gradient. Return the number of elements that kept their gradient. */
static int32_t write_double(const ng_direction *e, int64_t r, int64_t c, int64_t n) {
  const int64_t row = e->D.row + r, col = e->D.col + c;
  double x[NG_LINE], pd[NG_LINE];
  int32_t stayed = 0;
  ng_place_read_double(e->D.place, row, col, n, x);
  ng_compute_clipped_line(e, r, c, n, pd);
  for (int64_t i = 0; i < n; i++) {
    const bool fits = fabs(pd[i]) < INFINITY;
    x[i] = fits ? pd[i] : x[i];
    stayed += !fits;
  }
  ng_place_write_double(e->D.place, row, col, n, x);
  return stayed;
}

static void write_tile(void *unused, const void *descriptor, const ng_tile *t) {
  const ng_direction *e = descriptor;
  const ng_place *v = e->D.place;
  const bool plain = v->dtype == NG_F32 && v->has_dense_rows && ng_is_plain_direction(e);
  const int64_t most = ng_place_columns(v);
  int64_t stayed = 0;
  (void)unused;
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    ng_direction_line line;
    if (plain && ng_describe_plain_line(e, r, t->col, &line)) {
      float *x = ng_place_at(v, e->D.row + r, e->D.col + t->col);
      stayed += write_adjacent(e, x, &line, t->cols);
      continue;
    }
    for (int64_t c = t->col, n; c < t->col + t->cols; c += n) {
      n = ng_min64(most, t->col + t->cols - c);
      stayed += v->dtype == NG_F64 ? write_double(e, r, c, n) : write_line(e, r, c, n);
    }
  }
  /* elements rarely keep their value, so threads rarely contend for this counter */
  if (stayed > 0) atomic_fetch_add(e->overflowed, stayed);
}

void ng_cpu_write_directions(ng_queue *q, const ng_direction *e, int64_t n) {
  ng_run_tiles(q, e, sizeof *e, n, true, write_tile, NULL);
}

/* ---- stored directions, norms --------------------------------------------------------------------*/

static void store_tile(void *arg, const void *descriptor, const ng_tile *t) {
  const ng_direction *e = descriptor;
  float *to = ((float *const *)arg)[t->region];
  double pd[NG_LINE];
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    for (int64_t c = t->col, n; c < t->col + t->cols; c += n) {
      n = ng_min64(NG_LINE, t->col + t->cols - c);
      ng_compute_line(e, r, c, n, pd);
      for (int64_t k = 0; k < n; k++) {
        to[r * e->D.cols + c + k] = (float)pd[k];
      }
    }
  }
}

void ng_cpu_store_directions(ng_queue *q, const ng_direction *e, float *const *to, int64_t n) {
  ng_run_tiles(q, e, sizeof *e, n, false, store_tile, (void *)(uintptr_t)to);
}

static void norm_tile(void *parts, const void *descriptor, const ng_tile *t) {
  double pd[NG_LINE], sum = 0.0;
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    for (int64_t c = t->col, n; c < t->col + t->cols; c += n) {
      n = ng_min64(NG_LINE, t->col + t->cols - c);
      ng_compute_line(descriptor, r, c, n, pd);
      for (int64_t k = 0; k < n; k++) {
        sum += pd[k] * pd[k];
      }
    }
  }
  ((double *)parts)[t->index] = sum;
}

void ng_cpu_sum_norms(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out) {
  ng_run_tiles(q, e, sizeof *e, n, false, norm_tile, parts);
  for (int64_t i = 0; i < n; i++) {
    const int64_t tiles = ng_count_tiles(e[i].D.rows, e[i].D.cols);
    out[i] = 0.0;
    for (int64_t k = 0; k < tiles; k++) {
      out[i] += *parts++;
    }
  }
}
