/* damped.c: compute (F + d I)^-1, or L of F + d I = L L', of a symmetric matrix F.
 *
 * In: F, d. Out: the result, checked and rounded to its dtype, and the rung of the ladder that succeeded: damping d, then d
 * times 10, 100 and 1000, then d in double precision.
 *
 * LAPACK reports success on NaN. So the caller scans F, and one column of the result is checked. */
#include "core/core.h"
#include "linalg/linalg.h"

#include <math.h>
#include <string.h>

/* Largest accepted residual of a column of the inverse. The residual of a correct f32 inverse is about n eps times the
 * condition number, in practice at most 1e-4; above 1e-2 the preconditioned gradient PD becomes wrong. */
#define RESIDUAL_MOST 1e-2

/* ---- scratch: in f32 W [tri] and F [tri], in double W [tri]; then vectors of n: two doubles, one float ---- */

int64_t ng_damped_scratch(int64_t n) {
  return 2 * ng_round16(2 * ng_sym_count(n)) + 6 * ng_round16(2 * n);
}

ng_sym ng_sym_load(ng_queue *q, int64_t n, const void *F, ng_dtype kept, float *room) {
  ng_sym S = {(float *)(uintptr_t)F, n};
  if (kept != NG_F32) {
    ng_on(q)->widen(q, ng_sym_count(n), F, kept, room);
    S.a = room;
  }
  return S;
}

/* The checks run on the host, because their n^2 operations are few compared with the n^3 of a solve. They are in double,
 * because the rounding errors of f32 sums would appear as a residual. */

/* Return the largest entry of |(F + d I) x - e_j|; x: column j of the inverse; e_j: column j of I; y [n]: scratch. */
static double residual(ng_sym F, double d, int64_t j, const double *x, double *y) {
  double worst = 0.0;
  ng_sym_vector(F, x, y);
  for (int64_t i = 0; i < F.n; i++) {
    const double r = fabs(y[i] + d * x[i] - (i == j ? 1.0 : 0.0));
    if (!(r <= worst)) worst = r; /* NaN stays */
  }
  return worst;
}

/* Return the largest entry of |(F + d I) x - e_j| for an F in double. */
static double residual_wide(const ng_damped *m, double d, int64_t j, const double *x) {
  const double *F = m->F;
  double worst = 0.0;
  for (int64_t i = 0; i < m->n; i++) {
    double r = d * x[i] - (i == j ? 1.0 : 0.0);
    for (int64_t k = 0; k < m->n; k++) {
      r += F[ng_sym_at(m->n, i, k)] * x[k];
    }
    if (!(fabs(r) <= worst)) worst = fabs(r);
  }
  return worst;
}

/* Return the index of the largest diagonal entry of an inverse, or of the smallest one of L. The column of this index has
 * the largest error, so a check of this column covers all columns. *sound <- whether all diagonal entries are positive and
 * finite. */
static int64_t worst_column(ng_sym R, bool is_factor, bool *sound) {
  int64_t at = 0;
  float extreme = 0.0f;
  *sound = true;
  for (int64_t i = 0; i < R.n; i++) {
    const float x = ng_sym_get(R, i, i);
    if (!(x > 0.0f) || !(x - x == 0.0f)) *sound = false;
    if (i == 0 || (is_factor ? x < extreme : x > extreme)) {
      extreme = x;
      at = i;
    }
  }
  return at;
}

/* ---- single and double -----------------------------------------------------------------------*/

/* Return whether the result R passes its checks. Scratch of n numbers: x, y; column. */
static bool passes_checks(ng_queue *q, const ng_damped *m, ng_sym F, double d, ng_sym R,
                          float *column, double *x, double *y) {
  bool sound = false;
  NG_ASSERT(ng_queue_settled(q));
  const int64_t j = worst_column(R, m->is_factor, &sound);
  if (!sound) return false;
  if (m->is_factor) {
    memset(column, 0, (size_t)m->n * sizeof *column);
    column[j] = 1.0f;
    ng_on(q)->solve_left(q, R, 1, column, 1);
    ng_queue_wait(q);
  }
  for (int64_t i = 0; i < m->n; i++) {
    x[i] = (double)(m->is_factor ? column[i] : ng_sym_get(R, i, j));
  }
  return residual(F, d, j, x, y) <= RESIDUAL_MOST;
}

/* Return whether factor and invert succeeded. Both are enqueued before the host reads the info of factor; if factor fails,
 * the time of invert is lost. */
static bool both_succeeded(const ng_queue *q, const ng_damped *m) {
  return ng_info_read(q, &m->info[0]) == 0 && (m->is_factor || ng_info_read(q, &m->info[1]) == 0);
}

