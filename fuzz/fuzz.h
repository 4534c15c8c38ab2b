/* fuzz.h: one fuzz entry, as libFuzzer calls it.  driver.c calls it without a fuzzer.
 *
 * An entry aborts (NEED) if a documented property fails; sanitizers find other faults. */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NEED(x)                                                                                    \
  do {                                                                                             \
    if (!(x)) {                                                                                    \
      fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #x);                      \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)

#endif
