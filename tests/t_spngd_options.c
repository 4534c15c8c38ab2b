/* t_spngd_options.c: the optimizer of chainerkfac in float64, option by option, against the library under the program's
 * own names: what recordings have one at a time, mixed, and what they have not: up to three ranks with several
 * micro-batches of different sizes, which count the same there, diagonals on several ranks, a loss scale with weight
 * decay, pi_type none with a memory, and rates that rise and fall with adjust_momentum. A convolution with a bias, a batch norm and a linear layer with a bias are shown
 * random inputs and output gradients; all that the optimizer sees of a network is those.
 *
 *     A = (1/n) sum x x', G = (1/(n T)) sum g g', F = (1/n) sum q q', g of the unscaled, unaveraged loss
 *     X <- r X + (1 - r) X_ema, the first as it is; what damping was added stays in X_ema (ema_leak)
 *     N = (G + sqrt(lam) / pi)^-1 V (A + pi sqrt(lam))^-1, of a norm (F + stab lam)^-1 V, V = grad + decay w
 *     v <- m v - lr N, w <- w + v; m times lr / lr_pre where lr has fallen (adjust_momentum)
 *
 * Tolerance: weights move by up to a half of their size, and what f32 loses in a solve of a condition of 100 is
 * 100 units of 2^-24 of that: 4e-6 of the largest weight.  Seen at most 1.1e-6 in 1,200 cases. */
#include "draw.h"
#include "fixture.h"
#include "ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 6, T = 4, C = 3, IN = 3, OUT = 2, STEPS = 4, RANKS = 3, ACC = 3, WIDE = 6 };
enum { CONV, NORM, FC, LAYERS };
static const double EPS = 2e-5;
/* Rows and columns of V: a norm is one row. */
static const int rows[LAYERS] = {2, 1, OUT}, cols[LAYERS] = {5, 2 * C, IN + 1};

/* What one rank is shown in one micro-batch: the gradient of the mean loss, times the loss scale. */
typedef struct shown {
  int n; /* samples, of N */
  float conv_x[N][9], conv_g[N][2][T], norm_x[N][C], norm_g[N][C], fc_x[N][IN], fc_g[N][OUT];
} shown;

typedef struct program {
  int32_t ranks;
  int acc;
  double r, damping, stab, scale, momentum, decay, lr[STEPS];
  bool leak, pi, adjust, diagonal[LAYERS], gather; /* gather: only_pic_update_weight is false */
  bool cholesky; /* false: the original inverts by LU, which changes no number but by rounding */
  shown see[RANKS][STEPS][ACC];
  float grad[STEPS][LAYERS][2 * WIDE], first[LAYERS][2 * WIDE]; /* summed over ranks; rows of V */
  float w[RANKS][STEPS][LAYERS][2 * WIDE];                      /* the library's, after each step */
} program;

/* ---- the oracle ------------------------------------------------------------------------------*/

typedef struct matrix {
  int n;
  double a[WIDE][WIDE];
} matrix;

static void add_outer(matrix *m, const double *x, double times) {
  for (int i = 0; i < m->n * m->n; i++)
    m->a[i / m->n][i % m->n] += times * x[i / m->n] * x[i % m->n];
}

/* A, G of convolution and linear layer, F of the norm in the place of A. */
static void add_factors(const program *p, const shown *s, matrix X[LAYERS][2], double times) {
  const double of = s->n, up = of / p->scale;
  for (int n = 0; n < s->n; n++) {
    for (int t = 0; t < T; t++) {
      const int at = t / 2 * 3 + t % 2;
      const double x[5] = {(double)s->conv_x[n][at], (double)s->conv_x[n][at + 1],
                           (double)s->conv_x[n][at + 3], (double)s->conv_x[n][at + 4], 1};
      const double g[2] = {up * (double)s->conv_g[n][0][t], up * (double)s->conv_g[n][1][t]};
      add_outer(&X[CONV][0], x, times / of);
      add_outer(&X[CONV][1], g, times / (of * T));
    }
    double x[IN + 1] = {0}, g[OUT], q[2 * C];
    for (int i = 0; i < IN; i++)
      x[i] = (double)s->fc_x[n][i];
    x[IN] = 1;
    for (int o = 0; o < OUT; o++)
      g[o] = up * (double)s->fc_g[n][o];
    for (int c = 0; c < C; c++) {
      double mean = 0, var = 0;
      for (int k = 0; k < s->n; k++)
        mean += (double)s->norm_x[k][c] / of;
      for (int k = 0; k < s->n; k++)
        var += pow((double)s->norm_x[k][c] - mean, 2) / of;
      q[C + c] = up * (double)s->norm_g[n][c];
      q[c] = q[C + c] * ((double)s->norm_x[n][c] - mean) / sqrt(var + EPS);
    }
    add_outer(&X[FC][0], x, times / of);
    add_outer(&X[FC][1], g, times / of);
    add_outer(&X[NORM][0], q, times / of);
  }
}

