/* quantify.c: the ratio by which a step scales each element, as EFCP measures it (arXiv 2306.06098):
 * r_i = |u_i / (g_i + 1e-8)| with the gradient g = D and the direction u = PD before the clip.
 *
 * In: gradients and PD, before PD overwrites the gradients. Out: minimum, quartiles, maximum and mean of r.
 *
 * In a model without curvature, u is the factor of -lr in the fused update t with moments m and v:
 *   SGD    m, or the gradient if there is no momentum
 *   AdamW  m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
 * Then <g, u>, |g|^2 and |u|^2 of the report are computed here, too.
 *
 * Two counting passes replace a sort and an array of all r:
 * 1. Count r by the leading bits of its f32 (exponent and 6 bits: 64 bins per octave).
 * 2. Each quartile is the mean of its two neighbours in sorted order, as published ("midpoint").  Count
 *    the elements in the bins of these six neighbours by the next 11 bits.
 * The middle of a fine bin is within 2^-18 (relative) of the neighbour. The bins use the f32 of 2^-30 r, so that the
 * largest ratio of f32 numbers fits. For r below 2^-96 the error is 2^-114, and r below 2^-113 counts as 0.
 * Minimum, maximum and mean are computed from r itself.
 *
 * Each piece has its own counts and each tile its own sums.  They are added in a fixed order, so the
 * result does not depend on the number of threads.
 *
 * Every rank has PD of all blocks and counts all elements.  With update_ranks = owner each rank counts
 * its own updates, and the counts are summed over ranks. */
#include "step/step.h"

#include <float.h>
#include <math.h>

enum {
  NEIGHBOURS = 6,
  ENDS = 2,
  SUMS = 4,
  RANK_NUMBERS = ENDS + SUMS,
  BINS = NG_RATIO_BINS,
  FINE = NG_RATIO_FINE_BINS,
  DROPPED = NG_RATIO_DROPPED_BITS,
  REST = DROPPED - 11
};
_Static_assert(NEIGHBOURS *FINE <= BINS, "the second pass counts in the memory of the first");

/* ---- memory ----------------------------------------------------------------------------------*/

ng_status ng_quantify_plan(ng_precond *p) {
  ng_quantify *q = &p->step->quantify;
  const size_t pieces = (size_t)p->ctx->config.threads, W = (size_t)p->ctx->ranks;
  const ng_emission *l = &p->step->emission;
  if (!p->opt.base.quantify || l->capacity == 0) return NG_OK;
  q->extreme = ng_object(p, pieces * 2 * sizeof *q->extreme);
  q->count = ng_object(p, pieces * BINS * sizeof *q->count);
  q->sum = ng_object(p, (size_t)l->tiles * SUMS * sizeof *q->sum);
  q->group = ng_object(p, (size_t)ng_max64(p->update_groups, 1) * sizeof *q->group);
  if (W > 1 && ng_update_is_owned(p))
    q->rank_sums = ng_object(p, (BINS + RANK_NUMBERS * W) * sizeof *q->rank_sums);
  return ng_objects_status(p);
}

/* Return whether u is the fused update, because the model has no block. With pipeline stages the model has other stages,
 * and a stage without blocks reports <D, PD> of all stages. */
static bool measures_update(const ng_precond *p) {
  return p->blocks == 0 && !ng_pipeline_exists(p);
}

/* ---- counting --------------------------------------------------------------------------------*/

/* One element of the sorted r: its bin in the first pass, and its number within this bin, `rest`, from 0. */
typedef struct neighbour {
  int64_t rest;
  uint32_t bin;
  int32_t of; /* position of `bin` in the list of the second pass */
} neighbour;

/* List PD of the blocks with factor 1, or the updates with lr = 1 and keep = 0, whose new weight is minus u. */
static void list_measured_directions(ng_precond *p) {
  ng_quantify *q = &p->step->quantify;
  ng_emission_list_blocks(p, true);
  if (!measures_update(p) || p->step->output.kind == NG_OUT_GRADIENT) return;
  ng_output *u = &p->step->output;
  ng_group_numbers *const real = u->group;
  u->group = q->group;
  for (int32_t g = 0; g < p->update_groups; g++) {
    q->group[g] = real[g];
    ng_update_set_lr_1_keep_0(&q->group[g], u->kind, p->updates);
  }
  ng_update_set_late_coefficients(p);
  ng_emission_list_plain(p);
  u->group = real;
}

/* Combine counts, minima, maxima and sums of all ranks by one sum over ranks. Counts are exact in double. The other
 * numbers are gathered: each rank writes its own elements of `all`, and the other ranks contribute 0 there. */
