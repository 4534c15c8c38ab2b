/* shapes.c: the layers of two well-known networks, and lists from files.
 *
 * resnet18 is the variant for 32 x 32 images (He et al. 2015, arXiv 1512.03385, with the stem of
 * its CIFAR networks: 3x3, stride 1, no pooling) and 100 classes; resnet50 is the one for 224 x 224
 * images with the stride in the 3x3 convolution of a block, as every framework has it.  A shortcut
 * convolution stands after the block's others. */
#include "shapes.h"

#include "cli.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 };

static void finish(shape *l) {
  l->positions = l->conv ? 1 : l->positions;
  for (int k = 0; k < 2 && l->conv; k++) {
    l->positions *= (l->image[k] + 2 * l->padding[k] - l->kernel[k]) / l->stride[k] + 1;
  }
  l->p = (l->conv ? l->in * l->kernel[0] * l->kernel[1] : l->in) + (l->bias ? 1 : 0);
  l->q = l->out;
}

/* A square convolution; returns the width of its output. */
static int64_t conv(shapes *s, const char *block, const char *name, int64_t in, int64_t out,
                    int64_t kernel, int64_t stride, int64_t image) {
  shape *l = &s->layer[s->n++];
  (void)snprintf(l->name, sizeof l->name, "%s%s", block, name);
  l->conv = true;
  l->in = in;
  l->out = out;
  for (int k = 0; k < 2; k++) {
    l->kernel[k] = kernel;
    l->stride[k] = stride;
    l->padding[k] = kernel / 2;
    l->image[k] = image;
  }
  finish(l);
  return (image + 2 * (kernel / 2) - kernel) / stride + 1;
}

static void linear(shapes *s, const char *name, int64_t in, int64_t out) {
  shape *l = &s->layer[s->n++];
  (void)snprintf(l->name, sizeof l->name, "%s", name);
  l->in = in;
  l->out = out;
  l->bias = true;
  l->positions = 1;
  finish(l);
}

static void resnet18(shapes *s) {
  int64_t image = conv(s, "", "conv1", 3, 64, 3, 1, 32), in = 64;
  for (int stage = 0; stage < 4; stage++) {
    const int64_t out = (int64_t)64 << stage;
    for (int i = 0; i < 2; i++) {
      char block[32];
      (void)snprintf(block, sizeof block, "layer%d.%d.", stage + 1, i);
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      const int64_t next = conv(s, block, "conv1", in, out, 3, stride, image);
      (void)conv(s, block, "conv2", out, out, 3, 1, next);
      if (in != out) (void)conv(s, block, "downsample", in, out, 1, stride, image);
      image = next;
      in = out;
    }
  }
  linear(s, "fc", 512, 100);
}

static void resnet50(shapes *s) {
  static const int blocks[4] = {3, 4, 6, 3};
  (void)conv(s, "", "conv1", 3, 64, 7, 2, 224);
  int64_t image = 56, in = 64; /* after the pooling */
  for (int stage = 0; stage < 4; stage++) {
    const int64_t width = (int64_t)64 << stage, out = 4 * width;
    for (int i = 0; i < blocks[stage]; i++) {
      char block[32];
      (void)snprintf(block, sizeof block, "layer%d.%d.", stage + 1, i);
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      (void)conv(s, block, "conv1", in, width, 1, 1, image);
      const int64_t next = conv(s, block, "conv2", width, width, 3, stride, image);
      (void)conv(s, block, "conv3", width, out, 1, 1, next);
      if (i == 0) (void)conv(s, block, "downsample", in, out, 1, stride, image);
      image = next;
      in = out;
    }
  }
  linear(s, "fc", 2048, 1000);
}

/* ---- a file ----------------------------------------------------------------------------------*/

typedef struct reader {
  const char *path;
  int layer;
  int rc;
} reader;

static void wrong(reader *in, const char *key, const char *expected) {
  if (in->rc == CLI_OK) {
    in->rc = cli_bad("%s: layer %d: %s is not %s", in->path, in->layer, key, expected);
  }
}

static int64_t number(reader *in, const json_t *v, const char *key, int64_t lower) {
  const int64_t x = json_integer_value(v);
  if (json_is_integer(v) && x >= lower && x <= 1 << 20) return x;
  wrong(in, key,
        lower > 0 ? "a whole number from 1 to 1048576" : "a whole number from 0 to 1048576");
  return lower;
}

