/* families.h: the table of methods with the properties that each promises.  t_properties*.c check each property for
 * every row that promises it, with every linear algebra.
 *
 * To add a family, a method or a solver: a row in families.c, and a prediction function if it promises exact results.
 *
 * Tolerance.  Two runs that are equal in exact arithmetic differ by rounding of the curvature in f32.  The error of
 * the result is that error times the condition of the damped curvature, which the prediction returns.  `growth` is the
 * allowed error of one run in units of 2^-24 times that condition: 64 for factors (measured in t_oracle.c), 8 for mean
 * vectors (layer_oracle.h). */
#ifndef TESTS_FAMILIES_H
#define TESTS_FAMILIES_H

#include "fixture.h"
#include "test_case.h"

/* Properties that a row promises beside the properties of every row (positive, zero gives zero, any order of samples,
 * the same bits with any number of threads, ...).
 *
 *   LINEAR     P is linear in D, and D / damping^power without curvature or with a large damping
 *   SYMMETRIC  <y, Px> = <Py, x>
 *   SOLVES     (curvature + damping) P = D
 *   SCALES     c times the loss has c^2 times the curvature
 *   IN_GROUPS  a grouped convolution equals separate convolutions
 *   HALVES     averages and results may have 16 bits
 *   FRACTIONS  any grad_worker_fraction
 *   VECTORS    stores vectors, no matrices: wide layers are cheap
 *   READS_...  reads inputs, output gradients; otherwise their values do not matter
 *   ALIKE      `predict` needs the same number of samples on all ranks
 *   SHAPED     depends on the shape of parameters: a bias is not a column of the weight
 *   PREDICTED  has `predict`
 *   NORMS      test cases have layer, group and batch norms; the input of the batch norm is already normalised, because
 *              its statistics of parts of a batch differ
 *   RAW        the input of the batch norm is raw
 *   TOKENS     test cases have an embedding
 *   LATE       PD of the first step is 0 */
enum {
  LINEAR = 1 << 0,
  SYMMETRIC = 1 << 1,
  SOLVES = 1 << 2,
  SCALES = 1 << 3,
  IN_GROUPS = 1 << 4,
  HALVES = 1 << 5,
  FRACTIONS = 1 << 6,
  VECTORS = 1 << 7,
  READS_INPUT = 1 << 8,
  READS_OUTPUT = 1 << 9,
  ALIKE = 1 << 10,
  PREDICTED = 1 << 11,
  SHAPED = 1 << 12,
  NORMS = 1 << 13,
  RAW = 1 << 14,
  TOKENS = 1 << 15,
  LATE = 1 << 16,
  EVERYONE = 0
};

/* How a batch may be divided without a change of results: not at all, in any way, or in parts of equal size with summed
 * losses, with mean losses. */
typedef enum parts { NO_PARTS, ANY_PARTS, EVEN_SUMS, EVEN_MEANS } parts;

typedef struct family {
  const char *name;    /* name of the row in messages */
  const char *options; /* text of options for fixture_options */
  unsigned promises;
  parts calls;  /* number of micro-batches of one rank */
  parts shards; /* batches of several ranks */
  /* If a batch contains every sample twice, and the loss is a mean (so g halves), the curvature is divided by
   * `repeat`; 0: no promise.  `knob`: an option with the unit of curvature ("damping") or of its inverse ("radius"). */
  double repeat;
  const char *knob;
  /* LINEAR: at damping 1e10, damping^power P differs from D by at most `tail` times its largest entry. */
  double power, tail;
  /* Exact results and the condition; NULL: none. */
  void (*predict)(const test_case *s, const ng_options *o, case_result *out);
  double growth;
} family;

/* A row with one linear algebra. */
typedef struct variant {
  const family *f;
  const char *linalg;
} variant;
static inline bool has_promise(const variant *v, unsigned p) { return (v->f->promises & p) != 0; }

typedef struct property {
  const char *name;
  unsigned promise; /* the property runs only for rows that have these promises */
  void (*check)(const variant *v);
} property;

/* Run every property for every variant that promises it.  Fail if there is none, or if a method of the library has no
 * row. For main(). */
int properties_main(const char *group, const property *list, size_t n);
#define PROPERTIES_MAIN(group, list) properties_main(group, list, sizeof(list) / sizeof((list)[0]))

/* ---- for properties: on the main thread, failing the test ------------------------------------*/

void v_fail(const variant *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
ng_options v_options(const variant *v);
/* Change the option `knob` for a curvature that is `by` times as large.  The new result is the old result divided by
 * the returned factor. */
double v_scale_knob(const variant *v, ng_options *o, double by);

/* Run.  Fail unless the status is NG_OK, all ranks have the same bits, and no step allocated memory. */
case_result v_run_setup(const variant *v, const test_case *s, const ng_options *o,
                        case_setup setup);
case_result v_run(const variant *v, const test_case *s, const ng_options *o);

/* The tolerance of the difference of two runs. */
double v_tolerance(const variant *v, const test_case *s, const ng_options *o);

/* Fail unless results and nu differ by at most `tolerance` times the largest entry of each layer; 0: not at all. */
void v_must_match(const variant *v, const char *what, const test_case *s, const case_result *x,
                  const case_result *y, double tolerance);
/* Run x with ox and y with oy by v_run; compare the results by v_must_match. */
void v_runs_must_match(const variant *v, const char *what, const test_case *x, const ng_options *ox,
                       const test_case *y, const ng_options *oy, double tolerance);

/* Fail unless v_run equals the prediction, with half the tolerance, because the prediction is in double. */
void v_must_match_prediction(const variant *v, const char *what, const test_case *s,
                             const ng_options *o);

/* Two linear layers (one with positions) and two convolutions (one grouped, strided, dilated); with NORMS, one of each
 * with norms (and an embedding) between them. */
test_case *v_new_layers(const variant *v, int32_t steps, int32_t ranks);
/* The layers of v_new_layers, with arrays and summed losses.  Uneven: ranks have different numbers and sizes of
 * micro-batches.  Even: one micro-batch of three samples. */
test_case *v_new_uneven_case(const variant *v, int32_t steps, int32_t ranks, uint64_t salt);
test_case *v_new_even_case(const variant *v, int32_t steps, int32_t ranks, uint64_t salt);
/* Change summed losses to means: divide each g by the samples of its micro-batch. */
void v_average_losses(test_case *s);
/* Multiply every g by c. */
void v_scale_losses(test_case *s, double c);

/* Set an array of one layer in one micro-batch to zeros, or to NG_NO_TOKEN. */
void v_clear_array(const test_case *s, case_micro *m, int32_t l, bool grad);

/* Add weights, for clip = ratio. */
void v_add_weights(test_case *s);
/* All values of `clip`; values from index V_BOUNDED on need a clip_bound. */
enum { V_CLIPS = 7, V_BOUNDED = 3 };
extern const char *const v_clips[V_CLIPS];

double v_dot(const double *x, const double *y, int64_t n);
double v_largest(const double *x, int64_t n); /* largest |x| */

#endif
