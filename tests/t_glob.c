/* t_glob.c: globs of skip_layers and per_layer: matches, against fnmatch(3) in the C locale; refused lists; globs
 * for published regular expressions, against regexec(3); layers that skip_layers excludes. */
#include "unit_test.h"
#include "draw.h"
#include "fixture.h"
#include "option/option.h"

#include <fnmatch.h>
#include <regex.h>
#include <string.h>

static ng_layer layer_named(const char *name, int32_t kind) {
  ng_layer l;
  ng_layer_init(&l, kind, sizeof l);
  l.name = name;
  return l;
}

static void globs_match_the_table(void **state) {
  static const struct {
    const char *list, *name;
    bool fits;
  } row[] = {{"fc1", "fc1", true},
             {"fc[^12]", "fc3", true},
             {"fc[0-9]", "fc7", true},
             {"[]a]", "]", true},
             {"[a-]", "-", true},
             {"[\\]]", "]", true},
             {"a\\,b", "a,b", true},
             {"a,b", "a,b", false},
             {"a,b", "b", true},
             {" a , b ", "b", true},
             {"a\\ ", "a ", true},
             {"[,]x", ",x", true},
             {"linear", "other", true},
             {"Linear", "other", true},
             {"lin*", "other", true},
             {"LINEAR", "other", false},
             {"conv2d", "other", false},
             {"x\\(1\\)", "x(1)", true},
             {"fc\xc3\xa9", "fc\xc3\xa9", true},
             {"*", "anything", true},
             {"", "", false}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    const ng_layer l = layer_named(row[i].name, NG_LINEAR);
    if (ng_globs_fit(row[i].list, &l) != row[i].fits)
      fail_msg("'%s' on '%s'", row[i].list, row[i].name);
  }
  const ng_layer tensor = {.name = "t"}; /* kind 0 */
  assert_false(ng_globs_fit("linear,norm", &tensor));
}

static void join_pieces(rng *r, const char *const *piece, int64_t pieces, int64_t most, char *out) {
  out[0] = 0;
  for (int64_t k = rng_below(r, most + 1); k > 0; k--)
    strcat(out, piece[rng_below(r, pieces)]);
}

/* Without backslashes in sets, which C libraries treat differently. */
static void globs_match_as_fnmatch(void **state) {
  static const char *const piece[] = {"a",    "b",     "*",   "?",   "[ab]",
                                      "[!a]", "[a-b]", "\\*", "\\b", "."};
  static const char *const letter[] = {"a", "b", "*", "."};
  rng r = {7};
  int found = 0;
  for (int i = 0; i < 200000; i++) {
    char glob[64], text[32];
    join_pieces(&r, piece, (int64_t)sizeof piece / sizeof piece[0], 6, glob);
    join_pieces(&r, letter, 4, 8, text);
    const ng_glob g = {glob, glob + strlen(glob), false};
    const bool theirs = fnmatch(glob, text, 0) == 0;
    found += theirs;
    if (ng_glob_matches(&g, text) != theirs) fail_msg("'%s' on '%s'", glob, text);
  }
  assert_true(found > 1000);
}

static void regular_expressions_are_refused(void **state) {
  static const struct {
    const char *list, *message;
  } row[] = {
      {"^fc|conv",
       "skip_layers = \"^fc|conv\": regular expressions are not supported; write \"fc*,*conv*\""},
      {"fc1,^b$", "skip_layers = \"^b$\": regular expressions are not supported; write \"b\""},
      {"^layer\\d\\.fc$", "write \"layer[0-9]\\.fc\""},
      {"a.*b|", "write \"*a*b*,*\""},
      {"(a|b)", "write globs with *, ? and [...], separated by commas"},
      {"a[[:alpha:]]", "regular expressions are not supported"},
      {"(((", "regular expressions are not supported"},
      {"fc[12", "skip_layers: 'fc[12' has a [ without ]"},
      {"fc\\", "skip_layers: 'fc\\' has a [ without ], or ends with a \\"},
      {"a,,b", "skip_layers: '' has an empty glob"},
      {"a,", "skip_layers: '' has an empty glob"},
      {" ", "skip_layers: '' has an empty glob"}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    char message[NG_MESSAGE] = "";
    assert_int_equal(ng_globs_check("skip_layers", row[i].list, message, sizeof message),
                     NG_ERR_ARG);
    if (strstr(message, row[i].message) == NULL) fail_msg("'%s': %s", row[i].list, message);
    assert_int_equal(ng_globs_check("skip_layers", row[i].list, NULL, 0), NG_ERR_ARG);
  }
  assert_int_equal(ng_globs_check("skip_layers", "", NULL, 0), NG_OK);
  assert_int_equal(ng_globs_check("skip_layers", "a\\|b, x\\(1\\), [(|)]", NULL, 0), NG_OK);
}

