/* families_moments.c: Adam's moments in a basis that moves (family.h).
 *
 * Kingma & Ba 2015, arXiv 1412.6980; in an eigenbasis: Vyas et al. 2024, arXiv 2409.11321. Arithmetic is in double and
 * rounded once. If a new moment overflows, the old moment stays. */
#include "family/family.h"

ng_status ng_moments_create(ng_block *b, ng_moments *m, int64_t count) {
  m->count = count;
  m->range = (ng_flat_range){.n = count, .cols = count};
  m->partial_sums =
      ng_object(b->p, (size_t)(3 * ng_count_range_chunks(count)) * sizeof *m->partial_sums);
  return ng_objects_status(b->p);
}

void ng_moments_request(ng_plan *plan, ng_moments *m) {
  float **const array[] = {&m->first, &m->second, &m->next_first, &m->next_second};
  for (int i = 0; i < 4; i++) {
    *array[i] = ng_plan_take(plan, i < 2 ? NG_USE_FACTORS : NG_USE_MOMENTS,
                             ng_times(m->count, (int64_t)sizeof(float)));
  }
}

void ng_moments_enqueue(ng_block *b, ng_moments *m, const float *D, float *U, float *T, double by1,
                        double by2) {
  const ng_settings *o = &b->base;
  const ng_flat_pass list[] = {{.op = NG_FLAT_MIX,
                                .range = &m->range,
                                .ranges = 1,
                                .to = m->next_first,
                                .v = m->first,
                                .x = (float *)(uintptr_t)D,
                                .old = o->first_decay,
                                .take = 1.0 - o->first_decay,
                                .partial_sums = m->partial_sums,
                                .out = m->out},
                               {.op = NG_FLAT_ADAM,
                                .range = &m->range,
                                .ranges = 1,
                                .to = T,
                                .v = T,
                                .x = U,
                                .s = m->second,
                                .next_s = m->next_second,
                                .old = o->first_decay,
                                .take = 1.0 - o->first_decay,
                                .forget = o->second_decay,
                                .m = by1,
                                .m2 = by2,
                                .eps = o->moment_epsilon,
                                .partial_sums = m->partial_sums,
                                .out = m->out}};
  ng_kernels(b->ctx->queue)->run_flat_passes(b->ctx->queue, list, 2);
  m->are_new = true;
}

void ng_moments_end_step(ng_moments *m, bool step_counts) {
  if (step_counts) m->steps += 1.0;
  if (step_counts && m->are_new) {
    float *const first = m->first, *const second = m->second;
    m->first = m->next_first;
    m->second = m->next_second;
    m->next_first = first;
    m->next_second = second;
  }
  m->are_new = false;
}
