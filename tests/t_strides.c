/* t_strides.c: functions for strides, one by one: checks of an array, joined axes, gathered and scattered lines,
 * the scan, rows of a parameter.  Then unusual arrays through the public functions: rows that overlap, rows more
 * than 2^31 elements apart, many image sizes in one micro-batch.
 *
 * The oracle is the address of each element, computed from its coordinates. */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "core/core.h"
#include "draw.h"
#include "element.h"
#include "fixture.h"
#include "kernels.h"
#include "model/model.h"

static int64_t count_elements(const ng_strided *s) {
  int64_t n = 1;
  for (int32_t i = 0; i < s->ndim; i++)
    n *= s->shape[i];
  return n;
}

/* The address of element k in row-major order. */
static int64_t get_address(int32_t ndim, const int64_t *shape, const int64_t *stride, int64_t k) {
  int64_t at = 0;
  for (int32_t i = ndim - 1; i >= 0; i--) {
    at += k % shape[i] * stride[i];
    k /= shape[i];
  }
  return at;
}

static ng_strided draw_strides(rng *r) {
  ng_strided s = {.dtype = NG_F32, .ndim = (int32_t)rng_below(r, 5)};
  for (int32_t i = 0; i < s.ndim; i++) {
    s.shape[i] = rng_between(r, 1, 4);
    s.stride[i] = rng_between(r, -9, 9);
  }
  return s;
}

/* Draw the strides of a slice of a dense array: its axes in any order, some backwards, with gaps. */
static ng_strided draw_slice(rng *r) {
  ng_strided s = {.dtype = NG_F32, .ndim = (int32_t)rng_between(r, 1, 5)};
  int64_t step = rng_between(r, 1, 3);
  int32_t axis[5] = {0, 1, 2, 3, 4};
  for (int32_t i = 0; i < s.ndim; i++) {
    const int32_t j = i + (int32_t)rng_below(r, s.ndim - i), a = axis[j];
    axis[j] = axis[i];
    s.shape[a] = rng_between(r, 1, 5);
    s.stride[a] = rng_below(r, 3) == 0 ? -step : step;
    step *= s.shape[a] + rng_below(r, 2);
  }
  return s;
}

/* ---- checks ----------------------------------------------------------------------------------*/

static void invalid_arrays_are_refused(void **state) {
  float x[1];
  const int64_t shape[5] = {2, 3, 4, 5, 6};
  ng_array a = ng_array_vector(x, 1, NG_F32);
  ng_strided s;
  a.ndim = 5;
  a.shape = shape; /* without strides: dense, the last axis innermost */
  assert_null(ng_array_read(&a, &s));
  static const int64_t dense[5] = {360, 120, 30, 6, 1};
  assert_memory_equal(s.shape, shape, sizeof shape);
  assert_memory_equal(s.stride, dense, sizeof dense);
  const int64_t stride[5] = {1, 2, 6, -24, 0};
  a.stride = stride;
  assert_null(ng_array_read(&a, &s));
  assert_memory_equal(s.stride, stride, sizeof stride);
  a.shape = NULL; /* ng_array.room has four axes */
  assert_non_null(strstr(ng_array_read(&a, &s), "ndim above 4"));
  a.shape = shape;
  a.ndim = -1;
  assert_non_null(strstr(ng_array_read(&a, &s), "ndim"));
  a.ndim = 9;
  assert_non_null(strstr(ng_array_read(&a, &s), "ndim"));
  /* too many elements, at one address; too large a range of addresses, though each axis alone fits */
  const int64_t many[2] = {INT64_C(1) << 30, INT64_C(1) << 30}, none[2] = {0, 0};
  const int64_t two[2] = {2, 2}, far[2] = {INT64_C(1) << 57, (INT64_C(1) << 57) + 1};
  a.ndim = 2;
  a.shape = many;
  a.stride = none;
  assert_non_null(strstr(ng_array_read(&a, &s), "exceed 2^60 bytes"));
  a.shape = two;
  a.stride = far;
  assert_non_null(strstr(ng_array_read(&a, &s), "exceed 2^60 bytes"));
  const int64_t near[2] = {INT64_C(1) << 57, (INT64_C(1) << 57) - 1};
  a.stride = near;
  assert_null(ng_array_read(&a, &s));
}

