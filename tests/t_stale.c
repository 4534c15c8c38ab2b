/* t_stale.c: refresh_tolerance above 0: the steps of refreshes, and PD between refreshes, on one rank, on several,
 * and after a resume.
 *
 * Scripted steps: the layer is 1 x 1 without bias, with one sample per step and stat_decay = 0, so A = a^2, G =
 * g^2 and, with damping_split = full, PD = D / ((A + lambda) (G + lambda)).  The oracle applies the rule of
 * stat/stale.h to these numbers.
 *
 * Random walks: the distance of two averages is tested in every stored form.  The oracle applies the rule to whole
 * matrices in double.  Steps of a walk are about as large as the tolerance, so a wrong weight in one form changes
 * verdicts.  A walk whose distance is within CLOSE of the tolerance is not compared. */
#include "draw.h"
#include "fixture.h"
#include "folder.h"
#include "kernels.h"
#include "linalg/linalg.h"
#include "ranks.h"
#include "stat/stat.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORDER = 40, DENSE = ORDER * ORDER, STORED = ORDER * ORDER, PARTS = 3, STEPS = 40 };
static const double TOLERANCE = 0.1;

/* ---- the oracle ------------------------------------------------------------------------------*/

static double relative_distance(const double *a, const double *b, int64_t n) {
  double d = 0, of = 0;
  for (int64_t i = 0; i < n; i++) {
    d += (a[i] - b[i]) * (a[i] - b[i]);
    of += b[i] * b[i];
  }
  return sqrt(d / of);
}

/* The rule on matrices of n entries: the last two refreshed averages and intervals. */
typedef struct rule {
  double x[DENSE], older[DENSE];
  int refreshed, next, last, before;
  double closest; /* smallest difference between a distance and the tolerance */
} rule;

static const rule initial_rule = {.last = 1, .before = 1, .closest = INFINITY};

static bool is_similar(rule *r, const double *now, const double *was, int64_t n) {
  const double d = relative_distance(now, was, n);
  r->closest = fmin(r->closest, fabs(d - TOLERANCE));
  return d < TOLERANCE;
}

static ng_verdict rule_refresh(rule *r, int t, const double *now, int64_t n) {
  const bool one = r->refreshed > 0 && is_similar(r, now, r->x, n),
             two = r->refreshed > 1 && is_similar(r, now, r->older, n);
  const int d = !one ? (r->last > 3 ? r->last / 2 : 1) : !two ? r->last : r->last + r->before;
  memcpy(r->older, r->x, sizeof r->x);
  memcpy(r->x, now, (size_t)n * sizeof *now);
  r->before = r->last;
  r->last = d;
  r->next = t + d;
  r->refreshed++;
  return !one ? NG_UNLIKE : !two ? NG_LIKE_LAST : NG_LIKE_BOTH;
}

/* ---- one statistic, by hand ------------------------------------------------------------------*/

typedef struct form {
  const char *name;
  bool symmetric;
  int64_t rows, cols, diagonal;
  int32_t parts;
  ng_dtype kept;
} form;

/* Write the stored part as a whole matrix in double; return the number of entries. */
static int64_t to_matrix(const form *f, const float *x, double *to) {
  const int64_t n = f->rows, C = f->cols - f->diagonal;
  if (f->symmetric) {
    for (int64_t i = 0; i < n * n; i++)
      to[i] = (double)x[ng_sym_at(n, i / n, i % n)];
    return n * n;
  }
  int64_t k = 0;
  for (int64_t i = 0; i < n * f->cols; i++)
    to[k++] = (double)x[i];
  for (int64_t i = 0; i < C && f->diagonal > 0;
       i++) /* both off-diagonal entries of each 2x2 unit */
    to[k++] = (double)x[f->diagonal + i];
  return k;
}

/* Return whether stored entry i of a part is a diagonal entry of its matrix. */
static bool on_diagonal(const form *f, int64_t i) {
  if (!f->symmetric) return f->diagonal == 0 || i < f->diagonal;
  for (int64_t k = 0; k < f->rows; k++) {
    if (ng_sym_at(f->rows, k, k) == i) return true;
  }
  return false;
}

