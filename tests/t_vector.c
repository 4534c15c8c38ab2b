/* t_vector.c: the entries of a queue for vectors, rows and symmetric storage: every linear algebra and dtype
 * against plain loops.
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

/* Odd sizes, sizes above the cut of a loop, and sizes near the tiles of a conversion. */
static const int64_t lengths[] = {1, 2, 3, 7, 8, 9, 31, 255, 256, 257, 513, 8191, 16385, 33001};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
#define EACH_LENGTH(n)                                                                             \
  for (int n_ = 0, in_ = 1; n_ < LENGTHS; n_++, in_ = 1)                                           \
    for (const int64_t n = lengths[n_]; in_; in_ = 0)

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

/* Return whether the bits are equal, or both are NaN. */
static bool same(float x, float y) {
  uint32_t a, b;
  memcpy(&a, &x, sizeof a);
  memcpy(&b, &y, sizeof b);
  return a == b || (isnan(x) && isnan(y));
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
      DO(q, scale, n, x, factors[k]);
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
    DO(q, fold_wide, n, m, s, 0.95, 0.05);
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
    DO(q, scale64, n, S, 0.3);
    DO(q, fold64, n, F, S, 0.95, 0.05);
    DO(q, raise, n, x, 0.7);
    for (int64_t i = 0; i < n; i++) {
      CHECK(F[i] == 0.95 * F0[i] + 0.05 * (0.3 * S0[i]) && S[i] == 0.0);
      CHECK(same(x[i], (float)((double)x0[i] + 0.7)));
      most = fmax(most, fabs(F[i]));
    }
    DO(q, largest, n, F, NG_F64, &largest);
    CHECK(*ng_numbers_read(q, &largest) == most);
    F[n / 2] = n % 2 == 0 ? (double)NAN : -(double)INFINITY;
    DO(q, finite, n, F, NG_F64, &finite);
    CHECK(ng_info_read(q, &finite) == 0);
    DO(q, finite, n, F0, NG_F64, &finite);
    CHECK(ng_info_read(q, &finite) == 1);
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
      DO(q, finite, n, x, t, &finite);
      CHECK(ng_info_read(q, &finite) == 1);
      for (int64_t i = 0; i<n; i += n> 300 ? 97 : 1) {
        const float old = get(x, t, i);
        for (int k = 0; k < 3; k++) { /* NaN and both infinities */
          put(x, t, i, odd_values[k]);
          DO(q, finite, n, x, t, &finite);
          CHECK(ng_info_read(q, &finite) == 0);
          DO(q, finite, i, x, t, &finite);
          CHECK(ng_info_read(q, &finite) == 1);
        }
        put(x, t, i, -60000.0f);
        DO(q, finite, n, x, t, &finite);
        DO(q, largest, n, x, t, &largest);
        CHECK(ng_info_read(q, &finite) == 1);
        CHECK(*ng_numbers_read(q, &largest) == (double)rounded_to(t, 60000.0f));
        put(x, t, i, old);
      }
      DO(q, largest, 0, x, t, &largest);
      CHECK(*ng_numbers_read(q, &largest) == 0.0);
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
      DO(q, shift, n, S, t, 0.3);
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
      CHECK(fabs(*ng_numbers_read(q, &trace) - exact) <= 2.0 * (double)(n + 4) * U64 * terms);
      put(S, t, ng_sym_at(n, n - 1, n - 1), NAN);
      DO(q, trace, n, S, t, false, &trace);
      CHECK(isnan(*ng_numbers_read(q, &trace)));
      exact = 0.0;
      for (int64_t i = 0; i < n; i++)
        exact += (double)get(old, t, i);
      DO(q, trace, n, old, t, true, &trace);
      CHECK(*ng_numbers_read(q, &trace) == exact);
      drop(S, count, t);
      drop(old, count, t);
    }
    CASE("unpack, add_row n = %" PRId64, n);
    ng_sym s = sym_random(n), old = sym_copy(s);
    mat full = mat_new(n, n, n % 2 * 3), v = mat_random(1, n, 0);
    DO(q, unpack, s, full.a, full.ld);
    DO(q, add_row, s, n - 1, 0, n, v.a, 2.0f);
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

/* ---- rows ------------------------------------------------------------------------------------*/

