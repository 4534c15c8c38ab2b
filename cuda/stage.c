/* stage.c: see stage.h. */
#include "stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE = 64 << 20, SCRATCH = 256 << 20, ALIGN = 256 };

void ng_stage_keep_error(ng_device *d, const char *error) {
  if (error != NULL && d->error[0] == '\0') (void)snprintf(d->error, sizeof d->error, "%s", error);
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
  ng_stage_keep_error(d, dv_wait(d->desk));
  d->used = d->sent = d->scratch_used = 0;
}

bool ng_stage_begin(ng_device *d) {
  if (d->used > STAGE / 2 || d->scratch_used > SCRATCH / 2) ng_stage_wait(d);
  return d->error[0] == '\0';
}

/* ---- the device ------------------------------------------------------------------------------*/

static const char *open_stage(ng_device *d, int32_t index, void *stream) {
  const char *error = dv_open(index, stream, &d->desk);
  if (error == NULL) error = dv_blas_open(d->desk, &d->blas);
  if (error == NULL) error = dv_alloc_host(d->desk, STAGE, (void **)&d->host);
  if (error == NULL) error = dv_alloc(d->desk, STAGE, (void **)&d->device);
  if (error == NULL) error = dv_alloc(d->desk, SCRATCH, (void **)&d->scratch);
  return error;
}

const char *ng_device_open(int32_t index, void *stream, ng_device **out) {
  static _Thread_local char message[200];
  ng_device *d = calloc(1, sizeof *d);
  *out = NULL;
  if (d == NULL) return "out of memory";
  ng_stage_keep_error(d, open_stage(d, index, stream));
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
    dv_free(d->desk, d->device);
    dv_free(d->desk, d->scratch);
    ng_device_free_pages(d);
    dv_close(d->desk);
  }
  free(d);
}

dv_desk *ng_device_desk(ng_device *d) { return d->desk; }
const char *ng_device_error(const ng_device *d) { return d->error[0] != '\0' ? d->error : NULL; }
