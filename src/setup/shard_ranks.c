/* shard_ranks.c: sharded layers in ng_ready: exchange the widths of the shards in each model group, make the whole
 * layers, plan their memory.
 *
 * In every model group one rank is the *primary* of a block, which adds the observations of the group: the rank whose
 * index in its group equals the index of the block's owner in the owner's group, as in GPT-NeoX's preconditioner of
 * gpauloski/kfac-pytorch. */
#include "setup/setup.h"

static int32_t count_sharded(const ng_precond *p) {
  int32_t n = 0;
  for (int32_t i = 0; i < p->entries; i++) {
    n += p->entry[i]->d.shard_axis != -1;
  }
  return n;
}

/* Return the worst status of all ranks of `c`, or NG_ERR_COMM if their numbers of sharded layers differ. */
static ng_status compare_shard_counts(ng_precond *p, ng_comm *c, ng_status local, const char *who) {
  double x[NG_CODES + NG_HASH_PIECES];
  ng_codes_write(x, local);
  ng_hash_split(x + NG_CODES, (uint64_t)count_sharded(p));
  const ng_status st = ng_exchange_sum_over(p, c, x, NG_CODES + NG_HASH_PIECES, "ng_ready");
  if (st != NG_OK) return st;
  const ng_status worst = ng_exchange_worst_status(p, x, local, who);
  if (worst < NG_OK || ng_hash_sums_agree(x + NG_CODES, c->size)) return worst;
  return ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: the number of sharded layers differs between %s",
                 who);
}

/* In each model group: gather the world rank of each member and the widths of its shards in x (by a sum, in which the
 * summands of other ranks are 0), and make the whole layers. */
static ng_status make_shards(ng_precond *p, double *x) {
  ng_shards *s = &p->step->shards;
  ng_comm *c = p->ctx->model;
  const int32_t M = c->size;
  const int64_t numbers = ((int64_t)count_sharded(p) + 1) * M;
  double *width = x + M;
  memset(x, 0, (size_t)numbers * sizeof *x);
  x[c->rank] = p->ctx->rank;
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_layer *d = &p->entry[i]->d;
    if (d->shard_axis == -1) continue;
    width[c->rank] = (double)(d->shard_axis == 0 ? d->out : d->in);
    width += M;
  }
  ng_status st = ng_exchange_sum_over(p, c, x, numbers, "ng_ready");
  if (st != NG_OK) return st;
  for (int32_t i = 0; i < M; i++) {
    s->rank[i] = (int32_t)x[i];
  }
  width = x + M;
  for (int32_t i = 0; i < p->entries && st == NG_OK; i++) {
    if (p->entry[i]->d.shard_axis == -1) continue;
    st = ng_shard_make(p, p->entry[i], width, M, c->rank);
    width += M;
  }
  return st;
}

static ng_status broadcast_from_0(ng_precond *p, void *x, int64_t n, ng_dtype t) {
  const ng_group world = ng_group_world(p->ctx->comm);
  return ng_comm_broadcast(p->ctx->comm, &world, x, n, t, 0) == NG_OK
             ? NG_OK
             : ng_exchange_failed(p, "ng_ready");
}

/* The model group of rank 0 saves the moments: broadcast its ranks and the bounds of its shards. */
static ng_status broadcast_holders(ng_precond *p) {
  ng_shards *s = &p->step->shards;
  const int32_t M = s->members;
  memcpy(s->holder, s->rank, (size_t)M * sizeof *s->holder);
  ng_status st = broadcast_from_0(p, s->holder, M, NG_I32);
  for (int32_t i = 0; i < p->entries && st == NG_OK; i++) {
    ng_layer_shard *shard = p->entry[i]->shard;
    if (shard == NULL) continue;
    memcpy(shard->saved_first_element, shard->first_element,
           ((size_t)M + 1) * sizeof *shard->saved_first_element);
    st = broadcast_from_0(p, shard->saved_first_element, M + 1, NG_I64);
  }
  return st;
}

