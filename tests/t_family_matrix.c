/* t_family_matrix.c: Shampoo and SOAP as families of a test (matrix_families.h), in one model with a Kronecker layer, on
 * 1 to 4 ranks, against dense formulas in double: solve periods of their own, save, resume, skipped steps, reports.
 *
 * Tolerance.  `ref` computes eigenvectors in double: 1e-5 of the largest entry is ten times the largest difference of 20
 * seeds.  LAPACK computes them in f32: 2e-4.  Runs that must be equal are compared bit for bit. */
#include "dense.h"
#include "draw.h"
#include "fixture.h"
#include "folder.h"
#include "late.h"
#include "matrix_families.h"
#include "ranks.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FC, SHAMPOO, SHAMPOO_TALL, SOAP, SOAP_SMALL, ENTRIES, STEPS = 8, SAVED = 5, MOST_RANKS = 4 };
enum { SAMPLES = 4, MOST = 6, MOST_WEIGHTS = MOST * MOST };

typedef struct entry {
  const char *name;
  int64_t in, out;
} entry;

static const entry model[ENTRIES] = {[FC] = {"fc", 6, 4},
                                     [SHAMPOO] = {"shampoo", 6, 5},
                                     [SHAMPOO_TALL] = {"shampoo.tall", 2, 6},
                                     [SOAP] = {"soap", 6, 6},
                                     [SOAP_SMALL] = {"soap.small", 3, 3}};

#define COMMON                                                                                     \
  "damping=0.3 stat_decay=0.9 stat_start=zero solve_period=2 per_layer='soap*: solve_period=3' "
static const double EPSILON = 0.3, RHO = 0.9, BETA = 0.95;

typedef struct matrix_run {
  const char *set, *linalg;
  bool is_late; /* the queue does all work as late as it may */
  int32_t ranks;
  const char *save, *load;     /* save before step SAVED; load and begin with it */
  int32_t bad_step, bad_entry; /* a NaN in this gradient at this step, which is then repeated */
  float out[MOST_RANKS][STEPS][ENTRIES][MOST_WEIGHTS];
  double clip[MOST_RANKS][STEPS];
  ng_layer_report report[MOST_RANKS][ENTRIES];
  char family[MOST_RANKS][ENTRIES][32], message[MOST_RANKS][256];
} matrix_run;

/* Gradients of SOAP have separated singular values, so their eigenbases are determined. */
static void draw_gradient(float *x, int32_t step, int32_t at) {
  rng r = {test_seed() ^ (uint64_t)(step * 100 + at)};
  const entry *e = &model[at];
  for (int64_t i = 0; i < e->in * e->out; i++) {
    x[i] = (float)rng_value(&r);
    if (at >= SOAP && i % (e->in + 1) == 0) x[i] += (float)(4 * (1 + i / e->in));
  }
}

static ng_status observe_fc(ng_precond *p, int32_t step) {
  float a[SAMPLES * 6], g[SAMPLES * 4];
  rng r = {test_seed() ^ (uint64_t)(step * 100 + 50)};
  for (int i = 0; i < SAMPLES * 6; i++)
    a[i] = (float)rng_value(&r);
  for (int i = 0; i < SAMPLES * 4; i++)
    g[i] = (float)rng_value(&r);
  const plane in = plane_of(a, SAMPLES, 6, NG_F32), out = plane_of(g, SAMPLES, 4, NG_F32);
  const ng_status st = plane_input(p, FC, &in, NG_COPY);
  return st == NG_OK ? plane_output_grad(p, FC, &out, NG_COPY) : st;
}

