/* plan.c: ng_plan_ranks: count bytes, messages and costs of any rank, for any number of ranks.
 *
 * For each rank, run the steps of ng_ready with the number of that rank, up to the counting pass, and release the
 * result.  No arena is allocated and no collective is called, so a laptop can plan thousands of ranks.  To save time,
 * place the blocks only once, if no block or shard depends on the number of the rank, and copy the plan of a rank that
 * owns nothing to the other such ranks of its column. */
#include "setup/setup.h"

static void add_costs(const ng_precond *p, ng_rank_plan *out) {
  out->blocks = p->blocks;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    out->owned += b->owner == p->ctx->rank;
    out->held += b->is_worker;
    if (b->is_worker) out->apply_cost += ng_block_apply_cost(b);
  }
  for (int32_t i = 0; i < p->stats; i++) {
    const ng_stat *s = p->stat[i].stat;
    const bool solves = s->owner == p->ctx->rank && p->stat[i].block->solves && s->symmetric;
    if (solves) out->solve_cost += ng_stat_cost(s, false);
  }
}

static void add_memory(const ng_plan *plan, ng_rank_plan *out) {
  int64_t *const use[NG_USES] = {&out->factors, &out->sums,    &out->results, &out->direction,
                                 &out->moments, &out->scratch, NULL};
  for (int i = 0; i < NG_USE_OBJECTS; i++) {
    *use[i] = plan->bytes[i];
  }
}

/* The message to which the next statistic may be appended. */
typedef struct open_message {
  const ng_stat *last; /* the last statistic of the message; NULL: nothing can be appended */
  int64_t count;       /* number of elements of the message so far */
} open_message;

static void add_statistic(const ng_precond *p, const ng_stat *s, open_message *x,
                          ng_rank_plan *out) {
  const ng_stat *last = s->own_message ? NULL : x->last;
  int64_t gap, n;
  x->last = NULL;
  if (!ng_stat_is_sent(s) || !s->observes) return;
  if (!ng_stat_joins_message(p, last, s, x->count, &gap, &n)) {
    out->sums_messages++;
    x->count = gap = 0;
  }
  x->count += gap + n;
  out->sums_bytes += (gap + n) * ng_dtype_size(s->wire_dtype);
  if (!s->own_message) x->last = s;
}

