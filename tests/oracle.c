/* oracle.c: see oracle.h.  Martens & Grosse 2015 (arXiv 1503.05671), convolutions as in Grosse & Martens 2016 (arXiv
 * 1602.01407), scalings and the order of operations as in the published programs. */
#include "oracle.h"
#include "dense.h"

#include <math.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 16, MAX_OBSERVED = 64 };

/* The factor of one observation, and its weight in the sum of the step. */
typedef struct observed {
  double *F; /* all groups */
  double weight;
} observed;

typedef struct factor {
  int64_t n, channels, offsets; /* n = channels * offsets (+ 1 with a bias) */
  bool bias;
  double **F; /* [rank]: groups * n * n */
  bool started;
  observed *observed; /* [rank * MAX_OBSERVED] */
  int32_t *count;     /* [rank] */
} factor;

typedef struct layer {
  ng_layer d;
  ng_options opt;
  bool covered;
  int32_t owner;
  int64_t groups;
  factor f[2]; /* A, G */
  /* results of the last solve of each group: eigenvectors and eigenvalues, or inverses in Q */
  double *Q[2], *w[2], *R, *pi;
  double condition;
} layer;

struct oracle {
  ng_options opt;
  int32_t ranks, layers, covered;
  layer layer[MAX_LAYERS];
  ng_batch *batch; /* [rank] */
  int64_t t;
  double inner;
};

static void require(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "oracle: %s\n", what);
  abort();
}

/* ---- fresh factors: the table of spec/kfac.md 3.1 --------------------------------------------*/

static bool is_textbook_scale(const ng_options *opt) {
  return opt->base.stat_scale == NG_SCALE_TEXTBOOK || opt->base.stat_scale == NG_SCALE_CHAINERKFAC;
}

/* Return the scale of the sum over B samples with S rows each. */
static double stat_scale(const ng_options *opt, const ng_layer *l, const ng_batch *b, bool grad,
                         double B, double S) {
  bool conv = l->kind == NG_CONV2D;
  double unscale = 1 / (b->loss_scale * b->loss_scale);
  if (is_textbook_scale(opt)) {
    double n = b->reduction == NG_MEAN ? (double)b->samples : 1;
    return grad ? n * n * unscale / (B * S) : 1 / B;
  }
  if (opt->base.stat_scale == NG_SCALE_KAISA) {
    double N = conv ? B * S * S * S : B * S;
    return (grad ? unscale : 1) / N;
  }
  require(opt->base.stat_scale == NG_SCALE_MPD_KFAC, "unknown stat_scale");
  if (conv) return grad ? B * S * unscale : 1 / (B * S * S);
  return grad ? B / S * unscale : 1 / (B * S);
}

/* Write the scaled factor of one observation, [n, n], unless `out` is NULL; return n. */
static int64_t write_factor(const ng_options *opt, const ng_layer *l, const ng_batch *b, bool grad,
                            int64_t group, const double *data, int64_t positions, double *out) {
  int64_t groups = l->kind == NG_CONV2D ? l->groups : 1;
  int64_t n = grad ? l->out / groups : oracle_columns(l);
  if (!out) return n;
  int64_t take = b->samples, S = positions;
  if (opt->base.stat_batch > 0 && opt->base.stat_batch < take) take = opt->base.stat_batch;
  if (!grad && oracle_is_spatial(opt, l)) {
    oracle_spatial_average(l, group, data, take, n, out);
    return n;
  }
  double *X = oracle_stat_rows(l, grad, group, data, b->samples, S, n);
  bool published_conv = opt->base.stat_scale == NG_SCALE_MPD_KFAC && l->kind == NG_CONV2D;
  if (opt->base.positions == NG_POSITIONS_REDUCE && S > 1 && !published_conv) {
    bool sum = grad && is_textbook_scale(opt);
    double *Y = zeros(take * n);
    for (int64_t i = 0; i < take; i++) {
      for (int64_t j = 0; j < n; j++) {
        for (int64_t s = 0; s < S; s++)
          Y[i * n + j] += X[(i * S + s) * n + j];
        if (!sum) Y[i * n + j] /= (double)S;
      }
    }
    free(X);
    X = Y;
    S = 1;
  }
  double scale = stat_scale(opt, l, b, grad, (double)take, (double)S);
  dense_product(true, false, n, n, take * S, X, X, out);
  for (int64_t i = 0; i < n * n; i++)
    out[i] *= scale;
  free(X);
  return n;
}

