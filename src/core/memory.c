/* memory.c: the allocator, the log and the loops of a context.
 *
 * In: the caller's callbacks, as resolved when the context was made (api/context.c).  Out: counted
 * blocks, lines, tasks done.  Every byte of the library goes through ng_alloc, so what
 * ng_context_allocated says is all there is; but for options and groups of threads, which are made
 * before there is a context. */
#include "core/core.h"

#include "pages.h"

#include <stdlib.h>

/* On cache lines: kernels and tiles count on it (NG_ALIGN).  In large pages where there are several: a window's rows
 * lie far apart, and a walk down its columns would look up an address in every small page. */
void *ng_plain_alloc(void *user, size_t bytes) {
  (void)user;
  return ng_pages_take(bytes, NG_ALIGN);
}

void ng_plain_free(void *user, void *ptr, size_t bytes) {
  (void)user;
  (void)bytes;
  free(ptr);
}

/* No bytes is no block: a size of 0 is a mistake, or an overflow, of whoever computed it.  Not from
 * tasks: the counters belong to the context's thread. */
void *ng_alloc(ng_context *ctx, size_t bytes) {
  if (bytes == 0 || bytes > (size_t)INT64_MAX / 2) return NULL;
  void *p = ctx->config.alloc(ctx->config.alloc_user, bytes);
  if (p != NULL) {
    ctx->bytes += (int64_t)bytes;
    ctx->peak = ng_max64(ctx->peak, ctx->bytes);
    ctx->calls++;
  }
  return p;
}

void ng_free(ng_context *ctx, void *ptr, size_t bytes) {
  if (ptr == NULL) return;
  ctx->bytes -= (int64_t)bytes;
  ctx->config.free(ctx->config.alloc_user, ptr, bytes);
}

/* ---- log, loops -----------------------------------------------------------------------------*/

/* A line above the log level costs one comparison.  The rank is printed because ranks may share a terminal. */
void ng_log(ng_context *ctx, ng_log_level level, const char *format, ...) {
  if (ctx->config.log == NULL || level > ctx->config.log_level) return;
  char line[NG_MESSAGE + 64];
  int at = 0;
  if (ctx->ranks > 1) at = snprintf(line, sizeof line, "[rank %d] ", ctx->rank);
  va_list args;
  va_start(args, format);
  ng_print_line(line + at, sizeof line - (size_t)at, format, args);
  va_end(args);
  ctx->config.log(ctx->config.log_user, level, line);
}

/* Returns when all are done, so `arg` may lie on the stack.  Never from within a task: the pool is
 * one level deep, and a static partition gives the same i to the same thread. */
void ng_parallel(ng_context *ctx, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
  if (ctx->config.parallel_for != NULL) {
    ctx->config.parallel_for(ctx->config.executor_user, n, task, arg);
  } else if (ctx->pool != NULL && n > 1) {
    ng_pool_run(ctx->pool, n, task, arg);
  } else {
    for (int32_t i = 0; i < n; i++) {
      task(arg, i);
    }
  }
}

int32_t ng_threads_of(const ng_context *ctx) { return ctx->config.threads; }

int32_t ng_pieces(const ng_context *ctx, int64_t floats) {
  /* Waking threads costs some 10 us, in which one moves this much. */
  return floats < 32768 ? 1 : ng_threads_of(ctx);
}

/* Contiguous shares whose sizes differ by at most one; with the same pieces always the same. */
void ng_share(int64_t n, int32_t pieces, int32_t i, int64_t *from, int64_t *to) {
  *from = n * i / pieces;
  *to = n * (i + 1) / pieces;
}
