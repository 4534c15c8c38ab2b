/* window_solve.c: the functions of a window's Gram matrix K = G G': coefficients of its rows, all in
 * double.  Order n of the rows in use, at most m; the row at head, if this step has one, is the last.
 *
 * M-FAC (Frantar, Kurtic & Alistarh 2021, arXiv 2107.03356): F = lambda I + G'G / M, M = m, also while
 * the window is filled (window_divisor = filled: n).  The published recursion factorises S = K / lambda + M I
 * without pivoting; with Cholesky and Woodbury
 *
 *     F^-1 x = x / lambda - G' S^-1 G x / lambda^2
 *
 * and for x = row j, where the two terms nearly cancel when lambda is small, all of it at once:
 *
 *     F^-1 G_j = (M / lambda) G' S^-1 e_j
 *
 * (G'(K / lambda + M I) = lambda^-1 (G'G + lambda M I) G', so G' S^-1 = (lambda / M) F^-1 G').
 *
 * GGT (Agarwal et al. 2019, arXiv 1806.02958, as EFCP has it): with a_i = forget^age of row i,
 * diag(a) K diag(a) + 1e-6 I = V Sigma^2 V' and U = G' V / Sigma of the rows as they are,
 *
 *     u = U (1 / (Sigma + eps) - 1 / eps) U' x + x / eps
 *       = x / eps - G' V (1 / (eps Sigma (Sigma + eps))) V' G x
 *
 * and for x = G' b, numbers of rows (b = e_j: row j), with nothing that cancels,
 *
 *     u = G' V [(1 / (Sigma + eps) + 1e-6 / (eps Sigma (Sigma + eps))) V' b - V' q / (eps Sigma (Sigma + eps))],
 *     q_i = sum over j of (1 - a_i a_j) K_ij b_j
 *
 * An average of gradients is r + G' b (window_average.c), and its direction that of both.
 *
 * K may be so much larger than M lambda, or than 1e-6 and eps, and rows so alike, that double does not see what sets a row
 * apart: a pivot of S beside its diagonal entry, or of GGT what V is uncertain by, tells.  Then all of it is done in numbers of two
 * doubles (window_fine.c), products of the rows that matter among it (window_gram.c).  Not so: in slices, whose products are
 * sums over ranks, with more rows than take a second, and of more rows at once than some; a step that may be off by more
 * than 1e-5 then is NG_RESCUED.
 *
 * Where S has no factor even so its diagonal is raised, by 1e-12 of the largest entry and up, and the step is NG_RESCUED.  If
 * that is of no use, the direction is x.
 *
 * So it is where sum over j of |c_j| |G_j| leaves f32: with window_forget, a row that is much larger than the newer
 * ones, whose Sigma is that of the floor, would make it Inf until it has left the window. */
#include "family/window.h"

#include <float.h>
#include <math.h>

static const double GGT_FLOOR = 1e-6;
/* Of one part, such that all of a thousand parts together are within f32. */
static const double COMBINATION_MOST = (double)FLT_MAX / 64.0;
enum { ATTEMPTS = 4 };
/* How far off a direction may be, of itself, and two doubles are not asked; and it is not told that they were not to be had. */
static const double FINE_FROM = 1e-7, TELL_FROM = 1e-5;
/* Times a diagonal entry over its pivot: M-FAC's error, as seen of rows that are all the same. */
static const double MFAC_OFF = 4e-15;
/* Rows with less of the largest part in the direction need no rest of their own. */
static const double PART_LEAST = 1e-4;
enum { FINE_MFAC_MOST = 1024, FINE_GGT_MOST = 256 };

/* Scratch: a vector, and S, or V, values and work. */
static int64_t vector_bytes(const ng_window *w) {
  return (w->places * (int64_t)sizeof(double) + NG_ALIGN - 1) / NG_ALIGN * NG_ALIGN;
}

