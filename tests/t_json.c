/* t_json.c: our JSON against another program's, jansson: what is written is equal to the byte (states of
 * earlier versions were written by it), and what is read is refused by both or has the same values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "json.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* What jansson makes of the value, which is released. */
static void same(ngio_out *o, json_t *value) {
  assert_non_null(value);
  char *theirs = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
  assert_non_null(theirs);
  ngio_out_bytes(o, "", 1);
  assert_int_equal(o->lost, 0);
  assert_string_equal(o->text, theirs);
  free(theirs);
  json_decref(value);
  ngio_out_free(o);
}

static void strings(void **state) {
  (void)state;
  ngio_out o = {0};
  char every[128];
  for (int c = 1; c < 128; c++)
    every[c - 1] = (char)c;
  every[127] = 0;
  static char longer[5000]; /* past one piece, and one whose every byte becomes six */
  static char controls[5000];
  for (size_t i = 0; i + 1 < sizeof longer; i++) {
    longer[i] = (char)('a' + i % 26);
    controls[i] = 1;
  }
  const char *text[] = {
      "", "a", every, "\"\\/", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \x7f", longer, controls};
  for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
    ngio_out_string(&o, text[i]);
    same(&o, json_string(text[i]));
  }
}

/* What is copied eight bytes at a time: anything, of any length, with escapes at any place, written as jansson
 * writes it and read back.  Blocks of their own, so that a byte too many is seen by the address sanitizer. */
static void any_string(void **state) {
  (void)state;
  static const char *const piece[] = {
      "a", "bc", "\"", "\\", "/", "\n", "\x01", "\xc3\xa9", "\xf0\x9f\x98\x80", "lmnopqr"};
  enum { PIECES = sizeof piece / sizeof piece[0] };
  uint64_t seed = 22;
  for (int i = 0; i < 20000; i++) {
    char text[400] = "";
    const int plain = i % 3 == 0; /* long runs, and hardly any */
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
    same(&o, json_string(text));
  }
}

static void numbers(void **state) {
  (void)state;
  ngio_out o = {0};
  const int64_t whole[] = {0, 1, -1, 9, 10, 4294967296, INT64_MAX, INT64_MIN, INT64_MIN + 1};
  for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
    ngio_out_integer(&o, whole[i]);
    same(&o, json_integer(whole[i]));
  }
  const double real[] = {0.0,     -0.0,
                         1.0,     -1.0,
                         0.1,     0.003,
                         1e14,    999999999999999.0,
                         1e15,    1e16,
                         1e17,    123e15,
                         1e22,    1e-4,
                         1e-5,    1e-7,
                         DBL_MAX, -DBL_MAX,
                         DBL_MIN, 5e-324,
                         1.0 / 3, 9007199254740993.0,
                         1e100,   1e-100,
                         -2.5};
  for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
    ngio_out_real(&o, real[i]);
    same(&o, json_real(real[i]));
  }
  uint64_t bits = 1;
  for (int i = 0; i < 20000; i++) {
    double x;
    bits = bits * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    memcpy(&x, &bits, sizeof x);
    if (!isfinite(x)) continue;
    ngio_out_real(&o, x);
    same(&o, json_real(x));
  }
}

/* Of many small pieces: what was there stays where the memory grows. */
static void grows(void **state) {
  (void)state;
  ngio_out o = {0};
  json_t *list = json_array();
  ngio_out_put(&o, "[");
  for (int i = 0; i < 100000; i++) {
    if (i > 0) ngio_out_put(&o, ",");
    ngio_out_integer(&o, i);
    json_array_append_new(list, json_integer(i));
  }
  ngio_out_put(&o, "]");
  same(&o, list);
}

/* ---- reading ---------------------------------------------------------------------------------*/

