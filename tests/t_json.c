/* t_json.c: the JSON writer with known texts, the reader with tables of texts that RFC 8259 allows and forbids, and
 * both together. */
#include "unit_test.h"
#include "json_edit.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must_write_text(ngio_out *o, const char *expected) {
  ngio_out_bytes(o, "", 1);
  assert_int_equal(o->lost, 0);
  assert_string_equal(o->text, expected);
  ngio_out_free(o);
}

static void strings_are_escaped(void **state) {
  static const char *const text[][2] = {
      {"", "\"\""},
      {"a", "\"a\""},
      {"\"\\/", "\"\\\"\\\\/\""},
      {"\b\f\n\r\t", "\"\\b\\f\\n\\r\\t\""},
      {"\x01\x0b\x1f\x7f", "\"\\u0001\\u000B\\u001F\x7f\""},
      {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
  };
  ngio_out o = {0};
  for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
    ngio_out_string(&o, text[i][0]);
    must_write_text(&o, text[i][1]);
  }
  enum { LONG = 5000 }; /* every byte becomes six */
  static char controls[LONG], expected[6 * LONG];
  expected[0] = '"';
  for (size_t i = 0; i + 1 < LONG; i++) {
    controls[i] = 1;
    memcpy(expected + 1 + 6 * i, "\\u0001", 6);
  }
  strcat(expected, "\"");
  ngio_out_string(&o, controls);
  must_write_text(&o, expected);
}

/* The reader returns random texts of any length with escapes.  Each text has its own allocation, for the address
 * sanitizer. */
static void random_strings_are_read_back(void **state) {
  static const char *const piece[] = {
      "a", "bc", "\"", "\\", "/", "\n", "\x01", "\xc3\xa9", "\xf0\x9f\x98\x80", "lmnopqr"};
  enum { PIECES = sizeof piece / sizeof piece[0] };
  uint64_t seed = 22;
  for (int i = 0; i < 20000; i++) {
    char text[400] = "";
    const int plain = i % 3 == 0; /* long or short runs without escapes */
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    for (int n = (int)(seed >> 40) % 48; n > 0; n--) {
      seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
      const size_t k = (size_t)(seed >> 33);
      strcat(text, piece[plain && k % 16 != 0 ? 0 : k % PIECES]);
    }
    ngio_out o = {0};
    ngio_json *doc = NULL;
    char why[80] = "";
    ngio_out_string(&o, text);
    char *written = malloc(o.used);
    assert_non_null(written);
    memcpy(written, o.text, o.used);
    assert_int_equal(ngio_json_parse(written, o.used, &doc, why, sizeof why), NGIO_OK);
    assert_string_equal(ngio_text_of(ngio_json_root(doc)), text);
    ngio_json_free(&doc);
    free(written);
    ngio_out_free(&o);
  }
}

static void numbers_are_written_shortest(void **state) {
  static const struct {
    double x;
    const char *text;
  } real[] = {
      {0.0, "0.0"},
      {-0.0, "-0.0"},
      {1.0, "1.0"},
      {-2.5, "-2.5"},
      {0.1, "0.10000000000000001"},
      {1e14, "100000000000000.0"},
      {1e15, "1000000000000000.0"},
      {1e16, "10000000000000000.0"},
      {1e17, "1e17"},
      {1e22, "1e22"},
      {1e-5, "1.0000000000000001e-5"},
      {1e-4, "0.0001"},
      {1e100, "1e100"},
      {5e-324, "4.9406564584124654e-324"},
      {DBL_MAX, "1.7976931348623157e308"},
  };
  static const struct {
    int64_t x;
    const char *text;
  } whole[] = {{0, "0"},
               {-1, "-1"},
               {9, "9"},
               {10, "10"},
               {4294967296, "4294967296"},
               {INT64_MAX, "9223372036854775807"},
               {INT64_MIN, "-9223372036854775808"}};
  ngio_out o = {0};
  for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
    ngio_out_integer(&o, whole[i].x);
    must_write_text(&o, whole[i].text);
  }
  for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
    ngio_out_real(&o, real[i].x);
    must_write_text(&o, real[i].text);
  }
  uint64_t bits = 1;
  for (int i = 0; i < 20000; i++) { /* our reader and strtod return the same double */
    double x;
    bits = bits * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    memcpy(&x, &bits, sizeof x);
    if (!isfinite(x)) continue;
    ngio_out_real(&o, x);
    ngio_json *json = json_must_parse(o.text, o.used);
    assert_true(ngio_is(ngio_json_root(json), NGIO_REAL));
    const double back = ngio_number_of(ngio_json_root(json));
    ngio_out_bytes(&o, "", 1);
    const double again = strtod(o.text, NULL);
    assert_memory_equal(&back, &x, sizeof x);
    assert_memory_equal(&again, &x, sizeof x);
    ngio_json_free(&json);
    ngio_out_free(&o);
  }
}

