/* t_kernels_gram.c: the kernels over observed arrays (gram_rows.c, gram_conv.c, gram_shift.c, spatial.c, box.c, squares.c) equal
 * `ref` bit for bit, for every layout of an array, on every backend.
 *
 * Values are k / 8, |k| <= 15, which f32, bf16 and f16 hold exactly; their products are multiples of 1/64, and sums of
 * fewer than 2^24 / 225 products are exact in f32 in any order.  So there is no tolerance, except for means and for
 * values with all their bits.  The recordings in tests/golden have a convolution, t_properties_data the threads.
 *
 * Values that must not be read (gaps, samples beyond `take`, channels outside the range, scratch) are NaN. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "fixture.h"
#include "kernel/gram_shift.h"
#include "kernel/pixels.h"
#include "kernels.h"
#include "late.h"
#include "pictures.h"

/* NULL: the default. */
enum { NAMES = 2 };
static const char *const names[NAMES] = {"ref", NULL};

static double uniform(void) { return rng_real(&numbers); }

static fixture opened(const char *linalg, int32_t threads) {
  fixture f;
  const fixture_how how = {.linalg = linalg, .threads = threads};
  fixture_ok(&f, fixture_open(&f, "", &how));
  return f;
}

/* ---- guarded memory --------------------------------------------------------------------------*/

enum { GUARD = 64 };

static float *guarded(int64_t floats) {
  float *p = new_aligned((floats + GUARD) * 4);
  for (int64_t i = 0; i < floats + GUARD; i++)
    p[i] = i < floats ? NAN : 4711.0f;
  return p;
}

static void release(float *p, int64_t floats, const char *what) {
  for (int64_t i = floats; i < floats + GUARD; i++)
    if (p[i] != 4711.0f)
      fail_msg("%s: element %d after its end was overwritten", what, (int)(i - floats) + 1);
  free(p);
}

static ng_sym start(int64_t n) {
  ng_sym S = {.a = guarded(ng_sym_count(n)), .n = n};
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++)
      S.a[ng_sym_at(S.n, i, j)] = (float)((i * 7 + j * 3) % 9 - 4);
  }
  return S;
}

static void compare(ng_sym S, ng_sym want, double tolerance, const char *what) {
  double largest = 0;
  for (int64_t i = 0; i < ng_sym_count(S.n); i++)
    largest = fmax(largest, fabs((double)want.a[i]));
  for (int64_t i = 0; i < S.n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      const double got = (double)ng_sym_get(S, i, j), expected = (double)ng_sym_get(want, i, j);
      if (!(fabs(got - expected) <= tolerance * largest)) {
        fail_msg("%s: NG_TEST_SEED=%llu: entry (%d, %d) of %d is %.9g, expected %.9g, off by %.2g "
                 "of the largest, allowed %.2g",
                 what, (unsigned long long)test_seed(), (int)i, (int)j, (int)S.n, got, expected,
                 fabs(got - expected) / largest, tolerance);
      }
    }
  }
}

/* ---- Gram matrices -------------------------------------------------------------------------------*/

static void plain(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  ng_gram_conv_plain(q, g, scratch);
}

static void by_shift(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  ng_gram_conv_shift(q, g, scratch);
}

/* The kernels of another queue; the queue of the test waits, so the other queue waits here. */
static void on_queue(ng_queue q, const ng_gram *g, bool has_patches, float *scratch) {
  const ng_kernel_ops *kernels = ng_kernels(&q);
  (has_patches ? kernels->add_conv_grams : kernels->add_row_grams)(&q, g, 1, scratch);
  ng_queue_wait(&q);
}
static void device_conv(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  on_queue(kernels_device(), g, true, NULL);
  kernels_check_device();
}
static void device_rows(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  on_queue(kernels_device(), g, false, NULL);
  kernels_check_device();
}
static void late_conv(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  on_queue((ng_queue){.backend = &late_ref.backend, .threads = 1}, g, true, scratch);
}
static void late_rows(ng_queue *q, const ng_gram *g, int64_t n, float *scratch) {
  on_queue((ng_queue){.backend = &late_ref.backend, .threads = 1}, g, false, scratch);
}

