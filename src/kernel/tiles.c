/* tiles.c: see tiles.h. */
#include "kernel/tiles.h"

enum { MOST_PIECES = 256 };

/* A position in the list: tile `tile` of region `region`, which is tile `index` of the list. */
typedef struct position {
  int64_t region, tile, index;
} position;

/* Piece i consists of the tiles from from[i] up to from[i + 1]. */
typedef struct job {
  const char *list;
  size_t size;
  bool backward;
  void (*work)(void *arg, const void *descriptor, const ng_tile *t);
  void *arg;
  int32_t pieces;
  position from[MOST_PIECES + 1];
} job;

int64_t ng_count_tiles(int64_t rows, int64_t cols) {
  const int64_t wide = ng_min64(cols, NG_TILE_ELEMENTS),
                high = ng_max64(1, NG_TILE_ELEMENTS / cols);
  return (cols + wide - 1) / wide * ((rows + high - 1) / high);
}

static const ng_region *region_at(const job *j, int64_t i) {
  return (const void *)(j->list + (size_t)i * j->size);
}

static int64_t count_tiles(const job *j, int64_t region) {
  const ng_region *a = region_at(j, region);
  return ng_count_tiles(a->rows, a->cols);
}

static ng_tile tile_at(const job *j, position p, int32_t piece) {
  const ng_region *a = region_at(j, p.region);
  const int64_t wide = ng_min64(a->cols, NG_TILE_ELEMENTS);
  const int64_t high = ng_max64(1, NG_TILE_ELEMENTS / a->cols),
                across = (a->cols + wide - 1) / wide;
  const int64_t row = p.tile / across * high, col = p.tile % across * wide;
  return (ng_tile){.index = p.index,
                   .region = p.region,
                   .piece = piece,
                   .row = row,
                   .rows = ng_min64(high, a->rows - row),
                   .col = col,
                   .cols = ng_min64(wide, a->cols - col)};
}

/* Move p to the next tile of the list. */
static void advance_position(const job *j, position *p) {
  p->index++;
  if (++p->tile == count_tiles(j, p->region)) *p = (position){p->region + 1, 0, p->index};
}

/* Piece i ends with the tile that reaches (i + 1) / pieces of all elements. So equal lists have equal pieces in every
 * step, and a thread finds its gradients in its cache. */
static void cut_pieces(job *j, int64_t n, int32_t threads) {
  int64_t all = 0, at = 0;
  position p = {0, 0, 0};
  for (int64_t i = 0; i < n; i++) {
    all += region_at(j, i)->rows * region_at(j, i)->cols;
  }
  j->pieces = all < NG_TILE_ELEMENTS ? 1 : (int32_t)ng_min64(threads, MOST_PIECES);
  for (int32_t i = 0; i < j->pieces; i++) {
    j->from[i] = p;
    for (; p.region < n && at * j->pieces < all * (i + 1); advance_position(j, &p)) {
      const ng_tile t = tile_at(j, p, i);
      at += t.rows * t.cols;
    }
  }
  j->from[j->pieces] = p;
}

static void run_forward(const job *j, int32_t i) {
  for (position p = j->from[i]; p.index < j->from[i + 1].index; advance_position(j, &p)) {
    const ng_tile t = tile_at(j, p, i);
    j->work(j->arg, region_at(j, p.region), &t);
  }
}

static void run_backward(const job *j, int32_t i) {
  for (position p = j->from[i + 1]; p.index > j->from[i].index;) {
    if (p.tile == 0) p.tile = count_tiles(j, --p.region);
    p.tile--;
    p.index--;
    const ng_tile t = tile_at(j, p, i);
    j->work(j->arg, region_at(j, p.region), &t);
  }
}

static void run_piece(void *arg, int32_t i) {
  const job *j = arg;
  (j->backward ? run_backward : run_forward)(j, i);
}

int64_t ng_run_tiles(const ng_queue *q, const void *list, size_t size, int64_t n, bool backward,
                     void (*work)(void *arg, const void *descriptor, const ng_tile *t), void *arg) {
  job j = {.list = list, .size = size, .backward = backward, .work = work, .arg = arg};
  cut_pieces(&j, n, q->threads);
  ng_queue_run(q, j.pieces, run_piece, &j);
  return j.from[j.pieces].index;
}
