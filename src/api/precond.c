/* precond.c: the public functions that make a model: create, add layers, bind, ready, destroy.  They check arguments
 * and call model/ and setup/.
 *
 * A failed call leaves the model unchanged, except when the transport fails in ng_ready, the first collective call. */
#include "setup/setup.h"

/* ---- create, destroy -------------------------------------------------------------------------*/

static ng_status check_create_call(ng_context *ctx, const char *call, ng_precond **out) {
  if (out != NULL) *out = NULL;
  if (ctx == NULL) return NG_ERR_ARG;
  const ng_status st = ng_enter(ctx);
  return st != NG_OK || out != NULL ? st : ng_fail(ctx, NG_ERR_ARG, "%s: out is NULL", call);
}

/* Count every byte of the object, so that the bytes of ng_report add up to ng_context_allocated. */
static ng_status create_precond(ng_context *ctx, const ng_options *options, ng_precond **out) {
  char message[NG_MESSAGE] = "";
  const ng_status st = ng_family_check(options, message, sizeof message);
  if (st != NG_OK) return ng_fail(ctx, st, "%s", message);
  ng_precond *p = ng_alloc(ctx, sizeof *p);
  if (p == NULL) return ng_fail(ctx, NG_ERR_NOMEM, "ng_precond_create: no memory");
  memset(p, 0, sizeof *p);
  p->ctx = ctx;
  p->opt = *options;
  p->arena_bytes[NG_USE_OBJECTS] = (int64_t)sizeof *p;
  p->step = ng_object(p, sizeof *p->step);
  if (p->step != NULL) p->step->nu = 1.0; /* the clip factor before the first step */
  if (p->step == NULL) ng_precond_destroy(&p);
  *out = p;
  return p == NULL ? NG_ERR_NOMEM : NG_OK;
}

ng_status ng_precond_create_from(ng_context *ctx, const ng_options *options, ng_precond **out) {
  const ng_status st = check_create_call(ctx, "ng_precond_create_from", out);
  if (st != NG_OK) return st;
  if (options != NULL) return create_precond(ctx, options, out);
  return ng_fail(ctx, NG_ERR_ARG, "ng_precond_create_from: options is NULL");
}

ng_status ng_precond_create(ng_context *ctx, const char *line, ng_precond **out) {
  char message[NG_MESSAGE] = "";
  ng_options o;
  ng_status st = check_create_call(ctx, "ng_precond_create", out);
  if (st != NG_OK) return st;
  ng_options_set_defaults(&o);
  if (line != NULL) st = ng_options_set_line(&o, line, message, sizeof message);
  return st == NG_OK ? create_precond(ctx, &o, out) : ng_fail(ctx, st, "%s", message);
}

/* A forked child must not use the transports of its parent, so in the child the context leaves them first. */
void ng_precond_destroy(ng_precond **precond) {
  if (precond == NULL || *precond == NULL) return;
  ng_precond *p = *precond;
  ng_context *ctx = p->ctx;
  *precond = NULL;
  if (!ng_is_creating_process(ctx)) {
    ng_comm_leave(ctx->comm);
    if (ctx->model != NULL) ng_comm_leave(ctx->model);
    if (ctx->stages != NULL) ng_comm_leave(ctx->stages);
    p->is_broken = true;
  }
  ng_setup_release(p);
  ng_objects_free_after(p, NULL);
  ng_free(ctx, p, sizeof *p);
}

/* ---- describe --------------------------------------------------------------------------------*/

/* Check that the model accepts another layer or tensor: ng_ready plans memory for the registered ones only. */
static ng_status check_accepts_layers(ng_precond *p, const char *call) {
  const ng_status st = ng_precond_enter(p);
  if (st != NG_OK) return st;
  if (p->is_broken)
    return ng_fail(p->ctx, NG_ERR_COMM, "%s: the transport or the device failed before", call);
  if (p->is_ready) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "%s: the model is ready; register layers and tensors before ng_ready", call);
  }
  return NG_OK;
}

/* Check the layer's options together with the model's here, so that the call with the wrong option reports the
 * error. */
ng_status ng_add_layer(ng_precond *p, const ng_layer *layer, int32_t *index) {
  ng_status st = check_accepts_layers(p, "ng_add_layer");
  if (st != NG_OK) return st;
  if (layer == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "ng_add_layer: layer is NULL");
  char message[NG_MESSAGE] = "";
  ng_layer d;
  ng_layer_init(&d, NG_LINEAR, sizeof d);
  st = ng_struct_read(&d, sizeof d, layer, offsetof(ng_layer, positions), "ng_layer", message,
                      sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "%s", message);
  st = ng_entry_check_name(p, "ng_add_layer", d.name);
  if (st != NG_OK) return st;
  if (d.norm_kind == 0) d.norm_kind = NG_BATCH_NORM; /* the caller has not called ng_layer_init */

  if (d.options != NULL) {
    ng_options o = p->opt;
    st = ng_options_override(&o, d.options, message, sizeof message);
    if (st == NG_OK) st = ng_family_check_method_options(&o, message, sizeof message);
    if (st != NG_OK) return ng_fail(p->ctx, st, "layer '%s': options: %s", d.name, message);
  }
  return ng_entry_add_layer(p, &d, index);
}

