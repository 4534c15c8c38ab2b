/* stage.h: memory for the entries of backend.c: descriptors on their way to the device, and scratch. */
#ifndef NG_STAGE_H
#define NG_STAGE_H

#include "backend.h"
#include "device.h"

/* Descriptors are written to `host` and copied to the same offset of `device`. Both buffers are used from the beginning
 * after each wait. */
struct ng_device {
  dv_desk *desk;
  char *host, *device, *scratch;
  size_t used, sent, scratch_used; /* bytes; `sent` of `used` are copied */
  ng_linalg_ops la;
  char error[200]; /* "": none */
};

/* Take memory for n objects. Return NULL after an error. */
void *ng_stage_take(ng_device *d, int64_t n, size_t size);
void *ng_stage_scratch(ng_device *d, int64_t n, size_t size);
/* Return the address on the device of descriptors at `host`. */
void *ng_stage_address(const ng_device *d, const void *host);
/* Note an error text, if there is one and it is the first. */
void ng_stage_check(ng_device *d, const char *error);
/* Copy the new descriptors, then run a kernel with DV_THREADS threads a block. */
void ng_stage_launch(ng_device *d, const char *kernel, int64_t blocks, void **args);
void ng_stage_wait(ng_device *d);
/* Make room for the descriptors of an entry; return false after an error. */
bool ng_stage_begin(ng_device *d);

#endif
