/* launch.h: where the ranks of a run come from: the launcher of an MPI that has started this process, or
 * threads.
 *
 * The program knows no MPI.  What does is a module beside it, launch_mpi.so, that is loaded when a launcher
 * has started several processes; so one program serves machines with and without MPI. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "ranks.h"

typedef struct launch {
  int32_t threads;    /* ranks to make as threads of this process; 1: none */
  ng_transport table; /* of this process; size 1: none                     */
  void *module;
} launch;

/* `wanted`: "auto" (MPI under its launcher, else one rank), "mpi", or a number of threads.  CLI_BAD, told:
 * no such thing, a module that is missing or does not fit the launcher. */
int launch_begin(const char *wanted, launch *out);
/* What the ranks of other processes use; NULL: there are none. */
const ng_transport *launch_transport(const launch *l);
/* After the last use; `failed`: the others may be waiting for this one. */
void launch_end(launch *l, bool failed);

/* Of `size` ranks, those that share this machine. */
int32_t launch_neighbours(int32_t size);

#endif
