/* t_batches.c: what must hold for any data, of what a batch is and how it is shown: micro-batches,
 * ranks, order, shared weights, groups, scaled losses, strides, layouts, types.  Each property runs
 * on every linear algebra built in and with every solver it speaks of; tolerances are explained in
 * variants.h.
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

/* ---- what a batch is -------------------------------------------------------------------------*/

/* One rank, several uneven micro-batches, as one micro-batch. */
static void test_micro_batches(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    rng random = {test_seed() + 5};
    scene *s = v_layers_of(3, 1);
    for (int32_t t = 0; t < 3; t++) {
      for (int c = 0; c < 4; c++)
        scene_call(s, t, 0, 1 + (c + t) % 4)->batch.reduction = NG_SUM;
    }
    scene_fill(s, &random);
    scene *whole = scene_merge(s);
    ng_options o = v_options(v);
    double bound = GROWTH * unit * v_condition_of(s, &o);
    scene_result x = v_play(s, &o, v), y = v_play(whole, &o, v);
    v_same("micro-batches", v, s, &x, &y, bound);
    scene_forget(&x);
    /* The same with mean losses: each micro-batch's g is then smaller by its own B. */
    for (int32_t t = 0; t < 3; t++) {
      for (int c = 0; c < 4; c++) {
        scene_micro *m = &s->micro[t][0][c];
        m->batch.reduction = NG_MEAN;
        for (int32_t l = 0; l < s->layers; l++) {
          for (int64_t i = 0; i < scene_out_count(s, l, m->batch.samples); i++) {
            m->g[l][0][i] /= (double)m->batch.samples;
          }
        }
      }
    }
    x = v_play(s, &o, v);
    v_same("micro-batches of mean losses", v, s, &x, &y, bound);
    scene_forget(&x);
    scene_forget(&y);
    scene_destroy(&s);
    scene_destroy(&whole);
  }
}

/* N ranks with different, uneven shards equal one rank with everything. */
static void test_ranks(void **state) {
  (void)state;
  static const int32_t ranks[] = {1, 2, 3, 5};
  EVERY_VARIANT(v) {
    for (int k = 0; k < 4; k++) {
      scene *s = v_uneven(2, ranks[k], 6), *whole = scene_merge(s);
      ng_options o = v_options(v);
      scene_result y = v_play(whole, &o, v);
      double bound = GROWTH * unit * v_condition_of(s, &o);
      for (int fraction = 0; fraction < 2; fraction++) {
        o.grad_worker_fraction = fraction;
        scene_result x = v_play(s, &o, v);
        v_same("ranks", v, s, &x, &y, bound);
        scene_forget(&x);
      }
      scene_forget(&y);
      scene_destroy(&s);
      scene_destroy(&whole);
    }
  }
}

static void test_order(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    rng random = {test_seed() + 7};
    scene *s = v_uneven(2, 1, 7), *shuffled = scene_shuffle(s, &random);
    ng_options o = v_options(v);
    scene_look back = {.linalg = v->linalg, .reverse = true};
    scene_result x = v_play(s, &o, v), y = v_play(shuffled, &o, v), z = v_play_as(s, &o, &back);
    v_same("order of samples", v, s, &y, &x, GROWTH * unit * v_condition_of(s, &o));
    /* Layers meet only in the clip's sum, which is in double. */
    v_same("order of layers", v, s, &z, &x, 8 * unit);
    scene_forget(&x);
    scene_forget(&y);
    scene_forget(&z);
    scene_destroy(&s);
    scene_destroy(&shuffled);
  }
}

