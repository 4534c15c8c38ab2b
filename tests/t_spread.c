/* t_spread.c: who has a statistic and who can make PD of it: owners, local samples, PD that is delivered,
 * messages of several dtypes, and ranks that are of one mind when only one of them knows.
 *
 * Every rank sees the same, so what several ranks give is what one gives.  Tolerance: a sum over ranks
 * and a division are a few roundings of f32; 1e-5 is some 80. */
#include "plane.h"
#include "ranks.h"
#include "step/step.h"
#include "toys.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "draw.h"

enum { FIRST, FC, TOY, R1, ALL, ALL_FC, ENTRIES, STEPS = 4, MOST_RANKS = 4, B = 4, MOST = 130 };

typedef struct entry {
  const char *name;
  int64_t in, out, weights, biases; /* out 0: a tensor */
} entry;

static const entry model[ENTRIES] = {
    [FIRST] = {"first", 0, 0, 3, 0}, [FC] = {"fc", 6, 4, 24, 4},
    [TOY] = {"toy", 0, 0, 130, 0},   [R1] = {"r1", 5, 3, 15, 3},
    [ALL] = {"all", 0, 0, 9, 0},     [ALL_FC] = {"all.fc", 5, 6, 30, 6},
};

typedef struct life life;
struct life {
  const char *set;
  int32_t ranks;
  const ng_family *family[4];
  void (*place)(ng_block *b, ng_stat *s);
  ng_status (*before)(life *l, int32_t rank, ng_precond *p, int32_t step); /* the step */
  int32_t unseen;  /* a step in which no layer is shown; -1: none */
  int32_t huge;    /* a step in which what fc is shown overflows in a sum; -1: none */
  int32_t entries; /* the first so many */
  float out[MOST_RANKS][STEPS][ENTRIES][MOST];
  ng_status status[MOST_RANKS][STEPS];
  int64_t averages[MOST_RANKS];
  char why[MOST_RANKS][256];
};

static void draw(float *x, int64_t n, int32_t step, int32_t at) {
  rng r = {test_seed() ^ (uint64_t)(step * 100 + at)};
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)rng_value(&r);
  }
}

static ng_status show(const life *l, ng_precond *p, int32_t i, int32_t step) {
  const entry *e = &model[i];
  float a[B * 6], g[B * 6];
  draw(a, B * e->in, step, 20 + i);
  draw(g, B * e->out, step, 40 + i);
  for (int64_t k = 0; k < B * e->in && i == FC && step == l->huge; k++) {
    a[k] = 1e30f; /* finite, its square is not */
  }
  const plane in = plane_of(a, B, e->in, NG_F32), out = plane_of(g, B, e->out, NG_F32);
  const ng_status st = plane_input(p, i, &in, NG_COPY);
  return st == NG_OK ? plane_output_grad(p, i, &out, NG_COPY) : st;
}

static ng_status bind(ng_precond *p, int32_t i, float *grad) {
  const entry *e = &model[i];
  const int64_t rows = e->out == 0 ? 1 : e->out;
  const plane w = plane_of(grad, rows, e->weights / rows, NG_F32);
  const plane b = plane_of(grad + e->weights, 1, e->biases, NG_F32);
  const ng_status st = plane_bind_grad(p, i, NG_WEIGHT, &w);
  return st == NG_OK && e->biases > 0 ? plane_bind_grad(p, i, NG_BIAS, &b) : st;
}

