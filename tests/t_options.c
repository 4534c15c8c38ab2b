/* t_options.c: the option table: complete rows, accepted values, text of values, hints.  Other tests: options
 * together, environment, overrides of a layer, random text: t_options_check.c; the object, its lines and methods:
 * t_options_object.c; effects: t_option_effects.c; published names: t_published.c; globs: t_glob.c. */
#include "options_help.h"

#include <locale.h>
#include <math.h>

static char message[512];

/* ---- the table -------------------------------------------------------------------------------*/

/* A help text with a list of values describes every value. */
static void help_texts_describe_every_value(void **state) {
  int32_t listed = 0;
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char list[256], *save = NULL;
    if (info.choices[0] == 0 || strstr(info.help, "\n- ") == NULL) continue;
    (void)snprintf(list, sizeof list, "%s", info.choices);
    for (char *word = strtok_r(list, "|", &save); word != NULL; word = strtok_r(NULL, "|", &save))
      assert_contains(info.help, word);
    listed++;
  }
  assert_true(listed >= 15);
}

static void option_rows_are_complete(void **state) {
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info a = option_info(i);
    assert_true(a.name[0] != 0 && a.group[0] != 0 && strlen(a.help) > 10);
    assert_true(a.type >= NG_OPTION_REAL && a.type <= NG_OPTION_TEXT);
    assert_true(strlen(a.help) == strcspn(a.help, "\n") || strcspn(a.help, "\n") < 160);
    assert_int_equal(ng_option_find(a.name), i);
    for (int32_t k = 0; k < i; k++) {
      assert_string_not_equal(a.name, option_info(k).name);
    }
    if (a.type == NG_OPTION_REAL || a.type == NG_OPTION_INT) {
      assert_true(a.lower < a.upper && a.unit[0] != 0);
    }
    assert_int_equal(a.type == NG_OPTION_CHOICE, a.choices[0] != 0);
  }
}

/* ---- set and get -----------------------------------------------------------------------------*/

/* Fail unless the value is refused with a message that contains `part`, and no byte changes. */
static void expect_refused(const char *name, const char *value, ng_status st, const char *part) {
  ng_options o = standard_options(), before = o;
  message[0] = 0;
  const ng_status got = ng_options_set(&o, name, value, message, sizeof message);
  if (got != st) print_error("%s = '%s': %s\n", name, value == NULL ? "NULL" : value, message);
  assert_int_equal(got, st);
  assert_memory_equal(&o, &before, sizeof o);
  assert_contains(message, name);
  assert_contains(message, part);
  assert_null(strchr(message, '\n'));
  assert_int_equal(ng_options_set(&o, name, value, NULL, 0), st);
}

static void expect_accepted(const char *name, const char *value, const char *reads) {
  ng_options o = standard_options();
  const ng_status st = ng_options_set(&o, name, value, message, sizeof message);
  if (st != NG_OK) print_error("%s\n", message);
  assert_int_equal(st, NG_OK);
  assert_option(&o, name, reads);
  char text[256];
  ng_options again = standard_options();
  assert_int_equal(ng_options_get(&o, name, text, sizeof text), NG_OK);
  assert_int_equal(ng_options_set(&again, name, text, NULL, 0), NG_OK);
  assert_option(&again, name, reads);
  /* no other option changed */
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    if (strcmp(info.name, name) != 0) assert_option(&o, info.name, info.standard);
  }
}

static const char *print_number(double v, ng_option_type type) {
  static char text[64];
  (void)snprintf(text, sizeof text, type == NG_OPTION_INT ? "%.0f" : "%.17g", v);
  return text;
}

