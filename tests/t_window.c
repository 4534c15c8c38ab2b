/* t_window.c: windows against the published formulas in double (window_oracle.h, which explains the tolerance).
 *
 * Sizes, options and gradients are random; a failure prints the seed (NG_TEST_SEED, NG_TEST_MULT).  Where selections or
 * residuals must be exact, gradients, weights and decay are multiples of 1/512, which f32 holds. */
#include "unit_test.h"
#include "draw.h"
#include "fixture.h"
#include "window_oracle.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- one run against the oracle --------------------------------------------------------------*/

enum { ENTRIES = 2, D_MOST = 80 };
static const double ULP = 0x1p-24, DAMPING_RAISED = -1;

typedef struct trial {
  char options[600];
  int64_t in, out, count, steps;
  bool grid;       /* gradients are multiples of 1/512 */
  bool moves;      /* weights change between steps */
  bool feeds_back; /* low rank: a rounding error grows through the warm start */
  /* a parameter has at most as many elements as the window has rows, so NG_RESCUED is allowed */
  bool deficient;
  double later; /* damping of the second half; 0: unchanged */
} trial;

typedef struct model {
  fixture f;
  fixture_entry entry[ENTRIES];
  int64_t d;
  float g[D_MOST], w[D_MOST];
} model;

static void open_model(model *k, const trial *c, const char *linalg) {
  const fixture_how how = {.linalg = linalg, .threads = 1};
  k->entry[0] = (fixture_entry){"fc", c->out, c->in, true};
  k->entry[1] = (fixture_entry){"scale", 1, c->count, false};
  k->d = c->in * c->out + c->out + c->count;
  assert_true(k->d <= D_MOST);
  fixture_ok(&k->f, fixture_open(&k->f, c->options, &how));
  fixture_ok(&k->f, fixture_add_entries(&k->f, k->entry, ENTRIES, k->g, k->w));
}

/* Return the change of the direction if the gradient is rounded.  `u` is the direction without this rounding. */
static double get_rounding_response(window_oracle *near, const double *g, const double *w,
                                    double lr, bool enters, const double *u) {
  double rounded[D_MOST], v[D_MOST];
  float moved[D_MOST];
  rng r = {(uint64_t)near->count};
  for (int64_t i = 0; i < near->d; i++)
    rounded[i] = g[i] * (1 + ULP * (2 * rng_real(&r) - 1));
  window_oracle_step(near, rounded, w, lr, enters, v);
  for (int64_t i = 0; i < near->d; i++)
    moved[i] = (float)v[i];
  return window_gap(moved, u, near->d);
}

/* Return the largest error over the steps of a run, relative to the largest element of each step, or DAMPING_RAISED.
 * With `feeds_back`, subtract 16 responses to rounding; at most 5 are seen, where rounding grew to 1e-5. */
static double run_trial(const trial *c, const char *linalg, uint64_t seed) {
  model k = {0};
  rng r = {seed};
  double common[D_MOST], g[D_MOST], w[D_MOST], u[D_MOST], most = 0, response = 0;
  open_model(&k, c, linalg);
  const ng_options o = fixture_parse_options(c->options);
  for (int64_t i = 0; i < k.d; i++) {
    common[i] = 2 * rng_real(&r) - 1;
    k.w[i] = (float)(2 * rng_real(&r) - 1);
    if (c->grid) k.w[i] = rintf(512 * k.w[i]) / 512 + 2;
    if (o.base.window_mask && i % 3 == 0) k.w[i] = 0;
  }
  fixture_ok(&k.f, ng_ready(k.f.p));
  window_oracle *want = window_oracle_open(&k.f, &o, k.entry, ENTRIES, k.w);
  window_oracle *near = window_oracle_open(&k.f, &o, k.entry, ENTRIES, k.w);
  for (int64_t t = 0; t < c->steps; t++) {
    if (c->later > 0 && t == c->steps / 2) {
      want->o.base.damping = c->later;
      fixture_ok(&k.f, ng_set_real(k.f.p, "damping", c->later));
    }
    for (int64_t i = 0; i < k.d; i++) {
      k.g[i] = (float)(0.7 * common[i] + 2 * rng_real(&r) - 1);
      if (c->grid) k.g[i] = rintf(512 * k.g[i]) / 512;
      g[i] = (double)k.g[i];
      w[i] = (double)k.w[i];
    }
    const double lr = t % 5 == 4 ? 0.5 : t % 7 == 3 ? 0 : 1;
    const bool enters = t % o.base.stat_period == 0;
    window_oracle_step(want, g, w, lr, enters, u);
    if (c->feeds_back) response = fmax(response, get_rounding_response(near, g, w, lr, enters, u));
    const ng_status st = ng_step(k.f.p, lr);
    if (st == NG_RESCUED && c->deficient) {
      most = DAMPING_RAISED;
      break;
    }
    fixture_ok(&k.f, st);
    assert_true(isfinite(response));
    most = fmax(most, window_gap(k.g, u, k.d) - 16 * response);
    for (int64_t i = 0; i < k.d && c->moves; i++)
      k.w[i] += o.base.window_mask && i % 3 == 0 ? 0 : 1.0F / 512;
  }
  fixture_close(&k.f);
  window_oracle_close(&want);
  window_oracle_close(&near);
  return most;
}

