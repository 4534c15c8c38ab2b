/* t_quantify_updates.c: quantify = 1 where nothing is preconditioned: u is what lr multiplies in SGD and AdamW.
 * Oracle: their formulas and a plain sort, in double; its r may be anything, so quartiles are tried on hard ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "fixture.h"
#include "quartiles.h"
#include "ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 70, COLS = 50, BIAS = 33, LONG = 20001, D = ROWS * COLS + BIAS + LONG, STEPS = 4 };
enum { MOST = 3, PARTS = 3 };
static const int64_t rows[PARTS] = {ROWS, 1, 1}, cols[PARTS] = {COLS, BIAS, LONG};
static const int64_t at[PARTS] = {0, ROWS *COLS, ROWS *COLS + BIAS};

/* ---- the formulas ----------------------------------------------------------------------------*/

typedef struct life {
  const char *options, *name;
  double mu, decay, b1, b2, eps, lr;
  bool nesterov, decoupled;
  int32_t threads, skips;  /* a parameter without a gradient in that step; -1: none */
  float g[STEPS][D], w[D]; /* what was given; the weights before the last step, of rank 0 */
  float before[D];
  ng_report report[MOST];
  char message[512];
} life;

static bool is_adamw(const life *l) { return strstr(l->options, "update=adamw") != NULL; }

static ng_status describe(fixture *f, float *g, float *w) {
  static const char *const name[PARTS] = {"matrix", "bias", "long"};
  ng_status st = NG_OK;
  for (int k = 0; k < PARTS && st == NG_OK; k++) {
    const plane vg = plane_of(g + at[k], rows[k], cols[k], NG_F32);
    const plane vw = plane_of(w + at[k], rows[k], cols[k], NG_F32);
    st = fixture_tensor(f, name[k], &vg, &vw);
  }
  return st == NG_OK ? ng_ready(f->p) : st;
}

static ng_status take_step(fixture *f, const life *l) {
  if (is_adamw(l)) {
    ng_adamw how;
    ng_adamw_init(&how, sizeof how);
    how.lr = l->lr;
    how.beta1 = l->b1;
    how.beta2 = l->b2;
    how.eps = l->eps;
    how.weight_decay = l->decay;
    return ng_step_adamw(f->p, &how, 1);
  }
  ng_sgd how;
  ng_sgd_init(&how, sizeof how);
  how.lr = l->lr;
  how.momentum = l->mu;
  how.weight_decay = l->decay;
  how.nesterov = l->nesterov;
  how.decoupled = l->decoupled;
  return ng_step_sgd(f->p, &how, 1);
}

static ng_status rank_life(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  const fixture_how how = {.threads = l->threads, .transport = t};
  float *g = calloc(2 * D, sizeof *g), *w = g + D;
  fixture f;
  ng_status st = g == NULL ? NG_ERR_NOMEM : fixture_open(&f, l->options, &how);
  memcpy(w, l->w, D * sizeof *w);
  if (st == NG_OK) st = describe(&f, g, w);
  for (int step = 0; step < STEPS && st == NG_OK; step++) {
    const plane own = plane_of(g, ROWS, COLS, NG_F32);
    ng_array grad = plane_array(&own);
    memcpy(g, l->g[step], D * sizeof *g);
    if (step == l->skips) grad.data = NULL;
    if (l->skips >= 0) st = ng_bind_grad(f.p, 0, NG_WEIGHT, &grad);
    if (rank == 0) memcpy(l->before, w, sizeof l->before);
    if (st == NG_OK) st = take_step(&f, l);
  }
  l->report[rank] = (ng_report){.struct_size = sizeof l->report[rank]};
  if (st == NG_OK) st = ng_report_read(f.p, &l->report[rank]);
  if (st != NG_OK && rank == 0) (void)snprintf(l->message, sizeof l->message, "%s", f.message);
  if (g != NULL) fixture_close(&f);
  free(g);
  return st;
}

/* u of element i in the last step.  Weights are those that were there: decay is read of them. */
static double direction_of(const life *l, int64_t i) {
  double m = 0.0, v = 0.0, u = 0.0;
  int64_t updates = 0;
  for (int step = 0; step < STEPS; step++) {
    if (i < at[1] && step == l->skips) continue;
    double g = (double)l->g[step][i];
    updates++;
    if (is_adamw(l)) {
      m = l->b1 * m + (1.0 - l->b1) * g;
      v = l->b2 * v + (1.0 - l->b2) * g * g;
      u = m / (1.0 - pow(l->b1, (double)updates)) /
          (sqrt(v / (1.0 - pow(l->b2, (double)updates))) + l->eps);
      continue;
    }
    if (!l->decoupled) g += l->decay * (double)l->before[i]; /* lr = 0: they do not move */
    m = updates == 1 || l->mu == 0.0 ? g : l->mu * m + g;
    u = l->nesterov ? g + l->mu * m : m;
  }
  return u;
}

