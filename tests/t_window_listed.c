/* t_window_listed.c: golden numbers of the published formulas in double, of what is kept sparse or of low
 * rank: top-k with error feedback under M-FAC and GGT, power iteration with error feedback under M-FAC.  The
 * numbers were worked out apart from this project; the oracle is held to them, and the library is.  (Dense
 * windows: t_window.c.)
 *
 * Nine digits are listed, so the oracle is within a few of the tenth; the library is given and keeps f32, and
 * no formula here multiplies its rounding by more than 10: 2e-6 of the largest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "family/family.h"
#include "fixture.h"
#include "window_oracle.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double LISTED = 6e-9, ROUNDED = 2e-6;

static double generator(int64_t i, double s) { return sin((double)(i + 1) * (s + 0.5)); }
static double wide_generator(int64_t i, double s) {
  return sin((double)((i + 1) * (i + 1)) * (s + 0.5) / 7);
}

/* n numbers of the oracle (`plain`, NULL: none) and of the library, that should be those listed. */
static void near(const char *what, int step, const double *plain, const float *got,
                 const double *listed, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; i++)
    most = fmax(most, fabs(listed[i]));
  for (int64_t i = 0; i < n; i++) {
    if (plain != NULL && !(fabs(plain[i] - listed[i]) <= LISTED))
      fail_msg("%s, step %d: oracle %.9f, listed %.9f", what, step, plain[i], listed[i]);
    if (!(fabs((double)got[i] - listed[i]) <= ROUNDED * most))
      fail_msg("%s, step %d: %.9f, listed %.9f", what, step, (double)got[i], listed[i]);
  }
}

/* ---- the largest entries ---------------------------------------------------------------------*/

typedef struct listed {
  const char *options;
  int64_t d, steps;
  double u[5][8];
  int errors; /* error feedback is listed after the first and the last step */
  double e[2][8];
} listed;

static const listed lists[] = {
    {"method=efcp window=4 damping=0.05 window_density=0.25",
     8,
     5,
     {{0, 1.824462814, 0, 0, 0, -1.818240577, 0, 0},
      {1.46015183, 0, 0, 0, 0, 0, -1.067464518, 0},
      {0, -0.546839322, 0, 0, 0, -0.456671679, 0, 1.68057633},
      {-1.614007194, 0.892839304, 0, 0, 0, 0.745620162, -2.358927567, 0.506061151},
      {-0.314737008, -0.327050751, 0, 0, 0, 2.747656611, -0.291072065, -0.185372304}},
     2,
     {{0.717356091, 0, 0.675463181, -0.058374143, -0.756802495, 0, -0.631266638, 0.116549205},
      {0, 0.584917193, 0.460569598, -0.350324404, -0.522625661, 0, -0.577715044, -0.328277661}}},
    {"method=sparse-ggt window=3 damping=0.01 window_density=0.34",
     6,
     4,
     {{0, 0.703379342, 0, 0, 0, -0.700980503},
      {0.943789585, -0.084869401, 0, 0, 0, -0.301918791},
      {-0.087249721, -0.696148297, 0.651083728, 0, 0, -0.258280286},
      {0.172070292, -0.184585061, -0.623264799, 0, 0, 0.72881977}},
     0,
     {{0}}},
};

static void largest_entries(void **state) {
  for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++) {
    const listed *l = &lists[k];
    const fixture_how how = {.linalg = *state, .threads = 1};
    const ng_options o = fixture_parse(l->options);
    const int64_t one = 1;
    float x[8] = {0};
    double g[8], u[8];
    fixture f;
    window_oracle *want = window_oracle_open(&o, 1, &l->d, &one);
    fixture_ok(&f, fixture_open_options(&f, &o, &how));
    const plane bound = plane_of(x, 1, l->d, NG_F32);
    fixture_ok(&f, fixture_tensor(&f, "x", &bound, NULL));
    fixture_ok(&f, ng_ready(f.p));
    for (int t = 0; t < l->steps; t++) {
      for (int64_t i = 0; i < l->d; i++)
        x[i] = (float)(g[i] = generator(i, 0.3 + 0.9 * t));
      window_oracle_step(want, g, NULL, 0, true, u);
      fixture_ok(&f, ng_step(f.p, 1));
      near(l->options, t, u, x, l->u[t], l->d);
      if (l->errors == 0 || (t > 0 && t + 1 < l->steps)) continue;
      near("error feedback", t, want->e, window_field(&f, "error"), l->e[t > 0], l->d);
    }
    fixture_close(&f);
    window_oracle_close(&want);
  }
}

/* ---- low rank --------------------------------------------------------------------------------*/

/* A tensor of 4 x 3 by rank 2, and a vector of 3 that is kept whole. */
enum { ROWS = 4, COLS = 3, RANK = 2, FACTORS = RANK * (ROWS + COLS), ROW = FACTORS + 3, M = 4 };

