/* linalg_check.c: see linalg_check.h. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "backend.h"
#include "kernels.h"
#include "linalg_check.h"

/* ---- limits ----------------------------------------------------------------------------------
 * A ratio is an error divided by n u and a scale; u is the unit roundoff of the result.  Limits of products and of the
 * Cholesky factor hold for every input and every order of summation.  The others are about four times the largest ratio
 * (0.61, 0.71, 3.1, 4.2, 1.5) of 50 seeds with OpenBLAS 0.3.21 (SkylakeX and Haswell kernels), BLIS 0.9 and Netlib
 * 3.11, n from 1 to 257.  A wrong index or a missing term gives ratios above 1e3. */
static const struct {
  const char *name, *what;
  double limit;
} limits[LIMITS] = {
    /* Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., (3.5): k terms, and alpha,
     * beta, the last sum: (k + 4) u (|alpha| |A| |B| + |beta C|), element by element. */
    {"product", "|C - exact| / ((k + 4) u |alpha| |A| |B| + |beta| |C|)", 1.0},
    /* ref sums in double and rounds once: u |C|, plus (3.5) with the u of double for its sum and for the exact one. */
    {"summed", "ref: |C - exact| / (u |C| + 2 (k + 4) u64 (...))", 1.0},
    /* Higham, theorem 10.3: (n + 1) u |L| |L'| <= (n + 1) u sqrt(a_ii a_jj) to first order; one more u because OpenBLAS
     * multiplies by the reciprocal of the diagonal. */
    {"factor", "|A - L L'| / ((n + 2) u sqrt(a_ii a_jj))", 1.1},
    {"inverse", "||A X - I|| / ((n + 4) u ||A|| ||X||), Frobenius", 2.5},
    {"solve", "||A X - B|| / ((n + 4) u ||A|| ||X||), Frobenius", 3.0},
    {"eigen", "||V A - w V|| / (n u ||A||), Frobenius", 12.0},
    {"orthogonal", "||V V' - I|| / (n u), largest entry", 16.0},
    {"values", "|w - known w| / (n u ||A||)", 6.0},
    /* Rounding errors of random sign grow like sqrt(n), a wrong entry like n: four times the largest ratio (0.59) of
     * 5 seeds at n = 769, 770, 4608 and of one seed at 9216. */
    {"probed", "large n, random z: ||error of the identity|| / (sqrt(n) u ||S|| ||z||)", 2.5},
    /* Higham, theorem 19.4, bounds the error by a constant times m n u ||A||; measured errors grow more slowly. */
    {"qr", "||A - Q R|| / ((m + 4) u ||A||), Frobenius", 4.2},
};
static double worst[LIMITS][2];

static uint64_t seed;
static rng numbers;
char case_text[200];

void fail_case(const char *what, int line) {
  fail_msg("NG_TEST_SEED=%" PRIu64 ": %s: %s (line %d)", seed, case_text, what, line);
}

void check_ratio(int kind, const ng_backend *on, double ratio) {
  if (!(ratio <= limits[kind].limit)) { /* written so that NaN also fails */
    fail_msg("NG_TEST_SEED=%" PRIu64 ": %s: %s: %s = %.3g, limit %.3g", seed, case_text, on->name,
             limits[kind].what, ratio, limits[kind].limit);
  }
  double *w = &worst[kind][on != &ng_backend_ref];
  if (ratio > *w) *w = ratio;
}

int seed_begin(void **arg) {
  seed = test_seed();
  return 0;
}

int seed_restart(void **arg) {
  numbers.state = seed;
  case_text[0] = '\0';
  return 0;
}

int print_largest_ratios(void **arg) {
  kernels_check_device();
  for (int i = 0; i < LIMITS; i++) {
    if (worst[i][0] == 0.0 && worst[i][1] == 0.0) continue;
    print_message("%-10s largest: ref %-9.3g others %-9.3g limit %-4g %s\n", limits[i].name,
                  worst[i][0], worst[i][1], limits[i].limit, limits[i].what);
  }
  return 0;
}

enum { MOST_TESTS = 100 };
int run_on_backends(const char *group, const struct CMUnitTest *tests, size_t n) {
  static char names[MOST_TESTS][100];
  struct CMUnitTest all[MOST_TESTS];
  size_t count = 0;
  for (int32_t i = KERNELS_FIRST; i < 0 || test_backend(i) != NULL; i++) {
    const ng_backend *on = i < 0 ? kernels_device().backend : test_backend(i);
    for (size_t k = 0; k < n; k++, count++) {
      if (count == MOST_TESTS) return 1;
      (void)snprintf(names[count], sizeof names[0], "%s: %s", on->name, tests[k].name);
      all[count] = tests[k];
      all[count].name = names[count];
      all[count].initial_state = (void *)(uintptr_t)on;
    }
  }
  return _cmocka_run_group_tests(group, all, count, seed_begin, print_largest_ratios);
}

double uniform(void) { return 2.0 * rng_real(&numbers) - 1.0; }

int left_info;

static void run_backwards(void *executor, int32_t n, void (*task)(void *arg, int32_t i),
                          void *arg) {
  for (int32_t i = n - 1; i >= 0; i--) {
    task(arg, i);
  }
}

ng_queue queue_of(const ng_backend *on) {
  left_info = -99;
  kernels_check_device();
  if (on->open != NULL && strcmp(on->name, ng_backend_device.name) == 0) return kernels_device();
  ng_queue q = {.backend = on, .run = run_backwards, .threads = 4};
  if (on->open != NULL) assert_null(on->open(&q));
  return q;
}

