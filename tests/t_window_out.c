/* t_window_out.c: entries that are excluded from some steps, frozen or without a gradient: their elements of the
 * row are 0, they get no direction, and their memory stays.  Every store and function against float64
 * (window_oracle.h), on one rank and in slices on three; ranks that disagree.
 *
 * Gradients are multiples of 1/64, so top-k selects the same in f32.  Tolerance as in t_window: 200 units of f32
 * with damping 0.1; 5e-4 for low rank, which has f32 rows and a warm start. */
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

/* For each step and entry: f frozen, a absent gradient. */
static const char *const excluded[STEPS] = {"   ", "  f", " af", "a  ", "   ",
                                            "fff", " f ", "aff", "   "};

typedef struct test_run {
  const char *options;
  bool complete; /* no entry is excluded */
  /* rank 1 alone freezes an entry before step 1, so all ranks must refuse the step */
  bool odd;
  float P[MOST][STEPS][D];
  char message[512];
} test_run;

static double get_lr(int64_t step) { return step % 4 == 3 ? 0.5 : 1; }

static void fill_gradients(int64_t step, float *g) {
  for (int64_t i = 0; i < D; i++)
    g[i] = draw_at(step, i);
}

static ng_status add_entries(fixture *f, float *g, float *w) {
  const ng_status st = fixture_add_entries(f, entries, ENTRIES, g, w);
  return st == NG_OK ? ng_ready(f->p) : st;
}

static void fill_weights(const char *options, float *w) {
  const bool masks = strstr(options, "window_mask=1") != NULL;
  for (int64_t i = 0; i < D; i++)
    w[i] = masks && i % 3 == 0 ? 0 : draw_at(-1, i) + 3;
}

/* Bind all gradients of an entry, or none. */
static ng_status bind_entry(fixture *f, int32_t entry, float *g, bool absent) {
  const plane v[ENTRIES] = {plane_of(g, OUT, IN, NG_F32), plane_of(g + begin[1], 1, VECTOR, NG_F32),
                            plane_of(g + begin[2], LAST, OUT, NG_F32)};
  const plane bias = plane_of(g + FC, 1, OUT, NG_F32);
  ng_array a = array_of_plane(&v[entry]), b = array_of_plane(&bias);
  if (absent) a.data = b.data = NULL;
  ng_status st = ng_bind_grad(f->p, entry, NG_WEIGHT, &a);
  if (st == NG_OK && entry == 0) st = ng_bind_grad(f->p, entry, NG_BIAS, &b);
  return st;
}

static ng_status exclude_entries(fixture *f, int64_t step, float *g) {
  ng_status st = NG_OK;
  for (int32_t k = 0; k < ENTRIES && st == NG_OK; k++) {
    st = ng_freeze(f->p, k, excluded[step][k] == 'f');
    if (st == NG_OK) st = bind_entry(f, k, g, excluded[step][k] == 'a');
  }
  return st;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  test_run *l = arg;
  const fixture_how how = {.transport = t};
  float g[D], w[D];
  fixture f;
  ng_status st = fixture_open(&f, l->options, &how);
  fill_weights(l->options, w);
  if (st == NG_OK) st = add_entries(&f, g, w);
  for (int64_t step = 0; step < STEPS && st >= NG_OK; step++) {
    fill_gradients(step, g);
    if (!l->complete) st = exclude_entries(&f, step, g);
    if (st >= NG_OK && l->odd && step == 1) {
      st = ng_freeze(f.p, 1, rank == 1);
      if (st == NG_OK && ng_step(f.p, 1) != NG_ERR_STATE) st = NG_ERR_COMM;
      if (st == NG_OK) st = ng_freeze(f.p, 1, 0);
    }
    if (st >= NG_OK) st = ng_step(f.p, get_lr(step));
    memcpy(l->P[rank][step], g, sizeof g);
  }
  if (st < NG_OK && rank == 0)
    (void)snprintf(l->message, sizeof l->message, "%s", fixture_message(&f));
  fixture_close(&f);
  return st;
}

