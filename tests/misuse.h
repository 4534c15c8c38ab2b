/* misuse.h: a linear layer "fc" and a tensor "norm", for tests of wrong arguments and wrong orders of calls.  Main
 * thread only: failures of these functions fail the test. */
#ifndef TESTS_MISUSE_H
#define TESTS_MISUSE_H

#include "fixture.h"

enum { B = 4, IN = 3, OUT = 2 };

extern const char *misuse_method;

typedef struct misused {
  fixture f;
  ng_context *ctx; /* f.ctx */
  ng_precond *p;   /* f.p */
  int32_t fc, norm;
  /* fc: input, output gradient, gradients, weights; norm: weight, gradient */
  float a[B * IN], g[B * OUT], dw[OUT * IN], db[OUT], w[OUT * IN], b[OUT], t[5], dt[5];
} misused;

void fill_arrays(misused *f); /* fill the arrays with their initial numbers */
/* `set` is "option=value", or "". */
void create_model(misused *f, const char *set);
void bind_all(misused *f);
void create_ready(misused *f, const char *set); /* create, bind, ng_ready */
ng_status observe_fc(misused *f);
void destroy_checked(misused *f); /* destroy the objects and check that no memory is left */

#define WRONG(call, status, word) fixture_fails(&f.f, call, status, word)

#endif
