/* kronecker_solve.c: from running averages to inverses, Cholesky factors or eigenbases.
 *
 * On the block's owner, each part of A and G by itself:
 *   cholesky   (F + d I)^-1, or L of F + d I = L L' where that is cheaper
 *   eigen      F = Q diag(e) Q', e at or below eigen_floor set to 0
 *   product    F as it is: nothing is inverted
 * with d from damping_split: full d_A = d_G = lambda; pi d_A = sqrt(lambda) pi, d_G =
 * sqrt(lambda)/pi, pi = sqrt((tr A / p) / (tr G / q)) (Martens & Grosse 2015, section 6.3).
 *
 * LAPACK's word is not taken: it reports success on NaN, so the average is scanned before and the
 * result is checked after, on a sampled column.  What does not pass climbs the ladder
 *   damping x 10, at most 3 times -> double precision -> last good result -> plain gradient
 * and each rung is counted.  The ladder has an end for every matrix, so no step fails for one;
 * ng_report says what was needed.
 *
 * In: averages of this rank's own sides.  Out: results in their run, what they say of themselves,
 * rungs.  No collective here: sharing is the exchange's. */
#include "family/kronecker.h"

#include <math.h>

enum { RUNG_DOUBLE = 4, RUNG_LAST = 5, RUNG_PLAIN = 6 };

/* A column of the inverse may miss its unit vector by so much.  A healthy f32 inverse is near
 * n eps cond, 1e-4 at most in use; 1e-2 is where the direction of PD starts to be wrong. */
#define RESIDUAL 1e-2
/* Eigenvalues of a covariance may be negative by rounding, n eps of the largest; 1e-3 is above that
 * up to n = 16000 and far below what an indefinite matrix shows. */
#define NEGATIVE 1e-3

/* From base: the answer sizes memory and names a field in files, so no schedule may change it. */
bool ng_kron_keeps_factor(const ng_block *b, int64_t n, int64_t m) {
  const ng_kron *k = ng_kron_of(b);
  if (k->eigen || k->product || b->base.cholesky_form == NG_FORM_INVERSE) return false;
  if (b->base.cholesky_form == NG_FORM_FACTOR) return true;
  /* Inverting costs 2 n^3 / 3 once more a solve; two triangular solves run at about two thirds of
   * the rate of one symmetric product of the same 2 n^2 m, so a step loses n^2 m.  Hence: keep L
   * where 2 n^3 / 3 > solve_period n^2 m. */
  return 2.0 * (double)n > 3.0 * (double)b->base.solve_period * (double)m;
}

/* pi gives each factor a shift in proportion to its own mean eigenvalue: of all splits with d_A d_G
 * = lambda it makes the bound on the cross terms d_A I (x) G + d_G A (x) I least, in the trace norm
 * (Martens & Grosse 2015, section 6.3). */
void ng_kron_split(const ng_block *b, double lambda, double pi, double *on_a, double *on_g) {
  *on_a = *on_g = 0.0;
  if (ng_kron_of(b)->product) return; /* nothing is inverted */
  if (b->opt.damping_split == NG_SPLIT_FULL) {
    *on_a = *on_g = lambda;
  } else if (b->opt.damping_split == NG_SPLIT_PI) {
    *on_a = sqrt(lambda) * pi;
    *on_g = sqrt(lambda) / pi;
  }
}

/* pi is what G's owner said, which every rank that holds the results has read; not this rank's
 * own. */
ng_spectrum ng_kron_spectrum(const ng_block *b, const ng_part *g, const ng_part *a, double lambda) {
  const float *pi = ng_kron_of(b)->side[NG_SIDE_G].says + NG_SAYS_PI;
  ng_spectrum s = {.g = g->d, .a = a->d};
  ng_kron_split(b, lambda, (double)pi[g->group], &s.on_a, &s.on_g);
  if (b->opt.damping_split == NG_SPLIT_JOINT) s.on_both = lambda;
  return s;
}

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
  for (int32_t rung = 0; rung < RUNG_DOUBLE; rung++, shift *= 10.0) {
    if (cholesky_single(b, s, part, shift, scratch)) return rung;
  }
  if (cholesky_double(b, s, part, d, scratch)) return RUNG_DOUBLE;
  return part->good ? RUNG_LAST : RUNG_PLAIN;
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
  if (eigen_double(b, s, part, leak, scratch)) return RUNG_DOUBLE;
  return part->good ? RUNG_LAST : RUNG_PLAIN;
}

