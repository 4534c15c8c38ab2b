/* coefficients.c: the learning rates and coefficients of an update.
 *
 * In: the caller's ng_sgd or ng_adamw of each group, the count of updates of each parameter.  Out: coefficients for the
 * kernels (kernel/update.c has the formulas). */
#include "step/step.h"

#include <math.h>

/* ---- the numbers of a group ------------------------------------------------------------------*/

/* out <- the two coefficients that depend on the number of earlier updates (ng_group_numbers.coefficients).
 *
 * SGD: {take, old} of m <- old m + take g. In the first update of a parameter, and with momentum 0, m <- g without
 * dampening, as in torch, whose momentum starts as a copy of g.
 * AdamW: {lr / (1 - b1^t), 1 / sqrt(1 - b2^t)} with t = updates + 1, so that no element needs these divisions. */
static void set_step_coefficients(const ng_group_numbers *group, ng_output_kind kind,
                                  int64_t updates, double out[2]) {
  const bool first = updates == 0 || group->sgd.mu == 0.0;
  const double t = (double)(updates + 1);
  if (kind == NG_OUT_SGD) {
    out[0] = first ? 1.0 : 1.0 - group->dampening;
    out[1] = first ? 0.0 : group->sgd.mu;
  } else {
    out[0] = group->lr / (1.0 - pow(group->adamw.b1, t));
    out[1] = 1.0 / sqrt(1.0 - pow(group->adamw.b2, t));
  }
}

/* decay_after: keep (w - lr m) = keep w - (keep lr) m. */
void ng_update_set_sgd(ng_group_numbers *group, const ng_sgd *given, bool decay_after,
                       int64_t updates) {
  const double keep = given->decoupled ? 1.0 - given->lr * given->weight_decay : 1.0;
  group->lr = given->lr;
  group->dampening = given->dampening;
  group->sgd = (ng_sgd_coefficients){
      .lr = decay_after ? keep * given->lr : given->lr,
      .mu = given->momentum,
      .keep = keep,
      .decay = given->decoupled ? 0.0 : given->weight_decay,
      .nesterov = given->nesterov != 0,
  };
  set_step_coefficients(group, NG_OUT_SGD, updates, group->coefficients);
}

void ng_update_set_adamw(ng_group_numbers *group, const ng_adamw *given, int64_t updates) {
  group->lr = given->lr;
  group->adamw = (ng_adamw_coefficients){
      .b1 = given->beta1,
      .b2 = given->beta2,
      .n1 = 1.0 - given->beta1,
      .n2 = 1.0 - given->beta2,
      .keep = 1.0 - given->lr * given->weight_decay,
      .eps = given->eps,
  };
  set_step_coefficients(group, NG_OUT_ADAMW, updates, group->coefficients);
}

/* The new weight is then minus the direction of the update. The first coefficient of AdamW contains lr. */
void ng_update_set_lr_1_keep_0(ng_group_numbers *group, ng_output_kind kind, int64_t updates) {
  group->lr = 1.0;
  group->sgd.lr = 1.0;
  group->sgd.keep = group->adamw.keep = 0.0;
  set_step_coefficients(group, kind, updates, group->coefficients);
}

/* Each parameter has its own number of updates, as in torch: a frozen or absent parameter had fewer. */
void ng_update_set_late_coefficients(ng_precond *p) {
  const ng_output *s = &p->step->output;
  for (int32_t i = 0; i < p->slots && s->kind != NG_OUT_GRADIENT; i++) {
    ng_slot *slot = p->slot[i];
    const int64_t missed = slot->entry->missed_updates;
    if (missed == 0) continue;
    set_step_coefficients(&s->group[slot->update_group], s->kind, p->updates - missed,
                          slot->late_coefficients);
  }
}
