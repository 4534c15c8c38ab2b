/* field_order.c: one array, from the order in memory to the published order and back.
 *
 * Inside, the columns of a convolution's A are (kernel offset, channel), so that blocks of one
 * shift are contiguous, and symmetric matrices are rectangular full packed.  In a file nobody
 * should need to know that: columns are (channel, kernel offset), as in the weight [out, in, kh,
 * kw], and a symmetric matrix is its lower triangle, row after row.  Elements are moved, never
 * converted. */
#include "state/state.h"

int64_t ng_field_count(const ng_field *f) {
  return f->sym ? ng_sym_count(f->rows) : f->rows * f->cols;
}

int64_t ng_field_bytes(const ng_field *f) { return ng_field_count(f) * ng_dtype_size(f->dtype); }

/* Place in memory of published index i: (channel, offset) -> (offset, channel); what comes after
 * all of them (a bias) stays where it is. */
static int64_t place(int64_t i, int64_t offsets, int64_t channels) {
  if (offsets <= 1 || i >= offsets * channels) return i;
  return i % offsets * channels + i / offsets;
}

/* Calls for every element of the file in turn; `at` is its place in memory. */
typedef void (*mover)(void *dst, const void *src, int64_t file, int64_t at);

static void walk(const ng_field *f, void *dst, const void *src, mover move) {
  int64_t file = 0;
  for (int64_t r = 0; r < f->rows; r++) {
    const int64_t i = place(r, f->row_offsets, f->row_channels);
    const int64_t cols = f->sym ? r + 1 : f->cols;
    for (int64_t c = 0; c < cols; c++, file++) {
      const int64_t j = place(c, f->col_offsets, f->col_channels);
      move(dst, src, file, f->sym ? ng_sym_at(f->rows, i, j) : i * f->cols + j);
    }
  }
}

#define MOVER(bits)                                                                                \
  static void out##bits(void *dst, const void *src, int64_t file, int64_t at) {                    \
    ((uint##bits##_t *)dst)[file] = ((const uint##bits##_t *)src)[at];                             \
  }                                                                                                \
  static void in##bits(void *dst, const void *src, int64_t file, int64_t at) {                     \
    ((uint##bits##_t *)dst)[at] = ((const uint##bits##_t *)src)[file];                             \
  }
MOVER(8)
MOVER(16)
MOVER(32)
MOVER(64)
#undef MOVER

/* The same order on both sides: nothing to permute. */
static bool straight(const ng_field *f) {
  return !f->sym && f->row_offsets <= 1 && f->col_offsets <= 1;
}

void ng_field_export(const ng_field *f, const void *memory, void *published) {
  const int64_t size = ng_dtype_size(f->dtype);
  if (straight(f)) {
    memcpy(published, memory, (size_t)ng_field_bytes(f));
  } else {
    walk(f, published, memory, size == 8 ? out64 : size == 4 ? out32 : size == 2 ? out16 : out8);
  }
}

void ng_field_import(const ng_field *f, const void *published, void *memory) {
  const int64_t size = ng_dtype_size(f->dtype);
  if (straight(f)) {
    memcpy(memory, published, (size_t)ng_field_bytes(f));
  } else {
    walk(f, memory, published, size == 8 ? in64 : size == 4 ? in32 : size == 2 ? in16 : in8);
  }
}
