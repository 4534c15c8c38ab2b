/* powers.c: powers of the damped curvature of a layer, in the eigenbases of its two factors.
 *
 *     M = Q_L Q_R f(i, j) Q_R' Q_L',   f(i, j) = (damped eigenvalue of the vectors i of L and j of R)^power
 *
 * The eigenvalue is l_i r_j, or after ng_curvature_add_squares the mean of squared gradients v_ij (EKFAC, George et al. 2018,
 * arXiv 1806.03884).
 *
 * In: factors in double. Out: products with M, its diagonal, trace and logarithm of the determinant. fill_spectrum is the only
 * function that computes f. All work is on the host, in double. */
#include "twosided/twosided.h"

#include <math.h>

typedef struct eigen_side {
  int64_t n;
  bool is_diagonal;
  double *d; /* [groups, n] eigenvalues */
  double *Q; /* [groups, n, n] row i is the eigenvector of d[i]; diagonal: NULL */
} eigen_side;

struct ng_curvature {
  ng_context *ctx;
  int64_t groups, rows, cols;
  eigen_side left, right;
  double *V;                /* [groups, rows, cols]: sums of squares of `corrected` samples */
  int64_t corrected;        /* 0: eigenvalues are products */
  double *spectrum, *X, *Y; /* scratch [rows, cols] each */
  double *squares;          /* scratch [n, n], n = max(rows, cols), unless both are diagonal */
  size_t bytes;             /* size of the allocation */
};

static const ng_linalg_ops *host(const ng_curvature *c) { return c->ctx->queue->backend->host; }

ng_context *ng_curvature_context(const ng_curvature *c) { return c->ctx; }
int64_t ng_curvature_count(const ng_curvature *c) { return c->groups * c->rows * c->cols; }
int64_t ng_curvature_width(const ng_curvature *c, bool left) {
  return c->groups * (left ? c->rows : c->cols);
}

/* ---- the spectrum ----------------------------------------------------------------------------*/

static double mean(const double *d, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++)
    sum += d[i];
  return sum / (double)n;
}

/* *left, *right <- the damping of each factor of a group; *both <- the damping of their product. */
static void split_damping(const ng_curvature *c, int64_t group, double lambda, ng_curvature_split s,
                          double *left, double *right, double *both) {
  const double root = sqrt(lambda);
  *left = *right = *both = 0.0;
  if (s == NG_CURVATURE_JOINT) {
    *both = lambda;
  } else if (s == NG_CURVATURE_FULL) {
    *left = *right = lambda;
  } else {
    const double l = mean(c->left.d + group * c->rows, c->rows),
                 r = mean(c->right.d + group * c->cols, c->cols), ratio = sqrt(r / l);
    const bool sound = s == NG_CURVATURE_PI && l > 0.0 && ratio > 0.0 && isfinite(ratio);
    *left = root / (sound ? ratio : 1.0);
    *right = root * (sound ? ratio : 1.0);
  }
}

/* c->spectrum <- the eigenvalues of M of a group; return false if an eigenvalue is 0 and the power negative. */
static bool fill_spectrum(const ng_curvature *c, int64_t group, const ng_curvature_power *m) {
  const double *l = c->left.d + group * c->rows, *r = c->right.d + group * c->cols;
  double left, right, both;
  bool sound = true;
  split_damping(c, group, m->damping, m->split, &left, &right, &both);
  for (int64_t i = 0; i < c->rows; i++) {
    for (int64_t j = 0; j < c->cols; j++) {
      const double product = (l[i] + left) * (r[j] + right);
      const double v = c->V[(group * c->rows + i) * c->cols + j];
      const double e = (c->corrected > 0 ? v / (double)c->corrected : product) + both;
      c->spectrum[i * c->cols + j] = m->power == 1.0    ? e
                                     : m->power == -1.0 ? 1.0 / e
                                                        : pow(e, m->power);
      sound = sound && (e > 0.0 || m->power >= 0.0);
    }
  }
  return sound;
}

