/* one_context.h: one context, `ctx`, for all test cases of a program: cmocka_run_group_tests(tests, open_context,
 * close_context). */
#ifndef TESTS_ONE_CONTEXT_H
#define TESTS_ONE_CONTEXT_H

#include <natgrad.h>

#include "unit_test.h"

static ng_context *ctx;

static inline int open_context(void **state) {
  return ng_context_create(NG_VERSION, NULL, NULL, 0, &ctx) == NG_OK ? 0 : -1;
}

static inline int close_context(void **state) {
  ng_context_destroy(&ctx);
  return 0;
}

#endif
