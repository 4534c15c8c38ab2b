/* update.c: update weights and moments by directions, with SGD or AdamW as in torch.optim (AdamW: decoupled weight decay,
 * arXiv 1711.05101).
 *
 * In: descriptors of directions d (kernel.h), weights in the caller's dtype, moments in f32 or f64, coefficients. Out: weights
 * and moments. With d = clip factor times PD, w the weight, m and v the moments, t the number of the update; lr, wd
 * (weight decay), mu (momentum), damp (dampening), b1, b2 and eps are the caller's numbers:
 *
 *      SGD    g = d + wd w;  m <- mu m + (1 - damp) g;  w <- w - lr m, or w - lr (g + mu m)
 *      AdamW  m <- b1 m + (1-b1) d;  v <- b2 v + (1-b2) d^2
 *             w <- (1 - lr wd) w - lr / (1-b1^t) m / (sqrt(v / (1-b2^t)) + eps)
 *
 * An element whose new weight, momentum or moment is not finite keeps the old value and is counted. With a rank-one
 * family and momentum, SGD moves 24 bytes per f32 parameter. */
#include <string.h>

#include "kernel/entries.h"
#include "kernel/direction.h"
#include "simd.h"

/* The direction scale d + k u, or scale d if u is NULL. */
typedef struct direction_row {
  const float *d, *u;
  float scale, k;
} direction_row;

/* Return how many weights overflow and keep their old value. Momentum and weight are tested separately: if only the
 * weight overflows, the momentum still changes. If the momentum overflows, the weight overflows, too, so the function
 * counts weights only. `plain`: keep and take are 1, so the compiler removes two products. */
static inline __attribute__((always_inline)) int32_t
sgd_loop(const ng_sgd_coefficients *s, const double coefficients[2], float *restrict m,
         float *restrict w, const direction_row *of, int64_t n, float limit, bool pair,
         bool nesterov, bool plain) {
  const float *restrict d = of->d, *restrict u = of->u;
  const float scale = of->scale, k = of->k, lr = (float)s->lr, mu = (float)s->mu,
              decay = (float)s->decay, old = (float)coefficients[1],
              keep = plain ? 1.0f : (float)s->keep, take = plain ? 1.0f : (float)coefficients[0];
  int32_t updated = 0;
  for (int64_t i = 0; i < n; i++) {
    const float pd = pair ? scale * d[i] + k * u[i] : scale * d[i];
    const float g = pd + decay * w[i];
    const float v = old * m[i] + take * g;
    const bool fits = fabsf(v) < INFINITY;
    const float step = nesterov ? g + mu * v : v;
    m[i] = fits ? v : m[i];
    const float moved = keep * w[i] - lr * step;
    const bool in_range = fabsf(moved) < limit;
    w[i] = in_range ? moved : w[i];
    updated += in_range;
  }
  return (int32_t)n - updated;
}

NG_CLONES static int32_t update_by_sgd(const ng_sgd_coefficients *s, const double coefficients[2],
                                       float *m, float *w, const direction_row *of, int64_t n,
                                       float limit) {
  const bool pair = of->u != NULL, plain = s->keep == 1.0 && coefficients[0] == 1.0;
  if (s->nesterov) {
    return pair ? sgd_loop(s, coefficients, m, w, of, n, limit, true, true, false)
                : sgd_loop(s, coefficients, m, w, of, n, limit, false, true, false);
  }
  if (plain && pair) return sgd_loop(s, coefficients, m, w, of, n, limit, true, false, true);
  return pair ? sgd_loop(s, coefficients, m, w, of, n, limit, true, false, false)
              : sgd_loop(s, coefficients, m, w, of, n, limit, false, false, false);
}

/* Return how many elements have a moment or weight that overflows and keeps its old value. If the second moment
 * overflows, the denominator is Inf, so the weight only decays. */
