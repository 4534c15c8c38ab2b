/* t_window_lowrank.c: what window_store = lowrank keeps whole.  A tensor of one row, longer than a chunk of the flat
 * loops, has the directions of the dense store: both keep it in f32 and add in double, in another order, so to
 * the last bit of f32; 1e-6 of the largest number is eight times that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "fixture.h"

#include <math.h>
#include <string.h>

enum { LONG = 20000, STEPS = 6 };

static void live(const char *options, float out[STEPS][LONG]) {
  static float g[LONG];
  const plane v = plane_of(g, 1, LONG, NG_F32);
  fixture f;
  fixture_ok(&f, fixture_open(&f, options, NULL));
  fixture_ok(&f, fixture_tensor(&f, "w", &v, NULL));
  fixture_ok(&f, ng_ready(f.p));
  for (int t = 0; t < STEPS; t++) {
    rng r = {(uint64_t)t + test_seed()};
    for (int i = 0; i < LONG; i++)
      g[i] = (float)(cos(i) + 0.3 * rng_value(&r));
    fixture_ok(&f, ng_step(f.p, 1.0));
    memcpy(out[t], g, sizeof g);
  }
  fixture_close(&f);
}

static void long_tensor(void **state) {
  static float dense[STEPS][LONG], lowrank[STEPS][LONG];
  (void)state;
  live("method=mfac window=3 damping=0.1", dense);
  live("method=mfac window=3 damping=0.1 window_store=lowrank window_rank=2", lowrank);
  for (int t = 0; t < STEPS; t++) {
    double most = 0, gap = 0;
    for (int i = 0; i < LONG; i++) {
      most = fmax(most, fabs((double)dense[t][i]));
      gap = fmax(gap, fabs((double)dense[t][i] - (double)lowrank[t][i]));
    }
    assert_true(most > 0 && gap <= 1e-6 * most);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(long_tensor)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
