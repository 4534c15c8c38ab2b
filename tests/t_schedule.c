/* t_schedule.c: options.schedule: its values against a plain re-implementation and against the
 * published programs' own tables, its grammar, and what any text does to the parser. */
#include "options_help.h"

#include "option/option.h"

#include <math.h>

static ng_context *ctx;
static int64_t empty; /* bytes of a context that nothing was made from */

static int make_context(void **state) {
  (void)state;
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.threads = 1;
  if (ng_context_create(NG_VERSION, &config, NULL, 0, &ctx) != NG_OK) return -1;
  ng_context_allocated(ctx, &empty, NULL, NULL);
  return 0;
}

static int drop_context(void **state) {
  (void)state;
  ng_context_destroy(&ctx);
  return 0;
}

static double value(const char *text, const char *option, double base, int64_t since, int64_t t) {
  ng_schedule *s = NULL;
  assert_int_equal(ng_enter(ctx), NG_OK);
  const ng_status st = ng_schedule_parse(ctx, text, &s);
  if (st != NG_OK) print_error("%s\n", ng_last_error(ctx));
  assert_int_equal(st, NG_OK);
  const double v = ng_schedule_value(s, (ng_option_id)ng_option_find(option), base, since, t);
  ng_schedule_free(ctx, s);
  return v;
}

/* KAISA's exp_decay_factor_averaging, its own test's table. */
static void averaging_of_kaisa(void **state) {
  (void)state;
  static const struct {
    const char *m;
    int64_t t;
    double v;
  } table[] = {{"0.95", 0, 0},      {"0.95", 1, 0},       {"0.95", 5, 0.8}, {"0.95", 10, 0.9},
               {"0.95", 100, 0.95}, {"0.95", 1000, 0.95}, {"0.1", 1, 0},    {"0.1", 10, 0.1},
               {"0.1", 100, 0.1},   {"0.1", 1000, 0.1},   {"1", 1, 0},      {"1", 10, 0.9},
               {"1", 100, 0.99}};
  char text[64];
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    (void)snprintf(text, sizeof text, "stat_decay~%s", table[i].m);
    assert_true(value(text, "stat_decay", 0.5, 0, table[i].t) == table[i].v);
    /* a function of t alone */
    assert_true(value(text, "stat_decay", 0.9, table[i].t, table[i].t) == table[i].v);
  }
}

/* KAISA's examples: alpha 0.5 with one decay epoch 2, handed to a scheduler that multiplies what it
 * finds, every epoch: 1/2, 1/4, 1/8 of the base at epochs 2, 3, 4.  MPD-KFAC's scheduler gives 1/2
 * from then on. */
static void compounding(void **state) {
  (void)state;
  static const double compound[] = {1, 1, 0.5, 0.25, 0.125}, once[] = {1, 1, 0.5, 0.5, 0.5};
  for (int64_t t = 0; t < 5; t++) {
    assert_true(value("damping*=0.5@2,3,4", "damping", 1, 0, t) == compound[t]);
    assert_true(value("damping*0.5@2", "damping", 1, 0, t) == once[t]);
  }
}

/* KAISA's LambdaParamScheduler test: constant factors 2, 3, 7, 9, 5, k calls. */
static void constant_factors(void **state) {
  (void)state;
  static const char *const text = "stat_period*=2@1,2,3,4 solve_period*=3@1,2,3,4 "
                                  "damping*=5@1,2,3,4 kl_clip*=9@1,2,3,4";
  for (int64_t k = 0; k <= 4; k++) {
    assert_true(value(text, "stat_period", 1, 0, k) == pow(2, (double)k));
    assert_true(value(text, "solve_period", 1, 0, k) == pow(3, (double)k));
    assert_true(value(text, "damping", 1, 0, k) == pow(5, (double)k));
    assert_true(value(text, "kl_clip", 1, 0, k) == pow(9, (double)k));
  }
  assert_true(value(text, "damping", 1, 0, 1000000) == 625);
}

