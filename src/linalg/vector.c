/* vector.c: entries for vectors, rows and symmetric storage on the host, shared by `ref` and `cpu`.
 *
 * Two rules make results equal to the last bit on every machine and for any number of threads:
 *   - element-wise results are rounded as the formula beside them says, without contraction of a product and a sum
 *     (-ffp-contract=off), so the vector width does not matter;
 *   - a sum has one order: elements into LANES partial sums in double, then these sums from first to last, then the
 *     pieces from first to last. The number of pieces does not depend on the threads.
 * A sum of n products in double has an error of at most n 2^-53 of the sum of magnitudes (Higham,
 * Accuracy and Stability of Numerical Algorithms, 2nd ed., (3.5)); a product of two f32 is exact. */
#include "linalg/vector.h"

#include <math.h>
#include <string.h>

#include "core/core.h"
#include "simd.h"

enum {
  /* number of elements that are converted at a time, so that they stay in the L1 cache */
  TILE = 256,
  LANES = 8, /* partial sums of a sum */
  /* a fold with fewer elements runs on one thread, because waking threads takes 10 us */
  LEAST_FOLD = 16384,
  LEAST_SUM = 8192,
  MOST_PIECES = 256,
  /* elements of a tile of norm2; NORM_TILE and NORM_PIECES fix the order of its sum */
  NORM_TILE = 512,
  NORM_PIECES = 64
};

static const void *const_address(const void *x, ng_dtype t, int64_t i) {
  return (const char *)x + i * ng_dtype_size(t);
}

static void *address_of(void *x, ng_dtype t, int64_t i) { return (char *)x + i * ng_dtype_size(t); }

/* Return n elements of x as f32: in place, or converted into `tile`. */
static const float *load_as_floats(const void *x, ng_dtype t, int64_t n, float *tile) {
  if (t == NG_F32) return x;
  ng_to_f32(tile, x, t, n);
  return tile;
}

/* ---- symmetric storage -----------------------------------------------------------------------*/

void ng_host_add_row(ng_queue *q, ng_sym S, int64_t r, int64_t c0, int64_t k, const float *v,
                     float alpha) {
  (void)q;
  for (int64_t c = 0; c < k; c++) {
    S.a[ng_sym_at(S.n, r, c0 + c)] += alpha * v[c];
  }
}

void ng_host_unpack(ng_queue *q, int64_t n, const void *S, ng_dtype t, void *full, int64_t ld) {
  (void)q;
  double *wide = full;
  if (t == NG_F32) {
    ng_sym_unpack((ng_sym){(float *)(uintptr_t)S, n}, full, ld);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      wide[i * ld + j] = wide[j * ld + i] = ((const double *)S)[ng_sym_at(n, i, j)];
    }
  }
}

/* S + d I in double, rounded to f32 and then to the dtype of S. In bf16 a small d may change nothing. */
void ng_host_shift_diagonal(ng_queue *q, int64_t n, void *S, ng_dtype t, bool diagonal, double d) {
  (void)q;
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = diagonal ? i : ng_sym_at(n, i, i);
    const double sum = ng_element_at(S, t, at) + d;
    const float rounded = (float)sum;
    if (t == NG_F64) ((double *)S)[at] = sum;
    if (t != NG_F64) ng_from_f32(address_of(S, t, at), t, &rounded, 1);
  }
}

/* The sum is in index order. */
void ng_host_trace(ng_queue *q, int64_t n, const void *S, ng_dtype t, bool diagonal, double *out) {
  (void)q;
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++) {
    sum += ng_element_at(S, t, diagonal ? i : ng_sym_at(n, i, i));
  }
  *out = sum;
}

/* ---- element by element ----------------------------------------------------------------------*/

void ng_host_widen(ng_queue *q, int64_t n, const void *x, ng_dtype t, float *to) {
  (void)q;
  ng_to_f32(to, x, t, n);
}

/* Round to nearest, ties to even. In f16, values above 65504 become Inf. */
void ng_host_narrow(ng_queue *q, int64_t n, const float *x, void *to, ng_dtype t) {
  (void)q;
  ng_from_f32(to, t, x, n);
}

NG_CLONES static void scale_floats(float *x, int64_t n, double by) {
  for (int64_t i = 0; i < n; i++) {
    x[i] = (float)(by * (double)x[i]);
  }
}

static void scale_doubles(double *x, int64_t n, double by) {
  for (int64_t i = 0; i < n; i++) {
    x[i] *= by;
  }
}

