/* transports.c: see transports.h. */
#include "transports.h"

#include "kernel/kernel.h"
#include "ranks.h"
#include "unit_test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(NG_TEST_MPI)
#include "comm/mpi.h"
#include "natgrad_mpi.h"

#include <unistd.h>
#endif

enum { GROUPS = 32, GUARD = 16 };

/* ---- elements --------------------------------------------------------------------------------*/

void put(void *buffer, ng_dtype t, int64_t i, double x) {
  switch (t) {
  case NG_F32:
    ((float *)buffer)[i] = (float)x;
    break;
  case NG_F64:
    ((double *)buffer)[i] = x;
    break;
  case NG_F16:
    ((uint16_t *)buffer)[i] = ng_f32_to_f16((float)x);
    break;
  case NG_BF16:
    ((uint16_t *)buffer)[i] = ng_f32_to_bf16((float)x);
    break;
  case NG_I32:
    ((int32_t *)buffer)[i] = (int32_t)x;
    break;
  case NG_I64:
    ((int64_t *)buffer)[i] = (int64_t)x;
    break;
  case NG_U8:
    ((uint8_t *)buffer)[i] = (uint8_t)(int)x;
    break;
  }
}

double get(const void *buffer, ng_dtype t, int64_t i) {
  switch (t) {
  case NG_F32:
    return (double)((const float *)buffer)[i];
  case NG_F64:
    return ((const double *)buffer)[i];
  case NG_F16:
    return (double)ng_f16_to_f32(((const uint16_t *)buffer)[i]);
  case NG_BF16:
    return (double)ng_bf16_to_f32(((const uint16_t *)buffer)[i]);
  case NG_I32:
    return ((const int32_t *)buffer)[i];
  case NG_I64:
    return (double)((const int64_t *)buffer)[i];
  case NG_U8:
    return (int8_t)((const uint8_t *)buffer)[i];
  }
  return 0.0;
}

double rank_value(int32_t rank, int64_t i) { return (double)((rank * 7 + i * 3) % 11 - 5); }

int64_t element_count(int32_t pattern, int32_t m) {
  if (pattern == 0) return 0;
  if (pattern == 1) return (m * 5 + 2) % 7; /* 2 0 5 3 1 6 4 2 */
  if (pattern == 2) return m % 2 == 0 ? 0 : 9;
  return m == 1 ? 40000 : 3;
}

const int32_t all_ranks[MOST_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};

guarded guarded_new(int64_t count, ng_dtype t) {
  guarded g;
  g.bytes = (size_t)(count * ng_dtype_size(t));
  g.base = malloc(g.bytes + 2 * GUARD);
  if (!g.base) abort();
  memset(g.base, 0xA5, g.bytes + 2 * GUARD);
  g.data = g.base + GUARD;
  return g;
}

bool guarded_intact(const guarded *g) {
  for (size_t i = 0; i < GUARD; i++) {
    if (g->base[i] != 0xA5 || g->base[GUARD + g->bytes + i] != 0xA5) return false;
  }
  return true;
}

ng_collective collective_of(ng_coll_kind kind, ng_dtype t, const void *send, void *recv) {
  return (ng_collective){.struct_size = sizeof(ng_collective),
                         .kind = kind,
                         .dtype = t,
                         .mem = NG_HOST,
                         .send = send,
                         .recv = recv};
}

/* ---- the transport USER ----------------------------------------------------------------------*/

typedef struct user_group {
  int32_t rank[MOST_RANKS], n, arrived, turn, held;
  const ng_collective *call[MOST_RANKS];
} user_group;

typedef struct user_world {
  pthread_mutex_t lock;
  pthread_cond_t moved;
  bool stopped;
  user_group group[1 + GROUPS]; /* group[0]: all ranks */
} user_world;

typedef struct user_rank {
  user_world *h;
  int32_t rank, made;
} user_rank;

static void run_shared_collective(const user_group *b) {
  const ng_collective *c = b->call[0];
  const size_t bytes = (size_t)(c->count * ng_dtype_size(c->dtype));
  if (c->kind == NG_ALL_REDUCE) {
    for (int64_t i = 0; i < c->count; i++) {
      double sum = 0.0;
      for (int32_t m = 0; m < b->n; m++) {
        sum += get(b->call[m]->send, c->dtype, i);
      }
      for (int32_t m = 0; m < b->n; m++) {
        put(b->call[m]->recv, c->dtype, i, sum);
      }
    }
    return;
  }
  int32_t root = 0;
  while (b->rank[root] != c->root) {
    root++;
  }
  for (int32_t m = 0; m < b->n; m++) {
    if (b->call[m]->recv != b->call[root]->send) {
      memcpy(b->call[m]->recv, b->call[root]->send, bytes);
    }
  }
}