static const life lives[] = {
    {.name = "sgd", .options = "update=sgd quantify=1 clip=none", .skips = -1},
    {.name = "momentum", .options = "update=sgd quantify=1 clip=none", .mu = 0.9, .skips = -1},
    {.name = "nesterov",
     .options = "update=sgd quantify=1 clip=none",
     .mu = 0.9,
     .nesterov = true,
     .skips = -1},
    {.name = "decay",
     .options = "update=sgd quantify=1 clip=none",
     .decay = 0.5,
     .mu = 0.5,
     .skips = -1},
    {.name = "decoupled",
     .options = "update=sgd quantify=1 clip=none",
     .decay = 0.5,
     .decoupled = true,
     .lr = 0.1,
     .skips = -1},
    {.name = "adamw",
     .options = "update=adamw quantify=1 clip=none",
     .b1 = 0.9,
     .b2 = 0.999,
     .eps = 1e-8,
     .lr = 1e-3,
     .decay = 0.1,
     .skips = -1},
    {.name = "adamw, lr 0",
     .options = "update=adamw quantify=1 clip=none",
     .b1 = 0.9,
     .b2 = 0.99,
     .eps = 1e-3,
     .skips = -1},
    {.name = "missed",
     .options = "update=adamw quantify=1 clip=none missing=keep",
     .b1 = 0.9,
     .b2 = 0.99,
     .eps = 1e-8,
     .lr = 1e-3,
     .skips = 1},
    {.name = "missed, sgd",
     .options = "update=sgd quantify=1 clip=none missing=keep",
     .mu = 0.9,
     .skips = 0},
    {.name = "owner",
     .options = "update=sgd quantify=1 clip=none update_ranks=owner",
     .mu = 0.9,
     .skips = -1},
};
enum { LIVES = sizeof lives / sizeof lives[0] };

static life *live(int which, int32_t ranks, int32_t threads) {
  life *l = malloc(sizeof *l);
  assert_non_null(l);
  *l = lives[which];
  l->threads = threads;
  for (int64_t i = 0; i < D; i++) {
    l->w[i] = sinf((float)(i + 1));
    for (int step = 0; step < STEPS; step++)
      l->g[step][i] = uneven(step * D + i, i);
  }
  if (ranks_run(ranks, rank_life, l, NULL) != NG_OK) fail_msg("%s: %s", l->name, l->message);
  return l;
}

/* Moments are f32, and four of them may nearly cancel: 1e-4 of r where u is 1e-3 of its terms, and a rest of
 * 1e-9 of the terms over 1e-8 where g is 0. */
static void updates_are_measured(void **state) {
  (void)state;
  static double x[D];
  for (int k = 0; k < LIVES; k++) {
    for (int32_t ranks = 1; ranks <= MOST; ranks += 2) {
      life *l = live(k, ranks, 1);
      double sum[3] = {0};
      for (int64_t i = 0; i < D; i++) {
        const double u = direction_of(l, i), g = (double)l->g[STEPS - 1][i];
        x[i] = fabs(u / (g + 1e-8));
        sum[0] += u * g;
        sum[1] += g * g;
        sum[2] += u * u;
      }
      const ng_report *r = &l->report[0];
      near(l->name, "d2", r->d2, sum[1], 1e-12 * sum[1]);
      near(l->name, "pd2", r->pd2, sum[2], 1e-6 * sum[2]);
      near(l->name, "inner", r->inner, sum[0], 1e-6 * sqrt(sum[1] * sum[2]));
      quartiles_and_largest(l->name, r, x, D, 1e-6, 1e-5);
      if (l->mu == 0.0 && l->decay == 0.0 && !is_adamw(l)) assert_true(r->inner == r->d2);
      for (int32_t q = 1; q < ranks; q++)
        assert_memory_equal(&l->report[q].scaled, &r->scaled, 7 * sizeof(double));
      life *threads = live(k, 1, 3);
      const ng_report *t = &threads->report[0];
      if (ranks == 1) {
        assert_memory_equal(&t->scaled, &r->scaled, 7 * sizeof(double));
        assert_true(t->inner == r->inner && t->d2 == r->d2 && t->pd2 == r->pd2);
      }
      free(threads);
      free(l);
    }
  }
}

/* ---- hard distributions ----------------------------------------------------------------------*/

