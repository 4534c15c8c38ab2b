/* norm_pass.h: what the passes over a norm layer's arrays share: norm_sums.c (sums of each sample, moments) and
 * norm_products.c (both of a batch norm at once).
 *
 * Both arrays go through tiles of rows of channels, read where they lie if they lie so.  f32 over blocks of
 * rows, double between them.  Threads take samples, or pieces of a batch, one by one, so that on a busy
 * machine nobody waits for all that a late one was given. */
#ifndef NG_NORM_PASS_H
#define NG_NORM_PASS_H

#include <stdatomic.h>

#include "stat/norm_sums.h"

/* Rows whose sums are f32; pieces of a batch; rows that are added together. */
enum { NG_NORM_BLOCK = 64, NG_NORM_PIECES = 16, NG_NORM_TOGETHER = 4 };

/* One thread's, or one piece's. */
typedef struct ng_norm_part {
  double *sum;             /* [2 C] */
  double *all, *products;  /* [2 C], [3 C]: of all samples of a piece, of ng_norm_products only */
  float *x, *g;            /* tiles */
  float *s, *q, *t, *u;    /* [C] of a block */
  float *shift, *mean, *r; /* [C]: of a group norm, of this sample */
} ng_norm_part;

/* The batch's: mean in double, the same as f32, 1 / sqrt(var + eps). */
typedef struct ng_norm_batch {
  double *mean, *r; /* [C] */
  float *shift;     /* [C] */
} ng_norm_batch;

ng_norm_part ng_norm_part_in(void *room, int64_t C, int32_t i);
ng_norm_batch ng_norm_batch_in(void *room, int64_t C);

typedef struct ng_norm_job ng_norm_job;
struct ng_norm_job {
  const ng_norm_of *k;
  const ng_view *x, *g;
  void *room;
  int64_t from, count;
  float *q;
  int64_t ldq;
  int32_t pieces;
  void (*piece)(const ng_norm_job *j, int32_t i, int32_t thread);
  _Atomic int32_t next; /* piece that nobody has */
};

/* Every piece, by as many threads as so many samples are worth. */
void ng_norm_share_out(ng_context *ctx, ng_norm_job *j, int64_t samples);

/* A raw batch norm: its moments are the batch's. */
bool ng_norm_of_batch(const ng_norm_of *k);
/* 1 / sqrt(var + eps).  Rounding may leave a little less than nothing; NaN stays. */
double ng_norm_root(double var, double eps);

/* Rows of a tile: 32 KiB, never more than a block, and whole groups of those that are added together. */
int64_t ng_norm_tile_rows(int64_t channels);
/* Rows [first, first + count) of sample n: where they lie, or in `to`. */
const float *ng_norm_rows(const ng_view *v, int64_t n, int64_t first, int64_t count, float *to,
                          int64_t *stride);
/* sum (x - shift), sum (x - shift)^2 of a sample, added to b->sum. */
void ng_norm_sample_moments(ng_norm_part *b, const ng_view *x, int64_t n, const float *shift);

#endif
