/* t_stale.c: refresh_tolerance above 0: the steps of refreshes, and PD between refreshes, on one rank, on several,
 * and after a resume.  t_stale_walks.c tests distances of averages.
 *
 * The layer is 1 x 1 without bias.  Each step has one sample, and stat_decay = 0, so A = a^2, G = g^2 and, with
 * damping_split = full, PD = D / ((A + lambda) (G + lambda)).  The oracle (stale_rule.h) applies the rule of SP-NGD to
 * these numbers. */
#include "fixture.h"
#include "folder.h"
#include "ranks.h"
#include "stale_rule.h"
#include "unit_test.h"

enum { RANKS = 2, STEPS = 40 };
#define SPLIT(how)                                                                                 \
  "method=natgrad clip=none stat_decay=0 damping=0.5 refresh_tolerance=0.1 damping_split=" how

/* ---- scripted steps --------------------------------------------------------------------------*/

/* Return whether the statistic is due at step t.  If so, the rule takes `now` as its average. */
static bool apply_rule(rule *r, int t, double now) {
  if (t < r->next) return false;
  (void)refresh_by_rule(r, t, &now, 1);
  return true;
}

/* The value of a script at step t: constant, a jump, a drift of 3 % per step, alternating. */
static double get_scripted_value(int which, int t) {
  const double value[] = {2, t < 17 ? 1 : 3, pow(1.03, t), 1 + t % 3};
  return value[which];
}

/* ---- the library -----------------------------------------------------------------------------*/

typedef struct test_run {
  int a, g; /* scripts of the input and of the output gradient */
  int32_t ranks;
  int from, to, bad; /* steps [from, to); step `bad` is tried first with a NaN; -1: none */
  const char *options, *save, *load;
  float P[RANKS][STEPS];
  ng_statistic_report reports[RANKS][STEPS][2];
  int32_t wanted[RANKS][STEPS];
  int64_t factors;
} test_run;

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  test_run *l = arg;
  fixture f;
  float D, x, y;
  const plane grad[2] = {plane_of(&D, 1, 1, NG_F32), {0}}, a = plane_of(&x, 1, 1, NG_F32),
              g = plane_of(&y, 1, 1, NG_F32);
  const fixture_how how = {.threads = 1, .transport = l->ranks > 1 ? t : NULL};
  ng_status st = fixture_open(&f, l->options, &how);
  if (st == NG_OK) st = fixture_add_linear(&f, "fc", grad, NULL);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK && l->load != NULL) st = ng_load(f.p, l->load);
  for (int s = l->from; s < l->to && st >= NG_OK; s++) {
    for (int bad = s == l->bad; bad >= 0 && st >= NG_OK; bad--) {
      x = (float)get_scripted_value(l->a, s);
      y = (float)get_scripted_value(l->g, s);
      D = bad ? NAN : (float)(s + 1);
      l->wanted[rank][s] = ng_wants(f.p, 0);
      st = fixture_begin_and_observe(&f, 1, 0, &a, &g);
      if (st == NG_OK) st = ng_step(f.p, 0.1);
      if (bad && st != NG_SKIPPED) return NG_ERR_ARG;
    }
    l->P[rank][s] = D;
    for (int k = 0; k < 2 && st >= NG_OK; k++) {
      l->reports[rank][s][k].struct_size = sizeof l->reports[0][0][0];
      st = ng_report_statistic(f.p, k, &l->reports[rank][s][k]);
    }
  }
  if (st >= NG_OK && l->save != NULL) st = ng_save(f.p, l->save);
  ng_report held = {.struct_size = sizeof held};
  if (st >= NG_OK && rank == 0 && ng_report_read(f.p, &held) == NG_OK) l->factors = held.factors;
  if (st < NG_OK) print_message("rank %d: %s\n", rank, fixture_message(&f));
  fixture_close(&f);
  return st;
}

static void run_all_steps(test_run *l) {
  if (l->options == NULL) l->options = SPLIT("full");
  if (l->to == 0) l->to = STEPS;
  const ng_status st = l->ranks > 1 ? ranks_run(l->ranks, run_rank, l, NULL) : run_rank(0, NULL, l);
  if (st != NG_OK) fail_msg("%s", ng_status_name(st));
}

/* A and G each follow the rule in every step from `from` on. */
static void expect_rule(const test_run *l, int from) {
  static rule A, G;
  A = G = initial_rule;
  const double lambda = 0.5;
  const bool pi = strstr(l->options, "damping_split=pi") != NULL;
  double on[2] = {lambda, lambda}; /* damping of the last solve of each side */
  int due[2] = {0, 0};
  for (int t = 0; t < l->to; t++) {
    const double a = get_scripted_value(l->a, t), g = get_scripted_value(l->g, t);
    const bool now[2] = {apply_rule(&A, t, a * a), apply_rule(&G, t, g * g)};
    const rule *r[2] = {&A, &G};
    due[0] += now[0];
    due[1] += now[1];
    if (pi && now[0]) on[0] = sqrt(lambda) * sqrt(A.x[0] / G.x[0]);
    if (pi && now[1]) on[1] = sqrt(lambda) / sqrt(A.x[0] / G.x[0]);
    if (t < from) continue;
    const double want = (t + 1) / ((A.x[0] + on[0]) * (G.x[0] + on[1]));
    for (int32_t rank = 0; rank < (l->ranks > 1 ? l->ranks : 1); rank++) {
      if (!(fabs((double)l->P[rank][t] - want) <= 1e-5 * want))
        fail_msg("step %d: %g, expected %g", t, (double)l->P[rank][t], want);
      assert_int_equal(l->wanted[rank][t], now[0] || now[1]);
      for (int k = 0; k < 2; k++) {
        const ng_statistic_report *s = &l->reports[rank][t][k];
        assert_string_equal(s->name, k == 0 ? "A" : "G");
        assert_int_equal(s->refreshed, due[k]);
        assert_int_equal(s->passed, t + 1 - due[k]);
        assert_int_equal(s->interval, r[k]->last);
        assert_int_equal(s->next, r[k]->next);
        assert_int_equal(s->bytes_sent, l->ranks > 1 ? 4 * due[k] : 0);
        assert_int_equal(s->bytes_passed, l->ranks > 1 ? 4 * (t + 1 - due[k]) : 0);
      }
    }
  }
}

