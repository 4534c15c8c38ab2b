/* t_groups_ranks.c: wrong numbers of a fused update and of its parameter groups are refused, on one rank or by all
 * ranks if they are one rank's; the clip of groups on several ranks.
 *
 * The model has two layers with biases and a tensor.  Group 0: the first weight; 1: the biases and the tensor; 2: the
 * second weight. */
#include "draw.h"
#include "fixture.h"
#include "ranks.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { B = 6, GROUPS = 3, FC1 = 4 * 5, NUMBERS = 46 };
static const fixture_entry entries[] = {
    {"fc1", 4, 5, true}, {"fc2", 3, 4, true}, {"gamma", 1, 7, false}};

typedef struct model {
  fixture f;
  /* gradients and weights: weight of fc1, bias of fc1, fc2, ... */
  float grad[NUMBERS], weight[NUMBERS];
} model;

static ng_status model_open(model *m, const char *set, const ng_transport *t) {
  memset(m, 0, sizeof *m);
  rng r = {test_seed()};
  rng_fill(&r, m->weight, NUMBERS);
  ng_status st =
      fixture_open(&m->f, set, &(fixture_how){.linalg = "ref", .threads = 1, .transport = t});
  if (st == NG_OK) st = fixture_add_entries(&m->f, entries, 3, m->grad, m->weight);
  for (int32_t i = 0; i < 3 && st == NG_OK; i++) {
    st = ng_set_group(m->f.p, i, NG_BOTH, 1);
    if (st == NG_OK && i < 2) st = ng_set_group(m->f.p, i, NG_WEIGHT, 2 * i);
  }
  return st == NG_OK ? ng_ready(m->f.p) : st;
}

/* Observe the same samples and draw the same gradients on every rank. */
static ng_status model_observe(model *m) {
  float a[B * 5], g[B * 4];
  rng r = {test_seed() + 1};
  rng_fill(&r, m->grad, NUMBERS);
  ng_status st = fixture_begin(&m->f, B);
  for (int32_t i = 0; i < 2 && st == NG_OK; i++) {
    rng_fill(&r, a, B * entries[i].cols);
    rng_fill(&r, g, B * entries[i].rows);
    const plane x = plane_of(a, B, entries[i].cols, NG_F32),
                y = plane_of(g, B, entries[i].rows, NG_F32);
    st = fixture_observe(&m->f, i, &x, &y);
  }
  return st;
}

typedef struct numbers {
  ng_sgd sgd[GROUPS];
  ng_adamw adam[GROUPS];
} numbers;

static numbers new_valid_numbers(void) {
  numbers n;
  for (int g = 0; g < GROUPS; g++) {
    n.sgd[g] = fixture_sgd(0.1 / (1 + g), 0.9);
    n.sgd[g].dampening = 0.25;
    ng_adamw_init(&n.adam[g], sizeof n.adam[g]);
    n.adam[g].lr = 0.01;
  }
  return n;
}

static ng_status take_step(model *m, const numbers *n, bool adamw, int32_t count) {
  return adamw ? ng_step_adamw(m->f.p, n == NULL ? NULL : n->adam, count)
               : ng_step_sgd(m->f.p, n == NULL ? NULL : n->sgd, count);
}

/* ---- one rank --------------------------------------------------------------------------------*/

#define PLAIN_SGD "method=natgrad update=sgd clip=none"

#define WRONG(call, word, which)                                                                   \
  do {                                                                                             \
    assert_int_equal(call, NG_ERR_ARG);                                                            \
    const char *message = ng_last_error(m.f.ctx);                                                  \
    if (!strstr(message, word) || !strstr(message, which))                                         \
      fail_msg("'%s' lacks %s %s", message, word, which);                                          \
  } while (0)

/* A wrong argument of a step; `group` has the wrong number, zeros keep the valid ones. */
typedef struct mistake {
  int32_t count, group;
  double lr, decay;
  bool is_null, no_size, smaller, nesterov; /* nesterov: for SGD */
  const char *word, *which;                 /* parts of the message; which = NULL: the update */
} mistake;

static const mistake mistakes[] = {
    {GROUPS, 1, .lr = NAN, .word = "lr was not given", .which = "(group 1)"},
    {GROUPS, 1, .lr = -0.5, .word = "lr is -0.5", .which = "(group 1)"},
    {GROUPS, 2, .decay = -1, .word = "weight_decay is -1", .which = "(group 2)"},
    {GROUPS, 1, .nesterov = true, .word = "nesterov", .which = "(group 1)"},
    {GROUPS, 2, .smaller = true, .word = "struct_size", .which = "group 2"},
    {GROUPS, 0, .no_size = true, .word = "struct_size is 0"},
    {GROUPS, 0, .is_null = true, .word = "groups is NULL"},
    {1, .word = "count is 1", .which = "groups is 3"},
    {0, .word = "count is 0", .which = "groups is 3"},
    {4, .word = "count is 4", .which = "groups is 3"}};
