/* npy.h: read NumPy's .npy files (format versions 1.0, 2.0, 3.0): C-ordered little-endian arrays
 * of f4, f8, i4, i8 and u1 with at most NGIO_MAX_DIMS axes. Other arrays, and files whose length
 * differs from their header, are errors. */
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

/* *out is all zero unless the result is NGIO_OK. */
ngio_status ngio_npy_read(const char *path, ngio_npy *out, char *message, size_t size);
/* The same from memory, which is copied; `label` stands for the path in messages. */
ngio_status ngio_npy_parse(const void *bytes, size_t n, const char *label, ngio_npy *out,
                           char *message, size_t size);
void ngio_npy_free(ngio_npy *a);

#ifdef __cplusplus
}
#endif
#endif
