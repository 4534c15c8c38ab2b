/* window_oracle.c: see window_oracle.h. */
#include "window_oracle.h"

#include "family/family.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *zeros(int64_t n) { return scene_room(sizeof(double) * (size_t)n); }

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }

window_oracle *window_oracle_open(const ng_options *o, int32_t parameters, const int64_t *size,
                                  const int64_t *rows) {
  window_oracle *k = scene_room(sizeof *k);
  const bool each = strcmp(o->window_scope, "parameter") == 0;
  k->o = *o;
  k->parameters = parameters;
  k->parts = each ? parameters : 1;
  for (int32_t i = 0; i < parameters; i++) {
    k->size[i] = size[i];
    k->rows[i] = rows[i];
    k->d += size[i];
    k->part[each ? i + 1 : 1] = k->d;
  }
  k->G = zeros(o->window * k->d);
  k->v = zeros(k->d);
  k->e = zeros(k->d);
  k->s = zeros(k->d);
  return k;
}

void window_oracle_close(window_oracle **at) {
  window_oracle *k = *at;
  for (int32_t i = 0; i < WINDOW_PARTS; i++)
    free(k->q[i]);
  free(k->G);
  free(k->v);
  free(k->e);
  free(k->s);
  free(k->mask);
  free(k);
  *at = NULL;
}

/* ---- what enters -----------------------------------------------------------------------------*/

static double to_bf16(double x) {
  int e;
  if (x == 0) return 0;
  (void)frexp(x, &e);
  return ldexp(nearbyint(ldexp(x, 8 - e)), e - 8);
}

static bool is_out(const window_oracle *k, int64_t i) { return k->out != NULL && k->out[i]; }

/* What top-k sends of a, in place; e is the rest.  The largest first, of equal ones the first. */
static void send_largest(window_oracle *k, double *a, int64_t from, int64_t n, int64_t count) {
  bool *sent = scene_room((size_t)n);
  for (int64_t c = 0; c < count; c++) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
      if (!sent[i] && (best < 0 || fabs(a[from + i]) > fabs(a[from + best]))) best = i;
    }
    sent[best] = true;
  }
  for (int64_t i = from; i < from + n; i++) {
    const double x = !sent[i - from] ? 0 : is(k->o.window_dtype, "bf16") ? to_bf16(a[i]) : a[i];
    if (!is_out(k, i)) k->e[i] = a[i] - x;
    a[i] = x;
  }
  free(sent);
}

static void send_topk(window_oracle *k, double *a) {
  const char *mode = k->o.window_topk;
  const int32_t n = is(mode, "layer") ? k->parameters : k->parts;
  int64_t from = 0;
  for (int32_t i = 0; i < n; i++) { /* a block is larger than all of a test's parameters */
    const int64_t size = is(mode, "layer") ? k->size[i] : k->part[i + 1] - k->part[i];
    int64_t some = 0; /* that take part */
    for (int64_t c = from; c < from + size; c++)
      some += (k->mask == NULL || k->mask[c]) && !is_out(k, c);
    const double part = k->o.window_density;
    const double count = part > 1 ? fmin(part, (double)some) : part * (double)some;
    const int64_t c = (int64_t)(is(mode, "block") ? ceil(count) : floor(count));
    send_largest(k, a, from, size, c < 1 ? 1 : c);
    from += size;
  }
}

/* P of a Q by Gram and Schmidt, Q = a' P, what is sent P Q'. */
static void send_factors(window_oracle *k, double *a, int32_t p, int64_t from) {
  const int64_t r = k->rows[p], c = k->size[p] / r;
  int64_t rank = k->o.window_rank < r ? k->o.window_rank : r;
  if (rank > c) rank = c;
  if (r == 1 || is_out(k, from)) return;
  double *P = zeros(r * rank), *Q = k->q[p], *x = a + from;
  for (int64_t j = 0; j < rank; j++) {
    for (int64_t i = 0; i < r * c; i++)
      P[i / c * rank + j] += x[i] * Q[i % c * rank + j];
    for (int64_t l = 0; l < j; l++) {
      double along = 0;
      for (int64_t i = 0; i < r; i++)
        along += P[i * rank + l] * P[i * rank + j];
      for (int64_t i = 0; i < r; i++)
        P[i * rank + j] -= along * P[i * rank + l];
    }
    double norm = 0;
    for (int64_t i = 0; i < r; i++)
      norm += P[i * rank + j] * P[i * rank + j];
    for (int64_t i = 0; i < r; i++)
      P[i * rank + j] /= sqrt(norm) + 1e-8;
  }
  memset(Q, 0, sizeof *Q * (size_t)(c * rank));
  for (int64_t i = 0; i < r * c; i++) {
    for (int64_t j = 0; j < rank; j++)
      Q[i % c * rank + j] += x[i] * P[i / c * rank + j];
  }
  for (int64_t i = 0; i < r * c; i++) {
    double y = 0;
    for (int64_t j = 0; j < rank; j++)
      y += P[i / c * rank + j] * Q[i % c * rank + j];
    k->e[from + i] = x[i] - y;
    x[i] = y;
  }
  free(P);
}

