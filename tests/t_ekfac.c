/* t_ekfac.c: EKFAC (src/family/kronecker_ekfac.c) against dense formulas in double, on 1 and 3 ranks: linear layers with one and
 * several positions, convolutions, also grouped and pointwise; every way to compute second moments; resume; f16.
 *
 * Bases are determined: A and G of the first step have full rank, because a batch has more samples than columns.
 *
 * Tolerance.  An eigenvector in f32 has an error of 2^-24 times the largest eigenvalue over the gap to the next one. The
 * largest error of PD was 1.7e-4 of the largest entry in 20 seeds (NG_TEST_SEED=1 to 20): 1e-3. */
#include "draw.h"
#include "fixture.h"
#include "folder.h"
#include "late.h"
#include "layer_oracle.h"
#include "test_case.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double TOLERANCE = 1e-3;
#define EVERY(n)                                                                                   \
  "method=ekfac damping=0.05 stat_decay=0.6 clip=none norm_block=none solve_period=" n
#define OPTIONS EVERY("3")

/* ---- dense formulas --------------------------------------------------------------------------*/

/* Of every group of a layer: bases with vectors in columns, eigenvalues, V. */
typedef struct expected {
  double *Q[2], *d[2], *V;
} expected;

/* sum += (Q_G' (sum over positions of g a') Q_A)^2 over the samples of a micro-batch. */
static void add_squares(const test_case *s, int32_t l, int64_t group, const case_micro *m,
                        const expected *x, double *sum) {
  const ng_layer *d = &s->layer[l];
  const int64_t groups = d->kind == NG_CONV2D ? d->groups : 1, q = d->out / groups,
                p = oracle_columns(d), S = s->positions[l], B = m->batch.samples;
  const double by = (m->batch.reduction == NG_MEAN ? (double)B : 1.0) / m->batch.loss_scale;
  double *a = oracle_stat_rows(d, false, group, m->a[l][0], B, S, p),
         *g = oracle_stat_rows(d, true, group, m->g[l][0], B, S, q), *D = zeros(q * p);
  for (int64_t n = 0; n < B; n++) {
    dense_product(true, false, q, p, S, g + n * S * q, a + n * S * p, D);
    dense_product(true, false, q, p, q, x->Q[1] + group * q * q, D, D);
    dense_product(false, false, q, p, p, D, x->Q[0] + group * p * p, D);
    for (int64_t i = 0; i < q * p; i++)
      sum[i] += by * D[i] * by * D[i];
  }
  free(a);
  free(g);
  free(D);
}

static void observe_squares(const test_case *s, const ng_settings *o, int32_t t, int32_t l,
                            int64_t group, expected *x) {
  const int64_t groups = s->layer[l].kind == NG_CONV2D ? s->layer[l].groups : 1;
  const int64_t n = s->layer[l].out / groups * oracle_columns(&s->layer[l]);
  double *sum = zeros(n), samples = 0.0, *V = x->V + group * n;
  for (int32_t r = 0; r < s->ranks; r++) {
    for (int32_t c = 0; c < s->calls[t][r]; c++) {
      add_squares(s, l, group, &s->micro[t][r][c], x, sum);
      samples += (double)s->micro[t][r][c].batch.samples;
    }
  }
  for (int64_t i = 0; i < n; i++)
    V[i] = o->stat_decay * V[i] + (1.0 - o->stat_decay) * sum[i] / samples;
  free(sum);
}

