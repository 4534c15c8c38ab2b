/* layer_oracle.c: see layer_oracle.h. */
#include "layer_oracle.h"
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dense.h"
#include "fixture.h"

/* ---- the oracle ------------------------------------------------------------------------------*/

static int64_t group_count(const ng_layer *l) { return l->kind == NG_CONV2D ? l->groups : 1; }
static int64_t vector_length(const ng_layer *l, bool grad) {
  return grad ? l->out : group_count(l) * oracle_columns(l);
}

static int64_t stat_samples(const ng_options *o, int64_t all) {
  return o->base.stat_batch > 0 && o->base.stat_batch < all ? o->base.stat_batch : all;
}

/* Write the scaled mean row of one call to `to`. */
static void mean_row(const ng_options *o, const ng_layer *l, const ng_batch *b, bool grad,
                     int64_t S, const double *x, int64_t take, double *to) {
  const int64_t groups = group_count(l), n = vector_length(l, grad) / groups;
  const double c = b->reduction == NG_MEAN ? (double)b->samples : 1;
  double scale = grad ? 1 / b->loss_scale : 1;
  if (o->base.stat_scale == NG_SCALE_TEXTBOOK) {
    const bool expand = o->base.positions == NG_POSITIONS_EXPAND;
    scale *= grad ? (expand ? c : c * (double)S) : expand ? sqrt((double)S) : 1;
  }
  memset(to, 0, (size_t)(groups * n) * sizeof *to);
  for (int64_t g = 0; g < groups; g++) {
    double *rows = oracle_stat_rows(l, grad, g, x, b->samples, S, n);
    for (int64_t k = 0; k < take * S * n; k++)
      to[g * n + k % n] += scale * rows[k] / (double)(take * S);
    free(rows);
  }
}

/* Update the average m of one vector in place, over the calls and ranks of one step. */
static void update_mean_vector(const test_case *s, const ng_options *o, int32_t t, int32_t l,
                               bool grad, double *m, bool *started) {
  int64_t n = vector_length(&s->layer[l], grad);
  double *x = zeros(n), *all = zeros(n), *mine = zeros(n), W = 0;
  bool ema = o->base.calls == NG_CALLS_EMA, last = o->base.calls == NG_CALLS_LAST;
  bool first = o->base.stat_start == NG_START_FIRST;
  double rho = !*started && first ? 0 : o->base.stat_decay;
  for (int32_t r = 0; r < s->ranks; r++) {
    double w = 0;
    memcpy(mine, m, (size_t)n * sizeof *mine);
    if (!ema) memset(mine, 0, (size_t)n * sizeof *mine);
    for (int32_t c = 0; c < s->calls[t][r]; c++) {
      const case_micro *k = &s->micro[t][r][c];
      for (int32_t u = 0; u < s->uses[l]; u++) {
        /* gradients are observed in the opposite order, which matters for calls = last */
        int32_t use = grad ? s->uses[l] - 1 - u : u;
        if (k->a[l][use] == NULL) continue; /* the layer was not observed */
        int64_t take = stat_samples(o, k->batch.samples);
        double v = o->base.stat_scale == NG_SCALE_EVA ? 1 : (double)take;
        mean_row(o, &s->layer[l], &k->batch, grad, s->positions[l],
                 grad ? k->g[l][use] : k->a[l][use], take, x);
        double old = !ema ? (last ? 0 : 1) : w > 0 || *started || !first ? o->base.stat_decay : 0;
        double new = ema ? 1 - old : v;
        for (int64_t i = 0; i < n; i++)
          mine[i] = old * mine[i] + new *x[i];
        w = last ? v : w + v;
      }
    }
    for (int64_t i = 0; i < n && w > 0; i++)
      all[i] += ema ? w * mine[i] : mine[i];
    W += w;
  }
  for (int64_t i = 0; i < n && W > 0; i++)
    m[i] = ema ? all[i] / W : rho * m[i] + (1 - rho) * all[i] / W;
  if (W > 0) *started = true;
  free(x);
  free(all);
  free(mine);
}