/* ---- create, destroy, layers -----------------------------------------------------------------*/

oracle *oracle_create(const ng_options *opt, int32_t ranks) {
  oracle *o = must_calloc(sizeof *o);
  o->opt = *opt;
  o->ranks = ranks;
  o->batch = must_calloc((size_t)ranks * sizeof *o->batch);
  return o;
}

static void free_observed(oracle *o, factor *f) {
  for (int32_t r = 0; r < o->ranks; r++) {
    for (int32_t i = 0; i < f->count[r]; i++)
      free(f->observed[r * MAX_OBSERVED + i].F);
    f->count[r] = 0;
  }
}

void oracle_destroy(oracle **op) {
  oracle *o = *op;
  if (!o) return;
  for (int32_t i = 0; i < o->layers; i++) {
    layer *l = &o->layer[i];
    for (int k = 0; k < 2; k++) {
      free_observed(o, &l->f[k]);
      for (int32_t r = 0; r < o->ranks; r++)
        free(l->f[k].F[r]);
      free(l->f[k].F);
      free(l->f[k].observed);
      free(l->f[k].count);
      free(l->Q[k]);
      free(l->w[k]);
    }
    free(l->R);
    free(l->pi);
  }
  free(o->batch);
  free(o);
  *op = NULL;
}

static bool is_excluded(const ng_options *opt, const ng_layer *l) {
  if (l->frozen) return true;
  if (opt->skip_layers[0] == '\0') return false;
  const char *kind = l->kind == NG_CONV2D ? "conv2d" : "linear";
  bool hit = false;
  char list[NG_TEXT_SIZE], *save = NULL;
  (void)snprintf(list, sizeof list, "%s", opt->skip_layers);
  for (char *g = strtok_r(list, ",", &save); g != NULL; g = strtok_r(NULL, ",", &save))
    hit = hit || fnmatch(g, l->name, 0) == 0 || fnmatch(g, kind, 0) == 0;
  return hit;
}

int32_t oracle_add_layer(oracle *o, const ng_layer *d) {
  require(o->layers < MAX_LAYERS, "too many layers");
  layer *l = &o->layer[o->layers];
  l->d = *d;
  l->opt = o->opt;
  l->groups = d->kind == NG_CONV2D ? d->groups : 1;
  l->covered = !is_excluded(&o->opt, d);
  require(d->kind != NG_NORM || !l->covered, "a norm block");
  if (l->covered) l->owner = o->covered++ % o->ranks;
  int64_t offsets = d->kind == NG_CONV2D ? d->kernel[0] * d->kernel[1] : 1;
  for (int k = 0; k < 2; k++) {
    factor *f = &l->f[k];
    f->channels = (k == 0 ? d->in : d->out) / l->groups;
    f->offsets = k == 0 ? offsets : 1;
    f->bias = k == 0 && d->bias;
    f->n = f->channels * f->offsets + (f->bias ? 1 : 0);
    f->F = must_calloc((size_t)o->ranks * sizeof *f->F);
    for (int32_t r = 0; r < o->ranks; r++)
      f->F[r] = zeros(l->groups * f->n * f->n);
    f->observed = must_calloc((size_t)o->ranks * MAX_OBSERVED * sizeof *f->observed);
    f->count = must_calloc((size_t)o->ranks * sizeof *f->count);
    l->Q[k] = zeros(l->groups * f->n * f->n);
    l->w[k] = zeros(l->groups * f->n);
  }
  l->R = zeros(l->groups * l->f[0].n * l->f[1].n);
  l->pi = zeros(l->groups);
  return o->layers++;
}

