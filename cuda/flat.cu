/* flat.cu: passes over vectors of all elements of a block (src/kernel/flat.h: ng_flat_op). Arithmetic is in double and
 * rounded once, as in src/kernel/ref_flat.c. */
#include "device_read.h"

/* ng_flat_op */
enum {
  DV_FLAT_READ,
  DV_FLAT_DECAY,
  DV_FLAT_MASK,
  DV_FLAT_CLEAR,
  DV_FLAT_SCALE,
  DV_FLAT_FILL,
  DV_FLAT_MIX,
  DV_FLAT_ADAM,
  DV_FLAT_DIVIDE,
  DV_FLAT_LIMIT,
  DV_FLAT_COUNT,
  DV_FLAT_MEASURE
};

/* *to <- x, or `old` if x is not finite; return the number of elements that kept the old value. */
NG_INLINE int32_t dv_keep_finite(float *to, double x, float old) {
  const bool fits = fabs(x) <= DV_LARGEST_F32;
  *to = fits ? (float)x : old;
  return fits ? 0 : 1;
}

/* Element `at` of a bound parameter, rounded to f32. */
NG_INLINE double dv_bound(const dv_flat_range *r, const dv_place *v, int64_t at) {
  return (double)dv_load(v->data, v->dtype, dv_offset(v, at / r->cols, at % r->cols));
}

NG_INLINE int32_t dv_update_moments(const dv_flat *p, const dv_flat_range *r, int64_t k) {
  if (p->op == DV_FLAT_DIVIDE) {
    const double x = (double)p->to[k], s = (double)p->s[k] + x * x;
    p->to[k] = (float)(x / (sqrt(s <= DV_LARGEST_F32 ? s : (double)p->s[k]) + p->eps));
    return dv_keep_finite(&p->next_s[k], s, p->s[k]);
  }
  if (r->is_excluded) {
    p->to[k] = p->v[k];
    if (p->op == DV_FLAT_ADAM && p->s != NULL) p->next_s[k] = p->s[k];
    return 0;
  }
  const double x = (double)p->x[k], v = p->old * (double)p->v[k] + p->take * x;
  const int32_t kept = dv_keep_finite(&p->to[k], v, p->v[k]);
  if (p->op == DV_FLAT_MIX) return kept;
  p->x[k] = p->to[k];
  if (p->s == NULL) return kept;
  const double s = p->forget * (double)p->s[k] + p->add * x * x;
  const double m = fabs(v) <= DV_LARGEST_F32 ? v : (double)p->v[k];
  const double used = s <= DV_LARGEST_F32 ? s : (double)p->s[k];
  p->x[k] = (float)(m * p->m / (sqrt(used * p->m2) + p->eps));
  return kept + dv_keep_finite(&p->next_s[k], s, p->s[k]);
}

/* Element k of the vectors, which is element `at` of its parameter; add the count or the sums of the pass to `sum`. */
NG_INLINE void dv_flat_element(const dv_flat *p, const dv_flat_range *r, int64_t k, int64_t at,
                               double sum[3]) {
  const bool is_skipped = r->is_excluded || (p->mask != NULL && p->mask[k] == 0);
  const bool reads =
      p->op == DV_FLAT_READ || p->op == DV_FLAT_MEASURE || (p->op == DV_FLAT_FILL && p->x == NULL);
  const double g = reads && !r->is_excluded ? dv_bound(r, &r->grad, at) : 0.0;
  if (p->op == DV_FLAT_READ) {
    p->to[k] = is_skipped ? 0.0f : (float)g;
    if (!(fabs(g) <= p->limit)) sum[0] += 1.0;
  } else if (p->op == DV_FLAT_DECAY) {
    if (!is_skipped) p->to[k] = (float)((double)p->to[k] + p->take * dv_bound(r, &r->weight, at));
    if (!r->is_excluded && !dv_is_finite(p->to[k])) sum[0] += 1.0;
  } else if (p->op == DV_FLAT_MASK) {
    p->mask[k] = dv_bound(r, &r->weight, at) != 0.0;
  } else if (p->op == DV_FLAT_CLEAR) {
    if (r->is_excluded) p->to[k] = p->v == NULL ? 0.0f : p->v[k];
  } else if (p->op == DV_FLAT_SCALE) {
    p->to[k] = r->is_excluded ? -p->v[k] : (float)(p->take * (double)p->to[k]);
  } else if (p->op == DV_FLAT_FILL) {
    if (p->to[k] != 0.0f || is_skipped) return;
    p->to[k] = p->x == NULL ? (float)g : p->x[k];
    if (p->x != NULL) p->x[k] = 0.0f;
  } else if (p->op == DV_FLAT_LIMIT) {
    if (fabs((double)p->to[k]) * p->take <= p->limit) return;
    p->to[k] = 0.0f;
    sum[0] += 1.0;
  } else if (p->op == DV_FLAT_COUNT) {
    if (!is_skipped) sum[0] += 1.0;
  } else if (p->op == DV_FLAT_MEASURE) {
    const double to = (double)p->to[k];
    sum[0] += g * to;
    sum[1] += g * g;
    sum[2] += r->is_excluded ? 0.0 : to * to;
  } else {
    sum[0] += (double)dv_update_moments(p, r, k);
  }
}

/* sums [blocks][3] */
NG_GLOBAL dv_flat_pass(const dv_flat *p, const dv_flat_range *list, const int64_t *first, int64_t n,
                       double *sums) {
  NG_SHARED double warps[32];
  const int64_t item = dv_find_descriptor(first, n);
  const dv_flat_range *r = &list[item];
  const dv_tile t = dv_tile_of(item, first, r->n);
  double sum[3] = {0.0, 0.0, 0.0};
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    dv_flat_element(p, r, r->at + i, r->from + i, sum);
  }
  for (int32_t k = 0; k < 3; k++) {
    sum[k] = dv_block_sum(sum[k], warps);
    if (NG_THREAD == 0) sums[3 * NG_BLOCK + k] = sum[k];
  }
}
