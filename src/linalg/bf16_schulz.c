/* bf16_schulz.c: Newton-Schulz with rounding, by the products of bf16.h.
 *
 * W [r, R], r <= R, is X or X', padded with 0 to blocks. W, A and P stay in bf16 between products; the function that writes a block
 * also scales and rounds it. Blocks (i, j):
 *
 *     A = W W'           rows of W, and pairs of W', which each piece makes of some columns at a time
 *     P = b A + c A A    rows and pairs of A
 *     W <- a W + P W     rows of P, and pairs of W, which each piece makes of the columns that it writes next
 *
 * A is symmetric, and P too unless c A is rounded: only blocks i >= j are computed. Each piece of the first product
 * reads W once; the last product reads and writes W once. A second layout of W in memory would cost more than the products. Every
 * entry is one sum in the order of its index, so bits do not depend on the threads. */
#include <math.h>

#include "core/core.h"
#include "linalg/bf16.h"

#if defined(NG_BF16_BODIES)

enum { SIDE = NG_BF16_SIDE, BYTES = NG_BF16_BYTES, SUMS = NG_BF16_SUMS };

typedef struct iteration {
  const ng_newton_schulz *x;
  ng_bf16_body body;
  bool tall;                 /* X = W' */
  int64_t n, m;              /* W has n x m blocks */
  char *W, *A, *A_pairs, *P; /* rows of W, A and P; pairs of A */
  char *cA;                  /* rows of c A, with NG_NS_EACH */
  float *C;                  /* sums of W W', block (i, j) at i (i + 1) / 2 + j */
  char *local;               /* n (n + m - 1) blocks of the pieces */
  double *
      squares; /* sum of squares of each row of X; in the memory of `local`, which is unused then */
  float norm;
  float a, b, c; /* the coefficients of this iteration */
  bool is_last;
} iteration;

static char *block_at(char *panels, int64_t length, int64_t panel, int64_t k) {
  return panels + (panel * length + k) * BYTES;
}

/* ---- products --------------------------------------------------------------------------------*/

/* Write the block (i, j) of a product from its sums c. */
typedef void write_block(const iteration *w, int64_t i, int64_t j, const float *c);

/* A product of rows x cols blocks, or of the blocks j <= i if `lower`. k: blocks of a panel. Operands of multiply_piece: `right`
 * is NULL if each piece makes pairs of W. square_piece reads W only. */
typedef struct product {
  iteration *w;
  char *left, *right;
  int64_t rows, cols, k;
  bool lower;
  write_block *write;
  int32_t pieces;
  int64_t room; /* blocks of `local` of a piece, for each of n panels */
} product;

/* CHUNK blocks of a left panel, 24 KB, are read from the first-level cache, and GROUP x CHUNK blocks of both sides, 1.2 MB with
 * their sums, from the second one. WIDE sums are on the stack: 16 KB. */
enum { CHUNK = 8, GROUP = 12, WIDE = 4 };

/* Set [*from, *to) to the rows of blocks of `piece` in a triangle, so that all pieces have about equal numbers of blocks. */
static void find_rows(const product *p, int32_t piece, int64_t *from, int64_t *to) {
  *from = (int64_t)round((double)p->rows * sqrt((double)piece / p->pieces));
  *to = (int64_t)round((double)p->rows * sqrt((double)(piece + 1) / p->pieces));
}

static char *local_of(const product *p, int32_t piece) {
  return p->w->local + p->w->n * p->room * piece * BYTES;
}

