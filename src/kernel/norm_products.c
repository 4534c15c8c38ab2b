/* norm_products.c: sums over samples of squares and products of dgamma and dbeta of a batch norm; see observed.h.
 *
 * The mean and variance are known only after the whole batch was read. So the pass sums x - guess, where the guess is
 * the mean of a few rows, and off = mean - guess corrects the sums. For sample i and positions t, with r = 1 / sqrt(var +
 * eps),
 *
 *     sum_i dgamma_i^2 = r^2 (sum q^2 - 2 off sum q s + off^2 sum s^2),  s = sum_t g,  q = sum_t g (x - guess)
 *
 * So the pass reads x and g once. The guess differs from the mean by a fraction of a standard deviation, so the
 * correction loses no digits. The pieces depend only on the size of the batch, so the result does not depend on the
 * number of threads. */
#include <math.h>

#include "kernel/norm_pass.h"
#include "kernel/row_loops.h"
#include "simd.h"

enum {
  GUESS_ROWS = 16,      /* rows whose mean is the guess */
  PIECE_FLOATS = 65536, /* a batch has 1 + floats / PIECE_FLOATS pieces */
  STRIP = 64,           /* number of channels whose sums fit the registers: see add_strip */
  NARROW = 256,         /* largest number of channels for which add_strip is faster than add_all */
  AHEAD = 8,            /* number of rows between a prefetch and the use of its data */
  LINE = 16             /* floats of a cache line */
};

/* For each of C columns add sum g to s, sum g d to q, sum d to t and sum d^2 to u, with d = x - shift. Four rows are
 * added together, so that the sums are read and written once for four rows. */
NG_CLONES static void add_all(const float *x, int64_t ldx, const float *g, int64_t ldg,
                              const float *restrict shift, int64_t rows, int64_t C,
                              float *restrict s, float *restrict q, float *restrict t,
                              float *restrict u) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4, x += 4 * ldx, g += 4 * ldg) {
    for (int64_t c = 0; c < C; c++) {
      const float d0 = x[c] - shift[c], d1 = x[c + ldx] - shift[c];
      const float d2 = x[c + 2 * ldx] - shift[c], d3 = x[c + 3 * ldx] - shift[c];
      const float g0 = g[c], g1 = g[c + ldg], g2 = g[c + 2 * ldg], g3 = g[c + 3 * ldg];
      s[c] += (g0 + g1) + (g2 + g3);
      q[c] += (g0 * d0 + g1 * d1) + (g2 * d2 + g3 * d3);
      t[c] += (d0 + d1) + (d2 + d3);
      u[c] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
    }
  }
  for (; r < rows; r++, x += ldx, g += ldg) {
    for (int64_t c = 0; c < C; c++) {
      const float d = x[c] - shift[c];
      s[c] += g[c];
      q[c] += g[c] * d;
      t[c] += d;
      u[c] += d * d;
    }
  }
}

/* Compute add_all for STRIP channels and a multiple of four rows. The sums stay in registers, and rows are prefetched.
 * This is faster if a row is short. */
NG_CLONES static void add_strip(const float *x, int64_t ldx, const float *g, int64_t ldg,
                                const float *restrict shift, int64_t rows, float *restrict s,
                                float *restrict q, float *restrict t, float *restrict u) {
  float S[STRIP], Q[STRIP], T[STRIP], U[STRIP];
  const size_t size = sizeof S;
  const uintptr_t ahead_x = (uintptr_t)(AHEAD * ldx) * sizeof *x;
  const uintptr_t ahead_g = (uintptr_t)(AHEAD * ldg) * sizeof *g;
  memcpy(S, s, size);
  memcpy(Q, q, size);
  memcpy(T, t, size);
  memcpy(U, u, size);
  for (int64_t r = 0; r + 4 <= rows; r += 4, x += 4 * ldx, g += 4 * ldg) {
    for (int i = 0; i < 4 * STRIP; i += LINE) {
      const int64_t row = i / STRIP, c = i % STRIP;
      NG_FETCH_LINE((uintptr_t)(x + row * ldx + c) + ahead_x);
      NG_FETCH_LINE((uintptr_t)(g + row * ldg + c) + ahead_g);
    }
    for (int c = 0; c < STRIP; c++) {
      const float d0 = x[c] - shift[c], d1 = x[c + ldx] - shift[c];
      const float d2 = x[c + 2 * ldx] - shift[c], d3 = x[c + 3 * ldx] - shift[c];
      const float g0 = g[c], g1 = g[c + ldg], g2 = g[c + 2 * ldg], g3 = g[c + 3 * ldg];
      S[c] += (g0 + g1) + (g2 + g3);
      Q[c] += (g0 * d0 + g1 * d1) + (g2 * d2 + g3 * d3);
      T[c] += (d0 + d1) + (d2 + d3);
      U[c] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
    }
  }
  memcpy(s, S, size);
  memcpy(q, Q, size);
  memcpy(t, T, size);
  memcpy(u, U, size);
}

