/* window_dense.c: the store of whole rows: [places, d] in f32 or bf16.  With bf16 the entering gradient is rounded, and
 * the direction is computed from the rounded gradient. */
#include "family/window.h"

typedef struct dense {
  char *rows;
  float *wide; /* bf16: [d] the entering vector before rounding; f32: NULL */
  ng_dtype type;
} dense;

static void *row_address(const ng_window *w, int64_t place, int64_t at) {
  const dense *s = w->state;
  return s->rows + (place * w->d + at) * ng_dtype_size(s->type);
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_window *w = ng_window_of(b);
  if (w->state == NULL) {
    dense *s = w->state = ng_object(b->p, sizeof *s);
    if (s == NULL) return NG_ERR_NOMEM;
    s->type = b->base.window_dtype;
  }
  dense *s = w->state;
  const int64_t bytes = ng_times(ng_times(w->places, ng_max64(1, w->d)), ng_dtype_size(s->type));
  w->units = w->chunks;
  s->rows = ng_plan_take(plan, NG_USE_FACTORS, bytes);
  if (s->type != NG_F32) {
    s->wide = ng_plan_take(plan, NG_USE_SUMS, ng_times(ng_max64(1, w->d), (int64_t)sizeof(float)));
  }
  return NG_OK;
}

/* ---- rows ----------------------------------------------------------------------*/

static float *entering_vector(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const dense *s = w->state;
  return s->type == NG_F32 ? row_address(w, ng_window_head(w), 0) : s->wide;
}

static void enter_row(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const dense *s = w->state;
  ng_queue *q = b->ctx->queue;
  if (s->type == NG_F32) return;
  ng_linalg(q)->narrow(q, w->d, w->x, row_address(w, ng_window_head(w), 0), s->type);
  ng_linalg(q)->widen(q, w->d, row_address(w, ng_window_head(w), 0), s->type, w->x);
}

static ng_rows describe_rows(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const dense *s = w->state;
  return (ng_rows){.kind = NG_ROWS_WHOLE,
                   .dtype = s->type,
                   .range = w->flat,
                   .ranges = w->segments,
                   .value = s->rows,
                   .stride = w->d};
}

static int32_t list_fields(const ng_block *b, ng_field *f) {
  const ng_window *w = ng_window_of(b);
  const dense *s = w->state;
  *f = ng_window_field(b, "rows", s->type, w->places, s->rows);
  return 1;
}

const ng_window_store ng_window_dense = {
    .name = "dense",
    .request_memory = request_memory,
    .entering_vector = entering_vector,
    .enter_row = enter_row,
    .describe_rows = describe_rows,
    .list_fields = list_fields,
};
