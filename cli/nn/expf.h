/* expf.h: exp in f32, for loops that the compiler vectorises. */
#ifndef NN_EXPF_H
#define NN_EXPF_H

#include <stdint.h>
#include <string.h>

/* Return exp(x) with a relative error below 2e-7. x is first cut to [-87, 88], so the result is between 1.6e-38 and
 * 1.7e38; NaN stays NaN. With n = round(x / log 2): exp(x) = 2^n exp(x - n log 2), where log 2 is a sum of two numbers,
 * and exp(r), |r| <= 0.35, is its Taylor polynomial of degree 7. Adding 1.5 2^23 rounds to a whole number. */
static inline float nn_expf(float x) {
  const float magic = 12582912.0F, low = -87.0F, high = 88.0F;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const float shifted = x * 1.44269504F + magic, n = shifted - magic;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  uint32_t bits;
  float power;
  memcpy(&bits, &shifted, sizeof bits); /* the low bits of `shifted` contain the integer n */
  bits = (bits << 23) + 0x3F800000U;    /* 2^n as f32 */
  memcpy(&power, &bits, sizeof power);
  return p * power;
}

#endif
