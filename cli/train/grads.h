/* grads.h: the mean gradient of a step's batches over all ranks; each batch writes its own into the network.
 *
 * Over ranks it travels in buckets, each begun as soon as backward has made the gradients in it and waited for
 * before the step: parameters from the last to the first, one bucket as long as it has at most `cap` bytes
 * (a parameter that is larger has one of its own).  Cuts depend on the network and the cap alone, so all ranks
 * begin the same sums in the same order; every element is summed by itself, so no bit depends on them.
 *
 * All ranks go through backward, also one whose loss is not finite; one that cannot, gives up. */
#ifndef GRADS_H
#define GRADS_H

#include "nn/nn.h"
#include "ranks.h"

typedef struct grad_bucket {
  int first;           /* parameters from here to the bucket before it */
  int64_t from, count; /* of `sum` */
  ranks_request request;
} grad_bucket;

typedef struct grads {
  nn *net;
  const run_ranks *ranks;
  int64_t batches;
  double share; /* of this rank's samples among all */
  float *sum;   /* [nn_weights]; NULL with one batch on one rank, whose gradients are the mean */
  int64_t batch;
  int added;          /* parameters from here on are in the sum of the batch under way */
  int64_t at;         /* where they begin */
  int buckets;        /* 0 on one rank */
  grad_bucket *list;  /* in the order in which they leave */
  int posted, waited; /* of this step: the first so many */
} grads;

/* `net` is ready, and tells from now on what its backward has made.  CLI_BAD, told: no memory. */
int grads_create(nn *net, const run_ranks *ranks, int64_t batches, double share, double cap,
                 grads *out);
void grads_free(grads *g);
void grads_begin(grads *g, int64_t batch); /* before its backward; batch 0 begins a new step */
/* After the last backward of a step: the mean to the network.  Collective; CLI_BAD as ranks_wait. */
int grads_end(grads *g);

#endif
