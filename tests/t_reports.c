/* t_reports.c: reports against values computed independently: pi, dampings, inner and the clip factor from the
 * observed arrays; bytes from the matrix orders; times from a clock of the test; the stored form of a result from
 * its cost rule. */
#include "fixture.h"
#include "ranks.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Each call of the clock advances it by one millisecond. */
static _Thread_local double clock_ms;
double __wrap_ng_now_ms(void);
double __wrap_ng_now_ms(void) { return clock_ms += 1.0; }

enum { IN = 3, OUT = 2, SAMPLES = 4, COUNT = OUT * IN + OUT };

typedef struct report_run {
  fixture f;
  float grad[COUNT], d[COUNT]; /* weights, then biases; d: the gradient before the step */
  float a[SAMPLES * IN], g[SAMPLES * OUT];
} report_run;

static void open_layer(report_run *s, const char *options) {
  memset(s, 0, sizeof *s);
  for (int i = 0; i < OUT * IN; i++)
    s->d[i] = sinf((float)(3 * i + 1));
  for (int i = 0; i < OUT; i++)
    s->d[OUT * IN + i] = cosf((float)(5 * i + 2));
  for (int i = 0; i < SAMPLES * IN; i++)
    s->a[i] = 2.0f * sinf((float)(7 * i + 3));
  for (int i = 0; i < SAMPLES * OUT; i++)
    s->g[i] = 0.1f * cosf((float)(11 * i + 4));
  const plane grad[2] = {plane_of(s->grad, OUT, IN, NG_F32),
                         plane_of(s->grad + OUT * IN, 1, OUT, NG_F32)};
  fixture_ok(&s->f, fixture_open(&s->f, options, NULL));
  fixture_ok(&s->f, fixture_add_linear(&s->f, "fc", grad, NULL));
  fixture_ok(&s->f, ng_ready(s->f.p));
}

static void take_step(report_run *s, double lr, int calls) {
  const plane a = plane_of(s->a, SAMPLES, IN, NG_F32), g = plane_of(s->g, SAMPLES, OUT, NG_F32);
  memcpy(s->grad, s->d, sizeof s->d);
  for (int i = 0; i < calls; i++)
    fixture_ok(&s->f, fixture_begin_and_observe(&s->f, SAMPLES, 0, &a, &g));
  fixture_ok(&s->f, ng_step(s->f.p, lr));
}

static void expect_near(const char *what, double got, double expected) {
  /* intermediate results are f32 */
  if (!(fabs(got - expected) <= 1e-6 * fabs(expected)))
    fail_msg("%s is %.9g instead of %.9g", what, got, expected);
}

/* ---- numbers ---------------------------------------------------------------------------------*/

/* tr A / p with A = (1/B) sum a a', a ends with 1 for the bias; tr G / q with G = (1/B) sum delta delta', delta =
 * B g. */
static double compute_mean_a(const report_run *s) {
  double sum = SAMPLES;
  for (int i = 0; i < SAMPLES * IN; i++)
    sum += (double)s->a[i] * (double)s->a[i];
  return sum / SAMPLES / (IN + 1);
}
static double compute_mean_g(const report_run *s) {
  double sum = 0.0;
  for (int i = 0; i < SAMPLES * OUT; i++)
    sum += SAMPLES * SAMPLES * (double)s->g[i] * (double)s->g[i];
  return sum / SAMPLES / OUT;
}

static void pi_and_damping_follow_from_the_traces(void **state) {
  static const char *const split[] = {"pi", "full"};
  for (int full = 0; full < 2; full++) {
    char options[128];
    report_run s;
    (void)snprintf(options, sizeof options, "damping=0.04 solve_period=2 damping_split=%s",
                   split[full]);
    open_layer(&s, options);
    ng_layer_report r = fixture_layer_report(&s.f, 0);
    assert_true(r.pi == 0.0 && r.damping_a == 0.0 && r.damping_g == 0.0); /* no solve yet */
    const double pi = sqrt(compute_mean_a(&s) / compute_mean_g(&s));
    assert_true(pi > 1.5 || pi < 0.6);
    for (int k = 0; k < 2; k++) {
      take_step(&s, 0.1, 1);
      r = fixture_layer_report(&s.f, 0);
      expect_near("pi", r.pi, pi);
      expect_near("damping_a", r.damping_a, full == 1 ? 0.04 : 0.2 * pi);
      expect_near("damping_g", r.damping_g, full == 1 ? 0.04 : 0.2 / pi);
      fixture_ok(&s.f, ng_set(s.f.p, "damping", "0.09")); /* counts from the next solve on */
    }
    take_step(&s, 0.1, 1);
    r = fixture_layer_report(&s.f, 0);
    expect_near("damping_a", r.damping_a, full == 1 ? 0.09 : 0.3 * pi);
    expect_near("damping_g", r.damping_g, full == 1 ? 0.09 : 0.3 / pi);
    fixture_close(&s.f);
  }
}

