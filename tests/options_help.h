/* options_help.h: helpers for tests of options. */
#ifndef TESTS_OPTIONS_HELP_H
#define TESTS_OPTIONS_HELP_H

#include "unit_test.h"
#include "draw.h"
#include "fixture.h"
#include "natgrad.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A check in a random test; on failure print the seed. */
#define CHECK_SEED(seed, condition, what)                                                          \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      print_error("%s: '%s'; repeat with NG_TEST_SEED=%llu\n", #condition, what,                   \
                  (unsigned long long)(seed));                                                     \
      fail();                                                                                      \
    }                                                                                              \
  } while (0)

#define assert_contains(text, part) assert_contains_at(text, part, __FILE__, __LINE__)
static inline void assert_contains_at(const char *text, const char *part, const char *file,
                                      int line) {
  if (strstr(text, part) != NULL) return;
  print_error("'%s' does not contain '%s'\n", text, part);
  _fail(file, line);
}

#define assert_option(o, name, value) assert_option_at(o, name, value, __FILE__, __LINE__)
static inline void assert_option_at(const ng_options *o, const char *name, const char *value,
                                    const char *file, int line) {
  char text[256];
  if (ng_options_get(o, name, text, sizeof text) == NG_OK && strcmp(text, value) == 0) return;
  print_error("%s is '%s', expected '%s'\n", name, text, value);
  _fail(file, line);
}

static inline ng_options standard_options(void) {
  ng_options o;
  ng_options_set_defaults(&o);
  return o;
}

/* The options of a published system; they pass ng_options_check. */
static inline ng_options system_options(const char *system, const char *variant) {
  char message[512] = "";
  ng_options o = standard_options();
  const ng_status st = ng_options_set_system(&o, system, variant, message, sizeof message);
  if (st != NG_OK) print_error("%s, %s: %s\n", system, variant, message);
  assert_int_equal(st, NG_OK);
  assert_int_equal(ng_options_check(&o, message, sizeof message), NG_OK);
  return o;
}

static inline ng_option_info option_info(int32_t i) {
  ng_option_info info = {.struct_size = sizeof info};
  assert_int_equal(ng_option_at(i, &info), NG_OK);
  return info;
}

/* Write a valid value that differs from the default of every method. */
static inline void write_other_value(const ng_option_info *info, char *value, size_t size) {
  const char *bar = strrchr(info->choices, '|');
  const bool lines = strcmp(info->name, "per_layer") == 0,
             exponents = strcmp(info->name, "root_exponents") == 0;
  const char *const of_type[] = {[NG_OPTION_REAL] = "0.375",
                                 [NG_OPTION_INT] = "77",
                                 [NG_OPTION_BOOL] = "1",
                                 [NG_OPTION_CHOICE] = bar == NULL ? info->choices : bar + 1,
                                 [NG_OPTION_TEXT] = lines       ? "fc: damping=3"
                                                    : exponents ? "2: 0.5"
                                                                : "fc"};
  (void)snprintf(value, size, "%s", of_type[info->type]);
}

#endif
