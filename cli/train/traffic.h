/* traffic.h: time, waiting and traffic of each rank at each station of a step.
 *
 *   wait   blocked in collectives
 *   idle   wait minus the smallest wait of any rank at the same station, totals over the run. The rank with the
 *          smallest wait is assumed to wait for the network only. A lower bound that needs no barrier.
 *   sent   time in steps during which a message of the library was under way (meter.h), plus the time of the
 *          trainer; hidden: the part during which the rank was not blocked */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include "ranks.h"

#include <stdio.h>

enum { TRAIN_STATIONS = 32 };

/* Totals of a station: forward, backward, ..., then the stations of ng_report_station. */
typedef struct train_station {
  char name[24];
  double ms, wait_ms, bytes, messages;
} train_station;

typedef struct traffic_rank {
  double sent_ms, hidden_ms;
  train_station station[TRAIN_STATIONS];
} traffic_rank;

typedef struct traffic {
  int ranks, stations; /* ranks = 0: the run has one rank and nothing to report */
  double steps;
  traffic_rank *rank;
} traffic;

/* Gather the `mine` of every rank on all ranks. Collective; CLI_BAD as ranks_sum. */
int traffic_gather(const run_ranks *ranks, const traffic_rank *mine, int stations, double steps,
                   traffic *out);
void traffic_free(traffic *t);

double traffic_find_idle(const traffic *t, int rank, int station); /* ms */
double traffic_find_hidden(const traffic *t); /* hidden / sent over all ranks; 0..1 */

/* Print the table of the mean step and a summary line. */
void traffic_print(const traffic *t, FILE *f);
/* Write the JSON value of "ranks" (log.h). */
void traffic_print_json(const traffic *t, FILE *f);

#endif
