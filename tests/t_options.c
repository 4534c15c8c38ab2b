/* t_options.c: the option table and everything read from it: text, environment, checks, layers'
 * overrides.  The object, its lines and its methods are in t_options_object.c, published names and
 * schedules have programs of their own; that an option does something is shown in t_option_effects*.c. */
#include "options_help.h"

#include "model/model.h"

#include <locale.h>
#include <math.h>

static char message[512];

/* ---- the table -------------------------------------------------------------------------------*/

static char *file_text(const char *path) {
  char full[1024];
  (void)snprintf(full, sizeof full, "%s/%s", NG_SOURCE_DIR, path);
  FILE *f = fopen(full, "rb");
  if (f == NULL) {
    print_error("cannot open %s\n", full);
    fail();
    return NULL;
  }
  char *text = calloc(1, 1 << 20);
  assert_non_null(text);
  const size_t n = fread(text, 1, (1 << 20) - 1, f);
  assert_true(n > 0 && n < (1 << 20) - 1);
  fclose(f);
  return text;
}

/* The manual lists every option in the table's order, and nothing else; a choice with its choices. */
static void rows_are_the_manual(void **state) {
  (void)state;
  char *header = file_text("include/natgrad.h");
  char *at = strstr(header, "/* ---- 6. Options ----");
  char *end = at == NULL ? NULL : strstr(at, "typedef struct ng_options ng_options;");
  assert_non_null(end);
  *end = 0;
  int32_t i = 0;
  for (char *line = strtok(at, "\n"); line != NULL; line = strtok(NULL, "\n")) {
    char name[64];
    if (strncmp(line, " *   ", 5) != 0 || sscanf(line + 5, "%63[a-z_]", name) != 1) continue;
    const ng_option_info info = option_info(i++);
    assert_string_equal(info.name, name);
    char list[256];
    (void)snprintf(list, sizeof list, "%s", info.choices);
    for (char *word = list, *next; word[0] != 0 && strcmp(name, "clip") != 0; word = next) {
      next = word + strcspn(word, "|");
      if (*next != 0) *next++ = 0;
      assert_contains(line, word);
    }
  }
  assert_int_equal(i, ng_option_count());
  assert_true(i >= 30);
  free(header);
}

static void rows_are_complete(void **state) {
  (void)state;
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info a = option_info(i);
    assert_true(a.name[0] != 0 && a.group[0] != 0 && strlen(a.help) > 10);
    assert_true(a.type >= NG_OPTION_REAL && a.type <= NG_OPTION_TEXT);
    assert_true(strstr(a.help, "  ") == NULL && strchr(a.help, '\n') == NULL);
    assert_int_equal(ng_option_find(a.name), i);
    for (int32_t k = 0; k < i; k++) {
      assert_string_not_equal(a.name, option_info(k).name);
    }
    if (a.type == NG_OPTION_REAL || a.type == NG_OPTION_INT) {
      assert_true(a.lower < a.upper && a.unit[0] != 0);
    }
    assert_int_equal(a.type == NG_OPTION_CHOICE, a.choices[0] != 0);
  }
  ng_option_info info = {.struct_size = sizeof info};
  assert_int_equal(ng_option_at(-1, &info), NG_ERR_ARG);
  assert_int_equal(ng_option_at(ng_option_count(), &info), NG_ERR_ARG);
  assert_int_equal(ng_option_at(0, NULL), NG_ERR_ARG);
  for (int k = 0; k < NG_SCHEDULED; k++) {
    assert_true(option_info((int32_t)ng_scheduled[k]).live);
  }
}