static void keep_diagonal(matrix *m) {
  for (int i = 0; i < m->n * m->n; i++) {
    if (i / m->n != i % m->n) m->a[i / m->n][i % m->n] = 0;
  }
}

static double mean_trace(const matrix *m) {
  double sum = 0;
  for (int i = 0; i < m->n; i++)
    sum += m->a[i][i] / m->n;
  return sum;
}

/* x <- (M + d)^-1 x by elimination; M is positive definite. x has a stride. */
static void solve(const matrix *m, double d, double *x, int stride) {
  matrix a = *m;
  for (int i = 0; i < a.n; i++)
    a.a[i][i] += d;
  for (int i = 0; i < a.n; i++) {
    for (int k = i + 1; k < a.n; k++) {
      const double f = a.a[k][i] / a.a[i][i];
      for (int j = i; j < a.n; j++)
        a.a[k][j] -= f * a.a[i][j];
      x[k * stride] -= f * x[i * stride];
    }
  }
  for (int i = a.n - 1; i >= 0; i--) {
    for (int j = i + 1; j < a.n; j++)
      x[i * stride] -= a.a[i][j] * x[j * stride];
    x[i * stride] /= a.a[i][i];
  }
}

/* The optimizer's state. */
typedef struct optimizer {
  matrix ema[LAYERS][2];
  double w[LAYERS][2 * WIDE], v[LAYERS][2 * WIDE];
} optimizer;

static void new_factors(const program *p, int step, matrix X[LAYERS][2]) {
  memset(X, 0, LAYERS * sizeof X[0]);
  for (int l = 0; l < LAYERS; l++) {
    X[l][0].n = cols[l];
    X[l][1].n = rows[l];
  }
  for (int r = 0; r < p->ranks; r++) {
    for (int k = 0; k < p->acc; k++)
      add_factors(p, &p->see[r][step][k], X, 1.0 / (p->ranks * p->acc));
  }
  if (p->diagonal[NORM]) keep_diagonal(&X[NORM][0]);
  if (p->diagonal[CONV]) keep_diagonal(&X[CONV][1]);
}

static void leave(const program *p, matrix *m, double d) {
  for (int i = 0; i < m->n && p->leak; i++)
    m->a[i][i] += d;
}

static void optimize(const program *p, optimizer *o, int step) {
  matrix X[LAYERS][2];
  const double lr = p->lr[step], before = p->lr[step > 0 ? step - 1 : 0];
  const double m = p->adjust && lr < before ? p->momentum * lr / before : p->momentum;
  new_factors(p, step, X);
  for (int l = 0; l < LAYERS; l++) {
    for (int k = 0; k < 2; k++) {
      matrix *e = &o->ema[l][k];
      const double r = step == 0 ? 1 : p->r;
      for (int i = 0; i < X[l][k].n * X[l][k].n; i++) {
        double *at = &e->a[i / X[l][k].n][i % X[l][k].n];
        *at = r * X[l][k].a[i / X[l][k].n][i % X[l][k].n] + (1 - r) * *at;
      }
      e->n = X[l][k].n;
    }
    double V[2 * WIDE];
    for (int i = 0; i < rows[l] * cols[l]; i++)
      V[i] = (double)p->grad[step][l][i] + p->decay * o->w[l][i];
    const double pi =
        p->pi && l != NORM ? sqrt(mean_trace(&o->ema[l][0]) / mean_trace(&o->ema[l][1])) : 1;
    const double on = l == NORM ? p->stab * p->damping : pi * sqrt(p->damping);
    for (int i = 0; i < rows[l]; i++)
      solve(&o->ema[l][0], on, V + i * cols[l], 1);
    for (int j = 0; j < cols[l] && l != NORM; j++)
      solve(&o->ema[l][1], sqrt(p->damping) / pi, V + j, cols[l]);
    leave(p, &o->ema[l][0], on);
    leave(p, &o->ema[l][1], sqrt(p->damping) / pi);
    for (int i = 0; i < rows[l] * cols[l]; i++) {
      o->v[l][i] = m * o->v[l][i] - lr * V[i];
      o->w[l][i] += o->v[l][i];
    }
  }
}

