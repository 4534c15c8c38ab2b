/* small.c: the entry `solve` of `cpu`: inverses and Cholesky factors of small matrices in threads, the others by LAPACK.
 *
 * LAPACK has no threads for one small matrix, and a call for each has more overhead than work. So each thread
 * computes whole matrices by the loops below, in double. A result does not depend on the other matrices of the list. */
#include "linalg/vector.h"

#include <math.h>
#include <string.h>

#include "core/core.h"
#include "simd.h"

/* The matrices of a thread are on its stack, at most 70 KB. Up to this order these loops are faster than dpftrf and dpftri. */
enum {
  LARGEST_ORDER = 64,
  SCRATCH = 2 * (LARGEST_ORDER * (LARGEST_ORDER + 1) + 16) + 12 * LARGEST_ORDER
};

/* ---- loops -----------------------------------------------------------------------------------*/

/* y <- y + sum over t < 4 of a[t] x[t stride + ...]. */
static inline void add_rows(int64_t n, const double a[4], const double *restrict x, int64_t stride,
                            double *restrict y) {
  const double *restrict x1 = x + stride, *restrict x2 = x1 + stride, *restrict x3 = x2 + stride;
  for (int64_t i = 0; i < n; i++) {
    y[i] += (a[0] * x[i] + a[1] * x1[i]) + (a[2] * x2[i] + a[3] * x3[i]);
  }
}

static inline void add_row(int64_t n, double a, const double *restrict x, double *restrict y) {
  for (int64_t i = 0; i < n; i++) {
    y[i] += a * x[i];
  }
}

/* Load: row j of A [n, n], from the diagonal on, <- column j of the lower triangle of S. Otherwise store the rows of A, or its
 * columns. */
static void copy_triangle(ng_sym S, bool load, bool columns, double *A) {
  for (int64_t j = 0; j < S.n; j++) {
    float *s = S.a + ng_sym_at(S.n, j, j);
    const int64_t stride = j < (S.n + 1) / 2 ? 1 : S.n | 1;
    for (int64_t i = j; i < S.n; i++, s += stride) {
      double *a = columns ? A + i * S.n + j : A + j * S.n + i;
      if (load) {
        *a = (double)*s;
      } else {
        *s = (float)*a;
      }
    }
  }
}

/* Cholesky by rows of L'. Four rows are subtracted at once from the rows below them. Return LAPACK's info. */
NG_CLONES static int factor_rows(int64_t n, double *A) {
  for (int64_t k = 0; k < n; k++) {
    double *row = A + k * n, *panel = A + k / 4 * 4 * n;
    for (double *x = panel; x < row; x += n) {
      add_row(n - k, -x[k], x + k, row + k);
    }
    if (!(row[k] > 0.0)) return (int)k + 1;
    const double by = 1.0 / sqrt(row[k]);
    for (int64_t i = k; i < n; i++) {
      row[i] *= by;
    }
    for (int64_t i = k + 1; i < n && k % 4 == 3; i++) {
      const double a[4] = {-panel[i], -panel[n + i], -panel[2 * n + i], -row[i]};
      add_rows(n - i, a, panel + i, n, A + i * n + i);
    }
  }
  return 0;
}

static void factor(ng_queue *q, int64_t n, void *a, ng_dtype t, int *info) {
  const ng_sym S = {a, n};
  double A[LARGEST_ORDER * LARGEST_ORDER];
  (void)q, (void)t;
  copy_triangle(S, true, false, A);
  *info = factor_rows(n, A);
  copy_triangle(S, false, false, A);
}

/* Compute W = L^-1 below the diagonal of A, row by row. A has L' on and above the diagonal. */
NG_CLONES static void invert_factor(int64_t n, double *A) {
  for (int64_t i = 0; i < n; i++) {
    double *row = A + i * n;
    int64_t k = 0;
    memset(row, 0, (size_t)i * sizeof *row);
    for (; k + 4 <= i; k += 4) {
      const double a[4] = {A[k * n + i], A[(k + 1) * n + i], A[(k + 2) * n + i],
                           A[(k + 3) * n + i]};
      add_rows(k + 1, a, A + k * n, n, row);
      for (int64_t t = 1; t < 4; t++) {
        add_row(t, a[t], A + (k + t) * n + k + 1, row + k + 1);
      }
    }
    for (; k < i; k++) {
      add_row(k + 1, A[k * n + i], A + k * n, row);
    }
    const double by = 1.0 / row[i];
    for (int64_t j = 0; j < i; j++) {
      row[j] *= -by;
    }
    row[i] = by;
  }
}

