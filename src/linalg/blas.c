/* blas.c: the products of BLAS, on the threads of the queue.
 *
 * BLAS has threads of its own. For products of medium size they gain nothing: they sleep, or spin on the processors of the
 * other threads, when a call comes. So a product is cut into pieces, which the threads of the queue compute with a
 * BLAS of one thread. Only a large product with fewer pieces than BLAS has threads is left to BLAS. Only OpenBLAS changes
 * its number of threads cheaply, so another BLAS always uses its own.
 *
 * No header is common to all BLAS implementations, so this file declares the symbols. Fortran passes all arguments by
 * address and appends the length of each CHARACTER argument by value (size_t since gfortran 8). */
#include <math.h>
#include <string.h>

#include "linalg/packed.h"

#if defined(NG_HAVE_BLAS)

typedef int32_t
    integer; /* the integer of LP64, the BLAS interface that every Linux distribution has */
typedef size_t length;

#if defined(NG_BLAS_PREFIX) /* OpenBLAS in a Python wheel: scipy_sgemm_ */
#define sgemm_ NG_BLAS_NAME(sgemm_)
#define dgemm_ NG_BLAS_NAME(dgemm_)
#define ssyrk_ NG_BLAS_NAME(ssyrk_)
#define ssymm_ NG_BLAS_NAME(ssymm_)
#define strsm_ NG_BLAS_NAME(strsm_)
#endif

/* Names: s, d: f32, f64. Arguments are as in the manual of BLAS. */
extern void sgemm_(const char *transa, const char *transb, const integer *m, const integer *n,
                   const integer *k, const float *alpha, const float *a, const integer *lda,
                   const float *b, const integer *ldb, const float *beta, float *c,
                   const integer *ldc, length, length);
extern void dgemm_(const char *transa, const char *transb, const integer *m, const integer *n,
                   const integer *k, const double *alpha, const double *a, const integer *lda,
                   const double *b, const integer *ldb, const double *beta, double *c,
                   const integer *ldc, length, length);
extern void ssyrk_(const char *uplo, const char *trans, const integer *n, const integer *k,
                   const float *alpha, const float *a, const integer *lda, const float *beta,
                   float *c, const integer *ldc, length, length);
extern void ssymm_(const char *side, const char *uplo, const integer *m, const integer *n,
                   const float *alpha, const float *a, const integer *lda, const float *b,
                   const integer *ldb, const float *beta, float *c, const integer *ldc, length,
                   length);
extern void strsm_(const char *side, const char *uplo, const char *transa, const char *diag,
                   const integer *m, const integer *n, const float *alpha, const float *a,
                   const integer *lda, float *b, const integer *ldb, length, length, length,
                   length);

/* ---- BLAS calls with arguments by value, column-major, with 64-bit sizes; the queue is not used -----------------*/

static void gemm(ng_queue *q, ng_dtype t, char ta, char tb, int64_t m, int64_t n, int64_t k,
                 double alpha, const void *A, int64_t lda, const void *B, int64_t ldb, double beta,
                 void *C, int64_t ldc) {
  const integer m_ = (integer)m, n_ = (integer)n, k_ = (integer)k;
  const integer lda_ = (integer)lda, ldb_ = (integer)ldb, ldc_ = (integer)ldc;
  const float a = (float)alpha, b = (float)beta;
  (void)q;
  if (t == NG_F64) {
    dgemm_(&ta, &tb, &m_, &n_, &k_, &alpha, A, &lda_, B, &ldb_, &beta, C, &ldc_, 1, 1);
  } else {
    sgemm_(&ta, &tb, &m_, &n_, &k_, &a, A, &lda_, B, &ldb_, &b, C, &ldc_, 1, 1);
  }
}

/* The next three only in f32. */
static void syrk(ng_queue *q, ng_dtype t, char uplo, char trans, int64_t n, int64_t k, double alpha,
                 const void *A, int64_t lda, void *C, int64_t ldc) {
  const integer n_ = (integer)n, k_ = (integer)k, lda_ = (integer)lda, ldc_ = (integer)ldc;
  const float a = (float)alpha, one = 1.0f;
  (void)q, (void)t;
  ssyrk_(&uplo, &trans, &n_, &k_, &a, A, &lda_, &one, C, &ldc_, 1, 1);
}

