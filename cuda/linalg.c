/* linalg.c: the linear algebra of the backend: kernels for vectors, rows and sums. Products, factors and eigenproblems run on
 * the host (ON_HOST) in memory that host and device share. */
#include "device_entries.h"

typedef int64_t i64;

/* ---- element by element ----------------------------------------------------------------------*/

static void convert(ng_queue *q, i64 n, const void *from, ng_dtype t, void *to, ng_dtype to_t) {
  ng_device *d = q->device;
  int32_t a = (int32_t)t, b = (int32_t)to_t;
  LAUNCH(d, dv_convert, blocks_of(n, DV_TILE), &n, &from, &a, &to, &b);
}
static void widen(ng_queue *q, i64 n, const void *x, ng_dtype t, float *to) {
  convert(q, n, x, t, to, NG_F32);
}
static void narrow(ng_queue *q, i64 n, const float *x, void *to, ng_dtype t) {
  convert(q, n, x, NG_F32, to, t);
}
static void scale(ng_queue *q, i64 n, void *x, ng_dtype t, double by) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t;
  LAUNCH(d, dv_scale, blocks_of(n, DV_TILE), &n, &x, &dtype, &by);
}
static void fold(ng_queue *q, i64 n, void *F, ng_dtype t, float *S, float keep, float c) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t;
  LAUNCH(d, dv_fold, blocks_of(n, DV_TILE), &n, &F, &dtype, &S, &keep, &c);
}
static void fold_wide(ng_queue *q, i64 n, void *F, void *S, ng_dtype t, double keep, double c) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t;
  LAUNCH(d, dv_fold_wide, blocks_of(n, DV_TILE), &n, &F, &S, &dtype, &keep, &c);
}

/* ---- scans and sums --------------------------------------------------------------------------*/

static void check_finite(ng_queue *q, i64 n, const void *x, ng_dtype t, int *out) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t, yes = 1;
  i64 one = 1;
  LAUNCH(d, dv_fill, 1, &out, &one, &yes);
  LAUNCH(d, dv_find_nonfinite, blocks_of(n, DV_TILE), &n, &x, &dtype, &out);
}
static void find_largest(ng_queue *q, i64 n, const void *x, ng_dtype t, double *out) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t;
  ng_stage_zero(d, out, sizeof *out);
  LAUNCH(d, dv_find_largest, blocks_of(n, DV_TILE), &n, &x, &dtype, &out);
}
static void trace(ng_queue *q, i64 n, const void *S, ng_dtype t, bool diagonal, double *out) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t, only = diagonal;
  LAUNCH(d, dv_trace, 1, &n, &S, &dtype, &only, &out);
}
static void sum_squares(ng_queue *q, i64 rows, i64 cols, const void *X, ng_dtype t, i64 ldx,
                        double *out) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t;
  i64 n = rows * cols, blocks = blocks_of(n, DV_TILE);
  if (!ng_stage_begin(d)) return;
  double *sums = ng_stage_scratch(d, blocks, sizeof *sums);
  if (sums == NULL) return;
  LAUNCH(d, dv_square_tiles, blocks, &n, &cols, &X, &dtype, &ldx, &sums);
  LAUNCH(d, dv_add_parts, 1, &blocks, &sums, &out);
}
static void sum_row_products(ng_queue *q, i64 rows, i64 cols, const float *P, i64 ldp,
                             const float *D, i64 ldd, double *out) {
  ng_device *d = q->device;
  LAUNCH(d, dv_sum_row_products, rows, &cols, &P, &ldp, &D, &ldd, &out);
}
static void add_sums64(ng_queue *q, i64 n, const double *P, const double *D, double *total) {
  ng_device *d = q->device;
  LAUNCH(d, dv_add_products, 1, &n, &P, &D, &total);
}
static void add_rows_of_sums(ng_queue *q, i64 rows, const double *sums, double *total) {
  ng_device *d = q->device;
  LAUNCH(d, dv_add_rows_of_sums, 1, &rows, &sums, &total);
}

/* ---- symmetric storage, rows -----------------------------------------------------------------*/

