/* observe.c: where activations and output gradients enter.
 *
 * Checks that an array fits the layer and the micro-batch, scans it for non-finite values, and
 * hands it to the layer's block.  Nothing of the size of the activations is kept.  What is not
 * finite is refused before it touches an average; the coming step then leaves gradients alone (a
 * loss scale overflowed, an input was broken), and says so.  A family that finds such values while
 * it reads (`scans`) is not scanned for: then only what is read counts. */
#include "core/core.h"
#include "model/model.h"

ng_status ng_batch_init_sized(ng_batch *b, size_t size) {
  if (b == NULL || size < sizeof(size_t)) return NG_ERR_ARG;
  ng_batch d;
  memset(&d, 0, sizeof d);
  d.struct_size = size;
  d.reduction = NG_MEAN;
  d.loss_scale = 1.0;
  memset(b, 0, size);
  memcpy(b, &d, size < sizeof d ? size : sizeof d);
  return NG_OK;
}

static ng_status may_observe(ng_precond *p, const char *call) {
  if (p->broken) return ng_fail(p->ctx, NG_ERR_COMM, "%s: the transport failed before", call);
  if (!p->ready) return ng_fail(p->ctx, NG_ERR_STATE, "%s: call ng_ready first", call);
  return NG_OK;
}

ng_status ng_begin(ng_precond *p, const ng_batch *batch) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  ng_status st = may_observe(p, "ng_begin");
  if (st != NG_OK) return st;
  if (batch == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "ng_begin: batch is NULL");
  ng_batch b;
  char message[NG_MESSAGE] = "";
  if (ng_batch_init(&b) != NG_OK) return NG_ERR_ARG;
  st = ng_take_struct(&b, sizeof b, batch, offsetof(ng_batch, reduction), "ng_batch", message,
                      sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "%s", message);
  if (b.samples < 1 || b.samples > (INT64_C(1) << 31)) {
    return ng_fail(
        p->ctx, NG_ERR_ARG,
        "ng_begin: samples is %lld, expected the number of this micro-batch, 1 to 2147483648",
        (long long)b.samples);
  }
  if (b.reduction != NG_MEAN && b.reduction != NG_SUM) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_begin: reduction is %d, expected NG_MEAN or NG_SUM",
                   (int)b.reduction);
  }
  /* An overflowed scaler hands over Inf or NaN: a step to be skipped, not a mistake. */
  if (b.loss_scale == 0.0) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_begin: loss_scale is 0, expected any other number");
  }
  p->batch = b;
  p->begun = true;
  if (!(b.loss_scale - b.loss_scale == 0.0)) {
    p->refused = true;
    return ng_fail(p->ctx, NG_SKIPPED, "ng_begin: loss_scale is not finite; this step is skipped");
  }
  return NG_OK;
}

int32_t ng_wants(const ng_precond *p, int32_t layer) {
  if (p == NULL || !p->ready || p->broken || layer < 0 || layer >= p->entries) return 0;
  const ng_block *b = p->entry[layer]->block;
  return b != NULL && b->sees != 0 && b->holds_stats && ng_stat_due(p, b);
}

/* The shape an array must have; fills positions. */
static ng_status check_shape(ng_precond *p, const ng_entry *e, const ng_view *v, bool grad,
                             int64_t *positions) {
  const ng_layer *d = &e->d;
  const int64_t B = p->batch.samples;
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
  const int64_t size = ng_dtype_size(s->v->dtype);
  const int64_t to = ng_min64(s->v->rows, (i + 1) * s->chunk);
  s->bad[i] = false;
  for (int64_t r = i * s->chunk; r < to && !s->bad[i]; r++) {
    s->bad[i] = !ng_all_finite((const char *)s->v->data + r * s->v->row_stride * size, s->v->dtype,
                               s->v->cols);
  }
}

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

static ng_status observe(ng_precond *p, int32_t layer, const ng_view *v, ng_loan loan, bool grad,
                         const char *call) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  ng_status st = may_observe(p, call);
  if (st != NG_OK) return st;
  if (!p->begun) return ng_fail(p->ctx, NG_ERR_STATE, "%s: call ng_begin first", call);
  if (layer < 0 || layer >= p->entries || p->entry[layer]->tensor) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: index %d is not a layer", call, layer);
  }
  ng_entry *e = p->entry[layer];
  if (v == NULL || v->data == NULL) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: layer '%s': the array is NULL", call, e->d.name);
  }
  if (loan != NG_COPY && loan != NG_BORROW) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: layer '%s': loan is %d, expected NG_COPY or NG_BORROW",
                   call, e->d.name, (int)loan);
  }
  if (v->dtype != NG_F32 && v->dtype != NG_BF16 && v->dtype != NG_F16) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: layer '%s': dtype is %s, expected f32, bf16 or f16",
                   call, e->d.name, ng_dtype_name(v->dtype));
  }
  if (v->mem != NG_HOST) {
    return ng_fail(p->ctx, NG_ERR_ABSENT, "%s: layer '%s': device memory; this build has no device",
                   call, e->d.name);
  }
  ng_obs o;
  memset(&o, 0, sizeof o);
  st = check_shape(p, e, v, grad, &o.positions);
  if (st != NG_OK) return st;
  if (!ng_wants(p, layer)) return NG_OK;
  if ((e->block->sees & (grad ? NG_SEES_OUTGRAD : NG_SEES_INPUT)) == 0) return NG_OK;
  o.v = *v;
  o.samples = p->batch.samples;
  o.loss_scale = p->batch.loss_scale;
  o.reduction = p->batch.reduction;
  o.grad = grad;

  ng_block *b = e->block;
  const double t0 = ng_now_ms();
  const bool finite =
      o.loss_scale - o.loss_scale == 0.0 && (b->ops->scans || view_finite(p->ctx, v));
  st = finite ? b->ops->observe(b, &o) : NG_SKIPPED;
  b->observing_ms += ng_now_ms() - t0;
  if (st == NG_SKIPPED) {
    b->refused = p->refused = true;
    return ng_fail(p->ctx, NG_SKIPPED,
                   "layer '%s': the %s is not finite; nothing was folded, and the step will leave "
                   "gradients alone",
                   e->d.name, grad ? "output gradient" : "input");
  }
  if (st == NG_OK) b->observations[grad]++;
  return st;
}

ng_status ng_observe_input(ng_precond *p, int32_t layer, const ng_view *a, ng_loan loan) {
  return observe(p, layer, a, loan, false, "ng_observe_input");
}

ng_status ng_observe_output_grad(ng_precond *p, int32_t layer, const ng_view *g, ng_loan loan) {
  return observe(p, layer, g, loan, true, "ng_observe_output_grad");
}

ng_status ng_reset_batch(ng_precond *p) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  const ng_status st = may_observe(p, "ng_reset_batch");
  if (st != NG_OK) return st;
  for (int32_t i = 0; i < p->blocks; i++) {
    p->block[i]->ops->forget(p->block[i]);
    p->block[i]->refused = false;
    p->block[i]->observing_ms = 0.0;
  }
  p->refused = false;
  p->begun = false;
  ng_queue_wait(p->ctx->queue);
  return NG_OK;
}