static ng_status user_run(void *user, const ng_collective *c) {
  user_rank *s = user;
  user_group *b = c->group ? c->group : &s->h->group[0];
  if (c->kind != NG_ALL_REDUCE && c->kind != NG_BROADCAST) return NG_ERR_ABSENT;
  pthread_mutex_lock(&s->h->lock);
  const int32_t turn = b->turn;
  int32_t me = 0;
  while (b->rank[me] != s->rank) {
    me++;
  }
  if (!s->h->stopped) {
    b->call[me] = c;
    if (++b->arrived == b->n) {
      run_shared_collective(b);
      b->arrived = 0;
      b->turn++;
      pthread_cond_broadcast(&s->h->moved);
    }
  }
  while (b->turn == turn && !s->h->stopped) {
    pthread_cond_wait(&s->h->moved, &s->h->lock);
  }
  const bool done = b->turn != turn;
  pthread_mutex_unlock(&s->h->lock);
  return done ? NG_OK : NG_ERR_COMM;
}

static ng_status user_group_create(void *user, const int32_t *ranks, int32_t n, void **group) {
  user_rank *s = user;
  *group = NULL;
  if (s->made == GROUPS) return NG_ERR_NOMEM;
  user_group *b = &s->h->group[1 + s->made++];
  pthread_mutex_lock(&s->h->lock);
  b->n = n;
  memcpy(b->rank, ranks, (size_t)n * sizeof *ranks);
  for (int32_t i = 0; i < n; i++) {
    if (ranks[i] == s->rank) {
      *group = b;
      b->held++;
    }
  }
  pthread_mutex_unlock(&s->h->lock);
  return NG_OK;
}

static void user_group_destroy(void *user, void *group) {
  user_rank *s = user;
  pthread_mutex_lock(&s->h->lock);
  ((user_group *)group)->held--;
  pthread_mutex_unlock(&s->h->lock);
}

static void user_abort(void *user) {
  user_rank *s = user;
  pthread_mutex_lock(&s->h->lock);
  s->h->stopped = true;
  pthread_cond_broadcast(&s->h->moved);
  pthread_mutex_unlock(&s->h->lock);
}

/* ---- running a body on a transport -----------------------------------------------------------*/

const char *const which_name[WHICH] = {
    "self", "user", "user without groups", "threads",
#if defined(NG_TEST_MPI)
    "mpi",
#endif
};

/* Put a tap around the transport; keep its fail_at and status, clear its counts. */
static void insert_tap(tap *p, ng_transport *t) {
  *p = (tap){.inner = *t, .fail_at = p->fail_at, .status = p->status};
  *t = tap_transport(p, WHOLE);
}

typedef struct rank_job {
  const comm_case *how;
  body_fn body;
} rank_job;

static ng_status run_body_on_rank(int32_t rank, ng_transport *t, void *arg) {
  const rank_job *s = arg;
  ng_comm c;
  char message[256] = "";
  ng_status st = ng_comm_init(&c, s->how->which == SELF ? NULL : t, message, sizeof message);
  if (st != NG_OK) {
    fprintf(stderr, "ng_comm_init: %s\n", message);
  } else if (c.rank != rank || c.size != s->how->n) {
    st = NG_ERR_STATE;
  } else {
    if (s->how->piece) c.piece = s->how->piece;
    st = s->body(&c, t, s->how);
  }
  if (st < NG_OK && t->abort) t->abort(t->user);
  return st;
}

#if defined(NG_TEST_MPI)
/* Gather the counts of all taps on all ranks. */
static void gather_tap_counts(tap *taps, int32_t rank, int32_t n, bool part) {
  int64_t all[MOST_RANKS][4] = {{0}}, mine[4] = {0};
  if (part) {
    const tap *p = &taps[rank];
    const int64_t counted[4] = {p->calls, p->aborts, p->tests, p->most_elements};
    memcpy(mine, counted, sizeof mine);
  }
  MPI_Allgather(mine, 4, MPI_INT64_T, all, 4, MPI_INT64_T, MPI_COMM_WORLD);
  for (int32_t r = 0; r < n; r++) {
    taps[r].calls = all[r][0];
    taps[r].aborts = all[r][1];
    taps[r].tests = all[r][2];
    taps[r].most_elements = all[r][3];
  }
}

