/* window_twofold.h: numbers of two doubles, hi + lo with |lo| at most half a unit of hi: about 106 bits (Dekker 1971, Knuth
 * 1969), for where a double would lose what a window's rows have in common.  No fused multiplication is asked for, and
 * -ffp-contract=off leaves every rounding where it stands. */
#ifndef NG_WINDOW_TWOFOLD_H
#define NG_WINDOW_TWOFOLD_H

#include "family/window.h"

#include <math.h>
#include <stdint.h>

typedef struct ng_two {
  double hi, lo;
} ng_two;

/* a + b of two doubles, all of it. */
static inline ng_two ng_two_sum(double a, double b) {
  const double s = a + b, z = s - a;
  return (ng_two){s, (a - (s - z)) + (b - z)};
}

/* The same where |a| >= |b|. */
static inline ng_two ng_two_tidy(double a, double b) {
  const double s = a + b;
  return (ng_two){s, b - (s - a)};
}

/* a b of two doubles, all of it. */
static inline ng_two ng_two_product(double a, double b) {
  const double both = 134217729.0; /* 2^27 + 1 */
  const double p = a * b, s = both * a, t = both * b;
  const double a1 = s - (s - a), a2 = a - a1, b1 = t - (t - b), b2 = b - b1;
  return (ng_two){p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2};
}

static inline ng_two ng_two_of(double a) { return (ng_two){a, 0.0}; }
static inline ng_two ng_two_minus(ng_two a) { return (ng_two){-a.hi, -a.lo}; }

static inline ng_two ng_two_add(ng_two a, ng_two b) {
  const ng_two s = ng_two_sum(a.hi, b.hi), t = ng_two_sum(a.lo, b.lo);
  const ng_two r = ng_two_tidy(s.hi, s.lo + t.hi);
  return ng_two_tidy(r.hi, r.lo + t.lo);
}

static inline ng_two ng_two_times(ng_two a, ng_two b) {
  const ng_two p = ng_two_product(a.hi, b.hi);
  return ng_two_tidy(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

static inline ng_two ng_two_over(ng_two a, ng_two b) {
  const double q = a.hi / b.hi;
  const ng_two r = ng_two_add(a, ng_two_minus(ng_two_times(b, ng_two_of(q))));
  const double q2 = r.hi / b.hi;
  const ng_two r2 = ng_two_add(r, ng_two_minus(ng_two_times(b, ng_two_of(q2))));
  return ng_two_add(ng_two_tidy(q, q2), ng_two_of(r2.hi / b.hi));
}

static inline ng_two ng_two_root(ng_two a) { /* a >= 0 */
  const double y = sqrt(a.hi);
  if (!(y > 0.0)) return ng_two_of(0.0);
  const ng_two rest = ng_two_add(a, ng_two_minus(ng_two_product(y, y)));
  return ng_two_tidy(y, rest.hi / (2.0 * y));
}

/* ---- window_twofold.c: loops over rows -------------------------------------------------------*/

/* <x, y> of n floats. */
ng_two ng_window_dot_twofold(const float *x, const float *y, int64_t n);
/* hi + lo [n] += c x. */
void ng_window_add_twofold(double *hi, double *lo, const float *x, int64_t n, ng_two c);
/* The same into places of a block of a sparse row. */
void ng_window_scatter_twofold(double *hi, double *lo, const uint16_t *index, const float *x,
                               int64_t n, ng_two c);
/* y -= c x of n of them. */
void ng_window_subtract_twofold(double *y, double *y_lo, const double *x, const double *x_lo,
                                int64_t n, ng_two c);

/* What each row in use is multiplied with, and where to: ng_window_store.products_twofold. */
typedef struct ng_window_products {
  const ng_window *w;
  int32_t part;
  int64_t place;
  double *k, *rest;
} ng_window_products;

#endif
