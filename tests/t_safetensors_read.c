/* t_safetensors_read.c: the reader of safetensors: a file of the Python package, truncation at every length, every
 * bit of the header flipped, invalid headers.  The reader must fail or return consistent tensors; the address
 * sanitizer checks its memory accesses. */
#include "unit_test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"
#include "io_check.h"

/* A stream that returns at most five bytes per call. */
typedef struct slow_stream {
  const unsigned char *bytes;
  size_t left;
} slow_stream;

static int64_t slow_read(void *user, void *data, int64_t bytes) {
  slow_stream *d = user;
  size_t n = bytes < 5 ? (size_t)bytes : 5;
  if (n > d->left) n = d->left;
  memcpy(data, d->bytes, n);
  d->bytes += n;
  d->left -= n;
  return (int64_t)n;
}

/* Make an allocator for a reader, whose calls and bytes p counts and limits. */
static ngio_alloc make_counting_alloc(allocator *p) {
  const ng_context_config c = allocator_config(p);
  return (ngio_alloc){c.alloc, c.free, p};
}

/* Fail unless a stream of the bytes gives the tensors of f, or an error if f is NULL. */
static void expect_same_from_stream(const void *bytes, size_t n, const ngio_tensors *f) {
  allocator largest = {.largest = 4096}; /* a stream may announce any length */
  const ngio_alloc alloc = make_counting_alloc(&largest);
  slow_stream d = {bytes, n};
  ngio_source s;
  ngio_tensors *g = NULL;
  char why[256] = "";
  ngio_source_stream(&s, "drip", slow_read, &d);
  ngio_status st = ngio_tensors_begin(&s, &alloc, &g, why, sizeof why);
  if (st == NGIO_OK) {
    for (int32_t i = 0; i < ngio_tensors_count(g); i++)
      assert_null(ngio_tensors_at(g, i)->data);
    st = ngio_tensors_finish(g, &s, why, sizeof why);
  }
  assert_true((st == NGIO_OK) == (why[0] == 0));
  if ((st == NGIO_OK) != (f != NULL)) fail_msg("as a stream: %d \"%s\"", (int)st, why);
  if (f != NULL) {
    assert_int_equal(d.left, 0);
    assert_consistent(g, n);
    assert_int_equal(ngio_tensors_count(f), ngio_tensors_count(g));
    for (int32_t i = 0; i < ngio_tensors_count(f); i++) {
      const ngio_tensor *x = ngio_tensors_at(f, i), *y = ngio_tensors_at(g, i);
      assert_string_equal(x->name, y->name);
      assert_memory_equal(x->data, y->data, (size_t)x->bytes);
    }
  }
  ngio_tensors_close(&g);
}

static ngio_status parse_bytes(const void *bytes, size_t n, ngio_tensors **f) {
  message[0] = 0;
  ngio_status st = ngio_tensors_parse(bytes, n, "x", NULL, f, message, sizeof message);
  assert_true((st == NGIO_OK) == (*f != NULL));
  assert_true((st == NGIO_OK) == (message[0] == 0));
  expect_same_from_stream(bytes, n, *f);
  return st;
}

static unsigned char *make_file(const char *header, size_t data, size_t *n) {
  size_t h = strlen(header);
  unsigned char *b = calloc(1, 8 + h + data);
  assert_non_null(b);
  for (int i = 0; i < 8; i++)
    b[i] = (unsigned char)((uint64_t)h >> (8 * i));
  memcpy(b + 8, header, h);
  for (size_t i = 0; i < data; i++)
    b[8 + h + i] = (unsigned char)(i * 37 + 1);
  *n = 8 + h + data;
  return b;
}

/* Written by the Python package safetensors: w = arange(6, f32) [2,3], h = f16 [1.5, -2],
 * n = i64 7, metadata {"note": 'a "b" é'}. */
