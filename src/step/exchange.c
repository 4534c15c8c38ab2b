/* exchange.c: the messages of a step, except sums of statistics (sums.c) and weights (gather.c).
 *
 * small sums  of a few numbers, for agree.c, quantify.c and ng_ready
 * top-k       rounds of sums, in which all ranks select the largest entries of a sliced window
 * traces      of A and G if they have different owners, summed over a column of the grid before the solve
 * results     from each owner to the ranks of its column, one message for each owner
 * direction   PD from each column to the other ranks of a row, one message for each column
 *
 * This file does not interpret the data. If a transport fails, it is aborted, so that ranks that wait for this rank
 * return an error. */
#include "step/step.h"

/* Abort all transports, so that ranks that wait in this stage, in the model group or in another stage return an error. */
void ng_exchange_abort(ng_precond *p) {
  ng_comm *const all[] = {p->ctx->comm, p->ctx->model, p->ctx->stages};
  p->is_broken = true;
  for (int i = 0; i < 3; i++) {
    if (all[i] != NULL) (void)ng_comm_give_up(all[i]);
  }
}

ng_traffic ng_exchange_traffic(const ng_precond *p) {
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

void ng_exchange_count_early(ng_precond *p, int station, ng_traffic before) {
  const ng_traffic now = ng_exchange_traffic(p);
  p->step->early_traffic[station].bytes += now.bytes - before.bytes;
  p->step->early_traffic[station].messages += now.messages - before.messages;
}

/* After a failed transport, ranks may be at different collectives; the model can only be destroyed. */
ng_status ng_exchange_failed(ng_precond *p, const char *what) {
  ng_exchange_abort(p);
  return ng_fail(
      p->ctx, NG_ERR_COMM,
      "the transport failed in %s; all ranks return this error, at the latest in their next step",
      what);
}

/* ---- memory ----------------------------------------------------------------------------------*/

/* Count the traces of blocks whose results this rank holds; to not NULL: memory for the traces of these blocks. */
static int64_t place_traces(const ng_precond *p, double *to) {
  int64_t n = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!b->owners_differ || !b->is_worker) continue;
    if (to != NULL) b->traces = to + n;
    n += b->stats * b->traces_per_stat;
  }
  return n;
}

int64_t ng_traces_count(const ng_precond *p) { return place_traces(p, NULL); }

/* Allocate memory for the largest step, which has at most one message for each statistic. */
ng_status ng_exchange_plan(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  int32_t sliced = 0;
  int64_t topk_count = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    sliced += b->slice != NULL;
    for (int32_t r = 0; r < b->topk_rounds; r++) {
      topk_count = ng_max64(topk_count, b->topk_counts[r]);
    }
  }
  const size_t messages = (size_t)p->stats + 1;
  x->span_capacity = (1 + sliced) * p->ctx->ranks;
  const int64_t small = ng_max64(ng_exchange_check_count(p), ng_exchange_agree_count(p));
  x->check_buffer = ng_object(p, (size_t)small * sizeof *x->check_buffer);
  x->message = ng_object(p, messages * sizeof *x->message);
  x->wire = ng_object(p, messages * sizeof *x->wire);
  x->span_requests = ng_object(p, (size_t)x->span_capacity * sizeof *x->span_requests);
  x->may_post_ahead = ng_object(p, (size_t)p->blocks * sizeof *x->may_post_ahead);
  x->traces_count = ng_traces_count(p);
  if (p->owned_stats > 0)
    x->counts = ng_object(p, messages * (size_t)p->ctx->ranks * sizeof *x->counts);
  x->traces = ng_object(p, (size_t)x->traces_count * sizeof *x->traces);
  x->topk_sums = ng_object(p, (size_t)topk_count * sizeof *x->topk_sums);
  (void)place_traces(p, x->traces);
  return ng_objects_status(p);
}

/* ---- small sums ------------------------------------------------------------------------------*/

/* Sum x[0..n) over the ranks of c; `what` names the collective in error messages. Sums of counts in double are exact. */
ng_status ng_exchange_sum_over(ng_precond *p, ng_comm *c, double *x, int64_t n, const char *what) {
  const ng_group world = ng_group_world(c);
  return ng_comm_sum(c, &world, x, n, NG_F64) == NG_OK ? NG_OK : ng_exchange_failed(p, what);
}

ng_status ng_exchange_sum(ng_precond *p, double *x, int64_t n, const char *what) {
  return ng_exchange_sum_over(p, p->ctx->comm, x, n, what);
}

/* ---- top-k selection -------------------------------------------------------------------------*/

/* Every rank has observed its slice of the gradient. Each round sums a few numbers over ranks and narrows the range of the
 * smallest selected magnitude (ng_family.select_topk). */
ng_status ng_topk_select(ng_precond *p) {
  double *x = p->step->exchange.topk_sums;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!b->is_selecting) continue;
    const double t0 = ng_now_ms();
    for (int32_t r = 0; r < b->topk_rounds; r++) {
      b->family->select_topk(b, r, x);
      const ng_status st = ng_exchange_sum(p, x, b->topk_counts[r], "top-k selection");
      if (st != NG_OK) return st;
    }
    b->family->select_topk(b, b->topk_rounds, x);
    b->is_selecting = false;
    b->step_observe_ms += ng_now_ms() - t0;
  }
  return NG_OK;
}

