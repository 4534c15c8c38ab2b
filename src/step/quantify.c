/* quantify.c: the ratio by which a step scales each element, as EFCP measures it (arXiv 2306.06098):
 * r_i = |u_i / (g_i + 1e-8)| with the gradient g = D and the direction u = PD before the clip.
 *
 * In: tiles, before directions overwrite the gradients.  Out: minimum, quartiles, maximum and mean of r.
 *
 * Without preconditioned blocks, u is the factor of lr in the fused update with moments m, v and t updates:
 *   SGD    m, or the gradient if there is no momentum
 *   AdamW  m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
 * Then <g, u>, |g|^2 and |u|^2 of the report are computed here, too.
 *
 * Two counting passes replace a sort and an array of all r:
 * 1. Count r by the leading bits of its f32 (exponent and 6 bits: 64 bins per octave).
 * 2. Each quartile is the mean of its two neighbours in sorted order, as published ("midpoint").  Count
 *    the elements in the bins of these six neighbours by the next 11 bits.
 * The middle of a fine bin is within 2^-18 (relative) of the neighbour.  Bins are made of the f32 of 2^-30 r, so the
 * largest ratio of f32 numbers fits.  For r below 2^-96 the error is 2^-114, and r below 2^-113 counts as 0.
 * Minimum, maximum and mean are computed from r itself.
 *
 * Each piece has its own counts and each tile its own sums.  They are added in a fixed order, so the
 * result does not depend on the number of threads.
 *
 * Every rank has PD of all blocks and counts all elements.  With update_ranks = owner each rank counts
 * its own updates, and the counts are summed over ranks. */
#include "step/step.h"

#include <float.h>
#include <math.h>

enum { DROPPED = 17, ENDS = 2, SUMS = 4, ALONE = ENDS + SUMS };
/* A key is the bits of the f32 of 2^-30 r.  The first pass drops the low DROPPED bits: BINS bins up to FLT_MAX. The
 * second pass counts by the next 11 bits (FINE bins).  Each rank also sends its minimum and maximum (ENDS) and SUMS
 * sums. */
enum { BINS = 0x7F800000 >> DROPPED, NEXT = 11, FINE = 1 << NEXT, REST = DROPPED - NEXT };
enum { WANTED = 6 };
_Static_assert(WANTED *FINE <= BINS, "the second pass counts in the memory of the first");
static const double SHRINK = 0x1p-30;

/* ---- memory ----------------------------------------------------------------------------------*/

ng_status ng_quantify_plan(ng_precond *p) {
  ng_quantify *q = &p->step->quantify;
  const size_t pieces = (size_t)p->step->tiles.all.pieces, W = (size_t)p->ctx->ranks;
  if (!p->base.quantify || p->step->tiles.all.count == 0) return NG_OK;
  q->piece = ng_object(p, pieces * sizeof *q->piece);
  q->count = ng_object(p, pieces * BINS * sizeof *q->count);
  q->sum = ng_object(p, (size_t)p->step->tiles.all.count * SUMS * sizeof *q->sum);
  if (W > 1 && ng_update_is_owned(p)) q->wire = ng_object(p, (BINS + ALONE * W) * sizeof *q->wire);
  return ng_objects_status(p);
}

bool ng_quantify_due(const ng_precond *p) { return p->step->quantify.piece != NULL; }

/* Return whether u is the fused update, because there is no block.  Not with pipeline stages: a stage without blocks
 * reports <D, PD> of all stages. */
static bool of_updates(const ng_precond *p) { return p->blocks == 0 && !ng_stages_there(p); }

/* ---- counting --------------------------------------------------------------------------------*/

/* One element of the sorted r: its bin in the first pass, and its rank within this bin (`rest`). */
typedef struct neighbour {
  int64_t rest;
  uint32_t bin;
  int32_t of; /* index of `bin` in pass.bin */
} neighbour;

/* A pass over all tiles.  The second pass counts only elements of the listed bins, which ascend. */
typedef struct pass {
  const ng_precond *p;
  const uint32_t *bin;
  int32_t bins; /* number of listed bins; 0: the first pass */
} pass;

typedef struct scaling_sink {
  ng_sink sink; /* first member: the interface for families */
  const pass *of;
  ng_scaling_piece *piece;
  int64_t *count;
  double *sum; /* [SUMS] of the current tile */
} scaling_sink;

