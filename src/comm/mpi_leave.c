/* mpi_leave.c: failure and release of the transport over MPI (mpi.h).
 *
 * Failure: the rank sends a message (tag ALARM) to every rank; ranks that wait poll for messages.  If the sender has
 * unfinished calls, the message is empty and ends every wait of its receiver.  Otherwise the message is the number of
 * collectives that the sender has posted with the receiver.  They are complete at the sender, so the receiver may still
 * finish them.  After a failure no communicator is freed, because some of its collectives never end.
 *
 * Release: a leaving rank sends every rank (tag FAREWELL) the number of collectives that it has posted with this rank.
 * A rank that waits for one more collective fails.  When all ranks have left with equal numbers and have passed a
 * barrier, no rank can fail any more.  So either all ranks free their communicators, or none does. */
#include "comm/mpi.h"

#include <sched.h>
#include <time.h>

typedef ng_mpi_team team;
typedef ng_mpi_endpoint endpoint;
typedef ng_mpi_peer peer;

enum {
  ALARM = 1,    /* tag: the sender has failed */
  FAREWELL = 2, /* tag: the sender leaves */
  /* number of polls without success after which the rank yields its core after each poll */
  YIELD_AFTER = 256,
  /* number of polls without success after which the rank sleeps after each poll */
  SLEEP_AFTER = 1 << 14,
  SLEEP_NS = 50000 /* duration of one sleep */
};

/* ---- failure ----------------------------------------------------------------------------------*/

void ng_mpi_give_up(void *user) {
  endpoint *s = user;
  if (s->stopped) return;
  s->stopped = true;
  const MPI_Comm comm = s->world->comm[0];
  for (int r = 0; r < s->world->n; r++) {
    MPI_Request sent;
    if (r == s->world->index) continue;
    /* MPI may read peer[r].posted later, so the endpoint of a failed rank is never freed */
    if (MPI_Isend(&s->peer[r].posted, s->open == 0 ? 1 : 0, MPI_INT64_T, r, ALARM, comm, &sent) !=
        MPI_SUCCESS)
      continue;
    (void)MPI_Request_free(&sent);
  }
  int none;
  for (int i = 0; i < YIELD_AFTER; i++) { /* let MPI send the messages */
    (void)MPI_Iprobe(MPI_ANY_SOURCE, ALARM, comm, &none, MPI_STATUS_IGNORE);
  }
}

ng_status ng_mpi_refuse(endpoint *s, ng_status st) {
  ng_mpi_give_up(s);
  return st;
}

/* Receive the number of an alarm or a farewell. */
static int receive_number(endpoint *s, const MPI_Status *from) {
  peer *r = &s->peer[from->MPI_SOURCE];
  if (from->MPI_TAG == FAREWELL)
    s->away++;
  else
    s->lost = true;
  return MPI_Recv(&r->left, 1, MPI_INT64_T, from->MPI_SOURCE, from->MPI_TAG, s->world->comm[0],
                  MPI_STATUS_IGNORE);
}

bool ng_mpi_must_stop(endpoint *s) {
  int there = 0, numbers = 0;
  MPI_Status from;
  int e = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, s->world->comm[0], &there, &from);
  if (e == MPI_SUCCESS && there != 0) e = MPI_Get_count(&from, MPI_INT64_T, &numbers);
  if (e == MPI_SUCCESS && there != 0 && numbers == 1) {
    const peer *r = &s->peer[from.MPI_SOURCE];
    e = receive_number(s, &from);
    there = r->left < r->posted;
  }
  if (e != MPI_SUCCESS || there != 0) ng_mpi_give_up(s);
  return s->stopped;
}

bool ng_mpi_peer_lost(endpoint *s) {
  if (!ng_mpi_must_stop(s) && s->lost) ng_mpi_give_up(s);
  return s->stopped;
}

bool ng_mpi_count_collective(endpoint *s, const team *t) {
  for (int32_t i = 0; i < t->n; i++) {
    const peer *r = &s->peer[t->rank[i]];
    if (r->left >= 0 && r->left <= r->posted) return false;
  }
  for (int32_t i = 0; i < t->n; i++)
    s->peer[t->rank[i]].posted++;
  s->open++;
  return true;
}

void ng_mpi_pause(int64_t polls) {
  if (polls > SLEEP_AFTER) {
    const struct timespec time = {0, SLEEP_NS};
    (void)nanosleep(&time, NULL);
  } else if (polls > YIELD_AFTER) {
    (void)sched_yield();
  }
}

/* ---- release ----------------------------------------------------------------------------------*/

/* The number of posted collectives does not change after the farewell. */
static ng_status send_farewells(endpoint *s) {
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

/* Wait until all ranks have left, and have received the farewell of this rank. */
static ng_status await_farewells(endpoint *s) {
  const team *t = s->world;
  for (int64_t polls = 0; s->away < t->n - 1; polls++) {
    if (ng_mpi_peer_lost(s)) return NG_ERR_COMM;
    ng_mpi_pause(polls);
  }
  for (int32_t r = 0; r < t->n; r++) {
    peer *from = &s->peer[r];
    if (r == t->index) continue;
    if (from->left != from->posted) return ng_mpi_refuse(s, NG_ERR_COMM);
    int sent = 0;
    for (int64_t polls = 0; sent == 0; polls++) {
      if (MPI_Test(&from->sent, &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS || ng_mpi_peer_lost(s)) {
        return ng_mpi_refuse(s, NG_ERR_COMM);
      }
      ng_mpi_pause(polls);
    }
  }
  return NG_OK;
}

bool ng_mpi_leave_together(endpoint *s) {
  /* other ranks may wait for a collective that this rank does not complete */
  if (s->first != NULL || s->lost) ng_mpi_give_up(s);
  if (s->stopped || send_farewells(s) != NG_OK || await_farewells(s) != NG_OK) return false;
  return ng_mpi_barrier(s) == NG_OK;
}
