/* eva.cu: a step of Eva in four launches (family/rankone.c has the formulas, step/fused.c the host's part):
 *
 *   dv_eva_fold            fold the sums into the mean vectors; compute |a|^2 and |g|^2
 *   dv_measure_tiles       read all gradients: |D|^2 and g' D a (gradient.cu)
 *   dv_eva_clip_and_scale  decide whether the step counts; set the coefficients of all directions and updates
 *   dv_update_tiles        update weights and moments, if the step counts (update.cu)
 *
 * The host reads no number between these kernels. */
#include "device_read.h"

/* One block for each mean. A mean stays if there is no sum in this step (take = 0), or if the sum is not finite. A thread reads TOGETHER elements of both arrays before it
 * writes one. */
NG_GLOBAL dv_eva_fold(const dv_mean *list, const dv_eva_numbers *now) {
  NG_SHARED double warps[32];
  enum { TOGETHER = 4 };
  const dv_mean m = list[NG_BLOCK];
  double keep = now->fold[2 * NG_BLOCK], take = now->fold[2 * NG_BLOCK + 1];
  double sum = 0.0, bad = 0.0;
  for (int64_t i = NG_THREAD; i < m.n; i += DV_THREADS) {
    bad += take == 0.0 || dv_is_finite(m.sum[i]) ? 0.0 : 1.0;
  }
  const bool refused = dv_block_sum(bad, warps) > 0.0, stays = refused || take == 0.0;
  if (m.starts_first && *m.started == 0) {
    take /= 1.0 - keep;
    keep = 0.0;
  }
  for (int64_t from = NG_THREAD; from < m.n; from += TOGETHER * DV_THREADS) {
    float old[TOGETHER], now_sum[TOGETHER];
    NG_UNROLL
    for (int32_t k = 0; k < TOGETHER; k++) {
      const int64_t i = from + k * DV_THREADS, at = i < m.n ? i : from;
      old[k] = m.mean[at], now_sum[k] = m.sum[at];
    }
    NG_UNROLL
    for (int32_t k = 0; k < TOGETHER; k++) {
      const int64_t i = from + k * DV_THREADS;
      if (i >= m.n) continue;
      const float x = stays ? old[k] : (float)(keep * (double)old[k] + take * (double)now_sum[k]);
      m.mean[i] = x;
      m.sum[i] = 0.0f;
      sum += (double)x * (double)x;
    }
  }
  sum = dv_block_sum(sum, warps);
  if (NG_THREAD != 0) return;
  *m.norm2 = sum;
  *m.is_refused = refused ? 1 : 0;
  if (!stays) *m.started = 1;
}

/* Set c = s / (alpha beta + lambda) and <D, PD> = (|D|^2 - s c) / lambda of layer i, with the bounds and the test for double of
 * rankone.c (sum_groups). Without curvature PD = D, and <D, PD> is only 0 or NaN. */
NG_INLINE void measure_layer(const dv_eva *e, int64_t i, double lambda, double d2, double s) {
  const dv_layer *l = &e->layer[i];
  e->c[i] = 0.0;
  e->inner[i] = d2 - d2;
  e->is_wide[i] = 0;
  if (l->alpha == NULL) return;
  const double damped = *l->alpha * *l->beta + lambda, along = s * s / damped, least = d2 / damped;
  const double inner = (d2 - along) / lambda;
  e->c[i] = s / damped;
  e->inner[i] = inner < least ? least : inner;
  e->is_wide[i] = !(d2 - along >= d2 / 64.0) || lambda < 1e-36 ? 1 : 0;
}

/* Set the coefficients of update u after `updates` counted updates (step/coefficients.c). */
NG_INLINE void set_coefficients(dv_update *u, const dv_eva_group *g, int64_t updates) {
  dv_wide_update *w = &u->wide;
  const bool first = updates == 0 || g->mu == 0.0;
  const double t = (double)(updates + 1);
  u->nesterov = g->nesterov != 0.0;
  w->lr = g->lr, w->mu = g->mu, w->keep = g->keep, w->decay = g->decay;
  w->b1 = g->b1, w->b2 = g->b2, w->n1 = g->n1, w->n2 = g->n2, w->eps = g->eps;
  w->coefficients[0] = !u->is_sgd ? g->lr / (1.0 - pow(g->b1, t)) : first ? 1.0 : 1.0 - g->dampening;
  w->coefficients[1] = !u->is_sgd ? 1.0 / sqrt(1.0 - pow(g->b2, t)) : first ? 0.0 : g->mu;
  u->lr = (float)w->lr, u->mu = (float)w->mu, u->keep = (float)w->keep, u->decay = (float)w->decay;
  u->b1 = (float)w->b1, u->b2 = (float)w->b2, u->n1 = (float)w->n1, u->n2 = (float)w->n2;
  u->eps = (float)w->eps;
  u->coefficients[0] = (float)w->coefficients[0], u->coefficients[1] = (float)w->coefficients[1];
}

/* One block; a warp adds the tiles of a layer. PD = (D - c g a') / lambda, times the clip factor min(1, sqrt(bound / sum of
 * weight <D, PD>)). If a sum or a gradient is not finite, *skipped is 1, and dv_update_tiles changes nothing. */
NG_GLOBAL dv_eva_clip_and_scale(const dv_eva *e, dv_eva_numbers *now) {
  NG_SHARED double factor;
  NG_SHARED int64_t updates;
  const int32_t warp = NG_THREAD / 32, lane = NG_THREAD % 32;
  for (int64_t base = 0; base < e->layers; base += NG_THREADS / 32) {
    const int64_t i = base + warp;
    double d2 = 0.0, s = 0.0;
    for (int64_t t = i < e->layers ? e->layer[i].from + lane : 0;
         i < e->layers && t < e->layer[i].to; t += 32) {
      d2 += e->sums[2 * t];
      s += e->sums[2 * t + 1];
    }
    d2 = dv_warp_sum(d2);
    s = dv_warp_sum(s);
    if (lane == 0 && i < e->layers) measure_layer(e, i, now->damping[i], d2, s);
  }
  NG_BARRIER();
  if (NG_THREAD == 0) {
    double sum = 0.0;
    int64_t report = DV_EVA_COUNTED;
    for (int64_t i = 0; i < e->layers; i++) {
      sum += now->weight[i] * e->inner[i];
    }
    if (sum - sum != 0.0) report = DV_EVA_SKIPPED;
    for (int64_t i = 0; i < e->means; i++) {
      if (e->is_refused[i] != 0) report = DV_EVA_REFUSED + i;
    }
    const bool counts = report == DV_EVA_COUNTED;
    factor = !counts ? 0.0 : fabs(sum) > now->bound ? sqrt(now->bound / fabs(sum)) : 1.0;
    updates = *e->updates;
    *e->skipped = counts ? 0 : 1;
    *e->updates = updates + (counts ? 1 : 0);
    now->factor = factor;
    now->report = report;
  }
  NG_BARRIER();
  for (int64_t i = NG_THREAD; i < e->parameters; i += NG_THREADS) {
    const int32_t l = e->layer_of[i];
    const bool curved = e->layer[l].alpha != NULL;
    dv_direction *d = &e->direction[i];
    d->scale = !curved ? 1.0 : factor / now->damping[l];
    d->k = curved && factor > 0.0 ? -d->scale * e->c[l] : 0.0;
    d->uses_double = e->is_wide[l] != 0;
    set_coefficients(&e->update[i], &now->group[e->group_of[i]], updates);
  }
}
