/* t_kernels_emit.c: conformance of the entries that emit directions, update weights and store directions: `cpu` against
 * `ref`, with one and three pieces, for every kind of direction, dtype and layout.
 *
 * Tolerances: cpu combines two products in f32 (3 roundings of 2^-24 of the sum of magnitudes) and updates in f32 (at
 * most 8 more), ref in double; both round to the dtype of the array, where they may be neighbours. Sums are compared
 * with 4 n 2^-53 of the sum of magnitudes. Functions that compute in double on both sides must agree to the last bit.
 * An f64 gradient or weight is combined in double on both sides: at most 12 roundings of 2^-53.
 */
#include "unit_test.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "directions.h"

/* Return whether two results, computed from numbers of magnitude up to 4, agree. */
static bool agree(double x, double y, ng_dtype t) {
  const double last = t == NG_F16    ? 0x1p-10
                      : t == NG_BF16 ? 0x1p-7
                                     : 0.0; /* tolerance: one unit in the last place */
  const double roundings = 12.0 * (t == NG_F64 ? 0x1p-53 : 0x1p-24);
  return fabs(x - y) <= (last + roundings) * fmax(4.0, fabs(y));
}

/* Compare the arrays with results of the reference; the first queue of ref sets them. */
static void compare(const item *a, const item *is, bool update) {
  const char *x = update ? a->w : a->g, *y = update ? is->w : is->g;
  const ng_dtype t = update ? a->weight.dtype : a->grad.dtype;
  for (int64_t i = 0; i < a->rows * a->cols; i++) {
    assert_true(agree(at(x, t, i), at(y, t, i), t));
    if (!update) continue;
    assert_true(agree(at(a->m, a->moment, i), at(is->m, a->moment, i), a->moment));
    assert_true(agree(at(a->v, a->moment, i), at(is->v, a->moment, i), a->moment));
  }
  assert_int_equal(a->overflowed, is->overflowed);
}

/* Return a copy of the results in `l`, whose arrays the next queue overwrites. */
static void keep(const item *from, item *to) {
  const size_t n = (size_t)(from->rows * from->cols);
  memcpy(to->g, from->g, n * (size_t)ng_dtype_size(from->grad.dtype));
  memcpy(to->w, from->w, n * (size_t)ng_dtype_size(from->weight.dtype));
  memcpy(to->m, from->m, n * (size_t)ng_dtype_size(from->moment));
  memcpy(to->v, from->v, n * (size_t)ng_dtype_size(from->moment));
  to->overflowed = from->overflowed;
}

static void run(ng_queue *q, list *l, bool update) {
  for (int i = 0; i < LISTED; i++) {
    restore_arrays(&l->item[i]);
  }
  if (update) {
    ng_kernels(q)->update_weights(q, l->e, l->s, LISTED);
  } else {
    ng_kernels(q)->write_directions(q, l->e, LISTED);
  }
  ng_queue_wait(q);
}

/* In every fourth round, describe the arrays without their first row and column. */
static void draw_regions(rng *r, list *l, kind k, int round) {
  draw_directions(r, l, k, round);
  for (int i = 0; i < LISTED && round % 4 == 1; i++) {
    const item *a = &l->item[i];
    if (a->rows > 1 && a->cols > 1)
      l->e[i].D = (ng_region){&a->grad, 1, a->rows - 1, 1, a->cols - 1};
  }
}

static void test_emit_and_update(void **state) {
  rng r = {test_seed()};
  for (int round = 0; round < test_repetitions(ROUNDS); round++) {
    const bool update = round / KINDS % 2 == 1;
    list l, is;
    rng again = r;
    arena_reset();
    draw_regions(&r, &l, (kind)(round % KINDS), round);
    draw_regions(&again, &is, (kind)(round % KINDS), round);
    for (int k = kernels_last_queue(); k >= KERNELS_FIRST; k--) { /* late, over ref, first */
      ng_queue q = kernels_queue_or_device(k);
      run(&q, &l, update);
      for (int i = 0; i < LISTED; i++) {
        if (k == kernels_last_queue()) keep(&l.item[i], &is.item[i]);
        compare(&l.item[i], &is.item[i], update);
      }
    }
  }
}

