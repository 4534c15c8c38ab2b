/* recording.c: read a recording, and check that every array that a replay reads is present, is float32 and has the
 * shape that case.json implies. The file is not trusted: recording_open names the file and the array of an error. */
#include "recording.h"

#include "common/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- case.json -------------------------------------------------------------------------------*/

typedef struct reader {
  cli_fields fields;
  recording *r;
} reader;

static const char *read_required_text(cli_fields *f, const ngio_value *object, const char *key) {
  const char *s = ngio_text_of(ngio_get(object, key));
  if (s == NULL) cli_field_error(f, "%s is not a text", key);
  return s != NULL ? s : "";
}

/* Return the text of `key`, or "" if the key is missing. */
static const char *read_optional_text(cli_fields *f, const ngio_value *object, const char *key) {
  return ngio_get(object, key) == NULL ? "" : read_required_text(f, object, key);
}

/* Return the number of `key`, or `absent` if the key is missing or null. */
static double read_real_or(cli_fields *f, const ngio_value *object, const char *key,
                           double absent) {
  const ngio_value *v = ngio_get(object, key);
  if (v == NULL || ngio_is(v, NGIO_NULL)) return absent;
  if (!ngio_is_number(v)) cli_field_error(f, "%s is not a number", key);
  return ngio_number_of(v);
}

/* Set the name of layer i, entry i of `list`. Names must differ, because they are part of the names of arrays. */
static void set_layer_name(reader *in, const char *list, int i, const char *name) {
  const recording *r = in->r;
  if (name == NULL || strlen(name) > 60) {
    cli_field_error(&in->fields, "entry %d of %s: expected a name of at most 60 letters", i, list);
    return;
  }
  (void)snprintf(r->layer[i].name, sizeof r->layer[i].name, "%s", name);
  for (int k = 0; k < i; k++)
    if (strcmp(r->layer[k].name, name) == 0)
      cli_field_error(&in->fields, "%s has %s twice", list, name);
}

static void read_layer_fields(cli_fields *f, const ngio_value *o, shape *l) {
  enum { MOST = 1 << 20 };
  const char *kind = read_required_text(f, o, "kind");
  if (strcmp(kind, "batchnorm") == 0) {
    l->is_norm = l->has_bias = true;
    l->in = l->out = cli_read_whole(f, o, "num_features", 1, MOST, -1);
    l->eps = ngio_number_of(ngio_get(o, "eps"));
    if (!(l->eps > 0)) cli_field_error(f, "eps is not a number above 0");
    return;
  }
  const ngio_value *bias = ngio_get(o, "bias");
  if (!ngio_is_flag(bias)) cli_field_error(f, "bias is neither true nor false");
  l->has_bias = ngio_is(bias, NGIO_TRUE);
  l->is_conv = strcmp(kind, "conv2d") == 0;
  if (!l->is_conv && strcmp(kind, "linear") != 0)
    cli_field_error(f, "kind '%.40s' is not supported, expected conv2d, linear or batchnorm", kind);
  l->in = cli_read_whole(f, o, l->is_conv ? "in_channels" : "in_features", 1, MOST, -1);
  l->out = cli_read_whole(f, o, l->is_conv ? "out_channels" : "out_features", 1, MOST, -1);
  if (!l->is_conv) return;
  cli_read_pair(f, o, "kernel", 1, -1, l->kernel);
  cli_read_pair(f, o, "stride", 1, -1, l->stride);
  cli_read_pair(f, o, "padding", 0, -1, l->padding);
}

/* Describe a parameter [rows, ...] as a linear layer with `rows` outputs; with `conv`, four axes as a convolution. A
 * parameter with one axis has one output. */
static void read_parameter_shape(cli_fields *f, const ngio_value *o, bool conv, shape *l) {
  enum { MOST = 1 << 30 };
  const ngio_value *lengths = ngio_get(o, "shape");
  const size_t axes = ngio_count(lengths);
  if (axes < 1 || axes > 4)
    cli_field_error(f, "parameter %s has %zu axes, expected 1 to 4", l->name, axes);
  l->in = l->out = l->positions = 1;
  l->is_conv = conv && axes == 4;
  int64_t elements = 1;
  for (size_t k = 0; k < axes && f->rc == CLI_OK; k++) {
    const int64_t length = ngio_integer_of(ngio_at(lengths, k));
    if (length < 1 || length > 1 << 20) {
      cli_field_error(f, "parameter %s: a length is not a whole number from 1 to 1048576", l->name);
      return;
    }
    elements *= length;
    if (elements > MOST) {
      cli_field_error(f, "parameter %s has more than %d elements", l->name, MOST);
      return;
    }
    if (l->is_conv && k >= 2) {
      l->kernel[k - 2] = length;
      l->stride[k - 2] = 1;
      continue;
    }
    *(k == 0 && axes > 1 ? &l->out : &l->in) *= length;
  }
}

