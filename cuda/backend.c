/* backend.c: the backend `cuda` and its kernels over gradients: descriptors of kernel/kernel.h, rewritten for the device and copied there, then
 * one or a few launches for a whole list. Entries return before their work is done. */
#include <math.h>
#include <string.h>

#include "device_entries.h"

/* ---- descriptors -----------------------------------------------------------------------------*/

dv_place ng_device_place(const ng_place *v) {
  dv_place p = {.data = v->data,
                .dtype = (int32_t)v->dtype,
                .has_dense_rows = v->has_dense_rows,
                .axes = v->axes,
                .row_stride = v->row_stride};
  memcpy(p.extent, v->extent, sizeof p.extent);
  memcpy(p.stride, v->stride, sizeof p.stride);
  return p;
}

bool ng_device_is_aligned(const void *at) { return (uintptr_t)at % 16 == 0; }

static bool is_flat(const ng_place *v, const ng_region *D) {
  return v->dtype == NG_F32 && v->has_dense_rows && v->row_stride == D->cols && D->row == 0 &&
         D->col == 0 && D->cols % 4 == 0 && D->rows * D->cols <= INT32_MAX &&
         ng_device_is_aligned(v->data);
}

dv_region ng_device_region(const ng_region *D) {
  return (dv_region){ng_device_place(D->place), D->row, D->rows, D->col, D->cols,
                     is_flat(D->place, D)};
}
static int64_t tiles(int64_t rows, int64_t cols) { return blocks_of(rows * cols, DV_TILE); }
static int64_t tiles_of(const ng_region *D) { return tiles(D->rows, D->cols); }

dv_direction ng_device_direction(const ng_direction *e, float *to) {
  const bool one_u = e->u == NULL || (e->map == NULL && e->u_row == 0 && e->u_col == 1 &&
                                      ng_device_is_aligned(e->u));
  return (dv_direction){.D = ng_device_region(&e->D),
                        .scale = e->scale,
                        .k = e->k,
                        .u = e->u,
                        .u_row = e->u_row,
                        .u_col = e->u_col,
                        .map = e->map,
                        .u_double = e->u_double,
                        .y_double = e->y_double,
                        .y = e->y,
                        .to = to,
                        .overflowed = (int64_t *)(void *)e->overflowed,
                        .clip_bound = e->clip_bound,
                        .is_stored = e->is_stored,
                        .is_rank_one =
                            one_u && !e->is_stored && e->u_double == NULL && e->y_double == NULL,
                        .uses_double = e->uses_double};
}

dv_update ng_device_update(const ng_direction *e, const ng_weight_update *s) {
  dv_update to = {.weight = ng_device_place(s->weight),
                  .m = s->m,
                  .v = s->v,
                  .cols = s->cols,
                  .coefficients = {(float)s->coefficients[0], (float)s->coefficients[1]},
                  .is_sgd = s->sgd != NULL,
                  .is_flat = is_flat(s->weight, &e->D) && s->m != NULL &&
                             ng_device_is_aligned(s->m) && s->cols == e->D.cols};
  dv_wide_update *w = &to.wide;
  w->coefficients[0] = s->coefficients[0], w->coefficients[1] = s->coefficients[1];
  if (s->sgd != NULL) {
    w->lr = s->sgd->lr, w->mu = s->sgd->mu, w->keep = s->sgd->keep, w->decay = s->sgd->decay;
    to.nesterov = s->sgd->nesterov;
  } else {
    w->b1 = s->adamw->b1, w->b2 = s->adamw->b2, w->n1 = s->adamw->n1, w->n2 = s->adamw->n2;
    w->keep = s->adamw->keep, w->eps = s->adamw->eps;
  }
  to.lr = (float)w->lr, to.mu = (float)w->mu, to.keep = (float)w->keep;
  to.decay = (float)w->decay, to.b1 = (float)w->b1, to.b2 = (float)w->b2;
  to.n1 = (float)w->n1, to.n2 = (float)w->n2, to.eps = (float)w->eps;
  return to;
}

/* Lists of directions and updates on the device; after an error `list` is NULL. */
typedef struct emission {
  void *list, *updates;
  cut cut;
} emission;

