/* read.h: tiles of f32 rows, filled from a view; shared by gram_rows.c, gram_conv.c, gram_shift.c.
 *
 * A tile has enough rows to keep BLAS busy, whatever the size of the batch. The threads of the context fill a tile, one
 * piece each; then one thread calls BLAS. */
#ifndef NG_PACK_H
#define NG_PACK_H

#include "core/core.h"
#include "linalg/linalg.h"
#include "stat/gram.h"

/* The leading dimension and the rows of a tile of `cols` columns: as many rows as fit 8 MiB, at least 512 (SYRK with
 * fewer rows is bound by reading and writing the result). */
int64_t ng_tile_ld(int64_t cols);
int64_t ng_tile_rows(int64_t cols);
int64_t ng_tile_floats(int64_t cols); /* floats for a tile of at most `cols` columns */

/* Channels [c0, c1) of the images of a view. */
typedef struct ng_pixels {
  const ng_view *v;
  int64_t c0, c1;
} ng_pixels;

/* dst[i * stride + c - c0] = channel c of pixel first + i of sample n, i < count. */
void ng_pixels_load(const ng_pixels *p, int64_t n, int64_t first, int64_t count, float *dst,
                    int64_t stride);

#endif
