/* t_published_arguments.c: the constructors of gpauloski/kfac-pytorch and lzhangbv/kfac_pytorch, argument by argument: each is listed
 * once, its published default and another value are taken, the other moves the option that the list names and, where
 * it is about ranks, what four ranks hold, own or send; a wrong value is refused by the argument's name, and what the
 * class does not have or would make no sense here is, too.  What each option does to numbers is t_option_effects'. */
#include "options_help.h"

#include "option/option.h"

/* Near to each other, so that owners differ between costs of n^2 and n^3. */
enum { LAYERS = 7, RANKS = 4 };
static const int64_t order[LAYERS][2] = {{100, 100}, {110, 60}, {90, 90}, {120, 10},
                                         {64, 130},  {80, 80},  {70, 70}};
static const char *const name[LAYERS] = {"f", "b", "a", "e", "c", "g", "d"};

typedef struct argument {
  const char *name, *standard;  /* what the class has without it */
  const char *other;            /* NULL: there is none */
  const char *option, *becomes; /* NULL: nothing to set */
  bool ranks;                   /* moves what ranks hold, own or send */
  const char *wrong;            /* NULL: none */
  ng_status st;                 /* ... of which is refused with this; 0: NG_ERR_ARG */
} argument;

static const argument kaisa[] = {
    {"factor_update_steps", "1", "10", "stat_period", "10", false, "0", 0},
    {"inv_update_steps", "1", "7", "solve_period", "7", false, "0", 0},
    {"damping", "0.001", "0.5", "damping", "0.5", false, "0", 0},
    {"factor_decay", "0.95", "0.5", "stat_decay", "0.5", false, "1.5", 0},
    {"kl_clip", "0.001", "0.1", "kl_clip", "0.1", false, "-1", 0},
    {"lr", "0.1", "1.0", NULL, NULL, false, "-0.1", 0},
    {"accumulation_steps", "1", "4", NULL, NULL, false, "0", 0},
    {"allreduce_bucket_cap_mb", "25.0", "0.01", "stat_bucket_mb", "0.01", true, "-1", 0},
    {"assignment_strategy", "COMPUTE", "memory", "placement_cost", "memory", true, "fast", 0},
    {"colocate_factors", "True", "False", "colocate", "0", true, "maybe", 0},
    {"compute_method", "EIGEN", "inverse", "solver", "cholesky", true, "lu", 0},
    {"compute_eigenvalue_outer_product", "True", "False", "prediv", "0", true, "maybe", 0},
    {"grad_worker_fraction", "COMM_OPT", "HYBRID_OPT", "grad_worker_fraction", "0.5", true, "1.5",
     0},
    {"grad_worker_fraction", "1", "MEM_OPT", "grad_worker_fraction", "0", true, "-0.5", 0},
    {"symmetry_aware", "False", "True", NULL, NULL, false, "maybe", 0},
    {"grad_scaler", "None", NULL, NULL, NULL, false, "4.0", NG_ERR_ABSENT},
    {"factor_dtype", "None", "torch.bfloat16", "factor_dtype", "bf16", true, "torch.float64",
     NG_ERR_ABSENT},
    {"inv_dtype", "torch.float32", "float16", "inverse_dtype", "f16", true, "float64",
     NG_ERR_ABSENT},
    {"skip_layers", "None", "^[ab]$", "skip_layers", "[ab]", true, "['a', 'b']", 0},
    {"update_factors_in_hook", "True", "False", NULL, NULL, false, "maybe", 0}};

#define LZ(MORE)                                                                                   \
  {                                                                                                \
    {"lr", "0.1", "1.0", NULL, NULL, false, "-1", 0},                                              \
        {"damping", "0.001", "0.2", "damping", "0.2", false, "-1", 0},                             \
        {"fac_update_freq", "1", "2", "stat_period", "2", false, "0", 0},                          \
        {"kfac_update_freq", "1", "3", "solve_period", "3", false, "0", 0},                        \
        {"kl_clip", "0.001", "0.1", "kl_clip", "0.1", false, "x", 0},                              \
        {"kl_clip", "0.001", "None", "clip", "none", false, "nan", 0},                             \
        {"factor_decay", "0.95", "0.5", "stat_decay", "0.5", false, "2", 0},                       \
        {"exclude_vocabulary_size", "None", "130", "exclude_width", "130", true, "0", 0},          \
        {"hook_enabled", "True", NULL, NULL, NULL, false, "False", NG_ERR_ABSENT},                 \
        {"exclude_parts", "", NULL, NULL, NULL, false, "ComputeFactor", NG_ERR_ABSENT}, MORE       \
  }
#define COMMUNICATE "communicate_inverse_or_not"
#define DISTRIBUTE "distribute_layer_factors"
#define EIGEN                                                                                      \
  {COMMUNICATE, "True", NULL, NULL, NULL, false, "False", 0},                                      \
      {DISTRIBUTE, "None", "True", "colocate", "0", true, "maybe", 0},                             \
      {DISTRIBUTE, "None", "False", "placement", "round-robin", false, "maybe", 0},
#define INVERSE                                                                                    \
  {COMMUNICATE, "False", "True", "grad_worker_fraction", "1", true, "maybe", 0},                   \
      {DISTRIBUTE, "None", NULL, NULL, NULL, false, "True", 0},
#define LOCAL                                                                                      \
  {COMMUNICATE, "False", NULL, NULL, NULL, false, "True", 0},                                      \
      {DISTRIBUTE, "None", NULL, NULL, NULL, false, "True", 0},
static const argument lz_eigen[] = LZ(EIGEN), lz_inverse[] = LZ(INVERSE), lz_local[] = LZ(LOCAL);