typedef struct statistic {
  ng_stat s;
  ng_stat_part part[PARTS];
  float value[PARTS][STORED]; /* rounded as stored */
  float average[PARTS][STORED], older[PARTS][STORED], scratch[PARTS * STORED];
} statistic;

/* One step of the walk, of relative length `far`, on some entries (which = 0: all, 1: diagonal, 2: others). */
static void walk(statistic *b, const form *f, rng *r, int which, double far) {
  for (int32_t p = 0; p < f->parts; p++) {
    const int64_t n = ng_stat_part_count(&b->s, &b->part[p]);
    double d[STORED], most = 0, of = 0;
    for (int64_t i = 0; i < n; i++) {
      d[i] = which == 0 || (which == 1) == on_diagonal(f, i) ? rng_value(r) : 0;
      most += d[i] * d[i];
      of += (double)b->value[p][i] * (double)b->value[p][i];
    }
    for (int64_t i = 0; i < n && most > 0; i++)
      b->value[p][i] += (float)(far * sqrt(of / most) * d[i]);
    ng_from_f32(b->average[p], f->kept, b->value[p], n);
    ng_to_f32(b->value[p], b->average[p], f->kept, n);
  }
}

static int64_t to_matrices(const statistic *b, const form *f, double *to) {
  int64_t n = 0;
  for (int32_t p = 0; p < f->parts; p++)
    n += to_matrix(f, b->value[p], to + n);
  return n;
}

/* Count the verdicts of one walk; end the walk if a distance is too close to the tolerance. */
static void compare_walk(const form *f, rng *r, int counts[4]) {
  static statistic b;
  static rule want;
  ng_queue q = kernels_queue((int)rng_below(r, 4)); /* cpu or ref */
  memset(&b, 0, sizeof b);
  want = initial_rule;
  b.s = (ng_stat){
      .symmetric = f->symmetric,
      .average_dtype = f->kept,
      .parts = f->parts,
      .part = b.part,
      .has_average = true,
      .stale = {.enabled = true, .tolerance = TOLERANCE, .interval = 1, .previous_interval = 1}};
  for (int32_t p = 0; p < f->parts; p++) {
    b.part[p] = (ng_stat_part){.rows = f->rows,
                               .cols = f->cols,
                               .diagonal = f->diagonal,
                               .average = b.average[p],
                               .older = b.older[p]};
    for (int64_t i = 0; i < STORED;
         i++) /* the average before the first sample is no earlier refresh */
      b.value[p][i] = (float)(1 + fabs(rng_value(r)));
  }
  walk(&b, f, r, 0, 0.01);
  assert_true(ng_stat_stale_scratch(&b.s) <= (int64_t)sizeof b.scratch);
  for (int t = 0; t < 12; t++) {
    double now[DENSE];
    const int64_t n =
        (ng_stat_copy_average(&q, &b.s, b.scratch),
         walk(&b, f, r, (int)rng_below(r, 3), 0.02 + 0.12 * rng_real(r)), to_matrices(&b, f, now));
    assert_true(n <= DENSE);
    ng_stat_compare(&q, &b.s, b.scratch);
    const ng_verdict verdict = rule_refresh(&want, t, now, n);
    if (want.closest < 1e-9) return;
    if (b.s.stale.verdict != verdict)
      fail_msg("%s, refresh %d: verdict %d, not %d", f->name, t, b.s.stale.verdict, verdict);
    counts[verdict]++;
    ng_stale_advance(&b.s.stale, b.s.stale.verdict, t);
    assert_int_equal(b.s.stale.interval, want.last);
    assert_int_equal(b.s.stale.previous_interval, want.before);
    b.s.stale.refreshes++;
  }
}

