/* load.c: the state of a preconditioner, from a file or a stream.
 *
 * Ranks: rank 0 reads and verifies everything, all ranks compare the manifest with their model, and
 * only when all agree does data travel and anything change.
 *
 * The header first, the checksum of the manifest in it, its meaning, the shapes of the arrays; only
 * when all that is this model's, memory for the arrays is taken and they are read: nothing is
 * believed before it has been checked, above all not how long a stream is.
 *
 * In: a model between two steps, a place.  Out: a model that continues bit for bit, or the
 * unchanged model. */
#include "state/parts.h"

/* ---- rank 0 verifies -------------------------------------------------------------------------*/

static const char *const no_memory = "no memory for the manifest";

static bool parse_manifest(ng_work *w, const char *text, size_t n) {
  const ngio_status st = ngio_json_parse(text, n, &w->manifest, NULL, 0);
  if (st == NGIO_ERR_NOMEM) return ng_work_holds(w, NG_ERR_NOMEM, no_memory);
  w->tensors = ngio_get(ngio_json_root(w->manifest), "tensors");
  return ng_work_holds(w, st == NGIO_OK ? NG_OK : NG_ERR_FILE, "the manifest is no JSON text");
}

static ng_status refuse(ng_work *w, const char *name, const char *why) {
  if (why != NULL) {
    w->st = ng_fail_to(w->message, sizeof w->message, NG_ERR_FILE, "%s: tensor '%s' %s", w->label,
                       name, why);
  }
  return NG_OK;
}

/* Find a tensor by name.  Our own files have the order of the walk, so try that place first. */
static const ngio_tensor *tensor_of(const ng_work *w, const char *name) {
  const ngio_tensor *t = ngio_tensors_at(w->file, w->at);
  return t != NULL && ng_is(t->name, name) ? t : ngio_tensors_find(w->file, name);
}

static void find_entry(ng_work *w, ng_item *item) {
  const ngio_value *next = w->at == 0 ? ngio_first(w->tensors) : w->entry;
  if (next == NULL || !ng_is(next->key, item->name)) next = ngio_get(w->tensors, item->name);
  w->entry = next == NULL ? NULL : ngio_next(w->tensors, next);
  const char *crc = ngio_text_of(ngio_get(next, "crc32"));
  item->crc = crc != NULL && strlen(crc) == NG_HEX ? crc : NULL;
}

/* Every array of this model is announced, as it should be. */
static ng_status check_shape(ng_work *w, ng_item *item) {
  if (w->st != NG_OK) return NG_OK;
  item->t = tensor_of(w, item->name);
  find_entry(w, item);
  const char *why = ng_tensor_misfit(&item->f, item->t);
  if (why == NULL && item->crc == NULL) why = "is not in the manifest";
  return refuse(w, item->name, why);
}

/* ... and came whole, with numbers that a run may have. */
static void check_data(ng_work *w, int32_t i) {
  ng_item *item = &w->item[i];
  const ngio_tensor *t = item->t;
  if (memcmp(item->crc, ng_hex_of(ng_crc_of(t->data, t->bytes)).text, NG_HEX) != 0) {
    item->why = "is damaged (its checksum differs)";
  } else {
    item->why = ng_field_fault(&item->f, t->data, ng_field_count(&item->f));
  }
}

static ng_status say_why(ng_work *w, ng_item *item) {
  return w->st == NG_OK ? refuse(w, item->name, item->why) : NG_OK;
}

/* Looked through one by one, and only where the numbers of tensors differ: on the way to an error. */
static bool belongs(const ng_work *w, const char *name) {
  for (int32_t i = 0; i < w->fields; i++) {
    if (ng_is(w->item[i].name, name)) return true;
  }
  return false;
}

