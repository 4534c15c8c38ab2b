/* values.c: what the options are at the coming step: p->now and b->opt of option/settings.h.
 *
 * In come p->base and b->base, ng_set, schedules and the layers' own values.  A schedule moves what
 * the model has and leaves a layer's own values alone.  Nothing is remembered between steps but
 * base values and since when they hold, so the values of a resumed run are those of one that was
 * not interrupted. */
#include "model/model.h"
#include "option/option.h"

/* ---- the coming step -------------------------------------------------------------------------*/

/* Every step, so no text is read here; the copies are a few hundred bytes a block.  A layer's own
 * value is not moved: who gives one means it, and the schedule's factors are of the model's
 * base. */
void ng_live_update(ng_precond *p) {
  p->now = p->base;
  for (int k = 0; k < NG_SCHEDULED; k++) {
    const ng_option_id id = ng_scheduled[k];
    if (!ng_schedule_has(p->schedule, id)) continue;
    const double base = ng_settings_number(&p->base, id);
    ng_settings_put(&p->now, id, ng_schedule_value(p->schedule, id, base, p->since[k], p->steps));
  }
  for (int32_t i = 0; i < p->blocks; i++) {
    ng_block *b = p->block[i];
    b->opt = b->base;
    for (int k = 0; k < NG_SCHEDULED; k++) {
      const ng_option_id id = ng_scheduled[k];
      if (ng_bits_has(b->overridden.word, (int32_t)id)) continue;
      ng_settings_put(&b->opt, id, ng_settings_number(&p->now, id));
    }
  }
}

/* ---- ng_set and ng_get -----------------------------------------------------------------------*/

/* *o is the model's: the layer's own values over it, or why they do not go together. */
static ng_status with_overrides(const ng_block *b, ng_options *o, char *message, size_t size) {
  if (b->entry->d.options == NULL) return NG_OK;
  const ng_status st = ng_options_override(o, b->entry->d.options, NULL, message, size);
  return st == NG_OK ? ng_options_check(o, message, size) : st;
}

/* Values arrive as text whatever they are, so that a number from a program passes the checks that
 * one from a command line passes. */
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
    /* A text would have to be copied, and a schedule parsed anew: both are done at creation. */
    if (info.type == NG_OPTION_TEXT) {
      return ng_fail(p->ctx, NG_ERR_STATE, "ng_set: '%s' is given to ng_precond_create", info.name);
    }
  }
  /* On a copy: the option may be in its range and still not go with the others. */
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
      if (apply != 0) ng_settings_of(&mine, &p->block[i]->base);
    }
  }
  p->opt = o;
  ng_settings_of(&p->opt, &p->base);
  /* Points of the schedule that lie behind belong to the base that was. */
  for (int k = 0; k < NG_SCHEDULED; k++) {
    if ((int32_t)ng_scheduled[k] == row) p->since[k] = p->steps;
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
  /* 17 digits read back as the same double. */
  (void)snprintf(text, sizeof text, "%.17g", value);
  return set(p, option, text);
}

/* Half a value would read as another one. */
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
  /* What a schedule may move is what it is now; the rest is what it was set to. */
  for (int k = 0; k < NG_SCHEDULED; k++) {
    if ((int32_t)ng_scheduled[k] != row) continue;
    const int n = snprintf(value, size, "%.17g", ng_settings_number(&p->now, ng_scheduled[k]));
    return n >= 0 && (size_t)n < size ? NG_OK : no_room(p, option, size);
  }
  return ng_options_get(&p->opt, option, value, size) == NG_OK ? NG_OK : no_room(p, option, size);
}
