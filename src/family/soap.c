/* soap.c: SOAP: Adam in the eigenbases of the Gram matrices of the gradient (Vyas et al. 2024, arXiv 2409.11321, as
 * nikhilvyas/SOAP).
 *
 * In: gradients. Of a parameter with the gradient D, L_k of axis k the average of D_(k) D_(k)', and Q_k a basis of axis k:
 *
 * With beta1 = first_decay, beta2 = second_decay, epsilon = moment_epsilon:
 *
 *     U = D rotated into all Q_k,   M <- beta1 M + (1 - beta1) U,   V <- beta2 V + (1 - beta2) U^2
 *     PD = sqrt(1 - beta2^t) / (1 - beta1^t) (M / (sqrt(V) + epsilon)) rotated back
 *
 * t counts the steps of the block from 0. In step 0 Q_k becomes the eigenbasis of L_k; PD = M = V = 0, and an update leaves
 * the weights. A gradient is
 * never measured in a basis that it has changed: in its basis D is diagonal, and all other entries of U are rounding errors.
 * So a solve computes the basis of the next step, by one orthogonal iteration. If the step counts, M moves to the new basis
 * exactly; V is permuted with the sorted vectors (basis_moments = permute), or rotated as the diagonal of a covariance.
 *
 * An axis without a matrix has Q_k = I, so a vector has Adam's moments. L_k, Q_k, M and V belong to the owner of the block. */
#include "family/axes.h"

#include <math.h>

typedef struct ng_soap {
  ng_grams grams; /* list: the parameters, axes.basis: the bases of this step; moments.steps: t */
  ng_axes_parameter parameter[NG_AXES_PARAMETERS];
  ng_matrix matrix[NG_AXES_MATRICES]; /* L_k; R: the basis of the next step */
  float *basis[NG_AXES_MATRICES];     /* of this step */
  int32_t *order[NG_AXES_MATRICES];   /* results: index in `basis` of every vector of R */
  bool is_solved;
  double sums[NG_AXES_PARAMETERS][3],
      by[NG_AXES_PARAMETERS]; /* of each parameter: sums, factor of PD */
} ng_soap;

static ng_soap *soap_of_block(const ng_block *b) { return b->state; }

/* ---- geometry, memory ------------------------------------------------------------------------*/

static bool accepts_entry(const ng_settings *o, const ng_entry *e) {
  (void)e;
  return ng_is(o->family, "soap");
}

static ng_status check_options(const ng_options *o, char *message, size_t size) {
  static const ng_option_id unused[] = {NG_OPTION_adam_lr};
  const ng_refusal list[] = {{o->base.stat_start == NG_START_IDENTITY, NG_OPTION_stat_start,
                              ": the scale of gradients is unknown; set zero or first"}};
  ng_status st =
      ng_family_check_others(NG_TRAIT_AXES | NG_TRAIT_MOMENTS | NG_TRAIT_SOLVES, o, message, size);
  if (st == NG_OK) st = ng_family_check_list(list, 1, o, message, size);
  return st == NG_OK ? ng_family_check_unused(unused, 1,
                                              "all parameters have the learning rate of the step",
                                              o, message, size)
                     : st;
}

static ng_status create_state(ng_block *b) {
  ng_soap *k = b->state = ng_object(b->p, sizeof *k);
  if (k == NULL) return NG_ERR_NOMEM;
  k->grams = (ng_grams){.list = k->parameter,
                        .count = b->segments,
                        .matrices = ng_axes_of_block(b, k->parameter),
                        .matrix = k->matrix};
  b->matrices = k->grams.matrices;
  if (k->grams.matrices == 0) {
    b->solves = false;
    b->observed = 0;
  }
  for (int32_t i = 0; i < b->segments; i++) {
    const ng_axes *a = &k->parameter[i].axes;
    for (int32_t axis = 0; axis < a->count; axis++) {
      const int32_t at = k->parameter[i].part[axis];
      if (at < 0) continue;
      k->matrix[at] = (ng_matrix){.result = NG_RESULT_EIGEN,
                                  .n = a->length[axis],
                                  .scale = 1.0,
                                  .average_dtype = NG_F32,
                                  .result_dtype = NG_F32};
    }
  }
  b->skips_update = true;
  ng_axes_describe(b, k->parameter);
  const ng_status st = ng_grams_check_orders(b, "set max_axis");
  return st == NG_OK ? ng_moments_create(b, &k->grams.moments) : st;
}

