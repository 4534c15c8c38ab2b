/* due.c: decide which work is due in this step: statistics, solves, stations, and the arrays that a caller must observe.
 *
 * In: periods, counted steps, refresh intervals, excluded blocks.  Out: yes or no, equal on all ranks unless a function
 * says "this rank". */
#include "step/step.h"

/* ---- blocks and statistics -----------------------------------------------------------------------*/

bool ng_any_block(const ng_precond *p, bool (*is)(const ng_block *b)) {
  for (int32_t i = 0; i < p->blocks; i++) {
    if (is(p->block[i])) return true;
  }
  return false;
}

/* Return the number of steps by which periods of the block count. */
static int64_t count_steps(const ng_block *b) {
  return b->family->count_steps != NULL ? b->family->count_steps(b) : b->p->steps;
}

/* With refresh_tolerance > 0: return whether the refresh interval (stat/stale.h) of s, or of another statistic of the
 * block that uses the same kind of observation, has ended. A family adds an observation to all these statistics, so they
 * are refreshed together. */
static bool is_refresh_due(const ng_block *b, const ng_stat *s) {
  for (int32_t i = 0; i < b->stats; i++) {
    const ng_stat *t = &b->stat[i];
    if (t->observed == s->observed && (!t->stale.enabled || b->p->steps >= t->stale.next_refresh))
      return true;
  }
  return false;
}

static bool is_out(const ng_block *b) {
  return b->is_excluded || (b->entry != NULL && b->entry->is_frozen);
}

/* Return whether the statistics of a block are due in this step. p->steps counts only counted steps, so the first counted
 * step is always due. Until some rank has observed every kind of array of the block, every step is due, so a layer that
 * was excluded from the first due step is observed as soon as it is included. An excluded block is never due. */
static bool is_block_due(const ng_block *b) {
  bool period = count_steps(b) % b->base.stat_period == 0;
  if (b->base.refresh_tolerance > 0.0) {
    period = false;
    for (int32_t i = 0; i < b->stats; i++) {
      period = period || is_refresh_due(b, &b->stat[i]);
    }
  }
  if (is_out(b)) return false;
  for (int kind = 0; kind < NG_OBSERVED_KINDS; kind++) {
    if (!b->was_observed[kind]) return true; /* was_observed is equal on all ranks */
  }
  return period;
}

bool ng_statistic_due(const ng_block *b, const ng_stat *s) {
  if (s->every_step && !is_out(b)) return true;
  return is_block_due(b) && (!s->stale.enabled || is_refresh_due(b, s));
}

bool ng_block_statistics_due(const ng_block *b) {
  bool every = false;
  for (int32_t i = 0; i < b->stats; i++) {
    every = every || b->stat[i].every_step;
  }
  return (every && !is_out(b)) || is_block_due(b);
}

/* A block that was never solved is due, because PD needs its inverses. With solve_start, steps count from 1. */
bool ng_block_solve_due(const ng_block *b) {
  const int64_t steps = count_steps(b), start = b->base.solve_start;
  if (!b->solves || b->is_excluded || steps + 1 < start) return false;
  if (b->base.refresh_tolerance > 0.0) return !b->was_solved || ng_block_statistics_due(b);
  if (!b->was_solved || steps + 1 == start) return true;
  return (start > 0 ? steps + 1 : steps) % b->base.solve_period == 0;
}

/* ---- observations ----------------------------------------------------------------------------*/

bool ng_array_wanted(const ng_block *b, uint32_t what) {
  const uint32_t arrays = NG_OBSERVED_INPUT | NG_OBSERVED_OUTGRAD;
  if ((what & arrays) != 0 && b->family->wants_arrays != NULL && !is_out(b) &&
      b->family->wants_arrays(b)) {
    return true;
  }
  for (int32_t i = 0; i < b->stats; i++) {
    const ng_stat *s = &b->stat[i];
    if (ng_stat_uses(s, what) && s->observes && ng_statistic_due(b, s)) return true;
  }
  return false;
}

/* Return 0 if neither a statistic that is due nor the direction of the layer needs its arrays on this rank. */
int32_t ng_step_wants(const ng_precond *p, int32_t layer) {
  const ng_block *b = p->entry[layer]->block;
  return b != NULL && ng_array_wanted(b, NG_OBSERVED_INPUT | NG_OBSERVED_OUTGRAD);
}

bool ng_block_observes_gradients(const ng_block *b) {
  return ng_array_wanted(b, NG_OBSERVED_FLATGRAD);
}

bool ng_block_exchanges_traces(const ng_block *b) {
  return b->traces != NULL && ng_block_solve_due(b);
}
