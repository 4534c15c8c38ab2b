/* toys.c: see toys.h. */
#include "toys.h"

#include <math.h>

static bool has_prefix(const ng_entry *e, const char *prefix) {
  return strncmp(e->d.name, prefix, strlen(prefix)) == 0;
}

static ng_status accept_options(const ng_options *o, char *message, size_t size) { return NG_OK; }

/* ---- diagonal --------------------------------------------------------------------------------*/

typedef struct diagonal {
  float *by; /* 1 / (damping + sqrt(v)), on ranks that store this result */
  float *pd; /* PD of this step */
} diagonal;

static bool diagonal_fits(const ng_settings *o, const ng_entry *e) {
  return e->is_tensor && has_prefix(e, "toy");
}

static ng_status diagonal_create(ng_block *b) {
  b->state = ng_object(b->p, sizeof(diagonal));
  if (b->state == NULL) return NG_ERR_NOMEM;
  ((diagonal *)b->state)->pd = ng_object(b->p, (size_t)b->segment->count * sizeof(float));
  if (((diagonal *)b->state)->pd == NULL) return NG_ERR_NOMEM;
  (void)snprintf(b->entry->why, sizeof b->entry->why, "v %lld", (long long)b->segment->count);
  return NG_OK;
}

static ng_status declare_diagonal_statistics(ng_block *b) {
  ng_status st = ng_block_alloc_stats(b, 1);
  if (st == NG_OK) st = ng_stat_alloc_parts(b, b->stat, 1, 1);
  if (st != NG_OK) return st;
  b->stat->name = "v";
  b->stat->observed = NG_OBSERVED_FLATGRAD;
  b->stat->rule.averaged = true;
  b->stat->part->rows = 1;
  b->stat->part->cols = b->segment->count;
  return NG_OK;
}

static ng_status diagonal_plan(ng_block *b, ng_plan *plan) {
  if (b->is_worker) {
    ((diagonal *)b->state)->by =
        ng_plan_result(plan, b->stat->owner, b->segment->count * (int64_t)sizeof(float));
  }
  return NG_OK;
}

static ng_status diagonal_observe(ng_block *b, const ng_obs *o) {
  const ng_slot *s = b->segment->slot;
  float *v = b->stat->part->sum, x;
  if (!ng_are_finite(s->grad.data, s->grad.dtype, s->cols)) return NG_SKIPPED;
  ng_stat_scale_old(b->ctx->queue, b->stat);
  for (int64_t i = 0; i < s->cols; i++) {
    ng_place_read(&s->grad, 0, i, 1, &x);
    v[i] = (float)((double)v[i] + b->stat->mix.fresh * (double)x * (double)x);
  }
  return NG_OK;
}

static ng_status diagonal_solve(ng_block *b, ng_solve_phase phase) {
  const float *v = b->stat->part->average;
  if (phase != NG_SOLVE_CLIMB || b->stat->owner != b->ctx->rank) return NG_OK;
  for (int64_t i = 0; i < b->segment->count; i++) {
    ((diagonal *)b->state)->by[i] = (float)(1.0 / (b->base.damping + sqrt((double)v[i])));
  }
  return NG_OK;
}

static void diagonal_read_results(ng_block *b) {}

static ng_status diagonal_measure(ng_block *b) {
  const float *by = ((diagonal *)b->state)->by;
  for (int64_t i = 0; i < b->segment->count; i++) {
    float x;
    ng_place_read(&b->segment->slot->grad, 0, i, 1, &x);
    const double d = (double)x, pd = (double)by[i] * d;
    ((diagonal *)b->state)->pd[i] = (float)pd;
    b->inner += d * pd;
    b->d2 += d * d;
    b->pd2 += pd * pd;
  }
  if (b->d2 - b->d2 == 0.0) return NG_OK;
  return ng_fail(b->ctx, NG_SKIPPED, "tensor '%s': its gradient is not finite", b->name);
}

static void diagonal_emit(const ng_block *b, int32_t k, int32_t g, double factor, ng_direction *e) {
  e->is_stored = true;
  e->u = ((const diagonal *)b->state)->pd + e->D.col;
}

static void diagonal_fields(ng_block *b, ng_field_visit visit, void *arg) {
  ng_field f = ng_field_plain("by", NG_F32, 1, b->segment->count, ((diagonal *)b->state)->by,
                              b->stat->owner);
  visit(arg, &f);
}

