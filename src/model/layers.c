/* layers.c: check a layer or tensor of the caller, and register it as an ng_entry with its slots (weight, bias).
 *
 * A message names the layer, the field, the value and the accepted values.  An invalid value gives NG_ERR_ARG, an
 * unsupported value NG_ERR_ABSENT and a message with an alternative. */
#include "model/model.h"

#include <math.h>

/* All sizes are below WIDTH_MOST: an index then fits an int32_t, and the product of two sizes an int64_t. */
#define WIDTH_MOST (INT64_C(1) << 31)
/* The padding is below PADDING_MOST: the number of output positions of any image then fits an int64_t. */
#define PADDING_MOST (INT64_C(1) << 16)

/* ---- checks ----------------------------------------------------------------------------------*/

static int32_t *name_bucket_of(ng_precond *p, const char *name) {
  uint32_t h = UINT32_C(2166136261); /* FNV-1a */
  for (const char *c = name; *c != 0; c++) {
    h = (h ^ (unsigned char)*c) * UINT32_C(16777619);
  }
  return &p->name_bucket[(h ^ h >> 16) % NG_NAME_BUCKETS];
}

int32_t ng_entry_find(ng_precond *p, const char *name) {
  for (int32_t i = *name_bucket_of(p, name); i > 0; i = p->entry[i - 1]->next_named) {
    if (ng_is(p->entry[i - 1]->d.name, name)) return i - 1;
  }
  return -1;
}

/* A name is a key in files and messages, so it must be unique.  It has at most 255 bytes, so that "NAME/FIELD" fits
 * NG_FIELD_KEY, and no quotes or backslashes, which JSON would escape.  A name that is not UTF-8 is refused only when a
 * state is saved. */
ng_status ng_entry_check_name(ng_precond *p, const char *call, const char *name) {
  if (name == NULL || name[0] == 0) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: the name is %s", call, name == NULL ? "NULL" : "empty");
  }
  if (strlen(name) > 255) {
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: the name '%.40s...' has %zu bytes, more than 255", call,
                   name, strlen(name));
  }
  for (const char *c = name; *c != 0; c++) {
    if ((unsigned char)*c < 0x20 || *c == 0x7f || *c == '"' || *c == '\\') {
      return ng_fail(p->ctx, NG_ERR_ARG,
                     "%s: the name has a control character, quote or backslash at position %td",
                     call, c - name);
    }
  }
  const int32_t taken = ng_entry_find(p, name);
  if (taken < 0) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG, "%s: the name '%s' is taken by index %d", call, name, taken);
}

static ng_status check_range(ng_precond *p, const ng_layer *d, const char *field, int64_t value,
                             int64_t least, int64_t below) {
  if (value >= least && value < below) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': %s is %lld, expected %lld to %lld", d->name,
                 field, (long long)value, (long long)least, (long long)below - 1);
}

static ng_status check_groups_divide(ng_precond *p, const ng_layer *d, bool divides) {
  if (divides) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG,
                 "layer '%s': groups is %lld, expected a divisor of in %lld and out %lld", d->name,
                 (long long)d->groups, (long long)d->in, (long long)d->out);
}

/* Call this function before sizes are checked, because the meaning of fields depends on the kind. */
static ng_status check_supported(ng_precond *p, const ng_layer *d) {
  if (d->alias_of != NULL) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "layer '%s': tied weights (alias_of) are not supported yet; register its "
                   "parameters with ng_add_tensor",
                   d->name);
  }
  if (d->kind != NG_LINEAR && d->kind != NG_CONV2D && d->kind != NG_NORM &&
      d->kind != NG_EMBEDDING) {
    return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': kind is %d, expected an ng_kind", d->name,
                   (int)d->kind);
  }
  return NG_OK;
}

/* *out = floor((size + 2 padding - extent) / stride) + 1, where the kernel covers extent = dilation (kernel - 1) + 1
 * pixels. */
