/* kernel.h: every loop over the elements of arrays, behind one table.
 *
 * In:   arrays of descriptors, which are plain structs of pointers, sizes, strides and coefficients; a queue.
 * Out:  arrays and numbers in memory that the caller names.
 * May call: linalg, core.
 *
 * Every entry of ng_kernel_ops takes the queue first and a whole array of descriptors, so that a device can run one
 * launch over all blocks of a model. The rules of the queue (linalg/linalg.h) apply: an entry may return before its
 * work is done, and the host reads results after ng_queue_wait.
 *
 * Two implementations: `ref` has plain loops in double and is the oracle; `cpu` is vectorised and threaded. Only this
 * room and linalg/ have vectorised functions (NG_CLONES) and parallel loops. The functions after the table are for
 * implementations on the host and for state files. */
#ifndef NG_KERNEL_H
#define NG_KERNEL_H

#include "core/core.h"
#include "kernel/flat.h"
#include "kernel/observed.h"
#include "linalg/linalg.h"

enum {
  NG_LINE = 512
}; /* number of elements that a loop converts at once into a buffer on its stack */

/* ---- descriptors -----------------------------------------------------------------------------*/

/* The memory layout of a parameter [rows, cols]. Row r begins at data + r row_stride; strides count elements.
 * With has_dense_rows, the elements of a row are adjacent. Otherwise a row is an array with `axes` axes of sizes `extent`
 * and strides `stride`, the outermost axis first, as in a channels-last or transposed weight. */
typedef struct ng_place {
  void *data; /* NULL: not bound */
  ng_dtype dtype;
  bool has_dense_rows;
  bool expires_after_step; /* the binding ends with the step (NG_ONE_STEP) */
  bool is_expired;         /* the binding has ended with its step, so `data` is NULL */
  int32_t axes;
  int64_t row_stride;
  int64_t extent[NG_DIMS], stride[NG_DIMS];
} ng_place;

/* Rows [row, row + rows) and columns [col, col + cols) of a parameter. Every descriptor of gradients below begins with
 * a region; element (r, c) of the descriptor is element (row + r, col + c) of the parameter. */
typedef struct ng_region {
  const ng_place *place;
  int64_t row, rows, col, cols;
} ng_region;

/* Sums over a region of a bound gradient D, in double; D[r] is row r:
 *     out[0] = sum of D[r][c]^2;   out[1] = sum of y[r] <D[r], x>
 * With t, and b[r] = y[0] bias[0][r]: t[r] = <D[r], x> + b[r];  out[1] = sum of t[r]^2;  out[2] = sum of t[r] b[r]
 * out[0] is finite if and only if all elements of D are: a square of an f32 fits a double. The square of an f64 element
 * above 1e154 overflows. */
typedef struct ng_measure {
  ng_region D;
  const float *x; /* [cols]; NULL: out[1] = 0 */
  const float *y; /* [rows]; NULL: 1 */
  double *t;      /* [rows]; NULL: none; needs x */
  ng_region bias; /* [1, rows], with t; place NULL: none */
  double *out;    /* [2]; with t [3] */
} ng_measure;

/* Copy a region of a bound gradient D to f32: to[r to_row + c to_col] = D[r][c]; with a map, to[r to_row + map[c]]. */
typedef struct ng_read {
  ng_region D;
  float *to;
  double *to_double; /* replaces `to`; NULL: `to` is used */
  int64_t to_row, to_col;
  const int32_t *map; /* [cols]; NULL: none */
  int32_t *finite;    /* set to 0 if an element is not finite, otherwise unchanged */
} ng_read;

/* How to compute a direction d from a bound gradient D and a matrix or vector u of its family:
 *     if is_stored: d[r][c] = scale u[r][c];   otherwise: d[r][c] = scale D[r][c] + k y[r] u[r][c]
 * Eva (rank one): scale = f / lambda, k = -f c / lambda, y = g, u = a with u_row = 0 (family/rankone.c). */
typedef struct ng_direction {
  ng_region D;
  double scale, k;
  bool is_stored;
  bool uses_double; /* compute d in double, because its two terms nearly cancel */
  const float *u;   /* u[r][c] is u[r u_row + c u_col], or u[r u_row + map[c]]; NULL: no u */
  int64_t u_row, u_col;
  const int32_t *map;          /* [cols] */
  const double *u_double;      /* u in double, with the same strides or map; NULL: `u` is used */
  const float *y;              /* [rows]; NULL: y_double */
  const double *y_double;      /* [rows]; both NULL: 1 */
  double largest_D, largest_u; /* upper bounds of |D[r][c]| and |u[r][c]|; 0: unknown */
  float clip_bound;            /* clip = value: d is clipped to [-bound, bound]; 0: not clipped */
  _Atomic int64_t *overflowed; /* number of elements that kept their old value */
} ng_direction;