static void check_number_option(const ng_option_info *a) {
  static const char *const never[] = {"",    " ",   "inf",  "-inf",  "nan", "NaN", "1x",
                                      "1 ",  " 1",  "0x10", "1e",    "e1",  "1e+", ".",
                                      "--1", "+-1", "1,5",  "1e999", "one", "1\n", "1_0"};
  char text[64];
  const bool whole = a->type == NG_OPTION_INT;
  for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
    expect_refused(a->name, never[i], NG_ERR_ARG, whole ? "whole number" : "finite number");
  }
  if (whole) expect_refused(a->name, "1.0", NG_ERR_ARG, "whole number");
  if (whole) expect_refused(a->name, "99999999999999999999", NG_ERR_ARG, "out of range");
  (void)snprintf(text, sizeof text, "%g %s %s <= %g", a->lower, a->lower_open ? "<" : "<=", a->name,
                 a->upper);
  const double above = whole ? a->upper + 1 : nextafter(a->upper, INFINITY);
  const double under = a->lower_open ? a->lower
                       : whole       ? a->lower - 1
                                     : nextafter(a->lower, -INFINITY);
  expect_refused(a->name, print_number(above, a->type), NG_ERR_ARG, text);
  expect_refused(a->name, print_number(under, a->type), NG_ERR_ARG, text);
  char text_of_value[64];
  (void)snprintf(text_of_value, sizeof text_of_value, whole ? "%.0f" : "%.15g", a->upper);
  expect_accepted(a->name, print_number(a->upper, a->type), text_of_value);
  if (a->lower_open) {
    assert_true(nextafter(a->lower, 1) > a->lower);
    expect_accepted(a->name, print_number(1e-300, a->type), "1e-300");
  } else {
    (void)snprintf(text_of_value, sizeof text_of_value, "%.0f", a->lower);
    expect_accepted(a->name, print_number(a->lower, a->type), text_of_value);
  }
}

static void check_choice_option(const ng_option_info *a) {
  char list[256];
  (void)snprintf(list, sizeof list, "%s", a->choices);
  int32_t n = 0;
  for (char *word = strtok(list, "|"); word != NULL; word = strtok(NULL, "|")) {
    expect_accepted(a->name, word, word);
    n++;
  }
  assert_true(n >= 1);
  expect_refused(a->name, "", NG_ERR_ARG, a->choices);
  expect_refused(a->name, "zzz", NG_ERR_ARG, a->choices);
  /* the list of choices is not a choice */
  if (n > 1) expect_refused(a->name, a->choices, NG_ERR_ARG, a->choices);
}

static void every_row_accepts_its_values_only(void **state) {
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info a = option_info(i);
    ng_options o = standard_options();
    assert_option(&o, a.name, a.standard);
    expect_accepted(a.name, a.standard, a.standard);
    expect_refused(a.name, NULL, NG_ERR_ARG, "NULL");
    switch (a.type) {
    case NG_OPTION_REAL:
    case NG_OPTION_INT:
      check_number_option(&a);
      break;
    case NG_OPTION_BOOL:
      for (int k = 0; k < 4; k++) {
        static const char *const no[] = {"0", "false", "OFF", "no"};
        static const char *const yes[] = {"1", "True", "on", "yes"};
        expect_accepted(a.name, no[k], "0");
        expect_accepted(a.name, yes[k], "1");
      }
      expect_refused(a.name, "2", NG_ERR_ARG, "0 or 1");
      expect_refused(a.name, "", NG_ERR_ARG, "0 or 1");
      expect_refused(a.name, "-0", NG_ERR_ARG, "0 or 1");
      break;
    case NG_OPTION_CHOICE:
      check_choice_option(&a);
      break;
    case NG_OPTION_TEXT:
      break;
    }
  }
}

static void numbers_are_read_back_exactly(void **state) {
  expect_accepted("damping", "+3e-2", "0.03");
  expect_accepted("damping", ".5", "0.5");
  expect_accepted("damping", "5.", "5");
  expect_accepted("damping", "0.1", "0.1");
  expect_accepted("damping", "0.30000000000000004", "0.30000000000000004"); /* needs 17 digits */
  /* the value reads back as "0", not as "-0" */
  expect_accepted("eigen_floor", "-0", "0");
  expect_accepted("stat_period", "+12", "12");
  expect_accepted("stat_period", "007", "7");
  const uint64_t seed = test_seed();
  rng r = {seed};
  for (int i = 0; i < 2000; i++) { /* any double in range reads back with the same bits */
    ng_options o = standard_options();
    const double v = ldexp((double)(rng_next(&r) >> 11) + 1, (int)rng_below(&r, 100) - 100);
    char text[64], text_of_value[64];
    (void)snprintf(text, sizeof text, "%.17g", v);
    CHECK_SEED(seed, ng_options_set(&o, "damping", text, NULL, 0) == NG_OK, text);
    CHECK_SEED(seed, ng_options_get(&o, "damping", text_of_value, sizeof text_of_value) == NG_OK,
               text);
    CHECK_SEED(seed, ng_options_set(&o, "damping", text_of_value, NULL, 0) == NG_OK, text_of_value);
    CHECK_SEED(seed, memcmp(&o.base.damping, &v, sizeof v) == 0, text);
  }
}

