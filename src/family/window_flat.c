/* window_flat.c: loops over all parameters of a window, in flat order.
 *
 * In: bound gradients and weights.  Out: a vector of d elements; sums in double.  The sums of chunks are added in the
 * order of chunks, so the result does not depend on the number of threads. */
#include "family/window.h"

/* Largest element for error feedback or momentum: 1e12 / (damping = 1e-6) = 1e18, whose square fits f32 (AdamW). */
static const double STORED_MOST = 1e12;

typedef struct chunk_loop {
  ng_block *b;
  void (*task)(ng_block *b, int32_t chunk);
} chunk_loop;

static void run_chunk(void *arg, int32_t i) {
  const chunk_loop *e = arg;
  e->task(e->b, i);
}

void ng_window_each_chunk(ng_block *b, void (*task)(ng_block *b, int32_t chunk)) {
  chunk_loop e = {b, task};
  ng_parallel(b->ctx, ng_window_of(b)->chunks, run_chunk, &e);
}

int64_t ng_window_total_sum(const ng_window *w) {
  double sum = 0.0;
  for (int32_t i = 0; i < w->chunks; i++) {
    sum += w->sums[i];
  }
  return (int64_t)sum;
}

/* ---- reading gradients and weights ------------------------------------------------------------- */

/* out <- elements [from, from + n) of a parameter, row after row. */
static void read_flat(const ng_place *v, int64_t cols, int64_t from, int64_t n, float *out) {
  while (n > 0) {
    const int64_t row = from / cols, col = from % cols, run = ng_min64(n, cols - col);
    ng_place_read(v, row, col, run, out);
    from += run;
    out += run;
    n -= run;
  }
}

typedef struct gradient_read {
  ng_block *b;
  double number; /* gather: largest accepted magnitude; decay: factor of the weights */
  float *to;
} gradient_read;

static void read_chunk(void *arg, int32_t i) {
  const gradient_read *g = arg;
  ng_window *w = ng_window_of(g->b);
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  const ng_slot *s = g->b->segment[c.segment].slot;
  float *to = g->to + c.at;
  if (s->is_excluded) {
    memset(to, 0, (size_t)c.n * sizeof *to);
    w->sums[i] = 0.0;
    return;
  }
  read_flat(&s->grad, s->cols, c.from, c.n, to);
  w->sums[i] =
      (double)ng_float_of_bits(ng_largest_bits_of(to, NG_F32, c.n)) <= g->number ? 0.0 : 1.0;
  for (int64_t k = 0; k < c.n && w->mask != NULL; k++) {
    if (w->mask[c.at + k] == 0) to[k] = 0.0f;
  }
}

/* Rows may be large, because a row leaves the window after m steps and the solve scales its direction down.  But error
 * feedback and averages keep large elements, and every step divides them by the damping: so these have a bound. */
ng_status ng_window_read_gradients(ng_block *b, float *to) {
  const bool keeps = b->base.window_store != NG_STORE_DENSE || ng_window_x_is_average(b);
  const bool bounded = keeps && !ng_window_is_adaptive(&b->base);
  gradient_read g = {b, bounded ? STORED_MOST : ng_dtype_largest(NG_F32), to};
  ng_parallel(b->ctx, ng_window_of(b)->chunks, read_chunk, &g);
  if (ng_window_total_sum(ng_window_of(b)) == 0) return NG_OK;
  return ng_fail(b->ctx, NG_SKIPPED, "%s: a gradient is not finite%s", b->name,
                 bounded ? ", or above 1e12, which error feedback or momentum would keep" : "");
}

static void decay_chunk(void *arg, int32_t i) {
  const gradient_read *g = arg;
  ng_window *w = ng_window_of(g->b);
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  const ng_slot *s = g->b->segment[c.segment].slot;
  float line[NG_WINDOW_LINE];
  double bad = 0.0;
  for (int64_t at = 0, n; at < c.n && !s->is_excluded; at += n) {
    float *to = g->to + c.at + at;
    n = ng_min64(NG_WINDOW_LINE, c.n - at);
    read_flat(&s->weight, s->cols, c.from + at, n, line);
    for (int64_t k = 0; k < n; k++) {
      if (w->mask != NULL && w->mask[c.at + at + k] == 0) continue;
      to[k] = (float)((double)to[k] + g->number * (double)line[k]);
    }
    bad += ng_all_finite(to, NG_F32, n) ? 0.0 : 1.0;
  }
  w->sums[i] = bad;
}

bool ng_window_add_decay(ng_block *b, double decay, float *to) {
  gradient_read g = {b, decay, to};
  ng_parallel(b->ctx, ng_window_of(b)->chunks, decay_chunk, &g);
  return ng_window_total_sum(ng_window_of(b)) == 0;
}

