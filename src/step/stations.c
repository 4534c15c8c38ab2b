/* stations.c: the step is a table of ten stations; take.c runs them in order.
 *
 * In: observations, inverses of earlier steps. Out: averages, inverses, PD, sums over all ranks, new gradients or
 * weights. A row of the table states when its station is due, whether ranks communicate in the station, for which messages
 * the station waits, and whether all ranks may end the step after the station. No station runs another. After a failure
 * on this rank, ng_engine.status contains the error, and the rank continues with harmless data until `check` or `agree`,
 * where all ranks return with one status.
 *
 * Before `check`, which gives all ranks the worst status, nothing is summed, folded or solved. So a call with a wrong
 * argument on one rank changes nothing on any rank. Before `agree` no gradient or weight is written. So a step counts on
 * all ranks or on none. */
#include "step/step.h"

/* ---- due stations ----------------------------------------------------------------------------*/

static bool is_gradients_due(const ng_precond *p) {
  return p->step->status >= NG_OK && ng_any_block(p, ng_block_observes_gradients);
}

static bool is_selecting(const ng_block *b) { return b->is_selecting; }

/* After `check`, `has_refused` is equal on all ranks. If no value was refused, is_selecting is equal, too. */
static bool is_topk_due(const ng_precond *p) {
  return !p->step->has_refused && ng_any_block(p, is_selecting);
}

static bool is_statistics_due(const ng_precond *p) {
  return is_topk_due(p) || ng_any_block(p, ng_block_statistics_due);
}

/* take.c sets is_solving before the first station, because the station `solve` changes what ng_block_solve_due returns. */
static bool is_solve_due(const ng_precond *p) { return p->step->is_solving; }

static bool is_share_due(const ng_precond *p) {
  return p->step->is_solving || p->step->shards.blocks > 0;
}

/* With update_ranks = owner, PD stays on its owner and weights are broadcast. */
static bool is_weights_due(const ng_precond *p) {
  return p->ctx->ranks > 1 && ng_update_is_owned(p);
}

static bool is_sliced(const ng_block *b) { return b->slice != NULL; }

static bool is_deliver_due(const ng_precond *p) {
  return !is_weights_due(p) || ng_any_block(p, is_sliced);
}

/* ---- statistics, solve, share ----------------------------------------------------------------*/

/* Fold a sum into its average; with refresh_tolerance > 0, compare the new average with the old average. The caller repeats a
 * refused step with other gradients, so the sums of gradients are not folded: the end of the step discards them. */
static ng_status fold_statistic(ng_precond *p, ng_stat *s) {
  const bool folds = s->w_total > 0.0;
  if (p->step->has_refused && s->observed == NG_OBSERVED_FLATGRAD) return NG_OK;
  if (folds && s->stale.enabled) ng_stat_copy_average(p->ctx->queue, s, p->arena[NG_USE_SCRATCH]);
  const ng_status st = ng_stat_fold(p->ctx->queue, s);
  if (!folds || st != NG_OK) return st;
  s->is_new = true;
  if (s->stale.enabled) ng_stat_compare(p->ctx->queue, s, p->arena[NG_USE_SCRATCH]);
  s->stale.refreshes++;
  s->stale.bytes_sent += ng_stat_wire_bytes(s);
  return NG_OK;
}

/* Fold the statistics of a block that observe gradients, or all others. If one fold fails, fold the other statistics nevertheless. */
static ng_status fold_block(ng_precond *p, ng_block *b, bool of_gradients) {
  static const char *const what[NG_OBSERVED_KINDS] = {"inputs", "output gradients", "gradients"};
  ng_status st = NG_OK;
  ng_queue_name_blocks(p->ctx->queue, b->name, b->name);
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    if ((s->observed == NG_OBSERVED_FLATGRAD) != of_gradients) continue;
    if (fold_statistic(p, s) == NG_OK) continue;
    st = ng_fail(p->ctx, NG_SKIPPED,
                 "layer '%s': its %s are not finite or their sum overflowed, or the average %s "
                 "would leave the range of %s",
                 b->name, what[ng_observed_kind(s->observed)], s->name,
                 ng_dtype_name(s->average_dtype));
  }
  return st;
}

static bool has_statistic_of_gradients(const ng_block *b) {
  for (int32_t i = 0; i < b->stats; i++) {
    if (b->stat[i].observed == NG_OBSERVED_FLATGRAD) return true;
  }
  return false;
}

/* Reduce the due sums over ranks and fold them into averages. Perhaps only this rank knows that a fold overflowed, because
 * with statistics = local only the owner folds. So ng_engine.has_refused stores the refusal until `agree`. */
