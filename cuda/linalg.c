/* linalg.c: the linear algebra of the backend: kernels for vectors, rows and sums; BLAS and solvers (blas.h) for matrices.
 * The iteration of Muon runs on the host (ON_HOST) in memory that host and device share. */
#include "device_entries.h"
#include "linalg/packed.h"
#include "linalg/vector.h"

typedef int64_t i64;

/* ---- element by element ----------------------------------------------------------------------*/

void ng_device_convert(ng_queue *q, i64 n, const void *from, ng_dtype t, void *to, ng_dtype to_t) {
  ng_device *d = q->device;
  int32_t a = (int32_t)t, b = (int32_t)to_t;
  LAUNCH(d, dv_convert, blocks_of(n, DV_TILE), &n, &from, &a, &to, &b);
}
/* A block for each row. */
static void convert_rows(ng_queue *q, i64 rows, i64 cols, const void *x, ng_dtype t, i64 ldx,
                         void *to, ng_dtype to_t, i64 ldt) {
  ng_device *d = q->device;
  int32_t a = (int32_t)t, b = (int32_t)to_t;
  LAUNCH(d, dv_convert_rows, rows, &cols, &x, &a, &ldx, &to, &b, &ldt);
}
void ng_device_unpack(ng_queue *q, i64 n, const void *S, ng_dtype t, void *full, ng_dtype to_t,
                      i64 ld) {
  ng_device *d = q->device;
  int32_t a = (int32_t)t, b = (int32_t)to_t;
  LAUNCH(d, dv_unpack, n, &n, &S, &a, &full, &b, &ld);
}
static void widen(ng_queue *q, i64 n, const void *x, ng_dtype t, float *to) {
  ng_device_convert(q, n, x, t, to, NG_F32);
}
static void narrow(ng_queue *q, i64 n, const float *x, void *to, ng_dtype t) {
  ng_device_convert(q, n, x, NG_F32, to, t);
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
  ng_device_unpack(q, n, S, t, full, t, ld);
}
static void copy_rows(ng_queue *q, i64 rows, i64 cols, const float *x, i64 ldx, float *to,
                      i64 ldt) {
  convert_rows(q, rows, cols, x, NG_F32, ldx, to, NG_F32, ldt);
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

/* ---- products --------------------------------------------------------------------------------*/

/* Call a function of blas.h, unless an entry has failed. */
#define CALL(q, function, ...)                                                                     \
  do {                                                                                             \
    ng_device *d_ = (q)->device;                                                                   \
    if (d_->error[0] == '\0') ng_stage_keep_error(d_, function(d_->blas, __VA_ARGS__));            \
  } while (0)

static void blas_gemm(ng_queue *q, ng_dtype t, char ta, char tb, i64 m, i64 n, i64 k, double alpha,
                      const void *A, i64 lda, const void *B, i64 ldb, double beta, void *C,
                      i64 ldc) {
  CALL(q, dv_gemm, t == NG_F64, ta, tb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}
static void blas_syrk(ng_queue *q, ng_dtype t, char uplo, char trans, i64 n, i64 k, double alpha,
                      const void *A, i64 lda, void *C, i64 ldc) {
  CALL(q, dv_syrk, t == NG_F64, uplo, trans, n, k, alpha, A, lda, C, ldc);
}
static void blas_symm(ng_queue *q, ng_dtype t, char side, char uplo, i64 m, i64 n, const void *A,
                      i64 lda, const void *B, i64 ldb, void *C, i64 ldc) {
  CALL(q, dv_symm, t == NG_F64, side, uplo, m, n, A, lda, B, ldb, C, ldc);
}
static void blas_trsm(ng_queue *q, ng_dtype t, char side, char uplo, char trans, i64 m, i64 n,
                      double alpha, const void *A, i64 lda, void *B, i64 ldb) {
  CALL(q, dv_trsm, t == NG_F64, side, uplo, trans, m, n, alpha, A, lda, B, ldb);
}
static const ng_blas blas = {
    .gemm = blas_gemm, .syrk = blas_syrk, .symm = blas_symm, .trsm = blas_trsm};

/* C' = alpha op(B)' op(A)' + beta C'. */
static void gemm(ng_queue *q, ng_dtype t, bool ta, bool tb, i64 m, i64 n, i64 k, double alpha,
                 const void *A, i64 lda, const void *B, i64 ldb, double beta, void *C, i64 ldc) {
  blas_gemm(q, t, tb ? 'T' : 'N', ta ? 'T' : 'N', n, m, k, alpha, B, ldb, A, lda, beta, C, ldc);
}
static void add_gram(ng_queue *q, ng_sym S, i64 r0, i64 m, const float *X, i64 rows, i64 ldx,
                     float alpha) {
  ng_packed_add_gram(&blas, q, S, r0, m, X, rows, ldx, alpha);
}
static void mul_right(ng_queue *q, ng_sym S, i64 m, const float *B, i64 ldb, float *C, i64 ldc) {
  for (int32_t half = 0; half < 2; half++)
    ng_packed_mul_right(&blas, q, S, half, m, B, ldb, C, ldc);
}
static void mul_left(ng_queue *q, ng_sym S, i64 m, const float *B, i64 ldb, float *C, i64 ldc) {
  for (int32_t half = 0; half < 2; half++)
    ng_packed_mul_left(&blas, q, S, half, m, B, ldb, C, ldc);
}

/* ---- Cholesky --------------------------------------------------------------------------------*/

/* Return work of a solver for matrices of order n, or NULL after an error. */
static void *solver_work(ng_queue *q, dv_solver what, ng_dtype t, i64 n, i64 *bytes) {
  CALL(q, dv_work_bytes, what, t == NG_F64, n, n, bytes);
  return q->device->error[0] == '\0' ? ng_stage_scratch(q->device, *bytes + 64, 1) : NULL;
}

typedef void packed_solver(ng_queue *q, i64 n, void *S, ng_dtype t, int32_t *infos);

/* T1 = L1 L1';  R <- R L1'^-1;  T2 - R R' = L2 L2'. */
static void factor_blocks(ng_queue *q, i64 n, void *S, ng_dtype t, int32_t *infos) {
  const ng_sym_blocks s = ng_sym_blocks_of(n, S, t);
  i64 bytes = 0;
  void *work = solver_work(q, DV_POTRF, t, s.h, &bytes);
  CALL(q, dv_potrf, t == NG_F64, 'L', s.h, s.t1, s.ld, work, bytes, &infos[0]);
  if (s.g == 0) return;
  blas_trsm(q, t, 'R', 'L', 'T', s.g, s.h, 1.0, s.t1, s.ld, s.r, s.ld);
  blas_syrk(q, t, 'U', 'N', s.g, s.h, -1.0, s.r, s.ld, s.t2, s.ld);
  CALL(q, dv_potrf, t == NG_F64, 'U', s.g, s.t2, s.ld, work, bytes, &infos[1]);
}

/* With M = -L2^-1 R L1^-1:  T1 <- (L1 L1')^-1 + M'M;  R <- L2'^-1 M;  T2 <- (L2 L2')^-1. */
static void invert_blocks(ng_queue *q, i64 n, void *S, ng_dtype t, int32_t *infos) {
  const ng_sym_blocks s = ng_sym_blocks_of(n, S, t);
  i64 bytes = 0;
  void *work = solver_work(q, DV_POTRI, t, s.h, &bytes);
  if (s.g > 0) {
    blas_trsm(q, t, 'R', 'L', 'N', s.g, s.h, -1.0, s.t1, s.ld, s.r, s.ld);
    blas_trsm(q, t, 'L', 'U', 'T', s.g, s.h, 1.0, s.t2, s.ld, s.r, s.ld);
  }
  CALL(q, dv_potri, t == NG_F64, 'L', s.h, s.t1, s.ld, work, bytes, &infos[0]);
  if (s.g == 0) return;
  blas_syrk(q, t, 'L', 'T', s.h, s.g, 1.0, s.r, s.ld, s.t1, s.ld);
  blas_trsm(q, t, 'L', 'U', 'N', s.g, s.h, 1.0, s.t2, s.ld, s.r, s.ld);
  CALL(q, dv_potri, t == NG_F64, 'U', s.g, s.t2, s.ld, work, bytes, &infos[1]);
}

/* Solve in place; small matrices in double (NG_SMALL_SOLVE). */
static void solve_packed(ng_queue *q, packed_solver *run, i64 n, void *S, ng_dtype t, int *info) {
  ng_device *d = q->device;
  i64 count = ng_sym_count(n), half = (n + 1) / 2;
  if (!ng_stage_begin(d)) return;
  int32_t *infos = ng_stage_scratch(d, 2, sizeof *infos);
  const bool widens = t == NG_F32 && n <= NG_SMALL_SOLVE;
  void *wide = widens ? ng_stage_scratch(d, count, sizeof(double)) : S;
  if (infos == NULL || wide == NULL) return;
  ng_stage_zero(d, infos, 2 * sizeof *infos);
  if (widens) ng_device_convert(q, count, S, NG_F32, wide, NG_F64);
  run(q, n, wide, widens ? NG_F64 : t, infos);
  if (widens) ng_device_convert(q, count, wide, NG_F64, S, NG_F32);
  LAUNCH(d, dv_join_infos, 1, &infos, &half, &info);
}
static void factor(ng_queue *q, i64 n, void *S, ng_dtype t, int *info) {
  solve_packed(q, factor_blocks, n, S, t, info);
}
static void invert(ng_queue *q, i64 n, void *L, ng_dtype t, int *info) {
  solve_packed(q, invert_blocks, n, L, t, info);
}

/* B [rows, cols] <- B (L L')^-1, or with `left` (L L')^-1 B; small matrices in double. */
static void solve_lines(ng_queue *q, bool left, i64 n, const void *L, ng_dtype t, i64 m, void *B,
                        i64 ldb) {
  ng_device *d = q->device;
  const bool widens = t == NG_F32 && n <= NG_SMALL_SOLVE;
  const i64 rows = left ? n : m, cols = left ? m : n;
  const void *factor_of = L;
  void *lines = B;
  i64 ld = ldb;
  if (!ng_stage_begin(d)) return;
  if (widens) {
    void *wide = ng_stage_scratch(d, ng_sym_count(n), sizeof(double));
    lines = ng_stage_scratch(d, rows * cols, sizeof(double));
    if (wide == NULL || lines == NULL) return;
    ng_device_convert(q, ng_sym_count(n), L, NG_F32, wide, NG_F64);
    convert_rows(q, rows, cols, B, NG_F32, ldb, lines, NG_F64, cols);
    factor_of = wide;
    ld = cols;
  }
  if (left) ng_packed_solve_left(&blas, q, n, factor_of, widens ? NG_F64 : t, m, lines, ld);
  if (!left) ng_packed_solve_right(&blas, q, n, factor_of, widens ? NG_F64 : t, m, lines, ld);
  if (widens) convert_rows(q, rows, cols, lines, NG_F64, cols, B, NG_F32, ldb);
}
static void solve_right(ng_queue *q, i64 n, const void *L, ng_dtype t, i64 m, void *B, i64 ldb) {
  solve_lines(q, false, n, L, t, m, B, ldb);
}
static void solve_left(ng_queue *q, ng_sym L, i64 m, float *B, i64 ldb) {
  solve_lines(q, true, L.n, L.a, NG_F32, m, B, ldb);
}

/* ---- eigen, QR -------------------------------------------------------------------------------*/

/* Columns of the solver are rows of V. */
static int64_t eigen_work(const ng_queue *q, i64 n, ng_dtype t) {
  i64 bytes = 0;
  CALL(q, dv_work_bytes, DV_SYEVD, t == NG_F64, n, n, &bytes);
  return bytes;
}
static void eigen(ng_queue *q, i64 n, void *V, ng_dtype t, void *w, void *work, int *info) {
  CALL(q, dv_syevd, t == NG_F64, n, V, w, work, eigen_work(q, n, t), info);
}

/* `work` has tau, padded to 64 bytes, then the work of the solver. */
static int64_t tau_bytes(i64 n) { return (n * (i64)sizeof(float) + 63) / 64 * 64; }
static int64_t qr_work(const ng_queue *q, i64 m, i64 n) {
  i64 bytes = 0;
  CALL(q, dv_work_bytes, DV_QR, false, m, n, &bytes);
  return tau_bytes(n) + bytes;
}
static void qr(ng_queue *q, i64 m, i64 n, float *X, i64 ldx, void *work, int *info) {
  CALL(q, dv_qr, m, n, X, ldx, work, (char *)work + tau_bytes(n), qr_work(q, m, n) - tau_bytes(n),
       info);
}

/* ---- on the host -----------------------------------------------------------------------------*/

ON_HOST(linalg, newton_schulz, (ng_queue * q, const ng_newton_schulz *list, i64 n, float *scratch),
        (&host, list, n, scratch))

const ng_linalg_ops ng_device_linalg = {
    NG_OWN_ENTRIES,
    .add_row = add_row,
    .newton_schulz = host_newton_schulz,
    .solve = ng_device_solve,
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