/* ng_strided_distinct is false if two elements have one address, and true for each slice of a dense array. */
static void arrays_with_distinct_elements_are_recognised(void **state) {
  rng r = {test_seed()};
  int yes = 0, no = 0;
  for (int round = 0; round < 20000; round++) {
    const ng_strided s = draw_strides(&r);
    const bool distinct = ng_strided_distinct(&s);
    bool met = false;
    for (int64_t i = 0; i < count_elements(&s) && !met; i++) {
      for (int64_t k = 0; k < i && !met; k++)
        met =
            get_address(s.ndim, s.shape, s.stride, i) == get_address(s.ndim, s.shape, s.stride, k);
    }
    assert_false(distinct && met);
    yes += distinct;
    no += met;
    const ng_strided slice = draw_slice(&r);
    assert_true(ng_strided_distinct(&slice));
  }
  assert_true(yes > 1000 && no > 1000);
}

static void joined_axes_have_the_same_addresses(void **state) {
  rng r = {test_seed()};
  int fewer = 0;
  for (int round = 0; round < 2000; round++) {
    const ng_strided s = round % 2 == 0 ? draw_slice(&r) : draw_strides(&r);
    ng_strided j = s;
    j.ndim = ng_axes_join(s.ndim, j.shape, j.stride);
    assert_int_equal(count_elements(&j), count_elements(&s));
    for (int64_t i = 0; i < count_elements(&s); i++) {
      assert_int_equal(get_address(j.ndim, j.shape, j.stride, i),
                       get_address(s.ndim, s.shape, s.stride, i));
    }
    fewer += j.ndim < s.ndim;
  }
  assert_true(fewer > 100);
  int64_t shape[4] = {3, 1, 4, 5}, stride[4] = {20, 77, 5, 1};
  assert_int_equal(ng_axes_join(4, shape, stride), 1);
  assert_true(shape[0] == 60 && stride[0] == 1);
}

/* ---- lines -----------------------------------------------------------------------------------*/

enum { LONGEST = 3 * NG_LINE + 7, FARTHEST = 4, ROOM = 2 * LONGEST * FARTHEST };
static const ng_dtype types[4] = {NG_F32, NG_BF16, NG_F16, NG_F64};

static void gathered_lines_are_scattered_back(void **state) {
  static double memory[ROOM];
  static float line[LONGEST];
  rng r = {test_seed()};
  for (int round = 0; round < 300; round++) {
    const ng_dtype t = types[round % 4];
    const int64_t n = rng_between(&r, 1, LONGEST), step = rng_between(&r, -FARTHEST, FARTHEST);
    const int64_t first = ROOM / 2; /* a line may go backwards */
    void *from = (char *)(void *)memory + first * ng_dtype_size(t);
    for (int64_t i = 0; i < ROOM; i++)
      put(memory, t, i, (float)rng_value(&r));
    ng_gather(line, from, t, step, n);
    for (int64_t i = 0; i < n; i++)
      assert_true(line[i] == get(from, t, i * step));
    if (step == 0) continue; /* elements share an address, which ng_scatter does not support */
    for (int64_t i = 0; i < ROOM; i++)
      put(memory, t, i, 99.0f);
    ng_scatter(from, t, step, line, n);
    int64_t others = 0;
    for (int64_t i = 0; i < ROOM; i++)
      others += get(memory, t, i) == 99.0f;
    assert_int_equal(others, ROOM - n);
    for (int64_t i = 0; i < n; i++)
      assert_true(get(from, t, i * step) == line[i]);
  }
}

/* ---- a scan ----------------------------------------------------------------------------------*/

/* Return the largest magnitude of an array.  Fail unless all implementations return the same number. */
static double find_largest(const ng_strided *s) {
  double expected = -1.0;
  EACH_QUEUE_AND_DEVICE(q) {
    double out = -1.0;
    ng_kernels(&q)->find_largest(&q, s, 1, &out);
    ng_queue_wait(&q);
    if (expected < 0.0) expected = out;
    assert_true(out >= 0.0 && (out == expected || (isinf(out) && isinf(expected))));
  }
  return expected;
}

