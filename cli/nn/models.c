/* models.c: the table of networks, and all networks without blocks. */
#include "models.h"

#include "common/cli.h"

#include <stdio.h>
#include <string.h>

static int add_dense(nn *n, const char *name, int x, int64_t out) {
  return nn_add_linear(n, name, x, out, true);
}

/* A perceptron. number[0]: outputs of each hidden layer; number[1]: number of hidden layers. */
enum { MOST_HIDDEN = 64 };
static void add_perceptron(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]) {
  char name[24];
  for (int i = 1; i <= (int)number[1]; i++) {
    (void)snprintf(name, sizeof name, "fc%d", i);
    x = nn_add_relu(n, add_dense(n, name, x, number[0]));
  }
  (void)snprintf(name, sizeof name, "fc%d", (int)number[1] + 1);
  (void)add_dense(n, name, x, t->classes);
}

static void add_logreg(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]) {
  (void)number;
  (void)add_dense(n, "fc", x, t->classes);
}

/* number: the widths of the two hidden layers */
static void add_two_hidden_mlp(nn *n, const model_task *t, int x,
                               const int64_t number[MODEL_NUMBERS]) {
  x = nn_add_relu(n, add_dense(n, "fc1", x, number[0]));
  x = nn_add_relu(n, add_dense(n, "fc2", x, number[1]));
  (void)add_dense(n, "fc3", x, t->classes);
}

/* The autoencoder of Hinton & Salakhutdinov 2006, with tanh instead of the logistic function, so that training works
 * without pre-training (Glorot & Bengio 2010). The middle layer has 30 linear units; the outputs are in (0, 1). */
static void add_autoencoder(nn *n, const model_task *t, int x,
                            const int64_t number[MODEL_NUMBERS]) {
  static const int64_t width[] = {1000, 500, 250};
  char name[24];
  (void)number;
  nn_set_initializer(n, NN_GLOROT);
  for (int i = 0; i < 3; i++) {
    (void)snprintf(name, sizeof name, "encode%d", i + 1);
    x = nn_add_tanh(n, add_dense(n, name, x, width[i]));
  }
  x = add_dense(n, "code", x, 30);
  for (int i = 0; i < 3; i++) {
    (void)snprintf(name, sizeof name, "decode%d", i + 1);
    x = nn_add_tanh(n, add_dense(n, name, x, width[2 - i]));
  }
  (void)nn_add_sigmoid(n, add_dense(n, "out", x, nn_count_values(t->input)));
  nn_set_loss(n, NN_SQUARED_ERROR, 0.0);
}

/* Caffe's LeNet: two convolutions without padding, each followed by max pooling. */
static void add_lenet(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]) {
  (void)number;
  x = nn_add_max_pool(n, nn_add_conv(n, "conv1", x, 20, 5, 1, 0, true), 2, 2, 0);
  x = nn_add_max_pool(n, nn_add_conv(n, "conv2", x, 50, 5, 1, 0, true), 2, 2, 0);
  x = nn_add_relu(n, add_dense(n, "fc1", x, 500));
  (void)add_dense(n, "fc2", x, t->classes);
}

/* Configuration D of Simonyan & Zisserman 2015, with batch normalisation. One linear layer follows for images of 32 to
 * 63 pixels, which have one position after the last pooling; for larger images, the paper's three linear layers. */
enum { VGG_HEAD = 64 };
static void add_vgg16(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]) {
  static const int64_t plan[] = {64, 64,  0,   128, 128, 0,   256, 256, 256,
                                 0,  512, 512, 512, 0,   512, 512, 512, 0};
  int index = 0;
  (void)number;
  nn_set_initializer(n, NN_HE);
  for (size_t i = 0; i < sizeof plan / sizeof plan[0]; i++) {
    char conv[24], norm[24];
    if (plan[i] == 0) {
      x = nn_add_max_pool(n, x, 2, 2, 0);
      continue;
    }
    (void)snprintf(conv, sizeof conv, "conv%d", ++index);
    (void)snprintf(norm, sizeof norm, "bn%d", index);
    x = nn_add_relu(n, nn_add_norm(n, norm, nn_add_conv(n, conv, x, plan[i], 3, 1, 1, true)));
  }
  if (t->input.height >= VGG_HEAD) {
    const double rate = t->dropout >= 0.0 ? t->dropout : 0.5;
    x = nn_add_dropout(n, nn_add_relu(n, add_dense(n, "fc1", x, 4096)), rate);
    x = nn_add_dropout(n, nn_add_relu(n, add_dense(n, "fc2", x, 4096)), rate);
    (void)add_dense(n, "fc3", x, t->classes);
  } else {
    (void)add_dense(n, "fc", x, t->classes);
  }
}

