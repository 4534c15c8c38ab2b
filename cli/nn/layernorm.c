/* layernorm.c: layer normalisation (Ba, Kiros & Hinton 2016, arXiv 1607.06450) over the C channels of each position.
 *
 *   xh = (x - mean) r, r = 1 / sqrt(var + eps); y = gamma xh + beta, with the mean and the biased variance of a position
 *   dbeta = sum dy; dgamma = sum dy xh, over positions
 *   dx = r (g - mean(g) - xh mean(g xh)), g = gamma dy, with means over channels
 *
 * Sums over channels are in f32, in LANES partial sums. A piece of the positions has its own sums of dgamma and dbeta,
 * which are added in order. */
#include "node.h"
#include "simd.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };
static const double eps = 1e-5;

typedef struct pass {
  const node *v;
  const float *x, *dy, *gamma, *beta;
  float *to;       /* y or dx; NULL: no dx */
  float *moments;  /* [positions][2]: mean and r */
  float *sums;     /* [pieces][2][channels]: dbeta and dgamma of a piece */
  int64_t rows, c; /* rows: positions of all samples */
  int32_t pieces;
  bool adds;
} pass;

static float add_lanes(const float *lane) {
  float sum = 0.0F;
  for (int k = 0; k < LANES; k++)
    sum += lane[k];
  return sum;
}

NG_CLONES static void normalise_rows(const pass *p, int64_t from, int64_t to) {
  const int64_t c = p->c, whole = c / LANES * LANES;
  const float share = 1.0F / (float)c;
  for (int64_t r = from; r < to; r++) {
    const float *x = p->x + r * c, *gamma = p->gamma, *beta = p->beta;
    float *y = p->to + r * c, sum[LANES] = {0}, square[LANES] = {0};
    for (int64_t k = 0; k < whole; k += LANES) {
      for (int i = 0; i < LANES; i++)
        sum[i] += x[k + i];
    }
    for (int64_t k = whole; k < c; k++)
      sum[k - whole] += x[k];
    const float mean = add_lanes(sum) * share;
    for (int64_t k = 0; k < whole; k += LANES) {
      for (int i = 0; i < LANES; i++)
        square[i] += (x[k + i] - mean) * (x[k + i] - mean);
    }
    for (int64_t k = whole; k < c; k++)
      square[k - whole] += (x[k] - mean) * (x[k] - mean);
    const float scale = (float)(1.0 / sqrt((double)(add_lanes(square) * share) + eps));
    p->moments[2 * r] = mean;
    p->moments[2 * r + 1] = scale;
    for (int64_t k = 0; k < c; k++)
      y[k] = (x[k] - mean) * scale * gamma[k] + beta[k];
  }
}

/* Add dy and dy xh of the rows to dbeta and dgamma. */
NG_CLONES static void add_param_gradients(const pass *p, int64_t from, int64_t to, float *dbeta,
                                          float *dgamma) {
  const int64_t c = p->c;
  for (int64_t r = from; r < to; r++) {
    const float *x = p->x + r * c, *dy = p->dy + r * c;
    const float mean = p->moments[2 * r], scale = p->moments[2 * r + 1];
    for (int64_t k = 0; k < c; k++) {
      dbeta[k] += dy[k];
      dgamma[k] += dy[k] * ((x[k] - mean) * scale);
    }
  }
}

