/* t_linalg_long.c: factors of real networks.  n = 4608 is a 3x3 convolution of 512 channels; with NG_TEST_LONG=1,
 * n = 9216, too.  n = 769 and 770 (odd and even) reach the threads and the blocking of a BLAS, which small
 * matrices do not.
 *
 * The matrix is a factor of K-FAC: X'X / rows, with fewer rows than columns, plus damping.  A dense copy in double
 * does not fit in memory, so identities are tested with vectors in double: for a random z, S (S^-1 z) = z, L (L'
 * z) = S z, V'(V z) = z, V'(w (V z)) = S z. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "linalg_check.h"

#if defined(NG_HAVE_BLAS)

static double now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A random vector of entries in [-1, 1); its norm is about sqrt(n / 3). */
static double *probe(int64_t n) {
  double *z = zeros(n);
  for (int64_t i = 0; i < n; i++) {
    z[i] = uniform();
  }
  return z;
}

static double distance(const double *x, const double *y, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++) {
    sum += (x[i] - y[i]) * (x[i] - y[i]);
  }
  return sqrt(sum);
}

/* Largest eigenvalue of a positive matrix by power iteration.  The estimate is too small, so ratios are too large,
 * never too small. */
static double largest(ng_sym s) {
  double *x = probe(s.n), *y = zeros(s.n), size = 0.0;
  for (int i = 0; i < 12; i++) {
    ng_sym_vector(s.n, s.a, NG_F32, x, y);
    size = frobenius(y, s.n) / frobenius(x, s.n);
    memcpy(x, y, (size_t)s.n * sizeof *x);
  }
  free(x);
  free(y);
  return size;
}

static ng_sym damped(int64_t n) {
  const int64_t rows = n / 5;
  ng_sym s = sym_new(n);
  mat X = mat_random(rows, n, 0);
  sym_diagonal(s, 0.0f);
  ng_queue queue = queue_of(&ng_backend_cpu), *q = &queue;
  DO(q, add_gram, s, 0, n, X.a, rows, X.ld, 3.0f / (float)rows); /* the diagonal is about 1 */
  DO(q, shift_diagonal, n, s.a, NG_F32, false, 1e-2);
  mat_free(X);
  return s;
}

static void check_probe(const double *got, const double *exact, double scale, int64_t n) {
  check_ratio(PROBED, &ng_backend_cpu, distance(got, exact, n) / (sqrt((double)n) * U32 * scale));
}

/* x = L' z, y = L x. */
static void through_factor(ng_sym l, const double *z, double *x, double *y) {
  for (int64_t i = 0; i < l.n; i++) {
    x[i] = y[i] = 0.0;
  }
  for (int64_t i = 0; i < l.n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      x[j] += (double)l.a[ng_sym_at(l.n, i, j)] * z[i];
    }
  }
  for (int64_t i = 0; i < l.n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      y[i] += (double)l.a[ng_sym_at(l.n, i, j)] * x[j];
    }
  }
}

static void cholesky(int64_t n) {
  ng_queue queue = queue_of(&ng_backend_cpu), *q = &queue;
  enum { M = 3 };
  CASE("Cholesky n = %" PRId64, n);
  ng_sym s = damped(n), l = sym_copy(s);
  double *z = probe(n), *x = zeros(n), *y = zeros(n);
  const double size = largest(s);

  double t = now();
  CHECK(INFO(q, factor, n, l.a, NG_F32) == 0);
  const double factor_s = now() - t;
  sym_check(l);
  through_factor(l, z, x, y);
  ng_sym_vector(s.n, s.a, NG_F32, z, x);
  check_probe(y, x, size * frobenius(z, n), n);

  mat B = mat_random(M, n, 5), C = mat_new(M, n, 1);
  double *b = dense_mat(B);
  DO(q, solve_right, n, l.a, NG_F32, M, B.a, B.ld);
  mat_check(B);
  double *c = dense_mat(B);
  for (int64_t k = 0; k < M; k++) {
    ng_sym_vector(s.n, s.a, NG_F32, c + k * n, y);
    check_probe(y, b + k * n, size * frobenius(c + k * n, n), n);
  }

  t = now();
  CHECK(INFO(q, invert, n, l.a, NG_F32) == 0);
  const double invert_s = now() - t;
  sym_check(l);
  ng_sym_vector(l.n, l.a, NG_F32, z, x);
  ng_sym_vector(s.n, s.a, NG_F32, x, y);
  check_probe(y, z, size * frobenius(x, n), n);

  DO(q, mul_right, l, M, B.a, B.ld, C.a, C.ld);
  mat_check(C);
  double *d = dense_mat(C);
  const double inverse_size = largest(l);
  for (int64_t k = 0; k < M; k++) {
    ng_sym_vector(l.n, l.a, NG_F32, c + k * n, y);
    check_probe(d + k * n, y, inverse_size * frobenius(c + k * n, n), n);
  }
  print_message("n = %" PRId64 ": factor %.2f s, inverse from it %.2f s\n", n, factor_s, invert_s);
  free(b);
  free(c);
  free(d);
  free(x);
  free(y);
  free(z);
  mat_free(B);
  mat_free(C);
  sym_free(s);
  sym_free(l);
}

