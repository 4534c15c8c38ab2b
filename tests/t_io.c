/* t_io.c: the file formats.  Round trips, witnesses written by other programs (the Python packages
 * numpy and safetensors; their bytes are below), and damage of every kind: cut at every length,
 * every bit of the header turned, headers that lie.  A reader may refuse or may return something
 * consistent; under the address sanitizer this program also shows that it does nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "npy.h"
#include "safetensors.h"

static char message[512];
static char folder[64];

static int make_folder(void **state) {
  (void)state;
  strcpy(folder, "/tmp/t_io-XXXXXX");
  return mkdtemp(folder) ? 0 : -1;
}

/* Succeeds only if the tests left nothing behind. */
static int drop_folder(void **state) {
  (void)state;
  return rmdir(folder);
}

static const char *in_folder(const char *name) {
  static char path[8][160];
  static int next;
  char *p = path[next++ % 8];
  (void)snprintf(p, sizeof path[0], "%s/%s", folder, name);
  return p;
}

static void spill(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
}

static unsigned char *slurp(const char *path, size_t *n) {
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  assert_int_equal(fseek(f, 0, SEEK_END), 0);
  *n = (size_t)ftell(f);
  rewind(f);
  unsigned char *b = malloc(*n + 1);
  assert_non_null(b);
  assert_int_equal(fread(b, 1, *n, f), *n);
  (void)fclose(f);
  return b;
}

static void expect_message(const char *part) {
  if (!strstr(message, part)) fail_msg("message \"%s\" lacks \"%s\"", message, part);
  if (strchr(message, '\n')) fail_msg("message has more than one line: \"%s\"", message);
}

/* ---- safetensors -----------------------------------------------------------------------------*/

/* What a reader returned must hold together whatever the file was. */
static void assert_consistent(const ngio_tensors *f, size_t file_bytes) {
  int64_t sum = 0;
  volatile unsigned char seen = 0;
  for (int32_t i = 0; i < ngio_tensors_count(f); i++) {
    const ngio_tensor *t = ngio_tensors_at(f, i);
    assert_true(t->bytes == ngio_bytes_of(t->dtype, t->shape, t->ndim));
    assert_true((uintptr_t)t->data % (uintptr_t)ngio_dtype_size(t->dtype) == 0);
    for (int64_t k = 0; k < t->bytes; k++)
      seen ^= ((const unsigned char *)t->data)[k];
    sum += t->bytes;
    assert_ptr_equal(ngio_tensors_find(f, t->name), t);
  }
  (void)seen;
  assert_true(sum <= (int64_t)file_bytes);
}

static ngio_status parse(const void *bytes, size_t n, ngio_tensors **f) {
  message[0] = 0;
  ngio_status st = ngio_tensors_parse(bytes, n, "x", NULL, f, message, sizeof message);
  assert_true((st == NGIO_OK) == (*f != NULL));
  assert_true((st == NGIO_OK) == (message[0] == 0));
  return st;
}

