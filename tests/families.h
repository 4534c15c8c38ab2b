/* families.h: the table of everything that preconditions, and what each row promises; t_properties*.c
 * prove the promises, each property on every row that makes it, with every linear algebra built in.
 *
 * To add a family, a method or a solver: a row in families.c, and a prediction function if it
 * promises exact results.  Nothing else.
 *
 * Tolerance.  Two runs that are equal in exact arithmetic differ in f32 by rounding of the curvature,
 * which reaches the result times the condition of the damped curvature, as the row's prediction
 * tells it.  `growth` is how many units 2^-24 of that one run may be off: 64 for factors, as measured
 * in t_oracle.c, 8 for mean vectors, as in layer_oracle.h.
 */
#ifndef TESTS_FAMILIES_H
#define TESTS_FAMILIES_H

#include "fixture.h"
#include "test_case.h"

/* What a row may promise, beside what holds for everyone (positive, zero gives zero, no order matters,
 * the same bits for any threads, ...).
 *
 *   LINEAR     P is linear, and D / damping^power without curvature or with a large damping
 *   SYMMETRIC  <y, Px> = <Py, x>
 *   SOLVES     P put back into curvature and damping, both by definition, gives D
 *   SCALES     a loss c times as large has c^2 times the curvature
 *   IN_GROUPS  the groups of a convolution are convolutions beside each other
 *   HALVES     averages and results may be kept in half precision
 *   FRACTIONS  any grad_worker_fraction
 *   VECTORS    holds vectors, no matrices: wide layers are cheap
 *   READS_...  inputs, output gradients; who does not read them takes anything
 *   ALIKE      the prediction knows ranks that show equally many samples only
 *   SHAPED     knows parameters by their shapes: a bias is not a column of the weight
 *   PREDICTED  follows from `predict`
 *   NORMS      has norm layers beside the others, in other test cases: layer, group and batch norms, the last
 *              shown normalised, as what it makes of the raw input is not made of parts
 *   RAW        ... or as it is
 *   TOKENS     and an embedding */
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
  EVERYONE = 0
};

/* Which parts make the whole: parts of any size, or of equal size, of summed or of mean losses. */
typedef enum parts { NO_PARTS, ANY_PARTS, EVEN_SUMS, EVEN_MEANS } parts;

typedef struct family {
  const char *name;    /* in messages */
  const char *options; /* as fixture_options takes them */
  unsigned promises;
  parts calls;  /* micro-batches that make a batch */
  parts shards; /* shards of ranks that make the batch of one rank */
  /* A batch twice over, its loss a mean (so that g halves), has a `repeat`-th of the curvature; 0: no
   * promise.  `knob` has the unit of curvature ("damping"), or of its inverse ("radius"). */
  double repeat;
  const char *knob;
  /* LINEAR: at damping 1e10, damping^power P is D but for `tail` of its largest entry. */
  double power, tail;
  /* Exact results, and the condition by which roundings grow; NULL: it promises none. */
  void (*predict)(const test_case *s, const ng_options *o, case_result *out);
  double growth;
} family;

/* A row with one linear algebra. */
typedef struct variant {
  const family *f;
  const char *linalg;
} variant;

typedef struct property {
  const char *name;
  unsigned promise; /* all of them */
  void (*check)(const variant *v);
} property;

/* Runs every property on every variant that promises it; fails if there is none, or if a method of the
 * library has no row.  For main(). */
int properties_main(const char *group, const property *list, size_t n);
#define PROPERTIES_MAIN(group, list) properties_main(group, list, sizeof(list) / sizeof((list)[0]))

/* ---- for properties: on the main thread, failing the test ------------------------------------*/

void v_fail(const variant *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
ng_options v_options(const variant *v);
/* The curvature is `by` times as large: turns the knob so that the result is that of before, over the
 * factor that is returned. */
double v_turn(const variant *v, ng_options *o, double by);

/* Play: the status is NG_OK, ranks have the same bits, no step has allocated anything. */
case_result v_run_as(const variant *v, const test_case *s, const ng_options *o, case_setup setup);
case_result v_run(const variant *v, const test_case *s, const ng_options *o);

/* What two runs may differ by. */
double v_tolerance(const variant *v, const test_case *s, const ng_options *o);

/* Results and nu are equal up to `tolerance` of the largest entry of each layer; 0: the same bits. */
void v_same(const variant *v, const char *what, const test_case *s, const case_result *x,
            const case_result *y, double tolerance);
/* v_run of both, and that. */
void v_equal(const variant *v, const char *what, const test_case *x, const ng_options *ox,
             const test_case *y, const ng_options *oy, double tolerance);

/* v_run gives what the row predicts, in double, so half the tolerance is enough. */
void v_predicted(const variant *v, const char *what, const test_case *s, const ng_options *o);

/* Two linear layers (one with positions) and two convolutions (one grouped, strided, dilated); or what NORMS
 * and TOKENS say between one and one. */
test_case *v_layers_of(const variant *v, int32_t steps, int32_t ranks);
/* The same, filled, of summed losses: every rank with its own number of micro-batches of its own
 * sizes; or all with one micro-batch of three. */
test_case *v_uneven(const variant *v, int32_t steps, int32_t ranks, uint64_t salt);
test_case *v_even(const variant *v, int32_t steps, int32_t ranks, uint64_t salt);
/* Losses that were sums are means now: each g gets smaller by the samples of its micro-batch. */
void v_means(test_case *s);
/* Every g of the test case times c. */
void v_scale_losses(test_case *s, double c);

/* Zeros, or no tokens: every use of one layer in one micro-batch. */
void v_silence(const test_case *s, case_micro *m, int32_t l, bool grad);

/* Weights, which a ratio to their norm needs. */
void v_weights(test_case *s);
/* Every kind of clip; those from V_BOUNDED on need a clip_bound. */
enum { V_CLIPS = 7, V_BOUNDED = 3 };
extern const char *const v_clips[V_CLIPS];

double v_dot(const double *x, const double *y, int64_t n);
double v_most(const double *x, int64_t n); /* largest |x| */

#endif
