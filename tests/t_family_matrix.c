/* t_family_matrix.c: SOAP and Shampoo in one model with a Kronecker layer, on 1 to 4 ranks, against dense formulas in
 * double: own solve periods, save, resume, skipped steps, reports.
 *
 * Tolerance.  `ref` computes eigenvectors in double: 1e-5 of the largest entry is ten times the largest difference of
 * 20 seeds.  LAPACK computes them in f32: 2e-4.  Runs that must be equal are compared bit for bit. */
#include "dense.h"
#include "draw.h"
#include "family_run.h"
#include "fixture.h"
#include "folder.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FC, SHAMPOO, SHAMPOO_SUM, SHAMPOO_KL, SOAP, SOAP_SMALL, SOAP_ROTATE, ENTRIES };
enum { STEPS = 8, SAVED = 5 };
enum { MOST = 6, MOST_WEIGHTS = MOST * MOST };

static const family_entry entry[ENTRIES] = {[FC] = {"fc", 6, 4},
                                            [SHAMPOO] = {"shampoo", 6, 5, .silent = true},
                                            [SHAMPOO_SUM] = {"shampoo.sum", 2, 6, .silent = true},
                                            [SHAMPOO_KL] = {"shampoo.kl", 5, 3, .silent = true},
                                            [SOAP] = {"soap", 6, 6, .silent = true},
                                            [SOAP_SMALL] = {"soap.small", 3, 3, .silent = true},
                                            [SOAP_ROTATE] = {"rotate", 4, 4, .silent = true}};

/* Gradients of SOAP have separated singular values, so their eigenbases are determined. */
static void separate_singular_values(int32_t i, float *x) {
  for (int64_t k = 0; k < entry[i].in && i >= SOAP; k++)
    x[k * (entry[i].in + 1)] += (float)(4 * (1 + k));
}

static const family_model model = {entry, ENTRIES, STEPS, SAVED, separate_singular_values};

#define MOMENTS "moment_epsilon=0.3 stat_decay=0.9 "
#define SOAP_OPTIONS                                                                               \
  "soap*: method=soap solve_period=3 " MOMENTS "; rotate: method=soap-natgrad " MOMENTS
#define COMMON                                                                                     \
  "damping=0.3 stat_decay=0.9 stat_start=zero solve_period=2 per_layer='" SOAP_OPTIONS             \
  "; shampoo.sum: method=shampoo first_decay=0 kept_axes=2 damping=0.3 solve_period=2 "            \
  "solve_start=3; shampoo.kl: method=kl-shampoo first_decay=0 damping=0.3 solve_period=2 "         \
  "stat_decay=0.9; shampoo: method=shampoo first_decay=0 kept_axes=2 damping=0.3 solve_period=2 "  \
  "stat_decay=0.9 grafting=sgd' "
static const double EPSILON = 0.3, RHO = 0.9, BETA = 0.95;

static family_run *new_run(const char *set, int32_t ranks) {
  static const ng_family *const families[] = {NULL};
  return family_new_run(&model, families, set, ranks);
}

/* ---- dense formulas --------------------------------------------------------------------------*/

static double frobenius_norm(const double *x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++)
    sum += x[i] * x[i];
  return sqrt(sum);
}

/* F [0]: L, [1]: R. Q: roots, or bases with vectors in columns. */
typedef struct expected {
  int64_t m, n;
  double F[2][MOST_WEIGHTS], Q[2][MOST_WEIGHTS], M[MOST_WEIGHTS], V[MOST_WEIGHTS];
} expected;

/* sum: F is the sum over steps. */
static void fold_gradient(expected *x, bool sum, const double *D) {
  double S[MOST_WEIGHTS];
  for (int k = 0; k < 2; k++) {
    const int64_t n = k == 0 ? x->m : x->n;
    dense_product(k == 1, k == 0, n, n, k == 0 ? x->n : x->m, D, D, S);
    for (int64_t i = 0; i < n * n; i++)
      x->F[k][i] = sum ? x->F[k][i] + S[i] : RHO * x->F[k][i] + (1.0 - RHO) * S[i];
  }
}

