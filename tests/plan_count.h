/* plan_count.h: what a rank holds and sent, beside what ng_plan_ranks said. */
#ifndef TESTS_PLAN_COUNT_H
#define TESTS_PLAN_COUNT_H

#include <natgrad.h>

#include <stdbool.h>

/* The numbers of ng_report and of the stations of the last step, in the struct of the plan; shards_bytes with what was
 * shown.  NG_ERR_STATE: a station sent that the plan does not know. */
ng_status plan_count(const ng_precond *p, ng_rank_plan *out);
/* Says on stderr what differs. */
bool plan_same(const char *options, int32_t rank, const ng_rank_plan *planned,
               const ng_rank_plan *counted);

#endif
