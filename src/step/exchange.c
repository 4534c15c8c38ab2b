/* exchange.c: everything a step says to other ranks.
 *
 * check    one small double reduction before anything changes: status of every rank, observations
 *          refused, sample weights of every factor
 * sums     statistics = all: this step's sums, one message (fold = direct: one a block)
 * results  from each owner to its column, one message an owner
 * direction from each column to the rows, one message a column
 * agree    one small double reduction: status, refusals, clip sums
 *
 * Between two collectives nobody returns: a rank in trouble goes on with harmless data, its status
 * rides in the next small reduction, and all ranks leave together (style: PCReduceFailedReason). */
#include "model/model.h"

enum { CODES = 16, CODE_ZERO = 8 }; /* one slot for each status from -8 to 7 */

static void put_status(double *slots, ng_status st) {
  memset(slots, 0, CODES * sizeof *slots);
  slots[CODE_ZERO + (int)st] = 1.0;
}

/* The worst: the most negative that any rank has, else the largest note. */
static ng_status worst_status(const double *slots) {
  for (int i = 0; i < CODE_ZERO; i++) {
    if (slots[i] > 0.0) return (ng_status)(i - CODE_ZERO);
  }
  for (int i = CODES - 1; i >= CODE_ZERO; i--) {
    if (slots[i] > 0.0) return (ng_status)(i - CODE_ZERO);
  }
  return NG_OK;
}

static ng_status failed(ng_precond *p, const char *what) {
  p->broken = true;
  return ng_fail(p->ctx, NG_ERR_COMM, "the transport failed in %s; every rank gets this", what);
}

static ng_status sum_small(ng_precond *p, double *x, int64_t n, const char *what) {
  const ng_group world = ng_group_world(p->ctx->comm);
  if (ng_comm_sum(p->ctx->comm, &world, x, n, NG_F64) != NG_OK) return failed(p, what);
  return NG_OK;
}

/* Says that another rank failed, where this one has nothing to report itself. */
static ng_status spread(ng_precond *p, const double *slots) {
  const ng_status st = worst_status(slots);
  if (st < NG_OK && st != p->trouble) {
    (void)ng_fail(p->ctx, st, "%d of %d ranks failed with %s (%s)", (int)slots[CODE_ZERO + (int)st],
                  p->ctx->ranks, ng_status_name(st), ng_status_meaning(st));
  }
  return st;
}

ng_status ng_exchange_same(ng_precond *p, const uint64_t hash[2], ng_status local) {
  ng_comm *c = p->ctx->comm;
  if (c->size == 1) return local;
  uint64_t first[2] = {hash[0], hash[1]};
  const ng_group world = ng_group_world(c);
  if (ng_comm_broadcast(c, &world, first, (int64_t)sizeof first, NG_U8, 0) != NG_OK) {
    return failed(p, "ng_ready");
  }
  double x[CODES + 2];
  put_status(x, local);
  x[CODES] = first[0] != hash[0];
  x[CODES + 1] = first[1] != hash[1];
  const ng_status st = sum_small(p, x, CODES + 2, "ng_ready");
  if (st != NG_OK) return st;
  p->trouble = local;
  const ng_status worst = spread(p, x);
  p->trouble = NG_OK;
  if (worst < NG_OK) return worst;
  for (int i = 0; i < 2; i++) {
    if (x[CODES + i] > 0.0) {
      return ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: %d of %d ranks have other %s than rank 0",
                     (int)x[CODES + i], c->size, i == 0 ? "options" : "layers");
    }
  }
  return NG_OK;
}

