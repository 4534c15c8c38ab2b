/* tiles.h: cut lists of ranges into tiles, and the tiles of a list into pieces of about equal size.
 *
 * A tile is some whole rows of a range, or a part of one row: 16384 elements are 64 KiB of f32, large enough to hide the
 * cost of a tile and small enough to balance threads. The tiles of a range do not depend on the threads. */
#ifndef NG_TILES_H
#define NG_TILES_H

#include "kernel/kernel.h"

enum { NG_TILE_ELEMENTS = 16384, NG_TILE_PIECES = 256 };

/* A tile: rows and columns relative to its range. */
typedef struct ng_tile {
  int64_t index;  /* in the whole list */
  int64_t region; /* index of the range */
  int64_t row, rows, col, cols;
} ng_tile;

/* Position in a list: tile `tile` of range `of`; `index` counts tiles from the beginning of the list. */
typedef struct ng_tile_position {
  int64_t region, tile, index;
} ng_tile_position;

/* A list of n descriptors of `size` bytes, each beginning with an ng_region. Piece i has the tiles from from[i] up to
 * from[i + 1]. */
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

/* Move forward or backward by one tile; return false at the end of piece i. A walk starts at from[i] or, backward, at
 * from[i + 1]. */
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

static inline bool ng_tile_previous(const ng_tile_list *w, int32_t i, ng_tile_position *p,
                                    ng_tile *t) {
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

/* tiles.c: cut a list into pieces for the threads of the queue. */
void ng_tile_list_cut(const ng_queue *q, ng_tile_list *w, const void *list, size_t size, int64_t n);

#endif