/* ---- traces ----------------------------------------------------------------------------------*/

/* The owner of a statistic contributes its traces and the other ranks contribute zeros, so the sum is exact. */
ng_status ng_exchange_traces(ng_precond *p) {
  ng_exchange *x = &p->step->exchange;
  ng_comm *c = p->ctx->comm;
  memset(x->traces, 0, (size_t)x->traces_count * sizeof *x->traces);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!ng_block_exchanges_traces(b)) continue;
    for (int32_t k = 0; k < b->stats; k++) {
      if (b->stat[k].has_average) b->family->write_traces(b, k, b->traces + k * b->traces_per_stat);
    }
  }
  if (ng_comm_sum(c, &p->grid.column_group, x->traces, x->traces_count, NG_F64) != NG_OK) {
    return ng_exchange_failed(p, "traces");
  }
  return NG_OK;
}

/* ---- results and directions ------------------------------------------------------------------*/

static ng_status post_broadcast(ng_precond *p, const ng_group *g, void *x, int64_t n, ng_dtype t,
                                int32_t root, ng_request *r) {
  return n == 0 ? NG_OK : ng_comm_post_broadcast(p->ctx->comm, g, x, n, t, root, r);
}

/* Broadcast the results of each owner to its column, whose ranks compute PD (KAISA's gradient workers). The message is
 * bytes, because results have several dtypes. Columns have no common ranks, and all ranks of a column post the owners in
 * the same order, so there is no deadlock. */
ng_status ng_exchange_post_results(ng_precond *p) {
  ng_status st = NG_OK;
  for (int32_t owner = 0; owner < p->ctx->ranks && p->grid.m > 1 && st == NG_OK; owner++) {
    const ng_span *s = &p->result_span[owner];
    st = post_broadcast(p, &p->grid.column_group, p->arena[NG_USE_RESULTS] + s->begin,
                        s->end - s->begin, NG_U8, owner, &p->step->exchange.span_requests[owner]);
  }
  return st == NG_OK ? NG_OK : ng_exchange_failed(p, "share");
}

/* Broadcast the slices of PD of all sliced blocks to all ranks. */
static ng_status post_slices(ng_precond *p) {
  const ng_group world = ng_group_world(p->ctx->comm);
  ng_request *request = p->step->exchange.span_requests + p->ctx->ranks;
  ng_status st = NG_OK;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    for (int32_t r = 0; r < p->ctx->ranks && b->slice != NULL && st == NG_OK; r++, request++) {
      const int64_t n = b->is_excluded ? 0 : b->slice[r + 1] - b->slice[r];
      st = post_broadcast(p, &world, b->whole_direction + b->slice[r], n, NG_F32, r, request);
    }
  }
  return st;
}

/* In each row of the grid, the rank of column c broadcasts PD of the blocks whose workers are column c. With update_ranks
 * = owner only slices are sent, because an owner needs no PD of other blocks. */
ng_status ng_exchange_post_direction(ng_precond *p) {
  const bool sends = p->grid.n > 1 && !ng_update_is_owned(p);
  if (p->ctx->ranks == 1) return NG_OK;
  ng_queue_wait(p->ctx->queue); /* the transport reads the directions */
  ng_status st = post_slices(p);
  for (int32_t column = 0; column < p->grid.n && sends && st == NG_OK; column++) {
    const ng_span *s = &p->direction_span[column];
    const int64_t n = (s->end - s->begin) / (int64_t)sizeof(float);
    st = post_broadcast(p, &p->grid.row_group, p->arena[NG_USE_DIRECTION] + s->begin, n, NG_F32,
                        p->grid.row * p->grid.n + column, &p->step->exchange.span_requests[column]);
  }
  return st == NG_OK ? NG_OK : ng_exchange_failed(p, "deliver");
}

/* Wait for all posted broadcasts.  Requests that this rank has not posted need no wait. */
static ng_status wait_spans(ng_precond *p, const char *what) {
  for (int32_t i = 0; i < p->step->exchange.span_capacity; i++) {
    if (ng_comm_wait(p->ctx->comm, &p->step->exchange.span_requests[i]) != NG_OK)
      return ng_exchange_failed(p, what);
    p->step->exchange.span_requests[i] = (ng_request){.done = true};
  }
  return NG_OK;
}

/* Results and directions use the same span_requests, so a step waits for results before it posts directions. */
ng_status ng_exchange_wait(ng_precond *p, ng_mail what) {
  ng_status st = NG_OK;
  if (p->ctx->ranks == 1) return st;
  if ((what & NG_MAIL_STATISTICS) != 0) st = ng_exchange_wait_statistics(p);
  if (st == NG_OK && (what & NG_MAIL_RESULTS) != 0) st = wait_spans(p, "share");
  if (st == NG_OK && (what & NG_MAIL_DIRECTION) != 0) st = wait_spans(p, "deliver");
  return st;
}
