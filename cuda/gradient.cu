/* gradient.cu: kernels that read bound gradients and write directions (kernel/kernel.h: measure, finite, read, emit, store,
 * norm2, scan). A block has one tile of one descriptor. Sums are in double: each thread adds its elements, the block adds
 * its threads, and a second kernel adds the blocks of a descriptor. The order does not depend on the device. */
#include "device_read.h"

/* ---- sums ------------------------------------------------------------------------------------*/

/* Return <x, u> of 4 adjacent elements. */
NG_INLINE double dot4(float4 x, float4 u) {
  return (double)x.x * (double)u.x + (double)x.y * (double)u.y + (double)x.z * (double)u.z +
         (double)x.w * (double)u.w;
}

/* Add the sums of the elements of a flat region that this thread reads. The thread issues the reads of 4 times TOGETHER
 * elements before it uses one, so that it waits for memory once. */
NG_INLINE void measure_flat(const dv_measure *m, dv_tile t, double *xx, double *xu) {
  enum { TOGETHER = 4 };
  const float4 *d = (const float4 *)(const void *)m->D.place.data;
  const float4 *u = m->t == NULL ? (const float4 *)(const void *)m->x : NULL;
  const float *y = m->y;
  const uint32_t cols = (uint32_t)m->D.cols;
  for (int64_t from = t.from + 4 * NG_THREAD; from < t.to; from += 4 * TOGETHER * DV_THREADS) {
    float4 x[TOGETHER];
    NG_UNROLL
    for (int32_t k = 0; k < TOGETHER; k++) {
      const int64_t i = from + 4 * k * DV_THREADS;
      x[k] = d[(i < t.to ? i : from) / 4];
    }
    NG_UNROLL
    for (int32_t k = 0; k < TOGETHER; k++) {
      const int64_t i = from + 4 * k * DV_THREADS;
      if (i >= t.to) continue;
      *xx += dot4(x[k], x[k]);
      if (u == NULL) continue;
      const uint32_t r = (uint32_t)i / cols, c = (uint32_t)i - r * cols;
      *xu += (y == NULL ? 1.0 : (double)y[r]) * dot4(x[k], u[c / 4]);
    }
  }
}

/* sums [blocks][2]: the two sums of each tile (ng_measure). */
NG_GLOBAL dv_measure_tiles(const dv_measure *list, const int64_t *first, int64_t n, double *sums) {
  NG_SHARED double warps[32];
  const int64_t item = dv_find_descriptor(first, n);
  const dv_measure *m = &list[item];
  const dv_tile t = dv_tile_of(item, first, m->D.rows * m->D.cols);
  double xx = 0.0, xu = 0.0;
  if (m->D.is_flat) {
    measure_flat(m, t, &xx, &xu);
  } else {
    for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
      const int64_t r = i / m->D.cols, c = i % m->D.cols;
      const double x = dv_gradient_double(&m->D, r, c);
      xx += x * x;
      if (m->x == NULL || m->t != NULL) continue;
      xu += (m->y == NULL ? 1.0 : (double)m->y[r]) * x * (double)m->x[c];
    }
  }
  xx = dv_block_sum(xx, warps);
  xu = dv_block_sum(xu, warps);
  if (NG_THREAD == 0) {
    sums[2 * NG_BLOCK] = xx;
    sums[2 * NG_BLOCK + 1] = xu;
  }
}

/* The bias of row r (ng_measure), times y. */
NG_INLINE double bias_of(const dv_measure *m, int64_t r) {
  return m->has_bias ? dv_gradient_double(&m->bias, 0, r) * (double)m->y[0] : 0.0;
}

/* One block for each row of the descriptors with t: t[r] = <D[r], x> + b[r]. first [n + 1] counts rows. */
NG_GLOBAL dv_measure_rows(const dv_measure *list, const int64_t *first, int64_t n) {
  NG_SHARED double warps[32];
  const int64_t item = dv_find_descriptor(first, n), r = NG_BLOCK - first[item];
  const dv_measure *m = &list[item];
  double sum = 0.0;
  for (int64_t c = NG_THREAD; m->x != NULL && c < m->D.cols; c += DV_THREADS) {
    sum += dv_gradient_double(&m->D, r, c) * (double)m->x[c];
  }
  sum = dv_block_sum(sum, warps);
  if (NG_THREAD == 0) m->t[r] = sum + bias_of(m, r);
}

/* One block for each descriptor, after dv_measure_rows and dv_add_tiles: sums of t. */
NG_GLOBAL dv_measure_add_squares_of_t(const dv_measure *list) {
  NG_SHARED double warps[32];
  const dv_measure *m = &list[NG_BLOCK];
  double tt = 0.0, tb = 0.0;
  if (m->t == NULL) return;
  for (int64_t r = NG_THREAD; r < m->D.rows; r += DV_THREADS) {
    tt += m->t[r] * m->t[r];
    tb += m->t[r] * bias_of(m, r);
  }
  tt = dv_block_sum(tt, warps);
  tb = dv_block_sum(tb, warps);
  if (NG_THREAD == 0) {
    m->out[1] = tt;
    m->out[2] = tb;
  }
}

