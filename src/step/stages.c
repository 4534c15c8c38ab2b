/* stages.c: check the groups of ranks; sum numbers over pipeline stages. Stages have different layers and step together.
 *
 * In: numbers that are equal on all ranks of this stage. Out: their sums over all stages. So the clip covers all layers,
 * each counted once, and a step is skipped in all stages or in none.
 *
 * Each rank sums with the ranks at the same position of the other stages. All ranks of a stage contribute equal numbers,
 * so all ranks have equal sums. */
#include "step/step.h"

bool ng_pipeline_exists(const ng_precond *p) {
  return p->ctx->stages != NULL && p->ctx->stages->size > 1;
}

ng_status ng_groups_compare(ng_precond *p) {
  static const char *const name[2] = {"stage_group", "model_group"};
  const ng_comm *const group[2] = {p->ctx->stages, p->ctx->model};
  const int32_t W = p->ctx->ranks;
  /* For each group: 1 if the group is given, then its size (ng_hash_split). */
  double x[2][1 + NG_HASH_PIECES];
  for (int i = 0; i < 2; i++) {
    x[i][0] = group[i] != NULL;
    ng_hash_split(x[i] + 1, group[i] == NULL ? 0 : (uint64_t)group[i]->size);
  }
  ng_status st = ng_exchange_sum(p, x[0], sizeof x / sizeof x[0][0], "ng_ready");
  for (int i = 0; i < 2 && st == NG_OK; i++) {
    if (x[i][0] != 0.0 && x[i][0] != (double)W) {
      st = ng_fail(p->ctx, NG_ERR_COMM,
                   "ng_ready: %s is given on %d of %d ranks, expected all of them or none", name[i],
                   (int)x[i][0], W);
    } else if (!ng_hash_sums_agree(x[i] + 1, W)) {
      st = ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: the sizes of %s differ between ranks", name[i]);
    } else {
      continue;
    }
    /* Abort, because ranks that have a stage_group may already wait there. */
    if (i == 0) ng_exchange_abort(p);
  }
  return st;
}

ng_status ng_pipeline_sum(ng_precond *p, double *x, int64_t n, const char *what) {
  if (!ng_pipeline_exists(p)) return NG_OK;
  return ng_exchange_sum_over(p, p->ctx->stages, x, n, what);
}

ng_status ng_pipeline_check(ng_precond *p, ng_status local) {
  double x[NG_CODES + 1 + NG_HASH_PIECES];
  double *refused = x + NG_CODES, *same = refused + 1;
  if (!ng_pipeline_exists(p)) return local;
  ng_codes_write(x, local);
  *refused = p->step->has_refused;
  ng_hash_split(same, ng_hash_number(ng_options_hash(p), p->step->lr));
  const ng_status st = ng_pipeline_sum(p, x, NG_CODES + 1 + NG_HASH_PIECES, "check");
  if (st != NG_OK) return st;
  const ng_status worst = ng_exchange_worst_status(p, x, local, "pipeline stages");
  if (worst < NG_OK) return worst;
  if (!ng_hash_sums_agree(same, p->ctx->stages->size)) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "options or the largest learning rate differ between the %d pipeline stages",
                   p->ctx->stages->size);
  }
  if (*refused > 0.0) p->step->has_refused = true;
  return local;
}
