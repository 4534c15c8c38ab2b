/* muon.c: Muon: momentum, then the Newton-Schulz iteration towards the orthogonal polar factor (Jordan et al. 2024; Bernstein
 * & Newhouse 2024, arXiv 2409.20325; scale: Liu et al. 2025, arXiv 2502.16982).
 *
 * In: weights of linear layers and convolutions, as matrices [outputs, rest]. Of a gradient D [m, n]:
 *
 *     B <- mu B + (1 - mu) D, from B = 0;   U = (1 - mu) D + mu B with muon_nesterov, else U = B
 *     PD = s NS(U)      NS: ng_newton_schulz, towards Q R' of U = Q S R'; the singular values end between 0.7 and 1.4
 *
 * s: muon_scale. Biases and other parameters belong to the method's second family. The ranks of the block's column compute PD
 * and have B. */
#include "family/family.h"

#include <math.h>

enum { READ, MOMENTUM, LOOK_AHEAD, MEASURE, PASSES };
enum { STEPS_MOST = 100 };

typedef struct ng_muon {
  ng_flat_range range;
  ng_newton_schulz iteration;
  double coefficients[STEPS_MOST][3];
  bool is_measured;
  float *momentum, *next; /* B before and after this step */
  double *partial_sums;   /* [chunks, 3] */
  double *results;        /* [PASSES, 3]: ng_flat_pass.out */
} ng_muon;

static ng_muon *muon_of_block(const ng_block *b) { return b->state; }

/* ---- coefficients ----------------------------------------------------------------------------*/

/* Sets (a, b, c) of iterations. After the last triple, `repeats`: start again; otherwise: the last triple again. Sources:
 * Jordan et al. 2024 (simple: muon_a, muon_b, muon_c); NVIDIA Emerging-Optimizers fd77292 (quintic, deepseekv4). */
static const double quintic[][3] = {{4.0848, -6.8946, 2.9270},
                                    {3.9505, -6.3029, 2.6377},
                                    {3.7418, -5.5913, 2.3037},
                                    {2.8769, -3.1427, 1.2046},
                                    {2.8366, -3.0525, 1.2012}};
static const double deepseekv4[][3] = {
    {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315},
    {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315},
    {3.4445, -4.7750, 2.0315}, {3.4445, -4.7750, 2.0315}, {2.0, -1.5, 0.5}};
#define COUNT(set) (int32_t)(sizeof(set) / sizeof(set)[0])

