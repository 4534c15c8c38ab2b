/* pruning.h: which weights of a trained network go, and what becomes of those that stay.
 *
 * Weights of layers are pruned; biases and norms stay.  A weight that is 0 at the beginning is gone already.
 * With F = damping I + G'G / m of m gradients of mini-batches (ng_fisher of natgrad.h), restricted to the weights that are
 * left (Frantar, Kurtic & Alistarh 2021, arXiv 2107.03356):
 *
 *     score_i = w_i^2 / (2 [F^-1]_ii)            (mfac)      |w_i|  (magnitude)
 *     w <- w + F^-1 t,  t_i = -w_i / [F^-1]_ii where i goes, else 0; then w_i = 0   (mfac)
 *
 * in steps, each with new gradients, that leave the same fraction of what was left before. */
#ifndef PRUNING_H
#define PRUNING_H

#include "feed.h"
#include "natgrad.h"

typedef enum pruning_score { PRUNING_MFAC, PRUNING_MAGNITUDE } pruning_score;
enum { PRUNING_WHOLE = 0, PRUNING_LAYERS = -1 };

typedef struct pruning {
  pruning_score score;
  double sparsity; /* of all weights, or of each layer's: in [0, 1) */
  bool layerwise;
  int64_t steps, gradients; /* at least 1 */
  double damping;
  int64_t block; /* coordinates of a diagonal block of F; PRUNING_WHOLE, PRUNING_LAYERS */
} pruning;

/* n weights that are left, cut into layers, in flat order. */
typedef struct pruning_set {
  int64_t n;
  int layers;
  const int64_t *end;  /* [layers]; a layer may be empty                          */
  const int64_t *drop; /* layerwise: [layers] how many go; else of all, drop[0]   */
  const float *G;      /* [gradients, n]; NULL for magnitude                      */
  double *w;           /* [n]; those that go become 0                             */
  bool *gone;          /* [n]                                                     */
} pruning_set;

/* One step.  Of equal scores the first goes.  CLI_BAD, told: nothing changed. */
int pruning_step(ng_context *ctx, const pruning *how, const pruning_set *s);

/* How many weights there are, and are 0. */
typedef struct pruning_count {
  int64_t weights, zeros;
} pruning_count;
pruning_count pruning_counted(const nn *net);

/* Of d weights, `began` of them gone at the beginning and `zeros` now: how many go in step k of K, so that
 * each step leaves the same fraction. */
int64_t pruning_share(int64_t d, int64_t began, int64_t zeros, double sparsity, int64_t k,
                      int64_t K);

/* All steps on a network.  Gradients are those of batches of `f`, by evaluation's formulas: norms with their running
 * values, no dropout (the caller describes the network without).  CLI_BAD, told: the network is to be dropped. */
int pruning_run(ng_context *ctx, const pruning *how, bool reconstructs, feed *f, nn *net);

#endif
