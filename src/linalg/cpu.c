/* cpu.c: linear algebra by BLAS and LAPACK, through their Fortran symbols.
 *
 * Products and solves use the pieces of packed.h.
 *
 * LAPACK computes factor and inverse in this format (spftrf, spftri). The same steps by potrf, trsm, syrk, trtri, trmm
 * and lauum take the same time within 3 %, and both are within 5 % of spotrf + spotri on full storage (n = 257 to
 * 4608).
 *
 * No header is common to all BLAS implementations, so this file declares the symbols. Fortran passes all arguments by
 * address and appends the length of each CHARACTER argument by value (size_t since gfortran 8). */
#include <string.h>

#include "core/core.h"
#include "linalg/bf16.h"
#include "linalg/packed.h"
#include "linalg/vector.h"

#if defined(NG_HAVE_BLAS)

typedef int32_t
    integer; /* the integer of LP64, the BLAS interface that every Linux distribution has */
typedef size_t length;

#if defined(NG_BLAS_PREFIX) /* OpenBLAS in a Python wheel: scipy_sgemm_ */
#define spftrf_ NG_BLAS_NAME(spftrf_)
#define spftri_ NG_BLAS_NAME(spftri_)
#define dpftrf_ NG_BLAS_NAME(dpftrf_)
#define dpftri_ NG_BLAS_NAME(dpftri_)
#define dpftrs_ NG_BLAS_NAME(dpftrs_)
#define ssyevd_ NG_BLAS_NAME(ssyevd_)
#define dsyevd_ NG_BLAS_NAME(dsyevd_)
#define sgeqrt_ NG_BLAS_NAME(sgeqrt_)
#define slarfb_ NG_BLAS_NAME(slarfb_)
#endif

/* Names: s, d: f32, f64; pf: rectangular full packed. Arguments are as in the manual of LAPACK. */
typedef void packed32(const char *transr, const char *uplo, const integer *n, float *a,
                      integer *info, length, length);
typedef void packed64(const char *transr, const char *uplo, const integer *n, double *a,
                      integer *info, length, length);
extern packed32 spftrf_, spftri_;
extern packed64 dpftrf_, dpftri_;
extern void dpftrs_(const char *transr, const char *uplo, const integer *n, const integer *nrhs,
                    const double *a, double *b, const integer *ldb, integer *info, length, length);
extern void ssyevd_(const char *jobz, const char *uplo, const integer *n, float *a,
                    const integer *lda, float *w, float *work, const integer *lwork, integer *iwork,
                    const integer *liwork, integer *info, length, length);
extern void dsyevd_(const char *jobz, const char *uplo, const integer *n, double *a,
                    const integer *lda, double *w, double *work, const integer *lwork,
                    integer *iwork, const integer *liwork, integer *info, length, length);

extern void sgeqrt_(const integer *m, const integer *n, const integer *nb, float *a,
                    const integer *lda, float *t, const integer *ldt, float *work, integer *info);
extern void slarfb_(const char *side, const char *trans, const char *direct, const char *storev,
                    const integer *m, const integer *n, const integer *k, const float *v,
                    const integer *ldv, const float *t, const integer *ldt, float *c,
                    const integer *ldc, float *work, const integer *ldwork, length, length, length,
                    length);

/* ---- products --------------------------------------------------------------------------------*/

/* C' = alpha op(B)' op(A)' + beta C'. */
static void gemm(ng_queue *q, ng_dtype t, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                 double alpha, const void *A, int64_t lda, const void *B, int64_t ldb, double beta,
                 void *C, int64_t ldc) {
  ng_blas_gemm(q, t, tb ? 'T' : 'N', ta ? 'T' : 'N', n, m, k, alpha, B, ldb, A, lda, beta, C, ldc);
}

static void add_gram(ng_queue *q, ng_sym S, int64_t r0, int64_t m, const float *X, int64_t rows,
                     int64_t ldx, float alpha) {
  ng_blas_add_gram(q, S, r0, m, X, rows, ldx, alpha);
}
static void mul_right(ng_queue *q, ng_sym S, int64_t m, const float *B, int64_t ldb, float *C,
                      int64_t ldc) {
  ng_blas_multiply(q, true, S, m, B, ldb, C, ldc);
}
static void mul_left(ng_queue *q, ng_sym S, int64_t m, const float *B, int64_t ldb, float *C,
                     int64_t ldc) {
  ng_blas_multiply(q, false, S, m, B, ldb, C, ldc);
}

enum { TILE = 16 }; /* a cache line of floats */

typedef struct mirror {
  float *C;
  int64_t n;
  int32_t pieces;
} mirror;

/* Copy a part of the lower triangle to the upper one. A tile is turned on the stack, because lines at a distance of n floats may not
 * fit together in the first-level cache. */
