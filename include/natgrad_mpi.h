/* natgrad_mpi.h: ranks over MPI, for programs that have an MPI_Comm.
 *
 * A library of its own, natgrad_mpi, so that natgrad needs no MPI: link both, or ask CMake for
 * find_package(natgrad COMPONENTS mpi), pkg-config for natgrad_mpi.  The caller initialises MPI, with
 * MPI_THREAD_FUNNELED or more, and finalises it; this library does neither.
 *
 *   ng_transport t;
 *   ng_context_config config;
 *   ng_context_config_init(&config, sizeof config);
 *   st = ng_mpi_transport(MPI_COMM_WORLD, &t, sizeof t);
 *   config.transport = &t;
 *   ... ng_context_create, training, ng_context_destroy ...
 *   ng_mpi_release(&t);
 *   MPI_Finalize();
 */
#ifndef NATGRAD_MPI_H
#define NATGRAD_MPI_H

#if !defined(NG_EXPERIMENTAL)
#error                                                                                             \
    "natgrad_mpi.h: transports are experimental; define NG_EXPERIMENTAL before natgrad.h is included"
#endif

#include <mpi.h>
#include <natgrad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills a table of `size` bytes for this rank of `comm`, which is duplicated: the caller's own messages
 * and these never meet.
 *
 * Math:    sums are taken in rank order, in double, and rounded once: on all ranks, in each run and for
 *          every number of messages in flight the same bits, which are those of ng_threads.  A large sum
 *          is two collectives (everybody's share of the elements to everybody, the sums back), 2 (W-1)/W
 *          of its bytes sent by each of W ranks whatever its dtype; a small one is one.
 * Memory:  a copy of twice the payload in flight (of a reduce-scatter up to three times), kept for reuse: a rank that was told of a failure may
 *          free its buffers at once, which MPI itself does not allow.  Free with ng_mpi_release.
 * Ranks:   collective over `comm`; all ranks get the same status.
 * Threads: every call on the table and on contexts that use it by the thread that initialised MPI,
 *          unless that was done with MPI_THREAD_MULTIPLE.
 * Errors:  NG_ERR_ARG (no table, an intercommunicator), NG_ERR_STATE (MPI is not running), NG_ERR_NOMEM,
 *          NG_ERR_COMM.  A rank that gives up tells the others, whose calls then fail; so do calls of which
 *          a rank has no part any more because it was released; a rank that is killed is the launcher's to
 *          notice, which ends the job.
 * Limits:  host memory; an all-gather or reduce-scatter of at most 2^31-1 elements in all (the library
 *          itself splits larger ones); other messages of any size. */
NG_API NG_CHECKED ng_status ng_mpi_transport(MPI_Comm comm, ng_transport *out, size_t size);

/* Frees what the table stands on and clears it, before MPI_Finalize and after the last context that
 * used it.  Collective, as MPI_Comm_free is: it waits for all ranks, which release several tables in one
 * order.  Where some rank gave up, or was released before a call that others made, nobody waits, and what
 * MPI may still touch stays until the end of the process.  Accepts NULL and a cleared table. */
NG_API void ng_mpi_release(ng_transport *t);

#ifdef __cplusplus
}
#endif

#endif /* NATGRAD_MPI_H */
