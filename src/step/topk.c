/* choose.c: the station in which ranks decide together what they have observed: see ng_family.choose.
 *
 * In: blocks that observe with parts on all ranks, after `check`, which has told every rank that what was looked at is
 * finite.  Out: their statistics, complete as those of other blocks were when they were observed.
 *
 * A few small sums a block, one after the other, since each round asks what the one before it has left open. */
#include "step/step.h"

int64_t ng_topk_count(const ng_precond *p) {
  int64_t most = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    for (int32_t r = 0; r < b->rounds; r++) {
      most = ng_max64(most, b->round[r]);
    }
  }
  return most;
}

/* `refused` is what all ranks know by now; `choosing` was said by each, of the same blocks unless something was refused. */
bool ng_topk_is_due(const ng_precond *p) {
  bool due = false;
  for (int32_t i = 0; i < p->blocks && !p->step->refused; i++) {
    due = due || p->block[i]->choosing;
  }
  return due;
}

ng_status ng_topk_select(ng_precond *p) {
  double *x = p->step->exchange.choice;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (!b->choosing) continue;
    const double t0 = ng_now_ms();
    for (int32_t r = 0; r < b->rounds; r++) {
      b->family->choose(b, r, x);
      const ng_status st = ng_exchange_sum(p, x, b->round[r], "top-k selection");
      if (st != NG_OK) return st;
    }
    b->family->choose(b, b->rounds, x);
    b->choosing = false;
    b->observing_ms += ng_now_ms() - t0;
  }
  return NG_OK;
}
