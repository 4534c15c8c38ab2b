/* t_left_out.c: layers that are excluded from some steps, because they are frozen or have no gradient: on several
 * ranks, in the middle of a micro-batch, with ng_batch.last, while a period ends, from the first step on, across a
 * saved state.
 *
 * clip = none, so layers do not affect each other.  The excluded layer equals a run without those steps, the other
 * layers equal a run without exclusion, both bit for bit. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bound.h"
#include "draw.h"
#include "folder.h"
#include "ranks.h"
#include "toys.h"

enum { LAYERS = 2, MOST = MID * IN, STEPS = 6, FROM = 2, TO = 4, RANKS = 4 };

static const int64_t rows[LAYERS] = {MID, OUT}, cols[LAYERS] = {IN, MID};

typedef enum way {
  NO_LAYER,       /* no layer is excluded */
  WITHOUT_STEPS,  /* the steps [from, to) do not take place */
  FROZEN,         /* FC2, before the micro-batch */
  FROZEN_BETWEEN, /* freeze FC2 after its input and before its output gradient */
  FROZEN_LATE,    /* FC2, after all observations */
  /* freeze FC1, too: no observed statistic is due, but its message may already be posted */
  ALL_FROZEN,
  ABSENT, /* FC2 has no gradient */
  WAYS
} way;

typedef struct test_run {
  const char *set;
  way what;
  int from, to, steps;
  int32_t last, save_at; /* save before this step, then load into new objects; 0: never */
  int32_t wanted[RANKS]; /* ng_wants of FC2 after the last step */
  const char *file;
  float weight[RANKS][LAYERS][MOST], grad[RANKS][STEPS][LAYERS][MOST];
  ng_status status[RANKS];
  char why[RANKS][512];
} test_run;

static ng_status bind_layer(ng_precond *p, int32_t k, float *grad, float *weight) {
  const ng_array g = ng_array_matrix(grad, rows[k], cols[k], NG_F32);
  const ng_array w = ng_array_matrix(weight, rows[k], cols[k], NG_F32);
  const ng_binding b = {k, NG_WEIGHT, &g, &w, NG_HOLD};
  return ng_bind(p, &b, 1);
}

static ng_status open_run(fixture *f, const test_run *l, const ng_transport *t) {
  ng_status st = fixture_open(f, l->set, &(fixture_how){.threads = 1, .transport = t});
  if (st == NG_OK) st = ng_add_linear(f->p, "fc1", IN, MID, 0, NULL);
  if (st == NG_OK) st = ng_add_linear(f->p, "fc2", MID, OUT, 0, NULL);
  return st == NG_OK ? ng_ready(f->p) : st;
}

static ng_status observe_layer(fixture *f, int32_t rank, int t, int32_t k, bool grad) {
  float x[B * MID];
  const int64_t n = grad ? rows[k] : cols[k];
  for (int64_t i = 0; i < B * n; i++) {
    x[i] = draw_at(10000 * (rank + 1) + 100 * t + 10 * grad + k, i);
  }
  const ng_array a = ng_array_matrix(x, B, n, NG_F32);
  return grad ? ng_observe_output_grad(f->p, k, &a, NG_COPY)
              : ng_observe_input(f->p, k, &a, NG_COPY);
}

