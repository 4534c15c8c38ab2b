/* clock.c: one monotonic clock for the library, the trainer and the benches, so their times
 * can be compared. */
#include "clock.h"

#include <time.h>

double ng_now_ms(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
