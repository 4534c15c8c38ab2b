/* t_window_out.c: parameters of a window that have no part in some steps, frozen or without a gradient: zeros in the
 * row, no direction, and what is kept for them stays.  Against float64 (window_oracle.h): every store and function, on
 * one rank and in slices on three; ranks that do not agree.
 *
 * Gradients are on a grid of 1/64, so that top-k chooses the same in f32.  Tolerance as in t_window: 200 units
 * of f32 with damping 0.1, 5e-4 for low rank, which has rows in f32 and goes round. */
#include "unit_test.h"
#include "draw.h"
#include "fixture.h"
#include "ranks.h"
#include "window_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 7, OUT = 6, VECTOR = 9, LAST = 5, STEPS = 9, ENTRIES = 3, MOST = 3 };
enum { FC = IN * OUT, D = FC + OUT + VECTOR + LAST * OUT };
static const fixture_entry entries[] = {
    {"fc", OUT, IN, true}, {"scale", 1, VECTOR, false}, {"last", LAST, OUT, false}};
static const int64_t begin[ENTRIES + 1] = {0, FC + OUT, FC + OUT + VECTOR, D};

/* Of each step and entry: f frozen, a absent. */
static const char *const who[STEPS] = {"   ", "  f", " af", "a  ", "   ",
                                       "fff", " f ", "aff", "   "};

typedef struct life {
  const char *options;
  bool odd; /* rank 1 alone freezes an entry */
  float P[MOST][STEPS][D];
  char message[512];
} life;

static float number(int64_t step, int64_t i) {
  rng r = {(uint64_t)(step * D + i + 1) * UINT64_C(0x9e3779b97f4a7c15) + test_seed()};
  return (float)((int64_t)rng_below(&r, 255) - 127) / 64;
}

static double lr_of(int64_t step) { return step % 4 == 3 ? 0.5 : 1; }

static void fill(int64_t step, float *g) {
  for (int64_t i = 0; i < D; i++)
    g[i] = number(step, i);
}

static ng_status describe(fixture *f, float *g, float *w) {
  const ng_status st = fixture_add(f, entries, ENTRIES, g, w);
  return st == NG_OK ? ng_ready(f->p) : st;
}

static void fill_weights(const char *options, float *w) {
  const bool masks = strstr(options, "window_mask=1") != NULL;
  for (int64_t i = 0; i < D; i++)
    w[i] = masks && i % 3 == 0 ? 0 : number(-1, i) + 3;
}

/* All gradients of an entry, or none of them. */
static ng_status bind_entry(fixture *f, int32_t entry, float *g, bool absent) {
  const plane v[ENTRIES] = {plane_of(g, OUT, IN, NG_F32), plane_of(g + begin[1], 1, VECTOR, NG_F32),
                            plane_of(g + begin[2], LAST, OUT, NG_F32)};
  const plane bias = plane_of(g + FC, 1, OUT, NG_F32);
  ng_array a = plane_array(&v[entry]), b = plane_array(&bias);
  if (absent) a.data = b.data = NULL;
  ng_status st = ng_bind_grad(f->p, entry, NG_WEIGHT, &a);
  if (st == NG_OK && entry == 0) st = ng_bind_grad(f->p, entry, NG_BIAS, &b);
  return st;
}

static ng_status arrange(fixture *f, int64_t step, float *g) {
  ng_status st = NG_OK;
  for (int32_t k = 0; k < ENTRIES && st == NG_OK; k++) {
    st = ng_freeze(f->p, k, who[step][k] == 'f');
    if (st == NG_OK) st = bind_entry(f, k, g, who[step][k] == 'a');
  }
  return st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  const fixture_how how = {.transport = t};
  float g[D], w[D];
  fixture f;
  ng_status st = fixture_open(&f, l->options, &how);
  fill_weights(l->options, w);
  if (st == NG_OK) st = describe(&f, g, w);
  for (int64_t step = 0; step < STEPS && st >= NG_OK; step++) {
    fill(step, g);
    st = arrange(&f, step, g);
    if (st >= NG_OK) st = ng_step(f.p, lr_of(step));
    memcpy(l->P[rank][step], g, sizeof g);
  }
  if (st < NG_OK && rank == 0)
    (void)snprintf(l->message, sizeof l->message, "%s",
                   f.ctx == NULL ? f.message : ng_last_error(f.ctx));
  fixture_close(&f);
  return st;
}

