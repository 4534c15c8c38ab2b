/* live.c: the values in use at the coming step: base values, moved by ng_set, by schedules, and by
 * a layer's own overrides (which schedules leave alone). */
#include "model/model.h"
#include "option/option.h"

static double base_value(const ng_options *o, int k) {
  switch (k) {
  case NG_LIVE_DAMPING:
    return o->damping;
  case NG_LIVE_DECAY:
    return o->stat_decay;
  case NG_LIVE_KL:
    return o->kl_clip;
  case NG_LIVE_STAT:
    return (double)o->stat_period;
  default:
    return (double)o->solve_period;
  }
}

void ng_live_update(ng_precond *p) {
  for (int k = 0; k < NG_LIVE_COUNT; k++) {
    double v = base_value(&p->opt, k);
    if (p->schedule != NULL && ng_schedule_has(p->schedule, ng_live_name[k])) {
      v = ng_schedule_value(p->schedule, ng_live_name[k], v, p->since[k], p->steps);
    }
    p->live[k] = v;
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    for (int k = 0; k < NG_LIVE_COUNT; k++) {
      const int32_t option = ng_option_find(ng_live_name[k]);
      const bool own = option >= 0 && (b->overridden >> option & 1) != 0;
      b->live[k] = own ? base_value(&b->opt, k) : p->live[k];
    }
  }
}

static ng_status with_overrides(const ng_block *b, ng_options *o, char *message, size_t size) {
  uint64_t mask = 0;
  if (b->entry->d.options == NULL) return NG_OK;
  const ng_status st = ng_options_override(o, b->entry->d.options, &mask, message, size);
  return st == NG_OK ? ng_options_check(o, message, size) : st;
}

static ng_status set(ng_precond *p, const char *option, const char *value) {
  const int32_t row = option == NULL ? -1 : ng_option_find(option);
  char message[NG_MESSAGE] = "";
  ng_options o = p->opt;
  if (option == NULL || value == NULL) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_set: %s is NULL", option == NULL ? "option" : "value");
  }
  if (row >= 0) {
    ng_option_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    if (ng_option_at(row, &info) != NG_OK) return NG_ERR_ARG;
    if (!info.live && p->ready) {
      return ng_fail(p->ctx, NG_ERR_STATE, "ng_set: '%s' is fixed once ng_ready was called",
                     info.name);
    }
    if (info.type == NG_OPTION_TEXT) {
      return ng_fail(p->ctx, NG_ERR_STATE, "ng_set: '%s' is given to ng_precond_create", info.name);
    }
  }
  ng_status st = ng_options_set(&o, option, value, message, sizeof message);
  if (st == NG_OK) st = ng_options_check(&o, message, sizeof message);
  if (st != NG_OK) return ng_fail(p->ctx, st, "ng_set: %s", message);
  /* A layer's overrides were accepted with the old value: ask them all before anything changes. */
  for (int apply = 0; apply < 2; apply++) {
    for (int32_t i = 0; i < p->blocks; i++) {
      ng_options mine = o;
      st = with_overrides(p->block[i], &mine, message, sizeof message);
      if (st != NG_OK) {
        return ng_fail(p->ctx, st, "ng_set: layer '%s': %s", p->block[i]->entry->d.name, message);
      }
      if (apply != 0) p->block[i]->opt = mine;
    }
  }
  p->opt = o;
  for (int k = 0; k < NG_LIVE_COUNT; k++) {
    if (ng_option_find(ng_live_name[k]) == row) p->since[k] = p->steps;
  }
  ng_live_update(p);
  return NG_OK;
}

ng_status ng_set(ng_precond *p, const char *option, const char *value) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  return set(p, option, value);
}

ng_status ng_set_real(ng_precond *p, const char *option, double value) {
  char text[64];
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  (void)snprintf(text, sizeof text, "%.17g", value);
  return set(p, option, text);
}

static ng_status no_room(const ng_precond *p, const char *option, size_t size) {
  return ng_fail(p->ctx, NG_ERR_ARG, "ng_get: the value of '%s' does not fit %zu bytes", option,
                 size);
}

ng_status ng_get(const ng_precond *p, const char *option, char *value, size_t size) {
  if (p == NULL) return NG_ERR_ARG;
  ng_enter(p->ctx);
  if (option == NULL || value == NULL || size == 0) {
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_get: %s",
                   option == NULL ? "option is NULL" : "there is no room for the value");
  }
  char message[NG_MESSAGE] = "";
  const ng_option_row *found = NULL;
  const int32_t row = ng_option_find(option);
  if (row < 0 && !ng_is(option, "method")) {
    (void)ng_option_lookup(option, &found, message, sizeof message);
    return ng_fail(p->ctx, NG_ERR_ARG, "ng_get: %s", message);
  }
  for (int k = 0; k < NG_LIVE_COUNT; k++) {
    if (ng_option_find(ng_live_name[k]) == row) {
      const int n = snprintf(value, size, "%.17g", p->live[k]);
      return n >= 0 && (size_t)n < size ? NG_OK : no_room(p, option, size);
    }
  }
  return ng_options_get(&p->opt, option, value, size) == NG_OK ? NG_OK : no_room(p, option, size);
}
