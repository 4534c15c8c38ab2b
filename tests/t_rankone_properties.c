/* t_rankone_properties.c: what must hold of the rank-one family for any data: shards, orders,
 * layouts and threads that do not matter, the operator itself, sizes of one, zeros, numbers far
 * from one and of 16 bits.  Tolerances are explained in rankone_oracle.h. */
#include "rankone_oracle.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static scene_result play(const scene *s, const ng_options *o, scene_look look) {
  scene_result r;
  scene_play(s, o, &look, &r);
  if (r.status != NG_OK) fail_msg("%s %s", ng_status_name(r.status), r.message);
  assert_true(r.rank_gap == 0);
  return r;
}

static void compare(const char *what, const scene *s, const scene_result *x, const scene_result *y,
                    double tolerance) {
  for (int32_t t = 0; t < s->steps; t++) {
    double e = fabs(x->nu[t] - y->nu[t]) / y->nu[t];
    for (int32_t l = 0; l < s->layers; l++)
      e = fmax(e, scene_gap(s, t, l, x, y));
    if (!(e <= tolerance)) {
      fail_msg("NG_TEST_SEED=%" PRIu64 ": %s, step %d: %g > %g", test_seed(), what, t, e,
               tolerance);
    }
  }
}

/* Two linear layers, two convolutions, one of them grouped; a pattern of micro-batches. */
static scene *mixed(int32_t steps, int32_t ranks, bool uneven) {
  rng r = {test_seed() + 5};
  scene *s = scene_create(steps, ranks);
  scene_linear(s, 37, 4, true, 1);
  scene_linear(s, 5, 3, false, 3);
  ng_layer *l = scene_conv(s, 3, 4, 3, 3, 5, 6, true);
  l->padding[0] = l->padding[1] = 1;
  l = scene_conv(s, 4, 6, 3, 2, 7, 5, true);
  l->groups = l->stride[0] = l->dilation[1] = 2;
  l->padding[0] = 1;
  scene_close(s);
  for (int32_t t = 0; t < steps; t++) {
    for (int32_t k = 0; k < ranks; k++) {
      for (int64_t c = uneven ? 1 + (k + t) % 2 : 1; c > 0; c--)
        scene_call(s, t, k, uneven ? 1 + (3 * k + t + c) % 5 : 3)->batch.reduction = NG_SUM;
    }
  }
  scene_fill(s, &r);
  return s;
}

/* Of two runs that are equal in exact arithmetic: each may be GROWTH units off. */
static double close_to(const scene *s, const ng_options *o) {
  scene_result r;
  double c = 1;
  r1_predict(s, o, &r);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++)
      c = fmax(c, r.condition[t][l]);
  }
  scene_forget(&r);
  return 2 * GROWTH * unit * c;
}

/* N ranks with shards of any size, and micro-batches of any size, are one rank with everything. */
static void shards_equal_the_whole(void **state) {
  (void)state;
  const ng_options o = r1_method("eva-natgrad");
  for (int32_t ranks = 1; ranks <= 5; ranks += 2) {
    scene *s = mixed(3, ranks, true), *whole = scene_merge(s);
    scene_result x = play(s, &o, (scene_look){0}), y = play(whole, &o, (scene_look){0});
    compare("shards", s, &x, &y, close_to(s, &o));
    scene_forget(&x);
    scene_forget(&y);
    scene_destroy(&s);
    scene_destroy(&whole);
  }
}

/* Order of samples and of layers does not matter; nor do layouts. */
static void orders(void **state) {
  (void)state;
  const ng_options o = r1_method("eva-natgrad");
  rng r = {test_seed() + 9};
  scene *s = mixed(2, 1, true), *other = scene_shuffle(s, &r);
  scene_result x = play(s, &o, (scene_look){0});
  const scene_look look[] = {{.layout = NG_NHWC, .order = NG_POSITIONS_FIRST}, {.reverse = true}};
  scene_result y = play(other, &o, (scene_look){0});
  compare("samples in another order", s, &x, &y, close_to(s, &o));
  scene_forget(&y);
  for (int k = 0; k < 2; k++) {
    y = play(s, &o, look[k]);
    compare("another look", s, &x, &y, close_to(s, &o));
    scene_forget(&y);
  }
  scene_forget(&x);
  scene_destroy(&s);
  scene_destroy(&other);
}

