/* layer_oracle.h: predictions of rank-one and norm blocks by dense float64 solves.
 *
 * Rank one (Eva): vectors are means over explicit patches, and PD is the solution of (lambda I + (g a')(g a')') x = D
 * by elimination.  PD = (D - c g a') / lambda in f32 has a dozen roundings of size |D| / lambda, and |PD| may be as
 * small as |D| / (alpha beta + lambda).  So the error in units of 2^-24 |PD| grows by (alpha beta + lambda) / lambda.
 * Observed at most 2.7 in 21,000 cases; allowed 8.
 *
 * Norms: positions are normalised in double, q_i is the gradient of all gammas, then all betas of sample i, F = sum w
 * q_i q_i' / sum w is dense, entries outside of the block are 0, and (F + d I) x = D is solved by elimination.  An
 * error of F reaches PD times the condition of F + d I, at most (tr F + d) / d: 64 units of 2^-24 times that bound. */
#ifndef TESTS_LAYER_ORACLE_H
#define TESTS_LAYER_ORACLE_H

#include "oracle.h"
#include "test_case.h"

enum { RANKONE_GROWTH = 8 };

/* Predict the results of a test case; case_free_result frees them. */
void rankone_predict(const test_case *s, const ng_options *opt, case_result *out);

/* Predict Adam of all layers by the formula of src/family/adam.c, or Muon of weights (src/family/muon.c, coefficients of `simple`) and
 * Adam of everything else, without clip. Muon: the iteration multiplies rounding errors of small singular values by up to
 * 3.4445^5 = 485. */
enum { MUON_GROWTH = 1000 };
void muon_predict(const test_case *s, const ng_options *opt, case_result *out);
void adam_predict(const test_case *s, const ng_options *opt, case_result *out);
/* Newton-Muon (src/family/kronecker_muon.c) with a solve in every step. */
void newton_muon_predict(const test_case *s, const ng_options *opt, case_result *out);

/* Set elements of F [n, n] between diagonal blocks of channels to 0; a bias belongs to the last block. */
void cut_diagonal_blocks(const ng_settings *o, const ng_layer *l, bool grad, int64_t n, double *F);

/* Predict the norms of a test case; `others` predicts all other layers.  Options must have stat_start = first, calls =
 * mean and stat_scale = textbook. */
void norm_predict(const test_case *s, const ng_options *opt,
                  void (*others)(const test_case *s, const ng_options *opt, case_result *out),
                  case_result *out);

#endif
