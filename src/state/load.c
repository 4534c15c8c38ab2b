/* load.c: load a state from a file, a stream, or the files of several ranks.  After an error the model is unchanged.
 *
 * Rank 0 reads the header of the first file, and all ranks compare its manifest with their model.  Then
 * - one file or a stream: rank 0 reads and checks all arrays and sends them;
 * - parts: each rank reads and checks the elements that it needs, from the files that have them.  A part that no rank
 *   needs (because it is empty, for example) is checked by one rank.
 * So a state can be loaded on any number of ranks and with any placement.
 *
 * Memory for arrays is allocated only after header and manifest are checked, because a damaged file may claim any
 * size. */
#include "state/work.h"

enum { CHUNK = 1 << 18, LANES = 16 }; /* bytes read at once; tasks of a parallel loop */

/* A piece of an array. */
typedef struct piece {
  ng_part_piece listed; /* the piece as the manifest lists it */
  int32_t item;         /* index of the array in ng_work.item */
  bool is_wanted;       /* this rank needs elements of the piece */
  /* state in parts: offset in `staged` of this rank's elements of the array */
  int64_t staged_offset;
  const ngio_tensor *tensor; /* the tensor of the open file */
  const char *error;         /* text of an error in the data, or NULL */
} piece;

typedef struct load_data {
  ng_work w;
  ng_snapshot snapshot;
  bool is_single_file; /* the state is one file or a stream, which rank 0 reads */
  ng_hex id;           /* checksum of the manifest: the id of the state */
  /* text of the manifest, which parsing changes; before share_manifest only rank 0 has it */
  char *text;
  int64_t text_bytes;
  piece *piece; /* [pieces] in the order of items */
  int64_t pieces;
  ngio_out list;    /* memory of `piece` */
  bool *reads_part; /* [parts] whether this rank needs elements of the part */
  char *path, *buffer;
  char *staged; /* state in parts: this rank's elements of all arrays, in published order */
} load_data;

static bool refuse_tensor(load_data *x, int32_t item, const char *why) {
  return ng_work_fail(&x->w, NG_ERR_FILE, "tensor '%s' %s", x->w.item[item].name, why);
}

/* ---- the manifest ----------------------------------------------------------------------------*/

static bool parse_manifest(load_data *x) {
  ng_work *w = &x->w;
  const ngio_status st =
      ngio_json_parse_here(x->text, (size_t)x->text_bytes, &w->manifest, NULL, 0);
  if (st == NGIO_ERR_NOMEM) return ng_work_fail(w, NG_ERR_NOMEM, "no memory for the manifest");
  return st == NGIO_OK || ng_work_fail(w, NG_ERR_FILE, "the manifest is not JSON");
}

/* Run the tasks of a large read on the threads of the context. */
static void run_on_threads(void *user, int32_t n, void (*each)(void *arg, int32_t i), void *arg) {
  ng_parallel(user, n, each, arg);
}

/* On rank 0: open the file, read its header and find the manifest, a text in the header.  A failure is stored in *w. */
static bool read_header(load_data *x) {
  ng_work *w = &x->w;
  const ng_state_file *from = w->file_or_stream;
  const ngio_alloc alloc = ng_work_data_alloc(w);
  ngio_status st = NGIO_OK;
  if (from->stream) {
    ngio_source_stream(&w->source, w->label, from->read, from->user);
  } else {
    st = ngio_source_open(&w->source, from->path, w->message, sizeof w->message);
  }
  if (!ng_work_check_io(w, st) ||
      !ng_work_check_io(
          w, ngio_tensors_begin(&w->source, &alloc, &w->file, w->message, sizeof w->message))) {
    return false;
  }
  /* the text lies in memory of w->file */
  x->text = (char *)ngio_tensors_text(w->file, NG_MANIFEST);
  const char *crc = ngio_tensors_text(w->file, NG_MANIFEST_CRC);
  const char *part = ngio_tensors_text(w->file, NGIO_PART);
  if (part != NULL) {
    return ng_work_fail(w, NG_ERR_FILE, "is part %s of a state; load the file without this suffix",
                        ngio_printable(part).text);
  }
  if (x->text == NULL || crc == NULL || ngio_tensors_text_count(w->file) != 2) {
    return ng_work_fail(w, NG_ERR_FILE, "is a safetensors file without a state of natgrad");
  }
  x->text_bytes = (int64_t)strlen(x->text);
  x->id = ng_hex_of(ng_crc32(0, x->text, (size_t)x->text_bytes));
  if (!ng_is(crc, x->id.text)) {
    return ng_work_fail(w, NG_ERR_FILE, "the manifest is damaged (its checksum differs)");
  }
  return true;
}

