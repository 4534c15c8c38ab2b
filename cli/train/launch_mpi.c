/* launch_mpi.c: the module launch_mpi.so, which adds MPI to the program (launch.h). No other file initialises MPI. */
#include "launch_mpi.h"
#include "natgrad_mpi.h"

#include <stdio.h>

NG_API launch_mpi_begin_fn launch_mpi_begin;
NG_API launch_mpi_end_fn launch_mpi_end;

int launch_mpi_begin(ng_transport *out, size_t size, char *why, size_t why_size) {
  int level = 0;
  if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) {
    (void)snprintf(why, why_size, "MPI_Init_thread failed");
    return 1;
  }
  const ng_status st = ng_mpi_transport(MPI_COMM_WORLD, out, size);
  if (st == NG_OK && level >= MPI_THREAD_FUNNELED) return 0;
  (void)snprintf(why, why_size, "%s", st != NG_OK ? ng_status_meaning(st) : "it allows no threads");
  return 1;
}

void launch_mpi_end(ng_transport *t) {
  ng_mpi_release(t);
  (void)MPI_Finalize();
}