/* Compute P of one group by elimination, and return (alpha beta + lambda) / lambda.  With g = NULL, g g' is I. */
static double solve_rank_one(int64_t q, int64_t p, const double *a, const double *g, double lambda,
                             const double *D, double *P) {
  if (g == NULL) { /* each row is a group with g = 1 */
    double one = 1, c = 1;
    for (int64_t i = 0; i < q; i++)
      c = fmax(c, solve_rank_one(1, p, a, &one, lambda, D + i * p, P + i * p));
    return c;
  }
  int64_t n = q * p;
  if (n > 256) {
    /* the matrix is too large for a dense solve, so use the formula of Sherman and Morrison */
    double alpha = 0, beta = 0, sum = 0;
    for (int64_t i = 0; i < p; i++)
      alpha += a[i] * a[i];
    for (int64_t i = 0; i < q; i++)
      beta += g[i] * g[i];
    for (int64_t i = 0; i < n; i++)
      sum += g[i / p] * D[i] * a[i % p];
    for (int64_t i = 0; i < n; i++)
      P[i] = (D[i] - sum / (alpha * beta + lambda) * g[i / p] * a[i % p]) / lambda;
    return (alpha * beta + lambda) / lambda;
  }
  double *M = zeros(n * n), trace = 0;
  for (int64_t i = 0; i < n; i++) {
    double x = g[i / p] * a[i % p];
    for (int64_t j = 0; j < n; j++)
      M[i * n + j] = x * g[j / p] * a[j % p] + (i == j ? lambda : 0);
    trace += x * x;
    P[i] = D[i];
  }
  dense_solve(n, M, 1, P);
  free(M);
  return (trace + lambda) / lambda;
}

/* Compute the clip factor of step t, and multiply P by the factor. */
static void clip_step(const test_case *s, const ng_options *o, int32_t t, double d2, double pd2,
                      case_result *out) {
  const double v = 0.1 * 0.1 * fabs(out->inner[t]);
  out->nu[t] = 1;
  if (o->base.clip == NG_CLIP_KL && v > 0) out->nu[t] = fmin(1, sqrt(o->base.kl_clip / v));
  if (o->base.clip == NG_CLIP_RESCALE && pd2 > 0) out->nu[t] = sqrt(d2 / pd2);
  for (int32_t l = 0; l < s->layers; l++) {
    for (int64_t i = 0; i < case_weight_count(s, l) && !s->layer[l].frozen; i++)
      out->P[t][l][i] *= out->nu[t];
  }
}

void rankone_predict(const test_case *s, const ng_options *opt, case_result *out) {
  ng_options o = *opt;
  double *m[CASE_LAYERS][2];
  bool started[CASE_LAYERS][2] = {{false}};
  memset(out, 0, sizeof *out);
  for (int32_t l = 0; l < s->layers; l++) {
    for (int k = 0; k < 2; k++)
      m[l][k] = zeros(vector_length(&s->layer[l], k == 1));
  }
  for (int32_t t = 0; t < s->steps; t++) {
    double d2 = 0, pd2 = 0;
    if (s->damping[t] > 0) o.base.damping = s->damping[t];
    for (int32_t l = 0; l < s->layers; l++) {
      const ng_layer *d = &s->layer[l];
      int64_t groups = group_count(d), q = d->out / groups, p = oracle_columns(d), n = q * p;
      const double *D = s->D[t][l];
      double *P = out->P[t][l] = zeros(groups * n);
      memcpy(P, D, (size_t)(groups * n) * sizeof *P);
      out->condition[t][l] = 1;
      if (d->frozen) continue;
      for (int k = 0; k < 2 && t % o.base.stat_period == 0 && o.base.sides != NG_SIDES_NONE; k++)
        update_mean_vector(s, &o, t, l, k == 1, m[l][k], &started[l][k]);
      for (int64_t g = 0; g < groups; g++) {
        /* sides = none (AdaSGD): zero vectors; the squared norm of the gradient is added to the damping */
        const double *side = o.base.sides == NG_SIDES_INPUT ? NULL : m[l][1] + g * q;
        double lambda = o.base.damping;
        for (int64_t i = 0; i < groups * n && o.base.sides == NG_SIDES_NONE; i++)
          lambda += D[i] * D[i];
        double c = solve_rank_one(q, p, m[l][0] + g * p, side, lambda, D + g * n, P + g * n);
        out->condition[t][l] = fmax(out->condition[t][l], c);
      }
      for (int64_t i = 0; i < groups * n; i++) {
        out->inner[t] += P[i] * D[i];
        d2 += D[i] * D[i];
        pd2 += P[i] * P[i];
      }
    }
    clip_step(s, &o, t, d2, pd2, out);
  }
  for (int32_t l = 0; l < s->layers; l++) {
    free(m[l][0]);
    free(m[l][1]);
  }
}

