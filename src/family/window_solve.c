/* window_solve.c: compute the coefficients of a window's rows G in the direction u, from K = G G', in double.
 * n <= m rows are in use; if this step has a row at head, this row is the last.  lambda, eps: the damping.
 *
 * M-FAC (Frantar, Kurtic & Alistarh 2021, arXiv 2107.03356): F = lambda I + G'G / M, where M = m, also while n < m
 * (window_function = mfac-filled: M = n).  The published recursion factorises S = K / lambda + M I without pivoting.
 * With a Cholesky factor of S, by Woodbury
 *
 *     F^-1 x = x / lambda - G' S^-1 G x / lambda^2
 *
 * For x = row j, the two terms nearly cancel if lambda is small, so the sum is computed without a difference:
 *
 *     F^-1 G_j = (M / lambda) G' S^-1 e_j
 *
 * (G'(K / lambda + M I) = lambda^-1 (G'G + lambda M I) G', so G' S^-1 = (lambda / M) F^-1 G').
 *
 * GGT (Agarwal et al. 2019, arXiv 1806.02958, as in EFCP): with a_i = window_forget^(age of row i),
 * diag(a) K diag(a) + 1e-6 I = V Sigma^2 V', and U = G' V / Sigma (G is not multiplied by a),
 *
 *     u = U (1 / (Sigma + eps) - 1 / eps) U' x + x / eps
 *       = x / eps - G' V (1 / (eps Sigma (Sigma + eps))) V' G x
 *
 * and for x = G' b (b = e_j is row j), without a difference of large vectors,
 *
 *     u = G' V [(1 / (Sigma + eps) + 1e-6 / (eps Sigma (Sigma + eps))) V' b - V' q / (eps Sigma (Sigma + eps))],
 *     q_i = sum over j of (1 - a_i a_j) K_ij b_j
 *
 * For an average x = r + G' b (window_moments.c), the direction is the sum of the directions of r and of G' b.
 *
 * Rounding.  With g_i = |G_i|, e = 2^-53 and the coefficients c, all rounding errors (of K, of its factor, of the
 * substitutions, of the combination) act as errors of K_ij and c_i of about e sqrt(n + 63) times g_i g_j and |c_i|:
 *
 *     |error of u| <= e sqrt(n + 63) s (1 + a),    s = sum of |c_i| g_i + |r| / lambda,
 *     M-FAC: a^2 = sum over j of g_j^2 |G' (K + lambda M I)^-1 e_j|^2 <= trace(K) / (4 lambda M)
 *
 * because an error dK changes u by -G' (K + lambda M I)^-1 dK c.  GGT: see eigenvalue_error.  A lower bound of |u| is
 * computed from K, so all ranks have the same bound.  If the bound of error / |u| exceeds 1e-5, the damping is raised
 * x 10, at most 3 times, and the step is NG_RESCUED; at the last damping the bound may be 0.1.  If every attempt fails,
 * or the sum of rows may overflow f32, the direction is x. */
#include "family/window.h"

#include <float.h>
#include <math.h>

static const double GGT_FLOOR = 1e-6;
/* Largest |G' c| of one part; a sum of up to 64 such numbers fits f32. */
static const double COMBINATION_MOST = (double)FLT_MAX / 64.0;
/* Largest accepted relative error of the direction; ERROR_LAST: at the last raised damping. */
static const double ERROR_MOST = 1e-5, ERROR_LAST = 0.1;
/* Largest ratio of a diagonal entry of S to its pivot at which `error_amplification` may use the factor of S. */
static const double SPREAD_MOST = 1e13;
enum { MAX_RAISES = 3 };

/* The arguments of one solve. */
typedef struct solve_args {
  const double *k; /* [places] G r, where x = r + G' b or x = r; NULL: x is the row at head */
  double r;        /* |r|; 0 if k is NULL */
  double damping;  /* damping of this attempt */
  bool rest;       /* (gradient - row at head) / damping will be added */
} solve_args;

/* Return the doubles from one vector of `places` numbers to the next. */
static int64_t vector_stride(const ng_window *w) {
  const int64_t line = NG_ALIGN / (int64_t)sizeof(double);
  return (w->places + line - 1) / line * line;
}

/* M-FAC: two vectors and S; GGT: six vectors, V and the work of the eigensolver.  The host solves while entries of other
 * blocks are pending, so the memory is not the scratch. */
