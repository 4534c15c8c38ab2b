/* meter.h: how long messages are under way, and how long somebody waits for them.
 *
 * By the clock of the one who sends: under way from when it began one until it knew that it was complete, two
 * at a time counted once; waiting is the part of that in which it did nothing else.  The rest was hidden. */
#ifndef NG_METER_H
#define NG_METER_H

#include "clock.h"

#include <stdint.h>

typedef struct ng_meter {
  int64_t under_way;
  double since;            /* there was nothing */
  double sent_ms, wait_ms; /* so far; sent_ms without those under way */
} ng_meter;

static inline void ng_meter_begin(ng_meter *m) {
  if (m->under_way++ == 0) m->since = ng_now_ms();
}

static inline void ng_meter_end(ng_meter *m) {
  if (--m->under_way == 0) m->sent_ms += ng_now_ms() - m->since;
}

static inline double ng_meter_hidden(const ng_meter *m) {
  return m->sent_ms > m->wait_ms ? m->sent_ms - m->wait_ms : 0.0;
}

#endif
