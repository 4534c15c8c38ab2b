/* fused.c: a step of Eva with SGD or AdamW on a device, without a wait of the host.
 *
 * In: the sums of the observations, bound gradients and weights, numbers of this step. Out: averages, weights and moments; the
 * status of earlier steps. cuda/eva.cu has the four kernels.
 *
 * The device decides whether a step counts, so the host knows the status of step t when a later step begins, or after a wait
 * (ng_fused_stop). Until then the host assumes that the step counts. The lists of descriptors are uploaded when the first
 * step begins and when a binding has changed. The numbers of a step lie in memory that host and device access.
 *
 * All other steps take the stations. */
#include "step/step.h"

#include <math.h>

/* ---- memory ----------------------------------------------------------------------------------*/

/* Blocks of this number of bytes or fewer are memory of the host that the device accesses (cuda/memory.c). */
enum { SHARED = 32 << 10, OWN = SHARED + 1 };

static bool is_plain(const ng_slot *s) { return s->block == NULL && !s->entry->d.frozen; }

static ng_eva_numbers *new_numbers(ng_precond *p, int64_t layers, int64_t means) {
  const size_t group = (size_t)p->update_groups * sizeof(ng_eva_group);
  const size_t bytes =
      sizeof(ng_eva_numbers) + group + (size_t)(2 * layers + 2 * means) * sizeof(double);
  ng_eva_numbers *x = bytes <= SHARED ? ng_object(p, bytes) : NULL;
  if (x == NULL) return NULL;
  x->group = (ng_eva_group *)(void *)(x + 1);
  x->damping = (double *)(void *)((char *)x->group + group);
  x->weight = x->damping + layers;
  x->fold = x->weight + layers;
  return x;
}

/* Return whether a block has one a and one g, so that the kernels know its direction. */
static bool has_two_means(const ng_block *b) {
  return (b->family->traits & NG_TRAIT_VECTORS) != 0 && b->stats == 2 && b->entry != NULL &&
         b->segment[0].slot->groups == 1 && b->stat[0].average_dtype == NG_F32 &&
         b->stat[0].sum_dtype == NG_F32;
}

ng_status ng_fused_plan(ng_precond *p) {
  const ng_kernel_ops *k = p->ctx->queue->backend->kernels;
  ng_fused *f = &p->step->fused;
  const ng_emission *l = &p->step->emission;
  *f = (ng_fused){0};
  int64_t layers = p->blocks, means = 2 * p->blocks;
  for (int32_t i = 0; i < p->blocks; i++) {
    if (!has_two_means(p->block[i])) return NG_OK;
  }
  if (k->step_eva == NULL || p->ctx->ranks > 1 || p->opt.base.update == NG_UPDATE_GRADIENT)
    return NG_OK;
  for (int32_t i = 0; i < p->slots; i++) {
    layers += is_plain(p->slot[i]);
  }
  for (int i = 0; i < NG_EVA_AHEAD; i++) {
    f->numbers[i] = new_numbers(p, layers, means);
    if (f->numbers[i] == NULL) return ng_objects_status(p);
  }
  f->mean = ng_object(p, (size_t)means * sizeof *f->mean);
  f->layer_of = ng_object(p, (size_t)l->capacity * sizeof *f->layer_of);
  f->group_of = ng_object(p, (size_t)l->capacity * sizeof *f->group_of);
  f->bound = ng_object(p, (size_t)p->slots * 2 * sizeof *f->bound);
  f->started = ng_object(p, (size_t)means * sizeof *f->started);
  f->lists.updates = ng_object(p, sizeof *f->lists.updates);
  const size_t bytes = k->eva_bytes(l->capacity, layers, l->tiles);
  f->lists.memory = ng_object(p, bytes > OWN ? bytes : OWN);
  f->is_possible = (size_t)means * sizeof *f->started <= SHARED;
  return ng_objects_status(p);
}

/* ---- the lists -------------------------------------------------------------------------------*/

static void list_means(ng_precond *p) {
  ng_fused *f = &p->step->fused;
  for (int32_t i = 0; i < 2 * p->blocks; i++) {
    const ng_stat *s = &p->block[i / 2]->stat[i % 2];
    f->mean[i] = (ng_eva_mean){.average = s->part->average,
                               .sum = s->part->sum,
                               .n = ng_stat_part_count(s, s->part),
                               .starts_first = s->rule.start == NG_START_FIRST,
                               .started = &f->started[i]};
  }
}