/* The row names a test that exists and is run. */
static void every_row_has_its_test(void **state) {
  (void)state;
  char *source[5] = {
      file_text("tests/t_option_effects.c"), file_text("tests/t_option_effects_norm.c"),
      file_text("tests/t_option_effects_window.c"), file_text("tests/t_option_effects_place.c"),
      file_text("tests/t_option_effects_ranks.c")};
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char text[128];
    (void)snprintf(text, sizeof text, "effect_%s", info.name);
    assert_string_equal(info.test, text);
    (void)snprintf(text, sizeof text, "static void %s(void **state)", info.test);
    int k = 0;
    while (k < 4 && strstr(source[k], text) == NULL)
      k++;
    assert_contains(source[k], text);
    (void)snprintf(text, sizeof text, "cmocka_unit_test(%s)", info.test);
    assert_contains(source[k], text);
  }
  for (int k = 0; k < 5; k++)
    free(source[k]);
}

/* ---- set and get -----------------------------------------------------------------------------*/

/* A failure changes no byte. */
static void refused(const char *name, const char *value, ng_status st, const char *part) {
  ng_options o = standard_options(), before = o;
  message[0] = 0;
  const ng_status got = ng_options_set(&o, name, value, message, sizeof message);
  if (got != st) print_error("%s = '%s': %s\n", name, value == NULL ? "NULL" : value, message);
  assert_int_equal(got, st);
  assert_memory_equal(&o, &before, sizeof o);
  assert_contains(message, name);
  assert_contains(message, part);
  assert_null(strchr(message, '\n'));
  /* without a message buffer the status is the same */
  assert_int_equal(ng_options_set(&o, name, value, NULL, 0), st);
}

static void accepted(const char *name, const char *value, const char *reads) {
  ng_options o = standard_options();
  const ng_status st = ng_options_set(&o, name, value, message, sizeof message);
  if (st != NG_OK) print_error("%s\n", message);
  assert_int_equal(st, NG_OK);
  assert_option(&o, name, reads);
  /* get and set are a round trip */
  char text[256];
  ng_options again = standard_options();
  assert_int_equal(ng_options_get(&o, name, text, sizeof text), NG_OK);
  assert_int_equal(ng_options_set(&again, name, text, NULL, 0), NG_OK);
  assert_option(&again, name, reads);
  /* no other option moved */
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    if (strcmp(info.name, name) != 0) assert_option(&o, info.name, info.standard);
  }
}

static const char *number(double v, ng_option_type type) {
  static char text[64];
  (void)snprintf(text, sizeof text, type == NG_OPTION_INT ? "%.0f" : "%.17g", v);
  return text;
}

static void a_number(const ng_option_info *a) {
  static const char *const never[] = {"",    " ",   "inf",  "-inf",  "nan", "NaN", "1x",
                                      "1 ",  " 1",  "0x10", "1e",    "e1",  "1e+", ".",
                                      "--1", "+-1", "1,5",  "1e999", "one", "1\n", "1_0"};
  char text[64];
  const bool whole = a->type == NG_OPTION_INT;
  for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
    refused(a->name, never[i], NG_ERR_ARG, whole ? "whole number" : "finite number");
  }
  if (whole) refused(a->name, "1.0", NG_ERR_ARG, "whole number");
  if (whole) refused(a->name, "99999999999999999999", NG_ERR_ARG, "whole number");
  (void)snprintf(text, sizeof text, "%g %s %s <= %g", a->lower, a->lower_open ? "<" : "<=", a->name,
                 a->upper);
  const double above = whole ? a->upper + 1 : nextafter(a->upper, INFINITY);
  const double under = a->lower_open ? a->lower
                       : whole       ? a->lower - 1
                                     : nextafter(a->lower, -INFINITY);
  refused(a->name, number(above, a->type), NG_ERR_ARG, text);
  refused(a->name, number(under, a->type), NG_ERR_ARG, text);
  char shown[64];
  (void)snprintf(shown, sizeof shown, whole ? "%.0f" : "%.15g", a->upper);
  accepted(a->name, number(a->upper, a->type), shown);
  if (a->lower_open) {
    assert_true(nextafter(a->lower, 1) > a->lower);
    accepted(a->name, number(1e-300, a->type), "1e-300");
  } else {
    (void)snprintf(shown, sizeof shown, "%.0f", a->lower);
    accepted(a->name, number(a->lower, a->type), shown);
  }
}