/* Fail unless the scan finds a NaN or the largest number at any element, and reads nothing between elements. */
static void expect_scan_of_elements(ng_strided *s, int64_t room, rng *r) {
  char *memory = malloc((size_t)(room * ng_dtype_size(s->dtype)));
  bool *is_element = calloc((size_t)room, sizeof *is_element);
  int64_t least = 0;
  assert_true(memory != NULL && is_element != NULL);
  for (int32_t i = 0; i < s->ndim; i++)
    if (s->stride[i] < 0) least += s->stride[i] * (s->shape[i] - 1);
  for (int64_t k = 0; k < count_elements(s); k++)
    is_element[get_address(s->ndim, s->shape, s->stride, k) - least] = true;
  for (int64_t i = 0; i < room; i++)
    put(memory, s->dtype, i, is_element[i] ? 1.0f : NAN);
  s->data = memory - least * ng_dtype_size(s->dtype);
  assert_true(find_largest(s) == 1.0);
  for (int k = 0; k < 12; k++) {
    const int64_t which = k < 2 ? k * (count_elements(s) - 1) : rng_below(r, count_elements(s));
    const int64_t at = get_address(s->ndim, s->shape, s->stride, which);
    put(s->data, s->dtype, at, NAN);
    assert_false(find_largest(s) < (double)INFINITY);
    put(s->data, s->dtype, at, -3.0f);
    assert_true(find_largest(s) == 3.0);
    put(s->data, s->dtype, at, 1.0f);
  }
  free(memory);
  free(is_element);
}

static void scan_reads_elements_only(void **state) {
  rng r = {test_seed()};
  for (int round = 0; round < 300; round++) {
    ng_strided s = draw_slice(&r);
    s.dtype = types[round % 4];
    expect_scan_of_elements(&s, 20000, &r);
  }
  for (int k = 0; k < 16; k++) {
    /* k % 4 = 2: many long lines; otherwise one long line, which is cut for two threads */
    ng_strided s = {.dtype = types[k / 4], .ndim = 2, .shape = {1, 40000}, .stride = {1, 2}};
    if (k % 4 == 1) s.stride[1] = -3;
    if (k % 4 == 2) s = (ng_strided){.dtype = s.dtype, .ndim = 2, .shape = {9, 5000}};
    if (k % 4 == 2) s.stride[0] = 10003, s.stride[1] = 2;
    if (k % 4 == 3) s.stride[1] = 1;
    expect_scan_of_elements(&s, 130000, &r);
  }
}

/* ---- rows of a parameter ---------------------------------------------------------------------*/

static void ranges_of_rows_are_read_and_written(void **state) {
  enum { ROWS = 3, COLS = 5 * 7 * 43, MEMORY = 2 * ROWS * COLS };
  static double memory[MEMORY];
  static float line[COLS];
  rng r = {test_seed()};
  for (int round = 0; round < 400; round++) {
    const bool flat = round % 3 == 2;
    const int64_t W = (const int64_t[]){301, 7, 43, 1}[round / 12 % 4], H = COLS / W;
    ng_place v = {.data = memory, .dtype = types[round % 4], .axes = 2};
    v.extent[0] = H, v.extent[1] = W;
    v.stride[0] = 1, v.stride[1] = 2 * H; /* the last axis has the larger stride */
    v.row_stride = H;
    if (flat) { /* contiguous rows with gaps between them */
      v.axes = 1, v.extent[0] = COLS, v.stride[0] = 1, v.row_stride = COLS + 3,
      v.has_dense_rows = true;
    }
    const int64_t rows = flat ? ROWS : 2, row = rng_below(&r, rows), col = rng_below(&r, COLS);
    const int64_t n = rng_between(&r, 1, COLS - col);
    for (int64_t i = 0; i < MEMORY; i++)
      put(memory, v.dtype, i, (float)(i % 251));
#define AT(c) (row * v.row_stride + (flat ? (c) : (c) / W + (c) % W * 2 * H))
    ng_place_read(&v, row, col, n, line);
    for (int64_t i = 0; i < n; i++)
      assert_true(line[i] == get(memory, v.dtype, AT(col + i)));
    /* a NaN is found within the range, and ignored outside */
    assert_true(ng_place_finite(&v, row, col, n));
    const int64_t bad = rng_below(&r, COLS);
    put(memory, v.dtype, AT(bad), NAN);
    assert_true(ng_place_finite(&v, row, col, n) == (bad < col || bad >= col + n));
    put(memory, v.dtype, AT(bad), 0.0f);
    for (int64_t i = 0; i < n; i++)
      line[i] = (float)(i % 127) - 200.0f;
    ng_place_write(&v, row, col, n, line);
    int64_t negative = 0;
    for (int64_t i = 0; i < n; i++)
      assert_true(get(memory, v.dtype, AT(col + i)) == line[i]);
    for (int64_t i = 0; i < MEMORY; i++)
      negative += get(memory, v.dtype, i) < 0.0f;
    assert_int_equal(negative, n);
#undef AT
  }
}

