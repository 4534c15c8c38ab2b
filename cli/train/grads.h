/* grads.h: the mean gradient of a step over micro-batches and ranks.
 *
 * Gradients are summed over ranks in buckets: ranges of parameters, from last to first, of at most `cap` bytes (a
 * larger parameter has its own bucket). A bucket is posted as soon as the backward pass has computed its gradients;
 * grads_end waits for all buckets. The ranges depend on the network and on `cap` only, so all ranks post the same sums
 * in the same order. Each element is summed on its own, so the ranges do not change the bits of results.
 *
 * All ranks run the backward pass, even if their loss is not finite. A rank that cannot run the pass aborts. */
#ifndef GRADS_H
#define GRADS_H

#include "nn/nn.h"
#include "ranks.h"

typedef struct grad_bucket {
  int first;           /* index of the bucket's first parameter */
  int64_t from, count; /* range [from, from + count) of the bucket in grads.sum */
  ranks_request request;
} grad_bucket;

typedef struct grads {
  nn *net;
  const run_ranks *ranks;
  int64_t batches;
  double share; /* this rank's fraction of the samples of a batch */
  /* [nn_count_weights] sum of gradients; NULL: one micro-batch on one rank, so no sum is needed */
  float *sum;
  int64_t batch;
  /* parameters from number `added` on have added their gradient of the current micro-batch to `sum` */
  int added;
  int64_t at;        /* the offset of parameter `added` in `sum` */
  int buckets;       /* number of buckets; 0 on one rank */
  grad_bucket *list; /* the buckets, in the order of posting */
  /* number of buckets of this step that are posted; number of buckets that are complete */
  int posted, waited;
} grads;

/* Register with the backward pass of `net`, after nn_prepare. CLI_BAD, reported: there is no memory. */
int grads_create(nn *net, const run_ranks *ranks, int64_t batches, double share, double cap,
                 grads *out);
void grads_free(grads *g);
/* Call this before the backward pass of each micro-batch; batch 0 starts a new step. */
void grads_begin(grads *g, int64_t batch);
/* After the last backward pass of a step, write the mean gradient into the network. Collective; CLI_BAD: reported. */
int grads_end(grads *g);

#endif
