/* t_twosided.c: a gradient between two matrices, for every form of both, every result and every linear algebra, against
 * a dense solve in double.
 *
 * Tolerance.  Every factor is X X' / n + I / 2 with |X| < 1, so its condition is below 10, and the condition of the
 * product below 100.  A solve in f32 then has an error of a few times 6e-8 * 100 of the largest entry; results rounded
 * to bf16 have 2^-9 * 100 in the worst case, and a tenth here. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dense.h"
#include "late.h"
#include "linalg_check.h"
#include "twosided/twosided.h"

enum { GROUPS = 2, BLOCKS = 2, ROWS = 5, COLS = 7, MOST = 5, ALL = GROUPS * ROWS * COLS };
enum { SCRATCH = 1 << 16 };
static const int64_t rows_of[BLOCKS] = {3, 2}, cols_of[BLOCKS] = {2, 5};
static const char *const form_name[] = {"symmetric", "diagonal", "absent"};
static const char *const result_name[] = {"inverse", "cholesky", "eigen", "copy", "root"};

/* Solve one matrix; return the rung. */
static int32_t solve_matrix(ng_queue *q, ng_matrix *m, double shift, double on, double floor,
                            float *scratch) {
  m->shift = shift;
  m->damping = on;
  m->floor = floor;
  m->uses_double = false;
  ng_linalg(q)->solve(q, &m, 1, scratch);
  ng_queue_wait(q);
  return ng_matrix_retry(q, m, scratch);
}

/* One side: its matrices, and each matrix in dense form. */
typedef struct flank {
  ng_matrix m[GROUPS * BLOCKS];
  double dense[GROUPS * BLOCKS][MOST * MOST];
  float F[GROUPS * BLOCKS][MOST * MOST], d[GROUPS * BLOCKS][MOST];
  double R[GROUPS * BLOCKS][MOST * MOST];
  int32_t count;
} flank;

static void fill_matrix(flank *f, int32_t i, int64_t n, ng_form form) {
  ng_sym S = sym_positive(n, 0.5);
  for (int64_t r = 0; r < n; r++) {
    for (int64_t c = 0; c < n; c++) {
      const double diagonal = form == NG_FORM_ABSENT ? 1.0 : (double)ng_sym_get(S, r, r);
      const double x = r == c                      ? diagonal
                       : form == NG_FORM_SYMMETRIC ? (double)ng_sym_get(S, r, c)
                                                   : 0.0;
      f->dense[i][r * n + c] = x;
      if (form == NG_FORM_DIAGONAL && r == c) f->F[i][r] = (float)x;
    }
  }
  if (form == NG_FORM_SYMMETRIC) memcpy(f->F[i], S.a, (size_t)ng_sym_count(n) * sizeof *S.a);
  sym_free(S);
}

/* Only inverses, factors and roots of symmetric matrices have a scale. */
static double scale_of(ng_form form, ng_result result) {
  const bool scales = result != NG_RESULT_EIGEN && result != NG_RESULT_COPY;
  return scales && form == NG_FORM_SYMMETRIC ? 0.75 : 1.0;
}

static void fill_side(flank *f, bool left, ng_form form, ng_result result, ng_dtype t) {
  memset(f, 0, sizeof *f);
  f->count = form == NG_FORM_ABSENT || (left && form == NG_FORM_DIAGONAL) ? 1 : BLOCKS;
  for (int32_t i = 0; i < GROUPS * f->count; i++) {
    const int32_t group = i / f->count, block = i % f->count;
    const int64_t whole = left ? ROWS : COLS;
    const int64_t n = f->count == 1 ? whole : left ? rows_of[block] : cols_of[block];
    const int64_t first = block == 0 ? 0 : left ? rows_of[0] : cols_of[0];
    f->m[i] = (ng_matrix){.form = form,
                          .result = result,
                          .p = 1.0, /* a root of order 1 is the inverse */
                          .n = n,
                          .scale = scale_of(form, result),
                          .row = left ? group * ROWS + first : group * ROWS,
                          .col = left ? 0 : first,
                          .F = f->F[i],
                          .average_dtype = NG_F32,
                          .result_dtype = t,
                          .R = f->R[i],
                          .d = form == NG_FORM_ABSENT ? NULL : f->d[i]};
    if (form != NG_FORM_ABSENT) fill_matrix(f, i, n, form);
  }
}

