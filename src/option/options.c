/* options.c: the options struct: fill, set, get, check, copy.
 *
 * In come texts (command line, environment, a layer's overrides) or a struct the caller filled; out
 * goes a struct whose every field is in the table's range and whose fields agree with each other.
 * Work is done on a full copy and written back at the end, so a failure changes nothing.
 *
 * The struct crosses the header and may come from an older or a newer one: options that the
 * caller's header does not have hold their defaults; a tail that this library does not know must be
 * zero. */
#include "option/option.h"

#include <stdlib.h>

/* The smallest struct that is one of ours: struct_size and method. */
#define LEAST (offsetof(ng_options, method) + sizeof(const char *))

/* Every function reads the caller's struct through ng_options_take and writes through
 * ng_options_put, so that all between works on a struct of our own size. */

/* ---- across the header -----------------------------------------------------------------------*/

/* The defaults are kept as text, because that is what the table shows to people; they are read by
 * the same code as anybody's text, so a default out of its range would be found by the first
 * test. */
void ng_options_standard(ng_options *full) {
  memset(full, 0, sizeof *full);
  full->struct_size = sizeof *full;
  full->method = ng_method_name("natgrad");
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    const ng_status st = ng_option_read(row, row->standard, full, NULL, 0);
    NG_ASSERT(st == NG_OK);
    (void)st;
  }
}

/* A set byte beyond our struct is an option that we do not have: to leave it out silently would
 * train with other settings than were asked for. */
ng_status ng_options_take(const ng_options *o, ng_options *full, char *message, size_t size) {
  if (o == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_options: it is NULL");
  if (o->struct_size < LEAST) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_options: struct_size is %zu, expected at least %zu; call "
                      "ng_options_init first",
                      o->struct_size, LEAST);
  }
  for (size_t i = sizeof *full; i < o->struct_size; i++) {
    if (((const unsigned char *)o)[i] != 0) {
      return ng_fail_to(message, size, NG_ERR_ARG,
                        "ng_options: struct_size is %zu and byte %zu is set, but this library "
                        "knows only %zu bytes of it",
                        o->struct_size, i, sizeof *full);
    }
  }
  ng_options_standard(full);
  full->method = o->method;
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    if (ng_option_end(row) <= o->struct_size) ng_option_copy(row, o, full);
  }
  return NG_OK;
}

/* Nothing is written before every option that the caller cannot hold is known to be at its default:
 * those are what an older program has always meant. */
ng_status ng_options_put(ng_options *o, const ng_options *full, char *message, size_t size) {
  ng_options standard;
  char now[64], before[64];
  ng_options_standard(&standard);
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    if (ng_option_end(row) <= o->struct_size) continue;
    if (!ng_option_write(row, full, now, sizeof now) ||
        !ng_option_write(row, &standard, before, sizeof before) || !ng_is(now, before)) {
      return ng_fail_to(message, size, NG_ERR_ARG,
                        "%s: the program was built with a header that does not have this option",
                        row->name);
    }
  }
  o->method = full->method;
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    if (ng_option_end(row) <= o->struct_size) ng_option_copy(row, full, o);
  }
  return NG_OK;
}

/* The size comes from the caller's header, by the inline function that calls this one. */
ng_status ng_options_init_sized(ng_options *o, size_t size) {
  ng_options full;
  if (o == NULL || size < LEAST) return NG_ERR_ARG;
  memset(o, 0, size);
  o->struct_size = size;
  ng_options_standard(&full);
  return ng_options_put(o, &full, NULL, 0);
}

/* ---- set and get -----------------------------------------------------------------------------*/

/* One option alone: whether it goes with the others is asked when all are set, by _check. */
ng_status ng_options_set(ng_options *o, const char *name, const char *value, char *message,
                         size_t message_size) {
  const ng_option_row *row = NULL;
  ng_options full;
  ng_status st = ng_options_take(o, &full, message, message_size);
  if (st == NG_OK) st = ng_option_lookup(name, &row, message, message_size);
  if (st == NG_OK) st = ng_option_read(row, value, &full, message, message_size);
  return st == NG_OK ? ng_options_put(o, &full, message, message_size) : st;
}

/* No message: the callers are reports and files, which name the option themselves. */
ng_status ng_options_get(const ng_options *o, const char *name, char *value, size_t size) {
  const ng_option_row *row = NULL;
  ng_options full;
  if (value == NULL || size == 0) return NG_ERR_ARG;
  value[0] = 0;
  ng_status st = ng_options_take(o, &full, NULL, 0);
  if (st == NG_OK && name != NULL && full.method != NULL && ng_is(name, "method")) {
    const int n = snprintf(value, size, "%s", full.method);
    return n >= 0 && (size_t)n < size ? NG_OK : NG_ERR_ARG;
  }
  if (st == NG_OK) st = ng_option_lookup(name, &row, NULL, 0);
  if (st == NG_OK && !ng_option_write(row, &full, value, size)) st = NG_ERR_ARG;
  return st;
}

