/* t_options_check.c: options that each are right, judged: numbers and options against each other, against the base of a
 * schedule, from the environment, and as overrides of a layer. */
#include "options_help.h"

#include "model/model.h"

#include <math.h>

static char message[512];

/* ---- check -----------------------------------------------------------------------------------*/

static void check_is(const ng_options *o, ng_status st, const char *part) {
  ng_options before = *o;
  message[0] = 0;
  const ng_status got = ng_options_check(o, message, sizeof message);
  if (got != st) print_error("check: %s\n", message);
  assert_int_equal(got, st);
  assert_contains(message, part);
  assert_memory_equal(o, &before, sizeof before);
}

/* A number gets the judgement that its text would get; what is refused changes nothing. */
static void numbers_are_judged(void **state) {
  (void)state;
  ng_options o = standard_options();
  check_is(&o, NG_OK, "");
  const ng_options before = o;
#define BAD(name, value, part)                                                                     \
  do {                                                                                             \
    message[0] = 0;                                                                                \
    assert_int_equal(ng_options_set_real(&o, name, value, message, sizeof message), NG_ERR_ARG);   \
    assert_contains(message, name);                                                                \
    assert_contains(message, part);                                                                \
    assert_memory_equal(&o, &before, sizeof o);                                                    \
  } while (0)
  BAD("damping", 0, "0 < damping <= 1e+30");
  BAD("damping", -1, "'-1'");
  BAD("damping", (double)NAN, "finite number");
  BAD("damping", (double)INFINITY, "finite number");
  BAD("stat_decay", 1.0000001, "0 <= stat_decay <= 1");
  BAD("stat_decay", (double)NAN, "0 <= stat_decay <= 1");
  BAD("eigen_floor", -1e-10, "0 <= eigen_floor");
  BAD("kl_clip", 0, "0 < kl_clip");
  BAD("stat_period", 0, "1 <= stat_period");
  BAD("stat_period", 2.5, "'2.5' is not a whole number");
  BAD("solve_period", -5, "1 <= solve_period");
  BAD("solve_period", 1e300, "1 <= solve_period");
  BAD("solve_period", (double)-INFINITY, "finite number");
  BAD("stat_batch", -1, "0 <= stat_batch");
  BAD("max_factor", -1e15, "0 <= max_factor");
  BAD("factor_blocks", 0, "1 <= factor_blocks");
  BAD("grad_worker_fraction", 1.5, "0 <= grad_worker_frac");
  BAD("prediv", 2, "0 or 1");
  BAD("prediv", 0.5, "0 or 1");
  BAD("solver", 1, "'1' is a number, expected cholesky|eigen");
  BAD("skip_layers", 1, "a text");
  BAD("method", 1, "is a name");
  BAD("dampin", 1, "'damping'");
#undef BAD
  assert_int_equal(ng_options_set_real(&o, NULL, 1, message, sizeof message), NG_ERR_ARG);
  assert_int_equal(ng_options_set_real(NULL, "damping", 1, message, sizeof message), NG_ERR_ARG);
  /* every number of the table, as text and as number: the same bytes */
  const uint64_t seed = test_seed();
  rng r = {seed};
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    double back = -1;
    if (info.type == NG_OPTION_CHOICE || info.type == NG_OPTION_TEXT) {
      assert_int_equal(ng_options_get_real(&o, info.name, &back), NG_ERR_ARG);
      assert_true(back == -1);
      continue;
    }
    for (int k = 0; k < 20; k++) {
      const bool real = info.type == NG_OPTION_REAL;
      const double v = info.type == NG_OPTION_BOOL ? k % 2
                       : real                      ? ldexp((double)(rng_next(&r) >> 11) + 1, -53)
                                                   : (double)rng_between(&r, 1, 1000000);
      ng_options x = standard_options(), y = x;
      char text[64];
      (void)snprintf(text, sizeof text, "%.17g", v);
      assert_int_equal(ng_options_set(&x, info.name, text, NULL, 0), NG_OK);
      assert_int_equal(ng_options_set_real(&y, info.name, v, NULL, 0), NG_OK);
      assert_memory_equal(&x, &y, sizeof x);
      assert_int_equal(ng_options_get_real(&y, info.name, &back), NG_OK);
      CHECK_SEED(seed, memcmp(&back, &v, sizeof v) == 0, text);
    }
  }
  double number_;
  assert_int_equal(ng_options_get_real(NULL, "damping", &number_), NG_ERR_ARG);
  assert_int_equal(ng_options_get_real(&o, NULL, &number_), NG_ERR_ARG);
  assert_int_equal(ng_options_get_real(&o, "damping", NULL), NG_ERR_ARG);
  assert_int_equal(ng_options_get_real(&o, "method", &number_), NG_ERR_ARG);
}

