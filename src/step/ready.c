/* ready.c: from what the caller described to a model that can step: blocks, placement, memory.
 *
 * In: entries, options, ranks.  Out: which layer gets which family, who owns it, where every byte
 * is; and the certainty that all ranks have the same.  Nothing is allocated after it.
 *
 * Families are asked twice for memory, first to count, then to be placed.  A rank that fails on the
 * way does not return: it brings its status to ng_exchange_same, where all ranks learn the worst,
 * and all of them release what they have. */
#include "step/step.h"

#include <stdlib.h>

/* ---- which layer gets a block ----------------------------------------------------------------*/

/* `why` is what ng_explain shows: nothing is left out silently.  Last layers of language models
 * have an output for each word, which is what exclude_width is for. */
static bool may_have_block(ng_entry *e, const ng_skip *skip) {
  ng_layer d = e->d;
  if (e->tensor) d.kind = 0; /* by its name alone */
  const ng_option_id by = e->d.frozen ? NG_OPTION_COUNT : ng_skip_by(skip, &d);
  const char *why = e->d.frozen                     ? "frozen: never touched"
                    : by == NG_OPTION_skip_layers   ? "matches skip_layers"
                    : by == NG_OPTION_exclude_width ? "has exclude_width outputs"
                                                    : NULL;
  if (why != NULL) (void)snprintf(e->why, sizeof e->why, "%s", why);
  return why == NULL;
}

/* The options of a layer: the model's with its own.  `texts` receives them as texts. */
static ng_status settings_of(ng_precond *p, const ng_entry *e, ng_options *texts, ng_settings *s,
                             ng_option_mask *overridden) {
  char message[NG_MESSAGE] = "";
  *texts = p->opt;
  memset(overridden, 0, sizeof *overridden);
  if (e->d.options != NULL) {
    const ng_status st =
        ng_options_override(texts, e->d.options, overridden, message, sizeof message);
    if (st != NG_OK) {
      return ng_fail(p->ctx, st, "layer '%s': options: %s", e->d.name, message);
    }
  }
  ng_settings_of(texts, s);
  return NG_OK;
}

/* The message names a layer: which one it was tells how far the plan got. */
static ng_status no_memory(ng_precond *p, const char *name) {
  return ng_fail(p->ctx, NG_ERR_NOMEM, "no memory for the block of '%s'", name);
}

/* Number and order of blocks come from the order of registration, the same on every rank: owners,
 * messages and the hash rest on it. */
static ng_status new_block(ng_precond *p, const ng_family *f, const char *name, int32_t segments,
                           ng_block **out) {
  ng_block *b = ng_object(p, sizeof *b);
  if (b == NULL) return no_memory(p, name);
  b->segment = ng_object(p, (size_t)segments * sizeof *b->segment);
  if (b->segment == NULL) {
    ng_object_free(p, b, sizeof *b);
    return no_memory(p, name);
  }
  b->segments = segments;
  b->family = f;
  b->p = p;
  b->ctx = p->ctx;
  b->name = name;
  b->number = p->blocks;
  b->sees = f->sees;
  p->block[p->blocks++] = b; /* from here on ng_step_release frees it */
  *out = b;
  return NG_OK;
}

/* Slots from segment `at` on know their block, and it them.  Whole slots: no family of the library
 * splits a parameter. */
static int32_t adopt(ng_block *b, ng_entry *e, int32_t at) {
  e->block = b;
  for (int32_t k = 0; k < e->slots; k++, at++) {
    ng_slot *s = &e->slot[k];
    const ng_segment *last = at > 0 ? &b->segment[at - 1] : NULL;
    b->segment[at] = (ng_segment){.slot = s,
                                  .from = 0,
                                  .to = s->rows * s->cols,
                                  .group = s->update_group,
                                  .at = last == NULL ? 0 : last->at + last->to - last->from,
                                  .factor = 1.0};
    s->block = b;
    s->segment = at;
  }
  return at;
}

/* What the engine knows of a statistic, beside what its family said of it.  statistics = local is
 * DP-KFAC: the owner's samples stand for all (Zhang et al. 2022, arXiv 2206.15143); a family that
 * spreads one in its own way keeps that. */