/* A step leaves nu PD in the gradient. */
static void inner_and_clip_follow_from_the_gradients(void **state) {
  static const double kl[] = {0.001, 1000.0};
  for (int loose = 0; loose < 2; loose++) {
    char options[128];
    report_run s;
    (void)snprintf(options, sizeof options, "damping=0.04 clip=kl kl_clip=%g", kl[loose]);
    open_layer(&s, options);
    assert_true(fixture_report(&s.f).clip == 1.0 && fixture_report(&s.f).inner == 0.0 &&
                fixture_report(&s.f).d2 == 0.0 && fixture_report(&s.f).pd2 == 0.0);
    for (int k = 0; k < 3; k++) {
      const double lr = 0.5 + k;
      double inner = 0.0, d2 = 0.0, pd2 = 0.0; /* inner: nu <PD, D>, pd2: nu^2 |PD|^2 */
      take_step(&s, lr, 1);
      for (int i = 0; i < COUNT; i++) {
        inner += (double)s.grad[i] * (double)s.d[i];
        d2 += (double)s.d[i] * (double)s.d[i];
        pd2 += (double)s.grad[i] * (double)s.grad[i];
      }
      const ng_report r = fixture_report(&s.f);
      expect_near("d2", r.d2, d2);
      expect_near("pd2", r.pd2, pd2 / (r.clip * r.clip));
      expect_near("inner", r.inner, inner / r.clip);
      expect_near("clip", r.clip, fmin(1.0, sqrt(kl[loose] / (lr * lr * r.inner))));
      assert_true(loose == 1 ? r.clip == 1.0 : r.clip < 0.5);
      assert_true(r.steps == k + 1 && r.skipped == 0 && r.kept == 0 && r.unobserved == 0);
      assert_int_equal(fixture_layer_report(&s.f, 0).observations, 2 * (k + 1));
    }
    fixture_close(&s.f);
  }
}

/* ---- times -----------------------------------------------------------------------------------*/

/* Each observation, fold, phase of a solve and measure takes one millisecond, the time between two clock calls. */
static void expect_times(const char *options, double solve_ms, double measure_ms) {
  report_run s;
  open_layer(&s, options);
  double sum[32] = {0.0};
  int64_t runs[32] = {0};
  for (int k = 0; k < 4; k++) {
    take_step(&s, 0.1, k % 2 == 0 ? 1 + k : 0);
    const ng_layer_report l = fixture_layer_report(&s.f, 0);
    /* the last time stays while no statistic is due */
    expect_near("observe_ms", l.observe_ms, k < 2 ? 2 + 1 : 2 * 3 + 1);
    expect_near("solve_ms", l.solve_ms, solve_ms);
    expect_near("measure_ms", l.measure_ms, measure_ms);
    for (int32_t i = 0; i < fixture_report(&s.f).stations; i++) {
      ng_station_report t = {.struct_size = sizeof t};
      assert_int_equal(ng_report_station(s.f.p, i, &t), NG_OK);
      const bool ran = t.runs > runs[i];
      assert_int_equal(t.runs - runs[i], ran);
      runs[i] = t.runs;
      if (ran) sum[i] += t.last_ms;
      expect_near(t.name, t.total_ms, sum[i]);
      if (!ran) continue;
      /* the station calls the clock before and after; its block and the tiles call it in between */
      const double inside = strcmp(t.name, "statistics") == 0 ? 2
                            : strcmp(t.name, "solve") == 0    ? 10
                            : strcmp(t.name, "measure") == 0  ? 6
                                                              : 0;
      expect_near(t.name, t.last_ms, 1 + inside);
      if (strcmp(t.name, "solve") == 0) assert_true(k == 0 && solve_ms > 0.0);
      if (strcmp(t.name, "statistics") == 0) assert_int_equal(k % 2, 0);
    }
  }
  fixture_close(&s.f);
}

/* Both methods enqueue work and read sums.  Eva also has the time of the tiles of all blocks. */
static void times_follow_the_clock(void **state) {
  expect_times("method=natgrad damping=0.04 stat_period=2 solve_period=4", 5, 2);
  expect_times("method=eva damping=0.04 stat_period=2", 0, 3);
}

/* ---- bytes -----------------------------------------------------------------------------------*/

static int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; } /* whole cache lines */
static int64_t triangle_bytes(int64_t n) { return round_up(4 * (n * (n + 1) / 2)); }
/* The average, the sum and the inverse of each side, and four words about each solve. */
static int64_t count_kronecker_bytes(int64_t p, int64_t q) {
  return 3 * (triangle_bytes(p) + triangle_bytes(q)) + 2 * round_up(4 * 4);
}
static int64_t count_rankone_bytes(int64_t p, int64_t q) {
  return 2 * (round_up(4 * p) + round_up(4 * q));
}

