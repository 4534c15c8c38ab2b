/* late_kernels.c: the kernels of the late backend: an entry copies its lists of descriptors and notes the call. */
#include <stdlib.h>
#include <string.h>

#include "kernel/tiles.h"
#include "late_calls.h"

/* The arguments of an entry: copies of its lists, and the addresses of its results. */
typedef struct call {
  int64_t n;
  void *list, *second;
  void *parts, *out;
  ng_ratios ratios;
} call;

static void *copy_of(const void *list, int64_t n, size_t size) {
  void *copy = list == NULL ? NULL : malloc((size_t)n * size + 1);
  if (copy != NULL) memcpy(copy, list, (size_t)n * size);
  return copy;
}

static void drop(const call *x) {
  free(x->list);
  free(x->second);
}

/* ENTRY defines the function that runs a noted call of an entry; the call is `x`. */
#define ENTRY(e, ...)                                                                              \
  static void run_##e(ng_queue *q, const void *record) {                                           \
    const call *x = record;                                                                        \
    q->backend->kernels->e(q, __VA_ARGS__);                                                        \
    drop(x);                                                                                       \
  }
#define CALL(e, ...)                                                                               \
  const call x = {__VA_ARGS__};                                                                    \
  late_store_call(run_##e, &x, sizeof x)

/* What kernels write; scratch and bound arrays are left out. */
static void wrote_measure(const ng_measure *m, int64_t n) {
  for (const ng_measure *stop = m + n; m < stop; m++) {
    DOUBLES(m->out, m->t != NULL ? 3 : 2);
    if (m->t != NULL) DOUBLES(m->t, m->D.rows);
  }
}
static void wrote_read(const ng_read *r, int64_t n) {
  for (const ng_read *stop = r + n; r < stop; r++) {
    const int64_t last = r->map != NULL ? r->D.cols - 1 : (r->D.cols - 1) * r->to_col;
    const int64_t count = (r->D.rows - 1) * r->to_row + last + 1;
    BYTES(r->to_double != NULL ? (void *)r->to_double : (void *)r->to,
          count * (r->to_double != NULL ? 8 : 4));
    INFO(r->finite);
  }
}
static void wrote_gram_rows(const ng_gram *g, int64_t n) {
  for (const ng_gram *stop = g + n; g < stop; g++) {
    if (g->S64 == NULL) SYM(g->S);
    if (g->S64 != NULL) DOUBLES(g->S64, ng_sym_count(g->S.n));
  }
}
#define wrote_gram_conv wrote_gram_rows
static void wrote_box_sums(const ng_box *b, int64_t n) {
  for (const ng_box *stop = b + n; b < stop; b++) {
    DOUBLES(b->out, b->conv.channels * ng_conv_taps(&b->conv));
  }
}
static void wrote_norm_squares(const ng_norm_sum *k, int64_t n) {
  for (const ng_norm_sum *stop = k + n; k < stop; k++) {
    DOUBLES(k->X, ng_norm_width(&k->layer));
  }
}
static void wrote_norm_gram(const ng_norm_sum *k, int64_t n) {
  for (const ng_norm_sum *stop = k + n; k < stop; k++) {
    BYTES(k->S, ng_sym_count(ng_norm_width(&k->layer)) * ng_dtype_size(k->dtype));
  }
}
static void wrote_flat(const ng_flat_pass *p, int64_t n) {
  for (const ng_flat_pass *stop = p + n; p < stop; p++) {
    const bool x = p->op == NG_FLAT_ADAM || p->op == NG_FLAT_FILL;
    const bool next_s = p->op == NG_FLAT_ADAM || p->op == NG_FLAT_DIVIDE;
    DOUBLES(p->out, 3);
    for (int64_t i = 0; i < p->ranges; i++) {
      const int64_t at = p->range[i].at, count = p->range[i].n;
      if (p->to != NULL && p->op != NG_FLAT_MEASURE) FLOATS(p->to + at, count);
      if (p->x != NULL && x) FLOATS(p->x + at, count);
      if (p->next_s != NULL && next_s) FLOATS(p->next_s + at, count);
      if (p->op == NG_FLAT_MASK) BYTES(p->mask + at, count);
    }
  }
}
static void wrote_row_products(const ng_rows *G, int64_t n) {
  for (const ng_rows *stop = G + n; G < stop; G++) {
    for (int64_t i = 0; i < G->ranges; i++) {
      DOUBLES(G->k + G->range[i].part * G->places, G->places);
    }
  }
}
static void wrote_row_combine(const ng_rows *G, int64_t n) {
  for (const ng_rows *stop = G + n; G < stop; G++) {
    for (int64_t i = 0; i < G->ranges; i++) {
      FLOATS(G->u + G->range[i].at, G->range[i].n);
    }
  }
}
static void wrote_copy(const ng_copy *c, int64_t n) {
  for (const ng_copy *stop = c + n; c < stop; c++) {
    int64_t last = 0;
    for (int32_t a = 0; a < c->from.ndim; a++) {
      last += (c->from.shape[a] - 1) * c->to_stride[a];
    }
    BYTES(c->to, (last + 1) * ng_dtype_size(c->from.dtype));
  }
}
static void wrote_wire(const ng_wire *w, int64_t n) {
  for (const ng_wire *stop = w + n; w < stop; w++) {
    FLOATS(w->x, w->n);
  }
}
static void wrote_change(const ng_change *c, int64_t n) {
  for (const ng_change *stop = c + n; c < stop; c++) {
    DOUBLES(c->out, 2);
  }
}
static void wrote_largest_select(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    if (v->error != NULL) FLOATS(v->x, v->n);
    FLOATS(v->chosen, v->n);
  }
}
static void wrote_largest_count(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    if (v->error != NULL) FLOATS(v->x, v->n);
    DOUBLES(v->count, v->digits == 0 ? 2 : 1 << v->digits);
  }
}
static void wrote_largest_collect(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    FLOATS(v->chosen, v->n);
    DOUBLES(v->selected, 1);
  }
}
static void wrote_largest_store(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    FLOATS(v->x, v->n);
    BYTES(v->value, v->size * ng_dtype_size(v->dtype));
    BYTES(v->index, v->size * 2);
    FLOATS(v->begin, v->blocks);
  }
}
static void wrote_largest_pack(const ng_largest_pack *p, int64_t n) {
  for (const ng_largest_pack *stop = p + n; p < stop; p++) {
    if (!p->unpacks) {
      DOUBLES(p->entry, p->n);
      continue;
    }
    BYTES(p->value, p->n * ng_dtype_size(p->dtype));
    BYTES(p->index, p->n * 2);
  }
}
static void wrote_low_rank(const ng_low_rank *w, int64_t n) {
  for (const ng_low_rank *stop = w + n; w < stop; w++) {
    const ng_factors *v = &w->shape;
    const int64_t all = v->rows * v->cols, count = v->rank * (v->rows + v->cols);
    FLOATS(w->a.x, all);
    FLOATS(w->a.rest, all);
    FLOATS(w->to.x, v->rank > 0 ? count : all);
    FLOATS(w->to.rest, count);
  }
}

