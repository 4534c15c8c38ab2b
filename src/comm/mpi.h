/* mpi.h: shared by the files of the MPI transport and its tests.
 *
 *   mpi.c        the functions of the transport: start, wait, groups
 *   mpi_op.c     an op: one collective, as one or two collectives of MPI
 *   mpi_leave.c  failure and release */
#ifndef NG_COMM_MPI_H
#define NG_COMM_MPI_H

#include "core/core.h"
#include "natgrad_mpi.h"

/* A team: all ranks, or the ranks of a group. */
typedef struct ng_mpi_team ng_mpi_team;
struct ng_mpi_team {
  ng_mpi_team *next; /* next team in the list: the team that was created before this one */
  MPI_Comm comm[2];  /* communicators for the first and for the second stages of ops */
  int32_t n, index;  /* number of members; index of this rank, -1: not a member */
  int64_t tickets;   /* number of two-stage ops so far */
  int64_t turn;      /* ticket of the op whose second stage is next */
  int32_t rank[];    /* rank of each member, ascending */
};

/* The stage of an op.  NG_MPI_TURN: the first stage is complete, and the second waits until its ticket is the turn. */
typedef enum ng_mpi_stage { NG_MPI_FIRST, NG_MPI_TURN, NG_MPI_SECOND, NG_MPI_DONE } ng_mpi_stage;

typedef struct ng_mpi_op ng_mpi_op;
struct ng_mpi_op {
  /* next op in its list: either ops in progress, in the order of posting, or spare ops */
  ng_mpi_op *next;
  ng_collective c;
  ng_mpi_team *team;
  ng_mpi_stage stage;
  bool has_two_stages;
  /* number of the op among the two-stage ops of its team; second stages run in this order */
  int64_t ticket;
  MPI_Request request; /* request of the MPI collective in progress */
  /* [bytes] memory that MPI reads and writes: first the data to send, then the received data */
  char *buffer;
  size_t bytes;
  /* [4 ranks] counts and offsets of sent data, then counts and offsets of received data */
  int list[];
};

/* What this rank knows of another rank, the peer. */
typedef struct ng_mpi_peer {
  /* number of collectives that this rank has posted in teams that contain the peer */
  int64_t posted;
  /* the peer's count `posted` at the time when it left or failed; -1: the peer has done neither */
  int64_t left;
  MPI_Request sent; /* request of the message that tells the peer that this rank leaves */
} ng_mpi_peer;

/* The state of one rank: `user` of its ng_transport. */
typedef struct ng_mpi_endpoint {
  /* the team of all ranks; list of the teams of groups, newest first */
  ng_mpi_team *world, *groups;
  bool stopped; /* this rank has failed */
  /* another rank has failed; collectives that it had completed before may still complete here */
  bool lost;
  int64_t open; /* number of calls and group creations in progress */
  /* list of ops in progress; address of the last `next` of this list; list of spare ops */
  ng_mpi_op *first, **last, *spare;
  int32_t away;       /* number of ranks that have left */
  ng_mpi_peer peer[]; /* [ranks] */
} ng_mpi_endpoint;

/* Return the number of elements of the buffer that a call of `count` elements needs.  *two: it has two stages. */
int64_t ng_mpi_buffer_size(const ng_mpi_team *t, const ng_collective *c, int64_t count, bool *two);
/* Begin an op whose call, team and buffer are set; make progress with it, without waiting.  Return MPI's error code. */
int ng_mpi_begin(ng_mpi_op *o);
int ng_mpi_advance(ng_mpi_op *o);

/* Wait for all ranks; fail if a rank failed or left. */
ng_status ng_mpi_barrier(ng_mpi_endpoint *s);

/* mark this rank as failed and send the alarm to all ranks */
void ng_mpi_give_up(void *endpoint);
ng_status ng_mpi_refuse(ng_mpi_endpoint *s, ng_status st); /* call ng_mpi_give_up and return st */
/* Receive messages of failed and leaving ranks.  Return whether this rank must stop, too, because it waits for a
 * collective that such a rank will not complete. */
bool ng_mpi_must_stop(ng_mpi_endpoint *s);
/* As ng_mpi_must_stop, for a wait in which all ranks must take part: any failed rank stops this rank. */
bool ng_mpi_peer_lost(ng_mpi_endpoint *s);
/* Count a new collective of team t.  Return false if a member has failed or left without posting it. */
bool ng_mpi_count_collective(ng_mpi_endpoint *s, const ng_mpi_team *t);
/* Yield the core, or sleep, after `polls` polls without success, because other ranks may share the core. */
void ng_mpi_pause(int64_t polls);
/* Leave together with all ranks.  Return true on all ranks, if communicators may be freed, or false on all. */
bool ng_mpi_leave_together(ng_mpi_endpoint *s);

#endif
