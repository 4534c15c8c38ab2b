/* t_models.c: networks by name: published numbers of parameters, descriptions of layers, variance of initial
 * values, weight files. */
#include "nn/models.h"
#include "common/random.h"
#include "train/checkpoint.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static nn *build_network(const char *name, nn_shape input, int64_t classes, uint64_t seed) {
  const bool is_text = strncmp(name, "gpt-", 4) == 0;
  const model_task task = {.input = input, .classes = classes, .is_text = is_text, .dropout = -1.0};
  bool reconstructs = false;
  nn *n = nn_create(NULL, seed);
  assert_int_equal(model_build(name, &task, n, &reconstructs), 0);
  assert_int_equal(reconstructs, strcmp(name, "autoencoder") == 0);
  return n;
}

#define MNIST                                                                                      \
  { 28, 28, 1 }
#define SMALL                                                                                      \
  { 32, 32, 3 }
#define LARGE                                                                                      \
  { 224, 224, 3 }

#define TEXT                                                                                       \
  { 1, 128, 1 }
#define LONG                                                                                       \
  { 1, 1024, 1 }

/* Sources.  lenet and perceptrons: by hand.  resnet18/34 with a 3x3 stem: PyTorch modules of the same layers.
 * resnet50, resnet101, resnet152: torchvision (25,557,032, 44,549,160, 60,192,808).  resnet50d: timm (25,576,264).  vgg16 for CIFAR with batch norm (14,728,266)
 * and wrn-28-10 (36,479,194): the common networks.  resnet20 to resnet110: 0.27, 0.46, 0.85, 1.7 million of He et
 * al., and 2,752 for the two projections.  gpt-char: by hand; with the sizes of GPT-2 its 124,439,808 parameters, and
 * 38,597,376 of the head, which is tied there. */
static const struct {
  const char *name;
  nn_shape input;
  int64_t classes, parameters;
  int layers;
} known[] = {
    {"logreg", MNIST, 10, 7850, 1},
    {"mlp", MNIST, 10, 109386, 3},
    {"mlp-1000", MNIST, 10, 1796010, 3},
    {"autoencoder", MNIST, 10, 2837314, 8},
    {"lenet", MNIST, 10, 431080, 4},
    {"resnet20", SMALL, 10, 272474, 22},
    {"resnet32", SMALL, 10, 466906, 34},
    {"resnet56", SMALL, 10, 855770, 58},
    {"resnet110", SMALL, 10, 1730714, 112},
    {"resnet18", SMALL, 100, 11220132, 21},
    {"resnet34", SMALL, 100, 21328292, 37},
    {"resnet50", LARGE, 1000, 25557032, 54},
    {"resnet101", LARGE, 1000, 44549160, 105},
    {"resnet152", LARGE, 1000, 60192808, 156},
    {"resnet50d", LARGE, 1000, 25576264, 56},
    {"vgg16", SMALL, 10, 14728266, 14},
    {"vgg16", LARGE, 1000, 138365992, 16},
    {"wrn-28-10", SMALL, 10, 36479194, 29},
    {"mlp-128-2", MNIST, 10, 118282, 3},
    {"mlp-512-3", MNIST, 10, 932362, 4},
    {"gpt-char", TEXT, 65, 826368, 19},
    {"gpt-char-768-12-12", LONG, 50257, 163037184, 51},
};
enum { KNOWN = sizeof known / sizeof known[0] };

static void models_have_published_sizes_and_layers(void **state) {
  for (int i = 0; i < KNOWN; i++) {
    nn *n = build_network(known[i].name, known[i].input, known[i].classes, 1);
    if (nn_count_weights(n) != known[i].parameters || nn_count_layers(n) != known[i].layers) {
      fail_msg("%s: %lld parameters in %d layers, expected %lld in %d", known[i].name,
               (long long)nn_count_weights(n), nn_count_layers(n), (long long)known[i].parameters,
               known[i].layers);
    }
    if (strcmp(known[i].name, "autoencoder") != 0)
      assert_int_equal(nn_count_outputs(n), known[i].classes * nn_count_losses(n));
    for (int k = 0; k < nn_count_layers(n); k++) {
      const nn_layer *l = nn_get_layer(n, k);
      const nn_param *w = nn_get_param(n, l->weight_param);
      assert_int_equal(w->layer, k);
      assert_int_equal(w->count, l->in * l->out * (l->is_conv ? l->kernel * l->kernel : 1));
      assert_int_equal(w->shape[0], l->is_embedding ? l->in : l->out);
      assert_int_equal(w->ndim, l->is_conv ? 4 : 2);
      if (l->is_conv) {
        const int64_t h = (l->height + 2 * l->padding - l->kernel) / l->stride + 1;
        const int64_t c = (l->width + 2 * l->padding - l->kernel) / l->stride + 1;
        assert_int_equal(l->positions, h * c);
      }
      assert_int_equal(l->has_bias, l->bias_param >= 0);
    }
    for (int a = 0; a < nn_count_params(n); a++) { /* names are unique */
      for (int b = 0; b < a; b++)
        assert_string_not_equal(nn_get_param(n, a)->name, nn_get_param(n, b)->name);
    }
    nn_destroy(&n);
  }
  nn *n = build_network("resnet18", (nn_shape)SMALL, 100, 1);
  assert_string_equal(nn_get_layer(n, 1)->name, "layer1.0.conv1");
  assert_string_equal(nn_get_param(n, 0)->name, "conv1.weight");
  assert_string_equal(nn_get_buffer(n, 0)->name, "bn1.running_mean");
  nn_destroy(&n);
}

