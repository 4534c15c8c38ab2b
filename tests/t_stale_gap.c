/* t_stale_gap.c: stat_refresh = adaptive: how far apart two averages are, |A - B| and |B| of the matrices that they
 * stand for, in every form in which they are kept: triangles, units of 2x2, diagonals, vectors, several parts,
 * 16 bits.  The oracle writes the matrices out in double and follows the rule of stat/stale.h on them.
 *
 * Sequences are random walks whose steps are about as long as the tolerance, of all entries, of those on the diagonal
 * or of those beside it alone: a wrong weight of one of them turns verdicts over.  One that comes closer to the
 * tolerance than rounding could explain (CLOSE) is not asked about. */
#include "draw.h"
#include "fixture.h"
#include "linalg/linalg.h"
#include "stat/stat.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ORDER = 40, DENSE = ORDER * ORDER, STORED = ORDER * ORDER, PARTS = 3, STEPS = 40 };
static const double TOLERANCE = 0.1;

/* ---- the oracle ------------------------------------------------------------------------------*/

static double gap(const double *a, const double *b, int64_t n) {
  double d = 0, of = 0;
  for (int64_t i = 0; i < n; i++) {
    d += (a[i] - b[i]) * (a[i] - b[i]);
    of += b[i] * b[i];
  }
  return sqrt(d / of);
}

/* The rule on matrices of n entries: X1, X2 and the last two intervals. */
typedef struct rule {
  double x[DENSE], older[DENSE];
  int refreshed, next, last, before;
  double closest; /* to the tolerance, of all that was compared */
} rule;

static const rule begin = {.last = 1, .before = 1, .closest = INFINITY};

static bool like(rule *r, const double *now, const double *was, int64_t n) {
  const double d = gap(now, was, n);
  r->closest = fmin(r->closest, fabs(d - TOLERANCE));
  return d < TOLERANCE;
}