bool ng_conv_output(const ng_layer *d, int axis, int64_t size, int64_t *out) {
  const int64_t extent = d->dilation[axis] * (d->kernel[axis] - 1) + 1;
  if (size + 2 * d->padding[axis] < extent) return false;
  *out = (size + 2 * d->padding[axis] - extent) / d->stride[axis] + 1;
  return true;
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
      /* The padding may be 0.  If the image is 0 on both axes, its size is not declared. */
      const bool unknown = k == 4 && d->image[0] == 0 && d->image[1] == 0;
      st = check_range(p, d, name[i][k], value[k], k == 2 || unknown ? 0 : 1,
                       k == 2 ? PADDING_MOST : WIDTH_MOST);
    }
    if (st == NG_OK && d->image[i] > 0 && !ng_conv_output(d, i, d->image[i], &out[i])) {
      st = ng_fail(p->ctx, NG_ERR_ARG,
                   "layer '%s': the kernel covers %lld pixels, the padded image has only %lld",
                   d->name, (long long)(d->dilation[i] * (d->kernel[i] - 1) + 1),
                   (long long)(d->image[i] + 2 * d->padding[i]));
    }
  }
  if (st != NG_OK) return st;
  st = check_range(p, d, "groups", d->groups, 1, NG_LIST_MOST + 1);
  if (st == NG_OK)
    st = check_groups_divide(p, d, d->in % d->groups == 0 && d->out % d->groups == 0);
  if (st != NG_OK) return st;
  /* families index the columns of the weight with 32 bits */
  const int64_t columns = ng_times(d->in / d->groups, ng_times(d->kernel[0], d->kernel[1]));
  if (columns < WIDTH_MOST) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG,
                 "layer '%s': in/groups * kernel is %lld * %lld * %lld, expected less than %lld",
                 d->name, (long long)(d->in / d->groups), (long long)d->kernel[0],
                 (long long)d->kernel[1], (long long)WIDTH_MOST);
}

static ng_status check_norm(ng_precond *p, const ng_layer *d) {
  ng_status st = check_range(p, d, "in", d->in, 1, WIDTH_MOST);
  if (st == NG_OK) st = check_range(p, d, "groups", d->groups, 1, WIDTH_MOST);
  if (st != NG_OK) return st;
  if (d->out != 0 && d->out != d->in) {
    return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': out is %lld, expected 0 or in, which is %lld",
                   d->name, (long long)d->out, (long long)d->in);
  }
  if (d->norm_kind < NG_BATCH_NORM || d->norm_kind > NG_GROUP_NORM ||
      (d->norm_input != NG_NORM_RAW && d->norm_input != NG_NORM_NORMALISED)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "layer '%s': norm_kind is %d and norm_input is %d, expected an ng_norm_kind and "
                   "an ng_norm_input",
                   d->name, (int)d->norm_kind, (int)d->norm_input);
  }
  if (!(d->norm_eps >= 0.0 && isfinite(d->norm_eps))) {
    return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': norm_eps is %g, expected a number >= 0",
                   d->name, d->norm_eps);
  }
  if ((d->norm_no_weight != 0 && d->norm_no_weight != 1) ||
      (d->norm_no_weight == 1 && d->bias == 0)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "layer '%s': norm_no_weight is %d and bias is %d, expected 0 or 1, and gamma or "
                   "beta or both",
                   d->name, d->norm_no_weight, d->bias);
  }
  return check_groups_divide(p, d, d->in % d->groups == 0);
}

static ng_status check_embedding(ng_precond *p, const ng_layer *d) {
  if (d->bias == 0 && (d->token_dtype == NG_I32 || d->token_dtype == NG_I64)) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG,
                 "layer '%s': bias is %d and token_dtype is %s, expected 0 and i32 or i64 of an "
                 "embedding",
                 d->name, d->bias, ng_dtype_name(d->token_dtype));
}

