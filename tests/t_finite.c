/* t_finite.c: random steps at the ends of f32, f16 and bf16 leave everything finite; averages and inverses stay in
 * the range of their dtype.  A step that is skipped changes nothing.  tests/t_huge.c has the rule of single elements. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "draw.h"
#include "fixture.h"
#include "ranks.h"
#include "step/step.h"

/* ---- a model: a layer of 3 x WIDE with a bias, and a tensor ----------------------------------*/

enum { WIDE = 1300, OUT = 3, SLOTS = 3, MOST = OUT * WIDE };
static const int64_t slot_rows[SLOTS] = {OUT, 1, 1};

typedef struct model {
  fixture f;
  int64_t in, steps;
  ng_dtype grads, weights;
  uint32_t grad[SLOTS][MOST], weight[SLOTS][MOST]; /* of their dtype */
  float a[WIDE], g[OUT];
  uint32_t before[2][SLOTS][MOST]; /* gradients and weights, */
  float moment[2][SLOTS][MOST];    /* moments */
} model;

static int64_t cols_of(const model *m, int k) { return k == 0 ? m->in : k == 1 ? OUT : 7; }
static int64_t count_of(const model *m, int k) { return slot_rows[k] * cols_of(m, k); }
static ng_slot *slot_of(model *m, int k) { return &m->f.p->entry[k / 2]->slot[k % 2]; }

static float get(const uint32_t *of, ng_dtype t, int64_t i) {
  float x;
  ng_to_f32(&x, (const char *)of + i * ng_dtype_size(t), t, 1);
  return x;
}

static void put(uint32_t *of, ng_dtype t, int64_t i, float x) {
  ng_from_f32((char *)of + i * ng_dtype_size(t), t, &x, 1);
}

/* Numbers of about these sizes everywhere. */
static void fill(model *m, double grad, double weight) {
  rng r = {test_seed()};
  for (int k = 0; k < SLOTS; k++) {
    for (int64_t i = 0; i < count_of(m, k); i++) {
      put(m->grad[k], m->grads, i, (float)(grad * rng_value(&r)));
      put(m->weight[k], m->weights, i, (float)(weight * rng_value(&r)));
    }
  }
}

static ng_status begin(model *m, const char *options, int64_t in, ng_dtype grads, ng_dtype weights,
                       const ng_transport *t) {
  m->in = in;
  m->grads = grads;
  m->weights = weights;
  ng_status st = fixture_open(&m->f, options, &(fixture_how){.threads = 2, .transport = t});
  if (st == NG_OK) st = ng_add_linear(m->f.p, "fc", in, OUT, 1, NULL);
  if (st == NG_OK) st = ng_add_tensor(m->f.p, "gamma", 7, NULL);
  for (int k = 0; k < SLOTS && st == NG_OK; k++) {
    const plane g = plane_of(m->grad[k], slot_rows[k], cols_of(m, k), grads);
    const plane w = plane_of(m->weight[k], slot_rows[k], cols_of(m, k), weights);
    st = fixture_bind(&m->f, k / 2, (ng_param)(k % 2), &g, &w);
  }
  fill(m, 1, 1);
  for (int64_t i = 0; i < in; i++)
    m->a[i] = i % 3 == 0 ? 0.5f : -0.25f;
  for (int i = 0; i < OUT; i++)
    m->g[i] = 0.125f * (float)(i + 1);
  return st == NG_OK ? ng_ready(m->f.p) : st;
}

static void begin_ok(model *m, const char *options, int64_t in, ng_dtype grads, ng_dtype weights) {
  fixture_ok(&m->f, begin(m, options, in, grads, weights, NULL));
}

static void keep(model *m) {
  m->steps = m->f.p->steps;
  memcpy(m->before[0], m->grad, sizeof m->grad);
  memcpy(m->before[1], m->weight, sizeof m->weight);
  for (int k = 0; k < SLOTS; k++) {
    const size_t bytes = (size_t)count_of(m, k) * sizeof(float);
    const ng_slot *s = slot_of(m, k);
    if (s->m != NULL) memcpy(m->moment[0][k], s->m, bytes);
    if (s->v != NULL) memcpy(m->moment[1][k], s->v, bytes);
  }
}

static bool unchanged(model *m) {
  bool same = memcmp(m->before[0], m->grad, sizeof m->grad) == 0 &&
              memcmp(m->before[1], m->weight, sizeof m->weight) == 0;
  for (int k = 0; k < SLOTS; k++) {
    const size_t bytes = (size_t)count_of(m, k) * sizeof(float);
    const ng_slot *s = slot_of(m, k);
    same = same && (s->m == NULL || memcmp(m->moment[0][k], s->m, bytes) == 0);
    same = same && (s->v == NULL || memcmp(m->moment[1][k], s->v, bytes) == 0);
  }
  return same;
}

