/* window_rows.c: the loops over rows of a window's store, f32 or bf16, in double: several rows at once, so
 * that what they meet (x, or the doubles that they are added to) is read once for all of them.
 *
 * Which rows go together changes no bit: each row's lanes are added in one order, whatever the width of
 * vectors, and rows are added to a vector four by four, in their order.  A product of two f32 fits a double.
 * Sparse rows go one by one: what they meet is a block that stays in the caches. */
#include "family/window.h"

#include "simd.h"

enum { LANES = 32, LINE_BYTES = 64, ENTRIES = 256 };

/* Known where it is inlined: one text makes a loop for each dtype. */
static inline __attribute__((always_inline)) double at(const void *row, bool half, int64_t i) {
  if (!half) return (double)((const float *)row)[i];
  const uint32_t bits = (uint32_t)((const uint16_t *)row)[i] << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

static inline __attribute__((always_inline)) void fetch(const void *row, bool half, int64_t i) {
  const int64_t each = half ? 2 : 4;
  for (int64_t byte = i * each; byte < (i + LANES) * each; byte += LINE_BYTES) {
    NG_FETCH((const char *)row + byte);
  }
}

static inline __attribute__((always_inline)) double sum_of(double sum[LANES]) {
  for (int half = LANES / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) {
      sum[i] += sum[i + half];
    }
  }
  return sum[0];
}

/* ---- products with a vector ------------------------------------------------------------------*/

NG_CLONES static double dot(const float *restrict x, const float *restrict y, int64_t n) {
  double sum[LANES] = {0.0};
  const int64_t whole = n / LANES * LANES;
  for (int64_t c = 0; c < whole; c += LANES) {
    for (int i = 0; i < LANES; i++) {
      sum[i] += (double)x[c + i] * (double)y[c + i];
    }
  }
  for (int64_t c = whole; c < n; c++) {
    sum[c - whole] += (double)x[c] * (double)y[c];
  }
  return sum_of(sum);
}

static inline __attribute__((always_inline)) void
dots(const void *const row[4], bool half, const float *restrict y, int64_t n, double out[4]) {
  const void *r0 = row[0], *r1 = row[1], *r2 = row[2], *r3 = row[3];
  double s0[LANES] = {0.0}, s1[LANES] = {0.0}, s2[LANES] = {0.0}, s3[LANES] = {0.0};
  const int64_t whole = n / LANES * LANES;
  for (int64_t c = 0; c < whole; c += LANES) {
    fetch(r0, half, c);
    fetch(r1, half, c);
    fetch(r2, half, c);
    fetch(r3, half, c);
    for (int i = 0; i < LANES; i++) {
      const double v = (double)y[c + i];
      s0[i] += at(r0, half, c + i) * v;
      s1[i] += at(r1, half, c + i) * v;
      s2[i] += at(r2, half, c + i) * v;
      s3[i] += at(r3, half, c + i) * v;
    }
  }
  for (int64_t c = whole; c < n; c++) {
    const double v = (double)y[c];
    s0[c - whole] += at(r0, half, c) * v;
    s1[c - whole] += at(r1, half, c) * v;
    s2[c - whole] += at(r2, half, c) * v;
    s3[c - whole] += at(r3, half, c) * v;
  }
  out[0] = sum_of(s0);
  out[1] = sum_of(s1);
  out[2] = sum_of(s2);
  out[3] = sum_of(s3);
}

NG_CLONES static void dots_f32(const void *const row[4], const float *y, int64_t n, double out[4]) {
  dots(row, false, y, n, out);
}

NG_CLONES static void dots_bf16(const void *const row[4], const float *y, int64_t n,
                                double out[4]) {
  dots(row, true, y, n, out);
}

/* ---- sums of rows ----------------------------------------------------------------------------*/

NG_CLONES static void add(double *restrict acc, const float *restrict x, int64_t n, double c) {
  for (int64_t i = 0; i < n; i++) {
    acc[i] += c * (double)x[i];
  }
}

static inline __attribute__((always_inline)) double four(const void *const row[4], bool half,
                                                         const double c[4], int64_t i) {
  return c[0] * at(row[0], half, i) + c[1] * at(row[1], half, i) + c[2] * at(row[2], half, i) +
         c[3] * at(row[3], half, i);
}

