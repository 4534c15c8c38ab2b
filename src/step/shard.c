/* shard.c: layers that are sharded over the ranks of a model group: gather whole arrays for the families.
 *
 * In: sharded observations and gradients.  Out: whole observations and gradients; this rank's shard of PD.
 *
 *   observe    gather sharded arrays along the features.  Only the primary (setup/shard_ranks.c) adds arrays of a
 *              sharded layer to its sums
 *   step       gather the gradient shards if a rank of the group computes PD (station share).  Every rank computes or
 *              receives the whole PD and writes its shard
 *
 * So statistics, placement and clip refer to whole layers.  A saved state has whole moments, each shard written by one
 * rank (state/fields.c).  A gather is an all-gather, or broadcasts if the transport has no all-gather. */
#include "step/step.h"

/* Refuse clip = ratio. ng_set may change the clip, so every step checks it. */
ng_status ng_shards_check(ng_precond *p) {
  if (p->step->shards.blocks == 0 || !ng_clip_reads_weights(p)) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ABSENT,
                 "sharded layers: clip = ratio needs whole weights; set another clip");
}

/* ---- observations ----------------------------------------------------------------------------*/

static bool grow_buffer(ng_precond *p, int64_t bytes) {
  ng_shards *s = &p->step->shards;
  if (bytes <= s->buffer_bytes) return true;
  char *room = ng_object(p, (size_t)bytes);
  if (room == NULL) return false;
  ng_object_free(p, s->buffer);
  s->buffer = room;
  s->buffer_bytes = bytes;
  return true;
}

/* Copy the elements of `s` to dense row-major memory at `to`. */
static void pack(const ng_strided *s, char *to) {
  const int64_t size = ng_dtype_size(s->dtype), cols = s->shape[s->ndim - 1];
  const int64_t by = s->stride[s->ndim - 1];
  int64_t at[NG_DIMS] = {0}, offset = 0;
  for (;;) {
    const char *from = (const char *)s->data + offset * size;
    if (by == 1) {
      memcpy(to, from, (size_t)(cols * size));
    } else {
      for (int64_t c = 0; c < cols; c++) {
        memcpy(to + c * size, from + c * by * size, (size_t)size);
      }
    }
    to += cols * size;
    int32_t k = s->ndim - 2;
    for (; k >= 0 && ++at[k] == s->shape[k]; k--) {
      offset -= (s->shape[k] - 1) * s->stride[k];
      at[k] = 0;
    }
    if (k < 0) return;
    offset += s->stride[k];
  }
}

/* to <- rows of the whole array. parts: shard after shard, each with `rows` rows; size: bytes of an element. */
static void interleave(const ng_layer_shard *s, const char *parts, int64_t rows, int64_t size,
                       char *to) {
  const int64_t total = s->first_element[s->members];
  for (int32_t i = 0; i < s->members; i++) {
    const int64_t width = (s->first_element[i + 1] - s->first_element[i]) * size;
    const char *from = parts + rows * s->first_element[i] * size;
    for (int64_t r = 0; r < rows; r++) {
      memcpy(to + (r * total + s->first_element[i]) * size, from + r * width, (size_t)width);
    }
  }
}

static int64_t rows_of(const ng_strided *s) {
  int64_t rows = 1;
  for (int32_t i = 0; i + 1 < s->ndim; i++) {
    rows *= s->shape[i];
  }
  return rows;
}

/* Return one status on all ranks of the model group.  NG_ERR_STATE if `call`, a hash of the observation, differs. */
static ng_status agree(ng_precond *p, const ng_entry *e, ng_status st, uint64_t call) {
  const int32_t M = p->ctx->model->size;
  double x[NG_CODES + NG_HASH_PIECES];
  char who[320];
  ng_codes_write(x, st);
  ng_hash_split(x + NG_CODES, call);
  const ng_status sent =
      ng_exchange_sum_over(p, p->ctx->model, x, NG_CODES + NG_HASH_PIECES, "observe");
  if (sent != NG_OK) return sent;
  (void)snprintf(who, sizeof who, "ranks of the model group at layer '%s'", e->d.name);
  const ng_status worst = ng_exchange_worst_status(p, x, st, who);
  if (worst < NG_OK) return worst;
  if (ng_codes_count(x, NG_SKIPPED) > 0) return NG_SKIPPED;
  if (ng_hash_sums_agree(x + NG_CODES, M)) return NG_OK;
  return ng_fail(
      p->ctx, NG_ERR_STATE,
      "layer '%s': the layer, rows or dtype of this observation differ between ranks of the "
      "model group",
      e->d.name);
}

/* Gather the shards of an observation into the buffer, shard after shard. */
static ng_status gather_observation(ng_precond *p, ng_layer_shard *shard, const ng_strided *s,
                                    int64_t rows) {
  const ng_group all = ng_group_world(p->ctx->model);
  char *room = p->step->shards.buffer;
  pack(s, room + rows * shard->first_element[shard->member] * ng_dtype_size(s->dtype));
  for (int32_t i = 0; i < shard->members; i++) {
    shard->counts[i] = rows * (shard->first_element[i + 1] - shard->first_element[i]);
  }
  if (ng_comm_gather(p->ctx->model, &all, room, shard->counts, s->dtype) == NG_OK) return NG_OK;
  return ng_exchange_failed(p, "observe");
}

