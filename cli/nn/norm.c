/* norm.c: batch normalisation (Ioffe & Szegedy 2015) over batch and positions.
 *
 *   xh = (x - mean) r, r = 1 / sqrt(var + eps); y = gamma xh + beta
 *   dbeta = sum dy; dgamma = sum dy xh; dx = gamma r (dy - dbeta / R - xh dgamma / R), with sums over R rows
 *
 * A row is one position of one sample. Forward and backward pass over the rows twice. The first pass computes two
 * sums a channel: in f32 within a block of rows, in double over blocks and pieces, in a fixed order. Before forward
 * sums squares, it subtracts the first row from all rows, so that a large mean does not cancel digits of the
 * variance. If there are few channels, several positions form one wide row, to fill the vector registers. */
#include "node.h"
#include "simd.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 64, WIDE = 64 };
static const double eps = 1e-5;

/* Arrays in v->saved, for C channels and W = count_row_floats(C): mean [C]; r [C]; for a wide row the factor a [W], the
 * offset b [W], and the value `shift` [W] that the sums subtract. */
typedef struct saved_values {
  float *mean, *r, *a, *b, *shift;
} saved_values;

static int64_t count_wide_positions(int64_t channels, int64_t rows) {
  const int64_t g = WIDE / channels;
  return g > 1 && WIDE % channels == 0 && rows % g == 0 ? g : 1;
}

static int64_t count_row_floats(int64_t channels) { return channels > WIDE ? channels : WIDE; }

static saved_values get_saved_values(const node *v) {
  const int64_t c = v->shape.channels, w = count_row_floats(c);
  float *f = v->saved;
  return (saved_values){f, f + c, f + 2 * c, f + 2 * c + w, f + 2 * c + 2 * w};
}

static int64_t count_saved_bytes(const nn *n, const node *v) {
  (void)n;
  return (2 * v->shape.channels + 3 * count_row_floats(v->shape.channels)) * (int64_t)sizeof(float);
}

/* Scratch of a piece, for each column of a wide row: two sums in double over the piece, two in f32 over a block. */
static int64_t count_scratch_bytes(const nn *n, const node *v) {
  return n->threads * count_row_floats(v->shape.channels) * 2 *
         (int64_t)(sizeof(double) + sizeof(float));
}

typedef struct pass {
  const float *x, *dy;
  float *to;
  const float *a, *b, *c, *shift;
  int64_t rows, width; /* number of wide rows; number of floats of one wide row */
  int32_t pieces;
  bool adds;
  double *sums; /* [pieces][2][width]: sums over a piece */
  float *block; /* [pieces][2][width]: sums over a block */
} pass;

NG_CLONES static void add_block_moments(const float *x, const float *shift, int64_t rows, int64_t w,
                                        float *s, float *q) {
  for (int64_t r = 0; r < rows; r++, x += w) {
    for (int64_t k = 0; k < w; k++) {
      const float d = x[k] - shift[k];
      s[k] += d;
      q[k] += d * d;
    }
  }
}

/* Add sum dy to s and sum dy (x - mean) to q. */
NG_CLONES static void add_block_products(const float *x, const float *dy, const float *mean,
                                         int64_t rows, int64_t w, float *s, float *q) {
  for (int64_t r = 0; r < rows; r++, x += w, dy += w) {
    for (int64_t k = 0; k < w; k++) {
      s[k] += dy[k];
      q[k] += dy[k] * (x[k] - mean[k]);
    }
  }
}

static void sum_piece_rows(void *arg, int32_t i) {
  const pass *p = arg;
  const int64_t w = p->width;
  double *sum = p->sums + 2 * w * i;
  float *s = p->block + 2 * w * i, *q = s + w;
  int64_t from, to;
  nn_find_range(p->rows, p->pieces, i, BLOCK, &from, &to);
  memset(sum, 0, 2 * (size_t)w * sizeof *sum);
  for (int64_t r = from; r < to; r += BLOCK) {
    const int64_t rows = to - r < BLOCK ? to - r : BLOCK;
    memset(s, 0, 2 * (size_t)w * sizeof *s);
    if (p->dy == NULL) {
      add_block_moments(p->x + r * w, p->shift, rows, w, s, q);
    } else {
      add_block_products(p->x + r * w, p->dy + r * w, p->shift, rows, w, s, q);
    }
    for (int64_t k = 0; k < 2 * w; k++)
      sum[k] += (double)s[k];
  }
}

