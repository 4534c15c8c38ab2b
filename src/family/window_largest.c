/* window_largest.c: select the k largest magnitudes of a vector, by one thread, several threads or several ranks.
 *
 * In: n floats x, and an error vector to add to x first.  Out: k indices, ascending; of equal magnitudes the first.
 * O(n) operations; the result does not depend on the number of threads.
 *
 * The key of a float is its 31 bits without the sign: keys are ordered as magnitudes.  A key has digits of 11, 10 and
 * 10 bits.  A histogram of first digits finds the bin of the k-th largest key; the other digits select within that
 * bin.  x is read twice: once for the sum and the histogram, once to collect the elements at or above the bin. */
#include "family/window.h"

#include "simd.h"

enum { BINS = NG_WINDOW_BINS, COPIES = 4, FIRST = 20, SECOND = 10, DIGIT = 1023 };

/* x_i <- error_i + by x_i, or error_i if the sum is not finite. */
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

/* Add the error to x[from..to) and count first digits in four histograms, added at the end: an increment of a bin waits
 * for the previous increment of the same bin. */
static void count_first(const ng_window_sum *v, int64_t from, int64_t to, int32_t *count) {
  memset(count, 0, (size_t)COPIES * BINS * sizeof *count);
  for (int64_t at = from, n; at < to; at += n) { /* the sums stay in the first-level cache */
    float *x = v->x + at;
    int64_t i = 0;
    n = ng_min64(NG_WINDOW_LINE, to - at);
    if (v->error != NULL) add_error(x, v->error + at, n, v->by);
    for (; i + COPIES <= n; i += COPIES) {
      for (int q = 0; q < COPIES; q++) {
        count[q * BINS + (int32_t)(ng_window_magnitude_bits(x[i + q]) >> FIRST)]++;
      }
    }
    for (; i < n; i++) {
      count[ng_window_magnitude_bits(x[i]) >> FIRST]++;
    }
  }
  for (int k = 0; k < BINS; k++) {
    count[k] += count[BINS + k] + count[2 * BINS + k] + count[3 * BINS + k];
  }
}

/* Write the indices in [from, to) with keys >= low to `chosen` from position `from` on; return their number. */
static int64_t collect_above(const float *x, int64_t from, int64_t to, uint32_t low,
                             int32_t *chosen) {
  int64_t m = from;
  for (int64_t i = from; i < to; i++) {
    chosen[m] = (int32_t)i;
    m += ng_window_magnitude_bits(x[i]) >= low;
  }
  return m - from;
}

/* Return the bin of the k-th largest key; *k <- its rank within the bin, counted from the largest. */
static uint32_t find_bin(const int32_t *count, int32_t bins, int64_t *k) {
  int32_t bin = bins - 1;
  while (bin > 0 && count[bin] < *k) {
    *k -= count[bin--];
  }
  return (uint32_t)bin;
}

/* As find_bin, for counts summed over ranks. */
static uint32_t find_bin_joint(const double *count, int32_t bins, int64_t *k) {
  int32_t bin = bins - 1;
  while (bin > 0 && (int64_t)count[bin] < *k) {
    *k -= (int64_t)count[bin--];
  }
  return (uint32_t)bin;
}

/* Return `top` extended by the next digit of the k-th largest of the chosen keys that begin with `top`. */
static uint32_t find_digit(const float *x, const int32_t *chosen, int64_t m, uint32_t top,
                           int shift, int32_t *count, int64_t *k) {
  memset(count, 0, (DIGIT + 1) * sizeof *count);
  for (int64_t i = 0; i < m; i++) {
    const uint32_t key = ng_window_magnitude_bits(x[chosen[i]]);
    if (key >> shift == top) count[key >> (shift - SECOND) & DIGIT]++;
  }
  return top << SECOND | find_bin(count, DIGIT + 1, k);
}

