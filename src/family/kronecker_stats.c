/* kronecker_stats.c: from observations to running averages.
 *
 * In come checked views of inputs and output gradients; each call adds
 *     S += w alpha sum_rows r r'
 * with alpha from the scale table below and w the weight of the call; the check station sums w over
 * ranks, the statistics station sums S, and fold makes
 *     F <- keep F + (1 - keep) S / sum(w),  keep = rho.
 * fold = direct leaves S out and adds straight into F.  The published programs' scales, starts and
 * call rules are options of the same code (docs/algorithms.md has the table). */
#include "family/kronecker.h"

#include "core/core.h"

/* ---- the scale table -------------------------------------------------------------------------
 * A fresh factor of one call is alpha * (raw sum of rows); B samples taken, S positions, N = B S.
 *
 *             linear, expand     linear, reduce      convolution (expand)
 *             A        G         A       G           A          G
 * textbook    1/B      c^2/(BS)  1/B     c^2/B       1/B        c^2/(BS)     c: B of the whole
 * kaisa       1/N      1/N       1/B     1/B         1/(B S^3)  1/(B S^3)    micro-batch for a mean
 * mpd-kfac    1/N      B^2/N     1/B     B           1/(B S^2)  B S          loss, 1 for a sum
 *
 * all G divided by loss_scale^2.  reduce: A rows are means over positions; G rows are sums
 * (textbook: KFAC-reduce, Eschenhagen et al. 2023) or means (as published). */
typedef struct call_scale {
  double alpha;
  int reduce;
} call_scale;

static call_scale scale_of(const ng_block *b, const ng_obs *o, int64_t take) {
  const bool conv = b->entry->d.kind == NG_CONV2D;
  const bool textbook = b->opt.stat_scale == NG_SCALE_TEXTBOOK,
             kaisa = b->opt.stat_scale == NG_SCALE_KAISA;
  const double B = (double)take, S = (double)o->positions;
  const double c = o->reduction == NG_MEAN ? (double)o->samples : 1.0;
  call_scale s = {0.0, 0};
  if (b->opt.positions == NG_POSITIONS_REDUCE && o->positions > 1 && (!conv || textbook || kaisa)) {
    s.reduce = o->grad && textbook ? 2 : 1;
  }
  const double rows = s.reduce != 0 ? B : B * S;
  if (!o->grad) {
    s.alpha = textbook ? 1.0 / B : 1.0 / rows;
    if (conv && kaisa && s.reduce == 0) s.alpha = 1.0 / (B * S * S * S);
    if (conv && !kaisa && !textbook) s.alpha = 1.0 / (B * S * S);
  } else {
    s.alpha = textbook ? c * c / rows : kaisa ? 1.0 / rows : B * B / rows;
    if (conv && kaisa && s.reduce == 0) s.alpha = 1.0 / (B * S * S * S);
    if (conv && !kaisa && !textbook) s.alpha = B * S;
    s.alpha /= o->loss_scale * o->loss_scale;
  }
  return s;
}

/* ---- observe ---------------------------------------------------------------------------------*/

static void add_rows(ng_block *b, const ng_obs *o, int64_t take, call_scale c, double weight) {
  ng_kron *k = ng_kron_of(b);
  const ng_side *s = &k->side[o->grad];
  const float alpha = (float)(c.alpha * weight);
  for (int32_t i = 0; i < s->parts; i++) {
    const ng_part *part = &s->part[i];
    if (b->entry->d.kind == NG_CONV2D && !o->grad) {
      ng_conv_input_stats(b->p->ctx, &k->conv, &o->v, take, part->lo, part->hi, part->one, c.reduce,
                          alpha, part->S, k->scratch);
    } else if (b->entry->d.kind == NG_CONV2D) {
      ng_conv_grad_stats(b->p->ctx, &k->conv, &o->v, take, part->lo, part->hi, c.reduce, alpha,
                         part->S, k->scratch);
    } else {
      const ng_rows rows = {.v = o->v,
                            .samples = o->samples,
                            .positions = o->positions,
                            .order = b->entry->d.order,
                            .take = take,
                            .c0 = part->lo,
                            .c1 = part->hi,
                            .one = part->one,
                            .reduce = c.reduce};
      ng_rows_stats(b->p->ctx, &rows, alpha, part->S, k->scratch);
    }
  }
}

/* Every part's sum times `by`; 0: forgotten. */
static void scale_side(const ng_block *b, const ng_side *s, double by) {
  ng_queue *q = b->p->ctx->queue;
  for (int32_t i = 0; i < s->parts; i++) {
    ng_on(q)->scale(q, ng_sym_count(s->part[i].n), s->part[i].S.a, by);
  }
}