/* Two tasks: read the header; list the arrays.  Only the first one allocates memory of the context. */
static void read_or_list(void *arg, int32_t i) {
  load_data *x = arg;
  if (i == 1) ng_work_list_state(&x->w);
  if (i == 0 && x->w.is_rank0 && !x->w.file_or_stream->stream) (void)read_header(x);
}

/* A stream is read by the caller's thread. */
static void prepare_load(load_data *x, ng_precond *p, const char *call, const ng_state_file *from) {
  ng_work *w = &x->w;
  if (!ng_work_open(w, p, call, from)) return;
  ng_parallel(p->ctx, 2, read_or_list, x);
  if (from->stream && w->is_rank0) (void)read_header(x);
  if (ng_work_list_state_status(w) && p->ctx->ranks > 1)
    w->memory = ng_work_alloc_unset(w, w->largest);
  w->source.threads = (ngio_threads){run_on_threads, p->ctx};
}

/* Send the manifest to all ranks; each rank parses it and compares it with its model. */
static ng_status share_manifest(load_data *x) {
  ng_work *w = &x->w;
  ng_status st = NG_OK;
  NG_TRY(ng_work_broadcast(w, &x->text_bytes, (int64_t)sizeof x->text_bytes, 0));
  /* allocate one byte more, for the terminating 0 */
  if (!w->is_rank0) x->text = ng_work_alloc(w, x->text_bytes + 1);
  NG_TRY(ng_work_agree(w));
  NG_TRY(ng_work_broadcast(w, x->text, x->text_bytes, 0));
  if (!w->is_rank0) x->id = ng_hex_of(ng_crc32(0, x->text, (size_t)x->text_bytes));
  if (parse_manifest(x) && ng_manifest_read(w, &x->snapshot) && x->snapshot.parts > 1 &&
      w->file_or_stream->stream) {
    (void)ng_work_fail(w, NG_ERR_FILE, "is one of several files of a state; use ng_load");
  }
  NG_TRY(ng_work_agree(w));
done:
  return st;
}

/* ---- the pieces that this rank reads ----------------------------------------------------------*/

/* Return the elements of an array that this rank reads: all from a single file, otherwise those that it holds. */
static ng_rect own_rect(const load_data *x, const ng_field *f) {
  return x->is_single_file ? (ng_rect){0, f->rows, 0, f->cols}
                           : ng_rect_of(f, f->by_rows, f->from, f->to);
}

static ng_rect piece_rect(const piece *q, const ng_field *f) {
  return ng_rect_of(f, q->listed.by_rows, q->listed.from, q->listed.to);
}

static int64_t rect_bytes(const ng_field *f, const ng_rect *box) {
  const int64_t n = (box->bottom - box->top) * (box->right - box->left);
  return n == 0 ? 0 : f->is_symmetric ? ng_field_bytes(f) : n * ng_dtype_size(f->dtype);
}

static ng_rect intersect_rects(ng_rect a, ng_rect b) {
  return (ng_rect){ng_max64(a.top, b.top), ng_min64(a.bottom, b.bottom), ng_max64(a.left, b.left),
                   ng_min64(a.right, b.right)};
}

