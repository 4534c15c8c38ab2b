/* solve.c: measure averages, climb the ladder, refresh an eigenbasis.
 *
 * In: the average F, shift and damping. Out: the result of a matrix (ng_matrix), and the first rung of the ladder that
 * succeeds: damping d, then d times 10, 100 and 1000, then d in double precision. */
#include "twosided/twosided.h"

#include <math.h>

void ng_matrix_measure(ng_queue *q, ng_matrix *m) {
  const bool diagonal = m->form == NG_FORM_DIAGONAL;
  const int64_t count = diagonal ? m->n : ng_sym_count(m->n);
  ng_linalg(q)->check_finite(q, count, m->F, m->average_dtype, &m->finite);
  ng_linalg(q)->trace(q, m->n, m->F, m->average_dtype, diagonal, &m->trace);
}

/* V, F V [n, n], work of qr, F [tri], 6 vectors of doubles. */
int64_t ng_matrix_scratch(const ng_queue *q, const ng_matrix *m) {
  const int64_t n = m->n, solve = ng_solve_scratch(q, m);
  if (m->form != NG_FORM_SYMMETRIC || m->result != NG_RESULT_EIGEN) return solve;
  const int64_t work = ng_round16(ng_linalg_uncounted(q)->qr_work(q, n, n) / 4 + 16);
  return ng_max64(solve, 2 * ng_round16(n * n) + work + ng_round16(ng_sym_count(n)) +
                             6 * ng_round16(2 * n));
}

/* ---- retries: more damping, then double ------------------------------------------------------*/

static bool solve_again(ng_queue *q, ng_matrix *m, float *scratch) {
  ng_linalg(q)->solve(q, &m, 1, scratch);
  ng_queue_wait(q);
  return ng_read_info(q, &m->accepted) != 0;
}

/* More damping shifts the eigenvalues and does not change the decomposition, so the ladder has no damping rungs. */
static int32_t retry_eigen(ng_queue *q, ng_matrix *m, float *scratch) {
  const bool single = ng_read_info(q, &m->accepted) != 0;
  if (single && !ng_eigen_needs_double(*ng_read_numbers(q, &m->largest_eigenvalue), m->damping))
    return 0;
  m->uses_double = true;
  const bool twice = solve_again(q, m, scratch);
  return single ? 0 : twice ? NG_DAMPED_DOUBLE : NG_DAMPED_NONE;
}

/* The ladder tries more damping before double precision, because a solve in f32 is cheaper, and because most matrices that
 * fail are rank-deficient. A diagonal is always computed in double. */
int32_t ng_matrix_retry(ng_queue *q, ng_matrix *m, float *scratch) {
  const bool diagonal = m->form == NG_FORM_DIAGONAL;
  if (!diagonal && (m->result == NG_RESULT_EIGEN || m->result == NG_RESULT_ROOT))
    return retry_eigen(q, m, scratch);
  if (ng_read_info(q, &m->accepted) != 0) return 0;
  if (m->result == NG_RESULT_COPY) return NG_DAMPED_NONE;
  const double d = diagonal ? m->damping : m->shift + m->damping;
  if (!diagonal) m->shift = 0.0;
  m->damping = d;
  for (int32_t rung = 1; rung < NG_DAMPED_DOUBLE; rung++) {
    m->damping *= 10.0;
    if (solve_again(q, m, scratch)) return rung;
  }
  m->damping = d;
  m->uses_double = true;
  return !diagonal && solve_again(q, m, scratch) ? NG_DAMPED_DOUBLE : NG_DAMPED_NONE;
}

/* ---- refresh ---------------------------------------------------------------------------------*/

/* order[i] <- index of the i-th largest of the numbers rayleigh[3 i]; ties keep their order. Insertion sort, because
 * averages change slowly. Return whether all numbers are finite. */
