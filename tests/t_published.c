/* t_published.c: published option names: the meaning of values, refused values, and a meaning or a reason for every
 * argument of the published programs; methods and published systems: complete rows, option values, unknown names. */
#include "options_help.h"

#include "family/family.h"
#include "option/option.h"

static char message[512];

/* value of `option`: the published option is the learning rate of the caller */
#define LR "lr"
#define NOTHING NULL /* accepted without effect */
#define REFUSED                                                                                    \
  "refused" /* value of `option`: the value is refused; `reads` is part of the message, NULL: the
                           * message has the name */
#define ABSENT "absent" /* value of `option`: the value is refused as not supported */

typedef struct meaning {
  const char *who; /* "system/variant", or a method */
  const char *name, *value;
  const char *option, *reads;
  const char *first; /* "name=value;name=value" to set first; NULL: none */
} meaning;

static const meaning meanings[] = {
    /* kfac-pytorch */
    {"KAISA/eigen", "factor_update_steps", "10", "stat_period", "10", NULL},
    {"KAISA/eigen", "factor_update_steps", "0", REFUSED, "stat_period", NULL},
    {"KAISA/eigen", "inv_update_steps", "100", "solve_period", "100", NULL},
    {"KAISA/eigen", "inv_update_steps", "0", REFUSED, "solve_period", NULL},
    {"KAISA/eigen", "damping", "0.003", "damping", "0.003", NULL},
    {"KAISA/eigen", "damping", "0", REFUSED, NULL, NULL},
    {"KAISA/eigen", "dampin", "1", REFUSED, "did you mean 'damping'?", NULL},
    {"KAISA/eigen", "factor_decay", "0.3", "stat_decay", "0.3", NULL},
    {"KAISA/eigen", "factor_decay", "-0.1", REFUSED, NULL, NULL},
    {"KAISA/inverse", "kl_clip", "1000000.0", "kl_clip", "1000000", NULL},
    {"KAISA/inverse", "kl_clip", "None", "clip", "none", NULL},
    {"KAISA/inverse", "kl_clip", "null", "clip", "none", NULL},
    {"KAISA/inverse", "kl_clip", "1", "clip", "kl", "kl_clip=none"},
    {"KAISA/inverse", "kl_clip", "0", REFUSED, NULL, NULL},
    {"KAISA/inverse", "kl_clip", "-1e-3", REFUSED, NULL, NULL},
    {"KAISA/eigen", "lr", "0.05", LR, "0.05", NULL},
    {"KAISA/eigen", "lr", "-0.1", REFUSED, NULL, NULL},
    {"KAISA/eigen", "lr", "inf", REFUSED, NULL, NULL},
    {"KAISA/eigen", "accumulation_steps", "4", NOTHING, NULL, NULL},
    {"KAISA/eigen", "accumulation_steps", "0", REFUSED, NULL, NULL},
    {"KAISA/eigen", "update_factors_in_hook", "False", NOTHING, NULL, NULL},
    {"KAISA/eigen", "update_factors_in_hook", "", REFUSED, NULL, NULL},
    {"KAISA/eigen", "grad_scaler", "None", NOTHING, NULL, NULL},
    {"KAISA/eigen", "grad_scaler", "scaler", ABSENT, NULL, NULL},
    {"KAISA/eigen", "compute_eigenvalue_outer_product", "False", "solver", "eigen", NULL},
    {"KAISA/eigen", "compute_eigenvalue_outer_product", "maybe", REFUSED, NULL, NULL},
    {"KAISA/eigen", "compute_method", "EIGEN", "solver", "eigen",
     "compute_eigenvalue_outer_product=False"}, /* the option has this value already, but prediv must not stay */
    {"KAISA/eigen", "compute_method", "inverse", "solver", "cholesky", NULL},
    {"KAISA/eigen", "compute_method", "inverse", "damping_split", "full", NULL},
    {"KAISA/inverse", "compute_eigenvalue_outer_product", "true", "solver", "cholesky", NULL},
    {"KAISA/inverse", "compute_method", "Eigen", "solver", "eigen-prediv", NULL},
    {"KAISA/inverse", "compute_method", "Eigen", "damping_split", "joint", NULL},
    {"KAISA/eigen", "compute_method", "cholesky", REFUSED, NULL, NULL},
    {"KAISA/eigen", "grad_worker_fraction", "COMM_OPT", "grad_worker_fraction", "1", NULL},
    {"KAISA/eigen", "grad_worker_fraction", "HYBRID_OPT", "grad_worker_fraction", "0.5", NULL},
    {"KAISA/eigen", "grad_worker_fraction", "mem_opt", "grad_worker_fraction", "0", NULL},
    {"KAISA/eigen", "grad_worker_fraction", "0.25", "grad_worker_fraction", "0.25", NULL},
    {"KAISA/eigen", "grad_worker_fraction", "1.01", REFUSED, NULL, NULL},
    {"KAISA/eigen", "factor_dtype", "torch.float16", "factor_dtype", "f16", NULL},
    {"KAISA/eigen", "factor_dtype", "bfloat16", "factor_dtype", "bf16", NULL},
    {"KAISA/eigen", "factor_dtype", "torch.half", "factor_dtype", "f16", NULL},
    {"KAISA/eigen", "factor_dtype", "None", "factor_dtype", "f32", NULL},
    {"KAISA/eigen", "factor_dtype", "torch.float64", "factor_dtype", "f64", NULL},
    {"KAISA/eigen", "inv_dtype", "double", "inverse_dtype", "f64", NULL},
    {"KAISA/eigen", "inv_dtype", "fp32", "inverse_dtype", "f32", NULL},
    {"KAISA/eigen", "inv_dtype", "bf16", "inverse_dtype", "bf16", NULL},
    {"KAISA/eigen", "inv_dtype", "int8", REFUSED, NULL, NULL},
    {"KAISA/eigen", "assignment_strategy", "MEMORY", "placement", "kaisa-memory", NULL},
    {"KAISA/eigen", "assignment_strategy", "compute", "placement", "kaisa", NULL},
    {"KAISA/eigen", "assignment_strategy", "cpu", REFUSED, NULL, NULL},
    {"KAISA/eigen", "colocate_factors", "False", "colocate", "0", NULL},
    {"KAISA/eigen", "colocate_factors", "True", "colocate", "1", NULL},
    {"KAISA/eigen", "colocate_factors", "maybe", REFUSED, NULL, NULL},
    {"KAISA/eigen", "allreduce_bucket_cap_mb", "0.01", "stat_bucket_mb", "0.01", NULL},
    {"KAISA/eigen", "allreduce_bucket_cap_mb", "-1", REFUSED, NULL, NULL},
    {"KAISA/eigen", "symmetry_aware", "True", NOTHING, NULL, NULL},
    {"KAISA/eigen", "symmetry_aware", "maybe", REFUSED, NULL, NULL},
    {"KAISA/eigen", "skip_layers", "fc|^embed$|a,b", "skip_layers", "*fc*,embed,*a\\,b*", NULL},
    {"KAISA/eigen", "skip_layers", "[Cc]onv[0-9]", "skip_layers", "*[Cc]onv[0-9]*", NULL},
    {"KAISA/eigen", "skip_layers", "[]", "skip_layers", "", NULL},
    {"KAISA/eigen", "skip_layers", "['fc', 'embed']", REFUSED, NULL, NULL},
    {"KAISA/eigen", "skip_layers", "layer\\w", ABSENT, NULL, NULL},
    {"KAISA/eigen", "skip_layers", "(?i)fc", ABSENT, NULL, NULL},
    {"KAISA/eigen", "fac_update_freq", "1", REFUSED, NULL, NULL},
    {"natgrad", "damping", "0.5", REFUSED, "no published names", NULL},
    /* kfac_pytorch of lzhangbv: factor_decay is the weight of the new sample */
    {"lzhangbv/inverse", "factor_decay", "0.05", "stat_decay", "0.95", NULL},
    {"lzhangbv/inverse", "factor_decay", "1", "stat_decay", "0", NULL},
    {"lzhangbv/inverse", "factor_decay", "1.5", REFUSED, NULL, NULL},
    {"lzhangbv/inverse", "factor_decay", "x", REFUSED, NULL, NULL},
    {"lzhangbv/inverse", "factor_update_steps", "1", REFUSED, NULL, NULL},
    {"lzhangbv/inverse", "stat_decay", "0.5", REFUSED, NULL, NULL},
    {"lzhangbv/inverse_dp", "lr", "0.05", LR, "0.05", NULL},
    {"DP-KFAC_repo/eigen", "fac_update_freq", "2", "stat_period", "2", NULL},
    {"DP-KFAC_repo/inverse", "kfac_update_freq", "4", "solve_period", "4", NULL},
    {"DP-KFAC_repo/inverse", "kfac_update_freq", "0", REFUSED, NULL, NULL},
    {"DP-KFAC_repo/eigen_dp", "damping", "0.03", "damping", "0.03", NULL},
    {"DP-KFAC_repo/eigen_dp", "kl_clip", "0.002", "kl_clip", "0.002", NULL},
    {"DP-KFAC_repo/eigen_dp", "kl_clip", "0.0", "clip", "none", NULL},
    {"DP-KFAC_repo/eigen_dp", "kl_clip", "-1", "clip", "none", NULL},
    {"DP-KFAC_repo/eigen_dp", "kl_clip", "None", "clip", "none", NULL},
    {"DP-KFAC_repo/eigen_dp", "kl_clip", "nan", REFUSED, NULL, NULL},
    {"DP-KFAC_repo/inverse_dp", "exclude_vocabulary_size", "9521", "skip_layers", "linear/9521",
     NULL},
    {"DP-KFAC_repo/inverse_dp", "exclude_vocabulary_size", "None", "skip_layers", "", NULL},
    {"DP-KFAC_repo/inverse_dp", "exclude_vocabulary_size", "0", REFUSED, NULL, NULL},
    {"lzhangbv/eigen", "distribute_layer_factors", "None", "placement", "mpd-kfac", NULL},
    {"lzhangbv/eigen", "distribute_layer_factors", "True", "placement", "round-robin", NULL},
    {"lzhangbv/eigen", "distribute_layer_factors", "True", "colocate", "0", NULL},
    {"lzhangbv/eigen", "distribute_layer_factors", "false", "placement", "round-robin", NULL},
    {"lzhangbv/eigen", "distribute_layer_factors", "false", "colocate", "1", NULL},
    {"lzhangbv/eigen", "distribute_layer_factors", "3", REFUSED, NULL, NULL},
    {"lzhangbv/inverse", "distribute_layer_factors", "None", NOTHING, NULL, NULL},
    {"lzhangbv/inverse_dp", "distribute_layer_factors", "true", REFUSED, NULL, NULL},
    {"lzhangbv/eigen", "communicate_inverse_or_not", "True", "grad_worker_fraction", "1", NULL},
    {"lzhangbv/eigen", "communicate_inverse_or_not", "False", REFUSED, NULL, NULL},
    {"lzhangbv/inverse", "communicate_inverse_or_not", "True", "grad_worker_fraction", "1", NULL},
    {"lzhangbv/inverse", "communicate_inverse_or_not", "0", "grad_worker_fraction", "0", NULL},
    {"lzhangbv/inverse_dp", "communicate_inverse_or_not", "false", NOTHING, NULL, NULL},
    {"lzhangbv/inverse_dp", "communicate_inverse_or_not", "true", REFUSED, NULL, NULL},
    {"lzhangbv/eigen", "hook_enabled", "True", NOTHING, NULL, NULL},
    {"lzhangbv/eigen", "hook_enabled", "False", ABSENT, NULL, NULL},
    {"lzhangbv/eigen", "exclude_parts", "", NOTHING, NULL, NULL},
    {"lzhangbv/eigen", "exclude_parts", "ComputeFactor", ABSENT, NULL, NULL},
    /* Eva: a third meaning of kl_clip = 0 */
    {"Eva/", "kl_clip", "0.002", "kl_clip", "0.002", NULL},
    {"Eva/", "kl_clip", "none", "clip", "none", NULL},
    {"Eva/", "kl_clip", "-0.5", "clip", "none", NULL},
    {"Eva/", "kl_clip", "0.0", "clip", "rescale", NULL},
    {"Eva/", "kl_clip", "-0", "clip", "rescale", NULL},
    {"Eva/", "kl_clip", "x", REFUSED, NULL, NULL},
    {"Eva/", "factor_decay", "0.75", "stat_decay", "0.25", NULL},
    {"Eva/", "fac_update_freq", "3", "stat_period", "3", NULL},
    {"Eva/", "kfac_batch_size", "8", "stat_batch", "8", NULL},
    {"Eva/", "kfac_batch_size", "0", REFUSED, NULL, NULL}, /* in the library 0 means all samples */
    {"Eva/", "exclude_vocabulary_size", "100", "skip_layers", "linear/100", NULL},
    /* the published Eva ignores this option */
    {"Eva/", "kfac_update_freq", "7", NOTHING, NULL, NULL},
    {"Eva/", "kfac_update_freq", "0", REFUSED, NULL, NULL},
    {"Eva/", "diag_blocks", "2", REFUSED, NULL, NULL},
    {"Eva/kfac", "kfac_update_freq", "7", "solve_period", "7", NULL},
    {"Eva/kfac", "diag_blocks", "2", "factor_blocks", "2", NULL},
    {"Eva/sam", "kl_clip", "0.5", "radius", "0.5", NULL}, /* rho in the paper */
    {"Eva/sam", "kl_clip", "0", "radius", "0.01", "kl_clip=0.5"},
    {"Eva/sam", "kl_clip", "-1", "radius", "0.01", "kl_clip=0.5"},
    /* sam uses the averages without a solve */
    {"Eva/sam", "kfac_update_freq", "7", "solve_period", "1", NULL},
    {"Eva/adasgd", "damping", "0.5", "damping", "0.5", NULL},
    {"Eva/adasgd", "kl_clip", "0.5", NOTHING, NULL, NULL},
    {"Eva/adasgd", "factor_decay", "0.5", NOTHING, NULL, NULL},
    /* chainerkfac: cov_ema_decay is the weight of the new sample; pi_type none is pi = 1 */
    {"chainerkfac/spngd", "cov_ema_decay", "0.3", "stat_decay", "0.7", NULL},
    {"chainerkfac/spngd", "cov_ema_decay", "1.0", "stat_decay", "0", NULL},
    {"chainerkfac/spngd", "cov_ema_decay", "1.5", REFUSED, NULL, NULL},
    {"chainerkfac/spngd", "damping", "0.5", "damping", "0.5", NULL},
    {"chainerkfac/spngd", "stab_coeff", "4", "norm_damping", "4", NULL},
    {"chainerkfac/spngd", "pi_type", "tracenorm", "damping_split", "pi", NULL},
    {"chainerkfac/spngd", "pi_type", "none", "damping_split", "root", NULL},
    {"chainerkfac/spngd", "pi_type", "tracenrom", REFUSED, NULL, NULL},
    {"chainerkfac/spngd", "lr", "0.25", LR, "0.25", NULL},
    {"chainerkfac/spngd", "momentum", "0.9", NOTHING, NULL, NULL},
    {"chainerkfac/spngd", "weight_decay", "0", NOTHING, NULL, NULL},
    {"chainerkfac/spngd", "constructor", "None", NOTHING, NULL, NULL},
    {"chainerkfac/spngd", "constructor", "my_factory", ABSENT, NULL, NULL},
    {"chainerkfac/spngd", "use_cholesky", "True", NOTHING, NULL, NULL},
    {"chainerkfac/spngd", "use_cholesky", "perhaps", REFUSED, NULL, NULL},
    {"chainerkfac/spngd", "loss_scale", "None", NOTHING, NULL, NULL},
    {"chainerkfac/spngd", "loss_scale", "0", REFUSED, NULL, NULL},
    {"chainerkfac/spngd", "acc_iters", "1", NOTHING, NULL, NULL},
    {"chainerkfac/spngd", "acc_iters", "2", "stat_scale", "chainerkfac", NULL}, /* equal weights */
    {"chainerkfac/spngd", "acc_iters", "0", REFUSED, NULL, NULL},
    {"chainerkfac/spngd", "adjust_momentum", "False", NOTHING, NULL, NULL},
    {"chainerkfac/spngd", "communicate_after_forward", "False", NOTHING, NULL, NULL},
    {"chainerkfac/spngd", "only_pic_update_weight", "True", NOTHING, NULL, NULL},
    /* windows, sparse first-order methods, scripts */
    {"topk-adam", "betas", "(0.8, 0.99)", "window_momentum", "0.8", NULL},
    {"topk-adam", "betas", "0.8,0.99", "window_forget", "0.99", NULL},
    {"topk-adam", "betas", "0.8", REFUSED, "two numbers", NULL},
    {"SOAP/soap", "betas", "0.8,0.99", "first_decay", "0.8", NULL},
    {"SOAP/soap", "betas", "(0.8, 0.99)", "stat_decay", "0.99", NULL},
    {"SOAP/soap", "betas", "0.8", REFUSED, "two numbers", NULL},
    {"SOAP/soap", "shampoo_beta", "-1", "stat_decay", "0.95", NULL},
    {"SOAP/soap", "shampoo_beta", "0.7", "stat_decay", "0.7", NULL},
    {"SOAP/soap", "betas", "0.8,0.99", "stat_decay", "0.99", "shampoo_beta=0.7;shampoo_beta=-1"},
    {"SOAP/soap", "merge_dims", "True", "merge_axes", "left", NULL},
    {"SOAP/soap", "max_precond_dim", "0", REFUSED, "max_axis", NULL},
    {"SOAP/soap", "data_format", "channels_last", ABSENT, "strides", NULL},
    {"Distributed Shampoo/shampoo", "betas", "(0.8, 1.0)", "first_decay", "0.8", NULL},
    {"Distributed Shampoo/shampoo", "betas", "(0.8, 1.0)", "stat_decay", "1", NULL},
    {"Distributed Shampoo/shampoo", "betas", "(0.8, 1.0)", "filter_decay", "0.8", NULL},
    {"Distributed Shampoo/shampoo", "betas", "0.8", REFUSED, "two numbers", NULL},
    {"Distributed Shampoo/shampoo", "beta3", "0.7", "filter_decay", "0.7", NULL},
    {"Distributed Shampoo/shampoo", "beta3", "-1.0", "filter_decay", "0.9", NULL},
    {"Distributed Shampoo/shampoo", "beta3", "-1", "filter_decay", "0.9", "beta3=0.7"},
    {"Distributed Shampoo/shampoo", "beta3", "1.5", REFUSED, "filter_decay", NULL},
    {"Distributed Shampoo/shampoo", "grafting", "rmsprop", "second_decay", "0.99", NULL},
    {"Distributed Shampoo/shampoo", "grafting", "adam", "second_decay", "0.999", NULL},
    {"Distributed Shampoo/shampoo", "precondition_frequency", "50", "solve_start", "50", NULL},
    {"Distributed Shampoo/shampoo", "start_preconditioning_step", "-1", "solve_start", "1", NULL},
    {"Distributed Shampoo/shampoo", "start_preconditioning_step", "9", "solve_start", "9", NULL},
    {"Distributed Shampoo/shampoo", "start_preconditioning_step", "-1", "solve_start", "1",
     "start_preconditioning_step=9"},
    {"Distributed Shampoo/shampoo", "grafting", "None", "grafting", "none", NULL},
    {"Distributed Shampoo/shampoo", "preconditioner.use_trace_scaling", "true", "root_trace", "1",
     NULL},
    {"Distributed Shampoo/shampoo", "preconditioner.inverse_exponent_override",
     "2: 0.5; 4: 0.25 * 0 *", "root_exponents", "2: 0.5; 4: 0.25 * 0 *", NULL},
    {"Distributed Shampoo/shampoo", "preconditioner.inverse_exponent_override", "2: 0.5 0.5 0.5",
     REFUSED, "root_exponents", NULL},
    {"Distributed Shampoo/shampoo", "preconditioner.inverse_exponent_override", "5: 0.5", REFUSED,
     "root_exponents", NULL},
    {"Distributed Shampoo/shampoo", "preconditioner.inverse_exponent_override", "2: 17", REFUSED,
     "root_exponents", NULL},
    {"Distributed Shampoo/shampoo", "preconditioner", "soap-qr", "gram_form", "qr", NULL},
    {"Distributed Shampoo/shampoo", "preconditioner", "soap-eigh", "vector_factor", "1", NULL},
    {"Distributed Shampoo/shampoo", "preconditioner.ignored_basis_change_dims", "{1: [0]}",
     "vector_factor", "0", NULL},
    {"Distributed Shampoo/shampoo", "target_parameter_dimensionality", "0", REFUSED, "kept_axes",
     NULL},
    {"topk-adam", "eps", "1e-4", "damping", "0.0001", NULL},
    {"topk-adam", "amsgrad", "true", ABSENT, "false", NULL},
    {"topk-sgd", "dampening", "0.5", ABSENT, "0|0.0|false", NULL},
    {"topk-sgd", "momentum", "0.9", "window_momentum", "0.9", NULL},
    {"topk-sgd", "k_init", "0.05", "window_density", "0.05", NULL},
    {"efcp", "k_init", "300", "window_density", "300", NULL},
    {"sparse-ggt", "k_init", "none", "window_density", "1", NULL},
    {"topk-adagrad", "wd_type", "both", "window_decay_form", "gradient", NULL},
    {"topk-adagrad", "wd_type", "wd", "window_decay_form", "none", NULL},
    {"efcp", "fix", "2", "window_fill", "error", NULL},
    {"efcp", "fix", "4", "window_fill", "added", NULL},
    {"efcp", "fix", "5", REFUSED, "0|1|2|3|4", NULL},
    {"efcp", "fix_scaling", "1", "window_function", "mfac-filled", NULL},
    {"efcp", "empty_buffer_on_decay", "1", "window_empty", "0.5", NULL},
    {"efcp", "clip_type", "val", "clip", "value", NULL},
    {"efcp", "clip_bound", "0", "clip", "none", NULL},
    {"efcp", "use_bf16", "true", "window_dtype", "bf16", NULL},
    {"efcp", "use_ef", "0", ABSENT, "cannot be switched off", NULL},
    /* devices: none given, and the empty list of M-FAC */
    {"mfac", "moddev", "None", NOTHING, NULL, NULL},
    {"mfac", "optdev", "[]", NOTHING, NULL, NULL},
    {"mfac", "gpus", "[]", NOTHING, NULL, NULL},
    {"mfac", "gpus", "cuda:0", ABSENT, NULL, NULL},
    {"efcp", "dev", "None", NOTHING, NULL, NULL},
    {"efcp", "dev", "cuda:0", ABSENT, NULL, NULL},
};
enum { MEANINGS = sizeof meanings / sizeof meanings[0] };

