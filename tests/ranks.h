/* ranks.h: run one function on N ranks, as threads of this process, and collect what they return.
 *
 * Ranks return a status and never assert: cmocka's assertions work on the main thread only.  Call
 * these from the main thread.  A run that does not end within ranks_patience() fails the test with a
 * line saying which ranks were still running, instead of hanging.
 */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "natgrad.h"

#include <stdbool.h>
#include <stddef.h>

/* Seconds after which something hangs: NG_TEST_TIMEOUT, or ten minutes, as a machine may be slow and busy. */
long ranks_patience(void);

/* `t` is this rank's own table, of ng_threads; copy it into ng_context_config.transport. */
typedef ng_status (*rank_fn)(int32_t rank, ng_transport *t, void *arg);

/* Returns the worst status: the most negative one, or else the largest.  `per_rank` (n entries, may
 * be NULL) receives each rank's own. */
ng_status ranks_run(int32_t n, rank_fn fn, void *arg, ng_status *per_rank /* may be NULL */);

/* In programs that are built for MPI (NG_TEST_MPI) and started by its launcher, ranks_run is over MPI: each
 * of the first n processes is one rank, the others wait; all get the same statuses. */
#if defined(NG_TEST_MPI)
int32_t ranks_there(void); /* processes, up to 8 */

/* The transport of these n processes, which all of them ask for; ng_mpi_release gives it back. */
ng_status ranks_group(int32_t n, const int *list, ng_transport *out);
#endif

/* Run these n tests of cmocka; over MPI between MPI_Init and MPI_Finalize.  For main(). */
struct CMUnitTest;
int ranks_tests(const char *group, const struct CMUnitTest *tests, size_t n);
#define RANKS_TESTS(group, tests) ranks_tests(group, tests, sizeof(tests) / sizeof((tests)[0]))

/* A grid of rows * cols ranks, each row and each column with transports of its own: rank r is in row r / cols and
 * column r % cols.  Between open and close each rank asks for its transports and gives them back. */
enum { RANKS_SIDE = 8 };
typedef struct ranks_grid {
  int32_t rows, cols;
  ng_threads *row[RANKS_SIDE], *col[RANKS_SIDE]; /* not over MPI */
} ranks_grid;
ng_status ranks_grid_open(ranks_grid *g, int32_t rows, int32_t cols);
void ranks_grid_close(ranks_grid *g);
ng_status ranks_grid_transport(const ranks_grid *g, int32_t rank, bool of_row, ng_transport *out);
void ranks_grid_release(ng_transport *t);
/* Over MPI: broadcast these bytes of rank r to all processes. */
void ranks_broadcast_bytes(int32_t r, void *what, size_t bytes);

/* The same over tables of the caller's: t[r] is handed to rank r. */
ng_status ranks_run_on(int32_t n, ng_transport *t, rank_fn fn, void *arg, ng_status *per_rank);

#endif
