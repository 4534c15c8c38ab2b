/* mpi.c: the transport over MPI, in a library of its own (natgrad_mpi.h).
 *
 * Each call is one op (mpi_op.c).  A rank that waits for one op makes progress with all its ops.  MPI reads and writes
 * only buffers of ops, never the caller's: MPI cannot cancel a collective, but after a failure the caller may free its
 * buffers.  A table outlives contexts, so its memory comes from malloc. */
#include "comm/mpi.h"
#include "comm/tile.h"

#include <stdlib.h>

typedef ng_mpi_op op;
typedef ng_mpi_team team;
typedef ng_mpi_endpoint endpoint;

/* largest number of elements of a call: then counts and offsets fit the int of MPI */
enum { MOST = 1 << 30 };

/* ---- ops -------------------------------------------------------------------------------------*/

/* Return a spare op whose buffer is large enough.  If there is none, enlarge the buffer of the first spare op, or
 * create an op. */
static op *take_op(endpoint *s, size_t bytes) {
  op **at = &s->spare;
  bytes += NG_ALIGN; /* allocate at least NG_ALIGN bytes, also for 0 elements */
  while (*at != NULL && (*at)->bytes < bytes) {
    at = &(*at)->next;
  }
  if (*at == NULL) at = &s->spare;
  op *o = *at;
  if (o != NULL) {
    *at = o->next;
  } else {
    o = calloc(1, sizeof *o + 4 * (size_t)s->world->n * sizeof *o->list);
    if (o == NULL) return NULL;
  }
  if (o->bytes < bytes) {
    free(o->buffer);
    o->buffer = malloc(bytes);
    o->bytes = o->buffer != NULL ? bytes : 0;
    if (o->buffer == NULL) {
      free(o);
      return NULL;
    }
  }
  return o;
}

/* Make progress with all ops, without waiting. Remove complete ops from the list of ops in progress; wait or test then puts
 * them on the spare list. */
static ng_status make_progress(endpoint *s) {
  if (s->stopped) return NG_ERR_COMM;
  op **at = &s->first;
  while (*at != NULL) {
    op *o = *at;
    if (ng_mpi_advance(o) != MPI_SUCCESS) return ng_mpi_refuse(s, NG_ERR_COMM);
    if (o->stage == NG_MPI_DONE) {
      *at = o->next;
    } else {
      at = &o->next;
    }
  }
  s->last = at;
  return NG_OK;
}

static bool complete(const op *o) { return o->stage == NG_MPI_DONE; }

/* ---- calls -----------------------------------------------------------------------------------*/

static ng_status start(void *user, const ng_collective *c, void **request) {
  endpoint *s = user;
  team *t = c->group != NULL ? c->group : s->world;
  *request = NULL;
  if (s->stopped) return NG_ERR_COMM;
  const ng_status st = ng_call_check(c, t->rank, t->n, MOST);
  if (st != NG_OK) return ng_mpi_refuse(s, st);
  if (!ng_mpi_count_collective(s, t)) return ng_mpi_refuse(s, NG_ERR_COMM);
  const int64_t count = ng_call_total(c, t->n);
  bool two;
  const int64_t buffer = ng_mpi_buffer_size(t, c, count, &two);
  op *o = take_op(s, (size_t)(buffer * ng_dtype_size(c->dtype)));
  if (o == NULL) return ng_mpi_refuse(s, NG_ERR_NOMEM);
  o->c = *c;
  o->c.count = count;
  o->next = NULL;
  o->team = t;
  o->stage = NG_MPI_FIRST;
  o->has_two_stages = two;
  if (two) o->ticket = t->tickets++;
  *s->last = o;
  s->last = &o->next;
  *request = o;
  return ng_mpi_begin(o) == MPI_SUCCESS ? NG_OK : ng_mpi_refuse(s, NG_ERR_COMM);
}

static void recycle_op(endpoint *s, op *o) {
  s->open--;
  o->next = s->spare;
  s->spare = o;
}

