/* norm_oracle.c: see norm_oracle.h. */
#include "norm_oracle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static double *zeros(int64_t n) { return scene_room(sizeof(double) * (size_t)n); }

static int64_t norm_width(const ng_layer *l) { return oracle_cols(l) * l->in; }

/* ---- one micro-batch -------------------------------------------------------------------------*/

/* Which mean and variance element (i, s, c) has: they are counted through. */
static int64_t set_of(const ng_layer *l, int64_t S, int64_t i, int64_t s, int64_t c) {
  if (l->norm_kind == NG_LAYER_NORM) return i * S + s;
  if (l->norm_kind == NG_GROUP_NORM) return i * l->groups + c / (l->in / l->groups);
  return c;
}

/* h [B, S, C]: what gamma multiplies. */
static double *normalised(const ng_layer *l, int64_t B, int64_t S, const double *a) {
  const int64_t C = l->in, n = B * S * C, sets = B * S + B * l->groups + C;
  double *h = zeros(n), *mean = zeros(sets), *var = zeros(sets), *count = zeros(sets);
  for (int pass = 0; pass < 3; pass++) {
    for (int64_t k = 0; k < n; k++) {
      const int64_t set = set_of(l, S, k / C / S, k / C % S, k % C);
      const double off = a[k] - mean[set] / fmax(1, count[set]);
      if (pass == 1) var[set] += off * off;
      if (pass == 2) h[k] = off / sqrt(var[set] / count[set] + l->norm_eps);
    }
    for (int64_t k = 0; k < n && pass == 0; k++) {
      const int64_t set = set_of(l, S, k / C / S, k / C % S, k % C);
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

static void norm_add(const ng_layer *l, const ng_batch *b, int64_t positions, const double *a,
                     const double *g, int64_t take, double weight, double *F) {
  const int64_t C = l->in, w = norm_width(l);
  const double by = (b->reduction == NG_MEAN ? (double)b->samples : 1) / b->loss_scale;
  double *h = normalised(l, b->samples, positions, a), *q = zeros(w);
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

static bool keeps(const ng_layer *l, const char *block, int64_t r, int64_t c) {
  return r == c || strcmp(block, "full") == 0 ||
         (strcmp(block, "unit") == 0 && r % l->in == c % l->in);
}

static double norm_solve(const ng_layer *l, const char *block, const double *F, double d,
                         double *x) {
  const int64_t w = norm_width(l);
  double *M = zeros(w * w), trace = 0;
  for (int64_t k = 0; k < w * w; k++) {
    const bool diagonal = k / w == k % w;
    M[k] = (keeps(l, block, k / w, k % w) ? F[k] : 0) + (diagonal ? d : 0);
    trace += diagonal ? F[k] : 0;
  }
  oracle_solve(w, M, 1, x);
  free(M);
  return (trace + d) / d;
}

/* ---- a scene ---------------------------------------------------------------------------------*/

/* Of images [B, C, HW] as [B, S, C]. */
static double *rows_of(const scene *s, int32_t l, int64_t B, const double *v) {
  const int64_t C = s->layer[l].in, S = s->positions[l], n = B * S * C;
  double *x = zeros(n);
  for (int64_t k = 0; k < n; k++) {
    const int64_t from = k / (S * C) * S * C + k % C * S + k / C % S;
    x[k] = v[scene_images(&s->layer[l]) ? from : k];
  }
  return x;
}

/* F <- rho (F + left / ranks I) + (1 - rho) fresh, the first as it is.  `left`: damping_leak of the steps since
 * the last fold. */
static void average(const scene *s, const ng_options *o, int32_t t, int32_t l, double *F,
                    bool *started, double *left) {
  const ng_layer *d = &s->layer[l];
  const int64_t w = norm_width(d);
  double *fresh = zeros(w * w), total = 0;
  for (int32_t r = 0; r < s->ranks; r++) {
    for (int32_t c = 0; c < s->calls[t][r]; c++) {
      const scene_micro *m = &s->micro[t][r][c];
      const int64_t B = m->batch.samples,
                    take = o->stat_batch > 0 && o->stat_batch < B ? o->stat_batch : B;
      for (int32_t u = 0; u < s->uses[l]; u++) {
        double *a = rows_of(s, l, B, m->a[l][u]), *g = rows_of(s, l, B, m->g[l][u]);
        norm_add(d, &m->batch, s->positions[l], a, g, take, 1, fresh);
        total += (double)take;
        free(a);
        free(g);
      }
    }
  }
  const double rho = *started ? o->stat_decay : 0;
  const bool all = strcmp(o->leak_ranks, "all") == 0 || strcmp(o->statistics, "owner") == 0;
  for (int64_t i = 0; i < w; i++)
    F[i * w + i] += *left / (all ? 1 : s->ranks);
  *left = 0;
  for (int64_t k = 0; k < w * w && total > 0; k++)
    F[k] = rho * F[k] + (1 - rho) * fresh[k] / total;
  *started = *started || total > 0;
  free(fresh);
}

/* Of a norm, D [C, gamma beta] is x of norm_solve. */
static double precondition(const scene *s, const ng_options *o, int32_t l, const double *F,
                           double damping, const double *D, double *P) {
  const ng_layer *d = &s->layer[l];
  const int64_t w = norm_width(d), C = d->in, p = oracle_cols(d);
  double *x = zeros(w);
  for (int64_t k = 0; k < w; k++)
    x[k] = D[k % C * p + k / C];
  const double condition = norm_solve(d, o->norm_block, F, damping, x);
  for (int64_t k = 0; k < w; k++)
    P[k % C * p + k / C] = x[k];
  free(x);
  return condition;
}

static double clip_of(const ng_options *o, double inner, double d2, double pd2) {
  if (strcmp(o->clip, "kl") == 0 && inner != 0)
    return fmin(1, sqrt(o->kl_clip / fabs(0.1 * 0.1 * inner)));
  if (strcmp(o->clip, "rescale") == 0 && pd2 > 0) return sqrt(d2 / pd2);
  return 1;
}

void norm_predict(const scene *s, const ng_options *opt,
                  void (*others)(const scene *s, const ng_options *opt, scene_result *out),
                  scene_result *out) {
  scene rest = *s;
  ng_options o = *opt;
  double *F[SCENE_LAYERS] = {NULL}, left[SCENE_LAYERS] = {0};
  bool started[SCENE_LAYERS] = {false};
  if (strcmp(o.stat_start, "first") != 0 || strcmp(o.calls, "mean") != 0 ||
      strcmp(o.call_weight, "samples") != 0)
    fail_msg("norm_predict: stat_start %s, calls %s", o.stat_start, o.calls);
  for (int32_t l = 0; l < s->layers; l++) {
    if (s->layer[l].kind != NG_NORM || s->layer[l].frozen) continue;
    rest.layer[l].frozen = 1;
    F[l] = zeros(norm_width(&s->layer[l]) * norm_width(&s->layer[l]));
  }
  fixture_set(&o, "clip", "none");
  others(&rest, &o, out);
  for (int32_t t = 0; t < s->steps; t++) {
    double inner = 0, d2 = 0, pd2 = 0;
    if (s->damping[t] > 0) o.damping = s->damping[t];
    for (int32_t l = 0; l < s->layers; l++) {
      const int64_t n = scene_weights(s, l);
      const double *D = s->D[t][l];
      double *P = out->P[t][l];
      if (s->layer[l].frozen) continue;
      if (F[l] != NULL) {
        const bool folds = t % o.stat_period == 0;
        const bool adds = o.damping_leak && (folds || strcmp(o.norm_block, "full") == 0);
        if (folds) average(s, &o, t, l, F[l], &started[l], &left[l]);
        const double lambda = o.damping * o.norm_damping;
        const double on = !o.damping_leak ? lambda : adds ? left[l] + lambda : left[l];
        out->condition[t][l] = precondition(s, &o, l, F[l], on, D, P);
        if (adds) left[l] += lambda;
      }
      for (int64_t i = 0; i < n; i++) {
        inner += D[i] * P[i];
        d2 += D[i] * D[i];
        pd2 += P[i] * P[i];
      }
    }
    out->inner[t] = inner;
    out->nu[t] = clip_of(opt, inner, d2, pd2);
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < scene_weights(s, l) && !s->layer[l].frozen; i++)
        out->P[t][l][i] *= out->nu[t];
    }
  }
  for (int32_t l = 0; l < s->layers; l++)
    free(F[l]);
}
