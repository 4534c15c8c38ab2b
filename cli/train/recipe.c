/* recipe.c: learning rate, momentum, damping and norms of weights in a step; recipe.h has the formulas. */
#include "recipe.h"
#include "lr.h"

#include <math.h>
#include <string.h>

double recipe_get_lr(const settings *s, double epoch, double total) {
  char why[256];
  lr_schedule l;
  if (lr_parse(s->lr_schedule, &l, why, sizeof why) != CLI_OK) return 0.0; /* checked before */
  return settings_choose_lr(s) * lr_compute_factor(&l, s->warm_up, epoch, total);
}

double recipe_get_momentum(const settings *s, double lr, double before) {
  if (strcmp(s->adjust_momentum, "none") == 0) return s->momentum;
  if (strcmp(s->adjust_momentum, "ratio") == 0) /* the factor min(1, before / lr) */
    return lr > before ? s->momentum * before / lr : s->momentum;
  return s->momentum * before / settings_choose_lr(s);
}

double recipe_scale_damping(const settings *s, double damping, double lr) {
  return lr > 0.0 ? damping * lr / settings_choose_lr(s) : -1.0;
}

void recipe_rescale_weights(const settings *s, nn *net) {
  const bool always = strcmp(s->rescale_weights, "always") == 0;
  if (!always && strcmp(s->rescale_weights, "shrink") != 0) return;
  for (int i = 0; i < nn_count_params(net); i++) {
    const nn_param *p = nn_get_param(net, i);
    double square = 0.0;
    if (p->role != NN_WEIGHT) continue;
    for (int64_t k = 0; k < p->count; k++)
      square += (double)p->value[k] * (double)p->value[k];
    const double scale = sqrt(2.0 * (double)p->shape[0]) / (sqrt(square) + 1e-9);
    if (!always && scale >= 1.0) continue;
    for (int64_t k = 0; k < p->count; k++)
      p->value[k] = (float)(scale * (double)p->value[k]);
  }
}
