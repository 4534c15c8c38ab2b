/* state.c: the state of a preconditioner, to a file and back.
 *
 * A file is safetensors: every array of ng_state_fields as a tensor "block/field" in published
 * order, and in its metadata a manifest (manifest.c) with the CRC-32 of each tensor, and the
 * CRC-32 of the manifest itself.  So every bit of the file is either compared or checked.
 *
 * Ranks: rank 0 has the file.  Saving, an array that rank 0 does not hold is broadcast by its
 * owner. Loading, rank 0 reads and verifies everything, all ranks compare the manifest with their
 * model, and only when all agree does data travel and anything change.  Between two collectives
 * nobody returns; a verdict travels with its message, so that every rank can say what was wrong.
 *
 * In: a model between two steps, a path.  Out: a file that replaces the old one in one go (io/:
 * written beside it, flushed, renamed), or the old one untouched; a model that goes on to the same
 * bits, or one that is as it was. */
#include "state/state.h"

#include <stdlib.h>
#include <zlib.h>

#include "core/core.h"
#include "safetensors.h"

#define MANIFEST "natgrad"
#define MANIFEST_CRC "natgrad.crc32"
/* Numbers beside `values`: counters that only rank 0 goes on with. */
enum { RUNGS = NG_RESCUES };

_Static_assert(NG_F32 == (int)NGIO_F32 && NG_F64 == (int)NGIO_F64 && NG_F16 == (int)NGIO_F16 &&
                   NG_BF16 == (int)NGIO_BF16 && NG_I32 == (int)NGIO_I32 &&
                   NG_I64 == (int)NGIO_I64 && NG_U8 == (int)NGIO_U8,
               "the dtypes of the files are those of the library");

typedef struct tensor_name {
  char text[320]; /* a layer's name has at most 255 characters, a field's 47 */
} tensor_name;

/* What a call works with; release() gives everything back. */
typedef struct work {
  ng_precond *p;
  const char *call, *path;
  bool first;     /* this is rank 0 */
  double *values; /* of the blocks, then the rung counters */
  int64_t value_count;
  int32_t fields;
  int64_t largest;          /* bytes of the largest field */
  uint8_t *missing;         /* save: fields that rank 0 does not hold */
  tensor_name *name;        /* save, rank 0 */
  ngio_tensor *tensor;      /* save, rank 0 */
  void *memory, *published; /* one field, in the order of memory and of the file */
  char *text;               /* the manifest */
  int64_t text_bytes;       /* with its 0 */
  json_t *manifest;         /* rank 0; load: all ranks */
  ngio_writer *writer;      /* save, rank 0 */
  ngio_tensors *file;       /* load, rank 0 */
  ng_snapshot snapshot;     /* load: what the manifest says */
  ng_status st; /* rank 0: the first failure that the others do not know yet, with its message */
  char message[NG_MESSAGE];
  /* the walk under way */
  ng_status (*each)(struct work *w, const char *key, const ng_field *f);
  int32_t at;         /* number of the field */
  int64_t width;      /* bytes of an element that this pass takes */
  const char *sought; /* a name; NULL once a field has it */
} work;

/* ---- walking, allocating ---------------------------------------------------------------------*/

static ng_status one_field(void *arg, const char *key, ng_field *f) {
  work *w = arg;
  if (ng_dtype_size(f->dtype) != w->width) return NG_OK;
  const ng_status st = w->each(w, key, f);
  w->at++;
  return st;
}

/* Every field, wide dtypes first: so all data is aligned in the file.  The same order on all
 * ranks. */
static ng_status each_field(work *w, ng_status (*each)(work *, const char *, const ng_field *)) {
  ng_status st = NG_OK;
  w->each = each;
  w->at = 0;
  for (w->width = 8; w->width > 0 && st == NG_OK; w->width /= 2) {
    st = ng_state_fields(w->p, one_field, w);
  }
  return st;
}

