/* average.h: the mean of a run's weights over its last part (stochastic weight averaging, Izmailov et al. 2018, arXiv
 * 1803.05407; the wrapper SWA of EFCP).
 *
 *   from step S = average_weights epochs on, after every step s > S with s divisible by average_every
 *       n <- n + 1,  mean <- mean + (w - mean) / n
 *   lr is average_lr from step S on, if that is given
 *
 * At the end of the run the network takes the mean, its norms' running statistics become the means of one pass over the
 * training data (batch i keeps i / (i + 1) of them), it is tested, and written to DIR/average.safetensors.  While the run
 * lasts, mean and n are a part of its checkpoints.  Every rank keeps them: all have the same weights. */
#ifndef AVERAGE_H
#define AVERAGE_H

#include "nn/nn.h"
#include "ranks.h"
#include "settings.h"

typedef struct average {
  int64_t start, every; /* S; steps */
  int64_t count;        /* n */
  int64_t weights;
  float *mean; /* [weights]; NULL: none is kept */
} average;

/* CLI_BAD, told: no memory. */
int average_create(const settings *s, const nn *net, int64_t per_epoch, average *out);
void average_free(average *a);
void average_add(average *a, const nn *net, int64_t step); /* `step` steps are done */
/* lr of step `step`, the first is 0, where the schedule says `lr`. */
double average_lr(const settings *s, const average *a, int64_t step, double lr);

bool average_carries(const average *a);           /* does a checkpoint need the mean? */
int average_tell(average *a, const run_ranks *k); /* rank 0's, to all; collective */
void average_take(const average *a, nn *net);     /* the network's weights become the mean */

#endif
