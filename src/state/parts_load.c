/* parts_load.c: a state of several files, on any number of ranks; see parts.h.
 *
 * Ranks: each rank opens the files with data for it, in a folder visible to all ranks, and reads its arrays through
 * a buffer, whichever rank wrote them.  So a state depends on no number of ranks and on no placement.  One rank checks
 * the parts that no rank needs, an empty part for example.
 *
 * In: a manifest that fits this model, on all ranks.  Out: a checked copy of the arrays of this rank,
 * applied when all ranks succeed; else nothing changes. */
#include "state/parts.h"

enum { CHUNK = 1 << 18 };

typedef struct wanted {
  const ngio_value *pieces; /* of the manifest */
  int32_t part;             /* of an array in one piece; else -1 */
  ng_rect box;              /* this rank's slice; none: zeros */
  int64_t at;               /* where that begins in `staged` */
} wanted;

typedef struct loading {
  ng_work *w;
  ng_hex id;
  double *told;
  char *path, *buffer;
  wanted *want; /* [fields] */
  char *staged; /* in published order, array after array, of slices only this rank's */
  int64_t told_bytes, path_room, want_bytes, staged_bytes;
} loading;

/* ---- the manifest ----------------------------------------------------------------------------*/

static void refuse(loading *x, const char *file, const char *name, const char *why) {
  ng_work *w = x->w;
  if (w->st == NG_OK) {
    w->st = ng_fail_to(w->message, sizeof w->message, NG_ERR_FILE, "%s: tensor '%s' %s", file, name,
                       why);
  }
}

static int64_t staged_bytes(const ng_field *f, const wanted *q) {
  const int64_t n = ng_rect_count(&q->box);
  return n == 0 ? 0 : f->sym ? ng_field_bytes(f) : n * ng_dtype_size(f->dtype);
}

/* What this rank holds, and where the manifest says that it is. */
static void plan(loading *x) {
  ng_work *w = x->w;
  const int32_t rank = w->p->ctx->rank;
  const ngio_value *root = ngio_json_root(w->manifest), *all = ngio_get(root, "tensors"),
                   *next = ngio_first(all);
  x->staged_bytes = 0;
  for (int32_t i = 0; i < w->fields && w->st == NG_OK; i++) {
    const ng_item *item = &w->item[i];
    const ng_field *f = &item->f;
    const ngio_value *entry =
        next != NULL && ng_is(next->key, item->name) ? next : ngio_get(all, item->name);
    wanted *q = &x->want[i];
    *q = (wanted){.pieces = ng_pieces_read(entry, f, w->snapshot.parts), .at = x->staged_bytes};
    if (q->pieces == NULL) {
      refuse(x, w->label, item->name,
             entry == NULL ? "is missing" : "has another shape than in this model, or bad pieces");
      return;
    }
    next = ngio_next(all, entry);
    q->part = q->pieces->count == 1 ? ng_part_piece_of(ngio_first(q->pieces), f).part : -1;
    q->box = ng_field_mine(f, rank);
    x->staged_bytes += staged_bytes(f, q);
  }
  if (all == NULL || all->count != (uint32_t)w->fields) {
    (void)ng_work_holds(w, NG_ERR_FILE, "has tensors that do not belong to this model");
  }
}

/* The piece of an array that is in this part; false: none. */
static bool piece_in(const loading *x, int32_t i, int32_t part, ng_part_piece *out) {
  const wanted *q = &x->want[i];
  const ng_field *f = &x->w->item[i].f;
  if (q->part >= 0 && q->part != part) return false;
  for (const ngio_value *v = ngio_first(q->pieces); v != NULL; v = ngio_next(q->pieces, v)) {
    *out = ng_part_piece_of(v, f);
    if (out->part == part) return true;
  }
  return false;
}

static ng_rect both(const ng_rect *a, const ng_rect *b) {
  return (ng_rect){ng_max64(a->top, b->top), ng_min64(a->bottom, b->bottom),
                   ng_max64(a->left, b->left), ng_min64(a->right, b->right)};
}

static bool wants(const ng_field *f, const wanted *q, const ng_part_piece *piece) {
  const ng_rect there = ng_part_piece_rect(piece, f), x = both(&q->box, &there);
  return x.top < x.bottom && x.left < x.right;
}

/* ---- one piece -------------------------------------------------------------------------------*/

