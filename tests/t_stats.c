/* t_stats.c: fresh factors (gram_rows.c, gram_conv.c, gram_shift.c) are, to the bit, what loops over
 * everything give, in whatever way an array lies.
 *
 * Values are k / 8, |k| <= 15, which f32, bf16 and f16 hold exactly; their products are
 * multiples of 1/64, and sums of fewer than 2^24 / 225 of them are exact in f32 in any order.  So
 * those tests have no tolerance, except for means.  Then values with all their bits.
 * t_golden has the published numbers of a convolution, t_properties_data the threads.
 *
 * Everything that must not be read (gaps, samples beyond `take`, channels outside the range, scratch) is NaN. */
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
#include "stat/gram_shift.h"

/* The kinds of linear algebra that there are. */
#if defined(NG_HAVE_BLAS)
enum { NAMES = 2 };
#else
enum { NAMES = 1 };
#endif

static rng numbers;

static uint64_t draw(void) { return rng_next(&numbers); }
static int64_t between(int64_t low, int64_t high) { return rng_between(&numbers, low, high); }
static double uniform(void) { return rng_real(&numbers); }

static void seed_numbers(void) { numbers.state = test_seed(); }

static void *need(int64_t bytes) {
  void *p = NULL;
  assert_int_equal(posix_memalign(&p, 64, (size_t)(bytes > 0 ? bytes : 1)), 0);
  return p;
}

static ng_context *context(const char *linalg, int32_t threads) {
  ng_context_config config;
  char message[256] = "";
  ng_context *ctx = NULL;
  ng_context_config_init(&config, sizeof config);
  config.linalg = linalg;
  config.threads = threads;
  if (ng_context_create(NG_VERSION, &config, message, sizeof message, &ctx) != NG_OK) {
    fail_msg("%s", message);
  }
  return ctx;
}

static const char *const names[NAMES] = {
    "ref",
#if defined(NG_HAVE_BLAS)
    "cpu",
#endif
};

/* ---- guarded memory --------------------------------------------------------------------------*/

enum { GUARD = 64 };

static float *guarded(int64_t floats) {
  float *p = need((floats + GUARD) * 4);
  for (int64_t i = 0; i < floats + GUARD; i++) {
    p[i] = i < floats ? NAN : 4711.0f;
  }
  return p;
}

static void release(float *p, int64_t floats, const char *what) {
  for (int64_t i = floats; i < floats + GUARD; i++) {
    if (p[i] != 4711.0f) fail_msg("%s: written %d beyond its end", what, (int)(i - floats));
  }
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
  double largest = 0, worst = 0;
  for (int64_t i = 0; i < S.n * S.n; i++) {
    largest = fmax(largest, fabs(want[i]));
  }
  for (int64_t i = 0; i < S.n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      const double got = (double)ng_sym_get(S, i, j), d = fabs(got - want[i * S.n + j]);
      if (!(d <= tolerance * largest)) {
        fail_msg("%s: NG_TEST_SEED=%llu: entry (%d, %d) of %d is %.9g, expected %.9g, off by %.2g "
                 "of the largest, allowed %.2g",
                 what, (unsigned long long)test_seed(), (int)i, (int)j, (int)S.n, got,
                 want[i * S.n + j], d / largest, tolerance);
      }
      worst = fmax(worst, d);
    }
  }
}

static void outer(double *want, int64_t n, const double *r, double alpha) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++) {
      want[i * n + j] += alpha * r[i] * r[j];
    }
  }
}

static double grid_value(void) { return (double)between(-15, 15) / 8; }

static void put(void *data, ng_dtype t, int64_t i, double v) {
  if (t == NG_F32) {
    ((float *)data)[i] = (float)v;
  } else {
    ((uint16_t *)data)[i] = t == NG_F16 ? ng_f32_to_f16((float)v) : ng_f32_to_bf16((float)v);
  }
}

static ng_dtype any_dtype(void) {
  static const ng_dtype all[] = {NG_F32, NG_F32, NG_BF16, NG_F16};
  return all[between(0, 3)];
}

/* ---- ways to lie -----------------------------------------------------------------------------*/

