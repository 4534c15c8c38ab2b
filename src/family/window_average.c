/* window_average.c: the average of gradients that is preconditioned instead of the newest one (window_momentum_form =
 * gradient, GGT's beta1): x <- mu x + (1 - mu) row, from 0.
 *
 * In: the row at head, or in a step off stat_period a gradient that is no row.  Out: x = r + G' a of the rows in use:
 * numbers a in double, which window_solve.c takes without a difference of large vectors, and the rest r, of rows that
 * have left the window and gradients that were none, in f32.  In f32 as a whole, x would have lost what it has across the rows:
 * the direction divides that by damping, and what it has along them by no less than their singular values.
 *
 * A row that leaves takes its part of x to r.  So do all of them where the window is emptied, or a parameter sits out:
 * its numbers in x stay as they are, while those of the others move on.
 *
 * Where gradients repeat themselves what leaves is nearly made of rows that stay, g = G' s + what is left: then their numbers
 * take s, and r only what is left, which combine makes in numbers of two doubles.  Any s will do, so it is by double. */
#include "family/window.h"

#include <math.h>

/* Of the square of a row's length; of all, beside which a pivot of rows that are alike is lost. */
static const double LEFT_MOST = 1e-4, RIDGE = 1e-13;
enum { SHARED_MOST = 256 };

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

/* Bytes of scratch. */
int64_t ng_window_average_scratch(const ng_window *w) {
  const int64_t n = ng_min64(w->m, SHARED_MOST);
  return (ng_sym_count(n) + n) * (int64_t)sizeof(double);
}

/* s [n] of the rows that stay and are in K, the oldest being the one that leaves.  False: it is not made of them. */
static bool share(ng_block *b, const ng_window_part *p, const int64_t *place, int64_t n,
                  double *s) {
  const ng_window *w = ng_window_of(b);
  ng_queue *q = b->ctx->queue;
  const double *gram = p->gram, *old = gram + place[0] * w->places;
  double *S = s + n, most = 0.0, left = old[place[0]];
  int info = 0; /* the queue is waited for below */
  for (int64_t i = 0; i < n; i++) {
    most = fmax(most, gram[place[i + 1] * w->places + place[i + 1]]);
    s[i] = old[place[i + 1]];
  }
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j <= i; j++) {
      S[ng_sym_at(n, i, j)] =
          gram[place[i + 1] * w->places + place[j + 1]] + (i == j ? RIDGE * (double)n * most : 0.0);
    }
  }
  if (!(most > 0.0) || !(left > 0.0)) return false;
  ng_on(q)->factor64(q, n, S, &info);
  ng_queue_wait(q);
  if (ng_info_read(q, &info) != 0) return false;
  ng_on(q)->solve64(q, n, S, s);
  ng_queue_wait(q);
  for (int64_t i = 0; i < n; i++) {
    left -= s[i] * old[place[i + 1]];
  }
  return left <= LEFT_MOST * old[place[0]]; /* not so if it is no number */
}

/* A row leaves a full window: what is to be combined of it and those that stay, in w->used and c. */
static void hand_over(ng_block *b, ng_window_part *p) {
  ng_window *w = ng_window_of(b);
  const int64_t n = w->m - 1, head = ng_window_head(w), oldest = w->used[0];
  const double mu = b->base.window_momentum, a = p->along[oldest];
  double *s = ng_scratch(b);
  for (int64_t i = 0; i < n; i++) {
    w->used[i + 1] = (head - n + i + w->places) % w->places;
  }
  if (!share(b, p, w->used, n, s)) return;
  for (int64_t i = 0; i < n; i++) {
    p->c[w->used[i + 1]] = -a * s[i];
    p->next_along[w->used[i + 1]] += mu * (a * s[i]);
  }
  w->fine = true;
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
    for (int64_t k = 0; k < w->uses; k++) {
      p->c[w->used[k]] = p->along[w->used[k]];
      p->next_along[w->used[k]] = 0.0;
    }
    memset(p->c_rest, 0, (size_t)w->places * sizeof *p->c_rest);
  }
  if (fresh && !all && w->uses == 1 && w->m > 1 && w->m <= SHARED_MOST + 1) {
    for (int32_t i = 0; i < w->parts; i++) {
      ng_window_part *p = &w->part[i];
      for (int64_t j = 0; j < w->places;
           j++) { /* of those that stay nothing, unless they take it over */
        if (j != w->used[0]) p->c[j] = 0.0;
      }
      hand_over(b, p);
    }
    if (w->fine) w->uses = w->m;
  }
  if (w->uses > 0) {
    memcpy(w->u, w->v, (size_t)w->d * sizeof *w->u);
    w->store->combine(b, 1.0);
  }
  memcpy(w->next_v, w->uses > 0 ? w->u : w->v, (size_t)w->d * sizeof *w->next_v);
  w->fine = false;
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

void ng_window_average_taken(ng_block *b) {
  ng_window *w = ng_window_of(b);
  for (int32_t i = 0; i < w->parts; i++) {
    memcpy(w->part[i].along, w->part[i].next_along, (size_t)w->places * sizeof(double));
  }
}