/* A request that was complete before another rank failed still succeeds. */
static ng_status wait(void *user, void *request) {
  endpoint *s = user;
  if (request == NULL) return ng_mpi_refuse(s, NG_ERR_ARG);
  for (int64_t polls = 0; !complete(request); polls++) {
    const ng_status st = make_progress(s);
    if (st != NG_OK) return st;
    if (polls % 8 == 7 && !complete(request) && ng_mpi_must_stop(s)) return NG_ERR_COMM;
    ng_mpi_pause(polls);
  }
  recycle_op(s, request);
  return NG_OK;
}

static ng_status test(void *user, void *request, int32_t *done) {
  endpoint *s = user;
  if (request == NULL) return ng_mpi_refuse(s, NG_ERR_ARG);
  const ng_status st = make_progress(s);
  *done = complete(request);
  if (*done != 0) {
    recycle_op(s, request);
    return NG_OK;
  }
  return st == NG_OK && !ng_mpi_must_stop(s) ? NG_OK : NG_ERR_COMM;
}

static ng_status run(void *user, const ng_collective *c) {
  void *request;
  const ng_status st = start(user, c, &request);
  return st == NG_OK ? wait(user, request) : st;
}

/* ---- groups ----------------------------------------------------------------------------------*/

static team *make_team(int32_t n) {
  team *t = calloc(1, sizeof *t + (size_t)n * sizeof *t->rank);
  if (t == NULL) return NULL;
  t->n = n;
  t->comm[0] = t->comm[1] = MPI_COMM_NULL;
  return t;
}

static void free_team(team *t) {
  for (int i = 0; i < 2; i++) {
    if (t->comm[i] != MPI_COMM_NULL) (void)MPI_Comm_free(&t->comm[i]);
  }
  free(t);
}

ng_status ng_mpi_barrier(endpoint *s) {
  MPI_Request request;
  if (s->stopped) return NG_ERR_COMM;
  if (MPI_Ibarrier(s->world->comm[0], &request) != MPI_SUCCESS)
    return ng_mpi_refuse(s, NG_ERR_COMM);
  for (int64_t polls = 0;; polls++) {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
      return ng_mpi_refuse(s, NG_ERR_COMM);
    if (done != 0) return NG_OK;
    const ng_status st = make_progress(s);
    if (st != NG_OK) return st;
    if (polls % 8 == 7 && ng_mpi_peer_lost(s)) return NG_ERR_COMM;
    ng_mpi_pause(polls);
  }
}

static team *find_team(const endpoint *s, const int32_t *ranks, int32_t n) {
  team *t = s->groups;
  while (t != NULL && (t->n != n || memcmp(t->rank, ranks, (size_t)n * sizeof *ranks) != 0)) {
    t = t->next;
  }
  return t;
}

/* Called after a barrier of all ranks, because a failure of another rank cannot interrupt MPI_Comm_split. */
static int split_world(endpoint *s, team *t) {
  const MPI_Comm world = s->world->comm[0];
  const bool in = t->index >= 0;
  int e = MPI_Comm_split(world, in ? 0 : MPI_UNDEFINED, s->world->index, &t->comm[0]);
  if (e == MPI_SUCCESS && in) e = MPI_Comm_dup(t->comm[0], &t->comm[1]);
  return e;
}

/* A second call with the same ranks returns the same group, which exists until release, because freeing a communicator
 * is collective.  Ranks that are not members also store the group, so that every rank skips the second split. */
static ng_status group_create(void *user, const int32_t *ranks, int32_t n, void **group) {
  endpoint *s = user;
  *group = NULL;
  if (s->stopped) return NG_ERR_COMM;
  if (!ng_call_ranks_valid(ranks, n, s->world->n)) return ng_mpi_refuse(s, NG_ERR_ARG);
  team *t = find_team(s, ranks, n);
  if (t == NULL) {
    t = make_team(n);
    if (t == NULL) return ng_mpi_refuse(s, NG_ERR_NOMEM);
    memcpy(t->rank, ranks, (size_t)n * sizeof *ranks);
    t->index = ng_call_member(t->rank, n, s->world->index);
    t->next = s->groups;
    s->groups = t;
    if (!ng_mpi_count_collective(s, s->world)) return ng_mpi_refuse(s, NG_ERR_COMM);
    const ng_status st = ng_mpi_barrier(s);
    if (st != NG_OK) return st;
    if (split_world(s, t) != MPI_SUCCESS) return ng_mpi_refuse(s, NG_ERR_COMM);
    s->open--;
  }
  if (t->index >= 0) *group = t;
  return NG_OK;
}

