/* t_eigen.c: the contract of the eigendecompositions and of QR in linalg.h.  Every implementation runs the same cases,
 * against known eigenvalues and identities: A V = V w, V V' = I, A = Q R. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "linalg_check.h"

/* Check eigenvalues w and eigenvectors V [n,n] of A; row i of V belongs to w[i]. u: the unit of rounding; known: the
 * expected eigenvalues in ascending order, or NULL. */
static void check_eigen(const ng_backend *on, const double *A, const double *V, const double *w,
                        const double *known, int64_t n, double u) {
  const double size = frobenius(A, n * n), nu = (double)n * u;
  double *VA = times(V, A, n, n, n);
  double most = 0.0;
  for (int64_t i = 0; i < n; i++) {
    CHECK(isfinite(w[i]));
    CHECK(i == 0 || w[i] >= w[i - 1]);
    for (int64_t j = 0; j < n; j++) {
      CHECK(isfinite(V[i * n + j]));
      VA[i * n + j] -= w[i] * V[i * n + j];
      double sum = i == j ? -1.0 : 0.0;
      for (int64_t l = 0; l < n; l++) {
        sum += V[i * n + l] * V[j * n + l];
      }
      most = fmax(most, fabs(sum));
    }
    if (known != NULL) {
      const double e = fabs(w[i] - known[i]);
      if (e > 0.0) check_ratio(VALUES, on, e / (nu * size));
    }
  }
  check_ratio(ORTHOGONAL, on, most / nu);
  const double r = frobenius(VA, n * n);
  check_ratio(EIGEN, on, r == 0.0 ? 0.0 : r / (nu * size)); /* the zero matrix has size 0 */
  free(VA);
}

/* Replace V by its eigenvectors, set w to the eigenvalues. */
static void decompose(const ng_backend *on, mat V, mat w) {
  ng_queue queue = queue_of(on), *q = &queue;
  const int64_t bytes = on->linalg->eigen_work(q, w.cols, w.t);
  void *work = work_new(bytes);
  CHECK(INFO(q, eigen, w.cols, V.a, V.t, w.a, work) == 0);
  work_free(work, bytes);
  mat_check(V);
  mat_check(w);
}

static void check_decomposition(const ng_backend *on, ng_sym s, const double *known) {
  const int64_t n = s.n;
  double *A = dense(s);
  for (int t = 0; t < 2; t++) {
    mat V = mat_new_of(matrix_dtype[t], n, n, 0), w = mat_new_of(V.t, 1, n, 0);
    for (int64_t i = 0; i < n * n; i++) {
      ng_set_number(V.a, V.t, i, A[i]);
    }
    decompose(on, V, w);
    double *V64 = dense_mat(V), *w64 = dense_mat(w);
    check_eigen(on, A, V64, w64, known, n, unit_of(V.t));
    free(V64);
    free(w64);
    mat_free(V);
    mat_free(w);
  }
  free(A);
}

static void eigen_decomposes(void **arg) {
  const ng_backend *on = *arg;
  EACH_SIZE(n) {
    double *known = zeros(n);
    CASE("eigen random n = %" PRId64, n);
    ng_sym s = sym_random(n);
    check_decomposition(on, s, NULL);
    CASE("eigen tiny n = %" PRId64, n);
    for (int64_t i = 0; i < ng_sym_count(n); i++) {
      s.a[i] *= 1e-30f; /* the squares of its elements underflow to 0 in f32 */
    }
    check_decomposition(on, s, NULL);
    CASE("eigen zero n = %" PRId64, n);
    sym_diagonal(s, 0.0f);
    check_decomposition(on, s, known);
    CASE("eigen identity n = %" PRId64, n);
    sym_diagonal(s, 1.0f);
    for (int64_t i = 0; i < n; i++) {
      known[i] = 1.0;
    }
    check_decomposition(on, s, known);
    CASE("eigen rank one n = %" PRId64, n);
    double sum = 0.0;
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
      x[i] = (float)(1 + i % 7) * (i % 2 ? -1.0f : 1.0f); /* integers: the matrix is exact */
      sum += (double)x[i] * (double)x[i];
      known[i] = 0.0;
      for (int64_t j = 0; j <= i; j++) {
        sym_set(s, i, j, x[i] * x[j]);
      }
    }
    known[n - 1] = sum;
    check_decomposition(on, s, known);
    CASE("eigen diagonal n = %" PRId64, n);
    sym_diagonal(s, 0.0f);
    for (int64_t i = 0; i < n; i++) { /* descending, in pairs, from positive to negative */
      sym_set(s, i, i, (float)(n / 2 - i / 2 * 2));
      known[n - 1 - i] = (double)(n / 2 - i / 2 * 2);
    }
    check_decomposition(on, s, known);
    CASE("eigen second difference n = %" PRId64, n);
    sym_diagonal(s, 0.0f);
    for (int64_t i = 0; i < n; i++) { /* Golub & Van Loan 4.8.3: 2 - 2 cos(pi k / (n + 1)) */
      sym_set(s, i, i, 2.0f);
      if (i > 0) sym_set(s, i, i - 1, -1.0f);
      known[i] = 2.0 - 2.0 * cos(acos(-1.0) * (double)(i + 1) / (double)(n + 1));
    }
    check_decomposition(on, s, known);
    free(x);
    free(known);
    sym_free(s);
  }
}

