/* t_oracle.c: the library against the oracle, over random models, data, options, ranks and looks.
 *
 * A failure prints the seed, the options and the look; NG_TEST_SEED runs that case again,
 * NG_TEST_MULT multiplies how many are tried.
 *
 * Tolerance.  P solves M P = D with M = G (x) A + damping.  Errors of relative size e in the
 * factors and in the solve change P by at most e condition(M) |P|, in the norm; the oracle reports
 * that condition.  In f32, e is a few units of u = 2^-24 a sum, times the square root of the
 * dimension for going from entries to norms (at most 8 here), twice for the two factors; computed
 * eigenvectors are orthogonal to about as much, four times over: GROWTH u.  The clip adds half the
 * error of all layers together.  GROWTH is twice the largest value seen in 20,000 cases (31; it
 * is printed as `worst`).
 */
#include "fixture.h"
#include "oracle.h"
#include "scene.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double GROWTH = 64;
/* Above it the bound says little: the damping is raised until the condition is below. */
static const double WELL = 3e4;

static const char *pick(rng *r, const char *words) {
  static _Thread_local char word[4][32];
  static _Thread_local int turn;
  int64_t n = 1;
  for (const char *c = words; *c; c++)
    n += *c == ' ';
  for (int64_t k = rng_below(r, n); k > 0; k--)
    words = strchr(words, ' ') + 1;
  turn = (turn + 1) % 4;
  snprintf(word[turn], sizeof word[turn], "%.*s", (int)strcspn(words, " "), words);
  return word[turn];
}

static void set_real(ng_options *o, const char *name, double x) {
  char text[40];
  snprintf(text, sizeof text, "%.17g", x);
  fixture_set(o, name, text);
}

static void random_options(rng *r, ng_options *o) {
  ng_options_standard(o);
  fixture_set(o, "solver", pick(r, "eigen cholesky"));
  bool eigen = strcmp(o->solver, "eigen") == 0;
  fixture_set(o, "damping_split", pick(r, eigen ? "joint full pi" : "full pi"));
  fixture_set(o, "prediv", eigen ? pick(r, "0 1") : "0");
  fixture_set(o, "eigen_floor", eigen ? pick(r, "0 1e-10 0.03") : "0");
  if (!eigen) fixture_set(o, "cholesky_form", pick(r, "auto inverse factor"));
  if (strcmp(o->damping_split, "joint") != 0) fixture_set(o, "damping_leak", pick(r, "0 0 0 1"));
  set_real(o, "damping", pow(10, -2.5 + 3 * rng_real(r)));
  fixture_set(o, "stat_decay", pick(r, "0 0.3 0.5 0.95 0.95 1"));
  fixture_set(o, "stat_start", pick(r, "first first identity zero"));
  fixture_set(o, "stat_scale", pick(r, "textbook textbook kaisa mpd-kfac"));
  fixture_set(o, "positions", pick(r, "expand expand reduce"));
  fixture_set(o, "stat_batch", pick(r, "0 0 0 1 2"));
  fixture_set(o, "calls", pick(r, "mean mean ema last"));
  fixture_set(o, "call_weight", pick(r, "samples samples equal"));
  fixture_set(o, "fold", pick(r, "sum sum sum direct"));
  fixture_set(o, "stat_period", pick(r, "1 1 2"));
  fixture_set(o, "solve_period", pick(r, "1 1 2 3"));
  fixture_set(o, "factor_blocks", pick(r, "1 1 1 2 3"));
  fixture_set(o, "max_factor", pick(r, "0 0 0 7 12"));
  fixture_set(o, "clip", pick(r, "kl kl rescale none"));
  set_real(o, "kl_clip", pow(10, -4 * rng_real(r)));
  fixture_set(o, "statistics", pick(r, "all all local"));
  fixture_set(o, "placement", "round-robin"); /* as the oracle has owners */
}

static void random_layer(rng *r, scene *s) {
  bool bias = rng_below(r, 3) > 0;
  if (rng_below(r, 2)) {
    scene_linear(s, 1 + rng_below(r, 8), 1 + rng_below(r, 6), bias, 1 + 2 * rng_below(r, 2));
    return;
  }
  int64_t groups = rng_below(r, 3) ? 1 : 2;
  int64_t k = 1 + rng_below(r, 3), kw = rng_below(r, 3) ? k : 1 + rng_below(r, 3);
  ng_layer *l = scene_conv(s, groups * (1 + rng_below(r, 4)), groups * (1 + rng_below(r, 3)), k, kw,
                           3 + rng_below(r, 4), 3 + rng_below(r, 4), bias);
  l->groups = groups;
  bool plain = rng_below(r, 2); /* the shape with its own fast way: 3x3, stride 1, padding 1 */
  for (int i = 0; i < 2; i++) {
    if (plain) {
      l->kernel[i] = 3;
      l->padding[i] = 1;
      l->image[i] += 2;
      continue;
    }
    l->stride[i] = 1 + rng_below(r, 2);
    l->padding[i] = rng_below(r, 3);
    int64_t room = l->image[i] + 2 * l->padding[i];
    l->dilation[i] = (l->kernel[i] - 1) * 2 + 1 <= room ? 1 + rng_below(r, 2) : 1;
  }
}

