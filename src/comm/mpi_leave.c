/* mpi_leave.c: how ranks of the transport over MPI (mpi.h) give up, and how they leave.
 *
 * To give up is to send a message to everybody; whoever waits looks for one.  It is empty, and ends every wait at once, where
 * calls of the sender are under way, which it will not drive on.  Where none is it tells how many collectives it has
 * posted with the other rank: those are complete here, so they will be there, however late their messages are.  A
 * communicator on which somebody gave up is never freed, by nobody: its collectives will not end, and messages may still
 * come to it.
 *
 * So all ranks free or none does.  Who leaves tells each other rank how many collectives it has posted with
 * it: a rank that waits for one more of them gives up.  When all have left with the numbers that the others
 * have, and a barrier has told everybody so, nobody can give up any more. */
#include "comm/mpi.h"

#include <sched.h>
#include <time.h>

typedef ng_mpi_team team;
typedef ng_mpi_seat seat;
typedef ng_mpi_peer peer;

enum {
  ALARM = 1,       /* tag of the message that says: this rank gives up             */
  FAREWELL = 2,    /* ... that says: it has posted so many collectives with you    */
  PATIENCE = 256,  /* looks before the core is given up                            */
  WEARY = 1 << 14, /* looks before it sleeps between them                          */
  NAP_NS = 50000   /* so long                                                      */
};

/* ---- giving up -------------------------------------------------------------------------------*/

void ng_mpi_give_up(void *user) {
  seat *s = user;
  if (s->stopped) return;
  s->stopped = true;
  const MPI_Comm comm = s->world->comm[0];
  for (int r = 0; r < s->world->n; r++) {
    MPI_Request sent;
    if (r == s->world->index) continue;
    /* They leave at once; the number stays where it is, as does all of a seat that gave up. */
    if (MPI_Isend(&s->peer[r].posted, s->open == 0 ? 1 : 0, MPI_INT64_T, r, ALARM, comm, &sent) !=
        MPI_SUCCESS)
      continue;
    (void)MPI_Request_free(&sent);
  }
  int none;
  for (int i = 0; i < PATIENCE; i++) { /* lets them go */
    (void)MPI_Iprobe(MPI_ANY_SOURCE, ALARM, comm, &none, MPI_STATUS_IGNORE);
  }
}

ng_status ng_mpi_refuse(seat *s, ng_status st) {
  ng_mpi_give_up(s);
  return st;
}

static int hear_number(seat *s, const MPI_Status *from) {
  peer *r = &s->peer[from->MPI_SOURCE];
  if (from->MPI_TAG == FAREWELL)
    s->away++;
  else
    s->lost = true;
  return MPI_Recv(&r->left, 1, MPI_INT64_T, from->MPI_SOURCE, from->MPI_TAG, s->world->comm[0],
                  MPI_STATUS_IGNORE);
}

/* Somebody gave up, or left, although this rank waits for it. */
bool ng_mpi_alarmed(seat *s) {
  int there = 0, numbers = 0;
  MPI_Status from;
  int e = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, s->world->comm[0], &there, &from);
  if (e == MPI_SUCCESS && there != 0) e = MPI_Get_count(&from, MPI_INT64_T, &numbers);
  if (e == MPI_SUCCESS && there != 0 && numbers == 1) {
    const peer *r = &s->peer[from.MPI_SOURCE];
    e = hear_number(s, &from);
    there = r->left < r->posted;
  }
  if (e != MPI_SUCCESS || there != 0) ng_mpi_give_up(s);
  return s->stopped;
}

/* In a wait for all ranks and not for a call: nobody who gave up will come. */
bool ng_mpi_alone(seat *s) {
  if (!ng_mpi_alarmed(s) && s->lost) ng_mpi_give_up(s);
  return s->stopped;
}

/* One more collective of these ranks, unless one of them has left before it. */
bool ng_mpi_count_in(seat *s, const team *t) {
  for (int32_t i = 0; i < t->n; i++) {
    const peer *r = &s->peer[t->rank[i]];
    if (r->left >= 0 && r->left <= r->posted) return false;
  }
  for (int32_t i = 0; i < t->n; i++)
    s->peer[t->rank[i]].posted++;
  s->open++;
  return true;
}

/* Other ranks may share this core. */
void ng_mpi_rest(int64_t looks) {
  if (looks > WEARY) {
    const struct timespec nap = {0, NAP_NS};
    (void)nanosleep(&nap, NULL);
  } else if (looks > PATIENCE) {
    (void)sched_yield();
  }
}

/* ---- leaving ---------------------------------------------------------------------------------*/

/* A farewell is eight bytes of a peer, which nobody changes any more. */
static ng_status say_farewell(seat *s) {
  for (int r = 0; r < s->world->n; r++) {
    peer *to = &s->peer[r];
    if (r == s->world->index) continue;
    if (MPI_Isend(&to->posted, 1, MPI_INT64_T, r, FAREWELL, s->world->comm[0], &to->sent) !=
        MPI_SUCCESS) {
      return ng_mpi_refuse(s, NG_ERR_COMM);
    }
  }
  return NG_OK;
}

/* All have left, and heard that this rank has: its farewells are in nobody's way. */
static ng_status hear_all(seat *s) {
  const team *t = s->world;
  for (int64_t looks = 0; s->away < t->n - 1; looks++) {
    if (ng_mpi_alone(s)) return NG_ERR_COMM;
    ng_mpi_rest(looks);
  }
  for (int32_t r = 0; r < t->n; r++) {
    peer *from = &s->peer[r];
    if (r == t->index) continue;
    if (from->left != from->posted) return ng_mpi_refuse(s, NG_ERR_COMM);
    int sent = 0;
    for (int64_t looks = 0; sent == 0; looks++) {
      if (MPI_Test(&from->sent, &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS || ng_mpi_alone(s)) {
        return ng_mpi_refuse(s, NG_ERR_COMM);
      }
      ng_mpi_rest(looks);
    }
  }
  return NG_OK;
}

/* True on all ranks or on none. */
bool ng_mpi_parted(seat *s) {
  if (s->first != NULL || s->lost)
    ng_mpi_give_up(s); /* others may wait for what nobody here goes on with */
  if (s->stopped || say_farewell(s) != NG_OK || hear_all(s) != NG_OK) return false;
  return ng_mpi_meet(s) == NG_OK;
}
