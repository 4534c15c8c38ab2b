/* kronecker_adam.c: a family over the factors of kronecker.c: Adam in the eigenbases of A and G.
 *
 *     Q_A, Q_G <- one orthogonal iteration with A and G, every solve_period steps (twosided/solve.c), from Q = I
 *     M <- b1 M + (1 - b1) D;   V <- b2 V + (1 - b2) (Q_G' D Q_A)^2
 *     PD = Q_G ((Q_G' M Q_A) / (1 - b1^t) / (sqrt(V / (1 - b2^t)) + eps)) Q_A'
 *
 * With exact bases, V is the second moment of EKFAC (George et al. 2018, arXiv 1806.03884), averaged over steps instead of
 * samples; SOAP (Vyas et al. 2024, arXiv 2409.11321) takes its bases from gradients instead. Vector i of a basis stays
 * vector i in an iteration, so V stays. M is in the coordinates of D. `damping` is the shift of an iteration in units of the
 * mean eigenvalue: the old vectors of a null space then stay, and are not replaced by rounding errors.
 *
 * The bases and moments belong to the last counted step. If a step is not counted, the next solve starts from `basis`. */
#include "family/kronecker.h"

#include <math.h>
#include <string.h>

/* A matrix of A or G with the basis of the last counted step. */
typedef struct moving_basis {
  ng_matrix *matrix; /* the matrix; its result R is the basis of this step */
  const ng_side *side;
  int32_t of_stat; /* part of the statistic of the side */
  float *Q;        /* [n, n] row i is vector i */
  double trace;    /* of the average, read in NG_SOLVE_LIST */
} moving_basis;

struct ng_kron_adam {
  ng_moments moments;
  moving_basis *basis;
  int32_t count;
  bool has_new_basis; /* this step has solved, so the results are newer than Q */
};

/* ---- geometry, options, memory ---------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  return ng_kron_is_linear_or_conv(e) && ng_is(o->family, "kronecker-adam");
}

static ng_status check_options(const ng_options *o, char *message, size_t size) {
  const ng_settings *s = &o->base;
  static const ng_option_id unused[] = {NG_OPTION_damping_split, NG_OPTION_damping_leak,
                                        NG_OPTION_eigen_floor, NG_OPTION_radius,
                                        NG_OPTION_gradient_rows};
  const ng_refusal list[] = {
      {s->solver != NG_SOLVER_EIGEN, NG_OPTION_solver, ": moments need an eigenbasis; set eigen"},
      {s->inverse_dtype != NG_F32, NG_OPTION_inverse_dtype, ": eigenbases of moments are f32"},
      {s->factor_dtype == NG_F64, NG_OPTION_factor_dtype,
       ": eigenbases of moments take f32, bf16 and f16"},
      ng_kron_refuse_eva_scale(s)};
  ng_status st = ng_family_check_others(NG_TRAIT_FACTORS | NG_TRAIT_SOLVES | NG_TRAIT_MOMENTS, o,
                                        message, size);
  if (st == NG_OK) st = ng_family_check_list(list, sizeof list / sizeof *list, o, message, size);
  if (st != NG_OK) return st;
  return ng_family_check_unused(unused, sizeof unused / sizeof *unused,
                                "moments in an eigenbasis replace the inverse", o, message, size);
}

static void add_basis(struct ng_kron_adam *a, ng_matrix *m, const ng_side *s, int32_t of_stat) {
  a->basis[a->count++] = (moving_basis){.matrix = m, .side = s, .of_stat = of_stat};
}

static ng_status create_state(ng_block *b) {
  const ng_status st = ng_kron_create_state(b);
  if (st != NG_OK) return st;
  ng_kron *k = ng_kron_of(b);
  const int32_t most = k->side[NG_SIDE_A].parts + k->side[NG_SIDE_G].parts + 1;
  struct ng_kron_adam *a = k->adam = ng_object(b->p, sizeof *a);
  if (a == NULL) return NG_ERR_NOMEM;
  a->basis = ng_object(b->p, (size_t)most * sizeof *a->basis);
  if (a->basis == NULL) return NG_ERR_NOMEM;
  for (int i = 0; i < 2; i++) {
    ng_side *s = &k->side[i];
    for (int32_t j = 0; j < s->parts; j++) {
      add_basis(a, &s->matrix[j], s, s->part[j].of_stat);
    }
  }
  if (k->spatial != NULL) add_basis(a, k->spatial->S, &k->side[NG_SIDE_A], 1);
  return ng_moments_create(b, &a->moments);
}

/* Scratch of a rotation, in floats. */
static int64_t rotation_scratch(const ng_kron *k) {
  return k->spatial != NULL ? ng_round16(k->outputs * k->p)
                            : ng_twosided_scratch(&k->both, k->outputs);
}

