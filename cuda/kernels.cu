/* kernels.cu: all kernels, in one module. */
#include "eva.cu"
#include "gradient.cu"
#include "norm.cu"
#include "sums.cu"
#include "update.cu"
