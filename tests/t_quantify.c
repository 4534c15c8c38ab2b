/* t_quantify.c: quantify = 1 against a plain sort in double: quartiles, minimum, maximum and mean of |PD / (D +
 * 1e-8)|, for every family, on several ranks, and the numbers of EFCP's own function.  Without preconditioned
 * blocks, PD is the direction that SGD or AdamW multiplies by lr.  The direction can be any number, so quartiles
 * are also tested on hard distributions. */
#include "unit_test.h"
#include "draw.h"
#include "fixture.h"
#include "ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- quartiles by a sort ---------------------------------------------------------------------*/

/* Draw numbers of nine orders of magnitude, and zeros. */
static float draw_of_many_magnitudes(int64_t at, int64_t i) {
  rng r = {(uint64_t)at * UINT64_C(0x9e3779b97f4a7c15) + test_seed()};
  const float x = (float)rng_value(&r);
  return i % 97 == 5 ? 0.0f : x * powf(10.0f, (float)(i % 9) - 4.0f);
}

static void expect_near(const char *name, const char *what, double got, double expected,
                        double allowed) {
  if (!(fabs(got - expected) <= allowed))
    fail_msg("%s: %s is %.17g instead of %.17g", name, what, got, expected);
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double compute_midpoint_quantile(const double *sorted, int64_t n, double q) {
  const double at = (double)(n - 1) * q;
  return (sorted[(int64_t)floor(at)] + sorted[(int64_t)ceil(at)]) / 2.0;
}

/* A quartile is the mean of the two values around (n - 1) q, numpy's "midpoint".  The library reports the middle of a
 * bin, off by 2^-18 of the value, or 2^-114 of tiny values.  `bits`: relative rounding of f32 in any value;
 * `near_zero`: absolute rounding of values near 0; `most`: relative error of the largest value. */
static void expect_quartiles(const char *name, const ng_report *r, double *x, int64_t n,
                             double bits, double near_zero, double most) {
  static const char *const what[] = {"25 %", "50 %", "75 %"};
  const double got[] = {r->scaling_25, r->scaling_50, r->scaling_75};
  qsort(x, (size_t)n, sizeof *x, compare_doubles);
  assert_int_equal(r->scaled, n);
  for (int k = 0; k < 3; k++) {
    const double q = compute_midpoint_quantile(x, n, 0.25 * (k + 1));
    expect_near(name, what[k], got[k], q, (0x1p-18 + bits) * q + 0x1p-114 + near_zero);
  }
  expect_near(name, "max", r->scaling_max, x[n - 1], most * x[n - 1] + near_zero);
}

static void expect_scaling_report(const char *name, const ng_report *r, double *x, int64_t n,
                                  double bits, double near_zero) {
  double sum = 0.0;
  expect_quartiles(name, r, x, n, bits, near_zero, bits);
  for (int64_t i = 0; i < n; i++)
    sum += x[i];
  expect_near(name, "min", r->scaling_min, x[0], bits * x[0] + near_zero);
  expect_near(name, "mean", r->scaling_mean, sum / (double)n,
              (bits + 1e-12) * sum / (double)n + near_zero);
}

/* ---- one run ---------------------------------------------------------------------------------*/

enum { SAMPLES = 8, TALL = 700, D = 37730, STEPS = 4, MOST = 3, PARTS = 3 };
static const fixture_entry layers[PARTS] = {
    {"fc1", 30, 40, true}, {"fc2", 50, 30, false}, {"fc3", TALL, 50, false}};
static const fixture_entry tensors[PARTS] = {
    {"short", 1, 3500, false}, {"bias", 1, 33, false}, {"long", 1, 34197, false}};

typedef struct test_run {
  const char *name, *options;
  double mu, decay, b1, b2, eps, lr;
  bool layers, nesterov, decoupled;
  /* misses: the first parameter has no gradient in this step, counted from 1; 0: in no step */
  int32_t threads, misses;
  float g[STEPS][D];
  /* of rank 0: weights before the last step; nu PD of layers after it */
  float before[D], P[D];
  float a[SAMPLES * TALL];
  ng_report report[MOST];
  char message[512];
} test_run;

static bool is_adamw(const test_run *l) { return strstr(l->options, "update=adamw") != NULL; }
static float initial_weight(const test_run *l, int64_t i) {
  return l->layers ? 0.0f : sinf((float)(i + 1));
}

static ng_status observe_layers(fixture *f, const test_run *l) {
  bool wants = false;
  for (int32_t i = 0; i < PARTS && l->layers; i++)
    wants = wants || ng_wants(f->p, i) != 0;
  ng_status st = wants ? fixture_begin(f, SAMPLES) : NG_OK;
  for (int32_t i = 0; i < PARTS && wants && st == NG_OK; i++) {
    const plane a = plane_of((void *)(uintptr_t)l->a, SAMPLES, layers[i].cols, NG_F32);
    const plane g = plane_of((void *)(uintptr_t)l->a, SAMPLES, layers[i].rows, NG_F32);
    st = fixture_observe(f, i, &a, &g);
  }
  return st;
}

static ng_status take_step(fixture *f, const test_run *l) {
  if (is_adamw(l)) {
    ng_adamw how;
    ng_adamw_init(&how, sizeof how);
    how.lr = l->lr;
    how.beta1 = l->b1;
    how.beta2 = l->b2;
    how.eps = l->eps;
    how.weight_decay = l->decay;
    return ng_step_adamw(f->p, &how, 1);
  }
  ng_sgd how = fixture_sgd(l->layers ? 1.0 : l->lr, l->mu);
  how.weight_decay = l->decay;
  how.nesterov = l->nesterov;
  how.decoupled = l->decoupled;
  return fixture_step(f, &how);
}

/* Weights of layers begin each step at 0 and move with lr 1, so a fused update leaves -nu PD. */
static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  test_run *l = arg;
  const fixture_how how = {.threads = l->threads, .transport = t};
  float *g = calloc(2 * D, sizeof *g), *w = g + D;
  fixture f;
  ng_status st = g == NULL ? NG_ERR_NOMEM : fixture_open(&f, l->options, &how);
  for (int64_t i = 0; i < D && st == NG_OK; i++)
    w[i] = initial_weight(l, i);
  if (st == NG_OK) st = fixture_add_entries(&f, l->layers ? layers : tensors, PARTS, g, w);
  if (st == NG_OK) st = ng_ready(f.p);
  for (int step = 0; step < STEPS && st == NG_OK; step++) {
    const plane own = plane_of(g, tensors[0].rows, tensors[0].cols, NG_F32);
    ng_array grad = array_of_plane(&own);
    memcpy(g, l->g[step], D * sizeof *g);
    if (l->layers) memset(w, 0, D * sizeof *w);
    if (step + 1 == l->misses) grad.data = NULL;
    if (l->misses > 0) st = ng_bind_grad(f.p, 0, NG_WEIGHT, &grad);
    if (rank == 0) memcpy(l->before, w, sizeof l->before);
    if (st == NG_OK) st = observe_layers(&f, l);
    if (st == NG_OK) st = take_step(&f, l);
  }
  const bool fused = strstr(l->options, "update=sgd") != NULL;
  l->report[rank] = (ng_report){.struct_size = sizeof l->report[rank]};
  if (st == NG_OK) st = ng_report_read(f.p, &l->report[rank]);
  for (int64_t i = 0; i < D && rank == 0 && g != NULL; i++)
    l->P[i] = fused ? -w[i] : g[i];
  if (st != NG_OK && rank == 0 && g != NULL)
    (void)snprintf(l->message, sizeof l->message, "%s", f.message);
  if (g != NULL) fixture_close(&f);
  free(g);
  return st;
}

