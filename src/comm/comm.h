/* comm.h: collectives over a caller's transport.
 *
 * ng_comm wraps an ng_transport. One rank needs no transport, and groups of one are no-ops. Missing
 * kinds are built from all-reduce and broadcast. Bytes are counted. The first failure marks the
 * transport broken and calls its abort, so that no rank waits forever. */
#ifndef NG_COMM_H
#define NG_COMM_H

#include "meter.h"
#include "natgrad.h"

#include <stdbool.h>

typedef struct ng_comm {
  ng_transport t; /* size 1 without functions: self */
  int32_t rank, size;
  bool broken;
  int64_t bytes;    /* payload of all collectives; groups of one send none */
  int64_t messages; /* calls */
  ng_meter meter;   /* time in collectives */
  int64_t piece;    /* elements of one message at most; tests reduce it */
} ng_comm;

/* Ranks in ascending order. handle NULL and n == size: all ranks. */
typedef struct ng_group {
  void *handle;
  int32_t n, index; /* members; index of this rank, -1 if outside */
} ng_group;

/* Check and copy the table; NULL is one rank. `message` names the missing field. */
ng_status ng_comm_init(ng_comm *c, const ng_transport *t, char *message, size_t size);
/* Abort: wake the other ranks; every later call fails. Return NG_ERR_COMM. */
ng_status ng_comm_give_up(ng_comm *c);
/* Stop calling the transport, `abort` included: every call fails, and groups are forgotten. */
void ng_comm_leave(ng_comm *c);

/* Collective over all ranks; NG_ERR_ABSENT without group functions. */
ng_status ng_group_create(ng_comm *c, const int32_t *ranks, int32_t n, ng_group *out);
void ng_group_destroy(ng_comm *c, ng_group *g);
ng_group ng_group_world(const ng_comm *c);

/* In place. NG_OK or NG_ERR_COMM. A rank outside the group does nothing. */
ng_status ng_comm_sum(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t);
ng_status ng_comm_broadcast(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t,
                            int32_t root /* of all ranks */);
/* buffer: the parts of all members in order, counts[i] elements of member i; on entry this rank's
 * part is filled. */
ng_status ng_comm_gather(ng_comm *c, const ng_group *g, void *buffer, const int64_t *counts,
                         ng_dtype t);
/* Post and wait. The request and the buffer must stay valid until wait returns, or until any call
 * has returned NG_ERR_COMM. */
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
/* Make progress without waiting; r->done says whether the request is complete. */
ng_status ng_comm_test(ng_comm *c, ng_request *r);

#endif
