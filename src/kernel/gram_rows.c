/* gram_rows.c: sums of outer products of rows (Martens & Grosse 2015, equation 1).
 *
 * In: a view in any strides and dtype; the samples and columns to use. Out: S += alpha sum over rows r of r
 * r', with a 1 appended to r for a bias.
 *
 * SYRK reads f32 rows of one stride in place. All other layouts are copied to tiles. */
#include "kernel/pixels.h"

/* ---- in place --------------------------------------------------------------------------------*/

void ng_add_bias_row(ng_queue *q, const ng_gram *g, float *scratch) {
  const ng_conv *c = &g->conv;
  const int64_t C = c->channels, taps = ng_conv_taps(c), p = taps * C;
  double *sum = (double *)(void *)scratch;
  float *row = scratch + 2 * ng_round16(p);
  const ng_box box = {.x = g->x, .samples = g->samples, .conv = *c, .out = sum};
  ng_cpu_sum_patches(q, &box, 1, (double *)(void *)(row + ng_round16(p + 1)));
  for (int64_t i = 0; i < p; i++) { /* convert the order [channel][offset] to [offset][channel] */
    row[i] = (float)sum[i % C * taps + i / C];
  }
  row[p] = (float)(g->samples * c->out_height * c->out_width);
  ng_linalg_uncounted(q)->add_row(q, g->S, p, 0, p + 1, row, (float)g->alpha);
}

/* Add the Gram matrix of f32 rows at distance ldx in place, then the row of the bias. For the bias, all rows are
 * described as the positions of one sample. */
static void add_gram_in_place(ng_queue *q, const ng_gram *g, int64_t ldx, float *scratch) {
  const float *X = (const float *)(const void *)ng_view_at(&g->x, 0, 0, g->c0);
  const int64_t rows = g->samples * g->x.positions, cols = g->c1 - g->c0;
  ng_linalg_uncounted(q)->add_gram(q, g->S, 0, cols, X, rows, ldx, (float)g->alpha);
  if (!g->has_ones) return;
  ng_gram bias = {.samples = 1, .alpha = g->alpha, .S = g->S};
  bias.x = (ng_view){.data = X,
                     .dtype = NG_F32,
                     .samples = 1,
                     .positions = rows,
                     .columns = cols,
                     .position_stride = ldx,
                     .column_stride = 1,
                     .run_length = rows};
  bias.conv = (ng_conv){.channels = cols,
                        .height = 1,
                        .width = rows,
                        .kernel = {1, 1},
                        .stride = {1, 1},
                        .dilation = {1, 1},
                        .out_height = 1,
                        .out_width = rows,
                        .is_linear = true};
  ng_add_bias_row(q, &bias, scratch);
}

/* ---- tiles -----------------------------------------------------------------------------------*/

void ng_add_gram_by_tiles(ng_queue *q, const ng_gram *g, int64_t rows, int64_t cols, int64_t reads,
                          void (*fill)(void *tile, int32_t i), float *scratch) {
  ng_gram_tile t = {.g = g, .to = scratch, .ld = ng_round16(cols)};
  t.scratch = scratch + ng_tile_floats(cols);
  for (; t.first < rows; t.first += t.count) {
    t.count = ng_min64(ng_tile_rows(cols), rows - t.first);
    t.pieces = ng_queue_pieces(q, t.count * reads);
    ng_queue_run(q, t.pieces, fill, &t);
    ng_linalg_uncounted(q)->add_gram(q, g->S, 0, cols, scratch, t.count, t.ld, (float)g->alpha);
  }
}

/* Copy the rows of piece i to the tile in the order of memory: position after position if positions have the larger
 * stride, otherwise sample after sample. */
static void copy_rows(void *arg, int32_t i) {
  const ng_gram_tile *t = arg;
  const ng_gram *r = t->g;
  const ng_pixels in = {&r->x, r->c0, r->c1};
  const int64_t cols = r->c1 - r->c0, S = r->x.positions;
  const bool outer = r->x.axes == 0 && r->x.position_stride > r->x.sample_stride;
  int64_t from, to;
  ng_piece_bounds(t->count, t->pieces, i, &from, &to);
  for (int64_t k = from, run; k < to; k += run) {
    const int64_t g = t->first + k, n = outer ? g % r->samples : g / S,
                  s = outer ? g / r->samples : g % S;
    run = outer ? 1 : ng_min64(S - s, to - k);
    ng_pixels_load(&in, n, s, run, t->to + k * t->ld, t->ld);
    for (int64_t j = 0; r->has_ones && j < run; j++) {
      t->to[(k + j) * t->ld + cols] = 1.0f;
    }
  }
}