static void symm(ng_queue *q, ng_dtype t, char side, char uplo, int64_t m, int64_t n, const void *A,
                 int64_t lda, const void *B, int64_t ldb, void *C, int64_t ldc) {
  const integer m_ = (integer)m, n_ = (integer)n, lda_ = (integer)lda, ldb_ = (integer)ldb;
  const integer ldc_ = (integer)ldc;
  const float one = 1.0f, zero = 0.0f;
  (void)q, (void)t;
  ssymm_(&side, &uplo, &m_, &n_, &one, A, &lda_, B, &ldb_, &zero, C, &ldc_, 1, 1);
}

static void trsm(ng_queue *q, ng_dtype t, char side, char uplo, char trans, int64_t m, int64_t n,
                 double alpha, const void *A, int64_t lda, void *B, int64_t ldb) {
  const integer m_ = (integer)m, n_ = (integer)n, lda_ = (integer)lda, ldb_ = (integer)ldb;
  const float a = (float)alpha;
  (void)q, (void)t;
  strsm_(&side, &uplo, &trans, "N", &m_, &n_, &a, A, &lda_, B, &ldb_, 1, 1, 1, 1);
}

static const ng_blas blas = {.gemm = gemm, .syrk = syrk, .symm = symm, .trsm = trsm};

/* ---- pieces ------------------------------------------------------------------------------------*/

enum {
  ONE_CALL = 1 << 18, /* multiply-adds up to which BLAS uses one thread in any case */
  PIECE = 1 << 21,    /* multiply-adds of a piece, at least: 10 to 20 us */
  NARROWEST = 32,     /* columns or rows of a piece, at least */
  TRIANGLE_UNIT = 16  /* pieces of a triangle begin at multiples */
};
static const double LARGE = 5e8; /* multiply-adds, about 2 ms: BLAS's threads need less to begin */

/* Return into how many pieces a product of `work` multiply-adds with `size` rows or columns is cut. 0: BLAS computes it with
 * its own threads, because the product is tiny, or large and BLAS has more threads than pieces. */
static int32_t count_pieces(const ng_queue *q, double work, int64_t size) {
  if (q->set_blas_threads == NULL || work < ONE_CALL) return 0;
  const double most = fmin(fmin(work / PIECE, (double)(size / NARROWEST)), q->threads);
  const int32_t pieces = most < 2.0 ? 1 : (int32_t)most;
  return work > LARGE && pieces < q->get_blas_threads() ? 0 : pieces;
}

/* Run n tasks that call BLAS, each on one thread; n is 0 or from count_pieces. */
static void run_tasks(const ng_queue *q, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
  if (n == 0) {
    task(arg, 0);
    return;
  }
  const int threads = q->get_blas_threads();
  if (threads > 1)
    q->set_blas_threads(1); /* 1: perhaps another thread of the process restores the number */
  ng_queue_run(n > 1 ? q : NULL, n, task, arg);
  if (threads > 1) q->set_blas_threads(threads);
}

/* Cut `size` into `pieces` at multiples of NARROWEST; 0 pieces are one. */
static void find_bounds(int64_t size, int32_t pieces, int32_t i, int64_t *from, int64_t *to) {
  const int64_t units = (size + NARROWEST - 1) / NARROWEST;
  if (pieces == 0) pieces = 1;
  *from = units * i / pieces * NARROWEST;
  *to = i + 1 == pieces ? size : units * (i + 1) / pieces * NARROWEST;
}

/* A product with all its arguments; a task computes some of its rows or columns. */
typedef struct product {
  ng_dtype t;
  char ta, tb; /* gemm; syrk: uplo, trans */
  int64_t m, n, k, lda, ldb, ldc;
  double alpha, beta;
  const void *A, *B;
  void *C;
  int32_t pieces;
} product;

static void *move(const void *x, ng_dtype t, int64_t n) {
  return (char *)(uintptr_t)x + n * ng_dtype_size(t);
}

