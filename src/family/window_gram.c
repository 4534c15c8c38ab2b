/* window_gram.c: the Gram matrix K = G G' of a window's rows: which rows, its new row, and empty places. */
#include "family/window.h"

/* The places in use, from the oldest to the newest; with a row at head, the oldest of m + 1 is not. */
void ng_window_use(ng_window *w, bool fresh) {
  const int64_t head = ng_window_head(w);
  const int64_t there = fresh && w->emptied ? 0 : ng_window_count(w);
  const int64_t old = ng_min64(there, fresh ? w->m - 1 : w->m);
  w->uses = 0;
  for (int64_t age = old; age > 0; age--) {
    w->used[w->uses++] = (head - age + w->places) % w->places;
  }
  if (fresh) w->used[w->uses++] = head;
}

void ng_window_clear_row(ng_window *w, int64_t place) {
  for (int32_t i = 0; i < w->parts; i++) {
    for (int64_t j = 0; j < w->places; j++) {
      w->part[i].gram[place * w->places + j] = w->part[i].gram[j * w->places + place] = 0.0;
    }
  }
}

void ng_window_put_row(ng_window *w, const double *row) {
  const int64_t head = ng_window_head(w);
  for (int32_t i = 0; i < w->parts; i++) {
    for (int64_t k = 0; k < w->uses; k++) {
      const int64_t j = w->used[k];
      w->part[i].gram[head * w->places + j] = w->part[i].gram[j * w->places + head] =
          row[i * w->places + j];
    }
  }
}
