/* t_unobserved.c: a statistic is due and no rank observes it.  The step uses the last average and returns
 * NG_UNOBSERVED on all ranks, with one message, one count for the model and one for each layer. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "fixture.h"
#include "ranks.h"

enum { B = 3, N = 2, LAYERS = 2, STEPS = 5, RANKS = 3 };
enum { AS_OTHERS, NOTHING, NO_B, NO_GRAD_B, EVERYTHING };

/* The observations of all ranks in each step, and of the last rank if they differ; the expected and actual results. */
typedef struct run_plan {
  const char *set;
  int32_t ranks;
  int all[STEPS], last[STEPS];
  ng_status want[STEPS];
  int64_t unobserved, layer[LAYERS]; /* expected in the end */
  ng_status got[RANKS][STEPS];
  int64_t counted[RANKS], counted_layer[RANKS][LAYERS];
  char message[RANKS][STEPS][256];
  float out[RANKS][STEPS][LAYERS][N * N];
} run_plan;

static ng_status observe_layers(fixture *f, int what) {
  float x[B * N] = {1, -2, 0.5f, 1, 3, -1}, y[B * N] = {0.5f, 1, -1, 2, 1, 1};
  const plane a = plane_of(x, B, N, NG_F32), g = plane_of(y, B, N, NG_F32);
  ng_status st = fixture_begin(f, B);
  for (int32_t i = 0; i < LAYERS && st == NG_OK && what != NOTHING; i++) {
    if (i == 1 && what == NO_B) continue;
    st = fixture_observe(f, i, &a, i == 1 && what == NO_GRAD_B ? NULL : &g);
  }
  return st;
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  run_plan *job = arg;
  fixture f;
  const fixture_how how = {.linalg = "ref", .threads = 1, .transport = job->ranks > 1 ? t : NULL};
  ng_status st = fixture_open(&f, job->set, &how);
  if (st == NG_OK) st = ng_add_linear(f.p, "a", N, N, 0, NULL);
  if (st == NG_OK) st = ng_add_linear(f.p, "b", N, N, 0, NULL);
  if (st == NG_OK) st = ng_ready(f.p);
  for (int s = 0; s < STEPS && st == NG_OK; s++) {
    for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
      float *d = job->out[rank][s][i];
      const plane v = plane_of(d, N, N, NG_F32);
      for (int k = 0; k < N * N; k++) {
        d[k] = (float)(k + 1 + i) * (k == 2 ? -0.25f : 0.25f);
      }
      st = fixture_bind(&f, i, NG_WEIGHT, &v, NULL);
    }
    const bool other = rank == job->ranks - 1 && job->last[s] != AS_OTHERS;
    const int what = other ? job->last[s] : job->all[s];
    if (st == NG_OK) st = observe_layers(&f, what);
    if (st != NG_OK) break;
    job->got[rank][s] = ng_step(f.p, 0.1);
    (void)snprintf(job->message[rank][s], sizeof job->message[0][0], "%s", ng_last_error(f.ctx));
  }
  ng_report r = {.struct_size = sizeof r};
  if (st == NG_OK) st = ng_report_read(f.p, &r);
  job->counted[rank] = r.unobserved;
  for (int32_t i = 0; i < LAYERS && st == NG_OK; i++) {
    ng_layer_report l = {.struct_size = sizeof l};
    st = ng_report_layer(f.p, i, &l);
    job->counted_layer[rank][i] = l.unobserved;
  }
  if (st != NG_OK) fprintf(stderr, "rank %d: %s\n", rank, ng_last_error(f.ctx));
  fixture_close(&f);
  return st;
}

static void expect_counts(run_plan *job) {
  assert_int_equal(ranks_run(job->ranks, run_rank, job, NULL), NG_OK);
  for (int32_t r = 0; r < job->ranks; r++) {
    for (int s = 0; s < STEPS; s++) {
      if (job->got[r][s] != job->want[s]) {
        fail_msg("%s, rank %d of %d, step %d: %s (%s), expected %s", job->set, r, job->ranks, s,
                 ng_status_name(job->got[r][s]), job->message[r][s], ng_status_name(job->want[s]));
      }
      const bool reported = strstr(job->message[r][s], "no rank observed them") != NULL;
      assert_true(reported == (job->want[s] == NG_UNOBSERVED));
    }
    assert_int_equal(job->counted[r], job->unobserved);
    for (int i = 0; i < LAYERS; i++) {
      assert_int_equal(job->counted_layer[r][i], job->layer[i]);
    }
    assert_memory_equal(job->out[r], job->out[0], sizeof job->out[0]);
  }
}

/* Each statistic counts alone, each layer once per step.  The observation of one rank is enough. */
static void unobserved_statistics_are_counted(void **state) {
  static const char *const set[] = {
      "method=natgrad solve_period=1", "method=eva",
      "method=natgrad solver=eigen damping_split=joint grad_worker_fraction=0 solve_period=1"};
  for (int k = 0; k < 3; k++) {
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
      run_plan all = {.set = set[k],
                      .ranks = ranks,
                      .all = {EVERYTHING, NO_B, NOTHING, NO_GRAD_B, EVERYTHING},
                      .want = {NG_OK, NG_UNOBSERVED, NG_UNOBSERVED, NG_UNOBSERVED, NG_OK},
                      .unobserved = 2 + 4 + 1,
                      .layer = {1, 3}};
      expect_counts(&all);
      assert_non_null(strstr(all.message[0][1], "ng_step: statistics of 'b' were due"));
      assert_non_null(strstr(all.message[0][1], "(layers: 1)"));
      assert_non_null(strstr(all.message[0][2], "statistics of 'a' and others were due"));
      /* the average of b stays: PD of steps 1 and 2 is the same */
      assert_memory_equal(all.out[0][1][1], all.out[0][2][1], sizeof all.out[0][1][1]);
      if (ranks == 1) continue;
      run_plan one = {.set = set[k],
                      .ranks = ranks,
                      .all = {NOTHING, NOTHING, NOTHING, EVERYTHING, NO_B},
                      .last = {EVERYTHING, NO_B, EVERYTHING, NOTHING, NO_B},
                      .want = {NG_OK, NG_UNOBSERVED, NG_OK, NG_OK, NG_UNOBSERVED},
                      .unobserved = 4,
                      .layer = {0, 2}};
      expect_counts(&one);
    }
  }
}