static ng_status one_step(life *l, int32_t rank, ng_precond *p, int32_t step) {
  ng_batch batch;
  ng_batch_init(&batch, sizeof batch);
  batch.samples = B;
  ng_status st = ng_begin(p, &batch);
  for (int32_t i = 0; i < l->entries && st == NG_OK; i++) {
    float *mine = l->out[rank][step][i];
    draw(mine, model[i].weights + model[i].biases, step, i);
    st = bind(p, i, mine);
    if (st == NG_OK && model[i].out > 0 && i != ALL_FC && step != l->unseen)
      st = show(l, p, i, step);
  }
  if (st == NG_OK && l->before != NULL) st = l->before(l, rank, p, step);
  return st == NG_OK ? ng_step(p, 0.1) : st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  life *l = arg;
  ng_context_config c;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  char *why = l->why[rank];
  ng_context_config_init(&c, sizeof c);
  c.threads = 1 + rank % 2;
  c.linalg = "ref";
  if (l->ranks > 1) c.transport = t;
  ng_status st = ng_context_create(NG_VERSION, &c, why, 256, &ctx);
  for (int i = 0; i < 4 && st == NG_OK && l->family[i] != NULL; i++) {
    ng_family_register(ctx, l->family[i]);
  }
  if (st == NG_OK) ctx->place = l->place;
  if (st == NG_OK) st = ng_precond_create(ctx, l->set, &p);
  for (int32_t i = 0, index; i < l->entries && st == NG_OK; i++) {
    const entry *e = &model[i];
    st = e->out == 0 ? ng_add_tensor(p, e->name, e->weights, &index)
                     : ng_add_linear(p, e->name, e->in, e->out, 1, &index);
  }
  if (st == NG_OK) st = ng_ready(p);
  for (int32_t step = 0; step < STEPS && st >= NG_OK; step++) {
    st = l->status[rank][step] = one_step(l, rank, p, step);
  }
  if (st < NG_OK && why[0] == 0) (void)snprintf(why, 256, "%s", ng_last_error(ctx));
  if (p != NULL) l->averages[rank] = p->held[NG_USE_FACTORS];
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  return st < NG_OK ? st : NG_OK;
}

/* ---- families of these tests -----------------------------------------------------------------*/

static bool takes_first(const ng_settings *o, const ng_entry *e) {
  (void)o;
  return e->tensor && strcmp(e->d.name, "first") == 0;
}
static ng_status any_layer_create(ng_block *b) { return toy_total.create(b); }

/* `total`, of one tensor that comes before all others: its double lies before their floats. */
static ng_family first_of_all(void) {
  ng_family f = toy_total;
  f.name = "first";
  f.scope = NG_SCOPE_LAYER;
  f.fits = takes_first;
  f.create = any_layer_create;
  return f;
}

/* `diagonal`, of which tiles leave at twice their values. */
static void emit_twice(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink) {
  toy_diagonal.emit_tile(b, t, 2.0 * factor, sink);
}

static ng_family twice(void) {
  ng_family f = toy_diagonal;
  f.emit_tile = emit_twice;
  return f;
}

/* `diagonal`, which cannot look when it is told not to. */
static _Thread_local bool blind;
static ng_status look_or_not(ng_block *b, const ng_obs *o) {
  return blind ? ng_fail(b->ctx, NG_ERR_NOMEM, "'%s' is blind", b->name)
               : toy_diagonal.observe(b, o);
}

static life *new_life(const char *set, int32_t ranks) {
  static ng_family first, beside;
  life *l = calloc(1, sizeof *l);
  assert_non_null(l);
  first = first_of_all();
  beside = toy_beside();
  l->set = set;
  l->ranks = ranks;
  l->unseen = l->huge = -1;
  l->entries = ENTRIES;
  l->family[0] = &first;
  l->family[1] = &beside;
  l->family[2] = &toy_diagonal;
  l->family[3] = &toy_total;
  return l;
}

static life *lived(life *l) {
  if (ranks_run(l->ranks, live, l, NULL) != NG_OK) {
    for (int32_t r = 0; r < l->ranks; r++) {
      print_error("%s, rank %d: %s\n", l->set, r, l->why[r]);
    }
    fail();
  }
  for (int32_t r = 1; r < l->ranks; r++) {
    assert_memory_equal(l->out[0], l->out[r], sizeof l->out[0]);
    assert_memory_equal(l->status[0], l->status[r], sizeof l->status[0]);
  }
  return l;
}

static void close_to(const life *x, const life *y) {
  for (int32_t k = 0; k < STEPS * ENTRIES; k++) {
    const float *a = x->out[0][k / ENTRIES][k % ENTRIES], *b = y->out[0][k / ENTRIES][k % ENTRIES];
    double most = 0;
    for (int i = 0; i < MOST; i++) {
      most = fmax(most, fabs((double)b[i]));
    }
    for (int i = 0; i < MOST; i++) {
      if (!(fabs((double)a[i] - (double)b[i]) <= 1e-5 * most)) {
        fail_msg("%s, %d ranks, step %d, %s[%d]: %g, expected %g", x->set, x->ranks, k / ENTRIES,
                 model[k % ENTRIES].name, i, (double)a[i], (double)b[i]);
      }
    }
  }
}

