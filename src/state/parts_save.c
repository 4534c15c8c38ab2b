/* parts_save.c: the state of a preconditioner, each rank's part to a file of its own; see parts.h.
 *
 * As in save.c arrays are walked twice, for their checksums and for their bytes, but each on its owner alone,
 * and no array travels: what ranks tell each other are the numbers of blocks and a checksum for each piece.
 *
 * In: a model between two steps, a path.  Out: n files, or the earlier state as it was (and, after a failure in between,
 * parts of a new one, which no manifest names).  All files are on the disk
 * under temporary names before the first is renamed; rank 0's, which says what belongs together, gets it last.
 * Names of parts say which whole they are of, so the files of an earlier state are not touched before that; then
 * they go. */
#include "state/parts.h"

#include <sys/stat.h>

typedef struct saving {
  ng_work w; /* `tensor`: of this rank's part */
  double *told;
  char *path; /* of this rank's part */
  int64_t path_room;
  int64_t *bytes, *count; /* [ranks] rank 0: data and arrays of each part */
  int32_t own;            /* arrays of this rank's part */
  ng_hex id;
} saving;

static int64_t told_count(const ng_precond *p) { return NG_CODES + p->ctx->ranks; }

/* ---- pieces ----------------------------------------------------------------------------------*/

static ng_part_piece slice_of(const ng_field *f, int32_t i) {
  return (ng_part_piece){.part = ng_slice_rank(f, i),
                         .from = f->slice[i],
                         .to = f->slice[i + 1],
                         .by_rows = f->by_rows};
}

/* What rank r has to write of an array; false: nothing. */
static bool piece_of(const ng_field *f, int32_t r, ng_part_piece *q) {
  int32_t i = r;
  if (f->slice == NULL) {
    *q = (ng_part_piece){.part = r, .to = f->cols, .whole = true};
    return f->owner == r;
  }
  if (f->holder != NULL) {
    for (i = 0; i < f->slices && f->holder[i] != r;)
      i++;
    if (i == f->slices) return false; /* it holds what another one writes */
  }
  *q = slice_of(f, i);
  return q->to > q->from;
}

/* Its bytes as they will be written. */
static const void *bytes_of(ng_work *w, const ng_field *f, const ng_part_piece *q, int64_t *bytes) {
  if (q->whole) {
    *bytes = ng_field_bytes(f);
    return ng_field_published(f, f->data, w->published);
  }
  const ng_rect box = ng_part_piece_rect(q, f);
  *bytes = ng_rect_count(&box) * ng_dtype_size(f->dtype);
  return f->data;
}

/* ---- memory ----------------------------------------------------------------------------------*/

/* What every rank holds, such as the moments of weights that each moves, goes to whoever has least to write; the same
 * choice on all ranks. */
static void share_out(ng_work *w, int64_t *load) {
  const int32_t ranks = w->p->ctx->ranks;
  ng_part_piece q;
  memset(load, 0, (size_t)ranks * sizeof *load);
  for (int32_t i = 0; i < w->fields; i++) {
    for (int32_t r = 0; r < ranks && !w->item[i].f.everywhere; r++) {
      if (piece_of(&w->item[i].f, r, &q)) load[r] += ng_part_piece_tensor(&w->item[i], &q).bytes;
    }
  }
  for (int32_t i = 0; i < w->fields; i++) {
    ng_field *f = &w->item[i].f;
    int32_t least = 0;
    if (!f->everywhere) continue;
    for (int32_t r = 1; r < ranks; r++)
      least = load[r] < load[least] ? r : least;
    f->owner = least;
    load[least] += ng_field_bytes(f);
  }
}

/* A buffer for the largest array of this rank, and not of all. */
static bool take(saving *x) {
  ng_work *w = &x->w;
  const ng_precond *p = w->p;
  const int64_t lists = p->ctx->ranks * (int64_t)sizeof *x->bytes;
  x->path_room = ng_part_room(w->place->path);
  if (!ng_work_take(w, &x->bytes, lists)) return false;
  share_out(w, x->bytes);
  w->largest = 0;
  for (int32_t i = 0; i < w->fields; i++) {
    ng_part_piece q;
    const ng_field *f = &w->item[i].f;
    if (!piece_of(f, p->ctx->rank, &q)) continue;
    x->own++;
    if (q.whole) w->largest = ng_max64(w->largest, ng_field_bytes(f));
  }
  return ng_work_take(w, &w->published, w->largest) &&
         ng_work_take(w, &w->tensor, w->fields * (int64_t)sizeof *w->tensor) &&
         ng_work_take(w, &x->told, told_count(p) * (int64_t)sizeof *x->told) &&
         ng_work_take(w, &x->path, x->path_room) && ng_work_take(w, &x->count, lists);
}

