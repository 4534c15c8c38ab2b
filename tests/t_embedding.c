/* t_embedding.c: embeddings against a dense float64 solve.
 *
 * The oracle knows no embedding: every token is a unit vector of a linear layer, A = sum w a a' / sum w is
 * [V, V] with whatever that gives, G likewise, and each row of D is solved with matrices by elimination.
 *
 * Tolerance.  A, G and what is solved are kept in f32; the errors reach PD times the condition of what is
 * inverted, of which (largest + d) / d is a bound: 64 units of 2^-24 times that, as for factors (families.h). */
#include "fixture.h"
#include "oracle.h"
#include "ranks.h"
#include "scene.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { V_MOST = 300, Q_MOST = 6, STEPS = 3, CALLS = 2, B_MOST = 4, S_MOST = 5, RANKS = 3 };

typedef struct call {
  int64_t samples;
  int64_t token[B_MOST * S_MOST];    /* [B, S] */
  float g[B_MOST * S_MOST * Q_MOST]; /* [B, S, q] */
} call;

typedef struct embedding_case {
  int64_t V, q, S;
  bool narrow, positions_first; /* i32; [S, B] */
  int32_t ranks, calls[STEPS][RANKS];
  call shown[STEPS][RANKS][CALLS];
  float D[STEPS][V_MOST * Q_MOST], P[RANKS][STEPS][V_MOST * Q_MOST];
  char options[256];
  const char *save, *load;
} embedding_case;

/* ---- the oracle ------------------------------------------------------------------------------*/

typedef struct factors {
  double A[V_MOST], G[Q_MOST][Q_MOST]; /* of A only the diagonal: the rest is checked to be 0 */
} factors;

/* Sums over positions of a (x) a: products of two different tokens never meet in a row. */
static void add_call(const embedding_case *n, const ng_options *o, const call *m, factors *f) {
  const bool kaisa = strcmp(o->stat_scale, "kaisa") == 0;
  const double B = (double)m->samples, N = B * (double)n->S;
  const double a = kaisa ? 1 / N : 1 / B, g = kaisa ? 1 / N : B * B / N; /* a mean loss */
  for (int64_t i = 0; i < m->samples * n->S; i++) {
    if (m->token[i] != NG_NO_TOKEN) f->A[m->token[i]] += B * a;
    for (int64_t r = 0; r < n->q; r++) {
      for (int64_t c = 0; c < n->q; c++)
        f->G[r][c] += B * g * (double)m->g[i * n->q + r] * (double)m->g[i * n->q + c];
    }
  }
}

/* Row v of PD; d: added to A, to G, to their products. */
static void row_of(const embedding_case *n, const factors *f, const double d[3], int64_t v,
                   const float *D, double *x) {
  double M[Q_MOST * Q_MOST];
  for (int64_t r = 0; r < n->q; r++) {
    x[r] = (double)D[v * n->q + r];
    for (int64_t c = 0; c < n->q; c++)
      M[r * n->q + c] = (f->A[v] + d[0]) * (f->G[r][c] + (r == c ? d[1] : 0)) + (r == c ? d[2] : 0);
  }
  oracle_solve(n->q, M, 1, x);
}

static void cut(const embedding_case *n, const ng_options *o, factors *f) {
  const int64_t k = strcmp(o->output_factor, "diagonal") == 0 ? n->q : o->factor_blocks;
  for (int64_t r = 0; r < n->q; r++) {
    for (int64_t c = 0; c < n->q; c++) {
      /* the larger blocks first */
      const int64_t wide = n->q / k + 1, more = n->q % k;
      const int64_t br = r < more * wide ? r / wide : more + (r - more * wide) / (n->q / k);
      const int64_t bc = c < more * wide ? c / wide : more + (c - more * wide) / (n->q / k);
      if (br != bc) f->G[r][c] = 0;
    }
  }
}

