/* mpi_patience.c: blocking collectives of MPI that let others have the core, for tests of more ranks than cores.
 *
 * MPI may wait by asking without end: MPICH does, and a rank that waits for one that has no core then keeps it from its core until
 * its time is up.  These stand before MPI's, by its profiling interface, in the tests and in the library as it is linked to them: the
 * collective is begun, and asked for with rests between.  To split a communicator cannot be begun and left; but it is a copy of one
 * that the same processes had before, and the first alone waits inside of MPI.
 *
 * Where MPI is MPICH: others rest by themselves, and are tested with calls of their own. */
#include "mpi_patience.h"

#include <mpi.h>

void mpi_patience(void) {}

#if defined(MPICH_VERSION)
#include <sched.h>
#include <string.h>
#include <time.h>

enum {
  SOON = 32,      /* looks before the core is given up      */
  LATER = 512,    /* looks before it sleeps between them    */
  NAP_NS = 20000, /* so long                                */
  MOST = 8,       /* processes                              */
  MADE = 256      /* as many as there are lists of eight, nearly: in the order of their ranks */
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

/* ---- communicators ---------------------------------------------------------------------------*/

/* Of these processes of MPI_COMM_WORLD one was made before, on all of them or on none. */
typedef struct made {
  int n, rank[MOST];
  MPI_Comm comm;
} made;

static made before[MADE];
static int n_before;

static int find(const int *rank, int n, MPI_Comm *out) {
  MPI_Group world, these;
  for (int i = 0; i < n_before; i++) {
    *out = before[i].comm;
    if (before[i].n == n && memcmp(before[i].rank, rank, (size_t)n * sizeof *rank) == 0)
      return MPI_SUCCESS;
  }
  if (n_before == MADE) return MPI_ERR_OTHER;
  made *m = &before[n_before++];
  m->n = n;
  memcpy(m->rank, rank, (size_t)n * sizeof *rank);
  (void)PMPI_Comm_group(MPI_COMM_WORLD, &world);
  (void)PMPI_Group_incl(world, n, rank, &these);
  const int e = PMPI_Comm_create_group(MPI_COMM_WORLD, these, 11, &m->comm);
  (void)PMPI_Group_free(&these);
  (void)PMPI_Group_free(&world);
  *out = m->comm;
  return e;
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *out) {
  int mine[3] = {color, key, 0}, all[MOST][3], rank[MOST], keys[MOST], n = 0, size = 0;
  MPI_Comm like = MPI_COMM_NULL;
  MPI_Errhandler errors;
  *out = MPI_COMM_NULL;
  (void)PMPI_Comm_size(comm, &size);
  if (size > MOST) return MPI_ERR_OTHER;
  (void)PMPI_Comm_rank(MPI_COMM_WORLD, &mine[2]);
  int e = MPI_Allgather(mine, 3, MPI_INT, all, 3, MPI_INT, comm);
  if (e != MPI_SUCCESS || color == MPI_UNDEFINED) return e;
  for (int r = 0; r < size; r++) { /* by their keys, and then as they are */
    if (all[r][0] != color) continue;
    int at = n++;
    for (; at > 0 && keys[at - 1] > all[r][1]; at--) {
      keys[at] = keys[at - 1];
      rank[at] = rank[at - 1];
    }
    keys[at] = all[r][1];
    rank[at] = all[r][2];
  }
  e = find(rank, n, &like);
  if (e == MPI_SUCCESS) e = MPI_Comm_dup(like, out);
  if (e != MPI_SUCCESS || PMPI_Comm_get_errhandler(comm, &errors) != MPI_SUCCESS) return e;
  (void)PMPI_Comm_set_errhandler(*out, errors);
  return PMPI_Errhandler_free(&errors);
}
#endif