enum { REF, PLAIN, FAST, SHIFT, LATE, DEVICE, ROWS, REF_ROWS, LATE_ROWS, DEVICE_ROWS, WAYS };
static const struct {
  const char *name;
  void (*run)(ng_queue *q, const ng_gram *g, int64_t n, float *scratch);
} way[WAYS] = {{"ref", ng_ref_add_conv_grams},
               {"plain", plain},
               {"fast", ng_cpu_add_conv_grams},
               {"shift", by_shift},
               {"late", late_conv},
               {"device", device_conv},
               {"rows", ng_cpu_add_row_grams},
               {"ref rows", ng_ref_add_row_grams},
               {"late rows", late_rows},
               {"device rows", device_rows}};
static int64_t used[WAYS];

/* Whether the device takes part: its stand-in is slow, so it gets small pictures. */
static bool for_device(const picture *g) {
  const int64_t p = ng_conv_taps(&g->c) * g->c.channels;
  return g->samples * g->c.height * g->c.width * p <= 3000;
}

static bool fits(int k, const picture *g) {
  const ng_conv *c = &g->c;
  if ((k == DEVICE || k == DEVICE_ROWS) && (!for_device(g) || used[REF] % 4 != 0)) return false;
  if (k == SHIFT) return g->reduce == 0 && ng_conv_shift_fits(c, g->c1 - g->c0);
  return k < ROWS || (c->kernel[0] * c->kernel[1] * c->stride[0] * c->stride[1] == 1 &&
                      c->padding[0] + c->padding[1] == 0);
}

/* Return the matrix of one algorithm. */
static ng_sym gram_by(int k, ng_queue *q, const picture *g, const ng_view *x) {
  const int64_t floats = k >= ROWS ? ng_gram_rows_scratch(x->columns)
                                   : ng_gram_conv_scratch(q, &g->c, x->columns, g->c.outputs);
  const ng_gram of = {.x = *x,
                      .samples = g->take,
                      .c0 = g->c0,
                      .c1 = g->c1,
                      .has_ones = g->one,
                      .reduce = g->reduce,
                      .conv = g->c,
                      .alpha = 0.5f,
                      .S = start(ng_conv_taps(&g->c) * (g->c1 - g->c0) + g->one)};
  float *scratch = guarded(floats);
  used[k]++;
  way[k].run(q, &of, 1, scratch);
  ng_queue_wait(q);
  assert_int_equal(late_waiting(), 0);
  release(scratch, floats, describe_picture(g, way[k].name, q->backend->name));
  return of.S;
}

/* ---- sums ----------------------------------------------------------------------------------------*/

/* out [2 n] <- the box sums and the squares of channels. */
static void sum_picture(ng_queue *q, const picture *g, const ng_view *v, const ng_conv *c,
                        double *out, float *scratch) {
  const ng_box box = {.x = *v, .samples = g->take, .conv = *c, .out = out};
  const ng_squares squares = {
      .x = *v, .samples = g->take, .reduce = g->reduce, .out = out + c->channels * ng_conv_taps(c)};
  ng_kernels(q)->sum_patches(q, &box, 1, (double *)(void *)scratch);
  ng_kernels(q)->sum_squares(q, &squares, 1);
  ng_queue_wait(q);
}

/* `ref`, the other backends and the device sum the same patches and squares. The sums are exact, except for squares of
 * means: at most 4 roundings of 2^-53 in each square, and one in each addition. */
static void sums_match(ng_queue *q, const picture *g, const ng_view *x) {
  ng_conv c = g->c;
  ng_view v = *x;
  c.channels = v.columns = g->c1 - g->c0;
  v.data = ng_view_at(x, 0, 0, g->c0);
  const int64_t n = c.channels * ng_conv_taps(&c), room = ng_box_scratch(q, &c);
  double *want = new_aligned(4 * n * 8), *out = want + 2 * n;
  float *scratch = guarded(2 * room);
  ng_queue ref = {.backend = &ng_backend_ref, .threads = 1};
  sum_picture(&ref, g, &v, &c, want, scratch);
  for (int k = for_device(g) ? KERNELS_FIRST : 0; k < 0 || test_backend(k / 2) != NULL; k += 2) {
    ng_queue on = kernels_queue_or_device(k);
    const char *what = describe_picture(g, "sums", on.backend->name);
    sum_picture(&on, g, &v, &c, out, scratch);
    for (int64_t i = 0; i < n; i++) {
      if (out[i] != want[i]) fail_msg("%s: sum %d is %g", what, (int)i, out[i]);
    }
    for (int64_t i = n; i < n + c.channels; i++) {
      const double tolerance = g->reduce == 1 ? (double)(2 * (4 + g->take)) * 0x1p-53 : 0;
      if (!(fabs(out[i] - want[i]) <= tolerance * want[i]))
        fail_msg("%s: squares of channel %d: %g, expected %g", what, (int)(i - n), out[i], want[i]);
    }
  }
  kernels_check_device();
  release(scratch, 2 * room, "sums");
  free(want);
}

