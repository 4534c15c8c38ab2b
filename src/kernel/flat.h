/* flat.h: descriptors of windows: vectors of d elements in flat order, and matrices G whose rows are such vectors.
 *
 * Flat order: parameter after parameter, row after row. A list of ranges defines which elements of which parameters a
 * vector contains. Threads take chunks of ranges, and the sums of the chunks are added in order, so a result does not
 * depend on the number of threads.
 *
 * Lists that a descriptor points to (range, place, c, by, factors) are memory of the host: an entry reads them before it
 * returns, so the caller may change them at once. */
#ifndef NG_FLAT_H
#define NG_FLAT_H

#include "core/core.h"

/* CHUNK: elements of a chunk; LINE: elements of a buffer on the stack; BLOCK: elements of a block of a sparse row, so
 * that an index within a block fits 16 bits. */
enum { NG_FLAT_CHUNK = 8192, NG_FLAT_LINE = 2048, NG_FLAT_BLOCK = 32768 };

/* A range: elements [at, at + n) of the vectors, which are elements [from, from + n) of one parameter. */
typedef struct ng_flat_range {
  int64_t at, n;
  int64_t first_chunk;                  /* number of chunks of the ranges before this range */
  int32_t part;                         /* index of the sums that the range adds to (ng_rows.k) */
  bool is_excluded;                     /* the parameter is excluded in this step */
  const struct ng_place *grad, *weight; /* gradient and weight of the parameter */
  /* number of columns of the parameter; index of its element that is the first of the range */
  int64_t cols, from;
} ng_flat_range;

/* A chunk: elements [from, from + n) of a range, which are elements [at, at + n) of the vectors. */
typedef struct ng_flat_chunk {
  const ng_flat_range *range;
  int64_t from, n, at;
} ng_flat_chunk;

static inline int64_t ng_count_range_chunks(int64_t n) {
  return (n + NG_FLAT_CHUNK - 1) / NG_FLAT_CHUNK;
}
/* Return chunk i of a list of ranges. Chunks are computed, because a stored list would grow with the model. */
ng_flat_chunk ng_find_chunk(const ng_flat_range *range, int64_t ranges, int64_t i);
int32_t ng_count_list_chunks(const ng_flat_range *range, int64_t ranges);

/* What a pass does with every element of the vectors. g: the bound gradient; w: the bound weight; E: elements of excluded
 * parameters; M: elements with mask 0. "a or b" means: a; if a is not finite, b, and the pass counts the element.
 * take, old, forget, add, m, m2, eps and limit: numbers of ng_flat_pass.
 * Arithmetic is in double and rounded once. */
typedef enum ng_flat_op {
  NG_FLAT_READ, /* to <- g; E, M: to <- 0. Count the lines in which some |g| outside E exceeds limit */
  NG_FLAT_DECAY, /* to <- to + take * w; E, M: unchanged. Count the lines with a non-finite element */
  NG_FLAT_MASK,    /* mask <- 1 where w is not 0, else 0 */
  NG_FLAT_CLEAR,   /* E: to <- v, or 0 if v is NULL; others: unchanged */
  NG_FLAT_SCALE,   /* to <- take * to; E: to <- -v */
  NG_FLAT_FILL,    /* where to = 0: to <- x, x <- 0 (x NULL: to <- g); E, M: unchanged */
  NG_FLAT_MIX,     /* to <- old * v + take * x or v; E: to <- v */
  NG_FLAT_ADAM,    /* to <- old * v + take * x or v; next_s <- forget * s + add * x^2 or s; then
                    * x <- m * to / (sqrt(m2 * next_s) + eps), or x <- to if s is NULL; E: to <- v, next_s <- s */
  NG_FLAT_DIVIDE,  /* next_s <- s + to^2 or s; to <- to / (sqrt(next_s) + eps) */
  NG_FLAT_LIMIT,   /* to <- 0 where |to| * take > limit; count these elements */
  NG_FLAT_COUNT,   /* count the elements outside E and M */
  NG_FLAT_MEASURE, /* out <- <g, to>, <g, g>, <to, to> over the elements outside E */
  NG_FLAT_OPS
} ng_flat_op;

/* A pass over vectors: out[0] <- the count of elements or lines; NG_FLAT_MEASURE: out[3] <- the sums. */
typedef struct ng_flat_pass {
  ng_flat_op op;
  const ng_flat_range *range;
  int64_t ranges;
  float *to, *x, *next_s;
  const float *v, *s;
  uint8_t *mask; /* 0: the element is masked; NULL: no mask */
  double old, take, forget, add, m, m2, eps, limit;
  double *partial_sums; /* [chunks, 3] scratch */
  double *out;          /* [3] */
} ng_flat_pass;

typedef enum ng_rows_kind {
  NG_ROWS_WHOLE,  /* value: all elements of a row, f32 or bf16 */
  NG_ROWS_SPARSE, /* value: the stored elements of a row, f32 or bf16; each range has at most NG_FLAT_BLOCK elements */
  NG_ROWS_LOW_RANK /* value: the factors P and Q of a row, f32; each range is a parameter */
} ng_rows_kind;

/* A parameter [rows, cols] in a low-rank row is P Q'; P [rank, rows] and then Q [rank, cols] are stored from element
 * `at` of the row on. rank 0: the rows * cols elements themselves are stored. */