static void mirror_piece(void *arg, int32_t piece) {
  const mirror *p = arg;
  const int64_t n = p->n;
  float turned[TILE][TILE];
  for (int64_t i = piece * TILE; i < n; i += p->pieces * TILE) {
    const int64_t rows = ng_min64(TILE, n - i);
    for (int64_t j = 0; j < i; j += TILE) {
      for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < TILE; c++)
          turned[c][r] = p->C[(i + r) * n + j + c];
      }
      for (int64_t c = 0; c < TILE; c++)
        memcpy(p->C + (j + c) * n + i, turned[c], (size_t)rows * sizeof turned[c][0]);
    }
    for (int64_t r = i; r < i + rows; r++) {
      for (int64_t c = i; c < r; c++)
        p->C[c * n + r] = p->C[r * n + c];
    }
  }
}

/* C <- alpha W W' + beta C by SYRK in the upper triangle of BLAS, the lower one of C, which is then mirrored. */
static void square(ng_queue *q, bool transposed, int64_t n, int64_t k, double alpha, const float *W,
                   double beta, float *C) {
  ng_blas_syrk(q, 'U', transposed ? 'N' : 'T', n, k, alpha, W, transposed ? n : k, beta, C, n);
  mirror m = {C, n, ng_queue_pieces(q, n * n)};
  ng_queue_run(q, m.pieces, mirror_piece, &m);
}

static void newton_schulz(ng_queue *q, const ng_newton_schulz *list, int64_t n, float *scratch) {
  const ng_bf16_body body = ng_bf16_find_body();
  for (const ng_newton_schulz *x = list; x < list + n; x++) {
    if (!ng_bf16_newton_schulz(q, body, x, scratch))
      ng_host_newton_schulz(q, x, 1, scratch, square);
  }
}

/* ---- Cholesky --------------------------------------------------------------------------------*/

/* Matrices up to order SMALL are factored, inverted and solved in double, and each result is rounded once. A solve in f32
 * loses digits: with condition 300 and order 97 its error is 3e-5 of the largest entry, while rounding L costs 5e-6.
 * docs/algorithms.md has the cost in time. */
enum { SMALL = NG_SMALL_SOLVE, SMALL_COUNT = SMALL * (SMALL + 1) / 2 };

/* Factor or invert packed storage in place; small matrices in double. */
static void call_packed(int64_t n, void *S, ng_dtype t, packed64 *in_double, packed32 *in_float,
                        int *info) {
  const integer n_ = (integer)n;
  integer found = 0;
  if (t == NG_F64) {
    in_double("N", "L", &n_, S, &found, 1, 1);
  } else if (n <= SMALL) {
    double wide[SMALL_COUNT];
    ng_from_f32(wide, NG_F64, S, ng_sym_count(n));
    in_double("N", "L", &n_, wide, &found, 1, 1);
    ng_to_f32(S, wide, NG_F64, ng_sym_count(n));
  } else {
    in_float("N", "L", &n_, S, &found, 1, 1);
  }
  *info = found;
}

/* LAPACK's info is -i if argument i is invalid (a bug of this library), i if the leading minor of order i is not
 * positive, otherwise 0. It is also 0 for NaN, so the caller must check the result. */
static void factor(ng_queue *q, int64_t n, void *S, ng_dtype t, int *info) {
  (void)q;
  call_packed(n, S, t, dpftrf_, spftrf_, info);
}

/* Replace L by (L L')^-1. *info is i if L has a 0 at diagonal entry i (from 1). */
static void invert(ng_queue *q, int64_t n, void *L, ng_dtype t, int *info) {
  (void)q;
  call_packed(n, L, t, dpftri_, spftri_, info);
}

/* Solve L L' x = b for m right-hand sides; element i of side j is B[i within + j between]. */
static void solve_small(ng_sym L, int64_t m, float *B, int64_t within, int64_t between) {
  enum { SIDES = 32 };
  double wide[SMALL_COUNT], x[SIDES * SMALL];
  const integer n = (integer)L.n;
  ng_from_f32(wide, NG_F64, L.a, ng_sym_count(L.n));
  for (int64_t from = 0; from < m; from += SIDES) {
    float *b = B + from * between;
    const integer sides = (integer)(m - from < SIDES ? m - from : SIDES);
    integer found = 0; /* argument errors only */
    for (int64_t j = 0; j < sides; j++) {
      for (int64_t i = 0; i < L.n; i++)
        x[j * L.n + i] = (double)b[i * within + j * between];
    }
    dpftrs_("N", "L", &n, &sides, wide, x, &n, &found, 1, 1);
    for (int64_t j = 0; j < sides; j++) {
      for (int64_t i = 0; i < L.n; i++)
        b[i * within + j * between] = (float)x[j * L.n + i];
    }
  }
}