/* a <- what is sent of e + by a. */
static void send(window_oracle *k, double by, double *a) {
  const bool topk = is(k->o.window_store, "topk");
  if (is(k->o.window_store, "dense")) return;
  for (int64_t i = 0; i < k->d; i++)
    a[i] = is_out(k, i) ? 0 : k->e[i] + by * a[i];
  if (topk) send_topk(k, a);
  for (int32_t p = 0, at = 0; p < k->parameters && !topk; at += (int32_t)k->size[p++])
    send_factors(k, a, p, at);
}

static void push(window_oracle *k, const double *x) {
  const int64_t m = k->o.window;
  if (k->count == m) {
    memmove(k->G, k->G + k->d, sizeof(double) * (size_t)((m - 1) * k->d));
    k->count--;
  }
  memcpy(k->G + k->count * k->d, x, sizeof(double) * (size_t)k->d);
  k->count++;
}

/* ---- functions -------------------------------------------------------------------------------*/

/* The same for many unknowns, by the published recursion (M-FAC's static algorithm):
 * F_i^-1 = F_{i-1}^-1 - V_i V_i' / q_i, V_i = F_{i-1}^-1 g_i, q_i = M + g_i'V_i, F_0 = lambda I. */
static void recursion(const window_oracle *k, int64_t from, int64_t n, double M, double *x) {
  double *V = zeros((k->count + 1) * n), *q = zeros(k->count + 1);
  for (int64_t i = 0; i <= k->count; i++) { /* the last is x itself */
    const double *g = i < k->count ? k->G + i * k->d + from : x;
    double *v = V + i * n;
    for (int64_t c = 0; c < n; c++)
      v[c] = g[c] / k->o.damping;
    for (int64_t j = 0; j < i; j++) {
      double along = 0;
      for (int64_t c = 0; c < n; c++)
        along += V[j * n + c] * g[c];
      for (int64_t c = 0; c < n; c++)
        v[c] -= along / q[j] * V[j * n + c];
    }
    q[i] = M;
    for (int64_t c = 0; c < n; c++)
      q[i] += v[c] * g[c];
  }
  memcpy(x, V + k->count * n, sizeof *x * (size_t)n);
  free(V);
  free(q);
}

static void mfac(const window_oracle *k, int64_t from, int64_t n, double *x) {
  const double M = is(k->o.window_divisor, "filled") ? (double)k->count : (double)k->o.window;
  if (n > 100) {
    recursion(k, from, n, M, x);
    return;
  }
  double *F = zeros(n * n);
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t r = 0; r < k->count; r++)
        sum += k->G[r * k->d + from + i] * k->G[r * k->d + from + j];
      F[i * n + j] = (i == j ? k->o.damping : 0) + (k->count > 0 ? sum / M : 0);
    }
  }
  oracle_solve(n, F, 1, x);
  free(F);
}