/* ---- the library -----------------------------------------------------------------------------*/

static ng_status options_of(const program *p, ng_options *o, char *message, size_t size) {
  char text[8][32];
  const char *const name[] = {
      "cov_ema_decay", "damping",   "stab_coeff",   "pi_type",
      "loss_scale",    "acc_iters", "use_cholesky", "only_pic_update_weight"};
  (void)snprintf(text[0], sizeof text[0], "%.17g", p->r);
  (void)snprintf(text[1], sizeof text[1], "%.17g", p->damping);
  (void)snprintf(text[2], sizeof text[2], "%.17g", p->stab);
  (void)snprintf(text[3], sizeof text[3], "%s", p->pi ? "tracenorm" : "none");
  (void)snprintf(text[4], sizeof text[4], "%.17g", p->scale);
  (void)snprintf(text[5], sizeof text[5], "%d", p->acc);
  (void)snprintf(text[6], sizeof text[6], "%s", p->cholesky ? "True" : "False");
  (void)snprintf(text[7], sizeof text[7], "%s", p->gather ? "false" : "true");
  ng_status st = ng_options_set_system(o, "chainerkfac", "spngd", message, size);
  for (int i = 0; i < 8 && st == NG_OK; i++)
    st = ng_options_set_published(o, name[i], text[i], NULL, message, size);
  if (st == NG_OK && !p->leak) st = ng_options_set(o, "damping_leak", "0", message, size);
  if (st == NG_OK) st = ng_options_set(o, "update", "sgd", message, size);
  if (st == NG_OK && !p->gather) st = ng_options_set(o, "update_ranks", "owner", message, size);
  return st;
}

/* Arrays that are bound: weight and bias apart, gamma and beta. */
typedef struct bound {
  float w[LAYERS][2][WIDE * 2], g[LAYERS][2][WIDE * 2];
} bound;

/* Entry i of V in its array: of a norm all gammas, then all betas; else a row of weights, then a bias. */
static float *entry(float a[2][WIDE * 2], int l, int i) {
  if (l == NORM) return &a[i / C][i % C];
  const int c = cols[l] - 1;
  return i % cols[l] == c ? &a[1][i / cols[l]] : &a[0][i / cols[l] * c + i % cols[l]];
}

static ng_status add_layers(const program *p, fixture *f, bound *b) {
  ng_layer l[LAYERS];
  ng_status st = NG_OK;
  ng_layer_init(&l[CONV], NG_CONV2D, sizeof *l);
  ng_layer_init(&l[NORM], NG_NORM, sizeof *l);
  ng_layer_init(&l[FC], NG_LINEAR, sizeof *l);
  static const char *const name[] = {"conv", "norm", "out"};
  static const int64_t in[] = {1, C, IN}, out[] = {2, C, OUT};
  l[CONV].kernel[0] = l[CONV].kernel[1] = 2;
  l[CONV].image[0] = l[CONV].image[1] = 3;
  l[NORM].norm_kind = NG_BATCH_NORM;
  l[NORM].norm_eps = EPS;
  for (int k = 0; k < LAYERS && st == NG_OK; k++) {
    l[k].name = name[k];
    l[k].in = in[k];
    if (k != NORM) l[k].out = out[k];
    l[k].bias = 1;
    if (p->diagonal[k]) l[k].options = k == NORM ? "norm_block=diagonal" : "output_factor=diagonal";
    int32_t index;
    st = ng_add_layer(f->p, &l[k], &index);
    const int64_t high = k == NORM ? 1 : rows[k], wide = k == NORM ? C : cols[k] - 1;
    for (int s = 0; s < 2 && st == NG_OK; s++) {
      const int64_t n = s == 0 ? wide : k == NORM ? C : rows[k];
      const ng_array g = ng_array_matrix(b->g[k][s], s == 0 ? high : 1, n, NG_F32),
                     w = ng_array_matrix(b->w[k][s], s == 0 ? high : 1, n, NG_F32);
      st = ng_bind_grad(f->p, index, (ng_param)s, &g);
      if (st == NG_OK) st = ng_bind_weight(f->p, index, (ng_param)s, &w);
    }
  }
  return st == NG_OK ? ng_ready(f->p) : st;
}

