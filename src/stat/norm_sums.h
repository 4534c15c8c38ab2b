/* norm_sums.h: gradients of gamma and beta of each sample, of a batch, layer or group norm.
 *
 * With h the normalised input and g the output gradient of sample i at position t and channel c,
 *
 *     dgamma_ic = sum_t g_itc h_itc      dbeta_ic = sum_t g_itc
 *
 * h is the observed input, or (x - mean) / sqrt(var + eps). The mean and the biased variance belong to a channel
 * over the whole micro-batch (batch norm), of all channels of one position (layer norm), or of a group of channels of
 * one sample (group norm). */
#ifndef NG_NORM_SUMS_H
#define NG_NORM_SUMS_H

#include "core/core.h"
#include "kernel/kernel.h"

typedef struct ng_norm_of {
  ng_norm_kind kind;
  ng_norm_input input;
  double eps;
  int64_t channels, groups;
  bool gamma, beta; /* which parameters exist */
} ng_norm_of;

/* If k is a batch norm with raw input, compute mean and variance of each channel over all samples of x, and store them
 * in `room` (ng_norm_room bytes). Otherwise do nothing. */
void ng_norm_moments(ng_context *ctx, const ng_norm_of *k, const ng_view *x, void *room);
/* Row i of q [count, ldq]: dgamma, then dbeta, of all channels of sample from + i. If x or g is not finite, q is not
 * finite. For a batch norm with raw input, call ng_norm_moments first with the same `room`. */
void ng_norm_sums(ng_context *ctx, const ng_norm_of *k, const ng_view *x, const ng_view *g,
                  int64_t from, int64_t count, float *q, int64_t ldq, void *room);
/* ng_norm_one_pass: return whether k is a batch norm with gamma and raw input. Then ng_norm_products computes moments
 * and products in one pass: X [3 C] = sums over the first `take` samples of dgamma^2, dbeta^2, dgamma dbeta. It returns
 * false if a sum is not finite or exceeds the square of the largest f32. */
bool ng_norm_one_pass(const ng_norm_of *k);
bool ng_norm_products(ng_context *ctx, const ng_norm_of *k, const ng_view *x, const ng_view *g,
                      int64_t take, double *X, void *room);
int64_t ng_norm_room(const ng_context *ctx, int64_t channels);

#endif
