/* stages.c: which groups ranks were given; pipeline stages, which have other layers and one step.
 *
 * In: the agreed values of this stage, equal on all its ranks.  Out: the same of all stages: the clip is of
 * all layers, each counted once by the stage that has it, and no stage steps alone.
 *
 * Each rank sums with the ranks of the same position in the other stages.  All ranks of a stage send equal values, so
 * all such groups get the same sums. */
#include "step/step.h"

bool ng_stages_there(const ng_precond *p) {
  return p->ctx->stages != NULL && p->ctx->stages->size > 1;
}

bool ng_sums_equal(const double x[2], int32_t ranks) { return x[0] * x[0] == x[1] * ranks; }

ng_status ng_groups_same(ng_precond *p) {
  static const char *const name[2] = {"stage_group", "model_group"};
  const ng_comm *const group[2] = {p->ctx->stages, p->ctx->model};
  const int32_t W = p->ctx->ranks;
  double x[2][3]; /* given; of so many ranks, and the square */
  for (int i = 0; i < 2; i++) {
    const double n = group[i] == NULL ? 0.0 : (double)group[i]->size;
    x[i][0] = group[i] != NULL;
    x[i][1] = n;
    x[i][2] = n * n;
  }
  ng_status st = ng_exchange_sum(p, x[0], 2 * 3, "ng_ready");
  for (int i = 0; i < 2 && st == NG_OK; i++) {
    if (x[i][0] != 0.0 && x[i][0] != (double)W) {
      st = ng_fail(p->ctx, NG_ERR_COMM,
                   "ng_ready: %s is given on %d of %d ranks, expected all of them or none", name[i],
                   (int)x[i][0], W);
    } else if (!ng_sums_equal(x[i] + 1, W)) {
      st = ng_fail(p->ctx, NG_ERR_COMM, "ng_ready: %ss have other numbers of ranks", name[i]);
    } else {
      continue;
    }
    /* Other stages wait for those that have the group. */
    if (i == 0) ng_exchange_give_up(p);
  }
  return st;
}

ng_status ng_stages_sum(ng_precond *p, double *x, int64_t n, const char *what) {
  if (!ng_stages_there(p)) return NG_OK;
  const ng_group all = ng_group_world(p->ctx->stages);
  if (ng_comm_sum(p->ctx->stages, &all, x, n, NG_F64) == NG_OK) return NG_OK;
  return ng_exchange_failed(p, what);
}

ng_status ng_stages_check(ng_precond *p, ng_status local) {
  double x[NG_CODES + 1 + NG_SAME_PIECES];
  double *refused = x + NG_CODES, *same = refused + 1;
  if (!ng_stages_there(p)) return local;
  ng_codes_put(x, local);
  *refused = p->step->refused;
  ng_same_number(same, ng_step_number(ng_options_number(p), p->step->lr));
  const ng_status st = ng_stages_sum(p, x, NG_CODES + 1 + NG_SAME_PIECES, "check");
  if (st != NG_OK) return st;
  const ng_status worst = ng_codes_worst(x);
  if (worst < NG_OK && worst != local) {
    return ng_fail(p->ctx, worst, "%d of %d pipeline stages failed with %s (%s)",
                   ng_codes_count(x, worst), p->ctx->stages->size, ng_status_name(worst),
                   ng_status_meaning(worst));
  }
  if (worst < NG_OK) return worst;
  if (!ng_same_sums(same, p->ctx->stages->size)) {
    return ng_fail(p->ctx, NG_ERR_STATE,
                   "options or the largest learning rate differ between the %d pipeline stages",
                   p->ctx->stages->size);
  }
  if (*refused > 0.0) p->step->refused = true;
  return local;
}

/* Stages may have other groups of learning rates: weighted sums always travel. */
ng_status ng_stages_agree(ng_precond *p, double *x, double *sum, bool weighted) {
  enum { KINDS = 2, EACH = 5 };
  double y[NG_CODES + 1 + KINDS * EACH];
  double *to = y + NG_CODES;
  const int each = weighted ? EACH : 3;
  if (!ng_stages_there(p)) return NG_OK;
  memcpy(y, x, NG_CODES * sizeof *y);
  to[0] = sum[0];
  for (int k = 0; k < KINDS; k++) {
    const double *from = sum + 1 + k * each;
    double *a = to + 1 + k * EACH;
    memcpy(a, from, (size_t)each * sizeof *a);
    if (!weighted) memcpy(a + 3, from, 2 * sizeof *a);
  }
  const ng_status st = ng_stages_sum(p, y, NG_CODES + 1 + KINDS * EACH, "agree");
  if (st != NG_OK) return st;
  memcpy(x, y, NG_CODES * sizeof *x);
  memcpy(sum, to, (1 + KINDS * EACH) * sizeof *sum);
  return NG_OK;
}
