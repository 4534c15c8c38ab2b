/* late.h: a linear algebra that does everything as late as it may.
 *
 * Its entries only note what they were asked for; ng_queue_wait does it, in order, with another table.
 * Whoever reads a result, or changes what an entry reads, without waiting gets other numbers than with
 * that other table, on a machine without a device.  Meant for ranks as threads: every thread has a list
 * of its own.  It asserts nothing. */
#ifndef TESTS_LATE_H
#define TESTS_LATE_H

#include "linalg/linalg.h"

/* The table; `under` does the work.  One `under` at a time in a thread. */
const ng_linalg_ops *late_over(const ng_linalg_ops *under);
int64_t late_waiting(void); /* noted and not yet done, on this thread */

#endif