static ng_options create_options_for(const char *who) {
  char system[32];
  const size_t n = strcspn(who, "/");
  ng_options o = standard_options();
  (void)snprintf(system, sizeof system, "%.*s", (int)n, who);
  if (who[n] == '/') return system_options(system, who + n + 1);
  assert_int_equal(ng_options_set(&o, "method", who, NULL, 0), NG_OK);
  return o;
}

static void check_meaning(const meaning *m) {
  ng_options o = create_options_for(m->who);
  double lr = -1;
  char first[128], *rest;
  (void)snprintf(first, sizeof first, "%s", m->first == NULL ? "" : m->first);
  for (char *name = strtok_r(first, ";", &rest); name != NULL; name = strtok_r(NULL, ";", &rest)) {
    char *value = strchr(name, '=');
    *value++ = 0;
    assert_int_equal(ng_options_set_published(&o, name, value, NULL, NULL, 0), NG_OK);
  }
  const ng_options before = o;
  message[0] = 0;
  const ng_status st =
      ng_options_set_published(&o, m->name, m->value, &lr, message, sizeof message);
  const bool refused = m->option != NULL && strcmp(m->option, REFUSED) == 0;
  const bool absent = m->option != NULL && strcmp(m->option, ABSENT) == 0;
  if (st != (refused ? NG_ERR_ARG : absent ? NG_ERR_ABSENT : NG_OK))
    fail_msg("%s: %s = '%s': %s", m->who, m->name, m->value, message);
  const bool is_lr = m->option != NULL && strcmp(m->option, LR) == 0;
  assert_true(lr == (is_lr ? strtod(m->reads, NULL) : -1));
  if (refused || absent) {
    assert_contains(message, m->name);
    if (m->reads != NULL) assert_contains(message, m->reads);
  }
  if (refused || absent || is_lr) {
    assert_memory_equal(&o, &before, sizeof o);
  } else if (m->option == NOTHING) {
    for (int32_t i = 0; i < ng_option_count(); i++) {
      char text[256] = "";
      assert_int_equal(ng_options_get(&before, option_info(i).name, text, sizeof text), NG_OK);
      assert_option(&o, option_info(i).name, text);
    }
  } else {
    char text[256] = "";
    assert_int_equal(ng_options_get(&o, m->option, text, sizeof text), NG_OK);
    if (strcmp(text, m->reads) != 0)
      fail_msg("%s: %s = '%s': %s is '%s', not '%s'", m->who, m->name, m->value, m->option, text,
               m->reads);
    if (strchr(m->who, '/') != NULL)
      assert_int_equal(ng_options_check(&o, message, sizeof message), NG_OK);
  }
}

