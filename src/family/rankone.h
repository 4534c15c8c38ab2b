/* rankone.h: the state of a rank-one block, shared by rankone.c (geometry, memory, PD, state) and
 * rankone_stats.c (mean vectors). */
#ifndef NG_RANKONE_H
#define NG_RANKONE_H

#include "stat/average.h"

enum { NG_MEAN_A = 0, NG_MEAN_G = 1 };

/* How an observed array is read: element (sample, pixel, channel) is at
 * sample * by_sample + pixel * by_pixel + channel * by_channel.  Linear layers are images of one row
 * of positions; by_channel = 1 means channels last. */
typedef struct ng_box {
  int64_t channels, height, width;
  int64_t kernel[2], stride[2], padding[2], dilation[2], positions[2]; /* [vertical, horizontal] */
  int64_t offsets;                                                     /* kernel[0] kernel[1] */
  bool whole; /* one offset that sees every pixel once */
} ng_box;

typedef struct ng_mean {
  int64_t
      n; /* 0: not kept; A: inputs x kernel offsets, published order, and a 1 for the bias; G: outputs */
  float *mean, *sum; /* the running average; this step's sum */
  int finite;        /* whether `sum` is: left by the queue */
  ng_average average;
  ng_box box;
} ng_mean;

/* Of one group: <a, a>, <g, g>, |D|^2, s = g' D a and the coefficient c = s / (alpha beta + lambda);
 * sides = input: beta 1, s = |D a|^2, c = 1 / (alpha + lambda).  What the bias has of each sum. */
typedef struct ng_rank {
  double alpha, beta, d2, s, c;
  double bias_alpha, bias_d2, bias_s;
} ng_rank;

typedef struct ng_rankone {
  int64_t groups, p, q; /* of a group: columns of the weight, outputs */
  ng_mean side[2];
  ng_rank *rank; /* [groups] */
  double *t;     /* sides = input: [outputs] D a, and the same in f32; else NULL */
  float *along;
  bool none;     /* sides = none: no vectors at all */
  double lambda; /* what the step divides by: the damping; sides = none: and |D|^2 */
  bool wide;     /* this step in double: its two terms nearly cancel */
  double *scratch;
} ng_rankone;

static inline ng_rankone *ng_rankone_of(const ng_block *b) { return b->state; }

ng_status ng_rankone_observe(ng_block *b, const ng_obs *o);
void ng_rankone_weights(ng_block *b, double w[4], bool set);
void ng_rankone_scale(ng_block *b);
ng_status ng_rankone_fold(ng_block *b);
void ng_rankone_forget(ng_block *b);
int64_t ng_rankone_scratch(const ng_block *b); /* doubles */

#endif
