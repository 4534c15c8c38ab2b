/* ref_norm.c: the sums of norm_sums.c and norm_products.c, element by element. */
#include <float.h>
#include <math.h>

#include "kernel/norm_pass.h"

/* Set m to the mean and 1 / sqrt(var + eps) of each group of `wide` channels over samples [n0, n1) and positions
 * [s0, s1). */
static void compute_moments(const ng_norm_sum *k, int64_t n0, int64_t n1, int64_t s0, int64_t s1,
                            int64_t wide, const ng_norm_batch *m) {
  const int64_t S = s1 - s0, rows = (n1 - n0) * S;
  for (int64_t c = 0; c < k->layer.channels; c++) {
    double sum = 0.0, square = 0.0, count = (double)(rows * wide);
    const int64_t first = c / wide * wide;
    for (int64_t i = 0; i < rows * wide; i++) {
      sum += ng_view_element(&k->x, n0 + i / wide / S, s0 + i / wide % S, first + i % wide) / count;
    }
    for (int64_t i = 0; i < rows * wide; i++) {
      const double d =
          ng_view_element(&k->x, n0 + i / wide / S, s0 + i / wide % S, first + i % wide) - sum;
      square += d * d / count;
    }
    m->mean[c] = sum;
    m->r[c] = ng_norm_inverse_std(square, k->layer.eps);
  }
}

/* Set q to the gradient q_n. m contains the moments of a batch norm; for other norms it is scratch. */
static void compute_gradient(const ng_norm_sum *k, int64_t n, const ng_norm_batch *m, double *q) {
  const int64_t C = k->layer.channels, S = k->g.positions;
  const bool raw = k->layer.input == NG_NORM_RAW && k->layer.has_gamma;
  double *beta = q + (k->layer.has_gamma ? C : 0);
  memset(q, 0, (size_t)ng_norm_width(&k->layer) * sizeof *q);
  if (raw && k->layer.kind == NG_GROUP_NORM)
    compute_moments(k, n, n + 1, 0, S, C / k->layer.groups, m);
  for (int64_t s = 0; s < S; s++) {
    if (raw && k->layer.kind == NG_LAYER_NORM) compute_moments(k, n, n + 1, s, s + 1, C, m);
    for (int64_t c = 0; c < C; c++) {
      const double g = ng_view_element(&k->g, n, s, c);
      const double x = k->layer.has_gamma ? ng_view_element(&k->x, n, s, c) : 0.0;
      if (k->layer.has_gamma) q[c] += g * (raw ? (x - m->mean[c]) * m->r[c] : x);
      if (k->layer.has_beta) beta[c] += g;
    }
  }
}

/* Compute the moments of a batch norm over all samples. */
static ng_norm_batch batch_moments(const ng_norm_sum *k, void *scratch) {
  const ng_norm_batch m = ng_norm_batch_in(scratch, k->layer.channels);
  if (ng_norm_is_raw_batch(&k->layer) && k->layer.has_gamma) {
    compute_moments(k, 0, k->x.samples, 0, k->x.positions, 1, &m);
  }
  return m;
}

void ng_ref_sum_norm_squares(ng_queue *queue, const ng_norm_sum *k, int64_t n, void *scratch) {
  (void)queue;
  for (const ng_norm_sum *end = k + n; k < end; k++) {
    const int64_t width = ng_norm_width(&k->layer), C = k->layer.channels;
    double *q = scratch, bad = 0.0;
    const ng_norm_batch m = batch_moments(k, q + ng_round16(width));
    memset(k->X, 0, 3 * (size_t)C * sizeof *k->X);
    for (int64_t i = 0; i < k->samples; i++) {
      compute_gradient(k, i, &m, q);
      for (int64_t j = 0; j < width; j++) {
        k->X[j] += q[j] * q[j];
        if (!(fabs(q[j]) <= (double)FLT_MAX)) bad = (double)NAN;
      }
      for (int64_t c = 0; c < C && k->products; c++) {
        k->X[2 * C + c] += q[c] * q[C + c];
      }
    }
    k->X[0] += bad;
  }
}

void ng_ref_add_norm_grams(ng_queue *queue, const ng_norm_sum *k, int64_t n, void *scratch) {
  (void)queue;
  for (const ng_norm_sum *end = k + n; k < end; k++) {
    const int64_t width = ng_norm_width(&k->layer);
    double *q = scratch;
    const ng_norm_batch m = batch_moments(k, q + ng_round16(width));
    for (int64_t i = 0; i < k->samples; i++) {
      compute_gradient(k, i, &m, q);
      for (int64_t r = 0; r < width; r++) {
        for (int64_t c = 0; c <= r; c++) {
          const int64_t at = ng_sym_at(width, r, c);
          const double more = k->alpha * q[r] * q[c];
          if (k->dtype == NG_F64) ((double *)k->S)[at] += more;
          if (k->dtype != NG_F64) ((float *)k->S)[at] += (float)more;
        }
      }
    }
  }
}
