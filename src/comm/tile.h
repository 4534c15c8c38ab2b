/* tile.h: sum over ranks, NG_TILE elements at a time, in double and in rank order, rounded once.
 * The transports threads and mpi share it, so they give the same bits. */
#ifndef NG_TILE_H
#define NG_TILE_H

#include "core/core.h"

#include <string.h>

enum { NG_TILE = 256 }; /* on the stack */

/* acc = (first) or acc += n values. The first rank sets, so that -0 does not become +0. */
static inline void ng_tile_add(double *acc, const void *from, ng_dtype t, int64_t n, bool first) {
  double wide[NG_TILE];
  float narrow[NG_TILE];
  if (t == NG_F64) {
    memcpy(wide, from, (size_t)n * sizeof *wide);
  } else {
    ng_to_f32(narrow, from, t, n);
    for (int64_t i = 0; i < n; i++) {
      wide[i] = (double)narrow[i];
    }
  }
  for (int64_t i = 0; i < n; i++) {
    acc[i] = first ? wide[i] : acc[i] + wide[i];
  }
}

static inline void ng_tile_give(const double *acc, void *to, ng_dtype t, int64_t n) {
  float narrow[NG_TILE];
  if (t == NG_F64) {
    memcpy(to, acc, (size_t)n * sizeof *acc);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    narrow[i] = (float)acc[i];
  }
  ng_from_f32(to, t, narrow, n);
}

#endif
