/* t_linalg.c: the contract of linalg.h.  Every implementation runs the same cases, against dense loops in double
 * and against identities: L L' = A, A X = B.  Eigenvalues and QR: t_eigen.c. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "linalg_check.h"

/* Check one element of a product of k terms in dtype t: `got` against `exact`, which has an error of its own; terms: the
 * sum of their magnitudes. */
static void product_element(const ng_backend *on, ng_dtype t, double got, double exact,
                            double terms, int64_t k) {
  const double err = fabs(got - exact), exact_off = (double)(k + 4) * U64 * terms;
  if (isnan(got)) fail_case("NaN in a product", __LINE__);
  if (err == 0.0) return;
  if (on == &ng_backend_ref) {
    check_ratio(SUMMED, on, err / (unit_of(t) * fabs(got) + 2.0 * exact_off));
  } else {
    check_ratio(PRODUCT, on, err / (t == NG_F64 ? 2.0 * exact_off : (double)(k + 4) * U32 * terms));
  }
}

/* ---- products --------------------------------------------------------------------------------*/

static void gemm_case(const ng_backend *on, ng_dtype t, bool ta, bool tb, int64_t m, int64_t n,
                      int64_t k, double alpha, double beta, int64_t pad) {
  ng_queue queue = queue_of(on), *q = &queue;
  CASE("gemm dtype %d %d%d %" PRId64 " x %" PRId64 " x %" PRId64
       " alpha = %g beta = %g pad %" PRId64,
       t, ta, tb, m, n, k, alpha, beta, pad);
  mat A = ta ? mat_random_of(t, k, m, pad) : mat_random_of(t, m, k, pad);
  mat B = tb ? mat_random_of(t, n, k, 2 * pad) : mat_random_of(t, k, n, 2 * pad);
  /* mat_new_of fills C with NaN, which beta = 0 must overwrite */
  mat C = beta == 0.0 ? mat_new_of(t, m, n, 3 * pad) : mat_random_of(t, m, n, 3 * pad);
  double *old = dense_mat(C);
  DO(q, gemm, t, ta, tb, m, n, k, alpha, A.a, A.ld, B.a, B.ld, beta, C.a, C.ld);
  mat_check(A);
  mat_check(B);
  mat_check(C);
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      double exact = 0.0, terms = 0.0;
      for (int64_t l = 0; l < k; l++) {
        const double term = alpha * ng_number_at(A.a, t, ta ? l * A.ld + i : i * A.ld + l) *
                            ng_number_at(B.a, t, tb ? j * B.ld + l : l * B.ld + j);
        exact += term;
        terms += fabs(term);
      }
      if (beta != 0.0) {
        exact += beta * old[i * n + j];
        terms += fabs(beta * old[i * n + j]);
      }
      product_element(on, t, ng_number_at(C.a, t, i * C.ld + j), exact, terms, k);
    }
  }
  free(old);
  mat_free(A);
  mat_free(B);
  mat_free(C);
}

static void gemm_multiplies(void **arg) {
  const ng_backend *on = *arg;
  static const int64_t dims[] = {1, 2, 3, 5, 8, 17, 33};
  static const double alphas[] = {1.0, -0.5}, betas[] = {0.0, 1.0, 0.25};
  const ng_queue queue = queue_of(on);
  const int blas_threads = queue.set_blas_threads == NULL ? 0 : queue.get_blas_threads();
  if (blas_threads > 0) queue.set_blas_threads(3);
  int c = 0;
  for (int way = 0; way < 8; way++) {
    const ng_dtype t = matrix_dtype[way / 4];
    const bool ta = way % 2 == 1, tb = way / 2 % 2 == 1;
    for (int i = 0; i < 7 * 7 * 7; i++) {
      for (int b = 0; b < 3; b++, c++) {
        gemm_case(on, t, ta, tb, dims[i % 7], dims[i / 7 % 7], dims[i / 49], alphas[c % 2],
                  betas[b], c % 3);
      }
    }
    for (int b = 0; b < 3; b++) {
      gemm_case(on, t, ta, tb, 4, 3, 0, 1.0, betas[b], 1); /* no terms: C = beta C */
      gemm_case(on, t, ta, tb, 130, 257, 65, -0.5, betas[b], 5);
      gemm_case(on, t, ta, tb, 70, 257, 250, -0.5, betas[b], 5); /* in pieces on `cpu` (blas.c) */
      gemm_case(on, t, ta, tb, 257, 70, 250, 1.0, betas[b], 1);
    }
  }
  if (blas_threads == 0) return;
  assert_int_equal(queue.get_blas_threads(), 3); /* products in pieces restore the number */
  queue.set_blas_threads(blas_threads);
}

