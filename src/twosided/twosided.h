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

typedef enum ng_form { NG_FORM_SYMMETRIC, NG_FORM_DIAGONAL, NG_FORM_ABSENT } ng_form;

/* What a solve computes. d: damping, shift included; a diagonal matrix has d = the diagonal of the result. */
typedef enum ng_result {
  NG_RESULT_INVERSE,  /* R = (F + d I)^-1 */
  NG_RESULT_CHOLESKY, /* R = L of F + d I = L L'; diagonal: as INVERSE */
  NG_RESULT_EIGEN,    /* F = Q diag(e) Q', Q = R': row i of R is the eigenvector of d[i] */
  NG_RESULT_COPY,     /* R = F */
  NG_RESULT_ROOT      /* R = (F + d I)^(-1/p), p > 0 any real number */
} ng_result;

typedef struct ng_matrix {
  ng_form form;
  ng_result result;
  bool is_good;                         /* the caller's: the stored result passed its checks */
  int64_t n;                            /* order */
  int64_t row, col;                     /* first row and column of D that the matrix multiplies */
  double p;                             /* ROOT */
  const void *F;                        /* the average, in ng_sym order; diagonal: [n], f32 */
  ng_dtype average_dtype, result_dtype; /* result_dtype f64: INVERSE only */
  void *R;  /* [ng_matrix_count], result_dtype; eigen: [n, n], else ng_sym order */
  float *d; /* [n] eigenvalues; diagonal: see ng_result; otherwise NULL */
  /* The queue writes these numbers. info: of LAPACK; finite, trace: of F; largest: scratch. */
  int info[2], finite;
  double trace, largest;
} ng_matrix;

typedef struct ng_twosided {
  int64_t groups, rows, cols;      /* rows: of one group */
  ng_matrix *left, *right;         /* L multiplies rows, R multiplies columns */
  int32_t left_count, right_count; /* matrices of one group */
  ng_spectrum *damping;            /* eigen: on_g (of L), on_a (of R) and on_both of each group */
  const float *divisor; /* eigen, one group: [rows, cols], replaces the products of eigenvalues */
  bool is_good;         /* all results are good; otherwise PD = D (copy: 0) */
} ng_twosided;

/* Return the number of elements of m->R. */
static inline int64_t ng_matrix_count(const ng_matrix *m) {
  if (m->form != NG_FORM_SYMMETRIC) return 0;
  return m->result == NG_RESULT_EIGEN ? m->n * m->n : ng_sym_count(m->n);
}

/* ---- solve.c ---------------------------------------------------------------------------------*/

/* Compute m->finite and m->trace of F; read both after a wait. */
void ng_matrix_measure(ng_queue *q, ng_matrix *m);
/* Compute the result of a finite F with d = shift + on; return the rung as ng_damped_solve does. Eigen: `on` is the smallest
 * damping of any eigenvector. Eigen, root: `shift` is added to the eigenvalues, and eigenvalues at or below `floor` become
 * 0. scratch: ng_matrix_scratch floats. */
int32_t ng_matrix_solve(ng_queue *q, ng_matrix *m, double shift, double on, double floor,
                        float *scratch);
int64_t ng_matrix_scratch(const ng_queue *q, const ng_matrix *m);
/* Refresh an eigenbasis by one orthogonal iteration. Sort the vectors q_i of R by d_i = q_i' F q_i, the largest first; then
 * R <- Q' of the QR of F Q, d <- the sorted d_i, order[i] <- the old index of vector i. Return false, with R and d
 * unchanged, if the result is not finite. */
bool ng_matrix_refresh(ng_queue *q, ng_matrix *m, int32_t *order, float *scratch);

/* ---- apply.c ---------------------------------------------------------------------------------*/

/* out <- PD of rows [row, row + count) of D; D and out begin at row `row`. A range of rows requires one
 * group and one matrix on the left, diagonal or absent. scratch: ng_twosided_scratch floats. */
void ng_twosided_apply(ng_queue *q, const ng_twosided *t, int64_t row, int64_t count,
                       const float *D, float *out, float *scratch);
int64_t ng_twosided_scratch(const ng_twosided *t, int64_t count);
/* Eigen: out <- Q_L' D Q_R, back: Q_L D Q_R', of all rows. out must not overlap D. */
void ng_twosided_rotate(ng_queue *q, const ng_twosided *t, bool back, const float *D, float *out,
                        float *scratch);
/* Describe a stored matrix P in the range of e->D: element (r, c) is P[r row_stride + c col_stride], with a map
 * P[r row_stride + map[c]]. */
void ng_direction_store(ng_direction *e, const float *P, int64_t row_stride, int64_t col_stride,
                        const int32_t *map);

#endif
