/* t_golden.c: results of published K-FAC programs for cases without a recording in tests/golden: schedules of the
 * damping and of the decay, different periods, sequences, a loss scale, local statistics.  Compare the oracle with
 * these numbers, then the library with published option names and each linear algebra.
 *
 * The numbers have nine significant digits of a computation in double.  T1 is a linear layer 3 -> 2 with a bias; T3
 * has two such layers on two ranks. */
#include "fixture.h"
#include "oracle.h"
#include "ranks.h"
#include "test_case.h"
#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The largest listed numbers are about 1. */
static const double digits = 6e-9;
/* The published programs in f32 differ from the numbers by 1e-6, and by 3e-6 in nearly singular steps. */
static const double tolerance = 1e-5;
static const double kl_clip = 1e-3;

/* ---- numbers of each step: nu, then the rows w1 w2 w3 b of each listed layer -----------------*/

static const double t1_k_eigen[] = {
    0.966638501,  -0.0355264528, -0.0365448741, -0.0359629191, -0.000581955025, -0.0590351916,
    -0.261947654, -0.145997675,  -0.115949978,  0.307686359,   -0.0952853514,   0.168408436,
    0.0187811195, 0.152088628,   0.0927887558,  0.0652102165,  -0.0421930164,   -0.179975696,
    0.336345161,  -0.0510029776, 0.301546274,   -0.0389161499, 0.0161157703,    -0.0371960235,
    -0.168909658, -0.0271304681, 0.0134207406,
};

static const double t1_k_sched_prediv[] = {
    0.966638501,  -0.0355264528, -0.0365448741, -0.0359629191, -0.000581955025, -0.0590351916,
    -0.261947654, -0.145997675,  -0.115949978,  0.316531472,   -0.0963140769,   0.167132353,
    0.0163988866, 0.150283951,   0.0879062323,  0.0540439735,  -0.0394237522,   -0.169773313,
    0.340558509,  -0.0510675408, 0.297725721,   -0.0384986771, 0.0167584849,    -0.0360378817,
    -0.166445958, -0.026313419,  0.0129659502,
};

static const double t1_k_sched_plain[] = {
    0.966638501,  -0.0355264528, -0.0365448741, -0.0359629191, -0.000581955025, -0.0590351916,
    -0.261947654, -0.145997675,  -0.115949978,  0.318127154,   -0.0959703038,   0.166307002,
    0.0162452447, 0.149620731,   0.0874784196,  0.0535007684,  -0.0391145471,   -0.168790622,
    0.340558509,  -0.0510675408, 0.297725721,   -0.0384986771, 0.0167584849,    -0.0360378817,
    -0.166445958, -0.026313419,  0.0129659502,
};

static const double t1_k_freq[] = {
    0.966638501,  -0.0355264528, -0.0365448741, -0.0359629191, -0.000581955025, -0.0590351916,
    -0.261947654, -0.145997675,  -0.115949978,  0.316531472,   -0.0963140769,   0.167132353,
    0.0163988866, 0.150283951,   0.0879062323,  0.0540439735,  -0.0394237522,   -0.169773313,
    0.360850016,  -0.0532432693, 0.282452518,   -0.0383715109, 0.0198290112,    -0.0218657289,
    -0.15185807,  -0.0134895924, 0.011168182,   0.352737696,   0.064665222,     -0.209597994,
    0.0104411232, -0.0722987984, -0.0207669063, 0.0184655467,  0.121876491,     0.190191196,
    0.43357504,   0.158807155,   0.0208253858,  0.256535911,   0.130305008,     -0.0925027642,
    -0.154415898, -0.0430198328, 0.065977242,   0.216542108,   -0.0816913872,   -0.00042059653,
    0.266129689,  -0.0726805501, 0.0441056081,  0.0778907599,  -0.252383144,    -0.0387760304,
};

static const double t1_k_expdecay[] = {
    0.189978968, -0.450398388, -0.569971809,  -0.50164414,  -0.0683276691, -0.892994555,
    -1.20241341, -1.02560264,  -0.176810775,  0.0808088322, -0.272915166,  0.371176591,
    0.247809689, 0.694299807,  0.512740645,   0.267329254,  -0.10585626,   -0.824795872,
    0.101430821, 0.0326949834, 0.862179294,   0.0423830914, 0.0129174772,  -0.680364156,
    -0.88611437, -0.676384816, 0.00530578663,
};

static const double t1_l_fac3[] = {
    0.392674975,   -0.0677748171, -0.0819853975, -0.0738650658, -0.00812033162, -0.102315325,
    -0.140421387,  -0.118646494,  -0.0217748924, 0.272658086,   0.0142987845,   0.167174145,
    0.0249828181,  0.0142453781,  0.0349669421,  0.207053627,   -0.107483323,   -0.189933686,
    0.290292875,   0.0180091409,  0.285615409,   -0.0905185538, -0.144703593,   -0.0321874258,
    -0.0782594525, -0.0079161736, 0.0323616696,
};