/* The same bits for any number of threads, in layers wide and high enough to be cut into tiles. */
static void threads_do_not_matter(void **state) {
  (void)state;
  rng r = {test_seed() + 3};
  ng_options o = r1_method("eva-natgrad");
  scene *s = scene_create(2, 1);
  scene_linear(s, 20011, 3, true, 1); /* rows longer than a tile */
  scene_linear(s, 130, 400, true, 2);
  ng_layer *l = scene_conv(s, 70, 33, 3, 3, 9, 8, false);
  l->padding[0] = l->padding[1] = 1;
  scene_close(s);
  for (int32_t t = 0; t < 2; t++)
    (void)scene_call(s, t, 0, 5);
  scene_fill(s, &r);
  for (int k = 0; k < 3; k++) {
    scene_look look = {.threads = 1, .layout = k == 0 ? NG_NCHW : NG_NHWC};
    if (k == 2) o = r1_method("eva-f");
    r1_set(&o, "damping", "1000"); /* well conditioned, so that the tolerance is a tight one */
    scene_result x = play(s, &o, look), want;
    r1_predict(s, &o, &want);
    const double e = r1_error_of(s, &x, &want);
    if (!(e <= GROWTH)) fail_msg("wide layers: %g units", e);
    scene_forget(&want);
    for (look.threads = 2; look.threads <= 7; look.threads += 5) {
      scene_result y = play(s, &o, look);
      for (int32_t t = 0; t < 2; t++) {
        assert_true(x.nu[t] == y.nu[t]);
        for (int32_t i = 0; i < s->layers; i++) {
          assert_memory_equal(x.P[t][i], y.P[t][i], (size_t)scene_weights(s, i) * sizeof(double));
        }
      }
      scene_forget(&y);
    }
    scene_forget(&x);
  }
  scene_destroy(&s);
}

/* Linear in the gradient, symmetric, positive; lambda large: PD lambda is D; zero gives zero and no
 * clip.  P of x, of y and of 2 x - y / 2. */
static void operator(void **state) {
  (void)state;
  ng_options o = r1_method("eva");
  r1_set(&o, "clip", "none");
  scene *s[3];
  scene_result r[3];
  rng other = {test_seed() + 77};
  for (int k = 0; k < 3; k++)
    s[k] = mixed(1, 1, false);
  for (int32_t l = 0; l < s[0]->layers; l++) {
    for (int64_t i = 0; i < scene_weights(s[0], l); i++) {
      s[1]->D[0][l][i] = rng_value(&other);
      s[2]->D[0][l][i] = 2 * s[0]->D[0][l][i] - s[1]->D[0][l][i] / 2;
    }
  }
  for (int k = 0; k < 3; k++)
    r[k] = play(s[k], &o, (scene_look){0});
  const double near_enough = close_to(s[0], &o);
  for (int32_t l = 0; l < s[0]->layers; l++) {
    double xy = 0, yx = 0, xx = 0, size = 0, most = 0;
    const double *x = s[0]->D[0][l], *y = s[1]->D[0][l];
    double *Px = r[0].P[0][l], *Py = r[1].P[0][l];
    for (int64_t i = 0; i < scene_weights(s[0], l); i++) {
      xy += y[i] * Px[i];
      yx += x[i] * Py[i];
      xx += x[i] * Px[i];
      size += fabs(y[i] * Px[i]) + fabs(x[i] * Py[i]);
      most = fmax(most, 2 * fabs(Px[i]) + fabs(Py[i]) / 2);
    }
    assert_true(xx > 0);
    assert_true(fabs(xy - yx) <= near_enough * size);
    for (int64_t i = 0; i < scene_weights(s[0], l); i++)
      assert_true(fabs(r[2].P[0][l][i] - 2 * Px[i] + Py[i] / 2) <= near_enough * most);
  }
  for (int k = 0; k < 3; k++)
    scene_forget(&r[k]);

  r1_set(&o, "damping", "1e6"); /* alpha beta is below 40: lambda PD differs from D by 4e-5 of it */
  r[0] = play(s[0], &o, (scene_look){0});
  for (int32_t l = 0; l < s[0]->layers; l++) {
    for (int64_t i = 0; i < scene_weights(s[0], l); i++)
      assert_true(fabs(1e6 * r[0].P[0][l][i] - s[0]->D[0][l][i]) <= 2e-4);
  }
  scene_forget(&r[0]);
  for (int32_t l = 0; l < s[0]->layers; l++)
    memset(s[0]->D[0][l], 0, (size_t)scene_weights(s[0], l) * sizeof(double));
  static const char *const clips[] = {"kl", "rescale", "none"};
  for (int k = 0; k < 3; k++) {
    r1_set(&o, "clip", clips[k]);
    r[0] = play(s[0], &o, (scene_look){0});
    assert_true(r[0].nu[0] == 1 && r[0].inner[0] == 0);
    for (int32_t l = 0; l < s[0]->layers; l++) {
      for (int64_t i = 0; i < scene_weights(s[0], l); i++)
        assert_true(r[0].P[0][l][i] == 0);
    }
    scene_forget(&r[0]);
  }
  for (int k = 0; k < 3; k++)
    scene_destroy(&s[k]);
}

