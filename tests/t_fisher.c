/* t_fisher.c: the Fisher matrix of given gradients, compared with a dense inverse in long double.
 *
 * Tolerance.  The library factors a matrix of order k = min(m, size of the block) in double by Cholesky, with a
 * backward error of at most k eps |S|: 8 k 2.2e-16 cond of the largest entry, cond = 1 + |G|^2 / (lambda m). */
#include "unit_test.h"
#include "fixture.h"
#include "natgrad.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { M = 48, D = 2400, DENSE = 60 };

static ng_context *ctx;

static int open_context(void **state) {
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  c.threads = 3;
  return ng_context_create(NG_VERSION, &c, NULL, 0, &ctx) == NG_OK ? 0 : -1;
}

static int close_context(void **state) {
  ng_fisher *none = NULL;
  ng_fisher_destroy(&none);
  ng_context_destroy(&ctx);
  return 0;
}

/* x_s(i) = sin((i + 1)(s + 0.5)) */
static double wave_at(double s, int64_t i) { return sin((double)(i + 1) * (s + 0.5)); }

static ng_fisher *new_fisher(const float *g, int64_t m, int64_t d, int64_t ld, double damping,
                             const int64_t *end, int64_t blocks) {
  ng_fisher *f = NULL;
  const ng_array rows = ng_array_rows((void *)(uintptr_t)g, m, d, ld, NG_F32);
  assert_int_equal(ng_fisher_create(ctx, &rows, damping, end, blocks, &f), NG_OK);
  return f;
}

/* Invert the blocks of F by Gauss-Jordan elimination: [d, d], zeros outside the blocks. */
static void invert_dense(const float *g, int64_t m, int64_t d, double damping, const int64_t *end,
                         int64_t blocks, long double *inverse) {
  static long double A[DENSE][2 * DENSE];
  memset(inverse, 0, (size_t)(d * d) * sizeof *inverse);
  for (int64_t b = 0, from = 0; b < blocks; from = end[b++]) {
    const int64_t B = end[b] - from;
    for (int64_t i = 0; i < B; i++) {
      for (int64_t j = 0; j < B; j++) {
        long double sum = 0.0L;
        for (int64_t r = 0; r < m; r++) {
          sum += (long double)g[r * d + from + i] * (long double)g[r * d + from + j];
        }
        A[i][j] = sum / (long double)m + (i == j ? (long double)damping : 0.0L);
        A[i][B + j] = i == j ? 1.0L : 0.0L;
      }
    }
    for (int64_t i = 0; i < B; i++) { /* positive definite: no pivoting */
      for (int64_t k = 0; k < B; k++) {
        const long double by = k == i ? 1.0L : A[k][i] / A[i][i];
        for (int64_t j = 0; j < 2 * B && k != i; j++) {
          A[k][j] -= by * A[i][j];
        }
      }
    }
    for (int64_t i = 0; i < B; i++) {
      for (int64_t j = 0; j < B; j++) {
        inverse[(from + i) * d + from + j] = A[i][B + j] / A[i][i];
      }
    }
  }
}

static void check_solutions(int64_t m, int64_t d, double damping, const int64_t *end,
                            int64_t blocks) {
  static float g[M * DENSE];
  static long double inverse[DENSE * DENSE];
  double x[DENSE], out[DENSE], diagonal[DENSE], norm2 = 0.0;
  for (int64_t r = 0; r < m; r++) {
    for (int64_t i = 0; i < d; i++) {
      g[r * d + i] = (float)(wave_at(0.3 + 0.9 * (double)r, i) + 0.5 * wave_at(0.1, i));
      norm2 += (double)g[r * d + i] * (double)g[r * d + i];
    }
  }
  for (int64_t i = 0; i < d; i++) {
    x[i] = wave_at(2.0, i);
  }
  invert_dense(g, m, d, damping, end, blocks, inverse);
  ng_fisher *f = new_fisher(g, m, d, d, damping, end, blocks);
  assert_int_equal(ng_fisher_diagonal(f, diagonal), NG_OK);
  memcpy(out, x, sizeof out);
  assert_int_equal(ng_fisher_solve(f, out, out), NG_OK); /* solve in place */
  const double cond = 1.0 + norm2 / (damping * (double)m);
  const double tolerance = 8.0 * (double)d * 2.2e-16 * cond;
  long double most = 0.0L, most_out = 0.0L, off = 0.0L, off_out = 0.0L;
  for (int64_t i = 0; i < d; i++) {
    long double want = 0.0L;
    for (int64_t j = 0; j < d; j++) {
      want += inverse[i * d + j] * (long double)x[j];
    }
    most = fmaxl(most, inverse[i * d + i]);
    most_out = fmaxl(most_out, fabsl(want));
    off = fmaxl(off, fabsl(inverse[i * d + i] - (long double)diagonal[i]));
    off_out = fmaxl(off_out, fabsl(want - (long double)out[i]));
  }
  if (off > tolerance * most || off_out > tolerance * most_out) {
    fail_msg("m %lld d %lld blocks %lld damping %g: off by %Lg and %Lg, expected %g", (long long)m,
             (long long)d, (long long)blocks, damping, off / most, off_out / most_out, tolerance);
  }
  ng_fisher_destroy(&f);
  assert_null(f);
}

