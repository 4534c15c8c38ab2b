/* consumer_mpi.c: what natgrad_mpi.h shows, by a program that knows nothing else: a table for each rank, and
 * one sum by it. */
#define NG_EXPERIMENTAL
#include <natgrad_mpi.h>

int main(int argc, char **argv) {
  int level, ok = 0;
  ng_transport t;
  if (ng_mpi_transport(MPI_COMM_WORLD, &t, sizeof t) != NG_ERR_STATE)
    return 1; /* MPI is not running */
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) return 1;
  if (ng_mpi_transport(MPI_COMM_WORLD, &t, sizeof t) == NG_OK) {
    double x = 1.0;
    ng_collective c = {.struct_size = sizeof c, .mem = NG_HOST};
    c.kind = NG_ALL_REDUCE;
    c.dtype = NG_F64;
    c.mem = NG_HOST;
    c.send = c.recv = &x;
    c.count = 1;
    ok = t.run(t.user, &c) == NG_OK && x == (double)t.size;
    ng_mpi_release(&t);
    ok = ok && t.user == NULL;
  }
  (void)MPI_Finalize();
  return !ok;
}