/* Commas, indentation, digits; more text than one allocation. */
static void members_and_lists_are_nested(void **state) {
  for (int indent = 0; indent < 2; indent++) {
    ngio_out o = {.digits = 6, .indent = indent};
    ngio_open(&o, NULL, '{');
    ngio_put_text(&o, "a{", "b[");
    ngio_put_text(&o, "none", NULL);
    ngio_open(&o, "list", '[');
    ngio_put_integer(&o, NULL, 7);
    ngio_put_real(&o, NULL, 2.0 / 3);
    ngio_put_real(&o, NULL, (double)INFINITY);
    ngio_put_real(&o, NULL, 123456789.0);
    ngio_open(&o, NULL, '{');
    ngio_shut(&o, '}');
    ngio_shut(&o, ']');
    ngio_put_flag(&o, "yes", 1);
    ngio_shut(&o, '}');
    must_write_text(
        &o,
        indent
            ? "{\n \"a{\": \"b[\",\n \"none\": null,\n \"list\": [\n  7,\n  0.666667,\n  null,\n"
              "  1.23457e8,\n  {}\n ],\n \"yes\": true\n}"
            : "{\"a{\":\"b[\",\"none\":null,\"list\":[7,0.666667,null,1.23457e8,{}],\"yes\":true}");
  }
  ngio_out o = {0};
  ngio_open(&o, NULL, '[');
  for (int i = 0; i < 100000; i++)
    ngio_put_integer(&o, NULL, i);
  ngio_shut(&o, ']');
  ngio_json *json = json_must_parse(o.text, o.used);
  const ngio_value *list = ngio_json_root(json), *v = ngio_first(list);
  assert_int_equal(ngio_count(list), 100000);
  for (int i = 0; i < 100000; i++, v = ngio_next(list, v))
    assert_int_equal(ngio_integer_of(v), i);
  assert_null(v);
  assert_int_equal(ngio_integer_of(ngio_at(list, 777)), 777);
  assert_null(ngio_at(list, 100000));
  ngio_json_free(&json);
  ngio_out_free(&o);
  ngio_put_text(&o, NULL, "\xff"); /* this text is not UTF-8 */
  assert_true(o.lost);
  ngio_out_free(&o);
}

/* ---- reading ---------------------------------------------------------------------------------*/

/* Parse and write; NULL if the reader refuses the text, with a message. */
static char *parse_and_write(const char *text, size_t n) {
  ngio_json *json;
  ngio_out o = {0};
  char message[160] = "";
  const ngio_status st = ngio_json_parse(text, n, &json, message, sizeof message);
  if (st != NGIO_OK) {
    assert_int_equal(st, NGIO_ERR_FILE);
    assert_null(json);
    assert_memory_equal(message, "line ", 5);
    return NULL;
  }
  const ngio_value *root = ngio_json_root(json);
  for (const ngio_value *v = ngio_first(root); v != NULL && ngio_is(root, NGIO_OBJECT);
       v = ngio_next(root, v))
    assert_ptr_equal(ngio_get(root, v->key), v);
  json_write(&o, NULL, root, NULL);
  ngio_out_bytes(&o, "", 1);
  ngio_json_free(&json);
  return o.text;
}

/* Return whether the reader accepts a text.  Writing, reading and writing an accepted text must not change it. */
static bool is_accepted(const char *text, size_t n) {
  char *one = parse_and_write(text, n);
  if (one == NULL) return false;
  char *two = parse_and_write(one, strlen(one));
  assert_non_null(two);
  assert_string_equal(one, two);
  free(one);
  free(two);
  return true;
}

