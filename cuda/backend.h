/* backend.h: a queue whose kernels run on a device.
 *
 * In:   a queue; lists of descriptors (kernel/kernel.h); arrays that the device can access (desk.h). Out: the results that
 *       `ref` computes. May call: src/kernel, src/linalg, desk.h. */
#ifndef NG_BACKEND_H
#define NG_BACKEND_H

#include "desk.h"
#include "kernel/kernel.h"

typedef struct ng_device ng_device;

/* Open device `index`. Return NULL, or the text of an error that is valid until the next call. */
const char *ng_device_open(int32_t index, ng_device **out);
void ng_device_close(ng_device *d); /* wait for the device, then close it; d may be NULL */
dv_desk *ng_device_desk(ng_device *d);
/* The kernels run on device 0; the linear algebra runs on the host, at once. Memory is the host's. */
extern const ng_backend ng_backend_device;
/* Return the text of the first error of an entry since the device was opened, or NULL. After an error no work runs. */
const char *ng_device_error(const ng_device *d);

#endif
