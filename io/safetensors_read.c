/* safetensors_read.c: read and check safetensors files.
 *
 * The result has names, dtypes, shapes, metadata and one aligned copy of all data.  The data that the header announces
 * must end at the end of the file or stream.
 *
 * The format: https://github.com/huggingface/safetensors, with the same limits: a header of at most 100 MB, tensors
 * contiguous from offset 0 to the end.  In addition, data must be aligned for its dtype, so that callers can use the
 * pointers directly; all known writers align data. */
#include "json.h"
#include "pages.h"
#include "safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const int64_t header_limit = 100 * 1000 * 1000;

struct ngio_tensors {
  char *head; /* memory of names and texts */
  ngio_json *header;
  ngio_tensor *tensor;
  int64_t *begin;
  int32_t count;
  ngio_text *text;
  int32_t texts;
  void *data;
  int64_t start, bytes; /* offset and length of the data; check_offsets sets `bytes` of a stream */
  ngio_alloc alloc;
};

static void *take_from_heap(void *user, size_t bytes) {
  (void)user;
  return malloc(bytes);
}

static void give_to_heap(void *user, void *ptr, size_t bytes) {
  (void)user, (void)bytes;
  free(ptr);
}

static const ngio_alloc heap = {take_from_heap, give_to_heap, NULL};

/* Bytes of memory for the data: at least 1, because an allocator may return NULL for 0. */
static size_t data_size(const ngio_tensors *f) { return f->bytes > 0 ? (size_t)f->bytes : 1; }

static int find_dtype(const char *name, ngio_dtype *out) {
  for (*out = NGIO_F32; ngio_dtype_name(*out) != NULL; ++*out) {
    if (strcmp(name, ngio_dtype_name(*out)) == 0) return 1;
  }
  return 0;
}

/* Read and check the header entry of one tensor; `why` receives an error.  check_offsets checks all offsets together. */
static ngio_status read_tensor_entry(const char *name, const ngio_value *v, int64_t data_bytes,
                                     ngio_tensor *t, int64_t *begin, char *why, size_t size) {
  /* look at the next member first, because most programs write dtype, shape, data_offsets in this order */
  const ngio_value *next = ngio_first(v);
  const ngio_value *dtype = ngio_get_hinted(v, next, "dtype");
  next = next == NULL ? NULL : ngio_next(v, next);
  const ngio_value *shape = ngio_get_hinted(v, next, "shape");
  next = next == NULL ? NULL : ngio_next(v, next);
  const ngio_value *offsets = ngio_get_hinted(v, next, "data_offsets");
  if (!ngio_is(v, NGIO_OBJECT) || v->count != 3 || !ngio_is(dtype, NGIO_STRING) ||
      !ngio_is(shape, NGIO_ARRAY) || ngio_count(offsets) != 2)
    return ngio_say(why, size, NGIO_ERR_FILE, ": its entry is not {dtype, shape, data_offsets}");
  memset(t, 0, sizeof *t);
  t->name = name;
  if (!find_dtype(ngio_text_of(dtype), &t->dtype))
    return ngio_say(why, size, NGIO_ERR_FILE,
                    ": dtype '%s' is not read (F64 F32 F16 BF16 I64 I32 U8 are)",
                    ngio_printable(ngio_text_of(dtype)).text);
  if (shape->count > NGIO_MAX_DIMS)
    return ngio_say(why, size, NGIO_ERR_FILE, ": %u axes, at most %d are read", shape->count,
                    NGIO_MAX_DIMS);
  t->ndim = (int32_t)shape->count;
  for (int32_t i = 0; i < t->ndim; i++) {
    t->shape[i] = ngio_integer_or(&shape[1 + i], -1);
    if (t->shape[i] < 0)
      return ngio_say(why, size, NGIO_ERR_FILE, ": axis %d of its shape is bad", (int)i);
  }
  t->bytes = ngio_bytes_of(t->dtype, t->shape, t->ndim);
  if (t->bytes < 0) return ngio_say(why, size, NGIO_ERR_FILE, ": the shape overflows");
  const int64_t first = ngio_integer_or(&offsets[1], -1), last = ngio_integer_or(&offsets[2], -1);
  if (first < 0 || last < first) return ngio_say(why, size, NGIO_ERR_FILE, ": bad data_offsets");
  if (last - first != t->bytes)
    return ngio_say(why, size, NGIO_ERR_FILE, ": %lld bytes by its offsets, %lld by its shape",
                    (long long)(last - first), (long long)t->bytes);
  if (last > data_bytes)
    return ngio_say(why, size, NGIO_ERR_FILE, ": ends at byte %lld of %lld: truncated",
                    (long long)last, (long long)data_bytes);
  if (first % ngio_dtype_size(t->dtype) != 0)
    return ngio_say(why, size, NGIO_ERR_FILE, ": its data is not aligned for its dtype");
  *begin = first;
  return NGIO_OK;
}

