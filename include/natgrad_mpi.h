/* natgrad_mpi.h: ranks over MPI, for programs with an MPI_Comm.
 *
 * Link natgrad and natgrad_mpi: find_package(natgrad COMPONENTS mpi), or pkg-config natgrad_mpi.  The
 * caller initialises MPI (MPI_THREAD_FUNNELED or more) and finalises it.
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

/* Fill the transport table of this rank of `comm`.  The table uses a duplicate of `comm`, so its
 * messages never match the caller's.
 *
 * Math:    a sum adds in the order of ranks, in double, and is rounded once: it has the same bits on
 *          all ranks and in every run, as with ng_threads.  A large sum takes two collectives of MPI,
 *          and each rank sends 2 (W-1)/W of its bytes; a small sum takes one.
 * Memory:  buffers of twice the data in progress (reduce-scatter: up to three times), which are
 *          reused.  MPI uses these buffers, not the caller's arrays, because the caller may free its
 *          arrays after a failure.  ng_mpi_release frees them.
 * Ranks:   collective over `comm`; all ranks return the same status.
 * Threads: the thread that initialised MPI makes every call on the table and on its contexts, unless
 *          MPI has MPI_THREAD_MULTIPLE.
 * Errors:  NG_ERR_ARG (no table, an intercommunicator), NG_ERR_STATE (MPI is not running),
 *          NG_ERR_NOMEM, NG_ERR_COMM.  If a rank fails or releases its table, calls of the other ranks
 *          fail.  The launcher detects a killed rank and ends the job.
 * Limits:  host memory only; calls of at most 2^30 elements (the library divides larger ones). */
NG_API NG_CHECKED ng_status ng_mpi_transport(MPI_Comm comm, ng_transport *out, size_t size);

/* Free the memory of a table and clear it, after the last context that used it and before
 * MPI_Finalize.  NULL and a cleared table are accepted.  Collective: all ranks release their tables in the
 * same order.  If a rank has failed, or has released its table before other ranks finished their
 * calls, ng_mpi_release does not wait, and memory that MPI may still use is not freed. */
NG_API void ng_mpi_release(ng_transport *t);

#ifdef __cplusplus
}
#endif

#endif /* NATGRAD_MPI_H */
