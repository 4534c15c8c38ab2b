/* npy.h: read NumPy's .npy files (format versions 1.0, 2.0, 3.0): C-ordered little-endian arrays of f4, f8, i4, i8 and
 * u1 with at most NGIO_MAX_DIMS axes.  Other arrays, and files whose length differs from their header, are errors. */
#ifndef NGIO_NPY_H
#define NGIO_NPY_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ngio_npy {
  ngio_dtype dtype;
  int32_t ndim; /* 0 for a single number */
  int64_t shape[NGIO_MAX_DIMS];
  int64_t count, bytes;
  void *data; /* allocated by the reader; ngio_npy_free frees it */
} ngio_npy;

/* Read a file. After a failure, *out is all zero; this holds for ngio_npy_parse, too. */
ngio_status ngio_npy_read(const char *path, ngio_npy *out, char *message, size_t size);
/* Parse the n bytes of a file in memory and copy the data; messages have `label` instead of a path. */
ngio_status ngio_npy_parse(const void *bytes, size_t n, const char *label, ngio_npy *out,
                           char *message, size_t size);
void ngio_npy_free(ngio_npy *a);

#ifdef __cplusplus
}
#endif
#endif
