/* window_oracle.h: M-FAC and GGT once more, plainly, in double, to check the library against.
 *
 * Gradients are kept in a list, the newest last; M-FAC is the solution of (lambda I + G'G / M) u = x by
 * elimination, d unknowns; GGT is U (1 / (S + eps) - 1 / eps) U' x + x / eps with U made, d by n, from the
 * eigenvectors of Jacobi's method.  Nothing is shared with the library.
 *
 * Tolerance.  The library sums in double and rounds the direction once, to f32; the rest is the condition of
 * what it solves in double, at most |G|^2 / (lambda M) = 1e10 here, times 1e-16. */
#ifndef TESTS_WINDOW_ORACLE_H
#define TESTS_WINDOW_ORACLE_H

#include "fixture.h"
#include "oracle.h"
#include "scene.h"

enum { WINDOW_PARTS = 16 };

typedef struct window_oracle {
  ng_options o;
  int64_t d, count; /* numbers; gradients in the window */
  int32_t parts;    /* runs of numbers with a window of their own */
  int64_t part[WINDOW_PARTS + 1];
  int64_t rows[WINDOW_PARTS]; /* of the parameters, in flat order, parts or not: rows of each ... */
  int64_t size[WINDOW_PARTS]; /* ... and elements */
  int32_t parameters;
  double *G; /* [m, d] */
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

/* Parameters of `size` numbers in so many rows each. */
window_oracle *window_oracle_open(const ng_options *o, int32_t parameters, const int64_t *size,
                                  const int64_t *rows);
void window_oracle_close(window_oracle **k);
/* The direction of gradient g at weights w (NULL: none); `enters`: it goes into the window. */
void window_oracle_step(window_oracle *k, const double *g, const double *w, double lr, bool enters,
                        double *u);

/* For tests/families.c: what the library should say of a scene. */
void window_predict(const scene *s, const ng_options *o, scene_result *out);
enum { WINDOW_GROWTH = 8 };

/* What the library's window keeps under that name; the test fails if there is nothing. */
float *window_field(const fixture *f, const char *name);

#endif