/* The key of an array in files, for any number of ranks. */
static tensor_name name_of(const char *key, const ng_field *f) {
  tensor_name n;
  (void)snprintf(n.text, sizeof n.text, "%s/%s", key, f->name);
  return n;
}

/* ng_alloc has no blocks of no bytes; the same size goes to ng_free. */
static size_t some(int64_t bytes) { return bytes > 0 ? (size_t)bytes : 1; }

/* memcpy: a double ** is no void **. */
static bool take(work *w, void *at, int64_t bytes) {
  void *ptr = ng_alloc(w->p->ctx, some(bytes));
  memcpy(at, &ptr, sizeof ptr);
  return ptr != NULL;
}

/* Payload of files is counted like all else. */
static void *payload_take(void *user, size_t bytes) { return ng_alloc(user, bytes); }
static void payload_give(void *user, void *ptr, size_t bytes) { ng_free(user, ptr, bytes); }

/* Fields of all ranks, held here or not: data may be NULL, sizes are known. */
static ng_status count_field(work *w, const char *key, const ng_field *f) {
  (void)key;
  w->fields++;
  w->largest = ng_max64(w->largest, ng_field_bytes(f));
  return NG_OK;
}

static int64_t values_bytes(const work *w) {
  return (w->value_count + RUNGS) * (int64_t)sizeof *w->values;
}
static int64_t names_bytes(const work *w) { return w->fields * (int64_t)sizeof *w->name; }
static int64_t tensors_bytes(const work *w) { return w->fields * (int64_t)sizeof *w->tensor; }

/* What is checked and taken before the first word between ranks; `saving` needs more.  All memory
 * at once: between two collectives nothing may fail on one rank alone. */
static ng_status prepare(work *w, bool saving) {
  if (w->path == NULL || w->path[0] == 0) {
    return ng_fail(w->p->ctx, NG_ERR_ARG, "%s: no path given", w->call);
  }
  if (w->p->step->begun) {
    return ng_fail(w->p->ctx, NG_ERR_STATE,
                   "%s: between ng_begin and a step; state is saved and loaded between steps",
                   w->call);
  }
  (void)each_field(w, count_field);
  w->value_count = ng_state_values(w->p);
  bool ok = take(w, &w->values, values_bytes(w));
  if (ok && w->p->ctx->ranks > 1) ok = take(w, &w->memory, w->largest);
  if (ok && saving) ok = take(w, &w->missing, w->fields);
  if (ok && saving && w->first) {
    ok = take(w, &w->published, w->largest) && take(w, &w->name, names_bytes(w)) &&
         take(w, &w->tensor, tensors_bytes(w));
  }
  if (!ok) return ng_fail(w->p->ctx, NG_ERR_NOMEM, "%s: no memory", w->call);
  memset(w->values, 0, (size_t)values_bytes(w));
  return NG_OK;
}

/* Of a call at any stage, in the reverse order.  A writer that was not finished takes its file
 * away. */
static void release(work *w) {
  ng_context *ctx = w->p->ctx;
  ngio_writer_abandon(&w->writer);
  ngio_tensors_close(&w->file);
  json_decref(w->manifest);
  ng_free(ctx, w->text, some(w->text_bytes));
  ng_free(ctx, w->tensor, some(tensors_bytes(w)));
  ng_free(ctx, w->name, some(names_bytes(w)));
  ng_free(ctx, w->published, some(w->largest));
  ng_free(ctx, w->missing, some(w->fields));
  ng_free(ctx, w->memory, some(w->largest));
  ng_free(ctx, w->values, some(values_bytes(w)));
}

/* ---- what ranks say to each other ------------------------------------------------------------*/

static ng_status broken(work *w) {
  w->p->broken = true;
  return ng_fail(w->p->ctx, NG_ERR_COMM, "%s: the transport failed; every rank gets this", w->call);
}

static ng_status broadcast(work *w, void *buffer, int64_t bytes, int32_t root) {
  ng_comm *c = w->p->ctx->comm;
  const ng_group world = ng_group_world(c);
  if (c->size == 1 || bytes == 0) return NG_OK;
  return ng_comm_broadcast(c, &world, buffer, bytes, NG_U8, root) == NG_OK ? NG_OK : broken(w);
}