const ng_family toy_diagonal = {
    .name = "diagonal",
    .observed = NG_OBSERVED_FLATGRAD,
    .accepts_entry = diagonal_fits,
    .check_options = accept_options,
    .create_state = diagonal_create,
    .declare_statistics = declare_diagonal_statistics,
    .request_memory = diagonal_plan,
    .observe = diagonal_observe,
    .read_sums = diagonal_measure,
    .emit = diagonal_emit,
    .visit_fields = diagonal_fields,
    .solve = diagonal_solve,
    .read_results = diagonal_read_results,
};

/* ---- total -----------------------------------------------------------------------------------*/

typedef struct total {
  double mine; /* sum of the squares of this rank's elements in this step */
  toy_commits commits;
} total;

toy_commits count_total_commits(const ng_block *b) { return ((const total *)b->state)->commits; }

static bool total_fits(const ng_settings *o, const ng_entry *e) { return has_prefix(e, "all"); }

static ng_status total_create(ng_block *b) {
  b->state = ng_object(b->p, sizeof(total));
  b->slice =
      ng_object(b->p, (size_t)(b->ctx->ranks + 1) * sizeof *b->slice); /* empty slices of PD */
  return ng_objects_status(b->p);
}

static ng_status declare_total_statistics(ng_block *b) {
  ng_status st = ng_block_alloc_stats(b, 1);
  if (st == NG_OK) st = ng_stat_alloc_parts(b, b->stat, 1, 1);
  if (st != NG_OK) return st;
  b->stat->name = "squares";
  b->stat->observed = NG_OBSERVED_FLATGRAD;
  b->stat->sum_dtype = NG_F64;
  b->stat->part->rows = b->stat->part->cols = 1;
  return NG_OK;
}

static ng_status total_plan(ng_block *b, ng_plan *plan) { return NG_OK; }

/* Element i of the concatenated parameters belongs to rank i mod W. */
static ng_status total_observe(ng_block *b, const ng_obs *o) {
  total *k = b->state;
  int64_t at = 0;
  k->mine = 0.0;
  for (int32_t s = 0; s < b->segments; s++) {
    const ng_slot *slot = b->segment[s].slot;
    for (int64_t i = 0; i < slot->rows * slot->cols; i++, at++) {
      float x;
      if (at % b->ctx->ranks != b->ctx->rank) continue;
      ng_place_read(&slot->grad, i / slot->cols, i % slot->cols, 1, &x);
      k->mine += (double)x * (double)x;
    }
  }
  if (!(k->mine - k->mine == 0.0)) return NG_SKIPPED;
  *(double *)b->stat->part->sum += k->mine;
  return NG_OK;
}

static double total_divisor(const ng_block *b) {
  return b->base.damping + *(const double *)b->stat->part->sum;
}

static ng_status total_measure(ng_block *b) {
  const double mine = ((const total *)b->state)->mine, by = total_divisor(b);
  b->d2 = mine;
  b->inner = mine / by;
  b->pd2 = mine / (by * by);
  return NG_OK;
}

static void total_emit(const ng_block *b, int32_t k, int32_t g, double factor, ng_direction *e) {
  e->scale = factor / total_divisor(b);
}

static void total_commit(ng_block *b, bool taken) {
  total *k = b->state;
  k->commits.taken += taken;
  k->commits.skipped += !taken;
}

static void total_report(const ng_block *b, ng_layer_report *r) {
  r->pi = ((const total *)b->state)->mine;
}

const ng_family toy_total = {
    .name = "total",
    .observed = NG_OBSERVED_FLATGRAD,
    .scope = NG_SCOPE_MODEL,
    .accepts_entry = total_fits,
    .check_options = accept_options,
    .create_state = total_create,
    .declare_statistics = declare_total_statistics,
    .request_memory = total_plan,
    .observe = total_observe,
    .read_sums = total_measure,
    .emit = total_emit,
    .end_step = total_commit,
    .write_report = total_report,
};

/* ---- beside ----------------------------------------------------------------------------------*/

static bool beside_fits(const ng_settings *o, const ng_entry *e) {
  return !e->is_tensor && has_prefix(e, "r1");
}

ng_family toy_rank_one_family(void) {
  ng_family f = ng_family_rankone;
  f.name = "beside";
  f.accepts_entry = beside_fits;
  f.check_options = accept_options;
  return f;
}
