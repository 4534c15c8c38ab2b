/* context.c: create and destroy a context: backend, memory, threads, log, transports.
 *
 * The library has no mutable globals: all state belongs to a context.  The environment variables NG_THREADS, NG_LINALG
 * and NG_LOG are read here only.  Errors before the context exists are written to the caller's buffer. */
#include "comm/comm.h"
#include "core/core.h"
#include "family/family.h"
#include "kernel/kernel.h"
#include "option/option.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- create, destroy -------------------------------------------------------------------------*/

static const char *const log_level_names[] = {"none", "error", "warn", "info", "trace"};

/* The config overrides NG_THREADS and NG_LINALG.  NG_LOG overrides the config, so that the user of a program can see
 * its log without changing the program. */
static ng_status read_environment(ng_context_config *c, char *message, size_t size) {
  const char *threads = getenv("NG_THREADS");
  if (threads != NULL && c->threads == 0) {
    double n;
    if (!ng_read_whole(threads, &n) || n < 1 || n > 1024) {
      return ng_fail_to(message, size, NG_ERR_ARG,
                        "NG_THREADS is '%s', expected a whole number from 1 to 1024", threads);
    }
    c->threads = (int32_t)n;
  }
  if (c->linalg == NULL) c->linalg = getenv("NG_LINALG");
  const char *log = getenv("NG_LOG");
  if (log != NULL) {
    int32_t i = 0;
    while (i < 5 && !ng_is(log, log_level_names[i])) {
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
                      "ng_context_config: set both alloc and free, or neither");
  }
  if ((c->device_alloc == NULL) != (c->device_free == NULL)) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_context_config: set both device_alloc and device_free, or neither");
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

/* The context and the objects that it points to, in one allocation. */
typedef struct context_memory {
  ng_context ctx;
  ng_comm comm, model, stages;
  ng_backend loaded; /* the backend of the library natgrad_cuda */
  ng_queue queue;
} context_memory;

/* Run n tasks of the queue on the threads of the context. */
static void run_tasks(void *ctx, int32_t n, void (*task)(void *arg, int32_t i), void *arg) {
  ng_parallel(ctx, n, task, arg);
}

/* The pool allocates through the context, which counts the bytes. */
static void *counted_alloc(void *ctx, size_t bytes) { return ng_alloc(ctx, bytes); }
static void counted_free(void *ctx, void *ptr, size_t bytes) { ng_free(ctx, ptr, bytes); }

/* Return whether `name` is "cuda" or "cuda:INDEX"; set the index. */
static bool is_cuda(const char *name, int32_t *index) {
  double n = 0.0;
  if (name == NULL || strncmp(name, "cuda", 4) != 0) return false;
  if (name[4] != '\0' && (name[4] != ':' || !ng_read_whole(name + 5, &n) || n < 0 || n > 1023))
    return false;
  *index = (int32_t)n;
  return true;
}

/* Set the backend called `name`, which may be *loaded.  The message of an error names the source of `name` and the valid
 * names. */
static ng_status find_backend(const ng_backend *const *more, const char *name, bool from_config,
                              char *message, size_t size, ng_backend *loaded, ng_queue *q) {
  char names[64] = "";
  q->backend = ng_backend_find(more, name);
  if (q->backend != NULL) return NG_OK;
  if (is_cuda(name, &q->device_index)) {
    q->backend = loaded;
    return ng_backend_load(getenv("NG_CUDA_LIBRARY"), message, size, loaded);
  }
  for (int32_t i = 0; ng_backend_at(i) != NULL; i++) {
    ng_name_append(names, sizeof names, ng_backend_at(i)->name);
    ng_name_append(names, sizeof names, ", ");
  }
  return ng_fail_to(message, size, NG_ERR_ABSENT,
                    "%s is '%s', which is not built in; expected %scuda or cuda:INDEX",
                    from_config ? "linalg" : "NG_LINALG", ng_shorten(name).text, names);
}

/* Open the queue of the backend; on the host, refuse a stream of a device. */
static ng_status open_queue(ng_queue *q, void *stream, char *message, size_t size) {
  const char *name = q->backend->name;
  if (stream != NULL && q->backend->under == NULL) {
    /* without a stream the library could read an array before the device has written it */
    return ng_fail_to(message, size, NG_ERR_ABSENT,
                      "ng_context_config: queue is set, and linalg = %s has no device; leave it "
                      "NULL",
                      name);
  }
  q->stream = stream;
  const char *error = q->backend->open == NULL ? NULL : q->backend->open(q);
  if (error == NULL) return NG_OK;
  const ng_status wrong = q->is_out_of_memory ? NG_ERR_NOMEM : NG_ERR_ABSENT;
  const ng_status st = ng_fail_to(message, size, wrong, "linalg = %s: %s", name, error);
  if (q->backend->close != NULL) q->backend->close(q);
  return st;
}

static void close_queue(ng_queue *q) {
  if (q->backend->close != NULL) q->backend->close(q);
}

ng_status ng_context_create(int32_t header_version, const ng_context_config *config, char *message,
                            size_t size, ng_context **out) {
  return ng_context_create_with(NULL, header_version, config, message, size, out);
}

/* Refuse a caller with a newer header (major and minor version): it may call functions that this library lacks.  An
 * older header is supported by struct_size. */
ng_status ng_context_create_with(const ng_backend *const *more, int32_t header_version,
                                 const ng_context_config *config, char *message, size_t size,
                                 ng_context **out) {
  if (out == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_context: out is NULL");
  *out = NULL;
  if (header_version / 100 > NG_VERSION / 100) {
    return ng_fail_to(message, size, NG_ERR_STATE,
                      "the header is version %d.%d, this library is %d.%d; install the newer one",
                      header_version / 10000, header_version / 100 % 100, NG_VERSION_MAJOR,
                      NG_VERSION_MINOR);
  }
  ng_context_config c;
  ng_context_config_init(&c, sizeof c);
  ng_status st = NG_OK;
  if (config != NULL) {
    st = ng_struct_read(&c, sizeof c, config, offsetof(ng_context_config, threads),
                        "ng_context_config", message, size);
  }
  if (st == NG_OK) st = check_config(&c, message, size);
  /* if false, the backend's name comes from the environment variable NG_LINALG */
  const bool from_config = c.linalg != NULL;
  if (st == NG_OK) st = read_environment(&c, message, size);
  ng_backend loaded = {0};
  ng_queue queue = {0};
  if (st == NG_OK) st = find_backend(more, c.linalg, from_config, message, size, &loaded, &queue);
  if (st != NG_OK) return st;
  ng_comm comm, model, stages;
  st = ng_comm_init(&comm, c.transport, message, size);
  if (st == NG_OK) st = ng_comm_init(&model, c.model_group, message, size);
  if (st == NG_OK) st = ng_comm_init(&stages, c.stage_group, message, size);
  if (st != NG_OK) return st;
  if (model.size > comm.size) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_context_config: model_group has %d ranks, expected at most the %d ranks "
                      "of transport",
                      model.size, comm.size);
  }

  queue.memory = (ng_device_memory){c.device_alloc, c.device_free, c.device_user};
  st = open_queue(&queue, c.queue, message, size);
  if (st != NG_OK) return st;
  if (c.alloc == NULL) {
    /* Choose the allocator after open_queue, because the memory of a device can only be allocated when the device is
     * open. */
    c.alloc = queue.backend->alloc;
    c.free = queue.backend->free;
    c.alloc_user = queue.device;
  }
  if (c.threads == 0) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    c.threads = online < 1 ? 1 : online > 1024 ? 1024 : (int32_t)online;
  }
  /* ng_alloc cannot count these bytes, because its counters are part of the context */
  context_memory *made = c.alloc(c.alloc_user, sizeof *made);
  if (made == NULL) {
    close_queue(&queue);
    return ng_fail_to(message, size, NG_ERR_NOMEM, "ng_context: no memory");
  }
  memset(made, 0, sizeof *made);
  ng_context *ctx = &made->ctx;
  ctx->config = c;
  /* NULL, because ctx->comm has a copy of the transport; the caller's pointer may expire */
  ctx->config.transport = ctx->config.model_group = ctx->config.stage_group = NULL;
  made->comm = comm;
  made->model = model;
  ctx->comm = &made->comm;
  ctx->model = c.model_group == NULL ? NULL : &made->model;
  made->stages = stages;
  ctx->stages = c.stage_group == NULL ? NULL : &made->stages;
  made->loaded = loaded;
  made->queue = queue;
  made->queue.run = run_tasks;
  made->queue.executor = ctx;
  if (queue.backend == &loaded) made->queue.backend = &made->loaded;
  ctx->queue = &made->queue;
  ctx->rank = comm.rank;
  ctx->ranks = comm.size;
  ng_process_mark(ctx);
  ctx->allocated_bytes = ctx->peak_bytes = (int64_t)sizeof *made;
  ctx->allocations = 1;
  /* fewer threads than requested are only a warning: a container may limit the number of threads */
  if (c.parallel_for == NULL && c.threads > 1) {
    const ng_pool_alloc from = {counted_alloc, counted_free, ctx};
    ctx->pool = ng_pool_create(c.threads, &from);
    if (ctx->pool == NULL) {
      ng_context_destroy(&ctx);
      return ng_fail_to(message, size, NG_ERR_NOMEM, "ng_context: no memory for threads");
    }
    ctx->config.threads = ng_pool_threads(ctx->pool);
    if (ctx->config.threads < c.threads) {
      ng_log(ctx, NG_LOG_WARN, "pool: threads = %d wanted = %d", ctx->config.threads, c.threads);
    }
  }
  made->queue.threads = ctx->config.threads;
  ng_family_register_own(ctx);
  ng_warn_unknown_variables(ctx);
  ng_log(ctx, NG_LOG_INFO, "context: linalg = %s threads = %d ranks = %d",
         made->queue.backend->name, ctx->config.threads, ctx->ranks);
  *out = ctx;
  return NG_OK;
}

