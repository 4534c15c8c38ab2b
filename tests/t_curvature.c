/* t_curvature.c: powers of the damped curvature against a dense Kronecker product, and factors of layers against steps.
 *
 * Tolerance.  Dense: M is computed from a Jacobi decomposition of the whole damped matrix.  With eigenvalues in
 * [damping, 10] and damping >= 0.05 every |power| <= 1 has a condition of at most 200; order 60 in double: 60 times 200
 * times 2.2e-16 = 3e-12.  Steps: the step solves in f32 with condition up to (tr A / 0.3 + 1) (tr G / 0.3 + 1), about 100:
 * 1e-4 of the largest entry.
 * Corrected: an eigenvector has an error of 2.2e-16 times the largest eigenvalue over the gap to the next one, above 1e-6.
 * Scores are sums with cancellation, so they are allowed 100 times DENSE of the largest score. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dense.h"
#include "draw.h"
#include "fixture.h"
#include "oracle.h"
#include "ranks.h"

enum { MOST = 6, GROUPS = 2, ORDER = MOST * MOST, ALL = GROUPS * ORDER };
static const double DENSE = 3e-12, STEP = 1e-4, CORRECTED = 1e-9;

static ng_context *ctx;

static int open_context(void **state) {
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  return ng_context_create(NG_VERSION, &c, NULL, 0, &ctx) == NG_OK ? 0 : -1;
}
static int close_context(void **state) {
  ng_context_destroy(&ctx);
  return 0;
}

/* ---- against a dense product ------------------------------------------------------------------*/

/* full [n, n] <- X X' / n + I / 10; with `diagonal` only its diagonal. F: the factor for the library, [n, n] or the
 * diagonal [n]. */
static void draw_factor(rng *r, int64_t n, bool diagonal, double *full, double *F) {
  double *X = zeros(n * n);
  for (int64_t i = 0; i < n * n; i++)
    X[i] = rng_value(r);
  dense_product(false, true, n, n, n, X, X, full);
  for (int64_t i = 0; i < n * n; i++)
    full[i] =
        (diagonal && i % (n + 1) != 0 ? 0.0 : full[i] / (double)n) + (i % (n + 1) == 0 ? 0.1 : 0.0);
  for (int64_t i = 0; i < (diagonal ? n : n * n); i++)
    F[i] = full[diagonal ? i * (n + 1) : i];
  free(X);
}

static double trace_of(int64_t n, const double *M) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++)
    sum += M[i * n + i];
  return sum;
}

/* M [n m, n m] <- (L (x) R + damping)^power. */
static void predict(int64_t n, int64_t m, const double *L, const double *R,
                    const ng_damped_power *how, double *M, double *logdet) {
  const int64_t N = n * m;
  const char *s = how->split == NULL ? "joint" : how->split;
  const double root = sqrt(how->damping), full = strcmp(s, "full") == 0 ? how->damping : 0.0;
  const double ratio = sqrt(trace_of(m, R) / (double)m / (trace_of(n, L) / (double)n));
  const double pi = strcmp(s, "pi") == 0 ? ratio : 1.0;
  const bool splits = strcmp(s, "pi") == 0 || strcmp(s, "root") == 0;
  const double on_l = splits ? root / pi : full, on_r = splits ? root * pi : full;
  const double both = strcmp(s, "joint") == 0 ? how->damping : 0.0;
  double *Q = zeros(N * N), *e = zeros(N), *K = zeros(N * N);
  for (int64_t a = 0; a < N; a++) {
    for (int64_t b = 0; b < N; b++) {
      const double l = L[a / m * n + b / m] + (a / m == b / m ? on_l : 0.0);
      const double r = R[a % m * m + b % m] + (a % m == b % m ? on_r : 0.0);
      K[a * N + b] = l * r + (a == b ? both : 0.0);
    }
  }
  dense_eigen(N, K, e, Q);
  for (int64_t i = 0; i < N; i++) {
    *logdet += how->power * log(e[i]);
    for (int64_t a = 0; a < N; a++)
      K[a * N + i] = Q[a * N + i] * pow(e[i], how->power);
  }
  dense_product(false, true, N, N, N, K, Q, M);
  free(Q);
  free(e);
  free(K);
}

