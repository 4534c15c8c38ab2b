/* step.c: a step is this table of stations, walked in order.
 *
 *   check -> statistics -> solve -> share -> measure -> deliver -> agree -> emit
 *
 * Each is due or not, local or collective.  Time, bytes and the status of all ranks are taken care
 * of around the table, once.  A local failure is recorded in `trouble`; the rank goes on to the
 * next small reduction with harmless data, and there all ranks leave with the same status. */
#include "model/model.h"

#include <math.h>

bool ng_stat_due(const ng_precond *p, const ng_block *b) {
  return p->steps % b->opt.stat_period == 0;
}

bool ng_solve_due(const ng_precond *p, const ng_block *b) {
  if (b->ops->solve == NULL) return false;
  return !b->solved || p->steps % b->opt.solve_period == 0;
}

/* ---- check -----------------------------------------------------------------------------------*/

static ng_status check_bound(ng_precond *p, const ng_entry *e) {
  const bool update =
      p->sink.kind != NG_SINK_GRADIENT || (e->block != NULL && ng_clip_reads_weights(p));
  if (e->d.frozen || (e->block == NULL && !update)) return NG_OK;
  for (int32_t k = 0; k < e->slots; k++) {
    const char *missing = e->slot[k].grad.data == NULL               ? "gradient"
                          : update && e->slot[k].weight.data == NULL ? "weight"
                                                                     : NULL;
    if (missing != NULL) {
      return ng_fail(p->ctx, NG_ERR_STATE, "'%s': the %s of its %s is not bound", e->d.name,
                     missing, k == NG_BIAS ? "bias" : "weight");
    }
  }
  return NG_OK;
}

static ng_status check(ng_precond *p) {
  static const ng_update takes[] = {[NG_SINK_GRADIENT] = NG_UPDATE_GRADIENT,
                                    [NG_SINK_SGD] = NG_UPDATE_SGD,
                                    [NG_SINK_ADAMW] = NG_UPDATE_ADAMW};
  static const char *const call[] = {"ng_step", "ng_step_sgd", "ng_step_adamw"};
  const ng_update update = takes[p->sink.kind];
  if (p->now.update != update) {
    p->trouble = ng_fail(p->ctx, NG_ERR_STATE, "%s: the option update is '%s', expected '%s'",
                         call[p->sink.kind], p->opt.update,
                         ng_choice_text(NG_OPTION_update, (int32_t)update));
  }
  if (!(p->lr >= 0.0 && p->lr - p->lr == 0.0)) {
    p->trouble = ng_fail(p->ctx, NG_ERR_ARG, "%s: lr is %g, expected a number >= 0",
                         call[p->sink.kind], p->lr);
  }
  for (int32_t i = 0; i < p->entries && p->trouble == NG_OK; i++) {
    p->trouble = check_bound(p, p->entry[i]);
  }
  return ng_exchange_check(p);
}

/* ---- statistics, solve, share ----------------------------------------------------------------*/

static ng_status statistics(ng_precond *p) {
  ng_status st = ng_exchange_sums(p);
  if (st != NG_OK) return st;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!b->holds_stats || !ng_stat_due(p, b)) continue;
    const double t0 = ng_now_ms();
    st = b->ops->fold(b);
    if (st == NG_SKIPPED) p->refused = true;
    b->observe_ms = b->observing_ms + ng_now_ms() - t0;
    b->observing_ms = 0.0;
  }
  return NG_OK;
}

static ng_status solve(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!ng_solve_due(p, b)) continue;
    if (b->holds_stats) {
      const double t0 = ng_now_ms();
      p->trouble = ng_worse(p->trouble, b->ops->solve(b));
      b->solve_ms = ng_now_ms() - t0;
    }
    b->solved = true;
  }
  return NG_OK;
}

static ng_status share(ng_precond *p) {
  const ng_status st = ng_exchange_results(p);
  for (int32_t i = 0; i < p->blocks && st == NG_OK; i++) {
    ng_block *b = p->block[i];
    if (b->holds_result && b->ops->shared != NULL) b->ops->shared(b);
  }
  return st;
}

/* ---- measure, deliver, agree, emit -----------------------------------------------------------*/

static ng_status measure(ng_precond *p) {
  ng_tiles_measure(p);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    b->inner = b->d2 = b->pd2 = 0.0;
    if (!b->holds_result) continue;
    const double t0 = ng_now_ms();
    const ng_status st = b->ops->measure(b);
    b->measure_ms = ng_now_ms() - t0 + (b->tiles > 0 ? b->measure_ms : 0.0);
    if (st == NG_SKIPPED) p->refused = true;
    if (st < NG_OK) p->trouble = ng_worse(p->trouble, st);
  }
  ng_clip_measure(p);
  return NG_OK;
}