/* The weight of one output, [1, 6], may be bound as [1, 6] or [6], but not as [2, 3]. */
static void the_weight_of_one_output_may_be_a_vector(void **state) {
  float x[6];
  fixture f;
  fixture_ok(&f, fixture_open(&f, "damping=0.1", NULL));
  fixture_ok(&f, ng_add_linear(f.p, "fc", 6, 1, 0, NULL));
  ng_array a = ng_array_matrix(x, 1, 6, NG_F32);
  fixture_ok(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &a));
  a = ng_array_vector(x, 6, NG_F32);
  fixture_ok(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &a));
  a = ng_array_matrix(x, 2, 3, NG_F32);
  fixture_fails(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &a), NG_ERR_SHAPE, "[2, 3], expected [1, 6]");
  fixture_close(&f);
}

/* ---- rows that BLAS cannot read in place -----------------------------------------------------*/

enum { IN = 6, OUT = 2 };

static void take_step(const char *linalg, const ng_array *a, int64_t samples, float *grad) {
  static const float out[4 * OUT] = {1, -2, 3, 1, -1, 2, 2, 1};
  fixture f;
  float dw[OUT * IN];
  for (int i = 0; i < OUT * IN; i++)
    dw[i] = (float)(i % 5) - 1.5f;
  fixture_ok(&f, fixture_open(&f, "damping=0.1 clip=none",
                              &(fixture_how){.linalg = linalg, .threads = 1}));
  const plane grads[2] = {plane_of(dw, OUT, IN, NG_F32)};
  const ng_array g = ng_array_matrix((float *)(uintptr_t)out, samples, OUT, NG_F32);
  fixture_ok(&f, fixture_add_linear(&f, "fc", grads, NULL));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, fixture_begin(&f, samples));
  fixture_ok(&f, ng_observe_input(f.p, 0, a, NG_COPY));
  fixture_ok(&f, ng_observe_output_grad(f.p, 0, &g, NG_COPY));
  fixture_ok(&f, ng_step(f.p, 0.1));
  memcpy(grad, dw, sizeof dw);
  fixture_close(&f);
}

/* Rows at unusual distances give the results of dense rows: farther apart than the 32 bits of a BLAS, overlapping
 * like the windows of a signal, backwards. */
static void distances_of_rows_do_not_change_results(void **state) {
  enum { SAMPLES = 2 };
  const int64_t apart[4] = {(INT64_C(1) << 31) + 5, 3, 1, -7};
  const size_t bytes = ((size_t)apart[0] + 64) * sizeof(float);
  float *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  float small[64] = {0};
  for (int way = memory == MAP_FAILED ? 1 : 0; way < 4; way++) {
    float *x = way == 0 ? memory : small + 32, dense[SAMPLES * IN], got[OUT * IN], want[OUT * IN];
    ng_array a = ng_array_rows(x, SAMPLES, IN, apart[way], NG_F32);
    for (int64_t i = 0; i < SAMPLES * IN; i++) {
      x[i / IN * apart[way] + i % IN] = (float)(i * i % 11) - 4.0f;
    }
    for (int64_t i = 0; i < SAMPLES * IN; i++) {
      dense[i] = x[i / IN * apart[way] + i % IN];
    }
    const ng_array d = ng_array_matrix(dense, SAMPLES, IN, NG_F32);
    static const char *const on[] = {"ref", NULL};
    for (int k = 0; k < 2; k++) {
      take_step(on[k], &a, SAMPLES, got);
      take_step(on[k], &d, SAMPLES, want);
      for (int i = 0; i < OUT * IN; i++) { /* about 100 roundings */
        if (fabsf(got[i] - want[i]) <= 1e-5f * (1.0f + fabsf(want[i]))) continue;
        fail_msg("way %d, %s: element %d is %g, expected %g", way, k == 0 ? "ref" : "best", i,
                 (double)got[i], (double)want[i]);
      }
    }
  }
  if (memory != MAP_FAILED) (void)munmap(memory, bytes);
}

/* ---- sizes of images -------------------------------------------------------------------------*/

static ng_status observe_image(fixture *f, bool grad, int64_t height, int64_t width) {
  static float x[64];
  const ng_array a = ng_array_nchw(x, 1, 1, height, width, NG_F32);
  return grad ? ng_observe_output_grad(f->p, 0, &a, NG_COPY)
              : ng_observe_input(f->p, 0, &a, NG_COPY);
}

