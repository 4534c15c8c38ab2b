/* settings_table.h: the settings of a training run, as a list of macros:
 *
 *   #define ROW(kind, field, name, value, standard, lower, upper, fixed, help) ...
 *   SETTINGS_TABLE(ROW)
 *
 * kind      type: TEXT, REAL, WHOLE (whole number) or FLAG
 * value     name of the value in the help; NULL: a flag
 * standard  the default value; "default" of a REAL is stored as -1, and the trainer computes the value
 * lower     smallest value; `upper`: largest value
 * fixed     1: a resumed run must have the same value
 *
 * To add a setting: a row here, and a line in tests/t_settings.c. If a text has a fixed set of words, also a row in
 * check_word (settings.c). */
#ifndef SETTINGS_TABLE_H
#define SETTINGS_TABLE_H

#define SETTINGS_MANY                                                                              \
  1e15 /* largest value of settings that are integers; doubles represent such integers exactly */

/* Settings shared by `train` and `compare`. */
#define SETTINGS_SHARED(X)                                                                         \
  X(TEXT, data, "data", "SPEC", "digits", 0, 0, 1, "the data set, see above (digits)")             \
  X(TEXT, model, "model", "NAME", "mlp", 0, 0, 1,                                                  \
    "the network; `natgrad train --models` lists them (mlp)")                                      \
  X(TEXT, optimizer, "optimizer", "NAME", "sgd", 0, 0, 1,                                          \
    "sgd | adamw: how a method of the library updates weights (sgd)")                              \
  X(REAL, epochs, "epochs", "E", "10", 0, 1e6, 0, "passes over the data (10)")                     \
  X(WHOLE, steps, "steps", "N", "0", 0, SETTINGS_MANY, 0, "number of steps, instead of --epochs")  \
  X(WHOLE, batch, "batch", "N", "64", 1, 1 << 20, 1,                                               \
    "samples of a step, or of each micro-batch (64); an incomplete batch at the end of "           \
    "an epoch is left out")                                                                        \
  X(REAL, lr, "lr", "R", "default", 0, 1e6, 1,                                                     \
    "learning rate (0.03 with the sgd update, times damping for eva, 0.0001 for windows "          \
    "of mfac and topk-adam, 0.01 for methods with moments, 0.02 for Muon; 0.001 with adamw)")      \
  X(REAL, momentum, "momentum", "R", "0.9", 0, 0.9999999, 1,                                       \
    "momentum of the sgd update (0.9); "                                                           \
    "methods with moments have none")                                                              \
  X(FLAG, nesterov, "nesterov", NULL, "false", 0, 0, 1, "Nesterov momentum")                       \
  X(REAL, beta1, "beta1", "R", "0.9", 0, 0.9999999, 1, "beta1 of the adamw update (0.9)")          \
  X(REAL, beta2, "beta2", "R", "0.999", 0, 0.9999999, 1, "beta2 of the adamw update (0.999)")      \
  X(REAL, eps, "eps", "R", "1e-08", 0, 1, 1, "epsilon of the adamw update (1e-8)")                 \
  X(REAL, weight_decay, "weight-decay", "R", "0", 0, 1e3, 1, "weight decay of all parameters (0)") \
  X(FLAG, decoupled, "decoupled", NULL, "false", 0, 0, 1,                                          \
    "decoupled weight decay with the sgd update, as in adamw; methods with moments always have "   \
    "it")                                                                                          \
  X(REAL, label_smoothing, "label-smoothing", "R", "0", 0, 0.9999999, 1,                           \
    "fraction of a label that is spread over all classes (0)")                                     \
  X(REAL, dropout, "dropout", "R", "default", 0, 0.9999999, 1,                                     \
    "dropout rate (the default of the model)")                                                     \
  X(TEXT, lr_schedule, "lr-schedule", "S", "linear", 0, 0, 1,                                      \
    "schedule of lr, see above (linear)")                                                          \
  X(REAL, warm_up, "warm-up", "E", "0", 0, 1e6, 1, "epochs of linear increase of lr from 0 (0)")   \
  X(TEXT, augment, "augment", "HOW", "auto", 0, 0, 1,                                              \
    "auto | none | crop | flip | crop+flip (auto: crop+flip for CIFAR, images)")                   \
  X(TEXT, fisher, "fisher", "WHOSE", "empirical", 0, 0, 1,                                         \
    "empirical | sampled: labels for the statistics, of the data or drawn from the model "         \
    "(empirical)")                                                                                 \
  X(WHOLE, checkpoint_every, "checkpoint-every", "N", "0", 0, SETTINGS_MANY, 0,                    \
    "steps between checkpoints in DIR (0: one at the end)")                                        \
  X(WHOLE, log_every, "log-every", "N", "10", 1, SETTINGS_MANY, 0,                                 \
    "steps between \"step\" lines of DIR/log.jsonl (10)")                                          \
  X(WHOLE, acc_iters, "acc-iters", "N", "1", 1, 1 << 20, 1,                                        \
    "micro-batches of a step, each of --batch samples; gradients and statistics are "              \
    "averaged (1)")                                                                                \
  X(TEXT, adjust_momentum, "adjust-momentum", "HOW", "none", 0, 0, 1,                              \
    "none | ratio | proportional: momentum that follows lr, see above (none)")                     \
  X(TEXT, rescale_weights, "rescale-weights", "WHEN", "none", 0, 0, 1,                             \
    "none | shrink | always: after a step, rescale weights to the norm sqrt(2 outputs) (none)")    \
  X(REAL, mixup_alpha, "mixup-alpha", "R", "0", 0, 4, 1,                                           \
    "mix samples with the previous batch, weights from Beta(R, R) (0: off)")                       \
  X(FLAG, running_mixup, "running-mixup", NULL, "false", 0, 0, 1,                                  \
    "mix with the previous batch as it was after mixing")                                          \
  X(REAL, erase_rate, "erase-rate", "R", "0", 0, 1, 1,                                             \
    "fraction of the training images in which a rectangle is erased (0)")                          \
  X(REAL, erase_area_low, "erase-area-low", "R", "0.02", 0, 1, 1,                                  \
    "smallest area of the rectangle, as a fraction of the image (0.02)")                           \
  X(REAL, erase_area_high, "erase-area-high", "R", "0.25", 0, 1, 1, "largest area (0.25)")         \
  X(REAL, erase_aspect_low, "erase-aspect-low", "R", "0.3", 0.001, 1, 1,                           \
    "smallest ratio of the shorter to the longer side of the rectangle (0.3)")                     \
  X(TEXT, damping_rule, "damping-rule", "HOW", "none", 0, 0, 1,                                    \
    "none | keep-ratio: damping follows lr as damping lr / --lr (none)")                           \
  X(TEXT, schedule, "schedule", "S", "", 0, 0, 1,                                                  \
    "options that change with the step t, entries separated by blanks: NAME*F@T1,T2 (the initial " \
    "value times F at each step T), NAME*=F@T1,T2 (the current value times F, periods cut to "     \
    "whole steps), stat_decay~M (min(1 - 1/max(t,1), M)), damping~RULE-WAY@N (damping "            \
    "f((t+1)/N): "                                                                                 \
    "RULE L, Q, C, EK or SK, WAY up or down); NAME is damping, stat_decay, kl_clip or a period")

