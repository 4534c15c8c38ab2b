/* t_pool.c: the thread pool (base/pool.c): each piece runs once, adjacent pieces run in one thread, and no round
 * waits for a thread that is asleep. */
#include "unit_test.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pool.h"
#include "ranks.h"

enum { THREADS = 3, PIECES = 7 };

typedef struct job {
  _Atomic int32_t done[PIECES];
  pthread_t by[PIECES];
  long tid[PIECES];
} job;

static void record_thread(void *arg, int32_t i) {
  job *j = arg;
  atomic_fetch_add(&j->done[i], 1);
  j->by[i] = pthread_self();
  j->tid[i] = syscall(SYS_gettid);
}

static void each_piece_runs_once(void **state) {
  for (int32_t threads = 1; threads <= THREADS; threads++) {
    ng_pool *pool = ng_pool_create(threads, NULL);
    assert_non_null(pool);
    for (int round = 0; round < 2000; round++) {
      job j = {.done = {0}};
      const int32_t n = round % (PIECES + 1);
      ng_pool_run(pool, n, record_thread, &j);
      for (int32_t i = 0; i < PIECES; i++) {
        if (j.done[i] != (i < n)) fail_msg("piece %d of %d ran %d times", i, n, j.done[i]);
      }
      for (int32_t k = 0; k < threads; k++) { /* one thread runs all tasks of a share */
        for (int32_t i = k * n / threads + 1; i < (k + 1) * n / threads; i++)
          assert_true(pthread_equal(j.by[i], j.by[i - 1]));
      }
      if (n > 0 && n / threads > 0) assert_true(pthread_equal(j.by[0], pthread_self()));
    }
    ng_pool_destroy(pool);
  }
}

/* ---- a thread that is late -------------------------------------------------------------------*/

static int gate[2];

static void wait_at_gate(int signal) {
  char c;
  const int was = errno;
  while (read(gate[0], &c, 1) < 0 && errno == EINTR) {
  }
  errno = was;
}

/* Return whether a thread sleeps.  A sleeping thread holds no lock of the pool. */
static bool is_sleeping(long tid) {
  char path[64], line[256] = "";
  (void)snprintf(path, sizeof path, "/proc/self/task/%ld/stat", tid);
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  const bool read = fgets(line, sizeof line, f) != NULL;
  (void)fclose(f);
  const char *end = strrchr(line, ')');
  return read && end != NULL && end[2] == 'S';
}

/* Run rounds until the other thread runs the last share, and return that round. */
static job run_until_worker_takes_part(ng_pool *pool) {
  for (int round = 0; round < 1000000; round++) {
    job j = {.done = {0}};
    ng_pool_run(pool, 2, record_thread, &j);
    if (!pthread_equal(j.by[1], pthread_self())) return j;
  }
  fail_msg("the other thread never runs the last share");
  return (job){.done = {0}};
}

/* Signal the only worker and hold it in the handler.  Rounds finish without the worker, and with it after its
 * release. */
static void rounds_finish_without_a_sleeping_thread(void **state) {
  struct sigaction hold = {.sa_handler = wait_at_gate, .sa_flags = SA_RESTART}, was;
  ng_pool *pool = ng_pool_create(2, NULL);
  assert_non_null(pool);
  assert_int_equal(pipe(gate), 0);
  assert_int_equal(sigaction(SIGUSR1, &hold, &was), 0);
  const job first = run_until_worker_takes_part(pool);
  while (!is_sleeping(first.tid[1])) {
    (void)usleep(1000);
  }
  assert_int_equal(pthread_kill(first.by[1], SIGUSR1), 0);
  /* let the worker enter the handler; otherwise the round is an ordinary one */
  (void)usleep(50000);
  (void)alarm(
      (unsigned)ranks_timeout_seconds()); /* a round that waits for the worker would never end */
  for (int round = 0; round < 3; round++) {
    job j = {.done = {0}};
    ng_pool_run(pool, PIECES, record_thread, &j);
    for (int32_t i = 0; i < PIECES; i++)
      assert_int_equal(j.done[i], 1);
  }
  (void)alarm(0);
  assert_int_equal(write(gate[1], "x", 1), 1);
  (void)run_until_worker_takes_part(pool);
  ng_pool_destroy(pool);
  assert_int_equal(sigaction(SIGUSR1, &was, NULL), 0);
  (void)close(gate[0]);
  (void)close(gate[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_piece_runs_once),
      cmocka_unit_test(rounds_finish_without_a_sleeping_thread),
  };
  return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
