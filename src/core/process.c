/* process.c: whose context it is.
 *
 * In: a context, when it is made and at each call.  Out: whether this is the process that made it.
 *
 * A forked child has a copy of the context, and of nothing that makes it work: no thread of the pool, no
 * place among the ranks.  A loop would wait for threads that are not there, a collective would speak with
 * the parent's voice.  So a child is told that it has to make a context of its own.
 *
 * Asked at every call, observations of a few hundred numbers included, so it must not be a system call:
 * each context has a page that the kernel empties in a child (MADV_WIPEONFORK, Linux 4.14).  Where there
 * is no such page the number of the process is asked for.  No handlers (pthread_atfork), no globals. */
#include "core/core.h"

#include <sys/mman.h>
#include <unistd.h>

void ng_process_mark(ng_context *ctx) {
  ctx->process = (int64_t)getpid();
  ctx->mark = NULL;
  ctx->mark_bytes = 0;
#if defined(MADV_WIPEONFORK)
  const long page = sysconf(_SC_PAGESIZE);
  if (page < 1) return;
  void *at = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return;
  if (madvise(at, (size_t)page, MADV_WIPEONFORK) != 0) { /* an older kernel */
    (void)munmap(at, (size_t)page);
    return;
  }
  ctx->mark = at;
  ctx->mark_bytes = (size_t)page;
  *ctx->mark = 1;
#endif
}

/* The page is the process's own: a child gives back its copy. */
void ng_process_unmark(ng_context *ctx) {
  if (ctx->mark != NULL) (void)munmap((void *)(uintptr_t)ctx->mark, ctx->mark_bytes);
  ctx->mark = NULL;
  ctx->mark_bytes = 0;
}

bool ng_process_same(const ng_context *ctx) {
  return ctx->mark != NULL ? *ctx->mark == 1 : (int64_t)getpid() == ctx->process;
}