ng_status ng_add_linear(ng_precond *p, const char *name, int64_t in, int64_t out, int32_t bias,
                        int32_t *index) {
  ng_layer d;
  ng_layer_init(&d, NG_LINEAR, sizeof d);
  d.name = name;
  d.in = in;
  d.out = out;
  d.bias = bias;
  return ng_add_layer(p, &d, index);
}

static void copy_pair(int64_t to[2], const int64_t *from) {
  for (int i = 0; i < 2 && from != NULL; i++) {
    to[i] = from[i];
  }
}

ng_status ng_add_conv2d(ng_precond *p, const char *name, int64_t in, int64_t out,
                        const int64_t kernel[2], const int64_t stride[2], const int64_t padding[2],
                        const int64_t dilation[2], int64_t groups, const int64_t image[2],
                        int32_t bias, int32_t *index) {
  ng_layer d;
  ng_layer_init(&d, NG_CONV2D, sizeof d);
  const ng_status st = ng_precond_enter(p);
  if (st != NG_OK) return st;
  if (kernel == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "ng_add_conv2d: kernel is NULL");
  d.name = name;
  d.in = in;
  d.out = out;
  copy_pair(d.kernel, kernel);
  copy_pair(d.stride, stride);
  copy_pair(d.padding, padding);
  copy_pair(d.dilation, dilation);
  copy_pair(d.image, image);
  d.groups = groups;
  d.bias = bias;
  return ng_add_layer(p, &d, index);
}

ng_status ng_add_norm(ng_precond *p, const char *name, ng_norm_kind kind, int64_t in,
                      int64_t groups, double eps, int32_t *index) {
  ng_layer d;
  ng_layer_init(&d, NG_NORM, sizeof d);
  d.name = name;
  d.in = in;
  d.bias = 1;
  d.norm_kind = kind;
  d.groups = groups;
  d.norm_eps = eps;
  return ng_add_layer(p, &d, index);
}

ng_status ng_add_tensor(ng_precond *p, const char *name, int64_t count, int32_t *index) {
  ng_status st = check_accepts_layers(p, "ng_add_tensor");
  if (st == NG_OK) st = ng_entry_check_name(p, "ng_add_tensor", name);
  if (st != NG_OK) return st;
  if (count < 1 || count > NG_PARAMETER_MOST) {
    return ng_fail(p->ctx, NG_ERR_ARG, "tensor '%s': count is %lld, expected 1 to %lld", name,
                   (long long)count, (long long)NG_PARAMETER_MOST);
  }
  return ng_entry_add_tensor(p, name, count, index);
}

/* ---- bind, ready -----------------------------------------------------------------------------*/

ng_status ng_bind(ng_precond *p, const ng_binding *list, int32_t count) {
  const ng_status st = ng_precond_enter(p);
  return st == NG_OK ? ng_bind_list(p, list, count, "ng_bind") : st;
}

static ng_status bind_array(ng_precond *p, ng_binding b, bool grad, const char *call) {
  const ng_status st = ng_precond_enter(p);
  if (st != NG_OK) return st;
  if ((grad ? b.grad : b.weight) == NULL) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: the array is NULL", call);
  }
  return ng_bind_list(p, &b, 1, call);
}

ng_status ng_bind_grad(ng_precond *p, int32_t index, ng_param which, const ng_array *grad) {
  return bind_array(p, (ng_binding){index, which, grad, NULL, NG_HOLD}, true, "ng_bind_grad");
}

ng_status ng_bind_weight(ng_precond *p, int32_t index, ng_param which, const ng_array *weight) {
  return bind_array(p, (ng_binding){index, which, NULL, weight, NG_HOLD}, false, "ng_bind_weight");
}

/* Of a block over many layers, a single layer can be frozen only if the family can exclude layers. */
ng_status ng_freeze(ng_precond *p, int32_t index, int32_t on) {
  const ng_status st = ng_precond_enter(p);
  if (st != NG_OK) return st;
  if (index < 0 || index >= p->entries || (on != 0 && on != 1)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_freeze: index is %d and on is %d, expected an index below %d, and "
                   "0 or 1",
                   index, on, p->entries);
  }
  ng_entry *e = p->entry[index];
  const ng_block *b = e->block;
  if (e->d.frozen || (b != NULL && b->entry == NULL && !b->family->can_exclude)) {
    return ng_fail(p->ctx, NG_ERR_STATE, "ng_freeze: '%s' %s", e->d.name,
                   e->d.frozen ? "was registered as frozen and has no memory; register it unfrozen "
                                 "and freeze it after ng_ready"
                               : "shares a block with other layers");
  }
  e->is_frozen = on != 0;
  ng_shard_copy_flags(e);
  return NG_OK;
}

ng_status ng_set_group(ng_precond *p, int32_t index, ng_param which, int32_t group) {
  const ng_status st = ng_precond_enter(p);
  return st == NG_OK ? ng_slot_set_group(p, index, which, group, "ng_set_group") : st;
}

/* After a failure of the transport, this rank must not enter a collective that the other ranks cannot join. */
ng_status ng_ready(ng_precond *p) {
  const ng_status st = ng_precond_enter(p);
  if (st != NG_OK) return st;
  if (p->is_broken)
    return ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: the transport or the device failed before");
  if (p->is_ready) return ng_fail(p->ctx, NG_ERR_STATE, "ng_ready: called a second time");
  if (p->entries == 0) {
    return ng_fail(p->ctx, NG_ERR_STATE, "ng_ready: no layer or tensor is registered");
  }
  return ng_setup_ready(p);
}
