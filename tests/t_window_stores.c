/* t_window_stores.c: stores that lose nothing here have the directions of the dense one.
 *
 * lowrank   a tensor of one row is kept whole: longer than a chunk of the flat loops
 * topk      as many entries as are not zero, in any of several blocks of indices, and none in the others
 *
 * Both keep f32 and add in double, in another order than the dense store, so to the last bit of f32; 1e-6 of the
 * largest number is eight times that. */
#include "unit_test.h"
#include "draw.h"
#include "fixture.h"
#include "window_oracle.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LONG = 20000, STEPS = 6, BLOCKS = 4, BLOCK = 65536, WIDE = BLOCKS * BLOCK, SOME = 64 };

typedef void fill(int step, float *g);

static void all_of_it(int step, float *g) {
  rng r = {(uint64_t)step + test_seed()};
  for (int i = 0; i < LONG; i++)
    g[i] = (float)(cos(i) + 0.3 * rng_value(&r));
}

/* In the last block, the first, then two in the middle, ...: a row comes where one with other blocks was. */
static void some_of_a_block(int step, float *g) {
  static const int block[STEPS] = {BLOCKS - 1, 0, 1, 0, 2, BLOCKS - 1};
  rng r = {(uint64_t)step + test_seed()};
  memset(g, 0, WIDE * sizeof *g);
  for (int i = 0; i < SOME; i++)
    g[block[step] * BLOCK + i * (BLOCK / SOME)] = (float)(1.5 + rng_value(&r));
  for (int i = 1; i < SOME; i++)
    g[block[step] * BLOCK + i * (BLOCK / SOME)] *= i % 2 ? 1.0F : -1.0F;
}

static void any_of_it(int step, float *g) {
  rng r = {(uint64_t)step + test_seed()};
  rng_values(&r, g, WIDE);
}

static void live(const char *options, int32_t threads, fill *of, int64_t n,
                 float out[STEPS][WIDE]) {
  static float g[WIDE];
  const plane v = plane_of(g, 1, n, NG_F32);
  fixture f;
  fixture_ok(&f, fixture_open(&f, options, &(fixture_how){.threads = threads}));
  fixture_ok(&f, fixture_tensor(&f, "w", &v, NULL));
  fixture_ok(&f, ng_ready(f.p));
  for (int t = 0; t < STEPS; t++) {
    of(t, g);
    fixture_ok(&f, ng_step(f.p, 1.0));
    memcpy(out[t], g, (size_t)n * sizeof *g);
  }
  fixture_close(&f);
}

static void same(const char *store, fill *of, int64_t n) {
  static float dense[STEPS][WIDE], other[STEPS][WIDE];
  live("method=mfac window=3 damping=0.1", 0, of, n, dense);
  live(store, 0, of, n, other);
  for (int t = 0; t < STEPS; t++) {
    double most = 0, gap = 0;
    for (int64_t i = 0; i < n; i++) {
      most = fmax(most, fabs((double)dense[t][i]));
      gap = fmax(gap, fabs((double)dense[t][i] - (double)other[t][i]));
    }
    if (!(most > 0 && gap <= 1e-6 * most))
      fail_msg("%s: step %d: %g of %g apart", store, t, gap, most);
  }
}

static void lowrank(void **state) {
  same("method=mfac window=3 damping=0.1 window_store=lowrank window_rank=2", all_of_it, LONG);
}

static void topk_of_a_wide_block(void **state) {
  same("method=mfac window=3 damping=0.1 window_store=topk window_density=0.000244140625",
       some_of_a_block, WIDE);
  same("method=mfac window=3 damping=0.1 window_store=topk-layer "
       "window_density=0.000244140625",
       some_of_a_block, WIDE);
}

/* One group that is large enough for several threads to choose from, and many. */
static void topk_on_threads(void **state) {
  static const char *const options[] = {
      "method=efcp window=3 damping=0.1 window_density=0.003 window_dtype=bf16",
      "method=efcp window=3 damping=0.1 window_density=0.003 window_store=topk-block"};
  static float one[STEPS][WIDE], more[STEPS][WIDE];
  for (int k = 0; k < 2; k++) {
    live(options[k], 1, any_of_it, WIDE, one);
    live(options[k], 3, any_of_it, WIDE, more);
    assert_memory_equal(one, more, sizeof one);
  }
}

/* ---- how low rank starts ---------------------------------------------------------------------*/

