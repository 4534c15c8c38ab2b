/* t_weights.c: a file of weights is read as it was written, and refused by name where one of them is not finite: its
 * checksums may be right all the same. */
#include "nn/models.h"
#include "train/checkpoint.h"
#include "trainer_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void what_is_not_finite_is_refused(void **state) {
  (void)state;
  static const float values[] = {FLT_MAX, -FLT_TRUE_MIN, INFINITY, -INFINITY, NAN};
  const model_task task = {.input = {1, 1, 6}, .classes = 3};
  bool reconstructs = false;
  nn *net = nn_create(NULL, 1);
  assert_int_equal(model_build("logreg", &task, net, &reconstructs), 0);
  assert_int_equal(nn_ready(net, 1), 0);
  const nn_param *last = nn_param_at(net, nn_params(net) - 1);
  char says[128];
  (void)snprintf(says, sizeof says, "tensor '%s' holds a number that is not finite", last->name);
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    run_state s, back;
    checkpoint_init(&s);
    checkpoint_init(&back);
    last->value[1] = values[i];
    assert_int_equal(checkpoint_write_model(in_folder("w.safetensors"), net, &s, 0), 0);
    last->value[1] = 0.0F;
    quiet();
    const int rc = checkpoint_read_model(in_folder("w.safetensors"), net, &back);
    const char *text = said();
    if ((rc == 0) != (isfinite(values[i]) != 0))
      fail_msg("%g: %d, %s", (double)values[i], rc, text);
    if (rc == 0)
      assert_true(last->value[1] == values[i]);
    else
      assert_non_null(strstr(text, says));
  }
  nn_destroy(&net);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_not_finite_is_refused)};
  return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
