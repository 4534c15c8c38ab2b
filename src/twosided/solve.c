/* solve.c: compute the result of one matrix.
 *
 * In: the average F, a shift and damping; d is their sum. Out: (F + d I)^-1, or L of F + d I = L L', or F = Q diag(e) Q',
 * or F itself, or (F + d I)^(-1/p); and the first rung of the ladder that succeeds.
 *
 * LAPACK reports success on NaN. So the caller scans F before the solve (ng_matrix_measure), and the result is checked
 * after the solve: by one column (linalg/damped.c) or by three eigenpairs. */
#include "twosided/twosided.h"

#include <math.h>
#include <string.h>

/* Rounding makes eigenvalues of a covariance of order n as low as -n eps times the largest. 1e-3 exceeds n eps up to
 * n = 16000 and is far below the negative eigenvalues of an indefinite matrix. */
#define NEGATIVE_MOST 1e-3

/* Eigenvalues computed in f32 have an error of about 2^-24 of the largest eigenvalue. If this error exceeds EIGEN_ERROR_MOST
 * times the damping, eigenvalues are computed in double: the weight 1 / (e + damping) of a small eigenvalue e would be wrong.
 * linalg/damped.c has the same limit for its residual. */
#define EIGEN_ERROR_MOST 1e-2

void ng_matrix_measure(ng_queue *q, ng_matrix *m) {
  if (m->form == NG_FORM_DIAGONAL) {
    m->trace = 0.0;
    for (int64_t i = 0; i < m->n; i++) {
      m->trace += (double)((const float *)m->F)[i];
    }
    m->finite = m->trace - m->trace == 0.0;
    return;
  }
  ng_on(q)->finite(q, ng_sym_count(m->n), m->F, m->average_dtype, &m->finite);
  ng_on(q)->trace(q, m->n, m->F, m->average_dtype, &m->trace);
}

static bool is_decomposed(const ng_matrix *m) {
  return m->result == NG_RESULT_EIGEN || m->result == NG_RESULT_ROOT;
}

/* ---- scratch ---------------------------------------------------------------------------------*/

/* eigen, root: V [n, n], work; in double also V64 [n, n]. refresh: V, F V, work. Then F, and 6 vectors of doubles. */

int64_t ng_matrix_scratch(const ng_queue *q, const ng_matrix *m) {
  const int64_t n = m->n, vectors = 6 * ng_round16(2 * n), tri = ng_sym_count(n);
  if (m->form != NG_FORM_SYMMETRIC) return n;
  if (!is_decomposed(m)) return ng_damped_scratch(n);
  const int64_t single = ng_round16(n * n) + ng_round16(q->la->eigen_work(q, n) / 4 + 16);
  const int64_t twice = 3 * ng_round16(n * n) + ng_round16(q->la->eigen64_work(q, n) / 4 + 16);
  const int64_t refresh = 2 * ng_round16(n * n) + ng_round16(q->la->qr_work(q, n, n) / 4 + 16);
  return ng_max64(ng_max64(single, twice), refresh) + ng_round16(tri) + vectors;
}

/* ---- inverse, copy ---------------------------------------------------------------------------*/

static int32_t solve_damped(ng_queue *q, ng_matrix *m, double d, float *scratch) {
  const ng_damped a = {.n = m->n,
                       .F = m->F,
                       .kept = m->average_dtype,
                       .R = m->R,
                       .stored = m->result_dtype,
                       .is_factor = m->result == NG_RESULT_CHOLESKY,
                       .info = m->info,
                       .largest = &m->largest};
  return ng_damped_solve(q, &a, d, scratch);
}

static int32_t copy_average(ng_queue *q, ng_matrix *m, float *scratch) {
  const int64_t count = ng_sym_count(m->n);
  const ng_sym F = ng_sym_load(q, m->n, m->F, m->average_dtype, scratch);
  if (!ng_fits_dtype(q, count, F.a, m->result_dtype, &m->largest)) return NG_DAMPED_NONE;
  ng_on(q)->narrow(q, count, F.a, m->R, m->result_dtype);
  return 0;
}

/* ---- eigen -----------------------------------------------------------------------------------*/

/* Return x such that eigenvalues down to -x times the largest eigenvalue are accepted. Rounding the n entries of each
 * row to a 16-bit dtype t moves an eigenvalue by up to n half units in the last place. */
