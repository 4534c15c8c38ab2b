/* winograd.c: 3x3 convolutions of stride 1 by F(2x2, 3x3) of Winograd (Lavin & Gray 2015, arXiv 1509.09308). A tile is 2x2
 * outputs, which read 4x4 inputs d. For one input and one output channel, with the kernel g:
 *
 *   y = A' [(G g G') * (B' d B)] A          * is the product of elements
 *   B' = [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1]   G = [1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1]   A' = [1 1 1 0; 0 1 -1 -1]
 *
 * With U = G g G' and V = B' d B, each of the 16 elements e is a product of matrices over channels: M[e] = V[e] U[e]'.
 * Backward of the weights is the adjoint: dU[e] = dM[e]' V[e] with dM = A dy A', and dg = G' dU G. Backward of the
 * input is the convolution of dy with the reversed kernel, whose U is the transposed U with rows 0 and 3 exchanged, and
 * columns alike.
 *
 * A block of tiles is transformed in parallel over tiles, and multiplied in parallel over e with BLAS on one thread. So
 * the result does not depend on the number of threads. */
#include "winograd.h"
#include "simd.h"

#include <string.h>

enum { E = 16, LEAST_CHANNELS = 16, CHUNK = 64 };
enum { BLOCK_FLOATS = 512 * 1024, LEAST_TILES = 256, PAD = 16 };

/* Before a loop over channels: no pass of the loop depends on another one, so that GCC vectorises it. */
#if defined(__GNUC__) && !defined(__clang__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

/* An image [samples][height][width][channels], which is cut into tiles with the size `side` (4 or 2) at distances of 2.
 * The first tile begins at (-padding, -padding). */
typedef struct image {
  const float *data;
  float *to;
  int64_t height, width, channels, padding;
} image;

typedef struct pass {
  nn *n;
  image in, out; /* the input as 4x4 tiles; the output as 2x2 tiles */
  /* rows and columns of tiles of one sample; tiles of all samples */
  int64_t samples, rows, columns, tiles;
  /* largest number of tiles of a block; first tile and number of tiles of the current block */
  int64_t block, first, count;
  const float *bias; /* bias that is added to the output; NULL: none */
  float *v, *m, *u;  /* V [E][block][in], M or dM [E][block][out]; U or dU [E][..] */
  /* stands for rows outside the image: a row of zeros to read, then a row to write */
  float *outside;
  float beta; /* 1: add the result to dU; 0: overwrite dU */
  bool adds;  /* add the result to the output instead of overwriting it */
  /* compute the gradient of the input: U belongs to the forward convolution, and `out` is its input */
  bool reversed;
  int32_t pieces;
} pass;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Return the floats from an element of V or M to the next one: not a power of 2, so that the elements of a tile are in
 * different sets of the first-level cache. */
static int64_t count_step(int64_t block, int64_t channels) { return block * channels + PAD; }

/* ---- transforms -----------------------------------------------------------------------------------*/

/* V = B' d B of one tile: d has 16 rows of c channels; element e is at v + e * step. */
NG_CLONES static void transform_input(const float *const d[E], int64_t c, float *v, int64_t step) {
  INDEPENDENT
  for (int64_t k = 0; k < c; k++) {
    float t[E];
    for (int j = 0; j < 4; j++) {
      const float a = d[j][k], b = d[4 + j][k], x = d[8 + j][k], y = d[12 + j][k];
      t[j] = a - x;
      t[4 + j] = b + x;
      t[8 + j] = x - b;
      t[12 + j] = b - y;
    }
    for (int i = 0; i < E; i += 4) {
      v[i * step + k] = t[i] - t[i + 2];
      v[(i + 1) * step + k] = t[i + 1] + t[i + 2];
      v[(i + 2) * step + k] = t[i + 2] - t[i + 1];
      v[(i + 3) * step + k] = t[i + 1] - t[i + 3];
    }
  }
}

/* y = A' M A of one tile, plus the bias; y has 4 rows. Inlined with a constant `adds`: a conditional load would not
 * vectorise. */
static inline void transform_output_tile(const float *m, int64_t step, int64_t c, const float *bias,
                                         bool adds, float *const y[4]) {
  INDEPENDENT
  for (int64_t k = 0; k < c; k++) {
    float t[8];
    for (int j = 0; j < 4; j++) {
      const float b = m[(4 + j) * step + k], x = m[(8 + j) * step + k];
      t[j] = m[j * step + k] + b + x;
      t[4 + j] = b - x - m[(12 + j) * step + k];
    }
    for (int i = 0; i < 2; i++) {
      const float left = t[4 * i] + t[4 * i + 1] + t[4 * i + 2] + bias[k];
      const float right = t[4 * i + 1] - t[4 * i + 2] - t[4 * i + 3] + bias[k];
      y[2 * i][k] = adds ? y[2 * i][k] + left : left;
      y[2 * i + 1][k] = adds ? y[2 * i + 1][k] + right : right;
    }
  }
}