/* Layers: the blocks, then the parameters without curvature. */
static void list_parameters(ng_precond *p) {
  ng_fused *f = &p->step->fused;
  int64_t n = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    for (int32_t k = 0; k < p->block[i]->segments; k++) {
      f->layer_of[n] = i;
      f->group_of[n++] = p->block[i]->segment[k].slot->update_group;
    }
  }
  f->lists.layers = p->blocks;
  for (int32_t i = 0; i < p->slots; i++) {
    if (!is_plain(p->slot[i])) continue;
    f->layer_of[n] = (int32_t)f->lists.layers++;
    f->group_of[n++] = p->slot[i]->update_group;
  }
  f->lists.curved = p->blocks;
  f->lists.parameters = n;
  NG_ASSERT(n == p->step->emission.direction_count);
}

/* Upload the lists if a binding has changed since the last upload, or if `always`. */
static void upload_lists(ng_precond *p, bool always) {
  ng_fused *f = &p->step->fused;
  ng_emission *l = &p->step->emission;
  ng_queue *q = p->ctx->queue;
  for (int32_t i = 0; i < p->slots; i++) {
    const ng_slot *s = p->slot[i];
    ng_place *was = &f->bound[2 * i];
    always = always || memcmp(&was[0], &s->grad, sizeof *was) != 0 ||
             memcmp(&was[1], &s->weight, sizeof *was) != 0;
    memcpy(&was[0], &s->grad, sizeof *was);
    memcpy(&was[1], &s->weight, sizeof *was);
  }
  if (!always) return;
  ng_emission_list_all(p);
  list_means(p);
  list_parameters(p);
  f->lists.mean = f->mean;
  f->lists.measure = l->measure;
  f->lists.direction = l->direction;
  f->lists.update = l->update;
  f->lists.layer_of = f->layer_of;
  f->lists.group_of = f->group_of;
  ng_kernels(q)->upload_eva(q, &f->lists);
}

/* ---- which steps run here --------------------------------------------------------------------*/

/* The host may read arrays that are not bound as NG_DEVICE when the call returns, so such a step waits. */
static bool allows_slot(const ng_slot *s) {
  const bool waits = s->block != NULL && s->block->skips_update;
  return s->is_on_device[0] && s->is_on_device[1] && !s->is_excluded &&
         s->entry->missed_updates == 0 && s->updates_here && !waits;
}

static bool allows_statistic(const ng_stat *s) {
  return !s->rule.adds && s->rule.start != NG_START_IDENTITY && !s->stale.enabled &&
         s->shift == NULL;
}

static bool is_runnable(const ng_precond *p) {
  const ng_engine *s = p->step;
  const ng_settings *o = &p->opt.base;
  if (!s->fused.is_possible || s->has_refused || s->status != NG_OK || s->shards.blocks > 0 ||
      s->quantify.count != NULL || ng_pipeline_exists(p) || o->overhead > 0.0 ||
      (o->clip != NG_CLIP_KL && o->clip != NG_CLIP_NONE)) {
    return false;
  }
  for (int32_t i = 0; i < p->slots; i++) {
    if (!p->slot[i]->entry->d.frozen && !allows_slot(p->slot[i])) return false;
  }
  for (int32_t i = 0; i < p->stats; i++) {
    if (!allows_statistic(p->stat[i].stat)) return false;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    if (p->block[i]->base.radius > 0.0) return false;
  }
  return true;
}

/* ---- reports ---------------------------------------------------------------------------------*/

static ng_status report_overflows(ng_precond *p) {
  ng_fused *f = &p->step->fused;
  int64_t all = 0;
  const char *name = NULL;
  for (int32_t i = 0; i < p->slots; i++) {
    const int64_t mine = atomic_load(&p->slot[i]->overflowed);
    if (mine > 0 && name == NULL) name = p->slot[i]->name;
    all += mine;
  }
  const int64_t more = all - f->overflowed;
  f->overflowed = all;
  p->overflowed += more;
  p->step->overflowed = more;
  if (more == 0) return NG_OK;
  return ng_fail(p->ctx, NG_RESCUED,
                 "'%s': in an earlier step, elements whose result is not finite kept their old "
                 "value (elements: %lld)",
                 name, (long long)more);
}

/* An observation with a non-finite element makes the sum of a mean vector non-finite. */
static ng_status report_skip(ng_precond *p, int64_t report) {
  const int64_t mean = report - NG_EVA_REFUSED;
  if (mean < 0)
    return ng_fail(p->ctx, NG_SKIPPED,
                   "an earlier step was skipped: a gradient or a preconditioned gradient is not "
                   "finite; its weights are unchanged and the step is not counted");
  return ng_fail(p->ctx, NG_SKIPPED,
                 "an earlier step was skipped: layer '%s': its %s are not finite or their sum "
                 "overflowed; its weights are unchanged and the step is not counted",
                 p->block[mean / 2]->name, mean % 2 == 0 ? "inputs" : "output gradients");
}

