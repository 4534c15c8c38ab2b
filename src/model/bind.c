/* bind.c: bind arrays of the caller to parameters, and set the groups of fused updates.
 *
 * Frameworks free and reallocate gradients between steps, so binding is cheap and allowed at any time between steps.
 * The step checks that every parameter is bound (step/take.c).  At its end a binding with NG_ONE_STEP loses its
 * address, so that the library never writes freed memory. */
#include "model/model.h"

/* ---- a list ----------------------------------------------------------------------------------*/

/* Drop axes of extent 1. */
static void drop_unit_axes(ng_strided *s) {
  int32_t n = 0;
  for (int32_t i = 0; i < s->ndim; i++) {
    if (s->shape[i] == 1) continue;
    s->shape[n] = s->shape[i];
    s->stride[n++] = s->stride[i];
  }
  s->ndim = n;
}

/* Return whether an array without axes of extent 1 has the shape `expected`, apart from such axes. */
static bool has_shape(const ng_strided *s, const int64_t expected[4]) {
  int32_t n = 0;
  for (int32_t i = 0; i < 4; i++) {
    if (expected[i] == 1) continue;
    if (n == s->ndim || s->shape[n++] != expected[i]) return false;
  }
  return n == s->ndim;
}

/* Return whether an array without axes of extent 1 has an accepted shape: [rows, cols]; of a convolution also [out,
 * in/groups, kernel, kernel]; of a tensor any shape. */
static bool shape_fits(const ng_slot *slot, const ng_strided *s) {
  const ng_layer *d = &slot->entry->d;
  if (slot->entry->is_tensor) {
    int64_t count = 1;
    for (int32_t i = 0; i < s->ndim; i++) {
      count *= s->shape[i];
    }
    return count == slot->cols;
  }
  return has_shape(s, (int64_t[]){slot->rows, slot->cols, 1, 1}) ||
         (d->kind == NG_CONV2D && slot->param == NG_WEIGHT &&
          has_shape(s, (int64_t[]){slot->rows, d->in / d->groups, d->kernel[0], d->kernel[1]}));
}

/* A device that cannot access the memory of an array would stop all work of the process. */
ng_status ng_check_memory(ng_context *ctx, const ng_array *a, const char *call, const char *name) {
  const ng_backend *on = ctx->queue->backend;
  if (a->mem != NG_HOST && a->mem != NG_DEVICE) {
    return ng_fail(ctx, NG_ERR_ARG, "%s: '%s': mem is %d, expected NG_HOST or NG_DEVICE", call,
                   name, (int)a->mem);
  }
  if (a->mem == NG_DEVICE && on->can_access == NULL) {
    return ng_fail(ctx, NG_ERR_ABSENT,
                   "%s: '%s' is in device memory, and linalg = %s has no device", call, name,
                   on->name);
  }
  if (a->mem == NG_DEVICE && ctx->queue->stream == NULL) {
    /* the device may still write the array on another stream */
    return ng_fail(
        ctx, NG_ERR_STATE,
        "%s: '%s' is in device memory, and ng_context_config.queue is NULL; expected the "
        "stream that writes the array",
        call, name);
  }
  if (on->can_access != NULL && !on->can_access(ctx->queue, a->data)) {
    return ng_fail(ctx, NG_ERR_ABSENT,
                   "%s: '%s' is in memory that the device of linalg = %s cannot access", call, name,
                   on->name);
  }
  return NG_OK;
}

/* Check an array, and describe its layout as rows and columns in *out.  An array with data NULL unbinds the slot. */
static ng_status describe_array(ng_precond *p, const ng_slot *slot, const ng_array *a,
                                const char *call, ng_place *out) {
  const char *name = slot->entry->d.name;
  ng_strided s;
  memset(out, 0, sizeof *out);
  if (a->data == NULL) return NG_OK;
  if (!ng_dtype_is_real(a->dtype)) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: '%s' has dtype %s, expected f32, f64, bf16 or f16",
                   call, name, ng_dtype_name(a->dtype));
  }
  const ng_status st = ng_check_memory(p->ctx, a, call, name);
  if (st != NG_OK) return st;
  const char *wrong = ng_array_read(a, &s);
  if (wrong != NULL) return ng_fail(p->ctx, NG_ERR_SHAPE, "%s: '%s': %s", call, slot->name, wrong);
  const ng_message_text shape = ng_strided_shape(&s);
  drop_unit_axes(&s);
  if (!shape_fits(slot, &s)) {
    return ng_fail(p->ctx, NG_ERR_SHAPE, "%s: '%s' is %s, expected [%lld, %lld]%s", call,
                   slot->name, shape.text, (long long)slot->rows, (long long)slot->cols,
                   slot->entry->d.kind == NG_CONV2D && slot->param == NG_WEIGHT
                       ? " or [out, in/groups, kernel, kernel]"
                       : "");
  }
  if (!ng_strided_distinct(&s)) {
    return ng_fail(
        p->ctx, NG_ERR_SHAPE,
        "%s: '%s' is %s with strides whose elements share memory or interleave; it would be "
        "written",
        call, slot->name, shape.text);
  }
  const int32_t rows = slot->rows > 1; /* number of axes of rows */
  out->data = s.data;
  out->dtype = s.dtype;
  out->row_stride = rows > 0 ? s.stride[0] : 0;
  out->axes = s.ndim - rows;
  memcpy(out->extent, s.shape + rows, (size_t)out->axes * sizeof *out->extent);
  memcpy(out->stride, s.stride + rows, (size_t)out->axes * sizeof *out->stride);
  out->axes = ng_axes_join(out->axes, out->extent, out->stride);
  out->has_dense_rows = out->axes == 0 || (out->axes == 1 && out->stride[0] == 1);
  return NG_OK;
}

