/* threads.c: a transport between ranks that are threads of one process.
 *
 * A team is all ranks, or the ranks of a group.  The k-th collective of a team is its k-th *op*, which the k-th call of
 * each member joins.  The op opens when the last member has joined, if all calls are equal.  Then the members that wait
 * process its elements in chunks.  An element is summed over members in the order of ranks, in double, so its bits are
 * the same on all ranks and in each run.
 *
 * One lock guards all fields; threads copy and add elements without it.  An error stops all ranks: waiting members wake
 * and fail, and no new chunk begins.  A failing call returns only when no thread is inside a chunk, so that its caller
 * may free the buffers.
 *
 * An ng_threads outlives contexts, so its memory comes from malloc.  Ops are reused, so that most calls allocate
 * nothing. */

#include "comm/tile.h"
#include "core/core.h"

#include <pthread.h>
#include <stdlib.h>

enum {
  /* number of elements that a thread processes without the lock; takes about 10 microseconds */
  CHUNK = 1 << 15,
  /* internal kind of call: create a group of the `count` ranks that are listed in `send` */
  MAKE_TEAM = 0
};

typedef struct team team;
typedef struct op op;

struct op {
  op *next;  /* next op of the team, or next spare op */
  op *older; /* next op in the list of all ops */
  team *team;
  team *made;                  /* the new team, if the op is MAKE_TEAM */
  int32_t arrived;             /* number of members that have joined */
  int32_t waiting;             /* number of members that wait for the op to open */
  int32_t collected;           /* number of members that have seen the op complete */
  bool open;                   /* all members have joined */
  int64_t total;               /* number of elements */
  int64_t given;               /* number of elements in chunks that have begun */
  int64_t finished;            /* number of elements in chunks that are complete */
  const ng_collective *call[]; /* [members] the call of each member */
};

struct team {
  team *next;
  int32_t n; /* number of members */
  /* number of members that still have the group; the last one to destroy it frees the team */
  int32_t owners;
  int32_t *rank; /* [members] rank of each member, ascending */
  /* [members] the op that the member's next call joins; NULL: no member has created it yet */
  op **joins;
  op *tail; /* the newest op, if it has not opened; otherwise NULL */
  pthread_cond_t changed;
};

/* The state of one rank: `user` of its ng_transport. */
typedef struct endpoint {
  ng_threads *g;
  int32_t rank;
} endpoint;

struct ng_threads {
  pthread_mutex_t lock; /* guards all fields below */
  pthread_cond_t idle;  /* signalled when the group has stopped and no thread is inside a chunk */
  int32_t size;         /* number of ranks */
  int32_t threads_in_chunks; /* number of threads inside a chunk */
  int32_t
      waiting_ranks; /* number of ranks that wait for an op to open; if all ranks do, there is a deadlock */
  bool stopped;        /* an error has occurred: every later call fails */
  team *teams, *world; /* list of all teams; the team of all ranks */
  op *ops, *spare;     /* list of all ops, linked by `older`; list of spare ops, linked by `next` */
  endpoint *endpoint;  /* [size] the endpoint of each rank */
};

/* ---- teams and ops ---------------------------------------------------------------------------*/

static void free_team(team *t) {
  (void)pthread_cond_destroy(&t->changed);
  free(t->rank);
  free(t->joins);
  free(t);
}

static team *make_team(ng_threads *g, const int32_t *rank, int32_t n) {
  team *t = calloc(1, sizeof *t);
  if (t == NULL) return NULL;
  (void)pthread_cond_init(&t->changed, NULL);
  t->n = t->owners = n;
  t->rank = malloc((size_t)n * sizeof *t->rank);
  t->joins = calloc((size_t)n, sizeof *t->joins);
  if (t->rank == NULL || t->joins == NULL) {
    free_team(t);
    return NULL;
  }
  for (int32_t i = 0; i < n; i++) {
    t->rank[i] = rank == NULL ? i : rank[i];
  }
  t->next = g->teams;
  g->teams = t;
  return t;
}

static int32_t member_of(const team *t, int32_t rank) {
  return ng_call_member(t->rank, t->n, rank);
}

/* Return a spare or new op for team t.  Every op has memory for the calls of all ranks, so that any team can reuse
 * it. */
static op *take_op(ng_threads *g, team *t) {
  op *o = g->spare;
  op *older = g->ops;
  if (o != NULL) {
    g->spare = o->next;
    older = o->older;
  } else {
    o = malloc(sizeof *o + (size_t)g->size * sizeof(const ng_collective *));
    if (o == NULL) return NULL;
    g->ops = o;
  }
  *o = (op){.older = older, .team = t};
  return o;
}