/* Scratch of `precondition`: D, U and T [out, p]; 3 doubles a row; the scratch of a rotation. */
static ng_status request_memory(ng_block *b, ng_plan *plan) {
  const ng_status st = ng_kron_request_memory(b, plan);
  const ng_kron *k = ng_kron_of(b);
  struct ng_kron_adam *a = k->adam;
  const int64_t real = (int64_t)sizeof(float), n = ng_round16(k->outputs * k->p);
  for (int32_t i = 0; i < a->count && b->is_worker; i++) {
    a->basis[i].Q = ng_plan_take(plan, NG_USE_FACTORS, ng_matrix_count(a->basis[i].matrix) * real);
  }
  if (b->is_worker) ng_moments_request(plan, &a->moments, 2, NG_USE_FACTORS, NG_USE_MOMENTS);
  ng_plan_scratch(plan, ng_times(3 * n + ng_round16(6 * k->outputs) + rotation_scratch(k), real));
  return st;
}

/* Copy every basis to the results, or back, while no work is pending. */
static void copy_bases(const ng_block *b, bool to_results) {
  const struct ng_kron_adam *a = ng_kron_of(b)->adam;
  for (int32_t i = 0; i < a->count; i++) {
    float *Q = a->basis[i].Q, *R = a->basis[i].matrix->R;
    const size_t bytes = (size_t)ng_matrix_count(a->basis[i].matrix) * sizeof *Q;
    memcpy(to_results ? R : Q, to_results ? Q : R, bytes);
  }
}

static ng_status set_initial_values(ng_block *b) {
  const struct ng_kron_adam *a = ng_kron_of(b)->adam;
  for (int32_t i = 0; i < a->count && b->is_worker; i++) {
    const int64_t n = a->basis[i].matrix->n;
    for (int64_t v = 0; v < n; v++) {
      a->basis[i].Q[v * (n + 1)] = 1.0f;
    }
  }
  if (b->is_worker) copy_bases(b, true);
  return NG_OK;
}

/* ---- solve -----------------------------------------------------------------------------------*/

static void read_measures(const ng_queue *q, moving_basis *x) {
  x->trace = *ng_read_numbers(q, &x->matrix->trace);
  x->matrix->is_good = ng_read_info(q, &x->matrix->finite) != 0;
}

/* Enqueue the new basis. Without a finite average, or if the average is 0, the old basis stays. */
static void iterate(ng_block *b, const moving_basis *x) {
  ng_queue *q = b->ctx->queue;
  ng_matrix *m = x->matrix;
  const int64_t count = m->n * m->n;
  m->info = 0;
  m->finite = 1;
  if (m->is_good && x->trace > 0.0) {
    ng_matrix_iterate(q, m, x->Q, b->base.damping * x->trace / (double)m->n, ng_scratch(b));
  } else {
    ng_linalg(q)->copy_rows(q, 1, count, x->Q, count, m->R, count);
  }
}

