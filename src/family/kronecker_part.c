/* kronecker_part.c: compute the result of one part of A or G.
 *
 * In: the average F of a part, its leaked shift, the damping of the side; d is their sum. Out: (F + d I)^-1, or L of
 * F + d I = L L', or F = Q diag(e) Q', or F itself (product); and the first rung of the ladder that succeeds.
 *
 * LAPACK reports success on NaN. So kronecker_solve.c scans the averages before the solve, and the result is checked
 * after the solve: by one column (linalg/damped.c) or by three eigenpairs. */
#include "family/kronecker.h"

#include <math.h>

/* Rounding makes eigenvalues of a covariance of order n as low as -n eps times the largest. 1e-3 exceeds n eps up to
 * n = 16000 and is far below the negative eigenvalues of an indefinite matrix. */
#define NEGATIVE_MOST 1e-3

/* Eigenvalues computed in f32 have an error of about 2^-24 of the largest eigenvalue. If this error exceeds EIGEN_ERROR_MOST
 * times the damping, eigenvalues are computed in double: the weight 1 / (e + damping) of a small eigenvalue e would be wrong.
 * linalg/damped.c has the same limit for its residual. */
#define EIGEN_ERROR_MOST 1e-2

/* ---- scratch: cholesky  ng_damped_scratch
 *               eigen     f32: V [n, n], work;  double: V64 [n, n] doubles, V, work64 -------- */

static int64_t part_scratch(const ng_block *b, const ng_part *part) {
  const int64_t n = part->n;
  const ng_queue *q = b->ctx->queue;
  const int64_t vectors = 6 * ng_round16(2 * n), tri = ng_sym_count(n);
  if (part->is_diagonal) return n;
  if (!ng_kron_of(b)->is_eigen) return ng_damped_scratch(n);
  const int64_t single =
      ng_round16(n * n) + ng_round16(tri) + ng_round16(q->la->eigen_work(q, n) / 4 + 16);
  const int64_t twice =
      3 * ng_round16(n * n) + ng_round16(tri) + ng_round16(q->la->eigen64_work(q, n) / 4 + 16);
  return ng_max64(single, twice) + vectors;
}

int64_t ng_kron_solve_scratch(const ng_block *b) {
  int64_t most = 0;
  for (int side = 0; side < 2; side++) {
    const ng_side *s = &ng_kron_of(b)->side[side];
    for (int32_t i = 0; i < s->group_parts && s->stat->has_average; i++) {
      most = ng_max64(most, part_scratch(b, &s->part[i]));
    }
  }
  return most;
}

/* ---- cholesky, product -----------------------------------------------------------------------*/

static int32_t cholesky(const ng_block *b, const ng_side *s, ng_part *part, double d,
                        float *scratch) {
  const ng_damped m = {.n = part->n,
                       .F = ng_kron_average(s, part),
                       .kept = s->stat->average_dtype,
                       .R = part->R,
                       .stored = ng_kron_of(b)->inverse_dtype,
                       .is_factor = part->is_factor,
                       .info = part->info,
                       .largest = &part->largest};
  const int32_t rung = ng_damped_solve(b->ctx->queue, &m, d, scratch);
  if (rung != NG_DAMPED_NONE) return rung;
  return part->is_good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
}

