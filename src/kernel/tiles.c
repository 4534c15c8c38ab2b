/* tiles.c: the pieces of a list of ranges. */
#include "kernel/tiles.h"

int64_t ng_tiles_of(int64_t rows, int64_t cols) {
  if (cols > NG_TILE_ELEMENTS) return rows * ((cols + NG_TILE_ELEMENTS - 1) / NG_TILE_ELEMENTS);
  const int64_t high = ng_max64(1, NG_TILE_ELEMENTS / cols);
  return (rows + high - 1) / high;
}

/* A piece ends with the tile that reaches its share of all elements, so equal lists have equal pieces in each step, and
 * a thread finds its gradients in its cache. */
void ng_tile_list_cut(const ng_queue *q, ng_tile_list *w, const void *list, size_t size,
                      int64_t n) {
  int64_t all = 0, at = 0;
  ng_tile_position p = {0, 0, 0};
  *w = (ng_tile_list){.list = list, .size = size, .n = n};
  for (int64_t i = 0; i < n; i++) {
    all += ng_tile_list_region(w, i)->rows * ng_tile_list_region(w, i)->cols;
  }
  w->pieces = all < NG_TILE_ELEMENTS ? 1 : (int32_t)ng_min64(q->threads, NG_TILE_PIECES);
  for (int32_t i = 0; i < w->pieces; i++) {
    w->from[i] = p;
    while (p.region < n && at * w->pieces < all * (i + 1)) {
      const ng_region *a = ng_tile_list_region(w, p.region);
      const ng_tile t = ng_tile_at(a, p);
      at += t.rows * t.cols;
      p.index++;
      if (++p.tile == ng_tiles_of(a->rows, a->cols))
        p = (ng_tile_position){p.region + 1, 0, p.index};
    }
  }
  w->from[w->pieces] = p;
}