static void verdicts_match_the_formula(void **state) {
  static const form forms[] = {{"triangle of 1", true, 1, 1, 0, 1, NG_F32},
                               {"triangle of 2", true, 2, 2, 0, 1, NG_F32},
                               {"triangle of 5", true, 5, 5, 0, 1, NG_BF16},
                               {"triangle of 40", true, 40, 40, 0, 1, NG_F32},
                               {"triangles of 6", true, 6, 6, 0, 3, NG_F32},
                               {"triangles of 9", true, 9, 9, 0, 2, NG_F16},
                               {"units of one channel", false, 1, 3, 2, 1, NG_F32},
                               {"units of 200", false, 1, 600, 400, 1, NG_F32},
                               {"units of 7", false, 1, 21, 14, 1, NG_BF16},
                               {"a diagonal", false, 1, 30, 30, 1, NG_F32},
                               {"a vector", false, 1, 513, 0, 1, NG_F16},
                               {"rows", false, 4, 5, 0, 2, NG_F32}};
  for (size_t k = 0; k < sizeof forms / sizeof forms[0]; k++) {
    rng r = {test_seed() + k};
    int counts[4] = {0};
    for (int64_t trial = 0; trial < test_times(40); trial++)
      compare_walk(&forms[k], &r, counts);
    for (int v = NG_UNLIKE; v <= NG_LIKE_BOTH; v++) {
      if (counts[v] < 5) fail_msg("%s: verdict %d only %d times", forms[k].name, v, counts[v]);
    }
  }
}

/* The rule compares with refreshed averages only, never with the initial average (such as the identity), however
 * similar the samples are. */
static void the_start_average_is_no_refresh(void **state) {
  ng_queue q = kernels_queue(0);
  float average[3] = {1, 0, 1}, older[3] = {0}, scratch[16];
  ng_stat_part part = {.rows = 1, .cols = 3, .diagonal = 2, .average = average, .older = older};
  ng_stat s = {.average_dtype = NG_F32,
               .parts = 1,
               .part = &part,
               .has_average = true,
               .stale = {.tolerance = 0.1}};
  static const ng_verdict want[] = {NG_UNLIKE, NG_LIKE_LAST, NG_LIKE_BOTH, NG_LIKE_BOTH};
  s.stale.enabled = true;
  for (int t = 0; t < 4; t++) {
    ng_stat_copy_average(&q, &s, scratch);
    average[0] += 0.001F;
    ng_stat_compare(&q, &s, scratch);
    assert_int_equal(s.stale.verdict, want[t]);
    s.stale.refreshes++;
  }
}

/* ---- through the library ---------------------------------------------------------------------*/

/* A layer of three inputs and two outputs, or a norm of three channels that observes its normalised input h; one
 * sample per step: q = [g h; g] of each. */
enum { IN = 3, OUT = 2, C = 3 };
typedef struct kind {
  const char *options;
  bool norm, gamma, beta, full, diagonal;
} kind;

typedef struct samples {
  float x[STEPS][IN], g[STEPS][C];
} samples;

static void draw(samples *s, rng *r) {
  for (int t = 0; t < STEPS; t++) {
    const double far = 0.3 * rng_real(r) * rng_real(r);
    for (int i = 0; i < IN; i++) {
      s->x[t][i] =
          t == 0 ? (float)(1 + rng_real(r)) : s->x[t - 1][i] * (float)(1 + far * rng_value(r) / 2);
      s->g[t][i] =
          t == 0 ? (float)(1 + rng_real(r)) : s->g[t - 1][i] * (float)(1 + far * rng_value(r) / 2);
    }
  }
}

/* Statistic i of one sample as a whole matrix. */
static int64_t sample_of(const kind *k, const samples *s, int t, int i, double *to) {
  double q[2 * C];
  int n = 0;
  if (!k->norm) {
    n = i == 0 ? IN : OUT;
    for (int j = 0; j < n; j++)
      q[j] = (double)(i == 0 ? s->x[t][j] : s->g[t][j]);
  }
  for (int j = 0; j < C && k->norm && k->gamma; j++)
    q[n++] = (double)s->g[t][j] * (double)s->x[t][j];
  for (int j = 0; j < C && k->norm && k->beta; j++)
    q[n++] = (double)s->g[t][j];
  for (int a = 0; a < n * n; a++) {
    const bool same = a / n % C == a % n % C; /* same channel */
    const bool there = !k->norm || k->full || a / n == a % n || (same && !k->diagonal);
    to[a] = there ? q[a / n] * q[a % n] : 0;
  }
  return n * n;
}

