/* layers.c: what the caller describes before ng_ready: layers, tensors, where arrays live.
 *
 * In comes a description, out goes an ng_entry with its slots (one for the weight, one for a bias).
 * Every field is checked here, once; the rooms behind assume a valid entry. */
#include "model/model.h"

#include <ctype.h>
#include <regex.h>

#define NG_WIDEST (INT64_C(1) << 31)

/* ---- objects ---------------------------------------------------------------------------------*/

void *ng_object(ng_precond *p, size_t bytes) {
  void *o = ng_alloc(p->ctx, bytes);
  if (o == NULL) return NULL;
  memset(o, 0, bytes);
  p->held[NG_USE_OBJECTS] += (int64_t)bytes;
  return o;
}

void ng_object_free(ng_precond *p, void *ptr, size_t bytes) {
  if (ptr == NULL) return;
  p->held[NG_USE_OBJECTS] -= (int64_t)bytes;
  ng_free(p->ctx, ptr, bytes);
}

char *ng_object_text(ng_precond *p, const char *text) {
  char *copy = ng_object(p, strlen(text) + 1);
  if (copy != NULL) memcpy(copy, text, strlen(text) + 1);
  return copy;
}

void ng_object_text_free(ng_precond *p, char *text) {
  if (text != NULL) ng_object_free(p, text, strlen(text) + 1);
}

/* ---- create, destroy -------------------------------------------------------------------------*/

static ng_status check_skip(ng_context *ctx, const char *pattern) {
  regex_t skip;
  if (regcomp(&skip, pattern, REG_EXTENDED | REG_NOSUB) != 0) {
    return ng_fail(ctx, NG_ERR_ARG, "skip_layers: '%s' is not a POSIX extended regular expression",
                   pattern);
  }
  regfree(&skip);
  return NG_OK;
}

ng_status ng_precond_create(ng_context *ctx, const ng_options *options, ng_precond **out) {
  if (out != NULL) *out = NULL;
  if (ctx == NULL) return NG_ERR_ARG;
  ng_enter(ctx);
  if (out == NULL || options == NULL) {
    return ng_fail(ctx, NG_ERR_ARG, "ng_precond_create: %s is NULL",
                   out == NULL ? "out" : "options");
  }
  char message[NG_MESSAGE] = "";
  ng_status st = ng_options_check(options, message, sizeof message);
  if (st != NG_OK) return ng_fail(ctx, st, "%s", message);
  ng_precond *p = ng_alloc(ctx, sizeof *p);
  if (p == NULL) return ng_fail(ctx, NG_ERR_NOMEM, "ng_precond_create: no memory");
  memset(p, 0, sizeof *p);
  p->ctx = ctx;
  p->held[NG_USE_OBJECTS] = (int64_t)sizeof *p;
  int64_t before = ctx->bytes;
  NG_TRY(ng_options_own(ctx, options, &p->opt));
  ng_settings_of(&p->opt, &p->base);
  NG_TRY(check_skip(ctx, p->opt.skip_layers));
  NG_TRY(ng_schedule_parse(ctx, p->opt.schedule, &p->schedule));
  p->held[NG_USE_OBJECTS] += ctx->bytes - before;
  p->nu = 1.0;
  ng_live_update(p);
  *out = p;
  return NG_OK;
done:
  if (st == NG_ERR_NOMEM) (void)ng_fail(ctx, st, "ng_precond_create: no memory for the options");
  ng_precond_destroy(&p);
  return st;
}

static void entry_free(ng_precond *p, ng_entry *e) {
  if (e == NULL) return;
  ng_object_text_free(p, (char *)(uintptr_t)e->d.name);
  ng_object_text_free(p, (char *)(uintptr_t)e->d.options);
  ng_object_free(p, e, sizeof *e);
}

void ng_precond_destroy(ng_precond **precond) {
  if (precond == NULL || *precond == NULL) return;
  ng_precond *p = *precond;
  ng_context *ctx = p->ctx;
  *precond = NULL;
  ng_plan_release(p);
  for (int32_t i = 0; i < p->entries; i++) {
    entry_free(p, p->entry[i]);
  }
  ng_object_free(p, p->entry, (size_t)p->entry_capacity * sizeof(ng_entry *));
  ng_schedule_free(ctx, p->schedule);
  ng_options_drop(ctx, &p->opt);
  ng_free(ctx, p, sizeof *p);
}

/* ---- describing ------------------------------------------------------------------------------*/

