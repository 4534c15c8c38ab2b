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

enum { READ, MOMENTS, MEASURE, PASSES };

typedef struct ng_adam {
  ng_flat_range *range; /* [segments] */
  int64_t count, chunks;
  double steps; /* counted steps of this block */
  bool is_measured;
  float *moment[2], *next[2]; /* M and V before and after this step */
  float *direction;           /* D, then PD */
  double *partial_sums;       /* [chunks, 3] */
  double *results;            /* [PASSES, 3]: ng_flat_pass.out */
} ng_adam;

static ng_adam *adam_of_block(const ng_block *b) { return b->state; }

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
  ng_adam *k = b->state = ng_object(b->p, sizeof *k);
  if (k == NULL) return NG_ERR_NOMEM;
  k->range = ng_object(b->p, (size_t)b->segments * sizeof *k->range);
  k->results = ng_object(b->p, (size_t)3 * PASSES * sizeof *k->results);
  if (ng_objects_status(b->p) != NG_OK) return NG_ERR_NOMEM;
  for (int32_t i = 0; i < b->segments; i++) {
    const ng_segment *s = &b->segment[i];
    k->range[i] = (ng_flat_range){.at = s->offset,
                                  .n = s->count,
                                  .first_chunk = k->chunks,
                                  .grad = &s->slot->grad,
                                  .weight = &s->slot->weight,
                                  .cols = s->slot->cols};
    k->count += s->count;
    k->chunks += ng_count_range_chunks(s->count);
  }
  if (k->chunks > INT32_MAX) {
    return ng_fail(b->ctx, NG_ERR_ARG, "'%s': %lld elements, at most about %lld", b->name,
                   (long long)k->count, (long long)INT32_MAX * NG_FLAT_CHUNK);
  }
  if (b->entry->block != b) return NG_OK; /* the block of the weight has the text */
  (void)snprintf(b->entry->why, sizeof b->entry->why, "moments %lld", (long long)k->count);
  return NG_OK;
}

static ng_status declare_statistics(ng_block *b) {
  (void)b;
  return NG_OK;
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_adam *k = adam_of_block(b);
  const int64_t bytes = ng_times(k->count, (int64_t)sizeof(float));
  for (int i = 0; i < 2; i++) {
    k->moment[i] = ng_plan_take(plan, NG_USE_FACTORS, bytes);
    k->next[i] = ng_plan_take(plan, NG_USE_SUMS, bytes);
  }
  k->direction = ng_plan_take(plan, NG_USE_SUMS, bytes);
  k->partial_sums =
      ng_plan_take(plan, NG_USE_SUMS, 3 * k->chunks * (int64_t)sizeof *k->partial_sums);
  return NG_OK;
}

static ng_status observe(ng_block *b, const ng_obs *o) {
  (void)b;
  (void)o;
  return NG_OK;
}

/* ---- the direction ---------------------------------------------------------------------------*/

static void enqueue_pass(ng_block *b, int pass, ng_flat_pass p) {
  ng_adam *k = adam_of_block(b);
  p.range = k->range;
  p.ranges = b->segments;
  p.partial_sums = k->partial_sums;
  p.out = k->results + 3 * (int64_t)pass;
  ng_kernels(b->ctx->queue)->run_flat_passes(b->ctx->queue, &p, 1);
}

static void precondition(ng_block *b) {
  ng_adam *k = adam_of_block(b);
  const double t = k->steps + 1.0, beta1 = b->base.first_decay, beta2 = b->base.second_decay;
  enqueue_pass(
      b, READ,
      (ng_flat_pass){.op = NG_FLAT_READ, .to = k->direction, .limit = ng_dtype_largest(NG_F32)});
  enqueue_pass(b, MOMENTS,
               (ng_flat_pass){.op = NG_FLAT_ADAM,
                              .to = k->next[0],
                              .x = k->direction,
                              .next_s = k->next[1],
                              .v = k->moment[0],
                              .s = k->moment[1],
                              .old = beta1,
                              .take = 1.0 - beta1,
                              .forget = beta2,
                              .m = b->base.adam_lr / (1.0 - pow(beta1, t)),
                              .m2 = 1.0 / (1.0 - pow(beta2, t)),
                              .eps = b->base.moment_epsilon});
  enqueue_pass(b, MEASURE, (ng_flat_pass){.op = NG_FLAT_MEASURE, .to = k->direction});
}

static ng_status read_sums(ng_block *b) {
  ng_adam *k = adam_of_block(b);
  const double *r = ng_read_numbers(b->ctx->queue, k->results);
  k->is_measured = r[3 * READ] == 0.0; /* the number of lines with a non-finite element */
  if (!k->is_measured)
    return ng_fail(b->ctx, NG_SKIPPED, "'%s': its gradient is not finite", b->name);
  b->inner = r[3 * MEASURE];
  b->d2 = r[3 * MEASURE + 1];
  b->pd2 = r[3 * MEASURE + 2];
  return NG_OK;
}

static void emit(const ng_block *b, int32_t segment, int32_t g, double factor, ng_direction *e) {
  const ng_segment *s = &b->segment[segment];
  (void)g;
  (void)factor;
  e->is_stored = true;
  e->u = adam_of_block(b)->direction + s->offset + e->D.row * s->slot->cols + e->D.col;
  e->u_row = s->slot->cols;
}

static void end_step(ng_block *b, bool step_counts) {
  ng_adam *k = adam_of_block(b);
  const bool moves = step_counts && k->is_measured;
  k->is_measured = false;
  if (!moves) return;
  k->steps += 1.0;
  for (int i = 0; i < 2; i++) {
    float *const old = k->moment[i];
    k->moment[i] = k->next[i];
    k->next[i] = old;
  }
}

/* ---- state -----------------------------------------------------------------------------------*/

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  static const char *const name[] = {"first_moment", "second_moment"};
  const ng_adam *k = adam_of_block(b);
  for (int32_t i = 0; i < b->segments; i++) {
    const ng_segment *s = &b->segment[i];
    for (int j = 0; j < 2; j++) {
      float *const data = k->moment[j] == NULL ? NULL : k->moment[j] + s->offset;
      ng_field f = ng_field_plain(name[j], NG_F32, s->slot->rows, s->slot->cols, data, b->owner);
      ng_name_append(f.name, sizeof f.name, s->slot->param == NG_BIAS ? ".bias" : ".weight");
      f.is_everywhere = true;
      f.is_nonnegative = j == 1;
      visit(arg, &f);
    }
  }
}

static void visit_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_number n = {.name = "steps", .value = &adam_of_block(b)->steps};
  visit(arg, &n);
}

const ng_family ng_family_adam = {
    .name = "adam",
    .traits = NG_TRAIT_MOMENTS,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .declare_statistics = declare_statistics,
    .request_memory = request_memory,
    .observe = observe,
    .precondition = precondition,
    .read_sums = read_sums,
    .emit = emit,
    .end_step = end_step,
    .visit_fields = visit_fields,
    .visit_numbers = visit_numbers,
};