/* Only statistics that are due count; with sides = input, output gradients are never due.  With statistics = local,
 * only the samples of the owner count: rank 0 for a, rank 1 for b. */
static void only_due_statistics_count(void **state) {
  static const run_plan plans[] = {
      {.set = "method=natgrad stat_period=2 solve_period=2",
       .all = {EVERYTHING, NOTHING, NO_B, NOTHING, EVERYTHING},
       .want = {NG_OK, NG_OK, NG_UNOBSERVED, NG_OK, NG_OK},
       .unobserved = 2,
       .layer = {0, 1}},
      {.set = "method=eva-natgrad sides=input",
       .all = {NO_GRAD_B, NO_GRAD_B, NO_B, EVERYTHING, NO_GRAD_B},
       .want = {NG_OK, NG_OK, NG_UNOBSERVED, NG_OK, NG_OK},
       .unobserved = 1,
       .layer = {0, 1}},
      {.set = "method=natgrad statistics=local grad_worker_fraction=0",
       .all = {EVERYTHING, EVERYTHING, NOTHING, EVERYTHING, NO_B},
       .last = {EVERYTHING, NOTHING, EVERYTHING, EVERYTHING, EVERYTHING},
       .want = {NG_OK, NG_UNOBSERVED, NG_UNOBSERVED, NG_OK, NG_OK},
       .unobserved = 4,
       .layer = {1, 1}}};
  for (size_t k = 0; k < sizeof plans / sizeof plans[0]; k++) {
    run_plan job = plans[k];
    job.ranks = 2;
    expect_counts(&job);
  }
}

/* ---- together with another status ------------------------------------------------------------*/

typedef struct pair {
  fixture f;
  float d[LAYERS][N * N];
} pair;

static void open_pair(pair *m, const char *set) {
  fixture_ok(&m->f, fixture_open(&m->f, set, &(fixture_how){.linalg = "ref", .threads = 1}));
  for (int32_t i = 0; i < LAYERS; i++) {
    const plane v = plane_of(m->d[i], N, N, NG_F32);
    for (int k = 0; k < N * N; k++) {
      m->d[i][k] = (float)(k + 1);
    }
    fixture_ok(&m->f, ng_add_linear(m->f.p, i == 0 ? "a" : "b", N, N, 0, NULL));
    fixture_ok(&m->f, fixture_bind(&m->f, i, NG_WEIGHT, &v, NULL));
  }
  fixture_ok(&m->f, ng_ready(m->f.p));
}

/* A skipped step returns NG_SKIPPED and does not count unobserved statistics.  If a layer was never observed, the step
 * returns an error with its name. */
static void skips_and_errors_take_precedence(void **state) {
  pair m;
  open_pair(&m, "method=natgrad");
  assert_int_equal(observe_layers(&m.f, NO_B), NG_OK);
  fixture_fails(&m.f, ng_step(m.f.p, 0.1), NG_ERR_STATE, "layer 'b' was never observed");
  assert_int_equal(observe_layers(&m.f, EVERYTHING), NG_OK);
  assert_int_equal(ng_step(m.f.p, 0.1), NG_OK);
  m.d[0][1] = NAN;
  assert_int_equal(observe_layers(&m.f, NO_B), NG_OK);
  assert_int_equal(ng_step(m.f.p, 0.1), NG_SKIPPED);
  assert_int_equal(fixture_report(&m.f).unobserved, 0);
  fixture_close(&m.f);
}

/* The damping is so small that the average has no inverse in f32.  ng_step returns the larger of NG_RESCUED and
 * NG_UNOBSERVED, and the report counts both. */
static void rescues_and_unobserved_both_count(void **state) {
  pair m;
  ng_report r = {.struct_size = sizeof r};
  open_pair(&m, "method=natgrad damping=1e-30 damping_split=full clip=none solve_period=1");
  float x[B * N] = {1, 1, 1, 1, 1, 1}; /* all inputs are equal, so A has rank one */
  const plane a = plane_of(x, B, N, NG_F32);
  for (int s = 0; s < 3; s++) {
    const ng_status want = s == 0 ? NG_RESCUED : NG_UNOBSERVED;
    fixture_ok(&m.f, fixture_begin(&m.f, B));
    for (int32_t i = 0; i < (s == 0 ? LAYERS : 1); i++) {
      fixture_ok(&m.f, fixture_observe(&m.f, i, &a, &a));
    }
    const int64_t before = r.more_damping + r.in_double + r.kept_last + r.plain;
    assert_int_equal(ng_step(m.f.p, 0.1), want);
    r = fixture_report(&m.f);
    assert_true(r.more_damping + r.in_double + r.kept_last + r.plain > before);
    assert_int_equal(r.unobserved, 2 * s);
  }
  fixture_close(&m.f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unobserved_statistics_are_counted),
      cmocka_unit_test(only_due_statistics_count),
      cmocka_unit_test(skips_and_errors_take_precedence),
      cmocka_unit_test(rescues_and_unobserved_both_count),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