enum { ROWS = 7, COLS = 9, D = ROWS * COLS, RANK = 2, WINDOW = 3, ROW = RANK * (ROWS + COLS) };
enum { BEHIND = RANK * ROWS }; /* Q stands behind P */

/* Opens, and copies the place that the first step begins with. */
static void open_lowrank(fixture *f, const char *name, float g[D], float w[D], float out[ROW]) {
  const plane vg[2] = {plane_of(g, ROWS, COLS, NG_F32), {0}};
  const plane vw[2] = {plane_of(w, ROWS, COLS, NG_F32), {0}};
  fixture_ok(f, fixture_open(f, "method=lowrank-mfac window=3 window_rank=2 damping=0.1", NULL));
  fixture_ok(f, fixture_linear(f, name, vg, w == NULL ? NULL : vw));
  fixture_ok(f, ng_ready(f->p));
  memcpy(out, window_field(f, "factors") + (ptrdiff_t)WINDOW * ROW, ROW * sizeof *out);
}

/* W' P, P the orthonormal columns of W Q0. */
static void advance(const float w[D], const float *q0, double q[RANK * COLS]) {
  double P[RANK][ROWS] = {{0}};
  for (int a = 0; a < RANK; a++) {
    double norm = 0;
    for (int i = 0; i < D; i++)
      P[a][i / COLS] += (double)w[i] * (double)q0[a * COLS + i % COLS];
    for (int c = 0; c < a; c++) {
      double along = 0;
      for (int r = 0; r < ROWS; r++)
        along += P[c][r] * P[a][r];
      for (int r = 0; r < ROWS; r++)
        P[a][r] -= along * P[c][r];
    }
    for (int r = 0; r < ROWS; r++)
      norm += P[a][r] * P[a][r];
    for (int r = 0; r < ROWS; r++)
      P[a][r] /= sqrt(norm) + 1e-8;
    for (int c = 0; c < COLS; c++)
      q[a * COLS + c] = 0;
    for (int i = 0; i < D; i++)
      q[a * COLS + i % COLS] += (double)w[i] * P[a][i / COLS];
  }
}

static void weights(uint64_t seed, float w[D]) {
  rng r = {test_seed() + seed};
  rng_values(&r, w, D);
}

static void begins_with_the_weights(void **state) {
  fixture f;
  float g[D] = {0}, w[D], drawn[ROW], advanced[ROW];
  double q[RANK * COLS], most = 0;
  weights(0, w);
  open_lowrank(&f, "fc", g, NULL, drawn);
  fixture_close(&f);
  open_lowrank(&f, "fc", g, w, advanced);
  fixture_close(&f);
  advance(w, drawn + BEHIND, q);
  for (int i = 0; i < RANK * COLS; i++)
    most = fmax(most, fabs(q[i]));
  /* Q is rounded to f32: 6e-8 */
  for (int i = 0; i < RANK * COLS; i++)
    if (!(fabs((double)advanced[BEHIND + i] - q[i]) <= 1e-6 * most))
      fail_msg("number %d of Q is %g, expected %g", i, (double)advanced[BEHIND + i], q[i]);
  for (int i = 0; i < BEHIND; i++) /* the place is no row of the window */
    assert_true(drawn[i] == 0 && advanced[i] == 0);
}

/* Weights that are no numbers, or whose norm f32 does not hold: the first Q stays random. */
static void begins_without_the_weights(void **state) {
  fixture f;
  float g[D] = {0}, w[D], drawn[ROW], got[ROW];
  weights(1, w);
  open_lowrank(&f, "fc", g, NULL, drawn);
  fixture_close(&f);
  w[5] = NAN;
  open_lowrank(&f, "fc", g, w, got);
  fixture_close(&f);
  assert_memory_equal(drawn, got, sizeof got);
  for (int i = 0; i < D; i++)
    w[i] = (i % 2 ? -1.0F : 1.0F) * FLT_MAX;
  open_lowrank(&f, "fc", g, w, got);
  fixture_close(&f);
  assert_memory_equal(drawn, got, sizeof got);
}

/* Of each name its own; mean 0 and variance 1 of 7,000: five deviations are 0.06 and 0.085 (of a square: sqrt 2;
 * less, of a sum of twelve). */
