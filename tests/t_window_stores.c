/* t_window_stores.c: stores that lose nothing here have the directions of the dense one.
 *
 * lowrank   a tensor of one row is kept whole: longer than a chunk of the flat loops
 * topk      as many entries as are not zero, in any of several blocks of indices, and none in the others
 * all       every entry, or factors of full rank, of layers with more rows than columns, and less
 *
 * and what is sent and what is kept is, when something is left behind, all that came.
 *
 * Both keep f32 and add in double, in another order than the dense store, so to the last bit of f32; 1e-6 of the
 * largest number is eight times that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "fixture.h"
#include "window_oracle.h"

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
  for (int i = 0; i < WIDE; i++)
    g[i] = (float)rng_value(&r);
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
  (void)state;
  same("method=mfac window=3 damping=0.1 window_store=lowrank window_rank=2", all_of_it, LONG);
}

static void topk(void **state) {
  (void)state;
  same("method=mfac window=3 damping=0.1 window_store=topk window_density=0.000244140625",
       some_of_a_block, WIDE);
  same("method=mfac window=3 damping=0.1 window_store=topk window_topk=layer "
       "window_density=0.000244140625",
       some_of_a_block, WIDE);
}

/* One group that is large enough for several threads to choose from, and many. */
static void topk_on_threads(void **state) {
  static const char *const options[] = {
      "method=efcp window=3 damping=0.1 window_density=0.003 window_dtype=bf16",
      "method=efcp window=3 damping=0.1 window_density=0.003 window_topk=block"};
  static float one[STEPS][WIDE], more[STEPS][WIDE];
  (void)state;
  for (int k = 0; k < 2; k++) {
    live(options[k], 1, any_of_it, WIDE, one);
    live(options[k], 3, any_of_it, WIDE, more);
    assert_memory_equal(one, more, sizeof one);
  }
}

/* ---- all of it -------------------------------------------------------------------------------*/

/* A layer of more rows than columns with a bias, one of less, and a tensor. */
enum { A = 7, B = 4, C = 9, VECTOR = 6, WHOLE = A * B + A + B * C + VECTOR, LIFE = 12 };

static void describe(fixture *f, const char *options, float g[WHOLE]) {
  const plane tall[2] = {plane_of(g, A, B, NG_F32), plane_of(g + A * B, 1, A, NG_F32)};
  const plane wide[2] = {plane_of(g + A * B + A, B, C, NG_F32), {0}};
  const plane vector = plane_of(g + WHOLE - VECTOR, 1, VECTOR, NG_F32);
  fixture_ok(f, fixture_open(f, options, NULL));
  fixture_ok(f, fixture_linear(f, "tall", tall, NULL));
  fixture_ok(f, fixture_linear(f, "wide", wide, NULL));
  fixture_ok(f, fixture_tensor(f, "vector", &vector, NULL));
  fixture_ok(f, ng_ready(f->p));
}

/* Multiples of 1/512: f32 holds every sum of them here. */
static void on_a_grid(int step, float g[WHOLE]) {
  rng r = {(uint64_t)step + test_seed()};
  for (int i = 0; i < WHOLE; i++)
    g[i] = rintf((float)(512 * (cos(i) + 0.5 * rng_value(&r)))) / 512;
}

/* lowrank: P and Q are rounded to f32, and what that leaves comes a step later: 1e-7 of a gradient in each row,
 * which F^-1 multiplies by up to |G|^2 / (lambda M), 1e3 here. */
static void all_of_a_gradient(void **state) {
  static const struct {
    const char *options;
    double tolerance;
  } stores[] = {{"window_store=topk window_density=1", 1e-6},
                {"window_store=topk window_density=1 window_topk=layer", 1e-6},
                {"window_store=topk window_density=1 window_topk=block", 1e-6},
                {"window_store=lowrank window_rank=4", 2e-4},
                {"window_store=lowrank window_rank=100", 2e-4}};
  (void)state;
  for (size_t k = 0; k < sizeof stores / sizeof stores[0]; k++) {
    static const char *const functions[] = {"method=mfac window=5 damping=0.1",
                                            "method=ggt window=5 damping=0.1"};
    for (int q = 0; q < 2; q++) {
      char options[200];
      fixture f[2];
      float g[2][WHOLE];
      (void)snprintf(options, sizeof options, "%s %s", functions[q], stores[k].options);
      describe(&f[0], functions[q], g[0]);
      describe(&f[1], options, g[1]);
      for (int t = 0; t < LIFE; t++) {
        double most = 0, gap = 0;
        for (int i = 0; i < 2; i++) {
          on_a_grid(t, g[i]);
          fixture_ok(&f[i], ng_step(f[i].p, 1.0));
        }
        for (int i = 0; i < WHOLE; i++) {
          most = fmax(most, fabs((double)g[0][i]));
          gap = fmax(gap, fabs((double)g[0][i] - (double)g[1][i]));
        }
        if (!(most > 0 && gap <= stores[k].tolerance * most))
          fail_msg("%s: step %d: %g of %g apart", options, t, gap, most);
      }
      fixture_close(&f[0]);
      fixture_close(&f[1]);
    }
  }
}

/* ---- what is left behind ---------------------------------------------------------------------*/

/* The direction of SGD is what was sent, so sent and kept are here without a look at rows.  On a grid nothing
 * of top-k is rounded; low rank rounds P, Q, e and the direction to f32 in each step. */
static void sent_and_kept(void **state) {
  static const struct {
    const char *options;
    double tolerance;
  } stores[] = {{"window_density=0.1", 0},
                {"window_density=0.2 window_topk=layer window_dtype=bf16", 0},
                {"window_density=0.05 window_topk=block window_dtype=bf16", 0},
                {"window_store=lowrank window_rank=1", 1e-6},
                {"window_store=lowrank window_rank=3", 1e-6}};
  (void)state;
  for (size_t k = 0; k < sizeof stores / sizeof stores[0]; k++) {
    char options[200];
    double came[WHOLE] = {0}, sent[WHOLE] = {0}, most = 0, left = 0;
    float g[WHOLE];
    fixture f;
    (void)snprintf(options, sizeof options, "method=topk-sgd window_momentum=0 %s",
                   stores[k].options);
    describe(&f, options, g);
    for (int t = 0; t < LIFE; t++) {
      on_a_grid(t, g);
      for (int i = 0; i < WHOLE; i++)
        came[i] += (double)g[i];
      fixture_ok(&f, ng_step(f.p, 1.0));
      for (int i = 0; i < WHOLE; i++)
        sent[i] += (double)g[i];
      const float *kept = window_field(&f, "error");
      for (int i = 0; i < WHOLE; i++) {
        const double gap = fabs(sent[i] + (double)kept[i] - came[i]);
        most = fmax(most, fabs(came[i]));
        left = fmax(left, fabs((double)kept[i]));
        if (!(gap <= stores[k].tolerance * fmax(1, most)))
          fail_msg("%s: step %d, entry %d: sent %g, kept %g, came %g", options, t, i, sent[i],
                   (double)kept[i], came[i]);
      }
    }
    assert_true(left > 0.1); /* something is */
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lowrank), cmocka_unit_test(topk), cmocka_unit_test(topk_on_threads),
      cmocka_unit_test(all_of_a_gradient), cmocka_unit_test(sent_and_kept)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
