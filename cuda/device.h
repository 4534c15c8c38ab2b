/* device.h: the descriptors that kernels of a device read.
 *
 * A kernel processes a list of descriptors. first[i], for i in [0, n], is the number of thread blocks of the descriptors
 * before descriptor i. Kernels of an observation have one descriptor as an argument (NG_ARGUMENT), so that nothing is copied, and a
 * CUDA graph contains the descriptor. All pointers are addresses that the device can read and write. */
#ifndef NG_DEVICE_H
#define NG_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* DV_TILE: elements of a gradient that one block of DV_THREADS threads reads. */
enum { DV_AXES = 8, DV_THREADS = 256, DV_TILE = 4096, DV_TAPS = 9, DV_GRAM = 32, DV_SLICES = 32 };
enum { DV_F32 = 1, DV_F64, DV_F16, DV_BF16, DV_I32, DV_I64 }; /* same values as ng_dtype */

/* ng_place (kernel/kernel.h) */
typedef struct dv_place {
  char *data;
  int32_t dtype, has_dense_rows, axes;
  int64_t row_stride;
  int64_t extent[DV_AXES], stride[DV_AXES];
} dv_place;

/* ng_region. is_flat: threads may read 4 elements at once. The region is then a whole parameter, f32 without gaps, aligned
 * to 16 bytes, with fewer than 2^31 elements and a multiple of 4 columns; x or u of the descriptor is aligned, too. */
typedef struct dv_region {
  dv_place place;
  int64_t row, rows, col, cols;
  bool is_flat;
} dv_region;

/* ng_measure */
typedef struct dv_measure {
  dv_region D;
  const float *x, *y;
  double *t, *out;
  dv_region bias; /* region of the bias; used if has_bias */
  bool has_bias;
} dv_measure;

/* Stands for ng_read. If `to` is NULL, the kernel only sets `finite`. */
typedef struct dv_read {
  dv_region D;
  float *to;
  double *to_double; /* replaces `to` */
  int64_t to_row, to_col;
  const int32_t *map;
  int32_t *finite;
} dv_read;

/* ng_direction; `to` is the destination of `store`. is_rank_one: scale D + k y u, y NULL or f32, the same u in all rows, or
 * no u. */
typedef struct dv_direction {
  dv_region D;
  double scale, k;
  const float *u;
  int64_t u_row, u_col;
  const int32_t *map;
  const double *u_double, *y_double;
  const float *y;
  float *to;
  int64_t *overflowed;
  float clip_bound;
  bool is_stored, is_rank_one, uses_double;
} dv_direction;

/* The coefficients of an update of f64 weights. */
typedef struct dv_wide_update {
  double lr, mu, keep, decay, b1, b2, n1, n2, eps, coefficients[2];
} dv_wide_update;

/* ng_weight_update. is_flat: as in dv_region, with a dense momentum aligned to 16 bytes. Moments of an f64 weight are f64. */
typedef struct dv_update {
  dv_place weight;
  float *m, *v;
  dv_wide_update wide;
  int64_t cols;
  float lr, mu, keep, decay, b1, b2, n1, n2, eps;
  float coefficients[2];
  bool is_sgd, nesterov, is_flat;
} dv_update;

/* ng_strided, for `scan` */
typedef struct dv_array {
  const char *data;
  int32_t dtype, ndim;
  int64_t count;
  int64_t shape[DV_AXES], stride[DV_AXES];
  double *out;
} dv_array;

/* ng_view (kernel/observed.h) */
typedef struct dv_view {
  const char *data;
  int32_t dtype, axes;
  int64_t samples, positions, columns;
  int64_t sample_stride, position_stride, column_stride, run_length;
  int64_t extent[DV_AXES], stride[DV_AXES];
} dv_view;

/* ng_box and ng_squares; taps: number of kernel offsets */
typedef struct dv_sum {
  dv_view x;
  int64_t samples, width, height, out_height, out_width;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t taps;
  int32_t reduce;
  double *out;
} dv_sum;

/* ng_gram. A row has p numbers, of a position or (has_patches) a patch; `of`: the array, the geometry and `reduce`. */
typedef struct dv_gram {
  dv_sum of;
  int64_t c0, c1, p;
  bool has_patches, has_ones;
  float alpha;
  double wide_alpha; /* coefficient for S64, which replaces S */
  float *S;
  double *S64;
} dv_gram;