/* Add the messages of the statistics that only one owner receives (`owned`), or of all other statistics. */
static void add_statistics(const ng_precond *p, bool owned, ng_rank_plan *out) {
  open_message x = {NULL, 0};
  for (int32_t i = 0; i < p->owned_stats && owned; i++) {
    add_statistic(p, p->owned[i].stat, &x, out);
  }
  for (int32_t i = 0; i < p->stats && !owned; i++) {
    if (ng_stat_goes_to_owner(p->stat[i].stat)) {
      x.last = NULL;
    } else {
      add_statistic(p, p->stat[i].stat, &x, out);
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

/* Add the messages of a step in which all statistics and solves are due.  ng_batch.last, with which sums are sent
 * before the step, is not considered. */
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
  add_statistics(p, true, out);
  out->scatter_bytes = out->sums_bytes;
  out->scatter_messages = out->sums_messages;
  add_statistics(p, false, out);
  add_slices(p, out);
  for (int32_t i = 0; i < p->ctx->ranks; i++) {
    const int64_t result = p->grid.m > 1 ? p->result_span[i].end : 0;
    /* with update_ranks = owner, ranks send weights instead of PD */
    const bool is_sent = p->grid.n > 1 && !ng_update_is_owned(p);
    const int64_t direction = is_sent ? p->direction_span[i].end : 0;
    out->share_bytes += result;
    out->share_messages += result > 0;
    out->deliver_bytes += direction;
    out->deliver_messages += direction > 0;
  }
}

/* ---- one rank, all ranks ---------------------------------------------------------------------*/

static ng_status check_unsharded(const ng_precond *p) {
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

/* Set *out to the plan of rank p->ctx->rank, after placement. */
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

/* Return whether the blocks depend on the number of the rank: layers are sharded, or blocks have slices. */
static bool blocks_depend_on_rank(const ng_precond *p) {
  bool depend = p->step->shards.members > 0;
  for (int32_t i = 0; i < p->blocks && !depend; i++) {
    depend = p->block[i]->slice != NULL;
  }
  return depend;
}

/* Ranks that own nothing have equal plans if they are in the same column, or in columns without blocks. */
typedef struct equal_plans {
  bool *owns;      /* [ranks] whether the rank owns a block, a statistic or a weight */
  bool *has_block; /* [columns] */
  /* [ranks + 1] first rank in each column that owns nothing; last element: first such rank in any column without
   * blocks; -1: not known yet */
  int32_t *first;
} equal_plans;

static void find_owners(const ng_precond *p, equal_plans *t) {
  for (int32_t r = 0; r <= p->ctx->ranks; r++) {
    t->first[r] = -1;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    t->has_block[p->block[i]->column] = true;
    t->owns[p->block[i]->owner] = true;
  }
  for (int32_t i = 0; i < p->stats; i++) {
    t->owns[p->stat[i].stat->owner] = true;
  }
  for (int32_t i = 0; i < p->entries && ng_update_is_owned(p); i++) {
    t->owns[ng_update_owner(p, p->entry[i])] = true;
  }
}

/* Return the first planned rank that has the same plan as `rank`. */
static int32_t first_rank_with_equal_plan(const ng_precond *p, equal_plans *t, int32_t rank) {
  const int32_t column = rank % p->grid.n;
  int32_t *first = &t->first[t->has_block[column] ? column : p->ctx->ranks];
  if (t->owns[rank]) return rank;
  if (*first < 0) *first = rank;
  return *first;
}

static ng_rank_plan *plan_at(ng_rank_plan *out, size_t size, int32_t rank) {
  return (ng_rank_plan *)(void *)((char *)out + (size_t)rank * size);
}

/* Make and place the blocks for rank p->ctx->rank, and set *t. */
static ng_status place_blocks(ng_precond *p, equal_plans *t) {
  const size_t W = (size_t)p->ctx->ranks;
  ng_objects_open(p);
  *t = (equal_plans){ng_object(p, W * sizeof *t->owns), ng_object(p, W * sizeof *t->has_block),
                     ng_object(p, (W + 1) * sizeof *t->first)};
  ng_status st = ng_objects_status(p);
  if (st == NG_OK) st = ng_shards_make_planned(p);
  if (st == NG_OK) st = ng_setup_place(p);
  if (st == NG_OK) find_owners(p, t);
  return st;
}

static void release_plan(ng_precond *p) {
  ng_shards_undo_planned(p);
  ng_setup_release(p);
}

/* All code reads the number of this rank and of all ranks from the context, so replace these numbers for the time of
 * the plan.  `placed`: the blocks are placed, and do not depend on the number of the rank. */
ng_status ng_setup_plan(ng_precond *p, int32_t ranks, int32_t first, int32_t n, ng_rank_plan *out,
                        size_t size) {
  ng_context *c = p->ctx;
  const int32_t own[2] = {c->ranks, c->rank};
  equal_plans t;
  bool placed = false;
  ng_status st = check_unsharded(p);
  if (st != NG_OK) return st;
  c->ranks = ranks;
  for (int32_t r = first; r < first + n && st == NG_OK; r++) {
    ng_rank_plan plan;
    memset(&plan, 0, sizeof plan);
    c->rank = r;
    if (!placed) st = place_blocks(p, &t);
    if (st != NG_OK) break;
    const int32_t equal = first_rank_with_equal_plan(p, &t, r);
    if (equal < r) {
      memcpy(plan_at(out, size, r - first), plan_at(out, size, equal - first), size);
      continue;
    }
    if (placed) st = ng_setup_switch_rank(p, r);
    if (st == NG_OK) st = count_rank(p, &plan);
    if (st == NG_OK) st = ng_struct_write(plan_at(out, size, r - first), &plan, sizeof plan);
    placed = !blocks_depend_on_rank(p);
    if (!placed) release_plan(p);
  }
  release_plan(p);
  c->ranks = own[0];
  c->rank = own[1];
  return st;
}
