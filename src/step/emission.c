/* emission.c: describe to the kernels what to measure and to emit, by one descriptor for each group of each parameter.
 *
 * In: blocks after solve, bound gradients and weights, clip factors, learning rates. Out: lists of descriptors
 * (kernel/kernel.h); sums of gradients; gradients in place, or updated weights and moments. One call of a kernel covers
 * all parameters, so that a small layer does not cost a call.
 *
 * The direction of a parameter without curvature is its gradient. A fused update writes such a parameter; without a fused
 * update the library leaves it to the caller. */
#include "step/step.h"

/* ---- memory ----------------------------------------------------------------------------------*/

bool ng_is_updated_without_curvature(const ng_precond *p, const ng_slot *s) {
  return p->opt.base.update != NG_UPDATE_GRADIENT && !s->entry->d.frozen && s->block == NULL;
}

/* Return the region of group g of slot s, in the gradient or weight v. A bias or a tensor has one row, so its groups are
 * ranges of columns. */
static ng_region region_of_group(const ng_place *v, const ng_slot *s, int64_t g) {
  const bool flat = s->rows == 1;
  const int64_t rows = flat ? 1 : s->rows / s->groups, cols = flat ? s->cols / s->groups : s->cols;
  return (ng_region){v, flat ? 0 : g * rows, rows, flat ? g * cols : 0, cols};
}

static void count_descriptors(const ng_precond *p, ng_emission *l, const ng_slot *s) {
  const ng_region a = region_of_group(&s->grad, s, 0);
  l->capacity += s->groups;
  l->tiles += s->groups * p->ctx->queue->backend->kernels->count_tiles(a.rows, a.cols);
}

ng_status ng_emission_plan(ng_precond *p) {
  ng_emission *l = &p->step->emission;
  int64_t matrices = 0;
  *l = (ng_emission){0};
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    int64_t groups = 0;
    for (int32_t k = 0; k < b->segments; k++) {
      count_descriptors(p, l, b->segment[k].slot);
      groups += b->segment[k].slot->groups;
    }
    matrices += b->matrices;
    if (b->family->describe_sums != NULL)
      b->gradient_sums = ng_object(p, (size_t)groups * 2 * sizeof *b->gradient_sums);
  }
  for (int32_t i = 0; i < p->slots; i++) {
    if (ng_is_updated_without_curvature(p, p->slot[i])) count_descriptors(p, l, p->slot[i]);
  }
  p->solve_list = ng_object(p, (size_t)matrices * sizeof *p->solve_list);
  const size_t most = (size_t)l->capacity;
  l->direction = ng_object(p, most * sizeof *l->direction);
  l->update = ng_object(p, most * sizeof *l->update);
  l->store_to = ng_object(p, most * sizeof *l->store_to);
  l->norm2 = ng_object(p, most * sizeof *l->norm2);
  l->measure = ng_object(p, most * sizeof *l->measure);
  l->range = ng_object(p, most * sizeof *l->range);
  l->slot = ng_object(p, most * sizeof *l->slot);
  l->finite = ng_object(p, most * sizeof *l->finite);
  l->parts = ng_object(p, (size_t)l->tiles * 2 * sizeof *l->parts);
  return ng_objects_status(p);
}

/* ---- measure ---------------------------------------------------------------------------------*/

/* Append the descriptors of the sums of a block; return their number of elements. */
static int64_t list_sums(ng_emission *l, ng_block *b) {
  int64_t elements = 0;
  double *out = b->gradient_sums;
  for (int32_t k = 0; k < b->segments; k++) {
    const ng_slot *s = b->segment[k].slot;
    for (int32_t g = 0; g < s->groups; g++, out += 2) {
      ng_measure *m = &l->measure[l->measure_count++];
      *m = (ng_measure){.D = region_of_group(&s->grad, s, g), .out = out};
      b->family->describe_sums(b, k, g, m);
      elements += m->D.rows * m->D.cols;
    }
  }
  return elements;
}

/* Enqueue the check that the gradients without curvature are finite. */
static void check_plain_gradients(ng_precond *p) {
  ng_emission *l = &p->step->emission;
  l->plain_count = 0;
  for (int32_t i = 0; i < p->slots; i++) {
    ng_slot *s = p->slot[i];
    if (!ng_is_updated_without_curvature(p, s) || s->is_excluded) continue;
    l->slot[l->plain_count] = s;
    l->range[l->plain_count++] = (ng_region){&s->grad, 0, s->rows, 0, s->cols};
  }
  ng_queue *q = p->ctx->queue;
  if (l->plain_count > 0) ng_kernels(q)->check_finite(q, l->range, l->plain_count, l->finite);
}