/* ---- Adam, Muon ------------------------------------------------------------------------------------*/

/* Update M and V of one layer, [2, n], from their values before step t to their values after it. */
static void adam_step(const ng_options *o, int32_t t, int64_t n, const double *D, double *M,
                      double *P) {
  const double b1 = o->base.first_decay, b2 = o->base.second_decay;
  double *V = M + n;
  for (int64_t i = 0; i < n; i++) {
    M[i] = b1 * M[i] + (1 - b1) * D[i];
    V[i] = b2 * V[i] + (1 - b2) * D[i] * D[i];
    P[i] = o->base.adam_lr * (M[i] / (1 - pow(b1, t + 1))) /
           (sqrt(V[i] / (1 - pow(b2, t + 1))) + o->base.moment_epsilon);
  }
}

/* X [m, n] <- s NS(X): steps of X <- a X + b S X + c S S X, S = X X'. S X is the same from both sides. */
static void orthogonalise(const ng_options *o, int64_t m, int64_t n, double *X) {
  double *S = zeros(m * m), *SX = zeros(m * n), *SSX = zeros(m * n), norm = 0;
  const double eps = o->base.muon_epsilon;
  for (int64_t i = 0; i < m * n; i++)
    norm += X[i] * X[i];
  norm = o->base.muon_norm == NG_MUON_SUM ? sqrt(norm) + eps : fmax(sqrt(norm), eps);
  for (int64_t i = 0; i < m * n; i++)
    X[i] /= norm;
  for (int64_t t = 0; t < o->base.muon_steps; t++) {
    dense_product(false, true, m, m, n, X, X, S);
    dense_product(false, false, m, n, m, S, X, SX);
    dense_product(false, false, m, n, m, S, SX, SSX);
    for (int64_t i = 0; i < m * n; i++)
      X[i] = o->base.muon_a * X[i] + o->base.muon_b * SX[i] + o->base.muon_c * SSX[i];
  }
  free(S);
  free(SX);
  free(SSX);
}

static double muon_scale(const ng_options *o, const ng_layer *l, double m, double n) {
  const bool kernel = o->base.muon_scale == NG_MUON_AXES && l->kind == NG_CONV2D;
  if (o->base.muon_scale == NG_MUON_RMS) return 0.2 * sqrt(fmax(m, n));
  if (o->base.muon_scale == NG_MUON_LARGEST) return sqrt(fmax(m, n));
  return sqrt(fmax(1, kernel ? (double)l->kernel[0] / (double)l->kernel[1] : m / n));
}

/* Compute the direction of the weight, which is every column of D except the column of the bias. B [q, w]: the momentum. */
static void muon_step(const ng_options *o, const ng_layer *l, const double *D, double *B,
                      double *P) {
  const int64_t q = l->out, p = oracle_columns(l), w = p - l->bias;
  const double mu = o->base.muon_momentum;
  double *U = zeros(q * w);
  for (int64_t i = 0; i < q * w; i++) {
    const double d = D[i / w * p + i % w];
    B[i] = mu * B[i] + (1 - mu) * d;
    U[i] = o->base.muon_nesterov ? (1 - mu) * d + mu * B[i] : B[i];
  }
  orthogonalise(o, q, w, U);
  for (int64_t i = 0; i < q * w; i++)
    P[i / w * p + i % w] = muon_scale(o, l, (double)q, (double)w) * U[i];
  free(U);
}

void cut_diagonal_blocks(const ng_settings *o, const ng_layer *l, bool grad, int64_t n, double *F) {
  const int64_t groups = l->kind == NG_CONV2D ? l->groups : 1,
                channels = (grad ? l->out : l->in) / groups, taps = grad ? 1 : n / channels,
                blocks = o->factor_blocks < channels ? o->factor_blocks : channels;
  int64_t *block = must_calloc((size_t)n * sizeof *block);
  for (int64_t i = 0, at = 0; i < blocks; i++) {
    const int64_t end =
        i == blocks - 1 ? n : at + taps * (channels / blocks + (i < channels % blocks ? 1 : 0));
    for (; at < end; at++)
      block[at] = i;
  }
  for (int64_t i = 0; i < n * n; i++)
    F[i] *= block[i / n] == block[i % n] ? 1.0 : 0.0;
  free(block);
}

/* Return D [out, p] of step t with the columns of the weight times (A / m + damping I)^-1, m the mean eigenvalue of A of all groups
 * without the bias; free(). *condition: of the inverse, at most. */