static void a_choice(const ng_option_info *a) {
  char list[256];
  (void)snprintf(list, sizeof list, "%s", a->choices);
  int32_t n = 0;
  for (char *word = strtok(list, "|"); word != NULL; word = strtok(NULL, "|")) {
    accepted(a->name, word, word);
    n++;
  }
  assert_true(n >= 1);
  refused(a->name, "", NG_ERR_ARG, a->choices);
  refused(a->name, "zzz", NG_ERR_ARG, a->choices);
  if (n > 1) refused(a->name, a->choices, NG_ERR_ARG, a->choices); /* the list is not a choice */
}

static void every_row(void **state) {
  (void)state;
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info a = option_info(i);
    ng_options o = standard_options();
    assert_option(&o, a.name, a.standard);
    accepted(a.name, a.standard, a.standard);
    refused(a.name, NULL, NG_ERR_ARG, "NULL");
    switch (a.type) {
    case NG_OPTION_REAL:
    case NG_OPTION_INT:
      a_number(&a);
      break;
    case NG_OPTION_BOOL:
      for (int k = 0; k < 4; k++) {
        static const char *const no[] = {"0", "false", "OFF", "no"};
        static const char *const yes[] = {"1", "True", "on", "yes"};
        accepted(a.name, no[k], "0");
        accepted(a.name, yes[k], "1");
      }
      refused(a.name, "2", NG_ERR_ARG, "0 or 1");
      refused(a.name, "", NG_ERR_ARG, "0 or 1");
      refused(a.name, "-0", NG_ERR_ARG, "0 or 1");
      break;
    case NG_OPTION_CHOICE:
      a_choice(&a);
      break;
    case NG_OPTION_TEXT:
      break;
    }
  }
}

static void numbers_read_back(void **state) {
  (void)state;
  accepted("damping", "+3e-2", "0.03");
  accepted("damping", ".5", "0.5");
  accepted("damping", "5.", "5");
  accepted("damping", "0.1", "0.1");
  accepted("damping", "0.30000000000000004", "0.30000000000000004"); /* 15 digits are not enough */
  accepted("eigen_floor", "-0", "0");                                /* not "-0" */
  accepted("stat_period", "+12", "12");
  accepted("stat_period", "007", "7");
  const uint64_t seed = test_seed();
  rng r = {seed};
  for (int i = 0; i < 2000; i++) { /* any double in range reads back to the bit */
    ng_options o = standard_options();
    const double v = ldexp((double)(rng_next(&r) >> 11) + 1, (int)rng_below(&r, 100) - 100);
    char text[64], shown[64];
    (void)snprintf(text, sizeof text, "%.17g", v);
    CHECK_SEED(seed, ng_options_set(&o, "damping", text, NULL, 0) == NG_OK, text);
    CHECK_SEED(seed, ng_options_get(&o, "damping", shown, sizeof shown) == NG_OK, text);
    CHECK_SEED(seed, ng_options_set(&o, "damping", shown, NULL, 0) == NG_OK, shown);
    CHECK_SEED(seed, memcmp(&o.damping, &v, sizeof v) == 0, text);
  }
}

/* A program that speaks German writes 0,5; options do not.  Without such a locale on the machine
 * the lines hold all the same. */
static void numbers_have_a_point_in_every_locale(void **state) {
  (void)state;
  const bool comma = setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL;
  accepted("damping", "0.5", "0.5");
  refused("damping", "0,5", NG_ERR_ARG, "finite number");
  char text[16];
  (void)snprintf(text, sizeof text, "%.1f", 0.5);
  assert_string_equal(text, comma ? "0,5" : "0.5"); /* the program's own locale is left alone */
  assert_non_null(setlocale(LC_NUMERIC, "C"));
}