static void set_rules(ng_block *b) {
  const ng_settings *o = &b->base;
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    /* Gradients are looked at before it is known whether the step can begin: that must be undone. */
    s->rule.direct = s->rule.averaged && o->fold == NG_FOLD_DIRECT && s->sees != NG_SEES_FLATGRAD;
    s->rule.calls = o->calls;
    s->rule.weight = o->call_weight;
    s->rule.start = o->stat_start;
    s->rule.stat_batch = o->stat_batch;
    s->rule.decay = o->stat_decay;
    if (s->kept == 0) s->kept = NG_F32;
    if (s->wire == 0) s->wire = NG_F32;
    s->travels = s->rule.averaged && s->wire == NG_F32 ? o->wire_dtype : s->wire;
    /* What is rounded on the way must not be the average itself. */
    if (s->travels != s->wire) s->rule.direct = false;
    if (s->rule.averaged && s->spread == NG_SPREAD_ALL) {
      s->spread = o->statistics == NG_STATISTICS_LOCAL   ? NG_SPREAD_LOCAL
                  : o->statistics == NG_STATISTICS_OWNER ? NG_SPREAD_OWNER
                                                         : NG_SPREAD_ALL;
    }
    s->owner = b->owner;
    s->stale.on = s->rule.averaged && o->stat_refresh == NG_REFRESH_ADAPTIVE;
    s->stale.tolerance = o->refresh_tolerance;
    s->stale.last = s->stale.before = 1;
  }
}

static ng_status cannot(const ng_block *b, const ng_stat *s, const char *why) {
  return ng_fail(b->ctx, NG_ERR_ARG, "'%s': family %s, statistic %s: %s", b->name, b->family->name,
                 s->name, why);
}

/* What a family (or a test that places by hand) may not ask of a statistic. */
static ng_status check_stat(const ng_block *b, const ng_stat *s) {
  const bool one = s->sees != 0 && (s->sees & (s->sees - 1)) == 0 && (s->sees & ~b->sees) == 0;
  const bool sixteen = s->kept == NG_BF16 || s->kept == NG_F16;
  if (!one) return cannot(b, s, "it must be made from one thing that the family sees");
  if (s->rule.averaged &&
      (s->wire != NG_F32 || !(s->kept == NG_F32 || (sixteen && s->symmetric)))) {
    return cannot(b, s,
                  "averages are f32, of symmetric matrices also bf16 or f16, over sums in f32");
  }
  if (s->wire != NG_F32 && s->wire != NG_F64) return cannot(b, s, "sums are f32 or f64");
  if (s->owner < 0 || s->owner >= b->ctx->ranks || s->owner % b->p->grid.n != b->column) {
    return cannot(b, s, "its owner is no rank of the block's column");
  }
  /* Else the owner of the other would lack this one, and could make nothing of the two. */
  const bool alone = s->spread == NG_SPREAD_OWNER || s->spread == NG_SPREAD_LOCAL;
  for (int32_t i = 0; i < b->stats && alone; i++) {
    if (b->stat[i].owner == s->owner) continue;
    return cannot(b, s, "only its owner keeps it, and another statistic has another owner");
  }
  return NG_OK;
}

/* The order matters: a family sizes statistics by its geometry, placement reads their spread, and
 * who holds a block follows from both.  A family with results holds them in the block's column; one
 * without makes PD from the averages themselves, so keeping is holding; then all of the column must
 * keep it, or some row of the grid would have nobody to hear PD from. */
static ng_status fill_block(ng_block *b) {
  ng_place_block(b);
  ng_status st = b->family->create(b);
  if (st == NG_OK) st = b->family->statistics(b);
  if (st != NG_OK) return st;
  set_rules(b);
  ng_place_stats(b);
  for (int32_t i = 0; i < b->stats && st == NG_OK; i++) {
    st = check_stat(b, &b->stat[i]);
  }
  if (st != NG_OK) return st;
  if (b->partial && b->family->solve != NULL && b->p->grid.n > 1) {
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "'%s': every rank has a share of what family %s measures: it needs "
                   "grad_worker_fraction = 1",
                   b->name, b->family->name);
  }
  if (b->family->solve == NULL && !b->keeps_everywhere && b->p->grid.m > 1) {
    return ng_fail(
        b->ctx, NG_ERR_ARG,
        "'%s': family %s solves nothing that could be shared; statistics of one rank need "
        "grad_worker_fraction = 0",
        b->name, b->family->name);
  }
  /* Columns, not owners: all m ranks of a column get the results. */
  b->holds = b->family->solve != NULL ? b->column == b->p->grid.column : b->keeps;
  for (int kind = 0; kind < NG_SEEN_KINDS; kind++) {
    b->seen[kind] = (b->sees & ng_sees(kind)) == 0; /* nobody waits for it */
  }
  return NG_OK;
}

