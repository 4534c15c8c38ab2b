/* t_oracle.c: the library against the oracle, with random models, data, options, ranks and setups.
 *
 * A failure prints the seed, the options and the setup.  NG_TEST_SEED repeats this case, NG_TEST_MULT multiplies
 * the number of cases.
 *
 * Tolerance.  P solves M P = D with M = G (x) A + damping.  A relative error e in the factors and in the solve
 * changes P by at most e condition(M) |P|, in the norm; the oracle returns the condition number.  In f32, e is at
 * most GROWTH u with u = 2^-24: each of two factors has a few u per sum, times the square root of its dimension (at
 * most 8 here), and eigenvectors are orthogonal to about four times as much.  The clip adds half the error of all
 * layers.  GROWTH is twice the largest value seen in 20,000 cases (31; printed as `worst`). */
#include "fixture.h"
#include "folder.h"
#include "oracle.h"
#include "layer_oracle.h"
#include "test_case.h"
#include "unit_test.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double GROWTH = 64;
/* With a larger condition number the bound is of no use, so the damping is raised. */
static const double MOST_CONDITION = 3e4;

static const char *draw_word(rng *r, const char *words) {
  static _Thread_local char word[4][32];
  static _Thread_local int turn;
  int64_t n = 1;
  for (const char *c = words; *c; c++)
    n += *c == ' ';
  for (int64_t k = rng_below(r, n); k > 0; k--)
    words = strchr(words, ' ') + 1;
  turn = (turn + 1) % 4;
  snprintf(word[turn], sizeof word[turn], "%.*s", (int)strcspn(words, " "), words);
  return word[turn];
}

static void draw_kronecker_options(rng *r, ng_options *o) {
  ng_options_set_defaults(o);
  fixture_set(o, "solver", draw_word(r, "eigen eigen-prediv cholesky cholesky"));
  bool eigen = ng_is_eigen(o->base.solver);
  fixture_set(o, "damping_split", draw_word(r, eigen ? "joint full pi root" : "full pi root"));
  /* Products of the decays below make eigenvalues of 0.03, for example, but not of 0.0317. An eigenvalue equal to the floor is above
   * it in f32 and below it in double. */
  fixture_set(o, "eigen_floor", eigen ? draw_word(r, "0 1e-10 0.0317") : "0");
  if (o->base.damping_split != NG_SPLIT_JOINT)
    fixture_set(o, "damping_leak", draw_word(r, "0 0 0 owner"));
  fixture_set_real(o, "damping", pow(10, -2.5 + 3 * rng_real(r)));
  fixture_set(o, "stat_decay", draw_word(r, "0 0.3 0.5 0.95 0.95 1"));
  fixture_set(o, "stat_start", draw_word(r, "first first identity zero"));
  fixture_set(o, "stat_scale", draw_word(r, "textbook textbook kaisa mpd-kfac chainerkfac"));
  fixture_set(o, "positions", draw_word(r, "expand expand reduce"));
  fixture_set(o, "stat_batch", draw_word(r, "0 0 0 1 2"));
  fixture_set(o, "calls", draw_word(r, "mean mean ema last"));
  fixture_set(o, "stat_period", draw_word(r, "1 1 2"));
  fixture_set(o, "solve_period", draw_word(r, "1 1 2 3"));
  fixture_set(o, "factor_blocks", draw_word(r, "1 1 1 2 3"));
  fixture_set(o, "max_factor", draw_word(r, "0 0 0 7 12"));
  fixture_set(o, "clip", draw_word(r, "kl kl rescale none"));
  fixture_set_real(o, "kl_clip", pow(10, -4 * rng_real(r)));
  fixture_set(o, "spatial", draw_word(r, "full factored"));
  fixture_set(o, "output_factor", draw_word(r, "full full full diagonal"));
  fixture_set(o, "statistics", draw_word(r, "all all owner local"));
  fixture_set(o, "placement", "round-robin"); /* the oracle's owners */
}