static void names(void **state) {
  (void)state;
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
  assert_null(strstr(message, "did you mean")); /* nothing is near */
  assert_int_equal(ng_options_set(&o, NULL, "1", message, sizeof message), NG_ERR_ARG);
  assert_int_equal(ng_options_set(NULL, "damping", "1", message, sizeof message), NG_ERR_ARG);
  refused("solver", "eigne", NG_ERR_ARG, "did you mean 'eigen'?");
  refused("solver", "chol", NG_ERR_ARG, "did you mean 'cholesky'?");
  char text[4];
  assert_int_equal(ng_options_get(&o, "solver", text, sizeof text), NG_ERR_ARG); /* no room */
  assert_string_equal(text, "");
  assert_int_equal(ng_options_get(&o, "nothing", text, sizeof text), NG_ERR_ARG);
  assert_int_equal(ng_options_get(&o, "solver", NULL, 0), NG_ERR_ARG);
}

static void known_but_not_supported(void **state) {
  (void)state;
  static const char *const later[][2] = {{"factor_dtype", "f64"}, {"inverse_dtype", "f64"}};
  for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
    refused(later[i][0], later[i][1], NG_ERR_ABSENT, "not supported yet");
    refused(later[i][0], later[i][1], NG_ERR_ABSENT, later[i][1]);
    const ng_option_info info = option_info(ng_option_find(later[i][0]));
    assert_null(strstr(info.choices, later[i][1])); /* and not listed */
    char whole[256];
    (void)snprintf(whole, sizeof whole, "%s: '%s' is not supported yet, there is %s", later[i][0],
                   later[i][1], info.choices);
    refused(later[i][0], later[i][1], NG_ERR_ABSENT, whole);
  }
}

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
  BAD("damping_leak", -1, "0 or 1");
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
  fixture_real(&o, "damping_leak", 1);
  check_is(&o, NG_ERR_ARG, "damping_leak = 1 needs damping_split");
  fixture_set(&o, "damping_split", "pi");
  check_is(&o, NG_OK, "");
  fixture_set(&o, "damping_split", "full");
  check_is(&o, NG_OK, "");
  fixture_real(&o, "prediv", 1);
  check_is(&o, NG_OK, "");
  fixture_set(&o, "inverse_dtype", "f16");
  fixture_real(&o, "damping", 1e-3);
  check_is(&o, NG_OK, "");
  fixture_set(&o, "schedule", "damping*0.1@10 stat_decay~0.9");
  check_is(&o, NG_OK, "");
  fixture_set(&o, "schedule", "stat_decay~0.9 damping*0.1@10,20");
  check_is(&o, NG_ERR_ARG, "from a damping of 1.53e-5 on, it is 1e-05 by its schedule");
  fixture_set(&o, "schedule", "damping*=0.5@1,2,3,4,5,6,7");
  check_is(&o, NG_ERR_ARG, "it is 7.8125e-06 by its schedule");
  fixture_set(&o, "schedule", "damping*10@10");
  check_is(&o, NG_OK, "");
  fixture_real(&o, "damping", 1e-5);
  check_is(&o, NG_ERR_ARG, "it is 1e-05");
  fixture_set(&o, "schedule", "");
  fixture_set(&o, "inverse_dtype", "f32");
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
  fixture_set(&o, "cholesky_form", "factor");
  check_is(&o, NG_ERR_ARG, "cholesky_form = factor needs solver = cholesky");
  o = standard_options();
  fixture_set(&o, "cholesky_form", "factor");
  check_is(&o, NG_OK, "");
  fixture_set(&o, "fold", "direct");
  check_is(&o, NG_OK, "");
  fixture_set(&o, "factor_dtype", "bf16");
  check_is(&o, NG_ERR_ARG, "fold = direct");
  /* setting does not look at the others: any order of the same settings is possible */
  ng_options set = standard_options();
  assert_int_equal(ng_options_set(&set, "damping_split", "joint", NULL, 0), NG_OK);
  assert_int_equal(ng_options_set(&set, "solver", "eigen", NULL, 0), NG_OK);
  check_is(&set, NG_OK, "");
  assert_int_equal(ng_options_check(NULL, message, sizeof message), NG_ERR_ARG);
}