static void ggt(const window_oracle *k, int64_t from, int64_t n, double *x) {
  const int64_t r = k->count;
  const double eps = k->o.damping;
  double *M = zeros(r * r), *V = zeros(r * r), *d = zeros(r), *u = zeros(n), *out = zeros(n);
  const double *G = k->G + from;
  for (int64_t i = 0; i < r; i++) {
    for (int64_t j = 0; j < r; j++) {
      const double age = pow(k->o.window_forget, (double)(r - 1 - i)) *
                         pow(k->o.window_forget, (double)(r - 1 - j));
      for (int64_t c = 0; c < n; c++)
        M[i * r + j] += age * G[i * k->d + c] * G[j * k->d + c];
      M[i * r + j] += i == j ? 1e-6 : 0;
    }
  }
  oracle_eigen(r, M, d, V);
  for (int64_t c = 0; c < n; c++)
    out[c] = x[c] / eps;
  for (int64_t q = 0; q < r; q++) {
    const double sigma = sqrt(d[q]);
    double along = 0;
    for (int64_t c = 0; c < n; c++) {
      u[c] = 0;
      for (int64_t i = 0; i < r; i++)
        u[c] += G[i * k->d + c] * V[i * r + q] / sigma;
      along += u[c] * x[c];
    }
    for (int64_t c = 0; c < n; c++)
      out[c] += u[c] * (1 / (sigma + eps) - 1 / eps) * along;
  }
  memcpy(x, out, sizeof(double) * (size_t)n);
  free(M);
  free(V);
  free(d);
  free(u);
  free(out);
}

/* x is what enters instead of the gradient; u what leaves of what was sent of it. */
static bool first_order(window_oracle *k, double lr, double *x, double *u) {
  const char *f = k->o.window_function;
  const double mu = k->o.window_momentum, b2 = k->o.window_forget, eps = k->o.damping;
  const bool adam = is(f, "adam"), heavy = is(k->o.window_momentum_form, "heavy-ball");
  const bool dense = is(k->o.window_store, "dense"); /* sends all, and so no lr is in it */
  const double by = k->o.window_feedback_lr && !dense ? lr : 1;
  if (!adam && !is(f, "step") && !is(f, "adagrad")) return false;
  k->updates++;
  for (int64_t i = 0; i < k->d; i++) {
    const double g = x[i];
    if (is(f, "adagrad") || is_out(k, i)) continue;
    x[i] = k->v[i] = mu * k->v[i] + (heavy ? 1 : 1 - mu) * g;
    if (!adam) continue;
    k->s[i] = b2 * k->s[i] + (1 - b2) * g * g;
    x[i] /= (1 - pow(mu, k->updates)) * (sqrt(k->s[i] / (1 - pow(b2, k->updates))) + eps);
  }
  if (by > 0) send(k, by, x);
  for (int64_t i = 0; i < k->d; i++) {
    if (by == 0) x[i] = 0;
    if (is(f, "adagrad")) k->s[i] += x[i] * x[i];
    u[i] = is(f, "adagrad") ? x[i] / (sqrt(k->s[i]) + eps) : x[i] / (by > 0 ? by : 1);
  }
  return true;
}

/* ---- a step ----------------------------------------------------------------------------------*/

void window_oracle_step(window_oracle *k, const double *g, const double *w, double lr, bool enters,
                        double *u) {
  const double mu = k->o.window_momentum, decay = k->o.window_decay;
  const char *form = k->o.window_momentum_form;
  double *x = zeros(k->d), *y = zeros(k->d); /* y: what is added to the direction */
  for (int64_t i = 0; i < k->d; i++) {
    const bool l2 = decay > 0 && is(k->o.window_decay_form, "gradient");
    x[i] = (k->mask != NULL && !k->mask[i]) || is_out(k, i) ? 0 : g[i] + (l2 ? decay * w[i] : 0);
    if (enters && is(k->o.window_store, "dense") && is(k->o.window_dtype, "bf16"))
      x[i] = to_bf16(x[i]);
    y[i] = x[i];
  }
  if (first_order(k, lr, x, u)) {
    free(x);
    free(y);
    return;
  }
  if (enters && k->lr > 0 && lr <= k->o.window_empty * k->lr) k->count = 0;
  if (enters) k->lr = lr;
  const bool filling = enters && k->count < k->o.window;
  if (enters) send(k, k->o.window_feedback_lr ? lr : 1, x);
  if (enters) push(k, x);
  for (int64_t i = 0; i < k->d; i++)
    y[i] = (enters && is(k->o.window_fill, "added")) || (filling && is(k->o.window_fill, "rest"))
               ? (y[i] - x[i]) / k->o.damping
               : 0;
  for (int64_t i = 0; i < k->d && mu > 0 && is(form, "gradient"); i++)
    if (!is_out(k, i)) x[i] = k->v[i] = mu * k->v[i] + (1 - mu) * x[i];
  memcpy(u, x, sizeof(double) * (size_t)k->d);
  for (int32_t p = 0; p < k->parts; p++) {
    const int64_t from = k->part[p], n = k->part[p + 1] - from;
    if (is(k->o.window_function, "mfac")) {
      mfac(k, from, n, u + from);
    } else {
      ggt(k, from, n, u + from);
    }
  }
  for (int64_t i = 0; i < k->d; i++) {
    if (is_out(k, i)) continue;
    u[i] += y[i];
    if (decay > 0 && is(k->o.window_decay_form, "direction")) u[i] += decay / k->o.damping * w[i];
    const bool fills = u[i] == 0 && filling && (k->mask == NULL || k->mask[i]);
    if (fills && is(k->o.window_fill, "gradient")) u[i] = g[i];
    if (fills && is(k->o.window_fill, "error")) {
      u[i] = k->e[i];
      k->e[i] = 0;
    }
    if (mu > 0 && !is(form, "gradient"))
      u[i] = k->v[i] = mu * k->v[i] + (is(form, "average") ? 1 - mu : 1) * u[i];
  }
  free(x);
  free(y);
}