/* x = V z, row by row; y = V'(w x); w = NULL: y = V' x. */
static void through_vectors(int64_t n, const float *V, const float *w, const double *z, double *x,
                            double *y) {
  for (int64_t i = 0; i < n; i++) {
    x[i] = y[i] = 0.0;
  }
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < n; j++) {
      x[i] += (double)V[i * n + j] * z[j];
    }
    if (w != NULL) x[i] *= (double)w[i];
    for (int64_t j = 0; j < n; j++) {
      y[j] += (double)V[i * n + j] * x[i];
    }
  }
}

static void eigen(int64_t n) {
  ng_queue queue = queue_of(&ng_backend_cpu), *q = &queue;
  CASE("eigen n = %" PRId64, n);
  ng_sym s = damped(n);
  const double size = largest(s);
  mat V = mat_new(n, n, 0), w = mat_new(1, n, 0);
  ng_sym_unpack(s, V.a, V.ld);
  const int64_t bytes = q->backend->linalg->eigen_work(q, n, NG_F32);
  void *work = work_new(bytes);
  const double t = now();
  CHECK(INFO(q, eigen, n, V.a, NG_F32, w.a, work) == 0);
  const double seconds = now() - t;
  work_free(work, bytes);
  mat_check(V);
  mat_check(w);
  double *z = probe(n), *x = zeros(n), *y = zeros(n), trace = 0.0;
  for (int64_t i = 0; i < n; i++) {
    CHECK(i == 0 || w.a[i] >= w.a[i - 1]);
    trace += (double)w.a[i];
  }
  double known;
  DO(q, trace, n, s.a, NG_F32, false, &known);
  CHECK(fabs(trace - known) <= (double)n * U32 * known);
  through_vectors(n, V.a, NULL, z, x, y);
  check_probe(y, z, frobenius(z, n), n);
  through_vectors(n, V.a, w.a, z, x, y);
  ng_sym_vector(s.n, s.a, NG_F32, z, x);
  check_probe(y, x, size * frobenius(z, n), n);
  print_message("n = %" PRId64 ": eigen %.2f s\n", n, seconds);
  free(x);
  free(y);
  free(z);
  mat_free(V);
  mat_free(w);
  sym_free(s);
}

static void threads_and_blocking(void **arg) {
  for (int64_t n = 769; n <= 770; n++) {
    cholesky(n);
    eigen(n);
  }
}

static void n_4608(void **arg) {
  cholesky(4608);
  eigen(4608);
}
static void n_9216(void **arg) {
  cholesky(9216);
  eigen(9216);
}

#define TEST(f)                                                                                    \
  { #f, f, seed_restart, NULL, NULL }

int main(void) {
  const char *more = getenv("NG_TEST_LONG");
  const struct CMUnitTest usual[] = {TEST(threads_and_blocking), TEST(n_4608)};
  const struct CMUnitTest longer[] = {TEST(n_9216)};
  if (more != NULL && strcmp(more, "1") == 0) {
    return cmocka_run_group_tests_name("linalg 9216", longer, seed_begin, print_largest_ratios);
  }
  return cmocka_run_group_tests_name("linalg 4608", usual, seed_begin, print_largest_ratios);
}

#else

int main(void) {
  (void)puts("skipped: this build has no BLAS, and plain loops take hours at n = 4608");
  return 77;
}

#endif