/* A schedule that leads out of the range is found before the run, at the step where it does. */
static void schedule_against_the_base(void **state) {
  (void)state;
  ng_options o = standard_options();
  fixture_set(&o, "schedule", "stat_decay*1.02@5,6,7");
  check_is(&o, NG_ERR_ARG, "at step 7");
  fixture_set(&o, "schedule", "stat_decay*1.02@5,6");
  check_is(&o, NG_OK, "");
  fixture_real(&o, "stat_decay", 0.99);
  check_is(&o, NG_ERR_ARG, "at step 5");
  fixture_set(&o, "schedule", "solve_period*=1000000@1,2,3");
  check_is(&o, NG_ERR_ARG, "at step 3");
  fixture_set(&o, "schedule", "solve_period*0.001@1,2,3"); /* periods stop at 1 */
  check_is(&o, NG_OK, "");
}

/* ---- structs of other sizes ------------------------------------------------------------------*/

static void infos_of_other_sizes(void **state) {
  (void)state;
  ng_option_info small = {.struct_size = offsetof(ng_option_info, standard)};
  small.standard = "untouched";
  assert_int_equal(ng_option_at(4, &small), NG_OK);
  assert_string_equal(small.name, "damping");
  assert_string_equal(small.standard, "untouched");
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
    const char *value = info.type == NG_OPTION_BOOL          ? "1"
                        : info.type == NG_OPTION_INT         ? "3"
                        : info.type == NG_OPTION_REAL        ? "0.25"
                        : strcmp(info.name, "schedule") == 0 ? "damping*0.5@9"
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
    assert_int_equal(setenv(variable, free_text ? "damping*" : "?", 1), 0);
    const ng_status st = ng_options_from_env(&o, message, sizeof message);
    if (strcmp(info.name, "skip_layers") != 0) {
      assert_int_equal(st, NG_ERR_ARG);
      assert_contains(message, variable);
      assert_memory_equal(&o, &before, sizeof o);
    }
    assert_int_equal(unsetenv(variable), 0);
  }
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

/* The set of a and b, or of a alone. */
static bool is_set(const ng_option_mask *mask, int32_t a, int32_t b) {
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    if (ng_bits_has(mask->word, i) != (i == a || i == b)) return false;
  }
  return true;
}

