/* average.h: the mean of a run's weights over its last epochs (stochastic weight averaging, Izmailov et al. 2018, arXiv
 * 1803.05407; SWA in EFCP).
 *
 *   S = average_weights epochs, in steps. After every step s > S that is divisible by average_every:
 *     n <- n + 1,  mean <- mean + (w - mean) / n
 *   From step S on, the learning rate is average_lr, if given.
 *
 * At the end of the run, the mean replaces the weights of the network. One pass over the training data computes the
 * running statistics of its norms (in batch i, the old value has the weight i / (i + 1)). Then the network is tested
 * and written to DIR/average.safetensors. Checkpoints contain mean and n. All ranks have the same weights, so each rank
 * computes the mean itself. */
#ifndef AVERAGE_H
#define AVERAGE_H

#include "nn/nn.h"
#include "ranks.h"
#include "settings.h"

typedef struct average {
  /* first step whose weights are averaged (S); steps between averaged weights */
  int64_t start, every;
  int64_t count; /* n */
  int64_t weights;
  float *mean; /* [weights]; NULL: weights are not averaged */
} average;

/* CLI_BAD, reported: there is no memory. */
int average_create(const settings *s, const nn *net, int64_t per_epoch, average *out);
void average_free(average *a);
/* call after each step: step = 1, 2, ... */
void average_add_weights(average *a, const nn *net, int64_t step);
/* Return the learning rate of step `step` (from 0): average_lr if given and if the averaging has begun, else `lr`. */
double average_select_lr(const settings *s, const average *a, int64_t step, double lr);

/* broadcast the averaged weights from rank 0; collective */
int average_broadcast(average *a, const run_ranks *k);
void average_copy_to_network(const average *a,
                             nn *net); /* set the weights of the network to the mean */

#endif
