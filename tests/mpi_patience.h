/* mpi_patience.h: a program that calls this links the collectives of mpi_patience.c, which sleep while they wait. */
#ifndef TESTS_MPI_PATIENCE_H
#define TESTS_MPI_PATIENCE_H

void mpi_patience(void);

#endif