static void give(saving *x) {
  ng_work *w = &x->w;
  const ng_precond *p = w->p;
  const int64_t lists = p->ctx->ranks * (int64_t)sizeof *x->bytes;
  ng_work_give(w, x->count, lists);
  ng_work_give(w, x->bytes, lists);
  ng_work_give(w, x->path, x->path_room);
  ng_work_give(w, x->told, told_count(p) * (int64_t)sizeof *x->told);
  ng_work_close(w);
}

static ng_status prepare(saving *x) {
  ng_work *w = &x->w;
  const ng_status st = ng_work_prepare(w, NG_WORK_PARTS);
  if (st != NG_OK) return st;
  return take(x) ? NG_OK : ng_fail(w->p->ctx, NG_ERR_NOMEM, "%s: no memory", w->call);
}

/* ---- the manifest ----------------------------------------------------------------------------*/

/* A place for each array, and for each rank's piece of one in slices. */
static int64_t places(const ng_work *w, const ng_field *f) {
  return f->slice == NULL ? 1 : w->p->ctx->ranks;
}

static ng_status gather(ng_work *w) {
  const int32_t rank = w->p->ctx->rank;
  double *rung = w->values + w->value_count, *sum = rung + NG_RESCUES;
  ng_state_get(w->p, w->values); /* zero where another rank is the owner */
  for (int i = 0; i < NG_RESCUES; i++)
    rung[i] = (double)w->p->rescued[i];
  for (int32_t i = 0; i < w->fields; i++) {
    const ng_field *f = &w->item[i].f;
    ng_part_piece q;
    if (piece_of(f, rank, &q)) {
      int64_t bytes;
      const void *data = bytes_of(w, f, &q, &bytes);
      double *mine = sum + (q.whole ? 0 : rank);
      *mine = ng_seal(ng_crc_of(data, bytes),
                      ng_all_finite(data, f->dtype, bytes / ng_dtype_size(f->dtype)));
    }
    sum += places(w, f);
  }
  return ng_work_sum(w, w->values, w->doubles);
}

static void list_piece(saving *x, const ng_item *item, const double *sum, ng_part_piece q) {
  const ng_hex crc = ng_seal_of(sum[q.whole ? 0 : q.part], &q.finite);
  q.crc = crc.text;
  ng_pieces_put(&x->w.out, &q);
  x->bytes[q.part] += ng_part_piece_tensor(item, &q).bytes;
  x->count[q.part]++;
}

/* In the order of columns, or of rows. */
static void list_array(saving *x, const ng_item *item, const double *sum) {
  ng_work *w = &x->w;
  const ng_field *f = &item->f;
  ng_part_piece q;
  ng_pieces_begin(&w->out, item);
  if (f->slice == NULL && piece_of(f, f->owner, &q)) list_piece(x, item, sum, q);
  for (int32_t i = 0; f->slice != NULL && i < ng_field_slices(f, w->p->ctx->ranks); i++) {
    q = slice_of(f, i);
    if (q.to > q.from) list_piece(x, item, sum, q);
  }
  ng_pieces_end(&w->out);
}

/* Rank 0; a failure stays in *w. */
static void make_manifest(saving *x) {
  ng_work *w = &x->w;
  const int32_t ranks = w->p->ctx->ranks;
  const double *sum = w->values + w->value_count + NG_RESCUES;
  int64_t rungs[NG_RESCUES];
  char why[NG_MESSAGE] = "";
  for (int i = 0; i < NG_RESCUES; i++)
    rungs[i] = (int64_t)w->values[w->value_count + i];
  if (!ng_work_holds(w,
                     ng_manifest_begin(w->p, NG_STATE_PARTS, w->values, w->value_count, rungs,
                                       &w->out, why, sizeof why),
                     why)) {
    return;
  }
  ng_manifest_layers(w->p, w->values, w->value_count, &w->out);
  memset(x->bytes, 0, (size_t)ranks * sizeof *x->bytes);
  memset(x->count, 0, (size_t)ranks * sizeof *x->count);
  for (int32_t i = 0; i < w->fields; i++) {
    list_array(x, &w->item[i], sum);
    sum += places(w, &w->item[i].f);
  }
  ng_parts_end(&w->out, x->bytes, x->count, ranks);
  if (w->out.lost) (void)ng_work_holds(w, NG_ERR_NOMEM, "no memory for the manifest");
  if (w->st == NG_OK) x->id = ng_hex_of(ng_crc_of(w->out.text, (int64_t)w->out.used - 1));
}

