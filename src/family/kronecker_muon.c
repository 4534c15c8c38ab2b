/* kronecker_muon.c: a family over factor A of kronecker.c: Newton-Muon (Du & Su 2026, arXiv 2604.01472).
 *
 *     A <- the running average of the second moment of the inputs, without the 1 of a bias; m its mean eigenvalue
 *     D' = D (A / m + damping I)^-1                 every solve_period steps a new inverse
 *     B, U, PD of D': families_schulz.c
 *
 * For the quadratic model of a layer with inputs A, and outputs whose curvature is a multiple of I, D A^-1 is the step of Newton.
 * Only its directions remain after the Newton-Schulz iteration, so m cancels, except in the sum B over steps. With a large
 * damping PD becomes the PD of Muon.
 *
 * In: linear layers and convolutions, whose D is [outputs, rest]. The bias belongs to the method's second family. D', B and PD are in
 * the internal order of columns, of which the iteration is independent. */
#include "family/kronecker.h"

struct ng_kron_muon {
  ng_moments moments; /* the first moment is B */
  ng_schulz schulz;
};

/* ---- options, geometry, memory ---------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  return ng_kron_is_linear_or_conv(e) && ng_is(o->family, "kronecker-muon");
}

static ng_status check_options(const ng_options *o, char *message, size_t size) {
  const ng_settings *s = &o->base;
  static const ng_option_id unused[] = {NG_OPTION_damping_split, NG_OPTION_damping_leak,
                                        NG_OPTION_output_factor, NG_OPTION_radius,
                                        NG_OPTION_eigen_floor,   NG_OPTION_gradient_rows};
  const ng_refusal list[] = {
      {s->solver != NG_SOLVER_CHOLESKY, NG_OPTION_solver, ": Newton-Muon inverts A by cholesky"},
      {s->spatial != NG_SPATIAL_FULL, NG_OPTION_spatial,
       ": Newton-Muon inverts the whole A; set full"},
      {s->inverse_dtype == NG_F64, NG_OPTION_inverse_dtype,
       ": Newton-Muon takes f32, bf16 and f16"},
      ng_kron_refuse_eva_scale(s)};
  ng_status st = ng_family_check_others(
      NG_TRAIT_FACTORS | NG_TRAIT_SOLVES | NG_TRAIT_MOMENTS | NG_TRAIT_MUON, o, message, size);
  if (st == NG_OK) st = ng_family_check_list(list, sizeof list / sizeof *list, o, message, size);
  if (st == NG_OK) st = ng_schulz_check_options(o, message, size);
  if (st != NG_OK) return st;
  return ng_family_check_unused(unused, sizeof unused / sizeof *unused,
                                "Newton-Muon only inverts A + damping", o, message, size);
}

static ng_status create_state(ng_block *b) {
  ng_status st = ng_kron_create_state(b);
  if (st != NG_OK) return st;
  ng_kron *k = ng_kron_of(b);
  struct ng_kron_muon *x = k->muon = ng_object(b->p, sizeof *x);
  if (x == NULL) return NG_ERR_NOMEM;
  st = ng_schulz_create(b, &x->schulz);
  if (st != NG_OK) return st;
  char *const why = b->entry->why;
  const size_t size = sizeof b->entry->why;
  int at = snprintf(why, size, "A %lldx%lld", (long long)k->p, (long long)k->p);
  if (k->right->group_parts > 1) {
    at += snprintf(why + at, size - (size_t)at, " in %d diagonal blocks", k->right->group_parts);
  }
  (void)snprintf(why + at, size - (size_t)at, ", momentum %lldx%lld, Newton-Schulz",
                 (long long)k->outputs, (long long)k->p);
  return ng_moments_create(b, &x->moments);
}

static int64_t D_floats(const ng_kron *k) { return ng_round16(k->outputs * k->p); }

/* Scratch of `precondition`: D; 3 doubles a row; of the product with the inverse, or of the iteration. */
static ng_status request_memory(ng_block *b, ng_plan *plan) {
  const ng_status st = ng_kron_request_memory(b, plan);
  const ng_kron *k = ng_kron_of(b);
  const int64_t floats = D_floats(k) + ng_round16(6 * k->outputs) +
                         ng_max64(ng_twosided_scratch(&k->both, k->outputs),
                                  ng_newton_schulz_scratch(&k->muon->schulz.iteration));
  if (b->is_worker) ng_moments_request(plan, &k->muon->moments, 1, NG_USE_FACTORS, NG_USE_MOMENTS);
  ng_plan_scratch(plan, ng_times(floats, (int64_t)sizeof(float)));
  return st;
}

