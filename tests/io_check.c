/* io_check.c: see io_check.h. */
#include "unit_test.h"

#include <string.h>

#include "io_check.h"

char message[512];
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
