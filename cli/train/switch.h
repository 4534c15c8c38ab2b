/* switch.h: a run whose last part is plain SGD (switch_to_sgd of EFCP's ImageNet script, which gives the share of the
 * run; here epochs, so that a run that is made longer switches where it did).
 *
 *   from step S = switch_to_sgd epochs on a new SGD takes over: v from 0, switch_momentum, switch_weight_decay (in the
 *   gradient), and lr of the schedule with switch_lr in place of --lr
 *
 * What the method kept is dropped, so a checkpoint of a step after S has SGD's momentum alone; one of step S has the
 * method's. */
#ifndef SWITCH_H
#define SWITCH_H

#include "run.h"

/* S, once the run knows its steps; INT64_MAX: never.  A run that ends before says so. */
void switch_plan(run *r);
/* The library's part is made anew, as SGD, on every rank.  CLI_BAD, told, as the next. */
int switch_now(run *r);
int switch_due(run *r); /* before each step */

#endif