enum { DV_BATCH_NORM = 1, DV_LAYER_NORM, DV_GROUP_NORM }; /* same values as ng_norm_kind */
/* ng_norm_sum (kernel/observed.h). width: number of elements of q_i, the gradient of gamma and beta for sample i. */
typedef struct dv_norm {
  dv_view x, g;
  double eps;
  int64_t samples, channels, groups, width;
  int32_t kind;
  bool has_gamma, has_beta, products;
} dv_norm;

/* ng_ratios; extreme [2]: smallest and largest ratio */
typedef struct dv_ratios {
  const uint32_t *bin;
  int32_t bins;
  int64_t *count;
  double *extreme;
} dv_ratios;

/* ng_tokens; bad: the index of the first invalid token */
typedef struct dv_tokens {
  dv_view x;
  int64_t samples, vocabulary, none;
  double *count;
  int64_t *bad;
} dv_tokens;

/* ng_accumulation */
typedef struct dv_accumulation {
  const double *x;
  int64_t n, count, stride;
  char *S;
  int32_t dtype;
  double old, fresh, rest;
  bool adds_nan;
} dv_accumulation;

/* ng_copy; size: bytes of an element */
typedef struct dv_copy_of {
  const char *data;
  char *to;
  int32_t size, ndim;
  int64_t count;
  int64_t shape[DV_AXES], stride[DV_AXES], to_stride[DV_AXES];
} dv_copy_of;

/* ng_change; diagonal: number of elements that count once, if order = 0 */
typedef struct dv_change {
  const char *a, *b;
  int32_t dtype;
  int64_t n, order, diagonal;
  double *out;
} dv_change;

/* ng_flat_range */
typedef struct dv_flat_range {
  int64_t at, n, from, cols;
  dv_place grad, weight;
  bool is_excluded;
} dv_flat_range;

/* ng_flat_pass */
typedef struct dv_flat {
  int32_t op;
  float *to, *x, *next_s;
  const float *v, *s;
  uint8_t *mask;
  double old, take, forget, add, m, m2, eps, limit;
} dv_flat;

/* ng_matrix, and what its solve has computed (solve.c). F: the average; W: the result before it is rounded; e: eigenvalues, or L^-1; R, d:
 * the stored result. infos [2]: of the solvers; worst, column, parts [part_count]: for the checks; root [n]: see dv_solve_roots. */
typedef struct dv_solve {
  const char *F;
  char *W, *e, *R, *d;
  int64_t n, count; /* order; elements of R */
  int32_t F_dtype, W_dtype, R_dtype, d_dtype, result;
  double scale, shift, damping, floor, p, residual_most, negative_most, largest;
  char *column;
  double *parts;
  int64_t *worst, part_count;
  float *root;
  int32_t *infos, *info, *accepted;
  double *largest_eigenvalue;
} dv_solve;

/* ---- a step of Eva (eva.cu) --------------------------------------------------------------------*/

/* A running mean [n] and the sum of this step; *norm2 <- |mean|^2; *is_refused <- 1 if the sum is not finite. */
typedef struct dv_mean {
  float *mean, *sum;
  int64_t n;
  bool starts_first; /* the first sum replaces the mean */
  int32_t *started, *is_refused;
  double *norm2;
} dv_mean;

/* A layer: alpha = |a|^2, beta = |g|^2, its tiles [from, to) in the measured list. alpha NULL: a parameter without curvature. */
typedef struct dv_layer {
  const double *alpha, *beta;
  int64_t from, to;
} dv_layer;

/* ng_eva_group */
typedef struct dv_eva_group {
  double lr, dampening, mu, keep, decay, nesterov, b1, b2, n1, n2, eps;
} dv_eva_group;

enum { DV_EVA_COUNTED = 1, DV_EVA_SKIPPED, DV_EVA_REFUSED }; /* as NG_EVA_COUNTED, ... */
/* ng_eva_numbers: the numbers of one step, in memory that host and device access */
typedef struct dv_eva_numbers {
  double bound;
  double *damping, *weight;
  double *fold;
  dv_eva_group *group;
  double factor;
  int64_t report;
} dv_eva_numbers;

/* The lists of dv_eva_clip_and_scale. Parameter i has direction i, update i, and the numbers of layer layer_of[i] and group
 * group_of[i]. inner, c, is_wide [layers]: scratch. */
typedef struct dv_eva {
  const dv_layer *layer;
  int64_t layers, means, parameters;
  const double *sums;
  dv_direction *direction;
  dv_update *update;
  const int32_t *layer_of, *group_of, *is_refused;
  double *inner, *c;
  int32_t *is_wide, *skipped;
  int64_t *updates; /* number of counted updates */
} dv_eva;

#endif
