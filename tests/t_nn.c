/* t_nn.c: gradients of every kind of node against central differences of the loss, memory plan, watches, mistakes.
 * t_nn_forward.c tests the outputs.
 *
 * Central differences: for a random direction d of one parameter, (L(w + h d) - L(w - h d)) / 2 h must equal
 * <dL/dw, d>, which is about as large as ||dL/dw||.  L is summed in double over f32 outputs, so its error is about
 * 1e-7 L, or 1e-6 L / h after the division.  Terms of third order in h and kinks within h may contribute 1e-2 of
 * ||dL/dw||.  One wrong element of n changes <dL/dw, d> by about ||dL/dw|| / sqrt(n), so parameters are small
 * here. */
#include "draw.h"
#include "nn/models.h"
#include "nn/node.h"
#include "common/random.h"
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t allocations; /* allocations by our own code */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_aligned_alloc(size_t to, size_t bytes);
/* Linked libraries call these functions, too. */
#define EXPORTED __attribute__((visibility("default")))
EXPORTED void *__wrap_malloc(size_t bytes);
EXPORTED void *__wrap_calloc(size_t n, size_t bytes);
EXPORTED void *__wrap_aligned_alloc(size_t to, size_t bytes);
void *__wrap_malloc(size_t bytes) { return allocations++, __real_malloc(bytes); }
void *__wrap_calloc(size_t n, size_t bytes) { return allocations++, __real_calloc(n, bytes); }
void *__wrap_aligned_alloc(size_t to, size_t bytes) {
  return allocations++, __real_aligned_alloc(to, bytes);
}

/* ---- central differences -----------------------------------------------------------------------*/

typedef struct net_case {
  const char *name;
  nn_shape input;
  int64_t samples;
  void (*build)(nn *n, int x);
  nn_loss_kind loss;
  double smoothing;
  bool fixed;     /* norms use their running statistics instead of the batch */
  int64_t tokens; /* inputs are integers below this number; 0: inputs are normal */
} net_case;

