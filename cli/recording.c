/* recording.c: from a folder or a file to a checked recording.  In: a path.  Out: layers and
 * pointers to every array that a replay reads, all of them present, float32 and of the shape that
 * case.json implies.  A recording is a stranger's file: whatever does not fit is an error that
 * names the file and the array, before anything is computed. */
#include "recording.h"

#include "common/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- case.json -------------------------------------------------------------------------------*/

typedef struct reader {
  const char *path;
  recording *r;
  int rc;
} reader;

__attribute__((format(printf, 2, 3))) static void wrong(reader *in, const char *format, ...) {
  if (in->rc != CLI_OK) return; /* the first mistake is the one to show */
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

static void pair(reader *in, const ngio_value *object, const char *where, const char *key,
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

/* A number; `absent` where there is none, or null. */
static double real(reader *in, const ngio_value *object, const char *key, double absent) {
  const ngio_value *v = ngio_get(object, key);
  if (v == NULL || ngio_is(v, NGIO_NULL)) return absent;
  if (!ngio_is_number(v)) wrong(in, "case.json: config: %s is no number", key);
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
    pair(in, o, where, "kernel", 1, l->kernel);
    pair(in, o, where, "stride", 1, l->stride);
    pair(in, o, where, "padding", 0, l->padding);
  } else if (strcmp(kind, "linear") == 0) {
    l->in = number(in, o, where, "in_features", 1, 1 << 20, -1);
    l->out = number(in, o, where, "out_features", 1, 1 << 20, -1);
  } else {
    wrong(in, "case.json: %skind '%.40s' is not supported yet; it is conv2d, linear or batchnorm",
          where, kind);
  }
}

/* A parameter [rows, ...]: a linear layer; one axis: one output. */
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
  /* a program of one method does not name it */
  r->method =
      ngio_get(r->config, "method") == NULL ? "" : word(in, r->config, "config: ", "method");
  r->weight_decay = real(in, r->config, "weight_decay", 0.0);
  r->loss_scale = real(in, r->config, "loss_scale", 1.0);
  if (!(r->loss_scale > 0)) wrong(in, "case.json: config: loss_scale is no number above 0");
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
    for (int k = 0; k < i;
         k++) { /* distinct names make distinct arrays: the file bounds how many */
      if (strcmp(r->layer[k].name, name) == 0) wrong(in, "case.json: order has %s twice", name);
    }
    read_layer(in, layers, name, &r->layer[i]);
  }
}

/* ---- the arrays ------------------------------------------------------------------------------*/

typedef struct store {
  const ngio_tensors *file;
  const recording_folder *folder;
} store;

static const ngio_tensor *find(const store *from, const char *name) {
  if (from->file != NULL) return ngio_tensors_find(from->file, name);
  return recording_folder_find(from->folder, name);
}

static void shape_text(const int64_t *lengths, int32_t n, char *text, size_t size) {
  size_t at = 0;
  text[0] = 0;
  for (int32_t i = 0; i < n && at < size; i++) {
    at += (size_t)snprintf(text + at, size - at, "%s%lld", i > 0 ? "," : "", (long long)lengths[i]);
  }
}

/* False and told if there is no such array. */
static bool there(reader *in, const store *from, const char *name) {
  if (find(from, name) == NULL) wrong(in, "array %s is missing", name);
  return in->rc == CLI_OK;
}

/* The float32 array `name`; a negative entry of `expect` stands for any length. */
static const ngio_tensor *fetch(reader *in, const store *from, const char *name,
                                const int64_t *expect, int32_t n) {
  if (in->rc != CLI_OK) return NULL;
  if (!there(in, from, name)) return NULL;
  const ngio_tensor *t = find(from, name);
  if (t->dtype != NGIO_F32) {
    wrong(in, "array %s is not float32", name);
    return NULL;
  }
  bool fits = expect == NULL || t->ndim == n;
  for (int32_t i = 0; expect != NULL && fits && i < n; i++) {
    fits = expect[i] < 0 ? t->shape[i] > 0 : t->shape[i] == expect[i];
  }
  if (!fits) {
    char has[128], wants[128];
    shape_text(t->shape, t->ndim, has, sizeof has);
    shape_text(expect, n, wants, sizeof wants);
    wrong(in, "array %s is [%s], expected [%s]", name, has, wants);
    return NULL;
  }
  return t;
}

