/* dense.c: see dense.h. */
#include "dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void *must_calloc(size_t bytes) {
  void *p = calloc(1, bytes > 0 ? bytes : 1);
  if (p == NULL) abort();
  return p;
}

double *zeros(int64_t n) { return must_calloc((size_t)n * sizeof(double)); }

void dense_product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double *A,
                   const double *B, double *C) {
  double *sum = zeros(m * n);
  for (int64_t i = 0; i < m; i++) {
    for (int64_t l = 0; l < k; l++) {
      const double a = ta ? A[l * m + i] : A[i * k + l];
      for (int64_t j = 0; j < n; j++)
        sum[i * n + j] += a * (tb ? B[j * k + l] : B[l * n + j]);
    }
  }
  memcpy(C, sum, (size_t)(m * n) * sizeof *sum);
  free(sum);
}

/* Rotate two rows or columns, whose elements are `step` apart. */
static void rotate(int64_t n, double *x, double *y, int64_t step, double c, double s) {
  for (int64_t k = 0; k < n * step; k += step) {
    const double a = x[k], b = y[k];
    x[k] = c * a - s * b;
    y[k] = s * a + c * b;
  }
}

void dense_eigen(int64_t n, const double *M, double *d, double *Q) {
  double *S = zeros(n * n);
  memcpy(S, M, sizeof(double) * (size_t)(n * n));
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++)
      Q[i * n + j] = i == j ? 1 : 0;
  }
  for (int sweep = 0; sweep < 100; sweep++) {
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < n; j++) {
        all += S[i * n + j] * S[i * n + j];
        if (i != j) off += S[i * n + j] * S[i * n + j];
      }
    }
    if (off <= 1e-32 * all) break;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = i + 1; j < n; j++) {
        double sij = S[i * n + j];
        if (sij == 0) continue;
        double theta = (S[j * n + j] - S[i * n + i]) / (2 * sij);
        double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
        double c = 1 / sqrt(t * t + 1), s = t * c;
        rotate(n, S + i, S + j, n, c, s);
        rotate(n, S + i * n, S + j * n, 1, c, s);
        rotate(n, Q + i, Q + j, n, c, s);
      }
    }
  }
  for (int64_t i = 0; i < n; i++)
    d[i] = S[i * n + i];
  free(S);
}

static void swap_rows(double *x, double *y, int64_t n) {
  for (int64_t j = 0; j < n; j++) {
    const double kept = x[j];
    x[j] = y[j];
    y[j] = kept;
  }
}

void dense_solve(int64_t n, const double *M, int64_t m, double *R) {
  double *S = zeros(n * n);
  memcpy(S, M, sizeof(double) * (size_t)(n * n));
  for (int64_t k = 0; k < n; k++) {
    int64_t best = k;
    for (int64_t i = k + 1; i < n; i++) {
      if (fabs(S[i * n + k]) > fabs(S[best * n + k])) best = i;
    }
    if (S[best * n + k] == 0) abort();
    swap_rows(S + k * n, S + best * n, n);
    swap_rows(R + k * m, R + best * m, m);
    for (int64_t i = 0; i < n; i++) {
      if (i == k) continue;
      double f = S[i * n + k] / S[k * n + k];
      for (int64_t j = k; j < n; j++)
        S[i * n + j] -= f * S[k * n + j];
      for (int64_t j = 0; j < m; j++)
        R[i * m + j] -= f * R[k * m + j];
    }
  }
  for (int64_t k = 0; k < n; k++) {
    for (int64_t j = 0; j < m; j++)
      R[k * m + j] /= S[k * n + k];
  }
  free(S);
}