/* Return false if the library raised the damping of a deficient window, so nothing was compared. */
static bool expect_small_error(const trial *c, const char *linalg, uint64_t seed,
                               double tolerance) {
  const double e = run_trial(c, linalg, seed);
  if (!(e <= tolerance))
    fail_msg("%s, in %d out %d and %d, %d steps, seed %" PRIu64 ": off by %g, allowed %g",
             c->options, (int)c->in, (int)c->out, (int)c->count, (int)c->steps, seed, e, tolerance);
  return e != DAMPING_RAISED;
}

static trial draw_sizes(rng *r) {
  return (trial){
      .in = 1 + rng_below(r, 6), .out = 1 + rng_below(r, 5), .count = 1 + rng_below(r, 9)};
}

/* ---- random windows --------------------------------------------------------------------------*/

/* For partly filled and full windows, steps with and without a new row, and a changed damping.  Some runs pass the ring
 * many times, so their factor is updated often.  1e-5 is required, 3e-7 is seen. */
static void directions_match_dense_solves(void **state) {
  rng r = {test_seed()};
  for (int64_t n = 0; n < test_repetitions(120); n++) {
    trial c = draw_sizes(&r);
    const int64_t m = 1 + rng_below(&r, 9);
    c.steps = 1 + rng_below(&r, n % 10 == 0 ? 60 * m : 3 * m);
    c.later = n % 3 == 0 ? pow(10, -1 - 7 * rng_real(&r)) : 0;
    (void)snprintf(c.options, sizeof c.options,
                   "method=mfac window=%d damping=%.9g stat_period=%d window_scope=%s "
                   "window_function=%s",
                   (int)m, pow(10, -1 - 7 * rng_real(&r)), 1 + (int)rng_below(&r, 2),
                   rng_below(&r, 3) > 0 ? "model" : "parameter",
                   rng_below(&r, 3) > 0 ? "mfac" : "mfac-filled");
    expect_small_error(&c, *state, rng_next(&r), 1e-5);
  }
}

/* With f32 momentum, x / eps amplifies rounding by up to Sigma / eps, where Sigma is below 10.  A Gram matrix with as
 * many rows as elements may be nearly singular: in one draw of 200 the library raises the damping. */
static void ggt_matches_singular_values(void **state) {
  rng r = {test_seed() + 1};
  const int64_t draws = test_repetitions(80);
  int64_t raised = 0;
  for (int64_t n = 0; n < draws; n++) {
    trial c = draw_sizes(&r);
    const int64_t m = 1 + rng_below(&r, 9);
    c.deficient = m >= c.in * c.out || m >= c.out || m >= c.count;
    const bool plain = rng_below(&r, 2) > 0;
    const double eps = pow(10, -3 * rng_real(&r));
    c.steps = 1 + rng_below(&r, 3 * m);
    (void)snprintf(c.options, sizeof c.options,
                   "method=ggt window=%d damping=%.9g window_momentum=%g window_forget=%g "
                   "stat_period=%d window_scope=%s",
                   (int)m, eps, plain ? 0.0 : 0.8, plain ? 1.0 : 0.9, plain ? 1 : 2,
                   rng_below(&r, 3) > 0 ? "model" : "parameter");
    raised += !expect_small_error(&c, *state, rng_next(&r), plain ? 1e-6 : 1e-6 + 10 * ULP / eps);
  }
  assert_true(raised <= 2 + draws / 40);
}

