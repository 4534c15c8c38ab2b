/* norm_sums.c: sums over samples of gradients of gamma and beta; see observed.h.
 *
 * In: views of an input x and its output gradient g, in any strides and dtype. Out: two sums for each channel
 * and sample. The code does not store normalised inputs: it sums g and g (x - mean) for each channel, and multiplies by
 * 1 / sqrt(var + eps) at the end.
 *
 * Means and variances are computed of x minus a row of x, so that a large mean costs no digits of the variance. */
#include <math.h>

#include "kernel/norm_pass.h"
#include "kernel/row_loops.h"
#include "simd.h"

enum { TILE = 8192, LANES = 16, CHUNK = 64 }; /* CHUNK: number of q_i (observed.h) stored at once */

/* ---- scratch ----------------------------------------------------------------------------------*/

int64_t ng_norm_tile_rows(int64_t channels) {
  const int64_t whole = TILE / channels / NG_NORM_UNROLL * NG_NORM_UNROLL;
  return ng_max64(NG_NORM_UNROLL, ng_min64(NG_NORM_BLOCK, whole));
}

static int64_t part_floats(int64_t C) {
  return 4 * ng_round16(2 * C) + 2 * ng_round16(3 * C) + 2 * ng_round16(ng_norm_tile_rows(C) * C) +
         7 * ng_round16(C);
}

static int64_t moment_floats(int64_t C) { return 2 * ng_round16(2 * C) + ng_round16(C); }

int64_t ng_norm_sums_scratch(const ng_queue *q, const ng_norm_layer *k) {
  const int64_t C = k->channels, parts = ng_max64(NG_NORM_PIECES, q->threads);
  const int64_t chunk = CHUNK * ng_round16(ng_norm_width(k));
  return ng_times(chunk + moment_floats(C) + parts * part_floats(C), (int64_t)sizeof(float));
}

ng_norm_batch ng_norm_batch_in(void *scratch, int64_t C) {
  float *f = scratch;
  return (ng_norm_batch){(void *)f, (void *)(f + ng_round16(2 * C)), f + 2 * ng_round16(2 * C)};
}

ng_norm_part ng_norm_part_in(void *scratch, int64_t C, int32_t i) {
  const int64_t wide = ng_round16(C), tile = ng_round16(ng_norm_tile_rows(C) * C);
  float *f = (float *)scratch + moment_floats(C) + i * part_floats(C);
  ng_norm_part b = {.sum = (void *)f};
  f += 2 * ng_round16(2 * C);
  b.all = (void *)f;
  f += 2 * ng_round16(2 * C);
  b.products = (void *)f;
  f += 2 * ng_round16(3 * C);
  b.x = f;
  b.g = f + tile;
  f += 2 * tile;
  b.s = f;
  b.q = f + wide;
  b.shift = f + 2 * wide;
  b.mean = f + 3 * wide;
  b.r = f + 4 * wide;
  b.t = f + 5 * wide;
  b.u = f + 6 * wide;
  return b;
}

/* ---- rows ------------------------------------------------------------------------------------*/

const float *ng_norm_load_rows(const ng_view *v, int64_t n, int64_t first, int64_t count, float *to,
                               int64_t *stride) {
  if (v->dtype == NG_F32 && v->column_stride == 1 && v->axes == 0) {
    *stride = v->position_stride;
    return (const float *)v->data + ng_view_offset(v, n, first);
  }
  const ng_pixels all = {v, 0, v->columns};
  *stride = v->columns;
  ng_pixels_load(&all, n, first, count, to, v->columns);
  return to;
}

NG_CLONES static void add_moments(const float *x, int64_t ldx, const float *restrict shift,
                                  int64_t rows, int64_t C, float *restrict s, float *restrict q) {
  for (int64_t r = 0; r < rows; r++, x += ldx) {
    for (int64_t c = 0; c < C; c++) {
      const float d = x[c] - shift[c];
      s[c] += d;
      q[c] += d * d;
    }
  }
}

