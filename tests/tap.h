/* tap.h: a transport around another one: count the calls, fail one of them, omit optional functions. */
#ifndef TESTS_TAP_H
#define TESTS_TAP_H

#include "natgrad.h"

#include <stdint.h>

/* WHOLE: the tap has all functions; NO_TEST: no test; NO_START: no start, wait and test; LATE: start stores a call,
 * and wait runs the call. */
typedef enum tap_way { WHOLE, NO_TEST, NO_START, TAP_WAYS, LATE } tap_way;

enum { TAP_STARTS = 16 };

typedef struct tap tap;
struct tap {
  ng_transport inner;
  int64_t fail_at;  /* number of the call, counted from 1, that fails; 0: none */
  ng_status status; /* status that this call returns; 0: NG_ERR_DEVICE */
  int64_t calls, aborts, tests;
  int64_t most_elements;     /* largest number of elements of one call on all ranks */
  int64_t bytes;             /* bytes of all collectives */
  int starts, mark;          /* mark: set by the caller */
  int64_t count[TAP_STARTS]; /* elements of each start */
  int mark_at[TAP_STARTS];   /* `mark` at each start */
  void (*after)(tap *p,
                const ng_collective *c); /* called after a successful collective; may be NULL */
};

ng_transport tap_transport(tap *p, tap_way how); /* the transport points to p */

#endif