static void overrides(void **state) {
  (void)state;
  ng_options o = standard_options();
  ng_option_mask mask = {{99}};
  assert_int_equal(
      ng_options_override(&o, "  damping=0.01\tstat-decay=0.5 ", &mask, message, sizeof message),
      NG_OK);
  assert_option(&o, "damping", "0.01");
  assert_option(&o, "stat_decay", "0.5");
  assert_true(is_set(&mask, NG_OPTION_damping, NG_OPTION_stat_decay));
  assert_int_equal(ng_options_override(&o, "", &mask, NULL, 0), NG_OK);
  assert_true(is_set(&mask, -1, -1));
  assert_int_equal(ng_options_override(&o, NULL, &mask, NULL, 0), NG_OK);
  /* together or not at all, and checked together */
  assert_int_equal(ng_options_override(&o, "damping_split=joint solver=eigen", &mask, NULL, 0),
                   NG_OK);
  o = standard_options();
  const ng_options before = o;
  static const char *const wrong[][2] = {{"damping=0.1 damping=0.2", "damping is given twice"},
                                         {"damping", "NAME=VALUE"},
                                         {"damping=0", "0 < damping"},
                                         {"=1", "NAME=VALUE"},
                                         {"method=eva", "whole model"},
                                         {"damping='0.1", "closing '"},
                                         {"dampin=1", "did you mean 'damping'?"},
                                         {"damping = 1", "NAME=VALUE"},
                                         {"clip=none", "whole model"},
                                         {"update=sgd", "whole model"},
                                         {"skip_layers=x", "whole model"},
                                         {"solver=eigen damping=x", "finite number"},
                                         {"statistics=local", "whole model"}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    mask = (ng_option_mask){{99}};
    assert_int_equal(ng_options_override(&o, wrong[i][0], &mask, message, sizeof message),
                     NG_ERR_ARG);
    assert_contains(message, wrong[i][1]);
    assert_memory_equal(&o, &before, sizeof o);
    assert_true(mask.word[0] == 99);
  }
  char longest[300];
  memset(longest, 'a', sizeof longest);
  longest[sizeof longest - 1] = 0;
  assert_int_equal(ng_options_override(&o, longest, &mask, message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "NAME=VALUE");
  assert_int_equal(ng_options_override(&o, "solver='eigen'", &mask, message, sizeof message),
                   NG_OK);
  assert_option(&o, "solver", "eigen");
  o = before;
  /* per_layer and only per_layer options */
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char text[128];
    (void)snprintf(text, sizeof text, "%s=%s", info.name, info.standard);
    assert_int_equal(ng_options_override(&o, text, &mask, NULL, 0),
                     info.per_layer ? NG_OK : NG_ERR_ARG);
    if (info.per_layer) assert_true(is_set(&mask, i, i));
  }
  /* a schedule leaves an overridden option alone, so it is not held against it */
  fixture_set(&o, "schedule", "stat_decay*1.04@5");
  assert_int_equal(ng_options_override(&o, "stat_decay=0.99", &mask, NULL, 0), NG_OK);
}

/* ---- spelling --------------------------------------------------------------------------------*/

static const char *const word[] = {"cholesky", "eigen", "all", "round-robin"};
static const char *word_at(int32_t i) { return word[i]; }

static void nearest(void **state) {
  (void)state;
  static const char *const typed[][2] = {
      {"cholesky", "cholesky"},
      {"choelsky", "cholesky"},
      {"choleski", "cholesky"},
      {"colesky", "cholesky"},
      {"al", "all"},
      {"round_robin", "round-robin"},
      {"roundrobin", "round-robin"},
      {"Eigen", "eigen"},
      {"eig", "eigen"},
      {"xyz", NULL},
      {"", NULL},
      {"c", NULL},
      {"a_very_long_word_that_is_longer_than_any_name_in_the_list", NULL}};
  for (size_t i = 0; i < sizeof typed / sizeof typed[0]; i++) {
    const char *near = ng_nearest(typed[i][0], word_at, 4);
    if (typed[i][1] == NULL) {
      assert_null(near);
    } else {
      assert_non_null(near);
      assert_string_equal(near, typed[i][1]);
    }
  }
  assert_null(ng_nearest("eigen", word_at, 0));
  assert_null(ng_nearest(NULL, word_at, 4));
}

/* ---- any text at all -------------------------------------------------------------------------*/

static void random_text(rng *r, char *text, int64_t most) {
  static const char *const piece[] = {"damping",
                                      "stat_decay",
                                      "solve_period",
                                      "solver",
                                      "=",
                                      "*",
                                      "*=",
                                      "@",
                                      ",",
                                      "~",
                                      "0.5",
                                      "1e-3",
                                      "2",
                                      "10",
                                      " ",
                                      "inf",
                                      "-",
                                      "+",
                                      "eigen",
                                      "cholesky",
                                      "pi",
                                      "joint",
                                      "nan",
                                      ".",
                                      "e",
                                      "0",
                                      "%s%n",
                                      "\n",
                                      "\x01\xff",
                                      "1e400",
                                      "99999999999999999999",
                                      "|",
                                      "[",
                                      "none",
                                      "kl_clip"};
  int64_t pieces = rng_below(r, 12);
  size_t n = 0;
  text[0] = 0;
  while (pieces-- > 0) {
    const char *p = piece[rng_below(r, (int64_t)(sizeof piece / sizeof piece[0]))];
    char one[2] = {(char)(1 + rng_below(r, 255)), 0};
    if (rng_below(r, 6) == 0) p = one;
    if (n + strlen(p) + 1 >= (size_t)most) break;
    memcpy(text + n, p, strlen(p) + 1);
    n += strlen(p);
  }
}

