/* quantify.c: how far preconditioning scales each element, the other half of EFCP's measure of it
 * (arXiv 2306.06098): r_i = |u_i / (g_i + 1e-8)| of gradient g = D and direction u = PD before the clip.
 *
 * In: tiles, before what leaves is written over the gradients.  Out: least, quartiles, largest and mean of r.
 *
 * One pass, no array of d numbers: r is counted by the leading bits of its f32, 64 bins an octave, and a
 * quantile is the middle of its bin, so it is known to 1/128.  As published it is the mean of its two
 * neighbours among the sorted r ("midpoint").  r below 2^-132 counts as 0, above FLT_MAX as that; least,
 * largest and mean are of the numbers themselves.  Every thread has its own counts, and a tile its own sum:
 * added in their order, the same for any number of threads.
 *
 * Every rank has PD of all blocks and counts for itself; with update_ranks = owner each counts what it
 * moves, and the counts are added. */
#include "step/step.h"

#include <float.h>
#include <math.h>

enum { DROPPED = 17, LINE = 512, ALONE = 3 };
/* Exponent and the first six bits of the mantissa, up to FLT_MAX. */
enum { BINS = 0x7F800000 >> DROPPED };

/* ---- memory ----------------------------------------------------------------------------------*/

static size_t piece_bytes(const ng_precond *p) {
  return (size_t)p->step->tiles.all.pieces * sizeof(ng_scaling_piece);
}

static size_t count_bytes(const ng_precond *p) {
  return (size_t)p->step->tiles.all.pieces * BINS * sizeof(int64_t);
}

static size_t sum_bytes(const ng_precond *p) {
  return (size_t)p->step->tiles.all.count * sizeof(double);
}

static size_t wire_bytes(const ng_precond *p) {
  const bool travels = p->ctx->ranks > 1 && ng_update_is_owned(p);
  return travels ? (BINS + ALONE * (size_t)p->ctx->ranks) * sizeof(double) : 0;
}

ng_status ng_quantify_plan(ng_precond *p) {
  ng_quantify *q = &p->step->quantify;
  if (!p->base.quantify || p->step->tiles.all.count == 0) return NG_OK;
  q->piece = ng_object(p, piece_bytes(p));
  q->count = ng_object(p, count_bytes(p));
  q->sum = ng_object(p, sum_bytes(p));
  if (wire_bytes(p) > 0) q->wire = ng_object(p, wire_bytes(p));
  const bool whole = q->piece != NULL && q->count != NULL && q->sum != NULL;
  if (whole && (q->wire != NULL || wire_bytes(p) == 0)) return NG_OK;
  return ng_fail(p->ctx, NG_ERR_NOMEM, "ng_ready: no memory");
}

/* Before the tiles are: their number is asked for. */
void ng_quantify_release(ng_precond *p) {
  ng_quantify *q = &p->step->quantify;
  ng_object_free(p, q->piece, piece_bytes(p));
  ng_object_free(p, q->count, count_bytes(p));
  ng_object_free(p, q->sum, sum_bytes(p));
  ng_object_free(p, q->wire, wire_bytes(p));
  memset(q, 0, sizeof *q);
}

bool ng_quantify_due(const ng_precond *p) { return p->step->quantify.piece != NULL; }

/* ---- counting --------------------------------------------------------------------------------*/

typedef struct scaling_sink {
  ng_sink sink; /* first: what families see */
  ng_scaling_piece *piece;
  int64_t *count;
  double *sum; /* of the tile */
} scaling_sink;

static int32_t bin_of(double r) {
  const float x = (float)fmin(r, (double)FLT_MAX);
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (int32_t)(bits >> DROPPED);
}

static void count_row(const ng_sink *sink, ng_slot *slot, int64_t row, int64_t col, int64_t n,
                      const ng_pair *pair) {
  const scaling_sink *s = (const scaling_sink *)(const void *)sink;
  ng_scaling_piece *piece = s->piece;
  float g[LINE];
  for (int64_t c = 0, m; c < n; c += m) {
    m = ng_min64(LINE, n - c);
    ng_slot_read(slot, row, col + c, m, g);
    for (int64_t i = 0; i < m; i++) {
      const double x = pair->values != NULL ? (double)pair->values[c + i] : (double)g[i];
      const double u = pair->scale * x + (pair->u == NULL ? 0.0 : pair->k * (double)pair->u[c + i]);
      const double r = fabs(u / ((double)g[i] + 1e-8)); /* no f32 is -1e-8 */
      s->count[bin_of(r)]++;
      piece->least = fmin(piece->least, r);
      piece->most = fmax(piece->most, r);
      *s->sum += r;
    }
  }
}