ng_options *oracle_options(oracle *o, int32_t i) { return &o->layer[i].opt; }
double oracle_inner_product(const oracle *o) { return o->inner; }
double oracle_condition(const oracle *o, int32_t i) { return o->layer[i].condition; }

const double *oracle_factor(const oracle *o, int32_t rank, int32_t i, int64_t group, bool grad,
                            int64_t *n) {
  const factor *f = &o->layer[i].f[grad];
  *n = f->n;
  return f->F[rank] + group * f->n * f->n;
}

/* ---- observe ---------------------------------------------------------------------------------*/

void oracle_begin(oracle *o, int32_t rank, const ng_batch *b) { o->batch[rank] = *b; }

static void store_observation(oracle *o, int32_t rank, int32_t i, bool grad, const double *data,
                              int64_t positions) {
  layer *l = &o->layer[i];
  if (!l->covered || o->t % o->layer[0].opt.base.stat_period != 0) return;
  if (l->opt.base.statistics == NG_STATISTICS_LOCAL && rank != l->owner) return;
  factor *f = &l->f[grad];
  require(f->count[rank] < MAX_OBSERVED, "too many observations");
  const ng_batch *b = &o->batch[rank];
  observed *s = &f->observed[rank * MAX_OBSERVED + f->count[rank]++];
  s->F = zeros(l->groups * f->n * f->n);
  for (int64_t g = 0; g < l->groups; g++) {
    write_factor(&l->opt, &l->d, b, grad, g, data, positions, s->F + g * f->n * f->n);
  }
  int64_t take = b->samples;
  if (l->opt.base.stat_batch > 0 && l->opt.base.stat_batch < take) take = l->opt.base.stat_batch;
  s->weight =
      is_textbook_scale(&l->opt) || l->opt.base.stat_scale == NG_SCALE_MPD_KFAC ? (double)take : 1;
  if (l->opt.base.stat_scale == NG_SCALE_CHAINERKFAC) s->weight = 1;
}

void oracle_observe_input(oracle *o, int32_t rank, int32_t i, const double *a, int64_t positions) {
  store_observation(o, rank, i, false, a, positions);
}

void oracle_observe_output_grad(oracle *o, int32_t rank, int32_t i, const double *g,
                                int64_t positions) {
  store_observation(o, rank, i, true, g, positions);
}

/* ---- running averages: spec/kfac.md 4, spec/distributed.md 2.4 and 6.3 -----------------------*/

/* F of every rank <- rho F + (1 - rho) fresh, then, unless statistics = local, the average over ranks.  The average
 * divides the damping that damping_leak = owner adds on one rank by the number of ranks. */
static void fold_into_averages(oracle *o, layer *l, factor *f, const double *fresh) {
  int64_t size = l->groups * f->n * f->n;
  double rho = l->opt.base.stat_decay;
  for (int32_t r = 0; r < o->ranks; r++) {
    for (int64_t k = 0; k < size; k++) {
      double old = f->F[r][k];
      if (!f->started) {
        int64_t within = k % (f->n * f->n);
        bool diagonal = within / f->n == within % f->n;
        old = l->opt.base.stat_start == NG_START_IDENTITY && diagonal ? 1 : 0;
        if (l->opt.base.stat_start == NG_START_FIRST) old = fresh[k];
      }
      f->F[r][k] = rho * old + (1 - rho) * fresh[k];
    }
  }
  f->started = true;
  if (l->opt.base.statistics == NG_STATISTICS_LOCAL) return;
  for (int64_t k = 0; k < size; k++) {
    double s = 0;
    for (int32_t r = 0; r < o->ranks; r++)
      s += f->F[r][k];
    for (int32_t r = 0; r < o->ranks; r++)
      f->F[r][k] = s / o->ranks;
  }
}

