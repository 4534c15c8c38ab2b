/* t_schedule.c: natgrad train --schedule: values against tables and formulas of the published programs, the
 * grammar, checks with other options. */
#include "unit_test.h"
#include "train/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double value(const char *text, const char *option, double of, int64_t t) {
  double base[SCHEDULED], v[SCHEDULED];
  char message[256] = "";
  int k = 0;
  while (strcmp(schedule_option[k], option) != 0)
    k++;
  for (int i = 0; i < SCHEDULED; i++)
    base[i] = of;
  if (schedule_evaluate(text, base, t, v, message, sizeof message) != CLI_OK)
    fail_msg("%s: %s", text, message);
  return isnan(v[k]) ? of : v[k];
}

/* The table of KAISA's own test of exp_decay_factor_averaging. */
static void averaging_of_kaisa(void **state) {
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
    assert_true(value(text, "stat_decay", 0.5, table[i].t) == table[i].v);
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
      const double v = value(row[i].text, row[i].option, row[i].base, t);
      if (v != row[i].v[t]) fail_msg("%s, %s, step %d: %g", row[i].text, row[i].option, (int)t, v);
    }
  }
  assert_true(value(kaisa, "damping", 1, 1000000) == 625);
}

/* EFCP's rules at x = 1/4, 1/2, 3/4 and the end, from their formulas: 1 - sqrt(15)/4, 1 - sqrt(3)/2, 1 -
 * sqrt(7)/4; e^-3, e^-2, e^-1; 1/(1 + e), 1/2, 1/(1 + 1/e), 1/(1 + e^-2). */
static void curves_of_efcp(void **state) {
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
      assert_true(fabs(value(up, "damping", 3, t) - 3 * table[i].up[k]) < 4e-15);
      assert_true(fabs(value(down, "damping", 3, t) - 3 * table[i].down[k]) < 4e-15);
    }
  }
}

static void grammar(void **state) {
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(averaging_of_kaisa),
                                     cmocka_unit_test(schedules_multiply_at_their_points),
                                     cmocka_unit_test(curves_of_efcp), cmocka_unit_test(grammar),
                                     cmocka_unit_test(schedules_are_checked_before_the_run)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
