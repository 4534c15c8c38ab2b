/* observed.h: descriptors of the kernels that sum over observed arrays: activations and output gradients.
 *
 * The kernels add alpha * sum over rows r of r r' to a symmetric matrix, or sum columns, patches or squares. A row is a
 * position of a sample, or a patch of an image. The columns of a patch are in the order (kernel offset, channel), the
 * bias last. */
#ifndef NG_OBSERVED_H
#define NG_OBSERVED_H

#include "core/core.h"
#include "linalg/linalg.h"

/* An observed array with samples n, positions s and columns c. A column is a feature or a channel; the positions of an
 * image are its pixels, row by row. A run is run_length consecutive positions at distance position_stride; the runs lie
 * along `axes` axes. Strides count elements. Element (n, s, c) is at
 *
 *     n sample_stride + c column_stride + (s % run_length) position_stride + offset of run s / run_length */
typedef struct ng_view {
  const void *data;
  ng_dtype dtype;
  int32_t axes; /* number of axes of runs, outermost first; 0: one run */
  int64_t samples, positions, columns;
  int64_t sample_stride, position_stride, column_stride;
  int64_t run_length;
  int64_t extent[NG_DIMS], stride[NG_DIMS];
} ng_view;

/* Return the offset of element i of an array with these axes, outermost first. */
static inline int64_t ng_axes_offset(int32_t axes, const int64_t *extent, const int64_t *stride,
                                     int64_t i) {
  int64_t at = 0;
  for (int32_t a = axes - 1; a >= 0; a--) {
    at += i % extent[a] * stride[a];
    i /= extent[a];
  }
  return at;
}
static inline int64_t ng_view_offset(const ng_view *v, int64_t n, int64_t s) {
  if (v->axes == 0) return n * v->sample_stride + s * v->position_stride;
  return n * v->sample_stride + s % v->run_length * v->position_stride +
         ng_axes_offset(v->axes, v->extent, v->stride, s / v->run_length);
}
static inline const char *ng_view_at(const ng_view *v, int64_t n, int64_t s, int64_t c) {
  return (const char *)v->data +
         (ng_view_offset(v, n, s) + c * v->column_stride) * ng_dtype_size(v->dtype);
}

/* The geometry of a convolution; kernel, stride, padding and dilation are [vertical, horizontal]. A linear layer is a
 * pointwise convolution of an image with one row, whose pixels are the positions; the number of positions is unknown
 * before an observation. */
typedef struct ng_conv {
  int64_t channels, height, width; /* size of the input */
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t out_height, out_width, outputs;
  bool is_linear;
} ng_conv;

static inline int64_t ng_conv_taps(const ng_conv *c) { return c->kernel[0] * c->kernel[1]; }
/* Return whether the kernel has one tap that covers every pixel once, so that each patch is one pixel. */
static inline bool ng_conv_is_pointwise(const ng_conv *c) {
  return ng_conv_taps(c) == 1 && c->stride[0] == 1 && c->stride[1] == 1 && c->padding[0] == 0 &&
         c->padding[1] == 0;
}

/* ---- Gram matrices: gram_rows.c, gram_conv.c, spatial.c -------------------------------------------------*/

/* S += alpha sum over rows r of r r'. A row has c1 - c0 columns (add_row_grams) or taps (c1 - c0) columns (add_conv_grams), and
 * one more with has_ones. add_spatial_grams: S [taps, taps] += alpha R, where R[k, l] is the sum of x[s] x[s + (l - k) dilation]
 * over samples, channels [c0, c1) and pixels s; pixels outside the image are 0. S64, in ng_sym order, replaces S.a: then every implementation adds in double, as `ref`. */
typedef struct ng_gram {
  ng_view x;
  int64_t samples; /* the first `samples` samples are used */
  int64_t c0, c1;  /* columns [c0, c1) are used */
  bool has_ones;   /* append a column of ones */
  int reduce;      /* a row is 0: a position; 1: the mean of a sample over positions; 2: the sum */
  ng_conv conv;    /* add_conv_grams: the rows are zero-padded patches */
  double alpha;    /* rounded to f32 for S.a */
  ng_sym S;
  double *S64;
} ng_gram;

/* Return how many floats of scratch add_row_grams needs for at most `columns` columns. */
int64_t ng_gram_rows_scratch(int64_t columns);
/* Return how many floats of scratch add_conv_grams needs for inputs of at most `in` channels, and add_row_grams for output
 * gradients of at most `out` channels. */
int64_t ng_gram_conv_scratch(const ng_queue *q, const ng_conv *conv, int64_t in, int64_t out);
/* Return how many floats of scratch add_spatial_grams needs. */
int64_t ng_spatial_scratch(const ng_queue *q, const ng_conv *conv);

/* ---- squared gradients of samples: sample_squares.c ---------------------------------------------*/

/* V += alpha sum over samples n of (Q_G (sum over positions s of g_ns a_ns') Q_A')^2, element by element. Rows g_ns have columns
 * [g0, g1) of g; rows a_ns are the rows of ng_gram of columns [a0, a1) of x, with is_conv patches. V [q, p]. */
