/* t_curvature_layers.c: factors of layers (ng_factors_read) against the step that they belong to.
 *
 * Tolerance: the step solves in f32 with condition up to (tr A / 0.3 + 1) (tr G / 0.3 + 1), about 100: 1e-4 of the largest
 * entry. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dense.h"
#include "draw.h"
#include "fixture.h"
#include "oracle.h"
#include "ranks.h"

static const double STEP = 1e-4;

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
  fixture_expect_near(options, out, PD, rows * p, STEP);
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
        fixture_expect_near("A", w->right[l][k], A, n * n, 1e-6);
        fixture_expect_near("G", w->left[l][k], G, q * q, 1e-6);
      }
    }
  }
  free(w);
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
      cmocka_unit_test(factors_invert_as_the_step_does),
      cmocka_unit_test(one_step_over_all_batches_gives_the_factors_of_all_samples),
      cmocka_unit_test(layers_without_factors_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
