/* options.c: the public functions that create, copy, set and get an ng_options, and rules between options.
 *
 * An ng_options records which options the caller has set; the method determines the values of all others.  So the
 * caller may set the method and options in any order.  A call that sets several options changes all or none. */
#include "option/option.h"

#include <stdlib.h>

static ng_status missing_object(char *message, size_t size) {
  return ng_fail_to(message, size, NG_ERR_ARG, "ng_options: it is NULL");
}

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
  if (o == NULL) return missing_object(message, size);
  if (name != NULL && ng_is(name, "method")) {
    return ng_options_set_method(o, value, message, size);
  }
  const ng_status st = ng_option_lookup(name, &row, message, size);
  return st == NG_OK ? ng_option_read(row, value, o, message, size) : st;
}

ng_status ng_options_set_real(ng_options *o, const char *name, double value, char *message,
                              size_t size) {
  const ng_option_row *row = NULL;
  if (o == NULL) return missing_object(message, size);
  const ng_status st = ng_option_lookup(name, &row, message, size);
  return st == NG_OK ? ng_option_read_real(row, value, o, message, size) : st;
}

ng_status ng_options_get(const ng_options *o, const char *name, char *value, size_t size) {
  const ng_option_row *row = NULL;
  if (value == NULL || size == 0) return NG_ERR_ARG;
  value[0] = 0;
  if (o == NULL) return NG_ERR_ARG;
  if (name != NULL && ng_is(name, "method")) {
    const size_t n = strlen(o->base.method);
    if (n >= size) return NG_ERR_ARG;
    memcpy(value, o->base.method, n + 1);
    return NG_OK;
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

/* Return name i of a list that has "method", all options and all removed options; NULL after the last name. */
static const char *name_at(int32_t i) {
  if (i == 0) return "method";
  return i <= NG_OPTION_COUNT ? ng_option_table[i - 1].name
                              : ng_removed_options[i - NG_OPTION_COUNT - 1].name;
}

/* A variable that exists sets its option, also if its text is empty. */
ng_status ng_options_from_env(ng_options *o, char *message, size_t size) {
  char variable[64], why[NG_MESSAGE];
  if (o == NULL) return missing_object(message, size);
  ng_options full = *o;
  for (int32_t i = 0; name_at(i) != NULL; i++) {
    ng_variable_name(name_at(i), variable, sizeof variable);
    const char *value = getenv(variable);
    if (value == NULL) continue;
    const ng_status st = ng_options_set(&full, name_at(i), value, why, sizeof why);
    if (st != NG_OK) {
      return ng_fail_to(message, size, st, "%s in the environment: %s", variable, why);
    }
  }
  *o = full;
  return NG_OK;
}

/* ---- check -----------------------------------------------------------------------------------*/

/* Each family has further rules (ng_family.check_options). */
ng_status ng_options_verify(const ng_options *full, char *message, size_t size) {
  const ng_settings *s = &full->base;
  if (!(s->clip_bound > 0) && (s->clip == NG_CLIP_NORM || s->clip == NG_CLIP_RATIO ||
                               s->clip == NG_CLIP_RMS || s->clip == NG_CLIP_VALUE)) {
    return ng_fail_to(message, size, NG_ERR_ARG, "clip = %s needs a clip_bound above 0",
                      ng_choice_text(NG_OPTION_clip, (int32_t)s->clip));
  }
  if (s->placement == NG_PLACEMENT_SPNGD && !s->colocate) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "placement = spngd gives whole layers to ranks: colocate must be 1");
  }
  return NG_OK;
}

/* ---- effect ----------------------------------------------------------------------------------*/

/* Append a condition to `text`, which has n bytes: "clip = norm, ratio, rms or value", or "window_momentum above 0".
 * Return the new length; if it is `size` or more, the text is truncated. */
static size_t write_need(const ng_option_need *need, char *text, size_t size, size_t n) {
  const ng_option_row *other = &ng_option_table[need->option];
  const uint32_t set = need->one_of;
  n += (size_t)snprintf(text + n, size - n, "%s%s %s", n > 0 ? ", or " : "", other->name,
                        set == 0 ? "above 0" : "=");
  for (int32_t i = 0; i < NG_CHOICES_MAX && n < size; i++) {
    const uint32_t bit = 1U << i;
    if ((set & bit) == 0) continue;
    const char *before = (set & (bit - 1)) == 0 ? "" : (set >> i) == 1U ? " or" : ",";
    const char *flag = i == 0 ? "0" : "1";
    n += (size_t)snprintf(text + n, size - n, "%s %s", before,
                          other->type == NG_OPTION_BOOL ? flag : other->choice[i]);
  }
  return n;
}

static bool is_met(const ng_options *o, const ng_option_need *need) {
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
  size_t n = 0;
  for (int i = 0; i < 2 && row->needs[i].exists && n < size; i++) {
    if (is_met(o, &row->needs[i])) {
      needs[0] = 0;
      return NG_OK;
    }
    n = write_need(&row->needs[i], needs, size, n);
  }
  if (n < size) return NG_OK;
  needs[0] = 0;
  return NG_ERR_ARG;
}
