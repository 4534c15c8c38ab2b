/* recording.c: read a recording and check that every array that a replay reads is present, is float32 and has the
 * shape that case.json implies.  The file is not trusted: recording_open reports an entry that does not fit, with
 * the names of the file and the array. */
#include "recording.h"

#include "common/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- case.json -------------------------------------------------------------------------------*/

typedef struct reader {
  const char *path;
  recording *r;
  int rc;
} reader;

__attribute__((format(printf, 2, 3))) static void wrong(reader *in, const char *format, ...) {
  if (in->rc != CLI_OK) return; /* report the first mistake only */
  char text[512];
  va_list args;
  va_start(args, format);
  /* The analyzer loses va_start when it inlines a variadic function.
   * NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
  (void)vsnprintf(text, sizeof text, format, args);
  va_end(args);
  in->rc = cli_bad("%s: %s", in->path, text);
}

static int64_t number(reader *in, const ngio_value *object, const char *where, const char *key,
                      int64_t lower, int64_t upper, int64_t absent) {
  const ngio_value *v = ngio_get(object, key);
  if (v == NULL && absent >= 0) return absent;
  if (!ngio_is(v, NGIO_INTEGER) || ngio_integer_of(v) < lower || ngio_integer_of(v) > upper) {
    wrong(in, "case.json: %s%s is no whole number from %lld to %lld", where, key, (long long)lower,
          (long long)upper);
    return lower;
  }
  return ngio_integer_of(v);
}

static void read_pair(reader *in, const ngio_value *object, const char *where, const char *key,
                      int64_t lower, int64_t out[2]) {
  const ngio_value *v = ngio_get(object, key);
  for (size_t k = 0; k < 2; k++) {
    const ngio_value *x = ngio_at(v, k);
    out[k] = ngio_integer_of(x);
    if (ngio_count(v) != 2 || !ngio_is(x, NGIO_INTEGER) || out[k] < lower || out[k] > 4096) {
      wrong(in, "case.json: %s%s is no pair of whole numbers from %lld to 4096", where, key,
            (long long)lower);
      out[k] = lower > 0 ? lower : 0;
    }
  }
}

static const char *word(reader *in, const ngio_value *object, const char *where, const char *key) {
  const char *s = ngio_text_of(ngio_get(object, key));
  if (s == NULL) wrong(in, "case.json: %s%s is no text", where, key);
  return s != NULL ? s : "";
}

/* Return the number of a key; `absent` if the key is missing or null. */
static double real(reader *in, const ngio_value *object, const char *where, const char *key,
                   double absent) {
  const ngio_value *v = ngio_get(object, key);
  if (v == NULL || ngio_is(v, NGIO_NULL)) return absent;
  if (!ngio_is_number(v)) wrong(in, "case.json: %s%s is no number", where, key);
  return ngio_number_of(v);
}

static void read_layer(reader *in, const ngio_value *layers, const char *name, shape *l) {
  const ngio_value *o = ngio_get(layers, name);
  char where[128];
  (void)snprintf(where, sizeof where, "layer %.60s: ", name);
  (void)snprintf(l->name, sizeof l->name, "%s", name);
  if (!ngio_is(o, NGIO_OBJECT)) {
    wrong(in, "case.json: layer %s of \"order\" is not in \"layers\"", name);
    return;
  }
  const char *kind = word(in, o, where, "kind");
  if (strcmp(kind, "batchnorm") == 0) {
    l->norm = l->bias = true;
    l->in = l->out = number(in, o, where, "num_features", 1, 1 << 20, -1);
    l->eps = ngio_number_of(ngio_get(o, "eps"));
    if (!(l->eps > 0)) wrong(in, "case.json: %seps is no number above 0", where);
    return;
  }
  const ngio_value *bias = ngio_get(o, "bias");
  if (!ngio_is_flag(bias)) wrong(in, "case.json: %sbias is neither true nor false", where);
  l->bias = ngio_is(bias, NGIO_TRUE);
  l->conv = strcmp(kind, "conv2d") == 0;
  if (l->conv) {
    l->in = number(in, o, where, "in_channels", 1, 1 << 20, -1);
    l->out = number(in, o, where, "out_channels", 1, 1 << 20, -1);
    read_pair(in, o, where, "kernel", 1, l->kernel);
    read_pair(in, o, where, "stride", 1, l->stride);
    read_pair(in, o, where, "padding", 0, l->padding);
  } else if (strcmp(kind, "linear") == 0) {
    l->in = number(in, o, where, "in_features", 1, 1 << 20, -1);
    l->out = number(in, o, where, "out_features", 1, 1 << 20, -1);
  } else {
    wrong(in, "case.json: %skind '%.40s' is not supported, expected conv2d, linear or batchnorm",
          where, kind);
  }
}

/* Describe parameter i, [rows, ...], as a linear layer with `rows` outputs; a parameter of one axis has one output. */
static void read_parameter(reader *in, const ngio_value *o, int i, shape *l) {
  enum { MOST = 1 << 30 };
  const char *name = ngio_text_of(ngio_get(o, "name"));
  const ngio_value *lengths = ngio_get(o, "shape");
  const size_t axes = ngio_count(lengths);
  if (name == NULL || strlen(name) > 60 || axes < 1 || axes > 4) {
    wrong(in, "case.json: entry %d of parameters has no name of at most 60 letters or no shape", i);
    return;
  }
  (void)snprintf(l->name, sizeof l->name, "%s", name);
  l->in = l->out = l->positions = 1;
  for (size_t k = 0; k < axes; k++) {
    const ngio_value *x = ngio_at(lengths, k);
    if (!ngio_is(x, NGIO_INTEGER) || ngio_integer_of(x) < 1 || ngio_integer_of(x) > 1 << 20) {
      wrong(in, "case.json: parameter %s: a length is no whole number from 1 to 1048576", name);
      return;
    }
    *(k == 0 && axes > 1 ? &l->out : &l->in) *= ngio_integer_of(x);
    if (l->in > MOST) {
      wrong(in, "case.json: parameter %s has more than %d elements in a row", name, MOST);
      return;
    }
  }
}

static void read_parameters(reader *in, const ngio_value *list) {
  recording *r = in->r;
  if (!ngio_is(list, NGIO_ARRAY) || ngio_count(list) < 1 || ngio_count(list) > 4096) {
    wrong(in, "case.json: parameters is no list of 1 to 4096");
  }
  if (r->ranks > 1 || r->micro_batches > 1) {
    wrong(in, "case.json: parameters of several ranks or micro-batches are not supported");
  }
  if (in->rc != CLI_OK) return;
  r->parameters = true;
  r->layers = (int)ngio_count(list);
  r->layer = cli_take((size_t)r->layers, sizeof *r->layer);
  for (int i = 0; i < r->layers && in->rc == CLI_OK; i++) {
    read_parameter(in, ngio_at(list, (size_t)i), i, &r->layer[i]);
    for (int k = 0; k < i && in->rc == CLI_OK; k++) {
      if (strcmp(r->layer[k].name, r->layer[i].name) == 0)
        wrong(in, "case.json: parameters has %s twice", r->layer[i].name);
    }
  }
}

static void read_case(reader *in, const char *text) {
  recording *r = in->r;
  char message[160];
  if (ngio_json_parse(text, strlen(text), &r->json, message, sizeof message) != NGIO_OK) {
    wrong(in, "case.json is no JSON: %s", message);
    return;
  }
  r->root = ngio_json_root(r->json);
  r->config = ngio_get(r->root, "config");
  const ngio_value *layers = ngio_get(r->root, "layers");
  const ngio_value *order = ngio_get(r->root, "order");
  if (!ngio_is(r->config, NGIO_OBJECT)) wrong(in, "case.json: config is no object");
  if (!ngio_is(layers, NGIO_OBJECT)) wrong(in, "case.json: layers is no object");
  if (!ngio_is(order, NGIO_ARRAY) || ngio_count(order) < 1 || ngio_count(order) > 4096) {
    wrong(in, "case.json: order is no list of 1 to 4096 layers");
  }
  if (in->rc != CLI_OK) return;
  r->system = word(in, r->config, "config: ", "system");
  /* a recording of a program with only one method has no entry "method" */
  r->method =
      ngio_get(r->config, "method") == NULL ? "" : word(in, r->config, "config: ", "method");
  r->tolerance = real(in, r->root, "", "tolerance", 1e-5);
  r->state_tolerance = real(in, r->root, "", "state_tolerance", r->tolerance);
  r->reason = ngio_get(r->root, "tolerance_reason") == NULL
                  ? ""
                  : word(in, r->root, "", "tolerance_reason");
  r->weight_decay = real(in, r->config, "config: ", "weight_decay", 0.0);
  r->loss_scale = real(in, r->config, "config: ", "loss_scale", 1.0);
  if (!(r->loss_scale > 0)) wrong(in, "case.json: config: loss_scale is no number above 0");
  /* Chainer's decay hook sees the scaled gradient.  Before Chainer 7 it adds rate * w, later rate * w * loss_scale. */
  const char *version = ngio_text_of(ngio_get(r->root, "chainer"));
  if (version != NULL && strtol(version, NULL, 10) < 7) r->weight_decay /= r->loss_scale;
  r->steps = (int)number(in, r->root, "", "steps", 1, 100000, -1);
  r->micro_batches = (int)number(in, r->root, "", "micro_batches", 1, 1000, 1);
  r->ranks = (int)number(in, r->root, "", "ranks", 1, 64, 1);
  (void)number(in, r->root, "", "batch", 1, 1 << 24, -1);
  const ngio_value *parameters = ngio_get(r->root, "parameters");
  if (parameters != NULL) {
    read_parameters(in, parameters);
    return;
  }
  r->layers = (int)ngio_count(order);
  r->layer = cli_take((size_t)r->layers, sizeof *r->layer);
  for (int i = 0; in->rc == CLI_OK && i < r->layers; i++) {
    const char *name = ngio_text_of(ngio_at(order, (size_t)i));
    if (name == NULL || strlen(name) > 60) {
      wrong(in, "case.json: entry %d of order is no name of at most 60 letters", i);
      return;
    }
    for (int k = 0; k < i; k++) { /* make_room assumes that no two layers share arrays */
      if (strcmp(r->layer[k].name, name) == 0) wrong(in, "case.json: order has %s twice", name);
    }
    read_layer(in, layers, name, &r->layer[i]);
  }
}

/* ---- the arrays ------------------------------------------------------------------------------*/

const ngio_tensor *recording_array(const recording *r, const char *format, ...) {
  char name[160];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(name, sizeof name, format, args);
  va_end(args);
  return ngio_tensors_find(r->file, name);
}

static void shape_text(const int64_t *lengths, int32_t n, char text[128]) {
  int at = 0;
  text[0] = 0;
  for (int32_t i = 0; i < n && at < 100; i++)
    at += snprintf(text + at, 128 - (size_t)at, "%s%lld", i > 0 ? "," : "", (long long)lengths[i]);
}

/* Return the float32 array `name` with the shape expect[n] (an entry < 0: any length; expect NULL: any shape). */
static const ngio_tensor *fetch(reader *in, const char *name, const int64_t *expect, int32_t n) {
  const ngio_tensor *t = in->rc == CLI_OK ? recording_array(in->r, "%s", name) : NULL;
  if (t == NULL) wrong(in, "array %s is missing", name);
  if (t != NULL && t->dtype != NGIO_F32) wrong(in, "array %s is not float32", name);
  bool fits = t != NULL && (expect == NULL || t->ndim == n);
  for (int32_t i = 0; expect != NULL && fits && i < n; i++)
    fits = expect[i] < 0 ? t->shape[i] > 0 : t->shape[i] == expect[i];
  if (t != NULL && !fits) {
    char has[128], wants[128];
    shape_text(t->shape, t->ndim, has);
    shape_text(expect, n, wants);
    wrong(in, "array %s is [%s], expected [%s]", name, has, wants);
  }
  return in->rc == CLI_OK ? t : NULL;
}

/* Return the input `name` of a layer, and set g to the shape that the output gradient of the layer must have. */
static const ngio_tensor *fetch_input(reader *in, const char *name, shape *l,
                                      int64_t g[NGIO_MAX_DIMS]) {
  const bool known = l->conv && l->image[0] > 0;
  const int64_t expect[4] = {-1, l->in, known ? l->image[0] : -1, known ? l->image[1] : -1};
  const ngio_tensor *a = fetch(in, name, l->conv ? expect : NULL, 4);
  if (a == NULL) return NULL;
  const int32_t n = a->ndim, features = l->norm ? 1 : n - 1;
  if (!l->conv && (n < 2 || (l->norm && n != 2 && n != 4) || a->shape[features] != l->in ||
                   a->bytes < 4 * l->in)) {
    char has[128];
    shape_text(a->shape, n, has);
    if (l->norm) {
      wrong(in, "array %s is [%s], expected [samples,%lld] or [samples,%lld,height,width]", name,
            has, (long long)l->in, (long long)l->in);
    } else {
      wrong(in, "array %s is [%s], expected [samples,...,%lld]", name, has, (long long)l->in);
    }
    return NULL;
  }
  memcpy(g, a->shape, (size_t)n * sizeof *g);
  if (!l->norm) g[l->conv ? 1 : n - 1] = l->out;
  for (int k = 0; k < 2 && (l->conv || l->norm) && n == 4; k++) {
    l->image[k] = a->shape[2 + k];
    if (!l->conv) continue;
    g[2 + k] = l->image[k] + 2 * l->padding[k] - l->kernel[k];
    if (g[2 + k] < 0) wrong(in, "array %s: the image is smaller than the kernel", name);
    g[2 + k] = g[2 + k] / l->stride[k] + 1;
  }
  return a;
}

static void take_observed(reader *in, const char *prefix, shape *l, recording_observed *s) {
  char name[160];
  int64_t expect[NGIO_MAX_DIMS] = {0};
  (void)snprintf(name, sizeof name, "%s.%s.a", prefix, l->name);
  const ngio_tensor *a = fetch_input(in, name, l, expect);
  if (a == NULL) return;
  (void)snprintf(name, sizeof name, "%s.%s.g", prefix, l->name);
  const ngio_tensor *g = fetch(in, name, expect, a->ndim);
  if (g == NULL) return;
  s->a = a->data;
  s->g = g->data;
  s->samples = a->shape[0];
  s->rows = l->conv || l->norm ? s->samples : a->bytes / 4 / l->in;
}

/* The arrays of one weight or bias in one step (recording_step). */
enum { GRAD, OUT, BEFORE, AFTER, MOMENTUM, STEP_ARRAYS };

static void step_name(const recording *r, int step, const shape *l, int bias, int k,
                      char name[160]) {
  static const char *const ending[STEP_ARRAYS] = {"grad", "out", "before", "after", "v"};
  const char *which = l->norm ? (bias ? ".beta" : ".gamma") : bias ? ".bias" : ".weight";
  (void)snprintf(name, 160, "s%d.%s%s.%s", step, l->name, r->parameters ? "" : which, ending[k]);
}

static void take_step(reader *in, int step, const shape *l, int bias, recording_step *s) {
  const recording *r = in->r;
  const int arrays = r->updates                              ? STEP_ARRAYS
                     : r->parameters || r->weight_decay != 0 ? AFTER
                                                             : BEFORE;
  const float **to[STEP_ARRAYS] = {&s->grad, &s->out, &s->before, &s->after, &s->v};
  const int64_t expect[4] = {l->out, l->in, l->kernel[0], l->kernel[1]};
  for (int k = 0; k < arrays && in->rc == CLI_OK; k++) {
    char name[160];
    step_name(r, step, l, bias, k, name);
    const ngio_tensor *t = fetch(in, name, r->parameters ? NULL : expect,
                                 bias || l->norm ? 1
                                 : l->conv       ? 4
                                                 : 2);
    if (t != NULL && r->parameters && t->bytes != 4 * l->in * l->out)
      wrong(in, "array %s has %lld elements, its parameter %lld", name, (long long)(t->bytes / 4),
            (long long)(l->in * l->out));
    if (t != NULL) *to[k] = t->data;
  }
}

/* Read the observed arrays of one micro-batch; their names begin with rank, step and micro-batch, as in "r1.s0.m2". */
static void take_micro_batch(reader *in, int rank, int step, int micro, recording_observed *s) {
  const recording *r = in->r;
  const bool flattens = strcmp(r->system, "chainerkfac") == 0;
  char prefix[64], on[16] = "", part[16] = "";
  if (r->ranks > 1) (void)snprintf(on, sizeof on, "r%d.", rank);
  if (r->micro_batches > 1) (void)snprintf(part, sizeof part, ".m%d", micro);
  (void)snprintf(prefix, sizeof prefix, "%ss%d%s", on, step, part);
  for (int i = 0; i < r->layers && in->rc == CLI_OK; i++) {
    take_observed(in, prefix, &r->layer[i], &s[i]);
    /* chainerkfac flattens the input of a linear layer and counts positions as samples */
    if (flattens) s[i].samples = s[i].rows;
    if (!flattens && s[i].samples != s[0].samples)
      wrong(in, "step %d: layer %.60s has %lld samples, %.60s has %lld", step, r->layer[i].name,
            (long long)s[i].samples, r->layer[0].name, (long long)s[0].samples);
  }
}

/* Read the learning rate of each step.  A rate may be 0 at the end of a schedule; smaller positive rates than 1e-30 are
 * errors, because a division by them overflows f32. */
static double *take_rates(reader *in, const char *key) {
  const ngio_value *list = ngio_get(in->r->root, key);
  double *rate = cli_take((size_t)in->r->steps, sizeof *rate);
  for (int i = 0; i < in->r->steps; i++) {
    const ngio_value *x = ngio_at(list, (size_t)i);
    rate[i] = ngio_number_of(x);
    if (!ngio_is_number(x) || (rate[i] != 0 && !(rate[i] >= 1e-30 && rate[i] <= 1e30)))
      wrong(in, "case.json: %s has neither 0 nor a number from 1e-30 to 1e30 for step %d", key, i);
  }
  return rate;
}

/* Allocate r->step and r->observed.  First compare the counts of case.json, which are not trusted, with the number of
 * arrays in the file: every micro-batch and every step has at least two arrays for each layer. */
static void make_room(reader *in) {
  recording *r = in->r;
  const int64_t arrays = ngio_tensors_count(r->file);
  const int64_t batches = r->parameters ? 0 : (int64_t)r->ranks * r->steps * r->micro_batches;
  const int64_t needs = 2 * r->layers * (batches + r->steps);
  if (needs > arrays) {
    wrong(in,
          "case.json: steps, ranks and micro_batches need at least %lld arrays, expected at most "
          "%lld",
          (long long)needs, (long long)arrays);
    return;
  }
  r->step = cli_take((size_t)r->steps, 2 * (size_t)r->layers * sizeof *r->step);
  r->observed = cli_take((size_t)batches, (size_t)r->layers * sizeof *r->observed);
}

static void take_all(reader *in) {
  recording *r = in->r;
  char after[160];
  step_name(r, 0, &r->layer[0], 0, AFTER, after);
  r->updates = !r->parameters && recording_array(r, "%s", after) != NULL;
  make_room(in);
  if (in->rc == CLI_OK && r->updates) {
    r->lr = take_rates(in, "lr_steps");
    r->lr_pre = take_rates(in, "lr_pre_steps");
    r->momentum = real(in, r->config, "config: ", "momentum", 0.9);
    r->adjust_momentum = ngio_is(ngio_get(r->config, "adjust_momentum"), NGIO_TRUE);
    if (!(r->momentum >= 0)) wrong(in, "case.json: config: momentum is no number from 0 on");
  }
  const int64_t batches = r->parameters ? 0 : (int64_t)r->ranks * r->steps * r->micro_batches;
  for (int64_t k = 0; k < batches && in->rc == CLI_OK; k++) {
    take_micro_batch(in, (int)(k / r->micro_batches / r->steps),
                     (int)(k / r->micro_batches % r->steps), (int)(k % r->micro_batches),
                     &r->observed[k * r->layers]);
  }
  for (int k = 0; k < 2 * r->steps * r->layers && in->rc == CLI_OK; k++) {
    const shape *l = &r->layer[k / 2 % r->layers];
    if (k % 2 == 0 || l->bias) take_step(in, k / 2 / r->layers, l, k % 2, &r->step[k]);
  }
}

/* Set `name` to the last component of the path, without ".safetensors". */
static void name_of(const char *path, char *name, size_t size) {
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/')
    n--;
  size_t start = n;
  while (start > 0 && path[start - 1] != '/')
    start--;
  (void)snprintf(name, size, "%.*s", (int)(n - start), path + start);
  char *ending = strstr(name, ".safetensors");
  if (ending != NULL && ending != name) *ending = 0;
}

static bool ends_in(const char *path, const char *ending) {
  const size_t n = strlen(path), m = strlen(ending);
  return n > m && strcmp(path + n - m, ending) == 0;
}

static int no_recording(const char *path, const char *why) {
  cli_note("%s: skipped, is no recording: %s", path, why);
  return -1;
}

int recording_open(const char *path, recording *out) {
  memset(out, 0, sizeof *out);
  reader in = {path, out, CLI_OK};
  char message[1024] = "";
  if (access(path, F_OK) == 0 && !ends_in(path, ".safetensors"))
    return no_recording(path, "expected a .safetensors file");
  if (ngio_tensors_read(path, NULL, &out->file, message, sizeof message) != NGIO_OK)
    return cli_bad("%s", message);
  const char *text = ngio_tensors_text(out->file, "case.json");
  if (text == NULL) {
    recording_close(out);
    return no_recording(path, "expected case.json in its metadata");
  }
  name_of(path, out->name, sizeof out->name);
  if (in.rc == CLI_OK) read_case(&in, text);
  if (in.rc == CLI_OK) take_all(&in);
  if (in.rc != CLI_OK) recording_close(out);
  return in.rc;
}

void recording_close(recording *r) {
  ngio_json_free(&r->json);
  free(r->layer);
  free(r->observed);
  free(r->step);
  free(r->lr);
  free(r->lr_pre);
  ngio_tensors_close(&r->file);
  memset(r, 0, sizeof *r);
}