static const double t1_l_seq[] = {
    0.144012792,  -0.176408818,  -0.212775456, -0.19199452,  -0.0207809363, -0.310689175,
    -0.410729977, -0.353563804,  -0.057166173, 0.0530239459, 0.199398802,   0.943291716,
    0.148786444,  -0.0674831439, 0.309952127,  0.924595447,  0.038256819,   -0.362260411,
    0.0750084502, 0.0387892144,  0.361952127,  0.131391305,  0.123469454,   -0.791122655,
    -0.596854319, -0.667181554,  0.165254802,
};

static const double t3_mpd_inverse[] = {
    0.580181546,   -0.025881394,   0.0920862474,  0.0445635878,   0.0939266424,   -0.0382203848,
    0.0313408595,  -0.184136245,   -0.194554481,  -0.00285895766, 0.0106929088,   0.02049615,
    0.0311401436,  -0.0757364703,  -0.0538171101, 0.0251797861,   0.134555009,    0.364699702,
    -0.0128459631, 0.148958415,    0.026050982,   0.0518625936,   -0.00863155191, -0.0516142773,
    -0.0671041951, -0.0779635242,  0.20825113,    -0.0588817417,  0.141938425,    -0.088416939,
    -0.0654443283, -0.00743830957, 0.00616201573, 0.0954751253,   0.398705164,    0.00349347459,
    0.00879308595, 0.0186750165,   0.0202420559,  -0.0579659494,  -0.0427830054,  0.0111007575,
    0.0920889425,  0.0469042579,   0.102372137,   0.274969116,    -0.0910200969,  -0.0335504886,
    -0.0664813024, -0.184141561,   0.0569177282,
};

static const double t3_dp_eigen[] = {
    0.414232156,  -0.0111513384, 0.226129114,   -0.0592277482, -0.0641018797, -0.0459451651,
    0.360263598,  -0.379402916,  -0.444610334,  -0.071117826,  0.00368549134, 0.00534828582,
    0.101954816,  -0.169884322,  -0.0407402797, -0.0291245045, 0.187679756,   0.209544758,
    0.0489688448, 0.171221195,   0.0886907035,  0.0529624783,  -0.0619625954, -0.0891979944,
    -0.122718719, -0.0810081646, 0.452315761,   -0.374582498,  0.117165166,   -0.44686746,
    -0.276571588, 0.209125856,   -0.0520772912, 0.29932573,    0.372205042,   0.0426310528,
    0.0281029656, 0.0453462219,  0.0036202254,  0.013623752,   -0.041404585,  0.0995938226,
    0.114626761,  0.264880612,   0.222840767,   0.275073626,   -0.0597521757, -0.184082049,
    -0.15255245,  -0.19451591,   0.0377465509,
};

typedef struct golden {
  const char *name, *system, *variant;
  int32_t positions, ranks, layers, listed, steps; /* layers; layers with results in the list */
  int64_t stat_period, solve_period;
  int special;
  const double *expect;
} golden;

enum { SCALER = 1, SCHED = 2, EXPDECAY = 4, NOT_PREDIV = 8 };

