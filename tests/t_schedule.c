/* t_schedule.c: natgrad train --schedule: values against tables and formulas of the published programs, the grammar,
 * checks with other options; the learning rate against its formulas, and the parser of its schedules. */
#include "train/lr.h"
#include "train/recipe.h"
#include "train/schedule.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double evaluate_schedule(const char *text, const char *option, double initial, int64_t t) {
  double base[SCHEDULED], v[SCHEDULED];
  char message[256] = "";
  int k = 0;
  while (strcmp(schedule_option[k], option) != 0)
    k++;
  for (int i = 0; i < SCHEDULED; i++)
    base[i] = initial;
  if (schedule_evaluate(text, base, t, v, message, sizeof message) != CLI_OK)
    fail_msg("%s: %s", text, message);
  return isnan(v[k]) ? initial : v[k];
}

/* The table of KAISA's own test of exp_decay_factor_averaging. */
static void the_decay_follows_the_table_of_kaisa(void **state) {
  static const struct {
    const char *m;
    int64_t t;
    double v;
  } table[] = {{"0.95", 0, 0},      {"0.95", 1, 0},       {"0.95", 5, 0.8}, {"0.95", 10, 0.9},
               {"0.95", 100, 0.95}, {"0.95", 1000, 0.95}, {"0.1", 1, 0},    {"0.1", 10, 0.1},
               {"0.1", 100, 0.1},   {"1", 1, 0},          {"1", 10, 0.9},   {"1", 100, 0.99}};
  char text[64];
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    (void)snprintf(text, sizeof text, "stat_decay~%s", table[i].m);
    assert_true(evaluate_schedule(text, "stat_decay", 0.5, table[i].t) == table[i].v);
  }
}

/* Values at steps 0 to 4.  MPD-KFAC counts the points passed; KAISA multiplies the current value.  KAISA's own
 * test has the factors 2, 3, 5 and 9. */
static void schedules_multiply_at_their_points(void **state) {
  static const char *const kaisa =
      "stat_period*=2@1,2,3,4 solve-period*=3@1,2,3,4\tdamping*=5@1,2,3,4 kl_clip*=9@1,2,3,4\n";
  static const struct {
    const char *text, *option;
    double base, v[5];
  } row[] = {{"damping*=0.5@2,3,4", "damping", 1, {1, 1, 0.5, 0.25, 0.125}},
             {"damping*0.5@2", "damping", 1, {1, 1, 0.5, 0.5, 0.5}},
             {"damping*0.5@1,3", "damping", 8, {8, 4, 4, 2, 2}},
             {"damping*0.5@1,3", "kl_clip", 8, {8, 8, 8, 8, 8}},
             {"", "kl_clip", 8, {8, 8, 8, 8, 8}},
             {kaisa, "stat_period", 1, {1, 2, 4, 8, 16}},
             {kaisa, "solve_period", 1, {1, 3, 9, 27, 81}},
             {kaisa, "damping", 1, {1, 5, 25, 125, 625}},
             {kaisa, "kl_clip", 1, {1, 9, 81, 729, 6561}},
             {"solve_period*1.5@1,2,3", "solve_period", 3, {3, 4, 6, 10, 10}},
             {"solve_period*=1.5@1,2,3", "solve_period", 3, {3, 4, 6, 9, 9}},
             /* the published periods become 0 */
             {"stat_period*0.1@1,2", "stat_period", 10, {10, 1, 1, 1, 1}},
             {"stat_period*=0.4@1,2", "stat_period", 2, {2, 1, 1, 1, 1}}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    for (int64_t t = 0; t < 5; t++) {
      const double v = evaluate_schedule(row[i].text, row[i].option, row[i].base, t);
      if (v != row[i].v[t])
        fail_msg("%s: %s is %g at step %d, expected %g", row[i].text, row[i].option, v, (int)t,
                 row[i].v[t]);
    }
  }
  assert_true(evaluate_schedule(kaisa, "damping", 1, 1000000) == 625);
}

/* EFCP's rules at x = 1/4, 1/2, 3/4 and the end, from their formulas: 1 - sqrt(15)/4, 1 - sqrt(3)/2, 1 -
 * sqrt(7)/4; e^-3, e^-2, e^-1; 1/(1 + e), 1/2, 1/(1 + 1/e), 1/(1 + e^-2). */
