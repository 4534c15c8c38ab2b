/* t_ladder.c: for each rung of the ladder one matrix that needs it, with the counters of the report.
 *
 * The tests write the running average directly; stat_decay = 1 and stat_start = identity keep it.  Cholesky with
 * damping_split = full and lambda = 1e-3 fails on diag(1, -x) until the damping exceeds x. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dense.h"
#include "draw.h"
#include "plane.h"
#include "family/kronecker.h"
#include "fixture.h"
#include "model/model.h"

typedef struct ladder_run {
  fixture f;
  float a[3 * 2], g[3 * 2], dw[4];
} ladder_run;

static const float gradient[4] = {0.5f, -1.0f, 2.0f, 0.25f};

static void open_layer(ladder_run *f, const char *linalg, const char *solver) {
  char set[200];
  const fixture_how how = {.linalg = linalg, .threads = 1};
  const plane dw[2] = {plane_of(f->dw, 2, 2, NG_F32)};
  (void)snprintf(set, sizeof set,
                 "solver=%s damping=0.001 damping_split=full stat_decay=1 stat_start=identity "
                 "solve_period=1 clip=none",
                 solver);
  fixture_ok(&f->f, fixture_open(&f->f, set, &how));
  fixture_ok(&f->f, fixture_add_linear(&f->f, "fc", dw, NULL));
  fixture_ok(&f->f, ng_ready(f->f.p));
  for (int i = 0; i < 6; i++) {
    f->a[i] = f->g[i] = 1.0f;
  }
}

static void write_average(ladder_run *f, float a00, float a10, float a11) {
  ng_sym F = {f->f.p->block[0]->stat[NG_SIDE_A].part[0].average, 2};
  F.a[ng_sym_at(F.n, 0, 0)] = a00;
  F.a[ng_sym_at(F.n, 1, 0)] = a10;
  F.a[ng_sym_at(F.n, 1, 1)] = a11;
}

static ng_status take_step(ladder_run *f) {
  const plane a = plane_of(f->a, 3, 2, NG_F32), g = plane_of(f->g, 3, 2, NG_F32);
  memcpy(f->dw, gradient, sizeof gradient);
  fixture_ok(&f->f, fixture_begin_and_observe(&f->f, 3, 0, &a, &g));
  return ng_step(f->f.p, 0.1);
}

static void expect_counters(ladder_run *f, int32_t rung, int64_t more, int64_t in_double,
                            int64_t last, int64_t plain) {
  const ng_report r = fixture_report(&f->f);
  assert_int_equal(fixture_layer_report(&f->f, 0).rung, rung);
  assert_int_equal(r.more_damping, more);
  assert_int_equal(r.in_double, in_double);
  assert_int_equal(r.kept_last, last);
  assert_int_equal(r.plain, plain);
}

/* Fail unless PD is the direction for A = diag(x, y), with the damping, and G = (1 + 1e-3) I, up to rounding. */
static void expect_direction(const ladder_run *f, double x, double y) {
  for (int r = 0; r < 2; r++) {
    const double want[2] = {(double)gradient[2 * r] / (x * 1.001),
                            (double)gradient[2 * r + 1] / (y * 1.001)};
    for (int c = 0; c < 2; c++) {
      assert_true(fabs((double)f->dw[2 * r + c] - want[c]) <= 1e-5 * fabs(want[c]));
    }
  }
}

static const char *const linalg[] = {"ref",
#if defined(NG_HAVE_BLAS)
                                     "cpu"
#endif
};
enum { LINALGS = sizeof linalg / sizeof linalg[0] };

static void a_good_matrix_needs_no_rung(void **state) {
  for (int i = 0; i < LINALGS; i++) {
    ladder_run f;
    open_layer(&f, linalg[i], "cholesky");
    assert_int_equal(take_step(&f), NG_OK);
    expect_counters(&f, 0, 0, 0, 0, 0);
    expect_direction(&f, 1.001, 1.001);
    fixture_close(&f.f);
  }
}

static void rungs_1_to_3_raise_the_damping(void **state) {
  const double below[3] = {0.005, 0.05, 0.5};
  for (int i = 0; i < LINALGS; i++) {
    for (int32_t rung = 1; rung <= 3; rung++) {
      ladder_run f;
      const double d = 1e-3 * pow(10.0, rung);
      open_layer(&f, linalg[i], "cholesky");
      write_average(&f, 1.0f, 0.0f, (float)-below[rung - 1]);
      assert_int_equal(take_step(&f), NG_RESCUED);
      expect_counters(&f, rung, 1, 0, 0, 0);
      expect_direction(&f, 1.0 + d, d - below[rung - 1]);
      assert_int_equal(take_step(&f), NG_RESCUED);
      expect_counters(&f, rung, 2, 0, 0, 0);
      fixture_close(&f.f);
    }
  }
}

