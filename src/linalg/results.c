/* results.c: compute the result of a matrix once, with its checks: the entry `solve` on the host (ng_matrix).
 *
 * In: F, with its scale, shift, damping; d is the sum of the last two. Out: (F + d I)^-1, or L of F + d I = L L', or F = Q diag(e) Q', or F itself, or
 * (F + d I)^(-1/p), rounded to its dtype. The ladder of twosided/ tries again where `accepted` is 0.
 *
 * LAPACK reports success on NaN. So the caller scans F, and the result is checked: by one column or by three eigenpairs. */
#include "core/core.h"
#include "linalg/vector.h"

#include <math.h>
#include <string.h>

/* ---- scratch ---------------------------------------------------------------------------------*/

static bool needs_eigen(const ng_matrix *m) {
  return m->result == NG_RESULT_EIGEN || m->result == NG_RESULT_ROOT;
}

/* inverse, factor: W [tri] in double, F [tri] in f32, then three vectors of doubles. eigen, root:
 * V [n, n], in double also V64 [n, n]; F [tri]; vectors of n: three doubles, one float; work. */
int64_t ng_solve_scratch(const ng_queue *q, const ng_matrix *m) {
  const int64_t n = m->n, vectors = 6 * ng_round16(2 * n), tri = ng_sym_count(n);
  if (m->form != NG_FORM_SYMMETRIC) return 0;
  if (!needs_eigen(m)) return 2 * ng_round16(2 * tri) + vectors;
  const int64_t single =
      ng_round16(n * n) + ng_round16(ng_linalg_uncounted(q)->eigen_work(q, n, NG_F32) / 4 + 16);
  const int64_t twice =
      3 * ng_round16(n * n) + ng_round16(ng_linalg_uncounted(q)->eigen_work(q, n, NG_F64) / 4 + 16);
  return ng_max64(single, twice) + ng_round16(tri) + vectors;
}

/* Return F as f32: in place, or converted to `room`. */
static ng_sym load_average_as_f32(const ng_matrix *m, float *room) {
  if (m->average_dtype == NG_F32) return (ng_sym){(float *)(uintptr_t)m->F, m->n};
  ng_to_f32(room, m->F, m->average_dtype, ng_sym_count(m->n));
  return (ng_sym){room, m->n};
}

/* Round `count` numbers to m->R; return false, with R unchanged, if one is not finite or not in the range of its dtype (the
 * largest f16 is 65504). */
static bool store_result(const ng_matrix *m, int64_t count, const float *x) {
  if (!((double)ng_float_of_bits(ng_find_largest_bits(x, NG_F32, count)) <=
        ng_dtype_largest(m->result_dtype)))
    return false;
  ng_from_f32(m->R, m->result_dtype, x, count);
  return true;
}

/* ---- inverse, factor -------------------------------------------------------------------------*/

/* Checks take n^2 operations, few compared with the n^3 of a solve. They are in double, because the rounding errors of f32
 * sums would appear as a residual. */

/* Return the largest entry of |(scale F + d I) x - e_j|; F: f32 or f64; x: column j of the inverse; e_j: column j of I; y [n]:
 * scratch. */
static double largest_residual(const ng_matrix *m, const void *F, ng_dtype t, double d, int64_t j,
                               const double *x, double *y) {
  const int64_t n = m->n;
  double worst = 0.0;
  ng_sym_vector(n, F, t, x, y);
  for (int64_t i = 0; i < n; i++) {
    const double r = fabs(m->scale * y[i] + d * x[i] - (i == j ? 1.0 : 0.0));
    if (!(r <= worst)) worst = r; /* written so that a NaN in r ends in `worst` */
  }
  return worst;
}

/* Return the index of the largest diagonal entry of an inverse, or of the smallest one of L; -1 if a diagonal entry is not
 * positive and finite. The column of this index has the largest error, so a check of this column covers all columns. */
static int64_t worst_column(int64_t n, const void *R, ng_dtype t, bool is_factor) {
  int64_t at = 0;
  double extreme = 0.0;
  for (int64_t i = 0; i < n; i++) {
    const double x = ng_number_at(R, t, ng_sym_at(n, i, i));
    if (!(x > 0.0) || !(x - x == 0.0)) return -1;
    if (i == 0 || (is_factor ? x < extreme : x > extreme)) {
      extreme = x;
      at = i;
    }
  }
  return at;
}

/* Compute and check the result in the dtype of the solve, then round it to its dtype. Return false if a check fails or the
 * result exceeds f32. */