ng_status ng_exchange_check(ng_precond *p) {
  double *x = p->small;
  put_status(x, p->trouble);
  x[CODES] = p->refused;
  for (int32_t i = 0; i < p->blocks; i++) {
    double *w = x + CODES + 1 + 4 * i;
    memset(w, 0, 4 * sizeof *w);
    if (p->block[i]->holds_stats) p->block[i]->ops->weights(p->block[i], w, false);
  }
  ng_status st = sum_small(p, x, CODES + 1 + 4 * (int64_t)p->blocks, "check");
  if (st != NG_OK) return st;
  st = spread(p, x);
  p->trouble = st;
  if (x[CODES] > 0.0) p->refused = true;
  if (st < NG_OK) return st;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    double *w = x + CODES + 1 + 4 * i;
    for (int side = 0; side < 2; side++) {
      if (!b->folded[side] && !(w[side] > 0.0) && !p->refused) {
        p->trouble = NG_ERR_STATE;
        return ng_fail(p->ctx, NG_ERR_STATE,
                       "layer '%s' was never observed: its %s was not shown on any rank",
                       b->entry->d.name, side == 0 ? "input" : "output gradient");
      }
    }
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    double *w = x + CODES + 1 + 4 * i;
    b->folded[0] = b->folded[0] || w[0] > 0.0;
    b->folded[1] = b->folded[1] || w[1] > 0.0;
    if (b->holds_stats) b->ops->weights(b, w, true);
  }
  return NG_OK;
}

ng_status ng_exchange_sums(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  if (c->size == 1 || p->now.statistics != NG_STATISTICS_ALL) return NG_OK;
  const ng_group world = ng_group_world(c);
  bool any = false;
  for (int32_t i = 0; i < p->blocks; i++) {
    if (ng_stat_due(p, p->block[i])) {
      p->block[i]->ops->scale(p->block[i]);
      any = true;
    }
  }
  if (!any) return NG_OK;
  ng_queue_wait(p->ctx->queue); /* here and below: a transport works in host memory, now */
  if (p->now.fold == NG_FOLD_SUM) {
    const int64_t count = p->held[NG_USE_SUMS] / (int64_t)sizeof(float);
    if (ng_comm_sum(c, &world, p->arena[NG_USE_SUMS], count, NG_F32) != NG_OK) {
      return failed(p, "statistics");
    }
    return NG_OK;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    int64_t count = 0;
    if (!ng_stat_due(p, p->block[i])) continue;
    float *message = p->block[i]->ops->message(p->block[i], &count);
    if (message == NULL) continue; /* no rank observed it: decided by weights that all share */
    if (ng_comm_sum(c, &world, message, count, NG_F32) != NG_OK) return failed(p, "statistics");
  }
  return NG_OK;
}

/* Results travel as bytes: they hold several dtypes. */
ng_status ng_exchange_results(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  if (p->grid.m == 1) return NG_OK;
  ng_queue_wait(p->ctx->queue);
  for (int32_t i = 0; i < p->result_spans; i++) {
    const ng_span *s = &p->result_span[i];
    if (ng_comm_broadcast(c, &p->grid.column_group, p->arena[NG_USE_RESULTS] + s->begin,
                          s->end - s->begin, NG_U8, s->root) != NG_OK) {
      return failed(p, "share");
    }
  }
  return NG_OK;
}

ng_status ng_exchange_direction(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  if (p->grid.n == 1) return NG_OK;
  ng_queue_wait(p->ctx->queue);
  for (int32_t i = 0; i < p->direction_spans; i++) {
    const ng_span *s = &p->direction_span[i];
    if (s->end == s->begin) continue;
    const int32_t source = p->grid.row * p->grid.n + s->root;
    if (ng_comm_broadcast(c, &p->grid.row_group, p->arena[NG_USE_DIRECTION] + s->begin,
                          (s->end - s->begin) / (int64_t)sizeof(float), NG_F32, source) != NG_OK) {
      return failed(p, "deliver");
    }
  }
  return NG_OK;
}

ng_status ng_exchange_agree(ng_precond *p) {
  double *x = p->small, *sum = x + CODES;
  put_status(x, p->trouble);
  memset(sum, 0, 4 * sizeof *sum);
  sum[0] = p->refused;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    if (b->owner != p->ctx->rank) continue;
    sum[1] += b->inner;
    sum[2] += b->d2;
    sum[3] += b->pd2;
  }
  ng_status st = sum_small(p, x, CODES + 4, "agree");
  if (st != NG_OK) return st;
  st = spread(p, x);
  p->trouble = st;
  p->refused = sum[0] > 0.0;
  memcpy(x, sum, 4 * sizeof *sum);
  return st < NG_OK ? st : NG_OK;
}