/* Compute the rows of blocks of one piece of the lower triangle of W W'. */
static void square_piece(void *arg, int32_t piece) {
  const product *p = arg;
  const iteration *w = p->w;
  char *const local = local_of(p, piece);
  int64_t from, to;
  find_rows(p, piece, &from, &to);
  ng_bf16_begin(w->body);
  for (int64_t k = 0, chunk; k < w->m; k += chunk) {
    chunk = ng_min64(ng_min64(p->room, CHUNK), w->m - k);
    for (int64_t j = 0; j < to; j++) {
      for (int64_t l = 0; l < chunk; l++)
        ng_bf16_turn(block_at(w->W, w->m, j, k + l), block_at(local, chunk, j, l));
    }
    for (int64_t i0 = from; i0 < to; i0 += GROUP) {
      for (int64_t j0 = 0; j0 < ng_min64(to, i0 + GROUP); j0 += GROUP) {
        for (int64_t i = i0; i < ng_min64(to, i0 + GROUP); i++) {
          for (int64_t j = j0; j < ng_min64(i + 1, j0 + GROUP); j++) {
            float *c = w->C + (i * (i + 1) / 2 + j) * SUMS;
            ng_bf16_multiply(w->body, block_at(w->W, w->m, i, k), block_at(local, chunk, j, 0),
                             chunk, k > 0, c);
            if (k + chunk == w->m) p->write(w, i, j, c);
          }
        }
      }
    }
  }
  ng_bf16_end(w->body);
}

/* Write the blocks of row i in the columns [j, to), at most WIDE. */
static void multiply_row(const product *p, int64_t i, int64_t j, int64_t to, char *right) {
  _Alignas(64) float sums[WIDE * SUMS];
  for (int64_t k = 0; k < p->k; k += CHUNK) {
    const int64_t chunk = ng_min64(CHUNK, p->k - k);
    for (int64_t l = 0; l < to - j; l++)
      ng_bf16_multiply(p->w->body, block_at(p->left, p->k, i, k), block_at(right, p->k, l, k),
                       chunk, k > 0, sums + l * SUMS);
  }
  for (int64_t l = 0; l < to - j; l++)
    p->write(p->w, i, j + l, sums + l * SUMS);
}

/* Some columns of a product, or some rows of a triangle. */
static void multiply_piece(void *arg, int32_t piece) {
  const product *p = arg;
  const iteration *w = p->w;
  char *const local = local_of(p, piece);
  int64_t i0 = 0, i1 = p->rows;
  int64_t j0 = p->cols * piece / p->pieces, j1 = p->cols * (piece + 1) / p->pieces;
  if (p->lower) {
    find_rows(p, piece, &i0, &i1);
    j0 = 0;
    j1 = i1;
  }
  ng_bf16_begin(w->body);
  for (int64_t j = j0, end; j < j1; j = end) {
    end = ng_min64(j1, j + WIDE);
    if (p->right == NULL) {
      end = ng_min64(end, j + p->room);
      for (int64_t k = 0; k < w->n; k++) {
        for (int64_t l = j; l < end; l++)
          ng_bf16_interleave(block_at(w->W, w->m, k, l), block_at(local, w->n, l - j, k));
      }
    }
    char *const right = p->right == NULL ? local : block_at(p->right, p->k, j, 0);
    for (int64_t i = p->lower ? ng_max64(i0, j) : i0; i < i1; i++)
      multiply_row(p, i, j, p->lower ? ng_min64(end, i + 1) : end, right);
  }
  ng_bf16_end(w->body);
}

/* Multiply-adds of a piece, at least: with AMX about 15 us. */
static const double PIECE = 0x1p23;

static void multiply(ng_queue *q, product p, void (*task)(void *arg, int32_t i)) {
  const iteration *w = p.w;
  const double work = (double)p.rows * (double)p.cols * (double)p.k * SUMS * SIDE;
  const double most = fmin(work / (p.lower ? 2.0 * PIECE : PIECE), q->threads);
  const int64_t blocks = w->n + w->m - 1; /* of `local`, for each of n panels */
  const int64_t parts = ng_min64(p.lower ? p.rows : p.cols, blocks);
  p.pieces = (int32_t)fmax(1.0, fmin(most, (double)parts));
  p.room = blocks / p.pieces;
  ng_queue_run(q, p.pieces, task, &p);
}