static void expect_near(const char *what, const double *x, const double *want, int64_t n,
                        double tolerance) {
  double most = 0.0, off = 0.0;
  for (int64_t i = 0; i < n; i++) {
    most = fmax(most, fabs(want[i]));
    off = fmax(off, isfinite(x[i]) ? fabs(x[i] - want[i]) : INFINITY);
  }
  if (off > tolerance * most) fail_msg("%s: off by %g of %g", what, off, most);
}

static void check_power(ng_curvature *c, const ng_factors *f, double *const *dense,
                        const ng_damped_power *how, rng *r) {
  const int64_t n = f->rows, m = f->cols, N = n * m, all = f->groups * N;
  double x[3 * ALL], out[3 * ALL], want[3 * ALL], diagonal[ALL], want_diagonal[ALL], trace, logdet;
  double *M = zeros(N * N), want_trace = 0.0, want_logdet = 0.0;
  for (int64_t i = 0; i < 3 * all; i++)
    x[i] = rng_value(r);
  for (int64_t g = 0; g < f->groups; g++) {
    predict(n, m, dense[0] + g * n * n, dense[1] + g * m * m, how, M, &want_logdet);
    want_trace += trace_of(N, M);
    for (int64_t i = 0; i < N; i++)
      want_diagonal[g * N + i] = M[i * N + i];
    for (int64_t k = 0; k < 3; k++)
      dense_product(false, false, N, 1, N, M, x + k * all + g * N, want + k * all + g * N);
  }
  assert_int_equal(ng_curvature_apply(c, how, x, 3, out), NG_OK);
  assert_int_equal(ng_curvature_apply(c, how, x, 3, x), NG_OK); /* apply in place */
  assert_memory_equal(x, out, (size_t)(3 * all) * sizeof *x);
  assert_int_equal(ng_curvature_diagonal(c, how, diagonal), NG_OK);
  assert_int_equal(ng_curvature_measure(c, how, &trace, &logdet), NG_OK);
  expect_near("apply", out, want, 3 * all, DENSE);
  expect_near("diagonal", diagonal, want_diagonal, all, DENSE);
  expect_near("trace", &trace, &want_trace, 1, DENSE);
  if (fabs(logdet - want_logdet) > DENSE * (double)all)
    fail_msg("logdet %g %g", logdet, want_logdet);
  free(M);
}

/* D [rows, cols] of one group of sample i. */
static void dense_gradient(const ng_factors *f, const ng_samples *x, int64_t i, int64_t g,
                           double *D) {
  const int64_t n = f->rows, m = f->cols;
  memset(D, 0, (size_t)(n * m) * sizeof *D);
  for (int64_t s = 0; s < x->positions; s++) {
    const int64_t at = (i * x->positions + s) * f->groups + g;
    for (int64_t k = 0; k < n * m; k++)
      D[k] += x->left[at * n + k / m] * x->right[at * m + k % m];
  }
}

enum { SAMPLES = 4, POSITIONS = 3, SAMPLE_VALUES = SAMPLES * POSITIONS * GROUPS * MOST };
static void check_scores(ng_curvature *c, const ng_factors *f, double *const *dense,
                         const ng_damped_power *how, rng *r) {
  double values[4][SAMPLE_VALUES], D[2][ORDER], MD[ORDER], logdet = 0.0;
  double pair[SAMPLES * SAMPLES], self[SAMPLES], want[SAMPLES * SAMPLES], want_self[SAMPLES];
  const int64_t n = f->rows, m = f->cols, N = n * m;
  double *M = zeros(N * N);
  ng_samples x = {sizeof x, rng_between(r, 1, SAMPLES), rng_between(r, 1, POSITIONS), values[0],
                  values[1]};
  ng_samples y = {sizeof y, rng_between(r, 1, SAMPLES), rng_between(r, 1, POSITIONS), values[2],
                  values[3]};
  for (int64_t i = 0; i < 4 * SAMPLE_VALUES; i++)
    values[i / SAMPLE_VALUES][i % SAMPLE_VALUES] = rng_value(r);
  for (int i = 0; i < SAMPLES * SAMPLES; i++)
    pair[i] = want[i] = self[i % SAMPLES] = want_self[i % SAMPLES] = 0.5; /* scores are added */
  for (int64_t g = 0; g < f->groups; g++) {
    predict(n, m, dense[0] + g * n * n, dense[1] + g * m * m, how, M, &logdet);
    for (int64_t i = 0; i < x.samples; i++) {
      dense_gradient(f, &x, i, g, D[0]);
      dense_product(false, false, N, 1, N, M, D[0], MD);
      for (int64_t j = 0; j <= y.samples; j++) { /* the last is x_i itself */
        if (j < y.samples) dense_gradient(f, &y, j, g, D[1]);
        double *to = j < y.samples ? &want[i * y.samples + j] : &want_self[i];
        for (int64_t k = 0; k < N; k++)
          *to += MD[k] * D[j < y.samples][k];
      }
    }
  }
  assert_int_equal(ng_curvature_scores(c, how, &x, &y, pair), NG_OK);
  assert_int_equal(ng_curvature_scores(c, how, &x, NULL, self), NG_OK);
  expect_near("scores", pair, want, x.samples * y.samples, 100.0 * DENSE);
  expect_near("self", self, want_self, x.samples, 100.0 * DENSE);
  free(M);
}

