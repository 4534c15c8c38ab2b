/* published_window.c: the option names of IST-DASLab/M-FAC and EFCP, and what their values mean here.
 * In and out as in published.c; take_* sets what the value means, check_* only looks at it. */
#include "option/published.h"

static ng_status check_device(job *j) {
  if (is_none(j->value) || ng_is(j->value, "[]")) return NG_OK; /* the list of none */
  return refuse(j, NG_ERR_ABSENT, "none; gradients are where the context is");
}

static const char where_kept[] = "nothing to set: gradients are kept where the context is";

static const ng_published mfac_names[] = {
    LZ_LR,
    {"ngrads", "window", "the same: gradients that are kept", take_same},
    {"damp", "damping", "the same", take_same},
    {"momentum", "window_momentum", "the same, with window_momentum_form = average", take_same},
    {"weight_decay", "window_decay", "the same, with window_decay_form = gradient", take_same},
    {"sparse", "window_mask", "the same: weights that are 0 at ng_ready take no part", take_same},
    {"moddev", "", where_kept, check_device},
    {"optdev", "", where_kept, check_device},
    {"gpus", "", where_kept, check_device},
};

static const ng_published ggt_names[] = {
    LZ_LR,
    {"r", "window", "the same: gradients that are kept", take_same},
    {"eps", "damping", "the same: added to the singular values", take_same},
    {"beta1", "window_momentum", "the same, with window_momentum_form = gradient", take_same},
    {"beta2", "window_forget", "the same", take_same},
    {"wd", "window_decay", "the same, with window_decay_form = gradient", take_same},
};

/* k up to 1 is a density there, and above it a number of entries, as here. */
static ng_status take_density(job *j) {
  return put(j, "window_density", is_none(j->value) ? "1" : j->value);
}

/* wd is w <- (1 - wd) w, which belongs to the update; reg adds wd / damp w to the direction. */
static ng_status take_wd_type(job *j) {
  const bool wd = ng_same_word(j->value, "wd") || ng_is(j->value, "0");
  const bool reg = ng_same_word(j->value, "reg") || ng_same_word(j->value, "both") ||
                   ng_is(j->value, "1") || ng_is(j->value, "2");
  if (!wd && !reg) return refuse(j, NG_ERR_ARG, "wd, reg or both");
  return put(j, "window_decay_form", wd ? "none" : "direction");
}

/* The published test for `modules` skips nothing. */
static ng_status take_ignore(job *j) {
  const bool all = ng_same_word(j->value, "all");
  if (!all && !is_none(j->value) && !ng_same_word(j->value, "modules")) {
    return refuse(j, NG_ERR_ARG, "none, all or modules");
  }
  return put(j, "skip_layers", all ? "*norm*,*bn*" : "");
}

static ng_status take_topk(job *j) {
  return put(j, "window_topk", is_none(j->value) ? "global" : j->value);
}

static ng_status take_send(job *j) {
  int32_t sparse;
  if (!ng_read_bool(j->value, &sparse)) return refuse(j, NG_ERR_ARG, "true or false");
  return put(j, "window_rest", sparse ? "kept" : "added");
}

/* The modes of the sparse wrapper, of the first m steps but for the last. */
static ng_status take_fix(job *j) {
  static const char *const fill[] = {"none", "gradient", "error", "rest", "none"};
  int64_t n;
  if (!ng_read_int(j->value, &n) || n < 0 || n > 4) {
    return refuse(j, NG_ERR_ARG, "a number from 0 to 4");
  }
  const ng_status st = put(j, "window_rest", n == 4 ? "added" : "kept");
  return st == NG_OK ? put(j, "window_fill", fill[n]) : st;
}

static ng_status put_flag(job *j, const char *name, const char *yes, const char *no) {
  int32_t on;
  if (!ng_read_bool(j->value, &on)) return refuse(j, NG_ERR_ARG, "true or false");
  return put(j, name, on ? yes : no);
}

/* Steps of the published schedules divide lr by ten; any fall by half or more is one. */
static ng_status take_empty(job *j) { return put_flag(j, "window_empty", "0.5", "0"); }

