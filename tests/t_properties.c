/* t_properties.c: what must hold for any data, of the operator itself: few lines, many inputs, no
 * stored answers.  Each property runs on every linear algebra built in and with every solver it
 * speaks of; tolerances are explained in variants.h.
 */
#include "oracle.h"
#include "scene.h"
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

/* ---- the operator ----------------------------------------------------------------------------*/

/* P(2x - y/2) = 2 Px - Py/2; <y, Px> = <Py, x>; <x, Px> > 0. */
static void test_linear_symmetric_positive(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    scene *s[3];
    scene_result r[3];
    ng_options o = v_options(v);
    v_set(&o, "clip", "none");
    for (int k = 0; k < 3; k++)
      s[k] = v_uneven(1, 1, 1);
    rng other = {test_seed() + 77};
    for (int32_t l = 0; l < s[0]->layers; l++) {
      for (int64_t i = 0; i < scene_weights(s[0], l); i++) {
        double x = s[0]->D[0][l][i], y = rng_value(&other);
        s[1]->D[0][l][i] = y;
        s[2]->D[0][l][i] = 2 * x - y / 2;
      }
    }
    for (int k = 0; k < 3; k++)
      r[k] = v_play(s[k], &o, v);
    double bound = GROWTH * unit * v_condition_of(s[0], &o);
    for (int32_t l = 0; l < s[0]->layers; l++) {
      int64_t n = scene_weights(s[0], l);
      const double *x = s[0]->D[0][l], *y = s[1]->D[0][l];
      double *Px = r[0].P[0][l], *Py = r[1].P[0][l], most = 0;
      assert_true(v_dot(x, Px, n) > 0 && v_dot(y, Py, n) > 0);
      double size =
          sqrt(v_dot(x, x, n) * v_dot(Py, Py, n)) + sqrt(v_dot(y, y, n) * v_dot(Px, Px, n));
      assert_true(fabs(v_dot(y, Px, n) - v_dot(x, Py, n)) <= bound * size);
      for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(Px[i]) * 2 + fabs(Py[i]) / 2);
      for (int64_t i = 0; i < n; i++) {
        assert_true(fabs(r[2].P[0][l][i] - 2 * Px[i] + Py[i] / 2) <= bound * most);
      }
    }
    for (int k = 0; k < 3; k++) {
      scene_forget(&r[k]);
      scene_destroy(&s[k]);
    }
  }
}

static void test_zero_gives_zero(void **state) {
  (void)state;
  static const char *clips[] = {"kl", "rescale", "none"};
  EVERY_VARIANT(v) {
    for (int k = 0; k < 3; k++) {
      scene *s = v_uneven(1, 1, 2);
      ng_options o = v_options(v);
      v_set(&o, "clip", clips[k]);
      for (int32_t l = 0; l < s->layers; l++) {
        memset(s->D[0][l], 0, sizeof(double) * (size_t)scene_weights(s, l));
      }
      scene_result r = v_play(s, &o, v);
      assert_true(r.nu[0] == 1 && r.inner[0] == 0);
      for (int32_t l = 0; l < s->layers; l++) {
        for (int64_t i = 0; i < scene_weights(s, l); i++)
          assert_true(r.P[0][l][i] == 0);
      }
      scene_forget(&r);
      scene_destroy(&s);
    }
  }
}

/* Joint and pi: PD -> D / lambda; full: D / lambda^2, both factors carrying all of it. */
static void test_large_damping(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    scene *s = v_uneven(1, 1, 3);
    ng_options o = v_options(v);
    double lambda = 1e10;
    o.damping = lambda;
    v_set(&o, "clip", "none");
    scene_result r = v_play(s, &o, v);
    /* What is left of the curvature beside the damping: |A| |G| / lambda (joint); |A| / d_A and
     * |G| / d_G, geometrically |.| / sqrt(lambda) (pi).  Norms of these factors are below 1e3. */
    double bound = 1e3 / (strcmp(v->split, "pi") == 0 ? sqrt(lambda) : lambda) + GROWTH * unit;
    if (strcmp(v->split, "joint") == 0) bound = 1e6 / lambda + GROWTH * unit;
    if (strcmp(v->split, "full") == 0) lambda *= lambda;
    for (int32_t l = 0; l < s->layers; l++) {
      double most = 0;
      for (int64_t i = 0; i < scene_weights(s, l); i++)
        most = fmax(most, fabs(s->D[0][l][i]));
      for (int64_t i = 0; i < scene_weights(s, l); i++) {
        double e = fabs(lambda * r.P[0][l][i] - s->D[0][l][i]);
        if (!(e <= bound * most)) {
          fail_msg("%s %s %s layer %d: %.3g > %.3g", v->linalg, v->solver, v->split, l, e / most,
                   bound);
        }
      }
    }
    scene_forget(&r);
    scene_destroy(&s);
  }
}

