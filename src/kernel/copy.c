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
  for (int64_t i = 0; i < n; i++) {
    memcpy(y + i * to_by, x + i * by, (size_t)size);
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

void ng_shared_copy(ng_queue *q, const ng_copy *c, int64_t n) {
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

/* Convert from the front to the end, so that 16-bit numbers overwrite only floats that were already read. */
static void narrow(char *x, int64_t n, ng_dtype t) {
  float wide[NG_LINE];
  uint16_t half[NG_LINE];
  for (int64_t i = 0, m; i < n; i += m) {
    m = ng_min64(NG_LINE, n - i);
    memcpy(wide, x + i * (int64_t)sizeof *wide, (size_t)m * sizeof *wide);
    ng_from_f32(half, t, wide, m);
    memcpy(x + i * (int64_t)sizeof *half, half, (size_t)m * sizeof *half);
  }
}

/* Convert from the end to the front, so that floats overwrite only 16-bit numbers that were already read. */
static void widen(char *x, int64_t n, ng_dtype t) {
  float wide[NG_LINE];
  uint16_t half[NG_LINE];
  for (int64_t end = n, m; end > 0; end -= m) {
    m = ng_min64(NG_LINE, end);
    memcpy(half, x + (end - m) * (int64_t)sizeof *half, (size_t)m * sizeof *half);
    ng_to_f32(wide, half, t, m);
    memcpy(x + (end - m) * (int64_t)sizeof *wide, wide, (size_t)m * sizeof *wide);
  }
}

/* One thread converts a message, because the order of conversions matters. */
void ng_shared_wire(ng_queue *q, const ng_wire *w, int64_t n) {
  (void)q;
  for (const ng_wire *end = w + n; w < end; w++) {
    (w->widens ? widen : narrow)(w->x, w->n, w->dtype);
  }
}