NG_CLONES static void scale_rows(const pass *p, int64_t from, int64_t to) {
  const int64_t w = p->width;
  const float *x = p->x + from * w, *a = p->a, *b = p->b;
  float *y = p->to + from * w;
  for (int64_t r = from; r < to; r++, x += w, y += w) {
    for (int64_t k = 0; k < w; k++)
      y[k] = x[k] * a[k] + b[k];
  }
}

/* dx = c (dy - a (x - mean) - b) */
NG_CLONES static void compute_input_grad_rows(const pass *p, int64_t from, int64_t to) {
  const int64_t w = p->width;
  const float *x = p->x + from * w, *dy = p->dy + from * w;
  const float *mean = p->shift, *a = p->a, *b = p->b, *c = p->c;
  float *dx = p->to + from * w;
  for (int64_t r = from; r < to; r++, x += w, dy += w, dx += w) {
    if (p->adds) {
      for (int64_t k = 0; k < w; k++)
        dx[k] += c[k] * (dy[k] - a[k] * (x[k] - mean[k]) - b[k]);
    } else {
      for (int64_t k = 0; k < w; k++)
        dx[k] = c[k] * (dy[k] - a[k] * (x[k] - mean[k]) - b[k]);
    }
  }
}

static void transform_piece_rows(void *arg, int32_t i) {
  const pass *p = arg;
  int64_t from, to;
  nn_find_range(p->rows, p->pieces, i, 1, &from, &to);
  (p->dy == NULL ? scale_rows : compute_input_grad_rows)(p, from, to);
}

static pass make_pass(nn *n, const node *v, int64_t samples) {
  const int64_t c = v->shape.channels, rows = samples * v->shape.height * v->shape.width;
  const int64_t g = count_wide_positions(c, rows);
  pass p = {.x = get_input(n, v, 0)->out, .rows = rows / g, .width = c * g};
  p.pieces = nn_count_pieces(n, rows * c);
  p.sums = n->scratch;
  p.block = (void *)(p.sums + 2 * n->threads * count_row_floats(c));
  return p;
}

/* Add the two sums of channel c over pieces and over the positions of a wide row. */
static void add_channel_sums(const pass *p, int64_t channels, int64_t c, double out[2]) {
  out[0] = out[1] = 0.0;
  for (int32_t i = 0; i < p->pieces; i++) {
    for (int64_t k = c; k < p->width; k += channels) {
      out[0] += p->sums[2 * p->width * i + k];
      out[1] += p->sums[2 * p->width * i + p->width + k];
    }
  }
}

static void repeat_channels(float *row, int64_t channels, int64_t width) {
  for (int64_t k = channels; k < width; k++)
    row[k] = row[k - channels];
}

static void update_batch_moments(nn *n, node *v, pass *p) {
  const int64_t c = v->shape.channels, rows = p->rows * p->width / c;
  const saved_values s = get_saved_values(v);
  const double keep = n->norm_decay;
  float *running = n->buffers[v->buffer].value, *spread = n->buffers[v->buffer + 1].value;
  memcpy(s.shift, p->x, (size_t)c * sizeof *p->x);
  repeat_channels(s.shift, c, p->width);
  p->shift = s.shift;
  nn_run_pieces(n, p->pieces, sum_piece_rows, p);
  for (int64_t k = 0; k < c; k++) {
    double t[2];
    add_channel_sums(p, c, k, t);
    const double mean = t[0] / (double)rows, square = t[1] / (double)rows - mean * mean;
    const double var = square > 0.0 || isnan(square) ? square : 0.0;
    s.mean[k] = (float)((double)s.shift[k] + mean);
    s.r[k] = (float)(1.0 / sqrt(var + eps));
    const double unbiased = rows > 1 ? var * (double)rows / (double)(rows - 1) : var;
    running[k] = (float)(keep * (double)running[k] + (1.0 - keep) * (double)s.mean[k]);
    spread[k] = (float)(keep * (double)spread[k] + (1.0 - keep) * unbiased);
  }
}