/* Element (r, c) of the damped L or R of a group. */
static double entry(const flank *f, int32_t group, int64_t r, int64_t c, bool left, double on) {
  if (f->m->form == NG_FORM_ABSENT) return r == c ? 1.0 : 0.0;
  const int64_t first = f->count == 1 ? f->m->n : left ? rows_of[0] : cols_of[0];
  if ((r < first) != (c < first)) return 0.0;
  const int32_t i = group * f->count + (r < first ? 0 : 1);
  const int64_t at = r < first ? 0 : first;
  return f->m[i].scale * f->dense[i][(r - at) * f->m[i].n + c - at] + (r == c ? on : 0.0);
}

/* X with (L + damping_g I) X (R + damping_a I) + damping_both X = D, or L D R, for one group. An absent side is I, without damping. */
static void predict(const flank *l, const flank *r, int32_t group, bool copy, ng_spectrum s,
                    double *X) {
  enum { N = ROWS * COLS };
  double *M = zeros(N * N), D[N];
  for (int64_t a = 0; a < N; a++) {
    for (int64_t b = 0; b < N; b++) {
      M[a * N + b] = entry(l, group, a / COLS, b / COLS, true, s.damping_g) *
                         entry(r, group, b % COLS, a % COLS, false, s.damping_a) +
                     (a == b ? s.damping_both : 0.0);
    }
  }
  memcpy(D, X, sizeof D);
  if (copy) {
    dense_product(false, false, N, 1, N, M, D, X);
  } else {
    dense_solve(N, M, 1, X);
  }
  free(M);
}

/* The eigenvalue of a row or column of the first group; orders: of its two matrices. */
static double eigenvalue(const flank *f, int64_t i, const int64_t *orders) {
  if (f->m->form == NG_FORM_ABSENT) return 1.0;
  const int64_t first = f->count == 1 ? f->m->n : orders[0];
  return (double)(i < first ? f->d[0][i] : f->d[1][i - first]);
}

static void solve_side(ng_queue *q, flank *f, double on, float *scratch) {
  for (int32_t i = 0; i < GROUPS * f->count; i++) {
    ng_matrix *m = &f->m[i];
    double trace = 0.0;
    CHECK(ng_matrix_scratch(q, m) <= SCRATCH);
    CHECK(solve_matrix(q, m, 0.25 * on, 0.75 * on, 0.0, scratch) == 0);
    if (m->form == NG_FORM_ABSENT) continue;
    ng_matrix_measure(q, m);
    ng_queue_wait(q);
    for (int64_t k = 0; k < m->n; k++)
      trace += f->dense[i][k * (m->n + 1)];
    CHECK(ng_read_info(q, &m->finite) == 1);
    CHECK(fabs(*ng_read_numbers(q, &m->trace) - trace) <= 1e-12 * trace);
  }
}

