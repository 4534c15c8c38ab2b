/* observing.c: the public functions of a micro-batch: ng_begin, ng_wants, ng_observe_*, ng_reset_batch.  They check
 * arguments and call step/observe.c. */
#include "step/step.h"

static ng_status begin_batch(ng_precond *p, const ng_batch *batch, const char *call) {
  ng_status st = ng_check_callable(p, call);
  if (st != NG_OK) return st;
  if (batch == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "%s: batch is NULL", call);
  ng_batch b;
  char message[NG_MESSAGE] = "";
  ng_batch_init(&b, sizeof b);
  st = ng_struct_read(&b, sizeof b, batch, offsetof(ng_batch, reduction), "ng_batch", message,
                      sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "%s", message);
  if (b.samples < 0 || b.samples > (INT64_C(1) << 31)) {
    return ng_fail(
        p->ctx, NG_ERR_ARG,
        "%s: samples is %lld, expected the number of this micro-batch on this rank, 0 to "
        "2147483648",
        call, (long long)b.samples);
  }
  if (b.samples == 0 && p->ctx->ranks == 1) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: samples is 0, expected at least 1 on a single rank",
                   call);
  }
  if (b.reduction != NG_MEAN && b.reduction != NG_SUM) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: reduction is %d, expected NG_MEAN or NG_SUM", call,
                   (int)b.reduction);
  }
  if (b.last != 0 && b.last != 1) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: last is %d, expected 0 or 1", call, b.last);
  }
  if (b.whole == 0 ? b.first != 0
                   : b.first < 0 || b.whole > (INT64_C(1) << 31) || b.samples > b.whole ||
                         b.first > b.whole - b.samples) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "%s: first is %lld and whole is %lld, expected 0 and 0, or first + %lld samples "
                   "<= whole <= 2147483648",
                   call, (long long)b.first, (long long)b.whole, (long long)b.samples);
  }
  /* Inf and NaN are no errors: the step is then skipped.  A rank without samples does not use the loss scale. */
  if (b.loss_scale == 0.0 && b.samples > 0) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: loss_scale is 0, expected any other number", call);
  }
  return ng_step_begin(p, &b);
}

ng_status ng_begin(ng_precond *p, const ng_batch *batch) {
  return begin_batch(p, batch, "ng_begin");
}

ng_status ng_begin_samples(ng_precond *p, int64_t samples, double loss_scale) {
  ng_batch b;
  ng_batch_init(&b, sizeof b);
  b.samples = samples;
  b.loss_scale = loss_scale;
  return begin_batch(p, &b, "ng_begin_samples");
}

/* Return 0 for invalid arguments, too: hooks, which call this function, cannot handle errors. */
int32_t ng_wants(const ng_precond *p, int32_t layer) {
  if (p == NULL || !p->is_ready || p->is_broken || layer < 0 || layer >= p->entries) return 0;
  return !ng_is_creating_process(p->ctx) ? 0 : ng_step_wants(p, layer);
}

/* Check the fields of an observed array. */
static ng_status check_array(ng_precond *p, const ng_layer *d, const ng_array *v, ng_loan loan,
                             bool grad, const char *call) {
  if (v == NULL || v->data == NULL) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: layer '%s': the array is NULL", call, d->name);
  }
  if (loan != NG_COPY && loan != NG_BORROW) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: layer '%s': loan is %d, expected NG_COPY or NG_BORROW",
                   call, d->name, (int)loan);
  }
  const bool tokens = d->kind == NG_EMBEDDING && !grad;
  if (tokens && v->dtype != d->token_dtype) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: layer '%s': dtype is %s, expected %s, its token_dtype",
                   call, d->name, ng_dtype_name(v->dtype), ng_dtype_name(d->token_dtype));
  }
  if (!tokens && !ng_dtype_is_real(v->dtype)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "%s: layer '%s': dtype is %s, expected f32, f64, bf16 or f16", call, d->name,
                   ng_dtype_name(v->dtype));
  }
  return ng_check_memory(p->ctx, v, call, d->name);
}

/* Return whether the input of the layer is read again with its output gradient. */
static bool reads_input_again(const ng_entry *e) {
  bool again = e->d.kind == NG_NORM;
  for (int32_t i = 0; e->block != NULL && i < e->block->stats; i++) {
    again = again || (e->block->stat[i].also_observed & NG_OBSERVED_INPUT) != 0;
  }
  return again;
}

static ng_status observe_array(ng_precond *p, int32_t layer, const ng_array *v, ng_loan loan,
                               bool grad, const char *call) {
  ng_status st = ng_check_callable(p, call);
  if (st != NG_OK) return st;
  if (layer < 0 || layer >= p->entries || p->entry[layer]->is_tensor) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: index %d is not a layer", call, layer);
  }
  const ng_layer *d = &p->entry[layer]->d;
  ng_strided s;
  if (!p->step->has_begun) st = ng_fail(p->ctx, NG_ERR_STATE, "%s: call ng_begin first", call);
  if (st == NG_OK && p->step->batch.samples == 0) {
    return ng_step_observe(p, layer, NULL, grad, false,
                           NG_OK); /* a rank without samples has no array */
  }
  if (st == NG_OK) st = check_array(p, d, v, loan, grad, call);
  const char *wrong = st == NG_OK ? ng_array_read(v, &s) : NULL;
  if (wrong != NULL) {
    st = ng_fail(p->ctx, NG_ERR_SHAPE, "%s: layer '%s': %s", call, d->name, wrong);
  }
  if (st != NG_OK) return ng_step_observe(p, layer, NULL, grad, false, st);
  if (!grad && loan != NG_BORROW && reads_input_again(p->entry[layer])) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "%s: layer '%s': the input of %s is read again with its output gradient; "
                   "expected NG_BORROW",
                   call, d->name, d->kind == NG_NORM ? "a norm layer" : "an EKFAC layer");
  }
  return ng_step_observe(p, layer, &s, grad, v->mem == NG_DEVICE, NG_OK);
}

ng_status ng_observe_input(ng_precond *p, int32_t layer, const ng_array *a, ng_loan loan) {
  return observe_array(p, layer, a, loan, false, "ng_observe_input");
}

ng_status ng_observe_output_grad(ng_precond *p, int32_t layer, const ng_array *g, ng_loan loan) {
  return observe_array(p, layer, g, loan, true, "ng_observe_output_grad");
}

/* Complete the messages that this rank has posted, because other ranks wait for them; then discard all sums. */
ng_status ng_reset_batch(ng_precond *p) {
  ng_status st = ng_check_callable(p, "ng_reset_batch");
  if (st == NG_OK) st = ng_exchange_end_last_batch(p);
  if (st == NG_OK) st = ng_exchange_wait(p, NG_MAIL_STATISTICS);
  if (st == NG_OK) ng_step_reset(p);
  return st;
}
