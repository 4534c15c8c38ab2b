/* t_lr.c: the learning rate of a training run against its formulas, and the parser of schedules. */
#include "train/lr.h"
#include "train/recipe.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Rounding of a few operations on numbers up to 1. */
#define NEAR 1e-14

static void check_lr(const char *schedule, const char *warm_up, double epoch, double total,
                     double expected) {
  settings s;
  settings_init(&s);
  must_set(&s, "lr", "0.5");
  must_set(&s, "lr-schedule", schedule);
  must_set(&s, "warm-up", warm_up);
  const double got = recipe_get_lr(&s, epoch, total);
  if (fabs(got - 0.5 * expected) > NEAR)
    fail_msg("%s at %g of %g: %.17g instead of %.17g", schedule, epoch, total, got, 0.5 * expected);
  settings_free(&s);
}

static void lr_follows_its_formulas(void **state) {
  check_lr("constant", "0", 7.5, 10, 1);
  check_lr("step:3,6", "0", 2.999, 10, 1);
  check_lr("step:3,6", "0", 3, 10, 0.1);
  check_lr("step:3,6", "0", 9, 10, 0.01);
  check_lr("step:0.5,6@0.2", "0", 0.5, 10, 0.2);
  check_lr("step:3,6@0.5", "0", 6, 10, 0.25);
  check_lr("cosine", "0", 0, 10, 1);
  check_lr("cosine", "0", 2.5, 10, 0.5 * (1 + sqrt(0.5)));
  check_lr("cosine", "0", 5, 10, 0.5);
  check_lr("cosine", "0", 10, 10, 0);
  check_lr("cosine:0.2", "0", 10, 10, 0.2);
  check_lr("cosine:0.2", "0", 5, 10, 0.6);
  check_lr("linear", "0", 4, 10, 0.6);
  check_lr("linear:0.5", "0", 10, 10, 0.5);
  check_lr("linear:0.5", "0", 5, 10, 0.75);
  check_lr("polynomial:2", "0", 5, 10, 0.25);
  check_lr("polynomial:0.5", "0", 7.5, 10, 0.5);
  check_lr("polynomial:2@2,6", "0", 1.999, 5, 1);
  check_lr("polynomial:2@2,6", "0", 4, 5, 0.25);
  check_lr("polynomial:2@2,6", "0", 6, 10, 0.25);  /* END is at least the end of the run */
  check_lr("polynomial:1@0,20", "4", 2, 10, 0.45); /* the warm-up rises while the schedule falls */
  check_lr("cyclic:4", "0", 0, 10, 0.1);
  check_lr("cyclic:4", "0", 1, 10, 0.55);
  check_lr("cyclic:4", "0", 2, 10, 1);
  check_lr("cyclic:4@0.4", "0", 3, 10, 0.7);
  check_lr("cyclic:4@0.4", "0", 8, 10, 0.4);
  /* After a warm-up the schedule is stretched over the remaining epochs. */
  check_lr("constant", "2", 0, 10, 0);
  check_lr("constant", "2", 0.5, 10, 0.25);
  check_lr("constant", "2", 2, 10, 1);
  check_lr("cosine", "2", 1, 10, 0.5);
  check_lr("cosine", "2", 2, 10, 1);
  check_lr("cosine", "2", 6, 10, 0.5);
  check_lr("linear", "2", 4, 10, 0.75);
  check_lr("polynomial:3", "2", 6, 10, 0.125);
  check_lr("step:1,3", "2", 1, 10, 0.05);
  check_lr("step:1,3", "2", 2.5, 10, 0.1);
  check_lr("linear", "20", 5, 10, 0.25); /* a run that ends within its warm-up */
}