/* The damping of `result`: of each factor before the solve, or of the spectrum after. */
static void one_case(ng_queue *q, ng_form lf, ng_form rf, ng_result result, ng_dtype t) {
  flank *l = malloc(sizeof *l), *r = malloc(sizeof *r);
  float *scratch = work_new(SCRATCH * sizeof *scratch);
  float D[ALL], out[ALL], again[ALL];
  double want[ALL], most = 0.0, gap = 0.0;
  const bool eigen = result == NG_RESULT_EIGEN, copy = result == NG_RESULT_COPY;
  const double on_l = copy || lf == NG_FORM_ABSENT ? 0.0 : 0.1;
  const double on_r = copy || rf == NG_FORM_ABSENT ? 0.0 : 0.3;
  ng_spectrum damping[GROUPS] = {{.damping_g = on_l, .damping_a = on_r},
                                 {.damping_g = on_l, .damping_a = on_r}};
  if (eigen) damping[1].damping_both = 0.2;
  CASE("%s L, %s R, %s, dtype %d", form_name[lf], form_name[rf], result_name[result], (int)t);
  fill_side(l, true, lf, result, t);
  fill_side(r, false, rf, result, t);
  solve_side(q, l, eigen ? 0.0 : on_l, scratch);
  solve_side(q, r, eigen ? 0.0 : on_r, scratch);
  ng_twosided two = {.groups = GROUPS, .rows = ROWS, .cols = COLS, .left = l->m, .right = r->m};
  two.left_count = l->count;
  two.right_count = r->count;
  two.damping = damping;
  two.is_good = true;
  for (int64_t i = 0; i < ALL; i++)
    want[i] = (double)(D[i] = (float)uniform());
  CHECK(ng_twosided_scratch(&two, GROUPS * ROWS) <= SCRATCH);
  ng_twosided_apply(q, &two, 0, GROUPS * ROWS, D, out, scratch);
  ng_queue_wait(q);
  for (int32_t g = 0; g < GROUPS; g++)
    predict(l, r, g, copy, damping[g], want + g * ROWS * COLS);
  for (int64_t i = 0; i < ALL; i++) {
    most = fmax(most, fabs(want[i]));
    gap = fmax(gap, fabs(want[i] - (double)out[i]));
  }
  if (!(gap <= (t == NG_F32 ? 1e-5 : 2e-2) * most)) {
    fail_msg("%s: off by %.2g of %.2g", case_text, gap, most);
  }
  two.groups = 1; /* apply the results to the rows one by one, as rows of one group */
  for (int64_t i = 0; i < ROWS && lf != NG_FORM_SYMMETRIC && t == NG_F32; i++) {
    ng_twosided_apply(q, &two, i, 1, D + i * COLS, again + i * COLS, scratch);
    ng_queue_wait(q);
    for (int64_t c = i * COLS; c < (i + 1) * COLS; c++)
      CHECK(fabs((double)(again[c] - out[c])) <= 1e-6 * most);
  }
  if (eigen && t == NG_F32) { /* rotated, divided, rotated back */
    float U[ROWS * COLS], back[ROWS * COLS];
    ng_twosided_rotate(q, &two, false, D, U, scratch);
    ng_queue_wait(q);
    for (int64_t i = 0; i < ROWS * COLS; i++)
      U[i] /= (float)((eigenvalue(l, i / COLS, rows_of) + on_l) *
                      (eigenvalue(r, i % COLS, cols_of) + on_r));
    ng_twosided_rotate(q, &two, true, U, back, scratch);
    ng_queue_wait(q);
    for (int64_t i = 0; i < ROWS * COLS; i++)
      CHECK(fabs((double)(out[i] - back[i])) <= 1e-6 * most);
  }
  two.is_good = false;
  ng_twosided_apply(q, &two, 0, ROWS, D, again, scratch);
  ng_queue_wait(q);
  for (int64_t i = 0; i < ROWS * COLS; i++)
    CHECK(again[i] == (copy ? 0.0f : D[i]));
  work_free(scratch, SCRATCH * sizeof *scratch);
  free(l);
  free(r);
}

static void every_form_result_kind_and_dtype(void **arg) {
  ng_queue queue = queue_of(*arg);
  static const ng_dtype dtypes[] = {NG_F32, NG_BF16};
  for (int l = NG_FORM_SYMMETRIC; l <= NG_FORM_ABSENT; l++) {
    for (int r = NG_FORM_SYMMETRIC; r <= NG_FORM_ABSENT; r++) {
      for (int result = NG_RESULT_INVERSE; result <= NG_RESULT_ROOT; result++) {
        for (int t = 0; t < 2; t++)
          one_case(&queue, (ng_form)l, (ng_form)r, (ng_result)result, dtypes[t]);
      }
    }
  }
}

/* (F + d I) R = I to a few roundings of f32 times the condition. */
static bool is_inverse(ng_sym F, double d, ng_sym R) {
  const int64_t n = F.n;
  double *A = dense(F), *X = dense(R), worst = 0.0;
  for (int64_t i = 0; i < n; i++)
    A[i * (n + 1)] += d;
  dense_product(false, false, n, n, n, A, X, X);
  for (int64_t i = 0; i < n * n; i++)
    worst = fmax(worst, fabs(X[i] - (i % (n + 1) == 0 ? 1.0 : 0.0)));
  free(A);
  free(X);
  return worst <= 2e-6;
}

