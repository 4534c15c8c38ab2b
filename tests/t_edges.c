/* t_edges.c: the rank-one family at the limits of f32: gradients parallel to g a', where digits cancel; results out of
 * the range of f32 or f16; products out of range.  The oracle is the formula in double. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernel/kernel.h"
#include "plane.h"
#include "draw.h"
#include "fixture.h"

enum { Q = 10, IN = 784, P = IN + 1, ALL = Q * P }; /* rows of d: the weight, then the bias */

typedef struct rank_one_step {
  const char *method, *damping, *update;
  ng_dtype dtype;       /* of the gradient */
  float a[P], g[Q];     /* the last element of a is 1, for the bias */
  float d[ALL], w[ALL]; /* gradient and weight before and after the step */
  double inner;
} rank_one_step;

/* One step with one sample, so a is the input and g the output gradient, and without a clip. */
static ng_status take_step(rank_one_step *t) {
  static uint16_t narrow[ALL];
  fixture f;
  char set[128];
  const bool half = t->dtype == NG_F16;
  float db[Q], wb[Q];
  uint16_t narrow_b[Q];
  if (half) ng_from_f32(narrow, NG_F16, t->d, ALL);
  for (int r = 0; r < Q; r++) {
    db[r] = t->d[r * P + IN];
    wb[r] = t->w[r * P + IN];
    narrow_b[r] = narrow[r * P + IN];
  }
  plane grad[2] = {plane_of(half ? (void *)narrow : t->d, Q, IN, t->dtype),
                   plane_of(half ? (void *)narrow_b : db, 1, Q, t->dtype)};
  plane weight[2] = {plane_of(t->w, Q, IN, NG_F32), plane_of(wb, 1, Q, NG_F32)};
  const plane in = plane_of(t->a, 1, IN, NG_F32), out = plane_of(t->g, 1, Q, NG_F32);
  grad[0].row_stride = weight[0].row_stride = P;
  (void)snprintf(set, sizeof set, "method=%s damping=%s clip=none update=%s", t->method, t->damping,
                 t->update);
  fixture_ok(&f, fixture_open(&f, set, NULL));
  fixture_ok(&f, fixture_linear(&f, "fc", grad, weight));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, fixture_begin_and_observe(&f, 1, 0, &in, &out));
  const ng_sgd how = fixture_sgd(1, 0);
  const ng_status st = fixture_step(&f, &how);
  t->inner = fixture_report(&f).inner;
  for (int r = 0; r < Q; r++) {
    t->d[r * P + IN] = db[r];
    t->w[r * P + IN] = wb[r];
    narrow[r * P + IN] = narrow_b[r];
  }
  if (half) ng_to_f32(t->d, narrow, NG_F16, ALL);
  fixture_close(&f);
  return st;
}

/* PD before the step; rows: Eva-f.  Return the condition number of the curvature, the growth of a rounding in double.
 */
static double predict(const rank_one_step *t, bool rows, double lambda, double *pd) {
  double alpha = 0, beta = 0, s = 0, line[Q] = {0};
  for (int i = 0; i < P; i++)
    alpha += (double)t->a[i] * (double)t->a[i];
  for (int r = 0; r < Q; r++) {
    beta += (double)t->g[r] * (double)t->g[r];
    for (int i = 0; i < P; i++)
      line[r] += (double)t->d[r * P + i] * (double)t->a[i];
    s += (double)t->g[r] * line[r];
  }
  for (int r = 0; r < Q; r++) {
    const double c =
        rows ? line[r] / (alpha + lambda) : s * (double)t->g[r] / (alpha * beta + lambda);
    for (int i = 0; i < P; i++)
      pd[r * P + i] = ((double)t->d[r * P + i] - c * (double)t->a[i]) / lambda;
  }
  return (alpha * (rows ? 1 : beta) + lambda) / lambda;
}

static double norm(const double *x) {
  double sum = 0;
  for (int i = 0; i < ALL; i++)
    sum += x[i] * x[i];
  return sqrt(sum);
}

static void make(rank_one_step *t, float inputs, bool along, uint64_t salt) {
  rng r = {test_seed() + salt};
  for (int i = 0; i < P; i++)
    t->a[i] = i == IN ? 1 : inputs * (float)rng_real(&r);
  rng_values(&r, t->g, Q);
  for (int i = 0; i < ALL; i++) {
    t->d[i] = along ? t->g[i / P] * t->a[i % P] : (float)rng_value(&r);
    t->w[i] = 0;
  }
}

/* With one sample D is g a' up to rounding, with alpha beta / lambda up to 1e10.  The library computes in double and
 * rounds once: half a unit of f32 per entry; the test allows twice that.  In f32 the error would be as large as PD,
 * and <D, PD> could be negative. */
