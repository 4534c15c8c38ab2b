/* t_json.c: our JSON text against another program's, jansson.  Equal to the byte: states of earlier versions
 * were written by it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "json.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(strings),
      cmocka_unit_test(numbers),
      cmocka_unit_test(grows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
