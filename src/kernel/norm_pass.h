/* norm_pass.h: functions that norm_sums.c (sums of each sample) and norm_products.c (products of the sums of a batch
 * norm) share. "Moments" are the mean and 1 / sqrt(variance + eps) of each channel.
 *
 * Both files read inputs and output gradients in tiles of rows; a row has all channels of one position. They add up to
 * NG_NORM_BLOCK rows in f32, and these blocks in double.
 *
 * Scratch contains the moments of a batch, then an ng_norm_part for each piece. */
#ifndef NG_NORM_PASS_H
#define NG_NORM_PASS_H

#include "kernel/pixels.h"

/* BLOCK: rows that are added in f32; PIECES: largest number of pieces of a batch; UNROLL: rows of a loop iteration. */
enum { NG_NORM_BLOCK = 64, NG_NORM_PIECES = 16, NG_NORM_UNROLL = 4 };

/* Scratch of one piece; C is the number of channels. */
typedef struct ng_norm_part {
  double *sum;            /* [2 C] sums of a sample */
  double *all, *products; /* [2 C], [3 C] sums of a piece (norm_products.c) */
  float *x, *g;           /* tiles of inputs and of output gradients */
  float *s, *q, *t, *u;   /* [C] sums over a block of rows */
  float *shift, *mean,
      *r; /* [C] moments of a sample of a group norm; the exact mean is mean + shift */
} ng_norm_part;

/* Moments of a batch; shift is the mean, rounded to f32. */
typedef struct ng_norm_batch {
  double *mean, *r; /* [C] */
  float *shift;     /* [C] */
} ng_norm_batch;

ng_norm_part ng_norm_part_in(void *scratch, int64_t C, int32_t i);
ng_norm_batch ng_norm_batch_in(void *scratch, int64_t C);

/* The work on samples of a batch, cut into pieces of samples. */
typedef struct ng_norm_job {
  const ng_norm_sum *k;
  void *scratch;
  int64_t from, count; /* samples [from, from + count) have rows of q, or are summed */
  float *q;            /* [count, ldq] gradients of the samples (norm_sums.c) */
  int64_t ldq;
  int32_t pieces;
} ng_norm_job;

/* norm_products.c: compute the moments of a batch over all samples of k->x, and store them in `scratch`. */
void ng_norm_batch_moments(ng_queue *q, const ng_norm_sum *k, void *scratch);
/* norm_products.c: sum_norm_squares for a batch norm with gamma whose observed input is not normalised. */
void ng_norm_sum_products(ng_queue *q, const ng_norm_sum *k, void *scratch);

/* Return whether k is a batch norm whose observed input is not normalised, so that it needs the moments of a batch. */
bool ng_norm_is_raw_batch(const ng_norm_layer *k);
/* Return 1 / sqrt(max(var, 0) + eps): rounding may have made var negative. NaN stays NaN. */
double ng_norm_inverse_std(double var, double eps);

/* Return the number of rows of a tile of about 32 KiB: a multiple of NG_NORM_UNROLL, at most NG_NORM_BLOCK. */
int64_t ng_norm_tile_rows(int64_t channels);
/* Return positions [first, first + count) of sample n as rows of f32 at distance *stride: the memory of the view if its
 * layout allows it, otherwise a copy in `to`. */
const float *ng_norm_load_rows(const ng_view *v, int64_t n, int64_t first, int64_t count, float *to,
                               int64_t *stride);
/* Add sum (x - shift) and sum (x - shift)^2 over the positions of sample n to b->sum. */
void ng_norm_sample_moments(ng_norm_part *b, const ng_view *x, int64_t n, const float *shift);

#endif