static scene *random_scene(rng *r, const ng_options *o) {
  static const int32_t ranks_of[] = {1, 1, 1, 2, 3, 5};
  bool direct = strcmp(o->fold, "direct") == 0, even = strcmp(o->calls, "ema") == 0;
  bool local = strcmp(o->statistics, "local") == 0;
  scene *s = scene_create(2 + (int32_t)rng_below(r, 3), ranks_of[rng_below(r, 6)]);
  int64_t layers = 1 + rng_below(r, 4);
  for (int64_t l = 0; l < layers; l++) {
    random_layer(r, s);
    if (!direct && rng_below(r, 6) == 0) s->uses[l] = 2;
  }
  if (layers > 1 && rng_below(r, 8) == 0) s->layer[layers - 1].frozen = 1;
  scene_close(s);
  for (int32_t t = 0; t < s->steps; t++) {
    if (rng_below(r, 4) == 0) s->damping[t] = o->damping * (0.5 + 2 * rng_real(r));
    int64_t calls = direct ? 1 : 1 + rng_below(r, 3), B = 1 + rng_below(r, 5);
    for (int32_t k = 0; k < s->ranks; k++) {
      int64_t mine = direct || even ? calls : 1 + rng_below(r, 3);
      if (k > 0 && !direct && !even && !local && rng_below(r, 5) == 0) mine = 0;
      for (int64_t c = 0; c < mine; c++) {
        scene_micro *m = scene_call(s, t, k, even ? B : 1 + rng_below(r, 5));
        m->batch.reduction = rng_below(r, 3) ? NG_MEAN : NG_SUM;
        m->batch.loss_scale = rng_below(r, 3) ? 1 : rng_below(r, 2) ? 64 : 0.5;
      }
    }
  }
  scene_fill(s, r);
  for (int32_t t = 0; t < s->steps; t++) { /* g as scaled as the batch says */
    for (int32_t k = 0; k < s->ranks; k++) {
      for (int32_t c = 0; c < s->calls[t][k]; c++) {
        scene_micro *m = &s->micro[t][k][c];
        for (int32_t l = 0; l < s->layers; l++) {
          for (int32_t u = 0; u < s->uses[l]; u++) {
            int64_t n = scene_out_count(s, l, m->batch.samples);
            for (int64_t i = 0; i < n; i++)
              m->g[l][u][i] *= m->batch.loss_scale;
          }
        }
      }
    }
  }
  return s;
}

static scene_look random_look(rng *r, const scene *s) {
  static const ng_dtype types[] = {NG_F32, NG_F32, NG_BF16, NG_F16};
  scene_look k = {0};
  k.linalg = rng_below(r, 2) ? "ref" : NULL;
  k.threads = s->ranks > 1 ? 1 : 1 + (int32_t)rng_below(r, 2);
  k.shown = types[rng_below(r, 4)];
  k.pad = rng_below(r, 2) * 3;
  k.layout = rng_below(r, 2) ? PLANE_NCHW : PLANE_NHWC;
  k.order = rng_below(r, 2) ? NG_SAMPLES_FIRST : NG_POSITIONS_FIRST;
  k.declare_positions = rng_below(r, 2);
  k.show_unwanted = rng_below(r, 4) == 0;
  k.reverse = s->ranks == 1 && rng_below(r, 4) == 0;
  return k;
}

