/* late.h: linear algebra and kernels that do all work as late as the queue allows.
 *
 * An entry only notes its arguments, with copies of its lists of descriptors; ng_queue_wait runs the noted calls in
 * order, with another implementation. Code that reads a result, or changes an input, without a wait gets other numbers
 * than with that implementation, on a machine without a device. Each thread has its own list, so ranks may be threads.
 */
#ifndef TESTS_LATE_H
#define TESTS_LATE_H

#include "kernel/kernel.h"

/* The linear algebra; `under` does the work. A thread uses one `under` at a time. */
const ng_linalg_ops *late_over(const ng_linalg_ops *under);
/* Let a queue run its entries as late as allowed, by `under` and the kernels of the queue. */
void late_queue(ng_queue *q, const ng_linalg_ops *under);
/* Memory that faults: between an entry and its wait the process ends with LATE_FAULT if the host accesses memory of such a
 * context that the entry writes. Call late_memory_reserve once, before any thread. */
enum { LATE_FAULT = 70 };
void late_memory_reserve(void);
ng_context_config late_memory(void);
/* For late.c: the bytes fault until this thread calls late_allow. */
void late_forbid(const char *entry, const void *at, int64_t bytes);
void late_allow(void);

int64_t late_waiting(void); /* noted calls that have not run yet, on this thread */

#endif