static ng_status gather_ranks(ng_precond *p, double sum[SUMS]) {
  const ng_quantify *q = &p->step->quantify;
  const int64_t W = p->ctx->ranks;
  double *all = q->rank_sums + BINS, *own = all + RANK_NUMBERS * p->ctx->rank;
  for (int64_t k = 0; k < BINS; k++) {
    q->rank_sums[k] = (double)q->count[k];
  }
  memset(all, 0, (size_t)(RANK_NUMBERS * W) * sizeof *all);
  /* A rank without elements has the minimum INFINITY. Send a finite number above all ratios instead. */
  own[0] = fmin(q->extreme[0], (double)FLT_MAX * (double)FLT_MAX);
  own[1] = q->extreme[1];
  memcpy(own + ENDS, sum, SUMS * sizeof *sum);
  const ng_status st = ng_exchange_sum(p, q->rank_sums, BINS + RANK_NUMBERS * W, "quantify");
  if (st != NG_OK) return st;
  q->extreme[0] = INFINITY;
  q->extreme[1] = 0.0;
  memset(sum, 0, SUMS * sizeof *sum);
  for (int64_t r = 0; r < W; r++, all += RANK_NUMBERS) {
    q->extreme[0] = fmin(q->extreme[0], all[0]);
    q->extreme[1] = fmax(q->extreme[1], all[1]);
    for (int k = 0; k < SUMS; k++) {
      sum[k] += all[ENDS + k];
    }
  }
  for (int64_t k = 0; k < BINS; k++) {
    q->count[k] = (int64_t)q->rank_sums[k];
  }
  return NG_OK;
}

/* Run one pass over all elements, and sum its counts over ranks. bins = 0: the first pass. bins > 0: the second pass,
 * which counts only elements of the listed bins, in ascending order. */
static ng_status count_ratios(ng_precond *p, const uint32_t *bin, int32_t bins) {
  ng_quantify *q = &p->step->quantify;
  const ng_emission *l = &p->step->emission;
  const ng_ratios r = {.bin = bin,
                       .bins = bins,
                       .count = q->count,
                       .extreme = q->extreme,
                       .sum = q->sum,
                       .out = q->total};
  ng_queue *queue = p->ctx->queue;
  ng_kernels(queue)->count_ratios(queue, l->direction, measures_update(p) ? l->update : NULL,
                                  l->direction_count, &r);
  ng_queue_wait(queue);
  return q->rank_sums == NULL ? NG_OK : gather_ranks(p, q->total);
}

/* ---- quantiles -------------------------------------------------------------------------------*/

/* Return the middle of the ratios whose keys (ng_ratios) are in [key, key + many). */
static double middle_ratio(uint32_t key, uint32_t many) {
  const double from = (double)ng_float_of_bits(key);
  const double to =
      key + many < NG_INF_BITS ? (double)ng_float_of_bits(key + many) : (double)FLT_MAX;
  return (from + to) / 2.0 * 0x1p30;
}

/* Return the bin of element *at of all elements in order. Set *at to its number within the bin. */
static uint32_t find_bin(const int64_t *count, uint32_t bins, int64_t *at) {
  uint32_t bin = 0;
  while (bin < bins - 1 && count[bin] <= *at) {
    *at -= count[bin++];
  }
  return bin;
}

static double neighbour_ratio(const ng_quantify *q, neighbour x) {
  const uint32_t fine = find_bin(q->count + x.of * FINE, FINE, &x.rest);
  const uint32_t key = x.bin << DROPPED | fine << REST;
  const double r = key == 0 ? 0.0 : middle_ratio(key, 1U << REST);
  return fmax(q->extreme[0], fmin(q->extreme[1], r));
}

/* Find the two neighbours of each quartile. Write the bins of all neighbours, ascending, each once; return their number. */
static int32_t find_neighbours(const ng_quantify *q, int64_t n, neighbour *x, uint32_t *bin) {
  int32_t bins = 0;
  for (int k = 0; k < NEIGHBOURS; k++) {
    x[k].rest = ((n - 1) * (k / 2 + 1) + (k % 2 == 0 ? 0 : 3)) / 4;
    x[k].bin = find_bin(q->count, BINS, &x[k].rest);
    if (bins == 0 || bin[bins - 1] != x[k].bin) bin[bins++] = x[k].bin;
    x[k].of = bins - 1;
  }
  return bins;
}

static ng_status measure_ratios(ng_precond *p) {
  ng_quantify *q = &p->step->quantify;
  neighbour x[NEIGHBOURS];
  uint32_t bin[NEIGHBOURS];
  double sum[SUMS];
  int64_t n = 0;
  ng_status st = count_ratios(p, NULL, 0);
  if (st != NG_OK) return st;
  for (int64_t k = 0; k < BINS; k++) {
    n += q->count[k];
  }
  q->result = (ng_scaling){.count = n};
  if (n == 0) return NG_OK; /* n is equal on all ranks */
  memcpy(sum, q->total, sizeof sum);
  st = count_ratios(p, bin, find_neighbours(q, n, x, bin));
  if (st != NG_OK) return st;
  q->result.least = q->extreme[0];
  q->result.most = q->extreme[1];
  q->result.mean = sum[0] / (double)n;
  for (int k = 0; k < NEIGHBOURS; k += 2) {
    q->result.quartile[k / 2] = (neighbour_ratio(q, x[k]) + neighbour_ratio(q, x[k + 1])) / 2.0;
  }
  if (!measures_update(p)) return NG_OK;
  p->step->inner = sum[1];
  p->step->d2 = sum[2];
  p->step->pd2 = sum[3];
  return NG_OK;
}

ng_status ng_quantify_step(ng_precond *p) {
  list_measured_directions(p);
  const ng_status st = measure_ratios(p);
  ng_update_set_late_coefficients(p); /* list_directions computed the coefficients with lr = 1 */
  return st;
}