/* If a gradient without curvature is not finite, refuse the step: a fused update must not write NaN to weights. */
void ng_emission_check(ng_precond *p) {
  const ng_emission *l = &p->step->emission;
  for (int64_t i = 0; i < l->plain_count; i++) {
    if (ng_read_info(p->ctx->queue, &l->finite[i]) != 0) continue;
    p->step->has_refused = true;
    (void)ng_fail(p->ctx, NG_SKIPPED, "'%s': its gradient is not finite", l->slot[i]->name);
  }
}

void ng_emission_measure(ng_precond *p) {
  ng_emission *l = &p->step->emission;
  ng_queue *q = p->ctx->queue;
  const double t0 = ng_now_ms();
  double all = 0.0;
  l->measure_count = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    const bool sums = b->family->describe_sums != NULL && b->is_worker && !b->is_excluded;
    /* the number of elements, until the measured time replaces it */
    b->measure_ms = sums ? (double)list_sums(l, b) : 0.0;
    all += b->measure_ms;
  }
  if (l->measure_count > 0)
    ng_kernels(q)->measure_gradients(q, l->measure, l->measure_count, l->parts);
  check_plain_gradients(p);
  const double ms = ng_now_ms() - t0;
  for (int32_t i = 0; i < p->blocks; i++) {
    p->block[i]->measure_ms *= all > 0.0 ? ms / all : 0.0;
  }
}

/* ---- directions ------------------------------------------------------------------------------*/

/* b->direction stores PD of the block in f32 on every rank, segment after segment, row after row. The exchange sends
 * b->direction, and all ranks read PD from there, so that all ranks have the same bits. */
void ng_emission_plan_direction(ng_block *b, ng_plan *plan) {
  const ng_precond *p = b->p;
  const ng_segment *last = &b->segment[b->segments - 1];
  if (b->filled_by == NG_BY_FAMILY || p->grid.n == 1) return;
  if (!b->solves && b->averages_everywhere) return;
  ng_plan_direction(plan, b, NG_BY_ENGINE, last->offset + last->count);
}

static bool is_delivered(const ng_block *b) { return b->filled_by == NG_BY_ENGINE; }

/* Return the address in b->direction of the first element of region D of segment k. */
static float *stored_direction_at(const ng_block *b, int32_t k, const ng_region *D) {
  const ng_segment *s = &b->segment[k];
  return b->direction + s->offset + D->row * s->slot->cols + D->col;
}

/* Describe `factor` times PD of all groups of segment k: as the family computes PD or, if `stored`, as b->direction stores
 * PD. Return the number of groups. */
static int64_t list_segment(const ng_block *b, int32_t k, double factor, bool stored,
                            ng_direction *e) {
  ng_slot *s = b->segment[k].slot;
  for (int32_t g = 0; g < s->groups; g++, e++) {
    *e = (ng_direction){
        .D = region_of_group(&s->grad, s, g), .scale = factor, .u_col = 1, .is_stored = stored};
    e->overflowed = &s->overflowed;
    if (!stored) {
      b->family->emit(b, k, g, factor, e);
      if (b->base.radius > 0.0) e->k *= b->p->step->ascent;
      continue;
    }
    e->u = stored_direction_at(b, k, &e->D);
    e->u_row = s->cols;
  }
  return s->groups;
}

/* Store PD of all blocks that other ranks cannot compute in b->direction, with factor 1, because the clip factor is not
 * known yet. */
void ng_emission_store(ng_precond *p) {
  ng_emission *l = &p->step->emission;
  int64_t n = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!is_delivered(b) || !b->is_worker || b->is_excluded) continue;
    for (int32_t k = 0; k < b->segments; k++) {
      const int64_t end = n + list_segment(b, k, 1.0, false, &l->direction[n]);
      for (; n < end; n++) {
        l->store_to[n] = stored_direction_at(b, k, &l->direction[n].D);
      }
    }
  }
  if (n > 0)
    ng_kernels(p->ctx->queue)->store_directions(p->ctx->queue, l->direction, l->store_to, n);
}

/* The sums are added in order, so all ranks have equal bits. For a delivered block, whose inverses this rank may lack, the
 * function reads the stored PD. */
void ng_emission_norms(ng_precond *p) {
  ng_emission *l = &p->step->emission;
  ng_queue *q = p->ctx->queue;
  int64_t n = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    const bool own = b->family->set_pd_norms != NULL && !is_delivered(b);
    if (own && !b->is_excluded) b->family->set_pd_norms(b);
    for (int32_t k = 0; k < b->segments && !own && !b->is_excluded; k++) {
      b->segment[k].pd_norm2 = 0.0;
      for (int32_t g = 0; g < b->segment[k].slot->groups; g++) {
        l->slot[n + g] = b->segment[k].slot;
      }
      n += list_segment(b, k, 1.0, is_delivered(b), &l->direction[n]);
    }
  }
  if (n > 0) ng_kernels(q)->sum_norms(q, l->direction, n, l->parts, l->norm2);
  ng_queue_wait(q);
  for (int64_t i = 0; i < n; i++) {
    const ng_slot *s = l->slot[i];
    s->block->segment[s->segment].pd_norm2 += *ng_read_numbers(q, &l->norm2[i]);
  }
}

