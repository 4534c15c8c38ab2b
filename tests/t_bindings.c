/* t_bindings.c: when bindings expire, and lists of bindings.  t_absent.c tests missing gradients and frozen layers. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bound.h"

/* ---- expiry ----------------------------------------------------------------------------------*/

static void bindings_of_one_step_expire(void **state) {
  for (int32_t k = 0; k < ENTRIES; k++) {
    for (int weight = 0; weight < 2; weight++) {
      model m;
      fixture_ok(&m.f, open_model(&m, "damping=0.1 update=sgd", NULL));
      const ng_array a = array_of(weight ? m.weight[k] : m.grad[k], k);
      ng_binding b = {k, NG_WEIGHT, weight ? NULL : &a, weight ? &a : NULL, NG_ONE_STEP};
      fixture_ok(&m.f, ng_bind(m.f.p, &b, 1));
      draw_gradients(&m, 0);
      fixture_ok(&m.f, observe_layers(&m, 0, 3));
      fixture_ok(&m.f, step_sgd(&m));
      draw_gradients(&m, 1);
      model before = m;
      fixture_ok(&m.f, observe_layers(&m, 1, 3));
      fixture_fails(&m.f, step_sgd(&m), NG_ERR_STATE, "has expired (NG_ONE_STEP)");
      assert_non_null(strstr(ng_last_error(m.f.ctx), k == GAMMA ? "gamma"
                                                     : k == FC1 ? "fc1"
                                                                : "fc2"));
      assert_memory_equal(before.weight, m.weight, sizeof m.weight);
      assert_memory_equal(before.grad, m.grad, sizeof m.grad);
      /* after ng_bind the step succeeds with the same observations; bindings with NG_HOLD are still valid */
      fixture_ok(&m.f, ng_bind(m.f.p, &b, 1));
      fixture_ok(&m.f, step_sgd(&m));
      fixture_close(&m.f);
    }
  }
}

/* A skipped step ends a binding; a rejected call does not. */
static void skipped_steps_end_a_binding(void **state) {
  model m;
  fixture_ok(&m.f, open_model(&m, "damping=0.1", NULL));
  fixture_ok(&m.f, bind_one(&m, FC1, m.grad[FC1], NULL, NG_ONE_STEP));
  draw_gradients(&m, 0);
  fixture_fails(&m.f, ng_step(m.f.p, 0.1), NG_ERR_STATE, "never observed");
  fixture_ok(&m.f, observe_layers(&m, 0, 3));
  m.grad[FC2][0] = NAN;
  assert_int_equal(ng_step(m.f.p, 0.1), NG_SKIPPED);
  draw_gradients(&m, 0);
  fixture_ok(&m.f, observe_layers(&m, 0, 3));
  fixture_fails(&m.f, ng_step(m.f.p, 0.1), NG_ERR_STATE, "'fc1.weight'");
  fixture_close(&m.f);
}

/* Every step has newly allocated gradients, and the old ones are freed.  The address sanitizer finds stale accesses. */
static void gradients_in_new_memory(void **state) {
  enum { STEPS = 10000 };
  const char *const settings[] = {"damping=0.1 update=sgd solve_period=50 stat_period=10",
                                  "method=eva damping=0.1 update=sgd"};
  for (int way = 0; way < 2; way++) {
    model m, d;
    fixture_ok(&m.f, open_model(&m, settings[way], NULL));
    fixture_ok(&d.f, open_model(&d, settings[way], NULL));
    for (int32_t t = 0; t < STEPS; t++) {
      float *grad[ENTRIES];
      ng_array a[ENTRIES];
      ng_binding list[ENTRIES];
      draw_gradients(&d, t % 50);
      for (int32_t k = 0; k < ENTRIES; k++) {
        grad[k] = malloc((size_t)count[k] * sizeof(float));
        memcpy(grad[k], d.grad[k], (size_t)count[k] * sizeof(float));
        a[k] = array_of(grad[k], k);
        list[k] = (ng_binding){k, NG_WEIGHT, &a[k], NULL, NG_ONE_STEP};
      }
      fixture_ok(&m.f, ng_bind(m.f.p, list, ENTRIES));
      fixture_ok(&m.f, observe_layers(&m, t % 50, 3));
      fixture_ok(&d.f, observe_layers(&d, t % 50, 3));
      fixture_ok(&m.f, step_sgd(&m));
      fixture_ok(&d.f, step_sgd(&d));
      for (int32_t k = 0; k < ENTRIES; k++) {
        free(grad[k]);
      }
      if (t % 7 == 3) assert_int_equal(step_sgd(&m), NG_ERR_STATE); /* expired */
    }
    assert_memory_equal(m.weight, d.weight, sizeof m.weight);
    fixture_close(&m.f);
    fixture_close(&d.f);
  }
}

/* ---- lists -----------------------------------------------------------------------------------*/

static void a_list_is_bound_whole_or_not(void **state) {
  model m;
  float other[ENTRIES][MID * IN] = {{0}};
  fixture_ok(&m.f, open_model(&m, "damping=0.1 update=sgd", NULL));
  ng_array a[ENTRIES], bad;
  ng_binding list[ENTRIES];
  for (int32_t k = 0; k < ENTRIES; k++) {
    a[k] = array_of(other[k], k);
    list[k] = (ng_binding){k, NG_WEIGHT, &a[k], &a[k], NG_HOLD};
  }
  for (int way = 0; way < 7; way++) {
    ng_binding *last = &list[ENTRIES - 1];
    const ng_binding right = *last;
    bad = a[ENTRIES - 1];
    last->grad = &bad;
    if (way == 0) bad.room[1] = 4;
    if (way == 1) bad.dtype = NG_I64;
    if (way == 2) bad.mem = NG_DEVICE;
    if (way == 3) bad.room[5] = 0;
    if (way == 4) last->index = 3;
    if (way == 5) last->param = NG_BIAS;
    if (way == 6) last->hold = (ng_hold)0;
    static const ng_status want[7] = {NG_ERR_SHAPE, NG_ERR_ARG, NG_ERR_ABSENT, NG_ERR_SHAPE,
                                      NG_ERR_ARG,   NG_ERR_ARG, NG_ERR_ARG};
    static const char *const word[7] = {"[1, 4]",     "i64",  "device",   "share memory",
                                        "index is 3", "bias", "hold is 0"};
    fixture_fails(&m.f, ng_bind(m.f.p, list, ENTRIES), want[way], word[way]);
    *last = right;
  }
  draw_gradients(&m, 0);
  fixture_ok(&m.f, observe_layers(&m, 0, 3));
  fixture_ok(&m.f, step_sgd(&m));
  for (int32_t k = 0; k < ENTRIES; k++) { /* nothing in the refused lists was bound */
    for (int64_t i = 0; i < count[k]; i++) {
      assert_true(other[k][i] == 0.0f);
    }
  }
  fixture_close(&m.f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bindings_of_one_step_expire),
      cmocka_unit_test(skipped_steps_end_a_binding),
      cmocka_unit_test(gradients_in_new_memory),
      cmocka_unit_test(a_list_is_bound_whole_or_not),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
