/* quartiles.c: see quartiles.h. */
#include "quartiles.h"

#include "draw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

float uneven(int64_t at, int64_t i) {
  rng r = {(uint64_t)at * UINT64_C(0x9e3779b97f4a7c15) + test_seed()};
  const float x = (float)rng_value(&r);
  return i % 97 == 5 ? 0.0f : x * powf(10.0f, (float)(i % 9) - 4.0f);
}

void near(const char *name, const char *what, double got, double expected, double allowed) {
  if (!(fabs(got - expected) <= allowed))
    fail_msg("%s: %s is %.17g instead of %.17g", name, what, got, expected);
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double midpoint(const double *sorted, int64_t n, double q) {
  const double at = (double)(n - 1) * q;
  return (sorted[(int64_t)floor(at)] + sorted[(int64_t)ceil(at)]) / 2.0;
}

static void sort(const char *name, const ng_report *r, double *x, int64_t n, double bits,
                 double rest) {
  static const char *const what[] = {"25 %", "50 %", "75 %"};
  const double got[] = {r->scaling_25, r->scaling_50, r->scaling_75};
  qsort(x, (size_t)n, sizeof *x, by_size);
  assert_int_equal(r->scaled, n);
  for (int k = 0; k < 3; k++) {
    const double q = midpoint(x, n, 0.25 * (k + 1));
    near(name, what[k], got[k], q, (0x1p-18 + bits) * q + 0x1p-114 + rest);
  }
}

void quartiles_must_be(const char *name, const ng_report *r, double *x, int64_t n, double bits,
                       double rest) {
  double sum = 0.0;
  sort(name, r, x, n, bits, rest);
  for (int64_t i = 0; i < n; i++)
    sum += x[i];
  near(name, "min", r->scaling_min, x[0], bits * x[0] + rest);
  near(name, "max", r->scaling_max, x[n - 1], bits * x[n - 1] + rest);
  near(name, "mean", r->scaling_mean, sum / (double)n, (bits + 1e-12) * sum / (double)n + rest);
}

void quartiles_and_largest(const char *name, const ng_report *r, double *x, int64_t n, double bits,
                           double most) {
  sort(name, r, x, n, bits, 0.0);
  near(name, "max", r->scaling_max, x[n - 1], most * x[n - 1]);
}
