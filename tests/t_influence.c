/* t_influence.c: influence scores of a network with a convolution and a linear layer against dense float64 curvature, and a mislabelled
 * image of the digits.
 *
 * The oracle has its own forward and backward pass in double. Tolerance: inputs, output gradients and sums of K are f32;
 * (K + lambda I)^-1 amplifies their errors by at most the condition, below 200 here: 200 * 2^-24 = 1e-5 of the largest score. */
#include "dense.h"
#include "nn/models.h"
#include "train/scores.h"
#include "trainer_help.h"
#include "one_context.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  SIDE = 4,
  IN = 2,
  OUT = 3,
  HALF = 2,
  SPOTS = HALF * HALF,
  PATCH = IN * 9 + 1,
  HIDDEN = SPOTS * OUT
};
enum {
  CLASSES = 3,
  TRAIN = 20,
  TEST = 7,
  BATCH = 6,
  P1 = OUT * PATCH,
  P2 = CLASSES * (HIDDEN + 1)
};
static const double TOLERANCE = 1e-5;

/* ---- dense formulas ----------------------------------------------------------------------------*/

/* The rows of a sample: inputs with a last 1, and output gradients of its loss. */
typedef struct rows {
  double a1[SPOTS][PATCH], g1[SPOTS][OUT], a2[HIDDEN + 1], g2[CLASSES];
} rows;

/* Convolution with stride 2 and padding 1, tanh, linear layer over (position, channel), cross entropy. */
static void compute_rows(const nn *net, const float *x, int32_t label, rows *s) {
  const float *w1 = nn_get_param(net, 0)->value, *b1 = nn_get_param(net, 1)->value;
  const float *w2 = nn_get_param(net, 2)->value, *b2 = nn_get_param(net, 3)->value;
  double y[CLASSES], sum = 0.0, most = -INFINITY;
  for (int p = 0; p < SPOTS; p++) {
    for (int i = 0; i < PATCH - 1; i++) {
      const int row = 2 * (p / HALF) - 1 + i / 3 % 3, column = 2 * (p % HALF) - 1 + i % 3;
      const bool inside = row >= 0 && row < SIDE && column >= 0 && column < SIDE;
      s->a1[p][i] = inside ? (double)x[(row * SIDE + column) * IN + i / 9] : 0.0;
    }
    s->a1[p][PATCH - 1] = 1.0;
    for (int o = 0; o < OUT; o++) {
      double h = (double)b1[o];
      for (int i = 0; i < PATCH - 1; i++)
        h += (double)w1[o * (PATCH - 1) + i] * s->a1[p][i];
      s->a2[p * OUT + o] = tanh(h);
    }
  }
  s->a2[HIDDEN] = 1.0;
  for (int k = 0; k < CLASSES; k++) {
    y[k] = (double)b2[k];
    for (int i = 0; i < HIDDEN; i++)
      y[k] += (double)w2[k * HIDDEN + i] * s->a2[i];
    most = fmax(most, y[k]);
  }
  for (int k = 0; k < CLASSES; k++)
    sum += exp(y[k] - most);
  for (int k = 0; k < CLASSES; k++)
    s->g2[k] = exp(y[k] - most) / sum - (k == label ? 1.0 : 0.0);
  for (int i = 0; i < HIDDEN; i++) {
    double back = 0.0;
    for (int k = 0; k < CLASSES; k++)
      back += (double)w2[k * HIDDEN + i] * s->g2[k];
    s->g1[i / OUT][i % OUT] = back * (1.0 - s->a2[i] * s->a2[i]);
  }
}

static void add_outer(int64_t n, int64_t m, const double *x, const double *y, double by,
                      double *to) {
  for (int64_t i = 0; i < n * m; i++)
    to[i] += by * x[i / m] * y[i % m];
}

/* D1 += by * gradient of the convolution, D2 of the linear layer. */
static void add_gradient(const rows *s, double by, double *D1, double *D2) {
  for (int p = 0; p < SPOTS; p++)
    add_outer(OUT, PATCH, s->g1[p], s->a1[p], by, D1);
  add_outer(CLASSES, HIDDEN + 1, s->g2, s->a2, by, D2);
}

/* X [n, count] <- (K + lambda I)^-1 X, n = q p; lambda < 0: 0.1 times the mean eigenvalue. K = G (x) A, or with squares [n, TRAIN]
 * its eigenvectors with the mean squares of the gradients of samples as eigenvalues. */
