/* words.h: macros for kernels.
 *
 * A kernel is a function in a file *.cu, written in C with these macros. nvcc compiles the file for a GPU; in tests the
 * host compiler compiles the file for a stand-in, whose macros are in tests/standin.h. */
#ifndef NG_WORDS_H
#define NG_WORDS_H

#if defined(__CUDACC__)
#define NG_GLOBAL extern "C" __global__ void
#define NG_INLINE static __device__ __forceinline__
#define NG_SHARED __shared__
/* An argument that is a struct; __grid_constant__: threads read the argument without a copy. */
#define NG_ARGUMENT(T) const __grid_constant__ T
#define NG_BARRIER() __syncthreads()
#define NG_BLOCK ((int64_t)blockIdx.x)
#define NG_THREAD ((int32_t)threadIdx.x)
#define NG_THREADS ((int32_t)blockDim.x)
#define NG_UNROLL _Pragma("unroll")
/* Atomic add, maximum and minimum of 64-bit integers. */
#define NG_ADD(at, x) atomicAdd((unsigned long long *)(at), (unsigned long long)(x))
#define NG_LARGEST(at, x) atomicMax((unsigned long long *)(at), (unsigned long long)(x))
#define NG_SMALLEST(at, x) atomicMin((unsigned long long *)(at), (unsigned long long)(x))
#define NG_ADD_DOUBLE(at, x) atomicAdd(at, x)
/* Return x of the thread `by` lanes higher in the warp. */
#define NG_SHUFFLE_DOWN(x, by) __shfl_down_sync(0xffffffffu, x, by)
#define NG_FLOAT_OF_BITS(b) __uint_as_float(b)
#define NG_BITS_OF_FLOAT(x) __float_as_uint(x)
#define NG_DOUBLE_OF_BITS(b) __longlong_as_double((long long)(b))
#define NG_BITS_OF_DOUBLE(x) ((uint64_t)__double_as_longlong(x))
#else
#include "standin.h"
#endif

#endif
