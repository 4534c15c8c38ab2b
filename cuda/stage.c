/* stage.c: see stage.h. */
#include "stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE = 64 << 20, SCRATCH = 256 << 20, ALIGN = 256 };

static void keep_error_of(ng_device *d, ng_block_names of, const char *error) {
  if (error == NULL || d->error[0] != '\0') return;
  if (of.first == NULL) {
    (void)snprintf(d->error, sizeof d->error, "%s", error);
  } else if (strcmp(of.first, of.last) == 0) {
    (void)snprintf(d->error, sizeof d->error, "block '%s': %s", of.first, error);
  } else {
    (void)snprintf(d->error, sizeof d->error, "blocks '%s' to '%s': %s", of.first, of.last, error);
  }
}
/* Mark the work of the named blocks as pending. A list of blocks is in the order of the model, so it contains all others. */
static void note_pending(ng_device *d) {
  ng_block_names *all = &d->pending;
  if (d->named.first == NULL) return;
  if (all->first == NULL || d->named.first != d->named.last) {
    *all = d->named;
  } else if (!d->pending_is_list) {
    all->last = d->named.last;
  }
  d->pending_is_list = d->pending_is_list || d->named.first != d->named.last;
}

void ng_stage_keep_error(ng_device *d, const char *error) {
  keep_error_of(d, d->named, error);
  note_pending(d);
}

static void *take(ng_device *d, char *from, size_t *used, size_t most, int64_t n, size_t size) {
  const size_t bytes = ((size_t)n * size + ALIGN - 1) / ALIGN * ALIGN;
  if (bytes > most - *used) {
    ng_stage_keep_error(d, most == STAGE ? "the descriptors of one call need more than 64 MiB"
                                         : "an entry needs more than 256 MiB of scratch");
    return NULL;
  }
  *used += bytes;
  return from + *used - bytes;
}
void *ng_stage_allocate(ng_device *d, int64_t n, size_t size) {
  return take(d, d->host, &d->used, STAGE, n, size);
}
void *ng_stage_scratch(ng_device *d, int64_t n, size_t size) {
  return take(d, d->scratch, &d->scratch_used, SCRATCH, n, size);
}

int64_t ng_stage_scratch_left(const ng_device *d) { return (int64_t)(SCRATCH - d->scratch_used); }

void *ng_stage_address(const ng_device *d, const void *host) {
  return d->device + ((const char *)host - d->host);
}

void ng_stage_launch(ng_device *d, const char *kernel, int64_t blocks, void **args) {
  if (d->error[0] != '\0' || blocks == 0) return;
  if (d->sent < d->used) {
    ng_stage_keep_error(
        d, dv_copy(d->desk, d->device + d->sent, d->host + d->sent, d->used - d->sent));
    d->sent = d->used;
  }
  ng_stage_keep_error(d, dv_launch(d->desk, kernel, blocks, DV_THREADS, args));
}

void ng_stage_zero(ng_device *d, void *at, size_t bytes) {
  if (d->error[0] == '\0') ng_stage_keep_error(d, dv_zero(d->desk, at, bytes));
}
void ng_stage_copy(ng_device *d, void *to, const void *from, size_t bytes) {
  if (d->error[0] == '\0') ng_stage_keep_error(d, dv_copy(d->desk, to, from, bytes));
}

void ng_stage_wait(ng_device *d) {
  keep_error_of(d, d->pending, dv_wait(d->desk));
  d->pending = (ng_block_names){NULL, NULL};
  d->pending_is_list = false;
  d->used = d->sent = d->scratch_used = 0;
}

bool ng_stage_begin(ng_device *d) {
  if (d->used > STAGE / 2 || d->scratch_used > SCRATCH / 2) ng_stage_wait(d);
  return d->error[0] == '\0';
}

/* ---- the device ------------------------------------------------------------------------------*/

/* Memory that the host never accesses: of the caller's allocator, or of the desk. */
static const char *alloc_on_device(ng_device *d, size_t bytes, char **out) {
  if (d->memory.alloc == NULL) return dv_alloc(d->desk, bytes, (void **)out);
  *out = d->memory.alloc(d->memory.user, bytes);
  return *out != NULL ? NULL : "device_alloc returned NULL";
}
static void free_on_device(ng_device *d, char *at, size_t bytes) {
  if (at != NULL && d->memory.alloc != NULL) {
    d->memory.free(d->memory.user, at, bytes);
  } else {
    dv_free(d->desk, at);
  }
}

/* Return whether memory was allocated, given the error of the allocation. */
static bool keep_memory_error(ng_device *d, size_t bytes, const char *what, const char *error) {
  if (error != NULL)
    (void)snprintf(d->error, sizeof d->error, "no memory for %zu MiB of %s: %s", bytes >> 20, what,
                   error);
  return error == NULL;
}

static void open_stage(ng_device *d, ng_queue *q) {
  const char *error = dv_open(q->device_index, q->stream, &d->desk);
  if (error == NULL) error = dv_blas_open(d->desk, &d->blas);
  ng_stage_keep_error(d, error);
  if (error != NULL) return;
  q->is_out_of_memory = !keep_memory_error(d, STAGE, "descriptors on the host",
                                           dv_alloc_host(d->desk, STAGE, (void **)&d->host)) ||
                        !keep_memory_error(d, STAGE, "descriptors on the device",
                                           alloc_on_device(d, STAGE, &d->device)) ||
                        !keep_memory_error(d, SCRATCH, "scratch on the device",
                                           alloc_on_device(d, SCRATCH, &d->scratch));
}

const char *ng_device_open(ng_queue *q, ng_device **out) {
  static _Thread_local char message[sizeof(((ng_device *)0)->error)];
  ng_device *d = calloc(1, sizeof *d);
  *out = NULL;
  if (d == NULL) return "out of memory";
  d->memory = q->memory;
  open_stage(d, q);
  if (d->error[0] == '\0') {
    *out = d;
    return NULL;
  }
  (void)snprintf(message, sizeof message, "%s", d->error);
  ng_device_close(d);
  return message;
}

void ng_device_close(ng_device *d) {
  if (d == NULL) return;
  if (d->desk != NULL) {
    (void)dv_wait(d->desk);
    dv_blas_close(d->blas);
    dv_free_host(d->desk, d->host);
    free_on_device(d, d->device, STAGE);
    free_on_device(d, d->scratch, SCRATCH);
    ng_device_free_pages(d);
    dv_close(d->desk);
  }
  free(d);
}

dv_desk *ng_device_desk(ng_device *d) { return d->desk; }
const char *ng_device_error(const ng_device *d) { return d->error[0] != '\0' ? d->error : NULL; }