static ng_status check_shard(ng_precond *p, const ng_layer *d) {
  if (d->shard_axis == -1) return NG_OK;
  if (d->shard_axis != 0 && d->shard_axis != 1) {
    return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': shard_axis is %d, expected -1, 0 or 1", d->name,
                   d->shard_axis);
  }
  if (d->kind != NG_LINEAR) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "layer '%s': shard_axis is %d; only linear layers can be sharded", d->name,
                   d->shard_axis);
  }
  if (d->shard_group != NULL) {
    return ng_fail(p->ctx, NG_ERR_ABSENT,
                   "layer '%s': shard_group is not NULL; shards belong to the context's "
                   "model_group",
                   d->name);
  }
  if (p->ctx->model != NULL) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ARG,
                 "layer '%s': shard_axis is %d, and ng_context_config.model_group was not given",
                 d->name, d->shard_axis);
}

/* Check all fields of *d, and set e->out_size of a convolution. */
static ng_status check_layer(ng_precond *p, const ng_layer *d, ng_entry *e) {
  ng_status st = check_supported(p, d);
  const bool norm = d->kind == NG_NORM;
  if (st == NG_OK && !norm) st = check_range(p, d, "in", d->in, 1, WIDTH_MOST);
  if (st == NG_OK && !norm) st = check_range(p, d, "out", d->out, 1, WIDTH_MOST);
  if (st == NG_OK && norm) st = check_norm(p, d);
  if (st == NG_OK && d->kind == NG_EMBEDDING) st = check_embedding(p, d);
  if (st == NG_OK) st = check_shard(p, d);
  if (st != NG_OK) return st;
  if ((d->bias != 0 && d->bias != 1) || (d->frozen != 0 && d->frozen != 1)) {
    return ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': bias is %d and frozen is %d, expected 0 or 1",
                   d->name, d->bias, d->frozen);
  }
  if (d->kind == NG_CONV2D) {
    st = check_conv(p, d, e->out_size);
  } else {
    st = check_range(p, d, "positions", d->positions, 0, WIDTH_MOST);
    if (st == NG_OK && d->order != NG_SAMPLES_FIRST && d->order != NG_POSITIONS_FIRST) {
      st = ng_fail(p->ctx, NG_ERR_ARG, "layer '%s': order is %d, expected an ng_order", d->name,
                   (int)d->order);
    }
  }
  return st;
}

/* ---- adding ----------------------------------------------------------------------------------*/

/* Entries never move, because slots, blocks and tiles point to them. */
static ng_status append_entry(ng_precond *p, ng_entry *e, int32_t *index) {
  if (p->entries == p->entry_capacity) {
    const int32_t grown = p->entry_capacity == 0 ? 16 : 2 * p->entry_capacity;
    ng_entry **list = ng_object(p, (size_t)grown * sizeof *list);
    ng_slot **slots = ng_object(p, 2 * (size_t)grown * sizeof *slots);
    if (list == NULL || slots == NULL) return NG_ERR_NOMEM;
    if (p->entries > 0) memcpy(list, p->entry, (size_t)p->entries * sizeof *list);
    if (p->slots > 0) memcpy(slots, p->slot, (size_t)p->slots * sizeof *slots);
    ng_object_free(p, p->entry);
    ng_object_free(p, p->slot);
    p->entry = list;
    p->slot = slots;
    p->entry_capacity = grown;
  }
  if (index != NULL) *index = p->entries;
  e->index = p->entries;
  p->entry[p->entries++] = e;
  for (int32_t k = 0; k < e->slots; k++) {
    p->slot[p->slots++] = &e->slot[k];
  }
  int32_t *bucket = name_bucket_of(p, e->d.name);
  e->next_named = *bucket;
  *bucket = p->entries;
  return NG_OK;
}