static const char python_file[] =
    "\xd0\0\0\0\0\0\0\0"
    "{\"__metadata__\":{\"note\":\"a \\\"b\\\" \xc3\xa9\"},"
    "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
    "\"h\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[32,36]}}       "
    "\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@\0>\0\xc0";
static const uint16_t half[] = {0x3e00, 0xc000}; /* tensor h */

static void a_file_of_the_python_package_is_read(void **state) {
  ngio_tensors *f;
  assert_int_equal(parse_bytes(python_file, sizeof python_file - 1, &f), NGIO_OK);
  assert_consistent(f, sizeof python_file);
  const ngio_tensor *w = ngio_tensors_find(f, "w");
  assert_int_equal(w->ndim, 2);
  assert_int_equal(w->shape[0], 2);
  assert_int_equal(w->shape[1], 3);
  for (int i = 0; i < 6; i++)
    assert_true(((const float *)w->data)[i] == (float)i);
  assert_int_equal(*(const int64_t *)ngio_tensors_find(f, "n")->data, 7);
  assert_memory_equal(ngio_tensors_find(f, "h")->data, half, 4);
  assert_string_equal(ngio_tensors_text(f, "note"), "a \"b\" \xc3\xa9");
  ngio_tensors_close(&f);
}

static void truncated_and_extended_files_are_refused(void **state) {
  const char *path = in_folder("cut");
  size_t whole = sizeof python_file - 1;
  for (size_t n = 0; n <= whole + 1; n++) {
    ngio_tensors *f;
    /* exactly n bytes, so that the sanitizer detects a read of the next one */
    char *b = malloc(n + 1);
    assert_non_null(b);
    memcpy(b, python_file, n < whole ? n : whole);
    if (n > whole) b[whole] = 0;
    char *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, b, n);
    assert_int_equal(parse_bytes(exact, n, &f), n == whole ? NGIO_OK : NGIO_ERR_FILE);
    ngio_tensors_close(&f);
    write_file(path, b, n);
    ngio_status st = ngio_tensors_read(path, NULL, &f, message, sizeof message);
    assert_int_equal(st, n == whole ? NGIO_OK : NGIO_ERR_FILE);
    /* the message names the truncated tensor */
    if (n < whole && n >= whole - 4) expect_message("'h'");
    ngio_tensors_close(&f);
    free(exact);
    free(b);
  }
  assert_int_equal(unlink(path), 0);
}

static void flipped_bits_are_refused_or_consistent(void **state) {
  size_t n = sizeof python_file - 1;
  int refused = 0;
  for (size_t bit = 0; bit < 8 * (8 + 0xd0); bit++) {
    char *b = malloc(n);
    assert_non_null(b);
    memcpy(b, python_file, n);
    b[bit / 8] = (char)(b[bit / 8] ^ (1 << (bit % 8)));
    ngio_tensors *f;
    if (parse_bytes(b, n, &f) == NGIO_OK) {
      assert_consistent(f, n);
    } else {
      refused++;
    }
    ngio_tensors_close(&f);
    free(b);
  }
  /* A flip is accepted only if it renames something, swaps a dtype for one of the same width, changes blanks, or
   * reshapes consistently. */
  assert_true(refused > 8 * 100);
}

