/* t_plan.c: ng_plan_ranks against the memory that ng_ready takes and the messages that a step sends, on every rank
 * of many settings.  Planning does not change a model.  t_plan_places and t_sizes compare plans with KAISA's
 * published volumes. */
#include "draw.h"
#include "fixture.h"
#include "plan_count.h"
#include "ranks.h"
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 6, ROOM = 512, B = 3, LAYERS = 4, WORDS = 9, SLOTS = 2 * LAYERS + 3 };

/* conv 3 -> 4, kernel 3, images 5 x 5; two linear layers; a norm; a tensor; an embedding, 4 positions, without
 * bias */
static const int64_t rows[SLOTS] = {4, 1, 6, 1, 3, 1, 1, 1, 1, 0, WORDS},
                     cols[SLOTS] = {27, 4, 10, 6, 6, 3, 4, 4, 70, 0, 5};
static const int64_t inputs[LAYERS] = {3 * 25, 10, 6, 4}, outputs[LAYERS] = {4 * 25, 6, 3, 4};

typedef struct plan_run {
  const char *options;
  int32_t ranks;
  ng_rank_plan plan[MOST_RANKS];
  char message[512];
} plan_run;

/* Only these methods have blocks for embeddings. */
static bool method_covers_embeddings(const char *options) {
  return strstr(options, "method=natgrad") == options && strstr(options, "per_layer") == NULL;
}

static ng_status add_layers(ng_precond *p, const char *options) {
  ng_status st = plane_add_conv2d(p, "conv", 3, 4, 3, 1, 1, 5, 5, 1, NULL);
  if (st == NG_OK) st = ng_add_linear(p, "fc1", 10, 6, 1, NULL);
  if (st == NG_OK) st = ng_add_linear(p, "fc2", 6, 3, 1, NULL);
  if (st == NG_OK) st = ng_add_norm(p, "bn", NG_BATCH_NORM, 4, 1, 1e-5, NULL);
  if (st == NG_OK) st = ng_add_tensor(p, "plain", 70, NULL);
  ng_layer table = layer_of(NG_EMBEDDING, "words", WORDS, 5);
  table.positions = 4;
  table.token_dtype = NG_I32;
  return st == NG_OK && method_covers_embeddings(options) ? ng_add_layer(p, &table, NULL) : st;
}

typedef struct arrays {
  float grad[SLOTS][ROOM], w[SLOTS][ROOM], a[LAYERS][ROOM], g[LAYERS][ROOM];
} arrays;

static ng_array make_batch_array(float *x, int layer, bool out) {
  if (layer == 0) return ng_array_nchw(x, B, out ? 4 : 3, 5, 5, NG_F32);
  return ng_array_matrix(x, B, out ? outputs[layer] : inputs[layer], NG_F32);
}

