/* average.h: the mean of a run's weights over its last epochs (stochastic weight averaging, Izmailov et al. 2018,
 * arXiv 1803.05407; SWA in EFCP).
 *
 *   from step S = average_weights epochs on, after every step s > S with s divisible by average_every
 *       n <- n + 1,  mean <- mean + (w - mean) / n
 *   the learning rate is average_lr from step S on, if given
 *
 * At the end of the run the network takes the mean. One pass over the training data computes the running
 * statistics of its norms (batch i keeps i / (i + 1) of the old value). The network is then tested and written to
 * DIR/average.safetensors. Checkpoints contain mean and n. All ranks have the same weights, so each computes the
 * mean itself. */
#ifndef AVERAGE_H
#define AVERAGE_H

#include "nn/nn.h"
#include "ranks.h"
#include "settings.h"

typedef struct average {
  int64_t start, every; /* S; steps */
  int64_t count;        /* n; checkpoints contain the mean if n > 0 */
  int64_t weights;
  float *mean; /* [weights]; NULL: not averaged */
} average;

/* Return CLI_BAD after a message if memory is short. */
int average_create(const settings *s, const nn *net, int64_t per_epoch, average *out);
void average_free(average *a);
void average_add(average *a, const nn *net, int64_t step); /* after `step` steps */
/* Return the learning rate of step `step` (from 0): s->average_lr while averaging, if set; else the schedule's `lr`. */
double average_select_lr(const settings *s, const average *a, int64_t step, double lr);

int average_share(average *a, const run_ranks *k); /* Send the mean of rank 0 to all; collective. */
void average_apply(const average *a, nn *net);     /* Copy the mean into the network. */

#endif
