/* t_bf16.c: Newton-Schulz by the bodies of bf16.h, beside `ref`, which multiplies in double.
 *
 * - One iteration of matrices whose sums are exact in f32: a body and `ref` give the same numbers.
 * - Without rounding, `ref` and the first backend beside loops in double.
 * - Five iterations of random matrices: sums may differ in the last bit, and the next iterations amplify the difference. Tolerance
 *   2e-2; a last bit of bf16 is 0.4 %. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "kernel/kernel.h"
#include "linalg/bf16.h"
#include "linalg_check.h"

static const double dyadic[1][3] = {{3.5, -4.75, 2.0}};
static const double cubic[5][3] = {
    {3.375, -3.375, 0.0}, {2.5, -1.5, 0.0}, {2.5, -1.5, 0.0}, {2.5, -1.25, 0.0}, {2.25, -1.0, 0.0}};
static const double simple[5][3] = {{3.4445, -4.7750, 2.0315},
                                    {3.4445, -4.7750, 2.0315},
                                    {3.4445, -4.7750, 2.0315},
                                    {3.4445, -4.7750, 2.0315},
                                    {3.4445, -4.7750, 2.0315}};

/* Sides below, at and above blocks of 32; then several pieces, and panels longer than a chunk; at last pieces with fewer than
 * a chunk of local blocks, for exact sums only. */
static const int64_t shapes[][2] = {{16, 16},  {33, 31},    {32, 64},  {70, 300},
                                    {300, 70}, {260, 1100}, {448, 440}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const ng_ns_rounding roundings[] = {NG_NS_EACH, NG_NS_FUSED};

/* Loop over the bodies that this processor has. */
#define EACH_BODY(body)                                                                            \
  for (ng_bf16_body body = NG_BF16_AVX512; body <= NG_BF16_AMX; body++)                            \
    if (ng_bf16_can_run(body))

/* Replace X by its result: by `ref` (body NONE), or by a body with a number of threads. */
static void iterate(ng_newton_schulz x, float *X, ng_bf16_body body, int32_t threads) {
  const int64_t bytes = ng_newton_schulz_scratch(&x) * (int64_t)sizeof(float);
  ng_queue q = queue_of(&ng_backend_ref);
  float *scratch = work_new(bytes);
  x.X = X;
  q.threads = threads;
  if (body == NG_BF16_NONE) {
    ng_linalg_ref.newton_schulz(&q, &x, 1, scratch);
  } else {
    CHECK(ng_bf16_newton_schulz(&q, body, &x, scratch));
  }
  work_free(scratch, bytes);
}

static float *copy_of(const float *X, int64_t n) {
  float *Y = malloc((size_t)n * sizeof *Y);
  memcpy(Y, X, (size_t)n * sizeof *Y);
  return Y;
}

/* Fail if a body differs from `ref` by more than `most`, or if its bits depend on the number of threads. */
static void compare_bodies(const ng_newton_schulz *x, const float *X, double most) {
  const int64_t n = x->rows * x->cols;
  float *expected = copy_of(X, n);
  iterate(*x, expected, NG_BF16_NONE, 1);
  EACH_BODY(body) {
    float *one = copy_of(X, n), *five = copy_of(X, n);
    iterate(*x, one, body, 1);
    iterate(*x, five, body, 5);
    for (int64_t i = 0; i < n; i++) {
      CASE("body %d, %" PRId64 "x%" PRId64 ", rounding %d, element %" PRId64 ": %g, not %g",
           (int)body, x->rows, x->cols, (int)x->rounding, i, (double)one[i], (double)expected[i]);
      CHECK(fabs((double)one[i] - (double)expected[i]) <= most);
      CHECK(same(one[i], five[i]));
    }
    free(one);
    free(five);
  }
  free(expected);
}

static int64_t largest_square(int64_t most) { /* the largest power of 4, up to `most` and 1024 */
  int64_t n = 1;
  while (4 * n <= most && n < 1024)
    n *= 4;
  return n;
}

/* X has 4^k entries of 1 or -1, so |X| = 2^k, and the entries of A and A A are whole numbers times powers of 2. All other entries
 * are 0 or, if `subnormal`, subnormal, and must not change the result. */
static void check_exact_sums(bool subnormal) {
  rng r = {(uint64_t)(uniform() * 1e9) + 77};
  for (int s = 0; s < SHAPES; s++) {
    for (int k = 0; k < 2; k++) {
      ng_newton_schulz x = {.rows = shapes[s][0],
                            .cols = shapes[s][1],
                            .coefficients = dyadic,
                            .steps = 1,
                            .bounds_norm = true,
                            .epsilon = 0x1p-20,
                            .scale = k == 0 ? 1.25 : 1.0,
                            .rounding = roundings[k]};
      const int64_t n = x.rows * x.cols;
      float *X = calloc((size_t)n, sizeof *X);
      for (int64_t i = 0; i < n && subnormal; i++)
        X[i] = i % 3 == 0 ? 0x1p-130f : i % 3 == 1 ? -0x1p-127f : 0.0f;
      for (int64_t left = largest_square(n / 8); left > 0;) {
        const int64_t i = rng_below(&r, n);
        if (fabsf(X[i]) == 1.0f) continue;
        X[i] = left-- % 2 == 0 ? 1.0f : -1.0f;
      }
      compare_bodies(&x, X, subnormal ? 0x1p-120 : 0.0);
      free(X);
    }
  }
}

static void bodies_give_exact_sums(void **state) {
  (void)state;
  check_exact_sums(false);
}

static void bodies_take_subnormals_for_zero(void **state) {
  (void)state;
  check_exact_sums(true);
}

static void compare_random(int64_t rows, int64_t cols, ng_ns_rounding rounding, bool is_cubic) {
  const ng_newton_schulz x = {.rows = rows,
                              .cols = cols,
                              .coefficients = is_cubic ? cubic : simple,
                              .steps = 5,
                              .epsilon = 1e-7,
                              .scale = 0.75,
                              .rounding = rounding};
  float *X = malloc((size_t)(rows * cols) * sizeof *X);
  for (int64_t i = 0; i < rows * cols; i++)
    X[i] = (float)uniform();
  compare_bodies(&x, X, 2e-2);
  free(X);
}

static void bodies_iterate_as_ref(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES - 1; s++) {
    for (int k = 0; k < 2; k++) {
      compare_random(shapes[s][0], shapes[s][1], roundings[k], false);
      if (s < SHAPES - 2) compare_random(shapes[s][0], shapes[s][1], roundings[k], true);
    }
  }
}

