/* largest.c: select the k largest magnitudes of vectors, and store them as sparse rows.
 *
 * In: groups of elements (flat.h), each with an optional error. Out: indices, ascending; values, indices in blocks, residuals. O(n) operations; the
 * result does not depend on the number of threads.
 *
 * A key (flat.h) consists of three digits of 11, 10 and 10 bits. A histogram of the first digits finds the bin of the k-th
 * largest key. Its other digits are found in the same way among the keys of this bin. x is read twice: once for
 * x <- error + by x and the histogram, once to collect the elements in this bin and in the bins above. */
#include <string.h>

#include "kernel/entries.h"
#include "simd.h"

enum { BINS = NG_LARGEST_BINS, COPIES = 4, FIRST = 20, SECOND = 10, DIGIT = 1023, VALUES = 256 };
enum {
  WIDE = 2 * NG_FLAT_BLOCK
}; /* elements of one thread from which on all threads work on one group */

static uint32_t key_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffU;
}

/* x_i <- error_i + by x_i, or error_i if the sum is not finite. */
NG_CLONES static void add_error(float *restrict x, const float *restrict error, int64_t n,
                                float by) {
  for (int64_t i = 0; i < n; i++) {
    const float sum = error[i] + by * x[i];
    x[i] = sum - sum == 0.0F ? sum : error[i];
  }
}

/* Add the error to x[from..to) and count the first digits. Neighbouring elements are counted in four different histograms,
 * because two increments of the same counter would wait for each other. */
static void count_first_digits(const ng_largest *v, int64_t from, int64_t to, int32_t *count) {
  memset(count, 0, (size_t)COPIES * BINS * sizeof *count);
  for (int64_t at = from, n; at < to; at += n) {
    /* n is small, so that the line stays in the L1 cache for the loops below */
    float *x = v->x + at;
    int64_t i = 0;
    n = ng_min64(NG_FLAT_LINE, to - at);
    if (v->error != NULL) add_error(x, v->error + at, n, v->by);
    for (; i + COPIES <= n; i += COPIES) {
      for (int q = 0; q < COPIES; q++) {
        count[q * BINS + (int32_t)(key_of(x[i + q]) >> FIRST)]++;
      }
    }
    for (; i < n; i++) {
      count[key_of(x[i]) >> FIRST]++;
    }
  }
  for (int k = 0; k < BINS; k++) {
    count[k] += count[BINS + k] + count[2 * BINS + k] + count[3 * BINS + k];
  }
}

/* Write the indices i in [from, to) with key >= low to chosen[from], chosen[from + 1], ...; return how many. */
static int64_t collect_above(const float *x, int64_t from, int64_t to, uint32_t low,
                             int32_t *chosen) {
  int64_t m = from;
  for (int64_t i = from; i < to; i++) {
    chosen[m] = (int32_t)i;
    m += key_of(x[i]) >= low;
  }
  return m - from;
}

/* Return the bin of the k-th largest key; *k <- how many keys of this bin are selected. */
static uint32_t find_bin(const int32_t *count, int32_t bins, int64_t *k) {
  int32_t bin = bins - 1;
  while (bin > 0 && count[bin] < *k) {
    *k -= count[bin--];
  }
  return (uint32_t)bin;
}

/* Consider the chosen keys whose leading digits are `top`. Return `top` and the next digit of the k-th largest of these
 * keys; *k as in find_bin. */
static uint32_t find_digit(const float *x, const int32_t *chosen, int64_t m, uint32_t top,
                           int shift, int32_t *count, int64_t *k) {
  memset(count, 0, (DIGIT + 1) * sizeof *count);
  for (int64_t i = 0; i < m; i++) {
    const uint32_t key = key_of(x[chosen[i]]);
    if (key >> shift == top) count[key >> (shift - SECOND) & DIGIT]++;
  }
  return top << SECOND | find_bin(count, DIGIT + 1, k);
}

