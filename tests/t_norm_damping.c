/* t_norm_damping.c: which damping a norm block has, in every step: damping x norm_damping, as it is then; and with
 * damping_leak = 1 what of it stays in the average.
 *
 * One channel with a beta alone, one sample a step: F = g^2, PD = D / (F + d), every number by hand.  With a period of 2
 * a step passes between two folds, in which a full block is solved again, and leaves its damping again; units
 * solve nothing, and have what they added when the average was moved.
 *
 * Tolerance: F, its inverse and PD are f32, and a leak is added to F in f32: six roundings. */
#include "fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 6 };

typedef struct damped {
  const char *block, *options;
  int period; /* of statistics */
  bool leaks;
  double damping[STEPS]; /* of each step, times norm_damping */
} damped;

static double g_of(int t) { return 1 + t % 4; }

static void open_norm(fixture *f, const damped *c, float *grad) {
  char line[256];
  ng_layer l;
  (void)snprintf(
      line, sizeof line,
      "method=natgrad clip=none stat_decay=0.5 solve_period=1 norm_block=%s stat_period=%d "
      "damping_leak=%d %s",
      c->block, c->period, c->leaks, c->options);
  fixture_ok(f, fixture_open(f, line, NULL));
  ng_layer_init(&l, NG_NORM, sizeof l);
  l.name = "bn";
  l.in = 1;
  l.bias = 1;
  l.norm_no_weight = 1;
  l.norm_kind = NG_BATCH_NORM;
  l.norm_input = NG_NORM_NORMALISED;
  l.norm_eps = 1e-5;
  const ng_array D = ng_array_vector(grad, 1, NG_F32);
  fixture_ok(f, ng_add_layer(f->p, &l, NULL));
  fixture_ok(f, ng_bind_grad(f->p, 0, NG_BIAS, &D));
  fixture_ok(f, ng_ready(f->p));
}

static void as_by_hand(const damped *c) {
  float grad;
  fixture f;
  double F = 0, left = 0; /* in the average: waits for the next fold */
  const bool full = strcmp(c->block, "full") == 0;
  open_norm(&f, c, &grad);
  for (int t = 0; t < STEPS; t++) {
    const bool folds = t % c->period == 0;
    const double d = c->damping[t];
    if (t > 0 && d != c->damping[t - 1]) fixture_ok(&f, ng_set_real(f.p, "damping", d));
    float g = (float)g_of(t);
    const ng_array out = ng_array_matrix(&g, 1, 1, NG_F32);
    if (folds) {
      fixture_ok(&f, ng_begin_samples(f.p, 1, 1));
      fixture_ok(&f, ng_observe_output_grad(f.p, 0, &out, NG_COPY));
      F = t == 0 ? g_of(t) * g_of(t) : 0.5 * (F + left) + 0.5 * g_of(t) * g_of(t);
      left = 0;
    }
    const bool adds = c->leaks && (full || folds);
    const double added = c->leaks && !adds ? left : d, on = adds ? left + d : added;
    if (adds) left += d;
    grad = 1;
    fixture_ok(&f, ng_step(f.p, 0.1));
    if (!(fabs((double)grad * (F + on) - 1) <= 6 * 0x1p-23))
      fail_msg("%s %s, period %d, leak %d, step %d: %.8g, not %.8g", c->block, c->options,
               c->period, c->leaks, t, (double)grad, 1 / (F + on));
    ng_layer_report r = {.struct_size = sizeof r};
    fixture_ok(&f, ng_report_layer(f.p, 0, &r));
    if (!(fabs(r.damping_f / added - 1) <= 0x1p-23))
      fail_msg("%s, step %d: reports %g, not %g", c->block, t, r.damping_f, added);
  }
  fixture_close(&f);
}

static void every_step_has_its_own(void **state) {
  static const char *const blocks[] = {"unit", "diagonal", "full"};
  (void)state;
  for (int k = 0; k < 3 * 2 * 2; k++) {
    const int period = 1 + k / 3 % 2;
    const bool leaks = k / 6 == 1;
    as_by_hand(&(damped){blocks[k % 3], "damping=2", period, leaks, {2, 2, 2, 2, 2, 2}});
    as_by_hand(&(damped){blocks[k % 3], "damping=2", period, leaks, {2, 1, 0.5, 0.5, 0.5, 0.25}});
    as_by_hand(
        &(damped){blocks[k % 3], "damping=0.5 norm_damping=16", period, leaks, {8, 8, 8, 8, 8, 8}});
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_step_has_its_own)};
  return cmocka_run_group_tests_name("norm damping", tests, NULL, NULL);
}