/* The entries of A are 1e9 and differ by one unit of f32 (64).  Their Cholesky factor in f32 is noise, and a damping of
 * 1 is below half a unit.  Double precision has seven digits to spare. */
static void rung_4_solves_in_double(void **state) {
  for (int i = 0; i < LINALGS; i++) {
    ladder_run f;
    open_layer(&f, linalg[i], "cholesky");
    write_average(&f, 1e9f, 1e9f - 64.0f, 1e9f);
    assert_int_equal(take_step(&f), NG_RESCUED);
    expect_counters(&f, 4, 0, 1, 0, 0);
    /* (1,-1) is an eigenvector of A with eigenvalue 64.001; the gradient (0.5,-1) has the component 0.75 */
    const double along = 0.75 / (64.001 * 1.001);
    assert_true(fabs((double)(f.dw[0] - f.dw[1]) / 2.0 - along) <= 1e-4 * along);
    fixture_close(&f.f);
  }
}

/* No rung solves the average: the result is the last good inverse or, without one, the plain gradient. */
static void rungs_5_and_6_keep_the_last_result_or_the_gradient(void **state) {
  static const float bad[] = {NAN, INFINITY, -5.0f, -5.0f};
  for (int i = 0; i < LINALGS * 4 * 2; i++) {
    const int kind = i / 2 % 4;
    const bool before = i % 2 == 1; /* in some cases a good step precedes the bad one */
    ladder_run f;
    float good[4];
    memcpy(good, gradient, sizeof good);
    open_layer(&f, linalg[i / 8], kind == 3 ? "eigen" : "cholesky");
    write_average(&f, 2.0f, 0.0f, 3.0f);
    if (before) assert_int_equal(take_step(&f), NG_OK);
    if (before) memcpy(good, f.dw, sizeof good);
    write_average(&f, 2.0f, 0.0f, bad[kind]);
    assert_int_equal(take_step(&f), NG_RESCUED);
    expect_counters(&f, before ? 5 : 6, 0, 0, before, !before);
    assert_memory_equal(good, f.dw, sizeof good);
    write_average(&f, 2.0f, 0.0f, 3.0f); /* the next step succeeds */
    assert_int_equal(take_step(&f), NG_OK);
    expect_counters(&f, 0, 0, 0, before, !before);
    fixture_close(&f.f);
  }
}

/* The entries below fail in f32, and in f64 if fails_in_double. */
static bool fails_in_double;

static bool computes_eigen(ng_queue *q, int64_t n, void *V, ng_dtype t, void *w, void *work,
                           int *info) {
  if (t == NG_F64 && !fails_in_double) q->backend->host->eigen(q, n, V, t, w, work, info);
  return t == NG_F64 && !fails_in_double;
}

static void fail_eigen(ng_queue *q, int64_t n, void *V, ng_dtype t, void *w, void *work,
                       int *info) {
  if (!computes_eigen(q, n, V, t, w, work, info)) *info = 1;
}

/* Return success with wrong eigenvectors, as LAPACK does on NaN. */
static void fake_vectors(ng_queue *q, int64_t n, void *V, ng_dtype t, void *w, void *work,
                         int *info) {
  if (computes_eigen(q, n, V, t, w, work, info)) return;
  for (int64_t i = 0; i < n * n; i++) {
    ng_set_number(V, t, i, 0.5);
  }
  for (int64_t i = 0; i < n; i++) {
    ng_set_number(w, t, i, (double)i);
  }
  *info = 0;
}

/* Let a queue use a copy of its linear algebra; return the copy. */
static ng_linalg_ops *replace_linalg(ng_queue *q) {
  static ng_backend backend;
  static ng_linalg_ops ops;
  ops = *q->backend->linalg;
  backend = *q->backend;
  backend.linalg = &ops;
  q->backend = &backend;
  return &ops;
}

/* The eigen solver returns an error or wrong vectors.  Double precision takes over, then the last good result. */
static void a_failed_eigen_solver_is_noticed(void **state) {
  void (*const broken[])(ng_queue *, int64_t, void *, ng_dtype, void *, void *,
                         int *) = {fail_eigen, fake_vectors};
  for (int i = 0; i < LINALGS; i++) {
    for (int k = 0; k < 2; k++) {
      ladder_run f;
      open_layer(&f, linalg[i], "eigen");
      write_average(&f, 2.0f, 0.5f, 3.0f);
      assert_int_equal(take_step(&f), NG_OK);
      float good[4];
      memcpy(good, f.dw, sizeof good);
      ng_linalg_ops *ops = replace_linalg(f.f.ctx->queue);
      ops->eigen = broken[k];
      fails_in_double = false;
      assert_int_equal(take_step(&f), NG_RESCUED);
      expect_counters(&f, 4, 0, 2, 0, 0); /* A and G */
      for (int j = 0; j < 4; j++) {       /* f32 against double: a few roundings */
        assert_true(fabs((double)(f.dw[j] - good[j])) <= 1e-5 * fabs((double)good[j]));
      }
      fails_in_double = true;
      assert_int_equal(take_step(&f), NG_RESCUED);
      expect_counters(&f, 5, 0, 2, 2, 0);
      fixture_close(&f.f);
    }
  }
}