static void curves_follow_the_formulas_of_efcp(void **state) {
  static const struct {
    const char *rule;
    double up[4], down[4]; /* down: if the rule ends at 0, x stops at 3/4 */
  } table[] = {
      {"L", {0.25, 0.5, 0.75, 1}, {0.75, 0.5, 0.25, 0.25}},
      {"Q", {0.0625, 0.25, 0.5625, 1}, {0.9375, 0.75, 0.4375, 0.4375}},
      {"C",
       {0.03175416344814579, 0.1339745962155614, 0.3385621722338523, 1},
       {0.9682458365518543, 0.8660254037844386, 0.6614378277661477, 0.6614378277661477}},
      {"E4",
       {0.04978706836786394, 0.1353352832366127, 0.3678794411714423, 1},
       {0.9502129316321361, 0.8646647167633873, 0.6321205588285577, 0.6321205588285577}},
      {"S4",
       {0.2689414213699951, 0.5, 0.7310585786300049, 0.8807970779778823},
       {0.7310585786300049, 0.5, 0.2689414213699951, 0.1192029220221177}},
  };
  char up[64], down[64];
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    (void)snprintf(up, sizeof up, "damping~%s-up@4", table[i].rule);
    (void)snprintf(down, sizeof down, "damping~%s-down@4", table[i].rule);
    for (int64_t t = 0; t < 9; t++) { /* later steps equal the last */
      const int64_t k = t < 4 ? t : 3;
      /* 16 digits above, and a few roundings of 2^-53 */
      assert_true(fabs(evaluate_schedule(up, "damping", 3, t) - 3 * table[i].up[k]) < 4e-15);
      assert_true(fabs(evaluate_schedule(down, "damping", 3, t) - 3 * table[i].down[k]) < 4e-15);
    }
  }
}

static void the_grammar_is_read_strictly(void **state) {
  static const char *const wrong[][2] = {
      {"damping", "expected '*'"},
      {"damping*", "factor"},
      {"damping*0.5", "'@'"},
      {"damping*0.5@", "steps"},
      {"damping*0.5@1,", "steps"},
      {"damping*0.5@1,,2", "steps"},
      {"damping*0.5@0", "steps >= 1"},
      {"damping*0.5@-1", "steps >= 1"},
      {"damping*0.5@1.5", "steps"},
      {"damping*0.5@2,1", "ascend"},
      {"damping*0.5@2,2", "ascend"},
      {"damping*0@1", "0 < F"},
      {"damping*1e7@1", "0 < F"},
      {"damping*inf@1", "0 < F"},
      {"damping *0.5@1", "expected '*'"},
      {"kl_clip~0.9", "stat_decay and damping only"},
      {"damping~0.9", "L-, Q-, C-"},
      {"damping~L5-up@9", "L-, Q-, C-"},
      {"damping~E-up@9", "L-, Q-, C-"},
      {"damping~S51-up@9", "L-, Q-, C-"},
      {"damping~X-up@9", "L-, Q-, C-"},
      {"damping~L-sideways@9", "up@ or down@"},
      {"damping~L-up@1", "at least 2"},
      {"damping~L-up@9,10", "at least 2"},
      {"stat_decay~1.5", "0 < M"},
      {"stat_decay~0.9@1", "0 < M"},
      {"solver*2@1", "only damping"},
      {"dampin*2@1", "nearest is damping"},
      {"*2@1", "only damping"},
      {"damping*2@1 damping*2@2", "already"},
      {"stat_decay~0.9 stat-decay*0.5@2", "already"},
      {"damping*2@99999999999999999999", "steps"},
      {"a_name_that_is_longer_than_any_of_the_names_that_there_are*2@1", "name"}};
  const double base[SCHEDULED] = {1, 1, 1, 1, 1};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    double v[SCHEDULED];
    char message[256] = "";
    assert_int_equal(schedule_evaluate(wrong[i][0], base, 3, v, message, sizeof message), CLI_BAD);
    if (strstr(message, wrong[i][1]) == NULL) fail_msg("%s: %s", wrong[i][0], message);
  }
  double v[SCHEDULED];
  char message[256];
  assert_int_equal(schedule_evaluate("kl-clip*2@5", base, 0, v, message, sizeof message), CLI_OK);
  for (int k = 0; k < SCHEDULED; k++)
    assert_true(strcmp(schedule_option[k], "kl_clip") == 0 ? v[k] == 1 : isnan(v[k]));
}

/* Values out of range, also together with other options, are reported before the run. */
static void schedules_are_checked_before_the_run(void **state) {
  static const char *const row[][4] = {
      {"natgrad", "", "stat_decay*1.02@5,6,7",
       "'stat_decay*1.02@5,6,7': at step 7: stat_decay: '1.00"},
      {"natgrad", "", "stat_decay*1.02@5,6", NULL},
      {"natgrad", "", "solve_period*=1000000@1,2,3", "at step 3: solve_period"},
      {"natgrad", "", "solve_period*0.001@1,2,3", NULL},
      {"eva", "", "solve_period*2@3", "at step 3: solve_period = 20: method eva"},
      {"natgrad", "", "stat_decay~0.95 damping~E50-down@10", NULL},
      {"kaisa", "", "damping*0.1@10,20", NULL}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    char line[128], message[512] = "";
    ng_options *o = NULL;
    (void)snprintf(line, sizeof line, "method=%s %s", row[i][0], row[i][1]);
    assert_int_equal(ng_options_create(line, message, sizeof message, &o), NG_OK);
    const int rc = schedule_check(row[i][2], o, message, sizeof message);
    if ((rc == CLI_OK) != (row[i][3] == NULL) ||
        (rc != CLI_OK && strstr(message, row[i][3]) == NULL))
      fail_msg("%s: %s", row[i][2], message);
    ng_options_destroy(&o);
  }
}

