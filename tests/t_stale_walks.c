/* t_stale_walks.c: refresh_tolerance above 0, with averages that walk at random.
 *
 * The distance of two averages is computed in every stored form.  The oracle (stale_rule.h) applies the rule of SP-NGD
 * to whole matrices in double.  A step of a walk is about as long as the tolerance, so a wrong weight in one form
 * changes verdicts.  A walk ends when a distance is too close to the tolerance. */
#include "draw.h"
#include "fixture.h"
#include "kernels.h"
#include "linalg/linalg.h"
#include "stale_rule.h"
#include "unit_test.h"

#include <stdio.h>

enum { PARTS = 3 };

/* ---- one statistic ---------------------------------------------------------------------------*/

/* How a statistic is stored. */
typedef struct form {
  const char *name;
  bool symmetric;
  int64_t rows, cols, diagonal;
  int32_t parts;
  ng_dtype kept;
} form;

/* Write the stored part as a whole matrix in double; return the number of entries. */
static int64_t write_matrix(const form *f, const float *x, double *to) {
  const int64_t n = f->rows, C = f->cols - f->diagonal;
  if (f->symmetric) {
    for (int64_t i = 0; i < n * n; i++)
      to[i] = (double)x[ng_sym_at(n, i / n, i % n)];
    return n * n;
  }
  int64_t k = 0;
  for (int64_t i = 0; i < n * f->cols; i++)
    to[k++] = (double)x[i];
  for (int64_t i = 0; i < C && f->diagonal > 0; i++) /* a 2x2 unit stores one off-diagonal entry */
    to[k++] = (double)x[f->diagonal + i];
  return k;
}

/* Return whether stored entry i of a part is a diagonal entry of its matrix. */
static bool is_diagonal_entry(const form *f, int64_t i) {
  if (!f->symmetric) return f->diagonal == 0 || i < f->diagonal;
  for (int64_t k = 0; k < f->rows; k++) {
    if (ng_sym_at(f->rows, k, k) == i) return true;
  }
  return false;
}

typedef struct statistic {
  ng_stat s;
  ng_stat_part part[PARTS];
  float value[PARTS][DENSE]; /* rounded as stored */
  float average[PARTS][DENSE], older[PARTS][DENSE], scratch[PARTS * DENSE];
} statistic;

/* Change a statistic by the relative length `far`, in some entries (which = 0: all, 1: diagonal, 2: off the diagonal).
 * */
static void walk_at_random(statistic *b, const form *f, rng *r, int which, double far) {
  for (int32_t p = 0; p < f->parts; p++) {
    const int64_t n = ng_stat_part_count(&b->s, &b->part[p]);
    double d[DENSE], most = 0, of = 0;
    for (int64_t i = 0; i < n; i++) {
      d[i] = which == 0 || (which == 1) == is_diagonal_entry(f, i) ? rng_value(r) : 0;
      most += d[i] * d[i];
      of += (double)b->value[p][i] * (double)b->value[p][i];
    }
    for (int64_t i = 0; i < n && most > 0; i++)
      b->value[p][i] += (float)(far * sqrt(of / most) * d[i]);
    ng_from_f32(b->average[p], f->kept, b->value[p], n);
    ng_to_f32(b->value[p], b->average[p], f->kept, n);
  }
}

static int64_t write_matrices(const statistic *b, const form *f, double *to) {
  int64_t n = 0;
  for (int32_t p = 0; p < f->parts; p++)
    n += write_matrix(f, b->value[p], to + n);
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
    for (int64_t i = 0; i < DENSE; i++) /* the initial average does not count as a refresh */
      b.value[p][i] = (float)(1 + fabs(rng_value(r)));
  }
  walk_at_random(&b, f, r, 0, 0.01);
  assert_true(ng_stat_stale_scratch(&b.s) <= (int64_t)sizeof b.scratch);
  for (int t = 0; t < 12; t++) {
    double now[DENSE];
    ng_stat_copy_average(&q, &b.s, b.scratch);
    walk_at_random(&b, f, r, (int)rng_below(r, 3), 0.02 + 0.12 * rng_real(r));
    const int64_t n = write_matrices(&b, f, now);
    assert_true(n <= DENSE);
    ng_stat_compare(&q, &b.s, b.scratch);
    const ng_verdict verdict = refresh_by_rule(&want, t, now, n);
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
    for (int64_t trial = 0; trial < test_repetitions(40); trial++)
      compare_walk(&forms[k], &r, counts);
    for (int v = NG_UNLIKE; v <= NG_LIKE_BOTH; v++) {
      if (counts[v] < 5) fail_msg("%s: verdict %d only %d times", forms[k].name, v, counts[v]);
    }
  }
}