static void published_values_have_their_meaning(void **state) {
  for (int i = 0; i < MEANINGS; i++)
    check_meaning(&meanings[i]);
}

/* Every published name accepts at least one value. */
static void every_published_name_accepts_a_value(void **state) {
  static const char *const some[] = {"1", "true",  "none",      "0.5",     "eigen", "compute",
                                     "",  "false", "decoupled", "soap-qr", "{}"};
  for (int32_t m = 0; m < ng_method_count(); m++) {
    ng_method_info info = {.struct_size = sizeof info};
    assert_int_equal(ng_method_at(m, &info), NG_OK);
    for (int32_t i = 0; i < info.published; i++) {
      ng_published_info p = {.struct_size = sizeof p};
      assert_int_equal(ng_method_published_at(m, i, &p), NG_OK);
      int32_t taken = 0;
      for (size_t k = 0; k < sizeof some / sizeof some[0]; k++) {
        ng_options o = create_options_for(info.name);
        if (ng_options_set_published(&o, p.name, some[k], NULL, NULL, 0) == NG_OK) taken++;
      }
      const bool any = strcmp(p.name, "skip_layers") == 0; /* any text is a pattern */
      if (taken == 0 || (taken == (int32_t)(sizeof some / sizeof some[0]) && !any))
        fail_msg("%s: %s takes %d", info.name, p.name, taken);
    }
  }
}

