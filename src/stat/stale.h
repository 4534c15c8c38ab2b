/* stale.h: adaptive refresh of statistics if refresh_tolerance > 0: the rule of SP-NGD (Osawa et al. 2020, arXiv
 * 2002.06015, section 4.4).
 *
 * X is the running average after a refresh, X1 and X2 the averages after the last refresh and the refresh before it, d1
 * and d2 the last interval and the interval before it, in steps. "A like B" means |A - B| < tolerance |B| in the Frobenius
 * norm. The verdict determines the next interval:
 *
 *     max(1, d1 / 2)   if X is not like X1
 *     d1               if X is like X1, but not like X2
 *     d1 + d2          if X is like X1 and X2
 *
 * The first two intervals are 1. X1 is the stored average until the fold, so only X2 needs additional memory. All ranks
 * use the verdict of the owner, because their averages may differ by rounding. */
#ifndef NG_STALE_H
#define NG_STALE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ng_verdict { NG_UNLIKE = 1, NG_LIKE_LAST, NG_LIKE_BOTH } ng_verdict;

typedef struct ng_stale {
  bool enabled;
  double tolerance;
  int64_t next_refresh;
  int64_t interval, previous_interval; /* d1, d2 */
  int64_t refreshes, steps_without;    /* number of steps with a refresh; number of steps without */
  /* bytes sent in all refreshes; bytes not sent in steps without a refresh */
  int64_t bytes_sent, bytes_saved;
  ng_verdict verdict; /* this rank's verdict, valid after a refresh in this step */
} ng_stale;

/* Set the next interval from the verdict of a refresh in step `step`. */
void ng_stale_advance(ng_stale *s, ng_verdict verdict, int64_t step);

#endif
