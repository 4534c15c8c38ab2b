/* stat.c: a statistic from observation to average; stat.h has the sequence.
 *
 * In: the rule of a statistic and the number of samples of an observation. Out: weights; averages. Every observation has
 * its number of samples as weight, so that uneven micro-batches and shards give the same average as the whole batch.
 * Other values of the options give the rules of published programs.
 *
 * With X_i the mean of observation i of n in this step, w_i its weight, rho the weight of the old average, S the sum of
 * the step and F the running average,
 *
 *     calls = mean   S = sum w_i X_i                        F <- rho F + (1 - rho) S / sum w_i
 *     calls = last   S = w_n X_n                            F <- rho F + (1 - rho) S / w_n
 *     calls = ema    S <- rho S + (1 - rho) X_i, for all i  F <- rho^n F + S
 *     adds, rho = 1  S = sum w_i X_i                        F <- F + S / sum w_i
 *
 * S and w are also summed over ranks. With calls = ema, F is the mean of the ranks' averages, weighted by samples: each
 * rank multiplies its S by its w before the sum over ranks, and the fold divides by the total weight. */
#include "stat/stat.h"

#include <math.h>

int64_t ng_stat_part_count(const ng_stat *s, const ng_stat_part *p) {
  return s->symmetric ? ng_sym_count(p->rows) : p->rows * p->cols;
}

/* Reset the weights of this step. keep = 1, because without a sample the old average does not change. */
static void reset_step(ng_stat *s) {
  s->w = s->w_total = s->w_keep_total = 0.0;
  s->keep = 1.0;
  s->posted = s->last_observed = s->is_new = false;
}

/* Add `by` to the diagonal of the average. */
static void shift_diagonal(ng_queue *q, const ng_stat *s, const ng_stat_part *p, double by) {
  ng_linalg(q)->shift_diagonal(q, s->symmetric ? p->rows : p->diagonal, p->average,
                               s->average_dtype, !s->symmetric, by);
}

/* start = identity: set the diagonal of the average to 1, as KAISA and kfac_pytorch do. start = first: nothing to set,
 * because the first fold gives the old average the weight 0. */
void ng_stat_init(ng_queue *q, ng_stat *s) {
  reset_step(s);
  if (!s->has_average || s->rule.start != NG_START_IDENTITY) return;
  for (int32_t i = 0; i < s->parts; i++) {
    shift_diagonal(q, s, &s->part[i], 1.0);
  }
}

/* ---- observations ----------------------------------------------------------------------------*/

static double observation_weight(const ng_stat *s) {
  const double take = (double)s->samples;
  return s->rule.equal_weights ? take / (double)s->samples_all : take;
}

/* Return rho for the next observation: 0 for the first observation if start = first. With calls = ema, the second
 * observation of the first step has an old average, which is the first observation. */
static double old_weight(const ng_stat *s) {
  const bool ema = s->rule.calls == NG_CALLS_EMA;
  const bool first = !s->started && (!ema || s->w == 0.0);
  return first && s->rule.start == NG_START_FIRST ? 0.0 : s->rule.decay;
}

void ng_stat_prepare(ng_stat *s, int64_t samples, int64_t first, int64_t whole) {
  const bool more = s->w > 0.0;
  const int64_t of = whole > 0 ? whole : samples, most = s->rule.stat_batch;
  s->samples_all = most > 0 ? ng_min64(most, of) : of;
  s->samples = ng_min64(ng_max64(0, s->samples_all - first), samples);
  if (!s->rule.averaged) {
    s->mix = (ng_mix){1.0, 1.0};
    return;
  }
  const double rho = old_weight(s);
  if (s->rule.calls == NG_CALLS_EMA) {
    s->mix = (ng_mix){more ? rho : 1.0, 1.0 - rho};
  } else {
    s->mix = (ng_mix){s->rule.calls == NG_CALLS_LAST && more ? 0.0 : 1.0, observation_weight(s)};
  }
}

static void scale_sums(ng_queue *q, const ng_stat *s, double by) {
  for (int32_t i = 0; i < s->parts && by != 1.0; i++) {
    ng_linalg(q)->scale(q, ng_stat_part_count(s, &s->part[i]), s->part[i].sum, s->sum_dtype, by);
  }
}

void ng_stat_scale_old(ng_queue *q, const ng_stat *s) { scale_sums(q, s, s->mix.old); }

ng_status ng_stat_add(ng_queue *q, const ng_stat *s, const double *x, int64_t n, double c,
                      double rest) {
  const int64_t count = ng_stat_part_count(s, s->part);
  const ng_accumulation add = {x,          n, count, 1,         s->part->sum, s->sum_dtype,
                               s->mix.old, c, rest,  s->is_late};
  ng_kernels(q)->accumulate(q, &add, 1);
  if (s->is_late) return NG_OK;
  ng_queue_wait(q);
  return isnan(*ng_read_numbers(q, x)) ? NG_SKIPPED : NG_OK;
}

