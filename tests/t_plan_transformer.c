/* t_plan_transformer.c: compare `natgrad plan` for a small transformer of a FILE.json (embeddings, layer norms, linear layers
 * with positions) with the plans of the library for the same layers, registered by hand: each strategy on 2 and 4 ranks.
 * t_plan compares such plans with the bytes of runs. */
#include "plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORDS = 11, PLACES = 5, WIDTH = 6, INNER = 9, B = 2, RANKS = 4, LAYERS = 7 };

typedef struct part {
  const char *name, *json;
  ng_kind kind;
  int64_t in, out, positions;
} part;

static const part layer[LAYERS] = {
    {"words", "embedding\", \"in\": 11, \"out\": 6, \"positions\": 5", NG_EMBEDDING, WORDS, WIDTH,
     PLACES},
    {"places", "embedding\", \"in\": 5, \"out\": 6, \"positions\": 5", NG_EMBEDDING, PLACES, WIDTH,
     PLACES},
    {"norm0", "norm\", \"in\": 6", NG_NORM, WIDTH, WIDTH, PLACES},
    {"inner", "linear\", \"in\": 6, \"out\": 9, \"bias\": true, \"positions\": 5", NG_LINEAR, WIDTH,
     INNER, PLACES},
    {"outer", "linear\", \"in\": 9, \"out\": 6, \"bias\": true, \"positions\": 5", NG_LINEAR, INNER,
     WIDTH, PLACES},
    {"norm1", "norm\", \"in\": 6", NG_NORM, WIDTH, WIDTH, PLACES},
    {"pooler", "linear\", \"in\": 6, \"out\": 6, \"bias\": true", NG_LINEAR, WIDTH, WIDTH, 1},
};

/* Methods without blocks for embeddings and norms have one tensor for each weight and bias. */
typedef struct trial {
  const char *options;
  bool tensors;
  int32_t ranks;
  ng_rank_plan counted[RANKS];
} trial;

static const trial strategy[] = {
    {.options = "method=natgrad grad_worker_fraction=1"},
    {.options = "method=natgrad grad_worker_fraction=0.5"},
    {.options = "method=natgrad grad_worker_fraction=0"},
    {.options = "method=natgrad colocate=0 grad_worker_fraction=0.5"},
    {.options = "method=natgrad statistics=owner grad_worker_fraction=0"},
    {.options = "method=natgrad statistics=local grad_worker_fraction=0"},
    {.options = "method=natgrad wire_dtype=bf16 grad_worker_fraction=0.5"},
    {.options = "method=natgrad norm_block=full solver=eigen damping_split=joint prediv=1 "
                "grad_worker_fraction=0.5"},
    {.options = "method=spngd update=sgd update_ranks=owner grad_worker_fraction=0"},
    {.options = "method=kaisa grad_worker_fraction=1", .tensors = true},
    {.options = "method=kaisa grad_worker_fraction=0.5", .tensors = true},
    {.options = "method=kaisa grad_worker_fraction=0", .tensors = true},
    {.options = "method=mpd-kfac grad_worker_fraction=1", .tensors = true},
    {.options = "method=dp-kfac grad_worker_fraction=0", .tensors = true},
};
enum { STRATEGIES = sizeof strategy / sizeof strategy[0] };

/* ---- registered by hand ----------------------------------------------------------------------*/

static ng_status add_layer(ng_precond *p, const part *l) {
  ng_layer d;
  ng_layer_init(&d, l->kind, sizeof d);
  d.name = l->name;
  d.in = l->in;
  d.out = l->out;
  d.bias = l->kind != NG_EMBEDDING;
  d.positions = l->kind == NG_NORM ? 0 : l->positions;
  d.norm_kind = NG_LAYER_NORM;
  d.token_dtype = NG_I32;
  return ng_add_layer(p, &d, NULL);
}