/* SGD with decay 1 and lr 0: u = g + w, so with g = 0 r is |w| / 1e-8, whatever w is. */
static void measure(float *w, int64_t n, ng_report *r) {
  float *g = calloc((size_t)n, sizeof *g);
  assert_non_null(g);
  fixture f;
  ng_sgd how;
  const plane vg = plane_of(g, 1, n, NG_F32), vw = plane_of(w, 1, n, NG_F32);
  fixture_ok(&f, fixture_open(&f, "update=sgd quantify=1 clip=none", NULL));
  fixture_ok(&f, fixture_tensor(&f, "w", &vg, &vw));
  fixture_ok(&f, ng_ready(f.p));
  ng_sgd_init(&how, sizeof how);
  how.lr = 0.0;
  how.weight_decay = 1.0;
  fixture_ok(&f, ng_step_sgd(f.p, &how, 1));
  *r = (ng_report){.struct_size = sizeof *r};
  fixture_ok(&f, ng_report_read(f.p, r));
  fixture_close(&f);
  free(g);
}

typedef enum shape { EQUAL, ZEROS, HALF_ZEROS, TIES, HEAVY, SMALL, CLOSE, TWO_ENDS, SHAPES } shape;

static float drawn(shape s, int64_t i, int64_t n, rng *r) {
  const float u = (float)rng_value(r), sign = u < 0.0f ? -1.0f : 1.0f;
  switch (s) {
  case EQUAL:
    return 0.3f;
  case ZEROS:
    return 0.0f;
  case HALF_ZEROS:
    return i % 2 == 0 ? 0.0f : u;
  case TIES:
    return sign * (float)(1 + (int64_t)(fabsf(u) * 3.0f));
  case HEAVY:
    return sign * powf(10.0f, 38.0f * fabsf(fmodf(u * 7.0f, 1.0f)) - 0.5f);
  case SMALL:
    return sign * powf(10.0f, -44.0f + 10.0f * fabsf(fmodf(u * 7.0f, 1.0f)));
  case CLOSE:
    return 1.0f + (float)i * 0x1p-23f; /* all in few bins of the first pass */
  default:
    return i < n / 4 + 1 ? 1e-30f : 3e38f;
  }
}

static void hard_ones_are_sorted(void **state) {
  (void)state;
  static const char *const name[SHAPES] = {"equal",       "zeros", "half zeros", "ties",
                                           "heavy tails", "small", "close",      "two ends"};
  static const int64_t count[] = {1, 2, 3, 4, 5, 6, 7, 9, 1000, 40001};
  rng draw = {test_seed()};
  for (shape s = 0; s < SHAPES; s++) {
    for (size_t k = 0; k < sizeof count / sizeof count[0]; k++) {
      const int64_t n = count[k];
      float *w = malloc((size_t)n * sizeof *w);
      double *x = malloc((size_t)n * sizeof *x);
      char what[64];
      ng_report r;
      assert_true(w != NULL && x != NULL);
      for (int64_t i = 0; i < n; i++) {
        w[i] = drawn(s, i, n, &draw);
        x[i] = fabs((double)w[i] / 1e-8);
      }
      measure(w, n, &r);
      (void)snprintf(what, sizeof what, "%s, %lld", name[s], (long long)n);
      quartiles_must_be(what, &r, x, n, 0x1p-50, 0.0);
      if (s == EQUAL || s == ZEROS) assert_true(r.scaling_25 == x[0] && r.scaling_75 == x[0]);
      if (s == HALF_ZEROS && n > 5) assert_true(r.scaling_25 == 0.0);
      free(w);
      free(x);
    }
  }
}

/* Where something is preconditioned, what is not is not counted; without being asked, nothing is. */
static void only_without_blocks(void **state) {
  (void)state;
  for (int k = 0; k < 2; k++) {
    fixture f;
    float g[3] = {1, 2, 3}, w[3] = {0};
    ng_report r;
    const plane vg = plane_of(g, 1, 3, NG_F32), vw = plane_of(w, 1, 3, NG_F32);
    fixture_ok(&f,
               fixture_open(&f, k == 0 ? "update=sgd clip=none" : "update=sgd clip=none quantify=1",
                            NULL));
    fixture_ok(&f, fixture_tensor(&f, "w", &vg, &vw));
    fixture_ok(&f, ng_ready(f.p));
    const ng_sgd how = fixture_sgd(1.0, 0.0);
    fixture_ok(&f, fixture_step(&f, &how));
    r = (ng_report){.struct_size = sizeof r};
    fixture_ok(&f, ng_report_read(f.p, &r));
    assert_true(r.scaled == 3 * k && r.d2 == 14.0 * k && r.pd2 == 14.0 * k && r.inner == 14.0 * k);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(updates_are_measured),
      cmocka_unit_test(hard_ones_are_sorted),
      cmocka_unit_test(only_without_blocks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
