/* norm_full.c: norm blocks over all channels of a layer: (F + d I)^-1 of order 2 C.
 *
 * In: the average, on its owner.  Out: the inverse, which travels to those that make PD, and what the owner
 * says of it.  The ladder is that of linalg/damped.c, then the last good result, then the plain gradient. */
#include "family/norm.h"

#include <math.h>

enum { LAST = NG_DAMPED_DOUBLE + 1, PLAIN };

/* What is made of doubles stays so: the entries of an inverse cancel where D is not of its largest directions. */
static ng_dtype type_of(const ng_block *b) { return ng_stat_wide(b->stat) ? NG_F64 : NG_F32; }

ng_status ng_norm_full_plan(ng_block *b, ng_plan *plan) {
  ng_norm *k = ng_norm_of_block(b);
  const int32_t owner = b->stat->owner;
  const int64_t floats = ng_max64(ng_damped_scratch(k->width), ng_round16(k->width));
  if (b->holds) {
    k->says = ng_plan_result(plan, owner, NG_NORM_SAYS * (int64_t)sizeof(float));
    k->R = ng_plan_result(plan, owner, ng_sym_count(k->width) * ng_dtype_size(type_of(b)));
  }
  ng_plan_direction(plan, b, k->width);
  ng_plan_scratch(plan, ng_max64(ng_norm_scratch(b), ng_times(floats, (int64_t)sizeof(float))));
  return NG_OK;
}

ng_status ng_norm_full_fields(ng_block *b, ng_field_visit visit, void *arg) {
  const ng_norm *k = ng_norm_of_block(b);
  ng_field f = ng_field_plain("F_inverse", type_of(b), k->width, k->width, k->R, b->stat->owner);
  f.sym = true;
  const ng_status st = visit(arg, &f);
  if (st != NG_OK) return st;
  f = ng_field_plain("F_solve", NG_F32, 1, NG_NORM_SAYS, k->says, b->stat->owner);
  return visit(arg, &f);
}

static int32_t solve_own(ng_block *b, double d) {
  ng_norm *k = ng_norm_of_block(b);
  const bool had = k->says[NG_NORM_GOOD] != 0.0f;
  const ng_damped m = {.n = k->width,
                       .F = b->stat->part->average,
                       .kept = b->stat->kept,
                       .R = k->R,
                       .stored = type_of(b),
                       .info = k->info};
  const int32_t rung = ng_damped_solve(b->ctx->queue, &m, d, ng_scratch(b));
  ng_queue_wait(b->ctx->queue);
  return rung != NG_DAMPED_NONE ? rung : had ? LAST : PLAIN;
}

ng_status ng_norm_full_solve(ng_block *b) {
  ng_norm *k = ng_norm_of_block(b);
  const double d = ng_norm_damping(b);
  const bool own = b->stat->owner == b->ctx->rank;
  int32_t rung = 0;
  if (!b->keeps) return NG_OK;
  if (own) {
    rung = solve_own(b, k->shift + d);
    k->says[NG_NORM_RUNG] = (float)rung;
    if (rung < LAST) k->says[NG_NORM_GOOD] = 1.0f;
    k->says[NG_NORM_DAMPED] = (float)d;
  }
  if (b->base.damping_leak) k->shift += d; /* on every rank that keeps the average */
  if (rung == 0) return NG_OK;
  b->p->rescued[rung < NG_DAMPED_DOUBLE    ? NG_RESCUE_DAMPING
                : rung == NG_DAMPED_DOUBLE ? NG_RESCUE_DOUBLE
                : rung == LAST             ? NG_RESCUE_LAST
                                           : NG_RESCUE_PLAIN]++;
  return NG_RESCUED;
}

void ng_norm_full_shared(ng_block *b, bool fresh) {
  ng_norm *k = ng_norm_of_block(b);
  (void)fresh;
  k->good = k->says[NG_NORM_GOOD] != 0.0f;
}

static void apply_wide(const ng_norm *k, const float *D, float *to) {
  const double *R = k->R;
  for (int64_t i = 0; i < k->width; i++) {
    double sum = 0.0;
    for (int64_t j = 0; j < k->width; j++) {
      sum += R[j <= i ? ng_sym_at(k->width, i, j) : ng_sym_at(k->width, j, i)] * (double)D[j];
    }
    to[i] = (float)sum;
  }
}

ng_status ng_norm_full_measure(ng_block *b) {
  const ng_norm *k = ng_norm_of_block(b);
  ng_queue *q = b->ctx->queue;
  float *D = ng_scratch(b);
  if (!ng_norm_read(b, D)) {
    memset(b->direction, 0, (size_t)k->width * sizeof *b->direction);
    return ng_fail(b->ctx, NG_SKIPPED, "layer '%s': its gradient is not finite", b->name);
  }
  if (k->good && ng_stat_wide(b->stat)) {
    apply_wide(k, D, b->direction);
  } else if (k->good) {
    ng_on(q)->mul_left(q, (ng_sym){k->R, k->width}, 1, D, 1, b->direction, 1);
    ng_queue_wait(q);
  } else {
    memcpy(b->direction, D, (size_t)k->width * sizeof *D);
  }
  ng_norm_measured(b, D);
  return NG_OK;
}

void ng_norm_full_report(const ng_block *b, ng_layer_report *r) {
  const ng_norm *k = ng_norm_of_block(b);
  if (!b->holds) return;
  const float rung = k->says[NG_NORM_RUNG]; /* of a file: any number */
  r->rung = rung >= 0.0f && rung <= (float)PLAIN ? (int32_t)rung : PLAIN;
  r->damping_f = (double)k->says[NG_NORM_DAMPED];
}