/* If the iteration failed, keep the old basis. Return the rung. */
static int32_t check_iteration(ng_block *b, const moving_basis *x) {
  const ng_queue *q = b->ctx->queue;
  const ng_matrix *m = x->matrix;
  if (m->is_good && ng_read_info(q, &m->info) == 0 && ng_read_info(q, &m->finite) != 0) return 0;
  memcpy(m->R, x->Q, (size_t)(m->n * m->n) * sizeof(float));
  ng_count_rung(b->p, NG_RUNG_LAST);
  return NG_RUNG_LAST;
}

static ng_status solve(ng_block *b, ng_solve_phase phase) {
  struct ng_kron_adam *a = ng_kron_of(b)->adam;
  int32_t worst = 0;
  a->has_new_basis = true;
  for (int32_t i = 0; i < a->count; i++) {
    moving_basis *x = &a->basis[i];
    const ng_stat *s = x->side->stat;
    if (s->owner != b->ctx->rank) continue;
    if (phase == NG_SOLVE_MEASURE) {
      x->matrix->F = s->part[x->of_stat].average;
      ng_matrix_measure(b->ctx->queue, x->matrix);
      x->side->solve_info[NG_INFO_RUNG] = 0.0f;
    } else if (phase == NG_SOLVE_LIST) {
      read_measures(b->ctx->queue, x);
    } else if (phase == NG_SOLVE_START) {
      iterate(b, x);
    } else if (check_iteration(b, x) > 0) {
      x->side->solve_info[NG_INFO_RUNG] = (float)(worst = NG_RUNG_LAST);
    }
  }
  return worst > 0 ? NG_RESCUED : NG_OK;
}

/* After a load, Q is newer than the results. */
static void read_results(ng_block *b) {
  if (!ng_kron_of(b)->adam->has_new_basis) copy_bases(b, true);
}

/* ---- precondition ----------------------------------------------------------------------------*/

/* Enqueue to <- Q_G' from Q_A, or back. With A = S (x) C, D is [taps, outputs, channels], then the column of the bias, whose
 * basis is 1. */
static void rotate(const ng_block *b, bool back, const float *from, float *to, float *scratch) {
  const ng_kron *k = ng_kron_of(b);
  ng_queue *q = b->ctx->queue;
  if (k->spatial == NULL) {
    ng_twosided_rotate(q, &k->both, back, from, to, scratch);
    return;
  }
  const float *G = k->left->matrix->R;
  const int64_t at = k->offsets * k->outputs * k->spatial->channels;
  const ng_axes weight = {.count = 3,
                          .length = {k->offsets, k->outputs, k->spatial->channels},
                          .basis = {k->spatial->S->R, G, k->right->matrix->R}};
  const ng_axes bias = {.count = 1, .length = {k->outputs}, .basis = {G}};
  ng_axes_rotate(q, &weight, back, from, to, scratch);
  if (k->spatial->has_bias) ng_axes_rotate(q, &bias, back, from + at, to + at, scratch);
}

static void precondition(ng_block *b) {
  ng_kron *k = ng_kron_of(b);
  ng_moments *m = &k->adam->moments;
  ng_queue *q = b->ctx->queue;
  const int64_t n = ng_round16(k->outputs * k->p);
  float *D = ng_scratch(b), *U = D + n, *T = U + n;
  double *sums = (double *)(void *)(T + n);
  float *scratch = (float *)(void *)sums + ng_round16(6 * k->outputs);
  const double t = m->steps + 1.0;
  *k->sums = (ng_direction_sums){.finite = 1};
  if (k->spatial != NULL) {
    ng_spatial_read_gradient(b, D, D + k->offsets * k->outputs * k->spatial->channels);
  } else {
    ng_kron_read_rows(b, 0, k->outputs, D);
  }
  rotate(b, false, D, U, scratch);
  rotate(b, false, m->moment[0], T, scratch);
  ng_moments_add(b, m, D, b->base.first_decay);
  ng_moments_adam(b, m, T, T, U, 1.0 / (1.0 - pow(b->base.first_decay, t)),
                  1.0 / (1.0 - pow(b->base.second_decay, t)));
  rotate(b, true, U, b->direction, scratch);
  ng_linalg(q)->sum_row_products(q, k->outputs, k->p, b->direction, k->p, D, k->p, sums);
  ng_linalg(q)->add_rows_of_sums(q, k->outputs, sums, k->sums->total);
}

