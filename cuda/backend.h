/* backend.h: a queue whose kernels run on a device.
 *
 * In:   a queue; lists of descriptors (kernel/kernel.h); arrays that the device can access (desk.h). Out: the results that
 *       `ref` computes. May call: src/kernel, src/linalg, desk.h. */
#ifndef NG_BACKEND_H
#define NG_BACKEND_H

#include "desk.h"
#include "kernel/kernel.h"

typedef struct ng_device ng_device;

/* Open the device of q (ng_queue.device_index, stream, memory). Without memory set q->is_out_of_memory. Return NULL, or the text of an error that is valid until the next call. */
const char *ng_device_open(ng_queue *q, ng_device **out);
void ng_device_close(ng_device *d); /* wait for the device, then close it; d may be NULL */
dv_desk *ng_device_desk(ng_device *d);
/* The fields `under` and `host` are NULL; open_cuda.c sets them to a backend of the host. */
extern const ng_backend ng_backend_device;
/* memory.c: memory that host and device share, 64-byte aligned. */
void *ng_device_alloc(void *device, size_t bytes);
void ng_device_free(void *device, void *at, size_t bytes);
void ng_device_free_pages(ng_device *d); /* all small blocks */
/* The exported function of the library natgrad_cuda: NULL if the version differs. */
const ng_backend *ng_cuda_backend(int32_t version);
/* Return the text of the first error of an entry since the device was opened, or NULL. After an error no work runs. */
const char *ng_device_error(const ng_device *d);

#endif