/* Options have a decimal point even if the program's locale has a comma.  Without the German locale the test still
 * passes. */
static void numbers_have_a_point_in_every_locale(void **state) {
  const bool comma = setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL;
  expect_accepted("damping", "0.5", "0.5");
  expect_refused("damping", "0,5", NG_ERR_ARG, "finite number");
  char text[16];
  (void)snprintf(text, sizeof text, "%.1f", 0.5);
  assert_string_equal(text, comma ? "0,5" : "0.5"); /* the program's locale is unchanged */
  assert_non_null(setlocale(LC_NUMERIC, "C"));
}

static void names_accept_hyphens_and_get_hints(void **state) {
  ng_options o = standard_options();
  assert_int_equal(ng_options_set(&o, "kl-clip", "0.5", NULL, 0), NG_OK);
  assert_option(&o, "kl_clip", "0.5");
  assert_option(&o, "kl-clip", "0.5");
  static const char *const wrong[][2] = {{"dampin", "'damping'"},
                                         {"damp", "'damping'"},
                                         {"stat_deacy", "'stat_decay'"},
                                         {"klclip", "'kl_clip'"},
                                         {"sovler", "'solver'"},
                                         {"solve-perod", "'solve_period'"},
                                         {"STAT_DECAY", "'stat_decay'"},
                                         {"grad_workers_fraction", "'grad_worker_fraction'"},
                                         {"frobnicate", "no option 'frobnicate'"},
                                         {"", "no option ''"},
                                         {"metod", "'method'"},
                                         {"method", "no method '1'"}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    ng_options before = o;
    assert_int_equal(ng_options_set(&o, wrong[i][0], "1", message, sizeof message), NG_ERR_ARG);
    assert_contains(message, wrong[i][1]);
    assert_memory_equal(&o, &before, sizeof o);
  }
  assert_int_equal(ng_options_set(&o, "frobnicate", "1", message, sizeof message), NG_ERR_ARG);
  assert_null(strstr(message, "did you mean")); /* no option has a similar name */
  expect_refused("solver", "eigne", NG_ERR_ARG, "did you mean 'eigen'?");
  expect_refused("solver", "chol", NG_ERR_ARG, "did you mean 'cholesky'?");
  char text[4];
  /* the buffer is too small */
  assert_int_equal(ng_options_get(&o, "solver", text, sizeof text), NG_ERR_ARG);
  assert_string_equal(text, "");
  assert_int_equal(ng_options_get(&o, "nothing", text, sizeof text), NG_ERR_ARG);
}

static void unsupported_values_are_refused_with_the_reason(void **state) {
  static const char *const later[][2] = {{"window_dtype", "f64"}};
  for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
    expect_refused(later[i][0], later[i][1], NG_ERR_ABSENT, "not supported yet");
    expect_refused(later[i][0], later[i][1], NG_ERR_ABSENT, later[i][1]);
    const ng_option_info info = option_info(ng_option_find(later[i][0]));
    assert_null(strstr(info.choices, later[i][1])); /* the list of choices lacks the value */
    char whole[256];
    (void)snprintf(whole, sizeof whole, "%s: '%s' is not supported yet, expected %s", later[i][0],
                   later[i][1], info.choices);
    expect_refused(later[i][0], later[i][1], NG_ERR_ABSENT, whole);
  }
}

/* ---- structs of other sizes ------------------------------------------------------------------*/

static void option_info_accepts_smaller_structs(void **state) {
  ng_option_info small = {.struct_size = offsetof(ng_option_info, standard)};
  small.standard = "untouched";
  assert_int_equal(ng_option_at(ng_option_find("damping"), &small), NG_OK);
  assert_string_equal(small.name, "damping");
  assert_string_equal(small.standard, "untouched");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(help_texts_describe_every_value),
      cmocka_unit_test(option_rows_are_complete),
      cmocka_unit_test(every_row_accepts_its_values_only),
      cmocka_unit_test(numbers_are_read_back_exactly),
      cmocka_unit_test(numbers_have_a_point_in_every_locale),
      cmocka_unit_test(names_accept_hyphens_and_get_hints),
      cmocka_unit_test(unsupported_values_are_refused_with_the_reason),
      cmocka_unit_test(option_info_accepts_smaller_structs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