static void solve(int64_t q, int64_t p, const double *G, const double *A, double lambda,
                  const double *gradients, double *X) {
  const int64_t n = q * p;
  double *K = zeros(n * n), *Q = zeros(n * n), *d = zeros(n), trace = 0.0;
  if (gradients != NULL) {
    double *L = zeros(q * q), *R = zeros(p * p), *v = zeros(n);
    dense_eigen(q, G, v, L);
    dense_eigen(p, A, v, R);
    for (int64_t e = 0; e < n * n; e++)
      Q[e] = L[e / n / p * q + e % n / p] * R[e / n % p * p + e % n % p];
    for (int64_t j = 0; j < TRAIN; j++) {
      for (int64_t e = 0; e < n; e++)
        v[e] = gradients[e * TRAIN + j];
      dense_product(true, false, n, 1, n, Q, v, v);
      for (int64_t e = 0; e < n; e++)
        d[e] += v[e] * v[e] / TRAIN;
    }
    for (int64_t e = 0; e < n * n; e++)
      K[e] = Q[e] * d[e % n];
    dense_product(false, true, n, n, n, K, Q, K);
    free(L);
    free(R);
    free(v);
  }
  for (int64_t i = 0; i < n * n && gradients == NULL; i++)
    K[i] = G[i / n / p * q + i % n / p] * A[i / n % p * p + i % p];
  for (int64_t i = 0; i < n; i++)
    trace += K[i * (n + 1)];
  for (int64_t i = 0; i < n; i++)
    K[i * (n + 1)] += lambda >= 0.0 ? lambda : 0.1 * trace / (double)n;
  dense_solve(n, K, TRAIN, X);
  free(K);
  free(Q);
  free(d);
}

/* Return the rows of each sample of a split, normalised as in training. */
static rows *rows_of_split(const nn *net, const data_set *d, const data_split *split) {
  rows *s = must_calloc((size_t)split->n * sizeof *s);
  const data_transform how = {.normalise = true};
  for (int32_t i = 0; i < split->n; i++) {
    float x[SIDE * SIDE * IN];
    int32_t label;
    data_fill_batch(d, split, NULL, i, 1, &how, x, &label);
    compute_rows(net, x, label, &s[i]);
  }
  return s;
}

/* want[j] <- score of training sample j. */
static void predict(const nn *net, const data_set *d, const scores_how *how, double *want) {
  double A1[PATCH * PATCH] = {0}, G1[OUT * OUT] = {0}, D1[P1 * TRAIN] = {0};
  double A2[(HIDDEN + 1) * (HIDDEN + 1)] = {0}, G2[CLASSES * CLASSES] = {0}, D2[P2 * TRAIN] = {0};
  double E1[P1 * TRAIN] = {0}, E2[P2 * TRAIN] = {0}; /* gradients of the training samples */
  rows *train = rows_of_split(net, d, &d->train), *test = rows_of_split(net, d, &d->test);
  for (int j = 0; j < TRAIN; j++) {
    for (int p = 0; p < SPOTS; p++) {
      add_outer(PATCH, PATCH, train[j].a1[p], train[j].a1[p], 1.0 / TRAIN, A1);
      add_outer(OUT, OUT, train[j].g1[p], train[j].g1[p], 1.0 / TRAIN / SPOTS, G1);
    }
    add_outer(HIDDEN + 1, HIDDEN + 1, train[j].a2, train[j].a2, 1.0 / TRAIN, A2);
    add_outer(CLASSES, CLASSES, train[j].g2, train[j].g2, 1.0 / TRAIN, G2);
  }
  for (int j = 0; j < TRAIN; j++) { /* column j: D of the score j */
    double d1[P1] = {0}, d2[P2] = {0};
    for (int i = 0; i < TEST && !how->self; i++) {
      if (how->test < 0 || how->test == i)
        add_gradient(&test[i], how->test < 0 ? 1.0 / TEST : 1.0, d1, d2);
    }
    double e1[P1] = {0}, e2[P2] = {0};
    add_gradient(&train[j], 1.0, e1, e2);
    for (int e = 0; e < P1; e++) {
      E1[e * TRAIN + j] = e1[e];
      D1[e * TRAIN + j] = how->self ? e1[e] : d1[e];
    }
    for (int e = 0; e < P2; e++) {
      E2[e * TRAIN + j] = e2[e];
      D2[e * TRAIN + j] = how->self ? e2[e] : d2[e];
    }
  }
  solve(OUT, PATCH, G1, A1, how->damping, how->ekfac ? E1 : NULL, D1);
  solve(CLASSES, HIDDEN + 1, G2, A2, how->damping, how->ekfac ? E2 : NULL, D2);
  for (int j = 0; j < TRAIN; j++) {
    want[j] = 0.0;
    for (int e = 0; e < P1; e++)
      want[j] += D1[e * TRAIN + j] * E1[e * TRAIN + j];
    for (int e = 0; e < P2; e++)
      want[j] += D2[e * TRAIN + j] * E2[e * TRAIN + j];
  }
  free(train);
  free(test);
}

