/* t_left_out.c: layers excluded from a step, frozen or without a gradient: on several ranks that share the work, in the
 * middle of a micro-batch, with ng_batch.last, with a period that ends meanwhile, from the first step on, over a saved
 * state.
 *
 * clip = none, so layers do not know of each other: the oracle of the excluded layer is a run without those steps, of
 * the others a run in which no layer is excluded; both bit for bit. */
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
  NOBODY,         /* is left out */
  WITHOUT_STEPS,  /* the steps [from, to) do not take place */
  FROZEN,         /* FC2, before the micro-batch */
  FROZEN_BETWEEN, /* after its input was shown, before its output gradient */
  FROZEN_LATE,    /* after all was shown */
  ALL_FROZEN,     /* FC1, too: then nothing that was shown is due, though it may be on its way */
  ABSENT,         /* it has no gradient */
  WAYS
} way;

typedef struct life {
  const char *set;
  way what;
  int from, to, steps;
  int32_t last,
      save_at; /* before step save_at: saved, and gone on with from new objects; 0: never */
  int32_t wanted[RANKS]; /* of FC2, after the last step */
  const char *file;
  float weight[RANKS][LAYERS][MOST], grad[RANKS][STEPS][LAYERS][MOST];
  ng_status status[RANKS];
  char why[RANKS][512];
} life;

static float number(int64_t what, int64_t i) {
  rng r = {test_seed() + (uint64_t)(what * 1009 + i)};
  return (float)rng_value(&r);
}

static ng_status bind(ng_precond *p, int32_t k, float *grad, float *weight) {
  const ng_array g = ng_array_matrix(grad, rows[k], cols[k], NG_F32);
  const ng_array w = ng_array_matrix(weight, rows[k], cols[k], NG_F32);
  const ng_binding b = {k, NG_WEIGHT, &g, &w, NG_HOLD};
  return ng_bind(p, &b, 1);
}

static ng_status open_life(fixture *f, const life *l, const ng_transport *t) {
  ng_status st = fixture_open(f, l->set, &(fixture_how){.threads = 1, .transport = t});
  if (st == NG_OK) st = ng_add_linear(f->p, "fc1", IN, MID, 0, NULL);
  if (st == NG_OK) st = ng_add_linear(f->p, "fc2", MID, OUT, 0, NULL);
  return st == NG_OK ? ng_ready(f->p) : st;
}

static ng_status observe(fixture *f, int32_t rank, int t, int32_t k, bool grad) {
  float x[B * MID];
  const int64_t n = grad ? rows[k] : cols[k];
  for (int64_t i = 0; i < B * n; i++) {
    x[i] = number(10000 * (rank + 1) + 100 * t + 10 * grad + k, i);
  }
  const ng_array a = ng_array_matrix(x, B, n, NG_F32);
  return grad ? ng_observe_output_grad(f->p, k, &a, NG_COPY)
              : ng_observe_input(f->p, k, &a, NG_COPY);
}

static ng_status one_step(life *l, fixture *f, int32_t rank, int t) {
  const bool out = t >= l->from && t < l->to;
  ng_batch batch;
  ng_batch_init(&batch, sizeof batch);
  batch.samples = B;
  batch.last = l->last;
  ng_status st = NG_OK;
  for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
    float *g = l->grad[rank][t][k];
    for (int64_t i = 0; i < MOST; i++) {
      g[i] = number(500 + 10 * t + k, i);
    }
    st = bind(f->p, k, out && k == FC2 && l->what == ABSENT ? NULL : g, l->weight[rank][k]);
  }
  for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
    st = ng_freeze(f->p, k, 0);
  }
  if (st == NG_OK && out && l->what == FROZEN) st = ng_freeze(f->p, FC2, 1);
  if (st == NG_OK) st = ng_begin(f->p, &batch);
  for (int32_t k = 0; k < LAYERS && st == NG_OK; k++) {
    st = observe(f, rank, t, k, false);
  }
  if (st == NG_OK && out && l->what == FROZEN_BETWEEN) st = ng_freeze(f->p, FC2, 1);
  for (int32_t k = LAYERS - 1; k >= 0 && st == NG_OK; k--) {
    st = observe(f, rank, t, k, true);
  }
  const bool late = out && (l->what == FROZEN_LATE || l->what == ALL_FROZEN);
  if (st == NG_OK && late) st = ng_freeze(f->p, FC2, 1);
  if (st == NG_OK && late && l->what == ALL_FROZEN) st = ng_freeze(f->p, FC1, 1);
  const ng_sgd s = fixture_sgd(0.1, 0.9);
  return st == NG_OK ? fixture_step(f, &s) : st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  fixture f;
  ng_status st = open_life(&f, l, t);
  for (int32_t k = 0; k < LAYERS; k++) {
    for (int64_t i = 0; i < MOST; i++) {
      l->weight[rank][k][i] = number(900 + k, i);
    }
  }
  for (int step = 0; step < l->steps && st == NG_OK; step++) {
    if (l->what == WITHOUT_STEPS && step >= l->from && step < l->to) continue;
    if (l->save_at > 0 && step == l->save_at) {
      st = ng_save(f.p, l->file);
      fixture_close(&f);
      if (st == NG_OK) st = open_life(&f, l, t);
      if (st == NG_OK) st = ng_load(f.p, l->file);
    }
    if (st == NG_OK) st = one_step(l, &f, rank, step);
  }
  l->status[rank] = st;
  l->wanted[rank] = st == NG_OK ? ng_wants(f.p, FC2) : -1;
  (void)snprintf(l->why[rank], sizeof l->why[0], "%s",
                 f.ctx == NULL ? f.message : ng_last_error(f.ctx));
  fixture_close(&f);
  return NG_OK;
}