enum { MISTAKES = sizeof mistakes / sizeof mistakes[0] };

static ng_status step_with_mistake(model *m, const mistake *w, bool adamw) {
  numbers how = new_valid_numbers();
  ng_sgd *s = &how.sgd[w->group];
  ng_adamw *a = &how.adam[w->group];
  if (w->lr != 0) s->lr = a->lr = w->lr;
  if (w->decay != 0) s->weight_decay = a->weight_decay = w->decay;
  if (w->nesterov) s->nesterov = 1;
  if (w->smaller) s->struct_size -= 8, a->struct_size -= 8;
  if (w->no_size) s->struct_size = a->struct_size = 0;
  return take_step(m, w->is_null ? NULL : &how, adamw, w->count);
}

/* The corrected step uses the same observations, and a learning rate of 0 is valid. */
static void wrong_numbers_are_refused(void **state) {
  for (int adamw = 0; adamw < 2; adamw++) {
    model m;
    float before[NUMBERS];
    const char *update = adamw ? "adamw" : "sgd";
    fixture_ok(&m.f, model_open(&m, adamw ? "update=adamw clip=none" : PLAIN_SGD, NULL));
    fixture_ok(&m.f, model_observe(&m));
    memcpy(before, m.weight, sizeof before);
    for (int k = 0; k < MISTAKES; k++) {
      const mistake *w = &mistakes[k];
      if (adamw && w->nesterov) continue;
      WRONG(step_with_mistake(&m, w, adamw), w->word, w->which == NULL ? update : w->which);
    }
    assert_memory_equal(before, m.weight, sizeof before);
    numbers how = new_valid_numbers();
    how.sgd[1].lr = how.adam[1].lr = 0;
    fixture_ok(&m.f, take_step(&m, &how, adamw, GROUPS));
    assert_memory_equal(before + FC1, m.weight + FC1, (size_t)entries[0].rows * sizeof *before);
    assert_memory_not_equal(before, m.weight, FC1 * sizeof *before);
    fixture_close(&m.f);
  }
}

/* The structs of a newer header are larger. */
static void new_fields_must_be_zero(void **state) {
  struct {
    ng_sgd how;
    double newer;
  } larger[GROUPS];
  model m, same;
  const numbers how = new_valid_numbers();
  fixture_ok(&m.f, model_open(&m, PLAIN_SGD, NULL));
  fixture_ok(&same.f, model_open(&same, PLAIN_SGD, NULL));
  for (int g = 0; g < GROUPS; g++) {
    larger[g].how = how.sgd[g];
    larger[g].how.struct_size = sizeof larger[g];
    larger[g].newer = 0;
  }
  fixture_ok(&m.f, model_observe(&m));
  fixture_ok(&same.f, model_observe(&same));
  larger[2].newer = 1;
  WRONG(ng_step_sgd(m.f.p, &larger[0].how, GROUPS), "struct_size", "knows only");
  larger[2].newer = 0;
  fixture_ok(&m.f, ng_step_sgd(m.f.p, &larger[0].how, GROUPS));
  fixture_ok(&same.f, ng_step_sgd(same.f.p, how.sgd, GROUPS));
  assert_memory_equal(m.weight, same.weight, sizeof m.weight);
  fixture_close(&m.f);
  fixture_close(&same.f);
}

