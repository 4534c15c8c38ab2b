/* ranks.h: run one function on N ranks, as threads of this process, and collect their statuses.
 *
 * Ranks return a status and never assert: cmocka's assertions work on the main thread only.  Call these functions from
 * the main thread.  A run that does not end within ranks_timeout_seconds() fails the test and prints the ranks that run. */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "natgrad.h"

#include <stdbool.h>
#include <stddef.h>

/* Seconds until a run counts as hanging: NG_TEST_TIMEOUT, or ten minutes for slow and busy machines. */
long ranks_timeout_seconds(void);

/* `t`: the transport of this rank, for ng_context_config.transport. */
typedef ng_status (*rank_fn)(int32_t rank, ng_transport *t, void *arg);

/* Return the worst status: the most negative one, or else the largest.  per_rank: n statuses, or NULL. */
ng_status ranks_run(int32_t n, rank_fn fn, void *arg, ng_status *per_rank);

/* In programs for MPI (NG_TEST_MPI), the first n processes are the ranks of ranks_run, the others wait; all get the
 * statuses. */
#if defined(NG_TEST_MPI)
int32_t ranks_process_count(void); /* number of processes, at most 8 */

/* Make the transport of a group of n processes.  Each process calls this function.  ng_mpi_release frees the transport. */
ng_status ranks_make_group(int32_t n, const int *list, ng_transport *out);
#endif

/* Run n tests of cmocka, over MPI between MPI_Init and MPI_Finalize.  For main(). */
struct CMUnitTest;
int ranks_run_tests(const char *group, const struct CMUnitTest *tests, size_t n);
#define RANKS_TESTS(group, tests) ranks_run_tests(group, tests, sizeof(tests) / sizeof((tests)[0]))

/* Transports for the rows and columns of a grid: rank r is in row r / cols and column r % cols.  Between open and close
 * each rank gets its transports and releases them. */
enum { RANKS_GRID_MOST = 8 };
typedef struct ranks_grid {
  int32_t rows, cols;
  /* transports of rows and columns; not set over MPI */
  ng_threads *row[RANKS_GRID_MOST], *col[RANKS_GRID_MOST];
} ranks_grid;
ng_status ranks_grid_open(ranks_grid *g, int32_t rows, int32_t cols);
void ranks_grid_close(ranks_grid *g);
ng_status ranks_grid_transport(const ranks_grid *g, int32_t rank, bool of_row, ng_transport *out);
void ranks_grid_release(ng_transport *t);
/* Over MPI: broadcast the bytes at `what` from rank r to all processes. */
void ranks_broadcast_bytes(int32_t r, void *what, size_t bytes);

/* ranks_run with the caller's transports: t[r] for rank r. */
ng_status ranks_run_on(int32_t n, ng_transport *t, rank_fn fn, void *arg, ng_status *per_rank);

#endif
