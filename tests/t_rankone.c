/* t_rankone.c: rank-one methods (Eva) and their oracle against golden numbers of the published program. */
#include "fixture.h"
#include "rankone_oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- golden numbers: spec of the published program, float64 ----------------------------------*/

static double *zeros(int64_t n) { return scene_room(sizeof(double) * (size_t)n); }

static double *wave(int64_t n, double shift, double scale) {
  double *x = zeros(n);
  for (int64_t i = 0; i < n; i++)
    x[i] = scale * sin(0.7 * (double)i + shift + 0.013 * (double)(i * i));
  return x;
}

/* Linear 3 -> 2 with bias on two positions; a strided, padded convolution. */
static scene *golden_scene(void) {
  scene *s = scene_create(2, 1);
  scene_linear(s, 3, 2, true, 2);
  ng_layer *l = scene_conv(s, 2, 2, 3, 2, 5, 4, false);
  l->stride[0] = 2;
  l->padding[0] = 1;
  scene_close(s);
  for (int32_t t = 0; t < 2; t++) {
    const double o = 0.5 * t;
    scene_micro *linear = scene_call(s, t, 0, 4);
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
    scene_micro *conv = scene_call(s, t, 0, 2); /* another number of samples: another micro-batch */
    conv->a[1][0] = wave(80, 0.2 + o, 1);
    conv->g[1][0] = wave(36, 0.6 + o, 1);
  }
  return s;
}

typedef struct golden {
  double v, nu, rescale, linear[8], conv[12];
} golden;
static const golden eva[2] = {
    {0.228832577,
     0.0661060297,
     0.0310513868,
     {0.333551272, 0.433436866, 0.313275753, 0.311258734, -0.0120582952, -0.31915034, -0.439995593,
      0.175788915},
     {0.399459541, 0.432839144, 0.236599189, -0.0824600058, -0.355937069, -0.425787875,
      -0.217017682, 0.147766491, 0.412971034, 0.360561919, 0.0110355763, -0.362950508}},
    {0.220711364,
     0.0673112495,
     0.0308262235,
     {0.425762828, 0.379347486, 0.131103197, 0.283219311, -0.225254516, -0.434190931, -0.387489252,
      0.0781437257},
     {0.445242831, 0.329398673, 0.0443099553, -0.27906492, -0.44960639, -0.340859017,
      -0.00617438034, 0.340799098, 0.444942718, 0.204485625, -0.20467578, -0.442833864}}};

/* The spec's digits: agreement of f32 with them to about 1e-6 is normal, relative to entries of
 * half. */
static void near(double x, double y, const char *what) {
  if (!(fabs(x - y) <= 1e-6)) fail_msg("%s: %.9g, should be %.9g", what, x, y);
}

static void golden_eva(void **state) {
  (void)state;
  scene *s = golden_scene();
  scene_look look = {0};
  scene_result r, dense;
  char message[256];
  ng_options o = fixture_parse("method=natgrad");
  assert_int_equal(ng_options_set_system(&o, "Eva", "", message, sizeof message), NG_OK);
  scene_play(s, &o, &look, &r);
  assert_int_equal(r.status, NG_OK);
  r1_predict(s, &o, &dense); /* the oracle has them, too */
  for (int t = 0; t < 2; t++) {
    near(0.01 * r.inner[t], eva[t].v, "V");
    near(r.nu[t], eva[t].nu, "nu");
    near(dense.nu[t], eva[t].nu, "nu of the oracle");
    for (int i = 0; i < 8; i++) {
      near(r.P[t][0][i], eva[t].linear[i], "linear");
      near(dense.P[t][0][i], eva[t].linear[i], "linear of the oracle");
    }
    for (int i = 0; i < 12; i++)
      near(r.P[t][1][i], eva[t].conv[i], "conv");
  }
  scene_forget(&r);
  scene_forget(&dense);
  assert_int_equal(ng_options_set_published(&o, "kl_clip", "0", NULL, NULL, 0), NG_OK);
  scene_play(s, &o, &look, &r);
  assert_int_equal(r.status, NG_OK);
  for (int t = 0; t < 2; t++)
    near(r.nu[t], eva[t].rescale, "nu, kl_clip = 0");
  scene_forget(&r);
  scene_destroy(&s);
}