/* 3, 1.5 a point: from the base 4, 6, 10; from the current value 4, 6, 9. */
static void periods_are_cut(void **state) {
  (void)state;
  static const double absolute[] = {3, 4, 6, 10}, current[] = {3, 4, 6, 9};
  for (int64_t t = 0; t < 4; t++) {
    assert_true(value("solve_period*1.5@1,2,3", "solve_period", 3, 0, t) == absolute[t]);
    assert_true(value("solve_period*=1.5@1,2,3", "solve_period", 3, 0, t) == current[t]);
  }
  /* the published ones reach 0 and divide by it; here 1 is the end, also of what follows */
  assert_true(value("stat_period*0.1@1,2", "stat_period", 10, 0, 1) == 1);
  assert_true(value("stat_period*0.1@1,2", "stat_period", 10, 0, 2) == 1);
  assert_true(value("stat_period*=0.4@1,2", "stat_period", 2, 0, 2) == 1);
}

/* ng_set starts a schedule again: points up to then no longer count. */
static void since(void **state) {
  (void)state;
  static const char *const text = "damping*0.5@10,20,30";
  assert_true(value(text, "damping", 8, 0, 9) == 8);
  assert_true(value(text, "damping", 8, 0, 10) == 4);
  assert_true(value(text, "damping", 8, 9, 10) == 4);
  assert_true(value(text, "damping", 8, 10, 10) == 8);
  assert_true(value(text, "damping", 8, 10, 19) == 8);
  assert_true(value(text, "damping", 8, 10, 30) == 2);
  assert_true(value(text, "damping", 8, 30, 1000) == 8);
  assert_true(value(text, "kl_clip", 3, 0, 1000) == 3); /* not in it */
}

/* Bases that ng_set chose later may lead out of the range: the bound holds. */
static void bounds(void **state) {
  (void)state;
  assert_true(value("stat_decay*2@1", "stat_decay", 0.9, 0, 1) == 1);
  assert_true(value("damping*1000000@1,2,3", "damping", 1e20, 0, 3) == 1e30);
  const double least = value("damping*1e-300@1,2", "damping", 1, 0, 2);
  assert_true(least > 0 && (float)least > 0);
  assert_true(value("solve_period*1000000@1,2,3", "solve_period", 1, 0, 3) == 1e15);
}

/* EFCP's continuous rules at x = 1/4, 1/2, 3/4 and the end, by hand from their formulas:
 * 1 - sqrt(15)/4, 1 - sqrt(3)/2, 1 - sqrt(7)/4; e^-3, e^-2, e^-1; 1/(1 + e), 1/2, 1/(1 + 1/e), 1/(1 + e^-2). */
static void curves_of_efcp(void **state) {
  (void)state;
  static const struct {
    const char *rule;
    double up[4], down[4]; /* down: the last is that of x = 3/4 again where there is 0 */
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
    for (int64_t t = 0; t < 9; t++) { /* steps after the last are like it */
      const int64_t k = t < 4 ? t : 3;
      /* 16 digits above, and a few roundings of 2^-53 */
      assert_true(fabs(value(up, "damping", 3, 0, t) - 3 * table[i].up[k]) < 4e-15);
      assert_true(fabs(value(down, "damping", 3, 0, t) - 3 * table[i].down[k]) < 4e-15);
      assert_true(value(up, "damping", 3, 7, t + 7) == value(up, "damping", 3, 0, t)); /* ng_set */
    }
  }
}

