/* mpi_patience.h: who calls this has blocking collectives of MPI that rest between two looks (mpi_patience.c). */
#ifndef TESTS_MPI_PATIENCE_H
#define TESTS_MPI_PATIENCE_H

void mpi_patience(void);

#endif
