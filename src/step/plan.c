/* plan.c: ng_plan_rank: what any rank of many would hold and send.
 *
 * In: a model that is described and not ready, ranks, a rank.  Out: bytes, messages, costs.  The same steps as
 * ng_ready up to the counting pass, with the numbers of another rank; then all of it goes again.  No memory
 * but objects, no collective: so a laptop plans for thousands of ranks. */
#include "step/step.h"

static void add_costs(const ng_precond *p, ng_rank_plan *out) {
  out->blocks = p->blocks;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    out->owned += b->owner == p->ctx->rank;
    out->held += b->holds;
    for (int32_t k = 0; k < b->stats && b->family->solve != NULL; k++) {
      const ng_stat *s = &b->stat[k];
      if (s->owner == p->ctx->rank && s->symmetric)
        out->solve_cost += ng_stat_cost(s, NG_COST_COMPUTE);
    }
    if (b->holds) out->apply_cost += ng_block_apply_cost(b);
  }
}

static void add_memory(const ng_plan *plan, ng_rank_plan *out) {
  int64_t *const use[NG_USES] = {&out->factors, &out->sums,    &out->results, &out->direction,
                                 &out->moments, &out->scratch, NULL};
  for (int i = 0; i < NG_USE_OBJECTS; i++) {
    *use[i] = plan->bytes[i];
  }
}

/* Elements from the beginning of its first piece to the end of its last; pieces begin on cache lines. */
static int64_t length_of(const ng_stat *s) {
  const int64_t size = ng_dtype_size(s->wire);
  int64_t n = 0;
  for (int32_t m = 0; m < s->parts; m++) {
    n = (n * size + NG_ALIGN - 1) / NG_ALIGN * NG_ALIGN / size + ng_stat_sent_count(s, &s->part[m]);
  }
  return n;
}

typedef struct sums {
  const ng_stat *before; /* the last one, if it is at the end of the message at hand */
  int64_t message;       /* elements of that */
} sums;

/* As add_message of sums.c joins them, by lengths instead of places: a message ends with the last element of
 * its last piece. */
static void add_statistic(const ng_precond *p, const ng_stat *s, sums *x, ng_rank_plan *out) {
  const ng_stat *before = x->before;
  x->before = NULL;
  if (!ng_stat_sent(s) || !s->observes) return;
  const int64_t size = ng_dtype_size(s->wire), travels = ng_dtype_size(s->travels);
  const int64_t gap = (NG_ALIGN - x->message * size % NG_ALIGN) % NG_ALIGN / size;
  int64_t more = gap + length_of(s);
  if (before == NULL || s->alone || !ng_stat_joins(before, s) ||
      (x->message + more) * travels > ng_step_bucket(p)) {
    out->sums_messages++;
    x->message = 0;
    more -= gap;
  }
  x->message += more;
  out->sums_bytes += more * travels;
  if (!s->alone) x->before = s;
}

/* Those that go to owners, or the others. */
static void add_statistics(const ng_precond *p, bool owned, ng_rank_plan *out) {
  sums x = {NULL, 0};
  for (int32_t i = 0; i < p->owned && owned; i++) {
    add_statistic(p, p->by_owner[i].stat, &x, out);
  }
  for (int32_t i = 0; i < p->blocks && !owned; i++) {
    const ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->stats; k++) {
      if (ng_stat_to_owner(&b->stat[k])) {
        x.before = NULL;
      } else {
        add_statistic(p, &b->stat[k], &x, out);
      }
    }
  }
}

/* Parts of PD that ranks make of a block, to all. */
static void add_slices(const ng_precond *p, ng_rank_plan *out) {
  for (int32_t i = 0; i < p->blocks; i++) {
    const int64_t *slice = p->block[i]->slice;
    for (int32_t r = 0; r < p->ctx->ranks && slice != NULL; r++) {
      out->deliver_bytes += (slice[r + 1] - slice[r]) * (int64_t)sizeof(float);
      out->deliver_messages += slice[r + 1] > slice[r];
    }
  }
}

/* Of a step in which everything is due, and all that it posts leaves at its station. */
static void add_messages(const ng_precond *p, ng_rank_plan *out) {
  if (p->ctx->ranks == 1) return;
  out->check_bytes = ng_exchange_check_count(p) * (int64_t)sizeof(double);
  for (int32_t i = 0; i < p->blocks; i++) {
    for (int32_t r = 0; r < p->block[i]->rounds; r++) {
      out->choose_bytes += p->block[i]->round[r] * (int64_t)sizeof(double);
      out->choose_messages++;
    }
  }
  out->tell_bytes = ng_exchange_told_count(p) * (int64_t)sizeof(double);
  out->agree_bytes = ng_exchange_agree_count(p) * (int64_t)sizeof(double);
  add_statistics(p, false, out);
  out->scatter_bytes = -out->sums_bytes;
  out->scatter_messages = -out->sums_messages;
  add_statistics(p, true, out);
  out->scatter_bytes += out->sums_bytes;
  out->scatter_messages += out->sums_messages;
  add_slices(p, out);
  for (int32_t i = 0; i < p->ctx->ranks; i++) {
    const int64_t result = p->grid.m > 1 ? p->result_span[i].end : 0;
    const bool travels = p->grid.n > 1 && !ng_update_is_owned(p); /* weights do instead */
    const int64_t direction = travels ? p->direction_span[i].end : 0;
    out->share_bytes += result;
    out->share_messages += result > 0;
    out->deliver_bytes += direction;
    out->deliver_messages += direction > 0;
  }
}

/* The context says which rank of how many it is in one place; nothing else has it while this runs. */
ng_status ng_step_plan(ng_precond *p, int32_t ranks, int32_t rank, ng_rank_plan *out) {
  ng_context *c = p->ctx;
  for (int32_t i = 0; i < p->entries; i++) {
    if (p->entry[i]->d.shard_axis == -1) continue;
    return ng_fail(c, NG_ERR_ABSENT,
                   "ng_plan_rank: layer '%s' is in shards, whose widths other ranks know; register "
                   "it whole and call ng_plan_shard",
                   p->entry[i]->d.name);
  }
  const int32_t own[2] = {c->ranks, c->rank};
  c->ranks = ranks;
  c->rank = rank;
  ng_status st = ng_shards_plan(p);
  if (st == NG_OK) st = ng_step_place(p);
  ng_plan plan = {.result = p->result_span, .direction = p->direction_span, .sum = p->sum_span};
  if (st == NG_OK) st = ng_step_ask(p, &plan);
  if (st == NG_OK) {
    out->workers = p->grid.m;
    add_costs(p, out);
    add_memory(&plan, out);
    add_messages(p, out);
    ng_gather_in_advance(p, out);
    ng_shards_count(p, out);
  }
  ng_shards_unplan(p);
  ng_step_release(p);
  c->ranks = own[0];
  c->rank = own[1];
  return st;
}