static void build_linear(nn *n, int x) {
  (void)nn_add_linear(n, "b", nn_add_linear(n, "a", x, 4, true), 3, true);
}
static void build_unbiased(nn *n, int x) { (void)nn_add_linear(n, "a", x, 3, false); }
static void build_activations(nn *n, int x) {
  x = nn_add_relu(
      n, nn_add_linear(n, "b", nn_add_tanh(n, nn_add_linear(n, "a", x, 9, true)), 9, true));
  (void)nn_add_sigmoid(n, nn_add_linear(n, "c", x, 5, true));
}
static void build_dropout(nn *n, int x) {
  (void)nn_add_linear(n, "b", nn_add_dropout(n, nn_add_linear(n, "a", x, 30, true), 0.4), 3, true);
}
/* A node after a node that works in place must not work in place, too. */
static void build_in_place_chain(nn *n, int x) {
  x = nn_add_relu(n, nn_add_norm(n, "n", nn_add_conv(n, "a", x, 3, 3, 1, 1, true)));
  (void)nn_add_linear(n, "b", nn_add_dropout(n, nn_add_tanh(n, x), 0.2), 2, true);
}
static void build_norm(nn *n, int x) {
  (void)nn_add_linear(n, "b", nn_add_norm(n, "n", nn_add_conv(n, "a", x, 5, 1, 1, 0, false)), 2,
                      true);
}
static void build_flat_norm(nn *n, int x) {
  (void)nn_add_linear(n, "b", nn_add_norm(n, "n", nn_add_linear(n, "a", x, 6, false)), 2, true);
}
static void build_max_pool(nn *n, int x) {
  (void)nn_add_max_pool(n, nn_add_conv(n, "a", x, 2, 1, 1, 0, true), 3, 2, 1);
}
static void build_gapped_pool(nn *n, int x) {
  (void)nn_add_max_pool(n, nn_add_conv(n, "a", x, 2, 1, 1, 0, true), 2, 3, 0);
}
static void build_average_pool(nn *n, int x) {
  (void)nn_add_average_pool(n, nn_add_conv(n, "a", x, 2, 1, 1, 0, true), 2, 2);
}
static void build_global_pool(nn *n, int x) {
  (void)nn_add_global_pool(n, nn_add_tanh(n, nn_add_conv(n, "a", x, 3, 3, 1, 1, true)));
}
static void build_sums(nn *n, int x) {
  const int a = nn_add_conv(n, "a", x, 3, 1, 1, 0, true);
  const int b = nn_add_tanh(n, nn_add_conv(n, "b", a, 3, 3, 1, 1, false));
  (void)nn_add_global_pool(
      n, nn_add_sum(n, nn_add_conv(n, "c", b, 3, 1, 1, 0, false), nn_add_sum(n, a, b)));
}
static void build_sum_with_itself(nn *n, int x) {
  const int a = nn_add_linear(n, "a", x, 4, true);
  (void)nn_add_sum(n, a, a);
}
static void build_residual(nn *n, int x) {
  x = nn_add_relu(n, nn_add_norm(n, "n0", nn_add_conv(n, "c0", x, 4, 3, 1, 1, false)));
  int y = nn_add_relu(n, nn_add_norm(n, "n1", nn_add_conv(n, "c1", x, 6, 3, 2, 1, false)));
  y = nn_add_norm(n, "n2", nn_add_conv(n, "c2", y, 6, 3, 1, 1, false));
  const int s = nn_add_norm(n, "n3", nn_add_conv(n, "c3", x, 6, 1, 2, 0, false));
  x = nn_add_relu(n, nn_add_sum(n, y, s));
  y = nn_add_norm(n, "n4", nn_add_conv(n, "c4", x, 6, 3, 1, 1, false));
  (void)nn_add_linear(n, "fc", nn_add_global_pool(n, nn_add_relu(n, nn_add_sum(n, y, x))), 3, true);
}
static void build_tokens(nn *n, int x) {
  const int a = nn_add_embedding(n, "a", x, 5, 6);
  const int b = nn_add_embedding(n, "b", nn_add_positions(n, x), 4, 6);
  (void)nn_add_projection(n, "c", nn_add_gelu(n, nn_add_sum(n, a, b)), 3, true);
}
static void build_layer_norm(nn *n, int x) {
  x = nn_add_layer_norm(n, "n", nn_add_projection(n, "a", x, 19, true));
  (void)nn_add_projection(n, "b", nn_add_sum(n, nn_add_layer_norm(n, "m", x), x), 3, false);
}
static void build_attention(nn *n, int x) {
  x = nn_add_projection(n, "a", x, 12, true);
  (void)nn_add_projection(n, "b", nn_add_attention(n, x, 2), 3, true);
}
/* The input of the attention has a second reader, so that backward adds to its gradient. */
static void build_attention_and_more(nn *n, int x) {
  x = nn_add_projection(n, "a", x, 9, true);
  const int y = nn_add_projection(n, "b", nn_add_attention(n, x, 3), 4, true);
  (void)nn_add_sum(n, y, nn_add_projection(n, "c", nn_add_gelu(n, x), 4, true));
}
#define CONV(name, out, k, s, p, bias)                                                             \
  static void name(nn *n, int x) {                                                                 \
    (void)nn_add_conv(n, "b", nn_add_conv(n, "a", x, 3, 1, 1, 0, true), out, k, s, p, bias);       \
  }
CONV(build_conv3, 4, 3, 1, 1, true)
CONV(build_conv3s2, 4, 3, 2, 1, false)
CONV(build_conv1s2, 4, 1, 2, 0, true)
CONV(build_conv5p2, 2, 5, 1, 2, true)
CONV(build_conv5, 2, 5, 1, 0, true)
CONV(build_conv2s3, 3, 2, 3, 1, true)
CONV(build_conv3p3, 2, 3, 1, 3, true)
CONV(build_conv7s2p3, 2, 7, 2, 3, false)

