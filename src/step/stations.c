/* stations.c: a step is this table of stations, walked in order.
 *
 *   look -> check -> choose -> sums -> statistics -> tell -> solve -> share -> shards -> measure -> deliver
 *   -> agree -> probe -> quantify -> emit -> weights
 *
 * Each is due or not, local or collective; the table says what is waited for before it runs, what it
 * leaves under way, and where all ranks may end the step together.  Time, bytes, waiting and leaving are
 * taken care of around the table, once.  No station runs another.  A local failure is recorded in
 * `trouble`; the rank goes on to the next small reduction with harmless data, and there all ranks leave
 * with the same status.
 *
 * What the order is for: nothing is summed, folded or solved before `check` has heard every rank,
 * so a call that was wrong on one leaves all as they were; no gradient or weight is written before
 * `agree`, so a step counts on all ranks or on none. */
#include "step/step.h"

/* stat_refresh = adaptive: by the rule of stat/stale.h.  What sees the same observation is made anew
 * together: a family adds to all of it at once. */
static bool stale_due(const ng_precond *p, const ng_block *b, const ng_stat *s) {
  for (int32_t i = 0; i < b->stats; i++) {
    const ng_stat *t = &b->stat[i];
    if (t->sees == s->sees && (!t->stale.on || p->steps >= t->stale.next)) return true;
  }
  return false;
}

/* Counted in steps that counted: step 0 is due for everything, whatever the period. */
/* Also while there is something of it that no rank has ever shown: a layer that was left out at its first
 * due step begins when it comes back.  `out` is of the step under way: with fold = direct what was observed
 * before is in the average already, and has to be carried through. */
static bool block_due(const ng_precond *p, const ng_block *b) {
  bool period = p->steps % b->opt.stat_period == 0;
  if (b->base.stat_refresh == NG_REFRESH_ADAPTIVE) {
    period = false;
    for (int32_t i = 0; i < b->stats; i++) {
      period = period || stale_due(p, b, &b->stat[i]);
    }
  }
  if (b->out) return period && b->base.fold == NG_FOLD_DIRECT;
  if (b->entry != NULL && b->entry->asleep) return false;
  for (int kind = 0; kind < NG_SEEN_KINDS; kind++) {
    if (!b->seen[kind]) return true; /* agreed: the same on all ranks */
  }
  return period;
}

bool ng_one_due(const ng_precond *p, const ng_block *b, const ng_stat *s) {
  if (s->every && !b->out) return true;
  return block_due(p, b) && (!s->stale.on || stale_due(p, b, s));
}

bool ng_stat_due(const ng_precond *p, const ng_block *b) {
  bool every = false;
  for (int32_t i = 0; i < b->stats; i++) {
    every = every || b->stat[i].every;
  }
  return (every && !b->out) || block_due(p, b);
}

/* Also at the first step that got so far, if those before were skipped: without results there is no
 * PD. */
bool ng_solve_due(const ng_precond *p, const ng_block *b) {
  /* A method that has no period of solves may have such blocks beside its own: every step. */
  const char *owner = ng_option_table[NG_OPTION_solve_period].family;
  const bool period = owner == NULL || ng_is(owner, b->base.family);
  if (b->family->solve == NULL || b->out) return false;
  if (b->base.stat_refresh == NG_REFRESH_ADAPTIVE) return !b->solved || ng_stat_due(p, b);
  return !b->solved || !period || p->steps % b->opt.solve_period == 0;
}

/* ---- before the walk -------------------------------------------------------------------------*/

/* Where the step reads or writes: gradients of blocks, and with clip = ratio their weights; with a
 * fused update both of every parameter that is not frozen, with or without curvature. */
static bool needs_slot(const ng_precond *p, const ng_slot *s) {
  return s->block != NULL || p->step->out.kind != NG_OUT_GRADIENT;
}

static bool needs_weight(const ng_precond *p, const ng_slot *s) {
  return p->step->out.kind != NG_OUT_GRADIENT || (s->block != NULL && ng_clip_reads_weights(p));
}

/* A gradient that is absent leaves its entry out of the step where that is allowed: one that was bound
 * for a step that is over is not absent, it was forgotten.  A layer of which some parameters have one has
 * no D to precondition. */
