/* window_largest.c: select the k largest magnitudes of a vector, by one thread, several threads or several ranks.
 *
 * In: n floats, and an error that is added first.  Out: k indices, ascending; of equal magnitudes the first.
 * O(n); the result does not depend on the number of threads.
 *
 * Magnitudes are ordered as the 31 bits of the float without its sign, read as digits of 11, 10 and 10 bits.  A histogram of
 * first digits finds the bin of the k-th largest; the second and third digits decide among the elements of that bin.  Two
 * passes over x: one for the sum and the histogram, one to collect the elements at or above the bin. */
#include "family/window.h"

#include "simd.h"

enum { BINS = NG_WINDOW_BINS, COPIES = 4, FIRST = 20, SECOND = 10, DIGIT = 1023 };

/* x <- error + by x; error where the sum is not finite. */
NG_CLONES static void add_error(float *restrict x, const float *restrict error, int64_t n,
                                float by) {
  for (int64_t i = 0; i < n; i++) {
    const float sum = error[i] + by * x[i];
    x[i] = sum - sum == 0.0F ? sum : error[i];
  }
}

void ng_window_add_error(const ng_window_sum *v, int64_t n) {
  if (v->error != NULL) add_error(v->x, v->error, n, v->by);
}

/* Four histograms, since an increment waits for the one before if their bins are equal; added at the end. */
static void count_first(const ng_window_sum *v, int64_t from, int64_t to, int32_t *count) {
  memset(count, 0, (size_t)COPIES * BINS * sizeof *count);
  for (int64_t at = from, n; at < to; at += n) { /* the sums stay in the first-level cache */
    float *x = v->x + at;
    int64_t i = 0;
    n = ng_min64(NG_WINDOW_LINE, to - at);
    if (v->error != NULL) add_error(x, v->error + at, n, v->by);
    for (; i + COPIES <= n; i += COPIES) {
      for (int q = 0; q < COPIES; q++) {
        count[q * BINS + (int32_t)(ng_window_key(x[i + q]) >> FIRST)]++;
      }
    }
    for (; i < n; i++) {
      count[ng_window_key(x[i]) >> FIRST]++;
    }
  }
  for (int k = 0; k < BINS; k++) {
    count[k] += count[BINS + k] + count[2 * BINS + k] + count[3 * BINS + k];
  }
}

/* Collect the elements with keys >= low into the same range of `chosen`; returns the number. */
static int64_t take(const float *x, int64_t from, int64_t to, uint32_t low, int32_t *chosen) {
  int64_t m = from;
  for (int64_t i = from; i < to; i++) {
    chosen[m] = (int32_t)i;
    m += ng_window_key(x[i]) >= low;
  }
  return m - from;
}

/* Return the bin of the k-th largest; k <- its order within the bin. */
static uint32_t find_bin(const int32_t *count, int32_t bins, int64_t *k) {
  int32_t bin = bins - 1;
  while (bin > 0 && count[bin] < *k) {
    *k -= count[bin--];
  }
  return (uint32_t)bin;
}

/* The same for counts summed over ranks. */
static uint32_t find_bin_joint(const double *count, int32_t bins, int64_t *k) {
  int32_t bin = bins - 1;
  while (bin > 0 && (int64_t)count[bin] < *k) {
    *k -= (int64_t)count[bin--];
  }
  return (uint32_t)bin;
}

/* Return `top` extended by the next digit of the k-th largest among the chosen whose key begins with `top`. */
static uint32_t find_digit(const float *x, const int32_t *chosen, int64_t m, uint32_t top,
                           int shift, int32_t *count, int64_t *k) {
  memset(count, 0, (DIGIT + 1) * sizeof *count);
  for (int64_t i = 0; i < m; i++) {
    const uint32_t key = ng_window_key(x[chosen[i]]);
    if (key >> shift == top) count[key >> (shift - SECOND) & DIGIT]++;
  }
  return top << SECOND | find_bin(count, DIGIT + 1, k);
}

/* Keep all chosen above the bin, and the `rest` largest within it. */
static void keep_k_largest(const float *x, int32_t *chosen, int64_t m, uint32_t bin, int64_t rest,
                           int32_t *count) {
  int64_t out = 0;
  const uint32_t upper = find_digit(x, chosen, m, bin, FIRST, count, &rest);
  const uint32_t least = find_digit(x, chosen, m, upper, SECOND, count, &rest);
  for (int64_t i = 0; i < m; i++) { /* `rest` of the elements equal to the least one */
    const uint32_t key = ng_window_key(x[chosen[i]]);
    if (key < least || (key == least && rest-- <= 0)) continue;
    chosen[out++] = chosen[i];
  }
}

