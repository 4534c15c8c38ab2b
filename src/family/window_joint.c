/* window_joint.c: the k largest of all elements, of which each rank has a slice: which of this rank's are among them.
 *
 * In: this rank's elements, sums over ranks of small histograms.  Out: its chosen elements, ascending, and how many
 * the ranks before it have chosen.  Keys and digits are those of window_largest.c, so it is the choice that one rank makes of
 * all: slices follow each other, and of equal magnitudes those of the lower ranks come first.
 *
 *   round 0       how many have each first digit, of 11 bits
 *   round 1, 2    of those that may still be the k-th largest: the next digit, of 10 bits
 *   round 3       of each rank, how many are above the k-th largest, and how many are like it
 *   after it      what is chosen here */
#include "family/window.h"

enum { FIRST = 20, DIGIT = 10, DIGITS = 1 << DIGIT };

int64_t ng_window_joint_room(int32_t round, int32_t ranks) {
  return round == 0 ? NG_WINDOW_BINS : round < 3 ? DIGITS : 2 * (int64_t)ranks;
}

/* The bin in which the k-th largest is; what is above it is not to be found any more. */
static uint32_t find_bin(const double *count, int32_t bins, int64_t *rest) {
  int32_t bin = bins - 1;
  while (bin > 0 && (int64_t)count[bin] < *rest) {
    *rest -= (int64_t)count[bin--];
  }
  return (uint32_t)bin;
}

/* Of keys that begin with j->top, the digit behind it. */
static void count_digits(const ng_window_joint *j, int shift, double *count) {
  for (int64_t i = 0; i < j->n; i++) {
    const uint32_t key = ng_window_key(j->x[i]);
    if (key >> (shift + DIGIT) == j->top) count[key >> shift & (DIGITS - 1)] += 1.0;
  }
}

/* The last of j->top is found: who has how many. */
static void count_ends(const ng_window_joint *j, double *count) {
  for (int64_t i = 0; i < j->n; i++) {
    const uint32_t key = ng_window_key(j->x[i]);
    if (key >= j->top) count[2 * j->rank + (key == j->top)] += 1.0;
  }
}

/* j->rest are wanted of those that are like the k-th largest, from the first rank on. */
static void take(ng_window_joint *j, const double *count) {
  int64_t rest = j->rest, mine = 0, m = 0;
  j->before = 0;
  for (int32_t r = 0; r <= j->rank; r++) {
    const int64_t like = ng_min64((int64_t)count[2 * r + 1], rest);
    rest -= like;
    if (r == j->rank) mine = like;
    if (r < j->rank) j->before += (int64_t)count[2 * r] + like;
  }
  for (int64_t i = 0; i < j->n; i++) {
    const uint32_t key = ng_window_key(j->x[i]);
    if (key < j->top || (key == j->top && mine-- <= 0)) continue;
    j->chosen[m++] = (int32_t)i;
  }
  j->m = m;
}

void ng_window_joint_round(ng_window_joint *j, int32_t round, int32_t ranks, double *x) {
  if (round == 0) j->rest = j->k;
  if (round == 1) j->top = find_bin(x, NG_WINDOW_BINS, &j->rest);
  if (round == 2 || round == 3) j->top = j->top << DIGIT | find_bin(x, DIGITS, &j->rest);
  if (round == 4) {
    take(j, x);
    return;
  }
  memset(x, 0, (size_t)ng_window_joint_room(round, ranks) * sizeof *x);
  if (round == 0) {
    for (int64_t i = 0; i < j->n; i++) {
      x[ng_window_key(j->x[i]) >> FIRST] += 1.0;
    }
  } else if (round < 3) {
    count_digits(j, round == 1 ? DIGIT : 0, x);
  } else {
    count_ends(j, x);
  }
}
