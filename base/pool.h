/* pool.h: a small pool of threads for loops of our own.
 *
 * base/ is what the library and the program share besides files (io/): compiled once, linked into
 * both, exported by neither.  It allocates through the caller's pair of functions, if there is one. */
#ifndef NG_POOL_H
#define NG_POOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct ng_pool ng_pool;

/* Where the pool's few bytes come from, as ng_context_config's pair. */
typedef struct ng_pool_alloc {
  void *(*take)(void *user, size_t bytes);
  void (*give)(void *user, void *ptr, size_t bytes);
  void *user;
} ng_pool_alloc;

/* `threads` counts the caller's; `alloc` NULL: the C library.  NULL if there is no memory; fewer threads than asked for if the
 * system has no more (ng_pool_threads tells). */
ng_pool *ng_pool_create(int32_t threads, const ng_pool_alloc *alloc);
void ng_pool_destroy(ng_pool *pool); /* accepts NULL */
/* In a forked child, which has none of the threads: free the memory; wait for no thread. */
void ng_pool_leave(ng_pool *pool);
int32_t ng_pool_threads(const ng_pool *pool);

/* task(arg, i) for every i in [0, n), in T contiguous shares, each in one thread; returns when every share
 * is done.  The caller has the first, and every other that no thread has begun by then: all shares may run
 * in one thread, so none may wait for another.  Called by one thread at a time, and not from within a task. */
void ng_pool_run(ng_pool *pool, int32_t n, void (*task)(void *arg, int32_t i), void *arg);

#endif
