/* ref_low_rank.c: the entry of low_rank.c, element by element in double. */
#include <math.h>

#include "kernel/entries.h"
#include "kernel/row_loops.h"

/* Orthonormalise column a of P against the columns before it; make the column 0 if only rounding errors remain. */
static void orthonormalise_column(double *P, int64_t n, int64_t a) {
  double *p = P + a * n, lost = 1e-10 * sqrt(ng_row_dot_double(p, p, n));
  for (const double *c = P; c < p; c += n) {
    const double along = ng_row_dot_double(p, c, n);
    lost += 2.0 * fabs(along) * (1.0 - ng_row_dot_double(c, c, n));
    for (int64_t i = 0; i < n; i++) {
      p[i] -= along * c[i];
    }
  }
  const double left = sqrt(ng_row_dot_double(p, p, n));
  for (int64_t i = 0; i < n; i++) {
    p[i] = left > lost ? p[i] / (left + 1e-8) : 0.0;
  }
}

static void iterate_power(const ng_low_rank *w) {
  const ng_low_rank_shape *v = &w->shape;
  const int64_t n = v->rows, cols = v->cols, behind = v->rank * n;
  double *P = w->work, *Q = w->work + behind;
  for (int64_t a = 0; a < v->rank; a++) {
    for (int64_t r = 0; r < n; r++) {
      P[a * n + r] = 0.0;
      for (int64_t c = 0; c < cols; c++) {
        P[a * n + r] +=
            ng_get_pair(w->a, r * cols + c) * ng_get_pair(w->from, behind + a * cols + c);
      }
    }
    orthonormalise_column(P, n, a);
    for (int64_t c = 0; c < cols; c++) {
      Q[a * cols + c] = 0.0;
      for (int64_t r = 0; r < n; r++) {
        Q[a * cols + c] += P[a * n + r] * ng_get_pair(w->a, r * cols + c);
      }
    }
  }
  for (int64_t i = 0; i < behind; i++) {
    w->to.x[i] = (float)P[i];
  }
}

/* Store column a of Q, minus sum over c of <R_a, R_c - P_c> Q_c, where R is the rounded P. */
static void store_rounded_Q(const ng_low_rank *w, int64_t a) {
  const ng_low_rank_shape *v = &w->shape;
  const int64_t n = v->rows, cols = v->cols, behind = v->rank * n;
  const double *P = w->work, *Q = w->work + behind;
  const float *R = w->to.x;
  const bool none = ng_row_dot_double(P + a * n, P + a * n, n) == 0.0;
  for (int64_t c = 0; c < cols; c++) {
    const int64_t at = behind + a * cols + c;
    const double old = ng_get_pair(w->from, at);
    double sum = Q[a * cols + c];
    for (int64_t k = 0; k < v->rank; k++) {
      double error = 0.0;
      for (int64_t r = 0; r < n; r++) {
        error += (double)R[a * n + r] * ((double)R[k * n + r] - P[k * n + r]);
      }
      sum -= error * Q[k * cols + c];
    }
    w->to.x[at] = (float)(none ? old : sum);
    w->to.rest[at] = (float)((none ? old : Q[a * cols + c]) - (double)w->to.x[at]);
  }
}

void ng_ref_iterate_low_rank(ng_queue *q, const ng_low_rank *w, int64_t n) {
  (void)q;
  for (const ng_low_rank *end = w + n; w < end; w++) {
    const ng_low_rank_shape *v = &w->shape;
    const int64_t P = v->rank * v->rows, all = P + v->rank * v->cols;
    const bool iterates = v->rank > 0 && !w->is_excluded;
    for (int64_t i = 0; i < v->rows * v->cols; i++) {
      if (v->rank == 0) w->to.x[i] = (float)(w->by * (double)w->a.x[i]);
      const double e = w->e.x == NULL || v->rank == 0 ? 0.0 : ng_get_pair(w->e, i);
      const double by = v->rank == 0 || w->is_excluded ? 0.0 : w->by;
      if (w->e.x != NULL || !iterates) ng_set_pair(w->a, i, e + by * (double)w->a.x[i]);
    }
    for (int64_t i = 0; i < all && !iterates; i++) {
      w->to.x[i] = i < P ? 0.0F : w->from.x[i];
      w->to.rest[i] = w->from.rest[i];
    }
    if (!iterates) continue;
    iterate_power(w);
    for (int64_t a = 0; a < v->rank; a++) {
      store_rounded_Q(w, a);
    }
    for (int64_t i = 0; i < v->rows * v->cols; i++) {
      double left = ng_get_pair(w->a, i);
      for (int64_t a = 0; a < v->rank; a++) {
        left -= w->work[a * v->rows + i / v->cols] * w->work[P + a * v->cols + i % v->cols];
      }
      ng_set_pair(w->a, i, left);
    }
  }
}
