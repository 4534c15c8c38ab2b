/* rows.c: products of the rows of a window with a vector, and combinations of rows.
 *
 * In: descriptors of rows (flat.h). Out: products in double; a vector, rounded once.
 *
 * Whole rows: see row_loops.c. Sparse rows: one block of x in f32, or of the sums in double, is in the second-level cache
 * while the same block of all rows is read; rows are far apart in memory, so later rows are prefetched. Low-rank rows:
 * <P1 Q1', P2 Q2'> = sum over i, j of (P1'P2)_ij (Q1'Q2)_ij, so no dense gradient is computed. */
#include <string.h>

#include "kernel/entries.h"
#include "kernel/row_loops.h"
#include "simd.h"

enum {
  AHEAD = 4,
  ENTRIES = 256
}; /* number of sparse rows that are prefetched; number of entries that are converted
                                    * at once */

/* acc <- by u; if by = 0, u is not read. */
static void begin_sums(double *acc, const float *u, int64_t n, double by) {
  for (int64_t e = 0; e < n; e++) {
    acc[e] = by == 0.0 ? 0.0 : by * (double)u[e];
  }
}

/* ---- sparse rows -----------------------------------------------------------------------------*/

NG_CLONES static void widen_bf16(double *restrict to, const uint16_t *restrict x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const uint32_t bits = (uint32_t)x[i] << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    to[i] = (double)wide;
  }
}

/* to <- elements [from, from + n) of `value` in double, in a loop of its own that the compiler vectorises. */
static void widen(double *to, const void *value, ng_dtype type, int64_t from, int64_t n) {
  if (type == NG_F32) {
    ng_from_f32(to, NG_F64, (const float *)value + from, n);
  } else {
    widen_bf16(to, (const uint16_t *)value + from, n);
  }
}

