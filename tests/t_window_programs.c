/* t_window_programs.c: what the published programs can be asked for, drawn at random: stores, decay, masks, momentum,
 * filling and emptying together, against the formulas in double (window_oracle.h), which t_window_golden holds to
 * recordings of a few of these.
 *
 * Gradients, weights and decay are on a grid of 1/512, which f32 holds, and so is all that enters but for low rank.
 * Damping 0.1 multiplies the rounding of an average, or of a sum with the weight, by 200 at most: 200 units of f32.
 * Low rank rounds e, P and Q to f32, which goes round through the warm start: 5e-4. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "fixture.h"
#include "window_oracle.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { OUT = 5, IN = 6, VECTOR = 7, D = OUT * IN + OUT + VECTOR, PARAMETERS = 3 };

static double coin(rng *r, double x) { return rng_below(r, 2) > 0 ? x : 0; }

static float on_grid(rng *r) { return rintf(512 * (float)(3 * rng_real(r) - 1.5)) / 512; }

/* M-FAC and GGT, dense, sparse and of low rank, as their classes may be made; false: low rank. */
static bool draw(rng *r, char *to, size_t size) {
  static const char *const forms[] = {"average", "heavy-ball", "gradient"};
  static const char *const decays[] = {"gradient", "direction", "none"};
  static const char *const modes[] = {"global", "layer", "block"};
  static const char *const fills[] = {"none", "gradient", "error", "rest"};
  const int kind = (int)rng_below(r, 4);
  const bool ggt = kind == 0, topk = kind == 2 || (ggt && rng_below(r, 2) > 0), low = kind == 3;
  const bool rest = topk && !ggt && rng_below(r, 4) == 0;
  const double momentum = coin(r, 0.75), forget = ggt ? 1 - coin(r, 0.125) : 1;
  const char *fill = topk && !ggt && !rest ? fills[rng_below(r, 4)] : "none";
  const bool plain = rest || strcmp(fill, "none") != 0;
  int n = snprintf(to, size,
                   "method=%s window=%d damping=0.1 window_momentum=%g window_momentum_form=%s "
                   "window_decay=%g window_decay_form=%s window_mask=%d stat_period=%d "
                   "window_scope=%s window_forget=%g window_store=%s",
                   ggt ? "ggt" : "mfac", 1 + (int)rng_below(r, 5), momentum,
                   forms[rng_below(r, plain ? 2 : 3)], coin(r, 0.25),
                   decays[ggt ? 2 * rng_below(r, 2) : rng_below(r, 3)], !low && rng_below(r, 2) > 0,
                   1 + (int)rng_below(r, 2), rng_below(r, 3) > 0 ? "model" : "parameter",
                   plain ? 1 : forget,
                   topk  ? "topk"
                   : low ? "lowrank"
                         : "dense");
  if (low) (void)snprintf(to + n, size - (size_t)n, " window_rank=%d", 1 + (int)rng_below(r, 2));
  if (!low && !ggt)
    n += snprintf(to + n, size - (size_t)n, " window_divisor=%s",
                  rng_below(r, 2) > 0 ? "filled" : "window");
  const char *mode = modes[rng_below(r, 3)];
  const bool count = topk && mode == modes[0] && rng_below(r, 3) == 0;
  if (topk)
    (void)snprintf(to + n, size - (size_t)n,
                   " window_density=%g window_topk=%s window_rest=%s window_fill=%s "
                   "window_feedback_lr=%d window_empty=%g window_dtype=%s",
                   (count ? 45 : 0.4) * rng_real(r) + (count ? 1.5 : 0.05), mode,
                   rest ? "added" : "kept", fill, (int)rng_below(r, 2), coin(r, 0.5),
                   rng_below(r, 2) > 0 ? "bf16" : "f32");
  return !low;
}

/* The low-rank store begins with a Q of its own: the oracle takes that. */
static void take_q(const fixture *f, window_oracle *k) {
  const int64_t rank = k->o.window_rank;
  const float *q =
      window_field(f, "factors") + k->o.window * (rank * (OUT + IN) + OUT + VECTOR) + rank * OUT;
  k->q[0] = scene_room(sizeof(double) * (size_t)(IN * rank));
  for (int64_t i = 0; i < IN * rank; i++)
    k->q[0][i % IN * rank + i / IN] = (double)q[i];
}

static double play(const char *options, bool low, uint64_t seed) {
  static const int64_t size[] = {(int64_t)OUT * IN, OUT, VECTOR}, rows[] = {OUT, 1, 1};
  const ng_options o = fixture_parse(options);
  float g[D], w[D];
  double wide[D], weight[D], u[D], worst = 0;
  rng r = {seed};
  fixture f;
  window_oracle *want = window_oracle_open(&o, PARAMETERS, size, rows);
  if (o.window_mask) want->mask = scene_room(D * sizeof *want->mask);
  for (int i = 0; i < D; i++) {
    w[i] = o.window_mask && i % 3 == 0 ? 0 : on_grid(&r) + 2;
    weight[i] = (double)w[i];
    if (o.window_mask) want->mask[i] = w[i] != 0;
  }
  const plane vg[2] = {plane_of(g, OUT, IN, NG_F32), plane_of(g + OUT * IN, 1, OUT, NG_F32)};
  const plane vw[2] = {plane_of(w, OUT, IN, NG_F32), plane_of(w + OUT * IN, 1, OUT, NG_F32)};
  const plane tg = plane_of(g + D - VECTOR, 1, VECTOR, NG_F32);
  const plane tw = plane_of(w + D - VECTOR, 1, VECTOR, NG_F32);
  fixture_ok(&f, fixture_open_options(&f, &o, NULL));
  fixture_ok(&f, fixture_linear(&f, "fc", vg, vw));
  fixture_ok(&f, fixture_tensor(&f, "scale", &tg, &tw));
  fixture_ok(&f, ng_ready(f.p));
  if (low) take_q(&f, want);
  for (int t = 0; t < 9; t++) {
    const double lr = t % 4 == 3 ? 0.5 : 1;
    double most = 0, gap = 0;
    for (int i = 0; i < D; i++)
      wide[i] = (double)(g[i] = on_grid(&r));
    window_oracle_step(want, wide, weight, lr, t % o.stat_period == 0, u);
    fixture_ok(&f, ng_step(f.p, lr));
    for (int i = 0; i < D; i++) {
      most = fmax(most, fabs(u[i]));
      gap = fmax(gap, fabs((double)g[i] - u[i]));
      if (!isfinite(g[i])) return INFINITY;
    }
    worst = fmax(worst, most > 0 ? gap / most : gap);
  }
  fixture_close(&f);
  window_oracle_close(&want);
  return worst;
}

static void as_published(void **state) {
  (void)state;
  rng r = {test_seed()};
  for (int64_t n = 0; n < test_times(400); n++) {
    char options[600];
    const bool exact = draw(&r, options, sizeof options);
    const uint64_t seed = rng_next(&r);
    const double e = play(options, !exact, seed);
    if (!(e <= (exact ? 200 * 0x1p-24 : 5e-4)))
      fail_msg("%s, seed %" PRIu64 ": off by %g", options, seed, e);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_published)};
  return cmocka_run_group_tests_name("programs of windows", tests, NULL, NULL);
}