static ng_status one_step(matrix_run *run, int32_t rank, fixture *f, int32_t step, int32_t bad) {
  ng_status st = fixture_begin(f, SAMPLES);
  for (int32_t i = 0; i < ENTRIES && st == NG_OK; i++) {
    float *grad = run->out[rank][step][i];
    draw_gradient(grad, step, i);
    if (i == bad) grad[1] = NAN;
    const plane w = plane_of(grad, model[i].out, model[i].in, NG_F32);
    st = plane_bind_grad(f->p, i, NG_WEIGHT, &w);
  }
  if (st == NG_OK) st = observe_fc(f->p, step);
  return st == NG_OK ? ng_step(f->p, 0.1) : st;
}

/* Repeat a step with a NaN without it. */
static ng_status step_of(matrix_run *run, int32_t rank, fixture *f, int32_t step) {
  ng_status st = NG_OK;
  if (step == run->bad_step) {
    st = one_step(run, rank, f, step, run->bad_entry);
    if (st != NG_SKIPPED) return st < NG_OK ? st : NG_ERR_STATE;
  }
  st = one_step(run, rank, f, step, -1);
  ng_report r = {.struct_size = sizeof r};
  if (st == NG_OK) st = ng_report_read(f->p, &r);
  run->clip[rank][step] = r.clip;
  return st;
}

static void read_reports(matrix_run *run, int32_t rank, const ng_precond *p) {
  ng_explain_row row = {.struct_size = sizeof row};
  for (int32_t i = 0; i < ng_explain_count(p); i++) {
    if (ng_explain(p, i, &row) != NG_OK) return;
    (void)snprintf(run->family[rank][row.index], sizeof run->family[0][0], "%s", row.family);
  }
  for (int32_t i = 0; i < ENTRIES; i++) {
    run->report[rank][i].struct_size = sizeof run->report[0][0];
    if (ng_report_layer(p, i, &run->report[rank][i]) != NG_OK) return;
  }
}

static ng_status run_rank(int32_t rank, ng_transport *t, void *arg) {
  matrix_run *run = arg;
  fixture f;
  const fixture_how how = {
      .linalg = run->linalg, .threads = 1 + rank % 2, .transport = run->ranks > 1 ? t : NULL};
  ng_status st = fixture_open(&f, run->set, &how);
  if (st == NG_OK && run->is_late) late_queue(f.ctx->queue, &ng_linalg_ref);
  if (st == NG_OK) ng_family_register(f.ctx, &family_shampoo);
  if (st == NG_OK) ng_family_register(f.ctx, &family_soap);
  for (int32_t i = 0, index; i < ENTRIES && st == NG_OK; i++)
    st = ng_add_linear(f.p, model[i].name, model[i].in, model[i].out, 0, &index);
  if (st == NG_OK) st = ng_ready(f.p);
  if (st == NG_OK && run->load != NULL) st = ng_load(f.p, run->load);
  for (int32_t step = run->load != NULL ? SAVED : 0; step < STEPS && st == NG_OK; step++) {
    if (step == SAVED && run->save != NULL) st = ng_save(f.p, run->save);
    if (st == NG_OK) st = step_of(run, rank, &f, step);
  }
  if (st == NG_OK) read_reports(run, rank, f.p);
  if (st != NG_OK) {
    (void)snprintf(run->message[rank], 256, "status %d: %.200s", (int)st,
                   f.ctx != NULL ? ng_last_error(f.ctx) : f.message);
  }
  fixture_close(&f);
  return st;
}

static matrix_run *new_run(const char *set, int32_t ranks) {
  matrix_run *run = calloc(1, sizeof *run);
  assert_non_null(run);
  run->set = set;
  run->linalg = "ref";
  run->ranks = ranks;
  run->bad_step = run->bad_entry = -1;
  return run;
}

/* Run; all ranks succeed with the same bits. */
static matrix_run *completed(matrix_run *run) {
  if (ranks_run(run->ranks, run_rank, run, NULL) != NG_OK) {
    for (int32_t r = 0; r < run->ranks; r++)
      print_error("%s, rank %d: %s\n", run->set, r, run->message[r]);
    fail();
  }
  for (int32_t r = 1; r < run->ranks; r++)
    assert_memory_equal(run->out[0], run->out[r], sizeof run->out[0]);
  return run;
}