static void every_listed_model_builds(void **state) {
  for (int i = 0; i < model_count(); i++) {
    const char *name = model_at(i).name;
    if (strcmp(name, "wrn-D-W") == 0) name = "wrn-16-2";
    if (strcmp(name, "mlp-W-D") == 0) name = "mlp-16-3";
    if (strcmp(name, "gpt-char-W-D-H") == 0) name = "gpt-char-16-3-4";
    model_task task;
    bool reconstructs = false;
    assert_int_equal(model_default_task(name, &task), 0);
    nn *n = nn_create(NULL, 1);
    assert_int_equal(model_build(name, &task, n, &reconstructs), 0);
    assert_true(nn_count_outputs(n) > 1);
    assert_true(model_at(i).help[0] != 0);
    nn_destroy(&n);
  }
}

/* If the stride does not divide the image size, the two branches of a residual block round up alike. */
static void residual_branches_round_sizes_alike(void **state) {
  static const char *const names[] = {"resnet18", "resnet50", "resnet50d", "wrn-10-2", "resnet20"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    for (int64_t size = 27; size < 36; size += 3) {
      nn *n = build_network(names[i], (nn_shape){size, size + 1, 1}, 10, 1);
      nn_destroy(&n);
    }
  }
}

static double compute_variance(const nn_param *p) {
  double sum = 0.0;
  for (int64_t i = 0; i < p->count; i++)
    sum += (double)p->value[i] * (double)p->value[i] / (double)p->count;
  return sum;
}

static void initial_values_have_the_documented_variance(void **state) {
  static const struct {
    const char *name;
    nn_shape input;
  } some[] = {{"mlp", MNIST},
              {"lenet", MNIST},
              {"autoencoder", MNIST},
              {"resnet20", SMALL},
              {"gpt-char-32-2-2", TEXT}};
  for (int i = 0; i < 5; i++) {
    nn *n = build_network(some[i].name, some[i].input, 10, 3),
       *other = build_network(some[i].name, some[i].input, 10, 4);
    assert_int_equal(nn_prepare(n, 1), 0);
    assert_int_equal(nn_prepare(other, 1), 0);
    for (int k = 0; k < nn_count_params(n); k++) {
      const nn_param *p = nn_get_param(n, k);
      const nn_layer *l = p->layer >= 0 ? nn_get_layer(n, p->layer) : NULL;
      if (p->role == NN_GAMMA) assert_true(p->value[p->count - 1] == 1.0F);
      if (p->role == NN_BETA) assert_true(p->value[0] == 0.0F);
      if (p->role != NN_WEIGHT) continue;
      assert_memory_not_equal(p->value, nn_get_param(other, k)->value, (size_t)p->count * 4);
      const double area = l->is_conv ? (double)(l->kernel * l->kernel) : 1.0;
      const double in = (double)l->in * area, out = (double)l->out * area;
      const bool residual = strstr(p->name, "c_proj") != NULL;
      const double want = i == 4                 ? 0.02 * 0.02 / (residual ? 4.0 : 1.0)
                          : i == 2               ? 2.0 / (in + out) /* uniform: bound^2 / 3 */
                          : i == 3 && l->is_conv ? 2.0 / out
                                                 : 1.0 / (3.0 * in);
      /* five standard deviations of a mean of squares: sqrt(2 / n) for normals, sqrt(4 / (5 n)) for uniforms */
      assert_true(fabs(compute_variance(p) / want - 1.0) < 5.0 * sqrt(2.0 / (double)p->count));
    }
    nn_destroy(&n);
    nn_destroy(&other);
  }
}

