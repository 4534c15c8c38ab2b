/* t_window_stores.c: stores that lose nothing here have the directions of the dense one.
 *
 * lowrank   a tensor of one row is kept whole: longer than a chunk of the flat loops
 * topk      as many entries as are not zero, in any of several blocks of indices, and none in the others
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

#include <math.h>
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

static void live(const char *options, fill *of, int64_t n, float out[STEPS][WIDE]) {
  static float g[WIDE];
  const plane v = plane_of(g, 1, n, NG_F32);
  fixture f;
  fixture_ok(&f, fixture_open(&f, options, NULL));
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
  live("method=mfac window=3 damping=0.1", of, n, dense);
  live(store, of, n, other);
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(lowrank), cmocka_unit_test(topk)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
