/* t_window_largest.c: the k largest entries (window_largest.c) are those of a full sort by magnitude and then by
 * place, whatever is drawn; and the loops over sparse rows (window_rows.c) are those over whole ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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

static void those_of_a_sort(void **state) {
  (void)state;
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
    ng_window_largest(&v, n, k, count, chosen);
    for (int64_t i = 0, out = 0; i < n; i++)
      if (in[i] && chosen[out++] != i)
        fail_msg("draw %lld: %lld of %lld: the one at %lld is not chosen in its turn", (long long)t,
                 (long long)k, (long long)n, (long long)i);
    assert_int_equal(chosen[n], -7);
  }
}

/* In pieces, of a sum: those, and the sum, that one thread has. */
static void by_several_threads(void **state) {
  (void)state;
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
      ng_window_largest(&one, n, k, count, chosen[0]);
      memset(count, 0x5a, sizeof count);
      ng_window_largest_wide(f.ctx, &all, n, k, pieces, count, chosen[1]);
      assert_true(x[0][n - 1] == last);
      assert_memory_equal(x[0], x[1], (size_t)n * sizeof **x);
      if (memcmp(chosen[0], chosen[1], (size_t)k * sizeof **chosen) != 0)
        fail_msg("%lld of %lld in %d pieces are not those of one", (long long)k, (long long)n,
                 pieces);
    }
    fixture_close(&f);
  }
}

/* A sparse row and the same as a whole one, in a block. */
static void sparse_loops(void **state) {
  (void)state;
  static double tile[NG_WINDOW_BLOCK], got[NG_WINDOW_BLOCK], row[NG_WINDOW_BLOCK];
  static float f[MOST], x[NG_WINDOW_BLOCK], put[NG_WINDOW_BLOCK];
  static uint16_t h[MOST], index[MOST];
  rng r = {test_seed()};
  for (int64_t t = 0; t < test_times(40); t++) {
    const bool half = t % 2 == 1;
    const int64_t n = rng_below(&r, t % 3 == 0 ? 9 : MOST);
    const void *value = half ? (const void *)h : (const void *)f;
    const ng_dtype type = half ? NG_BF16 : NG_F32;
    const double c = 2 * rng_real(&r) - 1;
    double plain = 0, size = 0;
    memset(row, 0, sizeof row);
    for (int64_t i = 0; i < NG_WINDOW_BLOCK; i++) {
      got[i] = tile[i] = 2 * rng_real(&r) - 1;
      x[i] = put[i] = (float)tile[i];
    }
    for (int64_t i = 0, at = rng_below(&r, 5); i < n; i++) {
      h[i] = ng_f32_to_bf16((float)(2 * rng_real(&r) - 1));
      f[i] = half ? ng_bf16_to_f32(h[i]) : (float)(2 * rng_real(&r) - 1);
      index[i] = (uint16_t)at;
      row[at] = (double)f[i];
      at += 1 + rng_below(&r, NG_WINDOW_BLOCK / MOST - 1);
    }
    for (int64_t i = 0; i < NG_WINDOW_BLOCK; i++) {
      plain += row[i] * (double)x[i];
      size += fabs(row[i] * (double)x[i]);
    }
    /* n additions of 1e-16 */
    assert_true(fabs(ng_window_sparse_dot(x, index, value, type, n) - plain) <= 1e-12 * size);
    ng_window_sparse_add(got, index, value, type, n, c);
    ng_window_sparse_put(put, index, value, type, n);
    for (int64_t i = 0; i < n; i++)
      x[index[i]] += f[i];
    for (int64_t i = 0; i < NG_WINDOW_BLOCK; i++)
      assert_true(got[i] == tile[i] + c * row[i] && put[i] == x[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(those_of_a_sort),
                                     cmocka_unit_test(by_several_threads),
                                     cmocka_unit_test(sparse_loops)};
  return cmocka_run_group_tests_name("largest entries", tests, NULL, NULL);
}
