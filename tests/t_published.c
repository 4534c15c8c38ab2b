/* t_published.c: the published option names: what a value meant in the program it comes from is checked by its
 * numbers, not by its name.  Those of windows: t_published_window.c. */
#include "options_help.h"

#include "option/option.h"

static char message[512];

static void publish(ng_options *o, const char *name, const char *value) {
  double lr = -1;
  const ng_status st = ng_options_set_published(o, name, value, &lr, message, sizeof message);
  if (st != NG_OK) print_error("%s\n", message);
  assert_int_equal(st, NG_OK);
  assert_true(lr == -1); /* only `lr` is lr */
  assert_int_equal(ng_options_check(o, message, sizeof message), NG_OK);
}

static void publish_refused(const ng_options *o, const char *name, const char *value,
                            ng_status st) {
  ng_options copy = *o;
  double lr = -1;
  message[0] = 0;
  const ng_status got = ng_options_set_published(&copy, name, value, &lr, message, sizeof message);
  if (got != st) print_error("%s = '%s': %s\n", name, value, message);
  assert_int_equal(got, st);
  assert_contains(message, name);
  assert_memory_equal(&copy, o, sizeof copy);
  assert_true(lr == -1);
}

/* The running average of ones after k samples of value x, by the program's own rule. */
static double average_there(bool new_weight, double w, int k, double x) {
  double a = 1;
  for (int i = 0; i < k; i++) {
    a = new_weight ? (1 - w) * a + w * x : w * a + (1 - w) * x;
  }
  return a;
}

static double average_here(double rho, int k, double x) {
  double a = 1;
  for (int i = 0; i < k; i++) {
    a = rho * a + (1 - rho) * x;
  }
  return a;
}

/* factor_decay weighs the old average in one program and the new sample in the other; here it is
 * the same average.  1e-15: 1 - (1 - w) is off by half a unit of the last place of 1. */
static void factor_decay(void **state) {
  (void)state;
  static const char *const values[] = {"0.95", "0.8", "0.5", "0.3", "1", "0.05"};
  ng_options k = system_options("KAISA", "eigen"), l = system_options("lzhangbv", "inverse");
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    const double w = strtod(values[i], NULL);
    publish(&k, "factor_decay", values[i]);
    publish(&l, "factor_decay", values[i]);
    assert_true(k.stat_decay == w);
    for (int n = 1; n < 5; n++) {
      const double dk = average_here(k.stat_decay, n, 3) - average_there(false, w, n, 3);
      const double dl = average_here(l.stat_decay, n, 3) - average_there(true, w, n, 3);
      assert_true(dk == 0);
      assert_true(dl < 1e-14 && dl > -1e-14);
    }
  }
  publish_refused(&l, "factor_decay", "1.5", NG_ERR_ARG);
  publish_refused(&l, "factor_decay", "x", NG_ERR_ARG);
  publish_refused(&k, "factor_decay", "-0.1", NG_ERR_ARG);
}

/* One program switches the clip off at 0 and below, the other refuses that. */
static void kl_clip(void **state) {
  (void)state;
  static const char *const off[] = {"none", "None", "null", "0", "0.0", "-1", "-1e-3"};
  ng_options l = system_options("lzhangbv", "eigen_dp"), k = system_options("KAISA", "inverse");
  for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
    publish(&l, "kl_clip", off[i]);
    assert_string_equal(l.clip, "none");
    publish(&l, "kl_clip", "0.002");
    assert_string_equal(l.clip, "kl");
    assert_true(l.kl_clip == 0.002);
    if (i < 3) {
      publish(&k, "kl_clip", off[i]);
      assert_string_equal(k.clip, "none");
    } else {
      publish_refused(&k, "kl_clip", off[i], NG_ERR_ARG);
    }
    publish(&k, "kl_clip", "1000000.0");
    assert_string_equal(k.clip, "kl");
    assert_true(k.kl_clip == 1e6);
  }
  publish_refused(&l, "kl_clip", "nan", NG_ERR_ARG);
}

