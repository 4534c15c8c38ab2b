/* kernels.h: loop over the backends of late.h, with one piece and with three pieces of a loop.
 *
 *     EACH_QUEUE(q) { ng_kernels(&q)->find_largest(&q, &array, 1, &out); ng_queue_wait(&q); assert... }
 */
#ifndef TESTS_KERNELS_H
#define TESTS_KERNELS_H

#include "late.h"

/* Return queue `i`: 1 thread on each backend, then 3 threads; the pieces run one after the other. No backend: the end. */
static inline ng_queue kernels_queue(int i) {
  return (ng_queue){.backend = test_backend(i / 2), .threads = i % 2 == 0 ? 1 : 3};
}
enum { KERNELS_QUEUES = 16 }; /* largest number of queues; t_sym checks it */
#define EACH_QUEUE(q)                                                                              \
  for (int q_ = 0; test_backend(q_ / 2) != NULL; q_++)                                             \
    for (ng_queue q = kernels_queue(q_), *in_ = &q; in_ != NULL; in_ = NULL)

/* Return the index of the last queue. */
static inline int kernels_last_queue(void) {
  int i = 0;
  while (test_backend(i / 2) != NULL) {
    i++;
  }
  return i - 1;
}

enum { KERNELS_FIRST = -1 };
/* EACH_QUEUE after a device: the stand-in of standin.c, or a GPU (bench/gpu.sh).  The device has no window kernels. */
ng_queue kernels_device(void);
static inline ng_queue kernels_queue_or_device(int i) {
  return i < 0 ? kernels_device() : kernels_queue(i);
}
#define EACH_QUEUE_AND_DEVICE(q)                                                                   \
  for (int q_ = KERNELS_FIRST; q_ < 0 || test_backend(q_ / 2) != NULL; q_++)                       \
    for (ng_queue q = kernels_queue_or_device(q_), *in_ = &q; in_ != NULL; in_ = NULL)
/* Loop over the queues of EACH_QUEUE, and then over the queue of the device. */
#define EACH_QUEUE_THEN_DEVICE(q)                                                                  \
  for (int q_ = 0, last_ = kernels_last_queue(); q_ <= last_ - KERNELS_FIRST; q_++)                \
    for (ng_queue q = q_ <= last_ ? kernels_queue(q_) : kernels_device(), *in_ = &q; in_ != NULL;  \
         in_ = NULL)
/* Fail if an entry of the device failed. */
void kernels_check_device(void);

#endif