/* The worst error of all steps, in units of rounding times condition. */
static double error_of(const embedding_case *n) {
  const ng_options o = fixture_parse(n->options);
  static factors f;
  double worst = 0, leak[2] = {0, 0};
  memset(&f, 0, sizeof f);
  for (int t = 0; t < STEPS; t++) {
    static factors fresh;
    double total = 0, tr[2] = {0, 0}, most[2] = {0, 0}, d[3] = {0, 0, 0}, size = 0;
    const double rho = t > 0 ? o.stat_decay : 0;
    memset(&fresh, 0, sizeof fresh);
    for (int r = 0; r < n->ranks; r++) {
      for (int c = 0; c < n->calls[t][r]; c++) {
        add_call(n, &o, &n->shown[t][r][c], &fresh);
        total += (double)n->shown[t][r][c].samples;
      }
    }
    cut(n, &o, &fresh);
    for (int64_t v = 0; v < n->V; v++) {
      f.A[v] = rho * (f.A[v] + leak[0]) + (1 - rho) * fresh.A[v] / total;
      tr[0] += f.A[v];
      most[0] = fmax(most[0], f.A[v]);
    }
    for (int64_t r = 0; r < n->q; r++) {
      for (int64_t c = 0; c < n->q; c++)
        f.G[r][c] = rho * (f.G[r][c] + (r == c ? leak[1] : 0)) + (1 - rho) * fresh.G[r][c] / total;
      tr[1] += f.G[r][r];
    }
    most[1] = tr[1];
    const double pi = sqrt(tr[0] / (double)n->V / (tr[1] / (double)n->q)), s = sqrt(o.damping);
    if (strcmp(o.damping_split, "pi") == 0) {
      d[0] = s * pi;
      d[1] = s / pi;
    } else if (strcmp(o.damping_split, "full") == 0) {
      d[0] = d[1] = o.damping;
    } else {
      d[2] = o.damping;
    }
    const double condition =
        d[2] > 0 ? 1 + most[0] * most[1] / d[2] : (1 + most[0] / d[0]) * (1 + most[1] / d[1]);
    for (int64_t i = 0; i < n->V * n->q; i++)
      size = fmax(size, fabs((double)n->P[0][t][i]));
    for (int64_t v = 0; v < n->V; v++) {
      double x[Q_MOST];
      row_of(n, &f, d, v, n->D[t], x);
      for (int64_t c = 0; c < n->q; c++) {
        const double e = fabs((double)n->P[0][t][v * n->q + c] - x[c]) / size / condition / unit;
        if (!(e <= worst)) worst = e;
      }
    }
    /* what leaks is shared by all that sum */
    for (int i = 0; i < 2 && o.damping_leak; i++)
      leak[i] = d[i] / (strcmp(o.statistics, "owner") == 0 ? 1 : n->ranks);
    for (int r = 1; r < n->ranks; r++) {
      if (memcmp(n->P[r][t], n->P[0][t], sizeof n->P[0][t]) != 0) return INFINITY;
    }
  }
  return worst;
}

/* ---- the library -----------------------------------------------------------------------------*/

static ng_status show(const embedding_case *n, ng_precond *p, const call *m) {
  int64_t wide[B_MOST * S_MOST];
  int32_t slim[B_MOST * S_MOST];
  float g[B_MOST * S_MOST * Q_MOST];
  const int64_t B = m->samples, S = n->S;
  ng_batch batch;
  ng_batch_init(&batch, sizeof batch);
  batch.samples = B;
  for (int64_t i = 0; i < B * S; i++) {
    const int64_t to = n->positions_first ? i % S * B + i / S : i;
    wide[to] = m->token[i];
    slim[to] = (int32_t)m->token[i];
    memcpy(g + to * n->q, m->g + i * n->q, sizeof(float) * (size_t)n->q);
  }
  const int64_t shape[3] = {n->positions_first ? S : B, n->positions_first ? B : S, n->q};
  const ng_array a = {.data = n->narrow ? (void *)slim : (void *)wide,
                      .dtype = n->narrow ? NG_I32 : NG_I64,
                      .mem = NG_HOST,
                      .ndim = 2,
                      .shape = shape};
  const ng_array y = {.data = g, .dtype = NG_F32, .mem = NG_HOST, .ndim = 3, .shape = shape};
  ng_status st = ng_begin(p, &batch);
  if (st == NG_OK) st = ng_observe_input(p, 0, &a, NG_COPY);
  if (st == NG_OK) st = ng_observe_output_grad(p, 0, &y, NG_COPY);
  return st;
}

static ng_status describe(const embedding_case *n, ng_precond *p) {
  ng_layer l;
  ng_layer_init(&l, NG_EMBEDDING, sizeof l);
  l.name = "words";
  l.in = n->V;
  l.out = n->q;
  if (n->narrow) l.token_dtype = NG_I32;
  if (n->positions_first) l.order = NG_POSITIONS_FIRST;
  return ng_add_layer(p, &l, NULL);
}

