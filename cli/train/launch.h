/* launch.h: the ranks of a run are processes that an MPI launcher started, or threads of one process.
 *
 * The program is not linked to MPI. If a launcher has started several processes, the program loads the module
 * launch_mpi.so from its own folder. So one program serves machines with and without MPI. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "ranks.h"

typedef struct launch {
  int32_t threads;    /* number of ranks that are threads of this process; 1: no thread ranks */
  ng_transport table; /* transport of MPI; size 1: no MPI */
  void *module;
} launch;

/* `wanted` is "auto" (MPI under a launcher, else one rank), "mpi", or a number of threads. CLI_BAD, reported: the value
 * is unknown, launch_mpi.so does not exist, or its MPI is not the launcher's. */
int launch_begin(const char *wanted, launch *out);
/* Return the transport of MPI; NULL if the run does not use MPI. */
const ng_transport *launch_get_transport(const launch *l);
/* Finalise MPI. If this rank `failed`, abort MPI instead, because other ranks may be waiting for this rank. */
void launch_end(launch *l, bool failed);

/* Run `work` on n ranks, which are threads of this process; the calling thread is rank 0. Only the first error message
 * of all ranks is printed. If a thread cannot be created, all ranks fail. CLI_BAD: a rank failed or could not start. */
int launch_run_threads(int32_t n, int (*work)(void *user, const ng_transport *t), void *user);

/* Return how many of the `size` ranks of the run are on this machine. */
int32_t launch_count_local_ranks(int32_t size);

#endif