/* The worst status of all ranks, on all ranks. */
static ng_status agree(work *w, ng_status local) {
  ng_comm *c = w->p->ctx->comm;
  const ng_group world = ng_group_world(c);
  double code[NG_CODES];
  if (c->size == 1) return local;
  ng_codes_put(code, local);
  if (ng_comm_sum(c, &world, code, NG_CODES, NG_F64) != NG_OK) return broken(w);
  const ng_status st = ng_codes_worst(code);
  if (st >= NG_OK) return NG_OK;
  return ng_fail(w->p->ctx, st, "%s: %d of %d ranks failed with %s (%s)", w->call,
                 ng_codes_count(code, st), c->size, ng_status_name(st), ng_status_meaning(st));
}

/* What rank 0 found, on all ranks, with its message. */
static ng_status share_verdict(work *w) {
  struct {
    int64_t text_bytes;
    int32_t status;
    char message[NG_MESSAGE];
  } v;
  memset(&v, 0, sizeof v);
  v.status = w->st;
  v.text_bytes = w->text_bytes;
  memcpy(v.message, w->message, sizeof v.message);
  const ng_status st = broadcast(w, &v, (int64_t)sizeof v, 0);
  if (st != NG_OK) return st;
  if (!w->first) w->text_bytes = v.text_bytes;
  if (v.status == NG_OK) return NG_OK;
  return ng_fail(w->p->ctx, (ng_status)v.status, "%s", v.message);
}

/* Rank 0: note a failure of io/, whose messages begin with the path ... */
static bool fine(work *w, ngio_status st) {
  if (st != NGIO_OK) w->st = st == NGIO_ERR_NOMEM ? NG_ERR_NOMEM : NG_ERR_FILE;
  return st == NGIO_OK;
}

/* ... and one of our own. */
static bool holds(work *w, ng_status st, const char *why) {
  if (st != NG_OK) w->st = ng_fail_to(w->message, sizeof w->message, st, "%s: %s", w->path, why);
  return st == NG_OK;
}

/* ---- save ------------------------------------------------------------------------------------*/

/* The sum of arrays that have each number on one rank: 0 + x is exact. */
static ng_status gather_values(work *w) {
  ng_comm *c = w->p->ctx->comm;
  const ng_group world = ng_group_world(c);
  double *rung = w->values + w->value_count;
  ng_state_get(w->p, w->values); /* zero where another rank is the owner */
  for (int i = 0; i < RUNGS; i++) {
    rung[i] = (double)w->p->rescued[i];
  }
  if (ng_comm_sum(c, &world, w->values, w->value_count + RUNGS, NG_F64) != NG_OK) return broken(w);
  return NG_OK;
}

/* Rank 0 says which fields it lacks, and only those are sent. */
static ng_status note_missing(work *w, const char *key, const ng_field *f) {
  (void)key;
  w->missing[w->at] = f->data == NULL;
  return NG_OK;
}

/* Room is kept for the longest that a tensor's entry can become: not finite.  Its checksum is known
 * only when its bytes have passed, and the manifest stands in front of them. */
static ng_status announce(work *w, const char *key, const ng_field *f) {
  ngio_tensor *t = &w->tensor[w->at];
  w->name[w->at] = name_of(key, f);
  memset(t, 0, sizeof *t);
  t->name = w->name[w->at].text;
  t->dtype = (ngio_dtype)f->dtype;
  t->ndim = f->sym ? 1 : 2;
  t->shape[0] = f->sym ? ng_field_count(f) : f->rows;
  t->shape[1] = f->sym ? 0 : f->cols;
  json_t *entry = json_pack("{s:s, s:b}", "crc32", "00000000", "finite", 0);
  if (json_object_set_new(json_object_get(w->manifest, "tensors"), t->name, entry) != 0) {
    (void)holds(w, NG_ERR_NOMEM, "no memory for the manifest");
  }
  return NG_OK;
}