static void multiply_piece(void *arg, int32_t i) {
  const product *p = arg;
  const bool columns = p->n >= p->m;
  int64_t from, to;
  find_bounds(columns ? p->n : p->m, p->pieces, i, &from, &to);
  if (columns) {
    gemm(NULL, p->t, p->ta, p->tb, p->m, to - from, p->k, p->alpha, p->A, p->lda,
         move(p->B, p->t, from * (p->tb == 'N' ? p->ldb : 1)), p->ldb, p->beta,
         move(p->C, p->t, from * p->ldc), p->ldc);
  } else {
    gemm(NULL, p->t, p->ta, p->tb, to - from, p->n, p->k, p->alpha,
         move(p->A, p->t, from * (p->ta == 'N' ? 1 : p->lda)), p->lda, p->B, p->ldb, p->beta,
         move(p->C, p->t, from), p->ldc);
  }
}

void ng_blas_gemm(ng_queue *q, ng_dtype t, char ta, char tb, int64_t m, int64_t n, int64_t k,
                  double alpha, const void *A, int64_t lda, const void *B, int64_t ldb, double beta,
                  void *C, int64_t ldc) {
  product p = {t, ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, A, B, C, 0};
  p.pieces = count_pieces(q, (double)m * (double)n * (double)k, m > n ? m : n);
  run_tasks(q, p.pieces, multiply_piece, &p);
}

/* Piece i is a trapezoid of the same area as the others: rows [from, to) of the lower or columns of the upper triangle. A SYRK
 * computes its triangle, a GEMM the rest. */
static void square_piece(void *arg, int32_t i) {
  const product *p = arg;
  const double n = (double)p->n, pieces = p->pieces > 0 ? p->pieces : 1;
  const double units = n / TRIANGLE_UNIT;
  const int64_t from = (int64_t)round(units * sqrt(i / pieces)) * TRIANGLE_UNIT;
  const int64_t next = (int64_t)round(units * sqrt((i + 1) / pieces)) * TRIANGLE_UNIT;
  const int64_t to = i + 1 >= p->pieces ? p->n : next;
  const bool lower = p->ta == 'L', plain = p->tb == 'N';
  const integer n_ = (integer)(to - from), k = (integer)p->k, lda = (integer)p->lda;
  const integer ldc = (integer)p->ldc;
  const float *A = p->A, *own = A + from * (plain ? 1 : p->lda);
  const float alpha = (float)p->alpha, beta = (float)p->beta;
  float *C = p->C;
  ssyrk_(&p->ta, &p->tb, &n_, &k, &alpha, own, &lda, &beta, C + from * (p->ldc + 1), &ldc, 1, 1);
  if (from == 0) return;
  gemm(NULL, NG_F32, plain ? 'N' : 'T', plain ? 'T' : 'N', lower ? to - from : from,
       lower ? from : to - from, p->k, p->alpha, lower ? own : A, p->lda, lower ? A : own, p->lda,
       p->beta, C + from * (lower ? 1 : p->ldc), p->ldc);
}

void ng_blas_syrk(ng_queue *q, char uplo, char trans, int64_t n, int64_t k, double alpha,
                  const float *A, int64_t lda, double beta, float *C, int64_t ldc) {
  product p = {.ta = uplo,
               .tb = trans,
               .n = n,
               .k = k,
               .lda = lda,
               .ldc = ldc,
               .alpha = alpha,
               .beta = beta,
               .A = A,
               .C = C};
  p.pieces = count_pieces(q, 0.5 * (double)n * (double)n * (double)k, n / 2);
  run_tasks(q, p.pieces, square_piece, &p);
}

/* ---- symmetric matrices and Cholesky factors ----------------------------------------------------*/

/* One of the four products of packed.h. Its m lines are cut into pieces; a product with a matrix has two halves. */
typedef struct packed_job {
  bool right, solves;
  ng_sym S;
  int64_t m, ldb, ldc;
  const float *B;
  float *C;
  int32_t pieces, halves;
} packed_job;

static void run_packed_task(void *arg, int32_t i) {
  const packed_job *j = arg;
  int64_t from, to;
  find_bounds(j->m, j->pieces, i / j->halves, &from, &to);
  const float *B = j->B + from * (j->right ? j->ldb : 1);
  float *C = j->C + from * (j->right ? j->ldc : 1);
  if (j->solves) {
    (j->right ? ng_packed_solve_right : ng_packed_solve_left)(&blas, NULL, j->S.n, j->S.a, NG_F32,
                                                              to - from, C, j->ldc);
    return;
  }
  for (int32_t half = i % j->halves; half < 2; half += j->halves) {
    (j->right ? ng_packed_mul_right : ng_packed_mul_left)(&blas, NULL, j->S, half, to - from, B,
                                                          j->ldb, C, j->ldc);
  }
}

