/* random.h: random numbers without state, equal on every machine.
 *
 * Each number is a function of (seed, purpose, item, counter): Philox4x32-10 of Random123 (Salmon et al., SC'11), keyed
 * by the seed. So a resumed run draws the same numbers as an uninterrupted run, and threads may draw in parallel. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

typedef enum random_purpose {
  RANDOM_INIT = 1,    /* numbers of a parameter: item is its index, counter its element */
  RANDOM_ORDER = 2,   /* item: epoch                                     */
  RANDOM_AUGMENT = 3, /* augmentation: item is the epoch, counter the sample */
  RANDOM_DROPOUT = 4, /* dropout: item is the node, counter the step and the element */
  RANDOM_DATA = 5,    /* synthetic data sets                             */
  RANDOM_TARGET = 6,  /* targets drawn from the model's own distribution */
  RANDOM_SPLIT = 7,   /* choice of the validation samples                */
  RANDOM_MIXUP = 8,   /* mixup: item is the epoch, counter the sample and the try */
  RANDOM_ERASE = 9    /* erasing: item is the epoch, counter 2 x sample or 2 x sample + 1 */
} random_purpose;

/* Set `out` to the four random words of one counter. */
void random_words(uint64_t seed, random_purpose purpose, uint32_t item, uint64_t counter,
                  uint32_t out[4]);

/* Return a number in [0, 1) with 24 bits, which f32 and f64 represent exactly. */
static inline double random_unit(uint32_t word) { return (double)(word >> 8) * 0x1p-24; }

/* random_uniform: fill x[n] with numbers uniform in [lower, upper). random_normal: fill x[n] with the numbers from,
 * ..., from + n - 1 of a sequence of normal numbers with mean 0 and this standard deviation (Box-Muller). */
void random_uniform(uint64_t seed, random_purpose purpose, uint32_t item, double lower,
                    double upper, int64_t n, float *x);
void random_normal(uint64_t seed, random_purpose purpose, uint32_t item, double deviation,
                   int64_t from, int64_t n, float *x);

/* Set `order` to a random permutation of 0..n-1 (Fisher and Yates, without modulo bias). */
void random_order(uint64_t seed, random_purpose purpose, uint32_t item, int32_t n, int32_t *order);

#endif
