/* place.c: read and write a row of a bound gradient or weight as f32 or double, in any layout.
 *
 * In: a place (kernel.h), a row, a range of columns. Out: the elements as f32, or written elements. A row of adjacent
 * elements is converted in one call. For other rows, the inner loop runs along the axis with the smallest stride: in a
 * channels-last weight, the axis of channels. */
#include "kernel/kernel.h"

/* ---- along an axis ---------------------------------------------------------------------------*/

/* Among the axes of a row, `axis` has the smallest stride. Column (o extent + k) inner + i has index o along the axes before
 * `axis`, k along `axis`, and i along the axes after it. The columns with the same o and i form a line. */
typedef struct lines {
  const ng_place *v;
  int32_t axis;
  int64_t extent, inner; /* extent of the axis; product of the extents of the axes after it */
} lines;

static lines choose_lines(const ng_place *v) {
  lines l = {.v = v};
  for (int32_t i = 1; i < v->axes; i++) {
    if (v->stride[i] < v->stride[l.axis]) l.axis = i;
  }
  l.extent = v->extent[l.axis];
  l.inner = 1;
  for (int32_t i = l.axis + 1; i < v->axes; i++) {
    l.inner *= v->extent[i];
  }
  return l;
}

/* Return the offset of element (o = outer, k = 0, i = inner) from the beginning of the row, in elements. */
static int64_t line_offset(const lines *l, int64_t outer, int64_t inner) {
  int64_t at = 0;
  for (int32_t i = l->v->axes - 1; i > l->axis; i--) {
    at += inner % l->v->extent[i] * l->v->stride[i];
    inner /= l->v->extent[i];
  }
  for (int32_t i = l->axis - 1; i >= 0; i--) {
    at += outer % l->v->extent[i] * l->v->stride[i];
    outer /= l->v->extent[i];
  }
  return at;
}

/* The part of a line that is within the requested columns [col, col + n). */
typedef struct line {
  int64_t from, to; /* indices along the axis */
  char *memory;     /* address of element `from` */
  int64_t x;        /* column of element `from`, minus col */
} line;

/* Copy a line to x, or from x if `write`; adjacent elements of the line are `inner` columns apart in x. */
static void copy_line(const lines *l, const line *at, float *x, bool write) {
  const ng_place *v = l->v;
  const int64_t step = v->stride[l->axis], n = at->to - at->from;
  float room[NG_LINE];
  for (int64_t i = 0, m; i < n; i += m) {
    m = ng_min64(NG_LINE, n - i);
    char *memory = at->memory + i * step * ng_dtype_size(v->dtype);
    float *columns = x + at->x + i * l->inner, *dense = l->inner == 1 ? columns : room;
    if (!write) ng_gather(dense, memory, v->dtype, step, m);
    for (int64_t k = 0; k < m && l->inner > 1; k++) {
      float *column = &columns[k * l->inner];
      *(write ? &room[k] : column) = *(write ? column : &room[k]);
    }
    if (write) ng_scatter(memory, v->dtype, step, dense, m);
  }
}

static void copy_lines(const ng_place *v, int64_t row, int64_t col, int64_t n, float *x,
                       bool write) {
  const lines l = choose_lines(v);
  const int64_t size = ng_dtype_size(v->dtype), each = l.extent * l.inner;
  for (int64_t outer = col / each; outer * each < col + n; outer++) {
    const int64_t first = ng_max64(col - outer * each, 0);
    const int64_t end = ng_min64(col + n - outer * each, each);
    for (int64_t inner = 0; inner < l.inner;
         inner++) { /* columns k l.inner + inner of [first, end) */
      line at;
      at.from = first <= inner ? 0 : (first - inner + l.inner - 1) / l.inner;
      at.to = end <= inner ? 0 : (end - inner + l.inner - 1) / l.inner;
      if (at.from >= at.to) continue;
      at.memory = (char *)v->data + (row * v->row_stride + line_offset(&l, outer, inner) +
                                     at.from * v->stride[l.axis]) *
                                        size;
      at.x = outer * each + at.from * l.inner + inner - col;
      copy_line(&l, &at, x, write);
    }
  }
}

/* ---- channels-last weights ------------------------------------------------------------------------*/

/* Return whether the row is a channels-last f32 weight, [kernel offset][channel] in memory, and the columns
 * [col, col + n) have at least four whole channels, [*c0, *c1). */
static bool is_channels_last(const ng_place *v, int64_t col, int64_t n, int64_t *c0, int64_t *c1) {
  if (v->axes != 2 || v->dtype != NG_F32 || v->stride[0] != 1 || v->stride[1] < 0) return false;
  *c0 = (col + v->extent[1] - 1) / v->extent[1];
  *c1 = (col + n) / v->extent[1];
  return *c1 - *c0 >= 4;
}

/* Copy columns [col, col + n) to x, or from x if `write`. Whole channels of a channels-last weight are transposed; columns
 * of other channels are copied line by line. */
static void copy_columns(const ng_place *v, int64_t row, int64_t col, int64_t n, float *x,
                         bool write) {
  int64_t c0, c1;
  if (!is_channels_last(v, col, n, &c0, &c1)) {
    copy_lines(v, row, col, n, x, write);
    return;
  }
  const int64_t first = c0 * v->extent[1], end = c1 * v->extent[1];
  float *memory = ng_place_at(v, row, c0), *columns = x + (first - col);
  if (first > col) copy_lines(v, row, col, first - col, x, write);
  if (end < col + n) copy_lines(v, row, end, col + n - end, x + (end - col), write);
  if (write) {
    ng_transpose(columns, v->extent[1], c1 - c0, v->extent[1], memory, v->stride[1]);
  } else {
    ng_transpose(memory, v->stride[1], v->extent[1], c1 - c0, columns, v->extent[1]);
  }
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

/* Return the address of an element in any layout. */
static double *f64_address(const ng_place *v, int64_t row, int64_t col) {
  int64_t at = row * v->row_stride;
  for (int32_t i = v->axes - 1; i >= 0; i--) {
    at += col % v->extent[i] * v->stride[i];
    col /= v->extent[i];
  }
  return (double *)v->data + at;
}

void ng_place_read_double(const ng_place *v, int64_t row, int64_t col, int64_t n, double *out) {
  float room[NG_LINE];
  if (v->dtype == NG_F64) {
    for (int64_t i = 0; i < n; i++) {
      out[i] = *f64_address(v, row, col + i);
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
    *f64_address(v, row, col + i) = x[i];
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
