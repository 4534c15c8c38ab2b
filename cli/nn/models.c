/* models.c: networks by name, and those without residual blocks (models_resnet.c has the others). */
#include "models.h"

#include "common/cli.h"
#include "models_resnet.h"

#include <stdio.h>
#include <string.h>

static int dense(nn *n, const char *name, int x, int64_t out) {
  return nn_linear(n, name, x, out, true);
}

static void logreg(nn *n, const model_task *t, int x) { (void)dense(n, "fc", x, t->classes); }

static void perceptron(nn *n, const model_task *t, int x, int64_t first, int64_t second) {
  x = nn_relu(n, dense(n, "fc1", x, first));
  x = nn_relu(n, dense(n, "fc2", x, second));
  (void)dense(n, "fc3", x, t->classes);
}

enum { MOST_HIDDEN = 64 };
static void perceptron_of(nn *n, const model_task *t, int x, const long long number[2]) {
  char name[24];
  for (int i = 1; i <= (int)number[1]; i++) {
    (void)snprintf(name, sizeof name, "fc%d", i);
    x = nn_relu(n, dense(n, name, x, number[0]));
  }
  (void)snprintf(name, sizeof name, "fc%d", (int)number[1] + 1);
  (void)dense(n, name, x, t->classes);
}

static void mlp(nn *n, const model_task *t, int x) { perceptron(n, t, x, 128, 64); }
static void mlp_1000(nn *n, const model_task *t, int x) { perceptron(n, t, x, 1000, 1000); }

/* Hinton & Salakhutdinov 2006, with tanh instead of the logistic function inside, which needs no
 * pre-training (Glorot & Bengio 2010); a linear code of 30, outputs in (0, 1). */
static void autoencoder(nn *n, const model_task *t, int x) {
  static const int64_t width[] = {1000, 500, 250};
  char name[24];
  nn_set_start(n, NN_GLOROT);
  for (int i = 0; i < 3; i++) {
    (void)snprintf(name, sizeof name, "encode%d", i + 1);
    x = nn_tanh(n, dense(n, name, x, width[i]));
  }
  x = dense(n, "code", x, 30);
  for (int i = 0; i < 3; i++) {
    (void)snprintf(name, sizeof name, "decode%d", i + 1);
    x = nn_tanh(n, dense(n, name, x, width[2 - i]));
  }
  (void)nn_sigmoid(n, dense(n, "out", x, nn_count(t->input)));
  nn_set_loss(n, NN_SQUARED_ERROR, 0.0);
}

/* The LeNet that came with Caffe: two convolutions without padding, each followed by max pooling. */
static void lenet(nn *n, const model_task *t, int x) {
  x = nn_max_pool(n, nn_conv(n, "conv1", x, 20, 5, 1, 0, true), 2, 2, 0);
  x = nn_max_pool(n, nn_conv(n, "conv2", x, 50, 5, 1, 0, true), 2, 2, 0);
  x = nn_relu(n, dense(n, "fc1", x, 500));
  (void)dense(n, "fc2", x, t->classes);
}

/* Simonyan & Zisserman 2015, configuration D with batch normalisation.  For images from 32
 * to 63 the five poolings leave one position, and one linear layer follows; above, the published head. */
enum { VGG_HEAD = 64 };
static void vgg16(nn *n, const model_task *t, int x) {
  static const int64_t plan[] = {64, 64,  0,   128, 128, 0,   256, 256, 256,
                                 0,  512, 512, 512, 0,   512, 512, 512, 0};
  int number = 0;
  nn_set_start(n, NN_HE);
  for (size_t i = 0; i < sizeof plan / sizeof plan[0]; i++) {
    char conv[24], norm[24];
    if (plan[i] == 0) {
      x = nn_max_pool(n, x, 2, 2, 0);
      continue;
    }
    (void)snprintf(conv, sizeof conv, "conv%d", ++number);
    (void)snprintf(norm, sizeof norm, "bn%d", number);
    x = nn_relu(n, nn_norm(n, norm, nn_conv(n, conv, x, plan[i], 3, 1, 1, true)));
  }
  if (t->input.height >= VGG_HEAD) {
    const double rate = t->dropout >= 0.0 ? t->dropout : 0.5;
    x = nn_dropout(n, nn_relu(n, dense(n, "fc1", x, 4096)), rate);
    x = nn_dropout(n, nn_relu(n, dense(n, "fc2", x, 4096)), rate);
    (void)dense(n, "fc3", x, t->classes);
  } else {
    (void)dense(n, "fc", x, t->classes);
  }
}

