/* fuzz_safetensors.c: any bytes as a safetensors file.  Accepted tensors must be consistent. */
#include "fuzz.h"

#include <string.h>

#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char message[64] = "";
  ngio_tensors *f = NULL;
  const ngio_status st = ngio_tensors_parse(data, size, "x", NULL, &f, message, sizeof message);
  NEED((st == NGIO_OK) == (f != NULL));
  NEED((st == NGIO_OK) == (message[0] == 0));
  NEED(strchr(message, '\n') == NULL);
  if (f == NULL) return 0;
  int64_t sum = 0;
  for (int32_t i = 0; i < ngio_tensors_count(f); i++) {
    const ngio_tensor *t = ngio_tensors_at(f, i);
    NEED(t->bytes == ngio_bytes_of(t->dtype, t->shape, t->ndim));
    NEED((uintptr_t)t->data % (uintptr_t)ngio_dtype_size(t->dtype) == 0);
    volatile uint8_t seen = 0;
    for (int64_t k = 0; k < t->bytes; k++) {
      seen = (uint8_t)(seen ^ ((const uint8_t *)t->data)[k]);
    }
    sum += t->bytes;
  }
  NEED(sum <= (int64_t)size);
  for (int32_t i = 0; i < ngio_tensors_text_count(f); i++) {
    const ngio_text *t = ngio_tensors_text_at(f, i);
    NEED(strcmp(ngio_tensors_text(f, t->key), t->value) == 0);
    NEED(ngio_is_utf8(t->key) && ngio_is_utf8(t->value));
  }
  ngio_tensors_close(&f);
  return 0;
}