/* What its names mean here: cov_ema_decay weighs the new sample, pi_type none is pi = 1. */
static void chainerkfac(void **state) {
  ng_options o = system_options("chainerkfac", "spngd");
  double lr = 0;
  (void)state;
  publish(&o, "cov_ema_decay", "0.3");
  assert_true(o.stat_decay - 0.7 < 1e-15 && 0.7 - o.stat_decay < 1e-15);
  publish(&o, "cov_ema_decay", "1.0");
  assert_true(o.stat_decay == 0);
  publish_refused(&o, "cov_ema_decay", "1.5", NG_ERR_ARG);
  publish(&o, "stab_coeff", "4");
  assert_true(o.norm_damping == 4);
  publish(&o, "pi_type", "tracenorm");
  assert_string_equal(o.damping_split, "pi");
  publish(&o, "pi_type", "none");
  assert_string_equal(o.damping_split, "root");
  assert_int_equal(ng_options_set_published(&o, "lr", "0.25", &lr, NULL, 0), NG_OK);
  assert_true(lr == 0.25);
  publish_refused(&o, "loss_scale", "0", NG_ERR_ARG);
  publish_refused(&o, "acc_iters", "0", NG_ERR_ARG);
  publish_refused(&o, "pi_type", "tracenrom", NG_ERR_ARG);
  publish_refused(&o, "use_cholesky", "perhaps", NG_ERR_ARG);
  publish_refused(&o, "constructor", "my_factory", NG_ERR_ABSENT);
}

/* Every argument of its optimizer, as its constructors have them, with its default: taken, and listed. */
static void chainerkfac_arguments(void **state) {
  static const char *const argument[][2] = {{"lr", "0.001"},
                                            {"momentum", "0.9"},
                                            {"cov_ema_decay", "0.99"},
                                            {"damping", "0.03"},
                                            {"stab_coeff", "16.0"},
                                            {"constructor", "None"},
                                            {"pi_type", "tracenorm"},
                                            {"use_cholesky", "True"},
                                            {"loss_scale", "None"},
                                            {"acc_iters", "1"},
                                            {"adjust_momentum", "False"},
                                            {"communicate_after_forward", "False"},
                                            {"only_pic_update_weight", "True"}};
  enum { ARGUMENTS = sizeof argument / sizeof argument[0] };
  (void)state;
  int32_t method = 0;
  ng_method_info m = {.struct_size = sizeof m};
  while (ng_method_at(method, &m) == NG_OK && strcmp(m.name, "spngd") != 0)
    method++;
  for (int i = 0; i < ARGUMENTS; i++) {
    ng_options o = system_options("chainerkfac", "spngd");
    const ng_options before = o;
    int found = 0;
    for (int32_t k = 0; k < m.published; k++) {
      ng_published_info p = {.struct_size = sizeof p};
      assert_int_equal(ng_method_published_at(method, k, &p), NG_OK);
      found += strcmp(p.name, argument[i][0]) == 0;
    }
    if (found != 1) fail_msg("%s is listed %d times", argument[i][0], found);
    double lr = 0;
    if (ng_options_set_published(&o, argument[i][0], argument[i][1], &lr, NULL, 0) != NG_OK)
      fail_msg("%s = %s was refused", argument[i][0], argument[i][1]);
    /* its defaults are the row's */
    const double moved = o.stat_decay - before.stat_decay;
    assert_true(moved < 1e-12 && moved > -1e-12 && o.damping == before.damping &&
                o.norm_damping == before.norm_damping);
    if (ng_options_set_published(&o, argument[i][0], "?", &lr, NULL, 0) >= 0)
      fail_msg("%s = ? was taken", argument[i][0]);
  }
}

static void lr(void **state) {
  (void)state;
  static const char *const system[][2] = {{"KAISA", "eigen"}, {"lzhangbv", "inverse_dp"}};
  for (size_t i = 0; i < 2; i++) {
    ng_options o = system_options(system[i][0], system[i][1]);
    const ng_options before = o;
    double value = -1;
    assert_int_equal(ng_options_set_published(&o, "lr", "0.05", &value, NULL, 0), NG_OK);
    assert_true(value == 0.05);
    assert_memory_equal(&o, &before, sizeof o); /* it is no option here */
    assert_int_equal(ng_options_set_published(&o, "lr", "0.05", NULL, NULL, 0), NG_OK);
    publish_refused(&o, "lr", "-0.1", NG_ERR_ARG);
    publish_refused(&o, "lr", "inf", NG_ERR_ARG);
  }
}

