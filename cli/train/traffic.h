/* traffic.h: what each rank of a run did at each station: its time, what it waited for others, what it sent.
 *
 *   wait   in collectives, while it did nothing else
 *   idle   wait, less that of the rank that waited least at the same station, over the run: that one is taken to
 *          have waited for the wire alone.  No barrier is needed for it; it is a lower bound, since another rank
 *          may have been the last one at another step
 *   sent   time in steps in which something was under way, the library's or the trainer's, by the rank's clock
 *          (meter.h); hidden: of it, while the rank waited for neither */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include "ranks.h"

#include <stdio.h>

enum { TRAFFIC_STATIONS = 32 };

typedef struct traffic_station {
  char name[24];
  double ms, wait_ms, bytes, messages; /* of this process, so far */
} traffic_station;

typedef struct traffic_rank {
  double sent_ms, hidden_ms;
  traffic_station station[TRAFFIC_STATIONS];
} traffic_rank;

typedef struct traffic {
  int ranks, stations; /* 0 ranks: there is one, and nothing to tell */
  double steps;
  traffic_rank *rank;
} traffic;

/* A transport through which all of a rank's messages go, so that one meter sees them. */
typedef struct traffic_wire {
  ng_transport inner, table;
  ng_meter meter;
} traffic_wire;
const ng_transport *traffic_through(traffic_wire *w, const ng_transport *t); /* NULL stays NULL */

/* Collective: `mine` of every rank, to all.  CLI_BAD as ranks_sum. */
int traffic_gather(const run_ranks *ranks, const traffic_rank *mine, int stations, double steps,
                   traffic *out);
void traffic_free(traffic *t);

double traffic_idle(const traffic *t, int rank, int station); /* ms */
/* The time of a station on the rank that has most, over the mean; 1 where there is none. */
double traffic_balance(const traffic *t, const char *station);
double traffic_hidden(const traffic *t); /* of what was sent, over all ranks; 0..1 */

/* A table of a mean step, and two lines. */
void traffic_print(const traffic *t, FILE *f);
/* The value of "ranks" in log.h. */
void traffic_json(const traffic *t, FILE *f);

#endif
