/* exchange.c: what ranks send each other in a step; sums of statistics are in sums.c, weights in gather.c.
 *
 * In: numbers and places of this rank.  Out: those of the others, in memory that is taken once, by ng_ready.
 *
 * small sums  of whoever asks: agree.c, choose.c, quantify.c, ng_ready
 * tell        a few doubles of blocks whose averages several ranks keep, each its own: what their solves need
 * results     from each owner to its column, one message an owner
 * direction   from each column to the rows, one message a column
 *
 * It moves bytes and judges nothing: what they mean it does not know.  When a transport has failed, all who wait
 * for this rank hear of it. */
#include "step/step.h"

/* Whoever waits for this rank, in its stage, its model group or another stage, hears of it. */
void ng_exchange_give_up(ng_precond *p) {
  ng_comm *const all[] = {p->ctx->comm, p->ctx->model, p->ctx->stages};
  p->broken = true;
  for (int i = 0; i < 3; i++) {
    if (all[i] != NULL) (void)ng_comm_give_up(all[i]);
  }
}

ng_traffic ng_exchange_said(const ng_precond *p) {
  const ng_comm *const all[] = {p->ctx->comm, p->ctx->model, p->ctx->stages};
  ng_traffic x = {0, 0, 0.0};
  for (int i = 0; i < 3; i++) {
    if (all[i] == NULL) continue;
    x.bytes += all[i]->bytes;
    x.messages += all[i]->messages;
    x.wait_ms += all[i]->meter.wait_ms;
  }
  return x;
}

/* After a broken transport ranks may be at different collectives, and no further one can put that
 * right: the model is only good for being destroyed. */
ng_status ng_exchange_failed(ng_precond *p, const char *what) {
  ng_exchange_give_up(p);
  return ng_fail(p->ctx, NG_ERR_COMM, "the transport failed in %s; every rank gets this", what);
}

/* ---- memory ----------------------------------------------------------------------------------*/

/* In the column that holds their results; no other rank has to do with them. */
int64_t ng_traces_count(const ng_precond *p) {
  int64_t n = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    if (b->apart && b->holds) n += b->stats * b->tells;
  }
  return n;
}

static void place_told(ng_precond *p) {
  double *to = p->step->exchange.told;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!b->apart || !b->holds) continue;
    b->told = to;
    to += b->stats * b->tells;
  }
}

static size_t counts_bytes(const ng_precond *p) {
  const size_t messages = (size_t)p->step->exchange.messages_most;
  return messages * (size_t)p->ctx->ranks * sizeof *p->step->exchange.counts;
}

/* Sized once for the most that a step may say.  Every statistic is posted at most once a step
 * (`posted`), so there are never more messages than statistics. */
ng_status ng_exchange_plan(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  int32_t stats = 0, sliced = 0;
  bool owned = false;
  for (int32_t i = 0; i < p->blocks; i++) {
    stats += p->block[i]->stats;
    sliced += p->block[i]->slice != NULL;
    for (int32_t k = 0; k < p->block[i]->stats; k++) {
      owned = owned || ng_stat_to_owner(&p->block[i]->stat[k]);
    }
  }
  x->small_count = ng_exchange_small_count(p, stats);
  x->messages_most = stats + 1;
  x->cap = ng_step_bucket(p);
  x->spans_most = (1 + sliced) * p->ctx->ranks;
  x->small = ng_object(p, (size_t)x->small_count * sizeof *x->small);
  x->message = ng_object(p, (size_t)x->messages_most * sizeof *x->message);
  x->spans = ng_object(p, (size_t)x->spans_most * sizeof *x->spans);
  x->traces_count = ng_traces_count(p);
  if (owned) x->counts = ng_object(p, counts_bytes(p));
  if (x->traces_count > 0) x->told = ng_object(p, (size_t)x->traces_count * sizeof *x->told);
  x->choice_count = ng_topk_count(p);
  if (x->choice_count > 0) x->choice = ng_object(p, (size_t)x->choice_count * sizeof *x->choice);
  const bool told =
      (x->traces_count == 0 || x->told != NULL) && (x->choice_count == 0 || x->choice != NULL);
  if (x->small == NULL || x->message == NULL || x->spans == NULL || !told ||
      (owned && x->counts == NULL)) {
    return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  }
  place_told(p);
  return NG_OK;
}

void ng_exchange_release(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  ng_object_free(p, x->small, (size_t)x->small_count * sizeof *x->small);
  ng_object_free(p, x->message, (size_t)x->messages_most * sizeof *x->message);
  ng_object_free(p, x->spans, (size_t)x->spans_most * sizeof *x->spans);
  ng_object_free(p, x->counts, counts_bytes(p));
  ng_object_free(p, x->told, (size_t)x->traces_count * sizeof *x->told);
  ng_object_free(p, x->choice, (size_t)x->choice_count * sizeof *x->choice);
  memset(x, 0, sizeof *x);
}

/* ---- small sums ------------------------------------------------------------------------------*/

