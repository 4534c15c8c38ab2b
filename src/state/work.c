/* work.c: see work.h. */
#include "state/work.h"

#include <stdarg.h>
#include <stdlib.h>

_Static_assert(NG_F32 == (int)NGIO_F32 && NG_F64 == (int)NGIO_F64 && NG_F16 == (int)NGIO_F16 &&
                   NG_BF16 == (int)NGIO_BF16 && NG_I32 == (int)NGIO_I32 &&
                   NG_I64 == (int)NGIO_I64 && NG_U8 == (int)NGIO_U8,
               "ngio_dtype and ng_dtype have the same values");

/* ---- memory ----------------------------------------------------------------------------------*/

void *ng_work_alloc_unset(ng_work *w, int64_t bytes) {
  void *memory = ng_object_unset(w->p, (size_t)ng_max64(bytes, 1));
  if (memory == NULL) (void)ng_work_fail(w, NG_ERR_NOMEM, "no memory");
  return memory;
}

void *ng_work_alloc(ng_work *w, int64_t bytes) {
  void *memory = ng_work_alloc_unset(w, bytes);
  return memory == NULL ? NULL : memset(memory, 0, (size_t)bytes);
}

static void *counted_alloc(void *ctx, size_t bytes) { return ng_alloc(ctx, bytes); }
static void counted_free(void *ctx, void *ptr, size_t bytes) { ng_free(ctx, ptr, bytes); }

ngio_alloc ng_work_data_alloc(ng_work *w) {
  return (ngio_alloc){counted_alloc, counted_free, w->p->ctx};
}

/* ---- tensors ---------------------------------------------------------------------------------*/

ngio_tensor ng_tensor_describe(const char *name, const ng_field *f, const ng_part_piece *q) {
  ngio_tensor t = {.name = name, .dtype = (ngio_dtype)f->dtype, .ndim = f->is_symmetric ? 1 : 2};
  t.shape[0] = f->is_symmetric ? ng_field_count(f) : f->rows;
  t.shape[1] = f->is_symmetric ? 0 : f->cols;
  if (q != NULL && !q->is_whole) t.shape[q->by_rows ? 0 : 1] = q->to - q->from;
  t.bytes = ngio_bytes_of(t.dtype, t.shape, t.ndim);
  return t;
}

const char *ng_tensor_difference(const ngio_tensor *expected, const ngio_tensor *t) {
  if (t == NULL) return "is missing";
  if (t->dtype != expected->dtype) return "has another dtype than in this model";
  const bool same = t->ndim == expected->ndim && t->shape[0] == expected->shape[0] &&
                    (t->ndim < 2 || t->shape[1] == expected->shape[1]);
  return same ? NULL : "has another shape than in this model";
}

/* ---- the lists of arrays and numbers ---------------------------------------------------------*/

/* Every rank knows the size of the array, also if f->data is NULL on this rank.  Set the columns that this rank has. */
static void list_field(void *arg, ng_field *f) {
  ng_work *w = arg;
  const int32_t rank = w->p->ctx->rank;
  const int64_t size = ng_dtype_size(f->dtype);
  if (f->holder == NULL) {
    f->slices = w->p->ctx->ranks;
    f->from = f->slice == NULL ? 0 : f->slice[rank];
    f->to = f->slice != NULL ? f->slice[rank + 1] : f->data == NULL ? 0 : f->cols;
  }
  const ng_item item = {.field = *f};
  w->widths |= size;
  w->largest = ng_max64(w->largest, ng_field_send_count(f) * size);
  if (f->slice == NULL && f->data != NULL)
    w->largest_local = ng_max64(w->largest_local, ng_field_bytes(f));
  ngio_out_bytes(&w->items, &item, sizeof item);
  ngio_out_put(&w->names, w->key);
  ngio_out_bytes(&w->names, "/", 1);
  ngio_out_bytes(&w->names, f->name, strlen(f->name) + 1);
}

/* A number of a block belongs to the owner of the block or of a statistic, and is 0 on all other ranks; so a sum over
 * ranks gives every rank all numbers. */
static void list_number(void *arg, ng_number *n) {
  ng_work *w = arg;
  const int32_t owner = n->stat != NULL ? n->stat->owner : w->block->owner;
  const double x = w->is_local || owner == w->p->ctx->rank ? *n->value : 0.0;
  ngio_out_bytes(&w->numbers, &x, sizeof x);
  ngio_out_bytes(&w->number_names, n->name, strlen(n->name) + 1);
}

