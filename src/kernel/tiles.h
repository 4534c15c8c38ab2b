/* tiles.h: cut the regions of a list of descriptors into tiles, and distribute the tiles over threads.
 *
 * A tile is some whole rows of a region, or a part of one row. It has about 16384 elements (64 KiB of f32): enough to
 * hide the cost of a tile, and few enough to balance threads. The tiles of a region do not depend on the threads. */
#ifndef NG_TILES_H
#define NG_TILES_H

#include "kernel/kernel.h"

enum { NG_TILE_ELEMENTS = 16384 };

/* Rows [row, row + rows) and columns [col, col + cols) of a region. */
typedef struct ng_tile {
  int64_t index;  /* number of the tile in the list */
  int64_t region; /* number of the region that contains the tile */
  int32_t piece;  /* number of the piece that contains the tile; one thread processes a piece */
  int64_t row, rows, col, cols;
} ng_tile;

/* Return the number of tiles of a region. Threads take tiles, and the sums of the tiles are added in order, so a result
 * does not depend on the number of threads. */
int64_t ng_count_tiles(int64_t rows, int64_t cols);

/* Call work(arg, descriptor, tile) for every tile of a list of n descriptors of `size` bytes, each of which begins with an
 * ng_region; return the number of tiles. Each thread works on one piece of the list, whose tiles it visits from the last to
 * the first if `backward`: then it begins with the tiles that an earlier call read last, which are still in its cache. */
int64_t ng_run_tiles(const ng_queue *q, const void *list, size_t size, int64_t n, bool backward,
                     void (*work)(void *arg, const void *descriptor, const ng_tile *t), void *arg);

#endif