static life *lived_as(life how, int32_t ranks) {
  life *l = malloc(sizeof *l);
  assert_non_null(l);
  *l = how;
  l->file = in_folder("state");
  assert_int_equal(ranks_run(ranks, live, l, NULL), NG_OK);
  for (int32_t r = 0; r < ranks; r++) {
    if (l->status[r] != NG_OK)
      fail_msg("%s, way %d, rank %d: %s", l->set, (int)l->what, r, l->why[r]);
  }
  return l;
}

static life *lived(const char *set, int32_t ranks, way what, int32_t last, int32_t save_at) {
  return lived_as((life){.set = set,
                         .what = what,
                         .from = FROM,
                         .to = TO,
                         .steps = STEPS,
                         .last = last,
                         .save_at = save_at},
                  ranks);
}

static void compare(const life *l, const life *nobody, const life *without, int32_t ranks) {
  for (int32_t r = 0; r < ranks; r++) {
    const bool fc1 = memcmp(l->weight[r][FC1], nobody->weight[r][FC1], sizeof l->weight[r][FC1]) ||
                     memcmp(l->weight[r][FC1], l->weight[0][FC1], sizeof l->weight[r][FC1]);
    const bool fc2 = memcmp(l->weight[r][FC2], without->weight[r][FC2], sizeof l->weight[r][FC2]);
    if (!fc1 && !fc2) continue;
    fail_msg("%s, %d ranks, way %d, last %d, saved %d: rank %d: %s is another", l->set, ranks,
             (int)l->what, l->last, l->save_at, r, fc1 ? "fc1" : "fc2");
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

static void left_out_layers_keep_their_state(void **state) {
  for (int k = 0; k < SETS; k++) {
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
      if (ranks % 2 == 1 && strstr(sets[k], "fraction=0.5") != NULL) continue;
      char set[200];
      (void)snprintf(set, sizeof set, "%s clip=none update=sgd missing=keep", sets[k]);
      life *nobody = lived(set, ranks, NOBODY, 0, 0);
      life *without = lived(set, ranks, WITHOUT_STEPS, 0, 0);
      assert_memory_not_equal(nobody->weight[0][FC2], without->weight[0][FC2], 8 * sizeof(float));
      for (way w = FROZEN; w < WAYS; w++) {
        for (int last = 0; last < 2; last++) {
          life *l = lived(set, ranks, w, last, 0);
          compare(l, w == ALL_FROZEN ? without : nobody, without, ranks);
          for (int t = FROM; t < TO; t++) { /* its gradient was not touched */
            for (int64_t i = 0; i < rows[FC2] * cols[FC2]; i++) {
              assert_true(l->grad[0][t][FC2][i] == number(500 + 10 * t + FC2, i));
            }
          }
          free(l);
        }
      }
      free(nobody);
      free(without);
    }
  }
}

/* A state that is saved while it sleeps holds its averages, results and moments as before; that it sleeps
 * is not in the state: the program says it again. */
static void saved_while_left_out(void **state) {
  for (int k = 0; k < SETS; k += 2) {
    for (int32_t ranks = 1; ranks <= RANKS; ranks += 2) {
      char set[200];
      (void)snprintf(set, sizeof set, "%s clip=none update=sgd missing=keep", sets[k]);
      life *nobody = lived(set, ranks, NOBODY, 0, 0);
      life *without = lived(set, ranks, WITHOUT_STEPS, 0, 0);
      for (int32_t at = FROM; at <= TO; at++) {
        life *frozen = lived(set, ranks, FROZEN, 0, at), *absent = lived(set, ranks, ABSENT, 1, at);
        compare(frozen, nobody, without, ranks);
        compare(absent, nobody, without, ranks);
        free(frozen);
        free(absent);
      }
      free(nobody);
      free(without);
    }
  }
}

/* A layer excluded from the first step comes back when no statistic is due by its period: what is observed then is its
 * first average. */
static void what_is_shown_first_is_folded(void **state) {
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
    life how = {.set = set, .what = WITHOUT_STEPS, .from = 0, .to = 1, .steps = 2};
    life *first = lived_as(how, ranks);
    for (int w = 0; w < 4; w++) {
      how.what = ways[w / 2];
      how.last = w % 2;
      life *l = lived_as(how, ranks);
      for (int32_t r = 0; r < ranks; r++) {
        if (memcmp(l->weight[r][FC2], first->weight[r][FC2], sizeof l->weight[r][FC2]) != 0)
          fail_msg("%s, %d ranks, way %d, last %d: rank %d: fc2 is not as in its first step", set,
                   ranks, (int)how.what, how.last, r);
        assert_int_equal(l->wanted[r], 0);
      }
      free(l);
    }
    free(first);
  }
}