/* Append the pieces of array i to the list.  Return false if its entry in the manifest is invalid. */
static bool list_pieces(load_data *x, int32_t i, const ngio_value *entry, int64_t at) {
  const ng_field *f = &x->w.item[i].field;
  const ngio_value *list = x->is_single_file ? NULL : ng_pieces_check(entry, f, x->snapshot.parts);
  const ngio_value *v = x->is_single_file ? entry : ngio_first(list);
  for (; v != NULL; v = x->is_single_file ? NULL : ngio_next(list, v)) {
    piece q = {.listed = ng_piece_of(v, f), .item = i, .staged_offset = at};
    if (q.listed.crc == NULL) return false;
    if (x->is_single_file) q.listed.part = 0;
    const ng_rect common = intersect_rects(own_rect(x, f), piece_rect(&q, f));
    q.is_wanted = common.top < common.bottom && common.left < common.right;
    if (q.is_wanted) x->reads_part[q.listed.part] = true;
    ngio_out_bytes(&x->list, &q, sizeof q);
  }
  return x->is_single_file || list != NULL;
}

/* Check that the manifest has a valid entry for every array of this model, and no other entries.  List all pieces. */
static bool list_all_pieces(load_data *x) {
  ng_work *w = &x->w;
  const ngio_value *all = ngio_get(ngio_json_root(w->manifest), "tensors"), *next = ngio_first(all);
  int64_t bytes = 0;
  x->reads_part = ng_work_alloc(w, x->snapshot.parts);
  if (x->reads_part == NULL) return false;
  (void)ngio_out_reserve(&x->list, (size_t)w->fields * sizeof *x->piece); /* faster than growing */
  for (int32_t i = 0; i < w->fields; i++) {
    const ng_field *f = &w->item[i].field;
    const ngio_value *entry = ngio_get_hinted(all, next, w->item[i].name);
    if (entry == NULL) return refuse_tensor(x, i, "is not in the manifest");
    next = ngio_next(all, entry);
    if (!list_pieces(x, i, entry, bytes)) {
      return refuse_tensor(x, i, "has an entry in the manifest that does not fit this model");
    }
    const ng_rect box = own_rect(x, f);
    bytes += x->is_single_file ? 0 : rect_bytes(f, &box);
  }
  if (!x->is_single_file && all->count != (uint32_t)w->fields) {
    return ng_work_fail(w, NG_ERR_FILE, "has tensors that do not belong to this model");
  }
  if (x->list.lost) return ng_work_fail(w, NG_ERR_NOMEM, "no memory");
  x->piece = (void *)x->list.text;
  x->pieces = (int64_t)(x->list.used / sizeof *x->piece);
  x->staged = ng_work_alloc_unset(w, bytes);
  x->buffer = ng_work_alloc_unset(w, x->is_single_file ? 0 : CHUNK);
  x->path = ng_work_alloc(
      w, x->is_single_file ? 0 : (int64_t)strlen(w->file_or_stream->path) + NGIO_PART_ROOM);
  if (w->st != NG_OK) return false;
  for (int64_t k = 0; k < x->pieces; k++)
    w->item[x->piece[k].item].data = x->staged + x->piece[k].staged_offset;
  return true;
}

/* ---- one file --------------------------------------------------------------------------------*/

