/* overhead.c: choose stat_period and solve_period from measured times (option overhead).
 *
 * In: the times of the first NG_MEASURED_STEPS counted steps.  Out: new periods, equal on all ranks.
 *
 * Each rank computes medians, because a checkpoint or a test of the caller makes single steps long.  The ranks sum the
 * medians in `agree` of the last measured step, so all ranks choose the same periods. */
#include "step/step.h"

#include <stdlib.h>

static const int64_t periods[] = {1, 2, 5, 10, 20, 50, 100};
enum { PERIODS = sizeof periods / sizeof periods[0] };

/* ---- the choice ------------------------------------------------------------------------------*/

/* Return the shortest period, at least `least`, with which `cost` stays below `most` in the mean. */
static int64_t find_period(double cost, double most, int64_t least) {
  int i = 0;
  while (i < PERIODS - 1 && (periods[i] < least || cost / (double)periods[i] > most))
    i++;
  return periods[i];
}

/* Statistics get half of the time that the rest leaves, solves get what statistics leave, and statistics then get what
 * solves leave.  A solve without new statistics is useless, so solve_period is not shorter than stat_period. */
ng_periods ng_choose_periods(const double cost[NG_COSTS], double share, ng_periods now,
                             bool stat_is_free, bool solve_is_free) {
  const double statistics = cost[NG_COST_STATISTICS], solve = cost[NG_COST_SOLVE];
  const double most = share * cost[NG_COST_CALLER] - cost[NG_COST_REST];
  ng_periods to = now;
  if (stat_is_free)
    to.stat =
        find_period(statistics, solve_is_free ? most / 2 : most - solve / (double)now.solve, 1);
  if (!solve_is_free) return to;
  to.solve = find_period(solve, most - statistics / (double)to.stat, to.stat);
  if (stat_is_free) to.stat = find_period(statistics, most - solve / (double)to.solve, 1);
  return to;
}

/* ---- times -----------------------------------------------------------------------------------*/

static bool is_measuring(const ng_precond *p) {
  return p->opt.base.overhead > 0.0 && p->steps < NG_MEASURED_STEPS;
}

void ng_overhead_begin(ng_precond *p) {
  ng_overhead *o = &p->step->overhead;
  if (!is_measuring(p)) return;
  o->began = ng_now_ms();
  o->observed = 0.0;
  for (int32_t i = 0; i < p->blocks; i++) {
    o->observed += p->block[i]->step_observe_ms;
  }
  o->has_statistics = ng_any_block(p, ng_block_statistics_due);
}

static void add_sample(ng_overhead *o, ng_cost cost, double ms) {
  if (o->samples[cost] < NG_MEASURED_STEPS) o->ms[cost][o->samples[cost]++] = ms;
}

/* Add the times of the step that ends. */
static void measure_step(ng_precond *p, double now) {
  ng_overhead *o = &p->step->overhead;
  const ng_station_time *t = p->step->time;
  const double statistics = o->has_statistics ? t[NG_AT_STATISTICS].last_ms : 0.0;
  const double solve = p->step->is_solving ? t[NG_AT_SOLVE].last_ms + t[NG_AT_SHARE].last_ms : 0.0;
  if (o->ended > 0.0) add_sample(o, NG_COST_CALLER, o->began - o->ended - o->observed);
  if (o->has_statistics) add_sample(o, NG_COST_STATISTICS, o->observed + statistics);
  if (p->step->is_solving) add_sample(o, NG_COST_SOLVE, solve);
  add_sample(o, NG_COST_REST, now - o->began - statistics - solve);
  o->ended = now;
}

static int compare_reals(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void ng_overhead_write(const ng_precond *p, double x[NG_COSTS]) {
  const ng_overhead *o = &p->step->overhead;
  const bool is_last = is_measuring(p) && p->steps == NG_MEASURED_STEPS - 1;
  for (int i = 0; i < NG_COSTS; i++) {
    double sorted[NG_MEASURED_STEPS];
    const int32_t n = is_last ? o->samples[i] : 0;
    memcpy(sorted, o->ms[i], (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_reals);
    x[i] =
        n > 0
            ? sorted[(n - 1) / 2]
            : 0.0; /* with two samples, return the smaller one, because the caches were cold in the first step */
  }
}

/* `p->steps` includes the step that ends. */
void ng_overhead_end(ng_precond *p) {
  const double *cost = p->step->overhead.sum, share = p->opt.base.overhead;
  if (!(share > 0.0) || p->steps > NG_MEASURED_STEPS) return;
  measure_step(p, ng_now_ms());
  /* the caller's time is unknown, because a state was loaded before the last measured step */
  if (p->steps < NG_MEASURED_STEPS || !(cost[NG_COST_CALLER] > 0.0)) return;
  ng_options o = p->opt;
  const ng_periods now = {o.base.stat_period, o.base.solve_period};
  const ng_periods to = ng_choose_periods(cost, share, now, !o.given[NG_OPTION_stat_period],
                                          !o.given[NG_OPTION_solve_period]);
  o.base.stat_period = to.stat;
  o.base.solve_period = to.solve;
  ng_model_set_options(p, &o);
  ng_log(
      p->ctx, NG_LOG_INFO,
      "overhead: stat_period = %lld solve_period = %lld; of the caller's time: statistics = %.3g "
      "solve = %.3g rest = %.3g",
      (long long)to.stat, (long long)to.solve, cost[NG_COST_STATISTICS] / cost[NG_COST_CALLER],
      cost[NG_COST_SOLVE] / cost[NG_COST_CALLER], cost[NG_COST_REST] / cost[NG_COST_CALLER]);
}
