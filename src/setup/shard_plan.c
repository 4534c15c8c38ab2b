/* shard_plan.c: sharded layers in ng_plan_ranks: turn each layer that ng_plan_shard named, and that was registered
 * whole, into the shard that ng_ready would find on the planned rank; afterwards restore the layer.
 *
 * A model group has M consecutive ranks: rank r is member r % M.  The widths of its shards differ by at most 1; the
 * wider shards come first. */
#include "setup/setup.h"

/* Set the width of a registered entry along the sharded axis. */
static void set_width(ng_entry *e, int64_t width) {
  const bool outputs = e->plan_axis == 0;
  ng_slot *w = &e->slot[NG_WEIGHT];
  *(outputs ? &e->d.out : &e->d.in) = width;
  *(outputs ? &w->rows : &w->cols) = width;
  if (outputs && e->d.bias != 0) e->slot[NG_BIAS].cols = width;
}

/* Set the ranks of the model groups, which ng_ready would get from the other ranks (ng_shards_exchange). */
static ng_status set_ranks(ng_precond *p, int32_t members) {
  ng_shards *s = &p->step->shards;
  const int32_t W = p->ctx->ranks, first = p->ctx->rank / members * members;
  if (ng_shards_alloc(p, members) != NG_OK) return NG_ERR_NOMEM;
  for (int32_t i = 0; i < members; i++) {
    s->rank[i] = first + i;
    s->holder[i] = i;
  }
  for (int32_t r = 0; r < W; r++) {
    s->member[r] = r % members;
  }
  return NG_OK;
}

static ng_status shard_layer(ng_precond *p, ng_entry *e, double *width) {
  const int32_t M = e->plan_members, member = p->ctx->rank % M;
  const int64_t n = e->plan_axis == 0 ? e->d.out : e->d.in;
  for (int32_t i = 0; i < M; i++) {
    width[i] = (double)(n / M + (i < n % M));
  }
  e->d.shard_axis = e->plan_axis;
  const ng_status st = ng_shard_make(p, e, width, M, member);
  if (st == NG_OK) set_width(e, (int64_t)width[member]);
  return st;
}

ng_status ng_shards_make_planned(ng_precond *p) {
  int32_t M = 0;
  for (int32_t i = 0; i < p->entries; i++) {
    M = p->entry[i]->plan_members > 0 ? p->entry[i]->plan_members : M;
  }
  if (M == 0) return NG_OK;
  if (p->ctx->ranks % M != 0) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_plan_ranks: ranks = %d: layers are sharded over %d ranks (ng_plan_shard), "
                   "expected a multiple",
                   p->ctx->ranks, M);
  }
  ng_status st = set_ranks(p, M);
  double *width = ng_object(p, (size_t)M * sizeof *width);
  if (width == NULL) st = NG_ERR_NOMEM;
  for (int32_t i = 0; i < p->entries && st == NG_OK; i++) {
    if (p->entry[i]->plan_members > 0) st = shard_layer(p, p->entry[i], width);
  }
  ng_object_free(p, width);
  return st;
}

/* Restore the registered widths.  ng_setup_release then frees the shards. */
void ng_shards_undo_planned(ng_precond *p) {
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    if (e->plan_members == 0) continue;
    const ng_layer *whole = e->shard == NULL ? NULL : &e->shard->whole.d;
    if (whole != NULL) set_width(e, e->plan_axis == 0 ? whole->out : whole->in);
    e->d.shard_axis = -1;
  }
}

ng_status ng_shards_refuse_planned(ng_precond *p) {
  for (int32_t i = 0; i < p->entries; i++) {
    if (p->entry[i]->plan_members == 0) continue;
    return ng_fail(
        p->ctx, NG_ERR_STATE,
        "ng_ready: layer '%s' was sharded by ng_plan_shard, which is for ng_plan_ranks only; "
        "register this rank's shard of the layer",
        p->entry[i]->d.name);
  }
  return NG_OK;
}

/* Add the bytes of gathered gradients, of the statuses of a micro-batch, and of the gathered observations of a
 * sample. */
void ng_shards_count(const ng_precond *p, ng_rank_plan *out) {
  for (int32_t i = 0; i < p->entries; i++) {
    const ng_entry *e = p->entry[i];
    const ng_layer_shard *s = e->shard;
    if (s == NULL || e->block == NULL || s->members == 1) continue;
    const ng_layer *d = &s->whole.d;
    const bool outputs = e->d.shard_axis == 0;
    const int64_t size = (int64_t)sizeof(float), n = s->first_element[s->members];
    if (s->gathers) {
      out->shards_bytes += n * (outputs ? d->in + d->bias : d->out) * size;
      out->shards_messages++;
    }
    out->verdict_bytes += (NG_CODES + NG_HASH_PIECES) * (int64_t)sizeof(double);
    out->observed_bytes += ng_max64(d->positions, 1) * n * size;
  }
}
