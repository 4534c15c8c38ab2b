/* backend_sums.c: the entries of backend.c over observed arrays: patches, squares, Gram matrices, norm layers. */
#include <string.h>

#include "device_entries.h"

dv_view ng_device_view(const ng_view *v) {
  dv_view x = {.data = v->data,
               .dtype = (int32_t)v->dtype,
               .axes = v->axes,
               .samples = v->samples,
               .positions = v->positions,
               .columns = v->columns,
               .sample_stride = v->sample_stride,
               .position_stride = v->position_stride,
               .column_stride = v->column_stride,
               .run_length = v->run_length};
  memcpy(x.extent, v->extent, sizeof x.extent);
  memcpy(x.stride, v->stride, sizeof x.stride);
  return x;
}

/* Describe the first `samples` samples of v. If c is not NULL, also describe the geometry of patches. */
static dv_sum sum_of(const ng_view *v, int64_t samples, const ng_conv *c) {
  dv_sum s = {.x = ng_device_view(v), .samples = samples, .taps = 1};
  if (c == NULL) return s;
  s.height = c->height, s.width = c->width;
  s.out_height = c->out_height, s.out_width = c->out_width, s.taps = ng_conv_taps(c);
  memcpy(s.kernel, c->kernel, sizeof s.kernel);
  memcpy(s.stride, c->stride, sizeof s.stride);
  memcpy(s.padding, c->padding, sizeof s.padding);
  memcpy(s.dilation, c->dilation, sizeof s.dilation);
  return s;
}

void ng_device_sum_patches(ng_queue *q, const ng_box *b, int64_t n, double *unused) {
  (void)unused;
  ng_device *d = q->device;
  for (const ng_box *end = b + n; b < end; b++) {
    dv_sum s = sum_of(&b->x, b->samples, &b->conv);
    s.out = b->out;
    ng_stage_zero(d, b->out, sizeof *b->out);
    LAUNCH(d, dv_box_channels, b->conv.channels * blocks_of(s.taps, DV_TAPS), &s);
  }
}

void ng_device_sum_squares(ng_queue *q, const ng_squares *s, int64_t n) {
  ng_device *d = q->device;
  cut c;
  if (!ng_stage_begin(d)) return;
  dv_sum *list = ng_stage_allocate(d, n, sizeof *list);
  if (list == NULL || !cut_begin(d, n, &c)) return;
  for (int64_t i = 0; i < n; i++, s++) {
    list[i] = sum_of(&s->x, s->samples, NULL);
    list[i].reduce = s->reduce;
    list[i].out = s->out;
    cut_add(&c, s->x.columns);
  }
  void *at = ng_stage_address(d, list);
  LAUNCH(d, dv_square_columns, cut_blocks(&c), &at, &c.on_device, &n);
}

/* Gram matrices of at least this order are computed by BLAS from rows in f32: the array itself, or packed rows, DV_PACKED
 * numbers at once (fewer in tests). */
enum { BLAS_ORDER = 64 };
#if !defined(DV_PACKED)
#define DV_PACKED (16 << 20)
#endif

/* Return the distance of the rows of g if they are f32 rows in memory, otherwise 0. */
static int64_t row_distance(const dv_gram *g) {
  const dv_view *x = &g->of.x;
  const bool rows = x->dtype == DV_F32 && x->column_stride == 1 && x->axes == 0 && !g->has_ones &&
                    !g->has_patches && g->of.reduce == 0;
  if (!rows || (x->positions > 1 && x->sample_stride != x->positions * x->position_stride))
    return 0;
  const int64_t distance = x->positions > 1 ? x->position_stride : x->sample_stride;
  return distance >= g->p ? distance : 0;
}

static bool is_by_blas(const dv_gram *g) { return g->S64 == NULL && g->p >= BLAS_ORDER; }

static int64_t count_rows(const dv_gram *g) {
  const int64_t positions = g->has_patches ? g->of.out_height * g->of.out_width : g->of.x.positions;
  return g->of.samples * (g->of.reduce != 0 ? 1 : positions);
}

