/* scores.h: influence of training samples on the loss of test samples, by the K-FAC curvature of a trained network.
 *
 *     score_j = sum over layers of <D, (K + lambda I)^-1 D_j>     (Koh & Liang 2017, arXiv 1703.04730, equation 2, without its sign)
 *
 * D: gradient of the test loss; D_j: gradient of the loss of training sample j; K = G (x) A of the layer, from one pass over the
 * training samples (natgrad.h, section 13). A positive score: a small step along -(K + lambda I)^-1 D_j lowers the test loss. Only
 * layers have curvature; norms are left out. */
#ifndef SCORES_H
#define SCORES_H

#include "feed.h"
#include "natgrad.h"

typedef struct scores_how {
  int64_t test; /* index of the test sample; -1: use the mean loss of all test samples */
  bool self;    /* D = D_j, so a score is the influence of a sample on its own loss */
  /* replace the eigenvalues of K by second moments of the gradients of samples in the eigenbases (EKFAC) */
  bool ekfac;
  bool
      empirical; /* compute K with the labels of the data; false: with labels drawn from the network's output */
  double
      damping; /* damping lambda; below 0: 0.1 times the mean eigenvalue of K of each layer, as kronfluence */
} scores_how;

typedef struct scored_sample {
  int32_t row, label; /* row in the training data */
  double score;
} scored_sample;

/* Compute the scores of all readable training samples: *count elements of out [f->d->train.n], in the order of the
 * data. `s`: settings of the run; `net`: trained, with memory for a batch of `f`. CLI_BAD: reported. */
int scores_compute(ng_context *ctx, const scores_how *how, const settings *s, bool reconstructs,
                   feed *f, nn *net, ng_pool *pool, scored_sample *out, int32_t *count);
/* Sort by score, the largest first; equal scores by row. */
void scores_sort(scored_sample *list, int32_t count);

#endif
