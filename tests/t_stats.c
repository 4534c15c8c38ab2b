/* t_stats.c: fresh factors (gram_rows.c, gram_conv.c, gram_shift.c) are, to the bit, what loops over
 * everything give, in whatever way an array lies.
 *
 * Values are k / 8, |k| <= 15, which f32, bf16 and f16 hold exactly; their products are
 * multiples of 1/64, and sums of fewer than 2^24 / 225 of them are exact in f32 in any order.  So
 * these tests have no tolerance at all, but for means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gram_check.h"
#include "stat/gram_shift.h"

/* ---- rows ------------------------------------------------------------------------------------*/

static void rows_case(ng_context *ctx, int64_t samples, int64_t positions, int64_t cols) {
  shown in = lay_out(any_lie(), samples, cols, 1, positions, any_dtype());
  ng_rows r = {.v = &in.v,
               .take = between(1, samples),
               .one = draw() % 2 != 0,
               .reduce = (int)between(0, 2)};
  r.c0 = between(0, cols - 1);
  r.c1 = between(r.c0 + 1, cols);
  const int64_t n = r.c1 - r.c0 + r.one;
  double *value = need(samples * positions * cols * 8), *want = need(n * n * 8), *row = need(n * 8);
  for (int64_t i = 0; i < samples * positions * cols; i++) { /* [sample][position][column] */
    const int64_t sample = i / cols / positions, c = i % cols;
    value[i] = sample < r.take && c >= r.c0 && c < r.c1 ? grid_value() : NAN;
    show(&in, sample, c, 0, i / cols % positions, value[i]);
  }
  ng_sym S = start(n, want);
  const float alpha = 0.5f;
  for (int64_t s = 0; s < r.take; s++) {
    memset(row, 0, (size_t)n * 8);
    for (int64_t p = 0; p < positions; p++) {
      const int64_t at = s * positions + p;
      if (r.reduce == 0) memset(row, 0, (size_t)n * 8);
      for (int64_t c = r.c0; c < r.c1; c++) {
        row[c - r.c0] += value[at * cols + c] / (r.reduce == 1 ? (double)positions : 1);
      }
      if (r.one) row[n - 1] += 1 / (r.reduce == 1 ? (double)positions : 1);
      if (r.reduce == 0) outer(want, n, row, 0.5);
    }
    if (r.reduce != 0) outer(want, n, row, 0.5);
  }
  const int64_t floats = ng_rows_scratch(cols);
  float *scratch = guarded(floats);
  char what[200];
  (void)snprintf(what, sizeof what, "rows %s %s %dx%d of %d, take %d, [%d,%d), one %d reduce %d %s",
                 ctx->queue->la->name, ng_dtype_name(in.v.dtype), (int)samples, (int)positions,
                 (int)cols, (int)r.take, (int)r.c0, (int)r.c1, r.one, r.reduce,
                 (const char *[]){"NCHW", "NHWC", "HNWC", "any"}[in.how]);
  ng_rows_stats(ctx, &r, alpha, S, scratch);
  /* A mean is rounded once to f32: 2^-24 relative in either factor of each product, and as much
   * again for sums of inexact products; 8 roundings cover both. */
  compare(S, want, r.reduce == 1 ? 8 * 0x1p-24 : 0, what);
  release(scratch, floats, what);
  release(S.a, ng_sym_count(n), what);
  free(in.data);
  free(value);
  free(want);
  free(row);
}

static void rows_match_the_loops(void **unused) {
  (void)unused;
  for (int k = 0; k < NAMES; k++) {
    ng_context *ctx = context(names[k], 3);
    for (int i = 0; i < 300; i++) {
      rows_case(ctx, between(1, 9), draw() % 3 ? between(1, 7) : 1, between(1, 12));
    }
    for (int i = 0; i < 6; i++) { /* more than one tile, more than one chunk of column sums */
      rows_case(ctx, 150, 130, between(1, 5));
      rows_case(ctx, 20, 20, 280);
    }
    ng_context_destroy(&ctx);
  }
}

/* ---- convolutions ----------------------------------------------------------------------------*/

typedef void input_stats(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take,
                         int64_t c0, int64_t c1, bool one, int reduce, float alpha, ng_sym S,
                         float *scratch);

static void by_shift(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take, int64_t c0,
                     int64_t c1, bool one, int reduce, float alpha, ng_sym S, float *scratch) {
  assert_int_equal(reduce, 0);
  ng_conv_input_stats_shift(ctx, c, x, take, c0, c1, one, alpha, S, scratch);
}