#define COMMON "damping=0.3 stat_decay=0.9 solve_period=1 clip=none "

/* ---- tests -----------------------------------------------------------------------------------*/

/* A double before floats: two messages, and none of them takes the other's bytes for its own. */
static void test_dtypes(void **state) {
  (void)state;
  life *one = lived(new_life(COMMON, 1));
  for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
    life *l = lived(new_life(COMMON, ranks));
    close_to(l, one);
    free(l);
  }
  free(one);
}

/* The owner's own samples: a rank-one block's PD, two terms of it, goes to ranks that have no means. */
static void test_delivered(void **state) {
  (void)state;
  life *one = new_life(COMMON, 1);
  one->entries = R1 + 1; /* one statistic of all ranks, before those of one */
  (void)lived(one);
  for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
    life *l = new_life(COMMON "grad_worker_fraction=0 statistics=local", ranks);
    l->entries = R1 + 1;
    close_to(lived(l), one);
    free(l);
  }
  free(one);
}

/* PD as values and a factor: what is kept has the factor in it. */
static void test_delivered_values(void **state) {
  (void)state;
  const ng_family f = twice();
  life *l[2];
  for (int k = 0; k < 2; k++) {
    l[k] = new_life(k == 0 ? COMMON "grad_worker_fraction=1" : COMMON "grad_worker_fraction=0", 2);
    l[k]->family[2] = &f;
    (void)lived(l[k]);
  }
  assert_memory_equal(l[0]->out, l[1]->out, sizeof l[0]->out);
  free(l[0]);
  free(l[1]);
}

/* Only the owner keeps an average: the same bits, and each average is held once. */
static void only_owner(ng_block *b, ng_stat *s) {
  (void)b;
  if (s->rule.averaged) s->spread = NG_SPREAD_OWNER;
}

static void test_owner_keeps(void **state) {
  (void)state;
  static const char *const set[] = {COMMON "grad_worker_fraction=0", COMMON
                                    "grad_worker_fraction=0 solver=eigen damping_split=joint"};
  for (int k = 0; k < 2; k++) {
    life *one = lived(new_life(set[k], 1));
    for (int32_t ranks = 2; ranks <= MOST_RANKS; ranks++) {
      life *all = lived(new_life(set[k], ranks)), *l = new_life(set[k], ranks);
      int64_t held = 0;
      l->place = only_owner;
      (void)lived(l);
      close_to(l, all);
      for (int32_t r = 0; r < ranks; r++) {
        held += l->averages[r];
      }
      assert_int_equal(held, one->averages[0]);
      free(all);
      free(l);
    }
    free(one);
  }
}

/* What has no average takes no memory for one. */
static void test_no_average(void **state) {
  (void)state;
  life *l = new_life(COMMON, 1);
  l->entries = 1;
  assert_int_equal(lived(l)->averages[0], 0);
  free(l);
}

/* A sum that overflows on one rank only: all skip that step, and no other. */
static void test_one_overflows(void **state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
    life *l = new_life(COMMON "grad_worker_fraction=0 statistics=local", ranks);
    l->huge = 1;
    l->entries = R1 + 1;
    (void)lived(l);
    for (int32_t step = 0; step < STEPS; step++) {
      assert_int_equal(l->status[0][step], step == 1 ? NG_SKIPPED : NG_OK);
    }
    free(l);
  }
}

/* One rank cannot begin, after others have looked at their gradients: taken again, the step is the one
 * that it would have been. */
static ng_status fail_first(life *l, int32_t rank, ng_precond *p, int32_t step) {
  if (step != 1) return NG_OK;
  return ng_step(p, rank == l->ranks - 1 ? -1.0 : 0.1) == NG_ERR_ARG ? NG_OK : NG_ERR_STATE;
}

static ng_status blind_first(life *l, int32_t rank, ng_precond *p, int32_t step) {
  if (step != 1) return NG_OK;
  blind = rank == l->ranks - 1;
  const ng_status st = ng_step(p, 0.1);
  blind = false;
  return st == NG_ERR_NOMEM ? NG_OK : NG_ERR_STATE;
}

