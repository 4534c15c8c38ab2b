/* families_schulz.c: the direction of Muon for a matrix: momentum, then the Newton-Schulz iteration (Jordan et al. 2024; Bernstein
 * & Newhouse 2024, arXiv 2409.20325; scale: Liu et al. 2025, arXiv 2502.16982). Of a matrix D [m, n]:
 *
 *     B <- mu B + (1 - mu) D, from B = 0;   U = (1 - mu) D + mu B with muon_nesterov, else U = B
 *     PD = s NS(U)      NS: ng_newton_schulz, towards Q R' of U = Q S R'; the singular values end between 0.7 and 1.4
 *
 * s: muon_scale. A permutation of rows or columns of D permutes PD. */
#include "family/family.h"

#include <math.h>

/* ---- coefficients ----------------------------------------------------------------------------*/

/* Sets (a, b, c) of iterations. After the last triple, `repeats`: start again; otherwise: the last triple again. Sources:
 * Jordan et al. 2024 (simple: muon_a, muon_b, muon_c); the other sets as in NVIDIA Emerging-Optimizers. polar_express: Amsel et
 * al. 2025, arXiv 2505.16932, with the safety factor 1.01; cans: Grishina et al. 2025, arXiv 2506.10935; cubic5: Huang 2026,
 * arXiv 2606.00371. The set aol is not here, because its first triple changes the sign of singular values above 0.88. */
static const double quintic[][3] = {{4.0848, -6.8946, 2.9270},
                                    {3.9505, -6.3029, 2.6377},
                                    {3.7418, -5.5913, 2.3037},
                                    {2.8769, -3.1427, 1.2046},
                                    {2.8366, -3.0525, 1.2012}};
static const double deepseekv4[][3] = {
    {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315},
    {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315},
    {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}, {2.0, -1.5, 0.5}};
static const double polar_express[][3] = {{8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184},
                                          {3.9096, -2.8234, 0.5250},   {3.2856, -2.4153, 0.4853},
                                          {2.2779, -1.6198, 0.3985},   {1.8726, -1.2307, 0.3585},
                                          {1.8564, -1.2132, 0.3568},   {1.8750, -1.2500, 0.3750}};
static const double cans[][3] = {{8.4703, -25.1081, 18.6293},
                                 {4.1828, -3.1087, 0.5806},
                                 {3.9619, -2.9541, 0.5630},
                                 {3.2866, -2.4647, 0.5074},
                                 {2.2737, -1.6447, 0.4162}};
static const double cubic5[][3] = {{3.3656576, -3.3420992, 0.0},
                                   {2.5744352, -1.4957376, 0.0},
                                   {2.5368962, -1.4312570, 0.0},
                                   {2.4418906, -1.2764040, 0.0},
                                   {2.2230472, -0.9630650, 0.0}};

typedef struct coefficient_set {
  const double (*triple)[3];
  int32_t count;
  bool repeats;
} coefficient_set;
#define SET(name, again)                                                                           \
  { name, (int32_t)(sizeof(name) / sizeof(name)[0]), again }

static void set_coefficients(ng_schulz *k, const ng_settings *o) {
  const double own[1][3] = {{o->muon_a, o->muon_b, o->muon_c}};
  const coefficient_set sets[] = {[NG_MUON_SIMPLE] = SET(own, true),
                                  [NG_MUON_QUINTIC] = SET(quintic, true),
                                  [NG_MUON_DEEPSEEK] = SET(deepseekv4, false),
                                  [NG_MUON_POLAR_EXPRESS] = SET(polar_express, false),
                                  [NG_MUON_CANS] = SET(cans, false),
                                  [NG_MUON_CUBIC] = SET(cubic5, true)};
  const coefficient_set *set = &sets[o->muon_coefficients];
  k->iteration.steps = (int32_t)o->muon_steps;
  for (int32_t i = 0; i < k->iteration.steps; i++) {
    const int32_t from = set->repeats || i < set->count ? i % set->count : set->count - 1;
    memcpy(k->coefficients[i], set->triple[from], sizeof k->coefficients[i]);
  }
}

/* Return s of a weight [rows, cols]. `axes` is the rule of KellerJordan/Muon: m and n are the last two axes of the weight, so
 * of a convolution the height and width of the kernel. */
static double scale_of(const ng_block *b) {
  const ng_layer *d = &b->entry->d;
  const ng_slot *s = b->segment->slot;
  const bool kernel = b->base.muon_scale == NG_MUON_AXES && d->kind == NG_CONV2D;
  const double m = kernel ? (double)d->kernel[0] : (double)s->rows;
  const double n = kernel ? (double)d->kernel[1] : (double)s->cols;
  if (b->base.muon_scale == NG_MUON_RMS) return 0.2 * sqrt(fmax(m, n));
  if (b->base.muon_scale == NG_MUON_LARGEST) return sqrt(fmax(m, n));
  return sqrt(fmax(1.0, m / n));
}

/* ---- the direction ---------------------------------------------------------------------------*/

ng_status ng_schulz_check_options(const ng_options *o, char *message, size_t size) {
  const ng_refusal list[] = {
      {o->base.muon_steps > NG_SCHULZ_MOST, NG_OPTION_muon_steps, ": expected at most 100"}};
  return ng_family_check_list(list, 1, o, message, size);
}

ng_status ng_schulz_create(ng_block *b, ng_schulz *k) {
  const ng_slot *s = b->segment->slot;
  const double small = (double)ng_min64(s->rows, s->cols),
               large = (double)ng_max64(s->rows, s->cols);
  k->iteration = (ng_newton_schulz){.rows = s->rows,
                                    .cols = s->cols,
                                    .coefficients = (const double(*)[3])k->coefficients,
                                    .bounds_norm = b->base.muon_norm == NG_MUON_BOUND,
                                    .rounding = (ng_ns_rounding)b->base.muon_rounding};
  b->direction_cost = (double)b->base.muon_steps * small * small * (1.5 * large + 0.5 * small);
  if (large <= INT32_MAX) return NG_OK;
  return ng_fail(b->ctx, NG_ERR_ARG, "layer '%s': its weight is too large for Newton-Schulz",
                 b->name);
}

void ng_schulz_direction(ng_block *b, ng_moments *m, ng_schulz *k, float *D, float *scratch) {
  ng_queue *q = b->ctx->queue;
  const double mu = b->base.muon_momentum;
  ng_moments_add(b, m, D, mu);
  ng_moments_mix(b, m, D, m->next[0], D, b->base.muon_nesterov ? mu : 1.0);
  set_coefficients(k, &b->base);
  k->iteration.X = D;
  k->iteration.epsilon = b->base.muon_epsilon;
  k->iteration.scale = scale_of(b);
  ng_linalg(q)->newton_schulz(q, &k->iteration, 1, scratch);
}
