/* t_curvature.c: powers of the damped curvature against a dense Kronecker product.
 *
 * Tolerance.  Dense: M is computed from a Jacobi decomposition of the whole damped matrix.  With eigenvalues in
 * [damping, 10] and damping >= 0.05 every |power| <= 1 has a condition of at most 200; order 60 in double: 60 times 200
 * times 2.2e-16 = 3e-12.
 * Corrected: an eigenvector has an error of 2.2e-16 times the largest eigenvalue over the gap to the next one, above 1e-6.
 * Scores are sums with cancellation, so they are allowed 100 times DENSE of the largest score. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dense.h"
#include "draw.h"
#include "fixture.h"
#include "one_context.h"
#include "oracle.h"
#include "ranks.h"

enum { MOST = 6, GROUPS = 2, ORDER = MOST * MOST, ALL = GROUPS * ORDER };
static const double DENSE = 3e-12, CORRECTED = 1e-9;

/* ---- against a dense product ------------------------------------------------------------------*/

/* full [n, n] <- X X' / n + I / 10; with `diagonal` only its diagonal. F: the factor for the library, [n, n] or the
 * diagonal [n]. */
static void draw_factor(rng *r, int64_t n, bool diagonal, double *full, double *F) {
  double *X = zeros(n * n);
  for (int64_t i = 0; i < n * n; i++)
    X[i] = rng_value(r);
  dense_product(false, true, n, n, n, X, X, full);
  for (int64_t i = 0; i < n * n; i++)
    full[i] =
        (diagonal && i % (n + 1) != 0 ? 0.0 : full[i] / (double)n) + (i % (n + 1) == 0 ? 0.1 : 0.0);
  for (int64_t i = 0; i < (diagonal ? n : n * n); i++)
    F[i] = full[diagonal ? i * (n + 1) : i];
  free(X);
}

static double trace_of(int64_t n, const double *M) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++)
    sum += M[i * n + i];
  return sum;
}

/* M [n m, n m] <- (L (x) R + damping)^power. */
static void predict(int64_t n, int64_t m, const double *L, const double *R,
                    const ng_damped_power *how, double *M, double *logdet) {
  const int64_t N = n * m;
  const char *s = how->split == NULL ? "joint" : how->split;
  const double root = sqrt(how->damping), full = strcmp(s, "full") == 0 ? how->damping : 0.0;
  const double ratio = sqrt(trace_of(m, R) / (double)m / (trace_of(n, L) / (double)n));
  const double pi = strcmp(s, "pi") == 0 ? ratio : 1.0;
  const bool splits = strcmp(s, "pi") == 0 || strcmp(s, "root") == 0;
  const double on_l = splits ? root / pi : full, on_r = splits ? root * pi : full;
  const double both = strcmp(s, "joint") == 0 ? how->damping : 0.0;
  double *Q = zeros(N * N), *e = zeros(N), *K = zeros(N * N);
  for (int64_t a = 0; a < N; a++) {
    for (int64_t b = 0; b < N; b++) {
      const double l = L[a / m * n + b / m] + (a / m == b / m ? on_l : 0.0);
      const double r = R[a % m * m + b % m] + (a % m == b % m ? on_r : 0.0);
      K[a * N + b] = l * r + (a == b ? both : 0.0);
    }
  }
  dense_eigen(N, K, e, Q);
  for (int64_t i = 0; i < N; i++) {
    *logdet += how->power * log(e[i]);
    for (int64_t a = 0; a < N; a++)
      K[a * N + i] = Q[a * N + i] * pow(e[i], how->power);
  }
  dense_product(false, true, N, N, N, K, Q, M);
  free(Q);
  free(e);
  free(K);
}

static void check_power(ng_curvature *c, const ng_factors *f, double *const *dense,
                        const ng_damped_power *how, rng *r) {
  const int64_t n = f->rows, m = f->cols, N = n * m, all = f->groups * N;
  double x[3 * ALL], out[3 * ALL], want[3 * ALL], diagonal[ALL], want_diagonal[ALL], trace, logdet;
  double *M = zeros(N * N), want_trace = 0.0, want_logdet = 0.0;
  for (int64_t i = 0; i < 3 * all; i++)
    x[i] = rng_value(r);
  for (int64_t g = 0; g < f->groups; g++) {
    predict(n, m, dense[0] + g * n * n, dense[1] + g * m * m, how, M, &want_logdet);
    want_trace += trace_of(N, M);
    for (int64_t i = 0; i < N; i++)
      want_diagonal[g * N + i] = M[i * N + i];
    for (int64_t k = 0; k < 3; k++)
      dense_product(false, false, N, 1, N, M, x + k * all + g * N, want + k * all + g * N);
  }
  assert_int_equal(ng_curvature_apply(c, how, x, 3, out), NG_OK);
  assert_int_equal(ng_curvature_apply(c, how, x, 3, x), NG_OK); /* apply in place */
  assert_memory_equal(x, out, (size_t)(3 * all) * sizeof *x);
  assert_int_equal(ng_curvature_diagonal(c, how, diagonal), NG_OK);
  assert_int_equal(ng_curvature_measure(c, how, &trace, &logdet), NG_OK);
  fixture_expect_near("apply", out, want, 3 * all, DENSE);
  fixture_expect_near("diagonal", diagonal, want_diagonal, all, DENSE);
  fixture_expect_near("trace", &trace, &want_trace, 1, DENSE);
  if (fabs(logdet - want_logdet) > DENSE * (double)all)
    fail_msg("logdet %g %g", logdet, want_logdet);
  free(M);
}

