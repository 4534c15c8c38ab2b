/* tiles.h: cut the regions of a list of descriptors into tiles, and distribute the tiles over threads.
 *
 * A tile is some whole rows of a region, or a part of one row. It has about 16384 elements (64 KiB of f32): enough to
 * hide the cost of a tile, and few enough to balance threads. The tiles of a region do not depend on the threads. */
#ifndef NG_TILES_H
#define NG_TILES_H

#include "kernel/kernel.h"

enum { NG_TILE_ELEMENTS = 16384, NG_TILE_PIECES = 256 };

/* Rows [row, row + rows) and columns [col, col + cols) of a region. */
typedef struct ng_tile {
  int64_t index;  /* number of the tile in the list */
  int64_t region; /* number of its region */
  int64_t row, rows, col, cols;
} ng_tile;

/* A position in a list: tile `tile` of region `region`, which is tile `index` of the list. */
typedef struct ng_tile_position {
  int64_t region, tile, index;
} ng_tile_position;

/* A list of n descriptors of `size` bytes, each of which begins with an ng_region. Piece i consists of the tiles from
 * from[i] up to from[i + 1]. */
typedef struct ng_tile_list {
  const char *list;
  size_t size;
  int64_t n;
  int32_t pieces;
  ng_tile_position from[NG_TILE_PIECES + 1];
} ng_tile_list;

static inline const ng_region *ng_tile_list_region(const ng_tile_list *w, int64_t i) {
  return (const void *)(w->list + (size_t)i * w->size);
}

static inline ng_tile ng_tile_at(const ng_region *a, ng_tile_position p) {
  const int64_t wide = ng_min64(a->cols, NG_TILE_ELEMENTS);
  const int64_t high = ng_max64(1, NG_TILE_ELEMENTS / a->cols),
                across = (a->cols + wide - 1) / wide;
  const int64_t row = p.tile / across * high, col = p.tile % across * wide;
  return (ng_tile){.index = p.index,
                   .region = p.region,
                   .row = row,
                   .rows = ng_min64(high, a->rows - row),
                   .col = col,
                   .cols = ng_min64(wide, a->cols - col)};
}

/* Return the number of tiles of a region. Threads take tiles, and the sums of the tiles are added in order, so a result
 * does not depend on the number of threads. */
int64_t ng_tiles_of(int64_t rows, int64_t cols);

/* Set *t to the tile at *p and advance *p. Return false at the end of piece i, whose first tile is at from[i]. */
static inline bool ng_tile_next(const ng_tile_list *w, int32_t i, ng_tile_position *p, ng_tile *t) {
  if (p->index == w->from[i + 1].index) return false;
  while (p->tile == ng_tiles_of(ng_tile_list_region(w, p->region)->rows,
                                ng_tile_list_region(w, p->region)->cols)) {
    p->region++;
    p->tile = 0;
  }
  *t = ng_tile_at(ng_tile_list_region(w, p->region), *p);
  p->tile++;
  p->index++;
  return true;
}

/* tiles.c: cut a list into one piece for each thread of the queue. */
void ng_tile_list_cut(const ng_queue *q, ng_tile_list *w, const void *list, size_t size, int64_t n);

/* Call work(arg, descriptor, tile) for every tile of a list. Each thread works on one piece, whose tiles it visits from
 * the last to the first if `backward`: then it begins with the tiles that an earlier call read last, which are still in
 * its cache. */
void ng_tiles_run(const ng_queue *q, const void *list, size_t size, int64_t n, bool backward,
                  void (*work)(void *arg, const void *descriptor, const ng_tile *t), void *arg);

#endif
