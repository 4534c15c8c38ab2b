/* norm_pass.h: shared by norm_sums.c (sums of each sample; moments) and norm_products.c (products of these sums and
 * moments of a batch norm in one pass).
 *
 * Inputs and output gradients are read in tiles of rows of channels, in place if possible. Sums are in f32 over blocks
 * of rows, in double between blocks. A free thread takes the next sample or piece, so no thread waits for a slow
 * one.
 *
 * Scratch has the moments of a batch, then an ng_norm_part for each thread or piece. */
#ifndef NG_NORM_PASS_H
#define NG_NORM_PASS_H

#include <stdatomic.h>

#include "kernel/pixels.h"

/* BLOCK: rows summed in f32; PIECES: largest number of pieces of a batch; TOGETHER: rows per loop iteration. */
enum { NG_NORM_BLOCK = 64, NG_NORM_PIECES = 16, NG_NORM_UNROLL = 4 };

/* Scratch of one thread or one piece. */
typedef struct ng_norm_part {
  double *sum;             /* [2 C] */
  double *all, *products;  /* [2 C], [3 C]: sums of a piece; for ng_norm_products */
  float *x, *g;            /* tiles */
  float *s, *q, *t, *u;    /* [C]: sums over a block of rows */
  float *shift, *mean, *r; /* [C]: moments of one sample of a group norm */
} ng_norm_part;

/* Moments of the batch: mean (double, rounded to f32 in shift) and r = 1 / sqrt(var + eps). */
typedef struct ng_norm_batch {
  double *mean, *r; /* [C] */
  float *shift;     /* [C] */
} ng_norm_batch;

ng_norm_part ng_norm_part_in(void *scratch, int64_t C, int32_t i);
ng_norm_batch ng_norm_batch_in(void *scratch, int64_t C);

typedef struct ng_norm_job ng_norm_job;
struct ng_norm_job {
  const ng_norm_layer *layer;
  const ng_view *x, *g;
  void *scratch;
  int64_t from, count;
  float *q;
  int64_t ldq;
  int32_t pieces;
  void (*piece)(const ng_norm_job *j, int32_t i, int32_t thread);
  _Atomic int32_t next; /* the next free piece */
};

/* Run all pieces of a job. The number of threads depends on the size of `samples` samples. */
void ng_norm_run_pieces(ng_queue *q, ng_norm_job *j, int64_t samples);

/* norm_products.c: compute mean and variance of each channel over all samples of k->x, and store them in `scratch`. */
void ng_norm_moments(ng_queue *q, const ng_norm_sum *k, void *scratch);
/* norm_products.c: compute norm_squares of a batch norm with gamma and raw input, moments and products in one pass. */
void ng_norm_products(ng_queue *q, const ng_norm_sum *k, void *scratch);

/* Return whether the moments belong to the whole batch: k is a batch norm with raw input. */
bool ng_norm_is_raw_batch(const ng_norm_layer *k);
/* Return 1 / sqrt(max(var, 0) + eps): rounding may have made var negative. NaN stays NaN. */
double ng_norm_inverse_std(double var, double eps);

/* Return the rows of a tile of 32 KiB: a multiple of NG_NORM_UNROLL, at most NG_NORM_BLOCK. */
int64_t ng_norm_tile_rows(int64_t channels);
/* Return rows [first, first + count) of sample n as f32, in place if possible, otherwise converted to `to`. */
const float *ng_norm_rows(const ng_view *v, int64_t n, int64_t first, int64_t count, float *to,
                          int64_t *stride);
/* Add sum (x - shift) and sum (x - shift)^2 over the positions of sample n to b->sum. */
void ng_norm_sample_moments(ng_norm_part *b, const ng_view *x, int64_t n, const float *shift);

#endif
