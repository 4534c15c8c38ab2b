/* gemm.c: products of row-major matrices. BLAS is column-major, so it computes the transpose C' = B' A'. */
#include "common/cli.h"
#include "node.h"

#if defined(NG_HAVE_BLAS)
#include "common/blas.h"
#endif

void nn_gemm_plain(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      double sum = 0.0;
      for (int64_t t = 0; t < k; t++)
        sum += (double)(ta ? a[t * lda + i] : a[i * lda + t]) *
               (double)(tb ? b[j * ldb + t] : b[t * ldb + j]);
      float *to = &c[i * ldc + j];
      *to = (float)((double)alpha * sum + (beta == 0.0F ? 0.0 : (double)beta * (double)*to));
    }
  }
}

void nn_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
             int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  if (m < 1 || n < 1) return;
#if defined(NG_HAVE_BLAS)
  const int im = (int)m, in = (int)n, ik = (int)k, ia = (int)lda, ib = (int)ldb, ic = (int)ldc;
  sgemm_(tb ? "T" : "N", ta ? "T" : "N", &in, &im, &ik, &alpha, b, &ib, a, &ia, &beta, c, &ic, 1,
         1);
#else
  nn_gemm_plain(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
#endif
}

/* Only OpenBLAS changes its number of threads cheaply. With another BLAS, one thread of the pool does all the work. */
bool nn_blas_use_one_thread(nn *n) {
  void (*set)(int threads);
  int (*get)(void);
  if (n->threads < 2 || !cli_find_function(NULL, "openblas_set_num_threads", &set) ||
      !cli_find_function(NULL, "openblas_get_num_threads", &get))
    return false;
  n->blas_threads = get();
  set(1);
  return true;
}

void nn_blas_restore_threads(nn *n) {
  void (*set)(int threads);
  if (cli_find_function(NULL, "openblas_set_num_threads", &set)) set(n->blas_threads);
}