static double negative_limit(ng_dtype t, int64_t n) {
  return t == NG_F32 ? NEGATIVE_MOST : fmin(0.5, (double)n * (t == NG_BF16 ? 0x1p-8 : 0x1p-11));
}

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
  if ((double)e[0] < -negative_limit(average_dtype, n) * top) return false;
  for (int s = 0; s < 3; s++) {
    const float *v = V + sample[s] * n;
    double norm = 0.0, worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
      x[i] = v[i];
      norm += x[i] * x[i];
    }
    ng_sym_vector(F, x, y);
    for (int64_t i = 0; i < n; i++) {
      const double r = fabs(y[i] - (double)e[sample[s]] * x[i]);
      if (!(r <= worst)) worst = r;
    }
    if (!(worst <= NEGATIVE_MOST * top) || !(fabs(norm - 1.0) <= NEGATIVE_MOST)) return false;
  }
  for (int64_t i = 0; i < n && n > 1; i++) {
    dot += (double)V[i] * (double)V[(n - 1) * n + i];
  }
  return fabs(dot) <= NEGATIVE_MOST;
}

/* An eigenvalue below -lambda would reverse the direction, so eigenvalues at or below `floor` become 0 (KAISA: 0,
 * MPD-KFAC: 1e-10). */
static void shift_eigenvalues(int64_t n, const float *e, double shift, double floor, float *to) {
  for (int64_t i = 0; i < n; i++) {
    const float x = (float)((double)e[i] + shift);
    to[i] = (double)x <= floor || x < 0.0f ? 0.0f : x;
  }
}

/* R <- (V' diag(e) V + d I)^(-1/p) = B'B, row i of B: (e_i + d)^(-1/2p) v_i. B replaces V; root [n], S [tri]: scratch.
 * Return false if the result does not fit its dtype. */
static bool store_root(ng_queue *q, ng_matrix *m, float *V, const float *e, double d, float *root,
                       float *S) {
  const int64_t n = m->n, tri = ng_sym_count(n);
  ng_on(q)->power(q, n, e, d, 0.5 / m->p, root);
  ng_on(q)->divide(q, n, n, (ng_spectrum){.g = root}, V, n);
  ng_on(q)->scale(q, tri, S, 0.0);
  ng_on(q)->add_gram(q, (ng_sym){S, n}, 0, n, V, n, n, 1.0f);
  ng_on(q)->finite(q, tri, S, NG_F32, &m->info[1]);
  ng_queue_wait(q);
  if (ng_info_read(q, &m->info[1]) == 0 || !ng_fits_dtype(q, tri, S, m->result_dtype, &m->largest))
    return false;
  ng_on(q)->narrow(q, tri, S, m->R, m->result_dtype);
  return true;
}

/* Compute eigenvectors and eigenvalues, in f32 or (twice) in double, and store them or the root; *top <- the largest
 * eigenvalue. Return false if LAPACK or check_eigen fails, or the root does not fit. */
static bool decompose(ng_queue *q, ng_matrix *m, double shift, double on, double floor, bool twice,
                      double *top, float *scratch) {
  const int64_t n = m->n;
  double *V64 = (double *)(void *)scratch;
  float *V = twice ? scratch + 2 * ng_round16(n * n) : scratch;
  float *room = V + ng_round16(n * n), *e = room + ng_round16(ng_sym_count(n));
  double *x = (double *)(void *)(e + ng_round16(n)), *y = x + ng_round16(n);
  void *work = y + ng_round16(n);
  const ng_sym F = ng_sym_load(q, n, m->F, m->average_dtype, room);
  ng_on(q)->unpack(q, F, V, n);
  if (twice) {
    ng_queue_wait(q);
    for (int64_t i = 0; i < n * n; i++) {
      V64[i] = (double)V[i];
    }
    ng_on(q)->eigen64(q, n, V64, x, work, &m->info[0]);
  } else {
    ng_on(q)->eigen(q, n, V, e, work, &m->info[0]);
  }
  ng_queue_wait(q);
  if (ng_info_read(q, &m->info[0]) != 0) return false;
  for (int64_t i = 0; i < n * n && twice; i++) {
    V[i] = (float)V64[i];
  }
  for (int64_t i = 0; i < n && twice; i++) {
    e[i] = (float)x[i];
  }
  if (!check_eigen(F, m->average_dtype, V, e, x, y)) return false;
  *top = (double)e[n - 1];
  if (m->result == NG_RESULT_ROOT) {
    shift_eigenvalues(n, e, shift, floor, e);
    return store_root(q, m, V, e, on, (float *)(void *)x, room);
  }
  ng_on(q)->narrow(q, n * n, V, m->R, m->result_dtype);
  shift_eigenvalues(n, e, shift, floor, m->d);
  return true;
}

/* The ladder without its damping rungs: more damping shifts the eigenvalues and does not change the decomposition. */
static int32_t solve_eigen(ng_queue *q, ng_matrix *m, double shift, double on, double floor,
                           float *scratch) {
  double top = 0.0;
  const bool single = decompose(q, m, shift, on, floor, false, &top, scratch);
  if (single && 0x1p-24 * top <= EIGEN_ERROR_MOST * on) return 0;
  if (decompose(q, m, shift, on, floor, true, &top, scratch)) return single ? 0 : NG_DAMPED_DOUBLE;
  return single ? 0 : NG_DAMPED_NONE;
}