/* ---- the table ---------------------------------------------------------------------------------*/

enum { IMAGES = 1, RECONSTRUCTS = 2, DROPOUT = 4, TEXT = 8 };

typedef struct row {
  const char *name, *help;
  const model_task *task; /* input size and classes that the paper uses */
  void (*build)(nn *n, const model_task *t, int x, const int64_t number[MODEL_NUMBERS]);
  int64_t number[MODEL_NUMBERS];
  unsigned traits;
  const char *example; /* for names with numbers, an example such as "wrn-28-10"; otherwise NULL */
} row;

static const model_task mnist = {.input = {28, 28, 1}, .classes = 10, .dropout = -1.0};
static const model_task cifar10 = {.input = {32, 32, 3}, .classes = 10, .dropout = -1.0};
static const model_task cifar100 = {.input = {32, 32, 3}, .classes = 100, .dropout = -1.0};
static const model_task text = {
    .input = {1, 128, 1}, .classes = 65, .is_text = true, .dropout = -1.0};
static const model_task imagenet = {.input = {224, 224, 3}, .classes = 1000, .dropout = -1.0};

static const row rows[] = {
    {"logreg", "softmax regression: one linear layer", &mnist, add_logreg, .traits = 0},
    {"mlp", "perceptron in-128-64-out, ReLU", &mnist, add_two_hidden_mlp, .number = {128, 64}},
    {"mlp-1000", "perceptron in-1000-1000-out, ReLU", &mnist, add_two_hidden_mlp,
     .number = {1000, 1000}},
    {"autoencoder", "in-1000-500-250-30 and the reverse, tanh (Hinton & Salakhutdinov 2006)",
     &mnist, add_autoencoder, .traits = RECONSTRUCTS},
    {"lenet", "Caffe's LeNet: conv 20, conv 50, linear 500", &mnist, add_lenet, .traits = IMAGES},
    {"resnet20", "He et al. 2015 for CIFAR, 20 layers, projections as shortcuts", &cifar10,
     resnet_add_cifar, .number = {20}, .traits = IMAGES},
    {"resnet32", "as resnet20, 32 layers", &cifar10, resnet_add_cifar, .number = {32},
     .traits = IMAGES},
    {"resnet56", "as resnet20, 56 layers", &cifar10, resnet_add_cifar, .number = {56},
     .traits = IMAGES},
    {"resnet110", "as resnet20, 110 layers", &cifar10, resnet_add_cifar, .number = {110},
     .traits = IMAGES},
    {"resnet18", "He et al. 2015, 18 layers; first convolution 3x3 for images of up to 64 pixels",
     &cifar100, resnet_add_imagenet, .number = {18}, .traits = IMAGES},
    {"resnet34", "as resnet18, 34 layers", &cifar100, resnet_add_imagenet, .number = {34},
     .traits = IMAGES},
    {"resnet50", "as resnet18, 50 layers in bottlenecks", &imagenet, resnet_add_imagenet,
     .number = {50}, .traits = IMAGES},
    {"resnet101", "as resnet50, 101 layers", &imagenet, resnet_add_imagenet, .number = {101},
     .traits = IMAGES},
    {"resnet152", "as resnet50, 152 layers", &imagenet, resnet_add_imagenet, .number = {152},
     .traits = IMAGES},
    {"resnet50d", "variant D of resnet50 (He et al. 2019, arXiv 1812.01187)", &imagenet,
     resnet_add_imagenet, .number = {50, 'd'}, .traits = IMAGES},
    {"vgg16", "Simonyan & Zisserman 2015 with batch normalisation", &cifar10, add_vgg16,
     .traits = IMAGES | DROPOUT},
    {"gpt-char", "gpt-char-128-4-4", &text, gpt_add, .number = {128, 4, 4}, .traits = TEXT},
    {"mlp-W-D", "perceptron of D hidden layers with W units, ReLU, as mlp-512-2", &mnist,
     add_perceptron, .example = "mlp-512-2"},
    {"wrn-D-W",
     "wide residual network of D = 6 k + 4 layers, W times as wide, as wrn-28-10 (Zagoruyko & "
     "Komodakis 2016)",
     &cifar10, resnet_add_wide, .traits = IMAGES | DROPOUT, .example = "wrn-28-10"},
    {"gpt-char-W-D-H", "GPT-2 over characters: W features, D blocks, H heads (Radford et al. 2019)",
     &text, gpt_add, .traits = TEXT, .example = "gpt-char-128-4-4"},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

int model_count(void) { return ROWS; }
model_info model_at(int i) { return (model_info){rows[i].name, rows[i].help}; }

/* Return the length of the name before its numbers, 4 for "wrn-28-10"; 0 if the name has no numbers. */
static size_t get_prefix_length(const row *r) {
  return r->example != NULL ? strcspn(r->example, "0123456789") : 0;
}

/* Read the numbers after the prefix of the name; there are as many as in the example. */
static bool parse_numbers(const row *r, const char *name, int64_t number[MODEL_NUMBERS]) {
  const size_t n = get_prefix_length(r);
  int count = 1;
  for (const char *at = r->example + n; *at != 0; at++)
    count += *at == '-';
  return strncmp(name, r->example, n) == 0 && cli_parse_counts(name + n, '-', count, number);
}

static int check_numbers(const row *r, const char *name, const int64_t number[MODEL_NUMBERS]) {
  if (r->build == resnet_add_wide && (number[0] < 10 || (number[0] - 4) % 6 != 0))
    return cli_fail("--model: '%s': the depth of a wide residual network is 6 k + 4, at least 10",
                    name);
  if (r->build == add_perceptron && number[1] > MOST_HIDDEN)
    return cli_fail("--model: '%s': a perceptron has 1 to %d hidden layers", name, MOST_HIDDEN);
  if (r->build == gpt_add && (number[1] > MOST_HIDDEN || number[0] % number[2] != 0))
    return cli_fail("--model: '%s': expected 1 to %d blocks, and features divisible by heads", name,
                    MOST_HIDDEN);
  return CLI_OK;
}

static int report_unknown_model(const char *name) {
  const char *names[ROWS];
  for (int i = 0; i < ROWS; i++) {
    const row *r = &rows[i];
    if (r->example != NULL && strncmp(name, r->example, get_prefix_length(r)) == 0) {
      return cli_fail(
          "--model: unknown model '%s'; expected %s with numbers from 1 to 99999, as %s", name,
          r->name, r->example);
    }
    names[i] = r->example != NULL ? r->example : r->name;
  }
  return cli_report_unknown("--model: unknown model", name, names, ROWS,
                            "`natgrad train --models` lists them");
}

/* Set *out to the row of the table for this name, with the numbers that the name contains. CLI_BAD: reported. */
static int find_model(const char *name, row *out) {
  const row *found = NULL;
  int64_t number[MODEL_NUMBERS] = {0};
  for (int i = 0; i < ROWS && found == NULL; i++) {
    const row *r = &rows[i];
    if (r->example == NULL ? strcmp(r->name, name) == 0 : parse_numbers(r, name, number)) found = r;
  }
  if (found == NULL || (found->build == resnet_add_wide && number[1] > 999))
    return report_unknown_model(name);
  *out = *found;
  if (found->example == NULL) return CLI_OK;
  memcpy(out->number, number, sizeof number);
  return check_numbers(found, name, number);
}

int model_default_task(const char *name, model_task *out) {
  row r;
  if (find_model(name, &r) != CLI_OK) return CLI_BAD;
  *out = *r.task;
  return CLI_OK;
}

int model_build(const char *name, const model_task *task, nn *n, bool *reconstructs) {
  row r;
  if (find_model(name, &r) != CLI_OK) return CLI_BAD;
  const nn_shape in = task->input;
  if (task->is_text != ((r.traits & TEXT) != 0))
    return cli_fail("--model: %s needs %s, and the data has %s", name,
                    task->is_text ? "images or features" : "a text",
                    task->is_text ? "tokens" : "images or features");
  if ((r.traits & IMAGES) && in.height * in.width < 2)
    return cli_fail("--model: %s needs images, and the data has %lld features", name,
                    (long long)in.channels);
  if (task->dropout > 0.0 && !(r.traits & DROPOUT))
    return cli_fail("--dropout: %s has no dropout; expected vgg16 or wrn-D-W", name);
  if (task->dropout > 0.0 && r.build == add_vgg16 && in.height < VGG_HEAD)
    return cli_fail(
        "--dropout: %s has dropout only for images of at least %d pixels, the data has %lld", name,
        VGG_HEAD, (long long)in.height);
  *reconstructs = (r.traits & RECONSTRUCTS) != 0;
  nn_set_loss(n, NN_CROSS_ENTROPY, task->label_smoothing);
  r.build(n, task, nn_add_input(n, in), r.number);
  if (nn_get_error(n) == NULL) return CLI_OK;
  return cli_fail("--model: %s does not fit data of %lldx%lldx%lld: %s", name, (long long)in.height,
                  (long long)in.width, (long long)in.channels, nn_get_error(n));
}