static bool solve_symmetric(ng_queue *q, ng_matrix *m, float *scratch) {
  const int64_t n = m->n, tri = ng_sym_count(n);
  const ng_dtype t = ng_dtype_of_solve(m);
  void *W = scratch;
  float *room = scratch + ng_round16(2 * tri);
  double *column = (double *)(void *)(room + ng_round16(tri));
  double *x = column + ng_round16(n), *y = x + ng_round16(n), d = m->shift + m->damping;
  const bool wide = m->average_dtype == NG_F64, is_factor = m->result == NG_RESULT_CHOLESKY;
  const void *F = wide ? m->F : load_average_as_f32(m, room).a;
  if (wide) memcpy(W, F, (size_t)tri * sizeof(double));
  if (!wide) ng_from_f32(W, t, F, tri);
  if (m->scale != 1.0) ng_host_scale(q, tri, W, t, m->scale);
  ng_linalg_uncounted(q)->shift_diagonal(q, n, W, t, false, d);
  ng_linalg_uncounted(q)->factor(q, n, W, t, &m->info);
  if (m->info == 0 && !is_factor) ng_linalg_uncounted(q)->invert(q, n, W, t, &m->info);
  if (m->info != 0) return false;
  const int64_t j = worst_column(n, W, t, is_factor);
  if (j < 0) return false;
  for (int64_t i = 0; i < n; i++) {
    ng_set_number(column, t, i,
                  !is_factor ? ng_number_at(W, t, ng_sym_at(n, i, j)) : (double)(i == j));
  }
  if (is_factor) ng_linalg_uncounted(q)->solve_right(q, n, W, t, 1, column, n);
  for (int64_t i = 0; i < n; i++) {
    x[i] = ng_number_at(column, t, i);
  }
  if (!(largest_residual(m, F, wide ? NG_F64 : NG_F32, d, j, x, y) <= NG_RESIDUAL_MOST))
    return false;
  ng_to_f32(room, W, t, tri); /* room contained F */
  if (m->result_dtype != NG_F64) return store_result(m, tri, room);
  if (!ng_are_finite(room, NG_F32, tri)) return false;
  memcpy(m->R, W, (size_t)tri * sizeof(double));
  return true;
}

/* ---- eigen -----------------------------------------------------------------------------------*/

/* Check that eigenvalues e are finite and not too negative, the residual and norm of the first, middle and last
 * eigenpair, and the orthogonality of the first and last eigenvector. x, y [n]: scratch. */
static bool check_eigen(ng_sym F, ng_dtype average_dtype, const float *V, const float *e, double *x,
                        double *y) {
  const int64_t n = F.n, sample[3] = {0, n / 2, n - 1};
  double top = 0.0, dot = 0.0;
  for (int64_t i = 0; i < n; i++) {
    if (!(e[i] - e[i] == 0.0f)) return false;
    top = fmax(top, fabs((double)e[i]));
  }
  if ((double)e[0] < -ng_negative_limit(average_dtype, n) * top) return false;
  for (int s = 0; s < 3; s++) {
    const float *v = V + sample[s] * n;
    double norm = 0.0, worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
      x[i] = v[i];
      norm += x[i] * x[i];
    }
    ng_sym_vector(n, F.a, NG_F32, x, y);
    for (int64_t i = 0; i < n; i++) {
      const double r = fabs(y[i] - (double)e[sample[s]] * x[i]);
      if (!(r <= worst)) worst = r;
    }
    if (!(worst <= NG_NEGATIVE_MOST * top) || !(fabs(norm - 1.0) <= NG_NEGATIVE_MOST)) return false;
  }
  for (int64_t i = 0; i < n && n > 1; i++) {
    dot += (double)V[i] * (double)V[(n - 1) * n + i];
  }
  return fabs(dot) <= NG_NEGATIVE_MOST;
}

/* Return x rounded to the dtype of m->d. */
static double round_to_result(const ng_matrix *m, double x) {
  return m->result_dtype == NG_F64 ? x : (double)(float)x;
}

/* Return x = e + shift in the dtype of the result, or 0 if x <= floor or x < 0 (floor: KAISA 0, MPD-KFAC 1e-10). An x below -lambda
 * would reverse the direction. */
static double shift_and_clamp_eigenvalue(const ng_matrix *m, double e) {
  const double x = round_to_result(m, e + m->shift);
  return x <= m->floor || x < 0.0 ? 0.0 : x;
}

/* R <- (scale V' diag(e) V + d I)^(-1/p) = B'B, row i of B: (scale e_i + d)^(-1/2p) v_i; e ascending. If rounding makes e_0
 * negative, all e_i are reduced by e_0, as in facebookresearch/optimizers: vectors of one null space then stay alike. B
 * replaces V; root [n], S [tri]: scratch. Return false if the result does not fit its dtype. */
static bool store_root(ng_queue *q, ng_matrix *m, float *V, const float *e, float *root, float *S) {
  const int64_t n = m->n, tri = ng_sym_count(n);
  const double d = m->shift + m->damping - m->scale * fmin((double)e[0], 0.0);
  for (int64_t i = 0; i < n; i++) {
    root[i] = (float)pow(m->scale * (double)e[i] + d, 0.5 / m->p);
  }
  ng_linalg_uncounted(q)->divide(q, n, n, (ng_spectrum){.g = root}, V, NG_F32, n);
  memset(S, 0, (size_t)tri * sizeof *S);
  ng_linalg_uncounted(q)->add_gram(q, (ng_sym){S, n}, 0, n, V, n, n, 1.0f);
  return store_result(m, tri, S);
}