/* Return how many rows are packed at a time. */
static int64_t count_packed(const dv_gram *g) {
  return ng_min64(count_rows(g), ng_max64(1, DV_PACKED / g->p));
}

static void gram_by_blas(ng_queue *q, const dv_gram *g, const dv_gram *at, float *packed) {
  ng_device *d = q->device;
  const ng_sym S = {g->S, g->p};
  const int64_t rows = count_rows(g), distance = row_distance(g), most = count_packed(g);
  if (distance > 0) {
    const float *x = (const float *)(const void *)g->of.x.data + g->c0;
    ng_device_linalg.add_gram(q, S, 0, g->p, x, rows, distance, g->alpha);
    return;
  }
  for (int64_t from = 0, count; from < rows && packed != NULL; from += count) {
    count = ng_min64(rows - from, most);
    LAUNCH(d, dv_gram_pack, blocks_of(count, DV_GRAM) * blocks_of(g->p, DV_GRAM), &at, &from,
           &count, &packed);
    ng_device_linalg.add_gram(q, S, 0, g->p, packed, count, g->p, g->alpha);
  }
}

static void gram(ng_queue *q, const ng_gram *g, int64_t n, bool has_patches) {
  ng_device *d = q->device;
  cut c, rows64;
  if (!ng_stage_begin(d)) return;
  dv_gram *list = ng_stage_allocate(d, n, sizeof *list);
  if (list == NULL || !cut_begin(d, n, &c) || !cut_begin(d, n, &rows64)) return;
  for (int64_t i = 0; i < n; i++, g++) {
    dv_gram *to = &list[i];
    *to = (dv_gram){.of = sum_of(&g->x, g->samples, has_patches ? &g->conv : NULL),
                    .c0 = g->c0,
                    .c1 = g->c1,
                    .has_patches = has_patches,
                    .has_ones = g->has_ones,
                    .alpha = (float)g->alpha,
                    .wide_alpha = g->alpha,
                    .S = g->S.a,
                    .S64 = g->S64};
    to->of.reduce = g->reduce;
    to->p = to->of.taps * (g->c1 - g->c0) + (g->has_ones ? 1 : 0);
    const int64_t across = g->samples > 0 ? blocks_of(to->p, DV_GRAM) : 0;
    cut_add(&c, g->S64 == NULL && to->p < BLAS_ORDER ? across * (across + 1) / 2 : 0);
    cut_add(&rows64, g->S64 != NULL && g->samples > 0 ? to->p : 0);
  }
  dv_gram *at = ng_stage_address(d, list);
  LAUNCH(d, dv_gram_squares, cut_blocks(&c), &at, &c.on_device, &n);
  LAUNCH(d, dv_gram_rows64, cut_blocks(&rows64), &at, &rows64.on_device, &n);
  int64_t most = 0; /* floats of the packed rows of one matrix, which all matrices share */
  for (int64_t i = 0; i < n; i++) {
    if (is_by_blas(&list[i]) && row_distance(&list[i]) == 0)
      most = ng_max64(most, count_packed(&list[i]) * list[i].p);
  }
  float *packed = most > 0 ? ng_stage_scratch(d, most, sizeof *packed) : NULL;
  for (int64_t i = 0; i < n; i++) {
    if (is_by_blas(&list[i])) gram_by_blas(q, &list[i], &at[i], packed);
  }
}
void ng_device_add_row_grams(ng_queue *q, const ng_gram *g, int64_t n, float *unused) {
  (void)unused;
  gram(q, g, n, false);
}
void ng_device_add_conv_grams(ng_queue *q, const ng_gram *g, int64_t n, float *unused) {
  (void)unused;
  gram(q, g, n, true);
}

