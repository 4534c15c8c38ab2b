/* stale_rule.h: the rule of SP-NGD (stat/stale.h) in double: when a statistic is refreshed again. */
#ifndef TESTS_STALE_RULE_H
#define TESTS_STALE_RULE_H

#include "stat/stat.h"

#include <math.h>
#include <string.h>

enum { ORDER = 40, DENSE = ORDER * ORDER };
static const double TOLERANCE = 0.1;

static inline double relative_distance(const double *a, const double *b, int64_t n) {
  double d = 0, of = 0;
  for (int64_t i = 0; i < n; i++) {
    d += (a[i] - b[i]) * (a[i] - b[i]);
    of += b[i] * b[i];
  }
  return sqrt(d / of);
}

/* For averages of up to DENSE entries: the averages and intervals of the last two refreshes. */
typedef struct rule {
  double x[DENSE], older[DENSE];
  int refreshed, next, last, before;
  double closest; /* the smallest difference between a distance and the tolerance */
} rule;

static const rule initial_rule = {.last = 1, .before = 1, .closest = INFINITY};

static inline bool is_similar(rule *r, const double *now, const double *was, int64_t n) {
  const double d = relative_distance(now, was, n);
  r->closest = fmin(r->closest, fabs(d - TOLERANCE));
  return d < TOLERANCE;
}

/* Refresh at step t with the average `now`; set the step of the next refresh. */
static inline ng_verdict refresh_by_rule(rule *r, int t, const double *now, int64_t n) {
  const bool one = r->refreshed > 0 && is_similar(r, now, r->x, n),
             two = r->refreshed > 1 && is_similar(r, now, r->older, n);
  const int d = !one ? (r->last > 3 ? r->last / 2 : 1) : !two ? r->last : r->last + r->before;
  memcpy(r->older, r->x, sizeof r->x);
  memcpy(r->x, now, (size_t)n * sizeof *now);
  r->before = r->last;
  r->last = d;
  r->next = t + d;
  r->refreshed++;
  return !one ? NG_UNLIKE : !two ? NG_LIKE_LAST : NG_LIKE_BOTH;
}

#endif