static void solutions_match_a_dense_inverse(void **state) {
  const int64_t whole[] = {DENSE}, four[] = {1, 17, 45, DENSE}, one[] = {1};
  for (double damping = 1e-1; damping > 0.5e-8; damping /= 10.0) {
    check_solutions(1, DENSE, damping, whole, 1);
    check_solutions(7, DENSE, damping, whole, 1);
    check_solutions(M, DENSE, damping, whole, 1);
    check_solutions(20, DENSE, damping, four, 4); /* blocks narrower and wider than m */
    check_solutions(3, 1, damping, one, 1);
  }
}

/* Rows with gaps, and enough elements for several threads; compared with the published recursion. */
static void solutions_match_the_published_recursion(void **state) {
  static float g[M * (D + 5)];
  static double diagonal[D], x[D], out[D], V[M][D], q[M];
  const double damping = 0.01;
  for (int64_t r = 0; r < M; r++) {
    for (int64_t i = 0; i < D + 5; i++) {
      /* NaN in elements that the library must not read */
      g[r * (D + 5) + i] = i < D ? (float)wave_at(0.3 + 0.9 * (double)r, i) : NAN;
    }
  }
  for (int64_t i = 0; i < D; i++) {
    x[i] = wave_at(2.0, i);
  }
  for (int64_t r = 0; r < M; r++) {
    const float *row = g + r * (D + 5);
    for (int64_t i = 0; i < D; i++) {
      V[r][i] = (double)row[i] / damping;
    }
    for (int64_t j = 0; j < r; j++) {
      double along = 0.0;
      for (int64_t i = 0; i < D; i++) {
        along += V[j][i] * (double)row[i];
      }
      for (int64_t i = 0; i < D; i++) {
        V[r][i] -= along / q[j] * V[j][i];
      }
    }
    q[r] = M;
    for (int64_t i = 0; i < D; i++) {
      q[r] += (double)row[i] * V[r][i];
    }
  }
  ng_fisher *f = new_fisher(g, M, D, D + 5, damping, NULL, 1);
  assert_int_equal(ng_fisher_diagonal(f, diagonal), NG_OK);
  assert_int_equal(ng_fisher_solve(f, x, out), NG_OK);
  double along[M] = {0.0};
  for (int64_t r = 0; r < M; r++) {
    for (int64_t i = 0; i < D; i++) {
      along[r] += V[r][i] * x[i];
    }
  }
  for (int64_t i = 0; i < D; i++) {
    double d = 1.0 / damping, u = x[i] / damping;
    for (int64_t r = 0; r < M; r++) {
      d -= V[r][i] * V[r][i] / q[r];
      u -= along[r] / q[r] * V[r][i];
    }
    /* cond = 1 + |G|^2 / (lambda m) is 1.2e5 here, and 100 is the largest number */
    assert_true(fabs(diagonal[i] - d) <= 1e-9 * 100.0);
    assert_true(fabs(out[i] - u) <= 1e-9 * 100.0);
  }
  ng_fisher_destroy(&f);
}

static void must_refuse(const ng_array *g, double damping, const int64_t *end, int64_t blocks,
                        ng_status want, const char *why) {
  ng_fisher *f = (ng_fisher *)(uintptr_t)8;
  int64_t before, after, peak, calls;
  ng_context_allocated(ctx, &before, &peak, &calls);
  assert_int_equal(ng_fisher_create(ctx, g, damping, end, blocks, &f), want);
  ng_context_allocated(ctx, &after, &peak, &calls);
  assert_null(f);
  assert_int_equal(before, after);
  if (strstr(ng_last_error(ctx), why) == NULL)
    fail_msg("'%s' does not say '%s'", ng_last_error(ctx), why);
}

