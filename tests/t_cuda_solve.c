/* t_cuda_solve.c: `solve` of a device on the stand-in: equal to `ref`, and each check refuses a result that only this check can
 * refuse.  Factors, inverses and eigenbases by themselves: t_linalg, t_eigen, t_twosided. */
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "kernels.h"
#include "linalg_check.h"
#include "stage.h"
#include "standin.h"

enum { MOST = 40, SCRATCH = 1 << 16 };

typedef struct solved {
  double R[MOST * MOST], d[MOST];
  ng_matrix m;
} solved;

static solved run(ng_queue *q, ng_matrix m) {
  static _Alignas(64) float scratch[SCRATCH];
  solved x;
  memset(&x, 0, sizeof x);
  m.R = x.R;
  m.d = x.d;
  m.accepted = m.info = -7;
  ng_matrix *list = &m;
  CHECK(m.form != NG_FORM_SYMMETRIC || ng_solve_scratch(q, &m) <= SCRATCH);
  ng_linalg(q)->solve(q, &list, 1, scratch);
  ng_queue_wait(q);
  kernels_check_device();
  x.m = m;
  return x;
}

/* Largest |difference| of n numbers, divided by the largest number of y. Signs of eigenvectors differ. */
static double distance(const void *x, const void *y, ng_dtype t, int64_t n, bool any_sign) {
  double most = 0.0, top = 0.0;
  for (int64_t i = 0; i < n; i++) {
    double a = ng_element_at(x, t, i), b = ng_element_at(y, t, i);
    if (any_sign) a = fabs(a), b = fabs(b);
    most = fmax(most, fabs(a - b));
    top = fmax(top, fabs(b));
  }
  return top > 0.0 ? most / top : most;
}

/* Every form, result, dtype and order: the same acceptance, and results that differ by the rounding of their dtype times the
 * condition number, which is at most 20. */
static void solves_equal_ref(void **arg) {
  static const ng_dtype dtypes[] = {NG_F32, NG_BF16, NG_F16, NG_F64};
  static const double unit[] = {0x1p-24, 0x1p-8, 0x1p-11, 0x1p-24};
  static const int64_t orders[] = {1, 2, 3, 8, 9, 31, MOST};
  ng_queue device = *(ng_queue *)*arg, ref = queue_of(&ng_backend_ref);
  int count = 0;
  for (int i = 0; i < 7 * 4 * 4 * 5 * 3; i++) {
    const int64_t n = orders[i % 7];
    const ng_dtype F_dtype = dtypes[i / 7 % 4], R_dtype = dtypes[i / 28 % 4];
    ng_matrix m = {.result = (ng_result)(i / 112 % 5), .form = (ng_form)(i / 560 % 3), .n = n};
    const bool symmetric = m.form == NG_FORM_SYMMETRIC;
    const bool eigen = m.result == NG_RESULT_EIGEN, inverse = m.result == NG_RESULT_INVERSE;
    if (R_dtype == NG_F64 && !eigen && !inverse) continue;
    if (!symmetric && (F_dtype != NG_F32 || m.result == NG_RESULT_CHOLESKY)) continue;
    CASE("case %d: n = %" PRId64 ", result %d, form %d, dtypes %d %d", i, n, (int)m.result,
         (int)m.form, (int)F_dtype, (int)R_dtype);
    ng_sym S = sym_positive(n, 1.0);
    double F[MOST * MOST];
    for (int64_t k = 0; k < ng_sym_count(n); k++) {
      if (F_dtype == NG_F64) F[k] = (double)S.a[k];
    }
    if (F_dtype != NG_F64) ng_from_f32(F, F_dtype, S.a, ng_sym_count(n));
    for (int64_t k = 0; k < n && !symmetric; k++) {
      ((float *)(void *)F)[k] = 0.5f + (float)k;
    }
    m.F = F;
    m.average_dtype = symmetric ? F_dtype : NG_F32;
    m.result_dtype = R_dtype;
    m.scale = symmetric && !eigen && m.result != NG_RESULT_COPY ? 0.5 : 1.0;
    m.shift = 0.25;
    m.damping = 0.125;
    m.floor = eigen ? 1.5 : 0.0;
    m.p = 2.0;
    m.uses_double = i % 2 == 1;
    const solved x = run(&device, m), y = run(&ref, m);
    CHECK(x.m.accepted == 1 && y.m.accepted == 1);
    CHECK(!symmetric || m.result == NG_RESULT_COPY || x.m.info == 0);
    const double limit = 40.0 * (double)n * unit[i / 28 % 4] + 40.0 * (double)n * 0x1p-24;
    const int64_t R_count = !symmetric ? 0 : eigen ? n * n : ng_sym_count(n);
    CHECK(distance(x.R, y.R, R_dtype, R_count, eigen) <= limit);
    CHECK(distance(x.d, y.d, R_dtype == NG_F64 ? NG_F64 : NG_F32, n, false) <= limit);
    if (symmetric && (eigen || m.result == NG_RESULT_ROOT))
      CHECK(fabs(x.m.largest_eigenvalue - y.m.largest_eigenvalue) <=
            1e-5 * fabs(y.m.largest_eigenvalue));
    sym_free(S);
    count++;
  }
  assert_true(count > 300);
}

