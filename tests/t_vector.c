/* t_vector.c: the entries of a queue for vectors and symmetric storage: every linear algebra and dtype against plain
 * loops.
 *
 * Elementwise results must have the bits of their formula.  Sums of n terms may differ from ours by 2 (n + 4) u64
 * times the sum of magnitudes (Higham (3.5), for both sums), and must have the same bits for any number of pieces. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "element.h"
#include "linalg_check.h"

static const ng_dtype types[] = {NG_F32, NG_BF16, NG_F16};
#define EACH_TYPE(t)                                                                               \
  for (int t_ = 0, on_ = 1; t_ < 3; t_++, on_ = 1)                                                 \
    for (const ng_dtype t = types[t_]; on_; on_ = 0)

/* ---- stored arrays, with a fence behind them -------------------------------------------------*/

enum { FENCE = 64, FENCE_BYTE = 0xa5 };

static void *stored(int64_t n, ng_dtype t) {
  const size_t bytes = (size_t)(n * ng_dtype_size(t));
  unsigned char *x = malloc(bytes + FENCE);
  if (x == NULL) abort();
  memset(x, FENCE_BYTE, bytes + FENCE);
  return x;
}

static void *stored_random(int64_t n, ng_dtype t) {
  void *x = stored(n, t);
  for (int64_t i = 0; i < n; i++) {
    const float v = (float)uniform();
    ng_from_f32((char *)x + i * ng_dtype_size(t), t, &v, 1);
  }
  return x;
}

static void *stored_copy(const void *from, int64_t n, ng_dtype t) {
  void *x = stored(n, t);
  memcpy(x, from, (size_t)(n * ng_dtype_size(t)));
  return x;
}

static void drop(void *x, int64_t n, ng_dtype t) {
  const unsigned char *end = (unsigned char *)x + n * ng_dtype_size(t);
  for (int i = 0; i < FENCE; i++) {
    CHECK(end[i] == FENCE_BYTE);
  }
  free(x);
}

/* Round v to type t. */
static float rounded_to(ng_dtype t, float v) {
  uint32_t room;
  ng_from_f32(&room, t, &v, 1);
  ng_to_f32(&v, &room, t, 1);
  return v;
}

static const float odd_values[] = {NAN, INFINITY, -INFINITY, FLT_MAX, 1e-42f, -0.0f};
enum { ODD_VALUES = 6 };

/* ---- element by element ----------------------------------------------------------------------*/

static void converts(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_LENGTH(n) {
    EACH_TYPE(t) {
      CASE("convert n = %" PRId64 " %s", n, ng_dtype_name(t));
      void *x = stored_random(n, t), *back = stored(n, t);
      float *wide = stored(n, NG_F32);
      put(x, t, n / 2, odd_values[n % ODD_VALUES]);
      DO(q, widen, n, x, t, wide);
      DO(q, narrow, n, wide, back, t);
      for (int64_t i = 0; i < n; i++) {
        CHECK(same(wide[i], get(x, t, i)) && same(get(back, t, i), wide[i]));
      }
      drop(x, n, t);
      drop(back, n, t);
      drop(wide, n, NG_F32);
    }
  }
}

static void scale_is_exact(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  static const double factors[] = {0.0, 1.0, -0.5, 1.0 / 3.0, 1e-60, 1e60};
  EACH_LENGTH(n) {
    for (int k = 0; k < 6; k++) {
      CASE("scale n = %" PRId64 " by %g", n, factors[k]);
      float *x = stored_random(n, NG_F32);
      x[n / 3] = odd_values[(n + k) % ODD_VALUES];
      float *old = stored_copy(x, n, NG_F32);
      DO(q, scale, n, x, NG_F32, factors[k]);
      for (int64_t i = 0; i < n; i++) { /* a factor of 0 removes NaN and infinities */
        CHECK(same(x[i], k == 0 ? 0.0f : (float)(factors[k] * (double)old[i])));
      }
      drop(x, n, NG_F32);
      drop(old, n, NG_F32);
    }
  }
}

