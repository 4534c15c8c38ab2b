/* fuzz_npy.c: any bytes as an npy file.  An accepted array must be consistent. */
#include "fuzz.h"

#include <string.h>

#include "npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char message[64] = "";
  ngio_npy a;
  const ngio_status st = ngio_npy_parse(data, size, "x", &a, message, sizeof message);
  NEED((st == NGIO_OK) == (a.data != NULL));
  NEED((st == NGIO_OK) == (message[0] == 0));
  NEED(strchr(message, '\n') == NULL);
  if (st != NGIO_OK) return 0;
  NEED(a.ndim >= 0 && a.ndim <= NGIO_MAX_DIMS);
  NEED(a.bytes == ngio_bytes_of(a.dtype, a.shape, a.ndim));
  NEED(a.count * ngio_dtype_size(a.dtype) == a.bytes);
  NEED(a.bytes < (int64_t)size);
  NEED(memcmp(a.data, data + size - a.bytes, (size_t)a.bytes) == 0);
  ngio_npy_free(&a);
  return 0;
}
