/* mpi.h: shared by the files of the MPI transport and its tests.
 *
 *   mpi.c        the table: calls, waiting, groups
 *   mpi_op.c     one op from stage to stage
 *   mpi_leave.c  failure and release */
#ifndef NG_COMM_MPI_H
#define NG_COMM_MPI_H

#include "core/core.h"
#include "natgrad_mpi.h"

/* A team: all ranks, or the ranks of a group. */
typedef struct ng_mpi_team ng_mpi_team;
struct ng_mpi_team {
  ng_mpi_team *next; /* the team that was created before */
  MPI_Comm comm[2];  /* communicators for the first and for the second stages of ops */
  int32_t n, index;  /* number of members; index of this rank, -1 if outside */
  int64_t tickets, turn;
  int32_t rank[]; /* rank of each member, ascending */
};

/* The stage of an op. NG_MPI_TURN: the first stage is complete; the second waits for its ticket to be the turn. */
typedef enum ng_mpi_stage { NG_MPI_FIRST, NG_MPI_TURN, NG_MPI_SECOND, NG_MPI_DONE } ng_mpi_stage;

typedef struct ng_mpi_op ng_mpi_op;
struct ng_mpi_op {
  ng_mpi_op *next; /* next op in progress, in the order of posting, or next spare op */
  ng_collective c;
  ng_mpi_team *team;
  ng_mpi_stage stage;
  bool two;
  int64_t ticket; /* number of the op among the two-stage ops of its team */
  MPI_Request request;
  char *buffer; /* [bytes], read and written by MPI: sent data, then received data */
  size_t bytes;
  int list[]; /* [4 ranks] counts and offsets of sent data, counts and offsets of received data */
};

/* The collectives that this rank shares with another rank. */
typedef struct ng_mpi_peer {
  int64_t posted; /* number of collectives posted with this peer */
  int64_t left;   /* the peer's `posted` for this rank when the peer left or failed; -1 before */
  MPI_Request sent;
} ng_mpi_peer;

/* The `user` of a rank's table. */
typedef struct ng_mpi_seat {
  ng_mpi_team *world, *groups; /* all ranks; list of groups, the newest first */
  bool stopped;                /* this rank has failed */
  bool lost;                   /* another rank failed; its complete collectives may still arrive */
  int64_t open;                /* number of calls and group creations in progress */
  ng_mpi_op *first, **last, *spare;
  int32_t away;       /* number of ranks that have left */
  ng_mpi_peer peer[]; /* [ranks] */
} ng_mpi_seat;

/* Return the elements of the buffer for a call of `count` elements. *two: the call takes two collectives of MPI. */
int64_t ng_mpi_buffer_size(const ng_mpi_team *t, const ng_collective *c, int64_t count, bool *two);
/* Begin an op whose call, team and buffer are set; advance it without waiting. Both return MPI's error code. */
int ng_mpi_begin(ng_mpi_op *o);
int ng_mpi_advance(ng_mpi_op *o);

/* Advance all ops in progress without waiting. */
ng_status ng_mpi_drive(ng_mpi_seat *s);
/* Wait for all ranks; fail if a rank failed or left. */
ng_status ng_mpi_barrier(ng_mpi_seat *s);

void ng_mpi_give_up(void *seat);
ng_status ng_mpi_refuse(ng_mpi_seat *s, ng_status st); /* call ng_mpi_give_up and return st */
/* Return whether this rank must stop: another rank failed, or left before a collective that this rank waits for. */
bool ng_mpi_alarmed(ng_mpi_seat *s);
/* Return the same in a wait for all ranks: here any failed rank stops this rank. */
bool ng_mpi_peer_lost(ng_mpi_seat *s);
/* Count one more collective with the members of t. Return false if a member has already left. */
bool ng_mpi_count_in(ng_mpi_seat *s, const ng_mpi_team *t);
/* Pause after `looks` polls in vain. */
void ng_mpi_pause(int64_t looks);
/* Leave together with all ranks. Return true on all ranks (communicators may be freed) or false on all. */
bool ng_mpi_leave_together(ng_mpi_seat *s);

#endif
