/* models_resnet.c: residual networks.
 *
 * He et al. 2015 (arXiv 1512.03385): networks for CIFAR have three stages of 16, 32, 64 channels; networks for
 * ImageNet have four stages of basic blocks (18, 34 layers) or bottlenecks (50, 101, 152 layers). A shortcut that changes the
 * shape is a 1x1 convolution with a norm: option B of the paper, whose CIFAR networks pad with zeros (option A). As
 * in torchvision, the 3x3 convolution of a bottleneck has the stride, and parameters have torchvision's names. */
#include "models.h"

#include <stdio.h>

enum { PREFIX = 32 };

/* Add a convolution `prefix` + `part` without bias, padded so that stride 1 keeps the size of the image. */
static int add_conv(nn *n, const char *prefix, const char *part, int x, int64_t out, int64_t kernel,
                    int64_t stride) {
  char name[NN_NAME];
  (void)snprintf(name, sizeof name, "%s%s", prefix, part);
  return nn_add_conv(n, name, x, out, kernel, stride, kernel / 2, false);
}

static int add_norm(nn *n, const char *prefix, const char *part, int x) {
  char name[NN_NAME];
  (void)snprintf(name, sizeof name, "%s%s", prefix, part);
  return nn_add_norm(n, name, x);
}

static int add_conv_norm(nn *n, const char *prefix, const char *first, const char *second, int x,
                         int64_t out, int64_t kernel, int64_t stride) {
  return add_norm(n, prefix, second, add_conv(n, prefix, first, x, out, kernel, stride));
}

static bool changes_shape(const nn *n, int x, int64_t out, int64_t stride) {
  return stride != 1 || nn_get_shape(n, x).channels != out;
}

/* Add the shortcut of a block. `pooled` (variant D): a stride above 1 is an average over 2x2 before the convolution. */
static int add_shortcut(nn *n, const char *prefix, int x, int64_t out, int64_t stride,
                        bool pooled) {
  if (!changes_shape(n, x, out, stride)) return x;
  if (pooled && stride > 1) {
    x = nn_add_average_pool(n, x, 2, stride); /* an odd size rounds up */
    stride = 1;
  }
  return add_conv_norm(n, prefix, "downsample.0", "downsample.1", x, out, 1, stride);
}

static int add_basic_block(nn *n, const char *prefix, int x, int64_t out, int64_t stride) {
  int y = nn_add_relu(n, add_conv_norm(n, prefix, "conv1", "bn1", x, out, 3, stride));
  y = add_conv_norm(n, prefix, "conv2", "bn2", y, out, 3, 1);
  return nn_add_relu(n, nn_add_sum(n, y, add_shortcut(n, prefix, x, out, stride, false)));
}

static int add_bottleneck_block(nn *n, const char *prefix, int x, int64_t width, int64_t stride,
                                bool d) {
  int y = nn_add_relu(n, add_conv_norm(n, prefix, "conv1", "bn1", x, width, 1, 1));
  y = nn_add_relu(n, add_conv_norm(n, prefix, "conv2", "bn2", y, width, 3, stride));
  y = add_conv_norm(n, prefix, "conv3", "bn3", y, 4 * width, 1, 1);
  return nn_add_relu(n, nn_add_sum(n, y, add_shortcut(n, prefix, x, 4 * width, stride, d)));
}

static void add_head(nn *n, const model_task *t, int x) {
  (void)nn_add_linear(n, "fc", nn_add_global_pool(n, x), t->classes, true);
}

void resnet_add_cifar(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]) {
  nn_set_initializer(n, NN_HE);
  x = nn_add_relu(n, add_conv_norm(n, "", "conv1", "bn1", x, 16, 3, 1));
  for (int stage = 0; stage < 3; stage++) {
    for (int i = 0; i < (number[0] - 2) / 6; i++) {
      char prefix[PREFIX];
      (void)snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, i);
      x = add_basic_block(n, prefix, x, (int64_t)16 << stage, stage > 0 && i == 0 ? 2 : 1);
    }
  }
  add_head(n, t, x);
}

/* Add the first layers. Images of up to 64 pixels: a 3x3 convolution of stride 1; larger ones: a 7x7 convolution and a
 * max pooling, both of stride 2. `d` (variant D): three 3x3 convolutions instead of one. */
static int add_stem(nn *n, const model_task *t, int x, bool d) {
  const bool small = t->input.height <= 64;
  if (d) {
    x = nn_add_relu(n, add_conv_norm(n, "conv1.", "0", "1", x, 32, 3, small ? 1 : 2));
    x = nn_add_relu(n, add_conv_norm(n, "conv1.", "3", "4", x, 32, 3, 1));
    x = nn_add_relu(n, add_conv_norm(n, "", "conv1.6", "bn1", x, 64, 3, 1));
  } else {
    x = nn_add_relu(n, add_conv_norm(n, "", "conv1", "bn1", x, 64, small ? 3 : 7, small ? 1 : 2));
  }
  return small ? x : nn_add_max_pool(n, x, 3, 2, 1);
}

void resnet_add_imagenet(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]) {
  static const struct {
    int64_t layers;
    int blocks[4];
  } sizes[] = {{18, {2, 2, 2, 2}},
               {34, {3, 4, 6, 3}},
               {50, {3, 4, 6, 3}},
               {101, {3, 4, 23, 3}},
               {152, {3, 8, 36, 3}}};
  int size = 0;
  while (sizes[size].layers != number[0])
    size++;
  const bool bottlenecks = number[0] >= 50, d = number[1] == 'd';
  nn_set_initializer(n, NN_HE);
  x = add_stem(n, t, x, d);
  for (int stage = 0; stage < 4; stage++) {
    for (int i = 0; i < sizes[size].blocks[stage]; i++) {
      char prefix[PREFIX];
      (void)snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, i);
      const int64_t width = (int64_t)64 << stage, stride = stage > 0 && i == 0 ? 2 : 1;
      x = bottlenecks ? add_bottleneck_block(n, prefix, x, width, stride, d)
                      : add_basic_block(n, prefix, x, width, stride);
    }
  }
  add_head(n, t, x);
}

/* A block of a wide residual network: norm and ReLU precede each convolution, dropout stands between the two. A
 * shortcut with a convolution reads the output of the first norm and ReLU, as in the published code. */
static int add_wide_block(nn *n, const model_task *t, const char *prefix, int x, int64_t out,
                          int64_t stride) {
  const int active = nn_add_relu(n, add_norm(n, prefix, "bn1", x));
  int y = add_conv(n, prefix, "conv1", active, out, 3, stride);
  y = nn_add_relu(n, add_norm(n, prefix, "bn2", y));
  if (t->dropout > 0.0) y = nn_add_dropout(n, y, t->dropout);
  y = add_conv(n, prefix, "conv2", y, out, 3, 1);
  if (!changes_shape(n, x, out, stride)) return nn_add_sum(n, y, x);
  return nn_add_sum(n, y, add_conv(n, prefix, "shortcut", active, out, 1, stride));
}

void resnet_add_wide(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]) {
  nn_set_initializer(n, NN_HE);
  x = nn_add_conv(n, "conv1", x, 16, 3, 1, 1, false);
  for (int stage = 0; stage < 3; stage++) {
    for (int i = 0; i < (number[0] - 4) / 6; i++) {
      char prefix[PREFIX];
      (void)snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, i);
      x = add_wide_block(n, t, prefix, x, ((int64_t)16 << stage) * number[1],
                         stage > 0 && i == 0 ? 2 : 1);
    }
  }
  add_head(n, t, nn_add_relu(n, nn_add_norm(n, "bn", x)));
}