ng_status ng_layer_init_sized(ng_layer *l, ng_kind kind, size_t size) {
  if (l == NULL || size < offsetof(ng_layer, kind) + sizeof l->kind) return NG_ERR_ARG;
  ng_layer d;
  memset(&d, 0, sizeof d);
  d.kind = kind;
  d.order = NG_SAMPLES_FIRST;
  d.layout = NG_NCHW;
  for (int i = 0; i < 2; i++) {
    d.kernel[i] = d.stride[i] = d.dilation[i] = 1;
  }
  d.groups = 1;
  d.norm_eps = 1e-5;
  d.norm_input = NG_NORM_RAW;
  d.token_dtype = NG_I64;
  d.shard_axis = -1;
  d.struct_size = size;
  memset(l, 0, size);
  memcpy(l, &d, size < sizeof d ? size : sizeof d);
  return NG_OK;
}

/* A name is a key in files and messages: not empty, not endless, printable, unique. */
static ng_status check_name(ng_precond *p, const char *call, const char *name) {
  if (name == NULL || name[0] == 0) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: the name is %s", call, name == NULL ? "NULL" : "empty");
  }
  if (strlen(name) > 255) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: the name '%.40s...' has %zu characters, at most 255",
                   call, name, strlen(name));
  }
  for (const char *c = name; *c != 0; c++) {
    if ((unsigned char)*c < 0x20 || *c == 0x7f || *c == '"' || *c == '\\') {
      return ng_fail(p->ctx, NG_ERR_ARG,
                     "%s: the name has a control character, quote or backslash at position %td",
                     call, c - name);
    }
  }
  for (int32_t i = 0; i < p->entries; i++) {
    if (ng_is(p->entry[i]->d.name, name)) {
      return ng_fail(p->ctx, NG_ERR_ARG, "%s: the name '%s' is taken by index %d", call, name, i);
    }
  }
  return NG_OK;
}

static ng_status check_range(ng_precond *p, const ng_layer *d, const char *field, int64_t value,
                             int64_t least) {
  if (value >= least && value < NG_WIDEST) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': %s is %lld, expected %lld to %lld", d->name,
                 field, (long long)value, (long long)least, (long long)NG_WIDEST - 1);
}

static ng_status check_supported(ng_precond *p, const ng_layer *d) {
  const char *what = NULL;
  if (d->kind == NG_NORM) what = "normalisation layers";
  if (d->kind == NG_EMBEDDING) what = "embeddings (token inputs)";
  if (d->shard_axis != -1) what = "tensor-parallel shards (shard_axis)";
  if (d->alias_of != NULL) what = "tied weights (alias_of)";
  if (what != NULL) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "layer '%s': %s are not supported yet; register its parameters with "
                   "ng_add_tensor",
                   d->name, what);
  }
  if (d->kind != NG_LINEAR && d->kind != NG_CONV2D) {
    return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': kind is %d, expected an ng_kind", d->name,
                   (int)d->kind);
  }
  return NG_OK;
}

static ng_status check_conv(ng_precond *p, const ng_layer *d, int64_t out[2]) {
  static const char *const name[2][5] = {
      {"kernel[0]", "stride[0]", "padding[0]", "dilation[0]", "image[0] (height)"},
      {"kernel[1]", "stride[1]", "padding[1]", "dilation[1]", "image[1] (width)"}};
  ng_status st = NG_OK;
  for (int i = 0; i < 2 && st == NG_OK; i++) {
    const int64_t value[5] = {d->kernel[i], d->stride[i], d->padding[i], d->dilation[i],
                              d->image[i]};
    for (int k = 0; k < 5 && st == NG_OK; k++) {
      st = check_range(p, d, name[i][k], value[k], k == 2 ? 0 : 1);
    }
    if (st != NG_OK) return st;
    const int64_t reach = d->dilation[i] * (d->kernel[i] - 1) + 1;
    if (d->image[i] + 2 * d->padding[i] < reach) {
      return ng_fail(p->ctx, NG_ERR_ARG,
                     "layer '%s': the kernel reaches over %lld pixels, the padded image has %lld",
                     d->name, (long long)reach, (long long)(d->image[i] + 2 * d->padding[i]));
    }
    out[i] = (d->image[i] + 2 * d->padding[i] - reach) / d->stride[i] + 1;
  }
  if (d->layout != NG_NCHW && d->layout != NG_NHWC) {
    return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': layout is %d, expected NG_NCHW or NG_NHWC",
                   d->name, (int)d->layout);
  }
  st = check_range(p, d, "groups", d->groups, 1);
  if (st == NG_OK && (d->in % d->groups != 0 || d->out % d->groups != 0)) {
    st = ng_fail(p->ctx, NG_ERR_ARG,
                 "layer '%s': groups is %lld, expected a divisor of in %lld and out %lld", d->name,
                 (long long)d->groups, (long long)d->in, (long long)d->out);
  }
  if (st == NG_OK && (d->in / d->groups) * d->kernel[0] * d->kernel[1] >= NG_WIDEST) {
    st = ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': in/groups * kernel is too large", d->name);
  }
  return st;
}

