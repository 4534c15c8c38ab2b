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
  ng_mpi_team *next; /* the team that was created before */
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
  ng_mpi_op *next; /* next op in progress, in the order of posting, or next spare op */
  ng_collective c;
  ng_mpi_team *team;
  ng_mpi_stage stage;
  bool has_two_stages;
  int64_t ticket;      /* number of the op among the two-stage ops of its team */
  MPI_Request request; /* of the collective of MPI in progress */
  char *buffer;        /* [bytes] read and written by MPI: sent data, then received data */
  size_t bytes;
  int list[]; /* [4 ranks] counts and offsets of sent data, counts and offsets of received data */
};

/* What this rank knows of another rank, the peer. */
typedef struct ng_mpi_peer {
  int64_t posted;   /* number of collectives of teams with the peer that this rank has posted */
  int64_t left;     /* number that the peer had posted when it left or failed; -1: still present */
  MPI_Request sent; /* of the message with which this rank leaves */
} ng_mpi_peer;

/* The `user` of the table of one rank. */
typedef struct ng_mpi_endpoint {
  ng_mpi_team *world, *groups; /* all ranks; list of groups, the newest first */
  bool stopped;                /* this rank has failed */
  bool lost;    /* another rank has failed; its complete collectives may still arrive */
  int64_t open; /* number of calls and group creations in progress */
  ng_mpi_op *first, **last, *spare; /* ops in progress; end of this list; ops to be reused */
  int32_t away;                     /* number of ranks that have left */
  ng_mpi_peer peer[];               /* [ranks] */
} ng_mpi_endpoint;

/* Return the number of elements of the buffer that a call of `count` elements needs.  *two: it has two stages. */
int64_t ng_mpi_buffer_size(const ng_mpi_team *t, const ng_collective *c, int64_t count, bool *two);
/* Begin an op whose call, team and buffer are set; make progress with it, without waiting.  Return MPI's error code. */
int ng_mpi_begin(ng_mpi_op *o);
int ng_mpi_advance(ng_mpi_op *o);

/* Make progress with all ops, without waiting. */
ng_status ng_mpi_make_progress(ng_mpi_endpoint *s);
/* Wait for all ranks; fail if a rank failed or left. */
ng_status ng_mpi_barrier(ng_mpi_endpoint *s);

void ng_mpi_give_up(void *endpoint);                       /* fail, and tell all ranks */
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
