/* convert.c: convert between f32, f64, bf16 and f16; find non-finite values.
 *
 * In: arrays of the caller in f32, f64, bf16 or f16.  Out: arrays in f32; the reverse conversion.  The conversions are
 * integer arithmetic on bit patterns and, for f16, one exact scaling; they have no branches, so that compilers
 * vectorise the loops.  bf16 is the upper half of an f32; f16 is IEEE 754-2008 binary16. */
#include <string.h>

#include "core/core.h"
#include "linalg/linalg.h"
#include "simd.h"

static inline uint32_t bits_of(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

static inline float float_of(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static inline float widen_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }

static inline uint16_t narrow_bf16(float f) {
  const uint32_t u = bits_of(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  /* set the quiet bit: without it, truncating the mantissa of a NaN could give Inf */
  const uint32_t quiet = (u >> 16) | 0x40u;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline float widen_f16(uint16_t h) {
  const uint32_t w = (uint32_t)h << 16;
  const uint32_t twice = w + w; /* shifts out the sign */
  /* Shift exponent and fraction to their places in f32 and add 0xe0 = 224 to the exponent, which is 112 more than the
   * difference of the biases.  The factor 2^-112 corrects the exponent; Inf and NaN have exponent 255 and stay. */
  const float normal = float_of((twice >> 4) + (0xe0u << 23)) * 0x1.0p-112f;
  /* Subnormal numbers: take the bits of 0.5 + value; subtracting 0.5 is exact. */
  const float subnormal = float_of((twice >> 17) | (126u << 23)) - 0.5f;
  const uint32_t magnitude = twice < (1u << 27) ? bits_of(subnormal) : bits_of(normal);
  return float_of((w & 0x80000000u) | magnitude);
}

static inline uint16_t narrow_f16(float f) {
  const uint32_t u = bits_of(f);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t a = u & 0x7fffffffu;
  /* Normal range: subtract 112 from the exponent and round off the lowest 13 bits to nearest even.  A carry increments
   * the exponent and may give Inf. */
  const uint32_t normal = (a - (112u << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13;
  /* Below 2^-14: adding 0.5 puts the last f16 bit (2^-24) at the last bit of the f32, so that the
   * addition rounds to nearest even. */
  const uint32_t subnormal = bits_of(float_of(a) + 0.5f) - (126u << 23);
  uint32_t h = a < (113u << 23) ? subnormal : normal;
  /* values from 65536 on become Inf; for 65520 to 65536 the rounding above has already carried to Inf */
  h = a >= (143u << 23) ? 0x7c00u : h;
  h = a > 0x7f800000u ? 0x7e00u : h;
  return (uint16_t)(sign | h);
}

/* Public forms for scalars; the loops below convert arrays. */
float ng_bf16_to_f32(uint16_t h) { return widen_bf16(h); }
uint16_t ng_f32_to_bf16(float f) { return narrow_bf16(f); }
float ng_f16_to_f32(uint16_t h) { return widen_f16(h); }
uint16_t ng_f32_to_f16(float f) { return narrow_f16(f); }

NG_CLONES static void widen_many_bf16(float *restrict dst, const uint16_t *restrict src,
                                      int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    dst[i] = widen_bf16(src[i]);
  }
}

NG_CLONES static void widen_many_f16(float *restrict dst, const uint16_t *restrict src, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    dst[i] = widen_f16(src[i]);
  }
}

NG_CLONES static void narrow_many_bf16(uint16_t *restrict dst, const float *restrict src,
                                       int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    dst[i] = narrow_bf16(src[i]);
  }
}

NG_CLONES static void narrow_many_f16(uint16_t *restrict dst, const float *restrict src,
                                      int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    dst[i] = narrow_f16(src[i]);
  }
}

NG_CLONES static void round_many_f64(float *restrict dst, const double *restrict src, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    dst[i] = (float)src[i];
  }
}

NG_CLONES static void widen_many_f32(double *restrict dst, const float *restrict src, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    dst[i] = (double)src[i];
  }
}

