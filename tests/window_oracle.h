/* window_oracle.h: M-FAC and GGT once more, plainly, in double, to check the library against.
 *
 * Gradients are kept in a list, the newest last.
 *   M-FAC  F_i^-1 = F_{i-1}^-1 - V_i V_i' / q_i,  V_i = F_{i-1}^-1 g_i,  q_i = M + g_i'V_i  (the static algorithm)
 *   GGT    U (1 / (S + eps) - 1 / eps) U' x + x / eps,  U, d by n, from the eigenvectors of Jacobi's method
 * Nothing is shared with the library.
 *
 * Tolerance.  Both are evaluated in 113 bits where the compiler has them, else in long double.  The library sums in
 * double and rounds the direction once, to f32; the rest is the condition of what it solves in double, at most
 * |G|^2 / (lambda M) = 1e10 where no test says otherwise, times 1e-16. */
#ifndef TESTS_WINDOW_ORACLE_H
#define TESTS_WINDOW_ORACLE_H

#include "fixture.h"
#include "oracle.h"
#include "test_case.h"

#include <float.h>

#if LDBL_MANT_DIG >= 113
typedef long double wide;
#define WIDE_EXACT 1
#elif defined(__SIZEOF_FLOAT128__)
__extension__ typedef __float128 wide;
#define WIDE_EXACT 1
#else
typedef long double wide;
#define WIDE_EXACT 0
#endif

enum { WINDOW_PARTS = 16 };

/* Rows of n numbers, `stride` apart, the oldest first. */
typedef struct window_rows {
  const wide *G;
  int64_t count, n, stride;
} window_rows;

wide wide_size(wide x); /* |x| */
void window_mfac(const window_rows *r, wide lambda, wide M, wide *x);
void window_ggt(const window_rows *r, wide eps, wide forget, wide *x);

typedef struct window_oracle {
  ng_options o;
  int64_t d, count; /* numbers; gradients in the window */
  int32_t parts;    /* runs of numbers with a window of their own */
  int64_t part[WINDOW_PARTS + 1];
  int64_t rows[WINDOW_PARTS]; /* of the parameters, in flat order, parts or not: rows of each ... */
  int64_t size[WINDOW_PARTS]; /* ... and elements */
  int32_t parameters;
  wide *G;   /* [m, d] */
  double lr; /* with which the newest one entered */
  double *v; /* [d] momentum */
  double *e; /* [d] error feedback */
  double *s; /* [d] second moments; how many updates they have seen */
  int32_t updates;
  double *q[WINDOW_PARTS]; /* [cols, rank] low rank: what the next step begins with */
  bool *mask;              /* [d] NULL: all */
  /* [d] of the coming step: no part in it.  Zeros in its row; what is kept of it stays.  NULL: none */
  const bool *out;
} window_oracle;

/* Beside a model that is ready: the mask where its weights are 0, the first Q of low rank its own. */
window_oracle *window_oracle_open(const fixture *f, const ng_options *o, const fixture_entry *e,
                                  int32_t n, const float *w);
void window_oracle_close(window_oracle **k);
/* The largest difference, relative to the largest number of `want`. */
double window_gap(const float *got, const double *want, int64_t n);
/* The direction of gradient g at weights w (NULL: none); `enters`: it goes into the window. */
void window_oracle_step(window_oracle *k, const double *g, const double *w, double lr, bool enters,
                        double *u);

/* For tests/families.c: what the library should say of a test case. */
void window_predict(const test_case *s, const ng_options *o, case_result *out);
enum { WINDOW_GROWTH = 8 };

/* What the library's window keeps under that name; the test fails if there is nothing. */
float *window_field(const fixture *f, const char *name);

#endif
