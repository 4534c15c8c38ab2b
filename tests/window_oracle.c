/* window_oracle.c: see window_oracle.h. */
#include "window_oracle.h"

#include "family/family.h"
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static wide *wides(int64_t n) { return must_calloc(sizeof(wide) * (size_t)n); }

/* ---- inside the library ----------------------------------------------------------------------*/

typedef struct wanted {
  const char *name;
  void *data;
} wanted;

static void find_field(void *arg, ng_field *f) {
  wanted *w = arg;
  if (strcmp(f->name, w->name) == 0) w->data = f->data;
}

float *window_field(const fixture *f, const char *name) {
  wanted w = {name, NULL};
  ng_block *b = f->p->block[0];
  b->family->visit_fields(b, find_field, &w);
  assert_non_null(w.data);
  return w.data;
}

/* ---- open, close -----------------------------------------------------------------------------*/

static void append_parameter(window_oracle *k, int64_t size, int64_t rows) {
  const bool each = k->o.base.window_scope == NG_WINDOW_PARAMETER;
  k->size[k->parameters] = size;
  k->rows[k->parameters++] = rows;
  k->parts = each ? k->parameters : 1;
  k->d += size;
  k->begin[k->parts] = k->d;
}

static void alloc_arrays(window_oracle *k) {
  k->G = wides(k->o.base.window * k->d);
  k->v = zeros(k->d);
  k->e = zeros(k->d);
  k->s = zeros(k->d);
}

static int64_t window_rank(const window_oracle *k, int32_t p) {
  const int64_t rows = k->rows[p], cols = k->size[p] / rows, least = rows < cols ? rows : cols;
  return k->o.base.window_rank < least ? k->o.base.window_rank : least;
}

/* Return the floats of parameter p in one place of the low-rank store: P and Q, or the whole vector. */
static int64_t place_floats(const window_oracle *k, int32_t p) {
  const int64_t rows = k->rows[p];
  return rows == 1 ? k->size[p] : window_rank(k, p) * (rows + k->size[p] / rows);
}

/* The first Q is in the free place after the window. */
static void copy_q(window_oracle *k, const fixture *f) {
  const float *at = window_field(f, "factors");
  int64_t place = 0;
  for (int32_t p = 0; p < k->parameters; p++)
    place += place_floats(k, p);
  at += k->o.base.window * place;
  for (int32_t p = 0; p < k->parameters; at += place_floats(k, p++)) {
    const int64_t rank = window_rank(k, p), cols = k->size[p] / k->rows[p];
    if (k->rows[p] == 1) continue;
    k->q[p] = zeros(cols * rank);
    for (int64_t i = 0; i < cols * rank; i++)
      k->q[p][i % cols * rank + i / cols] = (double)at[rank * k->rows[p] + i];
  }
}

window_oracle *window_oracle_open(const fixture *f, const ng_options *o, const fixture_entry *e,
                                  int32_t n, const float *w) {
  window_oracle *k = must_calloc(sizeof *k);
  k->o = *o;
  for (int32_t i = 0; i < n; i++) {
    append_parameter(k, e[i].rows * e[i].cols, e[i].rows);
    if (e[i].bias) append_parameter(k, e[i].rows, 1);
  }
  alloc_arrays(k);
  if (o->base.window_mask) k->mask = must_calloc((size_t)k->d * sizeof *k->mask);
  for (int64_t i = 0; i < k->d && o->base.window_mask; i++)
    k->mask[i] = w[i] != 0;
  if (o->base.window_store == NG_STORE_LOWRANK) copy_q(k, f);
  return k;
}

