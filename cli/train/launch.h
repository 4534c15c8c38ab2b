/* launch.h: the ranks of a run: processes started by an MPI launcher, or threads.
 *
 * The program itself does not link to MPI. If a launcher has started several processes, it loads the module
 * launch_mpi.so beside it. So one program serves machines with and without MPI. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "ranks.h"

typedef struct launch {
  int32_t threads;    /* ranks to create as threads of this process; 1: none */
  ng_transport table; /* of this process; size 1: no MPI */
  void *module;
} launch;

/* `wanted`: "auto" (MPI under a launcher, else one rank), "mpi", or a number of threads. CLI_BAD after a message:
 * unknown value, or a module that is missing or does not fit the launcher. */
int launch_begin(const char *wanted, launch *out);
/* The transport of MPI; NULL: none. */
const ng_transport *launch_transport(const launch *l);
/* Call after the last use; `failed`: others may be waiting for this rank. */
void launch_end(launch *l, bool failed);

/* Run `work` on n ranks, threads of this process; the calling thread is rank 0.  Errors of all ranks together are
 * reported once.  If a thread cannot be created, all ranks give up.  Returns CLI_BAD if a rank does, or could not
 * begin. */
int launch_threads(int32_t n, int (*work)(void *user, const ng_transport *t), void *user);

/* How many of `size` ranks run on this machine. */
int32_t launch_neighbours(int32_t size);

#endif
