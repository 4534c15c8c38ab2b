/* kernels.h: loop over the implementations of kernel/kernel.h, on the host with one piece and with three pieces of a loop.
 *
 *     EACH_QUEUE(q) { ng_kernels(&q)->scan(&q, &array, 1, &out); ng_queue_wait(&q); assert... }
 */
#ifndef TESTS_KERNELS_H
#define TESTS_KERNELS_H

#include "kernel/kernel.h"

/* Return queue `i` of 4: cpu and ref, each with 1 and 3 threads; the pieces run one after the other. */
static inline ng_queue kernels_queue(int i) {
  const char *name = i < 2 ? "cpu" : "ref";
  const ng_linalg_ops *la = ng_linalg_find(name);
  return (ng_queue){.la = la != NULL ? la : &ng_linalg_ref,
                    .kernels = ng_kernels_find(name),
                    .threads = i % 2 == 0 ? 1 : 3};
}
#define EACH_QUEUE(q)                                                                              \
  for (int q_ = 0; q_ < 4; q_++)                                                                   \
    for (ng_queue q = kernels_queue(q_), *in_ = &q; in_ != NULL; in_ = NULL)

/* The thread sanitizer does not know the fibers of the stand-in. */
#if defined(__SANITIZE_THREAD__)
enum { KERNELS_FIRST = 0 };
#else
enum { KERNELS_FIRST = -1 };
#endif
/* EACH_QUEUE after a device: the stand-in of standin.c, or a GPU (bench/gpu.sh).  The device has no window kernels. */
ng_queue kernels_device(void);
static inline ng_queue kernels_queue_or_device(int i) {
  return i < 0 ? kernels_device() : kernels_queue(i);
}
#define EACH_QUEUE_AND_DEVICE(q)                                                                   \
  for (int q_ = KERNELS_FIRST; q_ < 4; q_++)                                                       \
    for (ng_queue q = kernels_queue_or_device(q_), *in_ = &q; in_ != NULL; in_ = NULL)
/* Fail if an entry of the device failed. */
void kernels_check_device(void);

#endif
