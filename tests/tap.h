/* tap.h: between a rank and its transport: counts the calls, fails one of them, and leaves out what a table may leave
 * out. */
#ifndef TESTS_TAP_H
#define TESTS_TAP_H

#include "natgrad.h"

#include <stdint.h>

/* LATE: start only notes what is wanted, wait does it: as late as it may be. */
typedef enum tap_way { WHOLE, NO_TEST, NO_START, TAP_WAYS, LATE } tap_way;

enum { TAP_STARTS = 16 };

typedef struct tap tap;
struct tap {
  ng_transport inner;
  int64_t fail_at; /* the call that fails, from 1; 0: none */
  ng_status with;  /* its status; 0: NG_ERR_DEVICE */
  int64_t calls, aborts, tests;
  int64_t most;                                  /* elements of one call on all ranks */
  int64_t bytes;                                 /* of all collectives */
  int starts, shown;                             /* shown: set by the caller */
  int64_t count[TAP_STARTS];                     /* elements of each start, */
  int when[TAP_STARTS];                          /* and `shown` at that time */
  void (*after)(tap *p, const ng_collective *c); /* each collective that ended well; may be NULL */
};

ng_transport tapped(tap *p, tap_way how); /* p stays where it is */

#endif