/* Compute the weighted mean of observations [from, to) of all ranks; return false if there is none. */
static bool mean_observation(const oracle *o, const layer *l, const factor *f, int32_t from,
                             int32_t to, double *out) {
  int64_t size = l->groups * f->n * f->n;
  double weight = 0;
  memset(out, 0, sizeof(double) * (size_t)size);
  for (int32_t r = 0; r < o->ranks; r++) {
    for (int32_t i = from; i < to && i < f->count[r]; i++) {
      const observed *s = &f->observed[r * MAX_OBSERVED + i];
      for (int64_t k = 0; k < size; k++)
        out[k] += s->weight * s->F[k];
      weight += s->weight;
    }
  }
  for (int64_t k = 0; k < size && weight > 0; k++)
    out[k] /= weight;
  return weight > 0;
}

static void fold_observations(oracle *o, layer *l, factor *f) {
  double *fresh = zeros(l->groups * f->n * f->n);
  if (l->opt.base.calls == NG_CALLS_LAST) {
    for (int32_t r = 0; r < o->ranks; r++) {
      if (f->count[r] < 2) continue;
      observed *s = &f->observed[r * MAX_OBSERVED], last = s[f->count[r] - 1];
      for (int32_t i = 0; i + 1 < f->count[r]; i++)
        free(s[i].F);
      s[0] = last;
      f->count[r] = 1;
    }
  }
  if (l->opt.base.calls == NG_CALLS_EMA) {
    for (int32_t i = 0; mean_observation(o, l, f, i, i + 1, fresh); i++)
      fold_into_averages(o, l, f, fresh);
  } else if (mean_observation(o, l, f, 0, MAX_OBSERVED, fresh)) {
    fold_into_averages(o, l, f, fresh);
  }
  free_observed(o, f);
  free(fresh);
}

/* ---- solve: spec/kfac.md 6 -------------------------------------------------------------------*/

/* Return the diagonal block with index i of a factor whose channels are split into `blocks`. */
static int64_t block_of_index(const factor *f, int64_t blocks, int64_t i) {
  int64_t c = i / f->offsets, size = f->channels / blocks, rest = f->channels % blocks;
  if (c >= f->channels) return blocks - 1; /* the bias */
  return c < rest * (size + 1) ? c / (size + 1) : rest + (c - rest * (size + 1)) / size;
}

static int64_t widest_block(const factor *f, int64_t blocks) {
  int64_t best = 0;
  for (int64_t b = 0; b < blocks; b++) {
    int64_t width = 0;
    for (int64_t i = 0; i < f->n; i++)
      width += block_of_index(f, blocks, i) == b ? 1 : 0;
    if (width > best) best = width;
  }
  return best;
}

/* spatial: the blocks are blocks of C. */
static int64_t block_count(const ng_options *opt, const factor *f, bool spatial) {
  int64_t k = opt->base.factor_blocks < f->channels ? opt->base.factor_blocks : f->channels;
  while (opt->base.max_factor > 0 && k < f->channels &&
         (spatial && f->offsets > 1 ? (f->channels + k - 1) / k : widest_block(f, k)) >
             opt->base.max_factor)
    k++;
  return k;
}

static void damping_shifts(const layer *l, int64_t g, double lambda, double shift[2]) {
  shift[0] = shift[1] = 0;
  if (l->opt.base.damping_split == NG_SPLIT_FULL) shift[0] = shift[1] = lambda;
  if (l->opt.base.damping_split == NG_SPLIT_ROOT) shift[0] = shift[1] = sqrt(lambda);
  if (l->opt.base.damping_split == NG_SPLIT_PI) {
    shift[0] = sqrt(lambda) * l->pi[g];
    shift[1] = sqrt(lambda) / l->pi[g];
  }
}

/* Return 1 / denominator for eigenvectors j of A and i of G. */
static double inverse_denominator(const layer *l, int64_t g, int64_t i, int64_t j) {
  double shift[2], lambda = l->opt.base.damping;
  double da = l->w[0][g * l->f[0].n + j], dg = l->w[1][g * l->f[1].n + i];
  damping_shifts(l, g, lambda, shift);
  if (l->opt.base.damping_split == NG_SPLIT_JOINT) return 1 / (dg * da + lambda);
  return 1 / ((dg + shift[1]) * (da + shift[0]));
}

