/* t_rows.c: the entries of a queue for rows of matrices, spectra and products in double: every linear algebra against
 * plain loops.  Elementwise results and sums: see t_vector.c. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "linalg_check.h"

static void copy_keeps_bits_and_padding(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    for (int64_t pad = 0; pad < 3; pad++) {
      CASE("copy n = %" PRId64 " pad = %" PRId64, n, pad);
      mat x = mat_random(5, n, pad), y = mat_new(5, n, 2 * pad);
      DO(q, copy_rows, 5, n, x.a, x.ld, y.a, y.ld);
      mat_check(x);
      mat_check(y);
      for (int64_t i = 0; i < 5 * n; i++) {
        CHECK(y.a[i / n * y.ld + i % n] == x.a[i / n * x.ld + i % n]);
      }
      mat_free(x);
      mat_free(y);
    }
  }
}

/* The damping is added to both factors, to their product, or is 0; 1 / 0 must be Inf. */
static void divide_by_eigenvalues_matches(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  static const double damping[][3] = {{0.1, 0.02, 0.0}, {0.0, 0.0, 0.003}, {0.0, 0.0, 0.0}};
  EACH_SIZE(n) {
    for (int k = 0; k < 3; k++) {
      const int64_t rows = 1 + n % 4;
      mat g = mat_random(1, rows, 0), a = mat_random(1, n, 0), U = mat_random(rows, n, 2);
      for (int64_t i = 0; i < rows + n; i++) { /* eigenvalues are not negative, and some are 0 */
        float *x = i < rows ? &g.a[i] : &a.a[i - rows];
        *x = *x < -0.5f ? 0.0f : fabsf(*x);
      }
      const ng_spectrum s = {g.a, a.a, damping[k][0], damping[k][1], damping[k][2]};
      CASE("divide n = %" PRId64 " damping %d", n, k);
      double *old = dense_mat(U);
      DO(q, divide, rows, n, s, U.a, NG_F32, U.ld);
      for (int64_t i = 0; i < rows * n; i++) {
        const double by = ((double)g.a[i / n] + s.damping_g) * ((double)a.a[i % n] + s.damping_a) +
                          s.damping_both;
        CHECK(same(U.a[i / n * U.ld + i % n], (float)(old[i] / by)));
      }
      if (k < 2) mat_check(U);
      free(old);
      mat_free(g);
      mat_free(a);
      mat_free(U);
    }
  }
}

static void row_sums_match(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_LENGTH(n) {
    const int64_t rows = n > 8000 ? 3 : 37;
    CASE("row_sums n = %" PRId64, n);
    mat P = mat_random(rows, n, 1), D = mat_random(rows, n, 4);
    double *first = zeros(3 * rows), *again = zeros(3 * rows);
    DO(q, sum_row_products, rows, n, P.a, P.ld, D.a, D.ld, first);
    for (int64_t r = 0; r < rows; r++) {
      double exact[3] = {0.0}, terms[3] = {0.0};
      for (int64_t c = 0; c < n; c++) {
        const double p = (double)P.a[r * P.ld + c], d = (double)D.a[r * D.ld + c];
        const double x[3] = {p * d, d * d, p * p};
        for (int i = 0; i < 3; i++) {
          exact[i] += x[i];
          terms[i] += fabs(x[i]);
        }
      }
      for (int i = 0; i < 3; i++) {
        const double got = ng_read_numbers(q, first)[3 * r + i];
        CHECK(fabs(got - exact[i]) <= 2.0 * (double)(n + 4) * U64 * terms[i]);
      }
    }
    for (int32_t threads = 1; threads < 10; threads += 4) {
      q->threads = threads;
      DO(q, sum_row_products, rows, n, P.a, P.ld, D.a, D.ld, again);
      CHECK(memcmp(first, again, (size_t)(3 * rows) * sizeof *first) == 0);
    }
    P.a[n - 1] = INFINITY; /* the Inf must change its own row only */
    DO(q, sum_row_products, rows, n, P.a, P.ld, D.a, D.ld, again);
    CHECK(!isfinite(again[0]) && isinf(again[2]) && again[1] == first[1]);
    CHECK(memcmp(first + 3, again + 3, (size_t)(3 * rows - 3) * sizeof *first) == 0);
    free(first);
    free(again);
    mat_free(P);
    mat_free(D);
  }
}

static void add_sums_matches(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    double *sums = zeros(3 * n), total[3] = {0.5, -0.25, 0.0}, expected[3] = {0.5, -0.25, 0.0};
    for (int64_t i = 0; i < 3 * n; i++) {
      sums[i] = uniform();
      expected[i % 3] += sums[i];
    }
    CASE("add_sums n = %" PRId64, n);
    DO(q, add_rows_of_sums, n, sums, total);
    CHECK(memcmp(total, expected, sizeof total) == 0);
    free(sums);
  }
}

