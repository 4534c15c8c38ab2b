/* norm.c: the norm family: gamma and beta of batch, layer and group norms, in a model with any layer-wise method.
 *
 * In: a norm layer. Out: PD = (F + d I)^-1 D. D is the gradient of gamma and beta, F the second moment of their
 * gradients of single samples, and d = damping x norm_damping.
 *
 * C is the number of channels. q_i = [dgamma_i; dbeta_i] is the gradient of sample i (kernel/observed.h), `width`
 * numbers: C for gamma, then C for beta. In a layer without gamma or without beta, width = C.
 *
 *     F = (1/B) sum_i q_i q_i',  of which a block stores
 *     full      all entries, [width, width], as in chainerkfac, the code of both papers
 *     unit      the entries within each channel, three vectors of length C: [gamma gamma | beta beta | gamma beta]
 *               (Osawa et al. 2020, SP-NGD, arXiv 2002.06015)
 *     diagonal  [gamma gamma | beta beta] (Osawa et al. 2019, arXiv 1811.12019)
 *
 * Unit and diagonal blocks have no solve: every step divides by the averages, channel by channel. The owner of a full
 * block inverts F + d I (twosided/) and sends the inverse. If all rungs fail, the block uses the last good
 * inverse; without a good inverse, PD = D. */
#include "family/family.h"
#include "twosided/twosided.h"

/* Indices of ng_norm.solve_info: the rung of the last solve, 1 if R is good (else 0), the damping. */
enum { NG_NORM_RUNG, NG_NORM_GOOD, NG_NORM_DAMPING, NG_NORM_INFO_COUNT };

typedef struct ng_norm {
  ng_norm_layer layer;
  int64_t width;
  bool is_full, solves_units; /* kind of the block: full, or unit; neither: diagonal */
  ng_inputs inputs;           /* without output gradient */
  double shift;        /* damping_leak: damping of earlier solves, added to F at the next fold */
  int32_t rung;        /* unit, diagonal: highest rung of the last measure */
  double last_damping; /* unit, diagonal: damping of the last measure */
  float *solve_info;   /* full: [NG_NORM_INFO_COUNT], which the owner sends with the inverse R */
  ng_matrix side[2];   /* full: F with its damped inverse on the left, nothing on the right */
  ng_twosided both;
  ng_direction_sums *sums;
} ng_norm;

static ng_norm *norm_of_block(const ng_block *b) { return b->state; }

/* ---- geometry, memory ------------------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  return !e->is_tensor && e->d.kind == NG_NORM && o->norm_block != NG_NORM_NONE;
}

/* Any method may have norm blocks, so this check accepts options of other families. */
static ng_status check_options(const ng_options *o, char *message, size_t size) {
  if (o->base.solver != NG_SOLVER_PRODUCT) return NG_OK;
  return ng_fail_to(message, size, NG_ERR_ARG,
                    "norm_block = %s: solver = product inverts nothing; take norm_block = none",
                    ng_choice_text(NG_OPTION_norm_block, (int32_t)o->base.norm_block));
}

static ng_status create_state(ng_block *b) {
  static const char *const kind[] = {
      [NG_NORM_UNIT] = "units of 2x2", [NG_NORM_FULL] = "full", [NG_NORM_DIAGONAL] = "diagonal"};
  const ng_layer *d = &b->entry->d;
  ng_norm *k = ng_object(b->p, sizeof *k);
  if (k == NULL) return NG_ERR_NOMEM;
  b->state = k;
  k->sums = ng_object(b->p, sizeof *k->sums);
  if (k->sums == NULL) return NG_ERR_NOMEM;
  k->layer = (ng_norm_layer){.kind = d->norm_kind,
                             .input = d->norm_input,
                             .eps = d->norm_eps,
                             .channels = d->in,
                             .groups = d->groups,
                             .has_gamma = d->norm_no_weight == 0,
                             .has_beta = d->bias != 0};
  k->width = (int64_t)b->entry->slots * d->in;
  k->is_full = b->solves = b->base.norm_block == NG_NORM_FULL;
  b->matrices = k->is_full;
  if (!k->layer.has_gamma) b->observed &= ~(uint32_t)NG_OBSERVED_INPUT;
  if (k->is_full && !ng_blas_accepts_order(k->width)) {
    return ng_fail(b->ctx, NG_ERR_ARG,
                   "layer '%s': a norm block of order %lld exceeds 32-bit LAPACK; set "
                   "norm_block = unit",
                   b->name, (long long)k->width);
  }
  const bool single = b->entry->slots == 1 && !k->is_full;
  (void)snprintf(b->entry->why, sizeof b->entry->why, "F %lldx%lld, %s", (long long)k->width,
                 (long long)k->width, single ? "diagonal" : kind[b->base.norm_block]);
  return NG_OK;
}

