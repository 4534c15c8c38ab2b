/* matrix_families.h: a family for tests, made of src/twosided/, for linear layers without bias: PD of a gradient D [m, n] from
 * L = average of D D' and R = average of D'D, as in a published optimizer; damping is its epsilon.
 *
 * shampoo  layers "shampoo...": PD = |D| P / |P|, P = L_c^(-1/4) D R_c^(-1/4), L_c = L / (1 - decay^t) + damping I
 *          (Gupta et al. 2018, arXiv 1802.09568; beta1 = 0, SGD grafting, bias correction: facebookresearch/optimizers) */
#ifndef TESTS_MATRIX_FAMILIES_H
#define TESTS_MATRIX_FAMILIES_H

#include "family/family.h"
#include "twosided/twosided.h"

/* The state of the family. */
typedef struct matrices {
  int64_t m, n;
  ng_direction_sums sums;
  double steps;      /* counted steps */
  float *rungs;      /* results: the rung of the last solve, and whether a solve succeeded */
  ng_matrix side[2]; /* L and R with their results */
  ng_twosided twosided;
} matrices;

enum { STATE_RUNG, STATE_WAS_GOOD, RUNGS };

static inline matrices *matrices_of(const ng_block *b) { return b->state; }
ng_status matrices_check(const ng_options *o, char *message, size_t size);
bool matrices_fit(const ng_entry *e, const char *prefix);
ng_status matrices_create(ng_block *b, ng_result result);
ng_status matrices_add_statistics(ng_block *b);
ng_status matrices_observe(ng_block *b, const ng_obs *o);
int64_t matrices_scratch(const ng_block *b); /* floats */
ng_status matrices_plan(ng_block *b, ng_plan *plan);
/* Enqueue: copy D or D' to `to` and set `finite`; add the sums of D and b->direction. */
void matrices_copy_gradient(ng_block *b, bool transposed, float *to);
void matrices_enqueue_sums(ng_block *b, const float *D);
void matrices_emit(const ng_block *b, int32_t k, int32_t g, double factor, ng_direction *e);
void matrices_report(const ng_block *b, ng_layer_report *r);
void matrices_visit_numbers(ng_block *b, ng_number_visit visit, void *arg);
/* Count the rung of a solve; return NG_RESCUED if the rung is not 0. */
ng_status matrices_count_rung(ng_block *b, int32_t rung);

extern const ng_family family_shampoo;

#endif