/* Eva-f, not clipped: the linear layer of the first step. */
static void golden_eva_f(void **state) {
  (void)state;
  static const double want[8] = {4.49795021,   6.23377827,  4.75516723,  -0.615276684,
                                 -0.405750378, -4.95952117, -6.64931057, 0.488469587};
  scene *s = golden_scene();
  scene_look look = {0};
  scene_result r;
  ng_options o = fixture_parse("method=eva-f");
  fixture_set(&o, "clip", "none");
  scene_play(s, &o, &look, &r);
  assert_int_equal(r.status, NG_OK);
  for (int i = 0; i < 8; i++) /* entries of six: six times the 1e-6 of the others */
    assert_true(fabs(r.P[0][0][i] - want[i]) <= 6e-6);
  scene_forget(&r);
  scene_destroy(&s);
}

/* The baseline K-FAC of the same program: V, nu, the linear layer. */
static void golden_eva_kfac(void **state) {
  (void)state;
  static const double want[3][10] = {
      {0.165126877, 0.0778199803, 0.108319547, 0.224548081, 0.251249696, -0.00448208058,
       -0.0492779475, -0.231974988, -0.319513888, 0.0339718077},
      {0.154003871, 0.0805812836, 0.166755553, 0.195314846, 0.13792291, 0.00332187223, -0.173335989,
       -0.295286069, -0.282746565, 0.0324758725},
      {0.168832483, 0.0769612293, 0.170025238, 0.200412979, 0.143668981, 0.00234312223,
       -0.178652318, -0.304235108, -0.293005362, 0.0328637161}};
  for (int clean = 0; clean < 2; clean++) {
    scene *s = golden_scene();
    scene_look look = {0};
    scene_result r;
    char message[256];
    ng_options o = fixture_parse("method=natgrad");
    assert_int_equal(ng_options_set_system(&o, "Eva", "kfac", message, sizeof message), NG_OK);
    if (clean) fixture_set(&o, "damping_leak", "0");
    scene_play(s, &o, &look, &r);
    assert_int_equal(r.status, NG_OK);
    for (int t = 0; t < 2; t++) {
      const double *w = want[t == 0 ? 0 : 1 + clean];
      near(0.01 * r.inner[t], w[0], "V");
      near(r.nu[t], w[1], "nu");
      for (int i = 0; i < 8; i++)
        near(r.P[t][0][i], w[2 + i], "linear");
    }
    scene_forget(&r);
    scene_destroy(&s);
  }
}

/* The rest of the program: AdaSGD and SAM, the linear layer of the first step. */
static void golden_neighbours(void **state) {
  (void)state;
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
    scene *s = golden_scene();
    scene_look look = {0};
    scene_result r;
    char message[256];
    ng_options o = fixture_parse("method=natgrad");
    assert_int_equal(ng_options_set_system(&o, "Eva", want[k].system, message, sizeof message),
                     NG_OK);
    scene_play(s, &o, &look, &r);
    assert_int_equal(r.status, NG_OK);
    for (int i = 0; i < 8; i++)
      near(r.P[0][0][i], want[k].linear[i], want[k].system);
    assert_true(r.nu[0] == 1);
    scene_forget(&r);
    scene_destroy(&s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_eva),
      cmocka_unit_test(golden_eva_kfac),
      cmocka_unit_test(golden_neighbours),
      cmocka_unit_test(golden_eva_f),
  };
  return cmocka_run_group_tests_name("rankone", tests, NULL, NULL);
}