static uint32_t key_of(double r) {
  const float x = (float)fmin(r * SHRINK, (double)FLT_MAX);
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static void count(const scaling_sink *s, double u, double g) {
  const double r = fabs(u / (g + 1e-8)); /* not a division by 0: no f32 is -1e-8 */
  const uint32_t key = key_of(r), bin = key >> DROPPED;
  for (int32_t k = 0; k < s->of->bins; k++) {
    if (s->of->bin[k] == bin) s->count[k * FINE + (int32_t)(key >> REST & (FINE - 1))]++;
  }
  if (s->of->bins > 0) return;
  s->count[bin]++;
  s->piece->least = fmin(s->piece->least, r);
  s->piece->most = fmax(s->piece->most, r);
  s->sum[0] += r;
  s->sum[1] += u * g;
  s->sum[2] += g * g;
  s->sum[3] += u * u;
}

static void count_row(const ng_sink *sink, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                      const ng_pair *pair) {
  const scaling_sink *s = (const scaling_sink *)(const void *)sink;
  float g[NG_LINE];
  double u[NG_LINE];
  for (int64_t c = 0, m; c < n; c += m) {
    m = ng_min64(NG_LINE, n - c);
    ng_slot_read(slot, row, col + c, m, g);
    ng_pair_line(slot, row, col, pair, c, m, u);
    for (int64_t i = 0; i < m; i++) {
      count(s, u[i], (double)g[i]);
    }
  }
}

static void count_update(const scaling_sink *s, const ng_tile *t) {
  float g[NG_LINE], u[NG_LINE];
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    for (int64_t c = 0, m; c < t->cols; c += m) {
      m = ng_min64(NG_LINE, t->cols - c);
      ng_slot_read(t->slot, r, t->col + c, m, g);
      ng_update_direction(s->of->p, t->slot, r, t->col + c, m, u);
      for (int64_t i = 0; i < m; i++) {
        count(s, (double)u[i], (double)g[i]);
      }
    }
  }
}

static void count_piece(void *arg, int32_t i) {
  const pass *of = arg;
  const ng_precond *p = of->p;
  const ng_tiles *tiles = &p->step->tiles;
  const ng_quantify *q = &p->step->quantify;
  const bool updates = of_updates(p);
  scaling_sink s = {{count_row}, of, &q->piece[i], q->count + (int64_t)i * BINS, NULL};
  if (of->bins == 0) *s.piece = (ng_scaling_piece){INFINITY, 0.0};
  memset(s.count, 0, BINS * sizeof *s.count);
  for (int32_t t = tiles->all.cut[i]; t < tiles->all.cut[i + 1]; t++) {
    const ng_tile *tile = &tiles->tile[t];
    s.sum = &q->sum[(int64_t)t * SUMS];
    if (of->bins == 0) memset(s.sum, 0, SUMS * sizeof *s.sum);
    if (tile->slot->out || !tile->slot->here) continue;
    if (tile->block != NULL) ng_deliver_tile(tile, 1.0, &s.sink);
    if (tile->block == NULL && updates) count_update(&s, tile);
  }
}

/* Add the counts of all pieces into the first piece, and the sums of all tiles into `sum`. */
static void gather_pieces(const ng_precond *p, double sum[SUMS]) {
  const ng_tiles *tiles = &p->step->tiles;
  const ng_quantify *q = &p->step->quantify;
  for (int32_t i = 1; i < tiles->all.pieces; i++) {
    q->piece->least = fmin(q->piece->least, q->piece[i].least);
    q->piece->most = fmax(q->piece->most, q->piece[i].most);
    for (int64_t k = 0; k < BINS; k++) {
      q->count[k] += q->count[i * BINS + k];
    }
  }
  memset(sum, 0, SUMS * sizeof *sum);
  for (int64_t t = 0; t < tiles->all.count * SUMS; t++) {
    sum[t % SUMS] += q->sum[t];
  }
}

/* Sum counts, minima, maxima and sums over ranks.  Counts are exact in double.  The other numbers have a place for each
 * rank, which is 0 on all other ranks. */