static void block_case(const ng_backend *on, int64_t n, int64_t r0, int64_t m, int64_t rows,
                       float alpha) {
  ng_queue queue = queue_of(on), *q = &queue;
  CASE("n = %" PRId64 " block %" PRId64 "+%" PRId64 ", %" PRId64 " rows, alpha = %g", n, r0, m,
       rows, (double)alpha);
  ng_sym s = sym_random(n), old = sym_copy(s);
  mat X = mat_random(rows, m, 3);
  DO(q, add_gram, s, r0, m, X.a, rows, X.ld, alpha);
  sym_check(s);
  mat_check(X);
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      const bool in = i >= r0 && i < r0 + m && j >= r0 && j < r0 + m;
      const float was = ng_sym_get(old, i, j), got = ng_sym_get(s, i, j);
      if (!in) {
        CHECK(got == was);
        continue;
      }
      double exact = (double)was, terms = fabs((double)was);
      for (int64_t l = 0; l < rows; l++) {
        const double t =
            (double)alpha * (double)X.a[l * X.ld + i - r0] * (double)X.a[l * X.ld + j - r0];
        exact += t;
        terms += fabs(t);
      }
      product_element(on, NG_F32, (double)got, exact, terms, rows);
    }
  }
  mat_free(X);
  sym_free(s);
  sym_free(old);
}

static void blocks_accumulate(void **arg) {
  const ng_backend *on = *arg;
  for (int64_t n = 1; n <= 9; n++) {
    for (int64_t r0 = 0; r0 < n; r0++) {
      for (int64_t m = 1; r0 + m <= n; m++) {
        block_case(on, n, r0, m, 1 + (r0 + 3 * m) % 7, m % 2 == 0 ? 1.0f : -0.5f);
      }
    }
  }
  EACH_SIZE(n) {
    block_case(on, n, 0, n, 19, 0.125f);
    if (n < 16) continue;
    const int64_t a = n / 5, b = 3 * n / 4;
    block_case(on, n, a, b - a, 70, 1.0f);  /* across the middle */
    block_case(on, n, b, n - b, 33, -1.0f); /* this block ends at the last column */
  }
}

/* Products that `cpu` computes in pieces (blas.c): of triangles, and of parts of the rows. */
static void large_blocks_accumulate(void **arg) {
  block_case(*arg, 261, 0, 261, 1100, 0.5f);
  block_case(*arg, 400, 120, 250, 1100, -1.0f);
  block_case(*arg, 60, 3, 40, 2100, 0.5f);
}