/* ---- results that must be refused --------------------------------------------------------------*/

static double get(bool wide, const void *x, int64_t i) {
  return wide ? ((const double *)x)[i] : (double)((const float *)x)[i];
}
static void put(bool wide, void *x, int64_t i, double value) {
  ng_set_number(x, wide ? NG_F64 : NG_F32, i, value);
}

/* What a spoiler does to the first block of a solver. The matrix is diag(4, 1, 2, 3), or with an eigenvalue of `sign`. */
static char spoiled;
static bool was_wide; /* small matrices are solved in double (NG_SMALL_SOLVE) */
static int spoil_what;
enum { NOTHING, WORST_COLUMN, OTHER_SIGN, OTHER_NAN, PAIR, TWICE, LENGTH, VALUE_NAN, SPOILS };
static void spoil(char solver, bool wide, int64_t n, void *A, int64_t ld, void *w) {
  if (solver != spoiled) return;
  spoiled = ' ';
  was_wide = wide;
  if (spoil_what == WORST_COLUMN) put(wide, A, ld + 1, 1.1 * get(wide, A, ld + 1));
  if (spoil_what == OTHER_SIGN) put(wide, A, 0, -get(wide, A, 0));
  if (spoil_what == OTHER_NAN) put(wide, A, 0, NAN);
  if (spoil_what == PAIR) put(wide, w, n / 2, 1.1 * get(wide, w, n / 2));
  for (int64_t i = 0; i < n && spoil_what == TWICE; i++) {
    put(wide, A, (n - 1) * ld + i, get(wide, A, i));
  }
  if (spoil_what == TWICE) put(wide, w, n - 1, get(wide, w, 0));
  for (int64_t i = 0; i < n && spoil_what == LENGTH; i++) {
    put(wide, A, i, 1.1 * get(wide, A, i));
  }
  if (spoil_what == VALUE_NAN) put(wide, w, 1, NAN);
}

static void wrong_results_are_refused(void **arg) {
  static const struct {
    ng_result result;
    char solver;
    int what;
    float diagonal[4];
  } cases[] = {
      {NG_RESULT_INVERSE, 'I', NOTHING, {4, 1, 2, 3}},
      {NG_RESULT_CHOLESKY, 'F', NOTHING, {4, 1, 2, 3}},
      {NG_RESULT_EIGEN, 'E', NOTHING, {4, 1, 2, 3}},
      /* Column 1 has the largest entry of the inverse and the smallest one of L; the others are as before. */
      {NG_RESULT_INVERSE, 'I', WORST_COLUMN, {4, 1, 2, 3}},
      {NG_RESULT_CHOLESKY, 'F', WORST_COLUMN, {4, 1, 2, 3}},
      /* the corrupted column 0 is not the one whose residual is checked */
      {NG_RESULT_INVERSE, 'I', OTHER_SIGN, {4, 1, 2, 3}},
      {NG_RESULT_INVERSE, 'I', OTHER_NAN, {4, 1, 2, 3}},
      {NG_RESULT_CHOLESKY, 'F', OTHER_SIGN, {4, 1, 2, 3}},
      {NG_RESULT_CHOLESKY, 'F', NOTHING, {4, 1, -2, 3}}, /* info */
      {NG_RESULT_INVERSE, 'I', NOTHING, {4, -1, 2, 3}},
      {NG_RESULT_EIGEN, 'E', PAIR, {4, 1, 2, 3}},
      {NG_RESULT_EIGEN, 'E', TWICE, {4, 1, 2, 3}},
      {NG_RESULT_EIGEN, 'E', LENGTH, {4, 1, 2, 3}},
      {NG_RESULT_EIGEN, 'E', VALUE_NAN, {4, 1, 2, 3}},
      {NG_RESULT_EIGEN, 'E', NOTHING, {4, 1, -2, 3}}, /* indefinite */
  };
  ng_queue device = *(ng_queue *)*arg;
  standin_spoils = spoil;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ng_sym S = sym_new(4);
    sym_diagonal(S, 0.0f);
    for (int64_t k = 0; k < 4; k++) {
      sym_set(S, k, k, cases[i].diagonal[k]);
    }
    ng_matrix m = {.result = cases[i].result,
                   .n = 4,
                   .F = S.a,
                   .scale = 1.0,
                   .damping = 1e-3,
                   .average_dtype = NG_F32,
                   .result_dtype = NG_F32};
    spoiled = cases[i].solver;
    spoil_what = cases[i].what;
    CASE("case %d", (int)i);
    const solved x = run(&device, m);
    const bool is_good = i < 3;
    CHECK(was_wide == (cases[i].solver != 'E'));
    CHECK(x.m.accepted == is_good);
    for (int64_t k = 0; k < MOST * MOST && !is_good; k++) { /* nothing is stored */
      CHECK(x.R[k] == 0.0 && x.d[k % MOST] == 0.0);
    }
    sym_free(S);
  }
  standin_spoils = NULL;
}