/* Check that an open file is part `part` of this state, which its name does not prove. */
static bool is_part_of_state(load_data *x, const ngio_tensors *file, int32_t part) {
  ng_work *w = &x->w;
  char says[NGIO_PART_ROOM];
  const ngio_value *v = ngio_at(ngio_get(ngio_json_root(w->manifest), "parts"), (size_t)part);
  const char *whole = ngio_tensors_text(file, part == 0 ? NG_MANIFEST_CRC : NGIO_PART_WHOLE);
  const char *is = ngio_tensors_text(file, NGIO_PART);
  ngio_part_text(says, part, x->snapshot.parts);
  if (whole == NULL || (part > 0) != (is != NULL) || ngio_tensors_text_count(file) != 2) {
    return ng_work_fail(w, NG_ERR_FILE, "is not a part of a state");
  }
  if (!ng_is(whole, x->id.text) || (part > 0 && !ng_is(is, says))) {
    return ng_work_fail(w, NG_ERR_FILE, "is a part of another state");
  }
  return (ngio_integer_or(ngio_get(v, "bytes"), -1) == ngio_tensors_bytes(file) &&
          ngio_integer_or(ngio_get(v, "tensors"), -1) == ngio_tensors_count(file) &&
          v->count == 2) ||
         ng_work_fail(w, NG_ERR_FILE, "has another size or number of tensors than in the manifest");
}

/* Called if the file has more tensors than the manifest lists: fail with the name of the first additional tensor. */
static bool refuse_extra(load_data *x, const ngio_tensors *file, int32_t part) {
  ng_work *w = &x->w;
  const char *name = NULL;
  for (int32_t i = 0; name == NULL; i++) {
    int64_t k = 0;
    name = ngio_tensors_at(file, i)->name;
    while (k < x->pieces &&
           (x->piece[k].listed.part != part || !ng_is(w->item[x->piece[k].item].name, name)))
      k++;
    if (k < x->pieces) name = NULL;
  }
  return ng_work_fail(w, NG_ERR_FILE, "tensor '%s' %s", ngio_printable(name).text,
                      !x->is_single_file ? "is not listed in the manifest for this part"
                      : ng_is(name, "window/gram_rest") || strstr(name, "/prediv") != NULL
                          ? "was written by an older version (0.2.0); this version cannot load it"
                          : "does not belong to this model");
}

/* Find the tensor of each piece in a part, and check that the part has no other tensors.  A file of natgrad has them in
 * the order of the pieces, so look at the next tensor first. */
static bool match_tensors(load_data *x, const ngio_tensors *file, int32_t part) {
  int32_t at = 0;
  for (int64_t k = 0; k < x->pieces; k++) {
    piece *q = &x->piece[k];
    const ng_item *item = &x->w.item[q->item];
    if (q->listed.part != part) continue;
    q->tensor = ngio_tensors_at(file, at++);
    if (q->tensor == NULL || !ng_is(q->tensor->name, item->name))
      q->tensor = ngio_tensors_find(file, item->name);
    const ngio_tensor expected = ng_tensor_describe(item->name, &item->field, &q->listed);
    const char *why = ng_tensor_difference(&expected, q->tensor);
    if (why != NULL) return refuse_tensor(x, q->item, why);
  }
  return at == ngio_tensors_count(file) || refuse_extra(x, file, part);
}

/* The buffer has bytes [done, done + n) of a piece.  Copy the elements that this rank needs to `staged`. */
static void stage_rows(const load_data *x, const piece *q, int64_t done, int64_t n) {
  const ng_field *f = &x->w.item[q->item].field;
  const ng_rect box = own_rect(x, f), there = piece_rect(q, f),
                common = intersect_rects(box, there);
  const int64_t size = ng_dtype_size(f->dtype), mine = (box.right - box.left) * size;
  const int64_t whole = (there.right - there.left) * size;
  const int64_t low = (common.left - there.left) * size, high = (common.right - there.left) * size;
  for (int64_t row = done / whole; row * whole < done + n; row++) {
    const int64_t a = ng_max64(done, row * whole + low), b = ng_min64(done + n, row * whole + high);
    const int64_t at = there.top + row;
    if (a >= b || at < common.top || at >= common.bottom) continue;
    const int64_t col = a - row * whole + (there.left - box.left) * size;
    memcpy(x->staged + q->staged_offset + (at - box.top) * mine + col, x->buffer + (a - done),
           (size_t)(b - a));
  }
}

