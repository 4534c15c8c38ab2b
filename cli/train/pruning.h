/* pruning.h: prune weights of a trained network and adjust the remaining weights.
 *
 * Weights of layers are pruned, not biases and norms; every weight that is 0 counts as pruned. With F =
 * damping I + G'G / m for m gradients of mini-batches (ng_fisher), restricted to the remaining weights (Frantar,
 * Kurtic & Alistarh 2021, arXiv 2107.03356):
 *
 *     score_i = w_i^2 / (2 [F^-1]_ii)  (mfac)    or |w_i|  (magnitude)
 *     w <- w + F^-1 t,  t_i = -w_i / [F^-1]_ii if i is pruned, else 0; then w_i = 0   (mfac)
 *
 * Each step computes new gradients and keeps the same fraction of the remaining weights. */
#ifndef PRUNING_H
#define PRUNING_H

#include "feed.h"
#include "natgrad.h"

typedef enum pruning_score { PRUNING_MFAC, PRUNING_MAGNITUDE } pruning_score;

typedef struct pruning {
  pruning_score score;
  double sparsity;          /* final fraction of zero weights, in [0, 1) */
  int64_t steps, gradients; /* at least 1 */
  double damping;
  int64_t block; /* size of a diagonal block of F; 0: one block */
} pruning;

/* The n remaining weights, in flat order. */
typedef struct pruning_set {
  int64_t n, drop; /* remaining weights; weights to prune */
  const float *G;  /* [gradients, n]; NULL for magnitude */
  double *w;       /* [n]; pruned weights become 0 */
  bool *pruned;    /* [n] */
} pruning_set;

/* Prune one step; among equal scores, prune the first weight. After CLI_BAD (with a message), w is unchanged. */
int pruning_step(ng_context *ctx, const pruning *how, const pruning_set *s);

/* Number of prunable weights, and how many of these are 0. */
typedef struct pruning_count {
  int64_t weights, zeros;
} pruning_count;
pruning_count pruning_count_zeros(const nn *net);

/* Of d weights, `began` are 0 at the start and `zeros` now. Return how many weights step k of K prunes. */
int64_t pruning_count_next(int64_t d, int64_t began, int64_t zeros, double sparsity, int64_t k,
                           int64_t K);

/* Prune a network in all steps. Gradients use batches of `f` and evaluation mode: norms with running statistics,
 * no dropout. After CLI_BAD (with a message) the network is unusable. */
int pruning_run(ng_context *ctx, const pruning *how, bool reconstructs, feed *f, nn *net);

#endif