static void draw_rankone_options(rng *r, ng_options *o) {
  *o = fixture_parse_options(
      draw_word(r, "method=eva method=eva-natgrad method=eva-f method=adasgd"));
  fixture_set(o, "stat_scale", draw_word(r, "eva textbook"));
  if (o->base.stat_scale == NG_SCALE_TEXTBOOK)
    fixture_set(o, "positions", draw_word(r, "expand reduce"));
  fixture_set(o, "stat_decay", draw_word(r, "0 0.05 0.5 0.95 1"));
  fixture_set(o, "stat_start", draw_word(r, "first first zero"));
  fixture_set(o, "stat_batch", draw_word(r, "0 0 1 2 16"));
  fixture_set(o, "calls", draw_word(r, "mean ema last"));
  fixture_set(o, "stat_period", draw_word(r, "1 1 2"));
  fixture_set(o, "clip", draw_word(r, "kl kl rescale none"));
  fixture_set_real(o, "damping", pow(10, -3 + 3 * rng_real(r)));
  fixture_set_real(o, "kl_clip", pow(10, -4 * rng_real(r)));
}

/* Change the options of a model with factors or vectors so that norm_predict can predict it with norms. */
static void draw_norm_options(rng *r, ng_options *o) {
  fixture_set(o, "norm_block", draw_word(r, "unit full diagonal"));
  fixture_set(o, "norm_damping", draw_word(r, "1 16"));
  fixture_set(o, "stat_start", "first");
  fixture_set(o, "calls", "mean");
  fixture_set(o, "stat_scale", "textbook");
  if (o->base.statistics != NG_STATISTICS_OWNER || o->base.norm_block != NG_NORM_FULL)
    fixture_set(o, "statistics", "all");
  if (strcmp(o->base.method, "natgrad") != 0) return;
  fixture_set(o, "solve_period", "1");
  fixture_set(o, "stat_period", draw_word(r, "1 2"));
  if (o->base.damping_split != NG_SPLIT_JOINT)
    fixture_set(o, "damping_leak", draw_word(r, "0 owner"));
}

static void add_random_norm(rng *r, test_case *s) {
  const int64_t groups = 1 + rng_below(r, 2);
  ng_layer *l = case_norm(s, (ng_norm_kind)rng_between(r, 1, 3), groups * rng_between(r, 1, 4),
                          1 + rng_below(r, 3), 1 + rng_below(r, 2));
  l->norm_input = rng_below(r, 3) ? NG_NORM_RAW : NG_NORM_NORMALISED;
  l->norm_eps = 1e-3;
  if (l->norm_kind == NG_GROUP_NORM) l->groups = groups;
  l->norm_no_weight = rng_below(r, 4) == 0;
  l->bias = l->norm_no_weight || rng_below(r, 4) > 0;
}

static void add_random_embedding(rng *r, test_case *s) {
  const int64_t words = rng_below(r, 8) ? rng_between(r, 1, 9) : rng_between(r, 250, 300);
  ng_layer *l = case_embedding(s, words, rng_between(r, 1, 6), rng_between(r, 1, 5));
  if (rng_below(r, 2)) l->token_dtype = NG_I32;
}

static void add_random_layer(rng *r, test_case *s, const ng_options *o, bool norms) {
  const bool factors = strcmp(o->base.method, "natgrad") == 0;
  if (norms && (s->layers == 0 || rng_below(r, 3) == 0)) {
    add_random_norm(r, s);
    return;
  }
  if (factors && o->base.positions != NG_POSITIONS_REDUCE && rng_below(r, 5) == 0) {
    add_random_embedding(r, s);
    return;
  }
  bool bias = rng_below(r, 3) > 0;
  if (rng_below(r, 2)) {
    case_linear(s, 1 + rng_below(r, factors ? 8 : 40), 1 + rng_below(r, 6), bias,
                1 + 2 * rng_below(r, 2));
    return;
  }
  int64_t groups = rng_below(r, 3) ? 1 : 2;
  int64_t k = 1 + rng_below(r, 3), kw = rng_below(r, 3) ? k : 1 + rng_below(r, 3);
  /* A = S (x) C needs more channels than kernel positions. */
  const int64_t channels = 1 + rng_below(r, o->base.spatial == NG_SPATIAL_FACTORED ? 11 : 4);
  ng_layer *l = case_conv(s, groups * channels, groups * (1 + rng_below(r, 3)), k, kw,
                          3 + rng_below(r, 4), 3 + rng_below(r, 4), bias);
  l->groups = groups;
  bool plain = rng_below(r, 2); /* 3x3, stride 1, padding 1 has a fast implementation */
  for (int i = 0; i < 2; i++) {
    if (plain) {
      l->kernel[i] = 3;
      l->padding[i] = 1;
      l->image[i] += 2;
      continue;
    }
    l->stride[i] = 1 + rng_below(r, 2);
    l->padding[i] = rng_below(r, 4); /* the padding may exceed the kernel */
    int64_t room = l->image[i] + 2 * l->padding[i];
    l->dilation[i] = (l->kernel[i] - 1) * 2 + 1 <= room ? 1 + rng_below(r, 2) : 1;
  }
}