/* Two uses in a micro-batch are two calls; weighed by samples they are one batch of both. */
static void test_shared_weights(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    rng random = {test_seed() + 8};
    scene *s = v_layers_of(1, 1), *one;
    for (int32_t l = 0; l < s->layers; l++)
      s->uses[l] = 2;
    scene_micro *m = scene_call(s, 0, 0, 3);
    m->batch.reduction = NG_SUM;
    scene_fill(s, &random);
    one = v_layers_of(1, 1);
    scene_micro *w = scene_call(one, 0, 0, 6);
    w->batch.reduction = NG_SUM;
    scene_fill(one, &random);
    for (int32_t l = 0; l < s->layers; l++) {
      int64_t na = scene_in_count(s, l, 3), ng = scene_out_count(s, l, 3);
      memcpy(one->D[0][l], s->D[0][l], sizeof(double) * (size_t)scene_weights(s, l));
      for (int u = 0; u < 2; u++) {
        memcpy(w->a[l][0] + u * na, m->a[l][u], sizeof(double) * (size_t)na);
        memcpy(w->g[l][0] + u * ng, m->g[l][u], sizeof(double) * (size_t)ng);
      }
    }
    ng_options o = v_options(v);
    scene_result x = v_play(s, &o, v), y = v_play(one, &o, v);
    v_same("shared weights", v, s, &x, &y, GROWTH * unit * v_condition_of(one, &o));
    scene_forget(&x);
    scene_forget(&y);
    scene_destroy(&s);
    scene_destroy(&one);
  }
}

/* A batch twice over, mean loss (so g halves), changes nothing with the textbook scale; with
 * KAISA's G, which has no B in it, it acts as four times the damping on the product. */
static void test_duplicate_batch(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    if (strcmp(v->split, "joint") != 0) continue;
    for (int kaisa = 0; kaisa < 2; kaisa++) {
      rng random = {test_seed() + 9};
      scene *s = v_layers_of(1, 1), *twice = v_layers_of(1, 1);
      scene_micro *m = scene_call(s, 0, 0, 4), *w = scene_call(twice, 0, 0, 8);
      scene_fill(s, &random);
      scene_fill(twice, &random);
      for (int32_t l = 0; l < s->layers; l++) {
        int64_t na = scene_in_count(s, l, 4), ng = scene_out_count(s, l, 4);
        for (int64_t i = 0; i < 2 * na; i++)
          w->a[l][0][i] = m->a[l][0][i % na];
        for (int64_t i = 0; i < 2 * ng; i++)
          w->g[l][0][i] = m->g[l][0][i % ng] / 2;
        memcpy(twice->D[0][l], s->D[0][l], sizeof(double) * (size_t)scene_weights(s, l));
      }
      ng_options o = v_options(v), four = o;
      v_set(&o, "clip", "none");
      if (kaisa) v_set(&o, "stat_scale", "kaisa");
      four = o;
      if (kaisa) four.damping *= 4;
      scene_result x = v_play(twice, &o, v), y = v_play(s, &four, v);
      if (kaisa) { /* (G/4 (x) A + lambda)^-1 = 4 (G (x) A + 4 lambda)^-1 */
        for (int32_t l = 0; l < s->layers; l++) {
          for (int64_t i = 0; i < scene_weights(s, l); i++)
            y.P[0][l][i] *= 4;
        }
      }
      v_same("duplicate batch", v, s, &x, &y, GROWTH * unit * v_condition_of(s, &o));
      scene_forget(&x);
      scene_forget(&y);
      scene_destroy(&s);
      scene_destroy(&twice);
    }
  }
}

/* loss_scale: g times a power of two, told, gives the same bits; untold, a loss c times as large
 * has G c^2 and so acts as damping / c^2 and a result / c^2 (gradient unchanged). */
static void test_scaled_loss(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    scene *s = v_uneven(2, 1, 10), *scaled = v_uneven(2, 1, 10);
    for (int32_t t = 0; t < 2; t++) {
      for (int32_t c = 0; c < s->calls[t][0]; c++) {
        scene_micro *m = &scaled->micro[t][0][c];
        m->batch.loss_scale = 8;
        for (int32_t l = 0; l < s->layers; l++) {
          for (int64_t i = 0; i < scene_out_count(s, l, m->batch.samples); i++) {
            m->g[l][0][i] *= 8;
          }
        }
      }
    }
    ng_options o = v_options(v);
    v_set(&o, "clip", "none");
    scene_result x = v_play(s, &o, v), y = v_play(scaled, &o, v);
    v_same("loss scale", v, s, &y, &x, 0);
    scene_forget(&y);
    if (strcmp(v->split, "joint") == 0) {
      for (int32_t t = 0; t < 2; t++) {
        for (int32_t c = 0; c < s->calls[t][0]; c++)
          scaled->micro[t][0][c].batch.loss_scale = 1;
      }
      ng_options more = o;
      more.damping *= 64;
      y = v_play(scaled, &more, v);
      for (int32_t t = 0; t < 2; t++) {
        for (int32_t l = 0; l < s->layers; l++) {
          for (int64_t i = 0; i < scene_weights(s, l); i++)
            y.P[t][l][i] *= 64;
        }
      }
      v_same("scaled loss", v, s, &y, &x, GROWTH * unit * v_condition_of(s, &o));
      scene_forget(&y);
    }
    scene_forget(&x);
    scene_destroy(&s);
    scene_destroy(&scaled);
  }
}

