/* t_expected.c: what is compared instead of parsed gives what parsing gives.  The reader of safetensors with and
 * without a list of what should be there, on headers with every byte changed; the manifest likewise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "safetensors.h"
#include "state/work.h"
#include "stream.h"

/* ---- the header ------------------------------------------------------------------------------*/

enum { N = 4 };
static const ngio_tensor hoped[N] = {
    {.name = "a/A", .dtype = NGIO_F64, .ndim = 2, .shape = {2, 3}},
    {.name = "a \"quoted\"/B", .dtype = NGIO_F32, .ndim = 1, .shape = {5}},
    {.name = "leer/C", .dtype = NGIO_F32, .ndim = 2, .shape = {0, 7}},
    {.name = "d/\xc3\xa4", .dtype = NGIO_U8, .ndim = 0},
};

static void hope(void *user, int32_t i, ngio_tensor *t) {
  const ngio_tensor *list = user;
  *t = list[i];
}

typedef struct outcome {
  ngio_status st;
  char message[256];
  ngio_tensors *f;
} outcome;

static outcome read_with(const stream *from, const ngio_expected *e) {
  outcome o = {0};
  ngio_source s;
  ngio_source_memory(&s, "file", from->bytes, (size_t)from->n);
  o.st = ngio_tensors_begin(&s, NULL, e, &o.f, o.message, sizeof o.message);
  if (o.st == NGIO_OK) o.st = ngio_tensors_finish(o.f, &s, o.message, sizeof o.message);
  return o;
}

static void same_outcome(const stream *from, const ngio_expected *e) {
  outcome plain = read_with(from, NULL), with = read_with(from, e);
  assert_int_equal(plain.st, with.st);
  /* a wrong text is perhaps said to be wrong elsewhere, and a tensor to be too many before what else it is */
  if (strstr(plain.message, ": header: ") == NULL && strstr(with.message, "not expected") == NULL)
    assert_string_equal(plain.message, with.message);
  if (plain.st == NGIO_OK) {
    const int32_t n = ngio_tensors_count(plain.f);
    assert_int_equal(n, ngio_tensors_count(with.f));
    for (int32_t i = 0; i < n; i++) {
      const ngio_tensor *a = ngio_tensors_at(plain.f, i), *b = ngio_tensors_at(with.f, i);
      assert_string_equal(a->name, b->name);
      assert_true(a->dtype == b->dtype && a->ndim == b->ndim && a->bytes == b->bytes);
      assert_memory_equal(a->shape, b->shape, sizeof a->shape);
      if (a->bytes > 0) assert_memory_equal(a->data, b->data, (size_t)a->bytes);
      assert_ptr_equal(ngio_tensors_find(with.f, a->name), b);
    }
    assert_null(ngio_tensors_find(with.f, "none"));
    assert_int_equal(ngio_tensors_text_count(plain.f), ngio_tensors_text_count(with.f));
    for (int32_t i = 0; i < ngio_tensors_text_count(plain.f); i++)
      assert_string_equal(ngio_tensors_text_at(plain.f, i)->value,
                          ngio_tensors_text_at(with.f, i)->value);
  }
  ngio_tensors_close(&plain.f);
  ngio_tensors_close(&with.f);
}

static stream written(const ngio_tensor *list, int32_t n, const ngio_text *text, int32_t texts) {
  stream to = {0};
  ngio_writer *w;
  char message[256];
  static const char data[128] =
      "twelve times the same bytes, over and over, until there are enough";
  assert_int_equal(ngio_writer_stream("file", stream_write, &to, list, n, text, texts, NULL, &w,
                                      message, sizeof message),
                   NGIO_OK);
  for (int32_t i = 0; i < n; i++)
    assert_int_equal(ngio_writer_put(w, data,
                                     ngio_bytes_of(list[i].dtype, list[i].shape, list[i].ndim),
                                     message, sizeof message),
                     NGIO_OK);
  assert_int_equal(ngio_writer_finish(&w, message, sizeof message), NGIO_OK);
  return to;
}