static ng_status run_step(test_run *l, fixture *f, int32_t rank, int t) {
  const bool out = t >= l->from && t < l->to;
  ng_status st = NG_OK;
  for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
    float *g = l->grad[rank][t][k];
    for (int64_t i = 0; i < MOST; i++) {
      g[i] = draw_at(500 + 10 * t + k, i);
    }
    st = bind_layer(f->p, k, out && k == FC2 && l->what == ABSENT ? NULL : g, l->weight[rank][k]);
  }
  for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
    st = ng_freeze(f->p, k, 0);
  }
  if (st == NG_OK && out && l->what == FROZEN) st = ng_freeze(f->p, FC2, 1);
  if (st == NG_OK) st = fixture_begin_last(f, B, l->last);
  for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
    st = observe_layer(f, rank, t, k, false);
  }
  if (st == NG_OK && out && l->what == FROZEN_BETWEEN) st = ng_freeze(f->p, FC2, 1);
  for (int32_t k = LAYERS - 1; k >= 0 && st == NG_OK; k--) {
    st = observe_layer(f, rank, t, k, true);
  }
  const bool late = out && (l->what == FROZEN_LATE || l->what == ALL_FROZEN);
  if (st == NG_OK && late) st = ng_freeze(f->p, FC2, 1);
  if (st == NG_OK && late && l->what == ALL_FROZEN) st = ng_freeze(f->p, FC1, 1);
  const ng_sgd s = fixture_sgd(0.1, 0.9);
  return st == NG_OK ? fixture_step(f, &s) : st;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  test_run *l = arg;
  fixture f;
  ng_status st = open_run(&f, l, t);
  for (int32_t k = 0; k < LAYERS; k++) {
    for (int64_t i = 0; i < MOST; i++) {
      l->weight[rank][k][i] = draw_at(900 + k, i);
    }
  }
  for (int step = 0; step < l->steps && st == NG_OK; step++) {
    if (l->what == WITHOUT_STEPS && step >= l->from && step < l->to) continue;
    if (l->save_at > 0 && step == l->save_at) {
      st = ng_save(f.p, l->file);
      fixture_close(&f);
      if (st == NG_OK) st = open_run(&f, l, t);
      if (st == NG_OK) st = ng_load(f.p, l->file);
    }
    if (st == NG_OK) st = run_step(l, &f, rank, step);
  }
  l->status[rank] = st;
  l->wanted[rank] = st == NG_OK ? ng_wants(f.p, FC2) : -1;
  (void)snprintf(l->why[rank], sizeof l->why[0], "%s", fixture_message(&f));
  fixture_close(&f);
  return NG_OK;
}

static test_run *run_or_fail(test_run how, int32_t ranks) {
  test_run *l = malloc(sizeof *l);
  assert_non_null(l);
  *l = how;
  l->file = in_folder("state");
  assert_int_equal(ranks_run(ranks, run_rank, l, NULL), NG_OK);
  for (int32_t r = 0; r < ranks; r++) {
    if (l->status[r] != NG_OK)
      fail_msg("%s, way %d, rank %d: %s", l->set, (int)l->what, r, l->why[r]);
  }
  return l;
}

static test_run *run_ranks(const char *set, int32_t ranks, way what, int32_t last,
                           int32_t save_at) {
  return run_or_fail((test_run){.set = set,
                                .what = what,
                                .from = FROM,
                                .to = TO,
                                .steps = STEPS,
                                .last = last,
                                .save_at = save_at},
                     ranks);
}

static void compare_weights(const test_run *l, const test_run *all_layers,
                            const test_run *without_steps, int32_t ranks) {
  for (int32_t r = 0; r < ranks; r++) {
    const bool fc1 =
        memcmp(l->weight[r][FC1], all_layers->weight[r][FC1], sizeof l->weight[r][FC1]) ||
        memcmp(l->weight[r][FC1], l->weight[0][FC1], sizeof l->weight[r][FC1]);
    const bool fc2 =
        memcmp(l->weight[r][FC2], without_steps->weight[r][FC2], sizeof l->weight[r][FC2]);
    if (!fc1 && !fc2) continue;
    fail_msg("%s, %d ranks, way %d, last %d, saved %d: rank %d has other weights of %s", l->set,
             ranks, (int)l->what, l->last, l->save_at, r, fc1 ? "fc1" : "fc2");
  }
}

static const char *const sets[] = {
    "damping=0.1",
    "damping=0.1 solver=eigen damping_split=joint grad_worker_fraction=0.5",
    "damping=0.1 grad_worker_fraction=0",
    "damping=0.1 statistics=local grad_worker_fraction=0",
    "method=kaisa damping=0.1 grad_worker_fraction=0",
    "method=eva damping=0.1",
    "method=eva-natgrad damping=0.1 sides=input",
    "method=eva-natgrad damping=0.1 calls=ema",
};
enum { SETS = sizeof sets / sizeof sets[0] };

