/* element.h: read and write element i of an array of f32, bf16 or f16. */
#ifndef TESTS_ELEMENT_H
#define TESTS_ELEMENT_H

#include "linalg/linalg.h"

static inline void put(void *to, ng_dtype t, int64_t i, double x) {
  const float v = (float)x;
  ng_from_f32((char *)to + i * ng_dtype_size(t), t, &v, 1);
}

static inline float get(const void *from, ng_dtype t, int64_t i) {
  float x;
  ng_to_f32(&x, (const char *)from + i * ng_dtype_size(t), t, 1);
  return x;
}

#endif