/* The value as our writer shows it. */
static void show(ngio_out *o, const ngio_value *v) {
  const bool map = ngio_is(v, NGIO_OBJECT);
  switch (v->kind) {
  case NGIO_NULL:
    ngio_out_put(o, "null");
    return;
  case NGIO_FALSE:
    ngio_out_put(o, "false");
    return;
  case NGIO_TRUE:
    ngio_out_put(o, "true");
    return;
  case NGIO_INTEGER:
    ngio_out_integer(o, v->is.integer);
    return;
  case NGIO_REAL:
    ngio_out_real(o, v->is.real);
    return;
  case NGIO_STRING:
    ngio_out_string(o, ngio_text_of(v));
    return;
  case NGIO_ARRAY:
  case NGIO_OBJECT:
    break;
  }
  uint32_t n = 0;
  ngio_out_put(o, map ? "{" : "[");
  for (const ngio_value *x = ngio_first(v); x != NULL; x = ngio_next(v, x)) {
    if (n++ > 0) ngio_out_put(o, ",");
    if (map) {
      ngio_out_string(o, x->key);
      ngio_out_put(o, ":");
      assert_ptr_equal(ngio_get(v, x->key), x);
    }
    show(o, x);
  }
  assert_int_equal(n, v->count);
  ngio_out_put(o, map ? "}" : "]");
}

/* Accepted by both, with the same values, or by neither. */
static bool agree(const char *text, size_t n) {
  ngio_json *ours;
  char message[160];
  json_t *theirs = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
  const ngio_status st = ngio_json_parse(text, n, &ours, message, sizeof message);
  if ((st == NGIO_OK) != (theirs != NULL)) {
    fail_msg("%.*s: %s", (int)n, text, st == NGIO_OK ? "taken by us alone" : message);
  }
  if (st != NGIO_OK) {
    assert_int_equal(st, NGIO_ERR_FILE);
    assert_null(ours);
    assert_true(message[0] != 0);
    return false;
  }
  ngio_out o = {0};
  show(&o, ngio_json_root(ours));
  ngio_json_free(&ours);
  same(&o, theirs);
  return true;
}

static void texts(void **state) {
  static const char *const good[] = {
      "{}",
      "[]",
      " [ ] ",
      "0",
      "-0",
      "-0.0",
      "1e5",
      "1E+05",
      "1.25e-3",
      "123456789012345678",
      "9223372036854775807",
      "-9223372036854775808",
      "0.1",
      "123456789.123456789123456789",
      "1e-400",
      "\"\"",
      "true",
      "null",
      "[1,[2,[3,{\"a\":[]}]],false]",
      "\"\\u00e9\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\"\\\\\"",
      "\"\\u0001\\u07ff\\uFFFF\"",
      "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"\":10}"};
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
  (void)state;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
    if (!agree(good[i], strlen(good[i]))) fail_msg("refused: %s", good[i]);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    if (agree(bad[i], strlen(bad[i]))) fail_msg("taken: %s", bad[i]);
}

/* Every byte becomes every other, and is left out, and is where the text ends. */
static void damaged(void **state) {
  static const char good[] =
      "{\"a\":[1,-2.5e3,true],\"b\":{\"c\\u00e9\":null,\"\xc3\xa9\":\"x\\n\"},"
      "\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0,\"j\":false}";
  const size_t n = sizeof good - 1;
  char text[sizeof good];
  int taken = 0;
  (void)state;
  assert_true(agree(good, n));
  for (size_t at = 0; at < n; at++) {
    for (int c = 0; c < 256; c++) {
      memcpy(text, good, n);
      text[at] = (char)(unsigned char)c;
      taken += agree(text, n);
    }
    memcpy(text, good, at);
    memcpy(text + at, good + at + 1, n - at - 1);
    taken += agree(text, n - 1);
    assert_false(agree(good, at));
  }
  assert_true(taken > 1000); /* other letters in strings, other digits */
}

static void too_deep(void **state) {
  (void)state;
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
      cmocka_unit_test(strings),  cmocka_unit_test(any_string), cmocka_unit_test(numbers),
      cmocka_unit_test(grows),    cmocka_unit_test(texts),      cmocka_unit_test(damaged),
      cmocka_unit_test(too_deep),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