/* Every step of rank 0; where an entry is out its gradient stays, bit for bit. */
static void must_be_zeros(const life *l) {
  const ng_options o = fixture_parse(l->options);
  float g[D], w[D];
  double weight[D];
  fixture f;
  fill_weights(l->options, w);
  fixture_ok(&f, fixture_open_options(&f, &o, NULL));
  fixture_ok(&f, describe(&f, g, w));
  window_oracle *k = window_oracle_open(&f, &o, entries, ENTRIES, w);
  fixture_close(&f);
  for (int64_t i = 0; i < D; i++)
    weight[i] = (double)w[i];
  for (int64_t step = 0; step < STEPS; step++) {
    float got[D];
    double grad[D], u[D] = {0};
    bool out[D], some = false;
    fill(step, g);
    memcpy(got, l->P[0][step], sizeof got);
    for (int64_t i = 0; i < D; i++) {
      grad[i] = (double)g[i];
      out[i] = who[step][i < begin[1] ? 0 : i < begin[2] ? 1 : 2] != ' ';
      some = some || !out[i];
    }
    k->out = out;
    if (some) window_oracle_step(k, grad, weight, lr_of(step), step % o.base.stat_period == 0, u);
    for (int64_t i = 0; i < D; i++) {
      if (!out[i]) continue;
      if (got[i] != g[i])
        fail_msg("%s, step %d: gradient %d of what is out has changed", l->options, (int)step,
                 (int)i);
      u[i] = 0;
      got[i] = 0;
    }
    const double gap = window_gap(got, u, D);
    if (!(gap <= (o.base.window_store == NG_STORE_LOWRANK ? 5e-4 : 200 * 0x1p-24)))
      fail_msg("%s, step %d: off by %g", l->options, (int)step, gap);
  }
  window_oracle_close(&k);
}

#define COMMON " damping=0.1 clip=none missing=keep"
static const char *const each[] = {
    "method=mfac window=4" COMMON,
    "method=mfac window=3 window_dtype=bf16" COMMON,
    "method=mfac window=4 window_function=mfac-filled stat_period=2" COMMON,
    "method=mfac window=4 window_scope=parameter window_momentum=0.5" COMMON,
    "method=mfac window=4 window_momentum=0.5 window_momentum_form=heavy-ball" COMMON,
    "method=mfac window=4 window_momentum=0.5 window_momentum_form=gradient" COMMON,
    "method=mfac window=4 window_mask=1 window_decay=0.25 window_decay_form=gradient" COMMON,
    "method=mfac window=4 window_decay=0.25 window_decay_form=direction" COMMON,
    "method=efcp window=4 window_density=0.3" COMMON,
    "method=efcp window=4 window_density=20" COMMON,
    "method=efcp window=4 window_density=0.3 window_mask=1" COMMON,
    "method=efcp window=4 window_density=0.3 window_feedback_lr=1" COMMON,
    "method=efcp window=4 window_density=0.3 window_store=topk-layer window_dtype=bf16" COMMON,
    "method=efcp window=4 window_density=0.3 window_store=topk-block window_fill=added" COMMON,
    "method=efcp window=4 window_density=0.3 window_scope=parameter" COMMON,
    "method=efcp window=7 window_density=0.2 window_fill=error" COMMON,
    "method=efcp window=7 window_density=0.2 window_fill=gradient" COMMON,
    "method=efcp window=7 window_density=0.2 window_fill=rest stat_period=2" COMMON,
    "method=ggt window=4 window_forget=0.75" COMMON,
    "method=ggt window=4 window_momentum=0.5 window_momentum_form=gradient" COMMON,
    "method=sparse-ggt window=4 window_density=0.4" COMMON,
    "method=lowrank-mfac window=4 window_rank=2" COMMON,
    "method=lowrank-mfac window=4 window_rank=1 window_scope=parameter window_feedback_lr=1" COMMON,
    "method=topk-sgd window_density=0.3 window_momentum=0.5" COMMON,
    "method=topk-adam window_density=0.3" COMMON,
    "method=topk-adagrad window_density=0.3" COMMON,
};
enum { CASES = sizeof each / sizeof each[0] };

static life *live_all(const char *options, int32_t ranks) {
  life *l = calloc(1, sizeof *l);
  assert_non_null(l);
  l->options = options;
  if (ranks_run(ranks, live, l, NULL) < NG_OK)
    fail_msg("%s, %d ranks: %s", options, (int)ranks, l->message);
  return l;
}

/* On one rank, and in slices on three. */
static void zeros_in_every_store(void **state) {
  for (int k = 0; k < 2 * CASES; k++) {
    const int32_t ranks = k < CASES ? 1 : MOST;
    char options[256];
    (void)snprintf(options, sizeof options, "%s%s", each[k % CASES],
                   ranks > 1 ? " statistics=sharded" : "");
    life *l = live_all(options, ranks);
    must_be_zeros(l);
    for (int r = 1; r < ranks; r++)
      assert_memory_equal(l->P[r], l->P[0], sizeof l->P[0]);
    free(l);
  }
}