bool same(float x, float y) {
  uint32_t a, b;
  memcpy(&a, &x, sizeof a);
  memcpy(&b, &y, sizeof b);
  return a == b || (isnan(x) && isnan(y));
}

enum { GUARD = 16 };
/* Number i of a matrix as canary: a NaN with these bits. */
static const uint64_t canary64 = UINT64_C(0x7ff80000deadbeef);
static const uint32_t canary32 = 0x7fc0dead;

static char *number_address(mat m, int64_t i) { return (char *)m.a + i * ng_dtype_size(m.t); }

static const void *canary_of(ng_dtype t) {
  return t == NG_F64 ? (const void *)&canary64 : (const void *)&canary32;
}

mat mat_new_of(ng_dtype t, int64_t rows, int64_t cols, int64_t pad) {
  mat m = {NULL, rows, cols, cols + pad, t};
  const int64_t count = rows * m.ld + 2 * GUARD;
  m.a = malloc((size_t)(count * ng_dtype_size(t)));
  if (m.a == NULL) abort();
  for (int64_t i = 0; i < count; i++) {
    memcpy(number_address(m, i), canary_of(t), (size_t)ng_dtype_size(t));
  }
  m.a = (float *)(void *)number_address(m, GUARD);
  return m;
}

mat mat_new(int64_t rows, int64_t cols, int64_t pad) { return mat_new_of(NG_F32, rows, cols, pad); }

mat mat_random_of(ng_dtype t, int64_t rows, int64_t cols, int64_t pad) {
  mat m = mat_new_of(t, rows, cols, pad);
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < cols; j++) {
      ng_set_number(m.a, t, i * m.ld + j, uniform());
    }
  }
  return m;
}

mat mat_random(int64_t rows, int64_t cols, int64_t pad) {
  return mat_random_of(NG_F32, rows, cols, pad);
}

mat mat_of_sym(ng_dtype t, ng_sym s) {
  mat m = mat_new_of(t, 1, ng_sym_count(s.n), 0);
  ng_from_f32(m.a, t, s.a, m.cols);
  return m;
}

void mat_check(mat m) {
  for (int64_t i = -GUARD; i < m.rows * m.ld + GUARD; i++) {
    const bool inside = i >= 0 && i < m.rows * m.ld && i % m.ld < m.cols;
    if (inside && isnan(ng_number_at(m.a, m.t, i))) fail_case("NaN in the result", __LINE__);
    if (!inside && memcmp(number_address(m, i), canary_of(m.t), (size_t)ng_dtype_size(m.t)) != 0)
      fail_case("wrote outside", __LINE__);
  }
}

void mat_free(mat m) { free(number_address(m, -GUARD)); }

ng_sym sym_new(int64_t n) {
  const ng_sym s = {mat_new(1, ng_sym_count(n), 0).a, n};
  return s;
}
void sym_check(ng_sym s) {
  const mat m = {s.a, 1, ng_sym_count(s.n), ng_sym_count(s.n), NG_F32};
  mat_check(m);
}
void sym_free(ng_sym s) { free(s.a - GUARD); }

double *dense_packed(int64_t n, mat m) {
  double *d = zeros(n * n);
  for (int64_t i = 0; i < n * n; i++) {
    d[i] = ng_number_at(m.a, m.t, ng_sym_at(n, i / n, i % n));
  }
  return d;
}

double *dense(ng_sym s) { return dense_packed(s.n, (mat){.a = s.a, .t = NG_F32}); }

double *dense_mat(mat m) {
  double *d = zeros(m.rows * m.cols);
  for (int64_t i = 0; i < m.rows; i++) {
    for (int64_t j = 0; j < m.cols; j++) {
      d[i * m.cols + j] = ng_number_at(m.a, m.t, i * m.ld + j);
    }
  }
  return d;
}

ng_sym sym_random(int64_t n) {
  ng_sym s = sym_new(n);
  for (int64_t i = 0; i < ng_sym_count(n); i++) {
    s.a[i] = (float)uniform();
  }
  return s;
}

ng_sym sym_positive(int64_t n, double shift) {
  ng_sym s = sym_new(n);
  double *x = zeros(n * n);
  for (int64_t i = 0; i < n * n; i++) {
    x[i] = uniform();
  }
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      double sum = 0.0;
      for (int64_t l = 0; l < n; l++) {
        sum += x[i * n + l] * x[j * n + l];
      }
      sym_set(s, i, j, (float)(sum / (double)n + (i == j ? shift : 0.0)));
    }
  }
  free(x);
  return s;
}

ng_sym sym_copy(ng_sym s) {
  ng_sym t = sym_new(s.n);
  memcpy(t.a, s.a, (size_t)ng_sym_count(s.n) * sizeof *t.a);
  return t;
}

double frobenius(const double *a, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; i++) {
    sum += a[i] * a[i];
  }
  return sqrt(sum);
}

double *times(const double *A, const double *B, int64_t m, int64_t k, int64_t n) {
  double *C = zeros(m * n);
  dense_product(false, false, m, n, k, A, B, C);
  return C;
}

void *work_new(int64_t bytes) {
  const size_t size = ((size_t)bytes + 64 + 63) / 64 * 64;
  unsigned char *w = aligned_alloc(64, size);
  if (w == NULL) abort();
  memset(w, 0xff, size); /* NaN, -1 */
  return w;
}

void work_free(void *work, int64_t bytes) {
  const unsigned char *w = work;
  for (int64_t i = bytes; i < bytes + 64; i++) {
    CHECK(w[i] == 0xff);
  }
  free(work);
}

const int64_t sizes[SIZES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 130, 257};
const int64_t lengths[LENGTHS] = {1, 2, 3, 7, 8, 9, 31, 255, 256, 257, 513, 8191, 16385, 33001};