static void options_against_each_other(void **state) {
  (void)state;
  ng_options o = standard_options();
  assert_int_equal(ng_options_set(&o, "method", "sam", NULL, 0), NG_OK);
  check_is(&o, NG_OK, "");
  fixture_real(&o, "damping", 7);
  check_is(&o, NG_ERR_ARG, "damping = 7: solver = product inverts nothing");
  o = standard_options();
  fixture_set(&o, "damping_split", "joint");
  check_is(&o, NG_ERR_ARG, "joint needs solver = eigen");
  fixture_set(&o, "solver", "eigen");
  check_is(&o, NG_OK, "");
  fixture_set(&o, "damping_leak", "owner");
  check_is(&o, NG_ERR_ARG, "damping_leak = owner needs damping_split");
  fixture_set(&o, "damping_split", "pi");
  check_is(&o, NG_OK, "");
  fixture_set(&o, "damping_split", "full");
  check_is(&o, NG_OK, "");
  fixture_real(&o, "prediv", 1);
  check_is(&o, NG_OK, "");
  fixture_real(&o, "damping", 0.003);
  fixture_set(&o, "solver", "cholesky");
  check_is(&o, NG_ERR_ARG, "prediv = 1 needs solver = eigen");
  fixture_real(&o, "prediv", 0);
  check_is(&o, NG_OK, "");
  fixture_real(&o, "eigen_floor", 1e-10);
  check_is(&o, NG_ERR_ARG, "eigen_floor = 1e-10 needs solver = eigen");
  fixture_set(&o, "solver", "eigen");
  check_is(&o, NG_OK, "");
  /* setting does not look at the others: any order of the same settings is possible */
  ng_options set = standard_options();
  assert_int_equal(ng_options_set(&set, "damping_split", "joint", NULL, 0), NG_OK);
  assert_int_equal(ng_options_set(&set, "solver", "eigen", NULL, 0), NG_OK);
  check_is(&set, NG_OK, "");
  assert_int_equal(ng_options_check(NULL, message, sizeof message), NG_ERR_ARG);
}

/* ---- environment -----------------------------------------------------------------------------*/