/* `rows` of them, 4 or 8. */
static inline __attribute__((always_inline)) void sums(double *restrict acc, const void *const *row,
                                                       bool half, int rows, int64_t n,
                                                       const double *c) {
  const void *const r[8] = {row[0],        row[1],        row[2],        row[3],
                            row[rows - 4], row[rows - 3], row[rows - 2], row[rows - 1]};
  const double by[8] = {c[0], c[1], c[2], c[3], c[rows - 4], c[rows - 3], c[rows - 2], c[rows - 1]};
  for (int64_t b = 0; b < n; b += LANES) {
    const int64_t end = b + LANES < n ? b + LANES : n;
    for (int k = 0; k < rows; k++) {
      fetch(r[k], half, b);
    }
    for (int64_t i = b; i < end; i++) {
      double a = acc[i] + four(r, half, by, i);
      if (rows == 8) a += four(r + 4, half, by + 4, i);
      acc[i] = a;
    }
  }
}

NG_CLONES static void sums_f32(double *acc, const void *const *row, int rows, int64_t n,
                               const double *c) {
  if (rows == 8) {
    sums(acc, row, false, 8, n, c);
  } else {
    sums(acc, row, false, 4, n, c);
  }
}

NG_CLONES static void sums_bf16(double *acc, const void *const *row, int rows, int64_t n,
                                const double *c) {
  if (rows == 8) {
    sums(acc, row, true, 8, n, c);
  } else {
    sums(acc, row, true, 4, n, c);
  }
}

/* ---- sparse rows -----------------------------------------------------------------------------*/

NG_CLONES static void widen_f32(double *restrict to, const float *restrict x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    to[i] = (double)x[i];
  }
}

NG_CLONES static void widen_bf16(double *restrict to, const uint16_t *restrict x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    to[i] = at(x, true, i);
  }
}

/* Values [from, from + n) in double, so that the loop over places has nothing else to do. */
static void widen(double *to, const void *value, ng_dtype type, int64_t from, int64_t n) {
  if (type == NG_F32) {
    widen_f32(to, (const float *)value + from, n);
  } else {
    widen_bf16(to, (const uint16_t *)value + from, n);
  }
}

double ng_window_sparse_dot(const double *tile, const uint16_t *index, const void *value,
                            ng_dtype type, int64_t n) {
  enum { SUMS = 4 };
  double x[ENTRIES], sum[SUMS] = {0.0};
  for (int64_t from = 0; from < n; from += ENTRIES) {
    const int64_t some = ng_min64(ENTRIES, n - from);
    const uint16_t *k = index + from;
    int64_t i = 0;
    widen(x, value, type, from, some);
    for (; i + SUMS <= some; i += SUMS) {
      for (int q = 0; q < SUMS; q++) {
        sum[q] += x[i + q] * tile[k[i + q] % NG_WINDOW_BLOCK];
      }
    }
    for (; i < some; i++) {
      sum[0] += x[i] * tile[k[i] % NG_WINDOW_BLOCK];
    }
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void ng_window_sparse_add(double *tile, const uint16_t *index, const void *value, ng_dtype type,
                          int64_t n, double c) {
  double x[ENTRIES];
  for (int64_t from = 0; from < n; from += ENTRIES) {
    const int64_t some = ng_min64(ENTRIES, n - from);
    widen(x, value, type, from, some);
    for (int64_t i = 0; i < some; i++) {
      tile[index[from + i] % NG_WINDOW_BLOCK] += c * x[i];
    }
  }
}

/* The clones are of this file: those of a name that others see would be seen outside of the library, too. */
double ng_window_dot(const float *x, const float *y, int64_t n) { return dot(x, y, n); }
void ng_window_add(double *acc, const float *x, int64_t n, double c) { add(acc, x, n, c); }
void ng_window_dots(const void *const row[4], ng_dtype type, const float *y, int64_t n,
                    double out[4]) {
  (type == NG_F32 ? dots_f32 : dots_bf16)(row, y, n, out);
}
void ng_window_sums(double *acc, const void *const *row, ng_dtype type, int rows, int64_t n,
                    const double *c) {
  (type == NG_F32 ? sums_f32 : sums_bf16)(acc, row, rows, n, c);
}
