/* t_mix.c: mixup and random erasing against the published formulas, computed here in double from the same draws;
 * draws against their distributions; soft targets against the derivative; the stored previous batch in a
 * checkpoint. */
#include "nn/models.h"
#include "common/random.h"
#include "train/mix.h"
#include "trainer_help.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { B = 3, H = 9, W = 7, C = 2, PER = H * W * C, K = 4, BATCHES = 5 };

static const data_set images = {
    .name = "images", .height = H, .width = W, .channels = C, .classes = K};

/* ---- draws -------------------------------------------------------------------------------------*/

/* max(l, 1 - l) of a symmetric Beta has E[(2 l - 1)^2] = 1 / (2 alpha + 1), four times its variance. */
static void mixing_weights_have_a_beta_distribution(void **state) {
  enum { N = 40000 };
  static const double alphas[] = {0.05, 0.4, 0.6, 1.0, 4.0};
  for (int a = 0; a < 5; a++) {
    double square = 0.0, fourth = 0.0;
    for (int32_t i = 0; i < N; i++) {
      const double l = mix_draw_weight(alphas[a], 11, 3, i);
      assert_true(l >= 0.5 && l <= 1.0);
      square += pow(2.0 * l - 1.0, 2.0) / N;
      fourth += pow(2.0 * l - 1.0, 4.0) / N;
    }
    const double want = 1.0 / (2.0 * alphas[a] + 1.0);
    const double want4 = 3.0 * want / (2.0 * alphas[a] + 3.0);
    /* five deviations of a mean of N; draws are fixed, so the result is always the same */
    if (fabs(square - want) > 5.0 * sqrt((want4 - want * want) / N) || fabs(fourth - want4) > 0.02)
      fail_msg("alpha %g: moments %g and %g, expected %g and %g", alphas[a], square, fourth, want,
               want4);
  }
  /* with the smallest alpha one sample has weight 1 */
  for (int32_t i = 0; i < 1000; i++)
    assert_true(mix_draw_weight(5e-324, 11, 3, i) == 1.0);
}

/* Compute the rectangle to erase by the published formula, from the same random words. */
static mix_box compute_box(double rate, double low, double high, double thin, uint64_t seed,
                           uint32_t epoch, int32_t row, int64_t h, int64_t w) {
  uint32_t a[4], b[4];
  random_words(seed, RANDOM_ERASE, epoch, 2 * (uint64_t)row, a);
  random_words(seed, RANDOM_ERASE, epoch, 2 * (uint64_t)row + 1, b);
  if (random_unit(a[0]) >= rate) return (mix_box){0, 0, 0, 0};
  const double area = (double)(h * w) * (low + (high - low) * random_unit(a[1]));
  const double aspect = thin + (1.0 - thin) * random_unit(a[2]);
  int64_t eh = (int64_t)(sqrt(area * aspect) + 0.5), ew = (int64_t)(sqrt(area / aspect) + 0.5);
  if (a[3] >= 1U << 31) {
    const int64_t swap = eh;
    eh = ew;
    ew = swap;
  }
  eh = eh < h ? eh : h;
  ew = ew < w ? ew : w;
  const int64_t top = (int64_t)floor((double)b[0] / 4294967296.0 * (double)(h - eh + 1));
  const int64_t left = (int64_t)floor((double)b[1] / 4294967296.0 * (double)(w - ew + 1));
  return (mix_box){top, left, eh, ew};
}

static void rectangles_match_the_published_formula(void **state) {
  enum { N = 4000, SIDE = 40 };
  settings s;
  settings_init(&s);
  must_set_line(&s, "erase-rate=0.5 seed=9");
  int erased = 0, tall = 0, last = 0;
  for (int32_t i = 0; i < N; i++) {
    const mix_box got = mix_draw_erased_box(&s, 4, i, SIDE, SIDE + 8);
    const mix_box want = compute_box(0.5, 0.02, 0.25, 0.3, 9, 4, i, SIDE, SIDE + 8);
    assert_memory_equal(&got, &want, sizeof got);
    if (got.height == 0) continue;
    erased++;
    tall += got.height > got.width;
    last += got.top == SIDE - got.height;
    assert_true(got.top >= 0 && got.top + got.height <= SIDE);
    assert_true(got.left >= 0 && got.left + got.width <= SIDE + 8);
    /* each side is rounded by at most 0.5; the sides are at least 3 x 7, the area at most 0.25 */
    const double share = (double)(got.height * got.width) / (double)(SIDE * (SIDE + 8));
    assert_true(share > 0.01 && share < 0.27);
  }
  /* five deviations: sqrt(N / 4) = 32; half of the erased rectangles are tall, except the few squares */
  assert_true(abs(erased - N / 2) < 160 && abs(2 * tall - erased) < 300);
  assert_true(last > 0); /* the last position occurs */
  settings_free(&s);
}