/* Return whether the largest eigenvalue, which is at least |F|^2 / tr F, will need double: then f32 would be in vain. */
static bool will_need_double(ng_queue *q, const ng_matrix *m) {
  const int64_t tri = ng_sym_count(m->n);
  const float *F = m->F;
  double squares = 0.0, trace = 0.0, diagonal = 0.0;
  if (m->average_dtype != NG_F32) return false;
  ng_linalg_uncounted(q)->sum_squares(q, 1, tri, F, NG_F32, tri, &squares);
  for (int64_t i = 0; i < m->n; i++) {
    const double x = (double)F[ng_sym_at(m->n, i, i)];
    trace += x;
    diagonal += x * x;
  }
  return trace > 0.0 &&
         ng_eigen_needs_double(m->scale * (2.0 * squares - diagonal) / trace, m->damping);
}

/* Compute eigenvectors and eigenvalues, in f32 or in double, and store them or the root. Return false if LAPACK or
 * check_eigen fails, or the result does not fit. The check reads f32 copies, because it detects failures only. */
static bool decompose(ng_queue *q, ng_matrix *m, float *scratch) {
  m->uses_double = m->uses_double || will_need_double(q, m);
  const ng_dtype t = ng_dtype_of_solve(m);
  const bool in_double = t == NG_F64;
  const int64_t n = m->n, full = ng_round16(n * n);
  float *V = in_double ? scratch + 2 * full : scratch;
  float *room = V + full, *e = room + ng_round16(ng_sym_count(n));
  double *x = (double *)(void *)(e + ng_round16(n)), *y = x + ng_round16(n);
  double *w = y + ng_round16(n);
  void *work = w + ng_round16(n), *vectors = in_double ? scratch : V,
       *values = in_double ? (void *)w : e;
  const ng_sym F = load_average_as_f32(m, room);
  ng_sym_unpack(F, V, n);
  if (in_double) ng_from_f32(vectors, t, V, n * n);
  if (m->average_dtype == NG_F64) ng_linalg_uncounted(q)->unpack(q, n, m->F, t, vectors, n);
  ng_linalg_uncounted(q)->eigen(q, n, vectors, t, values, work, &m->info);
  if (m->info != 0) return false;
  if (in_double) {
    ng_to_f32(V, vectors, t, n * n);
    ng_to_f32(e, values, t, n);
  }
  if (!check_eigen(F, m->average_dtype, V, e, x, y)) return false;
  m->largest_eigenvalue =
      in_double
          ? 0.0
          : m->scale *
                (double)e[n - 1]; /* the eigenvalues were computed in double, so their f32 copies
                                                      * suffice for the check */
  if (m->result == NG_RESULT_ROOT) return store_root(q, m, V, e, (float *)(void *)x, room);
  if (m->result_dtype == NG_F64) {
    memcpy(m->R, vectors, (size_t)(n * n) * sizeof(double));
  } else if (!store_result(m, n * n, V)) {
    return false;
  }
  for (int64_t i = 0; i < n; i++) {
    ng_set_number(m->d, m->result_dtype, i,
                  shift_and_clamp_eigenvalue(m, ng_number_at(values, t, i)));
  }
  return true;
}

/* ---- any form --------------------------------------------------------------------------------*/

/* Return element i of the result of a diagonal matrix, in double. */
static double diagonal_result(const ng_matrix *m, int64_t i) {
  const double F = (double)((const float *)m->F)[i], x = 1.0 / (F + (m->shift + m->damping));
  if (m->result == NG_RESULT_EIGEN) return shift_and_clamp_eigenvalue(m, F);
  if (m->result == NG_RESULT_COPY) return F;
  return m->result == NG_RESULT_ROOT ? pow(x, 1.0 / m->p) : x;
}

/* Return false, with m->d unchanged, if an inverse or root is not positive or not in the range of its dtype. */
static bool solve_diagonal(const ng_matrix *m) {
  const bool checks = m->result != NG_RESULT_EIGEN && m->result != NG_RESULT_COPY;
  for (int64_t i = 0; i < m->n && checks; i++) {
    const double x = round_to_result(m, diagonal_result(m, i));
    if (!(x > 0.0) || !(x - x == 0.0)) return false;
  }
  for (int64_t i = 0; i < m->n; i++) {
    ng_set_number(m->d, m->result_dtype, i, diagonal_result(m, i));
  }
  return true;
}

static bool solve_one(ng_queue *q, ng_matrix *m, float *scratch) {
  if (m->form == NG_FORM_ABSENT) return true;
  if (m->form == NG_FORM_DIAGONAL) return solve_diagonal(m);
  if (needs_eigen(m)) return decompose(q, m, scratch);
  if (m->result == NG_RESULT_COPY)
    return store_result(m, ng_sym_count(m->n), load_average_as_f32(m, scratch).a);
  return solve_symmetric(q, m, scratch);
}

void ng_host_solve(ng_queue *q, ng_matrix *const *list, int64_t n, float *scratch) {
  for (int64_t i = 0; i < n; i++) {
    list[i]->accepted = solve_one(q, list[i], scratch);
  }
}
