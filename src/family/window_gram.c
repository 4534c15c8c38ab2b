/* window_gram.c: the Gram matrix K = G G' of a window's rows, and the Cholesky factor L of S = K / lambda + M I (M:
 * window_solve.c).  L is updated in each step, which costs O(m^2) instead of m^3 / 3.
 *
 * In: products of the row at head.  Out: K and L with the new row; solutions of S z = k; after the step, L without the
 * oldest row.  The rows of L are ordered by age, which is the order of places around the ring:
 *
 *   append   y = L^-1 (entries of S for the new row and the old rows),  L_nn^2 = S_nn - y'y, which is at least M in
 *            exact arithmetic; below M / 2 the rounding error is too large, and all of S is factorised
 *   drop     S = L L' without its first row and column is L2 L2' + l l', where l is the first column of L below the
 *            diagonal; rotations add l l' to L2 L2' without subtractions
 *
 * A row stays in L while it is in the window, so rounding errors add up over at most m rotations.  One thread computes
 * L, so the bits do not depend on the number of threads.  Before the step counts, only the row at head is written.
 *
 * factor [place of the column][place of the row]: a loop reads one contiguous run or, around the end of the
 * ring, two.  Entries of places without a row in use are 0. */
#include "family/window.h"

#include <math.h>

#include "simd.h"

/* ---- the Gram matrix -------------------------------------------------------------------------*/

/* w->used <- the rows in use, oldest first.  fresh: with the row at head, and without the oldest of m + 1 rows. */
void ng_window_list_used(ng_window *w, bool fresh) {
  const int64_t head = ng_window_head(w);
  const int64_t there = fresh && w->drops_rows ? 0 : ng_window_count(w);
  const int64_t old = ng_min64(there, fresh ? w->m - 1 : w->m);
  w->rows = 0;
  for (int64_t age = old; age > 0; age--) {
    w->row_place[w->rows++] = (head - age + w->places) % w->places;
  }
  if (fresh) w->row_place[w->rows++] = head;
}

void ng_window_gram_clear_row(ng_window *w, int64_t place) {
  for (int32_t i = 0; i < w->parts; i++) {
    for (int64_t j = 0; j < w->places; j++) {
      w->part[i].gram[place * w->places + j] = w->part[i].gram[j * w->places + place] = 0.0;
    }
  }
}

void ng_window_gram_set_row(ng_window *w, const double *row) {
  const int64_t head = ng_window_head(w);
  for (int32_t i = 0; i < w->parts; i++) {
    for (int64_t k = 0; k < w->rows; k++) {
      const int64_t j = w->row_place[k];
      w->part[i].gram[head * w->places + j] = w->part[i].gram[j * w->places + head] =
          row[i * w->places + j];
    }
  }
}

static double *factor_column(const ng_window *w, const ng_window_part *p, int64_t place) {
  return p->factor + place * w->places;
}

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

static younger_rows younger_than(const ng_window *w, int64_t k) {
  const int64_t n = w->rows - 1 - k, from = w->row_place[k] + 1, whole = w->places - from;
  return (younger_rows){from, from + ng_min64(n, whole), ng_max64(0, n - whole)};
}

static double dot_below(const double *x, const double *y, younger_rows r) {
  return dot(x + r.from, y + r.from, r.to - r.from) + dot(x, y, r.rest);
}

static void subtract_below(double *y, const double *x, younger_rows r, double c) {
  subtract(y + r.from, x + r.from, r.to - r.from, c);
  subtract(y, x, r.rest, c);
}

/* ---- the row at head -------------------------------------------------------------------------*/

