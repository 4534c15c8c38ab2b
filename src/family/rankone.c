/* rankone.c: the rank-one family: Eva (Zhang, Shi & Li, ICLR 2023) in two passes over the gradient.
 *
 * The curvature of a layer is (g g') (x) (a a'), with mean vectors a and g. With
 * D [q, p], alpha = <a, a>, beta = <g, g>, s = g' D a, by Sherman and Morrison
 *
 *     PD = (D - c g a') / lambda,   c = s / (alpha beta + lambda)
 *
 * exactly, and the sums of the clip need no PD:
 *
 *     <D, PD> = (|D|^2 - s c) / lambda,   |PD|^2 = (|D|^2 - 2 c s + c^2 alpha beta) / lambda^2
 *
 * sides = input (Eva-f) replaces g g' by I: with t_r = D_r a for row r of D,
 *
 *     PD = (D - t a' / (alpha + lambda)) / lambda,
 *     <D, PD> = (|D|^2 - |t|^2 / (alpha + lambda)) / lambda
 *
 * sides = none (AdaSGD of the same repository) uses no mean vectors: PD = D / (lambda + |D|^2).
 *
 * The first pass (`describe_sums`) reads the gradient once for |D|^2 and s; the second (`emit`) combines D and the rank-one term.
 * Only a and g are stored and sent. Each group of a convolution has its own a and g.
 *
 * This family is the template for a new family: this file has all its entries of ng_family. */
#include "family/family.h"

#include <math.h>

enum { MEAN_A = 0, MEAN_G = 1 };

typedef struct ng_mean {
  /* Length of the mean vector; 0: none. A: (input channel, kernel offset), then a 1 for the bias; G: outputs. */
  int64_t length;
  ng_conv conv;  /* geometry at the declared size; ng_obs_conv sets the size of an observation */
  ng_stat *stat; /* NULL: no mean vector */
} ng_mean;

/* Numbers of one group: alpha = <a, a>, beta = <g, g>, d2 = |D|^2, s = g' D a, c = s / (alpha beta + lambda).
 * sides = input: beta = 1, s = |D a|^2, c = 1 / (alpha + lambda). bias_*: the bias's part of alpha, d2, s. */
typedef struct ng_rankone_group {
  double alpha, beta, d2, s, c;
  double bias_alpha, bias_d2, bias_s;
} ng_rankone_group;

typedef struct ng_rankone {
  int64_t groups, p, q; /* p: columns of the weight; q: outputs of one group */
  ng_mean side[2];
  ng_rankone_group *group; /* [groups] */
  double *
      norms; /* [2 groups + 1, 3] row sums: |a|^2, |g|^2 of each group, then of the 1 of the bias */
  double *t, *t_sums; /* sides = input: [outputs] t = D a, [groups, 3] its sums; otherwise NULL */
  bool has_no_sides;  /* sides = none: no mean vectors */
  double lambda;      /* divisor of this step: the damping; sides = none: damping + |D|^2 */
  bool uses_double;   /* emit PD of this step in double (CANCELLATION) */
} ng_rankone;

static ng_rankone *rankone_of_block(const ng_block *b) { return b->state; }
/* Return the mean vector of a side, averaged over steps. */
static const float *average_of_side(const ng_rankone *k, int side) {
  return k->side[side].stat->part->average;
}

/* ---- geometry, memory ------------------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  return !e->is_tensor && e->d.kind != NG_NORM && e->d.kind != NG_EMBEDDING &&
         ng_is(o->family, "rankone");
}

/* Accept only scalings for mean vectors, no identity as initial average, and the option positions only with a value that
 * has an effect: stat_scale = eva always averages over positions. */
static ng_status check_options(const ng_options *o, char *message, size_t size) {
  const ng_settings *s = &o->base;
  const bool eva = s->stat_scale == NG_SCALE_EVA;
  const ng_refusal list[] = {
      {!eva && s->stat_scale != NG_SCALE_TEXTBOOK, NG_OPTION_stat_scale,
       ": a rank-one method supports textbook and eva"},
      {s->stat_start == NG_START_IDENTITY, NG_OPTION_stat_start,
       ": a rank-one method averages vectors; set first or zero"},
      {eva && s->positions != NG_POSITIONS_EXPAND, NG_OPTION_positions,
       ": stat_scale = eva always takes the mean over positions; set expand"}};
  const ng_status st = ng_family_check_others(NG_TRAIT_VECTORS, o, message, size);
  return st == NG_OK ? ng_family_check_list(list, 3, o, message, size) : st;
}

