/* test_case.h: a test case: one small training run, given to the library and to the oracle.
 *
 * It has the layers, the observations of every step, rank and micro-batch, and the averaged gradient of every step.
 * Numbers and tokens are doubles in the oracle's (published) order.  D of a norm is [C, gamma beta], D of an embedding
 * [out, in].  A case_setup has the types, strides and layouts of the arrays for the library, threads and linear
 * algebra. */
#ifndef TESTS_TEST_CASE_H
#define TESTS_TEST_CASE_H

#include "dense.h"
#include "plane.h"
#include "draw.h"
#include "natgrad.h"
#include "oracle.h"

/* The unit of rounding in f32: half the distance from 1 to the next number. */
static const double unit = 0x1p-24;

enum { CASE_LAYERS = 6, CASE_STEPS = 6, CASE_RANKS = 8, CASE_CALLS = 8, CASE_USES = 2 };

typedef struct case_micro {
  ng_batch batch;
  double *a[CASE_LAYERS][CASE_USES], *g[CASE_LAYERS][CASE_USES]; /* NULL: not observed */
} case_micro;

typedef struct test_case {
  int32_t layers, steps, ranks;
  ng_layer layer[CASE_LAYERS];
  char name[CASE_LAYERS][32];
  int64_t positions[CASE_LAYERS]; /* S; OH*OW of a convolution, H*W of a norm of images */
  int32_t uses[CASE_LAYERS];      /* number of times that each layer runs in one micro-batch */
  int32_t calls[CASE_STEPS][CASE_RANKS];
  case_micro micro[CASE_STEPS][CASE_RANKS][CASE_CALLS];
  double *D[CASE_STEPS][CASE_LAYERS];
  double *W[CASE_LAYERS];     /* weights; NULL: not bound */
  double damping[CASE_STEPS]; /* damping that is set before the step; 0: no change */
  double decay[CASE_STEPS];   /* stat_decay of each step, if decay_moves */
  bool decay_moves;
} test_case;

/* A fault on the last rank.
 *   CASE_BAD_*      a NaN in the last array of its kind that is observed
 *   CASE_NO_*       that array is not observed, and the loss scale is infinite
 *   CASE_BAD_SCALE  everything is observed, and the loss scale is infinite
 *   CASE_ABANDONED  ng_reset_batch after the observations */
typedef enum case_fault {
  CASE_NO_FAULT,
  CASE_BAD_INPUT,
  CASE_BAD_OUTPUT_GRAD,
  CASE_BAD_GRADIENT,
  CASE_NO_INPUT,
  CASE_NO_OUTPUT_GRAD,
  CASE_BAD_SCALE,
  CASE_ABANDONED
} case_fault;

typedef struct case_setup {
  const char *linalg;               /* NULL: the default */
  const struct ng_backend *backend; /* instead of `linalg` */
  int32_t threads;
  ng_dtype observed, gradient; /* 0: f32 */
  int64_t pad;                 /* extra elements between rows, filled with NaN */
  plane_order layout;          /* 0: NCHW */
  ng_order order;              /* 0: samples first */
  bool declare_positions;      /* ng_layer.positions = S instead of 0 */
  bool observe_unwanted;       /* do not ask ng_wants */
  bool reverse;                /* register layers last to first */
  const char *
      resume; /* a file: after step `resume_after` save to it and load it into a new preconditioner */
  int32_t resume_after;
  bool in_parts;    /* the state has one file per rank, which the case does not delete */
  bool by_arrays;   /* resume from single arrays and a manifest, without a file */
  case_fault fault; /* before step `fault_step`, the same step is tried once with this fault */
  int32_t fault_step;
} case_setup;

enum { CASE_STATIONS = 10 };
typedef struct case_result {
  double *P[CASE_STEPS][CASE_LAYERS]; /* updated weights, with the option `update` */
  double nu[CASE_STEPS], inner[CASE_STEPS];
  double condition[CASE_STEPS][CASE_LAYERS]; /* oracle only */
  ng_status status;                          /* worst over steps and ranks */
  char message[512];
  double rank_gap;     /* largest difference of a result between ranks; NaNs do not count */
  int64_t allocations; /* number of allocations in steps, on all ranks */
  int64_t waits[CASE_STEPS][CASE_STATIONS]; /* ng_station_report.last_waits on rank 0 */
  /* number of faulty steps, over all ranks, that returned NG_SKIPPED and left the gradients unchanged */
  int32_t refused;
} case_result;

/* An empty test case.  The layers that are added have the defaults of ng_layer_init; the caller may change them. */
test_case *case_create(int32_t steps, int32_t ranks);
void case_destroy(test_case **s);
ng_layer *case_linear(test_case *s, int64_t in, int64_t out, bool bias, int64_t positions);
ng_layer *case_conv(test_case *s, int64_t in, int64_t out, int64_t kh, int64_t kw, int64_t h,
                    int64_t w, bool bias); /* stride 1, padding 0 */
/* With gamma and beta; a layer norm has h * w positions, the others read images. */
ng_layer *case_norm(test_case *s, ng_norm_kind kind, int64_t channels, int64_t h, int64_t w);
ng_layer *case_embedding(test_case *s, int64_t in, int64_t out, int64_t positions);
void case_set_positions(test_case *s); /* call after the last change of a convolution */
bool takes_images(const ng_layer *l);  /* return whether the input of the layer is [B, C, H, W] */

/* Append an empty micro-batch to a step of a rank. */
case_micro *case_add_micro(test_case *s, int32_t step, int32_t rank, int64_t samples);
int64_t case_input_count(const test_case *s, int32_t layer,
                         int64_t samples); /* elements of an input */
int64_t case_output_count(const test_case *s, int32_t layer, int64_t samples);
int64_t case_weight_count(const test_case *s, int32_t layer); /* q * p */

/* Allocate and fill missing arrays with rng_value. */
void case_fill(test_case *s, rng *r);

/* A copy with the samples of all ranks on one rank, as one micro-batch per step.  All micro-batches must have reduction
 * NG_SUM and loss_scale 1: then g does not change. */
test_case *case_merge(const test_case *s);
/* A copy with another order of the samples within every micro-batch. */
test_case *case_shuffle(const test_case *s, rng *r);

/* Run with the library; one thread per rank if there is more than one.  Assert nothing.  case_free_result frees. */
void case_run(const test_case *s, const ng_options *opt, const case_setup *setup, case_result *out);
/* `keep` (may be NULL) receives the oracle after the last step. */
void case_predict(const test_case *s, const ng_options *opt, case_result *out, oracle **keep);
void case_free_result(case_result *r);

/* Largest |x - y| of one step and layer over the largest |y| (1 if y is 0). */
double case_gap(const test_case *s, int32_t step, int32_t layer, const case_result *x,
                const case_result *y);

/* Run n cases, each with its own seed.  case_of returns the error in units of rounding; if the case failed, it prints
 * the reason and returns INFINITY.  NG_TEST_SEED without NG_TEST_MULT runs that one case. */
void test_cases(double (*case_of)(uint64_t seed), int64_t n, double allowed);

#endif