/* An entry with a list and scratch. */
#define LIST(e, T, S)                                                                              \
  ENTRY(e, x->list, x->n, x->parts)                                                                \
  static void late_##e(ng_queue *q, const T *list, int64_t n, S *scratch) {                        \
    CALL(e, .n = n, .list = copy_of(list, n, sizeof *list), .parts = scratch);                     \
    NAMED(e, wrote_##e(list, n));                                                                  \
  }

ENTRY(scan, x->list, x->n, x->out)
static void late_scan(ng_queue *q, const ng_strided *a, int64_t n, double *out) {
  CALL(scan, .n = n, .list = copy_of(a, n, sizeof *a), .out = out);
  NAMED(scan, DOUBLES(out, n));
}
LIST(measure, ng_measure, double)
ENTRY(finite, x->list, x->n, x->out)
static void late_all_finite(ng_queue *q, const ng_region *a, int64_t n, int32_t *out) {
  CALL(finite, .n = n, .list = copy_of(a, n, sizeof *a), .out = out);
  NAMED(finite, FLOATS(out, n));
}
ENTRY(read, x->list, x->n)
static void late_read(ng_queue *q, const ng_read *r, int64_t n) {
  CALL(read, .n = n, .list = copy_of(r, n, sizeof *r));
  NAMED(read, wrote_read(r, n));
}
ENTRY(emit, x->list, x->n)
static void late_emit(ng_queue *q, const ng_direction *e, int64_t n) {
  CALL(emit, .n = n, .list = copy_of(e, n, sizeof *e));
}
ENTRY(store, x->list, x->second, x->n)
static void late_store(ng_queue *q, const ng_direction *e, float *const *to, int64_t n) {
  CALL(store, .n = n, .list = copy_of(e, n, sizeof *e), .second = copy_of(to, n, sizeof *to));
  for (int64_t i = 0; i < n; i++) {
    NAMED(store, FLOATS(to[i], e[i].D.rows * e[i].D.cols));
  }
}
ENTRY(norm2, x->list, x->n, x->parts, x->out)
static void late_norms(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out) {
  CALL(norm2, .n = n, .list = copy_of(e, n, sizeof *e), .parts = parts, .out = out);
  NAMED(norm2, DOUBLES(out, n));
}
ENTRY(update, x->list, x->second, x->n)
static void late_update(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n) {
  CALL(update, .n = n, .list = copy_of(e, n, sizeof *e), .second = copy_of(s, n, sizeof *s));
}
ENTRY(ratios, x->list, x->second, x->n, &x->ratios)
static void late_ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,
                        const ng_ratios *r) {
  CALL(ratios, .n = n, .list = copy_of(e, n, sizeof *e), .second = copy_of(s, n, sizeof *s),
       .ratios = *r);
}
LIST(gram_rows, ng_gram, float)
LIST(gram_conv, ng_gram, float)
LIST(box_sums, ng_box, double)
ENTRY(square_sums, x->list, x->n)
static void late_square_sums(ng_queue *q, const ng_squares *s, int64_t n) {
  CALL(square_sums, .n = n, .list = copy_of(s, n, sizeof *s));
}
LIST(norm_squares, ng_norm_sum, void)
LIST(norm_gram, ng_norm_sum, void)
#define LIST_ALONE(e, T)                                                                           \
  ENTRY(e, x->list, x->n)                                                                          \
  static void late_##e(ng_queue *q, const T *list, int64_t n) {                                    \
    CALL(e, .n = n, .list = copy_of(list, n, sizeof *list));                                       \
    NAMED(e, wrote_##e(list, n));                                                                  \
  }
