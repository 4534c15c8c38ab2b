/* window_oracle.h: plain implementations of M-FAC and GGT, with which tests compare the library.
 *
 * Gradients are kept in a list, the newest last.
 *   M-FAC  F_i^-1 = F_{i-1}^-1 - V_i V_i' / q_i,  V_i = F_{i-1}^-1 g_i,  q_i = M + g_i'V_i  (the static algorithm)
 *   GGT    U (1 / (S + eps) - 1 / eps) U' x + x / eps,  U, d by n, from the eigenvectors of Jacobi's method
 *
 * Tolerance.  Both are evaluated with 113 bits if the compiler has them, else in long double.  The library sums in
 * double and rounds the direction once, to f32.  Its solve in double adds the condition, at most |G|^2 / (lambda M) =
 * 1e10 unless a test states another bound, times 1e-16. */
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

wide wide_abs(wide x); /* |x| */
void window_solve_mfac(const window_rows *r, wide lambda, wide M, wide *x);
void window_solve_ggt(const window_rows *r, wide eps, wide forget, wide *x);

typedef struct window_oracle {
  ng_options o;
  int64_t d, count; /* elements of a gradient; gradients in the window */
  int32_t parts;    /* number of parts, which are ranges of elements with their own window */
  int64_t begin[WINDOW_PARTS + 1];
  int64_t rows[WINDOW_PARTS]; /* size of each parameter */
  int64_t size[WINDOW_PARTS]; /* elements of each parameter */
  int32_t parameters;
  wide *G;                 /* [m, d] */
  double lr;               /* learning rate of the newest row */
  double *v;               /* [d] momentum */
  double *e;               /* [d] error feedback */
  double *s;               /* [d] second moments */
  int32_t updates;         /* number of updates of the second moments */
  double *q[WINDOW_PARTS]; /* [cols, rank] low rank: the first Q of the next step */
  bool *mask;              /* [d] NULL: all */
  const bool *skip; /* [d] elements that the next step excludes: zeros in its row; NULL: none */
} window_oracle;

/* For a model after ng_ready.  The mask excludes weights that are 0; the first Q is copied from the library. */
window_oracle *window_oracle_open(const fixture *f, const ng_options *o, const fixture_entry *e,
                                  int32_t n, const float *w);
void window_oracle_close(window_oracle **k);
/* Return the largest difference over the largest number of `want`. */
double window_gap(const float *got, const double *want, int64_t n);
/* The direction of gradient g at weights w, or NULL; `enters`: g becomes a row of the window. */
void window_oracle_step(window_oracle *k, const double *g, const double *w, double lr, bool enters,
                        double *u);

/* Predict the results of a test case, for families.c. */
void window_predict(const test_case *s, const ng_options *o, case_result *out);
enum { WINDOW_GROWTH = 8 };

/* Return the field of the library's window with this name; the test fails if there is none. */
float *window_field(const fixture *f, const char *name);

#endif
