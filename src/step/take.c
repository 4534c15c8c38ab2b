/* take.c: one step: check the call, run the stations, close the step.
 *
 * In: observations, bound gradients and weights, p->step->output and lr. Out: the status, equal on all ranks; counters.
 * After a step the sums of observations are discarded. This file also measures the time and bytes of the stations. */
#include "step/step.h"

/* ---- before the walk -------------------------------------------------------------------------*/

/* reads_gradient, reads_weight: return whether the step reads the gradient, or the weight, of a parameter. A fused update
 * reads both of every parameter. Otherwise a step reads the gradients of blocks and, with clip = ratio, their weights. */
static bool reads_gradient(const ng_precond *p, const ng_slot *s) {
  return s->block != NULL || p->step->output.kind != NG_OUT_GRADIENT;
}

static bool reads_weight(const ng_precond *p, const ng_slot *s) {
  return p->step->output.kind != NG_OUT_GRADIENT || (s->block != NULL && ng_clip_reads_weights(p));
}

/* Set *absent to whether the step excludes the layer, because missing = keep and none of the gradients that the step reads
 * is bound. If only some are bound, the layer is not absent, and check_entry_bindings reports the others. An expired
 * binding is an error. */
static ng_status find_absent(ng_precond *p, ng_entry *e, bool *absent) {
  int32_t missing = 0, needed = 0;
  for (int32_t k = 0; k < e->slots; k++) {
    const ng_slot *s = &e->slot[k];
    if (!reads_gradient(p, s)) continue;
    needed++;
    if (s->grad.is_expired) {
      return ng_fail(
          p->ctx, NG_ERR_STATE,
          "'%s': the binding of the gradient has expired (NG_ONE_STEP); bind a new array, or data "
          "NULL if there is no gradient",
          s->name);
    }
    missing += s->grad.data == NULL;
  }
  *absent = missing > 0 && missing == needed && p->opt.base.missing == NG_MISSING_KEEP;
  return NG_OK;
}

/* Check the bindings of an entry and decide whether the step excludes the entry.  Frameworks free gradients between
 * steps, so every step checks. */
static ng_status check_entry_bindings(ng_precond *p, ng_entry *e) {
  bool absent = false;
  if (e->d.frozen) return NG_OK;
  ng_status st = e->is_frozen ? NG_OK : find_absent(p, e, &absent);
  if (st != NG_OK) return st;
  const bool out = e->is_frozen || absent;
  if (out && e->block != NULL && e->block->entry == NULL && !e->block->family->can_exclude) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "'%s' has no gradient, and shares a block with other layers", e->d.name);
  }
  for (int32_t k = 0; k < e->slots; k++) {
    ng_slot *s = &e->slot[k];
    s->is_excluded = out;
    if (s->block != NULL) s->block->is_excluded = out;
    if (out || !reads_gradient(p, s)) continue;
    const bool weight = s->grad.data != NULL;
    if (weight && (!reads_weight(p, s) || s->weight.data != NULL)) continue;
    return ng_fail(p->ctx, NG_ERR_STATE, "'%s': the %s of its %s %s", e->d.name,
                   weight ? "weight" : "gradient", k == NG_BIAS ? "bias" : "weight",
                   weight && s->weight.is_expired ? "has expired (NG_ONE_STEP); bind a new array"
                   : weight || p->opt.base.missing == NG_MISSING_KEEP
                       ? "is not bound"
                       : "is not bound; missing = keep or ng_freeze excludes the parameter");
  }
  return NG_OK;
}

/* Exclude a block of several layers from the step if all its parameters are excluded. */
static void exclude_blocks(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    bool out = true;
    for (int32_t k = 0; k < b->segments && out; k++) {
      out = b->segment[k].slot->is_excluded;
    }
    if (b->entry == NULL) b->is_excluded = out;
  }
}

/* Check arguments and bindings. Store an error in p->step->status and do not return, because this rank must enter the
 * station `check`, where other ranks wait. */
static void check_call(ng_precond *p, const char *call, ng_status wrong) {
  static const ng_update update[] = {NG_UPDATE_GRADIENT, NG_UPDATE_SGD, NG_UPDATE_ADAMW};
  ng_engine *s = p->step;
  s->status = wrong;
  if (wrong != NG_OK) return; /* return, so that the error message of `wrong` stays */
  if (p->opt.base.update != update[s->output.kind]) {
    s->status = ng_fail(p->ctx, NG_ERR_STATE, "%s: the option update is '%s', expected '%s'", call,
                        ng_choice_text(NG_OPTION_update, (int32_t)p->opt.base.update),
                        ng_choice_text(NG_OPTION_update, (int32_t)update[s->output.kind]));
  }
  if (!(s->lr >= 0.0 && s->lr - s->lr == 0.0)) {
    s->status = ng_fail(p->ctx, NG_ERR_ARG, "%s: lr is %g, expected a number >= 0", call, s->lr);
  }
  for (int32_t i = 0; i < p->entries && s->status == NG_OK; i++) {
    s->status = check_entry_bindings(p, p->entry[i]);
    ng_shard_copy_flags(p->entry[i]);
  }
  exclude_blocks(p);
  if (s->status == NG_OK) s->status = ng_shards_check(p);
}

