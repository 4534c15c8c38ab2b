/* observe.c: add activations, output gradients and, for some families, bound gradients to the sums of statistics.
 *
 * In: the caller's array; api/observing.c has checked the arguments. Out: sums of the block's statistics; nothing of the
 * size of an activation is stored. A non-finite array is refused before any sum changes, and the step is skipped. A family
 * with `detects_nonfinite` detects non-finite values itself, in the elements that it reads. An array of a device is added
 * without a scan and a wait: its non-finite elements make sums non-finite, which the station `statistics` or the fused step
 * refuses.
 *
 * Observing a layer needs no communication, except if it is sharded, so ranks may observe layers in any order and any
 * number of times. In the micro-batch with ng_batch.last each layer is observed once, because its sums are then complete
 * and are posted (sums.c). */
#include "step/step.h"

/* Begin a micro-batch. Its observations use its number of samples and its loss scale. */
ng_status ng_step_begin(ng_precond *p, const ng_batch *batch) {
  if (p->step->batch.last != 0) {
    return ng_fail(
        p->ctx, NG_ERR_STATE,
        "ng_begin: the previous micro-batch had ng_batch.last; call ng_step, or ng_reset_batch");
  }
  p->step->batch = *batch;
  p->step->has_begun = true;
  p->step->batches++;
  if (batch->last != 0) ng_exchange_begin_last_batch(p);
  if (batch->loss_scale - batch->loss_scale == 0.0) return NG_OK;
  p->step->has_refused = true; /* a loss scaler overflows now and then, so this is not an error */
  return ng_fail(p->ctx, NG_SKIPPED, "ng_begin: loss_scale is not finite; this step is skipped");
}

/* ---- checks ----------------------------------------------------------------------------------*/

static ng_status refuse_shape(ng_precond *p, const ng_layer *d, const ng_strided *s, bool grad,
                              const char *expected) {
  return ng_fail(p->ctx, NG_ERR_SHAPE, "layer '%s': the %s is %s, expected %s for %lld samples",
                 d->name, grad ? "output gradient" : "input", ng_strided_shape(s).text, expected,
                 (long long)p->step->batch.samples);
}

/* Set the position axes of v from the sizes and strides of n axes. Axes that have one common stride are joined. The last
 * axis becomes the run (ng_view.run_length). */
static void set_positions(ng_view *v, int32_t n, const int64_t *extent, const int64_t *step) {
  v->positions = 1;
  for (int32_t i = 0; i < n; i++) {
    v->extent[i] = extent[i];
    v->stride[i] = step[i];
    v->positions *= extent[i];
  }
  n = ng_axes_join(n, v->extent, v->stride);
  v->axes = n > 1 ? n - 1 : 0;
  v->run_length = n > 0 ? v->extent[n - 1] : 1;
  v->position_stride = n > 0 ? v->stride[n - 1] : 1;
}

static int64_t count_columns(const ng_layer *d, bool grad) {
  return grad ? d->out : d->kind == NG_EMBEDDING ? 1 : d->in;
}

/* Return NG_ERR_SHAPE with the expected shape. The text is formatted only after an error, to keep observations fast. */
static ng_status refuse_rows(ng_precond *p, const ng_layer *d, const ng_strided *s, bool grad) {
  char expected[96];
  (void)snprintf(expected, sizeof expected,
                 d->positions > 0 ? "[%s%lld] with %lld positions" : "[%s%lld]",
                 d->order == NG_SAMPLES_FIRST ? "samples, ..., " : "positions, samples, ..., ",
                 (long long)count_columns(d, grad), (long long)d->positions);
  return refuse_shape(p, d, s, grad, expected);
}

/* View an array [..., columns]. If the array has one leading axis, its size is samples times positions. If it has several,
 * one is the axis of samples (the first, or the second with NG_POSITIONS_FIRST), and the others are axes of positions. */