/* Wrong names and unsuitable tasks cause a message on stderr. Inputs of shape TEXT are tokens. */
static void wrong_names_and_tasks_are_refused(void **state) {
  static const struct {
    const char *name, *says;
    nn_shape input;
    double dropout;
  } wrong[] = {
      {"resnet21", "nearest is resnet20", SMALL, -1.0},
      {"elephant", "unknown model 'elephant'", SMALL, -1.0},
      {"wrn-27-10", "depth of a wide residual network is 6 k + 4", SMALL, -1.0},
      {"wrn-28-1000", "unknown model", SMALL, -1.0},
      {"vgg16", "has dropout only for images of at least 64 pixels", SMALL, 0.5},
      {"mlp-16-65", "1 to 64 hidden layers", SMALL, -1.0},
      {"mlp-16-", "unknown model", SMALL, -1.0},
      {"gpt-char-30-2-4", "features divisible by heads", TEXT, -1.0},
      {"gpt-char-32-65-4", "expected 1 to 64 blocks", TEXT, -1.0},
      {"gpt-char-32-2", "unknown model", TEXT, -1.0},
      {"gpt-char-32-2-2", "has no dropout", TEXT, 0.3},
      {"gpt-char", "needs a text, and the data has images or features", SMALL, -1.0},
      {"mlp", "needs images or features, and the data has tokens", TEXT, -1.0},
      {"mlp-16-2", "has no dropout", SMALL, 0.3},
      {"resnet20", "needs images", {1, 1, 64}, -1.0},
      {"resnet20", "has no dropout", SMALL, 0.3},
      {"lenet", "smaller than the kernel", {8, 8, 1}, -1.0},
      {"vgg16",
       "vgg16 does not fit data of 16x16x3: max pool: an image of 1x1 is smaller than",
       {16, 16, 3},
       -1.0},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    const nn_shape in = wrong[i].input;
    const model_task task = {
        .input = in, .classes = 10, .is_text = in.width == 128, .dropout = wrong[i].dropout};
    bool reconstructs = false;
    nn *n = nn_create(NULL, 1);
    capture_stderr();
    int rc = model_build(wrong[i].name, &task, n, &reconstructs);
    if (rc == 0) rc = nn_prepare(n, 2);
    const char *line = captured_stderr();
    nn_destroy(&n);
    assert_int_equal(rc, 2);
    if (strstr(line, wrong[i].says) == NULL) fail_msg("'%s' is not in: %s", wrong[i].says, line);
  }
}

/* A weight file is read as it was written.  A non-finite number is rejected with the name of its tensor, even if
 * all checksums are right. */
static void non_finite_weights_are_refused(void **state) {
  static const float values[] = {FLT_MAX, -FLT_TRUE_MIN, INFINITY, -INFINITY, NAN};
  const model_task task = {.input = {1, 1, 6}, .classes = 3};
  bool reconstructs = false;
  nn *net = nn_create(NULL, 1);
  assert_int_equal(model_build("logreg", &task, net, &reconstructs), 0);
  assert_int_equal(nn_prepare(net, 1), 0);
  const nn_param *last = nn_get_param(net, nn_count_params(net) - 1);
  char says[128];
  (void)snprintf(says, sizeof says, "tensor '%s' holds a number that is not finite", last->name);
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    run_state s, back;
    checkpoint_init(&s);
    checkpoint_init(&back);
    last->value[1] = values[i];
    assert_int_equal(checkpoint_write_model(in_folder("w.safetensors"), net, &s), 0);
    last->value[1] = 0.0F;
    capture_stderr();
    const int rc = checkpoint_read_model(in_folder("w.safetensors"), net, &back);
    const char *text = captured_stderr();
    if ((rc == 0) != (isfinite(values[i]) != 0))
      fail_msg("weight %g: status %d, '%s'", (double)values[i], rc, text);
    if (rc == 0)
      assert_true(last->value[1] == values[i]);
    else
      assert_non_null(strstr(text, says));
  }
  nn_destroy(&net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(models_have_published_sizes_and_layers),
      cmocka_unit_test(residual_branches_round_sizes_alike),
      cmocka_unit_test(every_listed_model_builds),
      cmocka_unit_test(initial_values_have_the_documented_variance),
      cmocka_unit_test(wrong_names_and_tasks_are_refused),
      cmocka_unit_test(non_finite_weights_are_refused),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