static void has(void **state) {
  (void)state;
  ng_schedule *s = NULL;
  assert_int_equal(ng_schedule_parse(ctx, "kl-clip*2@5\tstat_decay~0.9\n", &s), NG_OK);
  assert_true(ng_schedule_has(s, NG_OPTION_kl_clip));
  assert_true(ng_schedule_has(s, NG_OPTION_stat_decay));
  assert_false(ng_schedule_has(s, NG_OPTION_damping));
  assert_false(ng_schedule_has(s, NG_OPTION_solver));
  assert_false(ng_schedule_has(NULL, NG_OPTION_damping));
  assert_true(ng_schedule_value(NULL, NG_OPTION_damping, 3, 0, 9) == 3);
  ng_schedule_free(ctx, s);
  ng_schedule_free(ctx, NULL);
  assert_int_equal(ng_schedule_parse(ctx, "  ", &s), NG_OK);
  assert_false(ng_schedule_has(s, NG_OPTION_damping));
  ng_schedule_free(ctx, s);
}

static void grammar(void **state) {
  (void)state;
  static const char *const wrong[][2] = {
      {"damping", "expected '*'"},
      {"damping*", "factor"},
      {"damping*0.5", "'@'"},
      {"damping*0.5@", "steps"},
      {"damping*0.5@1,", "steps"},
      {"damping*0.5@,1", "steps"},
      {"damping*0.5@1,,2", "steps"},
      {"damping*0.5@0", "steps >= 1"},
      {"damping*0.5@-1", "steps >= 1"},
      {"damping*0.5@1.5", "steps"},
      {"damping*0.5@2,1", "ascend"},
      {"damping*0.5@2,2", "ascend"},
      {"damping*0@1", "0 < F"},
      {"damping*-1@1", "0 < F"},
      {"damping*1e7@1", "0 < F"},
      {"damping*inf@1", "0 < F"},
      {"damping*nan@1", "0 < F"},
      {"damping *0.5@1", "expected '*'"},
      {"damping*0.5@1;", "steps"},
      {"damping*==0.5@1", "factor"},
      {"kl_clip~0.9", "stat_decay and damping only"},
      {"damping~0.9", "expected L-"},
      {"damping~", "expected L-"},
      {"damping~L", "expected L-"},
      {"damping~L5-up@9", "expected L-"},
      {"damping~E-up@9", "expected L-"},
      {"damping~E0-up@9", "expected L-"},
      {"damping~S51-up@9", "expected L-"},
      {"damping~X-up@9", "expected L-"},
      {"damping~L-@9", "up@ or down@"},
      {"damping~L-sideways@9", "up@ or down@"},
      {"damping~L-up", "up@ or down@"},
      {"damping~L-up@1", "at least 2"},
      {"damping~L-up@9,10", "at least 2"},
      {"stat_decay~0", "0 < M"},
      {"stat_decay~1.5", "0 < M"},
      {"stat_decay~", "0 < M"},
      {"stat_decay~0.9@1", "0 < M"},
      {"solver*2@1", "only damping"},
      {"dampin*2@1", "did you mean 'damping'?"},
      {"*2@1", "only damping"},
      {"damping*2@1 damping*2@2", "already"},
      {"stat_decay~0.9 stat-decay*0.5@2", "already"},
      {"damping*2@99999999999999999999", "steps"},
      {"damping*0.00000000000000000000000000000000000000000000000001@1", "factor"},
      {"a_name_that_is_longer_than_any_of_the_names_that_there_are*2@1", "name"}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    char message[512] = "";
    ng_schedule *s = (ng_schedule *)(void *)&ctx;
    assert_int_equal(ng_schedule_form(wrong[i][0], message, sizeof message), NG_ERR_ARG);
    assert_contains(message, wrong[i][1]);
    assert_contains(message, "schedule");
    assert_int_equal(ng_enter(ctx), NG_OK);
    assert_int_equal(ng_schedule_parse(ctx, wrong[i][0], &s), NG_ERR_ARG);
    assert_string_equal(ng_last_error(ctx), message);
    assert_null(s);
    ng_options o = standard_options();
    assert_int_equal(ng_options_set(&o, "schedule", wrong[i][0], NULL, 0), NG_ERR_ARG);
    assert_string_equal(o.schedule, "");
  }
}