/* [samples, channels, height, width] or [samples, features], the gradient as the input. */
static void take_norm(reader *in, const store *from, const char *prefix, shape *l,
                      recording_shown *s) {
  char name[160];
  (void)snprintf(name, sizeof name, "%s.%s.a", prefix, l->name);
  const ngio_tensor *a = fetch(in, from, name, NULL, 0);
  if (a == NULL) return;
  if ((a->ndim != 2 && a->ndim != 4) || a->shape[1] != l->in || a->bytes == 0) {
    char has[128];
    shape_text(a->shape, a->ndim, has, sizeof has);
    wrong(in, "array %s is [%s], expected [samples,%lld] or [samples,%lld,height,width]", name, has,
          (long long)l->in, (long long)l->in);
    return;
  }
  s->a = a->data;
  s->samples = s->rows = a->shape[0];
  for (int k = 0; k < 2 && a->ndim == 4; k++) {
    l->image[k] = a->shape[2 + k];
  }
  (void)snprintf(name, sizeof name, "%s.%s.g", prefix, l->name);
  const ngio_tensor *g = fetch(in, from, name, a->shape, a->ndim);
  if (g != NULL) s->g = g->data;
}

static void take_shown(reader *in, const store *from, const char *prefix, shape *l,
                       recording_shown *s) {
  char name[160];
  if (l->norm) {
    take_norm(in, from, prefix, l, s);
    return;
  }
  (void)snprintf(name, sizeof name, "%s.%s.a", prefix, l->name);
  if (l->conv) {
    const bool known = l->image[0] > 0;
    const ngio_tensor *a =
        fetch(in, from, name,
              (int64_t[]){-1, l->in, known ? l->image[0] : -1, known ? l->image[1] : -1}, 4);
    if (a == NULL) return;
    s->a = a->data;
    s->samples = s->rows = a->shape[0];
    int64_t to[2];
    for (int k = 0; k < 2; k++) {
      l->image[k] = a->shape[2 + k];
      to[k] = l->image[k] + 2 * l->padding[k] - l->kernel[k];
      if (to[k] < 0) wrong(in, "array %s: the image is smaller than the kernel", name);
      to[k] = to[k] / l->stride[k] + 1;
    }
    (void)snprintf(name, sizeof name, "%s.%s.g", prefix, l->name);
    const ngio_tensor *g = fetch(in, from, name, (int64_t[]){s->samples, l->out, to[0], to[1]}, 4);
    if (g == NULL) return;
    s->g = g->data;
    return;
  }
  const ngio_tensor *a = fetch(in, from, name, NULL, 0);
  if (a == NULL) return;
  int64_t expect[NGIO_MAX_DIMS] = {0};
  for (int32_t i = 0; i < a->ndim; i++)
    expect[i] = a->shape[i];
  int64_t positions = a->ndim >= 2 && l->in > 0 ? a->bytes / 4 / l->in : 0;
  if (a->ndim < 2 || a->shape[a->ndim - 1] != l->in || positions < 1) {
    char has[128];
    shape_text(a->shape, a->ndim, has, sizeof has);
    wrong(in, "array %s is [%s], expected [samples,...,%lld]", name, has, (long long)l->in);
    return;
  }
  s->a = a->data;
  s->samples = a->shape[0];
  s->rows = positions;
  expect[a->ndim - 1] = l->out;
  (void)snprintf(name, sizeof name, "%s.%s.g", prefix, l->name);
  const ngio_tensor *g = fetch(in, from, name, expect, a->ndim);
  if (g != NULL) s->g = g->data;
}

/* What a step has of one parameter: its gradient, the result and, where they are looked at, the weight before and
 * after, and the momentum. */
typedef struct step_name {
  char text[160];
} step_name;
enum { GRAD, OUT, BEFORE, AFTER, MOMENTUM, STEP_ARRAYS };

static int step_arrays(const recording *r) {
  return r->updates ? STEP_ARRAYS : r->parameters || r->weight_decay != 0 ? AFTER : BEFORE;
}

static step_name name_in(const recording *r, int step, const shape *l, int bias, int k) {
  static const char *const ending[STEP_ARRAYS] = {"grad", "out", "before", "after", "v"};
  const char *which = l->norm ? (bias ? ".beta" : ".gamma") : bias ? ".bias" : ".weight";
  step_name n;
  (void)snprintf(n.text, sizeof n.text, "s%d.%s%s.%s", step, l->name, r->parameters ? "" : which,
                 ending[k]);
  return n;
}

