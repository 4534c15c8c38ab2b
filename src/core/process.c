/* process.c: detect whether this process is a forked child of the process that created a context.
 *
 * A forked child inherits the context, but not the threads of its pool.  In the child, ng_parallel would wait for
 * missing threads, and a collective would use the connections of the parent.  So calls fail in the child.
 *
 * Every public call makes this check, so it must be faster than a system call.  Each context has a page of memory that
 * Linux (4.14 or later) fills with zeros in a child (MADV_WIPEONFORK).  Without it, process ids are compared. */
#include "core/core.h"

#include <sys/mman.h>
#include <unistd.h>

void ng_process_mark(ng_context *ctx) {
  ctx->creator_pid = (int64_t)getpid();
#if defined(MADV_WIPEONFORK)
  const long page = sysconf(_SC_PAGESIZE);
  if (page < 1) return;
  void *at = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return;
  if (madvise(at, (size_t)page, MADV_WIPEONFORK) != 0) { /* Linux before 4.14 */
    (void)munmap(at, (size_t)page);
    return;
  }
  ctx->fork_mark = at;
  ctx->fork_mark_bytes = (size_t)page;
  *ctx->fork_mark = 1;
#endif
}

/* A forked child also calls this function: it has a page of its own at the same address. */
void ng_process_unmark(ng_context *ctx) {
  if (ctx->fork_mark != NULL) (void)munmap((void *)(uintptr_t)ctx->fork_mark, ctx->fork_mark_bytes);
  ctx->fork_mark = NULL;
}

bool ng_is_creating_process(const ng_context *ctx) {
  return ctx->fork_mark != NULL ? *ctx->fork_mark == 1 : (int64_t)getpid() == ctx->creator_pid;
}