/* Powers of F / c + EPSILON I; kl: of F + EPSILON tr(F) / n I. */
static void compute_shampoo_roots(expected *x, double c, bool kl) {
  for (int k = 0; k < 2; k++) {
    const int64_t n = k == 0 ? x->m : x->n;
    double A[MOST_WEIGHTS], d[MOST], Q[MOST_WEIGHTS], P[MOST_WEIGHTS], mean = kl ? 0.0 : 1.0;
    for (int64_t i = 0; i < n && kl; i++)
      mean += x->F[k][i * (n + 1)] / (double)n;
    for (int64_t i = 0; i < n * n; i++)
      A[i] = x->F[k][i] / c + (i % (n + 1) == 0 ? EPSILON * mean : 0.0);
    dense_eigen(n, A, d, Q);
    for (int64_t i = 0; i < n * n; i++)
      P[i] = Q[i] * pow(d[i % n], kl ? -0.5 : -0.25);
    dense_product(false, true, n, n, n, P, Q, x->Q[k]);
  }
}

/* Both F from s I in step 0, with s the root mean square of D, which also stands for the other root there. */
static void fold_kl_gradient(expected *x, int32_t step, const double *D) {
  const int64_t m = x->m, n = x->n;
  const double s = step == 0 ? frobenius_norm(D, m * n) / sqrt((double)(m * n)) : 1.0;
  double T[2][MOST_WEIGHTS], S[MOST_WEIGHTS];
  memcpy(T[0], D, (size_t)(m * n) * sizeof *D);
  memcpy(T[1], D, (size_t)(m * n) * sizeof *D);
  if (step > 0) {
    dense_product(false, false, m, n, n, D, x->Q[1], T[0]);
    dense_product(false, false, m, n, m, x->Q[0], D, T[1]);
  }
  for (int k = 0; k < 2; k++) {
    const int64_t size = k == 0 ? m : n, other = k == 0 ? n : m;
    dense_product(k == 1, k == 0, size, size, other, T[k], T[k], S);
    for (int64_t i = 0; i < size * size; i++) {
      if (step == 0) x->F[k][i] = i % (size + 1) == 0 ? s : 0.0;
      x->F[k][i] = RHO * x->F[k][i] + (1.0 - RHO) * S[i] / (s * (double)other);
    }
  }
  if (step % 2 == 0) compute_shampoo_roots(x, 1.0, true);
}

/* The average has grafting; the sum has none, and its first root in step 3. */
static void predict_shampoo(expected *x, int32_t step, int32_t which, const double *D,
                            double *out) {
  const int64_t m = x->m, n = x->n;
  const bool sum = which == SHAMPOO_SUM, kl = which == SHAMPOO_KL;
  const int32_t t = step + 1;
  if (kl) {
    assert_true(x->Q[0][0] > 0.0); /* fold_kl_gradient has set the roots */
  } else if (sum ? t == 3 || (t > 3 && t % 2 == 0) : step % 2 == 0) {
    compute_shampoo_roots(x, sum ? 1.0 : 1.0 - pow(RHO, t), false);
  }
  memcpy(out, D, (size_t)(m * n) * sizeof *out);
  if (sum && t < 3) return;
  dense_product(false, false, m, n, m, x->Q[0], D, out);
  dense_product(false, false, m, n, n, out, x->Q[1], out);
  const double by = sum || kl ? 1.0 : frobenius_norm(D, m * n) / frobenius_norm(out, m * n);
  for (int64_t i = 0; i < m * n; i++)
    out[i] *= by;
}

/* Replace the columns of A by orthonormal columns: Gram-Schmidt, in two passes. */
static void make_orthonormal(int64_t n, double *A) {
  for (int64_t j = 0; j < n; j++) {
    double sum = 0.0;
    for (int64_t i = 0; i < 2 * j; i++) {
      double dot = 0.0;
      for (int64_t l = 0; l < n; l++)
        dot += A[l * n + i % j] * A[l * n + j];
      for (int64_t l = 0; l < n; l++)
        A[l * n + j] -= dot * A[l * n + i % j];
    }
    for (int64_t l = 0; l < n; l++)
      sum += A[l * n + j] * A[l * n + j];
    for (int64_t l = 0; l < n; l++)
      A[l * n + j] /= sqrt(sum);
  }
}

