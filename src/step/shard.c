/* shard.c: layers that are sharded over the ranks of a model group: gather whole arrays for the families.
 *
 * In: sharded observations and gradients. Out: whole observations and gradients; this rank's shard of PD.
 *
 *   observe    gather the sharded array along its features. Only the primary of the group (setup/shard_ranks.c) adds the
 *              whole array to its sums
 *   step       in the station `share`, gather the gradient if a rank of the group computes PD. Every rank computes or
 *              receives the whole PD and writes its shard
 *
 * So statistics, placement and clip refer to whole layers. A saved state contains whole moments; one rank writes each
 * shard (state/fields.c). */
#include "step/step.h"

/* Refuse clip = ratio for sharded layers. ng_set may change the clip, so every step checks it. */
ng_status ng_shards_check(ng_precond *p) {
  if (p->step->shards.blocks == 0 || !ng_clip_reads_weights(p)) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_ABSENT,
                 "sharded layers: clip = ratio needs whole weights; set another clip");
}

/* ---- observations ----------------------------------------------------------------------------*/

static bool grow_buffer(ng_precond *p, int64_t bytes) {
  ng_shards *s = &p->step->shards;
  if (bytes <= s->buffer_bytes) return true;
  char *larger = ng_object(p, (size_t)bytes);
  if (larger == NULL) return false;
  ng_object_free(p, s->buffer);
  s->buffer = larger;
  s->buffer_bytes = bytes;
  return true;
}

/* Set stride to the strides of a dense row-major array with the shape of s. */
static void set_dense_strides(const ng_strided *s, int64_t *stride) {
  for (int64_t i = s->ndim - 1, by = 1; i >= 0; by *= s->shape[i--]) {
    stride[i] = by;
  }
}

/* to [rows, all features] <- the shards in `parts`, which are stored one after the other, each with `rows` rows. */
static void interleave_shards(ng_queue *q, const ng_layer_shard *s, char *parts, int64_t rows,
                              ng_dtype t, char *to) {
  const int64_t total = s->first_element[s->members], size = ng_dtype_size(t);
  for (int32_t i = 0; i < s->members; i++) {
    const int64_t at = s->first_element[i], width = s->first_element[i + 1] - at;
    const ng_copy c = {.from = {parts + rows * at * size, t, 2, {rows, width}, {width, 1}},
                       .to = to + at * size,
                       .to_stride = {total, 1}};
    ng_kernels(q)->copy_arrays(q, &c, 1);
  }
}

static int64_t count_rows(const ng_strided *s) {
  int64_t rows = 1;
  for (int32_t i = 0; i + 1 < s->ndim; i++) {
    rows *= s->shape[i];
  }
  return rows;
}

/* Return the same status on all ranks of the model group: the worst status, or NG_ERR_STATE if `call`, a hash of the
 * observation, differs between ranks. */
