/* mix.h: what is done to a training batch after it was normalised, shifted and mirrored: mixup with
 * the batch before (Zhang et al. 2018, arXiv 1710.09412, in the forms of Osawa et al. 2019) and random
 * erasing (Zhong et al. 2017, arXiv 1708.04896), as chainerkfac has them.
 *
 *   mixup     every sample n draws l ~ Beta(alpha, alpha), l <- max(l, 1 - l);
 *             x_n <- l x_n + (1 - l) x'_n,  t_n <- l t_n + (1 - l) t'_n
 *             x', t': the batch before, sample by sample; as it was, or, running, as it was mixed (and
 *             erased: what is erased stays so in later mixes).  The first batch is not mixed.
 *   erasing   every sample with probability `rate` has a rectangle of zeros, its area U(low, high) of
 *             the image, its sides in the ratio U(aspect low, 1) or the inverse, anywhere inside
 *
 * Draws depend on (seed, epoch, sample) only; the batch before is the one thing that a run carries from
 * step to step, and is a part of its checkpoints.  Rank r of several has the same places of every batch, so what
 * it mixes is its part of what one rank would: bit for bit the same data.  A checkpoint has the whole batch. */
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
  int32_t batch;              /* this rank's samples */
  bool began;                 /* there is a batch before */
  float *targets;             /* [batch, classes] of the present batch; NULL without mixup */
  float *last, *last_targets; /* the batch before: [batch, h, w, c], [batch, classes] */
} mix;

/* CLI_BAD, told: no images to erase from, no labels to mix (`reconstructs`).  ranks NULL: one. */
int mix_create(const settings *s, const data_set *d, const run_ranks *ranks, bool reconstructs,
               mix *out);
void mix_free(mix *m);

/* x [batch, h, w, c], its labels, and which rows of the source they are. */
void mix_batch(mix *m, uint32_t epoch, const int32_t *rows, const int32_t *labels, float *x);

/* The draws.  Weight of the newer sample, 1/2 to 1; a rectangle, empty if nothing is erased. */
typedef struct mix_box {
  int64_t top, left, height, width;
} mix_box;
double mix_weight(double alpha, uint64_t seed, uint32_t epoch, int32_t row);
mix_box mix_erased(const settings *s, uint32_t epoch, int32_t row, int64_t height, int64_t width);

/* Does a checkpoint need the previous batch, as tensors of the whole batch: images of this shape, and targets?  CLI_BAD,
 * told. */
bool mix_carries(const mix *m);
void mix_shape(const mix *m, int64_t shape[4]);
int mix_checksums(const mix *m, int64_t crc[2]); /* CRC-32 of both; collective, as the next */
int mix_write(const mix *m, ngio_writer *w);     /* both, in this order; NULL on ranks but 0 */
int mix_read(mix *m, float *const whole[2]);     /* NULL on ranks but 0 */

#endif