/* 1 / (d_G d_A + lambda), or with a split damping 1 / ((d_G + on_g) (d_A + on_a)).  Frozen at this
 * lambda until the next solve, as KAISA's compute_eigenvalue_outer_product has it. */
static void predivide(ng_block *b, double lambda) {
  const ng_kron *k = ng_kron_of(b);
  const int64_t size = ng_dtype_size(k->inverse_dtype);
  ng_queue *q = b->ctx->queue;
  for (int32_t gi = 0; gi < k->side[NG_SIDE_G].parts; gi++) {
    const ng_part *g = &k->side[NG_SIDE_G].part[gi];
    for (int32_t ai = 0; ai < k->side[NG_SIDE_A].each; ai++) {
      const ng_part *a = &k->side[NG_SIDE_A].part[g->group * k->side[NG_SIDE_A].each + ai];
      const ng_spectrum s = ng_kron_spectrum(b, g, a, lambda);
      ng_on(q)->invert_spectrum(q, g->n, a->n, s, (char *)k->prediv + (g->at * k->p + a->at) * size,
                                k->inverse_dtype, k->p);
    }
  }
}

/* ---- the block -------------------------------------------------------------------------------*/

/* Traces of a group's averages, and whether they are finite: one look at all of them, before any
 * solve.  LAPACK reports success on NaN, and a NaN trace would spread through pi to the healthy
 * side. */
static void look(const ng_block *b, int32_t group) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  for (int side = 0; side < 2; side++) {
    const ng_side *s = &k->side[side];
    for (int32_t i = group * s->each; i < (group + 1) * s->each; i++) {
      ng_part *part = &s->part[i];
      const void *F = ng_kron_average(s, part);
      ng_on(q)->finite(q, ng_sym_count(part->n), F, s->stat->kept, &part->finite);
      ng_on(q)->trace(q, part->n, F, s->stat->kept, &part->trace);
    }
  }
  ng_queue_wait(q);
}

/* Mean eigenvalue of a group's side, its shift included; false if an entry is not finite. */
static bool mean_trace(const ng_block *b, const ng_side *s, int32_t group, double *mean) {
  const ng_queue *q = b->ctx->queue;
  double trace = 0.0;
  int64_t n = 0;
  bool finite = true;
  for (int32_t i = group * s->each; i < (group + 1) * s->each; i++) {
    finite = finite && ng_info_read(q, &s->part[i].finite) != 0;
    trace += *ng_numbers_read(q, &s->part[i].trace);
    n += s->part[i].n;
  }
  *mean = trace / (double)n + s->shift[group];
  return finite;
}

static void count(ng_block *b, int32_t rung, const ng_part *part, const ng_side *s) {
  static const char *const how[] = {"damping x 10",     "damping x 100", "damping x 1000",
                                    "double precision", "last good",     "plain gradient"};
  if (rung == 0) return;
  b->p->rescued[rung < RUNG_DOUBLE    ? NG_RESCUE_DAMPING
                : rung == RUNG_DOUBLE ? NG_RESCUE_DOUBLE
                : rung == RUNG_LAST   ? NG_RESCUE_LAST
                                      : NG_RESCUE_PLAIN]++;
  ng_log(b->ctx, NG_LOG_WARN, "solve: layer = %s factor = %s n = %lld rescued = %s", b->name,
         s->stat->name, (long long)part->n, how[rung - 1]);
}

/* One group of a side on its owner: the worst rung of its parts. */
static int32_t solve_group(ng_block *b, ng_side *s, int32_t group, double on, bool finite) {
  ng_kron *k = ng_kron_of(b);
  int32_t worst = 0;
  for (int32_t j = group * s->each; j < (group + 1) * s->each; j++) {
    ng_part *part = &s->part[j];
    int32_t rung = part->good ? RUNG_LAST : RUNG_PLAIN;
    if (finite) {
      rung = k->product ? copy(b, s, part, k->scratch)
             : k->eigen ? eigen(b, s, part, s->shift[group], k->scratch)
                        : cholesky(b, s, part, s->shift[group] + on, k->scratch);
    }
    count(b, rung, part, s);
    part->good = part->good || rung < RUNG_LAST;
    worst = rung > worst ? rung : worst;
  }
  return worst;
}