NG_CLONES static void add_products(const float *x, int64_t ldx, const float *g, int64_t ldg,
                                   const float *restrict mean, int64_t rows, int64_t C,
                                   float *restrict s, float *restrict q) {
  for (int64_t r = 0; r < rows; r++, x += ldx, g += ldg) {
    for (int64_t c = 0; c < C; c++) {
      s[c] += g[c];
      q[c] += g[c] * (x[c] - mean[c]);
    }
  }
}

/* Add one row of a layer norm, with one mean and scale for all channels; the exact mean is mean + rest / scale. */
NG_CLONES static void add_row(const float *x, const float *g, float mean, float scale, float rest,
                              int64_t C, float *restrict s, float *restrict q) {
  for (int64_t c = 0; c < C; c++) {
    s[c] += g[c];
    q[c] += g[c] * ((x[c] - mean) * scale - rest);
  }
}

/* Compute mean and variance of a row of C channels, from sums relative to the row's first element. */
NG_CLONES static void row_moments(const float *x, int64_t C, double *mean, double *var) {
  float s[LANES] = {0}, q[LANES] = {0};
  double sum = 0.0, square = 0.0;
  const float shift = x[0];
  for (int64_t c = 0; c < C;) {
    const int64_t end = ng_min64(C, c + (int64_t)LANES * NG_NORM_BLOCK);
    memset(s, 0, sizeof s);
    memset(q, 0, sizeof q);
    for (; c + LANES <= end; c += LANES) {
      for (int i = 0; i < LANES; i++) {
        const float d = x[c + i] - shift;
        s[i] += d;
        q[i] += d * d;
      }
    }
    for (int i = 0; c < end; c++, i++) {
      const float d = x[c] - shift;
      s[i] += d;
      q[i] += d * d;
    }
    for (int i = 0; i < LANES; i++) {
      sum += (double)s[i];
      square += (double)q[i];
    }
  }
  sum /= (double)C;
  *mean = (double)shift + sum;
  *var = square / (double)C - sum * sum;
}

double ng_norm_inverse_std(double var, double eps) {
  return 1.0 / sqrt((var < 0.0 ? 0.0 : var) + eps);
}

static void add_block(ng_norm_part *b, int64_t C) {
  ng_row_add(b->sum, b->s, C, 1.0);
  ng_row_add(b->sum + C, b->q, C, 1.0);
}

static void clear_block(ng_norm_part *b, int64_t C) {
  memset(b->s, 0, (size_t)C * sizeof *b->s);
  memset(b->q, 0, (size_t)C * sizeof *b->q);
}

void ng_norm_sample_moments(ng_norm_part *b, const ng_view *x, int64_t n, const float *shift) {
  const int64_t C = x->columns, most = ng_norm_tile_rows(C);
  for (int64_t t = 0, rows; t < x->positions; t += rows) {
    int64_t ldx;
    rows = ng_min64(most, x->positions - t);
    const float *at = ng_norm_load_rows(x, n, t, rows, b->x, &ldx);
    clear_block(b, C);
    add_moments(at, ldx, shift, rows, C, b->s, b->q);
    add_block(b, C);
  }
}

bool ng_norm_is_raw_batch(const ng_norm_layer *k) {
  return k->input == NG_NORM_RAW && k->kind == NG_BATCH_NORM;
}

/* ---- sums of a sample -------------------------------------------------------------------------*/

/* Set b->mean and b->r to the mean and 1 / sqrt(var + eps) of each channel's group in sample n, and b->shift to the
 * exact mean minus the mean rounded to f32. */
