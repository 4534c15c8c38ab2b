/* blas.h: products, Cholesky factors, eigenbases and QR on a device, on the stream of its desk (desk.h).
 *
 * Two implementations: blas_cuda.c by cuBLAS and cuSOLVER, tests/standin_blas.c by loops. Arguments are as in BLAS and LAPACK:
 * column-major; `wide`: all arrays are f64, otherwise f32. Sums of f32 products are in f32 or wider, never in TF32 or bf16. Work
 * runs in the order of calls; a call returns NULL, or an error text that is valid until the next call. infos, work and arrays
 * are memory of the device; scalars are read before the return. */
#ifndef NG_BLAS_H
#define NG_BLAS_H

#include "desk.h"

typedef struct dv_blas dv_blas;
/* Open both libraries. If one is missing, set *out to NULL and return a text that names it. Close b, which may be NULL, before the
 * desk. */
const char *dv_blas_open(dv_desk *d, dv_blas **out);
void dv_blas_close(dv_blas *b);

const char *dv_gemm(dv_blas *b, bool wide, char transa, char transb, int64_t m, int64_t n,
                    int64_t k, double alpha, const void *A, int64_t lda, const void *B, int64_t ldb,
                    double beta, void *C, int64_t ldc);
/* C += alpha op(A) op(A)' in one triangle */
const char *dv_syrk(dv_blas *b, bool wide, char uplo, char trans, int64_t n, int64_t k,
                    double alpha, const void *A, int64_t lda, void *C, int64_t ldc);
/* C = A B, or B A with side R */
const char *dv_symm(dv_blas *b, bool wide, char side, char uplo, int64_t m, int64_t n,
                    const void *A, int64_t lda, const void *B, int64_t ldb, void *C, int64_t ldc);
const char *dv_trsm(dv_blas *b, bool wide, char side, char uplo, char trans, int64_t m, int64_t n,
                    double alpha, const void *A, int64_t lda, void *B, int64_t ldb);

/* dv_work_bytes: the size of `work` for the calls below with these sizes. potrf: A <- L or L' with A = L L' in one triangle.
 * potri: A <- (L L')^-1. syevd: columns of V, lower triangle on entry, <- eigenvectors of w, ascending. qr: A [m, n], n <= m, <-
 * the n columns of Q; tau [n]: scratch; f32 only. */
typedef enum dv_solver { DV_POTRF, DV_POTRI, DV_SYEVD, DV_QR } dv_solver;
const char *dv_work_bytes(dv_blas *b, dv_solver what, bool wide, int64_t m, int64_t n,
                          int64_t *bytes);
const char *dv_potrf(dv_blas *b, bool wide, char uplo, int64_t n, void *A, int64_t lda, void *work,
                     int64_t bytes, int *info);
const char *dv_potri(dv_blas *b, bool wide, char uplo, int64_t n, void *A, int64_t lda, void *work,
                     int64_t bytes, int *info);
const char *dv_syevd(dv_blas *b, bool wide, int64_t n, void *V, void *w, void *work, int64_t bytes,
                     int *info);
/* dv_syevd for `count` matrices of one order, which follow each other in V, as their eigenvalues in w; infos [count].
 * dv_batch_bytes: the size of `work`; -1 if the library has no such call. */
const char *dv_batch_bytes(dv_blas *b, bool wide, int64_t n, int64_t count, int64_t *bytes);
const char *dv_syevd_batch(dv_blas *b, bool wide, int64_t n, int64_t count, void *V, void *w,
                           void *work, int64_t bytes, int *infos);
const char *dv_qr(dv_blas *b, int64_t m, int64_t n, float *A, int64_t lda, float *tau, void *work,
                  int64_t bytes, int *info);

#endif
