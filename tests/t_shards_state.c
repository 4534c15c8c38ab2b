/* t_shards_state.c: states of sharded layers whose weights are updated, so that they have moments.
 *
 * 2 x 2 ranks save a state in one file and in parts.  Every other split loads it, also ranks with whole layers and
 * groups with uneven shards, and saves the same bytes again.  The oracle is the uninterrupted run: the next step
 * has the same bits on the same split; on other splits, whose messages and kernels have other sizes, it agrees to
 * 1e-5 of a layer's largest weight, as in t_shards.c. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard_run.h"
#include "state/work.h"
#include "state_help.h"

#define BASE "method=natgrad damping=0.3 stat_period=1 solve_period=1 "
static const char *const updates[] = {BASE "update=sgd",
                                      BASE "update=adamw grad_worker_fraction=0 statistics=owner",
                                      BASE "update=adamw calls=ema factor_dtype=bf16"};

/* The ranks that load; the first row equals the ranks that saved. */
static const struct {
  int32_t model;
  bool data_adjacent, skewed, whole;
} others[] = {{2, false, false, false}, {2, true, false, false},  {3, false, false, false},
              {3, true, true, false},   {1, false, false, false}, {1, false, false, true},
              {2, false, true, false}};
enum { OTHERS = sizeof others / sizeof others[0] };

static shard_run make_saving_run(const char *options, const char *one, const char *parts) {
  shard_run how = default_run(options);
  how.save = one;
  how.parts = parts;
  return how;
}

/* Let the run begin at step 2 with the weights `start`, and save to `again`. */
static void continue_from(shard_run *how, double start[LAYERS][MOST_WEIGHTS], const char *again) {
  how->save = how->parts = NULL;
  how->resave = again;
  how->first_step = 2;
  how->start = start;
}

static void merge_shards(const shard_run *x, int t, double to[LAYERS][MOST_WEIGHTS]) {
  memset(to, 0, LAYERS * sizeof to[0]);
  for (int32_t r = 0; r < x->data * x->model; r++) {
    for (int i = 0; i < LAYERS; i++)
      store_shard(x, r, i, x->out[r][t][i], to[i]);
  }
}

static void expect_continuation(const shard_run *uninterrupted, const shard_run *x, bool same) {
  double expected[LAYERS][MOST_WEIGHTS], got[LAYERS][MOST_WEIGHTS];
  const int last = STEPS - 1;
  merge_shards(uninterrupted, last, expected);
  for (int32_t r = 0; r < x->data * x->model && same; r++)
    assert_memory_equal(x->out[r][last], uninterrupted->out[r][last], sizeof x->out[r][last]);
  merge_shards(x, last, got);
  for (int i = 0; i < LAYERS; i++) {
    double most = 0.0;
    for (int k = 0; k < MOST_WEIGHTS; k++)
      most = fmax(most, fabs(expected[i][k]));
    for (int k = 0; k < MOST_WEIGHTS; k++) {
      if (fabs(got[i][k] - expected[i][k]) < 1e-5 * most || got[i][k] == expected[i][k]) continue;
      fail_msg("%s, %d ranks a group: '%s' [%d] is %g, expected %g", x->options, x->model,
               layer[i].name, k, got[i][k], expected[i][k]);
    }
  }
}

static void states_are_read_by_any_split(void **state) {
  const path one = path_of("one"), parts = path_of("parts"), again = path_of("again");
  for (size_t u = 0; u < sizeof updates / sizeof updates[0]; u++) {
    for (int across = 0; across < 2; across++) {
      shard_run how = make_saving_run(updates[u], one.text, parts.text);
      how.data_adjacent = across == 1;
      how.skewed = u == 1;
      how.bias = u != 2;
      double start[LAYERS][MOST_WEIGHTS];
      shard_run *uninterrupted = trained_run(&how);
      merge_shards(uninterrupted, 1, start);
      assert_int_equal(list_folder().n, 1 + 2 * how.model);
      continue_from(&how, start, again.text);
      for (int k = 0; k < 2 * OTHERS; k++) {
        how.model = others[k / 2].model;
        how.data_adjacent = others[k / 2].data_adjacent;
        how.skewed = others[k / 2].skewed;
        how.whole = others[k / 2].whole;
        how.load = k % 2 == 0 ? one.text : parts.text;
        shard_run *x = trained_run(&how);
        assert_same_file(one.text, again.text);
        expect_continuation(uninterrupted, x,
                            how.model == uninterrupted->model &&
                                how.data_adjacent == uninterrupted->data_adjacent &&
                                how.skewed == uninterrupted->skewed);
        free(x);
      }
      free(uninterrupted);
      clear_folder();
    }
  }
}