static double multiply_sparse(const float *tile, const uint16_t *index, const void *value,
                              ng_dtype type, int64_t n) {
  enum { SUMS = 4 };
  double x[ENTRIES], sum[SUMS] = {0.0};
  for (int64_t from = 0; from < n; from += ENTRIES) {
    const int64_t some = ng_min64(ENTRIES, n - from);
    const uint16_t *k = index + from;
    int64_t i = 0;
    widen(x, value, type, from, some);
    for (; i + SUMS <= some; i += SUMS) {
      for (int q = 0; q < SUMS; q++) {
        sum[q] += x[i + q] * (double)tile[k[i + q] % NG_FLAT_BLOCK];
      }
    }
    for (; i < some; i++) {
      sum[0] += x[i] * (double)tile[k[i] % NG_FLAT_BLOCK];
    }
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void put_sparse(float *tile, const uint16_t *index, const void *value, ng_dtype type,
                       int64_t n) {
  float x[ENTRIES];
  for (int64_t from = 0; from < n; from += ENTRIES) {
    const int64_t some = ng_min64(ENTRIES, n - from);
    ng_to_f32(x, (const char *)value + from * ng_dtype_size(type), type, some);
    for (int64_t i = 0; i < some; i++) {
      tile[index[from + i] % NG_FLAT_BLOCK] += x[i];
    }
  }
}

static void add_sparse(double *tile, const uint16_t *index, const void *value, ng_dtype type,
                       int64_t n, double c) {
  double x[ENTRIES];
  for (int64_t from = 0; from < n; from += ENTRIES) {
    const int64_t some = ng_min64(ENTRIES, n - from);
    widen(x, value, type, from, some);
    for (int64_t i = 0; i < some; i++) {
      tile[index[from + i] % NG_FLAT_BLOCK] += c * x[i];
    }
  }
}

/* The n values of a sparse row in one block, and their indices in the block. */
typedef struct block_run {
  const uint16_t *index;
  const void *value;
  int64_t n;
} block_run;

static block_run find_block_run(const ng_rows *G, int64_t place, int64_t block) {
  const int32_t *begin = G->begin + place * G->blocks + G->first_block + block;
  const int64_t end = G->first_block + block + 1 < G->blocks ? begin[1] - G->before : G->stride;
  const int64_t from = ng_max64(0, ng_min64(begin[0] - G->before, G->stride));
  const int64_t to = ng_max64(from, ng_min64(end, G->stride));
  return (block_run){G->index + place * G->stride + from, ng_row_at(G, place, from), to - from};
}

/* Return the values of the j-th row in use in a block; prefetch the values of row j + AHEAD. */
static block_run find_run_and_prefetch(const ng_rows *G, int64_t j, int64_t block) {
  if (j + AHEAD < G->used) {
    const block_run r = find_block_run(G, G->place[j + AHEAD], block);
    NG_FETCH_LINES(r.index, r.n * (int64_t)sizeof *r.index);
    NG_FETCH_LINES(r.value, r.n * ng_dtype_size(G->dtype));
  }
  return find_block_run(G, G->place[j], block);
}

static void multiply_sparse_rows(const ng_rows *G, float *tile, int64_t i) {
  const ng_flat_range *block = &G->range[i];
  if (G->x == NULL) { /* x is the row at `head`, whose values are exact in f32 */
    const block_run own = find_block_run(G, G->head, i);
    memset(tile, 0, (size_t)block->n * sizeof *tile);
    put_sparse(tile, own.index, own.value, G->dtype, own.n);
  } else {
    memcpy(tile, G->x + block->at, (size_t)block->n * sizeof *tile);
  }
  for (int64_t j = 0; j < G->used; j++) {
    const block_run r = find_run_and_prefetch(G, j, i);
    G->partial_sums[i * G->used + j] = multiply_sparse(tile, r.index, r.value, G->dtype, r.n);
  }
}

static void add_sparse_rows(const ng_rows *G, double *tile, int64_t i) {
  const ng_flat_range *block = &G->range[i];
  const double *c = G->c + block->part * G->places;
  begin_sums(tile, G->u + block->at, block->n, G->by[block->part]);
  for (int64_t j = 0; j < G->used; j++) {
    const block_run r = find_run_and_prefetch(G, j, i);
    add_sparse(tile, r.index, r.value, G->dtype, r.n, c[G->place[j]]);
  }
  ng_to_f32(G->u + block->at, tile, NG_F64, block->n);
}

typedef struct sparse_job {
  const ng_rows *G;
  int32_t pieces;
  bool combines;
} sparse_job;

static void run_sparse_piece(void *arg, int32_t piece) {
  const sparse_job *j = arg;
  double *tile = j->G->tile + (int64_t)piece * NG_FLAT_BLOCK;
  int64_t from, to;
  ng_piece_bounds(j->G->ranges, j->pieces, piece, &from, &to);
  for (int64_t i = from; i < to; i++) {
    if (j->combines) {
      add_sparse_rows(j->G, tile, i);
    } else {
      multiply_sparse_rows(j->G, (float *)(void *)tile, i);
    }
  }
}

/* ---- low-rank rows ---------------------------------------------------------------------------*/

static const float *find_factors(const ng_rows *G, int64_t place, const ng_low_rank_shape *v) {
  return ng_row_at(G, place, v->at);
}

static double dot_two_low_rank(const ng_low_rank_shape *v, const float *f, const float *g) {
  const int64_t behind = v->rank * v->rows;
  double sum = 0.0;
  for (int64_t a = 0; a < v->rank; a++) {
    for (int64_t c = 0; c < v->rank; c++) {
      sum += ng_row_dot(f + a * v->rows, g + c * v->rows, v->rows) *
             ng_row_dot(f + behind + a * v->cols, g + behind + c * v->cols, v->cols);
    }
  }
  return sum;
}

static double dot_low_rank_vector(const ng_low_rank_shape *v, const float *f, const float *x) {
  double sum = 0.0;
  for (int64_t a = 0; a < v->rank; a++) {
    const float *q = f + v->rank * v->rows + a * v->cols;
    for (int64_t r = 0; r < v->rows; r++) {
      sum += (double)f[a * v->rows + r] * ng_row_dot(q, x + r * v->cols, v->cols);
    }
  }
  return sum;
}

static void multiply_low_rank_rows(void *arg, int32_t i) {
  const ng_rows *G = arg;
  const ng_low_rank_shape *v = &G->factors[i];
  const float *own = find_factors(G, G->head, v), *x = G->x == NULL ? own : G->x + G->range[i].at;
  for (int64_t j = 0; j < G->used; j++) {
    const float *f = find_factors(G, G->place[j], v);
    G->partial_sums[i * G->used + j] = v->rank == 0   ? ng_row_dot(f, x, v->rows * v->cols)
                                       : G->x == NULL ? dot_two_low_rank(v, f, own)
                                                      : dot_low_rank_vector(v, f, x);
  }
}

/* acc += the sum of c row over all rows in use, for elements [from, from + n) of one row of a parameter. */
static void add_low_rank_rows(const ng_rows *G, const ng_low_rank_shape *v, const double *c,
                              int64_t from, int64_t n, double *acc) {
  for (int64_t j = 0; j < G->used; j++) {
    const float *f = find_factors(G, G->place[j], v), *Q = f + v->rank * v->rows + from % v->cols;
    if (v->rank == 0) ng_row_add(acc, f + from, n, c[G->place[j]]);
    for (int64_t a = 0; a < v->rank; a++) {
      ng_row_add(acc, Q + a * v->cols, n, c[G->place[j]] * (double)f[a * v->rows + from / v->cols]);
    }
  }
}

/* ---- the entries -----------------------------------------------------------------------------*/

/* combine_rows for chunk i, line by line; a line of low-rank rows is within one row of the parameter. */
static void combine_chunk(void *arg, int32_t i) {
  const ng_rows *G = arg;
  const ng_flat_chunk c = ng_find_chunk(G->range, G->ranges, i);
  const ng_low_rank_shape *v = G->kind == NG_ROWS_LOW_RANK ? &G->factors[c.range - G->range] : NULL;
  const double *z = G->c + c.range->part * G->places, by = G->by[c.range->part];
  double acc[NG_FLAT_LINE];
  for (int64_t at = 0, n; at < c.n; at += n) {
    float *u = G->u + c.at + at;
    n = ng_min64(NG_FLAT_LINE, c.n - at);
    if (v != NULL) n = ng_min64(n, v->cols - (c.from + at) % v->cols);
    begin_sums(acc, u, n, by);
    if (v == NULL) {
      ng_add_whole_rows(G, z, c.at + at, n, acc);
    } else {
      add_low_rank_rows(G, v, z, c.from + at, n, acc);
    }
    ng_to_f32(u, acc, NG_F64, n);
  }
}

static void run_rows(const ng_queue *q, const ng_rows *G, bool combines) {
  sparse_job j = {G, q->threads, combines};
  if (G->kind == NG_ROWS_SPARSE) {
    ng_queue_run(q, j.pieces, run_sparse_piece, &j);
  } else if (combines) {
    ng_queue_run(q, ng_count_list_chunks(G->range, G->ranges), combine_chunk, (void *)(uintptr_t)G);
  } else if (G->kind == NG_ROWS_WHOLE) {
    ng_queue_run(q, ng_count_list_chunks(G->range, G->ranges), ng_multiply_whole_rows,
                 (void *)(uintptr_t)G);
  } else {
    ng_queue_run(q, (int32_t)G->ranges, multiply_low_rank_rows, (void *)(uintptr_t)G);
  }
}

void ng_cpu_multiply_rows(ng_queue *q, const ng_rows *G, int64_t n) {
  for (const ng_rows *end = G + n; G < end; G++) {
    run_rows(q, G, false);
    const bool whole = G->kind == NG_ROWS_WHOLE;
    const int64_t units = whole ? ng_count_list_chunks(G->range, G->ranges) : G->ranges;
    for (int64_t i = 0; i < units; i++) {
      const ng_flat_range *r = whole ? ng_find_chunk(G->range, G->ranges, i).range : &G->range[i];
      for (int64_t j = 0; j < G->used; j++) {
        G->k[r->part * G->places + G->place[j]] += G->partial_sums[i * G->used + j];
      }
    }
  }
}

void ng_cpu_combine_rows(ng_queue *q, const ng_rows *G, int64_t n) {
  for (const ng_rows *end = G + n; G < end; G++) {
    run_rows(q, G, true);
  }
}
