/* save.c: save a state to a file, a stream, or one file for each rank; write the manifest alone.
 *
 * A file is safetensors: every array of fields.c is a tensor "block/field" in published order.  The metadata has the
 * manifest (manifest.c), which contains the CRC-32 of each tensor, and the CRC-32 of the manifest.  So a load detects
 * every changed bit.  The manifest precedes the arrays, and a stream cannot seek, so arrays are visited twice: first
 * for the checksums, then to write them.
 *
 * One file: the owner broadcasts each array that rank 0 does not hold.  In parts no array is sent:
 *   PATH                  arrays of rank 0, and the manifest of all parts: format 3
 *   PATH.<id>-<r>of<n>    arrays of rank r; <id>: the checksum of the manifest, 8 digits
 *
 * All files are written and flushed under temporary names before the first rename.  The file of rank 0, which lists the
 * parts, is renamed last.  File names contain the id of their state, so an earlier state stays valid until then; its
 * parts are removed afterwards.  A failure in between may leave parts that no manifest lists. */
#include "state/work.h"

#include <sys/stat.h>

typedef struct save_data {
  ng_work w;
  int32_t parts;          /* number of files: 1, or the number of ranks */
  bool writes;            /* this rank writes a file */
  int64_t *bytes, *count; /* [parts] bytes and number of arrays of each file */
  uint8_t *on_rank0;      /* [fields] state in one file: whether rank 0 holds the array */
  ngio_tensor *tensor;    /* [fields] the arrays in the file of this rank */
  char *path;             /* path of the file that this rank writes */
  int64_t path_size;
  ng_hex id; /* checksum of the manifest */
} save_data;

/* ---- pieces of arrays -------------------------------------------------------------------------*/

static ng_part_piece slice_of(const ng_field *f, int32_t i) {
  return (ng_part_piece){.part = ng_slice_rank(f, i),
                         .from = f->slice[i],
                         .to = f->slice[i + 1],
                         .by_rows = f->by_rows};
}

/* Set *q to the piece of array f in file r.  Return false if the file has none. */
static bool piece_of(const save_data *x, const ng_field *f, int32_t r, ng_part_piece *q) {
  int32_t i = r;
  if (x->parts == 1 || f->slice == NULL) {
    *q = (ng_part_piece){.part = r, .to = f->cols, .is_whole = true};
    return x->parts == 1 || f->owner == r;
  }
  if (f->holder != NULL) {
    for (i = 0; i < f->slices && f->holder[i] != r;)
      i++;
    if (i == f->slices) return false; /* another rank holds the same slice and writes it */
  }
  *q = slice_of(f, i);
  return q->to > q->from;
}

/* Set *data to the elements of array f that this rank supplies, in published order, and *bytes to their size.  Return
 * false if this rank supplies none; then *bytes is correct only if f is not sliced. */
static bool find_own_data(const save_data *x, const ng_field *f, void **data, int64_t *bytes) {
  const int32_t rank = x->w.p->ctx->rank;
  ng_part_piece q = {.is_whole = true};
  const bool has = f->slice == NULL ? f->owner == rank : piece_of(x, f, rank, &q);
  *bytes = f->slice == NULL ? ng_field_bytes(f) : ng_tensor_describe(NULL, f, &q).bytes;
  if (has) *data = ng_field_published(f, x->w.published);
  return has;
}

/* Return whether rank 0 writes the array row by row: there is one file, and each rank holds a piece of the array. */
static bool is_gathered_by_row(const save_data *x, const ng_field *f) {
  return x->parts == 1 && f->slice != NULL;
}

/* Return the number of seals (checksums) of an array: one for each piece. */
static int64_t seal_count(const save_data *x, const ng_field *f) {
  return x->parts == 1 || f->slice == NULL ? 1 : x->parts;
}

/* ---- memory ----------------------------------------------------------------------------------*/

/* Count the bytes and arrays of each part.  Any rank can write an array that every rank holds (a moment): assign it to
 * the rank with the fewest bytes to write, equally on all ranks. */
static void assign_writers(save_data *x) {
  ng_work *w = &x->w;
  ng_part_piece q;
  for (int32_t i = 0; i < w->fields; i++) {
    const ng_field *f = &w->item[i].field;
    for (int32_t r = 0; r < x->parts && !f->is_everywhere; r++) {
      if (!piece_of(x, f, r, &q)) continue;
      x->bytes[r] += ng_tensor_describe(NULL, f, &q).bytes;
      x->count[r]++;
    }
  }
  for (int32_t i = 0; i < w->fields; i++) {
    ng_field *f = &w->item[i].field;
    int32_t least = 0;
    if (!f->is_everywhere) continue;
    for (int32_t r = 1; r < x->parts; r++)
      least = x->bytes[r] < x->bytes[least] ? r : least;
    f->owner = least;
    x->bytes[least] += ng_field_bytes(f);
    x->count[least]++;
  }
}