/* ---- writing blocks --------------------------------------------------------------------------*/

/* Copy the block (i, j), transposed, to (j, i), in the layout `rows`; with `pairs` (may be NULL) write both blocks in the layout `pairs`, too. */
static void mirror(const iteration *w, char *rows, char *pairs, int64_t i, int64_t j) {
  _Alignas(64) char temporary[BYTES];
  char *both = pairs != NULL ? block_at(pairs, w->n, j, i) : temporary;
  ng_bf16_interleave(block_at(rows, w->n, i, j), both);
  if (i != j) ng_bf16_turn(both, block_at(rows, w->n, j, i));
  if (i != j && pairs != NULL)
    ng_bf16_turn(block_at(rows, w->n, i, j), block_at(pairs, w->n, i, j));
}

static void write_A(const iteration *w, int64_t i, int64_t j, const float *c) {
  char *rows = block_at(w->A, w->n, i, j);
  ng_bf16_round(c, 1.0f, NULL, 0.0f, false, rows);
  if (w->c == 0.0f) { /* P = b A */
    ng_bf16_scale(rows, w->b, block_at(w->P, w->n, i, j));
    mirror(w, w->P, NULL, i, j);
    return;
  }
  mirror(w, w->A, w->A_pairs, i, j);
  if (w->x->rounding != NG_NS_EACH) return;
  ng_bf16_scale(rows, w->c, block_at(w->cA, w->n, i, j));
  mirror(w, w->cA, NULL, i, j);
}

static void write_P(const iteration *w, int64_t i, int64_t j, const float *c) {
  const bool each = w->x->rounding == NG_NS_EACH;
  ng_bf16_round(c, each ? 1.0f : w->c, block_at(w->A, w->n, i, j), w->b, each,
                block_at(w->P, w->n, i, j));
  if (!each) mirror(w, w->P, NULL, i, j);
}

/* The part of X that the block (i, j) of W is, or whose transpose the block is. */
typedef struct part {
  float *x;
  int64_t ld, height, width;
} part;

static part find_part(const iteration *w, int64_t i, int64_t j) {
  const int64_t r = (w->tall ? j : i) * SIDE, c = (w->tall ? i : j) * SIDE;
  const ng_newton_schulz *x = w->x;
  return (part){x->X + r * x->cols + c, x->cols, ng_min64(SIDE, x->rows - r),
                ng_min64(SIDE, x->cols - c)};
}

static void write_X(const iteration *w, int64_t i, int64_t j, const char *rows) {
  _Alignas(64) char pairs[BYTES], turned[BYTES];
  const part to = find_part(w, i, j);
  if (w->tall) {
    ng_bf16_interleave(rows, pairs);
    ng_bf16_turn(pairs, turned);
    rows = turned;
  }
  ng_bf16_store(rows, (float)w->x->scale, w->x->rounding == NG_NS_EACH, to.x, to.ld, to.height,
                to.width);
}

static void write_W(const iteration *w, int64_t i, int64_t j, const float *c) {
  char *rows = block_at(w->W, w->m, i, j);
  ng_bf16_round(c, 1.0f, rows, w->a, w->x->rounding == NG_NS_EACH, rows);
  if (w->is_last) write_X(w, i, j, rows);
}

/* ---- before the first product ----------------------------------------------------------------*/

typedef struct rows_job {
  iteration *w;
  int32_t pieces;
} rows_job;

static void square_rows(void *arg, int32_t i) {
  const rows_job *j = arg;
  const ng_newton_schulz *x = j->w->x;
  for (int64_t r = x->rows * i / j->pieces; r < x->rows * (i + 1) / j->pieces; r++)
    j->w->squares[r] = ng_bf16_sum_squares(x->X + r * x->cols, x->cols);
}

static float round_bf16(double x) { return ng_bf16_to_f32(ng_f32_to_bf16((float)x)); }