NG_CLONES static void transform_output(const float *m, int64_t step, int64_t c, const float *bias,
                                       bool adds, float *const y[4]) {
  if (adds) {
    transform_output_tile(m, step, c, bias, true, y);
  } else {
    transform_output_tile(m, step, c, bias, false, y);
  }
}

/* dM = A dy A' of one tile. */
NG_CLONES static void transform_output_grad(const float *const dy[4], int64_t c, float *m,
                                            int64_t step) {
  INDEPENDENT
  for (int64_t k = 0; k < c; k++) {
    float t[8];
    for (int j = 0; j < 2; j++) {
      const float a = dy[j][k], b = dy[2 + j][k];
      t[j] = a;
      t[2 + j] = a + b;
      t[4 + j] = a - b;
      t[6 + j] = -b;
    }
    for (int i = 0; i < 4; i++) {
      m[4 * i * step + k] = t[2 * i];
      m[(4 * i + 1) * step + k] = t[2 * i] + t[2 * i + 1];
      m[(4 * i + 2) * step + k] = t[2 * i] - t[2 * i + 1];
      m[(4 * i + 3) * step + k] = -t[2 * i + 1];
    }
  }
}

/* U = G g G' for c kernels; g is [9][CHUNK]. */
NG_CLONES static void transform_kernels(float (*g)[CHUNK], int64_t c, float *u, int64_t step) {
  INDEPENDENT
  for (int64_t k = 0; k < c; k++) {
    float t[12];
    for (int j = 0; j < 3; j++) {
      const float a = g[j][k], b = g[3 + j][k], x = g[6 + j][k];
      t[j] = a;
      t[3 + j] = 0.5F * (a + b + x);
      t[6 + j] = 0.5F * (a - b + x);
      t[9 + j] = x;
    }
    for (int i = 0; i < 4; i++) {
      const float a = t[3 * i], b = t[3 * i + 1], x = t[3 * i + 2];
      u[4 * i * step + k] = a;
      u[(4 * i + 1) * step + k] = 0.5F * (a + b + x);
      u[(4 * i + 2) * step + k] = 0.5F * (a - b + x);
      u[(4 * i + 3) * step + k] = x;
    }
  }
}

/* dg = G' dU G for c kernels. */
NG_CLONES static void transform_kernel_grads(const float *u, int64_t step, int64_t c,
                                             float (*g)[CHUNK]) {
  INDEPENDENT
  for (int64_t k = 0; k < c; k++) {
    float t[12];
    for (int j = 0; j < 4; j++) {
      const float b = 0.5F * u[(4 + j) * step + k], x = 0.5F * u[(8 + j) * step + k];
      t[j] = u[j * step + k] + b + x;
      t[4 + j] = b - x;
      t[8 + j] = b + x + u[(12 + j) * step + k];
    }
    for (int i = 0; i < 3; i++) {
      const float b = 0.5F * t[4 * i + 1], x = 0.5F * t[4 * i + 2];
      g[3 * i][k] = t[4 * i] + b + x;
      g[3 * i + 1][k] = b - x;
      g[3 * i + 2][k] = b + x + t[4 * i + 3];
    }
  }
}

/* ---- weights -----------------------------------------------------------------------------------------*/

typedef struct kernels {
  const float *from;
  float *to;
  int64_t out, in;
  int32_t pieces;
  /* true: compute the gradients of the weights from dU; false: compute U from the weights [out][in][9] */
  bool gradients;
} kernels;

static void transform_piece_kernels(void *arg, int32_t i) {
  const kernels *w = arg;
  const int64_t step = w->out * w->in;
  int64_t first, last;
  float g[9][CHUNK];
  nn_find_range(w->out, w->pieces, i, 1, &first, &last);
  for (int64_t at = first * w->in; at < last * w->in; at += CHUNK) {
    const int64_t c = last * w->in - at < CHUNK ? last * w->in - at : CHUNK;
    if (w->gradients) transform_kernel_grads(w->from + at, step, c, g);
    for (int64_t k = 0; k < c; k++) {
      for (int e = 0; e < 9; e++) {
        if (w->gradients) w->to[(at + k) * 9 + e] = g[e][k];
        if (!w->gradients) g[e][k] = w->from[(at + k) * 9 + e];
      }
    }
    if (!w->gradients) transform_kernels(g, c, w->to + at, step);
  }
}