/* The whole environment or nothing of it; the message names the variable, since nobody remembers
 * what a shell exported. */
ng_status ng_options_from_env(ng_options *o, char *message, size_t message_size) {
  char variable[64], why[NG_MESSAGE];
  ng_options full;
  ng_status st = ng_options_take(o, &full, message, message_size);
  for (int32_t i = 0; i < NG_OPTION_COUNT && st == NG_OK; i++) {
    ng_variable_name(ng_option_table[i].name, variable, sizeof variable);
    const char *value = getenv(variable);
    if (value == NULL) continue; /* an empty one is a value, and is refused as such */
    st = ng_option_read(&ng_option_table[i], value, &full, why, sizeof why);
    if (st != NG_OK) {
      return ng_fail_to(message, message_size, st, "%s in the environment: %s", variable, why);
    }
  }
  return st == NG_OK ? ng_options_put(o, &full, message, message_size) : st;
}

/* ---- check -----------------------------------------------------------------------------------*/

/* What a family has to say about its own options is in its table (family/family.h): this room knows none.
 * Comparisons are of the parsed struct, texts are for messages: a choice that is misspelt does not
 * compile.  Every refusal says what to change, in words that ng_options_set takes. */

ng_status ng_options_verify_rows(const ng_options *full, char *message, size_t size) {
  if (full->method == NULL || !ng_method_known(full->method)) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "ng_options: method is '%s'; set it with "
                      "ng_options_set_method",
                      full->method == NULL ? "NULL" : ng_quote(full->method).text);
  }
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_status st = ng_option_verify(&ng_option_table[i], full, message, size);
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

/* Rows first: only what they let through can be parsed, and so compared with the others.  Last: a
 * schedule multiplies values that are known to be in range by then. */
ng_status ng_options_verify(const ng_options *full, const ng_option_mask *skip, char *message,
                            size_t size) {
  const ng_status st = ng_options_verify_rows(full, message, size);
  if (st != NG_OK) return st;
  ng_settings s;
  ng_settings_of(full, &s);
  if (!(s.clip_bound > 0) &&
      (s.clip == NG_CLIP_NORM || s.clip == NG_CLIP_RATIO || s.clip == NG_CLIP_RMS)) {
    return ng_fail_to(message, size, NG_ERR_ARG, "clip = %s needs a clip_bound above 0",
                      full->clip);
  }
  return ng_schedule_verify(full, skip, message, size);
}

/* ---- effect ----------------------------------------------------------------------------------*/

/* "clip = norm, ratio or rms", in the order of the enum; false: no room. */
static bool write_needs(const ng_option_row *row, char *text, size_t size) {
  const ng_option_row *other = &ng_option_table[row->needs];
  size_t n = (size_t)snprintf(text, size, "%s =", other->name);
  for (int32_t i = 0; i < NG_CHOICES_MAX && n < size; i++) {
    const uint32_t bit = 1U << i, set = row->needs_one_of;
    if ((set & bit) == 0) continue;
    const char *before = (set & (bit - 1)) == 0 ? "" : (set >> i) == 1U ? " or" : ",";
    n += (size_t)snprintf(text + n, size - n, "%s %s", before, other->choice[i]);
  }
  return n < size;
}

/* From the row alone: what a value does beside the others is said where they are listed. */
ng_status ng_options_idle(const ng_options *o, const char *option, char *needs, size_t size) {
  const ng_option_row *row = NULL;
  ng_options full;
  if (needs == NULL || size == 0) return NG_ERR_ARG;
  needs[0] = 0;
  ng_status st = ng_options_take(o, &full, NULL, 0);
  if (st == NG_OK) st = ng_options_verify_rows(&full, NULL, 0);
  if (st == NG_OK) st = ng_option_lookup(option, &row, NULL, 0);
  if (st != NG_OK || row->needs_one_of == 0) return st;
  if ((row->needs_one_of >> ng_option_chosen(&full, row->needs) & 1U) != 0) return NG_OK;
  if (write_needs(row, needs, size)) return NG_OK;
  needs[0] = 0;
  return NG_ERR_ARG;
}

/* ---- a layer's own values --------------------------------------------------------------------*/

