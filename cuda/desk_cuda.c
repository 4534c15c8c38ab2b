/* desk_cuda.c: the operations of desk.h by the CUDA driver.
 *
 * dlopen opens libcuda.so.1, so a build needs only nvcc. Source of all functions and constants: the CUDA Driver API. The
 * context is the primary context of the device, which PyTorch uses, too. */
#include "desk.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* X(name, symbol, arguments): the functions of the driver. */
#define DRIVER(X)                                                                                  \
  X(init, "cuInit", (unsigned))                                                                    \
  X(device, "cuDeviceGet", (int *, int))                                                           \
  X(device_name, "cuDeviceGetName", (char *, int, int))                                            \
  X(property, "cuDeviceGetAttribute", (int *, int, int))                                           \
  X(context, "cuDevicePrimaryCtxRetain", (void **, int))                                           \
  X(use, "cuCtxSetCurrent", (void *))                                                              \
  X(load, "cuModuleLoadData", (void **, const void *))                                             \
  X(function, "cuModuleGetFunction", (void **, void *, const char *))                              \
  X(launch, "cuLaunchKernel",                                                                      \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,         \
     void **, void **))                                                                            \
  X(alloc, "cuMemAlloc_v2", (unsigned long long *, size_t))                                        \
  X(alloc_host, "cuMemHostAlloc", (void **, size_t, unsigned))                                     \
  X(alloc_managed, "cuMemAllocManaged", (unsigned long long *, size_t, unsigned))                  \
  X(attribute, "cuPointerGetAttribute", (void *, int, unsigned long long))                         \
  X(release, "cuMemFree_v2", (unsigned long long))                                                 \
  X(release_host, "cuMemFreeHost", (void *))                                                       \
  X(unload, "cuModuleUnload", (void *))                                                            \
  X(end_stream, "cuStreamDestroy_v2", (void *))                                                    \
  X(end_event, "cuEventDestroy_v2", (void *))                                                      \
  X(end_graph, "cuGraphExecDestroy", (void *))                                                     \
  X(end_captured, "cuGraphDestroy", (void *))                                                      \
  X(end_context, "cuDevicePrimaryCtxRelease_v2", (int))                                            \
  X(register_host, "cuMemHostRegister_v2", (void *, size_t, unsigned))                             \
  X(copy, "cuMemcpyAsync", (unsigned long long, unsigned long long, size_t, void *))               \
  X(set, "cuMemsetD8Async", (unsigned long long, unsigned char, size_t, void *))                   \
  X(stream, "cuStreamCreate", (void **, unsigned))                                                 \
  X(wait, "cuStreamSynchronize", (void *))                                                         \
  X(event, "cuEventCreate", (void **, unsigned))                                                   \
  X(record, "cuEventRecord", (void *, void *))                                                     \
  X(elapsed, "cuEventElapsedTime", (float *, void *, void *))                                      \
  X(capture, "cuStreamBeginCapture_v2", (void *, int))                                             \
  X(captured, "cuStreamEndCapture", (void *, void **))                                             \
  X(instantiate, "cuGraphInstantiateWithFlags", (void **, void *, unsigned long long))             \
  X(replay, "cuGraphLaunch", (void *, void *))                                                     \
  X(error_name, "cuGetErrorName", (int, const char **))

/* KERNELS: an upper bound of the number of kernels; the other names: constants of the CUDA Driver API. */
enum {
  KERNELS = 128,
  MAPPED = 2,
  ATTACH_GLOBAL = 1,
  NO_DEFAULT_STREAM = 1,
  THREAD_LOCAL_CAPTURE = 1,
  CONCURRENT_MANAGED_ACCESS = 89,
  MEMORY_TYPE = 2, /* attributes of a pointer */
  IS_MANAGED = 8,
  DEVICE_ORDINAL = 9,
  ON_DEVICE = 2 /* a memory type */
};
struct dv_desk {
#define FIELD(name, symbol, arguments) int(*name) arguments;
  DRIVER(FIELD)
  int device_index;
  bool owns_queue;
  void *primary, *module, *queue, *mark[2], *graph; /* NULL: not created */
  char title[100], message[200];
  struct {
    const char *name;
    void *function;
  } kernel[KERNELS];
  int32_t kernels;
};

