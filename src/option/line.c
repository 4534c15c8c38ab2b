/* line.c: set several options from one text: "method=eva damping=0.01 skip_layers='fc1, head 2'".
 *
 *   line  = { blank } [ word { blank { blank } word } { blank } ]
 *   word  = NAME "=" VALUE        VALUE: the text up to a blank; or a text in '..' or "..", behind which a blank or the
 *                                 end must follow
 *
 * No byte escapes a quote: a value with both kinds of quotes needs ng_options_set.  If a word is wrong, the whole line
 * has no effect. */
#include "option/option.h"

/* A copy of NAME and VALUE, each ended by a 0. */
typedef struct word {
  char name[64]; /* longer than the name of any option */
  char value[NG_TEXT_SIZE];
} word;

/* The options that the line has set, because an option that is given twice is an error. */
typedef struct names_given {
  ng_option_mask options;
  bool method;
} names_given;

static const char *skip_blanks(const char *at) {
  while (ng_is_blank(*at)) {
    at++;
  }
  return at;
}

/* Copy the value at *at, behind the equals sign, to w->value; move *at behind the value. */
static ng_status next_value(const char **at, word *w, char *message, size_t size) {
  const char quote = **at == '\'' || **at == '"' ? **at : 0;
  const char *from = quote == 0 ? *at : *at + 1, *to = from;
  while (*to != 0 && (quote == 0 ? !ng_is_blank(*to) : *to != quote)) {
    to++;
  }
  if (quote != 0 && *to == 0) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s: %s has no closing %c", w->name,
                      ng_quote(*at).text, quote);
  }
  *at = quote == 0 ? to : to + 1;
  if (**at != 0 && !ng_is_blank(**at)) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "%s: expected a blank behind the closing %c, not '%s'", w->name, quote,
                      ng_quote(*at).text);
  }
  const size_t bytes = (size_t)(to - from);
  if (bytes >= sizeof w->value) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s: %zu bytes, expected at most %d", w->name,
                      bytes, NG_TEXT_SIZE - 1);
  }
  memcpy(w->value, from, bytes);
  w->value[bytes] = 0;
  return NG_OK;
}

/* Copy the NAME=VALUE at *at to *w; move *at behind it. */
static ng_status next_word(const char **at, word *w, char *message, size_t size) {
  size_t n = 0;
  while ((*at)[n] != 0 && (*at)[n] != '=' && !ng_is_blank((*at)[n])) {
    n++;
  }
  if ((*at)[n] != '=' || n == 0) {
    return ng_fail_to(message, size, NG_ERR_ARG, "'%s': expected NAME=VALUE", ng_quote(*at).text);
  }
  const size_t kept = n < sizeof w->name ? n : sizeof w->name - 1; /* a cut name is no option */
  memcpy(w->name, *at, kept);
  w->name[kept] = 0;
  *at += n + 1;
  return next_value(at, w, message, size);
}

static ng_status given_twice(const char *name, char *message, size_t size) {
  return ng_fail_to(message, size, NG_ERR_ARG, "%s is given twice", name);
}

static ng_status take_method(ng_options *full, const word *w, names_given *s, char *message,
                             size_t size) {
  if (s->method) return given_twice("method", message, size);
  s->method = true;
  return ng_options_set_method(full, w->value, message, size);
}

static ng_status take_option(ng_options *full, const word *w, names_given *s, bool of_layer,
                             char *message, size_t size) {
  const ng_option_row *row = NULL;
  const ng_status st = ng_option_lookup(w->name, &row, message, size);
  if (st != NG_OK) return st;
  const int32_t id = (int32_t)(row - ng_option_table);
  if (of_layer && !row->per_layer) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s holds for the whole model, not for a layer",
                      row->name);
  }
  if (ng_bits_has(s->options.word, id)) return given_twice(row->name, message, size);
  ng_bits_add(s->options.word, id);
  return ng_option_read(row, w->value, full, message, size);
}

static ng_status take_line(ng_options *full, const char *line, names_given *s, bool of_layer,
                           char *message, size_t size) {
  word w;
  memset(s, 0, sizeof *s);
  for (const char *at = skip_blanks(line); *at != 0; at = skip_blanks(at)) {
    ng_status st = next_word(&at, &w, message, size);
    if (st == NG_OK) {
      st = ng_is(w.name, "method") ? take_method(full, &w, s, message, size)
                                   : take_option(full, &w, s, of_layer, message, size);
    }
    if (st != NG_OK) return st;
  }
  return NG_OK;
}

ng_status ng_options_set_line(ng_options *o, const char *line, char *message, size_t size) {
  names_given s;
  if (o == NULL || line == NULL) {
    return ng_fail_to(message, size, NG_ERR_ARG, "ng_options_set_line: %s is NULL",
                      o == NULL ? "the object" : "line");
  }
  ng_options full = *o;
  const ng_status st = take_line(&full, line, &s, false, message, size);
  if (st == NG_OK) *o = full;
  return st;
}

/* Return the set of options whose rows have this value of per_layer. */
static ng_option_mask layer_options(bool per_layer) {
  ng_option_mask mask = {{0}};
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    if (ng_option_table[i].per_layer == per_layer) ng_bits_add(mask.word, i);
  }
  return mask;
}

/* Check the method of a layer's line: if the method sets an option that holds for the whole model, the model must have
 * the same value, except for the groups "clip" and "ranks" (but statistics is checked).  radius is compared even at its
 * default, because either all blocks ascend (SAM) or none. */
static ng_status check_method(const ng_options *full, char *message, size_t size) {
  ng_options row;
  ng_options_set_defaults(&row);
  ng_status st = ng_options_set_method(&row, full->base.method, message, size);
  for (int32_t i = 0; i < NG_OPTION_COUNT && st == NG_OK; i++) {
    const ng_option_row *r = &ng_option_table[i];
    char asked[64], is[64];
    const bool ranks = ng_is(r->group, "ranks") && i != NG_OPTION_statistics;
    if (r->per_layer || r->type == NG_OPTION_TEXT || ng_is(r->group, "clip") || ranks) continue;
    if (!ng_option_write(r, &row, asked, sizeof asked)) continue;
    if (ng_is(asked, r->default_text) && i != NG_OPTION_radius) continue;
    if (ng_option_write(r, full, is, sizeof is) && ng_is(asked, is)) continue;
    st =
        ng_fail_to(message, size, NG_ERR_ARG,
                   "method = %s has %s = %s, which holds for the whole model; give it to the model",
                   full->base.method, r->name, asked);
  }
  return st;
}

/* Options of the whole model count as given here, so a method in `text` sets per-layer options only.  It sets all of
 * them, because the model's values may belong to another curvature. */
ng_status ng_options_override(ng_options *o, const char *text, char *message, size_t size) {
  if (text == NULL) return NG_OK;
  ng_options full = *o;
  names_given s;
  full.given = layer_options(false);
  ng_status st = take_line(&full, text, &s, true, message, size);
  if (st == NG_OK && s.method) {
    full.own_method = true;
    st = check_method(&full, message, size);
  }
  if (st == NG_OK) st = ng_options_verify(&full, message, size);
  if (st != NG_OK) return st;
  full.given = o->given;
  *o = full;
  return NG_OK;
}
