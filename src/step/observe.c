/* observe.c: where activations, output gradients and, for some families, gradients enter.
 *
 * In: an array of the caller's, its arguments checked (api/observing.c).  Out: its share in the sums of a
 * block's statistics.  Nothing of the size of the activations is kept.  What is not finite is refused
 * before it touches a sum; the coming step then leaves gradients alone (a loss scale overflowed, an
 * input was broken), and says so.  A family that finds such values while it reads (`scans`) is not
 * scanned for: then only what is read counts.
 *
 * Called between ng_begin and a step, any number of times a layer (once with fold = direct); local,
 * never collective, so ranks may observe in any order and as often as they like. */
#include "step/step.h"

/* Later micro-batches of a step may have other sizes and scales: each observation takes those of
 * its own. */
ng_status ng_step_begin(ng_precond *p, const ng_batch *batch) {
  p->step->batch = *batch;
  p->step->begun = true;
  if (batch->loss_scale - batch->loss_scale == 0.0) return NG_OK;
  p->step->refused = true; /* an overflowed scaler: a step to be skipped, not a mistake */
  return ng_fail(p->ctx, NG_SKIPPED, "ng_begin: loss_scale is not finite; this step is skipped");
}

/* Some statistic of the block is made on this rank from such an array. */
static bool wants(const ng_block *b, uint32_t what) {
  for (int32_t i = 0; i < b->stats; i++) {
    if ((b->stat[i].sees & what) != 0 && b->stat[i].observes) return true;
  }
  return false;
}

/* False off the period and for layers that this rank need not see: the caller may then skip making
 * the array at all. */
int32_t ng_step_wants(const ng_precond *p, int32_t layer) {
  const ng_block *b = p->entry[layer]->block;
  return b != NULL && ng_stat_due(p, b) && wants(b, NG_SEES_INPUT | NG_SEES_OUTGRAD);
}

/* ---- checks ----------------------------------------------------------------------------------*/

/* The shape an array must have; fills positions.  A linear layer whose positions vary has them from
 * the rows: they divide evenly, or it is an error. */
static ng_status check_shape(ng_precond *p, const ng_entry *e, const ng_view *v, bool grad,
                             int64_t *positions) {
  const ng_layer *d = &e->d;
  const int64_t B = p->step->batch.samples;
  int64_t cols = grad ? d->out : d->in, rows = B;
  if (d->kind == NG_CONV2D) {
    *positions = e->positions;
    cols *= grad ? e->positions : d->image[0] * d->image[1];
  } else {
    *positions = d->positions > 0 ? d->positions : v->rows / B;
    rows = B * *positions;
  }
  if (v->cols != cols || v->rows != rows || rows < 1 || v->row_stride < v->cols) {
    return ng_fail(p->ctx, NG_ERR_SHAPE,
                   "layer '%s': the %s is [%lld, %lld] with row stride %lld, expected [%s%lld, "
                   "%lld] for %lld samples",
                   d->name, grad ? "output gradient" : "input", (long long)v->rows,
                   (long long)v->cols, (long long)v->row_stride,
                   d->kind == NG_LINEAR && d->positions == 0 ? "a multiple of " : "",
                   (long long)(d->kind == NG_LINEAR && d->positions == 0 ? B : rows),
                   (long long)cols, (long long)B);
  }
  return NG_OK;
}

typedef struct scan {
  const ng_view *v;
  int64_t chunk;
  bool bad[256];
} scan;

static void scan_piece(void *arg, int32_t i) {
  scan *s = arg;
  const int64_t to = ng_min64(s->v->rows, (i + 1) * s->chunk);
  s->bad[i] = false;
  for (int64_t r = i * s->chunk; r < to && !s->bad[i]; r++) {
    s->bad[i] = !ng_all_finite(ng_view_at(s->v, r, 0), s->v->dtype, s->v->cols);
  }
}

/* One more read of the array, at memory speed; a sum that has taken a NaN cannot be repaired. */
static bool view_finite(ng_context *ctx, const ng_view *v) {
  scan s;
  s.v = v;
  const int32_t pieces = (int32_t)ng_min64(ng_min64(v->rows, 256), ng_threads_of(ctx));
  s.chunk = (v->rows + pieces - 1) / pieces;
  ng_parallel(ctx, pieces, scan_piece, &s);
  for (int32_t i = 0; i < pieces; i++) {
    if (s.bad[i]) return false;
  }
  return true;
}

/* What is complete already: one observation under fold = direct, sums that are on their way.  An
 * error and not a refusal: the caller's program is wrong, its numbers may be fine. */
static ng_status check_open(ng_block *b, const ng_obs *o) {
  const char *what = o->what == NG_SEES_OUTGRAD ? "output gradient" : "input";
  for (int32_t i = 0; i < b->stats; i++) {
    const ng_stat *s = &b->stat[i];
    if ((s->sees & o->what) == 0) continue;
    if (s->posted) {
      return ng_fail(b->ctx, NG_ERR_STATE,
                     "layer '%s': its %s was observed after what was seen of it was sent to other "
                     "ranks",
                     b->name, what);
    }
    if (s->rule.direct && s->w > 0.0) {
      return ng_fail(b->ctx, NG_ERR_STATE,
                     "layer '%s': its %s was observed a second time in this step; fold = direct "
                     "allows one observation, fold = sum any number",
                     b->name, what);
    }
  }
  return NG_OK;
}