typedef struct ng_sample_squares {
  ng_view x, g;
  int64_t samples; /* the first `samples` samples are used */
  int64_t positions;
  int64_t a0, a1, g0, g1;
  bool has_ones, is_conv;
  ng_conv conv;
  const float *QA, *QG; /* [p, p], [q, q]; row i is vector i */
  double alpha;         /* rounded to f32 */
  float *V;             /* element (i, j) is V[i ld + j] */
  int64_t ld;
} ng_sample_squares;

/* Return how many floats of scratch add_sample_squares needs for at most q columns of g and p of rows a; conv: with patches,
 * otherwise NULL. */
int64_t ng_sample_squares_scratch(int64_t q, int64_t p, const ng_conv *conv);

/* ---- sums: box.c, squares.c, accumulate.c ----------------------------------------------------*/

/* out [channels][kernel offsets]: for channel c and offset (i, k), the sum over the first `samples` samples and all
 * output positions (u, v) of pixel (u stride + i dilation - padding, v stride + k dilation - padding). Pixels outside
 * the image are 0. out[0] is NaN if an input is not finite. */
typedef struct ng_box {
  ng_view x;
  int64_t samples;
  ng_conv conv;
  double *out;
} ng_box;

/* Return how many doubles of scratch sum_patches needs. If c is linear, the result does not depend on the positions. */
int64_t ng_box_scratch(const ng_queue *q, const ng_conv *c);

/* out[c] = sum of the squares of column c over the rows of ng_gram with the same `samples` and `reduce`. */
typedef struct ng_squares {
  ng_view x;
  int64_t samples;
  int reduce;
  double *out;
} ng_squares;

/* accumulate.c: count[v] <- how often token v occurs in the first `samples` samples; NG_NO_TOKEN is not counted. If a token
 * of any sample is invalid, count[0] <- NaN, and of the first invalid token count[vocabulary] <- the index (sample * positions +
 * position), count[vocabulary + 1] <- the bits of the token, because a double rounds numbers above 2^53. */
typedef struct ng_tokens {
  ng_view x; /* token numbers: i32 or i64, one column */
  int64_t samples, vocabulary;
  double *count; /* [vocabulary + 2]; the last two: see above */
} ng_tokens;

static inline int64_t ng_token_at(const ng_view *v, int64_t i) {
  const void *x = ng_view_at(v, i / v->positions, i % v->positions, 0);
  return v->dtype == NG_I32 ? *(const int32_t *)x : *(const int64_t *)x;
}

/* accumulate.c: S[i stride] <- old S[i stride] + fresh x[i] for i < n, + rest for n <= i < count; in double, then rounded
 * to the dtype. If x[0] is NaN, S does not change; with adds_nan, S[0] becomes NaN and the rest of S is undefined. */
typedef struct ng_accumulation {
  const double *x;
  int64_t n, count, stride;
  void *S;
  ng_dtype dtype; /* f32 or f64 */
  double old, fresh, rest;
  bool adds_nan;
} ng_accumulation;

/* ---- norm layers: norm_sums.c, norm_products.c -----------------------------------------------*/

typedef struct ng_norm_layer {
  ng_norm_kind kind;
  ng_norm_input input;
  double eps;
  int64_t channels, groups;
  /* the layer has the parameter gamma; the layer has the parameter beta */
  bool has_gamma, has_beta;
} ng_norm_layer;

/* The gradient q_i = [dgamma_i; dbeta_i] of gamma and beta of one sample, of a batch, layer or group norm. With h the
 * normalised input and g the output gradient of sample i at position t and channel c,
 *
 *     dgamma_ic = sum_t g_itc h_itc      dbeta_ic = sum_t g_itc
 *
 * h is the observed input, or (x - mean) / sqrt(var + eps). The mean and the biased variance belong to a channel
 * over the whole micro-batch (batch norm), of all channels of one position (layer norm), or of a group of channels of
 * one sample (group norm). q_i has `width` numbers: only parameters that exist. */
typedef struct ng_norm_sum {
  ng_norm_layer layer;
  ng_view x, g;    /* input and output gradient; without gamma x is not read */
  int64_t samples; /* the first `samples` samples are used */
  /* sum_norm_squares: X [3 channels]. X[0 .. width) = sum of q_i^2; with `products` the last `channels` numbers are the sum
   * of dgamma_i dbeta_i. X[0] is NaN if a number is not finite in f32. */
  bool products;
  double *X;
  /* add_norm_grams: S += alpha sum of q_i q_i', of order `width`, in ng_sym order; x and g are finite. */
  double alpha;
  void *S;
  ng_dtype dtype; /* dtype of S: f32 or f64 */
} ng_norm_sum;

static inline int64_t ng_norm_width(const ng_norm_layer *k) {
  return k->channels * ((k->has_gamma ? 1 : 0) + (k->has_beta ? 1 : 0));
}
int64_t ng_norm_sums_scratch(const ng_queue *q, const ng_norm_layer *k); /* bytes */

#endif