int64_t ng_window_work_bytes(const ng_block *b) {
  const ng_window *w = ng_window_of(b);
  const ng_queue *q = b->ctx->queue;
  const int64_t each = (int64_t)sizeof(double);
  if (ng_is_mfac(b->base.window_function)) {
    return ng_times(ng_plus(2 * vector_stride(w), ng_sym_count(w->m)), each);
  }
  return ng_plus(ng_times(ng_plus(6 * vector_stride(w), ng_times(w->m, w->m)), each) + NG_ALIGN,
                 q->backend->host->eigen_work(q, w->m, NG_F64));
}

static double gram_entry(const ng_window *w, const ng_window_part *p, int64_t i, int64_t j) {
  return p->gram[w->row_place[i] * w->places + w->row_place[j]];
}

static double row_norm(const ng_window *w, const ng_window_part *p, int64_t i) {
  return sqrt(fmax(0.0, gram_entry(w, p, i, i)));
}

/* Return b_i, the coefficient of row i in x = r + G' b. */
static double x_coefficient(const ng_window *w, const ng_window_part *p, const solve_args *a,
                            int64_t i) {
  if (p->next_row_coefficient != NULL) return p->next_row_coefficient[w->row_place[i]];
  return a->k == NULL && i == w->rows - 1 ? 1.0 : 0.0;
}

/* ---- rounding --------------------------------------------------------------------------------*/

static double rounding_bound(const ng_window *w) { return 0x1p-53 * sqrt((double)w->rows + 63.0); }

/* Return s + sum over i of |c_i| g_i. */
static double add_row_norms(const ng_window *w, const ng_window_part *p, double s) {
  for (int64_t i = 0; i < w->rows; i++) {
    s += fabs(p->c[w->row_place[i]]) * row_norm(w, p, i);
  }
  return s;
}

/* Return s of the formula above. */
static double sum_of_norms(const ng_window *w, const ng_window_part *p, const solve_args *a) {
  double s = add_row_norms(w, p, *p->u_scale * a->r);
  if (a->rest) s += 2.0 * row_norm(w, p, w->rows - 1) / a->damping;
  return s;
}

/* Return a lower bound of |u|: the largest |<u, y>| / |y| over y = u, r and all rows, minus the rounding error. */
static double norm_bound(const ng_window *w, const ng_window_part *p, const solve_args *a,
                         double s) {
  const double noise = rounding_bound(w) * s;
  double least = 0.0, square = 0.0, with_r = *p->u_scale * a->r * a->r;
  for (int64_t i = 0; i < w->rows; i++) {
    const double c = p->c[w->row_place[i]], g = row_norm(w, p, i);
    const double k = a->k == NULL ? 0.0 : a->k[w->row_place[i]];
    const double *row = p->gram + w->row_place[i] * w->places;
    double product = *p->u_scale * k;
    for (int64_t j = 0; j < w->rows; j++) {
      product += row[w->row_place[j]] * p->c[w->row_place[j]];
    }
    if (g > 0.0) least = fmax(least, fabs(product) / g - noise);
    square += c * product;
    with_r += c * k;
  }
  if (a->r > 0.0) least = fmax(least, fabs(with_r) / a->r - noise);
  square += *p->u_scale * with_r - noise * s;
  return fmax(least, sqrt(fmax(0.0, square)));
}

/* Return the error of u due to the f32 rounding error of an average's r (window_moments.c), divided by the damping. */
static double average_error(const ng_window *w, const ng_window_part *p) {
  return p->next_row_coefficient == NULL
             ? 0.0
             : *p->u_scale * p->next_row_coefficient[ng_window_unused_place(w)];
}

/* ---- M-FAC -----------------------------------------------------------------------------------*/

static void fill_system(const ng_window *w, const ng_window_part *p, double lambda, double divisor,
                        double *S) {
  for (int64_t i = 0; i < w->rows; i++) {
    for (int64_t j = 0; j <= i; j++) {
      S[ng_sym_at(w->rows, i, j)] = gram_entry(w, p, i, j) / lambda + (i == j ? divisor : 0.0);
    }
  }
}

