/* t_rankone.c: rank-one methods (Eva): golden numbers of the published program; gradients and results at the limits of
 * f32, compared with the formula in double. */
#include "draw.h"
#include "fixture.h"
#include "kernel/kernel.h"
#include "layer_oracle.h"
#include "plane.h"
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- golden numbers: spec of the published program, float64 ----------------------------------*/

static double *make_wave(int64_t n, double shift, double scale) {
  double *x = zeros(n);
  for (int64_t i = 0; i < n; i++)
    x[i] = scale * sin(0.7 * (double)i + shift + 0.013 * (double)(i * i));
  return x;
}

/* Linear 3 -> 2 with bias on two positions; a strided, padded convolution. */
static test_case *make_golden_case(void) {
  test_case *s = case_create(2, 1);
  case_linear(s, 3, 2, true, 2);
  ng_layer *l = case_conv(s, 2, 2, 3, 2, 5, 4, false);
  l->stride[0] = 2;
  l->padding[0] = 1;
  case_set_positions(s);
  for (int32_t t = 0; t < 2; t++) {
    const double o = 0.5 * t;
    case_micro *linear = case_add_micro(s, t, 0, 4);
    linear->a[0][0] = make_wave(24, 0.1 + o, 1);
    linear->g[0][0] = make_wave(16, 0.4 + o, 1);
    double *w = make_wave(6, 0.9 + o, 0.2), *b = make_wave(2, 1.3 + o, 0.2),
           *D = s->D[t][0] = zeros(8);
    for (int i = 0; i < 2; i++) {
      memcpy(D + 4 * i, w + 3 * i, 3 * sizeof *D);
      D[4 * i + 3] = b[i];
    }
    free(w);
    free(b);
    s->D[t][1] = make_wave(24, 1.1 + o, 0.2);
    /* another number of samples makes a new micro-batch */
    case_micro *conv = case_add_micro(s, t, 0, 2);
    conv->a[1][0] = make_wave(80, 0.2 + o, 1);
    conv->g[1][0] = make_wave(36, 0.6 + o, 1);
  }
  return s;
}

static ng_options parse_system(const char *system) {
  char message[256];
  ng_options o = fixture_parse_options("method=natgrad");
  assert_int_equal(ng_options_set_system(&o, "Eva", system, message, sizeof message), NG_OK);
  return o;
}

static void run_or_fail(const test_case *s, const ng_options *o, case_result *r) {
  case_run(s, o, &(case_setup){0}, r);
  assert_int_equal(r->status, NG_OK);
}

/* f32 agrees with the specification's digits to about 1e-6 of entries near 0.5. */
static void expect_near(double x, double y, const char *what) {
  if (!(fabs(x - y) <= 1e-6)) fail_msg("%s: %.9g, should be %.9g", what, x, y);
}

/* Eva-f without clip: the linear layer in the first step. */
static void eva_f_has_the_golden_numbers(void **state) {
  static const double want[8] = {4.49795021,   6.23377827,  4.75516723,  -0.615276684,
                                 -0.405750378, -4.95952117, -6.64931057, 0.488469587};
  test_case *s = make_golden_case();
  case_result r;
  ng_options o = fixture_parse_options("method=eva-f");
  fixture_set(&o, "clip", "none");
  run_or_fail(s, &o, &r);
  for (int i = 0; i < 8; i++) /* entries near 6: six times 1e-6 */
    assert_true(fabs(r.P[0][0][i] - want[i]) <= 6e-6);
  case_free_result(&r);
  case_destroy(&s);
}

/* The baseline K-FAC of the program: V, nu, the linear layer. */
static void kfac_has_the_golden_numbers(void **state) {
  static const double want[3][10] = {
      {0.165126877, 0.0778199803, 0.108319547, 0.224548081, 0.251249696, -0.00448208058,
       -0.0492779475, -0.231974988, -0.319513888, 0.0339718077},
      {0.154003871, 0.0805812836, 0.166755553, 0.195314846, 0.13792291, 0.00332187223, -0.173335989,
       -0.295286069, -0.282746565, 0.0324758725},
      {0.168832483, 0.0769612293, 0.170025238, 0.200412979, 0.143668981, 0.00234312223,
       -0.178652318, -0.304235108, -0.293005362, 0.0328637161}};
  for (int clean = 0; clean < 2; clean++) {
    test_case *s = make_golden_case();
    case_result r;
    ng_options o = parse_system("kfac");
    if (clean) fixture_set(&o, "damping_leak", "0");
    run_or_fail(s, &o, &r);
    for (int t = 0; t < 2; t++) {
      const double *w = want[t == 0 ? 0 : 1 + clean];
      expect_near(0.01 * r.inner[t], w[0], "V");
      expect_near(r.nu[t], w[1], "nu");
      for (int i = 0; i < 8; i++)
        expect_near(r.P[t][0][i], w[2 + i], "linear");
    }
    case_free_result(&r);
    case_destroy(&s);
  }
}

/* AdaSGD and SAM of the program: the linear layer in the first step. */
static void adasgd_and_sam_have_the_golden_numbers(void **state) {
  static const struct {
    const char *system;
    double linear[8];
  } want[] = {{"adasgd",
               {0.642830706, 0.819910938, 0.582710164, 0.790736001, 0.0201797221, -0.569157302,
                -0.820576417, 0.741704836}},
              {"sam",
               {0.156838397, 0.199941023, 0.142027215, 0.19409221, 0.00506004595, -0.138619349,
                -0.199979584, 0.18194748}}};
  for (int k = 0; k < 2; k++) {
    test_case *s = make_golden_case();
    case_result r;
    ng_options o = parse_system(want[k].system);
    run_or_fail(s, &o, &r);
    for (int i = 0; i < 8; i++)
      expect_near(r.P[0][0][i], want[k].linear[i], want[k].system);
    assert_true(r.nu[0] == 1);
    case_free_result(&r);
    case_destroy(&s);
  }
}

