/* t_options_check.c: checks beyond single values: ng_options_check, numbers, the environment, overrides of a
 * layer, and random text, which must be accepted, or refused without a change. */
#include "options_help.h"

#include "model/model.h"

#include <ctype.h>
#include <math.h>

static char message[512];

/* ---- check -----------------------------------------------------------------------------------*/

static void expect_status(const ng_options *o, ng_status st, const char *part) {
  ng_options before = *o;
  message[0] = 0;
  const ng_status got = ng_options_check(o, message, sizeof message);
  if (got != st) print_error("check: %s\n", message);
  assert_int_equal(got, st);
  assert_contains(message, part);
  assert_memory_equal(o, &before, sizeof before);
}

/* ng_options_set_real accepts the numbers that ng_options_set accepts as text.  A refused value changes nothing. */
static void numbers_equal_their_text(void **state) {
  ng_options o = standard_options();
  expect_status(&o, NG_OK, "");
  const ng_options before = o;
  static const struct {
    const char *name;
    double value;
    const char *part;
  } bad[] = {{"damping", -1, "0 < damping <= 1e+30"},
             {"damping", (double)NAN, "finite number"},
             {"stat_period", 2.5, "'2.5' is not a whole number"},
             {"solve_period", (double)-INFINITY, "finite number"},
             {"quantify", 0.5, "0 or 1"},
             {"solver", 1, "'1' is a number, expected cholesky|eigen"},
             {"skip_layers", 1, "a text"},
             {"method", 1, "is a name"},
             {"dampin", 1, "'damping'"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(ng_options_set_real(&o, bad[i].name, bad[i].value, message, sizeof message),
                     NG_ERR_ARG);
    assert_contains(message, bad[i].name);
    assert_contains(message, bad[i].part);
    assert_memory_equal(&o, &before, sizeof o);
  }
  /* for every number of the table, text and number set the same bytes */
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
    const bool bounds = info.type != NG_OPTION_BOOL;
    const double beyond[] = {bounds ? info.lower - 1 : -1, bounds ? info.upper * 2 + 1 : 2};
    for (int k = 0; k < 2; k++) {
      ng_options x = standard_options();
      assert_int_equal(ng_options_set_real(&x, info.name, beyond[k], NULL, 0), NG_ERR_ARG);
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
  double number = 0;
  assert_int_equal(ng_options_get_real(&o, "method", &number), NG_ERR_ARG);
}

static void conflicting_options_are_refused(void **state) {
#define EIGEN "solver=eigen damping_split=joint "
  static const char *const line[][2] = {
      {"method=sam", ""},
      {"method=sam damping=7", "damping = 7: solver = product inverts nothing"},
      {"damping_split=joint", "joint needs solver = eigen"},
      {"damping_split=joint solver=eigen", ""}, /* the order has no effect */
      {EIGEN, ""},
      {EIGEN "damping_leak=owner", "damping_leak = owner needs damping_split"},
      {"solver=eigen damping_leak=owner damping_split=pi", ""},
      {"solver=eigen-prediv damping_leak=owner damping_split=full", ""},
      {"eigen_floor=1e-10", "eigen_floor = 1e-10 needs solver = eigen"},
      {"solver=eigen eigen_floor=1e-10", ""},
      {"method=eva solver=eigen", "methods with Kronecker factors"},
      {"method=eva damping_leak=owner", "methods with Kronecker factors"},
      {"method=eva solve_period=1", "methods with a solve"},
      {"method=eva max_factor=64", "methods with Kronecker factors"},
      {"method=eva factor_dtype=bf16", "methods with Kronecker factors"},
      {"method=eva statistics=local", "methods with Kronecker factors"},
      {"method=eva grad_worker_fraction=0", "methods with a solve"},
      {"method=eva stat_scale=kaisa", "stat_scale"},
      {"method=eva stat_start=identity", "stat_start"},
      {"method=eva positions=reduce", "positions"},
      {"method=eva factor_blocks=2", "factor_blocks"},
      {"method=torch-muon muon_steps=101", "muon_steps = 101: expected at most 100"},
      {"method=newton-muon muon_steps=101", "muon_steps = 101: expected at most 100"},
      {"method=newton-muon max_factor=64 factor_dtype=bf16 statistics=owner", ""},
      {"method=newton-muon solver=eigen", "solver = eigen: Newton-Muon inverts A by cholesky"},
      {"method=newton-muon spatial=factored", ": Newton-Muon inverts the whole A; set full"},
      {"method=newton-muon inverse_dtype=f64", ": Newton-Muon takes f32, bf16 and f16"},
      {"method=newton-muon stat_scale=eva", "stat_scale = eva: a method with factors"},
      {"method=newton-muon damping_split=full",
       "damping_split = full: Newton-Muon only inverts A + damping; set pi"},
      {"method=newton-muon damping_leak=owner", "only inverts A + damping; set 0"},
      {"method=newton-muon output_factor=diagonal", "only inverts A + damping; set full"},
      {"method=newton-muon window=3", "methods with a window"},
      {"method=kl-shampoo stat_decay=1", ": gram_form = kl requires a value below 1"},
      {"method=kl-shampoo root_trace=1", "root_trace = 1: gram_form = kl requires 0"},
      {"method=kl-shampoo root_exponents='2: 1'", ": gram_form = kl has the exponent 1/2"},
      {"method=shampoo gram_form=qr grafting=adam", ": gram_form = eigen and qr require none"},
      {"method=shampoo vector_factor=1", "Shampoo does not use this option"},
      {"method=shampoo gram_form=qr vector_factor=1 root_exponents='2: 0 *'", ""},
      {"clip=rms", "clip = rms needs a clip_bound above 0"},
      {"damping=0.1 solver=product", "solver = product"},
      {"placement=spngd colocate=0", "colocate must be 1"},
      {"stat_scale=eva", "stat_scale"}};
  for (size_t i = 0; i < sizeof line / sizeof line[0]; i++) {
    ng_options o = standard_options();
    assert_int_equal(ng_options_set_line(&o, line[i][0], message, sizeof message), NG_OK);
    expect_status(&o, line[i][1][0] == 0 ? NG_OK : NG_ERR_ARG, line[i][1]);
  }
}

/* ---- environment -----------------------------------------------------------------------------*/

/* NULL removes the variable. */
static void set_variable(const char *name, const char *value) {
  assert_int_equal(value == NULL ? unsetenv(name) : setenv(name, value, 1), 0);
}

/* Fail unless the environment is refused with a message that contains `part`, and no option changes. */
static void expect_refused_environment(ng_options *o, ng_status st, const char *part) {
  const ng_options before = *o;
  assert_int_equal(ng_options_from_env(o, message, sizeof message), st);
  assert_contains(message, part);
  assert_memory_equal(o, &before, sizeof *o);
}

static void every_option_has_a_variable(void **state) {
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char variable[64], value[64];
    size_t n = (size_t)snprintf(variable, sizeof variable, "NG_%s", info.name);
    for (size_t k = 3; k < n; k++)
      variable[k] = (char)toupper((unsigned char)variable[k]);
    write_other_value(&info, value, sizeof value);
    ng_options o = standard_options();
    set_variable(variable, value);
    assert_int_equal(ng_options_from_env(&o, message, sizeof message), NG_OK);
    assert_option(&o, info.name, value);
    set_variable(variable, info.type == NG_OPTION_TEXT ? "damping(" : "?");
    expect_refused_environment(&o, NG_ERR_ARG, variable);
    set_variable(variable, NULL);
  }
}

static void the_environment_sets_all_variables_or_none(void **state) {
  ng_options o = standard_options();
  set_variable("NG_SCHEDULE", ""); /* an option of an earlier version */
  expect_refused_environment(
      &o, NG_ERR_ARG,
      "NG_SCHEDULE in the environment: option 'schedule' was removed: call ng_set_real");
  set_variable("NG_SCHEDULE", NULL);
  set_variable("NG_SOLVER", "eigen");
  set_variable("NG_UPDATE", "sgdd");
  expect_refused_environment(&o, NG_ERR_ARG, "NG_UPDATE");
  assert_contains(message, "'sgd'");
  set_variable("NG_SOLVER", NULL);
  set_variable("NG_UPDATE", NULL);
  /* NG_METHOD selects a method's row; other variables and earlier values replace values of this row */
  set_variable("NG_METHOD", "eva");
  set_variable("NG_STAT_BATCH", "7");
  fixture_set_real(&o, "stat_decay", 0.5);
  assert_int_equal(ng_options_from_env(&o, message, sizeof message), NG_OK);
  assert_option(&o, "method", "eva");
  assert_option(&o, "damping", "0.03");
  assert_option(&o, "stat_batch", "7");
  assert_option(&o, "stat_decay", "0.5");
  set_variable("NG_METHOD", "kiasa");
  set_variable("NG_STAT_BATCH", "8");
  expect_refused_environment(&o, NG_ERR_ARG, "NG_METHOD in the environment");
  assert_contains(message, "'kaisa'");
  set_variable("NG_METHOD", NULL);
  set_variable("NG_WINDOW_DTYPE", "f64");
  expect_refused_environment(&o, NG_ERR_ABSENT, "");
  set_variable("NG_WINDOW_DTYPE", NULL);
  set_variable("NG_STAT_BATCH", NULL);
  const ng_options before = o;
  assert_int_equal(ng_options_from_env(&o, NULL, 0), NG_OK);
  assert_memory_equal(&o, &before, sizeof o);
}

/* ---- a layer's overrides ---------------------------------------------------------------------*/

static void overrides_set_a_whole_line_or_nothing(void **state) {
  ng_options o = standard_options();
  assert_int_equal(
      ng_options_override(&o, "  damping=0.01\tstat-decay=0.5 ", message, sizeof message), NG_OK);
  assert_option(&o, "damping", "0.01");
  assert_option(&o, "stat_decay", "0.5");
  assert_int_equal(ng_options_override(&o, "", NULL, 0), NG_OK);
  assert_int_equal(ng_options_override(&o, NULL, NULL, 0), NG_OK);
  /* lines are set whole or not at all; options are checked together; t_options_object has malformed lines */
  assert_int_equal(ng_options_override(&o, "damping_split=joint solver=eigen", NULL, 0), NG_OK);
  o = standard_options();
  const ng_options before = o;
  static const char *const wrong[][2] = {{"damping=0", "0 < damping"},
                                         {"method=evo", "did you mean 'eva'?"},
                                         {"method=dp-kfac", "statistics = local, which holds"},
                                         {"method=sam", "radius = 0.01, which holds"},
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
  o = before;
  /* only per-layer options are accepted */
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char text[128];
    (void)snprintf(text, sizeof text, "%s=%s", info.name, info.standard);
    assert_int_equal(ng_options_override(&o, text, NULL, 0), info.per_layer ? NG_OK : NG_ERR_ARG);
  }
}

/* ---- random text -----------------------------------------------------------------------------*/

static void write_random_text(rng *r, char *text, int64_t most) {
  static const char vocabulary[] =
      "damping stat_decay solve_period solver = * *= @ , ~ 0.5 1e-3 2 10 inf - + eigen cholesky "
      "pi joint nan . e 0 %s%n 1e400 99999999999999999999 | [ none kl_clip =' damping=' \n "
      "\x01\xff";
  int64_t pieces = rng_below(r, 12);
  size_t n = 0;
  text[0] = 0;
  while (pieces-- > 0) {
    const char *p = vocabulary + rng_below(r, (int64_t)sizeof vocabulary - 1);
    while (p > vocabulary && p[-1] != ' ')
      p--;
    size_t length = strcspn(p, " ");
    const char one = (char)(1 + rng_below(r, 255));
    if (rng_below(r, 6) == 0) p = &one;
    if (p == &one) length = 1;
    if (n + length + 1 >= (size_t)most) break;
    memcpy(text + n, p, length);
    n += length;
    text[n] = 0;
  }
}

static ng_status set_any_published(rng *r, ng_options *o, const char *name, const char *value) {
  const int32_t m = (int32_t)rng_below(r, ng_method_count());
  ng_method_info method = {.struct_size = sizeof method};
  ng_published_info p = {.struct_size = sizeof p, .name = name};
  ng_status st = ng_method_at(m, &method);
  *o = standard_options(); /* earlier options could contradict the method */
  if (st == NG_OK) st = ng_options_set(o, "method", method.name, NULL, 0);
  if (st != NG_OK) return st;
  const ng_options before = *o;
  double lr = -1;
  if (method.published > 0 && rng_below(r, 4) != 0) {
    st = ng_method_published_at(m, (int32_t)rng_below(r, method.published), &p);
  }
  if (st == NG_OK) st = ng_options_set_published(o, p.name, value, &lr, message, sizeof message);
  if (st != NG_OK && (memcmp(o, &before, sizeof before) != 0 || lr > 0)) {
    fail_msg("published option '%s' = '%s' was refused, and something changed", p.name, value);
  }
  return st;
}

static bool is_single_line(const char *text) {
  for (; *text != 0; text++) {
    if ((unsigned char)*text < 32 || *text == 127) return false;
  }
  return true;
}

static void random_text_is_accepted_or_refused(void **state) {
  const uint64_t seed = test_seed();
  rng r = {seed};
  int64_t taken = 0, published = 0;
  for (int i = 0; i < 60000; i++) {
    char name[128], value[128], text_of_value[160];
    ng_options o = standard_options();
    write_random_text(&r, value, sizeof value);
    write_random_text(&r, name, sizeof name);
    if (rng_below(&r, 4) != 0) {
      (void)snprintf(name, sizeof name, "%s",
                     option_info((int32_t)rng_below(&r, ng_option_count())).name);
    }
    const ng_options before = o;
    memset(message, 'x', sizeof message);
    const ng_status st = ng_options_set(&o, name, value, message, sizeof message);
    if (st == NG_OK) {
      taken++;
      CHECK_SEED(seed, ng_options_get(&o, name, text_of_value, sizeof text_of_value) == NG_OK,
                 value);
      CHECK_SEED(seed, ng_options_set(&o, name, text_of_value, NULL, 0) == NG_OK, text_of_value);
    } else {
      CHECK_SEED(seed, st == NG_ERR_ARG || st == NG_ERR_ABSENT, value);
      CHECK_SEED(seed, memcmp(&o, &before, sizeof o) == 0, value);
      CHECK_SEED(seed, memchr(message, 0, sizeof message) != NULL, value);
      CHECK_SEED(seed, is_single_line(message), message);
    }
    o = before;
    if (ng_options_set_line(&o, value, message, sizeof message) != NG_OK)
      CHECK_SEED(seed, memcmp(&o, &before, sizeof o) == 0 && is_single_line(message), message);
    o = before;
    if (ng_options_override(&o, value, message, sizeof message) == NG_OK) {
      CHECK_SEED(seed, ng_options_check(&o, NULL, 0) == NG_OK, value);
    } else {
      CHECK_SEED(seed, memcmp(&o, &before, sizeof o) == 0, value);
    }
    CHECK_SEED(seed, ng_options_set(&o, "method", name, message, sizeof message) != NG_OK, name);
    CHECK_SEED(seed, ng_options_set_system(&o, name, value, message, sizeof message) != NG_OK,
               name);
    if (set_any_published(&r, &o, name, value) == NG_OK) published++;
    /* the options of the method are still consistent */
    CHECK_SEED(seed, ng_options_check(&o, message, sizeof message) == NG_OK, message);
  }
  assert_true(taken > 100 && published > 100); /* the generator finds valid values */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(numbers_equal_their_text),
      cmocka_unit_test(conflicting_options_are_refused),
      cmocka_unit_test(every_option_has_a_variable),
      cmocka_unit_test(the_environment_sets_all_variables_or_none),
      cmocka_unit_test(overrides_set_a_whole_line_or_nothing),
      cmocka_unit_test(random_text_is_accepted_or_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
