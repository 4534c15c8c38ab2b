/* norm_oracle.h: norm blocks once more, as a dense float64 solve, to check the library against.
 *
 * The oracle is plain: every position is normalised in double, q_i is the gradient of all gammas, then all
 * betas of sample i, F = sum w q_i q_i' / sum w is dense, what the block leaves out of it is set to 0, and
 * (F + d I) x = D is solved by elimination.
 *
 * Tolerance.  Sums of q run over f32 blocks of at most 64 rows, F is kept in f32, and an error of F reaches
 * PD times the condition of F + d I, of which (tr F + d) / d is a bound: 64 units of 2^-24 times that, as
 * for factors (families.h). */
#ifndef TESTS_NORM_ORACLE_H
#define TESTS_NORM_ORACLE_H

#include "oracle.h"
#include "scene.h"

int64_t norm_width(const ng_layer *l); /* gammas and betas */

/* F [w, w] += weight sum q_i q_i' over the first `take` samples of a micro-batch; a, g [B, S, C]. */
void norm_add(const ng_layer *l, const ng_batch *b, int64_t positions, const double *a,
              const double *g, int64_t take, double weight, double *F);

/* x [w] <- (F + d I)^-1 x, with what norm_block = `block` keeps of F; returns (tr F + d) / d. */
double norm_solve(const ng_layer *l, const char *block, const double *F, double d, double *x);

/* What the library should say of a scene, freed by scene_forget: of all layers but its norms what `others`
 * says.  Options must have stat_start = first and calls = mean, weighed by samples. */
void norm_predict(const scene *s, const ng_options *opt,
                  void (*others)(const scene *s, const ng_options *opt, scene_result *out),
                  scene_result *out);

#endif