static ng_status show(const program *p, fixture *f, shown *s) {
  const ng_array a[LAYERS] = {ng_array_nchw(s->conv_x, s->n, 1, 3, 3, NG_F32),
                              ng_array_matrix(s->norm_x, s->n, C, NG_F32),
                              ng_array_matrix(s->fc_x, s->n, IN, NG_F32)},
                 g[LAYERS] = {ng_array_nchw(s->conv_g, s->n, 2, 2, 2, NG_F32),
                              ng_array_matrix(s->norm_g, s->n, C, NG_F32),
                              ng_array_matrix(s->fc_g, s->n, OUT, NG_F32)};
  ng_status st = ng_begin_samples(f->p, s->n, p->scale);
  for (int k = 0; k < LAYERS && st == NG_OK; k++)
    st = ng_observe_input(f->p, k, &a[k], NG_BORROW);
  for (int k = LAYERS - 1; k >= 0 && st == NG_OK; k--)
    st = ng_observe_output_grad(f->p, k, &g[k], NG_COPY);
  return st;
}

static ng_status run(int32_t rank, ng_transport *t, void *arg) {
  program *p = arg;
  bound b;
  fixture f;
  ng_options o;
  char message[512] = "";
  ng_options_standard(&o);
  const fixture_how how = {.threads = 1, .transport = p->ranks > 1 ? t : NULL};
  ng_status st = options_of(p, &o, message, sizeof message);
  memset(&f, 0, sizeof f);
  if (st == NG_OK) st = fixture_open_options(&f, &o, &how);
  if (st == NG_OK) st = add_layers(p, &f, &b);
  for (int l = 0; l < LAYERS; l++) {
    for (int i = 0; i < rows[l] * cols[l]; i++)
      *entry(b.w[l], l, i) = p->first[l][i];
  }
  for (int s = 0; s < STEPS && st == NG_OK; s++) {
    for (int k = 0; k < p->acc && st == NG_OK; k++)
      st = show(p, &f, &p->see[rank][s][k]);
    for (int l = 0; l < LAYERS; l++) {
      for (int i = 0; i < rows[l] * cols[l]; i++)
        *entry(b.g[l], l, i) =
            (float)((double)p->grad[s][l][i] + p->decay * (double)*entry(b.w[l], l, i));
    }
    ng_sgd sgd = fixture_sgd(p->lr[s], p->momentum); /* v here has no lr in it: -v / lr */
    const double before = p->lr[s > 0 ? s - 1 : 0];
    if (p->adjust && p->lr[s] < before) sgd.momentum *= p->lr[s] / before;
    sgd.momentum *= before / p->lr[s];
    if (st == NG_OK) st = ng_step_sgd(f.p, &sgd, 1);
    for (int l = 0; l < LAYERS; l++) {
      for (int i = 0; i < rows[l] * cols[l]; i++)
        p->w[rank][s][l][i] = *entry(b.w[l], l, i);
    }
  }
  if (st != NG_OK)
    print_message("rank %d: %s %s\n", rank, message, f.ctx ? ng_last_error(f.ctx) : f.message);
  fixture_close(&f);
  return st;
}

/* ---- programs --------------------------------------------------------------------------------*/

static void fill(rng *r, float *x, size_t n, double times) {
  for (size_t i = 0; i < n; i++)
    x[i] = (float)(times * rng_value(r));
}

