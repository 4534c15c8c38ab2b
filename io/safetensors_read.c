/* safetensors_read.c: the suspicious half of the safetensors room.
 *
 * In: a path or bytes.  Out: names, dtypes, shapes, metadata and one aligned copy of all data,
 * after every statement of the header was held against the length of the file (of a stream, which
 * does not tell its length, against its end).  The format is that
 * of https://github.com/huggingface/safetensors (its limits: header at most 100 MB, tensors back to
 * back from offset 0 to the end).  One rule is ours: data must be aligned for its dtype, as every
 * writer we know does, so that callers may use the pointer as it is.
 */
#include "json.h"
#include "pages.h"
#include "safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const int64_t header_limit = 100 * 1000 * 1000;
enum { MANY = 1000 }; /* tensors: worth a second thread */

struct ngio_tensors {
  char *head; /* names and texts live in it */
  ngio_json *header;
  ngio_tensor *tensor;
  int64_t *begin;
  int32_t count, known; /* known: what was expected is there, and not in `header` */
  ngio_text *text;
  int32_t texts;
  void *data;
  int64_t start, bytes; /* of the data; a stream's bytes are known when its header is */
  ngio_alloc alloc;
  int has_alloc;
};

static const ngio_alloc *alloc_of(const ngio_tensors *f) { return f->has_alloc ? &f->alloc : NULL; }

static int find_dtype(const char *name, ngio_dtype *out) {
  static const struct {
    const char *name;
    ngio_dtype t;
  } known[] = {{"F32", NGIO_F32}, {"F64", NGIO_F64}, {"F16", NGIO_F16}, {"BF16", NGIO_BF16},
               {"I32", NGIO_I32}, {"I64", NGIO_I64}, {"U8", NGIO_U8}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (strcmp(name, known[i].name) == 0) {
      *out = known[i].t;
      return 1;
    }
  }
  return 0;
}

static int64_t whole(const ngio_value *v) { return v->kind == NGIO_INTEGER ? v->is.integer : -1; }

/* One header entry into *t and *begin, everything checked that does not need its neighbours. */
static ngio_status take_tensor(const char *label, const char *name, const ngio_value *v,
                               int64_t data_bytes, ngio_tensor *t, int64_t *begin, char *message,
                               size_t size) {
  const ngio_value *next = ngio_first(v); /* in the order in which most programs write them */
  const ngio_value *dtype = ngio_get_at(v, next, "dtype");
  next = next == NULL ? NULL : ngio_next(v, next);
  const ngio_value *shape = ngio_get_at(v, next, "shape");
  next = next == NULL ? NULL : ngio_next(v, next);
  const ngio_value *offsets = ngio_get_at(v, next, "data_offsets");
  if (!ngio_is(v, NGIO_OBJECT) || v->count != 3 || !ngio_is(dtype, NGIO_STRING) ||
      !ngio_is(shape, NGIO_ARRAY) || !ngio_is(offsets, NGIO_ARRAY) || offsets->count != 2)
    return ngio_say(message, size, NGIO_ERR_FILE,
                    "%s: tensor '%s': its entry is not {dtype, shape, data_offsets}", label,
                    ngio_quote(name).text);
  memset(t, 0, sizeof *t);
  t->name = name;
  if (!find_dtype(ngio_text_of(dtype), &t->dtype))
    return ngio_say(message, size, NGIO_ERR_FILE,
                    "%s: tensor '%s': dtype '%s' is not read (F64 F32 F16 BF16 I64 I32 U8 are)",
                    label, ngio_quote(name).text, ngio_quote(ngio_text_of(dtype)).text);
  if (shape->count > NGIO_MAX_DIMS)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: tensor '%s': %u axes, at most %d are read",
                    label, ngio_quote(name).text, shape->count, NGIO_MAX_DIMS);
  t->ndim = (int32_t)shape->count;
  for (int32_t i = 0; i < t->ndim; i++) {
    t->shape[i] = whole(&shape[1 + i]);
    if (t->shape[i] < 0)
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: tensor '%s': axis %d of its shape is bad",
                      label, ngio_quote(name).text, (int)i);
  }
  t->bytes = ngio_bytes_of(t->dtype, t->shape, t->ndim);
  if (t->bytes < 0)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: tensor '%s': the shape overflows", label,
                    ngio_quote(name).text);
  const int64_t first = whole(&offsets[1]), last = whole(&offsets[2]);
  if (first < 0 || last < first)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: tensor '%s': bad data_offsets", label,
                    ngio_quote(name).text);
  if (last - first != t->bytes)
    return ngio_say(message, size, NGIO_ERR_FILE,
                    "%s: tensor '%s': %lld bytes by its offsets, %lld by its shape", label,
                    ngio_quote(name).text, (long long)(last - first), (long long)t->bytes);
  if (last > data_bytes)
    return ngio_say(message, size, NGIO_ERR_FILE,
                    "%s: tensor '%s': ends at byte %lld of %lld: truncated", label,
                    ngio_quote(name).text, (long long)last, (long long)data_bytes);
  if (first % ngio_dtype_size(t->dtype) != 0)
    return ngio_say(message, size, NGIO_ERR_FILE,
                    "%s: tensor '%s': its data is not aligned for its dtype", label,
                    ngio_quote(name).text);
  *begin = first;
  return NGIO_OK;
}

