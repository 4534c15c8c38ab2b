/* window_fine.c: the functions of window_solve.c in numbers of two doubles, for windows whose rows have nearly all in
 * common, huge against damping: there double sees neither what sets a row apart nor, in G' c, what is left.
 *
 * In: the Gram matrix and what double rounds off its entries (part->rest), what of x each row is, the products of the rest of
 * it.  Out: part->c and part->c_rest.
 *
 * M-FAC: (K + lambda M I) c = M b - k / lambda, by L D L' without roots.  GGT: V of the eigenvectors in double, made
 * orthonormal by one step of Newton and Schulz, then Jacobi's rotations on V A V'; A is positive definite, so what is relative
 * to both of its diagonal entries is as small as it need be (Demmel & Veselic 1992). */
#include "family/window.h"
#include "family/window_twofold.h"

enum { SWEEPS = 12 };

static ng_two entry(const ng_window *w, const ng_window_part *p, int64_t i, int64_t j) {
  const int64_t at = w->used[i] * w->places + w->used[j];
  return (ng_two){p->gram[at], p->rest[ng_window_rest_at(w, w->used[i], w->used[j])]};
}

static void put(const ng_window *w, ng_window_part *p, int64_t i, ng_two c) {
  p->c[w->used[i]] = c.hi;
  p->c_rest[w->used[i]] = c.lo;
}

/* ---- M-FAC -----------------------------------------------------------------------------------*/

int64_t ng_window_fine_mfac_room(int64_t n) { return n * (n + 1) + 3 * n; }

/* Column k of a triangle, from its diagonal on. */
static int64_t column(int64_t n, int64_t k) { return k * n - k * (k - 1) / 2; }

/* A <- L, and D on its diagonal; y: scratch [3 n].  False: a pivot is below the least that it may be, or so small a part
 * of what it was that two doubles do not know it to 1e-5. */
static bool factor(int64_t n, double least, double *A, double *A_lo, double *y) {
  for (int64_t k = 0; k < n; k++) {
    y[2 * n + k] = fmax(least, 1e-26 * A[column(n, k)]);
  }
  for (int64_t k = 0; k < n; k++) {
    double *x = A + column(n, k), *x_lo = A_lo + column(n, k);
    const ng_two d = {x[0], x_lo[0]};
    if (!(d.hi >= y[2 * n + k]) || !(d.hi - d.hi == 0.0)) return false;
    for (int64_t i = k + 1; i < n; i++) {
      const ng_two l = ng_two_over((ng_two){x[i - k], x_lo[i - k]}, d);
      ng_window_subtract_twofold(A + column(n, i), A_lo + column(n, i), x + (i - k), x_lo + (i - k),
                                 n - i, l);
      y[i] = l.hi;
      y[n + i] = l.lo;
    }
    for (int64_t i = k + 1; i < n; i++) {
      x[i - k] = y[i];
      x_lo[i - k] = y[n + i];
    }
  }
  return true;
}

bool ng_window_fine_mfac(const ng_window *w, ng_window_part *p, const double *k, double lambda,
                         double M, double *room) {
  const int64_t n = w->uses, all = n * (n + 1) / 2;
  double *A = room, *A_lo = A + all, *y = A_lo + all;
  const ng_two shift = ng_two_product(lambda, M);
  for (int64_t j = 0; j < n; j++) {
    for (int64_t i = j; i < n; i++) {
      const ng_two e = entry(w, p, i, j), a = i == j ? ng_two_add(e, shift) : e;
      A[column(n, j) + i - j] = a.hi;
      A_lo[column(n, j) + i - j] = a.lo;
    }
  }
  if (!factor(n, shift.hi / 2.0, A, A_lo, y)) return false;
  for (int64_t i = 0; i < n; i++) {
    ng_two b = ng_two_product(M, ng_window_along(w, p, k, i));
    if (k != NULL) {
      const ng_two other = ng_two_over(ng_two_of(k[w->used[i]]), ng_two_of(lambda));
      b = ng_two_add(b, ng_two_minus(other));
    }
    y[i] = b.hi;
    y[n + i] = b.lo;
  }
  for (int64_t j = 0; j < n; j++) {
    const double *l = A + column(n, j) + 1, *l_lo = A_lo + column(n, j) + 1;
    ng_window_subtract_twofold(y + j + 1, y + n + j + 1, l, l_lo, n - j - 1,
                               (ng_two){y[j], y[n + j]});
  }
  for (int64_t j = n - 1; j >= 0; j--) {
    const double *l = A + column(n, j), *l_lo = A_lo + column(n, j);
    ng_two z = ng_two_over((ng_two){y[j], y[n + j]}, (ng_two){l[0], l_lo[0]});
    for (int64_t i = j + 1; i < n; i++) {
      const ng_two by = {l[i - j], l_lo[i - j]}, x = {y[i], y[n + i]};
      z = ng_two_add(z, ng_two_minus(ng_two_times(by, x)));
    }
    y[j] = z.hi;
    y[n + j] = z.lo;
    put(w, p, j, z);
  }
  return true;
}