int64_t ng_window_scratch(const ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const ng_queue *q = b->ctx->queue;
  const int64_t each = (int64_t)sizeof(double);
  if (b->base.window_function == NG_WINDOW_MFAC) {
    const int64_t system = ng_plus(vector_bytes(w), ng_times(ng_sym_count(w->m), each));
    const int64_t fine = ng_window_fine_mfac_room(ng_min64(w->m, FINE_MFAC_MOST)) * each;
    return ng_max64(system, fine);
  }
  const int64_t fine = ng_window_fine_ggt_room(ng_min64(w->m, FINE_GGT_MOST)) * each;
  return ng_plus(ng_plus(4 * vector_bytes(w), ng_times(ng_times(w->m, w->m), each) + NG_ALIGN),
                 ng_max64(fine, q->la->eigen64_work(q, w->m)));
}

/* Of slices the products are sums over ranks, which are rounded. */
static bool may_be_fine(const ng_block *b, int64_t most) {
  const ng_window *w = ng_window_of(b);
  return !w->sliced && w->uses <= most;
}

static double diagonal(const ng_window *w, const ng_window_part *p, int64_t place) {
  return p->gram[place * w->places + place];
}

static double entry(const ng_window *w, const ng_window_part *p, int64_t i, int64_t j) {
  return p->gram[w->used[i] * w->places + w->used[j]];
}

/* ---- M-FAC -----------------------------------------------------------------------------------*/

static void fill_system(const ng_window *w, const ng_window_part *p, double lambda, double divisor,
                        double *S) {
  for (int64_t i = 0; i < w->uses; i++) {
    for (int64_t j = 0; j <= i; j++) {
      S[ng_sym_at(w->uses, i, j)] = entry(w, p, i, j) / lambda + (i == j ? divisor : 0.0);
    }
  }
}

/* False: not positive definite, or not finite. */
static bool factor(ng_block *b, int64_t n, double *S) {
  int info = 0; /* the queue is waited for below */
  ng_queue *q = b->ctx->queue;
  ng_on(q)->factor64(q, n, S, &info);
  ng_queue_wait(q);
  if (ng_info_read(q, &info) != 0) return false;
  for (int64_t i = 0; i < n; i++) {
    const double d = S[ng_sym_at(n, i, i)];
    if (!(d > 0.0) || !(d - d == 0.0)) return false;
  }
  return true;
}

/* With a diagonal that is raised. */
static ng_status factor_raised(ng_block *b, const ng_window_part *p, double lambda, double divisor,
                               double *S) {
  const ng_window *w = ng_window_of(b);
  double raise = 1e-12, most = divisor;
  for (int64_t i = 0; i < w->uses; i++) {
    most = fmax(most, entry(w, p, i, i) / lambda);
  }
  for (int k = 1; k < ATTEMPTS; k++, raise *= 100.0) {
    fill_system(w, p, lambda, divisor + raise * most, S);
    if (!factor(b, w->uses, S)) continue;
    b->p->rescued[NG_RESCUE_DAMPING]++;
    return NG_RESCUED;
  }
  return NG_SKIPPED;
}

/* Of the right side, in S c = that. */
static double asked(const ng_window *w, const ng_window_part *p, const double *k, double lambda,
                    double M, int64_t i) {
  const double a = M / lambda * ng_window_along(w, p, k, i);
  return k == NULL ? a : a - k[w->used[i]] / (lambda * lambda);
}

/* p->c by the kept factor.  False: it is not one of this S. */
static bool solve_kept(ng_block *b, ng_window_part *p, const double *k, double lambda, double M) {
  const ng_window *w = ng_window_of(b);
  const bool fresh = w->used[w->uses - 1] == ng_window_head(w);
  const bool same = w->factored == lambda && M == (double)w->m;
  double *z = p->c;
  if (!fresh || !(same || w->uses == 1) ||
      !ng_window_factor_append(w, p, lambda, M, ng_scratch(b))) {
    return false;
  }
  for (int64_t i = 0; i < w->uses; i++) {
    z[w->used[i]] = asked(w, p, k, lambda, M, i);
  }
  ng_window_factor_solve(w, p, k == NULL, z);
  return true;
}