NG_CLONES static void compute_input_grad_rows(const pass *p, int64_t from, int64_t to) {
  const int64_t c = p->c, whole = c / LANES * LANES;
  const float share = 1.0F / (float)c, *gamma = p->gamma;
  for (int64_t r = from; r < to; r++) {
    const float *x = p->x + r * c, *dy = p->dy + r * c;
    const float mean = p->moments[2 * r], scale = p->moments[2 * r + 1];
    float *dx = p->to + r * c, sum[LANES] = {0}, product[LANES] = {0};
    for (int64_t k = 0; k < whole; k += LANES) {
      for (int i = 0; i < LANES; i++) {
        const float g = gamma[k + i] * dy[k + i];
        sum[i] += g;
        product[i] += g * (x[k + i] - mean);
      }
    }
    for (int64_t k = whole; k < c; k++) {
      sum[k - whole] += gamma[k] * dy[k];
      product[k - whole] += gamma[k] * dy[k] * (x[k] - mean);
    }
    const float a = add_lanes(sum) * share, b = add_lanes(product) * share * scale * scale;
    if (p->adds) {
      for (int64_t k = 0; k < c; k++)
        dx[k] += scale * (gamma[k] * dy[k] - a - (x[k] - mean) * b);
    } else {
      for (int64_t k = 0; k < c; k++)
        dx[k] = scale * (gamma[k] * dy[k] - a - (x[k] - mean) * b);
    }
  }
}

static void run_forward_piece(void *arg, int32_t i) {
  const pass *p = arg;
  int64_t from, to;
  nn_find_range(p->rows, p->pieces, i, 1, &from, &to);
  normalise_rows(p, from, to);
}

static void run_backward_piece(void *arg, int32_t i) {
  const pass *p = arg;
  float *sums = p->sums + 2 * p->c * i;
  int64_t from, to;
  nn_find_range(p->rows, p->pieces, i, 1, &from, &to);
  memset(sums, 0, (size_t)(2 * p->c) * sizeof *sums);
  add_param_gradients(p, from, to, sums, sums + p->c);
  if (p->to != NULL) compute_input_grad_rows(p, from, to);
}

static pass make_pass(nn *n, const node *v, int64_t samples) {
  const int64_t rows = samples * v->shape.height * v->shape.width, c = v->shape.channels;
  return (pass){.v = v,
                .x = get_input(n, v, 0)->out,
                .gamma = n->params[v->param[0]].value,
                .beta = n->params[v->param[1]].value,
                .moments = v->saved,
                .sums = n->scratch,
                .rows = rows,
                .c = c,
                .pieces = nn_count_pieces(n, rows * c)};
}

static void layer_norm_forward(nn *n, node *v, int64_t samples, nn_mode mode) {
  (void)mode;
  pass p = make_pass(n, v, samples);
  p.to = v->out;
  nn_run_pieces(n, p.pieces, run_forward_piece, &p);
}

static void layer_norm_backward(nn *n, node *v, int64_t samples, bool params) {
  pass p = make_pass(n, v, samples);
  p.dy = v->grad;
  p.to = get_input(n, v, 0)->grad;
  p.adds = v->adds[0];
  nn_run_pieces(n, p.pieces, run_backward_piece, &p);
  for (int which = 0; which < 2 && params; which++) { /* gamma, beta */
    float *grad = n->params[v->param[which]].grad;
    for (int64_t k = 0; k < p.c; k++) {
      grad[k] = 0.0F;
      for (int32_t i = 0; i < p.pieces; i++)
        grad[k] += p.sums[2 * p.c * i + (which == 0 ? p.c : 0) + k];
    }
  }
}

static int64_t count_scratch_bytes(const nn *n, const node *v) {
  return n->threads * 2 * v->shape.channels * (int64_t)sizeof(float);
}

static int64_t count_saved_bytes(const nn *n, const node *v) {
  return n->batch * v->shape.height * v->shape.width * 2 * (int64_t)sizeof(float);
}

static const nn_op op = {.name = "layer norm",
                         .forward = layer_norm_forward,
                         .backward = layer_norm_backward,
                         .scratch = count_scratch_bytes,
                         .saved = count_saved_bytes};

int nn_add_layer_norm(nn *n, const char *name, int x) {
  if (x < 0) return -1;
  node *v = nn_add_node(n, &op, x, -1, nn_get_shape(n, x));
  return v != NULL ? nn_add_norm_layer(n, v, name, true, eps) : -1;
}
