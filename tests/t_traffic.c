/* t_traffic.c: traffic reports of a run: gathered from three ranks, printed and read back; times of the trainer's
 * own messages, on a clock of the test. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "json_edit.h"
#include "train/traffic.h"

enum { RANKS = 3, STATIONS = 2, STEPS = 10 };

static double clock_ms;
double __wrap_ng_now_ms(void);
double __wrap_ng_now_ms(void) { return clock_ms; }

/* ---- a table -----------------------------------------------------------------------------------*/

static const traffic_rank reported[RANKS] = {
    {40, 30, {{"sums", 50, 20, 4000, 20}, {"solve", 300, 0, 0, 0}}},
    {50, 10, {{"sums", 60, 35, 4000, 20}, {"solve", 100, 0, 0, 0}}},
    {10, 5, {{"sums", 20, 5, 4000, 20}, {"solve", 200, 0, 0, 0}}},
};

static ng_status gather_traffic(int32_t rank, ng_transport *t, void *arg) {
  traffic *all = arg;
  const run_ranks ranks = ranks_from_transport(t);
  return traffic_gather(&ranks, &reported[rank], STATIONS, STEPS, &all[rank]) == CLI_OK
             ? NG_OK
             : NG_ERR_COMM;
}

static void expect_equal(double is, double want) {
  if (!(fabs(is - want) < 1e-12)) fail_msg("%.17g, expected %.17g", is, want);
}

static void reports_of_all_ranks_are_gathered(void **state) {
  traffic all[RANKS];
  assert_int_equal(ranks_run(RANKS, gather_traffic, all, NULL), NG_OK);
  for (int r = 0; r < RANKS; r++) {
    const traffic *t = &all[r];
    assert_int_equal(t->ranks, RANKS);
    assert_int_equal(t->stations, STATIONS);
    for (int k = 0; k < RANKS; k++)
      assert_memory_equal(&t->rank[k], &reported[k], sizeof reported[k]);
    expect_equal(traffic_find_idle_ms(t, 0, 0), 15); /* 20 - 5 */
    expect_equal(traffic_find_idle_ms(t, 1, 0), 30);
    expect_equal(traffic_find_idle_ms(t, 2, 0), 0);
    expect_equal(traffic_compute_hidden(t), 0.45); /* 45 of 100 */
  }
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  assert_non_null(f);
  traffic_print(&all[0], f);
  (void)fclose(f);
  assert_string_equal(text, "a step      ms    most  waits  idle, most   kB  messages\n"
                            "sums     4.333   6.000  2.000       3.000  0.4       2.0\n"
                            "solve   20.000  30.000  0.000       0.000  0.0       0.0\n"
                            "3 ranks: messages take 3.333 ms a step, 45.0 % during other work\n");
  free(text);
  f = open_memstream(&text, &size);
  assert_non_null(f);
  traffic_print_json(&all[0], f);
  (void)fclose(f);
  ngio_json *doc = json_must_parse(text, strlen(text));
  const ngio_value *json = ngio_json_root(doc);
  assert_int_equal(ngio_count(json), RANKS);
  const ngio_value *second = ngio_at(json, 1);
  expect_equal(ngio_number_of(ngio_get(second, "hidden_ms")), 10);
  const ngio_value *sums = ngio_get(ngio_get(second, "stations"), "sums");
  expect_equal(ngio_number_of(ngio_get(sums, "idle_ms")), 30);
  expect_equal(ngio_number_of(ngio_get(sums, "bytes")), 4000);
  ngio_json_free(&doc);
  free(text);
  for (int r = 0; r < RANKS; r++)
    traffic_free(&all[r]);
}

/* ---- a slow wire -------------------------------------------------------------------------------*/

enum { WIRE = 10, SMALL = 2 };

static ng_status run_on_wire(void *user, const ng_collective *c) {
  clock_ms += SMALL;
  return NG_OK;
}

static ng_status start_on_wire(void *user, const ng_collective *c, void **request) {
  *(double *)user = clock_ms + WIRE;
  *request = user;
  return NG_OK;
}

static ng_status wait_for_wire(void *user, void *request) {
  if (clock_ms < *(double *)user) clock_ms = *(double *)user;
  return NG_OK;
}

static ng_status test_wire(void *user, void *request, int32_t *done) {
  *done = clock_ms >= *(double *)user;
  return NG_OK;
}

static ng_transport make_slow_wire(double *done_at) {
  ng_transport t = {.struct_size = sizeof t, .size = 1};
  t.user = done_at;
  t.size = 2;
  t.run = run_on_wire;
  t.start = start_on_wire;
  t.wait = wait_for_wire;
  t.test = test_wire;
  return t;
}

static void hidden_time_follows_the_clock(void **state) {
  double done_at = 0, small = 1;
  float x[5] = {0};
  bool done = false;
  ng_transport t = make_slow_wire(&done_at);
  ranks_count count = {0};
  ranks_request q;
  run_ranks ranks = ranks_from_transport(&t);
  ranks.count = &count;
  clock_ms = 0;
  assert_int_equal(ranks_start_sum(&ranks, x, 5, &q), CLI_OK);
  clock_ms += 4; /* work while the message is under way */
  assert_int_equal(ranks_test_sum(&ranks, &q, &done), CLI_OK);
  assert_false(done);
  assert_int_equal(ranks_sum(&ranks, &small, 1), CLI_OK); /* another collective at the same time */
  assert_int_equal(ranks_wait_sum(&ranks, &q), CLI_OK);
  expect_equal(count.meter.sent_ms, WIRE);
  expect_equal(count.meter.wait_ms, SMALL + WIRE - SMALL - 4);
  expect_equal(ng_meter_hidden(&count.meter), 4);
  assert_int_equal(count.messages, 2);
  assert_int_equal(count.bytes, 5 * 4 + 8);
  assert_int_equal(ranks_start_sum(&ranks, x, 5, &q), CLI_OK);
  clock_ms += 13; /* the message ends earlier, but the end is noticed only now */
  assert_int_equal(ranks_test_sum(&ranks, &q, &done), CLI_OK);
  assert_true(done);
  assert_int_equal(ranks_wait_sum(&ranks, &q), CLI_OK);
  expect_equal(count.meter.sent_ms, WIRE + 13);
  expect_equal(ng_meter_hidden(&count.meter), 4 + 13);
  t.start = NULL; /* without `start` the collective blocks */
  t.wait = NULL;
  assert_int_equal(ranks_start_sum(&ranks, x, 5, &q), CLI_OK);
  assert_int_equal(ranks_wait_sum(&ranks, &q), CLI_OK);
  expect_equal(count.meter.sent_ms, WIRE + 13 + SMALL);
  expect_equal(ng_meter_hidden(&count.meter), 4 + 13);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(reports_of_all_ranks_are_gathered),
                                     cmocka_unit_test(hidden_time_follows_the_clock)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
