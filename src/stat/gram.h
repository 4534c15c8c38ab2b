/* gram.h: factors of one observation (gram_conv.c, gram_rows.c).
 *
 * Both add alpha * sum(rows' rows) to a symmetric matrix; the family chooses alpha. Internal
 * columns are (kernel offset, channel), bias last. Scratch is tiled: its size does not depend on
 * the batch. */
#ifndef NG_STATS_H
#define NG_STATS_H

#include "core/core.h"
#include "linalg/linalg.h"

/* An observed array: sample n, position s, column c, which is a feature or a channel. The positions
 * of an image are its pixels, row by row. Element (n, s, c) is at
 *
 *     n by_sample + c by_column + s % run by_position + the offset of run s / run along the axes
 *
 * so any strides fit; a dense batch has one run. */
typedef struct ng_view {
  const void *data;
  ng_dtype dtype;
  int32_t axes; /* of runs, outermost first; 0: run == positions */
  int64_t samples, positions, columns;
  int64_t by_sample, by_position, by_column;
  int64_t run; /* positions that are by_position apart */
  int64_t extent[NG_DIMS], step[NG_DIMS];
} ng_view;

static inline int64_t ng_view_offset(const ng_view *v, int64_t n, int64_t s) {
  if (v->axes == 0) return n * v->by_sample + s * v->by_position; /* the usual case */
  int64_t at = n * v->by_sample + s % v->run * v->by_position, outer = s / v->run;
  for (int32_t i = v->axes - 1; i >= 0; i--) {
    at += outer % v->extent[i] * v->step[i];
    outer /= v->extent[i];
  }
  return at;
}
static inline const char *ng_view_at(const ng_view *v, int64_t n, int64_t s, int64_t c) {
  return (const char *)v->data +
         (ng_view_offset(v, n, s) + c * v->by_column) * ng_dtype_size(v->dtype);
}

/* The rows (sample, position) of a view that are used. */
typedef struct ng_rows {
  const ng_view *v;
  int64_t take;   /* the first samples only */
  int64_t c0, c1; /* columns used */
  bool one;       /* append a column of ones */
  int reduce;     /* 0: each position is a row; 1: mean over positions; 2: sum over positions */
} ng_rows;

/* S [c1-c0+one] += alpha sum_rows r r': inputs and output gradients of linear layers, and pixels of
 * images. */
void ng_rows_stats(ng_context *ctx, const ng_rows *r, float alpha, ng_sym S, float *scratch);
int64_t ng_rows_scratch(int64_t columns); /* floats */

/* The geometry of a convolution; kernel etc. are [vertical, horizontal]. The positions of a linear layer are the
 * pixels of one row, whose width is unknown before an observation. */
typedef struct ng_conv {
  int64_t channels, height, width; /* of the input */
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t oh, ow, out;
  bool linear;
} ng_conv;

static inline int64_t ng_conv_taps(const ng_conv *c) { return c->kernel[0] * c->kernel[1]; }
/* One tap that covers every pixel once: patches are pixels. */
static inline bool ng_conv_pointwise(const ng_conv *c) {
  return ng_conv_taps(c) == 1 && c->stride[0] == 1 && c->stride[1] == 1 && c->padding[0] == 0 &&
         c->padding[1] == 0;
}

/* S [kh*kw*(c1-c0) + one] += alpha sum over `take` samples and all output positions of a a', a the
 * patch of channels [c0, c1) (zero padded), with a 1 appended if `one`. reduce as above, over the
 * patches of a sample. */
void ng_conv_input_stats(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take,
                         int64_t c0, int64_t c1, bool one, int reduce, float alpha, ng_sym S,
                         float *scratch);
/* The same by im2col and a Gram matrix: the oracle. */
void ng_conv_input_stats_plain(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take,
                               int64_t c0, int64_t c1, bool one, int reduce, float alpha, ng_sym S,
                               float *scratch);
/* S[p, 0 .. p] += alpha times the sum of all patches of x, and their number: the row of the bias, p its order. */
void ng_bias_row(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take, float alpha,
                 ng_sym S, float *scratch);
/* Floats of scratch of all, and of the rows of output gradients, for at most `c` inputs and `o` outputs. */
int64_t ng_conv_scratch(ng_context *ctx, const ng_conv *conv, int64_t c, int64_t o);

/* ---- squares.c -------------------------------------------------------------------------------*/

/* out[c] = sum of squares of column c over the first `take` samples and all positions; reduce as
 * above. */
void ng_square_sums(ng_context *ctx, const ng_view *v, int64_t take, int reduce, double *out);

/* ---- box.c: mean vectors ---------------------------------------------------------------------*/

/* out [channels][kernel offsets] = for each channel and offset (i, k) the sum over the first `take` samples and all
 * output positions (u, v) of pixel (u stride + i dilation - padding, ...), 0 outside the image; false: a number
 * that was read is not finite. `room`: ng_box_room doubles, which of a linear layer do not grow with the
 * positions. */
bool ng_box_sums(ng_context *ctx, const ng_conv *c, const ng_view *in, int64_t take, double *out,
                 double *room);
int64_t ng_box_room(const ng_context *ctx, const ng_conv *c);
/* The same of one sample, which is finite, in the calling thread. */
void ng_box_sample(const ng_conv *c, const ng_view *in, double *out, double *room);
int64_t ng_box_sample_room(const ng_conv *c);

#endif
