/* kronecker_ekfac.c: a family over the factors of kronecker.c: EKFAC (George et al. 2018, arXiv 1806.03884).
 *
 *     A = Q_A diag(d_A) Q_A',  G = Q_G diag(d_G) Q_G'           every solve_period steps, as solver = eigen
 *     V = E_n[ (Q_G' (sum over positions s of g_ns a_ns') Q_A)^2 ]   [out, p], element by element
 *     PD = Q_G ((Q_G' D Q_A) / (V + lambda)) Q_A'
 *
 * g_ns is the output gradient of the loss of sample n alone, so the inner sum is the gradient of sample n. Among all diagonal
 * matrices in this basis, V is the nearest one to the Fisher matrix (theorem 2); K-FAC has d_G d_A' instead.
 *
 * V is a statistic, measured in every step in the basis of the last solve and averaged with stat_decay. A solve resets V to
 * d_G d_A', the start of the average in the new basis. So the step of a solve is a step of K-FAC, and V contains no other basis. A
 * start from the first observation trains worse (docs/algorithms.md). To measure V
 * of a whole data set in one basis (a separate pass), set stat_decay = 0, observe the data as micro-batches of one step, whose
 * solve gives the basis, then again as micro-batches of the next step.
 *
 * Every rank measures its samples, so every rank stores the bases and V: statistics = all, grad_worker_fraction = 1. V needs
 * an input together with its output gradient, so the caller lends inputs (NG_BORROW). */
#include "family/kronecker.h"

struct ng_kron_ekfac {
  ng_inputs inputs;
  ng_stat *V;
  bool has_new_basis; /* this step has solved, so V belongs to the old basis */
};

/* ---- options, geometry, memory ---------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  return ng_kron_is_linear_or_conv(e) && ng_is(o->family, "kronecker-ekfac");
}

static ng_status check_options(const ng_options *o, char *message, size_t size) {
  const ng_settings *s = &o->base;
  static const ng_option_id unused[] = {NG_OPTION_damping_leak, NG_OPTION_radius,
                                        NG_OPTION_gradient_rows};
  const ng_refusal list[] = {
      {s->solver != NG_SOLVER_EIGEN, NG_OPTION_solver,
       ": second moments need an eigenbasis; set eigen"},
      {s->damping_split != NG_SPLIT_JOINT, NG_OPTION_damping_split,
       ": the damping is added to second moments; set joint"},
      {s->inverse_dtype != NG_F32, NG_OPTION_inverse_dtype, ": bases of second moments are f32"},
      {s->stat_scale != NG_SCALE_TEXTBOOK, NG_OPTION_stat_scale,
       ": second moments have the textbook scale"},
      {s->stat_start != NG_START_FIRST, NG_OPTION_stat_start,
       ": a new basis resets second moments; set first"},
      {s->output_factor != NG_OUTPUT_FULL, NG_OPTION_output_factor,
       ": second moments need a basis of G; set full"},
      {s->refresh_tolerance > 0.0, NG_OPTION_refresh_tolerance,
       ": second moments are measured in every step; set 0"},
      {s->statistics != NG_STATISTICS_ALL, NG_OPTION_statistics,
       ": every rank measures second moments; set all"},
      {s->grad_worker_fraction < 1.0, NG_OPTION_grad_worker_fraction,
       ": every rank needs the bases to measure second moments; set 1"}};
  ng_status st = ng_family_check_others(NG_TRAIT_FACTORS | NG_TRAIT_SOLVES, o, message, size);
  if (st == NG_OK) st = ng_family_check_list(list, sizeof list / sizeof *list, o, message, size);
  if (st != NG_OK) return st;
  return ng_family_check_unused(unused, 3, "second moments are measured", o, message, size);
}

static ng_status create_state(ng_block *b) {
  const ng_status st = ng_kron_create_state(b);
  if (st != NG_OK) return st;
  ng_kron *k = ng_kron_of(b);
  k->ekfac = ng_object(b->p, sizeof *k->ekfac);
  return ng_objects_status(b->p);
}

static ng_status declare_statistics(ng_block *b) {
  const ng_status st = ng_kron_declare_statistics(b);
  if (st != NG_OK) return st;
  const ng_kron *k = ng_kron_of(b);
  ng_stat *s = k->ekfac->V = &b->stat[2];
  s->name = "V";
  s->observed = NG_OBSERVED_OUTGRAD;
  s->also_observed = NG_OBSERVED_INPUT;
  s->every_step = s->nonnegative = true;
  s->rule.averaged = true;
  const ng_status allocated = ng_stat_alloc_parts(b, s, 1, 1);
  if (allocated != NG_OK) return allocated;
  s->part->rows = k->outputs;
  s->part->cols = s->part->channels = k->p;
  return NG_OK;
}

static bool has_patches(const ng_block *b) {
  return b->entry->d.kind == NG_CONV2D && !ng_conv_is_pointwise(&ng_kron_of(b)->conv);
}

/* Part 0 is the widest part; only a last part with the bias may have one row more. */
static int64_t squares_bytes(const ng_block *b, const ng_conv *conv) {
  const ng_kron *k = ng_kron_of(b);
  const int64_t q = k->side[NG_SIDE_G].matrix->n, p = k->side[NG_SIDE_A].matrix->n + 1;
  return ng_times(ng_sample_squares_scratch(q, p, has_patches(b) ? conv : NULL),
                  (int64_t)sizeof(float));
}