static void environment(void **state) {
  (void)state;
  for (int32_t i = 0; i < ng_option_count(); i++) { /* every row is read */
    const ng_option_info info = option_info(i);
    char variable[64];
    size_t n = (size_t)snprintf(variable, sizeof variable, "NG_%s", info.name);
    for (size_t k = 3; k < n; k++) {
      if (variable[k] != '_') variable[k] = (char)(variable[k] - 'a' + 'A');
    }
    const bool free_text = info.type == NG_OPTION_TEXT;
    const char *value = info.type == NG_OPTION_BOOL           ? "1"
                        : info.type == NG_OPTION_INT          ? "3"
                        : info.type == NG_OPTION_REAL         ? "0.25"
                        : strcmp(info.name, "per_layer") == 0 ? "fc: damping=3"
                                                              : "fc";
    char last[64] = "";
    if (info.type == NG_OPTION_CHOICE) {
      const char *bar = strrchr(info.choices, '|');
      (void)snprintf(last, sizeof last, "%s", bar == NULL ? info.choices : bar + 1);
      value = last;
    }
    ng_options o = standard_options();
    assert_int_equal(setenv(variable, value, 1), 0);
    assert_int_equal(ng_options_from_env(&o, message, sizeof message), NG_OK);
    assert_option(&o, info.name, value);
    ng_options before = o;
    assert_int_equal(setenv(variable, free_text ? "damping(" : "?", 1), 0);
    const ng_status st = ng_options_from_env(&o, message, sizeof message);
    assert_int_equal(st, NG_ERR_ARG);
    assert_contains(message, variable);
    assert_memory_equal(&o, &before, sizeof o);
    assert_int_equal(unsetenv(variable), 0);
  }
  /* an option of an earlier version */
  ng_options gone = standard_options();
  assert_int_equal(setenv("NG_SCHEDULE", "", 1), 0);
  assert_int_equal(ng_options_from_env(&gone, message, sizeof message), NG_ERR_ARG);
  assert_contains(
      message, "NG_SCHEDULE in the environment: option 'schedule' was removed: call ng_set_real");
  assert_int_equal(unsetenv("NG_SCHEDULE"), 0);
  /* one bad variable: none is taken */
  ng_options o = standard_options(), before = o;
  assert_int_equal(setenv("NG_SOLVER", "eigen", 1), 0);
  assert_int_equal(setenv("NG_UPDATE", "sgdd", 1), 0);
  assert_int_equal(ng_options_from_env(&o, message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "NG_UPDATE");
  assert_contains(message, "'sgd'");
  assert_memory_equal(&o, &before, sizeof o);
  assert_int_equal(unsetenv("NG_SOLVER"), 0);
  assert_int_equal(unsetenv("NG_UPDATE"), 0);
  /* the method: its row, under what else is there and what was given before */
  assert_int_equal(setenv("NG_METHOD", "eva", 1), 0);
  assert_int_equal(setenv("NG_STAT_BATCH", "7", 1), 0);
  fixture_real(&o, "stat_decay", 0.5);
  assert_int_equal(ng_options_from_env(&o, message, sizeof message), NG_OK);
  assert_option(&o, "method", "eva");
  assert_option(&o, "damping", "0.03");
  assert_option(&o, "stat_batch", "7");
  assert_option(&o, "stat_decay", "0.5");
  before = o;
  assert_int_equal(setenv("NG_METHOD", "kiasa", 1), 0);
  assert_int_equal(setenv("NG_STAT_BATCH", "8", 1), 0);
  assert_int_equal(ng_options_from_env(&o, message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "NG_METHOD in the environment");
  assert_contains(message, "'kaisa'");
  assert_memory_equal(&o, &before, sizeof o);
  assert_int_equal(unsetenv("NG_METHOD"), 0);
  assert_int_equal(setenv("NG_FACTOR_DTYPE", "f64", 1), 0);
  assert_int_equal(ng_options_from_env(&o, message, sizeof message), NG_ERR_ABSENT);
  assert_int_equal(unsetenv("NG_FACTOR_DTYPE"), 0);
  assert_int_equal(unsetenv("NG_STAT_BATCH"), 0);
  assert_int_equal(ng_options_from_env(&o, NULL, 0), NG_OK);
  assert_memory_equal(&o, &before, sizeof o);
}

/* ---- a layer's overrides ---------------------------------------------------------------------*/

static void overrides(void **state) {
  (void)state;
  ng_options o = standard_options();
  assert_int_equal(
      ng_options_override(&o, "  damping=0.01\tstat-decay=0.5 ", message, sizeof message), NG_OK);
  assert_option(&o, "damping", "0.01");
  assert_option(&o, "stat_decay", "0.5");
  assert_int_equal(ng_options_override(&o, "", NULL, 0), NG_OK);
  assert_int_equal(ng_options_override(&o, NULL, NULL, 0), NG_OK);
  /* together or not at all, and checked together */
  assert_int_equal(ng_options_override(&o, "damping_split=joint solver=eigen", NULL, 0), NG_OK);
  o = standard_options();
  const ng_options before = o;
  static const char *const wrong[][2] = {{"damping=0.1 damping=0.2", "damping is given twice"},
                                         {"damping", "NAME=VALUE"},
                                         {"damping=0", "0 < damping"},
                                         {"=1", "NAME=VALUE"},
                                         {"method=evo", "did you mean 'eva'?"},
                                         {"method=eva method=eva", "method is given twice"},
                                         {"method=dp-kfac", "statistics = local, which holds"},
                                         {"method=sam", "radius = 0.01, which holds"},
                                         {"damping='0.1", "closing '"},
                                         {"dampin=1", "did you mean 'damping'?"},
                                         {"damping = 1", "NAME=VALUE"},
                                         {"clip=none", "whole model"},
                                         {"update=sgd", "whole model"},
                                         {"skip_layers=x", "whole model"},
                                         {"solver=eigen damping=x", "finite number"},
                                         {"statistics=local", "whole model"}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    assert_int_equal(ng_options_override(&o, wrong[i][0], message, sizeof message), NG_ERR_ARG);
    assert_contains(message, wrong[i][1]);
    assert_memory_equal(&o, &before, sizeof o);
  }
  char longest[300];
  memset(longest, 'a', sizeof longest);
  longest[sizeof longest - 1] = 0;
  assert_int_equal(ng_options_override(&o, longest, message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "NAME=VALUE");
  assert_int_equal(ng_options_override(&o, "solver='eigen'", message, sizeof message), NG_OK);
  assert_option(&o, "solver", "eigen");
  o = before;
  /* per_layer and only per_layer options */
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char text[128];
    (void)snprintf(text, sizeof text, "%s=%s", info.name, info.standard);
    assert_int_equal(ng_options_override(&o, text, NULL, 0), info.per_layer ? NG_OK : NG_ERR_ARG);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(numbers_are_judged),
      cmocka_unit_test(options_against_each_other),
      cmocka_unit_test(environment),
      cmocka_unit_test(overrides),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