/* Scratch: D and U of all parameters, then the scratch of one. */
static int64_t scratch_floats(const ng_block *b) {
  const ng_soap *k = soap_of_block(b);
  int64_t most = ng_axes_block_scratch(b, k->parameter, b->segments) +
                 ng_round16(ng_axes_elements_of_block(b));
  for (int32_t i = 0; i < k->grams.matrices; i++) {
    most = ng_max64(most, ng_matrix_scratch(b->ctx->queue, &k->matrix[i]));
  }
  return most;
}

static ng_status request_memory(ng_block *b, ng_plan *plan) {
  ng_soap *k = soap_of_block(b);
  const int64_t real = (int64_t)sizeof(float), all = ng_axes_elements_of_block(b);
  const int32_t owner = k->grams.matrices > 0 ? b->stat->owner : b->owner;
  if (b->is_worker && b->solves) k->grams.info = ng_plan_result(plan, owner, NG_GRAMS_INFO * real);
  for (int32_t i = 0; i < k->grams.matrices && b->is_worker; i++) {
    ng_matrix *m = &k->matrix[i];
    m->R = ng_plan_result(plan, owner, ng_matrix_count(m) * real);
    m->d = ng_plan_result(plan, owner, m->n * real);
    k->order[i] = ng_plan_result(plan, owner, m->n * (int64_t)sizeof *k->order[i]);
    k->basis[i] = ng_plan_take(plan, NG_USE_MOMENTS, ng_matrix_count(m) * real);
  }
  for (int32_t i = 0; i < b->segments; i++) {
    for (int32_t axis = 0; axis < k->parameter[i].axes.count; axis++) {
      const int32_t part = k->parameter[i].part[axis];
      k->parameter[i].axes.basis[axis] = part < 0 ? NULL : k->basis[part];
    }
  }
  if (b->is_worker) ng_moments_request(plan, &k->grams.moments, 2, NG_USE_MOMENTS, NG_USE_MOMENTS);
  if (b->solves) {
    ng_plan_direction(plan, b, NG_BY_FAMILY, all);
  } else {
    b->direction = ng_plan_take(plan, NG_USE_MOMENTS, all * real);
  }
  ng_plan_scratch(plan, ng_times(scratch_floats(b), real));
  return NG_OK;
}

/* If the first eigendecomposition fails, the basis stays the identity. */
static ng_status set_initial_values(ng_block *b) {
  const ng_soap *k = soap_of_block(b);
  for (int32_t i = 0; i < k->grams.matrices && b->is_worker; i++) {
    for (int64_t j = 0; j < k->matrix[i].n; j++) {
      k->basis[i][j * (k->matrix[i].n + 1)] = 1.0F;
    }
  }
  return NG_OK;
}

static int64_t count_steps(const ng_block *b) {
  return (int64_t)soap_of_block(b)->grams.moments.steps;
}

/* ---- solve -----------------------------------------------------------------------------------*/

/* No eigenvalue is divided by, so each damping is large enough (NO_DAMPING): an eigenbasis in f32 suffices. */
static ng_status solve(ng_block *b, ng_solve_phase phase) {
  static const double NO_DAMPING = 1e30;
  ng_soap *k = soap_of_block(b);
  ng_queue *q = b->ctx->queue;
  int32_t worst = 0;
  k->is_solved = b->is_worker;
  if (!b->has_averages) return NG_OK;
  for (int32_t i = 0; i < k->grams.matrices; i++) {
    ng_matrix *m = &k->matrix[i];
    int32_t rung = 0;
    m->F = b->stat->part[i].average;
    if (phase == NG_SOLVE_LIST && k->grams.moments.steps == 0.0) {
      ng_block_list_matrix(b, m, 0.0, NO_DAMPING, 0.0);
    } else if (phase == NG_SOLVE_START && k->grams.moments.steps > 0.0) {
      ng_linalg(q)->copy_rows(q, m->n, m->n, k->basis[i], m->n, m->R, m->n);
    }
    if (phase != NG_SOLVE_CLIMB) continue;
    if (k->grams.moments.steps == 0.0) {
      rung = ng_matrix_retry(q, m, ng_scratch(b));
      for (int32_t j = 0; j < m->n; j++) {
        k->order[i][j] = j;
      }
    } else if (!ng_matrix_refresh(q, m, k->order[i], ng_scratch(b))) {
      rung = NG_DAMPED_NONE;
    }
    worst = rung > worst ? rung : worst;
  }
  return phase == NG_SOLVE_CLIMB ? ng_grams_store_rung(b, worst) : NG_OK;
}