/* For the coming steps, if all went as asked. */
static void keep(ng_block *b, ng_window_part *p, bool whole, const double *S) {
  ng_window *w = ng_window_of(b);
  if (w->used[w->uses - 1] != ng_window_head(w)) return;
  w->replaced = true;
  if (whole) {
    ng_window_factor_keep(w, p, S);
  } else {
    w->next_factored = 0.0;
  }
}

/* p->c by S, factorised. */
static void solve_new(ng_block *b, ng_window_part *p, const double *k, double lambda, double M,
                      const double *S) {
  const ng_window *w = ng_window_of(b);
  ng_queue *q = b->ctx->queue;
  double *z = ng_scratch(b);
  for (int64_t i = 0; i < w->uses; i++) {
    z[i] = asked(w, p, k, lambda, M, i);
  }
  ng_on(q)->solve64(q, w->uses, S, z);
  ng_queue_wait(q);
  for (int64_t i = 0; i < w->uses; i++) {
    p->c[w->used[i]] = z[i];
  }
}

/* The largest diagonal entry over its pivot, of the rows that x is made of; S NULL: by the kept factor. */
static double spread(const ng_window *w, const ng_window_part *p, const double *k, double lambda,
                     double M, const double *S) {
  double most = 1.0;
  for (int64_t i = 0; i < w->uses; i++) {
    const int64_t at = w->used[i];
    const double L = S != NULL ? S[ng_sym_at(w->uses, i, i)] : p->factor[at * w->places + at];
    if (k == NULL && ng_window_along(w, p, k, i) == 0.0) continue;
    most = fmax(most, (diagonal(w, p, at) / lambda + M) / (L * L));
  }
  return most;
}

/* What is told of a direction that is off by so much. */
static ng_status told(ng_block *b, double off) {
  if (off <= TELL_FROM) return NG_OK;
  b->p->rescued[NG_RESCUE_DAMPING]++;
  return NG_RESCUED;
}

/* Of all rows in use the same part, by which those without a rest get one. */
static void ask_all(const ng_window *w, ng_window_part *p) {
  for (int64_t i = 0; i < w->uses; i++) {
    p->c[w->used[i]] = 1.0;
  }
}

/* In two doubles.  The first time rows may have no rest: then it is done again with what they have by then.  NG_SKIPPED:
 * there is no factor even so. */
static ng_status fine_mfac(ng_block *b, ng_window_part *p, const double *k, double lambda, double M,
                           double off) {
  ng_window *w = ng_window_of(b);
  const int32_t part = (int32_t)(p - w->part);
  bool whole = false, known = false, some = true;
  for (int again = 0; again < 2 && some; again++) {
    whole = ng_window_fine_mfac(w, p, k, lambda, M, ng_scratch(b));
    if (!whole) ask_all(w, p);
    known = ng_window_refine(b, part, PART_LEAST, &some);
  }
  if (!whole || some) whole = ng_window_fine_mfac(w, p, k, lambda, M, ng_scratch(b));
  if (!whole) return NG_SKIPPED;
  w->fine = true;
  return known ? NG_OK : told(b, off);
}

static ng_status solve_mfac(ng_block *b, ng_window_part *p, const double *k, double *by) {
  ng_window *w = ng_window_of(b);
  double *S = (double *)(void *)((char *)ng_scratch(b) + vector_bytes(w));
  const double lambda = b->opt.damping;
  const double M = (double)(b->base.window_divisor == NG_DIVISOR_FILLED ? w->uses : w->m);
  double off = INFINITY;
  ng_status st = NG_SKIPPED;
  *by = k == NULL ? 0.0 : 1.0 / lambda;
  if (w->uses == 0) return NG_OK;
  if (M != (double)w->m) w->next_factored = 0.0; /* the coming step has another M */
  if (solve_kept(b, p, k, lambda, M)) {
    off = MFAC_OFF * spread(w, p, k, lambda, M, NULL);
  } else {
    fill_system(w, p, lambda, M, S);
    const bool whole = factor(b, w->uses, S);
    keep(b, p, whole, S);
    if (whole) off = MFAC_OFF * spread(w, p, k, lambda, M, S);
    if (whole) solve_new(b, p, k, lambda, M, S);
  }
  if (off <= FINE_FROM) return NG_OK;
  if (may_be_fine(b, FINE_MFAC_MOST)) {
    st = fine_mfac(b, p, k, lambda, M, off);
  } else if (!isinf(off)) {
    st = told(b, off);
  }
  if (st != NG_SKIPPED) return st;
  st = factor_raised(b, p, lambda, M, S);
  if (st != NG_SKIPPED) solve_new(b, p, k, lambda, M, S);
  return st;
}

