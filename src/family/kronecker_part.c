/* kronecker_part.c: one matrix of A or G, from its running average to what is applied.
 *
 * In: the average of a part, the shift that sits in it, the damping on top.  Out: (F + d I)^-1, or L of
 * F + d I = L L', or F = Q diag(e) Q' with e at or below eigen_floor set to 0, or F itself; and the rung of
 * the ladder at which it passed its checks.
 *
 * LAPACK's word is not taken: it reports success on NaN, so averages are scanned before (kronecker_solve.c)
 * and results are checked after, on a sampled column or three eigenpairs. */
#include "family/kronecker.h"

#include <math.h>

/* A column of the inverse may miss its unit vector by so much.  A healthy f32 inverse is near
 * n eps cond, 1e-4 at most in use; 1e-2 is where the direction of PD starts to be wrong. */
#define RESIDUAL 1e-2
/* Eigenvalues of a covariance may be negative by rounding, n eps of the largest; 1e-3 is above that
 * up to n = 16000 and far below what an indefinite matrix shows. */
#define NEGATIVE 1e-3

/* ---- scratch: cholesky  W [tri] (and F as f32 [tri]) or W64 [tri] doubles, then two vectors
 *               eigen     V [n n], work;  or V64 [n n] doubles, V, work64 ------------------- */

static int64_t part_scratch(const ng_block *b, int64_t n) {
  const ng_queue *q = b->ctx->queue;
  const int64_t vectors = 6 * ng_round16(2 * n), tri = ng_sym_count(n);
  if (!ng_kron_of(b)->eigen) return 2 * ng_round16(2 * tri) + vectors;
  const int64_t single =
      ng_round16(n * n) + ng_round16(tri) + ng_round16(q->la->eigen_work(q, n) / 4 + 16);
  const int64_t twice =
      3 * ng_round16(n * n) + ng_round16(tri) + ng_round16(q->la->eigen64_work(q, n) / 4 + 16);
  return ng_max64(single, twice) + vectors;
}

int64_t ng_kron_solve_scratch(const ng_block *b) {
  int64_t most = 0;
  if (!b->keeps) return 0;
  for (int side = 0; side < 2; side++) {
    const ng_side *s = &ng_kron_of(b)->side[side];
    for (int32_t i = 0; i < s->each; i++) {
      most = ng_max64(most, part_scratch(b, s->part[i].n));
    }
  }
  return most;
}

/* ---- loading and checking --------------------------------------------------------------------*/

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

/* The checks run here, on the host, and look at what the queue has finished.  n^2 operations beside
 * the n^3 of a solve, in double: with f32 sums the residual would be that of the check. */

/* |(F + d I) x - e_j| in the largest entry; y is room for n doubles. */
static double residual(ng_sym F, double d, int64_t j, const double *x, double *y) {
  double worst = 0.0;
  ng_sym_vector(F, x, y);
  for (int64_t i = 0; i < F.n; i++) {
    const double r = fabs(y[i] + d * x[i] - (i == j ? 1.0 : 0.0));
    if (!(r <= worst)) worst = r; /* NaN stays */
  }
  return worst;
}

/* The diagonal entry where the inverse is largest: its column is the worst conditioned one, so one
 * column stands for all.  Of L the smallest pivot.  Not positive or not finite: no result. */