typedef struct ng_low_rank_shape {
  int64_t rows, cols, rank, at;
} ng_low_rank_shape;

/* The matrix G of a window: `places` places for rows, of which `used` contain one. The entries compute
 *     multiply_rows: k[part][place] += <row, x> over the elements of each part, for every row in use
 *     combine_rows:  u <- by[part] u + sum over rows in use of c[part][place] row; if by = 0, u is not read */
typedef struct ng_rows {
  ng_rows_kind kind;
  ng_dtype dtype;
  const ng_flat_range *range;
  int64_t ranges;
  int64_t places, used, head;
  const int64_t *place; /* [used] places of the rows in use */
  const void *value;    /* [places, stride]: see ng_rows_kind */
  int64_t stride;
  /* Sparse rows: index [places, stride] is the index of each value in its range. begin [places, blocks] minus `before` is
   * the position in the row of each block's first value. The first range is block first_block. Readers clamp `begin`,
   * which may come from a damaged file, to [0, stride]. */
  const uint16_t *index;
  const int32_t *begin;
  int64_t blocks, first_block, before;
  const ng_low_rank_shape *factors; /* [ranges], for low-rank rows */
  double *tile;                     /* [threads, NG_FLAT_BLOCK] scratch for sparse rows */
  double *partial_sums;             /* [chunks, used] (whole rows) or [ranges, used] scratch */
  const float *x;                   /* NULL: x is the row at `head`; whole rows need an x */
  double *k;                        /* [parts, places] */
  const double *c;                  /* [parts, places] */
  const double *by;                 /* [parts] */
  float *u;
} ng_rows;

/* ---- low-rank rows ---------------------------------------------------------------------------*/

/* An array of numbers of 48 bits: number i is x[i] + rest[i]. */
typedef struct ng_float_pair {
  float *x, *rest;
} ng_float_pair;

static inline double ng_get_pair(ng_float_pair p, int64_t i) {
  return (double)p.x[i] + (double)p.rest[i];
}
static inline void ng_set_pair(ng_float_pair p, int64_t i, double y) {
  p.x[i] = (float)y;
  p.rest[i] = (float)(y - (double)p.x[i]);
}

/* One power iteration for a parameter a [rows, cols], PowerSGD (Vogels et al. 2019, arXiv 1905.13727):
 *     a <- e + by a;  P <- orthonormal columns of a Q;  Q <- a' P;  a <- a - P Q'
 * `from` contains the old Q, `to` receives the new P and Q; both have the layout of ng_low_rank_shape. If a column of P consists
 * only of rounding errors, it becomes 0, and the same column of Q keeps its old value. Products are in double.
 * is_excluded: P <- 0, Q keeps its old value, a <- e. rank 0: to <- by a, a <- 0. */
typedef struct ng_low_rank {
  ng_low_rank_shape shape;
  bool is_excluded;
  double by;
  ng_float_pair a, e; /* [rows * cols]; e.x NULL: a already contains e + by a */
  ng_float_pair from, to;
  double *work; /* [rank (rows + cols)] scratch */
} ng_low_rank;

/* ---- top-k selection -------------------------------------------------------------------------*/

/* The key of a float is its bits without the sign: of two floats, the larger magnitude has the larger key.
 * NG_LARGEST_BINS: bins of a histogram; NG_LARGEST_COUNTS: counts of one thread. */
enum { NG_LARGEST_BINS = 2048, NG_LARGEST_COUNTS = 4 * NG_LARGEST_BINS };

/* A group of n elements x, of which the k largest magnitudes are selected; of equal magnitudes the first are selected.
 * select_largest and count_largest begin with x <- error + by x.
 *     select_largest   chosen[0..k) <- the indices of the k largest |x_i|
 *     count_largest    for ranks that select jointly. digits > 0: count[d] <- how many keys have `prefix` as leading bits
 *                      and d as their next `digits` bits, the last of which is bit `shift`.
 *                      digits = 0: count[0], count[1] <- how many keys are above `prefix`, how many are equal
 *     collect_largest  chosen[0..*selected) <- the indices of the keys above `prefix` and of the first `equal` equal keys
 *     store_largest    value[j], index[j] <- x[chosen[j]], rounded to dtype, and its index in its block; 0 for k <= j < size;
 *                      x[chosen[j]] <- its rounding error; begin[i] <- first + the number of values before block i, or
 *                      first + size if the blocks from i > 0 on have no value */
typedef struct ng_largest {
  float *x;
  int64_t n, k;
  const float *error; /* NULL: x already is the sum; if a sum is not finite, x_i <- error_i */
  float by;
  int32_t *chosen; /* [n], ascending */
  uint32_t prefix;
  int32_t shift, digits;
  double *count;
  int64_t equal, *selected;
  ng_dtype dtype;
  void *value;
  uint16_t *index;
  int32_t *begin;
  int64_t blocks, first, size;
} ng_largest;

/* Pack n values of a sparse row and their indices into doubles that ranks can sum: entry = bits of the value + 2^32
 * index. */
typedef struct ng_largest_pack {
  ng_dtype dtype;
  int64_t n;
  void *value;
  uint16_t *index;
  double *entry;
  bool unpacks; /* true: value, index <- entry; false: entry <- value, index */
} ng_largest_pack;

#endif
