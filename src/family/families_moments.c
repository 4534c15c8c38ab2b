/* families_moments.c: passes over the elements of a block, and moments that the passes update (family.h).
 *
 * Kingma & Ba 2015, arXiv 1412.6980; in an eigenbasis: Vyas et al. 2024, arXiv 2409.11321. Arithmetic is in double and
 * rounded once. If a new moment overflows, the old moment stays. */
#include "family/axes.h"

ng_status ng_moments_create(ng_block *b, ng_moments *m) {
  m->ranges = b->segments;
  m->range = ng_object(b->p, (size_t)m->ranges * sizeof *m->range);
  m->result = ng_object(b->p, (size_t)3 * NG_FLAT_OPS * sizeof *m->result);
  if (ng_objects_status(b->p) != NG_OK) return NG_ERR_NOMEM;
  for (int32_t i = 0; i < m->ranges; i++) {
    const ng_segment *s = &b->segment[i];
    m->range[i] = (ng_flat_range){.at = s->offset,
                                  .n = s->count,
                                  .first_chunk = m->chunks,
                                  .grad = &s->slot->grad,
                                  .weight = &s->slot->weight,
                                  .cols = s->slot->cols};
    m->count += s->count;
    m->chunks += ng_count_range_chunks(s->count);
  }
  if (m->chunks <= INT32_MAX) return NG_OK;
  return ng_fail(b->ctx, NG_ERR_ARG, "'%s': %lld elements, at most about %lld", b->name,
                 (long long)m->count, (long long)INT32_MAX * NG_FLAT_CHUNK);
}

void ng_moments_request(ng_plan *plan, ng_moments *m, int32_t moments, ng_use old, ng_use next) {
  const int64_t bytes = ng_times(m->count, (int64_t)sizeof(float));
  for (int32_t i = 0; i < moments; i++) {
    m->moment[i] = ng_plan_take(plan, old, bytes);
    m->next[i] = ng_plan_take(plan, next, bytes);
  }
  m->partial_sums = ng_plan_take(plan, next, 3 * m->chunks * (int64_t)sizeof *m->partial_sums);
}

/* ---- passes ----------------------------------------------------------------------------------*/

void ng_moments_pass(ng_block *b, const ng_moments *m, ng_flat_pass p) {
  p.range = m->range;
  p.ranges = m->ranges;
  p.partial_sums = m->partial_sums;
  p.out = m->result + 3 * (int64_t)p.op;
  ng_kernels(b->ctx->queue)->run_flat_passes(b->ctx->queue, &p, 1);
}

void ng_moments_read_gradient(ng_block *b, const ng_moments *m, float *D) {
  ng_moments_pass(b, m,
                  (ng_flat_pass){.op = NG_FLAT_READ, .to = D, .limit = ng_dtype_largest(NG_F32)});
}

void ng_moments_mix(ng_block *b, const ng_moments *m, float *to, const float *v, const float *x,
                    double beta) {
  float *const read = (float *)(uintptr_t)x; /* the pass only reads x */
  ng_moments_pass(
      b, m,
      (ng_flat_pass){
          .op = NG_FLAT_MIX, .to = to, .v = v, .x = read, .old = beta, .take = 1.0 - beta});
}

void ng_moments_add(ng_block *b, ng_moments *m, const float *D, double beta) {
  ng_moments_mix(b, m, m->next[0], m->moment[0], D, beta);
  m->are_new = true;
}

void ng_moments_adam(ng_block *b, ng_moments *m, float *to, const float *v, float *x, double by1,
                     double by2) {
  const ng_settings *o = &b->base;
  ng_moments_pass(b, m,
                  (ng_flat_pass){.op = NG_FLAT_ADAM,
                                 .to = to,
                                 .v = v,
                                 .x = x,
                                 .s = m->moment[1],
                                 .next_s = m->next[1],
                                 .old = o->first_decay,
                                 .take = 1.0 - o->first_decay,
                                 .forget = o->second_decay,
                                 .add = 1.0 - o->second_decay,
                                 .m = by1,
                                 .m2 = by2,
                                 .eps = o->moment_epsilon});
  m->are_new = true;
}

void ng_moments_measure(ng_block *b, const ng_moments *m) {
  ng_moments_pass(b, m, (ng_flat_pass){.op = NG_FLAT_MEASURE, .to = b->direction});
}

ng_status ng_moments_read_sums(ng_block *b, const ng_moments *m) {
  const double *result = ng_read_numbers(b->ctx->queue, m->result);
  ng_direction_sums sums = {.finite = result[3 * NG_FLAT_READ] == 0.0}; /* a count of lines */
  memcpy(sums.total, result + 3 * NG_FLAT_MEASURE, sizeof sums.total);
  return ng_block_read_sums(b, &sums, m->count);
}

/* ---- the end of a step, state ----------------------------------------------------------------*/

void ng_moments_swap(ng_moments *m) {
  for (int i = 0; i < 2; i++) {
    float *const old = m->moment[i];
    m->moment[i] = m->next[i];
    m->next[i] = old;
  }
}

void ng_moments_end_step(ng_moments *m, bool step_counts) {
  if (step_counts) m->steps += 1.0;
  if (step_counts && m->are_new) ng_moments_swap(m);
  m->are_new = false;
}

void ng_moments_visit(ng_block *b, const ng_moments *m, int32_t moments, int32_t owner,
                      bool is_everywhere, ng_field_visit visit, void *arg) {
  static const char *const name[] = {"first_moment", "second_moment"};
  for (int32_t i = 0; i < b->segments; i++) {
    const ng_segment *s = &b->segment[i];
    for (int j = 0; j < moments; j++) {
      float *const data = m->moment[j] == NULL ? NULL : m->moment[j] + s->offset;
      ng_field f = ng_field_plain(name[j], NG_F32, s->slot->rows, s->slot->cols, data, owner);
      ng_axes_name_field(s, &f);
      f.is_everywhere = is_everywhere;
      f.is_nonnegative = j == 1;
      visit(arg, &f);
    }
  }
}
