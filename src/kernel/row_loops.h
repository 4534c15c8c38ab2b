/* row_loops.h: products and sums of rows of a window (row_loops.c). */
#ifndef NG_ROW_LOOPS_H
#define NG_ROW_LOOPS_H

#include "kernel/kernel.h"

double ng_row_dot(const float *x, const float *y, int64_t n); /* return <x, y> in double */
double ng_row_dot_double(const double *x, const double *y,
                         /* return <x, y>, added in the order of the elements */
                         int64_t n);
void ng_row_add(double *acc, const float *x, int64_t n, double c); /* acc += c x */
/* Return the address of element `at` of the row at `place`. */
static inline const void *ng_row_at(const ng_rows *G, int64_t place, int64_t at) {
  return (const char *)G->value + (place * G->stride + at) * ng_dtype_size(G->dtype);
}
/* Task i for an ng_rows G: G->partial_sums[i][0 .. used) <- the products of the rows in use with x over chunk i. */
void ng_multiply_whole_rows(void *G, int32_t i);
/* acc += the sum of c row over all rows in use, for elements [at, at + n). */
void ng_add_whole_rows(const ng_rows *G, const double *c, int64_t at, int64_t n, double *acc);

#endif
