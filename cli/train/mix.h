/* mix.h: mix a batch with the previous batch, and erase rectangles, after normalisation and augmentation of the
 * samples: mixup (Zhang et al. 2018, arXiv 1710.09412, in the variants of Osawa et al. 2019) and random erasing (Zhong
 * et al. 2017, arXiv 1708.04896), as in chainerkfac.
 *
 *   mixup     each sample n draws l ~ Beta(alpha, alpha), l <- max(l, 1 - l);
 *             x_n <- l x_n + (1 - l) x'_n,  t_n <- l t_n + (1 - l) t'_n
 *             x_n, t_n: image and target of sample n; x', t': images and targets of the previous batch, before mixing,
 *             or with running mixup after mixing and erasing. The first batch is not mixed.
 *   erasing   with probability erase_rate, set a rectangle to 0: its area is U(area_low, area_high) of the image, its
 *             ratio of sides U(aspect_low, 1) or the inverse, its position uniform
 *
 * Random draws depend on (seed, epoch, sample) only. A checkpoint contains the previous batch of all ranks. Rank r
 * always has the same sample numbers of a batch, so the data have the same bits for any number of ranks. */
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
  int32_t batch;              /* number of samples of a batch on this rank */
  bool is_started;            /* there is a previous batch */
  float *targets;             /* [batch, classes] of the current batch; NULL without mixup */
  float *last, *last_targets; /* the previous batch: [batch, h, w, c], [batch, classes] */
} mix;

/* CLI_BAD, reported: erasing without images, or mixup without labels (`reconstructs`). ranks = NULL: one rank. */
int mix_create(const settings *s, const data_set *d, const run_ranks *ranks, bool reconstructs,
               mix *out);
void mix_free(mix *m);

/* Mix and erase x [batch, h, w, c]. rows [batch]: the samples' rows in the data set, which seed the random draws. */
void mix_batch(mix *m, uint32_t epoch, const int32_t *rows, const int32_t *labels, float *x);

/* Draw for one sample. mix_draw_weight: its weight l, 1/2 to 1; mix_draw_erased_box: its rectangle, empty if not erased. */
typedef struct mix_box {
  int64_t top, left, height, width;
} mix_box;
double mix_draw_weight(double alpha, uint64_t seed, uint32_t epoch, int32_t row);
mix_box mix_draw_erased_box(const settings *s, uint32_t epoch, int32_t row, int64_t height,
                            int64_t width);

/* Return true if a checkpoint must contain the previous batch. */
bool mix_has_previous(const mix *m);
/* Allocate t[0] for images and t[1] for targets of the previous batch of all ranks; without mixup, they are empty. */
void mix_create_tensors(const mix *m, ngio_tensor t[2]);
void mix_free_tensors(const ngio_tensor t[2]);
/* Collective; CLI_BAD: reported. mix_gather collects the previous batch of all ranks in the tensors t; mix_scatter
 * sends each rank its samples from the tensors of rank 0. */
int mix_gather(const mix *m, ngio_tensor t[2]);
int mix_scatter(mix *m, const ngio_tensor t[2]);

#endif
