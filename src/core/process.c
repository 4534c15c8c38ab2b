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
  ctx->process = (int64_t)getpid();
#if defined(MADV_WIPEONFORK)
  const long page = sysconf(_SC_PAGESIZE);
  if (page < 1) return;
  void *at = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return;
  if (madvise(at, (size_t)page, MADV_WIPEONFORK) != 0) { /* Linux before 4.14 */
    (void)munmap(at, (size_t)page);
    return;
  }
  ctx->mark = at;
  ctx->mark_bytes = (size_t)page;
  *ctx->mark = 1;
#endif
}

/* A forked child also calls this function: it has a page of its own at the same address. */
void ng_process_unmark(ng_context *ctx) {
  if (ctx->mark != NULL) (void)munmap((void *)(uintptr_t)ctx->mark, ctx->mark_bytes);
  ctx->mark = NULL;
}

bool ng_process_same(const ng_context *ctx) {
  return ctx->mark != NULL ? *ctx->mark == 1 : (int64_t)getpid() == ctx->process;
}