/* Register a copy of `found` with own copies of its texts.  The copy cannot move later, because its slots point to it. */
static ng_status register_entry(ng_precond *p, const ng_entry *found, int32_t *index) {
  const char *name = found->d.name, *options = found->d.options;
  ng_entry *e = ng_object(p, sizeof *e);
  if (e == NULL) return NG_ERR_NOMEM;
  *e = *found;
  e->d.name = ng_object_copy_text(p, name);
  e->d.options = options == NULL ? NULL : ng_object_copy_text(p, options);
  if (e->d.name == NULL || (options != NULL && e->d.options == NULL)) return NG_ERR_NOMEM;
  (void)snprintf(e->slot_name[NG_WEIGHT], sizeof e->slot_name[0], "%s%s", name,
                 e->is_tensor ? "" : ".weight");
  (void)snprintf(e->slot_name[NG_BIAS], sizeof e->slot_name[0], "%s.bias", name);
  for (int32_t k = 0; k < e->slots; k++) {
    e->slot[k].entry = e;
    e->slot[k].param = ng_entry_param(e, k);
    e->slot[k].name = e->slot_name[e->slot[k].param];
  }
  return append_entry(p, e, index);
}

static void set_slot(ng_slot *s, int64_t rows, int64_t cols, int64_t groups) {
  s->rows = rows;
  s->cols = cols;
  s->groups = groups;
}

/* The caller has checked name and options.  After an error nothing has changed.  The weight of a convolution is a
 * matrix [out, (in / groups) kh kw] for a kernel of kh x kw; along a row the order is (channel, kernel offset), as in
 * PyTorch. */
ng_status ng_entry_add_layer(ng_precond *p, const ng_layer *d, int32_t *index) {
  ng_entry found;
  memset(&found, 0, sizeof found);
  const ng_status st = check_layer(p, d, &found);
  if (st != NG_OK) return st;
  found.d = *d;
  found.slots = 1 + d->bias;
  if (d->kind == NG_NORM) { /* gamma and beta; without gamma, beta is the first slot */
    found.d.out = d->in;
    found.slots = (d->norm_no_weight == 0) + (d->bias != 0);
    set_slot(&found.slot[0], 1, d->in, 1);
    set_slot(&found.slot[1], 1, d->in, 1);
    return register_entry(p, &found, index);
  }
  const bool conv = d->kind == NG_CONV2D, embedding = d->kind == NG_EMBEDDING;
  const int64_t groups = conv ? d->groups : 1;
  const int64_t patch = conv ? d->in / groups * d->kernel[0] * d->kernel[1] : d->in;
  if (ng_times(d->out, patch) > NG_PARAMETER_MOST) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "layer '%s': its weight is %lld by %lld, expected at most %lld elements",
                   d->name, (long long)d->out, (long long)patch, (long long)NG_PARAMETER_MOST);
  }
  /* an embedding has one row for each token */
  set_slot(&found.slot[NG_WEIGHT], embedding ? d->in : d->out, embedding ? d->out : patch, groups);
  set_slot(&found.slot[NG_BIAS], 1, d->out, groups);
  return register_entry(p, &found, index);
}

/* A family may precondition a tensor (ng_family.accepts_entry); a fused update writes it in any case. */
ng_status ng_entry_add_tensor(ng_precond *p, const char *name, int64_t count, int32_t *index) {
  ng_entry e;
  memset(&e, 0, sizeof e);
  /* register the tensor as the weight of a layer with one row */
  e.d = (ng_layer){.name = name, .kind = NG_LINEAR, .shard_axis = -1};
  e.is_tensor = true;
  e.slots = 1;
  set_slot(&e.slot[NG_WEIGHT], 1, count, 1);
  return register_entry(p, &e, index);
}

ng_status ng_precond_enter(const ng_precond *p) {
  return p == NULL ? NG_ERR_ARG : ng_enter(p->ctx);
}

ng_status ng_check_callable(ng_precond *p, const char *call) {
  const ng_status st = ng_precond_enter(p);
  if (st != NG_OK) return st;
  if (p->is_broken)
    return ng_fail(p->ctx, NG_ERR_COMM, "%s: the transport or the device failed before", call);
  if (!p->is_ready) return ng_fail(p->ctx, NG_ERR_STATE, "%s: call ng_ready first", call);
  return NG_OK;
}