/* ---- against a plain re-implementation -------------------------------------------------------*/

typedef struct plain {
  const char *option;
  char kind; /* '*', '=', '~' */
  double factor;
  int64_t point[20];
  int64_t points;
} plain;

/* Step by step, as a training loop would: cumulative values change when their step comes; absolute
 * ones are computed from the base by counting. */
static double plain_value(const plain *p, double base, int64_t since_, int64_t t) {
  const bool period = strstr(p->option, "period") != NULL;
  if (p->kind == '~') {
    const double v = 1.0 - 1.0 / (double)(t < 1 ? 1 : t);
    return v < p->factor ? v : p->factor;
  }
  double v = base;
  int64_t n = 0;
  for (int64_t now = since_ + 1; now <= t; now++) {
    for (int64_t i = 0; i < p->points; i++) {
      if (p->point[i] != now) continue;
      n++;
      double w = v;
      if (p->kind == '=') w = v * p->factor;
      if (p->kind == '*') {
        w = base;
        for (int64_t k = 0; k < n; k++) {
          w *= p->factor;
        }
      }
      v = period ? (w < 1 ? 1 : floor(w)) : w;
    }
  }
  return v;
}

static void random_entry(rng *r, int live, plain *p, char *text, size_t size) {
  /* powers of these are exact in double for a dozen points, so cutting cannot go two ways */
  static const double factor[] = {0.5, 0.25, 0.75, 1.5, 2, 1.25};
  p->option = ng_option_name(ng_scheduled[live]);
  const int64_t kind = rng_below(r, ng_scheduled[live] == NG_OPTION_stat_decay ? 3 : 2);
  p->kind = "*=~"[kind];
  if (p->kind == '~') {
    p->factor = (double)(1 + rng_below(r, 100)) / 100;
    (void)snprintf(text, size, "%s~%.17g", p->option, p->factor);
    return;
  }
  p->factor = ng_scheduled[live] == NG_OPTION_stat_decay ? 0.5 : factor[rng_below(r, 6)];
  int n = snprintf(text, size, "%s*%s%.17g@", p->option, p->kind == '=' ? "=" : "", p->factor);
  p->points = 1 + rng_below(r, 12);
  int64_t t = 0;
  for (int64_t i = 0; i < p->points; i++) {
    t += 1 + rng_below(r, 9);
    p->point[i] = t;
    n += snprintf(text + n, size - (size_t)n, "%s%lld", i == 0 ? "" : ",", (long long)t);
  }
}

static void against_plain(void **state) {
  (void)state;
  const uint64_t seed = test_seed();
  rng r = {seed};
  for (int i = 0; i < 400; i++) {
    plain p[NG_SCHEDULED];
    char text[1200] = "", one[256];
    memset(p, 0, sizeof p);
    for (int k = 0; k < NG_SCHEDULED; k++) {
      if (rng_below(&r, 3) == 0) continue;
      random_entry(&r, k, &p[k], one, sizeof one);
      const size_t n = strlen(text);
      (void)snprintf(text + n, sizeof text - n, "%s%s", rng_below(&r, 2) ? "  " : " ", one);
    }
    ng_schedule *s = NULL;
    CHECK_SEED(seed, ng_schedule_parse(ctx, text, &s) == NG_OK, text);
    for (int j = 0; j < 60; j++) {
      const int k = (int)rng_below(&r, NG_SCHEDULED);
      const int64_t from = rng_below(&r, 2) ? 0 : rng_below(&r, 40), t = from + rng_below(&r, 120);
      const bool period = ng_option_table[ng_scheduled[k]].type == NG_OPTION_INT;
      const double base = period ? (double)(1 + rng_below(&r, 64))
                          : ng_scheduled[k] == NG_OPTION_stat_decay
                              ? 0.9
                              : 0.001 * (double)(1 + rng_below(&r, 99));
      const double expected = p[k].option == NULL ? base : plain_value(&p[k], base, from, t);
      const double got = ng_schedule_value(s, ng_scheduled[k], base, from, t);
      CHECK_SEED(seed, ng_schedule_has(s, ng_scheduled[k]) == (p[k].option != NULL), text);
      /* base F^n and base F F F differ by n roundings of 2^-53 each, n <= 12 */
      CHECK_SEED(seed, fabs(got - expected) <= 2e-15 * fabs(expected), text);
      if (period) CHECK_SEED(seed, got == expected, text);
      /* a pure function: asked again, in any order, it is the same */
      CHECK_SEED(seed, ng_schedule_value(s, ng_scheduled[k], base, from, t) == got, text);
    }
    ng_schedule_free(ctx, s);
  }
}