/* D [rows, cols] of one group of sample i. */
static void dense_gradient(const ng_factors *f, const ng_samples *x, int64_t i, int64_t g,
                           double *D) {
  const int64_t n = f->rows, m = f->cols;
  memset(D, 0, (size_t)(n * m) * sizeof *D);
  for (int64_t s = 0; s < x->positions; s++) {
    const int64_t at = (i * x->positions + s) * f->groups + g;
    for (int64_t k = 0; k < n * m; k++)
      D[k] += x->left[at * n + k / m] * x->right[at * m + k % m];
  }
}

enum { SAMPLES = 4, POSITIONS = 3, SAMPLE_VALUES = SAMPLES * POSITIONS * GROUPS * MOST };
static void check_scores(ng_curvature *c, const ng_factors *f, double *const *dense,
                         const ng_damped_power *how, rng *r) {
  double values[4][SAMPLE_VALUES], D[2][ORDER], MD[ORDER], logdet = 0.0;
  double pair[SAMPLES * SAMPLES], self[SAMPLES], want[SAMPLES * SAMPLES], want_self[SAMPLES];
  const int64_t n = f->rows, m = f->cols, N = n * m;
  double *M = zeros(N * N);
  ng_samples x = {sizeof x, rng_between(r, 1, SAMPLES), rng_between(r, 1, POSITIONS), values[0],
                  values[1]};
  ng_samples y = {sizeof y, rng_between(r, 1, SAMPLES), rng_between(r, 1, POSITIONS), values[2],
                  values[3]};
  for (int64_t i = 0; i < 4 * SAMPLE_VALUES; i++)
    values[i / SAMPLE_VALUES][i % SAMPLE_VALUES] = rng_value(r);
  for (int i = 0; i < SAMPLES * SAMPLES; i++)
    pair[i] = want[i] = self[i % SAMPLES] = want_self[i % SAMPLES] = 0.5; /* scores are added */
  for (int64_t g = 0; g < f->groups; g++) {
    predict(n, m, dense[0] + g * n * n, dense[1] + g * m * m, how, M, &logdet);
    for (int64_t i = 0; i < x.samples; i++) {
      dense_gradient(f, &x, i, g, D[0]);
      dense_product(false, false, N, 1, N, M, D[0], MD);
      for (int64_t j = 0; j <= y.samples; j++) { /* the last is x_i itself */
        if (j < y.samples) dense_gradient(f, &y, j, g, D[1]);
        double *to = j < y.samples ? &want[i * y.samples + j] : &want_self[i];
        for (int64_t k = 0; k < N; k++)
          *to += MD[k] * D[j < y.samples][k];
      }
    }
  }
  assert_int_equal(ng_curvature_scores(c, how, &x, &y, pair), NG_OK);
  assert_int_equal(ng_curvature_scores(c, how, &x, NULL, self), NG_OK);
  fixture_expect_near("scores", pair, want, x.samples * y.samples, 100.0 * DENSE);
  fixture_expect_near("self", self, want_self, x.samples, 100.0 * DENSE);
  free(M);
}

