/* update.cu: kernels that update weights and moments by SGD and AdamW (kernel/update.c has the formulas), and the ratios
 * of directions to gradients (kernel/ratios.c). A direction is rounded to f32, then the update is in f32. */
#include "device_read.h"

/* The numbers of one element; m and v are 0 if the update has none. */
typedef struct element {
  float w, m, v;
} element;

NG_INLINE element sgd(const dv_update *s, element x, float d) {
  const float g = d + s->decay * x.w;
  x.m = s->coefficients[1] * x.m + s->coefficients[0] * g;
  x.w = s->keep * x.w - s->lr * (s->nesterov ? g + s->mu * x.m : x.m);
  return x;
}

NG_INLINE element adamw(const dv_update *s, element x, float d) {
  x.m = s->b1 * x.m + s->n1 * d;
  x.v = s->b2 * x.v + s->n2 * (d * d);
  x.w = s->keep * x.w - s->coefficients[0] * (x.m / (sqrtf(x.v) * s->coefficients[1] + s->eps));
  return x;
}

/* Return 1 if a number of the element is not finite; such a number keeps its old value. */
NG_INLINE int32_t keep_finite(element *x, element old) {
  const bool w = dv_is_finite(x->w), m = dv_is_finite(x->m), v = dv_is_finite(x->v);
  if (!w) x->w = old.w;
  if (!m) x->m = old.m;
  if (!v) x->v = old.v;
  return w && m && v ? 0 : 1;
}

/* Update 4 adjacent elements of row r by SGD; the direction is computed in f32 if scale and k y fit f32, otherwise in double. Return the
 * number of elements that kept an old value, because the new one is not finite. */
NG_INLINE int32_t update_four(const dv_direction *e, const dv_update *s, uint32_t r, float4 d,
                              float4 u, float4 *w, float4 *m) {
  const double k = e->u == NULL ? 0.0 : e->y == NULL ? e->k : e->k * (double)e->y[r];
  const bool in_double =
      e->uses_double || !(fabs(e->scale) <= DV_LARGEST_F32) || !(fabs(k) <= DV_LARGEST_F32);
  const float *x = &d.x, *y = &u.x;
  float *weight = &w->x, *momentum = &m->x;
  int32_t stayed = 0;
  NG_UNROLL
  for (int32_t j = 0; j < 4; j++) {
    const float plain = (float)e->scale * x[j] + (float)k * y[j];
    const double wide = in_double ? e->scale * (double)x[j] + k * (double)y[j] : (double)plain;
    const element old = {weight[j], momentum[j], 0.0f};
    element now = sgd(s, old, (float)dv_clip(e, wide));
    stayed += keep_finite(&now, old);
    weight[j] = now.w;
    momentum[j] = now.m;
  }
  return stayed;
}

/* SGD on a flat tile. A thread issues the reads of TOGETHER times 4 elements before it uses one. */
NG_INLINE int64_t update_flat(const dv_direction *e, const dv_update *s, dv_tile t) {
  enum { TOGETHER = 2 };
  const float4 *d = (const float4 *)(const void *)e->D.place.data;
  const float4 *u = (const float4 *)(const void *)e->u, none = {0.0f, 0.0f, 0.0f, 0.0f};
  float4 *w = (float4 *)(void *)s->weight.data, *m = (float4 *)(void *)s->m;
  const uint32_t cols = (uint32_t)e->D.cols;
  int64_t stayed = 0;
  for (int64_t from = t.from + 4 * NG_THREAD; from < t.to; from += 4 * TOGETHER * DV_THREADS) {
    float4 x[TOGETHER], weight[TOGETHER], momentum[TOGETHER];
    NG_UNROLL
    for (int32_t k = 0; k < TOGETHER; k++) {
      const int64_t i = from + 4 * k * DV_THREADS, at = (i < t.to ? i : from) / 4;
      x[k] = d[at], weight[k] = w[at], momentum[k] = m[at];
    }
    NG_UNROLL
    for (int32_t k = 0; k < TOGETHER; k++) {
      const int64_t i = from + 4 * k * DV_THREADS;
      if (i >= t.to) continue;
      const uint32_t r = (uint32_t)i / cols, c = (uint32_t)i - r * cols;
      stayed += update_four(e, s, r, x[k], u == NULL ? none : u[c / 4], &weight[k], &momentum[k]);
      w[i / 4] = weight[k];
      m[i / 4] = momentum[k];
    }
  }
  return stayed;
}

