/* t_methods.c: the rows of option values: what each differs by from the defaults, of methods and of published
 * systems; names that are none. */
#include "options_help.h"

#include "family/family.h"
#include "option/option.h"

static char message[512];

/* "name=value ..." differs from the table's defaults, and nothing else does; beside it norm_block = none,
 * in every published row that says nothing else of it. */
static void differs_by(const ng_options *o, const char *method, const char *differences) {
  char list[512];
  int32_t n = 0;
  assert_string_equal(o->method, method);
  const bool ours = strcmp(method, "natgrad") == 0 || strcmp(method, "eva-natgrad") == 0 ||
                    strcmp(method, "spngd") == 0;
  const bool none = !ours && strstr(differences, "norm_block") == NULL;
  (void)snprintf(list, sizeof list, " %s %s", differences, none ? "norm_block=none " : "");
  n -= none;
  for (int32_t i = 0; i < ng_option_count(); i++) {
    const ng_option_info info = option_info(i);
    char value[64], text[128];
    assert_int_equal(ng_options_get(o, info.name, value, sizeof value), NG_OK);
    if (strcmp(value, info.standard) == 0) continue;
    (void)snprintf(text, sizeof text, " %s=%s ", info.name, value);
    assert_contains(list, text);
    n++;
  }
  for (const char *at = differences; (at = strchr(at, '=')) != NULL; at++) {
    n--;
  }
  assert_int_equal(n, 0);
}

#define KAISA                                                                                      \
  "damping=0.001 stat_start=identity stat_scale=kaisa call_weight=equal solve_period=1 "           \
  "placement=kaisa "
#define LZ                                                                                         \
  "damping=0.001 stat_decay=0.05 stat_start=identity stat_scale=mpd-kfac positions=reduce "        \
  "calls=last "                                                                                    \
  "solve_period=1 "