/* Checked once more with the layer's own values: each was in its range, together they may not
 * go. */
static ng_status layer_block(ng_precond *p, ng_entry *e, const ng_family *f) {
  ng_block *b = NULL;
  ng_options texts;
  char message[NG_MESSAGE] = "";
  ng_status st = new_block(p, f, e->d.name, e->slots, &b);
  if (st != NG_OK) return st;
  b->entry = e;
  (void)adopt(b, e, 0);
  st = settings_of(p, e, &texts, &b->base, &b->overridden);
  if (st != NG_OK) return st;
  b->opt = b->base;
  st = f->check(&texts, &b->base, message, sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "layer '%s': options: %s", e->d.name, message);
  return fill_block(b);
}

/* One block over everything that the family takes and nobody has yet.  A view of the slots, never a
 * flattened copy; its name is the family's. */
static ng_status model_block(ng_precond *p, const ng_family *f) {
  ng_block *b = NULL;
  int32_t segments = 0, at = 0;
  char message[NG_MESSAGE] = "";
  for (int32_t i = 0; i < p->entries; i++) {
    if (p->entry[i]->taken_by == f) segments += p->entry[i]->slots;
  }
  if (segments == 0) return NG_OK;
  for (int32_t i = 0; i < p->entries; i++) {
    if (!ng_is(p->entry[i]->d.name, f->name)) continue;
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "layer '%s' has the name of a family that has a block of its own; rename it",
                   f->name);
  }
  ng_status st = new_block(p, f, f->name, segments, &b);
  if (st != NG_OK) return st;
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    if (e->taken_by != f) continue;
    if (e->d.options != NULL) {
      return ng_fail(p->ctx, NG_ERR_ARG,
                     "layer '%s': options: family %s has one block over many layers, for which the "
                     "model's options hold",
                     e->d.name, f->name);
    }
    (void)snprintf(e->why, sizeof e->why, "in the block of family %s", f->name);
    at = adopt(b, e, at);
  }
  b->base = b->opt = p->base;
  st = f->check(&p->opt, &b->base, message, sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "family '%s': options: %s", f->name, message);
  return fill_block(b);
}

/* With the layer's own options, since `fits` may look at them. */
static ng_status choose(ng_precond *p, ng_entry *e) {
  ng_options texts;
  ng_settings s;
  ng_option_mask overridden;
  const ng_status st = settings_of(p, e, &texts, &s, &overridden);
  if (st == NG_OK) e->taken_by = ng_family_of(p->ctx, &s, e);
  if (st == NG_OK && e->taken_by == NULL && !e->tensor && e->d.kind == NG_EMBEDDING) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "layer '%s': method %s takes no embeddings; register its weight with "
                   "ng_add_tensor, or name it in skip_layers",
                   e->d.name, p->opt.method);
  }
  if (st == NG_OK && e->taken_by == NULL) {
    (void)snprintf(e->why, sizeof e->why, "%s",
                   e->tensor ? "registered as a tensor: no curvature"
                   : e->d.kind == NG_NORM && s.norm_block == NG_NORM_NONE ? "norm_block = none"
                                                                          : "no family takes it");
  }
  return st;
}

