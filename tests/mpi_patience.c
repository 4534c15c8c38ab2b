/* mpi_patience.c: blocking collectives of MPI that give the core to other processes, for tests with more ranks than cores.
 *
 * MPICH polls while it waits, so a rank that waits for a rank without a core keeps its own core for its whole time slice.  These
 * functions replace MPI's in the tests, by its profiling interface: they start the collective and poll with rests between.
 * Splitting a communicator still waits inside MPI.
 *
 * They exist for MPICH only: other MPIs rest by themselves, and are tested with their own calls. */
#include "mpi_patience.h"

#include <mpi.h>

void mpi_patience(void) {}

#if defined(MPICH_VERSION)
#include <sched.h>
#include <time.h>

enum {
  SOON = 32,     /* polls before the core is given up */
  LATER = 512,   /* polls before sleeping in between */
  NAP_NS = 20000 /* of one sleep */
};

static int rest_until(MPI_Request *request) {
  const struct timespec nap = {0, NAP_NS};
  int done = 0, e = MPI_SUCCESS;
  for (int looks = 0; e == MPI_SUCCESS; looks++) {
    e = PMPI_Test(request, &done, MPI_STATUS_IGNORE);
    if (e != MPI_SUCCESS || done != 0) break;
    if (looks > LATER) {
      (void)nanosleep(&nap, NULL);
    } else if (looks > SOON) {
      (void)sched_yield();
    }
  }
  return e;
}

int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  MPI_Request request;
  const int e = PMPI_Ibcast(data, count, type, root, comm, &request);
  return e == MPI_SUCCESS ? rest_until(&request) : e;
}

int MPI_Allgather(const void *send, int n, MPI_Datatype type, void *recv, int m, MPI_Datatype to,
                  MPI_Comm comm) {
  MPI_Request request;
  const int e = PMPI_Iallgather(send, n, type, recv, m, to, comm, &request);
  return e == MPI_SUCCESS ? rest_until(&request) : e;
}

int MPI_Allreduce(const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  MPI_Request request;
  const int e = PMPI_Iallreduce(send, recv, count, type, op, comm, &request);
  return e == MPI_SUCCESS ? rest_until(&request) : e;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) {
  MPI_Request request;
  const int e = PMPI_Comm_idup(comm, out, &request);
  return e == MPI_SUCCESS ? rest_until(&request) : e;
}
#endif