/* ---- emit ------------------------------------------------------------------------------------*/

/* Append the weight and moments of slot s, for the descriptors up to `end`. */
static void list_updates(ng_precond *p, const ng_slot *s, int64_t end) {
  ng_emission *l = &p->step->emission;
  const ng_output *u = &p->step->output;
  const ng_group_numbers *group = &u->group[s->update_group];
  for (; l->direction_count < end; l->direction_count++) {
    if (u->kind == NG_OUT_GRADIENT) continue;
    l->update[l->direction_count] = (ng_weight_update){
        .weight = &s->weight,
        .m = s->m,
        .v = s->v,
        .cols = s->cols,
        .sgd = u->kind == NG_OUT_SGD ? &group->sgd : NULL,
        .adamw = u->kind == NG_OUT_ADAMW ? &group->adamw : NULL,
        .coefficients = s->entry->missed_updates > 0 ? s->late_coefficients : group->coefficients,
    };
  }
}

static bool is_emitted(const ng_precond *p, const ng_slot *s) {
  const bool waits = s->block != NULL && s->block->skips_update;
  return !s->is_excluded && s->updates_here && (p->step->output.kind == NG_OUT_GRADIENT || !waits);
}

void ng_emission_list_blocks(ng_precond *p, bool unit) {
  ng_emission *l = &p->step->emission;
  l->direction_count = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->segments; k++) {
      ng_slot *s = b->segment[k].slot;
      if (!is_emitted(p, s)) continue;
      const double factor = unit ? 1.0 : b->segment[k].clip_factor;
      ng_direction *e = &l->direction[l->direction_count];
      const ng_direction *end = e + list_segment(b, k, factor, is_delivered(b), e);
      for (const ng_direction *x = e; x < end; x++) {
        *e = *x;
        if (p->opt.base.clip == NG_CLIP_VALUE) e->clip_bound = (float)p->opt.base.clip_bound;
        if (unit || p->step->shards.blocks == 0 || ng_shard_cut_direction(s, e))
          e++; /* if an element is NULL, another rank updates the parameter */
      }
      list_updates(p, ng_slot_registered(s), e - l->direction);
    }
  }
}

void ng_emission_list_plain(ng_precond *p) {
  ng_emission *l = &p->step->emission;
  for (int32_t i = 0; i < p->slots; i++) {
    ng_slot *s = p->slot[i];
    if (!ng_is_updated_without_curvature(p, s) || !is_emitted(p, s)) continue;
    l->direction[l->direction_count] = (ng_direction){
        .D = {&s->grad, 0, s->rows, 0, s->cols}, .scale = 1.0, .overflowed = &s->overflowed};
    list_updates(p, s, l->direction_count + 1);
  }
}

/* Fill `direction`, `update` and `measure` with the same parameters: first the blocks, then parameters without curvature. */
void ng_emission_list_all(ng_precond *p) {
  ng_emission *l = &p->step->emission;
  ng_emission_list_blocks(p, false);
  ng_emission_list_plain(p);
  l->measure_count = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    (void)list_sums(l, p->block[i]);
  }
  for (int64_t i = l->measure_count; i < l->direction_count; i++) {
    l->measure[i] = (ng_measure){.D = l->direction[i].D};
  }
}

/* Count the elements that kept their old value in all parameters. */
static ng_status count_overflows(ng_precond *p) {
  const char *name = NULL;
  int64_t all = 0, parameters = 0;
  for (int32_t i = 0; i < p->slots; i++) {
    const int64_t mine = atomic_load(&p->slot[i]->overflowed);
    if (mine > 0 && parameters++ == 0) name = p->slot[i]->name;
    all += mine;
  }
  p->overflowed += all;
  p->step->overflowed = all;
  if (all == 0) return NG_OK;
  return ng_fail(p->ctx, NG_RESCUED,
                 "'%s'%s: elements whose result is not finite in its dtype kept their old value "
                 "(elements: %lld)",
                 name, parameters > 1 ? " and others" : "", (long long)all);
}

ng_status ng_emission_emit(ng_precond *p) {
  const ng_emission *l = &p->step->emission;
  ng_queue *q = p->ctx->queue;
  for (int32_t i = 0; i < p->slots; i++) {
    atomic_store(&p->slot[i]->overflowed, 0);
  }
  ng_emission_list_blocks(p, false);
  ng_emission_list_plain(p);
  if (p->step->output.kind == NG_OUT_GRADIENT) {
    ng_kernels(q)->write_directions(q, l->direction, l->direction_count);
  } else {
    ng_kernels(q)->update_weights(q, l->direction, l->update, l->direction_count);
  }
  ng_queue_wait(q);
  p->step->status = ng_worse_status(p->step->status, count_overflows(p));
  return NG_OK;
}
