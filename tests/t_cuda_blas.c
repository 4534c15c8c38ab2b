/* t_cuda_blas.c: cuda/blas_cuda.c with libraries that have the functions of cuBLAS and cuSOLVER (fake_cuda.c): every call has the stream
 * of the desk and the math mode that computes f32 in f32, and its arguments give the bits of the stand-in. */
#include "unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw.h"
#include "fake_cuda.h"
#include "standin.h"

/* The functions of blas_cuda.c, which tests.cmake compiles under these names. */
extern __typeof__(dv_blas_open) cuda_blas_open;
extern __typeof__(dv_blas_close) cuda_blas_close;
extern __typeof__(dv_gemm) cuda_gemm;
extern __typeof__(dv_syrk) cuda_syrk;
extern __typeof__(dv_symm) cuda_symm;
extern __typeof__(dv_trsm) cuda_trsm;
extern __typeof__(dv_work_bytes) cuda_work_bytes;
extern __typeof__(dv_potrf) cuda_potrf;
extern __typeof__(dv_potri) cuda_potri;
extern __typeof__(dv_syevd) cuda_syevd;
extern __typeof__(dv_batch_bytes) cuda_batch_bytes;
extern __typeof__(dv_syevd_batch) cuda_syevd_batch;
extern __typeof__(dv_qr) cuda_qr;

enum { N = 9, COUNT = 3, SIZE = COUNT * N * N };
dv_blas *fake_cuda_blas;
void *fake_cuda_stream;
int fake_cuda_calls;

static dv_blas *cuda;
static dv_desk *desk;
static char *A[2], *C[2], *w[2], *work; /* [1]: of the stand-in alone */
static int *info[2];
static rng numbers = {3};

/* Fill arrays of both ways with the same numbers; *C is symmetric, and positive with a large diagonal. */
static void fill(bool wide) {
  for (int i = 0; i < SIZE; i++) {
    const int row = i % (N * N) / N, col = i % N;
    const double a = rng_real(&numbers) - 0.5,
                 c = row == col ? N + 1.0 : cos(row + col + i / (N * N));
    for (int k = 0; k < 2; k++) {
      if (wide) ((double *)A[k])[i] = a + (row == col ? 3.0 : 0.0), ((double *)C[k])[i] = c;
      if (!wide)
        ((float *)A[k])[i] = (float)a + (row == col ? 3.0f : 0.0f), ((float *)C[k])[i] = (float)c;
      info[k][i % COUNT] = -5;
    }
  }
}
static void expect_same(bool wide, const char *what) {
  assert_null(dv_wait(desk));
  const size_t bytes = SIZE * (wide ? sizeof(double) : sizeof(float));
  if (memcmp(C[0], C[1], bytes) != 0 || memcmp(w[0], w[1], bytes) != 0 ||
      memcmp(info[0], info[1], COUNT * sizeof **info) != 0)
    fail_msg("%s, %s: not the result of the stand-in", what, wide ? "f64" : "f32");
}

/* Each combination of letters, with different extents and strides. */
static void calls_have_mode_stream_and_arguments(void **state) {
  const int64_t m = 5, n = 4, k = 3;
  for (int i = 0; i < 2 * 16; i++) {
    const bool wide = i % 2 == 1;
    const char ta = "NT"[i / 2 % 2], tb = "NT"[i / 4 % 2], uplo = "LU"[i / 8 % 2],
               side = "LR"[i / 16];
    const int calls = fake_cuda_calls;
    fill(wide);
    assert_null(
        cuda_gemm(cuda, wide, ta, tb, m, n, k, 0.5, A[0], N, A[0] + 8, N - 1, 0.25, C[0], N));
    assert_null(dv_gemm(fake_cuda_blas, wide, ta, tb, m, n, k, 0.5, A[1], N, A[1] + 8, N - 1, 0.25,
                        C[1], N));
    expect_same(wide, "gemm");
    assert_null(cuda_syrk(cuda, wide, uplo, ta, n, k, -0.5, A[0], N - 1, C[0], N));
    assert_null(dv_syrk(fake_cuda_blas, wide, uplo, ta, n, k, -0.5, A[1], N - 1, C[1], N));
    expect_same(wide, "syrk");
    assert_null(cuda_symm(cuda, wide, side, uplo, m, n, A[0], N - 1, A[0] + 8, N, C[0], N - 2));
    assert_null(
        dv_symm(fake_cuda_blas, wide, side, uplo, m, n, A[1], N - 1, A[1] + 8, N, C[1], N - 2));
    expect_same(wide, "symm");
    assert_null(cuda_trsm(cuda, wide, side, uplo, ta, m, n, 0.5, A[0], N, C[0], N - 1));
    assert_null(dv_trsm(fake_cuda_blas, wide, side, uplo, ta, m, n, 0.5, A[1], N, C[1], N - 1));
    expect_same(wide, "trsm");
    assert_int_equal(fake_cuda_calls, calls + 4);
  }
}