static void take_parameter(reader *in, const store *from, int step, const shape *l,
                           recording_step *s) {
  const float **to[3] = {&s->grad, &s->out, &s->before};
  for (int k = 0; k < step_arrays(in->r); k++) {
    const step_name name = name_in(in->r, step, l, 0, k);
    const ngio_tensor *t = fetch(in, from, name.text, NULL, 0);
    if (t == NULL) return;
    if (t->bytes != 4 * l->in * l->out) {
      wrong(in, "array %s has %lld elements, its parameter %lld", name.text,
            (long long)(t->bytes / 4), (long long)(l->in * l->out));
      return;
    }
    *to[k] = t->data;
  }
}

static void take_step(reader *in, const store *from, int step, const shape *l, recording_step *s) {
  const float **to[2][STEP_ARRAYS] = {
      {&s->grad, &s->out, &s->before, &s->after, &s->v},
      {&s->bias_grad, &s->bias_out, &s->bias_before, &s->bias_after, &s->bias_v}};
  for (int bias = 0; bias < (l->bias ? 2 : 1); bias++) {
    for (int k = 0; k < step_arrays(in->r); k++) {
      const step_name name = name_in(in->r, step, l, bias, k);
      const int64_t expect[4] = {l->out, l->in, l->kernel[0], l->kernel[1]};
      const ngio_tensor *t = fetch(in, from, name.text, expect,
                                   bias || l->norm ? 1
                                   : l->conv       ? 4
                                                   : 2);
      if (t != NULL) *to[bias][k] = t->data;
    }
  }
}

/* "r1.s0.m2": what the names of the arrays of one micro-batch begin with. */
typedef struct prefix {
  char text[64];
} prefix;

static prefix prefix_of(const recording *r, int rank, int step, int micro) {
  prefix p;
  char on[16] = "", part[16] = "";
  if (r->ranks > 1) (void)snprintf(on, sizeof on, "r%d.", rank);
  if (r->micro_batches > 1) (void)snprintf(part, sizeof part, ".m%d", micro);
  (void)snprintf(p.text, sizeof p.text, "%ss%d%s", on, step, part);
  return p;
}

static bool shown_there(reader *in, const store *from, const char *before) {
  static const char *const after[2] = {"a", "g"};
  const recording *r = in->r;
  for (int i = 0; i < r->layers * 2; i++) {
    char name[160];
    (void)snprintf(name, sizeof name, "%s.%s.%s", before, r->layer[i / 2].name, after[i % 2]);
    if (!there(in, from, name)) return false;
  }
  return true;
}

static bool step_there(reader *in, const store *from, int step) {
  const recording *r = in->r;
  for (int i = 0; i < r->layers; i++) {
    for (int bias = 0; bias < (r->layer[i].bias ? 2 : 1); bias++) {
      for (int k = 0; k < step_arrays(r); k++) {
        if (!there(in, from, name_in(r, step, &r->layer[i], bias, k).text)) return false;
      }
    }
  }
  return true;
}

/* Before memory is taken by the numbers of case.json: they are a stranger's, but every array they ask
 * for has a name of its own and must be in the file.  It ends at the first that is not. */
static bool all_there(reader *in, const store *from) {
  const recording *r = in->r;
  for (int step = 0; step < r->steps; step++) {
    for (int rank = 0; rank < r->ranks && !r->parameters; rank++) {
      for (int m = 0; m < r->micro_batches; m++) {
        if (!shown_there(in, from, prefix_of(r, rank, step, m).text)) return false;
      }
    }
    if (!step_there(in, from, step)) return false;
  }
  return true;
}

/* A learning rate a step; 0 at the end of a schedule.  Below 1e-30 what divides by it has no f32. */
static double *take_rates(reader *in, const char *key) {
  const ngio_value *list = ngio_get(in->r->root, key);
  double *rate = cli_take((size_t)in->r->steps, sizeof *rate);
  const ngio_value *x = ngio_count(list) > 0 ? ngio_first(list) : NULL;
  for (int i = 0; i < in->r->steps; i++, x = x != NULL ? ngio_next(list, x) : NULL) {
    rate[i] = ngio_number_of(x);
    if (!ngio_is_number(x) || (rate[i] != 0 && !(rate[i] >= 1e-30 && rate[i] <= 1e30)))
      wrong(in, "case.json: %s has neither 0 nor a number from 1e-30 to 1e30 for step %d", key, i);
  }
  return rate;
}

