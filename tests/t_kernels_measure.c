/* t_kernels_measure.c: conformance of the entries that measure gradients and directions, find values that are not finite
 * and copy gradients: `cpu` against `ref`, with one and three pieces. Sums are compared with 4 n 2^-53 of the sum of
 * magnitudes.
 */
#include "unit_test.h"

#include <math.h>
#include <string.h>

#include "directions.h"

/* The numbers of a pass of `ratios`; a count of the second pass has fewer elements. */
typedef struct ratio_numbers {
  int64_t count[NG_RATIO_BINS];
  double extreme[2], sum[4];
} ratio_numbers;

/* Run `ratios` with memory that contains garbage. bins 0: the first pass. */
static void run_ratios(ng_queue *q, const list *l, bool update, const uint32_t *bin, int32_t bins,
                       int64_t *count, ratio_numbers *out) {
  static double parts[4 * LISTED * 80];
  double extreme[6];
  const ng_ratios r = {bin, bins, count, extreme, parts, out->sum};
  memset(count, 0x5A, 3 * NG_RATIO_BINS * sizeof *count);
  memset(extreme, 0x5A, sizeof extreme);
  memset(out, 0x5A, sizeof *out);
  ng_kernels(q)->count_ratios(q, l->e, update ? l->s : NULL, LISTED, &r);
  ng_queue_wait(q);
  const int64_t n = bins == 0 ? NG_RATIO_BINS : (int64_t)bins * NG_RATIO_FINE_BINS;
  memset(out->count, 0, sizeof out->count);
  memcpy(out->count, count, (size_t)n * sizeof *count);
  memcpy(out->extreme, extreme, sizeof out->extreme);
}

/* List the largest bins that have elements, ascending. */
static int32_t list_bins(const ratio_numbers *r, uint32_t *bin, int32_t most) {
  int32_t bins = 0;
  for (uint32_t k = NG_RATIO_BINS; k-- > 0 && bins < most;) {
    if (r->count[k] > 0) bin[most - ++bins] = k;
  }
  memmove(bin, bin + most - bins, (size_t)bins * sizeof *bin);
  return bins;
}

static void same_ratios(const ratio_numbers *x, const ratio_numbers *y, int64_t n) {
  const double unit = 4.0 * (double)n * 0x1p-53;
  assert_memory_equal(x->count, y->count, sizeof x->count);
  assert_memory_equal(x->extreme, y->extreme, sizeof x->extreme);
  assert_true(fabs(x->sum[0] - y->sum[0]) <= unit * y->sum[0]);
  assert_true(fabs(x->sum[1] - y->sum[1]) <= unit * sqrt(y->sum[2] * y->sum[3]));
  assert_true(fabs(x->sum[2] - y->sum[2]) <= unit * y->sum[2]);
  assert_true(fabs(x->sum[3] - y->sum[3]) <= unit * y->sum[3]);
}

/* An update in f32 has at most 8 roundings, so an element may be in the next bin. */
static void near_ratios(const ratio_numbers *x, const ratio_numbers *y) {
  int64_t n = 0;
  for (int64_t k = 0; k < NG_RATIO_BINS; k++) {
    n += x->count[k] - y->count[k];
  }
  assert_int_equal(n, 0);
  assert_true(fabs(x->sum[0] - y->sum[0]) <= 0x1p-18 * y->sum[0]);
  assert_true(fabs(x->sum[1] - y->sum[1]) <= 0x1p-18 * sqrt(y->sum[2] * y->sum[3]));
  assert_true(fabs(x->sum[2] - y->sum[2]) <= 0x1p-40 * y->sum[2]);
  assert_true(fabs(x->sum[3] - y->sum[3]) <= 0x1p-18 * y->sum[3]);
}