static void group_moments(ng_norm_part *b, const ng_norm_job *j, int64_t n) {
  const int64_t C = j->k->x.columns, wide = C / j->k->layer.groups;
  const double S = (double)j->k->x.positions;
  const ng_pixels all = {&j->k->x, 0, C};
  ng_pixels_load(&all, n, 0, 1, b->shift, C);
  memset(b->sum, 0, 2 * (size_t)C * sizeof *b->sum);
  ng_norm_sample_moments(b, &j->k->x, n, b->shift);
  for (int64_t c0 = 0; c0 < C; c0 += wide) {
    double mean = 0.0, var = 0.0;
    for (int64_t c = c0; c < c0 + wide; c++) {
      mean += ((double)b->shift[c] + b->sum[c] / S) / (double)wide;
    }
    for (int64_t c = c0; c < c0 + wide; c++) {
      const double s = b->sum[c] / S, off = (double)b->shift[c] + s - mean;
      var += (b->sum[C + c] / S - s * s + off * off) / (double)wide;
    }
    for (int64_t c = c0; c < c0 + wide; c++) {
      b->mean[c] = (float)mean;
      b->shift[c] = (float)(mean - (double)b->mean[c]);
      b->r[c] = (float)ng_norm_inverse_std(var, j->k->layer.eps);
    }
  }
}

/* Set b->sum to sum g and sum g (x - mean) of sample n. For a layer norm, whose moments differ between positions, each
 * term of the second sum is already multiplied by 1 / sqrt(var + eps). */
static void sum_sample(ng_norm_part *b, const ng_norm_job *j, int64_t n, const float *mean) {
  const int64_t C = j->k->x.columns, most = ng_norm_tile_rows(C);
  const bool layer = j->k->layer.input == NG_NORM_RAW && j->k->layer.kind == NG_LAYER_NORM;
  memset(b->sum, 0, 2 * (size_t)C * sizeof *b->sum);
  for (int64_t t = 0, rows; t < j->k->x.positions; t += rows) {
    int64_t ldx, ldg;
    rows = ng_min64(most, j->k->x.positions - t);
    const float *x = ng_norm_load_rows(&j->k->x, n, t, rows, b->x, &ldx);
    const float *g = ng_norm_load_rows(&j->k->g, n, t, rows, b->g, &ldg);
    clear_block(b, C);
    if (!layer) add_products(x, ldx, g, ldg, mean, rows, C, b->s, b->q);
    for (int64_t r = 0; r < rows && layer; r++) {
      double mu, var;
      row_moments(x + r * ldx, C, &mu, &var);
      const double scale = ng_norm_inverse_std(var, j->k->layer.eps),
                   rest = scale * (mu - (double)(float)mu);
      add_row(x + r * ldx, g + r * ldg, (float)mu, (float)scale, (float)rest, C, b->s, b->q);
    }
    add_block(b, C);
  }
}

/* Write dgamma and dbeta of sample j->from + n to row n of j->q. The sums used a mean in f32; off, the exact mean minus
 * the f32 mean, corrects dgamma. */
static void write_sample(const ng_norm_job *j, ng_norm_part *b, int64_t n) {
  const int64_t C = j->k->x.columns;
  const ng_norm_batch m = ng_norm_batch_in(j->scratch, C);
  const bool batch = ng_norm_is_raw_batch(&j->k->layer);
  const bool group = j->k->layer.input == NG_NORM_RAW && j->k->layer.kind == NG_GROUP_NORM;
  float *q = j->q + n * j->ldq, *beta = q + (j->k->layer.has_gamma ? C : 0);
  memset(b->mean, 0, (size_t)C * sizeof *b->mean);
  if (group) group_moments(b, j, j->from + n);
  sum_sample(b, j, j->from + n, batch ? m.shift : b->mean);
  for (int64_t c = 0; c < C; c++) {
    const double off = batch ? m.mean[c] - (double)m.shift[c] : group ? (double)b->shift[c] : 0.0;
    const double scale = batch ? m.r[c] : group ? (double)b->r[c] : 1.0;
    if (j->k->layer.has_gamma) q[c] = (float)(scale * (b->sum[C + c] - off * b->sum[c]));
    if (j->k->layer.has_beta) beta[c] = (float)b->sum[c];
  }
}

static void write_samples(void *arg, int32_t piece) {
  const ng_norm_job *j = arg;
  ng_norm_part b = ng_norm_part_in(j->scratch, j->k->x.columns, piece);
  int64_t from, to;
  ng_piece_bounds(j->count, j->pieces, piece, &from, &to);
  for (int64_t n = from; n < to; n++) {
    write_sample(j, &b, n);
  }
}

