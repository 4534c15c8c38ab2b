/* t_plan_shards.c: ng_plan_shard: ng_plan_ranks of sharded layers against a run, for the bytes of every use and
 * station on every rank; wrong arguments; the model after planning. */
#include "unit_test.h"

#include <stdlib.h>
#include <string.h>

#include "plan_count.h"
#include "shard_run.h"

static ng_status add_layers(ng_precond *p, int32_t members) {
  ng_status st = NG_OK;
  for (int i = 0; i < LAYERS && st == NG_OK; i++) {
    ng_layer d = layer_of(NG_LINEAR, layer[i].name, layer[i].in, layer[i].out);
    int32_t index;
    d.bias = layer[i].bias;
    d.positions = layer[i].positions;
    d.order = NG_SAMPLES_FIRST;
    st = ng_add_layer(p, &d, &index);
    if (st == NG_OK && members > 0 && layer[i].axis >= 0)
      st = ng_plan_shard(p, index, layer[i].axis, members);
  }
  return st;
}

typedef struct plan_check {
  const char *options;
  int64_t samples[RANKS]; /* per step, on each rank */
  ng_rank_plan plan[RANKS];
} plan_check;

static ng_status compare_plan(const ng_precond *p, int32_t rank, void *arg) {
  const plan_check *b = arg;
  ng_rank_plan counted, planned = b->plan[rank];
  memset(&counted, 0, sizeof counted);
  const ng_status st = count_rank_plan(p, &counted);
  planned.shards_bytes += MICRO * planned.verdict_bytes + b->samples[rank] * planned.observed_bytes;
  return st == NG_OK && !rank_plans_match(b->options, rank, &planned, &counted) ? NG_ERR_ARG : st;
}

#define OURS "method=natgrad damping=0.3 stat_period=1 solve_period=1 "

static void planned_bytes_of_shards_equal_counted_bytes(void **state) {
  static const char *const options[] = {
      OURS, OURS "grad_worker_fraction=0 update=sgd",
      OURS "statistics=owner update=adamw colocate=0 grad_worker_fraction=0",
      "method=kaisa damping=0.3 factor_dtype=bf16 wire_dtype=bf16",
      OURS "grad_worker_fraction=0.5 per_layer='down: solver=eigen "
           "damping_split=joint'"};
  static const int32_t grid[][2] = {{1, 1}, {1, 2}, {2, 2}, {1, 3}, {2, 3}, {2, 1}, {4, 2}};
  for (size_t m = 0; m < sizeof options / sizeof options[0]; m++) {
    for (size_t g = 0; g < sizeof grid / sizeof grid[0]; g++) {
      plan_check b = {.options = options[m]};
      fixture f;
      const int32_t data = grid[g][0], model = grid[g][1], W = data * model;
      if (m == 4 && W % 2 != 0) continue;
      assert_int_equal(fixture_open(&f, options[m], &(fixture_how){.threads = 1}), NG_OK);
      fixture_ok(&f, add_layers(f.p, model));
      for (int32_t r = 0; r < W; r++) {
        b.plan[r] = (ng_rank_plan){.struct_size = sizeof b.plan[r]};
        fixture_ok(&f, ng_plan_ranks(f.p, W, r, 1, &b.plan[r]));
        for (int64_t call = 0; call < MICRO; call++)
          b.samples[r] += sample_count(r / model, call);
        assert_true((b.plan[r].observed_bytes > 0) == (model > 1));
      }
      fixture_close(&f);
      shard_run how = default_run(options[m]);
      how.data = data;
      how.model = model;
      how.even = true;
      how.check = compare_plan;
      how.check_arg = &b;
      free(trained_run(&how));
    }
  }
}