/* A state that is saved while a layer is frozen holds the layer's averages, inverses and moments.  It does not
 * hold that the layer is frozen: the program freezes it again. */
static void left_out_layers_keep_their_state(void **state) {
  for (int k = 0; k < SETS; k++) {
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
      if (ranks % 2 == 1 && strstr(sets[k], "fraction=0.5") != NULL) continue;
      char set[200];
      (void)snprintf(set, sizeof set, "%s clip=none update=sgd missing=keep", sets[k]);
      test_run *all_layers = run_ranks(set, ranks, NO_LAYER, 0, 0);
      test_run *without_steps = run_ranks(set, ranks, WITHOUT_STEPS, 0, 0);
      assert_memory_not_equal(all_layers->weight[0][FC2], without_steps->weight[0][FC2],
                              8 * sizeof(float));
      for (way w = FROZEN; w < WAYS; w++) {
        for (int last = 0; last < 2; last++) {
          test_run *l = run_ranks(set, ranks, w, last, 0);
          compare_weights(l, w == ALL_FROZEN ? without_steps : all_layers, without_steps, ranks);
          for (int t = FROM; t < TO; t++) { /* the gradient of the frozen layer is unchanged */
            for (int64_t i = 0; i < rows[FC2] * cols[FC2]; i++) {
              assert_true(l->grad[0][t][FC2][i] == draw_at(500 + 10 * t + FC2, i));
            }
          }
          free(l);
        }
      }
      for (int32_t at = FROM; at <= TO && k % 2 == 0 && ranks % 2 == 1; at++) {
        test_run *frozen = run_ranks(set, ranks, FROZEN, 0, at),
                 *absent = run_ranks(set, ranks, ABSENT, 1, at);
        compare_weights(frozen, all_layers, without_steps, ranks);
        compare_weights(absent, all_layers, without_steps, ranks);
        free(frozen);
        free(absent);
      }
      free(all_layers);
      free(without_steps);
    }
  }
}

/* A layer that is excluded from the first step returns when its period says that no statistic is due.  Its first
 * observation begins the average all the same. */
static void first_observation_of_a_returning_layer_is_folded(void **state) {
  static const char *const late[] = {
      "solve_period=6",
      "solve_period=6 solver=eigen damping_split=joint grad_worker_fraction=0.5",
      "solve_period=6 statistics=owner grad_worker_fraction=0",
      "solve_period=6 statistics=local grad_worker_fraction=0",
      "method=kaisa solve_period=6",
      "method=eva-natgrad"};
  static const way ways[] = {FROZEN, ABSENT};
  for (int k = 0; k < 6 * RANKS; k++) {
    const int32_t ranks = 1 + k % RANKS;
    char set[200];
    if (ranks % 2 == 1 && strstr(late[k / RANKS], "fraction=0.5") != NULL) continue;
    (void)snprintf(set, sizeof set,
                   "%s damping=0.1 stat_period=3 clip=none update=sgd missing=keep",
                   late[k / RANKS]);
    test_run how = {.set = set, .what = WITHOUT_STEPS, .from = 0, .to = 1, .steps = 2};
    test_run *first = run_or_fail(how, ranks);
    for (int w = 0; w < 4; w++) {
      how.what = ways[w / 2];
      how.last = w % 2;
      test_run *l = run_or_fail(how, ranks);
      for (int32_t r = 0; r < ranks; r++) {
        if (memcmp(l->weight[r][FC2], first->weight[r][FC2], sizeof l->weight[r][FC2]) != 0)
          fail_msg("%s, %d ranks, way %d, last %d: rank %d: fc2 has other weights than after its "
                   "first step",
                   set, ranks, (int)how.what, how.last, r);
        assert_int_equal(l->wanted[r], 0);
      }
      free(l);
    }
    free(first);
  }
}

