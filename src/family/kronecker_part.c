/* kronecker_part.c: one matrix of A or G, from its running average to what is applied.
 *
 * In: the average of a part, the shift that sits in it, the damping on top.  Out: (F + d I)^-1, or L of
 * F + d I = L L', or F = Q diag(e) Q' with e at or below eigen_floor set to 0, or F itself; and the rung of
 * the ladder at which it passed its checks.
 *
 * LAPACK's word is not taken: it reports success on NaN, so averages are scanned before (kronecker_solve.c)
 * and results are checked after, on a sampled column (linalg/damped.c) or three eigenpairs. */
#include "family/kronecker.h"

#include <math.h>

/* Eigenvalues of a covariance may be negative by rounding, n eps of the largest; 1e-3 is above that
 * up to n = 16000 and far below what an indefinite matrix shows. */
#define NEGATIVE 1e-3

/* ---- scratch: cholesky  ng_damped_scratch
 *               eigen     V [n n], work;  or V64 [n n] doubles, V, work64 ------------------- */

static int64_t part_scratch(const ng_block *b, int64_t n) {
  const ng_queue *q = b->ctx->queue;
  const int64_t vectors = 6 * ng_round16(2 * n), tri = ng_sym_count(n);
  if (!ng_kron_of(b)->eigen) return ng_damped_scratch(n);
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
    for (int32_t i = 0; i < s->each && s->stat->keeps; i++) {
      most = ng_max64(most, part_scratch(b, s->part[i].n));
    }
  }
  return most;
}

/* ---- loading --------------------------------------------------------------------*/

/* F as f32: where it is, or enqueued to be in `room`. */
static ng_sym load(const ng_block *b, const ng_side *s, const ng_part *part, float *room) {
  ng_sym F = {ng_kron_average(s, part), part->n};
  if (s->stat->kept != NG_F32) {
    ng_queue *q = b->ctx->queue;
    ng_on(q)->widen(q, ng_sym_count(part->n), F.a, s->stat->kept, room);
    F.a = room;
  }
  return F;
}

/* ---- cholesky --------------------------------------------------------------------------------*/

/* What is beyond the range of inverse_dtype is no result: an f16 ends at 65504. */
static bool fits(const ng_block *b, ng_part *part, const float *x, int64_t n) {
  const ng_dtype t = ng_kron_of(b)->inverse_dtype;
  ng_queue *q = b->ctx->queue;
  if (t == NG_F32) return true;
  ng_on(q)->largest(q, n, x, NG_F32, &part->largest);
  ng_queue_wait(q);
  return *ng_numbers_read(q, &part->largest) <= ng_dtype_most(t);
}

/* Rounded to inverse_dtype only after the checks, which are about the solve and not about 16
 * bits. */
static void store(const ng_block *b, void *dst, const float *src, int64_t n) {
  ng_queue *q = b->ctx->queue;
  ng_on(q)->narrow(q, n, src, dst, ng_kron_of(b)->inverse_dtype);
}

static int32_t cholesky(const ng_block *b, const ng_side *s, ng_part *part, double d,
                        float *scratch) {
  const ng_damped m = {.n = part->n,
                       .F = ng_kron_average(s, part),
                       .kept = s->stat->kept,
                       .R = part->R,
                       .stored = ng_kron_of(b)->inverse_dtype,
                       .is_factor = part->is_factor,
                       .info = part->info,
                       .largest = &part->largest};
  const int32_t rung = ng_damped_solve(b->ctx->queue, &m, d, scratch);
  if (rung != NG_DAMPED_NONE) return rung;
  return part->good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
}

/* solver = product: the average itself, as it is now. */
static int32_t copy(const ng_block *b, const ng_side *s, ng_part *part, float *scratch) {
  const ng_sym F = load(b, s, part, scratch);
  if (!fits(b, part, F.a, ng_sym_count(part->n))) return part->good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
  store(b, part->R, F.a, ng_sym_count(part->n));
  return 0;
}

/* ---- eigen -----------------------------------------------------------------------------------*/

/* How far below 0 an eigenvalue of a stored average may be, relative to the largest: rounding n
 * entries of a row to 16 bits moves it by up to n half units. */
static double negative_limit(ng_dtype t, int64_t n) {
  return t == NG_F32 ? NEGATIVE : fmin(0.5, (double)n * (t == NG_BF16 ? 0x1p-8 : 0x1p-11));
}

