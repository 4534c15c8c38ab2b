/* vector.cu: kernels over vectors, rows and symmetric storage (ng_linalg_ops). The formulas and their rounding equal
 * src/linalg/vector.c. A block of an element-wise kernel has DV_TILE elements. */
#include "device_read.h"

/* ---- element by element ----------------------------------------------------------------------*/

NG_GLOBAL dv_convert(int64_t n, const char *from, int32_t t, char *to, int32_t to_t) {
  EACH_ELEMENT(i, n) { dv_put(to, to_t, i, dv_number(from, t, i)); }
}

/* If by is 0, Inf and NaN become 0, too. */
NG_GLOBAL dv_scale(int64_t n, char *x, int32_t t, double by) {
  EACH_ELEMENT(i, n) { dv_put(x, t, i, by == 0.0 ? 0.0 : by * dv_number(x, t, i)); }
}

NG_GLOBAL dv_fold(int64_t n, char *F, int32_t t, float *S, float keep, float c) {
  EACH_ELEMENT(i, n) {
    dv_put(F, t, i, (double)(keep * dv_load(F, t, i) + c * S[i]));
    S[i] = 0.0f;
  }
}
NG_GLOBAL dv_fold_wide(int64_t n, char *F, char *S, int32_t t, double keep, double c) {
  EACH_ELEMENT(i, n) {
    dv_put(F, t, i, keep * dv_number(F, t, i) + c * dv_number(S, t, i));
    dv_put(S, t, i, 0.0);
  }
}

/* ---- scans -----------------------------------------------------------------------------------*/

/* *out, which is 1 before, <- 0 if an element is not finite. */
NG_GLOBAL dv_find_nonfinite(int64_t n, const char *x, int32_t t, int32_t *out) {
  EACH_ELEMENT(i, n) {
    const double value = dv_number(x, t, i);
    if (value - value != 0.0) *out = 0;
  }
}

/* *out, which is 0 before, <- the largest magnitude by its bits, without NaN. */
NG_GLOBAL dv_find_largest(int64_t n, const char *x, int32_t t, double *out) {
  double most = 0.0;
  EACH_ELEMENT(i, n) {
    const double size = fabs(dv_number(x, t, i));
    most = size > most ? size : most;
  }
  if (most > 0.0) NG_LARGEST(out, NG_BITS_OF_DOUBLE(most));
}

/* ---- symmetric storage -----------------------------------------------------------------------*/

NG_GLOBAL dv_add_row(int64_t n, float *S, int64_t r, int64_t c0, int64_t k, const float *v,
                     float alpha) {
  EACH_ELEMENT(c, k) { S[dv_sym_at(n, r, c0 + c)] += alpha * v[c]; }
}

NG_GLOBAL dv_shift_diagonal(int64_t n, char *S, int32_t t, int32_t diagonal, double d) {
  EACH_ELEMENT(i, n) {
    const int64_t at = diagonal != 0 ? i : dv_sym_at(n, i, i);
    dv_put(S, t, at, dv_number(S, t, at) + d);
  }
}

/* One block. */
NG_GLOBAL dv_trace(int64_t n, const char *S, int32_t t, int32_t diagonal, double *out) {
  NG_SHARED double warps[32];
  double sum = 0.0;
  for (int64_t i = NG_THREAD; i < n; i += DV_THREADS) {
    sum += dv_number(S, t, diagonal != 0 ? i : dv_sym_at(n, i, i));
  }
  sum = dv_block_sum(sum, warps);
  if (NG_THREAD == 0) *out = sum;
}

/* One block for each row. */
NG_GLOBAL dv_unpack(int64_t n, const char *S, int32_t t, char *full, int32_t to_t, int64_t ld) {
  const int64_t i = NG_BLOCK;
  for (int64_t j = NG_THREAD; j < n; j += DV_THREADS) {
    const int64_t at = i > j ? dv_sym_at(n, i, j) : dv_sym_at(n, j, i);
    dv_put(full, to_t, i * ld + j, dv_number(S, t, at));
  }
}

/* ---- rows: one block for each row --------------------------------------------------------------*/

NG_GLOBAL dv_convert_rows(int64_t cols, const char *x, int32_t t, int64_t ldx, char *to,
                          int32_t to_t, int64_t ldt) {
  for (int64_t c = NG_THREAD; c < cols; c += DV_THREADS) {
    dv_put(to, to_t, NG_BLOCK * ldt + c, dv_number(x, t, NG_BLOCK * ldx + c));
  }
}

