/* t_kernels_copy.c: conformance of the entries of copy.c, change.c and accumulate.c: every backend, with one and three
 * pieces, gives exactly the expected elements, for every dtype and layout, and writes nothing else. */
#include "unit_test.h"

#include <math.h>
#include <string.h>

#include "draw.h"
#include "kernels.h"

enum { ROUNDS = 60, MOST = 1 << 19 };
static uint8_t source[MOST], target[MOST], expected[MOST];

static void fill(rng *r, uint8_t *x) {
  for (int64_t i = 0; i < MOST; i += (int64_t)sizeof(uint64_t)) {
    const uint64_t word = rng_next(r);
    memcpy(x + i, &word, sizeof word);
  }
}

/* Draw strides for a shape: axes in a drawn order, a gap after some; return the number of elements from first to last.
 * */
static int64_t draw_strides(rng *r, int32_t ndim, const int64_t *shape, int64_t *stride) {
  int64_t by = 1;
  const int32_t first = (int32_t)rng_below(r, ndim);
  for (int32_t i = 0; i < ndim; i++) {
    const int32_t axis = (first + ndim - i) % ndim;
    stride[axis] = by;
    by *= shape[axis] + rng_below(r, 2);
  }
  return by;
}

static void test_copy(void **state) {
  static const ng_dtype types[] = {NG_F64, NG_F32, NG_BF16, NG_I32, NG_I64, NG_U8};
  rng r = {test_seed()};
  fill(&r, source);
  for (int round = 0; round < test_repetitions(ROUNDS); round++) {
    ng_copy list[2];
    memset(target, 0xA5, sizeof target);
    for (int i = 0; i < 2; i++) {
      ng_copy *c = &list[i];
      ng_strided *s = &c->from;
      int64_t *n = s->shape;
      s->ndim = (int32_t)rng_between(&r, 1, 3), s->dtype = types[rng_below(&r, 6)];
      for (int32_t a = 0; a < s->ndim; a++) {
        n[a] = rng_between(&r, 1, round % 4 == 3 ? 30 : 7);
      }
      if (round % 8 == 7) s->ndim = 2, n[0] = 40, n[1] = 400 + i; /* several pieces */
      s->data = source + i * MOST / 2, c->to = target + i * MOST / 2;
      const int64_t size = ng_dtype_size(s->dtype);
      assert_true(draw_strides(&r, s->ndim, n, s->stride) * size <= MOST / 2);
      assert_true(draw_strides(&r, s->ndim, n, c->to_stride) * size <= MOST / 2);
    }
    for (int k = kernels_last_queue(); k >= KERNELS_FIRST; k--) {
      ng_queue q = kernels_queue_or_device(k);
      if (k == kernels_last_queue()) {
        memcpy(expected, target, sizeof expected);
        for (int i = 0; i < 2; i++) {
          const ng_copy *c = &list[i];
          const int64_t *n = c->from.shape, *by = c->from.stride, *to = c->to_stride;
          const int64_t size = ng_dtype_size(c->from.dtype);
          for (int64_t x = 0; x < n[0]; x++)
            for (int64_t y = 0; y < (c->from.ndim > 1 ? n[1] : 1); y++)
              for (int64_t z = 0; z < (c->from.ndim > 2 ? n[2] : 1); z++) {
                const int64_t in = x * by[0] + (y > 0 ? y * by[1] : 0) + (z > 0 ? z * by[2] : 0);
                const int64_t out = x * to[0] + (y > 0 ? y * to[1] : 0) + (z > 0 ? z * to[2] : 0);
                memcpy(expected + i * MOST / 2 + out * size, source + i * MOST / 2 + in * size,
                       (size_t)size);
              }
        }
      }
      memset(target, 0xA5, sizeof target);
      ng_kernels(&q)->copy_arrays(&q, list, 2);
      ng_queue_wait(&q);
      assert_memory_equal(target, expected, sizeof target);
    }
  }
}