/* Of the m chosen elements, keep those in bins above `bin` and the `rest` largest in `bin`. */
static void keep_k_largest(const float *x, int32_t *chosen, int64_t m, uint32_t bin, int64_t rest,
                           int32_t *count) {
  int64_t out = 0;
  const uint32_t upper = find_digit(x, chosen, m, bin, FIRST, count, &rest);
  const uint32_t least = find_digit(x, chosen, m, upper, SECOND, count, &rest);
  for (int64_t i = 0; i < m; i++) {
    /* of the elements whose key equals `least`, keep the first `rest` */
    const uint32_t key = key_of(x[chosen[i]]);
    if (key < least || (key == least && rest-- <= 0)) continue;
    chosen[out++] = chosen[i];
  }
}

/* ---- selection -------------------------------------------------------------------------------*/

typedef struct selection {
  const ng_largest *v;
  int64_t groups;
  int32_t pieces, *count;
  uint32_t least_key;
} selection;

static void count_piece(void *arg, int32_t piece) {
  const selection *g = arg;
  int64_t from, to;
  ng_piece_bounds(g->v->n, g->pieces, piece, &from, &to);
  count_first_digits(g->v, from, to, g->count + (int64_t)piece * NG_LARGEST_COUNTS);
}

/* Collect the elements of a piece with key >= low; write their number after the piece's first histogram, where the other
 * histograms are no longer needed. */
static void collect_piece(void *arg, int32_t piece) {
  const selection *g = arg;
  int64_t from, to;
  ng_piece_bounds(g->v->n, g->pieces, piece, &from, &to);
  g->count[(int64_t)piece * NG_LARGEST_COUNTS + BINS] =
      (int32_t)collect_above(g->v->x, from, to, g->least_key, g->v->chosen);
}

/* Select from one group in `pieces` pieces, on this thread if q is NULL. */
static void select_group(const ng_queue *q, const ng_largest *v, int32_t pieces, int32_t *count) {
  selection g = {.v = v, .pieces = pieces, .count = count};
  int64_t rest = v->k, m = 0;
  ng_queue_run(q, pieces, count_piece, &g);
  for (int32_t i = 1; i < pieces; i++) {
    for (int bin = 0; bin < BINS; bin++) {
      count[bin] += count[(int64_t)i * NG_LARGEST_COUNTS + bin];
    }
  }
  const uint32_t bin = find_bin(count, BINS, &rest);
  g.least_key = bin << FIRST;
  ng_queue_run(q, pieces, collect_piece, &g);
  for (int32_t i = 0; i < pieces; i++) {
    int64_t from, to;
    const int64_t some = count[(int64_t)i * NG_LARGEST_COUNTS + BINS];
    ng_piece_bounds(v->n, pieces, i, &from, &to);
    memmove(v->chosen + m, v->chosen + from, (size_t)some * sizeof *v->chosen);
    m += some;
  }
  keep_k_largest(v->x, v->chosen, m, bin, rest, count);
}

/* Return whether a group is so large that all threads work on its selection. */
static bool is_wide(const ng_largest *v, int32_t pieces) {
  return pieces > 1 && v->n >= pieces * WIDE;
}

static void select_piece(void *arg, int32_t piece) {
  const selection *g = arg;
  int64_t from, to;
  ng_piece_bounds(g->groups, g->pieces, piece, &from, &to);
  for (int64_t i = from; i < to; i++) {
    if (is_wide(&g->v[i], g->pieces)) continue;
    select_group(NULL, &g->v[i], 1, g->count + (int64_t)piece * NG_LARGEST_COUNTS);
  }
}

void ng_cpu_select_largest(ng_queue *q, const ng_largest *v, int64_t n, int32_t *count) {
  selection g = {.v = v, .groups = n, .pieces = q->threads, .count = count};
  ng_queue_run(q, g.pieces, select_piece, &g);
  for (int64_t i = 0; i < n; i++) {
    if (is_wide(&v[i], g.pieces)) select_group(q, &v[i], g.pieces, count);
  }
}

/* ---- selection over several ranks ------------------------------------------------------------*/