static void invalid_headers_are_refused(void **state) {
#define T(dtype, shape, b, e)                                                                      \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #b "," #e "]}"
  static const struct {
    const char *header;
    size_t data;
    const char *message;
  } invalid[] = {
      {"[]", 0, "no JSON map"},
      {" {}", 0, "no JSON map"},
      {"{} x", 0, "header"},
      {"{", 0, "9 bytes are no safetensors file"},
      {"{]", 0, "header"},
      {"{\"a\":" T("F32", "[2]", 0, 8) ",\"a\":" T("F32", "[2]", 8, 16) "}", 16, "duplicate"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
       "duplicate"},
      {"{\"a\":1}", 0, "'a': its entry"},
      {"{\"a\":{}}", 0, "'a': its entry"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":0}}", 8,
       "'a': its entry"},
      {"{\"a\":{\"dtype\":1,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'a': its entry"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "'a': its entry"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "'a': its entry"},
      {"{\"a\":" T("F33", "[2]", 0, 8) "}", 8, "'a': dtype 'F33'"},
      {"{\"a\":" T("f32", "[2]", 0, 8) "}", 8, "'a': dtype 'f32'"},
      {"{\"a\":" T("F32", "[-2]", 0, 8) "}", 8, "'a': axis 0"},
      {"{\"a\":" T("F32", "[1,2.0]", 0, 8) "}", 8, "'a': axis 1"},
      {"{\"a\":" T("F32", "[\"2\"]", 0, 8) "}", 8, "'a': axis 0"},
      {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,2]", 0, 8) "}", 8, "'a': 9 axes"},
      {"{\"a\":" T("F32", "[4611686018427387904]", 0, 8) "}", 8, "'a': the shape overflows"},
      {"{\"a\":" T("F32", "[4294967296,4294967296]", 0, 0) "}", 0, "'a': the shape overflows"},
      {"{\"a\":" T("F32", "[0,4294967296,4294967296]", 0, 0) "}", 0, "'a': the shape overflows"},
      {"{\"a\":" T("F32", "[99999999999999999999]", 0, 8) "}", 8, "header"},
      {"{\"a\":" T("F32", "[2]", -8, 0) "}", 8, "'a': bad data_offsets"},
      {"{\"a\":" T("F32", "[2]", 8, 0) "}", 8, "'a': bad data_offsets"},
      {"{\"a\":" T("F32", "[2]", 0, 7) "}", 8, "'a': 7 bytes by its offsets, 8 by its shape"},
      {"{\"a\":" T("F32", "[2]", 0, 12) "}", 12, "'a': 12 bytes by its offsets, 8 by its shape"},
      {"{\"a\":" T("F32", "[3]", 0, 12) "}", 8, "'a': ends at byte 12 of 8"},
      {"{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[2]", 4, 12) "}", 12, "'b' overlaps"},
      {"{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[2]", 0, 8) "}", 8, "'b' overlaps"},
      {"{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[1]", 12, 16) "}", 16,
       "'b' leaves a gap"},
      {"{\"a\":" T("F32", "[2]", 4, 12) "}", 12, "'a' leaves a gap"},
      {"{\"a\":" T("F32", "[2]", 0, 8) "}", 9, "1 bytes after the last tensor"},
      {"{}", 1, "1 bytes after the last tensor"},
      {"{\"a\":" T("U8", "[2]", 0, 2) ",\"b\":" T("F32", "[1]", 2, 6) "}", 6,
       "'b': its data is not"},
      {"{\"__metadata__\":[]}", 0, "__metadata__"},
      {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ 'k'"},
      {"{\"a\\u0000b\":" T("F32", "[2]", 0, 8) "}", 8, "header"},
      {"{\"a\x01\":" T("F32", "[2]", 0, 8) "}", 8, "header"},
      {"{\"a\xff\":" T("F32", "[2]", 0, 8) "}", 8, "header"},
      {"{\"\\u001b[2J\\n\":" T("F32", "[2]", 0, 4) "}", 4, "'?[2J?'"},
  };
  for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
    size_t n;
    unsigned char *b = make_file(invalid[i].header, invalid[i].data, &n);
    ngio_tensors *f;
    if (parse_bytes(b, n, &f) != NGIO_ERR_FILE) fail_msg("accepted: %s", invalid[i].header);
    expect_message(invalid[i].message);
    free(b);
  }