/* Matrices of one list have the same bits as alone, with any number of threads. A matrix that fails keeps its result. */
static void lists(void **arg) {
  enum { LIST = 48, FAILS = 7, LARGEST = 70 };
  ng_queue queue = queue_of(*arg), *q = &queue;
  ng_matrix m[LIST], *list[LIST];
  ng_sym F[LIST], R[LIST], alone[LIST];
  float *scratch = work_new(SCRATCH * sizeof *scratch);
  for (int i = 0; i < LIST; i++) {
    const int64_t n = i % 3 == 0 ? 64 : 1 + (i * 11) % LARGEST;
    F[i] = sym_positive(n, 0.5);
    R[i] = sym_new(n);
    alone[i] = sym_new(n);
    if (i == FAILS) sym_set(F[i], n - 1, n - 1, -5.0f);
    for (int64_t k = 0; k < ng_sym_count(n); k++)
      R[i].a[k] = alone[i].a[k] = (float)i;
    m[i] = (ng_matrix){
        .result = i % 5 == 0 ? NG_RESULT_CHOLESKY : NG_RESULT_INVERSE, .n = n, .scale = 1.0};
    m[i].average_dtype = m[i].result_dtype = NG_F32;
    m[i].F = F[i].a;
    m[i].damping = 0.25;
    list[i] = &m[i];
    assert_true(ng_matrix_scratch(q, list[i]) <= SCRATCH);
  }
  for (int32_t threads = 1; threads <= 3; threads += 2) {
    q->threads = threads;
    for (int i = 0; i < LIST; i++) {
      m[i].R = alone[i].a;
      ng_linalg(q)->solve(q, &list[i], 1, scratch);
      ng_queue_wait(q);
      m[i].R = R[i].a;
    }
    ng_linalg(q)->solve(q, list, LIST, scratch);
    ng_queue_wait(q);
    for (int i = 0; i < LIST; i++) {
      CASE("list of %d threads, n = %" PRId64, (int)threads, m[i].n);
      CHECK(ng_read_info(q, &m[i].accepted) == (i != FAILS));
      CHECK(i != FAILS || R[i].a[0] == (float)FAILS);
      CHECK(memcmp(R[i].a, alone[i].a, (size_t)ng_sym_count(m[i].n) * sizeof *R[i].a) == 0);
      CHECK(i == FAILS || m[i].result != NG_RESULT_INVERSE || is_inverse(F[i], 0.25, R[i]));
    }
  }
  for (int i = 0; i < LIST; i++) {
    sym_free(F[i]);
    sym_free(R[i]);
    sym_free(alone[i]);
  }
  work_free(scratch, SCRATCH * sizeof *scratch);
}

/* ---- roots, refreshed bases ------------------------------------------------------------------*/

/* X = (F + d I)^(-1/p): X^a (F + d I)^b = I with a / b = p. The error is about a times the error of X, which is n u
 * cond. */
static void roots(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  static const struct {
    double p;
    int a, b;
  } powers[] = {{1.0, 1, 1}, {2.0, 2, 1}, {4.0, 4, 1}, {2.5, 5, 2}, {0.5, 1, 2}};
  EACH_SIZE(n) {
    if (n > 70) continue;
    for (int k = 0; k < 5; k++) {
      for (int zero = 0; zero < 2; zero++) {
        ng_sym F = sym_positive(n, 0.5), X = sym_new(n);
        if (zero != 0) sym_diagonal(F, 0.0f); /* X = d^(-1/p) I */
        const double shift = 0.125, on = 0.25;
        ng_matrix m = {.result = NG_RESULT_ROOT, .n = n, .p = powers[k].p, .F = F.a, .R = X.a};
        m.scale = k % 2 == 0 ? 1.0 : 1.5;
        m.average_dtype = m.result_dtype = NG_F32;
        CASE("root n = %" PRId64 " p = %g zero %d", n, m.p, zero);
        const int64_t floats = ng_matrix_scratch(q, &m);
        float *scratch = work_new(floats * (int64_t)sizeof *scratch);
        CHECK(solve_matrix(q, &m, shift, on, 0.0, scratch) == 0);
        ng_queue_wait(q);
        work_free(scratch, floats * (int64_t)sizeof *scratch);
        sym_check(X);
        double *A = dense(F), *R = dense(X), *Z = zeros(n * n);
        for (int64_t i = 0; i < n * n; i++)
          A[i] = m.scale * A[i] + (i % (n + 1) == 0 ? shift + on : 0.0);
        for (int64_t i = 0; i < n; i++)
          Z[i * (n + 1)] = 1.0;
        for (int i = 0; i < powers[k].a; i++)
          dense_product(false, false, n, n, n, Z, R, Z);
        for (int i = 0; i < powers[k].b; i++)
          dense_product(false, false, n, n, n, Z, A, Z);
        for (int64_t i = 0; i < n * n; i++)
          CHECK(fabs(Z[i] - (i % (n + 1) == 0 ? 1.0 : 0.0)) <= 2e-5);
        free(A);
        free(R);
        free(Z);
        sym_free(F);
        sym_free(X);
      }
    }
  }
}