/* Set row i of q [count, ldq] to the gradient q_(from + i). If x or g is not finite, a number of q is not finite. */
static void sum_samples(ng_queue *queue, const ng_norm_sum *k, int64_t from, int64_t count,
                        float *q, int64_t ldq, void *scratch) {
  const int32_t pieces = ng_queue_pieces(queue, count * k->x.positions * k->x.columns);
  ng_norm_job j = {k, scratch, from, count, q, ldq, (int32_t)ng_min64(count, pieces)};
  ng_queue_run(queue, j.pieces, write_samples, &j);
}

/* ---- the entries -----------------------------------------------------------------------------*/

/* Add the squares of the gradient q of one sample to X; if `products`, also dgamma dbeta of each channel. */
static void add_sample(const float *q, int64_t width, bool products, double *X) {
  const int64_t C = width / 2;
  for (int64_t i = 0; i < width; i++) {
    X[i] += (double)q[i] * (double)q[i];
  }
  for (int64_t c = 0; c < C && products; c++) {
    X[2 * C + c] += (double)q[c] * (double)q[C + c];
  }
}

/* Samples are processed in chunks, so that scratch does not grow with the batch. */
static bool sum_squares(ng_queue *queue, const ng_norm_sum *k, float *q, void *scratch) {
  const int64_t width = ng_norm_width(&k->layer), ld = ng_round16(width);
  bool finite = true;
  memset(k->X, 0, 3 * (size_t)k->layer.channels * sizeof *k->X);
  for (int64_t from = 0, count; from < k->samples && finite; from += count) {
    count = ng_min64(CHUNK, k->samples - from);
    sum_samples(queue, k, from, count, q, ld, scratch);
    for (int64_t i = 0; i < count; i++) {
      finite = finite && ng_are_finite(q + i * ld, NG_F32, width);
      add_sample(q + i * ld, width, k->products, k->X);
    }
  }
  return finite;
}

void ng_cpu_sum_norm_squares(ng_queue *queue, const ng_norm_sum *k, int64_t n, void *scratch) {
  for (const ng_norm_sum *end = k + n; k < end; k++) {
    float *q = scratch, *rest = q + CHUNK * ng_round16(ng_norm_width(&k->layer));
    if (ng_norm_is_raw_batch(&k->layer) && k->layer.has_gamma) {
      ng_norm_sum_products(queue, k, rest);
    } else if (!sum_squares(queue, k, q, rest)) {
      k->X[0] = (double)NAN;
    }
  }
}

/* S += alpha sum_i q_i q_i' over `count` samples, in double, for add_norm_grams with dtype f64. */
static void add_wide(double *S, int64_t n, const float *q, int64_t count, int64_t ld,
                     double alpha) {
  for (int64_t r = 0; r < n; r++) {
    for (int64_t c = 0; c <= r; c++) {
      double sum = 0.0;
      for (int64_t i = 0; i < count; i++) {
        sum += (double)q[i * ld + r] * (double)q[i * ld + c];
      }
      S[ng_sym_at(n, r, c)] += alpha * sum;
    }
  }
}

void ng_cpu_add_norm_grams(ng_queue *queue, const ng_norm_sum *k, int64_t n, void *scratch) {
  for (const ng_norm_sum *end = k + n; k < end; k++) {
    const int64_t width = ng_norm_width(&k->layer), ld = ng_round16(width);
    float *q = scratch, *rest = q + CHUNK * ld;
    if (ng_norm_is_raw_batch(&k->layer)) ng_norm_batch_moments(queue, k, rest);
    for (int64_t from = 0, count; from < k->samples; from += count) {
      count = ng_min64(CHUNK, k->samples - from);
      sum_samples(queue, k, from, count, q, ld, rest);
      if (k->dtype == NG_F64) {
        add_wide(k->S, width, q, count, ld, k->alpha);
        continue;
      }
      const ng_sym S = {k->S, width};
      ng_linalg_uncounted(queue)->add_gram(queue, S, 0, width, q, count, ld, (float)k->alpha);
    }
  }
}