static ng_status unbound_first(life *l, int32_t rank, ng_precond *p, int32_t step) {
  plane none = plane_of(NULL, 1, 1, NG_F32);
  if (step != 1) return NG_OK;
  ng_status st = rank == l->ranks - 1 ? plane_bind_grad(p, TOY, NG_WEIGHT, &none) : NG_OK;
  if (st == NG_OK && ng_step(p, 0.1) != NG_ERR_STATE) st = NG_ERR_COMM;
  return st == NG_OK ? bind(p, TOY, l->out[rank][step][TOY]) : st;
}

static void test_taken_again(void **state) {
  (void)state;
  ng_family f = toy_diagonal;
  f.observe = look_or_not;
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
    life *good = lived(new_life(COMMON, ranks));
    for (int k = 0; k < 3; k++) {
      life *l = new_life(COMMON, ranks);
      l->before = k == 0 ? fail_first : k == 1 ? blind_first : unbound_first;
      l->family[2] = &f;
      assert_memory_equal(lived(l)->out, good->out, sizeof l->out);
      free(l);
    }
    free(good);
  }
}

/* A family that refuses what it sees, though PD of it could be made: the step does not count. */
static ng_status refuses(ng_block *b, const ng_obs *o) {
  (void)o;
  return b->p->steps == 1 && b->ctx->rank == 0 ? NG_SKIPPED : toy_diagonal.observe(b, o);
}

static ng_status stop_there(life *l, int32_t rank, ng_precond *p, int32_t step) {
  (void)l, (void)rank;
  return step > 1 && p->steps != 1 ? NG_ERR_COMM : NG_OK;
}

static void test_look_refused(void **state) {
  (void)state;
  ng_family f = toy_diagonal;
  f.observe = refuses;
  for (int32_t ranks = 1; ranks <= 2; ranks++) {
    life *l = new_life(COMMON, ranks);
    l->family[2] = &f;
    l->before = stop_there;
    (void)lived(l);
    for (int32_t step = 1; step < STEPS; step++) {
      assert_int_equal(l->status[0][step], NG_SKIPPED);
    }
    free(l);
  }
}

/* ---- what ng_ready refuses, and what it leaves -----------------------------------------------*/

static ng_status no_options(const ng_options *o, const ng_settings *s, char *message, size_t size) {
  (void)o, (void)s;
  return ng_fail_to(message, size, NG_ERR_ARG, "not with these");
}

static void refused(const ng_family *f, void (*place)(ng_block *b, ng_stat *s), int32_t ranks,
                    const char *says) {
  life *l = new_life(COMMON "grad_worker_fraction=1", ranks);
  for (int i = 0; i < 4; i++) {
    if (strcmp(l->family[i]->name, f->name) == 0) l->family[i] = f;
  }
  l->place = place;
  assert_int_equal(ranks_run(ranks, live, l, NULL), NG_ERR_ARG);
  if (strstr(l->why[0], says) == NULL) fail_msg("'%s' does not say '%s'", l->why[0], says);
  free(l);
}

static void test_refused(void **state) {
  (void)state;
  ng_family f = toy_diagonal;
  f.check = no_options;
  refused(&f, NULL, 1, "layer 'toy': options: not with these");
  f = toy_total;
  f.check = no_options;
  refused(&f, NULL, 1, "block 'total': options: not with these");
  f = toy_beside();
  refused(&f, only_owner, 2, "has no result of a solve that others could be sent");
}

/* Nothing points at blocks that are gone. */
static void test_left_by_ready(void **state) {
  (void)state;
  ng_family f = toy_diagonal;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  int32_t index;
  f.check = no_options;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx), NG_OK);
  ng_family_register(ctx, &f);
  assert_int_equal(ng_precond_create(ctx, NULL, &p), NG_OK);
  assert_int_equal(ng_add_linear(p, "fc", 6, 4, 1, &index), NG_OK);
  assert_int_equal(ng_add_tensor(p, "toy", 5, &index), NG_OK);
  assert_int_equal(ng_ready(p), NG_ERR_ARG);
  for (int32_t i = 0; i < 2; i++) {
    assert_null(p->entry[i]->block);
    assert_null(p->entry[i]->slot[NG_WEIGHT].block);
  }
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
}

/* ---- rows wider than a tile of the sink ------------------------------------------------------*/

/* What leaves through 16 bits, 512 at a time, is what leaves in one piece. */
enum { WIDE = 1300 };

