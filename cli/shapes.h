/* shapes.h: lists of layers with their sizes but without weights, for `bench`, `plan` and `replay`. */
#ifndef CLI_SHAPES_H
#define CLI_SHAPES_H

#include "natgrad.h"

#include <stdbool.h>
#include <stdint.h>

/* The axis along which the ranks of a model group shard a layer (`natgrad plan --model-parallel`). */
typedef enum shape_split { SPLIT_NONE, SPLIT_OUTPUT, SPLIT_INPUT } shape_split;

typedef struct shape {
  char name[64];
  bool is_conv, is_norm, has_bias; /* a norm with image = {0, 0} has inputs [samples, in] */
  bool is_embedding;               /* an embedding of `in` tokens with `out` features */
  double eps;                      /* added to the variance of a norm */
  ng_norm_kind norm_kind;
  int64_t in, out;                                    /* input and output features or channels */
  int64_t kernel[2], stride[2], padding[2], image[2]; /* [0] vertical, [1] horizontal */
  /* dilation and groups of a convolution; 0 means 1 */
  int64_t dilation[2], groups;
  int64_t positions; /* number of output positions of one sample */
  int64_t p, q;      /* orders of the factors A and G of one group; 0: none, or diagonal */
  shape_split split;
} shape;

typedef struct shapes {
  char name[64];
  shape *layer;
  int n; /* number of layers */
} shapes;

/* List the layers of `model`: a network of nn/models.h; bert-base, bert-large or gpt-24; or a JSON file with a list of
 * objects
 *   {"name", "kind": "conv2d", "in", "out", "kernel", "stride", "padding", "image", "bias", "dilation", "groups"}
 *   {"name", "kind": "linear", "in", "out", "positions", "bias", "split": "output" | "input"}
 *   {"name", "kind": "norm", "in"}
 *   {"name", "kind": "embedding", "in", "out", "positions"}
 * where kernel, stride, padding, image and dilation are a number or a pair. Defaults: stride 1, padding 0, dilation 1,
 * groups 1, positions 1, bias false, no split. In a network of nn/models.h, all norms follow all other layers, as in
 * natgrad train; in a transformer, norms and embeddings are in the order of the modules. Norms have p = q = 0,
 * embeddings p = 0. Return 0; 2: reported in one line. */
int shapes_list(const char *model, shapes *out);
/* Remove norms and embeddings, so that only layers with factors A and G remain. */
void shapes_keep_matrices(shapes *s);
void shapes_free(shapes *s);
/* Append the layers of the transformer `name`. false: there is no such transformer. */
bool shapes_list_transformer(const char *name, shapes *out);
void shapes_set_norm(shape *l, int64_t channels, ng_norm_kind kind, double eps);
void shapes_set_embedding(shape *l, int64_t tokens, int64_t features, int64_t positions);

/* Describe a layer for ng_add_layer; to->name points into *from. positions 0: any number of positions. */
void shapes_set_layer(const shape *from, ng_layer *to);

/* Return `data` as an array of the library: the input or the output gradient of a layer, [samples, channels, height,
 * width] or [samples * positions, features]. */
ng_array shapes_input_array(const shape *l, const float *data, int64_t samples);
ng_array shapes_output_array(const shape *l, const float *data, int64_t samples);

#endif
