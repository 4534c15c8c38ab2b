/* read.h: tiles of f32 rows, filled from what a caller shows; shared by gram_rows.c, gram_conv.c,
 * gram_shift.c.
 *
 * A tile is as many rows as keep BLAS busy, never more for a larger batch.  Loops over tiles are
 * cut into one piece a thread; BLAS is called between them, from one thread.
 */
#ifndef NG_PACK_H
#define NG_PACK_H

#include "core/core.h"
#include "linalg/linalg.h"
#include "stat/gram.h"

/* Leading dimension of a tile, and the rows it has: at least 512 (below that SYRK spends its time
 * on reading and writing the result), at most 8 MiB beyond it. */
int64_t ng_tile_ld(int64_t cols);
int64_t ng_tile_rows(int64_t cols);
int64_t ng_tile_floats(int64_t cols); /* enough for a tile of this many columns or fewer */

/* Channels [c0, c1) of images. */
typedef struct ng_pixels {
  const ng_view *v;
  int64_t c0, c1;
} ng_pixels;

/* dst[i * stride + c - c0] = channel c of pixel first + i of sample n, i < count. */
void ng_pixels_load(const ng_pixels *p, int64_t n, int64_t first, int64_t count, float *dst,
                    int64_t stride);

#endif