static void nan_spreads_to_all_entries(void **state) {
  (void)state;
  EACH_BODY(body) {
    float X[40 * 33];
    const ng_newton_schulz x = {.rows = 40,
                                .cols = 33,
                                .coefficients = simple,
                                .steps = 2,
                                .epsilon = 1e-7,
                                .scale = 1.0,
                                .rounding = NG_NS_FUSED};
    for (int i = 0; i < 40 * 33; i++)
      X[i] = i == 700 ? NAN : 1.0f;
    iterate(x, X, body, 1);
    for (int i = 0; i < 40 * 33; i++)
      CHECK(isnan(X[i]));
  }
}

static void zero_stays_zero(void **state) {
  (void)state;
  EACH_BODY(body) {
    for (int k = 0; k < 2; k++) {
      float X[20 * 50] = {0};
      const ng_newton_schulz x = {.rows = 20,
                                  .cols = 50,
                                  .coefficients = simple,
                                  .steps = 2,
                                  .bounds_norm = k == 1,
                                  .epsilon = 1e-7,
                                  .scale = 1.0,
                                  .rounding = roundings[k]};
      iterate(x, X, body, 1);
      for (int i = 0; i < 20 * 50; i++)
        CHECK(X[i] == 0.0f);
    }
  }
}

static void without_body_nothing_changes(void **state) {
  (void)state;
  ng_queue q = queue_of(&ng_backend_ref);
  const struct {
    ng_bf16_body body;
    int64_t rows, cols;
    ng_ns_rounding rounding;
  } list[] = {{NG_BF16_NONE, 32, 64, NG_NS_FUSED},
              {NG_BF16_AMX, 32, 64, NG_NS_EXACT},
              {NG_BF16_AMX, 15, 64, NG_NS_FUSED},
              {NG_BF16_AMX, 64, 15, NG_NS_EACH}};
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    float X = 3.0f, scratch = 4.0f;
    const ng_newton_schulz x = {
        .X = &X, .rows = list[i].rows, .cols = list[i].cols, .rounding = list[i].rounding};
    CHECK(!ng_bf16_newton_schulz(&q, list[i].body, &x, &scratch));
    CHECK(X == 3.0f && scratch == 4.0f);
  }
}

static void cpu_uses_the_fastest_body(void **state) {
  (void)state;
  const ng_bf16_body body = ng_bf16_find_body();
  ng_queue q = queue_of(ng_backend_at(0)); /* `cpu`, if this build has a BLAS */
  if (body == NG_BF16_NONE || strcmp(q.backend->name, "cpu") != 0) return;
  assert_true(ng_bf16_can_run(body));
  float X[48 * 96], Y[48 * 96];
  ng_newton_schulz x = {.rows = 48,
                        .cols = 96,
                        .coefficients = simple,
                        .steps = 5,
                        .epsilon = 1e-7,
                        .scale = 1.0,
                        .rounding = NG_NS_FUSED};
  const int64_t bytes = ng_newton_schulz_scratch(&x) * (int64_t)sizeof(float);
  float *scratch = work_new(bytes);
  for (int i = 0; i < 48 * 96; i++)
    X[i] = Y[i] = (float)uniform();
  iterate(x, X, body, 1);
  x.X = Y;
  ng_linalg(&q)->newton_schulz(&q, &x, 1, scratch);
  ng_queue_wait(&q);
  for (int i = 0; i < 48 * 96; i++)
    CHECK(same(X[i], Y[i]));
  work_free(scratch, bytes);
}

