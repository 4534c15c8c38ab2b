/* conv.c: convolution of NHWC images by patches and matrix products.
 *
 *   y[r, o] = sum_{k,c} P[r, (k,c)] W[o, (k,c)]
 *   r: output position, o: output channel, k: kernel offset, c: input channel, P: patches, W: weights
 *
 * A row of P has, for each of the `kernel` kernel rows, kernel x channels adjacent values of the image. So P is made
 * by copying, in tiles that fit the second-level cache if they have enough rows. Each thread of the pool computes some
 * samples, with its own tile and BLAS on one thread. If the number of BLAS threads cannot change, one thread of the pool
 * computes all samples, and BLAS uses its threads. Each forward first transposes the weights from [o][c][k] to
 * [o][k][c]. Wide 3x3 convolutions of stride 1 need fewer products: winograd.c.
 *
 * dW = dy' P, summed over threads. With stride 1, dx is a convolution of dy with the reversed kernel, which writes
 * every value once (gather_grad_piece). Else each row of dP = dy W is added to its patch of dx (scatter_grad_piece). */
#include "node.h"
#include "simd.h"
#include "winograd.h"

#include <string.h>

/* Floats of a tile of P, and its least rows. BLAS copies all weights for each tile, so a tile has many rows. */
enum { TILE = 64 * 1024, LEAST_ROWS = 256 };

/* ---- patches -----------------------------------------------------------------------------------
 * Row r of P belongs to output position r, counted over samples, then y, then x.  It has kernel x kernel x channels
 * values of the image, with zeros for positions outside the image.  In NHWC, a kernel row of a patch is one run of
 * memory, which the left and right border of the image may cut. */

typedef struct patches {
  int64_t height, width, channels; /* size of the input image */
  int64_t rows, columns;           /* number of output positions of one sample */
  int64_t kernel, stride, padding;
} patches;

static inline int64_t get_patch_width(const patches *p) {
  return p->kernel * p->kernel * p->channels;
}

/* Find which values of kernel row i, of the patch at output position (y, x), lie inside the image: values [*skip,
 * *skip + *count) of the kernel * channels values of the row. *at: their offset in the sample. */
static void find_inside_run(const patches *p, int64_t y, int64_t x, int64_t i, int64_t *skip,
                            int64_t *count, int64_t *at) {
  const int64_t row = y * p->stride + i - p->padding, left = x * p->stride - p->padding;
  const int64_t from = left < 0 ? -left : 0;
  const int64_t to = p->width - left < p->kernel ? p->width - left : p->kernel;
  *skip = *count = *at = 0;
  if (row < 0 || row >= p->height || to <= from) return;
  *skip = from * p->channels;
  *count = (to - from) * p->channels;
  *at = (row * p->width + left + from) * p->channels;
}

/* A row inside the image is copied by a loop instead of memcpy, because most rows of small networks are short. */
NG_CLONES static void gather_patch(const patches *p, const float *image, int64_t y, int64_t x,
                                   float *to) {
  const int64_t width = p->kernel * p->channels;
  for (int64_t i = 0; i < p->kernel; i++, to += width) {
    int64_t skip, count, at;
    find_inside_run(p, y, x, i, &skip, &count, &at);
    const float *from = image + at;
    if (count == width) {
      for (int64_t k = 0; k < width; k++)
        to[k] = from[k];
      continue;
    }
    memset(to, 0, (size_t)width * sizeof *to);
    memcpy(to + skip, from, (size_t)count * sizeof *to);
  }
}

/* An output position. */
typedef struct position {
  int64_t sample, y, x;
} position;

static position find_position(const patches *p, int64_t row) {
  const int64_t each = p->rows * p->columns, at = row % each;
  return (position){row / each, at / p->columns, at % p->columns};
}

static void advance_position(const patches *p, position *at) {
  if (++at->x < p->columns) return;
  at->x = 0;
  if (++at->y < p->rows) return;
  at->y = 0;
  at->sample++;
}