static test_case *draw_case(rng *r, const ng_options *o, bool norms) {
  static const int32_t ranks_of[] = {1, 1, 1, 2, 3, 5};
  bool even = o->base.calls == NG_CALLS_EMA;
  bool local = o->base.statistics == NG_STATISTICS_LOCAL;
  test_case *s = case_create(2 + (int32_t)rng_below(r, 3), ranks_of[rng_below(r, 6)]);
  int64_t layers = 1 + rng_below(r, 4);
  for (int64_t l = 0; l < layers; l++) {
    add_random_layer(r, s, o, norms);
    if (rng_below(r, 6) == 0) s->uses[l] = 2;
  }
  if (layers > 1 && rng_below(r, 8) == 0) s->layer[layers - 1].frozen = 1;
  case_set_positions(s);
  for (int32_t t = 0; t < s->steps; t++) {
    if (rng_below(r, 4) == 0) s->damping[t] = o->base.damping * (0.5 + 2 * rng_real(r));
    int64_t calls = 1 + rng_below(r, 3), B = 1 + rng_below(r, 5);
    for (int32_t k = 0; k < s->ranks; k++) {
      int64_t mine = even ? calls : 1 + rng_below(r, 3);
      if (k > 0 && !even && !local && rng_below(r, 5) == 0) mine = 0;
      for (int64_t c = 0; c < mine; c++) {
        case_micro *m = case_add_micro(s, t, k, even ? B : 1 + rng_below(r, 5));
        m->batch.reduction = rng_below(r, 3) ? NG_MEAN : NG_SUM;
        m->batch.loss_scale = rng_below(r, 3) ? 1 : rng_below(r, 2) ? 64 : 0.5;
      }
    }
  }
  case_fill(s, r);
  for (int32_t t = 0; t < s->steps; t++) { /* scale g by loss_scale */
    for (int32_t k = 0; k < s->ranks; k++) {
      for (int32_t c = 0; c < s->calls[t][k]; c++) {
        case_micro *m = &s->micro[t][k][c];
        for (int32_t l = 0; l < s->layers; l++) {
          for (int32_t u = 0; u < s->uses[l]; u++) {
            int64_t n = case_output_count(s, l, m->batch.samples);
            for (int64_t i = 0; i < n; i++)
              m->g[l][u][i] *= m->batch.loss_scale;
          }
        }
      }
    }
  }
  return s;
}

static case_setup draw_setup(rng *r, const test_case *s) {
  static const ng_dtype types[] = {NG_F32, NG_F32, NG_BF16, NG_F16};
  case_setup k = {0};
  k.linalg = rng_below(r, 2) ? "ref" : NULL;
  k.threads = s->ranks > 1 ? 1 : 1 + (int32_t)rng_below(r, 2);
  k.observed = types[rng_below(r, 4)];
  k.pad = rng_below(r, 2) * 3;
  k.layout = rng_below(r, 2) ? PLANE_NCHW : PLANE_NHWC;
  k.order = rng_below(r, 2) ? NG_SAMPLES_FIRST : NG_POSITIONS_FIRST;
  k.declare_positions = rng_below(r, 2);
  k.observe_unwanted = rng_below(r, 4) == 0;
  k.reverse = s->ranks == 1 && rng_below(r, 4) == 0;
  return k;
}

static void print_case(const test_case *s, const ng_options *o, const case_setup *k) {
  print_message("# ranks %d steps %d layers %d, linalg %s threads %d\n", s->ranks, s->steps,
                s->layers, k->linalg ? k->linalg : "best", k->threads);
  for (int32_t i = 0; i < ng_option_count(); i++) {
    ng_option_info info = {.struct_size = sizeof info};
    char value[128];
    if (ng_option_at(i, &info) != NG_OK) continue;
    if (ng_options_get(o, info.name, value, sizeof value) != NG_OK) continue;
    if (strcmp(value, info.standard) != 0) print_message("#   %s = %s\n", info.name, value);
  }
}

