/* published.c: option names of the published programs, and the meaning of their values in this library.  The names of
 * window methods are in published_window.c.
 *
 * Each program has its own list, because a name may have different meanings in different programs.  For example,
 * factor_decay is the weight of the old average in KAISA and of the new sample in kfac_pytorch; kl_clip = 0 is refused
 * by KAISA, disables the clip in kfac_pytorch, and selects clip = rescale in eva. */
#include "option/published.h"

static ng_status set_clip(const job *j, ng_clip_kind kind) {
  ng_options_set_values(j->full,
                        (const ng_option_setting[]){{NG_OPTION_clip, kind}, NG_VALUES_END});
  return NG_OK;
}

/* KAISA documents None as "no clip", although its constructor refuses None. */
static ng_status set_kl_clip(job *j) {
  if (is_none(j->value)) return set_clip(j, NG_CLIP_NONE);
  const ng_status st = set_option(j, "kl_clip", j->value);
  return st == NG_OK ? set_clip(j, NG_CLIP_KL) : st;
}

/* kfac_pytorch: 0 and negative numbers disable the clip. */
static ng_status set_positive_kl_clip(job *j) {
  double v;
  if (!is_none(j->value) && ng_read_real(j->value, &v) && v <= 0) return set_clip(j, NG_CLIP_NONE);
  return set_kl_clip(j);
}

/* eva: 0 scales PD to the norm of the gradient; None and negative numbers disable the clip. */
static ng_status set_kl_clip_or_rescale(job *j) {
  double v;
  const bool number = !is_none(j->value) && ng_read_real(j->value, &v);
  if (number && v == 0) return set_clip(j, NG_CLIP_RESCALE);
  return number && v < 0 ? set_clip(j, NG_CLIP_NONE) : set_kl_clip(j);
}

/* SAM of lzhangbv/eva: the radius is kl_clip if kl_clip > 0, else 0.01. */
static ng_status set_radius(job *j) {
  double v;
  if (is_none(j->value) || (ng_read_real(j->value, &v) && v <= 0))
    return set_option(j, "radius", "0.01");
  return set_option(j, "radius", j->value);
}

/* Refuse 0, which means no sample in the published program, but all samples in this library. */
static ng_status set_sample_count(job *j) {
  double n;
  if (!ng_read_whole(j->value, &n) || n < 1) return refuse_value(j, NG_ERR_ARG, whole_number_word);
  return set_option(j, j->row->option, j->value);
}

/* The value is xi in F <- (1 - xi) F + xi X, where X is the new sample.  In May 2022 kfac_pytorch exchanged the weights
 * of F and X, but kept the name factor_decay and its default 0.95.  So F is almost the last sample there. */
static ng_status set_stat_decay(job *j) {
  char text[32];
  double xi;
  if (!ng_read_real(j->value, &xi) || xi < 0 || xi > 1) {
    return refuse_value(j, NG_ERR_ARG, "a number from 0 to 1, the weight of the new sample");
  }
  ng_write_real(1 - xi, text, sizeof text);
  return set_option(j, "stat_decay", text);
}

/* Return whether compute_method, or the variant of the program, has selected a solver with eigenvalues. */
static bool solves_by_eigen(const job *j) { return ng_is_eigen(j->full->base.solver); }

/* KAISA's "inverse" adds lambda to each factor; its "eigen" adds lambda to the products of eigenvalues.  "eigen" keeps
 * a solver with eigenvalues, because set_prediv may have set it: arguments may come in any order. */
static ng_status set_compute_method(job *j) {
  const bool eigen = ng_same_word(j->value, "eigen");
  if (!eigen && !ng_same_word(j->value, "inverse"))
    return refuse_value(j, NG_ERR_ARG, "eigen or inverse");
  static const ng_option_setting eigen_values[] = {{NG_OPTION_solver, NG_SOLVER_EIGEN_PREDIV},
                                                   {NG_OPTION_damping_split, NG_SPLIT_JOINT},
                                                   NG_VALUES_END};
  if (!eigen) ng_options_set_values(j->full, ng_kaisa_inverse);
  if (eigen && !solves_by_eigen(j)) ng_options_set_values(j->full, eigen_values);
  return NG_OK;
}