typedef struct placed {
  ngio_tensor t;
  int64_t begin;
} placed;

/* Order of the data; an empty tensor comes before the one that starts where it stands. */
static int by_place(const void *a, const void *b) {
  const placed *x = (const placed *)a, *y = (const placed *)b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  if (x->t.bytes != y->t.bytes) return x->t.bytes < y->t.bytes ? -1 : 1;
  return strcmp(x->t.name, y->t.name);
}

static ngio_status take_texts(ngio_tensors *f, const char *label, const ngio_value *meta,
                              char *message, size_t size) {
  if (!ngio_is(meta, NGIO_OBJECT))
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: __metadata__ is not a map of texts", label);
  f->text = calloc((size_t)meta->count + 1, sizeof *f->text);
  if (!f->text) return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", label);
  for (const ngio_value *v = ngio_first(meta); v != NULL; v = ngio_next(meta, v)) {
    if (ngio_text_of(v) == NULL)
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: __metadata__ '%s' is not a text", label,
                      ngio_quote(v->key).text);
    f->text[f->texts].key = v->key;
    f->text[f->texts++].value = ngio_text_of(v);
  }
  return NGIO_OK;
}

/* Only of a file whose header has another order than its data. */
static bool sort_tensors(ngio_tensors *f) {
  placed *list = calloc((size_t)f->count, sizeof *list);
  ngio_value *root = ngio_json_root(f->header);
  if (!list) return false;
  for (int32_t i = 0; i < f->count; i++)
    list[i] = (placed){f->tensor[i], f->begin[i]};
  qsort(list, (size_t)f->count, sizeof *list, by_place);
  for (int32_t i = 0; i < f->count; i++) {
    f->tensor[i] = list[i].t;
    f->begin[i] = list[i].begin;
    root[ngio_get(root, list[i].t.name) - root].tag = i + 1;
  }
  free(list);
  return true;
}

/* Back to back, from 0 to the end; a stream ends where they do. */
static ngio_status check_places(ngio_tensors *f, const char *label, char *message, size_t size) {
  int64_t at = 0;
  for (int32_t i = 0; i < f->count; at += f->tensor[i++].bytes) {
    if (f->begin[i] == at) continue;
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: tensor '%s' %s", label,
                    ngio_quote(f->tensor[i].name).text,
                    f->begin[i] < at ? "overlaps the one before it"
                                     : "leaves a gap after the one before it");
  }
  if (f->bytes < 0) f->bytes = at;
  if (at == f->bytes) return NGIO_OK;
  return ngio_say(message, size, NGIO_ERR_FILE, "%s: %lld bytes after the last tensor", label,
                  (long long)(f->bytes - at));
}

static bool room_for_tensors(ngio_tensors *f, size_t n) {
  f->tensor = malloc((n + 1) * sizeof *f->tensor);
  f->begin = malloc((n + 1) * sizeof *f->begin);
  if (f->tensor != NULL) ng_pages_wish(f->tensor, (n + 1) * sizeof *f->tensor);
  return f->tensor != NULL && f->begin != NULL;
}

/* ---- a header that is known ------------------------------------------------------------------*/

/* Entry i as it would be written behind others, into *o, and its place; the ones before it have theirs. */
static bool make_expected(ngio_tensors *f, const ngio_expected *e, int32_t i, ngio_out *o) {
  ngio_tensor *t = &f->tensor[i];
  const int64_t at = i > 0 ? f->begin[i - 1] + f->tensor[i - 1].bytes : 0;
  e->tensor(e->user, i, t);
  t->bytes = ngio_bytes_of(t->dtype, t->shape, t->ndim);
  if (t->bytes < 0 || t->bytes > INT64_MAX - at || at % ngio_dtype_size(t->dtype) != 0)
    return false;
  f->begin[i] = at;
  o->used = 0;
  ngio_out_bytes(o, ",", 1);
  ngio_tensor_entry(o, t, at, at + t->bytes);
  return !o->lost;
}