/* V <- the diagonal of T diag(V) T', T from the bases `old` to x->Q. */
static void rotate_second_moments(expected *x, double old[2][MOST_WEIGHTS]) {
  const int64_t m = x->m, n = x->n;
  double T[2][MOST_WEIGHTS];
  for (int k = 0; k < 2; k++) {
    const int64_t size = k == 0 ? m : n;
    dense_product(true, false, size, size, size, x->Q[k], old[k], T[k]);
    for (int64_t i = 0; i < size * size; i++)
      T[k][i] *= T[k][i];
  }
  dense_product(false, false, m, n, m, T[0], x->V, x->V);
  dense_product(false, true, m, n, n, x->V, T[1], x->V);
}

/* One orthogonal iteration; the first moment is rotated, the second permuted or, if `rotates`, rotated, too. */
static void refresh_soap_bases(expected *x, bool rotates) {
  const int64_t m = x->m, n = x->n;
  int64_t order[2][MOST];
  double V[MOST_WEIGHTS], old[2][MOST_WEIGHTS];
  memcpy(old, x->Q, sizeof old);
  dense_product(false, false, m, n, m, x->Q[0], x->M, x->M);
  dense_product(false, true, m, n, n, x->M, x->Q[1], x->M);
  for (int k = 0; k < 2; k++) {
    const int64_t size = k == 0 ? m : n;
    double FQ[MOST_WEIGHTS], e[MOST_WEIGHTS], sorted[MOST_WEIGHTS];
    dense_product(false, false, size, size, size, x->F[k], x->Q[k], FQ);
    dense_product(true, false, size, size, size, x->Q[k], FQ, e);
    for (int64_t i = 0; i < size; i++) {
      int64_t at = 0;
      for (int64_t j = 0; j < size; j++) /* rank of e_ii */
        at += e[j * (size + 1)] > e[i * (size + 1)];
      order[k][at] = i;
    }
    for (int64_t i = 0; i < size * size; i++)
      sorted[i] = FQ[i / size * size + order[k][i % size]];
    make_orthonormal(size, sorted);
    memcpy(x->Q[k], sorted, sizeof sorted);
  }
  dense_product(true, false, m, n, m, x->Q[0], x->M, x->M);
  dense_product(false, false, m, n, n, x->M, x->Q[1], x->M);
  if (rotates) {
    rotate_second_moments(x, old);
    return;
  }
  memcpy(V, x->V, sizeof V);
  for (int64_t i = 0; i < m * n; i++)
    x->V[i] = V[order[0][i / n] * n + order[1][i % n]];
}

static void predict_soap(expected *x, int32_t step, bool rotates, const double *D, double *out) {
  const int64_t m = x->m, n = x->n;
  if (step == 0) {
    double d[MOST];
    memset(out, 0, (size_t)(m * n) * sizeof *out);
    dense_eigen(m, x->F[0], d, x->Q[0]);
    dense_eigen(n, x->F[1], d, x->Q[1]);
    return;
  }
  dense_product(true, false, m, n, m, x->Q[0], D, out);
  dense_product(false, false, m, n, n, out, x->Q[1], out);
  const double t = step, by = sqrt(1.0 - pow(BETA, t)) / (1.0 - pow(BETA, t));
  for (int64_t i = 0; i < m * n; i++) {
    x->M[i] = BETA * x->M[i] + (1.0 - BETA) * out[i];
    x->V[i] = BETA * x->V[i] + (1.0 - BETA) * out[i] * out[i];
    out[i] = by * x->M[i] / (sqrt(x->V[i]) + EPSILON);
  }
  dense_product(false, false, m, n, m, x->Q[0], out, out);
  dense_product(false, true, m, n, n, out, x->Q[1], out);
  if (rotates || step % 3 == 0) refresh_soap_bases(x, rotates);
}

