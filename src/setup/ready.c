/* ready.c: ng_ready: allocate memory, and compare the models of all ranks.
 *
 * A rank that fails does not return at once, because the other ranks wait in the next collective.  It sends its status
 * in ng_exchange_compare_models; then all ranks free their memory and return the same error. */
#include "setup/setup.h"

#include <stdlib.h>

/* ---- memory ----------------------------------------------------------------------------------*/

/* The counting pass and the placing pass call this function, so they request the same memory in the same order. The sums of all
 * statistics are adjacent, as messages need them (step/sums.c); other memory of families in the same arena follows. */
ng_status ng_setup_request_memory(ng_precond *p, ng_plan *plan) {
  for (int32_t i = 0; i < p->blocks; i++) {
    const int64_t before = ng_plan_counted_bytes(plan);
    ng_plan_stats(plan, p->block[i]);
    p->block[i]->curvature_bytes = ng_plan_counted_bytes(plan) - before;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    const int64_t before = ng_plan_counted_bytes(plan);
    const ng_status st = b->family->request_memory(b, plan);
    if (st != NG_OK) return st;
    b->curvature_bytes += ng_plan_counted_bytes(plan) - before;
    ng_emission_plan_direction(b, plan);
  }
  ng_plan_scratch(plan, ng_gather_scratch(p));
  ng_shards_plan_memory(p, plan);
  const bool adamw = p->opt.base.update == NG_UPDATE_ADAMW;
  const bool sgd = p->opt.base.update == NG_UPDATE_SGD;
  for (int32_t i = 0; i < p->slots; i++) {
    ng_slot *s = p->slot[i];
    const int64_t bytes = s->rows * s->cols * ng_dtype_size(s->moment_dtype);
    if (!s->updates_here || s->entry->d.frozen) continue;
    s->m = adamw || sgd ? ng_plan_take(plan, NG_USE_MOMENTS, bytes) : NULL;
    s->v = adamw ? ng_plan_take(plan, NG_USE_MOMENTS, bytes) : NULL;
  }
  return NG_OK;
}

/* Set the number of groups of ng_set_group, the largest index + 1, and allocate their numbers. */
static ng_status count_groups(ng_precond *p) {
  int32_t most = 0;
  for (int32_t i = 0; i < p->slots; i++) {
    most = (int32_t)ng_max64(most, p->slot[i]->update_group);
  }
  p->update_groups = most + 1;
  p->step->output.group = ng_object(p, (size_t)p->update_groups * sizeof *p->step->output.group);
  return ng_objects_status(p);
}

/* Set slot->moment_dtype, and slot->updates_here: this rank updates the weight.  Only such slots get memory for moments. */
static ng_status set_updates(ng_precond *p) {
  const bool owned = ng_update_is_owned(p);
  for (int32_t i = 0; i < p->slots; i++) {
    ng_slot *s = p->slot[i];
    s->moment_dtype = s->weight.data != NULL && s->weight.dtype == NG_F64 ? NG_F64 : NG_F32;
    s->updates_here = !owned || ng_update_owner(p, s->entry) == p->ctx->rank;
  }
  if (!owned || (p->opt.base.clip != NG_CLIP_RATIO && p->opt.base.clip != NG_CLIP_RMS))
    return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG,
                 "update_ranks = owner: clip = %s reads every preconditioned gradient, which only "
                 "its owner has; set kl, rescale, norm or none",
                 ng_choice_text(NG_OPTION_clip, (int32_t)p->opt.base.clip));
}

/* Count, allocate and place all memory, then set initial values. */
static ng_status allocate_memory(ng_precond *p) {
  ng_plan plan = {.result = p->result_span, .direction = p->direction_span, .sum = p->sum_span};
  ng_status st = ng_setup_request_memory(p, &plan);
  if (st == NG_OK) st = ng_plan_commit(p, &plan);
  if (st == NG_OK) st = ng_setup_request_memory(p, &plan);
  for (int32_t i = 0; i < p->stats && st == NG_OK; i++) {
    const char *name = p->stat[i].block->name;
    ng_queue_name_blocks(p->ctx->queue, name, name);
    ng_stat_init(p->ctx->queue, p->stat[i].stat);
  }
  ng_queue_wait(p->ctx->queue);
  for (int32_t i = 0; i < p->blocks && st == NG_OK; i++) {
    if (p->block[i]->family->set_initial_values != NULL)
      st = p->block[i]->family->set_initial_values(p->block[i]);
  }
  return st;
}