/* ---- tests -----------------------------------------------------------------------------------*/

/* The intervals are 1, 1, and then the sum of the two previous intervals. */
static void constant_averages_get_growing_intervals(void **state) {
  static const int steps[] = {0, 1, 2, 4, 7, 12, 20, 33};
  rule r = initial_rule;
  ng_stale s = {.interval = 1, .previous_interval = 1};
  for (int t = 0, k = 0; t < STEPS; t++) {
    const bool due = apply_rule(&r, t, 5);
    assert_int_equal(due, k < 8 && steps[k] == t);
    k += due;
  }
  static const struct {
    ng_verdict verdict;
    int64_t next, last;
  } by[] = {{NG_UNLIKE, 1, 1},    {NG_LIKE_LAST, 2, 1},  {NG_LIKE_BOTH, 4, 2},
            {NG_LIKE_BOTH, 7, 3}, {NG_LIKE_LAST, 10, 3}, {NG_LIKE_BOTH, 16, 6},
            {NG_UNLIKE, 19, 3},   {NG_UNLIKE, 20, 1},    {NG_UNLIKE, 21, 1}};
  for (size_t k = 0; k < sizeof by / sizeof by[0]; k++) {
    ng_stale_advance(&s, by[k].verdict, s.next_refresh);
    assert_int_equal(s.next_refresh, by[k].next);
    assert_int_equal(s.interval, by[k].last);
  }
}

static void intervals_of_scripts_follow_the_rule(void **state) {
  for (int k = 0; k < 16; k++) {
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
      test_run l = {.a = k / 4, .g = k % 4, .ranks = ranks, .bad = -1};
      run_all_steps(&l);
      expect_rule(&l, 0);
    }
  }
}

/* With statistics = owner a rank does not store averages of other owners, but computes the same steps of refreshes.  A
 * side keeps its inverse, with the pi of its last solve, until its next refresh. */
static void owners_follow_the_rule_of_their_side(void **state) {
  static const struct {
    int32_t ranks;
    const char *options;
  } row[] = {{2, SPLIT("full statistics=owner grad_worker_fraction=0")},
             {2, SPLIT("full statistics=owner colocate=0 placement=round-robin")},
             {1, SPLIT("pi")},
             {2, SPLIT("pi statistics=owner colocate=0 placement=round-robin")}};
  for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
    test_run l = {.a = 1, .g = 2, .ranks = row[k].ranks, .bad = -1, .options = row[k].options};
    run_all_steps(&l);
    expect_rule(&l, 0);
  }
}

static void skipped_steps_leave_the_schedule(void **state) {
  for (int bad = 0; bad < 8; bad++) {
    test_run l = {.a = 0, .g = 0, .ranks = 1, .bad = bad, .to = 12},
             m = {.a = 0, .g = 0, .ranks = 1, .bad = -1, .to = 12};
    run_all_steps(&l);
    run_all_steps(&m);
    for (int t = 0; t < 12; t++) {
      assert_int_equal(l.reports[0][t][0].refreshed, m.reports[0][t][0].refreshed);
      assert_int_equal(l.reports[0][t][0].next, m.reports[0][t][0].next);
    }
  }
}

static void intervals_resume_from_a_state(void **state) {
  const char *file = in_folder("state");
  for (int at = 1; at < 30; at += 4) {
    test_run whole = {.a = 1, .g = 2, .ranks = 2, .bad = -1}, first = whole, second = whole;
    first.to = at;
    first.save = second.load = file;
    second.from = at;
    run_all_steps(&whole);
    run_all_steps(&first);
    run_all_steps(&second);
    expect_rule(&second, at);
    for (int32_t r = 0; r < 2; r++)
      assert_memory_equal(&second.P[r][at], &whole.P[r][at], sizeof(float) * (size_t)(STEPS - at));
  }
}

/* refresh_tolerance adds one array to each of the two statistics; an array has 64 bytes here. */
static void report_counts_the_memory(void **state) {
  test_run l = {.ranks = 1, .bad = -1, .to = 2}, m = l;
  m.options = "method=natgrad clip=none stat_decay=0 damping_split=full";
  run_all_steps(&l);
  run_all_steps(&m);
  assert_int_equal(m.factors, 2 * 64);
  assert_int_equal(l.factors, 4 * 64);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(constant_averages_get_growing_intervals),
      cmocka_unit_test(intervals_of_scripts_follow_the_rule),
      cmocka_unit_test(owners_follow_the_rule_of_their_side),
      cmocka_unit_test(skipped_steps_leave_the_schedule),
      cmocka_unit_test(intervals_resume_from_a_state),
      cmocka_unit_test(report_counts_the_memory),
  };
  return cmocka_run_group_tests_name("stale", tests, make_folder, delete_folder);
}