static void diagonal_roots(void **arg) {
  ng_queue queue = queue_of(*arg);
  float F[3] = {0.5f, 2.0f, 0.0f}, d[3], scratch[16];
  ng_matrix m = {.form = NG_FORM_DIAGONAL, .result = NG_RESULT_ROOT, .n = 3, .p = 4.0, .F = F};
  m.d = d;
  CHECK(solve_matrix(&queue, &m, 0.125, 0.25, 0.0, scratch) == 0);
  for (int i = 0; i < 3; i++)
    CHECK(fabs((double)d[i] * pow((double)F[i] + 0.375, 0.25) - 1.0) <= 1e-6);
}

/* F = diag(-h, 0, 1) with h > 0 as small as a rounding error: all eigenvalues of scale F rise by scale h. */
static void root_of_a_negative_eigenvalue(void **arg) {
  ng_queue queue = queue_of(*arg);
  ng_sym F = sym_new(3), X = sym_new(3);
  const double h = 0x1p-12, scale = 2.0, damping = 0x1p-13,
               e[3] = {0.0, scale * h, scale * (1 + h)};
  ng_matrix m = {.result = NG_RESULT_ROOT, .n = 3, .p = 2.0, .scale = scale, .F = F.a, .R = X.a};
  sym_diagonal(F, 0.0f);
  F.a[ng_sym_at(3, 0, 0)] = (float)-h;
  F.a[ng_sym_at(3, 2, 2)] = 1.0f;
  m.average_dtype = m.result_dtype = NG_F32;
  float *scratch = work_new(SCRATCH);
  CHECK(solve_matrix(&queue, &m, 0.0, damping, 0.0, scratch) == 0);
  for (int64_t i = 0; i < 3; i++)
    CHECK(fabs((double)X.a[ng_sym_at(3, i, i)] * sqrt(e[i] + damping) - 1.0) <= 1e-4);
  work_free(scratch, SCRATCH);
  sym_free(F);
  sym_free(X);
}

/* A root that f16 cannot hold fails, and the result stays. */
static void root_out_of_range(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  ng_sym F = sym_new(3);
  uint16_t R[6] = {1, 2, 3, 4, 5, 6}, old[6] = {1, 2, 3, 4, 5, 6};
  ng_matrix m = {.result = NG_RESULT_ROOT, .n = 3, .p = 2.0, .scale = 1.0, .F = F.a, .R = R};
  sym_diagonal(F, 0.0f);
  m.average_dtype = NG_F32;
  m.result_dtype = NG_F16;
  float *scratch = work_new(SCRATCH);
  CHECK(solve_matrix(q, &m, 0.0, 1e-12, 0.0, scratch) == NG_DAMPED_NONE); /* 1e6 > 65504 */
  CHECK(solve_matrix(q, &m, 0.0, 0.0, 0.0, scratch) == NG_DAMPED_NONE);   /* Inf */
  CHECK(memcmp(R, old, sizeof R) == 0);
  work_free(scratch, SCRATCH);
  sym_free(F);
}

/* Largest |element| of B = Q_i' S Q_j over i != j, or only below the diagonal of Q' X (rows of X: columns). */
static double largest_off(const double *B, int64_t n, bool below) {
  double most = 0.0;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++) {
      if (below ? i > j : i != j) most = fmax(most, fabs(B[i * n + j]));
    }
  }
  return most;
}

/* B = Q F X', rows of Q and X: vectors. */
static double *between(const double *Q, const double *F, const double *X, int64_t n) {
  double *B = zeros(n * n);
  dense_product(false, false, n, n, n, Q, F, B);
  dense_product(false, true, n, n, n, B, X, B);
  return B;
}

/* One iteration from a cold basis of another matrix, then many; the properties and limits come from the recordings of
 * SOAP: |Q'Q - I| <= 5e-6, and Q'(F Q_old, sorted) is upper triangular to 5e-6 of the largest entry of F. */
