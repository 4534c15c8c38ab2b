/* plan_count.h: compare the memory and traffic of a rank with the prediction of ng_plan_ranks. */
#ifndef TESTS_PLAN_COUNT_H
#define TESTS_PLAN_COUNT_H

#include <natgrad.h>

#include <stdbool.h>

/* Store the numbers of ng_report and of the stations of the last step in the struct of the plan.  Return NG_ERR_STATE
 * if a station sent bytes that the plan has no field for. */
ng_status count_rank_plan(const ng_precond *p, ng_rank_plan *out);
/* Report differences on stderr. */
bool rank_plans_match(const char *options, int32_t rank, const ng_rank_plan *planned,
                      const ng_rank_plan *counted);

#endif