typedef struct placed {
  ngio_tensor t;
  int64_t begin;
} placed;

/* Compare by offset; an empty tensor precedes the tensor that has the same offset. */
static int compare_offsets(const void *a, const void *b) {
  const placed *x = (const placed *)a, *y = (const placed *)b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  if (x->t.bytes != y->t.bytes) return x->t.bytes < y->t.bytes ? -1 : 1;
  return strcmp(x->t.name, y->t.name);
}

static ngio_status read_metadata(ngio_tensors *f, const char *label, const ngio_value *meta,
                                 char *message, size_t size) {
  if (!ngio_is(meta, NGIO_OBJECT))
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: __metadata__ is not a map of texts", label);
  f->text = calloc((size_t)meta->count + 1, sizeof *f->text);
  if (!f->text) return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", label);
  for (const ngio_value *v = ngio_first(meta); v != NULL; v = ngio_next(meta, v)) {
    if (ngio_text_of(v) == NULL)
      return ngio_say(message, size, NGIO_ERR_FILE, "%s: __metadata__ '%s' is not a text", label,
                      ngio_printable(v->key).text);
    f->text[f->texts].key = v->key;
    f->text[f->texts++].value = ngio_text_of(v);
  }
  return NGIO_OK;
}

/* Sort the tensors by offset; needed if the header has another order. */
static bool sort_tensors(ngio_tensors *f) {
  placed *list = calloc((size_t)f->count, sizeof *list);
  ngio_value *root = ngio_json_root(f->header);
  if (!list) return false;
  for (int32_t i = 0; i < f->count; i++)
    list[i] = (placed){f->tensor[i], f->begin[i]};
  qsort(list, (size_t)f->count, sizeof *list, compare_offsets);
  for (int32_t i = 0; i < f->count; i++) {
    f->tensor[i] = list[i].t;
    f->begin[i] = list[i].begin;
    root[ngio_get(root, list[i].t.name) - root].tag = i + 1;
  }
  free(list);
  return true;
}

/* Check that the data is contiguous from 0 to the end; for a stream, set the end (f->bytes). */
static ngio_status check_offsets(ngio_tensors *f, const char *label, char *message, size_t size) {
  int64_t at = 0;
  for (int32_t i = 0; i < f->count; at += f->tensor[i++].bytes) {
    if (f->begin[i] == at) continue;
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: tensor '%s' %s", label,
                    ngio_printable(f->tensor[i].name).text,
                    f->begin[i] < at ? "overlaps the tensor before it"
                                     : "leaves a gap after the tensor before it");
  }
  if (f->bytes < 0) f->bytes = at;
  if (at == f->bytes) return NGIO_OK;
  return ngio_say(message, size, NGIO_ERR_FILE, "%s: %lld bytes after the last tensor", label,
                  (long long)(f->bytes - at));
}

static bool allocate_tensors(ngio_tensors *f, size_t n) {
  f->tensor = malloc((n + 1) * sizeof *f->tensor);
  f->begin = malloc((n + 1) * sizeof *f->begin);
  if (f->tensor != NULL) ng_request_large_pages(f->tensor, (n + 1) * sizeof *f->tensor);
  return f->tensor != NULL && f->begin != NULL;
}

