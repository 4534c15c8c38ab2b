/* window_kept.c: what a window keeps of a gradient beside its row: momentum, and the error of what was not sent.
 *
 * In: a vector that is to enter; after a step that left a range, what was kept and what the step made of it.  Out: whether it
 * may enter; zeros in place of what no later step could be taken with.
 *
 * A row leaves the window by itself and divides what it adds.  What is kept beside it comes back divided by damping, in
 * every step, and moves only when a step counts: if it is so large that steps cannot count, it stays for good. */
#include "family/window.h"

#include <math.h>

static const double KEPT_MOST = 1e12;
static const double DWARFS = 8.0; /* times what a gradient like this one would leave of itself */

/* 1e12 over 1e-6 is what AdamW can square. */
ng_status ng_window_bounded(ng_block *b, const float *x) {
  const bool keeps = b->base.window_store != NG_STORE_DENSE || ng_window_averages(b);
  if (!keeps || ng_window_is_first(&b->base) || ng_window_within(b, x, KEPT_MOST)) return NG_OK;
  return ng_fail(b->ctx, NG_SKIPPED,
                 "%s: a gradient has an element above 1e12, of which later steps could not be rid",
                 b->name);
}

/* ---- what is let go --------------------------------------------------------------------------*/

typedef struct comparing {
  const ng_block *b;
  const float *x, *kept; /* the largest |x - mu kept|, |kept| */
  double mu;
} comparing;

/* Inf where a number is not finite: then the step itself is to blame. */
static void compare_chunk(void *arg, int32_t i) {
  const comparing *p = arg;
  const ng_window *w = ng_window_of(p->b);
  const ng_window_chunk c = ng_window_chunk_at(w, i);
  double *most = w->sums + 4 * (int64_t)i;
  memset(most, 0, 4 * sizeof *most);
  if (ng_window_is_out(p->b, &c)) return;
  for (int64_t k = c.at; k < c.at + c.n; k++) {
    const double old = (double)p->kept[k], now = fabs((double)p->x[k] - p->mu * old);
    most[0] = now - now == 0.0 ? fmax(most[0], now) : (double)INFINITY;
    most[1] = fmax(most[1], fabs(old));
  }
}

/* Whether `kept` is that much more than what x adds to mu of it. */
static bool dwarfs(const ng_block *b, const float *kept, const float *x, double mu) {
  const ng_window *w = ng_window_of(b);
  comparing p = {b, x, kept, mu};
  double now = 0.0, old = 0.0;
  ng_parallel(b->ctx, w->chunks, compare_chunk, &p);
  for (int32_t i = 0; i < w->chunks; i++) {
    now = fmax(now, w->sums[4 * (int64_t)i]);
    old = fmax(old, w->sums[4 * (int64_t)i + 1]);
  }
  return old > DWARFS * now / (1.0 - mu);
}

/* Of an average all that it has become, compared with the gradient. */
static bool momentum_dwarfs(ng_block *b) {
  ng_window *w = ng_window_of(b);
  if (w->v == NULL) return false;
  if (!ng_window_averages(b)) {
    return dwarfs(b, w->v, w->next_v != NULL ? w->next_v : w->u, b->base.window_momentum);
  }
  memcpy(w->u, w->next_v, (size_t)w->d * sizeof *w->u);
  for (int32_t i = 0; i < w->parts; i++) {
    memcpy(w->part[i].c, w->part[i].next_along, (size_t)w->places * sizeof(double));
  }
  ng_window_combine(b, 1.0);
  memcpy(w->next_v, w->u, (size_t)w->d * sizeof *w->u);
  return ng_window_gather(b, w->u) && dwarfs(b, w->next_v, w->u, 0.0);
}

/* u and next_v are nobody's any more: the step does not count.  `always`: whatever is kept goes. */
static void let_go(ng_block *b, bool always) {
  ng_window *w = ng_window_of(b);
  if (w->v != NULL && (always || momentum_dwarfs(b))) {
    memset(w->v, 0, (size_t)w->d * sizeof *w->v);
    for (int32_t i = 0; i < w->parts && ng_window_averages(b); i++) {
      memset(w->part[i].along, 0, (size_t)w->places * sizeof *w->part[i].along);
    }
    ng_fail_also(b->ctx,
                 "the momentum of %s would have kept every later step from being taken and is 0 "
                 "now",
                 b->name);
  }
  if (w->store->kept == NULL) return;
  if (!always) {
    if (!(b->stat->w > 0.0) || !ng_window_gather(b, w->u)) return;
    if (!dwarfs(b, w->store->kept(b), w->u, 0.0)) return;
  }
  w->store->forget(b);
  ng_fail_also(b->ctx,
               "what %s had not sent of former gradients would have kept every later step from "
               "being taken and is 0 now",
               b->name);
}

void ng_window_relieve_own(ng_block *b) { let_go(b, false); }