/* ---- on one rank -----------------------------------------------------------------------------*/

static void open_ok(model *m, const char *set) { fixture_ok(&m->f, open_model(m, set, NULL)); }

static ng_status play(model *m, int t) {
  draw_gradients(m, t);
  fixture_ok(&m->f, observe_layers(m, t, 3));
  return ng_step(m->f.p, 0.1);
}

/* Solves that fall due while it sleeps are not made: it wakes with the inverses of before, though the
 * damping has moved. */
static void nothing_is_solved_meanwhile(void **state) {
  model m, d;
  open_ok(&m, "damping=0.1 clip=none stat_period=100 solve_period=3");
  open_ok(&d, "damping=0.1 clip=none stat_period=100 solve_period=100");
  for (int t = 0; t < 6; t++) {
    model *of[2] = {&m, &d};
    for (int i = 0; i < 2; i++) {
      fixture_ok(&of[i]->f, ng_freeze(of[i]->f.p, FC2, t == 3));
      if (t == 3) fixture_ok(&of[i]->f, ng_set(of[i]->f.p, "damping", "5"));
      fixture_ok(&of[i]->f, play(of[i], t));
    }
    assert_memory_equal(m.grad[FC2], d.grad[FC2], sizeof m.grad[FC2]);
    if (t >= 3) assert_memory_not_equal(m.grad[FC1], d.grad[FC1], sizeof m.grad[FC1]);
  }
  fixture_close(&m.f);
  fixture_close(&d.f);
}

/* clip = ratio reads weights: not those of a layer that sleeps, of which there may be none, nor what was
 * found of them before. */
static void weights_of_frozen_layers_are_not_read(void **state) {
  model m;
  open_ok(&m, "damping=0.1 clip=ratio clip_bound=0.1");
  fixture_ok(&m.f, play(&m, 0));
  m.weight[FC2][0] = NAN;
  assert_int_equal(play(&m, 1), NG_SKIPPED);
  fixture_ok(&m.f, ng_freeze(m.f.p, FC2, 1));
  fixture_ok(&m.f, play(&m, 1));
  const ng_array none = ng_array_vector(NULL, 1, NG_F32);
  fixture_ok(&m.f, ng_bind_weight(m.f.p, FC2, NG_WEIGHT, &none));
  fixture_ok(&m.f, play(&m, 2));
  fixture_close(&m.f);
}

/* What was shown of a layer without a gradient is not folded, so it has never been observed. */
static void shown_but_not_folded(void **state) {
  model m;
  open_ok(&m, "damping=0.1 missing=keep");
  const ng_array none = ng_array_vector(NULL, 1, NG_F32);
  fixture_ok(&m.f, ng_bind_grad(m.f.p, FC2, NG_WEIGHT, &none));
  fixture_ok(&m.f, play(&m, 0));
  fixture_ok(&m.f, bind_one(&m, FC2, m.grad[FC2], NULL, NG_HOLD));
  fixture_ok(&m.f, observe_layers(&m, 1, 1));
  assert_int_equal(ng_step(m.f.p, 0.1), NG_ERR_STATE);
  assert_non_null(strstr(ng_last_error(m.f.ctx), "'fc2' was never observed"));
  fixture_ok(&m.f, play(&m, 1));
  fixture_close(&m.f);
}