/* Sums of several lines of a buffer and one of no element; converted, then converted back. */
static void test_wire(void **state) {
  rng r = {test_seed()};
  for (int round = 0; round < test_repetitions(ROUNDS); round++) {
    const ng_dtype t = round % 2 == 0 ? NG_BF16 : NG_F16;
    const int64_t n = round == 0 ? 0 : rng_between(&r, 1, round % 3 == 0 ? 5000 : 700);
    float sum[2][5001], x[2][5001];
    uint16_t half[2][5001];
    for (int64_t i = 0; i <= n; i++) {
      sum[0][i] = (float)(rng_value(&r) * (1.0 + 0x1p-14)), sum[1][i] = (float)rng_real(&r) * 7e4F;
    }
    for (int i = 0; i < 2; i++) {
      ng_from_f32(half[i], t, sum[i], n);
    }
    EACH_QUEUE_AND_DEVICE(q) {
      memcpy(x, sum, sizeof x);
      ng_wire_conversion list[] = {{x[0], n, t, false}, {x[1], n, t, false}};
      ng_kernels(&q)->convert_for_wire(&q, list, 2);
      ng_queue_wait(&q);
      for (int i = 0; i < 2; i++) {
        assert_memory_equal(x[i], half[i], (size_t)n * sizeof half[i][0]);
        list[i].widens = true;
      }
      ng_kernels(&q)->convert_for_wire(&q, list, 2);
      ng_queue_wait(&q);
      for (int i = 0; i < 2; i++) {
        float wide[5001];
        ng_to_f32(wide, half[i], t, n);
        assert_memory_equal(x[i], wide, (size_t)n * sizeof wide[0]);
        assert_true(x[i][n] == sum[i][n]); /* the element after the array is unchanged */
      }
    }
  }
}

/* Sums over a vector, a vector with a diagonal, and a symmetric matrix, against loops over the whole matrices. */
static void test_change(void **state) {
  static const ng_dtype types[] = {NG_F64, NG_F32, NG_BF16, NG_F16};
  enum { ORDER = 37, N = ORDER * (ORDER + 1) / 2, DIAGONAL = 300 };
  rng r = {test_seed()};
  for (int kind = 0; kind < 3; kind++) {
    for (int t = 0; t < 4; t++) {
      float x[2][N];
      char a[2][N * sizeof(double)];
      double want[2] = {0.25, 0.5};
      rng_fill(&r, x[0], N), rng_fill(&r, x[1], N);
      for (int k = 0; k < 2; k++) {
        for (int i = 0; i < N; i++) {
          const double v = (double)x[k][i];
          if (types[t] == NG_F64) memcpy(a[k] + i * (int)sizeof v, &v, sizeof v);
        }
        if (types[t] != NG_F64) ng_from_f32(a[k], types[t], x[k], N);
      }
      for (int64_t i = 0; i < (kind == 2 ? ORDER * ORDER : N); i++) {
        const int64_t at = kind == 2 ? ng_sym_at(ORDER, i / ORDER, i % ORDER) : i;
        const double d = (double)x[0][at] - (double)x[1][at], b = (double)x[1][at];
        const double times = kind == 1 && i >= DIAGONAL ? 2.0 : 1.0;
        want[0] += times * d * d, want[1] += times * b * b;
      }
      EACH_QUEUE_AND_DEVICE(q) {
        double out[2] = {0.25, 0.5};
        const ng_change c = {.a = a[0],
                             .b = a[1],
                             .dtype = types[t],
                             .n = N,
                             .order = kind == 2 ? ORDER : 0,
                             .diagonal = kind == 1 ? DIAGONAL : 0,
                             .out = out};
        ng_kernels(&q)->add_changes(&q, &c, 1);
        ng_queue_wait(&q);
        /* sums of these values are exact, so they must be equal */
        assert_true(out[0] == want[0] && out[1] == want[1]);
      }
    }
  }
}

/* The largest magnitude of strided f32 numbers, negative in every second round; Inf if one is not finite, also a NaN. */
static void test_find_largest(void **state) {
  enum { ROWS = 70, COLS = 65, STEP = 3 };
  rng r = {test_seed() + 3};
  float *x = (float *)(void *)source;
  for (int round = 0; round < test_repetitions(ROUNDS) / 4; round++) {
    const ng_strided a = {
        .data = x, .dtype = NG_F32, .ndim = 2, .shape = {ROWS, COLS}, .stride = {1, STEP * ROWS}};
    double largest = -1.0;
    for (int i = 0; i < STEP * ROWS * COLS; i++) {
      x[i] = i / ROWS % STEP == 0 ? (float)rng_value(&r) : INFINITY; /* Inf: between the columns */
    }
    const int64_t row = rng_below(&r, ROWS), col = rng_below(&r, COLS);
    x[row + STEP * ROWS * col] = round % 2 == 0 ? 1e6f : -1e6f;
    for (int bad = 0; bad < 2; bad++) {
      if (bad == 1) x[ROWS - 1 + STEP * ROWS * (COLS - 1)] = round % 4 < 2 ? NAN : -INFINITY;
      EACH_QUEUE_AND_DEVICE(q) {
        ng_kernels(&q)->find_largest(&q, &a, 1, &largest);
        ng_queue_wait(&q);
        assert_true(largest == (bad == 1 ? (double)INFINITY : 1e6));
      }
    }
  }
}

