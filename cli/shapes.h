/* shapes.h: layer lists without weights: what a bench or a replay needs to know of a
 * network. */
#ifndef CLI_SHAPES_H
#define CLI_SHAPES_H

#include "natgrad.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct shape {
  char name[64];
  bool conv, norm, bias; /* norm: a batch norm with gamma and beta; image 0, 0: of features */
  double eps;            /* norm */
  int64_t in, out; /* features or channels                                                        */
  int64_t kernel[2], stride[2], padding[2], image[2]; /* conv: [0] vertical; image of the input   */
  int64_t positions; /* of one sample; 1 for a plain linear layer */
  int64_t p, q;      /* orders of A and G                         */
} shape;

typedef struct shapes {
  char name[64];
  shape *layer;
  int n;
} shapes;

/* A model of nn/models.h, bert-base, bert-large or gpt-24, or a JSON file: a list of objects
 *   {"name", "kind": "conv2d", "in", "out", "kernel", "stride", "padding", "image", "bias"}
 *   {"name", "kind": "linear", "in", "out", "positions", "bias"}
 * where kernel, stride, padding and image are one number or a pair; stride 1, padding 0, positions
 * 1 and bias false may be left out.  Returns 0, or 2 with one line told. */
int shapes_make(const char *model, shapes *out);
void shapes_free(shapes *s);
bool shapes_transformer(const char *name, shapes *out); /* false: no such name, nothing added */

/* The layer for ng_add_layer; its name is borrowed.  positions 0: whatever comes. */
ng_status shapes_describe(const shape *from, ng_layer *to);

/* Its input and its output (or the gradient of that) for so many samples: [samples, channels, height,
 * width], or [samples * positions, features]. */
ng_array shapes_input(const shape *l, const float *data, int64_t samples);
ng_array shapes_output(const shape *l, const float *data, int64_t samples);

#endif