/* Write A (k = 0) or G (k = 1) of a group from the averages of the owner. */
static void write_A_or_G(const layer *l, int k, int64_t g, double *out) {
  const int64_t n = l->f[k].n;
  const double *average = l->f[k].F[l->owner] + g * n * n;
  if (k == 0 && oracle_is_spatial(&l->opt, &l->d)) {
    oracle_spatial_factor(&l->d, n, average, out);
  } else {
    memcpy(out, average, sizeof(double) * (size_t)(n * n));
  }
}

static void solve_group(const oracle *o, layer *l, int64_t g) {
  double trace[2] = {0, 0}, shift[2], *A_or_G[2];
  for (int k = 0; k < 2; k++) {
    int64_t n = l->f[k].n;
    A_or_G[k] = zeros(n * n);
    write_A_or_G(l, k, g, A_or_G[k]);
    for (int64_t i = 0; i < n; i++)
      trace[k] += A_or_G[k][i * n + i] / (double)n;
  }
  l->pi[g] = trace[0] > 0 && trace[1] > 0 ? sqrt(trace[0] / trace[1]) : 1;
  damping_shifts(l, g, l->opt.base.damping, shift);
  bool eigen = ng_is_eigen(l->opt.base.solver);
  for (int k = 0; k < 2; k++) {
    factor *f = &l->f[k];
    const bool single = k == 1 && l->opt.base.output_factor == NG_OUTPUT_DIAGONAL;
    int64_t n = f->n,
            blocks = single ? n : block_count(&l->opt, f, oracle_is_spatial(&l->opt, &l->d));
    double *M = zeros(n * n);
    double *Q = l->Q[k] + g * n * n, *w = l->w[k] + g * n;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < n; j++) {
        if (block_of_index(f, blocks, i) == block_of_index(f, blocks, j))
          M[i * n + j] = A_or_G[k][i * n + j];
      }
      if (!eigen) M[i * n + i] += shift[k];
    }
    for (int32_t r = 0; r < o->ranks && l->opt.base.damping_leak != NG_LEAK_NONE; r++) {
      const bool all =
          l->opt.base.damping_leak == NG_LEAK_ALL || l->opt.base.statistics == NG_STATISTICS_OWNER;
      if (r != l->owner && !all) continue;
      for (int64_t i = 0; i < n; i++)
        f->F[r][(g * n + i) * n + i] += shift[k];
    }
    dense_eigen(n, M, w, Q);
    if (!eigen) {
      memset(Q, 0, sizeof(double) * (size_t)(n * n));
      for (int64_t i = 0; i < n; i++)
        Q[i * n + i] = 1;
      dense_solve(n, M, n, Q);
    } else {
      for (int64_t i = 0; i < n; i++) {
        if (w[i] <= l->opt.base.eigen_floor) w[i] = 0;
      }
    }
    free(M);
    free(A_or_G[k]);
  }
  int64_t p = l->f[0].n, q = l->f[1].n;
  for (int64_t i = 0; eigen && i < q; i++) {
    for (int64_t j = 0; j < p; j++)
      l->R[g * p * q + i * p + j] = inverse_denominator(l, g, i, j);
  }
}

static double condition_of(const double *w, int64_t n) {
  double low = fabs(w[0]), high = fabs(w[0]);
  for (int64_t i = 1; i < n; i++) {
    low = fmin(low, fabs(w[i]));
    high = fmax(high, fabs(w[i]));
  }
  return high / low;
}

