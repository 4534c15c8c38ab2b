/* t_overlap.c: messages under way while the rank computes, and their times in the report.
 *
 * The clock belongs to the test.  The transport simulates two identical ranks, so each sum is twice the data sent,
 * and takes the given times: WIRE or QUICK for a started message, SMALL for a blocking one; an observation takes
 * WORK. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>

#include "draw.h"
#include "fixture.h"
#include "step/step.h"

enum { B = 3, LAYERS = 2, STEPS = 3, WIRE = 10, QUICK = 2, SMALL = 2, WORK = 3, ROOM = 64 };

static double clock_ms, message_ms;
double __wrap_ng_now_ms(void);
double __wrap_ng_now_ms(void) { return clock_ms; }

/* ---- a slow wire ---------------------------------------------------------------------------------*/

typedef struct slow_wire {
  int under_way;
  double done_at[ROOM];
  int next;
} slow_wire;

static void sum_two_equal_ranks(const ng_collective *c) {
  if (c->kind != NG_ALL_REDUCE) return;
  for (int64_t i = 0; i < c->count; i++) {
    if (c->dtype == NG_F64) {
      ((double *)c->recv)[i] *= 2.0;
    } else {
      ((float *)c->recv)[i] *= 2.0F;
    }
  }
}

static ng_status run_on_wire(void *user, const ng_collective *c) {
  sum_two_equal_ranks(c);
  clock_ms += SMALL;
  return NG_OK;
}

static ng_status start_on_wire(void *user, const ng_collective *c, void **request) {
  slow_wire *s = user;
  sum_two_equal_ranks(c);
  double *at = &s->done_at[s->next++ % ROOM];
  *at = clock_ms + message_ms;
  *request = at;
  s->under_way++;
  return NG_OK;
}

static ng_status wait_for_wire(void *user, void *request) {
  const double *at = request;
  if (clock_ms < *at) clock_ms = *at;
  ((slow_wire *)user)->under_way--;
  return NG_OK;
}

static ng_status test_wire(void *user, void *request, int32_t *done) {
  const double *at = request;
  *done = clock_ms >= *at;
  ((slow_wire *)user)->under_way -= *done;
  return NG_OK;
}

/* ---- runs ----------------------------------------------------------------------------------------*/

typedef struct outcome {
  double sent, hidden;                       /* ms of the last step */
  double ms[NG_STATIONS], wait[NG_STATIONS]; /* ms of the last step */
  /* messages under way before and after the observation of the last array */
  int under_way_before_last, under_way_after_all;
} outcome;

static void take_step(fixture *f, const slow_wire *wire, int32_t last, float weight[LAYERS][20],
                      outcome *out) {
  static const int64_t width[LAYERS + 1] = {4, 5, 3};
  fixture_ok(f, fixture_begin_last(f, B, last));
  for (int k = 0; k < 2 * LAYERS; k++) {
    float x[B * 5];
    const bool grad = k >= LAYERS;
    const int i = grad ? 2 * LAYERS - 1 - k : k;
    const int64_t n = width[grad ? i + 1 : i];
    rng r = {test_seed() ^ (uint64_t)k};
    rng_fill(&r, x, B * n);
    clock_ms += WORK;
    if (k == 2 * LAYERS - 1) out->under_way_before_last = wire->under_way;
    const plane v = plane_of(x, B, n, NG_F32);
    fixture_ok(f, grad ? plane_observe_output_grad(f->p, i, &v, NG_COPY)
                       : plane_observe_input(f->p, i, &v, NG_COPY));
  }
  out->under_way_after_all = wire->under_way;
  for (int i = 0; i < LAYERS; i++) {
    const plane v = plane_of(weight[i], width[i + 1], width[i], NG_F32);
    fixture_ok(f, fixture_bind(f, i, NG_WEIGHT, &v, NULL));
  }
  fixture_ok(f, ng_step(f->p, 0.1));
}

