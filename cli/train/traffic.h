/* traffic.h: time, waiting and traffic of each rank at each station of a step.
 *
 *   wait   blocked in collectives
 *   idle   wait, less the wait of the rank that waited least at the same station, over the run: that rank is assumed to have waited for the network only. A lower bound that needs no barrier
 *   sent   time in steps during which a message of the library or the trainer was under way (meter.h); hidden: the part during which the rank was not blocked */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include "ranks.h"

#include <stdio.h>

enum { TRAFFIC_STATIONS = 32 };

typedef struct traffic_station {
  char name[24];
  double ms, wait_ms, bytes, messages; /* of this process so far */
} traffic_station;

typedef struct traffic_rank {
  double sent_ms, hidden_ms;
  traffic_station station[TRAFFIC_STATIONS];
} traffic_rank;

typedef struct traffic {
  int ranks, stations; /* 0 ranks: a single rank, nothing to report */
  double steps;
  traffic_rank *rank;
} traffic;

/* A transport that passes all messages of a rank through one meter. */
typedef struct traffic_wire {
  ng_transport inner, table;
  ng_meter meter;
} traffic_wire;
const ng_transport *traffic_through(traffic_wire *w, const ng_transport *t); /* NULL stays NULL */

/* Gather `mine` of every rank on all; collective. CLI_BAD as ranks_sum. */
int traffic_gather(const run_ranks *ranks, const traffic_rank *mine, int stations, double steps,
                   traffic *out);
void traffic_free(traffic *t);

double traffic_idle(const traffic *t, int rank, int station); /* ms */
/* The largest time of a station over the mean of the ranks; 1 if there is none. */
double traffic_balance(const traffic *t, const char *station);
double traffic_hidden(const traffic *t); /* hidden / sent over all ranks; 0..1 */

/* Print a table of the mean step, and two lines. */
void traffic_print(const traffic *t, FILE *f);
/* The value of "ranks" in log.h. */
void traffic_json(const traffic *t, FILE *f);

#endif
