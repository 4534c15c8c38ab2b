/* t_unobserved: a statistic was due and no rank showed it anything.  The step is done with the last average,
 * and says so: one status on all ranks, one line, one count for the model and one for each layer. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "ranks.h"

enum {
  B = 3,
  N = 2,
  LAYERS = 2,
  STEPS = 5,
  RANKS = 3,
  EVERYTHING = 0,
  NO_GRAD_B = 1,
  NO_B = 2,
  NOTHING = 3
};

/* Who shows what in a step: `all` ranks, but `one` (the last) if it is not -1. */
typedef struct plan {
  const char *set;
  int32_t ranks;
  int all[STEPS], one[STEPS];
  ng_status want[STEPS];
  int64_t unobserved, layer[LAYERS]; /* in the end */
  ng_status got[RANKS][STEPS];
  int64_t counted[RANKS], counted_layer[RANKS][LAYERS];
  char why[RANKS][STEPS][256];
  float out[RANKS][STEPS][LAYERS][N * N];
} plan;

static ng_status show(fixture *f, int what) {
  float x[B * N] = {1, -2, 0.5f, 1, 3, -1}, y[B * N] = {0.5f, 1, -1, 2, 1, 1};
  const plane a = plane_of(x, B, N, NG_F32), g = plane_of(y, B, N, NG_F32);
  ng_status st = fixture_begin(f, B);
  for (int32_t i = 0; i < LAYERS && st == NG_OK && what != NOTHING; i++) {
    if (i == 1 && what == NO_B) continue;
    st = fixture_observe(f, i, &a, i == 1 && what == NO_GRAD_B ? NULL : &g);
  }
  return st;
}

static ng_status live(int32_t rank, ng_transport *t, void *arg) {
  plan *job = arg;
  fixture f;
  int32_t index;
  const fixture_how how = {.linalg = "ref", .threads = 1, .transport = job->ranks > 1 ? t : NULL};
  ng_status st = fixture_open(&f, job->set, &how);
  if (st == NG_OK) st = ng_add_linear(f.p, "a", N, N, 0, &index);
  if (st == NG_OK) st = ng_add_linear(f.p, "b", N, N, 0, &index);
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
    const int what = job->one[s] >= 0 && rank == job->ranks - 1 ? job->one[s] : job->all[s];
    if (st == NG_OK) st = show(&f, what);
    if (st != NG_OK) break;
    job->got[rank][s] = ng_step(f.p, 0.1);
    (void)snprintf(job->why[rank][s], sizeof job->why[0][0], "%s", ng_last_error(f.ctx));
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

static void play(plan *job) {
  assert_int_equal(ranks_run(job->ranks, live, job, NULL), NG_OK);
  for (int32_t r = 0; r < job->ranks; r++) {
    for (int s = 0; s < STEPS; s++) {
      if (job->got[r][s] != job->want[s]) {
        fail_msg("%s, rank %d of %d, step %d: %s (%s), expected %s", job->set, r, job->ranks, s,
                 ng_status_name(job->got[r][s]), job->why[r][s], ng_status_name(job->want[s]));
      }
      const bool told = strstr(job->why[r][s], "no rank observed them") != NULL;
      assert_true(told == (job->want[s] == NG_UNOBSERVED));
    }
    assert_int_equal(job->counted[r], job->unobserved);
    for (int i = 0; i < LAYERS; i++) {
      assert_int_equal(job->counted_layer[r][i], job->layer[i]);
    }
    assert_memory_equal(job->out[r], job->out[0], sizeof job->out[0]);
  }
}

#define NOBODY_ELSE                                                                                \
  { -1, -1, -1, -1, -1 }

/* Each statistic counts by itself, each layer once a step; a rank that shows it is enough. */
static void test_counts(void **state) {
  static const char *const set[] = {
      "method=natgrad solve_period=1", "method=eva",
      "method=natgrad solver=eigen damping_split=joint grad_worker_fraction=0 solve_period=1"};
  for (int k = 0; k < 3; k++) {
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
      plan all = {.set = set[k],
                  .ranks = ranks,
                  .all = {EVERYTHING, NO_B, NOTHING, NO_GRAD_B, EVERYTHING},
                  .one = NOBODY_ELSE,
                  .want = {NG_OK, NG_UNOBSERVED, NG_UNOBSERVED, NG_UNOBSERVED, NG_OK},
                  .unobserved = 2 + 4 + 1,
                  .layer = {1, 3}};
      play(&all);
      assert_non_null(strstr(all.why[0][1], "ng_step: statistics of 'b' were due"));
      assert_non_null(strstr(all.why[0][1], "(layers: 1)"));
      assert_non_null(strstr(all.why[0][2], "statistics of 'a' and others were due"));
      /* the average stays: PD of step 2, which saw nothing, is that of step 1 for b */
      assert_memory_equal(all.out[0][1][1], all.out[0][2][1], sizeof all.out[0][1][1]);
      if (ranks == 1) continue;
      plan one = {.set = set[k],
                  .ranks = ranks,
                  .all = {NOTHING, NOTHING, NOTHING, EVERYTHING, NO_B},
                  .one = {EVERYTHING, NO_B, EVERYTHING, NOTHING, NO_B},
                  .want = {NG_OK, NG_UNOBSERVED, NG_OK, NG_OK, NG_UNOBSERVED},
                  .unobserved = 4,
                  .layer = {0, 2}};
      play(&one);
    }
  }
}