/* X <- scale times the result, by loops in double and without rounding. */
static void iterate_in_double(const ng_newton_schulz *x, double *X) {
  const int64_t R = x->rows, K = x->cols, n = R * R;
  double *A = malloc((size_t)n * sizeof *A), *P = malloc((size_t)n * sizeof *P);
  double *Y = malloc((size_t)(R * K) * sizeof *Y), squares = 0.0;
  for (int64_t i = 0; i < R * K; i++)
    squares += X[i] * X[i];
  for (int64_t i = 0; i < R * K; i++)
    X[i] /= sqrt(squares) + x->epsilon;
  for (int32_t step = 0; step < x->steps; step++) { /* X <- a X + (b A + c A A) X, A = X X' */
    const double *c = x->coefficients[step];
    memset(A, 0, (size_t)n * sizeof *A);
    for (int64_t i = 0; i < n; i++)
      for (int64_t k = 0; k < K; k++)
        A[i] += X[i / R * K + k] * X[i % R * K + k];
    for (int64_t i = 0; i < n; i++) {
      P[i] = c[1] * A[i] + (i / R == i % R ? c[0] : 0.0);
      for (int64_t k = 0; k < R; k++)
        P[i] += c[2] * A[i / R * R + k] * A[k * R + i % R];
    }
    memset(Y, 0, (size_t)(R * K) * sizeof *Y);
    for (int64_t i = 0; i < n; i++)
      for (int64_t k = 0; k < K; k++)
        Y[i / R * K + k] += P[i] * X[i % R * K + k];
    memcpy(X, Y, (size_t)(R * K) * sizeof *X);
  }
  for (int64_t i = 0; i < R * K; i++)
    X[i] *= x->scale;
  free(A);
  free(P);
  free(Y);
}

static void f32_is_near_double(void **state) {
  (void)state;
  static const int64_t sides[][2] = {{5, 3}, {33, 31}, {197, 211}, {230, 190}};
  for (int i = 0; i < 16; i++) {
    const int64_t rows = sides[i / 4][0], cols = sides[i / 4][1], n = rows * cols;
    const ng_newton_schulz x = {.rows = rows,
                                .cols = cols,
                                .coefficients = i % 2 == 0 ? simple : cubic,
                                .steps = 2 + i / 2 % 2,
                                .epsilon = 0.5,
                                .scale = i % 2 == 0 ? 1.0 : 0.75};
    float *X = malloc((size_t)n * sizeof *X), *by_ref = malloc((size_t)n * sizeof *by_ref);
    double *expected = malloc((size_t)n * sizeof *expected);
    for (int64_t k = 0; k < n; k++)
      expected[k] = (double)(by_ref[k] = X[k] = (float)uniform() - 0.5f);
    iterate_in_double(&x, expected);
    iterate(x, by_ref, NG_BF16_NONE, 1);
    ng_queue q = queue_of(ng_backend_at(0));
    const int64_t bytes = ng_newton_schulz_scratch(&x) * (int64_t)sizeof(float);
    float *scratch = work_new(bytes);
    ng_newton_schulz first = x;
    q.threads = 5;
    first.X = X;
    ng_linalg(&q)->newton_schulz(&q, &first, 1, scratch);
    ng_queue_wait(&q);
    for (int64_t k = 0; k < n; k++) {
      CASE("%" PRId64 "x%" PRId64 ", case %d, element %" PRId64 ": %g and %g, not %g", rows, cols,
           i, k, (double)X[k], (double)by_ref[k], expected[k]);
      CHECK(fabs((double)X[k] - expected[k]) <= 2e-5);
      CHECK(fabs((double)by_ref[k] - expected[k]) <= 2e-5);
    }
    work_free(scratch, bytes);
    free(X);
    free(by_ref);
    free(expected);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(f32_is_near_double),
      EACH(bodies_give_exact_sums),
      EACH(bodies_take_subnormals_for_zero),
      EACH(bodies_iterate_as_ref),
      EACH(nan_spreads_to_all_entries),
      EACH(zero_stays_zero),
      EACH(cpu_uses_the_fastest_body),
      EACH(without_body_nothing_changes),
  };
  if (!ng_bf16_can_run(NG_BF16_AVX512)) print_message("[  NOTE  ] no AVX512_BF16: no body runs\n");
  if (!ng_bf16_can_run(NG_BF16_AMX)) print_message("[  NOTE  ] no AMX: this body does not run\n");
  return cmocka_run_group_tests(tests, seed_begin, NULL);
}