static bool all_finite(model *m) {
  bool fine = true;
  for (int k = 0; k < SLOTS; k++) {
    const int64_t n = count_of(m, k);
    const ng_slot *s = slot_of(m, k);
    fine = fine && ng_all_finite(m->grad[k], m->grads, n) &&
           ng_all_finite(m->weight[k], m->weights, n) &&
           (s->m == NULL || ng_all_finite(s->m, NG_F32, n)) &&
           (s->v == NULL || ng_all_finite(s->v, NG_F32, n));
  }
  return fine;
}

/* One sample, and the step that the option `update` names. */
static ng_status play(model *m, const ng_sgd *sgd, const ng_adamw *adamw) {
  const plane a = plane_of(m->a, 1, m->in, NG_F32), g = plane_of(m->g, 1, OUT, NG_F32);
  const ng_status st = fixture_show(&m->f, 1, 0, &a, &g);
  if (st < NG_OK) return st;
  keep(m);
  return sgd != NULL     ? ng_step_sgd(m->f.p, sgd, 1)
         : adamw != NULL ? ng_step_adamw(m->f.p, adamw, 1)
                         : ng_step(m->f.p, 0.1);
}

static void close_model(model *m) { fixture_close(&m->f); }

static model one; /* too large for the stack */

static ng_sgd sgd_of(double lr, double momentum, double decay) {
  ng_sgd s = {.struct_size = sizeof s, .lr = lr, .momentum = momentum, .weight_decay = decay};
  return s;
}

static ng_adamw adamw_of(double lr, double eps) {
  ng_adamw a;
  ng_adamw_init(&a, sizeof a);
  a.lr = lr;
  a.eps = eps;
  return a;
}

/* ---- one number too many ---------------------------------------------------------------------*/

/* clip = ratio multiplies by up to 50: |PD| alone is far inside f16. */
static void a_ratio_of_fifty(void **state) {
  (void)state;
  begin_ok(&one, "method=eva clip=ratio clip_bound=1e6 damping=1", 5, NG_F16, NG_F32);
  fill(&one, 0, 1000);
  put(one.grad[0], NG_F16, 2, 2000);
  assert_int_equal(play(&one, NULL, NULL), NG_RESCUED);
  assert_true(get(one.grad[0], NG_F16, 2) == 2000);
  put(one.grad[0], NG_F16, 2, 1000);
  assert_int_equal(play(&one, NULL, NULL), NG_OK);
  assert_true(fabs((double)get(one.grad[0], NG_F16, 2)) > 40000); /* 50 it was */
  close_model(&one);
}

/* PD is inside f32, but what multiplies g in the row of the bias is about PD over |g|. */
static void a_factor_beyond_f32(void **state) {
  (void)state;
  static const char *const update[] = {"gradient", "sgd"};
  const ng_sgd how = sgd_of(1e-30, 0, 0);
  for (int u = 0; u < 2; u++) {
    char options[96];
    (void)snprintf(options, sizeof options, "method=eva clip=none damping=1e-35 update=%s",
                   update[u]);
    begin_ok(&one, options, 5, NG_F32, NG_F32);
    for (int i = 0; i < OUT; i++)
      one.g[i] *= 1e-16f;
    assert_int_equal(play(&one, u == 1 ? &how : NULL, NULL), NG_OK);
    assert_true(all_finite(&one));
    close_model(&one);
  }
}

/* D a of a row is, though D and PD are not. */
static void a_row_sum_beyond_f32(void **state) {
  (void)state;
  begin_ok(&one, "method=eva-f clip=none damping=100", 5, NG_F32, NG_F32);
  for (int64_t i = 0; i < count_of(&one, 0); i++)
    put(one.grad[0], NG_F32, i, one.a[i % 5] > 0 ? 1.9e38f : -1.9e38f);
  for (int i = 0; i < OUT; i++)
    put(one.grad[1], NG_F32, i, 1.9e38f);
  assert_int_equal(play(&one, NULL, NULL), NG_OK);
  assert_true(all_finite(&one));
  close_model(&one);
}

/* ---- at random -------------------------------------------------------------------------------*/

static double any_size(rng *r) {
  static const double size[] = {0, 1e-42, 1e-20, 1e-3, 1, 100, 6e4, 1e10, 1e19, 1e30, 1e38};
  return size[rng_below(r, 11)];
}

