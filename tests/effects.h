/* effects.h: runs of a small model (a convolution, two linear layers with three positions, a batch norm) with given
 * options, and differences between two runs. */
#ifndef TESTS_EFFECTS_H
#define TESTS_EFFECTS_H

#include "unit_test.h"
#include "fixture.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { CONV, FC1, FC2, BN, LAYERS, STEPS = 4, RANKS = 2, TOTAL = 135, MOST_OBSERVED = 6 * 80 };

extern const struct effects_layer {
  const char *name;
  ng_kind kind;
  int64_t rows, cols, bias; /* rows and columns of the weight; elements of the bias */
  int64_t in, out;          /* columns or channels of input and output */
  int64_t high, wide;       /* positions, or height and width of images */
  int64_t offset;           /* first element in P and weight */
} layer[LAYERS];

/* The numbers of a run that a row of t_option_effects compares. */
typedef enum number {
  NONE,
  FACTORS,
  RESULTS,
  MOMENTS,
  SUMS,
  SENT,
  MESSAGES,
  WANTED,
  SCALED,
  NUMBERS
} number;

typedef struct run {
  /* input */
  const char *settings;      /* lines of options, ';' between */
  const char *layer_options; /* options of the layer number `own_layer` */
  int32_t own_layer;         /* FC1 or BN */
  int32_t ranks;
  const char *set, *value; /* ng_set before the second step; NULL: none */
  const char *step;        /* "gradient", "sgd", "adamw" */
  bool only_fc1;           /* the weights of the other layers are 0 */
  /* learning rate of ng_step; learning rate of the last step; 0: default (1; lr) */
  double lr, last_lr;
  /* output, for each rank */
  struct outcome {
    ng_status st;
    char message[512];
    float P[STEPS][TOTAL], weight[STEPS][TOTAL];
    double nu[STEPS];
    int64_t quantity[NUMBERS]; /* numbers of the last step, from the reports */
  } rank[RANKS];
} run;

extern const run usual;

/* Fill D with the gradient of a step, which is the same on all ranks. */
void fill_gradient(int32_t step, float *D);

/* Run `what` and store the outcome in it; return the worst status. */
ng_status try_run(run *what);
/* Run `what`; fail the test unless the status is NG_OK and all ranks have the same directions and weights. */
run must_run(run what);
run must_run_with(const char *settings);

/* Return the largest difference over the largest entry, or infinity: of one layer in one step, of all layers. */
double layer_gap(const run *a, const run *b, int32_t step, int32_t i);
double step_gap(const run *a, const run *b, int32_t step);

#endif