static int64_t weakest(ng_sym R, bool is_factor, bool *sound) {
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

/* ---- cholesky --------------------------------------------------------------------------------*/

/* x is the column in double for the residual, `column` the same as f32. */
static bool check_cholesky(const ng_block *b, const ng_part *part, ng_sym F, double d, ng_sym R,
                           float *column, double *x, double *y) {
  bool sound = false;
  ng_queue *q = b->ctx->queue;
  NG_ASSERT(ng_queue_settled(q));
  const int64_t j = weakest(R, part->is_factor, &sound);
  if (!sound) return false;
  if (part->is_factor) {
    memset(column, 0, (size_t)part->n * sizeof *column);
    column[j] = 1.0f;
    ng_on(q)->solve_left(q, R, 1, column, 1);
    ng_queue_wait(q);
  } else {
    ng_sym_column(R, j, column);
  }
  for (int64_t i = 0; i < part->n; i++) {
    x[i] = column[i];
  }
  return residual(F, d, j, x, y) <= RESIDUAL;
}

/* Rounded to inverse_dtype only after the checks, which are about the solve and not about 16
 * bits. */
static void store(const ng_block *b, void *dst, const float *src, int64_t n) {
  ng_queue *q = b->ctx->queue;
  ng_on(q)->narrow(q, n, src, dst, ng_kron_of(b)->inverse_dtype);
}

/* Both are done before anybody looks: to invert what is no factor costs time, and only then. */
static bool both_done(const ng_queue *q, const ng_part *part) {
  return ng_info_read(q, &part->info[0]) == 0 &&
         (part->is_factor || ng_info_read(q, &part->info[1]) == 0);
}

static bool cholesky_single(const ng_block *b, const ng_side *s, ng_part *part, double d,
                            float *scratch) {
  ng_queue *q = b->ctx->queue;
  const int64_t tri = ng_sym_count(part->n);
  ng_sym W = {scratch, part->n};
  float *room = scratch + ng_round16(tri), *column = room + ng_round16(tri);
  double *x = (double *)(void *)(column + ng_round16(part->n)), *y = x + ng_round16(part->n);
  const ng_sym F = load(b, s, part, room);
  ng_on(q)->copy(q, 1, tri, F.a, tri, W.a, tri);
  ng_on(q)->shift(q, part->n, W.a, NG_F32, d);
  ng_on(q)->factor(q, W, &part->info[0]);
  if (!part->is_factor) ng_on(q)->invert(q, W, &part->info[1]);
  ng_queue_wait(q);
  if (!both_done(q, part)) return false;
  if (!check_cholesky(b, part, F, d, W, column, x, y)) return false;
  store(b, part->R, W.a, tri);
  return true;
}

/* With the damping that was asked for: a double needs no more.  The checks are made in double,
 * before the result is rounded; what is beyond the range of f32 fails then. */
static bool cholesky_double(const ng_block *b, const ng_side *s, ng_part *part, double d,
                            float *scratch) {
  ng_queue *q = b->ctx->queue;
  const int64_t n = part->n, tri = ng_sym_count(n);
  double *W = (double *)(void *)scratch;
  float *room = scratch + ng_round16(2 * tri);
  double *x = (double *)(void *)(room + ng_round16(tri)), *y = x + ng_round16(n);
  const ng_sym F = load(b, s, part, room);
  ng_queue_wait(q);
  for (int64_t i = 0; i < tri; i++) {
    W[i] = (double)F.a[i];
  }
  for (int64_t i = 0; i < n; i++) {
    W[ng_sym_at(n, i, i)] += d;
  }
  ng_on(q)->factor64(q, n, W, &part->info[0]);
  if (!part->is_factor) ng_on(q)->invert64(q, n, W, &part->info[1]);
  ng_queue_wait(q);
  if (!both_done(q, part)) return false;
  int64_t j = 0;
  for (int64_t i = 0; i < n; i++) {
    const double w = W[ng_sym_at(n, i, i)], best = W[ng_sym_at(n, j, j)];
    if (!(w > 0.0)) return false;
    if (part->is_factor ? w < best : w > best) j = i;
  }
  if (part->is_factor) { /* L L' x = e_j, by substitution */
    for (int64_t i = 0; i < n; i++) {
      double sum = i == j ? 1.0 : 0.0;
      for (int64_t c = 0; c < i; c++) {
        sum -= W[ng_sym_at(n, i, c)] * x[c];
      }
      x[i] = sum / W[ng_sym_at(n, i, i)];
    }
    for (int64_t i = n - 1; i >= 0; i--) {
      for (int64_t c = i + 1; c < n; c++) {
        x[i] -= W[ng_sym_at(n, c, i)] * x[c];
      }
      x[i] /= W[ng_sym_at(n, i, i)];
    }
  } else {
    for (int64_t i = 0; i < n; i++) {
      x[i] = W[ng_sym_at(n, i, j)];
    }
  }
  if (!(residual(F, d, j, x, y) <= RESIDUAL)) return false;
  for (int64_t i = 0; i < tri; i++) {
    room[i] = (float)W[i]; /* F is no longer needed */
    if (!(room[i] - room[i] == 0.0f)) return false;
  }
  store(b, part->R, room, tri);
  return true;
}

/* Damping first, since it costs one more f32 solve and most failures are of a factor that has lost
 * rank; then double, which has 2^29 times the head room. */
static int32_t cholesky(const ng_block *b, const ng_side *s, ng_part *part, double d,
                        float *scratch) {
  double shift = d;
  for (int32_t rung = 0; rung < NG_RUNG_DOUBLE; rung++, shift *= 10.0) {
    if (cholesky_single(b, s, part, shift, scratch)) return rung;
  }
  if (cholesky_double(b, s, part, d, scratch)) return NG_RUNG_DOUBLE;
  return part->good ? NG_RUNG_LAST : NG_RUNG_PLAIN;
}

/* solver = product: the average itself, as it is now. */
static int32_t copy(const ng_block *b, const ng_side *s, ng_part *part, float *scratch) {
  store(b, part->R, load(b, s, part, scratch).a, ng_sym_count(part->n));
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