/* Rows of two blocks of threads: the residual is in row 1, and blocks run in another order in each launch. */
static void residuals_of_all_blocks_count(void **arg) {
  enum { N = 300 };
  ng_queue device = *(ng_queue *)*arg;
  standin_spoils = spoil;
  for (int i = 0; i < 8; i++) {
    ng_sym S = sym_new(N), R = sym_new(N);
    sym_diagonal(S, 4.0f);
    sym_set(S, 1, 1, 1.0f);
    ng_matrix m = {.result = NG_RESULT_INVERSE,
                   .n = N,
                   .F = S.a,
                   .R = R.a,
                   .scale = 1.0,
                   .damping = 1e-3,
                   .average_dtype = NG_F32,
                   .result_dtype = NG_F32};
    ng_matrix *list = &m;
    const int64_t floats = ng_solve_scratch(&device, &m);
    float *scratch = aligned_alloc(64, ((size_t)floats * sizeof *scratch + 63) / 64 * 64);
    spoiled = 'I';
    spoil_what = i < 2 ? NOTHING : WORST_COLUMN;
    CASE("case %d", i);
    for (int k = 0; k < (i < 5 ? 1 : 2); k++) { /* so that the residual has all orders of blocks */
      ng_linalg(&device)->scale(&device, 1, scratch, NG_F32, 0.0);
    }
    ng_linalg(&device)->solve(&device, &list, 1, scratch);
    ng_queue_wait(&device);
    kernels_check_device();
    CHECK(m.accepted == (i < 2));
    free(scratch);
    sym_free(S);
    sym_free(R);
  }
  standin_spoils = NULL;
}

/* A diagonal matrix keeps its result if one element is negative, NaN or too large for f32. */
static void wrong_diagonals_are_refused(void **arg) {
  ng_queue device = *(ng_queue *)*arg;
  static const float bad[] = {-1.0f, NAN, -0.5f, -0.5f + 0x1p-25f};
  for (int i = 0; i < 4 * 2; i++) {
    float F[3] = {1.0f, bad[i / 2], 2.0f};
    ng_matrix m = {.form = NG_FORM_DIAGONAL,
                   .result = i % 2 == 0 ? NG_RESULT_INVERSE : NG_RESULT_ROOT,
                   .n = 3,
                   .p = i / 2 == 3 ? 0.1 : 1.0, /* the last value is 2^250 */
                   .F = F,
                   .damping = 0.5,
                   .scale = 1.0,
                   .average_dtype = NG_F32,
                   .result_dtype = NG_F32};
    CASE("diagonal %d", i);
    const solved x = run(&device, m);
    CHECK(x.m.accepted == (i == 6));
    CHECK((x.d[0] == 0.0) == (i != 6));
  }
}

/* LAPACK's info counts rows of the whole matrix, also in its second half. */
static void info_counts_rows_of_the_matrix(void **arg) {
  ng_queue device = *(ng_queue *)*arg;
  for (int64_t n = 1; n <= 9; n++) {
    for (int64_t bad = 0; bad < n; bad++) {
      ng_sym S = sym_new(n);
      sym_diagonal(S, 1.0f);
      sym_set(S, bad, bad, -1.0f);
      CASE("n = %" PRId64 ", row %" PRId64, n, bad);
      CHECK(INFO(&device, factor, n, S.a, NG_F32) == (int)bad + 1);
      sym_free(S);
    }
  }
}

/* One launch solves all small matrices of a list. A result equals the result of a solve of its own, up to the rounding of double
 * times the condition number; acceptance and info are equal. Nothing is stored for a matrix that is indefinite, has a NaN, or whose
 * result is too large for f16. */
