/* gram_shift.c: the input factor of a convolution with stride 1, computed without storing patches.
 *
 * Let tap k cover the pixel r of the image. At the same output position tap k' covers r + d, d = (k' - k) dilation. So
 * block (k, k') of the factor is
 *
 *     A[k, k'] = sum over r in W(k) of x[r] x[r + d]'
 *
 * x[r]: the channels of pixel r, 0 outside the image; W(k): the rectangle of pixels that tap k covers over all output
 * positions. Blocks with the same displacement d sum the same products and differ at the border only. For every d of a
 * half plane (13 for a 3x3 kernel, instead of 45 blocks) this file computes the sum over all r for which r and r + d are
 * inside the image, and the sums over the few image rows, image columns and pixels r that are missing in some block.
 * M[i, j] is the sum over the pixels r in the i-th such row and the j-th such column; index 0 means all rows or all
 * columns. By inclusion and exclusion (all pixels - missing rows - missing columns + their common pixels)
 *
 *     A[k, k'] = sum over i in {0, missing rows}, j in {0, missing columns} of (-1)^([i > 0] + [j > 0]) M[i, j]
 *
 * The result is exact for any padding and dilation; Grosse & Martens 2016, section 3.1, neglect the border.
 *
 * A tile stores samples as [y][x][sample][channel]. So pixels of an image row and the pixels displaced by d are two
 * matrices at a constant distance in memory, and one GEMM multiplies them. Zero-padded images would need one GEMM for
 * each displacement instead of one for each image row, but that GEMM would multiply zeros: 13 % more work at 32x32
 * pixels, 3.6 times as much at 4x4.
 *
 * Rounding: M[0, 0] is larger than a block by about (k-1)/size for a kernel of k taps and an image of `size` pixels
 * along an axis, so the subtraction loses a fraction of one bit. */
#include "kernel/gram_shift.h"
#include "kernel/pixels.h"
#include "simd.h"

/* ---- the tile --------------------------------------------------------------------------------*/

typedef struct shift_job {
  ng_queue *q;
  ng_pixels in;
  ng_axis v, h;
  /* number of channels; number of samples of the tile; index of its first sample in the batch */
  int64_t C, samples, first;
  /* number of edge columns at each end; number of copied columns at both ends */
  int64_t edge, columns;
  float *tile, *edges, *product; /* pixels of the tile; copies of its edge columns; matrices M */
  float alpha;
  ng_sym S;
  int32_t pieces;
  /* displacement of the current products, in taps */
  int64_t dy, dx;
  ng_strips sy, sx;
} shift_job;

static float *pixel_address(const shift_job *j, int64_t y, int64_t x) {
  return j->tile + (y * j->h.size + x) * j->samples * j->C;
}

/* Return the copy of pixel (y, x) of an edge column. The copies are stored as [column][y][sample][channel], so that the
 * pixels of a column are contiguous. */
static float *edge_pixel_address(const shift_job *j, int64_t x, int64_t y) {
  const int64_t slot = x < j->edge ? x : x - j->h.size + j->columns;
  return j->edges + (slot * j->v.size + y) * j->samples * j->C;
}

static void load_rows(void *arg, int32_t i) {
  const shift_job *j = arg;
  int64_t from, to;
  ng_piece_bounds(j->samples * j->v.size, j->pieces, i, &from, &to);
  for (int64_t k = from; k < to;) {
    const int64_t n = k / j->v.size, y = k % j->v.size, rows = ng_min64(j->v.size - y, to - k);
    ng_pixels_load(&j->in, j->first + n, y * j->h.size, rows * j->h.size,
                   pixel_address(j, y, 0) + n * j->C, j->samples * j->C);
    k += rows;
  }
}

static void copy_edges(void *arg, int32_t i) {
  const shift_job *j = arg;
  int64_t from, to;
  ng_piece_bounds(j->columns * j->v.size, j->pieces, i, &from, &to);
  for (int64_t k = from; k < to; k++) {
    const int64_t slot = k / j->v.size, y = k % j->v.size;
    const int64_t x = slot < j->edge ? slot : slot + j->h.size - j->columns;
    memcpy(edge_pixel_address(j, x, y), pixel_address(j, y, x),
           (size_t)(j->samples * j->C) * sizeof(float));
  }
}