static const net_case cases[] = {
    {"linear", {1, 1, 5}, 7, build_linear, NN_SQUARED_ERROR, 0, false, 0},
    {"linear, no bias, one sample", {1, 1, 5}, 1, build_unbiased, NN_CROSS_ENTROPY, 0, false, 0},
    {"cross entropy, smoothed", {1, 1, 5}, 6, build_linear, NN_CROSS_ENTROPY, 0.1, false, 0},
    {"activations", {1, 1, 5}, 8, build_activations, NN_SQUARED_ERROR, 0, false, 0},
    {"dropout", {1, 1, 5}, 8, build_dropout, NN_SQUARED_ERROR, 0, false, 0},
    {"chain", {4, 5, 2}, 3, build_in_place_chain, NN_SQUARED_ERROR, 0, false, 0},
    {"norm", {4, 3, 2}, 5, build_norm, NN_SQUARED_ERROR, 0, false, 0},
    {"norm, fixed", {4, 3, 2}, 5, build_norm, NN_SQUARED_ERROR, 0, true, 0},
    {"norm of features", {1, 1, 4}, 9, build_flat_norm, NN_SQUARED_ERROR, 0, false, 0},
    {"max pool", {7, 5, 2}, 3, build_max_pool, NN_SQUARED_ERROR, 0, false, 0},
    {"max pool, apart", {8, 8, 2}, 3, build_gapped_pool, NN_SQUARED_ERROR, 0, false, 0},
    {"average pool", {7, 4, 2}, 3, build_average_pool, NN_SQUARED_ERROR, 0, false, 0},
    {"global pool", {4, 6, 1}, 3, build_global_pool, NN_SQUARED_ERROR, 0, false, 0},
    {"add", {4, 4, 2}, 3, build_sums, NN_SQUARED_ERROR, 0, false, 0},
    {"add of one", {1, 1, 4}, 3, build_sum_with_itself, NN_SQUARED_ERROR, 0, false, 0},
    {"residual", {8, 8, 3}, 4, build_residual, NN_CROSS_ENTROPY, 0.1, false, 0},
    {"conv 3", {5, 6, 2}, 3, build_conv3, NN_SQUARED_ERROR, 0, false, 0},
    {"conv 3 / 2", {7, 6, 1}, 3, build_conv3s2, NN_SQUARED_ERROR, 0, false, 0},
    {"conv 1 / 2", {5, 6, 2}, 2, build_conv1s2, NN_SQUARED_ERROR, 0, false, 0},
    {"conv 5 pad 2", {4, 6, 2}, 2, build_conv5p2, NN_SQUARED_ERROR, 0, false, 0},
    {"conv 5", {5, 7, 2}, 1, build_conv5, NN_SQUARED_ERROR, 0, false, 0},
    {"conv 2 / 3", {5, 7, 2}, 2, build_conv2s3, NN_SQUARED_ERROR, 0, false, 0},
    {"conv 3 pad 3", {2, 3, 2}, 2, build_conv3p3, NN_SQUARED_ERROR, 0, false, 0},
    {"conv 7 / 2 on a smaller image", {4, 5, 2}, 2, build_conv7s2p3, NN_SQUARED_ERROR, 0, false, 0},
    {"tokens", {1, 4, 1}, 3, build_tokens, NN_CROSS_ENTROPY, 0.1, false, 5},
    {"layer norm", {1, 7, 4}, 3, build_layer_norm, NN_SQUARED_ERROR, 0, false, 0},
    {"attention", {1, 7, 4}, 3, build_attention, NN_CROSS_ENTROPY, 0, false, 0},
    {"attention, two tiles",
     {1, 70, 3},
     2,
     build_attention_and_more,
     NN_SQUARED_ERROR,
     0,
     false,
     0},
};

typedef struct test_net {
  nn *n;
  const net_case *k;
  float *x, *targets;
  int32_t *labels;
} test_net;

static test_net open_net(const net_case *k, ng_pool *pool) {
  test_net s = {nn_create(pool, test_seed()), k, NULL, NULL, NULL};
  nn_set_initializer(s.n, NN_GLOROT);
  nn_set_loss(s.n, k->loss, k->smoothing);
  k->build(s.n, nn_add_input(s.n, k->input));
  assert_int_equal(nn_prepare(s.n, k->samples), 0);
  const int64_t in = k->samples * nn_count_values(k->input),
                out = k->samples * nn_count_outputs(s.n);
  s.x = malloc((size_t)in * sizeof *s.x);
  s.targets = malloc((size_t)out * sizeof *s.targets);
  const int64_t labels = k->samples * nn_count_losses(s.n);
  s.labels = malloc((size_t)labels * sizeof *s.labels);
  random_normal(test_seed(), RANDOM_DATA, 1, 1.0, 0, in, s.x);
  for (int64_t i = 0; i < in && k->tokens > 0; i++)
    s.x[i] = (float)(i * i % k->tokens);
  random_normal(test_seed(), RANDOM_DATA, 2, 1.0, 0, out, s.targets);
  for (int64_t i = 0; i < labels; i++)
    s.labels[i] = (int32_t)((i * 5 + 1) % (nn_count_outputs(s.n) / nn_count_losses(s.n)));
  for (int i = 0; i < nn_count_params(s.n); i++) { /* far from 0 and 1, where errors could cancel */
    const nn_param *p = nn_get_param(s.n, i);
    if (p->role != NN_WEIGHT)
      random_uniform(9, RANDOM_DATA, (uint32_t)i, 0.3, 1.2, p->count, p->value);
  }
  nn_freeze_norms(s.n, k->fixed);
  for (int i = 0; i < 2 && k->fixed; i++)
    random_uniform(9, RANDOM_DATA, (uint32_t)i, 0.3, 1.2, nn_get_buffer(s.n, i)->count,
                   nn_get_buffer(s.n, i)->value);
  return s;
}