static void solve_right(ng_queue *q, int64_t n, const void *L, ng_dtype t, int64_t m, void *B,
                        int64_t ldb) {
  const integer n_ = (integer)n, m_ = (integer)m, ldb_ = (integer)ldb;
  integer found = 0; /* argument errors only */
  if (t == NG_F64) {
    dpftrs_("N", "L", &n_, &m_, L, B, &ldb_, &found, 1, 1);
  } else if (n <= SMALL) {
    solve_small((ng_sym){(float *)(uintptr_t)L, n}, m, B, 1, ldb);
  } else {
    ng_blas_solve(q, true, (ng_sym){(float *)(uintptr_t)L, n}, m, B, ldb);
  }
}

static void solve_left(ng_queue *q, ng_sym L, int64_t m, float *B, int64_t ldb) {
  if (L.n <= SMALL) {
    solve_small(L, m, B, ldb, 1);
  } else {
    ng_blas_solve(q, false, L, m, B, ldb);
  }
}

/* ---- eigen -----------------------------------------------------------------------------------
 * Divide and conquer (ssyevd). The work sizes are the formulas of its manual page. A query with LWORK = -1 returns the
 * size as a float, which may be rounded down from about n = 2900 on (2 n^2 > 2^24). A caller that uses this size stops
 * with "parameter number 8 had an illegal value". */
static int64_t count_work_numbers(int64_t n) { return n > 1 ? 1 + 6 * n + 2 * n * n : 1; }
static int64_t count_work_integers(int64_t n) { return n > 1 ? 3 + 5 * n : 1; }
static int64_t round_to_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* `work` starts with LAPACK's array of numbers, padded to a cache line. LAPACK's array of integers follows. */
static int64_t eigen_work(const ng_queue *q, int64_t n, ng_dtype t) {
  (void)q;
  return round_to_lines(count_work_numbers(n) * ng_dtype_size(t)) +
         count_work_integers(n) * (int64_t)sizeof(integer);
}

/* Column i of LAPACK's result, the eigenvector of w[i], is row i of V. */
static void eigen(ng_queue *q, int64_t n, void *V, ng_dtype t, void *w, void *work, int *info) {
  const integer n_ = (integer)n, numbers = (integer)count_work_numbers(n);
  const integer integers = (integer)count_work_integers(n);
  void *behind = (char *)work + round_to_lines(count_work_numbers(n) * ng_dtype_size(t));
  integer found = 0;
  (void)q;
  if (t == NG_F64) {
    dsyevd_("V", "L", &n_, V, &n_, w, work, &numbers, behind, &integers, &found, 1, 1);
  } else {
    ssyevd_("V", "L", &n_, V, &n_, w, work, &numbers, behind, &integers, &found, 1, 1);
  }
  *info = found;
}

/* ---- QR --------------------------------------------------------------------------------------*/

enum { QR_BLOCK = 128 }; /* number of columns of a block of reflections */

static int64_t qr_work(const ng_queue *q, int64_t m, int64_t n) {
  (void)q;
  return (m + 2 * QR_BLOCK) * n * (int64_t)sizeof(float);
}

/* The rows of X are the columns of LAPACK's matrix. As sgeqrf and sorgqr, whose blocks have 32 columns. */
static void qr(ng_queue *q, int64_t m, int64_t n, float *X, int64_t ldx, void *work, int *info) {
  (void)q;
  const int64_t block = n < QR_BLOCK ? n : QR_BLOCK;
  const integer m_ = (integer)m, n_ = (integer)n, ld = (integer)ldx, nb = (integer)block;
  float *V = work, *T = V + m * n, *room = T + QR_BLOCK * n;
  integer found = 0;
  sgeqrt_(&m_, &n_, &nb, X, &ld, T, &nb, room, &found);
  *info = found;
  if (found != 0) return;
  for (int64_t j = 0; j < n; j++) {
    memcpy(V + j * m, X + j * ldx, (size_t)m * sizeof *X);
    memset(X + j * ldx, 0, (size_t)m * sizeof *X);
    X[j * ldx + j] = 1.0f;
  }
  for (int64_t i = (n - 1) / block * block; i >= 0; i -= block) { /* Q <- (I - V T V') Q */
    const integer rows = (integer)(m - i), cols = (integer)(n - i), k = cols < nb ? cols : nb;
    slarfb_("L", "N", "F", "C", &rows, &cols, &k, V + i * m + i, &m_, T + i * block, &nb,
            X + i * ldx + i, &ld, room, &cols, 1, 1, 1, 1);
  }
}

const ng_linalg_ops ng_linalg_cpu = {
    NG_OWN_ENTRIES,
    .newton_schulz = newton_schulz,
    .solve = ng_small_solve,
    NG_HOST_ENTRIES,
};

#endif