static ng_status gather_ranks(ng_precond *p, double sum[SUMS]) {
  const ng_quantify *q = &p->step->quantify;
  const int64_t W = p->ctx->ranks;
  double *all = q->wire + BINS, *own = all + ALONE * p->ctx->rank;
  for (int64_t k = 0; k < BINS; k++) {
    q->wire[k] = (double)q->count[k];
  }
  memset(all, 0, (size_t)(ALONE * W) * sizeof *all);
  /* without elements the minimum is INFINITY: send a finite number above all ratios */
  own[0] = fmin(q->piece->least, (double)FLT_MAX * (double)FLT_MAX);
  own[1] = q->piece->most;
  memcpy(own + ENDS, sum, SUMS * sizeof *sum);
  const ng_status st = ng_exchange_sum(p, q->wire, BINS + ALONE * W, "quantify");
  if (st != NG_OK) return st;
  *q->piece = (ng_scaling_piece){INFINITY, 0.0};
  memset(sum, 0, SUMS * sizeof *sum);
  for (int64_t r = 0; r < W; r++, all += ALONE) {
    q->piece->least = fmin(q->piece->least, all[0]);
    q->piece->most = fmax(q->piece->most, all[1]);
    for (int k = 0; k < SUMS; k++) {
      sum[k] += all[ENDS + k];
    }
  }
  for (int64_t k = 0; k < BINS; k++) {
    q->count[k] = (int64_t)q->wire[k];
  }
  return NG_OK;
}

/* Run one pass over all elements, and combine the counts of pieces and ranks. */
static ng_status count_all(ng_precond *p, pass *of, double sum[SUMS]) {
  ng_parallel(p->ctx, p->step->tiles.all.pieces, count_piece, of);
  gather_pieces(p, sum);
  return p->step->quantify.wire == NULL ? NG_OK : gather_ranks(p, sum);
}

/* ---- quantiles -------------------------------------------------------------------------------*/

/* Return the middle of the numbers with keys [key, key + many). */
static double middle(uint32_t key, uint32_t many) {
  const double from = (double)ng_float_of_bits(key);
  const double to =
      key + many < NG_INF_BITS ? (double)ng_float_of_bits(key + many) : (double)FLT_MAX;
  return (from + to) / 2.0 / SHRINK;
}

/* Find element `at` (from 0) of the sorted r. */
static neighbour find(const ng_quantify *q, int64_t at) {
  uint32_t bin = 0;
  while (q->count[bin] <= at) {
    at -= q->count[bin++];
  }
  return (neighbour){.rest = at, .bin = bin};
}

static double value_of(const ng_quantify *q, neighbour x) {
  const int64_t *fine = q->count + x.of * FINE;
  uint32_t at = 0;
  while (at < FINE - 1 && fine[at] <= x.rest) {
    x.rest -= fine[at++];
  }
  const uint32_t key = x.bin << DROPPED | at << REST;
  const double r = key == 0 ? 0.0 : middle(key, 1U << REST);
  return fmax(q->piece->least, fmin(q->piece->most, r));
}

/* Find the two neighbours of each quartile; list their bins, ascending, and return the number of bins. */
static int32_t find_all(const ng_quantify *q, int64_t n, neighbour *x, uint32_t *bin) {
  int32_t bins = 0;
  for (int k = 0; k < WANTED; k++) {
    x[k] = find(q, ((n - 1) * (k / 2 + 1) + (k % 2 == 0 ? 0 : 3)) / 4);
    if (bins == 0 || bin[bins - 1] != x[k].bin) bin[bins++] = x[k].bin;
    x[k].of = bins - 1;
  }
  return bins;
}

ng_status ng_quantify_step(ng_precond *p) {
  ng_quantify *q = &p->step->quantify;
  pass of = {.p = p};
  neighbour x[WANTED];
  uint32_t bin[WANTED];
  double sum[SUMS], again[SUMS];
  int64_t n = 0;
  ng_status st = count_all(p, &of, sum);
  if (st != NG_OK) return st;
  for (int64_t k = 0; k < BINS; k++) {
    n += q->count[k];
  }
  q->found = (ng_scaling){.count = n};
  if (n == 0) return NG_OK; /* n is equal on all ranks */
  of.bins = find_all(q, n, x, bin);
  of.bin = bin;
  st = count_all(p, &of, again);
  if (st != NG_OK) return st;
  q->found.least = q->piece->least;
  q->found.most = q->piece->most;
  q->found.mean = sum[0] / (double)n;
  for (int k = 0; k < WANTED; k += 2) {
    q->found.quartile[k / 2] = (value_of(q, x[k]) + value_of(q, x[k + 1])) / 2.0;
  }
  if (!of_updates(p)) return NG_OK;
  p->step->inner = sum[1];
  p->step->d2 = sum[2];
  p->step->pd2 = sum[3];
  return NG_OK;
}