/* One linear layer: P from the library, put back into (G (x) A + lambda I) P = D with A and G added
 * up here, sample by sample, from the definition. */
static void test_dense_fisher(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    if (strcmp(v->split, "joint") != 0) continue;
    rng random = {test_seed() + 4};
    scene *s = scene_create(1, 1);
    scene_linear(s, 3, 2, true, 1);
    scene_micro *m = scene_call(s, 0, 0, 9);
    scene_fill(s, &random);
    ng_options o = v_options(v);
    v_set(&o, "clip", "none");
    double lambda = 0.5, A[16] = {0}, G[4] = {0}, GP[8] = {0};
    o.damping = lambda;
    for (int n = 0; n < 9; n++) {
      const double *x = m->a[0][0] + 3 * n, *g = m->g[0][0] + 2 * n;
      for (int i = 0; i < 16; i++) {
        A[i] += (i / 4 < 3 ? x[i / 4] : 1) * (i % 4 < 3 ? x[i % 4] : 1) / 9;
      }
      for (int i = 0; i < 4; i++)
        G[i] += 9 * g[i / 2] * 9 * g[i % 2] / 9; /* mean loss: 9 g */
    }
    scene_result r = v_play(s, &o, v);
    const double *P = r.P[0][0], *D = s->D[0][0];
    double most = 0, bound = GROWTH * unit * v_condition_of(s, &o);
    for (int i = 0; i < 8; i++) {
      GP[i] = G[i / 4 * 2] * P[i % 4] + G[i / 4 * 2 + 1] * P[4 + i % 4];
      most = fmax(most, fabs(D[i]));
    }
    for (int i = 0; i < 8; i++) {
      double back = lambda * P[i];
      for (int k = 0; k < 4; k++)
        back += GP[i / 4 * 4 + k] * A[k * 4 + i % 4];
      assert_true(fabs(back - D[i]) <= bound * most);
    }
    scene_forget(&r);
    scene_destroy(&s);
  }
}

/* ---- small and limited -----------------------------------------------------------------------*/

/* One sample, one input, one output: P = D / (a^2 g^2 + lambda), or the product of the damped
 * numbers; pi makes both shifts a sqrt(lambda)/g and g sqrt(lambda)/a. */
static void test_single_numbers(void **state) {
  (void)state;
  const double a = 1.5, g = -0.75, d = 0.375, lambda = 0.25;
  EVERY_VARIANT(v) {
    for (int conv = 0; conv < 2; conv++) {
      scene *s = scene_create(1, 1);
      if (conv)
        scene_conv(s, 1, 1, 1, 1, 1, 1, false);
      else
        scene_linear(s, 1, 1, false, 1);
      scene_close(s);
      rng random = {test_seed()};
      scene_micro *m = scene_call(s, 0, 0, 1);
      scene_fill(s, &random);
      m->a[0][0][0] = a;
      m->g[0][0][0] = g;
      s->D[0][0][0] = d;
      ng_options o = v_options(v);
      o.damping = lambda;
      v_set(&o, "clip", "none");
      double A = a * a, G = g * g, want = d / (A * G + lambda), pi = sqrt(A / G);
      if (strcmp(v->split, "full") == 0) want = d / ((A + lambda) * (G + lambda));
      if (strcmp(v->split, "pi") == 0) {
        want = d / ((A + sqrt(lambda) * pi) * (G + sqrt(lambda) / pi));
      }
      scene_result r = v_play(s, &o, v);
      assert_true(fabs(r.P[0][0][0] - want) <= 16 * unit * fabs(want)); /* a dozen roundings */
      scene_forget(&r);
      scene_destroy(&s);
    }
  }
}