/* Sums in double equal sums in f32, up to the rounding of means to f32, and the sum of rows whose entries f32 rounds. */
static void double_matches(ng_queue *q, const picture *g, const ng_view *x) {
  const int64_t n = ng_conv_taps(&g->c) * (g->c1 - g->c0) + g->one, count = ng_sym_count(n);
  const int64_t floats = ng_gram_conv_scratch(q, &g->c, x->columns, g->c.outputs);
  double *wide = new_aligned(count * 8), largest = 0.0;
  ng_gram of = {.x = *x, .samples = g->take, .c0 = g->c0, .c1 = g->c1, .has_ones = g->one};
  of.reduce = g->reduce, of.conv = g->c, of.alpha = 1.0 / 3.0, of.S = start(n);
  float *scratch = guarded(floats);
  memset(of.S.a, 0, (size_t)count * sizeof *of.S.a);
  memset(wide, 0, (size_t)count * sizeof *wide);
  ng_cpu_add_conv_grams(q, &of, 1, scratch);
  of.S64 = wide;
  ng_cpu_add_conv_grams(q, &of, 1, scratch);
  for (int64_t i = 0; i < count; i++)
    largest = fmax(largest, fabs(wide[i]));
  for (int64_t i = 0; i < count; i++) {
    if (!(fabs(wide[i] - (double)of.S.a[i]) <= 8 * 0x1p-24 * largest))
      fail_msg("%s: sum %d is %g", describe_picture(g, "double", q->backend->name), (int)i,
               wide[i]);
  }
  if (used[REF] % 8 == 0) { /* the device adds in another order, and its stand-in is slow */
    ng_queue device = kernels_device();
    double *too = new_aligned(count * 8);
    memset(too, 0, (size_t)count * sizeof *too);
    of.S64 = too;
    ng_kernels(&device)->add_conv_grams(&device, &of, 1, scratch);
    ng_queue_wait(&device);
    for (int64_t i = 0; i < count; i++) {
      if (!(fabs(wide[i] - too[i]) <= 1e-12 * largest))
        fail_msg("%s: sum %d is %.17g, expected %.17g", describe_picture(g, "double", "device"),
                 (int)i, too[i], wide[i]);
    }
    free(too);
  }
  release(scratch, floats, "double");
  release(of.S.a, count, "double");
  free(wide);
}

/* Return the correlations between kernel positions, computed by a queue. */
static ng_sym spatial_by(ng_queue q, const picture *g, const ng_view *x) {
  const int64_t floats = ng_spatial_scratch(&q, &g->c);
  const ng_gram of = {.x = *x,
                      .samples = g->take,
                      .c0 = g->c0,
                      .c1 = g->c1,
                      .conv = g->c,
                      .alpha = 0.5f,
                      .S = start(ng_conv_taps(&g->c))};
  float *scratch = guarded(floats);
  ng_kernels(&q)->add_spatial_grams(&q, &of, 1, scratch);
  ng_queue_wait(&q);
  release(scratch, floats, describe_picture(g, "spatial", q.backend->name));
  return of.S;
}

/* The sums are exact in any order, so every backend has the bits of `ref`. */
static void spatial_matches(ng_queue *q, const picture *g, const ng_view *x) {
  const ng_queue like[] = {{.backend = &ng_backend_ref, .threads = q->threads},
                           *q,
                           {.backend = &late_ref.backend, .threads = q->threads}};
  const ng_sym want = spatial_by(like[0], g, x);
  for (int i = 1; i < (for_device(g) && used[REF] % 8 == 0 ? 4 : 3); i++) {
    const ng_queue on = i == 3 ? kernels_device() : like[i];
    const char *what = describe_picture(g, "spatial", on.backend->name);
    const ng_sym S = spatial_by(on, g, x);
    compare(S, want, 0, what);
    release(S.a, ng_sym_count(S.n), what);
  }
  release(want.a, ng_sym_count(want.n), "ref");
}

