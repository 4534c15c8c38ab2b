/* matrix_families.c: shared by Shampoo and SOAP (matrix_families.h): geometry, statistics, reading D, sums, reports. */
#include "matrix_families.h"

#include <math.h>
#include <string.h>

ng_status matrices_check(const ng_options *o, char *message, size_t size) { return NG_OK; }

bool matrices_fit(const ng_entry *e, const char *prefix) {
  return !e->is_tensor && e->d.kind == NG_LINEAR && e->d.bias == 0 &&
         strncmp(e->d.name, prefix, strlen(prefix)) == 0;
}

ng_status matrices_create(ng_block *b, ng_result result) {
  matrices *k = b->state = ng_object(b->p, sizeof *k);
  if (k == NULL) return NG_ERR_NOMEM;
  k->m = b->entry->d.out;
  b->matrices = 2;
  k->n = b->entry->d.in;
  for (int i = 0; i < 2; i++) {
    k->side[i] = (ng_matrix){.result = result, .p = 4.0, .scale = 1.0, .n = i == 0 ? k->m : k->n};
    k->side[i].average_dtype = k->side[i].result_dtype = NG_F32;
  }
  k->twosided = (ng_twosided){.groups = 1, .rows = k->m, .cols = k->n, .is_good = true};
  k->twosided.left = &k->side[0];
  k->twosided.right = &k->side[1];
  k->twosided.left_count = k->twosided.right_count = 1;
  (void)snprintf(b->entry->why, sizeof b->entry->why, "L %lld, R %lld", (long long)k->m,
                 (long long)k->n);
  return NG_OK;
}

ng_status matrices_add_statistics(ng_block *b) {
  ng_status st = ng_block_alloc_stats(b, 1);
  if (st == NG_OK) st = ng_stat_alloc_parts(b, b->stat, 1, 2);
  if (st != NG_OK) return st;
  b->stat->name = "L_R";
  b->stat->observed = NG_OBSERVED_FLATGRAD;
  b->stat->symmetric = b->stat->rule.averaged = true;
  for (int i = 0; i < 2; i++) {
    ng_stat_part *part = &b->stat->part[i];
    part->rows = part->cols = part->channels = matrices_of(b)->side[i].n;
    part->offsets = 1;
  }
  return NG_OK;
}

void matrices_copy_gradient(ng_block *b, bool transposed, float *to) {
  matrices *k = matrices_of(b);
  ng_queue *q = b->ctx->queue;
  const ng_read r = {.D = {&b->segment->slot->grad, 0, k->m, 0, k->n},
                     .to = to,
                     .to_row = transposed ? 1 : k->n,
                     .to_col = transposed ? k->m : 1,
                     .finite = &k->sums.finite};
  ng_kernels(q)->read_gradients(q, &r, 1);
}

/* L += D D', R += D'D. */
ng_status matrices_observe(ng_block *b, const ng_obs *o) {
  matrices *k = matrices_of(b);
  ng_queue *q = b->ctx->queue;
  float *D = ng_scratch(b), *Dt = D + k->m * k->n;
  const float fresh = (float)b->stat->mix.fresh;
  k->sums.finite = 1;
  matrices_copy_gradient(b, false, D);
  matrices_copy_gradient(b, true, Dt);
  ng_queue_wait(q);
  if (k->sums.finite == 0) return NG_SKIPPED;
  ng_stat_scale_old(q, b->stat);
  ng_linalg(q)->add_gram(q, (ng_sym){b->stat->part[0].sum, k->m}, 0, k->m, Dt, k->n, k->m, fresh);
  ng_linalg(q)->add_gram(q, (ng_sym){b->stat->part[1].sum, k->n}, 0, k->n, D, k->m, k->n, fresh);
  ng_queue_wait(q);
  return NG_OK;
}

int64_t matrices_scratch(const ng_block *b) {
  const matrices *k = matrices_of(b);
  int64_t most = 2 * k->m * k->n + 6 * ng_round16(k->m) + ng_twosided_scratch(&k->twosided, k->m);
  for (int i = 0; i < 2; i++)
    most = ng_max64(most, ng_matrix_scratch(b->ctx->queue, &k->side[i]));
  return most + 64;
}

ng_status matrices_plan(ng_block *b, ng_plan *plan) {
  matrices *k = matrices_of(b);
  const int32_t owner = b->stat->owner;
  if (b->is_worker) k->rungs = ng_plan_result(plan, owner, RUNGS * (int64_t)sizeof *k->rungs);
  for (int i = 0; i < 2 && b->is_worker; i++) {
    ng_matrix *m = &k->side[i];
    m->R = ng_plan_result(plan, owner, ng_matrix_count(m) * (int64_t)sizeof(float));
    m->d = ng_plan_result(plan, owner, m->n * (int64_t)sizeof(float));
  }
  ng_plan_direction(plan, b, NG_BY_FAMILY, k->m * k->n);
  ng_plan_scratch(plan, matrices_scratch(b) * (int64_t)sizeof(float));
  return NG_OK;
}

void matrices_enqueue_sums(ng_block *b, const float *D) {
  matrices *k = matrices_of(b);
  ng_queue *q = b->ctx->queue;
  const int64_t count = k->m * k->n;
  ng_linalg(q)->sum_row_products(q, 1, count, b->direction, count, D, count, k->sums.total);
}

void matrices_emit(const ng_block *b, int32_t k, int32_t g, double factor, ng_direction *e) {
  ng_describe_stored(e, b->direction, matrices_of(b)->n, 1, NULL);
}

void matrices_report(const ng_block *b, ng_layer_report *r) {
  if (!b->is_worker) return;
  r->rung = ng_rung_from_float(matrices_of(b)->rungs[STATE_RUNG]);
  r->damping_f = b->base.damping;
}

void matrices_visit_numbers(ng_block *b, ng_number_visit visit, void *arg) {
  ng_number n = {.name = "steps", .value = &matrices_of(b)->steps};
  visit(arg, &n);
}

ng_status matrices_count_rung(ng_block *b, int32_t rung) {
  float *state = matrices_of(b)->rungs;
  if (rung == NG_DAMPED_NONE) rung = state[STATE_WAS_GOOD] != 0.0f ? NG_RUNG_LAST : NG_RUNG_PLAIN;
  state[STATE_RUNG] = (float)rung;
  if (rung < NG_RUNG_LAST) state[STATE_WAS_GOOD] = 1.0f;
  ng_count_rung(b->p, rung);
  return rung > 0 ? NG_RESCUED : NG_OK;
}
