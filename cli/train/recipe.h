/* recipe.h: learning rate, momentum, damping and weight norms of a step (large batches: Osawa et al. 2019, arXiv
 * 1811.12019, and its program chainerkfac). */
#ifndef RECIPE_H
#define RECIPE_H

#include "nn/nn.h"
#include "settings.h"

/* The learning rate after `epoch` of `total` epochs (lr.h). */
double recipe_lr(const settings *s, double epoch, double total);

/* Momentum for ng_step_sgd, which keeps v <- m' v + PD, w <- w - lr v.  The published update is
 * v <- m v - lr PD, w <- w + v with
 *   ratio          m = momentum min(1, lr / before)     (the code)
 *   proportional   m = momentum lr / settings_lr        (the papers)
 * and both are the same for m' = m before / lr; `before`: lr of the step before, of the first its own.
 * none: m' = momentum. */
double recipe_momentum(const settings *s, double lr, double before);

/* keep-ratio (EFCP's KeepRatio): damping lr / settings_lr; negative, where lr is 0: as it is. */
double recipe_damping_ratio(const settings *s, double damping, double lr);

/* Weights of layers, and no bias or norm: w <- w sqrt(2 outputs) / (||w|| + 1e-9); `shrink`: only those
 * that are too long (the code), `always`: the papers. */
void recipe_rescale(const settings *s, nn *net);

#endif
