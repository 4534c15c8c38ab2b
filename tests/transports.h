/* transports.h: the transports under test in t_comm and t_comm_faults, and the checks of a rank.
 *
 * Sums that are compared exactly have small whole numbers: at most 8 * 5, exact in bf16. */
#ifndef TESTS_TRANSPORTS_H
#define TESTS_TRANSPORTS_H

#include "comm/comm.h"
#include "ranks.h"
#include "tap.h"

#include <stdbool.h>
#include <stdio.h>

enum { MOST_RANKS = 8 }; /* ranks */

/* cmocka asserts on the main thread only: a rank prints the failed check and returns, and run_comm_case aborts its
 * transport, so that the other ranks end. */
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

/* Write or read element i of a buffer of any dtype; bytes are signed. */
void put(void *buffer, ng_dtype t, int64_t i, double x);
double get(const void *buffer, ng_dtype t, int64_t i);

/* Return element i of a rank.  The number of elements of member m: pattern 0: none; 1: uneven; 2: none for every second
 * member; 3: more than a chunk of threads.c for member 1. */
double rank_value(int32_t rank, int64_t i);
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

/* A collective of all ranks on host memory, without count, counts and root. */
ng_collective collective_of(ng_coll_kind kind, ng_dtype t, const void *send, void *recv);

/* USER is a transport of transports.c with all-reduce and broadcast only, without start and wait, with and without
 * groups; src/comm/ builds all other collectives on these two.  The last rank that arrives does the whole collective
 * under a lock.  Programs for MPI have OVER_MPI only. */
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
  int32_t n;     /* ranks */
  int64_t piece; /* largest message, in elements; 0: the default */
  uint64_t seed;
  void *arg;
} comm_case;

/* The work of one rank; `t` is its transport, or its tap. */
typedef ng_status (*body_fn)(ng_comm *c, const ng_transport *t, const comm_case *how);

/* taps: n taps, or NULL; the caller sets fail_at and with. */
ng_status run_comm_case(const comm_case *how, body_fn body, tap *taps, ng_status *per_rank);

/* Run with every transport and number of ranks, with whole messages and messages of seven elements. */
void on_all_transports(body_fn body);
/* The i-th number of ranks for a transport; 0 after the last. */
int32_t rank_count(which w, int32_t i);
/* n, or the number of ranks of the transport if that is smaller. */
int32_t at_most_ranks(which w, int32_t n);
#define LAST_WHICH ((which)(WHICH - 1))

/* Post a reduce-scatter and wait. */
static inline ng_status scatter_sum(ng_comm *c, const ng_group *g, void *buffer,
                                    const int64_t *counts, ng_dtype t) {
  ng_request q;
  const ng_status st = ng_comm_post_scatter_sum(c, g, buffer, counts, t, &q);
  return st == NG_OK ? ng_comm_wait(c, &q) : st;
}

#endif
