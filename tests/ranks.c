/* ranks.c: see ranks.h.
 *
 * The main thread waits with a timeout.  After the timeout it aborts the transport of every rank, so that ranks in a
 * collective return and can be joined; then the test fails.  If a rank hangs elsewhere, it still uses the stack of the
 * test, so the program ends. */
#include "ranks.h"
#include "unit_test.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(NG_TEST_MPI)
#include "mpi_sleep.h"
#include "natgrad_mpi.h"

#include <unistd.h>
#endif

typedef struct rank_group {
  pthread_mutex_t lock;
  pthread_cond_t ended;
  int32_t running;
  rank_fn fn;
  void *arg;
} rank_group;

typedef struct rank_job {
  rank_group *rank_group;
  ng_transport *t;
  int32_t rank;
  pthread_t thread;
  bool done;
  ng_status status;
} rank_job;

static void *rank_main(void *arg) {
  rank_job *j = arg;
  ng_status st = j->rank_group->fn(j->rank, j->t, j->rank_group->arg);
  pthread_mutex_lock(&j->rank_group->lock);
  j->status = st;
  j->done = true;
  j->rank_group->running--;
  pthread_cond_signal(&j->rank_group->ended);
  pthread_mutex_unlock(&j->rank_group->lock);
  return NULL;
}

/* True when every rank has ended. */
static bool wait_for(rank_group *c, long seconds) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += seconds;
  int e = 0;
  pthread_mutex_lock(&c->lock);
  while (c->running > 0 && e != ETIMEDOUT) {
    e = pthread_cond_timedwait(&c->ended, &c->lock, &until);
  }
  bool ended = c->running == 0;
  pthread_mutex_unlock(&c->lock);
  return ended;
}

long ranks_timeout_seconds(void) {
  const char *text = getenv("NG_TEST_TIMEOUT");
  long s = text ? strtol(text, NULL, 10) : 0;
  return s > 0 ? s : 600;
}

static ng_status worse_status(ng_status a, ng_status b) {
  if (a < NG_OK || b < NG_OK) return a < b ? a : b;
  return a > b ? a : b;
}

ng_status ranks_run_on(int32_t n, ng_transport *t, rank_fn fn, void *arg, ng_status *per_rank) {
  rank_group c = {.running = n, .fn = fn, .arg = arg};
  rank_job *job = calloc((size_t)n, sizeof *job);
  if (!job) fail_msg("ranks: no memory");
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&c.lock, NULL);
  pthread_cond_init(&c.ended, &monotonic);
  pthread_condattr_destroy(&monotonic);

  for (int32_t r = 0; r < n; r++) {
    job[r] = (rank_job){.rank_group = &c, .t = &t[r], .rank = r};
    if (pthread_create(&job[r].thread, NULL, rank_main, &job[r])) {
      /* the ranks that have started would wait for this rank, so end the process */
      fprintf(stderr, "ranks: no thread for rank %d\n", (int)r);
      _Exit(1);
    }
  }

  bool late = !wait_for(&c, ranks_timeout_seconds());
  if (late) {
    pthread_mutex_lock(&c.lock);
    for (int32_t r = 0; r < n; r++) {
      fprintf(stderr, "ranks: rank %d of %d %s\n", (int)r, (int)n,
              job[r].done ? ng_status_name(job[r].status) : "still running");
    }
    pthread_mutex_unlock(&c.lock);
    for (int32_t r = 0; r < n; r++) {
      if (t[r].abort) t[r].abort(t[r].user);
    }
    if (!wait_for(&c, 10)) {
      fprintf(stderr, "ranks: still hanging after abort, giving up\n");
      _Exit(1);
    }
  }

  ng_status worst = NG_OK;
  for (int32_t r = 0; r < n; r++) {
    pthread_join(job[r].thread, NULL);
    worst = worse_status(worst, job[r].status);
    if (per_rank) per_rank[r] = job[r].status;
  }
  pthread_cond_destroy(&c.ended);
  pthread_mutex_destroy(&c.lock);
  free(job);
  if (late) fail_msg("ranks: not finished after %ld s", ranks_timeout_seconds());
  return worst;
}

#if defined(NG_TEST_MPI)
enum { RANKS_MOST = 8 };

int ranks_run_tests(const char *group, const struct CMUnitTest *tests, size_t n) {
  int level;
  mpi_link_sleeping_collectives();
  if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) abort();
  const int failed = _cmocka_run_group_tests(group, tests, n, NULL, NULL);
  (void)MPI_Finalize();
  return failed;
}

