/* row_loops.c: products and sums of rows in f32 or bf16, computed in double. A loop reads several rows at once, so that it
 * reads x (or the sums) only once for these rows.
 *
 * The bits of a result depend neither on how many rows a loop reads nor on the vector width: the partial sums of a row are
 * added in a fixed order, and rows are added to a vector in order, in sums of four rows. A product of two f32 is exact in
 * double. A chunk of x (or of the sums) stays in the first-level cache while the same columns of all rows are read. */
#include <string.h>

#include "kernel/row_loops.h"
#include "simd.h"

enum { LANES = 32, LINE_BYTES = 64 };

#define INLINE static inline __attribute__((always_inline))

/* Return element i of a row of bf16 (half) or f32. `half` is a constant after inlining, so each dtype has its own loop. */
INLINE double element_of_row(const void *row, bool half, int64_t i) {
  if (!half) return (double)((const float *)row)[i];
  const uint32_t bits = (uint32_t)((const uint16_t *)row)[i] << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

/* Return element 2 i of a row of bf16, or 2 i + 1 if `odd`. Both are in one 32-bit word; a shift or a mask converts them
 * to f32. */
INLINE double element_of_pair(const void *row, bool odd, int64_t i) {
  uint32_t bits;
  float x;
  memcpy(&bits, (const char *)row + i * (int64_t)sizeof bits, sizeof bits);
  bits = odd ? bits & 0xffff0000U : bits << 16; /* little-endian, as io.c requires */
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

/* Loops over `whole` elements of `each` bytes prefetch memory NG_FETCH_AHEAD bytes after the current element. Return the
 * element from which on this would be past the end, so that the loop prefetches the beginning of the next row instead. */
INLINE int64_t prefetch_turn(int64_t whole, int64_t each) {
  return ng_max64(0, whole - NG_FETCH_AHEAD / each);
}

/* Return an address p: at element i, the loop prefetches p + i * each. turned: i >= prefetch_turn(). */
INLINE uintptr_t prefetch_address(const void *row, const void *next, bool turned, int64_t turn,
                                  int64_t each) {
  return turned ? (uintptr_t)next - (uintptr_t)(turn * each) : (uintptr_t)row + NG_FETCH_AHEAD;
}

INLINE void prefetch(uintptr_t ahead, int64_t i, int64_t each) {
  NG_FETCH_LINE(ahead + (uintptr_t)(i * each));
  if (each * LANES > LINE_BYTES) NG_FETCH_LINE(ahead + (uintptr_t)(i * each) + LINE_BYTES);
}

INLINE double add_lanes(double sum[LANES]) {
  for (int half = LANES / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) {
      sum[i] += sum[i + half];
    }
  }
  return sum[0];
}

/* ---- products with a vector ------------------------------------------------------------------*/

NG_CLONES static double multiply_floats(const float *restrict x, const float *restrict y,
                                        int64_t n) {
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
  return add_lanes(sum);
}

/* Add the products of elements [c, c + LANES) of four rows with y to the partial sums s0 to s3 of the rows. For bf16, the
 * first half of the partial sums belongs to even elements, the second half to odd elements. */
INLINE void multiply_lanes(const void *const row[4], bool half, const float *restrict y, int64_t c,
                           double *restrict s0, double *restrict s1, double *restrict s2,
                           double *restrict s3) {
  const void *r0 = row[0], *r1 = row[1], *r2 = row[2], *r3 = row[3];
  for (int i = 0; i < LANES && !half; i++) {
    const double v = (double)y[c + i];
    s0[i] += element_of_row(r0, false, c + i) * v;
    s1[i] += element_of_row(r1, false, c + i) * v;
    s2[i] += element_of_row(r2, false, c + i) * v;
    s3[i] += element_of_row(r3, false, c + i) * v;
  }
  const int64_t pair = c / 2;
  for (int i = 0, o = LANES / 2; i < LANES / 2 && half; i++, o++) {
    const double v = (double)y[c + 2 * i], u = (double)y[c + 2 * i + 1];
    s0[i] += element_of_pair(r0, false, pair + i) * v;
    s1[i] += element_of_pair(r1, false, pair + i) * v;
    s2[i] += element_of_pair(r2, false, pair + i) * v;
    s3[i] += element_of_pair(r3, false, pair + i) * v;
    s0[o] += element_of_pair(r0, true, pair + i) * u;
    s1[o] += element_of_pair(r1, true, pair + i) * u;
    s2[o] += element_of_pair(r2, true, pair + i) * u;
    s3[o] += element_of_pair(r3, true, pair + i) * u;
  }
}

/* Order the partial sums of a row by element, add the products of elements [whole, n), and return the sum. */
INLINE double sum_lanes_and_tail(const double *lane, const void *row, bool half, const float *y,
                                 int64_t whole, int64_t n) {
  double sum[LANES];
  for (int i = 0; i < LANES; i++) {
    sum[i] = lane[!half ? i : i % 2 == 0 ? i / 2 : LANES / 2 + i / 2];
  }
  for (int64_t c = whole; c < n; c++) {
    sum[c - whole] += element_of_row(row, half, c) * (double)y[c];
  }
  return add_lanes(sum);
}

INLINE void multiply_four_rows(const void *const row[4], const void *const next[4], bool half,
                               const float *restrict y, int64_t n, double out[4]) {
  double s0[LANES] = {0.0}, s1[LANES] = {0.0}, s2[LANES] = {0.0}, s3[LANES] = {0.0};
  const int64_t each = half ? 2 : 4, whole = n / LANES * LANES, turn = prefetch_turn(whole, each);
  for (int64_t from = 0, to; from < whole; from = to) {
    const bool turned = from >= turn;
    uintptr_t ahead[4];
    to = turned ? whole : turn;
    for (int q = 0; q < 4; q++) {
      ahead[q] = prefetch_address(row[q], next[q], turned, turn, each);
    }
    for (int64_t c = from; c < to; c += LANES) {
      for (int q = 0; q < 4; q++) {
        prefetch(ahead[q], c, each);
      }
      multiply_lanes(row, half, y, c, s0, s1, s2, s3);
    }
  }
  out[0] = sum_lanes_and_tail(s0, row[0], half, y, whole, n);
  out[1] = sum_lanes_and_tail(s1, row[1], half, y, whole, n);
  out[2] = sum_lanes_and_tail(s2, row[2], half, y, whole, n);
  out[3] = sum_lanes_and_tail(s3, row[3], half, y, whole, n);
}

NG_CLONES static void multiply_four_f32(const void *const row[4], const void *const next[4],
                                        const float *y, int64_t n, double out[4]) {
  multiply_four_rows(row, next, false, y, n, out);
}

NG_CLONES static void multiply_four_bf16(const void *const row[4], const void *const next[4],
                                         const float *y, int64_t n, double out[4]) {
  multiply_four_rows(row, next, true, y, n, out);
}

/* ---- sums of rows ----------------------------------------------------------------------------*/

NG_CLONES static void add_floats(double *restrict acc, const float *restrict x, int64_t n,
                                 double c) {
  for (int64_t i = 0; i < n; i++) {
    acc[i] += c * (double)x[i];
  }
}

INLINE double sum_four_rows(const void *const row[4], bool half, const double c[4], int64_t i) {
  return c[0] * element_of_row(row[0], half, i) + c[1] * element_of_row(row[1], half, i) +
         c[2] * element_of_row(row[2], half, i) + c[3] * element_of_row(row[3], half, i);
}

INLINE double sum_four_pairs(const void *const row[4], bool odd, const double c[4], int64_t i) {
  return c[0] * element_of_pair(row[0], odd, i) + c[1] * element_of_pair(row[1], odd, i) +
         c[2] * element_of_pair(row[2], odd, i) + c[3] * element_of_pair(row[3], odd, i);
}

/* acc += elements [b, b + LANES) of 4 or 8 rows, times `by`. */
INLINE void add_rows_of_lanes(double *restrict acc, const void *const r[8], bool half, int rows,
                              int64_t b, const double by[8]) {
  for (int64_t i = b; i < b + LANES && !half; i++) {
    double a = acc[i] + sum_four_rows(r, false, by, i);
    if (rows == 8) a += sum_four_rows(r + 4, false, by + 4, i);
    acc[i] = a;
  }
  for (int64_t i = b / 2; i < b / 2 + LANES / 2 && half; i++) {
    double even = acc[2 * i] + sum_four_pairs(r, false, by, i);
    double odd = acc[2 * i + 1] + sum_four_pairs(r, true, by, i);
    if (rows == 8) even += sum_four_pairs(r + 4, false, by + 4, i);
    if (rows == 8) odd += sum_four_pairs(r + 4, true, by + 4, i);
    acc[2 * i] = even;
    acc[2 * i + 1] = odd;
  }
}

INLINE void add_rows(double *restrict acc, const void *const *row, const void *const *next,
                     bool half, int rows, int64_t n, const double *c) {
  const void *const r[8] = {row[0],        row[1],        row[2],        row[3],
                            row[rows - 4], row[rows - 3], row[rows - 2], row[rows - 1]};
  const double by[8] = {c[0], c[1], c[2], c[3], c[rows - 4], c[rows - 3], c[rows - 2], c[rows - 1]};
  const int64_t each = half ? 2 : 4, whole = n / LANES * LANES, turn = prefetch_turn(whole, each);
  for (int64_t from = 0, to; from < whole; from = to) {
    const bool turned = from >= turn;
    uintptr_t ahead[8];
    to = turned ? whole : turn;
    for (int q = 0; q < rows; q++) {
      ahead[q] = prefetch_address(row[q], next[q], turned, turn, each);
    }
    for (int64_t b = from; b < to; b += LANES) {
      for (int q = 0; q < rows; q++) {
        prefetch(ahead[q], b, each);
      }
      add_rows_of_lanes(acc, r, half, rows, b, by);
    }
  }
  for (int64_t i = whole; i < n; i++) {
    double a = acc[i] + sum_four_rows(r, half, by, i);
    if (rows == 8) a += sum_four_rows(r + 4, half, by + 4, i);
    acc[i] = a;
  }
}

NG_CLONES static void add_rows_f32(double *acc, const void *const *row, const void *const *next,
                                   int rows, int64_t n, const double *c) {
  if (rows == 8) {
    add_rows(acc, row, next, false, 8, n, c);
  } else {
    add_rows(acc, row, next, false, 4, n, c);
  }
}

NG_CLONES static void add_rows_bf16(double *acc, const void *const *row, const void *const *next,
                                    int rows, int64_t n, const double *c) {
  if (rows == 8) {
    add_rows(acc, row, next, true, 8, n, c);
  } else {
    add_rows(acc, row, next, true, 4, n, c);
  }
}

/* NG_CLONES functions must be static, because the library would export the clones of an external function. */
double ng_row_dot(const float *x, const float *y, int64_t n) { return multiply_floats(x, y, n); }
double ng_row_dot_double(const double *x, const double *y, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++) {
    sum += x[i] * y[i];
  }
  return sum;
}