/* Return whether this rank writes the state without the other ranks. */
static bool is_alone(const ng_work *w) { return w->is_local || w->p->ctx->ranks == 1; }

/* A local save needs every array on this rank. */
static bool holds_all_arrays(ng_work *w) {
  for (int32_t i = 0; i < w->fields; i++) {
    const ng_field *f = &w->item[i].field;
    if (f->data == NULL || f->slice != NULL) {
      return ng_work_fail(w, NG_ERR_STATE, "rank %d does not hold all of '%s'", w->p->ctx->rank,
                          w->item[i].name);
    }
  }
  return true;
}

/* Allocate all memory first, because no rank may fail alone between two collectives. */
static void prepare_save(save_data *x, ng_precond *p, const char *call, const ng_state_file *to) {
  ng_work *w = &x->w;
  if (!ng_work_open(w, p, call, to)) return;
  ng_work_list_state(w);
  if (!ng_work_list_state_status(w)) return;
  if (w->is_local && !holds_all_arrays(w)) return;
  x->writes = x->parts > 1 || w->is_rank0;
  x->bytes = ng_work_alloc(w, x->parts * (int64_t)sizeof *x->bytes);
  x->count = ng_work_alloc(w, x->parts * (int64_t)sizeof *x->count);
  if (x->parts > 1 && w->st == NG_OK) assign_writers(x);
  int64_t more = NG_RESCUES; /* numbers after w->values: rung counters, then seals */
  for (int32_t i = 0; i < w->fields; i++)
    more += seal_count(x, &w->item[i].field);
  if (!ngio_out_reserve(&w->numbers, (size_t)more * sizeof *w->values))
    (void)ng_work_fail(w, NG_ERR_NOMEM, "no memory");
  w->values = (void *)w->numbers.text;
  w->published = ng_work_alloc_unset(w, x->parts == 1 ? w->largest : w->largest_local);
  if (x->parts == 1 && !is_alone(w)) w->memory = ng_work_alloc_unset(w, w->largest);
  x->on_rank0 = ng_work_alloc(w, w->fields);
  x->tensor = ng_work_alloc_unset(w, w->fields * (int64_t)sizeof *x->tensor);
  x->path_size = to == NULL || to->stream ? 0 : (int64_t)strlen(to->path) + NGIO_PART_ROOM;
  x->path = ng_work_alloc(w, x->path_size);
  if (w->st == NG_OK) memset(w->values + w->value_count, 0, (size_t)more * sizeof *w->values);
  w->numbers.used += (size_t)more * sizeof *w->values;
}

/* ---- the manifest ----------------------------------------------------------------------------*/

/* For one file: rank 0 supplies every array that it holds, and the owners supply the others. */
static ng_status find_suppliers(save_data *x) {
  ng_work *w = &x->w;
  if (x->parts > 1) return NG_OK;
  for (int32_t i = 0; i < w->fields && w->is_rank0; i++)
    x->on_rank0[i] = w->item[i].field.data != NULL;
  const ng_status st = ng_work_broadcast(w, x->on_rank0, w->fields, 0);
  for (int32_t i = 0; i < w->fields && st == NG_OK; i++) {
    if (x->on_rank0[i] != 0) w->item[i].field.owner = w->is_local ? w->p->ctx->rank : 0;
  }
  return st;
}

/* Gather a sliced array on rank 0, row by row; compute its seal or, if `seal` is NULL, write it to the file.
 * Collective, so it is called also after a failure of this rank. */
static ng_status process_rows(save_data *x, const ng_field *f, double *seal) {
  ng_work *w = &x->w;
  const int64_t n = ng_field_send_count(f), bytes = n * ng_dtype_size(f->dtype);
  ng_status st = NG_OK;
  uint32_t crc = 0;
  bool finite = true;
  for (int64_t row = 0; row < ng_work_transfers(f) && st == NG_OK; row++) {
    st = ng_work_gather_row(w, f, row);
    if (st != NG_OK || !w->is_rank0 || w->st != NG_OK) continue;
    if (seal != NULL) {
      crc = ng_crc32(crc, w->memory, (size_t)bytes);
      finite = finite && ng_are_finite(w->memory, f->dtype, n);
    } else {
      (void)ng_work_check_io(
          w, ngio_writer_put(w->writer, w->memory, bytes, w->message, sizeof w->message));
    }
  }
  if (seal != NULL && w->is_rank0) *seal = ng_seal(crc, finite);
  return st;
}