/* ---- batches -----------------------------------------------------------------------------------*/

static void batches_are_mixed_and_erased(void **state) {
  for (int kind = 0; kind < 4; kind++) { /* bit 0: running mixup; bit 1: erasing */
    const bool running = (kind & 1) != 0, erases = (kind & 2) != 0;
    settings s;
    settings_init(&s);
    must_set_line(&s, "mixup-alpha=0.4 batch=3 seed=5 label-smoothing=0.1");
    must_set(&s, "running-mixup", running ? "true" : "false");
    must_set(&s, "erase-rate", erases ? "0.7" : "0");
    mix m;
    assert_int_equal(mix_create(&s, &images, NULL, false, &m), 0);
    float x[B * PER];
    double before[B * PER] = {0}, before_t[B * K] = {0};
    for (int n = 0; n < BATCHES; n++) {
      const int32_t rows[B] = {7 * n, 7 * n + 3, 100 - n}, labels[B] = {n % K, 3, (n + 1) % K};
      double want[B * PER], t[B * K];
      random_normal(1, RANDOM_DATA, (uint32_t)n, 1.0, 0, (int64_t)B * PER, x);
      for (int i = 0; i < B; i++) {
        const double l = n == 0 ? 1.0 : mix_draw_weight(0.4, 5, (uint32_t)n, rows[i]);
        const mix_box b = erases ? compute_box(0.7, 0.02, 0.25, 0.3, 5, (uint32_t)n, rows[i], H, W)
                                 : (mix_box){0, 0, 0, 0};
        for (int k = 0; k < PER; k++) {
          const int64_t row = k / C / W, column = k / C % W;
          const bool gone = row >= b.top && row < b.top + b.height && column >= b.left &&
                            column < b.left + b.width;
          const double raw = (double)x[i * PER + k];
          const double mixed = l * raw + (1.0 - l) * before[i * PER + k];
          want[i * PER + k] = gone ? 0.0 : mixed;
          before[i * PER + k] = running ? want[i * PER + k] : raw;
        }
        for (int k = 0; k < K; k++) {
          const double hard = 0.1 / K + (k == labels[i] ? 0.9 : 0.0);
          t[i * K + k] = l * hard + (1.0 - l) * before_t[i * K + k];
          before_t[i * K + k] = running ? t[i * K + k] : hard;
        }
      }
      mix_batch(&m, (uint32_t)n, rows, labels, x);
      /* numbers of order 1 in f32, a few roundings per batch */
      for (int k = 0; k < B * PER; k++) {
        if (fabs((double)x[k] - want[k]) > 2e-6)
          fail_msg("kind %d, batch %d: pixel value %d is %g, expected %g", kind, n, k, (double)x[k],
                   (double)want[k]);
      }
      for (int k = 0; k < B * K; k++)
        assert_true(fabs((double)m.targets[k] - t[k]) < 1e-6);
    }
    mix_free(&m);
    settings_free(&s);
  }
}

static void erasing_works_without_mixup(void **state) {
  settings s;
  settings_init(&s);
  must_set_line(&s, "erase-rate=1 batch=3");
  mix m;
  assert_int_equal(mix_create(&s, &images, NULL, false, &m), 0);
  assert_null(m.targets); /* the loss uses the labels */
  const int32_t rows[B] = {1, 2, 3}, labels[B] = {0, 1, 2};
  float x[B * PER];
  for (int k = 0; k < B * PER; k++)
    x[k] = 1.0F;
  mix_batch(&m, 0, rows, labels, x);
  for (int i = 0; i < B; i++) {
    const mix_box b = mix_draw_erased_box(&s, 0, rows[i], H, W);
    double sum = 0.0;
    for (int k = 0; k < PER; k++)
      sum += (double)x[i * PER + k];
    assert_true(b.height > 0 && sum == (double)(PER - b.height * b.width * C));
  }
  mix_free(&m);
  capture_stderr();
  const data_set rows_of = {.name = "rows", .height = 1, .width = 1, .channels = 5, .classes = 2};
  assert_int_equal(mix_create(&s, &rows_of, NULL, false, &m), CLI_BAD);
  assert_non_null(
      strstr(captured_stderr(), "--erase-rate: needs images, rows has none"));
  capture_stderr();
  assert_int_equal(mix_create(&s, &images, NULL, true, &m), CLI_BAD);
  assert_non_null(strstr(captured_stderr(), "--erase-rate: model mlp has no labels"));
  settings_free(&s);
}

