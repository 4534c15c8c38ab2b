/* ref_scan.c: the scan of scan.c, element by element. */
#include <math.h>

#include "kernel/entries.h"

/* Return element `index` of an array, counted in row-major order, as f32. */
static float element(const ng_strided *a, int64_t index) {
  int64_t at = 0;
  float x;
  for (int32_t i = a->ndim - 1; i >= 0; i--) {
    at += index % a->shape[i] * a->stride[i];
    index /= a->shape[i];
  }
  ng_to_f32(&x, (const char *)a->data + at * ng_dtype_size(a->dtype), a->dtype, 1);
  return x;
}

void ng_ref_scan(ng_queue *q, const ng_strided *a, int64_t n, double *out) {
  (void)q;
  for (int64_t i = 0; i < n; i++) {
    int64_t count = 1;
    for (int32_t k = 0; k < a[i].ndim; k++) {
      count *= a[i].shape[k];
    }
    out[i] = 0.0;
    for (int64_t k = 0; k < count; k++) {
      const double x = fabs((double)element(&a[i], k));
      out[i] = x <= out[i] ? out[i] : x - x == 0.0 ? x : (double)INFINITY; /* NaN gives Inf */
    }
  }
}
