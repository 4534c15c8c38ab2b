/* copy.c: copies between arrays in any layout, and sums converted for the wire in their own memory.
 *
 * In: arrays of elements of any dtype; n f32. Out: the same elements at other strides; n numbers of 16 bits in the
 * first half of the memory of the n f32, and back. */
#include "kernel/entries.h"

/* ---- copies ----------------------------------------------------------------------------------*/

typedef struct copy_job {
  const ng_copy *c;
  int64_t lines;
  int32_t pieces;
} copy_job;

static inline __attribute__((always_inline)) void
copy_elements(char *to, int64_t to_by, const char *from, int64_t by, int64_t n, size_t size) {
  for (int64_t i = 0; i < n; i++) {
    memcpy(to + i * to_by, from + i * by, size);
  }
}

static void copy_line(const ng_copy *c, int64_t from, int64_t to) {
  const ng_strided *s = &c->from;
  const int64_t size = ng_dtype_size(s->dtype), last = s->ndim - 1, n = s->shape[last];
  const int64_t by = s->stride[last] * size, to_by = c->to_stride[last] * size;
  const char *x = (const char *)s->data + from * size;
  char *y = (char *)c->to + to * size;
  if (by == size && to_by == size) {
    memcpy(y, x, (size_t)(n * size));
    return;
  }
  if (size == 4) { /* a constant size needs no call of memcpy for each element */
    copy_elements(y, to_by, x, by, n, 4);
  } else {
    copy_elements(y, to_by, x, by, n, (size_t)size);
  }
}

static void copy_piece(void *arg, int32_t piece) {
  const copy_job *j = arg;
  const ng_strided *s = &j->c->from;
  int64_t begin, end;
  ng_piece_bounds(j->lines, j->pieces, piece, &begin, &end);
  for (int64_t k = begin; k < end; k++) {
    int64_t from = 0, to = 0, rest = k;
    for (int32_t a = s->ndim - 2; a >= 0; a--) {
      from += rest % s->shape[a] * s->stride[a];
      to += rest % s->shape[a] * j->c->to_stride[a];
      rest /= s->shape[a];
    }
    copy_line(j->c, from, to);
  }
}

void ng_shared_copy_arrays(ng_queue *q, const ng_copy *c, int64_t n) {
  for (const ng_copy *end = c + n; c < end; c++) {
    const ng_strided *s = &c->from;
    copy_job j = {c, 1, 1};
    for (int32_t a = 0; a + 1 < s->ndim; a++) {
      j.lines *= s->shape[a];
    }
    j.pieces = (int32_t)ng_min64(ng_queue_pieces(q, j.lines * s->shape[s->ndim - 1]), j.lines);
    ng_queue_run(q, j.pieces, copy_piece, &j);
  }
}

/* ---- the wire --------------------------------------------------------------------------------*/

/* Narrow from the front to the end, and widen from the end to the front, so that no number is overwritten before it is
 * read. */
static void convert_in_place(const ng_wire_conversion *w) {
  enum { WIDE = sizeof(float), HALF = sizeof(uint16_t) };
  float wide[NG_LINE];
  uint16_t half[NG_LINE];
  for (int64_t done = 0, n; done < w->n; done += n) {
    n = ng_min64(NG_LINE, w->n - done);
    const int64_t at = w->widens ? w->n - done - n : done;
    char *wides = (char *)w->x + at * WIDE, *halves = (char *)w->x + at * HALF;
    if (w->widens) {
      memcpy(half, halves, (size_t)n * HALF);
      ng_to_f32(wide, half, w->dtype, n);
      memcpy(wides, wide, (size_t)n * WIDE);
    } else {
      memcpy(wide, wides, (size_t)n * WIDE);
      ng_from_f32(half, w->dtype, wide, n);
      memcpy(halves, half, (size_t)n * HALF);
    }
  }
}

/* One thread converts a message, because the order of conversions matters. */
void ng_shared_convert_for_wire(ng_queue *q, const ng_wire_conversion *w, int64_t n) {
  (void)q;
  for (const ng_wire_conversion *end = w + n; w < end; w++) {
    convert_in_place(w);
  }
}