/* ---- on one rank -----------------------------------------------------------------------------*/

static void must_open(model *m, const char *set) { fixture_ok(&m->f, open_model(m, set, NULL)); }

static ng_status take_step(model *m, int t) {
  draw_gradients(m, t);
  fixture_ok(&m->f, observe_layers(m, t, 3));
  return ng_step(m->f.p, 0.1);
}

/* A frozen layer skips the solves of its period. When the layer is included again, it uses its old inverse, although
 * the damping has changed. */
static void frozen_layers_are_not_solved(void **state) {
  model m, d;
  must_open(&m, "damping=0.1 clip=none stat_period=100 solve_period=3");
  must_open(&d, "damping=0.1 clip=none stat_period=100 solve_period=100");
  for (int t = 0; t < 6; t++) {
    model *of[2] = {&m, &d};
    for (int i = 0; i < 2; i++) {
      fixture_ok(&of[i]->f, ng_freeze(of[i]->f.p, FC2, t == 3));
      if (t == 3) fixture_ok(&of[i]->f, ng_set(of[i]->f.p, "damping", "5"));
      fixture_ok(&of[i]->f, take_step(of[i], t));
    }
    assert_memory_equal(m.grad[FC2], d.grad[FC2], sizeof m.grad[FC2]);
    if (t >= 3) assert_memory_not_equal(m.grad[FC1], d.grad[FC1], sizeof m.grad[FC1]);
  }
  fixture_close(&m.f);
  fixture_close(&d.f);
}

/* clip = ratio reads weights, but no weight of a frozen layer, which may be unbound. */
static void weights_of_frozen_layers_are_not_read(void **state) {
  model m;
  must_open(&m, "damping=0.1 clip=ratio clip_bound=0.1");
  fixture_ok(&m.f, take_step(&m, 0));
  m.weight[FC2][0] = NAN;
  assert_int_equal(take_step(&m, 1), NG_SKIPPED);
  fixture_ok(&m.f, ng_freeze(m.f.p, FC2, 1));
  fixture_ok(&m.f, take_step(&m, 1));
  const ng_array none = ng_array_vector(NULL, 1, NG_F32);
  fixture_ok(&m.f, ng_bind_weight(m.f.p, FC2, NG_WEIGHT, &none));
  fixture_ok(&m.f, take_step(&m, 2));
  fixture_close(&m.f);
}

/* Observations of a layer without a gradient are not folded, so the layer counts as never observed. */
static void layers_without_a_gradient_are_not_folded(void **state) {
  model m;
  must_open(&m, "damping=0.1 missing=keep");
  const ng_array none = ng_array_vector(NULL, 1, NG_F32);
  fixture_ok(&m.f, ng_bind_grad(m.f.p, FC2, NG_WEIGHT, &none));
  fixture_ok(&m.f, take_step(&m, 0));
  fixture_ok(&m.f, bind_entry(&m, FC2, m.grad[FC2], NULL, NG_HOLD));
  fixture_ok(&m.f, observe_layers(&m, 1, 1));
  fixture_fails(&m.f, ng_step(m.f.p, 0.1), NG_ERR_STATE, "'fc2' was never observed");
  fixture_ok(&m.f, take_step(&m, 1));
  fixture_close(&m.f);
}

/* A block of many parameters has one memory, so no parameter can be excluded alone, unless the family supports it
 * (windows do: t_window_out). */
