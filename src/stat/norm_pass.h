/* norm_pass.h: shared by the passes over a norm layer's arrays: norm_sums.c (sums of each sample,
 * moments) and norm_products.c (both of a batch norm at once).
 *
 * Both arrays go through tiles of rows of channels, read in place if possible. f32 over blocks of
 * rows, double between them. Threads take samples, or pieces of a batch, one by one, so that no
 * thread waits for a slow one. */
#ifndef NG_NORM_PASS_H
#define NG_NORM_PASS_H

#include <stdatomic.h>

#include "stat/norm_sums.h"

/* Rows summed in f32; pieces of a batch; rows added together. */
enum { NG_NORM_BLOCK = 64, NG_NORM_PIECES = 16, NG_NORM_TOGETHER = 4 };

/* Scratch of one thread or one piece. */
typedef struct ng_norm_part {
  double *sum;             /* [2 C] */
  double *all, *products;  /* [2 C], [3 C]: of all samples of a piece, ng_norm_products only */
  float *x, *g;            /* tiles */
  float *s, *q, *t, *u;    /* [C] of a block */
  float *shift, *mean, *r; /* [C]: of this sample of a group norm */
} ng_norm_part;

/* Of the batch: mean in double and f32, 1 / sqrt(var + eps). */
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
  _Atomic int32_t next; /* the next free piece */
};

/* Run all pieces; the number of threads depends on the number of samples. */
void ng_norm_share_out(ng_context *ctx, ng_norm_job *j, int64_t samples);

/* Whether the moments are the moments of the batch: a batch norm with raw input. */
bool ng_norm_of_batch(const ng_norm_of *k);
/* 1 / sqrt(var + eps), where rounding may have made var negative; NaN stays. */
double ng_norm_root(double var, double eps);

/* Rows of a tile: 32 KiB, at most a block, a multiple of NG_NORM_TOGETHER. */
int64_t ng_norm_tile_rows(int64_t channels);
/* Rows [first, first + count) of sample n: in place, or in `to`. */
const float *ng_norm_rows(const ng_view *v, int64_t n, int64_t first, int64_t count, float *to,
                          int64_t *stride);
/* Add sum (x - shift) and sum (x - shift)^2 of a sample to b->sum. */
void ng_norm_sample_moments(ng_norm_part *b, const ng_view *x, int64_t n, const float *shift);

#endif