static void residual20(nn *n, const model_task *t, int x) { resnet_cifar(n, t, x, 20); }
static void residual32(nn *n, const model_task *t, int x) { resnet_cifar(n, t, x, 32); }
static void residual56(nn *n, const model_task *t, int x) { resnet_cifar(n, t, x, 56); }
static void residual110(nn *n, const model_task *t, int x) { resnet_cifar(n, t, x, 110); }

/* ---- the list ----------------------------------------------------------------------------------*/

static void wide(nn *n, const model_task *t, int x, const long long number[2]) {
  resnet_wide(n, t, x, (int)number[0], (int)number[1]);
}

typedef struct row {
  model_info info;
  void (*build)(nn *n, const model_task *t, int x);
  bool images, reconstructs, drops; /* drops: has dropout */
} row;

#define MNIST {28, 28, 1}, 10
#define CIFAR {32, 32, 3}, 10
#define IMAGENET {224, 224, 3}, 1000
static const row rows[] = {
    {{"logreg", "softmax regression", MNIST}, logreg, false, false, false},
    {{"mlp", "perceptron in-128-64-out, ReLU", MNIST}, mlp, false, false, false},
    {{"mlp-1000", "perceptron in-1000-1000-out, ReLU", MNIST}, mlp_1000, false, false, false},
    {{"autoencoder", "in-1000-500-250-30 and back, tanh (Hinton & Salakhutdinov 2006)", MNIST},
     autoencoder,
     false,
     true,
     false},
    {{"lenet", "Caffe's LeNet: conv 20, conv 50, linear 500", MNIST}, lenet, true, false, false},
    {{"resnet20", "He et al. 2015 for CIFAR, projections as shortcuts", CIFAR},
     residual20,
     true,
     false,
     false},
    {{"resnet32", "the same with 32 layers", CIFAR}, residual32, true, false, false},
    {{"resnet56", "the same with 56 layers", CIFAR}, residual56, true, false, false},
    {{"resnet110", "the same with 110 layers", CIFAR}, residual110, true, false, false},
    {{"resnet18", "He et al. 2015; a 3x3 stem for images up to 64", {32, 32, 3}, 100},
     resnet18,
     true,
     false,
     false},
    {{"resnet34", "the same with 34 layers", {32, 32, 3}, 100}, resnet34, true, false, false},
    {{"resnet50", "the same with bottlenecks, 50 layers", IMAGENET}, resnet50, true, false, false},
    {{"resnet50d", "resnet50 with the D changes of He et al. 2019 (1812.01187)", IMAGENET},
     resnet50d,
     true,
     false,
     false},
    {{"vgg16", "Simonyan & Zisserman 2015 with batch normalisation", CIFAR},
     vgg16,
     true,
     false,
     true},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* Names with two numbers. */
typedef struct family {
  const char *prefix, *example;
  model_info info;
  void (*build)(nn *n, const model_task *t, int x, const long long number[2]);
  bool images, drops;
} family;
static const family families[] = {
    {"mlp-",
     "mlp-512-2",
     {"mlp-W-D", "perceptron of D hidden layers of W, ReLU, as mlp-512-2", MNIST},
     perceptron_of,
     false,
     false},
    {"wrn-",
     "wrn-28-10",
     {"wrn-D-W",
      "wide residual network, D = 6 k + 4 layers, W times as wide, as wrn-28-10 (Zagoruyko & "
      "Komodakis 2016)",
      CIFAR},
     wide,
     true,
     true},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

int model_count(void) { return ROWS + FAMILIES; }
model_info model_at(int i) { return i < ROWS ? rows[i].info : families[i - ROWS].info; }

static int unknown(const char *name) {
  for (int i = 0; i < FAMILIES; i++) {
    if (strncmp(name, families[i].prefix, strlen(families[i].prefix)) != 0) continue;
    return cli_bad("--model: unknown model '%s'; expected %s with numbers from 1 to 99999, as %s",
                   name, families[i].info.name, families[i].example);
  }
  const char *names[ROWS + FAMILIES];
  for (int i = 0; i < ROWS; i++)
    names[i] = rows[i].info.name;
  for (int i = 0; i < FAMILIES; i++)
    names[ROWS + i] = families[i].example;
  const char *near = cli_nearest(name, names, ROWS + FAMILIES);
  if (near != NULL) return cli_bad("--model: unknown model '%s'; the nearest is '%s'", name, near);
  return cli_bad("--model: unknown model '%s'; `natgrad train --models` lists them", name);
}

/* What a name stands for: a row, or a family and its numbers. */
typedef struct choice {
  const row *row;
  const family *family;
  long long number[2];
} choice;

static int find(const char *name, choice *c) {
  memset(c, 0, sizeof *c);
  for (int i = 0; i < ROWS; i++) {
    if (strcmp(rows[i].info.name, name) == 0) c->row = &rows[i];
  }
  for (int i = 0; i < FAMILIES && c->row == NULL; i++) {
    const size_t n = strlen(families[i].prefix);
    if (strncmp(name, families[i].prefix, n) == 0 && cli_counts(name + n, '-', 2, c->number))
      c->family = &families[i];
  }
  if (c->row == NULL && c->family == NULL) return unknown(name);
  const long long depth = c->number[0];
  if (c->family != NULL && c->family->build == wide && c->number[1] > 999) return unknown(name);
  if (c->family != NULL && c->family->build == wide && (depth < 10 || (depth - 4) % 6 != 0)) {
    return cli_bad("--model: '%s': the depth of a wide residual network is 6 k + 4, from 10 on",
                   name);
  }
  if (c->family != NULL && c->family->build == perceptron_of && c->number[1] > MOST_HIDDEN) {
    return cli_bad("--model: '%s': a perceptron has 1 to %d hidden layers", name, MOST_HIDDEN);
  }
  return CLI_OK;
}

int model_task_of(const char *name, model_task *out) {
  choice c;
  if (find(name, &c) != CLI_OK) return CLI_BAD;
  const model_info *info = c.row != NULL ? &c.row->info : &c.family->info;
  *out = (model_task){.input = info->input, .classes = info->classes, .dropout = -1.0};
  return CLI_OK;
}

int model_build(const char *name, const model_task *task, nn *n, bool *reconstructs) {
  choice c;
  if (find(name, &c) != CLI_OK) return CLI_BAD;
  const nn_shape in = task->input;
  if ((c.row != NULL ? c.row->images : c.family->images) && in.height * in.width < 2) {
    return cli_bad("--model: %s wants images, and the data has %lld plain features", name,
                   (long long)in.channels);
  }
  if (task->dropout > 0.0 && !(c.row != NULL ? c.row->drops : c.family->drops)) {
    return cli_bad("--dropout: %s has no dropout; vgg16 and wrn-D-W have", name);
  }
  if (task->dropout > 0.0 && c.row != NULL && c.row->build == vgg16 && in.height < VGG_HEAD) {
    return cli_bad("--dropout: %s has it in its head for images of %d and more, these have %lld",
                   name, VGG_HEAD, (long long)in.height);
  }
  *reconstructs = c.row != NULL && c.row->reconstructs;
  nn_set_loss(n, NN_CROSS_ENTROPY, task->label_smoothing);
  const int x = nn_input(n, in);
  if (c.row != NULL) {
    c.row->build(n, task, x);
  } else {
    c.family->build(n, task, x, c.number);
  }
  if (nn_mistake(n) == NULL) return CLI_OK;
  return cli_bad("--model: %s does not fit data of %lldx%lldx%lld: %s", name, (long long)in.height,
                 (long long)in.width, (long long)in.channels, nn_mistake(n));
}
