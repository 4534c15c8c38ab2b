/* floors.h: lower bounds for `natgrad bench`, measured in this process with the BLAS that natgrad uses, on all threads:
 * the least time of ten runs (of fewer, but at least three, if the runs take more than three seconds).
 *
 * Results are milliseconds, GFLOP/s, GB/s or bytes, as the name says; negative: no BLAS, or LAPACK failed.  Without
 * memory, the program ends with one line. */
#ifndef CLI_FLOORS_H
#define CLI_FLOORS_H

#include <stdbool.h>
#include <stdint.h>

bool floors_have_blas(void); /* false in a build without BLAS */

double floor_sgemm_gflops(int order); /* 2 order^3 operations / time         */
double floor_copy_gbs(void);          /* bytes read and written / time       */
int64_t floor_cache_bytes(void);      /* size of the last-level cache        */
double floor_cholesky_ms(int64_t n);  /* ms of spotrf and spotri of order n  */

#endif