static void read_results(ng_block *b) { (void)b; } /* end_step reads them */

/* ---- the direction ---------------------------------------------------------------------------*/

/* Enqueue: to <- the coordinates of `from` in the bases of this step; with `back` the inverse rotation. */
static void rotate(const ng_block *b, bool back, const float *from, float *to, float *scratch) {
  for (int32_t i = 0; i < b->segments; i++) {
    const int64_t at = b->segment[i].offset;
    ng_axes_rotate(b->ctx->queue, &soap_of_block(b)->parameter[i].axes, back, from + at, to + at,
                   scratch);
  }
}

static void precondition(ng_block *b) {
  ng_soap *k = soap_of_block(b);
  ng_queue *q = b->ctx->queue;
  const int64_t all = ng_axes_elements_of_block(b);
  const double t = k->grams.moments.steps, beta1 = b->base.first_decay,
               beta2 = b->base.second_decay;
  float *D = ng_scratch(b), *U = D + ng_round16(all), *scratch = U + ng_round16(all);
  k->grams.total = (ng_direction_sums){.finite = 1};
  ng_axes_read_gradients(b, D, &k->grams.total.finite);
  if (t == 0.0) {
    ng_linalg(q)->scale(q, all, b->direction, NG_F32, 0.0);
  } else {
    rotate(b, false, D, U, scratch);
    ng_moments_adam(
        b, &k->grams.moments, k->grams.moments.next[0], k->grams.moments.moment[0], U,
        b->base.bias_correction ? sqrt(1.0 - pow(beta2, t)) / (1.0 - pow(beta1, t)) : 1.0, 1.0);
    rotate(b, true, U, b->direction, scratch);
  }
  for (int32_t i = 0; i < b->segments; i++) {
    const int64_t at = b->segment[i].offset, n = b->segment[i].count;
    ng_linalg(q)->sum_row_products(q, 1, n, b->direction + at, n, D + at, n, k->sums[i]);
  }
}

static ng_status read_sums(ng_block *b) {
  ng_soap *k = soap_of_block(b);
  for (int32_t i = 0; i < b->segments; i++) {
    const double *sums = ng_read_numbers(b->ctx->queue, k->sums[i]);
    const double n = (double)b->segment[i].count;
    const double by = b->base.normalize ? 1.0 / (1e-30 + sqrt(sums[2] / n)) : 1.0;
    k->by[i] = sums[2] > 0.0 ? by : 1.0;
    k->grams.total.total[0] += by * sums[0];
    k->grams.total.total[1] += sums[1];
    k->grams.total.total[2] += by * by * sums[2];
  }
  return ng_block_read_sums(b, &k->grams.total, ng_axes_elements_of_block(b));
}

/* normalize: scale the PD of each parameter to root mean square 1. */
static void scale_direction(ng_block *b) {
  const ng_soap *k = soap_of_block(b);
  for (int32_t i = 0; i < b->segments; i++) {
    const ng_segment *s = &b->segment[i];
    if (k->by[i] == 1.0) continue;
    ng_linalg(b->ctx->queue)
        ->scale(b->ctx->queue, s->count, b->direction + s->offset, NG_F32, k->by[i]);
  }
}

/* ---- the end of a step -----------------------------------------------------------------------*/