bool ng_curvature_is_defined(const ng_curvature *c, const ng_curvature_power *m) {
  for (int64_t g = 0; g < c->groups; g++) {
    if (!fill_spectrum(c, g, m)) return false;
  }
  return true;
}

void ng_curvature_sum(const ng_curvature *c, const ng_curvature_power *m, double *trace,
                      double *logdet) {
  *trace = *logdet = 0.0;
  for (int64_t g = 0; g < c->groups; g++) {
    (void)fill_spectrum(c, g, m);
    for (int64_t i = 0; i < c->rows * c->cols; i++) {
      *trace += c->spectrum[i];
      *logdet += log(c->spectrum[i]);
    }
  }
}

/* ---- products --------------------------------------------------------------------------------*/

/* X <- Q_L X Q_R', with rows of Q as eigenvectors; back: X <- Q_L' X Q_R. */
static void rotate(const ng_curvature *c, int64_t group, bool back) {
  ng_queue *q = c->ctx->queue;
  const int64_t n = c->rows, m = c->cols;
  if (!c->left.is_diagonal) {
    host(c)->gemm(q, NG_F64, back, false, n, m, n, 1.0, c->left.Q + group * n * n, n, c->X, m, 0.0,
                  c->Y, m);
    memcpy(c->X, c->Y, (size_t)(n * m) * sizeof *c->X);
  }
  if (!c->right.is_diagonal) {
    host(c)->gemm(q, NG_F64, false, !back, n, m, m, 1.0, c->X, m, c->right.Q + group * m * m, m,
                  0.0, c->Y, m);
    memcpy(c->X, c->Y, (size_t)(n * m) * sizeof *c->X);
  }
}

/* X <- M X for the group of c->spectrum. */
static void multiply_X(const ng_curvature *c, int64_t group) {
  rotate(c, group, false);
  for (int64_t i = 0; i < c->rows * c->cols; i++)
    c->X[i] *= c->spectrum[i];
  rotate(c, group, true);
}

void ng_curvature_multiply(const ng_curvature *c, const ng_curvature_power *m, const double *x,
                           int64_t count, double *out) {
  const int64_t n = c->rows * c->cols;
  for (int64_t g = 0; g < c->groups; g++) {
    (void)fill_spectrum(c, g, m);
    for (int64_t k = 0; k < count; k++) {
      const int64_t at = (k * c->groups + g) * n;
      memcpy(c->X, x + at, (size_t)n * sizeof *x);
      multiply_X(c, g);
      memcpy(out + at, c->X, (size_t)n * sizeof *x);
    }
  }
}

static const double *squares_of(const ng_curvature *c, const eigen_side *s, int64_t group) {
  const double *Q = s->Q + group * s->n * s->n;
  for (int64_t i = 0; i < s->n * s->n; i++)
    c->squares[i] = Q[i] * Q[i];
  return c->squares;
}

/* M_(r,c)(r,c) = sum_ij Q_L[i, r]^2 f(i, j) Q_R[j, c]^2. */
void ng_curvature_write_diagonal(const ng_curvature *c, const ng_curvature_power *m, double *out) {
  ng_queue *q = c->ctx->queue;
  const int64_t n = c->rows, k = c->cols;
  for (int64_t g = 0; g < c->groups; g++) {
    (void)fill_spectrum(c, g, m);
    memcpy(c->X, c->spectrum, (size_t)(n * k) * sizeof *c->X);
    if (!c->left.is_diagonal) {
      host(c)->gemm(q, NG_F64, true, false, n, k, n, 1.0, squares_of(c, &c->left, g), n,
                    c->spectrum, k, 0.0, c->X, k);
    }
    if (!c->right.is_diagonal) {
      host(c)->gemm(q, NG_F64, false, false, n, k, k, 1.0, c->X, k, squares_of(c, &c->right, g), k,
                    0.0, c->Y, k);
    }
    memcpy(out + g * n * k, c->right.is_diagonal ? c->X : c->Y, (size_t)(n * k) * sizeof *out);
  }
}

/* ---- scores ----------------------------------------------------------------------------------*/

