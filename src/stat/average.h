/* average.h: the running average of one statistic: what of the old stays, what a call weighs.
 *
 * Every family that averages what was observed does it by these rules: stat_decay, stat_start,
 * calls, call_weight (option_table.c).  The arrays are the family's; here are the numbers:
 *
 *     observe      S <- old S + fresh X          X: what one call shows         ng_average_call
 *     to the wire  S <- own S                                                   ng_average_own
 *     all ranks    S, sum of w, sum of w keep    (the exchange)                 ng_average_weights
 *     fold         F <- keep F + c S                                            ng_average_fold
 */
#ifndef NG_AVERAGE_H
#define NG_AVERAGE_H

#include "model/model.h"

typedef struct ng_average {
  bool started;             /* F holds a sample                                                   */
  double w, keep;           /* this step, this rank: weight of the samples; what old F keeps      */
  double total, total_keep; /* the same over ranks, set by the check station                      */
} ng_average;

typedef struct ng_mix {
  double old, fresh; /* new = old * what is there + fresh * what comes */
} ng_mix;

/* How many of the samples shown count, and what the call weighs. */
int64_t ng_average_take(const ng_block *b, const ng_obs *o);
double ng_average_weight(const ng_block *b, int64_t take);
/* Weight of the old average for the coming sample; 0 for the first where stat_start says so. */
double ng_average_rho(const ng_block *b, const ng_average *a);
/* One call of `take` samples: counts it, and says how it joins S. */
ng_mix ng_average_call(const ng_block *b, ng_average *a, int64_t take);
double ng_average_own(const ng_block *b, const ng_average *a);
void ng_average_weights(ng_average *input, ng_average *grad, double w[4], bool set);
ng_mix ng_average_fold(const ng_block *b, const ng_average *a); /* total > 0 */
void ng_average_close(ng_average *a); /* this step's numbers are used up */

#endif