/* With "inverse" the flag has no effect, as in the published program. */
static ng_status set_prediv(job *j) {
  int32_t flag;
  if (!ng_read_bool(j->value, &flag)) return refuse_value(j, NG_ERR_ARG, "true or false");
  return solves_by_eigen(j) ? set_option(j, "solver", flag ? "eigen-prediv" : "eigen") : NG_OK;
}

/* KAISA searches the names and classes of layers for a regular expression (re.search).  Translate the expression to
 * globs; refuse it if no globs match the same names. */
static ng_status set_skip_layers(job *j) {
  char globs[NG_TEXT_SIZE];
  const char *v = j->value;
  if (is_none(v) || ng_is(v, "[]")) return set_option(j, j->row->option, "");
  if (v[0] == '[' && (v[1] == '"' || v[1] == '\''))
    return refuse_value(j, NG_ERR_ARG, "one expression; join a list with '|'");
  if (ng_globs_from_regex(v, globs, sizeof globs)) return set_option(j, j->row->option, globs);
  return refuse_value(
      j, NG_ERR_ABSENT,
      "texts, [...], '.', '.*', \\d, ^ and $ joined by '|'; or set globs with skip_layers");
}

/* exclude_vocabulary_size excludes the linear layers with this number of outputs. */
static ng_status skip_output_count(job *j) {
  double width;
  char glob[32];
  if (is_none(j->value)) return set_option(j, j->row->option, "");
  if (!ng_read_whole(j->value, &width) || width < 1)
    return refuse_value(j, NG_ERR_ARG, "none or a width >= 1");
  (void)snprintf(glob, sizeof glob, "linear/%.0f", width);
  return set_option(j, j->row->option, glob);
}

/* In the published program only the class `inverse` reads this argument: the class `eigen` always sends its eigenbases,
 * and the DP classes never send inverses. */
static ng_status set_worker_fraction(job *j) {
  int32_t flag;
  const bool local = j->full->base.statistics == NG_STATISTICS_LOCAL;
  if (!ng_read_bool(j->value, &flag)) return refuse_value(j, NG_ERR_ARG, "true or false");
  if (local && flag) return refuse_value(j, NG_ERR_ARG, "false: DP-KFAC never sends inverses");
  if (!local && !flag && solves_by_eigen(j)) {
    return refuse_value(j, NG_ERR_ARG,
                        "true: the published eigen class always sends its eigenbases");
  }
  return set_option(j, j->row->option, flag ? "1" : "0");
}

/* With none, A and G of a layer are on two ranks if there are more ranks than layers.  In the published program only
 * MPD-KFAC's eigen class reads the argument. */
static ng_status set_colocate(job *j) {
  int32_t flag = 0;
  const bool none = is_none(j->value);
  if (!none && !ng_read_bool(j->value, &flag))
    return refuse_value(j, NG_ERR_ARG, "true, false or none");
  if (j->full->base.statistics == NG_STATISTICS_LOCAL || !solves_by_eigen(j)) {
    return flag ? refuse_value(j, NG_ERR_ARG, "false or none: only MPD-KFAC's eigen has it")
                : NG_OK;
  }
  const ng_status st = set_option(j, "placement", none ? "mpd-kfac" : "round-robin");
  return st == NG_OK ? set_option(j, j->row->option, flag ? "0" : "1") : st;
}

/* Names of dtypes in Python, with or without "torch.".  None means the dtype of the data, which is f32. */
#define DTYPES                                                                                     \
  "float32=f32|float=f32|fp32=f32|f32|none=f32|float64=f64|double=f64|f64|bfloat16=bf16|bf16|"     \
  "float16=f16|half=f16|fp16=f16|f16"
static ng_status set_dtype(job *j) {
  if (strncmp(j->value, "torch.", 6) == 0) j->value += 6;
  return set_word(j);
}

/* Arguments of the constructor of gpauloski/kfac-pytorch (Pauloski et al., SC'21, arXiv 2107.01739).  Columns of all
 * lists: published name, option of this library ("": none), meaning (natgrad info --published), function, words. */
