/* settings_published.c: keys of chainerkfac's training scripts and configurations (arXiv 1811.12019, 2002.06015)
 * without a setting of that name here, and their replacement ("nothing": why there is none). */
#include "settings_rows.h"

#include <string.h>

typedef struct published {
  const char *name, *hint;
} published;

static const published list[] = {
    {"train", "data = images:LIST,root=DIR, or images:DIR"},
    {"val", "test=LIST of images: in data"},
    {"train_root", "root=DIR of images: in data"},
    {"val_root", "root=DIR of images: in data"},
    {"mean", "mean=FILE.npy or mean=R/G/B of images: in data"},
    {"loaderjob", "threads=N of images: in data"},
    {"iterator", "threads=N of images: in data; the samples are the same"},
    {"arch_file", "model = resnet50d"},
    {"arch_name", "model = resnet50d"},
    {"arch", "model = mlp-1000, lenet, resnet50 or vgg16"},
    {"initmodel", "nothing: a run begins with its own weights, or resumes"},
    {"batchsize", "batch"},
    {"batch_size", "batch"},
    {"val_batchsize", "nothing: batch; test losses do not depend on it"},
    {"epoch", "epochs"},
    {"num_epochs", "epochs"},
    {"normalize_weight", "rescale_weights = shrink"},
    {"nw_skip_scale_comp", "nothing: rescale_weights takes the norm of every weight in every step"},
    {"lr_plan", "lr_schedule = polynomial:POWER@START,END"},
    {"epoch_lr_decay_start", "START of lr_schedule = polynomial:POWER@START,END"},
    {"polynomial_decay_p", "POWER of lr_schedule = polynomial:POWER@START,END"},
    {"polynomial_epoch", "END of lr_schedule = polynomial:POWER@START,END"},
    {"re_rate", "erase_rate"},
    {"re_area_rl", "erase_area_low"},
    {"re_area_rh", "erase_area_high"},
    {"re_aspect_rl", "erase_aspect_low"},
    {"cov_ema_decay", "stat_decay = 1 - cov_ema_decay: here it is the weight of the old average"},
    {"stab_coeff", "norm_damping; the published script drops its own 64 and runs with 16"},
    {"use_tensor_core", "nothing: it is never read there"},
    {"communicate_after_forward", "nothing: it changes no number"},
    {"only_pic_update_weight", "update_ranks = owner"},
    {"test", "log_every"},
    {"stats", "log_every"},
    {"config_out", "out: DIR/config.json"},
    {"snapshot_interval", "checkpoint_every, in steps"},
    {"no_cuda", "nothing: training is on the processor"},
    {"distributed", "nothing: acc_iters takes the batches one after the other"},
    {"plot", "natgrad compare draws"},
    {"pi_type", "damping_split = pi; root for anything but tracenorm"},
    {"use_cholesky", "solver = cholesky"},
    {"loss_scale", "nothing: gradients are f32"},
    {"maintain_lr_damp_ratio", "damping_rule = keep-ratio"},
    {"swa_start_epoch", "average_weights"},
    {"swa_start", "average_weights, in epochs"},
    {"swa_freq", "average_every"},
    {"swa_lr", "average_lr"},
    {"damp_rule", "damping_rule = keep-ratio, or schedule = damping~L-down@STEPS"},
    {"constructor", "skip_layers, norm_block: what gets curvature"},
};

const char *settings_published(const char *name) {
  for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
    if (strcmp(list[i].name, name) == 0) return list[i].hint;
  }
  return NULL;
}