double window_gap(const float *got, const double *want, int64_t n) {
  double gap = 0, most = 0;
  for (int64_t i = 0; i < n; i++) {
    const double e = fabs((double)got[i] - want[i]);
    if (!isfinite(e)) return INFINITY;
    gap = fmax(gap, e);
    most = fmax(most, fabs(want[i]));
  }
  return most > 0 ? gap / most : gap;
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

/* ---- rows ------------------------------------------------------------------------------------*/

static double to_bf16(double x) {
  int e;
  if (x == 0) return 0;
  (void)frexp(x, &e);
  return ldexp(nearbyint(ldexp(x, 8 - e)), e - 8);
}

static bool is_excluded(const window_oracle *k, int64_t i) { return k->skip != NULL && k->skip[i]; }

/* Replace a by its top-k selection; e gets the difference.  Of equal magnitudes the first is selected. */
static void select_largest(window_oracle *k, double *a, int64_t from, int64_t n, int64_t count) {
  bool *sent = must_calloc((size_t)n);
  for (int64_t c = 0; c < count; c++) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
      if (!sent[i] && (best < 0 || fabs(a[from + i]) > fabs(a[from + best]))) best = i;
    }
    sent[best] = true;
  }
  for (int64_t i = from; i < from + n; i++) {
    const double x = !sent[i - from] ? 0 : k->o.base.window_dtype == NG_BF16 ? to_bf16(a[i]) : a[i];
    if (!is_excluded(k, i)) k->e[i] = a[i] - x;
    a[i] = x;
  }
  free(sent);
}

static void compress_topk(window_oracle *k, double *a) {
  const ng_store_kind mode = k->o.base.window_store;
  const int32_t n = mode == NG_STORE_TOPK_LAYER ? k->parameters : k->parts;
  int64_t from = 0;
  for (int32_t i = 0; i < n; i++) { /* with topk-block, only one block */
    const int64_t size = mode == NG_STORE_TOPK_LAYER ? k->size[i] : k->begin[i + 1] - k->begin[i];
    int64_t some = 0; /* number of elements that are not excluded */
    for (int64_t c = from; c < from + size; c++)
      some += (k->mask == NULL || k->mask[c]) && !is_excluded(k, c);
    const double part = k->o.base.window_density;
    const double count = part > 1 ? fmin(part, (double)some) : part * (double)some;
    const int64_t c = (int64_t)(mode == NG_STORE_TOPK_BLOCK ? ceil(count) : floor(count));
    select_largest(k, a, from, size, c < 1 ? 1 : c);
    from += size;
  }
}