/* Every algorithm equals `ref`, exactly, or within `tolerance` times the largest entry. */
static void must_match(ng_context *ctx, const picture *g, double (*next)(void), double tolerance) {
  image_array x = new_image_array(g, next);
  const ng_sym want = gram_by(REF, ctx->queue, g, &x.v);
  for (int k = PLAIN; k < WAYS; k++) {
    if (!fits(k, g)) continue;
    const char *what = describe_picture(g, way[k].name, ctx->queue->backend->name);
    const ng_sym S = gram_by(k, ctx->queue, g, &x.v);
    compare(S, want, tolerance, what);
    release(S.a, ng_sym_count(S.n), what);
  }
  if (tolerance == 0 || g->reduce == 1) {
    sums_match(ctx->queue, g, &x.v);
    spatial_matches(ctx->queue, g, &x.v);
  }
  if (for_device(g)) double_matches(ctx->queue, g, &x.v);
  release(want.a, ng_sym_count(want.n), "ref");
  free(x.data);
}

/* A mean is rounded once to f32: 2^-24 relative in either factor of each product, and as much again for sums of inexact
 * products; 8 roundings cover both. */
static void must_be_exact(ng_context *ctx, const picture *g) {
  must_match(ctx, g, draw_grid_value, g->reduce == 1 ? 8 * 0x1p-24 : 0);
}

/* ---- tests -----------------------------------------------------------------------------------*/

static void rows_match_ref(void **unused) {
  for (int k = 0; k < NAMES; k++) {
    fixture f = opened(names[k], 3);
    for (int i = 0; i < 500; i++) {
      const bool image = i >= 300, wide = image && i % 5 == 1; /* several chunks of columns */
      const picture g =
          draw_rows(between(1, 9), image ? between(1, 9) : 1, draw() % 3 ? between(1, 9) : 1,
                    wide ? between(60, 150) : between(1, 12));
      must_be_exact(f.ctx, &g);
    }
    for (int i = 0; i < 6; i++) { /* several tiles, several chunks of column sums */
      picture g[] = {draw_rows(150, 1, 130, between(1, 5)), draw_rows(20, 1, 20, 280),
                     draw_rows(4, 70, 70, 3)};
      g[2].one = false; /* 4900^2 is above 2^24 */
      for (int j = 0; j < 3; j++)
        must_be_exact(f.ctx, &g[j]);
    }
    fixture_close(&f);
  }
}

static void images_match_ref(void **unused) {
  for (int k = 0; k < NAMES; k++) {
    fixture f = opened(names[k], 3);
    used[SHIFT] = 0;
    for (int i = 0; i < 1000; i++) {
      const picture g = draw_picture(i % 3 != 0);
      must_be_exact(f.ctx, &g);
    }
    assert_true(used[SHIFT] > 300);
    fixture_close(&f);
  }
}

/* Several tiles of different numbers of samples (shift: 16384 pixels; plain: 16384 patches), and enough work for
 * several threads, each with its own scratch. */