#undef T
  /* Impossible header lengths. */
  static const uint64_t lengths[] = {0,
                                     1,
                                     100000001,
                                     (uint64_t)1 << 31,
                                     UINT64_MAX,
                                     INT64_MAX,
                                     (uint64_t)INT64_MAX + 1,
                                     UINT64_MAX - 7};
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    unsigned char b[64] = {0};
    for (int k = 0; k < 8; k++)
      b[k] = (unsigned char)(lengths[i] >> (8 * k));
    b[8] = '{';
    ngio_tensors *f;
    assert_int_equal(parse_bytes(b, sizeof b, &f), NGIO_ERR_FILE);
  }
  /* Deep nesting is an error, not a stack overflow. */
  size_t deep = 400000;
  char *h = malloc(deep + 1);
  assert_non_null(h);
  memset(h, '[', deep);
  memcpy(h, "{\"a\":", 5);
  h[deep] = 0;
  size_t n;
  unsigned char *b = make_file(h, 0, &n);
  ngio_tensors *f;
  assert_int_equal(parse_bytes(b, n, &f), NGIO_ERR_FILE);
  free(b);
  free(h);
}

/* ---- memory ----------------------------------------------------------------------------------*/

static void tensors_use_the_given_allocator(void **state) {
  allocator memory = {0};
  const ngio_alloc alloc = make_counting_alloc(&memory);
  ngio_tensors *f;
  assert_int_equal(ngio_tensors_parse(python_file, sizeof python_file - 1, "x", &alloc, &f, message,
                                      sizeof message),
                   NGIO_OK);
  assert_int_equal(memory.held, 36);
  ngio_tensors_close(&f);
  assert_int_equal(memory.held, 0);
  memory.largest = 1;
  assert_int_equal(ngio_tensors_parse(python_file, sizeof python_file - 1, "x", &alloc, &f, message,
                                      sizeof message),
                   NGIO_ERR_NOMEM);
  expect_message("36 bytes");
  assert_null(f);
  /* A call without a message buffer, and a call with a short buffer. */
  assert_int_equal(ngio_tensors_parse("", 0, "x", NULL, &f, NULL, 0), NGIO_ERR_FILE);
  char tiny[4] = "????";
  assert_int_equal(ngio_tensors_parse("", 0, "x", NULL, &f, tiny, sizeof tiny), NGIO_ERR_FILE);
  assert_string_equal(tiny, "x: ");
}

/* Run the lanes in reverse order, and count them. */
static void run_lanes_backwards(void *user, int32_t n, void (*each)(void *arg, int32_t i),
                                void *arg) {
  *(int32_t *)user += n;
  for (int32_t i = n - 1; i >= 0; i--)
    each(arg, i);
}

/* Threads read a large file with the same bytes, and report a file that is truncated meanwhile. */
static void threads_read_one_large_file(void **state) {
  enum { N = 9 * 1000 * 1000 + 5, FROM = 3 };
  const char *file = in_folder("large");
  unsigned char *bytes = malloc(N), *got = calloc(N, 1);
  for (int i = 0; i < N; i++)
    bytes[i] = (unsigned char)(i ^ i >> 7 ^ i >> 17);
  write_file(file, bytes, N);
  ngio_source s;
  int32_t lanes = 0;
  assert_int_equal(ngio_source_open(&s, file, message, sizeof message), NGIO_OK);
  s.threads = (ngio_threads){run_lanes_backwards, &lanes};
  assert_int_equal(ngio_source_read(&s, FROM, got, N - FROM, message, sizeof message), NGIO_OK);
  assert_true(lanes > 1);
  assert_memory_equal(got, bytes + FROM, N - FROM);
  assert_int_equal(got[N - FROM], 0);
  assert_int_equal(truncate(file, N - 1), 0);
  assert_int_equal(ngio_source_read(&s, FROM, got, N - FROM, message, sizeof message),
                   NGIO_ERR_FILE);
  expect_message("large: was truncated while being read");
  ngio_source_close(&s);
  assert_int_equal(unlink(file), 0);
  free(got);
  free(bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_file_of_the_python_package_is_read),
      cmocka_unit_test(truncated_and_extended_files_are_refused),
      cmocka_unit_test(flipped_bits_are_refused_or_consistent),
      cmocka_unit_test(invalid_headers_are_refused),
      cmocka_unit_test(tensors_use_the_given_allocator),
      cmocka_unit_test(threads_read_one_large_file),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
