/* floors.h: lower bounds for `natgrad bench`, measured in this process with the BLAS that natgrad uses:
 * the best of ten runs (of three if a run takes more than a second) on all threads.
 *
 * Milliseconds unless the name says otherwise; negative: not measurable (no memory, no BLAS, or LAPACK failed). */
#ifndef CLI_FLOORS_H
#define CLI_FLOORS_H

#include <stdbool.h>
#include <stdint.h>

bool floors_possible(void); /* false in a build without BLAS */

double floor_sgemm_gflops(int order); /* 2 n^3 / time                        */
double floor_copy_gbs(void);          /* bytes read and written / time       */
int64_t floor_cache_bytes(void);      /* of the last-level cache             */
double floor_cholesky(int64_t n);     /* time of spotrf and spotri, order n  */

#endif