/* Blanks separate, so no value of a layer's list can have one; free texts, which may, are for the
 * whole model. */
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* One "name=value"; *at moves behind it.  The word is copied, because it is cut at its equals sign
 * and the text is the caller's. */
static ng_status override_one(ng_options *full, const char **at, ng_option_mask *mask,
                              char *message, size_t size) {
  char word[128];
  const ng_option_row *row = NULL;
  size_t n = 0;
  while ((*at)[n] != 0 && !is_blank((*at)[n])) {
    if (n == sizeof word - 1) {
      return ng_fail_to(message, size, NG_ERR_ARG, "'%s' is too long for NAME=VALUE",
                        ng_quote(*at).text);
    }
    word[n] = (*at)[n];
    n++;
  }
  word[n] = 0;
  *at += n;
  char *equals = strchr(word, '=');
  if (equals == NULL) {
    return ng_fail_to(message, size, NG_ERR_ARG, "'%s': expected NAME=VALUE", ng_quote(word).text);
  }
  *equals = 0;
  ng_status st = ng_option_lookup(word, &row, message, size);
  if (st != NG_OK) return st;
  const int32_t id = (int32_t)(row - ng_option_table);
  if (!row->per_layer) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s holds for the whole model, not for a layer",
                      row->name);
  }
  if (ng_bits_has(mask->word, id)) {
    /* The last would win, and the first would look as if it counted. */
    return ng_fail_to(message, size, NG_ERR_ARG, "%s is given twice", row->name);
  }
  st = ng_option_read(row, equals + 1, full, message, size);
  if (st == NG_OK) ng_bits_add(mask->word, id);
  return st;
}

/* The result is checked with the layer's values in place: a layer may choose what the model's other
 * values would not allow.  A schedule is not held against values that it will not move. */
ng_status ng_options_override(ng_options *o, const char *text, ng_option_mask *mask, char *message,
                              size_t size) {
  ng_options full;
  ng_option_mask set; /* the caller's stays as it is if this fails */
  memset(&set, 0, sizeof set);
  ng_status st = ng_options_take(o, &full, message, size);
  for (const char *at = text; st == NG_OK && at != NULL;) {
    while (is_blank(*at)) {
      at++;
    }
    if (*at == 0) break;
    st = override_one(&full, &at, &set, message, size);
  }
  if (st == NG_OK) st = ng_options_verify(&full, &set, message, size);
  if (st == NG_OK) st = ng_options_put(o, &full, message, size);
  if (st == NG_OK && mask != NULL) *mask = set;
  return st;
}

/* ---- a copy of our own -----------------------------------------------------------------------*/

/* What the caller gave may be freed or changed as soon as a call returns.
 * Choices and the method become the library's own strings, so only free text is copied. */
ng_status ng_options_own(ng_context *ctx, const ng_options *o, ng_options *out) {
  char message[NG_MESSAGE];
  ng_options full;
  memset(out, 0, sizeof *out);
  ng_status st = ng_options_take(o, &full, message, sizeof message);
  if (st == NG_OK) st = ng_options_verify(&full, NULL, message, sizeof message);
  if (st != NG_OK) return ng_fail(ctx, st, "%s", message);
  full.method = ng_method_name(full.method);
  int32_t i = 0;
  for (; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    if (row->type == NG_OPTION_CHOICE) {
      const int32_t choice = ng_option_choice(row, ng_option_text(row, &full));
      ng_option_store_text(row, &full, row->choice[choice]);
    } else if (row->type == NG_OPTION_TEXT) {
      const char *text = ng_option_text(row, &full);
      const size_t bytes = strlen(text) + 1;
      char *copy = ng_alloc(ctx, bytes);
      if (copy == NULL) break;
      memcpy(copy, text, bytes);
      ng_option_store_text(row, &full, copy);
      ng_option_store_text(row, out, copy);
    }
  }
  if (i < NG_OPTION_COUNT) {
    ng_options_drop(ctx, out); /* holds what was copied so far */
    return ng_fail(ctx, NG_ERR_NOMEM, "ng_options: no memory for a copy");
  }
  *out = full;
  return NG_OK;
}

/* Zeroed at the end, so that dropping twice, or what was never filled, is no mistake. */
void ng_options_drop(ng_context *ctx, ng_options *o) {
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    if (row->type != NG_OPTION_TEXT) continue;
    const char *text = ng_option_text(row, o);
    if (text == NULL) continue; /* a copy that was not finished */
    void *mine;
    memcpy(&mine, &text, sizeof mine); /* it was ours before it became const */
    ng_free(ctx, mine, strlen(text) + 1);
  }
  memset(o, 0, sizeof *o);
}
