/* ring.c: update the Cholesky factor L of a matrix S, S = L L', when a row and column is appended to S or the oldest row and
 * column is removed: O(n^2) operations instead of n^3 / 3.
 *
 * In: L, the new row of S. Out: L; solutions z of S z = k. The rows of L are ordered by age, which is the order of their
 * places around the ring:
 *
 *   append   with s the entries of S between the new row and the old rows: y = L^-1 s is the new row of L, and its
 *            diagonal entry is sqrt(S_nn - y'y)
 *   drop     S without its first row and column is L2 L2' + l l', where l is the first column of L below the diagonal and
 *            L2 the rest of L; Givens rotations turn [L2 l] into the new factor, without subtractions
 *
 * A row is in L only while it is in the ring, so the rounding errors of at most n rotations add up. The calling thread
 * computes L, so the bits do not depend on the number of threads.
 *
 * Storage: L [place of the column][place of the row]. So a column is one contiguous run or, around the end of the ring,
 * two. */
#include <math.h>
#include <string.h>

#include "core/core.h"
#include "linalg/linalg.h"
#include "simd.h"

static double *column_address(const ng_ring *r, int64_t place) { return r->L + place * r->places; }

/* ---- loops over one run ----------------------------------------------------------------------*/

/* 16 partial sums fix the order of additions, so the bits do not depend on the vector width. */
NG_CLONES static double dot(const double *restrict x, const double *restrict y, int64_t n) {
  enum { LANES = 16 };
  double sum[LANES] = {0.0}, all = 0.0;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    for (int k = 0; k < LANES; k++) {
      sum[k] += x[i + k] * y[i + k];
    }
  }
  for (int k = 0; k < LANES; k++) {
    all += sum[k];
  }
  for (; i < n; i++) {
    all += x[i] * y[i];
  }
  return all;
}

NG_CLONES static void subtract(double *restrict y, const double *restrict x, int64_t n, double c) {
  for (int64_t i = 0; i < n; i++) {
    y[i] -= c * x[i];
  }
}

NG_CLONES static void rotate(double *restrict x, double *restrict y, int64_t n, double c,
                             double s) {
  for (int64_t i = 0; i < n; i++) {
    const double old = x[i];
    x[i] = c * old + s * y[i];
    y[i] = c * y[i] - s * old;
  }
}

/* The places of the rows younger than the k-th row in use: [from, to) and, past the end of the ring, [0, rest). */
typedef struct younger_rows {
  int64_t from, to, rest;
} younger_rows;

static younger_rows find_younger_rows(const ng_ring *r, int64_t k) {
  const int64_t n = r->n - 1 - k, from = r->place[k] + 1, whole = r->places - from;
  return (younger_rows){from, from + ng_min64(n, whole), ng_max64(0, n - whole)};
}

static double dot_younger(const double *x, const double *y, younger_rows b) {
  return dot(x + b.from, y + b.from, b.to - b.from) + dot(x, y, b.rest);
}

static void subtract_from_younger(double *y, const double *x, younger_rows b, double c) {
  subtract(y + b.from, x + b.from, b.to - b.from, c);
  subtract(y, x, b.rest, c);
}

/* ---- rows ------------------------------------------------------------------------------------*/

bool ng_ring_append(const ng_ring *r, double least, double *y) {
  const int64_t n = r->n, head = r->place[n - 1];
  double rest = y[head];
  for (int64_t k = 0; k < n - 1; k++) {
    const int64_t at = r->place[k];
    const double *L = column_address(r, at);
    y[at] /= L[at];
    rest -= y[at] * y[at];
    subtract_from_younger(y, L, find_younger_rows(r, k), y[at]);
  }
  if (!(rest >= least) || !(rest - rest == 0.0)) return false;
  for (int64_t k = 0; k < n - 1; k++) {
    column_address(r, r->place[k])[head] = y[r->place[k]];
  }
  column_address(r, head)[head] = sqrt(rest);
  return true;
}

void ng_ring_store(const ng_ring *r, const double *S) {
  memset(r->L, 0, (size_t)(r->places * r->places) * sizeof *r->L);
  for (int64_t k = 0; k < r->n; k++) {
    double *L = column_address(r, r->place[k]);
    for (int64_t i = k; i < r->n; i++) {
      L[r->place[i]] = S[ng_sym_at(r->n, i, k)];
    }
  }
}

void ng_ring_solve(const ng_ring *r, bool last, double *z) {
  for (int64_t k = last ? r->n - 1 : 0; k < r->n; k++) {
    const int64_t at = r->place[k];
    const double *L = column_address(r, at);
    z[at] /= L[at];
    subtract_from_younger(z, L, find_younger_rows(r, k), z[at]);
  }
  for (int64_t k = r->n - 1; k >= 0; k--) {
    const int64_t at = r->place[k];
    const double *L = column_address(r, at);
    z[at] = (z[at] - dot_younger(L, z, find_younger_rows(r, k))) / L[at];
  }
}

void ng_ring_clear(const ng_ring *r, int64_t place) {
  memset(column_address(r, place), 0, (size_t)r->places * sizeof *r->L);
  for (int64_t k = 0; k < r->places; k++) {
    column_address(r, k)[place] = 0.0;
  }
}

void ng_ring_drop(const ng_ring *r) {
  double *l = column_address(r, r->place[0]); /* the rotations below overwrite l */
  for (int64_t k = 1; k < r->n; k++) {
    const int64_t at = r->place[k];
    double *L = column_address(r, at);
    const double h = hypot(L[at], l[at]), c = L[at] / h, s = l[at] / h;
    const younger_rows below = find_younger_rows(r, k);
    L[at] = h;
    rotate(L + below.from, l + below.from, below.to - below.from, c, s);
    rotate(L, l, below.rest, c, s);
  }
  ng_ring_clear(r, r->place[0]);
}