/* The caller may change lists of the host (flat.h) when the entry has returned. */
static void *copy_to(char **at, const void *list, int64_t n, size_t size) {
  void *copy = *at;
  if (list == NULL) return NULL;
  memcpy(copy, list, (size_t)n * size);
  *at += (size_t)n * size;
  return copy;
}
ENTRY(flat, x->list, x->n)
static void late_flat(ng_queue *q, const ng_flat_pass *list, int64_t n) {
  ng_flat_pass *copy = copy_of(list, n, sizeof *copy);
  int64_t ranges = 0;
  for (int64_t i = 0; i < n; i++) {
    ranges += list[i].ranges;
  }
  char *second = malloc((size_t)ranges * sizeof(ng_flat) + 1), *at = second;
  for (int64_t i = 0; i < n; i++) {
    copy[i].range = copy_to(&at, list[i].range, list[i].ranges, sizeof(ng_flat));
  }
  CALL(flat, .n = n, .list = copy, .second = second);
  NAMED(flat, wrote_flat(list, n));
}
static call rows_of(const ng_rows *list, int64_t n) {
  ng_rows *copy = copy_of(list, n, sizeof *copy);
  size_t most = 1;
  for (int64_t i = 0; i < n; i++) {
    const ng_rows *G = &list[i];
    most += (size_t)G->ranges * (sizeof *G->range + (size_t)G->places * 8 + 8);
    most += (size_t)G->used * sizeof *G->place;
  }
  char *second = malloc(most), *at = second;
  for (int64_t i = 0; i < n; i++) {
    const ng_rows *G = &list[i];
    int64_t parts = 0;
    for (int64_t k = 0; k < G->ranges; k++) {
      parts = ng_max64(parts, G->range[k].part + 1);
    }
    copy[i].range = copy_to(&at, G->range, G->ranges, sizeof *G->range);
    copy[i].place = copy_to(&at, G->place, G->used, sizeof *G->place);
    copy[i].c = copy_to(&at, G->c, parts * G->places, sizeof *G->c);
    copy[i].by = copy_to(&at, G->by, parts, sizeof *G->by);
  }
  return (call){.n = n, .list = copy, .second = second};
}
ENTRY(row_products, x->list, x->n)
static void late_row_products(ng_queue *q, const ng_rows *G, int64_t n) {
  const call x = rows_of(G, n);
  late_store_call(run_row_products, &x, sizeof x);
  NAMED(row_products, wrote_row_products(G, n));
}
ENTRY(row_combine, x->list, x->n)
static void late_row_combine(ng_queue *q, const ng_rows *G, int64_t n) {
  const call x = rows_of(G, n);
  late_store_call(run_row_combine, &x, sizeof x);
  NAMED(row_combine, wrote_row_combine(G, n));
}
LIST(largest_select, ng_largest, int32_t)
LIST_ALONE(largest_count, ng_largest)
LIST_ALONE(largest_collect, ng_largest)
LIST_ALONE(largest_store, ng_largest)
LIST_ALONE(largest_pack, ng_largest_pack)
ENTRY(copy, x->list, x->n)
static void late_copies(ng_queue *q, const ng_copy *list, int64_t n) {
  CALL(copy, .n = n, .list = copy_of(list, n, sizeof *list));
  NAMED(copy, wrote_copy(list, n));
}
LIST_ALONE(wire, ng_wire)
LIST_ALONE(change, ng_change)
LIST_ALONE(low_rank, ng_low_rank)

const ng_kernel_ops late_kernels = {
    .tiles = ng_tiles_of,
    .scan = late_scan,
    .measure = late_measure,
    .finite = late_all_finite,
    .read = late_read,
    .emit = late_emit,
    .store = late_store,
    .norm2 = late_norms,
    .update = late_update,
    .ratios = late_ratios,
    .gram_rows = late_gram_rows,
    .gram_conv = late_gram_conv,
    .box_sums = late_box_sums,
    .square_sums = late_square_sums,
    .norm_squares = late_norm_squares,
    .norm_gram = late_norm_gram,
    .flat = late_flat,
    .row_products = late_row_products,
    .row_combine = late_row_combine,
    .largest_select = late_largest_select,
    .largest_count = late_largest_count,
    .largest_collect = late_largest_collect,
    .largest_store = late_largest_store,
    .largest_pack = late_largest_pack,
    .copy = late_copies,
    .wire = late_wire,
    .change = late_change,
    .low_rank = late_low_rank,
};
