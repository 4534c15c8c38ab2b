/* recipe.h: learning rate, momentum, damping and norms of weights in a step (for large batches: Osawa et al. 2019,
 * arXiv 1811.12019, and its program chainerkfac). */
#ifndef RECIPE_H
#define RECIPE_H

#include "nn/nn.h"
#include "settings.h"

/* Return the learning rate after `epoch` of `total` epochs (lr.h). */
double recipe_get_lr(const settings *s, double epoch, double total);

/* Return the momentum m' for ng_step_sgd, whose update is v <- m' v + PD, w <- w - lr v. The published update is v <- m
 * v - lr PD, w <- w + v, where adjust_momentum selects m:
 *   ratio          m = momentum min(1, lr / before)             (the published code)
 *   proportional   m = momentum lr / settings_choose_lr         (the papers)
 * Both updates are equal for m' = m before / lr, where `before` is the lr of the previous step (in the first step: lr).
 * For adjust_momentum = none, m' = momentum. */
double recipe_get_momentum(const settings *s, double lr, double before);

/* Return the damping by keep-ratio (KeepRatio in EFCP), damping lr / settings_choose_lr; -1 if lr is 0: no change. */
double recipe_scale_damping(const settings *s, double damping, double lr);

/* Rescale the weights w of each layer (not biases and norms): w <- w sqrt(2 outputs) / (||w|| + 1e-9). rescale_weights
 * = always rescales all layers (the papers), shrink only layers whose factor is below 1 (the published code). */
void recipe_rescale_weights(const settings *s, nn *net);

#endif
