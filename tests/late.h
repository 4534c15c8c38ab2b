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
/* Make a queue late, over `under` and its present kernels. */
void late_queue(ng_queue *q, const ng_linalg_ops *under);
int64_t late_waiting(void); /* noted calls that have not run yet, on this thread */

#endif
