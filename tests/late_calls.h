/* late_calls.h: how an entry of the late backend notes its call and declares the bytes that the call writes. */
#ifndef TESTS_LATE_CALLS_H
#define TESTS_LATE_CALLS_H

#include "late.h"

/* Copy the arguments; ng_queue_wait passes the copy to `work`. */
void late_store_call(void (*work)(ng_queue *q, const void *record), const void *record,
                     size_t size);

/* NAMED names the entry; the macros after the name declare what the entry writes. */
extern _Thread_local const char *late_entry;
#define NAMED(e, ...) late_entry = #e, __VA_ARGS__
#define BYTES(at, bytes) late_forbid(late_entry, at, bytes)
#define FLOATS(x, n) BYTES(x, (n)*4)
#define DOUBLES(x, n) BYTES(x, (n)*8)
#define INFO(x) BYTES(x, sizeof(int))
#define SYM(S) FLOATS((S).a, ng_sym_count((S).n))
#define MATRIX(x, rows, cols, ld) FLOATS(x, (rows) > 0 ? ((rows)-1) * (ld) + (cols) : 0)

extern const ng_kernel_ops late_kernels;

#endif