static void predict_group(const test_case *s, const oracle *factors, const ng_settings *o,
                          int32_t t, int32_t l, int64_t group, expected *x, double *P) {
  const int64_t groups = s->layer[l].kind == NG_CONV2D ? s->layer[l].groups : 1;
  const int64_t q = s->layer[l].out / groups, p = oracle_columns(&s->layer[l]), size[2] = {p, q};
  double *V = x->V + group * q * p, *U = zeros(q * p), *Q[2];
  const int64_t age = t % o->solve_period;
  for (int side = 0; side < 2; side++) {
    int64_t n;
    const double *F = oracle_factor(factors, 0, l, group, side == 1, &n);
    Q[side] = x->Q[side] + group * n * n;
    double *cut = zeros(n * n);
    memcpy(cut, F, (size_t)(n * n) * sizeof *cut);
    cut_diagonal_blocks(o, &s->layer[l], side == 1, n, cut);
    if (age == 0) dense_eigen(size[side], cut, x->d[side] + group * n, Q[side]);
    free(cut);
  }
  if (age > 0) observe_squares(s, o, t, l, group, x);
  for (int64_t i = 0; i < q * p && age == 0; i++)
    V[i] = x->d[1][group * q + i / p] * x->d[0][group * p + i % p];
  dense_product(true, false, q, p, q, Q[1], s->D[t][l] + group * q * p, U);
  dense_product(false, false, q, p, p, U, Q[0], U);
  for (int64_t i = 0; i < q * p; i++)
    U[i] /= V[i] + o->damping;
  dense_product(false, false, q, p, q, Q[1], U, U);
  dense_product(false, true, q, p, p, U, Q[0], P + group * q * p);
  free(U);
}

/* Averages of A and G come from the oracle, which runs the first step, the first two, ... */
static void predict(const test_case *s, const ng_options *opt, case_result *out) {
  expected x[CASE_LAYERS];
  ng_options factors = *opt;
  fixture_set(&factors, "solver", "cholesky");
  fixture_set(&factors, "damping_split", "pi");
  memset(out, 0, sizeof *out);
  for (int32_t l = 0; l < s->layers; l++) {
    const int64_t groups = s->layer[l].kind == NG_CONV2D ? s->layer[l].groups : 1;
    const int64_t q = s->layer[l].out / groups, p = oracle_columns(&s->layer[l]);
    x[l] = (expected){{zeros(groups * p * p), zeros(groups * q * q)},
                      {zeros(groups * p), zeros(groups * q)},
                      zeros(groups * q * p)};
  }
  for (int32_t t = 0; t < s->steps; t++) {
    test_case part = *s;
    case_result inverted;
    oracle *o;
    part.steps = t + 1;
    case_predict(&part, &factors, &inverted, &o);
    for (int32_t l = 0; l < s->layers; l++) {
      const int64_t groups = s->layer[l].kind == NG_CONV2D ? s->layer[l].groups : 1;
      out->P[t][l] = zeros(case_weight_count(s, l));
      for (int64_t g = 0; g < groups; g++)
        predict_group(s, o, &opt->base, t, l, g, &x[l], out->P[t][l]);
    }
    case_free_result(&inverted);
    oracle_destroy(&o);
  }
  for (int32_t l = 0; l < s->layers; l++) {
    for (int i = 0; i < 2; i++) {
      free(x[l].Q[i]);
      free(x[l].d[i]);
    }
    free(x[l].V);
  }
}

/* ---- cases -----------------------------------------------------------------------------------*/

enum { STEPS = 6 };

/* Rotating rows is cheaper in the layers with few positions; the last two layers rotate gradients. */
static test_case *new_case(int32_t ranks, bool mean, rng *r) {
  test_case *s = case_create(STEPS, ranks);
  case_linear(s, 5, 3, true, 1);
  case_linear(s, 4, 6, false, 2);
  case_conv(s, 3, 4, 1, 1, 3, 2, true);
  ng_layer *l = case_conv(s, 4, 4, 2, 1, 4, 3, true);
  l->groups = 2;
  l->stride[1] = 2;
  l->padding[0] = 1;
  case_linear(s, 2, 3, true, 600); /* several tiles of a sample */
  case_set_positions(s);
  for (int32_t t = 0; t < STEPS; t++) {
    for (int32_t k = 0; k < ranks; k++) {
      for (int32_t c = 0; c < 2; c++) {
        case_micro *m = case_add_micro(s, t, k, 10 + (k + t + c) % 3);
        m->batch.reduction = mean ? NG_MEAN : NG_SUM;
        m->batch.loss_scale = mean ? 4.0 : 1.0;
      }
    }
  }
  case_fill(s, r);
  return s;
}