static ngio_status read_header_entries(ngio_tensors *f, const char *label, char *message,
                                       size_t size) {
  ngio_value *root = ngio_json_root(f->header);
  ngio_status st;
  char why[160];
  bool in_order = true;
  const int64_t limit = f->bytes < 0 ? INT64_MAX : f->bytes;
  if (!allocate_tensors(f, root->count))
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", label);
  for (uint32_t i = 1; i < root->span; i += root[i].span) {
    const char *key = root[i].key;
    if (strcmp(key, "__metadata__") == 0) {
      st = read_metadata(f, label, &root[i], message, size);
      if (st != NGIO_OK) return st;
    } else {
      const int32_t at = f->count++;
      st = read_tensor_entry(key, &root[i], limit, &f->tensor[at], &f->begin[at], why, sizeof why);
      if (st != NGIO_OK)
        return ngio_say(message, size, st, "%s: tensor '%s'%s", label, ngio_printable(key).text,
                        why);
      root[i].tag = at + 1;
      /* true if no tensor begins before the end of the previous tensor */
      in_order =
          in_order && (at == 0 || f->begin[at - 1] + f->tensor[at - 1].bytes <= f->begin[at]);
    }
  }
  if (!in_order && !sort_tensors(f))
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", label);
  return check_offsets(f, label, message, size);
}

static ngio_status read_header_text(ngio_tensors *f, ngio_source *s, char *message, size_t size) {
  const char *label = s->label;
  const bool stream = s->size < 0;
  unsigned char first[8];
  char why[80];
  uint64_t length = 0;
  if (!stream && s->size < 10)
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: %lld bytes are no safetensors file", label,
                    (long long)s->size);
  ngio_status st = ngio_source_read(s, 0, first, 8, message, size);
  if (st != NGIO_OK) return st;
  for (int i = 7; i >= 0; i--)
    length = length << 8 | first[i];
  if (length > (uint64_t)header_limit || length < 2)
    return ngio_say(message, size, NGIO_ERR_FILE,
                    "%s: header of %llu bytes: no safetensors file, expected 2 to %lld", label,
                    (unsigned long long)length, (long long)header_limit);
  if (!stream && length > (uint64_t)(s->size - 8))
    return ngio_say(message, size, NGIO_ERR_FILE,
                    "%s: header of %llu bytes in a file of %lld: truncated, or no safetensors file",
                    label, (unsigned long long)length, (long long)s->size);
  f->head = ng_pages_alloc((size_t)length + 1, sizeof(void *));
  if (!f->head)
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory for the header", label);
  st = ngio_source_read(s, 8, f->head, (int64_t)length, message, size);
  if (st != NGIO_OK) return st;
  if (f->head[0] != '{')
    return ngio_say(message, size, NGIO_ERR_FILE, "%s: no safetensors file (header is no JSON map)",
                    label);
  f->start = 8 + (int64_t)length;
  f->bytes = stream ? -1 : s->size - f->start;
  st = ngio_json_parse_here(f->head, (size_t)length, &f->header, why, sizeof why);
  if (st != NGIO_OK) return ngio_say(message, size, st, "%s: header: %s", label, why);
  return read_header_entries(f, label, message, size);
}

ngio_status ngio_tensors_begin(ngio_source *s, const ngio_alloc *alloc, ngio_tensors **out,
                               char *message, size_t size) {
  ngio_tensors *f = *out = calloc(1, sizeof *f);
  if (!f) return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory", s->label);
  f->alloc = alloc != NULL ? *alloc : heap;
  const ngio_status st = read_header_text(f, s, message, size);
  if (st != NGIO_OK) ngio_tensors_close(out);
  return st;
}

ngio_status ngio_tensors_finish(ngio_tensors *f, ngio_source *s, char *message, size_t size) {
  void *data = f->alloc.take(f->alloc.user, data_size(f));
  if (!data)
    return ngio_say(message, size, NGIO_ERR_NOMEM, "%s: no memory for %lld bytes of data", s->label,
                    (long long)f->bytes);
  ngio_status st = ngio_source_read(s, f->start, data, f->bytes, message, size);
  if (st == NGIO_OK) st = ngio_source_end(s, message, size);
  if (st != NGIO_OK) {
    f->alloc.give(f->alloc.user, data, data_size(f));
    return st;
  }
  f->data = data;
  for (int32_t i = 0; i < f->count; i++)
    f->tensor[i].data = (char *)data + f->begin[i];
  return NGIO_OK;
}

static ngio_status read_all(ngio_source *s, const ngio_alloc *alloc, ngio_tensors **out,
                            char *message, size_t size) {
  ngio_status st = ngio_tensors_begin(s, alloc, out, message, size);
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
  if (x->data != NULL) x->alloc.give(x->alloc.user, x->data, data_size(x));
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