static void run_packed(ng_queue *q, packed_job *j) {
  const double work = (double)j->S.n * (double)j->S.n * (double)j->m;
  const int32_t pieces = count_pieces(q, work, j->solves ? j->m : 2 * j->m);
  j->halves = j->solves || pieces < 2 ? 1 : 2;
  j->pieces = pieces / j->halves;
  run_tasks(q, j->pieces * j->halves, run_packed_task, j);
}

void ng_blas_multiply(ng_queue *q, bool right, ng_sym S, int64_t m, const float *B, int64_t ldb,
                      float *C, int64_t ldc) {
  packed_job j = {.right = right, .S = S, .m = m, .ldb = ldb, .ldc = ldc, .B = B, .C = C};
  run_packed(q, &j);
}

void ng_blas_solve(ng_queue *q, bool right, ng_sym L, int64_t m, float *B, int64_t ldb) {
  packed_job j = {
      .right = right, .solves = true, .S = L, .m = m, .ldb = ldb, .ldc = ldb, .B = B, .C = B};
  run_packed(q, &j);
}

/* ---- Gram matrices -------------------------------------------------------------------------------*/

enum { NARROW = 128, PARTS = 8, PART_ROWS = 256 };

typedef struct narrow_gram {
  const float *X;
  int64_t m, rows, ldx;
  int32_t parts;
  float alpha;
  float product[NARROW * NARROW]; /* [parts, m, m] */
} narrow_gram;

static void add_part(void *arg, int32_t i) {
  narrow_gram *g = arg;
  const int64_t from = g->rows * i / g->parts, to = g->rows * (i + 1) / g->parts;
  float *sum = g->product + i * g->m * g->m;
  memset(sum, 0, (size_t)(g->m * g->m) * sizeof *sum);
  syrk(NULL, NG_F32, 'U', 'N', g->m, to - from, (double)g->alpha, g->X + from * g->ldx, g->ldx, sum,
       g->m);
}

/* One SYRK of few columns takes 0.5 to 0.8 of the time of the three products that symmetric storage needs. The rows are cut
 * into parts, whose number does not depend on the number of threads, and the parts are added in order. */
static void add_narrow_gram(ng_queue *q, ng_sym S, int64_t r0, int64_t m, const float *X,
                            int64_t rows, int64_t ldx, float alpha) {
  narrow_gram g; /* without an initialiser, which would clear `product` */
  g.X = X;
  g.m = m;
  g.rows = rows;
  g.ldx = ldx;
  g.parts = 1;
  g.alpha = alpha;
  while (g.parts < PARTS && (g.parts + 1) * m * m <= NARROW * NARROW &&
         (g.parts + 1) * PART_ROWS <= rows)
    g.parts++;
  if (g.parts > 1 && q->set_blas_threads != NULL) {
    run_tasks(q, g.parts, add_part, &g);
  } else {
    ng_queue_run(NULL, g.parts, add_part, &g);
  }
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j <= i; j++) {
      float sum = 0.0F;
      for (int32_t k = 0; k < g.parts; k++)
        sum += g.product[(k * m + i) * m + j];
      S.a[ng_sym_at(S.n, r0 + i, r0 + j)] += sum;
    }
  }
}

static void syrk_in_pieces(ng_queue *q, ng_dtype t, char uplo, char trans, int64_t n, int64_t k,
                           double alpha, const void *A, int64_t lda, void *C, int64_t ldc) {
  (void)t;
  ng_blas_syrk(q, uplo, trans, n, k, alpha, A, lda, 1.0, C, ldc);
}

void ng_blas_add_gram(ng_queue *q, ng_sym S, int64_t r0, int64_t m, const float *X, int64_t rows,
                      int64_t ldx, float alpha) {
  static const ng_blas in_pieces = {.gemm = ng_blas_gemm, .syrk = syrk_in_pieces};
  if (m > NARROW) {
    ng_packed_add_gram(&in_pieces, q, S, r0, m, X, rows, ldx, alpha);
  } else {
    add_narrow_gram(q, S, r0, m, X, rows, ldx, alpha);
  }
}

#endif