static const double P0[] = {-0.161512181, 0.267830266,  0.606256604, 0.785800119,
                            0.302650212,  -0.250495111, 0.717474449, -0.498033427};
static const double Q0[] = {-0.274506085, 1.400579774,  1.042058937,
                            -0.350662665, -1.077488884, -0.122591393};
static const double P1[] = {-0.04478249, -0.642956062}, Q1[] = {1.167949177, 0.353460197};
static const double E0[] = {-0.305416638, 0.703609435, 0.715368765};
static const double E1[] = {0.214623315, 0.6549128, 0.578699532};
static const double UB0[] = {0.144272346, 0.504364008, 0.562891151};
static const double UW0[] = {0.267075118, -0.166963148, 0.089901158};
static const double UB4[] = {0.140395744, 0.15433749, -0.723187179};
static const double UW4[] = {-0.038740163, 0.342369089, -0.470544929};

/* Rows of P (or Q) behind each other, of a matrix that the library keeps by columns. */
static void transposed(const float *columns, int rows, float *out) {
  for (int r = 0; r < rows; r++)
    for (int a = 0; a < RANK; a++)
      out[r * RANK + a] = columns[a * rows + r];
}

static void low_rank(void **state) {
  const fixture_how how = {.linalg = *state, .threads = 1};
  const ng_options o =
      fixture_parse("method=lowrank-mfac window=4 damping=0.1 window_rank=2 window_decay=0");
  const int64_t size[] = {(int64_t)ROWS * COLS, 3}, rows[] = {ROWS, 1};
  float x[ROWS * COLS + 3] = {0}, p[ROWS * RANK], q[COLS * RANK];
  double g[ROWS * COLS + 3], u[ROWS * COLS + 3];
  fixture f;
  window_oracle *want = window_oracle_open(&o, 2, size, rows);
  fixture_ok(&f, fixture_open_options(&f, &o, &how));
  const plane grad[2] = {plane_of(x, ROWS, COLS, NG_F32), {0}};
  const plane vector = plane_of(x + (ptrdiff_t)ROWS * COLS, 1, 3, NG_F32);
  fixture_ok(&f, fixture_linear(&f, "W", grad, NULL));
  fixture_ok(&f, fixture_tensor(&f, "b", &vector, NULL));
  fixture_ok(&f, ng_ready(f.p));
  float *factors = window_field(&f, "factors"); /* [M + 1, ROW]: P, then Q, by columns */
  want->q[0] = scene_room((size_t)(COLS * RANK) * sizeof(double));
  for (int i = 0; i < COLS * RANK; i++) {
    want->q[0][i] = wide_generator(i, 0.7);
    factors[M * ROW + RANK * ROWS + i % RANK * COLS + i / RANK] = (float)want->q[0][i];
  }
  for (int t = 0; t < 5; t++) {
    for (int i = 0; i < ROWS * COLS; i++)
      g[i] = wide_generator(i, 0.3 + 0.9 * t);
    for (int i = 0; i < 3; i++)
      g[ROWS * COLS + i] = wide_generator(i, 1.1 + 0.4 * t);
    for (int i = 0; i < ROWS * COLS + 3; i++)
      x[i] = (float)g[i];
    window_oracle_step(want, g, NULL, 0, true, u);
    fixture_ok(&f, ng_step(f.p, 1));
    transposed(factors + (ptrdiff_t)t * ROW, ROWS, p);
    transposed(factors + (ptrdiff_t)t * ROW + (ptrdiff_t)RANK * ROWS, COLS, q);
    if (t == 0) {
      near("P", t, NULL, p, P0, ROWS * RANK);
      near("Q", t, NULL, q, Q0, COLS * RANK);
    }
    if (t == 1) {
      near("row 0 of P", t, NULL, p, P1, RANK);
      near("row 0 of Q", t, NULL, q, Q1, RANK);
    }
    if (t < 2) near("error feedback", t, want->e, window_field(&f, "error"), t > 0 ? E1 : E0, COLS);
    if (t == 0 || t == 4) {
      near("u of b", t, u + (ptrdiff_t)ROWS * COLS, x + (ptrdiff_t)ROWS * COLS, t > 0 ? UB4 : UB0,
           3);
      near("u of W", t, u, x, t > 0 ? UW4 : UW0, COLS);
    }
  }
  fixture_close(&f);
  window_oracle_close(&want);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    {"largest entries on ref", largest_entries, NULL, NULL, (void *)(uintptr_t) "ref"},
    {"low rank on ref", low_rank, NULL, NULL, (void *)(uintptr_t) "ref"},
#if defined(NG_HAVE_BLAS)
    {"largest entries on cpu", largest_entries, NULL, NULL, (void *)(uintptr_t) "cpu"},
    {"low rank on cpu", low_rank, NULL, NULL, (void *)(uintptr_t) "cpu"},
#endif
  };
  return cmocka_run_group_tests_name("window, listed numbers", tests, NULL, NULL);
}