static ng_status view_rows(ng_precond *p, const ng_entry *e, const ng_strided *s, bool grad,
                           ng_obs *o) {
  const ng_layer *d = &e->d;
  const int64_t B = p->step->batch.samples, cols = count_columns(d, grad);
  const int32_t leading = s->ndim - 1;
  const bool first = d->order == NG_SAMPLES_FIRST;
  if (s->ndim < 1 || s->shape[leading] != cols) return refuse_rows(p, d, s, grad);
  ng_view *v = &o->view;
  v->columns = cols;
  v->column_stride = s->stride[leading];
  v->samples = B;
  if (leading < 2) {
    const int64_t rows = leading == 0 ? 1 : s->shape[0], by = leading == 0 ? cols : s->stride[0];
    if (rows % B != 0) return refuse_rows(p, d, s, grad);
    const int64_t S = rows / B, step = first ? by : B * by;
    set_positions(v, 1, &S, &step);
    v->sample_stride = first ? S * by : by;
  } else {
    const int32_t at = first ? 0 : 1;
    int64_t extent[NG_DIMS], step[NG_DIMS];
    int32_t n = 0;
    if (s->shape[at] != B) return refuse_rows(p, d, s, grad);
    for (int32_t i = 0; i < leading; i++) {
      if (i == at) continue;
      extent[n] = s->shape[i];
      step[n++] = s->stride[i];
    }
    set_positions(v, n, extent, step);
    v->sample_stride = s->stride[at];
  }
  o->positions = v->positions;
  if (d->positions > 0 && o->positions != d->positions) return refuse_rows(p, d, s, grad);
  return NG_OK;
}

/* Return whether `out` (height and width of an output gradient) is the output size of an image that was observed in this
 * micro-batch. If no image was observed, or images of more than NG_IMAGE_SIZES sizes, return true for any size. */
static bool is_known_size(const ng_precond *p, const ng_entry *e, const int64_t out[2]) {
  if (e->sizes_batch != p->step->batches || e->sizes_count == 0 ||
      e->sizes_count > NG_IMAGE_SIZES) {
    return true;
  }
  for (int32_t i = 0; i < e->sizes_count; i++) {
    if (e->sizes[i][0] == out[0] && e->sizes[i][1] == out[1]) return true;
  }
  return false;
}

static void store_output_size(const ng_precond *p, ng_entry *e, const int64_t out[2]) {
  if (e->sizes_batch != p->step->batches) e->sizes_count = 0;
  e->sizes_batch = p->step->batches;
  if (e->sizes_count > 0 && is_known_size(p, e, out)) return;
  if (e->sizes_count < NG_IMAGE_SIZES) memcpy(e->sizes[e->sizes_count], out, sizeof e->sizes[0]);
  e->sizes_count += e->sizes_count <= NG_IMAGE_SIZES;
}

/* Set the sizes of an observed image and of its output. Check that an output gradient has the output size of its input. */
static ng_status set_image_sizes(ng_precond *p, ng_entry *e, const ng_strided *s, bool grad,
                                 ng_obs *o) {
  const ng_layer *d = &e->d;
  char expected[128];
  for (int i = 0; i < 2; i++) {
    o->in_size[i] = o->out_size[i] = s->shape[2 + i];
    if (grad) continue;
    if (o->in_size[i] > INT32_MAX || !ng_conv_output(d, i, o->in_size[i], &o->out_size[i])) {
      return refuse_shape(p, d, s, grad,
                          "an image that is at least as large, with its padding, as the kernel");
    }
  }
  if (grad && !is_known_size(p, e, o->out_size)) {
    (void)snprintf(expected, sizeof expected,
                   "[%lld, %lld, %lld, %lld], the output size of its input", (long long)s->shape[0],
                   (long long)s->shape[1], (long long)e->sizes[0][0], (long long)e->sizes[0][1]);
    return refuse_shape(p, d, s, grad, expected);
  }
  if (!grad) store_output_size(p, e, o->out_size);
  o->positions = o->out_size[0] * o->out_size[1];
  return NG_OK;
}