static void symmetric_multiplies(void **arg) {
  const ng_backend *on = *arg;
  ng_queue queue = queue_of(on), *q = &queue;
  static const int64_t ms[] = {1, 2, 5, 33, 130};
  EACH_SIZE(n) {
    for (int i = 0; i < 5; i++) {
      for (int left = 0; left < 2; left++) {
        const int64_t m = ms[i];
        CASE("mul_%s n = %" PRId64 " m = %" PRId64, left ? "left" : "right", n, m);
        ng_sym s = sym_random(n), kept = sym_copy(s);
        mat B = left ? mat_random(n, m, 2) : mat_random(m, n, 2);
        mat C = mat_new(B.rows, B.cols, 3);
        if (left) {
          DO(q, mul_left, s, m, B.a, B.ld, C.a, C.ld);
        } else {
          DO(q, mul_right, s, m, B.a, B.ld, C.a, C.ld);
        }
        mat_check(B);
        mat_check(C);
        sym_check(s);
        CHECK(memcmp(s.a, kept.a, (size_t)ng_sym_count(n) * sizeof *s.a) == 0);
        double *d = dense(s);
        for (int64_t r = 0; r < B.rows; r++) {
          for (int64_t c = 0; c < B.cols; c++) {
            double exact = 0.0, terms = 0.0;
            for (int64_t l = 0; l < n; l++) {
              const double t = left ? d[r * n + l] * (double)B.a[l * B.ld + c]
                                    : (double)B.a[r * B.ld + l] * d[l * n + c];
              exact += t;
              terms += fabs(t);
            }
            product_element(on, NG_F32, (double)C.a[r * C.ld + c], exact, terms, n);
          }
        }
        free(d);
        mat_free(B);
        mat_free(C);
        sym_free(s);
        sym_free(kept);
      }
    }
  }
}

/* ---- Cholesky --------------------------------------------------------------------------------*/

/* Largest |A - L L'| / sqrt(a_ii a_jj); L: the lower triangle of a dense matrix. */
static double factor_error(const double *A, const double *L, int64_t n) {
  double most = 0.0;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      double sum = A[i * n + j];
      for (int64_t l = 0; l <= j; l++) {
        sum -= L[i * n + l] * L[j * n + l];
      }
      const double e = fabs(sum) / sqrt(A[i * n + i] * A[j * n + j]);
      if (!(e <= most)) most = e;
    }
  }
  return most;
}

/* ||A X - B|| / (||A|| ||X||) with A [n,n], X and B [n,m]; B = NULL: the identity. */
static double residual(const double *A, const double *X, const double *B, int64_t n, int64_t m) {
  double *R = times(A, X, n, n, m);
  for (int64_t i = 0; i < n * m; i++) {
    R[i] -= B != NULL ? B[i] : i / m == i % m ? 1.0 : 0.0;
  }
  const double r = frobenius(R, n * m) / (frobenius(A, n * n) * frobenius(X, n * m));
  free(R);
  return r;
}

/* Return the right-hand sides as columns; they are the columns of B (left) or its rows. */
static double *columns(mat B, bool left) {
  const int64_t n = left ? B.rows : B.cols, m = left ? B.cols : B.rows;
  double *d = zeros(n * m);
  for (int64_t i = 0; i < n * m; i++)
    d[i] = ng_number_at(B.a, B.t, left ? i / m * B.ld + i % m : i % m * B.ld + i / m);
  return d;
}

/* Solve with the factor l of A [n, n] for 1 to 130 right-hand sides; solve_left is in f32 only. */
static void check_solves(const ng_backend *on, int64_t n, const double *A, mat l) {
  ng_queue queue = queue_of(on), *q = &queue;
  static const int64_t ms[] = {1, 2, 5, 33, 130}; /* 130: in pieces on `cpu`, if n is large */
  for (int i = 0; i < (l.t == NG_F32 ? 10 : 5); i++) {
    const int64_t m = ms[i % 5];
    const bool left = i >= 5;
    CASE("solve_%s dtype %d n = %" PRId64 " m = %" PRId64, left ? "left" : "right", l.t, n, m);
    mat B = left ? mat_random(n, m, 3) : mat_random_of(l.t, m, n, 3);
    double *b = columns(B, left), *old = dense_packed(n, l);
    if (left) {
      DO(q, solve_left, (ng_sym){l.a, n}, m, B.a, B.ld);
    } else {
      DO(q, solve_right, n, l.a, l.t, m, B.a, B.ld);
    }
    mat_check(B);
    mat_check(l);
    double *x = columns(B, left), *kept = dense_packed(n, l);
    CHECK(memcmp(old, kept, (size_t)(n * n) * sizeof *old) == 0);
    check_ratio(SOLVE, on, residual(A, x, b, n, m) / ((double)(n + 4) * unit_of(l.t)));
    free(b);
    free(x);
    free(old);
    free(kept);
    mat_free(B);
  }
}