static void invalid_arguments_are_refused(void **state) {
  float g[12] = {1.0f, 2.0f, 3.0f, 4.0f, 6.0f, 5.0f, 1.0f, 2.0f, 3.0f, 4.0f, 6.0f, 5.0f};
  double x[6] = {0.0, (double)NAN}, out[6] = {7.0};
  const int64_t falls[] = {4, 2, 6}, beyond[] = {3, 7};
  ng_array rows = ng_array_matrix(g, 2, 6, NG_F32);
  ng_array vector = ng_array_vector(g, 6, NG_F32);
  ng_array wide = ng_array_matrix(g, 1, 6, NG_F64);
  must_refuse(&rows, 0.0, NULL, 1, NG_ERR_ARG, "damping is 0");
  must_refuse(&rows, (double)NAN, NULL, 1, NG_ERR_ARG, "damping is nan");
  must_refuse(&rows, 1e-30, NULL, 1, NG_ERR_ARG, "block 0 is singular");
  must_refuse(&rows, 0.1, NULL, 2, NG_ERR_ARG, "expected 1 block");
  must_refuse(&rows, 0.1, falls, 0, NG_ERR_ARG, "0 blocks");
  must_refuse(&rows, 0.1, falls, 3, NG_ERR_ARG, "end[1] is 2");
  must_refuse(&rows, 0.1, beyond, 2, NG_ERR_ARG, "end[1] is 7");
  must_refuse(&vector, 0.1, NULL, 1, NG_ERR_SHAPE, "expected [m, d] in f32");
  must_refuse(&wide, 0.1, NULL, 1, NG_ERR_SHAPE, "");
  must_refuse(NULL, 0.1, NULL, 1, NG_ERR_ARG, "gradients is NULL");
  rows = ng_array_matrix(g, 2, 3, NG_F32);
  ng_fisher *f = new_fisher(g, 2, 3, 3, 1e20, NULL, 1);
  assert_int_equal(ng_fisher_solve(f, x, out), NG_ERR_ARG);
  assert_true(out[0] == 7.0);
  assert_int_equal(ng_fisher_solve(f, NULL, out), NG_ERR_ARG);
  assert_int_equal(ng_fisher_diagonal(f, NULL), NG_ERR_ARG);
  ng_fisher_destroy(&f);
  g[7] = INFINITY;
  rows = ng_array_matrix(g, 2, 6, NG_F32);
  must_refuse(&rows, 0.1, NULL, 1, NG_ERR_ARG, "gradient 1 is not finite");
}

/* One gradient with one coordinate: 1 - |L^-1 g|^2 would be rounding error, the diagonal entry must be positive. */
static void diagonal_entries_are_positive(void **state) {
  float g[4] = {1e4f, 0.0f, 0.0f, 0.0f};
  double out[4];
  ng_fisher *f = new_fisher(g, 1, 4, 4, 1e-10, NULL, 1);
  assert_int_equal(ng_fisher_diagonal(f, out), NG_OK);
  assert_true(fabs(out[0] * 1e8 - 1.0) < 1e-12);
  assert_true(fabs(out[1] / 1e10 - 1.0) < 1e-12);
  ng_fisher_destroy(&f);
}

static void failed_allocations_leave_nothing(void **state) {
  const float g[6] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
  const ng_array rows = ng_array_matrix((void *)(uintptr_t)g, 2, 3, NG_F32);
  allocator memory = {0};
  const ng_context_config c = allocator_config(&memory);
  ng_context *mean = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, &c, NULL, 0, &mean), NG_OK);
  ng_status st = NG_ERR_NOMEM;
  int tries = 0;
  for (; st != NG_OK && tries < 20; tries++) {
    int64_t before, after, peak, calls;
    ng_fisher *f = NULL;
    ng_context_allocated(mean, &before, &peak, &calls);
    memory.fail_at = memory.calls + 1 + tries;
    st = ng_fisher_create(mean, &rows, 0.1, NULL, 1, &f);
    assert_true(st == NG_OK || st == NG_ERR_NOMEM);
    assert_true((st == NG_OK) == (f != NULL));
    ng_fisher_destroy(&f);
    ng_context_allocated(mean, &after, &peak, &calls);
    assert_int_equal(before, after);
  }
  assert_int_equal(tries, 2);
  ng_context_destroy(&mean);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(solutions_match_a_dense_inverse),
      cmocka_unit_test(solutions_match_the_published_recursion),
      cmocka_unit_test(invalid_arguments_are_refused),
      cmocka_unit_test(diagonal_entries_are_positive),
      cmocka_unit_test(failed_allocations_leave_nothing),
  };
  return cmocka_run_group_tests(tests, open_context, close_context);
}