static void texts_are_parsed_or_refused(void **state) {
  static const char *const good[][2] = {
      {"{}", "{}"},
      {" [ ] ", "[]"},
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1e5", "100000.0"},
      {"1E+05", "100000.0"},
      {"1.25e-3", "0.00125"},
      {"123456789012345678", "123456789012345678"},
      {"9223372036854775807", "9223372036854775807"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"0.1", "0.10000000000000001"},
      {"123456789.123456789123456789", "123456789.12345679"},
      {"1e-400", "0.0"},
      {"\"\"", "\"\""},
      {"true", "true"},
      {"null", "null"},
      {"[1,[2,[3,{\"a\":[]}]],\nfalse]", "[1,[2,[3,{\"a\":[]}]],false]"},
      {"\"\\u00e9\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\"\\\\\"",
       "\"\xc3\xa9\xf0\x9f\x98\x80/\\b\\f\\n\\r\\t\\\"\\\\\""},
      {"\"\\u0001\\u07ff\\uFFFF\"", "\"\\u0001\xdf\xbf\xef\xbf\xbf\""},
      {"{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"\":10}",
       "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"\":10}"},
  };
  static const char *const bad[] = {
      "",
      " ",
      "{",
      "[1,]",
      "{,}",
      "{\"a\"}",
      "{\"a\":1,}",
      "{a:1}",
      "[1 2]",
      "[1]]",
      "01",
      "-",
      "+1",
      ".5",
      "1.",
      "1e",
      "1e400",
      "9223372036854775808",
      "-9223372036854775809",
      "99999999999999999999",
      "tru",
      "nulL",
      "\"",
      "\"\\x\"",
      "\"\\u12\"",
      "\"\\u0000\"",
      "\"\\ud800\"",
      "\"\\ud800\\u0041\"",
      "\"\\udc00\"",
      "\"\xff\"",
      "\"\xc0\x80\"",
      "\"a\nb\"",
      "{\"a\":1,\"a\":2}",
      "{1:2}",
      "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"a\":10}",
      "NaN",
      "[Infinity]",
      "// x\n1"};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    char *is = parse_and_write(good[i][0], strlen(good[i][0]));
    if (is == NULL || strcmp(is, good[i][1]) != 0)
      fail_msg("%s: %s", good[i][0], is != NULL ? is : "refused");
    free(is);
  }
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    if (is_accepted(bad[i], strlen(bad[i]))) fail_msg("accepted: %s", bad[i]);
}

static void errors_name_the_line(void **state) {
  static const char *const bad[][2] = {
      {"{\"a\": 1,\n\"b\" 2}", "line 2: expected ':' after a key"},
      {"{\"a\": \"x\\n\\n\",\n\n\"b\": 1\n\"c\": 2}",
       "line 4: expected a comma or the end of a list"},
      {"{\"a\": \"\\n\",\n\"b\": 1,\n\"a\": 2,\n\"c\": 3\n}", "line 3: duplicate key 'a'"},
      {"", "line 1: expected a value"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    ngio_json *json;
    char message[160];
    const size_t n = strlen(bad[i][0]);
    assert_int_equal(ngio_json_parse(bad[i][0], n, &json, message, sizeof message), NGIO_ERR_FILE);
    assert_string_equal(message, bad[i][1]);
  }
}

/* For every byte: replace the byte by all other values, delete the byte, end the text there. */
static void damaged_texts_are_refused_or_consistent(void **state) {
  static const char good[] =
      "{\"a\":[1,-2.5e3,true],\"b\":{\"c\\u00e9\":null,\"\xc3\xa9\":\"x\\n\"},"
      "\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0,\"j\":false}";
  const size_t n = sizeof good - 1;
  char text[sizeof good];
  int accepted = 0;
  assert_true(is_accepted(good, n));
  for (size_t at = 0; at < n; at++) {
    for (int c = 0; c < 256; c++) {
      memcpy(text, good, n);
      text[at] = (char)(unsigned char)c;
      accepted += is_accepted(text, n);
    }
    memcpy(text, good, at);
    memcpy(text + at, good + at + 1, n - at - 1);
    accepted += is_accepted(text, n - 1);
    assert_false(is_accepted(good, at));
  }
  assert_true(accepted > 1000); /* letters in strings, digits */
}

static void deep_nesting_is_refused(void **state) {
  char text[64];
  memset(text, '[', sizeof text);
  ngio_json *ours;
  char message[160];
  assert_int_equal(ngio_json_parse(text, sizeof text, &ours, message, sizeof message),
                   NGIO_ERR_FILE);
  assert_non_null(strstr(message, "too deep"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(strings_are_escaped),
      cmocka_unit_test(random_strings_are_read_back),
      cmocka_unit_test(numbers_are_written_shortest),
      cmocka_unit_test(members_and_lists_are_nested),
      cmocka_unit_test(texts_are_parsed_or_refused),
      cmocka_unit_test(errors_name_the_line),
      cmocka_unit_test(damaged_texts_are_refused_or_consistent),
      cmocka_unit_test(deep_nesting_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
