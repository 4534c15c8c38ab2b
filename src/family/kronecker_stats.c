/* kronecker_stats.c: what an observation adds to A and G.
 *
 * In: checked views of inputs and output gradients.  Out: S <- old S + fresh alpha sum_rows r r' in every
 * part, with alpha from the scale table below and (old, fresh) from the statistic (stat/stat.h), which
 * does everything else.  The published programs' scales are options of the same code
 * (docs/algorithms.md has the table). */
#include "family/kronecker.h"

#include <math.h>

/* ---- the scale table -------------------------------------------------------------------------
 * A fresh factor of one call is alpha * (raw sum of rows); B samples taken, S positions, N = B S.
 *
 *             linear, expand     linear, reduce      convolution (expand)
 *             A        G         A       G           A          G
 * textbook    1/B      c^2/(BS)  1/B     c^2/B       1/B        c^2/(BS)     c: B of the whole
 * kaisa       1/N      1/N       1/B     1/B         1/(B S^3)  1/(B S^3)    micro-batch for a mean
 * mpd-kfac    1/N      B^2/N     1/B     B           1/(B S^2)  B S          loss, 1 for a sum
 *
 * Where ranks share a micro-batch B^2 of G is (u B of all ranks)^2, and kaisa's G times u^2: of a mean loss u is this
 * rank's part of the samples, otherwise 1.
 *
 * all G divided by loss_scale^2.  reduce: A rows are means over positions; G rows are sums
 * (textbook: KFAC-reduce, Eschenhagen et al. 2023) or means (as published). */
typedef struct call_scale {
  double alpha;
  int reduce;
} call_scale;

static call_scale scale_of(const ng_block *b, const ng_obs *o, const ng_stat *stat) {
  const bool conv = b->entry->d.kind == NG_CONV2D, grad = o->what == NG_SEES_OUTGRAD;
  const bool textbook = b->opt.stat_scale == NG_SCALE_TEXTBOOK,
             kaisa = b->opt.stat_scale == NG_SCALE_KAISA;
  const double B = (double)stat->take, S = (double)o->positions, u = ng_obs_share(o);
  const double all = (double)stat->all * u;
  const double c = o->reduction == NG_MEAN ? (double)o->samples : 1.0;
  call_scale s = {0.0, 0};
  if (b->opt.positions == NG_POSITIONS_REDUCE && o->positions > 1 && (!conv || textbook || kaisa)) {
    s.reduce = grad && textbook ? 2 : 1;
  }
  const double rows = s.reduce != 0 ? B : B * S;
  if (!grad) {
    s.alpha = textbook ? 1.0 / B : 1.0 / rows;
    if (conv && kaisa && s.reduce == 0) s.alpha = 1.0 / (B * S * S * S);
    if (conv && !kaisa && !textbook) s.alpha = 1.0 / (B * S * S);
  } else {
    s.alpha = textbook ? c * c / rows : kaisa ? u * u / rows : all * all / rows;
    if (conv && kaisa && s.reduce == 0) s.alpha = u * u / (B * S * S * S);
    if (conv && !kaisa && !textbook) s.alpha = all * all / B * S;
    s.alpha /= o->loss_scale * o->loss_scale;
  }
  return s;
}

/* ---- observe ---------------------------------------------------------------------------------*/

static void add_part(ng_block *b, const ng_obs *o, const ng_part *part, ng_sym S, call_scale c,
                     float alpha, int64_t take) {
  const ng_kron *k = ng_kron_of(b);
  float *scratch = ng_scratch(b);
  if (b->entry->d.kind == NG_CONV2D) {
    const ng_conv conv = ng_kron_conv(k, o);
    if (o->what == NG_SEES_INPUT) {
      ng_conv_input_stats(b->ctx, &conv, &o->v, take, part->lo, part->hi, part->one, c.reduce,
                          alpha, S, scratch);
    } else {
      ng_conv_grad_stats(b->ctx, &o->v, take, part->lo, part->hi, c.reduce, alpha, S, scratch);
    }
    return;
  }
  const ng_rows rows = {.v = &o->v,
                        .take = take,
                        .c0 = part->lo,
                        .c1 = part->hi,
                        .one = part->one,
                        .reduce = c.reduce};
  ng_rows_stats(b->ctx, &rows, alpha, S, scratch);
}

/* fold = direct adds to the average itself: what could leave f32 on the way must not begin.  A quarter
 * of its range for the sample keeps an average of samples, and sums of them over ranks, inside. */
static bool fits(const ng_obs *o, const ng_stat *s, call_scale c) {
  const double S = (double)o->positions, most = fmax(o->most, 1.0); /* a bias sees ones */
  const double x = c.reduce == 2 ? S * most : most;
  const double raw = (double)s->take * (c.reduce != 0 ? 1.0 : S) * x * x;
  const double limit = ng_dtype_most(NG_F32) / 4.0;
  return raw <= limit && c.alpha <= limit && c.alpha * raw <= limit;
}

/* Every part of G is one number: its diagonal, read once for all of them. */
static bool single(const ng_kron *k, const ng_obs *o, const ng_side *side) {
  return o->what == NG_SEES_OUTGRAD && side->parts > 1 && side->parts == o->v.columns &&
         k->vocabulary == 0;
}

static void add_diagonal(ng_block *b, const ng_obs *o, const ng_side *side, call_scale c) {
  const ng_stat *s = side->stat;
  double *sum = ng_scratch(b);
  ng_square_sums(b->ctx, &o->v, s->take, c.reduce, sum);
  ng_queue_wait(b->ctx->queue); /* what is kept of the sums so far is on its way */
  for (int32_t i = 0; i < side->parts; i++) {
    float *to = s->part[i].sum;
    *to = (float)((double)*to + (double)(float)(c.alpha * s->mix.fresh) * sum[i]);
  }
}

ng_status ng_kron_observe(ng_block *b, const ng_obs *o) {
  const ng_side *side = &ng_kron_of(b)->side[o->what == NG_SEES_OUTGRAD];
  const ng_stat *s = side->stat;
  const call_scale c = scale_of(b, o, s);
  if (s->rule.direct && !fits(o, s, c)) {
    return ng_fail(
        b->ctx, NG_SKIPPED,
        "layer '%s': %s of up to %g could leave f32 in the average %s, which fold = direct "
        "adds to; nothing was folded",
        b->name, o->what == NG_SEES_OUTGRAD ? "output gradients" : "inputs", o->most, s->name);
  }
  if (ng_kron_of(b)->vocabulary > 0 && o->what == NG_SEES_INPUT) {
    return ng_kron_observe_tokens(b, o, c.alpha);
  }
  ng_stat_retain(b->ctx->queue, s);
  if (single(ng_kron_of(b), o, side)) {
    add_diagonal(b, o, side, c);
    return NG_OK;
  }
  for (int32_t i = 0; i < side->parts; i++) {
    const ng_sym S = {s->part[i].sum, side->part[i].n};
    add_part(b, o, &side->part[i], S, c, (float)(c.alpha * s->mix.fresh), s->take);
  }
  return NG_OK;
}
