/* t_stats_rounding.c: fresh factors of convolutions where numbers are rounded: values with all their
 * bits against double, the same bits for any number of threads, and published numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gram_check.h"
#include "stat/gram_shift.h"

/* ---- rounding --------------------------------------------------------------------------------*/

static double rectified(void) { return fmax(0, uniform() + uniform() + uniform() - 1.3); }

/* Values with all their bits.  Both ways sum the same n products in a different order.  A sum of n
 * like-signed f32 terms, one after the other, is off by a random walk of n roundings of the partial
 * sums, each at most 2^-24 of them and 0.41 2^-24 on average: 0.41 2^-24 sqrt(n / 3) of the whole.
 * Neither way sums more than 1024 at a time before it starts anew (gram_shift.c's PART; SYRK some
 * 400), here n = 2048, so a way is off by 4.5e-7 / sqrt(2) = 3.2e-7 at most, and two of them
 * by 4.5e-7 (one standard deviation, if every addition were made in turn; kernels with several
 * accumulators stay below: 40 seeds never gave more than 4e-7).  What the shift way subtracts is
 * 1/16 of its sums and adds nothing that counts. */
static void fast_equals_plain(void **unused) {
  (void)unused;
  for (int k = 0; k < NAMES; k++) {
    ng_context *ctx = context(names[k], 2);
    for (int i = 0; i < 4; i++) {
      picture g = {.t = NG_F32, .samples = 8, .take = 8, .c1 = 8, .one = i % 2 != 0};
      g.c = (ng_conv){.channels = 8,
                      .height = 16,
                      .width = 16,
                      .out = 8,
                      .kernel = {3, 3},
                      .stride = {1, 1},
                      .padding = {1, 1},
                      .dilation = {1, 1}};
      g.how = i / 2 ? LIE_NHWC : LIE_NCHW;
      assert_true(finish(&g.c));
      const int64_t n = order_of(&g), floats = ng_conv_scratch(ctx, &g.c, 8, 8);
      double *value = need(8 * 8 * 256 * 8), *want = need(n * n * 8);
      shown x = images(&g, 8, 16, 16, value, rectified);
      ng_sym A = {.a = guarded(ng_sym_count(n)), .n = n},
             B = {.a = guarded(ng_sym_count(n)), .n = n};
      float *scratch = guarded(floats);
      memset(A.a, 0, (size_t)ng_sym_count(A.n) * sizeof(float));
      memset(B.a, 0, (size_t)ng_sym_count(B.n) * sizeof(float));
      ng_conv_input_stats_plain(ctx, &g.c, &x.v, 8, 0, 8, g.one, 0, 1.0f, A, scratch);
      ng_conv_input_stats_shift(ctx, &g.c, &x.v, 8, 0, 8, g.one, 1.0f, B, scratch);
      for (int64_t r = 0; r < n; r++) {
        for (int64_t j = 0; j < n; j++) {
          want[r * n + j] = (double)ng_sym_get(A, r, j);
        }
      }
      compare(B, want, 1e-6, title(&g, "shift against plain"));
      memset(want, 0, (size_t)(n * n) * 8);
      naive_input(&g, value, 1, want);
      compare(A, want, 1e-6, title(&g, "plain against double"));
      compare(B, want, 1e-6, title(&g, "shift against double"));
      release(scratch, floats, "scratch");
      release(A.a, ng_sym_count(n), "A");
      release(B.a, ng_sym_count(n), "B");
      free(x.data);
      free(value);
      free(want);
    }
    ng_context_destroy(&ctx);
  }
}

/* The number of our threads only says who copies what: the bits stay. */
static void threads_do_not_change_bits(void **unused) {
  (void)unused;
  picture g = {.t = NG_F32, .samples = 6, .take = 6, .c1 = 64, .one = true};
  g.c = (ng_conv){.channels = 64,
                  .height = 12,
                  .width = 12,
                  .out = 64,
                  .kernel = {3, 3},
                  .stride = {1, 1},
                  .padding = {1, 1},
                  .dilation = {1, 1}};
  assert_true(finish(&g.c));
  const int64_t n = order_of(&g);
  double *value = need(6 * 64 * 144 * 8);
  shown x = images(&g, 64, 12, 12, value, uniform);
  ng_sym S[2][3];
  for (int k = 0; k < 2; k++) {
    ng_context *ctx = context(names[NAMES - 1], k == 0 ? 1 : 5);
    float *scratch = need(ng_conv_scratch(ctx, &g.c, 64, 64) * 4);
    for (int i = 0; i < 3; i++) {
      S[k][i] = (ng_sym){.a = need(ng_sym_count(n) * 4), .n = n};
      memset(S[k][i].a, 0, (size_t)ng_sym_count(S[k][i].n) * sizeof(float));
      if (i == 0)
        ng_conv_input_stats_plain(ctx, &g.c, &x.v, 6, 0, 64, true, 0, 1.0f, S[k][i], scratch);
      if (i == 1)
        ng_conv_input_stats_shift(ctx, &g.c, &x.v, 6, 0, 64, true, 1.0f, S[k][i], scratch);
      if (i == 2)
        ng_conv_input_stats_plain(ctx, &g.c, &x.v, 6, 0, 64, true, 1, 1.0f, S[k][i], scratch);
    }
    free(scratch);
    ng_context_destroy(&ctx);
  }
  for (int i = 0; i < 3; i++) {
    assert_memory_equal(S[0][i].a, S[1][i].a, (size_t)ng_sym_count(n) * 4);
    free(S[0][i].a);
    free(S[1][i].a);
  }
  free(x.data);
  free(value);
}

/* ---- golden numbers --------------------------------------------------------------------------*/

