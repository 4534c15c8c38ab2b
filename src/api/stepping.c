/* stepping.c: the public functions that end a step: write gradients in place, or update weights by SGD or AdamW.
 *
 * They check learning rates and coefficients, and store them in p->step for step/take.c.  A rank with invalid numbers
 * does not return here: it passes the error to ng_step_run, so that all ranks return together. */
#include "step/step.h"

#include <math.h>

ng_status ng_step(ng_precond *p, double lr) {
  const ng_status st = ng_check_callable(p, "ng_step");
  if (st != NG_OK) return st;
  p->step->output.kind = NG_OUT_GRADIENT;
  p->step->update_hash = 0;
  p->step->lr = lr;
  return ng_step_run(p, "ng_step", NG_OK);
}

/* ---- the coefficients of groups --------------------------------------------------------------*/

/* A group whose coefficients are read, and the names of the public function and its struct, for messages. */
typedef struct group_reader {
  ng_precond *p;
  const char *call, *type;
  int32_t group;
} group_reader;

/* A coefficient of an update.  It must be finite and in [least, below). */
typedef struct coefficient {
  const char *name;
  double value, least, below;
  const char *expected;
} coefficient;

static void hash_number(const group_reader *s, double x) {
  s->p->step->update_hash = ng_hash_number(s->p->step->update_hash, x);
}

/* Check n coefficients, of which lr is the first, and add them to the hash by which `check` compares all ranks. */
static ng_status check_coefficients(const group_reader *s, const coefficient *b, int32_t n) {
  if (isnan(b->value)) {
    return ng_fail(s->p->ctx, NG_ERR_ARG, "%s: lr was not given (group %d)", s->call, s->group);
  }
  for (int32_t i = 0; i < n; i++) {
    hash_number(s, b[i].value);
    if (isfinite(b[i].value) && b[i].value >= b[i].least && b[i].value < b[i].below) continue;
    return ng_fail(s->p->ctx, NG_ERR_ARG, "%s: %s is %g, expected %s (group %d)", s->call,
                   b[i].name, b[i].value, b[i].expected, s->group);
  }
  s->p->step->lr = fmax(s->p->step->lr, b->value);
  return NG_OK;
}

/* Copy the struct of group s->group from the list `groups` to *dst, which has the defaults.  All structs of the list must
 * have the struct_size of the first one. */
static ng_status copy_group(const group_reader *s, void *dst, size_t ours, const void *groups,
                            size_t least) {
  char message[NG_MESSAGE] = "";
  size_t stride, size;
  memcpy(&stride, groups, sizeof stride);
  const char *from = (const char *)groups + (size_t)s->group * stride;
  memcpy(&size, from, sizeof size);
  if (size != stride) {
    return ng_fail(s->p->ctx, NG_ERR_ARG, "%s: struct_size is %zu in group %d and %zu in group 0",
                   s->call, size, s->group, stride);
  }
  const ng_status st = ng_struct_read(dst, ours, from, least, s->type, message, sizeof message);
  return st == NG_OK ? st : ng_fail(s->p->ctx, st, "%s", message);
}

static ng_status read_sgd(const group_reader *s, const ng_sgd *groups) {
  ng_sgd h;
  ng_sgd_init(&h, sizeof h);
  ng_status st = copy_group(s, &h, sizeof h, groups, offsetof(ng_sgd, momentum));
  if (st != NG_OK) return st;
  const coefficient list[] = {{"lr", h.lr, 0.0, INFINITY, "a number >= 0"},
                              {"momentum", h.momentum, 0.0, INFINITY, "a number >= 0"},
                              {"dampening", h.dampening, -INFINITY, INFINITY, "a number"},
                              {"weight_decay", h.weight_decay, 0.0, INFINITY, "a number >= 0"}};
  st = check_coefficients(s, list, 4);
  if (st != NG_OK) return st;
  if (h.nesterov && (h.momentum == 0.0 || h.dampening != 0.0)) {
    return ng_fail(s->p->ctx, NG_ERR_ARG,
                   "%s: nesterov needs a momentum above 0 and a dampening of 0 (group %d)", s->call,
                   s->group);
  }
  hash_number(s, h.nesterov);
  hash_number(s, h.decoupled);
  ng_update_set_sgd(&s->p->step->output.group[s->group], &h, s->p->opt.base.decay_after,
                    s->p->updates);
  return NG_OK;
}

static ng_status read_adamw(const group_reader *s, const ng_adamw *groups) {
  ng_adamw h;
  ng_adamw_init(&h, sizeof h);
  ng_status st = copy_group(s, &h, sizeof h, groups, offsetof(ng_adamw, beta1));
  if (st != NG_OK) return st;
  const coefficient list[] = {{"lr", h.lr, 0.0, INFINITY, "a number >= 0"},
                              {"beta1", h.beta1, 0.0, 1.0, "a number in [0, 1)"},
                              {"beta2", h.beta2, 0.0, 1.0, "a number in [0, 1)"},
                              {"eps", h.eps, 0.0, INFINITY, "a number >= 0"},
                              {"weight_decay", h.weight_decay, 0.0, INFINITY, "a number >= 0"}};
  st = check_coefficients(s, list, 5);
  if (st == NG_OK) ng_update_set_adamw(&s->p->step->output.group[s->group], &h, s->p->updates);
  return st;
}

/* ---- the updates -----------------------------------------------------------------------------*/

/* `groups` is a list of ng_sgd or ng_adamw. */
static ng_status update_weights(ng_precond *p, const char *call, bool sgd, const void *groups,
                                int32_t count) {
  ng_status st = ng_check_callable(p, call);
  if (st != NG_OK) return st;
  group_reader s = {p, call, sgd ? "ng_sgd" : "ng_adamw", 0};
  p->step->output.kind = sgd ? NG_OUT_SGD : NG_OUT_ADAMW;
  p->step->update_hash = 0;
  p->step->lr = 0.0;
  if (groups == NULL) {
    st = ng_fail(p->ctx, NG_ERR_ARG, "%s: groups is NULL", call);
  } else if (count != p->update_groups) {
    st = ng_fail(p->ctx, NG_ERR_ARG, "%s: count is %d, but the number of groups is %d", call, count,
                 p->update_groups);
  }
  for (; s.group < count && st == NG_OK; s.group++) {
    st = sgd ? read_sgd(&s, groups) : read_adamw(&s, groups);
  }
  return ng_step_run(p, call, st);
}

ng_status ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t count) {
  return update_weights(p, "ng_step_sgd", true, groups, count);
}

ng_status ng_step_adamw(ng_precond *p, const ng_adamw *groups, int32_t count) {
  return update_weights(p, "ng_step_adamw", false, groups, count);
}

ng_status ng_sync(ng_precond *p) {
  const ng_status st = ng_check_callable(p, "ng_sync");
  return st == NG_OK ? ng_step_sync(p) : st;
}