static void a_list_is_solved_at_once(void **arg) {
  enum { LIST = 32, ORDER = 130 };
  static double R[LIST][ORDER * ORDER], want[ORDER * ORDER];
  static _Alignas(64) float scratch[1 << 18];
  static const int64_t orders[] = {1, 2, 17, 33, NG_SMALL_SOLVE, 5, 8, NG_SMALL_SOLVE + 1};
  ng_queue device = *(ng_queue *)*arg;
  ng_matrix m[LIST], *list[LIST];
  ng_sym S[LIST];
  memset(R, 0, sizeof R);
  for (int i = 0; i < LIST; i++) {
    const int64_t n = orders[i % 8], last = n - 1;
    S[i] = sym_positive(n, 1.0);
    if (i == 9) sym_set(S[i], last, last, -2.0f);
    if (i == 10) sym_set(S[i], last, 0, NAN);
    if (i == 11) sym_diagonal(S[i], 1e-8f);
    m[i] = (ng_matrix){.result = i / 8 % 2 == 0 ? NG_RESULT_CHOLESKY : NG_RESULT_INVERSE,
                       .n = n,
                       .F = S[i].a,
                       .R = R[i],
                       .scale = 0.5,
                       .shift = i == 11 ? 0.0 : 0.25,
                       .damping = i == 11 ? 0.0 : 0.125,
                       .average_dtype = NG_F32,
                       .result_dtype = i == 11 || i >= 24 ? NG_F16 : NG_F32,
                       .uses_double = i != 5, /* in f32: not at once */
                       .accepted = -7,
                       .info = -7};
    list[i] = &m[i];
  }
  const dv_desk *desk = ng_device_desk(device.device);
  const int64_t before = standin_count(desk).launches;
  ng_linalg(&device)->solve(&device, list, LIST, scratch);
  ng_queue_wait(&device);
  kernels_check_device();
  const int64_t launches = standin_count(desk).launches - before;
  int64_t alone = 0;
  for (int i = 0; i < LIST; i++) {
    CASE("matrix %d, order %" PRId64, i, m[i].n);
    ng_matrix one = m[i], *first = &one;
    const int64_t at = standin_count(desk).launches;
    one.R = memset(want, 0, sizeof want);
    ng_linalg(&device)->solve(&device, &first, 1, scratch);
    ng_queue_wait(&device);
    kernels_check_device();
    if (m[i].n > NG_SMALL_SOLVE || i == 5) alone += standin_count(desk).launches - at;
    CHECK(m[i].accepted == one.accepted && m[i].info == one.info);
    CHECK(one.accepted == (i < 9 || i > 11));
    const double unit = m[i].result_dtype == NG_F16 ? 0x1p-10 : 0x1p-23;
    CHECK(distance(R[i], want, m[i].result_dtype, ng_sym_count(m[i].n), false) <= unit);
    sym_free(S[i]);
  }
  CHECK(launches == alone + 1);
}

/* One call for each order and dtype. If the workspace is too large, each call takes half of the matrices. Without the batched function,
 * one call for each matrix. All three ways give the same bits and launches, also with other solves in between. A refused matrix, or one
 * without convergence, does not change the others. */