static void must_match_formulas(const family_run *run) {
  for (int32_t i = SHAMPOO; i < ENTRIES; i++) {
    expected x = {.m = entry[i].out, .n = entry[i].in};
    for (int32_t step = 0; step < STEPS; step++) {
      float d[MOST_WEIGHTS];
      double D[MOST_WEIGHTS], want[MOST_WEIGHTS], most = 0.0, gap = 0.0;
      family_draw_gradients(&model, step, i, d);
      for (int64_t k = 0; k < x.m * x.n; k++)
        D[k] = (double)d[k];
      i == SHAMPOO_KL ? fold_kl_gradient(&x, step, D) : fold_gradient(&x, i == SHAMPOO_SUM, D);
      if (i >= SOAP) predict_soap(&x, step, i == SOAP_ROTATE, D, want);
      if (i < SOAP) predict_shampoo(&x, step, i, D, want);
      for (int64_t k = 0; k < x.m * x.n; k++) {
        want[k] *= run->clip[0][step];
        most = fmax(most, fabs(want[k]));
        gap = fmax(gap, fabs(want[k] - (double)run->out[0][step][i][k]));
      }
      if (!(gap <= (run->linalg != NULL ? 1e-5 : 2e-4) * most)) {
        fail_msg("NG_TEST_SEED=%llu: %s, %d ranks, step %d, %s: off by %.2g of %.2g",
                 (unsigned long long)test_seed(), run->set, run->ranks, step, entry[i].name, gap,
                 most);
      }
    }
  }
}

/* ---- tests -----------------------------------------------------------------------------------*/

/* On 1 to 4 ranks; a late queue with grad_worker_fraction = 1 gives the bits of grad_worker_fraction = 0. */
static void ranks_and_fractions_follow_the_formulas(void **state) {
  static const char *const set[] = {COMMON "clip=none grad_worker_fraction=1",
                                    COMMON "clip=none grad_worker_fraction=0",
                                    COMMON "clip=kl kl_clip=0.01 grad_worker_fraction=1"};
  family_run *fast = new_run(set[0], 1);
  fast->linalg = NULL;
  must_match_formulas(family_must_train(fast));
  free(fast);
  for (int k = 0; k < 3; k++) {
    for (int32_t ranks = 1; ranks <= FAMILY_RANKS; ranks++) {
      family_run *run = family_must_train(new_run(set[k], ranks));
      must_match_formulas(run);
      if (k == 1) {
        family_run *late = new_run(set[0], ranks);
        late->linalg = "late";
        family_must_match_from(run, family_must_train(late), 0);
        free(late);
      }
      free(run);
    }
  }
}

static void reports_name_the_family_and_its_damping(void **state) {
  static const char *const family[ENTRIES] = {"kronecker", "shampoo", "shampoo", "shampoo",
                                              "soap",      "soap",    "soap"};
  family_run *run = family_must_train(new_run(COMMON "clip=none", 1));
  for (int32_t i = 0; i < ENTRIES; i++) {
    assert_string_equal(run->family[0][i], family[i]);
    assert_int_equal(run->report[0][i].rung, 0);
    if (i != FC && i < SOAP) assert_true(run->report[0][i].damping_f == EPSILON);
  }
  free(run);
}

static void resumed_runs_have_the_same_bits(void **state) {
  static const char *const set[] = {COMMON "clip=none",
                                    COMMON "clip=none grad_worker_fraction=0.5"};
  for (int32_t ranks = 1; ranks <= FAMILY_RANKS; ranks++) {
    family_run *whole = new_run(set[ranks % 2 == 0], ranks), *resumed = new_run(whole->set, ranks);
    whole->save = resumed->load = in_folder("state");
    family_runs_must_match(whole, resumed, SAVED);
  }
}

/* A step is skipped for a NaN in the gradient of any layer, then repeated: averages, moments and bases of all layers follow the
 * formulas, in which the skipped step does not exist. */
static void skipped_steps_leave_moments_and_bases(void **state) {
  static const int32_t bad[] = {FC, SHAMPOO, SHAMPOO_KL, SOAP};
  for (int32_t ranks = 1; ranks <= FAMILY_RANKS; ranks++) {
    for (int k = 0; k < 12; k++) {
      family_run *run = new_run(COMMON "clip=none", ranks);
      run->bad_step = 2 + k / 4; /* Shampoo solves in step 2 and 4, SOAP in step 3 */
      run->bad_entry = bad[k % 4];
      (void)family_must_train(run);
      must_match_formulas(run);
      free(run);
    }
  }
}

