/* flat.h: descriptors of windows: vectors of d elements in flat order, and matrices G whose rows are such vectors.
 *
 * Flat order: the elements of one parameter after the other, row after row. A list of ranges says which elements of which
 * parameters the vectors have. Loops work on chunks of a range, whose sums are added in order, so results do not depend
 * on the number of threads. */
#ifndef NG_FLAT_H
#define NG_FLAT_H

#include "core/core.h"

/* Elements of a chunk; of a buffer on the stack; of a block of sparse rows (an index in a block has 16 bits). */
enum { NG_FLAT_CHUNK = 8192, NG_FLAT_LINE = 2048, NG_FLAT_BLOCK = 32768 };

/* The elements [at, at + n) of the vectors. Sums belong to a part of the vectors. */
typedef struct ng_flat {
  int64_t at, n;
  int64_t first_chunk; /* number of chunks of the ranges before */
  int32_t part;
  bool is_excluded; /* the parameter is excluded in this step: see ng_flat_op */
  const struct ng_place *grad, *weight;
  int64_t cols, from; /* columns of the parameter; the parameter's element that is element `at` */
} ng_flat;

/* A chunk of a list: elements [from, from + n) of a range, at `at` in the vectors. */
typedef struct ng_flat_chunk {
  const ng_flat *range;
  int64_t from, n, at;
} ng_flat_chunk;

static inline int64_t ng_flat_chunks(int64_t n) { return (n + NG_FLAT_CHUNK - 1) / NG_FLAT_CHUNK; }
/* Compute chunk i of the list; a stored list of chunks would grow with the model. */
ng_flat_chunk ng_flat_chunk_at(const ng_flat *range, int64_t ranges, int64_t i);
int32_t ng_flat_list_chunks(const ng_flat *range, int64_t ranges); /* number of chunks of a list */

/* What a pass does with each element of the vectors. g: the bound gradient; w: the bound weight. "Or v": if the value is
 * not finite, the element becomes v and is counted. Arithmetic is in double, rounded once. */
typedef enum ng_flat_op {
  NG_FLAT_READ, /* to <- g; masked, excluded: 0. Counts lines with some |g| > limit that is not excluded */
  NG_FLAT_DECAY, /* to <- to + take w, unless masked or excluded. Counts lines that are not finite */
  NG_FLAT_MASK,  /* mask <- 1 where w is not 0, else 0 */
  NG_FLAT_CLEAR,   /* excluded: to <- v (NULL: 0) */
  NG_FLAT_SAVE,    /* to <- take to; excluded: to <- -v */
  NG_FLAT_FILL,    /* where to = 0, unless masked or excluded: to <- x, x <- 0 (x NULL: to <- g) */
  NG_FLAT_MIX,     /* to <- old v + take x, or v; excluded: to <- v */
  NG_FLAT_ADAM,    /* to <- old v + take x, or v; next_s <- forget s + (1 - forget) x^2, or s; then
                    * x <- m to / (sqrt(m2 next_s) + eps); excluded: to <- v, next_s <- s. s NULL: x <- to */
  NG_FLAT_DIVIDE,  /* next_s <- s + to^2, or s; to <- to / (sqrt(next_s) + eps) */
  NG_FLAT_LIMIT,   /* to <- 0 where |to| take > limit; counts these */
  NG_FLAT_COUNT,   /* counts elements that are neither masked nor excluded */
  NG_FLAT_MEASURE, /* out <- <g, to>, <g, g>, <to, to>, unless excluded */
  NG_FLAT_OPS
} ng_flat_op;

/* A pass over vectors: out[0] <- the number of elements or lines that were counted, or out[3] <- sums. */
typedef struct ng_flat_pass {
  ng_flat_op op;
  const ng_flat *range;
  int64_t ranges;
  float *to, *x, *next_s;
  const float *v, *s;
  uint8_t *mask; /* 0: the element is masked; NULL: no mask */
  double old, take, forget, m, m2, eps, limit;
  double *unit; /* [chunks, 3] scratch */
  double *out;  /* [3] */
} ng_flat_pass;

typedef enum ng_rows_kind {
  NG_ROWS_WHOLE, /* [places, stride] elements of f32 or bf16; the ranges have chunks */
  NG_ROWS_SPARSE, /* [places, stride] values and their 16-bit indices in blocks; the ranges are blocks */
  NG_ROWS_LOW_RANK /* [places, stride] f32: for each range the factors of P Q'; the ranges are parameters */
} ng_rows_kind;