static ng_status wide(ng_dtype weight, float out[WIDE]) {
  float a[WIDE], g[1] = {1.0f}, grad[WIDE], w[WIDE];
  uint16_t narrow[WIDE];
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  ng_batch batch;
  ng_sgd how;
  int32_t fc;
  draw(a, WIDE, 0, 1);
  draw(grad, WIDE, 0, 2);
  draw(w, WIDE, 0, 3);
  ng_from_f32(narrow, NG_BF16, w, WIDE);
  ng_to_f32(w, narrow, NG_BF16, WIDE);
  ng_status st = ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx);
  if (st == NG_OK) st = ng_precond_create(ctx, "update=sgd clip=none max_factor=100", &p);
  if (st == NG_OK) st = ng_add_linear(p, "fc", WIDE, 1, 0, &fc);
  if (st == NG_OK) st = ng_ready(p);
  const plane vg = plane_of(grad, 1, WIDE, NG_F32), in = plane_of(a, 1, WIDE, NG_F32);
  const plane vw = plane_of(weight == NG_F32 ? (void *)w : (void *)narrow, 1, WIDE, weight);
  const plane go = plane_of(g, 1, 1, NG_F32);
  if (st == NG_OK) st = plane_bind_grad(p, fc, NG_WEIGHT, &vg);
  if (st == NG_OK) st = plane_bind_weight(p, fc, NG_WEIGHT, &vw);
  ng_batch_init(&batch, sizeof batch);
  batch.samples = 1;
  if (st == NG_OK) st = ng_begin(p, &batch);
  if (st == NG_OK) st = plane_input(p, fc, &in, NG_COPY);
  if (st == NG_OK) st = plane_output_grad(p, fc, &go, NG_COPY);
  ng_sgd_init(&how, sizeof how);
  how.lr = 0.01;
  if (st == NG_OK) st = ng_step_sgd(p, &how, 1);
  if (weight != NG_F32) ng_to_f32(w, narrow, weight, WIDE);
  memcpy(out, w, sizeof w);
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
  return st;
}

static void test_wide_rows(void **state) {
  (void)state;
  float whole[WIDE], pieces[WIDE];
  assert_int_equal(wide(NG_F32, whole), NG_OK);
  assert_int_equal(wide(NG_BF16, pieces), NG_OK);
  for (int i = 0; i < WIDE; i++) { /* rounded once */
    assert_true(ng_bf16_to_f32(ng_f32_to_bf16(whole[i])) == pieces[i]);
  }
}

/* clip = rms: each tensor by its own norm, in a block of many as in a block of one, step after step. */
static void test_tensor_factors(void **state) {
  (void)state;
  const double bound = 0.001; /* below every norm */
  life *free_of_clip = lived(new_life(COMMON, 1));
  life *l =
      lived(new_life("damping=0.3 stat_decay=0.9 solve_period=1 clip=rms clip_bound=0.001", 1));
  for (int32_t k = 0; k < STEPS * ENTRIES; k++) {
    const entry *e = &model[k % ENTRIES];
    const float *x = free_of_clip->out[0][k / ENTRIES][k % ENTRIES];
    const float *y = l->out[0][k / ENTRIES][k % ENTRIES];
    for (int part = 0; part < 2; part++) {
      const int64_t from = part == 0 ? 0 : e->weights;
      const int64_t n = part == 0 ? e->weights : e->biases;
      double sum = 0;
      for (int64_t i = from; i < from + n; i++) {
        sum += (double)x[i] * (double)x[i];
      }
      for (int64_t i = from; i < from + n; i++) {
        const double want = (double)x[i] / fmax(1.0, sqrt(sum / (double)n) / bound);
        if (!(fabs((double)y[i] - want) <= 1e-5 * bound)) {
          fail_msg("step %d, %s[%d]: %g, expected %g", k / ENTRIES, e->name, (int)i, (double)y[i],
                   want);
        }
      }
    }
  }
  free(l);
  free(free_of_clip);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_dtypes),           cmocka_unit_test(test_delivered),
      cmocka_unit_test(test_delivered_values), cmocka_unit_test(test_owner_keeps),
      cmocka_unit_test(test_no_average),       cmocka_unit_test(test_one_overflows),
      cmocka_unit_test(test_taken_again),      cmocka_unit_test(test_tensor_factors),
      cmocka_unit_test(test_look_refused),     cmocka_unit_test(test_refused),
      cmocka_unit_test(test_left_by_ready),    cmocka_unit_test(test_wide_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