/* ---- GGT -------------------------------------------------------------------------------------*/

/* q [n] of the formula, and the products k. */
static void take_others(const ng_window *w, const ng_window_part *p, const double *k,
                        const double *age, double *q) {
  for (int64_t i = 0; i < w->uses; i++) {
    q[i] = k == NULL ? 0.0 : k[w->used[i]];
    for (int64_t j = 0; j < w->uses; j++) {
      q[i] += (1.0 - age[i] * age[j]) * entry(w, p, i, j) * ng_window_along(w, p, k, j);
    }
  }
}

/* How far the direction along the rows may be off, of itself: vectors V of small values by what double rounds off the largest, V'q by
 * its own terms, and G' c by its. */
static double uncertain(const ng_block *b, const ng_window_part *p, const double *V,
                        const double *value, const double *y, const double *q) {
  const ng_window *w = ng_window_of(b);
  const int64_t n = w->uses;
  const double eps = b->opt.damping, noise = 4.0 * DBL_EPSILON * (double)n * value[n - 1];
  double off = 0.0, all = 0.0;
  for (int64_t i = 0; i < n; i++) {
    const double *v = V + i * n, sigma = sqrt(fmax(value[i], GGT_FLOOR));
    double size = 0.0, terms = 0.0;
    for (int64_t j = 0; j < n; j++) {
      double along = 0.0;
      for (int64_t l = 0; l < n; l++) {
        along += entry(w, p, j, l) * v[l];
      }
      size += along * v[j];
      terms += fabs(v[j] * q[j]);
    }
    size = sqrt(fmax(size, noise));
    off += size * (fabs(y[i]) * fmin(1.0, noise / (sigma * sigma)) +
                   DBL_EPSILON * terms / (eps * sigma * (sigma + eps)));
    all += size * size * y[i] * y[i];
  }
  for (int64_t j = 0; j < n; j++) {
    off += DBL_EPSILON * fabs(p->c[w->used[j]]) * sqrt(fmax(0.0, entry(w, p, j, j)));
  }
  return all > 0.0 ? off / sqrt(all) : 0.0;
}

typedef struct spectrum {
  const double *k, *age, *V;
  double eps;
} spectrum;

/* As fine_mfac.  What double made stands where rotations do not end. */
static ng_status fine_ggt(ng_block *b, ng_window_part *p, const spectrum *s, double *work,
                          double off) {
  ng_window *w = ng_window_of(b);
  const int32_t part = (int32_t)(p - w->part);
  bool known = false, some = true;
  for (int again = 0; again < 3 && some; again++) {
    if (again > 0) known = ng_window_refine(b, part, PART_LEAST, &some);
    if (again > 0 && !some) break;
    if (!ng_window_fine_ggt(w, p, s->k, s->age, s->eps, GGT_FLOOR, s->V, work)) {
      memset(p->c_rest, 0, (size_t)w->places * sizeof *p->c_rest);
      return told(b, INFINITY);
    }
  }
  w->fine = true;
  return known ? NG_OK : told(b, off);
}