extern const char dv_kernels[]; /* the compiled kernels: kernels.S */

static const char *failed(dv_desk *d, const char *what, int code) {
  const char *name = NULL;
  (void)d->error_name(code, &name);
  (void)snprintf(d->message, sizeof d->message, "%s failed: %s", what, name != NULL ? name : "?");
  return d->message;
}
/* Call a function of the driver; return its error text from the calling function. */
#define TRY(d, name, ...)                                                                          \
  do {                                                                                             \
    const int code_ = (d)->name(__VA_ARGS__);                                                      \
    if (code_ != 0) return failed(d, #name, code_);                                                \
  } while (0)

static unsigned long long address(const void *p) { return (unsigned long long)(uintptr_t)p; }

static const char *load_driver(dv_desk *d) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return "no CUDA driver: libcuda.so.1 is not installed";
#define LOAD(name, symbol, arguments)                                                              \
  {                                                                                                \
    void *at = dlsym(library, symbol);                                                             \
    if (at == NULL) return "the CUDA driver is too old: it has no " symbol;                        \
    memcpy(&d->name, &at, sizeof at);                                                              \
  }
  DRIVER(LOAD)
  return NULL;
}

static const char *open_device(dv_desk *d, int32_t index, void *stream) {
  const char *error = load_driver(d);
  int shares = 0;
  if (error != NULL) return error;
  TRY(d, init, 0);
  TRY(d, device, &d->device_index, index);
  TRY(d, device_name, d->title, (int)sizeof d->title, d->device_index);
  TRY(d, property, &shares, CONCURRENT_MANAGED_ACCESS, d->device_index);
  if (shares == 0) return "host and device cannot access memory at the same time";
  TRY(d, context, &d->primary, d->device_index);
  TRY(d, use, d->primary);
  TRY(d, load, &d->module, dv_kernels);
  d->queue = stream;
  if (stream == NULL) TRY(d, stream, &d->queue, NO_DEFAULT_STREAM);
  d->owns_queue = stream == NULL;
  TRY(d, event, &d->mark[0], 0);
  TRY(d, event, &d->mark[1], 0);
  return NULL;
}

const char *dv_open(int32_t index, void *stream, dv_desk **out) {
  static _Thread_local char message[sizeof(((dv_desk *)0)->message)];
  dv_desk *d = calloc(1, sizeof *d);
  *out = NULL;
  if (d == NULL) return "out of memory";
  const char *error = open_device(d, index, stream);
  if (error == NULL) {
    *out = d;
    return NULL;
  }
  (void)snprintf(message, sizeof message, "%s", error);
  dv_close(d);
  return message;
}

void dv_close(dv_desk *d) {
  if (d == NULL) return;
  if (d->graph != NULL) (void)d->end_graph(d->graph);
  for (int i = 0; i < 2; i++) {
    if (d->mark[i] != NULL) (void)d->end_event(d->mark[i]);
  }
  if (d->owns_queue) (void)d->end_stream(d->queue);
  if (d->module != NULL) (void)d->unload(d->module);
  if (d->primary != NULL) (void)d->end_context(d->device_index);
  free(d);
}

const char *dv_name(const dv_desk *d) { return d->title; }
const char *dv_use(dv_desk *d) {
  TRY(d, use, d->primary);
  return NULL;
}
void *dv_stream(const dv_desk *d) { return d->queue; }