/* out[j] += <P, D_j> for the samples j of y; P: c->X. <P, l r'> = (l' P) r, so no D_j is computed. */
static void add_products(const ng_curvature *c, int64_t group, const ng_samples *y, double *out) {
  const int64_t n = c->rows, m = c->cols, all = y->samples * y->positions;
  for (int64_t from = 0; from < all; from += n) { /* Y has n rows */
    const int64_t rows = ng_min64(n, all - from);
    host(c)->gemm(c->ctx->queue, NG_F64, false, false, rows, m, n, 1.0,
                  y->left + (from * c->groups + group) * n, c->groups * n, c->X, m, 0.0, c->Y, m);
    for (int64_t i = 0; i < rows; i++) {
      const double *right = y->right + ((from + i) * c->groups + group) * m;
      double sum = 0.0;
      for (int64_t k = 0; k < m; k++)
        sum += c->Y[i * m + k] * right[k];
      out[(from + i) / y->positions] += sum;
    }
  }
}

/* X <- D of sample i of x. */
static void form_gradient(const ng_curvature *c, int64_t group, const ng_samples *x, int64_t i) {
  const int64_t n = c->rows, m = c->cols, at = i * x->positions * c->groups + group;
  host(c)->gemm(c->ctx->queue, NG_F64, true, false, n, m, x->positions, 1.0, x->left + at * n,
                c->groups * n, x->right + at * m, c->groups * m, 0.0, c->X, m);
}

/* X <- Q_L D Q_R' of sample i of x. With few positions, rotating their rows is cheaper than rotating D: S (n^2 + m^2) instead of
 * n m (n + m). */
static void form_rotated(const ng_curvature *c, int64_t group, const ng_samples *x, int64_t i) {
  ng_queue *q = c->ctx->queue;
  const int64_t n = c->rows, m = c->cols, S = x->positions, at = i * S * c->groups + group;
  if (S > ng_min64(n, m) || c->left.is_diagonal || c->right.is_diagonal) {
    form_gradient(c, group, x, i);
    rotate(c, group, false);
    return;
  }
  host(c)->gemm(q, NG_F64, false, true, S, n, n, 1.0, x->left + at * n, c->groups * n,
                c->left.Q + group * n * n, n, 0.0, c->Y, n);
  host(c)->gemm(q, NG_F64, false, true, S, m, m, 1.0, x->right + at * m, c->groups * m,
                c->right.Q + group * m * m, m, 0.0, c->squares, m);
  host(c)->gemm(q, NG_F64, true, false, n, m, S, 1.0, c->Y, n, c->squares, m, 0.0, c->X, m);
}

void ng_curvature_add_squares(ng_curvature *c, const ng_samples *x) {
  const int64_t n = c->rows * c->cols;
  for (int64_t g = 0; g < c->groups; g++) {
    for (int64_t i = 0; i < x->samples; i++) {
      form_rotated(c, g, x, i);
      for (int64_t k = 0; k < n; k++)
        c->V[g * n + k] += c->X[k] * c->X[k];
    }
  }
  c->corrected += x->samples;
}

bool ng_curvature_is_corrected(const ng_curvature *c) { return c->corrected > 0; }

/* With y = NULL, in the eigenbases: <D, M D> = sum_ij f(i, j) (Q_L D Q_R')_ij^2. */
void ng_curvature_add_scores(const ng_curvature *c, const ng_curvature_power *how,
                             const ng_samples *x, const ng_samples *y, double *out) {
  const int64_t n = c->rows, m = c->cols;
  for (int64_t g = 0; g < c->groups; g++) {
    (void)fill_spectrum(c, g, how);
    for (int64_t i = 0; i < x->samples; i++) {
      if (y != NULL) {
        form_gradient(c, g, x, i);
        if (how->power != 0.0) multiply_X(c, g); /* power 0: M is the identity */
        add_products(c, g, y, out + i * y->samples);
        continue;
      }
      form_rotated(c, g, x, i);
      for (int64_t k = 0; k < n * m; k++)
        out[i] += c->spectrum[k] * c->X[k] * c->X[k];
    }
  }
}

