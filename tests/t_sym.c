/* t_sym.c: symmetric storage (sym.c) and the names of linalg.c: available linear algebras, their limits, the
 * loaded BLAS. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"
#include "linalg_check.h"

/* ---- symmetric storage -----------------------------------------------------------------------*/

static void positions_are_a_bijection(void **arg) {
  for (int64_t n = 1; n <= 40; n++) {
    CASE("n = %" PRId64, n);
    char *seen = calloc((size_t)ng_sym_count(n), 1);
    const int64_t h = (n + 1) / 2, even = !(n & 1), ld = n + even;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j <= i; j++) {
        const int64_t at = ng_sym_at(n, i, j);
        CHECK(at >= 0 && at < ng_sym_count(n));
        CHECK(at == ng_sym_at(n, j, i));
        CHECK(at == (j < h ? i + even + j * ld : (j - h) + (i - h + !even) * ld));
        CHECK(!seen[at]);
        seen[at] = 1;
      }
    }
    free(seen);
  }
}

static void pieces_cover_a_block_once(void **arg) {
  for (int64_t n = 1; n <= 10; n++) {
    ng_sym s = sym_new(n);
    int *seen = calloc((size_t)ng_sym_count(n), sizeof *seen);
    for (int64_t r0 = 0; r0 < n; r0++) {
      for (int64_t m = 0; r0 + m <= n; m++) {
        for (int64_t c0 = 0; c0 <= r0; c0++) {
          for (int64_t k = 0; c0 + k <= n; k++) {
            const bool diagonal = r0 == c0 && m == k;
            if (!diagonal && r0 < c0 + k) continue;
            if (!diagonal && r0 == c0) continue; /* an empty block at c0 is of neither kind */
            CASE("n = %" PRId64 " block %" PRId64 "+%" PRId64 ", %" PRId64 "+%" PRId64, n, r0, m,
                 c0, k);
            memset(seen, 0, (size_t)ng_sym_count(n) * sizeof *seen);
            ng_sym_piece p[3];
            const int32_t count = ng_sym_cut(s, r0, m, c0, k, p);
            CHECK(count >= 0 && count <= 3);
            for (int32_t i = 0; i < count; i++) {
              CHECK(p[i].rows > 0 && p[i].cols > 0);
              CHECK(p[i].row_stride == 1 || p[i].col_stride == 1);
              CHECK(!p[i].diagonal || (p[i].rows == p[i].cols && p[i].row == p[i].col));
              CHECK(p[i].row >= r0 && p[i].row + p[i].rows <= r0 + m);
              CHECK(p[i].col >= c0 && p[i].col + p[i].cols <= c0 + k);
              for (int64_t r = 0; r < p[i].rows; r++) {
                for (int64_t c = 0; c < p[i].cols; c++) {
                  if (p[i].diagonal && c > r) continue;
                  const int64_t at = p[i].a + r * p[i].row_stride + c * p[i].col_stride - s.a;
                  CHECK(at == ng_sym_at(n, p[i].row + r, p[i].col + c));
                  CHECK(p[i].row + r >= p[i].col + c);
                  seen[at]++;
                }
              }
            }
            for (int64_t i = 0; i < n; i++) {
              for (int64_t j = 0; j <= i; j++) {
                const bool in = i >= r0 && i < r0 + m && j >= c0 && j < c0 + k;
                CHECK(seen[ng_sym_at(n, i, j)] == (in ? 1 : 0));
              }
            }
          }
        }
      }
    }
    free(seen);
    sym_free(s);
  }
}

static void vector_products_match(void **arg) {
  EACH_SIZE(n) {
    CASE("n = %" PRId64, n);
    ng_sym s = sym_random(n);
    double *x = zeros(n), *y = zeros(n), *d = dense(s);
    for (int64_t i = 0; i < n; i++) {
      x[i] = uniform();
      y[i] = NAN;
    }
    ng_sym_vector(s.n, s.a, NG_F32, x, y);
    for (int64_t i = 0; i < n; i++) {
      double exact = 0.0;
      for (int64_t j = 0; j < n; j++) {
        exact += d[i * n + j] * x[j];
      }
      /* Higham (3.5) with |terms| <= 1 */
      CHECK(fabs(y[i] - exact) <= 4.0 * (double)n * (double)n * U64);
    }
    free(x);
    free(y);
    free(d);
    sym_free(s);
  }
}

static void added_rows_match(void **arg) {
  ng_queue queue = queue_of(&ng_backend_ref), *q = &queue;
  for (int64_t n = 1; n <= 9; n++) {
    for (int64_t r = 0; r < n; r++) {
      for (int64_t c0 = 0; c0 <= r; c0++) {
        for (int64_t k = 1; c0 + k <= r + 1; k++) {
          CASE("n = %" PRId64 " row %" PRId64 ", %" PRId64 "+%" PRId64, n, r, c0, k);
          ng_sym s = sym_random(n), old = sym_copy(s);
          mat v = mat_random(1, k, 0);
          DO(q, add_row, s, r, c0, k, v.a, -2.0f);
          sym_check(s);
          for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j <= i; j++) {
              const bool in = i == r && j >= c0 && j < c0 + k;
              const double was = (double)ng_sym_get(old, i, j);
              const double add = in ? -2.0 * (double)v.a[j - c0] : 0.0; /* exact */
              const double e = fabs((double)ng_sym_get(s, i, j) - (was + add));
              CHECK(e <= (in ? 1.01 * U32 * fabs(was + add) : 0.0));
            }
          }
          sym_free(old);
          sym_free(s);
          mat_free(v);
        }
      }
    }
  }
}

/* ---- names -----------------------------------------------------------------------------------*/

