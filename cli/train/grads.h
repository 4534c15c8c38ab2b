/* grads.h: the mean gradient of a step over micro-batches and ranks.
 *
 * Gradients travel in buckets: parameters from last to first, each bucket at most `cap` bytes (a larger parameter has
 * its own). A bucket is sent as soon as the backward pass has computed its gradients; the step waits for all buckets.
 * The cuts depend on the network and the cap only, so all ranks start the same sums in the same order; each element is
 * summed by itself, so cuts change no bit.
 *
 * All ranks run the backward pass, even if their loss is not finite. A rank that cannot run the pass aborts. */
#ifndef GRADS_H
#define GRADS_H

#include "nn/nn.h"
#include "ranks.h"

typedef struct grad_bucket {
  int first;           /* first parameter of the bucket */
  int64_t from, count; /* the range [from, from + count) of grads.sum */
  ranks_request request;
} grad_bucket;

typedef struct grads {
  nn *net;
  const run_ranks *ranks;
  int64_t batches;
  double share; /* this rank's share of the samples */
  float *sum;   /* [nn_weights]; NULL for one batch on one rank */
  int64_t batch;
  int added;          /* parameters >= added of the current micro-batch are in `sum` */
  int64_t at;         /* offset of parameter `added` in `sum` */
  int buckets;        /* 0 on one rank */
  grad_bucket *list;  /* in the order of sending */
  int posted, waited; /* buckets of this step that were sent; that are complete */
} grads;

/* Register with the backward pass of `net`, after nn_ready. Return CLI_BAD after a message if memory is short. */
int grads_create(nn *net, const run_ranks *ranks, int64_t batches, double share, double cap,
                 grads *out);
void grads_free(grads *g);
/* Call before the backward pass of each micro-batch; batch 0 starts a new step. */
void grads_begin(grads *g, int64_t batch);
/* After the last backward pass of a step: write the mean into the network. Collective; CLI_BAD as ranks_wait. */
int grads_end(grads *g);

#endif