/* Rows of a convolution, an excluded layer, a tensor, and a linear layer without bias. */
static void explain_reports_memory(void **state) {
  static const struct {
    const char *name;
    int32_t index;
    /* p = 0: the row has no bytes, because they are in the row of the weight, or because there is no block */
    int64_t count, p, q;
    int32_t covered;
  } row[] = {{"conv.weight", 0, 5 * 3 * 9, 28, 5, 1},
             {"conv.bias", 0, 5, 0, 0, 1},
             {"out.weight", 1, 77, 0, 0, 0},
             {"out.bias", 1, 7, 0, 0, 0},
             {"scale", 2, 13, 0, 0, 0},
             {"fc.weight", 3, 300, 30, 10, 1}};
  enum { ROWS = sizeof row / sizeof row[0] };
  for (int rankone = 0; rankone < 2; rankone++) {
    fixture f;
    int64_t all = 0, moments = 0;
    fixture_ok(&f, fixture_open(&f,
                                rankone == 1 ? "method=eva; skip_layers=out update=adamw"
                                             : "skip_layers=out update=adamw gradient_rows=0",
                                NULL));
    fixture_ok(&f, plane_add_conv2d(f.p, "conv", 3, 5, 3, 1, 1, 6, 6, 1, NULL));
    fixture_ok(&f, ng_add_linear(f.p, "out", 11, 7, 1, NULL));
    fixture_ok(&f, ng_add_tensor(f.p, "scale", 13, NULL));
    fixture_ok(&f, ng_add_linear(f.p, "fc", 30, 10, 0, NULL));
    fixture_ok(&f, ng_ready(f.p));
    assert_int_equal(ng_explain_count(f.p), ROWS);
    for (int32_t i = 0; i < ROWS; i++) {
      ng_explain_row e = {.struct_size = sizeof e};
      assert_int_equal(ng_explain(f.p, i, &e), NG_OK);
      const int64_t held = row[i].p == 0  ? 0
                           : rankone == 1 ? count_rankone_bytes(row[i].p, row[i].q)
                                          : count_kronecker_bytes(row[i].p, row[i].q);
      assert_string_equal(e.name, row[i].name);
      assert_int_equal(e.index, row[i].index);
      assert_int_equal(e.count, row[i].count);
      assert_int_equal(e.covered, row[i].covered);
      assert_string_equal(e.family, !row[i].covered ? "none"
                                    : rankone == 1  ? "rankone"
                                                    : "kronecker");
      assert_int_equal(e.owner, row[i].covered ? 0 : -1);
      char why[64];
      (void)snprintf(why, sizeof why, "A %lldx%lld, G %lldx%lld", (long long)row[i].p,
                     (long long)row[i].p, (long long)row[i].q, (long long)row[i].q);
      if (rankone == 0 && row[i].p > 0) assert_string_equal(e.why, why);
      if (e.bytes != held)
        fail_msg("%s: %lld bytes instead of %lld", e.name, (long long)e.bytes, (long long)held);
      all += held;
      moments += 2 * round_up(4 * row[i].count);
    }
    const int64_t sides = rankone == 1 ? all / 2 : 0;
    const int64_t triangles =
        triangle_bytes(28) + triangle_bytes(5) + triangle_bytes(30) + triangle_bytes(10);
    const ng_report held = fixture_report(&f);
    assert_int_equal(held.factors, rankone == 1 ? sides : triangles);
    assert_int_equal(held.sums, rankone == 1 ? sides : triangles);
    assert_int_equal(held.results, rankone == 1 ? 0 : all - 2 * triangles);
    assert_int_equal(held.moments, moments);
    fixture_close(&f);
  }
}

/* Sums are sent when statistics are due, results when a block is solved. */
enum { SENT_STEPS = 4 };
typedef struct sent_bytes {
  int64_t sums[SENT_STEPS], share[SENT_STEPS], agree[SENT_STEPS];
} sent_bytes;

