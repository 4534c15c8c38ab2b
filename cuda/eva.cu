/* eva.cu: a fused step of Eva (family/rankone.c has the formulas): dv_eva_fold, dv_measure_tiles, dv_eva_clip_and_scale,
 * dv_update_tiles. The host
 * reads no number between these kernels. */
#include "device_read.h"

/* One block for each mean. A thread reads TOGETHER elements of both arrays before it writes one. */
NG_GLOBAL dv_eva_fold(const dv_mean *list) {
  NG_SHARED double warps[32];
  enum { TOGETHER = 4 };
  const dv_mean m = list[NG_BLOCK];
  double sum = 0.0;
  for (int64_t from = NG_THREAD; from < m.n; from += TOGETHER * DV_THREADS) {
    float old[TOGETHER], now[TOGETHER];
    NG_UNROLL
    for (int32_t k = 0; k < TOGETHER; k++) {
      const int64_t i = from + k * DV_THREADS, at = i < m.n ? i : from;
      old[k] = m.mean[at], now[k] = m.sum[at];
    }
    NG_UNROLL
    for (int32_t k = 0; k < TOGETHER; k++) {
      const int64_t i = from + k * DV_THREADS;
      if (i >= m.n) continue;
      const float x = (float)(m.keep * (double)old[k] + m.take * (double)now[k]);
      m.mean[i] = x;
      sum += (double)x * (double)x;
    }
  }
  sum = dv_block_sum(sum, warps);
  if (NG_THREAD == 0) *m.norm2 = sum;
}

/* One block; a warp adds the tiles of a layer. Set scale and k of the layers' directions: PD = (D - c g a') / lambda with
 * c = s / (alpha beta + lambda), times the clip factor min(1, sqrt(bound / sum of <D, PD>)). If a gradient is not
 * finite, *skipped is 1, and dv_update_tiles changes nothing. inner and c [layers]: scratch. */
NG_GLOBAL dv_eva_clip_and_scale(const dv_layer *layer, int64_t layers, const double *sums,
                                dv_direction *list, double lambda, double bound, double *inner,
                                double *c, int32_t *skipped) {
  NG_SHARED double factor;
  const int32_t warp = NG_THREAD / 32, lane = NG_THREAD % 32;
  for (int64_t base = 0; base < layers; base += NG_THREADS / 32) {
    const int64_t i = base + warp;
    double d2 = 0.0, s = 0.0;
    for (int64_t t = i < layers ? layer[i].from + lane : 0; i < layers && t < layer[i].to;
         t += 32) {
      d2 += sums[2 * t];
      s += sums[2 * t + 1];
    }
    d2 = dv_warp_sum(d2);
    s = dv_warp_sum(s);
    if (lane == 0 && i < layers) {
      c[i] = s / (*layer[i].alpha * *layer[i].beta + lambda);
      inner[i] = (d2 - s * c[i]) / lambda;
    }
  }
  NG_BARRIER();
  if (NG_THREAD == 0) {
    double sum = 0.0;
    for (int64_t i = 0; i < layers; i++) {
      sum += inner[i];
    }
    const bool is_finite = sum - sum == 0.0;
    factor = !is_finite ? 0.0 : sum > bound ? sqrt(bound / sum) : 1.0;
    *skipped = is_finite ? 0 : 1;
  }
  NG_BARRIER();
  for (int64_t i = NG_THREAD; i < layers; i += NG_THREADS) {
    dv_direction *e = &list[layer[i].direction];
    e->scale = factor / lambda;
    e->k = factor > 0.0 ? -factor * c[i] / lambda : 0.0;
  }
}