/* Coefficients of SGD with direction d: g = d + decay w; m <- old m + take g; w <- keep w - lr m, or with nesterov
 * w <- keep w - lr (g + mu m). `take` and `old` depend on the parameter: see ng_weight_update. */
typedef struct ng_sgd_coefficients {
  double lr, mu, keep, decay;
  bool nesterov;
} ng_sgd_coefficients;

/* Coefficients of AdamW with direction d: m <- b1 m + n1 d; v <- b2 v + n2 d^2; w <- keep w - step m / (root sqrt(v) +
 * eps). `step` and `root` depend on the parameter: see ng_weight_update. */
typedef struct ng_adamw_coefficients {
  double b1, b2, n1, n2, keep, eps;
} ng_adamw_coefficients;

/* The weight and moments that one ng_direction updates. An f64 weight has f64 moments and is updated in double; the
 * moments of other weights are f32, and the coefficients are rounded to f32. */
typedef struct ng_weight_update {
  const ng_place *weight; /* bound weight, with the rows and columns of the gradient's place */
  void *m, *v;            /* [rows, cols] momentum or first moment; second moment */
  int64_t cols;           /* columns of the parameter */
  const ng_sgd_coefficients *sgd;     /* NULL: AdamW */
  const ng_adamw_coefficients *adamw; /* NULL: SGD */
  /* coefficients that depend on the parameter: SGD: take, old; AdamW: step, root */
  const double *coefficients;
} ng_weight_update;

/* The ratios r = |d / (D + 1e-8)| of all elements of a list of directions: histogram, extremes, sums (step/quantify.c).
 * The key of r is the bits of the f32 of 2^-30 r; its leading bits are its bin. If bins = 0, count the keys of each of
 * NG_RATIO_BINS bins and set `extreme` and `out`. Otherwise count only the keys in the `bins` bins listed in `bin`, each
 * divided into NG_RATIO_FINE_BINS fine bins. */
enum {
  NG_RATIO_DROPPED_BITS = 17,
  NG_RATIO_BINS = 0x7F800000 >> NG_RATIO_DROPPED_BITS,
  NG_RATIO_FINE_BINS = 1 << 11
};
typedef struct ng_ratios {
  const uint32_t *bin; /* [bins], ascending */
  int32_t bins;
  int64_t *count;  /* [threads x NG_RATIO_BINS]; the result is in the counts of the first thread */
  double *extreme; /* [threads x 2] smallest and largest r; the result is in the first two */
  double *sum;     /* [tiles x 4] sums of r, d D, D^2, d^2 */
  double *out;     /* [4] the sums of all tiles */
} ng_ratios;

/* Copy elements of any dtype to other strides: element (i, j, ...) of `from` to element (i, j, ...) of `to`. The arrays
 * share no memory; `from` has at least one axis. */
typedef struct ng_copy {
  ng_strided from;
  void *to;
  int64_t to_stride[NG_DIMS];
} ng_copy;

/* Add |a - b|^2 and |b|^2 to out[0] and out[1], element by element in double. Some elements count twice, because they
 * stand for two equal elements of a symmetric matrix:
 *   order > 0     a and b are matrices in ng_sym order; elements off the diagonal count twice
 *   diagonal > 0  a and b are vectors; all elements but the first `diagonal` ones count twice */
typedef struct ng_change {
  const void *a, *b;
  ng_dtype dtype; /* f64, f32, bf16, f16 */
  int64_t n, order, diagonal;
  double *out;
} ng_change;

/* Convert n f32 at x to 16-bit numbers of `dtype` in the first half of the memory of x; if `widens`, convert them back. */
typedef struct ng_wire_conversion {
  void *x;
  int64_t n;
  ng_dtype dtype;
  bool widens;
} ng_wire_conversion;

/* ---- a step of Eva without a wait (step/fused.c) ----------------------------------------------*/

/* A mean vector: its average over steps and its sum of this step, f32. */
typedef struct ng_eva_mean {
  float *average, *sum;
  int64_t n;
  bool starts_first; /* the first sum replaces the average */
  int32_t *started;  /* set to 1 by the first fold */
} ng_eva_mean;

/* SGD: lr to nesterov; AdamW: lr, keep, b1 to eps (coefficients.c). */
typedef struct ng_eva_group {
  double lr, dampening, mu, keep, decay, nesterov, b1, b2, n1, n2, eps;
} ng_eva_group;

enum { NG_EVA_COUNTED = 1, NG_EVA_SKIPPED, NG_EVA_REFUSED };
/* The numbers of one step. The device reads them when the step runs, then writes `factor` and `report`. */
typedef struct ng_eva_numbers {
  double bound;             /* clip factor = sqrt(bound / sum of weight <D, PD>), at most 1 */
  double *damping, *weight; /* [layers] */
  double *fold; /* [means][2] weights of the old average and of the sum; {1, 0}: no fold */
  ng_eva_group *group;
  double factor; /* the clip factor */
  int64_t
      report; /* 0: not done yet; NG_EVA_ value; NG_EVA_REFUSED + i: skipped, the sum of mean i is not finite */
} ng_eva_numbers;