static bool order_descending(int64_t n, const double *rayleigh, int32_t *order) {
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
  ng_sym F = {(float *)(uintptr_t)m->F, n};
  if (m->average_dtype != NG_F32) {
    ng_linalg(q)->widen(q, ng_sym_count(n), m->F, m->average_dtype, room);
    F.a = room;
  }
  ng_linalg(q)->widen(q, n * n, m->R, m->result_dtype, V);
  ng_linalg(q)->mul_right(q, F, n, V, n, FV, n);
  ng_linalg(q)->sum_row_products(q, n, n, FV, n, V, n, rayleigh);
  ng_queue_wait(q);
  if (!order_descending(n, ng_read_numbers(q, rayleigh), order)) return false;
  for (int64_t i = 0; i < n; i++) {
    ng_linalg(q)->copy_rows(q, 1, n, FV + order[i] * n, n, V + i * n, n);
  }
  ng_linalg(q)->qr(q, n, n, V, n, work, &m->info);
  ng_linalg(q)->check_finite(q, n * n, V, NG_F32, &m->finite);
  ng_queue_wait(q);
  if (ng_read_info(q, &m->info) != 0 || ng_read_info(q, &m->finite) == 0) return false;
  ng_linalg(q)->narrow(q, n * n, V, m->R, m->result_dtype);
  for (int64_t i = 0; i < n; i++) {
    ((float *)m->d)[i] = (float)fmax(0.0, rayleigh[3 * order[i]]);
  }
  return true;
}

void ng_matrix_iterate(ng_queue *q, ng_matrix *m, const float *from, double shift, float *scratch) {
  const int64_t n = m->n;
  float *V = scratch, *room = V + ng_round16(n * n);
  void *work = room + ng_round16(ng_sym_count(n));
  ng_sym F = {(float *)(uintptr_t)m->F, n};
  if (m->average_dtype != NG_F32) {
    ng_linalg(q)->widen(q, ng_sym_count(n), m->F, m->average_dtype, room);
    F.a = room;
  }
  ng_linalg(q)->copy_rows(q, n, n, from, n, V, n);
  ng_linalg(q)->mul_right(q, F, n, from, n, m->R, n);
  ng_linalg(q)->fold(q, n * n, m->R, NG_F32, V, 1.0f, (float)shift);
  ng_linalg(q)->qr(q, n, n, m->R, n, work, &m->info);
  ng_linalg(q)->check_finite(q, n * n, m->R, NG_F32, &m->finite);
}

bool ng_matrix_refresh_ascending(ng_queue *q, ng_matrix *m, double shift, float *scratch) {
  const int64_t n = m->n;
  float *V = scratch, *FV = V + ng_round16(n * n), *room = FV + ng_round16(n * n);
  double *rayleigh = (double *)(void *)(room + ng_round16(ng_sym_count(n)));
  int32_t *order = (int32_t *)(void *)(rayleigh + 3 * ng_round16(n));
  float *R = m->R;
  ng_linalg(q)->copy_rows(q, n, n, R, n, V, n);
  ng_matrix_iterate(q, m, V, shift, FV);
  ng_queue_wait(q);
  const bool is_good = ng_read_info(q, &m->info) == 0 && ng_read_info(q, &m->finite) != 0;
  if (is_good) {
    ng_linalg(q)->mul_right(q, (ng_sym){(float *)(uintptr_t)m->F, n}, n, R, n, FV, n);
    ng_linalg(q)->sum_row_products(q, n, n, FV, n, R, n, rayleigh);
    ng_queue_wait(q);
  }
  if (!is_good || !order_descending(n, ng_read_numbers(q, rayleigh), order)) {
    ng_linalg(q)->copy_rows(q, n, n, V, n, R, n);
    return false;
  }
  ng_linalg(q)->copy_rows(q, n, n, R, n, V, n);
  for (int64_t i = 0; i < n; i++) {
    ng_linalg(q)->copy_rows(q, 1, n, V + order[n - 1 - i] * n, n, R + i * n, n);
  }
  return true;
}