/* Check the checksum and the numbers of a piece, which is in memory (s = NULL), or at byte `offset` of a file; then
 * also copy it to `staged`.  If the piece is damaged, set q->error.  Return false if a read failed. */
static bool check_piece(load_data *x, piece *q, ngio_source *s, int64_t offset) {
  ng_work *w = &x->w;
  const ng_field *f = &w->item[q->item].field;
  const ng_rect box = own_rect(x, f), there = piece_rect(q, f);
  const bool needs_all = f->is_symmetric || memcmp(&box, &there, sizeof there) == 0;
  uint32_t crc = 0;
  for (int64_t done = 0, n; done < q->tensor->bytes; done += n) {
    n = ng_min64(CHUNK, q->tensor->bytes - done);
    const char *from = (const char *)q->tensor->data + done;
    if (s != NULL) {
      char *to = needs_all ? x->staged + q->staged_offset + done : x->buffer;
      if (!ng_work_check_io(
              w, ngio_source_read(s, offset + done, to, n, w->message, sizeof w->message)))
        return false;
      if (!needs_all) stage_rows(x, q, done, n);
      from = to;
    }
    crc = ng_crc32(crc, from, (size_t)n);
    if (q->error == NULL) q->error = ng_field_error(f, from, n / ng_dtype_size(f->dtype));
  }
  if (memcmp(q->listed.crc, ng_hex_of(crc).text, NG_HEX) != 0) {
    q->error = "is damaged (its checksum differs)";
  }
  return true;
}

/* ---- all files -------------------------------------------------------------------------------*/

/* Task `lane` of a parallel loop over all pieces. */
static void check_lane(void *arg, int32_t lane) {
  load_data *x = arg;
  int64_t from, to;
  ng_piece_bounds(x->pieces, LANES, lane, &from, &to);
  for (int64_t k = from; k < to; k++)
    (void)check_piece(x, &x->piece[k], NULL, 0);
}

/* Read all arrays of one file; check them with all threads. */
static bool read_single_file(load_data *x) {
  ng_work *w = &x->w;
  if (!match_tensors(x, w->file, 0) ||
      !ng_work_check_io(w,
                        ngio_tensors_finish(w->file, &w->source, w->message, sizeof w->message))) {
    return false;
  }
  ng_parallel(w->p->ctx, LANES, check_lane, x);
  for (int64_t k = 0; k < x->pieces; k++) {
    const piece *q = &x->piece[k];
    if (q->error != NULL) return refuse_tensor(x, q->item, q->error);
    w->item[q->item].data = q->tensor->data;
  }
  return true;
}

static void read_part(load_data *x, int32_t part) {
  ng_work *w = &x->w;
  ngio_source s = {.fd = -1};
  ngio_tensors *file = NULL;
  ngio_part_path(x->path, (size_t)NGIO_PART_ROOM + strlen(w->file_or_stream->path),
                 w->file_or_stream->path, x->id.text, part, x->snapshot.parts);
  w->label = x->path;
  if (ng_work_check_io(w, ngio_source_open(&s, x->path, w->message, sizeof w->message)) &&
      ng_work_check_io(w, ngio_tensors_begin(&s, NULL, &file, w->message, sizeof w->message)) &&
      is_part_of_state(x, file, part) && match_tensors(x, file, part)) {
    for (int64_t k = 0; k < x->pieces && w->st == NG_OK; k++) {
      piece *q = &x->piece[k];
      if (q->listed.part != part || !q->is_wanted) continue;
      if (check_piece(x, q, &s, ngio_tensors_place(file, q->tensor)) && q->error != NULL)
        (void)refuse_tensor(x, q->item, q->error);
    }
  }
  ngio_tensors_close(&file);
  ngio_source_close(&s);
}

