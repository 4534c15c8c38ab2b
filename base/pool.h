/* pool.h: a thread pool for parallel loops.
 *
 * base/ is compiled once and linked into the library and the program; neither exports its symbols. */
#ifndef NG_POOL_H
#define NG_POOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct ng_pool ng_pool;

/* Allocator functions, as in ng_context_config. */
typedef struct ng_pool_alloc {
  void *(*take)(void *user, size_t bytes);
  void (*give)(void *user, void *ptr, size_t bytes);
  void *user;
} ng_pool_alloc;

/* Create a pool of `threads` threads including the caller, or fewer if the system has no more
 * (ng_pool_threads). `alloc` NULL: malloc and free. Return NULL if there is no memory. */
ng_pool *ng_pool_create(int32_t threads, const ng_pool_alloc *alloc);
void ng_pool_destroy(ng_pool *pool); /* accepts NULL */
/* In a forked child: free the memory without waiting for threads. */
void ng_pool_leave(ng_pool *pool);
int32_t ng_pool_threads(const ng_pool *pool);

/* Call task(arg, i) for every i in [0, n) and return when all tasks are done. One thread may run
 * several tasks, so tasks must not wait for each other. Two threads must not call this function
 * at the same time, and a task must not call it. */
void ng_pool_run(ng_pool *pool, int32_t n, void (*task)(void *arg, int32_t i), void *arg);

#endif
