/* window_lowrank_power.c: one step of power iteration, of a gradient and what was left of it before, by the Q of the step
 * before: see window_lowrank.c for what it is and to how many bits.
 *
 * In: a [rows, cols] and Q.  Out: P, orthonormal, and Q = a' P in double; both rounded as a row of the store; a - P Q'. */
#include "family/window_lowrank.h"

#include <float.h>
#include <math.h>

static double dot(const double *x, const double *y, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++) {
    sum += x[i] * y[i];
  }
  return sum;
}

/* P [rank, rows]: orthonormal rows, in order; nothing is left of what depends on those before. */
static void orthonormal(const ng_lowrank_view *v, double *P) {
  const int64_t n = v->rows;
  for (int64_t a = 0; a < v->rank; a++) {
    double *p = P + a * n;
    double lost = 1e-10 * sqrt(dot(p, p, n));
    for (int64_t c = 0; c < a; c++) {
      const double along = dot(p, P + c * n, n);
      lost += 2.0 * fabs(along) * (1.0 - dot(P + c * n, P + c * n, n));
      for (int64_t i = 0; i < n; i++) {
        p[i] -= along * P[c * n + i];
      }
    }
    const double left = sqrt(dot(p, p, n));
    const double by = left > lost ? 1.0 / (left + 1e-8) : 0.0;
    for (int64_t i = 0; i < n; i++) {
      p[i] *= by;
    }
  }
}

static double dot_pairs(ng_lowrank_pair x, int64_t at, ng_lowrank_pair y, int64_t n) {
  double sum = ng_window_dot(x.x + at, y.x, n);
  if (x.rest != NULL) sum += ng_window_dot(x.rest + at, y.x, n);
  return y.rest != NULL ? sum + ng_window_dot(x.x + at, y.rest, n) : sum;
}

/* Column a of Q, rounded, such that with the P of `to`, which is rounded, it makes the row that P Q' is, but for
 * what no columns of that P make: with D = to.P - P, Q_a - sum over c of <to.P_a, D_c> Q_c. */
static void round_column(const ng_lowrank_view *v, int64_t a, const double *work,
                         ng_lowrank_pair from, ng_lowrank_pair to) {
  const int64_t behind = v->rank * v->rows, n = v->cols;
  const double *P = work, *Q = work + behind;
  const float *p = to.x + a * v->rows;
  double acc[NG_WINDOW_LINE];
  /* where P has no column Q may have any: that of before, for the next step to begin with */
  const bool none = dot(P + a * v->rows, P + a * v->rows, v->rows) == 0.0;
  for (int64_t at = 0, k; at < n; at += k) {
    k = ng_min64(NG_WINDOW_LINE, n - at);
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
      const double before = (double)from.x[q] + (from.rest == NULL ? 0.0 : (double)from.rest[q]);
      to.x[q] = (float)(none ? before : acc[i]);
      to.rest[q] = (float)((none ? before : Q[a * n + at + i]) - (double)to.x[q]);
    }
  }
}

void ng_lowrank_advance(const ng_lowrank_view *v, ng_lowrank_pair x, ng_lowrank_pair from,
                        ng_lowrank_pair to, double *work) {
  const int64_t behind = v->rank * v->rows;
  double *P = work, *Q = work + behind;
  for (int64_t a = 0; a < v->rank; a++) {
    const int64_t at = behind + a * v->cols;
    const ng_lowrank_pair Q0 = {from.x + at, from.rest == NULL ? NULL : from.rest + at};
    for (int64_t r = 0; r < v->rows; r++) {
      P[a * v->rows + r] = dot_pairs(x, r * v->cols, Q0, v->cols);
    }
  }
  orthonormal(v, P);
  memset(Q, 0, (size_t)(v->rank * v->cols) * sizeof *Q);
  for (int64_t a = 0; a < v->rank; a++) {
    for (int64_t r = 0; r < v->rows; r++) {
      const double p = P[a * v->rows + r];
      to.x[a * v->rows + r] = (float)p;
      ng_window_add(Q + a * v->cols, x.x + r * v->cols, v->cols, p);
      if (x.rest != NULL) ng_window_add(Q + a * v->cols, x.rest + r * v->cols, v->cols, p);
    }
  }
  for (int64_t a = 0; a < v->rank; a++) {
    round_column(v, a, work, from, to);
  }
}

/* What is to begin with has only a direction: a column of Q that f32 does not hold, of weights near its
 * end, goes on with a largest number of 1. */
void ng_lowrank_within_range(const ng_lowrank_view *v, const double *work, ng_lowrank_pair f) {
  const double *Q = work + v->rank * v->rows;
  for (int64_t a = 0; a < v->rank; a++, Q += v->cols) {
    const int64_t at = v->rank * v->rows + a * v->cols;
    double largest = 0.0;
    for (int64_t i = 0; i < v->cols; i++) {
      largest = fmax(largest, fabs(Q[i]));
    }
    for (int64_t i = 0; i < v->cols && largest > (double)FLT_MAX; i++) {
      ng_lowrank_split(Q[i] / largest, &f.x[at + i], &f.rest[at + i]);
    }
  }
}

void ng_lowrank_subtract(const ng_lowrank_view *v, const double *work, ng_lowrank_pair x) {
  double acc[NG_WINDOW_LINE];
  for (int64_t r = 0; r < v->rows; r++) {
    for (int64_t c = 0, n; c < v->cols; c += n) {
      float *hi = x.x + r * v->cols + c, *lo = x.rest + r * v->cols + c;
      n = ng_min64(NG_WINDOW_LINE, v->cols - c);
      for (int64_t i = 0; i < n; i++) {
        acc[i] = (double)hi[i] + (double)lo[i];
      }
      for (int64_t a = 0; a < v->rank; a++) {
        const double p = work[a * v->rows + r], *Q = work + v->rank * v->rows + a * v->cols + c;
        for (int64_t i = 0; i < n; i++) {
          acc[i] -= p * Q[i];
        }
      }
      for (int64_t i = 0; i < n; i++) {
        ng_lowrank_split(acc[i], &hi[i], &lo[i]);
      }
    }
  }
}