/* Fill the rows of piece i with the mean or sum over the positions of each sample. The loop sums 64 columns at a time,
 * whose sums stay in registers and the L1 cache. */
static void reduce_rows(void *arg, int32_t i) {
  enum { WIDE = 64, ROWS = 32 };
  const ng_gram_tile *t = arg;
  const ng_gram *r = t->g;
  const int64_t cols = r->c1 - r->c0, S = r->x.positions;
  const double factor = r->reduce == 1 ? 1.0 / (double)S : 1.0;
  int64_t from, to;
  ng_piece_bounds(t->count, t->pieces, i, &from, &to);
  for (int64_t k = from; k < to; k++) {
    float *out = t->to + k * t->ld;
    for (int64_t j = 0; j < cols; j += WIDE) {
      const int64_t wide = ng_min64(WIDE, cols - j);
      const ng_pixels in = {&r->x, r->c0 + j, r->c0 + j + wide};
      double acc[WIDE] = {0};
      for (int64_t s = 0; s < S; s += ROWS) {
        float block[ROWS * WIDE];
        const int64_t rows = ng_min64(ROWS, S - s);
        ng_pixels_load(&in, t->first + k, s, rows, block, WIDE);
        for (int64_t p = 0; p < rows; p++) {
          for (int64_t c = 0; c < wide; c++) {
            acc[c] += (double)block[p * WIDE + c];
          }
        }
      }
      for (int64_t c = 0; c < wide; c++) {
        out[j + c] = (float)(acc[c] * factor);
      }
    }
    if (r->has_ones) out[cols] = (float)((double)S * factor);
  }
}

/* ---- the entry -----------------------------------------------------------------------------*/

/* A call needs a tile or, in ng_add_bias_row, the sums in double, the row in f32 and ng_box_scratch. */
int64_t ng_gram_rows_scratch(int64_t columns) {
  return ng_tile_floats(columns + 1) + 4 * ng_round16(columns + 1);
}

/* Return the distance of rows that BLAS can read in place, or 0 if there is none. The elements of a row must be
 * adjacent, all rows must have the same distance, and rows must not overlap, as they do along an axis of stride 0. */
static int64_t row_distance(const ng_gram *r) {
  const ng_view *v = &r->x;
  const int64_t S = v->positions, wide = r->c1 - r->c0;
  if (v->dtype != NG_F32 || v->column_stride != 1 || v->axes > 0) return 0;
  const int64_t by =
      S == 1                                                          ? v->sample_stride
      : r->samples == 1 || v->sample_stride == S * v->position_stride ? v->position_stride
      : r->samples == v->samples && v->position_stride == v->samples * v->sample_stride
          ? v->sample_stride
          : 0;
  if (r->samples * S == 1) return wide;
  return by >= wide && ng_blas_accepts_order(by) ? by : 0;
}

void ng_cpu_add_row_grams(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  for (const ng_gram *end = g + n; g < end; g++) {
    const int64_t S = g->x.positions, cols = g->c1 - g->c0, wide = cols + (g->has_ones ? 1 : 0);
    const bool reduces = g->reduce != 0 && S > 1;
    if (g->samples <= 0 || cols <= 0) continue;
    if (g->S64 != NULL) {
      ng_ref_add_row_grams(q, g, 1, scratch);
      continue;
    }
    const int64_t distance = reduces ? 0 : row_distance(g);
    if (distance > 0) {
      add_gram_in_place(q, g, distance, scratch);
    } else if (reduces) {
      ng_add_gram_by_tiles(q, g, g->samples, wide, cols * S, reduce_rows, scratch);
    } else {
      ng_add_gram_by_tiles(q, g, g->samples * S, wide, cols, copy_rows, scratch);
    }
  }
}