/* The oracle rounds rows to bf16, too. */
static void rows_in_bf16_match_the_oracle(void **state) {
  rng r = {test_seed() + 3};
  for (int64_t n = 0; n < test_repetitions(20); n++) {
    trial c = {.in = 5, .out = 4, .count = 7, .steps = 9};
    (void)snprintf(c.options, sizeof c.options, "method=mfac window=4 damping=%g window_dtype=bf16",
                   pow(10, -4 * rng_real(&r)));
    expect_small_error(&c, *state, rng_next(&r), 1e-5);
  }
}

/* Top-k with error feedback e.  Rounding of e could change the selection between nearly equal elements.  So gradients
 * and e are multiples of 1/512, which f32 holds exactly; bf16 holds the upper 8 bits of the sent value. */
static void topk_matches_the_oracle(void **state) {
  static const char *const modes[] = {"topk", "topk-layer", "topk-block"}, *const fills[] = {
                                                                               "none", "gradient",
                                                                               "error", "rest",
                                                                               "added"};
  rng r = {test_seed() + 4};
  for (int64_t n = 0; n < test_repetitions(150); n++) {
    trial c = draw_sizes(&r);
    c.grid = true;
    const int64_t m = 1 + rng_below(&r, 6);
    c.steps = 1 + rng_below(&r, 3 * m);
    (void)snprintf(c.options, sizeof c.options,
                   "method=efcp window=%d damping=%.9g window_density=%g window_store=%s "
                   "window_scope=%s window_dtype=%s window_function=%s "
                   "window_momentum=%g stat_period=%d window_feedback_lr=%d window_fill=%s "
                   "window_empty=%g",
                   (int)m, pow(10, -1 - 3 * rng_real(&r)),
                   rng_below(&r, 4) ? rng_real(&r) + 1e-9 : 1, modes[rng_below(&r, 3)],
                   rng_below(&r, 3) ? "model" : "parameter", rng_below(&r, 2) ? "f32" : "bf16",
                   "mfac", rng_below(&r, 2) ? 0.5 : 0.0, 1 + (int)rng_below(&r, 2),
                   (int)rng_below(&r, 2), fills[rng_below(&r, 5)], rng_below(&r, 3) ? 0.0 : 0.6);
    expect_small_error(&c, *state, rng_next(&r), 1e-5);
  }
  for (int64_t n = 0; n < test_repetitions(30); n++) {
    trial c = {.in = 4, .out = 5, .count = 7, .steps = 8, .grid = true};
    /* without f32 momentum, whose rounding x / eps amplifies */
    const bool plain = n % 2 == 0;
    const double eps = pow(10, -3 * rng_real(&r));
    (void)snprintf(
        c.options, sizeof c.options, "method=sparse-ggt window=3 damping=%g window_density=%g%s",
        eps, 0.02 + 0.5 * rng_real(&r),
        plain ? "" : " window_forget=0.9 window_momentum=0.8 window_momentum_form=gradient");
    expect_small_error(&c, *state, rng_next(&r), plain ? 1e-5 : 1e-5 + 10 * ULP / eps);
  }
}

/* SGD, Adam and AdaGrad with error feedback.  A decay of 1/8 keeps elements on the grid, where equal elements are
 * frequent.  With momentum and Adam elements leave the grid, and nearly equal elements are rare. */
static void first_order_methods_match(void **state) {
  static const char *const methods[] = {
      "topk-sgd",
      "topk-sgd window_momentum=0.7",
      "topk-sgd window_momentum=0.7 window_momentum_form=average window_feedback_lr=0",
      "topk-sgd window_decay=0.125 window_dtype=bf16",
      "topk-sgd window_store=dense window_momentum=0.5",
      "topk-adam damping=0.01",
      "topk-adam window_momentum=0 window_forget=0.5 damping=0.1",
      "topk-adam damping=0.01 window_store=dense",
      "topk-adam damping=0.01 window_store=dense window_feedback_lr=0",
      "topk-adagrad damping=0.01",
      "topk-adagrad damping=0.1 window_store=dense window_decay=0.1"};
  rng r = {test_seed() + 5};
  for (size_t n = 0; n < 3 * sizeof methods / sizeof methods[0]; n++) {
    const char *method = methods[n / 3];
    const bool topk = strstr(method, "dense") == NULL;
    trial c = {.in = 5, .out = 4, .count = 7, .steps = 9, .grid = true};
    (void)snprintf(c.options, sizeof c.options, "method=%s%s", method,
                   topk ? " window_density=0.3" : "");
    expect_small_error(&c, *state, rng_next(&r), 1e-5);
  }
}