/* Settings that only `train` has; `compare` sets for each run method, seed, out and others. */
#define SETTINGS_SINGLE(X)                                                                         \
  X(TEXT, method, "method", "NAME", "natgrad", 0, 0, 1,                                            \
    "sgd, adamw, or a method of `natgrad info --methods` (natgrad)")                               \
  X(WHOLE, validation, "validation", "N", "0", 0, SETTINGS_MANY, 1,                                \
    "training samples to hold out; tests use them instead of the test split (0)")                  \
  X(WHOLE, seed, "seed", "N", "1", 0, SETTINGS_MANY, 1, "seed of all random numbers (1)")          \
  X(TEXT, out, "out", "DIR", "", 0, 0, 0,                                                          \
    "write config.json, log.jsonl and checkpoint-STEP.safetensors to this folder")                 \
  X(FLAG, resume, "resume", NULL, "false", 0, 0, 0,                                                \
    "continue from the checkpoint in DIR; results have the same bits")                             \
  X(REAL, average_weights, "average-weights", "E", "0", 0, 1e6, 1,                                 \
    "average the weights from epoch E on, test the mean, write DIR/average.safetensors (0: off)")  \
  X(WHOLE, average_every, "average-every", "N", "0", 0, SETTINGS_MANY, 1,                          \
    "steps between averaged weights (0: the end of every epoch)")                                  \
  X(REAL, average_lr, "average-lr", "R", "default", 0, 1e6, 1,                                     \
    "lr from that epoch on (the schedule's)")                                                      \
  X(REAL, bucket_mb, "bucket-mb", "MB", "1", 0, 1e6, 0,                                            \
    "largest message of gradients, in MB of whole parameters, sent during backward (1)")           \
  X(FLAG, checkpoint_parts, "checkpoint-parts", NULL, "false", 0, 0, 0,                            \
    "every rank writes its part of the library's state; DIR is shared by all ranks")               \
  X(FLAG, own_batches, "own-batches", NULL, "false", 0, 0, 1,                                      \
    "count a rank's samples as a whole batch for stat_batch, published scales and "                \
    "damping_leak, as in the published programs; losses then depend on the number of ranks")

#define SETTINGS_TABLE(X) SETTINGS_SHARED(X) SETTINGS_SINGLE(X)

#endif