static ng_status any_published(rng *r, ng_options *o, const char *name, const char *value) {
  const int32_t m = (int32_t)rng_below(r, ng_method_count());
  ng_method_info method = {.struct_size = sizeof method};
  ng_published_info p = {.struct_size = sizeof p, .name = name};
  ng_status st = ng_method_at(m, &method);
  *o = standard_options(); /* what was given before need not go with the method */
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

static void any_text(void **state) {
  (void)state;
  const uint64_t seed = test_seed();
  rng r = {seed};
  int64_t taken = 0, published = 0;
  for (int i = 0; i < 60000; i++) {
    char name[128], value[128], shown[160];
    ng_options o = standard_options();
    random_text(&r, value, sizeof value);
    random_text(&r, name, sizeof name);
    if (rng_below(&r, 4) != 0) {
      (void)snprintf(name, sizeof name, "%s",
                     option_info((int32_t)rng_below(&r, ng_option_count())).name);
    }
    const ng_options before = o;
    memset(message, 'x', sizeof message);
    const ng_status st = ng_options_set(&o, name, value, message, sizeof message);
    if (st == NG_OK) {
      taken++;
      CHECK_SEED(seed, ng_options_get(&o, name, shown, sizeof shown) == NG_OK, value);
      CHECK_SEED(seed, ng_options_set(&o, name, shown, NULL, 0) == NG_OK, shown);
    } else {
      CHECK_SEED(seed, st == NG_ERR_ARG || st == NG_ERR_ABSENT, value);
      CHECK_SEED(seed, memcmp(&o, &before, sizeof o) == 0, value);
      CHECK_SEED(seed, memchr(message, 0, sizeof message) != NULL, value);
    }
    o = before;
    ng_option_mask mask = {{7}};
    if (ng_options_override(&o, value, &mask, message, sizeof message) == NG_OK) {
      CHECK_SEED(seed, ng_options_check(&o, NULL, 0) == NG_OK, value);
    } else {
      CHECK_SEED(seed, memcmp(&o, &before, sizeof o) == 0 && mask.word[0] == 7, value);
    }
    CHECK_SEED(seed, ng_options_set(&o, "method", name, message, sizeof message) != NG_OK, name);
    CHECK_SEED(seed, ng_options_set_system(&o, name, value, message, sizeof message) != NG_OK,
               name);
    if (any_published(&r, &o, name, value) == NG_OK) published++;
    /* whatever a published option says, the methods stay consistent */
    CHECK_SEED(seed, ng_options_check(&o, message, sizeof message) == NG_OK, message);
  }
  assert_true(taken > 100 && published > 100); /* the generator does find values that are right */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_are_the_manual),
      cmocka_unit_test(rows_are_complete),
      cmocka_unit_test(every_row_has_its_test),
      cmocka_unit_test(every_row),
      cmocka_unit_test(numbers_read_back),
      cmocka_unit_test(numbers_have_a_point_in_every_locale),
      cmocka_unit_test(names),
      cmocka_unit_test(known_but_not_supported),
      cmocka_unit_test(numbers_are_judged),
      cmocka_unit_test(options_against_each_other),
      cmocka_unit_test(schedule_against_the_base),
      cmocka_unit_test(infos_of_other_sizes),
      cmocka_unit_test(environment),
      cmocka_unit_test(overrides),
      cmocka_unit_test(nearest),
      cmocka_unit_test(any_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
