/* gram_shift.h: the input factor of a stride 1 convolution by displacements; gram_conv.c decides.
 *
 * gram_shift_plan.c knows the geometry, what it takes and when it pays; gram_shift.c does it.
 */
#ifndef NG_CONV_SHIFT_H
#define NG_CONV_SHIFT_H

#include "stat/gram.h"

/* Whether this geometry can go by displacements: stride 1, and scratch of a bearable size. */
bool ng_conv_shift_fits(const ng_conv *c, int64_t channels);
int64_t ng_conv_shift_scratch(const ng_conv *c, int64_t channels); /* floats */

/* Predicted time for so many samples, in ns; only the ratio of the two matters. */
double ng_conv_shift_cost(const ng_conv *c, int64_t channels, int64_t samples);
double ng_conv_plain_cost(const ng_conv *c, int64_t channels, int64_t samples);

/* ng_conv_input_stats for stride 1 and reduce 0. */
void ng_conv_input_stats_shift(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take,
                               int64_t c0, int64_t c1, bool one, float alpha, ng_sym S,
                               float *scratch);

/* ---- geometry: gram_shift_plan.c -------------------------------------------------------------*/

enum {
  NG_SHIFT_PRODUCTS = 64
}; /* at most so many matrices of one displacement                   */

/* One axis, 0 vertical or 1 horizontal. */
typedef struct ng_axis {
  int64_t size, taps, step, pad, out; /* step: dilation */
} ng_axis;

typedef struct ng_range {
  int64_t from, to;
} ng_range;

/* A displacement along one axis: `all` are the coordinates r with r and r + d step inside the
 * image. Index 0 stands for all of them, 1 .. low for single ones from the low end, low+1 ..
 * low+high for single ones from the high end: as many as some block lacks. */
typedef struct ng_strips {
  ng_range all;
  int64_t low, high;
} ng_strips;

ng_axis ng_axis_of(const ng_conv *c, int32_t i);
ng_range ng_axis_swept(const ng_axis *a, int64_t k); /* coordinates inside that tap k looks at   */
ng_range ng_axis_taps_at(const ng_axis *a, int64_t d); /* taps k for which k + d is a tap */
ng_strips ng_strips_of(const ng_axis *a, int64_t d);
static inline int64_t ng_strips_count(const ng_strips *s) { return 1 + s->low + s->high; }
int64_t ng_strip_at(const ng_strips *s, int64_t i); /* the coordinate of index i > 0 */
/* Indices that block (k, k + d) adds up: 0, and what it lacks.  Returns how many; 0: it is zero. */
int64_t ng_strips_terms(const ng_axis *a, const ng_strips *s, int64_t d, int64_t k, int64_t *index);

/* Columns of the image that single columns and their partners come from: so many at either end. */
int64_t ng_shift_edge(const ng_conv *c);
int64_t ng_shift_columns(const ng_conv *c); /* of both ends together, or all */
int64_t ng_shift_rows(const ng_conv *c);    /* of C floats, that a sample takes with its columns */
int64_t ng_shift_samples(const ng_conv *c, int64_t channels); /* of a tile, at most */

/* Where things are in scratch, in floats: a tile with its columns, matrices of a displacement, a
 * symmetric one, sums (double) and the row for the bias. */
typedef struct ng_shift_layout {
  int64_t products, gram, sums, row, total;
} ng_shift_layout;
ng_shift_layout ng_shift_layout_of(const ng_conv *c, int64_t channels, int64_t tile);

#endif