static ng_status play(int32_t rank, ng_transport *t, void *arg) {
  embedding_case *n = arg;
  fixture f;
  const fixture_how how = {.transport = t, .threads = 1};
  ng_status st = fixture_open(&f, n->options, t == NULL ? NULL : &how);
  if (st == NG_OK) st = describe(n, f.p);
  for (int s = 0; s < STEPS && st == NG_OK; s++) {
    const plane grad = plane_of(n->P[rank][s], n->V, n->q, NG_F32);
    memcpy(n->P[rank][s], n->D[s], sizeof n->D[s]);
    st = plane_bind_grad(f.p, 0, NG_WEIGHT, &grad);
    if (s == 0 && st == NG_OK) st = ng_ready(f.p);
    if (s == 1 && st == NG_OK && n->load != NULL) st = ng_load(f.p, n->load);
    if (s == 0 && n->load != NULL) continue;
    for (int c = 0; c < n->calls[s][rank] && st == NG_OK; c++)
      st = show(n, f.p, &n->shown[s][rank][c]);
    if (st == NG_OK) st = ng_step(f.p, 0.1);
    if (s == 0 && st == NG_OK && n->save != NULL) st = ng_save(f.p, n->save);
  }
  if (st != NG_OK) print_message("%s: %s\n", n->options, ng_last_error(f.ctx));
  fixture_close(&f);
  return st;
}

static ng_status play_all(embedding_case *n) {
  return n->ranks > 1 ? ranks_run(n->ranks, play, n, NULL) : play(0, NULL, n);
}

/* ---- cases -----------------------------------------------------------------------------------*/

static embedding_case *case_of(rng *r, int32_t ranks) {
  embedding_case *n = scene_room(sizeof *n);
  n->V = rng_below(r, 4) ? rng_between(r, 1, 9) : rng_between(r, 250, V_MOST);
  n->q = rng_between(r, 1, Q_MOST);
  n->S = rng_between(r, 1, S_MOST);
  n->narrow = rng_below(r, 2) > 0;
  n->positions_first = rng_below(r, 2) > 0;
  n->ranks = ranks;
  for (int t = 0; t < STEPS; t++) {
    for (int64_t i = 0; i < n->V * n->q; i++)
      n->D[t][i] = (float)rng_value(r);
    for (int k = 0; k < ranks; k++) {
      n->calls[t][k] = (int32_t)rng_between(r, 1, CALLS);
      for (int c = 0; c < n->calls[t][k]; c++) {
        call *m = &n->shown[t][k][c];
        m->samples = rng_between(r, 1, B_MOST);
        for (int64_t i = 0; i < m->samples * n->S; i++)
          m->token[i] = i > 0 && rng_below(r, 8) == 0 ? NG_NO_TOKEN
                                                      : rng_below(r, n->V) / rng_between(r, 1, 3);
        for (int64_t i = 0; i < m->samples * n->S * n->q; i++)
          m->g[i] = (float)(0.5 * rng_value(r));
      }
    }
  }
  return n;
}

static const char *const way[] = {
    "solver=cholesky damping_split=pi",
    "solver=cholesky damping_split=full cholesky_form=inverse",
    "solver=cholesky damping_split=pi cholesky_form=factor",
    "solver=cholesky damping_split=pi damping_leak=1",
    "solver=cholesky damping_split=full stat_scale=kaisa",
    "solver=cholesky damping_split=pi factor_blocks=2",
    "solver=cholesky damping_split=pi output_factor=diagonal",
    "solver=eigen damping_split=joint prediv=0",
    "solver=eigen damping_split=joint prediv=1",
    "solver=eigen damping_split=pi prediv=1 factor_blocks=2",
    "solver=eigen damping_split=full prediv=0",
};
enum { WAYS = sizeof way / sizeof way[0] };