static void pair(reader *in, const json_t *object, const char *key, int64_t lower, int64_t absent,
                 int64_t out[2]) {
  const json_t *v = json_object_get(object, key);
  if (v == NULL && absent >= 0) {
    out[0] = out[1] = absent;
  } else if (json_is_array(v) && json_array_size(v) == 2) {
    out[0] = number(in, json_array_get(v, 0), key, lower);
    out[1] = number(in, json_array_get(v, 1), key, lower);
  } else {
    out[0] = out[1] = number(in, v, key, lower);
  }
}

static void read_layer(reader *in, json_t *o, shape *l) {
  static const char *const known[] = {"name",   "kind",    "in",    "out",  "kernel",
                                      "stride", "padding", "image", "bias", "positions"};
  enum { KNOWN = sizeof known / sizeof known[0] };
  if (!json_is_object(o)) {
    wrong(in, "it", "an object");
    return;
  }
  const char *key;
  json_t *value;
  json_object_foreach(o, key, value) {
    bool found = false;
    for (int i = 0; i < KNOWN; i++)
      found = found || strcmp(key, known[i]) == 0;
    if (found || in->rc != CLI_OK) continue;
    const char *near = cli_nearest(key, known, KNOWN);
    in->rc = cli_bad("%s: layer %d: unknown key '%.40s'%s%s", in->path, in->layer, key,
                     near != NULL ? "; the nearest is " : "", near != NULL ? near : "");
  }
  const char *name = json_string_value(json_object_get(o, "name"));
  const char *kind = json_string_value(json_object_get(o, "kind"));
  const json_t *bias = json_object_get(o, "bias");
  if (name == NULL || name[0] == 0 || strlen(name) >= sizeof l->name) {
    wrong(in, "name", "a text of 1 to 63 letters");
    return;
  }
  (void)snprintf(l->name, sizeof l->name, "%s", name);
  if (kind == NULL || (strcmp(kind, "conv2d") != 0 && strcmp(kind, "linear") != 0)) {
    wrong(in, "kind", "\"conv2d\" or \"linear\"");
    return;
  }
  if (bias != NULL && !json_is_boolean(bias)) wrong(in, "bias", "true or false");
  l->bias = json_is_true(bias);
  l->conv = strcmp(kind, "conv2d") == 0;
  l->in = number(in, json_object_get(o, "in"), "in", 1);
  l->out = number(in, json_object_get(o, "out"), "out", 1);
  const json_t *positions = json_object_get(o, "positions");
  l->positions = positions == NULL ? 1 : number(in, positions, "positions", 1);
  if (l->conv) {
    pair(in, o, "kernel", 1, -1, l->kernel);
    pair(in, o, "stride", 1, 1, l->stride);
    pair(in, o, "padding", 0, 0, l->padding);
    pair(in, o, "image", 1, -1, l->image);
    for (int k = 0; k < 2; k++) {
      if (l->image[k] + 2 * l->padding[k] < l->kernel[k])
        wrong(in, "image", "as large as the kernel");
    }
  }
  if (in->rc == CLI_OK) finish(l);
}

static int from_file(const char *path, shapes *out) {
  json_error_t error;
  json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
  if (root == NULL) return cli_bad("%s: line %d: %s", path, error.line, error.text);
  reader in = {path, 0, CLI_OK};
  const size_t n = json_array_size(root);
  if (n < 1 || n > MOST) in.rc = cli_bad("%s: no list of 1 to %d layers", path, MOST);
  for (size_t i = 0; i < n && in.rc == CLI_OK; i++) {
    in.layer = (int)i;
    read_layer(&in, json_array_get(root, i), &out->layer[out->n++]);
  }
  json_decref(root);
  const char *slash = strrchr(path, '/');
  (void)snprintf(out->name, sizeof out->name, "%s", slash != NULL ? slash + 1 : path);
  return in.rc;
}

int shapes_make(const char *model, shapes *out) {
  static const char *const known[] = {"resnet18", "resnet50"};
  memset(out, 0, sizeof *out);
  out->layer = cli_take(MOST, sizeof *out->layer);
  (void)snprintf(out->name, sizeof out->name, "%s", model);
  int rc = CLI_OK;
  if (strcmp(model, known[0]) == 0) {
    resnet18(out);
  } else if (strcmp(model, known[1]) == 0) {
    resnet50(out);
  } else if (strchr(model, '.') == NULL && strchr(model, '/') == NULL) {
    const char *near = cli_nearest(model, known, 2);
    rc = near != NULL
             ? cli_bad("--model: unknown model '%s'; the nearest is '%s'", model, near)
             : cli_bad("--model: '%s' is neither resnet18, resnet50 nor a .json file", model);
  } else {
    rc = from_file(model, out);
  }
  if (rc != CLI_OK) shapes_free(out);
  return rc;
}

void shapes_free(shapes *s) {
  free(s->layer);
  memset(s, 0, sizeof *s);
}
