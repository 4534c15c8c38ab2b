/* options.c: the public functions that create, copy, set and get an ng_options, and rules between options.
 *
 * An ng_options records which options the caller has set; the method determines the values of all others.  So the
 * caller may set the method and options in any order.  A call that sets several options changes all or none. */
#include "option/option.h"

#include <stdlib.h>

/* ---- make, copy ------------------------------------------------------------------------------*/

/* ng_plain_alloc: the caller's allocator belongs to a context, and an ng_options has no context. */
static ng_status create_options(const ng_options *values, char *message, size_t size,
                                ng_options **out) {
  ng_options *o = ng_plain_alloc(NULL, sizeof *o);
  if (o == NULL) return ng_fail_to(message, size, NG_ERR_NOMEM, "ng_options: no memory");
  *o = *values;
  *out = o;
  return NG_OK;
}

ng_status ng_options_create(const char *line, char *message, size_t size, ng_options **out) {
  ng_options full;
  if (out == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_options_create: out is NULL");
  *out = NULL;
  ng_options_set_defaults(&full);
  const ng_status st = line == NULL ? NG_OK : ng_options_set_line(&full, line, message, size);
  return st == NG_OK ? create_options(&full, message, size, out) : st;
}

ng_status ng_options_copy(const ng_options *o, ng_options **out) {
  if (out == NULL) return NG_ERR_ARG;
  *out = NULL;
  return o == NULL ? NG_ERR_ARG : create_options(o, NULL, 0, out);
}

void ng_options_destroy(ng_options **o) {
  if (o == NULL) return;
  ng_plain_free(NULL, *o, sizeof **o);
  *o = NULL;
}

/* ---- set and get -----------------------------------------------------------------------------*/

ng_status ng_options_set(ng_options *o, const char *name, const char *value, char *message,
                         size_t size) {
  const ng_option_row *row = NULL;
  if (o == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_options: it is NULL");
  if (name != NULL && ng_is(name, "method")) {
    return ng_options_set_method(o, value, message, size);
  }
  const ng_status st = ng_option_lookup(name, &row, message, size);
  return st == NG_OK ? ng_option_read(row, value, o, message, size) : st;
}

ng_status ng_options_set_real(ng_options *o, const char *name, double value, char *message,
                              size_t size) {
  const ng_option_row *row = NULL;
  if (o == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_options: it is NULL");
  const ng_status st = ng_option_lookup(name, &row, message, size);
  return st == NG_OK ? ng_option_read_real(row, value, o, message, size) : st;
}

ng_status ng_options_get(const ng_options *o, const char *name, char *value, size_t size) {
  const ng_option_row *row = NULL;
  if (value == NULL || size == 0) return NG_ERR_ARG;
  value[0] = 0;
  if (o == NULL) return NG_ERR_ARG;
  if (name != NULL && ng_is(name, "method")) {
    return ng_text_copy(o->base.method, value, size) ? NG_OK : NG_ERR_ARG;
  }
  const ng_status st = ng_option_lookup(name, &row, NULL, 0);
  return st != NG_OK || ng_option_write(row, o, value, size) ? st : NG_ERR_ARG;
}

ng_status ng_options_get_real(const ng_options *o, const char *name, double *out) {
  const ng_option_row *row = NULL;
  if (o == NULL || out == NULL) return NG_ERR_ARG;
  const ng_status st = ng_option_lookup(name, &row, NULL, 0);
  if (st != NG_OK) return st;
  if (row->type == NG_OPTION_CHOICE || row->type == NG_OPTION_TEXT) return NG_ERR_ARG;
  *out = ng_option_number(row, o);
  return NG_OK;
}

/* A variable that exists sets its option, also if its text is empty. */
ng_status ng_options_from_env(ng_options *o, char *message, size_t size) {
  char variable[64], why[NG_MESSAGE];
  if (o == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_options: it is NULL");
  ng_options full = *o;
  for (int32_t i = 0; ng_settable_name(i) != NULL; i++) {
    ng_write_variable_name(ng_settable_name(i), variable, sizeof variable);
    const char *value = getenv(variable);
    if (value == NULL) continue;
    const ng_status st = ng_options_set(&full, ng_settable_name(i), value, why, sizeof why);
    if (st != NG_OK) {
      return ng_fail_to(message, size, st, "%s in the environment: %s", variable, why);
    }
  }
  *o = full;
  return NG_OK;
}

/* ---- check -----------------------------------------------------------------------------------*/

/* Each family has further rules (ng_family.check_options). */
ng_status ng_options_check_rules(const ng_options *full, char *message, size_t size) {
  const ng_settings *s = &full->base;
  if (!(s->clip_bound > 0) && (s->clip == NG_CLIP_NORM || s->clip == NG_CLIP_RATIO ||
                               s->clip == NG_CLIP_RMS || s->clip == NG_CLIP_VALUE)) {
    return ng_fail_to(message, size, NG_ERR_ARG, "clip = %s needs a clip_bound above 0",
                      ng_choice_text(NG_OPTION_clip, (int32_t)s->clip));
  }
  if (s->overhead > 0.0 && s->refresh_tolerance > 0.0) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "overhead above 0 chooses periods, and refresh_tolerance above 0 replaces "
                      "periods: set one of the two to 0");
  }
  if (s->placement == NG_PLACEMENT_SPNGD && !s->colocate) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "placement = spngd gives whole layers to ranks: colocate must be 1");
  }
  return NG_OK;
}

/* ---- effect ----------------------------------------------------------------------------------*/

/* Append a condition to `text`: "clip = norm, ratio, rms or value", or "window_momentum above 0". */
static void append_need(const ng_option_need *need, char text[NG_MESSAGE]) {
  const ng_option_row *other = &ng_option_table[need->option];
  if (text[0] != 0) ng_name_append(text, NG_MESSAGE, ", or ");
  ng_name_append(text, NG_MESSAGE, other->name);
  ng_name_append(text, NG_MESSAGE, need->one_of == 0 ? " above 0" : " = ");
  for (int32_t i = 0; i < NG_CHOICES_MAX; i++) {
    const uint32_t rest = need->one_of >> i; /* value i and higher */
    if ((rest & 1U) == 0) continue;
    if (need->one_of != rest << i) ng_name_append(text, NG_MESSAGE, rest == 1U ? " or " : ", ");
    ng_name_append(text, NG_MESSAGE, other->choice[i]);
  }
}

static bool is_need_met(const ng_options *o, const ng_option_need *need) {
  const double value = ng_option_number(&ng_option_table[need->option], o);
  return need->one_of == 0 ? value > 0.0 : (need->one_of >> (int32_t)value & 1U) != 0;
}

ng_status ng_options_idle(const ng_options *o, const char *option, char *needs, size_t size) {
  const ng_option_row *row = NULL;
  if (needs == NULL || size == 0) return NG_ERR_ARG;
  needs[0] = 0;
  if (o == NULL) return NG_ERR_ARG;
  const ng_status st = ng_option_lookup(option, &row, NULL, 0);
  if (st != NG_OK || !row->needs[0].exists) return st;
  char text[NG_MESSAGE] = "";
  for (int i = 0; i < 2 && row->needs[i].exists; i++) {
    if (is_need_met(o, &row->needs[i])) return NG_OK;
    append_need(&row->needs[i], text);
  }
  return ng_text_copy(text, needs, size) ? NG_OK : NG_ERR_ARG;
}