static bool print_manifest(work *w) {
  ng_free(w->p->ctx, w->text, some(w->text_bytes));
  w->text = NULL;
  const size_t n = json_dumpb(w->manifest, NULL, 0, JSON_COMPACT);
  w->text_bytes = (int64_t)n + 1;
  if (n == 0 || !take(w, &w->text, w->text_bytes) ||
      json_dumpb(w->manifest, w->text, n, JSON_COMPACT) != n) { /* both passes need memory */
    return holds(w, NG_ERR_NOMEM, "no memory for the manifest");
  }
  w->text[n] = 0;
  return true;
}

typedef struct hex {
  char text[12];
} hex;

/* CRC-32 as zlib has it: against damage, not against intent. */
static hex crc_of(const void *data, int64_t bytes) {
  hex h;
  (void)snprintf(h.text, sizeof h.text, "%08lx", crc32_z(0, data, (size_t)bytes));
  return h;
}

/* Rank 0.  A failure stays in *w: the others wait in share_verdict, and learn it there. */
static void begin_file(work *w) {
  int64_t rungs[RUNGS];
  char why[NG_MESSAGE] = "";
  for (int i = 0; i < RUNGS; i++) {
    rungs[i] = (int64_t)w->values[w->value_count + i];
  }
  if (!holds(w, ng_manifest_make(w->p, w->values, rungs, &w->manifest, why, sizeof why), why)) {
    return;
  }
  (void)each_field(w, announce);
  if (w->st != NG_OK || !print_manifest(w)) return;
  const ngio_text text[2] = {{MANIFEST, w->text}, {MANIFEST_CRC, "00000000"}};
  (void)fine(w, ngio_writer_create(w->path, w->tensor, w->fields, text, 2, &w->writer, w->message,
                                   sizeof w->message));
}

/* After a failure rank 0 goes on receiving: the others do not know yet. */
static ng_status save_field(work *w, const char *key, const ng_field *f) {
  const void *from = f->data;
  if (w->missing[w->at]) {
    const bool own = f->owner == w->p->ctx->rank;
    const ng_status st = broadcast(w, own ? f->data : w->memory, ng_field_bytes(f), f->owner);
    if (st != NG_OK) return st;
    from = w->memory;
  }
  if (!w->first || w->st != NG_OK) return NG_OK;
  const int64_t bytes = ng_field_bytes(f);
  ng_field_export(f, from, w->published);
  json_t *tensors = json_object_get(w->manifest, "tensors");
  json_t *entry = json_pack("{s:s, s:b}", "crc32", crc_of(w->published, bytes).text, "finite",
                            (int)ng_all_finite(w->published, f->dtype, ng_field_count(f)));
  if (json_object_set_new(tensors, name_of(key, f).text, entry) != 0) {
    (void)holds(w, NG_ERR_NOMEM, "no memory for the manifest");
    return NG_OK;
  }
  (void)fine(w, ngio_writer_put(w->writer, w->published, bytes, w->message, sizeof w->message));
  return NG_OK;
}

/* The manifest once more, with the checksums; it is no longer than what was announced. */
static void end_file(work *w) {
  if (w->st != NG_OK || !print_manifest(w)) return;
  const hex crc = crc_of(w->text, w->text_bytes - 1);
  const ngio_text text[2] = {{MANIFEST, w->text}, {MANIFEST_CRC, crc.text}};
  (void)fine(w, ngio_writer_finish(&w->writer, text, 2, w->message, sizeof w->message));
}

static void open_work(work *w, ng_precond *p, const char *call, const char *path) {
  memset(w, 0, sizeof *w);
  w->p = p;
  w->call = call;
  w->path = path;
  w->first = p->ctx->rank == 0;
}