static void kaisa_names(void **state) {
  (void)state;
  ng_options o = system_options("KAISA", "eigen");
  publish(&o, "factor_update_steps", "10");
  publish(&o, "inv_update_steps", "100");
  publish(&o, "damping", "0.003");
  assert_true(o.stat_period == 10 && o.solve_period == 100 && o.damping == 0.003);
  publish_refused(&o, "inv_update_steps", "0", NG_ERR_ARG);
  assert_contains(message, "solve_period"); /* the message names both */
  publish_refused(&o, "damping", "0", NG_ERR_ARG);

  publish(&o, "compute_eigenvalue_outer_product", "False");
  assert_int_equal(o.prediv, 0);
  publish(&o, "compute_method", "EIGEN"); /* it is already: prediv stays */
  assert_int_equal(o.prediv, 0);
  publish(&o, "compute_eigenvalue_outer_product", "true");
  assert_int_equal(o.prediv, 1);
  publish(&o, "compute_method", "inverse");
  assert_string_equal(o.solver, "cholesky");
  assert_string_equal(o.damping_split, "full");
  assert_int_equal(o.prediv, 0);
  publish(&o, "compute_eigenvalue_outer_product", "true"); /* ignored for INVERSE */
  assert_int_equal(o.prediv, 0);
  publish(&o, "compute_method", "Eigen");
  assert_string_equal(o.solver, "eigen");
  assert_string_equal(o.damping_split, "joint");
  assert_int_equal(o.prediv, 1);
  publish_refused(&o, "compute_method", "cholesky", NG_ERR_ARG);

  static const char *const share[][2] = {{"COMM_OPT", "1"}, {"HYBRID_OPT", "0.5"}, {"mem_opt", "0"},
                                         {"0.25", "0.25"},  {"1.0", "1"},          {"0", "0"}};
  for (size_t i = 0; i < sizeof share / sizeof share[0]; i++) {
    publish(&o, "grad_worker_fraction", share[i][0]);
    assert_option(&o, "grad_worker_fraction", share[i][1]);
  }
  publish_refused(&o, "grad_worker_fraction", "1.01", NG_ERR_ARG);

  static const char *const dtype[][2] = {{"torch.float16", "f16"}, {"bfloat16", "bf16"},
                                         {"torch.half", "f16"},    {"None", "f32"},
                                         {"fp32", "f32"},          {"bf16", "bf16"}};
  for (size_t i = 0; i < sizeof dtype / sizeof dtype[0]; i++) {
    publish(&o, "factor_dtype", dtype[i][0]);
    assert_option(&o, "factor_dtype", dtype[i][1]);
    publish(&o, "inv_dtype", dtype[i][0]);
    assert_option(&o, "inverse_dtype", dtype[i][1]);
  }
  publish_refused(&o, "factor_dtype", "torch.float64", NG_ERR_ABSENT);
  publish_refused(&o, "inv_dtype", "int8", NG_ERR_ARG);

  publish(&o, "assignment_strategy", "MEMORY");
  assert_option(&o, "placement_cost", "memory");
  publish(&o, "assignment_strategy", "compute");
  assert_option(&o, "placement_cost", "compute");
  publish_refused(&o, "assignment_strategy", "cpu", NG_ERR_ARG);
  publish(&o, "colocate_factors", "False");
  assert_option(&o, "colocate", "0");
  publish(&o, "colocate_factors", "True");
  assert_option(&o, "colocate", "1");
  publish_refused(&o, "colocate_factors", "maybe", NG_ERR_ARG);

  publish(&o, "skip_layers", "fc|^embed$|a,b");
  assert_string_equal(o.skip_layers, "*fc*,embed,*a\\,b*");
  publish(&o, "skip_layers", "[]");
  assert_string_equal(o.skip_layers, "");
  publish(&o, "skip_layers", "[Cc]onv[0-9]");
  publish_refused(&o, "skip_layers", "['fc', 'embed']", NG_ERR_ARG);
  publish_refused(&o, "skip_layers", "layer\\w", NG_ERR_ABSENT);
  publish_refused(&o, "skip_layers", "(?i)fc", NG_ERR_ABSENT);
}

/* Options of the published program that decide nothing here are checked and leave all as it is. */
static void nothing_to_set(void **state) {
  (void)state;
  static const char *const k[][3] = {{"accumulation_steps", "4", "0"},
                                     {"update_factors_in_hook", "1", ""},
                                     {"grad_scaler", "None", "scaler"}};
  static const char *const l[][3] = {{"hook_enabled", "True", "False"},
                                     {"exclude_parts", "", "ComputeFactor"}};
  for (size_t i = 0; i < sizeof k / sizeof k[0] + sizeof l / sizeof l[0]; i++) {
    const bool kaisa = i < sizeof k / sizeof k[0];
    const char *const *row = kaisa ? k[i] : l[i - sizeof k / sizeof k[0]];
    ng_options o = kaisa ? system_options("KAISA", "eigen") : system_options("lzhangbv", "eigen");
    const ng_options before = o;
    publish(&o, row[0], row[1]);
    assert_memory_equal(&o, &before, sizeof o);
    const bool absent = strcmp(row[0], "grad_scaler") == 0 || strcmp(row[0], "hook_enabled") == 0 ||
                        strcmp(row[0], "exclude_parts") == 0;
    publish_refused(&o, row[0], row[2], absent ? NG_ERR_ABSENT : NG_ERR_ARG);
  }
}