static void attacked(void **state) {
  (void)state;
  static const char *const method[] = {"eva", "natgrad", "eva-f",
                                       "natgrad solver=eigen damping_split=joint"};
  static const char *const update[] = {"gradient", "sgd", "adamw"};
  static const ng_dtype dtype[] = {NG_F32, NG_F16, NG_BF16};
  int64_t went = 0, stayed = 0;
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_times(600); t++) {
    char options[160];
    const int64_t u = rng_below(&r, 3);
    (void)snprintf(options, sizeof options, "method=%s clip=%s damping=%g update=%s",
                   method[rng_below(&r, 4)], rng_below(&r, 2) ? "none" : "rescale",
                   pow(10, (double)rng_between(&r, -12, 2)), update[u]);
    begin_ok(&one, options, rng_between(&r, 1, 6), dtype[rng_below(&r, 3)],
             dtype[rng_below(&r, 3)]);
    for (int step = 0; step < 4; step++) {
      ng_sgd sgd = sgd_of(any_size(&r), rng_below(&r, 2) ? 0.9 : any_size(&r), 0);
      ng_adamw adamw = adamw_of(any_size(&r), rng_below(&r, 2) ? 1e-8 : any_size(&r));
      sgd.weight_decay = adamw.weight_decay = rng_below(&r, 2) ? 1e-3 : any_size(&r);
      sgd.decoupled = rng_below(&r, 2) != 0;
      sgd.nesterov = sgd.momentum > 0 && rng_below(&r, 3) == 0;
      if (!sgd.nesterov && rng_below(&r, 2))
        sgd.dampening = any_size(&r) * (rng_below(&r, 2) ? 1 : -1);
      if (rng_below(&r, 2)) fill(&one, any_size(&r), any_size(&r));
      for (int k = 0; k < SLOTS; k++) { /* what the fill made Inf */
        for (int64_t i = 0; i < count_of(&one, k); i++) {
          if (rng_below(&r, 9) == 0)
            put(one.weight[k], one.weights, i, one.weights == NG_F16 ? 65504.0f : 3.38e38f);
          if (!isfinite((double)get(one.grad[k], one.grads, i))) put(one.grad[k], one.grads, i, 1);
          if (!isfinite((double)get(one.weight[k], one.weights, i)))
            put(one.weight[k], one.weights, i, 1);
        }
      }
      const ng_status st = play(&one, u == 1 ? &sgd : NULL, u == 2 ? &adamw : NULL);
      went += st == NG_OK;
      stayed += st == NG_SKIPPED || st == NG_RESCUED;
      const bool same = st != NG_SKIPPED || unchanged(&one);
      if (st < NG_OK || !all_finite(&one) || !same) {
        fail_msg("trial %d, step %d (%s): %s (%s), %s", (int)t, step, options, ng_status_name(st),
                 ng_last_error(one.f.ctx), all_finite(&one) ? "finite" : "not finite");
      }
    }
    close_model(&one);
  }
  if (went < 100 || stayed < 100) fail_msg("%d steps went, %d stayed", (int)went, (int)stayed);
}

/* ---- averages --------------------------------------------------------------------------------*/

/* Of each statistic of the layer, as it is kept. */
static void averages(model *m, unsigned char *to, size_t size) {
  const ng_block *b = m->f.p->block[0];
  size_t at = 0;
  for (int32_t i = 0; i < b->stats; i++) {
    const ng_stat *s = &b->stat[i];
    const size_t bytes = (size_t)(ng_stat_part_count(s, s->part) * ng_dtype_size(s->kept));
    assert_true(s->parts == 1 && at + bytes <= size);
    memcpy(to + at, s->part->average, bytes);
    assert_true(ng_all_finite(s->part->average, s->kept, ng_stat_part_count(s, s->part)));
    at += bytes;
  }
}

/* Inputs and output gradients of such sizes after two ordinary steps: either average may be what stays; then
 * ordinary ones again. */
