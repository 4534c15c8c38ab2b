/* shapes.c: list the layers of the trainer's networks (for the data set of the paper), and of JSON files. */
#include "shapes.h"

#include "common/cli.h"
#include "nn/models.h"
#include "train/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LAYERS = 4096, LARGEST = 1 << 20 };

static int64_t at_least_one(int64_t x) { return x > 0 ? x : 1; }

/* Return the size of the dilated kernel along axis k: the pixels from the first to the last input of one output. */
static int64_t compute_dilated_size(const shape *l, int k) {
  return at_least_one(l->dilation[k]) * (l->kernel[k] - 1) + 1;
}

static int64_t count_axis_positions(const shape *l, int k) {
  return (l->image[k] + 2 * l->padding[k] - compute_dilated_size(l, k)) / l->stride[k] + 1;
}

static void set_factor_orders(shape *l) {
  const int64_t groups = at_least_one(l->groups);
  if (l->is_conv) l->positions = count_axis_positions(l, 0) * count_axis_positions(l, 1);
  l->p =
      (l->is_conv ? l->in / groups * l->kernel[0] * l->kernel[1] : l->in) + (l->has_bias ? 1 : 0);
  l->q = l->out / groups;
}

/* ---- a network -------------------------------------------------------------------------------*/

void shapes_set_norm(shape *l, int64_t channels, ng_norm_kind kind, double eps) {
  l->is_norm = l->has_bias = true;
  l->norm_kind = kind;
  l->in = l->out = channels;
  l->eps = eps;
  l->positions = 1;
}

/* Set l to an embedding. p stays 0, because its factor A is the diagonal of token counts. */
void shapes_set_embedding(shape *l, int64_t tokens, int64_t features, int64_t positions) {
  l->is_embedding = true;
  l->in = tokens;
  l->out = l->q = features;
  l->positions = positions;
}

static int list_network_layers(const char *model, shapes *out) {
  model_task task;
  bool reconstructs = false;
  if (model_default_task(model, &task) != CLI_OK) return CLI_BAD;
  nn *n = nn_create(NULL, 1);
  const int rc = model_build(model, &task, n, &reconstructs);
  for (int i = 0; rc == CLI_OK && i < nn_count_layers(n) && i < MOST_LAYERS; i++) {
    const nn_layer *from = nn_get_layer(n, i);
    shape *l = &out->layer[out->n++];
    (void)snprintf(l->name, sizeof l->name, "%s", from->name);
    if (from->is_embedding) {
      shapes_set_embedding(l, from->in, from->out, from->positions);
      continue;
    }
    l->is_conv = from->is_conv;
    l->has_bias = from->has_bias;
    l->in = from->in;
    l->out = from->out;
    l->kernel[0] = l->kernel[1] = from->kernel;
    l->stride[0] = l->stride[1] = from->stride;
    l->padding[0] = l->padding[1] = from->padding;
    l->image[0] = from->height;
    l->image[1] = from->width;
    l->positions = from->positions;
    set_factor_orders(l);
  }
  for (int i = 0; rc == CLI_OK && i < nn_count_norms(n) && out->n < MOST_LAYERS; i++) {
    const nn_norm_layer *from = nn_get_norm(n, i);
    shape *l = &out->layer[out->n++];
    (void)snprintf(l->name, sizeof l->name, "%s", from->name);
    shapes_set_norm(l, from->channels, from->is_layer_norm ? NG_LAYER_NORM : NG_BATCH_NORM,
                    from->eps);
  }
  nn_destroy(&n);
  return rc;
}

/* ---- a file ----------------------------------------------------------------------------------*/

typedef enum layer_kind { CONV2D, LINEAR, NORM, EMBEDDING, KINDS } layer_kind;
enum { KEYS = 12 }; /* number of keys of one kind of layer, including the final NULL */
static const struct {
  const char *name, *keys[KEYS];
} kinds[KINDS] = {
    {"conv2d",
     {"name", "kind", "in", "out", "kernel", "stride", "padding", "image", "bias", "dilation",
      "groups"}},
    {"linear", {"name", "kind", "in", "out", "positions", "bias", "split"}},
    {"norm", {"name", "kind", "in"}},
    {"embedding", {"name", "kind", "in", "out", "positions"}},
};