static void observe_and_step(fixture *f, const kind *k, const samples *s, int t, float *grad) {
  float x[IN], g[C];
  memcpy(x, s->x[t], sizeof x);
  memcpy(g, s->g[t], sizeof g);
  const ng_array in = ng_array_matrix(x, 1, IN, NG_F32),
                 out = ng_array_matrix(g, 1, k->norm ? C : OUT, NG_F32);
  for (int i = 0; i < IN * OUT; i++)
    grad[i] = 1;
  if (ng_wants(f->p, 0)) {
    fixture_ok(f, ng_begin_samples(f->p, 1, 1));
    if (!k->norm || k->gamma) fixture_ok(f, ng_observe_input(f->p, 0, &in, NG_BORROW));
    fixture_ok(f, ng_observe_output_grad(f->p, 0, &out, NG_COPY));
  }
  fixture_ok(f, ng_step(f->p, 0.1));
}

static void open_kind(fixture *f, const kind *k, float *grad) {
  char line[256];
  ng_layer l;
  int32_t index;
  (void)snprintf(line, sizeof line, "%s clip=none damping=1 refresh_tolerance=0.1", k->options);
  fixture_ok(f, fixture_open(f, line, NULL));
  ng_layer_init(&l, k->norm ? NG_NORM : NG_LINEAR, sizeof l);
  l.name = "it";
  l.in = IN;
  l.out = k->norm ? 0 : OUT;
  l.bias = k->beta;
  l.norm_no_weight = k->norm && !k->gamma;
  l.norm_kind = k->norm ? NG_BATCH_NORM : 0;
  l.norm_input = k->norm ? NG_NORM_NORMALISED : 0;
  if (k->norm) l.norm_eps = 1e-5;
  fixture_ok(f, ng_add_layer(f->p, &l, &index));
  const ng_array D[2] = {k->norm ? ng_array_vector(grad, C, NG_F32)
                                 : ng_array_matrix(grad, OUT, IN, NG_F32),
                         ng_array_vector(grad + C, C, NG_F32)};
  if (!k->norm || k->gamma) fixture_ok(f, ng_bind_grad(f->p, index, NG_WEIGHT, &D[0]));
  if (k->norm && k->beta) fixture_ok(f, ng_bind_grad(f->p, index, NG_BIAS, &D[1]));
  fixture_ok(f, ng_ready(f->p));
}

/* Averages are f32: a few roundings of 6e-8 in both averages of a comparison. */
enum { KEPT = 2 };
static const double CLOSE = 1e-5;

/* Return false if a distance is too close to the tolerance. */
static bool follows_the_rule(const kind *k, const samples *s, int *passed) {
  static rule want[KEPT];
  static double average[KEPT][DENSE];
  const double keep = strstr(k->options, "stat_decay=0.5") != NULL ? 0.5 : 0;
  const int stats = k->norm ? 1 : 2;
  float grad[2 * IN * OUT];
  bool is_clear = true;
  fixture f;
  open_kind(&f, k, grad);
  for (int i = 0; i < stats; i++)
    want[i] = initial_rule;
  for (int t = 0; t < STEPS && is_clear; t++) {
    observe_and_step(&f, k, s, t, grad);
    for (int i = 0; i < stats && is_clear; i++) {
      double X[DENSE];
      rule *w = &want[i];
      const int64_t n = sample_of(k, s, t, i, X);
      if (t >= w->next) {
        for (int64_t e = 0; e < n; e++)
          average[i][e] = w->refreshed == 0 ? X[e] : keep * average[i][e] + (1 - keep) * X[e];
        (void)rule_refresh(w, t, average[i], n);
      }
      is_clear = w->closest > CLOSE;
      ng_statistic_report r = {.struct_size = sizeof r};
      fixture_ok(&f, ng_report_statistic(f.p, i, &r));
      if (is_clear && (r.refreshed != w->refreshed || r.next != w->next || r.interval != w->last))
        fail_msg("%s, %s, step %d: refreshed %d times, next %d; not %d, %d", k->options, r.name, t,
                 (int)r.refreshed, (int)r.next, w->refreshed, w->next);
      *passed += is_clear && t < w->next - 1;
    }
  }
  fixture_close(&f);
  return is_clear;
}

