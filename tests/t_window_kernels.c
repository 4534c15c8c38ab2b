/* t_window_kernels.c: loops of windows against plain ones.
 *
 *   selection   (window_largest.c) the k largest elements are those of a full sort; by threads and by ranks as by one
 *
 * and the memory of a large sparse window. */
#include "unit_test.h"
#include "draw.h"
#include "family/window.h"
#include "fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 3000 };

typedef struct entry {
  float size;
  int32_t at;
} entry;

static int by_size(const void *x, const void *y) {
  const entry *a = x, *b = y;
  if (a->size != b->size) return a->size < b->size ? 1 : -1;
  return a->at < b->at ? -1 : 1;
}

/* Few different values, any, tiny ones, alike but for the last bits, mostly nothing. */
static float drawn(rng *r, int how) {
  const double sign = rng_below(r, 2) == 0 ? 1.0 : -1.0, x = rng_real(r);
  if (how == 0) return (float)(sign * (double)rng_below(r, 4));
  if (how == 1) return (float)(sign * ldexp(x, (int)rng_below(r, 200) - 100));
  if (how == 2) return (float)(sign * x * 1e-42);
  if (how == 3) return (float)(sign * (1.0 + 4e-4 * x));
  return x < 0.97 ? 0.0f : (float)(sign * x);
}

static void selection_equals_a_sort(void **state) {
  static float x[MOST];
  static entry want[MOST];
  static int32_t chosen[MOST + 1], count[NG_WINDOW_COUNTS];
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_times(300); t++) {
    const int64_t n = 1 + rng_below(&r, t % 2 == 0 ? 40 : MOST);
    const int64_t k = t % 7 == 0 ? n : 1 + rng_below(&r, n);
    bool in[MOST] = {false};
    for (int64_t i = 0; i < n; i++) {
      x[i] = drawn(&r, (int)(t % 5));
      want[i] = (entry){fabsf(x[i]), (int32_t)i};
    }
    qsort(want, (size_t)n, sizeof *want, by_size);
    for (int64_t i = 0; i < k; i++)
      in[want[i].at] = true;
    memset(count, 0x5a, sizeof count); /* scratch may hold anything */
    chosen[n] = -7;
    const ng_window_sum v = {.x = x};
    ng_window_select_largest(NULL, &v, n, k, 1, count, chosen);
    for (int64_t i = 0, out = 0; i < n; i++)
      if (in[i] && chosen[out++] != i)
        fail_msg("draw %lld: %lld of %lld: the one at %lld is not chosen in its turn", (long long)t,
                 (long long)k, (long long)n, (long long)i);
    assert_int_equal(chosen[n], -7);
  }
}

/* In pieces, of a sum: those, and the sum, that one thread has. */
static void by_several_threads(void **state) {
  enum { PIECES = 5 };
  static float x[2][MOST], error[MOST];
  static int32_t chosen[2][MOST], count[PIECES * NG_WINDOW_COUNTS];
  rng r = {test_seed()};
  for (int32_t threads = 1; threads <= 3; threads++) {
    fixture f;
    fixture_ok(&f, fixture_open(&f, "method=mfac", &(fixture_how){.threads = threads}));
    for (int64_t t = 0; t < test_times(150); t++) {
      const int64_t n = 1 + rng_below(&r, t % 2 == 0 ? 12 : MOST), k = 1 + rng_below(&r, n);
      const int32_t pieces = 1 + (int32_t)rng_below(&r, PIECES);
      const float by = t % 3 == 0 ? 1 : 0.3F;
      for (int64_t i = 0; i < n; i++) {
        x[0][i] = x[1][i] = drawn(&r, (int)(t % 5));
        error[i] = t % 4 == 0 ? -by * x[0][i] : drawn(&r, (int)(t % 5));
      }
      const ng_window_sum one = {x[0], error, by}, all = {x[1], error, by};
      const float last = error[n - 1] + by * x[0][n - 1];
      memset(count, 0x5a, sizeof count);
      ng_window_select_largest(NULL, &one, n, k, 1, count, chosen[0]);
      memset(count, 0x5a, sizeof count);
      ng_window_select_largest(f.ctx, &all, n, k, pieces, count, chosen[1]);
      assert_true(x[0][n - 1] == last);
      assert_memory_equal(x[0], x[1], (size_t)n * sizeof **x);
      if (memcmp(chosen[0], chosen[1], (size_t)k * sizeof **chosen) != 0)
        fail_msg("%lld of %lld in %d pieces are not those of one", (long long)k, (long long)n,
                 pieces);
    }
    fixture_close(&f);
  }
}