/* If by == 0, Inf, NaN and -0 become 0, too. */
void ng_host_scale(ng_queue *q, int64_t n, void *x, ng_dtype t, double by) {
  (void)q;
  if (by == 0.0) {
    memset(x, 0, (size_t)(n * ng_dtype_size(t)));
  } else if (t == NG_F32) {
    scale_floats(x, n, by);
  } else {
    scale_doubles(x, n, by);
  }
}

/* F <- keep F + c S, with three roundings to f32. */
NG_CLONES static void fold_floats(float *restrict F, const float *restrict S, int64_t n, float keep,
                                  float c) {
  for (int64_t i = 0; i < n; i++) {
    F[i] = keep * F[i] + c * S[i];
  }
}

/* A fold in pieces: piece i has elements [i chunk, (i + 1) chunk). */
typedef struct fold_job {
  void *F;
  float *S;
  ng_dtype t;
  int64_t n, chunk;
  float keep, c;
} fold_job;

/* The piece clears S while it is in a cache, so that the next step needs no pass to clear S. */
static void fold_piece(void *arg, int32_t piece) {
  const fold_job *j = arg;
  const int64_t to = ng_min64(j->n, (piece + 1) * j->chunk);
  float tile[TILE];
  for (int64_t i = piece * j->chunk; i < to;) {
    const int64_t n = ng_min64(to - i, j->t == NG_F32 ? 16 * TILE : TILE);
    void *F = address_of(j->F, j->t, i);
    if (j->t == NG_F32) {
      fold_floats(F, j->S + i, n, j->keep, j->c);
    } else {
      ng_to_f32(tile, F, j->t, n);
      fold_floats(tile, j->S + i, n, j->keep, j->c);
      ng_from_f32(F, j->t, tile, n);
    }
    memset(j->S + i, 0, (size_t)n * sizeof *j->S);
    i += n;
  }
}

/* Each thread folds one piece of whole cache lines of S. Elements are independent, so the result does not depend on the
 * number of pieces. */
void ng_host_fold(ng_queue *q, int64_t n, void *F, ng_dtype t, float *S, float keep, float c) {
  fold_job j = {F, S, t, n, 0, keep, c};
  const int32_t pieces = n < LEAST_FOLD ? 1 : q->threads;
  j.chunk = ((n + pieces - 1) / pieces + 15) / 16 * 16;
  ng_queue_run(q, pieces, fold_piece, &j);
}

NG_CLONES static void fold_floats_wide(float *restrict F, const float *restrict S, int64_t n,
                                       double keep, double c) {
  for (int64_t i = 0; i < n; i++) {
    F[i] = (float)(keep * (double)F[i] + c * (double)S[i]);
  }
}

static void fold_doubles(double *F, const double *S, int64_t n, double keep, double c) {
  for (int64_t i = 0; i < n; i++) {
    F[i] = keep * F[i] + c * S[i];
  }
}

void ng_host_fold_wide(ng_queue *q, int64_t n, void *F, void *S, ng_dtype t, double keep,
                       double c) {
  (void)q;
  if (t == NG_F32) {
    fold_floats_wide(F, S, n, keep, c);
  } else {
    fold_doubles(F, S, n, keep, c);
  }
  memset(S, 0, (size_t)(n * ng_dtype_size(t)));
}

/* ---- scans ----------------------------------------------------------------------------*/

void ng_host_check_finite(ng_queue *q, int64_t n, const void *x, ng_dtype t, int *out) {
  (void)q;
  *out = ng_are_finite(x, t, n);
}

/* The first loop compares bits, because such a loop vectorises. Only if an element is not finite, the second loop compares
 * numbers and skips NaN. */
void ng_host_find_largest(ng_queue *q, int64_t n, const void *x, ng_dtype t, double *out) {
  (void)q;
  if (t == NG_F64) {
    *out = 0.0;
    for (int64_t i = 0; i < n; i++) {
      const double size = fabs(((const double *)x)[i]);
      *out = size > *out ? size : *out;
    }
    return;
  }
  const uint32_t bits = ng_find_largest_bits(x, t, n);
  *out = (double)ng_float_of_bits(bits);
  if (bits < NG_INF_BITS) return;
  float tile[TILE], found = 0.0f;
  for (int64_t i = 0; i < n;) {
    const int64_t m = t == NG_F32 ? n - i : ng_min64(TILE, n - i);
    const float *at = load_as_floats(const_address(x, t, i), t, m, tile);
    for (int64_t k = 0; k < m; k++) {
      const float size = fabsf(at[k]);
      found = size > found ? size : found;
    }
    i += m;
  }
  *out = (double)found;
}

