/* context.c: what a preconditioner stands on: memory, threads, log, linear algebra, transport.
 *
 * Everything that changes hangs from the context; the library has no globals.  The environment is
 * read once, here: NG_THREADS, NG_LINALG, NG_LOG. */
#include "internal.h"
#include "options.h"

#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- memory ---------------------------------------------------------------------------------*/

static void *standard_alloc(void *user, size_t bytes) {
  void *p = NULL;
  (void)user;
  return posix_memalign(&p, NG_ALIGN, bytes) == 0 ? p : NULL;
}

static void standard_free(void *user, void *p, size_t bytes) {
  (void)user;
  (void)bytes;
  free(p);
}

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

void ng_context_allocated(const ng_context *ctx, int64_t *bytes, int64_t *peak, int64_t *calls) {
  if (bytes != NULL) *bytes = ctx == NULL ? 0 : ctx->bytes;
  if (peak != NULL) *peak = ctx == NULL ? 0 : ctx->peak;
  if (calls != NULL) *calls = ctx == NULL ? 0 : ctx->calls;
}

/* ---- log, clock, loops ----------------------------------------------------------------------*/

void ng_log(ng_context *ctx, ng_log_level level, const char *format, ...) {
  if (ctx->config.log == NULL || level > ctx->config.log_level) return;
  char line[NG_MESSAGE + 64];
  int at = 0;
  if (ctx->comm.size > 1) at = snprintf(line, sizeof line, "[rank %d] ", ctx->comm.rank);
  va_list args;
  va_start(args, format);
  (void)vsnprintf(line + at, sizeof line - (size_t)at, format, args);
  va_end(args);
  ctx->config.log(ctx->config.log_user, level, line);
}

double ng_now_ms(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

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

/* ---- create, destroy -------------------------------------------------------------------------*/

ng_status ng_context_config_init_sized(ng_context_config *c, size_t size) {
  if (c == NULL || size < sizeof(size_t)) return NG_ERR_ARG;
  memset(c, 0, size);
  const size_t given = size;
  memcpy(c, &given, sizeof given);
  if (size >= offsetof(ng_context_config, log_level) + sizeof c->log_level) {
    c->log_level = NG_LOG_WARN;
  }
  return NG_OK;
}

static const char *const level_name[] = {"none", "error", "warn", "info", "trace"};

static ng_status read_environment(ng_context_config *c, char *message, size_t size) {
  const char *threads = getenv("NG_THREADS");
  if (threads != NULL && c->threads == 0) {
    char *end = NULL;
    const long n = strtol(threads, &end, 10);
    if (end == threads || *end != 0 || n < 1 || n > 1024) {
      return ng_fail_to(message, size, NG_ERR_ARG,
                        "NG_THREADS is '%s', expected a whole number from 1 to 1024", threads);
    }
    c->threads = (int32_t)n;
  }
  if (c->linalg == NULL) c->linalg = getenv("NG_LINALG");
  const char *log = getenv("NG_LOG");
  if (log != NULL) {
    int32_t i = 0;
    while (i < 5 && !ng_is(log, level_name[i])) {
      i++;
    }
    if (i == 5) {
      return ng_fail_to(message, size, NG_ERR_ARG,
                        "NG_LOG is '%s', expected none, error, warn, info or trace", log);
    }
    c->log_level = (ng_log_level)i;
  }
  return NG_OK;
}

static ng_status check_config(const ng_context_config *c, char *message, size_t size) {
  if ((c->alloc == NULL) != (c->free == NULL)) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_context_config: give both alloc and free, or neither");
  }
  if (c->threads < 0 || c->threads > 1024) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_context_config: threads is %d, expected 0 to 1024", c->threads);
  }
  if (c->log_level < NG_LOG_NONE || c->log_level > NG_LOG_TRACE) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_context_config: log_level is %d, expected 0 to 4", (int)c->log_level);
  }
  return NG_OK;
}