static void test_store_norm2(void **state) {
  rng r = {test_seed()};
  for (int round = 0; round < test_repetitions(ROUNDS) / 4; round++) {
    list l;
    double parts[LISTED * 80], norm2[LISTED], want2[LISTED] = {0.0};
    float *want[LISTED];
    arena_reset();
    draw_regions(&r, &l, (kind)(round % KINDS), 7 * round);
    for (int k = kernels_last_queue(); k >= KERNELS_FIRST; k--) {
      ng_queue q = kernels_queue_or_device(k);
      for (int i = 0; i < LISTED; i++) {
        restore_arrays(&l.item[i]);
        memset(l.to[i], 0x5A, (size_t)(l.item[i].rows * l.item[i].cols) * sizeof(float));
        norm2[i] = -1.0;
      }
      ng_kernels(&q)->store_directions(&q, l.e, l.to, LISTED);
      ng_kernels(&q)->sum_norms(&q, l.e, LISTED, parts, norm2);
      ng_queue_wait(&q);
      for (int i = 0; i < LISTED; i++) {
        const int64_t n = l.item[i].rows * l.item[i].cols;
        const size_t bytes = (size_t)n * sizeof(float);
        if (k == kernels_last_queue()) {
          want[i] = arena_alloc((size_t)n, sizeof(float));
          memcpy(want[i], l.to[i], bytes);
          want2[i] = norm2[i];
        }
        assert_memory_equal(want[i], l.to[i], bytes);
        assert_true(fabs(norm2[i] - want2[i]) <= 4.0 * (double)n * 0x1p-53 * want2[i]);
      }
    }
  }
}

/* Emit f32 numbers as f16 and bf16: every number of 16 bits, its neighbours in f32, and the middle between two, which
 * rounds to even. Numbers out of range keep the gradient. */
static void test_rounding_to_16_bits(void **state) {
  enum { EACH = 4, N = 65536 * EACH };
  static const ng_dtype half[] = {NG_F16, NG_BF16};
  for (int t = 0; t < 2; t++) {
    arena_reset();
    float *u = arena_alloc(N, sizeof *u);
    uint16_t *got = arena_alloc(N, sizeof *got), *want = arena_alloc(N, sizeof *want);
    int64_t stay = 0;
    for (uint32_t i = 0; i < N; i++) {
      const uint16_t h[2] = {(uint16_t)(i / EACH), (uint16_t)(i / EACH + 1)};
      float x[2];
      ng_to_f32(x, h, half[t], 2);
      u[i] = i % EACH == 0   ? x[0]
             : i % EACH == 1 ? (float)(0.5 * ((double)x[0] + (double)x[1]))
                             : nextafterf(x[0], i % EACH == 2 ? INFINITY : -INFINITY);
      ng_from_f32(&want[i], half[t], &u[i], 1);
      if (ng_are_finite(&want[i], half[t], 1)) continue;
      want[i] = 1;
      stay++;
    }
    for (int k = kernels_last_queue(); k >= KERNELS_FIRST; k--) {
      ng_queue q = kernels_queue_or_device(k);
      ng_place place = {.data = got, .dtype = half[t]};
      set_layout(&place, half[t], N, false);
      place.data = got;
      _Atomic int64_t *overflowed = arena_alloc(1, sizeof *overflowed);
      const ng_direction e = {.D = {&place, 0, 1, 0, N},
                              .scale = 1.0,
                              .is_stored = true,
                              .u = u,
                              .u_col = 1,
                              .overflowed = overflowed};
      for (int64_t i = 0; i < N; i++) {
        got[i] = 1;
      }
      ng_kernels(&q)->write_directions(&q, &e, 1);
      ng_queue_wait(&q);
      assert_memory_equal(got, want, N * sizeof *got);
      assert_int_equal(*overflowed, stay);
    }
  }
}

static int device_failed(void **state) {
  kernels_check_device();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_emit_and_update),
      cmocka_unit_test(test_store_norm2),
      cmocka_unit_test(test_rounding_to_16_bits),
  };
  return cmocka_run_group_tests(tests, NULL, device_failed);
}