/* (L L')^-1 = W'W. Row i of the product needs rows i and later of W, so the product replaces W. */
NG_CLONES static void multiply_factors(int64_t n, double *A) {
  for (int64_t i = 0; i < n; i++) {
    double *row = A + i * n;
    const double by = row[i];
    int64_t k = i + 1;
    for (int64_t j = 0; j <= i; j++) {
      row[j] *= by;
    }
    for (; k + 4 <= n; k += 4) {
      const double *x = A + k * n, a[4] = {x[i], x[n + i], x[2 * n + i], x[3 * n + i]};
      add_rows(i + 1, a, x, n, row);
    }
    for (; k < n; k++) {
      add_row(i + 1, A[k * n + i], A + k * n, row);
    }
  }
}

static void invert(ng_queue *q, int64_t n, void *a, ng_dtype t, int *info) {
  const ng_sym L = {a, n};
  double A[LARGEST_ORDER * LARGEST_ORDER];
  (void)q, (void)t;
  *info = 0;
  copy_triangle(L, true, false, A);
  invert_factor(n, A);
  multiply_factors(n, A);
  copy_triangle(L, false, true, A);
}

/* One right-hand side. */
static void solve_right(ng_queue *q, int64_t n, const void *L, ng_dtype t, int64_t m, void *B,
                        int64_t ldb) {
  double A[LARGEST_ORDER * LARGEST_ORDER], x[LARGEST_ORDER];
  (void)q, (void)t, (void)m, (void)ldb;
  copy_triangle((ng_sym){(float *)(uintptr_t)L, n}, true, false, A);
  ng_from_f32(x, NG_F64, B, n);
  for (int64_t j = 0; j < n; j++) {
    x[j] /= A[j * n + j];
    add_row(n - j - 1, -x[j], A + j * n + j + 1, x + j + 1);
  }
  for (int64_t j = n - 1; j >= 0; j--) {
    for (int64_t i = j + 1; i < n; i++) {
      x[j] -= A[j * n + i] * x[i];
    }
    x[j] /= A[j * n + j];
  }
  ng_to_f32(B, x, NG_F64, n);
}

/* ---- the entry -------------------------------------------------------------------------------*/

/* What ng_host_solve calls for a small matrix. */
static const ng_linalg_ops small = {.shift_diagonal = ng_host_shift_diagonal,
                                    .factor = factor,
                                    .invert = invert,
                                    .solve_right = solve_right};

static bool is_solved_here(const ng_matrix *m) {
  return m->form == NG_FORM_SYMMETRIC && m->n <= LARGEST_ORDER && ng_dtype_of_solve(m) == NG_F32 &&
         (m->result == NG_RESULT_INVERSE || m->result == NG_RESULT_CHOLESKY);
}

typedef struct small_job {
  ng_matrix *const *list;
  int64_t n;
  int32_t pieces;
} small_job;

static void solve_share(void *arg, int32_t piece) {
  const small_job *j = arg;
  static const ng_backend backend = {.linalg = &small};
  ng_queue own = {.backend = &backend};
  _Alignas(64) float scratch[SCRATCH];
  for (int64_t i = piece; i < j->n; i += j->pieces) {
    if (is_solved_here(j->list[i])) ng_host_solve(&own, &j->list[i], 1, scratch);
  }
}

void ng_small_solve(ng_queue *q, ng_matrix *const *list, int64_t n, float *scratch) {
  small_job j = {list, n, 1};
  int64_t work = 0;
  for (int64_t i = 0; i < n; i++) {
    if (is_solved_here(list[i])) {
      work += list[i]->n * list[i]->n * list[i]->n;
    } else {
      ng_host_solve(q, &list[i], 1, scratch);
    }
  }
  j.pieces = (int32_t)ng_min64(n, ng_queue_pieces(q, work));
  ng_queue_run(q, j.pieces, solve_share, &j);
}
