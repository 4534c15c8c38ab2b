/* clock.h: the clock for all measured times. */
#ifndef NG_CLOCK_H
#define NG_CLOCK_H

/* Milliseconds since an unspecified moment; monotonic. */
double ng_now_ms(void);

#endif