static void one_too_large(const char *options, float a, float g, bool taken) {
  static unsigned char before[4096], after[4096];
  float keep_a[8], keep_g[OUT];
  begin_ok(&one, options, 5, NG_F32, NG_F32);
  memcpy(keep_a, one.a, sizeof keep_a);
  memcpy(keep_g, one.g, sizeof keep_g);
  for (int i = 0; i < 2; i++)
    assert_int_equal(play(&one, NULL, NULL), NG_OK);
  memset(before, 0, sizeof before);
  memset(after, 0, sizeof after);
  averages(&one, before, sizeof before);
  one.a[0] *= 1.5f; /* so that what is folded moves */
  one.g[0] *= 1.5f;
  one.a[2] *= a;
  one.g[1] *= g;
  const ng_status st = play(&one, NULL, NULL);
  if (st != (taken ? NG_OK : NG_SKIPPED)) fail_msg("%s: %s", options, ng_status_name(st));
  averages(&one, after, sizeof after);
  if (!taken && memcmp(before, after, sizeof before) == 0)
    fail_msg("%s: nothing was folded", options);
  if (!taken && strncmp(options, "method=natgrad", 14) == 0) { /* A was refused, or A was folded */
    const size_t A = (size_t)ng_sym_count(6) * (strstr(options, "16") != NULL ? 2 : 4);
    assert_int_equal(memcmp(before, after, A) == 0, a > 1);
  }
  memcpy(one.a, keep_a, sizeof keep_a);
  memcpy(one.g, keep_g, sizeof keep_g);
  for (int i = 0; i < 2; i++) {
    fill(&one, 1, 1);
    assert_int_equal(play(&one, NULL, NULL), NG_OK);
    assert_true(all_finite(&one));
  }
  averages(&one, after, sizeof after);
  close_model(&one);
}

static void averages_stay_in_range(void **state) {
  (void)state;
  static const char *const start[] = {"first", "identity", "zero"};
  char options[160];
  for (int i = 0; i < 3; i++) {
    (void)snprintf(options, sizeof options,
                   "method=natgrad factor_dtype=f16 stat_decay=0 stat_start=%s", start[i]);
    one_too_large(options, 1300, 1, false); /* 0.25 * 1300 = 325: its square is 105625 */
    one_too_large(options, 1, 1300, false);
    one_too_large(options, 900, 1, true); /* 225 */
    (void)snprintf(options, sizeof options, "method=natgrad factor_dtype=bf16 stat_start=%s",
                   start[i]);
    one_too_large(options, 1300, 1, true);
    one_too_large(options, 1e19f, 1, true);
    one_too_large(options, 1e30f, 1, false);
    (void)snprintf(options, sizeof options, "method=natgrad stat_start=%s", start[i]);
    one_too_large(options, 1e30f, 1, false);
    one_too_large(options, 1, 1e30f, false);
  }
  /* a shift that leaks into the average */
  static unsigned char now[4096];
  begin_ok(&one,
           "method=natgrad factor_dtype=f16 damping=1e5 damping_split=full damping_leak=owner "
           "stat_decay=0.1",
           5, NG_F32, NG_F32);
  assert_int_equal(play(&one, NULL, NULL), NG_OK);
  assert_int_equal(play(&one, NULL, NULL), NG_SKIPPED);
  averages(&one, now, sizeof now);
  close_model(&one);
}

/* A has the number of positions in its corner: 65536 are one too many for f16. */
static void many_positions(void **state) {
  (void)state;
  enum { MANY = 65536 };
  static float a[MANY], g[MANY];
  for (int i = 0; i < MANY; i++)
    a[i] = g[i] = i % 2 ? 0.5f : -0.5f;
  for (int64_t S = MANY / 2; S <= MANY; S += MANY / 2) {
    fixture f;
    float d[2] = {1, 1};
    const plane grad[2] = {plane_of(d, 1, 1, NG_F32), plane_of(d + 1, 1, 1, NG_F32)};
    const plane x = plane_of(a, S, 1, NG_F32), y = plane_of(g, S, 1, NG_F32);
    fixture_ok(&f, fixture_open(&f, "method=natgrad factor_dtype=f16", NULL));
    fixture_ok(&f, fixture_linear(&f, "fc", grad, NULL));
    fixture_ok(&f, ng_ready(f.p));
    fixture_ok(&f, fixture_show(&f, 1, 0, &x, &y));
    assert_int_equal(ng_step(f.p, 0.1), S == MANY ? NG_SKIPPED : NG_OK);
    if (S == MANY)
      assert_non_null(strstr(ng_last_error(f.ctx), "average A would leave the range of f16"));
    fixture_close(&f);
  }
}

/* An inverse of 1e5 is none in f16: the ladder raises the damping until there is one. */
static void inverses_stay_in_range(void **state) {
  (void)state;
  begin_ok(&one, "method=natgrad inverse_dtype=f16 damping=1e-5 damping_split=full clip=none", 5,
           NG_F32, NG_F32);
  assert_int_equal(play(&one, NULL, NULL), NG_RESCUED);
  assert_true(all_finite(&one));
  close_model(&one);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_ratio_of_fifty),       cmocka_unit_test(a_factor_beyond_f32),
      cmocka_unit_test(a_row_sum_beyond_f32),   cmocka_unit_test(attacked),
      cmocka_unit_test(averages_stay_in_range), cmocka_unit_test(many_positions),
      cmocka_unit_test(inverses_stay_in_range),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
