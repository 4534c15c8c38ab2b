/* norm_sums.h: gradients of gamma and beta of each sample, of a batch, layer or group norm.
 *
 * With h the normalised input and g the output gradient of sample i at position t and channel c,
 *
 *     dgamma_ic = sum_t g_itc h_itc      dbeta_ic = sum_t g_itc
 *
 * h is the observed input, or (x - mean) / sqrt(var + eps). The mean and the biased variance are
 * the mean and variance of a channel over the whole micro-batch (batch norm), of all channels of one position
 * (layer norm), or of a group of channels of one sample (group norm). */
#ifndef NG_NORM_SUMS_H
#define NG_NORM_SUMS_H

#include "core/core.h"
#include "stat/gram.h"

typedef struct ng_norm_of {
  ng_norm_kind kind;
  ng_norm_input input;
  double eps;
  int64_t channels, groups;
  bool gamma, beta; /* which of the two exist */
} ng_norm_of;

/* Mean and variance of each channel of a batch norm with raw input, over all samples of x;
 * otherwise nothing. `room` has ng_norm_room bytes and keeps them. */
void ng_norm_moments(ng_context *ctx, const ng_norm_of *k, const ng_view *x, void *room);
/* q [count, ldq]: of samples [from, from + count) all dgamma, then all dbeta. Non-finite x or g
 * give non-finite q. */
void ng_norm_sums(ng_context *ctx, const ng_norm_of *k, const ng_view *x, const ng_view *g,
                  int64_t from, int64_t count, float *q, int64_t ldq, void *room);
/* A batch norm with gamma and raw input, whose moments are computed in the same pass: X [3 C] =
 * sums over the first `take` samples of dgamma^2, dbeta^2, dgamma dbeta. false: a number is not
 * finite, or beyond f32. */
bool ng_norm_one_pass(const ng_norm_of *k);
bool ng_norm_products(ng_context *ctx, const ng_norm_of *k, const ng_view *x, const ng_view *g,
                      int64_t take, double *X, void *room);
int64_t ng_norm_room(const ng_context *ctx, int64_t channels);

#endif
