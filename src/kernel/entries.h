/* entries.h: the entries of both tables of kernel.c. A file X.c has entries of `cpu`, ref_X.c the same entries of `ref`. */
#ifndef NG_ENTRIES_H
#define NG_ENTRIES_H

#include "kernel/kernel.h"

void ng_scan(ng_queue *q, const ng_strided *a, int64_t n, double *out);
void ng_ref_scan(ng_queue *q, const ng_strided *a, int64_t n, double *out);

#endif