static double dense_case(uint64_t seed) {
  static const char *const spread[] = {"", " statistics=owner grad_worker_fraction=0",
                                       " grad_worker_fraction=0",
                                       " statistics=owner colocate=0 placement=round-robin"};
  rng r = {seed};
  embedding_case *n = case_of(&r, 1 + (int32_t)rng_below(&r, 2) * 2);
  (void)snprintf(n->options, sizeof n->options,
                 "method=natgrad clip=none solve_period=1 stat_decay=%g damping=%g %s%s",
                 (double)rng_below(&r, 3) / 2.5, 0.1 + rng_real(&r), way[rng_below(&r, WAYS)],
                 spread[rng_below(&r, 4)]);
  if (n->q < 2 && strstr(n->options, "factor_blocks=2") != NULL) n->q = 2;
  const ng_status st = play_all(n);
  const double e = st == NG_OK ? error_of(n) : INFINITY;
  if (!(e <= 64)) print_message("NG_TEST_SEED=%" PRIu64 ": %g, %s\n", seed, e, n->options);
  free(n);
  return e <= 64 ? e : INFINITY;
}

static void equals_a_dense_solve(void **state) {
  (void)state;
  test_cases(dense_case, 400, 64);
}

static void resumes_with_the_same_bits(void **state) {
  char file[FIXTURE_FILE];
  (void)state;
  fixture_file(file, "t_embedding");
  for (int k = 0; k < WAYS; k++) {
    rng r = {test_seed() + (uint64_t)k};
    embedding_case *n = case_of(&r, 3), *again = scene_room(sizeof *again);
    n->q = n->q < 2 ? 2 : n->q;
    (void)snprintf(n->options, sizeof n->options, "method=natgrad stat_decay=0.5 solve_period=2 %s",
                   way[k]);
    n->save = file;
    assert_int_equal(play_all(n), NG_OK);
    *again = *n;
    again->save = NULL;
    again->load = file;
    assert_int_equal(play_all(again), NG_OK);
    for (int32_t rank = 0; rank < 3; rank++)
      assert_memory_equal(again->P[rank][1], n->P[0][1], 2 * sizeof n->P[0][1]);
    free(again);
    free(n);
  }
  (void)unlink(file);
}

/* A is a vector: its memory does not grow with the square of the vocabulary. */
static void a_is_a_vector(void **state) {
  (void)state;
  fixture f;
  ng_layer l;
  int64_t held = 0;
  ng_layer_init(&l, NG_EMBEDDING, sizeof l);
  l.name = "words";
  l.in = 50000;
  l.out = 16;
  fixture_ok(&f, fixture_open(&f, "method=natgrad", NULL));
  assert_int_equal(ng_add_layer(f.p, &l, NULL), NG_OK);
  float *grad = calloc(50000 * 16, sizeof *grad);
  assert_non_null(grad);
  const plane g = plane_of(grad, 50000, 16, NG_F32);
  fixture_ok(&f, plane_bind_grad(f.p, 0, NG_WEIGHT, &g));
  fixture_ok(&f, ng_ready(f.p));
  ng_report report = {.struct_size = sizeof report};
  assert_int_equal(ng_report_read(f.p, &report), NG_OK);
  held = report.factors;
  assert_in_range(held, 4 * 50000, 4 * 50000 + 4096);
  ng_explain_row row = {.struct_size = sizeof row};
  assert_int_equal(ng_explain(f.p, 0, &row), NG_OK);
  assert_string_equal(row.why, "A diagonal of 50000, G 16x16");
  assert_string_equal(row.family, "embedding");
  assert_int_equal(row.count, 50000 * 16);
  fixture_close(&f);
  free(grad);
}

/* ---- refusals --------------------------------------------------------------------------------*/

static void refused(const char *options, ng_layer l, ng_status want, const char *text) {
  fixture f;
  fixture_ok(&f, fixture_open(&f, options, NULL));
  ng_status st = ng_add_layer(f.p, &l, NULL);
  if (st == NG_OK) st = ng_ready(f.p);
  assert_int_equal(st, want);
  if (strstr(ng_last_error(f.ctx), text) == NULL) fail_msg("%s", ng_last_error(f.ctx));
  fixture_close(&f);
}