/* Called after the observation was added, so that a refused observation has no weight. */
void ng_stat_count_samples(ng_stat *s) {
  if (!s->rule.averaged) {
    s->w = 1.0;
    return;
  }
  const double weight = observation_weight(s), rho = old_weight(s);
  const bool ema = s->rule.calls == NG_CALLS_EMA;
  if (s->rule.calls == NG_CALLS_LAST) s->w = 0.0;
  s->keep = ema && s->w > 0.0 ? s->keep * rho : rho;
  s->w += weight;
}

/* The observation had no sample on this rank. With calls = last, it nevertheless replaces all earlier observations. */
void ng_stat_skip_observation(ng_queue *q, ng_stat *s) {
  const bool last = s->rule.averaged && s->rule.calls == NG_CALLS_LAST;
  if (!last || s->w == 0.0) return;
  s->mix.old = 0.0;
  ng_stat_scale_old(q, s);
  s->w = 0.0;
  s->keep = 1.0;
}

/* ---- sums over ranks --------------------------------------------------------------------------*/

void ng_stat_weights(const ng_stat *s, double w[2]) {
  w[0] = s->w;
  w[1] = s->w * s->keep;
}

/* With NG_SPREAD_SAME every rank computes the whole statistic, so its own weights are the totals. */
void ng_stat_set_totals(ng_stat *s, const double total[2], bool shares_batch) {
  const bool same = s->spread == NG_SPREAD_SAME;
  s->shares_batch = shares_batch;
  s->w_total = same ? s->w : total[0];
  s->w_keep_total = same ? s->w * s->keep : total[1];
}

/* f16 sums travel as means, because a sum over a batch easily exceeds 65504, the largest f16. */
bool ng_stat_sends_mean(const ng_stat *s) { return s->wire_dtype == NG_F16 && s->observers > 1; }

/* Ranks send sums, not means, and the fold divides by the weight of all ranks, so that uneven shards have the correct
 * weight. With calls = ema S is a mean, so it is multiplied by w. f16 sums are divided by w_total before they are sent. */
void ng_stat_to_wire(ng_queue *q, const ng_stat *s) {
  double own = s->rule.calls == NG_CALLS_EMA && s->w > 0.0 ? s->w : 1.0;
  if (!s->rule.averaged || !s->observes) return;
  if (ng_stat_sends_mean(s)) own /= s->w_total;
  scale_sums(q, s, own);
}

/* ---- fold or discard the sums -----------------------------------------------------------------*/

/* Return the weights of the fold, keep and c. With calls = ema, S already contains the factor 1 - keep; if S was summed
 * over ranks, c divides it by their total weight. A special case: if the owner refused its first fold, its average does
 * not exist, but the other ranks have counted the statistic as started and sent keep > 0. Then the owner uses keep = 0,
 * and with calls = ema divides S by 1 - keep. */
static ng_mix fold_weights(const ng_stat *s) {
  if (s->rule.adds && s->rule.decay == 1.0) return (ng_mix){1.0, 1.0 / s->w_total};
  const double kept = s->w_keep_total / s->w_total;
  const bool first = ng_stat_goes_to_owner(s) && s->rule.start == NG_START_FIRST && !s->started;
  const double keep = first ? 0.0 : kept, part = first && kept < 1.0 ? 1.0 - kept : 1.0;
  const bool ema = s->rule.calls == NG_CALLS_EMA, summed = s->observers > 1 && ng_stat_is_sent(s);
  const double total = ng_stat_sends_mean(s) ? 1.0 : s->w_total;
  return (ng_mix){keep, !ema ? (1.0 - keep) / total : summed ? 1.0 / (total * part) : 1.0};
}

/* Return whether this rank has the sum over ranks. */
static bool has_sums(const ng_stat *s) {
  return s->observes && (s->has_average || !ng_stat_goes_to_owner(s));
}

void ng_stat_scan(ng_queue *q, ng_stat *s) {
  if (!(s->w_total > 0.0) || !has_sums(s)) return;
  for (int32_t i = 0; i < s->parts; i++) {
    ng_stat_part *p = &s->part[i];
    const int64_t n = ng_stat_part_count(s, p);
    ng_linalg(q)->check_finite(q, n, p->sum, s->sum_dtype, &p->finite);
    if (s->has_average || ng_stat_is_double(s))
      ng_linalg(q)->find_largest(q, n, p->sum, s->sum_dtype, &p->largest);
  }
}

/* Return whether the scanned sums are finite and doubles fit f32. No ng_read_info: folds of other statistics may be pending. */
static bool sums_finite(const ng_stat *s) {
  for (int32_t i = 0; i < s->parts; i++) {
    const ng_stat_part *p = &s->part[i];
    if (p->finite == 0) return false;
    if (ng_stat_is_double(s) && p->largest > ng_dtype_largest(NG_F32)) return false;
  }
  return true;
}