/* ... and nothing else is. */
static void check_extra(ng_work *w) {
  for (int32_t i = 0; i < ngio_tensors_count(w->file) && w->st == NG_OK; i++) {
    const char *name = ngio_tensors_at(w->file, i)->name;
    if (!belongs(w, name)) {
      (void)refuse(w, ngio_quote(name).text,
                   ng_is(name, "window/gram_rest")
                       ? "was written by an older version (0.2.0); this version cannot load it"
                       : "does not belong to this model");
    }
  }
}

/* Payload of files is counted like all else. */
static void *payload_take(void *user, size_t bytes) { return ng_alloc(user, bytes); }
static void payload_give(void *user, void *ptr, size_t bytes) { ng_free(user, ptr, bytes); }

/* Large reads are split between the threads of the context. */
static void all_threads(void *user, int32_t n, void (*each)(void *arg, int32_t i), void *arg) {
  ng_parallel(user, n, each, arg);
}

static bool open_source(ng_work *w) {
  const ng_outside *from = w->place;
  if (!from->stream) {
    const ngio_status st = ngio_source_open(&w->source, from->path, w->message, sizeof w->message);
    w->source.threads = (ngio_threads){all_threads, w->p->ctx};
    return ng_work_fine(w, st);
  }
  ngio_source_stream(&w->source, w->label, from->read, from->user);
  return true;
}

/* All in one file. */
static bool check_file(ng_work *w) {
  (void)ng_work_each(w, check_shape);
  if (w->st == NG_OK && ngio_tensors_count(w->file) != w->fields) check_extra(w);
  if (w->st != NG_OK ||
      !ng_work_fine(w, ngio_tensors_finish(w->file, &w->source, w->message, sizeof w->message))) {
    return false;
  }
  ng_work_spread(w, check_data);
  (void)ng_work_each(w, say_why);
  return w->st == NG_OK;
}

static void read_file(ng_work *w) {
  const ngio_alloc alloc = {payload_take, payload_give, w->p->ctx};
  char why[NG_MESSAGE] = "";
  if (!open_source(w) || !ng_work_fine(w, ngio_tensors_begin(&w->source, &alloc, &w->file,
                                                             w->message, sizeof w->message))) {
    return;
  }
  const char *text = ngio_tensors_text(w->file, NG_MANIFEST);
  const char *crc = ngio_tensors_text(w->file, NG_MANIFEST_CRC);
  const char *part = ngio_tensors_text(w->file, NGIO_PART);
  if (part != NULL) {
    w->st = ng_fail_to(w->message, sizeof w->message, NG_ERR_FILE,
                       "%s: is part %s of a state; load the one whose name is without its end",
                       w->label, ngio_quote(part).text);
    return;
  }
  if (text == NULL || crc == NULL || ngio_tensors_text_count(w->file) != 2) {
    (void)ng_work_holds(w, NG_ERR_FILE, "is a safetensors file, but no state of natgrad");
    return;
  }
  const int64_t bytes = (int64_t)strlen(text) + 1;
  if (!ng_is(crc, ng_hex_of(ng_crc_of(text, bytes - 1)).text)) {
    (void)ng_work_holds(w, NG_ERR_FILE, "the manifest is damaged (its checksum differs)");
    return;
  }
  if (!parse_manifest(w, text, (size_t)bytes - 1)) return;
  if (!ng_work_holds(w,
                     ng_manifest_read(w->p, ngio_json_root(w->manifest), &w->snapshot, w->values,
                                      why, sizeof why),
                     why))
    return;
  if (w->snapshot.parts > 0 && w->place->stream) {
    (void)ng_work_holds(w, NG_ERR_FILE, "is one of several files of a state; ng_load has them all");
    return;
  }
  if (w->snapshot.parts == 0 && !check_file(w)) return;
  if (w->p->ctx->ranks == 1) return;
  if (!ng_work_take(w, &w->text, bytes)) {
    (void)ng_work_holds(w, NG_ERR_NOMEM, no_memory);
    return;
  }
  w->text_bytes = bytes;
  memcpy(w->text, text, (size_t)bytes);
}

