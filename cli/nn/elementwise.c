/* elementwise.c: nodes that work element by element: ReLU, tanh, sigmoid, GELU, dropout and the sum of two nodes. */
#include "expf.h"
#include "node.h"
#include "common/random.h"
#include "simd.h"

#include <math.h>
#include <string.h>

/* Arrays of one pass. Forward computes `to` = y from x (and x2); backward computes `to` = dx from dy and y or x. */
typedef struct slice {
  const nn *n;
  const node *v;
  const float *x, *x2, *y, *dy;
  float *to;
  int64_t count; /* elements */
  int32_t pieces;
  bool adds, train;
  void (*kernel)(const struct slice *s, int64_t from, int64_t to);
} slice;

typedef struct kind {
  nn_op op;
  void (*forward)(const slice *s, int64_t from, int64_t to);
  void (*backward)(const slice *s, int64_t from, int64_t to);
} kind;

static const kind *get_kind(const node *v) { return (const kind *)(const void *)v->op; }

static void run_kernel_piece(void *arg, int32_t i) {
  const slice *s = arg;
  int64_t from, to;
  nn_find_range(s->count, s->pieces, i, 64, &from, &to);
  s->kernel(s, from, to);
}

static void run_kernel(nn *n, const node *v, int64_t samples, slice s) {
  s.n = n;
  s.v = v;
  s.count = samples * nn_count_values(v->shape);
  s.pieces = nn_count_pieces(n, s.count);
  nn_run_pieces(n, s.pieces, run_kernel_piece, &s);
}

static void forward(nn *n, node *v, int64_t samples, nn_mode mode) {
  run_kernel(n, v, samples,
             (slice){.x = get_input(n, v, 0)->out,
                     .x2 = v->input[1] >= 0 ? get_input(n, v, 1)->out : NULL,
                     .to = v->out,
                     .train = mode == NN_TRAIN,
                     .kernel = get_kind(v)->forward});
}

static void backward(nn *n, node *v, int64_t samples, bool params) {
  (void)params;
  for (int k = 0; k < 2 && v->input[k] >= 0; k++) {
    const node *in = get_input(n, v, k);
    if (in->grad == NULL) continue;
    run_kernel(n, v, samples,
               (slice){.x = in->out,
                       .y = v->out,
                       .dy = v->grad,
                       .to = in->grad,
                       .adds = v->adds[k],
                       .kernel = get_kind(v)->backward});
  }
}

/* ---- ReLU: y = max(x, 0); dx = dy where y > 0 --------------------------------------------------*/

NG_CLONES static void relu_forward(const slice *s, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++)
    s->to[i] = s->x[i] < 0.0F ? 0.0F : s->x[i]; /* written so that NaN stays NaN */
}

/* dy is loaded unconditionally: a conditional load would not vectorise. */
NG_CLONES static void relu_backward(const slice *s, int64_t from, int64_t to) {
  const float *y = s->y, *dy = s->dy;
  float *dx = s->to;
  const bool adds = s->adds;
  for (int64_t i = from; i < to; i++) {
    const float dy_i = dy[i], d = y[i] > 0.0F ? dy_i : 0.0F;
    dx[i] = adds ? dx[i] + d : d;
  }
}

/* ---- tanh: dx = dy (1 - y^2); sigmoid: dx = dy y (1 - y) ---------------------------------------*/

static void tanh_forward(const slice *s, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++)
    s->to[i] = tanhf(s->x[i]);
}

NG_CLONES static void tanh_backward(const slice *s, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++) {
    const float d = s->dy[i] * (1.0F - s->y[i] * s->y[i]);
    s->to[i] = s->adds ? s->to[i] + d : d;
  }
}

static void sigmoid_forward(const slice *s, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++)
    s->to[i] = 1.0F / (1.0F + expf(-s->x[i]));
}

NG_CLONES static void sigmoid_backward(const slice *s, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++) {
    const float d = s->dy[i] * s->y[i] * (1.0F - s->y[i]);
    s->to[i] = s->adds ? s->to[i] + d : d;
  }
}

/* ---- GELU: y = x s, s = 1 / (1 + exp(-2 u)); dx = dy (s + 2 x s (1 - s) du/dx) -------------------*/

static const float sqrt_2_pi = 0.797884561F, cubic = 0.044715F;

NG_CLONES static void gelu_forward(const slice *s, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++) {
    const float x = s->x[i], u = sqrt_2_pi * (x + cubic * x * x * x);
    s->to[i] = x / (1.0F + nn_expf(-2.0F * u));
  }
}

NG_CLONES static void gelu_backward(const slice *s, int64_t from, int64_t to) {
  const bool adds = s->adds;
  for (int64_t i = from; i < to; i++) {
    const float x = s->x[i], u = sqrt_2_pi * (x + cubic * x * x * x);
    const float share = 1.0F / (1.0F + nn_expf(-2.0F * u));
    const float slope = 2.0F * sqrt_2_pi * (1.0F + 3.0F * cubic * x * x);
    const float d = s->dy[i] * share * (1.0F + x * (1.0F - share) * slope);
    s->to[i] = adds ? s->to[i] + d : d;
  }
}

