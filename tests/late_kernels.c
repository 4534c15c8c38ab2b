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

/* Declare the memory that each kernel writes, except scratch and bound arrays. */
static void wrote_measure_gradients(const ng_measure *m, int64_t n) {
  for (const ng_measure *stop = m + n; m < stop; m++) {
    DOUBLES(m->out, m->t != NULL ? 3 : 2);
    if (m->t != NULL) DOUBLES(m->t, m->D.rows);
  }
}
static void wrote_read_gradients(const ng_read *r, int64_t n) {
  for (const ng_read *stop = r + n; r < stop; r++) {
    const int64_t last = r->map != NULL ? r->D.cols - 1 : (r->D.cols - 1) * r->to_col;
    const int64_t count = (r->D.rows - 1) * r->to_row + last + 1;
    BYTES(r->to_double != NULL ? (void *)r->to_double : (void *)r->to,
          count * (r->to_double != NULL ? 8 : 4));
    INFO(r->finite);
  }
}
static void wrote_add_row_grams(const ng_gram *g, int64_t n) {
  for (const ng_gram *stop = g + n; g < stop; g++) {
    if (g->S64 == NULL) SYM(g->S);
    if (g->S64 != NULL) DOUBLES(g->S64, ng_sym_count(g->S.n));
  }
}
#define wrote_add_conv_grams wrote_add_row_grams
#define wrote_add_spatial_grams wrote_add_row_grams
static void wrote_add_sample_squares(const ng_sample_squares *s, int64_t n) {
  for (const ng_sample_squares *stop = s + n; s < stop; s++) {
    FLOATS(s->V, (s->g1 - s->g0 - 1) * s->ld + 1);
  }
}
static void wrote_sum_patches(const ng_box *b, int64_t n) {
  for (const ng_box *stop = b + n; b < stop; b++) {
    DOUBLES(b->out, b->conv.channels * ng_conv_taps(&b->conv));
  }
}
static void wrote_sum_squares(const ng_squares *s, int64_t n) {
  for (const ng_squares *stop = s + n; s < stop; s++) {
    DOUBLES(s->out, s->x.columns);
  }
}
static void wrote_count_tokens(const ng_tokens *t, int64_t n) {
  for (const ng_tokens *stop = t + n; t < stop; t++) {
    DOUBLES(t->count, t->vocabulary + 2);
  }
}
static void wrote_accumulate(const ng_accumulation *a, int64_t n) {
  for (const ng_accumulation *stop = a + n; a < stop; a++) {
    BYTES(a->S, ((a->count - 1) * a->stride + 1) * ng_dtype_size(a->dtype));
  }
}
static void wrote_sum_norm_squares(const ng_norm_sum *k, int64_t n) {
  for (const ng_norm_sum *stop = k + n; k < stop; k++) {
    DOUBLES(k->X, ng_norm_width(&k->layer));
  }
}
static void wrote_add_norm_grams(const ng_norm_sum *k, int64_t n) {
  for (const ng_norm_sum *stop = k + n; k < stop; k++) {
    BYTES(k->S, ng_sym_count(ng_norm_width(&k->layer)) * ng_dtype_size(k->dtype));
  }
}
static void wrote_run_flat_passes(const ng_flat_pass *p, int64_t n) {
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
static void wrote_multiply_rows(const ng_rows *G, int64_t n) {
  for (const ng_rows *stop = G + n; G < stop; G++) {
    for (int64_t i = 0; i < G->ranges; i++) {
      DOUBLES(G->k + G->range[i].part * G->places, G->places);
    }
  }
}
static void wrote_combine_rows(const ng_rows *G, int64_t n) {
  for (const ng_rows *stop = G + n; G < stop; G++) {
    for (int64_t i = 0; i < G->ranges; i++) {
      FLOATS(G->u + G->range[i].at, G->range[i].n);
    }
  }
}
static void wrote_copy_arrays(const ng_copy *c, int64_t n) {
  for (const ng_copy *stop = c + n; c < stop; c++) {
    int64_t last = 0;
    for (int32_t a = 0; a < c->from.ndim; a++) {
      last += (c->from.shape[a] - 1) * c->to_stride[a];
    }
    BYTES(c->to, (last + 1) * ng_dtype_size(c->from.dtype));
  }
}
static void wrote_convert_for_wire(const ng_wire_conversion *w, int64_t n) {
  for (const ng_wire_conversion *stop = w + n; w < stop; w++) {
    FLOATS(w->x, w->n);
  }
}
static void wrote_add_changes(const ng_change *c, int64_t n) {
  for (const ng_change *stop = c + n; c < stop; c++) {
    DOUBLES(c->out, 2);
  }
}
static void wrote_select_largest(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    if (v->error != NULL) FLOATS(v->x, v->n);
    FLOATS(v->chosen, v->n);
  }
}
static void wrote_count_largest(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    if (v->error != NULL) FLOATS(v->x, v->n);
    DOUBLES(v->count, v->digits == 0 ? 2 : 1 << v->digits);
  }
}
static void wrote_collect_largest(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    FLOATS(v->chosen, v->n);
    DOUBLES(v->selected, 1);
  }
}
static void wrote_store_largest(const ng_largest *v, int64_t n) {
  for (const ng_largest *stop = v + n; v < stop; v++) {
    FLOATS(v->x, v->n);
    BYTES(v->value, v->size * ng_dtype_size(v->dtype));
    BYTES(v->index, v->size * 2);
    FLOATS(v->begin, v->blocks);
  }
}
static void wrote_pack_largest(const ng_largest_pack *p, int64_t n) {
  for (const ng_largest_pack *stop = p + n; p < stop; p++) {
    if (!p->unpacks) {
      DOUBLES(p->entry, p->n);
      continue;
    }
    BYTES(p->value, p->n * ng_dtype_size(p->dtype));
    BYTES(p->index, p->n * 2);
  }
}
static void wrote_iterate_low_rank(const ng_low_rank *w, int64_t n) {
  for (const ng_low_rank *stop = w + n; w < stop; w++) {
    const ng_low_rank_shape *v = &w->shape;
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

ENTRY(find_largest, x->list, x->n, x->out)
static void late_find_largest(ng_queue *q, const ng_strided *a, int64_t n, double *out) {
  CALL(find_largest, .n = n, .list = copy_of(a, n, sizeof *a), .out = out);
  NAMED(find_largest, DOUBLES(out, n));
}
LIST(measure_gradients, ng_measure, double)
ENTRY(check_finite, x->list, x->n, x->out)
static void late_all_finite(ng_queue *q, const ng_region *a, int64_t n, int32_t *out) {
  CALL(check_finite, .n = n, .list = copy_of(a, n, sizeof *a), .out = out);
  NAMED(check_finite, FLOATS(out, n));
}
ENTRY(read_gradients, x->list, x->n)
static void late_read_gradients(ng_queue *q, const ng_read *r, int64_t n) {
  CALL(read_gradients, .n = n, .list = copy_of(r, n, sizeof *r));
  NAMED(read_gradients, wrote_read_gradients(r, n));
}
ENTRY(write_directions, x->list, x->n)
static void late_write_directions(ng_queue *q, const ng_direction *e, int64_t n) {
  CALL(write_directions, .n = n, .list = copy_of(e, n, sizeof *e));
}
ENTRY(store_directions, x->list, x->second, x->n)
static void late_store_directions(ng_queue *q, const ng_direction *e, float *const *to, int64_t n) {
  CALL(store_directions, .n = n, .list = copy_of(e, n, sizeof *e),
       .second = copy_of(to, n, sizeof *to));
  for (int64_t i = 0; i < n; i++) {
    NAMED(store_directions, FLOATS(to[i], e[i].D.rows * e[i].D.cols));
  }
}
ENTRY(sum_norms, x->list, x->n, x->parts, x->out)
static void late_norms(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out) {
  CALL(sum_norms, .n = n, .list = copy_of(e, n, sizeof *e), .parts = parts, .out = out);
  NAMED(sum_norms, DOUBLES(out, n));
}
ENTRY(update_weights, x->list, x->second, x->n)
static void late_update_weights(ng_queue *q, const ng_direction *e, const ng_weight_update *s,
                                int64_t n) {
  CALL(update_weights, .n = n, .list = copy_of(e, n, sizeof *e),
       .second = copy_of(s, n, sizeof *s));
}
ENTRY(count_ratios, x->list, x->second, x->n, &x->ratios)
static void late_count_ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s,
                              int64_t n, const ng_ratios *r) {
  CALL(count_ratios, .n = n, .list = copy_of(e, n, sizeof *e), .second = copy_of(s, n, sizeof *s),
       .ratios = *r);
}
#define LIST_ALONE(e, T)                                                                           \
  ENTRY(e, x->list, x->n)                                                                          \
  static void late_##e(ng_queue *q, const T *list, int64_t n) {                                    \
    CALL(e, .n = n, .list = copy_of(list, n, sizeof *list));                                       \
    NAMED(e, wrote_##e(list, n));                                                                  \
  }
LIST(add_row_grams, ng_gram, float)
LIST(add_conv_grams, ng_gram, float)
LIST(add_spatial_grams, ng_gram, float)
LIST(add_sample_squares, ng_sample_squares, float)
LIST(sum_patches, ng_box, double)
LIST_ALONE(sum_squares, ng_squares)
LIST_ALONE(count_tokens, ng_tokens)
LIST_ALONE(accumulate, ng_accumulation)
LIST(sum_norm_squares, ng_norm_sum, void)
LIST(add_norm_grams, ng_norm_sum, void)
/* The caller may change lists of the host (flat.h) when the entry has returned. */
static void *copy_to(char **at, const void *list, int64_t n, size_t size) {
  void *copy = *at;
  if (list == NULL) return NULL;
  memcpy(copy, list, (size_t)n * size);
  *at += (size_t)n * size;
  return copy;
}
ENTRY(run_flat_passes, x->list, x->n)
static void late_run_flat_passes(ng_queue *q, const ng_flat_pass *list, int64_t n) {
  ng_flat_pass *copy = copy_of(list, n, sizeof *copy);
  int64_t ranges = 0;
  for (int64_t i = 0; i < n; i++) {
    ranges += list[i].ranges;
  }
  char *second = malloc((size_t)ranges * sizeof(ng_flat_range) + 1), *at = second;
  for (int64_t i = 0; i < n; i++) {
    copy[i].range = copy_to(&at, list[i].range, list[i].ranges, sizeof(ng_flat_range));
  }
  CALL(run_flat_passes, .n = n, .list = copy, .second = second);
  NAMED(run_flat_passes, wrote_run_flat_passes(list, n));
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
ENTRY(multiply_rows, x->list, x->n)
static void late_multiply_rows(ng_queue *q, const ng_rows *G, int64_t n) {
  const call x = rows_of(G, n);
  late_store_call(run_multiply_rows, &x, sizeof x);
  NAMED(multiply_rows, wrote_multiply_rows(G, n));
}
ENTRY(combine_rows, x->list, x->n)
static void late_combine_rows(ng_queue *q, const ng_rows *G, int64_t n) {
  const call x = rows_of(G, n);
  late_store_call(run_combine_rows, &x, sizeof x);
  NAMED(combine_rows, wrote_combine_rows(G, n));
}
LIST(select_largest, ng_largest, int32_t)
LIST_ALONE(count_largest, ng_largest)
LIST_ALONE(collect_largest, ng_largest)
LIST_ALONE(store_largest, ng_largest)
LIST_ALONE(pack_largest, ng_largest_pack)
ENTRY(copy_arrays, x->list, x->n)
static void late_copies(ng_queue *q, const ng_copy *list, int64_t n) {
  CALL(copy_arrays, .n = n, .list = copy_of(list, n, sizeof *list));
  NAMED(copy_arrays, wrote_copy_arrays(list, n));
}
LIST_ALONE(convert_for_wire, ng_wire_conversion)
LIST_ALONE(add_changes, ng_change)
LIST_ALONE(iterate_low_rank, ng_low_rank)

const ng_kernel_ops late_kernels = {
    .count_tiles = ng_count_tiles,
    .find_largest = late_find_largest,
    .measure_gradients = late_measure_gradients,
    .check_finite = late_all_finite,
    .read_gradients = late_read_gradients,
    .write_directions = late_write_directions,
    .store_directions = late_store_directions,
    .sum_norms = late_norms,
    .update_weights = late_update_weights,
    .count_ratios = late_count_ratios,
    .add_row_grams = late_add_row_grams,
    .add_conv_grams = late_add_conv_grams,
    .add_spatial_grams = late_add_spatial_grams,
    .add_sample_squares = late_add_sample_squares,
    .sum_patches = late_sum_patches,
    .sum_squares = late_sum_squares,
    .count_tokens = late_count_tokens,
    .accumulate = late_accumulate,
    .sum_norm_squares = late_sum_norm_squares,
    .add_norm_grams = late_add_norm_grams,
    .run_flat_passes = late_run_flat_passes,
    .multiply_rows = late_multiply_rows,
    .combine_rows = late_combine_rows,
    .select_largest = late_select_largest,
    .count_largest = late_count_largest,
    .collect_largest = late_collect_largest,
    .store_largest = late_store_largest,
    .pack_largest = late_pack_largest,
    .copy_arrays = late_copies,
    .convert_for_wire = late_convert_for_wire,
    .add_changes = late_add_changes,
    .iterate_low_rank = late_iterate_low_rank,
};
