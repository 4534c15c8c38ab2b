/* topk.c: all ranks select the largest entries of a sliced window jointly (ng_family.select_topk).
 *
 * In: blocks of which every rank has observed a slice of the gradient; the station
 * `check` has agreed that the step goes on. Out: the sums of their statistics,
 * complete as after any other observation. Each round sums a few numbers over ranks and narrows the range of the smallest
 * selected magnitude. */
#include "step/step.h"

int64_t ng_topk_count(const ng_precond *p) {
  int64_t most = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    for (int32_t r = 0; r < b->topk_rounds; r++) {
      most = ng_max64(most, b->topk_counts[r]);
    }
  }
  return most;
}

ng_status ng_topk_select(ng_precond *p) {
  double *x = p->step->exchange.topk_sums;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!b->is_selecting) continue;
    const double t0 = ng_now_ms();
    for (int32_t r = 0; r < b->topk_rounds; r++) {
      b->family->select_topk(b, r, x);
      const ng_status st = ng_exchange_sum(p, x, b->topk_counts[r], "top-k selection");
      if (st != NG_OK) return st;
    }
    b->family->select_topk(b, b->topk_rounds, x);
    b->is_selecting = false;
    b->step_observe_ms += ng_now_ms() - t0;
  }
  return NG_OK;
}