static void powers_match_a_dense_product(void **state) {
  static const char *const split[] = {NULL, "joint", "full", "pi", "root"};
  static const double power[] = {-1.0, -0.5, 0.5, 1.0, 0.0};
  rng r = {test_seed()};
  for (int64_t k = 0; k < test_repetitions(20); k++) {
    double *dense[2] = {zeros(GROUPS * ORDER), zeros(GROUPS * ORDER)}, left[ALL], right[ALL];
    ng_factors f = {.struct_size = sizeof f,
                    .groups = rng_between(&r, 1, GROUPS),
                    .rows = rng_between(&r, 1, MOST),
                    .cols = rng_between(&r, 1, MOST),
                    .left_diagonal = rng_below(&r, 4) == 0,
                    .right_diagonal = rng_below(&r, 4) == 0,
                    .left = left,
                    .right = right};
    for (int64_t g = 0; g < f.groups; g++) {
      const int64_t n = f.rows, m = f.cols;
      draw_factor(&r, n, f.left_diagonal, dense[0] + g * n * n,
                  left + g * (f.left_diagonal ? n : n * n));
      draw_factor(&r, m, f.right_diagonal, dense[1] + g * m * m,
                  right + g * (f.right_diagonal ? m : m * m));
    }
    ng_curvature *c = NULL;
    assert_int_equal(ng_curvature_create(ctx, &f, &c), NG_OK);
    for (int s = 0; s < 5; s++) {
      for (int p = 0; p < 5; p++) {
        const ng_damped_power how = {sizeof how, 0.05 + rng_real(&r), power[p], split[s]};
        check_power(c, &f, dense, &how, &r);
        check_scores(c, &f, dense, &how, &r);
      }
    }
    ng_curvature_destroy(&c);
    assert_null(c);
    free(dense[0]);
    free(dense[1]);
  }
}

/* ---- second moments in the eigenbases ---------------------------------------------------------*/

/* M of one group of EKFAC: eigenvectors of both factors, mean squares of the gradients of all samples. */
static void predict_corrected(const ng_factors *f, double *const *dense, const ng_samples *x,
                              int64_t parts, int64_t g, const ng_damped_power *how, double *M) {
  const int64_t n = f->rows, m = f->cols, N = n * m;
  double d[MOST], L[MOST * MOST], R[MOST * MOST], D[ORDER], v[ORDER] = {0}, count = 0.0;
  dense_eigen(n, dense[0] + g * n * n, d, L);
  dense_eigen(m, dense[1] + g * m * m, d, R);
  for (int64_t k = 0; k < parts; k++) {
    for (int64_t i = 0; i < x[k].samples; i++) {
      dense_gradient(f, &x[k], i, g, D);
      dense_product(true, false, n, m, n, L, D, D);
      dense_product(false, false, n, m, m, D, R, D);
      for (int64_t e = 0; e < N; e++)
        v[e] += D[e] * D[e];
      count += 1.0;
    }
  }
  for (int64_t i = 0; i < N * N; i++) {
    M[i] = 0.0;
    for (int64_t e = 0; e < N; e++)
      M[i] += L[i / N / m * n + e / m] * R[i / N % m * m + e % m] * L[i % N / m * n + e / m] *
              R[i % N % m * m + e % m] * pow(v[e] / count + how->damping, how->power);
  }
}