/* View an array [samples, channels, positions...] of a convolution, or of a batch or group norm. */
static ng_status view_channels(ng_precond *p, ng_entry *e, const ng_strided *s, bool grad,
                               ng_obs *o) {
  const bool image = e->d.kind == NG_CONV2D;
  const int64_t B = p->step->batch.samples, C = grad ? e->d.out : e->d.in;
  ng_view *v = &o->view;
  if (s->ndim < 2 || (image && s->ndim != 4) || s->shape[0] != B || s->shape[1] != C) {
    char expected[96];
    (void)snprintf(expected, sizeof expected, "[%lld, %lld, %s]", (long long)B, (long long)C,
                   image ? "height, width" : "...");
    return refuse_shape(p, &e->d, s, grad, expected);
  }
  v->samples = B;
  v->columns = C;
  v->sample_stride = s->stride[0];
  v->column_stride = s->stride[1];
  set_positions(v, s->ndim - 2, s->shape + 2, s->stride + 2);
  o->positions = v->positions;
  return image ? set_image_sizes(p, e, s, grad, o) : NG_OK;
}

/* View token numbers [samples, ...] as rows with one column. */
static ng_status view_tokens(ng_precond *p, const ng_entry *e, const ng_strided *s, ng_obs *o) {
  ng_strided rows = *s;
  if (s->ndim == NG_DIMS || s->ndim < 1) {
    return refuse_shape(p, &e->d, s, false, "token numbers [samples, ...]");
  }
  rows.shape[rows.ndim] = 1;
  rows.stride[rows.ndim++] = 1;
  return view_rows(p, e, &rows, false, o);
}

static ng_status view_array(ng_precond *p, ng_entry *e, const ng_strided *s, bool grad, ng_obs *o) {
  if (e->d.kind == NG_EMBEDDING && !grad) return view_tokens(p, e, s, o);
  const bool channels = e->d.kind == NG_NORM && e->d.norm_kind != NG_LAYER_NORM;
  if (channels || e->d.kind == NG_CONV2D) return view_channels(p, e, s, grad, o);
  return view_rows(p, e, s, grad, o);
}

/* Return an error if a statistic that uses this kind of array is complete or posted, because its sums may already be
 * sent. */
static ng_status check_not_posted(ng_block *b, const ng_obs *o) {
  const char *what = o->kind == NG_OBSERVED_OUTGRAD ? "output gradient" : "input";
  for (int32_t i = 0; i < b->stats; i++) {
    const ng_stat *s = &b->stat[i];
    if ((s->observed & o->kind) == 0 || (!s->last_observed && !s->posted)) continue;
    return ng_fail(b->ctx, NG_ERR_STATE, "layer '%s': its %s was observed %s", b->name, what,
                   s->last_observed
                       ? "a second time in the micro-batch that ng_batch.last calls the last one"
                       : "after its sums were sent to other ranks");
  }
  return NG_OK;
}

/* ---- adding to sums --------------------------------------------------------------------------*/

/* Let the family read the array and add it to the due statistics. The samples are counted after the family's call, so that a refused
 * array has no weight. */
static ng_status add_observation(ng_block *b, const ng_obs *o) {
  ng_status st = NG_OK;
  bool none = false, due = false;
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    s->is_due = (s->observed & o->kind) != 0 && ng_statistic_due(b, s);
    s->is_late = o->is_late;
    due = due || s->is_due;
    if (s->is_due) ng_stat_prepare(s, o->samples, o->first_sample, o->batch_samples);
    none = none || (s->is_due && s->samples == 0);
  }
  /* With stat_batch and ng_batch.whole, all samples that the statistic uses may be on other ranks. */
  if (!none) st = b->family->observe(b, o);
  if (st != NG_OK) return st;
  for (int32_t i = 0; i < b->stats; i++) {
    ng_stat *s = &b->stat[i];
    if (s->is_due && none) ng_stat_skip_observation(b->ctx->queue, s);
    if (s->is_due && !none) ng_stat_count_samples(s);
  }
  /* an array that only the direction uses is not counted */
  b->observation_count[ng_observed_kind(o->kind)] += due || b->family->wants_arrays == NULL;
  return NG_OK;
}

