/* twosided.h: algebra of a matrix D with L on its left and R on its right: PD = f(L) D f(R).
 *
 * In: averages F of L and R, damping, D.  Out: results of F (inverse, Cholesky factor, eigenbasis), PD, descriptors of PD.
 * May call: kernel, linalg, core. This room knows no block and no statistic.
 *
 * D [groups * rows, cols] is row-major. L and R are block-diagonal: each is a list of matrices, group after group. A list
 * has one form: symmetric, diagonal, or absent (the identity, one matrix for each group). */
#ifndef NG_TWOSIDED_H
#define NG_TWOSIDED_H

#include "kernel/kernel.h"

typedef struct ng_twosided {
  int64_t groups, rows, cols;      /* number of groups; rows of one group; columns */
  ng_matrix *left, *right;         /* L multiplies rows, R multiplies columns */
  int32_t left_count, right_count; /* number of matrices of one group on each side */
  ng_spectrum
      *damping;   /* eigen: damping_g (of L), damping_a (of R) and damping_both of each group */
  bool is_good;   /* all results passed their checks; if false, PD = D (or 0 with `copy`) */
  bool is_double; /* D, PD and all results are f64; inverse, eigen */
} ng_twosided;

/* Return the number of elements of m->R. */
static inline int64_t ng_matrix_count(const ng_matrix *m) {
  if (m->form != NG_FORM_SYMMETRIC) return 0;
  return m->result == NG_RESULT_EIGEN ? m->n * m->n : ng_sym_count(m->n);
}

/* ---- solve.c ---------------------------------------------------------------------------------*/

/* Compute m->finite and m->trace of F; read both after a wait. */
void ng_matrix_measure(ng_queue *q, ng_matrix *m);
/* After ng_linalg_ops.solve with shift, on and floor of m, and a wait: return rung 0, or try the other rungs and return
 * the first that succeeds. scratch: ng_matrix_scratch floats. */
int32_t ng_matrix_retry(ng_queue *q, ng_matrix *m, float *scratch);
int64_t ng_matrix_scratch(const ng_queue *q, const ng_matrix *m);
/* Refresh an eigenbasis by one orthogonal iteration. Sort the vectors q_i of R by d_i = q_i' F q_i, the largest first; then
 * R <- Q' of the QR of F Q, d <- the sorted d_i, order[i] <- the old index of vector i. Return false, with R and d
 * unchanged, if the result is not finite. */
bool ng_matrix_refresh(ng_queue *q, ng_matrix *m, int32_t *order, float *scratch);
/* As ng_matrix_refresh of F + shift I, but sort the vectors after the QR, the smallest q_i' F q_i first; d is not set. */
bool ng_matrix_refresh_ascending(ng_queue *q, ng_matrix *m, double shift, float *scratch);
/* Enqueue one orthogonal iteration without sorting: R <- Q' of the QR of (F + shift I) V, where the rows of `from` [n, n] are
 * the columns of V. So vector i stays vector i. The shift is the weight of the old vectors where F is rank-deficient. F:
 * finite, f32, bf16 or f16; R: f32. After a wait R is valid if m->info = 0 and m->finite = 1. */
void ng_matrix_iterate(ng_queue *q, ng_matrix *m, const float *from, double shift, float *scratch);

/* ---- apply.c ---------------------------------------------------------------------------------*/

/* out <- PD of rows [row, row + count) of D; D and out begin at row `row`. A range of rows requires one
 * group and one matrix on the left, diagonal or absent. D, out, scratch: f32, or f64 with is_double; ng_twosided_scratch
 * returns floats. */
void ng_twosided_apply(ng_queue *q, const ng_twosided *t, int64_t row, int64_t count, const void *D,
                       void *out, void *scratch);
int64_t ng_twosided_scratch(const ng_twosided *t, int64_t count);
/* Eigen, f32: out <- Q_L' D Q_R, back: Q_L D Q_R', of all rows. out must not overlap D. */
void ng_twosided_rotate(ng_queue *q, const ng_twosided *t, bool back, const float *D, float *out,
                        float *scratch);