static const ng_published kaisa_names[] = {
    SAME("factor_update_steps", "stat_period"),
    SAME("inv_update_steps", "solve_period"),
    SAME("damping", "damping"),
    {"factor_decay", "stat_decay", "sets stat_decay: weight of the old average", set_value, NULL},
    {"kl_clip", "kl_clip", "sets kl_clip and clip = kl; none: clip = none", set_kl_clip, NULL},
    LR,
    {"accumulation_steps", "",
     "nothing to set: calls=mean (the default) averages the micro-batches", set_word,
     whole_number_word},
    {"compute_method", "solver",
     "eigen: eigen-prediv with damping_split = joint; inverse: cholesky with damping_split = full",
     set_compute_method, NULL},
    {"compute_eigenvalue_outer_product", "solver",
     "true: eigen-prediv; false: eigen; ignored with inverse", set_prediv, NULL},
    {"grad_worker_fraction", "grad_worker_fraction",
     "sets grad_worker_fraction; COMM_OPT: 1, HYBRID_OPT: 0.5, MEM_OPT: 0", set_value,
     "COMM_OPT=1|HYBRID_OPT=0.5|MEM_OPT=0"},
    {"factor_dtype", "factor_dtype", "float32, float64, bfloat16, float16 by any name; none: f32",
     set_dtype, DTYPES},
    {"inv_dtype", "inverse_dtype", "float32, float64, bfloat16, float16 by any name", set_dtype,
     DTYPES},
    {"skip_layers", "skip_layers",
     "a regular expression that globs can express; join a list with '|'", set_skip_layers, NULL},
    {"symmetry_aware", "",
     "nothing to set: sums of factors and inverses are always sent as triangles; the numbers are "
     "the same",
     set_word, "true|false"},
    SAME("allreduce_bucket_cap_mb", "stat_bucket_mb"),
    {"colocate_factors", "colocate", "sets colocate; false also with eigen-prediv", set_word,
     "true=1|false=0"},
    {"assignment_strategy", "placement", "COMPUTE: kaisa; MEMORY: kaisa-memory", set_word,
     "compute=kaisa|memory=kaisa-memory"},
    {"update_factors_in_hook", "",
     "nothing to set: statistics are summed when observed and completed in the step; a layer "
     "that runs twice in a step with accumulation_steps = 1 is calls = ema",
     set_word, "true|false"},
    {"grad_scaler", "", "nothing to set: the loss scale is ng_batch.loss_scale", set_word,
     "none; give ng_batch.loss_scale"},
};

/* Rows of both programs of lzhangbv, kfac_pytorch and eva. */
#define LZ_FACTORS                                                                                 \
  SAME("fac_update_freq", "stat_period"),                                                          \
      ROW("factor_decay", "stat_decay",                                                            \
          "1 - factor_decay; factor_decay is the weight of the new sample", set_stat_decay, NULL)
#define LZ_SOLVES SAME("kfac_update_freq", "solve_period")
#define LZ_LAYERS                                                                                  \
  ROW("exclude_vocabulary_size", "skip_layers", "the glob linear/N; none: no layer",               \
      skip_output_count, NULL),                                                                    \
      ROW("hook_enabled", "", "nothing to set: true; to pause, observe nothing", set_word,         \
          "true; to pause, observe nothing"),                                                      \
      ROW("exclude_parts", "",                                                                     \
          "nothing to set: only the empty text is accepted; a step needs all its parts", set_word, \
          "none; all parts of a step are needed")
#define EVA_LAYERS                                                                                 \
  ROW("kfac_batch_size", "stat_batch", "sets stat_batch: the number of first samples of a rank",   \
      set_sample_count, NULL),                                                                     \
      LZ_LAYERS
#define EVA_STEP                                                                                   \
  SAME("damping", "damping"),                                                                      \
      ROW("kl_clip", "kl_clip",                                                                    \
          "sets kl_clip and clip = kl; 0: clip = rescale; none and negative: clip = none",         \
          set_kl_clip_or_rescale, NULL),                                                           \
      LR

