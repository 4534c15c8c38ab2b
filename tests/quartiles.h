/* quartiles.h: what quantify = 1 measures, beside a plain sort in double. */
#ifndef TESTS_QUARTILES_H
#define TESTS_QUARTILES_H

#include "natgrad.h"

/* Drawn: numbers of nine magnitudes, some of them 0. */
float uneven(int64_t at, int64_t i);

/* |got - expected| <= allowed, or a failure that says of whom and what. */
void near(const char *name, const char *what, double got, double expected, double allowed);

/* Sorts x.  Quartiles are the mean of the two around (n - 1) q, numpy's "midpoint", each the middle of a bin: 2^-18 of it, or 2^-114 of
 * what is small.  `bits`: what f32 leaves of any number, relative; `rest`: of one that is near 0. */
void quartiles_must_be(const char *name, const ng_report *r, double *x, int64_t n, double bits,
                       double rest);

/* The largest and the quartiles alone, where the others cancel: the largest to `most`, relative. */
void quartiles_and_largest(const char *name, const ng_report *r, double *x, int64_t n, double bits,
                           double most);

#endif
