/* switch.h: runs that continue with plain SGD (switch_to_sgd of EFCP's ImageNet script, in epochs here, so that a
 * longer run switches at the same step).
 *
 * From step S = switch_to_sgd epochs on: the momentum starts from 0; switch_momentum, switch_weight_decay (added to the
 * gradient) and the schedule of switch_lr apply. The state of the method is in the checkpoint of step S, not later. */
#ifndef SWITCH_H
#define SWITCH_H

#include "run.h"

/* Compute S; INT64_MAX: never. Warn if the run ends before S. */
void switch_plan(run *r);
/* Replace the preconditioner by SGD, on every rank. CLI_BAD after a message. */
int switch_now(run *r);
int switch_due(run *r); /* call before each step */

#endif
