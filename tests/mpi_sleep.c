/* mpi_sleep.c: blocking collectives of MPI that give the core to other processes, for tests with more ranks than cores.
 *
 * MPICH polls while it waits, so a rank that waits for a rank without a core keeps its own core for its whole time
 * slice.  These functions replace MPI's in the tests, by its profiling interface: they start the collective, then poll
 * and sleep. Splitting a communicator still waits inside MPI.
 *
 * For MPICH only: the tests call the collectives of other MPIs directly. */
#include "mpi_sleep.h"

#include <mpi.h>

void mpi_link_sleeping_collectives(void) {}

#if defined(MPICH_VERSION)
#include <sched.h>
#include <time.h>

enum {
  POLLS = 32,   /* polls without a pause */
  YIELDS = 512, /* polls until the first sleep */
  SLEEP_NS = 20000
};

static int sleep_until_done(MPI_Request *request) {
  const struct timespec pause = {0, SLEEP_NS};
  int done = 0, e = MPI_SUCCESS;
  for (int polls = 0; e == MPI_SUCCESS; polls++) {
    e = PMPI_Test(request, &done, MPI_STATUS_IGNORE);
    if (e != MPI_SUCCESS || done != 0) break;
    if (polls > YIELDS) {
      (void)nanosleep(&pause, NULL);
    } else if (polls > POLLS) {
      (void)sched_yield();
    }
  }
  return e;
}

int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  MPI_Request request;
  const int e = PMPI_Ibcast(data, count, type, root, comm, &request);
  return e == MPI_SUCCESS ? sleep_until_done(&request) : e;
}

int MPI_Allgather(const void *send, int n, MPI_Datatype type, void *recv, int m, MPI_Datatype to,
                  MPI_Comm comm) {
  MPI_Request request;
  const int e = PMPI_Iallgather(send, n, type, recv, m, to, comm, &request);
  return e == MPI_SUCCESS ? sleep_until_done(&request) : e;
}

int MPI_Allreduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  MPI_Request request;
  const int e = PMPI_Iallreduce(send, recv, count, type, op, comm, &request);
  return e == MPI_SUCCESS ? sleep_until_done(&request) : e;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) {
  MPI_Request request;
  const int e = PMPI_Comm_idup(comm, out, &request);
  return e == MPI_SUCCESS ? sleep_until_done(&request) : e;
}
#endif
