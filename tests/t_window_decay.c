/* t_window_decay.c: window_decay_form = direction at small dampings: every store, with and without the rest of what is
 * sent, in steps off stat_period and of a masked window, as in double (window_oracle.h).
 *
 * Gradients are on a grid of 1/512, so what is sent and what is left of it are exact.  u is made in double
 * and rounded once, then again with its decay: 16 units of f32 of the largest number of u, since
 * the condition of what is solved in double, 1 / lambda = 1e7 at most, times 1e-16, is below one.  Low rank has P and Q
 * in f32: 200 units, and a unit a column of what numbers up to 1 leave over lambda, where the rest is added. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fixture.h"
#include "window_oracle.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { OUT = 6, IN = 7, D = OUT * IN, STEPS = 7 };

static float grid(int64_t i, int64_t step) {
  const uint64_t x = (uint64_t)(step * D + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
  return (float)((int64_t)((x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9) >> 56) - 128) / 512;
}

static void play(const char *options) {
  static const int64_t size[] = {D}, rows[] = {OUT};
  const ng_options o = fixture_parse(options);
  const bool low = strcmp(o.window_store, "lowrank") == 0;
  const bool rest = strcmp(o.window_rest, "added") == 0;
  window_oracle *want = window_oracle_open(&o, 1, size, rows);
  float g[D], w[D];
  double wide[D], weights[D], expected[D];
  bool mask[D];
  fixture f;
  const plane vg[2] = {plane_of(g, OUT, IN, NG_F32), {0}};
  const plane vw[2] = {plane_of(w, OUT, IN, NG_F32), {0}};
  for (int i = 0; i < D; i++) {
    w[i] = i % 5 == 1 ? 0.0F : grid(i, 50);
    mask[i] = w[i] != 0.0F;
  }
  if (o.window_mask) {
    want->mask = scene_room(sizeof mask);
    memcpy(want->mask, mask, sizeof mask);
  }
  fixture_ok(&f, fixture_open(&f, options, NULL));
  fixture_ok(&f, fixture_linear(&f, "fc", vg, vw));
  fixture_ok(&f, ng_ready(f.p));
  if (low) { /* of full rank everything is sent, whatever it begins with */
    want->q[0] = scene_room((size_t)(IN * o.window_rank) * sizeof *want->q[0]);
    const float *q =
        window_field(&f, "factors") + o.window * o.window_rank * (OUT + IN) + o.window_rank * OUT;
    for (int64_t a = 0; a < o.window_rank; a++) {
      for (int64_t i = 0; i < IN; i++)
        want->q[0][i * o.window_rank + a] = (double)q[a * IN + i];
    }
  }
  for (int t = 0; t < STEPS; t++) {
    double most = 0, gap = 0;
    for (int i = 0; i < D; i++) {
      g[i] = grid(i, t);
      wide[i] = (double)g[i];
      weights[i] = (double)w[i];
    }
    window_oracle_step(want, wide, weights, 1, t % o.stat_period == 0, expected);
    fixture_ok(&f, ng_step(f.p, 1));
    for (int i = 0; i < D; i++) {
      most = fmax(most, fabs(expected[i]));
      gap = fmax(gap, fabs((double)g[i] - expected[i]));
      w[i] += mask[i] ? 1.0F / 512 : 0.0F; /* what takes part moves */
    }
    const double rows_f32 = low ? 0x1p-24 * (double)o.window_rank / o.damping : 0;
    if (!(gap <= (low ? 200 : 16) * 0x1p-24 * most + (rest ? rows_f32 : 0)))
      fail_msg("%s, step %d: off by %g of %g", options, t, gap, most);
  }
  fixture_close(&f);
  window_oracle_close(&want);
}

static void every_store(void **state) {
  (void)state;
  static const char *const store[] = {
      "mfac",
      "efcp window_density=1",
      "efcp window_density=1 window_rest=added",
      "efcp window_density=0.3",
      "efcp window_density=0.3 window_rest=added",
      "efcp window_density=0.3 window_fill=rest",
      "efcp window_density=0.3 window_dtype=bf16 window_rest=added",
      "mfac window_rest=added",
      "lowrank-mfac window_rank=6",
      "lowrank-mfac window_rank=6 window_rest=added",
  };
  static const char *const more[] = {"", " stat_period=2", " window_mask=1",
                                     " window_momentum=0.5 window_momentum_form=heavy-ball"};
  for (size_t s = 0; s < sizeof store / sizeof store[0]; s++) {
    for (size_t k = 0; k < sizeof more / sizeof more[0]; k++) {
      for (int lambda = 1; lambda <= 7; lambda += 2) {
        char options[256];
        if (strstr(store[s], "lowrank") != NULL && strstr(more[k], "mask") != NULL) continue;
        (void)snprintf(options, sizeof options,
                       "method=%s window=4 clip=none damping=1e-%d window_decay=0.001 "
                       "window_decay_form=direction%s",
                       store[s], lambda, more[k]);
        play(options);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_store)};
  return cmocka_run_group_tests_name("decay of windows", tests, NULL, NULL);
}