static double largest_condition(const test_case *s, const case_result *r, int32_t t) {
  double c = 0;
  for (int32_t l = 0; l < s->layers; l++)
    c = fmax(c, r->condition[t][l]);
  return c;
}

static void predict_kronecker(const test_case *s, const ng_options *o, case_result *out) {
  case_predict(s, o, out, NULL);
}

static void predict_well_conditioned(test_case *s, ng_options *o, bool norms, case_result *out) {
  const bool factors = strcmp(o->base.method, "natgrad") == 0;
  for (int i = 0; i < 12; i++) {
    if (norms)
      norm_predict(s, o, factors ? predict_kronecker : rankone_predict, out);
    else
      (factors ? predict_kronecker : rankone_predict)(s, o, out);
    double c = 0;
    for (int32_t t = 0; t < s->steps; t++)
      c = fmax(c, largest_condition(s, out, t));
    if (c < MOST_CONDITION) return;
    case_free_result(out);
    o->base.damping *= 10;
    for (int32_t t = 0; t < s->steps; t++)
      s->damping[t] *= 10;
  }
  fail_msg("the condition number is too large at every damping");
}

/* Return the largest error in units of `unit` times the condition, and describe it in `message`. */
static double compute_error(const test_case *s, const case_result *x, const case_result *y,
                            char message[160]) {
  double worst = 0;
  message[0] = '\0';
  for (int32_t t = 0; t < s->steps; t++) {
    double all = largest_condition(s, y, t);
    double e = fabs(x->nu[t] - y->nu[t]) / y->nu[t] / (unit * fmax(all, 1));
    if (!(e <= worst)) {
      worst = e;
      snprintf(message, 160, "step %d: nu %.9g, should be %.9g", t, x->nu[t], y->nu[t]);
    }
    for (int32_t l = 0; l < s->layers; l++) {
      e = case_gap(s, t, l, x, y) / (unit * fmax(all, 1));
      if (e <= worst) continue;
      worst = e;
      int64_t n = case_weight_count(s, l), at = 0;
      for (int64_t i = 0; i < n; i++) {
        if (fabs(x->P[t][l][i] - y->P[t][l][i]) > fabs(x->P[t][l][at] - y->P[t][l][at])) at = i;
      }
      snprintf(message, 160, "step %d layer %d entry %d: %.9g, should be %.9g; condition %.3g", t,
               l, (int)at, x->P[t][l][at], y->P[t][l][at], y->condition[t][l]);
    }
  }
  return worst;
}

/* Move some inputs far from 0, where rounding to f32 is off by up to 0.3 % of the standard deviation of an input. */
static void move_inputs(test_case *s, rng *r, case_setup *setup) {
  for (int32_t t = 0; t < s->steps; t++) {
    for (int32_t k = 0; k < s->ranks; k++) {
      for (int32_t c = 0; c < s->calls[t][k]; c++) {
        case_micro *m = &s->micro[t][k][c];
        for (int32_t l = 0; l < s->layers; l++) {
          const bool raw = s->layer[l].kind == NG_NORM && s->layer[l].norm_input == NG_NORM_RAW;
          const double far = raw && rng_below(r, 3) == 0 ? 1e5 : 0;
          if (far > 0) setup->observed = NG_F32;
          for (int64_t i = 0; far > 0 && i < case_input_count(s, l, m->batch.samples); i++)
            m->a[l][0][i] = (double)(float)(m->a[l][0][i] + far);
        }
      }
    }
  }
}

