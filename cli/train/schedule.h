/* schedule.h: --schedule: options of the library that change with the step.
 *
 *   text  = { blank } [ entry { blank { blank } entry } ] { blank }      at most one entry an option
 *   entry = NAME*F@T1,T2,...    base F^n after n of the steps T                    (KFACParamScheduler of MPD-KFAC)
 *         | NAME*=F@T1,T2,...   the current value times F at each step T           (LambdaParamScheduler of KAISA)
 *         | stat_decay~M        min(1 - 1/max(t,1), M) at step t                   (exp_decay_factor_averaging of KAISA)
 *         | damping~RULE-WAY@N  base f(x), x = min(1, (t + 1)/N)                   (the continuous schedules of EFCP)
 *             WAY up: f = x (RULE L), x^2 (Q), 1 - sqrt(1 - x^2) (C), exp(K (x - 1)) (EK), 1/(1 + exp(-K (x - 1/2))) (SK)
 *             WAY down: 1 - f, for C sqrt(1 - x^2); where f ends at 0, x stops at 1 - 1/N
 *
 * NAME is damping, stat_decay, kl_clip, stat_period or solve_period; 0 < F <= 1e6; 0 < M <= 1; 0 < K <= 50; steps T
 * ascend from 1; N >= 2.  Periods are cut to whole steps, at least 1, at each T.  A value depends on its base and the
 * step alone, so a resumed run needs nothing else. */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "settings.h"

enum { SCHEDULED = 5, SCHEDULED_DAMPING = 0 };
extern const char *const schedule_option[SCHEDULED];

/* Compute the values of step t (from 0): value[i] is base[i] changed by the entry of schedule_option[i], or NaN if
 * there is no entry. CLI_BAD: `message` has the accepted values. */
int schedule_evaluate(const char *text, const double base[SCHEDULED], int64_t t,
                      double value[SCHEDULED], char *message, size_t size);

/* Check the form of the text, and check with the library that each scheduled value is valid beside the options o. */
int schedule_check(const char *text, const ng_options *o, char *message, size_t size);

/* Set `base` to the values that the options have without a schedule. */
void schedule_read_base(const settings *s, double base[SCHEDULED]);

#endif
