/* family_shampoo.c: Shampoo of matrices (matrix_families.h). */
#include "matrix_families.h"

#include <math.h>

static bool fits(const ng_settings *o, const ng_entry *e) { return matrices_fit(e, "shampoo"); }
static ng_status create(ng_block *b) { return matrices_create(b, NG_RESULT_ROOT); }

static ng_status solve(ng_block *b, ng_solve_phase phase) {
  matrices *k = matrices_of(b);
  const double c = 1.0 - pow(b->base.stat_decay, k->steps + 1.0);
  int32_t worst = 0;
  if (!b->has_averages || b->stat->owner != b->ctx->rank) return NG_OK;
  for (int i = 0; i < 2; i++) {
    ng_matrix *m = &k->side[i];
    m->F = b->stat->part[i].average;
    m->scale = 1.0 / c;
    if (phase == NG_SOLVE_LIST) ng_block_list_matrix(b, m, 0.0, b->base.damping, 0.0);
    if (phase != NG_SOLVE_CLIMB) continue;
    const int32_t rung = ng_matrix_retry(b->ctx->queue, m, ng_scratch(b));
    worst = rung > worst ? rung : worst;
  }
  return phase == NG_SOLVE_CLIMB ? matrices_count_rung(b, worst) : NG_OK;
}

static void read_results(ng_block *b) {
  matrices_of(b)->twosided.is_good = matrices_of(b)->rungs[STATE_WAS_GOOD] != 0.0f;
}

static void precondition(ng_block *b) {
  matrices *k = matrices_of(b);
  float *D = ng_scratch(b);
  k->sums = (ng_direction_sums){.finite = 1};
  matrices_copy_gradient(b, false, D);
  ng_twosided_apply(b->ctx->queue, &k->twosided, 0, k->m, D, b->direction, D + k->m * k->n);
  matrices_enqueue_sums(b, D);
}

/* Grafting: PD gets the norm of D. */
static ng_status measure(ng_block *b) {
  const matrices *k = matrices_of(b);
  ng_queue *q = b->ctx->queue;
  const ng_status st = ng_block_read_sums(b, &k->sums, k->m * k->n);
  if (st != NG_OK) return st;
  const double by = sqrt(b->d2) / (sqrt(b->pd2) + 1e-16);
  ng_linalg(q)->scale(q, k->m * k->n, b->direction, NG_F32, by);
  ng_queue_wait(q);
  b->inner *= by;
  b->pd2 *= by * by;
  return NG_OK;
}

static void commit(ng_block *b, bool taken) { matrices_of(b)->steps += taken ? 1.0 : 0.0; }

static void visit_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const matrices *k = matrices_of(b);
  ng_field f = ng_field_plain("solve", NG_F32, 1, RUNGS, k->rungs, b->stat->owner);
  visit(arg, &f);
  for (int i = 0; i < 2; i++) {
    const int64_t n = k->side[i].n;
    f = ng_part_field(b->stat, i, "_root", NG_F32, n, n, k->side[i].R);
    f.is_symmetric = true;
    visit(arg, &f);
  }
}

const ng_family family_shampoo = {
    .name = "shampoo",
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