/* The low-rank rows of a range: P [rank, rows] and Q [rank, cols] begin at element `at` of a row. rank 0: the rows * cols
 * elements themselves. */
typedef struct ng_factors {
  int64_t rows, cols, rank, at;
} ng_factors;

/* Rows G in use, and what to compute from them:
 *     row_products: k[part][place] += <row, x> over the elements of each part, for every row in use
 *     row_combine:  u <- by[part] u + sum over rows in use of c[part][place] row; by = 0: u is not read */
typedef struct ng_rows {
  ng_rows_kind kind;
  ng_dtype dtype;
  const ng_flat *range;
  int64_t ranges;
  int64_t places, used, head;
  const int64_t *place; /* [used] places of the rows in use */
  const void *value;
  int64_t stride;
  /* Sparse: indices [places, stride], and the position of a block's first entry [places, blocks], plus `before`. The
   * first range is block first_block. Positions from a loaded file are limited to the row. */
  const uint16_t *index;
  const int32_t *begin;
  int64_t blocks, first_block, before;
  const ng_factors *factors; /* [ranges] low-rank */
  double *tile;              /* [threads, NG_FLAT_BLOCK] scratch, sparse */
  double *unit;              /* [chunks or ranges, used] scratch */
  const float *x;            /* NULL: the row at `head`; not for whole rows */
  double *k;                 /* [parts, places] */
  const double *c;           /* [parts, places] */
  const double *by;          /* [parts] */
  float *u;
} ng_rows;

/* ---- low-rank rows ---------------------------------------------------------------------------*/

/* 48-bit numbers x_i + rest_i, two f32 each. */
typedef struct ng_pair {
  float *x, *rest;
} ng_pair;

/* One power iteration for a parameter a [rows, cols], PowerSGD (Vogels et al. 2019, arXiv 1905.13727):
 *     a <- e + by a;  P <- orthonormal columns of a Q;  Q <- a' P;  a <- a - P Q'
 * from has the old Q, to receives the new P and Q; both have the layout of ng_factors. A column of P that is only the
 * rounding error of earlier columns becomes 0, and its column of Q stays. Products are in double.
 * excluded: P <- 0, Q stays, a <- e. rank 0: to <- by a, a <- 0. */
typedef struct ng_low_rank {
  ng_factors shape;
  bool is_excluded;
  double by;
  ng_pair a, e; /* [rows * cols]; e.x NULL: a is the sum already */
  ng_pair from, to;
  double *work; /* [rank (rows + cols)] scratch */
} ng_low_rank;

/* ---- top-k selection -------------------------------------------------------------------------*/

/* The key of a float is its 31 bits without the sign: keys are ordered as magnitudes. NG_LARGEST_COUNTS: scratch of one
 * thread. */
enum { NG_LARGEST_BINS = 2048, NG_LARGEST_COUNTS = 4 * NG_LARGEST_BINS };

/* A group of elements x from which k are selected:
 *     largest_select   x <- error + by x; chosen[0..k) <- the indices of the k largest |x_i|, ascending; of equal
 *                   magnitudes the first
 *     largest_count    the same sum; count[digit] <- the number of keys that begin with `prefix`, by their next `digits`
 *                   bits, which end at bit `shift`; digits = 0: count[0], count[1] <- keys above and equal to prefix
 *     largest_collect  chosen[0..selected) <- the indices of keys above `prefix` and of the first `equal` keys equal to it
 *     largest_store    value[j], index[j] <- x[chosen[j]], rounded, and its index in its block; x <- the rounding error;
 *                   begin[i] <- first + the number of entries before block i; first + size if no entry is behind */
typedef struct ng_largest {
  float *x;
  int64_t n, k;
  const float *error; /* NULL: x is the sum already; x_i <- error_i if the sum is not finite */
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

/* n entries of a sparse row as doubles, for a sum over ranks: the bits of the value + 2^32 * index. */
typedef struct ng_largest_pack {
  ng_dtype dtype;
  int64_t n;
  void *value;
  uint16_t *index;
  double *entry;
  bool unpacks; /* read the entries; else write them */
} ng_largest_pack;

#endif