/* Ranks with whole layers save, ranks with shards load. */
static void states_of_whole_layers_are_read_by_shards(void **state) {
  const path one = path_of("one"), parts = path_of("parts"), again = path_of("again");
  for (size_t u = 0; u < sizeof updates / sizeof updates[0]; u++) {
    shard_run how = make_saving_run(updates[u], one.text, parts.text);
    how.model = 1;
    how.whole = true;
    double start[LAYERS][MOST_WEIGHTS];
    shard_run *uninterrupted = trained_run(&how);
    merge_shards(uninterrupted, 1, start);
    continue_from(&how, start, again.text);
    how.whole = false;
    how.model = 3;
    how.data_adjacent = true;
    for (int k = 0; k < 2; k++) {
      how.load = k == 0 ? one.text : parts.text;
      shard_run *x = trained_run(&how);
      assert_same_file(one.text, again.text);
      expect_continuation(uninterrupted, x, false);
      free(x);
    }
    free(uninterrupted);
    clear_folder();
  }
}

/* Pieces are ranges of rows or of columns, and cover the array exactly once.  Their parts are in any order. */
#define PIECE(part, kind, from, to)                                                                \
  "{\"part\":" #part ",\"from" kind "\":" #from ",\"to" kind "\":" #to                             \
  ",\"crc32\":\"01234567\",\"finite\":true}"
#define ROWS(part, from, to) PIECE(part, "_row", from, to)
#define COLS(part, from, to) PIECE(part, "", from, to)

static void pieces_must_cover_the_array_once(void **state) {
  static const struct {
    const char *pieces;
    bool valid;
  } table[] = {
      {ROWS(0, 0, 3) "," ROWS(1, 3, 5), true},
      {ROWS(2, 0, 3) "," ROWS(0, 3, 5), true},
      {COLS(2, 0, 1) "," COLS(1, 1, 6) "," COLS(0, 6, 7), true},
      {COLS(1, 0, 7), true},
      {ROWS(1, 0, 5), true},
      {ROWS(0, 0, 3) "," ROWS(1, 3, 7), false}, /* 5 rows, 7 columns */
      {COLS(0, 0, 3) "," COLS(1, 3, 5), false},
      {ROWS(0, 0, 3) "," ROWS(1, 2, 5), false},
      {ROWS(0, 0, 3) "," ROWS(1, 4, 5), false},
      {ROWS(0, 0, 3) "," ROWS(0, 3, 5), false},
      {ROWS(2, 0, 1) "," ROWS(0, 1, 3) "," ROWS(2, 3, 5), false},
      {ROWS(0, 0, 3) "," COLS(1, 3, 5), false},
      {COLS(0, 0, 3) "," ROWS(1, 3, 7), false},
      {ROWS(0, 0, 3) "," ROWS(3, 3, 5), false},
      {ROWS(-1, 0, 3) "," ROWS(1, 3, 5), false},
      {ROWS(0, 0, 5) "," ROWS(1, 5, 5), false},
      {ROWS(0, 5, 0), false},
      {"{\"part\":0,\"from_row\":0,\"to\":5,\"crc32\":\"01234567\",\"finite\":true}", false}};
  ng_field f = {.dtype = NG_F32, .rows = 5, .cols = 7};
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    char text[1024], why[128];
    ngio_json *json = NULL;
    (void)snprintf(text, sizeof text, "{\"shape\":[5,7],\"pieces\":[%s]}", table[i].pieces);
    assert_int_equal(ngio_json_parse(text, strlen(text), &json, why, sizeof why), NGIO_OK);
    const ngio_value *v = ng_pieces_check(ngio_json_root(json), &f, 3);
    if ((v != NULL) != table[i].valid) fail_msg("%s", table[i].pieces);
    ngio_json_free(&json);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_must_cover_the_array_once),
                                     cmocka_unit_test(states_are_read_by_any_split),
                                     cmocka_unit_test(states_of_whole_layers_are_read_by_shards)};
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
