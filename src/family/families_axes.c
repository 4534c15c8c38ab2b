/* families_axes.c: axes of parameters and their Gram matrices (axes.h). */
#include "family/axes.h"

/* ---- geometry --------------------------------------------------------------------------------*/

/* Set the axes of a parameter as PyTorch has them. Return whether the parameter is a vector. */
static bool set_axes(const ng_entry *e, const ng_slot *s, ng_axes *a) {
  const bool weight = !e->is_tensor && s->param == NG_WEIGHT && e->d.kind != NG_NORM;
  const bool conv = weight && e->d.kind == NG_CONV2D;
  *a = (ng_axes){.count = !weight ? 1 : conv ? 4 : 2, .length = {s->rows, s->cols, 1, 1}};
  if (!weight) a->length[0] = s->cols;
  if (!conv) return !weight;
  a->length[1] = e->d.in / e->d.groups;
  a->length[2] = e->d.kernel[0];
  a->length[3] = e->d.kernel[1];
  return false;
}

/* Multiply neighbouring axes, the first ones first, while the product is at most `most`. */
static void merge_from_left(ng_axes *a, int64_t most) {
  int32_t count = 0;
  for (int32_t k = 1; k < a->count; k++) {
    if (a->length[count] * a->length[k] <= most) {
      a->length[count] *= a->length[k];
    } else {
      a->length[++count] = a->length[k];
    }
  }
  a->count = count + 1;
}

/* Multiply neighbouring axes, the last ones first, while the product is at most `most` and more than `kept` axes remain. */
static void merge_from_right(ng_axes *a, int64_t most, int64_t kept) {
  for (int32_t k = a->count - 1; k > 0 && a->count > kept; k--) {
    if (a->length[k - 1] * a->length[k] > most) continue;
    a->length[k - 1] *= a->length[k];
    a->count--;
    for (int32_t j = k; j < a->count; j++) {
      a->length[j] = a->length[j + 1];
    }
  }
}

/* An axis of length 1 has the basis 1. */
static void drop_ones(ng_axes *a) {
  int32_t count = 0;
  for (int32_t k = 0; k < a->count; k++) {
    if (a->length[k] > 1) a->length[count++] = a->length[k];
  }
  if (count == 0) a->length[count++] = 1;
  a->count = count;
}

bool ng_axes_of_segment(const ng_block *b, int32_t segment, ng_axes *a) {
  const ng_settings *o = &b->base;
  const bool vector = set_axes(b->entry, b->segment[segment].slot, a);
  if (o->merge_axes == NG_MERGE_LEFT) merge_from_left(a, o->max_axis);
  drop_ones(a);
  if (o->merge_axes == NG_MERGE_RIGHT) merge_from_right(a, o->max_axis, o->kept_axes);
  return vector;
}

int32_t ng_axes_of_block(const ng_block *b, ng_axes_parameter parameter[NG_AXES_PARAMETERS]) {
  const ng_settings *o = &b->base;
  int32_t matrices = 0;
  for (int32_t i = 0; i < b->segments; i++) {
    ng_axes *a = &parameter[i].axes;
    const bool vector = ng_axes_of_segment(b, i, a);
    parameter[i].segment = i;
    parameter[i].at = b->segment[i].offset;
    for (int32_t k = 0; k < a->count; k++) {
      const int64_t n = a->length[k];
      const bool has = n > 1 && n <= o->max_axis && (!vector || o->vector_factor);
      parameter[i].part[k] = has ? matrices++ : -1;
    }
  }
  return matrices;
}

int64_t ng_axes_elements_of_block(const ng_block *b) {
  const ng_segment *last = &b->segment[b->segments - 1];
  return last->offset + last->count;
}

int64_t ng_axes_block_scratch(const ng_block *b, const ng_axes_parameter *list, int32_t count) {
  int64_t most = 0;
  for (int32_t i = 0; i < count; i++) {
    const ng_axes *a = &list[i].axes;
    const int64_t piece = list[i].is_cut ? ng_round16(ng_axes_elements(a)) : 0;
    most = ng_max64(most, ng_axes_scratch(a) + piece);
  }
  return ng_round16(ng_axes_elements_of_block(b)) + most;
}

void ng_axes_describe(ng_block *b, const ng_axes_parameter *parameter) {
  char *const why = b->entry->why;
  const size_t size = sizeof b->entry->why;
  int at = snprintf(why, size, "moments %lld", (long long)ng_axes_elements_of_block(b));
  for (int32_t i = 0; i < b->segments; i++) {
    for (int32_t k = 0; k < parameter[i].axes.count; k++) {
      const long long n = parameter[i].axes.length[k];
      if (parameter[i].part[k] < 0) continue;
      at += snprintf(why + at, size - (size_t)at, ", L.%d %lldx%lld", parameter[i].part[k], n, n);
    }
  }
}

void ng_axes_name_field(const ng_segment *s, ng_field *f) {
  ng_name_append(f->name, sizeof f->name, s->slot->param == NG_BIAS ? ".bias" : ".weight");
}