/* Low rank keeps more digits than f32 in second arrays: those of what is out stay, too. */
static void low_bits_stay(void **state) {
  static const struct {
    const char *field;
    int64_t n; /* of the first weight: error feedback; two columns of P and of Q */
  } kept[] = {{"error", FC}, {"error_rest", FC}, {"factors_rest", 2 * (OUT + IN)}};
  float g[D], w[D], was[3][FC];
  fixture f;
  fill_weights("", w);
  fixture_ok(&f, fixture_open(&f, "method=lowrank-mfac window=4 window_rank=2" COMMON, NULL));
  fixture_ok(&f, describe(&f, g, w));
  for (int64_t step = 0; step < STEPS; step++) {
    for (int k = 0; k < 3; k++)
      memcpy(was[k], window_field(&f, kept[k].field), (size_t)kept[k].n * sizeof(float));
    fill(step, g);
    fixture_ok(&f, arrange(&f, step, g));
    fixture_ok(&f, ng_step(f.p, lr_of(step)));
    for (int k = 0; k < 3; k++) {
      const bool same =
          memcmp(was[k], window_field(&f, kept[k].field), (size_t)kept[k].n * sizeof(float)) == 0;
      if (same != (who[step][0] != ' '))
        fail_msg("step %d: %s has %s", (int)step, kept[k].field, same ? "stayed" : "changed");
    }
  }
  fixture_close(&f);
}

/* ---- ranks that do not agree -----------------------------------------------------------------*/

/* Rank 1 alone freezes an entry before step 1: refused on both, nothing has moved, and the step is taken once it is
 * thawed. */
static ng_status disagree(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  const fixture_how how = {.transport = t};
  float g[D], w[D] = {0};
  fixture f;
  ng_status st = fixture_open(&f, l->options, &how);
  if (st == NG_OK) st = describe(&f, g, w);
  for (int64_t step = 0; step < 4 && st >= NG_OK; step++) {
    fill(step, g);
    if (l->odd && step == 1) {
      st = ng_freeze(f.p, 1, rank == 1);
      if (st == NG_OK && ng_step(f.p, 1) != NG_ERR_STATE) st = NG_ERR_COMM;
      if (st == NG_OK) st = ng_freeze(f.p, 1, 0);
    }
    if (st >= NG_OK) st = ng_step(f.p, 1);
    memcpy(l->P[rank][step], g, sizeof g);
  }
  fixture_close(&f);
  return st;
}

static void ranks_agree(void **state) {
  static const char *const lines[] = {
      "method=mfac window=3 damping=0.1",
      "method=efcp window=3 damping=0.1 window_density=0.3 statistics=sharded",
      "method=lowrank-mfac window=3 damping=0.1 statistics=sharded"};
  for (int k = 0; k < 3; k++) {
    life *a = calloc(2, sizeof *a), *b = a + 1;
    assert_non_null(a);
    a->options = b->options = lines[k];
    a->odd = true;
    assert_int_equal(ranks_run(2, disagree, a, NULL), NG_OK);
    assert_int_equal(ranks_run(2, disagree, b, NULL), NG_OK);
    assert_memory_equal(a->P, b->P, sizeof a->P);
    free(a);
  }
}

/* ---- what is out may be bound to nothing -----------------------------------------------------*/

/* A clip by the norms of weights and a decay read those of what takes part; a step without missing = keep is refused
 * by name, with what helps. */
static void neither_gradient_nor_weight(void **state) {
  static const char *const lines[] = {
      "method=mfac window=3 damping=0.1 clip=ratio clip_bound=0.1 missing=keep",
      "method=mfac window=3 damping=0.1 clip=none window_decay=0.1 window_decay_form=direction "
      "missing=keep",
      "method=mfac window=3 damping=0.1 clip=none window_decay=0.1 window_decay_form=gradient "
      "missing=keep"};
  for (int k = 0; k < 3; k++) {
    float g[D], w[D];
    fixture f;
    for (int64_t i = 0; i < D; i++)
      w[i] = 1;
    fixture_ok(&f, fixture_open(&f, lines[k], NULL));
    fixture_ok(&f, describe(&f, g, w));
    const plane none = plane_of(g + begin[1], 1, VECTOR, NG_F32);
    ng_array a = plane_array(&none);
    a.data = NULL;
    fixture_ok(&f, ng_bind_weight(f.p, 1, NG_WEIGHT, &a));
    for (int step = 0; step < 3; step++) {
      fill(step, g);
      fixture_ok(&f, bind_entry(&f, 1, g, true));
      fixture_ok(&f, ng_step(f.p, 1));
      assert_int_equal(fixture_layer_report(&f, 1).kept, step + 1);
      assert_true(g[begin[1]] == number(step, begin[1]) && g[0] != number(step, 0));
    }
    fixture_close(&f);
  }
  float g[D], w[D] = {0};
  fixture f;
  fixture_ok(&f, fixture_open(&f, "method=mfac window=3 damping=0.1", NULL));
  fixture_ok(&f, describe(&f, g, w));
  fill(0, g);
  fixture_ok(&f, bind_entry(&f, 1, g, true));
  fixture_fails(&f, ng_step(f.p, 1), NG_ERR_STATE,
                "'scale': the gradient of its weight is not bound; missing = keep");
  fixture_ok(&f, ng_freeze(f.p, 1, 1));
  fixture_ok(&f, ng_step(f.p, 1));
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(zeros_in_every_store),
      cmocka_unit_test(low_bits_stay),
      cmocka_unit_test(ranks_agree),
      cmocka_unit_test(neither_gradient_nor_weight),
  };
  return cmocka_run_group_tests_name("parameters without a part in a step", tests, NULL, NULL);
}