/* ---- solve -----------------------------------------------------------------------------------*/

/* Return the mean eigenvalue of A over all its blocks; 0 if an element is not finite. */
static double mean_eigenvalue(const ng_block *b, const ng_side *s, bool *finite) {
  const ng_queue *q = b->ctx->queue;
  double trace = 0.0;
  int64_t n = 0;
  for (int32_t i = 0; i < s->parts; i++) {
    *finite = *finite && ng_read_info(q, &s->matrix[i].finite) != 0;
    trace += *ng_read_numbers(q, &s->matrix[i].trace);
    n += s->matrix[i].n;
  }
  return trace / (double)n;
}

/* If all inputs are 0, m is 1. */
static void list_blocks(ng_block *b, ng_side *s) {
  bool finite = true;
  const double mean = mean_eigenvalue(b, s, &finite);
  for (int32_t i = 0; i < s->parts; i++) {
    s->matrix[i].scale = mean > 0.0 ? 1.0 / mean : 1.0;
    s->matrix[i].finite = finite;
    if (finite) ng_block_list_matrix(b, &s->matrix[i], 0.0, b->base.damping, 0.0);
  }
  s->solve_info[NG_INFO_DAMPING] = (float)b->base.damping;
}

static ng_status solve(ng_block *b, ng_solve_phase phase) {
  ng_side *s = &ng_kron_of(b)->side[NG_SIDE_A];
  if (s->stat->owner != b->ctx->rank) return NG_OK;
  for (int32_t i = 0; i < s->parts && phase == NG_SOLVE_MEASURE; i++) {
    s->matrix[i].F = s->stat->part[s->part[i].of_stat].average;
    ng_matrix_measure(b->ctx->queue, &s->matrix[i]);
  }
  if (phase == NG_SOLVE_LIST) list_blocks(b, s);
  return phase == NG_SOLVE_CLIMB && ng_kron_climb_side(b, s) > 0 ? NG_RESCUED : NG_OK;
}

/* ---- the direction, state --------------------------------------------------------------------*/

static void precondition(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  float *D = ng_scratch(b);
  double *sums = (double *)(void *)(D + D_floats(k));
  float *scratch = (float *)(void *)sums + ng_round16(6 * k->outputs);
  *k->sums = (ng_direction_sums){.finite = 1};
  ng_kron_read_rows(b, 0, k->outputs, D);
  ng_twosided_apply(q, &k->both, 0, k->outputs, D, b->direction, scratch);
  ng_schulz_direction(b, &k->muon->moments, &k->muon->schulz, b->direction, scratch);
  ng_linalg(q)->sum_row_products(q, k->outputs, k->p, b->direction, k->p, D, k->p, sums);
  ng_linalg(q)->add_rows_of_sums(q, k->outputs, sums, k->sums->total);
}

static void end_step(ng_block *b, bool step_counts) {
  ng_moments_end_step(&ng_kron_of(b)->muon->moments, step_counts);
}

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_kron *k = ng_kron_of(b);
  const ng_side *a = &k->side[NG_SIDE_A];
  ng_kron_visit_fields(b, visit, arg);
  ng_field f = ng_field_plain("momentum_matrix", NG_F32, k->outputs, k->p,
                              k->muon->moments.moment[0], a->stat->owner);
  if (a->group_parts == 1) {
    f.col_offsets = k->offsets;
    f.col_channels = a->part->hi - a->part->lo;
  }
  visit(arg, &f);
}

const ng_family ng_family_kronecker_muon = {
    .name = "kronecker-muon",
    .traits = NG_TRAIT_FACTORS | NG_TRAIT_SOLVES | NG_TRAIT_MOMENTS | NG_TRAIT_MUON,
    .observed = NG_OBSERVED_INPUT,
    .takes_weight_only = true,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .declare_statistics = ng_kron_declare_statistics,
    .request_memory = request_memory,
    .observe = ng_kron_observe,
    .precondition = precondition,
    .read_sums = ng_kron_read_sums,
    .emit = ng_kron_emit,
    .observation_scratch = ng_kron_observation_scratch,
    .visit_fields = visit_fields,
    .solve = solve,
    .read_results = ng_kron_read_results,
    .end_step = end_step,
    .write_report = ng_kron_write_report,
};