/* Remove unused kinds of observations from b->observed, so that the caller need not observe them. */
static ng_status create_state(ng_block *b) {
  const ng_layer *d = &b->entry->d;
  const int64_t groups = d->kind == NG_CONV2D ? d->groups : 1;
  const bool input_only = b->base.sides == NG_SIDES_INPUT, none = b->base.sides == NG_SIDES_NONE;
  if (input_only && d->out > NG_LIST_MOST) {
    return ng_fail(b->ctx, NG_ERR_ARG, "layer '%s': out is %lld, at most %lld with sides = input",
                   d->name, (long long)d->out, (long long)NG_LIST_MOST);
  }
  ng_rankone *k = ng_object(b->p, sizeof *k);
  if (k == NULL) return NG_ERR_NOMEM;
  b->state = k;
  k->groups = groups;
  k->has_no_sides = none;
  b->observed = none ? 0 : input_only ? NG_OBSERVED_INPUT : b->observed;
  k->group = ng_object(b->p, (size_t)groups * sizeof *k->group);
  k->norms = ng_object(b->p, (size_t)(3 * (2 * groups + 1)) * sizeof *k->norms);
  if (input_only) k->t = ng_object(b->p, (size_t)d->out * sizeof *k->t);
  if (input_only) k->t_sums = ng_object(b->p, (size_t)(3 * groups) * sizeof *k->t_sums);
  if (ng_objects_status(b->p) != NG_OK) return NG_ERR_NOMEM;
  k->side[MEAN_A].conv = ng_layer_conv(b->entry, false);
  k->side[MEAN_G].conv = ng_layer_conv(b->entry, true);
  k->p = b->segment[0].slot->cols;
  k->q = d->out / groups;
  k->side[MEAN_A].length = none ? 0 : groups * k->p + d->bias;
  k->side[MEAN_G].length = none || input_only ? 0 : d->out;
  const int at = snprintf(b->entry->why, sizeof b->entry->why, "a %lld, g %lld",
                          (long long)k->side[MEAN_A].length, (long long)k->side[MEAN_G].length);
  if (groups > 1) {
    (void)snprintf(b->entry->why + at, sizeof b->entry->why - (size_t)at, ", %lld groups",
                   (long long)groups);
  }
  return NG_OK;
}

/* a_mean and g_mean have one part each: the vectors of all groups, in order; a_mean ends with a 1 for the bias. */
static ng_status declare_statistics(ng_block *b) {
  ng_rankone *k = rankone_of_block(b);
  const int32_t count = (k->side[MEAN_A].length > 0) + (k->side[MEAN_G].length > 0);
  ng_status st = count > 0 ? ng_block_alloc_stats(b, count) : NG_OK;
  for (int i = 0, at = 0; i < 2 && st == NG_OK; i++) {
    ng_mean *m = &k->side[i];
    if (m->length == 0) continue;
    ng_stat *s = m->stat = &b->stat[at++];
    s->name = i == MEAN_A ? "a_mean" : "g_mean";
    s->observed = i == MEAN_A ? NG_OBSERVED_INPUT : NG_OBSERVED_OUTGRAD;
    s->rule.averaged = true;
    st = ng_stat_alloc_parts(b, s, 1, 1);
    if (st != NG_OK) return st;
    s->part->rows = 1;
    s->part->cols = m->length;
  }
  return st;
}

/* Return the doubles of scratch of `observe` for a geometry: the mean vector, then the scratch of the kernel. */
static int64_t count_scratch(const ng_block *b, const ng_mean *m, const ng_conv *conv) {
  return ng_round16(m->length) + ng_box_scratch(b->ctx->queue, conv);
}

