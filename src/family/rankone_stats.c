/* rankone_stats.c: add observations to the mean vectors a and g of a rank-one block.
 *
 * In: checked views. Out: S <- old S + fresh scale m, where m is the mean over samples and positions. For a
 * convolution, a is the mean patch, which kernel/box.c computes without forming patches. Sums are in double and finite
 * only if all inputs are finite, so no scan is needed.
 *
 * Scale (docs/algorithms.md): S positions of one sample, c the samples of the micro-batch for a
 * mean loss and 1 for a sum,
 *
 *                          a            g
 *     eva                  m            u m / loss_scale             lzhangbv/eva
 *     textbook, expand     sqrt(S) m    c m / loss_scale
 *     textbook, reduce     m            c S m / loss_scale
 *
 * u: for a mean loss over a micro-batch that all ranks share, this rank's share of the samples; otherwise 1. */
#include "family/rankone.h"

#include <math.h>

int64_t ng_rankone_scratch(const ng_block *b) {
  const ng_rankone *k = ng_rankone_of(b);
  int64_t most = 0;
  for (int i = 0; i < 2; i++) {
    const ng_mean *m = &k->side[i];
    if (m->conv.height == 0) continue; /* undeclared size: the first observation allocates */
    most = ng_max64(most, ng_round16(m->length) + ng_box_scratch(b->ctx->queue, &m->conv));
  }
  return most;
}

/* Return `scale` of the table above. */
static double observation_scale(const ng_block *b, const ng_obs *o) {
  const double S = (double)o->positions, c = o->reduction == NG_MEAN ? (double)o->samples : 1.0;
  const bool reduce = b->base.positions == NG_POSITIONS_REDUCE,
             grad = o->kind == NG_OBSERVED_OUTGRAD;
  if (b->base.stat_scale == NG_SCALE_EVA) return grad ? ng_obs_share(o) / o->loss_scale : 1.0;
  if (!grad) return reduce ? 1.0 : sqrt(S);
  return (reduce ? c * S : c) / o->loss_scale;
}

int64_t ng_rankone_room(const ng_block *b, const ng_obs *o) {
  if (b->entry->d.kind == NG_LINEAR)
    return 0; /* the scratch of ng_ready is large enough for any number of positions */
  const ng_mean *m = &ng_rankone_of(b)->side[o->kind == NG_OBSERVED_OUTGRAD];
  const ng_conv c = ng_obs_conv(&m->conv, o);
  return ng_times(ng_round16(m->length) + ng_box_scratch(b->ctx->queue, &c),
                  (int64_t)sizeof(double));
}

ng_status ng_rankone_observe(ng_block *b, const ng_obs *o) {
  const ng_mean *m = &ng_rankone_of(b)->side[o->kind == NG_OBSERVED_OUTGRAD];
  const ng_stat *s = m->stat;
  ng_queue *q = b->ctx->queue;
  double *room = ng_scratch(b);
  const ng_box box = {
      .x = o->view, .samples = s->samples, .conv = ng_obs_conv(&m->conv, o), .out = room};
  ng_kernels(q)->sum_patches(q, &box, 1, room + ng_round16(m->length));
  const int64_t n = box.conv.channels * ng_conv_taps(&box.conv);
  const double scale = s->mix.fresh * observation_scale(b, o);
  const double mean = scale / ((double)s->samples * (double)o->positions);
  return ng_stat_add(q, s, room, n, mean, scale); /* the input of the bias is 1 */
}