/* Compact `chosen` to the elements above the bin and the `rest` largest elements of the bin. */
static void keep_k_largest(const float *x, int32_t *chosen, int64_t m, uint32_t bin, int64_t rest,
                           int32_t *count) {
  int64_t out = 0;
  const uint32_t upper = find_digit(x, chosen, m, bin, FIRST, count, &rest);
  const uint32_t least = find_digit(x, chosen, m, upper, SECOND, count, &rest);
  for (int64_t i = 0; i < m; i++) { /* of the elements with key = least, keep the first `rest` */
    const uint32_t key = ng_window_magnitude_bits(x[chosen[i]]);
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

/* Run all pieces.  A single piece runs in the calling thread, because ng_parallel must not be called from a task. */
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
  ng_piece_bounds(g->n, g->pieces, piece, &from, &to);
  count_first(g->v, from, to, g->count + (int64_t)piece * NG_WINDOW_COUNTS);
}

/* Collect the candidates of a piece; write their number after the piece's first histogram, over the unused copies. */
static void collect_piece(void *arg, int32_t piece) {
  const selection *g = arg;
  int64_t from, to;
  ng_piece_bounds(g->n, g->pieces, piece, &from, &to);
  g->count[(int64_t)piece * NG_WINDOW_COUNTS + BINS] =
      (int32_t)collect_above(g->v->x, from, to, g->low, g->chosen);
}

void ng_window_select_largest(ng_context *ctx, const ng_window_sum *v, int64_t n, int64_t k,
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
  each_piece(ctx, &g, collect_piece);
  for (int32_t i = 0; i < pieces; i++) {
    int64_t from, to;
    const int64_t some = count[(int64_t)i * NG_WINDOW_COUNTS + BINS];
    ng_piece_bounds(n, pieces, i, &from, &to);
    memmove(chosen + m, chosen + from, (size_t)some * sizeof *chosen);
    m += some;
  }
  keep_k_largest(v->x, chosen, m, bin, rest, count);
}

/* ---- by several ranks ------------------------------------------------------------------------*/

/* Each rank has a slice of the elements.  From sums over ranks of small histograms, every rank finds the selection that
 * one rank with all elements would make.  Of equal magnitudes the lower rank comes first, as in the flat order.
 *
 *   round 0       sum the histograms of first digits (11 bits)
 *   round 1, 2    sum the histograms of the next digit (10 bits) of keys that begin like the k-th largest key
 *   round 3       gather from each rank the numbers of keys above and equal to the k-th largest key
 *   round 4       each rank lists its selected elements */

int64_t ng_window_joint_count(int32_t round, int32_t ranks) {
  return round == 0 ? NG_WINDOW_BINS : round < 3 ? DIGIT + 1 : 2 * (int64_t)ranks;
}

static void count_digits(const ng_window_joint *j, int shift, double *count) {
  for (int64_t i = 0; i < j->n; i++) {
    const uint32_t key = ng_window_magnitude_bits(j->x[i]);
    if (key >> (shift + SECOND) == j->prefix) count[key >> shift & DIGIT] += 1.0;
  }
}

/* Count this rank's keys above and equal to the k-th largest key, j->top. */
static void count_ends(const ng_window_joint *j, double *count) {
  for (int64_t i = 0; i < j->n; i++) {
    const uint32_t key = ng_window_magnitude_bits(j->x[i]);
    if (key >= j->prefix) count[2 * j->rank + (key == j->prefix)] += 1.0;
  }
}

/* List this rank's keys above the k-th largest key, and those among the first j->rest equal keys of all ranks. */
static void collect_joint(ng_window_joint *j, const double *count) {
  int64_t rest = j->rank_in_prefix, mine = 0, m = 0;
  j->selected_below = 0;
  for (int32_t r = 0; r <= j->rank; r++) {
    const int64_t like = ng_min64((int64_t)count[2 * r + 1], rest);
    rest -= like;
    if (r == j->rank) mine = like;
    if (r < j->rank) j->selected_below += (int64_t)count[2 * r] + like;
  }
  for (int64_t i = 0; i < j->n; i++) {
    const uint32_t key = ng_window_magnitude_bits(j->x[i]);
    if (key < j->prefix || (key == j->prefix && mine-- <= 0)) continue;
    j->chosen[m++] = (int32_t)i;
  }
  j->selected = m;
}

void ng_window_joint_round(ng_window_joint *j, int32_t round, int32_t ranks, double *x) {
  if (round == 0) j->rank_in_prefix = j->k;
  if (round == 1) j->prefix = find_bin_joint(x, NG_WINDOW_BINS, &j->rank_in_prefix);
  if (round == 2 || round == 3)
    j->prefix = j->prefix << SECOND | find_bin_joint(x, DIGIT + 1, &j->rank_in_prefix);
  if (round == 4) {
    collect_joint(j, x);
    return;
  }
  memset(x, 0, (size_t)ng_window_joint_count(round, ranks) * sizeof *x);
  if (round == 0) {
    for (int64_t i = 0; i < j->n; i++) {
      x[ng_window_magnitude_bits(j->x[i]) >> FIRST] += 1.0;
    }
  } else if (round < 3) {
    count_digits(j, round == 1 ? SECOND : 0, x);
  } else {
    count_ends(j, x);
  }
}
