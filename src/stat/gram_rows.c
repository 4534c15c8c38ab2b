/* gram_rows.c: sums of outer products of rows, the statistics of everything that is a matrix
 * already.
 *
 * In: a view [samples * positions, columns], f32, bf16 or f16, rows of one sample next to each
 * other or not, of which some samples and some columns count.  Out: S += alpha sum_r r r', the r
 * with a 1 appended for a bias (Martens & Grosse 2015, equation 1).
 *
 * f32 rows are read where they are, by SYRK with the caller's row stride; the bias coordinate is
 * then a row of column sums, not a copy of the matrix with one more column.  Everything else goes
 * through a tile. */
#include "core/core.h"
#include "stat/read.h"
#include "simd.h"
#include "stat/gram.h"

/* ---- column sums -----------------------------------------------------------------------------*/

enum { CHUNK = 128, RUN = 64 };

/* acc[j] += sum over rows of X[., j], j < n <= CHUNK.  f32 over short runs, double between them:
 * the error of a run of 64 stays below 32 roundings, as in SYRK's inner loop. */
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

/* No copy: rows that count are one run of rows.  The column of ones turns into the row of sums and
 * the corner into the number of rows, all times alpha. */
static void direct(ng_context *ctx, const float *X, int64_t rows, int64_t ldx, int64_t cols,
                   bool one, float alpha, ng_sym S, float *scratch) {
  ng_queue *q = ctx->queue;
  ng_on(q)->add_gram(q, S, 0, cols, X, rows, ldx, alpha);
  if (!one) {
    ng_queue_wait(q); /* X is the caller's */
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
  int64_t first, count; /* rows of the tile are rows first .. first + count of those that count */
  int32_t pieces;
  float *to;
  int64_t ld;
} tile;

static const char *source(const ng_rows *r, int64_t row) {
  return (const char *)r->v.data + (row * r->v.row_stride + r->c0) * ng_dtype_size(r->v.dtype);
}

/* Positions first means row = position * samples + sample: of each position the first `take`
 * count. */
static void copy_piece(void *arg, int32_t i) {
  const tile *t = arg;
  const ng_rows *r = t->r;
  const int64_t cols = r->c1 - r->c0;
  int64_t from, to;
  ng_share(t->count, t->pieces, i, &from, &to);
  for (int64_t k = from; k < to; k++) {
    const int64_t g = t->first + k;
    const int64_t row = r->order == NG_SAMPLES_FIRST ? g : g / r->take * r->samples + g % r->take;
    float *out = t->to + k * t->ld;
    ng_to_f32(out, source(r, row), r->v.dtype, cols);
    if (r->one) out[cols] = 1.0f;
  }
}

/* A row of the tile is a sample: the mean or the sum over its positions. */
static void reduce_piece(void *arg, int32_t i) {
  const tile *t = arg;
  const ng_rows *r = t->r;
  const int64_t cols = r->c1 - r->c0, size = ng_dtype_size(r->v.dtype);
  const double factor = r->reduce == 1 ? 1.0 / (double)r->positions : 1.0;
  int64_t from, to;
  ng_share(t->count, t->pieces, i, &from, &to);
  for (int64_t k = from; k < to; k++) {
    const int64_t n = t->first + k;
    float *out = t->to + k * t->ld;
    for (int64_t j = 0; j < cols; j += CHUNK) {
      const int64_t wide = ng_min64(CHUNK, cols - j);
      double acc[CHUNK] = {0};
      for (int64_t s = 0; s < r->positions; s++) {
        const int64_t row =
            r->order == NG_SAMPLES_FIRST ? n * r->positions + s : s * r->samples + n;
        float line[CHUNK];
        ng_to_f32(line, source(r, row) + j * size, r->v.dtype, wide);
        for (int64_t c = 0; c < wide; c++) {
          acc[c] += (double)line[c];
        }
      }
      for (int64_t c = 0; c < wide; c++) {
        out[j + c] = (float)(acc[c] * factor);
      }
    }
    if (r->one) out[cols] = r->reduce == 1 ? 1.0f : (float)r->positions;
  }
}

/* ---- the door --------------------------------------------------------------------------------*/

int64_t ng_rows_scratch(int64_t columns) { return ng_tile_floats(columns + 1); }

/* Positions first with fewer samples than there are is a run of rows for each position, with gaps:
 * that goes through a tile, too. */
void ng_rows_stats(ng_context *ctx, const ng_rows *r, float alpha, ng_sym S, float *scratch) {
  const int64_t cols = r->c1 - r->c0, wide = cols + (r->one ? 1 : 0);
  const bool reduced = r->reduce != 0 && r->positions > 1;
  if (r->take <= 0 || cols <= 0) return;
  if (!reduced && r->v.dtype == NG_F32 &&
      (r->order == NG_SAMPLES_FIRST || r->take == r->samples || r->positions == 1)) {
    direct(ctx, (const float *)(const void *)source(r, 0), r->take * r->positions, r->v.row_stride,
           cols, r->one, alpha, S, scratch);
    return;
  }
  const int64_t rows = reduced ? r->take : r->take * r->positions;
  const int64_t most = ng_tile_rows(wide);
  tile t = {.r = r, .to = scratch, .ld = ng_tile_ld(wide)};
  for (int64_t first = 0; first < rows; first += t.count) {
    t.first = first;
    t.count = ng_min64(most, rows - first);
    t.pieces = ng_pieces(ctx, t.count * cols * (reduced ? r->positions : 1));
    ng_parallel(ctx, t.pieces, reduced ? reduce_piece : copy_piece, &t);
    ng_on(ctx->queue)->add_gram(ctx->queue, S, 0, wide, scratch, t.count, t.ld, alpha);
    ng_queue_wait(ctx->queue); /* the next tile comes into the same place */
  }
}
