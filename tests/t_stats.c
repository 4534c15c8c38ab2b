/* t_stats.c: fresh factors (gram_rows.c, gram_conv.c, gram_shift.c) equal loops over all values bit for bit, for every
 * layout of an array, and with a linear algebra that does each entry as late as the queue allows.
 *
 * Values are k / 8, |k| <= 15, which f32, bf16 and f16 hold exactly; their products are multiples of 1/64, and sums of
 * fewer than 2^24 / 225 of them are exact in f32 in any order.  So there is no tolerance, except for means and for values
 * with all their bits.  The recordings in tests/golden have a convolution, t_properties_data the threads.
 *
 * Values that must not be read (gaps, samples beyond `take`, channels outside the range, scratch) are NaN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "draw.h"
#include "fixture.h"
#include "late.h"
#include "stat/gram_shift.h"

/* NULL: the choice of the library; late: ref, with each entry as late as the queue allows (late.h). */
enum { NAMES = 3 };
static const char *const names[NAMES] = {"ref", "late", NULL};

static rng numbers;

static uint64_t draw(void) { return rng_next(&numbers); }
static int64_t between(int64_t low, int64_t high) { return rng_between(&numbers, low, high); }
static double uniform(void) { return rng_real(&numbers); }

static void *need(int64_t bytes) {
  void *p = NULL;
  assert_int_equal(posix_memalign(&p, 64, (size_t)(bytes > 0 ? bytes : 1)), 0);
  return p;
}

static fixture opened(const char *linalg, int32_t threads) {
  fixture f;
  const bool late = linalg != NULL && strcmp(linalg, "late") == 0;
  const fixture_how how = {.linalg = late ? "ref" : linalg, .threads = threads};
  fixture_ok(&f, fixture_open(&f, "", &how));
  if (late) late_queue(f.ctx->queue, &ng_linalg_ref);
  return f;
}

/* ---- guarded memory --------------------------------------------------------------------------*/

enum { GUARD = 64 };

static float *guarded(int64_t floats) {
  float *p = need((floats + GUARD) * 4);
  for (int64_t i = 0; i < floats + GUARD; i++)
    p[i] = i < floats ? NAN : 4711.0f;
  return p;
}

static void release(float *p, int64_t floats, const char *what) {
  for (int64_t i = floats; i < floats + GUARD; i++)
    if (p[i] != 4711.0f) fail_msg("%s: written %d beyond its end", what, (int)(i - floats));
  free(p);
}

static ng_sym start(int64_t n, double *dense) {
  ng_sym S = {.a = guarded(ng_sym_count(n)), .n = n};
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      const double v = (double)((i * 7 + j * 3) % 9 - 4);
      S.a[ng_sym_at(S.n, i, j)] = (float)v;
      dense[i * n + j] = dense[j * n + i] = v;
    }
  }
  return S;
}

static void compare(ng_sym S, const double *want, double tolerance, const char *what) {
  double largest = 0;
  for (int64_t i = 0; i < S.n * S.n; i++)
    largest = fmax(largest, fabs(want[i]));
  for (int64_t i = 0; i < S.n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      const double got = (double)ng_sym_get(S, i, j), d = fabs(got - want[i * S.n + j]);
      if (!(d <= tolerance * largest)) {
        fail_msg("%s: NG_TEST_SEED=%llu: entry (%d, %d) of %d is %.9g, expected %.9g, off by %.2g "
                 "of the largest, allowed %.2g",
                 what, (unsigned long long)test_seed(), (int)i, (int)j, (int)S.n, got,
                 want[i * S.n + j], d / largest, tolerance);
      }
    }
  }
}

static void outer(double *want, int64_t n, const double *r, double alpha) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++)
      want[i * n + j] += alpha * r[i] * r[j];
  }
}

static double grid_value(void) { return (double)between(-15, 15) / 8; }

static void put(void *data, ng_dtype t, int64_t i, double v) {
  const float x = (float)v;
  ng_from_f32((char *)data + i * ng_dtype_size(t), t, &x, 1);
}

static ng_dtype any_dtype(void) {
  static const ng_dtype all[] = {NG_F32, NG_F32, NG_BF16, NG_F16};
  return all[between(0, 3)];
}

/* ---- pictures --------------------------------------------------------------------------------*/

/* An array of [samples, channels, height, width] in memory, innermost axis first, with gaps between. */
typedef enum lie { LIE_NCHW, LIE_NHWC, LIE_HNWC, LIE_ANY, LIES } lie;

