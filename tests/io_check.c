/* io_check.c: see io_check.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io_check.h"

char message[512];
char folder[64];

int make_folder(void **state) {
  strcpy(folder, "/tmp/io_check-XXXXXX");
  return mkdtemp(folder) ? 0 : -1;
}

int drop_folder(void **state) { return rmdir(folder); }

const char *in_folder(const char *name) {
  static char path[8][160];
  static int next;
  char *p = path[next++ % 8];
  (void)snprintf(p, sizeof path[0], "%s/%s", folder, name);
  return p;
}

void spill(const char *path, const void *bytes, size_t n) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
}

unsigned char *slurp(const char *path, size_t *n) {
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

void expect_message(const char *part) {
  if (!strstr(message, part)) fail_msg("message \"%s\" lacks \"%s\"", message, part);
  if (strchr(message, '\n')) fail_msg("message has more than one line: \"%s\"", message);
}

void assert_consistent(const ngio_tensors *f, size_t file_bytes) {
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
  assert_true(sum <= (int64_t)file_bytes);
}