/* ng_spectrum: (g[r] + damping_g) (a[c] + damping_a) + damping_both */
NG_GLOBAL dv_divide(int64_t cols, const char *g, const char *a, double damping_g, double damping_a,
                    double damping_both, char *U, int32_t t, int64_t ldu) {
  const double g_r = (g == NULL ? 1.0 : dv_number(g, t, NG_BLOCK)) + damping_g;
  for (int64_t c = NG_THREAD; c < cols; c += DV_THREADS) {
    const double a_c = (a == NULL ? 1.0 : dv_number(a, t, c)) + damping_a;
    const int64_t at = NG_BLOCK * ldu + c;
    dv_put(U, t, at, dv_number(U, t, at) / (g_r * a_c + damping_both));
  }
}

NG_GLOBAL dv_mul_diagonal(int32_t left, int64_t cols, const char *d, int32_t t, const char *x,
                          char *y, int64_t ld) {
  for (int64_t c = NG_THREAD; c < cols; c += DV_THREADS) {
    const int64_t at = NG_BLOCK * ld + c;
    dv_put(y, t, at, dv_number(x, t, at) * dv_number(d, t, left != 0 ? NG_BLOCK : c));
  }
}

/* out [rows][3] = <P_r, D_r>, |D_r|^2, |P_r|^2 */
NG_GLOBAL dv_sum_row_products(int64_t cols, const float *P, int64_t ldp, const float *D,
                              int64_t ldd, double *out) {
  NG_SHARED double warps[32];
  double sum[3] = {0.0, 0.0, 0.0};
  for (int64_t c = NG_THREAD; c < cols; c += DV_THREADS) {
    const double p = (double)P[NG_BLOCK * ldp + c], d = (double)D[NG_BLOCK * ldd + c];
    sum[0] += p * d;
    sum[1] += d * d;
    sum[2] += p * p;
  }
  for (int32_t k = 0; k < 3; k++) {
    sum[k] = dv_block_sum(sum[k], warps);
    if (NG_THREAD == 0) out[3 * NG_BLOCK + k] = sum[k];
  }
}

/* ---- sums ------------------------------------------------------------------------------------*/

/* One thread for each k < 3: total[k] += the sum over r of sums[r][k]. */
NG_GLOBAL dv_add_rows_of_sums(int64_t rows, const double *sums, double *total) {
  if (NG_THREAD >= 3) return;
  double sum = total[NG_THREAD];
  for (int64_t r = 0; r < rows; r++) {
    sum += sums[3 * r + NG_THREAD];
  }
  total[NG_THREAD] = sum;
}

/* One block: total [3] += <P, D>, |D|^2, |P|^2. */
NG_GLOBAL dv_add_products(int64_t n, const double *P, const double *D, double *total) {
  NG_SHARED double warps[32];
  double sum[3] = {0.0, 0.0, 0.0};
  for (int64_t i = NG_THREAD; i < n; i += DV_THREADS) {
    sum[0] += P[i] * D[i];
    sum[1] += D[i] * D[i];
    sum[2] += P[i] * P[i];
  }
  for (int32_t k = 0; k < 3; k++) {
    sum[k] = dv_block_sum(sum[k], warps);
    if (NG_THREAD == 0) total[k] += sum[k];
  }
}

/* sums [blocks]: the squares of each tile of X [rows, cols], row after row. dv_add_parts: one block, *out <- their sum. */
NG_GLOBAL dv_square_tiles(int64_t n, int64_t cols, const char *X, int32_t t, int64_t ldx,
                          double *sums) {
  NG_SHARED double warps[32];
  double sum = 0.0;
  EACH_ELEMENT(i, n) {
    const double x = dv_number(X, t, i / cols * ldx + i % cols);
    sum += x * x;
  }
  sum = dv_block_sum(sum, warps);
  if (NG_THREAD == 0) sums[NG_BLOCK] = sum;
}
NG_GLOBAL dv_add_parts(int64_t n, const double *sums, double *out) {
  NG_SHARED double warps[32];
  double sum = 0.0;
  for (int64_t i = NG_THREAD; i < n; i += DV_THREADS) {
    sum += sums[i];
  }
  sum = dv_block_sum(sum, warps);
  if (NG_THREAD == 0) *out = sum;
}

/* One thread for each element: y_j <- S x_j in double, S of order n (ng_linalg_ops.multiply_sym64). */
NG_GLOBAL dv_multiply_sym64(int64_t n, const double *S, int64_t lines, int64_t within,
                            int64_t between, const float *x, float *y) {
  EACH_ELEMENT(e, n * lines) {
    const int64_t i = e / lines, j = e % lines;
    double sum = 0.0;
    for (int64_t k = 0; k < n; k++) {
      const int64_t at = i > k ? dv_sym_at(n, i, k) : dv_sym_at(n, k, i);
      sum += S[at] * (double)x[k * within + j * between];
    }
    y[i * within + j * between] = (float)sum;
  }
}