/* Enqueue: M and V of parameter i in the bases of the next step. */
static void move_moments(ng_block *b, int32_t i) {
  ng_soap *k = soap_of_block(b);
  ng_queue *q = b->ctx->queue;
  const ng_moments *m = &k->grams.moments;
  const ng_axes *from = &k->parameter[i].axes;
  ng_axes to = *from;
  const int64_t at = b->segment[i].offset;
  float *M = ng_scratch(b), *scratch = M + ng_round16(b->segment[i].count);
  const int32_t *order[NG_AXES_MOST] = {NULL};
  for (int32_t axis = 0; axis < from->count; axis++) {
    const int32_t part = k->parameter[i].part[axis];
    if (part < 0) continue;
    to.basis[axis] = k->matrix[part].R;
    order[axis] = k->order[part];
  }
  ng_axes_rotate(q, from, true, m->moment[0] + at, M, scratch);
  ng_axes_rotate(q, &to, false, M, m->next[0] + at, scratch);
  if (b->base.basis_moments == NG_BASIS_PERMUTE) {
    ng_axes_permute(q, from, order, m->moment[1] + at, m->next[1] + at, scratch);
  } else {
    ng_axes_rotate_squares(q, from, &to, m->moment[1] + at, m->next[1] + at, scratch);
  }
}

/* The engine waits after end_step of all blocks. */
static void end_step(ng_block *b, bool step_counts) {
  ng_soap *k = soap_of_block(b);
  ng_queue *q = b->ctx->queue;
  const bool is_solved = k->is_solved;
  k->is_solved = false;
  ng_moments_end_step(&k->grams.moments, step_counts);
  if (!step_counts) return;
  b->skips_update = false;
  if (!is_solved || k->grams.info[NG_GRAMS_RUNG] >= (float)NG_RUNG_LAST) return;
  for (int32_t i = 0; i < b->segments; i++) {
    move_moments(b, i);
  }
  ng_moments_swap(&k->grams.moments);
  for (int32_t i = 0; i < k->grams.matrices; i++) {
    const ng_matrix *m = &k->matrix[i];
    ng_linalg(q)->copy_rows(q, m->n, m->n, m->R, m->n, k->basis[i], m->n);
  }
}

/* ---- state, report ---------------------------------------------------------------------------*/

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_soap *k = soap_of_block(b);
  const int32_t owner = k->grams.matrices > 0 ? b->stat->owner : b->owner;
  for (int32_t i = 0; i < k->grams.matrices; i++) {
    const int64_t n = k->matrix[i].n;
    ng_field f = ng_part_field(b->stat, i, "_basis", NG_F32, n, n, k->basis[i]);
    visit(arg, &f);
  }
  ng_moments_visit(b, &k->grams.moments, 2, owner, false, visit, arg);
  if (!b->solves) return;
  ng_field f = ng_field_plain("L_solve", NG_F32, 1, NG_GRAMS_INFO, k->grams.info, owner);
  visit(arg, &f);
}

static void visit_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  double *steps = &soap_of_block(b)->grams.moments.steps;
  ng_number n = {.name = "steps", .value = steps};
  visit(arg, &n);
  if (!(*steps >= 0.0 && *steps < 9e15)) *steps = 0.0; /* a file may contain any number */
  b->skips_update = *steps == 0.0;
}

const ng_family ng_family_soap = {
    .name = "soap",
    .observed = NG_OBSERVED_FLATGRAD,
    .traits = NG_TRAIT_AXES | NG_TRAIT_MOMENTS | NG_TRAIT_SOLVES,
    .accepts_entry = accepts_entry,
    .check_options = check_options,
    .create_state = create_state,
    .declare_statistics = ng_grams_declare,
    .request_memory = request_memory,
    .set_initial_values = set_initial_values,
    .count_steps = count_steps,
    .observe = ng_grams_observe,
    .check_gradients_finite = ng_grams_check_gradients,
    .solve = solve,
    .read_results = read_results,
    .precondition = precondition,
    .read_sums = read_sums,
    .scale_direction = scale_direction,
    .emit = ng_block_emit_direction,
    .end_step = end_step,
    .visit_fields = visit_fields,
    .visit_numbers = visit_numbers,
    .write_report = ng_grams_write_report,
};