static void close_net(test_net *s) {
  nn_destroy(&s->n);
  free(s->x);
  free(s->targets);
  free(s->labels);
}

static double compute_loss(const test_net *s) {
  const float running = s->k->fixed ? nn_get_buffer(s->n, 0)->value[0] : 0.0F;
  float evaluated = 0.0F;
  if (s->k->fixed) {
    assert_int_equal(nn_forward(s->n, NN_EVALUATE, s->x, s->k->samples, 0, NULL), 0);
    evaluated = nn_get_output(s->n)[0];
  }
  assert_int_equal(nn_forward(s->n, NN_TRAIN, s->x, s->k->samples, 3, NULL), 0);
  if (s->k->fixed)
    assert_true(nn_get_output(s->n)[0] == evaluated && nn_get_buffer(s->n, 0)->value[0] == running);
  const bool soft = s->k->loss == NN_SQUARED_ERROR; /* cross entropy also accepts labels */
  return nn_compute_loss(s->n, NN_TRAIN, s->labels, soft ? s->targets : NULL, NULL);
}

/* Compute the central slope of the loss along d, and the slopes from the right and from the left of p. */
static void compute_slopes(const test_net *s, const nn_param *p, const float *d, double h,
                           double slope[3]) {
  const size_t bytes = (size_t)p->count * sizeof(float);
  float *keep = malloc(bytes);
  double value[3];
  memcpy(keep, p->value, bytes);
  for (int side = -1; side <= 1; side++) {
    for (int64_t k = 0; k < p->count; k++)
      p->value[k] = keep[k] + (float)(h * side) * d[k];
    value[side + 1] = compute_loss(s);
  }
  memcpy(p->value, keep, bytes);
  free(keep);
  slope[0] = (value[2] - value[0]) / (2.0 * h);
  slope[1] = (value[2] - value[1]) / h;
  slope[2] = (value[1] - value[0]) / h;
}

static void check_gradient(const test_net *s, int i, double loss) {
  const nn_param *p = nn_get_param(s->n, i);
  float *d = malloc((size_t)p->count * sizeof *d);
  for (uint32_t trial = 0; trial < 3; trial++) {
    double product = 0.0, norm = 0.0, tolerance = 0.0;
    random_normal(test_seed(), RANDOM_DATA, 100 + trial, 1.0, 0, p->count, d);
    for (int64_t k = 0; k < p->count; k++) {
      product += (double)p->grad[k] * (double)d[k];
      norm += (double)p->grad[k] * (double)p->grad[k];
    }
    /* A kink lies on one side of w only, or vanishes with a smaller h.  A wrong gradient is wrong on both sides
     * and for all h. */
    bool good = false;
    double slope[3] = {0, 0, 0};
    for (double h = 1e-3; h > 1e-4 && !good; h *= 0.5) {
      compute_slopes(s, p, d, h, slope);
      tolerance = 1e-2 * sqrt(norm) + 1e-6 * fabs(loss) / h;
      for (int k = 0; k < 3; k++)
        good = good || fabs(slope[k] - product) <= tolerance;
    }
    if (!good) {
      fail_msg("%s: %s: slope %g, <grad, d> %g, tolerance %g (NG_TEST_SEED=%llu)", s->k->name,
               p->name, slope[0], product, tolerance, (unsigned long long)test_seed());
    }
  }
  free(d);
}

