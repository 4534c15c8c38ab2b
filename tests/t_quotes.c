/* t_quotes.c: a message never has control characters, although it may quote any text of the caller.  Each function of
 * natgrad.h that takes a text gets texts with a control character: names, values, lines, layers, paths.  The test reads
 * natgrad.h and fails if a function with a text is not called here.  Texts of files: t_state_refused, t_factor_files. */
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

/* One of each kind: the first and the last, blanks of a terminal, the escape of a terminal, delete. */
static const char controls[] = "\x01\t\n\v\r\x1b\x1f\x7f";

static bool has_control(const char *text) {
  for (; *text != 0; text++)
    if ((unsigned char)*text < 32 || *text == 127) return true;
  return false;
}

/* ---- functions that were called --------------------------------------------------------------*/

enum { MOST = 64 };
static char called[MOST][48];
static int calls;

static void record_call(const char *expression) {
  const size_t n = strcspn(expression, "(");
  assert_true(n < sizeof called[0]);
  for (int i = 0; i < calls; i++)
    if (strncmp(called[i], expression, n) == 0 && called[i][n] == 0) return;
  assert_true(calls < MOST);
  memcpy(called[calls], expression, n);
  called[calls++][n] = 0;
}

/* The message of a failed call quotes the text, with '?' for the control character.  `quote`: the expected part. */
static void check_message(const char *expression, char control, ng_status st, const char *message,
                          const char *quote) {
  record_call(expression);
  if (st >= NG_OK)
    fail_msg("%s, character %d: returned %s, expected an error", expression, control,
             ng_status_name(st));
  if (has_control(message)) fail_msg("%s, character %d: raw in '%s'", expression, control, message);
  if (strstr(message, quote) == NULL)
    fail_msg("%s, character %d: '%s' lacks '%s'", expression, control, message, quote);
}

/* ---- the calls -------------------------------------------------------------------------------*/

static char message[256];
static int lines; /* logged */

static void check_line(void *user, ng_log_level level, const char *line) {
  if (has_control(line)) fail_msg("logged raw: '%s'", line);
  lines++;
}