static void powers_match_a_dense_product(void **state) {
  static const char *const split[] = {NULL, "joint", "full", "pi", "root"};
  static const double power[] = {-1.0, -0.5, 0.5, 1.0, 0.0};
  rng r = {test_seed()};
  for (int64_t k = 0; k < test_repetitions(20); k++) {
    double *dense[2] = {zeros(GROUPS * ORDER), zeros(GROUPS * ORDER)}, left[ALL], right[ALL];
    ng_factors f = {.struct_size = sizeof f,
                    .groups = rng_between(&r, 1, GROUPS),
                    .rows = rng_between(&r, 1, MOST),
                    .cols = rng_between(&r, 1, MOST),
                    .left_diagonal = rng_below(&r, 4) == 0,
                    .right_diagonal = rng_below(&r, 4) == 0,
                    .left = left,
                    .right = right};
    for (int64_t g = 0; g < f.groups; g++) {
      const int64_t n = f.rows, m = f.cols;
      draw_factor(&r, n, f.left_diagonal, dense[0] + g * n * n,
                  left + g * (f.left_diagonal ? n : n * n));
      draw_factor(&r, m, f.right_diagonal, dense[1] + g * m * m,
                  right + g * (f.right_diagonal ? m : m * m));
    }
    ng_curvature *c = NULL;
    assert_int_equal(ng_curvature_create(ctx, &f, &c), NG_OK);
    for (int s = 0; s < 5; s++) {
      for (int p = 0; p < 5; p++) {
        const ng_damped_power how = {sizeof how, 0.05 + rng_real(&r), power[p], split[s]};
        check_power(c, &f, dense, &how, &r);
        check_scores(c, &f, dense, &how, &r);
      }
    }
    ng_curvature_destroy(&c);
    assert_null(c);
    free(dense[0]);
    free(dense[1]);
  }
}

/* ---- second moments in the eigenbases ---------------------------------------------------------*/

/* M of one group of EKFAC: eigenvectors of both factors, mean squares of the gradients of all samples. */
static void predict_corrected(const ng_factors *f, double *const *dense, const ng_samples *x,
                              int64_t parts, int64_t g, const ng_damped_power *how, double *M) {
  const int64_t n = f->rows, m = f->cols, N = n * m;
  double d[MOST], L[MOST * MOST], R[MOST * MOST], D[ORDER], v[ORDER] = {0}, count = 0.0;
  dense_eigen(n, dense[0] + g * n * n, d, L);
  dense_eigen(m, dense[1] + g * m * m, d, R);
  for (int64_t k = 0; k < parts; k++) {
    for (int64_t i = 0; i < x[k].samples; i++) {
      dense_gradient(f, &x[k], i, g, D);
      dense_product(true, false, n, m, n, L, D, D);
      dense_product(false, false, n, m, m, D, R, D);
      for (int64_t e = 0; e < N; e++)
        v[e] += D[e] * D[e];
      count += 1.0;
    }
  }
  for (int64_t i = 0; i < N * N; i++) {
    M[i] = 0.0;
    for (int64_t e = 0; e < N; e++)
      M[i] += L[i / N / m * n + e / m] * R[i / N % m * m + e % m] * L[i % N / m * n + e / m] *
              R[i % N % m * m + e % m] * pow(v[e] / count + how->damping, how->power);
  }
}

static void corrected_powers_have_the_second_moments_of_samples(void **state) {
  enum { PARTS = 2 };
  static const double power[] = {-1.0, -0.5, 1.0};
  rng r = {test_seed() + 11};
  for (int64_t k = 0; k < test_repetitions(10); k++) {
    double *dense[2] = {zeros(GROUPS * ORDER), zeros(GROUPS * ORDER)}, left[ALL], right[ALL];
    double values[PARTS][2][SAMPLE_VALUES], x[ALL], out[ALL], want[ALL], diagonal[ALL], on[ALL];
    double *M = zeros(ORDER * ORDER);
    ng_samples part[PARTS];
    const ng_factors f = {.struct_size = sizeof f,
                          .groups = rng_between(&r, 1, GROUPS),
                          .rows = rng_between(&r, 1, MOST),
                          .cols = rng_between(&r, 1, MOST),
                          .left_diagonal = rng_below(&r, 4) == 0,
                          .left = left,
                          .right = right};
    const int64_t n = f.rows, m = f.cols, N = n * m;
    for (int64_t g = 0; g < f.groups; g++) {
      draw_factor(&r, n, f.left_diagonal, dense[0] + g * n * n,
                  left + g * (f.left_diagonal ? n : n * n));
      draw_factor(&r, m, false, dense[1] + g * m * m, right + g * m * m);
    }
    ng_curvature *c = NULL;
    assert_int_equal(ng_curvature_create(ctx, &f, &c), NG_OK);
    for (int i = 0; i < PARTS; i++) {
      for (int64_t e = 0; e < 2 * SAMPLE_VALUES; e++)
        values[i][e / SAMPLE_VALUES][e % SAMPLE_VALUES] = rng_value(&r);
      part[i] = (ng_samples){sizeof part[i], rng_between(&r, 1, SAMPLES),
                             rng_between(&r, 1, POSITIONS), values[i][0], values[i][1]};
      assert_int_equal(ng_curvature_correct(c, &part[i]), NG_OK);
    }
    for (int64_t e = 0; e < f.groups * N; e++)
      x[e] = rng_value(&r);
    for (int p = 0; p < 3; p++) {
      const ng_damped_power how = {sizeof how, 0.2, power[p], NULL};
      for (int64_t g = 0; g < f.groups; g++) {
        predict_corrected(&f, dense, part, PARTS, g, &how, M);
        dense_product(false, false, N, 1, N, M, x + g * N, want + g * N);
        for (int64_t e = 0; e < N; e++)
          on[g * N + e] = M[e * (N + 1)];
      }
      assert_int_equal(ng_curvature_apply(c, &how, x, 1, out), NG_OK);
      assert_int_equal(ng_curvature_diagonal(c, &how, diagonal), NG_OK);
      fixture_expect_near("corrected", out, want, f.groups * N, CORRECTED);
      fixture_expect_near("diagonal", diagonal, on, f.groups * N, CORRECTED);
    }
    const ng_damped_power split = {sizeof split, 0.2, -1.0, "pi"};
    assert_int_equal(ng_curvature_apply(c, &split, x, 1, out), NG_ERR_ARG);
    assert_non_null(strstr(ng_last_error(ctx), "split = pi: a corrected curvature has only joint"));
    ng_curvature_destroy(&c);
    free(dense[0]);
    free(dense[1]);
    free(M);
  }
}