static int compare_widths(const void *a, const void *b) {
  const ng_item *x = a, *y = b;
  const int64_t wider = ng_dtype_size(y->field.dtype) - ng_dtype_size(x->field.dtype);
  return wider != 0 ? (int)wider : x->name < y->name ? -1 : 1;
}

/* Visit each key only once: with many blocks a visit is slow, because their memory is not in the cache. */
void ng_work_list_state(ng_work *w) {
  ng_precond *p = w->p;
  for (int32_t k = 0; k < ng_state_keys(p); k++) {
    w->key = ng_state_key(p, k);
    ng_state_key_fields(p, k, list_field, w);
    if (k < p->blocks) {
      w->block = p->block[k];
      ng_block_numbers(p->block[k], list_number, w);
      ngio_out_bytes(&w->number_names, "", 1);
    } else {
      const double missed = w->is_rank0 ? (double)p->entry[k - p->blocks]->missed_updates : 0.0;
      ngio_out_bytes(&w->numbers, &missed, sizeof missed);
    }
  }
}

bool ng_work_list_state_status(ng_work *w) {
  if (w->items.lost || w->names.lost || w->numbers.lost || w->number_names.lost)
    return ng_work_fail(w, NG_ERR_NOMEM, "no memory");
  w->item = (void *)w->items.text;
  w->fields = (int32_t)(w->items.used / sizeof *w->item);
  w->values = (void *)w->numbers.text;
  w->value_count = (int64_t)(w->numbers.used / sizeof *w->values);
  const char *name = w->names.text;
  for (int32_t i = 0; i < w->fields; i++, name += strlen(name) + 1)
    w->item[i].name = name;
  /* most models have elements of one size and need no sort */
  if ((w->widths & (w->widths - 1)) != 0)
    qsort(w->item, (size_t)w->fields, sizeof *w->item, compare_widths);
  return true;
}

/* ---- opening and closing ---------------------------------------------------------------------*/

bool ng_work_open(ng_work *w, ng_precond *p, const char *call, const ng_state_file *at) {
  const bool local = at != NULL && at->local;
  *w = (ng_work){.p = p,
                 .last_object = p->objects,
                 .label = call,
                 .file_or_stream = at,
                 .is_local = local,
                 .is_rank0 = local || p->ctx->rank == 0,
                 .source.fd = -1};
  const char *error = ng_step_settle(p);
  if (error != NULL)
    return ng_work_fail(w, NG_ERR_DEVICE, "linalg = %s: %s", p->ctx->queue->backend->name, error);
  if (at != NULL && !at->stream && (at->path == NULL || at->path[0] == 0)) {
    return ng_work_fail(w, NG_ERR_ARG, "no path given");
  }
  if (at != NULL && at->stream && !local && w->is_rank0 && at->read == NULL && at->write == NULL) {
    return ng_work_fail(w, NG_ERR_ARG, "the callback is NULL on rank 0");
  }
  if (p->step->has_begun) {
    return ng_work_fail(w, NG_ERR_STATE,
                        "called between ng_begin and a step, expected between steps");
  }
  if (at != NULL) w->label = at->stream ? "the stream" : at->path;
  return true;
}

void ng_work_close(ng_work *w) {
  ngio_writer_abandon(&w->writer);
  ngio_tensors_close(&w->file);
  ngio_source_close(&w->source);
  ngio_json_free(&w->manifest);
  ngio_out_free(&w->out);
  ngio_out_free(&w->items);
  ngio_out_free(&w->names);
  ngio_out_free(&w->numbers);
  ngio_out_free(&w->number_names);
  ng_objects_free_after(w->p, w->last_object);
}

/* ---- collectives -----------------------------------------------------------------------------*/

static ng_status fail_transport(ng_work *w) {
  ng_exchange_abort(w->p);
  return ng_fail(w->p->ctx, NG_ERR_COMM, "%s: the transport failed; every rank returns this error",
                 w->label);
}

ng_status ng_work_sum(ng_work *w, double *x, int64_t count) {
  ng_comm *c = w->p->ctx->comm;
  const ng_group world = ng_group_world(c);
  if (w->is_local) return NG_OK;
  return ng_comm_sum(c, &world, x, count, NG_F64) == NG_OK ? NG_OK : fail_transport(w);
}