static ng_status find_absent(ng_precond *p, ng_entry *e, bool *absent) {
  int32_t missing = 0, needed = 0;
  for (int32_t k = 0; k < e->slots; k++) {
    const ng_slot *s = &e->slot[k];
    if (!needs_slot(p, s)) continue;
    needed++;
    if (s->grad.expired) {
      return ng_fail(
          p->ctx, NG_ERR_STATE,
          "'%s': the gradient was bound for one step, which is over; bind it again, or with data "
          "NULL if there is none",
          s->name);
    }
    missing += s->grad.data == NULL;
  }
  *absent = missing > 0 && missing == needed && p->now.missing == NG_MISSING_KEEP;
  return NG_OK;
}

/* Frameworks free gradients between steps, so all of this is asked anew. */
static ng_status check_bound(ng_precond *p, ng_entry *e) {
  bool absent = false;
  if (e->d.frozen) return NG_OK;
  ng_status st = e->asleep ? NG_OK : find_absent(p, e, &absent);
  if (st != NG_OK) return st;
  const bool out = e->asleep || absent;
  if (out && e->block != NULL && e->block->entry == NULL) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "'%s': it has no gradient, and is in one block with other layers", e->d.name);
  }
  if (e->block != NULL) e->block->out = out;
  for (int32_t k = 0; k < e->slots; k++) {
    ng_slot *s = &e->slot[k];
    s->out = out;
    if (out || !needs_slot(p, s)) continue;
    const bool weight = s->grad.data != NULL;
    if (weight && (!needs_weight(p, s) || s->weight.data != NULL)) continue;
    return ng_fail(p->ctx, NG_ERR_STATE, "'%s': the %s of its %s %s", e->d.name,
                   weight ? "weight" : "gradient", k == NG_BIAS ? "bias" : "weight",
                   weight && s->weight.expired
                       ? "was bound for one step, which is over; bind it again"
                   : weight || p->now.missing == NG_MISSING_KEEP
                       ? "is not bound"
                       : "is not bound; missing = keep, or ng_freeze, leaves it as it is");
  }
  return NG_OK;
}

/* Into `trouble`, not out of the call: the other ranks are on their way to `check`, and a rank that
 * returned here would leave them waiting there. */
static void check_call(ng_precond *p, const char *call, ng_status wrong) {
  static const ng_update update[] = {NG_UPDATE_GRADIENT, NG_UPDATE_SGD, NG_UPDATE_ADAMW};
  ng_engine *s = p->step;
  s->trouble = wrong;
  if (wrong != NG_OK) return; /* its message stays */
  if (p->base.update != update[s->out.kind]) {
    s->trouble =
        ng_fail(p->ctx, NG_ERR_STATE, "%s: the option update is '%s', expected '%s'", call,
                p->opt.update, ng_choice_text(NG_OPTION_update, (int32_t)update[s->out.kind]));
  }
  if (!(s->lr >= 0.0 && s->lr - s->lr == 0.0)) {
    s->trouble = ng_fail(p->ctx, NG_ERR_ARG, "%s: lr is %g, expected a number >= 0", call, s->lr);
  }
  for (int32_t i = 0; i < p->entries && s->trouble == NG_OK; i++) {
    s->trouble = check_bound(p, p->entry[i]);
    ng_shard_follow(p->entry[i]);
  }
  if (s->trouble == NG_OK) s->trouble = ng_shards_check(p);
}

/* ---- look, check, sums, statistics, solve, share ---------------------------------------------*/

/* A fold, and with stat_refresh = adaptive what has become of the average by it. */
static ng_status refresh(ng_precond *p, ng_stat *s) {
  const bool anew = s->total > 0.0;
  if (anew && s->stale.on) ng_stat_remember(s, p->arena[NG_USE_SCRATCH]);
  const ng_status st = ng_stat_fold(p->ctx->queue, s);
  if (!anew || st != NG_OK) return st;
  s->fresh = true;
  if (s->stale.on) ng_stat_judge(s, p->arena[NG_USE_SCRATCH]);
  s->stale.refreshed++;
  s->stale.bytes_sent += ng_stat_wire_bytes(s);
  return NG_OK;
}

/* NG_SKIPPED of one statistic leaves the others folded: their sums were sound. */
static ng_status fold_block(ng_precond *p, ng_block *b) {
  static const char *const what[NG_SEEN_KINDS] = {"inputs", "output gradients", "gradients"};
  ng_status st = NG_OK;
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    int kind = 0;
    while (kind + 1 < NG_SEEN_KINDS && ng_sees(kind) != s->sees) {
      kind++;
    }
    if (refresh(p, s) == NG_OK) continue;
    st = ng_fail(
        p->ctx, NG_SKIPPED,
        "layer '%s': the sum of %s overflowed, or the average %s would leave the range of %s",
        b->name, what[kind], s->name, ng_dtype_name(s->kept));
  }
  return st;
}