/* Read the reports of finished steps. A skipped step was counted when it was launched. */
ng_status ng_fused_settle(ng_precond *p) {
  ng_fused *f = &p->step->fused;
  ng_status st = f->late;
  f->late = NG_OK;
  if (f->launched == 0) return st;
  st = ng_worse_status(st, report_overflows(p));
  for (; f->settled < f->launched; f->settled++) {
    const ng_eva_numbers *now = f->numbers[f->settled % NG_EVA_AHEAD];
    const int64_t report = *(const volatile int64_t *)&now->report;
    if (report == 0) break;
    p->step->nu = now->factor;
    if (report == NG_EVA_COUNTED) continue;
    p->skipped++;
    p->steps--;
    p->updates--;
    st = ng_worse_status(st, report_skip(p, report));
  }
  return st;
}

void ng_fused_stop(ng_precond *p) {
  ng_fused *f = &p->step->fused;
  if (!f->is_running) return;
  ng_queue_wait(p->ctx->queue);
  f->is_running = false;
  f->late = ng_fused_settle(p);
  for (int32_t i = 0; i < 2 * p->blocks; i++) {
    p->block[i / 2]->stat[i % 2].started = f->started[i] != 0;
  }
  f->launched = f->settled = 0;
}

/* ---- the step --------------------------------------------------------------------------------*/

/* After other steps, or at the first step: give the device the host's counts. */
static void start(ng_precond *p) {
  ng_fused *f = &p->step->fused;
  ng_queue_wait(p->ctx->queue);
  f->launched = f->settled = f->overflowed = 0;
  for (int32_t i = 0; i < p->slots; i++) {
    atomic_store(&p->slot[i]->overflowed, 0);
  }
  for (int32_t i = 0; i < 2 * p->blocks; i++) {
    f->started[i] = p->block[i / 2]->stat[i % 2].started;
  }
  *f->lists.updates = p->updates;
  f->is_running = true;
  upload_lists(p, true);
}

void ng_fused_begin(ng_precond *p) {
  ng_fused *f = &p->step->fused;
  if (!is_runnable(p)) {
    ng_fused_stop(p);
  } else if (!f->is_running) {
    start(p);
  } else {
    if (f->launched - f->settled == NG_EVA_AHEAD) ng_queue_wait(p->ctx->queue);
    upload_lists(p, false);
  }
}

static void write_numbers(ng_precond *p, ng_eva_numbers *x) {
  const ng_engine *s = p->step;
  const bool clips = p->opt.base.clip == NG_CLIP_KL && s->lr > 0.0;
  x->bound = clips ? p->opt.base.kl_clip / (s->lr * s->lr) : INFINITY;
  x->report = 0;
  for (int64_t i = 0; i < s->fused.lists.layers; i++) {
    const ng_block *b = i < p->blocks ? p->block[i] : NULL;
    x->damping[i] = b != NULL ? b->base.damping : 1.0;
    x->weight[i] = b != NULL ? ng_clip_weight(b) : 1.0;
  }
  for (int32_t i = 0; i < 2 * p->blocks; i++) {
    ng_block *b = p->block[i / 2];
    ng_mix mix = {1.0, 0.0};
    if (i % 2 == 0 && ng_block_statistics_due(b)) ng_exchange_mark_observed(b);
    if (ng_statistic_due(b, &b->stat[i % 2])) mix = ng_stat_fold_on_device(&b->stat[i % 2]);
    x->fold[2 * i] = mix.old;
    x->fold[2 * i + 1] = mix.fresh;
  }
  for (int32_t i = 0; i < p->update_groups; i++) {
    const ng_group_numbers *g = &s->output.group[i];
    const bool sgd = s->output.kind == NG_OUT_SGD;
    x->group[i] = (ng_eva_group){.lr = sgd ? g->sgd.lr : g->lr,
                                 .dampening = g->dampening,
                                 .mu = g->sgd.mu,
                                 .keep = sgd ? g->sgd.keep : g->adamw.keep,
                                 .decay = g->sgd.decay,
                                 .nesterov = g->sgd.nesterov,
                                 .b1 = g->adamw.b1,
                                 .b2 = g->adamw.b2,
                                 .n1 = g->adamw.n1,
                                 .n2 = g->adamw.n2,
                                 .eps = g->adamw.eps};
  }
}

ng_status ng_fused_run(ng_precond *p) {
  ng_fused *f = &p->step->fused;
  ng_queue *q = p->ctx->queue;
  ng_eva_numbers *x = f->numbers[f->launched % NG_EVA_AHEAD];
  write_numbers(p, x);
  ng_kernels(q)->step_eva(q, &f->lists, x);
  f->launched++;
  return NG_OK;
}