static void group_destroy(void *user, void *group) {
  (void)user;
  (void)group;
}

/* ---- creation and release -----------------------------------------------------------------------------------------*/

static bool mpi_is_running(void) {
  int begun = 0, ended = 0;
  return MPI_Initialized(&begun) == MPI_SUCCESS && begun != 0 &&
         MPI_Finalized(&ended) == MPI_SUCCESS && ended == 0;
}

/* The duplicates return errors instead of ending the program.  Debuggers show their names. */
static int duplicate_comm(MPI_Comm comm, team *t) {
  int e = MPI_SUCCESS;
  for (int i = 0; i < 2 && e == MPI_SUCCESS; i++) {
    e = MPI_Comm_dup(comm, &t->comm[i]);
    if (e == MPI_SUCCESS) e = MPI_Comm_set_errhandler(t->comm[i], MPI_ERRORS_RETURN);
    if (e == MPI_SUCCESS) e = MPI_Comm_set_name(t->comm[i], i == 0 ? "natgrad" : "natgrad second");
  }
  return e;
}

ng_status ng_mpi_transport(MPI_Comm comm, ng_transport *out, size_t size) {
  if (!mpi_is_running()) return NG_ERR_STATE;
  int inter = 0, ranks = 0, rank = 0, failed = 0;
  if (comm == MPI_COMM_NULL || MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter != 0) {
    return NG_ERR_ARG;
  }
  if (MPI_Comm_size(comm, &ranks) != MPI_SUCCESS || MPI_Comm_rank(comm, &rank) != MPI_SUCCESS) {
    return NG_ERR_COMM;
  }
  const bool bad = out == NULL || size < sizeof(size_t);
  endpoint *s = calloc(1, sizeof *s + (size_t)ranks * sizeof *s->peer);
  team *t = make_team(ranks);
  int mine = bad ? 1 : s == NULL || t == NULL ? 2 : 0;
  int e = MPI_Allreduce(&mine, &failed, 1, MPI_INT, MPI_MAX, comm);
  if (e == MPI_SUCCESS && failed == 0 && t != NULL) e = duplicate_comm(comm, t);
  if (e != MPI_SUCCESS || failed != 0 || s == NULL || t == NULL) {
    free(s);
    free(t);
    return e != MPI_SUCCESS ? NG_ERR_COMM : failed == 2 ? NG_ERR_NOMEM : NG_ERR_ARG;
  }
  t->index = rank;
  *s = (endpoint){.world = t, .last = &s->first};
  for (int32_t r = 0; r < ranks; r++) {
    t->rank[r] = r;
    s->peer[r] = (ng_mpi_peer){.left = -1, .sent = MPI_REQUEST_NULL};
  }
  ng_call_fill(out, size, NG_CALL_TABLE("mpi", ng_mpi_give_up), s, rank, ranks);
  return NG_OK;
}

void ng_mpi_release(ng_transport *t) {
  if (t == NULL || t->user == NULL) return;
  endpoint *s = t->user;
  t->user = NULL;
  const bool all = ng_mpi_leave_together(s);
  /* after a failure MPI may still write to the buffers of unfinished ops, so these ops and communicators are not
   * freed */
  while (s->spare != NULL) {
    op *next = s->spare->next;
    free(s->spare->buffer);
    free(s->spare);
    s->spare = next;
  }
  if (!all) return;
  while (s->groups != NULL) {
    team *next = s->groups->next;
    free_team(s->groups);
    s->groups = next;
  }
  free_team(s->world);
  free(s);
}