static void check_layer_keys(cli_fields *in, const ngio_value *o, layer_kind kind) {
  const char *const *keys = kinds[kind].keys;
  for (const ngio_value *v = ngio_first(o); v != NULL && in->rc == CLI_OK; v = ngio_next(o, v)) {
    int i = 0;
    while (keys[i] != NULL && strcmp(v->key, keys[i]) != 0)
      i++;
    if (keys[i] == NULL) {
      char what[512];
      (void)snprintf(what, sizeof what, "%s: %s%s has no key", in->path, in->where,
                     kinds[kind].name);
      in->rc = cli_report_unknown(what, v->key, keys, i, NULL);
    }
  }
}

static void read_conv_fields(cli_fields *in, const ngio_value *o, shape *l) {
  cli_read_pair(in, o, "kernel", 1, -1, l->kernel);
  cli_read_pair(in, o, "stride", 1, 1, l->stride);
  cli_read_pair(in, o, "padding", 0, 0, l->padding);
  cli_read_pair(in, o, "image", 1, -1, l->image);
  cli_read_pair(in, o, "dilation", 1, 1, l->dilation);
  l->groups = cli_read_whole(in, o, "groups", 1, LARGEST, 1);
  if (l->in % l->groups != 0 || l->out % l->groups != 0)
    cli_field_error(in, "groups does not divide in and out");
  for (int k = 0; k < 2; k++)
    if (l->image[k] + 2 * l->padding[k] < compute_dilated_size(l, k))
      cli_field_error(in, "image is smaller than the kernel");
}

static void read_layer_object(cli_fields *in, const ngio_value *o, shape *l) {
  if (!ngio_is(o, NGIO_OBJECT)) {
    cli_field_error(in, "expected an object");
    return;
  }
  const char *name = ngio_text_of(ngio_get(o, "name")), *text = ngio_text_of(ngio_get(o, "kind"));
  const ngio_value *bias = ngio_get(o, "bias");
  layer_kind kind = CONV2D;
  while (kind < KINDS && (text == NULL || strcmp(text, kinds[kind].name) != 0))
    kind++;
  if (name == NULL || name[0] == 0 || strlen(name) >= sizeof l->name)
    cli_field_error(in, "name is not a text of 1 to 63 letters");
  if (kind == KINDS)
    cli_field_error(in, "kind is not \"conv2d\", \"linear\", \"norm\" or \"embedding\"");
  if (kind < KINDS) check_layer_keys(in, o, kind);
  if (bias != NULL && !ngio_is_flag(bias)) cli_field_error(in, "bias is not true or false");
  if (in->rc != CLI_OK) return;
  (void)snprintf(l->name, sizeof l->name, "%s", name);
  l->in = cli_read_whole(in, o, "in", 1, LARGEST, -1);
  if (kind == NORM) {
    shapes_set_norm(l, l->in, NG_BATCH_NORM, 1e-5);
    return;
  }
  l->out = cli_read_whole(in, o, "out", 1, LARGEST, -1);
  l->positions = cli_read_whole(in, o, "positions", 1, LARGEST, 1);
  if (kind == EMBEDDING) {
    shapes_set_embedding(l, l->in, l->out, l->positions);
    return;
  }
  l->has_bias = ngio_is(bias, NGIO_TRUE);
  l->is_conv = kind == CONV2D;
  if (l->is_conv) read_conv_fields(in, o, l);
  if (ngio_get(o, "split") != NULL) {
    const char *split = ngio_text_of(ngio_get(o, "split"));
    if (split != NULL && strcmp(split, "output") == 0) l->split = SPLIT_OUTPUT;
    if (split != NULL && strcmp(split, "input") == 0) l->split = SPLIT_INPUT;
    if (l->split == SPLIT_NONE) cli_field_error(in, "split is not \"output\" or \"input\"");
  }
  if (in->rc == CLI_OK) set_factor_orders(l);
}