/* Plan only scratch: PD is described, not stored. */
static ng_status request_memory(ng_block *b, ng_plan *plan) {
  const ng_rankone *k = rankone_of_block(b);
  int64_t most = 0;
  for (int i = 0; i < 2; i++) {
    const ng_mean *m = &k->side[i];
    if (m->conv.height == 0) continue; /* undeclared size: the first observation allocates */
    most = ng_max64(most, count_scratch(b, m, &m->conv));
  }
  ng_plan_scratch(plan, ng_times(most, (int64_t)sizeof(double)));
  return NG_OK;
}

/* ---- mean vectors ----------------------------------------------------------------------------*/

/* observe: S <- old S + fresh scale m, where m is the mean over samples and positions. For a convolution, a is the mean
 * patch, which kernel/box.c computes without forming patches. Sums are in double and finite only if all inputs are finite,
 * so no scan is needed.
 *
 * observation_scale (docs/algorithms.md): S positions of one sample, c the samples of the micro-batch for a mean loss and
 * 1 for a sum,
 *
 *                          a            g
 *     eva                  m            u m / loss_scale             lzhangbv/eva
 *     textbook, expand     sqrt(S) m    c m / loss_scale
 *     textbook, reduce     m            c S m / loss_scale
 *
 * u: for a mean loss over a micro-batch that all ranks share, this rank's share of the samples; otherwise 1. */
static double observation_scale(const ng_block *b, const ng_obs *o) {
  const double S = (double)o->positions, c = o->reduction == NG_MEAN ? (double)o->samples : 1.0;
  const bool reduce = b->base.positions == NG_POSITIONS_REDUCE,
             grad = o->kind == NG_OBSERVED_OUTGRAD;
  if (b->base.stat_scale == NG_SCALE_EVA) return grad ? ng_obs_share(o) / o->loss_scale : 1.0;
  if (!grad) return reduce ? 1.0 : sqrt(S);
  return (reduce ? c * S : c) / o->loss_scale;
}

static const ng_mean *observed_mean(const ng_block *b, const ng_obs *o) {
  return &rankone_of_block(b)->side[o->kind == NG_OBSERVED_OUTGRAD ? MEAN_G : MEAN_A];
}

/* The planned scratch is large enough for any number of positions of a linear layer. */
static int64_t observation_scratch(const ng_block *b, const ng_obs *o) {
  const ng_mean *m = observed_mean(b, o);
  const ng_conv c = ng_obs_conv(&m->conv, o);
  if (b->entry->d.kind == NG_LINEAR) return 0;
  return ng_times(count_scratch(b, m, &c), (int64_t)sizeof(double));
}

static ng_status observe(ng_block *b, const ng_obs *o) {
  const ng_mean *m = observed_mean(b, o);
  const ng_stat *s = m->stat;
  ng_queue *q = b->ctx->queue;
  double *sum = ng_scratch(b);
  const ng_box box = {
      .x = o->view, .samples = s->samples, .conv = ng_obs_conv(&m->conv, o), .out = sum};
  ng_kernels(q)->sum_patches(q, &box, 1, sum + ng_round16(m->length));
  const int64_t n = box.conv.channels * ng_conv_taps(&box.conv);
  const double scale = s->mix.fresh * observation_scale(b, o);
  const double mean = scale / ((double)s->samples * (double)o->positions);
  return ng_stat_add(q, s, sum, n, mean, scale); /* the input of the bias is 1 */
}

/* ---- first pass ------------------------------------------------------------------------------*/

/* PD is emitted in double in two cases: if |D|^2 - <D, c g a'> < |D|^2 / CANCELLATION, for example with one sample and a
 * damping far below alpha beta; or if lambda < LEAST_F32, because 1 / lambda may then overflow f32. */
enum { CANCELLATION = 64 };
static const double LEAST_F32 = 1e-36;

/* Return `right`, where left[row] * right[col] is entry (row, col) of g a' (sides = input: of t a'). Weight: left = g or t,
 * right = a. Bias, one row whose columns are the outputs: left = the last entry of a, right = g (or t: not f32, so NULL). */
static const float *right_vector(const ng_rankone *k, const ng_slot *s, int32_t g, int64_t col) {
  if (s->param == NG_WEIGHT) return average_of_side(k, MEAN_A) + g * k->p;
  return k->t != NULL ? NULL : average_of_side(k, MEAN_G) + col;
}

