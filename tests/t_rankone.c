/* t_rankone.c: rank-one methods (Eva) and their oracle against golden numbers of the published program; fused
 * updates of tiles. */
#include "kernel/kernel.h"
#include "fixture.h"
#include "plane.h"
#include "layer_oracle.h"

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

static ng_options system_of(const char *system) {
  char message[256];
  ng_options o = fixture_parse("method=natgrad");
  assert_int_equal(ng_options_set_system(&o, "Eva", system, message, sizeof message), NG_OK);
  return o;
}

static void played(const scene *s, const ng_options *o, scene_result *r) {
  scene_play(s, o, &(scene_look){0}, r);
  assert_int_equal(r->status, NG_OK);
}

/* The spec's digits: agreement of f32 with them to about 1e-6 is normal, relative to entries of
 * half. */
static void near(double x, double y, const char *what) {
  if (!(fabs(x - y) <= 1e-6)) fail_msg("%s: %.9g, should be %.9g", what, x, y);
}

/* Eva-f, not clipped: the linear layer of the first step. */
static void golden_eva_f(void **state) {
  static const double want[8] = {4.49795021,   6.23377827,  4.75516723,  -0.615276684,
                                 -0.405750378, -4.95952117, -6.64931057, 0.488469587};
  scene *s = golden_scene();
  scene_result r;
  ng_options o = fixture_parse("method=eva-f");
  fixture_set(&o, "clip", "none");
  played(s, &o, &r);
  for (int i = 0; i < 8; i++) /* entries of six: six times the 1e-6 of the others */
    assert_true(fabs(r.P[0][0][i] - want[i]) <= 6e-6);
  scene_forget(&r);
  scene_destroy(&s);
}

/* The baseline K-FAC of the same program: V, nu, the linear layer. */
static void golden_eva_kfac(void **state) {
  static const double want[3][10] = {
      {0.165126877, 0.0778199803, 0.108319547, 0.224548081, 0.251249696, -0.00448208058,
       -0.0492779475, -0.231974988, -0.319513888, 0.0339718077},
      {0.154003871, 0.0805812836, 0.166755553, 0.195314846, 0.13792291, 0.00332187223, -0.173335989,
       -0.295286069, -0.282746565, 0.0324758725},
      {0.168832483, 0.0769612293, 0.170025238, 0.200412979, 0.143668981, 0.00234312223,
       -0.178652318, -0.304235108, -0.293005362, 0.0328637161}};
  for (int clean = 0; clean < 2; clean++) {
    scene *s = golden_scene();
    scene_result r;
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
    scene_forget(&r);
    scene_destroy(&s);
  }
}

/* The rest of the program: AdaSGD and SAM, the linear layer of the first step. */
static void golden_neighbours(void **state) {
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
    scene_result r;
    ng_options o = system_of(want[k].system);
    played(s, &o, &r);
    for (int i = 0; i < 8; i++)
      near(r.P[0][0][i], want[k].linear[i], want[k].system);
    assert_true(r.nu[0] == 1);
    scene_forget(&r);
    scene_destroy(&s);
  }
}

/* ---- fused, in layers that are cut -----------------------------------------------------------*/

enum { WIDE = 20011, HIGH = 3, TENSOR = 40000, ALL = WIDE * HIGH + HIGH + TENSOR };

typedef struct wide {
  fixture f;
  void *grad, *weight; /* of all parameters */
  ng_dtype grads, weights;
} wide;

static plane part(void *data, ng_dtype t, int64_t at, int64_t rows, int64_t cols) {
  return plane_of((char *)data + at * ng_dtype_size(t), rows, cols, t);
}

static void wide_open(wide *m, const char *update) {
  static const int64_t at[3] = {0, WIDE * HIGH, WIDE * HIGH + HIGH}, rows[3] = {HIGH, 1, 1},
                       cols[3] = {WIDE, HIGH, TENSOR};
  char set[64];
  plane g[3], w[3];
  m->grad = calloc(ALL, (size_t)ng_dtype_size(m->grads));
  m->weight = calloc(ALL, (size_t)ng_dtype_size(m->weights));
  assert_true(m->grad != NULL && m->weight != NULL);
  for (int k = 0; k < 3; k++) {
    g[k] = part(m->grad, m->grads, at[k], rows[k], cols[k]);
    w[k] = part(m->weight, m->weights, at[k], rows[k], cols[k]);
  }
  (void)snprintf(set, sizeof set, "method=eva-natgrad update=%s", update);
  fixture_ok(&m->f, fixture_open(&m->f, set, &(fixture_how){.threads = 3}));
  fixture_ok(&m->f, fixture_linear(&m->f, "fc", g, w));
  fixture_ok(&m->f, fixture_tensor(&m->f, "table", &g[2], &w[2]));
  fixture_ok(&m->f, ng_ready(m->f.p));
}