/* ---- the limits of f32 -----------------------------------------------------------------------*/

enum { Q = 10, IN = 784, P = IN + 1, ALL = Q * P }; /* rows of d: the weight, then the bias */

typedef struct rank_one_step {
  const char *method, *damping, *update;
  ng_dtype dtype;       /* dtype of the gradient */
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
  fixture_ok(&f, fixture_add_linear(&f, "fc", grad, weight));
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

/* Compute PD of the step in double, of Eva-f if `rows`.  Return the condition number, by which roundings grow. */
static double predict_direction(const rank_one_step *t, bool rows, double lambda, double *pd) {
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

static double compute_norm(const double *x) {
  double sum = 0;
  for (int i = 0; i < ALL; i++)
    sum += x[i] * x[i];
  return sqrt(sum);
}

static void draw_step(rank_one_step *t, float inputs, bool along, uint64_t salt) {
  rng r = {test_seed() + salt};
  for (int i = 0; i < P; i++)
    t->a[i] = i == IN ? 1 : inputs * (float)rng_real(&r);
  rng_fill(&r, t->g, Q);
  for (int i = 0; i < ALL; i++) {
    t->d[i] = along ? t->g[i / P] * t->a[i % P] : (float)rng_value(&r);
    t->w[i] = 0;
  }
}

/* With one sample D is g a' up to rounding, with alpha beta / lambda up to 1e10.  The library computes in double and
 * rounds once: half a unit of f32 per entry; the test allows twice that.  In f32 the error would be as large as PD,
 * and <D, PD> could be negative. */
static void gradients_along_the_mean_vectors_keep_precision(void **state) {
  static const char *const methods[] = {"eva", "eva-natgrad", "eva-f"}, *const damping[] = {
                                                                            "0.03", "0.001"};
  static rank_one_step t, sgd;
  static double pd[ALL];
  for (int k = 0; k < 12; k++) {
    t = (rank_one_step){.method = methods[k % 3],
                        .damping = damping[k / 3 % 2],
                        .update = "gradient",
                        .dtype = NG_F32};
    draw_step(&t, k < 6 ? 255 : 16, true, (uint64_t)k);
    sgd = t;
    sgd.update = "sgd";
    const double condition = predict_direction(&t, k % 3 == 2, strtod(t.damping, NULL), pd);
    double inner = 0, gap = 0;
    for (int i = 0; i < ALL; i++)
      inner += pd[i] * (double)t.d[i];
    assert_int_equal(take_step(&t), NG_OK);
    assert_int_equal(take_step(&sgd), NG_OK);
    for (int i = 0; i < ALL; i++) {
      gap = fmax(gap, fabs((double)t.d[i] - pd[i]));
      gap = fmax(gap, fabs((double)sgd.w[i] + pd[i]));
    }
    if (!(gap <= 0x1p-23 * compute_norm(pd)))
      fail_msg("%s, case %d: PD is off by %g, |PD| is %g", t.method, k, gap, compute_norm(pd));
    if (!(fabs(t.inner - inner) <= 0x1p-46 * condition * inner))
      fail_msg("case %d: <D, PD> is %g, expected %g", k, t.inner, inner);
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
      {"gradient", NG_F32, 3072, NG_OK},       {"sgd", NG_F16, 3072, NG_OK}, /* f32 weights */
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
        fail_msg("case %d: entry %d is %g, expected %g", (int)k, i, got, want);
      }
    }
  }
}

/* x u and 1 / lambda are out of the range of f32. */
static void intermediate_overflow_is_harmless(void **state) {
  static rank_one_step t;
  static double pd[ALL];
  t = (rank_one_step){.method = "eva", .damping = "0.03", .update = "gradient", .dtype = NG_F32};
  draw_step(&t, 1, false, 99);
  for (int i = 0; i < IN; i++)
    t.a[i] *= 1e30f;
  for (int i = 0; i < ALL; i++)
    t.d[i] *= 1e10f;
  (void)predict_direction(&t, false, 0.03, pd);
  assert_int_equal(take_step(&t), NG_OK);
  for (int i = 0; i < ALL; i++)
    assert_true(fabs((double)t.d[i] - pd[i]) <= 1e-6 * compute_norm(pd));
  t.damping = "1e-39";
  memset(t.d, 0, sizeof t.d);
  assert_int_equal(take_step(&t), NG_OK);
  for (int i = 0; i < ALL; i++)
    assert_true(t.d[i] == 0);
  draw_step(&t, 0, false, 100);
  memset(t.d, 0, sizeof t.d);
  t.d[5] = 1e-6f; /* times 1e39: large, but in range */
  assert_int_equal(take_step(&t), NG_OK);
  assert_true(fabs((double)t.d[5] / 1e33 - 1) < 1e-6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kfac_has_the_golden_numbers),
      cmocka_unit_test(adasgd_and_sam_have_the_golden_numbers),
      cmocka_unit_test(eva_f_has_the_golden_numbers),
      cmocka_unit_test(gradients_along_the_mean_vectors_keep_precision),
      cmocka_unit_test(results_out_of_range_keep_the_old_value),
      cmocka_unit_test(intermediate_overflow_is_harmless),
  };
  return cmocka_run_group_tests_name("rankone", tests, NULL, NULL);
}
