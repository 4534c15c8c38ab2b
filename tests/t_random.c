/* t_random.c: the generator against Random123's known answers (kat_vectors, philox4x32 10), and its distributions. */
#include "common/random.h"
#include "unit_test.h"

#include <math.h>
#include <string.h>

static void numbers_match_the_known_answers(void **state) {
  static const struct {
    uint64_t seed, counter;
    uint32_t item, purpose, out[4];
  } known[] = {
      {0, 0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {UINT64_MAX,
       UINT64_MAX,
       UINT32_MAX,
       UINT32_MAX,
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822,
       0x85a308d3243f6a88,
       0x13198a2e,
       0x03707344,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (int i = 0; i < 3; i++) {
    uint32_t out[4];
    random_words(known[i].seed, (random_purpose)known[i].purpose, known[i].item, known[i].counter,
                 out);
    assert_memory_equal(out, known[i].out, sizeof out);
  }
}

enum { MANY = 100000 };
static float x[MANY];

static void moments_match_the_distributions(void **state) {
  double mean = 0.0, square = 0.0, third = 0.0, fourth = 0.0;
  random_uniform(3, RANDOM_INIT, 1, -2.0, 1.0, MANY, x);
  for (int i = 0; i < MANY; i++) {
    assert_true(x[i] >= -2.0F && x[i] < 1.0F);
    mean += (double)x[i] / MANY;
    square += ((double)x[i] + 0.5) * ((double)x[i] + 0.5) / MANY;
  }
  /* five deviations: sqrt(0.75 / n) = 2.7e-3, for the square sqrt(0.45 / n) = 2.1e-3 */
  assert_true(fabs(mean + 0.5) < 0.014 && fabs(square - 0.75) < 0.011);
  random_normal(3, RANDOM_INIT, 2, 2.0, 0, MANY, x);
  mean = square = 0.0;
  for (int i = 0; i < MANY; i++) {
    const double z = (double)x[i] / 2.0;
    mean += z / MANY;
    square += z * z / MANY;
    third += z * z * z / MANY;
    fourth += z * z * z * z / MANY;
  }
  /* five deviations of the four moments: 1, sqrt 2, sqrt 15, sqrt 96, each over sqrt n */
  assert_true(fabs(mean) < 0.016 && fabs(square - 1.0) < 0.023);
  assert_true(fabs(third) < 0.062 && fabs(fourth - 3.0) < 0.16);
}

/* A number depends on its index only, not on the first index or the count. */
static void numbers_depend_on_their_index(void **state) {
  float few[7];
  random_normal(5, RANDOM_DATA, 9, 1.0, 0, MANY, x);
  random_normal(5, RANDOM_DATA, 9, 1.0, 0, 7, few);
  assert_memory_equal(few, x, sizeof few);
  random_normal(5, RANDOM_DATA, 10, 1.0, 0, 7, few);
  assert_memory_not_equal(few, x, sizeof few);
  random_normal(6, RANDOM_DATA, 9, 1.0, 0, 7, few);
  assert_memory_not_equal(few, x, sizeof few);
  random_normal(5, RANDOM_INIT, 9, 1.0, 0, 7, few);
  assert_memory_not_equal(few, x, sizeof few);
}

static void order_is_a_fair_permutation(void **state) {
  enum { N = 6, TRIALS = 60000 };
  int count[N][N] = {{0}};
  for (uint32_t t = 0; t < TRIALS; t++) {
    int32_t order[N];
    int seen = 0;
    random_order(8, RANDOM_ORDER, t, N, order);
    for (int i = 0; i < N; i++) {
      assert_true(order[i] >= 0 && order[i] < N);
      seen |= 1 << order[i];
      count[i][order[i]]++;
    }
    assert_int_equal(seen, (1 << N) - 1);
  }
  double chi = 0.0;
  for (int i = 0; i < N * N; i++)
    chi += pow(count[i / N][i % N] - TRIALS / N, 2.0) / (TRIALS / (double)N);
  /* 25 degrees of freedom; rows and columns of a permutation depend on each other: times N / (N - 1).  One in a
   * thousand exceeds 52.6 * 1.2. */
  assert_true(chi < 63.1);
  int32_t one = 7;
  random_order(8, RANDOM_ORDER, 0, 1, &one);
  assert_int_equal(one, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(numbers_match_the_known_answers),
      cmocka_unit_test(moments_match_the_distributions),
      cmocka_unit_test(numbers_depend_on_their_index),
      cmocka_unit_test(order_is_a_fair_permutation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