/* ---- by threads ------------------------------------------------------------------------------*/

typedef struct selection {
  const ng_window_sum *v;
  int64_t n;
  int32_t pieces, *count, *chosen;
  uint32_t low;
} selection;

/* One piece runs in the calling thread, which may be a task. */
static void each_piece(ng_context *ctx, selection *g, void (*task)(void *arg, int32_t piece)) {
  if (g->pieces > 1) {
    ng_parallel(ctx, g->pieces, task, g);
  } else {
    task(g, 0);
  }
}

static void count_piece(void *arg, int32_t piece) {
  const selection *g = arg;
  int64_t from, to;
  ng_share(g->n, g->pieces, piece, &from, &to);
  count_first(g->v, from, to, g->count + (int64_t)piece * NG_WINDOW_COUNTS);
}

/* Leaves the number after the first histogram, where the copies are no longer needed. */
static void take_piece(void *arg, int32_t piece) {
  const selection *g = arg;
  int64_t from, to;
  ng_share(g->n, g->pieces, piece, &from, &to);
  g->count[(int64_t)piece * NG_WINDOW_COUNTS + BINS] =
      (int32_t)take(g->v->x, from, to, g->low, g->chosen);
}

void ng_window_largest(ng_context *ctx, const ng_window_sum *v, int64_t n, int64_t k,
                       int32_t pieces, int32_t *count, int32_t *chosen) {
  selection g = {.v = v, .n = n, .pieces = pieces, .count = count, .chosen = chosen};
  int64_t rest = k, m = 0;
  each_piece(ctx, &g, count_piece);
  for (int32_t i = 1; i < pieces; i++) {
    for (int bin = 0; bin < BINS; bin++) {
      count[bin] += count[(int64_t)i * NG_WINDOW_COUNTS + bin];
    }
  }
  const uint32_t bin = find_bin(count, BINS, &rest);
  g.low = bin << FIRST;
  each_piece(ctx, &g, take_piece);
  for (int32_t i = 0; i < pieces; i++) {
    int64_t from, to;
    const int64_t some = count[(int64_t)i * NG_WINDOW_COUNTS + BINS];
    ng_share(n, pieces, i, &from, &to);
    memmove(chosen + m, chosen + from, (size_t)some * sizeof *chosen);
    m += some;
  }
  keep_k_largest(v->x, chosen, m, bin, rest, count);
}

/* ---- by several ranks ------------------------------------------------------------------------*/

/* Each rank has a slice of the elements.  Sums over ranks of small histograms give every rank the selection that one rank
 * would make.  Slices follow each other, so of equal magnitudes the lower rank's come first.
 *
 *   round 0       the histogram of first digits, 11 bits
 *   round 1, 2    the next digit, 10 bits, of elements that begin like the k-th largest
 *   round 3       per rank, the numbers of elements above the k-th largest and equal to it
 *   after it      each rank lists its elements */

int64_t ng_window_joint_room(int32_t round, int32_t ranks) {
  return round == 0 ? NG_WINDOW_BINS : round < 3 ? DIGIT + 1 : 2 * (int64_t)ranks;
}

static void count_digits(const ng_window_joint *j, int shift, double *count) {
  for (int64_t i = 0; i < j->n; i++) {
    const uint32_t key = ng_window_key(j->x[i]);
    if (key >> (shift + SECOND) == j->top) count[key >> shift & DIGIT] += 1.0;
  }
}

/* The key of the k-th largest is known: count the elements above and equal. */
static void count_ends(const ng_window_joint *j, double *count) {
  for (int64_t i = 0; i < j->n; i++) {
    const uint32_t key = ng_window_key(j->x[i]);
    if (key >= j->top) count[2 * j->rank + (key == j->top)] += 1.0;
  }
}

/* Of the elements equal to the k-th largest, the first j->rest are taken. */
static void take_joint(ng_window_joint *j, const double *count) {
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
  if (round == 1) j->top = find_bin_joint(x, NG_WINDOW_BINS, &j->rest);
  if (round == 2 || round == 3) j->top = j->top << SECOND | find_bin_joint(x, DIGIT + 1, &j->rest);
  if (round == 4) {
    take_joint(j, x);
    return;
  }
  memset(x, 0, (size_t)ng_window_joint_room(round, ranks) * sizeof *x);
  if (round == 0) {
    for (int64_t i = 0; i < j->n; i++) {
      x[ng_window_key(j->x[i]) >> FIRST] += 1.0;
    }
  } else if (round < 3) {
    count_digits(j, round == 1 ? SECOND : 0, x);
  } else {
    count_ends(j, x);
  }
}