static int64_t shifted;

/* All ways to the input factor give the sum of the definition, exactly (tolerance 0), except means
 * (see rows_case). */
static void input_case(ng_context *ctx, const picture *g) {
  static const struct {
    const char *name;
    input_stats *run;
  } way[] = {
      {"plain", ng_conv_input_stats_plain}, {"fast", ng_conv_input_stats}, {"shift", by_shift}};
  const ng_conv *c = &g->c;
  const int64_t n = order_of(g);
  double *value = need(g->samples * c->channels * c->height * c->width * 8);
  double *want = need(n * n * 8), *other = need(n * n * 8);
  shown x = images(g, c->channels, c->height, c->width, value, grid_value);
  ng_sym first = start(n, want);
  release(first.a, ng_sym_count(n), "start");
  naive_input(g, value, 0.5, want);
  for (int k = 0; k < 3; k++) {
    if (k == 2 && (g->reduce != 0 || !ng_conv_shift_fits(c, g->c1 - g->c0))) continue;
    shifted += k == 2;
    const int64_t floats = k == 2 ? ng_conv_shift_scratch(c, c->channels)
                                  : ng_conv_scratch(ctx, c, c->channels, c->out);
    assert_true(floats <= ng_conv_scratch(ctx, c, c->channels, c->out));
    ng_sym S = start(n, other);
    float *scratch = guarded(floats);
    const char *what = title(g, way[k].name);
    way[k].run(ctx, c, &x.v, g->take, g->c0, g->c1, g->one, g->reduce, 0.5f, S, scratch);
    compare(S, want, g->reduce == 1 ? 8 * 0x1p-24 : 0, what);
    release(scratch, floats, what);
    release(S.a, ng_sym_count(n), what);
  }
  free(x.data);
  free(value);
  free(want);
  free(other);
}

static void inputs_match_the_loops(void **unused) {
  (void)unused;
  for (int k = 0; k < NAMES; k++) {
    ng_context *ctx = context(names[k], 3);
    shifted = 0;
    for (int i = 0; i < 1000; i++) {
      const picture g = any_picture(i % 3 != 0);
      input_case(ctx, &g);
    }
    assert_true(shifted > 300); /* the interesting way was not skipped all the time */
    ng_context_destroy(&ctx);
  }
}

/* Several tiles of samples (shift: 16384 pixels; plain: 16384 patches), uneven; and work enough for
 * several threads, each with its own scratch. */
static void large_inputs_match_the_loops(void **unused) {
  (void)unused;
  ng_context *ctx = context(names[NAMES - 1], 3);
  for (int i = 0; i < 4; i++) { /* tall: sums of taps take more scratch than rows of the image */
    picture g = {.t = i % 2 ? NG_F16 : NG_F32,
                 .samples = 31,
                 .take = 30,
                 .c1 = 2,
                 .one = true,
                 .reduce = 1 + i / 2};
    g.c = (ng_conv){.channels = 2,
                    .height = 300,
                    .width = 4,
                    .out = 1,
                    .kernel = {5, 5},
                    .stride = {2, 1},
                    .padding = {2, 1},
                    .dilation = {1, 1}};
    g.how = i % 2 ? LIE_NHWC : LIE_NCHW;
    assert_true(finish(&g.c));
    input_case(ctx, &g);
  }
  for (int i = 0; i < 2; i++) {
    picture g = {.t = i ? NG_BF16 : NG_F32, .samples = 8, .take = 8, .c1 = 2 + i, .one = true};
    g.c = (ng_conv){.channels = 3,
                    .height = 61,
                    .width = 80,
                    .out = 2,
                    .kernel = {3, 3},
                    .stride = {1, 1},
                    .padding = {1, 1},
                    .dilation = {1, 1 + i}};
    g.how = i ? LIE_NHWC : LIE_NCHW;
    assert_true(finish(&g.c));
    assert_true(ng_conv_shift_fits(&g.c, 3));
    input_case(ctx, &g);
  }
  ng_context_destroy(&ctx);
}

/* One sample is wider than a tile of the shift way: fits() says no, and scratch still serves
 * narrower ranges that do fit. */