/* lzhangbv/kfac_pytorch, the program of MPD-KFAC and DP-KFAC. */
static const ng_published lz_names[] = {
    LZ_FACTORS,
    LZ_SOLVES,
    SAME("damping", "damping"),
    {"kl_clip", "kl_clip", "sets kl_clip and clip = kl; none, 0 and negative: clip = none",
     set_positive_kl_clip, NULL},
    LR,
    {"communicate_inverse_or_not", "grad_worker_fraction",
     "true: 1; false: 0, gradients are sent instead; always true with MPD's eigen, false with DP",
     set_worker_fraction, NULL},
    {"distribute_layer_factors", "colocate",
     "none: placement = mpd-kfac; true: 0, false: 1, with placement = round-robin", set_colocate,
     NULL},
    LZ_LAYERS,
};

/* lzhangbv/eva (Zhang, Shi & Li, ICLR 2023, arXiv 2308.02123). */
static const ng_published eva_names[] = {
    LZ_FACTORS,
    {"kfac_update_freq", "", "nothing to set: the published Eva ignores the argument", set_word,
     whole_number_word},
    EVA_STEP,
    EVA_LAYERS,
};

static const ng_published eva_kfac_names[] = {
    LZ_FACTORS,
    LZ_SOLVES,
    {"diag_blocks", "factor_blocks", "sets factor_blocks; cuts between channels", set_value, NULL},
    EVA_STEP,
    EVA_LAYERS,
};

/* All classes of lzhangbv/eva have the same arguments.  If a class ignores an argument, only check its value. */
static const ng_published adasgd_names[] = {
    SAME("damping", "damping"),
    LR,
    {"fac_update_freq", "", "nothing to set: there are no statistics", set_word, whole_number_word},
    {"kfac_update_freq", "", "nothing to set: nothing is solved", set_word, whole_number_word},
    {"kfac_batch_size", "", "nothing to set: there are no statistics", set_word, whole_number_word},
    {"factor_decay", "", "nothing to set: there are no averages", set_word, "a number from 0"},
    {"kl_clip", "", "nothing to set: the published class ignores the argument", set_word,
     "none|a number"},
    LZ_LAYERS,
};

static const ng_published sam_names[] = {
    LZ_FACTORS,
    {"kfac_update_freq", "",
     "nothing to set: nothing is solved; that program sums averages over ranks at this interval",
     set_word, whole_number_word},
    {"kl_clip", "radius", "sets radius; none, 0 and negative: 0.01", set_radius, NULL},
    {"damping", "", "nothing to set: the published class ignores the argument", set_word,
     "a number from 0"},
    LR,
    EVA_LAYERS,
};

/* Arguments of the optimizer of tyohei/chainerkfac (Osawa et al. 2019, arXiv 1811.12019). */
static const ng_published spngd_names[] = {
    LR,
    {"momentum", "", "nothing to set: an argument of ng_step_sgd", set_word, "a number from 0"},
    {"cov_ema_decay", "stat_decay",
     "1 - cov_ema_decay; cov_ema_decay is the weight of the new sample", set_stat_decay, NULL},
    SAME("damping", "damping"),
    SAME("stab_coeff", "norm_damping"),
    {"pi_type", "damping_split", "tracenorm: pi; none: root", set_word, "tracenorm=pi|none=root"},
    {"use_cholesky", "",
     "nothing to set: Cholesky always; the inverse by LU is the same to rounding", set_word,
     "true|false"},
    {"loss_scale", "", "nothing to set: the loss scale is ng_batch.loss_scale", set_word,
     "none|a number above 0"},
    {"adjust_momentum", "",
     "nothing to set: momentum times min(1, lr / the lr before), given to ng_step_sgd", set_word,
     "true|false"},
    {"acc_iters", "", "nothing to set: calls=mean (the default) averages the micro-batches",
     set_word, whole_number_word},
    {"weight_decay", "", "nothing to set: the decay is added to gradients before the step",
     set_word, "a number from 0"},
    {"communicate_after_forward", "", "nothing to set: no number changes; see ng_batch.last",
     set_word, "true|false"},
    {"constructor", "",
     "nothing to set: only none is accepted; skip_layers and norm_block select the layers with "
     "curvature",
     set_word, "none; all parts of a step are needed"},
    {"only_pic_update_weight", "",
     "nothing to set: the rank that updates a weight does not change its value", set_word,
     "true|false"},
};