/* Add a tile to the sums of b. Of a narrow layer, add_strip adds whole strips of channels in groups of four rows, and
 * add_all the remaining rows and channels. */
static void add_tile(const float *x, int64_t ldx, const float *g, int64_t ldg, const float *shift,
                     int64_t rows, int64_t C, const ng_norm_part *b) {
  const int64_t fours = rows / 4 * 4;
  int64_t c = 0;
  for (; C <= NARROW && c + STRIP <= C; c += STRIP) {
    add_strip(x + c, ldx, g + c, ldg, shift + c, fours, b->s + c, b->q + c, b->t + c, b->u + c);
  }
  if (c > 0 && fours < rows) {
    add_all(x + fours * ldx, ldx, g + fours * ldg, ldg, shift, rows - fours, c, b->s, b->q, b->t,
            b->u);
  }
  if (c < C) {
    add_all(x + c, ldx, g + c, ldg, shift + c, rows, C - c, b->s + c, b->q + c, b->t + c, b->u + c);
  }
}

NG_CLONES static void add_doubles(double *restrict to, const double *restrict from, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    to[i] += from[i];
  }
}

NG_CLONES static void add_squares(double *restrict to, const double *restrict s,
                                  const double *restrict q, int64_t C) {
  for (int64_t c = 0; c < C; c++) {
    to[c] += q[c] * q[c];
    to[C + c] += s[c] * s[c];
    to[2 * C + c] += q[c] * s[c];
  }
}

/* Set b->sum to sum g and sum g d of sample n; add sum d and sum d^2 to b->all. */
static void sum_sample(ng_norm_part *b, const ng_norm_job *j, int64_t n) {
  const int64_t C = j->k->x.columns, most = ng_norm_tile_rows(C);
  const float *shift = ng_norm_batch_in(j->scratch, C).shift;
  float *const sums[4] = {b->s, b->q, b->t, b->u};
  memset(b->sum, 0, 2 * (size_t)C * sizeof *b->sum);
  for (int64_t at = 0; at < j->k->x.positions; at += NG_NORM_BLOCK) {
    const int64_t end = ng_min64(j->k->x.positions, at + NG_NORM_BLOCK);
    for (int i = 0; i < 4; i++) {
      memset(sums[i], 0, (size_t)C * sizeof *sums[i]);
    }
    for (int64_t p = at, rows; p < end; p += rows) {
      int64_t ldx, ldg;
      rows = ng_min64(most, end - p);
      const float *x = ng_norm_load_rows(&j->k->x, n, p, rows, b->x, &ldx);
      const float *g = ng_norm_load_rows(&j->k->g, n, p, rows, b->g, &ldg);
      add_tile(x, ldx, g, ldg, shift, rows, C, b);
    }
    ng_row_add(b->sum, b->s, C, 1.0);
    ng_row_add(b->sum + C, b->q, C, 1.0);
    ng_row_add(b->all, b->t, C, 1.0);
    ng_row_add(b->all + C, b->u, C, 1.0);
  }
}

/* Compute the sums of piece i. Products are needed only of the first j->count samples, moments of all samples. */
static void sum_piece(void *arg, int32_t i) {
  const ng_norm_job *j = arg;
  const int64_t C = j->k->x.columns;
  const float *shift = ng_norm_batch_in(j->scratch, C).shift;
  ng_norm_part b = ng_norm_part_in(j->scratch, C, i);
  int64_t from, to;
  ng_piece_bounds(j->k->x.samples, j->pieces, i, &from, &to);
  memset(b.all, 0, 2 * (size_t)C * sizeof *b.all);
  memset(b.products, 0, 3 * (size_t)C * sizeof *b.products);
  for (int64_t n = from; n < to && n < j->count; n++) {
    sum_sample(&b, j, n);
    add_squares(b.products, b.sum, b.sum + C, C);
  }
  memcpy(b.sum, b.all, 2 * (size_t)C * sizeof *b.sum);
  for (int64_t n = ng_max64(from, j->count); n < to; n++) {
    ng_norm_sample_moments(&b, &j->k->x, n, shift);
  }
}