ng_status ranks_make_group(int32_t n, const int *list, ng_transport *out) {
  MPI_Group all, mine;
  MPI_Comm comm;
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Group_incl(all, n, list, &mine);
  MPI_Comm_create_group(MPI_COMM_WORLD, mine, 7, &comm);
  const ng_status st = ng_mpi_transport(comm, out, sizeof *out); /* duplicates comm */
  MPI_Comm_free(&comm);
  MPI_Group_free(&mine);
  MPI_Group_free(&all);
  return st;
}

int32_t ranks_process_count(void) {
  int n = 0;
  (void)MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n < RANKS_MOST ? n : RANKS_MOST;
}

/* alarm() kills a process that hangs; then the launcher ends the others. */
ng_status ranks_run(int32_t n, rank_fn fn, void *arg, ng_status *per_rank) {
  int rank = 0, each[RANKS_MOST], st = NG_OK;
  ng_transport t = {.struct_size = 0};
  MPI_Comm comm;
  if (n > ranks_process_count())
    fail_msg("ranks: the test needs %d processes, %d were started", (int)n,
             (int)ranks_process_count());
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  (void)MPI_Comm_split(MPI_COMM_WORLD, rank < n ? 0 : MPI_UNDEFINED, rank, &comm);
  (void)alarm((unsigned)ranks_timeout_seconds());
  if (rank < n) {
    st = ng_mpi_transport(comm, &t, sizeof t);
    if (st == NG_OK) st = fn(rank, &t, arg);
    if (st < NG_OK && t.abort) t.abort(t.user);
    ng_mpi_release(&t);
    (void)MPI_Comm_free(&comm);
  }
  (void)MPI_Allgather(&st, 1, MPI_INT, each, 1, MPI_INT, MPI_COMM_WORLD);
  (void)alarm(0);
  ng_status worst = NG_OK;
  for (int32_t r = 0; r < n; r++) {
    worst = worse_status(worst, (ng_status)each[r]);
    if (per_rank) per_rank[r] = (ng_status)each[r];
  }
  return worst;
}
#else
int ranks_run_tests(const char *group, const struct CMUnitTest *tests, size_t n) {
  return _cmocka_run_group_tests(group, tests, n, NULL, NULL);
}

ng_status ranks_run(int32_t n, rank_fn fn, void *arg, ng_status *per_rank) {
  ng_threads *group = NULL;
  ng_transport *t = calloc((size_t)n, sizeof *t);
  if (!t) fail_msg("ranks: no memory");
  ng_status st = ng_threads_create(n, &group);
  if (st != NG_OK) fail_msg("ranks: ng_threads_create: %s", ng_status_name(st));
  for (int32_t r = 0; r < n; r++) {
    t[r].struct_size = sizeof t[r];
    st = ng_threads_transport(group, r, &t[r], sizeof t[r]);
    if (st != NG_OK) fail_msg("ranks: ng_threads_transport: %s", ng_status_name(st));
  }
  ng_status worst = ranks_run_on(n, t, fn, arg, per_rank);
  ng_threads_destroy(&group);
  free(t);
  return worst;
}
#endif

/* ---- a grid ----------------------------------------------------------------------------------*/

ng_status ranks_grid_open(ranks_grid *g, int32_t rows, int32_t cols) {
  ng_status st = NG_OK;
  *g = (ranks_grid){.rows = rows, .cols = cols};
  for (int32_t i = 0; i < rows && st == NG_OK; i++)
    st = ng_threads_create(cols, &g->row[i]);
  for (int32_t i = 0; i < cols && st == NG_OK; i++)
    st = ng_threads_create(rows, &g->col[i]);
  return st;
}

void ranks_grid_close(ranks_grid *g) {
  for (int32_t i = 0; i < RANKS_GRID_MOST; i++) {
    ng_threads_destroy(&g->row[i]);
    ng_threads_destroy(&g->col[i]);
  }
}

ng_status ranks_grid_transport(const ranks_grid *g, int32_t rank, bool of_row, ng_transport *out) {
  const int32_t row = rank / g->cols, col = rank % g->cols;
#if defined(NG_TEST_MPI)
  int list[RANKS_MOST];
  const int32_t n = of_row ? g->cols : g->rows;
  for (int32_t i = 0; i < n; i++)
    list[i] = of_row ? row * g->cols + i : i * g->cols + col;
  return ranks_make_group(n, list, out);
#else
  return ng_threads_transport(of_row ? g->row[row] : g->col[col], of_row ? col : row, out,
                              sizeof *out);
#endif
}

void ranks_grid_release(ng_transport *t) {
#if defined(NG_TEST_MPI)
  ng_mpi_release(t);
#endif
}

void ranks_broadcast_bytes(int32_t r, void *what, size_t bytes) {
#if defined(NG_TEST_MPI)
  (void)MPI_Bcast(what, (int)bytes, MPI_BYTE, r, MPI_COMM_WORLD);
#endif
}