static void end_step(ng_block *b, bool step_counts) {
  struct ng_kron_adam *a = ng_kron_of(b)->adam;
  ng_moments_end_step(&a->moments, step_counts);
  if (a->has_new_basis && b->is_worker) copy_bases(b, !step_counts);
  a->has_new_basis = false;
}

/* ---- state -----------------------------------------------------------------------------------*/

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_kron *k = ng_kron_of(b);
  const struct ng_kron_adam *x = k->adam;
  const ng_side *a = &k->side[NG_SIDE_A];
  const int64_t rows = k->spatial != NULL ? 1 : k->outputs, cols = k->outputs * k->p / rows;
  for (int32_t i = 0; i < x->count; i++) {
    const ng_stat *s = x->basis[i].side->stat;
    const ng_stat_part *part = &s->part[x->basis[i].of_stat];
    const int64_t n = x->basis[i].matrix->n;
    ng_field f = ng_part_field(s, x->basis[i].of_stat, "_basis", NG_F32, n, n, x->basis[i].Q);
    f.col_offsets = part->offsets;
    f.col_channels = part->channels;
    visit(arg, &f);
  }
  for (int i = 0; i < 2; i++) {
    const ng_side *s = &k->side[i];
    ng_field f = ng_field_plain(i == NG_SIDE_A ? "A_solve" : "G_solve", NG_F32, 1,
                                ng_kron_info_count(k, s), s->solve_info, s->stat->owner);
    visit(arg, &f);
  }
  ng_field f =
      ng_field_plain("first_moment", NG_F32, rows, cols, x->moments.moment[0], a->stat->owner);
  if (a->group_parts == 1 && k->spatial == NULL) {
    f.col_offsets = k->offsets;
    f.col_channels = a->part->hi - a->part->lo;
  }
  visit(arg, &f);
  f = ng_field_plain("second_moment", NG_F32, rows, cols, x->moments.moment[1], a->stat->owner);
  f.is_nonnegative = true;
  visit(arg, &f);
}

static void visit_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_number n = {.name = "steps", .value = &ng_kron_of(b)->adam->moments.steps};
  visit(arg, &n);
}

static void write_report(const ng_block *b, ng_layer_report *r) {
  const ng_kron *k = ng_kron_of(b);
  for (int i = 0; i < 2 && b->is_worker; i++) {
    const int32_t known = ng_rung_from_float(k->side[i].solve_info[NG_INFO_RUNG]);
    r->rung = known > r->rung ? known : r->rung;
  }
}

const ng_family ng_family_kronecker_adam = {
    .can_shard = true,
    .name = "kronecker-adam",
    .traits = NG_TRAIT_FACTORS | NG_TRAIT_SOLVES | NG_TRAIT_MOMENTS,
    .observed = NG_OBSERVED_INPUT | NG_OBSERVED_OUTGRAD,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .declare_statistics = ng_kron_declare_statistics,
    .request_memory = request_memory,
    .set_initial_values = set_initial_values,
    .observe = ng_kron_observe,
    .precondition = precondition,
    .read_sums = ng_kron_read_sums,
    .emit = ng_kron_emit,
    .observation_scratch = ng_kron_observation_scratch,
    .visit_fields = visit_fields,
    .visit_numbers = visit_numbers,
    .solve = solve,
    .read_results = read_results,
    .end_step = end_step,
    .write_report = write_report,
    .write_factors = ng_kron_write_factors,
};