/* Three equal gradients: u = g / (lambda + k |g|^2 / m) in step k.  If |g|^2 / (lambda m) exceeds 1e10, double
 * cannot resolve u: the library raises the damping or, if that does not help, returns g. */
static void equal_rows_raise_the_damping(void **state) {
  static const struct {
    double scale;
    int least, most; /* how often lambda is multiplied by 10; -1: the direction is g */
  } cases[] = {{0.1, 0, 0}, {3, 1, 3}, {1e15, -1, -1}};
  const fixture_how how = {.linalg = *state, .threads = 1};
  for (size_t s = 0; s < sizeof cases / sizeof cases[0]; s++) {
    fixture f;
    float x[8];
    const plane bound = plane_of(x, 1, 8, NG_F32);
    fixture_ok(&f, fixture_open(&f, "method=mfac window=3 damping=1e-8", &how));
    fixture_ok(&f, fixture_add_tensor(&f, "x", &bound, NULL));
    fixture_ok(&f, ng_ready(f.p));
    for (int k = 1; k <= 3; k++) {
      const bool raised = k > 1 && cases[s].most != 0, plain = raised && cases[s].most < 0;
      double want[8], norm2 = 0, best = INFINITY;
      float g[8];
      for (int i = 0; i < 8; i++) {
        x[i] = g[i] = (float)(cases[s].scale * (i + 1));
        norm2 += (double)x[i] * (double)x[i];
      }
      assert_int_equal(ng_step(f.p, 1), raised ? NG_RESCUED : NG_OK);
      for (int n = raised && !plain ? cases[s].least : 0; n <= (plain    ? 0
                                                                : raised ? cases[s].most
                                                                         : 0);
           n++) {
        for (int i = 0; i < 8; i++)
          want[i] = plain ? (double)g[i] : (double)g[i] / (1e-8 * pow(10, n) + k * norm2 / 3);
        best = fmin(best, window_gap(x, want, 8));
      }
      if (!(best <= 1e-5)) fail_msg("%g, step %d: off by %g", cases[s].scale, k, best);
    }
    const ng_report report = fixture_report(&f);
    assert_int_equal(report.more_damping, cases[s].most > 0 ? 2 : 0);
    assert_int_equal(report.plain, cases[s].most < 0 ? 2 : 0);
    fixture_close(&f);
  }
}

/* ---- options of the published programs -------------------------------------------------------*/

static double draw_or_zero(rng *r, double x) { return rng_below(r, 2) > 0 ? x : 0; }

/* Draw options that the published classes accept.  Return false for low rank. */
static bool draw_published_options(rng *r, char *to, size_t size) {
  static const char *const forms[] = {"average", "heavy-ball", "gradient"};
  static const char *const decays[] = {"gradient", "direction", "none"};
  static const char *const modes[] = {"topk", "topk-layer", "topk-block"};
  static const char *const fills[] = {"none", "gradient", "error", "rest", "added"};
  const int kind = (int)rng_below(r, 4);
  const bool ggt = kind == 0, topk = kind == 2 || (ggt && rng_below(r, 2) > 0), low = kind == 3;
  const double momentum = draw_or_zero(r, 0.75), forget = ggt ? 1 - draw_or_zero(r, 0.125) : 1;
  const char *mode = modes[rng_below(r, 3)], *fill = !ggt ? fills[rng_below(r, 5)] : "none";
  if (!topk && !low && fill == fills[2]) fill = "rest"; /* a dense store has no error feedback */
  const bool plain = strcmp(fill, "none") != 0;
  int n = snprintf(to, size,
                   "method=%s window=%d damping=0.1 window_momentum=%g window_momentum_form=%s "
                   "window_decay=%g window_decay_form=%s window_mask=%d stat_period=%d "
                   "window_scope=%s window_forget=%g window_store=%s window_fill=%s",
                   ggt ? "ggt" : "mfac", 1 + (int)rng_below(r, 5), momentum,
                   forms[rng_below(r, plain ? 2 : 3)], draw_or_zero(r, 0.25),
                   decays[ggt ? 2 * rng_below(r, 2) : rng_below(r, 3)], !low && rng_below(r, 2) > 0,
                   1 + (int)rng_below(r, 2), rng_below(r, 3) > 0 ? "model" : "parameter",
                   plain ? 1 : forget,
                   topk  ? mode
                   : low ? "lowrank"
                         : "dense",
                   fill);
  if (low) (void)snprintf(to + n, size - (size_t)n, " window_rank=%d", 1 + (int)rng_below(r, 2));
  if (!low && !ggt)
    n += snprintf(to + n, size - (size_t)n, " window_function=%s",
                  rng_below(r, 2) > 0 ? "mfac-filled" : "mfac");
  const bool count = topk && mode == modes[0] && rng_below(r, 3) == 0;
  if (topk)
    (void)snprintf(to + n, size - (size_t)n,
                   " window_density=%g "
                   "window_feedback_lr=%d window_empty=%g window_dtype=%s",
                   (count ? 45 : 0.4) * rng_real(r) + (count ? 1.5 : 0.05), (int)rng_below(r, 2),
                   draw_or_zero(r, 0.5), rng_below(r, 2) > 0 ? "bf16" : "f32");
  return !low;
}