/* ---- products --------------------------------------------------------------------------------*/

enum { PRODUCT_ROWS = 1024 };

static float *product_address(const shift_job *j, int64_t i, int64_t k) {
  return j->product + (i * ng_count_strip_indices(&j->sx) + k) * j->C * j->C;
}

/* M[c, c'] = beta M[c, c'] + sum over `pixels` pixels and all samples of x[c] y[c']. The sum is computed in parts of 1024
 * rows, to bound its rounding error: BLAS does not split long sums of small matrices. */
static void add_product(const shift_job *j, int64_t pixels, const float *X, const float *Y,
                        float beta, float *M) {
  const int64_t C = j->C, rows = pixels * j->samples;
  ng_queue *q = j->q;
  for (int64_t k = 0; k < rows; k += PRODUCT_ROWS) {
    ng_linalg_uncounted(q)->gemm(q, NG_F32, true, false, C, C, ng_min64(PRODUCT_ROWS, rows - k),
                                 1.0, X + k * C, C, Y + k * C, C, k == 0 ? beta : 1.0, M, C);
  }
}

static void multiply_all_pixels(const shift_job *j, float *gram) {
  const int64_t dy = j->dy * j->v.step, dx = j->dx * j->h.step;
  const ng_range ry = j->sy.inner, rx = j->sx.inner;
  const int64_t height = ry.to - ry.from, width = rx.to - rx.from;
  float *M = product_address(j, 0, 0);
  if (dy == 0 && dx == 0) {
    const ng_sym G = {.a = gram, .n = j->C};
    ng_queue *q = j->q;
    ng_linalg_uncounted(q)->scale(q, ng_sym_count(G.n), G.a, NG_F32, 0.0);
    ng_linalg_uncounted(q)->add_gram(q, G, 0, j->C, j->tile, height * width * j->samples, j->C,
                                     1.0f);
    ng_linalg_uncounted(q)->unpack(q, G.n, G.a, NG_F32, M, j->C);
  } else if (dx == 0) { /* dx = 0: rows of pixels are contiguous, so one product covers all rows */
    add_product(j, height * width, pixel_address(j, 0, 0), pixel_address(j, dy, 0), 0.0f, M);
  } else {
    for (int64_t y = ry.from; y < ry.to; y++) {
      add_product(j, width, pixel_address(j, y, rx.from), pixel_address(j, y + dy, rx.from + dx),
                  y == ry.from ? 0.0f : 1.0f, M);
    }
  }
}

static void multiply_strips(const shift_job *j) {
  const int64_t dy = j->dy * j->v.step, dx = j->dx * j->h.step;
  const ng_range ry = j->sy.inner, rx = j->sx.inner;
  for (int64_t k = 1; k < ng_count_strip_indices(&j->sx); k++) {
    const int64_t x = ng_strip_coordinate(&j->sx, k);
    add_product(j, ry.to - ry.from, edge_pixel_address(j, x, ry.from),
                edge_pixel_address(j, x + dx, ry.from + dy), 0.0f, product_address(j, 0, k));
  }
  for (int64_t i = 1; i < ng_count_strip_indices(&j->sy); i++) {
    const int64_t y = ng_strip_coordinate(&j->sy, i);
    add_product(j, rx.to - rx.from, pixel_address(j, y, rx.from),
                pixel_address(j, y + dy, rx.from + dx), 0.0f, product_address(j, i, 0));
    for (int64_t k = 1; k < ng_count_strip_indices(&j->sx); k++) {
      const int64_t x = ng_strip_coordinate(&j->sx, k);
      add_product(j, 1, pixel_address(j, y, x), pixel_address(j, y + dy, x + dx), 0.0f,
                  product_address(j, i, k));
    }
  }
}

/* ---- blocks ----------------------------------------------------------------------------------*/

enum { PANEL = 32, RUN = 256 };

/* The matrices M whose combination is a block: at[0 .. plus) are added, at[plus .. n) subtracted; at[0] is M[0, 0]. */
typedef struct block_terms {
  const float *at[NG_SHIFT_MAX_PRODUCTS];
  int64_t n, plus;
} block_terms;