/* The scratch of an input suffices for its output gradient. */
static int64_t observation_scratch(const ng_block *b, const ng_obs *o) {
  const int64_t bytes = ng_kron_observation_scratch(b, o);
  if (o->kind == NG_OBSERVED_OUTGRAD) return bytes;
  const ng_conv conv = ng_obs_conv(&ng_kron_of(b)->conv, o);
  return ng_max64(bytes, squares_bytes(b, &conv));
}

/* D, U [out, p]; 3 doubles a row; the scratch of a rotation. */
static ng_status request_memory(ng_block *b, ng_plan *plan) {
  const ng_status st = ng_kron_request_memory(b, plan);
  const ng_kron *k = ng_kron_of(b);
  const int64_t floats = 2 * ng_round16(k->outputs * k->p) + ng_round16(6 * k->outputs) +
                         ng_twosided_scratch(&k->both, k->outputs);
  ng_plan_scratch(plan,
                  ng_max64(ng_times(floats, (int64_t)sizeof(float)), squares_bytes(b, &k->conv)));
  return st;
}

/* ---- observations ----------------------------------------------------------------------------*/

/* Every pair of a matrix of G and a matrix of A in one group has a block of V. Without a basis the sum stays 0: the solve of
 * this step resets V. */
static void add_squares(ng_block *b, const ng_obs *input, const ng_obs *o) {
  enum { LIST = 16 };
  const ng_kron *k = ng_kron_of(b);
  const ng_side *A = &k->side[NG_SIDE_A], *G = &k->side[NG_SIDE_G];
  const ng_stat *s = k->ekfac->V;
  ng_queue *q = b->ctx->queue;
  const double c = o->reduction == NG_MEAN ? (double)o->samples : 1.0, by = c / o->loss_scale;
  ng_sample_squares list[LIST], of = {.x = input->view,
                                      .g = o->view,
                                      .samples = s->samples,
                                      .positions = o->positions,
                                      .is_conv = has_patches(b),
                                      .conv = ng_obs_conv(&k->conv, input),
                                      .alpha = s->mix.fresh * by * by / (double)s->samples,
                                      .ld = k->p};
  int64_t n = 0;
  ng_stat_scale_old(q, s);
  for (int32_t i = 0; i < G->parts && k->both.is_good; i++) {
    for (int32_t j = 0; j < A->group_parts; j++) {
      const int32_t at = i / G->group_parts * A->group_parts + j;
      const ng_matrix *left = &G->matrix[i], *right = &A->matrix[at];
      of.g0 = G->part[i].lo;
      of.g1 = G->part[i].hi;
      of.a0 = A->part[at].lo;
      of.a1 = A->part[at].hi;
      of.has_ones = A->part[at].has_bias;
      of.QG = left->R;
      of.QA = right->R;
      of.V = (float *)s->part->sum + left->row * k->p + right->col;
      list[n++] = of;
      if (n == LIST) ng_kernels(q)->add_sample_squares(q, list, n, ng_scratch(b)), n = 0;
    }
  }
  if (n > 0) ng_kernels(q)->add_sample_squares(q, list, n, ng_scratch(b));
}