static ng_status take_scaling(job *j) { return put_flag(j, "window_divisor", "filled", "window"); }

/* Of the preconditioned gradient, as the ASDL script has it. */
static ng_status take_clip_type(job *j) {
  if (is_none(j->value)) return put(j, "clip", "none");
  const bool val = ng_same_word(j->value, "val");
  if (!val && !ng_same_word(j->value, "norm")) return refuse(j, NG_ERR_ARG, "norm or val");
  return put(j, "clip", val ? "value" : "norm");
}

static ng_status take_clip_bound(job *j) {
  double v;
  if (ng_read_real(j->value, &v) && v == 0) return put(j, "clip", "none");
  if (ng_option_chosen(j->full, NG_OPTION_clip) != NG_CLIP_VALUE) (void)put(j, "clip", "norm");
  return put(j, "clip_bound", j->value);
}

static ng_status take_bf16(job *j) { return put_flag(j, "window_dtype", "bf16", "f32"); }

/* Parsed there, looked at by nobody. */
static ng_status check_off(job *j) {
  int32_t on;
  return is_none(j->value) || ng_read_bool(j->value, &on) ? NG_OK
                                                          : refuse(j, NG_ERR_ARG, "true or false");
}

static ng_status check_feedback(job *j) {
  int32_t on;
  if (ng_read_bool(j->value, &on) && on) return NG_OK;
  return refuse(j, NG_ERR_ABSENT, "true; what is left out is always kept");
}

static ng_status take_on_update(job *j) { return put_flag(j, "window_feedback_lr", "0", "1"); }

static ng_status take_scope(job *j) {
  const bool tensor = ng_same_word(j->value, "tensor");
  if (!tensor && !is_none(j->value) && !ng_same_word(j->value, "global"))
    return refuse(j, NG_ERR_ARG, "global or tensor");
  return put(j, "window_scope", tensor ? "parameter" : "model");
}

/* A rule of the step needs the number of steps, which no argument there says; the others follow lr and losses,
 * which the trainer has. */
static ng_status check_damp_rule(job *j) {
  if (is_none(j->value)) return NG_OK;
  return refuse(j, NG_ERR_ABSENT,
                "none; L, Q, C, EK, SK: natgrad train --schedule damping~L-down@STEPS; KeepRatio: "
                "--damping-rule; Tikhonov is not supported");
}

static ng_status check_groups(job *j) {
  if (is_none(j->value) || ng_in_list("one|get_param_groups", j->value)) return NG_OK;
  return refuse(j, NG_ERR_ARG, "one or get_param_groups");
}

static const ng_published efcp_names[] = {
    LZ_LR,
    {"ngrads", "window", "the same: gradients that are kept", take_same},
    {"k_init", "window_density", "the same; none: 1", take_density},
    {"damp", "damping", "the same", take_same},
    {"wd_type", "window_decay_form",
     "wd: none, weight decay is the update's, 1 - wd without lr there; reg and both: direction",
     take_wd_type},
    {"weight_decay", "window_decay", "the same, by window_decay_form", take_same},
    {"momentum", "window_momentum", "the same, with window_momentum_form = heavy-ball", take_same},
    {"sparse", "window_mask", "the same: weights that are 0 at ng_ready take no part", take_same},
    {"topk", "window_topk", "the same; none: global", take_topk},
    {"topk_lr_on_update", "window_feedback_lr", "false: 1, what enters is lr times the gradient",
     take_on_update},
    {"precondition_sparse_grad", "window_rest", "true: kept; false: added", take_send},
    {"ignore_bn_ln_type", "skip_layers", "all: *norm*,*bn*; none, modules: nothing", take_ignore},
    {"k", "window_density", "the same; none: 1", take_density},
    {"m", "window", "the same: gradients that are kept", take_same},
    {"use_bf16", "window_dtype", "true: bf16; false: f32", take_bf16},
    {"fix", "window_fill", "0 none, 1 gradient, 2 error, 3 rest, 4 window_rest = added", take_fix},
    {"fix_scaling", "window_divisor", "true: filled; false: window", take_scaling},
    {"empty_buffer_on_decay", "window_empty", "true: 0.5; false: 0", take_empty},
    {"clip_type", "clip", "norm, or val: value; of the preconditioned gradient", take_clip_type},
    {"clip_bound", "clip_bound", "the same; 0, behind clip_type: clip = none", take_clip_bound},
    {"use_ef", "", "nothing to set: only true", check_feedback},
    {"use_sparse_tensors", "", "nothing to set: the published programs do not look at it",
     check_off},
    {"use_sparse_cuda", "", "nothing to set: the published programs do not look at it", check_off},
    {"maintain_lr_damp_ratio", "", "nothing to set: the published program does not look at it",
     check_off},
    {"scale_prec_grad", "", "nothing to set: the published program does not look at it", check_off},
    {"adaptive_damp", "", "nothing to set: the published program does not look at it", check_off},
    {"rescaling_kfac64", "", "nothing to set: the published program does not look at it",
     check_off},
    {"use_sq_newton", "", "nothing to set: the published program does not look at it", check_off},
    {"use_bn_model", "", "nothing to set: the published program does not look at it", check_off},
    {"damp_rule", "",
     "nothing to set: only none; rules are --schedule damping~L-down@STEPS and --damping-rule of "
     "natgrad train",
     check_damp_rule},
    {"param_groups", "", "nothing to set: they have numbers of their own in the update",
     check_groups},
    {"dev", "", where_kept, check_device},
    {"gpus", "", where_kept, check_device},
};