typedef struct picture {
  ng_conv c;
  lie how;
  ng_dtype t;
  int64_t samples, take, c0, c1;
  bool one;
  int reduce;
} picture;

static lie any_lie(void) { return (lie)between(0, LIES - 1); }

static const char *title(const picture *g, const char *way, const char *linalg) {
  static char text[300];
  const ng_conv *c = &g->c;
  (void)snprintf(
      text, sizeof text,
      "%s on %s: %s %s %d channels [%d,%d) %dx%d kernel %dx%d stride %d,%d pad %d,%d dil %d,%d "
      "samples %d take %d one %d reduce %d",
      way, linalg, (const char *[]){"NCHW", "NHWC", "HNWC", "any"}[g->how], ng_dtype_name(g->t),
      (int)c->channels, (int)g->c0, (int)g->c1, (int)c->height, (int)c->width, (int)c->kernel[0],
      (int)c->kernel[1], (int)c->stride[0], (int)c->stride[1], (int)c->padding[0],
      (int)c->padding[1], (int)c->dilation[0], (int)c->dilation[1], (int)g->samples, (int)g->take,
      g->one, g->reduce);
  return text;
}

static bool finish(ng_conv *c) {
  int64_t out[2];
  for (int i = 0; i < 2; i++) {
    const int64_t room =
        (i == 0 ? c->height : c->width) + 2 * c->padding[i] - c->dilation[i] * (c->kernel[i] - 1);
    if (room < 1) return false;
    out[i] = (room - 1) / c->stride[i] + 1;
  }
  c->oh = out[0];
  c->ow = out[1];
  return true;
}

/* As many outputs as channels, strides and dilations of 1; an odd kernel keeps the size. */
static ng_conv conv_of(int64_t channels, int64_t height, int64_t width, int64_t kernel) {
  const int64_t padding = (kernel - 1) / 2;
  ng_conv c = {.channels = channels,
               .height = height,
               .width = width,
               .out = channels,
               .kernel = {kernel, kernel},
               .stride = {1, 1},
               .padding = {padding, padding},
               .dilation = {1, 1}};
  assert_true(finish(&c));
  return c;
}

static picture any_picture(bool stride_one) {
  picture g = {.t = any_dtype(),
               .how = any_lie(),
               .samples = between(1, 5),
               .one = draw() % 2 != 0,
               .reduce = draw() % 3 ? 0 : (int)between(1, 2)};
  ng_conv *c = &g.c;
  do {
    *c = (ng_conv){.channels = between(1, 9),
                   .height = between(1, 9),
                   .width = between(1, 9),
                   .out = between(1, 9)};
    for (int i = 0; i < 2; i++) {
      c->kernel[i] = between(1, 5);
      c->stride[i] = stride_one ? 1 : between(1, 3);
      c->padding[i] = draw() % 2 ? (c->kernel[i] - 1) / 2 : between(0, c->kernel[i]);
      c->dilation[i] = draw() % 4 ? 1 : 2;
    }
  } while (!finish(c));
  g.take = between(1, g.samples);
  g.c0 = draw() % 2 ? 0 : between(0, c->channels - 1);
  g.c1 = draw() % 2 ? c->channels : between(g.c0 + 1, c->channels);
  return g;
}

/* Rows are the patches of a kernel of 1 x 1. */
static picture any_rows(int64_t samples, int64_t height, int64_t width, int64_t cols) {
  picture g = {.c = conv_of(cols, height, width, 1),
               .t = any_dtype(),
               .how = any_lie(),
               .samples = samples,
               .take = between(1, samples),
               .one = draw() % 2 != 0,
               .reduce = (int)between(0, 2),
               .c0 = between(0, cols - 1)};
  g.c1 = between(g.c0 + 1, cols);
  return g;
}

/* ---- in memory -------------------------------------------------------------------------------*/

typedef struct shown {
  void *data;
  ng_view v;
  int64_t by[4]; /* elements from one sample, channel, row, pixel to the next */
} shown;