static ng_status declare_statistics(ng_block *b) {
  ng_norm *k = norm_of_block(b);
  ng_status st = ng_block_alloc_stats(b, 1);
  if (st != NG_OK) return st;
  ng_stat *s = b->stat;
  s->name = "F";
  s->observed = NG_OBSERVED_OUTGRAD;
  s->also_observed = k->layer.has_gamma ? NG_OBSERVED_INPUT : 0;
  s->symmetric = k->is_full;
  /* Rounding F to f32 causes a relative error of 6e-8 times the condition number in the inverse. F is often nearly
   * singular, because a batch has fewer samples than F has rows. */
  if (k->is_full && k->width <= NG_SMALL_SOLVE) s->average_dtype = s->sum_dtype = NG_F64;
  s->rule.averaged = true;
  s->shift = b->base.damping_leak ? &k->shift : NULL;
  st = ng_stat_alloc_parts(b, s, 1, 1);
  if (st != NG_OK) return st;
  k->solves_units = b->base.norm_block == NG_NORM_UNIT && b->entry->slots == 2;
  s->part->rows = k->is_full ? k->width : 1;
  s->part->cols = s->part->channels = k->width + (k->solves_units ? k->layer.channels : 0);
  s->part->diagonal = k->width;
  return NG_OK;
}

/* The scratch contains X, then the scratch of the kernel. Return the number of doubles of X; a full block has no X. */
static int64_t count_x(const ng_block *b) {
  return norm_of_block(b)->is_full ? 0 : ng_round16(3 * norm_of_block(b)->layer.channels);
}

static int64_t count_observation_bytes(const ng_block *b) {
  return ng_plus(ng_times(count_x(b), (int64_t)sizeof(double)),
                 ng_norm_sums_scratch(b->ctx->queue, &norm_of_block(b)->layer));
}

/* The inverse has the dtype of F, because in R D large terms cancel unless D lies along the largest eigenvectors of R. */
static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_norm *k = norm_of_block(b);
  ng_matrix *m = k->side;
  const ng_dtype t = b->stat->average_dtype;
  m[0] = (ng_matrix){.n = k->width, .scale = 1.0, .average_dtype = t, .result_dtype = t};
  m[1].form = NG_FORM_ABSENT;
  k->both = (ng_twosided){.groups = 1, .rows = k->width, .cols = 1, .left = m, .right = m + 1};
  k->both.left_count = k->both.right_count = 1;
  int64_t floats = ng_round16(k->width) +
                   ng_max64(ng_round16(6 * k->width), ng_twosided_scratch(&k->both, k->width));
  if (k->is_full) floats = ng_max64(floats, ng_matrix_scratch(b->ctx->queue, m));
  if (k->is_full && b->is_worker) {
    const int32_t owner = b->stat->owner;
    k->solve_info = ng_plan_result(plan, owner, NG_NORM_INFO_COUNT * (int64_t)sizeof(float));
    m->R = ng_plan_result(plan, owner, ng_matrix_count(m) * ng_dtype_size(m->result_dtype));
  }
  ng_plan_direction(plan, b, NG_BY_FAMILY, k->width);
  ng_plan_scratch(plan,
                  ng_max64(count_observation_bytes(b), ng_times(floats, (int64_t)sizeof(float))));
  return NG_OK;
}

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_norm *k = norm_of_block(b);
  if (!k->is_full) return;
  ng_field f = ng_field_plain("F_inverse", k->side->result_dtype, k->width, k->width, k->side->R,
                              b->stat->owner);
  f.is_symmetric = true;
  visit(arg, &f);
  f = ng_field_plain("F_solve", NG_F32, 1, NG_NORM_INFO_COUNT, k->solve_info, b->stat->owner);
  visit(arg, &f);
}

static void visit_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_number n = {.name = "F_leak.0", .value = &norm_of_block(b)->shift};
  if (b->base.damping_leak) visit(arg, &n);
}

static double block_damping(const ng_block *b) { return b->base.damping * b->base.norm_damping; }

/* ---- observations ----------------------------------------------------------------------------*/

/* S <- old S + fresh (1/B) sum_i q_i q_i', B: samples used. q_i is the gradient of gamma and beta for the loss of sample i
 * alone, summed over positions. So output gradients are multiplied by c / loss_scale, where c is the samples of the
 * micro-batch for a mean loss, 1 for a sum. stat_scale has no effect on norm blocks. The caller keeps the data of an input
 * valid until the output gradient is observed. */

