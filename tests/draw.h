/* draw.h: random numbers for tests, from one seed: NG_TEST_SEED, or a constant. */
#ifndef TESTS_DRAW_H
#define TESTS_DRAW_H

#include <stdint.h>
#include <stdlib.h>

/* SplitMix64 (Steele, Lea & Flood 2014); its finaliser alone maps a place to a number. */
typedef struct rng {
  uint64_t state;
} rng;

static inline uint64_t rng_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}
static inline uint64_t rng_next(rng *r) {
  return rng_mix(r->state += UINT64_C(0x9e3779b97f4a7c15));
}
static inline int64_t rng_below(rng *r, int64_t n) { /* 0 ... n-1 */
  return (int64_t)(rng_next(r) % (uint64_t)n);
}
static inline int64_t rng_between(rng *r, int64_t low, int64_t high) { /* low ... high */
  return low + rng_below(r, high - low + 1);
}
static inline double rng_real(rng *r) { /* [0, 1) */
  return (double)(rng_next(r) >> 11) * 0x1p-53;
}
/* k/64 with |k| <= 127, exact in bf16, f16 and f32. */
static inline double rng_value(rng *r) { return (double)(rng_below(r, 255) - 127) / 64; }
static inline void rng_fill(rng *r, float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    x[i] = (float)rng_value(r);
}

/* Return a number that is a function of the indices. */
static inline double rng_value_at(int64_t a, int64_t b, int64_t c, int64_t i) {
  rng r = {(uint64_t)(((a * 31 + b) * 31 + c) * 1009 + i)};
  (void)rng_next(&r);
  return rng_value(&r);
}

static inline uint64_t test_seed(void) {
  const char *text = getenv("NG_TEST_SEED");
  return text != NULL ? strtoull(text, NULL, 0) : UINT64_C(20260711);
}

/* The value of element i of the array with this key: a function of both and of the seed. */
static inline float draw_at(int64_t key, int64_t i) {
  rng r = {test_seed() + (uint64_t)(key * 100003 + i)};
  return (float)rng_value(&r);
}

/* Number of repetitions: NG_TEST_MULT times n, at least 1. */
static inline int64_t test_repetitions(int64_t n) {
  const char *text = getenv("NG_TEST_MULT");
  const double m = text != NULL ? strtod(text, NULL) : 1;
  const int64_t k = (int64_t)((double)n * m);
  return k > 1 ? k : 1;
}

#endif