/* Compute the seals of the arrays that this rank supplies. */
static ng_status seal_arrays(save_data *x) {
  ng_work *w = &x->w;
  double *seal = w->values + w->value_count + NG_RESCUES;
  ng_status st = NG_OK;
  for (int32_t i = 0; i < w->fields && st == NG_OK; i++) {
    const ng_field *f = &w->item[i].field;
    void *data;
    int64_t bytes;
    if (is_gathered_by_row(x, f)) {
      st = process_rows(x, f, seal);
    } else if (find_own_data(x, f, &data, &bytes)) {
      const bool finite = ng_are_finite(data, f->dtype, bytes / ng_dtype_size(f->dtype));
      seal[f->slice == NULL ? 0 : w->p->ctx->rank] =
          ng_seal(ng_crc32(0, data, (size_t)bytes), finite);
    }
    seal += seal_count(x, f);
  }
  return st;
}

/* Two tasks of a rank that saves alone, which has all numbers already: write the manifest; compute the seals. */
static void begin_or_seal(void *arg, int32_t i) {
  save_data *x = arg;
  if (i == 0) (void)ng_manifest_begin(&x->w, x->parts);
  if (i == 1) (void)seal_arrays(x); /* cannot fail without a transport */
}

/* Gather all numbers and seals by a sum over ranks, which is exact, because all ranks but one have 0. */
static ng_status gather_numbers(save_data *x) {
  ng_work *w = &x->w;
  ng_status st = find_suppliers(x);
  for (int i = 0; i < NG_RESCUES; i++)
    w->values[w->value_count + i] = (double)w->p->rescued[i];
  if (is_alone(w)) {
    ng_parallel(w->p->ctx, 2, begin_or_seal, x);
    return NG_OK;
  }
  if (st == NG_OK) st = seal_arrays(x);
  return st == NG_OK ? ng_work_sum(w, w->values, (int64_t)(w->numbers.used / sizeof *w->values))
                     : st;
}

static void list_piece(save_data *x, const ng_item *item, const double *seal, ng_part_piece q) {
  const ng_hex crc = ng_seal_of(seal[q.is_whole ? 0 : q.part], &q.finite);
  if (x->parts == 1) {
    ng_manifest_tensor(&x->w.out, item->name, crc.text, q.finite);
    return;
  }
  q.crc = crc.text;
  ng_manifest_piece(&x->w.out, &q);
}

/* List the pieces of an array in the manifest, in the order of their columns or rows. */
static void list_array(save_data *x, const ng_item *item, const double *seal) {
  const ng_field *f = &item->field;
  ng_part_piece q;
  if (x->parts > 1) ng_manifest_open(&x->w.out, item);
  if (seal_count(x, f) == 1 && piece_of(x, f, x->parts == 1 ? 0 : f->owner, &q))
    list_piece(x, item, seal, q);
  for (int32_t i = 0; seal_count(x, f) > 1 && i < f->slices; i++) {
    q = slice_of(f, i);
    if (q.to > q.from) list_piece(x, item, seal, q);
  }
  if (x->parts > 1) {
    ngio_shut(&x->w.out, ']');
    ngio_shut(&x->w.out, '}');
  }
}

/* Write the manifest from the gathered numbers and seals.  A failure is stored in *w. */
static void make_manifest(save_data *x) {
  ng_work *w = &x->w;
  const double *seal = w->values + w->value_count + NG_RESCUES;
  if (!is_alone(w)) (void)ng_manifest_begin(w, x->parts);
  if (w->st != NG_OK) return;
  for (int32_t i = 0; i < w->fields; i++) {
    list_array(x, &w->item[i], seal);
    seal += seal_count(x, &w->item[i].field);
  }
  if (!ng_manifest_end(w, x->bytes, x->count, x->parts)) return;
  x->id = ng_hex_of(ng_crc32(0, w->out.text, w->out.used - 1));
}

/* Every rank has all numbers and seals, so all ranks write the same text. */
ng_status ng_state_manifest_text(ng_precond *p, char *text, size_t size, int64_t *length) {
  save_data x = {.parts = 1};
  ng_work *w = &x.w;
  ng_status st = NG_OK;
  prepare_save(&x, p, "ng_state_manifest", NULL);
  NG_TRY(ng_work_agree(w));
  NG_TRY(gather_numbers(&x));
  make_manifest(&x);
  NG_TRY(ng_work_agree(w));
  *length = (int64_t)w->out.used - 1;
  if (text != NULL && size > 0) {
    const size_t fits = (size_t)*length < size ? (size_t)*length : size - 1;
    memcpy(text, w->out.text, fits);
    text[fits] = 0;
  }
done:
  ng_work_close(w);
  return st;
}

/* ---- writing the files ------------------------------------------------------------------------*/

