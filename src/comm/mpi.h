/* mpi.h: shared by the files of the MPI transport and its tests.
 *
 *   mpi.c        the table: calls, waiting, groups
 *   mpi_op.c     one op from stage to stage
 *   mpi_leave.c  failure and release */
#ifndef NG_COMM_MPI_H
#define NG_COMM_MPI_H

#include "core/core.h"
#include "natgrad_mpi.h"

/* All ranks, or a group. */
typedef struct ng_mpi_team ng_mpi_team;
struct ng_mpi_team {
  ng_mpi_team *next; /* previous group of the same transport */
  MPI_Comm comm[2];  /* of first stages, of second stages */
  int32_t n, index;  /* members; index of this rank, -1 outside */
  int64_t tickets, turn;
  int32_t rank[]; /* of each member, ascending */
};

/* NG_MPI_TURN: the second stage waits for its ticket. */
typedef enum ng_mpi_stage { NG_MPI_FIRST, NG_MPI_TURN, NG_MPI_SECOND, NG_MPI_DONE } ng_mpi_stage;

typedef struct ng_mpi_op ng_mpi_op;
struct ng_mpi_op {
  ng_mpi_op *next; /* in progress, in the order of posting; or spare */
  ng_collective c;
  ng_mpi_team *team;
  ng_mpi_stage stage;
  bool two;
  int64_t ticket; /* among the two-stage ops of its team */
  MPI_Request request;
  char *buffer; /* [bytes], read and written by MPI: sent data, then received data */
  size_t bytes;
  int list[]; /* [4 ranks] counts and offsets of sent data, counts and offsets of received data */
};

/* Another rank. */
typedef struct ng_mpi_peer {
  int64_t posted; /* collectives that include this peer */
  int64_t left;   /* its `posted` when it left or failed; -1 before */
  MPI_Request sent;
} ng_mpi_peer;

/* The `user` of a table. */
typedef struct ng_mpi_seat {
  ng_mpi_team *world, *groups; /* all groups, the newest first */
  bool stopped;                /* this rank has failed */
  bool lost;                   /* another rank failed; its complete collectives may still arrive */
  int64_t open;                /* calls and groups in progress */
  ng_mpi_op *first, **last, *spare;
  int32_t away;       /* ranks that have left */
  ng_mpi_peer peer[]; /* [ranks] */
} ng_mpi_seat;

/* Elements of buffer for a call of `count` elements; *two: it takes two collectives. */
int64_t ng_mpi_buffer_size(const ng_mpi_team *t, const ng_collective *c, int64_t count, bool *two);
/* The op has its call, team and buffer. These return what MPI returns. */
int ng_mpi_begin(ng_mpi_op *o);
int ng_mpi_advance(ng_mpi_op *o); /* as far as it goes failed waiting */

/* Advance all ops in progress without waiting. */
ng_status ng_mpi_drive(ng_mpi_seat *s);
/* Barrier over all ranks; fails if a rank failed or left. */
ng_status ng_mpi_barrier(ng_mpi_seat *s);

void ng_mpi_give_up(void *seat);
ng_status ng_mpi_refuse(ng_mpi_seat *s, ng_status st); /* fail, and return st */
/* Whether another rank failed, or left before a collective that this rank waits for. */
bool ng_mpi_alarmed(ng_mpi_seat *s);
/* The same in a wait for all ranks. */
bool ng_mpi_peer_lost(ng_mpi_seat *s);
/* Count one more collective of these ranks; false: a member has already left. */
bool ng_mpi_count_in(ng_mpi_seat *s, const ng_mpi_team *t);
/* Pause between two polls. */
void ng_mpi_back_off(int64_t looks);
/* All ranks leave. True on all ranks, and communicators may be freed, or on none. */
bool ng_mpi_leave_together(ng_mpi_seat *s);

#endif