/* Of a parameter, which begins at a[from]: P = a Q, orthonormalised by Gram-Schmidt; Q = a' P; replace a by P Q'. */
static void compress_low_rank(window_oracle *k, double *a, int32_t parameter, int64_t from) {
  const int64_t r = k->rows[parameter], c = k->size[parameter] / r;
  const int64_t rank = window_rank(k, parameter);
  if (r == 1 || is_excluded(k, from)) return;
  double *P = zeros(r * rank), *Q = k->q[parameter], *x = a + from;
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

/* Replace a by the compressed e + by a. */
static void compress_row(window_oracle *k, double by, double *a) {
  const bool topk = k->o.base.window_store != NG_STORE_LOWRANK;
  if (k->o.base.window_store == NG_STORE_DENSE) return;
  for (int64_t i = 0; i < k->d; i++)
    a[i] = is_excluded(k, i) ? 0 : k->e[i] + by * a[i];
  if (topk) compress_topk(k, a);
  for (int32_t p = 0, at = 0; p < k->parameters && !topk; at += (int32_t)k->size[p++])
    compress_low_rank(k, a, p, at);
}

static void push_row(window_oracle *k, const double *x) {
  const int64_t m = k->o.base.window;
  if (k->count == m) {
    memmove(k->G, k->G + k->d, sizeof *k->G * (size_t)((m - 1) * k->d));
    k->count--;
  }
  for (int64_t i = 0; i < k->d; i++)
    k->G[k->count * k->d + i] = x[i];
  k->count++;
}

/* ---- functions -------------------------------------------------------------------------------*/

static wide root(wide x) {
  wide y = (wide)sqrt((double)x);
  for (int i = 0; i < 3 && y > 0; i++)
    y = (y + x / y) / 2;
  return y;
}

static wide wide_dot(const wide *x, const wide *y, int64_t n) {
  wide sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += x[i] * y[i];
  return sum;
}

wide wide_abs(wide x) { return x < 0 ? -x : x; }

void window_solve_mfac(const window_rows *r, wide lambda, wide M, wide *x) {
  const int64_t n = r->n;
  wide *V = wides((r->count + 1) * n), *q = wides(r->count + 1);
  for (int64_t i = 0; i <= r->count; i++) { /* the last row is x */
    const wide *g = i < r->count ? r->G + i * r->stride : x;
    wide *v = V + i * n;
    for (int64_t c = 0; c < n; c++)
      v[c] = g[c] / lambda;
    for (int64_t j = 0; j < i; j++) {
      const wide by = wide_dot(V + j * n, g, n) / q[j];
      for (int64_t c = 0; c < n; c++)
        v[c] -= by * V[j * n + c];
    }
    q[i] = M + wide_dot(v, g, n);
  }
  memcpy(x, V + r->count * n, (size_t)n * sizeof *x);
  free(V);
  free(q);
}

/* Jacobi rotations: A <- V'A V, diagonal. */
static void diagonalise(int64_t n, wide *A, wide *V) {
  for (int sweep = 0, turned = 1; sweep < 60 && turned > 0; sweep++) {
    turned = 0;
    for (int64_t pq = 0; pq < n * n; pq++) {
      const int64_t p = pq / n, q = pq % n;
      const wide pp = A[p * n + p], qq = A[q * n + q], off = A[pq];
      if (q <= p || wide_abs(off) <= (wide)1e-33 * root(wide_abs(pp)) * root(wide_abs(qq)))
        continue;
      const wide t0 = (qq - pp) / (2 * off);
      const wide t = (t0 < 0 ? -1 : 1) / (wide_abs(t0) + root(1 + t0 * t0));
      const wide c = 1 / root(1 + t * t), s = t * c;
      for (int64_t k = 0; k < n; k++) {
        const wide a = A[k * n + p], b = A[k * n + q];
        A[k * n + p] = c * a - s * b;
        A[k * n + q] = s * a + c * b;
      }
      for (int64_t k = 0; k < n; k++) {
        const wide a = A[p * n + k], b = A[q * n + k], v = V[k * n + p], w = V[k * n + q];
        A[p * n + k] = c * a - s * b;
        A[q * n + k] = s * a + c * b;
        V[k * n + p] = c * v - s * w;
        V[k * n + q] = s * v + c * w;
      }
      A[p * n + q] = A[q * n + p] = 0;
      turned++;
    }
  }
}

void window_solve_ggt(const window_rows *r, wide eps, wide forget, wide *x) {
  const int64_t m = r->count, n = r->n;
  wide *A = wides(m * m), *V = wides(m * m), *age = wides(m), *u = wides(n), *out = wides(n);
  for (int64_t i = m - 1; i >= 0; i--)
    age[i] = i == m - 1 ? 1 : age[i + 1] * forget;
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < m; j++)
      A[i * m + j] = age[i] * age[j] * wide_dot(r->G + i * r->stride, r->G + j * r->stride, n);
    A[i * m + i] += (wide)1e-6;
    V[i * m + i] = 1;
  }
  diagonalise(m, A, V);
  for (int64_t c = 0; c < n; c++)
    out[c] = x[c] / eps;
  for (int64_t k = 0; k < m; k++) {
    const wide sigma = root(A[k * m + k]);
    for (int64_t c = 0; c < n; c++) {
      u[c] = 0;
      for (int64_t i = 0; i < m; i++)
        u[c] += r->G[i * r->stride + c] * V[i * m + k] / sigma;
    }
    const wide by = wide_dot(u, x, n) * (1 / (sigma + eps) - 1 / eps);
    for (int64_t c = 0; c < n; c++)
      out[c] += by * u[c];
  }
  memcpy(x, out, (size_t)n * sizeof *x);
  free(A);
  free(V);
  free(age);
  free(u);
  free(out);
}