static emission emission_of(ng_device *d, const ng_direction *e, float *const *to,
                            const ng_weight_update *s, int64_t n) {
  emission x = {0};
  if (!ng_stage_begin(d)) return x;
  dv_direction *list = ng_stage_allocate(d, n, sizeof *list);
  dv_update *updates = s == NULL ? NULL : ng_stage_allocate(d, n, sizeof *updates);
  if (list == NULL || (s != NULL && updates == NULL) || !cut_begin(d, n, &x.cut)) return x;
  for (int64_t i = 0; i < n; i++) {
    list[i] = ng_device_direction(&e[i], to == NULL ? NULL : to[i]);
    if (s != NULL) updates[i] = ng_device_update(&e[i], &s[i]);
    cut_add(&x.cut, tiles_of(&e[i].D));
  }
  x.list = ng_stage_address(d, list);
  if (s != NULL) x.updates = ng_stage_address(d, updates);
  return x;
}

/* ---- gradients -------------------------------------------------------------------------------*/

static void scan(ng_queue *q, const ng_strided *a, int64_t n, double *out) {
  ng_device *d = q->device;
  cut c;
  if (!ng_stage_begin(d)) return;
  dv_array *list = ng_stage_allocate(d, n, sizeof *list);
  if (list == NULL || !cut_begin(d, n, &c)) return;
  for (int64_t i = 0; i < n; i++, a++) {
    dv_array *to = &list[i];
    *to = (dv_array){
        .data = a->data, .dtype = (int32_t)a->dtype, .ndim = a->ndim, .count = 1, .out = &out[i]};
    for (int32_t k = 0; k < a->ndim; k++) {
      to->count *= a->shape[k];
    }
    memcpy(to->shape, a->shape, sizeof to->shape);
    memcpy(to->stride, a->stride, sizeof to->stride);
    cut_add(&c, blocks_of(to->count, DV_TILE));
  }
  void *at = ng_stage_address(d, list);
  ng_stage_zero(d, out, (size_t)n * sizeof *out);
  LAUNCH(d, dv_scan_tiles, cut_blocks(&c), &at, &c.on_device, &n);
}

dv_measure ng_device_measure(const ng_measure *m) {
  dv_measure to = {.D = ng_device_region(&m->D), .x = m->x, .y = m->y, .t = m->t, .out = m->out};
  to.has_bias = m->bias.place != NULL;
  if (to.has_bias) to.bias = ng_device_region(&m->bias);
  to.D.is_flat = to.D.is_flat && ng_device_is_aligned(m->x);
  return to;
}

static void measure(ng_queue *q, const ng_measure *m, int64_t n, double *unused) {
  (void)unused;
  ng_device *d = q->device;
  cut all, rows;
  if (!ng_stage_begin(d)) return;
  dv_measure *list = ng_stage_allocate(d, n, sizeof *list);
  if (list == NULL || !cut_begin(d, n, &all) || !cut_begin(d, n, &rows)) return;
  for (int64_t i = 0; i < n; i++, m++) {
    list[i] = ng_device_measure(m);
    cut_add(&all, tiles_of(&m->D));
    cut_add(&rows, m->t != NULL ? m->D.rows : 0);
  }
  void *at = ng_stage_address(d, list), *none = NULL;
  double *sums = ng_stage_scratch(d, 2 * cut_blocks(&all), sizeof *sums);
  int32_t two = 2;
  LAUNCH(d, dv_measure_tiles, cut_blocks(&all), &at, &all.on_device, &n, &sums);
  LAUNCH(d, dv_measure_rows, cut_blocks(&rows), &at, &rows.on_device, &n);
  LAUNCH(d, dv_add_tiles, n, &at, &all.on_device, &two, &sums, &none);
  if (cut_blocks(&rows) > 0) LAUNCH(d, dv_measure_add_squares_of_t, n, &at);
}

static void check_finite(ng_queue *q, const ng_region *a, int64_t n, int32_t *out) {
  ng_device *d = q->device;
  cut c;
  int32_t one = 1;
  if (!ng_stage_begin(d)) return;
  dv_read *list = ng_stage_allocate(d, n, sizeof *list);
  if (list == NULL || !cut_begin(d, n, &c)) return;
  for (int64_t i = 0; i < n; i++) {
    list[i] = (dv_read){.D = ng_device_region(&a[i]), .finite = &out[i]};
    cut_add(&c, tiles_of(&a[i]));
  }
  void *at = ng_stage_address(d, list);
  LAUNCH(d, dv_fill, blocks_of(n, DV_THREADS), &out, &n, &one);
  LAUNCH(d, dv_read_tiles, cut_blocks(&c), &at, &c.on_device, &n);
}