static void copy_keeps_bits_and_padding(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    for (int64_t pad = 0; pad < 3; pad++) {
      CASE("copy n = %" PRId64 " pad = %" PRId64, n, pad);
      mat x = mat_random(5, n, pad), y = mat_new(5, n, 2 * pad);
      DO(q, copy, 5, n, x.a, x.ld, y.a, y.ld);
      mat_check(x);
      mat_check(y);
      for (int64_t i = 0; i < 5 * n; i++) {
        CHECK(y.a[i / n * y.ld + i % n] == x.a[i / n * x.ld + i % n]);
      }
      mat_free(x);
      mat_free(y);
    }
  }
}

/* The damping is added to both factors, to their product, or is 0; 1 / 0 must be Inf. */
static void divides_by_eigenvalues(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  static const double damping[][3] = {{0.1, 0.02, 0.0}, {0.0, 0.0, 0.003}, {0.0, 0.0, 0.0}};
  EACH_SIZE(n) {
    for (int k = 0; k < 3; k++) {
      const int64_t rows = 1 + n % 4;
      mat g = mat_random(1, rows, 0), a = mat_random(1, n, 0), U = mat_random(rows, n, 2);
      for (int64_t i = 0; i < rows + n; i++) { /* not negative, some are 0 */
        float *x = i < rows ? &g.a[i] : &a.a[i - rows];
        *x = *x < -0.5f ? 0.0f : fabsf(*x);
      }
      const ng_spectrum s = {g.a, a.a, damping[k][0], damping[k][1], damping[k][2], NULL, NULL};
      CASE("divide n = %" PRId64 " damping %d", n, k);
      double *old = dense_mat(U);
      DO(q, divide, rows, n, s, U.a, U.ld);
      for (int64_t i = 0; i < rows * n; i++) {
        const double by = ((double)g.a[i / n] + s.on_g) * ((double)a.a[i % n] + s.on_a) + s.on_both;
        CHECK(same(U.a[i / n * U.ld + i % n], (float)(old[i] / by)));
      }
      if (k < 2) mat_check(U);
      free(old);
      mat_free(g);
      mat_free(a);
      mat_free(U);
    }
  }
}

static void powers_of_a_spectrum(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  static const double damping[] = {0.0, 1e-12, 0.1}, exponent[] = {-1.0, -0.25, 0.5, -1.0 / 3.0};
  EACH_SIZE(n) {
    mat d = mat_random(1, n, 0), to = mat_new(1, n, 0);
    d.a[0] = 0.0f;
    for (int k = 0; k < 12; k++) {
      CASE("power n = %" PRId64 " of %g to %g", n, damping[k % 3], exponent[k / 3]);
      for (int64_t i = 0; i < n; i++)
        d.a[i] = fabsf(d.a[i]);
      DO(q, power, n, d.a, damping[k % 3], exponent[k / 3], to.a);
      for (int64_t i = 0; i < n; i++)
        CHECK(same(to.a[i], (float)pow((double)d.a[i] + damping[k % 3], exponent[k / 3])));
    }
    mat_check(to);
    mat_free(d);
    mat_free(to);
  }
}

static void divides_by_elements(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_LENGTH(n) {
    for (int root = 0; root < 2; root++) {
      CASE("divide_by n = %" PRId64 " root %d", n, root);
      mat U = mat_random(1, n, 0), V = mat_random(1, n, 0);
      double *old = dense_mat(U);
      for (int64_t i = 0; i < n; i++)
        V.a[i] = V.a[i] < -0.5f ? 0.0f : fabsf(V.a[i]);
      DO(q, divide_by, n, U.a, V.a, 1.25, root != 0, 1e-8);
      for (int64_t i = 0; i < n; i++) {
        const double v = 1.25 * (double)V.a[i];
        CHECK(same(U.a[i], (float)(old[i] / ((root != 0 ? sqrt(v) : v) + 1e-8))));
      }
      mat_check(U);
      free(old);
      mat_free(U);
      mat_free(V);
    }
  }
}