static ng_status take_step(fixture *f, arrays *m, const char *options) {
  ng_precond *p = f->p;
  rng r = {test_seed()};
  for (size_t i = 0; i < sizeof *m / sizeof(float); i++)
    ((float *)(void *)m)[i] = (float)rng_value(&r);
  ng_status st = NG_OK;
  for (int k = 0; k < SLOTS && st == NG_OK; k++) {
    if (rows[k] == 0 || (k == SLOTS - 1 && !method_covers_embeddings(options))) continue;
    const ng_array g = ng_array_matrix(m->grad[k], rows[k], cols[k], NG_F32),
                   w = ng_array_matrix(m->w[k], rows[k], cols[k], NG_F32);
    st = ng_bind_grad(p, k / 2, (ng_param)(k % 2), &g);
    if (st == NG_OK) st = ng_bind_weight(p, k / 2, (ng_param)(k % 2), &w);
  }
  if (st == NG_OK) st = ng_begin_samples(p, B, 1);
  for (int k = 0; k < LAYERS && st == NG_OK; k++) {
    const ng_array a = make_batch_array(m->a[k], k, false), g = make_batch_array(m->g[k], k, true);
    st = ng_observe_input(p, k, &a, NG_BORROW);
    if (st == NG_OK) st = ng_observe_output_grad(p, k, &g, NG_COPY);
  }
  static const int32_t token[B * 4] = {0, 3, 8, 1, 2, 2, 5, 7, 4, 6, 0, 1};
  const ng_array tokens = ng_array_matrix((void *)(uintptr_t)token, B, 4, NG_I32),
                 g = ng_array_matrix(m->g[0], B * 4, 5, NG_F32);
  const bool observed = method_covers_embeddings(options);
  if (st == NG_OK && observed) st = ng_observe_input(p, LAYERS + 1, &tokens, NG_BORROW);
  if (st == NG_OK && observed) st = ng_observe_output_grad(p, LAYERS + 1, &g, NG_COPY);
  if (st != NG_OK) return st;
  const ng_sgd how = fixture_sgd(0.1, 0.9);
  return fixture_step(f, &how);
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  plan_run *l = arg;
  fixture f;
  arrays *m = calloc(1, sizeof *m);
  const fixture_how how = {.threads = 1, .transport = l->ranks > 1 ? t : NULL};
  ng_status st = m == NULL ? NG_ERR_NOMEM : fixture_open(&f, l->options, &how);
  ng_rank_plan counted;
  memset(&counted, 0, sizeof counted);
  if (st == NG_OK) st = add_layers(f.p, l->options);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK) st = take_step(&f, m, l->options);
  if (st == NG_OK) st = count_rank_plan(f.p, &counted);
  if (st == NG_OK && !rank_plans_match(l->options, rank, &l->plan[rank], &counted)) st = NG_ERR_ARG;
  if (st != NG_OK) fprintf(stderr, "%s, rank %d: %s\n", l->options, rank, fixture_message(&f));
  fixture_close(&f);
  free(m);
  return st;
}

/* Plan all ranks in a process of one rank without transport. */
static void plan_all_ranks(plan_run *l) {
  fixture f;
  const fixture_how how = {.threads = 1};
  assert_int_equal(fixture_open(&f, l->options, &how), NG_OK);
  fixture_ok(&f, add_layers(f.p, l->options));
  for (int32_t r = 0; r < l->ranks; r++) {
    l->plan[r] = (ng_rank_plan){.struct_size = sizeof l->plan[r]};
    fixture_ok(&f, ng_plan_ranks(f.p, l->ranks, r, 1, &l->plan[r]));
  }
  fixture_close(&f);
}

static const struct {
  const char *options;
  int32_t ranks[4];
} setting[] = {
    {"method=natgrad", {1, 2, 3, 4}},
    {"method=natgrad stat_bucket_mb=0", {2, 3}},
    {"method=natgrad stat_bucket_mb=0.001 norm_block=full", {2, 3}},
    {"method=natgrad stat_bucket_mb=0.0004 statistics=owner grad_worker_fraction=0 "
     "wire_dtype=bf16",
     {2, 3}},
    {"method=natgrad grad_worker_fraction=0 update=sgd", {2, 3, 4}},
    {"method=natgrad grad_worker_fraction=0.5 update=adamw", {2, 4, 6}},
    {"method=natgrad statistics=owner grad_worker_fraction=0 factor_dtype=bf16", {2, 3}},
    {"method=natgrad statistics=owner grad_worker_fraction=0 wire_dtype=bf16 norm_block=full",
     {2, 3, 4, 6}},
    {"method=natgrad refresh_tolerance=0.1 norm_block=full", {2, 3}},
    {"method=kaisa grad_worker_fraction=0.5", {4, 6}},
    {"method=kaisa factor_blocks=2", {2}},
    {"method=natgrad wire_dtype=bf16 norm_block=full", {2, 3}},
    {"method=kaisa wire_dtype=f16 grad_worker_fraction=0", {3}},
    {"method=natgrad wire_dtype=bf16", {2}},
    {"method=kaisa norm_block=full", {1, 2, 3}},
    {"method=natgrad stat_bucket_mb=0.001 wire_dtype=bf16", {2}},
    {"method=natgrad factor_blocks=2", {2}},
    {"method=dp-kfac", {2, 3}},
    {"method=natgrad placement=kaisa colocate=0", {2, 3, 4}},
    {"method=natgrad placement=kaisa colocate=0 statistics=owner norm_block=full", {1, 2, 3, 4}},
    {"method=natgrad placement=round-robin colocate=0 statistics=owner stat_bucket_mb=0.0004 "
     "norm_block=full grad_worker_fraction=0.5 solver=eigen damping_split=joint",
     {2, 4, 6}},
    {"method=kaisa placement=contiguous colocate=0 grad_worker_fraction=0.5", {4, 6}},
    {"method=natgrad placement=spngd statistics=local norm_block=full", {2, 3}},
    {"method=mpd-kfac", {2, 6}},
    {"method=natgrad placement=kaisa-memory grad_worker_fraction=0", {3}},
    {"method=spngd update=sgd update_ranks=owner", {1, 2, 3}},
    {"method=eva-natgrad update=sgd", {1, 2, 3}},
    {"method=natgrad per_layer='fc1: method=eva; conv*: solver=eigen damping_split=joint'",
     {1, 2, 3}},
    {"method=natgrad grad_worker_fraction=0 statistics=owner per_layer='linear: "
     "method=eva-natgrad'",
     {2, 3, 4}},
    {"method=eva-natgrad update=sgd per_layer='fc*: method=mfac window=2; conv*: method=natgrad'",
     {1, 2, 3}},
    {"method=kaisa per_layer='bn*,fc2: method=mfac window=2'", {1, 2, 4}},
    {"method=mfac window=3", {1, 2}},
    {"method=mfac window=3 statistics=sharded", {1, 2, 3, 4}},
    {"method=efcp window=3 statistics=sharded window_density=0.2", {1, 2, 3, 4}},
    {"method=efcp window=3 statistics=sharded window_store=topk-layer update=sgd "
     "update_ranks=owner",
     {2, 3}},
};
enum { ROWS = sizeof setting / sizeof setting[0] };