/* ---- f64 weights -----------------------------------------------------------------------------*/

typedef struct wide_element {
  double w, m, v;
} wide_element;

NG_INLINE wide_element update_wide(const dv_update *s, wide_element x, double d) {
  const dv_wide_update *k = &s->wide;
  if (s->is_sgd) {
    const double g = d + k->decay * x.w;
    x.m = k->coefficients[1] * x.m + k->coefficients[0] * g;
    x.w = k->keep * x.w - k->lr * (s->nesterov ? g + k->mu * x.m : x.m);
  } else {
    x.m = k->b1 * x.m + k->n1 * d;
    x.v = k->b2 * x.v + k->n2 * (d * d);
    x.w = k->keep * x.w - k->coefficients[0] * (x.m / (sqrt(x.v) * k->coefficients[1] + k->eps));
  }
  return x;
}

NG_INLINE double *wide(float *moment) { return (double *)(void *)moment; }

/* Update one element; return 1 if a number keeps its old value. */
NG_INLINE int64_t update_one_wide(const dv_direction *e, const dv_update *s, int64_t r, int64_t c) {
  const int64_t row = e->D.row + r, col = e->D.col + c, at = row * s->cols + col;
  double *weight = (double *)(void *)s->weight.data + dv_offset(&s->weight, row, col);
  const wide_element old = {*weight, s->m == NULL ? 0.0 : wide(s->m)[at],
                            s->v == NULL ? 0.0 : wide(s->v)[at]};
  const wide_element x = update_wide(s, old, dv_clip(e, dv_direction_at(e, r, c)));
  const bool w = x.w - x.w == 0.0, m = x.m - x.m == 0.0, v = x.v - x.v == 0.0;
  if (w) *weight = x.w;
  if (m && s->m != NULL) wide(s->m)[at] = x.m;
  if (v && s->v != NULL) wide(s->v)[at] = x.v;
  return w && m && v ? 0 : 1;
}

/* ---- other weights ---------------------------------------------------------------------------*/

NG_INLINE float load_moment(const dv_update *s, const float *moment, int64_t at) {
  if (moment == NULL) return 0.0f;
  return dv_load((const char *)(const void *)moment, s->weight.dtype == DV_F64 ? DV_F64 : DV_F32,
                 at);
}

NG_INLINE element load_element(const dv_update *s, int64_t row, int64_t col) {
  const int64_t at = row * s->cols + col;
  return (element){dv_load(s->weight.data, s->weight.dtype, dv_offset(&s->weight, row, col)),
                   load_moment(s, s->m, at), load_moment(s, s->v, at)};
}

NG_INLINE int64_t update_one(const dv_direction *e, const dv_update *s, int64_t r, int64_t c) {
  const int64_t row = e->D.row + r, col = e->D.col + c, at = row * s->cols + col;
  const element old = load_element(s, row, col);
  const float d = (float)dv_clip(e, dv_direction_at(e, r, c));
  element now = s->is_sgd ? sgd(s, old, d) : adamw(s, old, d);
  const float weight = now.w;
  const int32_t stayed = keep_finite(&now, old);
  if (s->m != NULL) s->m[at] = now.m;
  if (s->v != NULL) s->v[at] = now.v;
  const int64_t w_at = dv_offset(&s->weight, row, col);
  return dv_store(s->weight.data, s->weight.dtype, w_at, weight) ? stayed : 1;
}

