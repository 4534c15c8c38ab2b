/* feed.h: batches of a run, in their order, filled on the pool. */
#ifndef FEED_H
#define FEED_H

#include "mix.h"
#include "train.h"

typedef struct feed {
  const data_set *d;
  const data_split *test; /* what a run is tested on; may be empty */
  data_how how;
  ng_pool *pool;
  int32_t batch;
  int64_t acc_iters; /* batches of a step */
  int64_t per_epoch; /* whole steps of an epoch: what is left over is left out */
  int32_t *order;    /* of the epoch `ordered` */
  int64_t ordered;
  /* the batch that was filled last */
  float *x;
  int32_t *labels;
  int32_t *rows; /* of the source, for the draws of `mix` */
  mix mix;       /* mix.targets: in place of labels, NULL without mixup */
} feed;

/* CLI_BAD, told in one line: a batch larger than the training split, augmentation of what is no
 * image.  `reconstructs`: the values stay in [0, 1]. */
int feed_create(const settings *s, const data_set *d, bool reconstructs, ng_pool *pool, feed *out);
void feed_free(feed *f);
/* The batch 0 .. acc_iters - 1 of step 0, 1, ... */
void feed_train(feed *f, int64_t step, int64_t micro);
void feed_test(feed *f, int32_t first, int32_t count); /* count <= batch */

#endif