/* Read all arrays that this rank needs. Failures are stored in *w. */
static void read_arrays(load_data *x) {
  const ng_context *ctx = x->w.p->ctx;
  if ((x->is_single_file && !x->w.is_rank0) || !list_all_pieces(x)) return;
  if (x->is_single_file) (void)read_single_file(x);
  for (int32_t part = 0; !x->is_single_file && part < x->snapshot.parts && x->w.st == NG_OK;
       part++) {
    if (x->reads_part[part] || part % ctx->ranks == ctx->rank) read_part(x, part);
  }
}

/* ---- store the arrays on every rank ----------------------------------------------------------*/

/* Task `lane` of a parallel loop over all arrays: copy the elements that this rank has read into the model. */
static void store_lane(void *arg, int32_t lane) {
  const load_data *x = arg;
  int64_t from, to;
  ng_piece_bounds(x->w.fields, LANES, lane, &from, &to);
  for (int64_t i = from; i < to; i++) {
    const ng_item *item = &x->w.item[i];
    const ng_field *f = &item->field;
    const ng_rect box = ng_rect_of(f, f->by_rows, f->from, f->to);
    const int64_t bytes = rect_bytes(f, &box);
    if (bytes == 0) continue;
    if (f->slice != NULL) {
      memcpy(f->data, item->data, (size_t)bytes);
    } else {
      ng_field_import(f, item->data, f->data);
    }
  }
}

/* Send an array from rank 0 row by row; every rank copies its elements of each row. */
static ng_status send_rows(ng_work *w, const ng_item *item) {
  const ng_field *f = &item->field;
  const int64_t bytes = ng_field_send_count(f) * ng_dtype_size(f->dtype);
  ng_status st = NG_OK;
  for (int64_t row = 0; row < ng_work_transfers(f) && st == NG_OK; row++) {
    if (w->is_rank0) memcpy(w->memory, (const char *)item->data + row * bytes, (size_t)bytes);
    st = ng_work_broadcast(w, w->memory, bytes, 0);
    if (st == NG_OK) ng_work_copy_part(w, f, row, false);
  }
  return st;
}

/* Send an array from rank 0.  Every rank copies the elements that it holds, also if another rank held them at the
 * save. */
static ng_status send_field(ng_work *w, const ng_item *item) {
  const ng_field *f = &item->field;
  if (f->slice != NULL) return send_rows(w, item);
  if (w->is_rank0) ng_field_import(f, item->data, w->memory);
  const ng_status st = ng_work_broadcast(w, w->memory, ng_field_bytes(f), 0);
  if (st == NG_OK && f->data != NULL) memcpy(f->data, w->memory, (size_t)ng_field_bytes(f));
  return st;
}

ng_status ng_state_load(ng_precond *p, const char *call, const ng_state_file *from) {
  ng_status st = ng_check_callable(p, call);
  if (st != NG_OK) return st;
  load_data x = {.is_single_file = true};
  ng_work *w = &x.w;
  prepare_load(&x, p, call, from);
  NG_TRY(ng_work_agree(w));
  NG_TRY(share_manifest(&x));
  x.is_single_file = x.snapshot.parts == 1;
  read_arrays(&x);
  NG_TRY(ng_work_agree(w));
  /* from here on only the transport can fail; after such a failure the model can only be destroyed */
  if (!x.is_single_file || p->ctx->ranks == 1) {
    ng_parallel(p->ctx, LANES, store_lane, &x);
  } else {
    for (int32_t i = 0; i < w->fields; i++)
      NG_TRY(send_field(w, &w->item[i]));
  }
  ng_snapshot_apply(p, &x.snapshot, w->values);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->is_worker && b->solves) b->family->read_results(b);
  }
  ng_log(p->ctx, NG_LOG_INFO, "state: loaded = %s steps = %lld",
         from->stream ? w->label : from->path, (long long)p->steps);
done:
  ngio_out_free(&x.list);
  ng_work_close(w);
  return st;
}