/* ---- statistics ------------------------------------------------------------------------------*/

ng_status ng_grams_declare(ng_block *b) {
  const ng_grams *k = ng_grams_of_block(b);
  if (k->matrices == 0) return NG_OK;
  ng_status st = ng_block_alloc_stats(b, 1);
  if (st == NG_OK) st = ng_stat_alloc_parts(b, b->stat, 1, k->matrices);
  if (st != NG_OK) return st;
  b->stat->name = "L";
  b->stat->observed = NG_OBSERVED_FLATGRAD;
  b->stat->spread = NG_SPREAD_LOCAL;
  b->stat->symmetric = b->stat->rule.averaged = true;
  b->stat->rule.adds = (b->family->traits & NG_TRAIT_ROOTS) != 0;
  for (int32_t i = 0; i < k->matrices; i++) {
    ng_stat_part *part = &b->stat->part[i];
    part->rows = part->cols = part->channels = k->matrix[i].n;
  }
  return NG_OK;
}

void ng_axes_read_gradients(const ng_block *b, float *D, int32_t *finite) {
  ng_queue *q = b->ctx->queue;
  ng_read list[NG_AXES_PARAMETERS];
  for (int32_t i = 0; i < b->segments; i++) {
    const ng_slot *s = b->segment[i].slot;
    list[i] = (ng_read){.D = {&s->grad, 0, s->rows, 0, s->cols},
                        .to = D + b->segment[i].offset,
                        .to_row = s->cols,
                        .to_col = 1,
                        .finite = finite};
  }
  ng_kernels(q)->read_gradients(q, list, b->segments);
}

void ng_grams_read(ng_block *b, float *D) {
  ng_direction_sums *sums = &ng_grams_of_block(b)->total;
  ng_queue *q = b->ctx->queue;
  const int64_t all = ng_axes_elements_of_block(b);
  sums->finite = 1;
  ng_axes_read_gradients(b, D, &sums->finite);
  ng_linalg(q)->sum_squares(q, 1, all, D, NG_F32, all, &sums->total[1]);
  ng_stat_scale_old(q, b->stat);
}

ng_status ng_grams_observe(ng_block *b, const ng_obs *o) {
  const ng_grams *g = ng_grams_of_block(b);
  const ng_stat *s = b->stat;
  ng_queue *q = b->ctx->queue;
  float *D = ng_scratch(b), *room = D + ng_round16(ng_axes_elements_of_block(b));
  (void)o;
  ng_grams_read(b, D);
  for (int32_t i = 0; i < g->count; i++) {
    const ng_axes *a = &g->list[i].axes;
    const float *piece = ng_piece_gather(q, &g->list[i], D, room);
    float *scratch = room + (g->list[i].is_cut ? ng_round16(ng_axes_elements(a)) : 0);
    for (int32_t k = 0; k < a->count; k++) {
      const int32_t part = g->list[i].part[k];
      if (part < 0) continue;
      ng_axes_add_gram(q, a, k, piece, (float)s->mix.fresh, s->part[part].sum, scratch);
    }
  }
  return NG_OK;
}

ng_status ng_grams_check_gradients(ng_block *b) {
  const ng_direction_sums *sums = &ng_grams_of_block(b)->total;
  const double squares = ng_read_numbers(b->ctx->queue, sums->total)[1];
  return sums->finite != 0 && squares <= ng_dtype_largest(NG_F32) ? NG_OK : NG_SKIPPED;
}

/* ---- solve, report ---------------------------------------------------------------------------*/

ng_status ng_grams_check_orders(const ng_block *b, const char *advice) {
  const ng_grams *k = ng_grams_of_block(b);
  for (int32_t i = 0; i < k->matrices; i++) {
    const long long n = k->matrix[i].n;
    if (ng_blas_accepts_order(n)) continue;
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "layer '%s': a matrix of order %lld exceeds 32-bit LAPACK; %s", b->name, n,
                   advice);
  }
  return NG_OK;
}

ng_status ng_grams_store_rung(ng_block *b, int32_t rung) {
  float *info = ng_grams_of_block(b)->info;
  if (rung == NG_DAMPED_NONE)
    rung = info[NG_GRAMS_WERE_GOOD] != 0.0F ? NG_RUNG_LAST : NG_RUNG_PLAIN;
  info[NG_GRAMS_RUNG] = (float)rung;
  if (rung < NG_RUNG_LAST) info[NG_GRAMS_WERE_GOOD] = 1.0F;
  ng_count_rung(b->p, rung);
  return rung > 0 ? NG_RESCUED : NG_OK;
}

void ng_grams_write_report(const ng_block *b, ng_layer_report *report) {
  const float *info = ng_grams_of_block(b)->info;
  if (info == NULL) return;
  report->rung = ng_rung_from_float(info[NG_GRAMS_RUNG]);
  if ((b->family->traits & NG_TRAIT_ROOTS) != 0) report->damping_f = b->base.damping;
}
