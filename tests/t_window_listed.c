/* t_window_listed.c: the oracle and the library against listed numbers of the published formulas in double, computed outside
 * this project: M-FAC and GGT, dense and top-k with error feedback, decay, power iteration with error feedback.
 *
 * Nine digits are listed, so the oracle is within a few units of the tenth.  The library is given f32, whose rounding is amplified
 * by at most 10: 2e-6 of the largest; GGT's x / eps by Sigma / eps = 200: 3e-5. */
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

#define ROUNDED 2e-6
static const double LISTED = 6e-9;

static double generator(int64_t i, double s) { return sin((double)(i + 1) * (s + 0.5)); }
static double wide_generator(int64_t i, double s) {
  return sin((double)((i + 1) * (i + 1)) * (s + 0.5) / 7);
}

/* n numbers of the oracle (`plain`, NULL: none) and of the library, that should be those listed. */
static void near(const char *what, int step, const double *plain, const float *got,
                 const double *listed, int64_t n, double rounded) {
  double most = 0;
  for (int64_t i = 0; i < n; i++)
    most = fmax(most, fabs(listed[i]));
  for (int64_t i = 0; i < n; i++) {
    if (plain != NULL && !(fabs(plain[i] - listed[i]) <= LISTED))
      fail_msg("%s, step %d: oracle %.9f, listed %.9f", what, step, plain[i], listed[i]);
    if (!(fabs((double)got[i] - listed[i]) <= rounded * most))
      fail_msg("%s, step %d: %.9f, listed %.9f", what, step, (double)got[i], listed[i]);
  }
}

/* ---- directions ------------------------------------------------------------------------------*/

typedef struct listed {
  const char *options;
  int64_t d, steps;
  double rounded; /* the library's error: it is given f32 */
  double u[6][8];
  int errors; /* error feedback is listed after the first and the last step */
  double e[2][8];
} listed;

static const listed lists[] = {
    {"method=mfac window=4 damping=0.1",
     5,
     6,
     ROUNDED,
     {{0.973955598, 1.357122799, 0.917077521, -0.079254675, -1.027512049},
      {1.599325308, 0.022564893, -0.999432396, 0.644285564, 0.798034353},
      {0.804341689, -1.032799144, 1.162094362, -0.957208192, 0.550344013},
      {0.15453088, -0.874337866, -0.475476242, 1.072367153, -1.752714911},
      {-0.81539598, 1.335805481, -0.367895769, -1.416912282, 0.742939315},
      {-1.332027747, -1.005624881, -0.102233279, 0.778541663, 0.900811797}},
     0,
     {{0}}},
    {"method=ggt window=3 damping=0.01 window_momentum=0.9 window_forget=0.95",
     6,
     5,
     3e-5,
     {{0.037935485, 0.052859814, 0.035720089, -0.003086963, -0.040021504, -0.052679539},
      {-0.604806215, -0.910117121, -0.646002164, 0.072867315, 0.713967236, 0.867736353},
      {-2.114236383, -1.435069959, -0.381710002, -0.296566861, 0.566770334, 2.303639973},
      {6.105708757, 6.103816681, 5.642643821, -0.023897615, -7.486682339, -3.602673144},
      {6.738133228, 7.285125639, 1.983787719, -1.961988594, -1.902773354, -1.036256114}},
     0,
     {{0}}},
    {"method=efcp window=4 damping=0.05 window_density=0.25",
     8,
     5,
     ROUNDED,
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
     ROUNDED,
     {{0, 0.703379342, 0, 0, 0, -0.700980503},
      {0.943789585, -0.084869401, 0, 0, 0, -0.301918791},
      {-0.087249721, -0.696148297, 0.651083728, 0, 0, -0.258280286},
      {0.172070292, -0.184585061, -0.623264799, 0, 0, 0.72881977}},
     0,
     {{0}}},
};

static void listed_rows(void **state) {
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
      near(l->options, t, u, x, l->u[t], l->d, l->rounded);
      if (l->errors == 0 || (t > 0 && t + 1 < l->steps)) continue;
      near("error feedback", t, want->e, window_field(&f, "error"), l->e[t > 0], l->d, l->rounded);
    }
    fixture_close(&f);
    window_oracle_close(&want);
  }
}

/* Weight decay as EFCP's "reg" has it, w / lambda beside the direction, after the last step of the first list. */
static void listed_decay(void **state) {
  static const double want[] = {-1.272180532, -1.101517308, -0.008433281, 0.724139552, 0.894179608};
  const fixture_how how = {.linalg = *state, .threads = 1};
  float x[5], w[5];
  const plane vx = plane_of(x, 1, 5, NG_F32), vw = plane_of(w, 1, 5, NG_F32);
  fixture f;
  for (int i = 0; i < 5; i++)
    w[i] = (float)generator(i, 2.0);
  fixture_ok(&f, fixture_open(&f,
                              "method=mfac window=4 damping=0.1 window_decay=0.01 "
                              "window_decay_form=direction",
                              &how));
  fixture_ok(&f, fixture_tensor(&f, "x", &vx, &vw));
  fixture_ok(&f, ng_ready(f.p));
  for (int t = 0; t < 6; t++) {
    for (int i = 0; i < 5; i++)
      x[i] = (float)generator(i, 0.3 + 0.9 * t);
    fixture_ok(&f, ng_step(f.p, 1));
  }
  near("decay", 6, NULL, x, want, 5, ROUNDED);
  fixture_close(&f);
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
      near("P", t, NULL, p, P0, ROWS * RANK, ROUNDED);
      near("Q", t, NULL, q, Q0, COLS * RANK, ROUNDED);
    }
    if (t == 1) {
      near("row 0 of P", t, NULL, p, P1, RANK, ROUNDED);
      near("row 0 of Q", t, NULL, q, Q1, RANK, ROUNDED);
    }
    if (t < 2)
      near("error feedback", t, want->e, window_field(&f, "error"), t > 0 ? E1 : E0, COLS, ROUNDED);
    if (t == 0 || t == 4) {
      near("u of b", t, u + (ptrdiff_t)ROWS * COLS, x + (ptrdiff_t)ROWS * COLS, t > 0 ? UB4 : UB0,
           3, ROUNDED);
      near("u of W", t, u, x, t > 0 ? UW4 : UW0, COLS, ROUNDED);
    }
  }
  fixture_close(&f);
  window_oracle_close(&want);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    {"rows on ref", listed_rows, NULL, NULL, (void *)(uintptr_t) "ref"},
    {"decay on ref", listed_decay, NULL, NULL, (void *)(uintptr_t) "ref"},
    {"low rank on ref", low_rank, NULL, NULL, (void *)(uintptr_t) "ref"},
#if defined(NG_HAVE_BLAS)
    {"rows on cpu", listed_rows, NULL, NULL, (void *)(uintptr_t) "cpu"},
    {"decay on cpu", listed_decay, NULL, NULL, (void *)(uintptr_t) "cpu"},
    {"low rank on cpu", low_rank, NULL, NULL, (void *)(uintptr_t) "cpu"},
#endif
  };
  return cmocka_run_group_tests_name("window, listed numbers", tests, NULL, NULL);
}