static shown lay_out(const picture *g) {
  static const int inner[3][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}, {1, 3, 0, 2}};
  const int64_t height = g->c.height, width = g->c.width;
  const int64_t extent[4] = {g->samples, g->c.channels, height, width};
  const bool any = g->how == LIE_ANY;
  int order[4] = {0, 1, 2, 3};
  shown s;
  for (int i = 0; i < 4; i++) {
    const int k = (int)between(i, 3), swap = order[i];
    order[i] = any ? order[k] : inner[g->how][i];
    if (any) order[k] = swap;
  }
  int64_t next = any ? between(1, 2) : 1;
  for (int i = 0; i < 4; i++) {
    s.by[order[i]] = next;
    next *= extent[order[i]];
    if (any || i == 2) next += draw() % 2 ? 0 : between(1, 5);
  }
  s.data = need(next * 4);
  for (int64_t i = 0; i < next; i++)
    put(s.data, g->t, i, NAN);
  s.v = (ng_view){.data = s.data,
                  .dtype = g->t,
                  .samples = g->samples,
                  .positions = height * width,
                  .columns = g->c.channels,
                  .by_sample = s.by[0],
                  .by_column = s.by[1],
                  .by_position = width == 1 ? s.by[2] : s.by[3],
                  .run = height * width};
  if (height > 1 && width > 1 && s.by[2] != width * s.by[3]) {
    s.v.run = width;
    s.v.axes = 1;
    s.v.extent[0] = height;
    s.v.step[0] = s.by[2];
  }
  return s;
}

/* `value` is [sample][channel][row][pixel]. */
static shown images(const picture *g, double *value, double (*next)(void)) {
  const shown v = lay_out(g);
  for (int64_t n = 0; n < g->samples; n++) {
    for (int64_t c = 0; c < g->c.channels; c++) {
      for (int64_t s = 0; s < v.v.positions; s++) {
        const int64_t y = s / g->c.width, x = s % g->c.width;
        *value = n < g->take && c >= g->c0 && c < g->c1 ? next() : NAN;
        put(v.data, g->t, n * v.by[0] + c * v.by[1] + y * v.by[2] + x * v.by[3], *value++);
      }
    }
  }
  return v;
}

/* ---- the definition --------------------------------------------------------------------------*/

static void patch_of(const picture *g, const double *x, int64_t oy, int64_t ox, double *row) {
  const ng_conv *c = &g->c;
  for (int64_t ky = 0; ky < c->kernel[0]; ky++) {
    for (int64_t kx = 0; kx < c->kernel[1]; kx++) {
      const int64_t iy = oy * c->stride[0] + ky * c->dilation[0] - c->padding[0];
      const int64_t ix = ox * c->stride[1] + kx * c->dilation[1] - c->padding[1];
      for (int64_t i = g->c0; i < g->c1; i++) {
        const bool inside = iy >= 0 && iy < c->height && ix >= 0 && ix < c->width;
        *row++ = inside ? x[(i * c->height + iy) * c->width + ix] : 0;
      }
    }
  }
  if (g->one) *row = 1;
}

static int64_t order_of(const picture *g) {
  return g->c.kernel[0] * g->c.kernel[1] * (g->c1 - g->c0) + g->one;
}

static void naive_input(const picture *g, const double *value, double alpha, double *want) {
  const ng_conv *c = &g->c;
  const int64_t n = order_of(g);
  const double S = (double)(c->oh * c->ow), factor = g->reduce == 1 ? 1 / S : 1;
  double *row = need(n * 8), *sum = need(n * 8);
  for (int64_t s = 0; s < g->take; s++) {
    memset(sum, 0, (size_t)n * 8);
    for (int64_t i = 0; i < c->oh * c->ow; i++) {
      patch_of(g, value + s * c->channels * c->height * c->width, i / c->ow, i % c->ow, row);
      if (g->reduce == 0) outer(want, n, row, alpha);
      for (int64_t k = 0; k < n; k++)
        sum[k] += row[k] * factor;
    }
    if (g->reduce != 0) outer(want, n, sum, alpha);
  }
  free(row);
  free(sum);
}

/* ---- the library -----------------------------------------------------------------------------*/

typedef void input_stats(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take,
                         int64_t c0, int64_t c1, bool one, int reduce, float alpha, ng_sym S,
                         float *scratch);

static void by_shift(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take, int64_t c0,
                     int64_t c1, bool one, int reduce, float alpha, ng_sym S, float *scratch) {
  assert_int_equal(reduce, 0);
  ng_conv_input_stats_shift(ctx, c, x, take, c0, c1, one, alpha, S, scratch);
}