/* positions, ranks, layers, listed, steps, stat_period, solve_period, special, numbers */
static const golden cases[] = {
    {"T1-K-eigen", "KAISA", "eigen", 1, 1, 1, 1, 3, 1, 1, 0, t1_k_eigen},
    {"T1-K-scaler", "KAISA", "eigen", 1, 1, 1, 1, 1, 1, 1, SCALER, t1_k_eigen},
    {"T1-K-seq", "KAISA", "eigen", 2, 1, 1, 1, 3, 1, 1, 0, t1_k_eigen},
    {"T1-K-sched prediv", "KAISA", "eigen", 1, 1, 1, 1, 3, 1, 2, SCHED, t1_k_sched_prediv},
    {"T1-K-sched plain", "KAISA", "eigen", 1, 1, 1, 1, 3, 1, 2, SCHED | NOT_PREDIV,
     t1_k_sched_plain},
    {"T1-K-freq", "KAISA", "eigen", 1, 1, 1, 1, 6, 2, 4, 0, t1_k_freq},
    {"T1-K-expdecay", "KAISA", "eigen", 1, 1, 1, 1, 3, 1, 1, EXPDECAY, t1_k_expdecay},
    {"T1-L-fac3", "DP-KFAC repo", "inverse", 1, 1, 2, 1, 3, 3, 1, 0, t1_l_fac3},
    {"T1-L-seq", "DP-KFAC repo", "eigen", 2, 1, 2, 1, 3, 1, 1, 0, t1_l_seq},
    {"T3-MPD-inverse", "DP-KFAC repo", "inverse", 1, 2, 2, 2, 3, 1, 1, 0, t3_mpd_inverse},
    {"T3-DP-eigen", "DP-KFAC repo", "eigen_dp", 1, 2, 2, 2, 3, 1, 1, 0, t3_dp_eigen},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static bool is_kaisa(const golden *c) { return strcmp(c->system, "KAISA") == 0; }

/* ---- the runs --------------------------------------------------------------------------------*/

enum { ROWS = 4, IN = 3, OUT = 2, COLS = IN + 1 };

/* Return n numbers of the generator of spec/kfac.md 19. */
static double *new_pattern(int64_t n, int64_t m1, int64_t b, int64_t mod, double s) {
  double *v = zeros(n);
  for (int64_t k = 0; k < n; k++)
    v[k] = ((double)((m1 * k + b) % mod) - (double)(mod - 1) / 2) / s;
  return v;
}

/* D += g' [x | 1] / ranks */
static void add_gradient(double *D, const double *x, const double *g, int32_t ranks) {
  for (int64_t r = 0; r < ROWS; r++) {
    for (int64_t i = 0; i < OUT; i++) {
      for (int64_t j = 0; j < COLS; j++)
        D[i * COLS + j] += g[r * OUT + i] * (j < IN ? x[r * IN + j] : 1) / ranks;
    }
  }
}

static void observe_pattern(test_case *s, const golden *c, int32_t t, int32_t r) {
  case_micro *m = case_add_micro(s, t, r, ROWS / c->positions);
  const double scale = c->special & SCALER ? 4 : 1;
  m->batch.loss_scale = scale;
  for (int32_t l = 0; l < c->layers; l++) {
    const int64_t shift = t + r + 2 * l;
    m->a[l][0] = new_pattern(ROWS * IN, 7, 3 + shift, 11, 4);
    m->g[l][0] = new_pattern(ROWS * OUT, 5, 2 + shift, 7, 8);
    add_gradient(s->D[t][l], m->a[l][0], m->g[l][0], c->ranks);
    for (int i = 0; i < ROWS * OUT; i++)
      m->g[l][0][i] *= scale;
  }
}

static test_case *new_case(const golden *c) {
  test_case *s = case_create(c->steps, c->ranks);
  for (int32_t l = 0; l < c->layers; l++)
    case_linear(s, IN, OUT, true, c->positions);
  case_set_positions(s);
  s->decay_moves = (c->special & EXPDECAY) != 0;
  for (int32_t t = 0; t < c->steps; t++) {
    for (int32_t l = 0; l < c->layers; l++)
      s->D[t][l] = zeros(case_weight_count(s, l));
    if (c->special & SCHED) s->damping[t] = 0.01 * (t + 1);
    s->decay[t] = fmin(1 - 1 / fmax(t, 1), 0.95);
    for (int32_t r = 0; r < c->ranks; r++)
      observe_pattern(s, c, t, r);
  }
  return s;
}

/* ---- options for the oracle; published names for the library ---------------------------------*/

static ng_options options_by_hand(const golden *c) {
  ng_options o;
  memset(&o, 0, sizeof o);
  const bool kaisa = is_kaisa(c), eigen = c->variant[0] == 'e';
  fixture_set(&o, "solver",
              !eigen                                ? "cholesky"
              : kaisa && !(c->special & NOT_PREDIV) ? "eigen-prediv"
                                                    : "eigen");
  fixture_set_real(&o, "eigen_floor", kaisa ? 0 : 1e-10);
  fixture_set_real(&o, "damping", 0.01);
  fixture_set(&o, "damping_split", eigen ? "joint" : "pi");
  fixture_set(&o, "damping_leak", kaisa ? "0" : "owner");
  fixture_set_real(&o, "stat_decay", kaisa ? 0.9 : 0.1);
  fixture_set(&o, "stat_start", "identity");
  fixture_set(&o, "stat_scale", kaisa ? "kaisa" : "mpd-kfac");
  fixture_set(&o, "positions", kaisa ? "expand" : "reduce");
  fixture_set(&o, "calls", kaisa ? "mean" : "last");
  fixture_set_real(&o, "stat_period", (double)c->stat_period);
  fixture_set_real(&o, "solve_period", (double)c->solve_period);
  fixture_set_real(&o, "factor_blocks", 1);
  fixture_set(&o, "output_factor", "full");
  fixture_set(&o, "clip", "kl");
  fixture_set_real(&o, "kl_clip", kl_clip);
  fixture_set(&o, "statistics", strstr(c->variant, "_dp") != NULL ? "local" : "all");
  fixture_set(&o, "placement", "round-robin"); /* the owners of the oracle */
  return o;
}

static void set_real_option(ng_options *o, const char *name, double value) {
  char message[256] = "", text[32];
  (void)snprintf(text, sizeof text, "%.17g", value);
  if (ng_options_set_published(o, name, text, NULL, message, sizeof message) != NG_OK)
    fail_msg("%s = %s: %s", name, text, message);
}

static ng_options options_by_name(const golden *c) {
  ng_options o;
  char message[256] = "";
  const bool kaisa = is_kaisa(c);
  ng_options_set_defaults(&o);
  if (ng_options_set_system(&o, c->system, c->variant, message, sizeof message) != NG_OK)
    fail_msg("%s %s: %s", c->system, c->variant, message);
  set_real_option(&o, "damping", 0.01);
  set_real_option(&o, "factor_decay", 0.9);
  set_real_option(&o, "kl_clip", kl_clip);
  set_real_option(&o, kaisa ? "factor_update_steps" : "fac_update_freq", (double)c->stat_period);
  set_real_option(&o, kaisa ? "inv_update_steps" : "kfac_update_freq", (double)c->solve_period);
  if (c->special & NOT_PREDIV) fixture_set(&o, "solver", "eigen");
  return o;
}

/* ---- comparing -------------------------------------------------------------------------------*/

/* Return the largest difference of nu and results from the list; `where`: its step and layer. */
static double largest_error(const test_case *s, const golden *c, const case_result *r,
                            char where[64]) {
  const double *e = c->expect;
  double worst = 0;
  where[0] = '\0';
  for (int32_t t = 0; t < c->steps; t++) {
    double d = fabs(r->nu[t] - *e++);
    for (int32_t l = -1; l < c->listed; l++) {
      for (int64_t i = 0; l >= 0 && i < case_weight_count(s, l); i++) {
        double x = fabs(r->P[t][l][i] - *e++);
        d = isfinite(x) ? fmax(d, x) : (double)INFINITY;
      }
      if (d > worst) {
        worst = d;
        snprintf(where, 64, "step %d layer %d", t, l);
      }
    }
  }
  return worst;
}

static void the_oracle_has_the_published_numbers(void **state) {
  for (int i = 0; i < CASES; i++) {
    test_case *s = new_case(&cases[i]);
    ng_options o = options_by_hand(&cases[i]);
    case_result r;
    char where[64];
    case_predict(s, &o, &r, NULL);
    double e = largest_error(s, &cases[i], &r, where);
    if (!(e <= digits)) fail_msg("oracle, %s: off by %.3g at %s", cases[i].name, e, where);
    case_free_result(&r);
    case_destroy(&s);
  }
}

static const char *algebras[] = {"ref", "cpu"};

static bool is_built_in(const char *name) {
  ng_component c = {.struct_size = sizeof c};
  for (int32_t i = 0; ng_component_info(i, &c) == NG_OK; i++) {
    assert_int_equal(ng_component_info(i, &c), NG_OK);
    if (strcmp(c.kind, "linalg") == 0 && strcmp(c.name, name) == 0) return c.built_in != 0;
  }
  return false;
}

static void check_library_case(const golden *c, const char *linalg) {
#if defined(NG_TEST_MPI)
  if (c->ranks > ranks_process_count()) return;
#endif
  test_case *s = new_case(c);
  ng_options o = options_by_name(c);
  case_setup setup = {.linalg = linalg};
  case_result r;
  char where[64];
  case_run(s, &o, &setup, &r);
  if (r.status != NG_OK) {
    fail_msg("%s, %s: %s %s", c->name, linalg, ng_status_name(r.status), r.message);
  }
  double e = largest_error(s, c, &r, where);
  if (!(e <= tolerance)) fail_msg("%s, %s: off by %.3g at %s", c->name, linalg, e, where);
  assert_true(r.rank_gap == 0);
  case_free_result(&r);
  case_destroy(&s);
}

static void the_library_has_the_published_numbers(void **state) {
  for (int a = 0; a < 2; a++) {
    if (!is_built_in(algebras[a])) continue;
    for (int i = 0; i < CASES; i++)
      check_library_case(&cases[i], algebras[a]);
  }
}

/* The MPI program compares the library only. */
int main(void) {
  const struct CMUnitTest tests[] = {
#if !defined(NG_TEST_MPI)
    cmocka_unit_test(the_oracle_has_the_published_numbers),
#endif
    cmocka_unit_test(the_library_has_the_published_numbers),
  };
  return RANKS_TESTS("golden", tests);
}