static void cancelling_gradients_keep_their_precision(void **state) {
  static const char *const methods[] = {"eva", "eva-natgrad", "eva-f"}, *const damping[] = {
                                                                            "0.03", "0.001"};
  static rank_one_step t, sgd;
  static double pd[ALL];
  for (int k = 0; k < 12; k++) {
    t = (rank_one_step){.method = methods[k % 3],
                        .damping = damping[k / 3 % 2],
                        .update = "gradient",
                        .dtype = NG_F32};
    make(&t, k < 6 ? 255 : 16, true, (uint64_t)k);
    sgd = t;
    sgd.update = "sgd";
    const double condition = predict(&t, k % 3 == 2, strtod(t.damping, NULL), pd);
    double inner = 0, gap = 0;
    for (int i = 0; i < ALL; i++)
      inner += pd[i] * (double)t.d[i];
    assert_int_equal(take_step(&t), NG_OK);
    assert_int_equal(take_step(&sgd), NG_OK);
    for (int i = 0; i < ALL; i++) {
      gap = fmax(gap, fabs((double)t.d[i] - pd[i]));
      gap = fmax(gap, fabs((double)sgd.w[i] + pd[i]));
    }
    if (!(gap <= 0x1p-23 * norm(pd)))
      fail_msg("%s, case %d: off by %g of %g", t.method, k, gap, norm(pd));
    if (!(fabs(t.inner - inner) <= 0x1p-46 * condition * inner))
      fail_msg("case %d: <D, PD> %g, should be %g", k, t.inner, inner);
  }
}

/* If a result is out of range, its gradient or weight stays. */
static void results_out_of_range_keep_the_old_value(void **state) {
  static rank_one_step t, before;
  const struct {
    const char *update;
    ng_dtype dtype;
    float d;
    ng_status st;
  } row[] = {
      {"gradient", NG_F16, 3072, NG_RESCUED}, /* 3072 / 0.03 is above 65504 */
      {"gradient", NG_F16, 1792, NG_OK}, /* 1792 / 0.03 is below 65504, the norm of all entries above */
      {"gradient", NG_F32, 3072, NG_OK},       {"sgd", NG_F16, 3072, NG_OK}, /* into f32 weights */
      {"gradient", NG_F32, 3e37f, NG_RESCUED}, {"sgd", NG_F32, 3e37f, NG_RESCUED},
      {"gradient", NG_F32, 1e35f, NG_OK},
  };
  for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
    t = (rank_one_step){
        .method = "eva", .damping = "0.03", .update = row[k].update, .dtype = row[k].dtype};
    for (int i = 0; i < P; i++)
      t.a[i] = i == 0 || i == IN;
    for (int i = 0; i < ALL; i++)
      t.d[i] = i % P == 0 ? 0 : i % 2 ? row[k].d : -row[k].d;
    before = t;
    const ng_status st = take_step(&t);
    if (st != row[k].st) fail_msg("case %d: %s", (int)k, ng_status_name(st));
    const bool gradient = strcmp(t.update, "gradient") == 0;
    for (int i = 0; i < ALL; i++) {
      const double want = (double)before.d[i] / 0.03,
                   got = gradient ? (double)t.d[i] : -(double)t.w[i];
      if (st == NG_RESCUED) {
        assert_true(t.d[i] == before.d[i] && t.w[i] == 0);
      } else if (!(fabs(got - want) <= (t.dtype == NG_F16 ? 0x1p-10 : 0x1p-22) * fabs(want))) {
        fail_msg("case %d, entry %d: %g, should be %g", (int)k, i, got, want);
      }
    }
  }
}

/* x u and 1 / lambda are out of the range of f32. */
static void intermediate_numbers_may_leave_the_range(void **state) {
  static rank_one_step t;
  static double pd[ALL];
  t = (rank_one_step){.method = "eva", .damping = "0.03", .update = "gradient", .dtype = NG_F32};
  make(&t, 1, false, 99);
  for (int i = 0; i < IN; i++)
    t.a[i] *= 1e30f;
  for (int i = 0; i < ALL; i++)
    t.d[i] *= 1e10f;
  (void)predict(&t, false, 0.03, pd);
  assert_int_equal(take_step(&t), NG_OK);
  for (int i = 0; i < ALL; i++)
    assert_true(fabs((double)t.d[i] - pd[i]) <= 1e-6 * norm(pd));
  t.damping = "1e-39";
  memset(t.d, 0, sizeof t.d);
  assert_int_equal(take_step(&t), NG_OK);
  for (int i = 0; i < ALL; i++)
    assert_true(t.d[i] == 0);
  make(&t, 0, false, 100);
  memset(t.d, 0, sizeof t.d);
  t.d[5] = 1e-6f; /* times 1e39: large, but in range */
  assert_int_equal(take_step(&t), NG_OK);
  assert_true(fabs((double)t.d[5] / 1e33 - 1) < 1e-6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cancelling_gradients_keep_their_precision),
      cmocka_unit_test(results_out_of_range_keep_the_old_value),
      cmocka_unit_test(intermediate_numbers_may_leave_the_range),
  };
  return cmocka_run_group_tests_name("edges", tests, NULL, NULL);
}
