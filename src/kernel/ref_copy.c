/* ref_copy.c: the entries of copy.c and change.c, element by element. */
#include "kernel/entries.h"

void ng_ref_copy(ng_queue *q, const ng_copy *c, int64_t n) {
  (void)q;
  for (const ng_copy *end = c + n; c < end; c++) {
    const ng_strided *s = &c->from;
    const int64_t size = ng_dtype_size(s->dtype);
    int64_t count = 1;
    for (int32_t a = 0; a < s->ndim; a++) {
      count *= s->shape[a];
    }
    for (int64_t k = 0; k < count; k++) {
      int64_t from = 0, to = 0, rest = k;
      for (int32_t a = s->ndim - 1; a >= 0; a--) {
        from += rest % s->shape[a] * s->stride[a];
        to += rest % s->shape[a] * c->to_stride[a];
        rest /= s->shape[a];
      }
      memcpy((char *)c->to + to * size, (const char *)s->data + from * size, (size_t)size);
    }
  }
}

/* To 16 bits from the front to the end, and back from the end to the front, so that no number is overwritten before it is
 * read. */
void ng_ref_wire(ng_queue *q, const ng_wire *w, int64_t n) {
  (void)q;
  for (const ng_wire *end = w + n; w < end; w++) {
    char *x = w->x;
    for (int64_t k = 0; k < w->n; k++) {
      const int64_t i = w->widens ? w->n - 1 - k : k;
      float wide;
      uint16_t half;
      memcpy(&half, x + 2 * i, sizeof half);
      if (w->widens) {
        wide = w->dtype == NG_BF16 ? ng_bf16_to_f32(half) : ng_f16_to_f32(half);
        memcpy(x + 4 * i, &wide, sizeof wide);
        continue;
      }
      memcpy(&wide, x + 4 * i, sizeof wide);
      half = w->dtype == NG_BF16 ? ng_f32_to_bf16(wide) : ng_f32_to_f16(wide);
      memcpy(x + 2 * i, &half, sizeof half);
    }
  }
}

static double number(const void *x, ng_dtype t, int64_t i) {
  float y;
  if (t == NG_F64) return ((const double *)x)[i];
  ng_to_f32(&y, (const char *)x + i * ng_dtype_size(t), t, 1);
  return (double)y;
}

void ng_ref_change(ng_queue *q, const ng_change *c, int64_t n) {
  (void)q;
  for (const ng_change *end = c + n; c < end; c++) {
    for (int64_t i = 0, row; i < c->n; i++) {
      double times = c->diagonal > 0 && i >= c->diagonal ? 2.0 : 1.0;
      for (row = 0; row < c->order; row++) {
        if (ng_sym_at(c->order, row, row) == i) break;
      }
      if (c->order > 0) times = row < c->order ? 1.0 : 2.0;
      const double was = number(c->b, c->dtype, i), d = number(c->a, c->dtype, i) - was;
      c->out[0] += times * d * d;
      c->out[1] += times * was * was;
    }
  }
}