/* Tokens of both dtypes in any strides, some uncounted, the last token invalid in every second round. */
static void test_count_tokens(void **state) {
  enum { N = 6, S = 5, TAKE = 4, VOCABULARY = 7 };
  rng r = {test_seed() + 1};
  for (int round = 0; round < test_repetitions(ROUNDS); round++) {
    int32_t narrow[2 * N * S];
    int64_t wide[2 * N * S];
    double count[VOCABULARY + 2], want[VOCABULARY] = {0};
    const bool is_wide = round % 2 == 0, is_bad = round % 4 < 2, turned = round % 8 < 4;
    const int64_t wrong = is_wide ? INT64_MAX - 1 : VOCABULARY; /* not a double */
    const ng_view v = {.data = is_wide ? (void *)wide : (void *)narrow,
                       .dtype = is_wide ? NG_I64 : NG_I32,
                       .samples = N,
                       .positions = S,
                       .columns = 1,
                       .sample_stride = turned ? 1 : 2 * S,
                       .position_stride = turned ? N : 2};
    for (int64_t i = 0; i < N * S; i++) {
      const int64_t at = ng_view_offset(&v, i / S, i % S);
      int64_t k = rng_below(&r, VOCABULARY + 1) - 1;
      if (k < 0) k = NG_NO_TOKEN;
      if (is_bad && i >= N * S - 2) k = i % 2 == 0 ? wrong : -7;
      narrow[at] = (int32_t)(wide[at] = k);
      if (k >= 0 && k < VOCABULARY && i < TAKE * S) want[k]++;
    }
    const ng_tokens t = {v, TAKE, VOCABULARY, count};
    EACH_QUEUE_AND_DEVICE(q) {
      ng_kernels(&q)->count_tokens(&q, &t, 1);
      ng_queue_wait(&q);
      assert_true(isnan(count[0]) == is_bad);
      int64_t token;
      memcpy(&token, &count[VOCABULARY + 1], sizeof token);
      if (is_bad) assert_true(count[VOCABULARY] == N * S - 2 && token == wrong);
      if (!is_bad) assert_memory_equal(count, want, VOCABULARY * sizeof *want);
    }
  }
}

static void test_accumulate(void **state) {
  enum { N = 40, MORE = 2, STRIDE = 3 };
  rng r = {test_seed() + 2};
  for (int round = 0; round < test_repetitions(ROUNDS); round++) {
    float narrow[STRIDE * (N + MORE)], was[STRIDE * (N + MORE)];
    double wide[STRIDE * (N + MORE)], x[N];
    const bool is_bad = round % 4 == 3, is_wide = round / 8 % 2 == 0, adds_nan = round % 8 == 7;
    for (int i = 0; i < N; i++)
      x[i] = rng_value(&r);
    if (is_bad) x[0] = (double)NAN;
    for (int i = 0; i < STRIDE * (N + MORE); i++)
      was[i] = (float)rng_value(&r);
    const int stride = round % 3 == 0 ? 1 : STRIDE;
    const ng_accumulation a = {x,
                               N,
                               N + MORE,
                               stride,
                               is_wide ? (void *)wide : (void *)narrow,
                               is_wide ? NG_F64 : NG_F32,
                               0.3,
                               1.7,
                               0.9,
                               adds_nan};
    EACH_QUEUE_AND_DEVICE(q) {
      for (int i = 0; i < STRIDE * (N + MORE); i++)
        wide[i] = (double)(narrow[i] = was[i]);
      ng_kernels(&q)->accumulate(&q, &a, 1);
      ng_queue_wait(&q);
      if (adds_nan) assert_true(is_wide ? isnan(wide[0]) : isnan(narrow[0]));
      for (int i = 0; i < STRIDE * (N + MORE) && !adds_nan; i++) {
        const bool hit = !is_bad && i % stride == 0 && i / stride < N + MORE;
        const double fresh = i / stride < N ? 1.7 * x[i / stride < N ? i / stride : 0] : 0.9;
        const double want = hit ? 0.3 * (double)was[i] + fresh : (double)was[i];
        assert_true(is_wide ? wide[i] == want : narrow[i] == (float)want);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_copy),       cmocka_unit_test(test_wire),
      cmocka_unit_test(test_change),     cmocka_unit_test(test_count_tokens),
      cmocka_unit_test(test_accumulate), cmocka_unit_test(test_find_largest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