static float find_norm(const ng_queue *q, rows_job *j) {
  const ng_newton_schulz *x = j->w->x;
  double sum = 0.0;
  j->pieces = ng_queue_pieces(q, x->rows * x->cols);
  ng_queue_run(q, j->pieces, square_rows, j);
  for (int64_t r = 0; r < x->rows; r++)
    sum += j->w->squares[r];
  const double norm = (double)round_bf16(sqrt(sum));
  return round_bf16(x->bounds_norm ? fmax(norm, x->epsilon) : norm + x->epsilon);
}

/* Columns of blocks, as in the product that writes W. */
static void load_columns(void *arg, int32_t piece) {
  const rows_job *job = arg;
  iteration *w = job->w;
  _Alignas(64) char read[BYTES], pairs[BYTES];
  for (int64_t j = w->m * piece / job->pieces; j < w->m * (piece + 1) / job->pieces; j++) {
    for (int64_t i = 0; i < w->n; i++) {
      const part from = find_part(w, i, j);
      char *rows = block_at(w->W, w->m, i, j);
      ng_bf16_load(from.x, from.ld, from.height, from.width, w->norm, w->tall ? read : rows);
      if (w->tall) {
        ng_bf16_interleave(read, pairs);
        ng_bf16_turn(pairs, rows);
      }
    }
  }
}

/* ---- the iteration ---------------------------------------------------------------------------*/

static void iterate(ng_queue *q, iteration *w, int32_t step) {
  const double *by = w->x->coefficients[step];
  w->a = (float)by[0];
  w->b = (float)by[1];
  w->c = (float)by[2];
  w->is_last = step + 1 == w->x->steps;
  multiply(
      q, (product){.w = w, .rows = w->n, .cols = w->n, .k = w->m, .lower = true, .write = write_A},
      square_piece);
  const bool each = w->x->rounding == NG_NS_EACH;
  const product again = {.w = w,
                         .left = each ? w->cA : w->A,
                         .right = w->A_pairs,
                         .rows = w->n,
                         .cols = w->n,
                         .k = w->n,
                         .lower = !each,
                         .write = write_P};
  if (w->c != 0.0f) multiply(q, again, multiply_piece);
  multiply(q,
           (product){.w = w, .left = w->P, .rows = w->n, .cols = w->m, .k = w->n, .write = write_W},
           multiply_piece);
}

bool ng_bf16_newton_schulz(ng_queue *q, ng_bf16_body body, const ng_newton_schulz *x,
                           float *scratch) {
  const int64_t small = ng_min64(x->rows, x->cols), large = ng_max64(x->rows, x->cols);
  if (body == NG_BF16_NONE || x->rounding == NG_NS_EXACT || small < SIDE / 2) return false;
  iteration w = {.x = x, .body = body, .tall = x->rows > x->cols};
  w.n = (small + SIDE - 1) / SIDE;
  w.m = (large + SIDE - 1) / SIDE;
  const int64_t W = w.n * w.m * BYTES, A = w.n * w.n * BYTES;
  w.W = (char *)scratch;
  w.A = w.W + W;
  w.A_pairs = w.A + A;
  w.P = w.A_pairs + A;
  w.cA = w.P + A;
  w.C = (float *)(void *)(w.cA + A);
  w.local = (char *)(w.C + w.n * (w.n + 1) / 2 * SUMS);
  w.squares = (double *)(void *)w.local;
  rows_job job = {.w = &w};
  w.norm = find_norm(q, &job);
  job.pieces = ng_queue_pieces(q, x->rows * x->cols);
  ng_queue_run(q, job.pieces, load_columns, &job);
  for (int32_t i = 0; i < x->steps; i++)
    iterate(q, &w, i);
  return true;
}

#else

bool ng_bf16_newton_schulz(ng_queue *q, ng_bf16_body body, const ng_newton_schulz *x,
                           float *scratch) {
  (void)q, (void)body, (void)x, (void)scratch;
  return false;
}

#endif
