/* variants.c: see variants.h. */
#include "variants.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const double GROWTH = 2 * 64, unit = 0x1p-24;

const variant variants[VARIANTS] = {
    {"ref", "eigen", "joint"},   {"ref", "eigen", "pi"},      {"ref", "cholesky", "pi"},
    {"ref", "cholesky", "full"}, {"cpu", "eigen", "joint"},   {"cpu", "eigen", "full"},
    {"cpu", "cholesky", "pi"},   {"cpu", "cholesky", "full"},
};

bool v_built_in(const char *name) {
  for (int32_t i = 0; i < ng_component_count(); i++) {
    ng_component c = {.struct_size = sizeof c};
    assert_int_equal(ng_component_info(i, &c), NG_OK);
    if (strcmp(c.kind, "linalg") == 0 && strcmp(c.name, name) == 0) return c.built_in != 0;
  }
  return false;
}

void v_set(ng_options *o, const char *name, const char *value) {
  char message[256];
  if (ng_options_set(o, name, value, message, sizeof message) != NG_OK) {
    fail_msg("%s = %s: %s", name, value, message);
  }
}

/* Row natgrad with the variant's solver; a damping that keeps everything well conditioned. */
ng_options v_options(const variant *v) {
  ng_options o;
  assert_int_equal(ng_options_init(&o), NG_OK);
  v_set(&o, "solver", v->solver);
  v_set(&o, "damping_split", v->split);
  v_set(&o, "damping", "0.1");
  v_set(&o, "solve_period", "1");
  v_set(&o, "stat_decay", "0.6");
  v_set(&o, "kl_clip", "0.01");
  return o;
}

scene_result v_play_as(const scene *s, const ng_options *o, const scene_look *look) {
  scene_result r;
  scene_play(s, o, look, &r);
  if (r.status != NG_OK) {
    fail_msg("NG_TEST_SEED=%" PRIu64 ": %s %s", test_seed(), ng_status_name(r.status), r.message);
  }
  assert_true(r.rank_gap == 0); /* all ranks have the same bits */
  return r;
}

scene_result v_play(const scene *s, const ng_options *o, const variant *v) {
  scene_look look = {.linalg = v->linalg};
  return v_play_as(s, o, &look);
}

/* Rounding units that the worst layer and step may show. */
double v_condition_of(const scene *s, const ng_options *o) {
  scene_result r;
  double c = 1;
  scene_predict(s, o, &r, NULL);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++)
      c = fmax(c, r.condition[t][l]);
  }
  scene_forget(&r);
  return c;
}

void v_same(const char *what, const variant *v, const scene *s, const scene_result *x,
            const scene_result *y, double tolerance) {
  for (int32_t t = 0; t < s->steps; t++) {
    double e = fabs(x->nu[t] - y->nu[t]) / y->nu[t];
    for (int32_t l = 0; l < s->layers; l++)
      e = fmax(e, scene_gap(s, t, l, x, y));
    if (!(e <= tolerance)) {
      fail_msg("NG_TEST_SEED=%" PRIu64 ": %s (%s %s %s), step %d: %.3g > %.3g", test_seed(), what,
               v->linalg, v->solver, v->split, t, e, tolerance);
    }
  }
}

/* Two linear layers (one with positions) and two convolutions (one grouped, strided, dilated). */
scene *v_layers_of(int32_t steps, int32_t ranks) {
  scene *s = scene_create(steps, ranks);
  scene_linear(s, 7, 4, true, 1);
  scene_linear(s, 5, 3, false, 3);
  ng_layer *l = scene_conv(s, 3, 4, 3, 3, 5, 6, true);
  l->padding[0] = l->padding[1] = 1;
  l = scene_conv(s, 4, 6, 3, 2, 7, 5, true);
  l->groups = l->stride[0] = l->dilation[1] = 2;
  l->padding[0] = 1;
  scene_close(s);
  return s;
}

/* Every rank has its own number of micro-batches of its own sizes. */
scene *v_uneven(int32_t steps, int32_t ranks, uint64_t salt) {
  rng r = {test_seed() ^ salt};
  scene *s = v_layers_of(steps, ranks);
  for (int32_t t = 0; t < steps; t++) {
    for (int32_t k = 0; k < ranks; k++) {
      for (int64_t c = 1 + (k + t) % 2; c > 0; c--) {
        scene_call(s, t, k, 1 + (3 * k + t + c) % 5)->batch.reduction = NG_SUM;
      }
    }
  }
  scene_fill(s, &r);
  return s;
}

double v_dot(const double *x, const double *y, int64_t n) {
  double s = 0;
  for (int64_t i = 0; i < n; i++)
    s += x[i] * y[i];
  return s;
}
