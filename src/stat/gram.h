/* gram.h: factors of one observation (gram_conv.c, gram_rows.c).
 *
 * Both files add alpha * sum over rows r of r r' to a symmetric matrix; the family chooses alpha. The columns of a
 * patch are in the order (kernel offset, channel), the bias last. Rows are processed in tiles, so the size of the
 * scratch does not depend on the batch. */
#ifndef NG_STATS_H
#define NG_STATS_H

#include "kernel/kernel.h"

/* An observed array with samples n, positions s and columns c. A column is a feature or a channel; the positions of an
 * image are its pixels, row by row. A run is `run` positions with the stride by_position. Strides count elements.
 * Element (n, s, c) is at
 *
 *     n by_sample + c by_column + s % run by_position + (offset of run s / run, from extent and step) */
typedef struct ng_view {
  const void *data;
  ng_dtype dtype;
  int32_t axes; /* axes over runs, outermost first; 0: run == positions */
  int64_t samples, positions, columns;
  int64_t by_sample, by_position, by_column;
  int64_t run;
  int64_t extent[NG_DIMS], step[NG_DIMS];
} ng_view;

static inline int64_t ng_view_offset(const ng_view *v, int64_t n, int64_t s) {
  if (v->axes == 0) return n * v->by_sample + s * v->by_position;
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

/* The part of a view that is used; each (sample, position) is a row. */
typedef struct ng_rows {
  const ng_view *v;
  int64_t take;   /* number of samples used: the first ones */
  int64_t c0, c1; /* columns [c0, c1) are used */
  bool one;       /* append a column of ones */
  int reduce;     /* 0: each position is a row; 1: mean over positions; 2: sum over positions */
} ng_rows;

/* S += alpha sum over rows r of r r', S of order c1 - c0 + one. Used for the inputs and output gradients of linear
 * layers and for the pixels of images. */
void ng_rows_stats(ng_context *ctx, const ng_rows *r, float alpha, ng_sym S, float *scratch);
int64_t ng_rows_scratch(int64_t columns); /* floats */

/* The geometry of a convolution; kernel, stride, padding and dilation are [vertical, horizontal]. A linear layer is a
 * pointwise convolution of one row of pixels: its positions. Their number is unknown before an observation. */
typedef struct ng_conv {
  int64_t channels, height, width; /* of the input */
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t oh, ow, out;
  bool linear;
} ng_conv;

static inline int64_t ng_conv_taps(const ng_conv *c) { return c->kernel[0] * c->kernel[1]; }
/* Return whether the kernel has one tap that covers every pixel once, so that each patch is one pixel. */
static inline bool ng_conv_pointwise(const ng_conv *c) {
  return ng_conv_taps(c) == 1 && c->stride[0] == 1 && c->stride[1] == 1 && c->padding[0] == 0 &&
         c->padding[1] == 0;
}

/* S += alpha sum over the first `take` samples and all output positions of a a'. a: the zero-padded patch of channels
 * [c0, c1), followed by a 1 if `one`; S has order taps (c1 - c0) + one. reduce (over patches): see ng_rows. */
void ng_conv_input_stats(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take,
                         int64_t c0, int64_t c1, bool one, int reduce, float alpha, ng_sym S,
                         float *scratch);
/* Compute the same sums by im2col and a Gram matrix: the oracle of the faster methods. */
void ng_conv_input_stats_plain(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take,
                               int64_t c0, int64_t c1, bool one, int reduce, float alpha, ng_sym S,
                               float *scratch);
/* Add the row of the bias: S[p, 0 .. p) += alpha times the sum of all patches of x, S[p, p] += alpha times their
 * number; p = taps times channels. Only the first `take` samples count. */
void ng_bias_row(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take, float alpha,
                 ng_sym S, float *scratch);
/* Return the floats of scratch for the input factor and the output gradients of a convolution, for at most `c` input
 * channels and `o` output channels. */
int64_t ng_conv_scratch(ng_context *ctx, const ng_conv *conv, int64_t c, int64_t o);

/* ---- squares.c -------------------------------------------------------------------------------*/

/* out[c] = sum of squares of column c over the first `take` samples and all positions. reduce: as in ng_rows. */
void ng_square_sums(ng_context *ctx, const ng_view *v, int64_t take, int reduce, double *out);

/* ---- box.c: mean vectors ---------------------------------------------------------------------*/

/* out [channels][kernel offsets]: for channel c and offset (i, k) the sum over the first `take` samples and all output
 * positions (u, v) of the pixel (u stride + i dilation - padding, v stride + k dilation - padding), 0 outside the
 * image. Return false if an input is not finite. room: ng_box_room doubles, independent of the positions if linear. */
bool ng_box_sums(ng_context *ctx, const ng_conv *c, const ng_view *in, int64_t take, double *out,
                 double *room);
int64_t ng_box_room(const ng_context *ctx, const ng_conv *c);
/* Compute the same sums for one finite sample, on the calling thread. room: ng_box_sample_room doubles. */
void ng_box_sample(const ng_conv *c, const ng_view *in, double *out, double *room);
int64_t ng_box_sample_room(const ng_conv *c);

#endif
