/* oracle_spatial.c: see oracle.h.  A = S (x) C of a convolution (spatial = factored). */
#include "dense.h"
#include "oracle.h"

#include <stdlib.h>
#include <string.h>

static int64_t taps_of(const ng_layer *l) { return l->kernel[0] * l->kernel[1]; }

bool oracle_is_spatial(const ng_options *opt, const ng_layer *l) {
  const ng_settings *o = &opt->base;
  return o->spatial == NG_SPATIAL_FACTORED && l->kind == NG_CONV2D &&
         o->stat_scale == NG_SCALE_TEXTBOOK && o->solver == NG_SOLVER_CHOLESKY &&
         o->positions == NG_POSITIONS_EXPAND && o->damping_leak == NG_LEAK_NONE && taps_of(l) > 1 &&
         l->in / l->groups > taps_of(l);
}

/* Return pixel (y, x) of a channel of sample b; 0 outside the image. */
static double pixel(const ng_layer *l, const double *data, int64_t b, int64_t channel, int64_t y,
                    int64_t x) {
  if (y < 0 || y >= l->image[0] || x < 0 || x >= l->image[1]) return 0;
  return data[((b * l->in + channel) * l->image[0] + y) * l->image[1] + x];
}

/* Return the sum over pixels and samples of channel c times channel d at a distance of (y, x) kernel positions. */
static double correlation(const ng_layer *l, const double *data, int64_t samples, int64_t c,
                          int64_t d, int64_t y, int64_t x) {
  double sum = 0;
  for (int64_t b = 0; b < samples; b++) {
    for (int64_t i = 0; i < l->image[0]; i++) {
      for (int64_t j = 0; j < l->image[1]; j++)
        sum += pixel(l, data, b, c, i, j) *
               pixel(l, data, b, d, i + y * l->dilation[0], j + x * l->dilation[1]);
    }
  }
  return sum;
}

void oracle_spatial_average(const ng_layer *l, int64_t group, const double *data, int64_t samples,
                            int64_t n, double *out) {
  const int64_t channels = l->in / l->groups, taps = taps_of(l), first = group * channels;
  const double patches = (double)oracle_positions(l);
  const double scale = patches / (double)(l->image[0] * l->image[1] * samples);
  memset(out, 0, sizeof(double) * (size_t)(n * n));
  for (int64_t c = 0; c < channels; c++) {
    for (int64_t d = 0; d < channels; d++)
      out[c * n + d] = scale * correlation(l, data, samples, first + c, first + d, 0, 0);
  }
  for (int64_t k = 0; k < taps; k++) {
    for (int64_t m = 0; m < taps; m++) {
      double sum = 0;
      for (int64_t c = first; c < first + channels; c++)
        sum += correlation(l, data, samples, c, c, m / l->kernel[1] - k / l->kernel[1],
                           m % l->kernel[1] - k % l->kernel[1]);
      out[(channels + k) * n + channels + m] = scale * sum / (double)channels;
    }
  }
  if (l->bias) out[(n - 1) * n + n - 1] = patches;
}

void oracle_spatial_factor(const ng_layer *l, int64_t n, const double *average, double *A) {
  const int64_t channels = l->in / l->groups, taps = taps_of(l);
  const double *S = average + channels * n + channels;
  double mean = 0;
  for (int64_t k = 0; k < taps; k++)
    mean += S[k * n + k] / (double)taps;
  memset(A, 0, sizeof(double) * (size_t)(n * n));
  for (int64_t i = 0; i < channels * taps; i++) {
    for (int64_t j = 0; j < channels * taps; j++) {
      const double s = mean > 0 ? S[i % taps * n + j % taps] / mean : i % taps == j % taps;
      A[i * n + j] = s * average[i / taps * n + j / taps];
    }
  }
  if (l->bias) A[n * n - 1] = average[n * n - 1];
}