static ng_status deliver(ng_precond *p) { return ng_exchange_direction(p); }

static ng_status emit(ng_precond *p);

static bool any_f16(const ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_slot *s = p->block[i]->entry->slot;
    for (int32_t k = 0; k < p->block[i]->entry->slots; k++) {
      if (s[k].grad.dtype == NG_F16) return true;
    }
  }
  return false;
}

/* Whether what leaves can be written: no f32 above its range, no Inf in a gradient of f16.  The norm of
 * all of it says yes nearly always; where it cannot for f16, emit walks once without writing.
 * Gradients and PD are the same on every rank, and so is the answer. */
static bool fits(ng_precond *p) {
  const double F16_MOST = 65504.0, F32_MOST = 3.38e38, largest = ng_clip_largest(p);
  if (!(largest <= F32_MOST)) return false;
  if (p->sink.kind != NG_SINK_GRADIENT || largest <= F16_MOST || !any_f16(p)) return true;
  atomic_bool overflows = false;
  p->sink.kind = NG_SINK_PROBE;
  p->sink.overflows = &overflows;
  p->trouble = ng_worse(p->trouble, emit(p));
  p->sink.kind = NG_SINK_GRADIENT;
  p->sink.overflows = NULL;
  return !atomic_load(&overflows);
}

static ng_status agree(ng_precond *p) {
  const ng_status st = ng_exchange_agree(p);
  if (st != NG_OK) return st;
  ng_clip_agreed(p, p->small + 1);
  if (!p->refused && !fits(p)) p->refused = true;
  return NG_OK;
}

static ng_status emit(ng_precond *p) {
  ng_clip_factors(p);
  ng_tiles_emit(p);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->ops->emit == NULL) continue;
    const ng_status st = b->ops->emit(b, b->factor, &p->sink);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

/* ---- the table and the walk ------------------------------------------------------------------*/

static bool always(const ng_precond *p) {
  (void)p;
  return true;
}

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

/* `solve` marks blocks as solved, so what `share` is due for is remembered. */
static bool just_solved(const ng_precond *p) { return p->solving; }

const ng_station ng_stations[NG_STATIONS] = {
    [NG_AT_CHECK] = {"check", check, always, true},
    [NG_AT_STATISTICS] = {"statistics", statistics, any_stat, true},
    [NG_AT_SOLVE] = {"solve", solve, just_solved, false},
    [NG_AT_SHARE] = {"share", share, just_solved, true},
    [NG_AT_MEASURE] = {"measure", measure, always, false},
    [NG_AT_DELIVER] = {"deliver", deliver, always, true},
    [NG_AT_AGREE] = {"agree", agree, always, true},
    [NG_AT_EMIT] = {"emit", emit, always, false},
};

static ng_status run_station(ng_precond *p, int i) {
  ng_station_time *t = &p->time[i];
  const double t0 = ng_now_ms();
  const int64_t bytes = p->ctx->comm->bytes;
  const ng_status st = ng_stations[i].run(p);
  t->runs++;
  t->last_ms = ng_now_ms() - t0;
  t->total_ms += t->last_ms;
  t->last_bytes = p->ctx->comm->bytes - bytes;
  t->total_bytes += t->last_bytes;
  ng_log(p->ctx, NG_LOG_TRACE, "%s: ms = %.3f bytes = %lld", ng_stations[i].name, t->last_ms,
         (long long)t->last_bytes);
  return st;
}

/* Walk the table.  Leaves early only where all ranks do: after check (errors), after statistics
 * (refused observations: what other blocks folded stays), after agree. */
static ng_status walk(ng_precond *p) {
  p->trouble = NG_OK;
  p->solving = any_solve(p);
  for (int i = 0; i < NG_STATIONS; i++) {
    if (p->told && (i == NG_AT_SOLVE || i == NG_AT_EMIT)) return NG_SKIPPED;
    if (!ng_stations[i].due(p)) continue;
    const ng_status st = run_station(p, i);
    if (st == NG_ERR_COMM) p->broken = true;
    if (st < NG_OK) return st;
    if (i == NG_AT_CHECK || i == NG_AT_AGREE) p->told = p->refused;
  }
  return p->trouble;
}

/* The step is over, taken or skipped: what was observed is used up. */
static void close_step(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    p->block[i]->ops->forget(p->block[i]);
    p->block[i]->refused = false;
  }
  p->refused = p->told = false;
  p->begun = false;
  ng_queue_wait(p->ctx->queue); /* the state may be read and saved */
}