static void invalid_group_numbers_are_refused(void **state) {
  model m;
  const plane none = plane_of(NULL, 1, 1, NG_F32);
  fixture_ok(&m.f, fixture_open(&m.f, "update=sgd", NULL));
  fixture_ok(&m.f, ng_add_linear(m.f.p, "fc", 2, 2, 0, NULL));
  WRONG(ng_set_group(m.f.p, 1, NG_WEIGHT, 0), "index is 1", "ng_set_group");
  WRONG(ng_set_group(m.f.p, 0, NG_BIAS, 0), "'fc'", "bias");
  WRONG(ng_set_group(m.f.p, 0, (ng_param)3, 0), "'fc'", "no such parameter");
  WRONG(ng_set_group(m.f.p, 0, NG_WEIGHT, -1), "group is -1", "0 to 1023");
  WRONG(ng_set_group(m.f.p, 0, NG_WEIGHT, 1024), "group is 1024", "0 to 1023");
  WRONG(ng_set_group(m.f.p, 0, NG_WEIGHT, 1025), "group is 1025", "0 to 1023");
  WRONG(plane_bind_grad(m.f.p, 0, NG_BOTH, &none), "'fc'", "no such parameter");
  fixture_ok(&m.f, ng_set_group(m.f.p, 0, NG_BOTH, 1023)); /* no bias: NG_BOTH is the weight */
  fixture_ok(&m.f, ng_set_group(m.f.p, 0, NG_BOTH, 2));
  fixture_ok(&m.f, ng_ready(m.f.p));
  WRONG(ng_set_group(m.f.p, 0, NG_WEIGHT, 3), "group is 3", "expected 0 to 2");
  fixture_ok(&m.f, ng_set_group(m.f.p, 0, NG_WEIGHT, 1));
  fixture_close(&m.f);
}

/* ---- ranks -----------------------------------------------------------------------------------*/

enum { RANKS = 3, ODD = 1 };

typedef struct job {
  const mistake *mistake; /* mistake of rank ODD; NULL: none */
  ng_status first[RANKS], last[RANKS];
  double nu[RANKS];
  char message[RANKS][256];
  float weight[RANKS][NUMBERS];
  bool changed[RANKS];
} job;

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  static const mistake none = {.count = GROUPS};
  job *j = arg;
  model m;
  float before[NUMBERS];
  ng_status st = model_open(&m, "update=sgd clip=kl kl_clip=1e-6 grad_worker_fraction=0", t);
  if (st == NG_OK) st = model_observe(&m);
  if (st != NG_OK) return st;
  memcpy(before, m.weight, sizeof before);
  st = step_with_mistake(&m, rank == ODD && j->mistake != NULL ? j->mistake : &none, false);
  j->first[rank] = st;
  j->changed[rank] = memcmp(before, m.weight, sizeof before) != 0;
  (void)snprintf(j->message[rank], sizeof j->message[rank], "%s", ng_last_error(m.f.ctx));
  if (st == NG_ERR_ARG) st = step_with_mistake(&m, &none, false);
  j->last[rank] = st;
  ng_report r = {.struct_size = sizeof r};
  if (st == NG_OK) st = ng_report_read(m.f.p, &r);
  j->nu[rank] = r.clip;
  memcpy(j->weight[rank], m.weight, sizeof j->weight[rank]);
  fixture_close(&m.f);
  return NG_OK;
}

/* Nothing changes, and a corrected step succeeds. */
static void a_mistake_of_one_rank_is_refused_by_all(void **state) {
  for (int k = 0; k < MISTAKES; k++) {
    const mistake *w = &mistakes[k];
    job j = {.mistake = w};
    assert_int_equal(ranks_run(RANKS, run_rank, &j, NULL), NG_OK);
    for (int r = 0; r < RANKS; r++) {
      assert_int_equal(j.first[r], NG_ERR_ARG);
      assert_false(j.changed[r]);
      assert_int_equal(j.last[r], NG_OK);
    }
    if (!strstr(j.message[ODD], w->word)) fail_msg("'%s' lacks '%s'", j.message[ODD], w->word);
    if (!strstr(j.message[0], "1 of 3 ranks"))
      fail_msg("'%s' does not count the ranks", j.message[0]);
  }
}

/* The clip sums terms of all owners, and gives the result of one rank up to rounding. */
static void the_clip_sums_over_ranks(void **state) {
  job alone = {.mistake = NULL}, j = alone;
  assert_int_equal(ranks_run(1, run_rank, &alone, NULL), NG_OK);
  assert_int_equal(ranks_run(RANKS, run_rank, &j, NULL), NG_OK);
  assert_true(alone.nu[0] > 0 && alone.nu[0] < 1);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(j.first[r], NG_OK);
    assert_true(j.nu[r] == j.nu[0] && fabs(j.nu[r] - alone.nu[0]) <= 1e-6 * alone.nu[0]);
    assert_memory_equal(j.weight[r], j.weight[0], sizeof j.weight[0]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wrong_numbers_are_refused),
      cmocka_unit_test(new_fields_must_be_zero),
      cmocka_unit_test(invalid_group_numbers_are_refused),
      cmocka_unit_test(a_mistake_of_one_rank_is_refused_by_all),
      cmocka_unit_test(the_clip_sums_over_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