static void intervals_follow_the_rule_of_SP_NGD(void **state) {
  static const kind kinds[] = {
      {.options = "method=natgrad stat_decay=0.5"},
      {.options = "method=natgrad stat_decay=0"},
      {"method=natgrad stat_decay=0.5 norm_block=unit", true, true, true, false, false},
      {"method=natgrad stat_decay=0 norm_block=unit", true, true, true, false, false},
      {"method=natgrad stat_decay=0 norm_block=unit", true, true, false, false, false},
      {"method=natgrad stat_decay=0 norm_block=unit", true, false, true, false, false},
      {"method=natgrad stat_decay=0.5 norm_block=full", true, true, true, true, false},
      {"method=natgrad stat_decay=0 norm_block=full", true, true, false, true, false},
      {"method=natgrad stat_decay=0.5 norm_block=diagonal", true, true, true, false, true}};
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
    rng r = {test_seed() + k};
    int is_clear = 0, passed = 0;
    for (int64_t trial = 0; trial < test_times(40); trial++) {
      samples s;
      draw(&s, &r);
      is_clear += follows_the_rule(&kinds[k], &s, &passed);
    }
    if (is_clear < test_times(20) || passed < 20)
      fail_msg("%s: %d lives were sure, %d steps passed over", kinds[k].options, is_clear, passed);
  }
}

enum { RANKS = 2 };
#define SPLIT(how)                                                                                 \
  "method=natgrad clip=none stat_decay=0 damping=0.5 refresh_tolerance=0.1 damping_split=" how

/* ---- scripted steps --------------------------------------------------------------------------*/

/* Return whether the statistic is due at step t; then its average is `now`. */
static bool rule_step(rule *r, int t, double now) {
  if (t < r->next) return false;
  (void)rule_refresh(r, t, &now, 1);
  return true;
}

/* Scripts: constant; a jump; a drift of 3 % per step; alternating. */
static double script(int which, int t) {
  switch (which) {
  case 0:
    return 2;
  case 1:
    return t < 17 ? 1 : 3;
  case 2:
    return pow(1.03, t);
  default:
    return 1 + t % 3;
  }
}

/* ---- the library -----------------------------------------------------------------------------*/