/* The direction u of element i in the last step, in double.  Weight decay reads the weights before that step. */
static double compute_direction(const test_run *l, int64_t i) {
  double m = 0.0, v = 0.0, u = 0.0;
  int64_t updates = 0;
  for (int step = 0; step < STEPS; step++) {
    if (i < tensors[0].rows * tensors[0].cols && step + 1 == l->misses) continue;
    double g = (double)l->g[step][i];
    updates++;
    if (is_adamw(l)) {
      m = l->b1 * m + (1.0 - l->b1) * g;
      v = l->b2 * v + (1.0 - l->b2) * g * g;
      u = m / (1.0 - pow(l->b1, (double)updates)) /
          (sqrt(v / (1.0 - pow(l->b2, (double)updates))) + l->eps);
      continue;
    }
    if (!l->decoupled) g += l->decay * (double)l->before[i]; /* lr = 0: weights do not move */
    m = updates == 1 || l->mu == 0.0 ? g : l->mu * m + g;
    u = l->nesterov ? g + l->mu * m : m;
  }
  return u;
}

#define NATGRAD "method=natgrad damping=0.1 quantify=1 "
#define EVA "method=eva damping=0.1 quantify=1 "
#define MFAC "method=mfac window=4 damping=0.01 quantify=1 "
#define EFCP "method=efcp window=4 damping=0.01 quantify=1 "
#define OWNER " update=sgd update_ranks=owner"
#define SGD "update=sgd quantify=1 clip=none"
#define ADAMW "update=adamw quantify=1 clip=none"
static const test_run runs[] = {
    {.options = NATGRAD "clip=kl", .layers = true},
    {.options = NATGRAD "clip=kl grad_worker_fraction=0", .layers = true},
    {.options = NATGRAD "clip=kl" OWNER, .layers = true},
    {.options = NATGRAD "solver=product radius=0.5 clip=none", .layers = true},
    {.options = EVA, .layers = true},
    {.options = EVA OWNER, .layers = true},
    {.options = MFAC "clip=norm clip_bound=0.1", .layers = true},
    {.options = MFAC "statistics=sharded", .layers = true},
    {.options = MFAC "statistics=sharded" OWNER, .layers = true},
    {.options = EFCP "window_density=0.01", .layers = true},
    {.options = EFCP "window_density=0.4 update=sgd", .layers = true},
    {.name = "sgd", .options = SGD},
    {.name = "momentum", .options = SGD, .mu = 0.9},
    {.name = "nesterov", .options = SGD, .mu = 0.9, .nesterov = true},
    {.name = "decay", .options = SGD, .decay = 0.5, .mu = 0.5},
    {.name = "decoupled", .options = SGD, .decay = 0.5, .decoupled = true, .lr = 0.1},
    {"adamw", ADAMW, .b1 = 0.9, .b2 = 0.999, .eps = 1e-8, .lr = 1e-3, .decay = 0.1},
    {"adamw, lr 0", ADAMW, .b1 = 0.9, .b2 = 0.99, .eps = 1e-3},
    {"missed", ADAMW " missing=keep", .b1 = 0.9, .b2 = 0.99, .eps = 1e-8, .lr = 1e-3, .misses = 2},
    {"missed, sgd", SGD " missing=keep", .mu = 0.9, .misses = 1},
    {.name = "owner", .options = SGD " update_ranks=owner", .mu = 0.9},
};
enum { RUNS = sizeof runs / sizeof runs[0] };

