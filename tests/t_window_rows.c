/* t_window_rows.c: the loops over rows of a window (window_rows.c): several rows at once give the bits of
 * one at a time, in f32 and in bf16, whatever their length; and what a large window holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "draw.h"
#include "family/window.h"
#include "fixture.h"

#include <math.h>
#include <string.h>

enum { MOST = 1300, AT_ONCE = 8 }; /* 2 KiB of bf16 and more: memory is asked for in two ways */

typedef struct rows {
  float f[AT_ONCE][MOST]; /* as f32, of the bf16 */
  uint16_t h[AT_ONCE][MOST];
} rows;

static void draw(rng *r, rows *x, bool half) {
  for (int q = 0; q < AT_ONCE; q++) {
    for (int i = 0; i < MOST; i++) {
      x->f[q][i] = (float)ldexp(2 * rng_real(r) - 1, (int)rng_below(r, 21) - 10);
      if (!half) continue;
      x->h[q][i] = ng_f32_to_bf16(x->f[q][i]);
      x->f[q][i] = ng_bf16_to_f32(x->h[q][i]);
    }
  }
}

static void at_once(void **state) {
  (void)state;
  rng r = {test_seed()};
  static rows x;
  for (int64_t t = 0; t < test_times(400); t++) {
    const bool half = t % 2 == 1;
    const int64_t n = 1 + rng_below(&r, t % 4 < 2 ? 200 : MOST - 1), guard = n;
    const ng_dtype type = half ? NG_BF16 : NG_F32;
    float y[MOST];
    double got[4], by[AT_ONCE], acc[MOST], one[MOST], most[MOST];
    const void *row[AT_ONCE];
    draw(&r, &x, half);
    for (int64_t i = 0; i < MOST; i++) {
      y[i] = (float)(2 * rng_real(&r) - 1);
      acc[i] = one[i] = 2 * rng_real(&r) - 1;
      most[i] = fabs(one[i]);
    }
    for (int q = 0; q < AT_ONCE; q++) {
      row[q] = half ? (const void *)x.h[q] : (const void *)x.f[q];
      by[q] = 2 * rng_real(&r) - 1;
    }
    ng_window_dots(row, row + 4, type, y, n, got);
    for (int q = 0; q < 4; q++) {
      double plain = 0, size = 0;
      for (int64_t i = 0; i < n; i++) {
        plain += (double)x.f[q][i] * (double)y[i];
        size += fabs((double)x.f[q][i] * (double)y[i]);
      }
      assert_true(got[q] == ng_window_dot(x.f[q], y, n));
      assert_true(fabs(got[q] - plain) <= 1e-13 * size); /* n additions of 1e-16 */
    }
    /* 8 rows are 4 and 4, each four added before they are; the rows one by one, but for the order of additions */
    double pairs[MOST], plain[MOST];
    memcpy(pairs, acc, sizeof pairs);
    memcpy(plain, acc, sizeof plain);
    for (int64_t i = 0; i < n; i++)
      for (int q = 0; q < AT_ONCE; q += 4)
        plain[i] += by[q] * (double)x.f[q][i] + by[q + 1] * (double)x.f[q + 1][i] +
                    by[q + 2] * (double)x.f[q + 2][i] + by[q + 3] * (double)x.f[q + 3][i];
    ng_window_sums(acc, row, row, type, 8, n, by);
    ng_window_sums(pairs, row, row + 4, type, 4, n, by);
    ng_window_sums(pairs, row + 4, row, type, 4, n, by + 4);
    for (int q = 0; q < AT_ONCE; q++) {
      ng_window_add(one, x.f[q], n, by[q]);
      for (int64_t i = 0; i < n; i++)
        most[i] += fabs(by[q] * (double)x.f[q][i]);
    }
    assert_memory_equal(acc, pairs, sizeof acc);
    assert_memory_equal(acc, plain, sizeof acc);
    for (int64_t i = 0; i < n; i++)
      assert_true(fabs(acc[i] - one[i]) <= 1e-14 * most[i]);
    for (int64_t i = guard; i < MOST; i++)
      assert_true(acc[i] == one[i]); /* not touched */
  }
}

/* ResNet-18's 11.2 million parameters, 1,024 rows of 1 % in bf16 and the error feedback: at most 0.5 GiB.
 * The memory is planned and taken; nothing is done with it. */
static void sparse_memory(void **state) {
  (void)state;
  const fixture_how how = {.threads = 2};
  const int64_t d = 11200000;
  int64_t kept = 0;
  fixture f;
  static float nothing[4];
  fixture_ok(
      &f, fixture_open(&f, "method=efcp window=1024 window_density=0.01 window_dtype=bf16", &how));
  int32_t index;
  assert_int_equal(ng_add_tensor(f.p, "all", d, &index), NG_OK);
  const ng_array g = ng_array_matrix(nothing, 1, d, NG_F32); /* never read */
  fixture_ok(&f, ng_bind_grad(f.p, index, NG_WEIGHT, &g));
  fixture_ok(&f, ng_ready(f.p));
  ng_report report = {.struct_size = sizeof report};
  assert_int_equal(ng_report_read(f.p, &report), NG_OK);
  kept = report.factors;
  /* 1,025 rows of 112,000 entries of 4 bytes, e, the Gram matrix and its factor; and where
   * 342 blocks begin */
  const int64_t least = 1025 * 112000 * 4 + 4 * d + 2 * 1025 * 1025 * 8;
  if (!(kept >= least && kept <= least + (1 << 22) && kept <= INT64_C(1) << 29))
    fail_msg("%lld bytes are kept, at least %lld, at most 2^29", (long long)kept, (long long)least);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(at_once), cmocka_unit_test(sparse_memory)};
  return cmocka_run_group_tests_name("window rows", tests, NULL, NULL);
}
