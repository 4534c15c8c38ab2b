/* t_plan_link.c: `natgrad plan --calibrate` measures latency and bandwidth.  The clock and the transport are fakes
 * whose calls take at least the times of the model, so the measurement must return the model's numbers. */
#include "unit_test.h"

#include <math.h>

#include "plan.h"

static double clock_ms;
double __wrap_ng_now_ms(void);
double __wrap_ng_now_ms(void) { return clock_ms; }

typedef struct wire {
  plan_machine truth;
  int32_t ranks, fails_at, calls;
} wire;

static ng_status run_slowly(void *user, const ng_collective *c) {
  wire *w = user;
  if (++w->calls == w->fails_at) return NG_ERR_COMM;
  const double bytes = (double)c->count * (c->dtype == NG_F64 ? 8 : 4);
  const double seconds = c->kind == NG_BROADCAST
                             ? plan_estimate_broadcast(&w->truth, w->ranks, bytes, 1)
                             : plan_estimate_sum(&w->truth, w->ranks, bytes, 1);
  /* simulated load: only one of four calls takes the model's time */
  clock_ms += 1e3 * seconds * (1 + w->calls % 4);
  return NG_OK;
}

static ng_transport make_transport(wire *w) {
  ng_transport t = {.struct_size = sizeof t, .size = 1};
  t.user = w;
  t.size = w->ranks;
  t.run = run_slowly;
  return t;
}

/* Other load only makes calls longer, so the shortest times count. */
static void link_fit_uses_the_shortest_times(void **state) {
  static const int32_t ranks[] = {2, 4, 6};
  for (int i = 0; i < 3; i++) {
    wire w = {.truth = {.bandwidth = 1e9, .latency = 1e-3}, .ranks = ranks[i]};
    plan_machine m = {1, 2, 3, 4};
    const ng_transport t = make_transport(&w);
    assert_int_equal(plan_measure_link(&t, &m), CLI_OK);
    assert_true(m.gemm == 1 && m.solve == 2);
    /* the fit ignores the 4 ns that one number of four bytes takes */
    assert_true(fabs(m.latency - 1e-3) < 1e-8);
    assert_true(fabs(m.bandwidth - 1e9) < 1e4);
  }
}

/* plan_fit_link inverts the model for every latency and bandwidth. */
static void fit_inverts_the_model(void **state) {
  for (int32_t ranks = 2; ranks < 70; ranks++) {
    for (int e = -7; e < -2; e++) {
      const plan_machine truth = {.bandwidth = 3e8 * ranks, .latency = pow(10, e)};
      plan_machine m;
      const double bytes = 1 << 24;
      plan_fit_link(ranks, plan_estimate_sum(&truth, ranks, 1e-9, 1),
                    plan_estimate_sum(&truth, ranks, bytes, 1), bytes, &m);
      assert_true(fabs(m.latency - truth.latency) < 1e-6 * truth.latency);
      assert_true(fabs(m.bandwidth - truth.bandwidth) < 1e-6 * truth.bandwidth);
    }
  }
}

static void measurement_fails_with_the_transport(void **state) {
  for (int at = 1; at < 212; at += 5) {
    wire w = {.truth = {.bandwidth = 1e12, .latency = 1e-9}, .ranks = 2, .fails_at = at};
    plan_machine m = {0};
    const ng_transport t = make_transport(&w);
    assert_int_equal(plan_measure_link(&t, &m), at > 210 ? CLI_OK : CLI_BAD);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(link_fit_uses_the_shortest_times),
      cmocka_unit_test(fit_inverts_the_model),
      cmocka_unit_test(measurement_fails_with_the_transport),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