/* S <- its Cholesky factor; return false if S is not positive definite or not finite. */
static bool factorise(ng_block *b, int64_t n, double *S) {
  int info = 0;
  b->ctx->queue->backend->host->factor(b->ctx->queue, n, S, NG_F64, &info);
  if (info != 0) return false;
  for (int64_t i = 0; i < n; i++) {
    const double d = S[ng_sym_at(n, i, i)];
    if (!(d > 0.0) || !(d - d == 0.0)) return false;
  }
  return true;
}

/* z [places] <- S^-1 z, where S is a Cholesky factor in ng_sym order; S NULL: with p->factor.  last: z is 0 except for
 * the newest row. */
static void solve_system(ng_block *b, const ng_window_part *p, const double *S, bool last,
                         double *z) {
  const ng_window *w = ng_window_of(b);
  double *x = w->work;
  if (S == NULL) {
    const ng_ring r = ng_window_factor_ring(w, p);
    ng_ring_solve(&r, last, z);
    return;
  }
  for (int64_t i = 0; i < w->rows; i++) {
    x[i] = z[w->row_place[i]];
  }
  b->ctx->queue->backend->host->solve_right(b->ctx->queue, w->rows, S, NG_F64, 1, x, w->rows);
  for (int64_t i = 0; i < w->rows; i++) {
    z[w->row_place[i]] = x[i];
  }
}

/* Append the row at head to p->factor; return false if p->factor has another lambda or M, or append fails. */
static bool append_to_factor(ng_block *b, ng_window_part *p, double lambda, double M) {
  const ng_window *w = ng_window_of(b);
  const bool fresh = w->row_place[w->rows - 1] == ng_window_head(w);
  const bool same = w->factor_damping == lambda && M == (double)w->m;
  const ng_ring r = ng_window_factor_ring(w, p);
  double *row = w->work;
  if (!fresh || !(same || w->rows == 1)) return false;
  for (int64_t k = 0; k < w->rows; k++) {
    row[w->row_place[k]] = gram_entry(w, p, w->rows - 1, k) / lambda;
  }
  row[ng_window_head(w)] += M;
  return ng_ring_append(&r, M / 2.0, row); /* in exact arithmetic the pivot is at least M */
}

/* Store the new factor S in p->factor for later steps; if the factorisation did not succeed, later steps use no factor. */
static void store_factor(ng_window *w, ng_window_part *p, bool succeeded, const double *S) {
  if (w->row_place[w->rows - 1] != ng_window_head(w)) return;
  w->has_new_factor = true;
  if (succeeded) {
    const ng_ring r = ng_window_factor_ring(w, p);
    ng_ring_store(&r, S);
  } else {
    w->next_factor_damping = 0.0;
  }
}

/* Return the largest ratio of a diagonal entry of S to its pivot. */
static double pivot_spread(const ng_window *w, const ng_window_part *p, double lambda, double M,
                           const double *S) {
  double most = 1.0;
  for (int64_t i = 0; i < w->rows; i++) {
    const int64_t at = w->row_place[i];
    const double L = S != NULL ? S[ng_sym_at(w->rows, i, i)] : p->factor[at * w->places + at];
    most = fmax(most, (gram_entry(w, p, i, i) / lambda + M) / (L * L));
  }
  return most;
}

/* Return the number a of the formula above, which takes n solves; z [places]: scratch. */
static double error_amplification(ng_block *b, const ng_window_part *p, double lambda,
                                  const double *S, double *z) {
  const ng_window *w = ng_window_of(b);
  double all = 0.0;
  for (int64_t j = 0; j < w->rows; j++) {
    double square = 0.0, terms = 0.0;
    memset(z, 0, (size_t)w->places * sizeof *z);
    z[w->row_place[j]] = row_norm(w, p, j) / lambda;
    solve_system(b, p, S, false, z);
    for (int64_t i = 0; i < w->rows; i++) {
      for (int64_t l = 0; l < w->rows; l++) {
        square += z[w->row_place[i]] * gram_entry(w, p, i, l) * z[w->row_place[l]];
      }
      terms += fabs(z[w->row_place[i]]) * row_norm(w, p, i);
    }
    all += fmax(0.0, square) + rounding_bound(w) * terms * terms;
  }
  return sqrt(all);
}