/* ---- dropout -----------------------------------------------------------------------------------
 * Backward draws the random mask of forward again instead of storing it: element i of the batch of all ranks in step t
 * uses word i % 4 of random_words with the counter t 2^32 + i / 4. */

static void apply_dropout(const slice *s, int64_t from, int64_t to, const float *x) {
  const float scale = (float)(1.0 / (1.0 - s->v->rate));
  const int64_t first = s->n->first * nn_count_values(s->v->shape);
  uint32_t w[4] = {0, 0, 0, 0};
  for (int64_t i = from; i < to; i++) {
    const int64_t at = first + i;
    if (at % 4 == 0 || i == from)
      random_words(s->n->seed, RANDOM_DROPOUT, (uint32_t)s->v->number,
                   (s->n->step << 32) + (uint64_t)(at / 4), w);
    const float y = random_unit(w[at % 4]) >= s->v->rate ? x[i] * scale : 0.0F;
    s->to[i] = s->adds ? s->to[i] + y : y;
  }
}

static void dropout_forward(const slice *s, int64_t from, int64_t to) {
  if (s->train) {
    apply_dropout(s, from, to, s->x);
  } else if (s->to != s->x) {
    memcpy(s->to + from, s->x + from, (size_t)(to - from) * sizeof *s->x);
  }
}
static void dropout_backward(const slice *s, int64_t from, int64_t to) {
  apply_dropout(s, from, to, s->dy);
}

/* ---- sum of two nodes: the gradient of each is dy.  In place, the first gradient is dy itself, so dy stays intact */

NG_CLONES static void sum_forward(const slice *s, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++)
    s->to[i] = s->x[i] + s->x2[i];
}

NG_CLONES static void sum_backward(const slice *s, int64_t from, int64_t to) {
  if (s->adds) {
    for (int64_t i = from; i < to; i++)
      s->to[i] += s->dy[i];
  } else if (s->to != s->dy) {
    memcpy(s->to + from, s->dy + from, (size_t)(to - from) * sizeof *s->dy);
  }
}

/* ---- constructors ------------------------------------------------------------------------------*/

enum { RELU, TANH, SIGMOID, GELU, DROPOUT, ADD };
static const kind kinds[] = {
    /* fields: name, in_place, needs_output, batch_statistics */
    {{"relu", true, true, false, forward, backward, NULL, NULL}, relu_forward, relu_backward},
    {{"tanh", true, true, false, forward, backward, NULL, NULL}, tanh_forward, tanh_backward},
    {{"sigmoid", true, true, false, forward, backward, NULL, NULL},
     sigmoid_forward,
     sigmoid_backward},
    {{"gelu", false, false, false, forward, backward, NULL, NULL}, gelu_forward, gelu_backward},
    {{"dropout", true, false, false, forward, backward, NULL, NULL},
     dropout_forward,
     dropout_backward},
    {{"add", true, false, false, forward, backward, NULL, NULL}, sum_forward, sum_backward},
};

static int add_unary(nn *n, int of, int x, double rate) {
  if (x < 0) return -1;
  node *v = nn_add_node(n, &kinds[of].op, x, -1, nn_get_shape(n, x));
  if (v == NULL) return -1;
  v->rate = rate;
  return v->number;
}

int nn_add_relu(nn *n, int x) { return add_unary(n, RELU, x, 0.0); }
int nn_add_tanh(nn *n, int x) { return add_unary(n, TANH, x, 0.0); }
int nn_add_sigmoid(nn *n, int x) { return add_unary(n, SIGMOID, x, 0.0); }
int nn_add_gelu(nn *n, int x) { return add_unary(n, GELU, x, 0.0); }

int nn_add_dropout(nn *n, int x, double rate) {
  if (!(rate >= 0.0 && rate < 1.0)) return nn_fail(n, "dropout: rate %g, expected [0, 1)", rate);
  return add_unary(n, DROPOUT, x, rate);
}

int nn_add_sum(nn *n, int x, int y) {
  if (x < 0 || y < 0) return -1;
  const nn_shape a = nn_get_shape(n, x), b = nn_get_shape(n, y);
  if (a.height != b.height || a.width != b.width || a.channels != b.channels)
    return nn_fail(n, "add: inputs of %lldx%lldx%lld and %lldx%lldx%lld, expected equal shapes",
                   (long long)a.height, (long long)a.width, (long long)a.channels,
                   (long long)b.height, (long long)b.width, (long long)b.channels);
  const node *v = nn_add_node(n, &kinds[ADD].op, x, y, a);
  return v != NULL ? v->number : -1;
}
