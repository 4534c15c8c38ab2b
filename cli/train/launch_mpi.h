/* launch_mpi.h: the two functions of the module launch_mpi.so, which the program looks up by name. */
#ifndef LAUNCH_MPI_H
#define LAUNCH_MPI_H

#include "natgrad.h"

#include <stddef.h>

/* launch_mpi_begin: initialise MPI and set *out to its transport. Return 0, or 1 and the reason in `why`. */
typedef int launch_mpi_begin_fn(ng_transport *out, size_t size, char *why, size_t why_size);
/* launch_mpi_end: release the transport and finalise MPI. */
typedef void launch_mpi_end_fn(ng_transport *t);

#endif
