/* floors.h: how fast this machine could do the parts of a K-FAC step, measured here and now with
 * the BLAS that natgrad uses: the best of ten runs (of three where one takes more than a second),
 * all threads.  All figures in milliseconds unless the name says otherwise; negative: could not be
 * measured (no memory, or LAPACK refused). */
#ifndef CLI_FLOORS_H
#define CLI_FLOORS_H

#include "shapes.h"

#include <stdbool.h>
#include <stdint.h>

/* False in a build without BLAS: there are no floors then. */
bool floors_possible(void);

double floor_sgemm_gflops(int order);  /* 2 n^3 / time                                       */
double floor_copy_gbs(int64_t *bytes); /* read + written per second; *bytes: of one buffer   */
int64_t floor_cache(void);             /* bytes of the last-level cache                      */
/* A plain im2col of `batch` samples, channels first, one sample's patches [in kh kw, positions] at
 * a time in each thread.  0 where none is needed: linear layers, and 1x1 with stride 1. */
double floor_im2col(const shape *l, int64_t batch);
double floor_cholesky(int64_t n, bool invert); /* spotrf [and spotri] of order n                  */
double floor_eigen(int64_t n);                 /* ssyevd of order n                               */
double floor_apply(int64_t q, int64_t p);      /* [q,p] x [p,p] and [q,q] x [q,p]                 */
double floor_rotate(int64_t q, int64_t p);     /* the same twice: into an eigenbasis and back     */

#endif