/* ---- stopping --------------------------------------------------------------------------------*/

/* Called with the lock after an error.  Waiting members wake, see `stopped` and fail. */
static void stop_all(ng_threads *g) {
  g->stopped = true;
  for (team *t = g->teams; t != NULL; t = t->next) {
    (void)pthread_cond_broadcast(&t->changed);
  }
}

/* Called with the lock at the end of a failing call: wait until no thread uses a buffer. */
static void wait_until_idle(ng_threads *g) {
  while (g->threads_in_chunks > 0) {
    (void)pthread_cond_wait(&g->idle, &g->lock);
  }
}

static void abort_ranks(void *user) {
  ng_threads *g = ((endpoint *)user)->g;
  (void)pthread_mutex_lock(&g->lock);
  stop_all(g);
  wait_until_idle(g);
  (void)pthread_mutex_unlock(&g->lock);
}

/* A call with invalid arguments joins no op, and stops all ranks. */
static ng_status abort_and_return(endpoint *s, ng_status st) {
  abort_ranks(s);
  return st;
}

/* ---- elements --------------------------------------------------------------------------------*/

static const char *send_address(const op *o, int32_t m, int64_t i) {
  return (const char *)o->call[m]->send + i * ng_dtype_size(o->call[m]->dtype);
}
static char *recv_address(const op *o, int32_t m, int64_t i) {
  return (char *)o->call[m]->recv + i * ng_dtype_size(o->call[m]->dtype);
}

/* Sum elements [b, e) of `send` over all members.  Write the sums to `recv` of members [first, last), from element `at`
 * on.  No other thread uses these elements, and a sum is read before it is written, so `send` may be `recv`. */
static void sum_range(const op *o, int64_t b, int64_t e, int32_t first, int32_t last, int64_t at) {
  const ng_dtype t = o->call[0]->dtype;
  double acc[NG_TILE];
  for (int64_t i = b; i < e; i += NG_TILE) {
    const int64_t n = ng_min64(NG_TILE, e - i);
    for (int32_t m = 0; m < o->team->n; m++) {
      ng_tile_add(acc, send_address(o, m, i), t, n, m == 0);
    }
    for (int32_t m = first; m < last; m++) {
      ng_tile_write(acc, recv_address(o, m, at + (i - b)), t, n);
    }
  }
}

/* Copy elements of `send` of member `from`, from element `at` on, to elements [b, e) of `recv` of every member. */
static void copy_range(const op *o, int32_t from, int64_t at, int64_t b, int64_t e) {
  const size_t bytes = (size_t)((e - b) * ng_dtype_size(o->call[0]->dtype));
  const char *src = send_address(o, from, at);
  for (int32_t m = 0; m < o->team->n; m++) {
    char *to = recv_address(o, m, b);
    if (to != src) memcpy(to, src, bytes);
  }
}

/* Process elements [b, e) of the op.  In a call with counts, elements are numbered through the parts of all members in
 * order.  Two ranges without a common element touch different elements of every buffer. */
static void process_range(const op *o, int64_t b, int64_t e) {
  const ng_collective *c = o->call[0];
  if (!ng_call_counts(c->kind)) {
    if (c->kind == NG_ALL_REDUCE) {
      sum_range(o, b, e, 0, o->team->n, b);
    } else {
      copy_range(o, member_of(o->team, c->root), b, b, e);
    }
    return;
  }
  int64_t begin = 0;
  for (int32_t m = 0; m < o->team->n && begin < e; begin += c->counts[m], m++) {
    const int64_t from = ng_max64(b, begin), to = ng_min64(e, begin + c->counts[m]);
    if (from >= to) continue;
    if (c->kind == NG_REDUCE_SCATTER) {
      sum_range(o, from, to, m, m + 1, from - begin);
    } else {
      copy_range(o, m, from - begin, from, to);
    }
  }
}

/* ---- ops --------------------------------------------------------------------------------------*/

/* Return whether the calls of two members are equal, except for their buffers. */
static bool calls_are_equal(const ng_collective *a, const ng_collective *b, int32_t n) {
  if (a->kind != b->kind || a->dtype != b->dtype || a->mem != b->mem) return false;
  if (a->kind == NG_BROADCAST && a->root != b->root) return false;
  if (ng_call_counts(a->kind))
    return memcmp(a->counts, b->counts, (size_t)n * sizeof *a->counts) == 0;
  if (a->count != b->count) return false;
  return a->kind != (ng_coll_kind)MAKE_TEAM ||
         memcmp(a->send, b->send, (size_t)a->count * sizeof(int32_t)) == 0;
}

/* Open an op that all members have joined.  Return false if their calls differ, by an error of the caller, or if a new
 * team has no memory. */