/* Check that entry `index` exists and has parameter `which`. */
static ng_status check_param(ng_precond *p, int32_t index, ng_param which, const char *call) {
  if (index < 0 || index >= p->entries) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: index is %d, there are %d layers and tensors", call,
                   index, p->entries);
  }
  const ng_entry *e = p->entry[index];
  if (ng_entry_slot(e, (int32_t)which) >= 0) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG, "%s: '%s' has no %s", call, e->d.name,
                 which == NG_BIAS     ? "bias"
                 : which == NG_WEIGHT ? "weight"
                                      : "such parameter");
}

/* An f64 weight needs f64 moments, whose memory ng_ready has planned. */
static ng_status check_moments(ng_precond *p, const ng_slot *slot, const ng_place *weight,
                               const char *call) {
  const bool is_double = weight->dtype == NG_F64;
  if (!p->is_ready || p->opt.base.update == NG_UPDATE_GRADIENT || weight->data == NULL ||
      is_double == (slot->moment_dtype == NG_F64)) {
    return NG_OK;
  }
  return ng_fail(p->ctx, NG_ERR_STATE,
                 "%s: '%s' has dtype %s and its moments are %s: bind a weight of this dtype before "
                 "ng_ready, which plans the moments",
                 call, slot->name, ng_dtype_name(weight->dtype), ng_dtype_name(slot->moment_dtype));
}

static ng_status bind_arrays(ng_precond *p, const ng_binding *b, const char *call, bool apply) {
  ng_status st = check_param(p, b->index, b->param, call);
  if (st != NG_OK) return st;
  ng_entry *e = p->entry[b->index];
  ng_slot *slot = &e->slot[ng_entry_slot(e, (int32_t)b->param)];
  if (b->hold != NG_HOLD && b->hold != NG_ONE_STEP) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: '%s': hold is %d, expected NG_HOLD or NG_ONE_STEP",
                   call, slot->name, (int)b->hold);
  }
  for (int k = 0; k < 2 && st == NG_OK; k++) {
    const ng_array *a = k == 0 ? b->grad : b->weight;
    ng_place place;
    if (a == NULL) continue;
    st = describe_array(p, slot, a, call, &place);
    if (st == NG_OK && k == 1) st = check_moments(p, slot, &place, call);
    if (st != NG_OK || !apply) continue;
    place.expires_after_step = b->hold == NG_ONE_STEP && place.data != NULL;
    *(k == 0 ? &slot->grad : &slot->weight) = place;
    slot->is_on_device[k] = a->mem == NG_DEVICE;
  }
  return st;
}

/* Pass 0 checks the whole list, pass 1 binds its arrays. */
ng_status ng_bind_list(ng_precond *p, const ng_binding *list, int32_t count, const char *call) {
  if (count < 0 || (count > 0 && list == NULL)) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: list is %s and count is %d", call,
                   list == NULL ? "NULL" : "there", count);
  }
  ng_status st = NG_OK;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t i = 0; i < count && st == NG_OK; i++) {
      st = bind_arrays(p, &list[i], call, pass == 1);
    }
  }
  return st;
}

static void expire_binding(ng_place *v) {
  if (!v->expires_after_step || v->data == NULL) return;
  v->data = NULL;
  v->is_expired = true;
}

void ng_bind_expire(ng_precond *p) {
  for (int32_t i = 0; i < p->slots; i++) {
    expire_binding(&p->slot[i]->grad);
    expire_binding(&p->slot[i]->weight);
  }
}

/* ---- groups ----------------------------------------------------------------------------------*/

/* ng_ready allocates memory for the learning rate and coefficients of each group, so no group can be added later. */
ng_status ng_slot_set_group(ng_precond *p, int32_t index, ng_param which, int32_t group,
                            const char *call) {
  enum { MOST = 1024 };
  const int32_t groups = p->is_ready ? p->update_groups : MOST;
  const bool there = index >= 0 && index < p->entries;
  const int32_t first = there ? ng_entry_param(p->entry[index], 0) : NG_WEIGHT;
  const ng_status st = check_param(p, index, which == NG_BOTH ? (ng_param)first : which, call);
  if (st != NG_OK) return st;
  ng_entry *e = p->entry[index];
  if (group < 0 || group >= groups) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: '%s': group is %d, expected 0 to %d%s", call, e->d.name,
                   group, groups - 1, p->is_ready ? ", as there were at ng_ready" : "");
  }
  for (int32_t k = 0; k < e->slots; k++) {
    if (which == NG_BOTH || ng_entry_param(e, k) == (int32_t)which) e->slot[k].update_group = group;
  }
  ng_shard_copy_flags(e);
  return NG_OK;
}
