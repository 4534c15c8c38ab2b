/* refreshed.h: the effect of stat_refresh = adaptive in a run: for each kind of statistic ("A", "G", "F" of norms,
 * means) how often it was refreshed or passed over, and the bytes of sums that rank 0 sent or did not need to
 * send. Totals over layers and steps, including those before a resume. */
#ifndef REFRESHED_H
#define REFRESHED_H

#include <stdint.h>
#include <stdio.h>

enum { REFRESHED_KINDS = 8 };

typedef struct refreshed {
  int kinds; /* 0: no adaptive statistics */
  struct refreshed_kind {
    char name[16];
    int64_t refreshed, passed, bytes_sent, bytes_passed;
  } kind[REFRESHED_KINDS];
} refreshed;

/* Add the counts of one statistic. */
void refreshed_add(refreshed *r, const char *name, int64_t refreshes, int64_t passed, int64_t sent,
                   int64_t not_sent);

void refreshed_print(const refreshed *r, FILE *f); /* one line, or none */
void refreshed_json(const refreshed *r, FILE *f);  /* the value of "statistics" in log.h */

#endif