static inline __attribute__((always_inline)) int32_t
adamw_loop(const ng_adamw_coefficients *a, const double coefficients[2], float *restrict m,
           float *restrict v, float *restrict w, const direction_row *of, int64_t n, float limit,
           bool pair) {
  const float *restrict d = of->d, *restrict u = of->u;
  const float scale = of->scale, k = of->k, b1 = (float)a->b1, b2 = (float)a->b2, n1 = (float)a->n1,
              n2 = (float)a->n2, keep = (float)a->keep, step = (float)coefficients[0],
              root = (float)coefficients[1], eps = (float)a->eps;
  int32_t stayed = 0;
  for (int64_t i = 0; i < n; i++) {
    const float g = pair ? scale * d[i] + k * u[i] : scale * d[i];
    const float first = b1 * m[i] + n1 * g;
    const float second = b2 * v[i] + n2 * (g * g);
    const float moved = keep * w[i] - step * (first / (sqrtf(second) * root + eps));
    const bool first_fits = fabsf(first) < INFINITY, second_fits = second < INFINITY;
    const bool in_range = fabsf(moved) < limit;
    m[i] = first_fits ? first : m[i];
    v[i] = second_fits ? second : v[i];
    w[i] = in_range ? moved : w[i];
    stayed += !(first_fits & second_fits & in_range);
  }
  return stayed;
}

NG_CLONES static int32_t update_by_adamw(const ng_adamw_coefficients *a,
                                         const double coefficients[2], float *m, float *v, float *w,
                                         const direction_row *of, int64_t n, float limit) {
  return of->u != NULL ? adamw_loop(a, coefficients, m, v, w, of, n, limit, true)
                       : adamw_loop(a, coefficients, m, v, w, of, n, limit, false);
}

/* ---- f64 weights -----------------------------------------------------------------------------*/

/* Update n <= NG_LINE elements of row r of an f64 weight; return how many overflowed. */
static int32_t update_double(const ng_direction *e, const ng_weight_update *s, int64_t r, int64_t c,
                             int64_t n) {
  const int64_t row = e->D.row + r, col = e->D.col + c, at = row * s->cols + col;
  double *m = s->m, *v = s->v, d[NG_LINE], w[NG_LINE];
  int32_t stayed = 0;
  ng_compute_clipped_line(e, r, c, n, d);
  ng_place_read_double(s->weight, row, col, n, w);
  for (int64_t i = 0; i < n; i++) {
    const ng_element old = {w[i], m[at + i], v == NULL ? 0.0 : v[at + i]};
    const ng_element x = ng_update_element(s, old, d[i]);
    const bool fits[] = {fabs(x.m) < INFINITY, fabs(x.v) < INFINITY, fabs(x.w) < INFINITY};
    if (fits[0]) m[at + i] = x.m;
    if (fits[1] && v != NULL) v[at + i] = x.v;
    if (fits[2]) w[i] = x.w;
    stayed += !(fits[0] && fits[1] && fits[2]);
  }
  ng_place_write_double(s->weight, row, col, n, w);
  return stayed;
}

/* ---- rows ------------------------------------------------------------------------------------*/

/* Update n weights w and their moments; return how many elements overflow. */
static int32_t update_floats(const ng_weight_update *s, float *m, float *v, float *w,
                             const direction_row *of, int64_t n, float limit) {
  return s->sgd != NULL ? update_by_sgd(s->sgd, s->coefficients, m, w, of, n, limit)
                        : update_by_adamw(s->adamw, s->coefficients, m, v, w, of, n, limit);
}

/* Return the direction of n elements of row r, described by x. The gradient is read in place, or converted into
 * `gradient`. */
static direction_row load_direction_row(const ng_direction *e, const ng_direction_line *x,
                                        int64_t r, int64_t c, int64_t n, float *gradient) {
  const float *d = x->values != NULL
                       ? x->values
                       : ng_row_as_f32(e->D.place, e->D.row + r, e->D.col + c, n, gradient);
  return (direction_row){d, x->u, x->scale, x->k};
}