/* ---- into the block --------------------------------------------------------------------------*/

/* Every statistic made from it: weighed before, counted after, so that what the family refused half
 * way has no weight. */
static ng_status enter(ng_block *b, const ng_obs *o) {
  ng_status st = check_open(b, o);
  if (st != NG_OK) return st;
  for (int32_t i = 0; i < b->stats; i++) {
    if ((b->stat[i].sees & o->what) != 0) ng_stat_prepare(&b->stat[i], o->samples);
  }
  st = b->family->observe(b, o);
  if (st != NG_OK) return st;
  for (int32_t i = 0; i < b->stats; i++) {
    if ((b->stat[i].sees & o->what) != 0) ng_stat_count(&b->stat[i]);
  }
  for (int kind = 0; kind < NG_SEEN_KINDS; kind++) {
    if (o->what == ng_sees(kind)) b->observations[kind]++;
  }
  return NG_OK;
}

/* The shape is checked also where nothing is wanted: a mistake should not wait for the next due
 * step to be found. */
ng_status ng_step_observe(ng_precond *p, int32_t layer, const ng_view *v, bool grad) {
  ng_entry *e = p->entry[layer];
  ng_engine *step = p->step;
  ng_obs o = {.what = grad ? NG_SEES_OUTGRAD : NG_SEES_INPUT,
              .v = *v,
              .samples = step->batch.samples,
              .loss_scale = step->batch.loss_scale,
              .reduction = step->batch.reduction};
  ng_status st = check_shape(p, e, v, grad, &o.positions);
  if (st != NG_OK) return st;
  ng_block *b = e->block;
  if (b == NULL || !ng_stat_due(p, b) || !wants(b, o.what)) return NG_OK;
  const double t0 = ng_now_ms();
  const bool finite =
      o.loss_scale - o.loss_scale == 0.0 && (b->family->scans || view_finite(p->ctx, v));
  st = finite ? enter(b, &o) : NG_SKIPPED;
  b->observing_ms += ng_now_ms() - t0;
  /* Refused, not failed: training with a loss scaler runs into this now and then. */
  if (st != NG_SKIPPED) return st;
  step->refused = true;
  return ng_fail(p->ctx, NG_SKIPPED,
                 "layer '%s': the %s is not finite; nothing was folded, and the step will leave "
                 "gradients alone",
                 e->d.name, grad ? "output gradient" : "input");
}

/* ---- the gradients themselves: a station -----------------------------------------------------*/

static bool looks(const ng_precond *p, const ng_block *b) {
  return (b->sees & NG_SEES_FLATGRAD) != 0 && ng_stat_due(p, b) && wants(b, NG_SEES_FLATGRAD);
}

bool ng_look_due(const ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    if (looks(p, p->block[i])) return true;
  }
  return false;
}

/* As they are bound, in any dtype: asked of families that do not scan. */
static bool grads_finite(const ng_block *b) {
  for (int32_t k = 0; k < b->segments; k++) {
    const ng_slot *s = b->segment[k].slot;
    for (int64_t r = 0; r < s->rows; r++) {
      if (!ng_all_finite(ng_view_at(&s->grad, r, 0), s->grad.dtype, s->cols)) return false;
    }
  }
  return true;
}

/* Gradients are bound: the step has seen to that.  No samples weigh them: a statistic of gradients
 * sees one of them a step.  Nobody returns from here, `check` is next: what was found waits in
 * `refused` and `trouble`. */
ng_status ng_look(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    const ng_obs o = {.what = NG_SEES_FLATGRAD, .samples = 1, .positions = 1, .loss_scale = 1.0};
    if (!looks(p, b)) continue;
    const double t0 = ng_now_ms();
    const ng_status st = b->family->scans || grads_finite(b) ? enter(b, &o) : NG_SKIPPED;
    b->observing_ms += ng_now_ms() - t0;
    if (st == NG_SKIPPED) p->step->refused = true;
    if (st < NG_OK) p->step->trouble = ng_worse(p->step->trouble, st);
  }
  return NG_OK;
}

/* The step could not begin: gradients will be looked at again by the next one.  So what they were
 * found to be is forgotten, and what `check` heard of other ranks: those will say it again. */
void ng_look_undo(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    bool looked = false;
    for (int32_t k = 0; k < b->stats; k++) {
      if (b->stat[k].sees != NG_SEES_FLATGRAD) continue;
      looked = looked || b->stat[k].w > 0.0;
      ng_stat_forget(p->ctx->queue, &b->stat[k]);
    }
    for (int kind = 0; kind < NG_SEEN_KINDS && looked; kind++) {
      if (ng_sees(kind) == NG_SEES_FLATGRAD) b->observations[kind]--;
    }
  }
  p->step->refused = p->step->refused_before;
}

/* ---- forget ----------------------------------------------------------------------------------*/

/* Everything observed since the last step, and the verdicts on it; averages stay as they are, which
 * with fold = direct is with what was observed. */
void ng_step_reset(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->stats; k++) {
      ng_stat_forget(p->ctx->queue, &b->stat[k]);
    }
    b->observing_ms = 0.0;
  }
  p->step->refused = false;
  p->step->begun = false;
}
