/* field_order.c: convert an array between the order in memory and the published order.  Elements are moved, never
 * converted to another dtype.
 *
 * In memory the columns of a convolution's factor A have the order (kernel offset, channel), in files (channel, kernel
 * offset) as in a weight [out, in, kh, kw].  A symmetric matrix is stored in rectangular full packed format in memory,
 * in files as its lower triangle, row after row. */
#include "state/state.h"

int64_t ng_field_count(const ng_field *f) {
  return f->is_symmetric ? ng_sym_count(f->rows) : f->rows * f->cols;
}

int64_t ng_field_bytes(const ng_field *f) { return ng_field_count(f) * ng_dtype_size(f->dtype); }
int64_t ng_field_send_count(const ng_field *f) {
  return f->slice == NULL || f->by_rows ? ng_field_count(f) : f->cols;
}

int32_t ng_slice_rank(const ng_field *f, int32_t i) { return f->holder != NULL ? f->holder[i] : i; }

ng_rect ng_rect_of(const ng_field *f, bool by_rows, int64_t from, int64_t to) {
  return by_rows ? (ng_rect){from, to, 0, f->cols} : (ng_rect){0, f->rows, from, to};
}

/* Return the index in memory of published index i: (channel, offset) becomes (offset, channel).  The column of the
 * bias, which is the last one, keeps its index. */
static int64_t memory_index(int64_t i, int64_t offsets, int64_t channels) {
  if (offsets <= 1 || i >= offsets * channels) return i;
  return i % offsets * channels + i / offsets;
}

/* For elements of each size.  strided: copy n elements that are src_step apart to positions that are dst_step apart.
 * triangle: copy a symmetric matrix of order n between the two formats, out of memory or into memory, if the order of
 * its columns is the same in both; most arrays need only this function. */
typedef void (*strided)(void *dst, int64_t dst_step, const void *src, int64_t src_step, int64_t n);
typedef void (*triangle)(void *dst, const void *src, int64_t n, bool out);

#define MOVER(bits)                                                                                \
  static void strided##bits(void *dst, int64_t dst_step, const void *src, int64_t src_step,        \
                            int64_t n) {                                                           \
    uint##bits##_t *to = (uint##bits##_t *)dst;                                                    \
    const uint##bits##_t *from = (const uint##bits##_t *)src;                                      \
    for (int64_t i = 0; i < n; i++)                                                                \
      to[i * dst_step] = from[i * src_step];                                                       \
  }                                                                                                \
  static void triangle##bits(void *dst, const void *src, int64_t n, bool out) {                    \
    uint##bits##_t *to = (uint##bits##_t *)dst;                                                    \
    const uint##bits##_t *from = (const uint##bits##_t *)src;                                      \
    const int64_t half = (n + 1) / 2, step = n | 1;                                                \
    for (int64_t i = 0, file = 0; i < n; i++) {                                                    \
      const int64_t left = i < half ? i + 1 : half, right = i + 1 - left;                          \
      const int64_t at = ng_sym_at(n, i, 0), at_right = right == 0 ? 0 : ng_sym_at(n, i, half);    \
      if (out) {                                                                                   \
        strided##bits(to + file, 1, from + at, step, left);                                        \
        strided##bits(to + file + left, 1, from + at_right, 1, right);                             \
      } else {                                                                                     \
        strided##bits(to + at, step, from + file, 1, left);                                        \
        strided##bits(to + at_right, 1, from + file + left, 1, right);                             \
      }                                                                                            \
      file += i + 1;                                                                               \
    }                                                                                              \
  }
MOVER(8)
MOVER(16)
MOVER(32)
MOVER(64)
#undef MOVER

static const struct {
  strided some;
  triangle all;
} moves[NG_WIDEST + 1] = {[1] = {strided8, triangle8},
                          [2] = {strided16, triangle16},
                          [4] = {strided32, triangle32},
                          [8] = {strided64, triangle64}};

typedef struct walker {
  const ng_field *f;
  char *dst;
  const char *src;
  bool out;     /* direction of the copy; true: memory to file, false: file to memory */
  int64_t file; /* number of elements moved so far, which is also the position in the file */
} walker;

/* Move the next n elements of the file.  In memory they begin at `at` and are `step` apart. */
static void move_elements(walker *w, int64_t at, int64_t step, int64_t n) {
  const int64_t size = ng_dtype_size(w->f->dtype);
  moves[size].some(w->dst + (w->out ? w->file : at) * size, w->out ? 1 : step,
                   w->src + (w->out ? at : w->file) * size, w->out ? step : 1, n);
  w->file += n;
}

/* Move the n elements (i, j), (i, j + step), ... of row i in memory.  In a symmetric matrix the distance between them
 * changes at the diagonal and at the middle column (linalg/sym.c), so move one run before each change. */
static void move_run(walker *w, int64_t i, int64_t j, int64_t step, int64_t n) {
  const ng_field *f = w->f;
  const int64_t half = (f->rows + 1) / 2;
  while (f->is_symmetric && n > 0) {
    const int64_t edge = j > i ? f->rows : j < half && half <= i ? half : i + 1;
    const int64_t m = step == 1 ? ng_min64(n, edge - j) : ng_min64(n, (edge - j - 1) / step + 1);
    const int64_t at = ng_sym_at(f->rows, i, j);
    move_elements(w, at, m > 1 ? ng_sym_at(f->rows, i, j + step) - at : 1, m);
    j += m * step;
    n -= m;
  }
  if (n > 0) move_elements(w, i * f->cols + j, step, n);
}

/* Return whether rows and columns have the published order in memory. */
static bool has_same_order(const ng_field *f) { return f->row_offsets <= 1 && f->col_offsets <= 1; }

/* Copy an array in the order of the file: row by row; in a row channel by channel; in a channel offset by offset. */
static void reorder_array(const ng_field *f, void *dst, const void *src, bool out) {
  if (has_same_order(f)) {
    if (f->is_symmetric) {
      moves[ng_dtype_size(f->dtype)].all(dst, src, f->rows, out);
    } else {
      memcpy(dst, src, (size_t)ng_field_bytes(f));
    }
    return;
  }
  walker w = {f, dst, src, out, 0};
  const int64_t offsets = f->col_offsets > 1 ? f->col_offsets : 1;
  const int64_t permuted = offsets > 1 ? offsets * f->col_channels : 0; /* number of columns */
  for (int64_t r = 0; r < f->rows; r++) {
    const int64_t i = memory_index(r, f->row_offsets, f->row_channels);
    const int64_t cols = f->is_symmetric ? r + 1 : f->cols;
    int64_t c = 0;
    for (int64_t channel = 0; c < ng_min64(permuted, cols); channel++, c += offsets)
      move_run(&w, i, channel, f->col_channels, ng_min64(offsets, cols - c));
    c = ng_min64(c, cols);
    move_run(&w, i, c, 1, cols - c);
  }
}

void ng_field_export(const ng_field *f, const void *memory, void *to) {
  reorder_array(f, to, memory, true);
}

void ng_field_import(const ng_field *f, const void *published, void *to) {
  reorder_array(f, to, published, false);
}

void *ng_field_published(const ng_field *f, void *to) {
  if (has_same_order(f) && !f->is_symmetric) return f->data;
  ng_field_export(f, f->data, to);
  return to;
}
