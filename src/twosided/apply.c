/* apply.c: compute PD from D and the results of both sides.
 *
 *   inverse, cholesky   PD = L^-1 D R^-1, both damped
 *   eigen               PD = Q_L ((Q_L' D Q_R) / s) Q_R', s: the damped products of eigenvalues (ng_spectrum)
 *   copy                PD = L D R
 *   root                PD = L^(-1/p) D R^(-1/p)
 *
 * A diagonal matrix has the identity as eigenbasis, so it needs no rotation. For D [q, p], stored inverses cost
 * 2 q p (p + q) operations, eigenbases twice that. */
#include "twosided/twosided.h"

typedef enum use_of_result {
  MULTIPLY,
  ROTATE,
  ROTATE_BACK
} use_of_result; /* rotate: by Q' from the left, by Q from the right */

typedef struct row_chunk {
  ng_queue *q;
  const ng_twosided *t;
  int64_t row, rows, group_rows; /* rows [row, row + rows) of D; number of rows of one group */
  void *T;                       /* [rows, cols]: D times the right matrix */
  /* the result of one matrix (ng_matrix.R): converted to f32, or unpacked to a full matrix of doubles */
  void *R;
} row_chunk;

static ng_dtype dtype_of(const row_chunk *c) { return c->t->is_double ? NG_F64 : NG_F32; }

/* Return the address of element i of D, T, PD or eigenvalues. */
static void *address_of(const row_chunk *c, const void *x, int64_t i) {
  return (char *)(uintptr_t)x + i * ng_dtype_size(dtype_of(c));
}

int64_t ng_twosided_scratch(const ng_twosided *t, int64_t count) {
  int64_t most = 0;
  for (int32_t i = 0; i < t->left_count + t->right_count; i++) {
    const ng_matrix *m = i < t->left_count ? &t->left[i] : &t->right[i - t->left_count];
    if (m->form != NG_FORM_SYMMETRIC || m->result_dtype == NG_F32) continue;
    most = ng_max64(most, t->is_double ? m->n * m->n : ng_matrix_count(m));
  }
  return (t->is_double ? 2 : 1) * (ng_round16(count * t->cols) + ng_round16(most));
}

/* Return the result in the dtype of D, as a full matrix if that is f64. A conversion goes to c->R, which the next matrix
 * overwrites: the queue works in order. */
static void *load_result(const row_chunk *c, const ng_matrix *m, use_of_result a) {
  if (c->t->is_double && a == MULTIPLY) {
    ng_linalg(c->q)->unpack(c->q, m->n, m->R, NG_F64, c->R, m->n);
  } else if (m->result_dtype == dtype_of(c)) {
    return m->R;
  } else {
    ng_linalg(c->q)->widen(c->q, ng_matrix_count(m), m->R, m->result_dtype, c->R);
  }
  return c->R;
}

static void multiply_by_diagonal(const row_chunk *c, const ng_matrix *m, bool left, const void *x,
                                 void *y) {
  const int64_t p = c->t->cols, rows = left ? ng_min64(m->n, c->rows) : c->group_rows;
  ng_linalg(c->q)->mul_diagonal(c->q, left, rows, left ? p : m->n,
                                address_of(c, m->d, left ? c->row : 0), dtype_of(c), x, y, p);
}

/* y <- x, times one symmetric matrix of the left or right side. */
static void multiply_by_symmetric(const row_chunk *c, const ng_matrix *m, bool left,
                                  use_of_result a, const void *x, void *y) {
  ng_queue *q = c->q;
  const int64_t n = m->n, p = c->t->cols, lines = left ? p : c->group_rows;
  const ng_dtype t = dtype_of(c);
  if (t == NG_F32 && m->result_dtype == NG_F64) {
    ng_linalg(q)->multiply_sym64(q, n, m->R, lines, left ? p : 1, left ? 1 : p, x, y);
    return;
  }
  void *R = load_result(c, m, a);
  if ((a != MULTIPLY || t == NG_F64) && left) {
    ng_linalg(q)->gemm(q, t, a == ROTATE_BACK, false, n, p, n, 1.0, R, n, x, p, 0.0, y, p);
  } else if (a != MULTIPLY || t == NG_F64) {
    ng_linalg(q)->gemm(q, t, false, a == ROTATE, lines, n, n, 1.0, x, p, R, n, 0.0, y, p);
  } else if (m->result != NG_RESULT_CHOLESKY) {
    (left ? ng_linalg(q)->mul_left : ng_linalg(q)->mul_right)(q, (ng_sym){R, n}, lines, x, p, y, p);
  } else if (left) {
    ng_linalg(q)->copy_rows(q, n, p, x, p, y, p);
    ng_linalg(q)->solve_left(q, (ng_sym){R, n}, lines, y, p);
  } else {
    ng_linalg(q)->copy_rows(q, lines, n, x, p, y, p);
    ng_linalg(q)->solve_right(q, n, R, t, lines, y, p);
  }
}

