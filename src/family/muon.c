/* muon.c: Muon (families_schulz.c has the formulas).
 *
 * In: weights of linear layers and convolutions, as matrices [outputs, rest]. Biases and other parameters belong to the method's
 * second family. The ranks of the block's column compute PD and have B, the momentum. */
#include "family/family.h"

typedef struct ng_muon {
  ng_moments moments; /* the first moment is B */
  ng_schulz schulz;
} ng_muon;

static ng_muon *muon_of_block(const ng_block *b) { return b->state; }

/* ---- geometry, memory ------------------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  return ng_is(o->family, "muon") && !e->is_tensor &&
         (e->d.kind == NG_LINEAR || e->d.kind == NG_CONV2D);
}

static ng_status check_options(const ng_options *o, char *message, size_t size) {
  const ng_status st = ng_family_check_others(NG_TRAIT_MUON | NG_TRAIT_MOMENTS, o, message, size);
  return st == NG_OK ? ng_schulz_check_options(o, message, size) : st;
}

static ng_status create_state(ng_block *b) {
  const ng_slot *s = b->segment->slot;
  ng_muon *k = b->state = ng_object(b->p, sizeof *k);
  if (k == NULL) return NG_ERR_NOMEM;
  const ng_status st = ng_schulz_create(b, &k->schulz);
  if (st != NG_OK) return st;
  (void)snprintf(b->entry->why, sizeof b->entry->why, "momentum %lldx%lld, Newton-Schulz",
                 (long long)s->rows, (long long)s->cols);
  return ng_moments_create(b, &k->moments);
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_muon *k = muon_of_block(b);
  const int64_t floats = ng_newton_schulz_scratch(&k->schulz.iteration);
  ng_plan_direction(plan, b, NG_BY_FAMILY, k->moments.count);
  if (!b->is_worker) return NG_OK;
  ng_moments_request(plan, &k->moments, 1, NG_USE_FACTORS, NG_USE_SUMS);
  ng_plan_scratch(plan, ng_times(floats, (int64_t)sizeof(float)));
  return NG_OK;
}

/* ---- the direction ---------------------------------------------------------------------------*/

static void precondition(ng_block *b) {
  ng_muon *k = muon_of_block(b);
  ng_moments_read_gradient(b, &k->moments, b->direction);
  ng_schulz_direction(b, &k->moments, &k->schulz, b->direction, ng_scratch(b));
  ng_moments_measure(b, &k->moments);
}

static ng_status read_sums(ng_block *b) {
  return ng_moments_read_sums(b, &muon_of_block(b)->moments);
}

static void end_step(ng_block *b, bool step_counts) {
  ng_moments_end_step(&muon_of_block(b)->moments, step_counts);
}

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_muon *k = muon_of_block(b);
  ng_field f = ng_field_plain("momentum_matrix", NG_F32, k->schulz.iteration.rows,
                              k->schulz.iteration.cols, k->moments.moment[0], b->owner);
  visit(arg, &f);
}

const ng_family ng_family_muon = {
    .name = "muon",
    .traits = NG_TRAIT_MUON | NG_TRAIT_MOMENTS,
    .takes_weight_only = true,
    .computes_in_column = true,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .request_memory = request_memory,
    .precondition = precondition,
    .read_sums = read_sums,
    .emit = ng_block_emit_direction,
    .end_step = end_step,
    .visit_fields = visit_fields,
};