/* ---- refresh ---------------------------------------------------------------------------------*/

/* order[i] <- index of the i-th largest of the numbers rayleigh[3 i]; ties keep their order. Insertion sort, because
 * averages change slowly. Return whether all numbers are finite. */
static bool sort_descending(int64_t n, const double *rayleigh, int32_t *order) {
  double sum = 0.0;
  for (int32_t i = 0; i < n; i++) {
    int32_t at = i;
    sum += rayleigh[3 * i];
    for (; at > 0 && rayleigh[3 * order[at - 1]] < rayleigh[3 * i]; at--) {
      order[at] = order[at - 1];
    }
    order[at] = i;
  }
  return sum - sum == 0.0;
}

/* Orthogonal iteration: Golub & Van Loan, 8.2.4; to refresh a basis: Vyas et al. 2024, arXiv 2409.11321. */
bool ng_matrix_refresh(ng_queue *q, ng_matrix *m, int32_t *order, float *scratch) {
  const int64_t n = m->n;
  float *V = scratch, *FV = V + ng_round16(n * n), *room = FV + ng_round16(n * n);
  double *rayleigh = (double *)(void *)(room + ng_round16(ng_sym_count(n)));
  void *work = rayleigh + 3 * ng_round16(n);
  const ng_sym F = ng_sym_load(q, n, m->F, m->average_dtype, room);
  ng_on(q)->widen(q, n * n, m->R, m->result_dtype, V);
  ng_on(q)->mul_right(q, F, n, V, n, FV, n);
  ng_on(q)->row_sums(q, n, n, FV, n, V, n, rayleigh);
  ng_queue_wait(q);
  if (!sort_descending(n, ng_numbers_read(q, rayleigh), order)) return false;
  for (int64_t i = 0; i < n; i++) {
    ng_on(q)->copy(q, 1, n, FV + order[i] * n, n, V + i * n, n);
  }
  ng_on(q)->qr(q, n, n, V, n, work, &m->info[0]);
  ng_on(q)->finite(q, n * n, V, NG_F32, &m->info[1]);
  ng_queue_wait(q);
  if (ng_info_read(q, &m->info[0]) != 0 || ng_info_read(q, &m->info[1]) == 0) return false;
  ng_on(q)->narrow(q, n * n, V, m->R, m->result_dtype);
  for (int64_t i = 0; i < n; i++) {
    m->d[i] = (float)fmax(0.0, rayleigh[3 * order[i]]);
  }
  return true;
}

/* ---- diagonal --------------------------------------------------------------------------------*/

/* out <- 1 / (F_i + d), or its p-th root, for all i; return false if a result is not a positive f32. */
static bool invert_diagonal(const ng_matrix *m, double d, float *out) {
  for (int64_t i = 0; i < m->n; i++) {
    const double x = 1.0 / ((double)((const float *)m->F)[i] + d);
    out[i] = (float)(m->result == NG_RESULT_ROOT ? pow(x, 1.0 / m->p) : x);
    if (!(out[i] > 0.0f) || !(out[i] - out[i] == 0.0f)) return false;
  }
  return true;
}

/* The ladder without its double-precision rung, because invert_diagonal computes in double. */
static int32_t solve_diagonal(ng_matrix *m, double shift, double on, double floor, float *scratch) {
  const size_t bytes = (size_t)m->n * sizeof *m->d;
  if (m->result == NG_RESULT_COPY) memcpy(m->d, m->F, bytes);
  if (m->result == NG_RESULT_EIGEN) shift_eigenvalues(m->n, m->F, shift, floor, m->d);
  if (m->result == NG_RESULT_COPY || m->result == NG_RESULT_EIGEN) return 0;
  for (int32_t rung = 0; rung < NG_DAMPED_DOUBLE; rung++, on *= 10.0) {
    if (!invert_diagonal(m, shift + on, scratch)) continue;
    memcpy(m->d, scratch, bytes);
    return rung;
  }
  return NG_DAMPED_NONE;
}

/* ---- any form --------------------------------------------------------------------------------*/

int32_t ng_matrix_solve(ng_queue *q, ng_matrix *m, double shift, double on, double floor,
                        float *scratch) {
  if (m->form == NG_FORM_ABSENT) return 0;
  if (m->form == NG_FORM_DIAGONAL) return solve_diagonal(m, shift, on, floor, scratch);
  if (m->result == NG_RESULT_COPY) return copy_average(q, m, scratch);
  if (is_decomposed(m)) return solve_eigen(q, m, shift, on, floor, scratch);
  return solve_damped(q, m, shift + on, scratch);
}
