/* feed.h: the training and test batches of a run, in order. */
#ifndef FEED_H
#define FEED_H

#include "data/images.h"
#include "mix.h"
#include "ranks.h"
#include "train.h"

typedef struct feed {
  const data_set *d;
  const data_split *test; /* the test or validation split; may be empty */
  data_transform how;
  ng_pool *pool;
  int32_t batch;        /* samples of a batch on this rank, may be 0 */
  int64_t whole, first; /* samples of the whole batch; the first of this rank */
  int32_t capacity;     /* samples that the arrays hold, at least 1 */
  int64_t acc_iters;    /* micro-batches of a step */
  int64_t per_epoch;    /* complete steps of an epoch; the remaining samples are left out */
  int32_t *order;       /* the permutation of the epoch `ordered` */
  int64_t ordered;
  /* the current batch */
  float *x;
  int32_t *labels;
  int32_t *rows; /* rows in the source, for the draws of `mix` */
  /* Images are decoded ahead, up to the end of the epoch. */
  image_loader *loader;
  uint8_t *spare; /* buffer for a replacement image */
  int64_t next_taken,
      next_asked; /* samples of this rank in the epoch `ordered`; -1: none requested */
  mix mix;        /* mix.targets replaces the labels; NULL without mixup */
} feed;

/* Return CLI_BAD after a message if the batch exceeds the training split, or augmentation has no images. ranks
 * NULL: one rank. `reconstructs`: values stay in [0, 1]. */
int feed_create(const settings *s, const data_set *d, const run_ranks *ranks, bool reconstructs,
                ng_pool *pool, feed *out);
void feed_free(feed *f);
/* Fill micro-batch 0 .. acc_iters - 1 of step 0, 1, .... An unreadable image is reported once and replaced by the next
 * image in the order of the epoch. CLI_BAD after a message: this process has found too many unreadable images. */
int feed_fill_train(feed *f, int64_t step, int64_t micro);
/* Fill samples first .. first + count of the test split, count <= capacity; the *good readable samples come first,
 * in order. CLI_BAD as feed_fill_train. */
int feed_fill_test(feed *f, int32_t first, int32_t count, int32_t *good);

/* Evaluate samples first .. end of the test split: add the sum of losses, correct and readable samples to `sum`.
 * `reconstructs`: the target is the input. CLI_BAD as feed_fill_train. */
int feed_evaluate(feed *f, nn *net, bool reconstructs, int32_t first, int32_t end, double sum[3]);

#endif