static ng_status check_layer(ng_precond *p, const ng_layer *d, ng_entry *e) {
  ng_status st = check_supported(p, d);
  if (st == NG_OK) st = check_range(p, d, "in", d->in, 1);
  if (st == NG_OK) st = check_range(p, d, "out", d->out, 1);
  if (st != NG_OK) return st;
  if ((d->bias != 0 && d->bias != 1) || (d->frozen != 0 && d->frozen != 1)) {
    return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': bias is %d and frozen is %d, expected 0 or 1",
                   d->name, d->bias, d->frozen);
  }
  if (d->kind == NG_CONV2D) {
    int64_t out[2] = {0, 0};
    st = check_conv(p, d, out);
    e->oh = out[0];
    e->ow = out[1];
    e->positions = e->oh * e->ow;
  } else {
    st = check_range(p, d, "positions", d->positions, 0);
    if (st == NG_OK && d->order != NG_SAMPLES_FIRST && d->order != NG_POSITIONS_FIRST) {
      st = ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': order is %d, expected an ng_order", d->name,
                   (int)d->order);
    }
    e->positions = d->positions;
  }
  if (st == NG_OK && d->options != NULL) {
    ng_options o = p->opt;
    char message[NG_MESSAGE] = "";
    st = ng_options_override(&o, d->options, NULL, message, sizeof message);
    if (st == NG_OK) st = ng_options_check(&o, message, sizeof message);
    if (st != NG_OK) st = ng_fail(p->ctx, st, "layer '%s': options: %s", d->name, message);
  }
  return st;
}

static ng_status append(ng_precond *p, ng_entry *e, int32_t *index) {
  if (p->entries == p->entry_capacity) {
    const int32_t grown = p->entry_capacity == 0 ? 16 : 2 * p->entry_capacity;
    ng_entry **list = ng_object(p, (size_t)grown * sizeof *list);
    if (list == NULL) return NG_ERR_NOMEM;
    if (p->entries > 0) memcpy(list, p->entry, (size_t)p->entries * sizeof *list);
    ng_object_free(p, p->entry, (size_t)p->entry_capacity * sizeof *list);
    p->entry = list;
    p->entry_capacity = grown;
  }
  *index = p->entries;
  p->entry[p->entries++] = e;
  return NG_OK;
}

/* Own copies of the texts; on failure nothing of *e is left. */
static ng_status adopt(ng_precond *p, ng_entry *e, const char *name, const char *options,
                       int32_t *index) {
  ng_status st = NG_ERR_NOMEM;
  e->d.name = ng_object_text(p, name);
  e->d.options = options == NULL ? NULL : ng_object_text(p, options);
  (void)snprintf(e->slot_name[NG_WEIGHT], sizeof e->slot_name[0], "%s%s", name,
                 e->tensor ? "" : ".weight");
  (void)snprintf(e->slot_name[NG_BIAS], sizeof e->slot_name[0], "%s.bias", name);
  if (e->d.name != NULL && (options == NULL || e->d.options != NULL)) st = append(p, e, index);
  if (st != NG_OK) {
    entry_free(p, e);
    return ng_fail(p->ctx, st, "no memory to register '%s'", name);
  }
  return NG_OK;
}

static ng_status may_add(ng_precond *p, const char *call) {
  if (p->broken) return ng_fail(p->ctx, NG_ERR_COMM, "%s: the transport failed before", call);
  if (p->ready) {
    return ng_fail(p->ctx, NG_ERR_STATE, "%s: after ng_ready nothing can be registered", call);
  }
  return NG_OK;
}