/* The lists of all steps. Each of the first `curved` layers has the mean vectors 2 i and 2 i + 1, a and g. The other layers are
 * single parameters without curvature. */
typedef struct ng_eva_lists {
  const ng_eva_mean *mean;
  const ng_measure *measure;
  const ng_direction *direction;
  const ng_weight_update *update;
  const int32_t *layer_of, *group_of; /* [parameters] in ascending order of layers */
  int64_t curved, layers, parameters;
  int64_t *updates; /* number of counted updates, which the device increments */
  void *memory;     /* of the backend: eva_bytes bytes */
  int64_t tiles;    /* set by upload_eva */
} ng_eva_lists;

/* ---- the table -------------------------------------------------------------------------------*/

typedef struct ng_kernel_ops {
  /* Return the number of tiles of a region, for scratch: three entries store the sums of tiles. */
  int64_t (*count_tiles)(int64_t rows, int64_t cols);
  /* scan.c: out[i] <- the largest |element| of array a[i] in f32; Inf if an element is not finite in f32. */
  void (*find_largest)(ng_queue *q, const ng_strided *a, int64_t n, double *out);
  /* measure.c: the sums of every descriptor. parts: scratch, 2 numbers for each tile. */
  void (*measure_gradients)(ng_queue *q, const ng_measure *m, int64_t n, double *parts);
  /* measure.c: out[i] <- 1 if all elements of region i are finite, else 0. */
  void (*check_finite)(ng_queue *q, const ng_region *a, int64_t n, int32_t *out);
  /* measure.c: copy gradients to f32 or double, see ng_read. */
  void (*read_gradients)(ng_queue *q, const ng_read *r, int64_t n);
  /* emit.c: write each direction over its gradient; an element that does not fit its dtype keeps the gradient. */
  void (*write_directions)(ng_queue *q, const ng_direction *e, int64_t n);
  /* emit.c: to[i], dense [rows, cols], <- direction i. */
  void (*store_directions)(ng_queue *q, const ng_direction *e, float *const *to, int64_t n);
  /* emit.c: out[i] <- |direction i|^2; parts: scratch, 1 number for each tile. */
  void (*sum_norms)(ng_queue *q, const ng_direction *e, int64_t n, double *parts, double *out);
  /* update.c: update weight and moments s[i] by direction e[i]; the gradient stays. An element whose new weight,
   * momentum or moment is not finite keeps the old value. */
  void (*update_weights)(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n);
  /* ratios.c: the ratios of all directions. If s is not NULL, d is the direction of update s[i]: minus the weight after
   * the update with lr = 1 and keep = 0. */
  void (*count_ratios)(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,
                       const ng_ratios *r);
  /* Sums over observed arrays (observed.h); scratch is large enough for the largest descriptor of the list.
   * gram_rows.c, gram_conv.c: add Gram matrices of rows, or of patches of images (add_conv_grams). spatial.c: add correlations
   * between kernel positions. sample_squares.c: squared gradients of samples in a basis. box.c: sums of patches.
   * squares.c: sums of squares of columns. accumulate.c: counts of tokens; add vectors to sums. */
  void (*add_row_grams)(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);
  void (*add_conv_grams)(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);
  void (*add_spatial_grams)(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);
  void (*add_sample_squares)(ng_queue *q, const ng_sample_squares *s, int64_t n, float *scratch);
  void (*sum_patches)(ng_queue *q, const ng_box *b, int64_t n, double *scratch);
  void (*sum_squares)(ng_queue *q, const ng_squares *s, int64_t n);
  void (*count_tokens)(ng_queue *q, const ng_tokens *t, int64_t n);
  void (*accumulate)(ng_queue *q, const ng_accumulation *a, int64_t n);
  /* norm_sums.c: sums over samples of the squares and products of the gradients of gamma and beta of norm layers. */
  void (*sum_norm_squares)(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);
  /* norm_sums.c: add the Gram matrices of these gradients. */
  void (*add_norm_grams)(ng_queue *q, const ng_norm_sum *k, int64_t n, void *scratch);
  /* flat.c: passes over vectors of windows (ng_flat_op). */
  void (*run_flat_passes)(ng_queue *q, const ng_flat_pass *p, int64_t n);
  /* rows.c: products of the rows of windows with a vector; combinations of rows (ng_rows). */
  void (*multiply_rows)(ng_queue *q, const ng_rows *G, int64_t n);
  void (*combine_rows)(ng_queue *q, const ng_rows *G, int64_t n);
  /* largest.c (ng_largest): top-k selection of one rank (select), or of ranks jointly (count, then collect).
   * count: [threads, NG_LARGEST_COUNTS] scratch. */
  void (*select_largest)(ng_queue *q, const ng_largest *v, int64_t n, int32_t *count);
  void (*count_largest)(ng_queue *q, const ng_largest *v, int64_t n);
  void (*collect_largest)(ng_queue *q, const ng_largest *v, int64_t n);
  void (*store_largest)(ng_queue *q, const ng_largest *v, int64_t n);
  void (*pack_largest)(ng_queue *q, const ng_largest_pack *p, int64_t n);
  /* copy.c: copies of arrays, for shards. */
  void (*copy_arrays)(ng_queue *q, const ng_copy *c, int64_t n);
  /* copy.c: f32 sums converted to 16 bits while they travel between ranks, and back. */
  void (*convert_for_wire)(ng_queue *q, const ng_wire_conversion *w, int64_t n);
  /* change.c: add how much averages changed. */
  void (*add_changes)(ng_queue *q, const ng_change *c, int64_t n);
  /* low_rank.c: one power iteration for each parameter. */
  void (*iterate_low_rank)(ng_queue *q, const ng_low_rank *w, int64_t n);
  /* A step of Eva with a fused update; NULL: the backend has none. eva_bytes: return the bytes of `memory`. upload_eva: copy the
   * lists, which are unchanged until the next call, to the device. step_eva: run one step. */
  size_t (*eva_bytes)(int64_t parameters, int64_t layers, int64_t tiles);
  void (*upload_eva)(ng_queue *q, ng_eva_lists *l);
  void (*step_eva)(ng_queue *q, const ng_eva_lists *l, ng_eva_numbers *now);
} ng_kernel_ops;