static bool is_dense_f32(const ng_place *v) { return v->dtype == NG_F32 && v->has_dense_rows; }

/* Update n elements of row r of the weight and their moments; return how many elements overflow. The gradient stays
 * unchanged, because the caller may need its norm. */
static int32_t update_line(const ng_direction *e, const ng_weight_update *s, int64_t r, int64_t c,
                           int64_t n, float limit, const direction_row *of) {
  const int64_t row = e->D.row + r, col = e->D.col + c, at = row * s->cols + col;
  float tile[NG_LINE], *w = ng_row_as_f32(s->weight, row, col, n, tile);
  float *m = s->m, *v = s->v;
  const int32_t stayed =
      update_floats(s, m == NULL ? NULL : m + at, v == NULL ? NULL : v + at, w, of, n, limit);
  if (w == tile) ng_place_write(s->weight, row, col, n, tile);
  return stayed;
}

static void update_tile(void *updates, const void *descriptor, const ng_tile *t) {
  const ng_direction *e = descriptor;
  const ng_weight_update *s = (const ng_weight_update *)updates + t->region;
  const bool plain = is_dense_f32(s->weight) && ng_is_plain_direction(e) &&
                     (e->is_stored || is_dense_f32(e->D.place));
  const int64_t most = ng_place_columns(s->weight->has_dense_rows ? e->D.place : s->weight);
  const float limit = ng_overflow_limit(s->weight->dtype);
  float buffer[NG_LINE], gradient[NG_LINE];
  int64_t stayed = 0;
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    ng_direction_line x;
    if (plain && ng_describe_plain_line(e, r, t->col, &x)) {
      const direction_row of = load_direction_row(e, &x, r, t->col, t->cols, gradient);
      stayed += update_line(e, s, r, t->col, t->cols, limit, &of);
      continue;
    }
    for (int64_t c = t->col, n; c < t->col + t->cols; c += n) {
      n = ng_min64(most, t->col + t->cols - c);
      if (s->weight->dtype == NG_F64) {
        stayed += update_double(e, s, r, c, n);
        continue;
      }
      x = ng_describe_line(e, r, c, n, buffer);
      const direction_row of = load_direction_row(e, &x, r, c, n, gradient);
      stayed += update_line(e, s, r, c, n, limit, &of);
    }
  }
  if (stayed > 0) atomic_fetch_add(e->overflowed, stayed);
}

void ng_cpu_update_weights(ng_queue *q, const ng_direction *e, const ng_weight_update *s,
                           int64_t n) {
  ng_run_tiles(q, e, sizeof *e, n, true, update_tile, (void *)(uintptr_t)s);
}

/* ---- the direction of an update ------------------------------------------------------------------*/

void ng_direction_of_update(const ng_direction *e, const ng_weight_update *s, int64_t r, int64_t c,
                            int64_t n, float *u) {
  const int64_t row = e->D.row + r, col = e->D.col + c, at = row * s->cols + col;
  const ng_dtype t = s->weight->dtype == NG_F64 ? NG_F64 : NG_F32; /* dtype of the moments */
  float buffer[NG_LINE], gradient[NG_LINE], m[NG_LINE], v[NG_LINE];
  const ng_direction_line x = ng_describe_line(e, r, c, n, buffer);
  const direction_row of = load_direction_row(e, &x, r, c, n, gradient);
  ng_place_read(s->weight, row, col, n, u);
  if (!ng_are_finite(u, NG_F32, n)) {
    memset(u, 0, (size_t)n * sizeof *u);
    return;
  }
  if (s->m != NULL) ng_to_f32(m, (const char *)s->m + at * ng_dtype_size(t), t, n);
  if (s->v != NULL) ng_to_f32(v, (const char *)s->v + at * ng_dtype_size(t), t, n);
  (void)update_floats(s, m, v, u, &of, n, INFINITY);
  for (int64_t i = 0; i < n; i++) {
    u[i] = -u[i];
  }
}
