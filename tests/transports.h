/* transports.h: the transports under test in t_comm and t_comm_faults, and the checks of a rank.
 *
 * Values are small whole numbers wherever sums are compared exactly: at most 8 * 5 in size, exact
 * even in bf16. */
#ifndef TESTS_TRANSPORTS_H
#define TESTS_TRANSPORTS_H

#include "comm/comm.h"
#include "ranks.h"
#include "tap.h"

#include <stdbool.h>
#include <stdio.h>

enum { MOST_RANKS = 8 }; /* ranks of a comm_case */

/* cmocka asserts on the main thread only: a rank prints the failed check and returns; run_comm_case then
 * aborts its transport, so that the other ranks end. */
#define NEED(x)                                                                                    \
  do {                                                                                             \
    if (!(x)) {                                                                                    \
      fprintf(stderr, "%s:%d: a rank needs %s\n", __FILE__, __LINE__, #x);                         \
      return NG_ERR_STATE;                                                                         \
    }                                                                                              \
  } while (0)
#define DO(call)                                                                                   \
  do {                                                                                             \
    const ng_status st_ = (call);                                                                  \
    if (st_ != NG_OK) return st_;                                                                  \
  } while (0)

/* Element i of a buffer of any dtype; bytes are signed. */
void put(void *buffer, ng_dtype t, int64_t i, double x);
double get(const void *buffer, ng_dtype t, int64_t i);

/* What rank `rank` has at i, and how many elements member `m` has: pattern 0 none, 1 uneven, 2 none
 * for every other one, 3 more than a chunk of threads.c for the second. */
double value(int32_t rank, int64_t i);
int64_t element_count(int32_t pattern, int32_t m);
extern const int32_t all_ranks[MOST_RANKS];

/* A buffer between two rows of guard bytes; free(base). */
typedef struct guarded {
  unsigned char *base;
  void *data;
  size_t bytes;
} guarded;
guarded guarded_new(int64_t count, ng_dtype t);
bool guarded_intact(const guarded *g);

/* A call on all ranks' host memory; count, counts, root are left to fill in. */
ng_collective collective_of(ng_coll_kind kind, ng_dtype t, const void *send, void *recv);

/* `user` is a table of transports.c's own: the last to arrive does the whole collective under one
 * lock.  It knows all-reduce and broadcast only, has no start and wait, and comes with and without
 * groups, so that the front desk has to make the rest.  Programs that are built for MPI, and started by
 * its launcher, have that one only: every process is one rank of each comm_case, or none. */
#if defined(NG_TEST_MPI)
typedef enum which { SELF, USER, USER_NO_GROUPS, THREADS, OVER_MPI, WHICH } which;
#define FIRST_WHICH OVER_MPI
#define FIRST_WIRED OVER_MPI
#else
typedef enum which { SELF, USER, USER_NO_GROUPS, THREADS, WHICH } which;
#define FIRST_WHICH SELF
#define FIRST_WIRED USER
#endif
extern const char *const which_name[WHICH];

typedef struct comm_case {
  which which;
  int32_t n;
  int64_t piece; /* 0: as it comes */
  uint64_t seed;
  void *more;
} comm_case;

/* What one rank does; `t` is its table (the tap's, if there are taps). */
typedef ng_status (*body_fn)(ng_comm *c, const ng_transport *t, const comm_case *how);

/* `taps` (n entries, may be NULL) are put between; fail_at and with are the caller's. */
ng_status run_comm_case(const comm_case *how, body_fn body, tap *taps, ng_status *per_rank);

/* Every transport, every number of ranks, whole messages and messages of seven elements. */
void on_all_transports(body_fn body);
/* Number `i` of the ranks that trials on it have; 0: no more. */
int32_t rank_count(which w, int32_t i);
/* So many ranks, or fewer where there are not as many. */
int32_t at_most_ranks(which w, int32_t n);
#define LAST_WHICH ((which)(WHICH - 1))

/* Posted and waited for. */
static inline ng_status scatter_sum(ng_comm *c, const ng_group *g, void *buffer,
                                    const int64_t *counts, ng_dtype t) {
  ng_request q;
  const ng_status st = ng_comm_post_scatter_sum(c, g, buffer, counts, t, &q);
  return st == NG_OK ? ng_comm_wait(c, &q) : st;
}

#endif
