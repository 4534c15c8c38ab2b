/* t_npy.c: the reader of npy: files of numpy, wrong headers, truncation at every length, every bit flipped.  The
 * reader must fail or return a consistent array; the address sanitizer checks its memory accesses. */
#include "unit_test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io_check.h"
#include "npy.h"

static size_t compose_npy(unsigned char *b, int version, const char *header, const void *data,
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

static ngio_status parse_npy(const void *bytes, size_t n, ngio_npy *a) {
  /* exactly n bytes, for the sanitizer */
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

/* Bytes of numpy 2.4: write_array([[1.5, -2, 3]]) in versions 1.0, 2.0, 3.0, and save(uint8(9)). */
#define SHAPE13 "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), }"
#define BLANKS56 "                                                        "
#define DATA3 "\0\0\0\0\0\0\xf8?\0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\x08@"
static const char npy1[] = "\x93NUMPY\x01\0v\0" SHAPE13 BLANKS56 "  \n" DATA3;
static const char npy2[] = "\x93NUMPY\x02\0t\0\0\0" SHAPE13 BLANKS56 "\n" DATA3;
static const char npy3[] = "\x93NUMPY\x03\0t\0\0\0" SHAPE13 BLANKS56 "\n" DATA3;
static const char npy_byte[] =
    "\x93NUMPY\x01\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (), }" BLANKS56
    "      \n\t";

static void files_of_numpy_are_read(void **state) {
  const char *all[] = {npy1, npy2, npy3};
  for (int v = 0; v < 3; v++) {
    ngio_npy a;
    assert_int_equal(parse_npy(all[v], sizeof npy1 - 1, &a), NGIO_OK);
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
    write_file(path, all[v], sizeof npy1 - 1);
    assert_int_equal(ngio_npy_read(path, &a, message, sizeof message), NGIO_OK);
    assert_int_equal(a.count, 3);
    ngio_npy_free(&a);
    assert_int_equal(unlink(path), 0);
  }
  ngio_npy a;
  assert_int_equal(parse_npy(npy_byte, sizeof npy_byte - 1, &a), NGIO_OK);
  assert_int_equal(a.dtype, NGIO_U8);
  assert_int_equal(a.ndim, 0);
  assert_int_equal(a.count, 1);
  assert_int_equal(*(const uint8_t *)a.data, 9);
  ngio_npy_free(&a);
}

static void every_dtype_and_shape_is_read(void **state) {
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
      size_t n = compose_npy(b, version, good[i].header, data, bytes);
      ngio_npy a;
      if (parse_npy(b, n, &a) != NGIO_OK) fail_msg("%s: %s", good[i].header, message);
      assert_int_equal(a.dtype, good[i].dtype);
      assert_int_equal(a.ndim, good[i].ndim);
      assert_int_equal(a.count, good[i].count);
      assert_int_equal(a.bytes, bytes);
      assert_memory_equal(a.data, data, bytes);
      ngio_npy_free(&a);
    }
  }
}

static void invalid_headers_are_refused(void **state) {
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
      {D "(2,), 'x': 1}", 8, "unknown or repeated key 'x'"},
      {D "(2,), 'shape': (2,)}", 8, "unknown or repeated key 'shape'"},
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
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", 8, "neither True nor False"},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", 8, "dtype '>f4'"},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (2,)}", 4, "dtype '<f2'"},
      {"{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", 8, "dtype '|O'"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8, "structured dtypes"},
      {"{'de\\x73cr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, "no dictionary"},
      {"{'descr: '<f4', 'fortran_order': False, 'shape': (2,)}", 8, "no dictionary"},
  };
#undef D
  unsigned char b[512], data[16] = {0};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    size_t n = compose_npy(b, 1, bad[i].header, data, bad[i].data);
    ngio_npy a;
    if (parse_npy(b, n, &a) != NGIO_ERR_FILE) fail_msg("accepted: %s", bad[i].header);
    expect_message(bad[i].says);
  }
  ngio_npy a;
  memcpy(b, npy1, sizeof npy1);
  b[6] = 4;
  assert_int_equal(parse_npy(b, sizeof npy1 - 1, &a), NGIO_ERR_FILE);
  expect_message("version is 4.0");
  memcpy(b, npy2, sizeof npy2);
  b[11] = 0xff; /* a header of 4 GB */
  assert_int_equal(parse_npy(b, sizeof npy2 - 1, &a), NGIO_ERR_FILE);
  expect_message("truncated");
}

static void damaged_files_are_refused_or_consistent(void **state) {
  const char *all[] = {npy1, npy2, npy_byte};
  const size_t size[] = {sizeof npy1 - 1, sizeof npy2 - 1, sizeof npy_byte - 1};
  for (int v = 0; v < 3; v++) {
    ngio_npy a;
    for (size_t n = 0; n < size[v]; n++) {
      if (parse_npy(all[v], n, &a) != NGIO_ERR_FILE)
        fail_msg("file %d was accepted after truncation to %zu bytes", v, n);
    }
    unsigned char b[512];
    for (size_t bit = 0; bit < size[v] * 8; bit++) {
      memcpy(b, all[v], size[v]);
      b[bit / 8] = (unsigned char)(b[bit / 8] ^ (1 << (bit % 8)));
      if (parse_npy(b, size[v], &a) != NGIO_OK) continue;
      assert_true(a.bytes == ngio_bytes_of(a.dtype, a.shape, a.ndim));
      assert_true(a.bytes <= (int64_t)size[v]);
      ngio_npy_free(&a);
    }
    memcpy(b, all[v], size[v]);
    b[size[v]] = 0;
    assert_int_equal(parse_npy(b, size[v] + 1, &a), NGIO_ERR_FILE);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_of_numpy_are_read),
      cmocka_unit_test(every_dtype_and_shape_is_read),
      cmocka_unit_test(invalid_headers_are_refused),
      cmocka_unit_test(damaged_files_are_refused_or_consistent),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_empty_folder);
}
