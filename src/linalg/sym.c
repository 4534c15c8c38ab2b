/* sym.c: access to symmetric matrices in host memory, element by element.
 *
 * The storage is LAPACK's rectangular full packed format (Gustavson, Wasniewski, Dongarra, Langou,
 * "Rectangular full packed format for Cholesky's algorithm", ACM TOMS 37(2), 2010), a rectangle of
 * n(n+1)/2 numbers that BLAS uses without unpacking:
 *
 *     lower triangle of S      stored columns (n = 5, h = 3, ld = 5)
 *     00                       00  33  43
 *     10 11                    10  11  44
 *     20 21 22                 20  21  22
 *     30 31 32 33              30  31  32
 *     40 41 42 43 44           40  41  42
 *
 * Functions visit the storage in contiguous runs, one for each index f: for f < h column f from the diagonal down, for f >=
 * h row f from column h to the diagonal. The runs contain each stored element once. */
#include "linalg/linalg.h"

#include <string.h>

enum { TILE = 16 }; /* a cache line of floats: transposition uses whole lines */

typedef struct column_run {
  int64_t at, from, to; /* element (f, t) = (t, f), t in [from, to), is stored at at + t - from */
} column_run;

static column_run column_run_at(int64_t n, int64_t f) {
  const int64_t h = (n + 1) / 2;
  column_run r;
  r.from = f < h ? f : h;
  r.to = f < h ? n : f + 1;
  r.at = ng_sym_at(n, f, r.from);
  return r;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

/* Return the piece for a block on one side of column h. Columns are contiguous left of h, rows right of h. */
static ng_sym_piece make_piece(ng_sym s, int64_t row, int64_t col, int64_t rows, int64_t cols,
                               bool diagonal) {
  const int64_t h = (s.n + 1) / 2, ld = s.n | 1;
  ng_sym_piece p;
  p.a = s.a + ng_sym_at(s.n, row, col);
  p.row = row;
  p.col = col;
  p.rows = rows;
  p.cols = cols;
  p.row_stride = col < h ? 1 : ld;
  p.col_stride = col < h ? ld : 1;
  p.diagonal = diagonal;
  return p;
}

/* Cut the block at column h. A diagonal block that crosses column h becomes two triangles and a rectangle. */
int32_t ng_sym_cut(ng_sym s, int64_t r0, int64_t m, int64_t c0, int64_t k, ng_sym_piece out[3]) {
  const int64_t h = (s.n + 1) / 2;
  /* number of columns of the block that lie left of column h */
  const int64_t left = clamp(h - c0, 0, k);
  int32_t n = 0;
  if (m == 0 || k == 0) return 0;
  if (r0 != c0) {
    if (left > 0) out[n++] = make_piece(s, r0, c0, m, left, false);
    if (left < k) out[n++] = make_piece(s, r0, c0 + left, m, k - left, false);
    return n;
  }
  if (left > 0) out[n++] = make_piece(s, r0, c0, left, left, true);
  if (left > 0 && left < k) out[n++] = make_piece(s, r0 + left, c0, m - left, left, false);
  if (left < k) out[n++] = make_piece(s, r0 + left, c0 + left, k - left, k - left, true);
  return n;
}

void ng_sym_unpack(ng_sym S, float *full, int64_t ld) {
  const int64_t n = S.n, h = (n + 1) / 2;
  for (int64_t f = 0; f < n; f++) {
    const column_run r = column_run_at(n, f);
    memcpy(full + f * ld + r.from, S.a + r.at, (size_t)(r.to - r.from) * sizeof *full);
  }
  for (int64_t i0 = 0; i0 < n; i0 += TILE) { /* fill the other triangle, tile by tile */
    const int64_t i1 = i0 + TILE < n ? i0 + TILE : n;
    for (int64_t j0 = 0; j0 <= i0; j0 += TILE) {
      for (int64_t i = i0; i < i1; i++) {
        for (int64_t j = j0; j < j0 + TILE && j < i; j++) {
          if (j < h) {
            full[i * ld + j] = full[j * ld + i];
          } else {
            full[j * ld + i] = full[i * ld + j];
          }
        }
      }
    }
  }
}

/* A stored element (f, t) adds to y[f] and, off the diagonal, to y[t]. */
void ng_sym_vector(int64_t n, const void *S, ng_dtype type, const double *x, double *y) {
  memset(y, 0, (size_t)n * sizeof *y);
  for (int64_t f = 0; f < n; f++) {
    const column_run r = column_run_at(n, f);
    double sum = 0.0;
    for (int64_t t = r.from; t < r.to; t++) {
      const int64_t at = r.at + t - r.from;
      const double s = ng_number_at(S, type, at);
      sum += s * x[t];
      if (t != f) y[t] += s * x[f];
    }
    y[f] += sum;
  }
}
