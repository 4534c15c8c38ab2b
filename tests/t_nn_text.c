/* t_nn_text.c: the model gpt-char against a float64 program of the same formulas: loss, outputs and the gradient of every
 * element; exp in f32; gradients of layers from observed arrays. */
#include "draw.h"
#include "nn/expf.h"
#include "nn/models.h"
#include "nn/node.h"
#include "common/random.h"
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the oracle: plain loops in double -------------------------------------------------------------
 * Parameters are double copies, in the order of the network. An array is [rows][channels], rows = samples * t. */

enum { MOST_PARAMS = 64 };

typedef struct oracle {
  const nn *n;
  double *value[MOST_PARAMS];
  const float *tokens;
  const int32_t *labels;
  int64_t rows, t, c, heads, blocks, classes;
} oracle;

static const double *find_values(const oracle *o, int64_t block, const char *part) {
  char name[NN_NAME];
  if (block >= 0) (void)snprintf(name, sizeof name, "transformer.h.%d.%s", (int)block, part);
  if (block < 0) (void)snprintf(name, sizeof name, "%s", part);
  for (int i = 0; i < nn_count_params(o->n); i++)
    if (strcmp(nn_get_param(o->n, i)->name, name) == 0) return o->value[i];
  fail_msg("no parameter %s", name);
  return NULL;
}

static double *new_array(int64_t count) { return calloc((size_t)count, sizeof(double)); }

static double *apply_linear(const double *x, int64_t rows, int64_t in, int64_t out, const double *w,
                            const double *b) {
  double *y = new_array(rows * out);
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t k = 0; k < out; k++) {
      y[r * out + k] = b != NULL ? b[k] : 0.0;
      for (int64_t i = 0; i < in; i++)
        y[r * out + k] += x[r * in + i] * w[k * in + i];
    }
  }
  return y;
}

static double *normalise(const double *x, int64_t rows, int64_t c, const double *gamma,
                         const double *beta) {
  double *y = new_array(rows * c);
  for (int64_t r = 0; r < rows; r++) {
    double mean = 0.0, var = 0.0;
    for (int64_t k = 0; k < c; k++)
      mean += x[r * c + k] / (double)c;
    for (int64_t k = 0; k < c; k++)
      var += pow(x[r * c + k] - mean, 2.0) / (double)c;
    for (int64_t k = 0; k < c; k++)
      y[r * c + k] = gamma[k] * (x[r * c + k] - mean) / sqrt(var + 1e-5) + beta[k];
  }
  return y;
}

static double *attend(const oracle *o, const double *x) {
  const int64_t c = o->c, s = c / o->heads;
  double *y = new_array(o->rows * c), *p = new_array(o->t);
  for (int64_t r = 0; r < o->rows; r++) {
    const int64_t first = r / o->t * o->t;
    for (int64_t h = 0; h < o->heads; h++) {
      double sum = 0.0;
      for (int64_t j = first; j <= r; j++) {
        double product = 0.0;
        for (int64_t k = h * s; k < (h + 1) * s; k++)
          product += x[r * 3 * c + k] * x[j * 3 * c + c + k];
        p[j - first] = exp(product / sqrt((double)s));
        sum += p[j - first];
      }
      for (int64_t j = first; j <= r; j++) {
        for (int64_t k = h * s; k < (h + 1) * s; k++)
          y[r * c + k] += p[j - first] / sum * x[j * 3 * c + 2 * c + k];
      }
    }
  }
  free(p);
  return y;
}

static void add_and_free(double *x, double *y, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    x[i] += y[i];
  free(y);
}

