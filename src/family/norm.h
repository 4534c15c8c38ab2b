/* norm.h: the state of a norm block, shared by norm.c and norm_stats.c (the statistic).
 *
 * C is the number of channels. q_i = [dgamma_i; dbeta_i] is the gradient of sample i (kernel/observed.h), `width`
 * numbers: C for gamma, then C for beta. In a layer without gamma or without beta, width = C.
 *
 *     F = (1/B) sum_i q_i q_i'      full      [width, width]
 *                                   unit      the entries of F within each channel, stored as three vectors of
 *                                             length C: [gamma gamma | beta beta | gamma beta]
 *                                   diagonal  [gamma gamma | beta beta] */
#ifndef NG_NORM_H
#define NG_NORM_H

#include "family/family.h"
#include "twosided/twosided.h"

/* The largest number of inputs that may wait for their output gradients. If a layer runs several times in a micro-batch,
 * its output gradients are observed in the opposite order of its inputs, so each belongs to the latest waiting input. */
enum { NG_NORM_WAITING = 8 };

/* Indices of ng_norm.solve_info: the rung of the last solve, 1 if R is good (else 0), the damping. */
enum { NG_NORM_RUNG, NG_NORM_GOOD, NG_NORM_DAMPING, NG_NORM_INFO_COUNT };

typedef struct ng_norm {
  ng_norm_layer layer;
  int64_t width;
  bool is_full, solves_units;             /* neither: diagonal */
  ng_view waiting_input[NG_NORM_WAITING]; /* inputs without output gradient, the latest last */
  int32_t waiting_count;                  /* number of inputs in `waiting_input` */
  int64_t batch;                          /* number of the micro-batch of these inputs */
  double shift;        /* damping_leak: damping of earlier solves, added to F at the next fold */
  int32_t rung;        /* unit, diagonal: highest rung of the last measure */
  double last_damping; /* unit, diagonal: damping of the last measure */
  float *solve_info;   /* full: [NG_NORM_INFO_COUNT], which the owner sends with the inverse R */
  ng_matrix side[2];   /* full: F with its damped inverse on the left, nothing on the right */
  ng_twosided both;
  ng_direction_sums *sums;
} ng_norm;

static inline ng_norm *ng_norm_of_block(const ng_block *b) { return b->state; }

ng_status ng_norm_observe(ng_block *b, const ng_obs *o);
int64_t ng_norm_scratch(const ng_block *b); /* bytes */

#endif