/* ---- GGT -------------------------------------------------------------------------------------*/

typedef struct square { /* [n, n] */
  double *hi, *lo;
} square;

int64_t ng_window_fine_ggt_room(int64_t n) { return 6 * n * n + 4 * n; }

static ng_two at(square s, int64_t i) { return (ng_two){s.hi[i], s.lo[i]}; }

static void set(square s, int64_t i, ng_two x) {
  s.hi[i] = x.hi;
  s.lo[i] = x.lo;
}

/* C <- C - X Y, or Y' (which has rows, then, where Y has columns). */
static void subtract_product(int64_t n, square C, square X, square Y, bool turned) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t k = 0; k < n && !turned; k++) {
      ng_window_subtract_twofold(C.hi + i * n, C.lo + i * n, Y.hi + k * n, Y.lo + k * n, n,
                                 at(X, i * n + k));
    }
    for (int64_t j = 0; j < n && turned; j++) {
      ng_two sum = at(C, i * n + j);
      for (int64_t k = 0; k < n; k++) {
        sum = ng_two_add(sum, ng_two_minus(ng_two_times(at(X, i * n + k), at(Y, j * n + k))));
      }
      set(C, i * n + j, sum);
    }
  }
}

static void zero(int64_t n, square C) {
  memset(C.hi, 0, (size_t)(n * n) * sizeof(double));
  memset(C.lo, 0, (size_t)(n * n) * sizeof(double));
}

/* Rows of V, orthonormal in double, made so in two: V <- V + (I - V V') V / 2. */
static void straighten(int64_t n, square V, square E, square step) {
  zero(n, E);
  zero(n, step);
  for (int64_t i = 0; i < n; i++) {
    E.hi[i * n + i] = 1.0;
  }
  subtract_product(n, E, V, V, true);
  subtract_product(n, step, E, V, false); /* - E V */
  for (int64_t i = 0; i < n * n; i++) {
    const ng_two half = {-0.5 * step.hi[i], -0.5 * step.lo[i]};
    set(V, i, ng_two_add(at(V, i), half));
  }
}

/* x, y [n], `step` apart <- c x - s y, s x + c y. */
static void rotate(square T, int64_t x, int64_t y, int64_t step, int64_t n, ng_two c, ng_two s) {
  for (int64_t k = 0; k < n; k++, x += step, y += step) {
    const ng_two a = at(T, x), b = at(T, y);
    set(T, x, ng_two_add(ng_two_times(c, a), ng_two_minus(ng_two_times(s, b))));
    set(T, y, ng_two_add(ng_two_times(s, a), ng_two_times(c, b)));
  }
}

/* One rotation; false: there is nothing to turn. */
static bool turn(int64_t n, square T, square V, int64_t p, int64_t q) {
  const ng_two off = at(T, p * n + q), one = {1.0, 0.0};
  if (!(fabs(off.hi) > 1e-29 * sqrt(fabs(T.hi[p * n + p])) * sqrt(fabs(T.hi[q * n + q])))) {
    return false;
  }
  const ng_two gap = ng_two_add(at(T, q * n + q), ng_two_minus(at(T, p * n + p)));
  const ng_two f = ng_two_over(gap, (ng_two){2.0 * off.hi, 2.0 * off.lo});
  const ng_two size = f.hi < 0.0 ? ng_two_minus(f) : f;
  const ng_two r = ng_two_root(ng_two_add(one, ng_two_times(f, f)));
  ng_two t = ng_two_over(one, ng_two_add(size, r));
  if (f.hi < 0.0) t = ng_two_minus(t);
  const ng_two c = ng_two_over(one, ng_two_root(ng_two_add(one, ng_two_times(t, t))));
  const ng_two s = ng_two_times(t, c);
  rotate(T, p * n, q * n, 1, n, c, s);
  rotate(T, p, q, n, n, c, s);
  rotate(V, p * n, q * n, 1, n, c, s);
  set(T, p * n + q, ng_two_of(0.0));
  set(T, q * n + p, ng_two_of(0.0));
  return true;
}