/* One input, one output, with and without a bias; a = 0 or g = 0 leave D / lambda. */
static void small_and_zero(void **state) {
  (void)state;
  ng_options o = r1_method("eva");
  r1_set(&o, "clip", "none");
  r1_set(&o, "damping", "0.5");
  for (int bias = 0; bias < 2; bias++) {
    for (int zero = 0; zero < 3; zero++) { /* nothing, a, g */
      scene *s = scene_create(1, 1);
      scene_result want;
      scene_linear(s, 1, 1, bias != 0, 1);
      scene_close(s);
      scene_micro *m = scene_call(s, 0, 0, 1);
      m->a[0][0] = r1_zeros(1);
      m->g[0][0] = r1_zeros(1);
      m->a[0][0][0] = zero == 1 ? 0 : 3;
      m->g[0][0][0] = zero == 2 ? 0 : 2;
      s->D[0][0] = r1_zeros(2);
      s->D[0][0][0] = 0.75;
      s->D[0][0][1] = -0.25;
      r1_predict(s, &o, &want);
      if (zero == 2 || (zero == 1 && bias == 0)) assert_true(want.P[0][0][0] == 1.5);
      if (zero == 0 && bias == 0) assert_true(fabs(want.P[0][0][0] - 0.75 / 36.5) < 1e-15);
      scene_result got = play(s, &o, (scene_look){0});
      compare("d = 1", s, &got, &want, 2 * GROWTH * 81 * unit); /* (10 4 + 0.5) / 0.5 */
      scene_forget(&got);
      scene_forget(&want);
      scene_destroy(&s);
    }
  }
}

/* Gradients whose squares f32 cannot hold: 1e25 and 1e-30 give what 1 gives, times that. */
static void far_from_one(void **state) {
  (void)state;
  static const double size[] = {1, 1e25, 1e-30};
  ng_options o = r1_method("eva");
  r1_set(&o, "clip", "rescale");
  scene_result r[3];
  for (int k = 0; k < 3; k++) {
    scene *s = mixed(1, 1, false);
    const double near_enough = close_to(s, &o);
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < scene_weights(s, l); i++)
        s->D[0][l][i] *= size[k];
    }
    r[k] = play(s, &o, (scene_look){0});
    assert_true(fabs(r[k].nu[0] / r[0].nu[0] - 1) <= near_enough);
    for (int32_t l = 0; l < s->layers; l++) {
      double most = 0;
      for (int64_t i = 0; i < scene_weights(s, l); i++)
        most = fmax(most, fabs(r[0].P[0][l][i]));
      for (int64_t i = 0; i < scene_weights(s, l); i++)
        assert_true(fabs(r[k].P[0][l][i] / size[k] - r[0].P[0][l][i]) <= near_enough * most);
    }
    scene_destroy(&s);
  }
  for (int k = 0; k < 3; k++)
    scene_forget(&r[k]);
}

/* Gradients of 16 bits: what comes out is the f32 result, rounded to the type. */
static void half_gradients(void **state) {
  (void)state;
  const ng_options o = r1_method("eva");
  const struct {
    ng_dtype type;
    double half;
  } types[] = {{NG_BF16, 0x1p-8}, {NG_F16, 0x1p-11}};
  scene *s = mixed(2, 1, false);
  scene_result x = play(s, &o, (scene_look){0});
  for (int k = 0; k < 2; k++) {
    scene_result y = play(s, &o, (scene_look){.gradient = types[k].type});
    for (int32_t t = 0; t < 2; t++) {
      assert_true(fabs(y.nu[t] / x.nu[t] - 1) < 1e-6);
      for (int32_t l = 0; l < s->layers; l++) {
        for (int64_t i = 0; i < scene_weights(s, l); i++) {
          const double a = x.P[t][l][i], b = y.P[t][l][i];
          assert_true(fabs(a - b) <= types[k].half * fabs(a) + 1e-7);
        }
      }
    }
    scene_forget(&y);
  }
  scene_forget(&x);
  scene_destroy(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shards_equal_the_whole), cmocka_unit_test(orders),
      cmocka_unit_test(threads_do_not_matter),  cmocka_unit_test(operator),
      cmocka_unit_test(small_and_zero),         cmocka_unit_test(far_from_one),
      cmocka_unit_test(half_gradients),
  };
  return cmocka_run_group_tests_name("rankone_properties", tests, NULL, NULL);
}