bool ng_fits_dtype(ng_queue *q, int64_t n, const float *x, ng_dtype t, double *largest) {
  if (t == NG_F32) return true;
  ng_on(q)->largest(q, n, x, NG_F32, largest);
  ng_queue_wait(q);
  return *ng_numbers_read(q, largest) <= ng_dtype_largest(t);
}

static bool solve_single(ng_queue *q, const ng_damped *m, double d, float *scratch) {
  const int64_t tri = ng_sym_count(m->n);
  ng_sym W = {scratch, m->n};
  float *room = scratch + ng_round16(tri), *column = room + ng_round16(tri);
  double *x = (double *)(void *)(column + ng_round16(m->n)), *y = x + ng_round16(m->n);
  const ng_sym F = ng_sym_load(q, m->n, m->F, m->kept, room);
  ng_on(q)->copy(q, 1, tri, F.a, tri, W.a, tri);
  ng_on(q)->shift(q, m->n, W.a, NG_F32, d);
  ng_on(q)->factor(q, W, &m->info[0]);
  if (!m->is_factor) ng_on(q)->invert(q, W, &m->info[1]);
  ng_queue_wait(q);
  if (!both_succeeded(q, m)) return false;
  if (!passes_checks(q, m, F, d, W, column, x, y) ||
      !ng_fits_dtype(q, tri, W.a, m->stored, m->largest))
    return false;
  ng_on(q)->narrow(q, tri, W.a, m->R, m->stored);
  return true;
}

/* Compute and check the result in double, then round it to its dtype. Return false if a check fails or the result exceeds
 * f32. */
static bool solve_double(ng_queue *q, const ng_damped *m, double d, float *scratch) {
  const int64_t n = m->n, tri = ng_sym_count(n);
  double *W = (double *)(void *)scratch;
  float *room = scratch + ng_round16(2 * tri);
  double *x = (double *)(void *)(room + ng_round16(tri)), *y = x + ng_round16(n);
  const bool wide = m->kept == NG_F64;
  const ng_sym F = wide ? (ng_sym){room, n} : ng_sym_load(q, n, m->F, m->kept, room);
  ng_queue_wait(q);
  for (int64_t i = 0; i < tri; i++) {
    W[i] = wide ? ((const double *)m->F)[i] : (double)F.a[i];
  }
  for (int64_t i = 0; i < n; i++) {
    W[ng_sym_at(n, i, i)] += d;
  }
  ng_on(q)->factor64(q, n, W, &m->info[0]);
  if (!m->is_factor) ng_on(q)->invert64(q, n, W, &m->info[1]);
  ng_queue_wait(q);
  if (!both_succeeded(q, m)) return false;
  int64_t j = 0;
  for (int64_t i = 0; i < n; i++) {
    const double w = W[ng_sym_at(n, i, i)], best = W[ng_sym_at(n, j, j)];
    if (!(w > 0.0)) return false;
    if (m->is_factor ? w < best : w > best) j = i;
  }
  for (int64_t i = 0; i < n; i++) {
    x[i] = !m->is_factor ? W[ng_sym_at(n, i, j)] : i == j ? 1.0 : 0.0;
  }
  if (m->is_factor) {
    ng_on(q)->solve64(q, n, W, x);
    ng_queue_wait(q);
  }
  if (!((wide ? residual_wide(m, d, j, x) : residual(F, d, j, x, y)) <= RESIDUAL_MOST))
    return false;
  for (int64_t i = 0; i < tri; i++) {
    room[i] = (float)W[i]; /* room contained F, and now receives the rounded result */
    if (!(room[i] - room[i] == 0.0f)) return false;
  }
  if (m->stored == NG_F64) {
    memcpy(m->R, W, (size_t)tri * sizeof *W);
    return true;
  }
  if (!ng_fits_dtype(q, tri, room, m->stored, m->largest)) return false;
  ng_on(q)->narrow(q, tri, room, m->R, m->stored);
  return true;
}

/* The ladder tries more damping before double precision, because a solve in f32 is cheaper, and because most matrices that
 * fail are rank-deficient. */
int32_t ng_damped_solve(ng_queue *q, const ng_damped *m, double d, float *scratch) {
  double shift = d;
  const bool wide = m->kept == NG_F64;
  for (int32_t rung = 0; rung < NG_DAMPED_DOUBLE; rung++, shift *= 10.0) {
    if (wide ? solve_double(q, m, shift, scratch) : solve_single(q, m, shift, scratch)) return rung;
  }
  return solve_double(q, m, d, scratch) ? NG_DAMPED_DOUBLE : NG_DAMPED_NONE;
}
