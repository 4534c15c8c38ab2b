/* place.c: read and write a row of a bound gradient or weight as f32 or double, in any layout.
 *
 * In: a place (kernel.h), a row, a range of columns. Out: the elements as f32, or written elements. A row of adjacent
 * elements is converted in one call. Whole channels of a channels-last weight are transposed. The elements of other rows
 * are converted in lines along the last axis. */
#include "kernel/kernel.h"

/* Return the address of an element in any layout. */
static char *element_address(const ng_place *v, int64_t row, int64_t col) {
  const int64_t at = row * v->row_stride + ng_axes_offset(v->axes, v->extent, v->stride, col);
  return (char *)v->data + at * ng_dtype_size(v->dtype);
}

/* Copy columns [col, col + n) to x, or from x if `write`. */
static void copy_lines(const ng_place *v, int64_t row, int64_t col, int64_t n, float *x,
                       bool write) {
  const int64_t length = v->extent[v->axes - 1], step = v->stride[v->axes - 1];
  for (int64_t i = 0, m; i < n; i += m) {
    char *memory = element_address(v, row, col + i);
    m = ng_min64(length - (col + i) % length, n - i);
    if (write) {
      ng_scatter(memory, v->dtype, step, x + i, m);
    } else {
      ng_gather(x + i, memory, v->dtype, step, m);
    }
  }
}

/* Copy channels [c0, c1) of a channels-last weight to x [channel][kernel offset], or from x if `write`. Elements of other
 * dtypes than f32 pass through a block of f32. */
static void transpose_channels(const ng_place *v, int64_t row, int64_t c0, int64_t c1, float *x,
                               bool write) {
  const int64_t offsets = v->extent[1], apart = v->stride[1];
  if (v->dtype == NG_F32) {
    float *memory = ng_place_at(v, row, c0);
    if (write) ng_transpose(x, offsets, c1 - c0, offsets, memory, apart);
    if (!write) ng_transpose(memory, apart, offsets, c1 - c0, x, offsets);
    return;
  }
  float block[NG_LINE];
  for (int64_t c = c0, m; c < c1; c += m, x += m * offsets) {
    m = ng_min64(NG_LINE / offsets, c1 - c);
    if (write) ng_transpose(x, offsets, m, offsets, block, m);
    for (int64_t k = 0; k < offsets; k++) {
      char *memory = (char *)ng_place_at(v, row, c) + k * apart * ng_dtype_size(v->dtype);
      if (write) ng_from_f32(memory, v->dtype, block + k * m, m);
      if (!write) ng_to_f32(block + k * m, memory, v->dtype, m);
    }
    if (!write) ng_transpose(block, m, offsets, m, x, offsets);
  }
}

/* Copy columns [col, col + n) to x, or from x if `write`. A channels-last row is [kernel offset][channel] in memory; if the
 * columns have at least four whole channels, the whole channels are transposed. */
static void copy_columns(const ng_place *v, int64_t row, int64_t col, int64_t n, float *x,
                         bool write) {
  const int64_t offsets = v->axes == 2 && v->stride[0] == 1 ? v->extent[1] : n;
  const int64_t c0 = (col + offsets - 1) / offsets, c1 = (col + n) / offsets;
  if (offsets > NG_LINE / 4 || c1 - c0 < 4) {
    copy_lines(v, row, col, n, x, write);
    return;
  }
  const int64_t first = c0 * offsets - col, end = c1 * offsets - col;
  copy_lines(v, row, col, first, x, write);
  transpose_channels(v, row, c0, c1, x + first, write);
  copy_lines(v, row, col + end, n - end, x + end, write);
}

/* ---- read, write -------------------------------------------------------------------------------*/

void ng_place_read(const ng_place *v, int64_t row, int64_t col, int64_t n, float *out) {
  if (v->has_dense_rows) {
    ng_to_f32(out, ng_place_at(v, row, col), v->dtype, n);
  } else {
    copy_columns(v, row, col, n, out, false);
  }
}

/* The cast removes const from x, which copy_columns does not change if `write` is true. */
void ng_place_write(const ng_place *v, int64_t row, int64_t col, int64_t n, const float *x) {
  if (v->has_dense_rows) {
    ng_from_f32(ng_place_at(v, row, col), v->dtype, x, n);
  } else {
    copy_columns(v, row, col, n, (float *)(uintptr_t)x, true);
  }
}

void ng_place_read_double(const ng_place *v, int64_t row, int64_t col, int64_t n, double *out) {
  float room[NG_LINE];
  if (v->dtype == NG_F64) {
    for (int64_t i = 0; i < n; i++) {
      out[i] = *(double *)(void *)element_address(v, row, col + i);
    }
    return;
  }
  for (int64_t c = 0, m; c < n; c += m) {
    m = ng_min64(NG_LINE, n - c);
    ng_place_read(v, row, col + c, m, room);
    ng_from_f32(out + c, NG_F64, room, m);
  }
}

void ng_place_write_double(const ng_place *v, int64_t row, int64_t col, int64_t n,
                           const double *x) {
  for (int64_t i = 0; i < n; i++) {
    *(double *)(void *)element_address(v, row, col + i) = x[i];
  }
}

bool ng_place_finite(const ng_place *v, int64_t row, int64_t col, int64_t n) {
  if (v->has_dense_rows) return ng_are_finite(ng_place_at(v, row, col), v->dtype, n);
  double room[NG_LINE];
  for (int64_t c = 0, m; c < n; c += m) {
    m = ng_min64(NG_LINE, n - c);
    ng_place_read_double(v, row, col + c, m, room);
    if (!ng_are_finite(room, NG_F64, m)) return false;
  }
  return true;
}