static void by_rows(ng_context *ctx, const ng_conv *c, const ng_view *x, int64_t take, int64_t c0,
                    int64_t c1, bool one, int reduce, float alpha, ng_sym S, float *scratch) {
  const ng_rows r = {.v = x, .take = take, .c0 = c0, .c1 = c1, .one = one, .reduce = reduce};
  ng_rows_stats(ctx, &r, alpha, S, scratch);
}

enum { PLAIN, FAST, SHIFT, ROWS, WAYS };
static int64_t used[WAYS];

static bool fits(int way, const picture *g) {
  const ng_conv *c = &g->c;
  if (way == SHIFT) return g->reduce == 0 && ng_conv_shift_fits(c, g->c1 - g->c0);
  return way != ROWS || (c->kernel[0] * c->kernel[1] * c->stride[0] * c->stride[1] == 1 &&
                         c->padding[0] + c->padding[1] == 0);
}

/* Every way to the factor gives the sum of the definition, exactly, or within `tolerance` of its largest entry. */
static void must_match(ng_context *ctx, const picture *g, double (*next)(void), double tolerance) {
  static const struct {
    const char *name;
    input_stats *run;
  } way[WAYS] = {{"plain", ng_conv_input_stats_plain},
                 {"fast", ng_conv_input_stats},
                 {"shift", by_shift},
                 {"rows", by_rows}};
  const ng_conv *c = &g->c;
  const int64_t n = order_of(g);
  double *value = need(g->samples * c->channels * c->height * c->width * 8);
  double *want = need(n * n * 8), *other = need(n * n * 8);
  shown x = images(g, value, next);
  ng_sym first = start(n, want);
  release(first.a, ng_sym_count(n), "start");
  naive_input(g, value, 0.5, want);
  for (int k = 0; k < WAYS; k++) {
    if (!fits(k, g)) continue;
    used[k]++;
    const int64_t floats =
        k == ROWS ? ng_rows_scratch(c->channels) : ng_conv_scratch(ctx, c, c->channels, c->out);
    ng_sym S = start(n, other);
    float *scratch = guarded(floats);
    const char *what = title(g, way[k].name, ctx->queue->la->name);
    way[k].run(ctx, c, &x.v, g->take, g->c0, g->c1, g->one, g->reduce, 0.5f, S, scratch);
    assert_int_equal(late_waiting(), 0);
    compare(S, want, tolerance, what);
    release(scratch, floats, what);
    release(S.a, ng_sym_count(n), what);
  }
  free(x.data);
  free(value);
  free(want);
  free(other);
}

/* A mean is rounded once to f32: 2^-24 relative in either factor of each product, and as much again for sums of inexact
 * products; 8 roundings cover both. */
static void must_be_exact(ng_context *ctx, const picture *g) {
  must_match(ctx, g, grid_value, g->reduce == 1 ? 8 * 0x1p-24 : 0);
}

/* ---- tests -----------------------------------------------------------------------------------*/

static void rows_match_the_loops(void **unused) {
  for (int k = 0; k < NAMES; k++) {
    fixture f = opened(names[k], 3);
    for (int i = 0; i < 500; i++) {
      const bool image = i >= 300, wide = image && i % 5 == 1; /* more than one chunk of columns */
      const picture g =
          any_rows(between(1, 9), image ? between(1, 9) : 1, draw() % 3 ? between(1, 9) : 1,
                   wide ? between(60, 150) : between(1, 12));
      must_be_exact(f.ctx, &g);
    }
    for (int i = 0; i < 6; i++) { /* more than one tile, more than one chunk of column sums */
      picture g[] = {any_rows(150, 1, 130, between(1, 5)), any_rows(20, 1, 20, 280),
                     any_rows(4, 70, 70, 3)};
      g[2].one = false; /* 4900^2 is above 2^24 */
      for (int j = 0; j < 3; j++)
        must_be_exact(f.ctx, &g[j]);
    }
    fixture_close(&f);
  }
}

static void inputs_match_the_loops(void **unused) {
  for (int k = 0; k < NAMES; k++) {
    fixture f = opened(names[k], 3);
    used[SHIFT] = 0;
    for (int i = 0; i < 1000; i++) {
      const picture g = any_picture(i % 3 != 0);
      must_be_exact(f.ctx, &g);
    }
    assert_true(used[SHIFT] > 300);
    fixture_close(&f);
  }
}

/* Several tiles of samples (shift: 16384 pixels; plain: 16384 patches), uneven; and work enough for
 * several threads, each with its own scratch. */