/* Return 1 if an exponent has only ones (Inf or NaN).  The test reads bits, because -ffast-math may remove a test of
 * floats.  The loop has no early exit, so that it vectorises. */
NG_CLONES static uint32_t has_nonfinite32(const float *src, int64_t n) {
  uint32_t found = 0;
  for (int64_t i = 0; i < n; i++) {
    found |= (uint32_t)((bits_of(src[i]) & 0x7f800000u) == 0x7f800000u);
  }
  return found;
}

NG_CLONES static uint32_t has_nonfinite16(const uint16_t *src, int64_t n, uint16_t exponent) {
  uint32_t found = 0;
  for (int64_t i = 0; i < n; i++) {
    found |= (uint32_t)((src[i] & exponent) == exponent);
  }
  return found;
}

NG_CLONES static uint32_t largest_bits(const float *x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    const uint32_t b = bits_of(x[i]) & 0x7fffffffu;
    most = b > most ? b : most;
  }
  return most;
}

/* As for f32, the bits of bf16 and f16 without the sign have the order of the magnitudes. */
NG_CLONES static uint16_t largest_bits16(const uint16_t *x, int64_t n) {
  uint16_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    const uint16_t b = (uint16_t)(x[i] & 0x7fffu);
    most = b > most ? b : most;
  }
  return most;
}

uint32_t ng_find_largest_bits(const void *x, ng_dtype t, int64_t n) {
  if (t == NG_F32) return largest_bits(x, n);
  const uint16_t most = largest_bits16(x, n);
  return bits_of(t == NG_BF16 ? widen_bf16(most) : widen_f16(most));
}

float ng_float_of_bits(uint32_t bits) { return float_of(bits); }

/* If n is 0, `dst` and `src` may be NULL. */
void ng_to_f32(float *dst, const void *src, ng_dtype t, int64_t n) {
  NG_ASSERT(ng_dtype_is_real(t));
  if (n <= 0) return;
  if (t == NG_F32) {
    memcpy(dst, src, (size_t)n * sizeof *dst);
  } else if (t == NG_F64) {
    round_many_f64(dst, src, n);
  } else if (t == NG_BF16) {
    widen_many_bf16(dst, src, n);
  } else {
    widen_many_f16(dst, src, n);
  }
}

void ng_from_f32(void *dst, ng_dtype t, const float *src, int64_t n) {
  NG_ASSERT(ng_dtype_is_real(t));
  if (n <= 0) return;
  if (t == NG_F32) {
    memcpy(dst, src, (size_t)n * sizeof *src);
  } else if (t == NG_F64) {
    widen_many_f32(dst, src, n);
  } else if (t == NG_BF16) {
    narrow_many_bf16(dst, src, n);
  } else {
    narrow_many_f16(dst, src, n);
  }
}

double ng_element_at(const void *x, ng_dtype t, int64_t i) {
  float value;
  if (t == NG_F64) return ((const double *)x)[i];
  ng_to_f32(&value, (const char *)x + i * ng_dtype_size(t), t, 1);
  return (double)value;
}

static bool all_finite64(const double *x, int64_t n) {
  double zero = 0.0;
  for (int64_t i = 0; i < n; i++) {
    zero += x[i] - x[i];
  }
  return zero == 0.0;
}

bool ng_are_finite(const void *src, ng_dtype t, int64_t n) {
  if (t == NG_F64) return all_finite64(src, n);
  if (!ng_dtype_is_real(t)) return true; /* integers are always finite */
  /* Pieces are long enough to run at memory speed, and short enough to stop soon after the first
   * non-finite value. */
  enum { PIECE = 16384 };
  for (int64_t i = 0; i < n; i += PIECE) {
    const int64_t m = ng_min64(PIECE, n - i);
    const uint32_t found = t == NG_F32
                               ? has_nonfinite32((const float *)src + i, m)
                               : has_nonfinite16((const uint16_t *)src + i, m,
                                                 (uint16_t)(t == NG_BF16 ? 0x7f80u : 0x7c00u));
    if (found != 0) return false;
  }
  return true;
}
