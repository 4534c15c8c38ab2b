/* published_window.c: the option names of IST-DASLab/M-FAC and EFCP and the meaning of their values here; as published.c. */
#include "option/published.h"

static ng_status check_device(job *j) {
  if (is_none(j->value) || ng_is(j->value, "[]")) return NG_OK; /* the list of none */
  return refuse(j, NG_ERR_ABSENT, "none; gradients are stored on the device of the context");
}

static const char where_stored[] =
    "nothing to set: gradients are stored on the device of the context";

static const ng_published mfac_names[] = {
    LZ_LR,
    {"ngrads", "window", "the same: stored gradients", take_same},
    {"damp", "damping", "the same", take_same},
    {"momentum", "window_momentum", "the same, with window_momentum_form = average", take_same},
    {"weight_decay", "window_decay", "the same, with window_decay_form = gradient", take_same},
    {"sparse", "window_mask", "the same: weights that are 0 at ng_ready are masked", take_same},
    {"moddev", "", where_stored, check_device},
    {"optdev", "", where_stored, check_device},
    {"gpus", "", where_stored, check_device},
};

static const ng_published ggt_names[] = {
    LZ_LR,
    {"r", "window", "the same: stored gradients", take_same},
    {"eps", "damping", "the same: added to the singular values", take_same},
    {"beta1", "window_momentum", "the same, with window_momentum_form = gradient", take_same},
    {"beta2", "window_forget", "the same", take_same},
    {"wd", "window_decay", "the same, with window_decay_form = gradient", take_same},
};

/* k <= 1 is a density and k > 1 a number of entries, as in window_density. */
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

/* The dense variant takes the name and ignores it. */
static ng_status take_topk(job *j) {
  const bool layer = ng_same_word(j->value, "layer"), block = ng_same_word(j->value, "block");
  if (!layer && !block && !is_none(j->value) && !ng_same_word(j->value, "global"))
    return refuse(j, NG_ERR_ARG, "none, global, layer or block");
  if (ng_option_chosen(j->full, NG_OPTION_window_store) == NG_STORE_DENSE) return NG_OK;
  return put(j, "window_store", layer ? "topk-layer" : block ? "topk-block" : "topk");
}

static ng_status take_send(job *j) { return put_flag(j, "none", "added"); }

/* The modes of the sparse wrapper: 0 to 3 in the first m steps, 4 in all. */
static ng_status take_fix(job *j) {
  static const char *const fill[] = {"none", "gradient", "error", "rest", "added"};
  int64_t n;
  if (!ng_read_int(j->value, &n) || n < 0 || n > 4) {
    return refuse(j, NG_ERR_ARG, "a number from 0 to 4");
  }
  return put(j, "window_fill", fill[n]);
}

/* Steps of the published schedules divide lr by ten; any fall by half or more is one. */
static ng_status take_empty(job *j) { return put_flag(j, "0.5", "0"); }

static ng_status take_scaling(job *j) { return put_flag(j, "mfac-filled", "mfac"); }

/* The ASDL script clips the preconditioned gradient. */
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

static ng_status take_bf16(job *j) { return put_flag(j, "bf16", "f32"); }

/* The published program parses and ignores the value. */
static ng_status check_off(job *j) {
  int32_t on;
  return is_none(j->value) || ng_read_bool(j->value, &on) ? NG_OK
                                                          : refuse(j, NG_ERR_ARG, "true or false");
}

static ng_status check_feedback(job *j) {
  int32_t on;
  if (ng_read_bool(j->value, &on) && on) return NG_OK;
  return refuse(j, NG_ERR_ABSENT, "true; error feedback cannot be switched off");
}

static ng_status take_on_update(job *j) { return put_flag(j, "0", "1"); }

