/* clock.h: the clock that everything here is timed with. */
#ifndef NG_CLOCK_H
#define NG_CLOCK_H

/* Milliseconds since some moment in the past; never goes back. */
double ng_now_ms(void);

#endif
