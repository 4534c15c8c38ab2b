/* gram_shift.h: the input factor of a convolution with stride 1, from displacements of kernel taps. gram_shift_plan.c
 * has the geometry, sizes and costs, gram_shift.c the sums; gram_conv.c chooses the method. */
#ifndef NG_GRAM_SHIFT_H
#define NG_GRAM_SHIFT_H

#include "kernel/entries.h"

/* Return whether gram_shift.c accepts the geometry: stride 1, and scratch within a limit. */
bool ng_conv_shift_fits(const ng_conv *c, int64_t channels);
int64_t ng_conv_shift_scratch(const ng_conv *c, int64_t channels); /* floats */

/* Return the predicted time in ns for `samples` samples; only the ratio of the two costs matters. */
double ng_conv_shift_cost(const ng_conv *c, int64_t channels, int64_t samples);
double ng_conv_plain_cost(const ng_conv *c, int64_t channels, int64_t samples);

/* Compute gram_conv for stride 1 and reduce 0. */
void ng_gram_conv_shift(ng_queue *q, const ng_gram *g, float *scratch);

/* ---- geometry: gram_shift_plan.c -------------------------------------------------------------*/

enum { NG_SHIFT_MAX_PRODUCTS = 64 }; /* largest number of matrices of a displacement */

/* The convolution along one axis: image size, taps, dilation (step), padding, output size. */
typedef struct ng_axis {
  int64_t size, taps, step, pad, out; /* step: dilation */
} ng_axis;

typedef struct ng_range {
  int64_t from, to;
} ng_range;

/* The coordinates of one axis for a displacement of d taps. all: the coordinates r with r and r + d step in the image.
 * Index 0 means all; 1 .. low are single coordinates from the low end, low+1 .. low+high from the high end. */
typedef struct ng_strips {
  ng_range inner;
  int64_t low, high;
} ng_strips;

ng_axis ng_axis_of(const ng_conv *c, int32_t i);
ng_range ng_axis_tap_range(const ng_axis *a, int64_t k);   /* image coordinates that tap k covers */
ng_range ng_axis_paired_taps(const ng_axis *a, int64_t d); /* taps k such that k + d is a tap */
ng_strips ng_strips_of(const ng_axis *a, int64_t d);
static inline int64_t ng_strips_count(const ng_strips *s) { return 1 + s->low + s->high; }
int64_t ng_strip_at(const ng_strips *s, int64_t i); /* the coordinate of index i > 0 */
/* Write to `index` the indices that block (k, k + d) combines: 0 and the coordinates that the block lacks. Return their
 * number; 0 means the block is zero. */
int64_t ng_strips_terms(const ng_axis *a, const ng_strips *s, int64_t d, int64_t k, int64_t *index);

/* Return the columns at either end of the image that a block lacks, or that are displaced from these. */
int64_t ng_shift_edge(const ng_conv *c);
int64_t ng_shift_columns(const ng_conv *c); /* the columns of both ends, at most the width */
int64_t ng_shift_rows(const ng_conv *c);    /* rows of a sample, with copied columns */
int64_t ng_shift_samples(const ng_conv *c, int64_t channels); /* at most, in a tile */

/* Offsets in scratch, in floats. The tile and the copies of its edge columns begin at 0; products: the matrices M[i, j]
 * of one displacement; gram: one symmetric matrix. */
typedef struct ng_shift_layout {
  int64_t products, gram, total;
} ng_shift_layout;
ng_shift_layout ng_shift_layout_of(const ng_conv *c, int64_t channels, int64_t tile);

#endif