/* All of them, from `at` to the bracket at `end`. */
static bool all_expected(ngio_tensors *f, const ngio_expected *e, const char *at, const char *end,
                         ngio_out *o) {
  for (int32_t i = 0; i < e->count; i++) {
    if (!make_expected(f, e, i, o) || o->used > (size_t)(end - at) ||
        (i > 0 && memcmp(at, o->text, o->used) != 0)) { /* the first is there: find_first */
      return false;
    }
    at += o->used;
  }
  const int32_t last = e->count - 1;
  return at == end && (f->bytes < 0 || f->bytes == f->begin[last] + f->tensor[last].bytes);
}

/* If the header ends with these entries, and blanks, they are cut off: what is left is closed by a bracket.  An
 * entry in the middle of a string would be no JSON behind its first quote, so what is left is a JSON text if and
 * only if all was one.  Each place where the first stands is tried; names are different, so no byte is compared
 * more than a few times. */
typedef struct cutting {
  ngio_tensors *f;
  const ngio_expected *e;
  ngio_out first, o; /* the first entry, and the one that is looked at */
  char *at;          /* where the first stands; NULL: nowhere (any more) */
  const char *end;   /* the bracket behind the last */
  bool same;         /* all stand there */
  ngio_status st;    /* of what is left as JSON */
  char why[80];
} cutting;

static void find_first(cutting *c) {
  c->at = memmem(c->at, (size_t)(c->end - c->at), c->first.text, c->first.used);
}

static bool begin_cut(cutting *c, size_t length) {
  const char *head = c->f->head;
  while (head[length - 1] == ' ') /* it begins with a bracket */
    length--;
  c->at = c->f->head;
  c->end = head + length - 1;
  if (!room_for_tensors(c->f, (size_t)c->e->count)) return false;
  if (*c->end != '}' || !make_expected(c->f, c->e, 0, &c->first)) c->at = NULL;
  if (c->at != NULL) find_first(c);
  return true;
}

static size_t cut_off(cutting *c) {
  *c->at = '}';
  c->f->known = c->e->count;
  return (size_t)(c->at - c->f->head) + 1;
}

static void end_cut(cutting *c) {
  ngio_out_free(&c->first);
  ngio_out_free(&c->o);
  if (c->f->known > 0) return;
  free(c->f->tensor);
  free(c->f->begin);
  c->f->tensor = NULL;
  c->f->begin = NULL;
}

/* Side by side: the entries are compared, and what stands before them is read, in its place and as if all were the
 * same.  Both leave the first entry's bytes to the other. */
enum { ENTRIES, REST, SIDES };

static void one_side(void *arg, int32_t side) {
  cutting *c = (cutting *)arg;
  if (side == ENTRIES) {
    c->same = all_expected(c->f, c->e, c->at, c->end, &c->o);
  } else {
    *c->at = '}';
    c->st = ngio_json_parse_here(c->f->head, (size_t)(c->at - c->f->head) + 1, &c->f->header,
                                 c->why, sizeof c->why);
  }
}

static ngio_status no_memory(const ngio_source *s, char *message, size_t size) {
  return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory for the header", s->label);
}

/* The header as values, of all tensors or of what is not expected.  What was read in its place for nothing is taken
 * anew, which a stream cannot do. */
static ngio_status read_header(ngio_tensors *f, ngio_source *s, size_t length,
                               const ngio_expected *e, char *message, size_t size) {
  cutting c = {.f = f, .e = e};
  ngio_status st = NGIO_OK;
  size_t left = length;
  if (e != NULL && e->count > 0 && !begin_cut(&c, length)) return no_memory(s, message, size);
  if (c.at != NULL && e->count >= MANY && s->threads.all != NULL) {
    ngio_all(&s->threads, SIDES, one_side, &c);
    if (c.same) {
      f->known = e->count;
      left = 0;
    } else {
      ngio_json_free(&f->header);
      st = ngio_source_read(s, 8, f->head, (int64_t)length, message, size);
    }
  }
  while (st == NGIO_OK && left > 0 && c.at != NULL && !c.o.lost && f->known == 0) {
    if (all_expected(f, e, c.at, c.end, &c.o)) {
      left = cut_off(&c);
    } else {
      c.at += c.first.used;
      find_first(&c);
    }
  }
  const bool lost = c.o.lost || c.first.lost;
  if (e != NULL && e->count > 0) end_cut(&c);
  if (st != NGIO_OK) return st;
  if (lost) return no_memory(s, message, size);
  if (left > 0) c.st = ngio_json_parse_here(f->head, left, &f->header, c.why, sizeof c.why);
  return c.st == NGIO_OK ? NGIO_OK
                         : ngio_say(message, size, c.st, "%s: header: %s", s->label, c.why);
}