static void corrected_powers_have_the_second_moments_of_samples(void **state) {
  enum { PARTS = 2 };
  static const double power[] = {-1.0, -0.5, 1.0};
  rng r = {test_seed() + 11};
  for (int64_t k = 0; k < test_repetitions(10); k++) {
    double *dense[2] = {zeros(GROUPS * ORDER), zeros(GROUPS * ORDER)}, left[ALL], right[ALL];
    double values[PARTS][2][SAMPLE_VALUES], x[ALL], out[ALL], want[ALL], diagonal[ALL], on[ALL];
    double *M = zeros(ORDER * ORDER);
    ng_samples part[PARTS];
    const ng_factors f = {.struct_size = sizeof f,
                          .groups = rng_between(&r, 1, GROUPS),
                          .rows = rng_between(&r, 1, MOST),
                          .cols = rng_between(&r, 1, MOST),
                          .left_diagonal = rng_below(&r, 4) == 0,
                          .left = left,
                          .right = right};
    const int64_t n = f.rows, m = f.cols, N = n * m;
    for (int64_t g = 0; g < f.groups; g++) {
      draw_factor(&r, n, f.left_diagonal, dense[0] + g * n * n,
                  left + g * (f.left_diagonal ? n : n * n));
      draw_factor(&r, m, false, dense[1] + g * m * m, right + g * m * m);
    }
    ng_curvature *c = NULL;
    assert_int_equal(ng_curvature_create(ctx, &f, &c), NG_OK);
    for (int i = 0; i < PARTS; i++) {
      for (int64_t e = 0; e < 2 * SAMPLE_VALUES; e++)
        values[i][e / SAMPLE_VALUES][e % SAMPLE_VALUES] = rng_value(&r);
      part[i] = (ng_samples){sizeof part[i], rng_between(&r, 1, SAMPLES),
                             rng_between(&r, 1, POSITIONS), values[i][0], values[i][1]};
      assert_int_equal(ng_curvature_correct(c, &part[i]), NG_OK);
    }
    for (int64_t e = 0; e < f.groups * N; e++)
      x[e] = rng_value(&r);
    for (int p = 0; p < 3; p++) {
      const ng_damped_power how = {sizeof how, 0.2, power[p], NULL};
      for (int64_t g = 0; g < f.groups; g++) {
        predict_corrected(&f, dense, part, PARTS, g, &how, M);
        dense_product(false, false, N, 1, N, M, x + g * N, want + g * N);
        for (int64_t e = 0; e < N; e++)
          on[g * N + e] = M[e * (N + 1)];
      }
      assert_int_equal(ng_curvature_apply(c, &how, x, 1, out), NG_OK);
      assert_int_equal(ng_curvature_diagonal(c, &how, diagonal), NG_OK);
      expect_near("corrected", out, want, f.groups * N, CORRECTED);
      expect_near("diagonal", diagonal, on, f.groups * N, CORRECTED);
    }
    const ng_damped_power split = {sizeof split, 0.2, -1.0, "pi"};
    assert_int_equal(ng_curvature_apply(c, &split, x, 1, out), NG_ERR_ARG);
    assert_non_null(strstr(ng_last_error(ctx), "split = pi: a corrected curvature has only joint"));
    ng_curvature_destroy(&c);
    free(dense[0]);
    free(dense[1]);
    free(M);
  }
}

/* ---- factors of layers -----------------------------------------------------------------------*/

enum { B = 5, IMAGE = 4, WEIGHTS = 512, VALUES = B * 8 * (IMAGE + 1) * (IMAGE + 1) };
typedef struct layer_case {
  ng_kind kind;
  int64_t in, out, kernel, groups;
  bool bias, right_diagonal, left_diagonal;
  const char *options;
} layer_case;

