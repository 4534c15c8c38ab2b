/* norm.h: the state of a norm block, shared by norm.c and norm_stats.c (the statistic).
 *
 * C is the number of channels. q_i = [dgamma_i; dbeta_i] is the gradient of sample i (stat/norm_sums.h): first
 * all gammas, then all betas, or the one of both that the layer has; `width` numbers.
 *
 *     F = (1/B) sum_i q_i q_i'      full      [width, width]
 *                                   unit      the entries of F within a channel, three vectors of C:
 *                                             [gamma gamma | beta beta | gamma beta]
 *                                   diagonal  [gamma gamma | beta beta] */
#ifndef NG_NORM_H
#define NG_NORM_H

#include "family/family.h"

/* Inputs that wait for their output gradient, the latest last: the gradients of a layer that runs several times
 * in a micro-batch arrive in the opposite order. */
enum { NG_NORM_WAITING = 8 };

/* `says` of a full block: the rung, whether R is good, the damping. */
enum { NG_NORM_RUNG, NG_NORM_GOOD, NG_NORM_DAMPED, NG_NORM_SAYS };

typedef struct ng_norm {
  ng_norm_of of;
  int64_t width;
  bool full;
  ng_view shown[NG_NORM_WAITING];
  int32_t waiting;
  int64_t batch; /* the micro-batch of these inputs */
  double shift;  /* damping_leak: to be added to the average */
  int32_t rung;  /* unit, diagonal: of the last measure, and its damping */
  double damped;
  float *says; /* full: results of the owner */
  void *R;     /* (F + d I)^-1, ng_sym order; f32, or f64 where F is f64 */
  bool good;
  int info[2];
} ng_norm;

static inline ng_norm *ng_norm_of_block(const ng_block *b) { return b->state; }

ng_status ng_norm_observe(ng_block *b, const ng_obs *o);
int64_t ng_norm_scratch(const ng_block *b); /* bytes */

#endif
