/* stale.h: statistics that are made anew only as often as they change: stat_refresh = adaptive, the rule of
 * SP-NGD (Osawa et al. 2020, arXiv 2002.06015, section 4.4).
 *
 * X is the running average after a refresh, X1 and X2 those of the two refreshes before, d1 and d2 the last two
 * intervals in steps.  "A like B" is |A - B| < tolerance |B| in the Frobenius norm.  The next interval is
 *
 *     max(1, d1 / 2)   X not like X1
 *     d1               like X1, not like X2
 *     d1 + d2          like both
 *
 * and begins as 1, 1.  X1 is the average itself until it is folded, so one array is kept, X2.
 * The verdict is the owner's: ranks that keep the same average may have it with other roundings.
 */
#ifndef NG_STALE_H
#define NG_STALE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ng_verdict { NG_UNLIKE = 1, NG_LIKE_LAST, NG_LIKE_BOTH } ng_verdict;

typedef struct ng_stale {
  bool on;
  double tolerance;
  int64_t next;                     /* the step at which it is due */
  int64_t last, before;             /* d1, d2                      */
  int64_t refreshed, passed;        /* steps in which it was made anew; in which it was not due */
  int64_t bytes_sent, bytes_passed; /* of its sum, handed to collectives; that would have been */
  ng_verdict verdict;               /* of this rank, where it was refreshed in this step       */
} ng_stale;

/* From a verdict, refreshed at `step`, to the next one. */
void ng_stale_advance(ng_stale *s, ng_verdict verdict, int64_t step);

#endif
