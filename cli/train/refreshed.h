/* refreshed.h: what stat_refresh = adaptive saved in a run: of each kind of statistic ("A", "G", the norms' "F", means)
 * how often one was made anew and how often it was passed over, and the bytes of sums that rank 0 handed to
 * collectives and did not have to.  Totals over layers and steps, those before a resume included. */
#ifndef REFRESHED_H
#define REFRESHED_H

#include <stdint.h>
#include <stdio.h>

enum { REFRESHED_KINDS = 8 };

typedef struct refreshed {
  int kinds; /* 0: nothing is adaptive, and there is nothing to tell */
  struct refreshed_kind {
    char name[16];
    int64_t refreshed, passed, bytes_sent, bytes_passed;
  } kind[REFRESHED_KINDS];
} refreshed;

/* Adds one statistic's. */
void refreshed_add(refreshed *r, const char *name, int64_t anew, int64_t passed, int64_t sent,
                   int64_t not_sent);

void refreshed_print(const refreshed *r, FILE *f); /* one line, or none */
void refreshed_json(const refreshed *r, FILE *f);  /* the value of "statistics" in log.h */

#endif
