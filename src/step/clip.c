/* clip.c: how far a step goes.
 *
 * In come the sums over all blocks of all ranks and, for the kinds that look at one tensor at a time,
 * the norms of its weight and of its PD; out go nu and, for every block, what its weight and its bias
 * are multiplied by.  Everything here is the same on every rank: gradients and weights are, and PD
 * was delivered.  Formulas: options.clip in the header. */
#include "model/model.h"

#include <float.h>
#include <math.h>

#include "core/core.h"

enum { MOST_RATIO = 50 };

static bool by_tensor(const ng_precond *p) {
  return p->now.clip == NG_CLIP_RATIO || p->now.clip == NG_CLIP_RMS;
}

bool ng_clip_reads_weights(const ng_precond *p) { return p->now.clip == NG_CLIP_RATIO; }

/* ---- norms of the weights: clip = ratio ------------------------------------------------------*/

void ng_clip_measure(ng_precond *p) {
  if (!ng_clip_reads_weights(p)) return;
  ng_queue *q = p->ctx->queue;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->entry->slots; k++) {
      const ng_slot *s = &b->entry->slot[k];
      ng_on(q)->norm2(q, s->rows, s->cols, s->weight.data, s->weight.dtype, s->weight.row_stride,
                      &b->w2[k]);
    }
  }
  ng_queue_wait(q);
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    for (int32_t k = 0; k < b->entry->slots; k++) {
      const double w2 = *ng_numbers_read(q, &b->w2[k]);
      if (w2 - w2 == 0.0) continue;
      (void)ng_fail(p->ctx, NG_SKIPPED, "layer '%s': its weight is not finite", b->entry->d.name);
      p->refused = true;
    }
  }
}

/* ---- the common factor -----------------------------------------------------------------------*/

/* solver = product: PD = D + k G D A, k = radius / |D| over all blocks, so what the blocks summed
 * (<H, D>, |D|^2, |H|^2 of H = G D A) becomes that of PD only here. */
static void ascend(ng_precond *p, double *inner, double d2, double *pd2) {
  const double MOST = (double)FLT_MAX / 64.0; /* times any factor still an f32 */
  p->ascent = d2 > 0.0 ? fmin(p->now.radius / sqrt(d2), MOST) : 0.0;
  *pd2 = d2 + 2.0 * p->ascent * *inner + p->ascent * p->ascent * *pd2;
  *inner = d2 + p->ascent * *inner;
}

/* kl: Ba, Grosse & Martens (ICLR 2017), with P.D as in all published codes. */
static double common_factor(const ng_precond *p, double d2, double pd2) {
  if (p->now.clip == NG_CLIP_KL) {
    const double s = fabs(p->lr * p->lr * p->inner);
    return s > 0.0 ? fmin(1.0, sqrt(p->now.kl_clip / s)) : 1.0;
  }
  if (p->now.clip == NG_CLIP_RESCALE) return pd2 > 0.0 ? sqrt(d2 / pd2) : 1.0;
  if (p->now.clip == NG_CLIP_NORM) return fmin(1.0, p->now.clip_bound / sqrt(pd2));
  return 1.0;
}

void ng_clip_agreed(ng_precond *p, const double sum[3]) {
  double pd2 = sum[2];
  p->inner = sum[0];
  if (p->now.solver == NG_SOLVER_PRODUCT) ascend(p, &p->inner, sum[1], &pd2);
  p->nu = common_factor(p, sum[1], pd2);
  if (!(p->nu - p->nu == 0.0) || !(p->inner - p->inner == 0.0) || !(pd2 - pd2 == 0.0)) {
    p->refused = true; /* sums overflowed: the same on every rank */
    p->nu = 1.0;
  }
  p->pd2 = pd2;
}

/* ---- does it fit -----------------------------------------------------------------------------*/

double ng_clip_largest(const ng_precond *p) {
  return (p->now.clip == NG_CLIP_RATIO ? MOST_RATIO : p->nu) * sqrt(p->pd2);
}

/* ---- the factors of each tensor --------------------------------------------------------------*/

/* LARS (You, Gitman & Ginsburg 2017, arXiv 1708.03888) bounded as in the published Eva, where a
 * weight of zeros could never leave zero: here it goes unclipped.  RMS as in Adafactor (Shazeer &
 * Stern 2018, arXiv 1804.04235, section 6). */
static double tensor_factor(const ng_precond *p, double w2, double pd2, double count) {
  const double bound = p->now.clip_bound;
  if (!(pd2 > 0.0)) return 1.0;
  if (p->now.clip == NG_CLIP_RATIO)
    return w2 > 0.0 ? fmin(MOST_RATIO, bound * sqrt(w2 / pd2)) : 1.0;
  return 1.0 / fmax(1.0, sqrt(pd2 / count) / bound);
}

void ng_clip_factors(ng_precond *p) {
  const bool each = by_tensor(p);
  double least = INFINITY;
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    double pd2[2] = {0.0, 0.0};
    if (each) b->ops->norms(b, pd2);
    for (int32_t k = 0; k < b->entry->slots; k++) {
      const ng_slot *s = &b->entry->slot[k];
      b->factor[k] = each ? tensor_factor(p, b->w2[k], pd2[k], (double)(s->rows * s->cols)) : p->nu;
      least = fmin(least, b->factor[k]);
    }
  }
  if (each && p->blocks > 0) p->nu = least;
}