/* Layers in order, then families that take the whole model, over what the layers left them. */
static ng_status make_blocks(ng_precond *p) {
  ng_skip skip;
  char message[NG_MESSAGE] = "";
  p->block_capacity = p->entries + NG_FAMILIES_MAX;
  p->block = ng_object(p, (size_t)p->block_capacity * sizeof *p->block);
  if (p->block == NULL) return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  /* It was compiled once when the model was created, so what is left to fail is memory. */
  ng_status st =
      ng_skip_open(p->opt.skip_layers, p->base.exclude_width, &skip, message, sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "ng_ready: %s", message);
  for (int32_t i = 0; i < p->entries && st == NG_OK; i++) {
    ng_entry *e = p->entry[i];
    if (may_have_block(e, &skip)) st = choose(p, e);
    if (st != NG_OK || e->taken_by == NULL) continue;
    if (e->taken_by->scope == NG_SCOPE_LAYER) st = layer_block(p, e, e->taken_by);
  }
  ng_skip_close(&skip);
  for (int32_t i = 0; i < p->ctx->families && st == NG_OK; i++) {
    if (p->ctx->family[i]->scope == NG_SCOPE_MODEL) st = model_block(p, p->ctx->family[i]);
  }
  return st;
}

/* ---- memory ----------------------------------------------------------------------------------*/

/* The same questions in the same order in both passes, or the places would be those of something
 * else.  curvature_bytes of a block is what it added to averages, sums and results. */
ng_status ng_step_ask(ng_precond *p, ng_plan *plan) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    const int64_t held = ng_plan_held(plan);
    ng_plan_stats(plan, b);
    const ng_status st = b->family->plan(b, plan);
    if (st != NG_OK) return st;
    b->curvature_bytes = ng_plan_held(plan) - held;
    ng_deliver_plan(b, plan);
  }
  ng_plan_scratch(plan, ng_gather_scratch(p));
  const int each = p->base.update == NG_UPDATE_ADAMW ? 2 : p->base.update == NG_UPDATE_SGD ? 1 : 0;
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    for (int32_t k = 0; k < e->slots && !e->d.frozen; k++) {
      ng_slot *s = &e->slot[k];
      const int64_t bytes = s->rows * s->cols * (int64_t)sizeof(float);
      if (!s->here) continue;
      s->m = each > 0 ? ng_plan_take(plan, NG_USE_MOMENTS, bytes) : NULL; /* f32 */
      s->v = each > 1 ? ng_plan_take(plan, NG_USE_MOMENTS, bytes) : NULL;
    }
  }
  return NG_OK;
}

/* Groups are counted by the largest number: a fused update has one set of numbers for each. */
static ng_status take_groups(ng_precond *p) {
  int32_t most = 0;
  for (int32_t i = 0; i < p->entries; i++) {
    for (int32_t k = 0; k < p->entry[i]->slots; k++) {
      most = (int32_t)ng_max64(most, p->entry[i]->slot[k].update_group);
    }
  }
  p->update_groups = most + 1;
  p->step->out.group = ng_object(p, (size_t)p->update_groups * sizeof *p->step->out.group);
  if (p->step->out.group != NULL) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
}

/* Before memory: moments are where a weight is moved. */
static ng_status take_slots(ng_precond *p) {
  const bool owned = ng_update_is_owned(p);
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    for (int32_t k = 0; k < e->slots; k++) {
      e->slot[k].here = !owned || ng_update_owner(p, e, i) == p->ctx->rank;
    }
  }
  if (!owned || (p->base.clip != NG_CLIP_RATIO && p->base.clip != NG_CLIP_RMS)) return NG_OK;
  return ng_fail(
      p->ctx, NG_ERR_ARG,
      "update_ranks = owner: clip = %s looks at every preconditioned gradient, which only "
      "its owner has; take kl, rescale, norm or none",
      p->opt.clip);
}

/* Initial values come last: identities are written into averages that were zeroed. */
static ng_status take_memory(ng_precond *p) {
  int32_t most = 1;
  for (int32_t i = 0; i < p->blocks; i++) {
    most = (int32_t)ng_max64(most, p->block[i]->segments);
  }
  p->step->norms_most = most;
  p->step->norms = ng_object(p, (size_t)most * sizeof *p->step->norms);
  if (p->step->norms == NULL) return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  ng_plan plan = {.result = p->result_span, .direction = p->direction_span, .sum = p->sum_span};
  ng_status st = ng_step_ask(p, &plan);
  if (st == NG_OK) st = ng_plan_commit(p, &plan);
  if (st == NG_OK) st = ng_step_ask(p, &plan);
  for (int32_t i = 0; i < p->blocks && st == NG_OK; i++) {
    ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->stats; k++) {
      ng_stat_begin(&b->stat[k]);
    }
    if (b->family->begin != NULL) st = b->family->begin(b);
  }
  return st;
}

