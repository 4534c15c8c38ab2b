/* mix.h: augmentation of whole batches, after normalisation, shift and mirror: mixup with the previous batch
 * (Zhang et al. 2018, arXiv 1710.09412, in the variants of Osawa et al. 2019) and random erasing (Zhong et al.
 * 2017, arXiv 1708.04896), as in chainerkfac.
 *
 *   mixup     every sample n draws l ~ Beta(alpha, alpha), l <- max(l, 1 - l);
 *             x_n <- l x_n + (1 - l) x'_n,  t_n <- l t_n + (1 - l) t'_n
 *             x', t': sample n of the previous batch, before mixing, or with running mixup after mixing and erasing. The first batch is not mixed
 *   erasing   with probability `rate` a rectangle of zeros: area U(low, high) of the image, ratio of the sides U(aspect low, 1) or its inverse, at a uniform position
 *
 * Draws depend on (seed, epoch, sample) only. The previous batch is part of a checkpoint, as the batch of all
 * ranks; rank r holds the same samples of every batch, so the data are the same bits for any number of ranks. */
#ifndef MIX_H
#define MIX_H

#include "data/data.h"
#include "ranks.h"
#include "safetensors.h"
#include "settings.h"

typedef struct mix {
  const settings *s;
  run_ranks ranks;
  int64_t height, width, channels, classes;
  int32_t batch;              /* samples of this rank */
  bool began;                 /* there is a previous batch */
  float *targets;             /* [batch, classes] of the current batch; NULL without mixup */
  float *last, *last_targets; /* the previous batch: [batch, h, w, c], [batch, classes] */
} mix;

/* CLI_BAD after a message: no images to erase from, no labels to mix (`reconstructs`). ranks NULL: one rank. */
int mix_create(const settings *s, const data_set *d, const run_ranks *ranks, bool reconstructs,
               mix *out);
void mix_free(mix *m);

/* Mix and erase x [batch, h, w, c]; rows: the rows of the source, for the draws. */
void mix_batch(mix *m, uint32_t epoch, const int32_t *rows, const int32_t *labels, float *x);

/* Random draws: weight of the newer sample, 1/2 to 1; rectangle, empty if nothing is erased. */
typedef struct mix_box {
  int64_t top, left, height, width;
} mix_box;
double mix_weight(double alpha, uint64_t seed, uint32_t epoch, int32_t row);
mix_box mix_erased(const settings *s, uint32_t epoch, int32_t row, int64_t height, int64_t width);

/* Does a checkpoint need the previous batch? */
bool mix_carries(const mix *m);
/* The previous batch of all ranks, images and targets, with memory that mix_drop frees; without a batch empty. */
void mix_tensors(const mix *m, ngio_tensor t[2]);
void mix_drop(const ngio_tensor t[2]);
/* Collective, CLI_BAD after a message: make the tensors from the parts of all ranks; give every rank its part of
 * the tensors of rank 0. */
int mix_gather(const mix *m, ngio_tensor t[2]);
int mix_spread(mix *m, const ngio_tensor t[2]);

#endif
