/* plan_link.c: measure the link between ranks by all-reduces.
 *
 * plan_measure_link chooses latency and bandwidth so that the model of plan_cost.c predicts the shortest measured times
 * of two sums: of one number, and of 16 MB. All ranks call plan_measure_link, and get the result of rank 0. */
#include "clock.h"
#include "plan.h"
#include "train/ranks.h"

#include <math.h>
#include <stdlib.h>

enum { SMALL = 1, LARGE = 1 << 22, SMALL_TIMES = 200, LARGE_TIMES = 7 };

/* Return the shortest seconds of `times` sums of `count` numbers over the ranks; < 0: transport failed, reported. */
static double measure_shortest_sum(const run_ranks *ranks, float *x, int64_t count, int times) {
  double least = HUGE_VAL;
  for (int i = -1; i < times;
       i++) { /* the first sum (i = -1) also opens connections, so it does not count */
    const double t0 = ng_now_ms();
    if (ranks_sum_floats(ranks, x, count) != CLI_OK) return -1.0;
    const double seconds = 1e-3 * (ng_now_ms() - t0);
    if (i >= 0 && seconds < least) least = seconds;
  }
  return least;
}

/* The model of plan_estimate_sum uses the faster of two algorithms. For each algorithm, compute the bandwidth at which
 * it takes `large` seconds. At the smaller of both bandwidths, the faster algorithm takes exactly `large`. */
void plan_fit_link(int32_t ranks, double small, double large, double bytes, plan_machine *m) {
  const double W = ranks, steps = ceil(log2(W));
  m->latency = small / steps;
  const double halves = large - 2 * steps * m->latency, whole = large - steps * m->latency;
  const double by_halves = halves > 0 ? 2 * (W - 1) / W * bytes / halves : HUGE_VAL;
  const double by_whole = whole > 0 ? steps * bytes / whole : HUGE_VAL;
  m->bandwidth = by_halves < by_whole ? by_halves : by_whole;
}

int plan_measure_link(const ng_transport *t, plan_machine *m) {
  const run_ranks ranks = ranks_from_transport(t);
  float *x = cli_alloc(LARGE, sizeof *x);
  double least[2];
  least[0] = measure_shortest_sum(&ranks, x, SMALL, SMALL_TIMES);
  least[1] = least[0] < 0 ? -1.0 : measure_shortest_sum(&ranks, x, LARGE, LARGE_TIMES);
  free(x);
  if (least[1] < 0 || ranks_broadcast(&ranks, least, sizeof least) != CLI_OK) return CLI_BAD;
  plan_fit_link(t->size, least[0], least[1], 4.0 * LARGE, m);
  if (m->latency > 0 && isfinite(m->bandwidth)) return CLI_OK;
  return cli_fail("plan: --calibrate: the link is too fast to be measured");
}