/* A convolution in g groups is g convolutions beside each other: the same results, the groups'
 * channels apart.  (pi is then each group's own.) */
static void test_groups(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    for (int one_by_one = 0; one_by_one < 2; one_by_one++) {
      rng random = {test_seed() + 16};
      scene *s = scene_create(2, 1), *apart = scene_create(2, 1);
      int64_t k = one_by_one ? 1 : 3, hw = 30, B = 4, S = one_by_one ? 30 : 12;
      scene_conv(s, 6, 4, k, k, 5, 6, true)->groups = 2;
      for (int g = 0; g < 2; g++)
        scene_conv(apart, 3, 2, k, k, 5, 6, true);
      scene_close(s);
      scene_close(apart);
      for (int32_t t = 0; t < 2; t++) {
        scene_call(s, t, 0, B);
        scene_call(apart, t, 0, B);
      }
      scene_fill(s, &random);
      scene_fill(apart, &random);
      int64_t half = scene_weights(apart, 0);
      for (int32_t t = 0; t < 2; t++) {
        for (int64_t g = 0; g < 2; g++) {
          const scene_micro *from = &s->micro[t][0][0];
          scene_micro *to = &apart->micro[t][0][0];
          memcpy(apart->D[t][g], s->D[t][0] + g * half, sizeof(double) * (size_t)half);
          for (int64_t b = 0; b < B; b++) {
            memcpy(to->a[g][0] + b * 3 * hw, from->a[0][0] + (b * 6 + g * 3) * hw,
                   sizeof(double) * (size_t)(3 * hw));
            memcpy(to->g[g][0] + b * 2 * S, from->g[0][0] + (b * 4 + g * 2) * S,
                   sizeof(double) * (size_t)(2 * S));
          }
        }
      }
      ng_options o = v_options(v);
      scene_result x = v_play(s, &o, v), y = v_play(apart, &o, v);
      double bound = GROWTH * unit * v_condition_of(apart, &o);
      for (int32_t t = 0; t < 2; t++) {
        for (int64_t i = 0; i < 2 * half; i++) {
          double want = y.P[t][i / half][i % half], most = 0;
          for (int64_t j = 0; j < 2 * half; j++) {
            most = fmax(most, fabs(y.P[t][j / half][j % half]));
          }
          if (!(fabs(x.P[t][0][i] - want) <= bound * most)) {
            fail_msg("groups (%s %s %s) step %d entry %d: %.7g, alone %.7g", v->linalg, v->solver,
                     v->split, t, (int)i, x.P[t][0][i], want);
          }
        }
      }
      scene_forget(&x);
      scene_forget(&y);
      scene_destroy(&s);
      scene_destroy(&apart);
    }
  }
}

/* ---- how arrays look -------------------------------------------------------------------------*/

