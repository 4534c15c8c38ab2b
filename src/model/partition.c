/* partition.c: partition n weights into contiguous parts, minimising the largest sum of a part.
 *
 * W(i) is the sum of the first i weights, B(p, i) the least possible largest sum when these i weights form p parts.
 * B(1, i) = W(i), and B(p, i) = min over j < i of max(B(p - 1, j), W(i) - W(j)).  B(p - 1, j) grows with j and
 * W(i) - W(j) falls, so bisection finds the crossing: n p log n operations in all. */
#include "core/core.h"
#include "model/assign.h"

static double larger(double a, double b) { return a > b ? a : b; }

/* Return B(p, i); before[j] = B(p - 1, j), sum[j] = W(j). */
static double best_split(const double *before, const double *sum, int32_t i) {
  int32_t lo = 0, hi = i; /* the first j with before[j] >= W(i) - W(j) */
  while (lo < hi) {
    const int32_t j = lo + (hi - lo) / 2;
    if (before[j] >= sum[i] - sum[j]) {
      hi = j;
    } else {
      lo = j + 1;
    }
  }
  const double here = larger(before[lo], sum[i] - sum[lo]);
  if (lo == 0) return here;
  const double left = larger(before[lo - 1], sum[i] - sum[lo - 1]);
  return left < here ? left : here;
}

static double bottleneck(int32_t n, const double *weight, int32_t parts, double *room) {
  double *sum = room, *before = room + n + 1, *now = before + n + 1;
  sum[0] = 0.0;
  for (int32_t i = 0; i < n; i++) {
    sum[i + 1] = sum[i] + weight[i];
  }
  memcpy(before, sum, (size_t)(n + 1) * sizeof *sum);
  for (int32_t p = 1; p < parts; p++) {
    for (int32_t i = 0; i <= n; i++) {
      now[i] = best_split(before, sum, i);
    }
    double *const other = before;
    before = now;
    now = other;
  }
  return before[n];
}

/* Fill each part with weights up to the sum `most`, with a margin for rounding; return the number of parts. */
static int32_t fill_parts(int32_t n, const double *weight, double most, int32_t *part) {
  double load = 0.0;
  int32_t at = 0;
  for (int32_t i = 0; i < n; i++) {
    if (i > 0 && load + weight[i] > most * (1.0 + 1e-12)) {
      at++;
      load = 0.0;
    }
    load += weight[i];
    part[i] = at;
  }
  return at + 1;
}

void ng_partition(int32_t n, const double *weight, int32_t parts, int32_t *part, double *room) {
  if (n <= parts) {
    for (int32_t i = 0; i < n; i++) {
      part[i] = i;
    }
    return;
  }
  int32_t used = fill_parts(n, weight, bottleneck(n, weight, parts, room), part);
  for (int32_t i = 1; i < n - 1 && used < parts; i++) {
    if (part[i - 1] == part[i] && part[i + 1] != part[i]) part[i] = used++;
  }
}