/* S <- old S + alpha X. NG_SKIPPED: an input is not finite. */
static ng_status add_units(ng_block *b, ng_norm_sum *k, void *scratch) {
  ng_queue *q = b->ctx->queue;
  const int64_t n = b->stat->part->cols;
  k->products = n > ng_norm_width(&k->layer);
  k->X = ng_scratch(b);
  ng_kernels(q)->sum_norm_squares(q, k, 1, scratch);
  return ng_stat_add(q, b->stat, k->X, n, k->alpha, 0.0);
}

/* x and g are finite: the engine has scanned them, because a full block solves. */
static void add_full(ng_block *b, ng_norm_sum *k, void *scratch) {
  ng_queue *q = b->ctx->queue;
  k->S = b->stat->part->sum;
  k->dtype = b->stat->sum_dtype;
  ng_stat_scale_old(q, b->stat);
  ng_kernels(q)->add_norm_grams(q, k, 1, scratch);
}

static ng_status observe(ng_block *b, const ng_obs *o) {
  ng_norm *k = norm_of_block(b);
  const ng_stat *s = b->stat;
  const ng_obs *input = o; /* beta needs no input */
  ng_status st = NG_OK;
  if (o->kind == NG_OBSERVED_INPUT) return ng_inputs_store(b, &k->inputs, o);
  if (k->layer.has_gamma) st = ng_inputs_find(b, &k->inputs, o, &input);
  if (st != NG_OK) return st;
  const double c = o->reduction == NG_MEAN ? (double)o->samples : 1.0, by = c / o->loss_scale;
  void *scratch = (double *)ng_scratch(b) + count_x(b);
  ng_norm_sum sum = {.layer = k->layer, .x = input->view, .g = o->view, .samples = s->samples};
  sum.alpha = s->mix.fresh * by * by / (double)s->samples;
  if (k->is_full) {
    add_full(b, &sum, scratch);
  } else {
    st = add_units(b, &sum, scratch);
  }
  if (st == NG_OK && k->layer.has_gamma) k->inputs.count--;
  return st;
}

/* ---- full: solve -----------------------------------------------------------------------------*/

static ng_status solve(ng_block *b, ng_solve_phase phase) {
  ng_norm *k = norm_of_block(b);
  const double d = block_damping(b);
  const bool owns = b->stat->owner == b->ctx->rank;
  int32_t rung = 0;
  if (!b->has_averages) return NG_OK;
  if (phase == NG_SOLVE_LIST && owns) {
    k->side->F = b->stat->part->average;
    ng_block_list_matrix(b, k->side, 0.0, k->shift + d, 0.0);
  }
  if (phase != NG_SOLVE_CLIMB) return NG_OK;
  if (owns) {
    rung = ng_matrix_retry(b->ctx->queue, k->side, ng_scratch(b));
    const bool had = k->solve_info[NG_NORM_GOOD] != 0.0f;
    if (rung == NG_DAMPED_NONE) rung = had ? NG_RUNG_LAST : NG_RUNG_PLAIN;
    k->solve_info[NG_NORM_RUNG] = (float)rung;
    if (rung < NG_RUNG_LAST) k->solve_info[NG_NORM_GOOD] = 1.0f;
    k->solve_info[NG_NORM_DAMPING] = (float)d;
  }
  /* every rank that stores the average also stores the shift */
  if (b->base.damping_leak) k->shift += d;
  ng_count_rung(b->p, rung);
  return rung > 0 ? NG_RESCUED : NG_OK;
}

static void read_results(ng_block *b) {
  ng_norm *k = norm_of_block(b);
  k->both.is_good = k->solve_info[NG_NORM_GOOD] != 0.0f;
}

/* ---- unit, diagonal --------------------------------------------------------------------------*/

/* PD <- [gg gb; gb bb]^-1 D for gamma and beta of one channel. In rounded f32 averages gb^2 may exceed gg bb; return
 * false unless the determinant exceeds that rounding error. */
static bool solve_unit(double gg, double bb, double gb, const double D[2], double PD[2]) {
  const double SURE = 0x1p-22, whole = gg * bb, det = whole - gb * gb;
  if (!(det > SURE * whole)) return false;
  PD[0] = (bb * D[0] - gb * D[1]) / det;
  PD[1] = (gg * D[1] - gb * D[0]) / det;
  return true;
}

