/* t_recipe_steps.c: what every step of a run is given: the published learning rate, momentum and damping of that step,
 * worked out here, with micro-batches, and in a run that goes on from any step. t_recipe has the formulas one by
 * one; this is whether the loop hands them on in time. The linker puts the fakes between (--wrap in CMakeLists.txt). */
#include "common/cli.h"
#include "trained.h"
#include "trainer_help.h"

#include "natgrad.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 15, PER_EPOCH = 5 };
/* 40 samples, two batches of 4 a step: 5 steps an epoch, 3 epochs. */
#define DATA "synthetic:classes=4,features=6,train=40,test=7,noise=3"
#define RUN                                                                                        \
  "model=mlp-5-1 method=spngd damping=0.01 damping-start=0.5 damping-warm-up=2 batch=4 "           \
  "acc-iters=2 lr=0.2 momentum=0.9 log-every=1 "

static struct {
  int steps;
  double set; /* damping, last */
  double lr[STEPS], momentum[STEPS], damping[STEPS];
} seen;

ng_status __real_ng_set_real(ng_precond *p, const char *name, double value);
ng_status __wrap_ng_set_real(ng_precond *p, const char *name, double value);
ng_status __wrap_ng_set_real(ng_precond *p, const char *name, double value) {
  if (strcmp(name, "damping") == 0) seen.set = value;
  return __real_ng_set_real(p, name, value);
}

ng_status __real_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n) {
  assert_true(seen.steps < STEPS);
  seen.lr[seen.steps] = groups[0].lr;
  seen.momentum[seen.steps] = groups[0].momentum;
  seen.damping[seen.steps] = seen.set;
  seen.steps++;
  seen.set = -1; /* of every step anew */
  return __real_ng_step_sgd(p, groups, n);
}

/* eta(e) of chainerkfac with p = 3, from epoch 0.5 to 4; with a warm-up of half an epoch, or none. */
static double eta(int step, bool warms_up) {
  const double e = (double)step / PER_EPOCH;
  const double up = warms_up && e < 0.5 ? e / 0.5 : 1;
  return 0.2 * up * (e < 0.5 ? 1 : pow(1 - (e - 0.5) / 3.5, 3));
}

/* Steps [from, STEPS) of a run; to rounding of a few operations in double. */
static void as_published(const char *adjust, bool warms_up, int from) {
  const double a = 2 * log10(0.5 / 0.01) / (2 * PER_EPOCH);
  double damping = 0.5;
  for (int t = 0; t < STEPS; t++, damping = (1 - a) * damping + a * 0.01) {
    const double lr = eta(t, warms_up), before = t == 0 ? lr : eta(t - 1, warms_up);
    if (t < from) continue;
    if (fabs(seen.lr[t] - lr) > 1e-14 || fabs(seen.damping[t] - damping) > 1e-14)
      fail_msg("step %d: lr %.15g, damping %.15g; not %.15g, %.15g", t, seen.lr[t], seen.damping[t],
               lr, damping);
    if (lr == 0) continue; /* the weights stay, whatever the momentum is */
    /* v <- m v - lr N, w <- w + v there; u <- m' u + N, w <- w - lr u here: v = -lr u */
    const double m = strcmp(adjust, "ratio") == 0          ? 0.9 * fmin(1, lr / before)
                     : strcmp(adjust, "proportional") == 0 ? 0.9 / 0.2 * lr
                                                           : 0.9 * lr / before;
    const double want = strcmp(adjust, "none") == 0 ? 0.9 : m * before / lr;
    if (!(fabs(seen.momentum[t] - want) <= 1e-14))
      fail_msg("%s, step %d: momentum %.15g, not %.15g", adjust, t, seen.momentum[t], want);
  }
}

static void every_step_is_the_published_one(void **state) {
  static const char *const adjust[] = {"ratio", "proportional", "none"};
  static const int first[] = {1, 4, 5, 6, 11};
  (void)state;
  data_set d;
  trained r;
  assert_int_equal(data_open(DATA, &d), CLI_OK);
  for (int k = 0; k < 6; k++) {
    const bool warms_up = k >= 3;
    char name[32], whole[512], part[600];
    (void)snprintf(whole, sizeof whole,
                   RUN "lr-schedule=polynomial:3@0.5,4 adjust-momentum=%s warm-up=%s epochs=3",
                   adjust[k % 3], warms_up ? "0.5" : "0");
    (void)snprintf(name, sizeof name, "recipe-%d", k);
    memset(&seen, 0, sizeof seen);
    train(&d, name, whole, &r);
    drop_trained(&r);
    assert_int_equal(seen.steps, STEPS);
    as_published(adjust[k % 3], warms_up, 0);
    for (size_t i = 0; i < sizeof first / sizeof first[0] && k == 3; i++) {
      (void)snprintf(name, sizeof name, "recipe-part-%d", first[i]);
      (void)snprintf(part, sizeof part, "%s steps=%d", whole, first[i]);
      memset(&seen, 0, sizeof seen);
      train(&d, name, part, &r);
      drop_trained(&r);
      assert_int_equal(seen.steps, first[i]);
      (void)snprintf(part, sizeof part, "%s resume=true", whole);
      train(&d, name, part, &r);
      drop_trained(&r);
      assert_int_equal(seen.steps, STEPS);
      as_published(adjust[k % 3], warms_up, first[i]);
    }
  }
  data_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_step_is_the_published_one)};
  return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