/* Begin the file of this rank.  A failure is stored in *w. */
static void begin_file(save_data *x) {
  ng_work *w = &x->w;
  const ng_state_file *to = w->file_or_stream;
  const int32_t rank = w->p->ctx->rank;
  char says[NGIO_PART_ROOM];
  ng_part_piece q;
  int32_t n = 0;
  for (int32_t i = 0; i < w->fields; i++) {
    const ng_item *item = &w->item[i];
    if (piece_of(x, &item->field, rank, &q))
      x->tensor[n++] = ng_tensor_describe(item->name, &item->field, &q);
  }
  ngio_part_text(says, rank, x->parts);
  const ngio_text first[2] = {{NG_MANIFEST, w->out.text}, {NG_MANIFEST_CRC, x->id.text}};
  const ngio_text other[2] = {{NGIO_PART, says}, {NGIO_PART_WHOLE, x->id.text}};
  const ngio_text *text = w->is_rank0 ? first : other;
  if (to->stream) {
    (void)ng_work_check_io(w, ngio_writer_stream(w->label, to->write, to->user, x->tensor, n, text,
                                                 2, &w->writer, w->message, sizeof w->message));
    return;
  }
  ngio_part_path(x->path, (size_t)x->path_size, to->path, x->id.text, rank, x->parts);
  (void)ng_work_check_io(w, ngio_writer_create(x->path, x->tensor, n, text, 2, &w->writer,
                                               w->message, sizeof w->message));
}

/* Write one array; in one file, its owner first sends it to rank 0, which so needs memory for the largest array only.
 * After a failure rank 0 continues to receive, because the other ranks do not know of the failure. */
static ng_status write_field(save_data *x, const ng_field *f) {
  ng_work *w = &x->w;
  void *data;
  int64_t bytes = 0;
  if (is_gathered_by_row(x, f)) return process_rows(x, f, NULL);
  bool has = find_own_data(x, f, &data, &bytes);
  if (x->parts == 1 && f->owner != 0) {
    if (!has) data = w->memory;
    const ng_status st = ng_work_broadcast(w, data, bytes, f->owner);
    if (st != NG_OK) return st;
    has = w->is_rank0;
  }
  if (has && x->writes && w->st == NG_OK) {
    (void)ng_work_check_io(w,
                           ngio_writer_put(w->writer, data, bytes, w->message, sizeof w->message));
  }
  return NG_OK;
}

/* On rank 0: check that all parts exist in the folder of its own file. */
static bool can_read_all_parts(save_data *x) {
  ng_work *w = &x->w;
  struct stat is;
  for (int32_t r = 1; r < x->parts; r++) {
    ngio_part_path(x->path, (size_t)x->path_size, w->file_or_stream->path, x->id.text, r, x->parts);
    if (stat(x->path, &is) == 0 && S_ISREG(is.st_mode)) continue;
    w->label = x->path;
    return ng_work_fail(
        w, NG_ERR_FILE,
        "rank %d wrote this file, but rank 0 cannot find it; all ranks need a shared folder",
        (int)r);
  }
  return true;
}

ng_status ng_state_save(ng_precond *p, const char *call, const ng_state_file *to) {
  ng_status st = ng_check_callable(p, call);
  if (st != NG_OK) return st;
  save_data x = {.parts = to->in_parts ? p->ctx->ranks : 1};
  ng_work *w = &x.w;
  prepare_save(&x, p, call, to);
  NG_TRY(ng_work_agree(w));
  if (w->is_local && to->write == NULL)
    goto done; /* the caller only asked whether a local save is possible */
  NG_TRY(gather_numbers(&x));
  if (w->is_rank0) make_manifest(&x);
  NG_TRY(ng_work_agree(w));
  NG_TRY(ng_work_broadcast(w, &x.id, (int64_t)sizeof x.id, 0));
  if (x.writes) begin_file(&x);
  NG_TRY(ng_work_agree(w));
  for (int32_t i = 0; i < w->fields; i++)
    NG_TRY(write_field(&x, &w->item[i].field));
  if (x.writes && w->st == NG_OK) {
    (void)ng_work_check_io(w, ngio_writer_flush(w->writer, w->message, sizeof w->message));
  }
  NG_TRY(ng_work_agree(w));
  if (x.writes && !w->is_rank0) {
    (void)ng_work_check_io(w, ngio_writer_finish(&w->writer, w->message, sizeof w->message));
  }
  NG_TRY(ng_work_agree(w));
  if (w->is_rank0 && can_read_all_parts(&x)) {
    /* after all ranks have written the new state, rank 0 removes the parts of earlier states */
    (void)ng_work_check_io(
        w, ngio_writer_finish_and_sweep(&w->writer, x.id.text, w->message, sizeof w->message));
  }
  NG_TRY(ng_work_agree(w));
  ng_log(p->ctx, NG_LOG_INFO, "state: saved = %s parts = %d steps = %lld",
         to->stream ? w->label : to->path, x.parts, (long long)p->steps);
done:
  ng_work_close(w);
  return st;
}
