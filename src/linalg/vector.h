/* vector.h: entries that all implementations on the host share (vector.c).
 *
 * linalg.h fixes the order of additions in these loops, so an implementation by BLAS is not possible. `ref` and `cpu` add
 * these entries to their tables by NG_HOST_ENTRIES. Also: limits of the checks of `solve`. */
#ifndef NG_VECTOR_H
#define NG_VECTOR_H

#include <math.h>

#include "linalg/linalg.h"

void ng_host_add_row(ng_queue *q, ng_sym S, int64_t r, int64_t c0, int64_t k, const float *v,
                     float alpha);
void ng_host_shift_diagonal(ng_queue *q, int64_t n, void *S, ng_dtype t, bool diagonal, double d);
void ng_host_trace(ng_queue *q, int64_t n, const void *S, ng_dtype t, bool diagonal, double *out);
void ng_host_unpack(ng_queue *q, int64_t n, const void *S, ng_dtype t, void *full, int64_t ld);
void ng_host_widen(ng_queue *q, int64_t n, const void *x, ng_dtype t, float *to);
void ng_host_narrow(ng_queue *q, int64_t n, const float *x, void *to, ng_dtype t);
void ng_host_scale(ng_queue *q, int64_t n, void *x, ng_dtype t, double by);
void ng_host_fold(ng_queue *q, int64_t n, void *F, ng_dtype t, float *S, float keep, float c);
void ng_host_fold_wide(ng_queue *q, int64_t n, void *F, void *S, ng_dtype t, double keep, double c);
void ng_host_check_finite(ng_queue *q, int64_t n, const void *x, ng_dtype t, int *out);
void ng_host_find_largest(ng_queue *q, int64_t n, const void *x, ng_dtype t, double *out);
void ng_host_copy_rows(ng_queue *q, int64_t rows, int64_t cols, const float *x, int64_t ldx,
                       float *to, int64_t ldt);
void ng_host_divide(ng_queue *q, int64_t rows, int64_t cols, ng_spectrum s, void *U, ng_dtype t,
                    int64_t ldu);
void ng_host_sum_row_products(ng_queue *q, int64_t rows, int64_t cols, const float *P, int64_t ldp,
                              const float *D, int64_t ldd, double *out);
void ng_host_sum_squares(ng_queue *q, int64_t rows, int64_t cols, const void *X, ng_dtype t,
                         int64_t ldx, double *out);
void ng_host_add_rows_of_sums(ng_queue *q, int64_t rows, const double *sums, double *total);
void ng_host_mul_diagonal(ng_queue *q, bool left, int64_t rows, int64_t cols, const void *d,
                          ng_dtype t, const void *x, void *y, int64_t ld);
void ng_host_add_sums64(ng_queue *q, int64_t n, const double *P, const double *D, double *total);
void ng_host_multiply_sym64(ng_queue *q, int64_t n, const double *S, int64_t lines, int64_t within,
                            int64_t between, const float *x, float *y);
/* ---- the entry `solve` -----------------------------------------------------------------------*/

/* Largest accepted residual of a column of the inverse. The residual of a correct f32 inverse is about n eps times the
 * condition number, in practice at most 1e-4; above 1e-2 the preconditioned gradient PD becomes wrong. */
#define NG_RESIDUAL_MOST 1e-2

/* Rounding makes eigenvalues of a covariance of order n as low as -n eps times the largest. 1e-3 exceeds n eps up to
 * n = 16000 and is far below the negative eigenvalues of an indefinite matrix. */
#define NG_NEGATIVE_MOST 1e-3

/* Return x such that eigenvalues down to -x times the largest eigenvalue are accepted. Rounding the n entries of each
 * row to a 16-bit dtype t moves an eigenvalue by up to n half units in the last place. */
static inline double ng_negative_limit(ng_dtype t, int64_t n) {
  return t == NG_F32 || t == NG_F64 ? NG_NEGATIVE_MOST
                                    : fmin(0.5, (double)n * (t == NG_BF16 ? 0x1p-8 : 0x1p-11));
}

/* The dtype in which `solve` computes: f64 if the ladder asks for double, or if the average or the result is f64. */
static inline ng_dtype ng_dtype_of_solve(const ng_matrix *m) {
  return m->uses_double || m->average_dtype == NG_F64 || m->result_dtype == NG_F64 ? NG_F64
                                                                                   : NG_F32;
}
/* Defined in results.c: solve one matrix after the other, by the other entries of the queue's table. */
void ng_host_solve(ng_queue *q, ng_matrix *const *list, int64_t n, float *scratch);
/* Defined in small.c: as ng_host_solve, but small matrices are solved in threads and without BLAS. */
void ng_small_solve(ng_queue *q, ng_matrix *const *list, int64_t n, float *scratch);

/* newton_schulz.c: by the entries gemm and sum_squares of the queue's table, and by `square`: C [n,n] <- alpha W W' + beta C, with W
 * [n,k], or W' [k,n] if `transposed`; C is symmetric before and after. */
typedef void ng_square(ng_queue *q, bool transposed, int64_t n, int64_t k, double alpha,
                       const float *W, double beta, float *C);
void ng_host_newton_schulz(ng_queue *q, const ng_newton_schulz *list, int64_t n, float *scratch,
                           ng_square *square);

/* ---- tables ----------------------------------------------------------------------------------*/

/* NG_OWN_ENTRIES: entries for which each implementation has a static function of the same name.
 * NG_HOST_ENTRIES: entries over vectors, by the functions above. */
/* clang-format off */
#define NG_OWN_ENTRIES                                                                             \
  .gemm = gemm, .add_gram = add_gram, .factor = factor, .invert = invert,                          \
  .solve_right = solve_right, .solve_left = solve_left, .mul_right = mul_right,                    \
  .mul_left = mul_left, .eigen = eigen, .eigen_work = eigen_work, .qr = qr, .qr_work = qr_work
#define NG_HOST_ENTRIES                                                                            \
  .add_row = ng_host_add_row, .shift_diagonal = ng_host_shift_diagonal, .trace = ng_host_trace,                      \
  .unpack = ng_host_unpack, .widen = ng_host_widen, .narrow = ng_host_narrow,                      \
  .scale = ng_host_scale, .fold = ng_host_fold, .fold_wide = ng_host_fold_wide,                    \
  .check_finite = ng_host_check_finite, .find_largest = ng_host_find_largest, .copy_rows = ng_host_copy_rows,                      \
  .divide = ng_host_divide, .sum_row_products = ng_host_sum_row_products, .sum_squares = ng_host_sum_squares,                  \
  .add_rows_of_sums = ng_host_add_rows_of_sums, .mul_diagonal = ng_host_mul_diagonal, .multiply_sym64 = ng_host_multiply_sym64,      \
  .add_sums64 = ng_host_add_sums64
/* clang-format on */

#endif