/* ---- the same model on every rank? -----------------------------------------------------------*/

/* Not against malice, only against mistakes; compared between ranks of one run and never kept. */
static uint64_t mix(uint64_t h, const void *data, size_t bytes) { /* FNV-1a */
  const unsigned char *c = data;
  for (size_t i = 0; i < bytes; i++) {
    h = (h ^ c[i]) * UINT64_C(1099511628211);
  }
  return h;
}

static uint64_t mix_text(uint64_t h, const char *text) {
  return text == NULL ? mix(h, "", 1) : mix(h, text, strlen(text) + 1);
}

/* Every field of a description but the texts, which are mixed as texts, struct_size, which may differ, and
 * shard_group, which is a rank's own.  A field that is appended to ng_layer changes its size: then it is
 * named here. */
/* clang-format off */
#define LAYER_FIELDS(X)                                                                            \
  X(kind) X(in) X(out) X(bias) X(frozen) X(positions) X(order) X(kernel) X(stride) X(padding)      \
  X(dilation) X(groups) X(image) X(norm_eps) X(norm_input) X(token_dtype) X(shard_axis)            \
  X(norm_kind) X(norm_no_weight)
/* clang-format on */
_Static_assert(sizeof(void *) != 8 || sizeof(ng_layer) == 208, "hash the new field of ng_layer");

static uint64_t mix_layer(uint64_t h, const ng_layer *d) {
  h = mix_text(mix_text(mix_text(h, d->name), d->options), d->alias_of);
#define X(field) h = mix(h, &d->field, sizeof d->field);
  LAYER_FIELDS(X)
#undef X
  return h;
}

/* What must be the same on all ranks for collectives to match: [0] options, [1] layers, so that the
 * message can say which of them differ.  Values as they are written out, not as they were typed. */
static void hash_model(const ng_precond *p, uint64_t hash[2]) {
  hash[0] = hash[1] = UINT64_C(14695981039346656037);
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    char value[NG_MESSAGE] = "";
    if (row->type == NG_OPTION_TEXT) continue; /* any length: below */
    if (!ng_option_write(row, &p->opt, value, sizeof value)) continue;
    hash[0] = mix_text(mix_text(hash[0], row->name), value);
  }
  hash[0] = mix_text(mix_text(hash[0], p->opt.skip_layers), p->opt.schedule);
  hash[0] = mix_text(hash[0], p->opt.method); /* it chooses the family */
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_entry *e = p->entry[i];
    const int32_t group[] = {e->slot[NG_WEIGHT].update_group, e->slot[NG_BIAS].update_group};
    const int64_t field[] = {e->tensor, e->asleep, e->slot[0].cols};
    hash[1] = mix_layer(hash[1], &e->d);
    hash[1] = mix_text(hash[1], e->taken_by == NULL ? NULL : e->taken_by->name);
    hash[1] = mix(hash[1], field, sizeof field);
    hash[1] = mix(hash[1], group, sizeof group);
  }
}

/* ---- ready, release --------------------------------------------------------------------------*/

/* All of a block's statistics have one owner where they go to it (check_stat). */
static int32_t owner_of(const ng_block *b) { return b->stats > 0 ? b->stat[0].owner : b->owner; }

static int earlier(const void *x, const void *y) {
  const ng_block *a = *(ng_block *const *)x, *b = *(ng_block *const *)y;
  const int32_t d = owner_of(a) - owner_of(b);
  return d != 0 ? d : a->number - b->number;
}

static ng_status order_blocks(ng_precond *p) {
  p->by_owner = ng_object(p, (size_t)p->block_capacity * sizeof(ng_block *));
  if (p->by_owner == NULL) return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  for (int32_t i = 0; i < p->blocks; i++) {
    p->by_owner[i] = p->block[i];
  }
  qsort(p->by_owner, (size_t)p->blocks, sizeof(ng_block *), earlier);
  return NG_OK;
}