/* Replace u by the preconditioned u, in each part. */
static void apply_window(const window_oracle *k, double *u) {
  const bool filled = k->o.base.window_function == NG_WINDOW_MFAC_FILLED;
  wide *x = wides(k->d);
  for (int64_t i = 0; i < k->d; i++)
    x[i] = u[i];
  for (int32_t p = 0; p < k->parts; p++) {
    const int64_t from = k->begin[p];
    const window_rows r = {k->G + from, k->count, k->begin[p + 1] - from, k->d};
    if (filled || k->o.base.window_function == NG_WINDOW_MFAC) {
      window_solve_mfac(&r, k->o.base.damping, filled ? k->count : k->o.base.window, x + from);
    } else {
      window_solve_ggt(&r, k->o.base.damping, k->o.base.window_forget, x + from);
    }
  }
  for (int64_t i = 0; i < k->d; i++)
    u[i] = (double)x[i];
  free(x);
}

/* Compressed first-order methods: x is the row instead of the gradient, u the direction. */
static bool apply_first_order(window_oracle *k, double lr, double *x, double *u) {
  const ng_settings *o = &k->o.base;
  const ng_window_function f = o->window_function;
  const double mu = o->window_momentum, b2 = o->window_forget, eps = o->damping;
  const bool adam = f == NG_WINDOW_ADAM, heavy = o->window_momentum_form == NG_MOMENTUM_HEAVY_BALL;
  /* a dense store compresses nothing, so lr does not multiply the row */
  const bool dense = o->window_store == NG_STORE_DENSE;
  const double by = o->window_feedback_lr && !dense ? lr : 1;
  if (!adam && f != NG_WINDOW_STEP && f != NG_WINDOW_ADAGRAD) return false;
  k->updates++;
  for (int64_t i = 0; i < k->d; i++) {
    const double g = x[i];
    if (f == NG_WINDOW_ADAGRAD || is_excluded(k, i)) continue;
    x[i] = k->v[i] = mu * k->v[i] + (heavy ? 1 : 1 - mu) * g;
    if (!adam) continue;
    k->s[i] = b2 * k->s[i] + (1 - b2) * g * g;
    x[i] /= (1 - pow(mu, k->updates)) * (sqrt(k->s[i] / (1 - pow(b2, k->updates))) + eps);
  }
  if (by > 0) compress_row(k, by, x);
  for (int64_t i = 0; i < k->d; i++) {
    if (by == 0) x[i] = 0;
    if (f == NG_WINDOW_ADAGRAD) k->s[i] += x[i] * x[i];
    u[i] = f == NG_WINDOW_ADAGRAD ? x[i] / (sqrt(k->s[i]) + eps) : x[i] / (by > 0 ? by : 1);
  }
  return true;
}

/* ---- a step ----------------------------------------------------------------------------------*/