static const float *last_entry_of_a(const ng_rankone *k) {
  return average_of_side(k, MEAN_A) + k->side[MEAN_A].length - 1;
}

/* |D|^2 and g' D a; sides = input: D a to k->t, and its sums. */
static void describe_sums(const ng_block *b, int32_t segment, int32_t g, ng_measure *m) {
  const ng_rankone *k = rankone_of_block(b);
  const ng_slot *s = b->segment[segment].slot;
  const bool weight = s->param == NG_WEIGHT;
  if (k->has_no_sides || (k->t != NULL && !weight)) return;
  m->x = right_vector(k, s, g, m->D.col);
  if (weight && k->t == NULL) {
    m->y = average_of_side(k, MEAN_G) + m->D.row;
  } else if (b->segments > 1) {
    m->y = last_entry_of_a(k);
  }
  if (k->t == NULL) return;
  m->t = k->t + m->D.row;
  m->out = k->t_sums + 3 * (int64_t)g;
  if (b->segments > 1) m->bias = (ng_region){&b->segment[1].slot->grad, 0, 1, m->D.row, m->D.rows};
}

/* Enqueue |a|^2 and |g|^2 of all groups. */
static void precondition(ng_block *b) {
  const ng_rankone *k = rankone_of_block(b);
  ng_queue *q = b->ctx->queue;
  const int64_t groups = k->groups;
  double *out = k->norms;
  if (k->has_no_sides) return;
  const float *a = average_of_side(k, MEAN_A), *one = last_entry_of_a(k);
  ng_linalg(q)->sum_row_products(q, groups, k->p, a, k->p, a, k->p, out);
  if (b->segments > 1) ng_linalg(q)->sum_row_products(q, 1, 1, one, 1, one, 1, out + 6 * groups);
  if (k->t != NULL) return;
  const float *g = average_of_side(k, MEAN_G);
  ng_linalg(q)->sum_row_products(q, groups, k->q, g, k->q, g, k->q, out + 3 * groups);
}

static void read_group_sums(ng_block *b) {
  ng_rankone *k = rankone_of_block(b);
  const double *norm = ng_read_numbers(b->ctx->queue, k->norms);
  const double one = b->segments > 1 ? norm[6 * k->groups] : 0.0;
  for (int64_t i = 0; i < k->groups; i++) {
    ng_rankone_group *r = &k->group[i];
    const double *weight = k->t != NULL ? &k->t_sums[3 * i] : &b->gradient_sums[2 * i];
    const double *bias = &b->gradient_sums[2 * (k->groups + i)];
    *r = (ng_rankone_group){.d2 = weight[0], .s = weight[1]};
    if (k->t != NULL) r->bias_s = weight[2];
    if (b->segments > 1) r->d2 += r->bias_d2 = bias[0];
    if (b->segments > 1 && k->t == NULL) r->s += r->bias_s = bias[1];
    if (k->has_no_sides) continue;
    r->bias_alpha = one;
    r->alpha = norm[3 * i] + one;
    r->beta = k->t != NULL ? 1.0 : norm[3 * (k->groups + i)];
  }
}

/* Set b->inner and b->pd2 over all groups. Return false if the gradient is so nearly parallel to g a' that PD in f32
 * would lose digits (CANCELLATION). along = <D, c g a'>; |c g a'|^2 = along alpha beta / damped. Results below their
 * Cauchy-Schwarz bounds are rounding errors, so the bounds replace them. */
static bool sum_groups(ng_block *b) {
  ng_rankone *k = rankone_of_block(b);
  bool sure = true;
  b->inner = b->pd2 = 0.0;
  for (int64_t i = 0; i < k->groups; i++) {
    ng_rankone_group *r = &k->group[i];
    const double damped = r->alpha * r->beta + k->lambda, least = r->d2 / damped;
    const double along = k->t != NULL ? r->s / damped : r->s * r->s / damped;
    r->c = k->t != NULL ? 1.0 / damped : r->s / damped;
    /* <D, PD> >= |D|^2 / (alpha beta + lambda) = least, and |PD|^2 >= <D, PD>^2 / |D|^2 >= least / damped. */
    b->inner += fmax((r->d2 - along) / k->lambda, least);
    b->pd2 +=
        fmax((r->d2 - 2.0 * along + along * r->alpha * r->beta / damped) / (k->lambda * k->lambda),
             least / damped);
    sure = sure && r->d2 - along >= r->d2 / CANCELLATION;
  }
  return sure;
}

