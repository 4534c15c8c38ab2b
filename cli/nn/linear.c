/* linear.c: y = x W' + b with x [rows, in], W [out, in], b [out]; dW = dy' x, db = column sums of dy, dx = dy W. A row is
 * a sample, or a position of a sample (nn_add_projection). */
#include "node.h"

#include <string.h>

static int64_t count_inputs(const nn *n, const node *v) { return n->layers[v->layer].in; }

static int64_t count_rows(const nn *n, const node *v, int64_t samples) {
  return samples * n->layers[v->layer].positions;
}

static void linear_forward(nn *n, node *v, int64_t samples, nn_mode mode) {
  (void)mode;
  const int64_t in = count_inputs(n, v), out = v->shape.channels, rows = count_rows(n, v, samples);
  if (v->param[1] >= 0) {
    const float *b = n->params[v->param[1]].value;
    for (int64_t i = 0; i < rows; i++)
      memcpy(v->out + i * out, b, (size_t)out * sizeof *b);
  }
  nn_gemm(false, true, rows, out, in, 1.0F, get_input(n, v, 0)->out, in,
          n->params[v->param[0]].value, in, v->param[1] >= 0 ? 1.0F : 0.0F, v->out, out);
}

void nn_sum_columns(const float *x, int64_t rows, int64_t columns, float *sums) {
  memset(sums, 0, (size_t)columns * sizeof *sums);
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t k = 0; k < columns; k++)
      sums[k] += x[i * columns + k];
  }
}

static void linear_backward(nn *n, node *v, int64_t samples, bool params) {
  const node *x = get_input(n, v, 0);
  const int64_t in = count_inputs(n, v), out = v->shape.channels, rows = count_rows(n, v, samples);
  if (params) {
    nn_gemm(true, false, out, in, rows, 1.0F, v->grad, out, x->out, in, 0.0F,
            n->params[v->param[0]].grad, in);
    if (v->param[1] >= 0) nn_sum_columns(v->grad, rows, out, n->params[v->param[1]].grad);
  }
  if (x->grad != NULL)
    nn_gemm(false, false, rows, in, out, 1.0F, v->grad, out, n->params[v->param[0]].value, in,
            v->adds[0] ? 1.0F : 0.0F, x->grad, in);
}

static const nn_op op = {.name = "linear", .forward = linear_forward, .backward = linear_backward};

static int add_node(nn *n, const char *name, int x, nn_shape to, int64_t in, bool bias) {
  node *v = nn_add_node(n, &op, x, -1, to);
  if (v == NULL) return -1;
  const int64_t shape[2] = {to.channels, in};
  const nn_layer l = {
      .in = in, .out = to.channels, .has_bias = bias, .positions = to.height * to.width};
  return nn_add_layer(n, v, name, &l, 2, shape);
}

int nn_add_linear(nn *n, const char *name, int x, int64_t out, bool bias) {
  if (x < 0) return -1;
  const int64_t in = nn_count_values(nn_get_shape(n, x));
  return add_node(n, name, x, (nn_shape){1, 1, out}, in, bias);
}

int nn_add_projection(nn *n, const char *name, int x, int64_t out, bool bias) {
  if (x < 0) return -1;
  const nn_shape from = nn_get_shape(n, x);
  return add_node(n, name, x, (nn_shape){from.height, from.width, out}, from.channels, bias);
}