static int64_t bytes_of(dv_solver what, bool wide) {
  int64_t bytes = 0;
  assert_null(cuda_work_bytes(cuda, what, wide, N, N - 2, &bytes));
  assert_int_equal(bytes, (what == DV_QR ? 2 : 1) * (N - 2) * (wide ? 8 : 4));
  return bytes;
}
static void solvers_have_stream_and_arguments(void **state) {
  const int64_t n = N - 2;
  for (int i = 0; i < 4; i++) {
    const bool wide = i % 2 == 1;
    const char uplo = "LU"[i / 2];
    int64_t bytes = bytes_of(DV_POTRF, wide);
    fill(wide);
    assert_null(cuda_potrf(cuda, wide, uplo, n, C[0], N, work, bytes, info[0]));
    assert_null(dv_potrf(fake_cuda_blas, wide, uplo, n, C[1], N, work, bytes, info[1]));
    expect_same(wide, "potrf");
    bytes = bytes_of(DV_POTRI, wide);
    assert_null(cuda_potri(cuda, wide, uplo, n, C[0], N, work, bytes, info[0]));
    assert_null(dv_potri(fake_cuda_blas, wide, uplo, n, C[1], N, work, bytes, info[1]));
    expect_same(wide, "potri");
    fill(wide);
    bytes = bytes_of(DV_SYEVD, wide);
    assert_null(cuda_syevd(cuda, wide, n, C[0], w[0], work, bytes, info[0]));
    assert_null(dv_syevd(fake_cuda_blas, wide, n, C[1], w[1], work, bytes, info[1]));
    expect_same(wide, "syevd");
    fill(wide);
    assert_null(cuda_batch_bytes(cuda, wide, N, COUNT, &bytes));
    assert_int_equal(bytes, COUNT * N * 8);
    assert_null(cuda_syevd_batch(cuda, wide, N, COUNT, C[0], w[0], work, bytes, info[0]));
    assert_null(dv_syevd_batch(fake_cuda_blas, wide, N, COUNT, C[1], w[1], work, bytes, info[1]));
    expect_same(wide, "syevBatched");
  }
  fill(false);
  const int64_t bytes = bytes_of(DV_QR, false);
  assert_null(
      cuda_qr(cuda, N, n, (float *)(void *)C[0], N, (float *)(void *)A[0], work, bytes, info[0]));
  assert_null(dv_qr(fake_cuda_blas, N, n, (float *)(void *)C[1], N, (float *)(void *)A[1], work,
                    bytes, info[1]));
  expect_same(false, "qr");
}

/* A failed call is an error with the name of the function. */
static void a_failed_call_is_named(void **state) {
  void *const stream = fake_cuda_stream;
  fake_cuda_stream = NULL;
  const char *error = cuda_syrk(cuda, false, 'L', 'N', 2, 2, 1.0, A[0], N, C[0], N);
  fake_cuda_stream = stream;
  assert_string_equal(error, "cublasSyrk failed: status 13");
  assert_null(dv_wait(desk));
}

/* If cuSOLVER refuses the size of a batch, there is no batch, and no error. */
static void a_refused_batch_is_no_error(void **state) {
  void *const stream = fake_cuda_stream;
  int64_t bytes = 0;
  fake_cuda_stream = NULL;
  assert_null(cuda_batch_bytes(cuda, false, N, COUNT, &bytes));
  fake_cuda_stream = stream;
  assert_int_equal(bytes, -1);
}

static int open_all_libraries(void **state) {
  void *out;
  fake_cuda_stream = &numbers;
  if (setenv("NG_CUDA_FOLDER", FAKE_CUDA_FOLDER, 1) != 0) return -1;
  if (dv_open(0, fake_cuda_stream, &desk) != NULL) return -1;
  if (dv_blas_open(desk, &fake_cuda_blas) != NULL) return -1;
  const char *error = cuda_blas_open(desk, &cuda);
  if (error != NULL) print_message("%s\n", error);
  char **const to[] = {
      &A[0], &A[1], &C[0], &C[1], &w[0], &w[1], &work, (char **)&info[0], (char **)&info[1]};
  for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
    if (dv_alloc_host(desk, SIZE * sizeof(double), &out) != NULL) return -1;
    *to[i] = memset(out, 0, SIZE * sizeof(double));
  }
  return error != NULL;
}
static int close_all_libraries(void **state) {
  cuda_blas_close(cuda);
  dv_blas_close(fake_cuda_blas);
  dv_close(desk);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_have_mode_stream_and_arguments),
      cmocka_unit_test(solvers_have_stream_and_arguments),
      cmocka_unit_test(a_failed_call_is_named),
      cmocka_unit_test(a_refused_batch_is_no_error),
  };
  return cmocka_run_group_tests_name("cuda blas", tests, open_all_libraries, close_all_libraries);
}