/* Set `rows` to the rows [first, first + count) of the patches of x [samples, height, width, channels]. */
static void gather_patches(const patches *p, const float *x, int64_t first, int64_t count,
                           float *rows) {
  const int64_t image = p->height * p->width * p->channels, width = get_patch_width(p);
  position at = find_position(p, first);
  for (int64_t r = 0; r < count; r++, advance_position(p, &at))
    gather_patch(p, x + at.sample * image, at.y, at.x, rows + r * width);
}

NG_CLONES static void scatter_patch(const patches *p, const float *from, int64_t y, int64_t x,
                                    float *image) {
  const int64_t width = p->kernel * p->channels;
  for (int64_t i = 0; i < p->kernel; i++, from += width) {
    int64_t skip, count, at;
    find_inside_run(p, y, x, i, &skip, &count, &at);
    float *to = image + at;
    for (int64_t k = 0; k < count; k++)
      to[k] += from[skip + k];
  }
}

/* The transpose of gather_patches: add each value of `rows` to the element of x from which gather_patches copies it. */
static void scatter_patches(const patches *p, const float *rows, int64_t first, int64_t count,
                            float *x) {
  const int64_t image = p->height * p->width * p->channels, width = get_patch_width(p);
  position at = find_position(p, first);
  for (int64_t r = 0; r < count; r++, advance_position(p, &at))
    scatter_patch(p, rows + r * width, at.y, at.x, x + at.sample * image);
}

/* ---- a convolution -----------------------------------------------------------------------------*/

typedef struct job {
  nn *n;
  node *v;
  int64_t samples;
  int32_t pieces;
  patches p;    /* patches of x; in gather_grad_piece, patches of dy */
  int64_t rows; /* rows of P in a tile */
  float *tiles; /* [pieces][tile] */
  int64_t tile;
  float *sums;           /* dW of each piece, [pieces][o][k][c] */
  const float *reversed; /* the reversed kernel, [k][o][c] */
} job;

static bool is_pointwise(const node *v) {
  return v->kernel == 1 && v->stride == 1 && v->padding == 0;
}

static patches describe_input_patches(const nn *n, const node *v) {
  const nn_shape s = n->nodes[v->input[0]].shape;
  return (patches){s.height,       s.width,   s.channels, v->shape.height,
                   v->shape.width, v->kernel, v->stride,  v->padding};
}

/* The patches of dy for dx with stride 1. dx at row y depends on dy at rows y + padding - i, i < kernel, and on
 * columns alike: this is a convolution of dy with padding kernel - 1 - padding. */
static patches describe_grad_patches(const nn *n, const node *v) {
  const nn_shape s = n->nodes[v->input[0]].shape;
  return (patches){
      v->shape.height,           v->shape.width, v->shape.channels, s.height, s.width, v->kernel, 1,
      v->kernel - 1 - v->padding};
}

static bool can_gather_grad(const node *v) { return v->stride == 1 && v->padding < v->kernel; }

