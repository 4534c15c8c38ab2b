/* meter.h: measure how long messages of this rank are in progress, and how long the rank waits for them.
 *
 * sent_ms   time with at least one message in progress, from post to the end of wait
 * wait_ms   the part of sent_ms in which the rank only waited; the caller adds to it
 * During sent_ms - wait_ms, the rank computed while messages were in progress. */
#ifndef NG_METER_H
#define NG_METER_H

#include "clock.h"

#include <stdint.h>

typedef struct ng_meter {
  int64_t under_way;       /* messages in progress */
  double since;            /* ng_now_ms() when under_way last changed from 0 to 1 */
  double sent_ms, wait_ms; /* totals; sent_ms excludes messages in progress */
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