/* Destroy the pool first, because its memory is counted in the context.  A forked child does not have its threads. */
void ng_context_destroy(ng_context **ctx) {
  if (ctx == NULL || *ctx == NULL) return;
  ng_context *c = *ctx;
  *ctx = NULL;
  if (ng_is_creating_process(c)) {
    ng_pool_destroy(c->pool);
  } else {
    ng_pool_leave(c->pool);
  }
  ng_process_unmark(c);
  /* the memory belongs to the device, so the device closes last */
  ng_queue queue = *c->queue;
  const ng_backend backend = *queue.backend;
  queue.backend = &backend;
  /* ctx is the first member of context_memory, so both have the same address */
  c->config.free(c->config.alloc_user, c, sizeof(context_memory));
  close_queue(&queue);
}

int32_t ng_context_threads(const ng_context *ctx) { return ctx == NULL ? 1 : ctx->config.threads; }

void ng_context_allocated(const ng_context *ctx, int64_t *bytes, int64_t *peak, int64_t *calls) {
  if (bytes != NULL) *bytes = ctx == NULL ? 0 : ctx->allocated_bytes;
  if (peak != NULL) *peak = ctx == NULL ? 0 : ctx->peak_bytes;
  if (calls != NULL) *calls = ctx == NULL ? 0 : ctx->allocations;
}