static void sums_rows(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_LENGTH(n) {
    const int64_t rows = n > 8000 ? 3 : 37;
    CASE("row_sums n = %" PRId64, n);
    mat P = mat_random(rows, n, 1), D = mat_random(rows, n, 4);
    double *first = doubles(3 * rows), *again = doubles(3 * rows);
    DO(q, row_sums, rows, n, P.a, P.ld, D.a, D.ld, first);
    for (int64_t r = 0; r < rows; r++) {
      double exact[3] = {0.0}, terms[3] = {0.0};
      for (int64_t c = 0; c < n; c++) {
        const double p = (double)P.a[r * P.ld + c], d = (double)D.a[r * D.ld + c];
        const double x[3] = {p * d, d * d, p * p};
        for (int i = 0; i < 3; i++) {
          exact[i] += x[i];
          terms[i] += fabs(x[i]);
        }
      }
      for (int i = 0; i < 3; i++) {
        const double got = ng_numbers_read(q, first)[3 * r + i];
        CHECK(fabs(got - exact[i]) <= 2.0 * (double)(n + 4) * U64 * terms[i]);
      }
    }
    for (int32_t threads = 1; threads < 10; threads += 4) {
      q->threads = threads;
      DO(q, row_sums, rows, n, P.a, P.ld, D.a, D.ld, again);
      CHECK(memcmp(first, again, (size_t)(3 * rows) * sizeof *first) == 0);
    }
    P.a[n - 1] = INFINITY; /* changes its row only */
    DO(q, row_sums, rows, n, P.a, P.ld, D.a, D.ld, again);
    CHECK(!isfinite(again[0]) && isinf(again[2]) && again[1] == first[1]);
    CHECK(memcmp(first + 3, again + 3, (size_t)(3 * rows - 3) * sizeof *first) == 0);
    free(first);
    free(again);
    mat_free(P);
    mat_free(D);
  }
}

static void adds_sums(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    double *sums = doubles(3 * n), total[3] = {0.5, -0.25, 0.0}, expected[3] = {0.5, -0.25, 0.0};
    for (int64_t i = 0; i < 3 * n; i++) {
      sums[i] = uniform();
      expected[i % 3] += sums[i];
    }
    CASE("add_sums n = %" PRId64, n);
    DO(q, add_sums, n, sums, total);
    CHECK(memcmp(total, expected, sizeof total) == 0);
    free(sums);
  }
}

static void multiplies_by_a_diagonal(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    const int64_t rows = 1 + n % 4;
    mat g = mat_random(1, rows, 0), a = mat_random(1, n, 0);
    mat x = mat_random(rows, n, 2), y = mat_new(rows, n, 2);
    for (int left = 0; left < 2; left++) {
      CASE("mul_diagonal n = %" PRId64 " left %d", n, left);
      DO(q, mul_diagonal, rows, n, left ? g.a : NULL, left ? NULL : a.a, x.a, y.a, x.ld);
      mat_check(y);
      for (int64_t i = 0; i < rows * n; i++) {
        const int64_t at = i / n * x.ld + i % n;
        CHECK(same(y.a[at], x.a[at] * (left ? g.a[i / n] : a.a[i % n])));
      }
    }
    mat_free(g);
    mat_free(a);
    mat_free(x);
    mat_free(y);
  }
}

/* From the left and from the right. */
static void multiplies_in_double(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  EACH_SIZE(n) {
    if (n > 200) continue;
    const int64_t lines = 1 + n % 4;
    double *S = doubles(ng_sym_count(n));
    for (int64_t i = 0; i < ng_sym_count(n); i++)
      S[i] = uniform();
    for (int left = 0; left < 2; left++) {
      CASE("mul64 n = %" PRId64 " left %d", n, left);
      mat x = mat_random(left ? n : lines, left ? lines : n, 1);
      mat y = mat_new(x.rows, x.cols, 1);
      const int64_t within = left ? x.ld : 1, between = left ? 1 : x.ld;
      DO(q, mul64, n, S, lines, within, between, x.a, y.a);
      mat_check(y);
      for (int64_t i = 0; i < n * lines; i++) {
        double exact = 0.0, terms = 0.0;
        for (int64_t k = 0; k < n; k++) {
          const double term =
              S[ng_sym_at(n, i / lines, k)] * (double)x.a[k * within + i % lines * between];
          exact += term;
          terms += fabs(term);
        }
        const double got = (double)y.a[i / lines * within + i % lines * between];
        CHECK(fabs(got - exact) <= U32 * fabs(exact) + 2.0 * (double)n * U64 * terms);
      }
      mat_free(x);
      mat_free(y);
    }
    free(S);
  }
}