static ng_verdict rule_refresh(rule *r, int t, const double *now, int64_t n) {
  const bool one = r->refreshed > 0 && like(r, now, r->x, n),
             two = r->refreshed > 1 && like(r, now, r->older, n);
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

/* What a part stands for, from its stored numbers; how many entries. */
static int64_t written_out(const form *f, const float *x, double *to) {
  const int64_t n = f->rows, C = f->cols - f->diagonal;
  if (f->symmetric) {
    for (int64_t i = 0; i < n * n; i++)
      to[i] = (double)x[ng_sym_at(n, i / n, i % n)];
    return n * n;
  }
  int64_t k = 0;
  for (int64_t i = 0; i < n * f->cols; i++)
    to[k++] = (double)x[i];
  for (int64_t i = 0; i < C && f->diagonal > 0; i++) /* gamma beta is beta gamma, too */
    to[k++] = (double)x[f->diagonal + i];
  return k;
}

/* Entry i of a part is on the diagonal of what it stands for. */
static bool on_diagonal(const form *f, int64_t i) {
  if (!f->symmetric) return f->diagonal == 0 || i < f->diagonal;
  for (int64_t k = 0; k < f->rows; k++) {
    if (ng_sym_at(f->rows, k, k) == i) return true;
  }
  return false;
}

typedef struct by_hand {
  ng_stat s;
  ng_stat_part part[PARTS];
  float value[PARTS][STORED]; /* as stored */
  float average[PARTS][STORED], older[PARTS][STORED], scratch[PARTS * STORED];
} by_hand;

/* A step of the walk: those of `which` entries (0: all, 1: on the diagonal, 2: beside it), so far. */
static void walk(by_hand *b, const form *f, rng *r, int which, double far) {
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

static int64_t all_written_out(const by_hand *b, const form *f, double *to) {
  int64_t n = 0;
  for (int32_t p = 0; p < f->parts; p++)
    n += written_out(f, b->value[p], to + n);
  return n;
}

/* How often each verdict came; a walk too close to the tolerance is left where it is. */
static void one_walk(const form *f, rng *r, int seen[4]) {
  static by_hand b;
  static rule want;
  memset(&b, 0, sizeof b);
  want = begin;
  b.s = (ng_stat){.symmetric = f->symmetric,
                  .kept = f->kept,
                  .parts = f->parts,
                  .part = b.part,
                  .keeps = true,
                  .stale = {.on = true, .tolerance = TOLERANCE, .last = 1, .before = 1}};
  for (int32_t p = 0; p < f->parts; p++) {
    b.part[p] = (ng_stat_part){.rows = f->rows,
                               .cols = f->cols,
                               .diagonal = f->diagonal,
                               .average = b.average[p],
                               .older = b.older[p]};
    for (int64_t i = 0; i < STORED; i++) /* what an average was before its first sample is no X1 */
      b.value[p][i] = (float)(1 + fabs(rng_value(r)));
  }
  walk(&b, f, r, 0, 0.01);
  assert_true(ng_stat_stale_scratch(&b.s) <= (int64_t)sizeof b.scratch);
  for (int t = 0; t < 12; t++) {
    double now[DENSE];
    const int64_t n = (ng_stat_remember(&b.s, b.scratch),
                       walk(&b, f, r, (int)rng_below(r, 3), 0.02 + 0.12 * rng_real(r)),
                       all_written_out(&b, f, now));
    assert_true(n <= DENSE);
    ng_stat_judge(&b.s, b.scratch);
    const ng_verdict verdict = rule_refresh(&want, t, now, n);
    if (want.closest < 1e-9) return;
    if (b.s.stale.verdict != verdict)
      fail_msg("%s, refresh %d: verdict %d, not %d", f->name, t, b.s.stale.verdict, verdict);
    seen[verdict]++;
    ng_stale_advance(&b.s.stale, b.s.stale.verdict, t);
    assert_int_equal(b.s.stale.last, want.last);
    assert_int_equal(b.s.stale.before, want.before);
    b.s.stale.refreshed++;
  }
}

static void verdicts(void **state) {
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
  (void)state;
  for (size_t k = 0; k < sizeof forms / sizeof forms[0]; k++) {
    rng r = {test_seed() + k};
    int seen[4] = {0};
    for (int64_t trial = 0; trial < test_times(40); trial++)
      one_walk(&forms[k], &r, seen);
    for (int v = NG_UNLIKE; v <= NG_LIKE_BOTH; v++) {
      if (seen[v] < 5) fail_msg("%s: verdict %d only %d times", forms[k].name, v, seen[v]);
    }
  }
}

/* X1 and X2 are those of refreshes: what the average was before, the identity of some rows say, is neither, however
 * like it the samples are. */
static void starts(void **state) {
  float average[3] = {1, 0, 1}, older[3] = {0}, scratch[16];
  ng_stat_part part = {.rows = 1, .cols = 3, .diagonal = 2, .average = average, .older = older};
  ng_stat s = {
      .kept = NG_F32, .parts = 1, .part = &part, .keeps = true, .stale = {.tolerance = 0.1}};
  static const ng_verdict want[] = {NG_UNLIKE, NG_LIKE_LAST, NG_LIKE_BOTH, NG_LIKE_BOTH};
  (void)state;
  s.stale.on = true;
  for (int t = 0; t < 4; t++) {
    ng_stat_remember(&s, scratch);
    average[0] += 0.001F;
    ng_stat_judge(&s, scratch);
    assert_int_equal(s.stale.verdict, want[t]);
    s.stale.refreshed++;
  }
}

/* ---- through the library ---------------------------------------------------------------------*/

/* A layer of three inputs and two outputs, or a norm of three channels that is shown what it multiplies by gamma, one
 * sample a step: q = [g h; g] of each. */
enum { IN = 3, OUT = 2, C = 3 };
typedef struct kind {
  const char *options;
  bool norm, gamma, beta, full, diagonal;
} kind;

typedef struct script {
  float x[STEPS][IN], g[STEPS][C];
} script;

static void draw(script *s, rng *r) {
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

/* X of one sample, statistic i of the kind, as a whole matrix. */
static int64_t sample_of(const kind *k, const script *s, int t, int i, double *to) {
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
    const bool same = a / n % C == a % n % C; /* channel */
    const bool there = !k->norm || k->full || a / n == a % n || (same && !k->diagonal);
    to[a] = there ? q[a / n] * q[a % n] : 0;
  }
  return n * n;
}

static void show(fixture *f, const kind *k, const script *s, int t, float *grad) {
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
  (void)snprintf(line, sizeof line, "%s clip=none damping=1 stat_refresh=adaptive", k->options);
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

/* Averages are f32: a few roundings of 6e-8 each, in both of what is compared. */
enum { KEPT = 2 };
static const double CLOSE = 1e-5;

/* false: too close to say. */
static bool as_the_rule(const kind *k, const script *s, int *passed) {
  static rule want[KEPT];
  static double average[KEPT][DENSE];
  const double keep = strstr(k->options, "stat_decay=0.5") != NULL ? 0.5 : 0;
  const int stats = k->norm ? 1 : 2;
  float grad[2 * IN * OUT];
  bool sure = true;
  fixture f;
  open_kind(&f, k, grad);
  for (int i = 0; i < stats; i++)
    want[i] = begin;
  for (int t = 0; t < STEPS && sure; t++) {
    show(&f, k, s, t, grad);
    for (int i = 0; i < stats && sure; i++) {
      double X[DENSE];
      rule *w = &want[i];
      const int64_t n = sample_of(k, s, t, i, X);
      if (t >= w->next) {
        for (int64_t e = 0; e < n; e++)
          average[i][e] = w->refreshed == 0 ? X[e] : keep * average[i][e] + (1 - keep) * X[e];
        (void)rule_refresh(w, t, average[i], n);
      }
      sure = w->closest > CLOSE;
      ng_statistic_report r = {.struct_size = sizeof r};
      fixture_ok(&f, ng_report_statistic(f.p, i, &r));
      if (sure && (r.refreshed != w->refreshed || r.next != w->next || r.interval != w->last))
        fail_msg("%s, %s, step %d: refreshed %d times, next %d; not %d, %d", k->options, r.name, t,
                 (int)r.refreshed, (int)r.next, w->refreshed, w->next);
      *passed += sure && t < w->next - 1;
    }
  }
  fixture_close(&f);
  return sure;
}

static void lives(void **state) {
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
  (void)state;
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
    rng r = {test_seed() + k};
    int sure = 0, passed = 0;
    for (int64_t trial = 0; trial < test_times(40); trial++) {
      script s;
      draw(&s, &r);
      sure += as_the_rule(&kinds[k], &s, &passed);
    }
    if (sure < test_times(20) || passed < 20)
      fail_msg("%s: %d lives were sure, %d steps passed over", kinds[k].options, sure, passed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(verdicts),
      cmocka_unit_test(starts),
      cmocka_unit_test(lives),
  };
  return cmocka_run_group_tests_name("stale gap", tests, NULL, NULL);
}