/* *whole points to a buffer that the next call overwrites. See step.h. */
ng_status ng_shard_gather_observation(ng_precond *p, ng_entry *e, bool grad, const ng_strided *s,
                                      ng_status st, ng_strided *whole) {
  ng_layer_shard *shard = e->shard;
  if (!ng_shard_cuts(e, grad)) {
    if (s != NULL) *whole = *s;
    return st;
  }
  const int64_t total = shard->first_element[shard->members], rows = s == NULL ? 0 : rows_of(s);
  const int64_t size = s == NULL ? 0 : ng_dtype_size(s->dtype);
  const int64_t bytes = ng_times(ng_times(rows, total), size);
  const int64_t apart = ng_plus(bytes, NG_ALIGN) / NG_ALIGN * NG_ALIGN;
  if (st == NG_OK && !grow_buffer(p, shard->is_primary ? ng_plus(apart, bytes) : bytes)) {
    st = NG_ERR_NOMEM;
  }
  uint64_t call = ng_hash_number(ng_hash_number(0, e->block->index), grad);
  call = ng_hash_number(ng_hash_number(call, (double)rows), s == NULL ? 0.0 : (double)s->dtype);
  const ng_traffic before = ng_exchange_traffic(p);
  st = agree(p, e, st, call);
  if (st == NG_OK && rows > 0) st = gather_observation(p, shard, s, rows);
  ng_exchange_count_early(p, NG_AT_SHARE, before);
  if (st != NG_OK) return st;
  if (!shard->is_primary) return NG_OK;
  char *room = p->step->shards.buffer;
  if (rows > 0) interleave(shard, room, rows, size, room + apart);
  *whole = *s;
  whole->data = room + apart;
  whole->shape[s->ndim - 1] = total;
  for (int64_t i = s->ndim - 1, by = 1; i >= 0; by *= whole->shape[i--]) {
    whole->stride[i] = by;
  }
  return NG_OK;
}

/* ---- gradients: a station --------------------------------------------------------------------*/

/* Read a bound gradient as dense f32 rows. */
static void read_rows(const ng_slot *s, float *to) {
  for (int64_t r = 0; r < s->rows; r++) {
    ng_slot_read(s, r, 0, s->cols, to + r * s->cols);
  }
}

/* Gather the gradient of a layer into shard->grad.  If outputs are sharded, a rank sends its rows of the weight, then
 * of the bias. */
static ng_status gather(ng_precond *p, ng_entry *e) {
  ng_layer_shard *shard = e->shard;
  const ng_layer *d = &shard->whole.d;
  const bool outputs = e->d.shard_axis == 0;
  const int64_t each =
      outputs ? d->in + d->bias : d->out; /* elements of one output, or of one input */
  float *room = (float *)(void *)p->arena[NG_USE_SCRATCH];
  float *mine = room + shard->first_element[shard->member] * each;
  float *bias = shard->whole_grad + d->out * d->in;
  read_rows(&e->slot[NG_WEIGHT], mine);
  if (d->bias != 0) {
    read_rows(&e->slot[NG_BIAS], outputs ? mine + e->d.out * d->in : bias);
  }
  for (int32_t i = 0; i < shard->members; i++) {
    shard->counts[i] = (shard->first_element[i + 1] - shard->first_element[i]) * each;
  }
  const ng_group all = ng_group_world(p->ctx->model);
  if (ng_comm_gather(p->ctx->model, &all, room, shard->counts, NG_F32) != NG_OK) {
    return ng_exchange_failed(p, "shards of gradients");
  }
  if (!outputs) {
    interleave(shard, (const char *)room, d->out, (int64_t)sizeof(float),
               (char *)shard->whole_grad);
    return NG_OK;
  }
  for (int32_t i = 0; i < shard->members; i++) {
    const int64_t from = shard->first_element[i], n = shard->first_element[i + 1] - from;
    const float *part = room + from * each;
    memcpy(shard->whole_grad + from * d->in, part, (size_t)(n * d->in) * sizeof *part);
    if (d->bias != 0) memcpy(bias + from, part + n * d->in, (size_t)n * sizeof *part);
  }
  return NG_OK;
}

/* Collective over the model group: blocks, placement and excluded layers are equal on its ranks. */
ng_status ng_shards_gather(ng_precond *p) {
  ng_status st = NG_OK;
  ng_queue_wait(p->ctx->queue); /* until no queued work uses the scratch */
  for (int32_t i = 0; i < p->entries && st == NG_OK; i++) {
    ng_entry *e = p->entry[i];
    if (e->shard == NULL || e->block == NULL || e->block->is_excluded || !e->shard->gathers)
      continue;
    st = gather(p, e);
  }
  return st;
}

/* ---- this rank's shard of PD -----------------------------------------------------------------*/

/* Describe only this rank's shard of a direction of a whole layer. Return false if the shard has no element of e. */
bool ng_shard_cut_direction(ng_slot *slot, ng_direction *e) {
  ng_slot *own = ng_slot_registered(slot);
  if (own == slot) return true;
  const ng_layer_shard *s = own->entry->shard;
  const bool outputs = own->entry->d.shard_axis == 0, bias = slot->param == NG_BIAS;
  ng_region *D = &e->D;
  D->place = &own->grad;
  e->overflowed = &own->overflowed;
  if (!outputs && bias) return true; /* the whole bias of a layer that is sharded by inputs */
  const bool rows = outputs && !bias;
  int64_t *at = rows ? &D->row : &D->col, *n = rows ? &D->rows : &D->cols;
  const int64_t from = s->first_element[s->member], begin = ng_max64(*at, from);
  const int64_t end = ng_min64(*at + *n, s->first_element[s->member + 1]), skip = begin - *at;
  *at = begin - from;
  *n = end - begin;
  if (e->map != NULL && !rows) {
    e->map += skip;
  } else if (e->u != NULL) {
    e->u += skip * (rows ? e->u_row : e->u_col);
  }
  if (e->u_double != NULL && !rows) e->u_double += skip;
  if (e->y != NULL && rows) e->y += skip;
  if (e->y_double != NULL && rows) e->y_double += skip;
  return *n > 0;
}