static void multiply_by_diagonal_matches(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    const int64_t rows = 1 + n % 4;
    mat g = mat_random(1, rows, 0), a = mat_random(1, n, 0);
    mat x = mat_random(rows, n, 2), y = mat_new(rows, n, 2);
    for (int left = 0; left < 2; left++) {
      CASE("mul_diagonal n = %" PRId64 " left %d", n, left);
      DO(q, mul_diagonal, left != 0, rows, n, left ? g.a : a.a, NG_F32, x.a, y.a, x.ld);
      mat_check(y);
      for (int64_t i = 0; i < rows * n; i++) {
        const int64_t at = i / n * x.ld + i % n;
        CHECK(same(y.a[at], x.a[at] * (left ? g.a[i / n] : a.a[i % n])));
      }
    }
    mat_free(g);
    mat_free(a);
    mat_free(x);
    mat_free(y);
  }
}

/* The symmetric matrix multiplies from the left and from the right. */
static void multiply_in_double_matches(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    if (n > 200) continue;
    const int64_t lines = 1 + n % 4;
    double *S = zeros(ng_sym_count(n));
    for (int64_t i = 0; i < ng_sym_count(n); i++)
      S[i] = uniform();
    for (int left = 0; left < 2; left++) {
      CASE("mul64 n = %" PRId64 " left %d", n, left);
      mat x = mat_random(left ? n : lines, left ? lines : n, 1);
      mat y = mat_new(x.rows, x.cols, 1);
      const int64_t within = left ? x.ld : 1, between = left ? 1 : x.ld;
      DO(q, multiply_sym64, n, S, lines, within, between, x.a, y.a);
      mat_check(y);
      for (int64_t i = 0; i < n * lines; i++) {
        double exact = 0.0, terms = 0.0;
        for (int64_t k = 0; k < n; k++) {
          const double term =
              S[ng_sym_at(n, i / lines, k)] * (double)x.a[k * within + i % lines * between];
          exact += term;
          terms += fabs(term);
        }
        const double got = (double)y.a[i / lines * within + i % lines * between];
        CHECK(fabs(got - exact) <= U32 * fabs(exact) + 2.0 * (double)n * U64 * terms);
      }
      mat_free(x);
      mat_free(y);
    }
    free(S);
  }
}

/* unpack, mul_diagonal, divide and add_sums64, in double, against loops. */
static void entries_in_double_match(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  for (int64_t n = 1; n < 40; n += 3) {
    const int64_t m = 1 + n % 5, ld = n + 2;
    double *S = zeros(ng_sym_count(n)), *M = zeros(n * n), *X = zeros(ld * ld);
    double *Y = zeros(ld * ld), total[3] = {1.0, 2.0, 3.0}, want[3] = {1.0, 2.0, 3.0};
    for (int64_t i = 0; i < ng_sym_count(n); i++)
      S[i] = uniform();
    for (int64_t i = 0; i < ld * ld; i++)
      X[i] = uniform() + 2.0;
    DO(q, unpack, n, S, NG_F64, Y, ld);
    for (int64_t i = 0; i < n * n; i++)
      CHECK(Y[i / n * ld + i % n] == S[ng_sym_at(n, i / n, i % n)]);
    for (int64_t i = 0; i < n * n; i++)
      M[i] = uniform();
    const ng_spectrum s = {
        .damping_g = 0.5, .damping_a = 0.25, .damping_both = 0.125, .g = X, .a = X + m};
    memcpy(Y, M, (size_t)(n * n) * sizeof *Y);
    DO(q, divide, n < m ? n : m, n, s, Y, NG_F64, n);
    for (int64_t i = 0; i < (n < m ? n : m) * n; i++)
      CHECK(Y[i] == M[i] / ((X[i / n] + 0.5) * (X[m + i % n] + 0.25) + 0.125));
    DO(q, mul_diagonal, true, n, n, X, NG_F64, M, Y, n);
    DO(q, add_sums64, n * n, Y, M, total);
    for (int64_t i = 0; i < n * n; i++) {
      CHECK(Y[i] == M[i] * X[i / n]);
      want[0] += Y[i] * M[i];
      want[1] += M[i] * M[i];
      want[2] += Y[i] * Y[i];
    }
    for (int i = 0; i < 3; i++)
      CHECK(fabs(total[i] - want[i]) <= 2.0 * (double)(n * n + 4) * U64 * want[i]);
    free(S), free(M), free(X), free(Y);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(copy_keeps_bits_and_padding),
      EACH(divide_by_eigenvalues_matches),
      EACH(row_sums_match),
      EACH(add_sums_matches),
      EACH(multiply_by_diagonal_matches),
      EACH(multiply_in_double_matches),
      EACH(entries_in_double_match),
  };
  return run_on_backends("rows", tests, sizeof tests / sizeof tests[0]);
}
