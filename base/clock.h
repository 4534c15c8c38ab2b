/* clock.h: the clock for all measured times. */
#ifndef NG_CLOCK_H
#define NG_CLOCK_H

/* Return the milliseconds since a fixed but unspecified moment; the value never decreases. */
double ng_now_ms(void);

#endif
