/* window_dense.c: the store of whole rows: [places, d] in f32 or bf16.
 *
 * `product` and `combine` read the store once, chunk by chunk: a chunk of x (or of the sums) stays in the first-level
 * cache while the same columns of all rows are read, several rows at once.  With bf16 the entering gradient is rounded,
 * and the direction is computed from the rounded gradient. */
#include "family/window.h"

typedef struct dense {
  char *rows;
  float *wide; /* bf16: [d] the entering vector before rounding; f32: NULL */
  ng_dtype type;
} dense;

static void *row_at(const ng_window *w, int64_t place, int64_t at) {
  const dense *s = w->state;
  return s->rows + (place * w->d + at) * ng_dtype_size(s->type);
}

/* Return columns [at, at + n) of a row as f32: in place, or converted to `room`. */
static const float *as_f32(const ng_window *w, int64_t place, int64_t at, int64_t n, float *room) {
  const dense *s = w->state;
  if (s->type == NG_F32) return row_at(w, place, at);
  ng_to_f32(room, row_at(w, place, at), s->type, n);
  return room;
}

static ng_status plan(ng_block *b, ng_plan *plan) {
  ng_window *w = ng_window_of(b);
  if (w->state == NULL) {
    dense *s = w->state = ng_object(b->p, sizeof *s);
    if (s == NULL) return NG_ERR_NOMEM;
    s->type = b->base.window_dtype;
  }
  dense *s = w->state;
  const int64_t bytes = ng_times(ng_times(w->places, ng_max64(1, w->d)), ng_dtype_size(s->type));
  w->units = w->pieces = w->chunks;
  s->rows = ng_plan_take(plan, NG_USE_FACTORS, bytes);
  if (s->type != NG_F32) {
    s->wide = ng_plan_take(plan, NG_USE_SUMS, ng_times(ng_max64(1, w->d), (int64_t)sizeof(float)));
  }
  return NG_OK;
}

/* ---- the three products ----------------------------------------------------------------------*/

static void round_chunk(ng_block *b, int32_t i) {
  ng_window *w = ng_window_of(b);
  const dense *s = w->state;
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  void *to = row_at(w, ng_window_head(w), c.at);
  ng_from_f32(to, s->type, w->x + c.at, c.n);
  ng_to_f32(w->x + c.at, to, s->type, c.n);
}

static float *input(ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const dense *s = w->state;
  return s->type == NG_F32 ? row_at(w, ng_window_head(w), 0) : s->wide;
}

static void enter(ng_block *b) {
  const dense *s = ng_window_of(b)->state;
  if (s->type != NG_F32) ng_window_each_chunk(b, round_chunk);
}

/* row[q] <- the address of element `at` of the (j + q)-th row in use, for q < many; past the last row: the last row.
 * If j is past the last row: the first rows, n elements further, which the next loop reads (to prefetch). */
static void rows_from(const ng_window *w, int64_t j, int64_t many, int64_t at, int64_t n,
                      const void **row) {
  if (j >= w->rows) at += n;
  for (int64_t q = 0; q < many; q++) {
    const int64_t one = j < w->rows ? j + q : q;
    row[q] = row_at(w, w->row_place[ng_min64(one, w->rows - 1)], at);
  }
}

static int32_t part_of(const ng_window *w, int32_t i) { return ng_window_chunk_at(w, i).part; }

static void product_chunk(void *arg, int32_t i) {
  enum { AT_ONCE = 4 };
  const ng_window_product *p = arg;
  ng_window *w = ng_window_of(p->b);
  const dense *s = w->state;
  const float *x = p->x == NULL ? w->x : p->x;
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  double *k = w->unit_products + i * w->places, out[AT_ONCE];
  for (int64_t j = 0; j < w->rows; j += AT_ONCE) {
    const void *row[AT_ONCE], *next[AT_ONCE];
    rows_from(w, j, AT_ONCE, c.at, c.n, row);
    rows_from(w, j + AT_ONCE, AT_ONCE, c.at, c.n, next);
    ng_window_dots(row, next, s->type, x + c.at, c.n, out);
    for (int64_t q = 0; q < AT_ONCE && j + q < w->rows; q++) {
      k[w->row_place[j + q]] = out[q];
    }
  }
}

static void combine_chunk(ng_block *b, int32_t i) {
  enum { FEW = 4, MANY = 8 };
  ng_window *w = ng_window_of(b);
  const dense *s = w->state;
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  const double *z = w->part[c.part].c, all = w->part[c.part].u_scale;
  double acc[NG_WINDOW_LINE];
  float room[NG_WINDOW_LINE];
  for (int64_t at = 0, n; at < c.n; at += n) {
    float *u = w->u + c.at + at;
    int64_t j = 0;
    n = ng_min64(NG_WINDOW_LINE, c.n - at);
    for (int64_t e = 0; e < n; e++) {
      acc[e] = all == 0.0 ? 0.0 : all * (double)u[e];
    }
    for (int rows; j + FEW <= w->rows; j += rows) {
      const void *row[MANY], *next[MANY];
      double by[MANY];
      rows = j + MANY <= w->rows ? MANY : FEW;
      rows_from(w, j, rows, c.at + at, n, row);
      rows_from(w, j + rows, rows, c.at + at, n, next);
      for (int q = 0; q < rows; q++) {
        by[q] = z[w->row_place[j + q]];
      }
      ng_window_sums(acc, row, next, s->type, rows, n, by);
    }
    for (; j < w->rows; j++) {
      ng_window_add(acc, as_f32(w, w->row_place[j], c.at + at, n, room), n, z[w->row_place[j]]);
    }
    for (int64_t e = 0; e < n; e++) {
      u[e] = (float)acc[e];
    }
  }
}

static void combine(ng_block *b) { ng_window_each_chunk(b, combine_chunk); }

/* ---- life ------------------------------------------------------------------------------------*/

static void clear_row(ng_block *b, int64_t place) {
  const ng_window *w = ng_window_of(b);
  const dense *s = w->state;
  memset(row_at(w, place, 0), 0, (size_t)(w->d * ng_dtype_size(s->type)));
}

static ng_status fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_window *w = ng_window_of(b);
  const dense *s = w->state;
  ng_field f = ng_window_field(b, "rows", s->type, w->places, s->rows);
  return visit(arg, &f);
}

const ng_window_store ng_window_dense = {
    .name = "dense",
    .plan = plan,
    .input = input,
    .enter = enter,
    .product = product_chunk,
    .part_of = part_of,
    .combine = combine,
    .clear_row = clear_row,
    .fields = fields,
};