/* |D|^2 is finite if and only if all elements of D are and, if the gradient is f64, its norm is below 1e154. */
static ng_status read_sums(ng_block *b) {
  ng_rankone *k = rankone_of_block(b);
  read_group_sums(b);
  b->inner = b->d2 = b->pd2 = 0.0;
  for (int64_t i = 0; i < k->groups; i++) {
    b->d2 += k->group[i].d2;
  }
  if (!(b->d2 - b->d2 == 0.0)) {
    b->d2 = 0.0;
    return ng_fail(b->ctx, NG_SKIPPED, "layer '%s': its gradient is not finite", b->name);
  }
  k->lambda = b->base.damping + (k->has_no_sides ? b->d2 : 0.0);
  k->uses_double = !sum_groups(b) || k->lambda < LEAST_F32;
  return NG_OK;
}

/* pd_norm2 <- (|D|^2 - 2 c s + c^2 alpha beta) / lambda^2, where |D|^2, s and alpha are the terms of segment k: the weight or
 * the bias. sides = input: |t|^2 replaces beta. */
static void set_pd_norms(ng_block *b) {
  const ng_rankone *k = rankone_of_block(b);
  const double by = 1.0 / (k->lambda * k->lambda);
  double sum[2] = {0.0, 0.0};
  for (int64_t i = 0; i < k->groups; i++) {
    const ng_rankone_group *r = &k->group[i];
    const double beta = k->t != NULL ? r->s : r->beta, cc = r->c * r->c * beta;
    const double bias = r->bias_d2 - 2.0 * r->c * r->bias_s + cc * r->bias_alpha;
    const double weight =
        (r->d2 - r->bias_d2) - 2.0 * r->c * (r->s - r->bias_s) + cc * (r->alpha - r->bias_alpha);
    sum[NG_WEIGHT] += fmax(0.0, weight) * by;
    sum[NG_BIAS] += fmax(0.0, bias) * by;
  }
  for (int32_t i = 0; i < b->segments; i++) {
    b->segment[i].pd_norm2 = sum[i];
  }
}

/* ---- second pass -----------------------------------------------------------------------------*/

/* `factor` multiplies both terms of PD. largest_D and largest_u are the bounds |D_ij| <= |D| and |a_j| <= |a|. */
static void emit(const ng_block *b, int32_t segment, int32_t g, double factor, ng_direction *e) {
  const ng_rankone *k = rankone_of_block(b);
  const ng_slot *s = b->segment[segment].slot;
  const bool weight = s->param == NG_WEIGHT;
  e->scale = factor / k->lambda;
  e->uses_double = k->uses_double;
  if (weight) e->largest_D = sqrt(k->group[g].d2);
  if (k->has_no_sides) return;
  e->u = right_vector(k, s, g, e->D.col);
  e->k = -e->scale * k->group[g].c;
  if (!weight) {
    e->y = last_entry_of_a(k);
    if (k->t != NULL) e->u_double = k->t + e->D.col;
    return;
  }
  e->largest_u = sqrt(k->group[g].alpha);
  if (k->t != NULL) {
    e->y_double = k->t + e->D.row;
  } else {
    e->y = average_of_side(k, MEAN_G) + e->D.row;
  }
}

const ng_family ng_family_rankone = {
    .name = "rankone",
    .traits = NG_TRAIT_VECTORS,
    .observed = NG_OBSERVED_INPUT | NG_OBSERVED_OUTGRAD,
    .detects_nonfinite = true,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .declare_statistics = declare_statistics,
    .request_memory = request_memory,
    .observe = observe,
    .precondition = precondition,
    .read_sums = read_sums,
    .emit = emit,
    .observation_scratch = observation_scratch,
    .set_pd_norms = set_pd_norms,
    .describe_sums = describe_sums,
};