static void describe(const scene *s, const ng_options *o, const scene_look *k) {
  printf("# ranks %d steps %d, linalg %s threads %d type %d pad %d layout %d order %d reverse %d\n",
         s->ranks, s->steps, k->linalg ? k->linalg : "best", k->threads, (int)k->shown, (int)k->pad,
         (int)k->layout, (int)k->order, k->reverse);
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info info = {.struct_size = sizeof info};
    char value[128];
    if (ng_option_at(i, &info) != NG_OK) continue;
    if (ng_options_get(o, info.name, value, sizeof value) != NG_OK) continue;
    if (strcmp(value, info.standard) != 0) printf("#   %s = %s\n", info.name, value);
  }
  for (int32_t l = 0; l < s->layers; l++) {
    const ng_layer *d = &s->layer[l];
    printf("#   %s %d -> %d bias %d positions %d uses %d frozen %d", s->name[l], (int)d->in,
           (int)d->out, d->bias, (int)s->positions[l], s->uses[l], d->frozen);
    if (d->kind == NG_CONV2D) {
      printf(" kernel %dx%d stride %d,%d padding %d,%d dilation %d,%d groups %d image %dx%d",
             (int)d->kernel[0], (int)d->kernel[1], (int)d->stride[0], (int)d->stride[1],
             (int)d->padding[0], (int)d->padding[1], (int)d->dilation[0], (int)d->dilation[1],
             (int)d->groups, (int)d->image[0], (int)d->image[1]);
    }
    printf("\n");
  }
  for (int32_t t = 0; t < s->steps; t++) {
    printf("#   step %d%s:", t, s->damping[t] > 0 ? " (new damping)" : "");
    for (int32_t r = 0; r < s->ranks; r++) {
      printf(" rank %d", r);
      for (int32_t c = 0; c < s->calls[t][r]; c++) {
        const ng_batch *b = &s->micro[t][r][c].batch;
        printf(" %d%s/%g", (int)b->samples, b->reduction == NG_SUM ? "sum" : "mean", b->loss_scale);
      }
      printf(";");
    }
    printf("\n");
  }
}

static double condition_of(const scene *s, const scene_result *r, int32_t t) {
  double c = 0;
  for (int32_t l = 0; l < s->layers; l++)
    c = fmax(c, r->condition[t][l]);
  return c;
}

/* More damping until every step is well conditioned. */
static void predict(scene *s, ng_options *o, scene_result *out) {
  for (int i = 0; i < 12; i++) {
    scene_predict(s, o, out, NULL);
    double c = 0;
    for (int32_t t = 0; t < s->steps; t++)
      c = fmax(c, condition_of(s, out, t));
    if (c < WELL) return;
    scene_forget(out);
    o->damping *= 10;
    for (int32_t t = 0; t < s->steps; t++)
      s->damping[t] *= 10;
  }
  fail_msg("no damping is enough");
}

/* 0, or what is wrong: the largest error in units of `unit` condition. */
static double compare(const scene *s, const scene_result *x, const scene_result *y, char why[160]) {
  double worst = 0;
  why[0] = '\0';
  for (int32_t t = 0; t < s->steps; t++) {
    double all = condition_of(s, y, t);
    double e = fabs(x->nu[t] - y->nu[t]) / y->nu[t] / (unit * fmax(all, 1));
    if (!(e <= worst)) {
      worst = e;
      snprintf(why, 160, "step %d: nu %.9g, should be %.9g", t, x->nu[t], y->nu[t]);
    }
    for (int32_t l = 0; l < s->layers; l++) {
      e = scene_gap(s, t, l, x, y) / (unit * fmax(all, 1));
      if (e <= worst) continue;
      worst = e;
      int64_t n = scene_weights(s, l), at = 0;
      for (int64_t i = 0; i < n; i++) {
        if (fabs(x->P[t][l][i] - y->P[t][l][i]) > fabs(x->P[t][l][at] - y->P[t][l][at])) at = i;
      }
      snprintf(why, 160, "step %d layer %d entry %d: %.9g, should be %.9g; condition %.3g", t, l,
               (int)at, x->P[t][l][at], y->P[t][l][at], y->condition[t][l]);
    }
  }
  return worst;
}

static double run_case(uint64_t seed) {
  rng r = {seed};
  ng_options o;
  random_options(&r, &o);
  scene *s = random_scene(&r, &o);
  scene_look look = random_look(&r, s);
  const char *fraction = s->ranks == 2 ? pick(&r, "0 0.5 1") : pick(&r, "0 1");
  if (s->ranks > 1) fixture_set(&o, "grad_worker_fraction", fraction);
  scene_result want, got;
  char why[160];
  predict(s, &o, &want);
  scene_play(s, &o, &look, &got);
  double e = INFINITY;
  if (got.status == NG_OK) e = compare(s, &got, &want, why);
  if (got.status != NG_OK || !(e <= GROWTH) || got.rank_gap > 0) {
    describe(s, &o, &look);
    if (got.status != NG_OK) {
      snprintf(why, sizeof why, "%s %.120s", ng_status_name(got.status), got.message);
    }
    print_message("NG_TEST_SEED=%" PRIu64 ": %s (%.3g units, ranks differ by %.3g)\n", seed, why, e,
                  got.rank_gap);
    e = INFINITY;
  }
  scene_forget(&want);
  scene_forget(&got);
  scene_destroy(&s);
  return e;
}

static void test_random(void **state) {
  (void)state;
  test_cases(run_case, 200, GROWTH);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
  return cmocka_run_group_tests_name("oracle", tests, NULL, NULL);
}