/* pi, or 1 where it would be 0, Inf or NaN: then the product of both shifts is still lambda. */
static double balance(const double mean[2]) {
  const double pi = sqrt(mean[NG_SIDE_A] / mean[NG_SIDE_G]);
  const bool sound = mean[NG_SIDE_A] > 0.0 && mean[NG_SIDE_G] > 0.0 && pi - pi == 0.0 && pi > 0.0;
  return sound ? pi : 1.0; /* a zero or broken factor has no scale to balance */
}

static bool all_good(const ng_side *s) {
  for (int32_t i = 0; i < s->parts; i++) {
    if (!s->part[i].good) return false;
  }
  return true;
}

/* Every rank that keeps the averages makes the same traces, pi and shifts; what is inverted is the
 * owner's of each side.  So none of them waits for the pi of another, and damping_leak moves the
 * averages of all ranks alike: an owner's alone would differ from the others' until the next
 * reduction, as the published program's does.  Groups are solved one by one, each with a pi of its
 * own: they share nothing but the layer. */
ng_status ng_kron_solve(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  const double lambda = b->opt.damping;
  int32_t worst[2] = {0, 0}; /* by side: the highest rung of its parts */
  bool own[2];               /* this rank solves that side */
  if (!b->keeps) return NG_OK;
  for (int i = 0; i < 2; i++) {
    own[i] = k->side[i].stat->owner == b->ctx->rank;
  }
  for (int32_t group = 0; group < k->groups; group++) {
    double mean[2], on[2];
    bool finite[2];
    look(b, group);
    for (int i = 0; i < 2; i++) {
      finite[i] = mean_trace(b, &k->side[i], group, &mean[i]);
    }
    const double pi = balance(mean);
    ng_kron_split(b, lambda, pi, &on[NG_SIDE_A], &on[NG_SIDE_G]);
    for (int i = 0; i < 2; i++) {
      ng_side *s = &k->side[i];
      if (own[i]) {
        const int32_t rung = solve_group(b, s, group, on[i], finite[i]);
        worst[i] = rung > worst[i] ? rung : worst[i];
        s->says[NG_SAYS_PI + group] = (float)pi;
        if (group == 0) s->says[NG_SAYS_DAMPING] = (float)on[i];
      }
      /* on every rank that holds the average: same sums, same shift */
      if (b->base.damping_leak) s->shift[group] += on[i];
    }
  }
  if (own[0] && own[1] && k->prediv != NULL && all_good(&k->side[0]) && all_good(&k->side[1])) {
    predivide(b, lambda);
  }
  ng_queue_wait(b->ctx->queue); /* scratch is free for others */
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    for (int32_t j = 0; own[i] && j < s->parts; j++) {
      s->says[NG_SAYS_PI + k->groups + j] = s->part[j].good ? 1.0f : 0.0f;
    }
    if (own[i]) s->says[NG_SAYS_RUNG] = (float)worst[i];
  }
  return worst[0] > 0 || worst[1] > 0 ? NG_RESCUED : NG_OK;
}

/* Results are here, from this rank, others or a file.  Where A and G were solved by different ranks
 * nobody could divide ahead before. */
void ng_kron_shared(ng_block *b, bool fresh) {
  ng_kron *k = ng_kron_of(b);
  k->good = true;
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    for (int32_t j = 0; j < s->parts; j++) {
      s->part[j].good = s->says[NG_SAYS_PI + k->groups + j] != 0.0f;
      k->good = k->good && s->part[j].good;
    }
  }
  if (fresh && k->prediv != NULL && k->good && !ng_kron_together(k)) {
    predivide(b, b->opt.damping);
    ng_queue_wait(b->ctx->queue);
  }
}

void ng_kron_report(const ng_block *b, ng_layer_report *r) {
  const ng_kron *k = ng_kron_of(b);
  if (!b->holds) return;
  for (int i = 0; i < 2; i++) {
    const float rung = k->side[i].says[NG_SAYS_RUNG]; /* of a file: any number */
    const int32_t known = rung >= 0.0f && rung <= (float)RUNG_PLAIN ? (int32_t)rung : RUNG_PLAIN;
    r->rung = known > r->rung ? known : r->rung;
  }
  r->pi = (double)k->side[NG_SIDE_A].says[NG_SAYS_PI];
  r->damping_a = (double)k->side[NG_SIDE_A].says[NG_SAYS_DAMPING];
  r->damping_g = (double)k->side[NG_SIDE_G].says[NG_SAYS_DAMPING];
}
