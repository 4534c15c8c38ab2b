/* fixture.h: create a context and a preconditioner from text; bind, observe, step.
 *
 *   fixture f;
 *   st = fixture_open(&f, "method=eva damping=0.1", &(fixture_how){.linalg = "ref", .threads = 1});
 *   st = fixture_add_linear(&f, "fc", grad, weight);   st = ng_ready(f.p);
 *   st = fixture_begin_and_observe(&f, 4, 0, &a, &g);           st = fixture_step(&f, &sgd);
 *   fixture_close(&f);
 *
 * Functions return the status of the library and assert nothing, so ranks may call them in their threads.  The
 * functions at the end assert, on the main thread only. */
#ifndef TESTS_FIXTURE_H
#define TESTS_FIXTURE_H

#include "plane.h"
#include "natgrad.h"
#include "option/option.h" /* ng_options by value */

typedef struct fixture {
  ng_context *ctx;
  ng_precond *p;
  char message[512]; /* message of the last failed call; "" if no call failed */
} fixture;

/* The settings of a context; 0, or NULL instead of the struct: the defaults. */
typedef struct fixture_how {
  const char *linalg;               /* a backend of the library or of more_backends (late.h) */
  const struct ng_backend *backend; /* instead of `linalg` */
  int32_t threads;
  const ng_transport *transport;
  const ng_context_config *config; /* further settings: an allocator, a log */
} fixture_how;

/* Create a context and a preconditioner without layers.  `options`: lines separated by ';'; a later line replaces
 * values of an earlier one.  fixture_close in any case. */
ng_status fixture_open(fixture *f, const char *options, const fixture_how *how);
ng_status fixture_open_options(fixture *f, const ng_options *o, const fixture_how *how);
void fixture_close(fixture *f);
/* The last failure, also if the context could not be created. */
const char *fixture_message(const fixture *f);

/* Add and bind a linear layer or a tensor; arrays with data = NULL are not bound.  grad and weight of a layer are
 * [NG_WEIGHT], [NG_BIAS]; the layer has the shape of grad[NG_WEIGHT], and a bias if grad[NG_BIAS] has rows; weight may
 * be NULL.  Indices count from 0 in the order of these calls. */
ng_status fixture_add_linear(fixture *f, const char *name, const plane grad[2],
                             const plane weight[2]);
ng_status fixture_add_tensor(fixture *f, const char *name, const plane *grad, const plane *weight);
ng_status fixture_bind(fixture *f, int32_t index, ng_param which, const plane *grad,
                       const plane *weight);

/* A description with the defaults of ng_layer_init; a micro-batch with the defaults of ng_batch_init. */
ng_layer layer_of(ng_kind kind, const char *name, int64_t in, int64_t out);
ng_batch batch_of(int64_t samples);

/* A linear layer; with one row and no bias a tensor. */
typedef struct fixture_entry {
  const char *name;
  int64_t rows, cols;
  bool bias;
} fixture_entry;
/* Add n entries; bind their gradients and weights, which follow each other in g and w, each bias after its weight. */
ng_status fixture_add_entries(fixture *f, const fixture_entry *e, int32_t n, float *g, float *w);

/* An allocator that counts and can fail. */
typedef struct allocator {
  int64_t calls, fail_at; /* number of calls; number of the call that fails, counted from 1 */
  int64_t held, most;     /* bytes allocated now; their maximum */
  int64_t largest, room;  /* limits, 0: none: bytes of one call; bytes allocated at one time */
} allocator;
ng_context_config allocator_config(allocator *p);

/* Begin a micro-batch with a mean loss.  Observe the input and the output gradient of one layer, unless NULL, and
 * return the worse status. */
ng_status fixture_begin(fixture *f, int64_t samples);
/* begin a micro-batch with ng_batch.last */
ng_status fixture_begin_last(fixture *f, int64_t samples, int32_t last);
ng_status fixture_observe(fixture *f, int32_t index, const plane *a, const plane *g);
ng_status fixture_begin_and_observe(fixture *f, int64_t samples, int32_t index, const plane *a,
                                    const plane *g);

/* The step that option `update` names; AdamW and ng_step use how->lr only. */
ng_sgd fixture_sgd(double lr, double momentum);
ng_status fixture_step(fixture *f, const ng_sgd *how);

/* ---- main thread only: fail the test with the message unless the status is NG_OK -------------*/

void fixture_ok(const fixture *f, ng_status st);
/* Fail unless st is `want` and the last error of the context contains `text`. */
void fixture_fails(const fixture *f, ng_status st, ng_status want, const char *text);
ng_report fixture_report(const fixture *f);
ng_layer_report fixture_layer_report(const fixture *f, int32_t layer);
void fixture_set(ng_options *o, const char *name, const char *value);
void fixture_set_real(ng_options *o, const char *name, double value);
ng_options fixture_parse_options(const char *line); /* "method=eva damping=0.1" */
/* Fail unless |x - want| <= tolerance times the largest |want|, for n elements. */
void fixture_expect_near(const char *what, const double *x, const double *want, int64_t n,
                         double tolerance);

#endif