/* out <- PD of all channels; return the highest rung. Each channel tries damping x 10, 3 times, then PD = D. */
static int32_t solve_units(const ng_block *b, const float *F, double d, const float *D,
                           float *out) {
  const int64_t C = norm_of_block(b)->layer.channels;
  int32_t worst = 0;
  for (int64_t c = 0; c < C; c++) {
    const double in[2] = {(double)D[c], (double)D[C + c]};
    double pd[2], shift = d;
    int32_t rung = 0;
    while (rung < 4 && !solve_unit((double)F[c] + shift, (double)F[C + c] + shift,
                                   (double)F[2 * C + c], in, pd)) {
      shift *= 10.0;
      rung++;
    }
    if (rung == 4) rung = NG_RUNG_PLAIN;
    out[c] = rung < 4 ? (float)pd[0] : D[c];
    out[C + c] = rung < 4 ? (float)pd[1] : D[C + c];
    if (rung > worst) worst = rung;
  }
  return worst;
}

/* Return the damping. damping_leak: the first damping after a fold stays until the next fold, which sets shift to 0. */
static double unit_damping(ng_block *b) {
  ng_norm *k = norm_of_block(b);
  if (!b->base.damping_leak) return block_damping(b);
  if (k->shift == 0.0) k->shift = block_damping(b);
  return k->shift;
}

/* Diagonal: PD = D / (F + d). Unit: `direction` <- D, which measure_units reads. */
static void precondition_units(ng_block *b, const float *D) {
  ng_norm *k = norm_of_block(b);
  ng_queue *q = b->ctx->queue;
  k->last_damping = unit_damping(b);
  ng_linalg(q)->copy_rows(q, 1, k->width, D, k->width, b->direction, k->width);
  if (!k->solves_units) {
    const ng_spectrum s = {.g = b->stat->part->average, .damping_both = k->last_damping};
    ng_linalg(q)->divide(q, k->width, 1, s, b->direction, NG_F32, 1);
  }
}

/* ---- PD --------------------------------------------------------------------------------------*/

static void precondition(ng_block *b) {
  ng_norm *k = norm_of_block(b);
  ng_queue *q = b->ctx->queue;
  float *D = ng_scratch(b), *scratch = D + ng_round16(k->width);
  double *sums = (double *)(void *)scratch;
  ng_read list[2];
  *k->sums = (ng_direction_sums){.finite = 1};
  for (int32_t i = 0; i < b->segments; i++) {
    list[i] = (ng_read){.D = {&b->segment[i].slot->grad, 0, 1, 0, k->layer.channels},
                        .to = D + i * k->layer.channels,
                        .to_col = 1,
                        .finite = &k->sums->finite};
  }
  ng_kernels(q)->read_gradients(q, list, b->segments);
  if (k->is_full) {
    ng_twosided_apply(q, &k->both, 0, k->width, D, b->direction, scratch);
  } else {
    precondition_units(b, D);
  }
  ng_linalg(q)->sum_row_products(q, k->width, 1, b->direction, 1, D, 1, sums);
  ng_linalg(q)->add_rows_of_sums(q, k->width, sums, k->sums->total);
}

/* Unit: `direction`, which is D, <- PD. */
static void measure_units(ng_block *b) {
  ng_norm *k = norm_of_block(b);
  float *PD = ng_scratch(b);
  k->rung = solve_units(b, b->stat->part->average, k->last_damping, b->direction, PD);
  b->inner = b->pd2 = 0.0;
  for (int64_t i = 0; i < k->width; i++) {
    b->inner += (double)b->direction[i] * (double)PD[i];
    b->pd2 += (double)PD[i] * (double)PD[i];
  }
  memcpy(b->direction, PD, (size_t)k->width * sizeof *PD);
}

static ng_status read_sums(ng_block *b) {
  ng_norm *k = norm_of_block(b);
  const ng_status st = ng_block_read_sums(b, k->sums, k->width);
  k->rung = 0;
  if (st != NG_OK || k->is_full) return st;
  if (k->solves_units) measure_units(b);
  ng_count_rung(b->p, k->rung);
  return k->rung > 0 ? NG_RESCUED : NG_OK;
}

static void write_report(const ng_block *b, ng_layer_report *r) {
  const ng_norm *k = norm_of_block(b);
  if (!b->is_worker) return;
  r->rung = k->is_full ? ng_rung_from_float(k->solve_info[NG_NORM_RUNG]) : k->rung;
  r->damping_f = k->is_full ? (double)k->solve_info[NG_NORM_DAMPING] : k->last_damping;
}

const ng_family ng_family_norm = {
    .name = "norm",
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
    .emit = ng_block_emit_direction,
    .visit_fields = visit_fields,
    .visit_numbers = visit_numbers,
    .solve = solve,
    .read_results = read_results,
    .write_report = write_report,
};