static void lz_names(void **state) {
  (void)state;
  static const char *const variant[] = {"eigen", "inverse", "eigen_dp", "inverse_dp"};
  for (size_t i = 0; i < 4; i++) {
    ng_options o = system_options("DP-KFAC_repo", variant[i]);
    publish(&o, "fac_update_freq", "2");
    publish(&o, "kfac_update_freq", "4");
    publish(&o, "damping", "0.03");
    publish(&o, "exclude_vocabulary_size", "9521");
    assert_true(o.stat_period == 2 && o.solve_period == 4 && o.damping == 0.03);
    assert_true(o.exclude_width == 9521);
    publish(&o, "exclude_vocabulary_size", "None");
    assert_true(o.exclude_width == 0);
    publish_refused(&o, "exclude_vocabulary_size", "0", NG_ERR_ARG);
    publish_refused(&o, "kfac_update_freq", "0", NG_ERR_ARG);
  }
  /* one owner for A and G, or two */
  static const char *const distribute[][3] = {
      {"None", "mpd-kfac", "1"}, {"True", "round-robin", "0"}, {"false", "round-robin", "1"}};
  for (int i = 0; i < 6; i++) {
    const bool eigen = i < 3; /* the other classes take it and have no such choice */
    const char *const *row = distribute[i % 3];
    ng_options own = system_options("lzhangbv", eigen ? "eigen" : "inverse");
    if (eigen || i != 4) publish(&own, "distribute_layer_factors", row[0]);
    assert_option(&own, "placement", eigen ? row[1] : "round-robin");
    assert_option(&own, "colocate", eigen ? row[2] : "1");
    publish_refused(&own, "distribute_layer_factors", eigen ? "3" : "true", NG_ERR_ARG);
  }
  /* who may send inverses */
  ng_options o = system_options("lzhangbv", "eigen");
  publish(&o, "communicate_inverse_or_not", "True");
  assert_true(o.grad_worker_fraction == 1);
  publish_refused(&o, "communicate_inverse_or_not", "False", NG_ERR_ARG);
  o = system_options("lzhangbv", "inverse");
  assert_true(o.grad_worker_fraction == 0);
  publish(&o, "communicate_inverse_or_not", "True");
  assert_true(o.grad_worker_fraction == 1);
  publish(&o, "communicate_inverse_or_not", "0");
  assert_true(o.grad_worker_fraction == 0);
  o = system_options("lzhangbv", "inverse_dp");
  publish(&o, "communicate_inverse_or_not", "false");
  assert_true(o.grad_worker_fraction == 0);
  publish_refused(&o, "communicate_inverse_or_not", "true", NG_ERR_ARG);
}

