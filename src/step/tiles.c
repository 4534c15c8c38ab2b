/* tiles.c: loop over the gradients of all layers in tiles of about equal size.
 *
 * In: the slots of blocks, and parameters without curvature that a fused update writes.  Out: tiles, cut once at
 * ng_ready.  A tile is some whole rows, or a part of one row, inside one group of a layer.
 *
 * A step runs two loops over the tiles: measure and emit.  Threads share the tiles of all layers, so a small layer
 * costs no fork.  Each tile has its own sums, added in order, so bits do not depend on the number of threads. */
#include "step/step.h"

#include <math.h>

/* The most elements of a tile, pieces of a loop, tiles: 2^24 tiles of 80 bytes hold 2.7e11 elements in long rows. */
enum { ELEMENTS = 16384, PIECES = 256, MOST = 1 << 24 };

/* ---- cutting ---------------------------------------------------------------------------------*/

/* Cut `whole`, all rows and columns of one group, into tiles; return their number; to NULL: count only. 16384 elements
 * are 64 KiB of f32: large enough to hide a tile's cost, small enough to balance threads. */
static int64_t cut(ng_tile *to, const ng_tile *whole) {
  const int64_t wide = whole->cols > ELEMENTS ? ELEMENTS : whole->cols;
  const int64_t high = whole->cols > ELEMENTS ? 1 : ng_max64(1, ELEMENTS / whole->cols);
  int64_t n = 0;
  for (int64_t r = 0; r < whole->rows; r += high) {
    for (int64_t c = 0; c < whole->cols; c += wide, n++) {
      if (to == NULL) continue;
      to[n] = *whole;
      to[n].row += r;
      to[n].col += c;
      to[n].rows = ng_min64(high, whole->rows - r);
      to[n].cols = ng_min64(wide, whole->cols - c);
    }
  }
  return n;
}

/* No tile crosses a group, because families have numbers for each group. */
static int64_t cut_slot(ng_slot *s, ng_tile *to) {
  const bool flat = s->rows == 1; /* a bias or a tensor: groups are runs of columns */
  const int64_t rows = flat ? 1 : s->rows / s->groups, cols = flat ? s->cols / s->groups : s->cols;
  int64_t n = 0;
  for (int64_t g = 0; g < s->groups; g++) {
    const ng_tile whole = {.slot = s,
                           .block = s->block,
                           .segment = s->segment,
                           .group = (int32_t)g,
                           .row = flat ? 0 : g * rows,
                           .rows = rows,
                           .col = flat ? g * cols : 0,
                           .cols = cols};
    n += cut(to == NULL ? NULL : to + n, &whole);
  }
  return n;
}

static int64_t elements(const ng_tile *t) { return t->rows * t->cols; }

static int64_t cut_block(ng_block *b, ng_tile *to) {
  int64_t n = 0;
  for (int32_t k = 0; k < b->segments; k++) {
    n += cut_slot(b->segment[k].slot, to == NULL ? NULL : to + n);
  }
  return n;
}

/* Cut the blocks with (`measured`) or without measure_tile into tiles from index `at` on; t NULL: count only. */
static int64_t cut_blocks(ng_precond *p, bool measured, int64_t at, ng_tiles *t) {
  int64_t n = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if ((b->family->measure_tile != NULL) != measured) continue;
    const int64_t count = cut_block(b, t == NULL ? NULL : t->tile + at + n);
    if (t != NULL) {
      b->tile = t->tile + at + n;
      b->tile_sum = t->sum + (at + n) * NG_TILE_SUMS;
      b->tiles = (int32_t)count;
    }
    n += count;
  }
  return n;
}

/* Cut the parameters without a block.  Only a fused update writes them; otherwise the caller does. */
static int64_t cut_plain(ng_precond *p, int64_t at, ng_tiles *t) {
  int64_t n = 0;
  for (int32_t i = 0; i < p->entries && p->base.update != NG_UPDATE_GRADIENT; i++) {
    ng_entry *e = p->entry[i];
    for (int32_t k = 0; k < e->slots && !e->d.frozen; k++) {
      if (e->slot[k].block != NULL) continue;
      n += cut_slot(&e->slot[k], t == NULL ? NULL : t->tile + at + n);
    }
  }
  return n;
}

/* Cut the tiles into pieces of about equal numbers of elements, once, so that a piece runs on
 * the same thread in each step. */
static void cut_pieces(ng_precond *p, ng_walk *w, const ng_tile *tile) {
  int64_t all = 0, at = 0;
  int32_t t = 0;
  for (int32_t i = 0; i < w->count; i++) {
    all += elements(&tile[i]);
  }
  w->elements = all;
  w->pieces = all < ELEMENTS ? 1 : (int32_t)ng_min64(ng_threads_of(p->ctx), PIECES);
  for (int32_t i = 0; i < w->pieces; i++) {
    w->cut[i] = t;
    while (t < w->count && at * w->pieces < all * (i + 1)) {
      at += elements(&tile[t++]);
    }
  }
  w->cut[w->pieces] = w->count;
}