/* Append the row at head to L.  y [places]: scratch.  Return false if the pivot is too small; L is then unchanged. */
bool ng_window_factor_append(const ng_window *w, ng_window_part *p, double lambda, double M,
                             double *y) {
  const int64_t head = ng_window_head(w), n = w->rows;
  double rest = p->gram[head * w->places + head] / lambda + M;
  y[head] = 0.0; /* read by no loop: head is the youngest row */
  for (int64_t k = 0; k < n - 1; k++) {
    y[w->row_place[k]] = p->gram[head * w->places + w->row_place[k]] / lambda;
  }
  for (int64_t k = 0; k < n - 1; k++) {
    const int64_t at = w->row_place[k];
    const double *L = factor_column(w, p, at);
    y[at] /= L[at];
    rest -= y[at] * y[at];
    subtract_below(y, L, younger_than(w, k), y[at]);
  }
  if (!(rest >= M / 2.0) || !(rest - rest == 0.0)) return false;
  for (int64_t k = 0; k < n - 1; k++) {
    factor_column(w, p, w->row_place[k])[head] = y[w->row_place[k]];
  }
  factor_column(w, p, head)[head] = sqrt(rest);
  return true;
}

/* p->factor <- the Cholesky factor S (in ng_sym order) of all rows in use. */
void ng_window_factor_store(const ng_window *w, ng_window_part *p, const double *S) {
  const int64_t n = w->rows;
  memset(p->factor, 0, (size_t)(w->places * w->places) * sizeof *p->factor);
  for (int64_t k = 0; k < n; k++) {
    double *L = factor_column(w, p, w->row_place[k]);
    for (int64_t i = k; i < n; i++) {
      L[w->row_place[i]] = S[ng_sym_at(n, i, k)];
    }
  }
}

/* z [places] <- S^-1 z for the rows in use; last: only the newest row's entry of z is not 0. */
void ng_window_factor_solve(const ng_window *w, const ng_window_part *p, bool last, double *z) {
  const int64_t n = w->rows;
  for (int64_t k = last ? n - 1 : 0; k < n; k++) {
    const double *L = factor_column(w, p, w->row_place[k]);
    z[w->row_place[k]] /= L[w->row_place[k]];
    subtract_below(z, L, younger_than(w, k), z[w->row_place[k]]);
  }
  for (int64_t k = n - 1; k >= 0; k--) {
    const double *L = factor_column(w, p, w->row_place[k]);
    z[w->row_place[k]] =
        (z[w->row_place[k]] - dot_below(L, z, younger_than(w, k))) / L[w->row_place[k]];
  }
}

/* ---- after the step --------------------------------------------------------------------------*/

static void clear_row(const ng_window *w, ng_window_part *p, int64_t place) {
  memset(factor_column(w, p, place), 0, (size_t)w->places * sizeof *p->factor);
  for (int64_t k = 0; k < w->places; k++) {
    factor_column(w, p, k)[place] = 0.0;
  }
}

/* Remove the oldest row from L; its column is scratch. */
static void drop_oldest(const ng_window *w, ng_window_part *p) {
  double *l = factor_column(w, p, w->row_place[0]);
  for (int64_t k = 1; k < w->rows; k++) {
    const int64_t at = w->row_place[k];
    double *L = factor_column(w, p, at);
    const double r = hypot(L[at], l[at]), c = L[at] / r, s = l[at] / r;
    const younger_rows below = younger_than(w, k);
    L[at] = r;
    rotate(L + below.from, l + below.from, below.to - below.from, c, s);
    rotate(L, l, below.rest, c, s);
  }
  clear_row(w, p, w->row_place[0]);
}

/* Update L at the end of a step with a row at head. */
void ng_window_factor_commit(ng_window *w, bool taken) {
  for (int32_t i = 0; i < w->parts && w->part[i].factor != NULL; i++) {
    ng_window_part *p = &w->part[i];
    if (!taken) {
      clear_row(w, p, ng_window_head(w));
    } else if (w->drops_rows) {
      const double diagonal = factor_column(w, p, ng_window_head(w))[ng_window_head(w)];
      memset(p->factor, 0, (size_t)(w->places * w->places) * sizeof *p->factor);
      factor_column(w, p, ng_window_head(w))[ng_window_head(w)] = diagonal;
    } else if (w->rows == w->m && w->next_factor_damping > 0.0) {
      drop_oldest(w, p);
    }
  }
  w->factor_damping = taken ? w->next_factor_damping : w->factor_replaced ? 0.0 : w->factor_damping;
}
