/* plan.c: ng_plan_ranks: count bytes, messages and costs of any rank, for any number of ranks.
 *
 * For each rank, run ng_ready with that rank's number up to the counting pass, then release the result.  Allocate only
 * objects and call no collective, so a laptop can plan thousands of ranks.  If no block or shard depends on the rank's
 * number, place blocks once for all ranks.  Ranks that own nothing have the plan of the first such rank of their
 * column. */
#include "setup/setup.h"

static void add_costs(const ng_precond *p, ng_rank_plan *out) {
  out->blocks = p->blocks;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    out->owned += b->owner == p->ctx->rank;
    out->held += b->is_worker;
    for (int32_t k = 0; k < b->stats && b->solves; k++) {
      const ng_stat *s = &b->stat[k];
      if (s->owner == p->ctx->rank && s->symmetric) out->solve_cost += ng_stat_cost(s, false);
    }
    if (b->is_worker) out->apply_cost += ng_block_apply_cost(b);
  }
}

static void add_memory(const ng_plan *plan, ng_rank_plan *out) {
  int64_t *const use[NG_USES] = {&out->factors, &out->sums,    &out->results, &out->direction,
                                 &out->moments, &out->scratch, NULL};
  for (int i = 0; i < NG_USE_OBJECTS; i++) {
    *use[i] = plan->bytes[i];
  }
}

typedef struct message_sums {
  const ng_stat *before; /* the last statistic of the current message */
  int64_t message;       /* elements of that message */
} message_sums;

static void add_statistic(const ng_precond *p, const ng_stat *s, message_sums *x,
                          ng_rank_plan *out) {
  const ng_stat *before = s->own_message ? NULL : x->before;
  int64_t gap, n;
  x->before = NULL;
  if (!ng_stat_is_sent(s) || !s->observes) return;
  if (!ng_stat_joins_message(p, before, s, x->message, &gap, &n)) {
    out->sums_messages++;
    x->message = gap = 0;
  }
  x->message += gap + n;
  out->sums_bytes += (gap + n) * ng_dtype_size(s->wire_dtype);
  if (!s->own_message) x->before = s;
}

/* Add the messages of statistics that go to their owner (`owned`), or of all other statistics. */
static void add_statistics(const ng_precond *p, bool owned, ng_rank_plan *out) {
  message_sums x = {NULL, 0};
  for (int32_t i = 0; i < p->owned_stats && owned; i++) {
    add_statistic(p, p->owned[i].stat, &x, out);
  }
  for (int32_t i = 0; i < p->blocks && !owned; i++) {
    const ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->stats; k++) {
      if (ng_stat_goes_to_owner(&b->stat[k])) {
        x.before = NULL;
      } else {
        add_statistic(p, &b->stat[k], &x, out);
      }
    }
  }
}

/* Add the broadcasts of slices of PD. */
static void add_slices(const ng_precond *p, ng_rank_plan *out) {
  for (int32_t i = 0; i < p->blocks; i++) {
    const int64_t *slice = p->block[i]->slice;
    for (int32_t r = 0; r < p->ctx->ranks && slice != NULL; r++) {
      out->deliver_bytes += (slice[r + 1] - slice[r]) * (int64_t)sizeof(float);
      out->deliver_messages += slice[r + 1] > slice[r];
    }
  }
}

/* Add the messages of a step in which all statistics and solves are due and no message is sent before the step. */
static void add_messages(const ng_precond *p, ng_rank_plan *out) {
  if (p->ctx->ranks == 1) return;
  out->check_bytes = ng_exchange_check_count(p) * (int64_t)sizeof(double);
  for (int32_t i = 0; i < p->blocks; i++) {
    for (int32_t r = 0; r < p->block[i]->topk_rounds; r++) {
      out->topk_bytes += p->block[i]->topk_counts[r] * (int64_t)sizeof(double);
      out->topk_messages++;
    }
  }
  out->trace_bytes = ng_traces_count(p) * (int64_t)sizeof(double);
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
    const bool travels =
        p->grid.n > 1 && !ng_update_is_owned(p); /* owners send weights instead of PD */
    const int64_t direction = travels ? p->direction_span[i].end : 0;
    out->share_bytes += result;
    out->share_messages += result > 0;
    out->deliver_bytes += direction;
    out->deliver_messages += direction > 0;
  }
}

/* ---- one rank, all ranks ---------------------------------------------------------------------*/

static ng_status check_whole(const ng_precond *p) {
  for (int32_t i = 0; i < p->entries; i++) {
    if (p->entry[i]->d.shard_axis == -1) continue;
    return ng_fail(
        p->ctx, NG_ERR_ABSENT,
        "ng_plan_ranks: layer '%s' is sharded, and the widths of other ranks are unknown; register "
        "it whole and call ng_plan_shard",
        p->entry[i]->d.name);
  }
  return NG_OK;
}