/* In double: counts of ranks and of samples add up exactly, whatever the order of ranks. */
ng_status ng_exchange_sum(ng_precond *p, double *x, int64_t n, const char *what) {
  const ng_group world = ng_group_world(p->ctx->comm);
  if (ng_comm_sum(p->ctx->comm, &world, x, n, NG_F64) != NG_OK) return ng_exchange_failed(p, what);
  return NG_OK;
}

/* ---- told ------------------------------------------------------------------------------------*/

/* The same on all ranks of a column: what is apart, and what is solved. */
bool ng_traces_are_due(const ng_precond *p) {
  bool due = false;
  for (int32_t i = 0; i < p->blocks; i++) {
    due = due || (p->block[i]->told != NULL && ng_solve_due(p, p->block[i]));
  }
  return due;
}

/* Every number from one rank, the owner of its statistic: a sum with zeros hands it on as it is. */
ng_status ng_exchange_traces(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  ng_comm *c = p->ctx->comm;
  memset(x->told, 0, (size_t)x->traces_count * sizeof *x->told);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->told == NULL || !ng_solve_due(p, b)) continue;
    for (int32_t k = 0; k < b->stats; k++) {
      if (b->stat[k].keeps) b->family->tell(b, k, b->told + k * b->tells);
    }
  }
  if (ng_comm_sum(c, &p->grid.column_group, x->told, x->traces_count, NG_F64) != NG_OK) {
    return ng_exchange_failed(p, "traces");
  }
  return NG_OK;
}

/* ---- results and directions ------------------------------------------------------------------*/

/* Results travel as bytes: they hold several dtypes.  Only inside the column that makes PD of these
 * blocks (KAISA's gradient workers); columns are disjoint and owners walked in one order, so no two
 * of them wait for each other. */
ng_status ng_exchange_post_results(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  if (p->grid.m == 1) return NG_OK;
  for (int32_t owner = 0; owner < c->size; owner++) {
    const ng_span *s = &p->result_span[owner];
    if (s->end == s->begin) continue;
    if (ng_comm_post_broadcast(c, &p->grid.column_group, p->arena[NG_USE_RESULTS] + s->begin,
                               s->end - s->begin, NG_U8, owner,
                               &p->step->exchange.spans[owner]) != NG_OK) {
      return ng_exchange_failed(p, "share");
    }
  }
  return NG_OK;
}

/* What each rank makes of a block's PD, to all. */
static ng_status post_slices(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  const ng_group world = ng_group_world(c);
  ng_request *request = p->step->exchange.spans + c->size;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    for (int32_t r = 0; r < c->size && b->slice != NULL; r++, request++) {
      const int64_t n = b->slice[r + 1] - b->slice[r];
      if (n == 0 || b->out) continue;
      if (ng_comm_post_broadcast(c, &world, b->whole + b->slice[r], n, NG_F32, r, request) !=
          NG_OK) {
        return ng_exchange_failed(p, "deliver");
      }
    }
  }
  return NG_OK;
}

/* Each row hears from its own member of the column: m broadcasts side by side, none across rows.  Where
 * owners update, PD of other blocks stays with them. */
ng_status ng_exchange_post_direction(ng_precond *p) {
  ng_comm *c = p->ctx->comm;
  if (p->ctx->ranks > 1 && post_slices(p) != NG_OK) return NG_ERR_COMM;
  if (p->grid.n == 1 || ng_update_is_owned(p)) return NG_OK;
  for (int32_t column = 0; column < p->grid.n; column++) {
    const ng_span *s = &p->direction_span[column];
    if (s->end == s->begin) continue;
    const int32_t source = p->grid.row * p->grid.n + column;
    if (ng_comm_post_broadcast(c, &p->grid.row_group, p->arena[NG_USE_DIRECTION] + s->begin,
                               (s->end - s->begin) / (int64_t)sizeof(float), NG_F32, source,
                               &p->step->exchange.spans[column]) != NG_OK) {
      return ng_exchange_failed(p, "deliver");
    }
  }
  return NG_OK;
}

/* Ranks outside a group never posted, and have nothing to wait for. */
static ng_status wait_spans(ng_precond *p, const char *what) {
  for (int32_t i = 0; i < p->step->exchange.spans_most; i++) {
    if (ng_comm_wait(p->ctx->comm, &p->step->exchange.spans[i]) != NG_OK)
      return ng_exchange_failed(p, what);
    p->step->exchange.spans[i] = (ng_request){.done = true};
  }
  return NG_OK;
}

/* Spans serve results, then directions: the first are waited for before the second are posted. */
ng_status ng_exchange_wait(ng_precond *p, ng_mail what) {
  ng_status st = NG_OK;
  if (p->ctx->ranks == 1) return st;
  if ((what & NG_MAIL_STATISTICS) != 0) st = ng_exchange_wait_statistics(p);
  if (st == NG_OK && (what & NG_MAIL_RESULTS) != 0) st = wait_spans(p, "share");
  if (st == NG_OK && (what & NG_MAIL_DIRECTION) != 0) st = wait_spans(p, "deliver");
  return st;
}