/* Arguments of constructors and programs (main.py, the custom section of the FFCV script, scripts of ASDL and
 * HuggingFace): each has a meaning here, or is refused with a reason. */
static const char *const programs[][2] = {
    {"kaisa", "factor_update_steps inv_update_steps damping factor_decay kl_clip lr "
              "accumulation_steps allreduce_bucket_cap_mb assignment_strategy colocate_factors "
              "compute_method compute_eigenvalue_outer_product grad_worker_fraction symmetry_aware "
              "grad_scaler factor_dtype inv_dtype skip_layers update_factors_in_hook"},
    {"dp-kfac", "lr damping fac_update_freq kfac_update_freq communicate_inverse_or_not kl_clip "
                "factor_decay exclude_vocabulary_size hook_enabled exclude_parts "
                "distribute_layer_factors"},
    {"spngd", "lr momentum cov_ema_decay damping stab_coeff constructor pi_type use_cholesky "
              "loss_scale acc_iters adjust_momentum communicate_after_forward "
              "only_pic_update_weight"},
    {"efcp",
     "lr ngrads k_init damp wd_type weight_decay momentum sparse dev gpus topk m use_bf16 "
     "load_random_model step_checkpoint wandb_project wandb_group wandb_name wandb_job_type rank "
     "warmup model dataset_path dataset_name optim k epochs batch_size shmp_upd_freq shmp_eps "
     "ggt_beta1 ggt_beta2 ggt_eps seed root_folder lr_sched maintain_lr_damp_ratio "
     "use_sparse_tensors use_sparse_cuda profile ignore_checks clip_grad_val topk_lr_on_update "
     "precondition_sparse_grad scale_prec_grad switch_to_sgd swa_start_epoch rt rt_path rt_epoch "
     "rt_type adaptive_damp rescaling_kfac64 use_sq_newton use_ef use_bn_model dataset width depth "
     "augmentation auto_augment cutout label_smoothing damping ema_decay nesterov "
     "curvature_update_interval log_interval num_workers train_size fix folder clip_type "
     "clip_bound ignore_bn_ln_type skip_embeddings fix_scaling damp_rule empty_buffer_on_decay "
     "cancel_grad_clip grad_momentum grad_norm_recovery kd_teacher kd_student kd_alpha kd_temp"},
    {"mfac", "lr momentum weight_decay ngrads damp moddev optdev gpus sparse model dataset "
             "dataset_path optim batchsize weightdecay save checkpoint data prefix "
             "adjust_sparsities nworkers nepochs drop_at drop_by pruner prun_every sparsities "
             "ngrads_schedule nrecomps prun_batchsize prun_lrs blocksize perbatch prunpages "
             "prundamp"},
    {"ggt", "lr wd r beta1 beta2 eps"},
    {"sparse-ggt", "k_init lr wd r beta1 beta2 eps"},
    {"lowrank-mfac", "lr momentum weight_decay ngrads num_grads damp rank moddev optdev model "
                     "dataset_path optim batchsize weightdecay save"},
};