static void large_images_match_ref(void **unused) {
  for (int k = 0; k < 6 * NAMES; k++) {
    fixture f = opened(names[k / 6], 3);
    const int i = k % 6, odd = i % 2;
    const bool tall = i < 4; /* sums over kernel offsets need more scratch than rows of the image */
    picture g = {.c = tall ? conv_of(2, 300, 4, 5) : conv_of(3, 61, 80, 3),
                 .how = odd ? AXES_NHWC : AXES_NCHW,
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
    assert_true(set_output_size(&g.c));
    assert_true(tall || ng_conv_shift_fits(&g.c, 3));
    must_be_exact(f.ctx, &g);
    fixture_close(&f);
  }
}

/* One sample is larger than a tile of the shift algorithm: fits() returns false; scratch suffices for smaller ranges.
 */
static void wide_inputs_do_not_fit(void **unused) {
  fixture f = opened(names[NAMES - 1], 2);
  const picture g = {.c = conv_of(700, 80, 80, 2),
                     .how = AXES_NHWC,
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

/* The library selects shifts if they need fewer operations, else patches. */
static void choice_follows_size(void **unused) {
  const ng_conv large = conv_of(64, 32, 32, 3);
  ng_conv small = conv_of(64, 2, 2, 3);
  assert_true(ng_conv_shift_fits(&large, 64));
  assert_true(ng_conv_shift_cost(&large, 64, 32) < 0.7 * ng_conv_plain_cost(&large, 64, 32));
  assert_true(ng_conv_shift_cost(&large, 1, 1) > ng_conv_plain_cost(&large, 1, 1));
  assert_true(ng_conv_shift_cost(&small, 64, 1) > ng_conv_plain_cost(&small, 64, 1));
  small.stride[1] = 2;
  assert_true(set_output_size(&small));
  assert_false(ng_conv_shift_fits(&small, 64));
}

static double rectified(void) { return fmax(0, uniform() + uniform() + uniform() - 1.3); }

/* Values with all bits.  In a sum of n f32 terms of one sign the n rounding errors form a random walk; each is at most
 * 2^-24 of its partial sum, 0.41 2^-24 on average: 0.41 2^-24 sqrt(n / 3) of the sum.  An algorithm sums at most 1024
 * terms before it starts a new partial sum (PART of gram_shift.c; SYRK about 400); with n = 2048 its error has a
 * standard deviation of at most 3.2e-7.  The shift algorithm subtracts 1/16 of its sums, which adds little. */
static void all_bits_match_in_f32(void **unused) {
  for (int k = 0; k < NAMES; k++) {
    fixture f = opened(names[k], 2);
    for (int i = 0; i < 4; i++) {
      const picture g = {.c = conv_of(8, 16, 16, 3),
                         .how = i / 2 ? AXES_NHWC : AXES_NCHW,
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

/* One infinite pixel: in a patch, outside all patches, or in a sample beyond `take`. */
static void box_sums_find_non_finite_values(void **unused) {
  for (int k = 0; k < 6; k++) {
    const bool taken = k % 3 != 2, patch = k % 3 == 0;
    picture g = {.c = conv_of(3, 6, 6, 1), .how = k / 3 ? AXES_NHWC : AXES_NCHW, .t = NG_F32};
    g.samples = g.take = 2;
    g.c1 = 3;
    g.c.stride[0] = g.c.stride[1] = 2;
    assert_true(set_output_size(&g.c));
    image_array x = new_image_array(&g, draw_grid_value);
    put(x.data, NG_F32, x.by[0] + x.by[1] + (patch ? 2 : 3) * x.by[2] + 4 * x.by[3], INFINITY);
    double out[3];
    const ng_box box = {.x = x.v, .samples = taken ? 2 : 1, .conv = g.c, .out = out};
    EACH_QUEUE_AND_DEVICE(q) {
      double *scratch = new_aligned(ng_box_scratch(&q, &g.c) * 8);
      ng_kernels(&q)->sum_patches(&q, &box, 1, scratch);
      ng_queue_wait(&q);
      assert_true(isnan(out[0]) == taken);
      free(scratch);
    }
    free(x.data);
  }
}

/* Orders from 64 on, which a device computes by BLAS, from the array itself or from packed rows: every layout. */
static void wide_rows_match_ref_on_the_device(void **unused) {
  enum { SAMPLES = 3, POSITIONS = 5, COLUMNS = 90 };
  static double x[4 * SAMPLES * POSITIONS * COLUMNS];
  static const ng_dtype dtypes[] = {NG_F32, NG_BF16, NG_F64};
  for (int k = 0; k < 4 * 3 * 2 * 3 * 2 && KERNELS_FIRST < 0; k++) {
    const int layout = k % 4, reduce = k / 24 % 3;
    const bool one = k / 12 % 2 == 1, some = k / 72 == 1;
    const ng_dtype t = dtypes[k / 4 % 3];
    ng_view v = {.data = x, .dtype = t, .samples = SAMPLES, .positions = POSITIONS};
    v.columns = COLUMNS;
    v.run_length = POSITIONS;
    v.column_stride = layout == 3 ? POSITIONS : 1;                 /* channels first */
    v.position_stride = layout == 3 ? 1 : COLUMNS + (layout == 1); /* a gap after each row */
    /* gaps between samples, in some layouts */
    v.sample_stride = POSITIONS * (COLUMNS + (layout == 1)) + (layout == 2);
    for (int64_t i = 0; i < SAMPLES * v.sample_stride; i++) {
      const float y = (float)(rng_below(&numbers, 31) - 15) / 8.0f;
      ng_from_f32((char *)x + i * ng_dtype_size(t), t, &y, 1);
    }
    ng_gram of = {.x = v, .samples = SAMPLES - some, .c0 = some ? 7 : 0, .c1 = some ? 80 : COLUMNS};
    of.has_ones = one;
    of.reduce = reduce;
    of.alpha = 0.5;
    ng_gram want = of;
    of.S = start(of.c1 - of.c0 + one);
    want.S = start(of.S.n);
    float *scratch = guarded(ng_gram_rows_scratch(COLUMNS + 1));
    ng_queue device = kernels_device(), ref = kernels_queue(kernels_last_queue());
    ng_kernels(&device)->add_row_grams(&device, &of, 1, NULL);
    ng_queue_wait(&device);
    kernels_check_device();
    ng_kernels(&ref)->add_row_grams(&ref, &want, 1, scratch);
    ng_queue_wait(&ref);
    char what[100];
    (void)snprintf(what, sizeof what, "layout %d, reduce %d, ones %d, some %d, dtype %d", layout,
                   reduce, one, some, (int)t);
    compare(of.S, want.S, reduce == 1 ? 1e-6 : 0.0, what);
    free(scratch);
    free(of.S.a);
    free(want.S.a);
  }
}

/* The same for patches. */
static void wide_patches_match_ref_on_the_device(void **unused) {
  for (int how = 0; how < 2 && KERNELS_FIRST < 0; how++) {
    picture g = {.c = conv_of(9, 5, 5, 1), .how = how ? AXES_NHWC : AXES_NCHW, .t = NG_F32};
    g.samples = g.take = 2;
    g.c1 = 9;
    g.one = true;
    g.c.kernel[0] = g.c.kernel[1] = 3;
    g.c.padding[0] = g.c.padding[1] = 1;
    assert_true(set_output_size(&g.c));
    image_array x = new_image_array(&g, draw_grid_value);
    ng_queue ref = kernels_queue(kernels_last_queue());
    const ng_sym S = gram_by(DEVICE, &ref, &g, &x.v), want = gram_by(REF, &ref, &g, &x.v);
    compare(S, want, 0.0, how ? "patches, NHWC" : "patches, NCHW");
    free(S.a);
    free(want.a);
    free(x.data);
  }
}

/* Positions on three axes that no common stride joins. Squares of whole numbers are exact. */
static void positions_on_three_axes(void **state) {
  enum { N = 2, A = 2, B3 = 4, RUN = 5, COLS = 2, SIZE = 1000 };
  static const int64_t extent[2] = {A, B3}, stride[2] = {150, 30};
  float x[SIZE];
  double out[COLS], want[COLS] = {0.0};
  for (int i = 0; i < SIZE; i++) {
    x[i] = (float)(i * 37 % 101);
  }
  ng_view v = {.data = x,
               .dtype = NG_F32,
               .axes = 2,
               .samples = N,
               .positions = A * B3 * RUN,
               .columns = COLS,
               .sample_stride = 470,
               .position_stride = 4,
               .column_stride = 1,
               .run_length = RUN};
  memcpy(v.extent, extent, sizeof extent);
  memcpy(v.stride, stride, sizeof stride);
  for (int i = 0; i < N * A * B3 * RUN * COLS; i++) {
    const int c = i % COLS, s = i / COLS % RUN, b = i / COLS / RUN % B3,
              a = i / COLS / RUN / B3 % A;
    const float y = x[i / COLS / RUN / B3 / A * 470 + a * 150 + b * 30 + s * 4 + c];
    want[c] += (double)(y * y);
  }
  EACH_QUEUE_AND_DEVICE(q) {
    const ng_squares squares = {.x = v, .samples = N, .out = out};
    ng_kernels(&q)->sum_squares(&q, &squares, 1);
    ng_queue_wait(&q);
    assert_true(out[0] == want[0] && out[1] == want[1]);
  }
}

int main(void) {
  numbers.state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(positions_on_three_axes),
      cmocka_unit_test(rows_match_ref),
      cmocka_unit_test(images_match_ref),
      cmocka_unit_test(large_images_match_ref),
      cmocka_unit_test(wide_inputs_do_not_fit),
      cmocka_unit_test(choice_follows_size),
      cmocka_unit_test(all_bits_match_in_f32),
      cmocka_unit_test(box_sums_find_non_finite_values),
      cmocka_unit_test(wide_rows_match_ref_on_the_device),
      cmocka_unit_test(wide_patches_match_ref_on_the_device),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