/* Memory may be allocated by a thread that has used no device before. */
const char *dv_alloc(dv_desk *d, size_t bytes, void **out) {
  unsigned long long at;
  TRY(d, use, d->primary);
  TRY(d, alloc, &at, bytes);
  *out = (void *)(uintptr_t)at;
  return NULL;
}
const char *dv_alloc_managed(dv_desk *d, size_t bytes, void **out) {
  unsigned long long at;
  TRY(d, use, d->primary);
  TRY(d, alloc_managed, &at, bytes, ATTACH_GLOBAL);
  *out = (void *)(uintptr_t)at;
  return NULL;
}
const char *dv_alloc_host(dv_desk *d, size_t bytes, void **out) {
  TRY(d, use, d->primary);
  TRY(d, alloc_host, out, bytes, MAPPED);
  return NULL;
}
const char *dv_register_host(dv_desk *d, void *at, size_t bytes) {
  TRY(d, register_host, at, bytes, MAPPED);
  return NULL;
}
/* Memory that the driver does not know is memory of the host. */
bool dv_can_access(dv_desk *d, const void *at) {
  int type = 0, ordinal = 0;
  unsigned managed = 0;
  if (at == NULL) return true;
  if (d->attribute(&type, MEMORY_TYPE, address(at)) != 0) return false;
  if (type != ON_DEVICE || (d->attribute(&managed, IS_MANAGED, address(at)) == 0 && managed != 0))
    return true;
  return d->attribute(&ordinal, DEVICE_ORDINAL, address(at)) == 0 && ordinal == d->device_index;
}
bool dv_is_shared(dv_desk *d, const void *at) {
  int type = 0;
  unsigned managed = 0;
  if (at == NULL || d->attribute(&type, MEMORY_TYPE, address(at)) != 0 || type != ON_DEVICE)
    return true;
  return d->attribute(&managed, IS_MANAGED, address(at)) == 0 && managed != 0;
}
void dv_free(dv_desk *d, void *at) {
  if (at != NULL) (void)d->release(address(at));
}
void dv_free_host(dv_desk *d, void *at) {
  if (at != NULL) (void)d->release_host(at);
}
const char *dv_copy(dv_desk *d, void *to, const void *from, size_t bytes) {
  TRY(d, use, d->primary);
  TRY(d, copy, address(to), address(from), bytes, d->queue);
  return NULL;
}
const char *dv_zero(dv_desk *d, void *at, size_t bytes) {
  TRY(d, use, d->primary);
  TRY(d, set, address(at), 0, bytes, d->queue);
  return NULL;
}

/* Set *function to a kernel; names are looked up in the module once. */
static const char *find(dv_desk *d, const char *name, void **function) {
  for (int32_t i = 0; i < d->kernels; i++) {
    if (strcmp(d->kernel[i].name, name) == 0) {
      *function = d->kernel[i].function;
      return NULL;
    }
  }
  const int code = d->function(function, d->module, name);
  if (code != 0) return failed(d, name, code);
  d->kernel[d->kernels].name = name;
  d->kernel[d->kernels++].function = *function;
  return NULL;
}

const char *dv_launch(dv_desk *d, const char *kernel, int64_t blocks, int32_t threads,
                      void **args) {
  void *function;
  if (blocks == 0) return NULL;
  TRY(d, use, d->primary);
  const char *error = find(d, kernel, &function);
  if (error != NULL) return error;
  const int code =
      d->launch(function, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0, d->queue, args, NULL);
  return code == 0 ? NULL : failed(d, kernel, code);
}
const char *dv_wait(dv_desk *d) {
  TRY(d, use, d->primary);
  TRY(d, wait, d->queue);
  return NULL;
}
const char *dv_note_time(dv_desk *d, int32_t i) {
  TRY(d, record, d->mark[i], d->queue);
  return NULL;
}
const char *dv_seconds_between(dv_desk *d, double *seconds) {
  float ms;
  TRY(d, wait, d->queue);
  TRY(d, elapsed, &ms, d->mark[0], d->mark[1]);
  *seconds = (double)ms * 1e-3;
  return NULL;
}
const char *dv_graph_begin(dv_desk *d) {
  TRY(d, capture, d->queue, THREAD_LOCAL_CAPTURE);
  return NULL;
}
const char *dv_graph_end(dv_desk *d) {
  void *graph;
  TRY(d, captured, d->queue, &graph);
  const int code = d->instantiate(&d->graph, graph, 0);
  (void)d->end_captured(graph);
  if (code != 0) return failed(d, "instantiate", code);
  return NULL;
}
const char *dv_graph_replay(dv_desk *d) {
  TRY(d, replay, d->graph, d->queue);
  return NULL;
}