/* Return a bound of the relative error of u; n solves are needed only if the bound from trace(K) exceeds ERROR_MOST. */
static double mfac_error(ng_block *b, const ng_window_part *p, const solve_args *a, double M,
                         const double *S, double *z) {
  const ng_window *w = ng_window_of(b);
  const double s = sum_of_norms(w, p, a), least = norm_bound(w, p, a, s);
  const double average = average_error(w, p);
  double trace = 0.0;
  if (s == 0.0) return 0.0;
  for (int64_t i = 0; i < w->rows; i++) {
    trace += gram_entry(w, p, i, i);
  }
  const double most = sqrt(trace / (4.0 * a->damping * M));
  const double loss = (rounding_bound(w) * s * (1.0 + most) + average) / least;
  if (loss <= ERROR_MOST || !(rounding_bound(w) * s + average <= ERROR_MOST * least)) return loss;
  if (!(pivot_spread(w, p, a->damping, M, S) <= SPREAD_MOST)) return INFINITY;
  return (rounding_bound(w) * s * (1.0 + error_amplification(b, p, a->damping, S, z)) + average) /
         least;
}

static double try_mfac(ng_block *b, ng_window_part *p, const solve_args *a, bool raised) {
  ng_window *w = ng_window_of(b);
  const double lambda = a->damping;
  const double M = (double)(b->base.window_function == NG_WINDOW_MFAC_FILLED ? w->rows : w->m);
  double *z = w->work + vector_stride(w), *S = z + vector_stride(w);
  *p->u_scale = a->k == NULL ? 0.0 : 1.0 / lambda;
  if (M != (double)w->m) w->next_factor_damping = 0.0; /* M differs in the next step */
  if (!raised && append_to_factor(b, p, lambda, M)) {
    S = NULL;
  } else {
    fill_system(w, p, lambda, M, S);
    const bool whole = factorise(b, w->rows, S);
    if (!raised) store_factor(w, p, whole, S);
    if (!whole) return INFINITY;
  }
  for (int64_t i = 0; i < w->rows; i++) {
    const double x = M / lambda * x_coefficient(w, p, a, i);
    p->c[w->row_place[i]] = a->k == NULL ? x : x - a->k[w->row_place[i]] / (lambda * lambda);
  }
  solve_system(b, p, S, a->k == NULL, p->c);
  return mfac_error(b, p, a, M, S, z);
}

/* ---- GGT -------------------------------------------------------------------------------------*/

/* Vectors [n] of the GGT formula above. */
typedef struct spectrum {
  double *age, *value, *q; /* age: a_i = window_forget^(age of row i); value: Sigma^2 */
  double *q_off;           /* bound of the rounding error of q */
  /* b_factor and q_factor at the lower bound of Sigma^2; they use the memory of age and q */
  double *at_b, *at_q;
  double *on_b, *on_q; /* V'b, V'q */
  double *V;           /* [n, n] row i is eigenvector i */
} spectrum;

static spectrum spectrum_of(const ng_block *b) {
  const int64_t vector = vector_stride(ng_window_of(b));
  double *x = ng_window_of(b)->work;
  return (spectrum){.age = x,
                    .at_b = x,
                    .value = x + vector,
                    .q = x + 2 * vector,
                    .at_q = x + 2 * vector,
                    .q_off = x + 3 * vector,
                    .on_b = x + 4 * vector,
                    .on_q = x + 5 * vector,
                    .V = x + 6 * vector};
}

static bool decompose(ng_block *b, const ng_window_part *p, const solve_args *a,
                      const spectrum *s) {
  int info = 0;
  const ng_window *w = ng_window_of(b);
  ng_queue *queue = b->ctx->queue;
  const int64_t n = w->rows;
  void *work = (char *)s->V + (n * n * (int64_t)sizeof *s->V + NG_ALIGN - 1) / NG_ALIGN * NG_ALIGN;
  for (int64_t i = 0; i < n; i++) {
    s->age[i] = pow(b->base.window_forget, (double)(n - 1 - i));
  }
  for (int64_t i = 0; i < n; i++) {
    s->q[i] = a->k == NULL ? 0.0 : a->k[w->row_place[i]];
    s->q_off[i] = rounding_bound(w) * (row_norm(w, p, i) * a->r + fabs(s->q[i]));
    for (int64_t j = 0; j < n; j++) {
      const double both = s->age[i] * s->age[j], K = gram_entry(w, p, i, j);
      const double q = (1.0 - both) * K * x_coefficient(w, p, a, j);
      s->V[i * n + j] = both * K + (i == j ? GGT_FLOOR : 0.0);
      s->q[i] += q;
      s->q_off[i] += 2.0 * rounding_bound(w) * fabs(q);
    }
  }
  queue->backend->host->eigen(queue, n, s->V, NG_F64, s->value, work, &info);
  if (info != 0) return false;
  for (int64_t i = 0; i < n; i++) {
    s->on_b[i] = s->on_q[i] = 0.0;
    for (int64_t j = 0; j < n; j++) {
      s->on_b[i] += s->V[i * n + j] * x_coefficient(w, p, a, j);
      s->on_q[i] += s->V[i * n + j] * s->q[j];
    }
  }
  return true;
}