/* Case T2 of two published implementations: a convolution 2 -> 3, kernel (2,3), stride (1,2),
 * padding (1,0), bias; inputs by a generator, exact in f32.  Their order is (channel, kernel
 * offset); their scale is 1/(B S^3), B = 2, S = 10.  Printed with nine digits, entries at most
 * 0.01, so 1e-10 bounds both the printing and our rounding (0.01 * 2^-24 = 6e-10 per entry would be
 * too much: the sums themselves are exact, only alpha rounds, 6e-8 of an entry). */
static void golden_t2(void **unused) {
  (void)unused;
  static const double row0[13] = {0.00515625,  -0.00209375, -0.0014375,  0.0008125,  0.00065625,
                                  -0.00190625, -0.000625,   -0.00203125, 0.00515625, 0.00215625,
                                  -0.00178125, 0.0008125,   0.000375};
  static const double row12[13] = {0.000375, 0.000625,  -0.0005,  0.000375, 0.000625,
                                   -0.0005,  -0.000125, 0.000125, 0.000375, -0.000125,
                                   0.000125, 0.000375,  0.01};
  static const double G[3][3] = {{0.000609375, 0.000265625, -0.0001875},
                                 {0.000265625, 0.000625, 0},
                                 {-0.0001875, 0, 0.000625}};
  float x[80], g[60];
  for (int k = 0; k < 80; k++) {
    x[k] = (float)((7 * k + 3) % 11 - 5) / 4;
  }
  for (int k = 0; k < 60; k++) {
    g[k] = (float)((5 * k + 2) % 7 - 3) / 8;
  }
  ng_conv c = {.channels = 2,
               .height = 4,
               .width = 5,
               .out = 3,
               .kernel = {2, 3},
               .stride = {1, 2},
               .padding = {1, 0},
               .dilation = {1, 1}};
  assert_true(finish(&c));
  assert_int_equal(c.oh * c.ow, 10);
  /* Patches one at a time: the second row and column of a factor of one position. */
  static const double first[12] = {0, 0, 0, -0.5, 1.25, 0.25, 0, 0, 0, -1.25, 0.5, -0.5};
  static const double last[12] = {-0.25, -1.25, 0.5,   0.25, -0.75, 1,
                                  -1,    0.75,  -0.25, -0.5, 1.25,  0.25};
  picture p = {.c = c, .samples = 2, .take = 2, .c1 = 2, .one = true};
  double value[80], row[13];
  for (int k = 0; k < 80; k++) {
    value[k] = (double)x[k];
  }
  for (int k = 0; k < 2; k++) { /* the loops of gram_check.c, against the published patches */
    patch_of(&p, value + 40 * k, k == 0 ? 0 : 3, k == 0 ? 0 : 1, row);
    for (int i = 0; i < 12; i++) {
      assert_true(row[i % 6 * 2 + i / 6] == (k == 0 ? first : last)[i]);
    }
  }
  for (int k = 0; k < NAMES; k++) {
    ng_context *ctx = context(names[k], 2);
    float *scratch = need(ng_conv_scratch(ctx, &c, 2, 3) * 4);
    ng_view vx = {.data = x, .dtype = NG_F32, .samples = 2, .positions = 20, .columns = 2};
    vx.by_sample = 40;
    vx.by_column = vx.run = 20;
    vx.by_position = 1;
    ng_view vg = vx;
    vg.data = g;
    vg.columns = 3;
    vg.by_sample = 30;
    vg.positions = vg.by_column = vg.run = 10;
    ng_sym A = {.a = need(ng_sym_count(13) * 4), .n = 13}, B = {.a = need(6 * 4), .n = 3};
    memset(A.a, 0, (size_t)ng_sym_count(A.n) * sizeof(float));
    memset(B.a, 0, (size_t)ng_sym_count(B.n) * sizeof(float));
    ng_conv_input_stats(ctx, &c, &vx, 2, 0, 2, true, 0, 1.0f / 2000, A, scratch);
    ng_conv_grad_stats(ctx, &vg, 2, 0, 3, 0, 1.0f / 2000, B, scratch);
    double trace = 0, sum = 0, square = 0;
    for (int i = 0; i < 13; i++) {
      const int at = i == 12 ? 12 : i % 6 * 2 + i / 6; /* ours is (kernel offset, channel) */
      if (fabs((double)ng_sym_get(A, 0, at) - row0[i]) > 1e-9 ||
          fabs((double)ng_sym_get(A, 12, at) - row12[i]) > 1e-9) {
        fail_msg("A[., %d] is %.9g, %.9g, published %.9g, %.9g", i, (double)ng_sym_get(A, 0, at),
                 (double)ng_sym_get(A, 12, at), row0[i], row12[i]);
      }
      trace += (double)ng_sym_get(A, i, i);
      for (int j = 0; j < 13; j++) {
        const double e = (double)ng_sym_get(A, i, j);
        sum += e;
        square += e * e;
      }
    }
    assert_true(fabs(trace - 0.0703125) < 1e-8);
    assert_true(fabs(sum - 0.0231875) < 1e-8);
    assert_true(fabs(sqrt(square) - 0.029073553) < 1e-8);
    for (int i = 0; i < 9; i++) {
      assert_true(fabs((double)ng_sym_get(B, i / 3, i % 3) - G[i / 3][i % 3]) < 1e-10);
    }
    free(scratch);
    free(A.a);
    free(B.a);
    ng_context_destroy(&ctx);
  }
}

int main(void) {
  seed_numbers();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fast_equals_plain),
      cmocka_unit_test(threads_do_not_change_bits),
      cmocka_unit_test(golden_t2),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