/* ---- the files -------------------------------------------------------------------------------*/

/* On every rank, without a word to the others.  A failure stays in *w. */
static void write_part(saving *x) {
  ng_work *w = &x->w;
  const ng_context *ctx = w->p->ctx;
  char says[NGIO_PART_ROOM];
  ng_part_piece q;
  x->own = 0;
  for (int32_t i = 0; i < w->fields; i++) {
    if (piece_of(&w->item[i].f, ctx->rank, &q)) {
      w->tensor[x->own++] = ng_part_piece_tensor(&w->item[i], &q);
    }
  }
  ngio_part_path(x->path, (size_t)x->path_room, w->place->path, x->id.text, ctx->rank, ctx->ranks);
  ngio_part_says(says, ctx->rank, ctx->ranks);
  const ngio_text first[2] = {{NG_MANIFEST, w->out.text}, {NG_MANIFEST_CRC, x->id.text}};
  const ngio_text other[2] = {{NGIO_PART, says}, {NGIO_PART_WHOLE, x->id.text}};
  bool ok = ng_work_fine(w, ngio_writer_create(x->path, w->tensor, x->own, w->first ? first : other,
                                               2, &w->writer, w->message, sizeof w->message));
  for (int32_t i = 0; i < w->fields && ok; i++) {
    int64_t bytes;
    if (!piece_of(&w->item[i].f, ctx->rank, &q)) continue;
    const void *data = bytes_of(w, &w->item[i].f, &q, &bytes);
    ok = ng_work_fine(w, ngio_writer_put(w->writer, data, bytes, w->message, sizeof w->message));
  }
  if (ok) (void)ng_work_fine(w, ngio_writer_flush(w->writer, w->message, sizeof w->message));
}

static void give_name(ng_work *w) {
  (void)ng_work_fine(w, ngio_writer_finish(&w->writer, w->message, sizeof w->message));
}

static void give_first_name(saving *x) {
  ng_work *w = &x->w;
  (void)ng_work_fine(
      w, ngio_writer_finish_whole(&w->writer, x->id.text, w->message, sizeof w->message));
}

/* Rank 0, before it names what belongs together: a folder that each host has for itself is no place for parts. */
static void all_there(saving *x) {
  ng_work *w = &x->w;
  const int32_t ranks = w->p->ctx->ranks;
  struct stat is;
  for (int32_t r = 1; r < ranks && w->st == NG_OK; r++) {
    ngio_part_path(x->path, (size_t)x->path_room, w->place->path, x->id.text, r, ranks);
    if (stat(x->path, &is) == 0 && S_ISREG(is.st_mode)) continue;
    w->st =
        ng_fail_to(w->message, sizeof w->message, NG_ERR_FILE,
                   "%s: rank %d wrote it, and rank 0 does not see it; all ranks need one folder",
                   x->path, (int)r);
  }
}

/* Only a rename and a flushed folder are left to fail after the first name was given. */
ng_status ng_state_save_parts(ng_precond *p, const char *call, const ng_outside *to) {
  saving x = {.own = 0};
  ng_work *w = &x.w;
  ng_status st = NG_OK;
  if (p->ctx->ranks == 1) return ng_state_save(p, call, to);
  ng_work_open(w, p, call, to);
  NG_TRY(ng_work_agree(w, prepare(&x)));
  NG_TRY(gather(w));
  if (w->first) make_manifest(&x);
  NG_TRY(ng_work_share(w));
  NG_TRY(ng_work_broadcast(w, &x.id, (int64_t)sizeof x.id, 0));
  write_part(&x);
  NG_TRY(ng_work_tell(w, x.told, told_count(p)));
  if (!w->first) give_name(w);
  NG_TRY(ng_work_tell(w, x.told, told_count(p)));
  if (w->first) all_there(&x);
  if (w->first && w->st == NG_OK) give_first_name(&x);
  NG_TRY(ng_work_share(w));
  ng_log(p->ctx, NG_LOG_INFO, "state: saved = %s parts = %d steps = %lld", w->label, p->ctx->ranks,
         (long long)p->steps);
done:
  give(&x);
  return st;
}