/* Fields go one after the other, so rank 0 needs room for the largest and not for all. */
ng_status ng_state_save(ng_precond *p, const char *path) {
  work w;
  ng_status st = NG_OK;
  open_work(&w, p, "ng_save", path);
  NG_TRY(agree(&w, prepare(&w, true)));
  NG_TRY(gather_values(&w));
  if (w.first) (void)each_field(&w, note_missing);
  NG_TRY(broadcast(&w, w.missing, w.fields, 0));
  if (w.first) begin_file(&w);
  NG_TRY(share_verdict(&w));
  NG_TRY(each_field(&w, save_field));
  if (w.first) end_file(&w);
  NG_TRY(share_verdict(&w));
  ng_log(p->ctx, NG_LOG_INFO, "state: saved = %s steps = %lld", path, (long long)p->steps);
done:
  release(&w);
  return st;
}

/* ---- load: rank 0 verifies -------------------------------------------------------------------*/

static bool parse_manifest(work *w, const char *text) {
  char why[80];
  const ngio_status st = ngio_json(text, strlen(text), &w->manifest, why, sizeof why);
  return st == NGIO_ERR_NOMEM ? holds(w, NG_ERR_NOMEM, "no memory for the manifest")
         : st != NGIO_OK      ? holds(w, NG_ERR_FILE, "the manifest is no JSON text")
                              : true;
}

/* Every array of this model is in the file, as it should be.  `finite` was written with it: an
 * average that was not finite when saved may come back, one that has become so may not. */
static ng_status check_field(work *w, const char *key, const ng_field *f) {
  const tensor_name name = name_of(key, f);
  const ngio_tensor *t = ngio_tensors_find(w->file, name.text);
  const json_t *entry = json_object_get(json_object_get(w->manifest, "tensors"), name.text);
  const char *crc = json_string_value(json_object_get(entry, "crc32"));
  const int64_t rows = f->sym ? ng_field_count(f) : f->rows;
  const char *why = NULL;
  if (w->st != NG_OK) return NG_OK;
  if (t == NULL) {
    why = "is missing";
  } else if ((int)t->dtype != (int)f->dtype) {
    why = "has another dtype than in this model";
  } else if (t->ndim != (f->sym ? 1 : 2) || t->shape[0] != rows ||
             (!f->sym && t->shape[1] != f->cols)) {
    why = "has another shape than in this model";
  } else if (crc == NULL) {
    why = "is not in the manifest";
  } else if (!ng_is(crc, crc_of(t->data, t->bytes).text)) {
    why = "is damaged (its checksum differs)";
  } else if (!json_is_false(json_object_get(entry, "finite")) &&
             !ng_all_finite(t->data, f->dtype, ng_field_count(f))) {
    why = "holds a number that is not finite";
  }
  if (why != NULL) {
    w->st = ng_fail_to(w->message, sizeof w->message, NG_ERR_FILE, "%s: tensor '%s' %s", w->path,
                       name.text, why);
  }
  return NG_OK;
}

/* Quadratic in the fields, and only where the numbers of tensors differ: on the way to an error. */
static ng_status seek_field(work *w, const char *key, const ng_field *f) {
  if (w->sought != NULL && ng_is(w->sought, name_of(key, f).text)) w->sought = NULL;
  return NG_OK;
}

/* ... and nothing else is. */
static void check_extra(work *w) {
  for (int32_t i = 0; i < ngio_tensors_count(w->file) && w->st == NG_OK; i++) {
    const char *name = ngio_tensors_at(w->file, i)->name;
    w->sought = name;
    (void)each_field(w, seek_field);
    if (w->sought != NULL) {
      w->st = ng_fail_to(w->message, sizeof w->message, NG_ERR_FILE,
                         "%s: tensor '%s' does not belong to this model", w->path,
                         ngio_quote(name).text);
    }
  }
}

/* The checksum of the manifest first, then its meaning, then each array: nothing is believed before
 * it has been checked. */