static void wide_inputs_do_not_fit(void **unused) {
  (void)unused;
  ng_context *ctx = context(names[NAMES - 1], 2);
  picture g = {.t = NG_F32, .samples = 1, .take = 1, .c0 = 3, .c1 = 5};
  g.c = (ng_conv){.channels = 700,
                  .height = 80,
                  .width = 80,
                  .out = 1,
                  .kernel = {2, 2},
                  .stride = {1, 1},
                  .padding = {0, 0},
                  .dilation = {1, 1}};
  g.how = LIE_NHWC;
  assert_true(finish(&g.c));
  assert_false(ng_conv_shift_fits(&g.c, 700));
  assert_true(ng_conv_shift_fits(&g.c, 600));
  assert_true(ng_conv_shift_scratch(&g.c, 700) >= ng_conv_shift_scratch(&g.c, 600));
  input_case(ctx, &g);
  ng_context_destroy(&ctx);
}

/* The choice by size: displacements where they save arithmetic, patches elsewhere. */
static void choice_follows_size(void **unused) {
  (void)unused;
  ng_conv c = {.channels = 64,
               .height = 32,
               .width = 32,
               .out = 64,
               .kernel = {3, 3},
               .stride = {1, 1},
               .padding = {1, 1},
               .dilation = {1, 1}};
  assert_true(finish(&c));
  assert_true(ng_conv_shift_fits(&c, 64));
  assert_true(ng_conv_shift_cost(&c, 64, 32) < 0.7 * ng_conv_plain_cost(&c, 64, 32));
  assert_true(ng_conv_shift_cost(&c, 1, 1) > ng_conv_plain_cost(&c, 1, 1));
  c.height = c.width = 2;
  assert_true(finish(&c));
  assert_true(ng_conv_shift_cost(&c, 64, 1) > ng_conv_plain_cost(&c, 64, 1));
  c.stride[1] = 2;
  assert_true(finish(&c));
  assert_false(ng_conv_shift_fits(&c, 64));
}

static void grads_match_the_loops(void **unused) {
  (void)unused;
  for (int k = 0; k < NAMES; k++) {
    ng_context *ctx = context(names[k], 3);
    for (int i = 0; i < 200; i++) {
      picture g = any_picture(false);
      ng_conv *c = &g.c;
      if (i % 50 == 0) { /* more than a tile */
        *c = (ng_conv){.channels = 1,
                       .height = 70,
                       .width = 70,
                       .out = 3,
                       .kernel = {1, 1},
                       .stride = {1, 1},
                       .dilation = {1, 1}};
        g.samples = g.take = 4;
        assert_true(finish(c));
      }
      if (i % 5 == 1) c->out = between(60, 150); /* more than one chunk of channels */
      g.one = false;
      g.c0 = draw() % 2 ? 0 : between(0, c->out - 1);
      g.c1 = draw() % 2 ? c->out : between(g.c0 + 1, c->out);
      const int64_t n = g.c1 - g.c0, S = c->oh * c->ow;
      double *value = need(g.samples * c->out * S * 8), *want = need(n * n * 8);
      double *row = need(n * 8);
      shown v = images(&g, c->out, c->oh, c->ow, value, grid_value);
      ng_sym G = start(n, want);
      for (int64_t s = 0; s < g.take; s++) {
        memset(row, 0, (size_t)n * 8);
        for (int64_t p = 0; p < S; p++) {
          if (g.reduce == 0) memset(row, 0, (size_t)n * 8);
          for (int64_t j = 0; j < n; j++) {
            const double d = value[(s * c->out + g.c0 + j) * S + p];
            row[j] += g.reduce == 1 ? d / (double)S : d;
          }
          if (g.reduce == 0) outer(want, n, row, 0.25);
        }
        if (g.reduce != 0) outer(want, n, row, 0.25);
      }
      const int64_t floats = ng_conv_scratch(ctx, c, c->channels, c->out);
      float *scratch = guarded(floats);
      const char *what = title(&g, "gradient");
      ng_conv_grad_stats(ctx, &v.v, g.take, g.c0, g.c1, g.reduce, 0.25f, G, scratch);
      compare(G, want, g.reduce == 1 ? 8 * 0x1p-24 : 0, what);
      release(scratch, floats, what);
      release(G.a, ng_sym_count(n), what);
      free(v.data);
      free(value);
      free(want);
      free(row);
    }
    ng_context_destroy(&ctx);
  }
}

int main(void) {
  seed_numbers();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_match_the_loops),         cmocka_unit_test(inputs_match_the_loops),
      cmocka_unit_test(large_inputs_match_the_loops), cmocka_unit_test(wide_inputs_do_not_fit),
      cmocka_unit_test(choice_follows_size),          cmocka_unit_test(grads_match_the_loops),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
