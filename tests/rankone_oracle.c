/* rankone_oracle.c: see rankone_oracle.h. */
#include "rankone_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *zeros(int64_t n) { return scene_room(sizeof(double) * (size_t)(n > 0 ? n : 1)); }

/* ---- the oracle ------------------------------------------------------------------------------*/

/* Sizes of a layer's vectors: g has `out` entries; each group's a has p (with the bias). */
static int64_t groups_of(const ng_layer *l) { return l->kind == NG_CONV2D ? l->groups : 1; }
static int64_t length(const ng_layer *l, bool grad) {
  return grad ? l->out : groups_of(l) * oracle_cols(l);
}

/* The mean row of one call, scaled. */
static void fresh(const ng_options *o, const ng_layer *l, const ng_batch *b, bool grad, int64_t S,
                  const double *x, int64_t take, double *to) {
  const int64_t groups = groups_of(l), n = length(l, grad) / groups;
  const double c = b->reduction == NG_MEAN ? (double)b->samples : 1;
  double scale = grad ? 1 / b->loss_scale : 1;
  if (strcmp(o->stat_scale, "textbook") == 0) {
    const bool expand = strcmp(o->positions, "expand") == 0;
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

/* One step's average of one vector over calls and ranks: m is changed in place. */
static void average(const scene *s, const ng_options *o, int32_t t, int32_t l, bool grad, double *m,
                    bool *started) {
  int64_t n = length(&s->layer[l], grad);
  double *x = zeros(n), *all = zeros(n), *mine = zeros(n), W = 0;
  bool ema = strcmp(o->calls, "ema") == 0, last = strcmp(o->calls, "last") == 0;
  bool first = strcmp(o->stat_start, "first") == 0;
  double rho = !*started && first ? 0 : o->stat_decay;
  for (int32_t r = 0; r < s->ranks; r++) {
    double w = 0;
    memcpy(mine, m, (size_t)n * sizeof *mine);
    if (!ema) memset(mine, 0, (size_t)n * sizeof *mine);
    for (int32_t c = 0; c < s->calls[t][r]; c++) {
      const scene_micro *k = &s->micro[t][r][c];
      for (int32_t u = 0; u < s->uses[l]; u++) {
        /* gradients come in the opposite order of inputs; `last` sees the difference */
        int32_t use = grad ? s->uses[l] - 1 - u : u;
        if (k->a[l][use] == NULL) continue; /* not shown in this one */
        int64_t take = o->stat_batch > 0 && o->stat_batch < k->batch.samples ? o->stat_batch
                                                                             : k->batch.samples;
        double v = strcmp(o->call_weight, "equal") == 0 ? 1 : (double)take;
        fresh(o, &s->layer[l], &k->batch, grad, s->positions[l], grad ? k->g[l][use] : k->a[l][use],
              take, x);
        double old = !ema ? (last ? 0 : 1) : w > 0 || *started || !first ? o->stat_decay : 0;
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

/* P of one group by elimination; returns (alpha beta + lambda) / lambda.  g NULL: I for g g'. */
static double solve_dense(int64_t q, int64_t p, const double *a, const double *g, double lambda,
                          const double *D, double *P) {
  if (g == NULL) { /* a row is a group of its own, with g = 1 */
    double one = 1, c = 1;
    for (int64_t i = 0; i < q; i++)
      c = fmax(c, solve_dense(1, p, a, &one, lambda, D + i * p, P + i * p));
    return c;
  }
  int64_t n = q * p;
  if (n > 256) { /* too large to be dense: the same by Sherman and Morrison */
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
  oracle_solve(n, M, 1, P);
  free(M);
  return (trace + lambda) / lambda;
}

void r1_predict(const scene *s, const ng_options *opt, scene_result *out) {
  ng_options o = *opt;
  double *m[SCENE_LAYERS][2];
  bool started[SCENE_LAYERS][2] = {{false}};
  memset(out, 0, sizeof *out);
  for (int32_t l = 0; l < s->layers; l++) {
    for (int k = 0; k < 2; k++)
      m[l][k] = zeros(length(&s->layer[l], k == 1));
  }
  for (int32_t t = 0; t < s->steps; t++) {
    double d2 = 0, pd2 = 0;
    if (s->damping[t] > 0) o.damping = s->damping[t];
    for (int32_t l = 0; l < s->layers; l++) {
      const ng_layer *d = &s->layer[l];
      int64_t groups = groups_of(d), q = oracle_rows(d) / groups, p = oracle_cols(d), n = q * p;
      const double *D = s->D[t][l];
      double *P = out->P[t][l] = zeros(groups * n);
      memcpy(P, D, (size_t)(groups * n) * sizeof *P);
      out->condition[t][l] = 1;
      if (d->frozen) continue;
      for (int k = 0; k < 2 && t % o.stat_period == 0 && strcmp(o.sides, "none") != 0; k++)
        average(s, &o, t, l, k == 1, m[l][k], &started[l][k]);
      for (int64_t g = 0; g < groups; g++) {
        /* AdaSGD: no vectors, so zero ones, and the squared norm of the layer's gradient beside */
        const double *side = strcmp(o.sides, "input") == 0 ? NULL : m[l][1] + g * q;
        double lambda = o.damping;
        for (int64_t i = 0; i < groups * n && strcmp(o.sides, "none") == 0; i++)
          lambda += D[i] * D[i];
        double c = solve_dense(q, p, m[l][0] + g * p, side, lambda, D + g * n, P + g * n);
        out->condition[t][l] = fmax(out->condition[t][l], c);
      }
      for (int64_t i = 0; i < groups * n; i++) {
        out->inner[t] += P[i] * D[i];
        d2 += D[i] * D[i];
        pd2 += P[i] * P[i];
      }
    }
    double v = 0.1 * 0.1 * out->inner[t];
    out->nu[t] = 1;
    if (strcmp(o.clip, "kl") == 0 && v > 0) out->nu[t] = fmin(1, sqrt(o.kl_clip / v));
    if (strcmp(o.clip, "rescale") == 0 && pd2 > 0) out->nu[t] = sqrt(d2 / pd2);
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < scene_weights(s, l) && !s->layer[l].frozen; i++)
        out->P[t][l][i] *= out->nu[t];
    }
  }
  for (int32_t l = 0; l < s->layers; l++) {
    free(m[l][0]);
    free(m[l][1]);
  }
}