static outcome run_model(const char *more, int32_t last, double takes, bool starts, bool tests) {
  fixture f;
  slow_wire wire = {0};
  outcome out = {0};
  char set[128];
  float weight[LAYERS][20];
  for (int i = 0; i < 20 * LAYERS; i++) {
    weight[i / 20][i % 20] = (float)(i % 7) - 3.0F;
  }
  const ng_transport t = {.struct_size = sizeof t,
                          .name = "slow",
                          .user = &wire,
                          .size = 2,
                          .run = run_on_wire,
                          .start = starts ? start_on_wire : NULL,
                          .wait = starts ? wait_for_wire : NULL,
                          .test = tests ? test_wire : NULL};
  (void)snprintf(set, sizeof set, "method=natgrad stat_period=1 solve_period=1 %s", more);
  clock_ms = 0;
  message_ms = takes;
  fixture_ok(&f,
             fixture_open(&f, set, &(fixture_how){.linalg = "ref", .threads = 1, .transport = &t}));
  fixture_ok(&f, ng_add_linear(f.p, "one", 4, 5, 0, NULL));
  fixture_ok(&f, ng_add_linear(f.p, "two", 5, 3, 0, NULL));
  fixture_ok(&f, ng_ready(f.p));
  for (int i = 0; i < STEPS; i++) {
    const ng_report before = fixture_report(&f);
    take_step(&f, &wire, last, weight, &out);
    const ng_report after = fixture_report(&f);
    out.sent = after.sent_ms - before.sent_ms;
    out.hidden = after.hidden_ms - before.hidden_ms;
  }
  for (int i = 0; i < NG_STATIONS; i++) {
    ng_station_report s = {.struct_size = sizeof s};
    fixture_ok(&f, ng_report_station(f.p, i, &s));
    out.ms[i] = s.last_ms;
    out.wait[i] = s.last_wait_ms;
    assert_true(s.total_wait_ms == STEPS * s.last_wait_ms);
  }
  fixture_close(&f);
  return out;
}

static void expect_equal(const char *what, double is, double want) {
  if (is != want) fail_msg("%s is %g, expected %g", what, is, want);
}

/* Layer two is complete before the last array is observed.  Its A and G are sent then, WORK earlier than A and
 * G of layer one, and the step begins at once.  `check` takes SMALL, so the statistics wait for the first two sums WIRE
 * - WORK - SMALL, for the others WORK more.  The results of both owners take WIRE together; `agree` follows. */
static void sums_travel_during_observations(void **state) {
  for (int tests = 0; tests < 2; tests++) {
    const outcome o = run_model("stat_bucket_mb=0", 1, WIRE, true, tests != 0);
    assert_int_equal(o.under_way_before_last, 2);
    assert_int_equal(o.under_way_after_all, 4);
    expect_equal("hidden", o.hidden, WORK);
    expect_equal("sent", o.sent, WIRE + WORK + WIRE + SMALL);
    expect_equal("check", o.wait[NG_AT_CHECK], SMALL);
    expect_equal("statistics", o.wait[NG_AT_STATISTICS], WIRE - SMALL);
    expect_equal("measure", o.wait[NG_AT_MEASURE], WIRE);
    expect_equal("agree", o.wait[NG_AT_AGREE], SMALL);
    expect_equal("time of statistics", o.ms[NG_AT_STATISTICS], WIRE - SMALL);
  }
}

/* Messages shorter than the work between two observations.  If the transport can test, the first two sums are
 * found complete at the next observation; otherwise they count as under way until the step waits for them.  The
 * other two are complete after `check`. */
static void quick_messages_are_hidden(void **state) {
  for (int tests = 0; tests < 2; tests++) {
    const outcome o = run_model("stat_bucket_mb=0", 1, QUICK, true, tests != 0);
    expect_equal("hidden", o.hidden, WORK);
    expect_equal("sent", o.sent, WORK + SMALL + QUICK + SMALL);
    expect_equal("statistics", o.wait[NG_AT_STATISTICS], 0);
  }
}

/* Nothing is hidden if all sums are one message, if no micro-batch has `last`, or if the transport has no `start`. */
static void blocking_messages_are_not_hidden(void **state) {
  const outcome whole = run_model("", 1, WIRE, true, true),
                late = run_model("stat_bucket_mb=0", 0, WIRE, true, true),
                stops = run_model("stat_bucket_mb=0", 1, WIRE, false, false);
  assert_int_equal(whole.under_way_before_last, 0);
  assert_int_equal(whole.under_way_after_all, 1);
  expect_equal("hidden, one message", whole.hidden, 0);
  expect_equal("sent, one message", whole.sent, WIRE + WIRE + SMALL);
  assert_int_equal(late.under_way_after_all, 0);
  expect_equal("hidden, in the step", late.hidden, 0);
  expect_equal("sent, in the step", late.sent, SMALL + WIRE + WIRE + SMALL);
  assert_int_equal(stops.under_way_after_all, 0);
  expect_equal("hidden, no start", stops.hidden, 0);
  expect_equal("sent, no start", stops.sent, (4 + 1 + 2 + 1) * SMALL);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(sums_travel_during_observations),
                                     cmocka_unit_test(quick_messages_are_hidden),
                                     cmocka_unit_test(blocking_messages_are_not_hidden)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