static double *divide_by_inputs(const test_case *s, const ng_options *opt, const oracle *o,
                                int32_t t, int32_t l, double *condition) {
  const ng_layer *d = &s->layer[l];
  const int64_t groups = group_count(d), q = d->out / groups, p = oracle_columns(d),
                w = p - d->bias;
  double *D = zeros(d->out * p), *M = zeros(w * w), *X = zeros(w * q), mean = 0;
  memcpy(D, s->D[t][l], sizeof *D * (size_t)(d->out * p));
  for (int pass = 0; pass < 2; pass++) {
    for (int64_t g = 0; g < groups; g++) {
      int64_t n;
      const double *A = oracle_factor(o, 0, l, g, false, &n);
      for (int64_t i = 0; i < w && pass == 0; i++)
        mean += A[i * (p + 1)] / (double)(groups * w);
      if (pass == 0) continue;
      for (int64_t i = 0; i < w * w; i++)
        M[i] = A[i / w * p + i % w] / (mean > 0 ? mean : 1);
      cut_diagonal_blocks(&opt->base, d, false, w, M);
      for (int64_t i = 0; i < w; i++)
        M[i * (w + 1)] += opt->base.damping;
      for (int64_t i = 0; i < w * q; i++)
        X[i] = D[(g * q + i % q) * p + i / q];
      dense_solve(w, M, q, X);
      for (int64_t i = 0; i < w * q; i++)
        D[(g * q + i % q) * p + i / q] = X[i];
    }
  }
  *condition = 1 + (double)(groups * w) / opt->base.damping;
  free(M);
  free(X);
  return D;
}

enum { ADAM, MUON, NEWTON_MUON };

static void predict_elements(const test_case *s, const ng_options *opt, int which,
                             case_result *out) {
  ng_options o = *opt, factors = *opt;
  fixture_set(&factors, "damping", "1");
  double *M[CASE_LAYERS], *B[CASE_LAYERS];
  memset(out, 0, sizeof *out);
  for (int32_t l = 0; l < s->layers; l++) {
    M[l] = zeros(2 * case_weight_count(s, l));
    B[l] = zeros(case_weight_count(s, l));
  }
  for (int32_t t = 0; t < s->steps; t++) {
    double d2 = 0, pd2 = 0;
    case_result inverted;
    oracle *inputs = NULL;
    test_case part = *s;
    part.steps = t + 1;
    if (s->damping[t] > 0) o.base.damping = s->damping[t];
    /* A comes from the oracle, which runs the first step, the first two, ... */
    if (which == NEWTON_MUON) case_predict(&part, &factors, &inverted, &inputs);
    for (int32_t l = 0; l < s->layers; l++) {
      const ng_kind kind = s->layer[l].kind;
      const int64_t n = case_weight_count(s, l);
      const double *D = s->D[t][l];
      double *divided = NULL, *P = out->P[t][l] = zeros(n);
      memcpy(P, D, (size_t)n * sizeof *P);
      out->condition[t][l] = 1;
      if (s->layer[l].frozen) continue;
      adam_step(opt, t, n, D, M[l], P);
      const bool is_matrix = kind == NG_LINEAR || kind == NG_CONV2D;
      if (is_matrix && which == NEWTON_MUON)
        divided = divide_by_inputs(s, &o, inputs, t, l, &out->condition[t][l]);
      if (is_matrix && which != ADAM)
        muon_step(opt, &s->layer[l], divided != NULL ? divided : D, B[l], P);
      free(divided);
      for (int64_t i = 0; i < n; i++) {
        out->inner[t] += P[i] * D[i];
        d2 += D[i] * D[i];
        pd2 += P[i] * P[i];
      }
    }
    clip_step(s, opt, t, d2, pd2, out);
    if (inputs == NULL) continue;
    case_free_result(&inverted);
    oracle_destroy(&inputs);
  }
  for (int32_t l = 0; l < s->layers; l++) {
    free(M[l]);
    free(B[l]);
  }
}

void adam_predict(const test_case *s, const ng_options *opt, case_result *out) {
  predict_elements(s, opt, ADAM, out);
}

void muon_predict(const test_case *s, const ng_options *opt, case_result *out) {
  predict_elements(s, opt, MUON, out);
}

void newton_muon_predict(const test_case *s, const ng_options *opt, case_result *out) {
  predict_elements(s, opt, NEWTON_MUON, out);
}

