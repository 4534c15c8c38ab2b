/* arrays.cu: kernels over arrays of the engine (kernel/kernel.h, kernel/observed.h): counts of tokens, sums of statistics, copies,
 * changes of averages. A block has one tile of one descriptor. */
#include "device_read.h"

NG_INLINE int64_t token_at(const dv_view *v, int64_t i) {
  const int64_t at = dv_view_offset(v, i / v->positions, i % v->positions);
  return v->dtype == DV_I32 ? ((const int32_t *)(const void *)v->data)[at]
                            : ((const int64_t *)(const void *)v->data)[at];
}

/* *bad, which is INT64_MAX before, <- the index of the first invalid token. Counts are whole numbers, so the order of
 * additions does not matter. */
NG_GLOBAL dv_count_tokens(const dv_tokens *list, const int64_t *first, int64_t n) {
  const int64_t item = dv_find_descriptor(first, n);
  const dv_tokens *k = &list[item];
  const dv_view *v = &k->x;
  const dv_tile t = dv_tile_of(item, first, v->samples * v->positions);
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    const int64_t token = token_at(v, i);
    if (token == k->none) continue;
    if (token < 0 || token >= k->vocabulary) {
      NG_SMALLEST(k->bad, (uint64_t)i);
    } else if (i / v->positions < k->samples) {
      NG_ADD_DOUBLE(&k->count[token], 1.0);
    }
  }
}
/* One thread for each descriptor. */
NG_GLOBAL dv_report_token(const dv_tokens *list, int64_t n) {
  const int64_t i = NG_BLOCK * DV_THREADS + NG_THREAD;
  if (i >= n || *list[i].bad == INT64_MAX) return;
  list[i].count[0] = DV_NAN;
  list[i].count[list[i].vocabulary] = (double)*list[i].bad;
  *(int64_t *)(void *)&list[i].count[list[i].vocabulary + 1] = token_at(&list[i].x, *list[i].bad);
}

NG_GLOBAL dv_accumulate(NG_ARGUMENT(dv_accumulation) a) {
  if (!a.adds_nan && a.x[0] != a.x[0]) return;
  EACH_ELEMENT(i, a.count) {
    const double fresh = i < a.n ? a.fresh * a.x[i] : a.rest;
    dv_put(a.S, a.dtype, i * a.stride, a.old * dv_number(a.S, a.dtype, i * a.stride) + fresh);
  }
}

NG_GLOBAL dv_copy_elements(const dv_copy_of *list, const int64_t *first, int64_t n) {
  const int64_t item = dv_find_descriptor(first, n);
  const dv_copy_of *c = &list[item];
  const dv_tile t = dv_tile_of(item, first, c->count);
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    int64_t from = 0, to = 0, index = i;
    for (int32_t k = c->ndim - 1; k >= 0; k--) {
      from += index % c->shape[k] * c->stride[k];
      to += index % c->shape[k] * c->to_stride[k];
      index /= c->shape[k];
    }
    if (c->size == 8) ((int64_t *)(void *)c->to)[to] = ((const int64_t *)(const void *)c->data)[from];
    if (c->size == 4) ((int32_t *)(void *)c->to)[to] = ((const int32_t *)(const void *)c->data)[from];
    if (c->size == 2) ((int16_t *)(void *)c->to)[to] = ((const int16_t *)(const void *)c->data)[from];
    if (c->size == 1) c->to[to] = c->data[from];
  }
}

/* sums [blocks][2]: |a - b|^2 and |b|^2 of each tile. After the n elements follow the `order` elements of the diagonal, which
 * count -1 times, because all elements of a symmetric matrix count twice. */
NG_GLOBAL dv_change_tiles(const dv_change *list, const int64_t *first, int64_t n, double *sums) {
  NG_SHARED double warps[32];
  const int64_t item = dv_find_descriptor(first, n);
  const dv_change *c = &list[item];
  const dv_tile t = dv_tile_of(item, first, c->n + c->order);
  double sum[2] = {0.0, 0.0};
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    const bool is_extra = i >= c->n;
    const int64_t at = is_extra ? dv_sym_at(c->order, i - c->n, i - c->n) : i;
    const double times = is_extra ? -1.0 : c->order > 0 || i >= c->diagonal ? 2.0 : 1.0;
    const double was = dv_number(c->b, c->dtype, at), d = dv_number(c->a, c->dtype, at) - was;
    sum[0] += times * d * d;
    sum[1] += times * was * was;
  }
  for (int32_t k = 0; k < 2; k++) {
    sum[k] = dv_block_sum(sum[k], warps);
    if (NG_THREAD == 0) sums[2 * NG_BLOCK + k] = sum[k];
  }
}
/* One block, because several descriptors may add to the same numbers. */
NG_GLOBAL dv_add_changes(const dv_change *list, const int64_t *first, int64_t n,
                         const double *sums) {
  NG_SHARED double warps[32];
  for (int64_t item = 0; item < n; item++) {
    for (int32_t k = 0; k < 2; k++) {
      double sum = 0.0;
      for (int64_t i = first[item] + NG_THREAD; i < first[item + 1]; i += DV_THREADS) {
        sum += sums[2 * i + k];
      }
      sum = dv_block_sum(sum, warps);
      if (NG_THREAD == 0) list[item].out[k] += sum;
    }
  }
}
