/* published_window.c: as published.c, for the programs of window methods: IST-DASLab/M-FAC and IST-DASLab/EFCP. */
#include "option/published.h"

static const char stored_on_device[] =
    "nothing to set: gradients are stored on the device of the context";
static const char ignored_by_program[] = "nothing to set: the published program ignores it";

/* Words (ng_published.words) that several rows share. */
static const char store_words[] = "none=topk|global=topk|layer=topk-layer|block=topk-block";
static const char any_flag_words[] = "none|true|false";
static const char off_words[] = "0|0.0|false|none; nothing else is supported";
static const char no_device_words[] = "none|[]; gradients are stored on the device of the context";

/* Rows that several lists share.  `form`: the default of the method, which the meaning mentions. */
#define MOMENTUM(name, form)                                                                       \
  ROW(name, "window_momentum", "sets window_momentum and window_momentum_form = " form, set_value, \
      NULL)
#define DECAY(name)                                                                                \
  ROW(name, "window_decay", "sets window_decay and window_decay_form = gradient", set_value, NULL)
#define MASK                                                                                       \
  ROW("sparse", "window_mask", "sets window_mask: weights that are 0 at ng_ready are masked",      \
      set_value, NULL)
#define DENSITY(name)                                                                              \
  ROW(name, "window_density", "sets window_density; none: 1", set_value, "none=1")
#define STORE                                                                                      \
  ROW("topk", "window_store", "none, global: topk; layer: topk-layer; block: topk-block",          \
      set_topk_store, store_words)
#define EPS(to) ROW("eps", "damping", "sets damping: added to the " to, set_value, NULL)

static const ng_published mfac_names[] = {
    LR,
    SAME("ngrads", "window"),
    SAME("damp", "damping"),
    MOMENTUM("momentum", "average"),
    DECAY("weight_decay"),
    MASK,
    {"moddev", "", stored_on_device, set_word, no_device_words},
    {"optdev", "", stored_on_device, set_word, no_device_words},
    {"gpus", "", stored_on_device, set_word, no_device_words},
};

static const ng_published ggt_names[] = {
    LR,
    SAME("r", "window"),
    EPS("singular values"),
    MOMENTUM("beta1", "gradient"),
    SAME("beta2", "window_forget"),
    DECAY("wd"),
};

/* In the dense variant a valid value has no effect. */
static ng_status set_topk_store(job *j) {
  const ng_options before = *j->full;
  const ng_status st = set_word(j);
  if (before.base.window_store == NG_STORE_DENSE) *j->full = before;
  return st;
}

/* 0 disables the clip.  A bound enables clip = norm, unless clip_type has selected clip = value. */
static ng_status set_clip_bound(job *j) {
  double v;
  if (ng_read_real(j->value, &v) && v == 0) return set_option(j, "clip", "none");
  if (j->full->base.clip != NG_CLIP_VALUE) (void)set_option(j, "clip", "norm");
  return set_option(j, "clip_bound", j->value);
}

static const ng_published efcp_names[] = {
    LR,
    SAME("ngrads", "window"),
    DENSITY("k_init"),
    SAME("damp", "damping"),
    {"wd_type", "window_decay_form",
     "wd: none, weight decay is the update's, 1 - wd without lr there; reg and both: direction",
     set_word, "wd=none|0=none|reg=direction|both=direction|1=direction|2=direction"},
    {"weight_decay", "window_decay", "sets window_decay, by window_decay_form", set_value, NULL},
    MOMENTUM("momentum", "heavy-ball"),
    MASK,
    STORE,
    {"topk_lr_on_update", "window_feedback_lr", "false: 1, lr times the gradient enters", set_word,
     "true=0|false=1"},
    {"precondition_sparse_grad", "window_fill", "true: none; false: added", set_word,
     "true=none|false=added"},
    {"ignore_bn_ln_type", "skip_layers", "all: *norm*,*bn*; none, modules: nothing", set_word,
     "none=|modules=|all=*norm*,*bn*"},
    DENSITY("k"),
    SAME("m", "window"),
    {"use_bf16", "window_dtype", "true: bf16; false: f32", set_word, "true=bf16|false=f32"},
    {"fix", "window_fill", "0 none, 1 gradient, 2 error, 3 rest, 4 added", set_word,
     "0=none|1=gradient|2=error|3=rest|4=added"},
    {"fix_scaling", "window_function", "true: mfac-filled; false: mfac", set_word,
     "true=mfac-filled|false=mfac"},
    {"empty_buffer_on_decay", "window_empty", "true: 0.5; false: 0", set_word, "true=0.5|false=0"},
    {"clip_type", "clip", "norm, or val: value; of the preconditioned gradient", set_word,
     "none|norm|val=value"},
    {"clip_bound", "clip_bound", "sets clip_bound; 0, if set after clip_type: clip = none",
     set_clip_bound, NULL},
    {"use_ef", "", "nothing to set: only true is accepted; error feedback cannot be switched off",
     set_word, "true; error feedback cannot be switched off"},
    {"use_sparse_tensors", "", ignored_by_program, set_word, any_flag_words},
    {"use_sparse_cuda", "", ignored_by_program, set_word, any_flag_words},
    {"maintain_lr_damp_ratio", "", ignored_by_program, set_word, any_flag_words},
    {"scale_prec_grad", "", ignored_by_program, set_word, any_flag_words},
    {"adaptive_damp", "", ignored_by_program, set_word, any_flag_words},
    {"rescaling_kfac64", "", ignored_by_program, set_word, any_flag_words},
    {"use_sq_newton", "", ignored_by_program, set_word, any_flag_words},
    {"use_bn_model", "", ignored_by_program, set_word, any_flag_words},
    {"damp_rule", "",
     "nothing to set: only none is accepted; rules are --schedule damping~L-down@STEPS and "
     "--damping-rule of "
     "natgrad train",
     set_word,
     "none; L, Q, C, EK, SK: natgrad train --schedule damping~L-down@STEPS; KeepRatio: "
     "--damping-rule; Tikhonov is not supported"},
    {"param_groups", "", "nothing to set: groups have their own numbers in the update", set_word,
     "none|one|get_param_groups"},
    {"dev", "", stored_on_device, set_word, no_device_words},
    {"gpus", "", stored_on_device, set_word, no_device_words},
};