/* Only `step` schedules jump, and no schedule leaves [0, lr]. */
static void lr_is_continuous_and_bounded(void **state) {
  static const char *const schedule[] = {"constant",         "cosine",       "cosine:0.1",
                                         "linear",           "linear:0.3",   "polynomial:1",
                                         "polynomial:2.5",   "cyclic:3@0.2", "cyclic:0.5",
                                         "step:2,4,7.5@0.5", "step:1"};
  enum { STEPS = 10000 };
  for (size_t k = 0; k < sizeof schedule / sizeof schedule[0]; k++) {
    for (int w = 0; w < 2; w++) {
      settings s;
      settings_init(&s);
      must_set(&s, "lr", "1");
      must_set(&s, "lr-schedule", schedule[k]);
      must_set(&s, "warm-up", w == 1 ? "1.5" : "0");
      int jumps = 0;
      double last = recipe_get_lr(&s, 0, 10);
      for (int i = 1; i <= STEPS; i++) {
        const double lr = recipe_get_lr(&s, 10.0 * i / STEPS, 10);
        assert_true(lr >= 0 && lr <= 1 + NEAR);
        /* The steepest is cyclic:0.5: 1.8 in half a period of 0.25, 0.0036 per step. */
        jumps += fabs(lr - last) > 0.005;
        last = lr;
      }
      const int expected = strncmp(schedule[k], "step:2", 6) == 0 ? 3 : schedule[k][0] == 's';
      if (jumps != expected) fail_msg("%s jumps %d times", schedule[k], jumps);
      settings_free(&s);
    }
  }
}

static void lr_schedules_are_read_strictly(void **state) {
  /* separated by bars; the first is empty */
  static const char bad[] =
      "|cosin|step|step:|step:3,2|step:0|step:1,|step:1@|step:1@2|step:1@0.1x|step:1;2|cosine"
      ":|cosine:2|cosine:-0.1|cosine:0.1,2|constant:|constant:1|polynomial|cyclic|cyclic:0|cy"
      "clic:nan|cyclic:2@1.5|polynomial:x|linear:inf|step:nan|constant |cyclic:2@|polynomial:"
      "-1|polynomial:2@|polynomial:2@1|polynomial:2@3,3|polynomial:2@1,2,3|polynomial:2@-1,3";
  char message[256];
  lr_schedule l;
  for (const char *at = bad; at != NULL;
       at = strchr(at, '|') != NULL ? strchr(at, '|') + 1 : NULL) {
    char one[32];
    (void)snprintf(one, sizeof one, "%.*s", (int)strcspn(at, "|"), at);
    message[0] = 0;
    if (lr_parse(one, &l, message, sizeof message) != CLI_BAD || message[0] == 0)
      fail_msg("'%s' is taken", one);
  }
  char many[512] = "step:1"; /* one value more than LR_VALUES */
  for (int i = 2; i <= LR_VALUES + 1; i++) {
    const size_t n = strlen(many);
    (void)snprintf(many + n, sizeof many - n, ",%d", i);
  }
  assert_int_equal(lr_parse(many, &l, message, sizeof message), CLI_BAD);
  *strrchr(many, ',') = 0;
  assert_int_equal(lr_parse(many, &l, message, sizeof message), CLI_OK);
  assert_int_equal(l.values, LR_VALUES);
}

static void default_lr_depends_on_the_update(void **state) {
  static const struct {
    const char *set, *value;
    double lr;
  } row[] = {{"optimizer", "sgd", 0.03},     {"optimizer", "adamw", 0.001},
             {"method", "sgd", 0.03},        {"method", "adamw", 0.001},
             {"method", "eva", 0.001},       {"optimizer", "sgd", 0.03 * 0.03},
             {"damping", "0.5", 0.03 * 0.5}, {"method", "kaisa", 0.03},
             {"method", "mfac", 0.0001},     {"method", "ggt", 0.03},
             {"method", "kaisa", 0.03},      {"optimizer", "adamw", 0.001},
             {"lr", "0.25", 0.25},           {"lr", "default", 0.001}};
  settings s;
  settings_init(&s);
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    must_set(&s, row[i].set, row[i].value);
    if (settings_choose_lr(&s) != row[i].lr)
      fail_msg("%s = %s: %g", row[i].set, row[i].value, settings_choose_lr(&s));
  }
  settings_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lr_follows_its_formulas),
      cmocka_unit_test(lr_is_continuous_and_bounded),
      cmocka_unit_test(lr_schedules_are_read_strictly),
      cmocka_unit_test(default_lr_depends_on_the_update),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
