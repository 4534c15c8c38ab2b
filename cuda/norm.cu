/* norm.cu: kernels over the gradients q_i = [dgamma_i; dbeta_i] of norm layers (ng_norm_sum in kernel/observed.h). */
#include "device_read.h"

/* One block for each set of inputs with a common mean and variance: a channel (batch norm), a position of a sample (layer
 * norm), or a group of channels of a sample (group norm). moments [sets][2] <- mean, 1 / sqrt(var + eps). */
NG_GLOBAL dv_norm_moments(const dv_norm *k, double *moments) {
  NG_SHARED double warps[32];
  const int64_t S = k->x.positions, wide = k->kind == DV_BATCH_NORM ? 1 : k->channels / k->groups;
  int64_t sample = 0, from = 0, samples = 1, positions = S, channel = 0;
  if (k->kind == DV_BATCH_NORM) {
    samples = k->x.samples;
    channel = NG_BLOCK;
  } else if (k->kind == DV_LAYER_NORM) {
    sample = NG_BLOCK / S;
    from = NG_BLOCK % S;
    positions = 1;
  } else {
    sample = NG_BLOCK / k->groups;
    channel = NG_BLOCK % k->groups * wide;
  }
  const int64_t count = samples * positions * wide;
  double mean = 0.0, var = 0.0;
  for (int32_t pass = 0; pass < 2; pass++) {
    double sum = 0.0;
    for (int64_t i = NG_THREAD; i < count; i += DV_THREADS) {
      const int64_t row = i / wide;
      const double x =
          dv_element(&k->x, sample + row / positions, from + row % positions, channel + i % wide);
      sum += pass == 0 ? x : (x - mean) * (x - mean);
    }
    sum = dv_block_sum(sum, warps) / (double)count;
    if (pass == 0) mean = sum;
    if (pass == 1) var = sum;
  }
  if (NG_THREAD == 0) {
    moments[2 * NG_BLOCK] = mean;
    moments[2 * NG_BLOCK + 1] = 1.0 / sqrt(var + k->eps);
  }
}

/* Return the moments of a channel at position s of sample n. */
NG_INLINE const double *moments_at(const dv_norm *k, const double *moments, int64_t n, int64_t s,
                                   int64_t c) {
  const int64_t set = k->kind == DV_BATCH_NORM   ? c
                      : k->kind == DV_LAYER_NORM ? n * k->x.positions + s
                                                 : n * k->groups + c / (k->channels / k->groups);
  return moments + 2 * set;
}

/* One block for each sample and channel: q [samples][width]. moments NULL: x is normalised. */
NG_GLOBAL dv_norm_gradients(const dv_norm *k, const double *moments, double *q) {
  NG_SHARED double warps[32];
  const int64_t n = NG_BLOCK / k->channels, c = NG_BLOCK % k->channels;
  double gamma = 0.0, beta = 0.0;
  for (int64_t s = NG_THREAD; s < k->g.positions; s += DV_THREADS) {
    const double g = dv_element(&k->g, n, s, c);
    beta += g;
    if (!k->has_gamma) continue;
    const double x = dv_element(&k->x, n, s, c);
    const double *m = moments == NULL ? NULL : moments_at(k, moments, n, s, c);
    gamma += g * (m == NULL ? x : (x - m[0]) * m[1]);
  }
  gamma = dv_block_sum(gamma, warps);
  beta = dv_block_sum(beta, warps);
  if (NG_THREAD != 0) return;
  if (k->has_gamma) q[n * k->width + c] = gamma;
  if (k->has_beta) q[n * k->width + (k->has_gamma ? k->channels : 0) + c] = beta;
}

/* One thread for each number of X [3 channels]: squares, then products of gamma and beta; *bad <- 1 if an element of q does
 * not fit f32. */
NG_GLOBAL dv_norm_squares(const dv_norm *k, const double *q, double *X, int32_t *bad) {
  const int64_t i = NG_BLOCK * DV_THREADS + NG_THREAD, C = k->channels;
  if (i >= 3 * C) return;
  const bool is_product = i >= 2 * C;
  double sum = 0.0;
  for (int64_t n = 0; n < k->samples; n++) {
    const double *row = q + n * k->width;
    if (is_product && k->products) sum += row[i - 2 * C] * row[i - C];
    if (i >= k->width) continue;
    sum += row[i] * row[i];
    if (!(fabs(row[i]) <= DV_LARGEST_F32)) *bad = 1;
  }
  X[i] = sum;
}
NG_GLOBAL dv_norm_report_nonfinite(const int32_t *bad, double *X) {
  if (NG_THREAD == 0 && *bad != 0) X[0] = DV_NAN;
}

/* One block for each row r of S: S[r][c] += alpha sum of q_r q_c for c <= r. */
NG_GLOBAL dv_norm_gram(const dv_norm *k, const double *q, double alpha, void *S, int32_t dtype) {
  const int64_t r = NG_BLOCK;
  for (int64_t c = NG_THREAD; c <= r; c += DV_THREADS) {
    double sum = 0.0;
    for (int64_t n = 0; n < k->samples; n++) {
      sum += q[n * k->width + r] * q[n * k->width + c];
    }
    const int64_t at = dv_sym_at(k->width, r, c);
    if (dtype == DV_F64) {
      ((double *)S)[at] += alpha * sum;
    } else {
      ((float *)S)[at] = (float)((double)((float *)S)[at] + alpha * sum);
    }
  }
}