/* A name belongs to its program. */
/* The third meaning of kl_clip = 0, and what there is besides. */
static void eva_names(void **state) {
  (void)state;
  static const char *const off[] = {"none", "-1", "-0.5"}, *const zero[] = {"0", "0.0", "-0"};
  ng_options o = system_options("Eva", ""), k = system_options("Eva", "kfac");
  for (int i = 0; i < 3; i++) {
    publish(&o, "kl_clip", "0.002");
    assert_string_equal(o.clip, "kl");
    assert_true(o.kl_clip == 0.002);
    publish(&o, "kl_clip", off[i]);
    assert_string_equal(o.clip, "none");
    publish(&o, "kl_clip", zero[i]);
    assert_string_equal(o.clip, "rescale");
  }
  publish_refused(&o, "kl_clip", "x", NG_ERR_ARG);
  publish(&o, "factor_decay", "0.75");
  assert_true(o.stat_decay == 0.25); /* ours weighs the old average, theirs the new sample */
  publish(&o, "fac_update_freq", "3");
  assert_int_equal(o.stat_period, 3);
  publish(&o, "kfac_batch_size", "8");
  assert_int_equal(o.stat_batch, 8);
  publish_refused(&o, "kfac_batch_size", "0", NG_ERR_ARG); /* 0 would be all of them here */
  publish(&o, "exclude_vocabulary_size", "100");
  assert_int_equal(o.exclude_width, 100);
  const ng_options before = o;
  publish(&o, "kfac_update_freq", "7"); /* the published Eva does not look at it */
  assert_memory_equal(&o, &before, sizeof o);
  publish_refused(&o, "kfac_update_freq", "0", NG_ERR_ARG);
  publish_refused(&o, "diag_blocks", "2", NG_ERR_ARG);
  publish(&k, "kfac_update_freq", "7");
  assert_int_equal(k.solve_period, 7);
  publish(&k, "diag_blocks", "2");
  assert_int_equal(k.factor_blocks, 2);
  ng_options sam = system_options("Eva", "sam"), ada = system_options("Eva", "adasgd");
  publish(&sam, "kl_clip", "0.5"); /* rho there */
  assert_true(sam.radius == 0.5);
  publish(&sam, "kfac_update_freq", "7"); /* its product takes the averages as they are */
  assert_int_equal(sam.solve_period, 1);
  for (int i = 0; i < 3; i++) {
    publish(&sam, "kl_clip", "0.5");
    publish(&sam, "kl_clip", i == 0 ? zero[i] : off[i]);
    assert_true(sam.radius == 0.01);
  }
  publish(&ada, "damping", "0.5");
  assert_true(ada.damping == 0.5);
  const ng_options as_is = ada;
  publish(&ada, "kl_clip", "0.5");
  publish(&ada, "factor_decay", "0.5");
  assert_memory_equal(&ada, &as_is, sizeof ada);
}

static void names_of_another_program(void **state) {
  (void)state;
  ng_options k = system_options("KAISA", "eigen"), l = system_options("lzhangbv", "eigen");
  const ng_options ours = standard_options();
  publish_refused(&k, "fac_update_freq", "1", NG_ERR_ARG);
  publish_refused(&l, "factor_update_steps", "1", NG_ERR_ARG);
  publish_refused(&l, "stat_decay", "0.5", NG_ERR_ARG);
  publish_refused(&ours, "damping", "0.5", NG_ERR_ARG);
  assert_contains(message, "no published names");
  publish_refused(&k, "dampin", "1", NG_ERR_ARG);
  assert_contains(message, "did you mean 'damping'?");
  assert_int_equal(ng_options_set_published(&k, NULL, "1", NULL, message, sizeof message),
                   NG_ERR_ARG);
  assert_int_equal(ng_options_set_published(&k, "damping", NULL, NULL, message, sizeof message),
                   NG_ERR_ARG);
  assert_int_equal(ng_options_set_published(NULL, "damping", "1", NULL, message, sizeof message),
                   NG_ERR_ARG);
}

/* Every published name takes some value: none is listed that cannot be given. */
static void every_published_name(void **state) {
  (void)state;
  static const char *const some[] = {"1", "true", "none", "0.5", "eigen", "compute", "", "false"};
  for (int32_t m = 0; m < ng_method_count(); m++) {
    ng_method_info info = {.struct_size = sizeof info};
    assert_int_equal(ng_method_at(m, &info), NG_OK);
    for (int32_t i = 0; i < info.published; i++) {
      ng_published_info p = {.struct_size = sizeof p};
      assert_int_equal(ng_method_published_at(m, i, &p), NG_OK);
      int32_t taken = 0;
      for (size_t k = 0; k < sizeof some / sizeof some[0]; k++) {
        ng_options o = standard_options();
        assert_int_equal(ng_options_set(&o, "method", info.name, NULL, 0), NG_OK);
        if (ng_options_set_published(&o, p.name, some[k], NULL, NULL, 0) == NG_OK) taken++;
      }
      if (taken == 0 || taken == 8) print_error("%s: %s takes %d\n", info.name, p.name, taken);
      assert_true(taken > 0);
      if (strcmp(p.name, "skip_layers") != 0) assert_true(taken < 8); /* any text is a pattern */
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(chainerkfac),
      cmocka_unit_test(chainerkfac_arguments),
      cmocka_unit_test(factor_decay),
      cmocka_unit_test(kl_clip),
      cmocka_unit_test(lr),
      cmocka_unit_test(kaisa_names),
      cmocka_unit_test(nothing_to_set),
      cmocka_unit_test(lz_names),
      cmocka_unit_test(eva_names),
      cmocka_unit_test(names_of_another_program),
      cmocka_unit_test(every_published_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