/* Of the first parameter, which stands for all: they must all be there then. */
static void find_updates(reader *in, const store *from) {
  recording *r = in->r;
  if (r->parameters || r->layers < 1) return;
  r->updates = find(from, name_in(r, 0, &r->layer[0], 0, AFTER).text) != NULL;
}

static void take_all(reader *in, const store *from) {
  recording *r = in->r;
  find_updates(in, from);
  if (!all_there(in, from)) return;
  if (r->updates) { /* after what bounds the steps */
    r->lr = take_rates(in, "lr_steps");
    r->lr_pre = take_rates(in, "lr_pre_steps");
    r->momentum = real(in, r->config, "momentum", 0.9);
    r->adjust_momentum = ngio_is(ngio_get(r->config, "adjust_momentum"), NGIO_TRUE);
    if (!(r->momentum >= 0)) wrong(in, "case.json: config: momentum is no number from 0 on");
    if (in->rc != CLI_OK) return;
  }
  r->step = cli_take((size_t)r->steps, (size_t)r->layers * sizeof *r->step);
  for (int step = 0; step < r->steps && r->parameters; step++) {
    for (int i = 0; i < r->layers; i++) {
      take_parameter(in, from, step, &r->layer[i], &r->step[step * r->layers + i]);
    }
  }
  if (r->parameters) return;
  r->shown = cli_take((size_t)r->ranks * (size_t)r->steps,
                      (size_t)r->micro_batches * (size_t)r->layers * sizeof *r->shown);
  recording_shown *s = r->shown;
  for (int rank = 0; rank < r->ranks; rank++) {
    for (int step = 0; step < r->steps; step++) {
      for (int m = 0; m < r->micro_batches; m++, s += r->layers) {
        const prefix p = prefix_of(r, rank, step, m);
        for (int i = 0; i < r->layers; i++) {
          take_shown(in, from, p.text, &r->layer[i], &s[i]);
          if (in->rc != CLI_OK) return;
        }
      }
    }
  }
  for (int step = 0; step < r->steps; step++) {
    for (int i = 0; i < r->layers; i++) {
      take_step(in, from, step, &r->layer[i], &r->step[step * r->layers + i]);
    }
  }
}

static void name_of(const char *path, char *name, size_t size) {
  static const char ending[] = ".safetensors";
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/')
    n--;
  size_t start = n;
  while (start > 0 && path[start - 1] != '/')
    start--;
  if (n - start > sizeof ending - 1 &&
      strncmp(path + n - (sizeof ending - 1), ending, sizeof ending - 1) == 0) {
    n -= sizeof ending - 1;
  }
  (void)snprintf(name, size, "%.*s", (int)(n - start), path + start);
}

int recording_open(const char *path, recording *out) {
  memset(out, 0, sizeof *out);
  reader in = {path, out, CLI_OK};
  struct stat st;
  char message[1024] = "";
  const char *text = NULL;
  if (stat(path, &st) != 0) return cli_bad("%s: there is no such file or folder", path);
  if (S_ISDIR(st.st_mode)) {
    in.rc = recording_folder_read(path, &out->folder);
    text = out->folder.text;
  } else if (ngio_tensors_read(path, NULL, &out->file, message, sizeof message) != NGIO_OK) {
    in.rc = cli_bad("%s", message);
  } else {
    text = ngio_tensors_text(out->file, "case.json");
    if (text == NULL) wrong(&in, "no recording: its metadata has no case.json");
  }
  name_of(path, out->name, sizeof out->name);
  if (in.rc == CLI_OK) read_case(&in, text);
  if (in.rc == CLI_OK) in.rc = recording_check(out, path);
  if (in.rc == CLI_OK) take_all(&in, &(store){out->file, &out->folder});
  if (in.rc == CLI_OK && !out->parameters) in.rc = recording_check_samples(out, path);
  if (in.rc != CLI_OK) recording_close(out);
  return in.rc;
}

void recording_close(recording *r) {
  ngio_json_free(&r->json);
  free(r->layer);
  free(r->shown);
  free(r->step);
  free(r->lr);
  free(r->lr_pre);
  ngio_tensors_close(&r->file);
  recording_folder_free(&r->folder);
  memset(r, 0, sizeof *r);
}
