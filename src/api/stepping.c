/* stepping.c: the public functions that end a step: gradients in place, or weights moved by SGD or
 * AdamW.
 *
 * In: the learning rate, or the numbers of an update.  Out: p->step->out and lr, for
 * step/stations.c, which has what happens.  Numbers of an update are checked before the walk, so
 * all ranks must give the same ones: a rank that returns from here leaves the others in `check`.
 * lr is checked inside, for all of them. */
#include "step/step.h"

#include <math.h>

static ng_status take_step(ng_precond *p, const char *call) {
  if (p->broken) return ng_fail(p->ctx, NG_ERR_COMM, "%s: the transport failed before", call);
  if (!p->ready) return ng_fail(p->ctx, NG_ERR_STATE, "%s: call ng_ready first", call);
  return ng_step_take(p, call);
}

ng_status ng_step(ng_precond *p, double lr) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  p->step->out.kind = NG_OUT_GRADIENT;
  p->step->lr = lr;
  return take_step(p, "ng_step");
}

/* A number of an update: finite, at least `least`, below `below`. */
typedef struct bound {
  const char *name;
  double value, least, below;
  const char *expected;
} bound;

static ng_status check_bounds(ng_precond *p, const char *call, const bound *b, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    const bool fits = b[i].value >= b[i].least && b[i].value < b[i].below;
    if (fits && b[i].value - b[i].value == 0.0) continue;
    return ng_fail(p->ctx, NG_ERR_ARG, "%s: %s is %g, expected %s", call, b[i].name, b[i].value,
                   b[i].expected);
  }
  return NG_OK;
}

ng_status ng_step_sgd(ng_precond *p, const ng_sgd *how) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  if (how == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "ng_step_sgd: how is NULL");
  ng_sgd s;
  char message[NG_MESSAGE] = "";
  ng_sgd_init(&s, sizeof s);
  ng_status st = ng_take_struct(&s, sizeof s, how, offsetof(ng_sgd, momentum), "ng_sgd", message,
                                sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "%s", message);
  const bound bounds[] = {{"momentum", s.momentum, 0.0, INFINITY, "a number >= 0"},
                          {"dampening", s.dampening, -INFINITY, INFINITY, "a number"},
                          {"weight_decay", s.weight_decay, 0.0, INFINITY, "a number >= 0"}};
  st = check_bounds(p, "ng_step_sgd", bounds, 3);
  if (st != NG_OK) return st;
  if (s.nesterov && (s.momentum == 0.0 || s.dampening != 0.0)) {
    return ng_fail(p->ctx, NG_ERR_ARG,
                   "ng_step_sgd: nesterov needs a momentum above 0 and a dampening of 0");
  }
  p->step->out.kind = NG_OUT_SGD;
  p->step->out.sgd = s;
  p->step->lr = s.lr;
  return take_step(p, "ng_step_sgd");
}

ng_status ng_step_adamw(ng_precond *p, const ng_adamw *how) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  if (how == NULL) return ng_fail(p->ctx, NG_ERR_ARG, "ng_step_adamw: how is NULL");
  ng_adamw a;
  char message[NG_MESSAGE] = "";
  ng_adamw_init(&a, sizeof a);
  ng_status st = ng_take_struct(&a, sizeof a, how, offsetof(ng_adamw, beta1), "ng_adamw", message,
                                sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "%s", message);
  const bound bounds[] = {{"beta1", a.beta1, 0.0, 1.0, "a number in [0, 1)"},
                          {"beta2", a.beta2, 0.0, 1.0, "a number in [0, 1)"},
                          {"eps", a.eps, 0.0, INFINITY, "a number >= 0"},
                          {"weight_decay", a.weight_decay, 0.0, INFINITY, "a number >= 0"}};
  st = check_bounds(p, "ng_step_adamw", bounds, 4);
  if (st != NG_OK) return st;
  p->step->out.kind = NG_OUT_ADAMW;
  p->step->out.adamw = a;
  p->step->lr = a.lr;
  return take_step(p, "ng_step_adamw");
}