/* A second plan, also for other ranks, is not affected by the first: layers stay whole. */
static void planning_shards_leaves_layers_whole(void **state) {
  ng_rank_plan first, again;
  fixture f;
  first = (ng_rank_plan){.struct_size = sizeof first};
  again = first;
  assert_int_equal(fixture_open(&f, "method=natgrad", &(fixture_how){.threads = 1}), NG_OK);
  fixture_ok(&f, add_layers(f.p, 3));
  fixture_ok(&f, ng_plan_ranks(f.p, 6, 4, 1, &first));
  fixture_ok(&f, ng_plan_ranks(f.p, 3, 2, 1, &again));
  fixture_ok(&f, ng_plan_ranks(f.p, 6, 4, 1, &again));
  assert_memory_equal(&first, &again, sizeof first);
  for (int i = 0; i < 2; i++) {
    ng_explain_row row = {.struct_size = sizeof row};
    fixture_ok(&f, ng_explain(f.p, 0, &row));
    assert_int_equal(row.count, layer[0].in * layer[0].out);
    fixture_fails(&f, ng_plan_ranks(f.p, 4, 0, 1, &again), NG_ERR_ARG,
                  "ranks = 4: layers are sharded over 3 ranks");
  }
  fixture_fails(&f, ng_ready(f.p), NG_ERR_STATE, "layer 'up' was sharded by ng_plan_shard");
  fixture_close(&f);
}

static void wrong_shard_plans_are_refused(void **state) {
  fixture f;
  int32_t norm, tensor;
  assert_int_equal(fixture_open(&f, "method=natgrad", &(fixture_how){.threads = 1}), NG_OK);
  fixture_ok(&f, add_layers(f.p, 0));
  fixture_ok(&f, ng_add_norm(f.p, "bn", NG_BATCH_NORM, 4, 1, 1e-5, &norm));
  fixture_ok(&f, ng_add_tensor(f.p, "t", 4, &tensor));
  fixture_ok(&f, ng_plan_shard(f.p, 0, 0, 2));
  /* no other layer is sharded yet, so the number of members may change */
  fixture_ok(&f, ng_plan_shard(f.p, 0, 0, 3));
  const struct {
    int32_t index, axis, members;
    const char *message;
  } wrong[] = {{-1, 0, 2, "index is -1"},
               {tensor + 1, 0, 2, "index is 6, expected 0 to 5"},
               {norm, 0, 2, "'bn' is not an unsharded linear"},
               {tensor, 0, 2, "'t' is not an unsharded linear"},
               {1, 2, 3, "layer 'down': axis is 2"},
               {1, 1, 0, "layer 'down': members is 0, expected 1 to its 7 inputs"},
               {1, 0, 7, "members is 7, expected 1 to its 6 outputs"},
               {1, 1, 2, "layer 'down': members is 2, but 3 for layer 'up'"}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    const ng_status st = ng_plan_shard(f.p, wrong[i].index, wrong[i].axis, wrong[i].members);
    fixture_fails(&f, st, NG_ERR_ARG, wrong[i].message);
  }
  fixture_close(&f);
  assert_int_equal(fixture_open(&f, "method=natgrad", &(fixture_how){.threads = 1}), NG_OK);
  fixture_ok(&f, add_layers(f.p, 0));
  fixture_ok(&f, ng_ready(f.p));
  assert_int_equal(ng_plan_shard(f.p, 0, 0, 2), NG_ERR_STATE);
  fixture_close(&f);
}

/* If any allocation fails, the model is unchanged: the next plan is the same. */
static void failed_allocations_leave_the_model_unchanged(void **state) {
  allocator m = {0};
  ng_context_config c = allocator_config(&m);
  c.threads = 1;
  fixture f;
  ng_rank_plan want, got;
  assert_int_equal(fixture_open(&f, "method=natgrad", &(fixture_how){.config = &c}), NG_OK);
  fixture_ok(&f, add_layers(f.p, 2));
  want = (ng_rank_plan){.struct_size = sizeof want};
  fixture_ok(&f, ng_plan_ranks(f.p, 4, 1, 1, &want));
  int failures = 0;
  for (int64_t k = 1;; k++, failures++) {
    m.fail_at = m.calls + k;
    got = (ng_rank_plan){.struct_size = sizeof got};
    const ng_status st = ng_plan_ranks(f.p, 4, 1, 1, &got);
    m.fail_at = 0;
    if (st == NG_OK) break;
    assert_int_equal(st, NG_ERR_NOMEM);
    got = (ng_rank_plan){.struct_size = sizeof got};
    fixture_ok(&f, ng_plan_ranks(f.p, 4, 1, 1, &got));
    assert_memory_equal(&got, &want, sizeof got);
  }
  assert_true(failures > 20);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(planned_bytes_of_shards_equal_counted_bytes),
      cmocka_unit_test(planning_shards_leaves_layers_whole),
      cmocka_unit_test(wrong_shard_plans_are_refused),
      cmocka_unit_test(failed_allocations_leave_the_model_unchanged)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