static bool open_op(ng_threads *g, op *o) {
  team *t = o->team;
  const ng_collective *c = o->call[0];
  for (int32_t m = 1; m < t->n; m++) {
    if (!calls_are_equal(c, o->call[m], t->n)) return false;
  }
  if (c->kind == (ng_coll_kind)MAKE_TEAM) {
    o->made = make_team(g, c->send, (int32_t)c->count);
    if (o->made == NULL) return false;
  } else {
    o->total = ng_call_total(c, t->n);
  }
  /* ops open in the order of calls, so if this op is the newest, all ops of the team have opened */
  if (t->tail == o) t->tail = NULL;
  g->waiting_ranks -= o->waiting;
  o->open = true;
  (void)pthread_cond_broadcast(&t->changed);
  return true;
}

/* Called with the lock: let the call `c` of member m join its op.  `c` must stay valid until the member has collected
 * the op.  The first member creates the op, and the others find it in `joins`.  So one rank may be several calls
 * ahead. */
static ng_status join_op(ng_threads *g, team *t, int32_t m, const ng_collective *c, op **out) {
  if (g->stopped) return NG_ERR_COMM;
  op *o = t->joins[m];
  if (o == NULL) {
    o = take_op(g, t);
    if (o == NULL) {
      stop_all(g);
      return NG_ERR_NOMEM;
    }
    if (t->tail != NULL) t->tail->next = o;
    t->tail = o;
    for (int32_t i = 0; i < t->n; i++) {
      if (t->joins[i] == NULL) t->joins[i] = o;
    }
  }
  t->joins[m] = o->next;
  o->call[m] = c;
  if (++o->arrived == t->n && !open_op(g, o)) {
    stop_all(g);
    return NG_ERR_COMM;
  }
  *out = o;
  return NG_OK;
}

/* Called with the lock, which is released during the work: process the next chunk of the op, which must exist. */
static void process_chunk(ng_threads *g, op *o) {
  const int64_t b = o->given, e = ng_min64(b + CHUNK, o->total);
  o->given = e;
  g->threads_in_chunks++;
  (void)pthread_mutex_unlock(&g->lock);
  process_range(o, b, e);
  (void)pthread_mutex_lock(&g->lock);
  g->threads_in_chunks--;
  o->finished += e - b;
  if (o->finished == o->total) (void)pthread_cond_broadcast(&o->team->changed);
  if (g->stopped && g->threads_in_chunks == 0) (void)pthread_cond_broadcast(&g->idle);
}

/* Called with the lock when a member has seen the op complete.  The last member puts the op on the spare list. */
static void release_op(ng_threads *g, op *o) {
  if (++o->collected < o->team->n) return;
  o->next = g->spare;
  g->spare = o;
}

/* Called with the lock: process chunks and wait until the op is complete.  *made (NULL: none) receives the new team of
 * MAKE_TEAM.  If every rank waits for an op to open, no op can open any more, and all calls fail. */
static ng_status wait_for_op(ng_threads *g, op *o, team **made) {
  team *t = o->team;
  if (!o->open && !g->stopped) {
    o->waiting++;
    if (++g->waiting_ranks == g->size) stop_all(g);
  }
  while (!o->open && !g->stopped) {
    (void)pthread_cond_wait(&t->changed, &g->lock);
  }
  while (!g->stopped && o->given < o->total) {
    process_chunk(g, o);
  }
  while (!g->stopped && o->finished < o->total) {
    (void)pthread_cond_wait(&t->changed, &g->lock);
  }
  if (g->stopped) wait_until_idle(g);
  if (!o->open || o->finished < o->total) return NG_ERR_COMM;
  if (made != NULL) *made = o->made;
  release_op(g, o);
  return NG_OK;
}

/* Called with the lock: process at most one chunk, so that the caller waits only briefly. */
static ng_status test_op(ng_threads *g, op *o, int32_t *done) {
  if (o->open && !g->stopped && o->given < o->total) process_chunk(g, o);
  *done = o->open && o->finished == o->total;
  if (g->stopped) wait_until_idle(g);
  if (*done) release_op(g, o);
  return *done || !g->stopped ? NG_OK : NG_ERR_COMM;
}

/* ---- the table -------------------------------------------------------------------------------*/

static team *team_of(const endpoint *s, const ng_collective *c) {
  return c->group != NULL ? c->group : s->g->world;
}

