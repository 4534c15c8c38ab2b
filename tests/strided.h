/* strided.h: an array of a test's own in any order of its axes, with gaps, and the same numbers in
 * the plain order.
 *
 * What lies between its elements is NaN, and strided_close fails the caller's check (returns false)
 * if any of that was written.  Logical order is row-major over `shape`. */
#ifndef STRIDED_H
#define STRIDED_H

#include "natgrad.h"

#include <stdbool.h>

enum { STRIDED_AXES = 5 };

typedef struct strided {
  ng_array a; /* its lists are those below: do not copy this struct */
  int64_t shape[STRIDED_AXES], stride[STRIDED_AXES];
  int64_t count, room; /* elements, and those of the memory */
  bool *mine;          /* [room] */
} strided;

/* inner: the axes, innermost first; gap: elements left out behind each axis; an axis whose bit is in
 * `expanded` has stride 0 and repeats its first element. */
void strided_make(strided *s, int32_t ndim, const int64_t *shape, ng_dtype dtype, const int *inner,
                  int64_t gap, unsigned expanded);
void strided_set(strided *s, int64_t i, float x);
float strided_get(const strided *s, int64_t i);
bool strided_close(strided *s);

#endif