/* ---- a scene ---------------------------------------------------------------------------------*/

/* Entry i of layer l's D (a bias is its last column) in flat order: weights, then biases. */
static int64_t flat(const scene *s, int32_t l, int64_t i) {
  const int64_t p = oracle_cols(&s->layer[l]), q = oracle_rows(&s->layer[l]);
  if (!s->layer[l].bias) return i;
  return i % p == p - 1 ? q * (p - 1) + i / p : i / p * (p - 1) + i % p;
}

void window_predict(const scene *s, const ng_options *o, scene_result *out) {
  int64_t size[WINDOW_PARTS], rows[WINDOW_PARTS], at[SCENE_LAYERS], d = 0;
  int32_t n = 0;
  memset(out, 0, sizeof *out);
  for (int32_t l = 0; l < s->layers; l++) {
    const int64_t q = oracle_rows(&s->layer[l]), all = scene_weights(s, l);
    at[l] = d;
    if (s->layer[l].frozen) continue;
    rows[n] = q;
    size[n++] = s->layer[l].bias ? all - q : all;
    if (s->layer[l].bias) {
      rows[n] = 1;
      size[n++] = q;
    }
    d += all;
  }
  window_oracle *k = window_oracle_open(o, n, size, rows);
  double *g = zeros(d), *u = zeros(d);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < scene_weights(s, l) && !s->layer[l].frozen; i++)
        g[at[l] + flat(s, l, i)] = s->D[t][l][i];
    }
    if (s->damping[t] > 0) k->o.damping = s->damping[t];
    window_oracle_step(k, g, NULL, 0.1, t % o->stat_period == 0, u);
    for (int64_t i = 0; i < d; i++)
      out->inner[t] += g[i] * u[i];
    out->nu[t] = 1;
    if (is(o->clip, "kl")) out->nu[t] = fmin(1, sqrt(o->kl_clip / (0.01 * fabs(out->inner[t]))));
    for (int32_t l = 0; l < s->layers; l++) {
      const int64_t all = scene_weights(s, l);
      double *P = out->P[t][l] = zeros(all);
      for (int64_t i = 0; i < all; i++)
        P[i] = s->layer[l].frozen ? s->D[t][l][i] : out->nu[t] * u[at[l] + flat(s, l, i)];
      out->condition[t][l] = 1;
    }
  }
  free(g);
  free(u);
  window_oracle_close(&k);
}

/* ---- inside the library ----------------------------------------------------------------------*/

typedef struct wanted {
  const char *name;
  void *data;
} wanted;

static ng_status look(void *arg, ng_field *f) {
  wanted *w = arg;
  if (strcmp(f->name, w->name) == 0) w->data = f->data;
  return NG_OK;
}

float *window_field(const fixture *f, const char *name) {
  wanted w = {name, NULL};
  ng_block *b = f->p->block[0];
  assert_int_equal(b->family->fields(b, look, &w), NG_OK);
  assert_non_null(w.data);
  return w.data;
}