/* An overflow is known to this rank only (statistics = local has one rank that sums), so it waits
 * in `refused` until `agree` has spread it; the walk leaves here only for what `check` told
 * everybody. */
static ng_status statistics(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!ng_stat_due(p, b)) continue;
    const double t0 = ng_now_ms();
    if (fold_block(p, b) == NG_SKIPPED) p->step->refused = true;
    b->observe_ms = b->observing_ms + ng_now_ms() - t0;
    b->observing_ms = 0.0;
  }
  return NG_OK;
}

/* One line for all that were rescued in this step. */
static void tell_rescued(const ng_precond *p, const int64_t before[NG_RESCUES], const char *first) {
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

/* Every rank marks the block as solved, also those that keep nothing of it: what is due must be the
 * same everywhere. */
static ng_status solve(ng_precond *p) {
  int64_t before[NG_RESCUES];
  const char *first = "";
  memcpy(before, p->rescued, sizeof before);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    b->fresh = ng_solve_due(p, b);
    if (!b->fresh) continue;
    const double t0 = ng_now_ms();
    const ng_status st = b->family->solve(b);
    p->step->trouble = ng_worse(p->step->trouble, st);
    if (st == NG_RESCUED && first[0] == 0) first = b->name;
    b->solve_ms = ng_now_ms() - t0;
    b->solved = true;
  }
  tell_rescued(p, before, first);
  return NG_OK;
}

/* ---- measure, deliver, agree, probe, emit ----------------------------------------------------*/

/* Results first, then all tiles in one loop, then what a family makes of their sums.  A rank that
 * does not hold a block leaves zeros; `agree` takes each block from its owner, or everybody's share
 * of a partial one. */
static ng_status measure(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks && p->step->solving; i++) {
    ng_block *b = p->block[i];
    if (b->holds && !b->out && b->family->shared != NULL) b->family->shared(b, b->fresh);
  }
  ng_tiles_measure(p);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    /* measure_ms has the block's share of the loop already */
    b->inner = b->d2 = b->pd2 = 0.0;
    if (!b->holds || b->out) continue;
    const double t0 = ng_now_ms();
    const ng_status st = b->family->measure(b);
    b->measure_ms += ng_now_ms() - t0;
    if (st == NG_SKIPPED) p->step->refused = true;
    if (st < NG_OK || st == NG_RESCUED) p->step->trouble = ng_worse(p->step->trouble, st);
    ng_deliver_fill(b);
  }
  ng_clip_measure(p);
  return NG_OK;
}

/* The sums come back the same on all ranks, and so is everything that is concluded from them
 * here. */
static ng_status agree(ng_precond *p) {
  const double F32_MOST = 3.38e38;
  ng_sums sums[2];
  const ng_status st = ng_exchange_agree(p, sums);
  if (st != NG_OK) return st;
  ng_clip_agreed(p, sums);
  /* No f32 leaves above its range; gradients and PD are the same on every rank, and so is the answer. */
  if (!(p->step->largest <= F32_MOST)) p->step->refused = true;
  if (!p->step->refused) ng_clip_factors(p);
  return NG_OK;
}

/* A gradient of f16 may become Inf, since its range ends at 65504 and PD may be larger than D by 1 /
 * lambda; so may a weight or a moment.  The bounds say no nearly always; where they cannot, all of it is
 * made once without being written.  Found later, half of it would be written. */
static ng_status probe(ng_precond *p) {
  ng_probe_sink sink;
  ng_probe_sink_begin(&sink, p);
  ng_tiles_emit(p, &sink.sink);
  ng_probe_tell(p, &sink);
  return ng_exchange_probe(p);
}

/* Cannot fail: everything that could refuse the step has been asked. */
static ng_status emit(ng_precond *p) {
  ng_bounds_begin(p);
  ng_tiles_emit(p, &p->step->out.sink);
  p->step->trouble = ng_worse(p->step->trouble, ng_bounds_written(p));
  return NG_OK;
}

/* ---- the table and the walk ------------------------------------------------------------------*/

static bool always(const ng_precond *p) {
  (void)p;
  return true;
}

static bool look_due(const ng_precond *p) { return p->step->trouble >= NG_OK && ng_look_due(p); }

static bool any_stat(const ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    if (ng_stat_due(p, p->block[i])) return true;
  }
  return false;
}

static bool any_solve(const ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    if (ng_solve_due(p, p->block[i])) return true;
  }
  return false;
}

/* `solve` marks blocks as solved, so what `share` is due for is remembered from before the walk. */
static bool solving(const ng_precond *p) { return p->step->solving; }

