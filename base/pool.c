/* pool.c: a thread pool for parallel loops.
 *
 * OpenMP is not used: a second runtime in a Python process slows the first one, and thread sanitizers do not understand
 * it.
 *
 * The partition is static: with T threads, share t of n tasks is [t n / T, (t + 1) n / T), so the same task nearly
 * always runs on the same thread.  When the caller has finished its share, the caller also runs shares that no worker
 * has begun.  So no call waits for a thread to wake up: on a busy machine, that takes longer than most loops.
 *
 * A thread that waits for the next loop, or for the last share, spins before it sleeps: the loops of a step follow each
 * other within microseconds, while a sleeping thread needs 10 to 60 us to wake up. */
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct seat {
  /* A share of the tasks of one loop. Usually the same worker runs it in every loop. */
  pthread_t thread;
  uint64_t taken; /* number of the last round in which a thread began this share */
} seat;

struct ng_pool {
  ng_pool_alloc alloc;
  int32_t threads; /* number of threads, including the calling thread */
  int32_t wanted;  /* number of seats, which is the number of threads that the caller requested */
  seat *seat;      /* seat 0 belongs to the calling thread, so no thread is created for it */
  pthread_mutex_t lock;
  pthread_cond_t work, idle;
  /* The next three change under the lock; a spinning thread reads them without. */
  _Atomic uint64_t round;  /* number of calls of ng_pool_run so far */
  _Atomic int32_t running; /* number of workers that run a share now */
  _Atomic bool stop;
  int32_t n;
  void (*task)(void *arg, int32_t i);
  void *arg;
  int32_t started; /* number of workers that have started; the next one takes seat started + 1 */
};

/* Number of pauses: together about 100 us on an AMD EPYC, longer than most gaps between the loops of a small network, and so short
 * that other processes lose little. */
enum { SPINS = 1000 };

static void pause_spinning(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

static void run_share(const ng_pool *pool, int32_t me) {
  const int32_t from = (int32_t)((int64_t)me * pool->n / pool->threads);
  const int32_t to = (int32_t)((int64_t)(me + 1) * pool->n / pool->threads);
  for (int32_t i = from; i < to; i++) {
    pool->task(pool->arg, i);
  }
}

/* The lock protects all shared fields except n, task and arg.  These fields stay valid until the last share of the
 * round is done, and a late worker finds its share taken and does not read them. */
static void *run_worker(void *arg) {
  ng_pool *pool = arg;
  (void)pthread_mutex_lock(&pool->lock);
  const int32_t me = ++pool->started;
  for (;;) {
    const uint64_t last = pool->seat[me].taken;
    (void)pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < SPINS && pool->round == last && !pool->stop; i++)
      pause_spinning();
    (void)pthread_mutex_lock(&pool->lock);
    while (!pool->stop && pool->seat[me].taken == pool->round) {
      (void)pthread_cond_wait(&pool->work, &pool->lock);
    }
    if (pool->stop) break;
    pool->seat[me].taken = pool->round;
    pool->running++;
    (void)pthread_mutex_unlock(&pool->lock);
    run_share(pool, me);
    (void)pthread_mutex_lock(&pool->lock);
    if (--pool->running == 0) (void)pthread_cond_signal(&pool->idle);
  }
  (void)pthread_mutex_unlock(&pool->lock);
  return NULL;
}

static void *take_from_heap(void *user, size_t bytes) {
  (void)user;
  return malloc(bytes);
}

static void give_to_heap(void *user, void *ptr, size_t bytes) {
  (void)user, (void)bytes;
  free(ptr);
}

ng_pool *ng_pool_create(int32_t threads, const ng_pool_alloc *alloc) {
  static const ng_pool_alloc c_library = {take_from_heap, give_to_heap, NULL};
  if (alloc == NULL) alloc = &c_library;
  ng_pool *pool = alloc->take(alloc->user, sizeof *pool);
  if (pool == NULL) return NULL;
  memset(pool, 0, sizeof *pool);
  pool->alloc = *alloc;
  pool->seat = alloc->take(alloc->user, (size_t)threads * sizeof *pool->seat);
  if (pool->seat == NULL) {
    alloc->give(alloc->user, pool, sizeof *pool);
    return NULL;
  }
  memset(pool->seat, 0, (size_t)threads * sizeof *pool->seat);
  pool->threads = threads;
  pool->wanted = threads;
  (void)pthread_mutex_init(&pool->lock, NULL);
  (void)pthread_cond_init(&pool->work, NULL);
  (void)pthread_cond_init(&pool->idle, NULL);
  for (int32_t i = 1; i < threads; i++) {
    if (pthread_create(&pool->seat[i].thread, NULL, run_worker, pool) != 0) {
      /* if the system refuses another thread, use the threads created so far */
      (void)pthread_mutex_lock(&pool->lock);
      pool->threads = i;
      (void)pthread_mutex_unlock(&pool->lock);
      break;
    }
  }
  return pool;
}

void ng_pool_destroy(ng_pool *pool) {
  if (pool == NULL) return;
  (void)pthread_mutex_lock(&pool->lock);
  pool->stop = true;
  (void)pthread_cond_broadcast(&pool->work);
  (void)pthread_mutex_unlock(&pool->lock);
  for (int32_t i = 1; i < pool->threads; i++) {
    (void)pthread_join(pool->seat[i].thread, NULL);
  }
  (void)pthread_cond_destroy(&pool->idle);
  (void)pthread_cond_destroy(&pool->work);
  (void)pthread_mutex_destroy(&pool->lock);
  ng_pool_leave(pool);
}

/* Do not destroy the lock and the conditions: in a forked child, the destroy calls could wait for ever for threads that
 * only the parent has. */
void ng_pool_leave(ng_pool *pool) {
  if (pool == NULL) return;
  const ng_pool_alloc alloc = pool->alloc;
  alloc.give(alloc.user, pool->seat, (size_t)pool->wanted * sizeof *pool->seat);
  alloc.give(alloc.user, pool, sizeof *pool);
}

int32_t ng_pool_threads(const ng_pool *pool) { return pool->threads; }

void ng_pool_run(ng_pool *pool, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
  (void)pthread_mutex_lock(&pool->lock);
  pool->n = n;
  pool->task = task;
  pool->arg = arg;
  pool->round++;
  (void)pthread_cond_broadcast(&pool->work);
  (void)pthread_mutex_unlock(&pool->lock);
  run_share(pool, 0);
  (void)pthread_mutex_lock(&pool->lock);
  for (int32_t i = 1; i < pool->threads; i++) {
    if (pool->seat[i].taken == pool->round) continue;
    pool->seat[i].taken = pool->round;
    (void)pthread_mutex_unlock(&pool->lock);
    run_share(pool, i);
    (void)pthread_mutex_lock(&pool->lock);
  }
  (void)pthread_mutex_unlock(&pool->lock);
  for (int i = 0; i < SPINS && pool->running > 0; i++)
    pause_spinning();
  (void)pthread_mutex_lock(&pool->lock);
  while (pool->running > 0) {
    (void)pthread_cond_wait(&pool->idle, &pool->lock);
  }
  (void)pthread_mutex_unlock(&pool->lock);
}