static const ng_published sparse_ggt_names[] = {
    LR,
    SAME("r", "window"),
    DENSITY("k_init"),
    STORE,
    EPS("singular values"),
    {"beta1", "", "nothing to set: the published class ignores the argument", set_word,
     "a number from 0"},
    {"beta2", "", "nothing to set: the published class ignores the argument", set_word,
     "a number from 0"},
    DECAY("wd"),
};

static const ng_published lowrank_names[] = {
    LR,
    SAME("ngrads", "window"),
    SAME("num_grads", "window"),
    SAME("damp", "damping"),
    SAME("rank", "window_rank"),
    {"scope", "window_scope",
     "global, none (the aggregate classes): model; tensor (the others): parameter", set_word,
     "none=model|global=model|tensor=parameter"},
    MOMENTUM("momentum", "average"),
    DECAY("weight_decay"),
    {"moddev", "", stored_on_device, set_word, no_device_words},
    {"optdev", "", stored_on_device, set_word, no_device_words},
};

/* ---- sparse first-order methods --------------------------------------------------------------*/

static ng_status set_betas(job *j) { return set_pair(j, "window_momentum", "window_forget"); }

#define TOPK_NAMES LR, DENSITY("k_init"), STORE, DECAY("weight_decay")

static const ng_published topk_sgd_names[] = {
    TOPK_NAMES,
    MOMENTUM("momentum", "heavy-ball"),
    {"dampening", "", "nothing to set: only 0 is accepted", set_word, off_words},
    {"nesterov", "", "nothing to set: only false is accepted", set_word, off_words},
};
static const ng_published topk_adam_names[] = {
    TOPK_NAMES,
    {"betas", "window_momentum", "two numbers: window_momentum and window_forget", set_betas, NULL},
    EPS("root of the second moment"),
    {"amsgrad", "", "nothing to set: only false is accepted", set_word, off_words},
};
static const ng_published topk_adagrad_names[] = {
    TOPK_NAMES,
    EPS("root of the sum"),
    {"wd_type", "window_decay_form", "wd: none; reg and both: gradient", set_word,
     "wd=none|0=none|reg=gradient|both=gradient|1=gradient|2=gradient"},
};
const ng_published_names ng_names_topk_sgd = NAMES(topk_sgd_names),
                         ng_names_topk_adam = NAMES(topk_adam_names),
                         ng_names_topk_adagrad = NAMES(topk_adagrad_names);

/* Arguments of the programs that use the optimizers of EFCP (main.py with its section for FFCV, the scripts of ASDL and
 * HuggingFace), and what to use instead. */
static const ng_refused_names efcp_refused[] = {
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
static const ng_refused_names mfac_refused[] = {
    {"model|dataset|dataset_path|optim|batchsize|save",
     "natgrad train has options for data, model and run"},
    {"weightdecay", "the name is weight_decay, as at the optimizer"},
    {"checkpoint|data|prefix|adjust_sparsities|nworkers|nepochs|drop_at|drop_by|pruner|prun_every|"
     "sparsities|ngrads_schedule|nrecomps|prun_batchsize|prun_lrs|blocksize|perbatch|prunpages|"
     "prundamp",
     "natgrad prune prunes"},
    {NULL, NULL}};

const ng_published_names ng_names_mfac = NAMES_BUT(mfac_names, mfac_refused),
                         ng_names_ggt = NAMES(ggt_names),
                         ng_names_efcp = NAMES_BUT(efcp_names, efcp_refused),
                         ng_names_sparse_ggt = NAMES(sparse_ggt_names),
                         ng_names_lowrank = NAMES_BUT(lowrank_names, mfac_refused);
