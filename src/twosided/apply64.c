/* apply64.c: compute PD in double, from results in f64; apply.c has the formulas.
 *
 * In: D in double; inverses, or eigenbases with eigenvalues d64, of both sides. Out: PD in double. An inverse is unpacked to
 * a full matrix, so that all products are general ones. Scratch: T [count, cols], then a full matrix. */
#include "twosided/twosided.h"

typedef enum action { MULTIPLY, ROTATE, ROTATE_BACK } action;

typedef struct rows_of_D {
  ng_queue *q;
  const ng_twosided *t;
  int64_t row, rows;
  double *full;
} rows_of_D;

int64_t ng_twosided_scratch64(const ng_twosided *t, int64_t count) {
  int64_t most = 0;
  for (int32_t i = 0; i < t->left_count + t->right_count; i++) {
    const ng_matrix *m = i < t->left_count ? &t->left[i] : &t->right[i - t->left_count];
    if (m->form == NG_FORM_SYMMETRIC) most = ng_max64(most, m->n * m->n);
  }
  return 2 * (ng_round16(count * t->cols) + ng_round16(most));
}

static void copy(const rows_of_D *c, const double *from, double *to) {
  const int64_t n = c->rows * c->t->cols;
  const ng_copy list = {
      .from = {(void *)(uintptr_t)from, NG_F64, 1, {n}, {1}}, .to = to, .to_stride = {1}};
  ng_kernels(c->q)->copy(c->q, &list, 1);
}

/* y <- x, times one symmetric matrix. */
static void act_with(const rows_of_D *c, const ng_matrix *m, bool left, action a, const double *x,
                     double *y) {
  const int64_t n = m->n, p = c->t->cols, lines = ng_min64(c->t->rows, c->rows);
  const double *R = m->R;
  if (a == MULTIPLY) {
    ng_on(c->q)->unpack64(c->q, n, m->R, c->full);
    R = c->full;
  }
  if (left) {
    ng_on(c->q)->gemm64(c->q, a == ROTATE_BACK, false, n, p, n, R, n, x, p, y, p);
  } else {
    ng_on(c->q)->gemm64(c->q, false, a == ROTATE, lines, n, n, x, p, R, n, y, p);
  }
}

/* to <- from, times all matrices of one side. Only the left side may be diagonal: it has one matrix. */
static void act(const rows_of_D *c, bool left, action a, const double *from, double *to) {
  const ng_twosided *t = c->t;
  const ng_matrix *m = left ? t->left : t->right;
  const int64_t count = t->groups * (left ? t->left_count : t->right_count);
  if (m->form == NG_FORM_DIAGONAL) {
    copy(c, from, to);
    if (a == MULTIPLY) ng_on(c->q)->scale_rows64(c->q, c->rows, t->cols, m->d64 + c->row, to);
    return;
  }
  for (const ng_matrix *end = m + count; m < end; m++) {
    const int64_t at = m->row * t->cols + m->col;
    act_with(c, m, left, a, from + at, to + at);
  }
}

static void divide(const rows_of_D *c, double *U) {
  const ng_twosided *t = c->t;
  for (int64_t i = 0; i < t->groups * t->left_count; i++) {
    const int64_t group = i / t->left_count;
    const ng_matrix *l = &t->left[i], *r = &t->right[group * t->right_count];
    for (const ng_matrix *end = r + t->right_count; r < end; r++) {
      ng_spectrum s = t->damping[group];
      s.g64 = l->d64 + c->row;
      s.a64 = r->d64;
      ng_on(c->q)->divide64(c->q, ng_min64(l->n, c->rows), r->n, s, U + l->row * t->cols + r->col,
                            t->cols);
    }
  }
}

void ng_twosided_apply64(ng_queue *q, const ng_twosided *t, int64_t row, int64_t count,
                         const double *D, double *out, double *scratch) {
  const rows_of_D c = {q, t, row, count, scratch + ng_round16(count * t->cols)};
  const bool eigen = t->left->result == NG_RESULT_EIGEN;
  if (!t->is_good) {
    copy(&c, D, out);
    return;
  }
  act(&c, false, eigen ? ROTATE : MULTIPLY, D, scratch);
  act(&c, true, eigen ? ROTATE : MULTIPLY, scratch, out);
  if (!eigen) return;
  divide(&c, out);
  act(&c, false, ROTATE_BACK, out, scratch);
  act(&c, true, ROTATE_BACK, scratch, out);
}
