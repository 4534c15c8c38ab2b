/* t_nn_forward.c: outputs of every kind of node against plain loops in double, random numbers against their
 * distributions, losses by hand. */
#include "nn/models.h"
#include "nn/node.h"
#include "nn/winograd.h"
#include "common/random.h"
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double convolve_in_double(const nn_layer *l, const float *x, const float *w, const float *b,
                                 int64_t y, int64_t c, int64_t o) {
  double sum = b != NULL ? (double)b[o] : 0.0;
  for (int64_t i = 0; i < l->kernel; i++) {
    for (int64_t j = 0; j < l->kernel; j++) {
      const int64_t v = y * l->stride + i - l->padding, u = c * l->stride + j - l->padding;
      if (v < 0 || u < 0 || v >= l->height || u >= l->width) continue;
      for (int64_t k = 0; k < l->in; k++)
        sum += (double)x[(v * l->width + u) * l->in + k] *
               (double)w[((o * l->in + k) * l->kernel + i) * l->kernel + j];
    }
  }
  return sum;
}

static void convolution_matches_plain_loops(void **state) {
  ng_pool *pool = ng_pool_create(2, NULL);
  int checked = 0;
  for (int64_t kernel = 1; kernel <= 7; kernel++) {
    for (int64_t stride = 1; stride <= 3; stride++) {
      for (int64_t padding = 0; padding <= 3; padding++) {
        const nn_shape in = {6, 5 + padding % 2, 1 + kernel % 3};
        if (in.height + 2 * padding < kernel || in.width + 2 * padding < kernel) continue;
        nn *n = nn_create(pool, 5);
        (void)nn_add_conv(n, "a", nn_add_input(n, in), 1 + stride, kernel, stride, padding,
                          padding > 0);
        assert_int_equal(nn_prepare(n, 3), 0);
        float x[3 * 6 * 6 * 3];
        random_normal(5, RANDOM_DATA, 1, 1.0, 0, 3 * nn_count_values(in), x);
        assert_int_equal(nn_forward(n, NN_EVALUATE, x, 3, 0, NULL), 0);
        const nn_layer *l = nn_get_layer(n, 0);
        const nn_shape to = nn_get_shape(n, 1);
        assert_int_equal(l->positions, to.height * to.width);
        const float *w = nn_get_param(n, l->weight_param)->value;
        const float *b = l->has_bias ? nn_get_param(n, l->bias_param)->value : NULL;
        for (int64_t i = 0; i < 3 * nn_count_values(to); i++) {
          const int64_t o = i % to.channels, c = i / to.channels % to.width;
          const int64_t y = i / to.channels / to.width % to.height, s = i / nn_count_values(to);
          const double want = convolve_in_double(l, x + s * nn_count_values(in), w, b, y, c, o);
          /* f32 sums of n <= 7 * 7 * 3 terms of about 1 / sqrt(n) */
          if (!(fabs((double)nn_get_output(n)[i] - want) <= 1e-5)) {
            fail_msg("kernel %lld stride %lld padding %lld: output %g, expected %g",
                     (long long)kernel, (long long)stride, (long long)padding,
                     (double)nn_get_output(n)[i], want);
          }
        }
        checked++;
        nn_destroy(&n);
      }
    }
  }
  assert_true(checked > 60);
  ng_pool_destroy(pool);
}

/* ---- wide convolutions (winograd.c) ----------------------------------------------------------------*/

static double relative_error(const float *got, const double *want, int64_t count) {
  double error = 0.0, norm = 0.0;
  for (int64_t i = 0; i < count; i++) {
    error += pow((double)got[i] - want[i], 2.0);
    norm += want[i] * want[i];
  }
  return sqrt(error / norm);
}

/* Set y, and dw and dx for the output gradient dy, of a 3x3 convolution of stride 1, by plain loops. */
static void convolve_and_differentiate(const nn_layer *l, int64_t samples, const float *x,
                                       const float *w, const float *b, const float *dy, double *y,
                                       double *dw, double *dx) {
  const int64_t rows = l->out_height, columns = l->positions / rows;
  for (int64_t r = 0; r < samples * l->positions; r++) {
    const int64_t sample = r / l->positions, at = r % l->positions;
    for (int64_t o = 0; o < l->out; o++)
      y[r * l->out + o] = b != NULL ? (double)b[o] : 0.0;
    for (int64_t k = 0; k < 9; k++) {
      const int64_t v = at / columns + k / 3 - l->padding, u = at % columns + k % 3 - l->padding;
      if (v < 0 || u < 0 || v >= l->height || u >= l->width) continue;
      const int64_t pixel = ((sample * l->height + v) * l->width + u) * l->in;
      for (int64_t o = 0; o < l->out; o++) {
        const double d = (double)dy[r * l->out + o];
        for (int64_t c = 0; c < l->in; c++) {
          const int64_t e = (o * l->in + c) * 9 + k;
          y[r * l->out + o] += (double)x[pixel + c] * (double)w[e];
          dw[e] += d * (double)x[pixel + c];
          dx[pixel + c] += d * (double)w[e];
        }
      }
    }
  }
}

