/* window_average.c: the average of gradients that is preconditioned instead of the newest one (window_momentum_form =
 * gradient, GGT's beta1): x <- mu x + (1 - mu) row, from 0.
 *
 * In: the row at head, or in a step off stat_period a gradient that is no row.  Out: x = r + G' a of the rows in use:
 * numbers a in double, which window_solve.c takes without a difference of large vectors, and the rest r, of rows that
 * have left the window and gradients that were none, in f32.  In f32 as a whole, x would have lost what it has across the rows:
 * the direction divides that by damping, and what it has along them by no less than their singular values.
 *
 * A row that leaves takes its part of x to r.  So do all of them where the window is emptied, or a parameter sits out:
 * its numbers in x stay as they are, while those of the others move on. *
 * The place of `along` that no row has, which is at head between steps, holds the 2-norm of r's rounding error. */
#include "family/window.h"

#include <math.h>

bool ng_window_averages(const ng_block *b) {
  return b->base.window_momentum > 0.0 && b->base.window_momentum_form == NG_MOMENTUM_GRADIENT;
}

/* The places whose rows leave x, oldest first, as those in use. */
static void use_leaving(ng_window *w, bool fresh, bool all) {
  const int64_t head = ng_window_head(w), count = ng_window_count(w);
  const int64_t stay = all ? 0 : fresh ? ng_min64(count, w->m - 1) : count;
  w->uses = 0;
  for (int64_t age = count; age > stay; age--) {
    w->used[w->uses++] = (head - age + w->places) % w->places;
  }
}

/* w->next_v <- r of before and the parts of what leaves; next_along <- those of what stays, times mu. */
static void part_with(ng_block *b, bool fresh, bool all) {
  ng_window *w = ng_window_of(b);
  const double mu = b->base.window_momentum;
  use_leaving(w, fresh, all);
  for (int32_t i = 0; i < w->parts; i++) {
    ng_window_part *p = &w->part[i];
    for (int64_t j = 0; j < w->places; j++) {
      p->next_along[j] = mu * p->along[j];
    }
    p->next_along[ng_window_head(w)] = 0.0;
    for (int64_t k = 0; k < w->uses; k++) {
      p->c[w->used[k]] = p->along[w->used[k]];
      p->next_along[w->used[k]] = 0.0;
    }
  }
  if (w->uses > 0) {
    memcpy(w->u, w->v, (size_t)w->d * sizeof *w->u);
    ng_window_combine(b, 1.0);
  }
  memcpy(w->next_v, w->uses > 0 ? w->u : w->v, (size_t)w->d * sizeof *w->next_v);
}

/* The step's x: u <- r, next_along <- a, which w->next_v and they are when it counts. */
ng_status ng_window_average(ng_block *b, bool fresh) {
  ng_window *w = ng_window_of(b);
  const double mu = b->base.window_momentum;
  const bool out = ng_window_some_out(b), in_rest = out || !fresh;
  ng_status st = NG_OK;
  part_with(b, fresh, out || (fresh && w->emptied));
  if (in_rest && fresh) {
    ng_window_sent(b, 1.0);
  } else if (in_rest) {
    st = ng_window_take(b, w->u);
  }
  ng_window_mix(b, w->next_v, w->next_v, in_rest ? w->u : w->next_v, mu, in_rest ? 1.0 - mu : 0.0);
  for (int32_t i = 0; i < w->parts && !in_rest; i++) {
    w->part[i].next_along[ng_window_head(w)] = 1.0 - mu;
  }
  memcpy(w->u, w->next_v, (size_t)w->d * sizeof *w->u);
  ng_window_clear_out(b, w->u);
  return st;
}

/* Roundings of two steps are independent; mu of each is left in the next step. */
void ng_window_average_rounds(const ng_block *b, ng_window_part *p, double size) {
  const ng_window *w = ng_window_of(b);
  p->next_along[ng_window_unused(w)] =
      hypot(b->base.window_momentum * p->along[ng_window_head(w)], 0x1p-25 * size);
}

void ng_window_average_taken(ng_block *b) {
  ng_window *w = ng_window_of(b);
  for (int32_t i = 0; i < w->parts; i++) {
    memcpy(w->part[i].along, w->part[i].next_along, (size_t)w->places * sizeof(double));
  }
}