/* First, middle and last pair: residual, norm, and orthogonality of the outer two. */
static bool check_eigen(const ng_block *b, const ng_side *side, ng_sym F, const float *V,
                        const float *e, double *x, double *y) {
  const int64_t n = F.n, sample[3] = {0, n / 2, n - 1};
  double top = 0.0, dot = 0.0;
  NG_ASSERT(ng_queue_settled(b->ctx->queue));
  for (int64_t i = 0; i < n; i++) {
    if (!(e[i] - e[i] == 0.0f)) return false;
    top = fmax(top, fabs((double)e[i]));
  }
  if ((double)e[0] < -negative_limit(side->stat->kept, n) * top) return false;
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
    if (!(worst <= NEGATIVE * top) || !(fabs(norm - 1.0) <= NEGATIVE)) return false;
  }
  for (int64_t i = 0; i < n && n > 1; i++) {
    dot += (double)V[i] * (double)V[(n - 1) * n + i];
  }
  return fabs(dot) <= NEGATIVE;
}

/* `leak` is a shift of the average that its array does not have, so eigenvalues get it here.  What
 * is at or below eigen_floor counts as 0 (KAISA: 0, MPD-KFAC: 1e-10): rounding's negative ones
 * would turn a direction around where lambda is smaller than they are. */
static void store_eigen(const ng_block *b, ng_part *part, const float *V, const float *e,
                        double leak) {
  const int64_t n = part->n;
  store(b, part->V, V, n * n);
  for (int64_t i = 0; i < n; i++) {
    const float x = (float)((double)e[i] + leak);
    part->d[i] = (double)x <= b->opt.eigen_floor || x < 0.0f ? 0.0f : x;
  }
}

static bool eigen_single(const ng_block *b, const ng_side *s, ng_part *part, double leak,
                         float *scratch) {
  const int64_t n = part->n;
  float *V = scratch, *room = V + ng_round16(n * n), *e = room + ng_round16(ng_sym_count(n));
  double *x = (double *)(void *)(e + ng_round16(n)), *y = x + ng_round16(n);
  void *work = y + ng_round16(n);
  ng_queue *q = b->ctx->queue;
  const ng_sym F = load(b, s, part, room);
  ng_on(q)->unpack(q, F, V, n);
  ng_on(q)->eigen(q, n, V, e, work, &part->info[0]);
  ng_queue_wait(q);
  if (ng_info_read(q, &part->info[0]) != 0) return false;
  if (!check_eigen(b, s, F, V, e, x, y)) return false;
  store_eigen(b, part, V, e, leak);
  return true;
}

static bool eigen_double(const ng_block *b, const ng_side *s, ng_part *part, double leak,
                         float *scratch) {
  const int64_t n = part->n;
  double *V64 = (double *)(void *)scratch;
  float *V = scratch + 2 * ng_round16(n * n), *room = V + ng_round16(n * n);
  float *e = room + ng_round16(ng_sym_count(n));
  double *x = (double *)(void *)(e + ng_round16(n)), *y = x + ng_round16(n);
  void *work = y + ng_round16(n);
  ng_queue *q = b->ctx->queue;
  const ng_sym F = load(b, s, part, room);
  ng_on(q)->unpack(q, F, V, n);
  ng_queue_wait(q);
  for (int64_t i = 0; i < n * n; i++) {
    V64[i] = (double)V[i];
  }
  ng_on(q)->eigen64(q, n, V64, x, work, &part->info[0]);
  ng_queue_wait(q);
  if (ng_info_read(q, &part->info[0]) != 0) return false;
  for (int64_t i = 0; i < n * n; i++) {
    V[i] = (float)V64[i];
  }
  for (int64_t i = 0; i < n; i++) {
    e[i] = (float)x[i];
  }
  if (!check_eigen(b, s, F, V, e, x, y)) return false;
  store_eigen(b, part, V, e, leak);
  return true;
}

/* More damping does not help an eigendecomposition: it only shifts the eigenvalues. */
static int32_t eigen(const ng_block *b, const ng_side *s, ng_part *part, double leak,
                     float *scratch) {
  if (eigen_single(b, s, part, leak, scratch)) return 0;
  if (eigen_double(b, s, part, leak, scratch)) return NG_RUNG_DOUBLE;
  return part->good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
}

/* ---- the door --------------------------------------------------------------------------------*/

int32_t ng_kron_solve_part(const ng_block *b, const ng_side *s, ng_part *part, double shift,
                           double on) {
  const ng_kron *k = ng_kron_of(b);
  if (k->product) return copy(b, s, part, ng_scratch(b));
  if (k->eigen) return eigen(b, s, part, shift, ng_scratch(b));
  return cholesky(b, s, part, shift + on, ng_scratch(b));
}