static void factor_invert_solve(void **arg) {
  const ng_backend *on = *arg;
  ng_queue queue = queue_of(on), *q = &queue;
  static const double shifts[] = {1.0, 1e-3}; /* condition numbers of about 3 and 1e3 */
  EACH_SIZE(n) {
    for (int k = 0; k < 4; k++) {
      const ng_dtype t = matrix_dtype[k / 2];
      CASE("dtype %d n = %" PRId64 " shift = %g", t, n, shifts[k % 2]);
      ng_sym s = sym_positive(n, shifts[k % 2]);
      mat l = mat_of_sym(t, s);
      double *A = dense(s);
      CHECK(INFO(q, factor, n, l.a, t) == 0);
      mat_check(l);
      double *L = dense_packed(n, l);
      check_ratio(FACTOR, on, factor_error(A, L, n) / ((double)(n + 2) * unit_of(t)));
      for (int64_t i = 0; i < n; i++) {
        CHECK(L[i * (n + 1)] > 0.0);
      }
      check_solves(on, n, A, l);
      CASE("inverse dtype %d n = %" PRId64 " shift = %g", t, n, shifts[k % 2]);
      CHECK(INFO(q, invert, n, l.a, t) == 0);
      mat_check(l);
      double *X = dense_packed(n, l);
      check_ratio(INVERSE, on, residual(A, X, NULL, n, n) / ((double)(n + 4) * unit_of(t)));
      free(L);
      free(X);
      free(A);
      sym_free(s);
      mat_free(l);
    }
  }
}

/* A = L D L' with small integers and D = 1 except entry k, which is 0 or -1.  Elimination is exact, so every
 * implementation must report leading minor k + 1. */
static void indefinite_matrices_report_their_minor(void **arg) {
  const ng_backend *on = *arg;
  ng_queue queue = queue_of(on), *q = &queue;
  static const int64_t ns[] = {1, 2, 3, 6, 7, 40, 65};
  for (int i = 0; i < 7; i++) {
    const int64_t n = ns[i];
    for (int64_t k = 0; k < n; k++) {
      for (int zero = 0; zero < 2; zero++) {
        CASE("n = %" PRId64 ", minor %" PRId64 " %s", n, k + 1, zero ? "zero" : "negative");
        ng_sym s = sym_new(n);
        sym_diagonal(s, 0.0f);
        for (int64_t r = 0; r < n; r++) { /* L has ones on the diagonal and just below it */
          const double d = r != k ? 1.0 : zero ? 0.0 : -1.0;
          const double below = r > 0 ? (r - 1 != k ? 1.0 : zero ? 0.0 : -1.0) : 0.0;
          sym_set(s, r, r, (float)(d + below));
          if (r > 0) sym_set(s, r, r - 1, (float)below);
        }
        for (int t = 0; t < 2; t++) {
          mat a = mat_of_sym(matrix_dtype[t], s);
          CHECK(INFO(q, factor, n, a.a, a.t) == k + 1);
          mat_free(a);
        }
        sym_free(s);
      }
    }
    CASE("n = %" PRId64 ", singular L", n);
    ng_sym s = sym_new(n);
    sym_diagonal(s, 1.0f);
    sym_set(s, n - 1, n - 1, 0.0f);
    for (int t = 0; t < 2; t++) {
      mat a = mat_of_sym(matrix_dtype[t], s);
      CHECK(INFO(q, invert, n, a.a, a.t) == n);
      mat_free(a);
    }
    sym_free(s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(gemm_multiplies),         EACH(blocks_accumulate),
      EACH(large_blocks_accumulate), EACH(symmetric_multiplies),
      EACH(factor_invert_solve),     EACH(indefinite_matrices_report_their_minor),
  };
  return run_on_backends("linalg", tests, sizeof tests / sizeof tests[0]);
}