static ng_status take_scope(job *j) {
  const bool tensor = ng_same_word(j->value, "tensor");
  if (!tensor && !is_none(j->value) && !ng_same_word(j->value, "global"))
    return refuse(j, NG_ERR_ARG, "global or tensor");
  return put(j, "window_scope", tensor ? "parameter" : "model");
}

/* The rules need the number of steps, lr or losses, which only the trainer has. */
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
    {"ngrads", "window", "the same: stored gradients", take_same},
    {"k_init", "window_density", "the same; none: 1", take_density},
    {"damp", "damping", "the same", take_same},
    {"wd_type", "window_decay_form",
     "wd: none, weight decay is the update's, 1 - wd without lr there; reg and both: direction",
     take_wd_type},
    {"weight_decay", "window_decay", "the same, by window_decay_form", take_same},
    {"momentum", "window_momentum", "the same, with window_momentum_form = heavy-ball", take_same},
    {"sparse", "window_mask", "the same: weights that are 0 at ng_ready are masked", take_same},
    {"topk", "window_store", "none, global: topk; layer: topk-layer; block: topk-block", take_topk},
    {"topk_lr_on_update", "window_feedback_lr", "false: 1, lr times the gradient enters",
     take_on_update},
    {"precondition_sparse_grad", "window_fill", "true: none; false: added", take_send},
    {"ignore_bn_ln_type", "skip_layers", "all: *norm*,*bn*; none, modules: nothing", take_ignore},
    {"k", "window_density", "the same; none: 1", take_density},
    {"m", "window", "the same: stored gradients", take_same},
    {"use_bf16", "window_dtype", "true: bf16; false: f32", take_bf16},
    {"fix", "window_fill", "0 none, 1 gradient, 2 error, 3 rest, 4 added", take_fix},
    {"fix_scaling", "window_function", "true: mfac-filled; false: mfac", take_scaling},
    {"empty_buffer_on_decay", "window_empty", "true: 0.5; false: 0", take_empty},
    {"clip_type", "clip", "norm, or val: value; of the preconditioned gradient", take_clip_type},
    {"clip_bound", "clip_bound", "the same; 0, if set after clip_type: clip = none",
     take_clip_bound},
    {"use_ef", "", "nothing to set: only true", check_feedback},
    {"use_sparse_tensors", "", "nothing to set: the published programs ignore it", check_off},
    {"use_sparse_cuda", "", "nothing to set: the published programs ignore it", check_off},
    {"maintain_lr_damp_ratio", "", "nothing to set: the published program ignores it", check_off},
    {"scale_prec_grad", "", "nothing to set: the published program ignores it", check_off},
    {"adaptive_damp", "", "nothing to set: the published program ignores it", check_off},
    {"rescaling_kfac64", "", "nothing to set: the published program ignores it", check_off},
    {"use_sq_newton", "", "nothing to set: the published program ignores it", check_off},
    {"use_bn_model", "", "nothing to set: the published program ignores it", check_off},
    {"damp_rule", "",
     "nothing to set: only none; rules are --schedule damping~L-down@STEPS and --damping-rule of "
     "natgrad train",
     check_damp_rule},
    {"param_groups", "", "nothing to set: groups have their own numbers in the update",
     check_groups},
    {"dev", "", where_stored, check_device},
    {"gpus", "", where_stored, check_device},
};

static const ng_published sparse_ggt_names[] = {
    LZ_LR,
    {"r", "window", "the same: stored gradients", take_same},
    {"k_init", "window_density", "the same; none: 1", take_density},
    {"topk", "window_store", "none, global: topk; layer: topk-layer; block: topk-block", take_topk},
    {"eps", "damping", "the same: added to the singular values", take_same},
    {"beta1", "", "nothing to set: the published class takes it and ignores it", check_size},
    {"beta2", "", "nothing to set: the published class takes it and ignores it", check_size},
    {"wd", "window_decay", "the same, with window_decay_form = gradient", take_same},
};