static void add_row(ng_queue *q, ng_sym S, i64 r, i64 c0, i64 k, const float *v, float alpha) {
  ng_device *d = q->device;
  LAUNCH(d, dv_add_row, blocks_of(k, DV_TILE), &S.n, &S.a, &r, &c0, &k, &v, &alpha);
}
static void shift_diagonal(ng_queue *q, i64 n, void *S, ng_dtype t, bool diagonal, double by) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t, only = diagonal;
  LAUNCH(d, dv_shift_diagonal, blocks_of(n, DV_TILE), &n, &S, &dtype, &only, &by);
}
static void unpack(ng_queue *q, i64 n, const void *S, ng_dtype t, void *full, i64 ld) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t;
  LAUNCH(d, dv_unpack, n, &n, &S, &dtype, &full, &ld);
}
static void copy_rows(ng_queue *q, i64 rows, i64 cols, const float *x, i64 ldx, float *to,
                      i64 ldt) {
  ng_device *d = q->device;
  LAUNCH(d, dv_copy_rows, rows, &cols, &x, &ldx, &to, &ldt);
}
static void divide(ng_queue *q, i64 rows, i64 cols, ng_spectrum s, void *U, ng_dtype t, i64 ldu) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t;
  LAUNCH(d, dv_divide, rows, &cols, &s.g, &s.a, &s.damping_g, &s.damping_a, &s.damping_both, &U,
         &dtype, &ldu);
}
static void mul_diagonal(ng_queue *q, bool left, i64 rows, i64 cols, const void *by, ng_dtype t,
                         const void *x, void *y, i64 ld) {
  ng_device *d = q->device;
  int32_t dtype = (int32_t)t, is_left = left;
  LAUNCH(d, dv_mul_diagonal, rows, &is_left, &cols, &by, &dtype, &x, &y, &ld);
}
static void multiply_sym64(ng_queue *q, i64 n, const double *S, i64 lines, i64 within, i64 between,
                           const float *x, float *y) {
  ng_device *d = q->device;
  LAUNCH(d, dv_multiply_sym64, blocks_of(n * lines, DV_TILE), &n, &S, &lines, &within, &between, &x,
         &y);
}

/* ---- on the host -----------------------------------------------------------------------------*/

/* clang-format off */
ON_HOST(linalg, gemm, (ng_queue *q, ng_dtype t, bool ta, bool tb, i64 m, i64 n, i64 k, double alpha, const void *A, i64 lda, const void *B, i64 ldb, double beta, void *C, i64 ldc),
        (&host, t, ta, tb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc))
ON_HOST(linalg, add_gram, (ng_queue *q, ng_sym S, i64 r0, i64 m, const float *X, i64 rows, i64 ldx, float alpha), (&host, S, r0, m, X, rows, ldx, alpha))
ON_HOST(linalg, factor, (ng_queue *q, i64 n, void *S, ng_dtype t, int *info), (&host, n, S, t, info))
ON_HOST(linalg, invert, (ng_queue *q, i64 n, void *L, ng_dtype t, int *info), (&host, n, L, t, info))
ON_HOST(linalg, solve_right, (ng_queue *q, i64 n, const void *L, ng_dtype t, i64 m, void *B, i64 ldb), (&host, n, L, t, m, B, ldb))
ON_HOST(linalg, solve_left, (ng_queue *q, ng_sym L, i64 m, float *B, i64 ldb), (&host, L, m, B, ldb))
ON_HOST(linalg, mul_right, (ng_queue *q, ng_sym S, i64 m, const float *B, i64 ldb, float *C, i64 ldc), (&host, S, m, B, ldb, C, ldc))
ON_HOST(linalg, mul_left, (ng_queue *q, ng_sym S, i64 m, const float *B, i64 ldb, float *C, i64 ldc), (&host, S, m, B, ldb, C, ldc))
ON_HOST(linalg, eigen, (ng_queue *q, i64 n, void *V, ng_dtype t, void *w, void *work, int *info), (&host, n, V, t, w, work, info))
ON_HOST(linalg, qr, (ng_queue *q, i64 m, i64 n, float *X, i64 ldx, void *work, int *info), (&host, m, n, X, ldx, work, info))
ON_HOST(linalg, solve, (ng_queue *q, ng_matrix *const *list, i64 n, float *scratch), (&host, list, n, scratch))
/* clang-format on */

/* Return a queue of the host for sizes. */
static ng_queue sizes_of(const ng_queue *q) {
  ng_queue host = *q;
  host.backend = q->backend->under;
  return host;
}
static int64_t eigen_work(const ng_queue *q, i64 n, ng_dtype t) {
  const ng_queue host = sizes_of(q);
  return host.backend->linalg->eigen_work(&host, n, t);
}
static int64_t qr_work(const ng_queue *q, i64 m, i64 n) {
  const ng_queue host = sizes_of(q);
  return host.backend->linalg->qr_work(&host, m, n);
}

const ng_linalg_ops ng_device_linalg = {
    .gemm = host_gemm,
    .add_gram = host_add_gram,
    .add_row = add_row,
    .factor = host_factor,
    .invert = host_invert,
    .solve_right = host_solve_right,
    .solve_left = host_solve_left,
    .mul_right = host_mul_right,
    .mul_left = host_mul_left,
    .eigen = host_eigen,
    .eigen_work = eigen_work,
    .qr = host_qr,
    .qr_work = qr_work,
    .solve = host_solve,
    .shift_diagonal = shift_diagonal,
    .trace = trace,
    .unpack = unpack,
    .widen = widen,
    .narrow = narrow,
    .scale = scale,
    .fold = fold,
    .fold_wide = fold_wide,
    .check_finite = check_finite,
    .find_largest = find_largest,
    .copy_rows = copy_rows,
    .divide = divide,
    .sum_row_products = sum_row_products,
    .sum_squares = sum_squares,
    .add_sums64 = add_sums64,
    .add_rows_of_sums = add_rows_of_sums,
    .mul_diagonal = mul_diagonal,
    .multiply_sym64 = multiply_sym64,
};