/* TEXT: a call that fails with `message`.  CTX: the message is in the context.  QUIET: no message. */
#define TEXT(call, quote)                                                                          \
  do {                                                                                             \
    memset(message, 0, sizeof message);                                                            \
    check_message(#call, c, call, message, quote);                                                 \
  } while (0)
#define CTX(call, quote) check_message(#call, c, call, ng_last_error(f.ctx), quote)
#define QUIET(call) check_message(#call, c, call, "", "")
#define INTO message, sizeof message

static void call_options(char c, const char *bad) {
  char quoted[64], open[64], value[64], first[64], word[64], name[64];
  ng_options *o = NULL;
  double real;
  (void)snprintf(quoted, sizeof quoted, "damping='%s'", bad);
  (void)snprintf(value, sizeof value, "method='%s'", bad);
  (void)snprintf(open, sizeof open, "damping='%s", bad);
  (void)snprintf(first, sizeof first, "'%s'=1", bad);
  (void)snprintf(word, sizeof word, "damping=1 %s", bad);
  (void)snprintf(name, sizeof name, "%s='x", bad);
  TEXT(ng_options_create(name, INTO, &o), ""); /* raw at 329fd6e */
  TEXT(ng_options_create(quoted, INTO, &o), "ma?rk");
  TEXT(ng_options_create(value, INTO, &o), "ma?rk");
  TEXT(ng_options_create(open, INTO, &o), "has no closing '");
  TEXT(ng_options_create(first, INTO, &o), "");
  TEXT(ng_options_create(word, INTO, &o), "");
  assert_int_equal(ng_options_create(NULL, INTO, &o), NG_OK);
  TEXT(ng_options_set_line(o, quoted, INTO), "ma?rk");
  TEXT(ng_options_set_line(o, open, INTO), "has no closing '");
  TEXT(ng_options_set(o, bad, "1", INTO), "ma?rk");
  TEXT(ng_options_set_real(o, bad, 1, INTO), "ma?rk");
  for (int32_t i = 0; i < ng_option_count();
       i++) { /* texts of any kind, as skip_layers, are accepted */
    ng_option_info info = {.struct_size = sizeof info};
    assert_int_equal(ng_option_at(i, &info), NG_OK);
    memset(message, 0, sizeof message);
    const ng_status st = ng_options_set(o, info.name, bad, INTO);
    if (info.type != NG_OPTION_TEXT || st != NG_OK)
      check_message("ng_options_set", c, st, message, "ma?rk");
  }
  QUIET(ng_options_get(o, bad, INTO));
  QUIET(ng_options_get_real(o, bad, &real));
  QUIET(ng_options_idle(o, bad, INTO));
  TEXT(ng_options_set_system(o, bad, "eigen", INTO), "ma?rk");
  TEXT(ng_options_set_system(o, "KAISA", bad, INTO), "ma?rk");
  assert_int_equal(ng_options_set(o, "method", "kaisa", INTO), NG_OK);
  TEXT(ng_options_set_published(o, bad, "1", &real, INTO), "ma?rk");
  ng_method_info method = {.struct_size = sizeof method};
  for (int32_t m = 0; ng_method_at(m, &method) == NG_OK; m++) {
    ng_published_info row = {.struct_size = sizeof row};
    if (ng_options_set(o, "method", method.name, INTO) != NG_OK) continue;
    for (int32_t i = 0; ng_method_published_at(m, i, &row) == NG_OK; i++) {
      memset(message, 0, sizeof message);
      (void)!ng_options_set_published(o, row.name, bad, &real, INTO);
      if (has_control(message)) fail_msg("%s of %s: raw in '%s'", row.name, method.name, message);
    }
  }
  ng_options_destroy(&o);
}

static void call_environment(char c, const char *bad) {
  ng_options *o = NULL;
  ng_context *ctx = NULL;
  ng_context_config config;
  assert_int_equal(ng_options_create(NULL, INTO, &o), NG_OK);
  ng_context_config_init(&config, sizeof config);
  config.linalg = bad;
  TEXT(ng_context_create(NG_VERSION, &config, INTO, &ctx), "ma?rk");
  static const char *const variable[] = {"NG_LINALG", "NG_THREADS", "NG_LOG"};
  for (size_t i = 0; i < sizeof variable / sizeof *variable; i++) {
    assert_int_equal(setenv(variable[i], bad, 1), 0);
    config.linalg = NULL;
    TEXT(ng_context_create(NG_VERSION, &config, INTO, &ctx), "ma?rk");
    assert_int_equal(unsetenv(variable[i]), 0);
  }
  assert_int_equal(setenv("NG_DAMPING", bad, 1), 0);
  TEXT(ng_options_from_env(o, INTO), "ma?rk");
  assert_int_equal(unsetenv("NG_DAMPING"), 0);
  ng_options_destroy(&o);
}

static void call_model(char c, const char *bad) {
  const int64_t one[2] = {1, 1};
  char quoted[64], file[64], variable[32], number[32];
  ng_context_config config;
  fixture f;
  int32_t n;
  ng_context_config_init(&config, sizeof config);
  config.log = check_line;
  config.log_level = NG_LOG_TRACE;
  (void)snprintf(variable, sizeof variable, "NG_%s", bad);
  assert_int_equal(setenv(variable, "1", 1), 0); /* an unknown variable is logged */
  (void)snprintf(quoted, sizeof quoted, "damping='%s'", bad);
  (void)snprintf(file, sizeof file, "/proc/%s/x", bad);
  fixture_ok(&f, fixture_open(&f, "", &(fixture_how){.config = &config, .threads = 1}));
  ng_precond *p = f.p, *other = NULL;
  ng_layer l = layer_of(NG_LINEAR, bad, 1, 1);
  CTX(ng_precond_create(f.ctx, quoted, &other), "ma?rk");
  CTX(ng_add_layer(p, &l, NULL), "control");
  l = layer_of(NG_LINEAR, "fc", 1, 1);
  l.options = quoted;
  CTX(ng_add_layer(p, &l, NULL), "ma?rk");
  l.options = bad;
  CTX(ng_add_layer(p, &l, NULL), "");
  l.options = NULL;
  l.alias_of = bad;
  CTX(ng_add_layer(p, &l, NULL), "");
  CTX(ng_add_linear(p, bad, 1, 1, 0, NULL), "control");
  CTX(ng_add_conv2d(p, bad, 1, 1, one, one, one, one, 1, one, 0, NULL), "control");
  CTX(ng_add_norm(p, bad, NG_BATCH_NORM, 1, 1, 0, NULL), "control");
  CTX(ng_add_tensor(p, bad, 1, NULL), "control");
  float one_float[1] = {1};
  const plane unit = plane_of(one_float, 1, 1, NG_F32);
  fixture_ok(&f, fixture_add_linear(&f, "fc", (const plane[2]){unit}, NULL));
  fixture_ok(&f, ng_ready(p));
  fixture_ok(&f, fixture_begin_and_observe(&f, 1, 0, &unit, &unit));
  fixture_ok(&f, ng_step(p, 1)); /* then there are factors to save */
  CTX(ng_set(p, bad, "1"), "ma?rk");
  CTX(ng_set(p, "damping", bad), "ma?rk");
  CTX(ng_set_real(p, bad, 1), "ma?rk");
  CTX(ng_get(p, bad, number, sizeof number), "ma?rk");
  CTX(ng_save(p, file), "ma?rk");
  CTX(ng_load(p, file), "ma?rk");
  CTX(ng_save_parts(p, file), "ma?rk");
  CTX(ng_save_factors(p, file), "ma?rk");
  (void)!ng_load_factors(p, file, &n); /* a folder that does not exist is no error, but logged */
  record_call("ng_load_factors(");
  double matrix[1] = {1}, x[1] = {1};
  ng_curvature *k = NULL;
  ng_factors factors = {.struct_size = sizeof factors,
                        .groups = 1,
                        .rows = 1,
                        .cols = 1,
                        .left = matrix,
                        .right = matrix};
  assert_int_equal(ng_curvature_create(f.ctx, &factors, &k), NG_OK);
  const ng_damped_power power = {
      .struct_size = sizeof power, .damping = 1, .power = 1, .split = bad};
  CTX(ng_curvature_apply(k, &power, x, 1, x), "ma?rk");
  CTX(ng_curvature_diagonal(k, &power, x), "ma?rk");
  CTX(ng_curvature_measure(k, &power, x, x), "ma?rk");
  ng_curvature_destroy(&k);
  fixture_close(&f);
  assert_int_equal(unsetenv(variable), 0);
}

/* Patterns without a layer are logged by ng_ready. */
static void log_patterns(char c, const char *bad) {
  char set[64];
  ng_context_config config;
  fixture f;
  ng_context_config_init(&config, sizeof config);
  config.log = check_line;
  config.log_level = NG_LOG_TRACE;
  (void)snprintf(set, sizeof set, "skip_layers='%s'", bad);
  if (fixture_open(&f, set, &(fixture_how){.config = &config, .threads = 1}) == NG_OK) {
    assert_int_equal(ng_add_linear(f.p, "fc", 1, 1, 0, NULL), NG_OK);
    assert_int_equal(ng_ready(f.p), NG_OK);
  }
  if (has_control(fixture_message(&f))) fail_msg("raw in '%s'", fixture_message(&f));
  fixture_close(&f);
}

static void messages_have_no_control_characters(void **state) {
  for (const char *c = controls; *c != 0; c++) {
    const char bad[] = {'m', 'a', *c, 'r', 'k', 0};
    call_options(*c, bad);
    call_environment(*c, bad);
    call_model(*c, bad);
    log_patterns(*c, bad);
  }
  assert_true(lines > 0);
}

/* Return whether a parameter of the declaration is a text. */
static bool takes_text(const char *declaration) {
  const char *at = strchr(declaration, '(');
  return at != NULL && strstr(at, "const char *") != NULL;
}

/* The last test: it reads the calls of the others. */
static void every_function_with_a_text_was_called(void **state) {
  char line[256], declaration[1024] = "";
  int functions = 0;
  FILE *f = fopen(NG_SOURCE_DIR "/include/natgrad.h", "r");
  assert_non_null(f);
  while (fgets(line, sizeof line, f) != NULL) {
    if (declaration[0] == 0 && strncmp(line, "NG_API", 6) != 0) continue;
    (void)strncat(declaration, line, sizeof declaration - strlen(declaration) - 1);
    if (strchr(line, ';') == NULL) continue;
    if (takes_text(declaration)) {
      char *end = strchr(declaration, '(');
      *end = 0;
      const char *name = end;
      while (name > declaration && name[-1] != ' ' && name[-1] != '*')
        name--;
      bool found = false;
      for (int i = 0; i < calls && !found; i++)
        found = strcmp(called[i], name) == 0;
      if (!found) fail_msg("%s is not called here", name);
      functions++;
    }
    declaration[0] = 0;
  }
  assert_int_equal(fclose(f), 0);
  assert_true(functions > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(messages_have_no_control_characters),
      cmocka_unit_test(every_function_with_a_text_was_called),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