static test_run *run_ranks(int which, int32_t ranks, int32_t threads) {
  test_run *l = malloc(sizeof *l);
  assert_non_null(l);
  *l = runs[which];
  if (l->layers) l->name = l->options;
  l->threads = threads;
  for (int64_t i = 0; i < STEPS * D; i++)
    l->g[i / D][i % D] = draw_of_many_magnitudes(i, i % D);
  for (int i = 0; i < SAMPLES * TALL; i++)
    l->a[i] = sinf((float)(i + 1));
  if (ranks_run(ranks, run_rank, l, NULL) != NG_OK) fail_msg("%s: %s", l->name, l->message);
  return l;
}

/* Tolerance.  PD of layers is rounded to f32, and again times nu: 1e-6 is enough.  If PD = D / damping - x and
 * both terms nearly cancel, then with damping 0.1 f32 is off by 2^-24 of 10 D in each, and r by twice that.
 * Updates have f32 moments, of which four may nearly cancel: 1e-5 of the largest r, where u is 1e-3 of its terms. */
static void expect_numbers_of_a_sort(const test_run *l, const ng_report *r) {
  static double x[D];
  double sum[3] = {0};
  for (int64_t i = 0; i < D; i++) {
    const double g = (double)l->g[STEPS - 1][i];
    const double u = l->layers ? (double)l->P[i] / r->clip : compute_direction(l, i);
    x[i] = fabs(u / (g + 1e-8));
    sum[0] += u * g;
    sum[1] += g * g;
    sum[2] += u * u;
  }
  if (l->layers) {
    expect_scaling_report(l->name, r, x, D, 1e-6, 10 * 0x1p-23);
    return;
  }
  expect_near(l->name, "d2", r->d2, sum[1], 1e-12 * sum[1]);
  expect_near(l->name, "pd2", r->pd2, sum[2], 1e-6 * sum[2]);
  expect_near(l->name, "inner", r->inner, sum[0], 1e-6 * sqrt(sum[1] * sum[2]));
  expect_quartiles(l->name, r, x, D, 1e-6, 0.0, 1e-5);
  if (l->mu == 0.0 && l->decay == 0.0 && !is_adamw(l)) assert_true(r->inner == r->d2);
}

