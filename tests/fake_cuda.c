/* fake_cuda.c: cuBLAS and cuSOLVER for t_cuda_blas.c: functions of their names and arguments (sources: their manuals), which call the
 * stand-in (standin_blas.c) of the test. A call fails unless its handle has the stream of the test and computes f32 in f32. */
#include <stdint.h>
#include <stdlib.h>

#include "fake_cuda.h"

typedef struct handle {
  void *stream;
  int mode;
} handle;

static int make(void **out) {
  handle *h = calloc(1, sizeof *h);
  if (h != NULL) h->mode = -1; /* not set */
  *out = h;
  return h == NULL;
}
static int end(void *h) {
  free(h);
  return 0;
}
int cublasCreate_v2(void **out) { return make(out); }
int cublasDestroy_v2(void *h) { return end(h); }
int cublasSetMathMode(void *h, int mode) { return ((handle *)h)->mode = mode, 0; }
int cublasSetStream_v2(void *h, void *stream) { return ((handle *)h)->stream = stream, 0; }
int cusolverDnCreate(void **out) { return make(out); }
int cusolverDnDestroy(void *h) { return end(h); }
int cusolverDnSetStream(void *h, void *stream) { return cublasSetStream_v2(h, stream); }
int cusolverDnCreateParams(void **out) { return make(out); }
int cusolverDnDestroyParams(void *h) { return end(h); }

/* Count a call. Return 0, or 13 if the stand-in failed, the stream is wrong, or the math mode is not CUBLAS_DEFAULT_MATH (0). */
static int of(const void *h, int needs_mode, const char *error) {
  const handle *x = h;
  fake_cuda_calls++;
  return error == NULL && x->stream == fake_cuda_stream && (!needs_mode || x->mode == 0) ? 0 : 13;
}
#define OP(t) ("NT"[t])         /* CUBLAS_OP_N, T: 0, 1 */
#define FILL(uplo) ("LU"[uplo]) /* CUBLAS_FILL_MODE_LOWER, UPPER: 0, 1 */
#define SIDE(side) ("LR"[side]) /* CUBLAS_SIDE_LEFT, RIGHT: 0, 1 */
#define B fake_cuda_blas
typedef const void *in;