static void refreshes(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    if (n > 40) continue;
    ng_sym F = sym_positive(n, 0.0), older = sym_positive(n, 0.0);
    for (int64_t i = 0; i < n; i++) /* separated eigenvalues: the iterations converge */
      sym_set(F, i, i, ng_sym_get(F, i, i) + ldexpf(1.0f, (int)(i % 7)));
    mat V = mat_new(n, n, 0), d = mat_new(1, n, 0);
    int32_t order[40];
    ng_matrix m = {.result = NG_RESULT_EIGEN, .n = n, .F = older.a, .R = V.a, .d = d.a};
    m.average_dtype = m.result_dtype = NG_F32;
    CASE("refresh n = %" PRId64, n);
    const int64_t floats = ng_matrix_scratch(q, &m);
    float *scratch = work_new(floats * (int64_t)sizeof *scratch);
    CHECK(solve_matrix(q, &m, 0.0, 1.0, 0.0, scratch) == 0);
    ng_queue_wait(q);
    m.F = F.a;
    double *A = dense(F), top = 0.0, first = 0.0, last = 0.0;
    for (int step = 0; step < 60; step++) {
      double *old = dense_mat(V), *sorted = zeros(n * n), *I = zeros(n * n);
      CHECK(ng_matrix_refresh(q, &m, order, scratch));
      ng_queue_wait(q);
      mat_check(V);
      double *Q = dense_mat(V), *rayleigh = between(old, A, old, n);
      for (int64_t i = 0; i < n; i++) {
        const double e = rayleigh[order[i] * (n + 1)];
        I[i * (n + 1)] = 1.0;
        top = fmax(top, e);
        CHECK(fabs((double)d.a[i] - e) <= 5e-6 * top);
        CHECK(i == 0 || d.a[i] <= d.a[i - 1]);
        memcpy(sorted + i * n, old + order[i] * n, (size_t)n * sizeof *old);
      }
      double *B = between(Q, A, sorted, n), *one = between(Q, I, Q, n), *off = between(Q, A, Q, n);
      CHECK(largest_off(B, n, true) <= 5e-6 * top);
      for (int64_t i = 0; i < n * n; i++)
        CHECK(fabs(one[i] - I[i]) <= 5e-6);
      last = largest_off(off, n, false) / top;
      if (step == 0) first = last;
      double *all[] = {old, sorted, I, Q, rayleigh, B, one, off};
      for (int i = 0; i < 8; i++)
        free(all[i]);
    }
    CHECK(n == 1 || last <= 0.5 * first);
    float *kept = malloc((size_t)(n * n) * sizeof *kept);
    memcpy(kept, V.a, (size_t)(n * n) * sizeof *kept);
    sym_set(F, n - 1, 0, NAN);
    CHECK(!ng_matrix_refresh(q, &m, order, scratch));
    CHECK(memcmp(kept, V.a, (size_t)(n * n) * sizeof *kept) == 0);
    work_free(scratch, floats * (int64_t)sizeof *scratch);
    free(kept);
    free(A);
    mat_free(V);
    mat_free(d);
    sym_free(older);
    F.a[ng_sym_at(n, n - 1, 0)] = 0.0f;
    sym_free(F);
  }
}

/* One iteration without sorting from the basis V of another matrix: Q'(F + shift I) V is upper triangular and |Q'Q - I| is
 * small, with the limits of `refreshes`. If F is 0, the vectors stay, up to their signs: the shift fixes a null space. */
static void iterations(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    if (n > 40) continue;
    for (int zero = 0; zero < 2; zero++) {
      ng_sym F = sym_positive(n, 0.5);
      mat V = mat_new(n, n, 0), R = mat_new(n, n, 0), d = mat_new(1, n, 0);
      ng_matrix m = {.result = NG_RESULT_EIGEN, .n = n, .F = F.a, .R = V.a, .d = d.a};
      m.average_dtype = m.result_dtype = NG_F32;
      CASE("iteration n = %" PRId64 " zero %d", n, zero);
      const int64_t floats = ng_matrix_scratch(q, &m);
      float *scratch = work_new(floats * (int64_t)sizeof *scratch);
      CHECK(solve_matrix(q, &m, 0.0, 1.0, 0.0, scratch) == 0);
      ng_queue_wait(q);
      for (int64_t i = 0; i < n; i++) /* another matrix than the matrix of the basis */
        sym_set(F, i, 0, ng_sym_get(F, i, 0) + 1.0f);
      if (zero == 1) sym_diagonal(F, 0.0f);
      m.R = R.a;
      ng_matrix_iterate(q, &m, V.a, 0.5, scratch);
      ng_queue_wait(q);
      CHECK(ng_read_info(q, &m.info) == 0 && ng_read_info(q, &m.finite) == 1);
      double *A = dense(F), *I = zeros(n * n), *old = dense_mat(V), *Q = dense_mat(R);
      for (int64_t i = 0; i < n; i++) {
        A[i * (n + 1)] += 0.5;
        I[i * (n + 1)] = 1.0;
      }
      double *B = between(Q, A, old, n), *one = between(Q, I, Q, n), *same = between(Q, I, old, n);
      const double top = fmax(largest_off(A, n, false), A[0]);
      CHECK(largest_off(B, n, true) <= 5e-6 * (double)n * top);
      for (int64_t i = 0; i < n * n; i++)
        CHECK(fabs(one[i] - I[i]) <= 5e-6 && (zero == 0 || fabs(fabs(same[i]) - I[i]) <= 5e-6));
      double *all[] = {A, I, old, Q, B, one, same};
      for (int i = 0; i < 7; i++)
        free(all[i]);
      work_free(scratch, floats * (int64_t)sizeof *scratch);
      mat_free(V);
      mat_free(R);
      mat_free(d);
      sym_free(F);
    }
  }
}