/* The network x -> 1x1 convolution a -> 3x3 convolution b; `second`: b has a second reader's gradient to add to. The
 * error of f32 sums is 1e-7 to 4e-7, and the transforms double it; 1e-6 is the bound for every form. */
static void wide_convolutions_match_plain_loops(void **state) {
  static const struct {
    int64_t height, width, in, out, padding, samples;
    bool bias, adds;
  } cases[] = {{6, 8, 16, 17, 1, 3, true, false},  {5, 7, 64, 80, 1, 2, false, true},
               {4, 3, 72, 64, 0, 1, true, false},  {4, 4, 64, 64, 2, 2, false, false},
               {1, 1, 65, 70, 1, 2, true, true},   {3, 9, 64, 66, 2, 1, false, true},
               {34, 33, 64, 64, 1, 2, true, false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ng_pool *pool = i % 2 == 0 ? ng_pool_create(2, NULL) : NULL;
    const nn_shape in = {cases[i].height, cases[i].width, cases[i].in};
    const int64_t samples = cases[i].samples, pixels = samples * nn_count_values(in);
    nn *n = nn_create(pool, 5);
    nn_set_loss(n, NN_SQUARED_ERROR, 0.0);
    const int a = nn_add_conv(n, "a", nn_add_input(n, in), cases[i].in, 1, 1, 0, false);
    const int b = nn_add_conv(n, "b", a, cases[i].out, 3, 1, cases[i].padding, cases[i].bias);
    if (cases[i].adds) { /* backward visits the later reader first; b then adds to its gradient */
      const int c = nn_add_global_pool(n, nn_add_conv(n, "c", a, cases[i].out, 1, 1, 0, false));
      (void)nn_add_sum(n, nn_add_global_pool(n, b), c);
    }
    assert_int_equal(nn_prepare(n, samples), 0);
    assert_true(nn_allocate(n, false)); /* false: gradients keep their memory until the end */
    nn_init_parameters(n);
    assert_true(nn_winograd_fits(n, &n->nodes[b]) && !nn_winograd_fits(n, &n->nodes[a]));
    float *x = malloc((size_t)pixels * sizeof *x);
    const int64_t outputs = samples * nn_count_outputs(n);
    float *targets = calloc((size_t)outputs, sizeof *targets);
    random_normal(6, RANDOM_DATA, 1, 1.0, 0, pixels, x);
    for (int pass = 0; pass < 2; pass++) { /* a repeat gives the same */
      assert_int_equal(nn_forward(n, NN_TRAIN, x, samples, 0, NULL), 0);
      (void)nn_compute_loss(n, NN_TRAIN, NULL, targets, NULL);
      assert_int_equal(nn_backward(n, true, NULL), 0);
    }
    const nn_layer *l = nn_get_layer(n, 1);
    const nn_param *w = nn_get_param(n, l->weight_param);
    const int64_t count = samples * l->positions * l->out;
    double *y = calloc((size_t)count, sizeof *y), *dw = calloc((size_t)w->count, sizeof *dw);
    double *dx = calloc((size_t)pixels, sizeof *dx);
    const float *bias = l->has_bias ? nn_get_param(n, l->bias_param)->value : NULL;
    convolve_and_differentiate(l, samples, n->nodes[a].out, w->value, bias, n->nodes[b].grad, y, dw,
                               dx);
    if (cases[i].adds) { /* the gradient through c: dy W */
      const float *g = n->nodes[b + 1].grad,
                  *v = nn_get_param(n, nn_get_layer(n, 2)->weight_param)->value;
      for (int64_t k = 0; k < pixels; k++)
        for (int64_t o = 0; o < l->out; o++)
          dx[k] += (double)g[k / l->in * l->out + o] * (double)v[o * l->in + k % l->in];
    }
    const double errors[3] = {relative_error(n->nodes[b].out, y, count),
                              relative_error(w->grad, dw, w->count),
                              relative_error(n->nodes[a].grad, dx, pixels)};
    for (int k = 0; k < 3; k++) {
      if (!(errors[k] <= 1e-6))
        fail_msg("case %zu: relative error %g of %s", i, errors[k],
                 k == 0   ? "y"
                 : k == 1 ? "dW"
                          : "dx");
    }
    free(x);
    free(targets);
    free(y);
    free(dw);
    free(dx);
    nn_destroy(&n);
    ng_pool_destroy(pool);
  }
}

static void normalisation_matches_plain_loops(void **state) {
  static const int64_t widths[] = {1, 3, 16, 64, 80};
  for (int w = 0; w < 5; w++) {
    const nn_shape in = {4, 4, widths[w]};
    const int64_t samples = 6, rows = samples * 16, c = in.channels;
    ng_pool *pool = w % 2 == 0 ? ng_pool_create(2, NULL) : NULL;
    nn *n = nn_create(pool, 5);
    (void)nn_add_norm(n, "n", nn_add_input(n, in));
    assert_int_equal(nn_prepare(n, samples), 0);
    float *x = malloc((size_t)(rows * c) * sizeof *x);
    random_normal(6, RANDOM_DATA, 1, 0.5, 0, rows * c, x);
    for (int64_t i = 0; i < rows * c; i++) /* channel k lies around 100 k; one is constant */
      x[i] = i % c == 2 ? 7.0F : x[i] + 100.0F * (float)(i % c % 5);
    assert_int_equal(nn_forward(n, NN_TRAIN, x, samples, 0, NULL), 0);
    for (int64_t k = 0; k < c; k++) {
      double mean = 0.0, var = 0.0;
      for (int64_t r = 0; r < rows; r++)
        mean += (double)x[r * c + k] / (double)rows;
      for (int64_t r = 0; r < rows; r++)
        var += pow((double)x[r * c + k] - mean, 2.0) / (double)rows;
      for (int64_t r = 0; r < rows; r++) {
        const double want = ((double)x[r * c + k] - mean) / sqrt(var + 1e-5);
        /* values near 400 are exact to 3e-5; divided by a deviation of 0.5 (3e-3 if constant) */
        assert_true(fabs((double)nn_get_output(n)[r * c + k] - want) <= (k == 2 ? 2e-2 : 2e-4));
      }
      assert_true(fabs((double)nn_get_buffer(n, 0)->value[k] - 0.1 * mean) <= 1e-5 * (1.0 + mean));
      const double unbiased = var * (double)rows / (double)(rows - 1);
      assert_true(fabs((double)nn_get_buffer(n, 1)->value[k] - 0.9 - 0.1 * unbiased) <= 1e-5);
    }
    /* Evaluation uses the running values and does not change them. */
    const float keep = nn_get_buffer(n, 0)->value[0];
    assert_int_equal(nn_forward(n, NN_EVALUATE, x, samples, 0, NULL), 0);
    assert_true(nn_get_buffer(n, 0)->value[0] == keep);
    const double r0 = 1.0 / sqrt((double)nn_get_buffer(n, 1)->value[0] + 1e-5);
    assert_true(fabs((double)nn_get_output(n)[0] - ((double)x[0] - (double)keep) * r0) <= 1e-4);
    free(x);
    nn_destroy(&n);
    ng_pool_destroy(pool);
  }
}

static void one_value_has_no_unbiased_variance(void **state) {
  nn *n = nn_create(NULL, 5);
  (void)nn_add_norm(n, "n", nn_add_input(n, (nn_shape){1, 1, 2}));
  assert_int_equal(nn_prepare(n, 1), 0);
  const float x[2] = {3.0F, -1.0F};
  assert_int_equal(nn_forward(n, NN_TRAIN, x, 1, 0, NULL), 0);
  for (int k = 0; k < 2; k++) {
    assert_true(nn_get_output(n)[k] == 0.0F);
    assert_true(isfinite(nn_get_buffer(n, 1)->value[k]));
  }
  nn_destroy(&n);
}

static void pools_ignore_positions_outside(void **state) {
  const float x[9] = {1, 2, 3, 4, 9, 6, 7, 8, 5};
  /* 3x3 windows with stride 2, padding 1: four corners of 2x2 values; 2x2 windows: 4, 2, 2 and 1 values */
  const float most[4] = {9, 9, 9, 9}, mean[4] = {4, 4.5F, 7.5F, 5};
  for (int kind = 0; kind < 2; kind++) {
    nn *n = nn_create(NULL, 5);
    const int in = nn_add_input(n, (nn_shape){3, 3, 1});
    (void)(kind == 0 ? nn_add_max_pool(n, in, 3, 2, 1) : nn_add_average_pool(n, in, 2, 2));
    assert_int_equal(nn_prepare(n, 1), 0);
    assert_int_equal(nn_forward(n, NN_EVALUATE, x, 1, 0, NULL), 0);
    for (int i = 0; i < 4; i++)
      assert_true(fabsf(nn_get_output(n)[i] - (kind == 0 ? most : mean)[i]) <= 1e-6F);
    nn_destroy(&n);
  }
}

/* Dropout drops the same values of samples 3 to 6 alone as in the batch of seven.  With 5 values per sample, no
 * part begins at a block of random words. */
static void parts_of_a_batch_draw_the_same_numbers(void **state) {
  enum { ALL = 7, FROM = 3, WIDE = 5 };
  float x[ALL * WIDE], whole[ALL * WIDE];
  nn *n = nn_create(NULL, 5);
  (void)nn_add_dropout(n, nn_add_input(n, (nn_shape){1, 1, WIDE}), 0.5);
  assert_int_equal(nn_prepare(n, ALL), 0);
  for (int i = 0; i < ALL * WIDE; i++) {
    x[i] = (float)(i + 1);
  }
  assert_int_equal(nn_forward(n, NN_TRAIN, x, ALL, 9, NULL), 0);
  memcpy(whole, nn_get_output(n), sizeof whole);
  nn_set_first_sample(n, FROM);
  assert_int_equal(nn_forward(n, NN_TRAIN, x + FROM * WIDE, ALL - FROM, 9, NULL), 0);
  assert_memory_equal(nn_get_output(n), whole + FROM * WIDE, (ALL - FROM) * WIDE * sizeof *x);
  nn_destroy(&n);
}

static void dropout_keeps_the_mean(void **state) {
  enum { MANY = 40000 };
  nn *n = nn_create(NULL, 5);
  (void)nn_add_dropout(n, nn_add_input(n, (nn_shape){1, 1, MANY}), 0.25);
  assert_int_equal(nn_prepare(n, 1), 0);
  float *x = malloc(MANY * sizeof *x);
  for (int i = 0; i < MANY; i++)
    x[i] = 1.0F;
  int zeros[2] = {0, 0}, both = 0;
  bool *was = malloc(MANY * sizeof *was);
  for (int step = 0; step < 2; step++) {
    assert_int_equal(nn_forward(n, NN_TRAIN, x, 1, (uint64_t)step, NULL), 0);
    for (int i = 0; i < MANY; i++) {
      const bool zero = nn_get_output(n)[i] == 0.0F;
      assert_true(zero || fabsf(nn_get_output(n)[i] - 1.0F / 0.75F) < 1e-6F);
      zeros[step] += zero;
      both += step == 1 && zero && was[i];
      was[i] = zero;
    }
  }
  free(was);
  assert_true(abs(both - MANY / 16) < 200); /* each step draws again */
  /* four deviations of a binomial with 40000 draws of 1/4: 350 */
  assert_true(abs(zeros[0] - MANY / 4) < 350 && abs(zeros[1] - MANY / 4) < 350);
  assert_int_equal(nn_forward(n, NN_EVALUATE, x, 1, 0, NULL), 0);
  for (int i = 0; i < MANY; i++)
    assert_true(nn_get_output(n)[i] == 1.0F);
  free(x);
  nn_destroy(&n);
}

static void gemm_matches_plain_loops(void **state) {
  enum { M = 7, N = 5, K = 9, LD = 11 };
  float a[LD * LD], b[LD * LD], c[LD * LD], want[LD * LD];
  random_normal(1, RANDOM_DATA, 1, 1.0, 0, LD * LD, a);
  random_normal(1, RANDOM_DATA, 2, 1.0, 0, LD * LD, b);
  for (int kind = 0; kind < 8; kind++) {
    const bool ta = (kind & 1) != 0, tb = (kind & 2) != 0;
    const float beta = (kind & 4) != 0 ? 0.5F : 0.0F;
    /* beta = 0 must not read C */
    for (int i = 0; i < LD * LD; i++)
      c[i] = want[i] = beta > 0.0F ? (float)i : (float)NAN;
    nn_gemm(ta, tb, M, N, K, 2.0F, a, LD, b, LD, beta, c, LD);
    nn_gemm_plain(ta, tb, M, N, K, 2.0F, a, LD, b, LD, beta, want, LD);
    for (int i = 0; i < M; i++) {
      for (int j = 0; j < N; j++)
        assert_true(fabsf(c[i * LD + j] - want[i * LD + j]) <= 2e-5F);
    }
  }
}

/* ---- losses ------------------------------------------------------------------------------------*/

static void losses_match_hand_computation(void **state) {
  nn *n = nn_create(NULL, 5);
  nn_set_loss(n, NN_CROSS_ENTROPY, 0.1);
  (void)nn_add_linear(n, "a", nn_add_input(n, (nn_shape){1, 1, 3}), 3, false);
  assert_int_equal(nn_prepare(n, 2), 0);
  float *w = nn_get_param(n, 0)->value;
  /* identity */
  for (int i = 0; i < 9; i++)
    w[i] = i % 4 == 0 ? 1.0F : 0.0F;
  const float x[6] = {1, 2, 3, 500, 0, -500}; /* exp of the second sample overflows */
  const int32_t labels[2] = {2, 0};
  int64_t correct = 0;
  assert_int_equal(nn_forward(n, NN_TRAIN, x, 2, 0, NULL), 0);
  const double loss = nn_compute_loss(n, NN_TRAIN, labels, NULL, &correct);
  const double all = log(exp(1) + exp(2) + exp(3));
  const double first = all - (0.9 * 3 + 0.1 / 3 * (1 + 2 + 3));
  const double second = 500 - 0.9 * 500; /* the 500 and -500 of smoothing cancel */
  assert_true(fabs(loss - 0.5 * (first + second)) < 1e-9 * 50);
  assert_int_equal(correct, 2);
  /* evaluation does not smooth labels */
  assert_int_equal(nn_forward(n, NN_EVALUATE, x, 2, 0, NULL), 0);
  assert_true(fabs(nn_compute_loss(n, NN_EVALUATE, labels, NULL, NULL) - 0.5 * (all - 3)) < 1e-9);
  nn_destroy(&n);
}

/* Sampled gradients have the second moment diag(s) - s s' of a softmax (per sample, times 1/B^2). */
static void sampled_targets_have_the_fisher_moment(void **state) {
  enum { DRAWS = 20000 };
  nn *n = nn_create(NULL, 11);
  (void)nn_add_linear(n, "a", nn_add_input(n, (nn_shape){1, 1, 3}), 3, false);
  assert_int_equal(nn_prepare(n, 1), 0);
  float *w = nn_get_param(n, 0)->value;
  for (int i = 0; i < 9; i++)
    w[i] = i % 4 == 0 ? 1.0F : 0.0F;
  const float x[3] = {0.0F, 1.0F, -0.5F};
  double s[3], sum = 0.0, moment[9] = {0};
  for (int k = 0; k < 3; k++)
    sum += exp((double)x[k]);
  for (int k = 0; k < 3; k++)
    s[k] = exp((double)x[k]) / sum;
  assert_int_equal(nn_forward(n, NN_TRAIN, x, 1, 0, NULL), 0);
  for (int d = 0; d < DRAWS; d++) {
    nn_compute_sampled_loss(n, (uint64_t)d);
    for (int i = 0; i < 9; i++)
      moment[i] += (double)n->loss_grad[i / 3] * (double)n->loss_grad[i % 3] / DRAWS;
  }
  for (int i = 0; i < 9; i++) {
    const double want = (i / 3 == i % 3 ? s[i / 3] : 0.0) - s[i / 3] * s[i % 3];
    assert_true(fabs(moment[i] - want) < 4.0 * 0.5 / sqrt(DRAWS)); /* four deviations */
  }
  nn_destroy(&n);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(convolution_matches_plain_loops),
      cmocka_unit_test(wide_convolutions_match_plain_loops),
      cmocka_unit_test(normalisation_matches_plain_loops),
      cmocka_unit_test(one_value_has_no_unbiased_variance),
      cmocka_unit_test(pools_ignore_positions_outside),
      cmocka_unit_test(dropout_keeps_the_mean),
      cmocka_unit_test(parts_of_a_batch_draw_the_same_numbers),
      cmocka_unit_test(gemm_matches_plain_loops),
      cmocka_unit_test(losses_match_hand_computation),
      cmocka_unit_test(sampled_targets_have_the_fisher_moment),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