static void set_coefficients(ng_muon *k, const ng_settings *o) {
  const double own[1][3] = {{o->muon_a, o->muon_b, o->muon_c}};
  const bool is_own = o->muon_coefficients == NG_MUON_SIMPLE;
  const bool repeats = o->muon_coefficients == NG_MUON_QUINTIC;
  const double(*set)[3] = is_own ? own : repeats ? quintic : deepseekv4;
  const int32_t count = is_own ? 1 : repeats ? COUNT(quintic) : COUNT(deepseekv4);
  k->iteration.steps = (int32_t)o->muon_steps;
  for (int32_t i = 0; i < k->iteration.steps; i++) {
    const int32_t from = repeats ? i % count : i < count ? i : count - 1;
    memcpy(k->coefficients[i], set[from], sizeof k->coefficients[i]);
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

/* ---- geometry, memory ------------------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  return ng_is(o->family, "muon") && !e->is_tensor &&
         (e->d.kind == NG_LINEAR || e->d.kind == NG_CONV2D);
}

static ng_status check_options(const ng_options *o, char *message, size_t size) {
  const ng_refusal list[] = {
      {o->base.muon_steps > STEPS_MOST, NG_OPTION_muon_steps, ": expected at most 100"}};
  const ng_status st = ng_family_check_others(NG_TRAIT_MUON | NG_TRAIT_MOMENTS, o, message, size);
  return st == NG_OK ? ng_family_check_list(list, 1, o, message, size) : st;
}

static ng_status create_state(ng_block *b) {
  const ng_slot *s = b->segment->slot;
  ng_muon *k = b->state = ng_object(b->p, sizeof *k);
  if (k == NULL) return NG_ERR_NOMEM;
  k->results = ng_object(b->p, (size_t)3 * PASSES * sizeof *k->results);
  if (k->results == NULL) return NG_ERR_NOMEM;
  k->range = (ng_flat_range){
      .n = b->segment->count, .grad = &s->grad, .weight = &s->weight, .cols = s->cols};
  k->iteration = (ng_newton_schulz){.rows = s->rows,
                                    .cols = s->cols,
                                    .coefficients = (const double(*)[3])k->coefficients,
                                    .bounds_norm = b->base.muon_norm == NG_MUON_BOUND,
                                    .rounding = (ng_ns_rounding)b->base.muon_rounding};
  const double small = (double)ng_min64(s->rows, s->cols),
               large = (double)ng_max64(s->rows, s->cols);
  b->direction_cost = (double)b->base.muon_steps * small * small * (1.5 * large + 0.5 * small);
  if (ng_count_range_chunks(k->range.n) > INT32_MAX || large > INT32_MAX) {
    return ng_fail(b->ctx, NG_ERR_ARG, "layer '%s': its weight is too large for Newton-Schulz",
                   b->name);
  }
  (void)snprintf(b->entry->why, sizeof b->entry->why, "momentum %lldx%lld, Newton-Schulz",
                 (long long)s->rows, (long long)s->cols);
  return NG_OK;
}

static ng_status declare_statistics(ng_block *b) {
  (void)b;
  return NG_OK;
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_muon *k = muon_of_block(b);
  const int64_t floats = ng_newton_schulz_scratch(&k->iteration);
  const int64_t bytes = ng_times(k->range.n, (int64_t)sizeof(float));
  ng_plan_direction(plan, b, NG_BY_FAMILY, k->range.n);
  if (!b->is_worker) return NG_OK;
  k->momentum = ng_plan_take(plan, NG_USE_FACTORS, bytes);
  k->next = ng_plan_take(plan, NG_USE_SUMS, bytes);
  k->partial_sums = ng_plan_take(
      plan, NG_USE_SUMS, 3 * ng_count_range_chunks(k->range.n) * (int64_t)sizeof *k->partial_sums);
  ng_plan_scratch(plan, ng_times(floats, (int64_t)sizeof(float)));
  return NG_OK;
}

static ng_status observe(ng_block *b, const ng_obs *o) {
  (void)b;
  (void)o;
  return NG_OK;
}

/* ---- the direction ---------------------------------------------------------------------------*/

static void enqueue_pass(ng_block *b, int pass, ng_flat_pass p) {
  ng_muon *k = muon_of_block(b);
  p.range = &k->range;
  p.ranges = 1;
  p.partial_sums = k->partial_sums;
  p.out = k->results + 3 * (int64_t)pass;
  ng_kernels(b->ctx->queue)->run_flat_passes(b->ctx->queue, &p, 1);
}

static void precondition(ng_block *b) {
  ng_muon *k = muon_of_block(b);
  ng_queue *q = b->ctx->queue;
  float *U = b->direction;
  const double mu = b->base.muon_momentum;
  enqueue_pass(b, READ,
               (ng_flat_pass){.op = NG_FLAT_READ, .to = U, .limit = ng_dtype_largest(NG_F32)});
  enqueue_pass(
      b, MOMENTUM,
      (ng_flat_pass){
          .op = NG_FLAT_MIX, .to = k->next, .v = k->momentum, .x = U, .old = mu, .take = 1.0 - mu});
  enqueue_pass(b, LOOK_AHEAD,
               (ng_flat_pass){.op = NG_FLAT_MIX,
                              .to = U,
                              .v = k->next,
                              .x = U,
                              .old = b->base.muon_nesterov ? mu : 1.0,
                              .take = b->base.muon_nesterov ? 1.0 - mu : 0.0});
  set_coefficients(k, &b->base);
  k->iteration.X = U;
  k->iteration.epsilon = b->base.muon_epsilon;
  k->iteration.scale = scale_of(b);
  ng_linalg(q)->newton_schulz(q, &k->iteration, 1, ng_scratch(b));
  enqueue_pass(b, MEASURE, (ng_flat_pass){.op = NG_FLAT_MEASURE, .to = U});
}

/* If D is not finite, PD becomes 0, because other ranks may receive PD before they learn that the step is skipped. */
static ng_status read_sums(ng_block *b) {
  ng_muon *k = muon_of_block(b);
  const double *r = ng_read_numbers(b->ctx->queue, k->results);
  ng_direction_sums sums = {.finite =
                                r[3 * READ] == 0.0}; /* the number of lines that are not finite */
  memcpy(sums.total, r + 3 * MEASURE, sizeof sums.total);
  const ng_status st = ng_block_read_sums(b, &sums, k->range.n);
  k->is_measured = st == NG_OK;
  return st;
}

static void emit(const ng_block *b, int32_t segment, int32_t g, double factor, ng_direction *e) {
  const int64_t cols = b->segment[segment].slot->cols;
  (void)g;
  (void)factor;
  e->is_stored = true;
  e->u = b->direction + e->D.row * cols + e->D.col;
  e->u_row = cols;
}

static void end_step(ng_block *b, bool step_counts) {
  ng_muon *k = muon_of_block(b);
  if (step_counts && k->is_measured) {
    float *const old = k->momentum;
    k->momentum = k->next;
    k->next = old;
  }
  k->is_measured = false;
}

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_muon *k = muon_of_block(b);
  ng_field f = ng_field_plain("momentum_matrix", NG_F32, k->iteration.rows, k->iteration.cols,
                              k->momentum, b->owner);
  visit(arg, &f);
}

const ng_family ng_family_muon = {
    .name = "muon",
    .traits = NG_TRAIT_MUON | NG_TRAIT_MOMENTS,
    .takes_weight_only = true,
    .computes_in_column = true,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .declare_statistics = declare_statistics,
    .request_memory = request_memory,
    .observe = observe,
    .precondition = precondition,
    .read_sums = read_sums,
    .emit = emit,
    .end_step = end_step,
    .visit_fields = visit_fields,
};