/* Read the factors after a step, multiply D by the damped inverse, and compare with the step's PD. */
static void check_layer(const layer_case *l, const char *linalg, rng *r) {
  float grad[WEIGHTS], bias[16], a[VALUES], g[VALUES];
  int64_t token[B];
  double D[WEIGHTS], PD[WEIGHTS], left[WEIGHTS], right[4 * WEIGHTS], out[WEIGHTS];
  char options[200];
  snprintf(options, sizeof options, "damping=0.3;clip=none;%s", l->options);
  fixture f;
  assert_int_equal(fixture_open(&f, options, &(fixture_how){.linalg = linalg}), NG_OK);
  ng_layer d = layer_of(l->kind, "layer", l->in, l->out);
  d.bias = l->bias;
  const bool conv = l->kind == NG_CONV2D, words = l->kind == NG_EMBEDDING;
  const int64_t taps = conv ? l->kernel * l->kernel : 1, size = conv ? IMAGE : 1;
  const int64_t out_size = conv ? IMAGE + 1 - l->kernel % 2 : 1;
  d.groups = conv ? l->groups : d.groups;
  for (int i = 0; i < 2 && conv; i++) {
    d.kernel[i] = l->kernel;
    d.padding[i] = l->kernel / 2;
    d.stride[i] = d.dilation[i] = 1;
    d.image[i] = IMAGE;
  }
  const int64_t rows = words ? l->in : l->out, cols = words ? l->out : l->in / l->groups * taps;
  const int64_t p = cols + l->bias;
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < cols; j++)
      D[i * p + j] = grad[i * cols + j] = (float)rng_value(r);
    if (l->bias) D[i * p + cols] = bias[i] = (float)rng_value(r);
  }
  const ng_array weight = ng_array_matrix(grad, rows, cols, NG_F32),
                 b = ng_array_vector(bias, rows, NG_F32);
  assert_int_equal(ng_add_layer(f.p, &d, NULL), NG_OK);
  assert_int_equal(ng_bind_grad(f.p, 0, NG_WEIGHT, &weight), NG_OK);
  if (l->bias) assert_int_equal(ng_bind_grad(f.p, 0, NG_BIAS, &b), NG_OK);
  ng_factors F = {.struct_size = sizeof F};
  /* before ng_ready there are no factors */
  assert_int_equal(ng_factors_read(f.p, 0, &F), NG_ERR_STATE);
  assert_int_equal(ng_ready(f.p), NG_OK);
  assert_int_equal(ng_factors_read(f.p, 0, &F), NG_OK);
  F.left = left;
  F.right = right;
  assert_int_equal(ng_factors_read(f.p, 0, &F), NG_ERR_STATE); /* no average yet */
  assert_non_null(strstr(ng_last_error(f.ctx), "no average"));
  rng_fill(r, a, B * l->in * size * size);
  rng_fill(r, g, B * l->out * out_size * out_size);
  for (int i = 0; i < B; i++)
    token[i] = rng_below(r, l->in);
  const ng_array input = words  ? ng_array_vector(token, B, NG_I64)
                         : conv ? ng_array_nchw(a, B, l->in, size, size, NG_F32)
                                : ng_array_matrix(a, B, l->in, NG_F32);
  const ng_array output = conv ? ng_array_nchw(g, B, l->out, out_size, out_size, NG_F32)
                               : ng_array_matrix(g, B, l->out, NG_F32);
  ng_batch batch = batch_of(B);
  batch.reduction = NG_SUM;
  assert_int_equal(ng_begin(f.p, &batch), NG_OK);
  assert_int_equal(ng_observe_input(f.p, 0, &input, NG_COPY), NG_OK);
  assert_int_equal(ng_observe_output_grad(f.p, 0, &output, NG_COPY), NG_OK);
  if (ng_step(f.p, 0.1) != NG_OK) fail_msg("%s: %s", options, ng_last_error(f.ctx));
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < cols; j++)
      PD[i * p + j] = (double)grad[i * cols + j];
    if (l->bias) PD[i * p + cols] = (double)bias[i];
  }
  assert_int_equal(ng_factors_read(f.p, 0, &F), NG_OK);
  assert_int_equal(F.groups * F.rows, rows);
  assert_int_equal(F.cols, p);
  if (F.left_diagonal != l->left_diagonal || F.right_diagonal != l->right_diagonal)
    fail_msg("%s: diagonal %d %d", options, F.left_diagonal, F.right_diagonal);
  ng_curvature *c = NULL;
  assert_int_equal(ng_curvature_create(f.ctx, &F, &c), NG_OK);
  const char *split = strstr(options, "joint") != NULL ? "joint" : "pi";
  const ng_damped_power inverse = {sizeof inverse, 0.3, -1.0, split};
  assert_int_equal(ng_curvature_apply(c, &inverse, D, 1, out), NG_OK);
  expect_near(options, out, PD, rows * p, STEP);
  ng_curvature_destroy(&c);
  fixture_close(&f);
}