/* ---- create, destroy -------------------------------------------------------------------------*/

void ng_curvature_free(ng_curvature *c) { ng_free(c->ctx, c, c->bytes); }

/* Compute eigenvalues and eigenvectors of the matrices F of a side. Return false if LAPACK fails. */
static bool decompose(const ng_curvature *c, eigen_side *s, const double *F, void *work) {
  const int64_t n = s->n;
  if (s->is_diagonal) memcpy(s->d, F, (size_t)(c->groups * n) * sizeof *F);
  if (!s->is_diagonal) memcpy(s->Q, F, (size_t)(c->groups * n * n) * sizeof *F);
  for (int64_t g = 0; g < c->groups && !s->is_diagonal; g++) {
    int info = 0;
    host(c)->eigen(c->ctx->queue, n, s->Q + g * n * n, NG_F64, s->d + g * n, work, &info);
    if (info != 0) return false;
  }
  for (int64_t i = 0; i < c->groups * n; i++) {
    if (s->d[i] < 0.0) s->d[i] = 0.0;
    if (!isfinite(s->d[i])) return false;
  }
  return true;
}

/* One allocation contains the object and its arrays. */
ng_status ng_curvature_make(ng_context *ctx, const ng_factors *f, ng_curvature **out) {
  const int64_t n = f->rows, m = f->cols, most = ng_max64(n, m), real = (int64_t)sizeof(double);
  const int64_t left = f->left_diagonal ? 0 : ng_times(n, n),
                right = f->right_diagonal ? 0 : ng_times(m, m);
  const int64_t all =
      ng_plus(ng_times(f->groups, ng_plus(ng_plus(left, right), ng_plus(n + m, ng_times(n, m)))),
              ng_plus(ng_times(3, ng_times(n, m)), ng_max64(left, right)));
  const ng_linalg_ops *h = ctx->queue->backend->host;
  if (!ng_blas_accepts_order(most)) {
    return ng_fail(ctx, NG_ERR_ABSENT, "ng_curvature_create: a factor of order %lld is too large",
                   (long long)most);
  }
  const size_t bytes = sizeof(ng_curvature) + (size_t)ng_times(all, real);
  const size_t work_bytes = (size_t)ng_max64(
      h->eigen_work(ctx->queue, ng_max64(f->left_diagonal ? 1 : n, f->right_diagonal ? 1 : m),
                    NG_F64),
      64);
  ng_curvature *c = ng_alloc(ctx, bytes);
  void *work = ng_alloc(ctx, work_bytes);
  bool sound = false;
  if (c != NULL && work != NULL) {
    double *at = (double *)(void *)(c + 1);
    *c = (ng_curvature){.ctx = ctx, .groups = f->groups, .rows = n, .cols = m, .bytes = bytes};
    c->left = (eigen_side){n, f->left_diagonal != 0, at, at + f->groups * (n + m)};
    c->right =
        (eigen_side){m, f->right_diagonal != 0, at + f->groups * n, c->left.Q + f->groups * left};
    c->V = c->right.Q + f->groups * right;
    c->spectrum = c->V + f->groups * n * m;
    memset(c->V, 0, (size_t)(f->groups * n * m) * sizeof *c->V);
    c->X = c->spectrum + n * m;
    c->Y = c->X + n * m;
    c->squares = c->Y + n * m;
    sound = decompose(c, &c->left, f->left, work) && decompose(c, &c->right, f->right, work);
  }
  const bool allocated = c != NULL && work != NULL;
  if (work != NULL) ng_free(ctx, work, work_bytes);
  if (sound) {
    *out = c;
    return NG_OK;
  }
  if (c != NULL) ng_free(ctx, c, bytes);
  if (!allocated)
    return ng_fail(ctx, NG_ERR_NOMEM, "ng_curvature_create: no memory for %zu bytes", bytes);
  return ng_fail(ctx, NG_ERR_ARG, "ng_curvature_create: LAPACK found no eigenvalues");
}
