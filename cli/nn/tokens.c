/* tokens.c: nodes of token numbers, which are whole numbers in f32: an embedding, and the numbers of the positions.
 *
 *   embedding   y[r] = W[x[r]], dW[v] = the sum of dy[r] over positions r with x[r] = v; W [tokens, features] */
#include "node.h"

#include <string.h>

static int64_t count_positions(const node *v) { return v->shape.height * v->shape.width; }

/* ---- embedding ---------------------------------------------------------------------------------*/

typedef struct job {
  const float *tokens;
  const float *from;
  float *to;
  int64_t rows, features, values; /* values: of W */
  int32_t pieces;
} job;

static job make_job(nn *n, const node *v, int64_t samples) {
  return (job){.tokens = get_input(n, v, 0)->out,
               .rows = samples * count_positions(v),
               .features = v->shape.channels,
               .values = n->params[v->param[0]].count,
               .pieces = nn_count_pieces(n, samples * nn_count_values(v->shape))};
}

static void copy_piece_rows(void *arg, int32_t i) {
  const job *j = arg;
  int64_t from, to;
  nn_find_range(j->rows, j->pieces, i, 1, &from, &to);
  for (int64_t r = from; r < to; r++)
    memcpy(j->to + r * j->features, j->from + (int64_t)j->tokens[r] * j->features,
           (size_t)j->features * sizeof *j->to);
}

/* A piece adds some columns of all rows, so the order of a sum does not depend on the number of pieces. */
static void add_piece_columns(void *arg, int32_t i) {
  const job *j = arg;
  int64_t from, to;
  nn_find_range(j->features, j->pieces, i, 16, &from, &to);
  for (int64_t at = 0; at < j->values; at += j->features)
    memset(j->to + at + from, 0, (size_t)(to - from) * sizeof *j->to);
  for (int64_t r = 0; r < j->rows; r++) {
    const float *dy = j->from + r * j->features;
    float *dw = j->to + (int64_t)j->tokens[r] * j->features;
    for (int64_t k = from; k < to; k++)
      dw[k] += dy[k];
  }
}

static void embedding_forward(nn *n, node *v, int64_t samples, nn_mode mode) {
  (void)mode;
  job j = make_job(n, v, samples);
  j.from = n->params[v->param[0]].value;
  j.to = v->out;
  nn_run_pieces(n, j.pieces, copy_piece_rows, &j);
}

static void embedding_backward(nn *n, node *v, int64_t samples, bool params) {
  if (!params) return;
  job j = make_job(n, v, samples);
  j.from = v->grad;
  j.to = n->params[v->param[0]].grad;
  nn_run_pieces(n, j.pieces, add_piece_columns, &j);
}

static const nn_op embedding_op = {
    .name = "embedding", .forward = embedding_forward, .backward = embedding_backward};

int nn_add_embedding(nn *n, const char *name, int x, int64_t tokens, int64_t features) {
  if (x < 0) return -1;
  const nn_shape from = nn_get_shape(n, x);
  if (from.channels != 1 || n->nodes[x].input[0] > 0)
    return nn_fail(n, "%s: an embedding reads token numbers", name);
  node *v = nn_add_node(n, &embedding_op, x, -1, (nn_shape){from.height, from.width, features});
  if (v == NULL) return -1;
  const int64_t shape[2] = {tokens, features};
  const nn_layer l = {
      .is_embedding = true, .in = tokens, .out = features, .positions = from.height * from.width};
  return nn_add_layer(n, v, name, &l, 2, shape);
}

/* ---- positions ---------------------------------------------------------------------------------*/

static void positions_forward(nn *n, node *v, int64_t samples, nn_mode mode) {
  (void)n;
  (void)mode;
  const int64_t each = count_positions(v);
  for (int64_t r = 0; r < samples * each; r++)
    v->out[r] = (float)(r % each);
}

/* The input has no parameters before it, so there is no gradient, and backward is not called. */
static const nn_op positions_op = {
    .name = "positions", .needs_output = true, .forward = positions_forward};

int nn_add_positions(nn *n, int x) {
  if (x < 0) return -1;
  const nn_shape from = nn_get_shape(n, x);
  if (x > 0) return nn_fail(n, "positions: only of the input");
  const node *v = nn_add_node(n, &positions_op, x, -1, (nn_shape){from.height, from.width, 1});
  return v != NULL ? v->number : -1;
}