static void mask_chunk(ng_block *b, int32_t i) {
  ng_window *w = ng_window_of(b);
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  const ng_slot *s = b->segment[c.segment].slot;
  float weights[NG_WINDOW_LINE];
  for (int64_t at = 0, n; at < c.n; at += n) {
    n = ng_min64(NG_WINDOW_LINE, c.n - at);
    read_flat(&s->weight, s->cols, c.from + at, n, weights);
    for (int64_t k = 0; k < n; k++) {
      w->mask[c.at + at + k] = weights[k] != 0.0f;
    }
  }
}

void ng_window_make_mask(ng_block *b) { ng_window_each_chunk(b, mask_chunk); }

bool ng_window_has_excluded(const ng_block *b) {
  for (int32_t k = 0; k < b->segments; k++) {
    if (b->segment[k].slot->is_excluded) return true;
  }
  return false;
}

int64_t ng_window_count_selectable(const ng_block *b, int64_t at, int64_t n) {
  const ng_window *w = ng_window_of(b);
  int64_t some = 0;
  for (int32_t k = 0; k < b->segments; k++) {
    const ng_window_view *v = &w->view[k];
    const int64_t from = ng_max64(at, v->at), to = ng_min64(at + n, v->at + v->n);
    if (b->segment[k].slot->is_excluded || from >= to) continue;
    some += w->mask == NULL ? to - from : 0;
    for (int64_t i = from; i < to && w->mask != NULL; i++) {
      some += w->mask[i];
    }
  }
  return some;
}

static void clear_chunk(void *arg, int32_t i) {
  const gradient_read *g = arg;
  const ng_window_chunk c = ng_window_chunk_at(ng_window_of(g->b), i);
  if (ng_window_is_excluded(g->b, &c)) memset(g->to + c.at, 0, (size_t)c.n * sizeof *g->to);
}

void ng_window_clear_excluded(ng_block *b, float *to) {
  gradient_read g = {b, 0.0, to};
  if (ng_window_has_excluded(b)) ng_parallel(b->ctx, ng_window_of(b)->chunks, clear_chunk, &g);
}

int64_t ng_window_topk_size(const ng_block *b, int64_t n) {
  const double density = b->base.window_density;
  const double k = density > 1.0 ? density : density * (double)n;
  const bool up = b->base.window_store == NG_STORE_TOPK_BLOCK && (double)(int64_t)k < k;
  return ng_max64(1, ng_min64(n, (int64_t)k + up));
}

/* ---- filling ---------------------------------------------------------------------------------*/

static void fill_chunk(void *arg, int32_t i) {
  const gradient_read *g = arg;
  const ng_window *w = ng_window_of(g->b);
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  const ng_slot *s = g->b->segment[c.segment].slot;
  float line[NG_WINDOW_LINE];
  for (int64_t at = 0, n; at < c.n && !s->is_excluded; at += n) {
    float *u = w->u + c.at + at, *from = g->to == NULL ? line : g->to + c.at + at;
    n = ng_min64(NG_WINDOW_LINE, c.n - at);
    if (g->to == NULL) read_flat(&s->grad, s->cols, c.from + at, n, line);
    for (int64_t k = 0; k < n; k++) {
      if (u[k] != 0.0f || (w->mask != NULL && w->mask[c.at + at + k] == 0)) continue;
      u[k] = from[k];
      from[k] = 0.0f;
    }
  }
}

void ng_window_fill_zeros(ng_block *b, float *error) {
  gradient_read g = {b, 0.0, error};
  ng_parallel(b->ctx, ng_window_of(b)->chunks, fill_chunk, &g);
}

/* ---- measuring -------------------------------------------------------------------------------*/

static void measure_chunk(ng_block *b, int32_t i) {
  ng_window *w = ng_window_of(b);
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  const ng_slot *s = b->segment[c.segment].slot;
  double *sum = w->sums + 4 * (int64_t)i;
  float line[NG_WINDOW_LINE];
  memset(sum, 0, 4 * sizeof *sum);
  for (int64_t at = 0, n; at < c.n && !s->is_excluded; at += n) {
    const float *u = w->u + c.at + at;
    n = ng_min64(NG_WINDOW_LINE, c.n - at);
    read_flat(&s->grad, s->cols, c.from + at, n, line);
    sum[0] += ng_row_dot(line, u, n);
    sum[1] += ng_row_dot(line, line, n);
    sum[2] += ng_row_dot(u, u, n);
  }
}

void ng_window_measure(ng_block *b, double out[3]) {
  const ng_window *w = ng_window_of(b);
  ng_window_each_chunk(b, measure_chunk);
  memset(out, 0, 3 * sizeof *out);
  for (int32_t i = 0; i < w->chunks; i++) {
    for (int k = 0; k < 3; k++) {
      out[k] += w->sums[4 * (int64_t)i + k];
    }
  }
}