/* A range of a direction: a weight with a column behind it, and that column; with a map of columns. */
static void directions(void **arg) {
  static const int32_t map[2] = {1, 0};
  const float P[6] = {0, 1, 2, 3, 4, 5}; /* [2, 3]: the bias is column 2 */
  ng_direction e = {.D = {.row = 1, .rows = 1, .cols = 2}};
  ng_describe_stored(&e, P, 3, 1, map);
  assert_true(e.is_stored && e.map == map && e.u == P + 3 && e.u_row == 3 && e.u_col == 1);
  e = (ng_direction){.D = {.col = 1, .rows = 1, .cols = 1}};
  ng_describe_stored(&e, P + 2, 0, 3, NULL);
  assert_true(e.is_stored && e.map == NULL && *e.u == 5.0f);
}

static int32_t decompositions[2]; /* in f32, in double */

static void count_eigen(ng_queue *q, int64_t n, void *V, ng_dtype t, void *w, void *work,
                        int *info) {
  decompositions[t == NG_F64]++;
  ng_linalg_ref.eigen(q, n, V, t, w, work, info);
}

/* A matrix that needs double is not decomposed in f32 first if |F|^2 / tr F exceeds the limit.  If only the largest
 * eigenvalue exceeds it, as of the last matrix, diag(1, 1/2, ...), the decomposition is repeated in double. */
static void a_decomposition_in_f32_is_not_in_vain(void **state) {
  ng_linalg_ops linalg = ng_linalg_ref;
  ng_backend backend = ng_backend_ref;
  ng_queue q = {.backend = &backend, .threads = 1};
  float *scratch = malloc(SCRATCH * sizeof *scratch), R[MOST * MOST], d[MOST];
  static const double damping[3] = {1e-3, 1e-7, 5e-6};
  ng_sym S = sym_positive(MOST, 0.5);
  linalg.eigen = count_eigen;
  backend.linalg = &linalg;
  for (int i = 0; i < 6; i++) {
    if (i == 4) memset(S.a, 0, (size_t)ng_sym_count(MOST) * sizeof *S.a);
    for (int64_t k = 0; i == 4 && k < MOST; k++)
      S.a[ng_sym_at(MOST, k, k)] = k == 0 ? 1.0F : 0.5F;
    const ng_result result = i % 2 == 0 ? NG_RESULT_EIGEN : NG_RESULT_ROOT;
    ng_matrix m = {.n = MOST,
                   .F = S.a,
                   .scale = 1.0,
                   .result = result,
                   .p = 4.0,
                   .average_dtype = NG_F32,
                   .result_dtype = NG_F32,
                   .R = R,
                   .d = d};
    memset(decompositions, 0, sizeof decompositions);
    assert_int_equal(solve_matrix(&q, &m, 0.0, damping[i / 2], 0.0, scratch), 0);
    assert_int_equal(decompositions[0], i / 2 != 1);
    assert_int_equal(decompositions[1], i >= 2);
  }
  sym_free(S);
  free(scratch);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(every_form_result_kind_and_dtype),
      EACH(lists),
      EACH(roots),
      EACH(diagonal_roots),
      EACH(root_of_a_negative_eigenvalue),
      EACH(root_out_of_range),
      EACH(refreshes),
      EACH(iterations),
      EACH(directions),
      cmocka_unit_test(a_decomposition_in_f32_is_not_in_vain),
  };
  return run_on_backends("twosided", tests, sizeof tests / sizeof tests[0]);
}
