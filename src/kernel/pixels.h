/* pixels.h: tiles of f32 rows, and functions that several files of sums over observed arrays call.
 *
 * A tile has enough rows for one efficient BLAS call, independent of the size of the batch. The threads of the queue
 * fill a tile, one piece each; then one thread calls BLAS. */
#ifndef NG_PIXELS_H
#define NG_PIXELS_H

#include "kernel/entries.h"

/* Return the number of rows of a tile of `cols` columns: as many as fit 8 MiB, but at least 512, because SYRK with fewer
 * rows spends its time on reading and writing the result. The leading dimension is whole cache lines, ng_round16(cols), so
 * that threads fill neighbouring rows without sharing a line. */
int64_t ng_tile_rows(int64_t cols);
/* return the floats of scratch for any tile of at most `cols` columns */
int64_t ng_tile_floats(int64_t cols);

/* Channels [c0, c1) of the images of a view. */
typedef struct ng_pixels {
  const ng_view *v;
  int64_t c0, c1;
} ng_pixels;

/* dst[i * stride + c - c0] = channel c of pixel first + i of sample n, i < count. */
void ng_pixels_load(const ng_pixels *p, int64_t n, int64_t first, int64_t count, float *dst,
                    int64_t stride);

/* A tile of rows [first, first + count) of the matrix whose Gram matrix is computed. */
typedef struct ng_gram_tile {
  const ng_gram *g;
  int64_t first, count;
  int32_t pieces; /* the threads fill the tile, one piece of rows each */
  float *to;      /* [count, ld] */
  int64_t ld;
  float *scratch; /* scratch after the tile */
} ng_gram_tile;

/* gram_rows.c: g->S += alpha X'X for X [rows, cols], tile after tile. fill(tile, i) writes piece i of a tile and reads about
 * `reads` numbers for a row. */
void ng_add_gram_by_tiles(ng_queue *q, const ng_gram *g, int64_t rows, int64_t cols, int64_t reads,
                          void (*fill)(void *tile, int32_t i), float *scratch);

/* gram_rows.c: add the row of the bias to g->S. With p = taps times channels of x: S[p, 0 .. p) += alpha times the sum of
 * all patches; S[p, p] += alpha times the number of patches. */
void ng_add_bias_row(ng_queue *q, const ng_gram *g, float *scratch);

/* gram_conv.c: add_conv_grams by the plain method, which stores patches. */
void ng_gram_conv_plain(ng_queue *q, const ng_gram *g, float *scratch);

/* gram_conv.c: fill the rows of piece i of a tile, an ng_gram_tile, with patches. Each piece needs ng_patch_window_floats of
 * scratch. */
void ng_copy_patches(void *tile, int32_t i);
int64_t ng_patch_window_floats(const ng_conv *c, int64_t channels);

/* box.c: sum_patches for finite images, on the calling thread. scratch: ng_sample_patches_scratch doubles. */
void ng_sum_sample_patches(const ng_box *b, double *scratch);
int64_t ng_sample_patches_scratch(const ng_conv *c);

/* ref_gram.c: element (n, s, c) of a view. */
double ng_view_element(const ng_view *v, int64_t n, int64_t s, int64_t c);

#endif