/* Files of which the list says all, too much, too little, or something else. */
static void headers(void **state) {
  static const ngio_text text[2] = {{"one", "a \"text\", with ]}"}, {"two", ""}};
  ngio_tensor other[N + 1];
  (void)state;
  for (int32_t texts = 0; texts <= 2; texts += 2) {
    for (int32_t there = 1; there <= N; there++) {
      stream f = written(hoped, there, text, texts);
      for (int32_t count = 0; count <= N; count++) {
        const ngio_expected e = {count, hope, (void *)(uintptr_t)hoped};
        same_outcome(&f, &e);
      }
      stream_drop(&f);
    }
  }
  for (int32_t i = 0; i < N; i++) { /* another name, dtype, shape */
    for (int what = 0; what < 3; what++) {
      memcpy(other, hoped, sizeof hoped);
      if (what == 0) other[i].name = "a/AA";
      if (what == 1 && other[i].dtype == NGIO_F32) other[i].dtype = NGIO_I32;
      if (what == 2 && other[i].ndim > 0) other[i].shape[0]++;
      stream f = written(other, N, text, 2);
      const ngio_expected e = {N, hope, (void *)(uintptr_t)hoped};
      same_outcome(&f, &e);
      stream_drop(&f);
    }
  }
}

/* Any byte of the length and of the header is another one. */
static void every_byte(void **state) {
  static const ngio_text text = {"one", "\"entry\":{}"};
  static const unsigned char to[] = {' ', '"', ',', '{', '}', '\\', '0', 'x', 0, 0x80};
  const ngio_expected e = {N, hope, (void *)(uintptr_t)hoped};
  stream f = written(hoped, N, &text, 1);
  (void)state;
  for (int64_t at = 0; at < f.n; at++) {
    const unsigned char was = f.bytes[at];
    for (size_t i = 0; i < sizeof to; i++) {
      f.bytes[at] = to[i];
      same_outcome(&f, &e);
    }
    f.bytes[at] = was;
  }
  for (int64_t n = f.n; f.n > 0; f.n--) /* cut */
    if (n > 0) same_outcome(&f, &e);
  stream_drop(&f);
}

/* An empty tensor in front of what is expected, one that is there twice: refused by name. */
static void not_expected(void **state) {
  static const char head[] = "{\"more\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
                             "\"a/A\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}";
  static const ngio_tensor one = {.name = "a/A", .dtype = NGIO_F64, .ndim = 1, .shape = {1}};
  const ngio_expected e = {1, hope, (void *)(uintptr_t)&one};
  unsigned char bytes[256] = {sizeof head - 1};
  (void)state;
  memcpy(bytes + 8, head, sizeof head);
  const stream f = {.bytes = bytes, .n = 8 + (int64_t)sizeof head - 1 + 8};
  outcome o = read_with(&f, &e);
  assert_int_equal(o.st, NGIO_ERR_FILE);
  assert_string_equal(o.message, "file: tensor 'more' is not expected");
  assert_null(o.f);
}

/* ---- the manifest ----------------------------------------------------------------------------*/

/* A model with a layer that is called like the key that is looked for. */
static void make(fixture *f, float *grad, const char *options) {
  static float a[8] = {1, 2, -1, 3, 0, 1, 2, -2}, g[8] = {2, 1, 1, -1, 3, 0, -2, 1};
  static const char *const name[3] = {"fc", "tensors",
                                      "gr\xc3\xb6\xc3\x9f"
                                      "er"};
  const plane in = plane_of(a, 4, 2, NG_F32), out = plane_of(g, 4, 2, NG_F32);
  fixture_ok(f, fixture_open(f, options, &(fixture_how){.threads = 1}));
  for (int i = 0; i < 3; i++) {
    const plane w[2] = {plane_of(grad + 4 * i, 2, 2, NG_F32)};
    fixture_ok(f, fixture_linear(f, name[i], w, NULL));
  }
  fixture_ok(f, ng_ready(f->p));
  fixture_ok(f, fixture_begin(f, 4));
  for (int32_t i = 0; i < 3; i++)
    fixture_ok(f, fixture_observe(f, i, &in, &out));
  fixture_ok(f, ng_step(f->p, 0.1));
}

static size_t look(fixture *f, const char *text, size_t n, bool *known) {
  ng_work w;
  size_t head = 0;
  bool same = false, lost = false;
  ng_work_open(&w, f->p, "t_expected", NULL);
  fixture_ok(f, ng_work_prepare(&w, NG_WORK_LOAD));
  for (const char *at = text; !same; at++) {
    at = ng_expected_place(at, n - (size_t)(at - text));
    if (at == NULL) break;
    same = ng_expected_entries(&w, at, n - (size_t)(at - text), &lost);
    assert_false(lost);
    if (same) head = (size_t)(at - text);
  }
  *known = w.fields > 0;
  for (int32_t i = 0; i < w.fields; i++)
    *known = *known && w.item[i].crc != NULL;
  ng_work_close(&w);
  return head;
}