/* ---- dense formulas --------------------------------------------------------------------------*/

static double norm(const double *x, int64_t n) {
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

static void fold(expected *x, const double *D) {
  double S[MOST_WEIGHTS];
  for (int k = 0; k < 2; k++) {
    const int64_t n = k == 0 ? x->m : x->n;
    dense_product(k == 1, k == 0, n, n, k == 0 ? x->n : x->m, D, D, S);
    for (int64_t i = 0; i < n * n; i++)
      x->F[k][i] = RHO * x->F[k][i] + (1.0 - RHO) * S[i];
  }
}

static void shampoo_roots(expected *x, int32_t step) {
  for (int k = 0; k < 2; k++) {
    const int64_t n = k == 0 ? x->m : x->n;
    double A[MOST_WEIGHTS], d[MOST], Q[MOST_WEIGHTS], P[MOST_WEIGHTS];
    for (int64_t i = 0; i < n * n; i++)
      A[i] = x->F[k][i] / (1.0 - pow(RHO, step + 1.0)) + (i % (n + 1) == 0 ? EPSILON : 0.0);
    dense_eigen(n, A, d, Q);
    for (int64_t i = 0; i < n * n; i++)
      P[i] = Q[i] * pow(d[i % n], -0.25);
    dense_product(false, true, n, n, n, P, Q, x->Q[k]);
  }
}

static void shampoo(expected *x, int32_t step, const double *D, double *out) {
  const int64_t m = x->m, n = x->n;
  if (step % 2 == 0) shampoo_roots(x, step);
  dense_product(false, false, m, n, m, x->Q[0], D, out);
  dense_product(false, false, m, n, n, out, x->Q[1], out);
  const double by = norm(D, m * n) / norm(out, m * n);
  for (int64_t i = 0; i < m * n; i++)
    out[i] *= by;
}

/* Replace the columns of A by orthonormal columns: Gram-Schmidt, in two passes. */
static void orthonormal(int64_t n, double *A) {
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

/* One orthogonal iteration; the first moment is rotated, the second permuted. */
static void soap_refresh(expected *x) {
  const int64_t m = x->m, n = x->n;
  int64_t order[2][MOST];
  double V[MOST_WEIGHTS];
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
    orthonormal(size, sorted);
    memcpy(x->Q[k], sorted, sizeof sorted);
  }
  dense_product(true, false, m, n, m, x->Q[0], x->M, x->M);
  dense_product(false, false, m, n, n, x->M, x->Q[1], x->M);
  memcpy(V, x->V, sizeof V);
  for (int64_t i = 0; i < m * n; i++)
    x->V[i] = V[order[0][i / n] * n + order[1][i % n]];
}

static void soap(expected *x, int32_t step, const double *D, double *out) {
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
  if (step % 3 == 0) soap_refresh(x);
}

/* A step that was repeated because of another layer's NaN has folded its gradient twice. */
static void as_predicted(const matrix_run *run) {
  for (int32_t i = SHAMPOO; i < ENTRIES; i++) {
    expected x = {.m = model[i].out, .n = model[i].in};
    for (int32_t step = 0; step < STEPS; step++) {
      float d[MOST_WEIGHTS];
      double D[MOST_WEIGHTS], want[MOST_WEIGHTS], most = 0.0, gap = 0.0;
      draw_gradient(d, step, i);
      for (int64_t k = 0; k < x.m * x.n; k++)
        D[k] = (double)d[k];
      fold(&x, D);
      if (step == run->bad_step && run->bad_entry == FC) fold(&x, D);
      (i >= SOAP ? soap : shampoo)(&x, step, D, want);
      for (int64_t k = 0; k < x.m * x.n; k++) {
        want[k] *= run->clip[0][step];
        most = fmax(most, fabs(want[k]));
        gap = fmax(gap, fabs(want[k] - (double)run->out[0][step][i][k]));
      }
      if (!(gap <= (run->linalg != NULL ? 1e-5 : 2e-4) * most)) {
        fail_msg("NG_TEST_SEED=%llu: %s, %d ranks, step %d, %s: off by %.2g of %.2g",
                 (unsigned long long)test_seed(), run->set, run->ranks, step, model[i].name, gap,
                 most);
      }
    }
  }
}

/* ---- tests -----------------------------------------------------------------------------------*/

/* Fractions of workers and a late queue do not change a bit; several ranks equal the formulas, too, and the fastest linear algebra. */
static void test_formulas_and_ranks(void **state) {
  static const char *const set[] = {COMMON "clip=none grad_worker_fraction=1",
                                    COMMON "clip=none grad_worker_fraction=0",
                                    COMMON "clip=kl kl_clip=0.01 grad_worker_fraction=1"};
  matrix_run *fast = new_run(set[0], 1);
  fast->linalg = NULL;
  as_predicted(completed(fast));
  free(fast);
  for (int k = 0; k < 3; k++) {
    for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
      matrix_run *run = completed(new_run(set[k], ranks));
      as_predicted(run);
      if (k == 1) {
        matrix_run *whole = new_run(set[0], ranks);
        whole->is_late = true;
        (void)completed(whole);
        assert_memory_equal(run->out[0], whole->out[0], sizeof run->out[0]);
        free(whole);
      }
      free(run);
    }
  }
}

