/* rankone.h: the state of a rank-one block, for rankone.c (memory, PD) and rankone_stats.c (mean vectors). */
#ifndef NG_RANKONE_H
#define NG_RANKONE_H

#include "family/family.h"

enum { NG_MEAN_A = 0, NG_MEAN_G = 1 };

typedef struct ng_mean {
  /* Length of the mean vector; 0: none. A: (input channel, kernel offset), then a 1 for the bias; G: outputs. */
  int64_t length;
  ng_conv conv;  /* geometry at the declared size; ng_obs_conv sets the size of an observation */
  ng_stat *stat; /* NULL: no mean vector */
} ng_mean;

/* Numbers of one group: alpha = <a, a>, beta = <g, g>, d2 = |D|^2, s = g' D a, c = s / (alpha beta + lambda).
 * sides = input: beta = 1, s = |D a|^2, c = 1 / (alpha + lambda). bias_*: the bias's part of alpha, d2, s. */
typedef struct ng_rankone_group {
  double alpha, beta, d2, s, c;
  double bias_alpha, bias_d2, bias_s;
} ng_rankone_group;

typedef struct ng_rankone {
  int64_t groups, p, q; /* p: columns of the weight; q: outputs of one group */
  ng_mean side[2];
  ng_rankone_group *group; /* [groups] */
  double *
      norms; /* [2 groups + 1, 3] row sums: |a|^2, |g|^2 of each group, then of the 1 of the bias */
  double *t, *t_sums; /* sides = input: [outputs] t = D a, [groups, 3] its sums; otherwise NULL */
  bool has_no_sides;  /* sides = none: no mean vectors */
  double lambda;      /* divisor of this step: the damping; sides = none: damping + |D|^2 */
  bool uses_double;   /* emit PD of this step in double (rankone.c: CANCELLATION) */
} ng_rankone;

static inline ng_rankone *ng_rankone_of(const ng_block *b) { return b->state; }
/* Return the mean vector of a side, averaged over steps. */
static inline const float *ng_rankone_mean(const ng_rankone *k, int side) {
  return k->side[side].stat->part->average;
}

ng_status ng_rankone_observe(ng_block *b, const ng_obs *o);
int64_t ng_rankone_room(const ng_block *b, const ng_obs *o);
int64_t ng_rankone_scratch(const ng_block *b); /* doubles, for the declared image */

#endif
