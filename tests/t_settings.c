/* t_settings.c: the trainer's settings: each alone, all together, as options of the library, from and to JSON, and
 * against the settings of a resumed run. */
#include "train/disk.h"
#include "train/settings.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- settings --------------------------------------------------------------------------------*/

/* For every row a value that differs from the default, as settings_get returns it. */
static const char *const other[][2] = {
    {"data", "mnist:a \"b\"\\c"},
    {"model", "lenet"},
    {"method", "kaisa"},
    {"optimizer", "adamw"},
    {"epochs", "2.5"},
    {"batch", "32"},
    {"lr", "0.3"},
    {"momentum", "0.5"},
    {"nesterov", "true"},
    {"beta1", "0.8"},
    {"beta2", "0.99"},
    {"eps", "1e-06"},
    {"weight-decay", "0.0005"},
    {"decoupled", "true"},
    {"label-smoothing", "0.1"},
    {"dropout", "0.25"},
    {"lr-schedule", "cosine"},
    {"warm-up", "1.5"},
    {"augment", "flip"},
    {"fisher", "sampled"},
    {"validation", "100"},
    {"seed", "77"},
    {"out", "some/where"},
    {"checkpoint-every", "7"},
    {"log-every", "3"},
    {"resume", "true"},
    {"acc-iters", "4"},
    {"adjust-momentum", "ratio"},
    {"rescale-weights", "shrink"},
    {"mixup-alpha", "0.4"},
    {"running-mixup", "true"},
    {"erase-rate", "0.5"},
    {"erase-area-low", "0.01"},
    {"erase-area-high", "0.5"},
    {"erase-aspect-low", "0.2"},
    {"damping-rule", "keep-ratio"},
    {"schedule", "damping*0.5@3"},
    {"average-weights", "1.5"},
    {"average-every", "3"},
    {"average-lr", "0.01"},
    {"bucket-mb", "2.5"},
    {"checkpoint-parts", "true"},
    {"own-batches", "true"},
    {"steps", "12"},
};
enum { OTHERS = sizeof other / sizeof other[0] };

static void every_setting_is_set_and_got(void **state) {
  assert_int_equal(OTHERS, settings_rows_count);
  settings s, copy;
  settings_init(&s);
  for (int i = 0; i < settings_rows_count; i++) { /* settings_get returns the documented default */
    char text[256];
    assert_true(settings_get(&s, settings_rows[i].name, text, sizeof text));
    assert_string_equal(text, settings_rows[i].standard);
  }
  for (int i = 0; i < OTHERS; i++) {
    char before[256], after[256], spelt[64];
    assert_true(settings_get(&s, other[i][0], before, sizeof before));
    if (strcmp(before, other[i][1]) == 0)
      fail_msg("%s: the other value is the default", other[i][0]);
    settings_copy(&copy, &s);
    cli_replace_separators(spelt, sizeof spelt, other[i][0], '_');
    must_set(&s, i % 2 == 0 ? spelt : other[i][0], other[i][1]); /* '-' and '_' */
    assert_true(settings_get(&s, other[i][0], after, sizeof after));
    assert_string_equal(after, other[i][1]);
    assert_true(settings_get(&copy, other[i][0], after, sizeof after));
    assert_string_equal(after, before);
    settings_free(&copy);
  }
  assert_true(s.epochs == 0 && s.steps == 12); /* the last of both counts */
  must_set(&s, "epochs", "3");
  assert_true(s.epochs == 3 && s.steps == 0);
  settings_free(&s);
}