/* Fail unless the table, which consists of pointers to functions, has no NULL. */
static void expect_complete_table(const void *table, size_t size) {
  for (size_t at = 0; at < size; at += sizeof(void (*)(void))) {
    void (*entry)(void);
    memcpy(&entry, (const char *)table + at, sizeof entry);
    assert_true(entry != NULL);
  }
}

static void backends_are_found_by_name(void **arg) {
  assert_ptr_equal(ng_backend_find(NULL, "ref"), &ng_backend_ref);
  assert_null(ng_backend_find(NULL, "cuda"));
  assert_null(ng_backend_find(NULL, ""));
  assert_null(ng_backend_find(NULL, "late"));
  assert_ptr_equal(ng_backend_find(more_backends, "late"), &late_ref.backend);
  assert_ptr_equal(ng_backend_find(more_backends, NULL), ng_backend_at(0));
#if defined(NG_HAVE_BLAS)
  assert_ptr_equal(ng_backend_find(NULL, "cpu"), &ng_backend_cpu);
  assert_ptr_equal(ng_backend_at(0), &ng_backend_cpu);
#else
  assert_null(ng_backend_find(NULL, "cpu"));
  assert_ptr_equal(ng_backend_at(0), &ng_backend_ref);
#endif
  for (int32_t i = 0; test_backend(i) != NULL; i++) {
    assert_true(2 * i + 1 < KERNELS_QUEUES);
    expect_complete_table(test_backend(i)->linalg, sizeof(ng_linalg_ops));
    /* the entries of a step of Eva are the last ones; a backend may lack them */
    expect_complete_table(test_backend(i)->kernels, offsetof(ng_kernel_ops, eva_bytes));
    void *at = test_backend(i)->alloc(NULL, 100);
    assert_true(at != NULL && (uintptr_t)at % NG_ALIGN == 0);
    test_backend(i)->free(NULL, at, 100);
  }
}

/* 1 + 6 n + 2 n^2 <= 2^31 - 1 up to n = 32766. */
static void limits_of_32_bits_match(void **arg) {
  assert_true(ng_blas_accepts_order(1));
  assert_true(ng_blas_accepts_order(9216));
  assert_true(ng_blas_accepts_order(32766));
  assert_false(ng_blas_accepts_order(32767));
  /* the square of this order overflows 64 bits */
  assert_false(ng_blas_accepts_order(INT64_C(1) << 33));
  assert_false(ng_blas_accepts_order(INT64_MAX));
  assert_false(ng_blas_accepts_order(0));
  assert_false(ng_blas_accepts_order(-5));
  const ng_backend *on = ng_backend_at(0);
  const ng_linalg_ops *la = on->linalg;
  const ng_queue q = queue_of(on);
  assert_true(la->eigen_work(&q, 32766, NG_F32) > INT64_C(4) * 2 * 32766 * 32766);
  assert_true(la->eigen_work(&q, 32766, NG_F64) > INT64_C(8) * 2 * 32766 * 32766 ||
              on == &ng_backend_ref);
}

/* Run this program again as "NAME kernel" with another core type; it prints kernel and hint. */
static bool read_kernel_of_core(const char *core, char *kernel, char *hint, size_t size) {
  char self[400], line[600] = "";
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return false;
  self[n] = '\0';
  (void)snprintf(line, sizeof line, "OPENBLAS_CORETYPE=%s '%s' kernel", core, self);
  FILE *f = popen(line, "r");
  if (f == NULL) return false;
  const bool ok = fgets(kernel, (int)size, f) != NULL && fgets(hint, (int)size, f) != NULL;
  (void)pclose(f);
  kernel[strcspn(kernel, "\n")] = '\0';
  hint[strcspn(hint, "\n")] = '\0';
  return ok;
}

static void blas_is_described(void **arg) {
  const ng_blas_info blas = ng_blas_describe();
  char kernel[64], hint[256];
  assert_true(strlen(blas.name) > 0 && blas.threads >= 0);
  assert_true(blas.hint[0] == '\0' || strstr(blas.hint, "OPENBLAS_CORETYPE=SkylakeX") != NULL);
  print_message("blas: %s | kernel %s | %d threads | hint '%s'\n", blas.name, blas.kernel,
                blas.threads, blas.hint);
  if (strncmp(blas.name, "OpenBLAS", 8) != 0) {
    assert_string_equal(blas.hint, "");
    return;
  }
  assert_true(blas.threads >= 1);
  assert_true(strlen(blas.kernel) > 0);
  if (strstr(blas.name, "DYNAMIC_ARCH") == NULL) return;
  assert_true(read_kernel_of_core("Haswell", kernel, hint, sizeof kernel));
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) assert_string_equal(kernel, "Haswell");
  if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    assert_non_null(strstr(hint, "OPENBLAS_CORETYPE=SkylakeX"));
    assert_true(read_kernel_of_core("SkylakeX", kernel, hint, sizeof kernel));
    assert_string_equal(kernel, "SkylakeX");
  }
#endif
  if (strcmp(kernel, "SkylakeX") == 0) assert_string_equal(hint, "");
}

#define TEST(f)                                                                                    \
  { #f, f, seed_restart, NULL, NULL }

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "kernel") == 0) {
    const ng_blas_info blas = ng_blas_describe();
    (void)printf("%s\n%s\n", blas.kernel, blas.hint);
    return 0;
  }
  const struct CMUnitTest tests[] = {
      TEST(positions_are_a_bijection),  TEST(pieces_cover_a_block_once),
      TEST(vector_products_match),      TEST(added_rows_match),
      TEST(backends_are_found_by_name), TEST(limits_of_32_bits_match),
      TEST(blas_is_described),
  };
  return cmocka_run_group_tests_name("sym", tests, seed_begin, print_largest_ratios);
}
