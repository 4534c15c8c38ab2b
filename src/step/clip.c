/* clip.c: the clip factor (docs/options.md: clip).
 *
 * In: <D, PD>, |D|^2 and |PD|^2, summed over blocks and ranks; for clip = ratio and rms |PD|^2 of each segment, for ratio
 * also |weight|^2. Out: the clip factor nu and a factor for each segment. Both are equal on all ranks, because gradients,
 * weights and delivered PD are equal. */
#include "step/step.h"

#include <float.h>
#include <math.h>

enum { RATIO_MOST = 50 };

bool ng_clip_reads_weights(const ng_precond *p) { return p->opt.base.clip == NG_CLIP_RATIO; }

/* ---- norms of the weights: clip = ratio ------------------------------------------------------*/

/* Each rank computes all norms: weights are equal on all ranks, so nothing is sent. */
void ng_clip_measure(ng_precond *p) {
  if (!ng_clip_reads_weights(p)) return;
  ng_queue *q = p->ctx->queue;
  for (int32_t i = 0; i < p->blocks; i++) {
    for (int32_t k = 0; k < p->block[i]->segments && !p->block[i]->is_excluded; k++) {
      ng_segment *g = &p->block[i]->segment[k];
      const ng_place *w = &g->slot->weight;
      if (g->slot->is_excluded) continue; /* an excluded weight may be unbound */
      if (!w->has_dense_rows || w->dtype == NG_F64) {
        const ng_direction e = {.D = {w, 0, g->slot->rows, 0, g->slot->cols}, .scale = 1.0};
        ng_kernels(q)->sum_norms(q, &e, 1, p->step->emission.parts, &g->weight_norm2);
        continue;
      }
      ng_linalg(q)->sum_squares(q, g->slot->rows, g->slot->cols, w->data, w->dtype, w->row_stride,
                                &g->weight_norm2);
    }
  }
}

void ng_clip_refuse_nonfinite_weights(ng_precond *p) {
  const ng_queue *q = p->ctx->queue;
  for (int32_t i = 0; i < p->blocks && ng_clip_reads_weights(p); i++) {
    const ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->segments && !b->is_excluded; k++) {
      if (b->segment[k].slot->is_excluded) continue;
      const double w2 = *ng_read_numbers(q, &b->segment[k].weight_norm2);
      if (w2 - w2 == 0.0) continue;
      (void)ng_fail(p->ctx, NG_SKIPPED, "layer '%s': its weight is not finite",
                    b->segment[k].slot->entry->d.name);
      p->step->has_refused = true;
    }
  }
}

/* ---- learning rates of groups ----------------------------------------------------------------*/

/* clip = kl bounds the sum of lr_b^2 <PD, D> over blocks b; lr_b is the learning rate of the block's weight, or the
 * largest one if the block has several layers. Return (lr_b / lr)^2 with the largest lr of all groups: it is 1, and
 * rounds nothing, if all learning rates are equal. */
double ng_clip_weight(const ng_block *b) {
  const ng_engine *step = b->p->step;
  if (step->output.kind == NG_OUT_GRADIENT || !(step->lr > 0.0)) return 1.0;
  const int32_t asked = b->entry != NULL ? 1 : b->segments;
  double lr = 0.0;
  for (int32_t k = 0; k < asked; k++) {
    if (b->entry == NULL && b->segment[k].slot->is_excluded) continue;
    lr = fmax(lr, step->output.group[b->segment[k].slot->update_group].lr);
  }
  return lr / step->lr * (lr / step->lr);
}

/* ---- the common factor -----------------------------------------------------------------------*/

/* Return the sums over all blocks. sums[0] belongs to blocks without ascent. sums[1] belongs to blocks with PD = D + k H,
 * and contains <D, H>, |D|^2 and |H|^2. Set the ascent k = radius / |D|, where |D| is the norm over all blocks with
 * ascent, also blocks of other pipeline stages. */
