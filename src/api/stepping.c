/* stepping.c: the public functions that end a step: write gradients in place, or update weights by SGD or AdamW.
 *
 * In: the learning rate, or the numbers of an update for each group.  Out: p->step->out and p->step->lr for
 * step/take.c.  A rank with invalid numbers passes the error to ng_step_run, because the other ranks wait for it in
 * `check`, where all ranks return together. */
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

/* ---- the numbers of groups -------------------------------------------------------------------*/

/* The group whose numbers are read; the public function and its struct, for messages. */
typedef struct set {
  ng_precond *p;
  const char *call, *type;
  int32_t group;
} set;

/* A number of an update: finite and in [least, below). */
typedef struct bound {
  const char *name;
  double value, least, below;
  const char *expected;
} bound;

/* Hash the numbers of a group; `check` compares the hashes of all ranks. */
static void hash_group(const set *s, const bound *b, int32_t n) {
  for (int32_t i = 0; i < n; i++)
    s->p->step->update_hash = ng_hash_number(s->p->step->update_hash, b[i].value);
}

/* Check lr first: an unset lr is NaN. */
static ng_status check_bounds(const set *s, double lr, const bound *b, int32_t n) {
  if (lr != lr) {
    return ng_fail(s->p->ctx, NG_ERR_ARG, "%s: lr was not given (group %d)", s->call, s->group);
  }
  for (int32_t i = 0; i < n; i++) {
    const bool fits = b[i].value >= b[i].least && b[i].value < b[i].below;
    if (fits && b[i].value - b[i].value == 0.0) continue;
    return ng_fail(s->p->ctx, NG_ERR_ARG, "%s: %s is %g, expected %s (group %d)", s->call,
                   b[i].name, b[i].value, b[i].expected, s->group);
  }
  return NG_OK;
}

static ng_status check_count(const set *s, const void *how, int32_t count) {
  if (how == NULL) return ng_fail(s->p->ctx, NG_ERR_ARG, "%s: how is NULL", s->call);
  if (count == s->p->update_groups) return NG_OK;
  return ng_fail(s->p->ctx, NG_ERR_ARG, "%s: count is %d, but the number of groups is %d", s->call,
                 count, s->p->update_groups);
}

/* Copy the struct of group s->group to *dst, which has the defaults.  The elements of the list `how` have the
 * struct_size of the first element. */
static ng_status copy_group(const set *s, void *dst, size_t ours, const void *how, size_t least) {
  char message[NG_MESSAGE] = "";
  size_t stride, size;
  memcpy(&stride, how, sizeof stride);
  const char *from = (const char *)how + (size_t)s->group * stride;
  memcpy(&size, from, sizeof size);
  if (size != stride) {
    return ng_fail(s->p->ctx, NG_ERR_ARG, "%s: struct_size is %zu in group %d and %zu in group 0",
                   s->call, size, s->group, stride);
  }
  const ng_status st = ng_struct_read(dst, ours, from, least, s->type, message, sizeof message);
  return st == NG_OK ? st : ng_fail(s->p->ctx, st, "%s", message);
}

static ng_status take_sgd(const set *s, const ng_sgd *how) {
  ng_sgd h;
  ng_sgd_init(&h, sizeof h);
  ng_status st = copy_group(s, &h, sizeof h, how, offsetof(ng_sgd, momentum));
  if (st != NG_OK) return st;
  const bound bounds[] = {{"lr", h.lr, 0.0, INFINITY, "a number >= 0"},
                          {"momentum", h.momentum, 0.0, INFINITY, "a number >= 0"},
                          {"dampening", h.dampening, -INFINITY, INFINITY, "a number"},
                          {"weight_decay", h.weight_decay, 0.0, INFINITY, "a number >= 0"}};
  st = check_bounds(s, h.lr, bounds, 4);
  if (st != NG_OK) return st;
  if (h.nesterov && (h.momentum == 0.0 || h.dampening != 0.0)) {
    return ng_fail(s->p->ctx, NG_ERR_ARG,
                   "%s: nesterov needs a momentum above 0 and a dampening of 0 (group %d)", s->call,
                   s->group);
  }
  hash_group(s, bounds, 4);
  hash_group(s, &(bound){.value = h.nesterov}, 1);
  hash_group(s, &(bound){.value = h.decoupled}, 1);
  ng_update_set_sgd(&s->p->step->output.group[s->group], &h, s->p->updates);
  s->p->step->lr = fmax(s->p->step->lr, h.lr);
  return NG_OK;
}

static ng_status take_adamw(const set *s, const ng_adamw *how) {
  ng_adamw h;
  ng_adamw_init(&h, sizeof h);
  ng_status st = copy_group(s, &h, sizeof h, how, offsetof(ng_adamw, beta1));
  if (st != NG_OK) return st;
  const bound bounds[] = {{"lr", h.lr, 0.0, INFINITY, "a number >= 0"},
                          {"beta1", h.beta1, 0.0, 1.0, "a number in [0, 1)"},
                          {"beta2", h.beta2, 0.0, 1.0, "a number in [0, 1)"},
                          {"eps", h.eps, 0.0, INFINITY, "a number >= 0"},
                          {"weight_decay", h.weight_decay, 0.0, INFINITY, "a number >= 0"}};
  st = check_bounds(s, h.lr, bounds, 5);
  if (st != NG_OK) return st;
  hash_group(s, bounds, 5);
  ng_update_set_adamw(&s->p->step->output.group[s->group], &h, s->p->updates);
  s->p->step->lr = fmax(s->p->step->lr, h.lr);
  return NG_OK;
}

/* ---- the updates -----------------------------------------------------------------------------*/

/* `how` is a list of ng_sgd or ng_adamw. */
static ng_status update(ng_precond *p, const char *call, bool sgd, const void *how, int32_t count) {
  ng_status st = ng_check_callable(p, call);
  if (st != NG_OK) return st;
  set s = {p, call, sgd ? "ng_sgd" : "ng_adamw", 0};
  p->step->output.kind = sgd ? NG_OUT_SGD : NG_OUT_ADAMW;
  p->step->update_hash = 0;
  p->step->lr = 0.0;
  st = check_count(&s, how, count);
  for (; s.group < count && st == NG_OK; s.group++) {
    st = sgd ? take_sgd(&s, how) : take_adamw(&s, how);
  }
  return ng_step_run(p, call, st);
}

ng_status ng_step_sgd(ng_precond *p, const ng_sgd *how, int32_t count) {
  return update(p, "ng_step_sgd", true, how, count);
}

ng_status ng_step_adamw(ng_precond *p, const ng_adamw *how, int32_t count) {
  return update(p, "ng_step_adamw", false, how, count);
}