static ng_status take_step(ng_precond *p, const char *call) {
  if (p->broken) return ng_fail(p->ctx, NG_ERR_COMM, "%s: the transport failed before", call);
  if (!p->ready) return ng_fail(p->ctx, NG_ERR_STATE, "%s: call ng_ready first", call);
  ng_live_update(p);
  p->sink.p = p;
  p->sink.first = p->updates == 0;
  const ng_status st = walk(p);
  if (st < NG_OK) return st;
  close_step(p);
  if (st == NG_SKIPPED) {
    p->skipped++;
    return ng_fail(p->ctx, NG_SKIPPED,
                   "%s: a gradient or an observation was not finite, or a preconditioned gradient "
                   "would not be; "
                   "gradients are unchanged and the step is not counted",
                   call);
  }
  p->steps++;
  if (p->sink.kind != NG_SINK_GRADIENT) p->updates++;
  ng_live_update(p);
  ng_log(p->ctx, NG_LOG_INFO, "step: n = %lld clip = %.6g status = %s", (long long)p->steps, p->nu,
         ng_status_name(st));
  return st;
}

ng_status ng_step(ng_precond *p, double lr) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  p->sink.kind = NG_SINK_GRADIENT;
  p->lr = lr;
  return take_step(p, "ng_step");
}

static ng_status bad_number(ng_precond *p, const char *call, const char *name, double value,
                            const char *expected) {
  return ng_fail(p->ctx, NG_ERR_ARG, "%s: %s is %g, expected %s", call, name, value, expected);
}

static bool is_finite(double x) { return x - x == 0.0; }

ng_status ng_step_sgd(ng_precond *p, const ng_sgd *how) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  if (how == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "ng_step_sgd: how is NULL");
  ng_sgd s;
  char message[NG_MESSAGE] = "";
  if (ng_sgd_init(&s) != NG_OK) return NG_ERR_ARG;
  const ng_status st = ng_take_struct(&s, sizeof s, how, offsetof(ng_sgd, momentum), "ng_sgd",
                                      message, sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "%s", message);
  if (!(s.momentum >= 0.0) || !is_finite(s.momentum)) {
    return bad_number(p, "ng_step_sgd", "momentum", s.momentum, "a number >= 0");
  }
  if (!is_finite(s.dampening)) {
    return bad_number(p, "ng_step_sgd", "dampening", s.dampening, "a number");
  }
  if (!(s.weight_decay >= 0.0) || !is_finite(s.weight_decay)) {
    return bad_number(p, "ng_step_sgd", "weight_decay", s.weight_decay, "a number >= 0");
  }
  if (s.nesterov && (s.momentum == 0.0 || s.dampening != 0.0)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_step_sgd: nesterov needs a momentum above 0 and a dampening of 0");
  }
  p->sink.kind = NG_SINK_SGD;
  p->sink.sgd = s;
  p->lr = s.lr;
  return take_step(p, "ng_step_sgd");
}

ng_status ng_step_adamw(ng_precond *p, const ng_adamw *how) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  if (how == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "ng_step_adamw: how is NULL");
  ng_adamw a;
  char message[NG_MESSAGE] = "";
  if (ng_adamw_init(&a) != NG_OK) return NG_ERR_ARG;
  const ng_status st = ng_take_struct(&a, sizeof a, how, offsetof(ng_adamw, beta1), "ng_adamw",
                                      message, sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "%s", message);
  if (!(a.beta1 >= 0.0 && a.beta1 < 1.0)) {
    return bad_number(p, "ng_step_adamw", "beta1", a.beta1, "a number in [0, 1)");
  }
  if (!(a.beta2 >= 0.0 && a.beta2 < 1.0)) {
    return bad_number(p, "ng_step_adamw", "beta2", a.beta2, "a number in [0, 1)");
  }
  if (!(a.eps >= 0.0) || !is_finite(a.eps)) {
    return bad_number(p, "ng_step_adamw", "eps", a.eps, "a number >= 0");
  }
  if (!(a.weight_decay >= 0.0) || !is_finite(a.weight_decay)) {
    return bad_number(p, "ng_step_adamw", "weight_decay", a.weight_decay, "a number >= 0");
  }
  p->sink.kind = NG_SINK_ADAMW;
  p->sink.adamw = a;
  p->lr = a.lr;
  const double t = (double)(p->updates + 1);
  p->sink.step_size = a.lr / (1.0 - pow(a.beta1, t));
  p->sink.root = sqrt(1.0 - pow(a.beta2, t));
  return take_step(p, "ng_step_adamw");
}