static case_result run_case(const test_case *s, const ng_options *o, const case_setup *how) {
  case_result r;
  case_run(s, o, how, &r);
  if (r.status != NG_OK) fail_msg("%s %s", ng_status_name(r.status), r.message);
  if (r.rank_gap != 0) fail_msg("ranks differ by %g", r.rank_gap);
  return r;
}

static void must_match(const test_case *s, const case_result *got, const case_result *want,
                       double tolerance, const char *what) {
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t l = 0; l < s->layers; l++) {
      const double gap = case_gap(s, t, l, got, want);
      if (!(gap <= tolerance))
        fail_msg("NG_TEST_SEED=%llu, %s, step %d, layer %d: %.3g > %.3g",
                 (unsigned long long)test_seed(), what, (int)t, (int)l, gap, tolerance);
    }
  }
}

static void directions_match_formulas(void **unused) {
  static const char *const options[] = {OPTIONS, OPTIONS " factor_blocks=2", EVERY("2")};
  rng r = {test_seed()};
  for (int i = 0; i < 3; i++) {
    const ng_options o = fixture_parse_options(options[i]);
    for (int32_t ranks = 1; ranks <= 3; ranks += 2) {
      test_case *s = new_case(ranks, ranks == 3, &r);
      case_result want;
      predict(s, &o, &want);
      for (int32_t k = 0; test_backend(k) != NULL; k++) {
        for (int half = 0; half < 2; half++) {
          const case_setup how = {.linalg = test_backend(k)->name,
                                  .threads = 1 + half,
                                  .pad = half,
                                  .layout = half == 1 ? PLANE_NHWC : PLANE_NCHW,
                                  .order = half == 1 ? NG_POSITIONS_FIRST : NG_SAMPLES_FIRST,
                                  .observed = half == 1 ? NG_F16 : NG_F32};
          case_result got = run_case(s, &o, &how);
          must_match(s, &got, &want, TOLERANCE, options[i]);
          case_free_result(&got);
        }
      }
      case_free_result(&want);
      case_destroy(&s);
    }
  }
}

/* The saved step is between a solve and the next one, so the file has a V that was measured. */
static void resumes_bit_for_bit(void **unused) {
  rng r = {test_seed()};
  const ng_options o = fixture_parse_options(OPTIONS);
  for (int32_t ranks = 1; ranks <= 3; ranks += 2) {
    test_case *s = new_case(ranks, false, &r);
    const char *file = in_folder("resume.safetensors");
    case_result whole = run_case(s, &o, &(case_setup){0});
    for (int32_t after = 1; after <= 4; after++) {
      case_result resumed = run_case(s, &o, &(case_setup){.resume = file, .resume_after = after});
      must_match(s, &resumed, &whole, 0, "resumed");
      case_free_result(&resumed);
    }
    case_free_result(&whole);
    case_destroy(&s);
  }
}

static void bad_input_has_one_answer(void **unused) {
  static const char *const refused[][2] = {
      {"solver=cholesky", "solver = cholesky: second moments need an eigenbasis; set eigen"},
      {"damping_split=pi", "damping_split = pi: the damping is added to second moments; set joint"},
      {"stat_scale=kaisa", "stat_scale = kaisa: second moments have the textbook scale"},
      {"stat_start=identity",
       "stat_start = identity: a new basis resets second moments; set first"},
      {"inverse_dtype=f64", "inverse_dtype = f64: bases of second moments are f32"},
      {"refresh_tolerance=0.1", ": second moments are measured in every step; set 0"},
      {"statistics=owner", "statistics = owner: every rank measures second moments; set all"},
      {"grad_worker_fraction=0.5", ": every rank needs the bases to measure second moments; set 1"},
      {"output_factor=diagonal",
       "output_factor = diagonal: second moments need a basis of G; set full"}};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    char line[96];
    fixture f;
    (void)snprintf(line, sizeof line, "method=ekfac %s", refused[i][0]);
    fixture_fails(&f, fixture_open(&f, line, NULL), NG_ERR_ARG, refused[i][1]);
    fixture_close(&f);
  }
}