/* Mark the due statistics that use `what` as complete, except in a block of several layers, which observes many arrays. */
static void mark_observed(ng_block *b, uint32_t what) {
  for (int32_t i = 0; i < b->stats && b->entry != NULL; i++) {
    ng_stat *s = &b->stat[i];
    if ((s->observed & what) != 0 && ng_statistic_due(b, s)) s->last_observed = true;
  }
}

static bool family_detects_nonfinite(const ng_block *b) {
  return b->family->detects_nonfinite && !b->solves;
}

/* Return the largest magnitude in an array; Inf if an element is not finite. */
static double largest_magnitude(ng_precond *p, const ng_strided *s) {
  ng_queue *q = p->ctx->queue;
  ng_kernels(q)->find_largest(q, s, 1, &p->step->largest);
  ng_queue_wait(q);
  return *ng_read_numbers(q, &p->step->largest);
}

/* Gather the array of a sharded layer; on the primary, set *whole and the view of *o. Every rank of the model group calls
 * this function, also after an error `st`, and all return the same status. */
static ng_status gather_whole(ng_precond *p, ng_entry *e, const ng_strided *s, bool grad,
                              ng_status st, ng_obs *o, ng_strided *whole) {
  if (st == NG_OK) st = check_not_posted(e->block, o);
  if (st == NG_OK) {
    const double most = (o->samples == 0 ? 0.0 : largest_magnitude(p, s)) + o->loss_scale;
    if (!(most - most == 0.0)) st = NG_SKIPPED;
  }
  st = ng_shard_gather_observation(p, e, grad, s, st, whole);
  if (st != NG_OK || !e->shard->is_primary || o->samples == 0) return st;
  st = view_rows(p, &e->shard->whole, whole, grad, o);
  o->view.data = whole->data;
  return st;
}

/* Add the array to the block's sums. Return NG_SKIPPED, without adding, if an element is not finite. */
static ng_status add_array(ng_precond *p, ng_entry *e, const ng_strided *s, bool grad, ng_obs *o) {
  ng_block *b = e->block;
  ng_status st = check_not_posted(b, o);
  if (st != NG_OK) return st;
  if (o->samples == 0) return add_observation(b, o);
  /* The input of an embedding is token numbers, which stand for one-hot vectors. */
  const bool tokens = e->d.kind == NG_EMBEDDING && !grad;
  o->is_late = o->is_late && !tokens;
  const bool scans = !tokens && !o->is_late && !family_detects_nonfinite(b);
  const double largest = scans ? largest_magnitude(p, s) : 0.0;
  if (!(o->loss_scale - o->loss_scale == 0.0 && largest - largest == 0.0)) return NG_SKIPPED;
  /* The image may be larger than all earlier images. Without memory no sum changes. */
  if (b->family->observation_scratch != NULL)
    st = ng_scratch_grow(p, b->family->observation_scratch(b, o), b->name);
  if (st == NG_OK) st = add_observation(b, o);
  if (!o->is_late)
    ng_queue_wait(p->ctx->queue); /* the caller may change the array after this call */
  return st;
}

/* The shape is checked even if no statistic is due, so that a wrong shape is reported in the first step. s NULL: this rank
 * has no samples, or its arguments have the error `wrong`. */
