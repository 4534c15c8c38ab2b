/* partition.c: partition n weights into contiguous parts, minimising the largest sum of a part.
 *
 * fill_parts(bound) needs as few parts as possible if no sum may exceed `bound`.  So the least largest sum is the least
 * bound for which fill_parts needs at most `parts` parts; bisection finds this bound. */
#include "model/assign.h"

/* Fill one part after the other with weights up to the sum `bound`; return the number of parts. */
static int32_t fill_parts(int32_t n, const double *weight, double bound, int32_t *part) {
  double load = 0.0;
  int32_t at = 0;
  for (int32_t i = 0; i < n; i++) {
    if (i > 0 && load + weight[i] > bound) {
      at++;
      load = 0.0;
    }
    load += weight[i];
    part[i] = at;
  }
  return at + 1;
}

void ng_partition(int32_t n, const double *weight, int32_t parts, int32_t *part) {
  double low = 0.0, high = 0.0; /* the largest weight, the sum of all weights */
  if (n <= parts) {
    for (int32_t i = 0; i < n; i++) {
      part[i] = i;
    }
    return;
  }
  for (int32_t i = 0; i < n; i++) {
    low = weight[i] > low ? weight[i] : low;
    high += weight[i];
  }
  if (fill_parts(n, weight, low, part) <= parts) high = low;
  /* fill_parts(low) > parts >= fill_parts(high); end when no double is between low and high */
  double bound = low + (high - low) / 2;
  while (low < bound && bound < high) {
    *(fill_parts(n, weight, bound, part) <= parts ? &high : &low) = bound;
    bound = low + (high - low) / 2;
  }
  int32_t used = fill_parts(n, weight, high, part);
  for (int32_t i = 1; i < n - 1 && used < parts; i++) {
    if (part[i - 1] == part[i] && part[i + 1] != part[i]) part[i] = used++;
  }
}