static void test_reports(void **state) {
  static const char *const family[ENTRIES] = {"kronecker", "shampoo", "shampoo", "soap", "soap"};
  matrix_run *run = completed(new_run(COMMON "clip=none", 1));
  for (int32_t i = 0; i < ENTRIES; i++) {
    assert_string_equal(run->family[0][i], family[i]);
    assert_int_equal(run->report[0][i].rung, 0);
    if (i != FC) assert_true(run->report[0][i].damping_f == EPSILON);
  }
  free(run);
}

static void test_resume(void **state) {
  const char *path = in_folder("state");
  static const char *const set[] = {COMMON "clip=none",
                                    COMMON "clip=none grad_worker_fraction=0.5"};
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
    matrix_run *whole = new_run(set[ranks % 2 == 0], ranks);
    matrix_run *resumed = new_run(whole->set, ranks);
    whole->save = resumed->load = path;
    (void)completed(whole);
    (void)completed(resumed);
    assert_memory_equal(whole->out[0][SAVED], resumed->out[0][SAVED],
                        sizeof whole->out[0][0] * (STEPS - SAVED));
    free(whole);
    free(resumed);
  }
}

/* A NaN in another layer: factors have folded the gradient twice, moments and bases have not moved.  A NaN in the layer:
 * its gradient was not folded either. */
static void test_skipped_steps(void **state) {
  static const int32_t bad[] = {FC, SHAMPOO, SOAP};
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
    matrix_run *good = completed(new_run(COMMON "clip=none", ranks));
    for (int k = 0; k < 9; k++) {
      matrix_run *run = new_run(COMMON "clip=none", ranks);
      run->bad_step = 2 + k / 3; /* Shampoo solves in step 2 and 4, SOAP in step 3 */
      run->bad_entry = bad[k % 3];
      (void)completed(run);
      if (run->bad_entry == FC) as_predicted(run);
      for (int32_t step = 0; step < STEPS && run->bad_entry != FC; step++) {
        assert_memory_equal(run->out[0][step][run->bad_entry], good->out[0][step][run->bad_entry],
                            sizeof good->out[0][0][0]);
      }
      free(run);
    }
    free(good);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_formulas_and_ranks),
      cmocka_unit_test(test_reports),
      cmocka_unit_test(test_resume),
      cmocka_unit_test(test_skipped_steps),
  };
  return cmocka_run_group_tests_name("families with matrices", tests, NULL, NULL);
}