/* An output gradient must have the size of an input image of its micro-batch.  Without images, or with more sizes
 * than the library stores, any size is accepted. */
static void output_gradients_have_the_size_of_an_image(void **state) {
  const int64_t kernel[2] = {1, 1};
  fixture f;
  fixture_ok(&f, fixture_open(&f, "damping=0.1", NULL));
  fixture_ok(&f, ng_add_conv2d(f.p, "c", 1, 1, kernel, NULL, NULL, NULL, 1, NULL, 0, NULL));
  float dw = 1;
  const ng_array w = ng_array_nchw(&dw, 1, 1, 1, 1, NG_F32);
  fixture_ok(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &w));
  fixture_ok(&f, ng_ready(f.p));
  for (int64_t sizes = 1; sizes <= NG_IMAGE_SIZES + 2; sizes++) {
    fixture_ok(&f, fixture_begin(&f, 1));
    /* without an image in this micro-batch every output size is accepted */
    fixture_ok(&f, observe_image(&f, true, 7, 7));
    for (int64_t i = 1; i <= sizes; i++) {
      fixture_ok(&f, observe_image(&f, false, i, 2));
      fixture_ok(&f, observe_image(&f, false, i, 2)); /* observe an image of the same size again */
    }
    for (int64_t i = 1; i <= sizes; i++)
      fixture_ok(&f, observe_image(&f, true, i, 2));
    assert_int_equal(observe_image(&f, true, 2, 5), sizes <= NG_IMAGE_SIZES ? NG_ERR_SHAPE : NG_OK);
    assert_int_equal(observe_image(&f, true, sizes + 1, 2),
                     sizes <= NG_IMAGE_SIZES ? NG_ERR_SHAPE : NG_OK);
  }
  /* images of the previous micro-batch do not count */
  fixture_ok(&f, fixture_begin(&f, 1));
  fixture_ok(&f, observe_image(&f, false, 3, 3));
  fixture_ok(&f, fixture_begin(&f, 1));
  fixture_ok(&f, observe_image(&f, true, 4, 4));
  fixture_ok(&f, observe_image(&f, false, 5, 5));
  fixture_fails(&f, observe_image(&f, true, 3, 3), NG_ERR_SHAPE,
                "[1, 1, 5, 5], the output size of its input");
  /* a height of 2^31 exceeds the loops over positions */
  static float one[1];
  ng_array a = ng_array_nchw(one, 1, 1, INT64_C(1) << 31, 1, NG_F32);
  memset(a.room + 4, 0, 4 * sizeof *a.room);
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_SHAPE);
  fixture_close(&f);
}

/* ---- images other than registered ------------------------------------------------------------*/

/* The registered size only plans memory.  Other sizes, or none, give the same bits, also on a late queue (late.h). */
static void image_sizes_may_differ_from_the_registered_size(void **state) {
  static const char *const settings[] = {
      "damping=0.1", "damping=0.1 positions=reduce", "method=eva damping=0.1",
      "method=eva-natgrad damping=0.1 sides=input", "method=kaisa damping=0.1"};
  enum { N = 3, CH = 2, COUT = 3, H = 17, W = 30, OH = 9, OW = 29, KS = COUT * CH * 3 * 2 };
  const int64_t kernel[2] = {3, 2}, stride[2] = {2, 1}, padding[2] = {1, 0};
  const int64_t registered[4][2] = {{H, W}, {0, 0}, {3, 4}, {40, 5}};
  static float x[N * CH * H * W], g[N * COUT * OH * OW];
  rng r = {test_seed()};
  rng_fill(&r, x, sizeof x / sizeof x[0]);
  rng_fill(&r, g, sizeof g / sizeof g[0]);
  for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++) {
    float dw[5][KS];
    for (int way = 0; way < 5; way++) {
      const bool late = way == 4;
      const int64_t *image = registered[late ? 1 : way];
      fixture f;
      fixture_ok(&f, fixture_open(&f, settings[k],
                                  &(fixture_how){.linalg = late ? "late" : "ref", .threads = 2}));
      fixture_ok(&f, ng_add_conv2d(f.p, "c", CH, COUT, kernel, stride, padding, NULL, 1,
                                   image[0] == 0 ? NULL : image, 0, NULL));
      const ng_array w = ng_array_nchw(dw[way], COUT, CH, 3, 2, NG_F32);
      fixture_ok(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &w));
      fixture_ok(&f, ng_ready(f.p));
      for (int i = 0; i < KS; i++)
        dw[way][i] = (float)(i % 7) - 2.5f;
      fixture_ok(&f, fixture_begin(&f, N));
      /* a small image, and one for which the scratch memory grows */
      for (int turn = 0; turn < 2; turn++) {
        const int64_t h = turn == 0 ? 3 : H, wide = turn == 0 ? 2 : W;
        const ng_array a = ng_array_nchw(x, N, CH, h, wide, NG_F32);
        const ng_array b = ng_array_nchw(g, N, COUT, (h - 1) / 2 + 1, wide - 1, NG_F32);
        fixture_ok(&f, ng_observe_input(f.p, 0, &a, NG_COPY));
        fixture_ok(&f, ng_observe_output_grad(f.p, 0, &b, NG_COPY));
        assert_true(ng_queue_is_settled(f.ctx->queue) && late_waiting() == 0);
      }
      fixture_ok(&f, ng_step(f.p, 0.1));
      fixture_close(&f);
      if (memcmp(dw[way], dw[0], sizeof dw[0]) != 0)
        fail_msg("%s: image size %d gives other bits", settings[k], way);
    }
    assert_true(dw[0][0] != -2.5f);
  }
}