static double largest_element(const ng_stat *s) {
  double most = 0.0;
  for (int32_t i = 0; i < s->parts; i++) {
    most = fmax(most, s->part[i].largest);
  }
  return most;
}

/* Return whether the new average fits its dtype. The largest f16 is 65504, which a mean of squares of inputs near 320, or a
 * sum over 65536 positions, exceeds. If sum and old average are in range, their weighted mean is in range, too. So the average is
 * scanned only if the sum may be too large or a shift is added. A margin of 2^-10 covers roundings. */
static bool fits_dtype(ng_queue *q, ng_stat *s, ng_mix mix) {
  const double most =
      ng_dtype_largest(ng_stat_is_double(s) ? NG_F32 : s->average_dtype) * (1.0 - 0x1p-10);
  double shift = 0.0;
  for (int32_t i = 0; i < s->groups && s->shift != NULL; i++) {
    shift = fmax(shift, fabs(s->shift[i]));
  }
  const double fresh = mix.fresh * largest_element(s);
  if (shift == 0.0 && fresh <= (1.0 - mix.old) * most) return true;
  for (int32_t i = 0; i < s->parts; i++) {
    ng_stat_part *p = &s->part[i];
    const int64_t n = ng_stat_part_count(s, p);
    ng_linalg(q)->find_largest(q, n, p->average, s->average_dtype, &p->largest);
  }
  ng_queue_wait(q);
  const double old = largest_element(s);
  return old + shift <= most && mix.old * (old + shift) + fresh <= most;
}

/* A posted sum is cleared even if this rank has no samples, because it contains samples of other ranks. */
void ng_stat_discard(ng_queue *q, ng_stat *s) {
  if (s->observes && (s->w > 0.0 || s->w_total > 0.0 || s->posted)) scale_sums(q, s, 0.0);
  reset_step(s);
}

/* Add the shift to the diagonal of the average, divided by the number of ranks that observe. A rank adds the whole shift if
 * only the owner stores the average, if the rule has whole_shift, or if the ranks share their micro-batches. */
static void add_shift(ng_queue *q, ng_stat *s) {
  const bool all = s->spread == NG_SPREAD_OWNER || s->rule.whole_shift || s->shares_batch;
  for (int32_t i = 0; i < s->parts; i++) {
    const ng_stat_part *p = &s->part[i];
    shift_diagonal(q, s, p, s->shift[p->group] / (all ? 1 : s->observers));
  }
}

/* Vectors are folded in double, because they are small and each element is a long sum. Matrices of f32, bf16 or f16 are
 * folded in f32, because the rounding error of their solve is larger. */
static void fold_part(ng_queue *q, const ng_stat *s, const ng_stat_part *p, ng_mix mix) {
  const int64_t n = ng_stat_part_count(s, p);
  if (s->symmetric && !ng_stat_is_double(s)) {
    ng_linalg(q)->fold(q, n, p->average, s->average_dtype, p->sum, (float)mix.old,
                       (float)mix.fresh);
  } else {
    ng_linalg(q)->fold_wide(q, n, p->average, p->sum, s->average_dtype, mix.old, mix.fresh);
  }
}

/* Return the weights of the old average and of the sum for a device, which checks and folds the sum itself, and which knows whether
 * the average has started; {1, 0}: no sum. */
ng_mix ng_stat_fold_on_device(ng_stat *s) {
  if (!(s->w_total > 0.0)) return (ng_mix){1.0, 0.0};
  const ng_mix mix = fold_weights(s);
  s->started = true;
  reset_step(s);
  s->is_new = true;
  return mix;
}

/* The sums are checked, because a sum of finite f32 may overflow. The average changes only after all checks, so a skipped
 * step leaves the old average. */
ng_status ng_stat_fold(ng_queue *q, ng_stat *s) {
  if (!(s->w_total > 0.0)) return NG_OK;
  if (has_sums(s) && !sums_finite(s)) {
    ng_stat_discard(q, s);
    return NG_SKIPPED;
  }
  if (!s->rule.averaged) return NG_OK; /* the sum stays in `sum` until the step ends */
  if (s->has_average) {
    const ng_mix mix = fold_weights(s);
    if (!fits_dtype(q, s, mix)) {
      ng_stat_discard(q, s);
      return NG_SKIPPED;
    }
    if (s->shift != NULL) {
      add_shift(q, s);
      memset(s->shift, 0, (size_t)s->groups * sizeof *s->shift);
    }
    for (int32_t i = 0; i < s->parts; i++) {
      fold_part(q, s, &s->part[i], mix);
    }
  } else if (s->observes) {
    scale_sums(q, s, 0.0);
  }
  s->started = true;
  reset_step(s);
  return NG_OK;
}