/* Of what is left only the metadata may be there. */
static ngio_status take_known(ngio_tensors *f, const char *label, char *message, size_t size) {
  const ngio_value *root = ngio_json_root(f->header);
  ngio_status st = NGIO_OK;
  for (const ngio_value *v = ngio_first(root); v != NULL && st == NGIO_OK; v = ngio_next(root, v)) {
    if (strcmp(v->key, "__metadata__") != 0)
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: tensor '%s' is not expected", label,
                      ngio_quote(v->key).text);
    st = take_texts(f, label, v, message, size);
  }
  f->count = f->known;
  return st == NGIO_OK ? check_places(f, label, message, size) : st;
}

static ngio_status take_header(ngio_tensors *f, const char *label, char *message, size_t size) {
  ngio_value *root = ngio_json_root(f->header);
  ngio_status st = NGIO_OK;
  bool in_order = true;
  const int64_t limit = f->bytes < 0 ? INT64_MAX : f->bytes;
  if (f->known > 0) return take_known(f, label, message, size);
  if (!room_for_tensors(f, root->count))
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", label);
  for (uint32_t i = 1; i < root->span; i += root[i].span) {
    const char *key = root[i].key;
    if (strcmp(key, "__metadata__") == 0) {
      st = take_texts(f, label, &root[i], message, size);
    } else {
      const int32_t at = f->count++;
      st = take_tensor(label, key, &root[i], limit, &f->tensor[at], &f->begin[at], message, size);
      root[i].tag = at + 1;
      /* each begins where the one before it ends, or later */
      in_order = in_order && st == NGIO_OK &&
                 (at == 0 || f->begin[at - 1] + f->tensor[at - 1].bytes <= f->begin[at]);
    }
    if (st != NGIO_OK) return st;
  }
  if (!in_order && !sort_tensors(f))
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", label);
  return check_places(f, label, message, size);
}

ngio_status ngio_tensors_begin(ngio_source *s, const ngio_alloc *alloc,
                               const ngio_expected *expected, ngio_tensors **out, char *message,
                               size_t size) {
  const char *label = s->label;
  const bool stream = s->size < 0;
  unsigned char first[8];
  uint64_t length = 0;
  ngio_status st = NGIO_OK;
  ngio_tensors *f = calloc(1, sizeof *f);
  if (!f) {
    st = ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", label);
    goto done;
  }
  if (alloc) {
    f->alloc = *alloc;
    f->has_alloc = 1;
  }
  if (!stream && s->size < 10) {
    st = ngio_say(message, size, NGIO_ERR_FILE, "%s: %lld bytes are no safetensors file", label,
                  (long long)s->size);
    goto done;
  }
  st = ngio_source_read(s, 0, first, 8, message, size);
  if (st != NGIO_OK) goto done;
  for (int i = 7; i >= 0; i--)
    length = length << 8 | first[i];
  if (length > (uint64_t)header_limit || length < 2) {
    st = ngio_say(message, size, NGIO_ERR_FILE,
                  "%s: header of %llu bytes: no safetensors file, expected 2 to %lld", label,
                  (unsigned long long)length, (long long)header_limit);
    goto done;
  }
  if (!stream && length > (uint64_t)(s->size - 8)) {
    st = ngio_say(message, size, NGIO_ERR_FILE,
                  "%s: header of %llu bytes in a file of %lld: truncated, or no safetensors file",
                  label, (unsigned long long)length, (long long)s->size);
    goto done;
  }
  f->head = ng_pages_take((size_t)length + 1, sizeof(void *));
  if (!f->head) {
    st = ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory for the header", label);
    goto done;
  }
  st = ngio_source_read(s, 8, f->head, (int64_t)length, message, size);
  if (st != NGIO_OK) goto done;
  if (f->head[0] != '{') {
    st = ngio_say(message, size, NGIO_ERR_FILE, "%s: no safetensors file (header is no JSON map)",
                  label);
    goto done;
  }
  f->start = 8 + (int64_t)length;
  f->bytes = stream ? -1 : s->size - f->start;
  st = read_header(f, s, (size_t)length, expected, message, size);
  if (st != NGIO_OK) goto done;
  if (ngio_json_root(f->header)->count > INT32_MAX - 1) {
    st = ngio_say(message, size, NGIO_ERR_FILE, "%s: too many tensors", label);
    goto done;
  }
  st = take_header(f, label, message, size);
done:
  if (st != NGIO_OK) ngio_tensors_close(&f);
  *out = f;
  return st;
}