static ng_status observe_array(ng_precond *p, int32_t layer, const ng_strided *s, bool grad,
                               bool is_late, ng_status wrong) {
  ng_entry *e = p->entry[layer];
  ng_engine *step = p->step;
  const bool none = step->batch.samples == 0 && s == NULL && wrong == NG_OK;
  const ng_strided nothing = {.dtype = NG_F32, .ndim = 2, .shape = {0, count_columns(&e->d, grad)}};
  /* set each field separately, because clearing the whole struct with its lists would take longer */
  ng_obs o;
  o.kind = grad ? NG_OBSERVED_OUTGRAD : NG_OBSERVED_INPUT;
  o.samples = step->batch.samples;
  o.loss_scale = step->batch.loss_scale;
  o.reduction = step->batch.reduction;
  o.view.data = s == NULL ? NULL : s->data;
  o.view.dtype = s == NULL ? NG_F32 : s->dtype;
  o.batch = step->batches;
  o.is_late = is_late && e->shard == NULL;
  ng_status st = s == NULL ? wrong : view_array(p, e, s, grad, &o);
  if (none) s = &nothing;
  ng_block *b = e->block;
  o.follows_refusal = b != NULL && b->refused_batch == o.batch;
  const bool local = b != NULL && b->base.statistics == NG_STATISTICS_LOCAL;
  o.batch_samples = local ? 0 : step->batch.whole;
  o.first_sample = local ? 0 : step->batch.first;
  const bool wanted = b != NULL && ng_array_wanted(b, o.kind);
  const bool part = wanted && e->shard != NULL;
  const double t0 = ng_now_ms();
  ng_strided whole;
  if (wanted) ng_queue_name_blocks(p->ctx->queue, b->name, b->name);
  if (part) st = gather_whole(p, e, s, grad, st, &o, &whole);
  if (st < NG_OK || !wanted) return st;
  if (st == NG_OK && (!part || e->shard->is_primary))
    st = add_array(p, e, part ? &whole : s, grad, &o);
  b->step_observe_ms += ng_now_ms() - t0;
  if (step->batch.last != 0 && st >= NG_OK) mark_observed(b, o.kind);
  /* A non-finite array is no error: loss scalers cause such arrays now and then. */
  if (st != NG_SKIPPED) return st;
  step->has_refused = true;
  b->refused_batch = o.batch;
  const bool pair =
      e->d.kind == NG_NORM && family_detects_nonfinite(b); /* scans input and gradient together */
  return ng_fail(
      p->ctx, NG_SKIPPED,
      "layer '%s': the %s is not finite; it is not added to the statistics, and the step will be "
      "skipped",
      e->d.name,
      pair   ? "input or its output gradient"
      : grad ? "output gradient"
             : "input");
}

/* Complete sums are posted even after a refused array: the step is skipped, but other ranks wait for the messages. */
ng_status ng_step_observe(ng_precond *p, int32_t layer, const ng_strided *s, bool grad,
                          bool is_late, ng_status wrong) {
  const ng_status st = observe_array(p, layer, s, grad, is_late, wrong);
  if (st < NG_OK || p->ctx->ranks == 1) return st;
  const ng_status sent = ng_exchange_post_ahead(p);
  return sent < NG_OK ? sent : st;
}

/* ---- bound gradients: a station --------------------------------------------------------------*/

/* a family scans only this rank's slice of a block */
static bool family_scans_gradients(const ng_block *b) {
  return family_detects_nonfinite(b) && b->slice == NULL && ng_block_observes_gradients(b);
}

/* Enqueue the check of all gradients, except gradients that a family scans. The gradient of a parameter without statistics is
 * checked, too, because the station `measure`, which refuses it otherwise, comes after the averages. Return their number; *before:
 * whether some block observes one of these gradients. */
static int64_t check_gradients(ng_precond *p, bool *before) {
  const ng_emission *l = &p->step->emission;
  int64_t n = 0;
  *before = false;
  for (int32_t i = 0; i < p->slots; i++) {
    const ng_slot *s = p->slot[i];
    if (s->is_excluded || (s->block == NULL && !ng_is_updated_without_curvature(p, s))) continue;
    if (s->block != NULL && family_scans_gradients(s->block)) continue;
    *before = *before || (s->block != NULL && ng_block_observes_gradients(s->block));
    l->range[n++] = (ng_region){&s->grad, 0, s->rows, 0, s->cols};
  }
  if (n > 0) ng_kernels(p->ctx->queue)->check_finite(p->ctx->queue, l->range, n, l->finite);
  return n;
}