/* ---- the same model on every rank? -----------------------------------------------------------*/

/* Extend the hash h by data (FNV-1a).  Hashes are compared between the ranks of one run and never stored. */
static uint64_t hash_bytes(uint64_t h, const void *data, size_t bytes) {
  const unsigned char *c = data;
  for (size_t i = 0; i < bytes; i++) {
    h = (h ^ c[i]) * UINT64_C(1099511628211);
  }
  return h;
}

static uint64_t hash_text(uint64_t h, const char *text) {
  return text == NULL ? hash_bytes(h, "", 1) : hash_bytes(h, text, strlen(text) + 1);
}

/* All fields of ng_layer, except texts (see hash_layer), struct_size (which may differ between ranks) and shard_group
 * (which is unused).  A new field of ng_layer must be added here. */
/* clang-format off */
#define LAYER_FIELDS(X)                                                                            \
  X(kind) X(in) X(out) X(bias) X(frozen) X(positions) X(order) X(kernel) X(stride) X(padding)      \
  X(dilation) X(groups) X(image) X(norm_eps) X(norm_input) X(token_dtype) X(shard_axis)            \
  X(norm_kind) X(norm_no_weight)
/* clang-format on */
_Static_assert(sizeof(void *) != 8 || sizeof(ng_layer) == 208, "hash the new field of ng_layer");

static uint64_t hash_layer(uint64_t h, const ng_layer *d) {
  h = hash_text(hash_text(hash_text(h, d->name), d->options), d->alias_of);
#define X(field) h = hash_bytes(h, &d->field, sizeof d->field);
  LAYER_FIELDS(X)
#undef X
  return h;
}

/* Hash everything that must be equal on all ranks: hash[0] options, [1] layers, [2] owners, [3] linear algebra.  With
 * separate hashes a message can name the difference. */
static void hash_model(const ng_precond *p, uint64_t hash[NG_HASHES]) {
  hash[1] = hash[2] = UINT64_C(14695981039346656037);
  hash[3] = hash_text(hash[1], p->ctx->queue->backend->name);
  hash[0] = hash_text(ng_options_hash(p), p->opt.skip_layers);
  hash[0] = hash_text(hash[0], p->opt.per_layer);
  hash[0] = hash_text(hash[0], p->opt.root_exponents);
  /* hash the name of the method, because the method selects the family */
  hash[0] = hash_text(hash[0], p->opt.base.method);
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_entry *e = p->entry[i];
    const int32_t group[] = {e->slot[NG_WEIGHT].update_group, e->slot[NG_BIAS].update_group};
    const int64_t field[] = {e->is_tensor, e->is_frozen, ng_entry_whole(e)->slot[0].cols,
                             e->slot[0].moment_dtype, e->slot[1].moment_dtype};
    hash[1] = hash_layer(hash[1], &ng_entry_whole(e)->d);
    hash[1] = hash_text(hash[1], e->family == NULL ? NULL : e->family->name);
    hash[1] = hash_bytes(hash[1], field, sizeof field);
    hash[1] = hash_bytes(hash[1], group, sizeof group);
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    hash[2] = hash_bytes(hash[2], &p->block[i]->owner, sizeof p->block[i]->owner);
  }
  for (int32_t i = 0; i < p->stats; i++) {
    hash[2] = hash_bytes(hash[2], &p->stat[i].stat->owner, sizeof p->stat[i].stat->owner);
  }
}

/* ---- ready, release --------------------------------------------------------------------------*/

static int compare_owners(const void *x, const void *y) {
  const ng_block_stat *a = x, *b = y;
  const int32_t d = a->stat->owner - b->stat->owner;
  if (d != 0) return d;
  if (a->block != b->block) return a->block->index - b->block->index;
  return a->stat < b->stat ? -1 : a->stat > b->stat;
}

/* List the statistics that only one owner receives, in the order of their sums in memory (model/arena.c). */
static ng_status list_owned(ng_precond *p) {
  p->owned = ng_object(p, (size_t)p->stats * sizeof *p->owned);
  for (int32_t i = 0; i < p->stats && p->owned != NULL; i++) {
    if (ng_stat_goes_to_owner(p->stat[i].stat)) p->owned[p->owned_stats++] = p->stat[i];
  }
  if (p->owned_stats > 0) qsort(p->owned, (size_t)p->owned_stats, sizeof *p->owned, compare_owners);
  return ng_objects_status(p);
}

