/* oracle.h: K-FAC once more, as plainly as it can be said, to check the library against.
 *
 * Everything is double precision, dense and recomputed from scratch; every rank has its own copy of
 * every running average, as in the published programs.  It shares no code with the library: only
 * the structs of the public header, which say what to do.  Functions abort the program on misuse or
 * when there is no memory; they are called from one thread.
 *
 * Arrays are in published order: linear inputs [B, S, in], convolutions [B, C, H, W], tokens [B, S],
 * gradients and results D [q, p] with the bias as last column.  A token is a unit vector of a linear
 * layer, no token is none.  Norms are only carried along: they must be frozen (see layer_oracle.h).
 */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include "natgrad.h"
#include "option/option.h" /* options by value */

#include <stdbool.h>

typedef struct oracle oracle;

oracle *oracle_create(const ng_options *opt, int32_t ranks);
void oracle_destroy(oracle **o);

/* Register a layer; the index counts from 0.  Of ng_layer it reads what describes the geometry,
 * name and frozen, never `options`. */
int32_t oracle_add(oracle *o, const ng_layer *l);

/* The options of one layer: change damping, stat_decay, ... between steps here.  `clip`, `kl_clip`
 * and the periods are read from layer 0. */
ng_options *oracle_options(oracle *o, int32_t layer);

/* One micro-batch of one rank; observations after it belong to it.  Off-period ones and those of
 * ranks that a local statistic does not use are ignored, as the library does. */
void oracle_begin(oracle *o, int32_t rank, const ng_batch *b);
void oracle_input(oracle *o, int32_t rank, int32_t layer, const double *a, int64_t positions);
void oracle_output_grad(oracle *o, int32_t rank, int32_t layer, const double *g, int64_t positions);

/* One step of all ranks: P[l] = nu PD of D[l] (for layers without curvature, D itself).  Returns
 * nu. */
double oracle_step(oracle *o, double lr, const double *const *D, double *const *P);
double oracle_inner(const oracle *o); /* sum <PD, D> of the last step */

/* Running average of a rank, [n, n]; n through *n. */
const double *oracle_factor(const oracle *o, int32_t rank, int32_t layer, int64_t group, bool grad,
                            int64_t *n);

/* How much a relative error of the factors can grow on its way to P: largest over smallest
 * denominator (eigen), the sum of the condition numbers of both damped factors (Cholesky); the
 * worst group of the layer. */
double oracle_condition(const oracle *o, int32_t layer);

/* The rows of the statistic of one group, [samples * positions, n]: patches, vectors, unit vectors of tokens. */
double *oracle_stat_rows(const ng_layer *l, bool grad, int64_t group, const double *data,
                         int64_t samples, int64_t positions, int64_t n);

/* Sizes of a layer: output positions of a convolution (1 for linear), q, p (with bias). */
int64_t oracle_positions(const ng_layer *l);
int64_t oracle_out(const ng_layer *l, int i); /* a convolution's height (0) or width (1) */
int64_t oracle_rows(const ng_layer *l);
int64_t oracle_cols(const ng_layer *l);

/* Updates of n weights by direction d, as the header's cards say; `t` counts steps from 1. */
void oracle_sgd(const ng_sgd *s, int64_t t, int64_t n, const double *d, double *w, double *v);
void oracle_adamw(const ng_adamw *a, int64_t t, int64_t n, const double *d, double *w, double *m,
                  double *s);

/* Dense tools: eigenvalues ascending-or-not into d and vectors into the columns of Q, by Jacobi
 * rotations; the solution of M X = R (R [n, m] is overwritten) by elimination with row exchange. */
void oracle_eigen(int64_t n, const double *M, double *d, double *Q);
void oracle_solve(int64_t n, const double *M, int64_t m, double *R);

/* The generator of spec/kfac.md 19: out[k] = (((m1 k + b) mod mod) - (mod - 1)/2) / s. */
void oracle_pattern(double *out, int64_t n, int64_t m1, int64_t b, int64_t mod, double s);

#endif
