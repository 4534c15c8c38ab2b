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

/* The results of a scene, freed by scene_forget; `others` predicts all layers but norms.  Options must have stat_start = first and calls = mean, weighed by samples. */
void norm_predict(const scene *s, const ng_options *opt,
                  void (*others)(const scene *s, const ng_options *opt, scene_result *out),
                  scene_result *out);

#endif