static void copy(ng_queue *q, const ng_read *r, int64_t n) {
  ng_device *d = q->device;
  cut c;
  if (!ng_stage_begin(d)) return;
  dv_read *list = ng_stage_allocate(d, n, sizeof *list);
  if (list == NULL || !cut_begin(d, n, &c)) return;
  for (int64_t i = 0; i < n; i++, r++) {
    list[i] = (dv_read){
        ng_device_region(&r->D), r->to, r->to_double, r->to_row, r->to_col, r->map, r->finite};
    cut_add(&c, tiles_of(&r->D));
  }
  void *at = ng_stage_address(d, list);
  LAUNCH(d, dv_read_tiles, cut_blocks(&c), &at, &c.on_device, &n);
}

/* ---- directions ------------------------------------------------------------------------------*/

static void emit(ng_queue *q, const ng_direction *e, int64_t n) {
  ng_device *d = q->device;
  emission x = emission_of(d, e, NULL, NULL, n);
  if (x.list == NULL) return;
  LAUNCH(d, dv_emit_tiles, cut_blocks(&x.cut), &x.list, &x.cut.on_device, &n);
}

static void store(ng_queue *q, const ng_direction *e, float *const *to, int64_t n) {
  ng_device *d = q->device;
  emission x = emission_of(d, e, to, NULL, n);
  if (x.list == NULL) return;
  LAUNCH(d, dv_store_tiles, cut_blocks(&x.cut), &x.list, &x.cut.on_device, &n);
}

static void norm2(ng_queue *q, const ng_direction *e, int64_t n, double *unused, double *out) {
  (void)unused;
  ng_device *d = q->device;
  emission x = emission_of(d, e, NULL, NULL, n);
  if (x.list == NULL) return;
  double *sums = ng_stage_scratch(d, cut_blocks(&x.cut), sizeof *sums);
  void *none = NULL;
  int32_t one = 1;
  LAUNCH(d, dv_norm2_tiles, cut_blocks(&x.cut), &x.list, &x.cut.on_device, &n, &sums);
  LAUNCH(d, dv_add_tiles, n, &none, &x.cut.on_device, &one, &sums, &out);
}

static void update(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n) {
  ng_device *d = q->device;
  emission x = emission_of(d, e, NULL, s, n);
  if (x.list == NULL) return;
  void *none = NULL;
  LAUNCH(d, dv_update_tiles, cut_blocks(&x.cut), &x.list, &x.updates, &x.cut.on_device, &n, &none);
}

static void ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,
                   const ng_ratios *to) {
  ng_device *d = q->device;
  emission x = emission_of(d, e, NULL, s, n);
  dv_ratios *of = ng_stage_allocate(d, 1, sizeof *of);
  if (x.list == NULL || of == NULL) return;
  *of = (dv_ratios){to->bin, to->bins, to->count, to->extreme};
  const int64_t counts = to->bins == 0 ? NG_RATIO_BINS : (int64_t)to->bins * NG_RATIO_FINE_BINS;
  double *sums = ng_stage_scratch(d, 4 * cut_blocks(&x.cut), sizeof *sums), *out = to->out;
  int64_t *all = ng_stage_allocate(d, 2, sizeof *all), one = 1;
  if (sums == NULL || all == NULL) return;
  all[0] = 0, all[1] = cut_blocks(&x.cut);
  void *at = ng_stage_address(d, of), *every = ng_stage_address(d, all), *none = NULL;
  double *ends = to->extreme;
  int32_t dropped = NG_RATIO_DROPPED_BITS, fine = NG_RATIO_FINE_BINS, four = 4;
  ng_stage_zero(d, to->count, (size_t)counts * sizeof *to->count);
  LAUNCH(d, dv_ratio_begin, one, &ends);
  LAUNCH(d, dv_ratio_tiles, cut_blocks(&x.cut), &x.list, &x.updates, &x.cut.on_device, &n, &at,
         &sums, &dropped, &fine);
  LAUNCH(d, dv_add_tiles, one, &none, &every, &four, &sums, &out);
}

/* ---- windows, on the host --------------------------------------------------------------------*/

/* Wait for the device; return a copy of q with the backend of the host (ON_HOST), or after an error with backend NULL. */
ng_queue ng_device_host_queue(ng_queue *q) {
  ng_queue host = *q;
  ng_device *d = q->device;
  if (ng_stage_begin(d)) ng_stage_wait(d);
  d->host_entries++;
  host.backend = ng_device_error(d) == NULL ? q->backend->under : NULL;
  host.device = NULL;
  return host;
}

