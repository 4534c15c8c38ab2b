/* family_soap.c: SOAP of matrices (matrix_families.h).
 *
 * `basis` and the moments belong to the last counted step. A solve refreshes a copy of `basis`; if the step counts,
 * commit moves the moments to the new bases: the first is rotated, the second permuted. */
#include "matrix_families.h"

#include <math.h>
#include <string.h>

static const double BETA = 0.95;

static bool fits(const ng_settings *o, const ng_entry *e) { return matrices_fit(e, "soap"); }

static ng_status create(ng_block *b) {
  const ng_status st = matrices_create(b, NG_RESULT_EIGEN);
  if (st != NG_OK) return st;
  matrices *k = matrices_of(b);
  const size_t bytes = (size_t)(k->m * k->n) * sizeof(float);
  for (int i = 0; i < 2; i++) {
    k->basis[i] = ng_object(b->p, (size_t)(k->side[i].n * k->side[i].n) * sizeof(float));
    k->moment[i] = ng_object(b->p, bytes);
    k->next[i] = ng_object(b->p, bytes);
  }
  return ng_objects_status(b->p);
}

/* The first basis is computed from the first gradient. Each later basis refreshes the present basis. */
static ng_status solve(ng_block *b, ng_solve_phase phase) {
  matrices *k = matrices_of(b);
  ng_queue *q = b->ctx->queue;
  int32_t worst = 0;
  k->is_solved = b->is_worker;
  if (!b->has_averages || b->stat->owner != b->ctx->rank) return NG_OK;
  for (int i = 0; i < 2; i++) {
    ng_matrix *m = &k->side[i];
    int32_t rung = 0;
    m->F = b->stat->part[i].average;
    for (int32_t j = 0; j < m->n; j++)
      k->order[i][j] = j;
    if (phase == NG_SOLVE_LIST && k->steps == 0.0)
      ng_block_list_matrix(b, m, 0.0, b->base.damping, 0.0);
    if (phase != NG_SOLVE_CLIMB) continue;
    if (k->steps == 0.0) {
      rung = ng_matrix_retry(q, m, ng_scratch(b));
    } else {
      memcpy(m->R, k->basis[i], (size_t)(m->n * m->n) * sizeof(float));
      if (!ng_matrix_refresh(q, m, k->order[i], ng_scratch(b))) rung = NG_DAMPED_NONE;
    }
    worst = rung > worst ? rung : worst;
  }
  ng_queue_wait(q);
  return phase == NG_SOLVE_CLIMB ? matrices_count_rung(b, worst) : NG_OK;
}

static void read_results(ng_block *b) {}

/* Enqueue a rotation by the bases of the last counted step. */
static void enqueue_rotation(const ng_block *b, bool back, const float *from, float *to) {
  const matrices *k = matrices_of(b);
  ng_matrix now[2] = {k->side[0], k->side[1]};
  ng_twosided t = k->twosided;
  for (int i = 0; i < 2; i++)
    now[i].R = k->basis[i];
  t.left = &now[0];
  t.right = &now[1];
  ng_twosided_rotate(b->ctx->queue, &t, back, from, to, (float *)ng_scratch(b) + k->m * k->n);
}

/* `direction` <- U = Q_L' D Q_R. */
static void precondition(ng_block *b) {
  matrices *k = matrices_of(b);
  float *D = ng_scratch(b);
  k->sums = (ng_direction_sums){.finite = 1};
  matrices_copy_gradient(b, false, D);
  enqueue_rotation(b, false, D, b->direction);
  matrices_enqueue_sums(b, D);
}

/* M <- EMA of U, V <- EMA of U^2, N = M / (sqrt(V) + damping), corrected for the start from 0; PD = Q_L N Q_R'.
 * Rotations keep scalar products: <PD, D> = <N, U>. */
static ng_status measure(ng_block *b) {
  matrices *k = matrices_of(b);
  float *N = ng_scratch(b), *M = k->next[0], *V = k->next[1];
  const double bias = 1.0 - pow(BETA, k->steps); /* beta1 = beta2 */
  const double by = k->steps > 0.0 ? sqrt(bias) / bias : 0.0;
  const ng_status st = ng_block_read_sums(b, &k->sums, k->m * k->n);
  if (st != NG_OK) return st;
  k->is_measured = k->steps > 0.0;
  b->inner = b->pd2 = 0.0;
  for (int64_t i = 0; i < k->m * k->n; i++) {
    const double u = (double)b->direction[i];
    M[i] = (float)(BETA * (double)k->moment[0][i] + (1.0 - BETA) * u);
    V[i] = (float)(BETA * (double)k->moment[1][i] + (1.0 - BETA) * u * u);
    N[i] = (float)(by * (double)M[i] / (sqrt((double)V[i]) + b->base.damping));
    b->inner += (double)N[i] * u;
    b->pd2 += (double)N[i] * (double)N[i];
  }
  enqueue_rotation(b, true, N, b->direction);
  ng_queue_wait(b->ctx->queue);
  return NG_OK;
}

static void commit(ng_block *b, bool taken) {
  matrices *k = matrices_of(b);
  const bool is_solved = k->is_solved, is_measured = k->is_measured;
  k->is_solved = k->is_measured = false;
  if (!taken) return;
  k->steps += 1.0;
  for (int i = 0; i < 2 && is_measured; i++)
    memcpy(k->moment[i], k->next[i], (size_t)(k->m * k->n) * sizeof(float));
  if (!is_solved || k->rungs[STATE_RUNG] >= (float)NG_RUNG_LAST) return;
  enqueue_rotation(b, true, k->moment[0], k->next[0]);
  ng_queue_wait(b->ctx->queue);
  memcpy(k->next[1], k->moment[1], (size_t)(k->m * k->n) * sizeof(float));
  for (int i = 0; i < 2; i++)
    memcpy(k->basis[i], k->side[i].R, (size_t)(k->side[i].n * k->side[i].n) * sizeof(float));
  enqueue_rotation(b, false, k->next[0], k->moment[0]);
  ng_queue_wait(b->ctx->queue);
  for (int64_t i = 0; i < k->m * k->n; i++)
    k->moment[1][i] = k->next[1][k->order[0][i / k->n] * k->n + k->order[1][i % k->n]];
}

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  static const char *const moment[] = {"first_moment", "second_moment"};
  const matrices *k = matrices_of(b);
  ng_field f = ng_field_plain("solve", NG_F32, 1, RUNGS, k->rungs, b->stat->owner);
  visit(arg, &f);
  for (int i = 0; i < 2; i++) {
    const int64_t n = k->side[i].n;
    f = ng_part_field(b->stat, i, "_basis", NG_F32, n, n, b->is_worker ? k->basis[i] : NULL);
    visit(arg, &f);
    f = ng_field_plain(moment[i], NG_F32, k->m, k->n, b->is_worker ? k->moment[i] : NULL,
                       b->stat->owner);
    visit(arg, &f);
  }
}

const ng_family family_soap = {
    .name = "soap",
    .observed = NG_OBSERVED_FLATGRAD,
    .traits = NG_TRAIT_SOLVES,
    .accepts_entry = fits,
    .check_options = matrices_check,
    .create_state = create,
    .declare_statistics = matrices_add_statistics,
    .request_memory = matrices_plan,
    .observe = matrices_observe,
    .precondition = precondition,
    .read_sums = measure,
    .emit = matrices_emit,
    .visit_fields = visit_fields,
    .visit_numbers = matrices_visit_numbers,
    .solve = solve,
    .read_results = read_results,
    .end_step = commit,
    .write_report = matrices_report,
};
