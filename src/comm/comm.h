/* comm.h: collectives over a caller's transport.
 *
 * ng_comm wraps an ng_transport. With one rank no transport is needed, and collectives of a group of one rank do
 * nothing. If a transport lacks a kind of collective, ng_comm builds it from all-reduce and broadcast. It counts the
 * bytes. The first failure marks the transport broken and calls its abort, so that no rank waits forever. */
#ifndef NG_COMM_H
#define NG_COMM_H

#include "meter.h"
#include "natgrad.h"

#include <stdbool.h>

typedef struct ng_comm {
  ng_transport t; /* for one rank: the table "self" of size 1 without functions */
  int32_t rank, size;
  bool broken;
  int64_t bytes;    /* payload of all collectives; a group of one rank sends nothing */
  int64_t messages; /* number of collectives */
  ng_meter meter;   /* time in collectives */
  int64_t piece;    /* most elements of one message; tests set a smaller value */
} ng_comm;

/* A group of n ranks in ascending order. handle NULL and n == size: all ranks. */
typedef struct ng_group {
  void *handle;
  int32_t n, index; /* members; index of this rank among them, -1 if outside */
} ng_group;

/* Check and copy the table of a transport (NULL: one rank). After NG_ERR_ARG, `message` names the error. */
ng_status ng_comm_init(ng_comm *c, const ng_transport *t, char *message, size_t size);
/* Call the transport's abort, which wakes the other ranks; every later call fails. Return NG_ERR_COMM. */
ng_status ng_comm_give_up(ng_comm *c);
/* Call no function of the transport any more, not even `abort`. Every later collective fails. */
void ng_comm_leave(ng_comm *c);

/* Create a group. All ranks must call this function. NG_ERR_ABSENT: the transport has no group functions. */
ng_status ng_group_create(ng_comm *c, const int32_t *ranks, int32_t n, ng_group *out);
void ng_group_destroy(ng_comm *c, ng_group *g);
ng_group ng_group_world(const ng_comm *c);

/* Collectives over a group, in place. They return NG_OK or NG_ERR_COMM. On a rank outside the group they do nothing. */
ng_status ng_comm_sum(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t);
ng_status ng_comm_broadcast(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t,
                            int32_t root /* among all ranks */);
/* buffer: the parts of all members in order, counts[i] elements of member i. On entry only this rank's part is
 * valid. */
ng_status ng_comm_gather(ng_comm *c, const ng_group *g, void *buffer, const int64_t *counts,
                         ng_dtype t);
/* Start a collective; wait for it. Request and buffer must stay valid until wait returns or a call returns
 * NG_ERR_COMM. */
typedef struct ng_request {
  ng_collective c;
  void *handle;
  bool started, done;
} ng_request;
ng_status ng_comm_post_sum(ng_comm *c, const ng_group *g, void *buffer, int64_t count, ng_dtype t,
                           ng_request *r);
/* buffer: sum(counts) elements. On return this rank's part is the sum over members, the rest undefined. counts must
 * stay valid. */
ng_status ng_comm_post_scatter_sum(ng_comm *c, const ng_group *g, void *buffer,
                                   const int64_t *counts, ng_dtype t, ng_request *r);
ng_status ng_comm_post_broadcast(ng_comm *c, const ng_group *g, void *buffer, int64_t count,
                                 ng_dtype t, int32_t root, ng_request *r);
ng_status ng_comm_wait(ng_comm *c, ng_request *r);
/* Advance the request without waiting; r->done says whether it is complete. */
ng_status ng_comm_test(ng_comm *c, ng_request *r);

#endif