/* solver = product: store the average as the result. */
static int32_t copy_average(const ng_block *b, const ng_side *s, ng_part *part, float *scratch) {
  ng_queue *q = b->ctx->queue;
  const ng_dtype t = ng_kron_of(b)->inverse_dtype;
  const int64_t n = ng_sym_count(part->n);
  const ng_sym F =
      ng_sym_load(q, part->n, ng_kron_average(s, part), s->stat->average_dtype, scratch);
  if (!ng_fits_dtype(q, n, F.a, t, &part->largest))
    return part->is_good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
  ng_on(q)->narrow(q, n, F.a, part->R, t);
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
static bool check_eigen(const ng_block *b, const ng_side *side, ng_sym F, const float *V,
                        const float *e, double *x, double *y) {
  const int64_t n = F.n, sample[3] = {0, n / 2, n - 1};
  double top = 0.0, dot = 0.0;
  NG_ASSERT(ng_queue_settled(b->ctx->queue));
  for (int64_t i = 0; i < n; i++) {
    if (!(e[i] - e[i] == 0.0f)) return false;
    top = fmax(top, fabs((double)e[i]));
  }
  if ((double)e[0] < -negative_limit(side->stat->average_dtype, n) * top) return false;
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

/* leak: the shift (ng_side) to add to the eigenvalues e of the array. Eigenvalues at or below eigen_floor (KAISA: 0,
 * MPD-KFAC: 1e-10) become 0: an eigenvalue below -lambda would reverse the direction. */
static void store_eigenvalues(const ng_block *b, ng_part *part, const float *e, double leak) {
  for (int64_t i = 0; i < part->n; i++) {
    const float x = (float)((double)e[i] + leak);
    part->d[i] = (double)x <= b->base.eigen_floor || x < 0.0f ? 0.0f : x;
  }
}

static void store_eigen(const ng_block *b, ng_part *part, const float *V, const float *e,
                        double leak) {
  ng_queue *q = b->ctx->queue;
  ng_on(q)->narrow(q, part->n * part->n, V, part->V, ng_kron_of(b)->inverse_dtype);
  store_eigenvalues(b, part, e, leak);
}

/* Compute and store eigenvectors and eigenvalues, in f32 or (twice) in double; *top <- the largest eigenvalue. Return
 * false if LAPACK or check_eigen fails. */
static bool decompose(const ng_block *b, const ng_side *s, ng_part *part, double leak, bool twice,
                      double *top, float *scratch) {
  const int64_t n = part->n;
  double *V64 = (double *)(void *)scratch;
  float *V = twice ? scratch + 2 * ng_round16(n * n) : scratch;
  float *room = V + ng_round16(n * n), *e = room + ng_round16(ng_sym_count(n));
  double *x = (double *)(void *)(e + ng_round16(n)), *y = x + ng_round16(n);
  void *work = y + ng_round16(n);
  ng_queue *q = b->ctx->queue;
  const ng_sym F = ng_sym_load(q, n, ng_kron_average(s, part), s->stat->average_dtype, room);
  ng_on(q)->unpack(q, F, V, n);
  if (twice) {
    ng_queue_wait(q);
    for (int64_t i = 0; i < n * n; i++) {
      V64[i] = (double)V[i];
    }
    ng_on(q)->eigen64(q, n, V64, x, work, &part->info[0]);
  } else {
    ng_on(q)->eigen(q, n, V, e, work, &part->info[0]);
  }
  ng_queue_wait(q);
  if (ng_info_read(q, &part->info[0]) != 0) return false;
  for (int64_t i = 0; i < n * n && twice; i++) {
    V[i] = (float)V64[i];
  }
  for (int64_t i = 0; i < n && twice; i++) {
    e[i] = (float)x[i];
  }
  if (!check_eigen(b, s, F, V, e, x, y)) return false;
  store_eigen(b, part, V, e, leak);
  *top = (double)e[n - 1];
  return true;
}

/* The ladder without its damping rungs: more damping shifts the eigenvalues and does not change the decomposition.
 * least: the smallest damping of any eigenvector. */
static int32_t eigen(const ng_block *b, const ng_side *s, ng_part *part, double leak, double least,
                     float *scratch) {
  double top = 0.0;
  const bool single = decompose(b, s, part, leak, false, &top, scratch);
  if (single && 0x1p-24 * top <= EIGEN_ERROR_MOST * least) return 0;
  if (decompose(b, s, part, leak, true, &top, scratch)) return single ? 0 : NG_RUNG_DOUBLE;
  if (single) return 0;
  return part->is_good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
}

/* ---- diagonal --------------------------------------------------------------------------------*/

/* out <- 1 / (F_i + d) for all i; return false if a result is not a positive f32. */
static bool invert_diagonal(const float *F, int64_t n, double d, float *out) {
  for (int64_t i = 0; i < n; i++) {
    out[i] = (float)(1.0 / ((double)F[i] + d));
    if (!(out[i] > 0.0f) || !(out[i] - out[i] == 0.0f)) return false;
  }
  return true;
}

/* The ladder without its double-precision rung, because invert_diagonal computes in double. */
static int32_t solve_diagonal(const ng_block *b, const ng_side *s, ng_part *part, double shift,
                              double on, float *scratch) {
  const float *F = ng_kron_average(s, part);
  if (ng_kron_of(b)->is_eigen) {
    store_eigenvalues(b, part, F, shift);
    return 0;
  }
  for (int32_t rung = 0; rung < NG_RUNG_DOUBLE; rung++, on *= 10.0) {
    if (!invert_diagonal(F, part->n, shift + on, scratch)) continue;
    memcpy(part->d, scratch, (size_t)part->n * sizeof *scratch);
    return rung;
  }
  return part->is_good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
}

/* ---- any part --------------------------------------------------------------------------------*/

int32_t ng_kron_solve_part(const ng_block *b, const ng_side *s, ng_part *part, double shift,
                           double on) {
  const ng_kron *k = ng_kron_of(b);
  if (part->is_diagonal) return solve_diagonal(b, s, part, shift, on, ng_scratch(b));
  if (k->is_product) return copy_average(b, s, part, ng_scratch(b));
  if (k->is_eigen) return eigen(b, s, part, shift, on, ng_scratch(b));
  return cholesky(b, s, part, shift + on, ng_scratch(b));
}
