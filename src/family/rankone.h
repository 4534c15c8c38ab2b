/* rankone.h: the state of a rank-one block, shared by rankone.c (geometry, memory, PD, state) and
 * rankone_stats.c (mean vectors). */
#ifndef NG_RANKONE_H
#define NG_RANKONE_H

#include "family/family.h"

enum { NG_MEAN_A = 0, NG_MEAN_G = 1 };

typedef struct ng_mean {
  int64_t
      n; /* 0: absent; A: inputs x kernel offsets, published order, and a 1 for the bias; G: outputs */
  ng_conv conv;  /* at the declared size; each observation has its own size */
  ng_stat *stat; /* NULL: absent */
} ng_mean;

/* Of one group: <a, a>, <g, g>, |D|^2, s = g' D a and the coefficient c = s / (alpha beta +
 * lambda); sides = input: beta 1, s = |D a|^2, c = 1 / (alpha + lambda). And the share of the bias
 * in each sum. */
typedef struct ng_rank {
  double alpha, beta, d2, s, c;
  double bias_alpha, bias_d2, bias_s;
} ng_rank;

typedef struct ng_rankone {
  int64_t groups, p, q; /* of a group: columns of the weight, outputs */
  ng_mean side[2];
  ng_rank *rank; /* [groups] */
  double *t;     /* sides = input: [outputs] D a, and the same in f32; otherwise NULL */
  float *along;
  bool none;     /* sides = none: no vectors */
  double lambda; /* divisor of the step: the damping; sides = none: and |D|^2 */
  bool wide;     /* this step in double: its two terms nearly cancel */
} ng_rankone;

static inline ng_rankone *ng_rankone_of(const ng_block *b) { return b->state; }
/* The running average of a side. */
static inline const float *ng_rankone_mean(const ng_rankone *k, int side) {
  return k->side[side].stat->part->average;
}

ng_status ng_rankone_observe(ng_block *b, const ng_obs *o);
int64_t ng_rankone_room(const ng_block *b, const ng_obs *o);
int64_t ng_rankone_scratch(const ng_block *b); /* doubles, for the declared image */

#endif