/* Describe a stored matrix P in the range of e->D: element (r, c) is P[r row_stride + c col_stride], with a map
 * P[r row_stride + map[c]]. */
void ng_describe_stored(ng_direction *e, const float *P, int64_t row_stride, int64_t col_stride,
                        const int32_t *map);

/* ---- axes.c: a tensor with a basis on each axis ------------------------------------------------*/

enum { NG_AXES_MOST = 4 };
typedef struct ng_axes {
  int32_t count;
  int64_t length[NG_AXES_MOST];     /* the tensor is row-major */
  const float *basis[NG_AXES_MOST]; /* [length, length] row i is vector i; NULL: the identity */
} ng_axes;
int64_t ng_axes_elements(const ng_axes *a);
int64_t ng_axes_scratch(const ng_axes *a); /* floats of scratch of the functions below */
/* out <- the coordinates of D in the bases; back: the tensor with the coordinates D. D, out and scratch must not overlap. */
void ng_axes_rotate(ng_queue *q, const ng_axes *a, bool back, const float *D, float *out,
                    float *scratch);
/* sum += c D_(k) D_(k)', in ng_sym order; D_(k): D as a matrix with axis k as rows. */
void ng_axes_add_gram(ng_queue *q, const ng_axes *a, int32_t k, const float *D, float c, float *sum,
                      float *scratch);
/* out <- V with its elements along axis k in the order order[k] (NULL: as they are). */
void ng_axes_permute(ng_queue *q, const ng_axes *a, const int32_t *const *order, const float *V,
                     float *out, float *scratch);
/* out <- the diagonal, in the bases `to`, of the covariance that has the diagonal V in the bases `from`. */
void ng_axes_rotate_squares(ng_queue *q, const ng_axes *from, const ng_axes *to, const float *V,
                            float *out, float *scratch);

/* ---- powers.c: ng_curvature of natgrad.h, with checked arguments ------------------------------*/

typedef enum ng_curvature_split {
  NG_CURVATURE_JOINT,
  NG_CURVATURE_FULL,
  NG_CURVATURE_PI,
  NG_CURVATURE_ROOT,
  NG_CURVATURE_SPLITS
} ng_curvature_split;
typedef struct ng_curvature_power { /* ng_damped_power */
  double damping, power;
  ng_curvature_split split;
} ng_curvature_power;
ng_status ng_curvature_make(ng_context *ctx, const ng_factors *f, ng_curvature **out);
void ng_curvature_free(ng_curvature *c);
ng_context *ng_curvature_context(const ng_curvature *c);
/* return the number of elements of one matrix x_k */
int64_t ng_curvature_count(const ng_curvature *c);
/* Return the elements of one position of ng_samples.left, or of right. */
int64_t ng_curvature_width(const ng_curvature *c, bool left);
/* Return false if M does not exist: the power is negative and a damped eigenvalue is 0. */
bool ng_curvature_is_defined(const ng_curvature *c, const ng_curvature_power *m);
void ng_curvature_multiply(const ng_curvature *c, const ng_curvature_power *m, const double *x,
                           int64_t count, double *out);
void ng_curvature_write_diagonal(const ng_curvature *c, const ng_curvature_power *m, double *out);
/* out[i, j] += <D_i, M D_j> for samples i of x and j of y; y NULL: out[i] += <D_i, M D_i>. */
void ng_curvature_add_scores(const ng_curvature *c, const ng_curvature_power *how,
                             const ng_samples *x, const ng_samples *y, double *out);
/* EKFAC: replace eigenvalues by means of squared gradients, over the samples of all calls. */
void ng_curvature_add_squares(ng_curvature *c, const ng_samples *x);
bool ng_curvature_is_corrected(const ng_curvature *c);
void ng_curvature_sum(const ng_curvature *c, const ng_curvature_power *m, double *trace,
                      double *logdet);

#endif
