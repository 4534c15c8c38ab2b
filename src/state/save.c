/* save.c: the state of a preconditioner, to a file or a stream; its manifest alone.
 *
 * A file is safetensors: every array of ng_state_fields as a tensor "block/field" in published
 * order, and in its metadata a manifest (manifest.c) with the CRC-32 of each tensor, and the
 * CRC-32 of the manifest itself.  So every bit of the file is either compared or checked.
 *
 * The manifest stands in front of the arrays, and a stream cannot go back: so arrays are walked
 * twice, first for their checksums, each on the rank that will send it, then for their bytes.  An array
 * that rank 0 does not hold is broadcast by its owner.
 *
 * In: a model between two steps, a place.  Out: a file that replaces the old one in one go (io/:
 * written beside it, flushed, renamed), or the old one untouched; or the same bytes in order. */
#include "state/work.h"

/* ---- the manifest ----------------------------------------------------------------------------*/

/* Rank 0 says which fields it lacks, and only those are sent. */
static ng_status note_missing(ng_work *w, ng_item *item) {
  w->missing[w->at] = item->f.data == NULL && item->f.slice == NULL;
  return NG_OK;
}

/* Of parts that ranks hold: row by row, as they will be written. */
static ng_status check_parts(ng_work *w, const ng_field *f, double *sum) {
  const int64_t bytes = ng_field_piece(f) * ng_dtype_size(f->dtype);
  ng_status st = NG_OK;
  uint32_t crc = 0;
  bool finite = true;
  for (int64_t row = 0; row < ng_work_rows(f) && st == NG_OK; row++) {
    st = ng_work_row(w, f, row);
    crc = ng_crc_on(crc, w->memory, bytes);
    finite = finite && ng_all_finite(w->memory, f->dtype, ng_field_piece(f));
  }
  if (w->first) *sum = ng_seal(crc, finite);
  return st;
}

static double *sum_of(const ng_work *w, int32_t i) {
  return w->values + w->value_count + NG_RESCUES + i;
}

/* Of the very bytes that are going to be written. */
static ng_status check_sum(ng_work *w, ng_item *item) {
  const ng_field *f = &item->f;
  const bool mine = w->missing[w->at] ? f->owner == w->p->ctx->rank : w->first;
  if (f->slice != NULL) return check_parts(w, f, sum_of(w, w->at));
  if (!mine) return NG_OK; /* the checksum is 0 here */
  const void *bytes = ng_field_published(f, f->data, w->published);
  *sum_of(w, w->at) = ng_seal(ng_crc_of(bytes, ng_field_bytes(f)),
                              ng_all_finite(bytes, f->dtype, ng_field_count(f)));
  return NG_OK;
}

/* The sum of arrays that have each number on one rank: 0 + x is exact. */
static ng_status gather(ng_work *w) {
  double *rung = w->values + w->value_count;
  if (w->first) (void)ng_work_each(w, note_missing);
  const ng_status st = ng_work_broadcast(w, w->missing, w->fields, 0);
  if (st != NG_OK) return st;
  ng_state_get(w->p, w->values); /* zero where another rank is the owner */
  for (int i = 0; i < NG_RESCUES; i++) {
    rung[i] = (double)w->p->rescued[i];
  }
  const ng_status summed = ng_work_each(w, check_sum);
  return summed == NG_OK ? ng_work_sum(w, w->values, w->doubles) : summed;
}

/* Write the manifest from the gathered values.  A failure stays in *w. */
static bool make_manifest(ng_work *w) {
  int64_t rungs[NG_RESCUES];
  char why[NG_MESSAGE] = "";
  for (int i = 0; i < NG_RESCUES; i++) {
    rungs[i] = (int64_t)w->values[w->value_count + i];
  }
  if (!ng_work_holds(w,
                     ng_manifest_begin(w->p, NG_STATE_FORMAT, w->values, w->value_count, rungs,
                                       &w->out, why, sizeof why),
                     why)) {
    return false;
  }
  ng_manifest_layers(w->p, w->values, w->value_count, &w->out);
  for (int32_t i = 0; i < w->fields; i++) {
    bool finite;
    const ng_hex crc = ng_seal_of(*sum_of(w, i), &finite);
    w->tensor[i] = ng_tensor_of(&w->item[i]);
    ng_manifest_tensor(&w->out, w->tensor[i].name, crc.text, finite);
  }
  return ng_work_holds(w, ng_manifest_end(&w->out, why, sizeof why), why);
}

