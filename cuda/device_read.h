/* device_read.h: elements of arrays, and sums over a block, for kernels. */
#ifndef NG_DEVICE_READ_H
#define NG_DEVICE_READ_H

#include "device.h"
#include "words.h"

#define DV_INF NG_DOUBLE_OF_BITS(UINT64_C(0x7ff0000000000000))
#define DV_NAN NG_DOUBLE_OF_BITS(UINT64_C(0x7ff8000000000000))
#define DV_LARGEST_F32 0x1.fffffep127

NG_INLINE bool dv_is_finite(float x) { return (NG_BITS_OF_FLOAT(x) & 0x7f800000u) != 0x7f800000u; }

/* ---- 16-bit numbers --------------------------------------------------------------------------*/

NG_INLINE float dv_f16_to_f32(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, mantissa = h & 0x3ffu, exponent = h >> 10 & 31u;
  if (exponent == 31u) return NG_FLOAT_OF_BITS(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0u) return NG_FLOAT_OF_BITS(sign | (exponent + 112u) << 23 | mantissa << 13);
  const float x = (float)mantissa * 0x1p-24f;
  return sign != 0u ? -x : x;
}

/* Round to nearest even; 65520 and larger numbers become Inf. Subnormal results count in units of 2^-24. */
NG_INLINE uint16_t dv_f32_to_f16(float x) {
  const uint32_t b = NG_BITS_OF_FLOAT(x), sign = b >> 16 & 0x8000u, a = b & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (a < 0x38800000u) {
    const float scaled = NG_FLOAT_OF_BITS(a) * 0x1p24f;
    const uint32_t low = (uint32_t)scaled;
    const float rest = scaled - (float)low;
    const bool up = rest > 0.5f || (rest == 0.5f && (low & 1u) != 0u);
    return (uint16_t)(sign | (low + (up ? 1u : 0u)));
  }
  return (uint16_t)(sign | ((a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13));
}

NG_INLINE uint16_t dv_f32_to_bf16(float x) {
  const uint32_t b = NG_BITS_OF_FLOAT(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(b >> 16 | 0x40u);
  return (uint16_t)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

NG_INLINE float dv_load(const char *data, int32_t dtype, int64_t at) {
  if (dtype == DV_F32) return ((const float *)(const void *)data)[at];
  if (dtype == DV_F64) return (float)((const double *)(const void *)data)[at];
  const uint16_t h = ((const uint16_t *)(const void *)data)[at];
  return dtype == DV_BF16 ? NG_FLOAT_OF_BITS((uint32_t)h << 16) : dv_f16_to_f32(h);
}

/* Element `at` in double: an f64 is not rounded. */
NG_INLINE double dv_number(const char *data, int32_t dtype, int64_t at) {
  return dtype == DV_F64 ? ((const double *)(const void *)data)[at]
                         : (double)dv_load(data, dtype, at);
}
/* Store x, rounded to the dtype; Inf and NaN are stored, too. */
NG_INLINE void dv_put(char *data, int32_t dtype, int64_t at, double x) {
  if (dtype == DV_F64) ((double *)(void *)data)[at] = x;
  if (dtype == DV_F32) ((float *)(void *)data)[at] = (float)x;
  if (dtype == DV_BF16) ((uint16_t *)(void *)data)[at] = dv_f32_to_bf16((float)x);
  if (dtype == DV_F16) ((uint16_t *)(void *)data)[at] = dv_f32_to_f16((float)x);
}

/* Store x if it fits the dtype; return whether it fits. */
NG_INLINE bool dv_store(char *data, int32_t dtype, int64_t at, float x) {
  if (dtype == DV_F32) {
    if (dv_is_finite(x)) ((float *)(void *)data)[at] = x;
    return dv_is_finite(x);
  }
  const uint16_t h = dtype == DV_BF16 ? dv_f32_to_bf16(x) : dv_f32_to_f16(x);
  const uint16_t exponent = dtype == DV_BF16 ? 0x7f80 : 0x7c00;
  const bool fits = (h & exponent) != exponent;
  if (fits) ((uint16_t *)(void *)data)[at] = h;
  return fits;
}

NG_INLINE bool dv_store_double(char *data, int32_t dtype, int64_t at, double x) {
  if (dtype != DV_F64) return dv_store(data, dtype, at, (float)x);
  const bool fits = x - x == 0.0;
  if (fits) ((double *)(void *)data)[at] = x;
  return fits;
}

/* ---- elements --------------------------------------------------------------------------------*/

/* Return the offset of element (row, col) of a place. */
NG_INLINE int64_t dv_offset(const dv_place *v, int64_t row, int64_t col) {
  int64_t at = row * v->row_stride;
  if (v->has_dense_rows) return at + col;
  for (int32_t i = v->axes - 1; i >= 0; i--) {
    at += col % v->extent[i] * v->stride[i];
    col /= v->extent[i];
  }
  return at;
}

NG_INLINE float dv_gradient(const dv_region *D, int64_t r, int64_t c) {
  return dv_load(D->place.data, D->place.dtype, dv_offset(&D->place, D->row + r, D->col + c));
}

NG_INLINE double dv_gradient_double(const dv_region *D, int64_t r, int64_t c) {
  return dv_number(D->place.data, D->place.dtype, dv_offset(&D->place, D->row + r, D->col + c));
}

NG_INLINE int64_t dv_view_offset(const dv_view *v, int64_t n, int64_t s) {
  if (v->axes == 0) return n * v->sample_stride + s * v->position_stride;
  int64_t at = n * v->sample_stride + s % v->run_length * v->position_stride;
  int64_t outer = s / v->run_length;
  for (int32_t i = v->axes - 1; i >= 0; i--) {
    at += outer % v->extent[i] * v->stride[i];
    outer /= v->extent[i];
  }
  return at;
}

NG_INLINE double dv_element(const dv_view *v, int64_t n, int64_t s, int64_t c) {
  return dv_number(v->data, v->dtype, dv_view_offset(v, n, s) + c * v->column_stride);
}

/* Return element (r, c) of a direction, in double, before it is clipped. */
NG_INLINE double dv_direction_at(const dv_direction *e, int64_t r, int64_t c) {
  const int64_t at = r * e->u_row + (e->map != NULL ? e->map[c] : c * e->u_col);
  const double u = e->u_double != NULL ? e->u_double[at] : e->u != NULL ? (double)e->u[at] : 0.0;
  if (e->is_stored) return e->scale * u;
  const double y = e->y != NULL ? (double)e->y[r] : e->y_double != NULL ? e->y_double[r] : 1.0;
  return e->scale * dv_gradient_double(&e->D, r, c) + e->k * y * u;
}

NG_INLINE double dv_clip(const dv_direction *e, double x) {
  const double bound = (double)e->clip_bound;
  if (!(bound > 0.0)) return x;
  return x > bound ? bound : x < -bound ? -bound : x;
}

/* ng_sym_at for row >= col */
NG_INLINE int64_t dv_sym_at(int64_t n, int64_t row, int64_t col) {
  const int64_t h = (n + 1) / 2, odd = n & 1, ld = n + 1 - odd;
  return col < h ? 1 - odd + row + col * ld : col - h + (row - h + odd) * ld;
}

/* ---- blocks ----------------------------------------------------------------------------------*/

/* Return the descriptor of this block: the last i with first[i] <= block and at least one block. */
NG_INLINE int64_t dv_find_descriptor(const int64_t *first, int64_t n) {
  int64_t low = 0, high = n;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (first[middle] <= NG_BLOCK) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The descriptor of a block, and its elements [from, to) of the range, in row-major order. */
typedef struct dv_tile {
  int64_t item, from, to;
} dv_tile;
NG_INLINE dv_tile dv_tile_of(int64_t item, const int64_t *first, int64_t elements) {
  const int64_t from = (NG_BLOCK - first[item]) * DV_TILE;
  return (dv_tile){item, from, from + DV_TILE < elements ? from + DV_TILE : elements};
}

/* For each element i of this block's tile of n elements. */
#define EACH_ELEMENT(i, n)                                                                         \
  for (int64_t i = NG_BLOCK * DV_TILE + NG_THREAD, end_ = i - NG_THREAD + DV_TILE;                 \
       i < end_ && i < (n); i += DV_THREADS)

/* Return the sum of x over the lanes of a warp, in lane 0. */
NG_INLINE double dv_warp_sum(double x) {
  for (int32_t half = 16; half > 0; half /= 2) {
    x += NG_SHUFFLE_DOWN(x, half);
  }
  return x;
}

/* Return the sum of x over the threads of a block, in a fixed order. warps: shared memory for 32 numbers. */
NG_INLINE double dv_block_sum(double x, double *warps) {
  x = dv_warp_sum(x);
  NG_BARRIER();
  if (NG_THREAD % 32 == 0) warps[NG_THREAD / 32] = x;
  NG_BARRIER();
  double sum = warps[0];
  for (int32_t i = 1; i < NG_THREADS / 32; i++) {
    sum += warps[i];
  }
  return sum;
}

#endif
