/* published_window.c: the option names of IST-DASLab/M-FAC and EFCP, and what their values mean here.
 * In and out as in published.c; take_* sets what the value means, check_* only looks at it. */
#include "option/published.h"

static ng_status check_device(job *j) {
  return is_none(j->value) ? NG_OK
                           : refuse(j, NG_ERR_ABSENT, "none; gradients are where the context is");
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

/* k up to 1 is a density there. */
static ng_status take_density(job *j) {
  double v;
  if (!is_none(j->value) && ng_read_real(j->value, &v) && v > 1) {
    return refuse(j, NG_ERR_ABSENT, "a density, 0 < k <= 1; entries are not counted here");
  }
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
  return put(j, "skip_layers", all ? "norm|bn" : "");
}

static ng_status take_topk(job *j) {
  return put(j, "window_topk", is_none(j->value) ? "global" : j->value);
}

static ng_status take_send(job *j) {
  int32_t sparse;
  if (!ng_read_bool(j->value, &sparse)) return refuse(j, NG_ERR_ARG, "true or false");
  return put(j, "window_rest", sparse ? "kept" : "added");
}

static ng_status take_on_update(job *j) {
  int32_t on;
  if (!ng_read_bool(j->value, &on)) return refuse(j, NG_ERR_ARG, "true or false");
  return put(j, "window_feedback_lr", on ? "0" : "1");
}

static ng_status take_scope(job *j) {
  const bool tensor = ng_same_word(j->value, "tensor");
  if (!tensor && !is_none(j->value) && !ng_same_word(j->value, "global"))
    return refuse(j, NG_ERR_ARG, "global or tensor");
  return put(j, "window_scope", tensor ? "parameter" : "model");
}

static ng_status check_groups(job *j) {
  if (is_none(j->value) || ng_in_list("one|get_param_groups", j->value)) return NG_OK;
  return refuse(j, NG_ERR_ARG, "one or get_param_groups");
}

static const ng_published efcp_names[] = {
    LZ_LR,
    {"ngrads", "window", "the same: gradients that are kept", take_same},
    {"k_init", "window_density", "the same up to 1; none: 1", take_density},
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
    {"ignore_bn_ln_type", "skip_layers", "all: norm|bn; none, modules: nothing", take_ignore},
    {"param_groups", "", "nothing to set: they have numbers of their own in the update",
     check_groups},
};

static const ng_published sparse_ggt_names[] = {
    LZ_LR,
    {"r", "window", "the same: gradients that are kept", take_same},
    {"k_init", "window_density", "the same up to 1; none: 1", take_density},
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
};

const ng_names ng_names_mfac = NAMES(mfac_names), ng_names_ggt = NAMES(ggt_names),
               ng_names_efcp = NAMES(efcp_names), ng_names_sparse_ggt = NAMES(sparse_ggt_names),
               ng_names_lowrank = NAMES(lowrank_names);
