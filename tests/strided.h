/* strided.h: an array with any order of its axes in memory, and gaps.
 *
 * Gaps contain NaN; strided_free_checked returns false if a gap was written.  Indices are in row-major order of `shape`. */
#ifndef STRIDED_H
#define STRIDED_H

#include "natgrad.h"

#include <stdbool.h>

enum { STRIDED_AXES = 5 };

typedef struct strided {
  ng_array a; /* points to the lists below: do not copy this struct */
  int64_t shape[STRIDED_AXES], stride[STRIDED_AXES];
  int64_t count, allocated; /* elements; elements with gaps */
  bool *is_element;         /* [allocated]: false for a gap */
} strided;

/* inner: the axes, innermost first.  gap: elements after each axis.  expanded: bits of axes with stride 0, which repeat
 * their first element. */
void strided_create(strided *s, int32_t ndim, const int64_t *shape, ng_dtype dtype,
                    const int *inner, int64_t gap, unsigned expanded);
void strided_set(strided *s, int64_t i, float x);
float strided_get(const strided *s, int64_t i);
bool strided_free_checked(strided *s);

#endif