/* Read the layers, in the order of the list "order", or else the list "parameters". */
static void read_layers(reader *in) {
  recording *r = in->r;
  cli_fields *f = &in->fields;
  const char *key = r->has_parameters ? "parameters" : "order";
  const ngio_value *list = ngio_get(r->root, key), *layers = ngio_get(r->root, "layers");
  if (!ngio_is(list, NGIO_ARRAY) || ngio_count(list) < 1 || ngio_count(list) > 4096)
    cli_field_error(f, "%s is not a list of 1 to 4096 entries", key);
  if (!r->has_parameters && !ngio_is(layers, NGIO_OBJECT))
    cli_field_error(f, "layers is not an object");
  if (r->has_parameters && (r->ranks > 1 || r->micro_batches > 1))
    cli_field_error(f, "parameters of several ranks or micro-batches are not supported");
  if (f->rc != CLI_OK) return;
  r->layers = (int)ngio_count(list);
  r->layer = cli_alloc((size_t)r->layers, sizeof *r->layer);
  r->is_other = cli_alloc((size_t)r->layers, sizeof *r->is_other);
  for (int i = 0; f->rc == CLI_OK && i < r->layers; i++) {
    const ngio_value *o = ngio_at(list, (size_t)i);
    shape *l = &r->layer[i];
    char where[128];
    set_layer_name(in, key, i, ngio_text_of(r->has_parameters ? ngio_get(o, "name") : o));
    if (r->has_parameters) {
      const char *role = read_optional_text(f, o, "role");
      r->is_other[i] = r->has_states && strncmp(role, "adam", 4) == 0;
      read_parameter_shape(f, o, r->has_states, l);
      continue;
    }
    (void)snprintf(where, sizeof where, "case.json: layer %.60s: ", l->name);
    f->where = where;
    o = ngio_get(layers, l->name);
    if (!ngio_is(o, NGIO_OBJECT)) cli_field_error(f, "expected an object in \"layers\"");
    read_layer_fields(f, o, l);
    f->where = "case.json: ";
  }
}

static void read_case_json(reader *in, const char *text) {
  recording *r = in->r;
  cli_fields *f = &in->fields;
  char message[160];
  f->where = "case.json: ";
  if (ngio_json_parse(text, strlen(text), &r->json, message, sizeof message) != NGIO_OK) {
    cli_field_error(f, "no JSON: %s", message);
    return;
  }
  r->root = ngio_json_root(r->json);
  r->config = ngio_get(r->root, "config");
  if (!ngio_is(r->config, NGIO_OBJECT)) cli_field_error(f, "config is not an object");
  r->tolerance = read_real_or(f, r->root, "tolerance", 1e-5);
  r->state_tolerance = read_real_or(f, r->root, "state_tolerance", r->tolerance);
  r->tolerance_reason = read_optional_text(f, r->root, "tolerance_reason");
  r->steps = (int)cli_read_whole(f, r->root, "steps", 1, 100000, -1);
  r->micro_batches = (int)cli_read_whole(f, r->root, "micro_batches", 1, 1000, 1);
  r->ranks = (int)cli_read_whole(f, r->root, "ranks", 1, 64, 1);
  r->has_two_passes = cli_read_whole(f, r->root, "passes", 1, 2, 1) == 2;
  r->is_sum = strcmp(read_optional_text(f, r->root, "reduction"), "sum") == 0;
  r->has_parameters = ngio_get(r->root, "parameters") != NULL;
  r->has_states = r->has_parameters && ngio_get(r->root, "state_means") != NULL;
  if (!r->has_states) (void)cli_read_whole(f, r->root, "batch", 1, 1 << 24, -1);
  read_layers(in);
  f->where = "case.json: config: ";
  r->system = read_required_text(f, r->config, "system");
  r->method = read_optional_text(f, r->config, "method"); /* "": the program has one method */
  r->weight_decay = read_real_or(f, r->config, "weight_decay", 0.0);
  r->loss_scale = read_real_or(f, r->config, "loss_scale", 1.0);
  r->momentum = read_real_or(f, r->config, "momentum", 0.9);
  r->adjust_momentum = ngio_is(ngio_get(r->config, "adjust_momentum"), NGIO_TRUE);
  if (!(r->loss_scale > 0)) cli_field_error(f, "loss_scale is not a number above 0");
  if (!(r->momentum >= 0)) cli_field_error(f, "momentum is not a number >= 0");
  /* Chainer adds weight decay to the scaled gradient: before version 7 rate * w, later rate * w * loss_scale. */
  const char *version = ngio_text_of(ngio_get(r->root, "chainer"));
  if (version != NULL && strtol(version, NULL, 10) < 7) r->weight_decay /= r->loss_scale;
}