static const ng_published sparse_ggt_names[] = {
    LZ_LR,
    {"r", "window", "the same: gradients that are kept", take_same},
    {"k_init", "window_density", "the same; none: 1", take_density},
    {"topk", "window_topk", "the same; none: global", take_topk},
    {"eps", "damping", "the same: added to the singular values", take_same},
    {"beta1", "", "nothing to set: the published class takes it and does not look at it",
     check_size},
    {"beta2", "", "nothing to set: the published class takes it and does not look at it",
     check_size},
    {"wd", "window_decay", "the same, with window_decay_form = gradient", take_same},
};

static const ng_published lowrank_names[] = {
    LZ_LR,
    {"ngrads", "window", "the same: gradients that are kept", take_same},
    {"num_grads", "window", "the same: gradients that are kept", take_same},
    {"damp", "damping", "the same", take_same},
    {"rank", "window_rank", "the same", take_same},
    {"scope", "window_scope",
     "global, none (the aggregate classes): model; tensor (the others): parameter", take_scope},
    {"momentum", "window_momentum", "the same, with window_momentum_form = average", take_same},
    {"weight_decay", "window_decay", "the same, with window_decay_form = gradient", take_same},
    {"moddev", "", where_kept, check_device},
    {"optdev", "", where_kept, check_device},
};

/* ---- sparse first-order methods --------------------------------------------------------------*/

static ng_status check_zero(job *j) {
  double v;
  int32_t on;
  if (is_none(j->value) || (ng_read_real(j->value, &v) && v == 0)) return NG_OK;
  if (ng_read_bool(j->value, &on) && !on) return NG_OK;
  return refuse(j, NG_ERR_ABSENT, "0 or false; there is no other here");
}

/* (0.9, 0.999) */
static ng_status take_betas(job *j) {
  char text[64], *end;
  if (is_none(j->value)) return NG_OK;
  (void)snprintf(text, sizeof text, "%.63s", j->value + (j->value[0] == '('));
  char *comma = strchr(text, ',');
  if (comma == NULL) return refuse(j, NG_ERR_ARG, "two numbers with a comma between, or none");
  *comma++ = 0;
  comma += strspn(comma, " ");
  end = comma + strcspn(comma, ") ");
  *end = 0;
  const ng_status st = put(j, "window_momentum", text);
  return st == NG_OK ? put(j, "window_forget", comma) : st;
}

/* wd: the update's; reg and both add it to the gradient. */
static ng_status take_wd_added(job *j) {
  const ng_status st = take_wd_type(j);
  if (st != NG_OK) return st;
  const bool none = ng_option_chosen(j->full, NG_OPTION_window_decay_form) == NG_DECAY_NONE;
  return put(j, "window_decay_form", none ? "none" : "gradient");
}