static void gradients_match_central_differences(void **state) {
  ng_pool *pool = ng_pool_create(2, NULL);
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    test_net s = open_net(&cases[c], pool);
    const double loss = compute_loss(&s);
    assert_int_equal(nn_backward(s.n, true, NULL), 0);
    for (int i = 0; i < nn_count_params(s.n); i++) {
      check_gradient(&s, i, loss);
      (void)compute_loss(&s);
      assert_int_equal(nn_backward(s.n, true, NULL), 0);
    }
    close_net(&s);
  }
  ng_pool_destroy(pool);
}

/* Concatenate loss, output and all gradients of a step, to compare bits. */
static float *copy_step_results(const test_net *s, int64_t *count) {
  const int64_t out = s->k->samples * nn_count_outputs(s->n);
  *count = out + nn_count_weights(s->n);
  float *r = malloc((size_t)*count * sizeof *r), *at = r + out;
  (void)compute_loss(s);
  memcpy(r, nn_get_output(s->n), (size_t)out * sizeof *r);
  assert_int_equal(nn_backward(s->n, true, NULL), 0);
  for (int i = 0; i < nn_count_params(s->n); i++) {
    const nn_param *p = nn_get_param(s->n, i);
    memcpy(at, p->grad, (size_t)p->count * sizeof *r);
    at += p->count;
  }
  return r;
}

static void plan_memory(test_net *s, bool share) {
  assert_true(nn_allocate(s->n, share));
  nn_init_parameters(s->n);
}

/* Shared and separate memory give the same bits, also after another batch, and nothing is allocated. */
static void memory_plans_do_not_change_results(void **state) {
  ng_pool *pool = ng_pool_create(2, NULL);
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    test_net s = open_net(&cases[c], pool);
    int64_t count = 0;
    plan_memory(&s, false);
    const int64_t apart = nn_count_bytes(s.n);
    float *oracle = copy_step_results(&s, &count);
    plan_memory(&s, true);
    assert_true(nn_count_bytes(s.n) <= apart);
    float *first = copy_step_results(&s, &count);
    assert_memory_equal(first, oracle, (size_t)count * sizeof *first);
    /* Another batch, another size, an evaluation, sampled targets: all must leave the next step unchanged. */
    const float first_value = s.x[0];
    s.x[0] += 1.0F;
    assert_int_equal(nn_forward(s.n, NN_TRAIN, s.x, 1, 9, NULL), 0);
    nn_compute_sampled_loss(s.n, 4);
    const int64_t before = allocations;
    assert_int_equal(nn_backward(s.n, true, NULL), 0);
    assert_int_equal(nn_forward(s.n, NN_EVALUATE, s.x, s.k->samples, 0, NULL), 0);
    (void)compute_loss(&s);
    assert_int_equal(allocations, before);
    s.x[0] = first_value;
    float *again = copy_step_results(&s, &count);
    assert_memory_equal(first, again, (size_t)count * sizeof *first);
    free(oracle);
    free(first);
    free(again);
    close_net(&s);
  }
  ng_pool_destroy(pool);
}

/* ---- watching ----------------------------------------------------------------------------------*/

typedef struct observed {
  nn *n;
  int inputs, outputs, stop_at;
  int norm_inputs, norm_outputs;
  /* sum of the output gradients of the first norm's first channel, which is its beta's gradient */
  double beta;
  /* input times output gradient of the last layer, which is its weight's gradient */
  double product;
  const float *a;
} observed;

static int check_input(observed *s, int layer, const float *a, int64_t samples, int64_t columns) {
  if (layer >= nn_count_layers(s->n)) {
    const nn_norm_layer *v = nn_get_norm(s->n, s->norm_inputs);
    assert_int_equal(layer, nn_count_layers(s->n) + s->norm_inputs++);
    assert_int_equal(columns, v->height * v->width * v->channels);
    return 0;
  }
  const nn_layer *l = nn_get_layer(s->n, layer);
  assert_int_equal(columns, l->is_conv ? l->height * l->width * l->in : l->in);
  assert_int_equal(samples, 3);
  assert_int_equal(layer, s->inputs);
  s->a = a;
  return ++s->inputs == s->stop_at ? 77 : 0;
}