/* Where owners update, PD stays with them, and their weights go round instead. */
static bool gathers(const ng_precond *p) { return p->ctx->ranks > 1 && ng_update_is_owned(p); }

static bool delivers(const ng_precond *p) {
  bool sliced = false;
  for (int32_t i = 0; i < p->blocks; i++) {
    sliced = sliced || p->block[i]->slice != NULL;
  }
  return sliced || !gathers(p);
}

const ng_station ng_stations[NG_STATIONS] = {
    [NG_AT_LOOK] = {.name = "look", .run = ng_look, .due = look_due},
    [NG_AT_CHECK] = {.name = "check",
                     .run = ng_exchange_check,
                     .due = always,
                     .collective = true,
                     .tells = true,
                     .leave = NG_LEAVE_ERRORS},
    [NG_AT_CHOOSE] = {.name = "choose", .run = ng_choose, .due = ng_choose_due, .collective = true},
    [NG_AT_SUMS] = {.name = "sums",
                    .run = ng_exchange_post_statistics,
                    .due = any_stat,
                    .collective = true,
                    .posts = NG_MAIL_STATISTICS},
    [NG_AT_STATISTICS] = {.name = "statistics",
                          .run = statistics,
                          .due = any_stat,
                          .waits = NG_MAIL_STATISTICS,
                          .leave = NG_LEAVE_REFUSED},
    [NG_AT_TELL] = {.name = "tell",
                    .run = ng_exchange_tell,
                    .due = ng_exchange_tells,
                    .collective = true},
    [NG_AT_SOLVE] = {.name = "solve", .run = solve, .due = solving},
    [NG_AT_SHARE] = {.name = "share",
                     .run = ng_exchange_post_results,
                     .due = solving,
                     .collective = true,
                     .posts = NG_MAIL_RESULTS},
    [NG_AT_SHARDS] = {.name = "shards",
                      .run = ng_shards_gather,
                      .due = ng_shards_due,
                      .collective = true},
    [NG_AT_MEASURE] = {.name = "measure", .run = measure, .due = always, .waits = NG_MAIL_RESULTS},
    [NG_AT_DELIVER] = {.name = "deliver",
                       .run = ng_exchange_post_direction,
                       .due = delivers,
                       .collective = true,
                       .posts = NG_MAIL_DIRECTION},
    [NG_AT_AGREE] = {.name = "agree",
                     .run = agree,
                     .due = always,
                     .collective = true,
                     .tells = true,
                     .waits = NG_MAIL_DIRECTION,
                     .leave = NG_LEAVE_REFUSED},
    [NG_AT_PROBE] = {.name = "probe",
                     .run = probe,
                     .due = ng_bounds_fail,
                     .collective = true,
                     .tells = true,
                     .leave = NG_LEAVE_REFUSED},
    [NG_AT_QUANTIFY] = {.name = "quantify",
                        .run = ng_quantify_step,
                        .due = ng_quantify_due,
                        .collective = true},
    [NG_AT_EMIT] = {.name = "emit", .run = emit, .due = always},
    [NG_AT_WEIGHTS] = {.name = "weights",
                       .run = ng_gather_weights,
                       .due = gathers,
                       .collective = true},
};

static ng_status run_station(ng_precond *p, int i) {
  ng_station_time *t = &p->step->time[i];
  const double t0 = ng_now_ms();
  ng_exchange *x = &p->step->exchange;
  ng_shards *s = &p->step->shards;
  ng_traffic was = ng_exchange_said(p);
  if (i == NG_AT_SUMS) { /* what was sent ahead is counted there */
    was.bytes -= x->bytes;
    was.messages -= x->sent;
    x->bytes = x->sent = 0;
  } else if (i == NG_AT_SHARDS) { /* and there what was brought together for observations */
    was.bytes -= s->bytes;
    was.messages -= s->messages;
    s->bytes = s->messages = 0;
  }
  ng_status st = ng_exchange_wait(p, ng_stations[i].waits);
  if (st == NG_OK) st = ng_stations[i].run(p);
  t->runs++;
  t->last_ms = ng_now_ms() - t0;
  t->total_ms += t->last_ms;
  const ng_traffic is = ng_exchange_said(p);
  t->last_bytes = is.bytes - was.bytes;
  t->total_bytes += t->last_bytes;
  t->last_messages = is.messages - was.messages;
  t->total_messages += t->last_messages;
  t->last_wait_ms = is.wait_ms - was.wait_ms;
  t->total_wait_ms += t->last_wait_ms;
  ng_log(p->ctx, NG_LOG_TRACE, "%s: ms = %.3f bytes = %lld", ng_stations[i].name, t->last_ms,
         (long long)t->last_bytes);
  return st;
}