/* At a damping of 0.1, the rounding of an average or of a sum with the weight grows by at most 200. */
static void published_options_match_the_oracle(void **state) {
  rng r = {test_seed()};
  for (int64_t n = 0; n < test_repetitions(400); n++) {
    trial c = {.in = 6, .out = 5, .count = 7, .steps = 9, .grid = true};
    c.feeds_back = !draw_published_options(&r, c.options, sizeof c.options);
    expect_small_error(&c, NULL, rng_next(&r), 200 * ULP);
  }
}

/* window_decay_form = direction with small dampings, in every store.  u is rounded once, and again with its decay:
 * 16 units.  Low rank has P and Q in f32: 200 units and, if the residual is added, one unit per column over
 * lambda. */
static void decayed_directions_match(void **state) {
  static const char *const store[] = {
      "mfac",
      "efcp window_density=1",
      "efcp window_density=1 window_fill=added",
      "efcp window_density=0.3",
      "efcp window_density=0.3 window_fill=added",
      "efcp window_density=0.3 window_fill=rest",
      "efcp window_density=0.3 window_dtype=bf16 window_fill=added",
      "mfac window_fill=added",
      "lowrank-mfac window_rank=6",
      "lowrank-mfac window_rank=6 window_fill=added",
  };
  static const char *const more[] = {"", " stat_period=2", " window_mask=1",
                                     " window_momentum=0.5 window_momentum_form=heavy-ball"};
  for (size_t s = 0; s < sizeof store / sizeof store[0]; s++) {
    const bool low = strstr(store[s], "lowrank") != NULL, rest = strstr(store[s], "added") != NULL;
    for (size_t k = 0; k < sizeof more / sizeof more[0]; k++) {
      for (int lambda = 1; lambda <= 7; lambda += 2) {
        trial c = {.in = 7, .out = 6, .count = 5, .steps = 7, .grid = true, .moves = true};
        if (low && strstr(more[k], "mask") != NULL) continue;
        (void)snprintf(c.options, sizeof c.options,
                       "method=%s window=4 clip=none damping=1e-%d window_decay=0.001953125 "
                       "window_decay_form=direction%s",
                       store[s], lambda, more[k]);
        const double columns = low && rest ? 6 * ULP * pow(10, lambda) : 0;
        expect_small_error(&c, NULL, test_seed() + s, (low ? 200 : 16) * ULP + columns);
      }
    }
  }
}

#define REF(f)                                                                                     \
  { #f " on ref", f, NULL, NULL, (void *)(uintptr_t) "ref" }
#if defined(NG_HAVE_BLAS)
#define EACH(f)                                                                                    \
  REF(f), { #f " on cpu", f, NULL, NULL, (void *)(uintptr_t) "cpu" }
#else
#define EACH(f) REF(f)
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(directions_match_dense_solves),
      EACH(ggt_matches_singular_values),
      EACH(rows_in_bf16_match_the_oracle),
      EACH(equal_rows_raise_the_damping),
      EACH(topk_matches_the_oracle),
      EACH(first_order_methods_match),
      cmocka_unit_test(published_options_match_the_oracle),
      cmocka_unit_test(decayed_directions_match),
  };
  return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