static int check_output(observed *s, int layer, const float *g, int64_t samples, int64_t columns) {
  if (layer >= nn_count_layers(s->n)) {
    assert_int_equal(layer, nn_count_layers(s->n) + nn_count_norms(s->n) - 1 - s->norm_outputs++);
    const int64_t channels = nn_get_norm(s->n, layer - nn_count_layers(s->n))->channels;
    s->beta = 0.0;
    for (int64_t i = 0; i < samples * columns; i += channels)
      s->beta += (double)g[i];
    return 0;
  }
  const nn_layer *l = nn_get_layer(s->n, layer);
  assert_int_equal(columns, l->positions * l->out);
  assert_int_equal(layer, nn_count_layers(s->n) - 1 - s->outputs++);
  if (!l->is_conv) {
    s->product = 0.0;
    for (int64_t i = 0; i < samples; i++)
      s->product += (double)g[i * columns] * (double)s->a[i * l->in];
  }
  return 0;
}

static int check_observed_array(void *user, int layer, const float *x, int64_t samples,
                                int64_t columns, bool grad) {
  return (grad ? check_output : check_input)(user, layer, x, samples, columns);
}

static void watches_receive_every_layer(void **state) {
  const net_case k = {"residual", {8, 8, 3}, 3, build_residual, NN_CROSS_ENTROPY, 0, false, 0};
  test_net s = open_net(&k, NULL);
  observed w = {.n = s.n};
  const nn_watch watch = {&w, check_observed_array};
  assert_int_equal(nn_forward(s.n, NN_TRAIN, s.x, 3, 0, &watch), 0);
  (void)nn_compute_loss(s.n, NN_TRAIN, s.labels, NULL, NULL);
  assert_int_equal(nn_backward(s.n, true, &watch), 0);
  assert_int_equal(w.inputs, 6);
  assert_int_equal(w.outputs, 6);
  assert_true(w.norm_inputs > 0 && w.norm_inputs == nn_count_norms(s.n));
  assert_int_equal(w.norm_outputs, nn_count_norms(s.n));
  const nn_param *beta = nn_get_param(s.n, nn_get_norm(s.n, 0)->beta_param);
  assert_true(fabs(w.beta - (double)beta->grad[0]) < 1e-5);
  const nn_layer *l = nn_get_layer(s.n, 5);
  assert_true(fabs(w.product - (double)nn_get_param(s.n, l->weight_param)->grad[0]) < 1e-5);
  w = (observed){.n = s.n, .stop_at = 2};
  assert_int_equal(nn_forward(s.n, NN_TRAIN, s.x, 3, 0, &watch), 77);
  close_net(&s);
}

/* ---- mistakes ----------------------------------------------------------------------------------*/

static void first_mistake_is_reported(void **state) {
  for (int kind = 0; kind < 10; kind++) {
    nn *n = nn_create(NULL, 1);
    int x = nn_add_input(n, (nn_shape){4, 4, 2});
    const int y = kind == 0   ? nn_add_conv(n, "c", x, 2, 5, 1, 0, true)
                  : kind == 1 ? nn_add_sum(n, x, nn_add_conv(n, "c", x, 3, 1, 1, 0, true))
                  : kind == 2 ? nn_add_linear(n, "f", x, 0, true)
                  : kind == 3 ? nn_add_dropout(n, x, 1.0)
                  : kind == 4 ? nn_add_max_pool(n, x, 2, 1, 2)
                  : kind == 5 ? nn_add_conv(n,
                                            "a name that is longer than the sixty-three letters "
                                            "there is room for in a parameter",
                                            x, 2, 1, 1, 0, true)
                  : kind == 6 ? nn_add_attention(n, x, 2)
                  : kind == 7 ? nn_add_embedding(n, "e", x, 3, 4)
                  : kind == 8 ? nn_add_positions(n, nn_add_relu(n, x))
                              : nn_add_input(n, (nn_shape){4, 4, 2});
    if (kind != 5) assert_int_equal(y, -1);
    assert_int_equal(nn_add_relu(n, kind == 5 ? -1 : y), -1);
    assert_true(n->error[0] != 0);
    nn_destroy(&n);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_match_central_differences),
      cmocka_unit_test(memory_plans_do_not_change_results),
      cmocka_unit_test(watches_receive_every_layer),
      cmocka_unit_test(first_mistake_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
