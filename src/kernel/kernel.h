/* kernel.h: every loop over the elements of arrays, behind one table.
 *
 * In:   arrays of descriptors, which are plain structs of pointers, sizes, strides and coefficients; a queue.
 * Out:  arrays and numbers in memory that the caller names.
 * May call: linalg, core.
 *
 * Every entry of ng_kernel_ops takes the queue first and a whole array of descriptors, so that a device can run one
 * launch over all blocks of a model. The rules of the queue (linalg/linalg.h) apply: an entry may return before its
 * work is done, and the host reads results after ng_queue_wait.
 *
 * Two implementations: `ref` has plain loops in double and is the oracle; `cpu` is vectorised and threaded. Only this
 * room and linalg/ have vectorised functions (NG_CLONES) and parallel loops. The functions after the table are for
 * implementations on the host and for state files. */
#ifndef NG_KERNEL_H
#define NG_KERNEL_H

#include "core/core.h"
#include "linalg/linalg.h"

enum { NG_LINE = 512 }; /* elements of a row that are converted at once, on the stack */

/* ---- descriptors -----------------------------------------------------------------------------*/

/* The memory layout of a parameter [rows, cols].  Row r begins at data + r by_row; by_row and step count elements.
 * The elements of a row are adjacent (`straight`), or lie along `axes` axes, the outermost first, as in a channels-last
 * or transposed weight. */
typedef struct ng_place {
  void *data; /* NULL: not bound */
  ng_dtype dtype;
  bool straight;
  bool once;    /* the binding ends with the step (NG_ONE_STEP) */
  bool expired; /* the binding has ended with its step, so `data` is NULL */
  int32_t axes;
  int64_t by_row;
  int64_t extent[NG_DIMS], step[NG_DIMS];
} ng_place;

/* ---- the table -------------------------------------------------------------------------------*/

typedef struct ng_kernel_ops {
  const char *name;
  /* scan.c: out[i] <- the largest |element| of array a[i] (f32, bf16 or f16); Inf if an element is not finite. */
  void (*scan)(ng_queue *q, const ng_strided *a, int64_t n, double *out);
} ng_kernel_ops;

/* Return the table for one call: ng_kernels(q)->scan(q, ...), and count the call as pending, as ng_on does. */
static inline const ng_kernel_ops *ng_kernels(ng_queue *q) {
  q->pending++;
  return q->kernels;
}

/* Return the implementation called `name`, or NULL. name NULL: the fastest one. */
const ng_kernel_ops *ng_kernels_find(const char *name);

/* ---- rows of arrays in any layout --------------------------------------------------------------*/

/* place.c: read n elements of row `row` from column `col` on as f32; write them; return whether all are finite. */
void ng_place_read(const ng_place *v, int64_t row, int64_t col, int64_t n, float *out);
void ng_place_write(const ng_place *v, int64_t row, int64_t col, int64_t n, const float *x);
bool ng_place_finite(const ng_place *v, int64_t row, int64_t col, int64_t n);
/* Return the number of columns to read or write at once: at most NG_LINE, and whole channels of a channels-last row. */
static inline int64_t ng_place_columns(const ng_place *v) {
  const int64_t inner = v->straight || v->axes != 2 ? 1 : v->extent[1];
  return inner > NG_LINE ? NG_LINE : NG_LINE / inner * inner;
}
/* Return the address of an element of a straight place. */
static inline void *ng_place_at(const ng_place *v, int64_t row, int64_t col) {
  return (char *)v->data + (row * v->by_row + col) * ng_dtype_size(v->dtype);
}

/* transpose.c: dst[j * ldd + i] = src[i * lds + j] for i < m, j < n; lds, ldd: elements between rows of src, dst. */
void ng_transpose(const float *src, int64_t lds, int64_t m, int64_t n, float *dst, int64_t ldd);

/* ng_gather: convert n elements of dtype `t` (f32, bf16, f16), `step` elements apart, to a dense f32 array.
 * ng_scatter: convert a dense f32 array to such elements. */
void ng_gather(float *out, const void *from, ng_dtype t, int64_t step, int64_t n);
void ng_scatter(void *to, ng_dtype t, int64_t step, const float *x, int64_t n);

#endif