static void read_file(work *w) {
  const ngio_alloc alloc = {payload_take, payload_give, w->p->ctx};
  char why[NG_MESSAGE] = "";
  if (!fine(w, ngio_tensors_read(w->path, &alloc, &w->file, w->message, sizeof w->message))) return;
  const char *text = ngio_tensors_text(w->file, MANIFEST);
  const char *crc = ngio_tensors_text(w->file, MANIFEST_CRC);
  if (text == NULL || crc == NULL || ngio_tensors_text_count(w->file) != 2) {
    (void)holds(w, NG_ERR_FILE, "is a safetensors file, but no state of natgrad");
    return;
  }
  const int64_t bytes = (int64_t)strlen(text) + 1;
  if (!ng_is(crc, crc_of(text, bytes - 1).text)) {
    (void)holds(w, NG_ERR_FILE, "the manifest is damaged (its checksum differs)");
    return;
  }
  if (!parse_manifest(w, text)) return;
  if (!holds(w, ng_manifest_read(w->p, w->manifest, &w->snapshot, w->values, why, sizeof why), why))
    return;
  (void)each_field(w, check_field);
  if (w->st == NG_OK && ngio_tensors_count(w->file) != w->fields) check_extra(w);
  if (w->st != NG_OK || w->p->ctx->ranks == 1) return;
  if (!take(w, &w->text, bytes)) {
    (void)holds(w, NG_ERR_NOMEM, "no memory for the manifest");
    return;
  }
  w->text_bytes = bytes;
  memcpy(w->text, text, (size_t)bytes);
}

/* ---- load: the other ranks compare, then everybody takes -------------------------------------*/

static ng_status room_for_text(work *w) {
  if (w->first || take(w, &w->text, w->text_bytes)) return NG_OK;
  return ng_fail(w->p->ctx, NG_ERR_NOMEM, "%s: no memory for the manifest", w->call);
}

static ng_status understand(work *w) {
  char why[NG_MESSAGE] = "";
  if (w->first) return NG_OK;
  if (parse_manifest(w, w->text)) {
    (void)holds(w, ng_manifest_read(w->p, w->manifest, &w->snapshot, w->values, why, sizeof why),
                why);
  }
  return w->st == NG_OK ? NG_OK : ng_fail(w->p->ctx, w->st, "%s", w->message);
}

/* Every rank takes what it holds of a field, whoever held it when it was saved: that is what makes
 * a state independent of the number of ranks. */
static ng_status load_field(work *w, const char *key, const ng_field *f) {
  const bool alone = w->p->ctx->ranks == 1;
  void *memory = alone ? f->data : w->memory;
  if (w->first) {
    ng_field_import(f, ngio_tensors_find(w->file, name_of(key, f).text)->data, memory);
  }
  const ng_status st = broadcast(w, memory, ng_field_bytes(f), 0);
  if (st == NG_OK && !alone && f->data != NULL) {
    memcpy(f->data, memory, (size_t)ng_field_bytes(f));
  }
  return st;
}

/* shared with fresh = false: what was saved is taken as it is, nothing is made anew with the
 * options of now. */
ng_status ng_state_load(ng_precond *p, const char *path) {
  work w;
  ng_status st = NG_OK;
  open_work(&w, p, "ng_load", path);
  NG_TRY(agree(&w, prepare(&w, false)));
  if (w.first) read_file(&w);
  NG_TRY(share_verdict(&w));
  if (p->ctx->ranks > 1) {
    NG_TRY(agree(&w, room_for_text(&w)));
    NG_TRY(broadcast(&w, w.text, w.text_bytes, 0));
    NG_TRY(agree(&w, understand(&w)));
  }
  /* From here on only a broken transport can fail, and that ends the object anyway. */
  NG_TRY(each_field(&w, load_field));
  ng_snapshot_apply(p, &w.snapshot, w.values);
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    if (b->holds && b->family->shared != NULL) b->family->shared(p->block[i], false);
  }
  ng_log(p->ctx, NG_LOG_INFO, "state: loaded = %s steps = %lld", path, (long long)p->steps);
done:
  release(&w);
  return st;
}