static void transform_weights(nn *n, const node *v, const float *from, float *to, bool gradients) {
  const nn_layer *l = &n->layers[v->layer];
  kernels w = {.from = from,
               .to = to,
               .out = l->out,
               .in = l->in,
               .pieces = nn_count_pieces(n, E * l->in * l->out),
               .gradients = gradients};
  nn_run_pieces(n, w.pieces, transform_piece_kernels, &w);
}

/* ---- a block of tiles ----------------------------------------------------------------------------------*/

/* Set row[i * side + j] to the pixel (i, j) of a tile, or to `outside`. */
static void find_rows(const pass *p, const image *a, const float *data, int64_t tile, int side,
                      float *outside, float **row) {
  const int64_t each = p->rows * p->columns, sample = tile / each, at = tile % each;
  const int64_t top = 2 * (at / p->columns) - a->padding, left = 2 * (at % p->columns) - a->padding;
  float *first = (float *)(uintptr_t)data + sample * a->height * a->width * a->channels;
  for (int i = 0; i < side; i++) {
    for (int j = 0; j < side; j++) {
      const int64_t y = top + i, x = left + j;
      const bool inside = y >= 0 && y < a->height && x >= 0 && x < a->width;
      row[i * side + j] = inside ? first + (y * a->width + x) * a->channels : outside;
    }
  }
}

static void transform_piece_inputs(void *arg, int32_t i) {
  const pass *p = arg;
  int64_t from, to;
  float *row[E];
  nn_find_range(p->count, p->pieces, i, 1, &from, &to);
  for (int64_t t = from; t < to; t++) {
    find_rows(p, &p->in, p->in.data, p->first + t, 4, p->outside, row);
    transform_input((const float *const *)row, p->in.channels, p->v + t * p->in.channels,
                    count_step(p->block, p->in.channels));
    if (p->out.data == NULL) continue;
    find_rows(p, &p->out, p->out.data, p->first + t, 2, p->outside, row);
    transform_output_grad((const float *const *)row, p->out.channels, p->m + t * p->out.channels,
                          count_step(p->block, p->out.channels));
  }
}

static void transform_piece_outputs(void *arg, int32_t i) {
  const pass *p = arg;
  const int64_t most = larger(p->in.channels, p->out.channels);
  const float *bias = p->bias != NULL ? p->bias : p->outside;
  int64_t from, to;
  float *row[4];
  nn_find_range(p->count, p->pieces, i, 1, &from, &to);
  for (int64_t t = from; t < to; t++) {
    find_rows(p, &p->out, p->out.to, p->first + t, 2, p->outside + (i + 1) * most, row);
    transform_output(p->m + t * p->out.channels, count_step(p->block, p->out.channels),
                     p->out.channels, bias, p->adds, row);
  }
}

static void multiply_piece(void *arg, int32_t i) {
  static const int exchanged[4] = {3, 1, 2, 0};
  const pass *p = arg;
  const int64_t in = p->in.channels, out = p->out.channels, step = in * out;
  int64_t from, to;
  nn_find_range(E, p->pieces, i, 1, &from, &to);
  for (int64_t e = from; e < to; e++) {
    const float *v = p->v + e * count_step(p->block, in);
    float *m = p->m + e * count_step(p->block, out);
    if (p->out.data != NULL) { /* dU [out][in] */
      nn_gemm(true, false, out, in, p->count, 1.0F, m, out, v, in, p->beta, p->u + e * step, in);
    } else if (p->reversed) { /* U [in][out] */
      const float *u = p->u + (4 * exchanged[e / 4] + exchanged[e % 4]) * step;
      nn_gemm(false, false, p->count, out, in, 1.0F, v, in, u, out, 0.0F, m, out);
    } else { /* U [out][in] */
      nn_gemm(false, true, p->count, out, in, 1.0F, v, in, p->u + e * step, in, 0.0F, m, out);
    }
  }
}