static void drawn_by_name(void **state) {
  static float last[ROW];
  double sum = 0, square = 0;
  int64_t n = 0;
  for (int k = 0; k < 400; k++) {
    const char name[] = {'l', (char)('a' + k % 20), (char)('a' + k / 20), 0};
    fixture f;
    float g[D] = {0}, q[ROW];
    open_lowrank(&f, name, g, NULL, q);
    fixture_close(&f);
    for (int i = BEHIND; i < ROW; i++, n++) {
      sum += (double)q[i];
      square += (double)q[i] * (double)q[i];
    }
    assert_true(memcmp(q + BEHIND, last + BEHIND, sizeof q - BEHIND * sizeof *q) != 0);
    memcpy(last, q, sizeof q);
  }
  assert_true(n == 7200);
  if (!(fabs(sum / (double)n) < 0.06 && fabs(square / (double)n - 1) < 0.085))
    fail_msg("mean %g, variance %g", sum / (double)n, square / (double)n);
}

/* Gradients of rank 1, of any size: the second column of P has nothing of its own, and is 0; its column of Q waits,
 * and what is sent is the gradient, but for rounding of P and Q.  (A column of length 1 made of what is left would
 * be that of before, and the gradient would be sent twice.) */
static void less_than_its_rank(void **state) {
  for (int k = 0; k < 6; k++) {
    fixture f;
    float g[D], first[ROW], before[ROW], a[ROWS], b[COLS], most = 0;
    rng r = {test_seed() + (uint64_t)k};
    open_lowrank(&f, "fc", g, NULL, before);
    for (int i = 0; i < ROWS; i++)
      a[i] = (float)(1 + rng_below(&r, 9));
    for (int i = 0; i < COLS; i++)
      b[i] = ldexpf((float)(1 + rng_below(&r, 9)), 2 - 5 * k);
    for (int i = 0; i < D; i++)
      most = fmaxf(most, g[i] = a[i / COLS] * b[i % COLS]); /* exactly */
    fixture_ok(&f, ng_step(f.p, 1));
    memcpy(first, window_field(&f, "factors"), sizeof first);
    for (int i = 0; i < ROWS; i++)
      assert_true(first[ROWS + i] == 0 && first[i] != 0);
    for (int c = COLS; c < 2 * COLS; c++)
      assert_true(first[BEHIND + c] == before[BEHIND + c]);
    /* 1e-8 beside |p|, the gradient's size at least, is what the first column is short of 1 */
    const float *e = window_field(&f, "error"), short_of = 3e-8F / most;
    for (int i = 0; i < D; i++)
      assert_true(fabsf(e[i]) <= (1e-6F + short_of) * most);
    fixture_close(&f);
  }
}

/* What was left in the direction of a step that was refused, a NaN, has no part in the next, which makes its own from
 * a row: after a step off the period, whose gradient was not finite, every step is one on it. */
static void after_a_refused_step(void **state) {
  static const char *const stores[] = {"window_store=lowrank window_rank=2", "window_store=dense",
                                       "window_store=topk window_density=0.3"};
  for (int k = 0; k < 3; k++) {
    char options[160];
    float out[2][D];
    (void)snprintf(options, sizeof options, "method=mfac window=3 damping=0.1 stat_period=2 %s",
                   stores[k]);
    for (int broken = 0; broken < 2; broken++) {
      fixture f;
      float g[D];
      const plane v[2] = {plane_of(g, ROWS, COLS, NG_F32), {0}};
      fixture_ok(&f, fixture_open(&f, options, NULL));
      fixture_ok(&f, fixture_linear(&f, "fc", v, NULL));
      fixture_ok(&f, ng_ready(f.p));
      weights(0, g);
      fixture_ok(&f, ng_step(f.p, 1));
      if (broken) {
        for (int i = 0; i < D; i++)
          g[i] = NAN;
        assert_int_equal(ng_step(f.p, 1), NG_SKIPPED);
      }
      fixture_ok(&f, ng_set(f.p, "stat_period", "1"));
      weights(1, g);
      fixture_ok(&f, ng_step(f.p, 1));
      memcpy(out[broken], g, sizeof g);
      fixture_close(&f);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(lowrank),
                                     cmocka_unit_test(topk_of_a_wide_block),
                                     cmocka_unit_test(topk_on_threads),
                                     cmocka_unit_test(begins_with_the_weights),
                                     cmocka_unit_test(begins_without_the_weights),
                                     cmocka_unit_test(drawn_by_name),
                                     cmocka_unit_test(less_than_its_rank),
                                     cmocka_unit_test(after_a_refused_step)};
  return cmocka_run_group_tests_name("stores of windows", tests, NULL, NULL);
}
