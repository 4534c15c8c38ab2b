/* linalg.h: symmetric matrices and the dozen products the families need.
 *
 * ng_sym owns symmetric storage: LAPACK's rectangular full packed format, TRANSR = 'N', UPLO = 'L'
 * in column-major words, n(n+1)/2 floats.  With h = (n+1)/2 columns (rounded up) and leading
 * dimension ld = n + (n even), element (i, j), i >= j, is
 *     j <  h:  a[(i + (n even)) + j * ld]
 *     j >= h:  a[(j - h) + (i - h + (n odd)) * ld]
 * so any block that does not cross column h is a strided rectangle, plain (j < h) or transposed.
 * Nobody outside linalg/ indexes one.
 *
 * Every other matrix is row-major with a leading dimension.  Sizes were checked by the caller to
 * fit 32 bits (ng_linalg_fits).
 */
#ifndef NG_LINALG_H
#define NG_LINALG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ng_sym {
  float *a;
  int64_t n;
} ng_sym;

static inline int64_t ng_sym_count(int64_t n) { return n * (n + 1) / 2; }
/* Position of (i, j) = (j, i). */
static inline int64_t ng_sym_at(int64_t n, int64_t i, int64_t j) {
  const int64_t h = (n + 1) / 2, odd = n & 1, ld = n + 1 - odd;
  const int64_t row = i > j ? i : j, col = i > j ? j : i;
  return col < h ? 1 - odd + row + col * ld : col - h + (row - h + odd) * ld;
}

/* A piece of a block of a symmetric matrix: element (r, c) of the piece, which is element
 * (row + r, col + c) of the matrix, sits at a[r * rs + c * cs] (one of rs, cs is 1).  `diagonal`:
 * rows == cols, row == col, and only r >= c exists. */
typedef struct ng_piece {
  float *a;
  int64_t row, col, rows, cols, rs, cs;
  bool diagonal;
} ng_piece;
/* Cut the lower part of block [r0, r0+m) x [c0, c0+k) (r0 >= c0 + k, or r0 == c0 and m == k) into
 * at most 3 pieces; returns how many. */
int32_t ng_sym_pieces(ng_sym s, int64_t r0, int64_t m, int64_t c0, int64_t k, ng_piece out[3]);

/* Operations of one implementation.  The front desk has checked; these assume valid input. */
typedef struct ng_linalg_ops {
  int32_t api_version; /* 1 */
  const char *name;
  /* ---- required ---- */
  /* C [m,n] = alpha op(A) op(B) + beta C;  op(A) is [m,k], op(B) [k,n].  beta == 0 never reads C.
   */
  void (*gemm)(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *A,
               int64_t lda, const float *B, int64_t ldb, float beta, float *C, int64_t ldc);
  /* S[r0:r0+m, r0:r0+m] += alpha X'X, X [rows, m].  One triangle of work. */
  void (*add_gram)(ng_sym S, int64_t r0, int64_t m, const float *X, int64_t rows, int64_t ldx,
                   float alpha);
  /* S[r0:r0+m, c0:c0+k] += alpha X'Y, X [rows, m], Y [rows, k];  r0 >= c0 + k. */
  void (*add_product)(ng_sym S, int64_t r0, int64_t m, int64_t c0, int64_t k, const float *X,
                      int64_t ldx, const float *Y, int64_t ldy, int64_t rows, float alpha);
  /* Cholesky S = L L' in place, then its inverse from L in place.  0, or LAPACK's info. */
  int (*factor)(ng_sym S);
  int (*invert)(ng_sym L);
  /* B [m,n] <- B (L L')^-1   and   B [n,m] <- (L L')^-1 B, L as factor left it. */
  void (*solve_right)(ng_sym L, int64_t m, float *B, int64_t ldb);
  void (*solve_left)(ng_sym L, int64_t m, float *B, int64_t ldb);
  /* C [m,n] = B S, B [m,n]   and   C [n,m] = S B, B [n,m].  C does not overlap B. */
  void (*mul_right)(ng_sym S, int64_t m, const float *B, int64_t ldb, float *C, int64_t ldc);
  void (*mul_left)(ng_sym S, int64_t m, const float *B, int64_t ldb, float *C, int64_t ldc);
  /* Eigen: V [n,n] in: full symmetric; out: row i is the eigenvector of w[i], ascending.  `work`
   * has eigen_work(n) bytes, 64-aligned.  0, or info. */
  int (*eigen)(int64_t n, float *V, float *w, void *work);
  int64_t (*eigen_work)(int64_t n);
  /* The same in double, for the ladder: `a` in ng_sym order. */
  int (*factor64)(int64_t n, double *a);
  int (*invert64)(int64_t n, double *a);
  int (*eigen64)(int64_t n, double *V, double *w, void *work);
  int64_t (*eigen64_work)(int64_t n);
} ng_linalg_ops;

extern const ng_linalg_ops ng_linalg_ref; /* naive loops, double accumulation: the oracle */
#if defined(NG_HAVE_BLAS)
extern const ng_linalg_ops ng_linalg_cpu; /* BLAS and LAPACK by their Fortran symbols */
#endif

/* By name; NULL if unknown or not built in.  NULL name: the best there is. */
const ng_linalg_ops *ng_linalg_find(const char *name);
bool ng_linalg_fits(int64_t n); /* 32-bit BLAS and LAPACK (work sizes included) can take it */

/* What BLAS is loaded: name, version text, kernel name, threads; "" / 0 where it does not say. */
void ng_blas_describe(char *name, size_t name_size, char *kernel, size_t kernel_size,
                      int32_t *threads);
/* "" or a hint ("OPENBLAS_CORETYPE=SkylakeX would use AVX-512 kernels on this processor"). */
void ng_blas_hint(char *hint, size_t size);

/* ---- sym.c: everything elementwise, the same for all implementations -------------------------*/
void ng_sym_zero(ng_sym S);
void ng_sym_identity(ng_sym S);
void ng_sym_shift(ng_sym S, double d); /* S += d I                                 */
double ng_sym_trace(ng_sym S);         /* in double                                */
bool ng_sym_finite(ng_sym S);
double ng_sym_max(ng_sym S); /* largest |entry|                          */
float ng_sym_get(ng_sym S, int64_t i, int64_t j);
void ng_sym_set(ng_sym S, int64_t i, int64_t j, float v);
void ng_sym_unpack(ng_sym S, float *full, int64_t ld);     /* both triangles     */
void ng_sym_pack(ng_sym S, const float *full, int64_t ld); /* from the lower triangle */
void ng_sym_unpack64(int64_t n, const double *a, double *full, int64_t ld);
void ng_sym_column(ng_sym S, int64_t j, float *out); /* S e_j                                    */
void ng_sym_vector(ng_sym S, const double *x, double *y); /* y = S x, in double */
/* S[r0:r0+m, c0:c0+k] += alpha M, M [m,k] row-major; r0 >= c0+k, or r0 == c0 and m == k (then the
 * lower triangle of M). */
void ng_sym_add_dense(ng_sym S, int64_t r0, int64_t m, int64_t c0, int64_t k, const float *M,
                      int64_t ld, float alpha);
/* S[r, c0:c0+k] += alpha v, r >= c0+k-1: a row, as the bias coordinate is. */
void ng_sym_add_row(ng_sym S, int64_t r, int64_t c0, int64_t k, const float *v, float alpha);

#endif