/* Fill *out for rank p->ctx->rank, after placement. */
static ng_status count_rank(ng_precond *p, ng_rank_plan *out) {
  ng_plan plan = {.result = p->result_span, .direction = p->direction_span, .sum = p->sum_span};
  const ng_status st = ng_setup_request_memory(p, &plan);
  if (st != NG_OK) return st;
  out->workers = p->grid.m;
  add_costs(p, out);
  add_memory(&plan, out);
  add_messages(p, out);
  ng_gather_count_traffic(p, out);
  ng_shards_count(p, out);
  return NG_OK;
}

/* Return whether some block is sliced, or some layer is sharded: then plans depend on the rank's number. */
static bool differs_by_number(const ng_precond *p) {
  bool cut = false;
  for (int32_t i = 0; i < p->blocks && !cut; i++) {
    cut = p->block[i]->slice != NULL;
  }
  for (int32_t i = 0; i < p->entries && !cut; i++) {
    cut = p->entry[i]->shard != NULL;
  }
  return cut;
}

enum { UNKNOWN_OWNER = -1 };

/* Ranks that own nothing have equal plans if they are in the same column, or in columns without blocks. */
typedef struct rank_twins {
  bool *owns;   /* [ranks] the rank owns a block, a statistic or a weight */
  bool *filled; /* [columns] the column has a block */
  int32_t *
      answer; /* [ranks + 1] first such rank of each column; the last element: of all columns without blocks */
} rank_twins;

static void find_owners(const ng_precond *p, rank_twins *t) {
  for (int32_t r = 0; r <= p->ctx->ranks; r++) {
    t->answer[r] = UNKNOWN_OWNER;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    t->filled[b->column] = true;
    t->owns[b->owner] = true;
    for (int32_t k = 0; k < b->stats; k++) {
      t->owns[b->stat[k].owner] = true;
    }
  }
  for (int32_t i = 0; i < p->entries && ng_update_is_owned(p); i++) {
    t->owns[ng_update_owner(p, p->entry[i], i)] = true;
  }
}

/* Return the first rank with the same plan as `rank`. */
static int32_t twin_of(const ng_precond *p, rank_twins *t, int32_t rank) {
  const int32_t column = rank % p->grid.n;
  int32_t *first = &t->answer[t->filled[column] ? column : p->ctx->ranks];
  if (t->owns[rank]) return rank;
  if (*first == UNKNOWN_OWNER) *first = rank;
  return *first;
}

static ng_rank_plan *plan_at(ng_rank_plan *out, size_t size, int32_t rank) {
  return (ng_rank_plan *)(void *)((char *)out + (size_t)rank * size);
}

/* Make and place the blocks for rank p->ctx->rank; fill *t. */
static ng_status place_twins(ng_precond *p, rank_twins *t) {
  const size_t W = (size_t)p->ctx->ranks;
  ng_objects_open(p);
  *t = (rank_twins){ng_object(p, W * sizeof *t->owns), ng_object(p, W * sizeof *t->filled),
                    ng_object(p, (W + 1) * sizeof *t->answer)};
  ng_status st = ng_objects_status(p);
  if (st == NG_OK) st = ng_shards_plan(p);
  if (st == NG_OK) st = ng_setup_place(p);
  if (st == NG_OK) find_owners(p, t);
  return st;
}

static void release(ng_precond *p) {
  ng_shards_unplan(p);
  ng_setup_release(p);
}

/* Place the blocks once and turn to one rank after the other, or place the blocks for each rank if plans depend on its
 * number.  The context stores rank and size for all code, so they are replaced during the plan. */
ng_status ng_setup_plan(ng_precond *p, int32_t ranks, int32_t first, int32_t n, ng_rank_plan *out,
                        size_t size) {
  ng_context *c = p->ctx;
  const int32_t own[2] = {c->ranks, c->rank};
  rank_twins t;
  bool placed = false;
  ng_status st = check_whole(p);
  if (st != NG_OK) return st;
  c->ranks = ranks;
  for (int32_t r = first; r < first + n && st == NG_OK; r++) {
    ng_rank_plan plan;
    memset(&plan, 0, sizeof plan);
    c->rank = r;
    if (!placed) st = place_twins(p, &t);
    if (st != NG_OK) break;
    const int32_t twin = twin_of(p, &t, r);
    if (twin < r) {
      memcpy(plan_at(out, size, r - first), plan_at(out, size, twin - first), size);
      continue;
    }
    if (placed) st = ng_setup_switch_rank(p, r);
    if (st == NG_OK) st = count_rank(p, &plan);
    if (st == NG_OK) st = ng_struct_write(plan_at(out, size, r - first), &plan, sizeof plan);
    placed = !differs_by_number(p);
    if (!placed) release(p);
  }
  release(p);
  c->ranks = own[0];
  c->rank = own[1];
  return st;
}