static void scores_match_dense_curvature(void **state) {
  static const scores_how list[] = {
      {-1, .empirical = true, .damping = 0.05},
      {2, .empirical = true, .damping = 0.05},
      {-1, .self = true, .empirical = true, .damping = 0.05},
      {-1, .empirical = true, .damping = -1.0},
      {6, .empirical = true, .damping = -1.0},
      {-1, .ekfac = true, .empirical = true, .damping = 0.05},
      {-1, .self = true, .ekfac = true, .empirical = true, .damping = 0.2},
      {-1, .damping = 0.05},
      {-1, .ekfac = true, .damping = 0.05}};
  data_set d;
  settings s;
  feed f;
  assert_int_equal(data_open("synthetic:classes=3,image=4x4x2,train=20,test=7", &d), CLI_OK);
  settings_init(&s);
  must_set_line(&s, "batch=6 augment=none");
  assert_int_equal(feed_create(&s, &d, NULL, false, NULL, &f), CLI_OK);
  nn *net = nn_create(NULL, 7);
  int y = nn_add_input(net, (nn_shape){SIDE, SIDE, IN});
  y = nn_add_conv(net, "conv", y, OUT, 3, 2, 1, true);
  (void)nn_add_linear(net, "fc", nn_add_tanh(net, y), CLASSES, true);
  assert_int_equal(nn_prepare(net, BATCH), CLI_OK);
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    scored_sample got[TRAIN];
    double want[TRAIN], most = 0.0, off = 0.0;
    int32_t count;
    assert_int_equal(scores_compute(ctx, &list[i], &s, false, &f, net, NULL, got, &count), CLI_OK);
    assert_int_equal(count, TRAIN);
    predict(net, &d, &list[i], want);
    for (int j = 0; j < TRAIN; j++) {
      assert_int_equal(got[j].row, j);
      assert_int_equal(got[j].label, d.train.labels[j]);
      most = fmax(most, fabs(want[j]));
      off = fmax(off, fabs(got[j].score - want[j]));
    }
    /* labels that the network draws give another K */
    if ((off <= TOLERANCE * most) != list[i].empirical)
      fail_msg("case %d: off by %g of %g", (int)i, off, most);
  }
  assert_ptr_equal(f.test, &d.test);
  nn_destroy(&net);
  feed_free(&f);
  data_close(&d);
  settings_free(&s);
}

/* ---- a mislabelled image -----------------------------------------------------------------------*/

static void mislabelled_digits_have_the_largest_self_influence(void **state) {
  enum { WRONG = 5 };
  static const int32_t wrong[WRONG] = {100, 333, 700, 1001, 1300};
  data_set d;
  settings s;
  feed f;
  nn *net = NULL;
  bool reconstructs;
  assert_int_equal(data_open("digits", &d), CLI_OK);
  int32_t *label = (int32_t *)(uintptr_t)d.train.labels;
  for (int i = 0; i < WRONG; i++)
    label[wrong[i]] = (label[wrong[i]] + 3) % 10;
  settings_init(&s);
  must_set_line(&s, "model=mlp batch=64 augment=none");
  assert_int_equal(feed_create(&s, &d, NULL, false, NULL, &f), CLI_OK);
  assert_int_equal(train_build_network(&s, &d, NULL, &net, &reconstructs), CLI_OK);
  assert_int_equal(nn_prepare(net, 64), CLI_OK);
  for (int64_t t = 0; t < 400; t++) { /* SGD */
    assert_int_equal(feed_fill_train(&f, t, 0), CLI_OK);
    assert_int_equal(nn_forward(net, NN_TRAIN, f.x, f.batch, (uint64_t)t, NULL), CLI_OK);
    (void)nn_compute_loss(net, NN_TRAIN, f.labels, NULL, NULL);
    assert_int_equal(nn_backward(net, true, NULL), CLI_OK);
    for (int i = 0; i < nn_count_params(net); i++) {
      const nn_param *p = nn_get_param(net, i);
      for (int64_t k = 0; k < p->count; k++)
        p->value[k] -= 0.1F * p->grad[k];
    }
  }
  scored_sample *got = must_calloc((size_t)d.train.n * sizeof *got);
  int32_t count;
  const scores_how how = {.test = -1, .self = true, .damping = -1.0};
  assert_int_equal(scores_compute(ctx, &how, &s, false, &f, net, NULL, got, &count), CLI_OK);
  scores_sort(got, count);
  int found = 0;
  for (int i = 0; i < 2 * WRONG; i++) {
    for (int k = 0; k < WRONG; k++)
      found += got[i].row == wrong[k];
    assert_true(i != 0 || found == 1); /* the sample with the largest score has a wrong label */
  }
  if (found != WRONG)
    fail_msg("%d of %d mislabelled digits among the first %d of %d", found, WRONG, 2 * WRONG,
             count);
  free(got);
  nn_destroy(&net);
  feed_free(&f);
  data_close(&d);
  settings_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(scores_match_dense_curvature),
      cmocka_unit_test(mislabelled_digits_have_the_largest_self_influence),
  };
  return cmocka_run_group_tests(tests, open_context, close_context);
}