/* The translated globs match the same names as the expression. */
static void translated_expressions_match_as_regexec(void **state) {
  static const char *const piece[] = {"a",    "b",    "|",   "^", "$", ".", ".*",
                                      "[ab]", "[^a]", "\\.", ",", "(", "+"};
  static const char *const letter[] = {"a", "b", ".", ","};
  rng r = {11};
  int found = 0, translated = 0;
  for (int i = 0; i < 100000; i++) {
    char expression[64], globs[256], text[32];
    regex_t re;
    join_pieces(&r, piece, (int64_t)sizeof piece / sizeof piece[0], 6, expression);
    join_pieces(&r, letter, 4, 6, text);
    if (!ng_globs_from_regex(expression, globs, sizeof globs)) continue;
    translated++;
    assert_int_equal(ng_globs_check("skip_layers", globs, NULL, 0), NG_OK);
    if (regcomp(&re, expression[0] == 0 ? "a*" : expression, REG_EXTENDED | REG_NOSUB) != 0)
      continue;
    const ng_layer tensor = {.name = text};
    const bool theirs = regexec(&re, text, 0, NULL, 0) == 0;
    regfree(&re);
    found += theirs;
    if (ng_globs_fit(globs, &tensor) != theirs)
      fail_msg("'%s' (%s) on '%s'", expression, globs, text);
  }
  assert_true(found > 1000 && translated > 10000);
  char small[8];
  assert_false(ng_globs_from_regex("conv2d_1", small, sizeof small));
  assert_false(ng_globs_from_regex("a|^$", small, sizeof small));
  assert_false(ng_globs_from_regex("\\w", small, sizeof small));
}

static ng_layer conv_named(const char *name, int64_t out) {
  ng_layer l = layer_of(NG_CONV2D, name, 3, out);
  l.image[0] = l.image[1] = 4;
  return l;
}

/* A 1 for each layer that the globs match. */
static void skip_layers_excludes_matching_layers(void **state) {
  static const char *const skip[][2] = {{"", "0000"},
                                        {"fc*", "1000"},
                                        {"fc1", "1000"},
                                        {"linear", "1010"},
                                        {"Conv2d", "0101"},
                                        {"conv*", "0101"},
                                        {"*", "1111"},
                                        {"[Ll]in*", "1010"},
                                        {"a*,b*", "0010"},
                                        {"?c1", "1000"},
                                        {"*2*", "0101"},
                                        {"linear/5", "0010"},
                                        {"a*,linear/2", "1010"},
                                        {"linear/[27]", "1000"}};
  const ng_layer layer[] = {layer_of(NG_LINEAR, "fc1", 3, 2), conv_named("conv2", 2),
                            layer_of(NG_LINEAR, "a.head", 3, 5), conv_named("stem", 7)};
  enum { LAYERS = sizeof layer / sizeof layer[0] };
  int32_t unused = 0;
  for (size_t i = 0; i < sizeof skip / sizeof skip[0]; i++) {
    ng_options o = fixture_parse_options("");
    fixture f;
    fixture_set(&o, "skip_layers", skip[i][0]);
    fixture_ok(&f, fixture_open_options(&f, &o, NULL));
    ng_precond *p = f.p;
    for (int32_t k = 0, index; k < LAYERS; k++)
      assert_int_equal(ng_add_layer(p, &layer[k], &index), NG_OK);
    assert_int_equal(ng_ready(p), NG_OK);
    /* layers without bias; then globs without a layer */
    assert_true(ng_explain_count(p) >= LAYERS);
    for (int32_t k = LAYERS; k < ng_explain_count(p); k++) {
      ng_explain_row row = {.struct_size = sizeof row};
      assert_int_equal(ng_explain(p, k, &row), NG_OK);
      assert_string_equal(row.why, "skip_layers: this glob matches no layer");
      assert_int_equal(row.index, -1);
      assert_non_null(strstr(skip[i][0], row.name));
      unused++;
    }
    for (int32_t k = 0; k < LAYERS; k++) {
      ng_explain_row row = {.struct_size = sizeof row};
      const bool skipped = skip[i][1][k] == '1';
      assert_int_equal(ng_explain(p, k, &row), NG_OK);
      assert_int_equal(row.covered, !skipped);
      if (skipped) assert_non_null(strstr(row.why, "matches skip_layers"));
    }
    fixture_close(&f);
  }
  assert_true(unused > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(globs_match_the_table),
      cmocka_unit_test(globs_match_as_fnmatch),
      cmocka_unit_test(regular_expressions_are_refused),
      cmocka_unit_test(translated_expressions_match_as_regexec),
      cmocka_unit_test(skip_layers_excludes_matching_layers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