static void refuses_by_name(void **state) {
  (void)state;
  ng_layer l;
  ng_layer_init(&l, NG_EMBEDDING, sizeof l);
  l.name = "words";
  l.in = 5;
  l.out = 2;
  refused("method=eva", l, NG_ERR_ABSENT, "'words': method eva takes no embeddings");
  refused("method=natgrad positions=reduce", l, NG_ERR_ARG,
          "positions = reduce is not for embeddings");
  refused("method=sam", l, NG_ERR_ARG, "solver = product is not for embeddings");
  l.bias = 1;
  refused("method=natgrad", l, NG_ERR_ARG, "bias");
  l.bias = 0;
  l.token_dtype = NG_F32;
  refused("method=natgrad", l, NG_ERR_ARG, "token_dtype is f32");
  l.token_dtype = NG_I64;
  l.in = 0;
  refused("method=natgrad", l, NG_ERR_ARG, "in is 0");
}

/* A token beyond the vocabulary changes nothing; another dtype, another shape.  -1 is NG_NO_TOKEN. */
static void refuses_tokens(void **state) {
  (void)state;
  fixture f;
  float d[10] = {1}, y[8] = {0};
  int64_t token[2] = {1, 5};
  const int64_t shape[3] = {2, 1, 2};
  ng_layer l;
  ng_layer_init(&l, NG_EMBEDDING, sizeof l);
  l.name = "words";
  l.in = 5;
  l.out = 2;
  const plane grad = plane_of(d, 5, 2, NG_F32);
  /* all of them, also those that stat_batch leaves out of A */
  fixture_ok(&f, fixture_open(&f, "method=natgrad stat_batch=1", NULL));
  fixture_ok(&f, ng_add_layer(f.p, &l, NULL));
  fixture_ok(&f, plane_bind_grad(f.p, 0, NG_WEIGHT, &grad));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, ng_begin_samples(f.p, 2, 1));
  ng_array a = {.data = token, .dtype = NG_I64, .mem = NG_HOST, .ndim = 1, .shape = shape};
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG);
  assert_non_null(strstr(ng_last_error(f.ctx), "token 0 of sample 1 is 5, expected 0 to 4"));
  token[1] = -2;
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG);
  a.dtype = NG_I32;
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG);
  assert_non_null(strstr(ng_last_error(f.ctx), "dtype is i32, expected i64"));
  a = (ng_array){.data = y, .dtype = NG_F32, .mem = NG_HOST, .ndim = 2, .shape = shape};
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_ARG);
  const int64_t odd[1] = {3};
  a = (ng_array){.data = token, .dtype = NG_I64, .mem = NG_HOST, .ndim = 1, .shape = odd};
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_ERR_SHAPE);
  token[1] = 4;
  a.shape = shape;
  assert_int_equal(ng_observe_input(f.p, 0, &a, NG_COPY), NG_OK);
  const ng_array g = {.data = y, .dtype = NG_F32, .mem = NG_HOST, .ndim = 3, .shape = shape};
  assert_int_equal(ng_observe_output_grad(f.p, 0, &g, NG_COPY), NG_OK);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  fixture_close(&f);
}

/* To a window it is a parameter like any other: nothing is observed. */
static void windows_take_it(void **state) {
  (void)state;
  fixture f;
  float d[10] = {1, 2};
  ng_layer l;
  ng_explain_row row;
  ng_layer_init(&l, NG_EMBEDDING, sizeof l);
  l.name = "words";
  l.in = 5;
  l.out = 2;
  const plane grad = plane_of(d, 5, 2, NG_F32);
  fixture_ok(&f, fixture_open(&f, "method=mfac damping=0.1 window=3", NULL));
  fixture_ok(&f, ng_add_layer(f.p, &l, NULL));
  fixture_ok(&f, plane_bind_grad(f.p, 0, NG_WEIGHT, &grad));
  fixture_ok(&f, ng_ready(f.p));
  assert_int_equal(ng_wants(f.p, 0), 0);
  row = (ng_explain_row){.struct_size = sizeof row};
  assert_int_equal(ng_explain(f.p, 0, &row), NG_OK);
  assert_int_equal(row.covered, 1);
  assert_int_equal(ng_step(f.p, 0.1), NG_OK);
  assert_true(d[0] > 0 && d[0] != 1 && fabs((double)(d[1] / d[0]) - 2) < 1e-6);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equals_a_dense_solve), cmocka_unit_test(resumes_with_the_same_bits),
      cmocka_unit_test(a_is_a_vector),        cmocka_unit_test(windows_take_it),
      cmocka_unit_test(refuses_by_name),      cmocka_unit_test(refuses_tokens),
  };
  return cmocka_run_group_tests_name("embedding", tests, NULL, NULL);
}