static int list_json_layers(const char *path, shapes *out) {
  char *text = NULL;
  ngio_json *json = NULL;
  if (disk_read_text(path, &text) != CLI_OK) return CLI_BAD;
  const int rc = cli_json_parse(path, text, strlen(text), &json);
  free(text);
  if (rc != CLI_OK) return rc;
  const ngio_value *root = ngio_json_root(json), *o = ngio_first(root);
  char where[32];
  cli_fields in = {path, "", CLI_OK};
  const size_t n = ngio_count(root);
  if (n < 1 || n > MOST_LAYERS)
    cli_field_error(&in, "expected a list of 1 to %d layers", MOST_LAYERS);
  for (; in.rc == CLI_OK && o != NULL; o = ngio_next(root, o)) {
    (void)snprintf(where, sizeof where, "layer %d: ", out->n);
    in.where = where;
    read_layer_object(&in, o, &out->layer[out->n++]);
  }
  ngio_json_free(&json);
  (void)snprintf(out->name, sizeof out->name, "%s", cli_get_base_name(path));
  return in.rc;
}

int shapes_list(const char *model, shapes *out) {
  memset(out, 0, sizeof *out);
  out->layer = cli_alloc(MOST_LAYERS, sizeof *out->layer);
  (void)snprintf(out->name, sizeof out->name, "%s", model);
  const bool file = strchr(model, '.') != NULL || strchr(model, '/') != NULL;
  const int rc = file                                  ? list_json_layers(model, out)
                 : shapes_list_transformer(model, out) ? CLI_OK
                                                       : list_network_layers(model, out);
  if (rc != CLI_OK) shapes_free(out);
  return rc;
}

void shapes_keep_matrices(shapes *s) {
  int n = 0;
  for (int i = 0; i < s->n; i++)
    if (!s->layer[i].is_norm && !s->layer[i].is_embedding) s->layer[n++] = s->layer[i];
  s->n = n;
}

void shapes_set_layer(const shape *from, ng_layer *to) {
  const ng_kind kind = from->is_norm        ? NG_NORM
                       : from->is_embedding ? NG_EMBEDDING
                       : from->is_conv      ? NG_CONV2D
                                            : NG_LINEAR;
  ng_layer_init(to, kind, sizeof *to);
  to->name = from->name;
  to->in = from->in;
  to->out = from->out;
  to->bias = from->has_bias;
  for (int k = 0; k < 2 && from->is_conv; k++) {
    to->kernel[k] = from->kernel[k];
    to->stride[k] = from->stride[k];
    to->padding[k] = from->padding[k];
    to->image[k] = from->image[k];
    to->dilation[k] = at_least_one(from->dilation[k]);
  }
  if (from->is_conv) to->groups = at_least_one(from->groups);
  if (from->is_norm) to->norm_eps = from->eps;
  if (from->is_norm) to->norm_kind = from->norm_kind;
  if (!from->is_conv && !from->is_norm) to->positions = from->positions;
}

/* The casts drop const, which ng_array lacks: the library only reads observed arrays. */
ng_array shapes_input_array(const shape *l, const float *data, int64_t samples) {
  void *x = (void *)(uintptr_t)data;
  if (l->is_norm && l->image[0] == 0) return ng_array_matrix(x, samples, l->in, NG_F32);
  return l->is_conv || l->is_norm
             ? ng_array_nchw(x, samples, l->in, l->image[0], l->image[1], NG_F32)
             : ng_array_matrix(x, samples * l->positions, l->in, NG_F32);
}

ng_array shapes_output_array(const shape *l, const float *data, int64_t samples) {
  void *x = (void *)(uintptr_t)data;
  int64_t to[2] = {1, 1};
  if (l->is_norm) return shapes_input_array(l, data, samples);
  for (int k = 0; k < 2 && l->is_conv; k++)
    to[k] = count_axis_positions(l, k);
  return l->is_conv ? ng_array_nchw(x, samples, l->out, to[0], to[1], NG_F32)
                    : ng_array_matrix(x, samples * l->positions, l->out, NG_F32);
}

void shapes_free(shapes *s) {
  free(s->layer);
  memset(s, 0, sizeof *s);
}
