/* packed.h: products and solves with matrices in ng_sym order, by the BLAS of one implementation: blas.c, cuda/linalg.c.
 *
 * BLAS is column-major, so a row-major matrix is passed as its transpose: C = A B becomes C' = B' A'. A matrix in ng_sym order
 * consists of three pieces that BLAS accepts (example: sym.c):
 *
 *         [ T1  R' ]     T1 lower triangle, R rectangle, T2 lower triangle stored transposed, so an
 *     S = [ R   T2 ]     upper triangle; all three with the same leading dimension. */
#ifndef NG_PACKED_H
#define NG_PACKED_H

#include "linalg/linalg.h"

/* BLAS, column-major, `t`: f32 or f64 of all arrays; transa, uplo, side as in its manual. blas.c has only
 * gemm in f64. */
typedef struct ng_blas {
  /* C [m, n] <- alpha op(A) op(B) + beta C */
  void (*gemm)(ng_queue *q, ng_dtype t, char transa, char transb, int64_t m, int64_t n, int64_t k,
               double alpha, const void *A, int64_t lda, const void *B, int64_t ldb, double beta,
               void *C, int64_t ldc);
  /* C [n, n] <- C + alpha op(A) op(A)', op(A) [n, k], in one triangle of C */
  void (*syrk)(ng_queue *q, ng_dtype t, char uplo, char trans, int64_t n, int64_t k, double alpha,
               const void *A, int64_t lda, void *C, int64_t ldc);
  /* C [m, n] <- A B (side L) or B A (side R), A symmetric */
  void (*symm)(ng_queue *q, ng_dtype t, char side, char uplo, int64_t m, int64_t n, const void *A,
               int64_t lda, const void *B, int64_t ldb, void *C, int64_t ldc);
  /* B [m, n] <- alpha op(A)^-1 B (side L) or alpha B op(A)^-1 (side R), A triangular */
  void (*trsm)(ng_queue *q, ng_dtype t, char side, char uplo, char trans, int64_t m, int64_t n,
               double alpha, const void *A, int64_t lda, void *B, int64_t ldb);
} ng_blas;

/* The pieces t1 [h, h], r [g, h], t2 [g, g]; uplo is 'L' for t1, and 'U' for t2. */
typedef struct ng_sym_blocks {
  void *t1, *r, *t2;
  int64_t h, g, ld;
} ng_sym_blocks;
ng_sym_blocks ng_sym_blocks_of(int64_t n, void *S, ng_dtype t);

/* Implementations of the entries of ng_linalg_ops with the same names. */
void ng_packed_add_gram(const ng_blas *f, ng_queue *q, ng_sym S, int64_t r0, int64_t m,
                        const float *X, int64_t rows, int64_t ldx, float alpha);
/* Half of the rows of the result. 0: the first h rows, by T1; 1: the other rows, by T2. Neither half reads the result of the other. */
void ng_packed_mul_right(const ng_blas *f, ng_queue *q, ng_sym S, int32_t half, int64_t m,
                         const float *B, int64_t ldb, float *C, int64_t ldc);
void ng_packed_mul_left(const ng_blas *f, ng_queue *q, ng_sym S, int32_t half, int64_t m,
                        const float *B, int64_t ldb, float *C, int64_t ldc);
void ng_packed_solve_right(const ng_blas *f, ng_queue *q, int64_t n, const void *L, ng_dtype t,
                           int64_t m, void *B, int64_t ldb);
void ng_packed_solve_left(const ng_blas *f, ng_queue *q, int64_t n, const void *L, ng_dtype t,
                          int64_t m, void *B, int64_t ldb);

/* ---- blas.c: products on the host, in pieces on the threads of the queue ------------------------*/

#if defined(NG_HAVE_BLAS)
/* ng_blas.gemm and ng_blas.syrk; syrk: in f32, with beta */
void ng_blas_gemm(ng_queue *q, ng_dtype t, char ta, char tb, int64_t m, int64_t n, int64_t k,
                  double alpha, const void *A, int64_t lda, const void *B, int64_t ldb, double beta,
                  void *C, int64_t ldc);
void ng_blas_syrk(ng_queue *q, char uplo, char trans, int64_t n, int64_t k, double alpha,
                  const float *A, int64_t lda, double beta, float *C, int64_t ldc);
/* ng_linalg_ops.mul_right, mul_left, solve_right, solve_left and add_gram, in f32 */
void ng_blas_multiply(ng_queue *q, bool right, ng_sym S, int64_t m, const float *B, int64_t ldb,
                      float *C, int64_t ldc);
void ng_blas_solve(ng_queue *q, bool right, ng_sym L, int64_t m, float *B, int64_t ldb);
void ng_blas_add_gram(ng_queue *q, ng_sym S, int64_t r0, int64_t m, const float *X, int64_t rows,
                      int64_t ldx, float alpha);
#endif

#endif