/* ---- rows ------------------------------------------------------------------------------------*/

void ng_host_copy_rows(ng_queue *q, int64_t rows, int64_t cols, const float *x, int64_t ldx,
                       float *to, int64_t ldt) {
  (void)q;
  if (ldx == cols && ldt == cols) {
    memcpy(to, x, (size_t)(rows * cols) * sizeof *to);
    return;
  }
  for (int64_t r = 0; r < rows; r++) {
    memcpy(to + r * ldt, x + r * ldx, (size_t)cols * sizeof *to);
  }
}

/* Divide row r of U by the divisors of ng_spectrum; g is s.g[r] + damping_g.
 *
 * Use: with F = A (x) G (Kronecker product), A = Q_A diag(a) Q_A' and G = Q_G diag(g) Q_G', the damped inverse of F is
 * diagonal in the eigenbases (Grosse & Martens 2016, appendix B): PD = Q_G (U / divisors) Q_A' with U = Q_G' D Q_A. */
NG_CLONES static void divide_row(float *restrict u, const float *restrict a, int64_t n, double g,
                                 double damping_a, double damping_both) {
  for (int64_t c = 0; c < n; c++) {
    const double a_c = a == NULL ? 1.0 : (double)a[c];
    u[c] = (float)((double)u[c] / (g * (a_c + damping_a) + damping_both));
  }
}

static void divide_row64(double *u, const double *a, int64_t n, double g, double damping_a,
                         double damping_both) {
  for (int64_t c = 0; c < n; c++) {
    u[c] /= g * ((a == NULL ? 1.0 : a[c]) + damping_a) + damping_both;
  }
}

/* The quotients are in double, because a divisor may be smaller than the smallest f32. */
void ng_host_divide(ng_queue *q, int64_t rows, int64_t cols, ng_spectrum s, void *U, ng_dtype t,
                    int64_t ldu) {
  (void)q;
  for (int64_t r = 0; r < rows; r++) {
    const double value = s.g == NULL ? 1.0 : ng_element_at(s.g, t, r), g = value + s.damping_g;
    if (t == NG_F32) {
      divide_row((float *)U + r * ldu, s.a, cols, g, s.damping_a, s.damping_both);
    } else {
      divide_row64((double *)U + r * ldu, s.a, cols, g, s.damping_a, s.damping_both);
    }
  }
}

void ng_host_mul_diagonal(ng_queue *q, bool left, int64_t rows, int64_t cols, const void *d,
                          ng_dtype t, const void *x, void *y, int64_t ld) {
  (void)q;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < cols; c++) {
      const int64_t at = r * ld + c, i = left ? r : c;
      if (t == NG_F64) {
        ((double *)y)[at] = ((const double *)x)[at] * ((const double *)d)[i];
      } else {
        ((float *)y)[at] = ((const float *)x)[at] * ((const float *)d)[i];
      }
    }
  }
}

void ng_host_multiply_sym64(ng_queue *q, int64_t n, const double *S, int64_t lines, int64_t within,
                            int64_t between, const float *x, float *y) {
  (void)q;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < lines; j++) {
      double sum = 0.0;
      for (int64_t k = 0; k < n; k++) {
        sum += S[ng_sym_at(n, i, k)] * (double)x[k * within + j * between];
      }
      y[i * within + j * between] = (float)sum;
    }
  }
}

/* ---- sums ------------------------------------------------------------------------------------*/

/* out = <P,D>, |D|^2, |P|^2. The products of element c are added to partial sum c mod LANES. Eight doubles are one register
 * of AVX-512, two of AVX2 or four of SSE2, with the same additions. */
NG_CLONES static void sum_products(const float *P, const float *D, int64_t n, double out[3]) {
  double pd[LANES] = {0.0}, dd[LANES] = {0.0}, pp[LANES] = {0.0};
  const int64_t whole = n / LANES * LANES;
  for (int64_t c = 0; c < whole; c += LANES) {
    for (int i = 0; i < LANES; i++) {
      const double p = (double)P[c + i], d = (double)D[c + i];
      pd[i] += p * d;
      dd[i] += d * d;
      pp[i] += p * p;
    }
  }
  for (int64_t c = whole; c < n; c++) {
    const double p = (double)P[c], d = (double)D[c];
    pd[c - whole] += p * d;
    dd[c - whole] += d * d;
    pp[c - whole] += p * p;
  }
  out[0] = out[1] = out[2] = 0.0;
  for (int i = 0; i < LANES; i++) {
    out[0] += pd[i];
    out[1] += dd[i];
    out[2] += pp[i];
  }
}