#define COUNT(a) (sizeof(a) / sizeof(a)[0])
static const struct {
  const char *system, *variant, *method;
  const argument *of;
  size_t n;
} classes[] = {{"KAISA", "eigen", "kaisa", kaisa, COUNT(kaisa)},
               {"lzhangbv", "eigen", "mpd-kfac", lz_eigen, COUNT(lz_eigen)},
               {"lzhangbv", "inverse", "mpd-kfac", lz_inverse, COUNT(lz_inverse)},
               {"lzhangbv", "eigen_dp", "dp-kfac", lz_local, COUNT(lz_local)},
               {"lzhangbv", "inverse_dp", "dp-kfac", lz_local, COUNT(lz_local)}};

static void plan(const ng_options *o, ng_rank_plan out[RANKS]) {
  ng_context_config c;
  ng_context *ctx = NULL;
  ng_precond *p = NULL;
  char why[512] = "";
  ng_context_config_init(&c, sizeof c);
  c.threads = 1;
  assert_int_equal(ng_context_create(NG_VERSION, &c, why, sizeof why, &ctx), NG_OK);
  assert_int_equal(ng_precond_create_from(ctx, o, &p), NG_OK);
  for (int i = 0; i < LAYERS; i++)
    assert_int_equal(ng_add_linear(p, name[i], order[i][0], order[i][1], 0, NULL), NG_OK);
  for (int32_t r = 0; r < RANKS; r++) {
    out[r] = (ng_rank_plan){.struct_size = sizeof out[r]};
    if (ng_plan_ranks(p, RANKS, r, 1, &out[r]) != NG_OK) fail_msg("%s", ng_last_error(ctx));
  }
  ng_precond_destroy(&p);
  ng_context_destroy(&ctx);
}

static int listed(const char *method, const char *of) {
  ng_method_info m = {.struct_size = sizeof m};
  int found = 0;
  int32_t i = 0;
  while (ng_method_at(i, &m) == NG_OK && strcmp(m.name, method) != 0)
    i++;
  for (int32_t k = 0; k < m.published; k++) {
    ng_published_info p = {.struct_size = sizeof p};
    assert_int_equal(ng_method_published_at(i, k, &p), NG_OK);
    found += strcmp(p.name, of) == 0;
  }
  return found;
}

static void take(ng_options *o, const argument *a, const char *value) {
  char why[512] = "";
  double lr = -1;
  if (ng_options_set_published(o, a->name, value, &lr, why, sizeof why) != NG_OK)
    fail_msg("%s", why);
  if (strcmp(a->name, "lr") == 0) assert_true(lr == strtod(value, NULL));
  assert_int_equal(ng_options_check(o, why, sizeof why), NG_OK);
}

static void check(const char *system, const char *variant, const char *method, const argument *a) {
  ng_options o = system_options(system, variant);
  char is[256] = "", why[512] = "";
  if (listed(method, a->name) != 1) fail_msg("%s: %s is not listed once", method, a->name);
  take(&o, a, a->standard);
  const ng_options plain = o;
  if (a->other != NULL) take(&o, a, a->other);
  if (a->option != NULL) {
    assert_option(&o, a->option, a->becomes);
    assert_int_equal(ng_options_get(&plain, a->option, is, sizeof is), NG_OK);
    if (strcmp(is, a->becomes) == 0)
      fail_msg("%s, %s: %s did not move", variant, a->name, a->option);
  } else {
    assert_memory_equal(&o, &plain, sizeof o);
  }
  if (a->ranks) {
    ng_rank_plan before[RANKS], after[RANKS];
    plan(&plain, before);
    plan(&o, after);
    if (memcmp(before, after, sizeof before) == 0)
      fail_msg("%s, %s = %s: ranks are as before", variant, a->name, a->other);
  }
  if (a->wrong == NULL) return;
  ng_options copy = plain;
  double lr = -1;
  const ng_status st = ng_options_set_published(&copy, a->name, a->wrong, &lr, why, sizeof why);
  if (st != (a->st != 0 ? a->st : NG_ERR_ARG) || strstr(why, a->name) == NULL)
    fail_msg("%s, %s = %s: %d %s", variant, a->name, a->wrong, st, why);
  assert_memory_equal(&copy, &plain, sizeof copy);
}

static void every_argument(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(classes); i++) {
    for (size_t k = 0; k < classes[i].n; k++)
      check(classes[i].system, classes[i].variant, classes[i].method, &classes[i].of[k]);
  }
}

/* And no others: all that is listed is in the tables above. */
static void no_other(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(classes); i++) {
    ng_method_info m = {.struct_size = sizeof m};
    int32_t at = 0;
    while (ng_method_at(at, &m) == NG_OK && strcmp(m.name, classes[i].method) != 0)
      at++;
    for (int32_t k = 0; k < m.published; k++) {
      ng_published_info p = {.struct_size = sizeof p};
      bool found = false;
      assert_int_equal(ng_method_published_at(at, k, &p), NG_OK);
      for (size_t a = 0; a < classes[i].n; a++)
        found = found || strcmp(classes[i].of[a].name, p.name) == 0;
      if (!found) fail_msg("%s: %s is in no table", classes[i].variant, p.name);
    }
    ng_options o = system_options(classes[i].system, classes[i].variant);
    static const char *const not_here[] = {"model", "loglevel", "defaults", "nesterov"};
    for (size_t k = 0; k < COUNT(not_here); k++) {
      char why[512] = "";
      assert_int_equal(ng_options_set_published(&o, not_here[k], "1", NULL, why, sizeof why),
                       NG_ERR_ARG);
      assert_contains(why, not_here[k]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_argument), cmocka_unit_test(no_other)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
