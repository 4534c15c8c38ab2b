/* kernels.cu: all kernels, in one module. */
#include "arrays.cu"
#include "eva.cu"
#include "gradient.cu"
#include "norm.cu"
#include "solve.cu"
#include "sums.cu"
#include "update.cu"
#include "vector.cu"
