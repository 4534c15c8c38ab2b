/* effects.h: what the tests of options share.
 *
 * One small model (a convolution, two linear layers on three positions) is played through the
 * public API with two values of an option.  effect_<option> says in what the two runs differ, and,
 * where that can be said without knowing the engine, by how much.  The option table names these
 * tests; t_options.c checks that each row has one.
 *
 * "Differ" is a largest difference above 1e-3 of the largest entry unless said otherwise: a
 * thousand times what f32 rounding (6e-8) makes of condition numbers below 1e3, which a damping of
 * 0.1 on factors of order 1 keeps.  "Agree" is below that, or the same bits. */
#ifndef TESTS_EFFECTS_H
#define TESTS_EFFECTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fixture.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { CONV, FC1, FC2, LAYERS, STEPS = 4, RANKS = 2, TOTAL = 131, SEEN_MAX = 6 * 80 };

extern const struct effects_layer {
  const char *name;
  int64_t rows, cols, bias;             /* of the weight */
  int64_t in, out;                      /* elements a sample shows */
  int64_t seen_in, seen_out, seen_rows; /* as matrices: columns, rows a sample */
  int64_t at;                           /* in the results */
} layer[LAYERS];

/* A number in [-1, 1) for every place. */
float data(int64_t step, int64_t rank, int64_t call, int64_t what, int64_t i);

typedef struct run {
  /* what to do */
  const char *settings;      /* "name=value name=value" */
  const char *layer_options; /* of fc1 */
  int32_t ranks, steps, calls;
  int64_t samples[2];                 /* of the first and the second micro-batch */
  const char *set_option, *set_value; /* ng_set before the second step */
  const char *step;                   /* "gradient", "sgd", "adamw" */
  int32_t odd_rank;                   /* this rank sees other data; -1: none */
  bool only_fc1;                      /* the weights of the other layers are 0 */
  double lr, last_lr;                 /* of ng_step, of the last one; 0: 1, lr */
  /* what came out: one of each rank */
  struct outcome {
    ng_status st;
    char message[512];
    float P[STEPS][TOTAL], weight[STEPS][TOTAL];
    double nu[STEPS];
    int64_t sums, factors, results, moments;
    int64_t share_bytes, deliver_bytes, sums_bytes, sums_messages;
    int32_t covered[LAYERS], owner[LAYERS];
    char why[LAYERS][200];
    int32_t wanted[STEPS];
  } rank[RANKS];
} run;

extern const run usual;

/* The same gradient on all ranks; of another step, another one. */
void gradient_of(int32_t step, float *D);

/* Plays and returns the worst status; the caller's `what` holds the outcome. */
ng_status try_play(run *what);
/* Fails the test unless that is NG_OK. */
run play(run what);
run with(const char *settings);
run on_two(const char *settings, int32_t odd_rank); /* two ranks, which end with the same bits */

/* ---- differences -----------------------------------------------------------------------------*/

int64_t end_of(int32_t i);

/* Largest difference over the largest entry; infinity if a NaN is among them, so that it cannot pass
 * for agreement: of one layer in one step, of all layers, of all steps. */
double gap_of(const run *a, const run *b, int32_t step, int32_t i);
double gap_at(const run *a, const run *b, int32_t step);
double gap(const run *a, const run *b);

#define DIFFERENT 1e-3
/* Finite and different; gaps of healthy runs are of order 1, infinity is a NaN somewhere. */
#define assert_differ(g)                                                                           \
  do {                                                                                             \
    const double gap_ = (g);                                                                       \
    if (!(gap_ > DIFFERENT && gap_ < 1e12)) print_error("gap %g\n", gap_);                         \
    assert_true(gap_ > DIFFERENT && gap_ < 1e12);                                                  \
  } while (0)
#define assert_within(g, most)                                                                     \
  do {                                                                                             \
    const double gap_ = (g);                                                                       \
    if (!(gap_ <= (most))) print_error("gap %g, at most %g\n", gap_, (double)(most));              \
    assert_true(gap_ <= (most));                                                                   \
  } while (0)

/* Three runs, each unlike the others in every step. */
void assert_all_differ(const char *first, const char *second, const char *third);

#endif