/* Return |x|^2, summed in the same order as in sum_products. */
NG_CLONES static double sum_squares(const float *x, int64_t n) {
  double lane[LANES] = {0.0}, sum = 0.0;
  const int64_t whole = n / LANES * LANES;
  for (int64_t c = 0; c < whole; c += LANES) {
    for (int i = 0; i < LANES; i++) {
      lane[i] += (double)x[c + i] * (double)x[c + i];
    }
  }
  for (int64_t c = whole; c < n; c++) {
    lane[c - whole] += (double)x[c] * (double)x[c];
  }
  for (int i = 0; i < LANES; i++) {
    sum += lane[i];
  }
  return sum;
}

typedef struct sums_job {
  const float *P, *D;
  int64_t ldp, ldd, rows, cols, chunk;
  double *out;
} sums_job;

static void sums_piece(void *arg, int32_t piece) {
  const sums_job *j = arg;
  const int64_t to = ng_min64(j->rows, (piece + 1) * j->chunk);
  for (int64_t r = piece * j->chunk; r < to; r++) {
    sum_products(j->P + r * j->ldp, j->D + r * j->ldd, j->cols, j->out + 3 * r);
  }
}

/* One thread sums a whole row, so the result does not depend on the number of threads. */
void ng_host_sum_row_products(ng_queue *q, int64_t rows, int64_t cols, const float *P, int64_t ldp,
                              const float *D, int64_t ldd, double *out) {
  sums_job j = {P, D, ldp, ldd, rows, cols, 0, out};
  int64_t pieces = ng_min64(ng_min64(q->threads, MOST_PIECES), rows);
  if (rows * cols < LEAST_SUM) pieces = 1;
  j.chunk = (rows + pieces - 1) / pieces;
  ng_queue_run(q, (int32_t)pieces, sums_piece, &j);
}

void ng_host_add_rows_of_sums(ng_queue *q, int64_t rows, const double *sums, double *total) {
  (void)q;
  for (int64_t r = 0; r < rows; r++, sums += 3) {
    for (int i = 0; i < 3; i++) {
      total[i] += sums[i];
    }
  }
}

void ng_host_add_sums64(ng_queue *q, int64_t n, const double *P, const double *D, double *total) {
  (void)q;
  for (int64_t i = 0; i < n; i++) {
    total[0] += P[i] * D[i];
    total[1] += D[i] * D[i];
    total[2] += P[i] * P[i];
  }
}

/* A norm in pieces: each piece sums its share of all elements. */
typedef struct norm_job {
  const void *X;
  ng_dtype t;
  int64_t ld, rows, cols;
  int32_t pieces;
  double sum[NORM_PIECES];
} norm_job;

/* The loop takes at most NORM_TILE elements at a time, from one row. */
static void norm_piece(void *arg, int32_t piece) {
  norm_job *j = arg;
  const int64_t all = j->rows * j->cols, to = all * (piece + 1) / j->pieces;
  float tile[NORM_TILE];
  j->sum[piece] = 0.0;
  for (int64_t from = all * piece / j->pieces; from < to;) {
    const int64_t row = from / j->cols, col = from % j->cols;
    const int64_t n = ng_min64(ng_min64(NORM_TILE, j->cols - col), to - from);
    const void *x = const_address(j->X, j->t, row * j->ld + col);
    j->sum[piece] += sum_squares(load_as_floats(x, j->t, n, tile), n);
    from += n;
  }
}

/* The number of pieces and the result do not depend on the number of threads. */
void ng_host_sum_squares(ng_queue *q, int64_t rows, int64_t cols, const void *X, ng_dtype t,
                         int64_t ldx, double *out) {
  norm_job j = {.X = X, .t = t, .ld = ldx, .rows = rows, .cols = cols};
  j.pieces = (int32_t)ng_max64(1, ng_min64(NORM_PIECES, rows * cols / NORM_TILE));
  ng_queue_run(q, j.pieces, norm_piece, &j);
  double sum = 0.0;
  for (int32_t i = 0; i < j.pieces; i++) {
    sum += j.sum[i];
  }
  *out = sum;
}