static void factors_invert_as_the_step_does(void **state) {
  static const layer_case list[] = {
      {NG_LINEAR, 6, 5, 1, 1, true, false, false, ""},
      {NG_LINEAR, 6, 5, 1, 1, false, false, false, "solver=eigen;damping_split=joint"},
      {NG_LINEAR, 7, 5, 1, 1, true, false, false, "factor_blocks=2"},
      {NG_LINEAR, 7, 5, 1, 1, true, false, true, "output_factor=diagonal"},
      {NG_LINEAR, 1, 1, 1, 1, true, false, true, ""},
      {NG_CONV2D, 2, 3, 3, 1, true, false, false, "spatial=full"},
      {NG_CONV2D, 4, 4, 3, 2, true, false, false, "spatial=full"},
      {NG_CONV2D, 4, 8, 3, 2, false, false, false, "spatial=full;factor_blocks=2"},
      {NG_CONV2D, 6, 3, 2, 1, true, false, false, "spatial=factored"},
      {NG_CONV2D, 7, 3, 2, 1, false, false, false, "spatial=factored;factor_blocks=2"},
      {NG_EMBEDDING, 8, 5, 1, 1, false, false, true, ""},
  };
  rng r = {test_seed() + 7};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    check_layer(&list[i], "ref", &r);
    check_layer(&list[i], NULL, &r);
  }
}

/* ---- a pass over data ------------------------------------------------------------------------*/

enum { RANKS = 2, PARTS = 3, SAMPLES_OF_RANK = 11, PIXELS = IMAGE * IMAGE };
static const int64_t part[RANKS][PARTS] = {{5, 1, 0}, {2, 6, 3}};

/* All samples of a rank: linear layer 0 with 2 positions, convolution 1; then what every rank read. */
typedef struct data_pass {
  int32_t ranks;
  ng_layer layer[2];
  float a[2][RANKS][SAMPLES_OF_RANK * 2 * PIXELS], g[2][RANKS][SAMPLES_OF_RANK * 3 * PIXELS];
  double left[2][RANKS][2 * WEIGHTS], right[2][RANKS][2 * WEIGHTS];
} data_pass;

static ng_array samples_of(const data_pass *w, int l, float *x, int64_t width, int64_t n) {
  return l == 1 ? ng_array_nchw(x, n, width, IMAGE, IMAGE, NG_F32)
                : ng_array_matrix(x, n * 2, width, NG_F32);
}

/* A pass over the data: all batches of a rank as micro-batches of one step, whose gradients are zero. */
static ng_status pass_of_rank(int32_t rank, ng_transport *t, void *arg) {
  data_pass *w = arg;
  float zero[WEIGHTS] = {0};
  fixture f;
  ng_status st = fixture_open(&f, "clip=none", &(fixture_how){.threads = 1, .transport = t});
  for (int l = 0; l < 2 && st == NG_OK; l++) {
    const ng_layer *d = &w->layer[l];
    const ng_array weight = ng_array_matrix(zero, d->out, oracle_columns(d) - d->bias, NG_F32),
                   bias = ng_array_vector(zero, d->out, NG_F32);
    st = ng_add_layer(f.p, d, NULL);
    if (st == NG_OK) st = ng_bind_grad(f.p, l, NG_WEIGHT, &weight);
    if (st == NG_OK && d->bias) st = ng_bind_grad(f.p, l, NG_BIAS, &bias);
  }
  if (st == NG_OK) st = ng_ready(f.p);
  for (int64_t k = 0, at = 0; k < PARTS && st == NG_OK; at += part[rank][k++]) {
    const int64_t n = part[rank][k];
    ng_batch batch = batch_of(n);
    batch.reduction = NG_SUM;
    if (n > 0) st = ng_begin(f.p, &batch);
    for (int l = 0; l < 2 && st == NG_OK && n > 0; l++) {
      const ng_layer *d = &w->layer[l];
      const int64_t S = l == 1 ? PIXELS : 2;
      const ng_array a = samples_of(w, l, w->a[l][rank] + at * S * d->in, d->in, n),
                     g = samples_of(w, l, w->g[l][rank] + at * S * d->out, d->out, n);
      st = ng_observe_input(f.p, l, &a, NG_COPY);
      if (st == NG_OK) st = ng_observe_output_grad(f.p, l, &g, NG_COPY);
    }
  }
  if (st == NG_OK) st = ng_step(f.p, 0.0);
  for (int l = 0; l < 2 && st == NG_OK; l++) {
    ng_factors F = {.struct_size = sizeof F, .left = w->left[l][rank], .right = w->right[l][rank]};
    st = ng_factors_read(f.p, l, &F);
  }
  fixture_close(&f);
  return st;
}