#define TOPK_NAMES                                                                                 \
  LZ_LR, {"k_init", "window_density", "the same; none: 1", take_density},                          \
      {"topk", "window_topk", "the same; none: global", take_topk}, {                              \
    "weight_decay", "window_decay", "the same, with window_decay_form = gradient", take_same       \
  }

static const ng_published topk_sgd_names[] = {
    TOPK_NAMES,
    {"momentum", "window_momentum", "the same, with window_momentum_form = heavy-ball", take_same},
    {"dampening", "", "nothing to set: only 0", check_zero},
    {"nesterov", "", "nothing to set: only false", check_zero},
};
static const ng_published topk_adam_names[] = {
    TOPK_NAMES,
    {"betas", "window_momentum", "two numbers: window_momentum and window_forget", take_betas},
    {"eps", "damping", "the same: added to the root of the second moment", take_same},
    {"amsgrad", "", "nothing to set: only false", check_zero},
};
static const ng_published topk_adagrad_names[] = {
    TOPK_NAMES,
    {"eps", "damping", "the same: added to the root of the sum", take_same},
    {"wd_type", "window_decay_form", "wd: none; reg and both: gradient", take_wd_added},
};
const ng_names ng_names_topk_sgd = NAMES(topk_sgd_names),
               ng_names_topk_adam = NAMES(topk_adam_names),
               ng_names_topk_adagrad = NAMES(topk_adagrad_names);

/* Arguments of the programs around them: main.py, the FFCV section, the scripts of ASDL and HuggingFace. */
static const ng_left_out efcp_out[] = {
    {"model", "what a run trains on is said to natgrad train"},
    {"dataset", "what a run trains on is said to natgrad train"},
    {"dataset_path", "what a run trains on is said to natgrad train"},
    {"dataset_name", "what a run trains on is said to natgrad train"},
    {"load_random_model", "what a run trains on is said to natgrad train"},
    {"width", "what a run trains on is said to natgrad train"},
    {"depth", "what a run trains on is said to natgrad train"},
    {"train_size", "what a run trains on is said to natgrad train"},
    {"augmentation", "what a run trains on is said to natgrad train"},
    {"auto_augment", "what a run trains on is said to natgrad train"},
    {"cutout", "what a run trains on is said to natgrad train"},
    {"num_workers", "what a run trains on is said to natgrad train"},
    {"optim", "what a run does and when it ends is said to natgrad train"},
    {"epochs", "what a run does and when it ends is said to natgrad train"},
    {"batch_size", "what a run does and when it ends is said to natgrad train"},
    {"batchsize", "what a run does and when it ends is said to natgrad train"},
    {"seed", "what a run does and when it ends is said to natgrad train"},
    {"label_smoothing", "what a run does and when it ends is said to natgrad train"},
    {"nesterov", "what a run does and when it ends is said to natgrad train"},
    {"lr_sched", "what a run does and when it ends is said to natgrad train"},
    {"log_interval", "what a run does and when it ends is said to natgrad train"},
    {"ignore_checks", "what a run does and when it ends is said to natgrad train"},
    {"profile", "what a run does and when it ends is said to natgrad train"},
    {"warmup", "what a run does and when it ends is said to natgrad train"},
    {"root_folder", "where a run keeps what it made is said to natgrad train"},
    {"folder", "where a run keeps what it made is said to natgrad train"},
    {"save", "where a run keeps what it made is said to natgrad train"},
    {"step_checkpoint", "where a run keeps what it made is said to natgrad train"},
    {"rt", "where a run keeps what it made is said to natgrad train"},
    {"rt_path", "where a run keeps what it made is said to natgrad train"},
    {"rt_epoch", "where a run keeps what it made is said to natgrad train"},
    {"rt_type", "where a run keeps what it made is said to natgrad train"},
    {"wandb_project", "there is no log but that of natgrad train"},
    {"wandb_group", "there is no log but that of natgrad train"},
    {"wandb_name", "there is no log but that of natgrad train"},
    {"wandb_job_type", "there is no log but that of natgrad train"},
    {"clip_grad_val", "gradients are clipped by whoever made them, before the step"},
    {"cancel_grad_clip", "gradients are clipped by whoever made them, before the step"},
    {"swa_start_epoch",
     "an average of weights is kept by whoever moves them: natgrad train --average-weights"},
    {"switch_to_sgd", "methods are changed by whoever calls them: another preconditioner; natgrad "
                      "train --switch-to-sgd, in epochs"},
    {"rank", "of another method: lowrank-mfac has rank"},
    {"ggt_beta1", "of other methods: ggt and sparse-ggt have beta1, beta2, eps"},
    {"ggt_beta2", "of other methods: ggt and sparse-ggt have beta1, beta2, eps"},
    {"ggt_eps", "of other methods: ggt and sparse-ggt have beta1, beta2, eps"},
    {"shmp_upd_freq", "Shampoo is no method here"},
    {"shmp_eps", "Shampoo is no method here"},
    {"damping", "of the other optimizers of that script"},
    {"ema_decay", "of the other optimizers of that script"},
    {"curvature_update_interval", "of the other optimizers of that script"},
    {"grad_momentum", "its module is not in the published repository"},
    {"grad_norm_recovery", "its module is not in the published repository"},
    {"skip_embeddings", "its module is not in the published repository"},
    {"kd_teacher", "its module is not in the published repository"},
    {"kd_student", "its module is not in the published repository"},
    {"kd_alpha", "its module is not in the published repository"},
    {"kd_temp", "its module is not in the published repository"},
    {NULL, NULL}};