ng_status ng_work_broadcast(ng_work *w, void *buffer, int64_t bytes, int32_t root) {
  ng_comm *c = w->p->ctx->comm;
  const ng_group world = ng_group_world(c);
  if (w->is_local || c->size == 1 || bytes == 0) return NG_OK;
  return ng_comm_broadcast(c, &world, buffer, bytes, NG_U8, root) == NG_OK ? NG_OK
                                                                           : fail_transport(w);
}

/* Slice bounds count rows or columns.  Return the number of contiguous elements for each of these in a row to send. */
static int64_t slice_unit(const ng_field *f) { return f->by_rows ? f->cols : 1; }

int64_t ng_work_transfers(const ng_field *f) { return f->by_rows ? 1 : f->rows; }

void ng_work_copy_part(ng_work *w, const ng_field *f, int64_t row, bool out) {
  const int64_t size = ng_dtype_size(f->dtype) * slice_unit(f);
  const int64_t n = (f->to - f->from) * size;
  char *all = (char *)w->memory + f->from * size;
  if (n == 0) return;
  char *mine = (char *)f->data + row * n;
  memcpy(out ? all : mine, out ? mine : all, (size_t)n);
}

ng_status ng_work_gather_row(ng_work *w, const ng_field *f, int64_t row) {
  const int64_t size = ng_dtype_size(f->dtype) * slice_unit(f);
  ng_status st = NG_OK;
  ng_work_copy_part(w, f, row, true);
  for (int32_t i = 0; i < f->slices && st == NG_OK; i++) {
    st = ng_work_broadcast(w, (char *)w->memory + f->slice[i] * size,
                           (f->slice[i + 1] - f->slice[i]) * size, ng_slice_rank(f, i));
  }
  return st;
}

ng_status ng_work_agree(ng_work *w) {
  double code[NG_CODES];
  uint8_t failed = 0;
  int32_t from = -1;
  ng_codes_write(code, w->st);
  if (ng_work_sum(w, code, NG_CODES) != NG_OK) return NG_ERR_COMM;
  const ng_status worst = ng_codes_worst(code);
  if (worst >= NG_OK) return NG_OK;
  while (failed == 0) {
    failed = w->st < NG_OK;
    if (ng_work_broadcast(w, &failed, 1, ++from) != NG_OK) return NG_ERR_COMM;
  }
  if (ng_work_broadcast(w, w->message, (int64_t)sizeof w->message, from) != NG_OK) {
    return NG_ERR_COMM;
  }
  if (worst == NG_ERR_DEVICE) w->p->is_broken = true;
  if (worst == NG_ERR_DEVICE && w->is_local) ng_exchange_abort(w->p);
  return ng_fail(w->p->ctx, worst, "%s", w->message);
}

bool ng_work_check_io(ng_work *w, ngio_status st) {
  if (st != NGIO_OK) w->st = st == NGIO_ERR_NOMEM ? NG_ERR_NOMEM : NG_ERR_FILE;
  return st == NGIO_OK;
}

bool ng_work_fail(ng_work *w, ng_status st, const char *format, ...) {
  va_list args;
  if (w->st != NG_OK) return false;
  w->st = st;
  const int at = snprintf(w->message, sizeof w->message, "%s: ", w->label);
  if (at < 0 || at >= (int)sizeof w->message) return false;
  va_start(args, format);
  (void)vsnprintf(w->message + at, sizeof w->message - (size_t)at, format, args);
  va_end(args);
  return false;
}

/* ---- checksums -------------------------------------------------------------------------------*/

ng_hex ng_hex_of(uint32_t crc) {
  static const char digit[] = "0123456789abcdef";
  ng_hex h;
  for (int i = 0; i < 8; i++)
    h.text[i] = digit[crc >> (28 - 4 * i) & 15];
  h.text[8] = 0;
  return h;
}

static const double FINITE_MARK = 4294967296.0;

double ng_seal(uint32_t crc, bool finite) { return crc + (finite ? FINITE_MARK : 0.0); }

ng_hex ng_seal_of(double seal, bool *finite) {
  *finite = seal >= FINITE_MARK;
  return ng_hex_of((uint32_t)(*finite ? seal - FINITE_MARK : seal));
}
