/* t_rankone.c: rank-one methods (Eva) and their oracle against golden numbers of the published program. */
#include "fixture.h"
#include "plane.h"
#include "layer_oracle.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- golden numbers: spec of the published program, float64 ----------------------------------*/

static double *wave(int64_t n, double shift, double scale) {
  double *x = zeros(n);
  for (int64_t i = 0; i < n; i++)
    x[i] = scale * sin(0.7 * (double)i + shift + 0.013 * (double)(i * i));
  return x;
}

/* Linear 3 -> 2 with bias on two positions; a strided, padded convolution. */
static test_case *golden_case(void) {
  test_case *s = case_create(2, 1);
  case_linear(s, 3, 2, true, 2);
  ng_layer *l = case_conv(s, 2, 2, 3, 2, 5, 4, false);
  l->stride[0] = 2;
  l->padding[0] = 1;
  case_set_positions(s);
  for (int32_t t = 0; t < 2; t++) {
    const double o = 0.5 * t;
    case_micro *linear = case_add_micro(s, t, 0, 4);
    linear->a[0][0] = wave(24, 0.1 + o, 1);
    linear->g[0][0] = wave(16, 0.4 + o, 1);
    double *w = wave(6, 0.9 + o, 0.2), *b = wave(2, 1.3 + o, 0.2), *D = s->D[t][0] = zeros(8);
    for (int i = 0; i < 2; i++) {
      memcpy(D + 4 * i, w + 3 * i, 3 * sizeof *D);
      D[4 * i + 3] = b[i];
    }
    free(w);
    free(b);
    s->D[t][1] = wave(24, 1.1 + o, 0.2);
    /* another number of samples makes a new micro-batch */
    case_micro *conv = case_add_micro(s, t, 0, 2);
    conv->a[1][0] = wave(80, 0.2 + o, 1);
    conv->g[1][0] = wave(36, 0.6 + o, 1);
  }
  return s;
}

static ng_options system_of(const char *system) {
  char message[256];
  ng_options o = fixture_parse("method=natgrad");
  assert_int_equal(ng_options_set_system(&o, "Eva", system, message, sizeof message), NG_OK);
  return o;
}

static void played(const test_case *s, const ng_options *o, case_result *r) {
  case_run(s, o, &(case_setup){0}, r);
  assert_int_equal(r->status, NG_OK);
}

/* f32 agrees with the specification's digits to about 1e-6 of entries near 0.5. */
static void near(double x, double y, const char *what) {
  if (!(fabs(x - y) <= 1e-6)) fail_msg("%s: %.9g, should be %.9g", what, x, y);
}

/* Eva-f without clip: the linear layer in the first step. */
static void eva_f_has_the_golden_numbers(void **state) {
  static const double want[8] = {4.49795021,   6.23377827,  4.75516723,  -0.615276684,
                                 -0.405750378, -4.95952117, -6.64931057, 0.488469587};
  test_case *s = golden_case();
  case_result r;
  ng_options o = fixture_parse("method=eva-f");
  fixture_set(&o, "clip", "none");
  played(s, &o, &r);
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
    test_case *s = golden_case();
    case_result r;
    ng_options o = system_of("kfac");
    if (clean) fixture_set(&o, "damping_leak", "0");
    played(s, &o, &r);
    for (int t = 0; t < 2; t++) {
      const double *w = want[t == 0 ? 0 : 1 + clean];
      near(0.01 * r.inner[t], w[0], "V");
      near(r.nu[t], w[1], "nu");
      for (int i = 0; i < 8; i++)
        near(r.P[t][0][i], w[2 + i], "linear");
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
    test_case *s = golden_case();
    case_result r;
    ng_options o = system_of(want[k].system);
    played(s, &o, &r);
    for (int i = 0; i < 8; i++)
      near(r.P[0][0][i], want[k].linear[i], want[k].system);
    assert_true(r.nu[0] == 1);
    case_free_result(&r);
    case_destroy(&s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kfac_has_the_golden_numbers),
      cmocka_unit_test(adasgd_and_sam_have_the_golden_numbers),
      cmocka_unit_test(eva_f_has_the_golden_numbers),
  };
  return cmocka_run_group_tests_name("rankone", tests, NULL, NULL);
}