/* ---- refused arguments -----------------------------------------------------------------------*/

static void expect_refused(ng_status st, const char *text) {
  assert_int_equal(st, NG_ERR_ARG);
  if (strstr(ng_last_error(ctx), text) == NULL)
    fail_msg("expected '%s' in '%s'", text, ng_last_error(ctx));
}

static void wrong_arguments_are_refused(void **state) {
  double L[4] = {1.0, 0.0, 0.0, 0.0}, R[1] = {2.0}, x[2] = {1.0, 1.0}, out[2] = {7.0, 7.0};
  ng_factors f = {sizeof f, 1, 2, 1, 0, 0, L, R};
  ng_curvature *c = NULL;
  L[1] = 0.5;
  expect_refused(ng_curvature_create(ctx, &f, &c), "left is not symmetric in row 1, column 0");
  L[1] = 0.0;
  R[0] = NAN;
  expect_refused(ng_curvature_create(ctx, &f, &c), "right is not finite");
  R[0] = 2.0;
  f.rows = 0;
  expect_refused(ng_curvature_create(ctx, &f, &c), "expected >= 1");
  f.rows = 2;
  assert_null(c);
  assert_int_equal(ng_curvature_create(ctx, &f, &c), NG_OK);
  ng_damped_power m = {sizeof m, 0.0, -1.0, NULL};
  expect_refused(ng_curvature_apply(c, &m, x, 1, out), "singular");
  m.damping = -1.0;
  expect_refused(ng_curvature_diagonal(c, &m, out), "damping = -1: must be >= 0");
  m = (ng_damped_power){sizeof m, 1.0, NAN, NULL};
  expect_refused(ng_curvature_diagonal(c, &m, out), "power = nan");
  m = (ng_damped_power){sizeof m, 1.0, 1.0, "sum"};
  expect_refused(ng_curvature_measure(c, &m, NULL, NULL), "split = sum: expected joint, full");
  m.split = NULL;
  x[1] = INFINITY;
  expect_refused(ng_curvature_apply(c, &m, x, 1, out), "x is not finite");
  expect_refused(ng_curvature_apply(c, &m, out, -1, out), "count is below 0");
  const ng_samples none = {sizeof none, 0, 1, out, out}, bad = {sizeof bad, 1, 1, x, out};
  const ng_samples good = {sizeof good, 1, 1, out, out};
  expect_refused(ng_curvature_scores(c, &m, &none, NULL, out), "x has 0 samples");
  expect_refused(ng_curvature_scores(c, &m, &good, &bad, out), "an array of y is not finite");
  expect_refused(ng_curvature_correct(c, &bad),
                 "ng_curvature_correct: an array of x is not finite");
  expect_refused(ng_curvature_correct(c, NULL), "ng_curvature_correct: x is NULL");
  assert_true(out[0] == 7.0 && out[1] == 7.0);
  double trace = 0.0, logdet = 0.0;
  m = (ng_damped_power){sizeof m, 0.0, 1.0, NULL};
  assert_int_equal(ng_curvature_measure(c, &m, &trace, &logdet), NG_OK);
  assert_true(trace == 2.0 && isinf(logdet) && logdet < 0.0);
  ng_curvature_destroy(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(powers_match_a_dense_product),
      cmocka_unit_test(corrected_powers_have_the_second_moments_of_samples),
      cmocka_unit_test(wrong_arguments_are_refused),
  };
  return cmocka_run_group_tests(tests, open_context, close_context);
}