/* Return the table for one call: ng_kernels(q)->find_largest(q, ...), and count the call as pending, as ng_linalg does. */
static inline const ng_kernel_ops *ng_kernels(ng_queue *q) {
  q->pending++;
  return q->backend->kernels;
}

/* ---- backend.c ---------------------------------------------------------------------------------*/

extern const ng_backend ng_backend_ref;
#if defined(NG_HAVE_BLAS)
extern const ng_backend ng_backend_cpu;
#endif
/* The backends of the library, the default first. NULL: there is no backend i, or of this name. */
const ng_backend *ng_backend_at(int32_t i);
/* Search `more` (ended by NULL; may be NULL) first. name NULL: the default. */
const ng_backend *ng_backend_find(const ng_backend *const *more, const char *name);
/* open_cuda.c: *out <- the backend of the library natgrad_cuda, over the default backend. path NULL: the system finds the library. */
ng_status ng_backend_load(const char *path, char *message, size_t size, ng_backend *out);

/* ---- rows of arrays in any layout --------------------------------------------------------------*/

/* place.c: read columns [col, col + n) of a row as f32; write them; return whether they are all finite. */
void ng_place_read(const ng_place *v, int64_t row, int64_t col, int64_t n, float *out);
void ng_place_write(const ng_place *v, int64_t row, int64_t col, int64_t n, const float *x);
bool ng_place_finite(const ng_place *v, int64_t row, int64_t col, int64_t n);
/* Read or write n elements as double: without rounding if the place is f64. Only f64 places are written. */
void ng_place_read_double(const ng_place *v, int64_t row, int64_t col, int64_t n, double *out);
void ng_place_write_double(const ng_place *v, int64_t row, int64_t col, int64_t n, const double *x);
/* Return how many columns to read or write at once: at most NG_LINE, and only whole channels of a channels-last weight,
 * because whole channels are transposed (place.c). */
static inline int64_t ng_place_columns(const ng_place *v) {
  const int64_t inner = v->has_dense_rows || v->axes != 2 ? 1 : v->extent[1];
  return inner > NG_LINE ? NG_LINE : NG_LINE / inner * inner;
}
/* Return the address of an element of a place with has_dense_rows. */
static inline void *ng_place_at(const ng_place *v, int64_t row, int64_t col) {
  return (char *)v->data + (row * v->row_stride + col) * ng_dtype_size(v->dtype);
}

/* transpose.c: dst[j * ldd + i] = src[i * lds + j] for i < m, j < n; lds, ldd: elements between rows of src, dst. */
void ng_transpose(const float *src, int64_t lds, int64_t m, int64_t n, float *dst, int64_t ldd);

/* ng_gather: convert n elements of dtype `t` (f32, f64, bf16, f16), `step` elements apart, to a dense f32 array.
 * ng_scatter: convert a dense f32 array to such elements. */
void ng_gather(float *out, const void *from, ng_dtype t, int64_t step, int64_t n);
void ng_scatter(void *to, ng_dtype t, int64_t step, const float *x, int64_t n);

#endif