/* After a wait: return whether the n gradients are finite. */
static bool gradients_finite(const ng_precond *p, int64_t n) {
  bool finite = true;
  for (int64_t i = 0; i < n; i++) {
    finite = finite && ng_read_info(p->ctx->queue, &p->step->emission.finite[i]) != 0;
  }
  return finite;
}

/* Discard the sums of bound gradients. */
static void discard_gradients(ng_block *b) {
  bool observed = false;
  b->is_selecting = false;
  for (int32_t k = 0; k < b->stats; k++) {
    if (b->stat[k].observed != NG_OBSERVED_FLATGRAD) continue;
    observed = observed || b->stat[k].w > 0.0;
    ng_stat_discard(b->ctx->queue, &b->stat[k]);
  }
  b->observation_count[ng_observed_kind(NG_OBSERVED_FLATGRAD)] -= observed;
}

/* Observe each bound gradient as one sample, then wait; take.c has checked the bindings. A gradient that is not finite keeps
 * all gradients of the step out of the averages. After a failure, continue: ng_engine.has_refused and ng_engine.status contain
 * the result for `check`. */
ng_status ng_gradients_observe(ng_precond *p) {
  bool before;
  const int64_t checked = check_gradients(p, &before);
  if (before) ng_queue_wait(p->ctx->queue);
  if (before && !gradients_finite(p, checked)) {
    p->step->has_refused = true;
    return NG_OK;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    const ng_obs o = {.kind = NG_OBSERVED_FLATGRAD,
                      .samples = 1,
                      .positions = 1,
                      .loss_scale = 1.0,
                      .lr = p->step->lr};
    if (!ng_block_observes_gradients(b)) continue;
    const double t0 = ng_now_ms();
    ng_queue_name_blocks(p->ctx->queue, b->name, b->name);
    const ng_status st = add_observation(b, &o);
    b->step_observe_ms += ng_now_ms() - t0;
    if (st == NG_SKIPPED) p->step->has_refused = true;
    if (st < NG_OK) p->step->status = ng_worse_status(p->step->status, st);
  }
  ng_queue_wait(p->ctx->queue);
  const bool finite = gradients_finite(p, checked);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!ng_block_observes_gradients(b)) continue;
    const bool family_accepts =
        b->family->check_gradients_finite == NULL || b->family->check_gradients_finite(b) == NG_OK;
    if (finite && family_accepts) continue;
    p->step->has_refused = true;
    discard_gradients(b);
  }
  return NG_OK;
}

/* After an error in a step, discard the sums of gradients, because the next step observes the gradients again. Restore
 * this rank's own `has_refused`, which `check` has overwritten, because every rank contributes its own value again. */
void ng_gradients_discard(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    p->block[i]->is_excluded = false;
    discard_gradients(p->block[i]);
  }
  ng_queue_wait(p->ctx->queue);
  p->step->has_refused = p->step->refused_before;
}

/* ---- forget ----------------------------------------------------------------------------------*/

/* Discard all observations since the last step; the averages do not change. The next step decides again which blocks are
 * excluded. */
void ng_step_reset(ng_precond *p) {
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->stats; k++) {
      ng_stat_discard(b->ctx->queue, &b->stat[k]);
    }
    b->step_observe_ms = 0.0;
    b->is_selecting = b->is_excluded = false;
  }
  if (!p->step->fused.is_running) ng_queue_wait(p->ctx->queue);
  p->step->has_refused = false;
  p->step->has_begun = false;
  p->step->batch.last = 0;
  ng_exchange_reset(p);
}