/* If skipped is not NULL and *skipped is not 0, change nothing. */
NG_GLOBAL dv_update_tiles(const dv_direction *list, const dv_update *updates, const int64_t *first,
                          int64_t n, const int32_t *skipped) {
  if (skipped != NULL && *skipped != 0) return;
  const int64_t item = dv_find_descriptor(first, n);
  const dv_direction *e = &list[item];
  const dv_update *s = &updates[item];
  const dv_tile t = dv_tile_of(item, first, e->D.rows * e->D.cols);
  int64_t stayed = 0;
  if (e->D.is_flat && e->is_rank_one && s->is_flat && s->is_sgd) {
    stayed = update_flat(e, s, t);
  } else {
    const bool is_wide = s->weight.dtype == DV_F64;
    for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
      const int64_t r = i / e->D.cols, c = i % e->D.cols;
      stayed += is_wide ? update_one_wide(e, s, r, c) : update_one(e, s, r, c);
    }
  }
  if (stayed > 0) NG_ADD(e->overflowed, stayed);
}

/* ---- ratios ----------------------------------------------------------------------------------*/

NG_INLINE void count_ratio(const dv_ratios *to, double r, int32_t dropped_bits, int32_t fine_bins) {
  const double scaled = r * 0x1p-30;
  const float x = scaled < DV_LARGEST_F32 ? (float)scaled : (float)DV_LARGEST_F32;
  const uint32_t key = NG_BITS_OF_FLOAT(x), bin = key >> dropped_bits;
  if (to->bins == 0) NG_ADD(&to->count[bin], 1);
  for (int32_t k = 0; k < to->bins; k++) {
    if (to->bin[k] != bin) continue;
    const uint32_t fine = key >> (dropped_bits - 11) & (uint32_t)(fine_bins - 1);
    NG_ADD(&to->count[k * fine_bins + (int32_t)fine], 1);
  }
}

/* One thread: the smallest ratio <- Inf, the largest <- 0. */
NG_GLOBAL dv_ratio_begin(double *extreme) {
  if (NG_THREAD != 0) return;
  extreme[0] = DV_INF;
  extreme[1] = 0.0;
}

/* sums [blocks][4]: the sums of r, d D, D^2, d^2 of each tile (ng_ratios). Before: launch dv_ratio_begin and set all counts to 0. If
 * updates is NULL, d is the direction; otherwise minus the weight after an update with lr = 1 and keep = 0. */
NG_GLOBAL dv_ratio_tiles(const dv_direction *list, const dv_update *updates, const int64_t *first,
                         int64_t n, const dv_ratios *to, double *sums, int32_t dropped_bits,
                         int32_t fine_bins) {
  NG_SHARED double warps[32];
  const int64_t item = dv_find_descriptor(first, n);
  const dv_direction *e = &list[item];
  const dv_tile t = dv_tile_of(item, first, e->D.rows * e->D.cols);
  double sum[4] = {0.0, 0.0, 0.0, 0.0};
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    const int64_t r = i / e->D.cols, c = i % e->D.cols;
    const double g = dv_gradient_double(&e->D, r, c);
    double d = dv_direction_at(e, r, c);
    if (updates != NULL) {
      const dv_update *s = &updates[item];
      const element x = load_element(s, e->D.row + r, e->D.col + c);
      const element now = s->is_sgd ? sgd(s, x, (float)d) : adamw(s, x, (float)d);
      d = dv_is_finite(x.w) ? -(double)now.w : 0.0;
    }
    const double ratio = fabs(d / (g + 1e-8));
    count_ratio(to, ratio, dropped_bits, fine_bins);
    NG_SMALLEST(&to->extreme[0], NG_BITS_OF_DOUBLE(ratio));
    NG_LARGEST(&to->extreme[1], NG_BITS_OF_DOUBLE(ratio));
    sum[0] += ratio;
    sum[1] += d * g;
    sum[2] += g * g;
    sum[3] += d * d;
  }
  for (int32_t k = 0; k < 4; k++) {
    sum[k] = dv_block_sum(sum[k], warps);
    if (NG_THREAD == 0) sums[4 * NG_BLOCK + k] = sum[k];
  }
}