static void any_text(void **state) {
  (void)state;
  static const char *const piece[] = {"damping",
                                      "stat_decay",
                                      "stat_period",
                                      "kl-clip",
                                      "*",
                                      "*=",
                                      "~",
                                      "@",
                                      ",",
                                      "0.5",
                                      "2",
                                      "1",
                                      "3",
                                      "17",
                                      " ",
                                      "1e-3",
                                      "-",
                                      "nan",
                                      "damping*0.5@1,2",
                                      " kl_clip*=2@3",
                                      "stat_decay~0.9",
                                      "damping~E5-",
                                      "down@20"};
  const uint64_t seed = test_seed();
  rng r = {seed};
  int64_t good = 0;
  for (int i = 0; i < 60000; i++) {
    char text[400] = "", message[256];
    size_t n = 0;
    for (int64_t k = rng_below(&r, 14); k > 0; k--) {
      const char odd[2] = {(char)(1 + rng_below(&r, 255)), 0};
      const char *add = rng_below(&r, 12) == 0
                            ? odd
                            : piece[rng_below(&r, (int64_t)(sizeof piece / sizeof piece[0]))];
      n += (size_t)snprintf(text + n, sizeof text - n, "%s", add);
    }
    ng_schedule *s = NULL;
    const ng_status form = ng_schedule_form(text, message, sizeof message);
    assert_int_equal(ng_enter(ctx), NG_OK);
    CHECK_SEED(seed, ng_schedule_parse(ctx, text, &s) == form, text);
    CHECK_SEED(seed, form == NG_OK || form == NG_ERR_ARG, text);
    CHECK_SEED(seed, (s != NULL) == (form == NG_OK), text);
    if (form != NG_OK) continue;
    good++;
    for (int k = 0; k < NG_SCHEDULED; k++) {
      const ng_option_info info = option_info((int32_t)ng_scheduled[k]);
      const double v = ng_schedule_value(s, ng_scheduled[k], 1, 0, rng_below(&r, 50));
      CHECK_SEED(seed, v >= info.lower && v <= info.upper, text);
    }
    ng_schedule_free(ctx, s);
  }
  assert_true(good > 500);
}

/* Runs last. */
static void every_schedule_was_freed(void **state) {
  (void)state;
  int64_t bytes = 0, calls = 0;
  ng_context_allocated(ctx, &bytes, NULL, &calls);
  assert_true(calls > 1000);
  assert_int_equal(bytes, empty);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(averaging_of_kaisa),
      cmocka_unit_test(compounding),
      cmocka_unit_test(constant_factors),
      cmocka_unit_test(periods_are_cut),
      cmocka_unit_test(since),
      cmocka_unit_test(bounds),
      cmocka_unit_test(curves_of_efcp),
      cmocka_unit_test(has),
      cmocka_unit_test(grammar),
      cmocka_unit_test(against_plain),
      cmocka_unit_test(any_text),
      cmocka_unit_test(every_schedule_was_freed),
  };
  return cmocka_run_group_tests(tests, make_context, drop_context);
}