static ng_status start(void *user, const ng_collective *c, void **request) {
  endpoint *s = user;
  team *t = team_of(s, c);
  *request = NULL;
  ng_status st =
      member_of(t, s->rank) < 0 ? NG_ERR_ARG : ng_call_check(c, t->rank, t->n, INT64_MAX);
  if (st != NG_OK) return abort_and_return(s, st);
  op *o = NULL;
  (void)pthread_mutex_lock(&s->g->lock);
  st = join_op(s->g, t, member_of(t, s->rank), c, &o);
  if (st != NG_OK) wait_until_idle(s->g);
  (void)pthread_mutex_unlock(&s->g->lock);
  *request = o;
  return st;
}

/* With done = NULL, wait.  A request is complete when all chunks of its op are, because any member writes to its
 * recv. */
static ng_status test(void *user, void *request, int32_t *done) {
  endpoint *s = user;
  if (request == NULL) return abort_and_return(s, NG_ERR_ARG);
  (void)pthread_mutex_lock(&s->g->lock);
  const ng_status st =
      done != NULL ? test_op(s->g, request, done) : wait_for_op(s->g, request, NULL);
  (void)pthread_mutex_unlock(&s->g->lock);
  return st;
}

static ng_status wait(void *user, void *request) { return test(user, request, NULL); }

static ng_status run(void *user, const ng_collective *c) {
  void *request;
  const ng_status st = start(user, c, &request);
  return st == NG_OK ? wait(user, request) : st;
}

/* All ranks call this function; the calls join an op of the world that has no elements. */
static ng_status group_create(void *user, const int32_t *ranks, int32_t n, void **group) {
  endpoint *s = user;
  ng_threads *g = s->g;
  *group = NULL;
  if (!ng_call_ranks_valid(ranks, n, g->size)) return abort_and_return(s, NG_ERR_ARG);
  const ng_collective c = {.kind = (ng_coll_kind)MAKE_TEAM, .send = ranks, .count = n};
  op *o = NULL;
  team *made = NULL;
  (void)pthread_mutex_lock(&g->lock);
  ng_status st = join_op(g, g->world, s->rank, &c, &o);
  if (st == NG_OK) {
    st = wait_for_op(g, o, &made);
  } else {
    wait_until_idle(g);
  }
  /* a rank that is not a member gets no handle, because the members may have freed the team already */
  if (st == NG_OK && ng_call_member(ranks, n, s->rank) >= 0) *group = made;
  (void)pthread_mutex_unlock(&g->lock);
  return st;
}

/* The last member frees the team. */
static void group_destroy(void *user, void *group) {
  ng_threads *g = ((endpoint *)user)->g;
  team *t = group;
  if (t == NULL) return;
  (void)pthread_mutex_lock(&g->lock);
  if (--t->owners == 0) {
    team **at = &g->teams;
    while (*at != t) {
      at = &(*at)->next;
    }
    *at = t->next;
    free_team(t);
  }
  (void)pthread_mutex_unlock(&g->lock);
}

ng_status ng_threads_create(int32_t ranks, ng_threads **out) {
  if (out == NULL) return NG_ERR_ARG;
  *out = NULL;
  if (ranks < 1) return NG_ERR_ARG;
  ng_threads *g = calloc(1, sizeof *g);
  if (g == NULL) return NG_ERR_NOMEM;
  (void)pthread_mutex_init(&g->lock, NULL);
  (void)pthread_cond_init(&g->idle, NULL);
  g->size = ranks;
  g->endpoint = calloc((size_t)ranks, sizeof *g->endpoint);
  g->world = g->endpoint == NULL ? NULL : make_team(g, NULL, ranks);
  if (g->world == NULL) {
    ng_threads_destroy(&g);
    return NG_ERR_NOMEM;
  }
  for (int32_t r = 0; r < ranks; r++) {
    g->endpoint[r] = (endpoint){g, r};
  }
  *out = g;
  return NG_OK;
}

ng_status ng_threads_transport(ng_threads *group, int32_t rank, ng_transport *out, size_t size) {
  if (group == NULL || out == NULL || rank < 0 || rank >= group->size || size < sizeof(size_t)) {
    return NG_ERR_ARG;
  }
  ng_call_fill(out, size, NG_CALL_TABLE("threads", abort_ranks), &group->endpoint[rank], rank,
               group->size);
  return NG_OK;
}

void ng_threads_destroy(ng_threads **group) {
  if (group == NULL || *group == NULL) return;
  ng_threads *g = *group;
  *group = NULL;
  while (g->ops != NULL) {
    op *older = g->ops->older;
    free(g->ops);
    g->ops = older;
  }
  while (g->teams != NULL) {
    team *next = g->teams->next;
    free_team(g->teams);
    g->teams = next;
  }
  free(g->endpoint);
  (void)pthread_cond_destroy(&g->idle);
  (void)pthread_mutex_destroy(&g->lock);
  free(g);
}