static void count_piece(void *arg, int32_t i) {
  const ng_precond *p = arg;
  const ng_tiles *tiles = &p->step->tiles;
  const ng_quantify *q = &p->step->quantify;
  scaling_sink s = {{count_row}, &q->piece[i], q->count + (int64_t)i * BINS, NULL};
  *s.piece = (ng_scaling_piece){INFINITY, 0.0};
  memset(s.count, 0, BINS * sizeof *s.count);
  for (int32_t t = tiles->all.cut[i]; t < tiles->all.cut[i + 1]; t++) {
    const ng_tile *tile = &tiles->tile[t];
    s.sum = &q->sum[t];
    *s.sum = 0.0;
    if (tile->block == NULL || tile->slot->out || !tile->slot->here) continue;
    ng_deliver_tile(tile, 1.0, &s.sink);
  }
}

/* Into the first piece. */
static double gather_pieces(const ng_precond *p) {
  const ng_tiles *tiles = &p->step->tiles;
  const ng_quantify *q = &p->step->quantify;
  double sum = 0.0;
  for (int32_t i = 1; i < tiles->all.pieces; i++) {
    q->piece->least = fmin(q->piece->least, q->piece[i].least);
    q->piece->most = fmax(q->piece->most, q->piece[i].most);
    for (int64_t k = 0; k < BINS; k++) {
      q->count[k] += q->count[i * BINS + k];
    }
  }
  for (int32_t t = 0; t < tiles->all.count; t++) {
    sum += q->sum[t];
  }
  return sum;
}

/* Counts add up exactly in double; of the rest each rank has a place of its own, 0 elsewhere. */
static ng_status gather_ranks(ng_precond *p, double *sum) {
  const ng_quantify *q = &p->step->quantify;
  const int64_t W = p->ctx->ranks;
  double *own = q->wire + BINS;
  for (int64_t k = 0; k < BINS; k++) {
    q->wire[k] = (double)q->count[k];
  }
  memset(own, 0, (size_t)(ALONE * W) * sizeof *own);
  /* A rank with nothing has no least: FLT_MAX squared is above any other. */
  own[ALONE * p->ctx->rank] = fmin(q->piece->least, (double)FLT_MAX * (double)FLT_MAX);
  own[ALONE * p->ctx->rank + 1] = q->piece->most;
  own[ALONE * p->ctx->rank + 2] = *sum;
  const ng_status st = ng_exchange_sum(p, q->wire, BINS + ALONE * W, "quantify");
  if (st != NG_OK) return st;
  *q->piece = (ng_scaling_piece){INFINITY, 0.0};
  *sum = 0.0;
  for (int64_t r = 0; r < W; r++) {
    q->piece->least = fmin(q->piece->least, own[ALONE * r]);
    q->piece->most = fmax(q->piece->most, own[ALONE * r + 1]);
    *sum += own[ALONE * r + 2];
  }
  for (int64_t k = 0; k < BINS; k++) {
    q->count[k] = (int64_t)q->wire[k];
  }
  return NG_OK;
}

/* ---- quantiles -------------------------------------------------------------------------------*/

static double bin_begin(int32_t bin) {
  const uint32_t bits = (uint32_t)bin << DROPPED;
  float x;
  memcpy(&x, &bits, sizeof x);
  return bin == BINS ? (double)FLT_MAX : (double)x;
}

/* The `at`-th of the sorted r, from 0. */
static double order(const ng_quantify *q, int64_t at) {
  int32_t bin = 0;
  for (int64_t before = q->count[0]; before <= at; before += q->count[++bin]) {
  }
  const double middle = bin == 0 ? 0.0 : (bin_begin(bin) + bin_begin(bin + 1)) / 2.0;
  return fmax(q->piece->least, fmin(q->piece->most, middle));
}

static double quantile(const ng_quantify *q, int64_t n, int quarter) {
  const int64_t at = (n - 1) * quarter;
  return (order(q, at / 4) + order(q, (at + 3) / 4)) / 2.0;
}

ng_status ng_quantify_step(ng_precond *p) {
  ng_quantify *q = &p->step->quantify;
  int64_t n = 0;
  ng_parallel(p->ctx, p->step->tiles.all.pieces, count_piece, p);
  double sum = gather_pieces(p);
  const ng_status st = q->wire == NULL ? NG_OK : gather_ranks(p, &sum);
  if (st != NG_OK) return st;
  for (int64_t k = 0; k < BINS; k++) {
    n += q->count[k];
  }
  q->found = (ng_scaling){.count = n};
  if (n == 0) return NG_OK;
  q->found = (ng_scaling){.count = n,
                          .least = q->piece->least,
                          .quartile = {quantile(q, n, 1), quantile(q, n, 2), quantile(q, n, 3)},
                          .most = q->piece->most,
                          .mean = sum / (double)n};
  return NG_OK;
}
