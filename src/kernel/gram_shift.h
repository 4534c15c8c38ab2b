/* gram_shift.h: the fast method for the input factor of a convolution with stride 1. gram_shift.c explains the method and
 * computes the sums; gram_shift_plan.c computes geometry, sizes and costs; gram_conv.c chooses between the methods. */
#ifndef NG_GRAM_SHIFT_H
#define NG_GRAM_SHIFT_H

#include "kernel/entries.h"

/* Return whether gram_shift.c accepts the geometry: stride 1, and scratch within a limit. */
bool ng_conv_shift_fits(const ng_conv *c, int64_t channels);
int64_t ng_conv_shift_scratch(const ng_conv *c, int64_t channels); /* floats */

/* Return the predicted time in ns of the fast and of the plain method; only the ratio of the two times matters. */
double ng_conv_shift_cost(const ng_conv *c, int64_t channels, int64_t samples);
double ng_conv_plain_cost(const ng_conv *c, int64_t channels, int64_t samples);

/* add_conv_grams for stride 1 and reduce 0, by the fast method. */
void ng_gram_conv_shift(ng_queue *q, const ng_gram *g, float *scratch);

/* ---- geometry: gram_shift_plan.c -------------------------------------------------------------*/

enum { NG_SHIFT_MAX_PRODUCTS = 64 }; /* largest number of matrices M of a displacement */

/* The convolution along one axis. */
typedef struct ng_axis {
  int64_t size, taps, step, pad, out; /* image size, taps, dilation, padding, output size */
} ng_axis;

typedef struct ng_range {
  int64_t from, to;
} ng_range;

/* Coordinates of one axis for a displacement of d taps. `inner` contains every r for which r and r + d step are inside
 * the image. Indices i of M[i, j] number parts of `inner`: 0 is all of `inner`; 1 .. low are its first `low` coordinates;
 * low + 1 .. low + high are its last `high` coordinates, from the end. */
typedef struct ng_strips {
  ng_range inner;
  int64_t low, high;
} ng_strips;

ng_axis ng_conv_axis(const ng_conv *c, int32_t i);
/* return the taps k for which k + d is also a tap */
ng_range ng_axis_paired_taps(const ng_axis *a, int64_t d);
ng_strips ng_find_strips(const ng_axis *a, int64_t d);
static inline int64_t ng_count_strip_indices(const ng_strips *s) { return 1 + s->low + s->high; }
/* Return the coordinate of index i > 0. */
int64_t ng_strip_coordinate(const ng_strips *s, int64_t i);
/* Write to `index` the indices from which block (k, k + d) is combined: 0, then the indices of the coordinates of
 * `inner` that the block does not contain. Return how many; 0 means that the block is zero. */
int64_t ng_list_strip_terms(const ng_axis *a, const ng_strips *s, int64_t d, int64_t k,
                            int64_t *index);

/* Return how many image columns at each end a tile stores a second time, in the layout of edge_pixel_address (gram_shift.c). */
int64_t ng_shift_edge_columns(const ng_conv *c);
/* Return the number of such columns at both ends together, at most the width. */
int64_t ng_shift_copied_columns(const ng_conv *c);
/* Return the number of pixels that a tile stores for a sample, copies included. */
int64_t ng_shift_pixels(const ng_conv *c);
/* Return the largest number of samples of a tile. */
int64_t ng_shift_tile_samples(const ng_conv *c, int64_t channels);

/* Offsets in scratch, in floats. The tile and the copies of its edge columns begin at 0, the matrices M[i, j] of one
 * displacement at `products`, and a symmetric matrix of order `channels` at `gram`. */
typedef struct ng_shift_layout {
  int64_t products, gram, total;
} ng_shift_layout;
ng_shift_layout ng_shift_layout_of(const ng_conv *c, int64_t channels, int64_t tile);

#endif