/* ---- QR --------------------------------------------------------------------------------------*/

/* Row i of X is column i of A, so A = Q R with R = Q'A, which is upper triangular. */
static void check_qr(const ng_backend *on, mat X) {
  ng_queue queue = queue_of(on), *q = &queue;
  const int64_t n = X.rows, m = X.cols, bytes = on->linalg->qr_work(q, m, n);
  void *work = work_new(bytes);
  double *A = dense_mat(X);
  const double size = frobenius(A, n * m);
  CHECK(INFO(q, qr, m, n, X.a, X.ld, work) == 0);
  work_free(work, bytes);
  mat_check(X);
  double *Q = dense_mat(X), most = 0.0;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++) {
      double sum = i == j ? -1.0 : 0.0;
      for (int64_t l = 0; l < m; l++)
        sum += Q[i * m + l] * Q[j * m + l];
      most = fmax(most, fabs(sum));
    }
  }
  check_ratio(ORTHOGONAL, on, most / ((double)m * U32));
  /* A_j -= sum over i <= j of Q_i R_ij, where R is computed from A_j before the subtraction */
  for (int64_t j = 0; j < n; j++) {
    double *R = zeros(j + 1);
    for (int64_t i = 0; i <= j; i++) {
      for (int64_t l = 0; l < m; l++)
        R[i] += Q[i * m + l] * A[j * m + l];
    }
    for (int64_t i = 0; i <= j; i++) {
      for (int64_t l = 0; l < m; l++)
        A[j * m + l] -= R[i] * Q[i * m + l];
    }
    free(R);
  }
  const double r = frobenius(A, n * m);
  check_ratio(QR, on, r == 0.0 ? 0.0 : r / ((double)(m + 4) * U32 * size));
  free(A);
  free(Q);
  mat_free(X);
}

static void qr_is_orthogonal(void **arg) {
  static const char *const kind[] = {"random", "rank one", "zero", "tiny", "graded"};
  EACH_SIZE(n) {
    for (int k = 0; k < 5; k++) {
      for (int64_t more = 0; more < 8; more += 7) {
        CASE("qr %s n = %" PRId64 " m = %" PRId64, kind[k], n, n + more);
        mat X = mat_random(n, n + more, 3);
        for (int64_t i = 0; i < n; i++) {
          for (int64_t l = 0; l < X.cols && k > 0; l++) {
            float *x = &X.a[i * X.ld + l];
            *x = k == 1   ? X.a[l] * (float)(1 + i % 3)
                 : k == 2 ? 0.0f
                 : k == 3 ? *x * 1e-30f
                          : *x * ldexpf(1.0f, (int)(-i % 40));
          }
        }
        check_qr(*arg, X);
      }
    }
  }
}

/* Squares of these entries leave the range of double. */
static void eigen_in_double_takes_extremes(void **arg) {
  const ng_backend *on = *arg;
  static const double scales[] = {1e-200, 1e200};
  for (int64_t n = 2; n <= 9; n++) {
    for (int k = 0; k < 2; k++) {
      CASE("n = %" PRId64 " scale = %g", n, scales[k]);
      mat V = mat_new_of(NG_F64, n, n, 0), w = mat_new_of(NG_F64, 1, n, 0);
      double *A = zeros(n * n);
      for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
          A[i * n + j] = A[j * n + i] = uniform();
        }
      }
      for (int64_t i = 0; i < n * n; i++) {
        ng_set_number(V.a, NG_F64, i, A[i] * scales[k]);
      }
      decompose(on, V, w);
      double *V64 = dense_mat(V), *w64 = dense_mat(w);
      for (int64_t i = 0; i < n; i++) {
        w64[i] /= scales[k];
      }
      check_eigen(on, A, V64, w64, NULL, n, 2.0 * U64); /* 2: the scaling rounds again */
      free(A);
      free(V64);
      free(w64);
      mat_free(V);
      mat_free(w);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(eigen_decomposes),
      EACH(eigen_in_double_takes_extremes),
      EACH(qr_is_orthogonal),
  };
  return run_on_backends("eigen", tests, sizeof tests / sizeof tests[0]);
}