/* ---- the learning rate -----------------------------------------------------------------------*/

/* Rounding of a few operations on numbers up to 1. */
#define NEAR 1e-14

static void expect_lr(const char *schedule, const char *warm_up, double epoch, double total,
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
  expect_lr("constant", "0", 7.5, 10, 1);
  expect_lr("step:3,6", "0", 2.999, 10, 1);
  expect_lr("step:3,6", "0", 3, 10, 0.1);
  expect_lr("step:3,6", "0", 9, 10, 0.01);
  expect_lr("step:0.5,6@0.2", "0", 0.5, 10, 0.2);
  expect_lr("step:3,6@0.5", "0", 6, 10, 0.25);
  expect_lr("cosine", "0", 0, 10, 1);
  expect_lr("cosine", "0", 2.5, 10, 0.5 * (1 + sqrt(0.5)));
  expect_lr("cosine", "0", 5, 10, 0.5);
  expect_lr("cosine", "0", 10, 10, 0);
  expect_lr("cosine:0.2", "0", 10, 10, 0.2);
  expect_lr("cosine:0.2", "0", 5, 10, 0.6);
  expect_lr("linear", "0", 4, 10, 0.6);
  expect_lr("linear:0.5", "0", 10, 10, 0.5);
  expect_lr("linear:0.5", "0", 5, 10, 0.75);
  expect_lr("polynomial:2", "0", 5, 10, 0.25);
  expect_lr("polynomial:0.5", "0", 7.5, 10, 0.5);
  expect_lr("polynomial:2@2,6", "0", 1.999, 5, 1);
  expect_lr("polynomial:2@2,6", "0", 4, 5, 0.25);
  expect_lr("polynomial:2@2,6", "0", 6, 10, 0.25);  /* END is at least the end of the run */
  expect_lr("polynomial:1@0,20", "4", 2, 10, 0.45); /* the warm-up rises while the schedule falls */
  expect_lr("cyclic:4", "0", 0, 10, 0.1);
  expect_lr("cyclic:4", "0", 1, 10, 0.55);
  expect_lr("cyclic:4", "0", 2, 10, 1);
  expect_lr("cyclic:4@0.4", "0", 3, 10, 0.7);
  expect_lr("cyclic:4@0.4", "0", 8, 10, 0.4);
  /* After a warm-up the schedule is stretched over the remaining epochs. */
  expect_lr("constant", "2", 0, 10, 0);
  expect_lr("constant", "2", 0.5, 10, 0.25);
  expect_lr("constant", "2", 2, 10, 1);
  expect_lr("cosine", "2", 1, 10, 0.5);
  expect_lr("cosine", "2", 2, 10, 1);
  expect_lr("cosine", "2", 6, 10, 0.5);
  expect_lr("linear", "2", 4, 10, 0.75);
  expect_lr("polynomial:3", "2", 6, 10, 0.125);
  expect_lr("step:1,3", "2", 1, 10, 0.05);
  expect_lr("step:1,3", "2", 2.5, 10, 0.1);
  expect_lr("linear", "20", 5, 10, 0.25); /* a run that ends within its warm-up */
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
        /* The steepest is cyclic:0.5: from 0.1 to 1 in 0.25 epochs, 0.0036 per step; in the warm-up at most 0.0043. */
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
      fail_msg("the invalid schedule '%s' was accepted", one);
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
             {"method", "soap", 0.01},       {"method", "muon", 0.02},
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
      cmocka_unit_test(the_decay_follows_the_table_of_kaisa),
      cmocka_unit_test(schedules_multiply_at_their_points),
      cmocka_unit_test(curves_follow_the_formulas_of_efcp),
      cmocka_unit_test(the_grammar_is_read_strictly),
      cmocka_unit_test(schedules_are_checked_before_the_run),
      cmocka_unit_test(lr_follows_its_formulas),
      cmocka_unit_test(lr_is_continuous_and_bounded),
      cmocka_unit_test(lr_schedules_are_read_strictly),
      cmocka_unit_test(default_lr_depends_on_the_update),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
