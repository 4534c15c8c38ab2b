/* fixture.h: the one place where a test makes a context and a preconditioner, from texts, and leads
 * it through bind, observe and step.
 *
 *   fixture f;
 *   st = fixture_open(&f, "method=eva damping=0.1", &(fixture_how){.linalg = "ref", .threads = 1});
 *   st = fixture_linear(&f, "fc", grad, weight);   st = ng_ready(f.p);
 *   st = fixture_begin_and_observe(&f, 4, 0, &a, &g);           st = fixture_step(&f, &sgd);
 *   fixture_close(&f);
 *
 * Everything returns what the library said and asserts nothing, so ranks may call it from their own
 * threads; what asserts is at the end, for the main thread only.  A test that is about one of these
 * calls makes it itself, on f.ctx and f.p.
 */
#ifndef TESTS_FIXTURE_H
#define TESTS_FIXTURE_H

#include "plane.h"
#include "natgrad.h"
#include "option/option.h" /* tests look into this room: options by value, copied by assignment */

typedef struct fixture {
  ng_context *ctx;
  ng_precond *p;
  char message[512]; /* why the last call here failed; "" if none did */
} fixture;

/* Where it runs; zeros, or no such struct, leave everything to the library. */
typedef struct fixture_how {
  const char *linalg;
  int32_t threads;
  const ng_transport *transport;
  const ng_context_config *config; /* what the three above are put into: an allocator, a log */
} fixture_how;

/* A context and an empty preconditioner, of lines of options with ';' between: what one says again
 * counts.  After a failure the fixture holds what there was so far;
 * fixture_close in any case. */
ng_status fixture_open(fixture *f, const char *options, const fixture_how *how);
ng_status fixture_open_options(fixture *f, const ng_options *o, const fixture_how *how);
void fixture_close(fixture *f);

/* A layer, a parameter without curvature; a view whose data is NULL is not bound.  Of a linear layer
 * grad and weight are [NG_WEIGHT], [NG_BIAS], its shape is that of grad[NG_WEIGHT], and it has a bias
 * if grad[NG_BIAS] has rows; weight may be NULL.  Indices count from 0 in the order of these calls. */
ng_status fixture_linear(fixture *f, const char *name, const plane grad[2], const plane weight[2]);
ng_status fixture_tensor(fixture *f, const char *name, const plane *grad, const plane *weight);
ng_status fixture_bind(fixture *f, int32_t index, ng_param which, const plane *grad,
                       const plane *weight);

/* A linear layer, or, of one row and no bias, a tensor. */
typedef struct fixture_entry {
  const char *name;
  int64_t rows, cols;
  bool bias;
} fixture_entry;
/* A model of these entries, g and w in flat order, each bias behind its weights. */
ng_status fixture_add(fixture *f, const fixture_entry *e, int32_t n, float *g, float *w);

/* An allocator that counts and fails at call `fail_at`, from 1; `most` is the largest `held`. */
typedef struct allocator {
  int64_t calls, fail_at, held, most;
  int64_t largest, room; /* fail beyond these bytes of one call, of all that is held; 0: any */
} allocator;
ng_context_config allocator_config(allocator *p);

/* A micro-batch, its loss a mean; and one in which one layer is shown both its arrays, whatever the
 * first of the two says (the worse status is returned).  NULL is not shown. */
ng_status fixture_begin(fixture *f, int64_t samples);
ng_status fixture_observe(fixture *f, int32_t index, const plane *a, const plane *g);
ng_status fixture_begin_and_observe(fixture *f, int64_t samples, int32_t index, const plane *a,
                                    const plane *g);

/* SGD without momentum; the step that option `update` names: of AdamW and ng_step only how->lr. */
ng_sgd fixture_sgd(double lr, double momentum);
ng_status fixture_step(fixture *f, const ng_sgd *how);

/* ---- main thread only: fail the test with the reason, unless it is NG_OK ---------------------*/

void fixture_ok(const fixture *f, ng_status st);
void fixture_set(ng_options *o, const char *name, const char *value);
void fixture_real(ng_options *o, const char *name, double value);
ng_options fixture_parse(const char *line); /* "method=eva damping=0.1", onto the defaults */

#endif