/* ---- the gradient ------------------------------------------------------------------------------*/

/* The derivative of cross entropy with soft targets is the mean of softmax(y) - t over two samples. */
static void gradient_uses_soft_targets(void **state) {
  const float t[2 * K] = {0.7F, 0.1F, 0.2F, 0.0F, 0.0F, 0.25F, 0.5F, 0.25F};
  const int32_t labels[2] = {0, 2};
  float x[2 * 5];
  random_normal(3, RANDOM_DATA, 1, 2.0, 0, 10, x);
  nn *n = nn_create(NULL, 4);
  (void)nn_add_linear(n, "fc", nn_add_input(n, (nn_shape){1, 1, 5}), K, true);
  assert_int_equal(nn_prepare(n, 2), 0);
  assert_int_equal(nn_forward(n, NN_TRAIN, x, 2, 0, NULL), 0);
  double want[K] = {0.0};
  for (int i = 0; i < 2; i++) {
    const float *y = nn_get_output(n) + (ptrdiff_t)i * K;
    double all = 0.0;
    for (int k = 0; k < K; k++)
      all += exp((double)y[k]);
    for (int k = 0; k < K; k++)
      want[k] += 0.5 * (exp((double)y[k]) / all - (double)t[i * K + k]);
  }
  int64_t correct = -1, plain_correct = -1;
  const double plain = nn_compute_loss(n, NN_TRAIN, labels, NULL, &plain_correct);
  /* the loss equals the loss of the labels */
  assert_true(nn_compute_loss(n, NN_TRAIN, labels, t, &correct) == plain);
  assert_int_equal(correct, plain_correct);
  assert_int_equal(nn_backward(n, true, NULL), 0);
  for (int k = 0; k < K; k++) /* bias: f32 numbers of order 1 */
    assert_true(fabs((double)nn_get_param(n, 1)->grad[k] - want[k]) < 1e-6);
  nn_destroy(&n);
}

/* ---- in a checkpoint ---------------------------------------------------------------------------*/

static void checkpoints_store_the_previous_batch(void **state) {
  settings s;
  settings_init(&s);
  must_set_line(&s, "mixup-alpha=1 running-mixup=true batch=3");
  mix m, again;
  assert_int_equal(mix_create(&s, &images, NULL, false, &m), 0);
  assert_int_equal(mix_create(&s, &images, NULL, false, &again), 0);
  const int32_t rows[B] = {1, 2, 3}, labels[B] = {0, 1, 2};
  float x[2][B * PER];
  for (uint32_t n = 0; n < 3; n++) {
    random_normal(1, RANDOM_DATA, n, 1.0, 0, (int64_t)B * PER, x[0]);
    mix_batch(&m, n, rows, labels, x[0]);
  }
  ngio_tensor whole[2];
  assert_int_equal(mix_gather(&m, whole), 0);
  assert_int_equal(mix_scatter(&again, whole), 0);
  mix_free_tensors(whole);
  random_normal(1, RANDOM_DATA, 9, 1.0, 0, (int64_t)B * PER, x[0]);
  memcpy(x[1], x[0], sizeof x[0]);
  mix_batch(&m, 3, rows, labels, x[0]);
  mix_batch(&again, 3, rows, labels, x[1]);
  assert_memory_equal(x[0], x[1], sizeof x[0]);
  assert_memory_equal(m.targets, again.targets, B * K * sizeof(float));
  mix_free(&m);
  mix_free(&again);
  settings_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mixing_weights_have_a_beta_distribution),
      cmocka_unit_test(rectangles_match_the_published_formula),
      cmocka_unit_test(batches_are_mixed_and_erased),
      cmocka_unit_test(erasing_works_without_mixup),
      cmocka_unit_test(gradient_uses_soft_targets),
      cmocka_unit_test(checkpoints_store_the_previous_batch),
  };
  return cmocka_run_group_tests(tests, make_folder, delete_folder);
}
