/* wire.c: convert sums to 16 bits while they travel between ranks.
 *
 * In: n f32 where they were summed.  Out: n numbers of 16 bits in the first half of the same memory, and back.
 * The conversion allocates nothing and does not change the number of messages. */
#include "step/step.h"

enum { TILE = 512 };

/* Convert from the front: a tile is written where floats have been read already. */
void ng_wire_narrow(char *x, int64_t n, ng_dtype t) {
  float wide[TILE];
  uint16_t room[TILE];
  for (int64_t i = 0, m; i < n; i += m) {
    m = ng_min64(TILE, n - i);
    memcpy(wide, x + i * (int64_t)sizeof *wide, (size_t)m * sizeof *wide);
    ng_from_f32(room, t, wide, m);
    memcpy(x + i * (int64_t)sizeof *room, room, (size_t)m * sizeof *room);
  }
}

/* Convert from the end: a tile is written behind all 16-bit numbers that are still unread. */
void ng_wire_widen(char *x, int64_t n, ng_dtype t) {
  float wide[TILE];
  uint16_t room[TILE];
  for (int64_t end = n, m; end > 0; end -= m) {
    m = ng_min64(TILE, end);
    memcpy(room, x + (end - m) * (int64_t)sizeof *room, (size_t)m * sizeof *room);
    ng_to_f32(wide, room, t, m);
    memcpy(x + (end - m) * (int64_t)sizeof *wide, wide, (size_t)m * sizeof *wide);
  }
}
