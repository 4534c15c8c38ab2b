/* mpi.h: what the files of the transport over MPI share, and what its tests see of it beside
 * natgrad_mpi.h.
 *
 * mpi.c is the table: calls, waiting, groups.  mpi_op.c carries one op from part to part.  mpi_leave.c: giving
 * up and leaving. */
#ifndef NG_COMM_MPI_H
#define NG_COMM_MPI_H

#include "core/core.h"
#include "natgrad_mpi.h"

/* All ranks, or a group. */
typedef struct ng_mpi_team ng_mpi_team;
struct ng_mpi_team {
  ng_mpi_team *next; /* group of the same transport, made before */
  MPI_Comm comm[2];  /* first parts, second parts */
  int32_t n, index;  /* members; this rank's place, -1 outside */
  int64_t tickets, turn;
  int32_t rank[]; /* of each member, ascending */
};

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

/* Another rank. */
typedef struct ng_mpi_peer {
  int64_t posted; /* collectives with it */
  int64_t left;   /* how many it has posted, as it said when it left or gave up; -1 before */
  MPI_Request sent;
} ng_mpi_peer;

/* What a table stands on. */
typedef struct ng_mpi_seat {
  ng_mpi_team *world, *groups; /* all that were made, the last first */
  int64_t limit;
  bool stopped; /* for good */
  bool lost;    /* somebody else gave up, and what was complete there may still come */
  int64_t open; /* calls and groups that were begun and are not complete */
  ng_mpi_op *first, **last, *spare;
  int32_t away;       /* ranks that have left */
  ng_mpi_peer peer[]; /* [ranks] */
} ng_mpi_seat;

static inline bool ng_mpi_counts(ng_coll_kind k) {
  return k == NG_REDUCE_SCATTER || k == NG_ALL_GATHER;
}

/* Elements of room for a call of `count` in all; *two: it takes two collectives. */
int64_t ng_mpi_room(const ng_mpi_team *t, const ng_collective *c, int64_t count, bool *two);
/* The op has its call, its team, its room; these return what MPI returns. */
int ng_mpi_begin(ng_mpi_op *o);
int ng_mpi_advance(ng_mpi_op *o); /* as far as it goes without waiting */

/* All ops that are under way, as far as they go. */
ng_status ng_mpi_drive(ng_mpi_seat *s);
/* Nobody goes on before everybody is here; a rank that gave up, or left, never comes. */
ng_status ng_mpi_meet(ng_mpi_seat *s);

void ng_mpi_give_up(void *seat);
ng_status ng_mpi_refuse(ng_mpi_seat *s, ng_status st); /* gives up, and returns st */
/* Somebody gave up, or left, although this rank waits for it. */
bool ng_mpi_alarmed(ng_mpi_seat *s);
/* The same of a wait for all ranks. */
bool ng_mpi_alone(ng_mpi_seat *s);
/* One more collective of these ranks, unless one of them has left before it. */
bool ng_mpi_count_in(ng_mpi_seat *s, const ng_mpi_team *t);
/* Between two looks. */
void ng_mpi_rest(int64_t looks);
/* All ranks leave.  True on all of them, and communicators can be freed, or on none. */
bool ng_mpi_parted(ng_mpi_seat *s);

/* For tests: most elements that one collective of MPI is asked for; longer calls become several. */
void ng_mpi_limit(const ng_transport *t, int64_t elements);

#endif
