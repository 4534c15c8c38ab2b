/* tiles.c: one loop over the gradients of many layers.
 *
 * Where PD of an element needs that element and a few numbers of its block, a step is two walks over
 * all gradients: measure, emit.  Both go through tiles of about the same size, cut once at ng_ready:
 * a tile is some whole rows of a parameter, or a part of one row, inside one group of its layer.
 * Threads share the tiles of all layers, so a small layer costs no fork of its own; the sums of a
 * tile do not depend on who made them, and `measure` adds them in order, so the bits do not depend
 * on the number of threads.  Parameters without curvature, which the fused updates must write, go
 * the same way. */
#include "core/core.h"
#include "model/model.h"

enum { ELEMENTS = 16384, PIECES = 256 };

/* ---- cutting ---------------------------------------------------------------------------------*/

static bool has_tiles(const ng_precond *p, const ng_entry *e) {
  if (e->block != NULL) return e->block->ops->measure_tile != NULL;
  return !e->d.frozen && p->now.update != NG_UPDATE_GRADIENT;
}

/* Rows [row, row + rows) by columns [col, col + cols) of one group, as tiles; counts them, and
 * writes them if `to` is not NULL. */
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

static int64_t cut_entry(ng_entry *e, ng_tile *to) {
  const int64_t groups = !e->tensor && e->d.kind == NG_CONV2D ? e->d.groups : 1;
  int64_t n = 0;
  for (int32_t k = 0; k < e->slots; k++) {
    const ng_slot *s = &e->slot[k];
    const bool flat = s->rows == 1; /* a bias or a tensor: groups are runs of its columns */
    for (int64_t g = 0; g < groups; g++) {
      const int64_t rows = flat ? 1 : s->rows / groups, cols = flat ? s->cols / groups : s->cols;
      const ng_tile whole = {e,   k, (int32_t)g, flat ? 0 : g * rows, rows, flat ? g * cols : 0,
                             cols};
      n += cut(to == NULL ? NULL : to + n, &whole);
    }
  }
  return n;
}

static int64_t elements(const ng_tile *t) { return t->rows * t->cols; }

/* Piece i is tiles [cut[i], cut[i+1]), about the same number of elements each. */
static void share_out(ng_precond *p) {
  int64_t all = 0, at = 0;
  int32_t t = 0;
  for (int32_t i = 0; i < p->tiles; i++) {
    all += elements(&p->tile[i]);
  }
  p->tile_elements = all;
  p->tile_pieces = all < ELEMENTS ? 1 : (int32_t)ng_min64(ng_threads_of(p->ctx), PIECES);
  for (int32_t i = 0; i < p->tile_pieces; i++) {
    p->tile_cut[i] = t;
    while (t < p->tiles && at * p->tile_pieces < all * (i + 1)) {
      at += elements(&p->tile[t++]);
    }
  }
  p->tile_cut[p->tile_pieces] = p->tiles;
}

ng_status ng_tiles_plan(ng_precond *p) {
  int64_t count = 0;
  for (int32_t i = 0; i < p->entries; i++) {
    if (has_tiles(p, p->entry[i])) count += cut_entry(p->entry[i], NULL);
  }
  if (count == 0) return NG_OK;
  if (count > INT32_MAX / NG_TILE_SUMS) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_ready: the model has too many parameters");
  }
  p->tiles = (int32_t)count;
  p->tile = ng_object(p, (size_t)count * sizeof *p->tile);
  p->tile_sum = ng_object(p, (size_t)(count * NG_TILE_SUMS) * sizeof *p->tile_sum);
  p->tile_cut = ng_object(p, (PIECES + 1) * sizeof *p->tile_cut);
  if (p->tile == NULL || p->tile_sum == NULL || p->tile_cut == NULL) {
    return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
  }
  int64_t at = 0;
  for (int32_t i = 0; i < p->entries; i++) {
    ng_entry *e = p->entry[i];
    if (!has_tiles(p, e)) continue;
    const int64_t n = cut_entry(e, p->tile + at);
    if (e->block != NULL) {
      e->block->tile = p->tile + at;
      e->block->tile_sum = p->tile_sum + at * NG_TILE_SUMS;
      e->block->tiles = (int32_t)n;
    }
    at += n;
  }
  share_out(p);
  return NG_OK;
}

void ng_tiles_release(ng_precond *p) {
  ng_object_free(p, p->tile_sum, (size_t)p->tiles * NG_TILE_SUMS * sizeof *p->tile_sum);
  ng_object_free(p, p->tile, (size_t)p->tiles * sizeof *p->tile);
  ng_object_free(p, p->tile_cut, (PIECES + 1) * sizeof *p->tile_cut);
  p->tile = NULL;
  p->tile_sum = NULL;
  p->tile_cut = NULL;
  p->tiles = p->tile_pieces = 0;
}

/* ---- walking ---------------------------------------------------------------------------------*/

static bool plain_finite(const ng_tile *t) {
  const ng_view *v = &t->entry->slot[t->which].grad;
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    const char *x = (const char *)v->data + (r * v->row_stride + t->col) * ng_dtype_size(v->dtype);
    if (!ng_all_finite(x, v->dtype, t->cols)) return false;
  }
  return true;
}

/* A parameter without curvature leaves its verdict in place of a sum: 1 is not finite. */
static void measure_piece(void *arg, int32_t piece) {
  const ng_precond *p = arg;
  for (int32_t i = p->tile_cut[piece]; i < p->tile_cut[piece + 1]; i++) {
    const ng_tile *t = &p->tile[i];
    const ng_block *b = t->entry->block;
    double *sum = p->tile_sum + i * NG_TILE_SUMS;
    memset(sum, 0, NG_TILE_SUMS * sizeof *sum);
    if (b != NULL) {
      b->ops->measure_tile(b, t, sum);
    } else {
      sum[0] = plain_finite(t) ? 0.0 : 1.0;
    }
  }
}

void ng_tiles_measure(ng_precond *p) {
  if (p->tiles == 0) return;
  const double t0 = ng_now_ms();
  ng_parallel(p->ctx, p->tile_pieces, measure_piece, p);
  const double ms = ng_now_ms() - t0;
  for (int32_t i = 0; i < p->tiles; i++) {
    const ng_block *b = p->tile[i].entry->block;
    if (b == NULL && p->tile_sum[i * NG_TILE_SUMS] != 0.0) p->refused = true;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    int64_t mine = 0;
    for (int32_t k = 0; k < b->tiles; k++) {
      mine += elements(&b->tile[k]);
    }
    /* One loop for all: a layer's time is its share of the elements. */
    b->measure_ms = b->tiles == 0 ? 0.0 : ms * (double)mine / (double)p->tile_elements;
  }
}

/* From the last tile to the first: what measure read last is still in the caches. */
static void emit_piece(void *arg, int32_t piece) {
  const ng_precond *p = arg;
  for (int32_t i = p->tile_cut[piece + 1] - 1; i >= p->tile_cut[piece]; i--) {
    const ng_tile *t = &p->tile[i];
    const ng_block *b = t->entry->block;
    if (b != NULL) {
      b->ops->emit_tile(b, t, b->factor[t->which], &p->sink);
      continue;
    }
    const ng_pair plain = {.scale = 1.0};
    for (int64_t r = t->row; r < t->row + t->rows; r++) {
      ng_sink_span(&p->sink, &t->entry->slot[t->which], r, t->col, t->cols, &plain);
    }
  }
}

void ng_tiles_emit(ng_precond *p) {
  if (p->tiles > 0) ng_parallel(p->ctx, p->tile_pieces, emit_piece, p);
}
