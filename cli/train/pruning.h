/* pruning.h: prune weights of a trained network and adjust the remaining weights.
 *
 * Weights of layers are pruned, biases and norms are not. Every weight that is 0 counts as pruned. With F = damping I +
 * G'G / m, where the rows of G are m gradients of mini-batches (ng_fisher), restricted to the remaining weights
 * (Frantar, Kurtic & Alistarh 2021, arXiv 2107.03356):
 *
 *     score_i = w_i^2 / (2 [F^-1]_ii)  (mfac)    or |w_i|  (magnitude)
 *     w <- w + F^-1 t,  t_i = -w_i / [F^-1]_ii if i is pruned, else 0; then w_i = 0   (mfac)
 *
 * Each step computes new gradients and prunes the same fraction of the remaining weights. */
#ifndef PRUNING_H
#define PRUNING_H

#include "feed.h"
#include "natgrad.h"

typedef enum pruning_score { PRUNING_MFAC, PRUNING_MAGNITUDE } pruning_score;

typedef struct pruning {
  pruning_score score;
  double sparsity;          /* fraction of zero weights after the last step, in [0, 1) */
  int64_t steps, gradients; /* both at least 1 */
  double damping;
  int64_t block; /* number of weights of a diagonal block of F; 0: F is one block */
} pruning;

/* One step: the n remaining weights, in the order of the network's parameters. */
typedef struct pruning_set {
  int64_t n, drop; /* number of remaining weights; number of weights to prune */
  const float *G;  /* [gradients, n]; NULL for magnitude */
  double *w;       /* [n]; pruned weights become 0 */
  bool *pruned;    /* [n] */
} pruning_set;

/* Prune s->drop weights; of equal scores, prune the first. CLI_BAD, reported: w is unchanged. */
int pruning_prune_step(ng_context *ctx, const pruning *how, const pruning_set *s);

/* The number of weights that can be pruned, and the number of zeros among these weights. */
typedef struct pruning_count {
  int64_t weights, zeros;
} pruning_count;
pruning_count pruning_count_zeros(const nn *net);

/* Return how many of d weights step k of K prunes. `began` weights were 0 at the start, `zeros` are 0 now. */
int64_t pruning_compute_step_count(int64_t d, int64_t began, int64_t zeros, double sparsity,
                                   int64_t k, int64_t K);

/* Prune a network in how->steps steps. Gradients are computed on batches of `f` in evaluation mode: norms use running
 * statistics, and there is no dropout. CLI_BAD, reported: the network is unusable. */
int pruning_run(ng_context *ctx, const pruning *how, bool reconstructs, feed *f, nn *net);

#endif