/* As spec'd: the published programs' own defaults, and what their numbers need. */
static void rows(void **state) {
  (void)state;
  ng_options o = standard_options();
  differs_by(&o, "natgrad", "");
  const char *const eigen = "solver=eigen damping_split=joint ";
  char text[512];
  (void)snprintf(text, sizeof text, "%sprediv=1 " KAISA, eigen);
  assert_int_equal(ng_options_set(&o, "method", "kaisa", message, sizeof message), NG_OK);
  differs_by(&o, "kaisa", text);
  o = system_options("KAISA", "eigen");
  differs_by(&o, "kaisa", text);
  o = system_options("kaisa", "inverse");
  differs_by(&o, "kaisa", KAISA "damping_split=full");

  (void)snprintf(text, sizeof text, "%seigen_floor=1e-10 placement=mpd-kfac " LZ, eigen);
  assert_int_equal(ng_options_set(&o, "method", "mpd-kfac", message, sizeof message), NG_OK);
  differs_by(&o, "mpd-kfac", text);
  o = system_options("DP-KFACrepo", "eigen");
  differs_by(&o, "mpd-kfac", text);
  o = system_options("DP-KFAC repo", "inverse"); /* as the recordings spell it */
  differs_by(&o, "mpd-kfac", LZ "damping_leak=owner grad_worker_fraction=0 placement=round-robin");

  (void)snprintf(text, sizeof text,
                 "%seigen_floor=1e-10 " LZ
                 "statistics=local grad_worker_fraction=0 placement=round-robin",
                 eigen);
  assert_int_equal(ng_options_set(&o, "method", "dp-kfac", message, sizeof message), NG_OK);
  differs_by(&o, "dp-kfac", text);
  o = system_options("lzhangbv", "eigen_dp");
  differs_by(&o, "dp-kfac", text);
  o = system_options("lzhangbv", "inverse_dp");
  differs_by(&o, "dp-kfac",
             LZ "damping_leak=owner statistics=local grad_worker_fraction=0 placement=round-robin");

  const char *const eva =
      "damping=0.03 stat_decay=0.05 stat_scale=eva stat_batch=16 calls=ema call_weight=equal";
  assert_int_equal(ng_options_set(&o, "method", "eva", message, sizeof message), NG_OK);
  differs_by(&o, "eva", eva);
  assert_true(o.damping == 0.03 && o.kl_clip == 0.001); /* its own, and the table's */
  o = system_options("Eva", "");
  differs_by(&o, "eva", eva);
  o = system_options("FusedEva", "eva");
  differs_by(&o, "eva", eva);
  assert_int_equal(ng_options_set(&o, "method", "eva-f", message, sizeof message), NG_OK);
  differs_by(&o, "eva-f",
             "damping=0.03 stat_decay=0.05 stat_scale=eva stat_batch=16 calls=ema "
             "call_weight=equal sides=input");
  assert_int_equal(ng_options_set(&o, "method", "eva-natgrad", message, sizeof message), NG_OK);
  differs_by(&o, "eva-natgrad", "");
  o = system_options("Eva", "kfac");
  differs_by(
      &o, "eva-kfac",
      "damping=0.03 stat_decay=0.05 stat_scale=kaisa positions=reduce stat_batch=16 calls=ema "
      "call_weight=equal damping_leak=all solve_period=1");
  o = system_options("Eva", "adasgd");
  differs_by(&o, "adasgd", "sides=none damping=0.03 clip=none");
  o = system_options("Eva", "sam");
  differs_by(&o, "sam",
             "solver=product radius=0.01 clip=none stat_decay=0.05 stat_scale=kaisa "
             "positions=reduce stat_batch=16 calls=ema call_weight=equal solve_period=1");
  o = system_options("M-FAC", "mfac");
  differs_by(&o, "mfac", "window=1024 damping=1e-05 clip=none norm_block=none");
#define EFCP                                                                                       \
  "window=1024 damping=1e-06 clip=none window_momentum_form=heavy-ball window_decay_form=none "    \
  "norm_block=none"
  o = system_options("EFCP", "mfac");
  differs_by(&o, "efcp", EFCP);
  o = system_options("EFCP", "sparse-mfac");
  differs_by(&o, "efcp", EFCP " window_store=topk");
  o = system_options("EFCP", "sparse-ggt");
  differs_by(
      &o, "sparse-ggt",
      "window=100 window_function=ggt window_store=topk damping=1e-05 clip=none norm_block=none");
  o = system_options("EFCP", "lowrank-mfac");
  differs_by(&o, "lowrank-mfac",
             "window=1024 window_store=lowrank damping=1e-05 clip=none norm_block=none");
  o = system_options("EFCP", "ggt");
  differs_by(&o, "ggt",
             "window=100 window_function=ggt damping=1e-05 window_momentum_form=gradient clip=none "
             "norm_block=none");
#define SPNGD                                                                                      \
  "damping=0.03 stat_decay=0.01 solve_period=1 clip=none norm_damping=16 statistics=owner "        \
  "grad_worker_fraction=0 placement=spngd "
  assert_int_equal(ng_options_set(&o, "method", "spngd", message, sizeof message), NG_OK);
  differs_by(&o, "spngd", SPNGD);
  o = system_options("chainerkfac", "spngd");
  differs_by(&o, "spngd", SPNGD "norm_block=full damping_leak=owner call_weight=equal");
}

/* A system is a place to start from: what was given before is gone, and does not count as given. */
static void a_system_sets_everything(void **state) {
  (void)state;
  ng_options o = standard_options();
  fixture_real(&o, "damping", 7);
  fixture_set(&o, "skip_layers", "fc");
  fixture_set(&o, "update", "sgd");
  assert_int_equal(ng_options_set_system(&o, "Eva", "adasgd", message, sizeof message), NG_OK);
  differs_by(&o, "adasgd", "sides=none damping=0.03 clip=none");
  assert_int_equal(ng_options_set(&o, "method", "natgrad", message, sizeof message), NG_OK);
  differs_by(&o, "natgrad", "");
  /* a variant is no given value either; a published option is */
  o = system_options("KAISA", "inverse");
  assert_int_equal(ng_options_set_published(&o, "damping", "0.5", NULL, NULL, 0), NG_OK);
  assert_int_equal(ng_options_set_published(&o, "kl_clip", "none", NULL, NULL, 0), NG_OK);
  assert_int_equal(ng_options_set(&o, "method", "natgrad", message, sizeof message), NG_OK);
  differs_by(&o, "natgrad", "damping=0.5 clip=none");
  o = system_options("KAISA", "eigen");
  assert_int_equal(ng_options_set_published(&o, "compute_method", "inverse", NULL, NULL, 0), NG_OK);
  assert_int_equal(ng_options_set(&o, "method", "natgrad", message, sizeof message), NG_OK);
  differs_by(&o, "natgrad", "damping_split=full");
}