static ng_status agree_on_observation(ng_precond *p, const ng_entry *e, ng_status st,
                                      uint64_t call) {
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

/* Gather the shards of an observation into the buffer, one after the other. */
static ng_status gather_observation(ng_precond *p, ng_layer_shard *shard, const ng_strided *s,
                                    int64_t rows) {
  const ng_group all = ng_group_world(p->ctx->model);
  char *gathered = p->step->shards.buffer;
  const int64_t at = rows * shard->first_element[shard->member] * ng_dtype_size(s->dtype);
  ng_copy c = {.from = *s, .to = gathered + at};
  set_dense_strides(s, c.to_stride);
  ng_kernels(p->ctx->queue)->copy_arrays(p->ctx->queue, &c, 1);
  for (int32_t i = 0; i < shard->members; i++) {
    shard->counts[i] = rows * (shard->first_element[i + 1] - shard->first_element[i]);
  }
  ng_queue_wait(p->ctx->queue); /* the transport reads the shard */
  if (ng_comm_gather(p->ctx->model, &all, gathered, shard->counts, s->dtype) == NG_OK) return NG_OK;
  return ng_exchange_failed(p, "observe");
}

/* whole->data points to a buffer that the next call overwrites. */
ng_status ng_shard_gather_observation(ng_precond *p, ng_entry *e, bool grad, const ng_strided *s,
                                      ng_status st, ng_strided *whole) {
  ng_layer_shard *shard = e->shard;
  if (!ng_shard_cuts(e, grad)) {
    if (s != NULL) *whole = *s;
    return st;
  }
  const int64_t total = shard->first_element[shard->members], rows = s == NULL ? 0 : count_rows(s);
  const int64_t size = s == NULL ? 0 : ng_dtype_size(s->dtype);
  const int64_t bytes = ng_times(ng_times(rows, total), size);
  const int64_t apart = ng_plus(bytes, NG_ALIGN) / NG_ALIGN * NG_ALIGN;
  if (st == NG_OK && !grow_buffer(p, shard->is_primary ? ng_plus(apart, bytes) : bytes)) {
    st = NG_ERR_NOMEM;
  }
  uint64_t call = ng_hash_number(ng_hash_number(0, e->block->index), grad);
  call = ng_hash_number(ng_hash_number(call, (double)rows), s == NULL ? 0.0 : (double)s->dtype);
  const ng_traffic before = ng_exchange_traffic(p);
  st = agree_on_observation(p, e, st, call);
  if (st == NG_OK && rows > 0) st = gather_observation(p, shard, s, rows);
  ng_exchange_count_early(p, NG_AT_SHARE, before);
  if (st != NG_OK) return st;
  if (!shard->is_primary) return NG_OK;
  char *gathered = p->step->shards.buffer;
  if (rows > 0) interleave_shards(p->ctx->queue, shard, gathered, rows, s->dtype, gathered + apart);
  ng_queue_wait(p->ctx->queue); /* a family may read the array on the host */
  *whole = *s;
  whole->data = gathered + apart;
  whole->shape[s->ndim - 1] = total;
  set_dense_strides(whole, whole->stride);
  return NG_OK;
}

/* ---- gradients: a station --------------------------------------------------------------------*/

/* Read a bound gradient as dense f32 rows. */
static void read_rows(ng_precond *p, const ng_slot *s, float *to) {
  const ng_read r = {.D = {&s->grad, 0, s->rows, 0, s->cols},
                     .to = to,
                     .to_row = s->cols,
                     .to_col = 1,
                     .finite = &p->step->shards.finite};
  ng_kernels(p->ctx->queue)->read_gradients(p->ctx->queue, &r, 1);
}

static void copy_floats(ng_queue *q, float *from, int64_t n, float *to) {
  const ng_copy c = {.from = {from, NG_F32, 1, {n}, {1}}, .to = to, .to_stride = {1}};
  ng_kernels(q)->copy_arrays(q, &c, 1);
}

/* Gather the gradient of a layer into shard->whole_grad. If outputs are sharded, a rank sends its rows of the weight, then
 * its elements of the bias. If inputs are sharded, a rank sends its columns of the weight; every rank has the bias. */
static ng_status gather_gradient(ng_precond *p, ng_entry *e) {
  ng_layer_shard *shard = e->shard;
  ng_queue *q = p->ctx->queue;
  const ng_layer *d = &shard->whole.d;
  const bool outputs = e->d.shard_axis == 0;
  const int64_t each =
      outputs ? d->in + d->bias
              : d->out; /* number of elements of one output (sharded outputs), or of one input
                                           * (sharded inputs) */
  float *gathered = (float *)(void *)p->arena[NG_USE_SCRATCH];
  float *mine = gathered + shard->first_element[shard->member] * each;
  float *bias = shard->whole_grad + d->out * d->in;
  read_rows(p, &e->slot[NG_WEIGHT], mine);
  if (d->bias != 0) {
    read_rows(p, &e->slot[NG_BIAS], outputs ? mine + e->d.out * d->in : bias);
  }
  ng_queue_wait(q); /* the transport reads the rows */
  for (int32_t i = 0; i < shard->members; i++) {
    shard->counts[i] = (shard->first_element[i + 1] - shard->first_element[i]) * each;
  }
  const ng_group all = ng_group_world(p->ctx->model);
  if (ng_comm_gather(p->ctx->model, &all, gathered, shard->counts, NG_F32) != NG_OK) {
    return ng_exchange_failed(p, "shards of gradients");
  }
  if (!outputs) {
    interleave_shards(q, shard, (char *)gathered, d->out, NG_F32, (char *)shard->whole_grad);
    return NG_OK;
  }
  for (int32_t i = 0; i < shard->members; i++) {
    const int64_t from = shard->first_element[i], n = shard->first_element[i + 1] - from;
    float *part = gathered + from * each;
    copy_floats(q, part, n * d->in, shard->whole_grad + from * d->in);
    if (d->bias != 0) copy_floats(q, part + n * d->in, n, bias + from);
  }
  return NG_OK;
}

/* Collective over the model group, because blocks, placement and excluded layers are equal on its ranks. */
ng_status ng_shards_gather(ng_precond *p) {
  ng_status st = NG_OK;
  ng_queue_wait(p->ctx->queue); /* queued work may still use the scratch */
  for (int32_t i = 0; i < p->entries && st == NG_OK; i++) {
    ng_entry *e = p->entry[i];
    if (e->shard == NULL || e->block == NULL || e->block->is_excluded || !e->shard->gathers)
      continue;
    st = gather_gradient(p, e);
  }
  ng_queue_wait(p->ctx->queue);
  return st;
}

/* ---- this rank's shard of PD -----------------------------------------------------------------*/

bool ng_shard_cut_direction(ng_slot *slot, ng_direction *e) {
  ng_slot *own = ng_slot_registered(slot);
  if (own == slot) return true;
  const ng_layer_shard *s = own->entry->shard;
  const bool outputs = own->entry->d.shard_axis == 0, bias = slot->param == NG_BIAS;
  ng_region *D = &e->D;
  D->place = &own->grad;
  e->overflowed = &own->overflowed;
  /* a layer that is sharded by inputs has the whole bias on every rank */
  if (!outputs && bias) return true;
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