/* unpack64, gemm64 in its four forms, scale_rows64, divide64 and sums64 against loops. */
static void products_in_double(void **arg) {
  ng_queue queue = queue_of(*arg), *q = &queue;
  for (int64_t n = 1; n < 40; n += 3) {
    const int64_t m = 1 + n % 5, ld = n + 2;
    double *S = doubles(ng_sym_count(n)), *M = doubles(n * n), *X = doubles(ld * ld);
    double *Y = doubles(ld * ld), total[3] = {1.0, 2.0, 3.0}, want[3] = {1.0, 2.0, 3.0};
    for (int64_t i = 0; i < ng_sym_count(n); i++)
      S[i] = uniform();
    for (int64_t i = 0; i < ld * ld; i++)
      X[i] = uniform() + 2.0;
    DO(q, unpack64, n, S, M);
    for (int64_t i = 0; i < n * n; i++)
      CHECK(M[i] == S[ng_sym_at(n, i / n, i % n)]);
    for (int64_t i = 0; i < n * n; i++)
      M[i] = uniform();
    for (int way = 0; way < 4; way++) { /* X: [m, n], or [n, m] if transposed */
      const bool ta = way % 2 == 1, tb = way > 1;
      CASE("gemm64 n = %" PRId64 " way %d", n, way);
      DO(q, gemm64, ta, tb, m, n, n, X, ld, M, n, Y, ld);
      for (int64_t i = 0; i < m * n; i++) {
        const int64_t r = i / n, c = i % n;
        double exact = 0.0, terms = 0.0;
        for (int64_t k = 0; k < n; k++) {
          const double x = ta ? X[k * ld + r] : X[r * ld + k], y = tb ? M[c * n + k] : M[k * n + c];
          exact += x * y;
          terms += fabs(x * y);
        }
        CHECK(fabs(Y[r * ld + c] - exact) <= 2.0 * (double)(n + 1) * U64 * terms);
      }
    }
    const ng_spectrum s = {.on_g = 0.5, .on_a = 0.25, .on_both = 0.125, .g64 = X, .a64 = X + m};
    memcpy(Y, M, (size_t)(n * n) * sizeof *Y);
    DO(q, divide64, n < m ? n : m, n, s, Y, n);
    for (int64_t i = 0; i < (n < m ? n : m) * n; i++)
      CHECK(Y[i] == M[i] / ((X[i / n] + 0.5) * (X[m + i % n] + 0.25) + 0.125));
    memcpy(Y, M, (size_t)(n * n) * sizeof *Y);
    DO(q, scale_rows64, n, n, X, Y);
    DO(q, sums64, n * n, Y, M, total);
    for (int64_t i = 0; i < n * n; i++) {
      CHECK(Y[i] == M[i] * X[i / n]);
      want[0] += Y[i] * M[i];
      want[1] += M[i] * M[i];
      want[2] += Y[i] * Y[i];
    }
    for (int i = 0; i < 3; i++)
      CHECK(fabs(total[i] - want[i]) <= 2.0 * (double)(n * n + 4) * U64 * want[i]);
    free(S), free(M), free(X), free(Y);
  }
}

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
      DO(q, norm2, rows, n, X, t, ld, &first);
      CHECK(fabs(*ng_numbers_read(q, &first) - exact) <=
            2.0 * (double)(rows * n + 4) * U64 * exact);
      for (int32_t threads = 1; threads < 10; threads += 4) {
        q->threads = threads;
        DO(q, norm2, rows, n, X, t, ld, &again);
        CHECK(memcmp(&first, &again, sizeof first) == 0);
      }
      put(X, t, (rows - 1) * ld + n / 2, NAN);
      DO(q, norm2, rows, n, X, t, ld, &again);
      CHECK(isnan(again));
      put(X, t, (rows - 1) * ld + n / 2, -INFINITY);
      DO(q, norm2, rows, n, X, t, ld, &again);
      CHECK(isinf(again));
      drop(X, rows * ld, t);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      EACH(converts),
      EACH(scale_is_exact),
      EACH(folds),
      EACH(works_in_double),
      EACH(finds_non_finite_values),
      EACH(shifts_and_traces),
      EACH(copy_keeps_bits_and_padding),
      EACH(divides_by_eigenvalues),
      EACH(powers_of_a_spectrum),
      EACH(divides_by_elements),
      EACH(sums_rows),
      EACH(adds_sums),
      EACH(multiplies_by_a_diagonal),
      EACH(multiplies_in_double),
      EACH(products_in_double),
      EACH(sums_squares),
  };
  return run_on_backends("vector", tests, sizeof tests / sizeof tests[0]);
}
