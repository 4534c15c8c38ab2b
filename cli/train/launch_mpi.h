/* launch_mpi.h: the two functions of the module launch_mpi.so, which the program looks up by name. */
#ifndef LAUNCH_MPI_H
#define LAUNCH_MPI_H

#include "natgrad.h"

#include <stddef.h>

/* Initialises MPI and makes this process's table; 0, or not, and `why`.  launch_mpi_begin. */
typedef int launch_mpi_begin_fn(ng_transport *out, size_t size, char *why, size_t why_size);
/* Gives the table back and finalises MPI.  launch_mpi_end. */
typedef void launch_mpi_end_fn(ng_transport *t);

#endif
