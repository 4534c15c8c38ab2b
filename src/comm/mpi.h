/* mpi.h: what the two files of the transport over MPI share, and what its tests see of it beside
 * natgrad_mpi.h.
 *
 * mpi.c is the table: calls, waiting, giving up, groups.  mpi_op.c carries one op from part to part. */
#ifndef NG_COMM_MPI_H
#define NG_COMM_MPI_H

#include "core/core.h"
#include "natgrad_mpi.h"

/* All ranks, or a group. */
typedef struct ng_mpi_team {
  MPI_Comm comm[2]; /* first parts, second parts */
  int32_t n, index; /* members; this rank's place */
  int64_t tickets, turn;
  int32_t rank[]; /* of each member, ascending */
} ng_mpi_team;

/* NG_MPI_TURN: the second part waits for its ticket. */
typedef enum ng_mpi_stage { NG_MPI_FIRST, NG_MPI_TURN, NG_MPI_SECOND, NG_MPI_DONE } ng_mpi_stage;

typedef struct ng_mpi_op ng_mpi_op;
struct ng_mpi_op {
  ng_mpi_op *next;    /* under way, in the order of posting; or spare */
  ng_mpi_op *sibling; /* of the same call, the part behind this one   */
  ng_collective c;
  ng_mpi_team *team;
  ng_mpi_stage stage;
  bool two;
  int64_t ticket; /* of those of its team that have two */
  MPI_Request request;
  char *room; /* [bytes], for MPI: what is sent, then what others sent */
  size_t bytes;
  int list[]; /* [4 ranks] counts and places of what is sent, of what is received */
};

static inline bool ng_mpi_counts(ng_coll_kind k) {
  return k == NG_REDUCE_SCATTER || k == NG_ALL_GATHER;
}

/* Elements of room for a call of `count` in all; *two: it takes two collectives. */
int64_t ng_mpi_room(const ng_mpi_team *t, const ng_collective *c, int64_t count, bool *two);
/* The op has its call, its team, its room; these return what MPI returns. */
int ng_mpi_begin(ng_mpi_op *o);
int ng_mpi_advance(ng_mpi_op *o); /* as far as it goes without waiting */

/* For tests: most elements that one collective of MPI is asked for; longer calls become several. */
void ng_mpi_limit(const ng_transport *t, int64_t elements);

#endif