static bool diagonalise(int64_t n, square T, square V) {
  for (int sweep = 0; sweep < SWEEPS; sweep++) {
    bool any = false;
    for (int64_t p = 0; p < n; p++) {
      for (int64_t q = p + 1; q < n; q++) {
        any |= turn(n, T, V, p, q);
      }
    }
    if (!any) return true;
  }
  return false;
}

/* q of the formula, and the products k; y [2 n]. */
static void take_others(const ng_window *w, const ng_window_part *p, const double *k,
                        const double *age, double *y) {
  const int64_t n = w->uses;
  for (int64_t i = 0; i < n; i++) {
    ng_two q = ng_two_of(k == NULL ? 0.0 : k[w->used[i]]);
    for (int64_t j = 0; j < n; j++) {
      const ng_two aged = ng_two_minus(ng_two_product(age[i], age[j]));
      const ng_two part = ng_two_times(ng_two_add(ng_two_of(1.0), aged), entry(w, p, i, j));
      q = ng_two_add(q, ng_two_times(part, ng_two_of(ng_window_along(w, p, k, j))));
    }
    y[i] = q.hi;
    y[n + i] = q.lo;
  }
}

/* (1 / (Sigma + eps) + floor / both) rows - others / both, both = eps Sigma (Sigma + eps). */
static ng_two along_vector(ng_two value, double eps, double floor, ng_two rows, ng_two others) {
  const ng_two sigma = ng_two_root(value), more = ng_two_add(sigma, ng_two_of(eps));
  const ng_two both = ng_two_times(ng_two_times(sigma, more), ng_two_of(eps));
  const ng_two by =
      ng_two_add(ng_two_over(ng_two_of(1.0), more), ng_two_over(ng_two_of(floor), both));
  return ng_two_add(ng_two_times(by, rows), ng_two_minus(ng_two_over(others, both)));
}

bool ng_window_fine_ggt(const ng_window *w, ng_window_part *p, const double *k, const double *age,
                        double eps, double floor, const double *vectors, double *room) {
  const int64_t n = w->uses, all = n * n;
  const square V = {room, room + all}, T = {room + 2 * all, room + 3 * all};
  const square A = {room + 4 * all, room + 5 * all};
  double *q = room + 6 * all, *y = q + 2 * n;
  memcpy(V.hi, vectors, (size_t)all * sizeof(double));
  memset(V.lo, 0, (size_t)all * sizeof(double));
  straighten(n, V, T, A);
  for (int64_t i = 0; i < n; i++) { /* - A */
    for (int64_t j = 0; j < n; j++) {
      const ng_two a = ng_two_times(ng_two_product(age[i], age[j]), entry(w, p, i, j));
      set(A, i * n + j, ng_two_minus(i == j ? ng_two_add(a, ng_two_of(floor)) : a));
    }
  }
  zero(n, T);
  subtract_product(n, T, V, A, false); /* V A */
  for (int64_t i = 0; i < all; i++) {
    set(A, i, ng_two_minus(at(T, i)));
  }
  zero(n, T);
  subtract_product(n, T, A, V, true);
  if (!diagonalise(n, T, V)) return false;
  take_others(w, p, k, age, q);
  for (int64_t i = 0; i < n; i++) {
    ng_two value = at(T, i * n + i), rows = {0.0, 0.0}, others = {0.0, 0.0};
    if (!(value.hi - value.hi == 0.0)) return false;
    if (value.hi < floor) value = ng_two_of(floor); /* K has no negative eigenvalue */
    for (int64_t j = 0; j < n; j++) {
      const ng_two v = at(V, i * n + j), other = {q[j], q[n + j]};
      rows = ng_two_add(rows, ng_two_times(v, ng_two_of(ng_window_along(w, p, k, j))));
      others = ng_two_add(others, ng_two_times(v, other));
    }
    const ng_two z = along_vector(value, eps, floor, rows, others);
    y[i] = z.hi;
    y[n + i] = z.lo;
  }
  for (int64_t j = 0; j < n; j++) {
    ng_two c = {0.0, 0.0};
    for (int64_t i = 0; i < n; i++) {
      c = ng_two_add(c, ng_two_times(at(V, i * n + j), (ng_two){y[i], y[n + i]}));
    }
    put(w, p, j, c);
  }
  return true;
}