static void planned_bytes_equal_counted_bytes(void **state) {
  bool ok = true;
  for (size_t i = 0; i < ROWS; i++) {
    for (int k = 0; k < 4 && setting[i].ranks[k] > 0; k++) {
      plan_run l = {.options = setting[i].options, .ranks = setting[i].ranks[k]};
      plan_all_ranks(&l);
      const ng_status st =
          l.ranks > 1 ? ranks_run(l.ranks, run_rank, &l, NULL) : run_rank(0, NULL, &l);
      ok = ok && st == NG_OK;
    }
  }
  assert_true(ok);
}

/* One call for all ranks returns what a call for each rank returns, also where most ranks have no block.  Both
 * calls refuse a number of ranks that the options do not allow. */
static void plans_of_all_ranks_equal_single_plans(void **state) {
  enum { MOST = 24 };
  static const int32_t ranks[] = {1, 2, 3, 6, 7, MOST};
  for (size_t i = 0; i < ROWS; i++) {
    for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
      const int32_t n = ranks[k];
      fixture f;
      ng_rank_plan all[MOST], one;
      assert_int_equal(fixture_open(&f, setting[i].options, &(fixture_how){.threads = 1}), NG_OK);
      fixture_ok(&f, add_layers(f.p, setting[i].options));
      for (int32_t r = 0; r < n; r++)
        all[r] = (ng_rank_plan){.struct_size = sizeof all[r]};
      const ng_status st = ng_plan_ranks(f.p, n, 0, n, all);
      for (int32_t r = 0; r < n; r++) {
        one = (ng_rank_plan){.struct_size = sizeof one};
        assert_int_equal(ng_plan_ranks(f.p, n, r, 1, &one), st);
        if (st == NG_OK && memcmp(&all[r], &one, sizeof one) != 0)
          fail_msg("%s: the two plans of rank %d of %d differ", setting[i].options, r, n);
      }
      fixture_close(&f);
    }
  }
}

