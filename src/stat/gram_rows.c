/* gram_rows.c: sums of outer products of rows (Martens & Grosse 2015, equation 1).
 *
 * In: a view in any strides, f32, bf16 or f16; the samples and columns to use. Out: S += alpha
 * sum_r r r', r with a 1 appended for a bias.
 *
 * SYRK reads f32 rows in place, with their stride; then the bias coordinate is a row of column
 * sums. All other layouts go through tiles. */
#include "core/core.h"
#include "stat/read.h"
#include "simd.h"
#include "stat/gram.h"

/* ---- column sums -----------------------------------------------------------------------------*/

enum { CHUNK = 128, RUN = 64 };

/* acc[j] += sum over rows of X[., j], j < n <= CHUNK. f32 over runs, double between them: a run of
 * 64 has an error below 32 roundings, as SYRK's inner loop. */
NG_CLONES static void add_columns(const float *X, int64_t rows, int64_t ldx, int64_t n,
                                  double *acc) {
  float part[CHUNK];
  for (int64_t i = 0; i < rows; i += RUN) {
    const int64_t end = ng_min64(i + RUN, rows);
    for (int64_t j = 0; j < n; j++) {
      part[j] = X[i * ldx + j];
    }
    for (int64_t k = i + 1; k < end; k++) {
      for (int64_t j = 0; j < n; j++) {
        part[j] += X[k * ldx + j];
      }
    }
    for (int64_t j = 0; j < n; j++) {
      acc[j] += (double)part[j];
    }
  }
}

typedef struct sums {
  const float *X; /* [rows, cols], row stride ldx */
  int64_t rows, ldx, cols;
  float *out;
} sums;

static void sum_chunk(void *arg, int32_t i) {
  const sums *s = arg;
  const int64_t j = (int64_t)i * CHUNK, n = ng_min64(CHUNK, s->cols - j);
  double acc[CHUNK] = {0};
  add_columns(s->X + j, s->rows, s->ldx, n, acc);
  for (int64_t k = 0; k < n; k++) {
    s->out[j + k] = (float)acc[k];
  }
}

/* In place: the rows are one run. The column of ones gives the row of sums, and the corner the
 * number of rows. */
static void direct(ng_context *ctx, const float *X, int64_t rows, int64_t ldx, int64_t cols,
                   bool one, float alpha, ng_sym S, float *scratch) {
  ng_queue *q = ctx->queue;
  ng_on(q)->add_gram(q, S, 0, cols, X, rows, ldx, alpha);
  if (!one) {
    ng_queue_wait(q); /* the caller may change X */
    return;
  }
  sums s = {.X = X, .rows = rows, .ldx = ldx, .cols = cols, .out = scratch};
  ng_parallel(ctx, (int32_t)((cols + CHUNK - 1) / CHUNK), sum_chunk, &s);
  scratch[cols] = (float)rows;
  ng_on(q)->add_row(q, S, cols, 0, cols + 1, scratch, alpha);
  ng_queue_wait(q);
}

/* ---- tiles -----------------------------------------------------------------------------------*/

typedef struct tile {
  const ng_rows *r;
  int64_t first, count; /* the rows of the tile are rows [first, first + count) */
  int32_t pieces;
  float *to;
  int64_t ld;
} tile;

/* Rows in the order in memory: position by position if that is the outer stride. */
static void copy_piece(void *arg, int32_t i) {
  const tile *t = arg;
  const ng_rows *r = t->r;
  const ng_pixels in = {r->v, r->c0, r->c1};
  const int64_t cols = r->c1 - r->c0, S = r->v->positions;
  const bool outer = r->v->axes == 0 && r->v->by_position > r->v->by_sample;
  int64_t from, to;
  ng_share(t->count, t->pieces, i, &from, &to);
  for (int64_t k = from, run; k < to; k += run) {
    const int64_t g = t->first + k, n = outer ? g % r->take : g / S,
                  s = outer ? g / r->take : g % S;
    run = outer ? 1 : ng_min64(S - s, to - k);
    ng_pixels_load(&in, n, s, run, t->to + k * t->ld, t->ld);
    for (int64_t j = 0; r->one && j < run; j++) {
      t->to[(k + j) * t->ld + cols] = 1.0f;
    }
  }
}

/* A row of the tile is a sample: the mean or the sum over its positions. A block of columns on the stack keeps the
 * sums in registers and the nearest cache. */
static void reduce_piece(void *arg, int32_t i) {
  enum { WIDE = 64, ROWS = 32 };
  const tile *t = arg;
  const ng_rows *r = t->r;
  const int64_t cols = r->c1 - r->c0, S = r->v->positions;
  const double factor = r->reduce == 1 ? 1.0 / (double)S : 1.0;
  int64_t from, to;
  ng_share(t->count, t->pieces, i, &from, &to);
  for (int64_t k = from; k < to; k++) {
    float *out = t->to + k * t->ld;
    for (int64_t j = 0; j < cols; j += WIDE) {
      const int64_t wide = ng_min64(WIDE, cols - j);
      const ng_pixels in = {r->v, r->c0 + j, r->c0 + j + wide};
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
    if (r->one) out[cols] = (float)((double)S * factor);
  }
}

/* ---- entry --------------------------------------------------------------------------------*/

int64_t ng_rows_scratch(int64_t columns) { return ng_tile_floats(columns + 1); }

/* The stride of rows that BLAS can read in place, or 0: the elements of a row are adjacent, all
 * rows have the same distance, and no row overlaps another (an expanded axis). */
static int64_t row_stride(const ng_rows *r) {
  const ng_view *v = r->v;
  const int64_t S = v->positions, wide = r->c1 - r->c0;
  if (v->dtype != NG_F32 || v->by_column != 1 || v->axes > 0) return 0;
  const int64_t by = S == 1                                               ? v->by_sample
                     : r->take == 1 || v->by_sample == S * v->by_position ? v->by_position
                     : r->take == v->samples && v->by_position == v->samples * v->by_sample
                         ? v->by_sample
                         : 0;
  if (r->take * S == 1) return wide; /* one row */
  return by >= wide && ng_linalg_fits(by) ? by : 0;
}

/* Position-first arrays of which only some samples count have gaps, so they use tiles, too. */
void ng_rows_stats(ng_context *ctx, const ng_rows *r, float alpha, ng_sym S, float *scratch) {
  const ng_view *v = r->v;
  const int64_t cols = r->c1 - r->c0, wide = cols + (r->one ? 1 : 0);
  const bool reduced = r->reduce != 0 && v->positions > 1;
  if (r->take <= 0 || cols <= 0) return;
  const int64_t by = reduced ? 0 : row_stride(r);
  if (by > 0) {
    direct(ctx, (const float *)(const void *)ng_view_at(v, 0, 0, r->c0), r->take * v->positions, by,
           cols, r->one, alpha, S, scratch);
    return;
  }
  const int64_t rows = reduced ? r->take : r->take * v->positions;
  const int64_t most = ng_tile_rows(wide);
  tile t = {.r = r, .to = scratch, .ld = ng_tile_ld(wide)};
  for (int64_t first = 0; first < rows; first += t.count) {
    t.first = first;
    t.count = ng_min64(most, rows - first);
    t.pieces = ng_pieces(ctx, t.count * cols * (reduced ? v->positions : 1));
    ng_parallel(ctx, t.pieces, reduced ? reduce_piece : copy_piece, &t);
    ng_on(ctx->queue)->add_gram(ctx->queue, S, 0, wide, scratch, t.count, t.ld, alpha);
    ng_queue_wait(ctx->queue); /* the next tile overwrites this one */
  }
}
