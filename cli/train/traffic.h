/* traffic.h: time, waiting and traffic of each rank at each station of a step. All times are totals over the run.
 *
 *   wait     time that the rank was blocked in collectives
 *   idle     wait minus the smallest wait of any rank at the same station. The rank with the smallest wait is assumed
 *            to wait for the network only. A lower bound, measured without a barrier.
 *   sent     time in steps during which a message of the library was under way (meter.h), plus the same time of the
 *            trainer
 *   hidden   the part of `sent` during which the rank was not blocked */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include "ranks.h"

#include <stdio.h>

enum { TRAIN_STATIONS = 32 };

/* The totals of a station. The stations are forward, backward, ..., then the stations of ng_report_station. */
typedef struct train_station {
  char name[24];
  double ms, wait_ms, bytes, messages;
} train_station;

typedef struct traffic_rank {
  double sent_ms, hidden_ms; /* totals over all stations */
  train_station station[TRAIN_STATIONS];
} traffic_rank;

typedef struct traffic {
  /* numbers of ranks and stations; ranks = 0: the run has one rank, so there is nothing to report */
  int ranks, stations;
  double steps;
  traffic_rank *rank;
} traffic;

/* Gather the numbers `mine` of each rank on all ranks. Collective; CLI_BAD as ranks_sum. */
int traffic_gather(const run_ranks *ranks, const traffic_rank *mine, int stations, double steps,
                   traffic *out);
void traffic_free(traffic *t);

double traffic_find_idle_ms(const traffic *t, int rank, int station); /* total of a station */
double traffic_compute_hidden(const traffic *t); /* sum of hidden / sum of sent, from 0 to 1 */

/* Print a table of the mean step, and a line with the hidden messages. */
void traffic_print(const traffic *t, FILE *f);
/* Write the value of "ranks" in log.jsonl (log.h). */
void traffic_print_json(const traffic *t, FILE *f);

#endif