/* ---- set a published option ------------------------------------------------------------------*/

const ng_published_names ng_names_kaisa = NAMES(kaisa_names), ng_names_lz = NAMES(lz_names),
                         ng_names_eva = NAMES(eva_names), ng_names_eva_kfac = NAMES(eva_kfac_names),
                         ng_names_adasgd = NAMES(adasgd_names), ng_names_sam = NAMES(sam_names),
                         ng_names_spngd = NAMES(spngd_names);

ng_status ng_published_set(const ng_published_names *names, const char *method, const char *name,
                           job *j) {
  char list[NG_MESSAGE] = ""; /* "a|b|c": all names of the rows, to suggest the nearest */
  for (int32_t i = 0; i < names->count; i++) {
    j->row = &names->row[i];
    if (ng_is(j->row->name, name)) return j->row->set(j);
    if (i > 0) ng_name_append(list, sizeof list, "|");
    ng_name_append(list, sizeof list, j->row->name);
  }
  for (const ng_refused_names *out = names->refused; out != NULL && out->names != NULL; out++) {
    if (!ng_in_list(out->names, name)) continue;
    return ng_fail_to(j->message, j->size, NG_ERR_ABSENT, "%s: '%s' is not supported: %s", method,
                      name, out->reason);
  }
  return ng_fail_to(j->message, j->size, NG_ERR_ARG, "%s has no option '%s'%s", method,
                    ng_shorten(name).text, ng_hint_list(name, list).text);
}

/* ---- SOAP ------------------------------------------------------------------------------------*/

/* The weight of the old Gram matrices is shampoo_beta, or beta2 if shampoo_beta is negative. stat_decay is marked as given
 * only if shampoo_beta is not negative: arguments may come in any order. */
static ng_status set_betas(job *j) {
  const ng_status st = set_pair(j, "first_decay", "second_decay");
  if (!j->full->given[NG_OPTION_stat_decay]) j->full->base.stat_decay = j->full->base.second_decay;
  return st;
}

static ng_status set_shampoo_beta(job *j) {
  double beta;
  if (!ng_read_real(j->value, &beta)) return refuse_value(j, NG_ERR_ARG, "a number");
  if (beta >= 0.0) return set_option(j, "stat_decay", j->value);
  j->full->given[NG_OPTION_stat_decay] = false;
  j->full->base.stat_decay = j->full->base.second_decay;
  return NG_OK;
}

static const ng_published soap_names[] = {
    LR,
    {"betas", "first_decay",
     "sets first_decay and second_decay; without shampoo_beta also stat_decay", set_betas, NULL},
    {"shampoo_beta", "stat_decay", "sets stat_decay; negative: to second_decay", set_shampoo_beta,
     NULL},
    SAME("eps", "moment_epsilon"),
    {"weight_decay", "", "nothing to set: weight_decay of ng_step_sgd, with decoupled = 1",
     set_word, "a number from 0"},
    SAME("precondition_frequency", "solve_period"),
    SAME("max_precond_dim", "max_axis"),
    {"merge_dims", "merge_axes", "true: left; false: none", set_word, "true=left|false=none"},
    {"precondition_1d", "vector_factor", "sets vector_factor", set_word, "true=1|false=0"},
    {"normalize_grads", "normalize", "sets normalize", set_word, "true=1|false=0"},
    {"data_format", "", "nothing to set: only channels_first is accepted", set_word,
     "channels_first|none; bind channels-last weights by their strides"},
    {"correct_bias", "bias_correction", "sets bias_correction", set_word, "true=1|false=0"},
};
const ng_published_names ng_names_soap = NAMES(soap_names);

/* ---- Distributed Shampoo ---------------------------------------------------------------------*/

/* beta3 and start_preconditioning_step have the value -1 for beta1 and precondition_frequency. Arguments may come in any
 * order, so filter_decay and solve_start are marked as given only if their own argument is not -1. */
