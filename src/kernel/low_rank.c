/* low_rank.c: one power iteration for low-rank rows of windows.
 *
 * In: a gradient plus its error feedback; Q of the last row. Out: P and Q of the new row; the residual. Gram-Schmidt
 * orthonormalises P in double, column by column: p <- p / (|p| + 1e-8), as published. Because of 1e-8 the columns are
 * slightly shorter than 1. If a column p, after the projections on earlier columns were subtracted, is only rounding error
 * or such an error of length, p becomes 0; the published code scales p to length 1. */
#include <math.h>
#include <string.h>

#include "kernel/entries.h"
#include "kernel/row_loops.h"

/* Orthonormalise the columns of P, which are stored as rows of [rank, rows], in order; dependent columns become 0. */
static void orthonormalise(const ng_low_rank_shape *v, double *P) {
  const int64_t n = v->rows;
  for (int64_t a = 0; a < v->rank; a++) {
    double *p = P + a * n;
    double lost = 1e-10 * sqrt(ng_row_dot_double(p, p, n));
    for (int64_t c = 0; c < a; c++) {
      const double along = ng_row_dot_double(p, P + c * n, n);
      lost += 2.0 * fabs(along) * (1.0 - ng_row_dot_double(P + c * n, P + c * n, n));
      for (int64_t i = 0; i < n; i++) {
        p[i] -= along * P[c * n + i];
      }
    }
    const double left = sqrt(ng_row_dot_double(p, p, n));
    const double by = left > lost ? 1.0 / (left + 1e-8) : 0.0;
    for (int64_t i = 0; i < n; i++) {
      p[i] *= by;
    }
  }
}

static double dot_pairs(ng_float_pair x, int64_t at, ng_float_pair y, int64_t from, int64_t n) {
  return ng_row_dot(x.x + at, y.x + from, n) + ng_row_dot(x.rest + at, y.x + from, n) +
         ng_row_dot(x.x + at, y.rest + from, n);
}

/* to <- column a of Q, corrected for the rounding of P to f32: with R the rounded P and E = R - P, store
 * Q_a - sum over c of <R_a, E_c> Q_c. Then R times the stored Q' equals the projection of P Q' on R's columns. */
static void round_column(const ng_low_rank_shape *v, int64_t a, const double *work,
                         ng_float_pair from, ng_float_pair to) {
  const int64_t behind = v->rank * v->rows, n = v->cols;
  const double *P = work, *Q = work + behind;
  const float *p = to.x + a * v->rows;
  double acc[NG_FLAT_LINE];
  /* If column a of P is 0, the next iteration starts from the old column of Q. */
  const bool none = ng_row_dot_double(P + a * v->rows, P + a * v->rows, v->rows) == 0.0;
  for (int64_t at = 0, k; at < n; at += k) {
    k = ng_min64(NG_FLAT_LINE, n - at);
    memcpy(acc, Q + a * n + at, (size_t)k * sizeof *acc);
    for (int64_t c = 0; c < v->rank && !none; c++) {
      double along = 0.0;
      for (int64_t r = 0; r < v->rows; r++) {
        along += (double)p[r] * ((double)to.x[c * v->rows + r] - P[c * v->rows + r]);
      }
      for (int64_t i = 0; i < k; i++) {
        acc[i] -= along * Q[c * n + at + i];
      }
    }
    for (int64_t i = 0; i < k; i++) {
      const int64_t q = behind + a * n + at + i;
      const double before = ng_get_pair(from, q);
      to.x[q] = (float)(none ? before : acc[i]);
      to.rest[q] = (float)((none ? before : Q[a * n + at + i]) - (double)to.x[q]);
    }
  }
}

static void iterate_power(const ng_low_rank *w) {
  const ng_low_rank_shape *v = &w->shape;
  const ng_float_pair x = w->a, to = w->to;
  const int64_t behind = v->rank * v->rows;
  double *P = w->work, *Q = w->work + behind;
  for (int64_t a = 0; a < v->rank; a++) {
    for (int64_t r = 0; r < v->rows; r++) {
      P[a * v->rows + r] = dot_pairs(x, r * v->cols, w->from, behind + a * v->cols, v->cols);
    }
  }
  orthonormalise(v, P);
  memset(Q, 0, (size_t)(v->rank * v->cols) * sizeof *Q);
  for (int64_t a = 0; a < v->rank; a++) {
    for (int64_t r = 0; r < v->rows; r++) {
      const double p = P[a * v->rows + r];
      to.x[a * v->rows + r] = (float)p;
      ng_row_add(Q + a * v->cols, x.x + r * v->cols, v->cols, p);
      ng_row_add(Q + a * v->cols, x.rest + r * v->cols, v->cols, p);
    }
  }
  for (int64_t a = 0; a < v->rank; a++) {
    round_column(v, a, w->work, w->from, to);
  }
}

static void subtract_projection(const ng_low_rank_shape *v, const double *work, ng_float_pair x) {
  double acc[NG_FLAT_LINE];
  for (int64_t r = 0; r < v->rows; r++) {
    for (int64_t c = 0, n; c < v->cols; c += n) {
      const ng_float_pair line = {x.x + r * v->cols + c, x.rest + r * v->cols + c};
      n = ng_min64(NG_FLAT_LINE, v->cols - c);
      for (int64_t i = 0; i < n; i++) {
        acc[i] = ng_get_pair(line, i);
      }
      for (int64_t a = 0; a < v->rank; a++) {
        const double p = work[a * v->rows + r], *Q = work + v->rank * v->rows + a * v->cols + c;
        for (int64_t i = 0; i < n; i++) {
          acc[i] -= p * Q[i];
        }
      }
      for (int64_t i = 0; i < n; i++) {
        ng_set_pair(line, i, acc[i]);
      }
    }
  }
}

static void power_task(void *arg, int32_t i) {
  const ng_low_rank *w = (const ng_low_rank *)arg + i;
  const ng_low_rank_shape *v = &w->shape;
  const int64_t n = v->rows * v->cols, P = v->rank * v->rows, Q = v->rank * v->cols;
  for (int64_t k = 0; k < n && v->rank == 0; k++) { /* all elements are stored: the residual is 0 */
    w->to.x[k] = (float)w->by * w->a.x[k];
    w->a.x[k] = w->a.rest[k] = 0.0F;
  }
  if (v->rank == 0) return;
  if (w->is_excluded) {
    memset(w->to.x, 0, (size_t)P * sizeof(float));
    memcpy(w->to.x + P, w->from.x + P, (size_t)Q * sizeof(float));
    memcpy(w->to.rest, w->from.rest, (size_t)(P + Q) * sizeof(float));
    memcpy(w->a.x, w->e.x, (size_t)n * sizeof(float));
    memcpy(w->a.rest, w->e.rest, (size_t)n * sizeof(float));
    return;
  }
  /* copies on the stack let the compiler vectorise the loop */
  const ng_float_pair x = w->a, e = w->e;
  const double by = w->by;
  for (int64_t k = 0; k < n && e.x != NULL; k++) {
    ng_set_pair(x, k, ng_get_pair(e, k) + by * (double)x.x[k]);
  }
  iterate_power(w);
  subtract_projection(v, w->work, w->a);
}

void ng_cpu_iterate_low_rank(ng_queue *q, const ng_low_rank *w, int64_t n) {
  ng_queue_run(q, (int32_t)n, power_task, (void *)(uintptr_t)w);
}