static void test_ratios(void **state) {
  static const ng_sgd_coefficients unit_sgd = {1.0f, 0.9f, 0.0f, 0.01f, true};
  static const ng_adamw_coefficients unit_adamw = {0.9f, 0.99f, 0.1f, 0.01f, 0.0f, 1e-3f};
  rng r = {test_seed()};
  static ratio_numbers want[2], is;
  static int64_t count[3 * NG_RATIO_BINS];
  for (int round = 0; round < test_repetitions(ROUNDS) / 8; round++) {
    const bool update = round % 3 == 2;
    list l;
    uint32_t bin[3] = {0};
    int32_t bins = 0;
    int64_t n = 0, total = 0;
    arena_reset();
    draw_directions(&r, &l, (kind)(round % KINDS), 7 * round);
    for (int i = 0; i < LISTED; i++) {
      restore_arrays(&l.item[i]);
      if (update) l.e[i].clip_bound = 0.0f; /* directions are measured before they are clipped */
      l.s[i].sgd = l.s[i].adamw == NULL ? &unit_sgd : NULL;
      if (l.s[i].adamw != NULL) l.s[i].adamw = &unit_adamw;
      n += l.item[i].rows * l.item[i].cols;
    }
    for (int k = kernels_last_queue(); k >= KERNELS_FIRST; k--) {
      ng_queue q = kernels_queue_or_device(k);
      for (int pass = 0; pass < 2; pass++) {
        run_ratios(&q, &l, update, bin, pass == 0 ? 0 : bins, count, &is);
        if (k == kernels_last_queue()) want[pass] = is;
        if (k == kernels_last_queue() && pass == 0) bins = list_bins(&is, bin, 3);
        if (update && k < kernels_last_queue()) {
          if (pass == 0) near_ratios(&is, &want[0]);
        } else if (pass == 0) {
          same_ratios(&is, &want[0], n);
        } else {
          assert_memory_equal(is.count, want[1].count, sizeof is.count);
        }
      }
    }
    for (int64_t k = 0; k < NG_RATIO_BINS; k++) {
      total += want[0].count[k] - want[1].count[k];
    }
    for (int32_t k = 0; k < bins; k++) {
      total += want[0].count[bin[k]];
    }
    assert_int_equal(total, n); /* the second pass counts the elements of its bins */
  }
}

/* The sums of t, with its bias, against sums over the rows in order. */
static void same_sums_of_t(const ng_measure *m, const item *a, double n) {
  double tt = 0.0, tb = 0.0;
  for (int64_t r = 0; r < a->rows; r++) {
    const double b = m->bias.place == NULL ? 0.0 : 0.5 * at(a->m0, a->moment, m->bias.col + r);
    double t = b;
    for (int64_t c = 0; c < a->cols; c++) {
      double x;
      ng_place_read_double(&a->grad, r, c, 1, &x);
      t += x * (double)a->x[c];
    }
    assert_true(fabs(m->t[r] - t) <= 4.0 * n * 0x1p-53 * n);
    tt += m->t[r] * m->t[r];
    tb += m->t[r] * b;
  }
  assert_true(fabs(m->out[1] - tt) <= 4.0 * n * 0x1p-53 * tt);
  assert_true(fabs(m->out[2] - tb) <= 4.0 * n * 0x1p-53 * n * n);
}

/* The copy of an item has the elements of its gradient as f32. */
static void same_elements(const ng_read *copy, const item *a) {
  for (int64_t r = 0; r < a->rows; r++) {
    for (int64_t c = 0; c < a->cols; c++) {
      float x;
      ng_place_read(&a->grad, copy->D.row + r, copy->D.col + c, 1, &x);
      const int64_t col = copy->map != NULL ? copy->map[c] : c * copy->to_col;
      assert_true(copy->to[r * copy->to_row + col] == x);
    }
  }
}