static void quartiles_equal_those_of_a_sort(void **state) {
  for (int k = 0; k < RUNS; k++) {
    test_run *one = run_ranks(k, 1, 1), *threads = run_ranks(k, 1, 3), *all = run_ranks(k, MOST, 1);
    const ng_report *r = &one->report[0], *t = &threads->report[0];
    expect_numbers_of_a_sort(one, r);
    expect_numbers_of_a_sort(all, &all->report[0]);
    for (int32_t q = 1; q < MOST; q++)
      assert_memory_equal(&all->report[q].scaled, &all->report[0].scaled, 7 * sizeof(double));
    assert_memory_equal(&t->scaled, &r->scaled, 7 * sizeof(double));
    assert_true(one->layers || (t->inner == r->inner && t->d2 == r->d2 && t->pd2 == r->pd2));
    free(one);
    free(threads);
    free(all);
  }
}

/* ---- the published function ------------------------------------------------------------------*/

static void expect_published(const char *what, double got, double expected, double allowed) {
  expect_near("published", what, got, expected, allowed * expected + 10 * 0x1p-23);
}

/* EFCP's quantify_preconditioning of g = sin((i+1) 0.8) and u = sin((i+1) 1.6) for i < 8, in float64.  Two
 * gradients make u: v = (v + x) / 2 twice, from 0. */
static void numbers_match_the_published_function(void **state) {
  float g[8], first[8];
  fixture f;
  const plane v = plane_of(g, 1, 8, NG_F32);
  fixture_ok(&f, fixture_open(&f,
                              "method=mfac window=1 window_function=step window_momentum=0.5 "
                              "damping=1 clip=none quantify=1",
                              NULL));
  fixture_ok(&f, fixture_add_tensor(&f, "w", &v, NULL));
  fixture_ok(&f, ng_ready(f.p));
  ng_report r = fixture_report(&f);
  assert_true(r.scaled == 0 && r.scaling_max == 0.0);
  for (int k = 0; k < 2; k++) {
    for (int i = 0; i < 8; i++) {
      const double x = sin((i + 1) * 0.8), u = sin((i + 1) * 1.6);
      first[i] = (float)(4.0 * u - 2.0 * x);
      g[i] = k == 0 ? first[i] : (float)x;
    }
    fixture_ok(&f, ng_step(f.p, 1.0));
  }
  r = fixture_report(&f);
  assert_int_equal(r.scaled, 8);
  /* u is 0.06 there, from f32 sums of 4 and 2 */
  expect_published("min", r.scaling_min, 0.058399050, 1e-5);
  expect_published("max", r.scaling_max, 1.996589894, 1e-6);
  expect_published("mean", r.scaling_mean, 1.242872052, 1e-6);
  /* the published angle, 90 (1 - cos), is 88.893897518 degrees; cos comes from f32 sums of 4 and 2 */
  const double cosine = r.inner / sqrt(r.d2) / sqrt(r.pd2);
  assert_true(fabs(cosine - 0.012290028) <= 1e-6);
  assert_true(fabs(90.0 * (1.0 - cosine) - 88.893897518) <= 1e-4);
  expect_published("25 %", r.scaling_25, 0.741142614, 0x1p-18 + 1e-6);
  expect_published("50 %", r.scaling_50, 1.434100404, 0x1p-18 + 1e-6);
  expect_published("75 %", r.scaling_75, 1.768750724, 0x1p-18 + 1e-6);
  /* A skipped step leaves the reported numbers unchanged. */
  g[3] = NAN;
  assert_int_equal(ng_step(f.p, 1.0), NG_SKIPPED);
  const double before = r.scaling_75;
  r = fixture_report(&f);
  assert_true(r.scaled == 8 && r.scaling_75 == before);
  fixture_close(&f);
}

/* ---- hard distributions ----------------------------------------------------------------------*/