/* The bytes [done, done + n) of a piece, as far as this rank holds them. */
static void keep(const loading *x, int32_t i, const ng_part_piece *piece, int64_t done, int64_t n) {
  const ng_field *f = &x->w->item[i].f;
  const wanted *q = &x->want[i];
  const ng_rect there = ng_part_piece_rect(piece, f), common = both(&q->box, &there);
  const int64_t size = ng_dtype_size(f->dtype), mine = (q->box.right - q->box.left) * size;
  const int64_t whole = (there.right - there.left) * size;
  const int64_t low = (common.left - there.left) * size, high = (common.right - there.left) * size;
  for (int64_t row = done / whole; row * whole < done + n; row++) {
    const int64_t a = ng_max64(done, row * whole + low), b = ng_min64(done + n, row * whole + high);
    const int64_t at = there.top + row;
    if (a >= b || at < common.top || at >= common.bottom) continue;
    const int64_t col = a - row * whole + (there.left - q->box.left) * size;
    memcpy(x->staged + (q->at + (at - q->box.top) * mine + col), x->buffer + (a - done),
           (size_t)(b - a));
  }
}

/* NULL: as it was written. */
static const char *read_piece(loading *x, int32_t i, const ng_part_piece *piece,
                              const ngio_tensor *t, ngio_source *s, int64_t place) {
  ng_work *w = x->w;
  const ng_field *f = &w->item[i].f;
  const wanted *q = &x->want[i];
  const ng_rect there = ng_part_piece_rect(piece, f);
  const bool straight = f->sym || memcmp(&q->box, &there, sizeof there) == 0;
  uint32_t crc = 0;
  const char *fault = NULL;
  for (int64_t done = 0, n; done < t->bytes; done += n) {
    n = ng_min64(CHUNK, t->bytes - done);
    char *to = straight ? x->staged + q->at + done : x->buffer;
    if (!ng_work_fine(w, ngio_source_read(s, place + done, to, n, w->message, sizeof w->message))) {
      return NULL;
    }
    crc = ng_crc_on(crc, to, n);
    if (fault == NULL) fault = ng_field_fault(f, to, n / ng_dtype_size(f->dtype));
    if (!straight) keep(x, i, piece, done, n);
  }
  if (memcmp(piece->crc, ng_hex_of(crc).text, NG_HEX) != 0) {
    return "is damaged (its checksum differs)";
  }
  return fault;
}

/* ---- one file --------------------------------------------------------------------------------*/

/* Is it what the manifest says of this part?  Its name may be anybody's. */
static bool belongs(loading *x, const ngio_tensors *file, int32_t part) {
  ng_work *w = x->w;
  char says[NGIO_PART_ROOM];
  const ngio_value *parts = ngio_get(ngio_json_root(w->manifest), "parts"), *v = ngio_first(parts);
  for (int32_t r = 0; r < part; r++)
    v = ngio_next(parts, v);
  const ngio_value *bytes = ngio_get(v, "bytes"), *count = ngio_get(v, "tensors");
  const char *whole = ngio_tensors_text(file, part == 0 ? NG_MANIFEST_CRC : NGIO_PART_WHOLE);
  const char *is = ngio_tensors_text(file, NGIO_PART);
  ngio_part_says(says, part, w->snapshot.parts);
  const char *why = NULL;
  if (whole == NULL || (part > 0) != (is != NULL) || ngio_tensors_text_count(file) != 2) {
    why = "is no part of a state";
  } else if (!ng_is(whole, x->id.text) || (part > 0 && !ng_is(is, says))) {
    why = "is a part of another state";
  } else if (!ngio_is(bytes, NGIO_INTEGER) || bytes->is.integer != ngio_tensors_bytes(file) ||
             !ngio_is(count, NGIO_INTEGER) || count->is.integer != ngio_tensors_count(file) ||
             v->count != 2) {
    why = "does not hold what the manifest says";
  }
  if (why != NULL) {
    w->st = ng_fail_to(w->message, sizeof w->message, NG_ERR_FILE, "%s: %s", x->path, why);
  }
  return why == NULL;
}

