/* feed.h: the batches of training and test samples of a run, in order. */
#ifndef FEED_H
#define FEED_H

#include "data/images.h"
#include "mix.h"
#include "ranks.h"
#include "train.h"

typedef struct feed {
  const data_set *d;
  const data_split *test; /* the test split, or the validation split; may be empty */
  data_transform how;     /* normalisation and augmentation of training samples */
  ng_pool *pool;
  int32_t batch; /* number of samples of a batch on this rank; may be 0 */
  /* number of samples of a batch on all ranks; index of this rank's first sample in the batch */
  int64_t whole_batch, first;
  int32_t capacity;  /* number of samples for which the arrays have memory, at least 1 */
  int64_t acc_iters; /* micro-batches of a step */
  /* number of steps of an epoch; the samples of an incomplete last batch are left out */
  int64_t per_epoch;
  int32_t *order;  /* permutation of the training samples in the epoch `ordered` */
  int64_t ordered; /* epoch of `order`; -1: none */
  /* the current batch: inputs, labels [samples, data_count_labels], */
  float *x;
  int32_t *labels;
  /* row of each sample in the data set; the random draws of `mix` use it as a seed */
  int32_t *rows;
  /* For image sets: threads decode images in advance, up to the end of the epoch. */
  image_loader *loader;
  uint8_t *spare; /* buffer for an image that replaces an unreadable one */
  /* index of the next sample to take; index of the next sample to request; -1: none */
  int64_t next_taken, next_request;
  mix mix; /* mixup and erasing; mix.targets, if not NULL, replaces the labels */
} feed;

/* CLI_BAD, reported: the batch exceeds the training split, or the data has no images to augment. ranks = NULL: one
 * rank. `reconstructs`: inputs stay in [0, 1], without normalisation. */
int feed_create(const settings *s, const data_set *d, const run_ranks *ranks, bool reconstructs,
                ng_pool *pool, feed *out);
void feed_free(feed *f);
/* Fill micro-batch `micro` (0 to acc_iters - 1) of step `step` (from 0). An unreadable image is reported once, and
 * replaced by the next image in the order of the epoch. CLI_BAD, reported: too many images are unreadable. */
int feed_fill_train(feed *f, int64_t step, int64_t micro);
/* Fill the samples [first, first + count) of the test split, count <= capacity. Unreadable images are left out: *good
 * is the number of samples. CLI_BAD as for feed_fill_train. */
int feed_fill_test(feed *f, int32_t first, int32_t count, int32_t *good);

/* Evaluate the samples [first, end) of the test split: add the sum of losses, the number of correct samples and the
 * number of readable samples to `sum`. `reconstructs`: the target is the input. CLI_BAD as for feed_fill_train. */
int feed_evaluate(feed *f, nn *net, bool reconstructs, int32_t first, int32_t end, double sum[3]);

#endif
