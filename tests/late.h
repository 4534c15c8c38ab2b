/* late.h: a backend that does all work as late as the queue allows, and the table of backends for tests.
 *
 * An entry only notes its arguments, with copies of its lists of descriptors; ng_queue_wait runs the noted calls in
 * order, with another backend. Code that reads a result, or changes an input, without a wait gets other numbers than
 * with that backend, on a machine without a device. Each thread has its own list, so ranks may be threads.
 *
 * The memory of the backend faults: between an entry and its wait the process ends with LATE_FAULT if the host accesses
 * memory that the entry writes. */
#ifndef TESTS_LATE_H
#define TESTS_LATE_H

#include "kernel/kernel.h"

/* The suites run on each of these backends: the library's, then more_backends. NULL: there is no backend i. */
const ng_backend *test_backend(int32_t i);
/* list of backends that ends with NULL; the last backend is `late` over `ref` */
extern const ng_backend *const more_backends[];

typedef struct late_backend {
  ng_backend backend; /* the first member */
  const ng_backend *under;
} late_backend;
extern const late_backend late_ref; /* over `ref` */
/* return a late backend over `under`; its name is also "late" */
late_backend late_over(const ng_backend *under);
/* return the number of noted calls of this thread that have not run yet */
int64_t late_waiting(void);

/* late_memory.c: memory that faults. late_forbid: the bytes fault until this thread calls late_allow. */
enum { LATE_FAULT = 70 };
const char *late_open(ng_queue *q); /* catch the faults */
void *late_alloc(void *user, size_t bytes);
void late_free(void *user, void *at, size_t bytes);
void late_forbid(const char *entry, const void *at, int64_t bytes);
void late_allow(void);

#endif