static void large_inputs_match_the_loops(void **unused) {
  for (int k = 0; k < 6 * NAMES; k++) {
    fixture f = opened(names[k / 6], 3);
    const int i = k % 6, odd = i % 2;
    const bool tall = i < 4; /* sums of taps take more scratch than rows of the image */
    picture g = {.c = tall ? conv_of(2, 300, 4, 5) : conv_of(3, 61, 80, 3),
                 .how = odd ? LIE_NHWC : LIE_NCHW,
                 .t = !odd   ? NG_F32
                      : tall ? NG_F16
                             : NG_BF16,
                 .samples = tall ? 31 : 8,
                 .take = tall ? 30 : 8,
                 .c1 = tall ? 2 : 2 + odd,
                 .one = true,
                 .reduce = tall ? 1 + i / 2 : 0};
    if (tall) {
      g.c.stride[0] = 2;
      g.c.padding[1] = 1;
    } else {
      g.c.dilation[1] = 1 + odd;
    }
    assert_true(finish(&g.c));
    assert_true(tall || ng_conv_shift_fits(&g.c, 3));
    must_be_exact(f.ctx, &g);
    fixture_close(&f);
  }
}

/* One sample is wider than a tile of the shift way: fits() says no, and scratch still serves
 * narrower ranges that do fit. */
static void wide_inputs_do_not_fit(void **unused) {
  fixture f = opened(names[NAMES - 1], 2);
  const picture g = {.c = conv_of(700, 80, 80, 2),
                     .how = LIE_NHWC,
                     .t = NG_F32,
                     .samples = 1,
                     .take = 1,
                     .c0 = 3,
                     .c1 = 5};
  assert_false(ng_conv_shift_fits(&g.c, 700));
  assert_true(ng_conv_shift_fits(&g.c, 600));
  assert_true(ng_conv_shift_scratch(&g.c, 700) >= ng_conv_shift_scratch(&g.c, 600));
  must_be_exact(f.ctx, &g);
  fixture_close(&f);
}

/* The choice by size: displacements where they save arithmetic, patches elsewhere. */
static void choice_follows_size(void **unused) {
  const ng_conv large = conv_of(64, 32, 32, 3);
  ng_conv small = conv_of(64, 2, 2, 3);
  assert_true(ng_conv_shift_fits(&large, 64));
  assert_true(ng_conv_shift_cost(&large, 64, 32) < 0.7 * ng_conv_plain_cost(&large, 64, 32));
  assert_true(ng_conv_shift_cost(&large, 1, 1) > ng_conv_plain_cost(&large, 1, 1));
  assert_true(ng_conv_shift_cost(&small, 64, 1) > ng_conv_plain_cost(&small, 64, 1));
  small.stride[1] = 2;
  assert_true(finish(&small));
  assert_false(ng_conv_shift_fits(&small, 64));
}

static double rectified(void) { return fmax(0, uniform() + uniform() + uniform() - 1.3); }

/* Values with all their bits.  A sum of n like-signed f32 terms, one after the other, is off by a random walk of n
 * roundings of the partial sums, each at most 2^-24 of them and 0.41 2^-24 on average: 0.41 2^-24 sqrt(n / 3) of the whole.
 * No way sums more than 1024 at a time before it starts anew (gram_shift.c's PART; SYRK some 400), here n = 2048, so a way is
 * off by 3.2e-7 at most (one standard deviation, if every addition were made in turn).  What the shift way subtracts is
 * 1/16 of its sums and adds nothing that counts. */
static void all_bits_match_in_f32(void **unused) {
  for (int k = 0; k < NAMES; k++) {
    fixture f = opened(names[k], 2);
    for (int i = 0; i < 4; i++) {
      const picture g = {.c = conv_of(8, 16, 16, 3),
                         .how = i / 2 ? LIE_NHWC : LIE_NCHW,
                         .t = NG_F32,
                         .samples = 8,
                         .take = 8,
                         .c1 = 8,
                         .one = i % 2 != 0};
      assert_true(fits(SHIFT, &g));
      must_match(f.ctx, &g, rectified, 1e-6);
    }
    fixture_close(&f);
  }
}

int main(void) {
  numbers.state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_match_the_loops),         cmocka_unit_test(inputs_match_the_loops),
      cmocka_unit_test(large_inputs_match_the_loops), cmocka_unit_test(wide_inputs_do_not_fit),
      cmocka_unit_test(choice_follows_size),          cmocka_unit_test(all_bits_match_in_f32),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