/* ---- the arrays ------------------------------------------------------------------------------*/

const ngio_tensor *recording_find_array(const recording *r, const char *format, ...) {
  char name[160];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(name, sizeof name, format, args);
  va_end(args);
  return ngio_tensors_find(r->file, name);
}

static void format_shape(const int64_t *lengths, int32_t n, char text[128]) {
  int at = 0;
  text[0] = 0;
  for (int32_t i = 0; i < n && at < 100; i++)
    at += snprintf(text + at, 128 - (size_t)at, "%s%lld", i > 0 ? "," : "", (long long)lengths[i]);
}

/* Return the float32 array `name` if its shape is expect[n] (an entry < 0: any length; expect NULL: any shape). */
static const ngio_tensor *find_float_array(reader *in, const char *name, const int64_t *expect,
                                           int32_t n) {
  const ngio_tensor *t = in->fields.rc == CLI_OK ? recording_find_array(in->r, "%s", name) : NULL;
  if (t == NULL) cli_field_error(&in->fields, "array %s is missing", name);
  if (t != NULL && t->dtype != NGIO_F32)
    cli_field_error(&in->fields, "array %s is not float32", name);
  bool fits = t != NULL && (expect == NULL || t->ndim == n);
  for (int32_t i = 0; expect != NULL && fits && i < n; i++)
    fits = expect[i] < 0 ? t->shape[i] > 0 : t->shape[i] == expect[i];
  if (t != NULL && !fits) {
    char has[128], wants[128];
    format_shape(t->shape, t->ndim, has);
    format_shape(expect, n, wants);
    cli_field_error(&in->fields, "array %s is [%s], expected [%s]", name, has, wants);
  }
  return in->fields.rc == CLI_OK ? t : NULL;
}

/* Return the array `name`, the input of a layer, and set g to the shape that the layer's output gradient must have. */
static const ngio_tensor *find_layer_input(reader *in, const char *name, shape *l,
                                           int64_t g[NGIO_MAX_DIMS]) {
  const bool known = l->is_conv && l->image[0] > 0;
  const int64_t expect[4] = {-1, l->in, known ? l->image[0] : -1, known ? l->image[1] : -1};
  const ngio_tensor *a = find_float_array(in, name, l->is_conv ? expect : NULL, 4);
  if (a == NULL) return NULL;
  const int32_t n = a->ndim, features = l->is_norm ? 1 : n - 1;
  if (!l->is_conv && (n < 2 || (l->is_norm && n != 2 && n != 4) || a->shape[features] != l->in ||
                      a->bytes < 4 * l->in)) {
    char has[128];
    format_shape(a->shape, n, has);
    if (l->is_norm) {
      cli_field_error(&in->fields,
                      "array %s is [%s], expected [samples,%lld] or [samples,%lld,height,width]",
                      name, has, (long long)l->in, (long long)l->in);
    } else {
      cli_field_error(&in->fields, "array %s is [%s], expected [samples,...,%lld]", name, has,
                      (long long)l->in);
    }
    return NULL;
  }
  memcpy(g, a->shape, (size_t)n * sizeof *g);
  if (!l->is_norm) g[l->is_conv ? 1 : n - 1] = l->out;
  for (int k = 0; k < 2 && (l->is_conv || l->is_norm) && n == 4; k++) {
    l->image[k] = a->shape[2 + k];
    if (!l->is_conv) continue;
    g[2 + k] = l->image[k] + 2 * l->padding[k] - l->kernel[k];
    if (g[2 + k] < 0)
      cli_field_error(&in->fields, "array %s: the image is smaller than the kernel", name);
    g[2 + k] = g[2 + k] / l->stride[k] + 1;
  }
  return a;
}

static void find_observed_arrays(reader *in, const char *prefix, shape *l, recording_observed *s) {
  char name[160];
  int64_t expect[NGIO_MAX_DIMS] = {0};
  (void)snprintf(name, sizeof name, "%s.%s.a", prefix, l->name);
  const ngio_tensor *a = find_layer_input(in, name, l, expect);
  if (a == NULL) return;
  (void)snprintf(name, sizeof name, "%s.%s.g", prefix, l->name);
  const ngio_tensor *g = find_float_array(in, name, expect, a->ndim);
  if (g == NULL) return;
  s->a = a->data;
  s->g = g->data;
  s->samples = a->shape[0];
  s->rows = l->is_conv || l->is_norm ? s->samples : a->bytes / 4 / l->in;
}