static ng_status record_sent_bytes(int32_t rank, ng_transport *t, void *arg) {
  report_run s;
  sent_bytes *out = (sent_bytes *)arg + rank;
  int64_t total[16] = {0};
  memset(&s, 0, sizeof s);
  const plane grad[2] = {plane_of(s.grad, OUT, IN, NG_F32),
                         plane_of(s.grad + OUT * IN, 1, OUT, NG_F32)};
  const plane a = plane_of(s.a, SAMPLES, IN, NG_F32), g = plane_of(s.g, SAMPLES, OUT, NG_F32);
  ng_status st = fixture_open(&s.f, "stat_period=2 solve_period=4 grad_worker_fraction=1",
                              &(fixture_how){.transport = t, .threads = 1});
  if (st == NG_OK) st = fixture_add_linear(&s.f, "fc", grad, NULL);
  if (st == NG_OK) st = ng_ready(s.f.p);
  for (int k = 0; k < SENT_STEPS && st == NG_OK; k++) {
    if (k % 2 == 0) st = fixture_begin_and_observe(&s.f, SAMPLES, 0, &a, &g);
    if (st == NG_OK) st = ng_step(s.f.p, 0.1);
    ng_report r = {.struct_size = sizeof r};
    if (st == NG_OK) st = ng_report_read(s.f.p, &r);
    for (int32_t i = 0; i < r.stations && st == NG_OK; i++) {
      ng_station_report one = {.struct_size = sizeof one};
      st = ng_report_station(s.f.p, i, &one);
      const int64_t now_sent = one.total_bytes - total[i];
      total[i] = one.total_bytes;
      /* last_bytes belong to the station's last run; a station that does not run adds nothing to total_bytes */
      if (st == NG_OK && now_sent != 0 && now_sent != one.last_bytes) st = NG_ERR_STATE;
      if (strcmp(one.name, "statistics") == 0) out->sums[k] = now_sent;
      if (strcmp(one.name, "share") == 0) out->share[k] = now_sent;
      if (strcmp(one.name, "agree") == 0) out->agree[k] = now_sent;
    }
  }
  fixture_close(&s.f);
  return st;
}

/* Sums: two triangles, the first in whole cache lines, to all ranks.  Results: the inverses of both sides, each
 * with the words about its solve, to the other rank. */
static void reported_bytes_were_sent(void **state) {
  sent_bytes got[2];
  memset(got, 0, sizeof got);
  assert_int_equal(ranks_run(2, record_sent_bytes, got, NULL), NG_OK);
  const int64_t sums = triangle_bytes(IN + 1) + 4 * (OUT * (OUT + 1) / 2), results = 4 * 64;
  for (int rank = 0; rank < 2; rank++) {
    for (int k = 0; k < SENT_STEPS; k++) {
      assert_int_equal(got[rank].sums[k], k % 2 == 0 ? sums : 0);
      assert_int_equal(got[rank].share[k], k == 0 ? results : 0);
      assert_true(got[rank].agree[k] > 0 && got[rank].agree[k] == got[0].agree[0]);
    }
  }
}

/* ---- the form of a result --------------------------------------------------------------------*/

/* solver = cholesky stores the Cholesky factor L instead of the inverse of order n, applied to m vectors per step,
 * if inverting costs more than the triangular solves: 2 n^3 / 3 > solve_period n^2 m.  The rows are at this bound and
 * just above. */
static void stored_forms_follow_the_cost_rule(void **state) {
  static const struct {
    int64_t in, out;
    int32_t bias, period;
    bool a, g; /* L is stored */
  } row[] = {{3, 2, 0, 1, false, false}, {4, 2, 0, 1, true, false},  {3, 2, 1, 1, true, false},
             {2, 3, 0, 1, false, false}, {2, 4, 0, 1, false, true},  {6, 2, 0, 2, false, false},
             {7, 2, 0, 2, true, false},  {2, 6, 0, 2, false, false}, {2, 7, 0, 2, false, true},
             {2, 9, 0, 3, false, false}, {1, 9, 1, 3, false, false}, {1, 10, 1, 3, false, true},
             {5, 5, 0, 1, false, false}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    char options[64];
    fixture f;
    int32_t found = 0;
    (void)snprintf(options, sizeof options, "solve_period=%d", row[i].period);
    fixture_ok(&f, fixture_open(&f, options, NULL));
    fixture_ok(&f, ng_add_linear(f.p, "fc", row[i].in, row[i].out, row[i].bias, NULL));
    fixture_ok(&f, ng_ready(f.p));
    for (int32_t k = 0; k < ng_state_count(f.p); k++) {
      ng_field_info info = {.struct_size = sizeof info};
      assert_int_equal(ng_state_at(f.p, k, &info), NG_OK);
      found += strcmp(info.name, row[i].a ? "fc/A_cholesky" : "fc/A_inverse") == 0;
      found += strcmp(info.name, row[i].g ? "fc/G_cholesky" : "fc/G_inverse") == 0;
    }
    if (found != 2)
      fail_msg("in %lld, out %lld, period %d: the state has %d of A_%s and G_%s",
               (long long)row[i].in, (long long)row[i].out, row[i].period, found,
               row[i].a ? "cholesky" : "inverse", row[i].g ? "cholesky" : "inverse");
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pi_and_damping_follow_from_the_traces),
      cmocka_unit_test(inner_and_clip_follow_from_the_gradients),
      cmocka_unit_test(times_follow_the_clock),
      cmocka_unit_test(explain_reports_memory),
      cmocka_unit_test(reported_bytes_were_sent),
      cmocka_unit_test(stored_forms_follow_the_cost_rule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