static ng_status solve_ggt(ng_block *b, ng_window_part *p, const double *k, double *by) {
  int info = 0; /* the queue is waited for below */
  ng_window *w = ng_window_of(b);
  ng_queue *queue = b->ctx->queue;
  const int64_t n = w->uses, vector = vector_bytes(w) / (int64_t)sizeof(double);
  double *y = ng_scratch(b), *age = y + vector, *value = age + vector, *q = value + vector;
  double *V = q + vector;
  void *work = (char *)V + (n * n * (int64_t)sizeof *V + NG_ALIGN - 1) / NG_ALIGN * NG_ALIGN;
  const double eps = b->opt.damping;
  *by = k == NULL ? 0.0 : 1.0 / eps;
  if (n == 0) return NG_OK;
  for (int64_t i = 0; i < n; i++) {
    age[i] = pow(b->base.window_forget, (double)(n - 1 - i));
  }
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++) {
      V[i * n + j] = age[i] * age[j] * entry(w, p, i, j) + (i == j ? GGT_FLOOR : 0.0);
    }
  }
  ng_on(queue)->eigen64(queue, n, V, value, work, &info);
  ng_queue_wait(queue);
  if (ng_info_read(queue, &info) != 0) return NG_SKIPPED;
  take_others(w, p, k, age, q);
  for (int64_t i = 0; i < n; i++) { /* K has no negative eigenvalue */
    const double sigma = sqrt(fmax(value[i], GGT_FLOOR)), both = eps * sigma * (sigma + eps);
    double rows = 0.0, others = 0.0;
    for (int64_t j = 0; j < n; j++) {
      rows += V[i * n + j] * ng_window_along(w, p, k, j);
      others += V[i * n + j] * q[j];
    }
    y[i] = rows * (1.0 / (sigma + eps) + GGT_FLOOR / both) - others / both;
  }
  for (int64_t j = 0; j < n; j++) {
    double c = 0.0;
    for (int64_t i = 0; i < n; i++) {
      c += V[i * n + j] * y[i];
    }
    p->c[w->used[j]] = c;
  }
  const double off = uncertain(b, p, V, value, y, q);
  if (!(off > FINE_FROM)) return NG_OK;
  const spectrum of = {k, age, V, eps};
  return may_be_fine(b, FINE_GGT_MOST) ? fine_ggt(b, p, &of, work, off) : told(b, off);
}

/* ---- all parts -------------------------------------------------------------------------------*/

/* The direction is x itself: the row at head, or by times all of it. */
static void plain(const ng_window *w, ng_window_part *p, const double *k, double by) {
  for (int64_t i = 0; i < w->uses; i++) {
    p->c[w->used[i]] = (k == NULL ? 1.0 : by) * ng_window_along(w, p, k, i);
    p->c_rest[w->used[i]] = 0.0;
  }
}

/* What the rows add to the direction is within f32.  Of the Gram matrix, so the same on all ranks. */
static bool within_range(const ng_window *w, const ng_window_part *p) {
  double sum = 0.0;
  for (int64_t i = 0; i < w->uses; i++) {
    sum += fabs(p->c[w->used[i]]) * sqrt(fmax(0.0, entry(w, p, i, i)));
  }
  return sum <= COMBINATION_MOST;
}

ng_status ng_window_solve(ng_block *b, const double *k, double *by) {
  ng_window *w = ng_window_of(b);
  const bool mfac = b->base.window_function == NG_WINDOW_MFAC;
  w->replaced = false;
  w->fine = false;
  w->next_factored = b->opt.damping;
  ng_status worst = NG_OK;
  for (int32_t i = 0; i < w->parts; i++) {
    const double *mine = k == NULL ? NULL : k + i * w->places;
    memset(w->part[i].c_rest, 0, (size_t)w->places * sizeof(double));
    ng_status st =
        mfac ? solve_mfac(b, &w->part[i], mine, by) : solve_ggt(b, &w->part[i], mine, by);
    if (st != NG_SKIPPED && !within_range(w, &w->part[i])) st = NG_SKIPPED;
    if (st == NG_SKIPPED) {
      plain(w, &w->part[i], mine, *by);
      b->p->rescued[NG_RESCUE_PLAIN]++;
      worst = NG_RESCUED;
    } else if (st != NG_OK) {
      worst = st;
    }
  }
  return worst;
}