/* The arrays of one weight or bias in one step, in the order of recording_step. */
enum { GRAD, OUT, BEFORE, AFTER, MOMENTUM, STEP_ARRAYS };

static void format_step_array_name(const recording *r, int step, const shape *l, int bias, int k,
                                   char name[160]) {
  static const char *const ending[STEP_ARRAYS] = {"grad", "out", "before", "after", "v"};
  const char *which = l->is_norm ? (bias ? ".beta" : ".gamma") : bias ? ".bias" : ".weight";
  (void)snprintf(name, 160, "s%d.%s%s.%s", step, l->name, r->has_parameters ? "" : which,
                 ending[k]);
}

static void find_step_arrays(reader *in, int step, const shape *l, int bias, recording_step *s) {
  const recording *r = in->r;
  const int arrays = r->has_updates                              ? STEP_ARRAYS
                     : r->has_states                             ? MOMENTUM
                     : r->has_parameters || r->weight_decay != 0 ? AFTER
                                                                 : BEFORE;
  const float **to[STEP_ARRAYS] = {&s->grad, &s->out, &s->before, &s->after, &s->momentum};
  const int64_t expect[4] = {l->out, l->in, l->kernel[0], l->kernel[1]};
  for (int k = 0; k < arrays && in->fields.rc == CLI_OK; k++) {
    char name[160];
    format_step_array_name(r, step, l, bias, k, name);
    const bool may_be_missing = r->has_states && (k == GRAD || k == OUT);
    if (may_be_missing && recording_find_array(r, "%s", name) == NULL) continue;
    const ngio_tensor *t = find_float_array(in, name, r->has_parameters ? NULL : expect,
                                            bias || l->is_norm ? 1
                                            : l->is_conv       ? 4
                                                               : 2);
    const int64_t count = l->in * l->out * (l->is_conv ? l->kernel[0] * l->kernel[1] : 1);
    if (t != NULL && r->has_parameters && t->bytes != 4 * count)
      cli_field_error(&in->fields, "array %s has %lld elements, but its parameter %lld", name,
                      (long long)(t->bytes / 4), (long long)count);
    if (t != NULL) *to[k] = t->data;
  }
}

/* Read the observed arrays of one micro-batch. Their names begin with rank, step and micro-batch, as in "r1.s0.m2". */
static void find_batch_arrays(reader *in, int rank, int step, int micro, recording_observed *s) {
  const recording *r = in->r;
  const bool flattens = strcmp(r->system, "chainerkfac") == 0;
  char prefix[64], on[16] = "", part[16] = "";
  if (r->ranks > 1) (void)snprintf(on, sizeof on, "r%d.", rank);
  if (r->micro_batches > 1) (void)snprintf(part, sizeof part, ".m%d", micro);
  (void)snprintf(prefix, sizeof prefix, "%ss%d%s", on, step, part);
  for (int i = 0; i < r->layers && in->fields.rc == CLI_OK; i++) {
    find_observed_arrays(in, prefix, &r->layer[i], &s[i]);
    /* chainerkfac flattens the input of a linear layer, so it counts positions as samples */
    if (flattens) s[i].samples = s[i].rows;
    if (!flattens && s[i].samples != s[0].samples)
      cli_field_error(&in->fields, "step %d: layer %.60s has %lld samples, %.60s has %lld", step,
                      r->layer[i].name, (long long)s[i].samples, r->layer[0].name,
                      (long long)s[0].samples);
  }
}

/* Read the learning rate of each step. A rate may be 0 at the end of a schedule. A positive rate below 1e-30 is an
 * error, because a division by it would overflow f32. */
static double *read_learning_rates(reader *in, const char *key) {
  const ngio_value *list = ngio_get(in->r->root, key);
  double *rate = cli_alloc((size_t)in->r->steps, sizeof *rate);
  for (int i = 0; i < in->r->steps; i++) {
    const ngio_value *x = ngio_at(list, (size_t)i);
    rate[i] = ngio_number_of(x);
    if (!ngio_is_number(x) || (rate[i] != 0 && !(rate[i] >= 1e-30 && rate[i] <= 1e30)))
      cli_field_error(&in->fields, "%s: the value for step %d is neither 0 nor from 1e-30 to 1e30",
                      key, i);
  }
  return rate;
}