static void table_of_methods(void **state) {
  (void)state;
  assert_true(ng_method_count() >= 4);
  for (int32_t m = 0; m < ng_method_count(); m++) {
    ng_method_info info = {.struct_size = sizeof info};
    assert_int_equal(ng_method_at(m, &info), NG_OK);
    assert_true(info.name[0] != 0 && info.help[0] != 0);
    if (ng_family_find(info.family) == NULL) {
      fail_msg("method %s: there is no family '%s'", info.name, info.family);
    }
    assert_contains(info.paper, "arXiv");
    ng_options o = standard_options();
    assert_int_equal(ng_options_set(&o, "method", info.name, message, sizeof message), NG_OK);
    assert_string_equal(o.method, info.name);
    assert_int_equal(ng_options_check(&o, message, sizeof message), NG_OK);
    ng_published_info p = {.struct_size = sizeof p};
    for (int32_t i = 0; i < info.published; i++) {
      assert_int_equal(ng_method_published_at(m, i, &p), NG_OK);
      assert_true(p.name[0] != 0 && p.meaning[0] != 0);
      if (p.option[0] != 0) assert_true(ng_option_find(p.option) >= 0);
      if (p.option[0] == 0 && strcmp(p.name, "lr") != 0)
        assert_contains(p.meaning, "nothing to set");
    }
    assert_int_equal(ng_method_published_at(m, info.published, &p), NG_ERR_ARG);
    assert_int_equal(ng_method_published_at(m, -1, &p), NG_ERR_ARG);
    assert_int_equal(ng_options_set(&o, "method", "no such method", message, sizeof message),
                     NG_ERR_ARG);
    assert_contains(message, info.name); /* the list in the message is the table */
  }
  ng_method_info info = {.struct_size = sizeof info};
  assert_int_equal(ng_method_at(ng_method_count(), &info), NG_ERR_ARG);
  assert_int_equal(ng_method_at(0, NULL), NG_ERR_ARG);
  assert_int_equal(ng_method_published_at(0, 0, NULL), NG_ERR_ARG);
}

static void wrong_names(void **state) {
  (void)state;
  ng_options o = standard_options();
  const ng_options before = o;
  assert_int_equal(ng_options_set(&o, "method", "kiasa", message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "did you mean 'kaisa'?");
  assert_int_equal(ng_options_set(&o, "method", NULL, message, sizeof message), NG_ERR_ARG);
  assert_int_equal(ng_options_set(NULL, "method", "kaisa", message, sizeof message), NG_ERR_ARG);

  assert_int_equal(ng_options_set_system(&o, "KAISA", "eigen_dp", message, sizeof message),
                   NG_ERR_ARG);
  assert_contains(message, "eigen|inverse");
  assert_int_equal(ng_options_set_system(&o, "lzhangbv", "inverse-dp", message, sizeof message),
                   NG_ERR_ARG);
  assert_contains(message, "did you mean 'inverse_dp'?");
  assert_int_equal(ng_options_set_system(&o, "Eva", "eigen", message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "eva|kfac");
  assert_int_equal(ng_options_set_system(&o, "EFCP", "fim", message, sizeof message), NG_ERR_ARG);
  assert_int_equal(ng_options_set_system(&o, "torch", "adam", message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "KAISA, DP-KFACrepo, Eva, M-FAC, EFCP and chainerkfac");
  assert_int_equal(ng_options_set_system(&o, NULL, "eigen", message, sizeof message), NG_ERR_ARG);
  assert_int_equal(ng_options_set_system(&o, "KAISA", NULL, message, sizeof message), NG_ERR_ARG);
  assert_memory_equal(&o, &before, sizeof o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows),
      cmocka_unit_test(a_system_sets_everything),
      cmocka_unit_test(table_of_methods),
      cmocka_unit_test(wrong_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