/* Set *norm to |PD| in step `last` of KL-Shampoo, if the gradient of the first step is 0 or not. */
static void measure_kl(bool first_is_zero, int last, double *norm) {
  fixture f;
  float D[6 * 8];
  fixture_ok(&f, fixture_open(&f, "method=kl-shampoo;clip=none;solve_period=5", NULL));
  fixture_ok(&f, ng_add_linear(f.p, "fc", 8, 6, 0, NULL));
  fixture_ok(&f, ng_ready(f.p));
  for (int t = 0; t <= last; t++) {
    for (int i = 0; i < 6 * 8; i++)
      D[i] = t == 0 && first_is_zero ? 0.0F : 1e4F * draw_at(t, i);
    const plane v = plane_of(D, 6, 8, NG_F32);
    fixture_ok(&f, fixture_bind(&f, 0, NG_WEIGHT, &v, NULL));
    fixture_ok(&f, ng_step(f.p, 0.1));
  }
  *norm = 0.0;
  for (int i = 0; i < 6 * 8; i++)
    *norm += (double)D[i] * D[i];
  fixture_close(&f);
}

/* Scale invariance: L has the scale of the gradients, not of the identity, once a gradient is not 0. */
static void a_zero_first_gradient_does_not_set_the_scale_of_kl(void **state) {
  double zero, usual;
  for (int step = 1; step <= 12; step++) { /* solves in steps 0, 5 and 10 */
    measure_kl(true, step, &zero);
    measure_kl(false, step, &usual);
    if (!(zero > usual / 9 && zero < usual * 9))
      fail_msg("step %d: |PD|^2 is %g after a zero gradient, otherwise %g", step, zero, usual);
  }
}

/* A QR that fails. */
static void no_qr(ng_queue *q, int64_t m, int64_t n, float *X, int64_t ldx, void *work, int *info) {
  ng_linalg_ref.qr(q, m, n, X, ldx, work, info);
  *info = 1;
}

/* D <- the direction of SOAP in step 4; the solve of step 3 fails. */
static void run_soap(const char *set, bool fails, float *D) {
  ng_linalg_ops linalg = ng_linalg_ref;
  ng_backend backend = ng_backend_ref;
  fixture f;
  linalg.qr = no_qr;
  backend.linalg = &linalg;
  fixture_ok(&f, fixture_open(&f, set, &(fixture_how){.backend = &backend}));
  fixture_ok(&f, ng_add_linear(f.p, "fc", 8, 6, 0, NULL));
  fixture_ok(&f, ng_ready(f.p));
  for (int t = 0; t <= 4; t++) {
    for (int i = 0; i < 6 * 8; i++)
      D[i] = draw_at(t, i);
    const plane v = plane_of(D, 6, 8, NG_F32);
    fixture_ok(&f, fixture_bind(&f, 0, NG_WEIGHT, &v, NULL));
    assert_int_equal(ng_step(f.p, 0.1), fails && t == 3 ? NG_RESCUED : NG_OK);
  }
  fixture_close(&f);
}

/* Step 4 has the bits of a run without the solve of step 3. */
static void a_failed_refresh_leaves_moments_and_bases(void **state) {
  static const char *const method[] = {"soap", "soap-natgrad"};
  for (int i = 0; i < 2; i++) {
    float D[2][6 * 8];
    for (int k = 0; k < 2; k++) {
      char set[64];
      (void)snprintf(set, sizeof set, "method=%s;clip=none;solve_period=%d", method[i], 3 + 6 * k);
      run_soap(set, k == 0, D[k]);
    }
    assert_memory_equal(D[0], D[1], sizeof D[0]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_and_fractions_follow_the_formulas),
      cmocka_unit_test(reports_name_the_family_and_its_damping),
      cmocka_unit_test(resumed_runs_have_the_same_bits),
      cmocka_unit_test(skipped_steps_leave_moments_and_bases),
      cmocka_unit_test(a_zero_first_gradient_does_not_set_the_scale_of_kl),
      cmocka_unit_test(a_failed_refresh_leaves_moments_and_bases),
  };
  return cmocka_run_group_tests_name("families with matrices", tests, make_folder, delete_folder);
}