/* The first n processes are the ranks.  alarm() kills a process that hangs; then the launcher ends the others. */
static ng_status run_over_mpi(const comm_case *how, body_fn body, tap *taps, ng_status *per_rank) {
  int rank = 0, each[MOST_RANKS], st = NG_OK;
  ng_transport t = {.struct_size = 0};
  MPI_Comm comm;
  assert_true(how->n <= ranks_process_count());
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const bool part = rank < how->n;
  MPI_Comm_split(MPI_COMM_WORLD, part ? 0 : MPI_UNDEFINED, rank, &comm);
  (void)alarm((unsigned)ranks_timeout_seconds());
  if (part) {
    assert_int_equal(ng_mpi_transport(comm, &t, sizeof t), NG_OK);
    void *user = t.user;
    if (taps) insert_tap(&taps[rank], &t);
    rank_job s = {how, body};
    st = run_body_on_rank(rank, &t, &s);
    t.user = user;
    ng_mpi_release(&t);
    assert_null(t.user);
    MPI_Comm_free(&comm);
  }
  MPI_Allgather(&st, 1, MPI_INT, each, 1, MPI_INT, MPI_COMM_WORLD);
  if (taps) gather_tap_counts(taps, rank, how->n, part);
  (void)alarm(0);
  ng_status worst = NG_OK;
  for (int32_t r = 0; r < how->n; r++) {
    if (per_rank) per_rank[r] = (ng_status)each[r];
    if (each[r] < (int)worst || (worst == NG_OK && each[r] > NG_OK)) worst = (ng_status)each[r];
  }
  return worst;
}
#endif

ng_status run_comm_case(const comm_case *how, body_fn body, tap *taps, ng_status *per_rank) {
#if defined(NG_TEST_MPI)
  if (how->which == OVER_MPI) return run_over_mpi(how, body, taps, per_rank);
#endif
  static user_world h; /* static, because the struct is too large for the stack */
  user_rank user[MOST_RANKS];
  ng_transport t[MOST_RANKS];
  ng_threads *group = NULL;
  memset(t, 0, sizeof t);
  assert_true(how->n <= MOST_RANKS);
  if (how->which == THREADS) {
    assert_int_equal(ng_threads_create(how->n, &group), NG_OK);
    for (int32_t r = 0; r < how->n; r++) {
      assert_int_equal(ng_threads_transport(group, r, &t[r], sizeof t[r]), NG_OK);
    }
  } else if (how->which != SELF) {
    memset(&h, 0, sizeof h);
    pthread_mutex_init(&h.lock, NULL);
    pthread_cond_init(&h.moved, NULL);
    h.group[0].n = how->n;
    for (int32_t r = 0; r < how->n; r++) {
      h.group[0].rank[r] = r;
      user[r] = (user_rank){&h, r, 0};
      t[r] = (ng_transport){.struct_size = sizeof t[r],
                            .user = &user[r],
                            .rank = r,
                            .size = how->n,
                            .run = user_run,
                            .abort = user_abort};
      if (how->which == USER) {
        t[r].group_create = user_group_create;
        t[r].group_destroy = user_group_destroy;
      }
    }
  }
  for (int32_t r = 0; taps && r < how->n; r++)
    insert_tap(&taps[r], &t[r]);
  rank_job s = {how, body};
  const ng_status st = ranks_run_on(how->n, t, run_body_on_rank, &s, per_rank);
  if (how->which == USER || how->which == USER_NO_GROUPS) {
    for (int32_t i = 0; i <= GROUPS; i++) {
      assert_int_equal(h.group[i].held, 0);
    }
    pthread_cond_destroy(&h.moved);
    pthread_mutex_destroy(&h.lock);
  }
  ng_threads_destroy(&group);
  return st;
}

int32_t rank_count(which w, int32_t i) {
#if defined(NG_TEST_MPI)
  if (w == OVER_MPI) return i < ranks_process_count() ? i + 1 : 0;
#endif
  static const int32_t sizes[5] = {1, 2, 3, 5, 8};
  return i < (w == SELF ? 1 : 5) ? sizes[i] : 0;
}

int32_t at_most_ranks(which w, int32_t n) {
#if defined(NG_TEST_MPI)
  if (w == OVER_MPI && n > ranks_process_count()) return ranks_process_count();
#endif
  return w == SELF ? 1 : n;
}

void on_all_transports(body_fn body) {
  for (int w = FIRST_WHICH; w < WHICH; w++) {
    for (int32_t i = 0; rank_count((which)w, i) > 0; i++) {
      for (int64_t piece = 0; piece <= 7; piece += 7) {
        const comm_case how = {.which = (which)w, .n = rank_count((which)w, i), .piece = piece};
        const ng_status st = run_comm_case(&how, body, NULL, NULL);
        if (st != NG_OK) {
          fail_msg("%s, %d ranks, pieces of %d: %s", which_name[w], (int)how.n, (int)piece,
                   ng_status_name(st));
        }
      }
    }
  }
}