/* ---- the walk --------------------------------------------------------------------------------*/

/* Name all blocks for errors of a device. Work of one block names the block itself. */
static void name_all_blocks(ng_precond *p) {
  if (p->blocks > 0)
    ng_queue_name_blocks(p->ctx->queue, p->block[0]->name, p->block[p->blocks - 1]->name);
}

/* Other ranks receive the status in `check` or `agree`. */
static void note_device_error(ng_precond *p, const char *station) {
  const char *error = ng_queue_error(p->ctx->queue);
  if (error == NULL || p->step->status == NG_ERR_DEVICE) return;
  p->step->status = ng_fail(p->ctx, NG_ERR_DEVICE, "station %s: linalg = %s: %s", station,
                            p->ctx->queue->backend->name, error);
}

static ng_status run_station(ng_precond *p, int i) {
  ng_station_time *t = &p->step->time[i];
  const double t0 = ng_now_ms();
  const int64_t waits = p->ctx->queue->waits;
  ng_traffic was = ng_exchange_traffic(p), *early = &p->step->early_traffic[i];
  was.bytes -= early->bytes;
  was.messages -= early->messages;
  *early = (ng_traffic){0, 0, 0.0};
  ng_status st = ng_exchange_wait(p, ng_stations[i].awaited_mail);
  name_all_blocks(p);
  if (st == NG_OK) st = ng_stations[i].run(p);
  note_device_error(p, ng_stations[i].name);
  t->runs++;
  t->last_ms = ng_now_ms() - t0;
  t->total_ms += t->last_ms;
  const ng_traffic is = ng_exchange_traffic(p);
  t->last_waits = p->ctx->queue->waits - waits;
  t->last_bytes = is.bytes - was.bytes;
  t->total_bytes += t->last_bytes;
  t->last_messages = is.messages - was.messages;
  t->total_messages += t->last_messages;
  t->last_wait_ms = is.wait_ms - was.wait_ms;
  t->total_wait_ms += t->last_wait_ms;
  ng_log(p->ctx, NG_LOG_TRACE, "%s: ms = %.3f bytes = %lld waits = %lld", ng_stations[i].name,
         t->last_ms, (long long)t->last_bytes, (long long)t->last_waits);
  return st;
}

/* Run the stations in order. skips_step is tested also for a station that was not due, because an earlier station may
 * have made a refusal known. If a station returns an error, all ranks return the same error, or the transport failed. */
static ng_status run_stations(ng_precond *p) {
  ng_engine *s = p->step;
  bool ranks_know_refusal = false; /* has_refused is true on all ranks */
  s->is_solving = ng_any_block(p, ng_block_solve_due);
  for (int i = 0; i < NG_STATIONS; i++) {
    s->time[i].last_waits = 0;
    if (i == NG_AT_STATISTICS && s->fused.is_running) {
      name_all_blocks(p);
      const ng_status st = ng_fused_run(p);
      note_device_error(p, "emit");
      return ng_worse_status(st, s->status);
    }
    if (i == NG_AT_EMIT && p->step->quantify.count != NULL) {
      const ng_status st = ng_quantify_step(p);
      if (st < NG_OK) return st;
    }
    if (ng_stations[i].is_due == NULL || ng_stations[i].is_due(p)) {
      const ng_status st = run_station(p, i);
      if (st == NG_ERR_COMM) p->is_broken = true;
      if (st < NG_OK) return st;
      if (ng_stations[i].shares_refusal) ranks_know_refusal = s->has_refused;
    }
    if (ng_stations[i].skips_step && ranks_know_refusal) return NG_SKIPPED;
  }
  /* the device failed after `agree`, so the other ranks do not know */
  if (s->status == NG_ERR_DEVICE) ng_exchange_abort(p);
  return s->status;
}

/* ---- the end of a step -----------------------------------------------------------------------*/