static void *counted_alloc(void *ctx, size_t bytes) { return ng_alloc(ctx, bytes); }
static void counted_free(void *ctx, void *ptr, size_t bytes) { ng_free(ctx, ptr, bytes); }

ng_status ng_context_create_for(int32_t header_version, const ng_context_config *config,
                                char *message, size_t message_size, ng_context **out) {
  if (out == NULL) return ng_fail_to(message, message_size, NG_ERR_ARG, "ng_context: out is NULL");
  *out = NULL;
  if (header_version / 100 > NG_VERSION / 100) {
    return ng_fail_to(message, message_size, NG_ERR_STATE,
                      "the header is version %d.%d, this library is %d.%d; install the newer one",
                      header_version / 10000, header_version / 100 % 100, NG_VERSION_MAJOR,
                      NG_VERSION_MINOR);
  }
  ng_context_config c;
  ng_status st = ng_context_config_init_sized(&c, sizeof c);
  if (st == NG_OK && config != NULL) {
    st = ng_take_struct(&c, sizeof c, config, offsetof(ng_context_config, threads),
                        "ng_context_config", message, message_size);
  }
  if (st == NG_OK) st = check_config(&c, message, message_size);
  const bool named = c.linalg != NULL;
  if (st == NG_OK) st = read_environment(&c, message, message_size);
  if (st != NG_OK) return st;
  const ng_linalg_ops *la = ng_linalg_find(c.linalg);
  if (la == NULL) {
    const ng_linalg_ops *best = ng_linalg_find(NULL);
    return ng_fail_to(message, message_size, NG_ERR_ABSENT,
                      "%s is '%s', which is not built in; there is %s%s",
                      named ? "linalg" : "NG_LINALG", ng_quote(c.linalg).text, best->name,
                      best != &ng_linalg_ref ? " and ref" : "");
  }
  ng_comm comm;
  st = ng_comm_init(&comm, c.transport, message, message_size);
  if (st != NG_OK) return st;

  if (c.alloc == NULL) {
    c.alloc = standard_alloc;
    c.free = standard_free;
  }
  if (c.threads == 0) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    c.threads = online < 1 ? 1 : online > 1024 ? 1024 : (int32_t)online;
  }
  ng_context *ctx = c.alloc(c.alloc_user, sizeof *ctx);
  if (ctx == NULL) {
    return ng_fail_to(message, message_size, NG_ERR_NOMEM, "ng_context: no memory");
  }
  memset(ctx, 0, sizeof *ctx);
  ctx->config = c;
  ctx->config.transport = NULL; /* copied into comm */
  ctx->la = la;
  ctx->comm = comm;
  ctx->bytes = ctx->peak = (int64_t)sizeof *ctx;
  ctx->calls = 1;
  if (c.parallel_for == NULL && c.threads > 1) {
    const ng_pool_alloc from = {counted_alloc, counted_free, ctx};
    ctx->pool = ng_pool_create(c.threads, &from);
    if (ctx->pool == NULL) {
      ng_context_destroy(&ctx);
      return ng_fail_to(message, message_size, NG_ERR_NOMEM, "ng_context: no memory for threads");
    }
    ctx->config.threads = ng_pool_threads(ctx->pool);
    if (ctx->config.threads < c.threads) {
      ng_log(ctx, NG_LOG_WARN, "pool: threads = %d wanted = %d", ctx->config.threads, c.threads);
    }
  }
  ng_log(ctx, NG_LOG_INFO, "context: linalg = %s threads = %d ranks = %d", la->name,
         ctx->config.threads, ctx->comm.size);
  *out = ctx;
  return NG_OK;
}

void ng_context_destroy(ng_context **ctx) {
  if (ctx == NULL || *ctx == NULL) return;
  ng_context *c = *ctx;
  *ctx = NULL;
  ng_pool_destroy(c->pool);
  c->config.free(c->config.alloc_user, c, sizeof *c);
}