static void plan_by_hand(trial *x) {
  char why[256] = "";
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  assert_int_equal(ng_context_create(NG_VERSION, NULL, why, sizeof why, &ctx), NG_OK);
  assert_int_equal(ng_precond_create(ctx, x->options, &p), NG_OK);
  for (int k = 0; k < LAYERS; k++) {
    const part *l = &layer[k];
    if (!x->tensors || l->kind == NG_LINEAR) {
      assert_int_equal(add_layer(p, l), NG_OK);
      continue;
    }
    char beta[16];
    (void)snprintf(beta, sizeof beta, "%s.b", l->name);
    assert_int_equal(ng_add_tensor(p, l->name, l->kind == NG_NORM ? l->in : l->in * l->out, NULL),
                     NG_OK);
    if (l->kind == NG_NORM) assert_int_equal(ng_add_tensor(p, beta, l->out, NULL), NG_OK);
  }
  for (int32_t r = 0; r < x->ranks; r++)
    x->counted[r] = (ng_rank_plan){.struct_size = sizeof x->counted[r]};
  if (ng_plan_ranks(p, x->ranks, 0, x->ranks, x->counted) != NG_OK)
    fail_msg("%s: %s", x->options, ng_last_error(ctx));
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
}

/* ---- beside the plan -------------------------------------------------------------------------*/

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* The largest value over ranks, and the mean. */
static plan_answer answer_of(const trial *x) {
  plan_answer a = {.held_least = INT64_MAX};
  for (int32_t r = 0; r < x->ranks; r++) {
    const ng_rank_plan *c = &x->counted[r];
    const int64_t held = c->factors + c->sums + c->results + c->direction + c->moments;
    a.held_most = larger(a.held_most, held);
    if (held < a.held_least) a.held_least = held;
    a.held_mean += (double)held / x->ranks;
#define MOST_OF(field) a.most.field = larger(a.most.field, c->field)
    MOST_OF(check_bytes);
    MOST_OF(trace_bytes);
    MOST_OF(sums_bytes);
    MOST_OF(share_bytes);
    MOST_OF(deliver_bytes);
    MOST_OF(agree_bytes);
    MOST_OF(weights_bytes);
#undef MOST_OF
  }
  const ng_rank_plan *most = &a.most;
  a.sent = (double)(most->check_bytes + most->trace_bytes + most->sums_bytes + most->share_bytes +
                    most->deliver_bytes + most->agree_bytes + most->weights_bytes);
  return a;
}

static bool same(const trial *x, const plan_answer *planned, const plan_answer *counted) {
  const struct {
    const char *name;
    double planned, counted;
  } row[] = {
#define ROW(field) {#field, (double)planned->field, (double)counted->field},
      ROW(held_most) ROW(held_least) ROW(held_mean) ROW(most.sums_bytes) ROW(most.share_bytes)
          ROW(most.deliver_bytes) ROW(most.weights_bytes) ROW(sent)
#undef ROW
  };
  bool all = true;
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    if (row[i].planned == row[i].counted) continue;
    fprintf(stderr, "%s on %d ranks: %s is planned as %g, and was %g\n", x->options, x->ranks,
            row[i].name, row[i].planned, row[i].counted);
    all = false;
  }
  return all;
}

static void write_file(char path[64]) {
  (void)snprintf(path, 64, "/tmp/t_plan_transformer.XXXXXX.json");
  const int descriptor = mkstemps(path, 5);
  FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
  assert_non_null(file);
  for (int k = 0; k < LAYERS; k++)
    fprintf(file, "%c{\"name\": \"%s\", \"kind\": \"%s}\n", k == 0 ? '[' : ',', layer[k].name,
            layer[k].json);
  fprintf(file, "]\n");
  assert_int_equal(fclose(file), 0);
}

static void equals_counted(void **state) {
  (void)state;
  char path[64];
  shapes model;
  bool all = true;
  write_file(path);
  const int read = shapes_make(path, &model);
  (void)unlink(path);
  assert_int_equal(read, CLI_OK);
  assert_int_equal(model.n, LAYERS);
  for (int i = 0; i < STRATEGIES; i++) {
    for (int32_t ranks = 2; ranks <= RANKS; ranks += 2) {
      trial x = strategy[i];
      const plan_wish wish = {.model = &model,
                              .members = 1,
                              .batch = B,
                              .every = {1, 1},
                              .machine = {1e9, 1e9, 1e9, 1e-6}};
      plan_strategy s = {.name = "a strategy"};
      plan_answer planned, counted;
      x.ranks = ranks;
      (void)snprintf(s.options, sizeof s.options, "%s", x.options);
      assert_int_equal(plan_strategy_cost(&wish, &s, ranks, &planned), CLI_OK);
      plan_by_hand(&x);
      counted = answer_of(&x);
      all = same(&x, &planned, &counted) && all;
    }
  }
  shapes_free(&model);
  assert_true(all);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(equals_counted)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