static ng_status reduce_statistics(ng_precond *p) {
  ng_status st = is_topk_due(p) ? ng_topk_select(p) : NG_OK;
  if (st != NG_OK || !ng_any_block(p, ng_block_statistics_due)) return st;
  st = ng_exchange_post_statistics(p);
  if (st == NG_OK) st = ng_exchange_wait(p, NG_MAIL_STATISTICS);
  if (st != NG_OK) return st;
  for (int32_t i = 0; i < p->stats; i++) {
    const ng_block_stat *x = &p->stat[i];
    ng_queue_name_blocks(p->ctx->queue, x->block->name, x->block->name);
    if (ng_block_statistics_due(x->block)) ng_stat_scan(p->ctx->queue, x->stat);
  }
  ng_queue_wait(p->ctx->queue);
  /* gradients last, because a step that any other fold refuses does not fold them */
  for (int32_t i = 0; i < 2 * p->blocks; i++) {
    ng_block *b = p->block[i % p->blocks];
    const bool of_gradients = i >= p->blocks;
    if (!ng_block_statistics_due(b) || (of_gradients && !has_statistic_of_gradients(b))) continue;
    if (!of_gradients) ng_exchange_mark_observed(b);
    const double t0 = ng_now_ms();
    if (fold_block(p, b, of_gradients) == NG_SKIPPED) p->step->has_refused = true;
    b->observe_ms = (of_gradients ? b->observe_ms : b->step_observe_ms) + ng_now_ms() - t0;
    b->step_observe_ms = 0.0;
  }
  ng_queue_wait(p->ctx->queue);
  return NG_OK;
}

/* Log one line for all blocks that used the ladder. before: the counters before this solve; first: name of the first of
 * these blocks. */
static void log_rescued(const ng_precond *p, const int64_t before[NG_RESCUES], const char *first) {
  int64_t now[NG_RESCUES], all = 0;
  for (int i = 0; i < NG_RESCUES; i++) {
    now[i] = p->rescued[i] - before[i];
    all += now[i];
  }
  if (all == 0) return;
  ng_log(p->ctx, NG_LOG_WARN,
         "solve: rescued = %lld more_damping = %lld in_double = %lld kept_last = %lld plain = %lld "
         "first = %s",
         (long long)all, (long long)now[NG_RESCUE_DAMPING], (long long)now[NG_RESCUE_DOUBLE],
         (long long)now[NG_RESCUE_LAST], (long long)now[NG_RESCUE_PLAIN], first);
}

/* Run a phase for all due blocks, and wait; return the name of the first block that used a fallback, or "".  All ranks mark
 * blocks as solved, also without their results, so that due work is equal. */
static const char *run_solve_phase(ng_precond *p, ng_solve_phase phase) {
  const char *first = "";
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (phase == NG_SOLVE_MEASURE) b->matrices_listed = 0;
    if (!ng_block_solve_due(b)) continue;
    const double t0 = ng_now_ms();
    if (phase == NG_SOLVE_CLIMB) ng_queue_wait(p->ctx->queue);
    ng_queue_name_blocks(p->ctx->queue, b->name, b->name);
    const ng_status st = b->family->solve(b, phase);
    p->step->status = ng_worse_status(p->step->status, st);
    if (st == NG_RESCUED && first[0] == 0) first = b->name;
    b->solve_ms = ng_now_ms() - t0 + (phase == NG_SOLVE_MEASURE ? 0.0 : b->solve_ms);
    b->was_solved = b->was_solved || phase == NG_SOLVE_CLIMB;
  }
  ng_queue_wait(p->ctx->queue);
  return first;
}

/* Solve n matrices of blocks [from, to), which share the time. */
static void solve_blocks(ng_precond *p, ng_matrix **list, int32_t n, int32_t from, int32_t to) {
  const double t0 = ng_now_ms();
  if (n == 0) return;
  ng_linalg(p->ctx->queue)
      ->solve(p->ctx->queue, list, n, (float *)(void *)p->arena[NG_USE_SCRATCH]);
  const double ms = ng_now_ms() - t0;
  for (; from < to; from++) {
    p->block[from]->solve_ms += ms * p->block[from]->matrices_listed / n;
  }
}

/* Solve the listed matrices. On the host a call has the matrices of a run of blocks: blocks with small matrices only, and the block that
 * follows them; on a device all matrices, because it solves those of equal orders at once. */
static void solve_listed(ng_precond *p) {
  ng_matrix **list = p->solve_list;
  for (int32_t i = 0, n = 0, from = 0; i < p->blocks; i++) {
    bool small = true;
    for (int32_t k = 0; k < p->block[i]->matrices_listed; k++) {
      small = list[n++]->n <= NG_SMALL_SOLVE && small;
    }
    if ((small || p->ctx->queue->device != NULL) && i + 1 < p->blocks) continue;
    solve_blocks(p, list, n, from, i + 1);
    list += n;
    from = i + 1;
    n = 0;
  }
}