static const ng_published lowrank_names[] = {
    LZ_LR,
    {"ngrads", "window", "the same: stored gradients", take_same},
    {"num_grads", "window", "the same: stored gradients", take_same},
    {"damp", "damping", "the same", take_same},
    {"rank", "window_rank", "the same", take_same},
    {"scope", "window_scope",
     "global, none (the aggregate classes): model; tensor (the others): parameter", take_scope},
    {"momentum", "window_momentum", "the same, with window_momentum_form = average", take_same},
    {"weight_decay", "window_decay", "the same, with window_decay_form = gradient", take_same},
    {"moddev", "", where_stored, check_device},
    {"optdev", "", where_stored, check_device},
};

/* ---- sparse first-order methods --------------------------------------------------------------*/

static ng_status check_zero(job *j) {
  double v;
  int32_t on;
  if (is_none(j->value) || (ng_read_real(j->value, &v) && v == 0)) return NG_OK;
  if (ng_read_bool(j->value, &on) && !on) return NG_OK;
  return refuse(j, NG_ERR_ABSENT, "0 or false; nothing else is supported");
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
      {"topk", "window_store", "none, global: topk; layer: topk-layer; block: topk-block",         \
       take_topk},                                                                                 \
  {                                                                                                \
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

/* Arguments of the programs around the optimizers: main.py, the FFCV section, the scripts of ASDL and HuggingFace. */
static const ng_left_out efcp_out[] = {
    {"model|dataset|dataset_path|dataset_name|load_random_model|width|depth|train_size|"
     "augmentation|auto_augment|cutout|num_workers",
     "natgrad train has options for data and model"},
    {"optim|epochs|batch_size|batchsize|seed|label_smoothing|nesterov|lr_sched|log_interval|ignore_"
     "checks|profile|warmup",
     "natgrad train has options for the run"},
    {"root_folder|folder|save|step_checkpoint|rt|rt_path|rt_epoch|rt_type",
     "natgrad train has --out"},
    {"wandb_project|wandb_group|wandb_name|wandb_job_type", "natgrad train writes log.jsonl"},
    {"clip_grad_val|cancel_grad_clip", "clip gradients before the step"},
    {"swa_start_epoch", "average weights outside: natgrad train --average-weights"},
    {"switch_to_sgd", "use another optimizer"},
    {"rank", "an option of lowrank-mfac"},
    {"ggt_beta1|ggt_beta2|ggt_eps", "ggt and sparse-ggt have beta1, beta2, eps"},
    {"shmp_upd_freq|shmp_eps", "Shampoo is not a method here"},
    {"damping|ema_decay|curvature_update_interval",
     "an option of the other optimizers of that script"},
    {"grad_momentum|grad_norm_recovery|skip_embeddings|kd_teacher|kd_student|kd_alpha|kd_temp",
     "its module is not in the published repository"},
    {NULL, NULL}};

/* Arguments of the scripts of M-FAC (main_optim.py, main_prun.py) and of EFCP's main_low_rank.py. */
static const ng_left_out mfac_out[] = {
    {"model|dataset|dataset_path|optim|batchsize|save",
     "natgrad train has options for data, model and run"},
    {"weightdecay", "the name is weight_decay, as at the optimizer"},
    {"checkpoint|data|prefix|adjust_sparsities|nworkers|nepochs|drop_at|drop_by|pruner|prun_every|"
     "sparsities|ngrads_schedule|nrecomps|prun_batchsize|prun_lrs|blocksize|perbatch|prunpages|"
     "prundamp",
     "natgrad prune prunes"},
    {NULL, NULL}};

const ng_names ng_names_mfac = NAMES_BUT(mfac_names, mfac_out), ng_names_ggt = NAMES(ggt_names),
               ng_names_efcp = NAMES_BUT(efcp_names, efcp_out),
               ng_names_sparse_ggt = NAMES(sparse_ggt_names),
               ng_names_lowrank = NAMES_BUT(lowrank_names, mfac_out);