/* Return the loss. If `logits` is not NULL, copy the outputs of the network to it. */
static double compute_oracle_loss(const oracle *o, double *logits) {
  const int64_t rows = o->rows, c = o->c;
  const double *wte = find_values(o, -1, "transformer.wte.weight");
  const double *wpe = find_values(o, -1, "transformer.wpe.weight");
  double *x = new_array(rows * c);
  for (int64_t i = 0; i < rows * c; i++)
    x[i] = wte[(int64_t)o->tokens[i / c] * c + i % c] + wpe[i / c % o->t * c + i % c];
  for (int64_t b = 0; b < o->blocks; b++) {
    double *h =
        normalise(x, rows, c, find_values(o, b, "ln_1.weight"), find_values(o, b, "ln_1.bias"));
    double *qkv = apply_linear(h, rows, c, 3 * c, find_values(o, b, "attn.c_attn.weight"),
                               find_values(o, b, "attn.c_attn.bias"));
    double *y = attend(o, qkv);
    add_and_free(x,
                 apply_linear(y, rows, c, c, find_values(o, b, "attn.c_proj.weight"),
                              find_values(o, b, "attn.c_proj.bias")),
                 rows * c);
    free(h);
    free(qkv);
    free(y);
    h = normalise(x, rows, c, find_values(o, b, "ln_2.weight"), find_values(o, b, "ln_2.bias"));
    y = apply_linear(h, rows, c, 4 * c, find_values(o, b, "mlp.c_fc.weight"),
                     find_values(o, b, "mlp.c_fc.bias"));
    for (int64_t i = 0; i < rows * 4 * c; i++)
      y[i] *= 0.5 * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (y[i] + 0.044715 * pow(y[i], 3.0))));
    add_and_free(x,
                 apply_linear(y, rows, 4 * c, c, find_values(o, b, "mlp.c_proj.weight"),
                              find_values(o, b, "mlp.c_proj.bias")),
                 rows * c);
    free(h);
    free(y);
  }
  double *h = normalise(x, rows, c, find_values(o, -1, "transformer.ln_f.weight"),
                        find_values(o, -1, "transformer.ln_f.bias"));
  double *y = apply_linear(h, rows, c, o->classes, find_values(o, -1, "lm_head.weight"), NULL);
  double loss = 0.0;
  for (int64_t r = 0; r < rows; r++) {
    double sum = 0.0;
    for (int64_t k = 0; k < o->classes; k++)
      sum += exp(y[r * o->classes + k]);
    loss += (log(sum) - y[r * o->classes + o->labels[r]]) / (double)rows;
  }
  if (logits != NULL) memcpy(logits, y, (size_t)(rows * o->classes) * sizeof *y);
  free(x);
  free(h);
  free(y);
  return loss;
}

/* ---- a network and its oracle ---------------------------------------------------------------------*/

typedef struct text_case {
  const char *model;
  int64_t samples, t, classes, c, blocks, heads;
} text_case;

typedef struct text_net {
  nn *n;
  ng_pool *pool;
  oracle o;
  float *tokens;
  int32_t *labels;
} text_net;

static text_net open_text_net(const text_case *k) {
  text_net s = {.pool = ng_pool_create(2, NULL)};
  const int64_t rows = k->samples * k->t;
  const model_task task = {
      .input = {1, k->t, 1}, .classes = k->classes, .is_text = true, .dropout = -1.0};
  bool reconstructs = true;
  s.n = nn_create(s.pool, test_seed());
  assert_int_equal(model_build(k->model, &task, s.n, &reconstructs), 0);
  assert_int_equal(nn_prepare(s.n, k->samples), 0);
  assert_true(!reconstructs && nn_count_losses(s.n) == k->t);
  assert_int_equal(nn_count_outputs(s.n), k->t * k->classes);
  s.tokens = malloc((size_t)rows * sizeof *s.tokens);
  s.labels = malloc((size_t)rows * sizeof *s.labels);
  for (int64_t i = 0; i < rows; i++) {
    s.tokens[i] = (float)((i * i + i / 3) % k->classes);
    s.labels[i] = (int32_t)((i * 7 + 2) % k->classes);
  }
  s.o =
      (oracle){s.n, {NULL}, s.tokens, s.labels, rows, k->t, k->c, k->heads, k->blocks, k->classes};
  assert_true(nn_count_params(s.n) <= MOST_PARAMS);
  for (int i = 0; i < nn_count_params(s.n); i++) {
    /* large enough that attention is far from uniform and GELU is curved */
    const nn_param *p = nn_get_param(s.n, i);
    if (p->role == NN_GAMMA || p->role == NN_BETA || p->role == NN_BIAS)
      random_uniform(test_seed(), RANDOM_DATA, (uint32_t)i, -0.7, 1.3, p->count, p->value);
    if (p->role == NN_WEIGHT)
      random_normal(test_seed(), RANDOM_DATA, (uint32_t)i, 0.4, 0, p->count, p->value);
    s.o.value[i] = new_array(p->count);
    for (int64_t e = 0; e < p->count; e++)
      s.o.value[i][e] = (double)p->value[e];
  }
  return s;
}

