/* t_window_stores.c: stores that lose nothing have the directions of the dense store.
 *
 * lowrank   stores a tensor of one row whole; here longer than a chunk of the flat loops
 * topk      stores all nonzero entries; they are in any one of several blocks of indices
 *
 * Both store f32 and sum in double in another order than the dense store, so the last bit of f32 may differ; 1e-6
 * of the largest number is eight times that. */
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

static void fill_with_waves(int step, float *g) {
  rng r = {(uint64_t)step + test_seed()};
  for (int i = 0; i < LONG; i++)
    g[i] = (float)(cos(i) + 0.3 * rng_value(&r));
}

/* The nonzero entries of a step are in one block, and the block changes between steps, so that a new row replaces a row
 * with other blocks. */
static void fill_one_block(int step, float *g) {
  static const int block[STEPS] = {BLOCKS - 1, 0, 1, 0, 2, BLOCKS - 1};
  rng r = {(uint64_t)step + test_seed()};
  memset(g, 0, WIDE * sizeof *g);
  for (int i = 0; i < SOME; i++)
    g[block[step] * BLOCK + i * (BLOCK / SOME)] = (float)(1.5 + rng_value(&r));
  for (int i = 1; i < SOME; i++)
    g[block[step] * BLOCK + i * (BLOCK / SOME)] *= i % 2 ? 1.0F : -1.0F;
}

static void fill_random(int step, float *g) {
  rng r = {(uint64_t)step + test_seed()};
  rng_fill(&r, g, WIDE);
}

static void run_and_copy_directions(const char *options, int32_t threads, fill *of, int64_t n,
                                    float out[STEPS][WIDE]) {
  static float g[WIDE];
  const plane v = plane_of(g, 1, n, NG_F32);
  fixture f;
  fixture_ok(&f, fixture_open(&f, options, &(fixture_how){.threads = threads}));
  fixture_ok(&f, fixture_add_tensor(&f, "w", &v, NULL));
  fixture_ok(&f, ng_ready(f.p));
  for (int t = 0; t < STEPS; t++) {
    of(t, g);
    fixture_ok(&f, ng_step(f.p, 1.0));
    memcpy(out[t], g, (size_t)n * sizeof *g);
  }
  fixture_close(&f);
}

static void compare_with_dense(const char *store, fill *of, int64_t n) {
  static float dense[STEPS][WIDE], other[STEPS][WIDE];
  run_and_copy_directions("method=mfac window=3 damping=0.1", 0, of, n, dense);
  run_and_copy_directions(store, 0, of, n, other);
  for (int t = 0; t < STEPS; t++) {
    double most = 0, gap = 0;
    for (int64_t i = 0; i < n; i++) {
      most = fmax(most, fabs((double)dense[t][i]));
      gap = fmax(gap, fabs((double)dense[t][i] - (double)other[t][i]));
    }
    if (!(most > 0 && gap <= 1e-6 * most))
      fail_msg("%s: step %d: off by %g, largest entry %g", store, t, gap, most);
  }
}

static void lowrank_rows_equal_dense(void **state) {
  compare_with_dense("method=mfac window=3 damping=0.1 window_store=lowrank window_rank=2",
                     fill_with_waves, LONG);
}

static void topk_of_all_nonzeros_equals_dense(void **state) {
  compare_with_dense(
      "method=mfac window=3 damping=0.1 window_store=topk window_density=0.000244140625",
      fill_one_block, WIDE);
  compare_with_dense("method=mfac window=3 damping=0.1 window_store=topk-layer "
                     "window_density=0.000244140625",
                     fill_one_block, WIDE);
}

/* For one group of elements that is large enough for several threads, and for many small groups. */
static void threads_change_no_bit_of_topk(void **state) {
  static const char *const options[] = {
      "method=efcp window=3 damping=0.1 window_density=0.003 window_dtype=bf16",
      "method=efcp window=3 damping=0.1 window_density=0.003 window_store=topk-block"};
  static float one[STEPS][WIDE], more[STEPS][WIDE];
  for (int k = 0; k < 2; k++) {
    run_and_copy_directions(options[k], 1, fill_random, WIDE, one);
    run_and_copy_directions(options[k], 3, fill_random, WIDE, more);
    assert_memory_equal(one, more, sizeof one);
  }
}