/* Arguments of the scripts of M-FAC (main_optim.py, main_prun.py) and of EFCP's main_low_rank.py. */
static const ng_left_out mfac_out[] = {
    {"model", "what a run trains on, how long, and where it goes is said to natgrad train"},
    {"dataset", "what a run trains on, how long, and where it goes is said to natgrad train"},
    {"dataset_path", "what a run trains on, how long, and where it goes is said to natgrad train"},
    {"optim", "what a run trains on, how long, and where it goes is said to natgrad train"},
    {"batchsize", "what a run trains on, how long, and where it goes is said to natgrad train"},
    {"save", "what a run trains on, how long, and where it goes is said to natgrad train"},
    {"weightdecay", "weight_decay is its name here, as at the optimizer"},
    {"checkpoint", "pruning is natgrad prune"},
    {"data", "pruning is natgrad prune"},
    {"prefix", "pruning is natgrad prune"},
    {"adjust_sparsities", "pruning is natgrad prune"},
    {"nworkers", "pruning is natgrad prune"},
    {"nepochs", "pruning is natgrad prune"},
    {"drop_at", "pruning is natgrad prune"},
    {"drop_by", "pruning is natgrad prune"},
    {"pruner", "pruning is natgrad prune"},
    {"prun_every", "pruning is natgrad prune"},
    {"sparsities", "pruning is natgrad prune"},
    {"ngrads_schedule", "pruning is natgrad prune"},
    {"nrecomps", "pruning is natgrad prune"},
    {"prun_batchsize", "pruning is natgrad prune"},
    {"prun_lrs", "pruning is natgrad prune"},
    {"blocksize", "pruning is natgrad prune"},
    {"perbatch", "pruning is natgrad prune"},
    {"prunpages", "pruning is natgrad prune"},
    {"prundamp", "pruning is natgrad prune"},
    {NULL, NULL}};

const ng_names ng_names_mfac = {mfac_names, (int32_t)(sizeof mfac_names / sizeof mfac_names[0]),
                                mfac_out},
               ng_names_ggt = NAMES(ggt_names),
               ng_names_efcp = {efcp_names, (int32_t)(sizeof efcp_names / sizeof efcp_names[0]),
                                efcp_out},
               ng_names_sparse_ggt = NAMES(sparse_ggt_names),
               ng_names_lowrank = {lowrank_names,
                                   (int32_t)(sizeof lowrank_names / sizeof lowrank_names[0]),
                                   mfac_out};
