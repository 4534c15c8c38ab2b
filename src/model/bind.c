/* bind.c: where gradients and weights live.
 *
 * In: a view of the caller's, for one parameter.  Out: a slot that points at it, from now until it
 * is bound anew; and a way to read some of a gradient as f32, whatever its dtype.
 *
 * Frameworks free gradients between steps and allocate them elsewhere, so binding is cheap and
 * allowed at any time; that what a step needs is bound is checked when it begins
 * (step/stations.c). */
#include "model/model.h"

ng_status ng_slot_bind(ng_precond *p, int32_t index, ng_param which, const ng_view *view,
                       const char *call, bool grad) {
  if (view == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "%s: the view is NULL", call);
  if (index < 0 || index >= p->entries) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: index is %d, there are %d layers and tensors", call,
                   index, p->entries);
  }
  ng_entry *e = p->entry[index];
  if ((which != NG_WEIGHT && which != NG_BIAS) || (int32_t)which >= e->slots) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: '%s' has no %s", call, e->d.name,
                   which == NG_BIAS ? "bias" : "such parameter");
  }
  ng_slot *slot = &e->slot[which];
  ng_view *to = grad ? &slot->grad : &slot->weight;
  /* Unbinding asks for no shape: the array may be gone. */
  if (view->data == NULL) {
    to->data = NULL;
    return NG_OK;
  }
  if (view->dtype != NG_F32 && view->dtype != NG_BF16 && view->dtype != NG_F16) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: '%s' has dtype %s, expected f32, bf16 or f16", call,
                   e->d.name, ng_dtype_name(view->dtype));
  }
  if (view->mem != NG_HOST) {
    return ng_fail(p->ctx, NG_ERR_ABSENT, "%s: '%s' is in device memory; this build has no device",
                   call, e->d.name);
  }
  /* A row stride above cols is a view into something wider; within a row elements are adjacent. */
  if (view->rows != slot->rows || view->cols != slot->cols || view->row_stride < view->cols) {
    return ng_fail(p->ctx, NG_ERR_SHAPE,
                   "%s: '%s' is [%lld, %lld] with row stride %lld, expected [%lld, %lld]", call,
                   e->d.name, (long long)view->rows, (long long)view->cols,
                   (long long)view->row_stride, (long long)slot->rows, (long long)slot->cols);
  }
  *to = *view;
  return NG_OK;
}

void ng_slot_read(const ng_slot *slot, int64_t row, int64_t col, int64_t n, float *out) {
  ng_to_f32(out, ng_view_at(&slot->grad, row, col), slot->grad.dtype, n);
}