/* to[r] = element at + r of the block that the terms describe, r < n. */
NG_CLONES static void combine_terms(const block_terms *t, int64_t at, int64_t n, float *to) {
  memcpy(to, t->at[0] + at, (size_t)n * sizeof *to);
  for (int64_t k = 1; k < t->n; k++) {
    const float *M = t->at[k] + at;
    const float sign = k < t->plus ? 1.0f : -1.0f;
    for (int64_t r = 0; r < n; r++) {
      to[r] += sign * M[r];
    }
  }
}

NG_CLONES static void add_scaled(float *to, const float *from, int64_t n, float alpha) {
  for (int64_t r = 0; r < n; r++) {
    to[r] += alpha * from[r];
  }
}

/* Add a plain piece (row_stride == 1) of a block to S: a row of M is a column of S, and both are contiguous. */
static void add_plain_piece(const block_terms *t, int64_t C, const ng_sym_piece *p, int64_t c0,
                            int64_t r0, float alpha) {
  for (int64_t c = 0; c < p->cols; c++) {
    for (int64_t r = p->diagonal ? c : 0; r < p->rows; r += RUN) {
      float run[RUN];
      const int64_t n = ng_min64(RUN, p->rows - r), at = (c0 + c) * C + r0 + r;
      if (t->n == 1) {
        add_scaled(p->a + r + c * p->col_stride, t->at[0] + at, n, alpha);
        continue;
      }
      combine_terms(t, at, n, run);
      add_scaled(p->a + r + c * p->col_stride, run, n, alpha);
    }
  }
}

/* Add a transposed piece (row_stride != 1) of a block to S. Its rows are columns of M, so panels of M that fit the cache are
 * transposed. */
static void add_transposed_piece(const block_terms *t, int64_t C, const ng_sym_piece *p, int64_t c0,
                                 int64_t r0, float alpha) {
  for (int64_t c = 0; c < p->cols; c += PANEL) {
    const int64_t m = ng_min64(PANEL, p->cols - c);
    for (int64_t r = p->diagonal ? c : 0; r < p->rows; r += PANEL) {
      float block[PANEL * PANEL], transposed[PANEL * PANEL];
      const int64_t n = ng_min64(PANEL, p->rows - r);
      for (int64_t i = 0; i < m; i++) {
        combine_terms(t, (c0 + c + i) * C + r0 + r, n, block + i * PANEL);
      }
      ng_transpose(block, PANEL, m, n, transposed, PANEL);
      for (int64_t k = 0; k < n; k++) {
        const int64_t wide = p->diagonal ? ng_min64(m, r + k - c + 1) : m;
        add_scaled(p->a + (r + k) * p->row_stride + c, transposed + k * PANEL, wide, alpha);
      }
    }
  }
}

/* Add columns [ca, cb) of block (row, col) of A to S; row and col are taps. */
static void add_block(const shift_job *j, const block_terms *t, int64_t row, int64_t col,
                      int64_t ca, int64_t cb) {
  const int64_t C = j->C;
  ng_sym_piece piece[6];
  int32_t n;
  if (row == col) {
    n = ng_sym_cut(j->S, row * C + ca, cb - ca, col * C + ca, cb - ca, piece);
    if (cb < C) n += ng_sym_cut(j->S, row * C + cb, C - cb, col * C + ca, cb - ca, piece + n);
  } else {
    n = ng_sym_cut(j->S, row * C, C, col * C + ca, cb - ca, piece);
  }
  for (int32_t i = 0; i < n; i++) {
    const ng_sym_piece *p = &piece[i];
    if (p->row_stride == 1) {
      add_plain_piece(t, C, p, p->col - col * C, p->row - row * C, j->alpha);
    } else {
      add_transposed_piece(t, C, p, p->col - col * C, p->row - row * C, j->alpha);
    }
  }
}

/* Add piece i, some columns of all blocks of the current displacement, to S. The order of terms is fixed: M[0, 0], then
 * other added terms, then subtracted terms. */
