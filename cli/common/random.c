/* random.c: Philox4x32-10 from Random123's header.  The key is the seed.  The four words of Philox's counter are
 * `counter` (low, high), `item` and `purpose`. */
#include "common/random.h"

#include <Random123/philox.h>
#include <math.h>

void random_words(uint64_t seed, random_purpose purpose, uint32_t item, uint64_t counter,
                  uint32_t out[4]) {
  const philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
  const philox4x32_ctr_t at = {
      {(uint32_t)counter, (uint32_t)(counter >> 32), item, (uint32_t)purpose}};
  const philox4x32_ctr_t r = philox4x32(at, key);
  for (int i = 0; i < 4; i++)
    out[i] = r.v[i];
}

void random_uniform(uint64_t seed, random_purpose purpose, uint32_t item, double lower,
                    double upper, int64_t n, float *x) {
  uint32_t w[4];
  for (int64_t i = 0; i < n; i++) {
    if (i % 4 == 0) random_words(seed, purpose, item, (uint64_t)(i / 4), w);
    x[i] = (float)(lower + (upper - lower) * random_unit(w[i % 4]));
  }
}

/* Make two normal numbers from two words; word a becomes a number in (0, 1], whose logarithm is finite. */
static void make_two_normals(uint32_t a, uint32_t b, double *x, double *y) {
  const double radius = sqrt(-2.0 * log(((double)(a >> 8) + 1.0) * 0x1p-24));
  const double angle = 6.283185307179586 * random_unit(b);
  *x = radius * cos(angle);
  *y = radius * sin(angle);
}

void random_normal(uint64_t seed, random_purpose purpose, uint32_t item, double deviation,
                   int64_t from, int64_t n, float *x) {
  for (int64_t i = from - from % 4; i < from + n; i += 4) {
    uint32_t w[4];
    double z[4];
    random_words(seed, purpose, item, (uint64_t)(i / 4), w);
    make_two_normals(w[0], w[1], &z[0], &z[1]);
    make_two_normals(w[2], w[3], &z[2], &z[3]);
    for (int64_t k = 0; k < 4; k++)
      if (i + k >= from && i + k < from + n) x[i + k - from] = (float)(deviation * z[k]);
  }
}

/* A number below `bound` is the high half of word * bound (Lemire 2019, ACM TOMACS 29-1).  If the low half is below
 * 2^32 mod bound, draw again: such words would bias the result. */
void random_order(uint64_t seed, random_purpose purpose, uint32_t item, int32_t n, int32_t *order) {
  uint32_t w[4];
  uint64_t drawn = 0;
  for (int32_t i = 0; i < n; i++)
    order[i] = i;
  for (int32_t i = n - 1; i > 0; i--) {
    const uint32_t bound = (uint32_t)i + 1, least = (0U - bound) % bound;
    uint64_t product = 0;
    do {
      if (drawn % 4 == 0) random_words(seed, purpose, item, drawn / 4, w);
      product = (uint64_t)w[drawn++ % 4] * bound;
    } while ((uint32_t)product < least);
    const int32_t k = (int32_t)(product >> 32), swap = order[i];
    order[i] = order[k];
    order[k] = swap;
  }
}
