/* deliver.c: store PD of blocks that some ranks cannot compute, and read PD of all blocks.
 *
 * A family with keeps_direction (Kronecker) stores PD itself; its emit_tile reads the stored PD on all ranks.  For
 * other families, ranks with results call emit_tile with a sink that stores PD in b->direction, segment after segment,
 * row after row.  The exchange sends b->direction, and all ranks read PD from there, so all have the same bits. */
#include "step/step.h"

/* ---- stored PD -------------------------------------------------------------------------------*/

static int64_t count_of(const ng_block *b) {
  const ng_segment *last = &b->segment[b->segments - 1];
  return last->at + last->to - last->from;
}

/* b->direction has the size of the block's gradients in f32, on every rank. */
void ng_deliver_plan(ng_block *b, ng_plan *plan) {
  const ng_precond *p = b->p;
  b->delivered = !b->keeps_direction && p->grid.n > 1 && (b->solves || !b->keeps_everywhere);
  if (!b->delivered) return;
  ng_plan_direction(plan, b, count_of(b));
  b->keeps_direction = false; /* the engine stores PD */
}

/* Return the address of element (row, col) of a segment in b->direction, where rows are dense. */
static float *place(const ng_block *b, int32_t segment, int64_t row, int64_t col) {
  const ng_segment *g = &b->segment[segment];
  return b->direction + g->at + row * g->slot->cols + col - g->from;
}

void ng_pair_line(const ng_slot *slot, int64_t row, int64_t col, const ng_pair *pair, int64_t at,
                  int64_t n, double *pd) {
  float line[NG_LINE];
  const float *d = pair->values == NULL ? line : pair->values + at;
  if (pair->values == NULL) ng_slot_read(slot, row, col + at, n, line);
  for (int64_t i = 0; i < n; i++) {
    const double x = pair->scale * (double)d[i];
    pd[i] = pair->u == NULL ? x : x + pair->k * (double)pair->u[at + i];
  }
}

/* Store a row of PD in b->direction.  Threads store disjoint tiles. */
static void keep(const ng_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                 const ng_pair *pair) {
  (void)s;
  float *to = place(slot->block, slot->segment, row, col);
  double pd[NG_LINE];
  for (int64_t c = 0, m; c < n; c += m) {
    m = ng_min64(NG_LINE, n - c);
    ng_pair_line(slot, row, col, pair, c, m, pd);
    for (int64_t i = 0; i < m; i++) {
      to[c + i] = (float)pd[i];
    }
  }
}

static const ng_sink keeper = {keep};

static void fill_tile(void *arg, int32_t i) {
  const ng_block *b = arg;
  b->family->emit_tile(b, &b->tile[i], 1.0, &keeper);
}

/* Store PD with factor 1: the clip factor is not known yet; ng_deliver_tile multiplies by this factor. */
void ng_deliver_fill(ng_block *b) {
  if (b->delivered && b->is_worker && !b->out) ng_parallel(b->ctx, b->tiles, fill_tile, b);
}

/* ---- reading PD ------------------------------------------------------------------------------*/

void ng_deliver_tile(const ng_tile *t, double factor, const ng_sink *sink) {
  const ng_block *b = t->block;
  if (!b->delivered) {
    b->family->emit_tile(b, t, factor, sink);
    return;
  }
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    const ng_pair pair = {.scale = factor, .values = place(b, t->segment, r, t->col)};
    ng_put(sink, t->slot, r, t->col, t->cols, &pair);
  }
}

/* ---- norms -----------------------------------------------------------------------------------*/

/* A sink, on one thread, that adds |PD|^2 of each segment k of a block to pd2[k]. */
typedef struct norm_sink {
  ng_sink sink;
  double *pd2;
} norm_sink;

static void add_norm(const ng_sink *s, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                     const ng_pair *pair) {
  double *pd2 = &((const norm_sink *)(const void *)s)->pd2[slot->segment], pd[NG_LINE];
  for (int64_t c = 0, m; c < n; c += m) {
    m = ng_min64(NG_LINE, n - c);
    ng_pair_line(slot, row, col, pair, c, m, pd);
    for (int64_t i = 0; i < m; i++) {
      *pd2 += pd[i] * pd[i];
    }
  }
}

void ng_deliver_norms(ng_block *b, double *pd2) {
  if (b->family->norms != NULL &&
      !b->delivered) { /* a rank of a delivered block may lack the results */
    b->family->norms(b, pd2);
    return;
  }
  const norm_sink sink = {{add_norm}, pd2};
  memset(pd2, 0, (size_t)b->segments * sizeof *pd2);
  for (int32_t i = 0; i < b->tiles; i++) { /* in order: equal bits on all ranks */
    ng_deliver_tile(&b->tile[i], 1.0, &sink.sink);
  }
}