/* Report one step of SGD on w.  With decay 1 and lr 0, u = g + w, so g = 0 gives r = |w| / 1e-8 for any w. */
static ng_report take_step_and_report(float *w, int64_t n) {
  float *g = calloc((size_t)n, sizeof *g);
  assert_non_null(g);
  fixture f;
  ng_sgd how = fixture_sgd(0.0, 0.0);
  const plane vg = plane_of(g, 1, n, NG_F32), vw = plane_of(w, 1, n, NG_F32);
  fixture_ok(&f, fixture_open(&f, "update=sgd quantify=1 clip=none", NULL));
  fixture_ok(&f, fixture_add_tensor(&f, "w", &vg, &vw));
  fixture_ok(&f, ng_ready(f.p));
  how.weight_decay = 1.0;
  fixture_ok(&f, ng_step_sgd(f.p, &how, 1));
  const ng_report r = fixture_report(&f);
  fixture_close(&f);
  free(g);
  return r;
}

typedef enum shape { EQUAL, ZEROS, HALF_ZEROS, TIES, HEAVY, SMALL, CLOSE, TWO_ENDS, SHAPES } shape;

static float draw_from_shape(shape s, int64_t i, int64_t n, rng *r) {
  const float u = (float)rng_value(r), sign = u < 0.0f ? -1.0f : 1.0f;
  switch (s) {
  case EQUAL:
    return 0.3f;
  case ZEROS:
    return 0.0f;
  case HALF_ZEROS:
    return i % 2 == 0 ? 0.0f : u;
  case TIES:
    return sign * (float)(1 + (int64_t)(fabsf(u) * 3.0f));
  case HEAVY:
    return sign * powf(10.0f, 38.0f * fabsf(fmodf(u * 7.0f, 1.0f)) - 0.5f);
  case SMALL:
    return sign * powf(10.0f, -44.0f + 10.0f * fabsf(fmodf(u * 7.0f, 1.0f)));
  case CLOSE:
    return 1.0f + (float)i * 0x1p-23f; /* all in a few bins of the first pass */
  default:
    return i < n / 4 + 1 ? 1e-30f : 3e38f;
  }
}

static void hard_distributions_equal_a_sort(void **state) {
  static const char *const name[SHAPES] = {"equal",       "zeros", "half zeros", "ties",
                                           "heavy tails", "small", "close",      "two ends"};
  static const int64_t count[] = {1, 2, 3, 4, 5, 6, 7, 9, 1000, 40001};
  rng draw = {test_seed()};
  for (shape s = 0; s < SHAPES; s++) {
    for (size_t k = 0; k < sizeof count / sizeof count[0]; k++) {
      const int64_t n = count[k];
      float *w = malloc((size_t)n * sizeof *w);
      double *x = malloc((size_t)n * sizeof *x);
      char what[64];
      assert_true(w != NULL && x != NULL);
      for (int64_t i = 0; i < n; i++) {
        w[i] = draw_from_shape(s, i, n, &draw);
        x[i] = fabs((double)w[i] / 1e-8);
      }
      const ng_report r = take_step_and_report(w, n);
      (void)snprintf(what, sizeof what, "%s, %lld", name[s], (long long)n);
      expect_scaling_report(what, &r, x, n, 0x1p-50, 0.0);
      if (s == EQUAL || s == ZEROS) assert_true(r.scaling_25 == x[0] && r.scaling_75 == x[0]);
      if (s == HALF_ZEROS && n > 5) assert_true(r.scaling_25 == 0.0);
      free(w);
      free(x);
    }
  }
}

/* Without quantify nothing is counted.  With preconditioned blocks, other parameters are not counted. */
static void blocks_exclude_other_parameters(void **state) {
  for (int k = 0; k < 2; k++) {
    fixture f;
    float g[3] = {1, 2, 3}, w[3] = {0};
    const plane vg = plane_of(g, 1, 3, NG_F32), vw = plane_of(w, 1, 3, NG_F32);
    fixture_ok(&f,
               fixture_open(&f, k == 0 ? "update=sgd clip=none" : "update=sgd clip=none quantify=1",
                            NULL));
    fixture_ok(&f, fixture_add_tensor(&f, "w", &vg, &vw));
    fixture_ok(&f, ng_ready(f.p));
    const ng_sgd how = fixture_sgd(1.0, 0.0);
    fixture_ok(&f, fixture_step(&f, &how));
    const ng_report r = fixture_report(&f);
    assert_true(r.scaled == 3 * k && r.d2 == 14.0 * k && r.pd2 == 14.0 * k && r.inner == 14.0 * k);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(quartiles_equal_those_of_a_sort),
      cmocka_unit_test(numbers_match_the_published_function),
      cmocka_unit_test(hard_distributions_equal_a_sort),
      cmocka_unit_test(blocks_exclude_other_parameters),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
