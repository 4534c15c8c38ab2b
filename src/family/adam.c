/* adam.c: Adam: moments of every element of the gradient (Kingma & Ba 2015, arXiv 1412.6980).
 *
 * In: layers and tensors, without observations. Of a gradient D, element by element, with t the steps of the block:
 *
 *     M <- beta1 M + (1 - beta1) D,   V <- beta2 V + (1 - beta2) D^2,   from M = V = 0
 *     PD = adam_lr (M / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + epsilon)
 *
 * with beta1 = first_decay, beta2 = second_decay, epsilon = moment_epsilon.
 *
 * Another method may use this family for the parameters that its own family leaves (ng_settings.other_family). With
 * ng_step_sgd and decoupled weight decay the update of these parameters is AdamW (arXiv 1711.05101).
 *
 * There is nothing to send: every rank computes PD from the same gradients. */
#include "family/family.h"

#include <math.h>

static ng_moments *moments_of_block(const ng_block *b) { return b->state; }

/* ---- geometry, memory ------------------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  (void)e;
  return ng_is(o->family, "adam") || (o->other_family != NULL && ng_is(o->other_family, "adam"));
}

/* If another method uses this family, the family of that method checks the options. */
static ng_status check_options(const ng_options *o, char *message, size_t size) {
  if (!ng_is(o->base.family, "adam")) return NG_OK;
  return ng_family_check_others(NG_TRAIT_MOMENTS, o, message, size);
}

static ng_status create_state(ng_block *b) {
  ng_moments *m = b->state = ng_object(b->p, sizeof *m);
  if (m == NULL) return NG_ERR_NOMEM;
  const ng_status st = ng_moments_create(b, m);
  /* ng_explain describes a block by its first entry, so only that entry gets a text */
  if (st != NG_OK || b->entry->block != b) return st;
  (void)snprintf(b->entry->why, sizeof b->entry->why, "moments %lld", (long long)m->count);
  return NG_OK;
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_moments *m = moments_of_block(b);
  ng_moments_request(plan, m, 2, NG_USE_FACTORS, NG_USE_SUMS);
  b->direction = ng_plan_take(plan, NG_USE_SUMS, ng_times(m->count, (int64_t)sizeof(float)));
  return NG_OK;
}

/* ---- the direction ---------------------------------------------------------------------------*/

static void precondition(ng_block *b) {
  ng_moments *m = moments_of_block(b);
  const double t = m->steps + 1.0;
  ng_moments_read_gradient(b, m, b->direction);
  ng_moments_adam(b, m, m->next[0], m->moment[0], b->direction,
                  b->base.adam_lr / (1.0 - pow(b->base.first_decay, t)),
                  1.0 / (1.0 - pow(b->base.second_decay, t)));
  ng_moments_measure(b, m);
}

static ng_status read_sums(ng_block *b) { return ng_moments_read_sums(b, moments_of_block(b)); }

static void end_step(ng_block *b, bool step_counts) {
  ng_moments *m = moments_of_block(b);
  ng_moments_end_step(m, step_counts && m->are_new);
}

/* ---- state -----------------------------------------------------------------------------------*/

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  ng_moments_visit(b, moments_of_block(b), 2, b->owner, true, visit, arg);
}

static void visit_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_number n = {.name = "steps", .value = &moments_of_block(b)->steps};
  visit(arg, &n);
}

const ng_family ng_family_adam = {
    .name = "adam",
    .traits = NG_TRAIT_MOMENTS,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .request_memory = request_memory,
    .precondition = precondition,
    .read_sums = read_sums,
    .emit = ng_block_emit_direction,
    .end_step = end_step,
    .visit_fields = visit_fields,
    .visit_numbers = visit_numbers,
};