/* family: 0 factors, 1 vectors, 2 factors with norms, 3 vectors with norms. */
static double run_family_case(uint64_t seed, int family) {
  rng r = {seed};
  ng_options o;
  const bool norms = family >= 2;
  (family % 2 == 0 ? draw_kronecker_options : draw_rankone_options)(&r, &o);
  if (norms) draw_norm_options(&r, &o);
  test_case *s = draw_case(&r, &o, norms);
  case_setup setup = draw_setup(&r, s);
  if (norms) move_inputs(s, &r, &setup);
  const char *fraction = s->ranks == 2 ? draw_word(&r, "0 0.5 1") : draw_word(&r, "0 1");
  if (s->ranks > 1 && family % 2 == 0) fixture_set(&o, "grad_worker_fraction", fraction);
  const double allowed = family == 1 ? RANKONE_GROWTH : GROWTH;
  case_result want, got;
  char message[160];
  predict_well_conditioned(s, &o, norms, &want);
  case_run(s, &o, &setup, &got);
  double e = INFINITY;
  if (got.status == NG_OK) e = compute_error(s, &got, &want, message);
  for (int32_t t = 0; t < s->steps && family == 1 && want.inner[t] > 0; t++) {
    const double gap = fabs(got.inner[t] - want.inner[t]) / want.inner[t];
    e = fmax(e, gap / (unit * fmax(largest_condition(s, &want, t), 1)));
  }
  if (got.status != NG_OK || !(e <= allowed) || got.rank_gap > 0) {
    print_case(s, &o, &setup);
    if (got.status != NG_OK) {
      snprintf(message, sizeof message, "%s %.120s", ng_status_name(got.status), got.message);
    }
    print_message("NG_TEST_SEED=%" PRIu64 ": %s (%.3g units, ranks differ by %.3g)\n", seed,
                  message, e, got.rank_gap);
    e = INFINITY;
  }
  case_free_result(&want);
  case_free_result(&got);
  case_destroy(&s);
  return e;
}

static double run_kronecker_case(uint64_t seed) { return run_family_case(seed, 0); }
static double run_rankone_case(uint64_t seed) { return run_family_case(seed, 1); }
static double run_norm_case(uint64_t seed) { return run_family_case(seed, 2 + (int)(seed % 2)); }

static void kronecker_models_match_the_oracle(void **state) {
  test_cases(run_kronecker_case, 200, GROWTH);
}

static void rankone_models_match_the_oracle(void **state) {
  test_cases(run_rankone_case, 200, RANKONE_GROWTH);
}

static void models_with_norms_match_the_oracle(void **state) {
  test_cases(run_norm_case, 200, GROWTH);
}

/* Full norm blocks of few samples with dampings of 1e-1 to 1e-4 are nearly singular, so the library keeps them in
 * double up to order 128.  Gradients of samples are f32: 1e-5 of the largest entry. */
static double run_nearly_singular_case(uint64_t seed) {
  rng r = {seed};
  ng_options o = fixture_parse_options("method=natgrad norm_block=full norm_damping=1 clip=none "
                                       "solve_period=1");
  fixture_set_real(&o, "damping", pow(10, -(double)rng_between(&r, 1, 4)));
  fixture_set(&o, "stat_decay", draw_word(&r, "0 0.5"));
  fixture_set(&o, "damping_leak", draw_word(&r, "0 0 owner"));
  fixture_set(&o, "statistics", draw_word(&r, "all owner"));
  if (rng_below(&r, 4) == 0) fixture_set(&o, "refresh_tolerance", "1e-9");
  test_case *s = case_create(3, (int32_t)rng_between(&r, 1, 3));
  case_norm(s, NG_BATCH_NORM, 5, 1, 1)->norm_eps = 1e-3;
  case_set_positions(s);
  const int64_t calls = rng_between(&r, 1, 2), n = rng_between(&r, 2, 8);
  for (int64_t k = 0; k < 3 * calls * s->ranks; k++)
    (void)case_add_micro(s, (int32_t)(k % 3), (int32_t)(k / 3 % s->ranks), n);
  case_fill(s, &r);
  const case_setup setup = {.threads = 1, .resume = in_folder("state"), .resume_after = 1};
  case_result want, got;
  double e = INFINITY;
  norm_predict(s, &o, predict_kronecker, &want);
  case_run(s, &o, &setup, &got);
  for (int32_t t = 0; t < 3 && got.status == NG_OK; t++)
    e = fmax(t == 0 ? 0 : e, case_gap(s, t, 0, &got, &want));
  if (!(e <= 1e-5)) {
    print_case(s, &o, &setup);
    print_message("NG_TEST_SEED=%" PRIu64 ": %g %s\n", seed, e, got.message);
    e = INFINITY;
  }
  case_free_result(&want);
  case_free_result(&got);
  case_destroy(&s);
  return e;
}

static void nearly_singular_norms_match_the_oracle(void **state) {
  test_cases(run_nearly_singular_case, 100, 1e-5);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(kronecker_models_match_the_oracle),
                                     cmocka_unit_test(rankone_models_match_the_oracle),
                                     cmocka_unit_test(models_with_norms_match_the_oracle),
                                     cmocka_unit_test(nearly_singular_norms_match_the_oracle)};
  return cmocka_run_group_tests_name("oracle", tests, make_folder, delete_folder);
}