void window_oracle_step(window_oracle *k, const double *g, const double *w, double lr, bool enters,
                        double *u) {
  const ng_settings *o = &k->o.base;
  const double mu = o->window_momentum, decay = o->window_decay;
  const ng_momentum_form form = o->window_momentum_form;
  double *x = zeros(k->d), *y = zeros(k->d); /* y: added to the direction */
  for (int64_t i = 0; i < k->d; i++) {
    const bool l2 = decay > 0 && o->window_decay_form == NG_DECAY_GRADIENT;
    x[i] =
        (k->mask != NULL && !k->mask[i]) || is_excluded(k, i) ? 0 : g[i] + (l2 ? decay * w[i] : 0);
    if (enters && o->window_store == NG_STORE_DENSE && o->window_dtype == NG_BF16)
      x[i] = to_bf16(x[i]);
    y[i] = x[i];
  }
  if (apply_first_order(k, lr, x, u)) {
    free(x);
    free(y);
    return;
  }
  if (enters && k->lr > 0 && lr <= o->window_empty * k->lr) k->count = 0;
  if (enters) k->lr = lr;
  const bool filling = enters && k->count < o->window;
  if (enters) compress_row(k, o->window_feedback_lr ? lr : 1, x);
  if (enters) push_row(k, x);
  for (int64_t i = 0; i < k->d; i++)
    y[i] =
        (enters && o->window_fill == NG_FILL_ADDED) || (filling && o->window_fill == NG_FILL_REST)
            ? (y[i] - x[i]) / o->damping
            : 0;
  for (int64_t i = 0; i < k->d && mu > 0 && form == NG_MOMENTUM_GRADIENT; i++)
    if (!is_excluded(k, i)) x[i] = k->v[i] = mu * k->v[i] + (1 - mu) * x[i];
  memcpy(u, x, sizeof(double) * (size_t)k->d);
  apply_window(k, u);
  for (int64_t i = 0; i < k->d; i++) {
    if (is_excluded(k, i)) continue;
    u[i] += y[i];
    if (decay > 0 && o->window_decay_form == NG_DECAY_DIRECTION) u[i] += decay / o->damping * w[i];
    const bool fills = u[i] == 0 && filling && (k->mask == NULL || k->mask[i]);
    if (fills && o->window_fill == NG_FILL_GRADIENT) u[i] = g[i];
    if (fills && o->window_fill == NG_FILL_ERROR) {
      u[i] = k->e[i];
      k->e[i] = 0;
    }
    if (mu > 0 && form != NG_MOMENTUM_GRADIENT)
      u[i] = k->v[i] = mu * k->v[i] + (form == NG_MOMENTUM_AVERAGE ? 1 - mu : 1) * u[i];
  }
  free(x);
  free(y);
}

/* ---- a test case -----------------------------------------------------------------------------*/

/* Entry i of layer l's D (a bias is its last column) in flat order: weights, then biases. */
static int64_t flat_index(const test_case *s, int32_t l, int64_t i) {
  const int64_t p = oracle_columns(&s->layer[l]), q = s->layer[l].out;
  if (!s->layer[l].bias) return i;
  return i % p == p - 1 ? q * (p - 1) + i / p : i / p * (p - 1) + i % p;
}

void window_predict(const test_case *s, const ng_options *o, case_result *out) {
  int64_t at[CASE_LAYERS];
  window_oracle *k = must_calloc(sizeof *k);
  k->o = *o;
  memset(out, 0, sizeof *out);
  for (int32_t l = 0; l < s->layers; l++) {
    const int64_t q = s->layer[l].out, all = case_weight_count(s, l);
    at[l] = k->d;
    if (s->layer[l].frozen) continue;
    append_parameter(k, s->layer[l].bias ? all - q : all, q);
    if (s->layer[l].bias) append_parameter(k, q, 1);
  }
  alloc_arrays(k);
  const int64_t d = k->d;
  double *g = zeros(d), *u = zeros(d);
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      for (int64_t i = 0; i < case_weight_count(s, l) && !s->layer[l].frozen; i++)
        g[at[l] + flat_index(s, l, i)] = s->D[t][l][i];
    }
    if (s->damping[t] > 0) k->o.base.damping = s->damping[t];
    window_oracle_step(k, g, NULL, 0.1, t % o->base.stat_period == 0, u);
    for (int64_t i = 0; i < d; i++)
      out->inner[t] += g[i] * u[i];
    out->nu[t] = 1;
    if (o->base.clip == NG_CLIP_KL)
      out->nu[t] = fmin(1, sqrt(o->base.kl_clip / (0.01 * fabs(out->inner[t]))));
    for (int32_t l = 0; l < s->layers; l++) {
      const int64_t all = case_weight_count(s, l);
      double *P = out->P[t][l] = zeros(all);
      for (int64_t i = 0; i < all; i++)
        P[i] = s->layer[l].frozen ? s->D[t][l][i] : out->nu[t] * u[at[l] + flat_index(s, l, i)];
      out->condition[t][l] = 1;
    }
  }
  free(g);
  free(u);
  window_oracle_close(&k);
}