/* Count the tiles, allocate them, then cut.  Measured tiles come first, so `measured` is a prefix of `all`. */
ng_status ng_tiles_plan(ng_precond *p) {
  ng_tiles *t = &p->step->tiles;
  const int64_t first = cut_blocks(p, true, 0, NULL), plain = cut_plain(p, 0, NULL);
  const int64_t count = first + plain + cut_blocks(p, false, 0, NULL);
  if (count == 0) return NG_OK;
  if (count > MOST) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_ready: the parameters of one rank are cut into %lld tiles, at most %d",
                   (long long)count, MOST);
  }
  t->all.count = (int32_t)count;
  t->measured.count = (int32_t)(first + plain);
  t->tile = ng_object(p, (size_t)count * sizeof *t->tile);
  t->sum = ng_object(p, (size_t)(count * NG_TILE_SUMS) * sizeof *t->sum);
  t->all.cut = ng_object(p, (PIECES + 1) * sizeof *t->all.cut);
  t->measured.cut = ng_object(p, (PIECES + 1) * sizeof *t->measured.cut);
  if (ng_objects_status(p) != NG_OK) return NG_ERR_NOMEM;
  (void)cut_blocks(p, true, 0, t);
  (void)cut_plain(p, first, t);
  (void)cut_blocks(p, false, first + plain, t);
  cut_pieces(p, &t->all, t->tile);
  cut_pieces(p, &t->measured, t->tile);
  return NG_OK;
}

/* ---- measure ---------------------------------------------------------------------------------*/

/* Return whether the gradient of a tile is finite: a fused update must not write NaN to weights. */
static bool is_finite(const ng_tile *t) {
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    if (!ng_place_finite(&t->slot->grad, r, t->col, t->cols)) return false;
  }
  return true;
}

/* Measure the tiles of a piece.  Without curvature, sum[0] = 1 if the gradient is not finite.  Without the block's
 * results on this rank, sums are 0. */
static void measure_piece(void *arg, int32_t piece) {
  const ng_tiles *tiles = arg;
  const int32_t *at = tiles->measured.cut + piece;
  for (int32_t i = at[0]; i < at[1]; i++) {
    const ng_tile *t = &tiles->tile[i];
    double *sum = tiles->sum + i * NG_TILE_SUMS;
    memset(sum, 0, NG_TILE_SUMS * sizeof *sum);
    if (t->slot->out) continue;
    if (t->block == NULL) {
      sum[0] = is_finite(t) ? 0.0 : 1.0;
    } else if (t->block->is_worker) {
      t->block->family->measure_tile(t->block, t, sum);
    }
  }
}

/* Share the time of the common loop, ms, between blocks by their numbers of elements. */
static void share_time(ng_precond *p, double ms) {
  const ng_tiles *t = &p->step->tiles;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    int64_t mine = 0;
    for (int32_t k = 0; k < b->tiles && b->family->measure_tile != NULL; k++) {
      mine += elements(&b->tile[k]);
    }
    b->measure_ms = mine == 0 ? 0.0 : ms * (double)mine / (double)t->measured.elements;
  }
}

/* Measure all tiles in one loop; family->measure later adds the sums of a block's tiles, in order. */
void ng_tiles_measure(ng_precond *p) {
  ng_tiles *t = &p->step->tiles;
  const double t0 = ng_now_ms();
  if (t->measured.count > 0) ng_parallel(p->ctx, t->measured.pieces, measure_piece, t);
  share_time(p, ng_now_ms() - t0);
  for (int32_t i = 0; i < t->measured.count; i++) {
    if (t->tile[i].block != NULL || t->sum[i * NG_TILE_SUMS] == 0.0) continue;
    p->step->refused = true;
    (void)ng_fail(p->ctx, NG_SKIPPED, "'%s': its gradient is not finite", t->tile[i].slot->name);
  }
}

/* ---- emit ------------------------------------------------------------------------------------*/

typedef struct emission {
  const ng_tiles *tiles;
  const ng_sink *sink;
} emission;

/* Emit from the last tile to the first: the tiles that measure read last are still cached. */
static void emit_piece(void *arg, int32_t piece) {
  const emission *e = arg;
  const int32_t *at = e->tiles->all.cut + piece;
  for (int32_t i = at[1] - 1; i >= at[0]; i--) {
    const ng_tile *t = &e->tiles->tile[i];
    if (t->slot->out || !t->slot->here) continue;
    if (t->block != NULL) {
      ng_deliver_tile(t, t->block->segment[t->segment].factor, e->sink);
      continue;
    }
    const ng_pair plain = {.scale = 1.0};
    for (int64_t r = t->row; r < t->row + t->rows; r++) {
      ng_put(e->sink, t->slot, r, t->col, t->cols, &plain);
    }
  }
}

/* clip = value: compute PD line by line, clip each element to [-bound, bound], and pass the line to `next`. */
typedef struct bounded_sink {
  ng_sink sink; /* first member: the interface for families */
  const ng_sink *next;
  float bound;
} bounded_sink;

static void put_bounded(const ng_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                        const ng_pair *pair) {
  const bounded_sink *b = (const void *)s;
  double pd[NG_LINE];
  float line[NG_LINE];
  const ng_pair out = {.scale = 1.0, .values = line};
  if (slot->block == NULL) {
    ng_put(b->next, slot, row, col, n, pair);
    return;
  }
  for (int64_t c = 0, m; c < n; c += m) {
    m = ng_min64(NG_LINE, n - c);
    ng_pair_line(slot, row, col, pair, c, m, pd);
    for (int64_t i = 0; i < m; i++) {
      const float y = (float)pd[i];
      line[i] = y > b->bound ? b->bound : y < -b->bound ? -b->bound : y;
    }
    ng_put(b->next, slot, row, col + c, m, &out);
  }
}

void ng_tiles_emit(ng_precond *p, const ng_sink *sink) {
  const bounded_sink bounded = {{put_bounded}, sink, (float)p->base.clip_bound};
  const ng_sink *to = p->base.clip == NG_CLIP_VALUE ? &bounded.sink : sink;
  const ng_shard_sink parts = ng_shard_sink_to(to);
  emission e = {&p->step->tiles, ng_shards_due(p) ? &parts.sink : to};
  if (e.tiles->all.count > 0) ng_parallel(p->ctx, e.tiles->all.pieces, emit_piece, &e);
}
