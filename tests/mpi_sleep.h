/* mpi_sleep.h: a program that calls this links the collectives of mpi_sleep.c, which sleep while they wait. */
#ifndef TESTS_MPI_SLEEP_H
#define TESTS_MPI_SLEEP_H

void mpi_link_sleeping_collectives(void);

#endif