static void parameters_of_a_shared_block_are_not_excluded(void **state) {
  fixture f;
  float g[2][3] = {{1, 2, 3}, {4, 5, 6}};
  fixture_ok(&f, fixture_open(&f, "damping=0.1 missing=keep", NULL));
  ng_family_register(f.ctx, &toy_total);
  fixture_ok(&f, ng_add_tensor(f.p, "all.one", 3, NULL));
  fixture_ok(&f, ng_add_tensor(f.p, "all.two", 3, NULL));
  fixture_ok(&f, ng_ready(f.p));
  const ng_array none = ng_array_vector(NULL, 1, NG_F32);
  for (int32_t k = 0; k < 2; k++) {
    const ng_array a = ng_array_vector(g[k], 3, NG_F32);
    fixture_ok(&f, ng_bind_grad(f.p, k, NG_WEIGHT, &a));
  }
  fixture_ok(&f, ng_step(f.p, 0.1));
  fixture_ok(&f, ng_bind_grad(f.p, 1, NG_WEIGHT, &none));
  fixture_fails(&f, ng_step(f.p, 0.1), NG_ERR_STATE,
                "'all.two' has no gradient, and shares a block");
  fixture_fails(&f, ng_freeze(f.p, 1, 1), NG_ERR_STATE, "shares a block with other layers");
  fixture_close(&f);
}

/* The report counts layers that keep their state because their gradient is missing.  It counts neither frozen
 * layers nor, without a fused update, tensors.  The clip factor is the smallest of the layers that take part. */
static void report_counts_missing_gradients(void **state) {
  static const char *const clips[] = {"clip=ratio clip_bound=0.1", "clip=rms clip_bound=0.01"};
  const ng_array none = ng_array_vector(NULL, 1, NG_F32);
  for (int k = 0; k < 2; k++) {
    char set[200];
    model m, d;
    (void)snprintf(set, sizeof set, "damping=0.1 missing=keep %s", clips[k]);
    must_open(&m, set);
    (void)snprintf(set, sizeof set, "damping=0.1 skip_layers=fc2 %s", clips[k]);
    must_open(&d, set);
    for (int64_t i = 0; i < MOST; i++) {
      m.weight[FC2][i] *= 1e-3f; /* FC2 has the smallest factor, unless excluded */
    }
    fixture_ok(&m.f, take_step(&m, 0));
    fixture_ok(&d.f, take_step(&d, 0));
    for (int t = 1; t < 3; t++) {
      if (t == 1) fixture_ok(&m.f, ng_freeze(m.f.p, FC2, 1));
      if (t == 2) fixture_ok(&m.f, ng_freeze(m.f.p, FC2, 0));
      if (t == 2) fixture_ok(&m.f, ng_bind_grad(m.f.p, FC2, NG_WEIGHT, &none));
      fixture_ok(&m.f, take_step(&m, t));
      fixture_ok(&d.f, take_step(&d, t));
      assert_true(fixture_report(&m.f).clip == fixture_report(&d.f).clip);
      assert_int_equal(fixture_report(&m.f).kept, t == 2);
      assert_int_equal(fixture_layer_report(&m.f, FC2).kept, t == 2);
    }
    fixture_close(&m.f);
    fixture_close(&d.f);
  }
  fixture f;
  float g[2] = {1, 2};
  fixture_ok(&f, fixture_open(&f, "missing=keep", NULL));
  fixture_ok(&f, ng_add_tensor(f.p, "gamma", 2, NULL));
  fixture_ok(&f, ng_ready(f.p));
  const ng_array once = ng_array_vector(g, 2, NG_F32);
  const ng_binding b = {0, NG_WEIGHT, &once, NULL, NG_ONE_STEP};
  fixture_ok(&f, ng_bind(f.p, &b, 1));
  for (int t = 0; t < 2; t++) {
    /* the gradient was bound with NG_ONE_STEP, so in the second step it is not counted as missing */
    fixture_ok(&f, ng_step(f.p, 0.1));
    assert_int_equal(fixture_report(&f).kept, 0);
  }
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(left_out_layers_keep_their_state),
      cmocka_unit_test(first_observation_of_a_returning_layer_is_folded),
      cmocka_unit_test(frozen_layers_are_not_solved),
      cmocka_unit_test(weights_of_frozen_layers_are_not_read),
      cmocka_unit_test(layers_without_a_gradient_are_not_folded),
      cmocka_unit_test(parameters_of_a_shared_block_are_not_excluded),
      cmocka_unit_test(report_counts_missing_gradients),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