/* A block over many parameters has one memory: no part of it can wait, unless its family sees to that (windows do,
 * t_window_out). */
static void not_out_of_a_common_block(void **state) {
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
  assert_int_equal(ng_step(f.p, 0.1), NG_ERR_STATE);
  assert_non_null(strstr(ng_last_error(f.ctx), "'all.two' has no gradient, and shares a block"));
  assert_int_equal(ng_freeze(f.p, 1, 1), NG_ERR_STATE);
  assert_non_null(strstr(ng_last_error(f.ctx), "shares a block with other layers"));
  fixture_close(&f);
}

/* The report counts who was kept for want of a gradient: not who sleeps, nor a tensor that a step without
 * an update has no use for; the smallest factor is of those that took part. */
static void what_the_report_counts(void **state) {
  static const char *const clips[] = {"clip=ratio clip_bound=0.1", "clip=rms clip_bound=0.01"};
  const ng_array none = ng_array_vector(NULL, 1, NG_F32);
  for (int k = 0; k < 2; k++) {
    char set[200];
    model m, d;
    ng_report r, q;
    ng_layer_report l;
    r = (ng_report){.struct_size = sizeof r};
    q = (ng_report){.struct_size = sizeof q};
    l = (ng_layer_report){.struct_size = sizeof l};
    (void)snprintf(set, sizeof set, "damping=0.1 missing=keep %s", clips[k]);
    open_ok(&m, set);
    (void)snprintf(set, sizeof set, "damping=0.1 skip_layers=fc2 %s", clips[k]);
    open_ok(&d, set);
    for (int64_t i = 0; i < MOST; i++) {
      m.weight[FC2][i] *= 1e-3f; /* the smallest factor of all, while it takes part */
    }
    fixture_ok(&m.f, play(&m, 0));
    fixture_ok(&d.f, play(&d, 0));
    for (int t = 1; t < 3; t++) {
      if (t == 1) fixture_ok(&m.f, ng_freeze(m.f.p, FC2, 1));
      if (t == 2) fixture_ok(&m.f, ng_freeze(m.f.p, FC2, 0));
      if (t == 2) fixture_ok(&m.f, ng_bind_grad(m.f.p, FC2, NG_WEIGHT, &none));
      fixture_ok(&m.f, play(&m, t));
      fixture_ok(&d.f, play(&d, t));
      fixture_ok(&m.f, ng_report_read(m.f.p, &r));
      fixture_ok(&d.f, ng_report_read(d.f.p, &q));
      fixture_ok(&m.f, ng_report_layer(m.f.p, FC2, &l));
      assert_true(r.clip == q.clip);
      assert_int_equal(r.kept, t == 2);
      assert_int_equal(l.kept, t == 2);
    }
    fixture_close(&m.f);
    fixture_close(&d.f);
  }
  fixture f;
  ng_report r;
  float g[2] = {1, 2};
  r = (ng_report){.struct_size = sizeof r};
  fixture_ok(&f, fixture_open(&f, "missing=keep", NULL));
  fixture_ok(&f, ng_add_tensor(f.p, "gamma", 2, NULL));
  fixture_ok(&f, ng_ready(f.p));
  const ng_array once = ng_array_vector(g, 2, NG_F32);
  const ng_binding b = {0, NG_WEIGHT, &once, NULL, NG_ONE_STEP};
  fixture_ok(&f, ng_bind(f.p, &b, 1));
  for (int t = 0; t < 2; t++) { /* bound and forgotten: nobody asks for it */
    fixture_ok(&f, ng_step(f.p, 0.1));
    fixture_ok(&f, ng_report_read(f.p, &r));
    assert_int_equal(r.kept, 0);
  }
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(left_out_layers_keep_their_state),
      cmocka_unit_test(saved_while_left_out),
      cmocka_unit_test(what_is_shown_first_is_folded),
      cmocka_unit_test(nothing_is_solved_meanwhile),
      cmocka_unit_test(weights_of_frozen_layers_are_not_read),
      cmocka_unit_test(shown_but_not_folded),
      cmocka_unit_test(not_out_of_a_common_block),
      cmocka_unit_test(what_the_report_counts),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