/* Set the learning rate of each step of a recording with states. */
static double *read_learning_rate_factors(reader *in, const char *key_of_lr) {
  const ngio_value *list = ngio_get(in->r->root, "lr_factor");
  const double lr = read_real_or(&in->fields, in->r->config, key_of_lr, 0.0);
  double *rate = cli_alloc((size_t)in->r->steps, sizeof *rate);
  for (int i = 0; i < in->r->steps; i++) {
    char key[16];
    (void)snprintf(key, sizeof key, "%d", i);
    rate[i] = lr * read_real_or(&in->fields, list, key, 1.0);
  }
  return rate;
}

/* Allocate r->step and r->observed. The counts in case.json are not trusted: first compare them with the number of
 * arrays in the file, which has at least two arrays for each layer in every micro-batch and every step. */
static void allocate_arrays(reader *in) {
  recording *r = in->r;
  const int64_t arrays = ngio_tensors_count(r->file);
  const int64_t batches = r->has_parameters ? 0 : (int64_t)r->ranks * r->steps * r->micro_batches;
  const int64_t needs = 2 * r->layers * (batches + r->steps);
  if (needs > arrays) {
    cli_field_error(&in->fields,
                    "steps, ranks and micro_batches need at least %lld arrays, expected at most "
                    "%lld",
                    (long long)needs, (long long)arrays);
    return;
  }
  r->step = cli_alloc((size_t)r->steps, 2 * (size_t)r->layers * sizeof *r->step);
  r->observed = cli_alloc((size_t)batches, (size_t)r->layers * sizeof *r->observed);
}

static void read_arrays(reader *in) {
  recording *r = in->r;
  char after[160];
  format_step_array_name(r, 0, &r->layer[0], 0, AFTER, after);
  r->has_updates = !r->has_parameters && recording_find_array(r, "%s", after) != NULL;
  in->fields.where = "case.json: ";
  allocate_arrays(in);
  if (in->fields.rc == CLI_OK && r->has_updates) {
    r->lr = read_learning_rates(in, "lr_steps");
    r->lr_pre = read_learning_rates(in, "lr_pre_steps");
  }
  if (in->fields.rc == CLI_OK && r->has_states) {
    r->lr = read_learning_rate_factors(in, "lr");
    r->lr_pre = read_learning_rate_factors(in, "adam.lr");
    r->other_decay = read_real_or(&in->fields, r->config, "adam.weight_decay", 0.0);
  }
  in->fields.where = "";
  const int64_t batches = r->has_parameters ? 0 : (int64_t)r->ranks * r->steps * r->micro_batches;
  for (int64_t k = 0; k < batches && in->fields.rc == CLI_OK; k++)
    find_batch_arrays(in, (int)(k / r->micro_batches / r->steps),
                      (int)(k / r->micro_batches % r->steps), (int)(k % r->micro_batches),
                      &r->observed[k * r->layers]);
  for (int k = 0; k < 2 * r->steps * r->layers && in->fields.rc == CLI_OK; k++) {
    const shape *l = &r->layer[k / 2 % r->layers];
    if (k % 2 == 0 || l->has_bias) find_step_arrays(in, k / 2 / r->layers, l, k % 2, &r->step[k]);
  }
}

static int skip_file(const char *path, const char *why) {
  cli_note("%s: skipped, not a recording: %s", path, why);
  return -1;
}

int recording_open(const char *path, recording *out) {
  memset(out, 0, sizeof *out);
  static const char ending[] = ".safetensors";
  reader in = {{path, "", CLI_OK}, out};
  char message[1024] = "";
  if (access(path, F_OK) == 0 && !cli_has_ending(path, ending))
    return skip_file(path, "expected a .safetensors file");
  if (ngio_tensors_read(path, NULL, &out->file, message, sizeof message) != NGIO_OK)
    return cli_fail("%s", message);
  const char *text = ngio_tensors_text(out->file, "case.json");
  if (text == NULL) {
    recording_close(out);
    return skip_file(path, "expected case.json in its metadata");
  }
  const char *name = cli_get_base_name(path);
  (void)snprintf(out->name, sizeof out->name, "%.*s", (int)(strlen(name) - sizeof ending + 1),
                 name);
  read_case_json(&in, text);
  if (in.fields.rc == CLI_OK) read_arrays(&in);
  if (in.fields.rc != CLI_OK) recording_close(out);
  return in.fields.rc;
}

void recording_close(recording *r) {
  ngio_json_free(&r->json);
  free(r->layer);
  free(r->is_other);
  free(r->observed);
  free(r->step);
  free(r->lr);
  free(r->lr_pre);
  ngio_tensors_close(&r->file);
  memset(r, 0, sizeof *r);
}
