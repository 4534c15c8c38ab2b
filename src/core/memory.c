/* memory.c: the allocator, the log and the loops of a context.
 *
 * All memory of a context comes from ng_alloc, so ng_context_allocated counts all of its bytes.  Objects of type
 * ng_options and ng_threads belong to no context, so their memory is not counted. */
#include "core/core.h"

#include "pages.h"

#include <stdlib.h>

/* Kernels require alignment to cache lines (NG_ALIGN).  Large allocations use large pages, because a loop down a column
 * of a large matrix reads another small page for each row, and would miss the TLB (address cache) each time. */
void *ng_plain_alloc(void *user, size_t bytes) {
  (void)user;
  return ng_pages_alloc(bytes, NG_ALIGN);
}

void ng_plain_free(void *user, void *ptr, size_t bytes) {
  (void)user;
  (void)bytes;
  free(ptr);
}

/* Return NULL for 0 bytes, because a caller has 0 bytes only after an overflow.  The counters are not atomic, so in one
 * ng_parallel at most one task may call ng_alloc. */
void *ng_alloc(ng_context *ctx, size_t bytes) {
  if (bytes == 0 || bytes > (size_t)INT64_MAX / 2) return NULL;
  void *p = ctx->config.alloc(ctx->config.alloc_user, bytes);
  if (p != NULL) {
    ctx->allocated_bytes += (int64_t)bytes;
    ctx->peak_bytes = ng_max64(ctx->peak_bytes, ctx->allocated_bytes);
    ctx->allocations++;
  }
  return p;
}

void ng_free(ng_context *ctx, void *ptr, size_t bytes) {
  if (ptr == NULL) return;
  ctx->allocated_bytes -= (int64_t)bytes;
  ctx->config.free(ctx->config.alloc_user, ptr, bytes);
}

/* ---- log, loops -----------------------------------------------------------------------------*/

/* With several ranks each line begins with the rank, because ranks may share a terminal. */
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

/* A task must not call ng_parallel: ng_pool_run does not support nested calls. */
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

void ng_piece_bounds(int64_t n, int32_t pieces, int32_t i, int64_t *from, int64_t *to) {
  *from = n * i / pieces;
  *to = n * (i + 1) / pieces;
}