/* Inputs are read again with their output gradient. */
static void inputs_are_lent(void **unused) {
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, g[12] = {1}, grad[6] = {0};
  const plane x = plane_of(a, 4, 2, NG_F32), y = plane_of(g, 4, 3, NG_F32);
  const plane D[2] = {plane_of(grad, 3, 2, NG_F32)};
  fixture f;
  fixture_ok(&f, fixture_open(&f, OPTIONS, NULL));
  fixture_ok(&f, fixture_add_linear(&f, "fc", D, NULL));
  fixture_ok(&f, ng_ready(f.p));
  fixture_ok(&f, fixture_begin(&f, 4));
  fixture_fails(&f, plane_observe_input(f.p, 0, &x, NG_COPY), NG_ERR_ARG,
                "the input of an EKFAC layer is read again with its output gradient; expected "
                "NG_BORROW");
  fixture_fails(&f, plane_observe_output_grad(f.p, 0, &y, NG_COPY), NG_ERR_STATE,
                "layer 'fc': an output gradient was observed without its input in this "
                "micro-batch");
  fixture_ok(&f, plane_observe_input(f.p, 0, &x, NG_BORROW));
  fixture_ok(&f, plane_observe_output_grad(f.p, 0, &y, NG_COPY));
  fixture_ok(&f, ng_step(f.p, 0.1));
  fixture_close(&f);
}

/* A refused input skips its output gradient and the step; the next step has the bits of a run without the skipped one. */
static void refused_input_skips_the_step(void **unused) {
  float out[2][6];
  for (int bad = 0; bad < 2; bad++) {
    float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, g[12] = {1, 0, 2, 0, -1, 1}, nan[8] = {NAN};
    const plane x = plane_of(a, 4, 2, NG_F32), y = plane_of(g, 4, 3, NG_F32),
                z = plane_of(nan, 4, 2, NG_F32), D[2] = {plane_of(out[bad], 3, 2, NG_F32)};
    fixture f;
    fixture_ok(&f, fixture_open(&f, OPTIONS, NULL));
    fixture_ok(&f, fixture_add_linear(&f, "fc", D, NULL));
    fixture_ok(&f, ng_ready(f.p));
    for (int t = 0; t < 3; t++) {
      const bool skips = bad == 1 && t == 2;
      for (int again = skips ? 0 : 1; again < 2; again++) {
        for (int i = 0; i < 6; i++)
          out[bad][i] = (float)(1 + i);
        const ng_status st = again == 0 ? NG_SKIPPED : NG_OK;
        fixture_ok(&f, fixture_begin(&f, 4));
        assert_int_equal(plane_observe_input(f.p, 0, again == 0 ? &z : &x, NG_BORROW), st);
        assert_int_equal(plane_observe_output_grad(f.p, 0, &y, NG_COPY), st);
        assert_int_equal(ng_step(f.p, 0.1), st);
      }
    }
    fixture_close(&f);
  }
  assert_memory_equal(out[0], out[1], sizeof out[0]);
}

/* A layer that runs twice, on images of different size: the output gradients come in the reverse order. If its second input is
 * refused, its output gradients must not be paired with the first one. */
