/* blas.h: the BLAS and LAPACK routines that networks and `bench` call, as Fortran symbols. Matrices are column-major;
 * the last arguments are the lengths of the text arguments, as gfortran expects. */
#ifndef CLI_BLAS_H
#define CLI_BLAS_H

#include <stddef.h>

void sgemm_(const char *transa, const char *transb, const int *m, const int *n, const int *k,
            const float *alpha, const float *a, const int *lda, const float *b, const int *ldb,
            const float *beta, float *c, const int *ldc, size_t la, size_t lb);
void spotrf_(const char *uplo, const int *n, float *a, const int *lda, int *info, size_t lu);
void spotri_(const char *uplo, const int *n, float *a, const int *lda, int *info, size_t lu);

#endif