/* The residual detects a wrong inverse although `factor` and `invert` report success. */
static void skip_invert(ng_queue *q, int64_t n, void *L, ng_dtype t, int *info) {
  if (t == NG_F64) {
    ng_linalg_ref.invert(q, n, L, t, info);
  } else {
    *info = 0;
  }
}

static void a_wrong_inverse_is_noticed(void **state) {
  ladder_run f;
  open_layer(&f, "ref", "cholesky");
  write_average(&f, 2.0f, 0.5f, 3.0f);
  replace_linalg(f.f.ctx->queue)->invert = skip_invert;
  assert_int_equal(take_step(&f), NG_RESCUED);
  expect_counters(&f, 4, 0, 1, 0, 0); /* A only: L of G = 1.001 I equals the inverse up to 1.5e-3 */
  fixture_close(&f.f);
}

/* One entry of a result is wrong.  The check covers the worst conditioned column and the whole diagonal. */
static struct {
  const ng_linalg_ops *real;
  float entry;
  /* factor: corrupt L instead of the inverse; in_double: also corrupt the solve in double */
  bool factor, in_double;
} wrong;

static void corrupt_factor(ng_queue *q, int64_t n, void *S, ng_dtype t, int *info) {
  wrong.real->factor(q, n, S, t, info);
  if (wrong.in_double && t == NG_F32) *info = 1;
  if (wrong.factor && (wrong.in_double || t == NG_F32))
    ng_set_number(S, t, ng_sym_at(n, 1, 1), (double)wrong.entry);
}

static void corrupt_inverse(ng_queue *q, int64_t n, void *L, ng_dtype t, int *info) {
  wrong.real->invert(q, n, L, t, info);
  if (!wrong.factor && (wrong.in_double || t == NG_F32))
    ng_set_number(L, t, ng_sym_at(n, 1, 1), (double)wrong.entry);
}

static void one_wrong_element_of_a_result_is_noticed(void **state) {
  static const struct {
    float worst; /* F = diag(4, worst, 9) */
    float of_inverse, of_factor;
  } entry[] = {{1.0f, 1.5f, 0.5f}, {6.0f, -0.1f, -2.4494898f}, {6.0f, NAN, NAN}};
  ladder_run f;
  open_layer(&f, "ref", "cholesky");
  ng_queue *q = f.f.ctx->queue;
  wrong.real = q->backend->linalg;
  ng_linalg_ops *ops = replace_linalg(q);
  ops->factor = corrupt_factor;
  ops->invert = corrupt_inverse;
  for (int i = 0; i < 12; i++) {
    float F[6] = {0.0f}, R[6], scratch[512];
    wrong.factor = i % 2 == 1;
    wrong.in_double = i % 4 > 1;
    wrong.entry = wrong.factor ? entry[i / 4].of_factor : entry[i / 4].of_inverse;
    F[ng_sym_at(3, 0, 0)] = 4.0f;
    F[ng_sym_at(3, 1, 1)] = entry[i / 4].worst;
    F[ng_sym_at(3, 2, 2)] = 9.0f;
    ng_matrix m = {.result = wrong.factor ? NG_RESULT_CHOLESKY : NG_RESULT_INVERSE,
                   .n = 3,
                   .scale = 1.0,
                   .F = F,
                   .average_dtype = NG_F32,
                   .result_dtype = NG_F32,
                   .R = R,
                   .damping = 1e-6};
    ng_matrix *list = &m;
    assert_true(ng_matrix_scratch(q, &m) <= 512);
    ng_linalg(q)->solve(q, &list, 1, scratch);
    ng_queue_wait(q);
    assert_int_equal(ng_matrix_retry(q, &m, scratch),
                     wrong.in_double ? NG_DAMPED_NONE : NG_DAMPED_DOUBLE);
  }
  fixture_close(&f.f);
}