/* Every rank makes the text, from sums that all ranks have; the same text. */
ng_status ng_state_manifest_text(ng_precond *p, char *text, size_t size, int64_t *length) {
  ng_work w;
  ng_status st = NG_OK;
  ng_work_open(&w, p, "ng_state_manifest", NULL);
  NG_TRY(ng_work_agree(&w, ng_work_prepare(&w, NG_WORK_SAVE)));
  NG_TRY(gather(&w));
  if (!make_manifest(&w)) st = ng_fail(p->ctx, w.st, "%s", w.message);
  NG_TRY(ng_work_agree(&w, st));
  *length = (int64_t)w.out.used - 1;
  if (text != NULL && size > 0) {
    const size_t fits = (size_t)*length < size ? (size_t)*length : size - 1;
    memcpy(text, w.out.text, fits);
    text[fits] = 0;
  }
done:
  ng_work_close(&w);
  return st;
}

/* ---- the arrays ------------------------------------------------------------------------------*/

static ng_hex id_of(const ng_work *w) {
  return ng_hex_of(ng_crc_of(w->out.text, (int64_t)w->out.used - 1));
}

/* Rank 0.  A failure stays in *w: the others wait in ng_work_share, and learn it there. */
static void begin_file(ng_work *w) {
  const ng_outside *to = w->place;
  if (!make_manifest(w)) return;
  const ng_hex crc = id_of(w);
  const ngio_text text[2] = {{NG_MANIFEST, w->out.text}, {NG_MANIFEST_CRC, crc.text}};
  const ngio_status st =
      to->stream ? ngio_writer_stream(w->label, to->write, to->user, w->tensor, w->fields, text, 2,
                                      &w->writer, w->message, sizeof w->message)
                 : ngio_writer_create(to->path, w->tensor, w->fields, text, 2, &w->writer,
                                      w->message, sizeof w->message);
  (void)ng_work_fine(w, st);
}

static ng_status save_parts(ng_work *w, const ng_field *f) {
  const int64_t bytes = ng_field_piece(f) * ng_dtype_size(f->dtype);
  ng_status st = NG_OK;
  for (int64_t row = 0; row < ng_work_rows(f) && st == NG_OK; row++) {
    st = ng_work_row(w, f, row);
    if (st != NG_OK || !w->first || w->st != NG_OK) continue;
    (void)ng_work_fine(w,
                       ngio_writer_put(w->writer, w->memory, bytes, w->message, sizeof w->message));
  }
  return st;
}

/* After a failure rank 0 goes on receiving: the others do not know yet. */
static ng_status save_field(ng_work *w, ng_item *item) {
  const ng_field *f = &item->f;
  const void *from = f->data;
  const int64_t bytes = ng_field_bytes(f);
  if (f->slice != NULL) return save_parts(w, f);
  if (w->missing[w->at]) {
    const bool own = f->owner == w->p->ctx->rank;
    const ng_status st = ng_work_broadcast(w, own ? f->data : w->memory, bytes, f->owner);
    if (st != NG_OK) return st;
    from = w->memory;
  }
  if (!w->first || w->st != NG_OK) return NG_OK;
  (void)ng_work_fine(w, ngio_writer_put(w->writer, ng_field_published(f, from, w->published), bytes,
                                        w->message, sizeof w->message));
  return NG_OK;
}

/* Fields go one after the other, so rank 0 needs room for the largest and not for all. */
ng_status ng_state_save(ng_precond *p, const char *call, const ng_outside *to) {
  ng_work w;
  ng_status st = NG_OK;
  ng_work_open(&w, p, call, to);
  NG_TRY(ng_work_agree(&w, ng_work_prepare(&w, NG_WORK_SAVE)));
  NG_TRY(gather(&w));
  if (w.first) begin_file(&w);
  NG_TRY(ng_work_share(&w));
  NG_TRY(ng_work_each(&w, save_field));
  if (w.first && w.st == NG_OK) {
    /* It may take the place of a state in parts. */
    (void)ng_work_fine(
        &w, ngio_writer_finish_whole(&w.writer, id_of(&w).text, w.message, sizeof w.message));
  }
  NG_TRY(ng_work_share(&w));
  ng_log(p->ctx, NG_LOG_INFO, "state: saved = %s steps = %lld", w.label, (long long)p->steps);
done:
  ng_work_close(&w);
  return st;
}