/* Count and commit the step, then discard its sums, which `end_step` of a family may read. */
static void close_step(ng_precond *p, bool step_counts) {
  p->entries_without_gradient = 0;
  for (int32_t i = 0; i < p->stats && step_counts; i++) {
    ng_stat *s = p->stat[i].stat;
    if (s->is_new || p->stat[i].block->is_excluded) continue;
    s->stale.steps_without++;
    /* the statistic was not refreshed, so these bytes were not sent */
    s->stale.bytes_saved += ng_stat_wire_bytes(s);
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->family->end_step != NULL && !b->is_excluded) b->family->end_step(b, step_counts);
  }
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    const bool kept = step_counts && e->slot[0].is_excluded && !e->is_frozen;
    e->steps_without_gradient += kept;
    p->entries_without_gradient += kept;
    e->missed_updates +=
        step_counts && e->slot[0].is_excluded && p->step->output.kind != NG_OUT_GRADIENT;
  }
  ng_step_reset(p);
  ng_bind_expire(p);
}

/* Return NG_UNOBSERVED, or st if st is worse, if some statistic was due but no rank observed it, often because a hook is
 * missing in the caller's program. `check` has made b->unobserved_now equal on all ranks. */
static ng_status count_unobserved(ng_precond *p, const char *call, ng_status st) {
  const ng_block *first = NULL;
  int32_t layers = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->unobserved_now == 0) continue;
    if (first == NULL) first = b;
    layers++;
    b->unobserved_steps++;
    p->unobserved += b->unobserved_now;
  }
  if (first == NULL) return st;
  return ng_worse_status(st,
                         ng_fail(p->ctx, NG_UNOBSERVED,
                                 "%s: statistics of '%s'%s were due, but no rank observed them; "
                                 "their last averages were used (layers: %d)",
                                 call, first->name, layers > 1 ? " and others" : "", layers));
}

/* ---- the step --------------------------------------------------------------------------------*/

/* After an error in `check` the sums of observations stay, so that the caller can correct the cause and step again. Only
 * the sums of gradients are discarded, because the caller may bind other gradients. */
ng_status ng_step_run(ng_precond *p, const char *call, ng_status wrong) {
  ng_engine *s = p->step;
  ng_overhead_begin(p);
  check_call(p, call, wrong);
  if (s->status >= NG_OK) ng_update_set_late_coefficients(p);
  s->refused_before = s->has_refused;
  note_device_error(p, "observe");
  name_all_blocks(p);
  ng_fused_begin(p);
  const ng_status late = ng_fused_settle(p);
  p->ctx->queue->waits = 0;
  if (ng_exchange_end_last_batch(p) != NG_OK) return NG_ERR_COMM;
  ng_status st = run_stations(p);
  s->waits = p->ctx->queue->waits;
  if (st < NG_OK) {
    /* after an error of the device no entry works, so only destroying the object remains */
    if (st == NG_ERR_DEVICE) p->is_broken = true;
    if (!p->is_broken) ng_gradients_discard(p);
    return st;
  }
  /* Messages may have been posted ahead for statistics that are no longer due, because a period changed. */
  if (ng_exchange_wait(p, NG_MAIL_STATISTICS) != NG_OK) return NG_ERR_COMM;
  close_step(p, st != NG_SKIPPED);
  if (st == NG_SKIPPED) {
    p->skipped++;
    return ng_fail(
        p->ctx, NG_SKIPPED,
        "%s: a gradient, an observation or a preconditioned gradient is not finite; gradients and "
        "weights are unchanged and the step is not counted",
        call);
  }
  st = count_unobserved(p, call, st);
  p->steps++;
  if (s->output.kind != NG_OUT_GRADIENT) p->updates++;
  ng_overhead_end(p);
  ng_log(p->ctx, NG_LOG_INFO, "step: n = %lld clip = %.6g status = %s", (long long)p->steps, s->nu,
         ng_status_name(st));
  return ng_worse_status(st, late);
}

ng_status ng_step_sync(ng_precond *p) {
  ng_queue_wait(p->ctx->queue);
  p->step->status = NG_OK;
  note_device_error(p, "emit");
  if (p->step->status == NG_OK) return ng_fused_settle(p);
  ng_exchange_abort(p);
  return p->step->status;
}

const char *ng_step_settle(ng_precond *p) {
  ng_fused_stop(p);
  ng_queue_wait(p->ctx->queue);
  return ng_queue_error(p->ctx->queue);
}

ng_status ng_step_check_device(ng_precond *p, const char *call) {
  const char *error = ng_step_settle(p);
  if (error == NULL) return NG_OK;
  ng_exchange_abort(p);
  return ng_fail(p->ctx, NG_ERR_DEVICE, "%s: linalg = %s: %s", call, p->ctx->queue->backend->name,
                 error);
}