static unsigned char *compose(const char *header, size_t data, size_t *n) {
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

static const float three[] = {1.5f, -0.0f, 3e38f};
static const double two[] = {1.0 / 3.0, -2.0};
static const uint16_t half[] = {0x3e00, 0xc000, 1, 2};
static const int64_t big[] = {INT64_MIN};
static const int32_t word[] = {-7};
static const uint8_t byte[] = {9, 8, 7};

static int32_t sample(ngio_tensor *t) {
  const ngio_tensor all[] = {
      {"a/byte", NGIO_U8, 1, {3}, byte, 0},
      {"a/float \"quoted\"\n", NGIO_F32, 2, {3, 1}, three, 0},
      {"half", NGIO_F16, 8, {1, 1, 2, 1, 1, 1, 2, 1}, half, 0},
      {"b\xc3\xa9", NGIO_BF16, 2, {2, 2}, half, 0},
      {"number", NGIO_I32, 0, {0}, word, 0},
      {"empty", NGIO_F32, 3, {4, 0, 5}, NULL, 0},
      {"double", NGIO_F64, 1, {2}, two, 0},
      {"long", NGIO_I64, 1, {1}, big, 0},
  };
  memcpy(t, all, sizeof all);
  return (int32_t)(sizeof all / sizeof all[0]);
}

static void round_trip(void **state) {
  (void)state;
  ngio_tensor t[16];
  int32_t n = sample(t);
  const ngio_text text[] = {{"note", "two\nlines, \"quotes\", \\, \xe2\x82\xac"}, {"", ""}};
  const char *path = in_folder("round");
  assert_int_equal(ngio_tensors_write(path, t, n, text, 2, message, sizeof message), NGIO_OK);
  ngio_tensors *f;
  assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
  assert_consistent(f, 4096);
  assert_int_equal(ngio_tensors_count(f), n);
  for (int32_t i = 0; i < n; i++) {
    const ngio_tensor *r = ngio_tensors_find(f, t[i].name);
    assert_non_null(r);
    assert_int_equal(r->dtype, t[i].dtype);
    assert_int_equal(r->ndim, t[i].ndim);
    assert_memory_equal(r->shape, t[i].shape, (size_t)t[i].ndim * sizeof t[i].shape[0]);
    if (r->bytes > 0) assert_memory_equal(r->data, t[i].data, (size_t)r->bytes);
  }
  assert_null(ngio_tensors_find(f, "absent"));
  assert_null(ngio_tensors_at(f, n));
  assert_int_equal(ngio_tensors_text_count(f), 2);
  assert_string_equal(ngio_tensors_text(f, "note"), text[0].value);
  assert_string_equal(ngio_tensors_text(f, ""), "");
  assert_null(ngio_tensors_text(f, "other"));
  assert_null(ngio_tensors_text_at(f, 2));
  ngio_tensors_close(&f);
  assert_null(f);
  ngio_tensors_close(&f);

  /* The same content twice gives the same bytes. */
  size_t a, b;
  unsigned char *first = slurp(path, &a);
  assert_int_equal(ngio_tensors_write(path, t, n, text, 2, message, sizeof message), NGIO_OK);
  unsigned char *again = slurp(path, &b);
  assert_int_equal(a, b);
  assert_memory_equal(first, again, a);
  free(first);
  free(again);
  /* ... and with no tensors and no texts there is still a file. */
  assert_int_equal(ngio_tensors_write(path, NULL, 0, NULL, 0, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_tensors_count(f), 0);
  ngio_tensors_close(&f);
  assert_int_equal(unlink(path), 0);
}

/* Written by the Python package safetensors: w = arange(6, f32) [2,3], h = f16 [1.5, -2],
 * n = i64 7, metadata {"note": 'a "b" é'}. */
static const char witness[] =
    "\xd0\0\0\0\0\0\0\0"
    "{\"__metadata__\":{\"note\":\"a \\\"b\\\" \xc3\xa9\"},"
    "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
    "\"h\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[32,36]}}       "
    "\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@\0>\0\xc0";

static void reads_python(void **state) {
  (void)state;
  ngio_tensors *f;
  assert_int_equal(parse(witness, sizeof witness - 1, &f), NGIO_OK);
  assert_consistent(f, sizeof witness);
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

static void cut_and_grown(void **state) {
  (void)state;
  const char *path = in_folder("cut");
  size_t whole = sizeof witness - 1;
  for (size_t n = 0; n <= whole + 1; n++) {
    ngio_tensors *f;
    /* a copy of exactly n bytes, so that the sanitizer sees a read of the next one */
    char *b = malloc(n + 1);
    assert_non_null(b);
    memcpy(b, witness, n < whole ? n : whole);
    if (n > whole) b[whole] = 0;
    char *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, b, n);
    assert_int_equal(parse(exact, n, &f), n == whole ? NGIO_OK : NGIO_ERR_FILE);
    ngio_tensors_close(&f);
    spill(path, b, n);
    ngio_status st = ngio_tensors_read(path, NULL, &f, message, sizeof message);
    assert_int_equal(st, n == whole ? NGIO_OK : NGIO_ERR_FILE);
    if (n < whole && n >= whole - 4) expect_message("'h'"); /* the tensor that was cut is named */
    ngio_tensors_close(&f);
    free(exact);
    free(b);
  }
  assert_int_equal(unlink(path), 0);
}

static void turned_bits(void **state) {
  (void)state;
  size_t n = sizeof witness - 1;
  int refused = 0;
  for (size_t bit = 0; bit < 8 * (8 + 0xd0); bit++) {
    char *b = malloc(n);
    assert_non_null(b);
    memcpy(b, witness, n);
    b[bit / 8] = (char)(b[bit / 8] ^ (1 << (bit % 8)));
    ngio_tensors *f;
    if (parse(b, n, &f) == NGIO_OK) {
      assert_consistent(f, n);
    } else {
      refused++;
    }
    ngio_tensors_close(&f);
    free(b);
  }
  /* Survivors only rename something, swap a dtype for one of its width, turn blanks, or reshape
   * consistently; everything structural is refused. */
  assert_true(refused > 8 * 100);
}

static void headers_that_lie(void **state) {
  (void)state;
#define T(dtype, shape, b, e)                                                                      \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #b "," #e "]}"
  static const struct {
    const char *header;
    size_t data;
    const char *says;
  } lies[] = {
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
  for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
    size_t n;
    unsigned char *b = compose(lies[i].header, lies[i].data, &n);
    ngio_tensors *f;
    if (parse(b, n, &f) != NGIO_ERR_FILE) fail_msg("accepted: %s", lies[i].header);
    expect_message(lies[i].says);
    free(b);
  }
#undef T
  /* Header lengths out of this world. */
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
    assert_int_equal(parse(b, sizeof b, &f), NGIO_ERR_FILE);
  }
  /* Deep nesting ends in an error, not on the end of the stack. */
  size_t deep = 400000;
  char *h = malloc(deep + 1);
  assert_non_null(h);
  memset(h, '[', deep);
  memcpy(h, "{\"a\":", 5);
  h[deep] = 0;
  size_t n;
  unsigned char *b = compose(h, 0, &n);
  ngio_tensors *f;
  assert_int_equal(parse(b, n, &f), NGIO_ERR_FILE);
  free(b);
  free(h);
}

/* ---- the writer ------------------------------------------------------------------------------*/

static void piece_by_piece(void **state) {
  (void)state;
  const char *path = in_folder("pieces");
  ngio_tensor t[2] = {{"d", NGIO_F64, 1, {2}, NULL, 0}, {"f", NGIO_F32, 1, {3}, NULL, 0}};
  ngio_text text = {"sum", "00000000"};
  ngio_writer *w;
  assert_int_equal(ngio_writer_create(path, t, 2, &text, 1, &w, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_put(w, two, 5, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_put(w, (const char *)two + 5, 11, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_put(w, three, 12, message, sizeof message), NGIO_OK);
  assert_int_equal(access(path, F_OK), -1); /* nothing under the name before the end */
  text.value = "1234abcd";
  assert_int_equal(ngio_writer_finish(&w, &text, 1, message, sizeof message), NGIO_OK);
  assert_null(w);
  ngio_tensors *f;
  assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
  assert_string_equal(ngio_tensors_text(f, "sum"), "1234abcd");
  assert_memory_equal(ngio_tensors_find(f, "d")->data, two, sizeof two);
  assert_memory_equal(ngio_tensors_find(f, "f")->data, three, sizeof three);
  ngio_tensors_close(&f);

  /* Misuse is refused and leaves the file as it is. */
  size_t n;
  unsigned char *before = slurp(path, &n);
  assert_int_equal(ngio_writer_create(path, t, 2, NULL, 0, &w, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_put(w, two, 29, message, sizeof message), NGIO_ERR_ARG);
  assert_int_equal(ngio_writer_put(w, two, 16, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_finish(&w, NULL, 0, message, sizeof message), NGIO_ERR_ARG);
  expect_message("28 were announced");
  assert_null(w);
  assert_int_equal(ngio_writer_create(path, t, 0, &text, 1, &w, message, sizeof message), NGIO_OK);
  text.value = "longer than what was announced";
  assert_int_equal(ngio_writer_finish(&w, &text, 1, message, sizeof message), NGIO_ERR_ARG);
  ngio_tensor bad[] = {
      {"", NGIO_F32, 1, {1}, three, 0},          {"__metadata__", NGIO_F32, 1, {1}, three, 0},
      {"\xff", NGIO_F32, 1, {1}, three, 0},      {"x", (ngio_dtype)99, 1, {1}, three, 0},
      {"x", NGIO_F32, 1, {-1}, three, 0},        {"x", NGIO_F32, 9, {1}, three, 0},
      {"x", NGIO_F64, 1, {INT64_MAX}, three, 0},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(ngio_tensors_write(path, &bad[i], 1, NULL, 0, message, sizeof message),
                     NGIO_ERR_ARG);
  }
  ngio_tensor twice[2] = {{"x", NGIO_F32, 1, {1}, three, 0}, {"x", NGIO_F32, 1, {1}, three, 0}};
  assert_int_equal(ngio_tensors_write(path, twice, 2, NULL, 0, message, sizeof message),
                   NGIO_ERR_ARG);
  expect_message("'x' is there twice");
  twice[0].dtype = NGIO_U8;
  twice[1].name = "y";
  assert_int_equal(ngio_writer_create(path, twice, 2, NULL, 0, &w, message, sizeof message),
                   NGIO_ERR_ARG);
  expect_message("'y': wider dtypes go first");
  size_t m;
  unsigned char *after = slurp(path, &m);
  assert_int_equal(n, m);
  assert_memory_equal(before, after, n);
  free(before);
  free(after);
  assert_int_equal(unlink(path), 0);
}

static void refused_places(void **state) {
  (void)state;
  ngio_tensor t = {"f", NGIO_F32, 1, {3}, three, 0};
  const char *file = in_folder("file");
  spill(file, "x", 1);
  char under[200];
  (void)snprintf(under, sizeof under, "%s/under", file);
  struct {
    const char *path, *says;
  } places[] = {{NULL, "no path"},
                {"", "no path"},
                {in_folder("absent/file"), strerror(ENOENT)},
                {under, strerror(ENOTDIR)},
                {folder, "not a regular file"},
                {"/dev/full", "not a regular file"},
                {"/proc/self/natgrad-test", "cannot write"}};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    assert_int_equal(ngio_tensors_write(places[i].path, &t, 1, NULL, 0, message, sizeof message),
                     NGIO_ERR_FILE);
    expect_message(places[i].says);
  }
  assert_int_equal(unlink(file), 0);

  /* A folder that may not be written; the superuser may write everywhere. */
  const char *locked = in_folder("locked");
  assert_int_equal(mkdir(locked, 0500), 0);
  if (geteuid() != 0) {
    assert_int_equal(
        ngio_tensors_write(in_folder("locked/f"), &t, 1, NULL, 0, message, sizeof message),
        NGIO_ERR_FILE);
    expect_message(strerror(EACCES));
  }
  assert_int_equal(rmdir(locked), 0);

  /* Not files to read either; a pipe must not make the reader wait. */
  ngio_tensors *f;
  const char *pipe_path = in_folder("pipe");
  assert_int_equal(mkfifo(pipe_path, 0600), 0);
  const char *odd[] = {NULL, "", folder, "/dev/zero", pipe_path, in_folder("absent")};
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
    assert_int_equal(ngio_tensors_read(odd[i], NULL, &f, message, sizeof message), NGIO_ERR_FILE);
    assert_null(f);
    ngio_npy a;
    assert_int_equal(ngio_npy_read(odd[i], &a, message, sizeof message), NGIO_ERR_FILE);
    assert_null(a.data);
  }
  assert_int_equal(unlink(pipe_path), 0);
}

/* A disk that is full after `limit` bytes: the limit on file sizes, whose signal is ignored. */
static void full_disk(void **state) {
  (void)state;
  static float large[5000];
  const char *path = in_folder("full"), *part = in_folder("full.part");
  ngio_tensor small = {"f", NGIO_F32, 1, {3}, three, 0};
  ngio_tensor wide = {"wide", NGIO_F32, 1, {5000}, large, 0};
  assert_int_equal(ngio_tensors_write(path, &small, 1, NULL, 0, message, sizeof message), NGIO_OK);
  struct rlimit old, tight;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  const rlim_t limits[] = {0, 4, 50, 4096, 20000};
  for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
    tight = old;
    tight.rlim_cur = limits[i];
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    ngio_status st = ngio_tensors_write(path, &wide, 1, NULL, 0, message, sizeof message);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(st, NGIO_ERR_FILE);
    expect_message(strerror(EFBIG));
    assert_int_equal(access(part, F_OK), -1);
    ngio_tensors *f;
    assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
    assert_memory_equal(ngio_tensors_find(f, "f")->data, three, sizeof three);
    ngio_tensors_close(&f);
  }
  (void)signal(SIGXFSZ, handler);
  assert_int_equal(unlink(path), 0);
}

static void left_behind_and_locked(void **state) {
  (void)state;
  ngio_tensor t = {"f", NGIO_F32, 1, {3}, three, 0};
  const char *path = in_folder("again"), *part = in_folder("again.part");
  /* What a killed writer left is taken over, however long it was. */
  char rubbish[3000];
  memset(rubbish, 'x', sizeof rubbish);
  spill(part, rubbish, sizeof rubbish);
  assert_int_equal(ngio_tensors_write(path, &t, 1, NULL, 0, message, sizeof message), NGIO_OK);
  assert_int_equal(access(part, F_OK), -1);
  ngio_tensors *f;
  assert_int_equal(ngio_tensors_read(path, NULL, &f, message, sizeof message), NGIO_OK);
  ngio_tensors_close(&f);
  /* What a living writer is at is left alone. */
  ngio_writer *w;
  assert_int_equal(ngio_writer_create(path, &t, 1, NULL, 0, &w, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_tensors_write(path, &t, 1, NULL, 0, message, sizeof message),
                   NGIO_ERR_FILE);
  expect_message("another program is writing");
  assert_int_equal(ngio_writer_put(w, three, 12, message, sizeof message), NGIO_OK);
  assert_int_equal(ngio_writer_finish(&w, NULL, 0, message, sizeof message), NGIO_OK);
  /* A link under the temporary name is not followed. */
  const char *precious = in_folder("precious");
  spill(precious, "keep", 4);
  assert_int_equal(symlink(precious, part), 0);
  assert_int_equal(ngio_tensors_write(path, &t, 1, NULL, 0, message, sizeof message),
                   NGIO_ERR_FILE);
  size_t n;
  unsigned char *b = slurp(precious, &n);
  assert_int_equal(n, 4);
  assert_memory_equal(b, "keep", 4);
  free(b);
  assert_int_equal(unlink(part), 0);
  assert_int_equal(unlink(precious), 0);
  assert_int_equal(unlink(path), 0);
}

/* ---- npy -------------------------------------------------------------------------------------*/

static size_t npy_compose(unsigned char *b, int version, const char *header, const void *data,
                          size_t bytes) {
  size_t h = strlen(header), at = version == 1 ? 10 : 12;
  memcpy(b, "\x93NUMPY", 6);
  b[6] = (unsigned char)version;
  b[7] = 0;
  for (size_t i = 8; i < at; i++)
    b[i] = (unsigned char)(h >> (8 * (i - 8)));
  memcpy(b + at, header, h);
  if (bytes) memcpy(b + at + h, data, bytes);
  return at + h + bytes;
}

static ngio_status npy_parse(const void *bytes, size_t n, ngio_npy *a) {
  /* a copy of exactly n bytes, for the sanitizer */
  void *exact = malloc(n ? n : 1);
  assert_non_null(exact);
  if (n) memcpy(exact, bytes, n);
  message[0] = 0;
  ngio_status st = ngio_npy_parse(exact, n, "x", a, message, sizeof message);
  free(exact);
  assert_true((st == NGIO_OK) == (a->data != NULL));
  assert_true((st == NGIO_OK) == (message[0] == 0));
  return st;
}

/* numpy 2.4: write_array([[1.5, -2, 3]], versions 1.0, 2.0, 3.0), and save(uint8(9)). */
#define SHAPE13 "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), }"
#define BLANKS56 "                                                        "
#define DATA3 "\0\0\0\0\0\0\xf8?\0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\x08@"
static const char npy1[] = "\x93NUMPY\x01\0v\0" SHAPE13 BLANKS56 "  \n" DATA3;
static const char npy2[] = "\x93NUMPY\x02\0t\0\0\0" SHAPE13 BLANKS56 "\n" DATA3;
static const char npy3[] = "\x93NUMPY\x03\0t\0\0\0" SHAPE13 BLANKS56 "\n" DATA3;
static const char npy_byte[] =
    "\x93NUMPY\x01\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (), }" BLANKS56
    "      \n\t";

static void npy_reads_numpy(void **state) {
  (void)state;
  const char *all[] = {npy1, npy2, npy3};
  for (int v = 0; v < 3; v++) {
    ngio_npy a;
    assert_int_equal(npy_parse(all[v], sizeof npy1 - 1, &a), NGIO_OK);
    assert_int_equal(a.dtype, NGIO_F64);
    assert_int_equal(a.ndim, 2);
    assert_int_equal(a.shape[0], 1);
    assert_int_equal(a.shape[1], 3);
    assert_int_equal(a.count, 3);
    const double *d = (const double *)a.data;
    assert_true(d[0] == 1.5 && d[1] == -2.0 && d[2] == 3.0);
    ngio_npy_free(&a);
    assert_null(a.data);
    const char *path = in_folder("a.npy");
    spill(path, all[v], sizeof npy1 - 1);
    assert_int_equal(ngio_npy_read(path, &a, message, sizeof message), NGIO_OK);
    assert_int_equal(a.count, 3);
    ngio_npy_free(&a);
    assert_int_equal(unlink(path), 0);
  }
  ngio_npy a;
  assert_int_equal(npy_parse(npy_byte, sizeof npy_byte - 1, &a), NGIO_OK);
  assert_int_equal(a.dtype, NGIO_U8);
  assert_int_equal(a.ndim, 0);
  assert_int_equal(a.count, 1);
  assert_int_equal(*(const uint8_t *)a.data, 9);
  ngio_npy_free(&a);
}

static void npy_dtypes_and_shapes(void **state) {
  (void)state;
  static const struct {
    const char *header;
    ngio_dtype dtype;
    int32_t ndim;
    int64_t count;
  } good[] = {
      {"{'descr':'<f4','fortran_order':False,'shape':(2,)}", NGIO_F32, 1, 2},
      {"{\"shape\": (2,3,),\"descr\":\"<i4\" , 'fortran_order' : False}\n", NGIO_I32, 2, 6},
      {"{'descr': '<i8', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,2)}", NGIO_I64, 8, 2},
      {"{'descr': '<u1', 'fortran_order': False, 'shape': (3,)}", NGIO_U8, 1, 3},
      {"{'descr': '<f8', 'fortran_order': False, 'shape': (3,0)}", NGIO_F64, 2, 0},
  };
  unsigned char data[64], b[512];
  for (size_t i = 0; i < sizeof data; i++)
    data[i] = (unsigned char)i;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    for (int version = 1; version <= 3; version++) {
      size_t bytes = (size_t)(good[i].count * ngio_dtype_size(good[i].dtype));
      size_t n = npy_compose(b, version, good[i].header, data, bytes);
      ngio_npy a;
      if (npy_parse(b, n, &a) != NGIO_OK) fail_msg("%s: %s", good[i].header, message);
      assert_int_equal(a.dtype, good[i].dtype);
      assert_int_equal(a.ndim, good[i].ndim);
      assert_int_equal(a.count, good[i].count);
      assert_int_equal(a.bytes, bytes);
      assert_memory_equal(a.data, data, bytes);
      ngio_npy_free(&a);
    }
  }
}

static void npy_bad_headers(void **state) {
  (void)state;
#define D "{'descr': '<f4', 'fortran_order': False, 'shape': "
  static const struct {
    const char *header;
    size_t data;
    const char *says;
  } bad[] = {
      {"", 0, "no dictionary"},
      {"{}", 0, "lacks 'descr'"},
      {"{'descr': '<f4'}", 0, "lacks 'fortran_order'"},
      {"{'descr': '<f4', 'fortran_order': False}", 0, "lacks 'shape'"},
      {D "(2,)} x", 8, "text after"},
      {D "(2,)", 8, "no dictionary"},
      {D "(2,), 'x': 1}", 8, "needless key 'x'"},
      {D "(2,), 'shape': (2,)}", 8, "needless key 'shape'"},
      {D "(2)}", 8, "not a tuple"},
      {D "(2 3)}", 8, "not a tuple"},
      {D "(-2,)}", 8, "not a tuple"},
      {D "(2.0,)}", 8, "not a tuple"},
      {D "(,)}", 8, "not a tuple"},
      {D "[2]}", 8, "not a tuple"},
      {D "(99999999999999999999,)}", 8, "not a tuple"},
      {D "(1,1,1,1,1,1,1,1,1)}", 4, "more than 8 axes"},
      {D "(4611686018427387904,)}", 8, "overflows"},
      {D "(4294967296,4294967296,0)}", 0, "overflows"},
      {D "(3,)}", 8, "8 bytes of data, its shape and dtype need 12: truncated"},
      {D "(2,)}", 9, "9 bytes of data, its shape and dtype need 8"},
      {"{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}", 8, "fortran_order is True"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", 8, "not a truth value"},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", 8, "dtype '>f4'"},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (2,)}", 4, "dtype '<f2'"},
      {"{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", 8, "dtype '|O'"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8, "not a plain one"},
      {"{'de\\x73cr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, "no dictionary"},
      {"{'descr: '<f4', 'fortran_order': False, 'shape': (2,)}", 8, "no dictionary"},
  };
#undef D
  unsigned char b[512], data[16] = {0};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    size_t n = npy_compose(b, 1, bad[i].header, data, bad[i].data);
    ngio_npy a;
    if (npy_parse(b, n, &a) != NGIO_ERR_FILE) fail_msg("accepted: %s", bad[i].header);
    expect_message(bad[i].says);
  }
  ngio_npy a;
  memcpy(b, npy1, sizeof npy1);
  b[6] = 4;
  assert_int_equal(npy_parse(b, sizeof npy1 - 1, &a), NGIO_ERR_FILE);
  expect_message("version 4.0");
  memcpy(b, npy2, sizeof npy2);
  b[11] = 0xff; /* a header of four thousand million bytes */
  assert_int_equal(npy_parse(b, sizeof npy2 - 1, &a), NGIO_ERR_FILE);
  expect_message("truncated");
}

static void npy_cut_and_turned(void **state) {
  (void)state;
  const char *all[] = {npy1, npy2, npy_byte};
  const size_t size[] = {sizeof npy1 - 1, sizeof npy2 - 1, sizeof npy_byte - 1};
  for (int v = 0; v < 3; v++) {
    ngio_npy a;
    for (size_t n = 0; n < size[v]; n++) {
      if (npy_parse(all[v], n, &a) != NGIO_ERR_FILE) fail_msg("file %d cut at %zu is read", v, n);
    }
    unsigned char b[512];
    for (size_t bit = 0; bit < size[v] * 8; bit++) {
      memcpy(b, all[v], size[v]);
      b[bit / 8] = (unsigned char)(b[bit / 8] ^ (1 << (bit % 8)));
      if (npy_parse(b, size[v], &a) != NGIO_OK) continue;
      assert_true(a.bytes == ngio_bytes_of(a.dtype, a.shape, a.ndim));
      assert_true(a.bytes <= (int64_t)size[v]);
      ngio_npy_free(&a);
    }
    memcpy(b, all[v], size[v]);
    b[size[v]] = 0;
    assert_int_equal(npy_parse(b, size[v] + 1, &a), NGIO_ERR_FILE);
  }
}

/* ---- memory ----------------------------------------------------------------------------------*/

static void *count_take(void *user, size_t bytes) {
  *(int64_t *)user += (int64_t)bytes;
  return malloc(bytes);
}
static void count_give(void *user, void *ptr, size_t bytes) {
  *(int64_t *)user -= (int64_t)bytes;
  free(ptr);
}
static void *never_take(void *user, size_t bytes) {
  (void)user;
  (void)bytes;
  return NULL;
}

static void payload_memory(void **state) {
  (void)state;
  int64_t held = 0;
  ngio_alloc alloc = {count_take, count_give, &held};
  ngio_tensors *f;
  assert_int_equal(
      ngio_tensors_parse(witness, sizeof witness - 1, "x", &alloc, &f, message, sizeof message),
      NGIO_OK);
  assert_int_equal(held, 36);
  ngio_tensors_close(&f);
  assert_int_equal(held, 0);
  alloc.take = never_take;
  assert_int_equal(
      ngio_tensors_parse(witness, sizeof witness - 1, "x", &alloc, &f, message, sizeof message),
      NGIO_ERR_NOMEM);
  expect_message("36 bytes");
  assert_null(f);
  /* Messages may be unwanted, or cut. */
  assert_int_equal(ngio_tensors_parse("", 0, "x", NULL, &f, NULL, 0), NGIO_ERR_FILE);
  char tiny[4] = "????";
  assert_int_equal(ngio_tensors_parse("", 0, "x", NULL, &f, tiny, sizeof tiny), NGIO_ERR_FILE);
  assert_string_equal(tiny, "x: ");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(round_trip),
      cmocka_unit_test(reads_python),
      cmocka_unit_test(cut_and_grown),
      cmocka_unit_test(turned_bits),
      cmocka_unit_test(headers_that_lie),
      cmocka_unit_test(piece_by_piece),
      cmocka_unit_test(refused_places),
      cmocka_unit_test(full_disk),
      cmocka_unit_test(left_behind_and_locked),
      cmocka_unit_test(npy_reads_numpy),
      cmocka_unit_test(npy_dtypes_and_shapes),
      cmocka_unit_test(npy_bad_headers),
      cmocka_unit_test(npy_cut_and_turned),
      cmocka_unit_test(payload_memory),
  };
  return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
