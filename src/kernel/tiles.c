/* tiles.c: see tiles.h. */
#include "kernel/tiles.h"

int64_t ng_tiles_of(int64_t rows, int64_t cols) {
  if (cols > NG_TILE_ELEMENTS) return rows * ((cols + NG_TILE_ELEMENTS - 1) / NG_TILE_ELEMENTS);
  const int64_t high = ng_max64(1, NG_TILE_ELEMENTS / cols);
  return (rows + high - 1) / high;
}

/* Piece i ends with the tile that reaches (i + 1) / pieces of all elements. So equal lists have equal pieces in every
 * step, and a thread finds its gradients in its cache. */
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

typedef struct tiles_job {
  ng_tile_list w;
  bool backward;
  void (*work)(void *arg, const void *descriptor, const ng_tile *t);
  void *arg;
} tiles_job;

/* Set *t to the tile before *p and move *p back. Return false at the beginning of piece i. */
static bool previous_tile(const ng_tile_list *w, int32_t i, ng_tile_position *p, ng_tile *t) {
  if (p->index == w->from[i].index) return false;
  while (p->tile == 0) {
    p->region--;
    p->tile = ng_tiles_of(ng_tile_list_region(w, p->region)->rows,
                          ng_tile_list_region(w, p->region)->cols);
  }
  p->tile--;
  p->index--;
  *t = ng_tile_at(ng_tile_list_region(w, p->region), *p);
  return true;
}

static void run_piece(void *arg, int32_t i) {
  const tiles_job *j = arg;
  ng_tile_position p = j->w.from[j->backward ? i + 1 : i];
  for (ng_tile t; (j->backward ? previous_tile : ng_tile_next)(&j->w, i, &p, &t);) {
    j->work(j->arg, ng_tile_list_region(&j->w, t.region), &t);
  }
}

void ng_tiles_run(const ng_queue *q, const void *list, size_t size, int64_t n, bool backward,
                  void (*work)(void *arg, const void *descriptor, const ng_tile *t), void *arg) {
  tiles_job j = {.backward = backward, .work = work, .arg = arg};
  ng_tile_list_cut(q, &j.w, list, size, n);
  ng_queue_run(q, j.w.pieces, run_piece, &j);
}