static int64_t norm_block_size(const ng_layer *l) { return oracle_columns(l) * l->in; }

/* ---- one micro-batch -------------------------------------------------------------------------*/

/* Return the index of the mean and variance of element (i, s, c). */
static int64_t statistics_index(const ng_layer *l, int64_t S, int64_t i, int64_t s, int64_t c) {
  if (l->norm_kind == NG_LAYER_NORM) return i * S + s;
  if (l->norm_kind == NG_GROUP_NORM) return i * l->groups + c / (l->in / l->groups);
  return c;
}

/* Return the normalised input h [B, S, C], for free(). */
static double *normalise_input(const ng_layer *l, int64_t B, int64_t S, const double *a) {
  const int64_t C = l->in, n = B * S * C, sets = B * S + B * l->groups + C;
  double *h = zeros(n), *mean = zeros(sets), *var = zeros(sets), *count = zeros(sets);
  for (int pass = 0; pass < 3; pass++) {
    for (int64_t k = 0; k < n; k++) {
      const int64_t set = statistics_index(l, S, k / C / S, k / C % S, k % C);
      const double off = a[k] - mean[set] / fmax(1, count[set]);
      if (pass == 1) var[set] += off * off;
      if (pass == 2) h[k] = off / sqrt(var[set] / count[set] + l->norm_eps);
    }
    for (int64_t k = 0; k < n && pass == 0; k++) {
      const int64_t set = statistics_index(l, S, k / C / S, k / C % S, k % C);
      mean[set] += a[k];
      count[set]++;
    }
  }
  if (l->norm_input == NG_NORM_NORMALISED) memcpy(h, a, sizeof(double) * (size_t)n);
  free(mean);
  free(var);
  free(count);
  return h;
}

static void add_norm_sample(const ng_layer *l, const ng_batch *b, int64_t positions,
                            const double *a, const double *g, int64_t take, double weight,
                            double *F) {
  const int64_t C = l->in, w = norm_block_size(l);
  const double by = (b->reduction == NG_MEAN ? (double)b->samples : 1) / b->loss_scale;
  double *h = normalise_input(l, b->samples, positions, a), *q = zeros(w);
  for (int64_t i = 0; i < take; i++) {
    memset(q, 0, sizeof(double) * (size_t)w);
    for (int64_t k = i * positions * C; k < (i + 1) * positions * C; k++) {
      if (!l->norm_no_weight) q[k % C] += by * g[k] * h[k];
      if (l->bias) q[w - C + k % C] += by * g[k];
    }
    for (int64_t k = 0; k < w * w; k++)
      F[k] += weight * q[k / w] * q[k % w];
  }
  free(h);
  free(q);
}

/* ---- the solve -------------------------------------------------------------------------------*/

static bool is_in_block(const ng_layer *l, ng_norm_block block, int64_t r, int64_t c) {
  return r == c || block == NG_NORM_FULL || (block == NG_NORM_UNIT && r % l->in == c % l->in);
}

static double norm_solve(const ng_layer *l, ng_norm_block block, const double *F, double d,
                         double *x) {
  const int64_t w = norm_block_size(l);
  double *M = zeros(w * w), trace = 0;
  for (int64_t k = 0; k < w * w; k++) {
    const bool diagonal = k / w == k % w;
    M[k] = (is_in_block(l, block, k / w, k % w) ? F[k] : 0) + (diagonal ? d : 0);
    trace += diagonal ? F[k] : 0;
  }
  dense_solve(w, M, 1, x);
  free(M);
  return (trace + d) / d;
}

/* ---- a test case -----------------------------------------------------------------------------*/

/* Return images [B, C, HW] as rows [B, S, C], for free(). */
static double *rows_of_images(const test_case *s, int32_t l, int64_t B, const double *v) {
  const int64_t C = s->layer[l].in, S = s->positions[l], n = B * S * C;
  double *x = zeros(n);
  for (int64_t k = 0; k < n; k++) {
    const int64_t from = k / (S * C) * S * C + k % C * S + k / C % S;
    x[k] = v[takes_images(&s->layer[l]) ? from : k];
  }
  return x;
}

/* F <- rho (F + left / ranks I) + (1 - rho) fresh; the first F is `fresh`.  `left`: the damping that damping_leak added
 * since the last fold. */