/* Taken as it is written, whatever the method; one byte that is no checksum's changes that. */
static void manifests(void **state) {
  static const char *const options[] = {"method=natgrad", "method=eva", "method=kaisa",
                                        "method=kaisa factor_dtype=bf16"};
  float grad[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  (void)state;
  for (size_t k = 0; k < sizeof options / sizeof options[0]; k++) {
    fixture f;
    bool known;
    make(&f, grad, options[k]);
    const int64_t n = ng_state_manifest(f.p, NULL, 0);
    assert_true(n > 0);
    char *text = malloc((size_t)n + 1);
    assert_non_null(text);
    assert_int_equal(ng_state_manifest(f.p, text, (size_t)n + 1), n);
    const size_t head = look(&f, text, (size_t)n, &known);
    assert_true(head > 0 && known);
    assert_memory_equal(text + head, ",\"tensors\":{", 12);
    int64_t other = 0;
    for (int64_t at = (int64_t)head; at < n; at++) {
      const char was = text[at];
      text[at] = was == '0' ? '1' : '0';
      const size_t now = look(&f, text, (size_t)n, &known);
      assert_true(known == (now > 0));
      if (now != 0) assert_int_equal(now, head);
      other += now != 0;
      text[at] = was;
    }
    ng_work w;
    ng_work_open(&w, f.p, "t_expected", NULL);
    fixture_ok(&f, ng_work_prepare(&w, false));
    assert_int_equal(other,
                     NG_HEX * w.fields); /* the checksums' digits, which are looked at later */
    ng_work_close(&w);
    assert_int_equal(look(&f, text, (size_t)n - 1, &known), 0);
    free(text);
    fixture_close(&f);
  }
}

/* Two lists of tensors in one manifest, whose checksum is right: a key that is there twice, as ever. */
static void twice(void **state) {
  float grad[12] = {0};
  fixture f;
  stream saved = {0}, forged = {0};
  ngio_tensors *t;
  ngio_writer *w;
  char message[256];
  (void)state;
  make(&f, grad, "method=natgrad");
  fixture_ok(&f, ng_save_to(f.p, stream_write, &saved));
  assert_int_equal(
      ngio_tensors_parse(saved.bytes, (size_t)saved.n, "saved", NULL, &t, message, sizeof message),
      NGIO_OK);
  const char *text = ngio_tensors_text(t, NG_MANIFEST);
  char *more = malloc(strlen(text) + 32);
  assert_non_null(more);
  (void)sprintf(more, "{\"tensors\":{},%s", text + 1);
  const ng_hex crc = ng_hex_of(ng_crc_of(more, (int64_t)strlen(more)));
  const ngio_text texts[2] = {{NG_MANIFEST, more}, {NG_MANIFEST_CRC, crc.text}};
  const int32_t n = ngio_tensors_count(t);
  ngio_tensor *list = calloc((size_t)n, sizeof *list);
  assert_non_null(list);
  for (int32_t i = 0; i < n; i++)
    list[i] = *ngio_tensors_at(t, i);
  assert_int_equal(ngio_writer_stream("forged", stream_write, &forged, list, n, texts, 2, NULL, &w,
                                      message, sizeof message),
                   NGIO_OK);
  for (int32_t i = 0; i < n; i++)
    assert_int_equal(ngio_writer_put(w, list[i].data, list[i].bytes, message, sizeof message),
                     NGIO_OK);
  assert_int_equal(ngio_writer_finish(&w, message, sizeof message), NGIO_OK);
  stream_rewind(&forged);
  assert_int_equal(ng_load_from(f.p, stream_read, &forged), NG_ERR_FILE);
  assert_string_equal(ng_last_error(f.ctx), "the stream: the manifest is no JSON text");
  stream_rewind(&saved);
  fixture_ok(&f, ng_load_from(f.p, stream_read, &saved));
  free(list);
  free(more);
  ngio_tensors_close(&t);
  stream_drop(&saved);
  stream_drop(&forged);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(headers), cmocka_unit_test(every_byte),
                                     cmocka_unit_test(not_expected), cmocka_unit_test(manifests),
                                     cmocka_unit_test(twice)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