/* Not due, nothing to say; with sides = input the output gradient is nobody's business. */
static void test_not_due(void **state) {
  plan job = {.set = "method=natgrad stat_period=2 solve_period=2",
              .ranks = 2,
              .all = {EVERYTHING, NOTHING, NO_B, NOTHING, EVERYTHING},
              .one = NOBODY_ELSE,
              .want = {NG_OK, NG_OK, NG_UNOBSERVED, NG_OK, NG_OK},
              .unobserved = 2,
              .layer = {0, 1}};
  play(&job);
  plan input = {.set = "method=eva-natgrad sides=input",
                .ranks = 2,
                .all = {NO_GRAD_B, NO_GRAD_B, NO_B, EVERYTHING, NO_GRAD_B},
                .one = NOBODY_ELSE,
                .want = {NG_OK, NG_OK, NG_UNOBSERVED, NG_OK, NG_OK},
                .unobserved = 1,
                .layer = {0, 1}};
  play(&input);
}

/* statistics = local: the owner's samples are all there are, and those of others are not looked at. */
static void test_local(void **state) {
  plan job = {.set = "method=natgrad statistics=local grad_worker_fraction=0",
              .ranks = 2, /* a is of rank 0, b of rank 1 */
              .all = {EVERYTHING, EVERYTHING, NOTHING, EVERYTHING, NO_B},
              .one = {EVERYTHING, NOTHING, EVERYTHING, EVERYTHING, EVERYTHING},
              .want = {NG_OK, NG_UNOBSERVED, NG_UNOBSERVED, NG_OK, NG_OK},
              .unobserved = 4,
              .layer = {1, 1}};
  play(&job);
}

/* ---- beside other notes ----------------------------------------------------------------------*/

typedef struct pair {
  fixture f;
  float d[LAYERS][N * N];
} pair;

static void open_pair(pair *m, const char *set) {
  int32_t index;
  fixture_ok(&m->f, fixture_open(&m->f, set, &(fixture_how){.linalg = "ref", .threads = 1}));
  for (int32_t i = 0; i < LAYERS; i++) {
    const plane v = plane_of(m->d[i], N, N, NG_F32);
    for (int k = 0; k < N * N; k++) {
      m->d[i][k] = (float)(k + 1);
    }
    fixture_ok(&m->f, ng_add_linear(m->f.p, i == 0 ? "a" : "b", N, N, 0, &index));
    fixture_ok(&m->f, fixture_bind(&m->f, i, NG_WEIGHT, &v, NULL));
  }
  fixture_ok(&m->f, ng_ready(m->f.p));
}

static ng_report report(const pair *m) {
  ng_report r = {.struct_size = sizeof r};
  fixture_ok(&m->f, ng_report_read(m->f.p, &r));
  return r;
}

/* A skipped step is told as that, and counts for nothing; never observed is an error, by name. */
static void test_others_win(void **state) {
  pair m;
  open_pair(&m, "method=natgrad");
  assert_int_equal(show(&m.f, NO_B), NG_OK);
  assert_int_equal(ng_step(m.f.p, 0.1), NG_ERR_STATE);
  assert_non_null(strstr(ng_last_error(m.f.ctx), "layer 'b' was never observed"));
  assert_int_equal(show(&m.f, EVERYTHING), NG_OK);
  assert_int_equal(ng_step(m.f.p, 0.1), NG_OK);
  m.d[0][1] = NAN;
  assert_int_equal(show(&m.f, NO_B), NG_OK);
  assert_int_equal(ng_step(m.f.p, 0.1), NG_SKIPPED);
  assert_int_equal(report(&m).unobserved, 0);
  fixture_close(&m.f);
}

/* An average with no inverse in f32 at a damping so small: rescued.  The larger number is returned, the
 * report has both. */
static void test_with_rescued(void **state) {
  pair m;
  ng_report r = {.struct_size = sizeof r};
  open_pair(&m, "method=natgrad damping=1e-30 damping_split=full clip=none solve_period=1");
  float x[B * N] = {1, 1, 1, 1, 1, 1}; /* of rank one */
  const plane a = plane_of(x, B, N, NG_F32);
  for (int s = 0; s < 3; s++) {
    const ng_status want = s == 0 ? NG_RESCUED : NG_UNOBSERVED;
    fixture_ok(&m.f, fixture_begin(&m.f, B));
    for (int32_t i = 0; i < (s == 0 ? LAYERS : 1); i++) {
      fixture_ok(&m.f, fixture_observe(&m.f, i, &a, &a));
    }
    const int64_t before = r.more_damping + r.in_double + r.kept_last + r.plain;
    assert_int_equal(ng_step(m.f.p, 0.1), want);
    r = report(&m);
    assert_true(r.more_damping + r.in_double + r.kept_last + r.plain > before);
    assert_int_equal(r.unobserved, 2 * s);
  }
  fixture_close(&m.f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_counts),       cmocka_unit_test(test_not_due),
      cmocka_unit_test(test_local),        cmocka_unit_test(test_others_win),
      cmocka_unit_test(test_with_rescued),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