ng_status ng_add_layer(ng_precond *p, const ng_layer *layer, int32_t *index) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  ng_status st = may_add(p, "ng_add_layer");
  if (st != NG_OK) return st;
  if (layer == NULL || index == NULL) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_add_layer: %s is NULL",
                   layer == NULL ? "layer" : "index");
  }
  char message[NG_MESSAGE] = "";
  ng_layer d;
  if (ng_layer_init_sized(&d, NG_LINEAR, sizeof d) != NG_OK) return NG_ERR_ARG;
  st = ng_take_struct(&d, sizeof d, layer, offsetof(ng_layer, positions), "ng_layer", message,
                      sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "%s", message);
  st = check_name(p, "ng_add_layer", d.name);
  if (st != NG_OK) return st;

  ng_entry found;
  memset(&found, 0, sizeof found);
  st = check_layer(p, &d, &found);
  if (st != NG_OK) return st;
  found.d = d;
  const int64_t patch = d.kind == NG_CONV2D ? d.in / d.groups * d.kernel[0] * d.kernel[1] : d.in;
  found.slots = 1 + d.bias;
  found.slot[NG_WEIGHT].rows = d.out;
  found.slot[NG_WEIGHT].cols = patch;
  found.slot[NG_BIAS].rows = 1;
  found.slot[NG_BIAS].cols = d.out;
  ng_entry *e = ng_object(p, sizeof *e);
  if (e == NULL) return ng_fail(p->ctx, NG_ERR_NOMEM, "no memory to register '%s'", d.name);
  *e = found;
  return adopt(p, e, d.name, d.options, index);
}

ng_status ng_add_linear(ng_precond *p, const char *name, int64_t in, int64_t out, int32_t bias,
                        int32_t *index) {
  ng_layer d;
  if (ng_layer_init(&d, NG_LINEAR) != NG_OK) return NG_ERR_ARG;
  d.name = name;
  d.in = in;
  d.out = out;
  d.bias = bias;
  return ng_add_layer(p, &d, index);
}

ng_status ng_add_conv2d(ng_precond *p, const char *name, int64_t in, int64_t out, int64_t kernel,
                        int64_t stride, int64_t padding, int64_t height, int64_t width,
                        int32_t bias, int32_t *index) {
  ng_layer d;
  if (ng_layer_init(&d, NG_CONV2D) != NG_OK) return NG_ERR_ARG;
  d.name = name;
  d.in = in;
  d.out = out;
  for (int i = 0; i < 2; i++) {
    d.kernel[i] = kernel;
    d.stride[i] = stride;
    d.padding[i] = padding;
  }
  d.image[0] = height;
  d.image[1] = width;
  d.bias = bias;
  return ng_add_layer(p, &d, index);
}

ng_status ng_add_tensor(ng_precond *p, const char *name, int64_t count, int32_t *index) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  ng_status st = may_add(p, "ng_add_tensor");
  if (st == NG_OK && index == NULL) {
    st = ng_fail(p->ctx, NG_ERR_ARG, "ng_add_tensor: index is NULL");
  }
  if (st == NG_OK) st = check_name(p, "ng_add_tensor", name);
  if (st != NG_OK) return st;
  if (count < 1 || count > INT64_MAX / 16) {
    return ng_fail(p->ctx, NG_ERR_ARG, "tensor '%s': count is %lld, expected at least 1", name,
                   (long long)count);
  }
  ng_entry *e = ng_object(p, sizeof *e);
  if (e == NULL) return ng_fail(p->ctx, NG_ERR_NOMEM, "no memory to register '%s'", name);
  e->d.kind = NG_LINEAR; /* one row of `count`, no curvature */
  e->tensor = true;
  e->slots = 1;
  e->slot[NG_WEIGHT].rows = 1;
  e->slot[NG_WEIGHT].cols = count;
  return adopt(p, e, name, NULL, index);
}

/* ---- binding ---------------------------------------------------------------------------------*/

static ng_status bind(ng_precond *p, int32_t index, ng_param which, const ng_view *view,
                      const char *call, bool grad) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
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
  if (view->rows != slot->rows || view->cols != slot->cols || view->row_stride < view->cols) {
    return ng_fail(p->ctx, NG_ERR_SHAPE,
                   "%s: '%s' is [%lld, %lld] with row stride %lld, expected [%lld, %lld]", call,
                   e->d.name, (long long)view->rows, (long long)view->cols,
                   (long long)view->row_stride, (long long)slot->rows, (long long)slot->cols);
  }
  *to = *view;
  return NG_OK;
}

ng_status ng_bind_grad(ng_precond *p, int32_t index, ng_param which, const ng_view *grad) {
  return bind(p, index, which, grad, "ng_bind_grad", true);
}

ng_status ng_bind_weight(ng_precond *p, int32_t index, ng_param which, const ng_view *weight) {
  return bind(p, index, which, weight, "ng_bind_weight", false);
}
