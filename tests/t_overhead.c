/* t_overhead.c: overhead > 0 chooses periods from measured times.  The choice is a table of costs.  Runs of the engine have
 * shares of 1e9 or 1e-9 of the caller's time, so their periods do not depend on the speed of the machine. */
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ranks.h"
#include "state_help.h"
#include "step/step.h"

/* ---- the choice ------------------------------------------------------------------------------*/

static const struct {
  double caller, statistics, solve, rest, share;
  ng_periods now;
  bool stat_is_free, solve_is_free;
  ng_periods want;
} choices[] = {
    {100, 1, 1, 1, 1, {1, 10}, true, true, {1, 1}},
    {100, 5, 100, 10, 0.3, {1, 10}, true, true, {1, 10}},  /* 5 + 100 / 10 + 10 <= 30 */
    {100, 40, 200, 10, 0.3, {1, 10}, true, true, {5, 20}}, /* 40 / 5 + 200 / 20 + 10 <= 30 */
    {100, 40, 0, 10, 0.3, {1, 10}, true, true, {2, 5}}, /* half: 5; the solve leaves time for 2 */
    /* the rest of the step alone is too long */
    {100, 1, 1, 50, 0.3, {1, 10}, true, true, {100, 100}},
    {100, 1e4, 1e6, 1, 0.3, {1, 10}, true, true, {100, 100}}, /* no period suffices */
    {100, 40, 200, 10, 0.3, {1, 10}, false, true, {1, 100}},
    {100, 40, 200, 10, 0.3, {1, 10}, true, false, {100, 10}},
    {100, 40, 100, 10, 0.3, {1, 10}, true, false, {5, 10}},
    {100, 40, 200, 10, 0.3, {3, 7}, false, false, {3, 7}},
};

static void the_shortest_periods_below_the_share_are_chosen(void **state) {
  for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
    const double cost[NG_COSTS] = {[NG_COST_CALLER] = choices[i].caller,
                                   [NG_COST_STATISTICS] = choices[i].statistics,
                                   [NG_COST_SOLVE] = choices[i].solve,
                                   [NG_COST_REST] = choices[i].rest};
    const ng_periods to = ng_choose_periods(cost, choices[i].share, choices[i].now,
                                            choices[i].stat_is_free, choices[i].solve_is_free);
    if (to.stat != choices[i].want.stat || to.solve != choices[i].want.solve)
      fail_msg("row %d: stat_period %d, solve_period %d", (int)i, (int)to.stat, (int)to.solve);
  }
}

/* ---- runs ------------------------------------------------------------------------------------*/

enum { BEFORE = NG_MEASURED_STEPS - 1, AFTER = NG_MEASURED_STEPS };

typedef struct course {
  const char *method, *set;
  ng_periods before, after; /* periods up to 19 counted steps; periods from 20 counted steps on */
} course;

static const course courses[] = {
    {"natgrad", "", {1, 10}, {1, 10}},
    {"natgrad", "overhead=1e9", {1, 10}, {1, 1}},
    {"natgrad", "overhead=1e-9", {1, 10}, {100, 100}},
    {"natgrad", "overhead=1e-9 solve_period=3", {1, 3}, {100, 3}},
    {"natgrad", "overhead=1e-9 stat_period=2", {2, 10}, {2, 100}},
    {"natgrad", "overhead=1e9 stat_period=2 solve_period=6", {2, 6}, {2, 6}},
    {"kaisa", "overhead=1e-9", {1, 1}, {100, 100}},
};

static bool has_periods(const sim *s, ng_periods want) {
  const ng_settings *o = &s->p->opt.base;
  return o->stat_period == want.stat && o->solve_period == want.solve &&
         s->p->block[0]->base.solve_period == want.solve;
}

/* Return NG_ERR_ARG if the periods of this rank are wrong. */
static ng_status run_course(int32_t rank, ng_transport *t, void *arg) {
  const course *c = arg;
  const sim_setup how = {.method = c->method, .set = c->set, .vary = SIM_SMALL};
  sim s;
  bool right = true;
  ng_status st = sim_open(&s, &how, t, NULL);
  for (int64_t i = 0; i < AFTER && st >= NG_OK; i++) {
    st = sim_step(&s, i);
    right = right && has_periods(&s, i < BEFORE ? c->before : c->after);
  }
  sim_close(&s);
  return st < NG_OK || right ? st : NG_ERR_ARG;
}

static void periods_change_once_on_all_ranks(void **state) {
  for (size_t i = 0; i < sizeof courses / sizeof courses[0]; i++) {
    for (int32_t ranks = 1; ranks <= 3; ranks += 2) {
      course c = courses[i];
      if (ranks_run(ranks, run_course, &c, NULL) < NG_OK)
        fail_msg("%s %s on %d ranks", c.method, c.set, (int)ranks);
    }
  }
}

/* The state has the chosen periods.  A state from before the choice leaves the choice to the run that loads it. */
static void a_resumed_run_has_the_periods(void **state) {
  static const sim_setup how = {.method = "natgrad", .set = "overhead=1e-9", .vary = SIM_SMALL};
  static const int32_t saved_after[] = {AFTER + 1, BEFORE - 3, BEFORE};
  static const ng_periods want[] = {{100, 100}, {100, 100}, {1, 10}};
  const path file = path_of("periods");
  for (int i = 0; i < 3; i++) {
    sim a, b;
    open_and_step(&a, &how, saved_after[i]);
    assert_int_equal(ng_save(a.p, file.text), NG_OK);
    open_and_step(&b, &how, 0);
    assert_int_equal(ng_load(b.p, file.text), NG_OK);
    for (int64_t t = saved_after[i]; t < AFTER + 3; t++)
      assert_true(sim_step(&b, t) >= NG_OK);
    /* no step of the caller was measured between a load after 19 steps and the choice */
    if (!has_periods(&b, want[i])) fail_msg("saved after %d steps", (int)saved_after[i]);
    sim_close(&b);
    sim_close(&a);
    assert_int_equal(unlink(file.text), 0);
  }
}

static void contradictions_are_refused(void **state) {
  static const char *const row[][2] = {
      {"overhead=0.3 refresh_tolerance=0.1", "refresh_tolerance"},
      {"overhead=-1", "overhead"},
      {"method=mfac overhead=0.3", "overhead"},
  };
  for (int i = 0; i < 3; i++) {
    fixture f;
    fixture_ok(&f, fixture_open(&f, "", NULL));
    ng_precond *p = NULL;
    fixture_fails(&f, ng_precond_create(f.ctx, row[i][0], &p), NG_ERR_ARG, row[i][1]);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_shortest_periods_below_the_share_are_chosen),
      cmocka_unit_test(periods_change_once_on_all_ranks),
      cmocka_unit_test(a_resumed_run_has_the_periods),
      cmocka_unit_test(contradictions_are_refused),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