/* `leave` is looked at also after a station that was not due: what was refused may be known from
 * before.  An error that a station returns is the same on all ranks (check, agree) or a broken
 * transport. */
static ng_status walk(ng_precond *p) {
  ng_engine *s = p->step;
  s->known = false;
  s->solving = any_solve(p);
  for (int i = 0; i < NG_STATIONS; i++) {
    if (ng_stations[i].due(p)) {
      const ng_status st = run_station(p, i);
      if (st == NG_ERR_COMM) p->broken = true;
      if (st < NG_OK) return st;
      if (ng_stations[i].tells) s->known = s->refused;
    }
    if (ng_stations[i].leave == NG_LEAVE_REFUSED && s->known) return NG_SKIPPED;
  }
  return s->trouble;
}

/* Not made anew in this step: what it would have sent stayed here. */
static void count_passed(ng_stat *s) {
  if (s->fresh) return;
  s->stale.passed++;
  s->stale.bytes_passed += ng_stat_wire_bytes(s);
}

/* The step is over, taken or skipped: what was observed is used up, and memory that moves with the
 * step moves.  Commit before forget: a family may still read this step's sums when it learns
 * whether the step counted. */
static void close_step(ng_precond *p, bool taken) {
  p->kept = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->stats && taken && !b->out; k++) {
      count_passed(&b->stat[k]);
    }
    if (b->family->commit != NULL && !b->out) b->family->commit(b, taken);
  }
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    const bool kept = taken && e->slot[0].out && !e->asleep;
    e->kept += kept;
    p->kept += kept;
    e->missed += taken && e->slot[0].out && p->step->out.kind != NG_OUT_GRADIENT;
  }
  ng_step_reset(p);
  ng_bind_expire(p);
}

/* Who was left out is decided anew by the next step; observations until then are not of this one. */
static void let_in(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    p->block[i]->out = false;
  }
}

/* Nothing is lost, but an average that should have moved did not: a hook that is missing looks like this.
 * Known from `check`, the same on all ranks. */
static ng_status count_unobserved(ng_precond *p, const char *call, ng_status st) {
  const ng_block *first = NULL;
  int32_t layers = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->unshown == 0) continue;
    if (first == NULL) first = b;
    layers++;
    b->unobserved++;
    p->unobserved += b->unshown;
  }
  if (first == NULL) return st;
  return ng_worse(st,
                  ng_fail(p->ctx, NG_UNOBSERVED,
                          "%s: statistics of '%s'%s were due, and no rank showed anything of them; "
                          "their last averages were used (layers: %d)",
                          call, first->name, layers > 1 ? " and others" : "", layers));
}

/* Values before and after: the step runs on those of its own number, and between steps ng_get shows
 * those of the coming one.  What `check` finds wrong consumes nothing: the caller may put it right
 * and step again with the same observations; only gradients, which may be bound anew, are looked at
 * again. */
ng_status ng_step_take(ng_precond *p, const char *call, ng_status wrong) {
  ng_engine *s = p->step;
  ng_step_schedule(p);
  ng_update_sink_begin(&s->out);
  check_call(p, call, wrong);
  if (s->trouble >= NG_OK) ng_update_late(p);
  s->refused_before = s->refused;
  if (ng_exchange_end_last(p) != NG_OK) return NG_ERR_COMM;
  ng_status st = walk(p);
  if (st < NG_OK) {
    if (!p->broken) ng_look_undo(p);
    let_in(p);
    return st;
  }
  /* Sums that were posted ahead and then were not due: a period was changed in between. */
  if (ng_exchange_wait(p, NG_MAIL_STATISTICS) != NG_OK) return NG_ERR_COMM;
  close_step(p, st != NG_SKIPPED);
  let_in(p);
  if (st == NG_SKIPPED) {
    p->skipped++;
    return ng_fail(
        p->ctx, NG_SKIPPED,
        "%s: a gradient or an observation was not finite, or a preconditioned gradient, "
        "weight or moment would not be; gradients and weights are unchanged and the step is "
        "not counted",
        call);
  }
  st = count_unobserved(p, call, st);
  p->steps++;
  if (s->out.kind != NG_OUT_GRADIENT) p->updates++;
  ng_step_schedule(p);
  ng_log(p->ctx, NG_LOG_INFO, "step: n = %lld clip = %.6g status = %s", (long long)p->steps, s->nu,
         ng_status_name(st));
  return st;
}
