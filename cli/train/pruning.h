/* pruning.h: prune the weights of a trained network and adjust the others.
 *
 * Weights of layers are pruned, not biases and norms; weights that are 0 at the start count as pruned. With F =
 * damping I + G'G / m for m gradients of mini-batches (ng_fisher), restricted to the remaining weights (Frantar,
 * Kurtic & Alistarh 2021, arXiv 2107.03356):
 *
 *     score_i = w_i^2 / (2 [F^-1]_ii)  (mfac)    or |w_i|  (magnitude)
 *     w <- w + F^-1 t,  t_i = -w_i / [F^-1]_ii if i is pruned, else 0; then w_i = 0   (mfac)
 *
 * in steps with new gradients; each keeps the same fraction of the weights left before it. */
#ifndef PRUNING_H
#define PRUNING_H

#include "feed.h"
#include "natgrad.h"

typedef enum pruning_score { PRUNING_MFAC, PRUNING_MAGNITUDE } pruning_score;

typedef struct pruning {
  pruning_score score;
  double sparsity;          /* final part of zero weights, in [0, 1) */
  int64_t steps, gradients; /* at least 1 */
  double damping;
  int64_t block; /* size of a diagonal block of F; 0: one block */
} pruning;

/* The n remaining weights, in flat order. */
typedef struct pruning_set {
  int64_t n, drop; /* remaining weights; weights to prune */
  const float *G;  /* [gradients, n]; NULL for magnitude */
  double *w;       /* [n]; pruned weights become 0 */
  bool *gone;      /* [n] */
} pruning_set;

/* Prune one step; of equal scores the first is pruned. CLI_BAD after a message: nothing changed. */
int pruning_step(ng_context *ctx, const pruning *how, const pruning_set *s);

/* Number of weights, and of zeros. */
typedef struct pruning_count {
  int64_t weights, zeros;
} pruning_count;
pruning_count pruning_counted(const nn *net);

/* Of d weights, `began` are 0 at the start and `zeros` now. Return the number to prune in step k of K. */
int64_t pruning_share(int64_t d, int64_t began, int64_t zeros, double sparsity, int64_t k,
                      int64_t K);

/* Prune a network in all steps. Gradients use batches of `f` and evaluation mode: norms with running statistics,
 * no dropout. CLI_BAD after a message: discard the network. */
int pruning_run(ng_context *ctx, const pruning *how, bool reconstructs, feed *f, nn *net);

#endif
