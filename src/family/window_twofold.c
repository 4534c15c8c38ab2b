/* window_twofold.c: the loops of window_rows.c once more, into numbers of two doubles.
 *
 * A product of two f32 is exact in a double, and so is that of an f32 and a number of 29 bits, so only sums need care:
 * three to five times the operations of a sum in double.  The order of additions is the loop's own. */
#include "family/window.h"
#include "family/window_twofold.h"

#include "simd.h"

enum { LANES = 16 };

NG_CLONES static void dot(const float *restrict x, const float *restrict y, int64_t n,
                          double *restrict sum, double *restrict rest) {
  double s[LANES] = {0.0}, e[LANES] = {0.0};
  const int64_t whole = n / LANES * LANES;
  for (int64_t c = 0; c < whole; c += LANES) {
    for (int i = 0; i < LANES; i++) {
      const double p = (double)x[c + i] * (double)y[c + i], t = s[i] + p, z = t - s[i];
      e[i] += (s[i] - (t - z)) + (p - z);
      s[i] = t;
    }
  }
  for (int64_t c = whole; c < n; c++) {
    const double p = (double)x[c] * (double)y[c], t = s[c - whole] + p, z = t - s[c - whole];
    e[c - whole] += (s[c - whole] - (t - z)) + (p - z);
    s[c - whole] = t;
  }
  for (int i = 0; i < LANES; i++) {
    sum[i] = s[i];
    rest[i] = e[i];
  }
}

ng_two ng_window_dot_twofold(const float *x, const float *y, int64_t n) {
  double sum[LANES], rest[LANES];
  ng_two all = {0.0, 0.0};
  dot(x, y, n, sum, rest);
  for (int i = 0; i < LANES; i++) {
    all = ng_two_add(all, ng_two_sum(sum[i], rest[i]));
  }
  return all;
}

/* c is 29 bits and 24 and a rest: times one of 24 the first two are exact. */
typedef struct factor {
  double upper, middle, lower;
} factor;

static factor factor_of(ng_two c) {
  uint64_t bits;
  factor f = {.lower = c.lo};
  memcpy(&bits, &c.hi, sizeof bits);
  bits &= ~UINT64_C(0xffffff);
  memcpy(&f.upper, &bits, sizeof bits);
  f.middle = c.hi - f.upper;
  return f;
}

NG_CLONES static void add(double *restrict hi, double *restrict lo, const float *restrict x,
                          int64_t n, factor c) {
  for (int64_t i = 0; i < n; i++) {
    const double v = (double)x[i], h = hi[i];
    const double p = c.upper * v, s = h + p, z = s - h, e = (h - (s - z)) + (p - z);
    const double q = c.middle * v, t = s + q, y = t - s, f = (s - (t - y)) + (q - y);
    lo[i] += e + (f + c.lower * v);
    hi[i] = t;
  }
}

void ng_window_add_twofold(double *hi, double *lo, const float *x, int64_t n, ng_two c) {
  add(hi, lo, x, n, factor_of(c));
}

void ng_window_scatter_twofold(double *hi, double *lo, const uint16_t *index, const float *x,
                               int64_t n, ng_two c) {
  const factor f = factor_of(c);
  for (int64_t i = 0; i < n; i++) {
    const int64_t to = index[i] % NG_WINDOW_BLOCK;
    const double v = (double)x[i];
    const ng_two s = ng_two_sum(hi[to], f.upper * v), t = ng_two_sum(s.hi, f.middle * v);
    hi[to] = t.hi;
    lo[to] += s.lo + (t.lo + f.lower * v);
  }
}

NG_CLONES static void subtract(double *restrict y, double *restrict y_lo, const double *restrict x,
                               const double *restrict x_lo, int64_t n, double c, double c1,
                               double c2, double c_lo) {
  for (int64_t i = 0; i < n; i++) {
    const double p = c * x[i], t = 134217729.0 * x[i], x1 = t - (t - x[i]), x2 = x[i] - x1;
    const double e = (((c1 * x1 - p) + c1 * x2 + c2 * x1) + c2 * x2) + (c * x_lo[i] + c_lo * x[i]);
    const double s = y[i] - p, z = s - y[i];
    const double l = y_lo[i] + (((y[i] - (s - z)) - (p + z)) - e);
    y[i] = s + l;
    y_lo[i] = l - (y[i] - s);
  }
}

void ng_window_subtract_twofold(double *y, double *y_lo, const double *x, const double *x_lo,
                                int64_t n, ng_two c) {
  const double t = 134217729.0 * c.hi, c1 = t - (t - c.hi);
  subtract(y, y_lo, x, x_lo, n, c.hi, c1, c.hi - c1, c.lo);
}
