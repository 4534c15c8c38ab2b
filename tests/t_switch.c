/* t_switch.c: --switch-to-sgd against SGD by hand, from the gradients and weights of every step; and a run that goes
 * on from before the switch, at it, and after it.  The linker puts the fakes between (--wrap in CMakeLists.txt). */
#include "common/cli.h"
#include "trained.h"
#include "trainer_help.h"

#include "natgrad.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 12, PER_EPOCH = 4, MOST = 2000 };
/* 32 samples, batches of 8: 4 steps an epoch, the switch after 6. */
#define DATA "synthetic:classes=4,features=6,train=32,test=7,noise=3"
#define RUN                                                                                        \
  "model=mlp-5-1 method=natgrad damping=0.1 damping-rule=keep-ratio batch=8 lr=0.1 "               \
  "adjust-momentum=proportional "                                                                  \
  "lr-schedule=step:1,2@0.5 weight-decay=0.01 log-every=1 switch-to-sgd=1.5 switch-lr=0.4 "        \
  "switch-momentum=0.7 switch-weight-decay=0.05"

static struct {
  nn *net; /* of the last forward */
  int steps;
  double lr[STEPS],
      gap[STEPS]; /* between the weights and those of SGD by hand, in units of the step */
  double v[MOST];
} seen;

int __real_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch);
int __wrap_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch);
int __wrap_nn_forward(nn *n, nn_mode mode, const float *x, int64_t samples, uint64_t step,
                      const nn_watch *watch) {
  seen.net = n;
  return __real_nn_forward(n, mode, x, samples, step, watch);
}

/* v <- 0.7 v + g + 0.05 w, from 0 at step 6. */
ng_status __real_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n);
ng_status __wrap_ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t n) {
  double want[MOST], most = 0.0, gap = 0.0;
  const int step = seen.steps % STEPS;
  int at = 0;
  assert_true(nn_weights(seen.net) <= MOST);
  for (int i = 0; i < nn_params(seen.net); i++) {
    const nn_param *q = nn_param_at(seen.net, i);
    for (int64_t k = 0; k < q->count; k++, at++) {
      const double g = (double)q->grad[k] + 0.05 * (double)q->value[k];
      seen.v[at] = step <= 6 ? g : 0.7 * seen.v[at] + g;
      want[at] = (double)q->value[k] - groups[0].lr * seen.v[at];
      most = fmax(most, fabs(groups[0].lr * seen.v[at]));
    }
  }
  const ng_status st = __real_ng_step_sgd(p, groups, n);
  at = 0;
  for (int i = 0; i < nn_params(seen.net); i++) {
    const nn_param *q = nn_param_at(seen.net, i);
    for (int64_t k = 0; k < q->count; k++, at++)
      gap = fmax(gap, fabs((double)q->value[k] - want[at]) / most);
  }
  seen.lr[step] = groups[0].lr;
  seen.gap[step] = gap;
  seen.steps++;
  return st;
}

/* f32 weights of order 1 that move by 0.01 and more: 2^-24 of 1 is 6e-6 of that, and so is v's rounding. */
static void sgd_by_hand(void **state) {
  (void)state;
  data_set d;
  trained r;
  assert_int_equal(data_open(DATA, &d), CLI_OK);
  memset(&seen, 0, sizeof seen);
  train(&d, "by-hand", RUN " epochs=3", &r);
  assert_int_equal(seen.steps, STEPS);
  for (int i = 0; i < STEPS; i++) {
    const double shape = i < PER_EPOCH ? 1.0 : i < 2 * PER_EPOCH ? 0.5 : 0.25;
    assert_true(fabs(seen.lr[i] - shape * (i < 6 ? 0.1 : 0.4)) < 1e-12);
    if (i < 6 ? seen.gap[i] < 0.01 : seen.gap[i] > 1e-4)
      fail_msg("step %d is %g from SGD", i, seen.gap[i]);
  }
  int lines = 0;
  for (int i = 0; i < r.lines; i++) {
    if (!is_event(r.line[i], "step")) continue;
    const bool late = lines++ >= 6;
    must_be_near(r.line[i], "lr", seen.lr[lines - 1], 1e-12);
    assert_true(ngio_is(ngio_get(r.line[i], "cosine"), NGIO_NULL) == late);
    const ngio_value *ms = ngio_get(r.line[i], "ms");
    for (const ngio_value *took = ngio_first(ms); took != NULL;
         took = ngio_next(ms, took)) { /* times go on, they do not begin again */
      if (ngio_number_of(took) < 0.0) fail_msg("%s took %g ms", took->key, ngio_number_of(took));
    }
  }
  assert_int_equal(lines, STEPS);
  drop_trained(&r);
  data_close(&d);
}

static void must_be_same(const trained *a, const trained *b) {
  for (int32_t i = 0; i < (int32_t)ngio_tensors_count(a->model); i++) {
    const ngio_tensor *x = ngio_tensors_at(a->model, i), *y = ngio_tensors_find(b->model, x->name);
    assert_non_null(y);
    assert_memory_equal(x->data, y->data, (size_t)x->bytes);
  }
}

static void goes_on_from_either_side(void **state) {
  static const char *const first[] = {"5", "6", "7", "10"};
  (void)state;
  data_set d;
  trained whole, part, rest;
  assert_int_equal(data_open(DATA, &d), CLI_OK);
  train(&d, "whole-switch", RUN " steps=12", &whole);
  for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
    char name[32], set[600];
    (void)snprintf(name, sizeof name, "part-switch-%s", first[i]);
    (void)snprintf(set, sizeof set, RUN " steps=%s", first[i]);
    train(&d, name, set, &part);
    train(&d, name, RUN " steps=12 resume=true", &rest);
    must_be_same(&whole, &rest);
    drop_trained(&part);
    drop_trained(&rest);
  }
  drop_trained(&whole);
  data_close(&d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sgd_by_hand),
      cmocka_unit_test(goes_on_from_either_side),
  };
  return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