static void test_clip(void **state) {
  (void)state;
  static const char *kl[] = {"1e-8", "1e-3", "1e6"};
  EVERY_VARIANT(v) {
    scene *s = v_uneven(2, 1, 14);
    ng_options o = v_options(v);
    v_set(&o, "clip", "none");
    scene_result plain = v_play(s, &o, v);
    assert_true(plain.nu[0] == 1 && plain.nu[1] == 1);
    for (int k = 0; k < 3; k++) {
      v_set(&o, "clip", "kl");
      v_set(&o, "kl_clip", kl[k]);
      scene_result r = v_play(s, &o, v);
      for (int32_t t = 0; t < 2; t++) {
        double inner = 0;
        for (int32_t l = 0; l < s->layers; l++) {
          inner += v_dot(plain.P[t][l], s->D[t][l], scene_weights(s, l));
        }
        double nu = fmin(1, sqrt(o.kl_clip / (0.01 * fabs(inner)))); /* lr = 0.1 */
        assert_true(r.nu[t] > 0 && r.nu[t] <= 1);
        assert_true(fabs(r.nu[t] - nu) <= 64 * unit * nu);
        for (int32_t l = 0; l < s->layers; l++) { /* one factor for all, rounded once */
          for (int64_t i = 0; i < scene_weights(s, l); i++) {
            double want = r.nu[t] * plain.P[t][l][i];
            assert_true(fabs(r.P[t][l][i] - want) <= 4 * unit * fabs(want));
          }
        }
      }
      scene_forget(&r);
    }
    v_set(&o, "clip", "rescale");
    scene_result r = v_play(s, &o, v);
    for (int32_t t = 0; t < 2; t++) {
      double d2 = 0, pd2 = 0;
      for (int32_t l = 0; l < s->layers; l++) {
        d2 += v_dot(s->D[t][l], s->D[t][l], scene_weights(s, l));
        pd2 += v_dot(r.P[t][l], r.P[t][l], scene_weights(s, l));
      }
      assert_true(fabs(pd2 - d2) <= 64 * unit * d2); /* the length of the gradient is kept */
    }
    scene_forget(&r);
    scene_forget(&plain);
    scene_destroy(&s);
  }
}

/* Running averages and inverses kept in half precision: each entry is rounded by at most half a
 * unit in the last place (2^-9 to 2^-8 of itself in bf16, 2^-12 to 2^-11 in f16), twice (two folds;
 * or an inverse and its factor's own rounding), on both sides, and acts through the condition. */
static void test_half_factors(void **state) {
  (void)state;
  static const char *name[] = {"bf16", "f16"};
  static const double half[] = {0x1p-8, 0x1p-11};
  EVERY_VARIANT(v) {
    scene *s = v_uneven(2, 1, 15);
    ng_options o = v_options(v);
    o.damping = 100;
    scene_result x = v_play(s, &o, v);
    double condition = v_condition_of(s, &o);
    for (int k = 0; k < 2; k++) {
      for (int which = 0; which < 2; which++) {
        ng_options h = o;
        v_set(&h, which ? "inverse_dtype" : "factor_dtype", name[k]);
        scene_result y = v_play(s, &h, v);
        double bound = 2 * 2 * half[k] * condition, gap = 0;
        for (int32_t l = 0; l < s->layers; l++)
          gap = fmax(gap, scene_gap(s, 1, l, &y, &x));
        if (!(gap > 0 && gap <= bound)) {
          fail_msg("%s %s %s, %s in %s: %.3g, bound %.3g", v->linalg, v->solver, v->split,
                   which ? "inverses" : "factors", name[k], gap, bound);
        }
        scene_forget(&y);
      }
    }
    scene_forget(&x);
    scene_destroy(&s);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_linear_symmetric_positive),
      cmocka_unit_test(test_zero_gives_zero),
      cmocka_unit_test(test_large_damping),
      cmocka_unit_test(test_dense_fisher),
      cmocka_unit_test(test_single_numbers),
      cmocka_unit_test(test_clip),
      cmocka_unit_test(test_half_factors),
  };
  return cmocka_run_group_tests_name("properties", tests, NULL, NULL);
}
