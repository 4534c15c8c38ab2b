/* window_largest.c: the k entries of a vector that are largest in magnitude.
 *
 * In: n floats.  Out: which k of them, ascending; of equal ones the first.  O(n), and the same for any thread.
 *
 * Magnitudes are ordered as their bits without the sign, 31 of them, which are taken from the top as digits of
 * 11, 10 and 10 bits: a histogram of the first digit of all, then of the second and the third of those that may
 * still be the k-th largest.  x is passed over twice: for the histogram, and for all at or above the k-th largest's bin. */
#include "family/window.h"

#include "simd.h"

enum { BINS = NG_WINDOW_BINS, COPIES = 4, FIRST = 20, SECOND = 10, DIGIT = 1023 };

static uint32_t key_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffU; /* ordered as |x| */
}

/* Equal bins in a row wait for each other: four histograms, added up in the first. */
static void count_first(const float *x, int64_t n, int32_t *count) {
  int64_t i = 0;
  memset(count, 0, (size_t)COPIES * BINS * sizeof *count);
  for (; i + COPIES <= n; i += COPIES) {
    for (int q = 0; q < COPIES; q++) {
      count[q * BINS + (int32_t)(key_of(x[i + q]) >> FIRST)]++;
    }
  }
  for (; i < n; i++) {
    count[key_of(x[i]) >> FIRST]++;
  }
  for (int k = 0; k < BINS; k++) {
    count[k] += count[BINS + k] + count[2 * BINS + k] + count[3 * BINS + k];
  }
}

/* The bin in which the k-th largest is; k <- which of that bin it is. */
static uint32_t find_bin(const int32_t *count, int32_t bins, int64_t *k) {
  int32_t bin = bins - 1;
  while (bin > 0 && count[bin] < *k) {
    *k -= count[bin--];
  }
  return (uint32_t)bin;
}

/* Of the m chosen, those whose bits above `shift` are `top`: the next digit of the k-th largest of them. */
static uint32_t find_digit(const float *x, const int32_t *chosen, int64_t m, uint32_t top,
                           int shift, int32_t *count, int64_t *k) {
  memset(count, 0, (DIGIT + 1) * sizeof *count);
  for (int64_t i = 0; i < m; i++) {
    const uint32_t key = key_of(x[chosen[i]]);
    if (key >> shift == top) count[key >> (shift - SECOND) & DIGIT]++;
  }
  return top << SECOND | find_bin(count, DIGIT + 1, k);
}

void ng_window_largest(const float *x, int64_t n, int64_t k, int32_t *count, int32_t *chosen) {
  int64_t rest = k, m = 0, out = 0;
  count_first(x, n, count);
  const uint32_t bin = find_bin(count, BINS, &rest), low = bin << FIRST;
  for (int64_t i = 0; i < n; i++) {
    chosen[m] = (int32_t)i;
    m += key_of(x[i]) >= low;
  }
  const uint32_t upper = find_digit(x, chosen, m, bin, FIRST, count, &rest);
  const uint32_t least = find_digit(x, chosen, m, upper, SECOND, count, &rest);
  for (int64_t i = 0; i < m; i++) { /* `rest` of those that are equal to the least one */
    const uint32_t key = key_of(x[chosen[i]]);
    if (key < least || (key == least && rest-- <= 0)) continue;
    chosen[out++] = chosen[i];
  }
}