static void close_text_net(text_net *s) {
  for (int i = 0; i < nn_count_params(s->n); i++)
    free(s->o.value[i]);
  nn_destroy(&s->n);
  ng_pool_destroy(s->pool);
  free(s->tokens);
  free(s->labels);
}

/* Central differences of the oracle with h = 1e-5 have an error of about h^2 = 1e-10 and 1e-16 / h = 1e-11. The
 * network computes in f32, with sums of at most 300 terms: 2e-5 of the largest gradient of the parameter. */
static void check_param_gradient(const text_net *s, int i) {
  const nn_param *p = nn_get_param(s->n, i);
  const double h = 1e-5;
  double *want = new_array(p->count), largest = 0.0;
  for (int64_t e = 0; e < p->count; e++) {
    const double value = s->o.value[i][e];
    s->o.value[i][e] = value + h;
    const double above = compute_oracle_loss(&s->o, NULL);
    s->o.value[i][e] = value - h;
    want[e] = (above - compute_oracle_loss(&s->o, NULL)) / (2.0 * h);
    s->o.value[i][e] = value;
    largest = fmax(largest, fabs(want[e]));
  }
  /* The gradient of the keys' bias is 0: softmax does not change if all scores of a row change alike. */
  for (int64_t e = 0; e < p->count; e++) {
    if (!(fabs((double)p->grad[e] - want[e]) <= 2e-5 * largest))
      fail_msg("%s[%lld]: %g, expected %g (largest %g, NG_TEST_SEED=%llu)", p->name, (long long)e,
               (double)p->grad[e], want[e], largest, (unsigned long long)test_seed());
  }
  assert_true(largest > 1e-4);
  free(want);
}

static void gradients_match_float64(void **state) {
  static const text_case cases[] = {
      {"gpt-char-8-2-2", 3, 5, 6, 8, 2, 2},
      {"gpt-char-6-1-3", 2, 67, 4, 6, 1, 3}, /* two tiles of attention */
  };
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    text_net s = open_text_net(&cases[c]);
    int64_t correct = -1, right = 0;
    assert_int_equal(nn_forward(s.n, NN_TRAIN, s.tokens, cases[c].samples, 0, NULL), 0);
    const double loss = nn_compute_loss(s.n, NN_TRAIN, s.labels, NULL, &correct);
    double *logits = new_array(s.o.rows * s.o.classes);
    const double want = compute_oracle_loss(&s.o, logits);
    assert_true(fabs(loss - want) <= 1e-6 * want);
    for (int64_t r = 0; r < s.o.rows; r++) {
      const float *y = nn_get_output(s.n) + r * s.o.classes;
      int64_t best = 0;
      for (int64_t k = 0; k < s.o.classes; k++) {
        assert_true(fabs((double)y[k] - logits[r * s.o.classes + k]) <= 2e-5);
        if (y[k] > y[best]) best = k;
      }
      right += best == s.labels[r];
    }
    assert_int_equal(correct, right);
    free(logits);
    assert_int_equal(nn_backward(s.n, true, NULL), 0);
    for (int i = 0; i < nn_count_params(s.n); i++)
      check_param_gradient(&s, i);
    close_text_net(&s);
  }
}

/* ---- observed arrays --------------------------------------------------------------------------------*/

typedef struct observed {
  const nn *n;
  const float *input[MOST_PARAMS]; /* the network keeps all outputs until the end of backward */
  int inputs, gradients;
} observed;