/* ---- the other ranks compare, then everybody takes -------------------------------------------*/

static ng_status room_for_text(ng_work *w) {
  if (w->first || ng_work_take(w, &w->text, w->text_bytes)) return NG_OK;
  return ng_fail(w->p->ctx, NG_ERR_NOMEM, "%s: no memory for the manifest", w->call);
}

static ng_status understand(ng_work *w) {
  char why[NG_MESSAGE] = "";
  if (w->first) return NG_OK;
  if (parse_manifest(w, w->text, (size_t)w->text_bytes - 1)) {
    (void)ng_work_holds(w,
                        ng_manifest_read(w->p, ngio_json_root(w->manifest), &w->snapshot, w->values,
                                         why, sizeof why),
                        why);
  }
  return w->st == NG_OK ? NG_OK : ng_fail(w->p->ctx, w->st, "%s", w->message);
}

/* Row by row: of each every rank takes its part. */
static ng_status load_parts(ng_work *w, const ng_field *f, const ngio_tensor *t) {
  const int64_t bytes = ng_field_piece(f) * ng_dtype_size(f->dtype);
  ng_status st = NG_OK;
  for (int64_t row = 0; row < ng_work_rows(f) && st == NG_OK; row++) {
    if (w->first) memcpy(w->memory, (const char *)t->data + row * bytes, (size_t)bytes);
    st = ng_work_broadcast(w, w->memory, bytes, 0);
    if (st == NG_OK) ng_work_part(w, f, row, false);
  }
  return st;
}

/* Every rank copies the part of a field that it stores, whichever rank stored it at the save.  So a
 * state does not depend on the number of ranks. */
static ng_status load_field(ng_work *w, ng_item *item) {
  const ng_field *f = &item->f;
  if (f->slice != NULL) return load_parts(w, f, item->t);
  if (w->first) ng_field_import(f, item->t->data, w->memory);
  const ng_status st = ng_work_broadcast(w, w->memory, ng_field_bytes(f), 0);
  if (st == NG_OK && f->data != NULL) memcpy(f->data, w->memory, (size_t)ng_field_bytes(f));
  return st;
}

/* One rank: copy straight to the field. */
static void take_field(ng_work *w, int32_t i) {
  const ng_item *item = &w->item[i];
  ng_field_import(&item->f, item->t->data, item->f.data);
}

/* shared with fresh = false: saved results are used unchanged, and are not recomputed with the
 * present options. */
ng_status ng_state_load(ng_precond *p, const char *call, const ng_outside *from) {
  ng_work w;
  ng_status st = NG_OK;
  ng_work_open(&w, p, call, from);
  NG_TRY(ng_work_agree(&w, ng_work_prepare(&w, NG_WORK_LOAD)));
  if (w.first) read_file(&w);
  NG_TRY(ng_work_share(&w));
  if (p->ctx->ranks > 1) {
    NG_TRY(ng_work_agree(&w, room_for_text(&w)));
    NG_TRY(ng_work_broadcast(&w, w.text, w.text_bytes, 0));
    NG_TRY(ng_work_agree(&w, understand(&w)));
  }
  /* But for parts only a broken transport can fail from here on, and that ends the object anyway. */
  if (w.snapshot.parts > 0) {
    NG_TRY(ng_parts_load(&w)); /* takes all or nothing */
  } else if (p->ctx->ranks == 1) {
    ng_work_spread(&w, take_field);
  } else {
    NG_TRY(ng_work_each(&w, load_field));
  }
  ng_snapshot_apply(p, &w.snapshot, w.values);
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    if (b->holds && b->family->shared != NULL) b->family->shared(p->block[i], false);
  }
  ng_log(p->ctx, NG_LOG_INFO, "state: loaded = %s steps = %lld", w.label, (long long)p->steps);
done:
  ng_work_close(&w);
  return st;
}