static void folds(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  const float keep = 0.95f, c = 0.3f;
  EACH_LENGTH(n) {
    EACH_TYPE(t) {
      for (int32_t threads = 1; threads < 8; threads += 3) {
        CASE("fold n = %" PRId64 " %s, %d pieces", n, ng_dtype_name(t), threads);
        void *F = stored_random(n, t);
        float *S = stored_random(n, NG_F32);
        S[n - 1] = odd_values[n % ODD_VALUES];
        void *F0 = stored_copy(F, n, t), *S0 = stored_copy(S, n, NG_F32);
        q->threads = threads;
        DO(q, fold, n, F, t, S, keep, c);
        for (int64_t i = 0; i < n; i++) {
          const float sum = keep * get(F0, t, i) + c * get(S0, NG_F32, i);
          CHECK(same(get(F, t, i), rounded_to(t, sum)) && same(S[i], 0.0f));
        }
        drop(F, n, t);
        drop(F0, n, t);
        drop(S, n, NG_F32);
        drop(S0, n, NG_F32);
      }
    }
    CASE("fold_wide n = %" PRId64, n);
    float *m = stored_random(n, NG_F32), *s = stored_random(n, NG_F32);
    s[n / 2] = odd_values[n % ODD_VALUES];
    float *m0 = stored_copy(m, n, NG_F32), *s0 = stored_copy(s, n, NG_F32);
    DO(q, fold_wide, n, m, s, NG_F32, 0.95, 0.05);
    for (int64_t i = 0; i < n; i++) {
      CHECK(same(m[i], (float)(0.95 * (double)m0[i] + 0.05 * (double)s0[i])) && same(s[i], 0.0f));
    }
    drop(m, n, NG_F32);
    drop(m0, n, NG_F32);
    drop(s, n, NG_F32);
    drop(s0, n, NG_F32);
  }
}

static void works_in_double(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_LENGTH(n) {
    CASE("double n = %" PRId64, n);
    float *x = stored_random(n, NG_F32), *x0 = stored_copy(x, n, NG_F32);
    double *F = stored(n, NG_F64), *S = stored(n, NG_F64), largest = 0.0, most = 0.0;
    int finite;
    for (int64_t i = 0; i < n; i++) {
      F[i] = uniform() / 3.0, S[i] = uniform() / 7.0;
    }
    double *F0 = stored_copy(F, n, NG_F64), *S0 = stored_copy(S, n, NG_F64);
    DO(q, scale, n, S, NG_F64, 0.3);
    DO(q, fold_wide, n, F, S, NG_F64, 0.95, 0.05);
    DO(q, shift_diagonal, n, x, NG_F32, true, 0.7);
    for (int64_t i = 0; i < n; i++) {
      CHECK(F[i] == 0.95 * F0[i] + 0.05 * (0.3 * S0[i]) && S[i] == 0.0);
      CHECK(same(x[i], (float)((double)x0[i] + 0.7)));
      most = fmax(most, fabs(F[i]));
    }
    DO(q, find_largest, n, F, NG_F64, &largest);
    CHECK(*ng_read_numbers(q, &largest) == most);
    F[n / 2] = n % 2 == 0 ? (double)NAN : -(double)INFINITY;
    DO(q, check_finite, n, F, NG_F64, &finite);
    CHECK(ng_read_info(q, &finite) == 0);
    DO(q, check_finite, n, F0, NG_F64, &finite);
    CHECK(ng_read_info(q, &finite) == 1);
    F0[0] = NAN;
    DO(q, scale, n, F0, NG_F64, 0.0);
    CHECK(F0[0] == 0.0 && F0[n - 1] == 0.0);
    drop(x, n, NG_F32), drop(x0, n, NG_F32);
    drop(F, n, NG_F64), drop(F0, n, NG_F64);
    drop(S, n, NG_F64), drop(S0, n, NG_F64);
  }
}

/* Each position in turn; every 97th in long arrays. */
static void finds_non_finite_values(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  int finite;
  EACH_LENGTH(n) {
    EACH_TYPE(t) {
      CASE("finite n = %" PRId64 " %s", n, ng_dtype_name(t));
      void *x = stored_random(n, t);
      double largest;
      DO(q, check_finite, n, x, t, &finite);
      CHECK(ng_read_info(q, &finite) == 1);
      for (int64_t i = 0; i<n; i += n> 300 ? 97 : 1) {
        const float old = get(x, t, i);
        for (int k = 0; k < 3; k++) { /* NaN and both infinities */
          put(x, t, i, odd_values[k]);
          DO(q, check_finite, n, x, t, &finite);
          CHECK(ng_read_info(q, &finite) == 0);
          DO(q, check_finite, i, x, t, &finite);
          CHECK(ng_read_info(q, &finite) == 1);
        }
        put(x, t, i, -60000.0f);
        DO(q, check_finite, n, x, t, &finite);
        DO(q, find_largest, n, x, t, &largest);
        CHECK(ng_read_info(q, &finite) == 1);
        CHECK(*ng_read_numbers(q, &largest) == (double)rounded_to(t, 60000.0f));
        put(x, t, i, old);
      }
      DO(q, find_largest, 0, x, t, &largest);
      CHECK(*ng_read_numbers(q, &largest) == 0.0);
      drop(x, n, t);
    }
  }
}