typedef struct test_run {
  int a, g; /* scripts of the input and of the output gradient */
  int32_t ranks;
  int from, to, bad; /* bad: a step that is skipped first for a NaN; -1: none */
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
  if (st == NG_OK) st = fixture_linear(&f, "fc", grad, NULL);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK && l->load != NULL) st = ng_load(f.p, l->load);
  for (int s = l->from; s < l->to && st >= NG_OK; s++) {
    for (int bad = s == l->bad; bad >= 0 && st >= NG_OK; bad--) {
      x = (float)script(l->a, s);
      y = (float)script(l->g, s);
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
  if (st < NG_OK) print_message("rank %d: %s\n", rank, f.ctx ? ng_last_error(f.ctx) : f.message);
  fixture_close(&f);
  return st;
}

static void run(test_run *l) {
  if (l->options == NULL) l->options = SPLIT("full");
  if (l->to == 0) l->to = STEPS;
  const ng_status st = l->ranks > 1 ? ranks_run(l->ranks, run_rank, l, NULL) : run_rank(0, NULL, l);
  if (st != NG_OK) fail_msg("%s", ng_status_name(st));
}

/* Each step of a run follows the rule, for A and for G separately. */
static void expect_rule(const test_run *l, int from) {
  static rule A, G;
  A = G = initial_rule;
  const double lambda = 0.5;
  const bool pi = strstr(l->options, "damping_split=pi") != NULL;
  double on[2] = {lambda, lambda}; /* damping of the last solve of each side */
  int due[2] = {0, 0};
  for (int t = 0; t < l->to; t++) {
    const double a = script(l->a, t), g = script(l->g, t);
    const bool now[2] = {rule_step(&A, t, a * a), rule_step(&G, t, g * g)};
    const rule *r[2] = {&A, &G};
    due[0] += now[0];
    due[1] += now[1];
    if (pi && now[0]) on[0] = sqrt(lambda) * sqrt(A.x[0] / G.x[0]);
    if (pi && now[1]) on[1] = sqrt(lambda) / sqrt(A.x[0] / G.x[0]);
    if (t < from) continue;
    const double want = (t + 1) / ((A.x[0] + on[0]) * (G.x[0] + on[1]));
    for (int32_t rank = 0; rank < (l->ranks > 1 ? l->ranks : 1); rank++) {
      if (!(fabs((double)l->P[rank][t] - want) <= 1e-5 * want))
        fail_msg("step %d: %g, not %g", t, (double)l->P[rank][t], want);
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

/* Constant: intervals 1, 1, then sums of two: steps 0, 1, 2, 4, 7, 12, 20, 33. */
static void refresh_steps_by_hand(void **state) {
  static const int steps[] = {0, 1, 2, 4, 7, 12, 20, 33};
  rule r = initial_rule;
  ng_stale s = {.interval = 1, .previous_interval = 1};
  for (int t = 0, k = 0; t < STEPS; t++) {
    const bool due = rule_step(&r, t, 5);
    assert_int_equal(due, k < 8 && steps[k] == t);
    k += due;
  }
  /* ng_stale_advance with given verdicts */
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

static void intervals_of_scripted_changes(void **state) {
  for (int k = 0; k < 16; k++) {
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
      test_run l = {.a = k / 4, .g = k % 4, .ranks = ranks, .bad = -1};
      run(&l);
      expect_rule(&l, 0);
    }
  }
}

/* With statistics = owner a rank stores no average of the other owner's statistic, but follows the same rule.  A
 * side that is not refreshed keeps its inverse with the pi of its last solve. */
static void owners_and_sides(void **state) {
  static const struct {
    int32_t ranks;
    const char *options;
  } row[] = {{2, SPLIT("full statistics=owner grad_worker_fraction=0")},
             {2, SPLIT("full statistics=owner colocate=0 placement=round-robin")},
             {1, SPLIT("pi")},
             {2, SPLIT("pi statistics=owner colocate=0 placement=round-robin")}};
  for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
    test_run l = {.a = 1, .g = 2, .ranks = row[k].ranks, .bad = -1, .options = row[k].options};
    run(&l);
    expect_rule(&l, 0);
  }
}

/* A step that is skipped after a refresh does not refresh again, and the schedule stays. */
static void skipped_steps(void **state) {
  for (int bad = 0; bad < 8; bad++) {
    test_run l = {.a = 0, .g = 0, .ranks = 1, .bad = bad, .to = 12},
             m = {.a = 0, .g = 0, .ranks = 1, .bad = -1, .to = 12};
    run(&l);
    run(&m);
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
    run(&whole);
    run(&first);
    run(&second);
    expect_rule(&second, at);
    for (int32_t r = 0; r < 2; r++)
      assert_memory_equal(&second.P[r][at], &whole.P[r][at], sizeof(float) * (size_t)(STEPS - at));
  }
}

/* refresh_tolerance adds one array per statistic; each of the two arrays has 64 bytes here. */
static void memory_is_counted(void **state) {
  test_run l = {.ranks = 1, .bad = -1, .to = 2}, m = l;
  m.options = "method=natgrad clip=none stat_decay=0 damping_split=full";
  run(&l);
  run(&m);
  assert_int_equal(m.factors, 2 * 64);
  assert_int_equal(l.factors, 4 * 64);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(verdicts_match_the_formula),
      cmocka_unit_test(the_start_average_is_no_refresh),
      cmocka_unit_test(intervals_follow_the_rule_of_SP_NGD),
      cmocka_unit_test(refresh_steps_by_hand),
      cmocka_unit_test(intervals_of_scripted_changes),
      cmocka_unit_test(owners_and_sides),
      cmocka_unit_test(skipped_steps),
      cmocka_unit_test(intervals_resume_from_a_state),
      cmocka_unit_test(memory_is_counted),
  };
  return cmocka_run_group_tests_name("stale", tests, make_folder, delete_folder);
}