static void norm_forward(nn *n, node *v, int64_t samples, nn_mode mode) {
  const int64_t c = v->shape.channels;
  const saved_values s = get_saved_values(v);
  const float *gamma = n->params[v->param[0]].value, *beta = n->params[v->param[1]].value;
  const float *running = n->buffers[v->buffer].value, *spread = n->buffers[v->buffer + 1].value;
  pass p = make_pass(n, v, samples);
  const bool own = mode == NN_TRAIN && !n->has_frozen_norms;
  if (own) update_batch_moments(n, v, &p);
  for (int64_t k = 0; k < c; k++) {
    const float mean = own ? s.mean[k] : running[k];
    const float r = own ? s.r[k] : (float)(1.0 / sqrt((double)spread[k] + eps));
    if (mode == NN_TRAIN) { /* backward reads mean and r */
      s.mean[k] = mean;
      s.r[k] = r;
    }
    s.a[k] = gamma[k] * r;
    s.b[k] = (float)((double)beta[k] - (double)mean * (double)s.a[k]);
  }
  repeat_channels(s.a, c, p.width);
  repeat_channels(s.b, c, p.width);
  p.a = s.a;
  p.b = s.b;
  p.to = v->out;
  nn_run_pieces(n, p.pieces, transform_piece_rows, &p);
}

static void norm_backward(nn *n, node *v, int64_t samples, bool params) {
  const int64_t c = v->shape.channels;
  const saved_values s = get_saved_values(v);
  const float *gamma = n->params[v->param[0]].value;
  const node *x = get_input(n, v, 0);
  pass p = make_pass(n, v, samples);
  const double rows = (double)(p.rows * p.width / c);
  p.dy = v->grad;
  memcpy(s.shift, s.mean, (size_t)c * sizeof *s.mean);
  repeat_channels(s.shift, c, p.width);
  p.shift = s.shift;
  nn_run_pieces(n, p.pieces, sum_piece_rows, &p);
  float *factor = p.block; /* use the memory of p.block, which is no longer needed */
  for (int64_t k = 0; k < c; k++) {
    double t[2];
    add_channel_sums(&p, c, k, t);
    const double r = (double)s.r[k];
    if (params) {
      n->params[v->param[1]].grad[k] = (float)t[0];
      n->params[v->param[0]].grad[k] = (float)(t[1] * r);
    }
    s.a[k] = n->has_frozen_norms ? 0.0F : (float)(t[1] * r * r / rows);
    s.b[k] = n->has_frozen_norms ? 0.0F : (float)(t[0] / rows);
    factor[k] = gamma[k] * s.r[k];
  }
  if (x->grad == NULL) return;
  repeat_channels(s.a, c, p.width);
  repeat_channels(s.b, c, p.width);
  repeat_channels(factor, c, p.width);
  p.a = s.a;
  p.b = s.b;
  p.c = factor;
  p.to = x->grad;
  p.adds = v->adds[0];
  nn_run_pieces(n, p.pieces, transform_piece_rows, &p);
}

static const nn_op op = {.name = "norm",
                         .batch_statistics = true,
                         .forward = norm_forward,
                         .backward = norm_backward,
                         .scratch = count_scratch_bytes,
                         .saved = count_saved_bytes};

int nn_add_norm(nn *n, const char *name, int x) {
  if (x < 0) return -1;
  const nn_shape s = nn_get_shape(n, x);
  node *v = nn_add_node(n, &op, x, -1, s);
  if (v == NULL) return -1;
  (void)nn_add_norm_layer(n, v, name, false, eps);
  v->buffer = nn_add_buffer(n, name, "running_mean", s.channels);
  (void)nn_add_buffer(n, name, "running_var", s.channels);
  return v->number;
}
