/* oracle.h: a plain implementation of K-FAC, with which tests compare the library.
 *
 * All numbers are double and all matrices dense; every rank has its own copy of every running average, as in the
 * published programs.  It shares no code with the library, only the structs of the public header.  Functions abort on
 * misuse or without memory; call them from one thread.
 *
 * Arrays are in published order: linear inputs [B, S, in], convolutions [B, C, H, W], tokens [B, S], gradients and
 * results D [q, p] with the bias as last column.  A token is a unit vector of a linear layer, NG_NO_TOKEN a zero
 * vector.  Norms must be frozen; layer_oracle.h predicts them. */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include "natgrad.h"
#include "option/option.h" /* options by value */

#include <stdbool.h>

typedef struct oracle oracle;

oracle *oracle_create(const ng_options *opt, int32_t ranks);
void oracle_destroy(oracle **o);

/* Register a layer; the index counts from 0.  ng_layer.options is ignored. */
int32_t oracle_add_layer(oracle *o, const ng_layer *l);

/* The options of one layer, to change damping, stat_decay, ... between steps.  `clip`, `kl_clip` and the periods of
 * layer 0 are used. */
ng_options *oracle_options(oracle *o, int32_t layer);

/* Begin a micro-batch of one rank and observe its arrays.  As in the library, an observation is ignored outside the
 * period, and on a rank that a local statistic does not use. */
void oracle_begin(oracle *o, int32_t rank, const ng_batch *b);
void oracle_observe_input(oracle *o, int32_t rank, int32_t layer, const double *a,
                          int64_t positions);
void oracle_observe_output_grad(oracle *o, int32_t rank, int32_t layer, const double *g,
                                int64_t positions);

/* One step of all ranks: P[l] = nu PD of D[l]; D itself for layers without curvature.  Return nu. */
double oracle_step(oracle *o, double lr, const double *const *D, double *const *P);
double oracle_inner_product(const oracle *o); /* sum <PD, D> of the last step */

/* Return the running average of a rank, [n, n]. */
const double *oracle_factor(const oracle *o, int32_t rank, int32_t layer, int64_t group, bool grad,
                            int64_t *n);

/* The growth of a relative error of the factors in P, for the worst group of the layer: largest over smallest
 * denominator (eigen), sum of the condition numbers of the damped A and G (Cholesky). */
double oracle_condition(const oracle *o, int32_t layer);

/* The rows of the statistic of one group, [samples * positions, n]: patches, vectors, unit vectors of tokens. */
double *oracle_stat_rows(const ng_layer *l, bool grad, int64_t group, const double *data,
                         int64_t samples, int64_t positions, int64_t n);

/* Whether A of a layer is S (x) C.  Then the average [n, n] has C, S and the element of the bias, which is last, as diagonal
 * blocks and 0 elsewhere; oracle_spatial_factor computes A from it. */
bool oracle_is_spatial(const ng_options *opt, const ng_layer *l);
void oracle_spatial_average(const ng_layer *l, int64_t group, const double *data, int64_t samples,
                            int64_t n, double *out);
void oracle_spatial_factor(const ng_layer *l, int64_t n, const double *average, double *A);

/* Return the output positions of a convolution (1 for linear); the size of an axis; the columns of D, with the bias. */
int64_t oracle_positions(const ng_layer *l);
int64_t oracle_output_size(const ng_layer *l, int i); /* a convolution's height (0) or width (1) */
int64_t oracle_columns(const ng_layer *l);

/* Update n weights by direction d as natgrad.h defines; `t` counts steps from 1. */
void oracle_update_sgd(const ng_sgd *s, int64_t t, int64_t n, const double *d, double *w,
                       double *v);
void oracle_update_adamw(const ng_adamw *a, int64_t t, int64_t n, const double *d, double *w,
                         double *m, double *s);

#endif