/* Both precisions of each function: p, T, wide: S, float, false or D, double, true. */
#define PRECISION(p, T, wide)                                                                      \
  int cublas##p##gemm_v2(void *h, int ta, int tb, int m, int n, int k, in x, in a, int lda, in b,  \
                         int ldb, in y, void *c, int ldc) {                                        \
    return of(h, 1,                                                                                \
              dv_gemm(B, wide, OP(ta), OP(tb), m, n, k, (double)*(const T *)x, a, lda, b, ldb,     \
                      (double)*(const T *)y, c, ldc));                                             \
  }                                                                                                \
  int cublas##p##syrk_v2(void *h, int uplo, int t, int n, int k, in x, in a, int lda, in y,        \
                         void *c, int ldc) {                                                       \
    if (*(const T *)y != 1) return 7;                                                              \
    return of(h, 1,                                                                                \
              dv_syrk(B, wide, FILL(uplo), OP(t), n, k, (double)*(const T *)x, a, lda, c, ldc));   \
  }                                                                                                \
  int cublas##p##symm_v2(void *h, int side, int uplo, int m, int n, in x, in a, int lda, in b,     \
                         int ldb, in y, void *c, int ldc) {                                        \
    if (*(const T *)x != 1 || *(const T *)y != 0) return 7;                                        \
    return of(h, 1, dv_symm(B, wide, SIDE(side), FILL(uplo), m, n, a, lda, b, ldb, c, ldc));       \
  }                                                                                                \
  int cublas##p##trsm_v2(void *h, int side, int uplo, int t, int diagonal, int m, int n, in x,     \
                         in a, int lda, void *b, int ldb) {                                        \
    if (diagonal != 0) return 7; /* CUBLAS_DIAG_NON_UNIT */                                        \
    return of(h, 1,                                                                                \
              dv_trsm(B, wide, SIDE(side), FILL(uplo), OP(t), m, n, (double)*(const T *)x, a, lda, \
                      b, ldb));                                                                    \
  }                                                                                                \
  int cusolverDn##p##potrf_bufferSize(void *h, int uplo, int n, void *a, int lda, int *size) {     \
    return *size = n, of(h, 0, uplo + lda < 0 || a != NULL ? "" : NULL);                           \
  }                                                                                                \
  int cusolverDn##p##potrf(void *h, int uplo, int n, void *a, int lda, void *work, int size,       \
                           int *info) {                                                            \
    return of(h, 0, dv_potrf(B, wide, FILL(uplo), n, a, lda, work, size * (int)sizeof(T), info));  \
  }                                                                                                \
  int cusolverDn##p##potri_bufferSize(void *h, int uplo, int n, void *a, int lda, int *size) {     \
    return cusolverDn##p##potrf_bufferSize(h, uplo, n, a, lda, size);                              \
  }                                                                                                \
  int cusolverDn##p##potri(void *h, int uplo, int n, void *a, int lda, void *work, int size,       \
                           int *info) {                                                            \
    return of(h, 0, dv_potri(B, wide, FILL(uplo), n, a, lda, work, size * (int)sizeof(T), info));  \
  }                                                                                                \
  int cusolverDn##p##syevd_bufferSize(void *h, int job, int uplo, int n, in a, int lda, in w,      \
                                      int *size) {                                                 \
    return *size = n, of(h, 0, job != 1 || uplo != 0 || lda != n || a != w ? "" : NULL);           \
  }                                                                                                \
  int cusolverDn##p##syevd(void *h, int job, int uplo, int n, void *a, int lda, void *w,           \
                           void *work, int size, int *info) {                                      \
    if (job != 1 || uplo != 0 || lda != n) return 7; /* CUSOLVER_EIG_MODE_VECTOR is 1 */           \
    return of(h, 0, dv_syevd(B, wide, n, a, w, work, size * (int)sizeof(T), info));                \
  }                                                                                                \
  int cusolverDn##p##geqrf_bufferSize(void *h, int m, int n, void *a, int lda, int *size) {        \
    return *size = n, of(h, 0, a != NULL || m != lda ? "" : NULL);                                 \
  }                                                                                                \
  int cusolverDn##p##geqrf(void *h, int m, int n, void *a, int lda, void *tau, void *work,         \
                           int size, int *info) {                                                  \
    return of(h, 0,                                                                                \
              m < n || a == NULL || lda < m || tau == NULL || work == NULL || size < n ||          \
                      info == NULL                                                                 \
                  ? ""                                                                             \
                  : NULL);                                                                         \
  }                                                                                                \
  int cusolverDn##p##orgqr_bufferSize(void *h, int m, int n, int k, in a, int lda, in tau,         \
                                      int *size) {                                                 \
    return *size = 2 * n, of(h, 0, k != n || m != lda || a != tau ? "" : NULL);                    \
  }                                                                                                \
  int cusolverDn##p##orgqr(void *h, int m, int n, int k, void *a, int lda, in tau, void *work,     \
                           int size, int *info) { /* both halves of QR */                          \
    if (k != n || size < 2 * n) return 7;                                                          \
    return of(h, 0, dv_qr(B, m, n, a, lda, (float *)(uintptr_t)tau, work, size * 4, info));        \
  }
PRECISION(S, float, false)
PRECISION(D, double, true)

/* CUDA_R_32F is 0, CUDA_R_64F is 1. */
static int is_batch(int job, int uplo, int64_t n, int a, int64_t lda, int w, int in_type) {
  return job == 1 && uplo == 0 && lda == n && a == w && a == in_type && (a == 0 || a == 1);
}
int cusolverDnXsyevBatched_bufferSize(void *h, void *params, int job, int uplo, int64_t n, int ta,
                                      in a, int64_t lda, int tw, in w, int type, size_t *device,
                                      size_t *host, int64_t count) {
  *device = (size_t)(count * n * 8);
  *host = (size_t)count;
  return params == NULL || a != w || !is_batch(job, uplo, n, ta, lda, tw, type) ? 7
                                                                                : of(h, 0, NULL);
}
int cusolverDnXsyevBatched(void *h, void *params, int job, int uplo, int64_t n, int ta, void *a,
                           int64_t lda, int tw, void *w, int type, void *work, size_t device,
                           void *host_work, size_t host, int *infos, int64_t count) {
  if (params == NULL || !is_batch(job, uplo, n, ta, lda, tw, type)) return 7;
  if (host_work == NULL || host < (size_t)count) return 7;
  return of(h, 0, dv_syevd_batch(B, ta == 1, n, count, a, w, work, (int64_t)device, infos));
}