void ng_row_add(double *acc, const float *x, int64_t n, double c) { add_floats(acc, x, n, c); }

/* ---- whole rows ------------------------------------------------------------------------------*/

/* row[q] <- the address of element `at` of the (j + q)-th row in use, for q < many; instead of a row past the last one, the
 * last one. If all are past the last row: the first rows, n elements further, which the next call reads (for prefetch). */
static void list_row_addresses(const ng_rows *G, int64_t j, int64_t many, int64_t at, int64_t n,
                               const void **row) {
  if (j >= G->used) at += n;
  for (int64_t q = 0; q < many; q++) {
    const int64_t one = j < G->used ? j + q : q;
    row[q] = ng_row_at(G, G->place[ng_min64(one, G->used - 1)], at);
  }
}

void ng_multiply_whole_rows(void *arg, int32_t i) {
  enum { AT_ONCE = 4 };
  const ng_rows *G = arg;
  const ng_flat_chunk c = ng_find_chunk(G->range, G->ranges, i);
  double *k = G->partial_sums + i * G->used, out[AT_ONCE];
  for (int64_t j = 0; j < G->used; j += AT_ONCE) {
    const void *row[AT_ONCE], *next[AT_ONCE];
    if (j + 1 == G->used && G->dtype == NG_F32) {
      k[j] = multiply_floats(ng_row_at(G, G->place[j], c.at), G->x + c.at, c.n);
      break;
    }
    list_row_addresses(G, j, AT_ONCE, c.at, c.n, row);
    list_row_addresses(G, j + AT_ONCE, AT_ONCE, c.at, c.n, next);
    (G->dtype == NG_F32 ? multiply_four_f32 : multiply_four_bf16)(row, next, G->x + c.at, c.n, out);
    for (int64_t q = 0; q < AT_ONCE && j + q < G->used; q++) {
      k[j + q] = out[q];
    }
  }
}

void ng_add_whole_rows(const ng_rows *G, const double *c, int64_t at, int64_t n, double *acc) {
  enum { FEW = 4, MANY = 8 };
  float room[NG_FLAT_LINE];
  int64_t j = 0;
  for (int rows; j + FEW <= G->used; j += rows) {
    const void *row[MANY], *next[MANY];
    double by[MANY];
    rows = j + MANY <= G->used ? MANY : FEW;
    list_row_addresses(G, j, rows, at, n, row);
    list_row_addresses(G, j + rows, rows, at, n, next);
    for (int q = 0; q < rows; q++) {
      by[q] = c[G->place[j + q]];
    }
    (G->dtype == NG_F32 ? add_rows_f32 : add_rows_bf16)(acc, row, next, rows, n, by);
  }
  for (; j < G->used; j++) {
    const void *row = ng_row_at(G, G->place[j], at);
    if (G->dtype != NG_F32) ng_to_f32(room, row, G->dtype, n);
    add_floats(acc, G->dtype == NG_F32 ? row : room, n, c[G->place[j]]);
  }
}