/* Gather the index of every rank in its model group. */
static ng_status gather_members(ng_precond *p, double *x) {
  const int32_t W = p->ctx->ranks;
  memset(x, 0, (size_t)W * sizeof *x);
  x[p->ctx->rank] = p->ctx->model->rank;
  const ng_status st = ng_exchange_sum(p, x, W, "ng_ready");
  for (int32_t r = 0; r < W && st == NG_OK; r++) {
    p->step->shards.member[r] = (int32_t)x[r];
  }
  return st;
}

ng_status ng_shards_alloc(ng_precond *p, int32_t members) {
  ng_shards *s = &p->step->shards;
  s->members = members;
  s->rank = ng_object(p, (size_t)members * sizeof *s->rank);
  s->member = ng_object(p, (size_t)p->ctx->ranks * sizeof *s->member);
  s->holder = ng_object(p, (size_t)members * sizeof *s->holder);
  return ng_objects_status(p);
}

/* Collective over each model group, then over all ranks.  ng_groups_compare has checked that all model groups have the
 * same size, or that no rank has one. */
ng_status ng_shards_exchange(ng_precond *p) {
  if (p->ctx->model == NULL) return NG_OK;
  const int32_t M = p->ctx->model->size, W = p->ctx->ranks;
  double *x = ng_object(p, (size_t)ng_max64(((int64_t)count_sharded(p) + 1) * M, W) * sizeof *x);
  const ng_status made = ng_shards_alloc(p, M);
  ng_status st = compare_shard_counts(p, p->ctx->model, made, "ranks of the model group");
  if (st == NG_OK) st = make_shards(p, x);
  if (!p->is_broken) st = compare_shard_counts(p, p->ctx->comm, st, "ranks");
  if (st == NG_OK) st = gather_members(p, x);
  if (st == NG_OK) st = broadcast_holders(p);
  ng_object_free(p, x);
  return st;
}

static bool computes_pd(const ng_block *b, int32_t rank) {
  if (b->solves) return rank % b->p->grid.n == b->column;
  return b->averages_everywhere || rank == b->owner;
}

static ng_status refuse_sharded(ng_precond *p, const char *why) {
  return ng_fail(p->ctx, NG_ERR_ABSENT, "ng_ready: sharded layers: %s", why);
}

ng_status ng_shards_set_primary(ng_precond *p) {
  ng_shards *s = &p->step->shards;
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_block *b = p->entry[i]->block;
    ng_layer_shard *shard = p->entry[i]->shard;
    if (b == NULL || shard == NULL) continue;
    s->blocks++;
    ng_shard_copy_flags(p->entry[i]);
    shard->is_primary = s->member[b->owner] == shard->member;
    for (int32_t k = 0; k < shard->members; k++) {
      shard->gathers = shard->gathers || computes_pd(b, s->rank[k]);
    }
  }
  if (s->blocks == 0) return NG_OK;
  if (p->opt.base.statistics == NG_STATISTICS_LOCAL) {
    return refuse_sharded(p, "statistics = local is not supported; set all or owner");
  }
  if (ng_update_is_owned(p)) {
    return refuse_sharded(p, "update_ranks = owner is not supported; set all");
  }
  if (p->opt.base.quantify) return refuse_sharded(p, "quantify = 1 is not supported; set 0");
  return NG_OK;
}

void ng_shards_plan_memory(const ng_precond *p, ng_plan *plan) {
  for (int32_t i = 0; i < p->entries; i++) {
    ng_layer_shard *s = p->entry[i]->shard;
    if (s == NULL) continue;
    const ng_layer *d = &s->whole.d;
    const int64_t bytes = d->out * (d->in + d->bias) * (int64_t)sizeof(float);
    if (s->gathers) ng_plan_scratch(plan, bytes);
    s->whole_grad = ng_plan_take(plan, NG_USE_DIRECTION, bytes);
    if (s->whole_grad == NULL) continue; /* counting pass */
    s->whole.slot[NG_WEIGHT].grad.data = s->whole_grad;
    if (d->bias != 0) s->whole.slot[NG_BIAS].grad.data = s->whole_grad + d->out * d->in;
  }
}