/* From options, layers and ranks alone: who owns what.  Spans are objects and not part of an arena: the
 * counting pass needs them already. */
ng_status ng_step_place(ng_precond *p) {
  const size_t W = (size_t)p->ctx->ranks;
  ng_status st = ng_grid_make(p);
  if (st == NG_OK) st = take_groups(p);
  if (st == NG_OK) st = make_blocks(p);
  if (st == NG_OK) st = order_blocks(p);
  if (st == NG_OK) st = take_slots(p);
  if (st != NG_OK) return st;
  p->result_span = ng_object(p, W * sizeof *p->result_span);
  p->direction_span = ng_object(p, W * sizeof *p->direction_span);
  p->sum_span = ng_object(p, W * sizeof *p->sum_span);
  if (p->result_span != NULL && p->direction_span != NULL && p->sum_span != NULL) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
}

/* Groups are made last: it is a collective that only ranks with the same grid may enter
 * together. */
ng_status ng_step_ready(ng_precond *p) {
  ng_status st = ng_step_place(p);
  if (st == NG_OK) st = take_memory(p);
  if (st == NG_OK) st = ng_tiles_plan(p);
  if (st == NG_OK) st = ng_exchange_plan(p);
  uint64_t hash[2];
  hash_model(p, hash);
  st = ng_exchange_same(p, hash, st);
  if (st == NG_OK) st = ng_grid_groups(p);
  if (st != NG_OK) {
    /* The transport failed, or ranks differ and would again: only destroy is left. */
    if (st == NG_ERR_COMM) p->broken = true;
    ng_step_release(p);
    return st;
  }
  p->ready = true;
  ng_step_values(p);
  ng_log(p->ctx, NG_LOG_INFO, "ready: blocks = %d parameters = %d bytes = %lld", p->blocks,
         p->entries, (long long)p->ctx->bytes);
  return NG_OK;
}

/* Slots forget their block: after a failure the caller may add a layer and call ng_ready again. */
static void free_block(ng_block *b) {
  for (int32_t k = 0; k < b->segments; k++) {
    ng_slot *s = b->segment[k].slot;
    if (s == NULL) continue;
    s->block = NULL;
    s->entry->block = NULL;
  }
  b->family->destroy(b);
  ng_block_free_stats(b);
  ng_object_free(b->p, b->segment, (size_t)b->segments * sizeof *b->segment);
  ng_object_free(b->p, b, sizeof *b);
}

/* Also of a model that was never ready, or got half way: every piece is NULL or 0 then. */
void ng_step_release(ng_precond *p) {
  const size_t W = (size_t)p->ctx->ranks;
  /* What is on its way has nowhere to arrive afterwards. */
  if (p->ready && !p->broken && ng_exchange_end_last(p) == NG_OK) {
    (void)ng_exchange_wait(p, NG_MAIL_STATISTICS);
  }
  ng_grid_release(p);
  for (int32_t i = 0; i < p->blocks; i++) {
    free_block(p->block[i]);
  }
  ng_object_free(p, p->by_owner, (size_t)p->block_capacity * sizeof(ng_block *));
  ng_object_free(p, p->block, (size_t)p->block_capacity * sizeof *p->block);
  for (int32_t i = 0; i < p->entries; i++) {
    p->entry[i]->taken_by = NULL;
  }
  ng_object_free(p, p->result_span, W * sizeof *p->result_span);
  ng_object_free(p, p->direction_span, W * sizeof *p->direction_span);
  ng_object_free(p, p->sum_span, W * sizeof *p->sum_span);
  ng_arena_release(p);
  p->block = p->by_owner = NULL;
  p->blocks = p->block_capacity = 0;
  p->result_span = p->direction_span = p->sum_span = NULL;
  if (p->step == NULL) return; /* a create that failed */
  ng_tiles_release(p);
  ng_exchange_release(p);
  ng_object_free(p, p->step->norms, (size_t)p->step->norms_most * sizeof *p->step->norms);
  p->step->norms = NULL;
  p->step->norms_most = 0;
  ng_object_free(p, p->step->out.group, (size_t)p->update_groups * sizeof *p->step->out.group);
  p->step->out.group = NULL;
  p->update_groups = 0;
}