/* The gradient of a weight is the sum over positions of output gradient times input, which the library observes. */
static int check_layer(void *user, int layer, const float *x, int64_t samples, int64_t columns,
                       bool grad) {
  observed *w = user;
  if (!grad) {
    w->inputs++;
    w->input[layer] = x;
    return 0;
  }
  w->gradients++;
  if (layer >= nn_count_layers(w->n)) {
    const nn_norm_layer *l = nn_get_norm(w->n, layer - nn_count_layers(w->n));
    assert_true(l->is_layer_norm && columns == l->height * l->width * l->channels);
    return 0;
  }
  const nn_layer *l = nn_get_layer(w->n, layer);
  const int64_t rows = samples * l->positions;
  assert_int_equal(columns, l->positions * l->out);
  double *sum = new_array(l->in * l->out), largest = 0.0;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t i = 0; i < l->in; i++) {
      const double a = !l->is_embedding                 ? (double)w->input[layer][r * l->in + i]
                       : w->input[layer][r] == (float)i ? 1.0
                                                        : 0.0;
      for (int64_t o = 0; o < l->out; o++)
        sum[l->is_embedding ? i * l->out + o : o * l->in + i] += a * (double)x[r * l->out + o];
    }
  }
  /* The watch of backward precedes the node, so compare with the gradient of the pass before it. */
  const nn_param *p = nn_get_param(w->n, l->weight_param);
  assert_int_equal(p->count, l->in * l->out);
  for (int64_t e = 0; e < p->count; e++)
    largest = fmax(largest, fabs(sum[e]));
  for (int64_t e = 0; e < p->count; e++)
    assert_true(fabs((double)p->grad[e] - sum[e]) <= 1e-5 * largest);
  free(sum);
  return 0;
}

static void observed_arrays_give_weight_gradients(void **state) {
  const text_case k = {"gpt-char-8-2-2", 3, 5, 6, 8, 2, 2};
  text_net s = open_text_net(&k);
  observed w = {.n = s.n};
  const nn_watch watch = {&w, check_layer};
  for (int pass = 0; pass < 2; pass++) {
    assert_int_equal(nn_forward(s.n, NN_TRAIN, s.tokens, 3, 0, pass == 1 ? &watch : NULL), 0);
    (void)nn_compute_loss(s.n, NN_TRAIN, s.labels, NULL, NULL);
    assert_int_equal(nn_backward(s.n, true, pass == 1 ? &watch : NULL), 0);
  }
  /* two embeddings, four layers a block, the head; two norms a block, the final norm */
  assert_int_equal(nn_count_layers(s.n), 2 + 4 * 2 + 1);
  assert_int_equal(nn_count_norms(s.n), 2 * 2 + 1);
  assert_int_equal(w.inputs, 11 + 5);
  assert_int_equal(w.gradients, 11 + 5);
  close_text_net(&s);
}

/* ---- exp --------------------------------------------------------------------------------------------*/

static void exp_is_accurate(void **state) {
  for (int i = -870000; i <= 880000; i++) {
    const float x = (float)i * 1e-4F;
    const double want = exp((double)x);
    if (!(fabs((double)nn_expf(x) - want) <= 2e-7 * want)) fail_msg("exp(%g)", (double)x);
  }
  assert_true(nn_expf(0.0F) == 1.0F && isnan(nn_expf(NAN)));
  assert_true(nn_expf(-INFINITY) < 1e-37F && nn_expf(-1000.0F) > 0.0F);
  assert_true(nn_expf(INFINITY) > 1e38F && isfinite(nn_expf(1000.0F)));
}

/* A sampled label of each position: the gradients of the outputs are softmax(y) - onehot, over all positions. */
static void labels_are_sampled_at_each_position(void **state) {
  const text_case k = {"gpt-char-8-1-2", 3, 5, 6, 8, 1, 2};
  text_net s = open_text_net(&k);
  assert_int_equal(nn_forward(s.n, NN_TRAIN, s.tokens, 3, 0, NULL), 0);
  nn_compute_sampled_loss(s.n, 1);
  int differ = 0;
  for (int64_t r = 0, before = -1; r < 15; r++) {
    double sum = 0.0;
    int64_t label = 0;
    for (int64_t c = 0; c < 6; c++) {
      sum += (double)s.n->loss_grad[r * 6 + c];
      if (s.n->loss_grad[r * 6 + c] < 0.0F) label = c;
    }
    assert_true(fabs(sum) < 1e-7);
    assert_true(s.n->loss_grad[r * 6 + label] < 0.0F);
    differ += before >= 0 && label != before;
    before = label;
  }
  assert_true(differ > 0);
  close_text_net(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_match_float64),
      cmocka_unit_test(observed_arrays_give_weight_gradients),
      cmocka_unit_test(labels_are_sampled_at_each_position),
      cmocka_unit_test(exp_is_accurate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