/* ---- how low rank starts ---------------------------------------------------------------------*/

enum { ROWS = 7, COLS = 9, D = ROWS * COLS, RANK = 2, WINDOW = 3, ROW = RANK * (ROWS + COLS) };
enum { Q_AT = RANK * ROWS }; /* Q is stored after P */

/* Open a model, and copy the free place of the window for the next row. */
static void open_lowrank(fixture *f, const char *name, float g[D], float w[D], float out[ROW]) {
  const plane vg[2] = {plane_of(g, ROWS, COLS, NG_F32), {0}};
  const plane vw[2] = {plane_of(w, ROWS, COLS, NG_F32), {0}};
  fixture_ok(f, fixture_open(f, "method=lowrank-mfac window=3 window_rank=2 damping=0.1", NULL));
  fixture_ok(f, fixture_add_linear(f, name, vg, w == NULL ? NULL : vw));
  fixture_ok(f, ng_ready(f->p));
  memcpy(out, window_field(f, "factors") + (ptrdiff_t)WINDOW * ROW, ROW * sizeof *out);
}

static void copy_next_row(const char *name, float g[D], float w[D], float out[ROW]) {
  fixture f;
  open_lowrank(&f, name, g, w, out);
  fixture_close(&f);
}

/* Compute q = W' P, where P has the orthonormal columns of W Q0. */
static void compute_first_factor(const float w[D], const float *q0, double q[RANK * COLS]) {
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

static void draw_weights(uint64_t seed, float w[D]) {
  rng r = {test_seed() + seed};
  rng_fill(&r, w, D);
}

static void first_factor_uses_the_weights(void **state) {
  float g[D] = {0}, w[D], drawn[ROW], advanced[ROW];
  double q[RANK * COLS], most = 0;
  draw_weights(0, w);
  copy_next_row("fc", g, NULL, drawn);
  copy_next_row("fc", g, w, advanced);
  compute_first_factor(w, drawn + Q_AT, q);
  for (int i = 0; i < RANK * COLS; i++)
    most = fmax(most, fabs(q[i]));
  /* Q is rounded to f32: 6e-8 */
  for (int i = 0; i < RANK * COLS; i++)
    if (!(fabs((double)advanced[Q_AT + i] - q[i]) <= 1e-6 * most))
      fail_msg("number %d of Q is %g, expected %g", i, (double)advanced[Q_AT + i], q[i]);
  for (int i = 0; i < Q_AT; i++) /* the P of the free place is zero */
    assert_true(drawn[i] == 0 && advanced[i] == 0);
}

/* If weights are not finite, or f32 cannot hold their norm, the first Q stays random. */
static void first_factor_ignores_bad_weights(void **state) {
  float g[D] = {0}, w[D], drawn[ROW], got[ROW];
  draw_weights(1, w);
  copy_next_row("fc", g, NULL, drawn);
  w[5] = NAN;
  copy_next_row("fc", g, w, got);
  assert_memory_equal(drawn, got, sizeof got);
  for (int i = 0; i < D; i++)
    w[i] = (i % 2 ? -1.0F : 1.0F) * FLT_MAX;
  copy_next_row("fc", g, w, got);
  assert_memory_equal(drawn, got, sizeof got);
}

/* Each name has its own Q.  Mean 0 and variance 1 of 7,200 numbers: five deviations are 0.06 and 0.085 (sqrt 2 for
 * a square, less for a sum of twelve). */
static void first_factor_depends_on_the_name(void **state) {
  static float last[ROW];
  double sum = 0, square = 0;
  int64_t n = 0;
  for (int k = 0; k < 400; k++) {
    const char name[] = {'l', (char)('a' + k % 20), (char)('a' + k / 20), 0};
    float g[D] = {0}, q[ROW];
    copy_next_row(name, g, NULL, q);
    for (int i = Q_AT; i < ROW; i++, n++) {
      sum += (double)q[i];
      square += (double)q[i] * (double)q[i];
    }
    assert_true(memcmp(q + Q_AT, last + Q_AT, sizeof q - Q_AT * sizeof *q) != 0);
    memcpy(last, q, sizeof q);
  }
  assert_true(n == 7200);
  if (!(fabs(sum / (double)n) < 0.06 && fabs(square / (double)n - 1) < 0.085))
    fail_msg("the first Q has mean %g and variance %g, expected 0 and 1", sum / (double)n,
             square / (double)n);
}

/* Gradients of rank 1 and any size: the second column of P is 0, its column of Q stays, and the sent matrix is the
 * gradient, up to rounding of P and Q.  (Normalising the remaining rounding error to length 1 would send the
 * gradient twice.) */
static void rank_one_gradients_are_sent_whole(void **state) {
  for (int k = 0; k < 6; k++) {
    fixture f;
    float g[D], first[ROW], before[ROW], a[ROWS], b[COLS], most = 0;
    rng r = {test_seed() + (uint64_t)k};
    open_lowrank(&f, "fc", g, NULL, before);
    for (int i = 0; i < ROWS; i++)
      a[i] = (float)(1 + rng_below(&r, 9));
    for (int i = 0; i < COLS; i++)
      b[i] = ldexpf((float)(1 + rng_below(&r, 9)), 2 - 5 * k);
    /* exact */
    for (int i = 0; i < D; i++)
      most = fmaxf(most, g[i] = a[i / COLS] * b[i % COLS]);
    fixture_ok(&f, ng_step(f.p, 1));
    memcpy(first, window_field(&f, "factors"), sizeof first);
    for (int i = 0; i < ROWS; i++)
      assert_true(first[ROWS + i] == 0 && first[i] != 0);
    for (int c = COLS; c < 2 * COLS; c++)
      assert_true(first[Q_AT + c] == before[Q_AT + c]);
    /* the first column is shorter than 1 by 1e-8 / |p|, where |p| is at least the gradient's largest entry */
    const float *e = window_field(&f, "error"), short_of = 3e-8F / most;
    for (int i = 0; i < D; i++)
      assert_true(fabsf(e[i]) <= (1e-6F + short_of) * most);
    fixture_close(&f);
  }
}

/* A skipped step leaves a NaN in the memory of the direction, which must not enter the next step.  No row enters in the
 * skipped step; then stat_period becomes 1. */
static void skipped_steps_leave_no_nan(void **state) {
  static const char *const stores[] = {"window_store=lowrank window_rank=2", "window_store=dense",
                                       "window_store=topk window_density=0.3"};
  for (int k = 0; k < 3; k++) {
    char options[160];
    float out[2][D];
    (void)snprintf(options, sizeof options, "method=mfac window=3 damping=0.1 stat_period=2 %s",
                   stores[k]);
    for (int skipped = 0; skipped < 2; skipped++) {
      fixture f;
      float g[D];
      const plane v[2] = {plane_of(g, ROWS, COLS, NG_F32), {0}};
      fixture_ok(&f, fixture_open(&f, options, NULL));
      fixture_ok(&f, fixture_add_linear(&f, "fc", v, NULL));
      fixture_ok(&f, ng_ready(f.p));
      draw_weights(0, g);
      fixture_ok(&f, ng_step(f.p, 1));
      if (skipped) {
        for (int i = 0; i < D; i++)
          g[i] = NAN;
        assert_int_equal(ng_step(f.p, 1), NG_SKIPPED);
      }
      fixture_ok(&f, ng_set(f.p, "stat_period", "1"));
      draw_weights(1, g);
      fixture_ok(&f, ng_step(f.p, 1));
      memcpy(out[skipped], g, sizeof g);
      fixture_close(&f);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(lowrank_rows_equal_dense),
                                     cmocka_unit_test(topk_of_all_nonzeros_equals_dense),
                                     cmocka_unit_test(threads_change_no_bit_of_topk),
                                     cmocka_unit_test(first_factor_uses_the_weights),
                                     cmocka_unit_test(first_factor_ignores_bad_weights),
                                     cmocka_unit_test(first_factor_depends_on_the_name),
                                     cmocka_unit_test(rank_one_gradients_are_sent_whole),
                                     cmocka_unit_test(skipped_steps_leave_no_nan)};
  return cmocka_run_group_tests_name("stores of windows", tests, NULL, NULL);
}