/* F [n, n] <- sum of x x' over the rows of all ranks, divided by `by`. */
static void sum_of_rows(const data_pass *w, int l, bool grad, int64_t n, double by, double *F) {
  const int64_t S = l == 1 ? PIXELS : 2, width = grad ? w->layer[l].out : w->layer[l].in;
  memset(F, 0, (size_t)(n * n) * sizeof *F);
  for (int32_t r = 0; r < w->ranks; r++) {
    const int64_t N = part[r][0] + part[r][1] + part[r][2];
    double x[SAMPLES_OF_RANK * 3 * PIXELS];
    for (int64_t i = 0; i < N * S * width; i++)
      x[i] = (double)(grad ? w->g[l][r][i] : w->a[l][r][i]);
    double *rows = oracle_stat_rows(&w->layer[l], grad, 0, x, N, S, n);
    for (int64_t i = 0; i < N * S; i++) {
      for (int64_t k = 0; k < n * n; k++)
        F[k] += rows[i * n + k / n] * rows[i * n + k % n] / by;
    }
    free(rows);
  }
}

/* Sums of at most 17 samples with 16 positions, in f32. */
static void one_step_over_all_batches_gives_the_factors_of_all_samples(void **state) {
  data_pass *w = must_calloc(sizeof *w);
  rng r = {test_seed() + 9};
  w->layer[0] = layer_of(NG_LINEAR, "fc", 5, 3);
  w->layer[1] = layer_of(NG_CONV2D, "conv", 2, 3);
  w->layer[0].bias = 1;
  for (int i = 0; i < 2; i++) {
    w->layer[1].kernel[i] = 3;
    w->layer[1].padding[i] = w->layer[1].stride[i] = w->layer[1].dilation[i] = 1;
    w->layer[1].image[i] = IMAGE;
  }
  rng_fill(&r, &w->a[0][0][0], (int64_t)(sizeof w->a / sizeof(float)));
  rng_fill(&r, &w->g[0][0][0], (int64_t)(sizeof w->g / sizeof(float)));
  for (w->ranks = 1; w->ranks <= RANKS; w->ranks++) {
    assert_int_equal(ranks_run(w->ranks, pass_of_rank, w, NULL), NG_OK);
    const double N = w->ranks == 1 ? 6.0 : 17.0;
    for (int l = 0; l < 2; l++) {
      const int64_t n = oracle_columns(&w->layer[l]), q = w->layer[l].out;
      double A[2 * WEIGHTS], G[2 * WEIGHTS];
      sum_of_rows(w, l, false, n, N, A);
      sum_of_rows(w, l, true, q, N * (l == 1 ? PIXELS : 2), G);
      for (int32_t k = 0; k < w->ranks; k++) {
        expect_near("A", w->right[l][k], A, n * n, 1e-6);
        expect_near("G", w->left[l][k], G, q * q, 1e-6);
      }
    }
  }
  free(w);
}

/* ---- refused arguments -----------------------------------------------------------------------*/

static void expect_refused(ng_status st, const char *text) {
  assert_int_equal(st, NG_ERR_ARG);
  if (strstr(ng_last_error(ctx), text) == NULL)
    fail_msg("expected '%s' in '%s'", text, ng_last_error(ctx));
}