/* All descriptors of a list have the same arrays. */
static void host_add_sample_squares(ng_queue *q, const ng_sample_squares *s, int64_t n,
                                    float *scratch) {
  dv_desk *desk = q->device->desk;
  if (n > 0 && !(dv_is_shared(desk, s->x.data) && dv_is_shared(desk, s->g.data)))
    ng_stage_keep_error(q->device, "the host adds the squares of method = ekfac, and cannot access "
                                   "an observed array, which is memory of the device");
  ng_queue host = ng_device_host_queue(q);
  if (host.backend != NULL) host.backend->kernels->add_sample_squares(&host, s, n, scratch);
}

/* clang-format off */
ON_HOST(kernels, multiply_rows, (ng_queue *q, const ng_rows *G, int64_t n), (&host, G, n))
ON_HOST(kernels, combine_rows, (ng_queue *q, const ng_rows *G, int64_t n), (&host, G, n))
ON_HOST(kernels, select_largest, (ng_queue *q, const ng_largest *v, int64_t n, int32_t *count), (&host, v, n, count))
ON_HOST(kernels, count_largest, (ng_queue *q, const ng_largest *v, int64_t n), (&host, v, n))
ON_HOST(kernels, collect_largest, (ng_queue *q, const ng_largest *v, int64_t n), (&host, v, n))
ON_HOST(kernels, store_largest, (ng_queue *q, const ng_largest *v, int64_t n), (&host, v, n))
ON_HOST(kernels, pack_largest, (ng_queue *q, const ng_largest_pack *p, int64_t n), (&host, p, n))
ON_HOST(kernels, iterate_low_rank, (ng_queue *q, const ng_low_rank *w, int64_t n), (&host, w, n))
/* clang-format on */

/* ---- the table -------------------------------------------------------------------------------*/

static const ng_kernel_ops table = {
    .count_tiles = tiles,
    .find_largest = scan,
    .measure_gradients = measure,
    .check_finite = check_finite,
    .read_gradients = copy,
    .write_directions = emit,
    .store_directions = store,
    .sum_norms = norm2,
    .update_weights = update,
    .count_ratios = ratios,
    .add_row_grams = ng_device_add_row_grams,
    .add_conv_grams = ng_device_add_conv_grams,
    .add_sample_squares = host_add_sample_squares,
    .sum_patches = ng_device_sum_patches,
    .sum_squares = ng_device_sum_squares,
    .sum_norm_squares = ng_device_sum_norm_squares,
    .add_norm_grams = ng_device_add_norm_grams,
    .add_spatial_grams = ng_device_add_spatial_grams,
    .count_tokens = ng_device_count_tokens,
    .accumulate = ng_device_accumulate,
    .run_flat_passes = ng_device_run_flat_passes,
    .multiply_rows = host_multiply_rows,
    .combine_rows = host_combine_rows,
    .select_largest = host_select_largest,
    .count_largest = host_count_largest,
    .collect_largest = host_collect_largest,
    .store_largest = host_store_largest,
    .pack_largest = host_pack_largest,
    .copy_arrays = ng_device_copy_arrays,
    .convert_for_wire = ng_device_convert_for_wire,
    .add_changes = ng_device_add_changes,
    .iterate_low_rank = host_iterate_low_rank,
    .eva_bytes = ng_device_eva_bytes,
    .upload_eva = ng_device_upload_eva,
    .step_eva = ng_device_step_eva,
};

static const char *open_queue(ng_queue *q) { return ng_device_open(q, &q->device); }
static void close_queue(ng_queue *q) { ng_device_close(q->device); }
static void wait_queue(ng_queue *q) { ng_stage_wait(q->device); }
static const char *error_of_queue(const ng_queue *q) { return ng_device_error(q->device); }
static void name_blocks(ng_queue *q, const char *first, const char *last) {
  q->device->named = (ng_block_names){first, last};
}
static bool can_access(const ng_queue *q, const void *at) {
  return dv_can_access(q->device->desk, at);
}

const ng_backend ng_backend_device = {.name = "cuda",
                                      .linalg = &ng_device_linalg,
                                      .kernels = &table,
                                      .alloc = ng_device_alloc,
                                      .free = ng_device_free,
                                      .open = open_queue,
                                      .close = close_queue,
                                      .wait = wait_queue,
                                      .error = error_of_queue,
                                      .name_blocks = name_blocks,
                                      .can_access = can_access};

__attribute__((visibility("default"))) const ng_backend *ng_cuda_backend(int32_t version) {
  return version == NG_VERSION ? &ng_backend_device : NULL;
}