static void set_derived_values(job *j) {
  ng_settings *o = &j->full->base;
  if (!j->full->given[NG_OPTION_filter_decay]) o->filter_decay = o->first_decay;
  if (!j->full->given[NG_OPTION_solve_start]) o->solve_start = o->solve_period;
}

static ng_status set_shampoo_option(job *j) {
  const bool pair = ng_is(j->row->name, "betas");
  const ng_status st =
      pair ? set_pair(j, "first_decay", "stat_decay") : set_option(j, j->row->option, j->value);
  set_derived_values(j);
  return st;
}

/* The program has beta2 = 0.99 for RMSprop and 0.999 for Adam, if grafting.beta2 is not given. */
static ng_status set_grafting(job *j) {
  const ng_status st = set_word(j);
  if (st == NG_OK && !j->full->given[NG_OPTION_second_decay])
    j->full->base.second_decay = ng_is(j->value, "rmsprop") ? 0.99 : 0.999;
  return st;
}

/* In the SOAP forms (eigen, qr), vectors have a matrix L, because the default of ignored_basis_change_dims is {}. */
static ng_status set_gram_form(job *j) {
  const ng_status st = set_word(j);
  if (st == NG_OK && !j->full->given[NG_OPTION_vector_factor])
    j->full->base.vector_factor = j->full->base.gram_form >= NG_GRAMS_EIGEN;
  return st;
}

static ng_status set_unless_minus_1(job *j) {
  double v;
  if (!ng_read_real(j->value, &v)) return refuse_value(j, NG_ERR_ARG, "a number");
  if (v != -1.0) return set_option(j, j->row->option, j->value);
  j->full->given[ng_option_find(j->row->option)] = false;
  set_derived_values(j);
  return NG_OK;
}

static const ng_published shampoo_names[] = {
    LR,
    {"betas", "first_decay", "sets first_decay and stat_decay; without beta3 also filter_decay",
     set_shampoo_option, NULL},
    {"beta3", "filter_decay", "sets filter_decay; -1: to first_decay", set_unless_minus_1, NULL},
    SAME("epsilon", "damping"),
    {"weight_decay", "", "nothing to set: weight_decay of ng_step_sgd", set_word,
     "a number from 0"},
    {"weight_decay_type", "",
     "nothing to set: decoupled is the weight_decay of ng_step_sgd; corrected: times lr / its "
     "first "
     "value; l2: add weight_decay w to the gradient",
     set_word, "decoupled|corrected|l2"},
    {"momentum", "", "nothing to set: momentum of ng_step_sgd", set_word, "none|a number from 0"},
    {"use_nesterov", "", "nothing to set: nesterov of ng_step_sgd", set_word, "true|false"},
    SAME("max_preconditioner_dim", "max_axis"),
    {"precondition_frequency", "solve_period",
     "sets solve_period; without start_preconditioning_step also solve_start", set_shampoo_option,
     NULL},
    {"start_preconditioning_step", "solve_start", "sets solve_start; -1: to solve_period",
     set_unless_minus_1, NULL},
    {"use_bias_correction", "bias_correction", "sets bias_correction", set_word, "true=1|false=0"},
    {"grafting", "grafting",
     "the class of grafting_config without PreconditionerConfig; rmsprop without grafting.beta2 "
     "sets "
     "second_decay to 0.99",
     set_grafting, "none=none|sgd=sgd|adam=adam|adagrad=adagrad|rmsprop=rmsprop"},
    {"grafting.epsilon", "moment_epsilon", "sets moment_epsilon", set_value, NULL},
    {"grafting.beta2", "second_decay", "sets second_decay", set_value, NULL},
    {"target_parameter_dimensionality", "kept_axes", "sets kept_axes", set_value, NULL},
    {"preconditioner", "gram_form",
     "root: RootInv; soap-eigh, soap-qr: EigenvalueCorrected with eigh or QR, which also set "
     "vector_factor",
     set_gram_form, "root=plain|soap-eigh=eigen|soap-qr=qr"},
    {"preconditioner.ignored_basis_change_dims", "vector_factor", "{}: 1; {1: [0]}: 0", set_word,
     "{}=1|{1: [0]}=0"},
    {"preconditioner.use_trace_scaling", "root_trace", "sets root_trace", set_word,
     "true=1|false=0"},
    {"preconditioner.inverse_exponent_override", "root_exponents",
     "sets root_exponents: {2: 0.5, 4: {0: 0.25, 2: 0.0}} is \"2: 0.5; 4: 0.25 * 0 *\"", set_value,
     NULL},
};
const ng_published_names ng_names_shampoo = NAMES(shampoo_names);