static void draw(program *p, rng *r) {
  static const double rates[3][STEPS] = {
      {0.1, 0.1, 0.1, 0.1}, {0.1, 0.06, 0.08, 0.02}, {0.02, 0.1, 0.05, 0.05}};
  static const double memory[] = {1, 0.99, 0.7, 0.3}, lam[] = {0.03, 0.1, 1};
  memset(p, 0, sizeof *p);
  p->ranks = (int32_t)rng_between(r, 1, RANKS);
  p->acc = (int)rng_between(r, 1, ACC);
  p->r = memory[rng_below(r, 4)];
  p->damping = lam[rng_below(r, 3)];
  p->stab = rng_below(r, 2) ? 16 : 4;
  p->scale = rng_below(r, 2) ? 1 : 64;
  p->momentum = rng_below(r, 3) ? 0.9 : 0;
  p->decay = rng_below(r, 2) ? 0 : 0.01;
  p->leak = rng_below(r, 3) > 0;
  p->pi = rng_below(r, 3) > 0;
  p->adjust = rng_below(r, 2) == 0;
  p->gather = rng_below(r, 2) == 0;
  p->cholesky = rng_below(r, 2) == 0;
  const bool even = rng_below(r, 2) == 0;
  p->diagonal[CONV] = rng_below(r, 3) == 0;
  p->diagonal[NORM] = rng_below(r, 3) == 0;
  memcpy(p->lr, rates[p->adjust ? 1 + rng_below(r, 2) : rng_below(r, 3)], sizeof p->lr);
  for (int k = 0; k < RANKS * STEPS * ACC; k++) {
    shown *s = &p->see[k / (STEPS * ACC)][k / ACC % STEPS][k % ACC];
    s->n = even ? N : (int)rng_between(r, 3, N);
    fill(r, *s->conv_x, sizeof s->conv_x / sizeof(float), 1);
    fill(r, **s->conv_g, sizeof s->conv_g / sizeof(float), p->scale / N);
    fill(r, *s->norm_x, sizeof s->norm_x / sizeof(float), 2);
    fill(r, *s->norm_g, sizeof s->norm_g / sizeof(float), p->scale / N);
    fill(r, *s->fc_x, sizeof s->fc_x / sizeof(float), 1);
    fill(r, *s->fc_g, sizeof s->fc_g / sizeof(float), p->scale / N);
  }
  fill(r, **p->grad, sizeof p->grad / sizeof(float), 1);
  fill(r, *p->first, sizeof p->first / sizeof(float), 1);
}

static void as_published(void **state) {
  program *p = malloc(sizeof *p);
  double worst = 0;
  (void)state;
  assert_non_null(p);
  for (int64_t trial = 0; trial < test_times(60); trial++) {
    rng r = {test_seed() + (uint64_t)trial};
    optimizer o = {0};
    draw(p, &r);
    assert_int_equal(p->ranks > 1 ? ranks_run(p->ranks, run, p, NULL) : run(0, NULL, p), NG_OK);
    for (int l = 0; l < LAYERS; l++) {
      for (int i = 0; i < rows[l] * cols[l]; i++)
        o.w[l][i] = (double)p->first[l][i];
    }
    for (int s = 0; s < STEPS; s++) {
      optimize(p, &o, s);
      for (int l = 0; l < LAYERS; l++) {
        double most = 0, e = 0;
        for (int i = 0; i < rows[l] * cols[l]; i++)
          most = fmax(most, fabs(o.w[l][i]));
        for (int k = 0; k < p->ranks * rows[l] * cols[l]; k++) {
          const int n = rows[l] * cols[l];
          e = fmax(e, fabs((double)p->w[k / n][s][l][k % n] - o.w[l][k % n]) / most);
        }
        worst = fmax(worst, e);
        if (!(e <= 4e-6))
          fail_msg(
              "trial %d, step %d, layer %d: %.3g; ranks %d, acc %d, r %g, lambda %g, stab %g, "
              "scale %g, momentum %g, decay %g, leak %d, pi %d, adjust %d, gather %d, cholesky %d, "
              "diagonals %d %d",
              (int)trial, s, l, e, p->ranks, p->acc, p->r, p->damping, p->stab, p->scale,
              p->momentum, p->decay, p->leak, p->pi, p->adjust, p->gather, p->cholesky,
              p->diagonal[CONV], p->diagonal[NORM]);
      }
    }
  }
  print_message("worst %.3g\n", worst);
  free(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_published)};
  return cmocka_run_group_tests_name("spngd options", tests, NULL, NULL);
}
