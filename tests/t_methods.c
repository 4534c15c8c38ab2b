/* t_methods.c: methods and published systems: their option values, complete rows, unknown names.  Recordings
 * (t_golden) test the values of the rows. */
#include "options_help.h"

#include "family/family.h"
#include "option/option.h"

static char message[512];

/* `differences`, "name=value ...", lists all options that differ from the table's defaults. */
static void differs_by(const ng_options *o, const char *method, const char *differences) {
  char list[512];
  int32_t n = 0;
  assert_string_equal(o->base.method, method);
  (void)snprintf(list, sizeof list, " %s ", differences);
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

/* A system replaces all earlier option values, which then no longer count as given. */
static void systems_replace_all_options(void **state) {
  ng_options o = standard_options();
  fixture_real(&o, "damping", 7);
  fixture_set(&o, "skip_layers", "fc");
  fixture_set(&o, "update", "sgd");
  assert_int_equal(ng_options_set_system(&o, "Eva", "adasgd", message, sizeof message), NG_OK);
  differs_by(&o, "adasgd", "sides=none damping=0.03 clip=none norm_block=none");
  assert_int_equal(ng_options_set(&o, "method", "natgrad", message, sizeof message), NG_OK);
  differs_by(&o, "natgrad", "");
  assert_int_equal(ng_options_set(&o, "method", "eva", message, sizeof message), NG_OK);
  differs_by(&o, "eva",
             "damping=0.03 stat_decay=0.05 stat_scale=eva stat_batch=16 calls=ema norm_block=none");
  /* values of a variant do not count as given; published options do */
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
  assert_true(ng_method_count() >= 4);
  for (int32_t m = 0; m < ng_method_count(); m++) {
    ng_method_info info = {.struct_size = sizeof info};
    assert_int_equal(ng_method_at(m, &info), NG_OK);
    assert_true(info.name[0] != 0 && info.help[0] != 0 && info.traits[0] != 0);
    if (ng_family_find(info.family) == NULL)
      fail_msg("method %s: there is no family '%s'", info.name, info.family);
    if (m == 0) assert_string_equal(info.traits, "Kronecker factors, a solve");
    assert_contains(info.paper, "arXiv");
    ng_options o = standard_options();
    assert_int_equal(ng_options_set(&o, "method", info.name, message, sizeof message), NG_OK);
    assert_string_equal(o.base.method, info.name);
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
    assert_contains(message, info.name); /* the message lists all methods of the table */
  }
  ng_method_info info = {.struct_size = sizeof info};
  assert_int_equal(ng_method_at(ng_method_count(), &info), NG_ERR_ARG);
  assert_int_equal(ng_method_at(0, NULL), NG_ERR_ARG);
  assert_int_equal(ng_method_published_at(0, 0, NULL), NG_ERR_ARG);
}

static void unknown_names_are_refused_with_a_hint(void **state) {
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
      cmocka_unit_test(systems_replace_all_options),
      cmocka_unit_test(table_of_methods),
      cmocka_unit_test(unknown_names_are_refused_with_a_hint),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
