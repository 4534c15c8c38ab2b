/* fake_cuda.h: what fake_cuda.c, a library, reads and counts in the program that opens it. */
#ifndef TESTS_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_H

#include "blas.h"

extern dv_blas *fake_cuda_blas; /* of the stand-in */
extern void *fake_cuda_stream;  /* which every handle must have */
extern int fake_cuda_calls;

#endif