/* ---- Muon ------------------------------------------------------------------------------------*/

/* Set three options from "a|b|c" or "(a, b, c)". */
static ng_status set_triple(job *j) {
  static const char *const option[] = {"muon_a", "muon_b", "muon_c"};
  char text[96], *rest;
  int n = 0;
  ng_status st = NG_OK;
  if (is_none(j->value)) return NG_OK;
  (void)snprintf(text, sizeof text, "%.95s", j->value);
  for (char *w = strtok_r(text, "|,() []", &rest); w != NULL && st == NG_OK;
       w = strtok_r(NULL, "|,() []", &rest)) {
    if (n == 3) return refuse_value(j, NG_ERR_ARG, "three numbers");
    st = set_option(j, option[n++], w);
  }
  return st == NG_OK && n < 3 ? refuse_value(j, NG_ERR_ARG, "three numbers") : st;
}

/* Set the betas of Adam from "a|b" or "(a, b)". */
static ng_status set_adam_betas(job *j) {
  char text[64], *rest;
  if (is_none(j->value)) return NG_OK;
  (void)snprintf(text, sizeof text, "%.63s", j->value);
  const char *one = strtok_r(text, "|,() []", &rest), *two = strtok_r(NULL, "|,() []", &rest);
  if (two == NULL) return refuse_value(j, NG_ERR_ARG, "two numbers");
  const ng_status st = set_option(j, "first_decay", one);
  return st == NG_OK ? set_option(j, "second_decay", two) : st;
}

/* The groups of the published programs have rates of their own, as groups of ng_set_group. */
static ng_status set_own_rate(job *j) {
  double v;
  if (!ng_read_real(j->value, &v) || v < 0) return refuse_value(j, NG_ERR_ARG, "a number >= 0");
  return set_option(j, "adam_lr", "1");
}

/* Names of arguments. Arguments of the group or optimizer for other parameters begin with "adam.". */
#define MUON_NAMES                                                                                 \
  LR, SAME("momentum", "muon_momentum"),                                                           \
      ROW("weight_decay", "", "nothing to set: weight_decay of ng_step_sgd, with decoupled = 1",   \
          set_word, "a number from 0"),                                                            \
      ROW("nesterov", "muon_nesterov", "sets muon_nesterov", set_word, "true=1|false=0"),          \
      SAME("ns_steps", "muon_steps"),                                                              \
      ROW("adam.lr", "adam_lr", "1; the value is lr of a group of ng_set_group", set_own_rate,     \
          NULL),                                                                                   \
      ROW("adam.betas", "first_decay", "sets first_decay and second_decay", set_adam_betas, NULL), \
      SAME("adam.eps", "moment_epsilon"),                                                          \
      ROW("adam.weight_decay", "", "nothing to set: weight_decay of the group", set_word,          \
          "a number from 0")

static const ng_published muon_names[] = {
    MUON_NAMES,
    {"bf16", "muon_rounding", "true: each, as published; false: none", set_word,
     "true=each|false=none"},
};
const ng_published_names ng_names_muon = NAMES(muon_names);

static const ng_published torch_muon_names[] = {
    MUON_NAMES,
    SAME("eps", "muon_epsilon"),
    {"ns_coefficients", "muon_a", "sets muon_a, muon_b, muon_c", set_triple, NULL},
    {"adjust_lr_fn", "muon_scale", "original: matrix; match_rms_adamw: rms", set_word,
     "none=matrix|original=matrix|match_rms_adamw=rms"},
    {"bf16", "muon_rounding", "true: fused, as published; false: none", set_word,
     "true=fused|false=none"},
};
const ng_published_names ng_names_torch_muon = NAMES(torch_muon_names);
