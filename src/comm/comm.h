/* comm.h: the front desk of the transports.
 *
 * ng_comm wraps the caller's ng_transport: one rank needs none, groups of one are no-ops, missing
 * kinds are built from all-reduce and broadcast, bytes are counted, and the first failure marks the
 * transport broken and calls its abort, so that no rank waits for another for ever.
 */
#ifndef NG_COMM_H
#define NG_COMM_H

#include "meter.h"
#include "natgrad.h"

#include <stdbool.h>

typedef struct ng_comm {
  ng_transport t; /* size 1 and no functions: self */
  int32_t rank, size;
  bool broken;
  int64_t bytes; /* payload (whole buffers) handed to collectives so far; groups of one send none */
  int64_t messages; /* ... in so many calls */
  ng_meter meter;   /* how long they took */
  int64_t piece;    /* most elements of one message, 2^31-1; tests make it small */
} ng_comm;

/* A set of ranks, ascending.  handle NULL and n == size: all of them. */
typedef struct ng_group {
  void *handle;
  int32_t n, index; /* members; this rank's place, -1 if outside */
} ng_group;

/* Checks and copies the table; NULL is one rank.  `message` names the missing field. */
ng_status ng_comm_init(ng_comm *c, const ng_transport *t, char *message, size_t size);
/* This rank cannot go on: the others are woken, and every call fails from now on.  NG_ERR_COMM. */
ng_status ng_comm_give_up(ng_comm *c);
/* No function of the transport is called any more, `abort` included: every call fails, and groups are
 * only forgotten. */
void ng_comm_leave(ng_comm *c);

/* Collective over all ranks; NG_ERR_ABSENT without group functions. */
ng_status ng_group_create(ng_comm *c, const int32_t *ranks, int32_t n, ng_group *out);
void ng_group_destroy(ng_comm *c, ng_group *g);
ng_group ng_group_world(const ng_comm *c);

/* In place.  NG_OK or NG_ERR_COMM.  A rank outside the group does nothing. */
ng_status ng_comm_sum(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t);
ng_status ng_comm_broadcast(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t,
                            int32_t root /* of all ranks */);
/* recv holds every member's part, counts[i] elements of member i, in order; this rank's is there.
 */
ng_status ng_comm_gather(ng_comm *c, const ng_group *g, void *buffer, const int64_t *counts,
                         ng_dtype t);
/* Post and wait.  The transport sees the descriptor in the request: request and buffer stay where
 * they are until wait, or until any call has returned NG_ERR_COMM. */
typedef struct ng_request {
  ng_collective c;
  void *handle;
  bool started, done;
} ng_request;
ng_status ng_comm_post_sum(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t,
                           ng_request *r);
/* buffer: sum(counts) elements. Afterwards this rank's part is the sum over members, the rest is undefined. counts
 * must stay valid as well. */
ng_status ng_comm_post_scatter_sum(ng_comm *c, const ng_group *g, void *buffer,
                                   const int64_t *counts, ng_dtype t, ng_request *r);
ng_status ng_comm_post_broadcast(ng_comm *c, const ng_group *g, void *buffer, int64_t count,
                                 ng_dtype t, int32_t root, ng_request *r);
ng_status ng_comm_wait(ng_comm *c, ng_request *r);
/* Lets it go on without waiting; r->done says whether it is complete. */
ng_status ng_comm_test(ng_comm *c, ng_request *r);

#endif