/* The first refresh has nothing to compare with, even if its samples are similar to the initial average. */
static void the_initial_average_is_no_refresh(void **state) {
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

enum { IN = 3, OUT = 2, C = 3, STEPS = 40 };

/* A linear layer, or a norm that observes its normalised input h: the rows of its statistic are [g h; g]. */
typedef struct kind {
  const char *options;
  bool norm, gamma, beta, full, diagonal;
} kind;

typedef struct samples {
  float x[STEPS][IN], g[STEPS][C];
} samples;

static void draw_samples(samples *s, rng *r) {
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

/* Write statistic i of the sample of step t as a whole matrix; return the number of entries. */
static int64_t write_sample_statistic(const kind *k, const samples *s, int t, int i, double *to) {
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
    const bool one_channel = a / n % C == a % n % C;
    const bool is_stored = !k->norm || k->full || a / n == a % n || (one_channel && !k->diagonal);
    to[a] = is_stored ? q[a / n] * q[a % n] : 0;
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

static void open_layer(fixture *f, const kind *k, float *grad) {
  char line[256];
  int32_t index;
  (void)snprintf(line, sizeof line, "%s clip=none damping=1 refresh_tolerance=0.1", k->options);
  fixture_ok(f, fixture_open(f, line, NULL));
  ng_layer l = layer_of(k->norm ? NG_NORM : NG_LINEAR, "layer", IN, k->norm ? 0 : OUT);
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

/* Both averages of a distance are f32: a few roundings of 6e-8 each. */
static const double CLOSE = 1e-5;

/* Fail unless a run follows the rule.  Return false if a distance is too close to the tolerance to decide. */
static bool compare_run(const kind *k, const samples *s, int *passed) {
  static rule want[2];
  static double average[2][DENSE];
  const double keep = strstr(k->options, "stat_decay=0.5") != NULL ? 0.5 : 0;
  const int stats = k->norm ? 1 : 2;
  float grad[2 * IN * OUT];
  bool is_clear = true;
  fixture f;
  open_layer(&f, k, grad);
  for (int i = 0; i < stats; i++)
    want[i] = initial_rule;
  for (int t = 0; t < STEPS && is_clear; t++) {
    observe_and_step(&f, k, s, t, grad);
    for (int i = 0; i < stats && is_clear; i++) {
      double X[DENSE];
      rule *w = &want[i];
      const int64_t n = write_sample_statistic(k, s, t, i, X);
      if (t >= w->next) {
        for (int64_t e = 0; e < n; e++)
          average[i][e] = w->refreshed == 0 ? X[e] : keep * average[i][e] + (1 - keep) * X[e];
        (void)refresh_by_rule(w, t, average[i], n);
      }
      is_clear = w->closest > CLOSE;
      ng_statistic_report r = {.struct_size = sizeof r};
      fixture_ok(&f, ng_report_statistic(f.p, i, &r));
      if (is_clear && (r.refreshed != w->refreshed || r.next != w->next || r.interval != w->last))
        fail_msg("%s, %s, step %d: refreshed %d times, next at %d, not %d, %d", k->options, r.name,
                 t, (int)r.refreshed, (int)r.next, w->refreshed, w->next);
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
    for (int64_t trial = 0; trial < test_repetitions(40); trial++) {
      samples s;
      draw_samples(&s, &r);
      is_clear += compare_run(&kinds[k], &s, &passed);
    }
    if (is_clear < test_repetitions(20) || passed < 20)
      fail_msg(
          "%s: %d runs stayed clear of the tolerance, expected %d; %d checks between refreshes, "
          "expected 20",
          kinds[k].options, is_clear, (int)test_repetitions(20), passed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(verdicts_match_the_formula),
      cmocka_unit_test(the_initial_average_is_no_refresh),
      cmocka_unit_test(intervals_follow_the_rule_of_SP_NGD),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
