/* launch.h: the ranks of a run: processes started by an MPI launcher, or threads.
 *
 * The program itself does not link to MPI. If a launcher has started several processes, it loads the module
 * launch_mpi.so beside it. So one program serves machines with and without MPI. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "ranks.h"

typedef struct launch {
  int32_t threads;    /* ranks to create as threads of this process; 1: no threads */
  ng_transport table; /* collectives of this process; size 1: no MPI */
  void *module;
} launch;

/* `wanted`: "auto" (MPI under a launcher, else one rank), "mpi", or a number of threads. Return CLI_BAD after a
 * message if the value is unknown, or if launch_mpi.so is missing or does not fit the launcher. */
int launch_begin(const char *wanted, launch *out);
/* Return the transport of MPI; NULL if the run does not use MPI. */
const ng_transport *launch_get_transport(const launch *l);
/* Release the launch. If this rank `failed`, abort MPI, because other ranks may be waiting for this rank. */
void launch_end(launch *l, bool failed);

/* Run `work` on n ranks, threads of this process; the calling thread is rank 0.  Only the first error message of all
 * ranks is printed.  If a thread cannot be created, all ranks fail.  Return CLI_BAD if a rank returns CLI_BAD or cannot
 * begin. */
int launch_run_threads(int32_t n, int (*work)(void *user, const ng_transport *t), void *user);

/* Return how many of the run's `size` ranks run on this machine. */
int32_t launch_count_neighbours(int32_t size);

#endif