/* The fractions of KAISA's tests, and fractions that it refuses.  A rounded third counts as 1/3. */
static void fractions_must_give_whole_ranks(void **state) {
  static const struct {
    int32_t ranks;
    const char *fraction;
    int32_t workers; /* 0: refused */
  } row[] = {{1, "1", 1},       {1, "0", 1},    {1, "0.5", 1},       {4, "1", 4},
             {4, "0", 1},       {4, "0.5", 2},  {8, "0.25", 2},      {4, "0.25", 1},
             {16, "0.0625", 1}, {16, "0.5", 8}, {3, "0.3333333", 1}, {6, "0.1", 0},
             {2, "0.25", 0},    {3, "0.5", 0},  {4, "0.75", 0},      {5, "0.1999", 0}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    fixture f;
    char options[64];
    ng_rank_plan plan = {.struct_size = sizeof plan};
    (void)snprintf(options, sizeof options, "method=kaisa grad_worker_fraction=%s",
                   row[i].fraction);
    assert_int_equal(fixture_open(&f, options, &(fixture_how){.threads = 1}), NG_OK);
    fixture_ok(&f, add_layers(f.p, ""));
    const ng_status st = ng_plan_ranks(f.p, row[i].ranks, 0, 1, &plan);
    assert_int_equal(st, row[i].workers > 0 ? NG_OK : NG_ERR_ARG);
    if (st == NG_OK) assert_int_equal(plan.workers, row[i].workers);
    if (st != NG_OK) assert_non_null(strstr(ng_last_error(f.ctx), "grad_worker_fraction is "));
    if (st != NG_OK && row[i].ranks == 6)
      assert_non_null(strstr(ng_last_error(f.ctx), "divides 6: 0, 1/6, 1/3, 1/2 or 1"));
    fixture_close(&f);
  }
}

/* A model that was planned becomes ready as if it had not been planned.  Wrong arguments are reported. */
static void planning_leaves_the_model_unchanged(void **state) {
  fixture f, plain;
  ng_rank_plan plan = {.struct_size = sizeof plan};
  int64_t bytes[2];
  assert_int_equal(fixture_open(&f, "method=natgrad", &(fixture_how){.threads = 1}), NG_OK);
  assert_int_equal(fixture_open(&plain, "method=natgrad", &(fixture_how){.threads = 1}), NG_OK);
  fixture_ok(&f, add_layers(f.p, ""));
  fixture_ok(&plain, add_layers(plain.p, ""));
  fixture_ok(&f, ng_plan_ranks(f.p, 4096, 4095, 1, &plan));
  assert_int_equal(plan.owned, 0); /* there are four blocks */
  ng_context_allocated(f.ctx, &bytes[0], NULL, NULL);
  for (int32_t ranks = 1; ranks < 100; ranks += 9)
    fixture_ok(&f, ng_plan_ranks(f.p, ranks, ranks / 2, 1, &plan));
  ng_context_allocated(f.ctx, &bytes[1], NULL, NULL);
  assert_int_equal(bytes[0], bytes[1]); /* the plan stores one placement, and ng_ready frees it */
  fixture_fails(&f, ng_plan_ranks(f.p, 4, 4, 1, &plan), NG_ERR_ARG,
                "first = 4, count = 1 of 4 ranks: expected");
  assert_int_equal(ng_plan_ranks(f.p, 0, 0, 1, &plan), NG_ERR_ARG);
  assert_int_equal(ng_plan_ranks(f.p, 4, 0, 0, &plan), NG_ERR_ARG);
  ng_rank_plan two[2] = {{.struct_size = sizeof two[0]}, {.struct_size = 8}};
  assert_int_equal(ng_plan_ranks(f.p, 4, 2, 3, two), NG_ERR_ARG);
  fixture_fails(&f, ng_plan_ranks(f.p, 2, 0, 2, two), NG_ERR_ARG,
                "struct_size of out is not set or differs");
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&plain, ng_ready(plain.p));
  const ng_report a = fixture_report(&f), b = fixture_report(&plain);
  assert_memory_equal(&a.factors, &b.factors, 7 * sizeof a.factors);
  assert_int_equal(ng_plan_ranks(f.p, 4, 0, 1, &plan), NG_ERR_STATE);
  assert_int_equal(ng_plan_ranks(f.p, 1, 0, 1, &plan), NG_ERR_STATE);
  fixture_close(&f);
  fixture_close(&plain);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(planned_bytes_equal_counted_bytes),
                                     cmocka_unit_test(plans_of_all_ranks_equal_single_plans),
                                     cmocka_unit_test(fractions_must_give_whole_ranks),
                                     cmocka_unit_test(planning_leaves_the_model_unchanged)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