void ng_cpu_count_largest(ng_queue *q, const ng_largest *v, int64_t n) {
  (void)q;
  for (const ng_largest *end = v + n; v < end; v++) {
    const uint32_t mask = (UINT32_C(1) << v->digits) - 1;
    memset(v->count, 0, (size_t)(v->digits == 0 ? 2 : 1 << v->digits) * sizeof *v->count);
    if (v->error != NULL) add_error(v->x, v->error, v->n, v->by);
    for (int64_t i = 0; i < v->n && v->digits > 0; i++) {
      const uint32_t key = key_of(v->x[i]);
      if (key >> (v->shift + v->digits) == v->prefix) v->count[key >> v->shift & mask] += 1.0;
    }
    for (int64_t i = 0; i < v->n && v->digits == 0; i++) {
      const uint32_t key = key_of(v->x[i]);
      if (key >= v->prefix) v->count[key == v->prefix] += 1.0;
    }
  }
}

void ng_cpu_collect_largest(ng_queue *q, const ng_largest *v, int64_t n) {
  (void)q;
  for (const ng_largest *end = v + n; v < end; v++) {
    int64_t equal = v->equal, m = 0;
    for (int64_t i = 0; i < v->n; i++) {
      const uint32_t key = key_of(v->x[i]);
      if (key < v->prefix || (key == v->prefix && equal-- <= 0)) continue;
      v->chosen[m++] = (int32_t)i;
    }
    *v->selected = m;
  }
}

/* ---- rows ------------------------------------------------------------------------------------*/

/* Store entries [j, j + n) of a group. */
static void store_values(const ng_largest *v, int64_t j, int64_t n) {
  void *value = (char *)v->value + j * ng_dtype_size(v->dtype);
  float exact[VALUES], rounded[VALUES];
  for (int64_t i = 0; i < n; i++) {
    exact[i] = v->x[v->chosen[j + i]];
    v->index[j + i] = (uint16_t)(v->chosen[j + i] % NG_FLAT_BLOCK);
  }
  ng_from_f32(value, v->dtype, exact, n);
  ng_to_f32(rounded, value, v->dtype, n);
  for (int64_t i = 0; i < n; i++) {
    v->x[v->chosen[j + i]] = exact[i] - rounded[i];
  }
}

static void store_group(void *arg, int32_t i) {
  const ng_largest *v = (const ng_largest *)arg + i;
  int64_t block = 0;
  for (int64_t j = 0; j < v->k; j++) {
    for (; block <= v->chosen[j] / NG_FLAT_BLOCK; block++) {
      v->begin[block] = (int32_t)(v->first + (block == 0 ? 0 : j));
    }
  }
  for (; block < v->blocks; block++) {
    v->begin[block] = (int32_t)(v->first + (block == 0 ? 0 : v->size));
  }
  for (int64_t j = 0; j < v->k; j += VALUES) {
    store_values(v, j, ng_min64(VALUES, v->k - j));
  }
  const size_t unused = (size_t)(v->size - v->k), size = (size_t)ng_dtype_size(v->dtype);
  memset((char *)v->value + (size_t)v->k * size, 0, unused * size);
  memset(v->index + v->k, 0, unused * sizeof *v->index);
}

void ng_cpu_store_largest(ng_queue *q, const ng_largest *v, int64_t n) {
  ng_queue_run(q, (int32_t)n, store_group, (void *)(uintptr_t)v);
}

void ng_shared_pack_largest(ng_queue *q, const ng_largest_pack *p, int64_t n) {
  (void)q;
  for (const ng_largest_pack *end = p + n; p < end; p++) {
    const int64_t size = ng_dtype_size(p->dtype);
    for (int64_t i = 0; i < p->n; i++) {
      char *value = (char *)p->value + i * size;
      uint32_t bits = 0; /* a bf16 sets only the low 16 bits */
      if (p->unpacks) {
        const uint64_t entry = (uint64_t)p->entry[i];
        bits = (uint32_t)(entry & 0xffffffffU);
        memcpy(value, &bits, (size_t)size);
        p->index[i] = (uint16_t)(entry >> 32);
      } else {
        memcpy(&bits, value, (size_t)size);
        p->entry[i] = (double)bits + 0x1p32 * (double)p->index[i];
      }
    }
  }
}