static void wrong_arguments_are_refused(void **state) {
  double L[4] = {1.0, 0.0, 0.0, 0.0}, R[1] = {2.0}, x[2] = {1.0, 1.0}, out[2] = {7.0, 7.0};
  ng_factors f = {sizeof f, 1, 2, 1, 0, 0, L, R};
  ng_curvature *c = NULL;
  L[1] = 0.5;
  expect_refused(ng_curvature_create(ctx, &f, &c), "left is not symmetric in row 1, column 0");
  L[1] = 0.0;
  R[0] = NAN;
  expect_refused(ng_curvature_create(ctx, &f, &c), "right is not finite");
  R[0] = 2.0;
  f.rows = 0;
  expect_refused(ng_curvature_create(ctx, &f, &c), "expected >= 1");
  f.rows = 2;
  assert_null(c);
  assert_int_equal(ng_curvature_create(ctx, &f, &c), NG_OK);
  ng_damped_power m = {sizeof m, 0.0, -1.0, NULL};
  expect_refused(ng_curvature_apply(c, &m, x, 1, out), "singular");
  m.damping = -1.0;
  expect_refused(ng_curvature_diagonal(c, &m, out), "damping = -1: must be >= 0");
  m = (ng_damped_power){sizeof m, 1.0, NAN, NULL};
  expect_refused(ng_curvature_diagonal(c, &m, out), "power = nan");
  m = (ng_damped_power){sizeof m, 1.0, 1.0, "sum"};
  expect_refused(ng_curvature_measure(c, &m, NULL, NULL), "split = sum: expected joint, full");
  m.split = NULL;
  x[1] = INFINITY;
  expect_refused(ng_curvature_apply(c, &m, x, 1, out), "x is not finite");
  expect_refused(ng_curvature_apply(c, &m, out, -1, out), "count is below 0");
  const ng_samples none = {sizeof none, 0, 1, out, out}, bad = {sizeof bad, 1, 1, x, out};
  const ng_samples good = {sizeof good, 1, 1, out, out};
  expect_refused(ng_curvature_scores(c, &m, &none, NULL, out), "x has 0 samples");
  expect_refused(ng_curvature_scores(c, &m, &good, &bad, out), "an array of y is not finite");
  expect_refused(ng_curvature_correct(c, &bad),
                 "ng_curvature_correct: an array of x is not finite");
  expect_refused(ng_curvature_correct(c, NULL), "ng_curvature_correct: x is NULL");
  assert_true(out[0] == 7.0 && out[1] == 7.0);
  double trace = 0.0, logdet = 0.0;
  m = (ng_damped_power){sizeof m, 0.0, 1.0, NULL};
  assert_int_equal(ng_curvature_measure(c, &m, &trace, &logdet), NG_OK);
  assert_true(trace == 2.0 && isinf(logdet) && logdet < 0.0);
  ng_curvature_destroy(&c);
}

static void layers_without_factors_are_refused(void **state) {
  float grad[6];
  const ng_array g = ng_array_matrix(grad, 2, 3, NG_F32);
  fixture f;
  ng_factors F = {.struct_size = sizeof F};
  assert_int_equal(fixture_open(&f, "method=eva", NULL), NG_OK);
  assert_int_equal(ng_add_linear(f.p, "fc", 3, 2, 0, NULL), NG_OK);
  assert_int_equal(ng_bind_grad(f.p, 0, NG_WEIGHT, &g), NG_OK);
  assert_int_equal(ng_ready(f.p), NG_OK);
  assert_int_equal(ng_factors_read(f.p, 0, &F), NG_ERR_ABSENT);
  assert_non_null(strstr(ng_last_error(f.ctx), "layer 'fc': its method has no Kronecker factors"));
  assert_int_equal(ng_factors_read(f.p, 1, &F), NG_ERR_ARG);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(powers_match_a_dense_product),
      cmocka_unit_test(corrected_powers_have_the_second_moments_of_samples),
      cmocka_unit_test(factors_invert_as_the_step_does),
      cmocka_unit_test(one_step_over_all_batches_gives_the_factors_of_all_samples),
      cmocka_unit_test(wrong_arguments_are_refused),
      cmocka_unit_test(layers_without_factors_are_refused),
  };
  return cmocka_run_group_tests(tests, open_context, close_context);
}