/* Return the factor of V'q (b_factor: of V'b) in the formula above; value: Sigma^2. */
static double q_factor(double value, double eps) {
  const double sigma = sqrt(fmax(value, GGT_FLOOR)); /* K has no negative eigenvalue */
  return 1.0 / (eps * sigma * (sigma + eps));
}

static double b_factor(double value, double eps) {
  return 1.0 / (sqrt(fmax(value, GGT_FLOOR)) + eps) + GGT_FLOOR * q_factor(value, eps);
}

/* Return an upper bound of |G'v_i|, v_i: eigenvector i.  With window_forget = 1, |G'v_i|^2 is the eigenvalue - 1e-6,
 * where rounding hides gradients below 1e-11; |G'v_i| is at most the sum of |v_ij| |G_j|, too. */
static double vector_bound(const ng_block *b, const ng_window_part *p, const spectrum *s,
                           int64_t i) {
  const ng_window *w = ng_window_of(b);
  const double *v = s->V + i * w->rows, e = rounding_bound(w);
  const bool forgets = b->base.window_forget != 1.0;
  double square = forgets ? 0.0 : s->value[i] - GGT_FLOOR + e * s->value[w->rows - 1], terms = 0.0;
  for (int64_t j = 0; j < w->rows; j++) {
    double row = 0.0;
    for (int64_t l = 0; l < w->rows && forgets; l++) {
      row += gram_entry(w, p, j, l) * v[l];
    }
    square += row * v[j];
    terms += fabs(v[j]) * row_norm(w, p, j);
  }
  return fmin(terms, sqrt(fmax(0.0, square) + e * terms * terms));
}

/* Return a bound of the error of u along G'v_i.  The error of eigenvalues d is at most `noise`.  In the eigenbasis,
 * entry (i, j) of f(matrix) changes by at most noise |f(d_i) - f(d_j)| / |d_i - d_j| (Daleckii & Krein 1965).  For
 * f = b_factor or q_factor this is at most 2 noise f(lesser) / greater, where lesser = min(d_i, d_j), greater = max. */
static double eigenvalue_error(const ng_block *b, const ng_window_part *p, const solve_args *a,
                               const spectrum *s, int64_t i) {
  const ng_window *w = ng_window_of(b);
  const int64_t n = w->rows;
  const double e = rounding_bound(w), noise = e * s->value[n - 1], *v = s->V + i * n;
  double off = 0.0, own = 0.0;
  for (int64_t j = 0; j < n; j++) {
    const int64_t lesser = i < j ? i : j;
    const double greater = fmax(GGT_FLOOR, s->value[i < j ? j : i]);
    off += fmin(1.0, 2.0 * noise / greater) *
           (s->at_b[lesser] * fabs(s->on_b[j]) + s->at_q[lesser] * fabs(s->on_q[j]));
    own +=
        fabs(v[j]) * (s->at_b[i] * e * fabs(x_coefficient(w, p, a, j)) + s->at_q[i] * s->q_off[j]);
  }
  return vector_bound(b, p, s, i) * (off + own);
}

