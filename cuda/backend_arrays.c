/* backend_arrays.c: the entries of backend.c over arrays of the engine: tokens, sums of statistics, copies, messages, changes of
 * averages. */
#include <string.h>

#include "device_entries.h"

void ng_device_count_tokens(ng_queue *q, const ng_tokens *t, int64_t n) {
  ng_device *d = q->device;
  cut c;
  if (!ng_stage_begin(d)) return;
  dv_tokens *list = ng_stage_allocate(d, n, sizeof *list);
  int64_t *bad = ng_stage_allocate(d, n, sizeof *bad);
  if (list == NULL || bad == NULL || !cut_begin(d, n, &c)) return;
  for (int64_t i = 0; i < n; i++, t++) {
    bad[i] = INT64_MAX;
    list[i] = (dv_tokens){.x = ng_device_view(&t->x),
                          .samples = t->samples,
                          .vocabulary = t->vocabulary,
                          .none = NG_NO_TOKEN,
                          .count = t->count,
                          .bad = ng_stage_address(d, &bad[i])};
    cut_add(&c, blocks_of(t->x.samples * t->x.positions, DV_TILE));
    ng_stage_zero(d, t->count, (size_t)(t->vocabulary + 2) * sizeof *t->count);
  }
  void *at = ng_stage_address(d, list);
  LAUNCH(d, dv_count_tokens, cut_blocks(&c), &at, &c.on_device, &n);
  LAUNCH(d, dv_report_token, blocks_of(n, DV_THREADS), &at, &n);
}

void ng_device_accumulate(ng_queue *q, const ng_accumulation *a, int64_t n) {
  ng_device *d = q->device;
  for (const ng_accumulation *end = a + n; a < end; a++) {
    dv_accumulation x = {a->x,   a->n,     a->count, a->stride,  a->S, (int32_t)a->dtype,
                         a->old, a->fresh, a->rest,  a->adds_nan};
    LAUNCH(d, dv_accumulate, blocks_of(a->count, DV_TILE), &x);
  }
}

/* Copy of ng_dtype_size: a statically linked program does not export that function to natgrad_cuda. */
static int32_t size_of(ng_dtype t) {
  return t == NG_F64 || t == NG_I64 ? 8 : t == NG_F32 || t == NG_I32 ? 4 : t == NG_U8 ? 1 : 2;
}

void ng_device_copy_arrays(ng_queue *q, const ng_copy *r, int64_t n) {
  ng_device *d = q->device;
  cut c;
  if (!ng_stage_begin(d)) return;
  dv_copy_of *list = ng_stage_allocate(d, n, sizeof *list);
  if (list == NULL || !cut_begin(d, n, &c)) return;
  for (int64_t i = 0; i < n; i++, r++) {
    dv_copy_of *to = &list[i];
    *to = (dv_copy_of){.data = r->from.data,
                       .to = r->to,
                       .size = size_of(r->from.dtype),
                       .ndim = r->from.ndim,
                       .count = 1};
    for (int32_t k = 0; k < r->from.ndim; k++) {
      to->count *= r->from.shape[k];
    }
    memcpy(to->shape, r->from.shape, sizeof to->shape);
    memcpy(to->stride, r->from.stride, sizeof to->stride);
    memcpy(to->to_stride, r->to_stride, sizeof to->to_stride);
    cut_add(&c, blocks_of(to->count, DV_TILE));
  }
  void *at = ng_stage_address(d, list);
  LAUNCH(d, dv_copy_elements, cut_blocks(&c), &at, &c.on_device, &n);
}

/* Convert a message in parts by way of scratch: narrow from the front to the end, and widen from the end to the front, so that no
 * number is overwritten before it is read. */
static void convert_message(ng_device *d, const ng_wire_conversion *w) {
  enum { PART = 1 << 22 };
  int32_t wide = DV_F32, half = (int32_t)w->dtype;
  for (int64_t done = 0, n; done < w->n; done += n) {
    n = ng_min64(PART, w->n - done);
    const int64_t at = w->widens ? w->n - done - n : done;
    char *wides = (char *)w->x + at * (int64_t)sizeof(float);
    char *halves = (char *)w->x + at * (int64_t)sizeof(uint16_t);
    if (!ng_stage_begin(d)) return;
    char *part = ng_stage_scratch(d, n, sizeof(uint16_t));
    if (part == NULL) return;
    const size_t bytes = (size_t)n * sizeof(uint16_t);
    if (w->widens) {
      ng_stage_copy(d, part, halves, bytes);
      LAUNCH(d, dv_convert, blocks_of(n, DV_TILE), &n, &part, &half, &wides, &wide);
    } else {
      LAUNCH(d, dv_convert, blocks_of(n, DV_TILE), &n, &wides, &wide, &part, &half);
      ng_stage_copy(d, halves, part, bytes);
    }
  }
}
void ng_device_convert_for_wire(ng_queue *q, const ng_wire_conversion *w, int64_t n) {
  for (const ng_wire_conversion *end = w + n; w < end; w++) {
    convert_message(q->device, w);
  }
}

void ng_device_add_changes(ng_queue *q, const ng_change *r, int64_t n) {
  ng_device *d = q->device;
  cut c;
  if (!ng_stage_begin(d)) return;
  dv_change *list = ng_stage_allocate(d, n, sizeof *list);
  if (list == NULL || !cut_begin(d, n, &c)) return;
  for (int64_t i = 0; i < n; i++, r++) {
    list[i] = (dv_change){r->a,  r->b,     (int32_t)r->dtype,
                          r->n,  r->order, r->diagonal > 0 ? r->diagonal : r->n,
                          r->out};
    cut_add(&c, blocks_of(r->n + r->order, DV_TILE));
  }
  void *at = ng_stage_address(d, list);
  double *sums = ng_stage_scratch(d, 2 * cut_blocks(&c), sizeof *sums);
  LAUNCH(d, dv_change_tiles, cut_blocks(&c), &at, &c.on_device, &n, &sums);
  LAUNCH(d, dv_add_changes, 1, &at, &c.on_device, &n, &sums);
}
