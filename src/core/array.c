/* array.c: make an ng_array; check an ng_array of the caller and copy it to an ng_strided; merge and sort axes.
 *
 * Strides may be zero or negative. */
#include "core/core.h"

#include <math.h>

/* ---- make and check --------------------------------------------------------------------------*/

static ng_array make_array(void *data, ng_dtype dtype, int32_t ndim, const int64_t shape[4],
                           const int64_t stride[4]) {
  ng_array a;
  memset(&a, 0, sizeof a);
  a.data = data;
  a.dtype = dtype;
  a.mem = NG_HOST;
  a.ndim = ndim;
  memcpy(a.room, shape, 4 * sizeof *shape);
  memcpy(a.room + 4, stride, 4 * sizeof *stride);
  return a;
}

ng_array ng_array_vector(void *data, int64_t n, ng_dtype t) {
  return make_array(data, t, 1, (int64_t[4]){n}, (int64_t[4]){1});
}

ng_array ng_array_matrix(void *data, int64_t rows, int64_t cols, ng_dtype t) {
  return ng_array_rows(data, rows, cols, cols, t);
}

ng_array ng_array_rows(void *data, int64_t rows, int64_t cols, int64_t stride, ng_dtype t) {
  return make_array(data, t, 2, (int64_t[4]){rows, cols}, (int64_t[4]){stride, 1});
}

/* Multiply as unsigned numbers, because the caller's sizes may overflow, which is undefined for signed numbers.  The
 * product is then wrong, but ng_array_read refuses the sizes. */
static int64_t wrap_times(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

ng_array ng_array_nchw(void *data, int64_t n, int64_t c, int64_t h, int64_t w, ng_dtype t) {
  return make_array(data, t, 4, (int64_t[4]){n, c, h, w},
                    (int64_t[4]){wrap_times(c, wrap_times(h, w)), wrap_times(h, w), w, 1});
}

ng_array ng_array_nhwc(void *data, int64_t n, int64_t c, int64_t h, int64_t w, ng_dtype t) {
  return make_array(data, t, 4, (int64_t[4]){n, c, h, w},
                    (int64_t[4]){wrap_times(c, wrap_times(h, w)), 1, wrap_times(c, w), c});
}

/* The largest number of bytes of all elements, and the largest distance of an element from `data` in bytes. */
static const int64_t SIZE_MOST = INT64_C(1) << 60;

/* Return whether an array with elements of `size` bytes stays within SIZE_MOST.  The builtins read the overflow flag of
 * the processor; divisions would take as long as the observation of a small array. */
static bool sizes_fit(const ng_strided *s, int64_t size) {
  int64_t count = size, reach = size;
  for (int32_t i = 0; i < s->ndim; i++) {
    int64_t far;
    if (__builtin_mul_overflow(count, s->shape[i], &count)) return false;
    if (__builtin_mul_overflow(s->shape[i] - 1, s->stride[i], &far) ||
        __builtin_mul_overflow(far, size, &far)) {
      return false;
    }
    if (__builtin_add_overflow(reach, far < 0 ? -(far + 1) : far, &reach)) return false;
    if (count > SIZE_MOST || reach > SIZE_MOST) return false;
  }
  return true;
}

const char *ng_array_read(const ng_array *a, ng_strided *out) {
  const bool own = a->shape == NULL;
  const int64_t size = ng_dtype_size(a->dtype);
  if (size == 0) return "its dtype is not an ng_dtype";
  if (a->ndim < 0 || a->ndim > NG_DIMS) return "its ndim is not in 0 to 8";
  if (own && a->ndim > 4) return "its shape is NULL and its ndim above 4";
  if ((uintptr_t)a->data % (uintptr_t)size != 0) return "its data is not aligned for its dtype";
  out->data = a->data; /* shape[i] and stride[i] for i >= ndim are not set, to save time */
  out->dtype = a->dtype;
  out->ndim = a->ndim;
  int64_t dense = 1;
  for (int32_t i = a->ndim - 1; i >= 0; i--) {
    out->shape[i] = own ? a->room[i] : a->shape[i];
    out->stride[i] = own ? a->room[4 + i] : a->stride == NULL ? dense : a->stride[i];
    dense = wrap_times(dense, out->shape[i]);
    if (out->shape[i] < 1) return "an extent of its shape is below 1";
  }
  return sizes_fit(out, size) ? NULL : "its extents and strides exceed 2^60 bytes";
}

ng_message_text ng_strided_shape(const ng_strided *s) {
  ng_message_text t = {"["};
  for (int32_t i = 0; i < s->ndim; i++) {
    if (i > 0) ng_name_append(t.text, sizeof t.text, ", ");
    ng_name_append_number(t.text, sizeof t.text, s->shape[i]);
  }
  ng_name_append(t.text, sizeof t.text, "]");
  return t;
}

/* ---- axes ------------------------------------------------------------------------------------*/

int32_t ng_axes_join(int32_t n, int64_t *extent, int64_t *step) {
  int32_t kept = 0;
  for (int32_t i = 0; i < n; i++) {
    if (extent[i] == 1) continue;
    if (kept > 0 && step[kept - 1] == step[i] * extent[i]) { /* contiguous with the previous axis */
      extent[kept - 1] *= extent[i];
      step[kept - 1] = step[i];
      continue;
    }
    extent[kept] = extent[i];
    step[kept++] = step[i];
  }
  return kept;
}

void ng_axes_sort(ng_strided *s) {
  for (int32_t i = 1; i < s->ndim; i++) {
    for (int32_t k = i; k > 0 && s->stride[k - 1] < s->stride[k]; k--) {
      const int64_t extent = s->shape[k], step = s->stride[k];
      s->shape[k] = s->shape[k - 1];
      s->stride[k] = s->stride[k - 1];
      s->shape[k - 1] = extent;
      s->stride[k - 1] = step;
    }
  }
}

/* Sufficient condition: sorted by stride, each stride exceeds the largest offset that the axes with smaller strides
 * reach together.  Slices and permutations of dense arrays meet it. */
bool ng_strided_distinct(const ng_strided *a) {
  ng_strided s = *a;
  int64_t below = 0;
  for (int32_t i = 0; i < s.ndim; i++) {
    if (s.stride[i] < 0) s.stride[i] = -s.stride[i];
  }
  ng_axes_sort(&s);
  for (int32_t i = s.ndim - 1; i >= 0; i--) {
    if (s.shape[i] == 1) continue;
    if (s.stride[i] <= below) return false;
    below += s.stride[i] * (s.shape[i] - 1);
  }
  return true;
}