/* ---- by several ranks ------------------------------------------------------------------------*/

enum { ALL = 700, RANKS = 5, ROOM = NG_WINDOW_BINS };

/* Few magnitudes, of both signs and with zeros; or any, among them those that differ in their last bits. */
static float joint_value(rng *r, int kind) {
  const float sign = rng_below(r, 2) ? -1.0F : 1.0F;
  if (kind == 0) return sign * (float)rng_below(r, 4);
  if (kind == 1) return (float)rng_value(r);
  if (kind == 2) return sign * (1.0F + (float)rng_below(r, 3) * 0x1p-23F);
  return sign * ldexpf(1.0F, (int)rng_below(r, 277) - 149);
}

static void selection_on_ranks_equals_one_rank(void **state) {
  static float x[ALL];
  static int32_t single[ALL], mine[RANKS][ALL], count[NG_WINDOW_COUNTS];
  static double sum[ROOM], part[RANKS][ROOM];
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_times(400); t++) {
    const int64_t n = 1 + rng_below(&r, ALL), k = 1 + rng_below(&r, t % 5 == 0 ? n : n / 4 + 1);
    const int32_t W = 1 + (int32_t)rng_below(&r, RANKS);
    int64_t cut[RANKS + 1] = {0}, before = 0;
    ng_window_joint j[RANKS];
    for (int64_t i = 0; i < n; i++)
      x[i] = joint_value(&r, (int)(t % 4));
    for (int32_t q = 1; q <= W; q++) /* slices of any size, none too */
      cut[q] = q == W ? n : cut[q - 1] + rng_below(&r, n - cut[q - 1] + 1);
    ng_window_select_largest(NULL, &(ng_window_sum){.x = x}, n, k, 1, count, single);
    for (int32_t q = 0; q < W; q++)
      j[q] = (ng_window_joint){
          .x = x + cut[q], .n = cut[q + 1] - cut[q], .k = k, .rank = q, .chosen = mine[q]};
    for (int32_t round = 0; round <= NG_WINDOW_JOINT_ROUNDS; round++) {
      for (int32_t q = 0; q < W; q++) {
        memcpy(part[q], sum, sizeof sum);
        ng_window_joint_round(&j[q], round, W, part[q]);
      }
      memset(sum, 0, sizeof sum);
      for (int64_t i = 0; i < ng_window_joint_count(round, W) && round < 4; i++)
        for (int32_t q = 0; q < W; q++)
          sum[i] += part[q][i];
    }
    for (int32_t q = 0; q < W; q++) {
      if (j[q].selected_below != before)
        fail_msg("rank %d of %d begins at %d", q, W, (int)j[q].selected_below);
      for (int64_t i = 0; i < j[q].selected; i++, before++) {
        if (before >= k || single[before] != cut[q] + mine[q][i])
          fail_msg("%d of %d, %d ranks, kind %d: entry %d is another", (int)k, (int)n, W,
                   (int)(t % 4), (int)before);
      }
    }
    assert_int_equal(before, k);
  }
}

/* ---- memory ---*/

/* ResNet-18's 11.2 million parameters, 1,024 rows of 1 % in bf16 and the error feedback: at most 0.5 GiB.
 * The memory is planned and taken; nothing is done with it. */
static void sparse_memory(void **state) {
  const fixture_how how = {.threads = 2};
  const int64_t d = 11200000;
  int64_t kept = 0;
  fixture f;
  static float nothing[4];
  fixture_ok(
      &f, fixture_open(&f, "method=efcp window=1024 window_density=0.01 window_dtype=bf16", &how));
  fixture_ok(&f, ng_add_tensor(f.p, "all", d, NULL));
  const ng_array g = ng_array_matrix(nothing, 1, d, NG_F32); /* never read */
  fixture_ok(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &g));
  fixture_ok(&f, ng_ready(f.p));
  kept = fixture_report(&f).factors;
  /* 1,025 rows of 112,000 entries of 4 bytes, e, the Gram matrix and its factor; and where
   * 342 blocks begin */
  const int64_t least = 1025 * 112000 * 4 + 4 * d + 2 * 1025 * 1025 * 8;
  if (!(kept >= least && kept <= least + (1 << 22) && kept <= INT64_C(1) << 29))
    fail_msg("%lld bytes are kept, at least %lld, at most 2^29", (long long)kept, (long long)least);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(selection_equals_a_sort), cmocka_unit_test(by_several_threads),
      cmocka_unit_test(selection_on_ranks_equals_one_rank), cmocka_unit_test(sparse_memory)};
  return cmocka_run_group_tests_name("loops of windows", tests, NULL, NULL);
}