/* ---- symmetric storage -----------------------------------------------------------------------*/

static void shifts_and_traces(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    EACH_TYPE(t) {
      CASE("shift, trace n = %" PRId64 " %s", n, ng_dtype_name(t));
      const int64_t count = ng_sym_count(n);
      void *S = stored_random(count, t), *old = stored_copy(S, count, t);
      double trace, exact = 0.0, terms = 0.0;
      DO(q, shift_diagonal, n, S, t, false, 0.3);
      for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
          const int64_t at = ng_sym_at(n, i, j);
          const float was = get(old, t, at);
          CHECK(same(get(S, t, at), i == j ? rounded_to(t, (float)((double)was + 0.3)) : was));
        }
        exact += (double)get(S, t, ng_sym_at(n, i, i));
        terms += fabs((double)get(S, t, ng_sym_at(n, i, i)));
      }
      DO(q, trace, n, S, t, false, &trace);
      CHECK(fabs(*ng_read_numbers(q, &trace) - exact) <= 2.0 * (double)(n + 4) * U64 * terms);
      put(S, t, ng_sym_at(n, n - 1, n - 1), NAN);
      DO(q, trace, n, S, t, false, &trace);
      CHECK(isnan(*ng_read_numbers(q, &trace)));
      exact = 0.0;
      for (int64_t i = 0; i < n; i++)
        exact += (double)get(old, t, i);
      DO(q, trace, n, old, t, true, &trace);
      CHECK(*ng_read_numbers(q, &trace) == exact);
      drop(S, count, t);
      drop(old, count, t);
    }
    CASE("unpack, add_row n = %" PRId64, n);
    ng_sym s = sym_random(n), old = sym_copy(s);
    mat full = mat_new(n, n, n % 2 * 3), v = mat_random(1, n, 0);
    DO(q, unpack, n, s.a, NG_F32, full.a, full.ld);
    DO(q, add_row, s, n - 1, 0, n - n / 2, v.a, 2.0f);
    DO(q, add_row, s, n - 1, n - n / 2, n / 2, v.a + (n - n / 2), 2.0f);
    mat_check(full);
    sym_check(s);
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < n; j++) {
        const float was = ng_sym_get(old, i, j), add = i == n - 1 ? 2.0f * v.a[j] : 0.0f;
        CHECK(full.a[i * full.ld + j] == was);
        if (j <= i) CHECK(ng_sym_get(s, i, j) == was + add);
      }
    }
    mat_free(full);
    mat_free(v);
    sym_free(s);
    sym_free(old);
  }
}

/* ---- sums of squares -------------------------------------------------------------------------*/

static void sums_squares(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_LENGTH(n) {
    EACH_TYPE(t) {
      const int64_t rows = 1 + n % 5, ld = n + n % 3;
      CASE("norm2 %" PRId64 " x %" PRId64 " %s", rows, n, ng_dtype_name(t));
      void *X = stored_random(rows * ld, t);
      double exact = 0.0, first, again;
      for (int64_t i = 0; i < rows * ld; i++) {
        const double x = (double)get(X, t, i);
        if (i % ld < n) exact += x * x;
        if (i % ld >= n) put(X, t, i, NAN); /* must not be read */
      }
      DO(q, sum_squares, rows, n, X, t, ld, &first);
      CHECK(fabs(*ng_read_numbers(q, &first) - exact) <=
            2.0 * (double)(rows * n + 4) * U64 * exact);
      for (int32_t threads = 1; threads < 10; threads += 4) {
        q->threads = threads;
        DO(q, sum_squares, rows, n, X, t, ld, &again);
        CHECK(memcmp(&first, &again, sizeof first) == 0);
      }
      put(X, t, (rows - 1) * ld + n / 2, NAN);
      DO(q, sum_squares, rows, n, X, t, ld, &again);
      CHECK(isnan(again));
      put(X, t, (rows - 1) * ld + n / 2, -INFINITY);
      DO(q, sum_squares, rows, n, X, t, ld, &again);
      CHECK(isinf(again));
      drop(X, rows * ld, t);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(converts),        EACH(scale_is_exact),          EACH(folds),
      EACH(works_in_double), EACH(finds_non_finite_values), EACH(shifts_and_traces),
      EACH(sums_squares),
  };
  return run_on_backends("vector", tests, sizeof tests / sizeof tests[0]);
}