static ng_status observe(ng_block *b, const ng_obs *o) {
  const ng_kron *k = ng_kron_of(b);
  const bool is_input = o->kind == NG_OBSERVED_INPUT;
  const ng_obs *input = NULL;
  ng_inputs *inputs = &k->ekfac->inputs;
  ng_status st = is_input ? ng_inputs_store(b, inputs, o) : ng_inputs_find(b, inputs, o, &input);
  if (st == NG_OK && k->side[is_input ? NG_SIDE_A : NG_SIDE_G].stat->is_due)
    st = ng_kron_observe(b, o);
  if (st != NG_OK || is_input) return st;
  add_squares(b, input, o);
  inputs->count--;
  return NG_OK;
}

/* ---- solve, precondition ---------------------------------------------------------------------*/

static ng_status solve(ng_block *b, ng_solve_phase phase) {
  ng_kron_of(b)->ekfac->has_new_basis = true;
  return ng_kron_solve(b, phase);
}

/* Enqueue V <- d_G d_A'. */
static void reset_moments(ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  ng_stat *s = k->ekfac->V;
  const ng_side *A = &k->side[NG_SIDE_A], *G = &k->side[NG_SIDE_G];
  for (int32_t i = 0; i < G->parts; i++) {
    for (int32_t j = 0; j < A->group_parts; j++) {
      const ng_matrix *left = &G->matrix[i],
                      *right = &A->matrix[i / G->group_parts * A->group_parts + j];
      float *V = (float *)s->part->average + left->row * k->p + right->col;
      ng_linalg(q)->gemm(q, NG_F32, false, false, left->n, right->n, 1, 1.0, left->d, 1, right->d,
                         right->n, 0.0, V, k->p);
    }
  }
  s->started = true;
  k->ekfac->has_new_basis = false;
}

static void precondition(ng_block *b) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  const int64_t n = k->outputs * k->p;
  float *D = ng_scratch(b), *U = D + ng_round16(n);
  double *sums = (double *)(void *)(U + ng_round16(n));
  float *scratch = (float *)(void *)sums + ng_round16(6 * k->outputs);
  const ng_spectrum s = {.g = k->ekfac->V->part->average, .damping_both = b->base.damping};
  if (k->ekfac->has_new_basis) reset_moments(b);
  *k->sums = (ng_direction_sums){.finite = 1};
  ng_kron_read_rows(b, 0, k->outputs, D);
  if (k->both.is_good) {
    ng_twosided_rotate(q, &k->both, false, D, U, scratch);
    ng_linalg(q)->divide(q, n, 1, s, U, NG_F32, 1);
    ng_twosided_rotate(q, &k->both, true, U, b->direction, scratch);
  } else {
    ng_linalg(q)->copy_rows(q, 1, n, D, n, b->direction, n);
  }
  ng_linalg(q)->sum_row_products(q, k->outputs, k->p, b->direction, k->p, D, k->p, sums);
  ng_linalg(q)->add_rows_of_sums(q, k->outputs, sums, k->sums->total);
}

const ng_family ng_family_kronecker_ekfac = {
    .name = "kronecker-ekfac",
    .traits = NG_TRAIT_FACTORS | NG_TRAIT_SOLVES,
    .observed = NG_OBSERVED_INPUT | NG_OBSERVED_OUTGRAD,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .declare_statistics = declare_statistics,
    .request_memory = request_memory,
    .observe = observe,
    .precondition = precondition,
    .read_sums = ng_kron_read_sums,
    .emit = ng_kron_emit,
    .observation_scratch = observation_scratch,
    .visit_fields = ng_kron_visit_fields,
    .solve = solve,
    .read_results = ng_kron_read_results,
    .write_report = ng_kron_write_report,
};