static float some(int64_t i, int64_t salt) {
  return (float)((i * 7919 + salt * 104729) % 255 - 127) / 64;
}

static void wide_show(wide *m, int64_t t) {
  static float a[2 * WIDE], g[2 * HIGH], d[ALL];
  for (int64_t i = 0; i < 2 * WIDE; i++)
    a[i] = some(i, t);
  for (int64_t i = 0; i < 2 * HIGH; i++)
    g[i] = some(i, t + 50);
  for (int64_t i = 0; i < ALL; i++)
    d[i] = some(i, t + 100); /* exact in bf16: multiples of 1/64 up to 2 */
  ng_from_f32(m->grad, m->grads, d, ALL);
  const plane x = plane_of(a, 2, WIDE, NG_F32), y = plane_of(g, 2, HIGH, NG_F32);
  fixture_ok(&m->f, fixture_show(&m->f, 2, 0, &x, &y));
}

static void wide_close(wide *m) {
  fixture_close(&m->f);
  free(m->grad);
  free(m->weight);
}

/* SGD and AdamW of rows that are cut into tiles, in f32 and bf16, against ng_step in f32 and the
 * formulas of PyTorch in double: 1e-6 of what goes in, as t_groups says, and half a unit of bf16. */
static void fused_wide(void **state) {
  static const ng_dtype types[4][2] = {
      {NG_F32, NG_F32}, {NG_BF16, NG_F32}, {NG_F32, NG_BF16}, {NG_BF16, NG_BF16}};
  static float got[ALL];
  double *w = zeros(ALL), *v = zeros(ALL), *d = zeros(ALL), *second = zeros(ALL);
  for (int k = 0; k < 8; k++) {
    const bool adamw = k >= 4;
    wide m = {.grads = types[k % 4][0], .weights = types[k % 4][1]}, plain = {0};
    plain.grads = plain.weights = NG_F32;
    wide_open(&m, adamw ? "adamw" : "sgd");
    wide_open(&plain, "gradient");
    memset(v, 0, ALL * sizeof *v);
    memset(second, 0, ALL * sizeof *second);
    ng_sgd sgd = fixture_sgd(0.1, 0.9);
    ng_adamw adam;
    ng_adamw_init(&adam, sizeof adam);
    adam.lr = 0.1;
    sgd.weight_decay = 0.05;
    for (int t = 1; t <= 3; t++) {
      wide_show(&m, t);
      wide_show(&plain, t);
      assert_int_equal(ng_step(plain.f.p, 0.1), NG_OK);
      assert_int_equal(adamw ? ng_step_adamw(m.f.p, &adam, 1) : ng_step_sgd(m.f.p, &sgd, 1), NG_OK);
      for (int64_t i = 0; i < ALL; i++)
        d[i] = (double)((const float *)plain.grad)[i];
      if (adamw)
        oracle_adamw(&adam, t, ALL, d, w, v, second);
      else
        oracle_sgd(&sgd, t, ALL, d, w, v);
      ng_to_f32(got, m.weight, m.weights, ALL);
      for (int64_t i = 0; i < ALL; i++) {
        const double x = (double)got[i];
        /* momentum holds up to 2.7 times, AdamW a step of 1; moments carry their rounding along */
        const double size = fabs(w[i]) + 0.1 * (adamw ? 3 : 3 * (2 + fabs(d[i])));
        const double half = m.weights == NG_BF16 ? 0x1p-8 * fabs(w[i]) : 0;
        if (!(fabs(x - w[i]) <= 1e-6 * size + half)) {
          fail_msg("case %d, step %d, entry %d: %.9g, should be %.9g", k, t, (int)i, x, w[i]);
        }
        w[i] = x;
      }
    }
    memset(w, 0, ALL * sizeof *w);
    wide_close(&m);
    wide_close(&plain);
  }
  free(w);
  free(v);
  free(d);
  free(second);
}

/* One number that is none, far into a parameter without curvature: nothing moves. */
static void plain_not_finite(void **state) {
  wide m = {.grads = NG_F32, .weights = NG_F32};
  const ng_sgd sgd = fixture_sgd(0.1, 0);
  wide_open(&m, "sgd");
  wide_show(&m, 1);
  ((float *)m.grad)[ALL - 1] = NAN;
  assert_int_equal(ng_step_sgd(m.f.p, &sgd, 1), NG_SKIPPED);
  for (int64_t i = 0; i < ALL; i++)
    assert_true(((const float *)m.weight)[i] == 0);
  wide_close(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_eva_kfac),  cmocka_unit_test(golden_neighbours),
      cmocka_unit_test(golden_eva_f),     cmocka_unit_test(fused_wide),
      cmocka_unit_test(plain_not_finite),
  };
  return cmocka_run_group_tests_name("rankone", tests, NULL, NULL);
}