/* to <- from, times all matrices of one side; each multiplies its own rows or columns. */
static void multiply_side(const row_chunk *c, bool left, use_of_result a, const void *from,
                          void *to) {
  const ng_twosided *t = c->t;
  const ng_matrix *m = left ? t->left : t->right;
  const int64_t count = t->groups * (left ? t->left_count : t->right_count);
  for (const ng_matrix *end = m + count; m < end; m++) {
    const int64_t at = m->row * t->cols + m->col;
    const void *x = address_of(c, from, at);
    void *y = address_of(c, to, at);
    if (m->form == NG_FORM_DIAGONAL) {
      multiply_by_diagonal(c, m, left, x, y);
    } else {
      multiply_by_symmetric(c, m, left, a, x, y);
    }
  }
}

static bool has_effect(const ng_matrix *m, use_of_result a) {
  return m->form == NG_FORM_SYMMETRIC || (m->form == NG_FORM_DIAGONAL && a == MULTIPLY);
}

/* The copy of a double is the copy of two floats. */
static void copy_rows(const row_chunk *c, const void *from, void *to) {
  const int64_t floats = c->t->cols * (c->t->is_double ? 2 : 1);
  ng_linalg(c->q)->copy_rows(c->q, c->rows, floats, from, floats, to, floats);
}

/* to <- from, times both sides. If only one side acts, `from` and `to` must differ. */
static void multiply_both_sides(const row_chunk *c, use_of_result a, const void *from, void *to) {
  const bool left = has_effect(c->t->left, a), right = has_effect(c->t->right, a);
  if (right) multiply_side(c, false, a, from, left ? c->T : to);
  if (left) multiply_side(c, true, a, right ? c->T : from, to);
  if (!left && !right && from != to) copy_rows(c, from, to);
}

/* Divide each entry of U = Q_L' D Q_R by its damped product of eigenvalues, for all pairs of matrices in one group. */
static void divide_spectrum(const row_chunk *c, void *U) {
  const ng_twosided *t = c->t;
  for (int64_t i = 0; i < t->groups * t->left_count; i++) {
    const int64_t group = i / t->left_count;
    const ng_matrix *l = &t->left[i], *r = &t->right[group * t->right_count];
    for (const ng_matrix *end = r + t->right_count; r < end; r++) {
      ng_spectrum s = t->damping[group];
      s.g = l->d == NULL ? NULL : address_of(c, l->d, c->row);
      s.a = r->d;
      ng_linalg(c->q)->divide(c->q, ng_min64(l->n, c->rows), r->n, s,
                              address_of(c, U, l->row * t->cols + r->col), dtype_of(c), t->cols);
    }
  }
}

static row_chunk make_chunk(ng_queue *q, const ng_twosided *t, int64_t row, int64_t count,
                            void *scratch) {
  row_chunk c = {q, t, row, count, ng_min64(t->rows, count), scratch, NULL};
  c.R = address_of(&c, scratch, ng_round16(count * t->cols));
  return c;
}

void ng_twosided_rotate(ng_queue *q, const ng_twosided *t, bool back, const float *D, float *out,
                        float *scratch) {
  const row_chunk c = make_chunk(q, t, 0, t->groups * t->rows, scratch);
  multiply_both_sides(&c, back ? ROTATE_BACK : ROTATE, D, out);
}

void ng_twosided_apply(ng_queue *q, const ng_twosided *t, int64_t row, int64_t count, const void *D,
                       void *out, void *scratch) {
  const row_chunk c = make_chunk(q, t, row, count, scratch);
  const ng_result result = t->left->result;
  if (!t->is_good && result == NG_RESULT_COPY) {
    ng_linalg(q)->scale(q, count * t->cols, out, dtype_of(&c), 0.0);
  } else if (!t->is_good) {
    copy_rows(&c, D, out);
  } else if (result != NG_RESULT_EIGEN) {
    multiply_both_sides(&c, MULTIPLY, D, out);
  } else {
    void *U = has_effect(t->left, ROTATE) != has_effect(t->right, ROTATE) ? c.T : out;
    multiply_both_sides(&c, ROTATE, D, U);
    divide_spectrum(&c, U);
    multiply_both_sides(&c, ROTATE_BACK, U, out);
  }
}

void ng_describe_stored(ng_direction *e, const float *P, int64_t row_stride, int64_t col_stride,
                        const int32_t *map) {
  e->is_stored = true;
  e->u = P + e->D.row * row_stride + e->D.col * col_stride;
  e->u_row = row_stride;
  e->u_col = col_stride;
  e->map = map;
}
