/* dense.h: dense matrices in double, by rows, for predictions of tests. */
#ifndef TESTS_DENSE_H
#define TESTS_DENSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *must_calloc(size_t bytes); /* zeros; abort without memory; free() */
double *zeros(int64_t n);        /* n numbers by must_calloc */

/* C [m, n] = op(A) op(B), where op transposes if ta, tb; k terms in each sum.  C may be A or B. */
void dense_product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double *A,
                   const double *B, double *C);

/* Eigenvalues d of a symmetric M, in any order, and eigenvectors in the columns of Q, by Jacobi rotations. */
void dense_eigen(int64_t n, const double *M, double *d, double *Q);

/* Replace R [n, m] by the solution X of M X = R: elimination with row exchange.  Abort if M is singular. */
void dense_solve(int64_t n, const double *M, int64_t m, double *R);

#endif
