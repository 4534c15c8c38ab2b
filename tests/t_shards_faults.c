/* t_shards_faults.c: faults with sharded layers: wrong observations of one rank, failing allocations and
 * collectives, unsupported methods and options.  Ranks fail together, with a message that names the cause. */
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "shard_run.h"

#define BASE "method=natgrad damping=0.3 stat_period=1 solve_period=1"

/* One rank observes a NaN or an array that does not fit.  Its model group gets the error from that call, all other
 * ranks at the latest from the step. */
static void wrong_arrays_of_one_rank_reach_all(void **state) {
  static const struct {
    const char *options, *message;
    ng_status st;
  } how[] = {{BASE "|nan", "", NG_SKIPPED},
             {BASE "|shape", "layer 'up'", NG_ERR_SHAPE},
             {BASE "|rows", "the layer, rows or dtype of this observation differ", NG_ERR_STATE}};
  for (int32_t wrong = 0; wrong < 4; wrong++) {
    for (size_t k = 0; k < sizeof how / sizeof how[0]; k++) {
      shard_run with = default_run(how[k].options);
      with.bad_rank = wrong;
      shard_run *x = new_run(&with);
      ng_status each[RANKS];
      assert_true(train(x, each) >= NG_OK);
      for (int32_t r = 0; r < 4; r++) {
        const bool beside = model_group_of(x, r) == model_group_of(x, wrong);
        assert_int_equal(x->observed[r][1], beside ? how[k].st : NG_OK);
        assert_int_equal(x->status[r][1], beside || k == 0 ? how[k].st : NG_OK);
        if (k > 0 && beside) assert_non_null(strstr(x->message[r], how[k].message));
        assert_int_equal(x->status[r][0], NG_OK);
        assert_int_equal(x->status[r][2], NG_OK);
      }
      free(x);
    }
  }
}

/* One rank has no memory to gather shards or to sum them.  Its model group gets the error from that call, and all
 * ranks observe again. */
static void failed_allocations_reach_the_model_group(void **state) {
  int32_t failures = 0;
  for (int32_t wrong = 0; wrong < 4; wrong++) {
    for (int32_t k = 1;; k++) {
      shard_run how = default_run(BASE);
      how.rows_first = false;
      how.bad_rank = wrong;
      how.failing_alloc = k;
      shard_run *x = new_run(&how);
      ng_status each[RANKS];
      const ng_status st = train(x, each);
      if (st != NG_OK) fail_msg("allocation %d of rank %d failed: %s", k, wrong, x->message[wrong]);
      for (int32_t r = 0; r < 4; r++) {
        const bool beside = model_group_of(x, r) == model_group_of(x, wrong) && x->alloc_failed;
        assert_int_equal(x->observed[r][0], beside ? NG_ERR_NOMEM : NG_OK);
        assert_int_equal(x->status[r][1], NG_OK);
      }
      const bool through = !x->alloc_failed;
      free(x);
      if (through) break;
      failures++;
    }
  }
  /* gathers, and the sum on its own rank, allocate more than four times */
  assert_true(failures > 4);
}

/* Each collective in turn fails, in the data group or in the model group: all ranks return NG_ERR_COMM. */
static void failing_collectives_end_all_ranks(void **state) {
  for (int which = 0; which < 2; which++) {
    int32_t k = 1;
    for (;; k++) {
      shard_run how = default_run(BASE " grad_worker_fraction=0");
      how.rows_first = false;
      how.last = k % 2 == 0;
      how.bad_rank = k % 4;
      how.fail[which] = k;
      how.fail[1 - which] = 1 << 30;
      shard_run *x = new_run(&how);
      ng_status each[RANKS];
      const ng_status st = train(x, each);
      for (int32_t r = 0; r < 4; r++) {
        if (each[r] != (st == NG_OK ? NG_OK : NG_ERR_COMM)) {
          fail_msg("collective %d of group %d failed: rank %d returned %d: %s", k, which, r,
                   each[r], x->message[r]);
        }
      }
      free(x);
      if (st == NG_OK) break;
    }
    assert_true(k > 20);
  }
}

/* Random options, grids, ranks and collectives: a rank fails once in three steps.  Every rank then returns NG_ERR_COMM, or
 * the run had no such collective and every rank succeeds. */