/* One block for each descriptor: add `width` sums of its tiles and store them at out[descriptor][width], or for measure
 * at the address of the descriptor. */
NG_GLOBAL dv_add_tiles(const dv_measure *list, const int64_t *first, int32_t width,
                       const double *sums, double *out) {
  NG_SHARED double warps[32];
  for (int32_t k = 0; k < width; k++) {
    double sum = 0.0;
    for (int64_t i = first[NG_BLOCK] + NG_THREAD; i < first[NG_BLOCK + 1]; i += DV_THREADS) {
      sum += sums[width * i + k];
    }
    sum = dv_block_sum(sum, warps);
    if (NG_THREAD == 0) (list != NULL ? list[NG_BLOCK].out : out + width * NG_BLOCK)[k] = sum;
  }
}

/* *out, which is 0 before, <- the largest magnitude of an array, by its bits: larger doubles >= 0 have larger bits. */
NG_GLOBAL dv_scan_tiles(const dv_array *list, const int64_t *first, int64_t n) {
  const int64_t item = dv_find_descriptor(first, n);
  const dv_array *a = &list[item];
  const dv_tile t = dv_tile_of(item, first, a->count);
  double most = 0.0;
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    int64_t at = 0, index = i;
    for (int32_t k = a->ndim - 1; k >= 0; k--) {
      at += index % a->shape[k] * a->stride[k];
      index /= a->shape[k];
    }
    const float x = dv_load(a->data, a->dtype, at);
    const double y = dv_is_finite(x) ? (double)fabsf(x) : DV_INF;
    most = y > most ? y : most;
  }
  if (most > 0.0) NG_LARGEST(a->out, NG_BITS_OF_DOUBLE(most));
}

/* Set n numbers; one thread for each. */
NG_GLOBAL dv_fill(int32_t *to, int64_t n, int32_t value) {
  const int64_t i = NG_BLOCK * DV_THREADS + NG_THREAD;
  if (i < n) to[i] = value;
}

/* ---- copies ----------------------------------------------------------------------------------*/

NG_GLOBAL dv_read_tiles(const dv_read *list, const int64_t *first, int64_t n) {
  const int64_t item = dv_find_descriptor(first, n);
  const dv_read *j = &list[item];
  const dv_tile t = dv_tile_of(item, first, j->D.rows * j->D.cols);
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    const int64_t r = i / j->D.cols, c = i % j->D.cols;
    const double x = dv_gradient_double(&j->D, r, c);
    const int64_t at = r * j->to_row + (j->map != NULL ? j->map[c] : c * j->to_col);
    if (j->to_double != NULL) {
      j->to_double[at] = x;
    } else if (j->to != NULL) {
      j->to[at] = (float)x;
    }
    if (x - x != 0.0) *j->finite = 0;
  }
}

/* ---- directions ------------------------------------------------------------------------------*/

NG_GLOBAL dv_emit_tiles(const dv_direction *list, const int64_t *first, int64_t n) {
  const int64_t item = dv_find_descriptor(first, n);
  const dv_direction *e = &list[item];
  const dv_tile t = dv_tile_of(item, first, e->D.rows * e->D.cols);
  const dv_place *v = &e->D.place;
  int64_t stayed = 0;
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    const int64_t r = i / e->D.cols, c = i % e->D.cols;
    const double x = dv_clip(e, dv_direction_at(e, r, c));
    if (!dv_store_double(v->data, v->dtype, dv_offset(v, e->D.row + r, e->D.col + c), x)) stayed++;
  }
  if (stayed > 0) NG_ADD(e->overflowed, stayed);
}

NG_GLOBAL dv_store_tiles(const dv_direction *list, const int64_t *first, int64_t n) {
  const int64_t item = dv_find_descriptor(first, n);
  const dv_direction *e = &list[item];
  const dv_tile t = dv_tile_of(item, first, e->D.rows * e->D.cols);
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    e->to[i] = (float)dv_direction_at(e, i / e->D.cols, i % e->D.cols);
  }
}

/* sums [blocks]: |direction|^2 of each tile */
NG_GLOBAL dv_norm2_tiles(const dv_direction *list, const int64_t *first, int64_t n, double *sums) {
  NG_SHARED double warps[32];
  const int64_t item = dv_find_descriptor(first, n);
  const dv_direction *e = &list[item];
  const dv_tile t = dv_tile_of(item, first, e->D.rows * e->D.cols);
  double sum = 0.0;
  for (int64_t i = t.from + NG_THREAD; i < t.to; i += DV_THREADS) {
    const double d = dv_direction_at(e, i / e->D.cols, i % e->D.cols);
    sum += d * d;
  }
  sum = dv_block_sum(sum, warps);
  if (NG_THREAD == 0) sums[NG_BLOCK] = sum;
}