static ng_status solve_due_blocks(ng_precond *p) {
  int64_t before[NG_RESCUES];
  memcpy(before, p->rescued, sizeof before);
  p->solve_listed = 0;
  (void)run_solve_phase(p, NG_SOLVE_MEASURE);
  const ng_status sent = ng_any_block(p, ng_block_exchanges_traces) ? ng_exchange_traces(p) : NG_OK;
  if (sent != NG_OK) return sent;
  (void)run_solve_phase(p, NG_SOLVE_LIST);
  (void)run_solve_phase(p, NG_SOLVE_START);
  solve_listed(p);
  ng_queue_wait(p->ctx->queue);
  log_rescued(p, before, run_solve_phase(p, NG_SOLVE_CLIMB));
  return NG_OK;
}

/* Post results to the workers of their blocks; make sharded gradients whole. */
static ng_status post_results(ng_precond *p) {
  ng_status st = p->step->is_solving ? ng_exchange_post_results(p) : NG_OK;
  if (st == NG_OK && p->step->shards.blocks > 0) st = ng_shards_gather(p);
  return st;
}

/* ---- measure, deliver, agree, emit -----------------------------------------------------------*/

/* Let families read new inverses, enqueue PD and the sums of all blocks, wait once, then let each family compute its clip
 * sums. A rank that is not a worker of a block leaves zeros, because `agree` adds the sums of the block's owner. */
static ng_status compute_directions(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks && p->step->is_solving; i++) {
    ng_block *b = p->block[i];
    if (b->is_worker && !b->is_excluded && b->solves) b->family->read_results(b);
  }
  ng_emission_measure(p);
  ng_clip_measure(p);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!b->is_worker || b->is_excluded || b->family->precondition == NULL) continue;
    const double t0 = ng_now_ms();
    ng_queue_name_blocks(p->ctx->queue, b->name, b->name);
    b->family->precondition(b);
    b->measure_ms += ng_now_ms() - t0; /* added to the block's share of ng_emission_measure */
  }
  ng_queue_wait(p->ctx->queue);
  ng_emission_check(p);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    b->inner = b->d2 = b->pd2 = 0.0;
    if (!b->is_worker || b->is_excluded) continue;
    const double t0 = ng_now_ms();
    ng_queue_name_blocks(p->ctx->queue, b->name, b->name);
    const ng_status st = b->family->read_sums(b);
    b->measure_ms += ng_now_ms() - t0;
    if (st == NG_SKIPPED) p->step->has_refused = true;
    if (st < NG_OK || st == NG_RESCUED) p->step->status = ng_worse_status(p->step->status, st);
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!b->is_worker || b->is_excluded || b->family->scale_direction == NULL) continue;
    ng_queue_name_blocks(p->ctx->queue, b->name, b->name);
    b->family->scale_direction(b);
  }
  ng_queue_wait(p->ctx->queue);
  ng_clip_refuse_nonfinite_weights(p);
  ng_emission_store(p);
  return NG_OK;
}

static ng_status agree_on_clip(ng_precond *p) {
  ng_sums sums[2];
  const ng_status st = ng_exchange_agree(p, sums);
  if (st != NG_OK) return st;
  ng_clip_compute(p, sums);
  if (!p->step->has_refused) ng_clip_factors(p);
  return NG_OK;
}

/* ---- the table -------------------------------------------------------------------------------*/

const ng_station ng_stations[NG_STATIONS] = {
    [NG_AT_GRADIENTS] = {.name = "gradients",
                         .run = ng_gradients_observe,
                         .is_due = is_gradients_due},
    [NG_AT_CHECK] = {.name = "check",
                     .run = ng_exchange_check,
                     .is_collective = true,
                     .shares_refusal = true},
    [NG_AT_STATISTICS] = {.name = "statistics",
                          .run = reduce_statistics,
                          .is_due = is_statistics_due,
                          .is_collective = true,
                          .skips_step = true},
    [NG_AT_SOLVE] = {.name = "solve",
                     .run = solve_due_blocks,
                     .is_due = is_solve_due,
                     .is_collective = true},
    [NG_AT_SHARE] = {.name = "share",
                     .run = post_results,
                     .is_due = is_share_due,
                     .is_collective = true},
    [NG_AT_MEASURE] = {.name = "measure",
                       .run = compute_directions,
                       .awaited_mail = NG_MAIL_RESULTS},
    [NG_AT_DELIVER] = {.name = "deliver",
                       .run = ng_exchange_post_direction,
                       .is_due = is_deliver_due,
                       .is_collective = true},
    [NG_AT_AGREE] = {.name = "agree",
                     .run = agree_on_clip,
                     .is_collective = true,
                     .shares_refusal = true,
                     .awaited_mail = NG_MAIL_DIRECTION,
                     .skips_step = true},
    [NG_AT_EMIT] = {.name = "emit", .run = ng_emission_emit},
    [NG_AT_WEIGHTS] = {.name = "weights",
                       .run = ng_gather_weights,
                       .is_due = is_weights_due,
                       .is_collective = true},
};