static void random_faults_end_all_ranks(void **state) {
  static const char *const options[] = {"",
                                        " grad_worker_fraction=0",
                                        " statistics=owner",
                                        " statistics=owner grad_worker_fraction=0",
                                        " solver=eigen damping_split=joint",
                                        " update=sgd",
                                        " update=adamw",
                                        " positions=reduce",
                                        " placement=round-robin grad_worker_fraction=0"};
  static const int32_t grid[][2] = {{2, 2}, {1, 2}, {2, 3}, {3, 2}};
  rng r = {test_seed()};
  const int64_t tries = test_repetitions(60);
  int64_t failed = 0;
  for (int64_t n = 0; n < tries; n++) {
    char text[200];
    (void)snprintf(text, sizeof text, BASE "%s",
                   options[rng_below(&r, sizeof options / sizeof *options)]);
    const int64_t g = rng_below(&r, sizeof grid / sizeof *grid), which = rng_below(&r, 2);
    shard_run how = default_run(text);
    how.data = grid[g][0];
    how.model = grid[g][1];
    how.data_adjacent = rng_below(&r, 2) != 0;
    how.bias = rng_below(&r, 2) != 0;
    how.rows_first = rng_below(&r, 2) != 0;
    how.last = rng_below(&r, 2) != 0;
    how.bad_rank = (int32_t)rng_below(&r, how.data * how.model);
    how.fail[which] = (int32_t)rng_between(&r, 1, 40);
    how.fail[1 - which] = 1 << 30;
    shard_run *x = new_run(&how);
    ng_status each[RANKS];
    const ng_status st = train(x, each);
    failed += st != NG_OK;
    for (int32_t k = 0; k < how.data * how.model; k++) {
      if (each[k] != (st == NG_OK ? NG_OK : NG_ERR_COMM))
        fail_msg("try %d, %s, grid %d x %d, collective %d of group %d of rank %d failed: rank %d "
                 "returned %d: %s",
                 (int)n, text, how.data, how.model, how.fail[which], (int)which, how.bad_rank, k,
                 each[k], x->message[k]);
    }
    free(x);
  }
  printf("faults of shards: tries = %d failed = %d\n", (int)tries, (int)failed);
  assert_true(failed * 2 > tries);
}

/* ---- unsupported -----------------------------------------------------------------------------*/

static void unsupported_options_are_refused(void **state) {
  static const struct {
    const char *options, *message;
    ng_status st;
  } unsupported[] = {{"method=eva", "family rankone does not support sharded", NG_ERR_ABSENT},
                     {"method=mfac", "family window does not support sharded", NG_ERR_ABSENT},
                     {BASE " statistics=local", "statistics = local", NG_ERR_ABSENT},
                     {BASE " update=sgd update_ranks=owner", "update_ranks = owner", NG_ERR_ABSENT},
                     {BASE " quantify=1", "quantify = 1", NG_ERR_ABSENT},
                     {BASE " clip=ratio clip_bound=1", "clip = ratio", NG_ERR_ABSENT}};
  for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
    shard_run how = default_run(unsupported[i].options);
    how.save = "/tmp/never-written";
    shard_run *x = new_run(&how);
    ng_status each[RANKS];
    (void)train(x, each);
    for (int32_t r = 0; r < 4; r++) {
      assert_int_equal(each[r], unsupported[i].st);
      if (strstr(x->message[r], unsupported[i].message) == NULL)
        fail_msg("%s: %s", unsupported[i].options, x->message[r]);
    }
    free(x);
  }
}

static void unsupported_layers_are_refused(void **state) {
  static const struct {
    /* group: the context has a model group; shard_group: the layer has its own; words: an embedding */
    bool group, shard_group, embedding;
    int32_t axis;
    ng_status st;
    const char *message;
  } row[] = {{false, false, false, 1, NG_ERR_ARG, "model_group was not given"},
             {true, false, false, 2, NG_ERR_ARG, "shard_axis is 2"},
             {true, true, false, 0, NG_ERR_ABSENT, "shard_group is not NULL"},
             {true, false, true, 0, NG_ERR_ABSENT, "only linear layers"},
             {true, false, false, 0, NG_OK, ""}};
  ng_threads *alone;
  ng_transport t;
  ng_rank_plan plan = {.struct_size = sizeof plan};
  assert_int_equal(ng_threads_create(1, &alone), NG_OK);
  assert_int_equal(ng_threads_transport(alone, 0, &t, sizeof t), NG_OK);
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    ng_context_config c;
    ng_context_config_init(&c, sizeof c);
    if (row[i].group) c.model_group = &t;
    fixture f;
    fixture_ok(&f, fixture_open(&f, BASE, &(fixture_how){.config = &c}));
    ng_layer d;
    ng_layer_init(&d, row[i].embedding ? NG_EMBEDDING : NG_LINEAR, sizeof d);
    d.name = "fc";
    d.in = d.out = 4;
    d.shard_axis = row[i].axis;
    if (row[i].shard_group) d.shard_group = &t;
    fixture_fails(&f, ng_add_layer(f.p, &d, NULL), row[i].st, row[i].message);
    if (row[i].st == NG_OK)
      fixture_fails(&f, ng_plan_ranks(f.p, 4, 0, 1, &plan), NG_ERR_ABSENT, "layer 'fc' is sharded");
    fixture_close(&f);
  }
  ng_threads_destroy(&alone);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(wrong_arrays_of_one_rank_reach_all),
                                     cmocka_unit_test(failing_collectives_end_all_ranks),
                                     cmocka_unit_test(random_faults_end_all_ranks),
                                     cmocka_unit_test(failed_allocations_reach_the_model_group),
                                     cmocka_unit_test(unsupported_options_are_refused),
                                     cmocka_unit_test(unsupported_layers_are_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