ng_status ng_setup_place(ng_precond *p) {
  const size_t W = (size_t)p->ctx->ranks;
  ng_status st = ng_grid_make(p);
  if (st == NG_OK) st = count_groups(p);
  if (st == NG_OK) st = ng_blocks_make(p);
  if (st == NG_OK) st = list_owned(p);
  if (st == NG_OK) st = set_updates(p);
  if (st == NG_OK) st = ng_shards_set_primary(p);
  if (st != NG_OK) return st;
  p->result_span = ng_object(p, 3 * W * sizeof *p->result_span);
  if (p->result_span == NULL) return NG_ERR_NOMEM;
  p->direction_span = p->result_span + W;
  p->sum_span = p->direction_span + W;
  return NG_OK;
}

/* Allowed only for models in which no block depends on the rank number (plan.c). */
ng_status ng_setup_switch_rank(ng_precond *p, int32_t rank) {
  p->ctx->rank = rank;
  p->grid.row = rank / p->grid.n;
  p->grid.column = rank % p->grid.n;
  ng_status st = ng_blocks_set_workers(p);
  if (st == NG_OK) st = set_updates(p);
  memset(p->result_span, 0, 3 * (size_t)p->ctx->ranks * sizeof *p->result_span);
  return st;
}

/* Groups of ranks are created after the comparison of models: all ranks must have the same grid. */
static ng_status make_model(ng_precond *p) {
  ng_status st = ng_shards_refuse_planned(p);
  if (st == NG_OK) st = ng_setup_place(p);
  if (st == NG_OK) st = allocate_memory(p);
  if (st == NG_OK) st = ng_emission_plan(p);
  if (st == NG_OK) st = ng_fused_plan(p);
  if (st == NG_OK) st = ng_quantify_plan(p);
  if (st == NG_OK) st = ng_exchange_plan(p);
  const char *error = st == NG_OK ? ng_step_settle(p) : NULL;
  if (error != NULL)
    st = ng_fail(p->ctx, NG_ERR_DEVICE, "ng_ready: linalg = %s: %s", p->ctx->queue->backend->name,
                 error);
  uint64_t hash[NG_HASHES];
  hash_model(p, hash);
  st = ng_exchange_compare_models(p, hash, st);
  if (st == NG_OK) st = ng_grid_groups(p);
  if (st == NG_ERR_COMM) ng_exchange_abort(p);
  return st;
}

ng_status ng_setup_ready(ng_precond *p) {
  ng_objects_open(p);
  ng_status st = ng_groups_compare(p);
  if (st == NG_OK) st = ng_shards_exchange(p);
  /* if the collective above failed, all ranks of this stage have an error */
  if (st == NG_OK) st = make_model(p);
  const ng_status worst = p->is_broken ? st : ng_pipeline_check(p, st);
  if (st == NG_OK) st = worst;
  if (st != NG_OK) {
    /* NG_ERR_COMM: the transport failed, or the models of ranks differ. After these errors the model can only be destroyed. */
    if (st == NG_ERR_COMM || st == NG_ERR_DEVICE) p->is_broken = true;
    ng_setup_release(p);
    return st;
  }
  p->is_ready = true;
  ng_log(p->ctx, NG_LOG_INFO, "ready: blocks = %d parameters = %d bytes = %lld", p->blocks,
         p->entries, (long long)p->ctx->allocated_bytes);
  return NG_OK;
}

/* Afterwards the caller may add layers and call ng_ready again. */
void ng_setup_release(ng_precond *p) {
  /* complete the posted messages before their memory is freed */
  if (p->is_ready && !p->is_broken && ng_exchange_end_last_batch(p) == NG_OK) {
    (void)ng_exchange_wait(p, NG_MAIL_STATISTICS);
  }
  ng_grid_release(p);
  ng_arena_release(p);
  /* the memory is freed after a wait, so no work of this model is pending that an error could name */
  ng_queue_name_blocks(p->ctx->queue, NULL, NULL);
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    e->family = NULL;
    e->block = e->slot[NG_WEIGHT].block = e->slot[NG_BIAS].block = NULL;
    e->shard = NULL;
    if (e->has_per_layer_options) e->d.options = NULL;
    e->has_per_layer_options = false;
  }
  p->block = NULL;
  p->stat = p->owned = NULL;
  p->blocks = p->stats = p->owned_stats = p->update_groups = p->unused_count = 0;
  if (p->step != NULL) *p->step = (ng_engine){.nu = 1.0};
  ng_objects_free_after(p, p->lasting);
}
