/* ratios.c: histogram, extremes and sums of r = |d / (D + 1e-8)| over all elements of a list of directions.
 *
 * Each piece has its own counts and each tile its own sums. They are added in a fixed order, so the result does not
 * depend on the number of threads. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernel/entries.h"
#include "kernel/direction.h"

enum { SUMS = 4, REST = NG_RATIO_DROPPED_BITS - 11 };

typedef struct job {
  const ng_ratios *r;
  const ng_weight_update *updates; /* NULL: ratios of the directions, not of updates */
} job;

static uint32_t ratio_key(double r) {
  const float x = (float)fmin(r * 0x1p-30, (double)FLT_MAX);
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

void ng_count_ratio(const ng_ratios *to, double d, double g) {
  const double r = fabs(d / (g + 1e-8)); /* no division by 0, because no f32 is -1e-8 */
  const uint32_t key = ratio_key(r), bin = key >> NG_RATIO_DROPPED_BITS;
  for (int32_t k = 0; k < to->bins; k++) {
    if (to->bin[k] == bin)
      to->count[k * NG_RATIO_FINE_BINS + (int32_t)(key >> REST & (NG_RATIO_FINE_BINS - 1))]++;
  }
  if (to->bins > 0) return;
  to->count[bin]++;
  to->extreme[0] = fmin(to->extreme[0], r);
  to->extreme[1] = fmax(to->extreme[1], r);
  to->sum[0] += r;
  to->sum[1] += d * g;
  to->sum[2] += g * g;
  to->sum[3] += d * d;
}

static void count_tile(void *arg, const void *descriptor, const ng_tile *t) {
  const job *j = arg;
  const ng_direction *e = descriptor;
  /* ng_count_ratio adds to the counts of this piece and to the sums of this tile */
  ng_ratios to = *j->r;
  to.count += (int64_t)t->piece * NG_RATIO_BINS;
  to.extreme += 2 * t->piece;
  to.sum += t->index * SUMS;
  float u[NG_LINE];
  double g[NG_LINE], d[NG_LINE];
  if (to.bins == 0) memset(to.sum, 0, SUMS * sizeof *to.sum);
  for (int64_t r = t->row; r < t->row + t->rows; r++) {
    for (int64_t c = t->col, n; c < t->col + t->cols; c += n) {
      n = ng_min64(NG_LINE, t->col + t->cols - c);
      ng_place_read_double(e->D.place, e->D.row + r, e->D.col + c, n, g);
      if (j->updates == NULL) {
        ng_compute_line(e, r, c, n, d);
      } else {
        ng_direction_of_update(e, &j->updates[t->region], r, c, n, u);
      }
      for (int64_t i = 0; i < n; i++) {
        ng_count_ratio(&to, j->updates == NULL ? d[i] : (double)u[i], g[i]);
      }
    }
  }
}

void ng_cpu_count_ratios(ng_queue *q, const ng_direction *e, const ng_weight_update *s, int64_t n,
                         const ng_ratios *r) {
  job j = {r, s};
  memset(r->count, 0, (size_t)q->threads * NG_RATIO_BINS * sizeof *r->count);
  for (int32_t i = 0; i < q->threads && r->bins == 0; i++) {
    r->extreme[2 * i] = INFINITY;
    r->extreme[2 * i + 1] = 0.0;
  }
  const int64_t tiles = ng_run_tiles(q, e, sizeof *e, n, false, count_tile, &j);
  for (int32_t i = 1; i < q->threads; i++) {
    r->extreme[0] = fmin(r->extreme[0], r->extreme[2 * i]);
    r->extreme[1] = fmax(r->extreme[1], r->extreme[2 * i + 1]);
    for (int64_t k = 0; k < NG_RATIO_BINS; k++) {
      r->count[k] += r->count[i * NG_RATIO_BINS + k];
    }
  }
  memset(r->out, 0, SUMS * sizeof *r->out);
  for (int64_t k = 0; k < tiles * SUMS; k++) {
    r->out[k % SUMS] += r->sum[k];
  }
}