static void update_norm_factor(const test_case *s, const ng_options *o, int32_t t, int32_t l,
                               double *F, bool *started, double *left) {
  const ng_layer *d = &s->layer[l];
  const int64_t w = norm_block_size(d);
  double *fresh = zeros(w * w), total = 0;
  for (int32_t r = 0; r < s->ranks; r++) {
    for (int32_t c = 0; c < s->calls[t][r]; c++) {
      const case_micro *m = &s->micro[t][r][c];
      const int64_t B = m->batch.samples, take = stat_samples(o, B);
      for (int32_t u = 0; u < s->uses[l]; u++) {
        double *a = rows_of_images(s, l, B, m->a[l][u]), *g = rows_of_images(s, l, B, m->g[l][u]);
        add_norm_sample(d, &m->batch, s->positions[l], a, g, take, 1, fresh);
        total += (double)take;
        free(a);
        free(g);
      }
    }
  }
  const double rho = *started ? o->base.stat_decay : 0;
  const bool all = o->base.damping_leak == NG_LEAK_ALL || o->base.statistics == NG_STATISTICS_OWNER;
  for (int64_t i = 0; i < w; i++)
    F[i * w + i] += *left / (all ? 1 : s->ranks);
  *left = 0;
  for (int64_t k = 0; k < w * w && total > 0; k++)
    F[k] = rho * F[k] + (1 - rho) * fresh[k] / total;
  *started = *started || total > 0;
  free(fresh);
}

/* Compute P of a norm layer: D is [C, gamma beta], the x of norm_solve is [gamma beta, C]. */
static double precondition_norm(const test_case *s, const ng_options *o, int32_t l, const double *F,
                                double damping, const double *D, double *P) {
  const ng_layer *d = &s->layer[l];
  const int64_t w = norm_block_size(d), C = d->in, p = oracle_columns(d);
  double *x = zeros(w);
  for (int64_t k = 0; k < w; k++)
    x[k] = D[k % C * p + k / C];
  const double condition = norm_solve(d, o->base.norm_block, F, damping, x);
  for (int64_t k = 0; k < w; k++)
    P[k % C * p + k / C] = x[k];
  free(x);
  return condition;
}

void norm_predict(const test_case *s, const ng_options *opt,
                  void (*others)(const test_case *s, const ng_options *opt, case_result *out),
                  case_result *out) {
  test_case rest = *s;
  ng_options o = *opt;
  double *F[CASE_LAYERS] = {NULL}, left[CASE_LAYERS] = {0};
  bool started[CASE_LAYERS] = {false};
  if (o.base.stat_start != NG_START_FIRST || o.base.calls != NG_CALLS_MEAN ||
      o.base.stat_scale != NG_SCALE_TEXTBOOK)
    fail_msg("norm_predict: stat_start, calls or stat_scale is not its default");
  for (int32_t l = 0; l < s->layers; l++) {
    if (s->layer[l].kind != NG_NORM || s->layer[l].frozen) continue;
    rest.layer[l].frozen = 1;
    F[l] = zeros(norm_block_size(&s->layer[l]) * norm_block_size(&s->layer[l]));
  }
  fixture_set(&o, "clip", "none");
  others(&rest, &o, out);
  for (int32_t t = 0; t < s->steps; t++) {
    double inner = 0, d2 = 0, pd2 = 0;
    if (s->damping[t] > 0) o.base.damping = s->damping[t];
    for (int32_t l = 0; l < s->layers; l++) {
      const int64_t n = case_weight_count(s, l);
      const double *D = s->D[t][l];
      double *P = out->P[t][l];
      if (s->layer[l].frozen) continue;
      if (F[l] != NULL) {
        const bool folds = t % o.base.stat_period == 0;
        const bool leaks = o.base.damping_leak != NG_LEAK_NONE;
        const bool adds = leaks && (folds || o.base.norm_block == NG_NORM_FULL);
        if (folds) update_norm_factor(s, &o, t, l, F[l], &started[l], &left[l]);
        const double lambda = o.base.damping * o.base.norm_damping;
        const double on = !leaks ? lambda : adds ? left[l] + lambda : left[l];
        out->condition[t][l] = precondition_norm(s, &o, l, F[l], on, D, P);
        if (adds) left[l] += lambda;
      }
      for (int64_t i = 0; i < n; i++) {
        inner += D[i] * P[i];
        d2 += D[i] * D[i];
        pd2 += P[i] * P[i];
      }
    }
    out->inner[t] = inner;
    clip_step(s, opt, t, d2, pd2, out);
  }
  for (int32_t l = 0; l < s->layers; l++)
    free(F[l]);
}