ng_status ng_kron_observe(ng_block *b, const ng_obs *o) {
  ng_kron *k = ng_kron_of(b);
  ng_side *s = &k->side[o->grad];
  const int64_t take = ng_average_take(b, o);
  const call_scale c = scale_of(b, o, take);
  if (k->direct) {
    const double rho = ng_average_rho(b, &s->average);
    if (s->average.w > 0.0) {
      return ng_fail(b->p->ctx, NG_ERR_STATE,
                     "layer '%s': its %s was observed a second time in this step; fold = direct "
                     "allows one observation, fold = sum any number",
                     b->entry->d.name, o->grad ? "output gradient" : "input");
    }
    scale_side(b, s, rho);
    add_rows(b, o, take, c, 1.0 - rho);
    s->average.w = ng_average_weight(b, take);
    s->average.keep = rho;
    return NG_OK;
  }
  const ng_mix mix = ng_average_call(b, &s->average, take);
  if (mix.old != 1.0) scale_side(b, s, mix.old);
  add_rows(b, o, take, c, mix.fresh);
  return NG_OK;
}

/* ---- weights, scale, fold --------------------------------------------------------------------*/

void ng_kron_weights(ng_block *b, double w[4], bool set) {
  ng_kron *k = ng_kron_of(b);
  ng_average_weights(&k->side[NG_SIDE_A].average, &k->side[NG_SIDE_G].average, w, set);
}

void ng_kron_scale(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    if (k->direct) {
      /* nobody saw this side: the average must pass through the sum unchanged */
      if (s->average.total > 0.0) {
        scale_side(b, s, s->average.w / s->average.total);
      } else if (b->p->ctx->rank != 0) {
        scale_side(b, s, 0.0);
      }
    } else {
      const double own = ng_average_own(b, &s->average);
      if (own != 1.0) scale_side(b, s, own);
    }
  }
}

float *ng_kron_message(ng_block *b, int64_t *count) {
  const ng_kron *k = ng_kron_of(b);
  if (!(k->side[0].average.total > 0.0) && !(k->side[1].average.total > 0.0)) return NULL;
  const ng_part *last = &k->side[1].part[k->side[1].parts - 1];
  float *from = k->side[0].part[0].S.a;
  *count = last->S.a + ng_sym_count(last->n) - from;
  return from;
}

/* All parts are looked at before the one wait. */
static bool sums_finite(const ng_block *b, ng_side *s) {
  ng_queue *q = b->p->ctx->queue;
  bool all = true;
  for (int32_t i = 0; i < s->parts; i++) {
    ng_part *part = &s->part[i];
    ng_on(q)->finite(q, ng_sym_count(part->n), part->S.a, NG_F32, &part->finite);
  }
  ng_queue_wait(q);
  for (int32_t i = 0; i < s->parts; i++) {
    all = all && ng_info_read(q, &s->part[i].finite) != 0;
  }
  return all;
}

static void forget_side(const ng_block *b, ng_side *s) {
  if (!ng_kron_of(b)->direct && (s->average.w > 0.0 || s->average.total > 0.0))
    scale_side(b, s, 0.0);
  ng_average_close(&s->average);
}

/* Sums may overflow although every value was finite: then this side keeps its average. */
ng_status ng_kron_fold(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->p->ctx->queue;
  const bool all = b->opt.statistics == NG_STATISTICS_ALL;
  ng_status st = NG_OK;
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    if (!(s->average.total > 0.0)) continue;
    const ng_mix mix = ng_average_fold(b, &s->average);
    if (!k->direct && !sums_finite(b, s)) {
      st = ng_fail(b->p->ctx, NG_SKIPPED, "layer '%s': the sum of %s overflowed", b->entry->d.name,
                   i == NG_SIDE_A ? "inputs" : "output gradients");
      forget_side(b, s);
      continue;
    }
    for (int32_t j = 0; b->opt.damping_leak && j < s->parts; j++) {
      /* direct: the old average was multiplied by keep when the sample was added */
      const double ranks = all ? b->p->ctx->ranks : 1, by = s->leak[s->part[j].group] / ranks;
      ng_on(q)->shift(q, s->part[j].n, s->part[j].F, k->factor_dtype,
                      k->direct ? mix.old * by : by);
    }
    memset(s->leak, 0, (size_t)k->groups * sizeof *s->leak);
    for (int32_t j = 0; j < s->parts && !k->direct; j++) {
      const ng_part *part = &s->part[j];
      ng_on(q)->fold(q, ng_sym_count(part->n), part->F, k->factor_dtype, part->S.a, (float)mix.old,
                     (float)mix.fresh);
    }
    s->average.started = true;
    ng_average_close(&s->average);
  }
  return st;
}

void ng_kron_forget(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  if (!b->holds_stats) return;
  forget_side(b, &k->side[0]);
  forget_side(b, &k->side[1]);
}