static int64_t count_tile_rows(const patches *p) {
  const int64_t rows = TILE / get_patch_width(p);
  return rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

static int64_t count_weights(const nn *n, const node *v) { return n->params[v->param[0]].count; }

static int64_t count_tile_floats(const nn *n, const node *v) {
  if (is_pointwise(v)) return 0;
  const patches a = describe_input_patches(n, v), g = describe_grad_patches(n, v);
  const int64_t x = count_tile_rows(&a) * get_patch_width(&a);
  const int64_t y = can_gather_grad(v) ? count_tile_rows(&g) * get_patch_width(&g) : 0;
  return x > y ? x : y;
}

/* The scratch has a tile and a dW for each thread, and the reversed kernel. */
static int64_t count_scratch_bytes(const nn *n, const node *v) {
  if (nn_winograd_fits(n, v)) return nn_winograd_scratch_bytes(n, v);
  const int64_t t = n->threads;
  return (t * count_tile_floats(n, v) + (t + 1) * count_weights(n, v)) * (int64_t)sizeof(float);
}

/* `saved` has the weights in the order [o][k][c]. */
static int64_t count_saved_bytes(const nn *n, const node *v) {
  if (nn_winograd_fits(n, v)) return nn_winograd_saved_bytes(n, v);
  return count_weights(n, v) * (int64_t)sizeof(float);
}

/* ---- order of weights --------------------------------------------------------------------------*/

typedef struct reorder_job {
  const float *from;
  float *to;
  int64_t out, rows, columns; /* an array is [out][columns][rows] or [out][rows][columns] */
  /* number of elements from one array that transpose_weights adds to the next */
  int64_t stride;
  /* number of parallel tasks; number of arrays that transpose_weights adds */
  int32_t pieces, sums;
} reorder_job;

/* Add the t->sums arrays [o][columns][rows] at from, from + stride, ...; write the sum as [o][rows][columns]. */
static void transpose_weights(void *arg, int32_t i) {
  const reorder_job *t = arg;
  int64_t first, last;
  nn_find_range(t->out, t->pieces, i, 1, &first, &last);
  for (int64_t o = first; o < last; o++) {
    const float *from = t->from + o * t->rows * t->columns;
    float *to = t->to + o * t->rows * t->columns;
    for (int64_t r = 0; r < t->rows; r++) {
      for (int64_t c = 0; c < t->columns; c++, to++) {
        *to = from[c * t->rows + r];
        for (int32_t s = 1; s < t->sums; s++)
          *to += from[c * t->rows + r + s * t->stride];
      }
    }
  }
}

/* Copy [o][k][c] to [K-1-k][o][c], the reversed kernel; K = t->rows counts kernel positions. */
static void reverse_kernel(void *arg, int32_t i) {
  const reorder_job *t = arg;
  int64_t from, to;
  nn_find_range(t->rows, t->pieces, i, 1, &from, &to);
  for (int64_t k = from; k < to; k++) {
    for (int64_t o = 0; o < t->out; o++)
      memcpy(t->to + (k * t->out + o) * t->columns,
             t->from + (o * t->rows + (t->rows - 1 - k)) * t->columns,
             (size_t)t->columns * sizeof *t->to);
  }
}

static reorder_job make_reorder_job(const nn *n, const node *v, const float *from, float *to) {
  const int64_t count = count_weights(n, v), in = n->nodes[v->input[0]].shape.channels;
  const int32_t pieces = count > 65536 ? n->threads : 1;
  return (reorder_job){.from = from,
                       .to = to,
                       .out = v->shape.channels,
                       .rows = v->kernel * v->kernel,
                       .columns = in,
                       .stride = count,
                       .pieces = pieces,
                       .sums = 1};
}

/* ---- a pass over all samples -------------------------------------------------------------------*/

/* Run the task for each piece of the samples. If there are several pieces, BLAS uses one thread in each. */
static void run_over_samples(job *j, void (*task)(void *arg, int32_t i)) {
  nn *n = j->n;
  j->pieces = 1;
  if (j->samples > 1 && nn_blas_use_one_thread(n)) {
    j->pieces = (int32_t)(j->samples < n->threads ? j->samples : n->threads);
    nn_run_pieces(n, j->pieces, task, j);
    nn_blas_restore_threads(n);
  } else {
    task(j, 0);
  }
}

static job make_job(nn *n, node *v, int64_t samples) {
  job j = {.n = n, .v = v, .samples = samples, .p = describe_input_patches(n, v)};
  j.tile = count_tile_floats(n, v);
  j.tiles = n->scratch;
  j.sums = j.tiles + j.tile * n->threads;
  j.rows = count_tile_rows(&j.p);
  return j;
}

/* Iterates over the tiles of P in one piece. For a 1x1 convolution of stride 1, P is the image, in one tile. */
typedef struct tiles {
  const job *j;
  const float *image, *p; /* image: NHWC, all samples; p: the tile, rows [at, at + rows) of P */
  float *tile;
  int64_t width, from, to, step, at, rows;
} tiles;

static tiles start_tiles(const job *j, const float *image, int64_t per_sample, int32_t i) {
  tiles t = {
      .j = j, .image = image, .tile = j->tiles + j->tile * i, .width = get_patch_width(&j->p)};
  nn_find_range(j->samples, j->pieces, i, 1, &t.from, &t.to); /* whole samples */
  t.from *= per_sample;
  t.to *= per_sample;
  t.step = is_pointwise(j->v) ? t.to - t.from : j->rows;
  t.at = t.from;
  return t;
}

static bool advance_tile(tiles *t) {
  t->at += t->rows;
  if (t->at >= t->to) return false;
  t->rows = t->to - t->at < t->step ? t->to - t->at : t->step;
  t->p = t->image + t->at * t->width;
  if (is_pointwise(t->j->v)) return true;
  gather_patches(&t->j->p, t->image, t->at, t->rows, t->tile);
  t->p = t->tile;
  return true;
}

static void add_bias(const job *j, int64_t from, int64_t to) {
  const node *v = j->v;
  if (v->param[1] < 0) return;
  const int64_t out = v->shape.channels;
  const float *b = j->n->params[v->param[1]].value;
  for (int64_t r = from; r < to; r++) {
    for (int64_t k = 0; k < out; k++)
      v->out[r * out + k] += b[k];
  }
}

static void run_forward_piece(void *arg, int32_t i) {
  const job *j = arg;
  const node *v = j->v;
  const int64_t out = v->shape.channels;
  tiles t = start_tiles(j, j->n->nodes[v->input[0]].out, v->shape.height * v->shape.width, i);
  while (advance_tile(&t)) {
    nn_gemm(false, true, t.rows, out, t.width, 1.0F, t.p, t.width, v->saved, t.width, 0.0F,
            v->out + t.at * out, out);
    add_bias(j, t.at, t.at + t.rows);
  }
}

static void conv_forward(nn *n, node *v, int64_t samples, nn_mode mode) {
  (void)mode;
  if (nn_winograd_fits(n, v)) {
    nn_winograd_forward(n, v, samples);
    return;
  }
  reorder_job order = make_reorder_job(n, v, n->params[v->param[0]].value, v->saved);
  nn_run_pieces(n, order.pieces, transpose_weights, &order); /* [o][c][k] -> [o][k][c] */
  job j = make_job(n, v, samples);
  run_over_samples(&j, run_forward_piece);
}

/* ---- backward ----------------------------------------------------------------------------------*/

static void compute_weight_grad_piece(void *arg, int32_t i) {
  const job *j = arg;
  const node *v = j->v;
  const int64_t out = v->shape.channels;
  float *sum = j->sums + count_weights(j->n, v) * i;
  tiles t = start_tiles(j, j->n->nodes[v->input[0]].out, v->shape.height * v->shape.width, i);
  while (advance_tile(&t))
    nn_gemm(true, false, out, t.width, t.rows, 1.0F, v->grad + t.at * out, out, t.p, t.width,
            t.at == t.from ? 0.0F : 1.0F, sum, t.width);
}

/* dx by gathering: multiply the patches of dy, [rows, (k,o)], by the reversed kernel [(k,o), c]. */
static void gather_grad_piece(void *arg, int32_t i) {
  const job *j = arg;
  const node *v = j->v, *x = &j->n->nodes[v->input[0]];
  const int64_t in = x->shape.channels;
  const float beta = v->adds[0] ? 1.0F : 0.0F;
  tiles t = start_tiles(j, v->grad, x->shape.height * x->shape.width, i);
  while (advance_tile(&t))
    nn_gemm(false, false, t.rows, in, t.width, 1.0F, t.p, t.width, j->reversed, in, beta,
            x->grad + t.at * in, in);
}

/* dx by scattering: compute dP = dy W, and add each row of dP to its patch of dx. */
static void scatter_grad_piece(void *arg, int32_t i) {
  const job *j = arg;
  const node *v = j->v, *x = &j->n->nodes[v->input[0]];
  const int64_t out = v->shape.channels, width = get_patch_width(&j->p);
  const int64_t image = nn_count_values(x->shape);
  float *tile = j->tiles + j->tile * i;
  const int64_t per_sample = v->shape.height * v->shape.width;
  int64_t first, last;
  nn_find_range(j->samples, j->pieces, i, 1, &first, &last);
  if (!v->adds[0])
    memset(x->grad + first * image, 0, (size_t)((last - first) * image) * sizeof *x->grad);
  for (int64_t r = first * per_sample, to = last * per_sample; r < to; r += j->rows) {
    const int64_t rows = to - r < j->rows ? to - r : j->rows;
    nn_gemm(false, false, rows, width, out, 1.0F, v->grad + r * out, out, v->saved, width, 0.0F,
            tile, width);
    scatter_patches(&j->p, tile, r, rows, x->grad);
  }
}

static void conv_backward(nn *n, node *v, int64_t samples, bool params) {
  const node *x = get_input(n, v, 0);
  if (params && v->param[1] >= 0)
    nn_sum_columns(v->grad, samples * v->shape.height * v->shape.width, v->shape.channels,
                   n->params[v->param[1]].grad);
  if (nn_winograd_fits(n, v)) {
    nn_winograd_backward(n, v, samples, params);
    return;
  }
  job j = make_job(n, v, samples);
  if (params) {
    run_over_samples(&j, compute_weight_grad_piece);
    reorder_job order = make_reorder_job(n, v, j.sums, n->params[v->param[0]].grad);
    order.rows = j.p.channels;
    order.columns = v->kernel * v->kernel;
    order.sums = j.pieces;
    nn_run_pieces(n, order.pieces, transpose_weights, &order); /* [o][k][c] -> [o][c][k] */
  }
  if (x->grad == NULL) return;
  if (!can_gather_grad(v)) {
    run_over_samples(&j, scatter_grad_piece);
    return;
  }
  float *reversed = j.sums + count_weights(n, v) * n->threads;
  reorder_job order = make_reorder_job(n, v, v->saved, reversed);
  nn_run_pieces(n, order.pieces, reverse_kernel, &order);
  j.reversed = reversed;
  j.p = describe_grad_patches(n, v);
  j.rows = count_tile_rows(&j.p);
  run_over_samples(&j, gather_grad_piece);
}

static const nn_op op = {.name = "conv",
                         .forward = conv_forward,
                         .backward = conv_backward,
                         .scratch = count_scratch_bytes,
                         .saved = count_saved_bytes};

int nn_add_conv(nn *n, const char *name, int x, int64_t out, int64_t kernel, int64_t stride,
                int64_t padding, bool bias) {
  if (x < 0) return -1;
  const nn_shape from = nn_get_shape(n, x);
  if (out < 1 || kernel < 1 || stride < 1 || padding < 0)
    return nn_fail(n, "%s: outputs, kernel and stride are at least 1, padding at least 0", name);
  if (from.height + 2 * padding < kernel || from.width + 2 * padding < kernel)
    return nn_fail(n, "%s: an image of %lldx%lld is smaller than the kernel %lldx%lld", name,
                   (long long)from.height, (long long)from.width, (long long)kernel,
                   (long long)kernel);
  const nn_shape to = {(from.height + 2 * padding - kernel) / stride + 1,
                       (from.width + 2 * padding - kernel) / stride + 1, out};
  node *v = nn_add_node(n, &op, x, -1, to);
  if (v == NULL) return -1;
  const int64_t shape[4] = {out, from.channels, kernel, kernel};
  const nn_layer l = {.is_conv = true,
                      .has_bias = bias,
                      .in = from.channels,
                      .out = out,
                      .kernel = kernel,
                      .stride = stride,
                      .padding = padding,
                      .height = from.height,
                      .width = from.width,
                      .out_height = to.height,
                      .positions = to.height * to.width};
  v->kernel = kernel;
  v->stride = stride;
  v->padding = padding;
  return nn_add_layer(n, v, name, &l, 4, shape);
}
