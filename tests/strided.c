/* strided.c: see strided.h. */
#include "strided.h"

#include "element.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t memory_index(const strided *s, int64_t i) {
  int64_t at = 0;
  for (int32_t k = s->a.ndim - 1; k >= 0; k--) {
    at += i % s->shape[k] * s->stride[k];
    i /= s->shape[k];
  }
  return at;
}

void strided_create(strided *s, int32_t ndim, const int64_t *shape, ng_dtype dtype,
                    const int *inner, int64_t gap, unsigned expanded) {
  memset(s, 0, sizeof *s);
  int64_t next = 1 + gap;
  s->count = 1;
  for (int32_t i = 0; i < ndim; i++) {
    const int axis = inner[i];
    s->shape[axis] = shape[axis];
    s->count *= shape[axis];
    s->stride[axis] = (expanded >> axis & 1U) != 0 ? 0 : next;
    if (s->stride[axis] != 0) next = next * shape[axis] + gap;
  }
  s->allocated = next;
  s->a.dtype = dtype;
  s->a.mem = NG_HOST;
  s->a.ndim = ndim;
  s->a.shape = s->shape;
  s->a.stride = s->stride;
  s->a.data = malloc((size_t)(s->allocated * ng_dtype_size(dtype)));
  s->is_element = calloc((size_t)s->allocated, sizeof *s->is_element);
  for (int64_t i = 0; i < s->allocated; i++)
    put(s->a.data, dtype, i, (double)NAN);
  for (int64_t i = 0; i < s->count; i++)
    s->is_element[memory_index(s, i)] = true;
}

void strided_set(strided *s, int64_t i, float x) {
  put(s->a.data, s->a.dtype, memory_index(s, i), (double)x);
}
float strided_get(const strided *s, int64_t i) {
  return get(s->a.data, s->a.dtype, memory_index(s, i));
}

bool strided_free_checked(strided *s) {
  bool intact = true;
  for (int64_t i = 0; i < s->allocated && s->is_element != NULL; i++) {
    if (!s->is_element[i] && !isnan(get(s->a.data, s->a.dtype, i))) intact = false;
  }
  free(s->a.data);
  free(s->is_element);
  memset(s, 0, sizeof *s);
  return intact;
}