/* Set the shift of the batch, the guess, to the mean of up to GUESS_ROWS rows at equal distances in the batch. */
static void guess_shift(const ng_view *x, void *scratch) {
  const int64_t C = x->columns, S = x->positions, all = x->samples * S;
  const int64_t rows = ng_min64(GUESS_ROWS, all);
  const ng_norm_part b = ng_norm_part_in(scratch, C, 0);
  const ng_pixels columns = {x, 0, C};
  memset(b.sum, 0, (size_t)C * sizeof *b.sum);
  for (int64_t i = 0; i < rows; i++) {
    const int64_t at = i * all / rows;
    ng_pixels_load(&columns, at / S, at % S, 1, b.s, C);
    ng_row_add(b.sum, b.s, C, 1.0);
  }
  float *shift = ng_norm_batch_in(scratch, C).shift;
  for (int64_t c = 0; c < C; c++) {
    shift[c] = (float)(b.sum[c] / (double)rows);
  }
}

/* Return the sums over all pieces: `products` of the first `take` samples; in `sum`, sum d and sum d^2 of all samples. */
static ng_norm_part sum_pieces(ng_queue *q, const ng_norm_sum *k, int64_t take, void *scratch) {
  const ng_view *x = &k->x;
  const int64_t C = x->columns, floats = x->samples * x->positions * C;
  ng_norm_job j = {.k = k, .scratch = scratch, .count = take};
  j.pieces = (int32_t)ng_min64(ng_min64(NG_NORM_PIECES, x->samples), 1 + floats / PIECE_FLOATS);
  guess_shift(x, scratch);
  ng_queue_run(ng_queue_pieces(q, floats) > 1 ? q : NULL, j.pieces, sum_piece, &j);
  const ng_norm_part all = ng_norm_part_in(scratch, C, 0);
  for (int32_t i = 1; i < j.pieces; i++) {
    const ng_norm_part b = ng_norm_part_in(scratch, C, i);
    add_doubles(all.sum, b.sum, 2 * C);
    add_doubles(all.products, b.products, 3 * C);
  }
  return all;
}

void ng_norm_batch_moments(ng_queue *q, const ng_norm_sum *k, void *scratch) {
  const int64_t C = k->x.columns;
  const double rows = (double)k->x.samples * (double)k->x.positions;
  const ng_norm_batch m = ng_norm_batch_in(scratch, C);
  const double *sum = sum_pieces(q, k, 0, scratch).sum;
  for (int64_t c = 0; c < C; c++) {
    const double off = sum[c] / rows;
    m.mean[c] = (double)m.shift[c] + off;
    m.r[c] = ng_norm_inverse_std(sum[C + c] / rows - off * off, k->layer.eps);
    m.shift[c] = (float)m.mean[c];
  }
}

/* X[0] becomes NaN if a sum is not finite or exceeds the square of the largest f32. */
void ng_norm_sum_products(ng_queue *q, const ng_norm_sum *k, void *scratch) {
  const int64_t C = k->x.columns;
  const double rows = (double)k->x.samples * (double)k->x.positions;
  const double most = ng_dtype_largest(NG_F32) * ng_dtype_largest(NG_F32);
  const ng_norm_part all = sum_pieces(q, k, k->samples, scratch);
  double *X = k->X;
  bool fine = true;
  for (int64_t c = 0; c < C; c++) {
    const double qq = all.products[c], ss = all.products[C + c], qs = all.products[2 * C + c];
    const double off = all.sum[c] / rows;
    const double r = ng_norm_inverse_std(all.sum[C + c] / rows - off * off, k->layer.eps);
    const double gg = r * r * (qq - 2.0 * off * qs + off * off * ss);
    X[c] = gg < 0.0 ? 0.0 : gg; /* without rounding, gg >= 0; NaN stays NaN */
    X[C + c] = ss;
    X[2 * C + c] = r * (qs - off * ss);
    fine = fine && X[c] <= most && ss <= most;
  }
  if (!fine) X[0] = (double)NAN;
}