/* Compare every step of rank 0 with the oracle.  The gradients of excluded entries stay, bit for bit. */
static void compare_with_oracle(const test_run *l) {
  const ng_options o = fixture_parse_options(l->options);
  float g[D], w[D];
  double weight[D];
  fixture f;
  fill_weights(l->options, w);
  fixture_ok(&f, fixture_open_options(&f, &o, NULL));
  fixture_ok(&f, add_entries(&f, g, w));
  window_oracle *k = window_oracle_open(&f, &o, entries, ENTRIES, w);
  fixture_close(&f);
  for (int64_t i = 0; i < D; i++)
    weight[i] = (double)w[i];
  for (int64_t step = 0; step < STEPS; step++) {
    float got[D];
    double grad[D], u[D] = {0};
    bool out[D], some = false;
    fill_gradients(step, g);
    memcpy(got, l->P[0][step], sizeof got);
    for (int64_t i = 0; i < D; i++) {
      grad[i] = (double)g[i];
      out[i] = excluded[step][i < begin[1] ? 0 : i < begin[2] ? 1 : 2] != ' ';
      some = some || !out[i];
    }
    k->skip = out;
    if (some) window_oracle_step(k, grad, weight, get_lr(step), step % o.base.stat_period == 0, u);
    for (int64_t i = 0; i < D; i++) {
      if (!out[i]) continue;
      if (got[i] != g[i])
        fail_msg("%s, step %d: gradient %d of an excluded entry has changed", l->options, (int)step,
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
static const char *const all_options[] = {
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
enum { CASES = sizeof all_options / sizeof all_options[0] };

static test_run *run_ranks(const char *options, int32_t ranks) {
  test_run *l = calloc(1, sizeof *l);
  assert_non_null(l);
  l->options = options;
  if (ranks_run(ranks, run_rank, l, NULL) < NG_OK)
    fail_msg("%s, %d ranks: %s", options, (int)ranks, l->message);
  return l;
}

/* On one rank, and in slices on three ranks. */
static void excluded_entries_are_zeros_in_every_store(void **state) {
  for (int k = 0; k < 2 * CASES; k++) {
    const int32_t ranks = k < CASES ? 1 : MOST;
    char options[256];
    (void)snprintf(options, sizeof options, "%s%s", all_options[k % CASES],
                   ranks > 1 ? " statistics=sharded" : "");
    test_run *l = run_ranks(options, ranks);
    compare_with_oracle(l);
    for (int r = 1; r < ranks; r++)
      assert_memory_equal(l->P[r], l->P[0], sizeof l->P[0]);
    free(l);
  }
}

/* Low rank stores the low bits of numbers in second arrays.  These arrays keep excluded entries, too. */
static void low_bits_of_excluded_entries_stay(void **state) {
  static const struct {
    const char *field;
    int64_t n; /* numbers of the first weight: error feedback; two columns of P and of Q */
  } kept[] = {{"error", FC}, {"error_rest", FC}, {"factors_rest", 2 * (OUT + IN)}};
  float g[D], w[D], was[3][FC];
  fixture f;
  fill_weights("", w);
  fixture_ok(&f, fixture_open(&f, "method=lowrank-mfac window=4 window_rank=2" COMMON, NULL));
  fixture_ok(&f, add_entries(&f, g, w));
  for (int64_t step = 0; step < STEPS; step++) {
    for (int k = 0; k < 3; k++)
      memcpy(was[k], window_field(&f, kept[k].field), (size_t)kept[k].n * sizeof(float));
    fill_gradients(step, g);
    fixture_ok(&f, exclude_entries(&f, step, g));
    fixture_ok(&f, ng_step(f.p, get_lr(step)));
    for (int k = 0; k < 3; k++) {
      const bool same =
          memcmp(was[k], window_field(&f, kept[k].field), (size_t)kept[k].n * sizeof(float)) == 0;
      if (same != (excluded[step][0] != ' '))
        fail_msg("step %d: %s has %s", (int)step, kept[k].field, same ? "stayed" : "changed");
    }
  }
  fixture_close(&f);
}

/* ---- ranks that freeze different entries -----------------------------------------------------*/

/* The refused step changes nothing, and succeeds when the ranks agree again. */
static void ranks_must_freeze_the_same_entries(void **state) {
  static const char *const lines[] = {
      "method=mfac window=3 damping=0.1",
      "method=efcp window=3 damping=0.1 window_density=0.3 statistics=sharded",
      "method=lowrank-mfac window=3 damping=0.1 statistics=sharded"};
  for (int k = 0; k < 3; k++) {
    test_run *a = calloc(2, sizeof *a), *b = a + 1;
    assert_non_null(a);
    a->options = b->options = lines[k];
    a->complete = b->complete = a->odd = true;
    assert_int_equal(ranks_run(2, run_rank, a, NULL), NG_OK);
    assert_int_equal(ranks_run(2, run_rank, b, NULL), NG_OK);
    assert_memory_equal(a->P, b->P, sizeof a->P);
    free(a);
  }
}

/* ---- excluded entries may be unbound ---------------------------------------------------------*/

/* Clips by the norm of weights and decays read the weights of the other entries only.  Without missing = keep the
 * step is refused by name, and the message names this option. */
static void excluded_entries_need_no_gradient_or_weight(void **state) {
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
    fixture_ok(&f, add_entries(&f, g, w));
    const plane none = plane_of(g + begin[1], 1, VECTOR, NG_F32);
    ng_array a = array_of_plane(&none);
    a.data = NULL;
    fixture_ok(&f, ng_bind_weight(f.p, 1, NG_WEIGHT, &a));
    for (int step = 0; step < 3; step++) {
      fill_gradients(step, g);
      fixture_ok(&f, bind_entry(&f, 1, g, true));
      fixture_ok(&f, ng_step(f.p, 1));
      assert_int_equal(fixture_layer_report(&f, 1).kept, step + 1);
      assert_true(g[begin[1]] == draw_at(step, begin[1]) && g[0] != draw_at(step, 0));
    }
    fixture_close(&f);
  }
  float g[D], w[D] = {0};
  fixture f;
  fixture_ok(&f, fixture_open(&f, "method=mfac window=3 damping=0.1", NULL));
  fixture_ok(&f, add_entries(&f, g, w));
  fill_gradients(0, g);
  fixture_ok(&f, bind_entry(&f, 1, g, true));
  fixture_fails(&f, ng_step(f.p, 1), NG_ERR_STATE,
                "'scale': the gradient of its weight is not bound; missing = keep");
  fixture_ok(&f, ng_freeze(f.p, 1, 1));
  fixture_ok(&f, ng_step(f.p, 1));
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(excluded_entries_are_zeros_in_every_store),
      cmocka_unit_test(low_bits_of_excluded_entries_stay),
      cmocka_unit_test(ranks_must_freeze_the_same_entries),
      cmocka_unit_test(excluded_entries_need_no_gradient_or_weight),
  };
  return cmocka_run_group_tests_name("parameters without a part in a step", tests, NULL, NULL);
}
