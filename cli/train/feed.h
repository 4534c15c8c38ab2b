/* feed.h: batches of a run, in their order, filled on the pool. */
#ifndef FEED_H
#define FEED_H

#include "damaged.h"
#include "data/images.h"
#include "mix.h"
#include "ranks.h"
#include "train.h"

typedef struct feed {
  const data_set *d;
  const data_split *test; /* what a run is tested on; may be empty */
  data_how how;
  ng_pool *pool;
  int32_t batch;        /* samples of it that this rank has, or 0 ...     */
  int64_t whole, first; /* ... of so many, and the place of its first one */
  int32_t room;         /* samples that fit, at least 1 */
  int64_t acc_iters;    /* batches of a step */
  int64_t per_epoch;    /* whole steps of an epoch: what is left over is left out */
  int32_t *order;       /* of the epoch `ordered` */
  int64_t ordered;
  /* the batch that was filled last */
  float *x;
  int32_t *labels;
  int32_t *rows; /* of the source, for the draws of `mix` */
  /* Images: asked for ahead, up to the end of the epoch. */
  image_loader *loader;
  uint8_t *spare; /* one image, which another one is replaced by */
  int64_t next_taken,
      next_asked; /* this rank's samples of the epoch `ordered`; -1: nothing was asked */
  damaged damaged;
  bool alone;
  mix mix; /* mix.targets: in place of labels, NULL without mixup */
} feed;

/* CLI_BAD, told in one line: a batch larger than the training split, augmentation of what is no image.
 * ranks NULL: one.  `reconstructs`: the values stay in [0, 1]. */
int feed_create(const settings *s, const data_set *d, const run_ranks *ranks, bool reconstructs,
                ng_pool *pool, feed *out);
void feed_free(feed *f);
/* The batch 0 .. acc_iters - 1 of step 0, 1, ...  An image that cannot be read is noted and replaced by the
 * one after it in the order of the epoch.  One rank tells it at once: CLI_BAD, told: too many are no good.  Of
 * several each has its own until feed_agree. */
int feed_train(feed *f, int64_t step, int64_t micro);
/* Samples first .. first + count of the test split, count <= room; *good of them are there, in their order:
 * images that cannot be read are noted and left out.  CLI_BAD as above. */
int feed_test(feed *f, int32_t first, int32_t count, int32_t *good);
/* `found`: the sum of damaged.n_found over ranks; collective unless that is 0.  CLI_BAD as above, on all of them. */
int feed_agree(feed *f, const run_ranks *ranks, int64_t found);

#endif