static void a_layer_that_runs_twice_has_two_pairs(void **unused) {
  for (int bad = 0; bad < 2; bad++) {
    float a[12] = {1, 2, 3, 4}, b[8] = {bad == 1 ? NAN : 1}, g[18] = {1}, grad[6] = {1};
    const ng_array x = ng_array_nchw(a, 2, 2, 1, 3, NG_F32),
                   z = ng_array_nchw(b, 2, 2, 1, 2, NG_F32),
                   g1 = ng_array_nchw(g, 2, 3, 1, 3, NG_F32),
                   g2 = ng_array_nchw(g, 2, 3, 1, 2, NG_F32),
                   D = ng_array_matrix(grad, 3, 2, NG_F32);
    const ng_status st = bad == 1 ? NG_SKIPPED : NG_OK;
    ng_layer l = layer_of(NG_CONV2D, "conv", 2, 3);
    fixture f;
    l.bias = 0;
    fixture_ok(&f, fixture_open(&f, OPTIONS, NULL));
    fixture_ok(&f, ng_add_layer(f.p, &l, NULL));
    fixture_ok(&f, ng_bind_grad(f.p, 0, NG_WEIGHT, &D));
    fixture_ok(&f, ng_ready(f.p));
    fixture_ok(&f, fixture_begin(&f, 2));
    fixture_ok(&f, ng_observe_input(f.p, 0, &x, NG_BORROW));
    fixture_fails(&f, ng_observe_input(f.p, 0, &z, NG_BORROW), st,
                  bad ? "input is not finite" : "");
    fixture_fails(&f, ng_observe_output_grad(f.p, 0, &g2, NG_COPY), st,
                  bad ? "layer 'conv': the output gradient is not added to the statistics" : "");
    fixture_fails(&f, ng_observe_output_grad(f.p, 0, &g1, NG_COPY), st,
                  bad ? "an earlier array" : "");
    assert_int_equal(ng_step(f.p, 0.1), st);
    fixture_close(&f);
  }
}

enum { SAMPLES = 8, IN = 2, OUT = 3 };

/* A step with the arrays of step t, without an observation if `only_gradient`. */
static void take_step(fixture *f, int t, bool only_gradient, float *D) {
  float a[SAMPLES * IN], g[SAMPLES * OUT];
  const plane x = plane_of(a, SAMPLES, IN, NG_F32), y = plane_of(g, SAMPLES, OUT, NG_F32);
  for (int i = 0; i < SAMPLES * OUT; i++) {
    if (i < SAMPLES * IN) a[i] = draw_at(t, i);
    g[i] = draw_at(t + 10, i);
    if (i < OUT * IN) D[i] = draw_at(t + 20, i);
  }
  if (!only_gradient) {
    fixture_ok(f, fixture_begin(f, SAMPLES));
    fixture_ok(f, plane_observe_input(f->p, 0, &x, NG_BORROW));
    fixture_ok(f, plane_observe_output_grad(f->p, 0, &y, NG_BORROW));
  }
  assert_int_equal(ng_step(f->p, 0.1), only_gradient ? NG_UNOBSERVED : NG_OK);
}

/* Loaded A and G are solved in a step without an observation. The V of this basis then has the weight stat_decay, as in the run
 * that observed A and G itself. */
static void loaded_factors_start_the_second_moments(void **unused) {
  static const char *const set[] = {
      OPTIONS, OPTIONS "; method=natgrad solver=eigen damping_split=joint", OPTIONS};
  float D[3][OUT * IN];
  int32_t loaded = 0;
  for (int i = 0; i < 3; i++) {
    const plane grad[2] = {plane_of(D[i], OUT, IN, NG_F32)};
    const char *folder = in_folder("factors");
    fixture f;
    fixture_ok(&f, fixture_open(&f, set[i], NULL));
    fixture_ok(&f, fixture_add_linear(&f, "fc", grad, NULL));
    fixture_ok(&f, ng_ready(f.p));
    if (i == 2) fixture_ok(&f, ng_load_factors(f.p, folder, &loaded));
    take_step(&f, 0, i == 2, D[i]);
    if (i == 1) fixture_ok(&f, ng_save_factors(f.p, folder));
    take_step(&f, 1, false, D[i]);
    fixture_close(&f);
  }
  assert_int_equal(loaded, 1);
  assert_memory_not_equal(D[1], D[0], sizeof D[0]);
  for (int k = 0; k < OUT * IN; k++)
    assert_true(fabsf(D[2][k] - D[0][k]) <= 1e-5F);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(directions_match_formulas),
      cmocka_unit_test(resumes_bit_for_bit),
      cmocka_unit_test(bad_input_has_one_answer),
      cmocka_unit_test(inputs_are_lent),
      cmocka_unit_test(refused_input_skips_the_step),
      cmocka_unit_test(a_layer_that_runs_twice_has_two_pairs),
      cmocka_unit_test(loaded_factors_start_the_second_moments),
  };
  return cmocka_run_group_tests_name("ekfac", tests, make_folder, delete_folder);
}