/* An array of [samples, columns, height, width] in memory, innermost axis first, with gaps between. */
typedef enum lie { LIE_NCHW, LIE_NHWC, LIE_HNWC, LIE_ANY, LIES } lie;

typedef struct shown {
  lie how;
  void *data;
  ng_view v;
  int64_t by[4]; /* elements from one sample, column, row, pixel to the next */
} shown;

static lie any_lie(void) { return (lie)between(0, LIES - 1); }

static shown lay_out(lie how, int64_t samples, int64_t columns, int64_t height, int64_t width,
                     ng_dtype t) {
  static const int inner[3][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}, {1, 3, 0, 2}};
  const int64_t extent[4] = {samples, columns, height, width};
  int order[4] = {0, 1, 2, 3};
  shown s = {.how = how};
  for (int i = 0; i < 4; i++) {
    const int k = (int)between(i, 3), swap = order[i];
    order[i] = how == LIE_ANY ? order[k] : inner[how][i];
    if (how == LIE_ANY) order[k] = swap;
  }
  int64_t next = how == LIE_ANY ? between(1, 2) : 1;
  for (int i = 0; i < 4; i++) {
    s.by[order[i]] = next;
    next *= extent[order[i]];
    if (how == LIE_ANY || i == 2) next += draw() % 2 ? 0 : between(1, 5);
  }
  s.data = need(next * 4);
  for (int64_t i = 0; i < next; i++) {
    put(s.data, t, i, NAN);
  }
  s.v = (ng_view){.data = s.data,
                  .dtype = t,
                  .samples = samples,
                  .positions = height * width,
                  .columns = columns,
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

static void show(const shown *s, int64_t n, int64_t c, int64_t y, int64_t x, double value) {
  put(s->data, s->v.dtype, n * s->by[0] + c * s->by[1] + y * s->by[2] + x * s->by[3], value);
}

/* ---- convolutions ----------------------------------------------------------------------------*/

typedef struct picture {
  ng_conv c;
  lie how;
  ng_dtype t;
  int64_t samples, take, c0, c1; /* c0, c1 of the input, or of the output for a gradient */
  bool one;
  int reduce;
} picture;

static const char *title(const picture *g, const char *who) {
  static char text[300];
  const ng_conv *c = &g->c;
  (void)snprintf(
      text, sizeof text,
      "%s: %s %s %d channels [%d,%d) %dx%d kernel %dx%d stride %d,%d pad %d,%d dil %d,%d "
      "samples %d take %d one %d reduce %d",
      who, (const char *[]){"NCHW", "NHWC", "HNWC", "any"}[g->how], ng_dtype_name(g->t),
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

static shown images(const picture *g, int64_t channels, int64_t h, int64_t w, double *value,
                    double (*next)(void)) {
  const shown v = lay_out(g->how, g->samples, channels, h, w, g->t);
  for (int64_t n = 0; n < g->samples; n++) {
    for (int64_t c = 0; c < channels; c++) {
      for (int64_t s = 0; s < h * w; s++) {
        const bool used = n < g->take && c >= g->c0 && c < g->c1;
        const double x = used ? next() : NAN;
        value[(n * channels + c) * h * w + s] = x;
        show(&v, n, c, s / w, s % w, x);
      }
    }
  }
  return v;
}

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
      for (int64_t k = 0; k < n; k++) {
        sum[k] += row[k] * factor;
      }
    }
    if (g->reduce != 0) outer(want, n, sum, alpha);
  }
  free(row);
  free(sum);
}

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
    const int64_t floats = ng_conv_scratch(ctx, c, c->channels, c->out);
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
      const ng_rows rows = {.v = &v.v, .take = g.take, .c0 = g.c0, .c1 = g.c1, .reduce = g.reduce};
      ng_rows_stats(ctx, &rows, 0.25f, G, scratch);
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

int main(void) {
  seed_numbers();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_match_the_loops),
      cmocka_unit_test(inputs_match_the_loops),
      cmocka_unit_test(large_inputs_match_the_loops),
      cmocka_unit_test(wide_inputs_do_not_fit),
      cmocka_unit_test(choice_follows_size),
      cmocka_unit_test(grads_match_the_loops),
      cmocka_unit_test(fast_equals_plain),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
