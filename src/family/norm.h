/* norm.h: the state of a norm block, shared by norm.c (geometry, memory, state, PD of unit and diagonal
 * blocks), norm_stats.c (the statistic) and norm_full.c (blocks over all channels).
 *
 * With C channels, q_i = [dgamma_i; dbeta_i] the gradient of sample i (stat/norm_sums.h), all gammas first,
 * then all betas, or those that the layer has, `width` numbers:
 *
 *     F = (1/B) sum_i q_i q_i'      full      [width, width]
 *                                   unit      what F has of gamma and beta of one channel: vectors of C
 *                                             [gamma gamma | beta beta | gamma beta]
 *                                   diagonal  [gamma gamma | beta beta] */
#ifndef NG_NORM_H
#define NG_NORM_H

#include "family/family.h"

/* Inputs that wait for their output gradient, the latest last: a layer that runs more than once in a
 * micro-batch is shown its gradients in the opposite order. */
enum { NG_NORM_WAITING = 8 };

typedef struct ng_norm {
  ng_norm_of of;
  int64_t width;
  bool full;
  ng_view shown[NG_NORM_WAITING];
  int32_t waiting;
  int64_t batch; /* ... of this micro-batch */
  double shift;  /* damping_leak: waits to be added to the average */
  int32_t rung;  /* of the last measure, and what that added to the diagonal */
  double damped;
  /* full: results of the owner, at the head of them what it says: rung, whether R is any good, damping */
  float *says;
  void *R; /* (F + d I)^-1, ng_sym order; f32, or f64 where F is kept so */
  bool good;
  int info[2], finite;
} ng_norm;

enum { NG_NORM_RUNG, NG_NORM_GOOD, NG_NORM_DAMPED, NG_NORM_SAYS };

static inline ng_norm *ng_norm_of_block(const ng_block *b) { return b->state; }
/* Of this step: damping x norm_damping. */
static inline double ng_norm_damping(const ng_block *b) {
  return b->opt.damping * b->opt.norm_damping;
}

ng_status ng_norm_create(ng_block *b);
void ng_norm_destroy(ng_block *b);
ng_status ng_norm_check(const ng_options *o, const ng_settings *s, char *message, size_t size);
ng_status ng_norm_numbers(ng_block *b, ng_number_visit visit, void *arg);
/* D as it is bound, [width]; false: not finite. */
bool ng_norm_read(const ng_block *b, float *D);
/* PD is in `direction`: inner, d2, pd2. */
void ng_norm_measured(ng_block *b, const float *D);
void ng_norm_emit_tile(const ng_block *b, const ng_tile *t, double factor, const ng_sink *sink);

ng_status ng_norm_observe(ng_block *b, const ng_obs *o);
int64_t ng_norm_scratch(const ng_block *b); /* bytes */

/* norm_full.c: entries of its table. */
ng_status ng_norm_full_plan(ng_block *b, ng_plan *plan);
ng_status ng_norm_full_fields(ng_block *b, ng_field_visit visit, void *arg);
ng_status ng_norm_full_solve(ng_block *b);
void ng_norm_full_shared(ng_block *b, bool fresh);
ng_status ng_norm_full_measure(ng_block *b);
void ng_norm_full_report(const ng_block *b, ng_layer_report *r);

#endif