/* A bias is a column of ones that the caller did not write. */
static void test_bias(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    for (int64_t S = 1; S <= 3; S += 2) {
      rng random = {test_seed() + 11};
      scene *s = scene_create(2, 1), *ones = scene_create(2, 1);
      scene_linear(s, 4, 3, true, S);
      scene_linear(ones, 5, 3, false, S);
      for (int32_t t = 0; t < 2; t++) {
        scene_micro *m = scene_call(s, t, 0, 6), *w = scene_call(ones, t, 0, 6);
        scene_fill(s, &random);
        scene_fill(ones, &random);
        for (int64_t i = 0; i < 6 * S * 5; i++) {
          w->a[0][0][i] = i % 5 < 4 ? m->a[0][0][i / 5 * 4 + i % 5] : 1;
        }
        memcpy(w->g[0][0], m->g[0][0], sizeof(double) * (size_t)(6 * S * 3));
      }
      for (int32_t t = 0; t < 2; t++)
        memcpy(ones->D[t][0], s->D[t][0], sizeof(double) * 15);
      for (int reduce = 0; reduce < 2; reduce++) {
        ng_options o = v_options(v);
        v_set(&o, "positions", reduce ? "reduce" : "expand");
        scene_result x = v_play(s, &o, v), y = v_play(ones, &o, v);
        v_same("bias", v, s, &x, &y, GROWTH * unit * v_condition_of(s, &o));
        scene_forget(&x);
        scene_forget(&y);
      }
      scene_destroy(&s);
      scene_destroy(&ones);
    }
  }
}

static void test_looks(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    const scene_look looks[] = {
        {.linalg = v->linalg, .pad = 5},
        {.linalg = v->linalg, .layout = NG_NHWC},
        {.linalg = v->linalg, .layout = NG_NHWC, .pad = 2},
        {.linalg = v->linalg, .order = NG_POSITIONS_FIRST, .declare_positions = true},
        {.linalg = v->linalg, .declare_positions = true, .show_unwanted = true},
        {.linalg = v->linalg, .threads = 3},
        {.linalg = v->linalg, .shown = NG_BF16}, /* the scene's numbers are exact in all three */
        {.linalg = v->linalg, .shown = NG_F16, .layout = NG_NHWC},
    };
    scene *s = v_uneven(2, 1, 12);
    ng_options o = v_options(v);
    double bound = GROWTH * unit * v_condition_of(s, &o);
    scene_result x = v_play(s, &o, v);
    for (size_t k = 0; k < sizeof looks / sizeof looks[0]; k++) {
      char what[32];
      scene_result y = v_play_as(s, &o, &looks[k]);
      snprintf(what, sizeof what, "look %d", (int)k);
      v_same(what, v, s, &y, &x, bound);
      scene_forget(&y);
    }
    /* Gradients in half precision are computed in f32 and rounded once, to nearest, at the end:
     * from gradients that are exact in both, half a unit of bf16 (2^-9) or f16 (2^-12) of each
     * entry. */
    const ng_dtype type[] = {NG_BF16, NG_F16};
    for (int k = 0; k < 2; k++) {
      scene_look half = {.linalg = v->linalg, .gradient = type[k], .pad = 1};
      scene_result y = v_play_as(s, &o, &half);
      v_same("half gradients", v, s, &y, &x, k == 0 ? 0x1p-8 : 0x1p-11);
      scene_forget(&y);
    }
    scene_forget(&x);
    scene_destroy(&s);
  }
}

static void test_same_bits(void **state) {
  (void)state;
  EVERY_VARIANT(v) {
    for (int32_t ranks = 1; ranks <= 3; ranks += 2) {
      scene *s = v_uneven(2, ranks, 13);
      ng_options o = v_options(v);
      scene_look look = {.linalg = v->linalg, .threads = ranks == 1 ? 3 : 1};
      scene_result x = v_play_as(s, &o, &look), y = v_play_as(s, &o, &look);
      v_same("again", v, s, &x, &y, 0);
      scene_forget(&x);
      scene_forget(&y);
      scene_destroy(&s);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_micro_batches),   cmocka_unit_test(test_ranks),
      cmocka_unit_test(test_order),           cmocka_unit_test(test_shared_weights),
      cmocka_unit_test(test_duplicate_batch), cmocka_unit_test(test_scaled_loss),
      cmocka_unit_test(test_groups),          cmocka_unit_test(test_bias),
      cmocka_unit_test(test_looks),           cmocka_unit_test(test_same_bits),
  };
  return cmocka_run_group_tests_name("batches", tests, NULL, NULL);
}