/* PD of zero factors is defined: D / lambda^2, if both sides have the full damping. */
static void zero_factors_divide_by_the_damping(void **state) {
  for (int i = 0; i < LINALGS; i++) {
    ladder_run f;
    open_layer(&f, linalg[i], "cholesky");
    write_average(&f, 0.0f, 0.0f, 0.0f);
    assert_int_equal(take_step(&f), NG_OK);
    expect_counters(&f, 0, 0, 0, 0, 0);
    expect_direction(&f, 1e-3, 1e-3);
    fixture_close(&f.f);
  }
}

/* ---- features of very different scale --------------------------------------------------------*/

enum { FEATURES = 96, SAMPLES = 256 };

/* PD of one output with G = 1, features of scales 1e-2 to 1e2 and joint damping 1e-3, against a dense solve of (A
 * + 1e-3 I) x = D in double.  Feature i has the scale number order[i]. */
static double measure_direction_error(const char *backend, const char *solver, int64_t n,
                                      const int64_t *order) {
  static float a[SAMPLES * FEATURES], g[SAMPLES], dw[FEATURES];
  static double A[FEATURES * FEATURES], D[FEATURES];
  rng r = {test_seed()};
  char set[160];
  fixture f;
  const fixture_how how = {.linalg = backend, .threads = 1};
  const plane grad[2] = {plane_of(dw, 1, n, NG_F32)};
  (void)snprintf(set, sizeof set, "solver=%s damping=0.001 damping_split=%s clip=none", solver,
                 strcmp(solver, "eigen") == 0 ? "joint" : "root");
  fixture_ok(&f, fixture_open(&f, set, &how));
  fixture_ok(&f, fixture_add_linear(&f, "fc", grad, NULL));
  fixture_ok(&f, ng_ready(f.p));
  memset(A, 0, sizeof A);
  for (int64_t rank = 0; rank < n; rank++) { /* every order has the same numbers */
    const double scale = pow(10.0, 4.0 * (double)rank / (double)(n - 1) - 2.0);
    int64_t i = 0;
    while (order[i] != rank)
      i++;
    for (int64_t s = 0; s < SAMPLES; s++) {
      a[s * n + i] = (float)(scale * rng_value(&r));
    }
    dw[i] = (float)(scale * rng_value(&r));
    D[i] = (double)dw[i];
  }
  for (int64_t s = 0; s < SAMPLES; s++) {
    g[s] = 1.0f / SAMPLES;
    for (int64_t i = 0; i < n * n; i++) {
      A[i] += (double)a[s * n + i / n] * (double)a[s * n + i % n] / SAMPLES;
    }
  }
  const plane in = plane_of(a, SAMPLES, n, NG_F32), out = plane_of(g, SAMPLES, 1, NG_F32);
  fixture_ok(&f, fixture_begin_and_observe(&f, SAMPLES, 0, &in, &out));
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  fixture_close(&f);
  for (int64_t i = 0; i < n; i++) {
    A[i * n + i] += 1e-3;
  }
  dense_solve(n, A, 1, D);
  double off = 0.0, size = 0.0;
  for (int64_t i = 0; i < n; i++) {
    off += ((double)dw[i] - D[i]) * ((double)dw[i] - D[i]);
    size += D[i] * D[i];
  }
  return sqrt(off / size);
}

/* The order of features does not change the result.  f32 eigenvalues would be off by 6e-8 of the largest, which is
 * 1e3 or more and exceeds the damping.  1e-4: rounding of A and of the eigenvectors to f32. */
static void the_order_of_features_does_not_matter(void **state) {
  for (int i = 0; i < LINALGS; i++) {
    for (int64_t n = 6; n <= FEATURES; n *= 4) {
      for (int kind = 0; kind < 3; kind++) {
        int64_t order[FEATURES];
        /* ascending, descending, mixed (5 and n have no common factor) */
        for (int64_t j = 0; j < n; j++)
          order[j] = kind == 0 ? j : kind == 1 ? n - 1 - j : j * 5 % n;
        const double off = measure_direction_error(linalg[i], "eigen", n, order);
        if (!(off <= 1e-4))
          fail_msg("%s, %d features, order %d: off by %g", linalg[i], (int)n, kind, off);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_good_matrix_needs_no_rung),
      cmocka_unit_test(rungs_1_to_3_raise_the_damping),
      cmocka_unit_test(rung_4_solves_in_double),
      cmocka_unit_test(rungs_5_and_6_keep_the_last_result_or_the_gradient),
      cmocka_unit_test(a_failed_eigen_solver_is_noticed),
      cmocka_unit_test(a_wrong_inverse_is_noticed),
      cmocka_unit_test(zero_factors_divide_by_the_damping),
      cmocka_unit_test(the_order_of_features_does_not_matter),
      cmocka_unit_test(one_wrong_element_of_a_result_is_noticed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
