/* comm.h: collectives over a caller's transport.
 *
 * An ng_comm wraps an ng_transport.  It needs no transport for one rank, and builds the collectives that the transport
 * lacks from all-reduce and broadcast.  It counts messages and bytes.  After the first failure it calls the transport's
 * abort, so that no rank waits forever, and every later call fails. */
#ifndef NG_COMM_H
#define NG_COMM_H

#include "meter.h"
#include "natgrad.h"

#include <stdbool.h>

typedef struct ng_comm {
  /* copy of the caller's table; for one rank, a table without functions named "self" */
  ng_transport t;
  int32_t rank, size;
  bool broken;      /* a call of the transport has failed */
  int64_t bytes;    /* bytes of all collectives so far, except collectives of groups of one rank */
  int64_t messages; /* number of these collectives */
  ng_meter meter;   /* time spent in these collectives */
  /* largest number of elements of one call of the transport; tests set a smaller value */
  int64_t piece;
} ng_comm;

/* A group of ranks, in ascending order. */
typedef struct ng_group {
  void *handle;  /* group handle of the transport; NULL: all ranks, or only one rank */
  int32_t n;     /* number of members */
  int32_t index; /* index of this rank among the members; -1: this rank is not a member */
} ng_group;

/* Check and copy the table of a transport (NULL: one rank). */
ng_status ng_comm_init(ng_comm *c, const ng_transport *t, char *message, size_t size);
/* Call the transport's abort, which wakes the other ranks; every later call fails.  Return NG_ERR_COMM. */
ng_status ng_comm_give_up(ng_comm *c);
/* Never call the transport again, not even its abort; every later collective fails. */
void ng_comm_leave(ng_comm *c);

/* Create a group of n ranks.  All ranks must call this function.  NG_ERR_ABSENT: the transport has no groups. */
ng_status ng_group_create(ng_comm *c, const int32_t *ranks, int32_t n, ng_group *out);
void ng_group_destroy(ng_comm *c, ng_group *g);
ng_group ng_group_world(const ng_comm *c);

/* Collectives over a group, in place.  They return NG_OK or NG_ERR_COMM.  A rank that is not a member does nothing.
 * ng_comm_broadcast: `root` is a rank of the whole transport.
 * ng_comm_gather: `buffer` has the parts of all members in order, counts[i] elements of member i.  On entry only this
 * rank's part is set. */
ng_status ng_comm_sum(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t);
ng_status ng_comm_broadcast(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t,
                            int32_t root);
ng_status ng_comm_gather(ng_comm *c, const ng_group *g, void *buffer, const int64_t *counts,
                         ng_dtype t);

/* A posted collective.  The request, its buffer and `counts` must stay valid until ng_comm_wait returns, ng_comm_test
 * sets `done`, or a call returns NG_ERR_COMM.
 * ng_comm_post_scatter_sum: `buffer` has sum(counts) elements.  At the end this rank's part is the sum over the
 * members, and the other elements are undefined. */
typedef struct ng_request {
  ng_collective c;
  void *handle;
  bool started, done;
} ng_request;
ng_status ng_comm_post_sum(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t,
                           ng_request *r);
ng_status ng_comm_post_scatter_sum(ng_comm *c, const ng_group *g, void *buffer,
                                   const int64_t *counts, ng_dtype t, ng_request *r);
ng_status ng_comm_post_broadcast(ng_comm *c, const ng_group *g, void *buffer, int64_t count,
                                 ng_dtype t, int32_t root, ng_request *r);
ng_status ng_comm_wait(ng_comm *c, ng_request *r);
/* Let the transport make progress without waiting; r->done: the collective is complete. */
ng_status ng_comm_test(ng_comm *c, ng_request *r);

#endif
