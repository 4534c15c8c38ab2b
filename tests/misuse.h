/* misuse.h: a model to misuse: a linear layer, "fc", and a tensor, "norm", bound to arrays of their own, for tests
 * of wrong arguments and wrong orders of calls.  Main thread only: what is not as it should be fails the test. */
#ifndef TESTS_MISUSE_H
#define TESTS_MISUSE_H

#include "fixture.h"

enum { B = 4, IN = 3, OUT = 2 };

extern const char *misuse_method; /* of the models made below */

typedef struct fix {
  fixture f;
  ng_context *ctx; /* those of f */
  ng_precond *p;
  int32_t fc, norm;
  float a[B * IN], g[B * OUT], dw[OUT * IN], db[OUT], w[OUT * IN], b[OUT], t[5], dt[5];
} fix;

void data(fix *f); /* its arrays as they were */
/* `set` is "option=value", or "". */
void create(fix *f, const char *set);
void bind_all(fix *f);
void ready(fix *f, const char *set); /* all of that */
ng_batch batch_of(int64_t samples);
ng_status observe(fix *f);
void destroy(fix *f); /* checks that all was given back */

#define WRONG(call, status, word)                                                                  \
  do {                                                                                             \
    assert_int_equal(call, status);                                                                \
    if (strstr(ng_last_error(f.ctx), word) == NULL) {                                              \
      fail_msg("'%s' does not name '%s'", ng_last_error(f.ctx), word);                             \
    }                                                                                              \
  } while (0)

#endif