static void add_blocks(void *arg, int32_t i) {
  const shift_job *j = arg;
  const ng_range ky = ng_axis_paired_taps(&j->v, j->dy), kx = ng_axis_paired_taps(&j->h, j->dx);
  int64_t ca, cb;
  ng_piece_bounds(j->C, j->pieces, i, &ca, &cb);
  if (ca == cb) return;
  for (int64_t y = ky.from; y < ky.to; y++) {
    int64_t rows[NG_SHIFT_MAX_PRODUCTS], cols[NG_SHIFT_MAX_PRODUCTS];
    const int64_t ny = ng_list_strip_terms(&j->v, &j->sy, j->dy, y, rows);
    for (int64_t x = kx.from; ny > 0 && x < kx.to; x++) {
      const int64_t nx = ng_list_strip_terms(&j->h, &j->sx, j->dx, x, cols);
      if (nx == 0) continue;
      block_terms t = {.n = 0};
      for (int pass = 0; pass < 2; pass++) {
        for (int64_t a = 0; a < ny; a++) {
          for (int64_t b = 0; b < nx; b++) {
            if (((a > 0) != (b > 0)) == (pass == 1))
              t.at[t.n++] = product_address(j, rows[a], cols[b]);
          }
        }
        if (pass == 0) t.plus = t.n;
      }
      add_block(j, &t, (y + j->dy) * j->h.taps + x + j->dx, y * j->h.taps + x, ca, cb);
    }
  }
}

/* ---- tiles --------------------------------------------------------------------------------*/

/* Add one tile to S. S stores one triangle, and block (k', k) is the transpose of block (k, k'), so half of all
 * displacements suffice: dy >= 0, and dx >= 0 if dy = 0. */
static void add_tile(shift_job *j, float *gram) {
  ng_queue *q = j->q;
  j->pieces = ng_queue_pieces(q, j->samples * j->v.size * j->h.size * j->C);
  ng_queue_run(q, j->pieces, load_rows, j);
  if (j->columns > 0) ng_queue_run(q, j->pieces, copy_edges, j);
  for (j->dy = 0; j->dy < j->v.taps; j->dy++) {
    for (j->dx = j->dy == 0 ? 0 : 1 - j->h.taps; j->dx < j->h.taps; j->dx++) {
      j->sy = ng_find_strips(&j->v, j->dy);
      j->sx = ng_find_strips(&j->h, j->dx);
      if (j->sy.inner.from >= j->sy.inner.to || j->sx.inner.from >= j->sx.inner.to) continue;
      multiply_all_pixels(j, gram);
      multiply_strips(j);
      const ng_range ky = ng_axis_paired_taps(&j->v, j->dy), kx = ng_axis_paired_taps(&j->h, j->dx);
      j->pieces = ng_queue_pieces(q, (ky.to - ky.from) * (kx.to - kx.from) * j->C * j->C);
      ng_queue_run(q, j->pieces, add_blocks, j);
    }
  }
}

void ng_gram_conv_shift(ng_queue *q, const ng_gram *g, float *scratch) {
  const ng_conv *c = &g->conv;
  if (g->samples <= 0) return;
  const int64_t C = g->c1 - g->c0, most = ng_shift_tile_samples(c, C);
  /* All tiles have about the same size, because a small last tile needs as many calls of GEMM as a large tile. */
  const int64_t tiles = (g->samples + most - 1) / most, even = (g->samples + tiles - 1) / tiles;
  const ng_shift_layout at = ng_shift_layout_of(c, C, even * C * ng_shift_pixels(c));
  shift_job j = {.q = q,
                 .v = ng_conv_axis(c, 0),
                 .h = ng_conv_axis(c, 1),
                 .C = C,
                 .in = {&g->x, g->c0, g->c1},
                 .edge = ng_shift_edge_columns(c),
                 .columns = ng_shift_copied_columns(c),
                 .tile = scratch,
                 .product = scratch + at.products,
                 .alpha = (float)g->alpha,
                 .S = g->S};
  for (j.first = 0; j.first < g->samples; j.first += j.samples) {
    j.samples = ng_min64(even, g->samples - j.first);
    j.edges = scratch + j.samples * C * c->height * c->width;
    add_tile(&j, scratch + at.gram);
  }
  if (!g->has_ones) return;
  ng_gram bias = *g;
  bias.conv.channels = bias.x.columns = C;
  bias.x.data = ng_view_at(&g->x, 0, 0, g->c0);
  ng_add_bias_row(q, &bias, scratch);
}