static void every_argument_has_a_meaning_or_a_reason(void **state) {
  for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
    char list[2000];
    int left_out = 0, n = 0;
    (void)snprintf(list, sizeof list, "%s", programs[i][1]);
    for (char *name = strtok(list, " "); name != NULL; name = strtok(NULL, " "), n++) {
      ng_options o = create_options_for(programs[i][0]);
      const ng_status st = ng_options_set_published(&o, name, "1", NULL, message, sizeof message);
      if (st >= NG_OK) continue;
      if (strstr(message, "has no option") != NULL || strstr(message, name) == NULL)
        fail_msg("%s, %s: %s", programs[i][0], name, message);
      left_out += strstr(message, "is not supported: ") != NULL;
    }
    assert_true(left_out < n);
  }
}

/* ---- methods and systems ---------------------------------------------------------------------*/

/* Fail unless `differences`, "name=value ...", lists all options of o that differ from the table's defaults. */
static void expect_differences(const ng_options *o, const char *method, const char *differences) {
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
  fixture_set_real(&o, "damping", 7);
  fixture_set(&o, "skip_layers", "fc");
  fixture_set(&o, "update", "sgd");
  assert_int_equal(ng_options_set_system(&o, "Eva", "adasgd", message, sizeof message), NG_OK);
  expect_differences(&o, "adasgd", "sides=none damping=0.03 clip=none norm_block=none");
  assert_int_equal(ng_options_set(&o, "method", "natgrad", message, sizeof message), NG_OK);
  expect_differences(&o, "natgrad", "");
  assert_int_equal(ng_options_set(&o, "method", "eva", message, sizeof message), NG_OK);
  expect_differences(
      &o, "eva",
      "damping=0.03 stat_decay=0.05 stat_scale=eva stat_batch=16 calls=ema norm_block=none");
  /* values of a variant do not count as given; published options do */
  o = system_options("KAISA", "inverse");
  assert_int_equal(ng_options_set_published(&o, "damping", "0.5", NULL, NULL, 0), NG_OK);
  assert_int_equal(ng_options_set_published(&o, "kl_clip", "none", NULL, NULL, 0), NG_OK);
  assert_int_equal(ng_options_set(&o, "method", "natgrad", message, sizeof message), NG_OK);
  expect_differences(&o, "natgrad", "damping=0.5 clip=none");
  o = system_options("KAISA", "eigen");
  assert_int_equal(ng_options_set_published(&o, "compute_method", "inverse", NULL, NULL, 0), NG_OK);
  assert_int_equal(ng_options_set(&o, "method", "natgrad", message, sizeof message), NG_OK);
  expect_differences(&o, "natgrad", "damping_split=full");
}

static void rows_of_methods_are_complete(void **state) {
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
}

static void unknown_names_are_refused_with_a_hint(void **state) {
  ng_options o = standard_options();
  const ng_options before = o;
  assert_int_equal(ng_options_set(&o, "method", "kiasa", message, sizeof message), NG_ERR_ARG);
  assert_contains(message, "did you mean 'kaisa'?");

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
  assert_contains(message,
                  "KAISA, DP-KFACrepo, Eva, M-FAC, EFCP, chainerkfac, SOAP, Distributed Shampoo, "
                  "KellerJordan/Muon, torch.optim.Muon, kronfluence and curvlinops");
  assert_memory_equal(&o, &before, sizeof o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_values_have_their_meaning),
      cmocka_unit_test(every_published_name_accepts_a_value),
      cmocka_unit_test(every_argument_has_a_meaning_or_a_reason),
      cmocka_unit_test(systems_replace_all_options),
      cmocka_unit_test(rows_of_methods_are_complete),
      cmocka_unit_test(unknown_names_are_refused_with_a_hint),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
