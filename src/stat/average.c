/* average.c: running averages by samples, calls and ranks; see average.h.
 *
 * In: a block's options and the samples of a call.  Out: the few numbers by which its arrays are
 * mixed.  Weighing every call by its samples makes uneven micro-batches and shards equal the whole
 * batch; the published programs' rules (equal weights, one update a call, the last call only) are
 * the other values of the same options. */
#include "stat/average.h"

int64_t ng_average_take(const ng_block *b, const ng_obs *o) {
  return b->opt.stat_batch > 0 ? ng_min64(b->opt.stat_batch, o->samples) : o->samples;
}

double ng_average_weight(const ng_block *b, int64_t take) {
  return b->opt.call_weight == NG_CALL_WEIGHT_EQUAL ? 1.0 : (double)take;
}

double ng_average_rho(const ng_block *b, const ng_average *a) {
  const bool ema = b->opt.calls == NG_CALLS_EMA;
  const bool first = !a->started && (!ema || a->w == 0.0); /* ema: a second call has an old */
  return first && b->opt.stat_start == NG_START_FIRST ? 0.0 : b->opt.stat_decay;
}

ng_mix ng_average_call(const ng_block *b, ng_average *a, int64_t take) {
  const double weight = ng_average_weight(b, take), rho = ng_average_rho(b, a);
  ng_mix mix = {1.0, weight};
  if (b->opt.calls == NG_CALLS_EMA) {
    mix = (ng_mix){a->w > 0.0 ? rho : 1.0, 1.0 - rho};
    a->keep = a->w > 0.0 ? a->keep * rho : rho;
    a->w += weight;
    return mix;
  }
  if (b->opt.calls == NG_CALLS_LAST && a->w > 0.0) {
    mix.old = 0.0;
    a->w = 0.0;
  }
  a->w += weight;
  a->keep = rho;
  return mix;
}

double ng_average_own(const ng_block *b, const ng_average *a) {
  return b->opt.calls == NG_CALLS_EMA && a->w > 0.0 ? a->w : 1.0;
}

void ng_average_weights(ng_average *input, ng_average *grad, double w[4], bool set) {
  ng_average *side[2] = {input, grad};
  for (int i = 0; i < 2; i++) {
    if (set) {
      side[i]->total = w[i];
      side[i]->total_keep = w[2 + i];
    } else {
      w[i] = side[i]->w;
      w[2 + i] = side[i]->w * side[i]->keep;
    }
  }
}

/* calls = ema: S is ready made, and weighted by w only if it went through a sum over ranks. */
ng_mix ng_average_fold(const ng_block *b, const ng_average *a) {
  const double keep = a->total_keep / a->total;
  const bool ema = b->opt.calls == NG_CALLS_EMA;
  const bool summed = b->p->ctx->ranks > 1 && b->opt.statistics == NG_STATISTICS_ALL;
  return (ng_mix){keep, !ema ? (1.0 - keep) / a->total : summed ? 1.0 / a->total : 1.0};
}

void ng_average_close(ng_average *a) {
  a->w = a->total = a->total_keep = 0.0;
  a->keep = 1.0;
}