/* Every tensor of the file has its place in the manifest, in the order of the walk. */
static void read_part(loading *x, const ngio_tensors *file, ngio_source *s, int32_t part) {
  ng_work *w = x->w;
  int32_t at = 0;
  for (int32_t i = 0; i < w->fields && w->st == NG_OK; i++) {
    ng_part_piece piece;
    if (!piece_in(x, i, part, &piece)) continue;
    const char *name = w->item[i].name, *why = NULL;
    const ngio_tensor is = ng_part_piece_tensor(&w->item[i], &piece),
                      *t = ngio_tensors_at(file, at++);
    if (t == NULL || !ng_is(t->name, name)) t = ngio_tensors_find(file, name);
    if (t == NULL) {
      why = "is missing";
    } else if (t->dtype != is.dtype || t->ndim != is.ndim || t->shape[0] != is.shape[0] ||
               (is.ndim > 1 && t->shape[1] != is.shape[1])) {
      why = "has another dtype or shape than the manifest says";
    } else if (wants(&w->item[i].f, &x->want[i], &piece)) {
      why = read_piece(x, i, &piece, t, s, ngio_tensors_place(file, t));
    }
    if (why != NULL) refuse(x, x->path, name, why);
  }
  if (w->st == NG_OK && at != ngio_tensors_count(file)) {
    w->st = ng_fail_to(w->message, sizeof w->message, NG_ERR_FILE,
                       "%s: has %d tensors, the manifest says %d", x->path,
                       ngio_tensors_count(file), at);
  }
}

static void open_part(loading *x, int32_t part) {
  ng_work *w = x->w;
  ngio_source s = {.fd = -1};
  ngio_tensors *file = NULL;
  ngio_part_path(x->path, (size_t)x->path_room, w->place->path, x->id.text, part,
                 w->snapshot.parts);
  if (ng_work_fine(w, ngio_source_open(&s, x->path, w->message, sizeof w->message)) &&
      ng_work_fine(w, ngio_tensors_begin(&s, NULL, &file, w->message, sizeof w->message)) &&
      belongs(x, file, part)) {
    read_part(x, file, &s, part);
  }
  ngio_tensors_close(&file);
  ngio_source_close(&s);
}

/* One rank checks a part that no rank needs. */
static void read_all(loading *x) {
  ng_work *w = x->w;
  for (int32_t part = 0; part < w->snapshot.parts && w->st == NG_OK; part++) {
    bool open = part % w->p->ctx->ranks == w->p->ctx->rank;
    for (int32_t i = 0; i < w->fields && !open; i++) {
      ng_part_piece piece;
      open = piece_in(x, i, part, &piece) && wants(&w->item[i].f, &x->want[i], &piece);
    }
    if (open) open_part(x, part);
  }
}

/* ---- load ----------------------------------------------------------------------------------*/

static void take(const loading *x) {
  const ng_work *w = x->w;
  for (int32_t i = 0; i < w->fields; i++) {
    const ng_field *f = &w->item[i].f;
    const wanted *q = &x->want[i];
    const int64_t bytes = staged_bytes(f, q);
    if (bytes == 0) continue;
    if (f->slice != NULL) {
      memcpy(f->data, x->staged + q->at, (size_t)bytes);
    } else {
      ng_field_import(f, x->staged + q->at, f->data);
    }
  }
}

static ng_status room(loading *x) {
  ng_work *w = x->w;
  const int32_t ranks = w->p->ctx->ranks;
  x->told_bytes = (NG_CODES + ranks) * (int64_t)sizeof *x->told;
  x->path_room = ng_part_room(w->place->path);
  x->want_bytes = w->fields * (int64_t)sizeof *x->want;
  if (ng_work_take(w, &x->told, x->told_bytes) && ng_work_take(w, &x->path, x->path_room) &&
      ng_work_take(w, &x->want, x->want_bytes) && ng_work_take(w, &x->buffer, CHUNK)) {
    return NG_OK;
  }
  return ng_fail(w->p->ctx, NG_ERR_NOMEM, "%s: no memory", w->call);
}

ng_status ng_parts_load(ng_work *w) {
  loading x = {.w = w};
  ng_status st = NG_OK;
  NG_TRY(ng_work_agree(w, room(&x)));
  x.id = w->first ? ng_hex_of(0) : ng_hex_of(ng_crc_of(w->text, w->text_bytes - 1));
  if (w->first) memcpy(x.id.text, ngio_tensors_text(w->file, NG_MANIFEST_CRC), NG_HEX);
  plan(&x);
  if (w->st == NG_OK && !ng_work_take(w, &x.staged, x.staged_bytes)) {
    (void)ng_work_holds(w, NG_ERR_NOMEM, "no memory for what this rank holds");
  }
  if (w->st == NG_OK) read_all(&x);
  NG_TRY(ng_work_tell(w, x.told, NG_CODES + w->p->ctx->ranks));
  take(&x);
done:
  ng_work_give(w, x.staged, x.staged_bytes);
  ng_work_give(w, x.buffer, CHUNK);
  ng_work_give(w, x.want, x.want_bytes);
  ng_work_give(w, x.path, x.path_room);
  ng_work_give(w, x.told, x.told_bytes);
  return st;
}