/* Set c and by for the damping of this attempt; return a bound of the relative error.  s does not depend on damping. */
static double try_ggt(ng_block *b, ng_window_part *p, const solve_args *a, const spectrum *s) {
  const ng_window *w = ng_window_of(b);
  const int64_t n = w->rows;
  const double eps = a->damping, e = rounding_bound(w);
  double lost = 0.0;
  *p->u_scale = a->k == NULL ? 0.0 : 1.0 / eps;
  for (int64_t j = 0; j < n; j++) {
    const double low = s->value[j] - rounding_bound(w) * s->value[n - 1];
    s->at_b[j] = b_factor(low, eps);
    s->at_q[j] = q_factor(low, eps);
    p->c[w->row_place[j]] = 0.0;
  }
  for (int64_t i = 0; i < n; i++) {
    const double *v = s->V + i * n, value = s->value[i];
    const double y = b_factor(value, eps) * s->on_b[i] - q_factor(value, eps) * s->on_q[i];
    lost += eigenvalue_error(b, p, a, s, i);
    if (value < 0x1p-53 * s->value[n - 1]) continue;
    for (int64_t j = 0; j < n; j++) {
      p->c[w->row_place[j]] += v[j] * y;
      lost += e * fabs(v[j] * y) * row_norm(w, p, j);
    }
  }
  const double sum = sum_of_norms(w, p, a), least = norm_bound(w, p, a, sum);
  return sum == 0.0 ? 0.0 : (rounding_bound(w) * sum + lost + average_error(w, p)) / least;
}

/* ---- all Gram matrices -----------------------------------------------------------------------*/

/* Set the direction to x. */
static void use_plain_gradient(const ng_window *w, ng_window_part *p, const solve_args *a) {
  *p->u_scale = a->k == NULL ? 0.0 : 1.0;
  for (int64_t i = 0; i < w->rows; i++) {
    p->c[w->row_place[i]] = x_coefficient(w, p, a, i);
  }
}

static ng_status solve_part(ng_block *b, ng_window_part *p, solve_args *a) {
  ng_window *w = ng_window_of(b);
  const bool mfac = ng_is_mfac(b->base.window_function);
  const spectrum s = spectrum_of(b);
  a->damping = b->base.damping;
  *p->u_scale = a->k == NULL ? 0.0 : 1.0 / a->damping;
  if (w->rows == 0) return NG_OK;
  const bool possible = mfac || decompose(b, p, a, &s);
  for (int raise = 0; raise <= MAX_RAISES && possible; raise++, a->damping *= 10.0) {
    const double loss = mfac ? try_mfac(b, p, a, raise > 0) : try_ggt(b, p, a, &s);
    if (!(loss <= (raise < MAX_RAISES ? ERROR_MOST : ERROR_LAST))) continue;
    if (!(add_row_norms(w, p, 0.0) <= COMBINATION_MOST)) continue;
    if (raise == 0) return NG_OK;
    b->p->rescued[NG_RESCUE_DAMPING]++;
    return ng_fail(b->ctx, NG_RESCUED,
                   "%s: rounding would exceed 1e-5 of the direction at damping = %g; raised to %g",
                   b->name, b->base.damping, a->damping);
  }
  use_plain_gradient(w, p, a);
  b->p->rescued[NG_RESCUE_PLAIN]++;
  if (!possible)
    return ng_fail(b->ctx, NG_RESCUED, "%s: the eigendecomposition failed; used the plain gradient",
                   b->name);
  return ng_fail(b->ctx, NG_RESCUED,
                 "%s: rounding would exceed 1e-5 of the direction at damping = %g, and 0.1 at %g; "
                 "used the plain gradient",
                 b->name, b->base.damping, a->damping / 10.0);
}

int64_t ng_window_unused_place(const ng_window *w) {
  const int64_t head = ng_window_head(w);
  const bool fresh = w->rows > 0 && w->row_place[w->rows - 1] == head;
  return fresh ? (head + 1) % w->places : head;
}

ng_status ng_window_solve(ng_block *b, const double *k, bool rest) {
  ng_window *w = ng_window_of(b);
  ng_status worst = NG_OK;
  w->has_new_factor = false;
  w->next_factor_damping = b->base.damping;
  for (int32_t i = 0; i < w->parts; i++) {
    const double *mine = k == NULL ? NULL : k + i * w->places;
    solve_args a = {.k = mine, .rest = rest};
    if (k != NULL) a.r = sqrt(mine[ng_window_unused_place(w)]);
    if (w->part[i].row_coefficient != NULL) ng_window_add_average_error(b, &w->part[i], a.r);
    if (solve_part(b, &w->part[i], &a) != NG_OK) worst = NG_RESCUED;
  }
  return worst;
}