static void bad_values_are_refused(void **state) {
  static const struct {
    const char *name, *value, *why;
  } bad[] = {
      {"batch", "0", "whole number from 1"},
      {"batch", "8x", "whole number"},
      {"batch", "", "whole number"},
      {"batch", "1e3", "whole number"},
      {"seed", "-1", "from 0"},
      {"seed", "99999999999999999999", "from 0 to 1000000000000000"},
      {"lr", "nan", "no number from 0"},
      {"lr", "-0.1", "no number from 0"},
      {"lr", "inf", "no number"},
      {"lr", "0.1 ", "no number"},
      {"epochs", "default", "no number"},
      {"momentum", "1", "from 0 to below 1"},
      {"dropout", "1", "no number"},
      {"nesterov", "maybe", "neither true nor false"},
      {"optimizer", "adam", "none of sgd|adamw"},
      {"augment", "cropflip", "crop+flip"},
      {"fisher", "true", "empirical|sampled"},
      {"lr-schedule", "cosin", "cosine[:FINAL]"},
      {"acc-iters", "0", "whole number from 1"},
      {"mixup-alpha", "4.1", "no number from 0 to 4"},
      {"erase-aspect-low", "0", "no number from 0.001"},
      {"adjust-momentum", "true", "none|ratio|proportional"},
      {"rescale-weights", "true", "none|shrink|always"},
      {"out", "\xff", "is not UTF-8"},
      {"method", "kasia", "nearest is kaisa"},
      {"method", "sdg", "nearest is sgd"},
      {"method", "zzzzzz", "natgrad info --methods"},
      {"damping", "0", "damping"},
      {"solver", "lu", "cholesky"},
      {"update", "gradient", "use optimizer"},
      {"dampnig", "1", "nearest is damping"},
      {"weight-dekay", "1", "nearest is weight-decay"},
      {"qqqqqqqqqqqq", "1", "unknown setting"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    settings s;
    char message[512] = "", before[256] = "", after[256] = "";
    settings_init(&s);
    (void)settings_get(&s, bad[i].name, before, sizeof before);
    if (settings_try_set(&s, bad[i].name, bad[i].value, message, sizeof message) != CLI_BAD)
      fail_msg("%s = '%s' is accepted", bad[i].name, bad[i].value);
    if (strstr(message, bad[i].why) == NULL)
      fail_msg("%s = '%s': '%s' lacks '%s'", bad[i].name, bad[i].value, message, bad[i].why);
    (void)settings_get(&s, bad[i].name, after, sizeof after);
    assert_string_equal(before, after);
    assert_int_equal(s.n_library, 0);
    settings_free(&s);
  }
}

static void settings_are_checked_together(void **state) {
  static const struct {
    const char *set[3][2];
    const char *why;
  } bad[] = {
      {{{"epochs", "0"}}, "--epochs"},
      {{{"method", "sgd"}, {"damping", "0.1"}}, "--damping: method sgd"},
      {{{"method", "adamw"}, {"fisher", "sampled"}}, "--fisher: method adamw"},
      {{{"nesterov", "true"}, {"momentum", "0"}}, "--nesterov"},
      {{{"resume", "true"}}, "--resume: needs --out"},
      {{{"checkpoint-every", "3"}}, "--checkpoint-every: needs --out"},
      {{{"damping-split", "joint"}}, "damping_split"},
      {{{"data", ""}}, "--data"},
      {{{"damping-rule", "keep-ratio"}, {"schedule", "damping~L-down@9"}},
       "--damping-rule: the schedule 'damping~L-down@9' changes damping as well"},
      {{{"method", "sgd"}, {"damping-rule", "keep-ratio"}},
       "--damping-rule: has no effect with method sgd"},
      {{{"average-every", "3"}}, "--average-every: needs --average-weights"},
      {{{"average-lr", "0.1"}}, "--average-lr: needs --average-weights"},
      {{{"running-mixup", "true"}}, "--running-mixup: needs"},
      {{{"erase-area-low", "0.1"}}, "--erase-area-low: needs --erase-rate"},
      {{{"erase-aspect-low", "0.1"}}, "--erase-aspect-low: needs --erase-rate"},
      {{{"erase-rate", "0.1"}, {"erase-area-low", "0.3"}}, "--erase-area-low: 0.3 is above"},
      {{{"adjust-momentum", "ratio"}, {"nesterov", "true"}}, "--adjust-momentum: needs"},
      {{{"adjust-momentum", "ratio"}, {"momentum", "0"}}, "--adjust-momentum: needs"},
      {{{"adjust-momentum", "ratio"}, {"method", "adamw"}},
       "--adjust-momentum: has no effect with method adamw"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    settings s;
    settings_init(&s);
    for (int k = 0; k < 3 && bad[i].set[k][0] != NULL; k++)
      must_set(&s, bad[i].set[k][0], bad[i].set[k][1]);
    capture_stderr();
    const int rc = settings_check(&s);
    const char *text = captured_stderr();
    if (rc != CLI_BAD || strstr(text, bad[i].why) == NULL)
      fail_msg("case %zu: status %d, message '%s', expected '%s'", i, rc, text, bad[i].why);
    settings_free(&s);
  }
}

static void expect_option(const settings *s, const char *name, const char *value) {
  ng_options *o = NULL;
  assert_int_equal(settings_create_options(s, &o), CLI_OK);
  assert_string_equal(cli_get_option_text(o, name).text, value);
  ng_options_destroy(&o);
}

static void settings_override_environment_and_method(void **state) {
  settings s;
  settings_init(&s);
  must_set(&s, "method", "kaisa");
  expect_option(&s, "solver", "eigen-prediv");
  expect_option(&s, "update", "sgd");
  assert_int_equal(setenv("NG_DAMPING", "0.25", 1), 0);
  expect_option(&s, "damping", "0.25");
  must_set(&s, "damping", "0.5");
  must_set(&s, "damping", "0.75"); /* the new value replaces the old one */
  assert_int_equal(s.n_library, 1);
  expect_option(&s, "damping", "0.75");
  must_set(&s, "optimizer", "adamw");
  expect_option(&s, "update", "adamw");
  assert_int_equal(unsetenv("NG_DAMPING"), 0);
  settings_free(&s);
}

/* NG_METHOD sets the method if none is given. */
static void environment_sets_the_method(void **state) {
  settings s;
  ng_options *o = NULL;
  assert_int_equal(setenv("NG_METHOD", "eva", 1), 0);
  settings_init(&s);
  assert_string_equal(s.method, "eva");
  expect_option(&s, "method", "eva");
  expect_option(&s, "stat_batch", "16");
  must_set(&s, "method", "kaisa"); /* a given method replaces NG_METHOD */
  expect_option(&s, "method", "kaisa");
  expect_option(&s, "solver", "eigen-prediv");
  settings_free(&s);
  assert_int_equal(setenv("NG_METHOD", "adamw", 1), 0); /* a method of the trainer */
  settings_init(&s);
  assert_true(settings_is_first_order(&s) && settings_is_adamw(&s));
  settings_free(&s);
  assert_int_equal(setenv("NG_METHOD", "evva", 1), 0);
  settings_init(&s);
  capture_stderr();
  assert_int_equal(settings_create_options(&s, &o), CLI_BAD);
  const char *text = captured_stderr();
  assert_non_null(strstr(text, "NG_METHOD in the environment"));
  assert_non_null(strstr(text, "'eva'"));
  assert_null(o);
  settings_free(&s);
  assert_int_equal(unsetenv("NG_METHOD"), 0);
}

/* ---- JSON ------------------------------------------------------------------------------------*/

static void written_settings_are_read_back(void **state) {
  settings s, back;
  settings_init(&s);
  for (int i = 0; i < OTHERS; i++)
    must_set(&s, other[i][0], other[i][1]);
  must_set(&s, "warm-up", "0.1234567890123456789");
  must_set(&s, "damping", "0.012345678901234567");
  must_set(&s, "skip-layers", "a\"\\\\b");
  assert_int_equal(setenv("NG_KL_CLIP", "0.5", 1), 0);
  char *text;
  assert_int_equal(settings_write_json(&s, "config.json", &text), CLI_OK);
  assert_int_equal(disk_write_file(in_folder("config.json"), text, strlen(text)), CLI_OK);
  free(text);
  /* the config file stores the value of the variable */
  assert_int_equal(unsetenv("NG_KL_CLIP"), 0);
  settings_init(&back);
  assert_int_equal(settings_read_file(&back, in_folder("config.json")), CLI_OK);
  for (int i = 0; i < settings_rows_count; i++) {
    char a[256], b[256];
    const char *name = settings_rows[i].name;
    if (strcmp(name, "resume") == 0) continue; /* `resume` is not stored */
    assert_true(settings_get(&s, name, a, sizeof a) && settings_get(&back, name, b, sizeof b));
    if (strcmp(a, b) != 0) fail_msg("%s: %s became %s", name, a, b);
  }
  ng_options *x = NULL, *y = NULL;
  assert_int_equal(settings_create_options(&s, &x), CLI_OK);
  assert_int_equal(settings_create_options(&back, &y), CLI_OK);
  assert_true(cli_get_option_real(x, "damping") == cli_get_option_real(y, "damping"));
  assert_true(cli_get_option_real(y, "kl_clip") == 0.5 && cli_get_option_real(x, "kl_clip") != 0.5);
  assert_string_equal(cli_get_option_text(y, "skip_layers").text, "a\"\\\\b");
  ng_options_destroy(&x);
  ng_options_destroy(&y);
  settings_free(&s);
  settings_free(&back);
}

/* Time grows with the number of keys.  If time grew with the number of pairs, 30 us each, the test would take 138 s. */
static void many_unknown_keys_are_read_fast(void **state) {
  enum { KEYS = 3000 };
  FILE *f = fopen(in_folder("many.json"), "w");
  assert_non_null(f);
  for (int i = 0; i < KEYS; i++)
    assert_true(fprintf(f, "%s\"k%d\": 1", i == 0 ? "{" : ", ", i) > 0);
  assert_true(fputs("}\n", f) >= 0);
  assert_int_equal(fclose(f), 0);
  settings s;
  settings_init(&s);
  capture_stderr();
  const clock_t begun = clock();
  const int rc = settings_read_file(&s, in_folder("many.json"));
  const double took = (double)(clock() - begun) / CLOCKS_PER_SEC;
  const char *text = captured_stderr();
  if (rc != CLI_BAD || strstr(text, "unknown setting") == NULL) fail_msg("%s", text);
  if (took > 20.0) fail_msg("%d keys took %.1f s", KEYS, took);
  settings_free(&s);
}

static void bad_files_are_refused(void **state) {
  static const char *const bad[][2] = {
      {"{\"lr-schedule\": \"linear\", \"lr_schedule\": \"cosine\"}",
       "lr-schedule and lr_schedule are the same setting"},
      {"{\"method\": \"mfac\", \"window_store\": \"topk\", \"lr\": 1, \"store\": \"dense\"}",
       "window_store and store are the same setting"},
      {"{\"lr\": 1, \"lr\": 2}", "line 1: duplicate key 'lr'"},
      {"{\"epochs\": 2, \"steps\": 9}", "steps: give it or epochs, not both"},
      {"{\"batch\": 3", "no JSON"},
      {"[1]", "expected a JSON object"},
      {"{\"batch\": \"3x\"}", "batch: '3x' is no whole number"},
      {"{\"batch\": 3.5}", "batch: '3.5' is no whole number"},
      {"{\"lr\": true}", "lr: 'true' is no number"},
      {"{\"lr\": \"big\"}", "lr: 'big' is no number"},
      {"{\"lr\": 1e999}", "no JSON"},
      {"{\"nesterov\": 2}", "nesterov: '2' is neither true nor false"},
      {"{\"model\": []}", "model: expected a text, a number"},
      {"{\"model\": null}", "model: expected a text, a number"},
      {"{\"batch\": 0}", "batch: '0' is no whole number from 1"},
      {"{\"batch\": 3, \"batch\": 3}", "no JSON"},
      {"{\"bacth\": 3}", "bacth: unknown setting; the nearest is batch"},
      {"{\"damping\": \"0.1.\"}", "damping: "},
      {"{\"damping\": 0}", "damping"},
      {"{\"stat_period\": 1.5}", "stat_period: "},
      {"{\"update\": \"sgd\"}", "update: the trainer sets this option"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    settings s;
    settings_init(&s);
    put_file("bad.json", bad[i][0], strlen(bad[i][0]));
    capture_stderr();
    const int rc = settings_read_file(&s, in_folder("bad.json"));
    const char *text = captured_stderr();
    if (rc != CLI_BAD || strstr(text, bad[i][1]) == NULL || strstr(text, "bad.json: ") == NULL)
      fail_msg("%s: status %d, message '%s', expected '%s'", bad[i][0], rc, text, bad[i][1]);
    settings_free(&s);
  }
  settings s;
  settings_init(&s);
  capture_stderr();
  assert_int_equal(settings_read_file(&s, in_folder("absent.json")), CLI_BAD);
  assert_non_null(strstr(captured_stderr(), "absent.json: "));
  settings_free(&s);
}

/* ---- resumed runs ----------------------------------------------------------------------------*/

static void resumed_runs_keep_their_settings(void **state) {
  for (int i = 0; i < OTHERS; i++) {
    settings was, now;
    settings_init(&was);
    settings_init(&now);
    must_set(&now, other[i][0], other[i][1]);
    capture_stderr();
    const int rc = settings_check_same(&was, &now, NULL, "FILE");
    const char *text = captured_stderr();
    const bool shapes = settings_find(other[i][0])->fixed;
    if (rc != (shapes ? CLI_BAD : CLI_OK)) fail_msg("%s: status %d, '%s'", other[i][0], rc, text);
    if (shapes && strstr(text, other[i][0]) == NULL) fail_msg("%s: '%s'", other[i][0], text);
    settings_free(&was);
    settings_free(&now);
  }
  settings was, now;
  settings_init(&was);
  settings_copy(&now, &was);
  must_set(&now, "damping", "0.5");
  capture_stderr();
  assert_int_equal(settings_check_same(&was, &now, NULL, "FILE"), CLI_BAD);
  assert_non_null(strstr(captured_stderr(), "--damping: is '0.5', but "));
  settings_free(&now);
  settings_copy(&now, &was);
  must_set(&now, "lr", "0.03"); /* the default value */
  assert_int_equal(settings_check_same(&was, &now, NULL, "FILE"), CLI_OK);
  settings_free(&was);
  settings_free(&now);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_setting_is_set_and_got),
      cmocka_unit_test(bad_values_are_refused),
      cmocka_unit_test(settings_are_checked_together),
      cmocka_unit_test(settings_override_environment_and_method),
      cmocka_unit_test(environment_sets_the_method),
      cmocka_unit_test(written_settings_are_read_back),
      cmocka_unit_test(bad_files_are_refused),
      cmocka_unit_test(many_unknown_keys_are_read_fast),
      cmocka_unit_test(resumed_runs_keep_their_settings),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
