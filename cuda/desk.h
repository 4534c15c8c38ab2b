/* desk.h: a desk is one open device with a stream: memory, copies, launches, waits.
 *
 * Two implementations: desk_cuda.c by the CUDA driver, tests/standin.c without a device. Copies and launches run in the
 * order of calls, perhaps after the call has returned; dv_wait waits until all are done. A call returns NULL, or an error
 * text that is valid until the next call. */
#ifndef NG_DESK_H
#define NG_DESK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dv_desk dv_desk;

/* stream: of the caller, for all work; NULL: a stream of the desk. *out: NULL after an error. */
const char *dv_open(int32_t index, void *stream, dv_desk **out);
void dv_close(dv_desk *d); /* d may be NULL */
const char *dv_name(const dv_desk *d);
/* For libraries that run on the device (blas_cuda.c). dv_use: make the device current in this thread. dv_stream: return the
 * stream of all work. */
const char *dv_use(dv_desk *d);
void *dv_stream(const dv_desk *d);

/* Memory of the device; memory of the host that the device can read; existing memory of the host, made accessible. */
const char *dv_alloc(dv_desk *d, size_t bytes, void **out);
const char *dv_alloc_host(dv_desk *d, size_t bytes, void **out);
void dv_free(dv_desk *d, void *at);
void dv_free_host(dv_desk *d, void *at);
const char *dv_register_host(dv_desk *d, void *at, size_t bytes);
/* Memory whose pages move between device and host: the host may access the memory after dv_wait. dv_free frees it. */
const char *dv_alloc_managed(dv_desk *d, size_t bytes, void **out);
/* dv_can_access: return whether the device can access memory of the caller. dv_is_shared: return whether the host can access it
 * after dv_wait. NULL: true. */
bool dv_can_access(dv_desk *d, const void *at);
bool dv_is_shared(dv_desk *d, const void *at);

const char *dv_copy(dv_desk *d, void *to, const void *from,
                    size_t bytes); /* host or device, both ways */
const char *dv_zero(dv_desk *d, void *at, size_t bytes);
/* Run `blocks` blocks of `threads` threads of a kernel; args: addresses of its arguments, read before the return. */
const char *dv_launch(dv_desk *d, const char *kernel, int64_t blocks, int32_t threads, void **args);
const char *dv_wait(dv_desk *d);

/* For benchmarks. dv_note_time: note the time at mark 0 or 1. dv_seconds_between: wait; *seconds <- the time from mark 0 to mark 1.
 * dv_graph_begin and dv_graph_end record the launches in between; dv_graph_replay runs them. */
const char *dv_note_time(dv_desk *d, int32_t mark);
const char *dv_seconds_between(dv_desk *d, double *seconds);
const char *dv_graph_begin(dv_desk *d);
const char *dv_graph_end(dv_desk *d);
const char *dv_graph_replay(dv_desk *d);

#endif