static ng_sums combine_sums(ng_precond *p, const ng_sums sums[2]) {
  /* largest ascent: multiplied by a clip factor of at most 64, it still fits f32 */
  const double MOST = (double)FLT_MAX / 64.0;
  const ng_sums h = sums[1];
  const double k = h.d2 > 0.0 ? fmin(p->opt.base.radius / sqrt(h.d2), MOST) : 0.0;
  p->step->ascent = k;
  return (ng_sums){.inner = sums[0].inner + (h.d2 + k * h.inner),
                   .d2 = sums[0].d2 + h.d2,
                   .pd2 = sums[0].pd2 + (h.d2 + 2.0 * k * h.inner + k * k * h.pd2),
                   .weighted_inner =
                       sums[0].weighted_inner + (h.weighted_d2 + k * h.weighted_inner),
                   .weighted_d2 = sums[0].weighted_d2 + h.weighted_d2};
}

/* clip = kl: Ba, Grosse & Martens (ICLR 2017), with <PD, D> instead of PD' F PD, as in all published programs. For PD = (F
 * + lambda I)^-1 D, <PD, D> is larger by lambda |PD|^2. Rounding can make the sum negative, hence fabs. */
static double common_factor(const ng_precond *p, const ng_sums *s) {
  if (p->opt.base.clip == NG_CLIP_KL) {
    const double kl = fabs(p->step->lr * p->step->lr * s->weighted_inner);
    return kl > 0.0 ? fmin(1.0, sqrt(p->opt.base.kl_clip / kl)) : 1.0;
  }
  if (p->opt.base.clip == NG_CLIP_RESCALE) return s->pd2 > 0.0 ? sqrt(s->d2 / s->pd2) : 1.0;
  if (p->opt.base.clip == NG_CLIP_NORM) return fmin(1.0, p->opt.base.clip_bound / sqrt(s->pd2));
  return 1.0;
}

void ng_clip_compute(ng_precond *p, const ng_sums sums[2]) {
  ng_engine *step = p->step;
  const ng_sums s = combine_sums(p, sums);
  step->inner = s.inner;
  step->d2 = s.d2;
  step->pd2 = s.pd2;
  step->nu = common_factor(p, &s);
  if (!(step->nu - step->nu == 0.0) || !(s.inner - s.inner == 0.0) || !(s.pd2 - s.pd2 == 0.0)) {
    step->has_refused = true; /* the sums are not finite, equally on all ranks */
    step->nu = 1.0;
  }
}

/* ---- the factors of each tensor --------------------------------------------------------------*/

/* Return the clip factor of a segment. clip = ratio: LARS (You, Gitman & Ginsburg 2017, arXiv
 * 1708.03888), at most RATIO_MOST as in the published Eva; a weight of only zeros has factor 1, because factor 0 would
 * keep it zero. clip = rms: Adafactor (Shazeer & Stern 2018, arXiv 1804.04235, section 6). */
static double tensor_factor(const ng_precond *p, const ng_segment *g) {
  const double bound = p->opt.base.clip_bound, count = (double)g->count;
  const double pd2 = g->pd_norm2;
  if (!(pd2 > 0.0)) return 1.0;
  if (p->opt.base.clip == NG_CLIP_RATIO) {
    return g->weight_norm2 > 0.0 ? fmin(RATIO_MOST, bound * sqrt(g->weight_norm2 / pd2)) : 1.0;
  }
  return 1.0 / fmax(1.0, sqrt(pd2 / count) / bound);
}

void ng_clip_factors(ng_precond *p) {
  const bool each = p->opt.base.clip == NG_CLIP_RATIO || p->opt.base.clip == NG_CLIP_RMS;
  double least = INFINITY;
  if (each) ng_emission_norms(p);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    if (b->is_excluded) continue;
    for (int32_t k = 0; k < b->segments; k++) {
      ng_segment *g = &b->segment[k];
      if (g->slot->is_excluded) continue;
      g->clip_factor = each ? tensor_factor(p, g) : p->step->nu;
      least = fmin(least, g->clip_factor);
    }
  }
  if (each && least < INFINITY) p->step->nu = least;
}