ngio_status ngio_tensors_finish(ngio_tensors *f, ngio_source *s, char *message, size_t size) {
  void *data = ngio_take(alloc_of(f), f->bytes);
  if (!data)
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory for %lld bytes of data", s->label,
                    (long long)f->bytes);
  ngio_status st = ngio_source_read(s, f->start, data, f->bytes, message, size);
  if (st == NGIO_OK) st = ngio_source_end(s, message, size);
  if (st != NGIO_OK) {
    ngio_give(alloc_of(f), data, f->bytes);
    return st;
  }
  f->data = data;
  for (int32_t i = 0; i < f->count; i++)
    f->tensor[i].data = (char *)data + f->begin[i];
  return NGIO_OK;
}

static ngio_status read_all(ngio_source *s, const ngio_alloc *alloc, ngio_tensors **out,
                            char *message, size_t size) {
  ngio_status st = ngio_tensors_begin(s, alloc, NULL, out, message, size);
  if (st == NGIO_OK) st = ngio_tensors_finish(*out, s, message, size);
  if (st != NGIO_OK) ngio_tensors_close(out);
  return st;
}

ngio_status ngio_tensors_read(const char *path, const ngio_alloc *alloc, ngio_tensors **out,
                              char *message, size_t size) {
  *out = NULL;
  ngio_source s;
  ngio_status st = ngio_source_open(&s, path, message, size);
  if (st == NGIO_OK) st = read_all(&s, alloc, out, message, size);
  ngio_source_close(&s);
  return st;
}

ngio_status ngio_tensors_parse(const void *bytes, size_t n, const char *label,
                               const ngio_alloc *alloc, ngio_tensors **out, char *message,
                               size_t size) {
  ngio_source s;
  ngio_source_memory(&s, label, bytes, n);
  return read_all(&s, alloc, out, message, size);
}

void ngio_tensors_close(ngio_tensors **f) {
  ngio_tensors *x = *f;
  if (!x) return;
  ngio_give(alloc_of(x), x->data, x->bytes);
  free(x->text);
  free(x->begin);
  free(x->tensor);
  ngio_json_free(&x->header);
  free(x->head);
  free(x);
  *f = NULL;
}

int32_t ngio_tensors_count(const ngio_tensors *f) { return f->count; }
int64_t ngio_tensors_bytes(const ngio_tensors *f) { return f->bytes; }
int64_t ngio_tensors_place(const ngio_tensors *f, const ngio_tensor *t) {
  return f->start + f->begin[t - f->tensor];
}
const ngio_tensor *ngio_tensors_at(const ngio_tensors *f, int32_t i) {
  return i >= 0 && i < f->count ? &f->tensor[i] : NULL;
}

const ngio_tensor *ngio_tensors_find(const ngio_tensors *f, const char *name) {
  for (int32_t i = 0; i < f->known; i++) { /* who expects tensors knows where they are */
    if (strcmp(f->tensor[i].name, name) == 0) return &f->tensor[i];
  }
  const ngio_value *v = ngio_get(ngio_json_root(f->header), name);
  return v == NULL || v->tag == 0 ? NULL : &f->tensor[v->tag - 1];
}

int32_t ngio_tensors_text_count(const ngio_tensors *f) { return f->texts; }
const ngio_text *ngio_tensors_text_at(const ngio_tensors *f, int32_t i) {
  return i >= 0 && i < f->texts ? &f->text[i] : NULL;
}

const char *ngio_tensors_text(const ngio_tensors *f, const char *key) {
  for (int32_t i = 0; i < f->texts; i++) {
    if (strcmp(f->text[i].key, key) == 0) return f->text[i].value;
  }
  return NULL;
}