static void precondition_group(layer *l, int64_t g, const double *D, double *P) {
  int64_t p = l->f[0].n, q = l->f[1].n;
  const double *QA = l->Q[0] + g * p * p, *QG = l->Q[1] + g * q * q;
  double *V = zeros(q * p), *W = zeros(q * p), condition;
  if (ng_is_eigen(l->opt.base.solver)) {
    dense_product(true, false, q, p, q, QG, D, W);
    dense_product(false, false, q, p, p, W, QA, V);
    for (int64_t i = 0; i < q; i++) {
      for (int64_t j = 0; j < p; j++) {
        double r = l->opt.base.solver == NG_SOLVER_EIGEN_PREDIV ? l->R[g * p * q + i * p + j]
                                                                : inverse_denominator(l, g, i, j);
        V[i * p + j] *= r;
        W[i * p + j] = r;
      }
    }
    condition = condition_of(W, q * p);
    dense_product(false, true, q, p, p, V, QA, W);
    dense_product(false, false, q, p, q, QG, W, P);
  } else {
    dense_product(false, false, q, p, q, QG, D, V);
    dense_product(false, false, q, p, p, V, QA, P);
    condition = condition_of(l->w[0] + g * p, p) + condition_of(l->w[1] + g * q, q);
  }
  l->condition = fmax(l->condition, condition);
  free(V);
  free(W);
}

/* ---- the step: spec/kfac.md 5 and 8 ----------------------------------------------------------*/

double oracle_step(oracle *o, double lr, const double *const *D, double *const *P) {
  const ng_settings *opt = &o->layer[0].opt.base;
  bool due = o->t % opt->solve_period == 0;
  double inner = 0, d2 = 0, pd2 = 0, nu = 1;
  for (int32_t i = 0; i < o->layers; i++) {
    layer *l = &o->layer[i];
    if (!l->covered) continue;
    fold_observations(o, l, &l->f[0]);
    fold_observations(o, l, &l->f[1]);
    l->condition = 0;
    for (int64_t g = 0; g < l->groups; g++) {
      int64_t size = l->f[0].n * l->f[1].n;
      if (due) solve_group(o, l, g);
      precondition_group(l, g, D[i] + g * size, P[i] + g * size);
      for (int64_t k = g * size; k < (g + 1) * size; k++) {
        inner += P[i][k] * D[i][k];
        d2 += D[i][k] * D[i][k];
        pd2 += P[i][k] * P[i][k];
      }
    }
  }
  if (opt->clip == NG_CLIP_KL && inner != 0)
    nu = fmin(1, sqrt(opt->kl_clip / fabs(lr * lr * inner)));
  if (opt->clip == NG_CLIP_RESCALE && pd2 > 0) nu = sqrt(d2 / pd2);
  for (int32_t i = 0; i < o->layers; i++) {
    layer *l = &o->layer[i];
    int64_t size = l->d.out * oracle_columns(&l->d);
    for (int64_t k = 0; k < size; k++)
      P[i][k] = l->covered ? nu * P[i][k] : D[i][k];
  }
  o->inner = inner;
  o->t++;
  return nu;
}

/* ---- updates ---------------------------------------------------------------------------------*/

void oracle_update_sgd(const ng_sgd *s, int64_t t, int64_t n, const double *d, double *w,
                       double *v) {
  for (int64_t i = 0; i < n; i++) {
    double e = d[i] + (s->decoupled ? 0 : s->weight_decay * w[i]);
    v[i] = t == 1 || s->momentum == 0 ? e : s->momentum * v[i] + (1 - s->dampening) * e;
    double keep = s->decoupled ? 1 - s->lr * s->weight_decay : 1;
    double use = s->nesterov ? e + s->momentum * v[i] : v[i];
    w[i] = keep * w[i] - s->lr * use;
  }
}

void oracle_update_adamw(const ng_adamw *a, int64_t t, int64_t n, const double *d, double *w,
                         double *m, double *s) {
  for (int64_t i = 0; i < n; i++) {
    m[i] = a->beta1 * m[i] + (1 - a->beta1) * d[i];
    s[i] = a->beta2 * s[i] + (1 - a->beta2) * d[i] * d[i];
    double mh = m[i] / (1 - pow(a->beta1, (double)t)), sh = s[i] / (1 - pow(a->beta2, (double)t));
    w[i] = (1 - a->lr * a->weight_decay) * w[i] - a->lr * mh / (sqrt(sh) + a->eps);
  }
}
