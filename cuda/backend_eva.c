/* backend_eva.c: a step of Eva on the device (eva.cu): copy the lists once, then launch four kernels for each step. */
#include "device_entries.h"

_Static_assert(sizeof(dv_eva_numbers) == sizeof(ng_eva_numbers) &&
                   sizeof(dv_eva_group) == sizeof(ng_eva_group),
               "the kernels read the numbers of the host");

/* What `memory` contains: lists of the host, in this order and in one copy, then scratch of the kernels. */
typedef struct eva_layout {
  size_t head, mean, layer, measure, direction, update, first, layer_of, group_of, copied;
  size_t norm2, inner, c, sums, is_refused, is_wide, skipped, bytes;
} eva_layout;

static size_t after(size_t *at, int64_t n, size_t size) {
  const size_t from = *at;
  *at += ((size_t)n * size + 255) / 256 * 256;
  return from;
}

static eva_layout layout_of(int64_t parameters, int64_t layers, int64_t tiles) {
  eva_layout o;
  size_t at = 0;
  o.head = after(&at, 1, sizeof(dv_eva));
  o.mean = after(&at, 2 * layers, sizeof(dv_mean));
  o.layer = after(&at, layers, sizeof(dv_layer));
  o.measure = after(&at, parameters, sizeof(dv_measure));
  o.direction = after(&at, parameters, sizeof(dv_direction));
  o.update = after(&at, parameters, sizeof(dv_update));
  o.first = after(&at, parameters + 1, sizeof(int64_t));
  o.layer_of = after(&at, parameters, sizeof(int32_t));
  o.group_of = after(&at, parameters, sizeof(int32_t));
  o.copied = at;
  o.norm2 = after(&at, 2 * layers, sizeof(double));
  o.inner = after(&at, layers, sizeof(double));
  o.c = after(&at, layers, sizeof(double));
  o.sums = after(&at, 2 * tiles, sizeof(double));
  o.is_refused = after(&at, 2 * layers, sizeof(int32_t));
  o.is_wide = after(&at, layers, sizeof(int32_t));
  o.skipped = after(&at, 1, sizeof(int32_t));
  o.bytes = at;
  return o;
}

size_t ng_device_eva_bytes(int64_t parameters, int64_t layers, int64_t tiles) {
  return layout_of(parameters, layers, tiles).bytes;
}

/* Write the means and layers to the lists at `host`; addresses in `to` are of the device. */
static void list_layers(const ng_eva_lists *l, const eva_layout *o, char *host, char *to) {
  dv_mean *mean = (dv_mean *)(void *)(host + o->mean);
  dv_layer *layer = (dv_layer *)(void *)(host + o->layer);
  double *norm2 = (double *)(void *)(to + o->norm2);
  int32_t *refused = (int32_t *)(void *)(to + o->is_refused);
  for (int64_t i = 0; i < 2 * l->curved; i++) {
    const ng_eva_mean *m = &l->mean[i];
    mean[i] = (dv_mean){.mean = m->average,
                        .sum = m->sum,
                        .n = m->n,
                        .starts_first = m->starts_first,
                        .started = m->started,
                        .is_refused = &refused[i],
                        .norm2 = &norm2[i]};
  }
  for (int64_t i = 0; i < l->curved; i++) {
    layer[i].alpha = &norm2[2 * i];
    layer[i].beta = &norm2[2 * i + 1];
  }
}

/* Write the parameters, their tiles, and the tiles of the layers. */
static void list_parameters(ng_eva_lists *l, const eva_layout *o, char *host) {
  dv_layer *layer = (dv_layer *)(void *)(host + o->layer);
  dv_measure *measure = (dv_measure *)(void *)(host + o->measure);
  dv_direction *direction = (dv_direction *)(void *)(host + o->direction);
  dv_update *update = (dv_update *)(void *)(host + o->update);
  int64_t *first = (int64_t *)(void *)(host + o->first);
  int32_t *layer_of = (int32_t *)(void *)(host + o->layer_of);
  int32_t *group_of = (int32_t *)(void *)(host + o->group_of);
  first[0] = 0;
  for (int64_t i = 0; i < l->parameters; i++) {
    const ng_region *D = &l->measure[i].D;
    measure[i] = ng_device_measure(&l->measure[i]);
    direction[i] = ng_device_direction(&l->direction[i], NULL);
    update[i] = ng_device_update(&l->direction[i], &l->update[i]);
    layer_of[i] = l->layer_of[i];
    group_of[i] = l->group_of[i];
    first[i + 1] = first[i] + blocks_of(D->rows * D->cols, DV_TILE);
    dv_layer *of = &layer[layer_of[i]];
    if (i == 0 || layer_of[i] != layer_of[i - 1]) of->from = first[i];
    of->to = first[i + 1];
  }
  l->tiles = first[l->parameters];
}

void ng_device_upload_eva(ng_queue *q, ng_eva_lists *l) {
  ng_device *d = q->device;
  char *to = l->memory;
  int64_t tiles = 0;
  if (!ng_stage_begin(d)) return;
  for (int64_t i = 0; i < l->parameters; i++) {
    tiles += blocks_of(l->measure[i].D.rows * l->measure[i].D.cols, DV_TILE);
  }
  const eva_layout o = layout_of(l->parameters, l->layers, tiles);
  char *host = ng_stage_allocate(d, 1, o.copied);
  if (host == NULL) return;
  memset(host, 0, o.copied);
  list_layers(l, &o, host, to);
  list_parameters(l, &o, host);
  *(dv_eva *)(void *)(host + o.head) =
      (dv_eva){.layer = (dv_layer *)(void *)(to + o.layer),
               .layers = l->layers,
               .means = 2 * l->curved,
               .parameters = l->parameters,
               .sums = (double *)(void *)(to + o.sums),
               .direction = (dv_direction *)(void *)(to + o.direction),
               .update = (dv_update *)(void *)(to + o.update),
               .layer_of = (int32_t *)(void *)(to + o.layer_of),
               .group_of = (int32_t *)(void *)(to + o.group_of),
               .is_refused = (int32_t *)(void *)(to + o.is_refused),
               .inner = (double *)(void *)(to + o.inner),
               .c = (double *)(void *)(to + o.c),
               .is_wide = (int32_t *)(void *)(to + o.is_wide),
               .skipped = (int32_t *)(void *)(to + o.skipped),
               .updates = l->updates};
  ng_stage_copy(d, to, host, o.copied);
  if (d->error[0] == '\0' && d->sent < d->used) d->sent = d->used; /* not once more by a launch */
}

void ng_device_step_eva(ng_queue *q, const ng_eva_lists *l, ng_eva_numbers *now) {
  ng_device *d = q->device;
  const eva_layout o = layout_of(l->parameters, l->layers, l->tiles);
  char *at = l->memory;
  void *head = at + o.head, *mean = at + o.mean, *measure = at + o.measure, *first = at + o.first;
  void *direction = at + o.direction, *update = at + o.update, *sums = at + o.sums;
  void *skipped = at + o.skipped;
  int64_t n = l->parameters;
  LAUNCH(d, dv_eva_fold, 2 * l->curved, &mean, &now);
  LAUNCH(d, dv_measure_tiles, l->tiles, &measure, &first, &n, &sums);
  LAUNCH(d, dv_eva_clip_and_scale, 1, &head, &now);
  LAUNCH(d, dv_update_tiles, l->tiles, &direction, &update, &first, &n, &skipped);
}