/* clip = ratio computes the norm of a weight with rows longer than a line, for any strides. */
static void norms_of_long_rows_do_not_depend_on_strides(void **state) {
  enum { LONG = 2 * NG_LINE + 9, TWO = 2 };
  static float w[TWO * LONG], turned[LONG * TWO], dw[2][TWO * LONG], x[3 * LONG];
  float y[3 * TWO] = {1, -1, 2, 3, -2, 1};
  double clip[2];
  rng r = {test_seed()};
  for (int64_t i = 0; i < TWO * LONG; i++) { /* growing: a wrong element changes the norm */
    w[i] = (float)(rng_real(&r) * (double)(1 + i % LONG));
    turned[i % LONG * TWO + i / LONG] = w[i];
    dw[0][i] = dw[1][i] = (float)rng_value(&r);
  }
  rng_fill(&r, x, 3 * LONG);
  for (int way = 0; way < 2; way++) {
    fixture f;
    fixture_ok(&f, fixture_open(&f, "method=eva damping=0.1 clip=ratio clip_bound=1e-6", NULL));
    fixture_ok(&f, ng_add_linear(f.p, "fc", LONG, TWO, 0, NULL));
    const int64_t shape[2] = {TWO, LONG}, stride[2] = {1, TWO};
    ng_array weight = ng_array_matrix(w, TWO, LONG, NG_F32);
    if (way == 1) {
      weight.data = turned;
      weight.shape = shape;
      weight.stride = stride;
    }
    const ng_array grad = ng_array_matrix(dw[way], TWO, LONG, NG_F32);
    fixture_ok(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &grad));
    fixture_ok(&f, ng_bind_weight(f.p, 0, NG_WEIGHT, &weight));
    fixture_ok(&f, ng_ready(f.p));
    const plane a = plane_of(x, 3, LONG, NG_F32), b = plane_of(y, 3, TWO, NG_F32);
    fixture_ok(&f, fixture_begin_and_observe(&f, 3, 0, &a, &b));
    fixture_ok(&f, ng_step(f.p, 0.1));
    clip[way] = fixture_report(&f).clip;
    fixture_close(&f);
  }
  assert_true(clip[0] > 0.0 && clip[0] < 1.0);
  /* sums in double of about 2000 squares */
  assert_true(fabs(clip[0] - clip[1]) <= 1e-12 * clip[0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(invalid_arrays_are_refused),
      cmocka_unit_test(arrays_with_distinct_elements_are_recognised),
      cmocka_unit_test(joined_axes_have_the_same_addresses),
      cmocka_unit_test(gathered_lines_are_scattered_back),
      cmocka_unit_test(scan_reads_elements_only),
      cmocka_unit_test(ranges_of_rows_are_read_and_written),
      cmocka_unit_test(the_weight_of_one_output_may_be_a_vector),
      cmocka_unit_test(distances_of_rows_do_not_change_results),
      cmocka_unit_test(output_gradients_have_the_size_of_an_image),
      cmocka_unit_test(image_sizes_may_differ_from_the_registered_size),
      cmocka_unit_test(norms_of_long_rows_do_not_depend_on_strides),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