/* Sums of every kind of direction; a NaN in any element is found. */
static void test_measure_and_finite(void **state) {
  const float half = 0.5F;
  rng r = {test_seed()};
  for (int round = 0; round < test_repetitions(ROUNDS) / 4; round++) {
    list l;
    double parts[2 * LISTED * 80], out[LISTED][3], want[LISTED][3] = {{0.0}};
    ng_measure m[LISTED];
    ng_place bias[LISTED];
    arena_reset();
    draw_directions(&r, &l, PLAIN, 7 * round); /* no overflow */
    for (int k = kernels_last_queue(); k >= KERNELS_FIRST; k--) {
      ng_queue q = kernels_queue_or_device(k);
      int32_t finite[LISTED] = {-1, -1, -1}, copied[LISTED] = {1, 1, 1};
      ng_region region[LISTED];
      ng_read copy[LISTED];
      for (int i = 0; i < LISTED; i++) {
        item *a = &l.item[i];
        restore_arrays(a);
        region[i] = l.e[i].D;
        m[i] = (ng_measure){.D = region[i], .out = out[i]};
        if (round % 4 > 0) m[i].x = a->x;
        if (round % 4 == 2) m[i].y = a->y;
        if (round % 4 == 3) m[i].t = a->y_wide;
        if (round % 8 == 7) {
          set_layout(&bias[i], a->moment, a->rows + 1, false);
          bias[i].data = a->m0;
          m[i].bias = (ng_region){&bias[i], 0, 1, a->cols > 1, a->rows};
          m[i].y = &half;
        }
        copy[i] = (ng_read){region[i], a->u, NULL, a->cols, 1, NULL, &copied[i]};
        if (round % 3 == 1) copy[i].map = a->map;
        if (round % 3 == 2) copy[i].to_row = 1, copy[i].to_col = a->rows;
        memset(copy[i].to, 0x5A, (size_t)(a->rows * a->cols) * sizeof(float));
        memset(out[i], 0x5A, sizeof out[i]);
        if (m[i].t != NULL) memset(m[i].t, 0x5A, (size_t)a->rows * sizeof *m[i].t);
      }
      ng_kernels(&q)->measure_gradients(&q, m, LISTED, parts);
      ng_kernels(&q)->check_finite(&q, region, LISTED, finite);
      ng_kernels(&q)->read_gradients(&q, copy, LISTED);
      ng_queue_wait(&q);
      for (int i = 0; i < LISTED; i++) {
        const double n = (double)(l.item[i].rows * l.item[i].cols);
        double t = 0.0;
        for (int64_t c = 0; c < l.item[i].rows && m[i].t != NULL; c++) {
          t += (double)l.item[i].y[c] * m[i].t[c];
        }
        const double second = m[i].t != NULL ? t : out[i][1];
        if (k == kernels_last_queue()) want[i][0] = out[i][0], want[i][1] = second;
        assert_true(fabs(out[i][0] - want[i][0]) <= 4.0 * n * 0x1p-53 * want[i][0]);
        assert_true(fabs(second - want[i][1]) <= 4.0 * n * 0x1p-53 * n);
        if (m[i].t != NULL) same_sums_of_t(&m[i], &l.item[i], n);
        assert_true(finite[i] == 1 && copied[i] == 1);
        same_elements(&copy[i], &l.item[i]);
      }
      item *a = &l.item[round % LISTED];
      const float bad = round % 2 == 0 ? NAN : -INFINITY;
      memset(finite, 0x5A, sizeof finite);
      ng_from_f32(a->g + rng_below(&r, a->rows * a->cols) * ng_dtype_size(a->grad.dtype),
                  a->grad.dtype, &bad, 1);
      ng_kernels(&q)->check_finite(&q, region, LISTED, finite);
      ng_kernels(&q)->read_gradients(&q, copy, LISTED);
      ng_queue_wait(&q);
      for (int i = 0; i < LISTED; i++) {
        assert_int_equal(copied[i], i != round % LISTED);
        assert_int_equal(finite[i], i != round % LISTED);
      }
    }
  }
}

static int device_failed(void **state) {
  kernels_check_device();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ratios),
      cmocka_unit_test(test_measure_and_finite),
  };
  return cmocka_run_group_tests(tests, NULL, device_failed);
}