static void run_blocks(pass *p) {
  nn *n = p->n;
  const bool parallel = nn_blas_use_one_thread(n);
  const int32_t threads = parallel ? n->threads : 1;
  p->beta = 0.0F;
  for (p->first = 0; p->first < p->tiles; p->first += p->block) {
    p->count = p->tiles - p->first < p->block ? p->tiles - p->first : p->block;
    p->pieces = nn_count_pieces(n, E * p->count * p->in.channels);
    nn_run_pieces(n, p->pieces, transform_piece_inputs, p);
    p->pieces = threads < E ? threads : E;
    nn_run_pieces(n, p->pieces, multiply_piece, p);
    p->beta = 1.0F;
    if (p->out.data != NULL) continue;
    p->pieces = nn_count_pieces(n, E * p->count * p->out.channels);
    nn_run_pieces(n, p->pieces, transform_piece_outputs, p);
  }
  if (parallel) nn_blas_restore_threads(n);
}

/* ---- convolutions ----------------------------------------------------------------------------------------*/

bool nn_winograd_fits(const nn *n, const node *v) {
  return v->kernel == 3 && v->stride == 1 && v->padding <= 2 &&
         n->nodes[v->input[0]].shape.channels >= LEAST_CHANNELS &&
         v->shape.channels >= LEAST_CHANNELS;
}

static int64_t count_weights(const nn *n, const node *v) {
  return E * n->layers[v->layer].in * n->layers[v->layer].out;
}

/* Return the tiles of a block for at most `tiles` tiles. */
static int64_t count_block_tiles(int64_t channels, int64_t tiles) {
  const int64_t some = larger(BLOCK_FLOATS / (E * channels), LEAST_TILES);
  return some < tiles ? some : tiles;
}

static int64_t count_tiles(int64_t samples, nn_shape out) {
  return samples * ((out.height + 1) / 2) * ((out.width + 1) / 2);
}

static image make_image(nn_shape s, const float *data, float *to, int64_t padding) {
  return (image){data, to, s.height, s.width, s.channels, padding};
}

/* Make a pass whose output has the shape `out`. Scratch: V and M, dU, and rows for pixels outside. */
static pass make_pass(nn *n, const node *v, int64_t samples, image in, image out, nn_shape tiled) {
  const int64_t channels = in.channels + out.channels;
  pass p = {.n = n,
            .in = in,
            .out = out,
            .samples = samples,
            .rows = (tiled.height + 1) / 2,
            .columns = (tiled.width + 1) / 2,
            .tiles = count_tiles(samples, tiled)};
  p.block = count_block_tiles(channels, p.tiles);
  p.u = v->saved;
  p.outside = n->scratch;
  memset(p.outside, 0, (size_t)larger(in.channels, out.channels) * sizeof *p.outside);
  p.v = p.outside + (n->threads + 1) * larger(in.channels, out.channels);
  p.m = p.v + E * count_step(p.block, in.channels);
  return p;
}

int64_t nn_winograd_saved_bytes(const nn *n, const node *v) {
  return count_weights(n, v) * (int64_t)sizeof(float);
}

int64_t nn_winograd_scratch_bytes(const nn *n, const node *v) {
  const nn_shape in = n->nodes[v->input[0]].shape;
  const int64_t channels = in.channels + v->shape.channels;
  const int64_t tiles = larger(count_tiles(n->batch, in), count_tiles(n->batch, v->shape));
  const int64_t rows = (n->threads + 1) * larger(in.channels, v->shape.channels);
  return (rows + E * (count_step(count_block_tiles(channels, tiles), channels) + PAD) +
          count_weights(n, v)) *
         (int64_t)sizeof(float);
}

void nn_winograd_forward(nn *n, node *v, int64_t samples) {
  const node *x = get_input(n, v, 0);
  transform_weights(n, v, n->params[v->param[0]].value, v->saved, false);
  pass p = make_pass(n, v, samples, make_image(x->shape, x->out, NULL, v->padding),
                     make_image(v->shape, NULL, v->out, 0), v->shape);
  if (v->param[1] >= 0) p.bias = n->params[v->param[1]].value;
  run_blocks(&p);
}

void nn_winograd_backward(nn *n, node *v, int64_t samples, bool params) {
  const node *x = get_input(n, v, 0);
  if (params) {
    pass p = make_pass(n, v, samples, make_image(x->shape, x->out, NULL, v->padding),
                       make_image(v->shape, v->grad, NULL, 0), v->shape);
    p.u = p.m + E * count_step(p.block, p.out.channels);
    run_blocks(&p);
    transform_weights(n, v, p.u, n->params[v->param[0]].grad, true);
  }
  if (x->grad == NULL) return;
  pass p = make_pass(n, v, samples, make_image(v->shape, v->grad, NULL, 2 - v->padding),
                     make_image(x->shape, NULL, x->grad, 0), x->shape);
  p.adds = v->adds[0];
  p.reversed = true;
  run_blocks(&p);
}
