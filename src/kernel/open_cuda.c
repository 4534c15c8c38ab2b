/* open_cuda.c: the backend of the library natgrad_cuda, which is opened when a context asks for a device. */
#include "kernel/kernel.h"

#include <dlfcn.h>

#define LIBRARY "libnatgrad_cuda.so.0"

/* The library stays open, because a handle would belong to no context. */
ng_status ng_backend_load(const char *path, char *message, size_t size, ng_backend *out) {
  const ng_backend *(*backend)(int32_t version);
  void *library = dlopen(path != NULL ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    return ng_fail_to(message, size, NG_ERR_ABSENT, "linalg = cuda: the library does not open: %s",
                      dlerror());
  }
  void *symbol = dlsym(library, "ng_cuda_backend");
  memcpy(&backend, &symbol, sizeof backend); /* ISO C has no cast to a function pointer */
  const ng_backend *made = symbol == NULL ? NULL : backend(NG_VERSION);
  if (made == NULL) {
    return ng_fail_to(message, size, NG_ERR_ABSENT,
                      "linalg = cuda: %s is not of version %d.%d.%d, as this library is",
                      path != NULL ? path : LIBRARY, NG_VERSION_MAJOR, NG_VERSION_MINOR,
                      NG_VERSION_PATCH);
  }
  *out = *made;
  out->under = ng_backend_at(0);
  out->host = out->under->linalg;
  return NG_OK;
}