void ng_device_add_spatial_grams(ng_queue *q, const ng_gram *g, int64_t n, float *unused) {
  (void)unused;
  ng_device *d = q->device;
  cut c, entries;
  if (!ng_stage_begin(d)) return;
  dv_gram *list = ng_stage_allocate(d, n, sizeof *list);
  if (list == NULL || !cut_begin(d, n, &c) || !cut_begin(d, n, &entries)) return;
  for (int64_t i = 0; i < n; i++, g++) {
    list[i] = (dv_gram){.of = sum_of(&g->x, g->samples, &g->conv),
                        .c0 = g->c0,
                        .c1 = g->c1,
                        .p = ng_conv_taps(&g->conv),
                        .alpha = (float)g->alpha,
                        .wide_alpha = g->alpha,
                        .S = g->S.a,
                        .S64 = g->S64};
    const int64_t *kernel = g->conv.kernel;
    cut_add(&c, DV_SLICES * ((kernel[0] - 1) * (2 * kernel[1] - 1) + kernel[1]));
    cut_add(&entries, blocks_of(list[i].p * list[i].p, DV_THREADS));
  }
  void *at = ng_stage_address(d, list);
  double *sums = ng_stage_scratch(d, cut_blocks(&c), sizeof *sums);
  LAUNCH(d, dv_spatial_sums, cut_blocks(&c), &at, &c.on_device, &n, &sums);
  LAUNCH(d, dv_spatial_add, cut_blocks(&entries), &at, &entries.on_device, &c.on_device, &n, &sums);
}

/* ---- norm layers -----------------------------------------------------------------------------*/

/* Compute the gradients q of the samples of k. Return the address of the descriptor on the device, or NULL after an
 * error. */
static void *norm_gradients(ng_device *d, const ng_norm_sum *k, double **q) {
  const ng_norm_layer *l = &k->layer;
  if (!ng_stage_begin(d)) return NULL;
  const int64_t width = ng_norm_width(l), raw = l->input == NG_NORM_RAW && l->has_gamma;
  const int64_t sets = l->kind == NG_BATCH_NORM   ? l->channels
                       : l->kind == NG_LAYER_NORM ? k->x.samples * k->x.positions
                                                  : k->x.samples * l->groups;
  dv_norm *to = ng_stage_allocate(d, 1, sizeof *to);
  double *moments = raw ? ng_stage_scratch(d, 2 * sets, sizeof *moments) : NULL;
  *q = ng_stage_scratch(d, k->samples * width, sizeof **q);
  if (to == NULL || *q == NULL || (raw && moments == NULL)) return NULL;
  *to = (dv_norm){.x = ng_device_view(&k->x),
                  .g = ng_device_view(&k->g),
                  .eps = l->eps,
                  .samples = k->samples,
                  .channels = l->channels,
                  .groups = l->kind == NG_GROUP_NORM ? l->groups : 1,
                  .width = width,
                  .kind = (int32_t)l->kind,
                  .has_gamma = l->has_gamma,
                  .has_beta = l->has_beta,
                  .products = k->products};
  void *at = ng_stage_address(d, to);
  if (raw) LAUNCH(d, dv_norm_moments, sets, &at, &moments);
  LAUNCH(d, dv_norm_gradients, k->samples * l->channels, &at, &moments, q);
  return at;
}

void ng_device_sum_norm_squares(ng_queue *queue, const ng_norm_sum *k, int64_t n, void *unused) {
  (void)unused;
  ng_device *d = queue->device;
  for (const ng_norm_sum *end = k + n; k < end; k++) {
    double *q, *X = k->X;
    void *at = norm_gradients(d, k, &q);
    int32_t *bad = ng_stage_scratch(d, 1, sizeof *bad);
    if (at == NULL || bad == NULL) return;
    ng_stage_zero(d, bad, sizeof *bad);
    LAUNCH(d, dv_norm_squares, blocks_of(3 * k->layer.channels, DV_THREADS), &at, &q, &X, &bad);
    LAUNCH(d, dv_norm_report_nonfinite, 1, &bad, &X);
  }
}

void ng_device_add_norm_grams(ng_queue *queue, const ng_norm_sum *k, int64_t n, void *unused) {
  (void)unused;
  ng_device *d = queue->device;
  for (const ng_norm_sum *end = k + n; k < end; k++) {
    double *q, alpha = k->alpha;
    int32_t dtype = (int32_t)k->dtype;
    void *at = norm_gradients(d, k, &q), *S = k->S;
    if (at == NULL) return;
    LAUNCH(d, dv_norm_gram, ng_norm_width(&k->layer), &at, &q, &alpha, &S, &dtype);
  }
}