static void eigenbases_of_equal_orders_take_one_call(void **arg) {
  enum { LIST = 12, ORDER = 33, WAYS = 3 };
  static double R[WAYS][LIST][ORDER * ORDER], e[WAYS][LIST][ORDER];
  static const int64_t most[WAYS] = {0, INT64_MAX, 2};
  /* 11 eigenbases: f32 of orders 8 (4 of them), 33 (3), 1, 17; f64 of order 8 (2) */
  static const int64_t saved[WAYS] = {0, 11 - 5, 11 - (2 + 2 + 1 + 1 + 1)};
  static _Alignas(64) float scratch[SCRATCH];
  static const int64_t orders[LIST] = {8, 33, 8, 1, 8, 33, 17, 8, 33, 8, 8, 8};
  ng_queue device = *(ng_queue *)*arg;
  const dv_desk *desk = ng_device_desk(device.device);
  int64_t calls[WAYS], launches[WAYS];
  for (int way = 0; way < WAYS; way++) {
    ng_matrix m[LIST], *list[LIST];
    ng_sym S[LIST];
    memset(R[way], 0, sizeof R[way]);
    memset(e[way], 0, sizeof e[way]);
    seed_restart(NULL);
    for (int i = 0; i < LIST; i++) {
      S[i] = sym_positive(orders[i], 1.0);
      if (i == 4) sym_set(S[i], 0, 0, -50.0f);
      if (i == 8) sym_set(S[i], 1, 0, NAN);
      m[i] = (ng_matrix){.result = i == 7   ? NG_RESULT_ROOT
                                   : i == 9 ? NG_RESULT_INVERSE
                                            : NG_RESULT_EIGEN,
                         .n = orders[i],
                         .F = S[i].a,
                         .R = R[way][i],
                         .d = e[way][i],
                         .scale = 1.0,
                         .damping = 0.125,
                         .p = 2.0,
                         .average_dtype = NG_F32,
                         .result_dtype = NG_F32,
                         .uses_double = i == 10 || i == 11,
                         .accepted = -7};
      list[i] = &m[i];
    }
    standin_batch_most = most[way];
    const int64_t before = standin_count(desk).calls, launched = standin_count(desk).launches;
    ng_linalg(&device)->solve(&device, list, LIST, scratch);
    ng_queue_wait(&device);
    kernels_check_device();
    standin_batch_most = INT64_MAX;
    calls[way] = standin_count(desk).calls - before;
    launches[way] = standin_count(desk).launches - launched;
    for (int i = 0; i < LIST; i++) {
      CHECK(m[i].accepted == (i != 4 && i != 8));
      CHECK(m[i].info == (i == 8));
      sym_free(S[i]);
    }
    assert_int_equal(calls[0] - calls[way], saved[way]);
    assert_int_equal(launches[way], launches[0]);
    assert_memory_equal(R[way], R[0], sizeof R[0]);
    assert_memory_equal(e[way], e[0], sizeof e[0]);
  }
}

/* Matrices of a list that need packed rows use the same scratch, so a list needs no more scratch than its largest matrix. */
static void grams_of_a_list_share_scratch(void **arg) {
  enum { LIST = 3, ROWS = 40, COLUMNS = 64 };
  ng_queue *q = *arg;
  static float x[COLUMNS * ROWS], S[LIST][COLUMNS * (COLUMNS + 1) / 2];
  for (int i = 0; i < COLUMNS * ROWS; i++)
    x[i] = (float)uniform();
  ng_gram g[LIST];
  for (int i = 0; i < LIST; i++) {
    g[i] = (ng_gram){.x = {.data = x,
                           .dtype = NG_F32,
                           .samples = ROWS,
                           .positions = 1,
                           .columns = COLUMNS,
                           .sample_stride = 1,
                           .column_stride = ROWS},
                     .samples = ROWS,
                     .c1 = COLUMNS,
                     .alpha = 1.0,
                     .S = {S[i], COLUMNS}};
  }
  int64_t left[2];
  for (int way = 0; way < 2; way++) {
    memset(S, 0, sizeof S);
    ng_kernels(q)->add_row_grams(q, g, way == 0 ? 1 : LIST, NULL);
    left[way] = ng_stage_scratch_left(q->device);
    ng_queue_wait(q);
  }
  assert_int_equal(left[1], left[0]);
  for (int i = 0; i < LIST; i++) {
    double sum = 0.0;
    for (int r = 0; r < ROWS; r++)
      sum += (double)x[(COLUMNS - 1) * ROWS + r] * x[(COLUMNS - 1) * ROWS + r];
    assert_true(fabs(ng_sym_get(g[i].S, COLUMNS - 1, COLUMNS - 1) - sum) < 1e-5 * sum);
  }
}

int main(void) {
  static ng_queue device;
  device = kernels_device();
  const struct CMUnitTest tests[] = {
      {"solves_equal_ref", solves_equal_ref, seed_restart, NULL, &device},
      {"wrong_results_are_refused", wrong_results_are_refused, seed_restart, NULL, &device},
      {"residuals_of_all_blocks_count", residuals_of_all_blocks_count, seed_restart, NULL, &device},
      {"wrong_diagonals_are_refused", wrong_diagonals_are_refused, seed_restart, NULL, &device},
      {"info_counts_rows_of_the_matrix", info_counts_rows_of_the_matrix, seed_restart, NULL,
       &device},
      {"eigenbases_of_equal_orders_take_one_call", eigenbases_of_equal_orders_take_one_call,
       seed_restart, NULL, &device},
      {"grams_of_a_list_share_scratch", grams_of_a_list_share_scratch, seed_restart, NULL, &device},
      {"a_list_is_solved_at_once", a_list_is_solved_at_once, seed_restart, NULL, &device},
  };
  return cmocka_run_group_tests_name("cuda solve", tests, seed_begin, NULL);
}
